"""The ledger: debit, draw, publish, return; the ceiling holds and no release is missing."""

from __future__ import annotations

import json
import math
import os
import sqlite3
import stat
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tacitly
from tacitly.privacy.accounting import compose, mu_of
from tacitly.privacy.guarantee import Adjacency, Budget, GaussianEvent, Sensitivity, Unit
from tacitly.privacy.ledger import BudgetExceeded, Ledger, LedgerMismatch, Release, Run, RunInUse

CEILING = Budget(epsilon=1.0, delta=1e-6)


def event(releases: int = 1, *, clip: float = 1.0, **fields: object) -> GaussianEvent:
    """One of ``releases`` equal parts of the ceiling."""
    sigma = clip * math.sqrt(releases) / mu_of(CEILING.epsilon, CEILING.delta)
    return replace(GaussianEvent(sigma=sigma, sensitivity=Sensitivity.of_clip(clip)), **fields)


def draw_three() -> np.ndarray:
    return np.random.default_rng().normal(size=3)


def bare_cost(what: GaussianEvent, noise: str) -> float:
    row = Release(
        run="a", index=0, name="x", event=what, noise=noise, grid=0.0, coordinates=3, state="debited", attempts=1
    )
    return compose([row.cost], Adjacency.ZERO_OUT, CEILING.delta)


def values(ledger: Ledger) -> list[bytes]:
    return [ledger._file.blob(*stored) for stored in ledger.book.values.values()]


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
            seen.append(other.execute("SELECT kind FROM entries ORDER BY seq DESC").fetchone()[0])
        return np.zeros(3)

    with Ledger(path, ceiling=CEILING) as ledger:
        run = ledger.run("a", config={})
        release(run, event(2), look)
        assert seen == ["debit"]
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
    for ceiling in (None, CEILING):
        with Ledger(ceiling=ceiling) as ledger, pytest.raises(LedgerMismatch, match="nothing protects"):
            release(ledger.run("a", config={}), bare, never, noise=noise)
        assert bare_cost(bare, noise) == math.inf
    for unlimited in (None, Budget(epsilon=math.inf, delta=1e-6)):
        with Ledger(ceiling=unlimited) as ledger:
            release(ledger.run("a", config={}, certified=False), bare, noise=noise)
            assert ledger.spent(delta=1e-6) == math.inf
            assert ledger.runs()[0].epsilon == (None if unlimited is None else math.inf)


def test_an_uncertified_run_costs_everything_whatever_its_noise() -> None:
    with Ledger(ceiling=Budget(epsilon=math.inf, delta=1e-6)) as ledger:
        run = ledger.run("paper", config={}, certified=False)
        assert (ledger.spent(), ledger.runs()[0].epsilon) == (0.0, 0.0)
        release(run, event())
        assert (ledger.spent(), ledger.runs()[0].epsilon) == (math.inf, math.inf)


def test_uncertified_runs_do_not_come_under_a_ceiling() -> None:
    with Ledger(ceiling=CEILING) as ledger:
        with pytest.raises(LedgerMismatch, match="without a ceiling"):
            ledger.run("paper", config={}, planned=[event(100)], certified=False)
        with pytest.raises(LedgerMismatch, match="certified=False"):
            ledger.run("bare", config={}, planned=[event(sigma=0.0)])
        assert ledger.runs() == []


@pytest.mark.parametrize("first", [True, False])
def test_certified_and_uncertified_runs_do_not_share_a_ledger(path: Path, first: bool) -> None:
    with Ledger(path) as ledger:
        run = ledger.run("a", config={}, certified=first)
        assert run.certified is first
        with pytest.raises(LedgerMismatch, match="Use a separate ledger"):
            ledger.run("b", config={}, certified=not first)
        ledger.run("c", config={}, certified=first)
        run.abandon()
        with pytest.raises(LedgerMismatch, match=f"begun with certified={first}"):
            ledger.run("a", config={}, certified=not first)
        assert [run.certified for run in ledger.runs()] == [first, first]


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
        begun = ledger.run("a", config={})
        release(begun, event(3))
        begun.abandon()
        with pytest.raises(LedgerMismatch, match="another program began the run"):
            release(ledger.run("a", config={}), what, never, name=name, noise=noise)


