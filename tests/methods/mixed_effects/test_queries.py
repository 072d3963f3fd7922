"""What users send for a population prior: computed alone, bounded, and what its docstring says it is."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import scipy.special
import scipy.stats

from tacitly.arrays import Array
from tacitly.data.cohort import Cohort
from tacitly.federation.shard import Shard
from tacitly.linalg import pack_symmetric
from tacitly.methods.mixed_effects import advantage, posterior, queries, variance_queries
from tacitly.methods.mixed_effects.advantage import Advantage, left_out
from tacitly.methods.mixed_effects.posterior import Coordinates, Prior, posteriors
from tacitly.methods.mixed_effects.queries import Information, InformationShares, MeasuredScore, Score
from tacitly.methods.mixed_effects.unit_queries import Angles, Magnitudes, Shares
from tacitly.methods.mixed_effects.variance_queries import (
    LogVariances,
    MeasuredSpread,
    Spread,
    Variances,
    WithinVariance,
)
from tacitly.methods.shared.batch import BatchQuery, norms_of
from tacitly.methods.shared.typical_norm import TypicalNorm

D = 3
P = D + 1
RNG = np.random.default_rng(5)
UNITS = Coordinates(np.array([0.5, -1.0, 10.0]), np.array([1.0, 0.5, 0.1]), 2.0, 1.5)
ROOT = np.linalg.cholesky(np.diag([0.5, 0.1, 0.2, 0.05]) + 0.02)
PRIOR = Prior(RNG.normal(size=P) * 0.3, ROOT, 0.4)
METRIC = np.diag([1.0, 2.0, 0.5, 3.0])
GROUPS = np.array([0.0, 1.0, 1.0, 2.0])
CONSTANT = np.array([1.0, 0.0, 1.0, 0.0])
SCORE = Score(UNITS, PRIOR, METRIC, np.eye(P), 0.8)
QUERIES: dict[str, BatchQuery] = {
    "magnitudes": Magnitudes(np.ones(P), np.zeros(P), np.array([1.0, 1.0, 1.0, 1.5]), 30.0),
    "angles": Angles(np.array([1.0, 0.0, 1.0, 1.0]), np.zeros(P), np.full(P, 3.0), np.ones(P)),
    "shares": Shares(np.array([0.0, 1.0, 1.0]), 1),
    "within": TypicalNorm(WithinVariance(UNITS), 20.0),
    "information shares": InformationShares(UNITS, PRIOR),
    "information": Information(UNITS, PRIOR, METRIC),
    "information norm": TypicalNorm(Information(UNITS, PRIOR, METRIC), 12.0),
    "score": SCORE,
    "score norm": TypicalNorm(SCORE, 8.0),
    "measured score": MeasuredScore(SCORE, 0.7, CONSTANT),
    "log variances": LogVariances(UNITS, PRIOR, GROUPS),
    "variances": Variances(UNITS, PRIOR, GROUPS),
    "spread": Spread(UNITS, PRIOR),
    "measured spread": MeasuredSpread(UNITS, PRIOR, 1.3),
    "coverage": Advantage(UNITS, PRIOR),
}
BOUNDED = {
    # Norms that no user exceeds, whatever the rows: what the clip is set to needs no cutting.
    "magnitudes": math.sqrt(3 + 1.5**2),
    "angles": math.sqrt(3),
    "within": 1.0,
    "coverage": QUERIES["coverage"].bound,  # type: ignore[attr-defined]
    "information norm": 1.0,
    "score norm": 1.0,
    "information shares": 1.0,
    "measured score": 0.7 * math.sqrt(1.1875),
}


def ragged(counts: list[int], seed: int = 0) -> tuple[Array, Array, np.ndarray]:
    rng = np.random.default_rng(seed)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    X = rng.normal(size=(offsets[-1], D)) * [1.0, 3.0, 10.0]
    X[rng.random(X.shape) < 0.05] = np.nan
    return X, X[:, 0] * 0 + rng.normal(size=offsets[-1]) * 2 + 1, offsets


@pytest.mark.parametrize("name", QUERIES)
def test_a_user_alone_sends_the_same_as_among_others(name: str) -> None:
    query = QUERIES[name]
    counts = [1, 7, 2, 30, 5, 3, 12, 1, 64, 9]
    X, y, offsets = ragged(counts)
    together = query.contributions(X, y, offsets)
    for user, (first, last) in enumerate(itertools.pairwise(offsets)):
        alone = query.contribution(X[first:last], y[first:last])
        np.testing.assert_allclose(alone, together[user], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", QUERIES)
def test_a_neighbours_rows_do_not_move_others_by_a_bit(name: str) -> None:
    query = QUERIES[name]
    X, y, offsets = ragged([4, 6, 5])
    longer = np.concatenate([[0], np.cumsum([4, 19, 5])])
    rng = np.random.default_rng(1)
    X2 = np.concatenate([X[:4], rng.normal(size=(19, D)) * 1e3, X[10:]])
    y2 = np.concatenate([y[:4], rng.normal(size=19), y[10:]])
    before, after = query.contributions(X, y, offsets), query.contributions(X2, y2, longer)
    np.testing.assert_array_equal(before[[0, 2]], after[[0, 2]])


@pytest.mark.parametrize("name", QUERIES)
def test_no_rows_and_useless_rows_send_zero_or_something_finite(name: str) -> None:
    query = QUERIES[name]
    with np.errstate(all="ignore"):
        empty = query.contributions(np.zeros((0, D)), np.zeros(0), np.array([0, 0]))
        np.testing.assert_array_equal(empty, 0.0)
        for bad in (np.nan, np.inf, 1e300, -1e300):
            total = query.block_sum(np.full((3, D), bad), np.full(3, bad), np.array([0, 3]), 1.0)
            assert np.isfinite(total).all()
            assert np.linalg.norm(total) <= 1.0


@pytest.mark.parametrize("name", QUERIES)
def test_block_sums_are_clipped_to_the_bound(name: str) -> None:
    query = QUERIES[name]
    rng = np.random.default_rng(2)
    for size in (1e-6, 1.0, 1e6):
        X, y = rng.normal(size=(40, D)) * size, rng.normal(size=40) * size
        for bound in (1e-3, 0.5, 3.0):
            total = query.block_sum(X, y, np.array([0, 40]), bound)
            assert np.linalg.norm(total) <= bound


@pytest.mark.parametrize("name", ["score norm", "measured score", "measured spread", "coverage"])
def test_users_are_taken_a_few_at_a_time_where_weights_are_many(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand users of 800 weights took 15 GB, and the program was killed after its privacy had been spent."""
    X, y, offsets = ragged([3, 0, 5, 2, 1, 4, 6, 2])
    query, sizes = QUERIES[name], []
    whole = query.block_sum(X, y, offsets, 0.7)
    form, few = posterior.posteriors_of, 3 * P**2
    monkeypatch.setattr(posterior, "_NUMBERS", few)
    monkeypatch.setattr(
        queries, "posteriors_of", lambda found, prior: sizes.append(len(found.information)) or form(found, prior)
    )
    np.testing.assert_allclose(query.block_sum(X, y, offsets, 0.7), whole, rtol=1e-12, atol=1e-12)
    assert sizes == [3, 3, 2]


