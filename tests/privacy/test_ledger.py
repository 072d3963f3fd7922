"""The ledger: debit, draw, publish, return; never too much, never forgotten."""

from __future__ import annotations

import json
import math
import os
import sqlite3
import stat
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tacit.privacy.accounting import compose, mu_of
from tacit.privacy.guarantee import Adjacency, Budget, GaussianEvent, Sensitivity, Unit
from tacit.privacy.ledger import BudgetExceeded, Ledger, LedgerMismatch, Release, Run, RunInUse

CEILING = Budget(epsilon=1.0, delta=1e-6)


def event(releases: int = 1, *, clip: float = 1.0, **fields: object) -> GaussianEvent:
    """One of ``releases`` equal parts of the ceiling."""
    sigma = clip * math.sqrt(releases) / mu_of(CEILING.epsilon, CEILING.delta)
    return replace(GaussianEvent(sigma=sigma, sensitivity=Sensitivity.of_clip(clip)), **fields)


def draw_three() -> np.ndarray:
    return np.random.default_rng().normal(size=3)


def never() -> np.ndarray:
    raise AssertionError("drawn although it must not be")


def release(run: Run, what: GaussianEvent, draw=draw_three, *, name: str = "gradient", noise: str = "float"):
    return run.release(name, what, draw, noise=noise, grid=0.0, coordinates=3)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


def test_a_value_comes_back_as_stored_float64() -> None:
    with Ledger() as ledger:
        value = release(ledger.run("a", config={}), event(), lambda: np.ones((2, 3), dtype=np.float32))
    assert value.dtype == np.float64
    assert value.shape == (2, 3)


def test_a_row_is_debited_when_the_draw_begins_and_published_when_it_is_over(path: Path) -> None:
    seen: list[str] = []

    def look() -> np.ndarray:
        with sqlite3.connect(path) as other:
            seen.append(other.execute("SELECT state FROM releases").fetchone()[0])
        return np.zeros(3)

    with Ledger(path, ceiling=CEILING) as ledger:
        run = ledger.run("a", config={})
        release(run, event(2), look)
        assert seen == ["debited"]
        assert [row.state for row in run.releases] == ["published"]


def test_the_ceiling_stops_a_release_before_it_is_drawn() -> None:
    with Ledger(ceiling=CEILING) as ledger:
        run = ledger.run("a", config={})
        for _ in range(4):
            release(run, event(4))
        assert ledger.spent() == pytest.approx(1.0, rel=1e-9)
        with pytest.raises(BudgetExceeded, match="Nothing was drawn"):
            release(run, event(10**6), never)
        assert len(run.releases) == 4


def test_the_ceiling_counts_all_runs() -> None:
    with Ledger(ceiling=CEILING) as ledger:
        release(ledger.run("a", config={}), event(2))
        release(ledger.run("b", config={}), event(2))
        with pytest.raises(BudgetExceeded):
            release(ledger.run("c", config={}), event(2), never)


def test_the_ceiling_is_held_under_its_own_adjacency() -> None:
    with Ledger(ceiling=replace(CEILING, adjacency=Adjacency.REPLACE_ONE)) as ledger:
        with pytest.raises(BudgetExceeded):
            release(ledger.run("a", config={}), event(1), never)
        release(ledger.run("b", config={}), event(4))
        assert ledger.spent() == pytest.approx(1.0, rel=1e-9)
        assert ledger.spent(Adjacency.ZERO_OUT) < 0.5


def test_a_plan_that_does_not_fit_is_refused_and_leaves_no_run() -> None:
    with Ledger(ceiling=CEILING) as ledger:
        with pytest.raises(BudgetExceeded, match="plan of run 'a'"):
            ledger.run("a", config={}, planned=[event(4)] * 5)
        assert ledger.runs() == []
        ledger.run("a", config={}, planned=[event(4)] * 4)


@pytest.mark.parametrize("noise", ["none", "seeded"])
def test_a_release_that_nothing_protects_costs_everything(noise: str) -> None:
    bare = event(sigma=0.0) if noise == "none" else event(100)
    with Ledger(ceiling=CEILING) as ledger, pytest.raises(BudgetExceeded, match="epsilon to inf"):
        release(ledger.run("a", config={}), bare, never, noise=noise)
    for unlimited in (None, Budget(epsilon=math.inf, delta=1e-6)):
        with Ledger(ceiling=unlimited) as ledger:
            release(ledger.run("a", config={}), bare, noise=noise)
            assert ledger.spent(delta=1e-6) == math.inf


