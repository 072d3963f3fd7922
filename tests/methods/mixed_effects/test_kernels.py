"""The compiled forms compute what the definitions say, for hostile rows too, from each user's rows alone."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

import numpy as np
import pytest

import tacitly
from adversary import violations
from tacitly.arrays import Array
from tacitly.data.cohort import Cohort
from tacitly.federation import forms
from tacitly.federation import shard as shard_module
from tacitly.federation.forms import OfStatistics
from tacitly.federation.shard import Shard
from tacitly.federation.statistics import same
from tacitly.methods.mixed_effects import heads as heads_module
from tacitly.methods.mixed_effects.advantage import Advantage
from tacitly.methods.mixed_effects.evidence import TRUSTED
from tacitly.methods.mixed_effects.heads import PosteriorHeads
from tacitly.methods.mixed_effects.posterior import Coordinates, Prior
from tacitly.methods.mixed_effects.queries import Information, InformationShares, MeasuredScore, Score
from tacitly.methods.mixed_effects.statistics import CAREFUL, _precision, directions_of, few_digits
from tacitly.methods.mixed_effects.unit_queries import Angles, Magnitudes
from tacitly.methods.mixed_effects.variance_queries import LogVariances, MeasuredSpread, Spread, Variances
from tacitly.methods.shared.batch import BatchQuery, clipped_sum, clipped_sums, norms_of
from tacitly.methods.shared.typical_norm import TypicalNorm

D = 10
RNG = np.random.default_rng(7)
UNITS = Coordinates(RNG.normal(size=D), RNG.uniform(0.3, 2.0, D) * (np.arange(D) != 4), 0.4, 1.7)
P = UNITS.size
FULL = Prior(RNG.normal(size=P) * 0.3, RNG.normal(size=(P, P)) * 0.08 + 0.4 * np.eye(P), 0.3)
DIAGONAL = replace(FULL, root=np.diag(RNG.uniform(0.2, 1.0, P)))
TINY = replace(DIAGONAL, root=np.diag(np.append(0.5, np.full(P - 1, 1e-4))))  # I − R would lose eight digits
NEARLY_SINGULAR = replace(FULL, root=1e-6 * np.eye(P) + np.linspace(0.1, 0.5, P)[:, None])  # has no directions
GROUPS = np.append(0.0, 1.0 + (np.arange(P - 1) > 6))
ONES = np.ones(D + 1)


def queries(prior: Prior) -> dict[str, BatchQuery]:
    score = Score(UNITS, prior, np.diag(RNG.uniform(0.5, 2.0, P)) + 0.1, np.eye(P) + 0.05, 0.8)
    return {
        "information shares": InformationShares(UNITS, prior),
        "information": Information(UNITS, prior, np.eye(P) + 0.1),
        "information norm": TypicalNorm(Information(UNITS, prior, np.eye(P)), 12.0),
        "score": score,
        "score norm": TypicalNorm(score, 8.0),
        "measured score": MeasuredScore(score, 0.7, (GROUPS == 1.0).astype(float)),
        "log variances": LogVariances(UNITS, prior, GROUPS),
        "variances": Variances(UNITS, prior, GROUPS),
        "spread": Spread(UNITS, prior),
        "spread norm": TypicalNorm(Spread(UNITS, prior), 8.0),
        "measured spread": MeasuredSpread(UNITS, prior, 1.3),
        "coverage": Advantage(UNITS, prior),
    }


QUERIES: dict[str, BatchQuery] = {
    "magnitudes": Magnitudes(ONES, 0 * ONES, np.append(np.ones(D), 1.5), 30.0),
    "magnitudes of some": Magnitudes(ONES * (np.arange(D + 1) % 3 > 0), np.linspace(-3.0, 5.0, D + 1), ONES, 8.0),
    "angles": Angles(ONES, RNG.normal(size=D + 1), np.full(D + 1, 0.3), ONES),
    "angles of some": Angles(ONES * (np.arange(D + 1) % 2), np.zeros(D + 1), np.full(D + 1, 3.0), ONES),
    **{f"{name}, full": query for name, query in queries(FULL).items()},
    **{f"{name}, diagonal": query for name, query in queries(DIAGONAL).items()},
    **{f"{name}, tiny": query for name, query in queries(TINY).items() if not name.endswith("norm")},
}
FAR = replace(DIAGONAL, mean=FULL.mean * 1e5)  # R(b + v) − v would lose eight digits
QUERIES |= {"variances, far": Variances(UNITS, FAR, GROUPS), "spread, far": Spread(UNITS, FAR)}
QUERIES["variances, nearly singular"] = Variances(UNITS, NEARLY_SINGULAR, GROUPS)
FULL_ONES = [name for name in QUERIES if name.split(", ")[-1] not in ("diagonal", "tiny", "far", "nearly singular")]


def people(counts: tuple[int, ...] = (1, 7, 0, 30, 5, 3, 12, 1, 300, 9, 2, 20)) -> tuple[Array, Array, np.ndarray]:
    rng = np.random.default_rng(1)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    X = rng.normal(size=(offsets[-1], D)) * np.append(np.ones(D - 1), 20.0)
    X[rng.random(X.shape) < 0.05] = np.nan
    X[:, 2] = rng.integers(0, 2, len(X))
    return X, rng.normal(size=len(X)) * 2 + 1, offsets


def hostile() -> tuple[Array, Array, np.ndarray]:
    X, y, offsets = people()
    for row, value in zip(offsets[3:-1], (np.inf, -np.inf, 1e3, np.nan, -1e3, 300.0, 1e-300, 0.0), strict=False):
        X[row, ::2] = value
    y[offsets[4]], y[offsets[6]], y[offsets[9]], y[offsets[10]] = 1e300, 1e140, np.nan, -1e100
    return X, y, offsets


def compiled(query: BatchQuery, X: Array, y: Array, offsets: np.ndarray) -> Array:
    statistics = query.statistics
    assert statistics is not None
    with np.errstate(all="ignore"):
        rows = statistics.of_rows(X, y, offsets)
        assert rows.shape == (len(offsets) - 1, statistics.width)
        return query.contributions_of(rows)


@pytest.mark.parametrize("name", QUERIES)
def test_contributions_are_those_of_the_definition(name: str) -> None:
    query = QUERIES[name]
    for X, y, offsets in (people(), hostile()):
        with np.errstate(all="ignore"):
            expected = query.contributions(X, y, offsets)
        found = compiled(query, X, y, offsets)
        sizes = norms_of(expected)
        assert np.array_equal(np.isfinite(sizes), np.isfinite(norms_of(found)))
        for one, other, size in zip(expected, found, sizes, strict=True):
            if math.isfinite(size):
                np.testing.assert_allclose(other, one, rtol=1e-9, atol=1e-9 * size)


def test_points_of_cells_of_any_size_are_accurate() -> None:
    """From the smallest numbers to the largest; nearly whole turns, and turns that are lost to rounding."""
    sizes = np.concatenate([2.0 ** np.linspace(-1074.0, 1023.9, 2500), np.linspace(0.4, 3.0, 500), [5e-324, 0.0]])
    cells = np.resize(np.concatenate([sizes, -sizes]), (len(sizes), D))
    for y in (cells[:, 3].copy(), np.full(len(cells), np.inf)):
        offsets = np.arange(len(cells) + 1)
        for query in (QUERIES["magnitudes"], QUERIES["angles"], QUERIES["angles of some"]):
            with np.errstate(all="ignore"):
                expected = query.contributions(cells, y, offsets)
            np.testing.assert_allclose(compiled(query, cells, y, offsets), expected, rtol=0.0, atol=1e-13)


def test_moments_along_directions_serve_all_priors_with_these_directions() -> None:
    axes = few_digits(FULL.root)
    scaled = replace(FULL, root=axes * few_digits(RNG.uniform(0.2, 5.0, P)), noise=0.7)
    kept = [Variances(UNITS, prior, GROUPS).statistics for prior in (replace(FULL, root=axes), scaled)]
    assert len(directions_of(axes)) == P
    assert same(*kept)
    assert [len(directions_of(root)) for root in (DIAGONAL.root, NEARLY_SINGULAR.root, 0.0 * axes)] == [0, 0, 0]


@pytest.mark.parametrize("size", [5, 8, 12])
@pytest.mark.parametrize("name", QUERIES)
def test_sums_are_clipped_as_in_the_definition(name: str, size: int) -> None:
    query = QUERIES[name]
    X, y, offsets = hostile()
    assert query.statistics is not None
    with np.errstate(all="ignore"):
        statistics = query.statistics.of_rows(X, y, offsets)
        for bound in (1e-3, 0.4, 1e4):
            expected = query.block_sums(X, y, offsets, bound, size)
            np.testing.assert_allclose(
                query.sums_of(statistics, bound, size), expected, rtol=1e-9, atol=1e-9 * np.abs(expected).max()
            )


@pytest.mark.parametrize("width", [1, 5, 8, 51])
def test_rows_are_clipped_and_added_as_in_the_definition(width: int) -> None:
    rows = RNG.normal(size=(40, width)) * 10.0 ** RNG.integers(-3, 3, (40, 1))
    rows[3:9] *= np.array([1e-250, 1e-160, 0.0, 1e150, 1e250, np.inf])[:, None]
    rows[11, -1], rows[12, 0] = np.nan, -np.inf
    for bound in (1e-3, 1.0):
        expected = [clipped_sum(rows[first : first + 16], bound) for first in range(0, 40, 16)]
        np.testing.assert_allclose(clipped_sums(rows, bound, 16), expected, rtol=1e-12, atol=1e-13 * bound)


def test_nearly_singular_priors_are_not_inverted() -> None:
    assert [len(_precision(prior)) for prior in (FULL, DIAGONAL, TINY)] == [P, P, P]
    assert [len(_precision(replace(FULL, root=root))) for root in (NEARLY_SINGULAR.root, 0.0 * FULL.root)] == [0, 0]
    X, y, offsets = people()
    query = Advantage(UNITS, NEARLY_SINGULAR)
    np.testing.assert_allclose(compiled(query, X, y, offsets), query.contributions(X, y, offsets), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("name", "dtype"), [("spread, full", np.float32), *((name, np.float64) for name in FULL_ONES)])
def test_others_do_not_move_a_user_by_a_bit(name: str, dtype: type) -> None:
    """The same place among as many users with other rows, some not finite, and other numbers of rows."""
    query = QUERIES[name]
    X, y, offsets = people()
    X, y = X.astype(dtype), y.astype(dtype)
    before = compiled(query, X, y, offsets)
    with np.errstate(all="ignore"):
        Y, z, _ = (part.astype(dtype) for part in hostile())
    for user, (first, last) in enumerate(itertools.pairwise(offsets)):
        after = slice(len(Y) - 2 * (len(offsets) - 2 - user), None)
        rows = np.concatenate([Y[: 3 * user], X[first:last], Y[after]])
        targets = np.concatenate([z[: 3 * user], y[first:last], z[after]])
        counts = [3] * user + [last - first] + [2] * (len(offsets) - 2 - user)
        starts = np.concatenate([[0], np.cumsum(counts)])
        np.testing.assert_array_equal(compiled(query, rows, targets, starts)[user], before[user])


@pytest.mark.parametrize("name", ["spread, full", "score, full"])
def test_statistics_of_a_user_alone_are_the_same_to_the_last_bit(name: str) -> None:
    X, y, offsets = people()
    statistics = QUERIES[name].statistics
    assert statistics is not None
    together = statistics.of_rows(X, y, offsets)
    for user, (first, last) in enumerate(itertools.pairwise(offsets)):
        alone = statistics.of_rows(X[first:last], y[first:last], np.array([0, last - first]))
        np.testing.assert_array_equal(alone[0], together[user])


@pytest.mark.parametrize(
    "name",
    [
        *(f"{name}, full" for name in ("information", "measured score", "variances", "log variances")),
        *("measured spread, full", "coverage, full", "magnitudes"),
    ],
)
def test_no_user_exceeds_the_clip_of_the_compiled_form(name: str) -> None:
    query = QUERIES[name]
    assert query.statistics is not None
    assert violations(OfStatistics(query, query.statistics), 0.2, D) == []


@dataclass(frozen=True)
class Unclipped(MeasuredSpread):
    """Mutation: clips to twice the bound."""

    def sums_of(self, statistics: Array, bound: float, size: int) -> Array:
        return super().sums_of(statistics, 2.0 * bound, size)


def test_a_compiled_form_that_does_not_clip_is_caught() -> None:
    query = Unclipped(UNITS, FULL, 1e9)
    assert violations(OfStatistics(query, query.statistics), 0.2, D)


def test_users_with_thousands_of_rows_are_added_up_in_full() -> None:
    X, y, offsets = people((5000, 3, 64, 65, 128))
    for query in (QUERIES["measured spread, full"], QUERIES["coverage, full"], QUERIES["angles"]):
        np.testing.assert_allclose(
            compiled(query, X, y, offsets), query.contributions(X, y, offsets), rtol=1e-9, atol=1e-11
        )


@pytest.mark.parametrize("features", [0, 1, 2, 3, 7, 8, 20])
def test_any_number_of_features_will_do(features: int) -> None:
    X, y, offsets = people()
    X = np.tile(X, 2)
    units = Coordinates(np.zeros(2 * D), np.where(np.arange(2 * D) < features, 0.5, 0.0), 0.0, 1.0)
    size = features + 1
    prior = Prior(np.full(size, 0.1), 0.3 * np.eye(size) + 0.01, 0.4)
    for query in (Spread(units, prior), Variances(units, prior, np.append(0.0, np.ones(features)))):
        expected = query.contributions(X, y, offsets)
        np.testing.assert_allclose(compiled(query, X, y, offsets), expected, rtol=1e-9, atol=1e-11)


def test_heads_of_many_users_are_those_of_few(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y, offsets = people(tuple(1 + np.arange(900) % 3))
    work = PosteriorHeads(UNITS, FULL, np.array(TRUSTED))
    few = work(X, y, offsets)
    monkeypatch.setattr(heads_module, "_MANY", 900)
    np.testing.assert_allclose(work(X, y, offsets), few, rtol=1e-9, atol=1e-12)


def test_a_degenerate_prior_is_recognised() -> None:
    assert (np.square(TINY.root).sum(axis=0) / TINY.noise).min() < CAREFUL


def fed(monkeypatch: pytest.MonkeyPatch, many: int, kept: int = 1 << 28) -> Shard:
    monkeypatch.setattr(forms, "MANY", many)
    monkeypatch.setattr(shard_module, "_KEPT", kept)
    X, y, offsets = people(tuple(1 + np.arange(1500) % 5))
    return Shard(Cohort.from_offsets(np.nan_to_num(X), y, offsets), threads=2)


def test_statistics_are_kept_while_queries_ask_for_equal_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    shard = fed(monkeypatch, 1)
    other = replace(UNITS, level=0.5)
    for prior, later in ((DIAGONAL, TINY), (FULL, replace(FULL, mean=np.zeros(P), noise=0.7))):
        first = shard._with(Spread(UNITS, prior).statistics)
        assert first is shard._with(Variances(UNITS, later, GROUPS).statistics)
        assert first is not shard._with(Spread(other, prior).statistics)
    score = QUERIES["score, full"]
    likelihoods = shard._with(score.statistics)
    assert likelihoods is shard._with(replace(score, prior=replace(FULL, mean=np.zeros(P))).statistics)
    assert likelihoods is not shard._with(replace(score, prior=replace(FULL, noise=0.5)).statistics)


def test_statistics_written_over_others_are_those_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over those they come from, which are kept under a diagonal prior, and over others with other directions."""
    shard = fed(monkeypatch, 1)
    turned = replace(FULL, root=FULL.root[:, ::-1])
    rows = shard.cohort.X, np.asarray(shard.cohort.y), shard.cohort.offsets
    memory = []
    for prior in (DIAGONAL, FULL, turned, DIAGONAL):
        statistics = Spread(UNITS, prior).statistics
        found = shard._with(statistics)
        assert found is not None
        assert statistics is not None
        np.testing.assert_array_equal(found.cohort.X, statistics.of_rows(*rows))
        memory.append(found.cohort.X.ctypes.data)
    assert len(set(memory)) == 1