def test_other_coordinates_are_another_release() -> None:
    with Ledger() as ledger:
        begun = ledger.run("a", config={})
        release(begun, event(3))
        begun.abandon()
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
        slow = ledger.run("a", config={})
        kept: list[np.ndarray] = []

        def overtaken() -> np.ndarray:
            slow.abandon()
            quick = ledger.run("a", config={})
            kept.append(release(quick, event()))
            quick.abandon()
            return draw_three()

        with pytest.raises(LedgerMismatch, match="by another writer"):
            release(slow, event(), overtaken)
        assert np.array_equal(release(ledger.run("a", config={}), event(), never), kept[0])


def test_a_finished_run_is_closed_for_good(path: Path) -> None:
    with Ledger(path) as ledger:
        run = ledger.run("a", config={})
        release(run, event())
        run.finish()
        run.finish()
        with pytest.raises(LedgerMismatch, match="finished"):
            release(run, event(), never)
        with pytest.raises(LedgerMismatch, match="a name of its own: run="):
            ledger.run("a", config={})
        assert ledger.runs()[0].state == "finished"


def test_another_configuration_is_named_by_its_keys() -> None:
    with Ledger() as ledger:
        ledger.run("a", config={"rank": 4, "clip": 1.0, "init": {"seed": 1}, "old": None}).abandon()
        with pytest.raises(LedgerMismatch, match="differ: init, new, old, rank"):
            ledger.run("a", config={"rank": 5, "clip": 1.0, "init": {"seed": 2}, "new": None})


def test_configurations_are_compared_as_values_not_as_text() -> None:
    with Ledger() as ledger:
        ledger.run("a", config={"rank": 4, "epsilon": math.inf, "shape": (2, 3)}).abandon()
        same = {"shape": [2, 3], "epsilon": float("inf"), "rank": np.int64(4)}
        assert ledger.run("a", config=same).resumed


def test_another_plan_is_another_run() -> None:
    with Ledger() as ledger:
        ledger.run("a", config={}, planned=[event(2)]).abandon()
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
            with pytest.raises(LedgerMismatch, match="must release exactly the"):
                run.finish()


def test_a_program_that_stops_short_of_what_was_released_cannot_finish() -> None:
    with Ledger() as ledger:
        first = ledger.run("a", config={})
        release(first, event(2))
        release(first, event(2))
        first.abandon()
        second = ledger.run("a", config={})
        release(second, event(2), never)
        with pytest.raises(LedgerMismatch, match="this program made 1"):
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
    from tacitly.privacy import ledger as module

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
        "DELETE FROM entries",
        "DELETE FROM entries WHERE seq = (SELECT MAX(seq) FROM entries)",
        "DELETE FROM blobs",
        "UPDATE entries SET body = '{}'",
        "UPDATE entries SET kind = 'finish' WHERE seq = 3",
        "UPDATE entries SET hash = 'x'",
        "UPDATE entries SET seq = seq + 100",
        "UPDATE blobs SET value = x'00'",
        "REPLACE INTO entries SELECT * FROM entries WHERE seq = 2",
        "INSERT INTO entries SELECT seq + 100, kind, body, hash FROM entries",
        "INSERT OR REPLACE INTO blobs SELECT seq, x'00' FROM blobs",
        "INSERT INTO blobs VALUES (2, x'00')",
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


def test_files_are_for_the_owner_only(path: Path) -> None:
    with Ledger(path) as ledger:
        release(ledger.run("a", config={}), event())
        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    assert set(modes.values()) == {0o600}
    assert any(name.startswith("ledger.db.lock-") for name in modes)
    assert [file.name for file in path.parent.iterdir()] == ["ledger.db"]


def test_a_commit_is_synced_before_it_returns(path: Path) -> None:
    with Ledger(path) as ledger:
        assert ledger._file._db.execute("PRAGMA journal_mode").fetchone() == ("delete",)
        assert ledger._file._db.execute("PRAGMA synchronous").fetchone() == (3,)