@pytest.mark.parametrize("name", BOUNDED)
def test_bounds_hold_without_a_clip_and_are_attained(name: str) -> None:
    query, bound = QUERIES[name], BOUNDED[name]
    rng = np.random.default_rng(3)
    largest = 0.0
    for size in (1e-9, 1e-3, 1.0, 1e3, 1e9):
        for rows in (1, 2, 5, 50, 3000):
            for values in (rng.normal(size=(rows, P)), np.ones((rows, P)), rng.integers(0, 2, size=(rows, P)) * 1.0):
                table = values * size
                norm = float(norms_of(query.contributions(table[:, :D], table[:, D], np.array([0, rows])))[0])
                assert norm <= bound * (1 + 1e-12)
                largest = max(largest, norm)
    assert largest > 0.97 * bound


def test_scores_and_information_are_derivatives_of_the_likelihood() -> None:
    """H is minus the Hessian and ZᵀΩ⁻¹r the gradient of log N(y; Zw̄, ZSZᵀ + s²I) in w̄."""
    X, y, _offsets = ragged([6])
    design, targets = UNITS.design(X), UNITS.targets(y)
    omega = design @ PRIOR.covariance @ design.T + PRIOR.noise * np.eye(6)
    information = design.T @ np.linalg.solve(omega, design)
    gradient = design.T @ np.linalg.solve(omega, targets - design @ PRIOR.mean)
    expected = METRIC @ information @ METRIC
    weight = 1 / math.sqrt(np.trace(expected))
    np.testing.assert_allclose(QUERIES["information"].contribution(X, y), pack_symmetric(expected) * weight, rtol=1e-9)
    plain = Score(UNITS, PRIOR, METRIC, METRIC, 1e9).contribution(X, y)
    np.testing.assert_allclose(plain, METRIC @ gradient * weight, rtol=1e-9)


