"""A node stops working on a sum when the time for an ask is over, however many users it has. (The clock is ours.)"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tacitly.arrays import Array, Offsets, Rows
from tacitly.data.cohort import Cohort
from tacitly.federation import failing_users, wire
from tacitly.federation.flower import node as nodes
from tacitly.federation.flower.kept_heads import read_heads
from tacitly.federation.flower.messages import Answer, Ask
from tacitly.federation.flower.node import ASK_SECONDS, Node
from tacitly.federation.projected import Projected
from tacitly.heads.ridge import RidgeHeads
from tacitly.methods.shared.batch import BatchQuery, per_user
from tacitly.methods.shared.whitening import FeatureMoment
from tacitly.privacy.guarantee import Budget
from tacitly.privacy.ledger import Ledger

D, ROWS, GRID = 3, 2, 2.0**-44


class Clock:
    """Time that passes only while a user is asked: ``pace`` seconds for each, once it ``runs``."""

    def __init__(self) -> None:
        self.now, self.pace, self.asked, self.runs = 0.0, 0.0, 0, False

    def monotonic(self) -> float:
        return self.now

    def perf_counter(self) -> float:
        return 0.0

    def tick(self, users: int = 1) -> None:
        if self.runs:
            self.asked += users
            self.now += users * self.pace


class Slow(FeatureMoment):
    """A query by its definition, one user at a time."""

    clock = Clock()

    def contribution(self, X: Rows, y: Rows) -> Array:
        self.clock.tick()
        return super().contribution(X, y)


class SlowBatch(BatchQuery):
    """A query whose batch is its definition."""

    clock = Slow.clock
    coordinates = D  # type: ignore[assignment]

    def contributions(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        self.clock.tick(len(offsets) - 1)
        return per_user(np.asarray(X, dtype=np.float64), offsets)


class Failing(SlowBatch):
    """One that fails for all users (but not for synthetic rows), so that batches are divided down to single users."""

    def contributions(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        found = super().contributions(X, y, offsets)
        if len(X) == ROWS * (len(offsets) - 1):
            raise np.linalg.LinAlgError("singular matrix")
        return found


class Compiled(FeatureMoment):
    """A query that nodes with many users sum block by block."""

    clock = Slow.clock

    def block_sums(self, X: Rows, y: Rows, offsets: Offsets, bound: float, size: int) -> Array:
        self.clock.tick(len(offsets) - 1)
        return super().block_sums(X, y, offsets, bound, size)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for kind in (Slow, SlowBatch, Compiled):
        monkeypatch.setattr(kind, "clock", clock)
    fake = SimpleNamespace(monotonic=clock.monotonic, perf_counter=clock.perf_counter)
    monkeypatch.setattr(failing_users, "time", fake)
    monkeypatch.setattr(nodes, "time", fake)
    return clock


def cohort(n: int) -> Cohort:
    rows = np.random.default_rng(0).normal(size=(ROWS * n, D))
    return Cohort.from_offsets(rows, np.arange(float(ROWS * n)), np.arange(0, ROWS * n + 1, ROWS))


def ask(node: Node, query: Any, monkeypatch: pytest.MonkeyPatch, **words: Any) -> Answer:
    """Ask a node; the queries of this page do not travel, so what is decoded is given."""
    monkeypatch.setattr(wire, "decode", lambda thing: query)
    words = {"kind": "sum", "run": "r", "step": "1.0", "token": "t", "thing": b"", "grid": GRID, **words}
    return Answer.from_bytes(node.answer(Ask(**words).to_bytes()))


@pytest.mark.parametrize(
    ("users", "query", "most"),
    [
        (50, Slow(D), 20),
        (50, SlowBatch(), 20),
        (50, Failing(), 20),
        (5000, Compiled(D), 3072),
        (5000, SlowBatch(), 1600),
        (50, Projected(Slow(D), np.eye(D)), 20),
    ],
    ids=["one by one", "few at once", "failing", "compiled", "few of many", "projected"],
)
def test_a_sum_ends_with_the_time_for_it(
    users: int, query: Any, most: int, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``most`` users are asked: synthetic ones first, those that fit into the time, and what is summed in one piece."""
    node = Node("north", cohort(users), tmp_path, threads=1)
    assert ask(node, query, monkeypatch).code == "ok"  # there is time for everybody
    clock.runs, clock.pace = True, ASK_SECONDS / 9.5 if users < 100 else ASK_SECONDS / 1500
    late = ask(node, query, monkeypatch)
    assert late.code == "failed"
    assert late.total is None
    assert 0 < clock.asked <= most < users
    clock.pace = 0.0
    assert ask(node, query, monkeypatch).code == "ok"


