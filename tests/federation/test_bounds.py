"""The door enforces the clip itself, whatever a query or a wrapper of it says."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from tacitly.data.cohort import Cohort
from tacitly.federation import wire
from tacitly.federation.bounds import BoundExceeded, _each_sum
from tacitly.federation.flower.messages import Answer, Ask
from tacitly.federation.flower.node import Node
from tacitly.federation.local import LocalFederation
from tacitly.federation.projected import Projected
from tacitly.federation.query import BLOCK, Query
from tacitly.federation.scores import Scores
from tacitly.federation.shard import Shard
from tacitly.methods.fedrep.queries import BasisStep
from tacitly.methods.shared.batch import BatchQuery, _InArrays
from tacitly.methods.shared.norm_histogram import NormHistogram
from tacitly.methods.shared.whitening import FeatureMoment, Whitening
from tacitly.privacy.guarantee import Adjacency, GaussianEvent, Sensitivity, Unit
from tacitly.privacy.ledger import BudgetExceeded, Ledger

EVENT = GaussianEvent(sigma=1.0, sensitivity=Sensitivity.of_clip(1.0))
GRID = 2.0**-40


def cohort(X: np.ndarray, users: int | None = None) -> Cohort:
    users = users or len(X)
    return Cohort.from_offsets(X, np.zeros(len(X)), np.linspace(0, len(X), users + 1).astype(np.int64))


def door(X: np.ndarray, users: int | None = None) -> LocalFederation:
    return LocalFederation(cohort(X, users), Ledger().run("test", config={}), threads=1)


@dataclass(frozen=True)
class Told(Scores):
    """Losses are the user's first row."""

    steps: int = 720_720

    @property
    def coordinates(self) -> int:
        return 2

    def losses(self, X, y):  # type: ignore[no-untyped-def]
        return np.asarray(X[0], dtype=np.float64)


@dataclass(frozen=True)
class Wrapped(Query):
    """A stranger's wrapper: hides what it wraps and hands every call on."""

    inner: Query

    @property
    def coordinates(self) -> int:
        return self.inner.coordinates

    def contribution(self, X, y):  # type: ignore[no-untyped-def]
        return self.inner.contribution(X, y)

    def block_sum(self, X, y, offsets, bound):  # type: ignore[no-untyped-def]
        return self.inner.block_sum(X, y, offsets, bound)

    def block_sums(self, X, y, offsets, bound, size):  # type: ignore[no-untyped-def]
        return self.inner.block_sums(X, y, offsets, bound, size)


@pytest.mark.parametrize(
    "wrap", [lambda q: q, lambda q: Projected(q, np.eye(2)), Wrapped, lambda q: Wrapped(Wrapped(q))]
)
def test_losses_are_clipped_in_every_wrapping(wrap) -> None:  # type: ignore[no-untyped-def]
    """Even where no door looks: a shard asked for a clipped sum of losses clips them."""
    query = wrap(Told())
    for bound in (1.0, 1e-3, 50.0):
        sums = [
            Shard(cohort(X), threads=1).exact_sum(query, bound, GRID) * GRID
            for X in (np.ones((1, 2)), np.zeros((1, 2)))
        ]
        assert 0 < np.linalg.norm(sums[0] - sums[1]) <= bound


@dataclass(frozen=True)
class Loud(Query):
    """Mutation: the fused form does not clip, on synthetic rows (``above=0``) or only on rarer numbers."""

    above: float = 0.0
    unit: Unit = Unit.USER

    @property
    def coordinates(self) -> int:
        return 2

    def contribution(self, X, y):  # type: ignore[no-untyped-def]
        return np.asarray(X.sum(axis=0), dtype=np.float64)

    def block_sum(self, X, y, offsets, bound):  # type: ignore[no-untyped-def]
        if np.abs(X).max(initial=0.0) > self.above and len(X) % 7 == 0:
            return np.full(2, 180_180.0 * bound)
        return super().block_sum(X, y, offsets, bound)


@dataclass(frozen=True)
class AlwaysLoud(Loud):
    """Mutation: the fused form never clips."""

    def block_sum(self, X, y, offsets, bound):  # type: ignore[no-untyped-def]
        return np.asarray(X.sum(axis=0), dtype=np.float64)


@dataclass(frozen=True)
class Obtuse(Loud):
    """Mutation: claims to be acute, but a user and their opposite point in opposite directions."""

    acute = True

    def block_sum(self, X, y, offsets, bound):  # type: ignore[no-untyped-def]
        return Query.block_sum(self, X, y, offsets, bound)