def test_without_a_ceiling_the_ledger_still_counts() -> None:
    with Ledger() as ledger:
        release(ledger.run("a", config={}), event())
        assert ledger.spent(delta=1e-6) == compose([event()], Adjacency.ZERO_OUT, 1e-6)
        assert ledger.runs()[0].epsilon is None
        with pytest.raises(ValueError, match="delta must be given"):
            ledger.spent()


def test_another_unit_than_the_ceiling_protects_is_refused() -> None:
    of_row = event(100, sensitivity=Sensitivity.of_clip(1.0, unit=Unit.ROW))
    with Ledger(ceiling=CEILING) as ledger, pytest.raises(LedgerMismatch, match="unit of the ceiling"):
        release(ledger.run("a", config={}), of_row, never)


def test_the_first_ceiling_stands(path: Path) -> None:
    Ledger(path, ceiling=CEILING).close()
    with Ledger(path) as ledger:
        assert ledger.ceiling == CEILING
    Ledger(path, ceiling=CEILING).close()
    with pytest.raises(LedgerMismatch, match=r"epsilon=1.0.*epsilon=2.0"):
        Ledger(path, ceiling=replace(CEILING, epsilon=2.0))


def test_a_ledger_without_a_ceiling_cannot_get_one(path: Path) -> None:
    Ledger(path).close()
    with pytest.raises(LedgerMismatch, match="None"):
        Ledger(path, ceiling=CEILING)


def test_an_infinite_ceiling_survives_the_file(path: Path) -> None:
    unlimited = Budget(epsilon=math.inf, delta=1e-6)
    Ledger(path, ceiling=unlimited).close()
    with Ledger(path, ceiling=unlimited) as ledger:
        assert ledger.ceiling == unlimited


def test_a_resumed_run_gets_the_published_values_without_drawing(path: Path) -> None:
    with Ledger(path, ceiling=CEILING) as ledger:
        run = ledger.run("a", config={"rank": 4})
        assert not run.resumed
        values = [release(run, event(3)) for _ in range(2)]
    with Ledger(path) as ledger:
        run = ledger.run("a", config={"rank": 4})
        assert run.resumed
        again = [release(run, event(3), never) for _ in range(2)]
        release(run, event(3))
        run.finish()
        assert ledger.spent() == pytest.approx(1.0, rel=1e-9)
    assert np.array_equal(values, again)


@pytest.mark.parametrize(
    ("name", "what", "noise"),
    [("other", event(3), "float"), ("gradient", event(4), "float"), ("gradient", event(3), "exact")],
)
def test_a_resumed_run_must_ask_for_the_same_releases(name: str, what: GaussianEvent, noise: str) -> None:
    with Ledger() as ledger:
        release(ledger.run("a", config={}), event(3))
        with pytest.raises(LedgerMismatch, match="not the program that began the run"):
            release(ledger.run("a", config={}), what, never, name=name, noise=noise)


def test_other_coordinates_are_another_release() -> None:
    with Ledger() as ledger:
        release(ledger.run("a", config={}), event(3))
        with pytest.raises(LedgerMismatch):
            ledger.run("a", config={}).release("gradient", event(3), never, noise="float", grid=0.0, coordinates=4)


def test_a_draw_that_raises_stays_debited_and_is_reused(path: Path) -> None:
    def fail() -> np.ndarray:
        raise OSError("a machine went away")

    with Ledger(path, ceiling=CEILING) as ledger:
        run = ledger.run("a", config={})
        with pytest.raises(OSError, match="went away"):
            release(run, event(), fail)
        assert ledger.spent() == pytest.approx(1.0, rel=1e-9)
        assert [(row.state, row.attempts) for row in run.releases] == [("debited", 1)]
        with pytest.raises(LedgerMismatch, match="without a value"):
            run.finish()
        release(run, event())
        assert [(row.state, row.attempts) for row in run.releases] == [("published", 2)]
        assert ledger.spent() == pytest.approx(1.0, rel=1e-9)