@pytest.mark.parametrize(
    "query", [SlowBatch(), Compiled(D), Projected(Compiled(D), np.eye(D))], ids=["a batch", "compiled", "projected"]
)
def test_a_node_of_many_users_refuses_what_takes_a_single_one_too_long(
    query: Any, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Evidences of 1,000 classes took 20 seconds for each of a hundred users: the clock was looked at in the end."""
    clock.perf_counter = clock.monotonic  # type: ignore[method-assign]
    monkeypatch.setattr(nodes, "time", SimpleNamespace(monotonic=clock.monotonic, perf_counter=clock.monotonic))
    node = Node("north", cohort(100), tmp_path, threads=1)
    clock.runs, clock.pace = True, ASK_SECONDS / 90
    assert ask(node, query, monkeypatch).code == "refused"
    assert clock.asked < 10
    clock.pace = ASK_SECONDS / 200
    assert ask(node, query, monkeypatch).code == "ok"


def test_noise_that_was_paid_for_is_drawn_when_there_is_time_again(
    clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The debit of a sum that was not finished stands, and nothing of it has left: asked again, it costs nothing."""
    ceiling = Budget(epsilon=1.0, delta=1e-6)
    node = Node("north", cohort(50), tmp_path, trust="node", ceiling=ceiling, threads=1)
    noisy = {"sigma": 10.0, "noise": "exact"}
    clock.runs, clock.pace = True, ASK_SECONDS / 9.5
    assert ask(node, Slow(D), monkeypatch, **noisy).code == "failed"
    with Ledger(tmp_path / "node.ledger") as ledger:
        spent = ledger.spent()
    assert spent > 0.0
    clock.pace = 0.0
    first, again = (ask(node, Slow(D), monkeypatch, **noisy) for _ in range(2))
    assert first.code == "ok"
    assert first.total is not None
    assert again.total is not None
    np.testing.assert_array_equal(first.total, again.total)
    with Ledger(tmp_path / "node.ledger") as ledger:
        assert ledger.spent() == spent


@pytest.mark.parametrize("users", [50, 25_000])
def test_heads_that_were_not_reached_are_zero(
    users: int, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node("north", cohort(users), tmp_path, threads=1)
    work = RidgeHeads(np.eye(D)[:, :1], False)
    assert ask(node, work, monkeypatch, kind="heads").code == "ok"
    assert (read_heads(tmp_path / "heads.npz")["heads"] != 0.0).any(axis=1).all()
    own, call = RidgeHeads.own, RidgeHeads.__call__

    def slow_own(self: RidgeHeads, X: Rows, y: Rows) -> Array:
        clock.tick()
        return own(self, X, y)

    def slow_call(self: RidgeHeads, X: Rows, y: Rows, offsets: Offsets) -> Array:
        clock.tick(len(offsets) - 1)
        return call(self, X, y, offsets)

    monkeypatch.setattr(RidgeHeads, "own", slow_own)
    monkeypatch.setattr(RidgeHeads, "__call__", slow_call)
    clock.runs, clock.pace = True, ASK_SECONDS / users * 2
    ask(node, work, monkeypatch, kind="heads")
    heads = read_heads(tmp_path / "heads.npz")["heads"]
    assert len(heads) == users
    assert (heads[-1] == 0.0).all()
