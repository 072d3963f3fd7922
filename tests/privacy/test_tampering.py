"""A ledger that was copied, linked, put back, edited or damaged: nothing is forgotten, or it is refused."""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tacitly
from tacitly.federation.local import LocalPopulation
from tacitly.privacy import home
from tacitly.privacy.guarantee import Budget, GaussianEvent, Sensitivity
from tacitly.privacy.ledger import BudgetExceeded, Ledger, LedgerMismatch, Run
from tacitly.privacy.ledger_file import chained
from tacitly.privacy.people import People

CEILING = Budget(epsilon=1.0, delta=1e-6)
EVENT = GaussianEvent(sigma=12.0, sensitivity=Sensitivity.of_clip(1.0))


def release(run: Run, size: int = 3) -> np.ndarray:
    return run.release(
        "sum", EVENT, lambda: np.random.default_rng().normal(size=size), noise="float", grid=0.0, coordinates=size
    )


def spend(path: Path, run: str, times: int = 1) -> float:
    with Ledger(path) as ledger:
        opened = ledger.run(run, config={})
        for _ in range(times):
            release(opened)
        return ledger.spent()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "people.ledger"
    Ledger(path, ceiling=CEILING).close()
    return path


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Another machine, or a user whose state was lost: nothing is remembered."""
    monkeypatch.setenv("TACITLY_HOME", str(tmp_path / "other home"))


def test_a_copy_of_the_one_file_is_the_whole_ledger_while_it_is_written(
    path: Path, tmp_path: Path, elsewhere: None
) -> None:
    with Ledger(path) as ledger:
        run = ledger.run("a", config={})
        values = [release(run) for _ in range(3)]
        copy = Path(shutil.copyfile(path, tmp_path / "backup"))
        spent = ledger.spent()
    with Ledger(copy) as backup:
        assert backup.spent() == spent > 0.1
        again = backup.run("a", config={})
        assert np.array_equal([release(again) for _ in range(3)], values)
    assert sorted(file.name for file in tmp_path.iterdir() if file.is_file()) == ["backup", "people.ledger"]


def test_a_second_name_is_refused(path: Path, tmp_path: Path) -> None:
    with Ledger(path) as open_before:
        run = open_before.run("a", config={})
        os.link(path, tmp_path / "alias")
        for name in (path, tmp_path / "alias"):
            with pytest.raises(LedgerMismatch, match="2 names"):
                Ledger(name)
        with pytest.raises(LedgerMismatch, match="2 names"):
            release(run)
        assert open_before.spent() == 0
        (tmp_path / "alias").unlink()
        release(run)


def test_a_symbolic_link_is_the_same_ledger(path: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(path)
    with Ledger(path) as first, Ledger(tmp_path / "link") as second:
        first.run("a", config={})
        with pytest.raises(RuntimeError, match="being written by another process"):
            second.run("a", config={})
        release(second.run("b", config={}))
        assert first.spent() == second.spent() > 0


def test_the_draft_of_a_killed_creator_is_no_second_name(path: Path) -> None:
    os.link(path, path.with_name(f"{path.name}.new-0123"))
    Ledger(path).close()
    assert os.stat(path).st_nlink == 1


def test_an_older_copy_is_refused(path: Path, tmp_path: Path) -> None:
    spend(path, "a")
    backup = shutil.copyfile(path, tmp_path / "backup")
    spend(path, "b")
    shutil.copyfile(backup, path)
    with pytest.raises(LedgerMismatch, match="older copy, and the missing entries were spent"):
        Ledger(path)


def test_an_older_copy_put_back_under_an_open_ledger_is_refused(path: Path, tmp_path: Path) -> None:
    with Ledger(path) as ledger:
        run = ledger.run("a", config={})
        backup = Path(shutil.copyfile(path, tmp_path / "backup"))
        first = release(run)
        newest = Path(shutil.copyfile(path, tmp_path / "newest"))
        shutil.copyfile(backup, path)
        with pytest.raises(LedgerMismatch, match="was replaced while it was open"):
            release(run)
        assert ledger.spent() > 0
    shutil.copyfile(newest, path)
    with Ledger(path) as ledger:
        assert np.array_equal(release(ledger.run("a", config={})), first)


def test_two_copies_cannot_both_be_spent(path: Path, tmp_path: Path) -> None:
    spend(path, "a")
    copy = Path(shutil.copyfile(path, tmp_path / "copy"))
    spend(copy, "b")
    with pytest.raises(LedgerMismatch, match="older copy"):
        spend(path, "c")
    assert spend(copy, "d") < 1.0


def test_two_copies_that_are_open_at_once_cannot_both_be_spent(path: Path, tmp_path: Path) -> None:
    """Both opened as the newest state, and were compared with it when they were opened only: 2.0 of 1.0."""
    copy, drawn = Path(shutil.copyfile(path, tmp_path / "copy")), list[str]()
    with Ledger(path) as ledger, Ledger(copy) as other:
        release(ledger.run("a", config={}))
        with pytest.raises(LedgerMismatch, match="older copy"):
            other.run("b", config={})
    again = Path(shutil.copyfile(path, tmp_path / "again"))
    with Ledger(path) as ledger, Ledger(again) as other:
        runs = [each.run("a", config={}) for each in (ledger, other)]  # resumed: nothing is written yet
        for run in runs:
            release(run)  # the value that is in both

        def drawing() -> np.ndarray:
            if not drawn:  # while this is debited, the other copy is asked too
                drawn.append("first")
                with pytest.raises(LedgerMismatch, match=r"older copy|not the ledger"):
                    runs[1].release("next", EVENT, drawing, noise="float", grid=0.0, coordinates=3)
            return np.zeros(3)

        runs[0].release("next", EVENT, drawing, noise="float", grid=0.0, coordinates=3)
        assert drawn == ["first"]


def test_copies_that_went_different_ways_are_told_apart(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = Path(shutil.copyfile(path, tmp_path / "copy"))
    spend(path, "a")
    monkeypatch.setenv("TACITLY_HOME", str(tmp_path / "second machine"))
    spend(copy, "b", times=3)
    monkeypatch.undo()
    with pytest.raises(LedgerMismatch, match="was rewritten, or two copies were used"):
        Ledger(copy)


def test_what_was_remembered_may_be_damaged_or_read_only(
    path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with Ledger(path) as ledger:
        anchor = home.anchor_file(ledger.id)
    anchor.write_text("{")
    with pytest.raises(LedgerMismatch, match="damaged"):
        Ledger(path)
    anchor.write_text("")
    Ledger(path).close()
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TACITLY_HOME", str(tmp_path / "file" / "home"))
    with Ledger(path) as ledger:
        release(ledger.run("a", config={}))


EDITS = {
    "a trigger dropped": "DROP TRIGGER entries_last",
    "a trigger weakened": "DROP TRIGGER entries_last; "
    "CREATE TRIGGER entries_last BEFORE DELETE ON entries BEGIN SELECT 1; END",
    "another table": "CREATE TABLE more (x)",
    "a row deleted, the trigger put back": "DROP TRIGGER entries_last; "
    "DELETE FROM entries WHERE kind = 'debit'; {entries_last}",
    "the ceiling raised": "DROP TRIGGER entries_stay; "
    """UPDATE entries SET body = replace(body, '"epsilon":1.0', '"epsilon":9.0'); {entries_stay}""",
    "a sigma raised": "DROP TRIGGER entries_stay; "
    "UPDATE entries SET body = replace(body, '12.0', '120.0'); {entries_stay}",
    "a write-ahead log": "PRAGMA journal_mode = WAL",
}


@pytest.mark.parametrize("name", EDITS)
def test_a_ledger_edited_with_another_tool_is_refused(path: Path, name: str, elsewhere: None) -> None:
    spend(path, "a", times=2)
    database = sqlite3.connect(path)
    triggers = dict(database.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'"))
    database.executescript(EDITS[name].format(**triggers) if "{entries" in EDITS[name] else EDITS[name])
    database.close()
    with pytest.raises(LedgerMismatch, match=r"with another tool|chain of hashes breaks"):
        Ledger(path)


def rewritten(path: Path, change: object) -> None:
    """Edit entries and forge every hash after them, as somebody who knows the format can."""
    database = sqlite3.connect(path)
    triggers = dict(database.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'"))
    for trigger in triggers:
        database.execute(f"DROP TRIGGER {trigger}")
    rows, head = change([list(row) for row in database.execute("SELECT seq, kind, body FROM entries")]), "0" * 64  # type: ignore[operator]
    database.execute("DELETE FROM entries")
    for number, (_, kind, body) in enumerate(rows, start=1):
        head = chained(head, number, kind, body)
        database.execute("INSERT INTO entries VALUES (?, ?, ?, ?)", (number, kind, body, head))
    for sql in triggers.values():
        database.execute(sql)
    database.commit()
    database.close()


def with_fields(rows: list[list[Any]], kind: str, **fields: object) -> list[list[Any]]:
    """Append the last entry of a kind again, with other fields."""
    body = next(json.loads(row[2]) for row in reversed(rows) if row[1] == kind)
    return [*rows, [0, kind, json.dumps({**body, "at": json.loads(rows[-1][2])["at"], **fields})]]


FORGERIES = {
    "no debits": lambda rows: [row for row in rows if row[1] not in ("debit", "publish")],
    "a higher ceiling": lambda rows: [
        *rows,
        [0, "ceiling", json.dumps({**json.loads(rows[0][2]), "ceiling": {"epsilon": 9.0, "delta": 1e-6}})],
    ],
    "ceiling at the start": lambda rows: [
        [*rows[0][:2], rows[0][2].replace('"epsilon":1.0', '"epsilon":9.0')],
        *rows[1:],
    ],
    "published twice": lambda rows: [*rows, next(row for row in rows if row[1] == "publish")],
    "another first entry": lambda rows: rows[1:],
    "an unknown kind": lambda rows: [*rows, [0, "refund", rows[-1][2]]],
    "a configuration without names": lambda rows: with_fields(rows, "run", name="odd", config="[]"),
    "a configuration that is no JSON": lambda rows: with_fields(rows, "run", name="odd", config="x"),
    "a statement without names": lambda rows: [
        *rows,
        [0, "certify", json.dumps({**json.loads(rows[-1][2]), "run": "a", "statement": []})],
    ],
    "people with an odd key": lambda rows: [
        *rows,
        [0, "people", json.dumps({**json.loads(rows[-1][2]), "key": [], "sha256": "", "users": 1})],
    ],
    "a finish at no time": lambda rows: with_fields(rows, "run", name="odd", at=2e-7),
    "an account without an id": lambda rows: [[*rows[0][:2], rows[0][2].replace('"id":', '"ie":')], *rows[1:]],
    "an account about nothing": lambda rows: [
        [*rows[0][:2], rows[0][2].replace('"about":{}', '"about":[]')],
        *rows[1:],
    ],
    "people without number": lambda rows: [
        *rows,
        [0, "people", json.dumps({**json.loads(rows[-1][2]), "key": "", "sha256": ""})[:-1] + ', "users": 1e999}'],
    ],
    "a grid that fits no float": lambda rows: with_fields(rows, "debit", index=2, grid=10**400),
    "brackets without end": lambda rows: [*rows, [0, "run", '{"at":' + "[" * 100_000]],
    "an entry before its time": lambda rows: [*rows, [0, "run", rows[1][2].replace('"at":"2', '"at":"1')]],
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_rewritten_history_is_impossible_or_not_what_was_seen(path: Path, name: str) -> None:
    spend(path, "a", times=2)
    rewritten(path, FORGERIES[name])
    with pytest.raises(LedgerMismatch, match=r"does not follow|was rewritten|older copy"):
        Ledger(path)


def test_the_certificate_shows_a_ledger_rewritten_where_nothing_is_remembered(
    path: Path, tmp_path: Path, elsewhere: None
) -> None:
    from tacitly.privacy.verification import verify

    data = tacitly.datasets.make_shared_subspace(60, 4, 1, 6, random_state=0)
    with Ledger(path) as ledger:
        model = tacitly.PrivateFedRep(rank=1, epsilon=0.5, ledger=ledger).fit(data.X, data.y, data.users)
        tacitly.save(model, tmp_path / "model")
        text = (tmp_path / "model" / "certificate.json").read_text("utf-8")
        assert verify(text, ledger=ledger).ok
    shutil.rmtree(tmp_path / "other home")
    rewritten(path, FORGERIES["ceiling at the start"])
    with Ledger(path) as ledger:
        assert verify(text, ledger=ledger).failed == ("ledger_entry",)


def test_flipped_bytes_are_found_or_change_nothing(
    path: Path, elsewhere: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    spend(path, "a", times=3)
    with Ledger(path) as ledger:
        before, spent = [row.to_dict() for row in ledger.releases()], ledger.spent()
        run = ledger.run("a", config={})
        values = [release(run) for _ in range(3)]
    content, generator = path.read_bytes(), random.Random(0)
    refused = 0
    for number in range(120):
        flipped = bytearray(content)
        flipped[generator.randrange(len(content))] ^= 1 << generator.randrange(8)
        other = tmp_path / f"flipped {number}"
        other.write_bytes(flipped)
        try:
            with Ledger(other) as ledger:
                assert [row.to_dict() for row in ledger.releases()] == before
                assert ledger.spent() == spent
                run = ledger.run("a", config={})
                assert np.array_equal([release(run) for _ in range(3)], values)
        except LedgerMismatch:
            refused += 1
        other.unlink()
    assert refused > 20


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_full_disk_stops_a_release_before_it_is_drawn_and_forgets_nothing(path: Path) -> None:
    """The limit on the size of files acts as a disk that is full, at every possible moment of a commit."""
    drawn = path.with_name("drawn")
    small = GaussianEvent(sigma=100.0, sensitivity=Sensitivity.of_clip(1.0))
    for room in range(1, 24, 3):
        child = os.fork()
        if child == 0:
            try:
                with Ledger(path) as ledger:
                    run = ledger.run(f"run {room}", config={})
                    now = path.stat().st_size
                    resource.setrlimit(resource.RLIMIT_FSIZE, (now + 512 * room, resource.RLIM_INFINITY))
                    for _ in range(20):
                        run.release("sum", small, lambda: np.zeros(64), noise="float", grid=0.0, coordinates=64)
                        with drawn.open("a") as file:
                            file.write("x")
                os._exit(0)
            except LedgerMismatch as error:
                os._exit(0 if "could not be written" in str(error) else 4)
            except BudgetExceeded:
                os._exit(0)
            except BaseException:
                os._exit(5)
        assert os.WEXITSTATUS(os.waitpid(child, 0)[1]) == 0
        with Ledger(path) as ledger:
            published = [row for row in ledger.releases() if row.state == "published"]
            assert len(published) >= (len(drawn.read_text()) if drawn.exists() else 0)
            assert ledger.spent() <= 1.0 + 1e-9
    assert len(published) > 10


def test_a_process_killed_while_it_creates_a_ledger_leaves_none_or_a_whole_one(tmp_path: Path) -> None:
    program = "import sys, tacitly.privacy.ledger as m; print('ready', flush=True); m.Ledger(sys.argv[1], ceiling=1.0)"
    for number in range(5):
        path = tmp_path / f"{number}.ledger"
        child = subprocess.Popen(
            [sys.executable, "-c", program, str(path)],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(Path(tacitly.__file__).parents[1])},
        )
        assert child.stdout is not None
        child.stdout.readline()
        child.kill()
        child.wait()
        with Ledger(path, ceiling=1.0) as ledger:
            assert ledger.spent() == 0


@pytest.mark.parametrize("in_memory", [True, False])
def test_a_run_is_not_resumed_on_other_rows(tmp_path: Path, in_memory: bool) -> None:
    data = tacitly.datasets.make_shared_subspace(60, 4, 1, 6, random_state=0)

    def stop(name: str) -> None:
        raise KeyboardInterrupt

    with Ledger(None if in_memory else tmp_path / "ledger") as ledger:
        estimator = tacitly.PrivateFedRep(rank=1, epsilon=1.0, ledger=ledger)
        with pytest.raises(KeyboardInterrupt):
            estimator.fit(data.X, data.y, data.users, on_release=stop)
        other = data.y.copy()
        other[17] += 1e-9
        with pytest.raises(LedgerMismatch, match="was begun on other rows"):
            estimator.fit(data.X, other, data.users)
        swapped = np.where(data.users == 1, 60, data.users)
        with pytest.raises(LedgerMismatch, match="was begun on other rows"):
            estimator.fit(data.X, data.y, swapped)
        estimator.fit(data.X, data.y, data.users)


def test_a_run_whose_rows_an_engine_reads_is_tied_to_rows_and_people_too(tmp_path: Path) -> None:
    """Users who are read in parts on a cluster were on no account, and a run was resumed on other rows."""
    data = tacitly.datasets.make_shared_subspace(60, 4, 1, 6, random_state=0)
    cohorts = [tacitly.Cohort.from_arrays(data.X, data.y + shift, data.users) for shift in (0.0, 1e-9)]
    ledger = Ledger(tmp_path / "ledger", about={"roster": "closed"})

    def fit(cohort: tacitly.Cohort, **more: Any) -> None:
        engine = SimpleNamespace(population=lambda _: LocalPopulation(cohort))
        tacitly.PrivateAltMin(rank=1, rounds=1, epsilon=1.0, ledger=ledger, engine=engine).fit(**more)

    def stop(name: str) -> None:
        raise KeyboardInterrupt

    ledger.enrol(People.of([0], ledger.secret))
    with pytest.raises(LedgerMismatch, match="59 of 60 users are not on the roster"):
        fit(cohorts[0])
    ledger.enrol(People.of(data.users, ledger.secret))
    with pytest.raises(KeyboardInterrupt):
        fit(cohorts[0], on_release=stop)
    with pytest.raises(LedgerMismatch, match="was begun on other rows"):
        fit(cohorts[1])
    fit(cohorts[0])
    ledger.close()


def test_a_run_is_not_resumed_with_another_key(path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    data = tacitly.datasets.make_shared_subspace(60, 4, 1, 6, random_state=0)
    with Ledger(path) as ledger, pytest.raises(ZeroDivisionError):
        tacitly.PrivateFedRep(rank=1, epsilon=1.0, ledger=ledger).fit(
            data.X, data.y, data.users, on_release=lambda _: 1 / 0
        )
    monkeypatch.setenv("TACITLY_HOME", str(tmp_path / "other home"))
    with Ledger(path) as ledger, pytest.raises(LedgerMismatch, match="begun with another key"):
        tacitly.PrivateFedRep(rank=1, epsilon=1.0, ledger=ledger).fit(data.X, data.y, data.users)


def test_the_ledger_and_the_state_hold_no_id_and_no_cell(path: Path) -> None:
    data = tacitly.datasets.make_shared_subspace(60, 4, 1, 6, random_state=0)
    ids = np.array([f"patient-{user}" for user in data.users])
    with Ledger(path) as ledger:
        tacitly.PrivateFedRep(rank=1, epsilon=1.0, ledger=ledger).fit(data.X, data.y, ids)
        assert [len(people) for people in ledger.people()] == [60]
    for file in [path, *home.folder().rglob("*")]:
        if file.is_file():
            assert b"patient" not in file.read_bytes()
    assert home.secret() not in path.read_bytes()


def test_an_account_with_a_roster_admits_nobody_else(tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger", ceiling=1.0, about={"roster": "closed"}) as ledger:
        ledger.enrol(People.of(range(10), ledger.secret))
        ledger.run("a", config={}, people=People.of(range(5), ledger.secret))
        with pytest.raises(LedgerMismatch, match="2 of 4 users are not on the roster"):
            ledger.run("b", config={}, people=People.of([8, 9, 10, 11], ledger.secret))
        with pytest.raises(LedgerMismatch, match="another key"):
            ledger.run("c", config={}, people=People.of(range(5), b"another key"))
        with pytest.raises(LedgerMismatch, match="it is not known whether the users"):
            ledger.run("d", config={})
        assert [run.name for run in ledger.runs()] == ["a"]


def test_a_user_without_a_home_is_told_where_to_put_state(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("TACITLY_HOME", "XDG_STATE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", staticmethod(nobody))
    assert home.known() == {}
    with pytest.raises(OSError, match="Set TACITLY_HOME"):
        home.secret()


def test_a_key_that_others_can_read_is_refused(elsewhere: None) -> None:
    first = home.secret()
    assert home.secret() == first
    file = home.folder() / "identity.key"
    assert file.stat().st_mode & 0o777 == 0o600
    file.chmod(0o644)
    with pytest.raises(ValueError, match="readable by its owner only"):
        home.secret()
