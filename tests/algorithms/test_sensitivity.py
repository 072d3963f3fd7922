"""Every release moves by no more than it claims, reaches what it claims, and says so when it is broken."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
import pytest

from adversary import Rows, clipped, units, violations
from tacit.algorithms.altmin import NormalEquations
from tacit.algorithms.centaur import PowerVote
from tacit.algorithms.clip_quantile import NormHistogram
from tacit.algorithms.fedpower_gram import CentreVote, ShiftedGram
from tacit.algorithms.fedpower_power import DeviceStep, PowerStep
from tacit.algorithms.fedrep import BasisStep
from tacit.algorithms.paper_centaur import HeadGradient, PowerStatistic
from tacit.algorithms.paper_fedrep import BasisGradient, PairStatistic
from tacit.algorithms.subspace import DirectionVote
from tacit.algorithms.whitening import FeatureMoment, Whitening
from tacit.federation.base import Query
from tacit.linalg import orthonormal
from tacit.privacy.clipping import GUARD
from tacit.privacy.guarantee import Unit

D, K = 7, 2
RNG = np.random.default_rng(1)
BASIS = orthonormal(RNG.normal(size=(D, K)))[0]
WHITENING = Whitening(RNG.uniform(0.5, 2.0, D), orthonormal(RNG.normal(size=(D, 3)))[0], np.array([0.5, -0.4, 2.0]))
CENTRE = RNG.normal(size=D)
METRIC = np.array([[1.2, 0.3], [0.3, 0.8]])
TWO = np.eye(D)[:, :K]
QUERIES: dict[str, tuple[Query, float]] = {
    "feature moment": (FeatureMoment(D), 1.0),
    "feature moment, centred": (FeatureMoment(D, centered=True), 1.0),
    "direction votes": (DirectionVote(WHITENING), 1.0),
    "direction votes, centred": (DirectionVote(WHITENING, centered=True), 1.0),
    "basis step": (BasisStep(BASIS, METRIC, 0.5, WHITENING), 1.0),
    "basis step, centred": (BasisStep(BASIS, METRIC, 0.5, WHITENING, centered=True), 1.0),
    "normal equations": (NormalEquations(BASIS, WHITENING, 0.3, 0.7), 1.0),
    "power vote": (PowerVote(BASIS, WHITENING), 1.0),
    "power vote, centred": (PowerVote(BASIS, WHITENING, centered=True), 1.0),
    "power statistic": (PowerStatistic(BASIS, 1, 5), 3.0),
    "head gradient": (HeadGradient(BASIS, 1, 5), 3.0),
    "norm histogram": (NormHistogram(PairStatistic(D)), 1.0),
    "pair statistic": (PairStatistic(D), 10.0),
    "basis gradient": (BasisGradient(BASIS, 1, 5), 10.0),
    "centre vote, row": (CentreVote(CENTRE, 2.0), 1.0),
    "centre vote, user": (CentreVote(CENTRE, 2.0, Unit.USER), 1.0),
    "gram, row": (ShiftedGram(CENTRE, 0.5), 3.0),
    "gram, user": (ShiftedGram(CENTRE, 0.5, Unit.USER), 3.0),
    "power step, row": (PowerStep(BASIS, CENTRE, 0.5), 3.0),
    "power step, user": (PowerStep(BASIS, CENTRE, 0.5, Unit.USER), 3.0),
    "device step": (DeviceStep(BASIS, 3), 3.0),
    "device step, signs": (DeviceStep(BASIS, 2, "signs"), 3.0),
    "norms of gram, row": (NormHistogram(ShiftedGram(CENTRE, 0.5), 8), 1.0),
    "norms of power step, row": (NormHistogram(PowerStep(BASIS, CENTRE, 0.5), 8), 1.0),
    "norms of gram, user": (NormHistogram(ShiftedGram(CENTRE, 0.5, Unit.USER), 8), 1.0),
}


def row(direction: int, target: float) -> Rows:
    X = np.zeros((1, D))
    X[0, direction] = 1.0
    return X, np.array([target])


def turned_user(sign: float) -> Rows:
    """A user whose head is tiny next to the correction it asks for; ``sign`` turns the correction around."""
    outside = np.linalg.svd(BASIS, full_matrices=True)[0][:, K]
    rows = np.vstack([np.repeat(BASIS.T, 8, axis=0), np.tile(sign * outside, (16, 1))])
    rows[16:] += np.tile(BASIS[:, 0] * 1e-3, (16, 1)) * np.where(np.arange(16) % 2, 1, -1)[:, None]
    targets = np.concatenate([np.full(16, 1e-3), np.full(16, 1.0)])
    return rows, targets


@pytest.mark.parametrize("name", QUERIES)
def test_no_user_moves_a_release_by_more_than_its_sensitivity(name: str) -> None:
    query, bound = QUERIES[name]
    assert violations(query, bound, D) == []


@pytest.mark.parametrize("name", QUERIES)
def test_some_user_reaches_the_clip(name: str) -> None:
    query, bound = QUERIES[name]
    users = dict(units(query, D, np.random.default_rng(0)))
    reached = max(float(np.linalg.norm(clipped(query, user, bound))) for user in users.values())
    assert 0.999 * bound < reached <= bound * (1 - GUARD / 2)


@pytest.mark.parametrize("name", ["feature moment", "direction votes"])
def test_replacing_a_user_reaches_root_two_clips_for_acute_releases(name: str) -> None:
    query = QUERIES[name][0]
    if isinstance(query, DirectionVote):
        query = DirectionVote(Whitening.identity(D))
    apart = np.linalg.norm(clipped(query, row(0, 1.0), 1.0) - clipped(query, row(1, 1.0), 1.0))
    assert 0.999 * math.sqrt(2.0) < apart <= math.sqrt(2.0)


def test_replacing_a_user_reaches_two_clips_for_the_basis_step() -> None:
    query = BasisStep(BASIS, np.eye(K), 1e-3, Whitening.identity(D))
    apart = np.linalg.norm(clipped(query, turned_user(1.0), 1.0) - clipped(query, turned_user(-1.0), 1.0))
    assert 0.999 * 2.0 < apart <= 2.0


@pytest.mark.parametrize("unit", [Unit.ROW, Unit.USER])
def test_replacing_a_unit_reaches_root_two_clips_for_the_gram_matrix(unit: Unit) -> None:
    query = ShiftedGram(np.zeros(D), 1e-6, unit)
    huge = [(100.0 * row(j, 1.0)[0], np.ones(1)) for j in (0, 1)]
    apart = np.linalg.norm(clipped(query, huge[0], 3.0) - clipped(query, huge[1], 3.0))
    assert 0.999 * math.sqrt(2.0) * 3.0 < apart <= math.sqrt(2.0) * 3.0


@pytest.mark.parametrize("make", [lambda: PowerStep(TWO, np.zeros(D), 1e-9), lambda: DeviceStep(TWO)])
def test_replacing_a_unit_comes_near_two_clips_for_steps(make) -> None:  # type: ignore[no-untyped-def]
    """(x + small e₁)(…)ᵀe₁ points along ±x: almost opposite."""
    first, second = (100.0 * (row(3, 1.0)[0] + sign * 0.02 * row(0, 1.0)[0]) for sign in (1.0, -1.0))
    query = make()
    apart = np.linalg.norm(clipped(query, (first, np.ones(1)), 3.0) - clipped(query, (second, np.ones(1)), 3.0))
    assert 0.999 * 6.0 < apart <= 6.0


def opposed() -> tuple[Rows, Rows]:
    """Rows long in the first direction against rows short in it: y²(xxᵀ − I)Q of either sign."""
    along, across = np.zeros((4, D)), np.zeros((4, D))
    along[:, 0], across[:, 3] = 1.0, 1.0
    return (along, np.ones(4)), (across, np.ones(4))


def test_replacing_a_user_comes_near_two_clips_for_the_power_vote() -> None:
    query = PowerVote(TWO[:, :1], Whitening.identity(D))
    first, second = (clipped(query, user, 1.0) for user in opposed())
    assert 0.999 * 2.0 < np.linalg.norm(first - second) <= 2.0


def test_replacing_a_user_reaches_two_clips_for_the_pair_statistic() -> None:
    x = np.zeros((4, D))
    x[:, 0] = 100.0
    apart = np.linalg.norm(
        clipped(PairStatistic(D), (x, np.array([1.0, 1, 0, 0])), 10.0)
        - clipped(PairStatistic(D), (x, np.array([1.0, -1, 0, 0])), 10.0)
    )
    assert 0.999 * 20.0 < apart <= 20.0


@pytest.mark.parametrize("name", QUERIES)
def test_the_fused_form_equals_the_plain_one(name: str) -> None:
    query, bound = QUERIES[name]
    rng = np.random.default_rng(2)
    counts = np.array([1, 2, 3, 4, 9, 30, 5])
    offsets = np.concatenate([[0], np.cumsum(counts)])
    X, y = rng.normal(size=(offsets[-1], D)), rng.normal(size=offsets[-1])
    plain = Query.block_sum(query, X, y, offsets, bound)
    np.testing.assert_allclose(query.block_sum(X, y, offsets, bound), plain, rtol=1e-8, atol=1e-10 * bound)


@pytest.mark.parametrize("parts", ["gram", "right", "both"])
def test_the_cheap_norm_is_the_norm(parts: str) -> None:
    query = NormalEquations(BASIS, WHITENING, 0.3, 0.7, parts)
    rng = np.random.default_rng(4)
    for rows in (1, 3, 9, 40):
        X, y = rng.normal(size=(rows, D)), rng.normal(size=rows)
        expected = np.linalg.norm(query.contribution(X, y))
        assert query.norms(X, y, np.array([0, rows]))[0] == pytest.approx(float(expected))


@pytest.mark.parametrize("name", QUERIES)
def test_a_bad_user_changes_nothing_but_its_own_summand(name: str) -> None:
    query, bound = QUERIES[name]
    rng = np.random.default_rng(3)
    X, y = rng.normal(size=(36, D)), rng.normal(size=36)
    offsets = np.array([0, 12, 24, 36])
    alone = clipped(query, (X[:12], y[:12]), bound) + clipped(query, (X[24:], y[24:]), bound)
    X[12:24] = math.nan
    with np.errstate(all="ignore"):
        together = query.block_sum(X, y, offsets, bound)
    np.testing.assert_allclose(together, alone, rtol=1e-9, atol=1e-12)


@dataclass(frozen=True)
class Unclipped(FeatureMoment):
    """Mutation: forgets to normalise."""

    def block_sum(self, X, y, offsets, bound):  # type: ignore[no-untyped-def]
        return sum(
            (3.0 * self.contribution(X[a:b], y[a:b]) for a, b in itertools.pairwise(offsets)),
            np.zeros(self.coordinates),
        )


@dataclass(frozen=True)
class AcuteVote(PowerVote):
    """Mutation: claims that power steps never point against each other."""

    acute = True


@dataclass(frozen=True)
class Acute(BasisStep):
    """Mutation: claims that corrections never point against each other."""

    acute = True


@dataclass(frozen=True)
class DividesTwice(PairStatistic):
    """Mutation V1: the printed clip, M/‖M‖ · min(1, τ/‖M‖), blows small statistics up to norm one."""

    def block_sum(self, X, y, offsets, bound):  # type: ignore[no-untyped-def]
        vector = self.contribution(X, y)
        norm = np.linalg.norm(vector)
        return vector / norm * min(1.0, bound / norm) if norm > 0 else vector


@dataclass(frozen=True)
class LetsNaNThrough(FeatureMoment):
    """Mutation: a hole in one user's data makes a hole in everybody's sum."""

    def block_sum(self, X, y, offsets, bound):  # type: ignore[no-untyped-def]
        return super().block_sum(X, y, offsets, bound) + 0.0 * X.sum()


@dataclass(frozen=True)
class ClipsTheRowOnly(PowerStep):
    """Mutation: clips ‖a‖ and forgets the other factor of a(aᵀZ)."""

    def block_sum(self, X, y, offsets, bound):  # type: ignore[no-untyped-def]
        norms = np.linalg.norm(X, axis=1, keepdims=True)
        rows = X * np.minimum(1.0, bound / np.maximum(norms, 1e-300))
        return sum((self.contribution(r[None], y) for r in rows), np.zeros(self.coordinates))


@dataclass(frozen=True)
class CountsTheRowForMore(ShiftedGram):
    """Mutation P8: a public weight after the clip that the noise does not know of."""

    def block_sum(self, X, y, offsets, bound):  # type: ignore[no-untyped-def]
        return 2.0 * super().block_sum(X, y, offsets, bound)


@pytest.mark.parametrize(
    ("mutant", "bound"),
    [
        (ClipsTheRowOnly(BASIS, CENTRE, 0.5), 3.0),
        (CountsTheRowForMore(CENTRE, 0.5), 3.0),
        (Unclipped(D), 1.0),
        (AcuteVote(TWO, Whitening.identity(D)), 1.0),
        (Acute(BASIS, np.eye(K), 1e-3, Whitening.identity(D)), 1.0),
        (DividesTwice(D), 0.1),
        (LetsNaNThrough(D), 1.0),
    ],
)
def test_a_broken_query_is_caught(mutant: Query, bound: float) -> None:
    assert violations(mutant, bound, D, pairs=[(turned_user(1.0), turned_user(-1.0)), opposed()])