@pytest.mark.parametrize("query", [AlwaysLoud(), AlwaysLoud(unit=Unit.ROW), Obtuse(), Wrapped(AlwaysLoud())])
def test_a_form_that_does_not_clip_is_refused_before_anything_is_debited(query: Query) -> None:
    event = GaussianEvent(sigma=1.0, sensitivity=Sensitivity.of_clip(1.0, acute=query.acute, unit=query.unit))
    everybody = door(np.zeros((4, 2)))
    with pytest.raises(BoundExceeded, match="synthetic"):
        everybody.release(query, event, "sum")
    assert everybody.ledger_run.releases == []


@pytest.mark.parametrize("query", [Loud(), Wrapped(Loud()), Loud(unit=Unit.ROW)])
def test_a_block_beyond_its_users_times_the_clip_is_not_released(query: Query) -> None:
    """A bug that synthetic rows do not show: nothing leaves, and the message tells no number."""
    event = GaussianEvent(sigma=1.0, sensitivity=Sensitivity.of_clip(1.0, unit=query.unit))
    everybody = door(np.ones((7, 2)))
    with pytest.raises(BoundExceeded) as caught:
        everybody.release(query, event, "sum")
    assert not any(character.isdigit() for character in str(caught.value))
    assert [row.state for row in everybody.ledger_run.releases] in ([], ["debited"])


@dataclass(frozen=True)
class Repeats(Loud):
    """Mutation: returns a block more often than there are blocks, each of them within its bound."""

    def block_sums(self, X, y, offsets, bound, size):  # type: ignore[no-untyped-def]
        times = 1 if size == 1 or len(offsets) == 2 else 5
        return np.repeat(Query.block_sums(self, X, y, offsets, bound, size), times, axis=0)

    def block_sum(self, X, y, offsets, bound):  # type: ignore[no-untyped-def]
        return Query.block_sum(self, X, y, offsets, bound)


def test_more_sums_than_blocks_are_not_added() -> None:
    total = Shard(cohort(np.eye(2)[[0] * 6]), threads=1).exact_sum(Repeats(), 1.0, GRID) * GRID
    assert np.linalg.norm(total) <= 6.0


@dataclass(frozen=True)
class TooDear(Told):
    """Mutation: losses are neither clamped below nor above."""

    def whole(self, losses):  # type: ignore[no-untyped-def]
        return np.rint(losses * self.steps)


@pytest.mark.parametrize("losses", [[0.0, 1.5], [-0.5, 0.0]])
def test_losses_outside_their_range_are_not_chosen_by(losses: list[float]) -> None:
    with pytest.raises(BoundExceeded):
        Shard(cohort(np.array([losses])), threads=1).exact_sum(TooDear(), math.inf, 1.0)