def test_statistics_make_room_for_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    shard, query = fed(monkeypatch, 1), QUERIES["spread, full"]
    before = shard.exact_sum(query, 1.0, 2.0**-45)
    shard.users_map(PosteriorHeads(UNITS, FULL, np.array(TRUSTED)))
    assert not shard._statistics
    np.testing.assert_array_equal(shard.exact_sum(query, 1.0, 2.0**-45), before)


@pytest.mark.parametrize("name", FULL_ONES)
def test_sums_are_the_same_whether_statistics_are_kept_or_not(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    query, grid = QUERIES[name], 2.0**-45
    plain = fed(monkeypatch, 10**9).exact_sum(query, 1.0, grid)
    kept = fed(monkeypatch, 1).exact_sum(query, 1.0, grid)
    computed = fed(monkeypatch, 1, kept=0).exact_sum(query, 1.0, grid)
    np.testing.assert_array_equal(kept, computed)
    # A logarithm has as many digits as the residual it is of, and one user's is 10⁻⁹ of what it is the difference of.
    np.testing.assert_allclose(kept * grid, plain * grid, rtol=1e-9, atol=1e-6 if name.startswith("log") else 1e-9)


def test_a_bug_in_a_compiled_form_is_raised_not_summed_as_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    query = QUERIES["spread, full"]
    monkeypatch.setattr(Spread, "contributions_of", lambda self, statistics: statistics[:, :-1])
    with pytest.raises(ValueError, match="coordinates"):
        fed(monkeypatch, 1).exact_sum(query, 1.0, 2.0**-40)


@pytest.mark.filterwarnings("ignore::tacitly.UncertifiedWarning")
def test_a_fit_is_the_same_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y, offsets = people(tuple(1 + np.arange(600) % 5))
    cohort = Cohort.from_offsets(np.nan_to_num(X), y, offsets)
    fits = []
    for many in (1, 10**9):
        monkeypatch.setattr(forms, "MANY", many)
        fits.append(tacitly.MixedEffects(epsilon=4.0, noise_seed=1).fit(cohort))
    for name, array in fits[0].public_arrays().items():
        np.testing.assert_allclose(array, fits[1].public_arrays()[name], rtol=1e-6, atol=1e-8)


def test_a_head_is_the_same_to_the_last_bit_however_many_rows_others_have() -> None:
    """It is told to its user, whom nobody's rows but the user's own may reach beside the billboard."""
    rng, counts = np.random.default_rng(0), np.random.default_rng(1).integers(2, 12, size=300)
    offsets, size = np.append(0, np.cumsum(counts)), 41
    X, y = rng.normal(size=(offsets[-1], size - 1)), rng.normal(size=offsets[-1])
    units, root = Coordinates(np.zeros(size - 1), np.ones(size - 1), 0.0, 1.0), rng.normal(size=(size, size)) / size
    work = PosteriorHeads(units, Prior(rng.normal(size=size), root + 0.1 * np.eye(size), 0.5), np.array(TRUSTED))
    alone = work(X, y, offsets)
    for more in range(1, 8):
        rows, targets = (np.concatenate([np.repeat(part[:1], more, axis=0), part]) for part in (X, y))
        np.testing.assert_array_equal(work(rows, targets, np.append(0, offsets[1:] + more))[1:], alone[1:])
