"""Trace regression recovers M, spends its planned budget, and processes units independently."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest
from benchmarks.papers.trace_attack import proved, spent_by_outlier

from tacitly.linalg import orthonormal
from tacitly.methods.trace_regression.algorithm import Settings, choose_start
from tacitly.methods.trace_regression.centering import ObservationSum, shrunk
from tacitly.methods.trace_regression.curvature import LEVELS, Secant, StepEnergy
from tacitly.methods.trace_regression.designs import KINDS, Centre, Design
from tacitly.methods.trace_regression.kernels import BINS
from tacitly.methods.trace_regression.low_rank import LowRank, leading, retract
from tacitly.methods.trace_regression.queries import DesignEnergy, LabelledSum, Scales, TangentSum, as_matrix
from tacitly.methods.trace_regression.start import bulk_of, gain_of, least_error, unbiased
from tacitly.privacy.accounting import compose
from tacitly.privacy.guarantee import Adjacency, Budget, Unit

RNG = np.random.default_rng(0)


def a_low_rank(d1: int, d2: int, r: int, seed: int = 0) -> LowRank:
    rng = np.random.default_rng(seed)
    bases = (orthonormal(rng.normal(size=(d, r)))[0] for d in (d1, d2))
    return LowRank(next(bases), np.linspace(2.0, 1.0, r), next(bases))


def rows_of(design: Design, n: int, seed: int = 1) -> np.ndarray:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, design.n_features))
    for column, (hot, size) in enumerate(zip(design.hot, (design.d1, design.d2), strict=True)):
        if hot:
            X[:, column] = rng.integers(size, size=n)
    return X


@pytest.mark.parametrize("kind", KINDS)
def test_a_design_agrees_with_its_matrices_written_out(kind: str) -> None:
    design, M = Design(kind, 5, 4), a_low_rank(5, 4, 2)
    X = rows_of(design, 30)
    matrices = np.array([as_matrix(design, x) for x in X])
    fitted = design.fitted(X, M.left * M.values, M.right)
    np.testing.assert_allclose(fitted, np.einsum("nij,ij->n", matrices, M.matrix), atol=1e-12)
    rows, columns = design.energies(X)
    np.testing.assert_allclose(rows, (matrices**2).sum(axis=(0, 2)))
    np.testing.assert_allclose(columns, (matrices**2).sum(axis=(0, 1)))


@pytest.mark.parametrize("kind", ["dense", "rank-one", "tasks", "entries"])
def test_what_a_matrix_says_of_a_row_is_the_same_to_the_last_bit_among_others(kind: str) -> None:
    """An evaluation adds up what follows: a user with one row more moved the losses of up to three others."""
    rng = np.random.default_rng(0)
    for _ in range(30):
        design = Design(kind, *(int(size) for size in rng.integers(1, 12, size=2)))
        left, right = (rng.normal(size=(size, 2)) for size in (design.d1, design.d2))
        X = design.placed(rng.normal(size=(20, design.n_features)))
        together = design.fitted(X, left, right)
        for rows in (slice(0, 1), slice(3, 5), slice(2, 7), slice(7, 20)):
            np.testing.assert_array_equal(design.fitted(X[rows], left, right), together[rows])


def test_retraction_is_the_nearest_matrix_of_that_rank() -> None:
    M = a_low_rank(9, 7, 2)
    left, right = RNG.normal(size=(9, 2)), RNG.normal(size=(7, 2))
    right -= M.right @ (M.right.T @ right)
    moved = M.matrix + left @ M.right.T + M.left @ right.T
    found = retract(M, left, right)
    np.testing.assert_allclose(found.matrix, leading(moved, 2).matrix, atol=1e-12)
    np.testing.assert_allclose(found.left.T @ found.left, np.eye(2), atol=1e-12)


def test_a_step_of_zero_and_full_rank_are_no_trouble() -> None:
    M = a_low_rank(3, 3, 3)
    np.testing.assert_allclose(retract(M, np.zeros((3, 3)), np.zeros((3, 3))).matrix, M.matrix, atol=1e-12)


def test_known_noise_is_taken_off_singular_values() -> None:
    rng, M = np.random.default_rng(2), 40.0 * a_low_rank(60, 40, 2).matrix
    found = [leading(M + rng.normal(size=M.shape), 2, 1.0).values[1] for _ in range(50)]
    # The statistical error is about one; noise that is not removed would add 1.25.
    assert np.mean(found) == pytest.approx(40.0, abs=0.7)


@pytest.mark.parametrize("shape", ["identity", "diagonal", "full"])
def test_the_unbiased_start_is_unbiased(shape: str) -> None:
    rng, M = np.random.default_rng(3), a_low_rank(3, 2, 1).matrix
    roots = {"identity": np.eye(6), "diagonal": np.diag(rng.uniform(0.5, 2.0, 6))}
    root = roots.get(shape, np.eye(6) + 0.2 * rng.normal(size=(6, 6)))
    X = rng.normal(size=(200_000, 6)) @ root.T
    total = (X.T @ (X @ M.ravel()) / len(X)).reshape(3, 2)
    covariance = {"identity": None, "diagonal": np.diag(root @ root.T).reshape(3, 2), "full": root @ root.T}[shape]
    np.testing.assert_allclose(unbiased(total, covariance), M, atol=0.1)


@pytest.mark.parametrize("unit", [Unit.ROW, Unit.USER, Unit.LABEL])
@pytest.mark.parametrize("private", [True, False])
@pytest.mark.parametrize("centres", [True, False])
def test_the_plan_spends_what_was_asked_for(unit: Unit, private: bool, centres: bool) -> None:
    for adjacency in Adjacency:
        budget = Budget(epsilon=1.0, delta=1e-6, unit=unit, adjacency=adjacency)
        settings = Settings(unit=unit, private_design=private, centres=int(centres), private_level=centres)
        assert compose(settings.events(settings.plan(budget)), adjacency, 1e-6) == pytest.approx(1.0, rel=1e-6)


def test_others_do_not_change_a_contribution_by_a_bit() -> None:
    design, M = Design("dense", 6, 5), a_low_rank(6, 5, 2)
    scales = Scales(np.full(6, 0.7), np.full(5, 1.3))
    X, y = rows_of(design, 50).astype(np.float32), RNG.normal(size=50).astype(np.float32)
    for unit in (Unit.ROW, Unit.USER):
        query = TangentSum(design, scales, M.left, M.right, M.values, unit=unit)
        offsets = np.array([0, 20, 21, 50])
        together = query.norms(X, y, offsets)
        alone = query.norms(X[20:21], y[20:21], np.array([0, 1]))
        assert together[20 if unit is Unit.ROW else 1] == alone[0]


def test_tracked_bins_count_everybody_once_and_the_clip_is_an_edge() -> None:
    design, M = Design("dense", 6, 5), a_low_rank(6, 5, 2)
    ones = Scales(np.ones(6), np.ones(5))
    X, y = rows_of(design, 500), RNG.normal(size=500)
    bare = TangentSum(design, ones, M.left, M.right, M.values)
    clip = float(np.median(bare.norms(X, y, np.array([0, 500]))))
    query = TangentSum(design, ones, M.left, M.right, M.values, "both", 0.05, clip / math.sqrt(0.95))
    counts = query.counts(query.split(query.block_sum(X, y, np.array([0, 500]), query.clip))[2])
    assert counts.size == BINS
    assert counts.sum() == pytest.approx(500)
    assert counts[:12].sum() == pytest.approx(250, abs=1.01)


def test_stein_gain_is_what_a_clip_leaves() -> None:
    rng = np.random.default_rng(4)
    g = rng.normal(size=400_000)
    counts, edges = np.histogram(np.abs(g), bins=200, range=(0.0, 6.0))
    middle = (edges[1:] + edges[:-1]) / 2
    for bound in (0.6, 1.2, 2.4):
        left = float(np.mean(np.clip(g, -bound, bound) * g))
        assert gain_of(counts.astype(float), middle, bound, Unit.ROW) == pytest.approx(left, abs=0.01)


def test_outliers_do_not_move_the_clip() -> None:
    edges = np.geomspace(0.01, 100.0, 65)
    counts = 1000.0 * np.exp(-0.5 * np.log(edges[1:]) ** 2)
    spoiled = counts.copy()
    spoiled[-1] += 5.0
    assert least_error(counts, edges, 5.0, 50, Unit.ROW).bound == least_error(spoiled, edges, 5.0, 50, Unit.ROW).bound


def test_the_start_is_chosen_by_public_sizes() -> None:
    assert choose_start(Design("dense", 40, 40), Unit.ROW) == "one-shot"
    assert choose_start(Design("entries", 5000, 3000), Unit.ROW) == "power"
    assert choose_start(Design("entries", 50, 30), Unit.USER) == "power"


def test_users_of_factored_designs_cannot_ask_for_the_whole_sum() -> None:
    with pytest.raises(ValueError, match="power method"):
        LabelledSum(Design("entries", 3, 3), Scales(np.ones(3), np.ones(3)), Unit.USER)


def test_a_position_out_of_range_adds_nothing() -> None:
    design = Design("entries", 3, 3)
    bad = np.array([[3.0, 0.0], [-1.0, 0.0], [0.5, 0.0], [math.nan, 0.0], [math.inf, 1.0], [0.0, 1e300]])
    assert not DesignEnergy(design).block_sum(bad, np.ones(6), np.array([0, 6]), 1.0).any()
    assert (
        not LabelledSum(design, Scales(np.ones(3), np.ones(3))).block_sum(bad, np.ones(6), np.array([0, 6]), 1.0).any()
    )


def test_a_position_out_of_range_adds_nothing_to_public_energies() -> None:
    rows = np.array([[0.0, 1.0], [17.0, 0.0], [-1.0, 0.0], [0.5, 0.0], [math.nan, 1.0]])
    left, right = Design("entries", 3, 3).energies(rows)
    assert left.tolist() == [1.0, 0.0, 0.0]
    assert right.tolist() == [0.0, 1.0, 0.0]


def test_matrix_completion_never_writes_a_matrix_out() -> None:
    """30,000 × 30,000 numbers are 7 GB; the factors are 1 MB."""
    size = 30_000
    design, ones = Design("entries", size, size), Scales(np.ones(size), np.ones(size))
    basis = np.zeros((size, 2))
    basis[[0, 1], [0, 1]] = 1.0
    rows = np.array([[0.0, 1.0], [5.0, 29_999.0]])
    tracemalloc.start()
    for query in (
        TangentSum(design, ones, basis, basis, np.ones(2)),
        DesignEnergy(design),
        StepEnergy(design, basis, basis, 1.0),
    ):
        plain = query.contribution(rows, np.ones(2))
        assert plain.shape == (query.coordinates,)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 50e6


def test_a_noisy_mean_keeps_what_stands_out_and_drops_what_noise_alone_would_be() -> None:
    rng = np.random.default_rng(7)
    truth = 0.5 + 0.2 * rng.normal(size=(30, 1)) * np.ones((1, 20))
    noise = 0.1 * rng.normal(size=(30, 20))
    found = shrunk(truth + noise, 0.1)
    # 600 coordinates carry noise; about 30 of them have signal and are kept.
    assert np.linalg.norm(found - truth) < 0.4 * np.linalg.norm(noise)
    assert not shrunk(noise, 0.1).any()
    whole = truth + rng.normal(size=truth.shape)
    assert np.linalg.norm(shrunk(whole + noise, 0.1) - whole) < 1.05 * np.linalg.norm(noise)


def test_a_centre_moves_every_query_as_centred_rows_would() -> None:
    design, M, rng = Design("dense", 6, 5), a_low_rank(6, 5, 2), np.random.default_rng(8)
    scales, centre = Scales(np.full(6, 0.7), np.full(5, 1.3)), Centre(rng.normal(size=(6, 5)), level=0.4, weight=0.3)
    X, y, offsets = rows_of(design, 50), rng.normal(size=50), np.array([0, 50])
    moved = X - centre.matrix.ravel(), y - centre.level
    for unit in (Unit.ROW, Unit.USER):
        for make in (
            lambda c, unit=unit: TangentSum(design, scales, M.left, M.right, M.values, "left", unit=unit, centre=c),
            lambda c, unit=unit: LabelledSum(design, scales, unit, c),
            lambda c, unit=unit: DesignEnergy(design, unit, c),
            lambda c, unit=unit: StepEnergy(design, M.left, M.right, 1.0, unit, c),
            lambda c, unit=unit: ObservationSum(design, unit, c),
        ):
            expected = make(None).block_sum(*moved, offsets, 1.0)
            np.testing.assert_allclose(make(centre).block_sum(X, y, offsets, 1.0), expected, rtol=1e-9, atol=1e-12)
    both = TangentSum(design, scales, M.left, M.right, M.values, centre=centre)
    released = both.block_sum(X, y, offsets, 1e9)
    bare = TangentSum(design, scales, M.left, M.right, M.values).block_sum(*moved, offsets, 1e9)
    np.testing.assert_allclose(released[:-1], bare)
    fitted = moved[0] @ (scales.matrix * M.matrix).ravel()
    assert both.level_of(released) == pytest.approx(0.3 * float(np.sum(moved[1] - fitted)))


@pytest.mark.parametrize("curvature", [0.3, 1.0, 9.0, 60.0, 1000.0])
def test_curvature_is_read_off_levels_through_noise(curvature: float) -> None:
    rng, n = np.random.default_rng(6), 40_000
    X = math.sqrt(curvature / n) * rng.normal(size=(n, 1))
    query = StepEnergy(Design("dense", 1, 1), np.ones((1, 1)), np.ones((1, 1)), 1.0 / n)
    exact = query.block_sum(X, X[:, 0], np.array([0, n]), 1.0)
    for sigma in (0.0, 40.0):
        found = query.read(exact + sigma * rng.normal(size=LEVELS), sigma, n)
        assert found == pytest.approx(curvature, rel=0.25)
    assert query.read(exact + 1e4 * rng.normal(size=LEVELS), 1e4, n) == 1.0


def test_two_gradients_tell_the_curvature_between_them() -> None:
    before, after = a_low_rank(6, 5, 2, seed=1), a_low_rank(6, 5, 2, seed=2)
    gradients = tuple((3.0 * -at.left * at.values, at.right) for at in (before, after))  # of 3‖M‖²/2
    found = Secant.between(before, after, gradients, (0.0, 0.0))
    assert found is not None
    assert found.value == pytest.approx(3.0)
    assert Secant.between(before, before, gradients, (0.0, 0.0)) is None


def test_the_outlier_spends_no_more_than_is_claimed_and_the_clip_is_reached() -> None:
    """Attack R3, zero-out: the privacy loss of one observation of norm 100 at ε = 1."""
    found = spent_by_outlier(runs=8)
    assert 0.9 < found["spent"] <= 1.0 + 1e-6
    assert found["audited"] <= 1.0


def test_the_audit_has_power() -> None:
    """Gaussians 0.22 apart, as at ε = 1: the bound proves more than half of it. Four times as far apart is detected."""
    rng = np.random.default_rng(5)
    for apart, least, most in ((0.22, 0.5, 1.0), (0.88, 2.5, 5.0)):
        odds = [apart * rng.normal(sign * apart / 2, 1.0, 5000) for sign in (1.0, -1.0)]
        assert least < proved(*odds, 1e-6, gaussian=True) < most
    odds = [rng.normal(sign * 2.0, 1.0, 4000) for sign in (1.0, -1.0)]
    assert proved(*odds, 1e-6, gaussian=False) > 3.0


def test_a_clip_is_not_read_off_noise() -> None:
    rng = np.random.default_rng(3)
    alone = [bulk_of(rng.normal(scale=84.0, size=1920), 84.0) for _ in range(300)]
    assert sum(found is not None for found in alone) <= 6  # a single bin would stand out in every other run
    counts = np.zeros(1920)
    counts[940:946] = 2000 / 6
    seen = [bulk_of(counts + rng.normal(scale=84.0, size=1920), 84.0) for _ in range(100)]
    assert sum(found is not None and 2.0**-6 < found.middle < 2.0**2 for found in seen) >= 90