def test_a_value_that_is_not_numbers_is_not_published() -> None:
    with Ledger() as ledger:
        run = ledger.run("a", config={})
        with pytest.raises((TypeError, ValueError)):
            release(run, event(), lambda: np.array([object()]))
        assert run.releases[0].state == "debited"


def test_a_row_taken_over_while_it_is_drawn_has_one_value_only() -> None:
    with Ledger(ceiling=CEILING) as ledger:
        slow, quick = ledger.run("a", config={}), ledger.run("a", config={})
        kept: list[np.ndarray] = []

        def overtaken() -> np.ndarray:
            kept.append(release(quick, event()))
            return draw_three()

        with pytest.raises(LedgerMismatch, match="by another writer"):
            release(slow, event(), overtaken)
        assert np.array_equal(release(slow, event(), never), kept[0])


def test_a_finished_run_is_closed_for_good(path: Path) -> None:
    with Ledger(path) as ledger:
        run = ledger.run("a", config={})
        release(run, event())
        run.finish()
        run.finish()
        with pytest.raises(LedgerMismatch, match="finished"):
            release(run, event(), never)
        with pytest.raises(LedgerMismatch, match="Choose another name"):
            ledger.run("a", config={})
        assert ledger.runs()[0].state == "finished"


def test_another_configuration_is_named_by_its_keys() -> None:
    with Ledger() as ledger:
        ledger.run("a", config={"rank": 4, "clip": 1.0, "init": {"seed": 1}, "old": None})
        with pytest.raises(LedgerMismatch, match="differ: init, new, old, rank"):
            ledger.run("a", config={"rank": 5, "clip": 1.0, "init": {"seed": 2}, "new": None})


def test_configurations_are_compared_as_values_not_as_text() -> None:
    with Ledger() as ledger:
        ledger.run("a", config={"rank": 4, "epsilon": math.inf, "shape": (2, 3)})
        same = {"shape": [2, 3], "epsilon": float("inf"), "rank": np.int64(4)}
        assert ledger.run("a", config=same).resumed


def test_another_plan_is_another_run() -> None:
    with Ledger() as ledger:
        ledger.run("a", config={}, planned=[event(2)])
        with pytest.raises(LedgerMismatch, match="another plan"):
            ledger.run("a", config={}, planned=[event(3)])


def test_a_run_must_end_as_planned() -> None:
    plan = [event(3), event(3), event(3, sensitivity=Sensitivity.of_clip(1.0, acute=True))]
    with Ledger() as ledger:
        run = ledger.run("a", config={}, planned=plan)
        for part in reversed(plan):
            release(run, replace(part, sigma=part.sigma, slack=1e-12))
        run.finish()

        run = ledger.run("rescaled", config={}, planned=plan[:2])
        for clip in (0.3, 7.0):
            release(run, event(3, clip=clip))
        run.finish()

        for name, made in {"fewer": plan[:2], "more": [*plan, plan[0]], "other": [event(3)] * 3}.items():
            run = ledger.run(name, config={}, planned=plan)
            for part in made:
                release(run, part)
            with pytest.raises(LedgerMismatch, match="must release what it planned"):
                run.finish()


def test_a_program_that_stops_short_of_what_was_released_cannot_finish() -> None:
    with Ledger() as ledger:
        first = ledger.run("a", config={})
        release(first, event(2))
        release(first, event(2))
        second = ledger.run("a", config={})
        release(second, event(2), never)
        with pytest.raises(LedgerMismatch, match="asked for 1"):
            second.finish()


def test_runs_and_releases_are_listed_in_order() -> None:
    with Ledger(ceiling=CEILING) as ledger:
        for name in ("b", "a"):
            run = ledger.run(name, config={"name": name})
            release(run, event(8))
            release(run, event(8))
        assert [(row.run, row.index) for row in ledger.releases()] == [("b", 0), ("b", 1), ("a", 0), ("a", 1)]
        assert [row.index for row in ledger.releases("a")] == [0, 1]
        summary = ledger.runs()[0]
        assert (summary.name, summary.state, summary.releases) == ("b", "open", 2)
        assert summary.config == {"name": "b"}
        assert summary.epsilon == compose([event(8)] * 2, Adjacency.ZERO_OUT, 1e-6)