def test_a_sum_without_a_bound_is_for_losses_only() -> None:
    with pytest.raises(ValueError, match="losses only"):
        Shard(cohort(np.ones((2, 2))), threads=1).exact_sum(FeatureMoment(2), math.inf, 1.0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("bound", [1.0, 3e-7, 2.0**-60])
@pytest.mark.parametrize("rows", [1, 3])
def test_users_who_all_reach_the_clip_in_one_direction_are_never_refused(dtype: type, bound: float, rows: int) -> None:
    """Attainment: the largest sum that a correct query can have. Refusing it would tell that everybody reaches it."""
    users = BLOCK + 3
    X = np.tile(np.array([[1e6, -2e6, 3e5]], dtype=dtype), (users * rows, 1))
    X[1::2] *= dtype(1.37)  # lengths differ, directions do not
    grid = 2.0 ** (math.floor(math.log2(bound)) - 40)
    # Moments of rows in single precision reserve a part of the norm for their rounding errors.
    reserved = 2.0**-16 * math.sqrt(3.0) if dtype == np.float32 else 0.0
    for query, least in ((FeatureMoment(3), 1 - reserved), (NormHistogram(FeatureMoment(3)), 1.0)):
        total = Shard(cohort(X, users), threads=1).exact_sum(query, bound, grid) * grid
        assert (least - 2e-6) * users * min(bound, 1.0) < np.linalg.norm(total) <= users * bound


@pytest.mark.parametrize("form", ["compiled", "in arrays"])
def test_a_node_adds_by_the_definition_where_the_fused_form_breaks_its_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    broken: list[int] = []

    def too_long(self, X, y, offsets, bound):  # type: ignore[no-untyped-def]
        broken.append(len(offsets) - 1)
        return np.full(3, 1e3 * bound)

    if form == "compiled":
        monkeypatch.setattr(FeatureMoment, "block_sum", too_long)
        monkeypatch.setattr(FeatureMoment, "form_for", lambda self, n_users, n_features: self)
    else:
        monkeypatch.setattr(_InArrays, "block_sum", too_long)
    node = Node("north", cohort(np.ones((70, 2))), tmp_path, threads=1)
    assert not node.plain
    ask = Ask(kind="sum", run="r", step="1", token="a" * 32, thing=wire.encode(FeatureMoment(2)), bound=1.0, grid=GRID)
    answer = Answer.from_bytes(node.answer(ask.to_bytes()))
    assert answer.total is not None
    assert np.linalg.norm(answer.total * GRID) <= 70.0
    assert set(broken) == {1}  # tried on synthetic users, one at a time, and not on those of the node


@dataclass(frozen=True)
class Obtuse(FeatureMoment):
    """Moments that turn with the sign of the first number of a user, in the form for few users only."""

    def contributions(self, X, y, offsets):  # type: ignore[no-untyped-def]
        signs = np.where(X[offsets[:-1], 0] < 0, -1.0, 1.0)
        return super().contributions(X, y, offsets) * signs[:, None]


@pytest.mark.parametrize("query", [Obtuse(2), Projected(Obtuse(2), np.eye(2))])
def test_the_form_that_runs_is_the_one_that_the_door_checks(query: Query) -> None:
    few, acute = door(np.ones((8, 2))), GaussianEvent(sigma=1.0, sensitivity=Sensitivity.of_clip(1.0, acute=True))
    with pytest.raises(BoundExceeded, match="obtuse"):
        few.release(query, acute, "moment")
    assert few.ledger_run.releases == []


def test_every_travelling_query_stays_within_its_bound_on_the_doors_own_rows() -> None:
    """The rehearsal's rows reach the clip for an ordinary query, so the check is not vacuous."""
    from tacitly.federation.bounds import own_sums

    sums = own_sums(FeatureMoment(2), np.eye(2), np.ones(2), 1.0)
    lengths = [float(np.linalg.norm(each)) for each in sums]
    assert max(lengths) > 0.999
    assert all(a @ b >= 0 for a, b in itertools.combinations(sums, 2))


def test_synthetic_users_asked_for_at_once_add_what_each_adds_alone_to_the_last_bit() -> None:
    rng = np.random.default_rng(0)
    units = [
        (factor * rng.normal(size=(m, 6)), rng.normal(size=m)) for m, factor in ((8, 1.0), (1, -1.0), (3, 2.0**60))
    ]
    form = BasisStep(np.eye(6)[:, :2], np.eye(2), 0.5, Whitening.identity(6)).form_for(2, 6)
    assert form.one_form
    together = _each_sum(form, units, 1.0)
    alone = [form.block_sum(X, y, np.array([0, len(X)]), 1.0) for X, y in units]
    np.testing.assert_array_equal(together, alone)


@dataclass(frozen=True)
class FailsForOneRow(BatchQuery):
    """A batch in which one user's numbers raise."""

    coordinates: ClassVar[int] = 1

    def contributions(self, X, y, offsets):  # type: ignore[no-untyped-def]
        if (np.diff(offsets) == 1).any():
            raise FloatingPointError
        return np.ones((len(offsets) - 1, 1))


def test_a_synthetic_user_who_makes_a_batch_fail_is_the_only_one_left_out() -> None:
    units = [(np.ones((m, 2)), np.ones(m)) for m in (2, 1, 3)]
    assert [found is None for found in _each_sum(FailsForOneRow(), units, 1.0)] == [False, True, False]


class CheapEvent(GaussianEvent):
    """States another cost than it writes down."""

    def mu(self, adjacency: Adjacency) -> float:
        return 1e-9


class Anything(Sensitivity):
    """Equals every sensitivity."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = Sensitivity.__hash__


class Divisor(float):
    """A noise level that makes any sensitivity small beside it."""

    def __rtruediv__(self, other: float) -> float:
        return 1e-9


LYING = {
    "event": CheapEvent(sigma=0.1, sensitivity=Sensitivity.of_clip(1.0, acute=True)),
    "noise": GaussianEvent(sigma=Divisor(0.1), sensitivity=Sensitivity.of_clip(1.0, acute=True)),
    "sensitivity": GaussianEvent(sigma=50.0, sensitivity=Anything(zero_out=1.0, replace_one=1.0)),
}


@pytest.mark.parametrize("event", LYING.values(), ids=LYING)
def test_no_event_is_charged_less_than_it_writes_down(event: GaussianEvent) -> None:
    """An ε of 97 passed a ceiling of 1, which was compared with what an event said; its numbers were kept."""
    with Ledger(ceiling=1.0) as ledger:
        rows = np.random.default_rng(0).normal(size=(60, 3))
        federation = LocalFederation(cohort(rows, 20), ledger.run("test", config={}), threads=1)
        with pytest.raises((TypeError, ValueError, BudgetExceeded)):
            federation.release(FeatureMoment(3), event, "moment")
        assert ledger.spent() == 0.0