def test_spread_is_zero_on_average_under_the_prior_and_not_otherwise() -> None:
    """20,000 users drawn from the prior: each coordinate within 5.5 standard errors (false alarms below 1e-6)."""
    rng = np.random.default_rng(4)
    n, m = 20_000, 5
    X = rng.normal(size=(n * m, D)) * [1, 2, 1] + UNITS.center
    design = UNITS.design(X)
    weights = PRIOR.mean + rng.normal(size=(n, P)) @ PRIOR.root.T
    targets = np.einsum("ij,ij->i", design, np.repeat(weights, m, axis=0)) + math.sqrt(PRIOR.noise) * rng.normal(
        size=n * m
    )
    y, offsets = targets * UNITS.spread + UNITS.level, np.arange(0, n * m + 1, m)
    for query in (Spread(UNITS, PRIOR), SCORE, Variances(UNITS, PRIOR, GROUPS)):
        sent = query.contributions(X, y, offsets)
        if isinstance(query, Variances):
            sent = sent[:, ::2]  # excesses; the other numbers are weights
        errors = sent.std(axis=0) / math.sqrt(n)
        allowed = 5.5 * errors + (0.02 if isinstance(query, Variances) else 0.0)  # sizes are only roughly χ²
        assert (np.abs(sent.mean(axis=0)) <= allowed + 1e-12).all(), type(query).__name__
    wider = Prior(PRIOR.mean, PRIOR.root * 0.7, PRIOR.noise)
    sent = Spread(UNITS, wider).contributions(X, y, offsets)
    assert sent.mean(axis=0)[0] > 5.5 * sent.std(axis=0)[0] / math.sqrt(n)


@pytest.mark.parametrize("rows", [1, 2, 3, 6])
def test_variances_stay_where_they_are_right(rows: int) -> None:
    """With 20,000 users factors have a standard error of 0.01 at most; freedom m − tr J gave noise 1.15 for one row."""
    rng, n = np.random.default_rng(0), 20_000
    units = Coordinates(np.zeros(3), np.ones(3), 0.0, 1.0)
    prior = Prior(np.zeros(4), np.diag([0.7, 0.3, 0.3, 0.3]), 0.5)
    X, weights = rng.normal(size=(n * rows, 3)), rng.normal(size=(n, 4)) @ prior.root
    lines = np.einsum("ij,ij->i", units.design(X), np.repeat(weights, rows, axis=0))
    y = lines + math.sqrt(0.5) * rng.normal(size=len(X))
    query = Variances(units, prior, np.array([0.0, 1.0, 1.0, 1.0]))
    released = query.contributions(X, y, np.arange(0, len(X) + 1, rows)).mean(axis=0)
    np.testing.assert_allclose(Variances.factors(released, 0.0), 1.0, atol=0.05)


def test_a_feature_with_a_gain_of_zero_is_left_out() -> None:
    X, y, offsets = ragged([6, 3])
    narrow = Coordinates(UNITS.center, UNITS.gain * [1, 0, 1], UNITS.level, UNITS.spread)
    prior = Prior(PRIOR.mean[:3], np.diag([1.0, 0.5, 0.2]), 0.4)
    X2 = X.copy()
    X2[:, 1] = 1e9
    sent = [Spread(narrow, prior).contributions(rows, y, offsets) for rows in (X, X2)]
    assert sent[0].shape == (2, 6)
    np.testing.assert_array_equal(*sent)


def test_intervals_are_calibrated_to_cover_ninety_percent() -> None:
    """Residuals of some laws and scales: intervals with the multiplier found cover 90 %, nearly."""
    rng = np.random.default_rng(6)
    normal = rng.normal(size=400_000)
    mixture = normal * np.where(rng.random(400_000) < 0.2, 2.5, 0.7)
    laws = (normal, 1.2 * normal, 0.9 * normal, mixture, 1.3 * mixture, rng.standard_t(4, size=400_000))
    for residuals in laws:
        outside = np.array([np.mean(np.abs(residuals) > reach) for reach in advantage.REACHED])
        released = np.array([*(outside - advantage._MIDDLE), 0.2, 1.0]) * advantage._WEIGHTS
        multiple = Advantage.inflation(released, 0.0)
        assert np.mean(np.abs(residuals) < advantage.NOMINAL * multiple) == pytest.approx(0.9, abs=0.015)
    assert 1.0 < Advantage.inflation(np.array([0.5, 0.5, 0.2, 0.3]), 1e9) < 1.05  # noise alone: as if normal