def test_sampled_releases_are_added_up_once_for_a_whole_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    from tacit.privacy import ledger as module

    calls: list[int] = []

    def counted(events, adjacency, delta):
        calls.append(len(events))
        return compose(events, adjacency, delta)

    monkeypatch.setattr(module, "compose", counted)
    sampled = GaussianEvent(sigma=10.0, sensitivity=Sensitivity.of_clip(1.0), sampling_rate=0.1)
    with Ledger(ceiling=CEILING) as ledger:
        run = ledger.run("a", config={}, planned=[sampled] * 5)
        for _ in range(5):
            release(run, sampled)
        assert calls == [5]
        with pytest.raises(BudgetExceeded):
            release(run, replace(sampled, sampling_rate=1.0, sigma=1.0), never)


def test_threads_of_one_process_do_not_overspend() -> None:
    refused: list[str] = []

    def spend(name: str) -> None:
        run = ledger.run(name, config={})
        for _ in range(5):
            try:
                release(run, event(8))
            except BudgetExceeded:
                refused.append(name)

    with Ledger(ceiling=CEILING) as ledger:
        threads = [threading.Thread(target=spend, args=(f"t{i}",)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(ledger.releases()) == 8
        assert len(refused) == 12
        assert ledger.spent() <= 1.0 + 1e-9


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM releases",
        "DELETE FROM runs",
        "DELETE FROM ceiling",
        "UPDATE ceiling SET budget = '{}'",
        "INSERT INTO ceiling VALUES ('{}')",
        "UPDATE releases SET event = '{}' WHERE state = 'debited'",
        "UPDATE releases SET noise = 'exact' WHERE state = 'debited'",
        "UPDATE releases SET grid = 1 WHERE state = 'debited'",
        "UPDATE releases SET coordinates = 1 WHERE state = 'debited'",
        "UPDATE releases SET name = 'x' WHERE state = 'debited'",
        "UPDATE releases SET idx = 7 WHERE state = 'debited'",
        "UPDATE releases SET seq = 7 WHERE state = 'debited'",
        "UPDATE releases SET run = 'b' WHERE state = 'debited'",
        "UPDATE releases SET attempts = 0 WHERE state = 'debited'",
        "UPDATE releases SET state = 'published' WHERE state = 'debited'",
        "UPDATE releases SET state = 'debited', value = NULL WHERE state = 'published'",
        "UPDATE releases SET value = x'00' WHERE state = 'published'",
        "UPDATE releases SET attempts = attempts + 1 WHERE state = 'published'",
        "UPDATE runs SET config = '{}'",
        "UPDATE runs SET planned = '[]', state = 'finished'",
        "UPDATE runs SET name = 'c'",
        "INSERT OR REPLACE INTO runs VALUES ('a', '{}', '[]', 'open')",
        "INSERT INTO runs VALUES ('c', '{}', '[]', 'finished')",
        "REPLACE INTO releases SELECT seq, run, idx, name, event, noise, grid, coordinates, 'debited',1,NULL"
        " FROM releases WHERE idx = 0",
        "INSERT INTO releases SELECT NULL, run, 5, name, event, noise, grid, coordinates, 'debited',1,NULL"
        " FROM releases WHERE idx = 0",
        "INSERT INTO releases SELECT NULL, run, 2, name, event, noise, grid, coordinates, state, 1, value"
        " FROM releases WHERE idx = 0",
        "INSERT INTO releases SELECT NULL, 'none', 0, name, event, noise, grid, coordinates, 'debited',1,NULL"
        " FROM releases WHERE idx = 0",
    ],
)
def test_the_file_only_grows(path: Path, statement: str) -> None:
    with Ledger(path) as ledger:
        run = ledger.run("a", config={"rank": 1}, planned=[event(2)])
        release(run, event(2))
        with pytest.raises(AssertionError):
            release(run, event(2), never)
        ledger.run("b", config={})
    database = sqlite3.connect(path)
    before = list(database.iterdump())
    with pytest.raises(sqlite3.IntegrityError):
        database.execute(statement)
    database.rollback()
    assert list(database.iterdump()) == before
    database.close()


def test_a_finished_run_takes_no_row_even_by_hand(path: Path) -> None:
    with Ledger(path) as ledger:
        run = ledger.run("a", config={})
        release(run, event(2))
        run.finish()
    with sqlite3.connect(path) as database, pytest.raises(sqlite3.IntegrityError, match="open run"):
        database.execute(
            "INSERT INTO releases SELECT NULL, run, 1, name, event, noise, grid, coordinates, 'debited', 1,"
            " NULL FROM releases"
        )


