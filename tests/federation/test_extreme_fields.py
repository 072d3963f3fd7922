"""Public numbers that somebody else wrote: whatever is accepted, one user moves a sum by one clip."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tacitly.data.cohort import Cohort
from tacitly.federation import forms, shard
from tacitly.federation.bounds import fused_agrees
from tacitly.linalg import orthonormal
from tacitly.methods.altmin.queries import NormalEquations
from tacitly.methods.fedrep.queries import BasisStep
from tacitly.methods.mixed_effects.posterior import Coordinates, Prior
from tacitly.methods.mixed_effects.queries import Information, MeasuredScore, Score
from tacitly.methods.shared.whitening import Whitening
from tacitly.methods.trace_regression.curvature import StepEnergy
from tacitly.methods.trace_regression.designs import Design
from tacitly.methods.trace_regression.effects import EffectSum
from tacitly.methods.trace_regression.queries import Scales, TangentSum
from tacitly.privacy.guarantee import Unit

D, USERS, ROWS = 16, 1024, 4


@pytest.mark.parametrize("gain", [2.0**40, 2.0**44, 2.0**48])
def test_gains_do_not_amplify_the_rounding_of_a_sum(gain: float) -> None:
    """Corrections orthogonal to a direction of huge gain: rounding errors of their sum are not."""
    rng = np.random.default_rng(0)
    across, basis = np.full(D, 0.25), np.tile([0.25, -0.25], D // 2)
    along = orthonormal(np.column_stack([across, basis, rng.normal(size=D)]))[0][:, 2]
    try:
        whitening = Whitening(np.ones(D), across[:, None], np.array([gain]))
    except ValueError:
        return  # refused
    query = BasisStep(basis[:, None], np.eye(1), 1.0, whitening)
    if not fused_agrees(query, D, 1.0):
        return  # the definition runs, which clips whatever it gets
    residual, heads = np.array([1.0, -1.0, 1.0, -1.0]), rng.normal(size=(USERS, ROWS))
    heads -= (heads @ residual / ROWS)[:, None] * residual
    sizes = np.exp(rng.normal(size=(USERS, 1))) * residual
    X = (heads[:, :, None] * basis + sizes[:, :, None] * along).reshape(-1, D)
    y, offsets = (heads + 3.0 * residual).ravel(), np.arange(USERS + 1) * ROWS
    whole = query.block_sums(X, y, offsets, 1.0, USERS)
    for user in range(0, USERS, 100):
        kept, left = np.repeat(np.arange(USERS) != user, ROWS), offsets - ROWS * (np.arange(USERS + 1) > user)
        assert np.linalg.norm(whole - query.block_sums(X[kept], y[kept], left, 1.0, USERS)) <= 1.0


def test_a_tiny_bound_is_kept_where_squares_underflow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forms, "MANY", 1)  # compiled forms, without many users
    noise, users = 1e170, 100  # as many as hide from the door's own check
    query = Information(Coordinates(np.zeros(1), np.ones(1), 0.0, 1.0), Prior(np.zeros(2), np.eye(2), noise), np.eye(2))
    bound = 30.0 / math.sqrt(noise)
    grid, sums = 2.0 ** (math.floor(math.log2(bound)) - 40), []
    for rows in (1, 50_000):
        X = np.full((users - 1 + rows, 1), 9.9)
        cohort = Cohort.from_offsets(X, np.zeros(len(X)), np.append(np.arange(users), len(X)))
        sums.append(shard.Shard(cohort, threads=1).exact_sum(query, bound, grid) * grid)
    assert np.linalg.norm(sums[1] - sums[0]) <= 2.0 * bound


def test_two_factors_whose_product_underflows_do_not_lengthen_a_score() -> None:
    """The clip over the norm of a score, times what the bound leaves: 1.8 clips, before such products were left out."""
    units, prior = Coordinates(np.zeros(1), np.ones(1), 0.0, 1.0), Prior(np.zeros(2), np.eye(2), 1.0)
    query = MeasuredScore(Score(units, prior, 1e153 * np.eye(2), np.eye(2), 1.0), 1e-30, np.zeros(2))
    form = forms.OfStatistics(query, query.statistics)
    if not fused_agrees(query, 1, query.bound, form):
        return  # the definition runs, which clips whatever it gets
    targets = 10.0 ** np.linspace(138.0, 142.0, 200)
    X, offsets = np.zeros((len(targets), 1)), np.arange(len(targets) + 1)
    moved = form.block_sums(X, targets, offsets, query.bound, 1)
    assert np.linalg.norm(moved / query.bound, axis=1).max() <= 1.0


def test_a_clip_over_a_huge_moment_does_not_lengthen_equations() -> None:
    """A user's rows alone make the norm of the moment; a bound over it loses digits."""
    query, bound = NormalEquations(np.eye(3)[:, :1], Whitening.identity(3), 1.0, 1.0), 2.0**-199
    if not fused_agrees(query, 3, bound):
        return
    rows, targets = np.random.default_rng(0).normal(size=(5, 3)), np.arange(5.0)
    for exponent in np.linspace(128.0, 132.0, 80):
        moved = query.block_sum(rows * 10.0**exponent, targets, np.array([0, 5]), bound)
        assert np.linalg.norm(moved / bound) <= 1.0