def test_left_out_residuals_are_those_of_refitting() -> None:
    X, y, offsets = ragged([7])
    found = posteriors(X, y, offsets, UNITS, PRIOR)
    quick, errors = left_out(X, y, offsets, UNITS, PRIOR, found)
    for row in range(7):
        kept = np.arange(7) != row
        rest = posteriors(X[kept], y[kept], np.array([0, 6]), UNITS, PRIOR)
        design = UNITS.design(X[[row]])[0]
        weights = PRIOR.mean + PRIOR.root @ rest.means[0]
        spread = PRIOR.root @ rest.covariances[0] @ PRIOR.root.T
        error = UNITS.targets(y[[row]])[0] - design @ weights
        assert errors[row] == pytest.approx(error, rel=1e-8)
        assert quick[row] == pytest.approx(error / math.sqrt(PRIOR.noise + design @ spread @ design), rel=1e-8)


def test_measured_slopes_are_the_slopes_of_clipped_scores() -> None:
    """Half of the columns constant within users, half not: the mean clipped score's derivative, by differences."""
    rng, n, m = np.random.default_rng(0), 4000, 6
    units = Coordinates(np.zeros(4), np.ones(4), 0.0, 1.0)
    X = np.hstack([np.repeat(rng.normal(size=(n, 2)), m, axis=0), rng.normal(size=(n * m, 2))])
    y, offsets = 0.8 * np.repeat(rng.normal(size=n), m) + 0.45 * rng.normal(size=n * m), np.arange(n + 1) * m
    prior = Prior(np.zeros(5), np.diag([0.8, 0.1, 0.1, 0.1, 0.1]), 0.2)
    weights = np.einsum("nij->ij", posteriors(X, y, offsets, units, prior).information) / n
    metric = prior.root / np.sqrt(np.diag(weights))
    constant = np.array([1.0, 1.0, 1.0, 0.0, 0.0])

    def mean(at: Array) -> tuple[Array, Array]:
        score = Score(units, replace(prior, mean=at), metric, metric, 1e9)
        query = MeasuredScore(score, 0.7, constant)
        vector, slopes, _ = query.split(query.contributions(X, y, offsets).mean(axis=0), 0.0, (0.8, 0.65))
        return vector, slopes

    whole = Information(units, prior, metric).contributions(X, y, offsets).mean(axis=0)[[0, 5, 9, 12, 14]]
    measured = mean(np.zeros(5))[1]
    for column in range(5):
        step = 0.02 * np.eye(5)[column] * metric[column, column]
        moved = (mean(-step)[0] - mean(step)[0])[column] / 0.04
        assert measured[column] == pytest.approx(moved / whole[column], rel=0.12)
    assert measured[0] < measured[-1] - 0.05


KEPT = [name for name, query in QUERIES.items() if query.array_statistics is not None]


def shard_of(counts: list[int]) -> Shard:
    X, y, offsets = ragged(counts)
    return Shard(Cohort.from_offsets(np.nan_to_num(X), np.nan_to_num(y), offsets), threads=1)


def test_sums_from_what_a_shard_keeps_are_sums_of_contributions() -> None:
    """Whatever was asked before: statistics under another prior are replaced."""
    assert len(KEPT) == 10
    counts, grid = [4, 6, 5, 1, 30], 2.0**-40
    shard, other = shard_of(counts), replace(PRIOR, mean=PRIOR.mean + 0.1, noise=0.7)
    for name in (*KEPT, *reversed(KEPT)):
        query = QUERIES[name]
        bound = getattr(query, "bound", 1.0)
        expected = query.block_sum(np.asarray(shard.cohort.X), np.asarray(shard.cohort.y), shard.cohort.offsets, bound)
        np.testing.assert_allclose(shard.exact_sum(query, bound, grid) * grid, expected, rtol=1e-12, atol=1e-10)
        shard.exact_sum(Spread(UNITS, other), 1.0, grid)
    assert {kind.__name__ for kind in shard._statistics} == {"ArrayMoments", "ArraySolved"}