def test_files_are_for_the_owner_only(path: Path) -> None:
    with Ledger(path) as ledger:
        release(ledger.run("a", config={}), event())
        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    assert set(modes.values()) == {0o600}
    assert any(name.startswith("ledger.db.lock-") for name in modes)
    assert [file.name for file in path.parent.iterdir()] == ["ledger.db"]


def test_a_commit_is_synced_before_it_returns(path: Path) -> None:
    with Ledger(path) as ledger:
        assert ledger._file.rows("PRAGMA journal_mode") == [("wal",)]
        assert ledger._file.rows("PRAGMA synchronous") == [(2,)]


@pytest.mark.parametrize("content", [b"", b"not a database, but long enough to look at" * 40])
def test_a_file_that_is_not_a_ledger_is_refused_and_left_alone(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(LedgerMismatch, match=r"ledger\.db"):
        Ledger(path, ceiling=CEILING)
    assert path.read_bytes() == content


def test_another_programs_database_is_refused(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE ceiling (budget TEXT)")
    with pytest.raises(LedgerMismatch, match="not a tacit ledger"):
        Ledger(path)


def test_an_unknown_version_is_refused(path: Path) -> None:
    Ledger(path).close()
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA user_version = 99")
    with pytest.raises(LedgerMismatch, match="Found 99"):
        Ledger(path)


@pytest.mark.parametrize("first", [1000, 4096])
def test_a_damaged_ledger_says_so(path: Path, first: int) -> None:
    with Ledger(path) as ledger:
        release(ledger.run("a", config={}), event())
    content = bytearray(path.read_bytes())
    content[first:] = b"\xff" * (len(content) - first)
    path.write_bytes(content)
    with pytest.raises(LedgerMismatch, match="damaged"), Ledger(path) as ledger:
        ledger.releases()


def test_one_run_has_one_writer(path: Path) -> None:
    with Ledger(path) as first, Ledger(path) as second:
        first.run("a", config={})
        with pytest.raises(RunInUse, match=f"pid {os.getpid()}"):
            second.run("a", config={})
        second.run("b", config={})
        first.close()
        assert second.run("a", config={}).resumed


def test_a_run_left_by_an_exception_can_be_reopened_in_the_same_ledger(path: Path) -> None:
    with Ledger(path) as ledger:
        held = ledger.run("a", config={"rank": 1})
        with pytest.raises(LedgerMismatch):
            ledger.run("a", config={"rank": 2})
        assert ledger.run("a", config={"rank": 1}).resumed
        with Ledger(path) as other, pytest.raises(RunInUse):
            other.run("a", config={"rank": 1})
        assert held.config == {"rank": 1}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"noise": "gaussian"}, "noise must be one of"),
        ({"noise": "none"}, "exactly where sigma is 0"),
        ({"event": event(sigma=0.0)}, "exactly where sigma is 0"),
        ({"grid": -1.0}, "grid must be"),
        ({"grid": math.nan}, "grid must be"),
        ({"coordinates": 0}, "coordinates must be"),
        ({"state": "drawn"}, "state must be"),
    ],
)
def test_a_release_that_contradicts_itself_is_refused(changes: dict[str, object], message: str) -> None:
    row = Release(
        run="a",
        index=0,
        name="gradient",
        event=event(),
        noise="float",
        grid=0.0,
        coordinates=3,
        state="debited",
        attempts=1,
    )
    with pytest.raises(ValueError, match=message):
        replace(row, **changes)


def test_a_release_reads_what_it_wrote_and_nothing_else() -> None:
    with Ledger() as ledger:
        release(ledger.run("a", config={}), event(slack=1e-15))
        row = ledger.releases()[0]
    data = json.loads(json.dumps(row.to_dict()))
    assert Release.from_dict(data) == row
    for broken in (
        {**data, "value": 1},
        {key: value for key, value in data.items() if key != "grid"},
        {**data, "event": {**data["event"], "seed": 1}},
        {**data, "event": {key: value for key, value in data["event"].items() if key != "sensitivity"}},
    ):
        with pytest.raises(ValueError, match=r"must have exactly|cannot be read"):
            Release.from_dict(broken)