@pytest.mark.parametrize("bound", [2.0**-199, 1e-20])
def test_a_bound_over_a_huge_norm_does_not_lengthen_a_step(bound: float) -> None:
    """Two clips, before factors that lost digits to underflow were left out."""
    query = BasisStep(np.eye(7)[:, :2], np.eye(2), 1.0, Whitening.identity(7))
    if not fused_agrees(query, 7, bound):
        return
    rng = np.random.default_rng(0)
    for exponent in np.linspace(125.0, 153.0, 60):
        X, y = rng.normal(size=(9, 7)), 10.0**exponent * rng.normal(size=9)
        moved = query.block_sums(X, y, np.array([0, 9]), bound, 1)
        assert np.linalg.norm(moved / bound) <= 1.0


def test_factors_that_are_not_orthonormal_do_not_lengthen_what_was_clipped() -> None:
    """A projection along them comes after the clip: 7.6 clips, where the synthetic users missed the changed entry."""
    design, right = Design("entries", 4, 12), np.eye(12)[:, :2]
    right[5, 0] = 3.0
    try:
        query = TangentSum(design, Scales(np.ones(4), np.ones(12)), np.eye(4)[:, :2], right, np.ones(2), unit=Unit.USER)
    except ValueError:
        return  # refused
    if fused_agrees(query, 2, 1.0):
        X, y = np.array([[0.0, 5.0], [0.0, 0.0]]), np.array([1.0, -2.0])
        assert np.linalg.norm(query.block_sum(X, y, np.array([0, 2]), 1.0)) <= 1.0


@pytest.mark.parametrize("bound", [2.0**-199, 1e-15])
def test_a_bound_over_a_huge_label_does_not_lengthen_effects(bound: float) -> None:
    """Two clips (1.3 at a bound of 1e-15), before factors that lost digits to underflow were left out."""
    query = EffectSum(Design("entries", 4, 3), 0.5)
    assert fused_agrees(query, 2, bound)
    largest = math.log10(bound) + 323.5
    for label in 10.0 ** np.linspace(largest - 4.0, min(largest, 308.2), 200):
        moved = query.block_sum(np.array([[0.0, 1.0]]), np.array([label]), np.array([0, 1]), bound)
        assert np.linalg.norm(moved / bound) <= 1.0


@pytest.mark.parametrize("mean", [-1e30, 0.0, math.nan])
def test_levels_at_which_energies_are_clipped_are_positive(mean: float) -> None:
    """A share of a negative level has no lower end: 10⁵⁰ clips, where the synthetic users have small energies."""
    with pytest.raises(ValueError, match="mean must be positive"):
        StepEnergy(Design("entries", 4, 3), np.ones((4, 1)), np.ones((3, 1)), mean)