@pytest.mark.parametrize("content", [b"", b"not a database, but long enough to look at" * 40])
def test_a_file_that_is_not_a_ledger_is_refused_and_left_alone(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(LedgerMismatch, match=r"ledger\.db"):
        Ledger(path, ceiling=CEILING)
    assert path.read_bytes() == content


def test_another_programs_database_is_refused(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE ceiling (budget TEXT)")
    with pytest.raises(LedgerMismatch, match="not a tacitly ledger"):
        Ledger(path)


@pytest.mark.parametrize("version", [2, 99])
def test_another_version_is_refused(path: Path, version: int) -> None:
    Ledger(path).close()
    with sqlite3.connect(path) as database:
        database.execute(f"PRAGMA user_version = {version}")
    with pytest.raises(LedgerMismatch, match=f"must be 3. Found {version}: use the version of tacitly that wrote it"):
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


@pytest.mark.parametrize("in_memory", [True, False])
def test_a_run_that_is_open_here_cannot_be_opened_again(path: Path, in_memory: bool) -> None:
    with Ledger(None if in_memory else path) as ledger:
        run = ledger.run("a", config={"rank": 1})
        value = release(run, event(2))
        for config in ({"rank": 1}, {"rank": 2}):
            with pytest.raises(RunInUse, match="run 'a' is already open in this process"):
                ledger.run("a", config=config)
        release(run, event(2))  # the owner continues
        run.abandon()
        with pytest.raises(LedgerMismatch, match="another configuration"):
            ledger.run("a", config={"rank": 2})
        again = ledger.run("a", config={"rank": 1})
        assert again.resumed
        assert np.array_equal(release(again, event(2), never), value)


def test_an_abandoned_run_does_nothing_more_and_does_not_free_its_successor(path: Path) -> None:
    with Ledger(path) as ledger:
        old = ledger.run("a", config={})
        old.abandon()
        new = ledger.run("a", config={})
        old.abandon()
        with pytest.raises(RunInUse):
            ledger.run("a", config={})
        with Ledger(path) as other, pytest.raises(RunInUse, match="another process"):
            other.run("a", config={})
        for use in (lambda: release(old, event(), never), old.finish):
            with pytest.raises(LedgerMismatch, match="abandoned here"):
                use()
        new.finish()
        new.abandon()
        assert ledger.runs()[0].state == "finished"


def test_closing_a_ledger_forgets_its_open_runs(path: Path) -> None:
    with Ledger(path) as ledger:
        run = ledger.run("a", config={})
    run.abandon()
    assert ledger._file._locks == {}
    with Ledger(path) as ledger:
        assert ledger.run("a", config={}).resumed


def test_of_threads_that_open_one_run_one_has_it() -> None:
    got: list[str] = []

    def take() -> None:
        try:
            ledger.run("a", config={})
            got.append("mine")
        except RunInUse:
            got.append("taken")

    with Ledger() as ledger:
        threads = [threading.Thread(target=take) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(got) == ["mine"] + ["taken"] * 7


def test_a_run_says_what_its_certificates_state_even_after_it_is_finished(path: Path) -> None:
    with Ledger(path) as ledger:
        run = ledger.run("a", config={})
        first = ledger.certify("a", lambda: {"n_users": 3})
        run.finish()
        second = ledger.certify("a", lambda: {"n_users": 3, "audit": "ab"})
        statements = ledger.runs()[0].statements
        assert statements == {first[0]: {"n_users": 3}, second[0]: {"n_users": 3, "audit": "ab"}}
        assert (ledger.hash_at(first[0]), ledger.head) == (first[1], second)
        assert ledger.hash_at(second[0] + 1) is None


def test_a_ceiling_may_be_a_number_and_only_becomes_lower(path: Path) -> None:
    with Ledger(path, ceiling=2) as ledger:
        assert ledger.ceiling == Budget(epsilon=2.0, delta=1e-6)
        ledger.limit(1.5)
        with pytest.raises(LedgerMismatch, match="only become lower"):
            ledger.limit(Budget(epsilon=1.0, delta=1e-5))
    with Ledger(path) as ledger:
        assert ledger.ceiling == Budget(epsilon=1.5, delta=1e-6)
    with pytest.raises(TypeError, match=r"tacitly\.Budget or a number"):
        Ledger(ceiling="1.0")  # type: ignore[arg-type]


def test_a_ceiling_that_renews_applies_to_each_period(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tacitly.privacy import book, ledger_reading
    from tacitly.privacy import ledger as ledger_module

    def at(time: str) -> None:
        for module in (ledger_module, ledger_reading):
            monkeypatch.setattr(module, "now", lambda after="": max(after, time))

    at("2026-12-31T23:00:00Z")
    with Ledger(path, ceiling=CEILING, renews="yearly") as ledger:
        release(ledger.run("a", config={}), event())
        with pytest.raises(BudgetExceeded, match="in 2026"):
            release(ledger.run("b", config={}), event(), never)
        at("2027-01-01T00:00:00Z")
        release(ledger.run("c", config={}), event())
        at("2026-12-31T23:30:00Z")  # a clock that is turned back opens no earlier period
        with pytest.raises(BudgetExceeded, match="in 2027"):
            release(ledger.run("d", config={}), event(4), never)
        assert ledger.spent(this_period=True) == pytest.approx(1.0)
        assert ledger.spent() == compose([event()] * 2, Adjacency.ZERO_OUT, 1e-6)
    with pytest.raises(ValueError, match="renews must be one of"):
        Ledger(renews="daily")
    with pytest.raises(LedgerMismatch, match="renews: yearly"):
        Ledger(path, renews="monthly")
    assert book.period("monthly", "2027-03-05T00:00:00Z") == ("2027-03", "2027-03-01")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"noise": "gaussian"}, "noise must be one of"),
        ({"noise": "none"}, "if and only if sigma"),
        ({"event": event(sigma=0.0)}, "if and only if sigma"),
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


@pytest.mark.parametrize("in_memory", [True, False])
def test_a_second_fit_does_not_replay_the_first_on_other_data(path: Path, in_memory: bool) -> None:
    first, second = (tacitly.datasets.make_shared_subspace(100, 4, 1, 6, random_state=seed) for seed in (0, 1))
    with Ledger(None if in_memory else path) as ledger:
        estimator = tacitly.PrivateFedRep(rank=1, epsilon=1.0, ledger=ledger)
        estimator.fit(first.X, first.y, first.users)
        with pytest.raises(RunInUse, match="already open in this process"):
            tacitly.PrivateFedRep(rank=1, epsilon=1.0, ledger=ledger).fit(second.X, second.y, second.users)
        estimator.close()
        assert ledger.runs()[0].state == "finished"


def test_a_fit_that_fails_can_be_repeated_and_goes_on() -> None:
    data = tacitly.datasets.make_shared_subspace(100, 4, 1, 6, random_state=0)
    released: list[str] = []

    def stop(name: str) -> None:
        released.append(name)
        if len(released) == 3:
            raise KeyboardInterrupt

    with Ledger() as ledger:
        estimator = tacitly.PrivateFedRep(rank=1, epsilon=1.0, ledger=ledger)
        with pytest.raises(KeyboardInterrupt):
            estimator.fit(data.X, data.y, data.users, on_release=stop)
        before = values(ledger)
        estimator.fit(data.X, data.y, data.users)
        assert values(ledger)[:3] == before
        assert len(ledger.releases()) == len(estimator.certificate_.releases) > 3


@pytest.mark.parametrize("options", [{"epsilon": math.inf}, {"epsilon": 1.0, "noise_seed": 1}, {"mode": "paper"}])
def test_an_uncertified_fit_does_not_enter_a_certified_ledger(options: dict[str, Any]) -> None:
    data = tacitly.datasets.make_shared_subspace(100, 4, 1, 6, random_state=0)
    with Ledger() as ledger:
        ledger.run("certified", config={})
        estimator = tacitly.PrivateFedRep(**{"rank": 1, "epsilon": 1.0, "ledger": ledger, **options})
        with pytest.raises(LedgerMismatch, match="separate ledger"), pytest.warns(tacitly.UncertifiedWarning):
            estimator.fit(data.X, data.y, data.users)
    with Ledger() as ledger:
        with pytest.warns(tacitly.UncertifiedWarning):
            estimator.set_params(ledger=ledger).fit(data.X, data.y, data.users)
        assert [run.certified for run in ledger.runs()] == [False]


def test_a_planned_run_with_sampling_is_added_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clips chosen during the run, and slack, do not change the plan."""
    from tacitly.privacy import accounting, ledger, ledger_reading

    asked: list[int] = []

    def counted(*arguments: Any) -> float:
        asked.append(1)
        return accounting.compose(*arguments)

    for module in (ledger, ledger_reading):
        monkeypatch.setattr(module, "compose", counted)
    planned = [event(2, sampling_rate=0.5)] * 2
    with Ledger(ceiling=CEILING) as account:
        run = account.run("a", config={}, planned=planned)
        for clip in (0.7, 3.1):
            release(run, event(2, clip=clip, sampling_rate=0.5, slack=1e-15))
        with pytest.raises(BudgetExceeded):
            release(run, event(sampling_rate=1.0, clip=3.0))
    assert len(asked) == 3  # the plan, the excess, and the message