def test_a_form_of_a_subclass_is_not_bypassed_by_what_is_kept() -> None:
    for query in (
        _UncappedPoint(UNITS, PRIOR, GROUPS),
        _SharedMean(UNITS, PRIOR, METRIC, np.eye(P), 0.8),
        _HalfClipped(UNITS, PRIOR),
        MeasuredScore(_SharedMean(UNITS, PRIOR, METRIC, np.eye(P), 0.8), 0.7, CONSTANT),
        TypicalNorm(_HalfClipped(UNITS, PRIOR), 8.0),
    ):
        assert query.array_statistics is None


def test_tables_and_series_agree_with_scipy() -> None:
    freedom = variance_queries._FREEDOM
    exact = scipy.stats.chi2.cdf(3 * freedom, freedom + 2) + 3 * scipy.stats.chi2.sf(3 * freedom, freedom)
    np.testing.assert_allclose(variance_queries._CAPPED, exact, atol=1e-6)
    x = np.array([0.25, 0.5, 1.0, 3.0, 50.0])
    np.testing.assert_allclose(variance_queries.digamma(x), scipy.special.digamma(x), rtol=1e-8)


class _UnclippedExtras(MeasuredScore):
    """Forget that four more numbers travel with the score."""

    @property
    def bound(self) -> float:
        return self.clip


class _UncappedPoint(LogVariances):
    """Send logarithms instead of points on a circle."""

    def contributions(self, X: Array, y: Array, offsets: np.ndarray) -> Array:
        ratio, _, weight = self._ratios(self._sizes(self._posteriors(X, y, offsets)))
        return np.repeat(np.log(np.maximum(ratio, 1e-300)) * weight, 2, axis=1)


class _SharedMean(Score):
    """Center scores by the mean over users: a neighbour's rows move others' numbers."""

    def contributions(self, X: Array, y: Array, offsets: np.ndarray) -> Array:
        sent = super().contributions(X, y, offsets)
        return sent - sent.mean(axis=0)


class _HalfClipped(Spread):
    """Clip the diagonal alone."""

    def block_sum(self, X: Array, y: Array, offsets: np.ndarray, bound: float) -> Array:
        rows = self.contributions(X, y, offsets)
        diagonal = np.eye(self.units.size)[np.triu_indices(self.units.size)] > 0
        factors = np.minimum(1.0, bound / np.maximum(np.linalg.norm(rows[:, diagonal], axis=1), 1e-300))
        return np.asarray((rows * np.where(diagonal, factors[:, None], 1.0)).sum(axis=0))


def test_broken_queries_are_caught() -> None:
    """Each check above fails for a query that breaks what it checks."""
    name = "broken"
    for query, check in (
        (_UnclippedExtras(SCORE, 0.7, CONSTANT), test_bounds_hold_without_a_clip_and_are_attained),
        (_UncappedPoint(UNITS, PRIOR, GROUPS), test_bounds_hold_without_a_clip_and_are_attained),
        (_SharedMean(UNITS, PRIOR, METRIC, np.eye(P), 0.8), test_a_neighbours_rows_do_not_move_others_by_a_bit),
        (_HalfClipped(UNITS, PRIOR), test_block_sums_are_clipped_to_the_bound),
    ):
        QUERIES[name] = query
        BOUNDED[name] = getattr(query, "bound", math.sqrt(4.0))
        try:
            with pytest.raises(AssertionError):
                check(name)
        finally:
            del QUERIES[name], BOUNDED[name]


@pytest.mark.parametrize("name", ["measured score", "spread", "measured spread", "information"])
def test_replacing_a_user_comes_near_two_clips_for_scores_only(name: str) -> None:
    """Scores turn around with the residuals, matrices of squares do not change then."""
    query, bound = QUERIES[name], 0.05
    X, y, offsets = ragged([5])
    fitted, residuals = UNITS.design(X) @ PRIOR.mean, 1e3 * UNITS.targets(y)
    one, other = ((fitted + sign * residuals) * UNITS.spread + UNITS.level for sign in (1, -1))
    moved = query.block_sum(X, one, offsets, bound) - query.block_sum(X, other, offsets, bound)
    assert np.linalg.norm(moved) <= 2.0 * bound
    assert (np.linalg.norm(moved) > 1.7 * bound) == (name == "measured score")
