"""Heads under a public prior: the population's without rows, one's own with many, and never much worse than either."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from tacitly.arrays import Array
from tacitly.heads.population import BELIEFS, HeadPrior, PopulationHeads
from tacitly.heads.ridge import fit_head

BASIS = np.linalg.qr(np.random.default_rng(1).normal(size=(6, 2)))[0]
PRIOR = HeadPrior(np.array([1.0, -0.5, 3.0]), np.diag([0.5, 0.3, 1.0]), 0.25)
LEVELLESS = HeadPrior(np.array([1.0, -0.5, 0.0]), np.array([[0.5, 0.1], [0.0, 0.3], [0.0, 0.0]]), 0.25)


def users(counts: list[int], head: Array, noise: float = 0.5, seed: int = 0) -> tuple[Array, Array, np.ndarray]:
    rng = np.random.default_rng(seed)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    X = rng.normal(size=(offsets[-1], 6))
    return X, X @ BASIS @ head[:-1] + head[-1] + noise * rng.normal(size=offsets[-1]), offsets


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("prior", "intercept"), [(PRIOR, True), (LEVELLESS, False)])
def test_forms_for_many_and_few_users_equal_the_plain_one(prior: HeadPrior, intercept: bool, dtype: type) -> None:
    X, y, offsets = users([0, 1, 2, 3, 9, 40, 0, 5], np.array([2.0, 0.0, 4.0 * intercept]))
    X, y = X.astype(dtype), y.astype(dtype)
    for belief in BELIEFS:
        work = PopulationHeads(BASIS, prior, intercept, belief)
        plain = [work.own(X[a:b], y[a:b]) for a, b in itertools.pairwise(offsets)]
        np.testing.assert_allclose(work.with_errors(X, y, offsets)[0], plain, rtol=1e-9, atol=1e-11)
        for found, expected in zip(work.in_arrays(X, y, offsets), work.with_errors(X, y, offsets), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-11)


def test_without_rows_a_user_has_the_populations_head() -> None:
    work = PopulationHeads(BASIS, PRIOR, intercept=True)
    np.testing.assert_array_equal(work(np.zeros((0, 6)), np.zeros(0), np.array([0, 0]))[0], PRIOR.mean)


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e300])
def test_rows_that_cannot_be_used_give_the_populations_head(bad: float) -> None:
    work = PopulationHeads(BASIS, PRIOR, intercept=True)
    for X, y in ((np.full((3, 6), bad), np.ones(3)), (np.ones((3, 6)), np.full(3, bad))):
        np.testing.assert_array_equal(work(X, y, np.array([0, 3]))[0], PRIOR.mean)


def test_with_many_rows_a_user_has_their_own_head() -> None:
    mine = np.array([4.0, 3.0, -20.0])  # far from what the prior expects
    X, y, offsets = users([2000], mine)
    assert np.abs(PopulationHeads(BASIS, PRIOR, intercept=True)(X, y, offsets)[0] - mine).max() < 0.1


def test_a_user_unlike_the_population_is_not_much_worse_off_than_alone() -> None:
    mine, work = np.array([10.0, -10.0, 50.0]), PopulationHeads(BASIS, PRIOR, intercept=True)
    errors = {"shrunk": [], "alone": []}
    for seed in range(50):
        X, y, offsets = users([12], mine, noise=0.1, seed=seed)
        errors["shrunk"].append(np.sum((work(X, y, offsets)[0] - mine) ** 2))
        errors["alone"].append(np.sum((fit_head(X, y, BASIS, intercept=True) - mine) ** 2))
    assert np.mean(errors["shrunk"]) < 1.1 * np.mean(errors["alone"])


def test_users_like_the_population_are_better_off_than_alone() -> None:
    rng = np.random.default_rng(3)
    work, shrunk, alone, best = PopulationHeads(BASIS, PRIOR, intercept=True), [], [], []
    for seed in range(300):
        mine = PRIOR.mean + PRIOR.root @ rng.normal(size=3)
        X, y, offsets = users([4], mine, seed=seed)
        design = np.column_stack([X @ BASIS, np.ones(4)]) @ PRIOR.root
        left = y - np.column_stack([X @ BASIS, np.ones(4)]) @ PRIOR.mean
        exact = PRIOR.mean + PRIOR.root @ np.linalg.solve(design.T @ design + PRIOR.noise * np.eye(3), design.T @ left)
        shrunk.append(np.sum((work(X, y, offsets)[0] - mine) ** 2))
        alone.append(np.sum((fit_head(X, y, BASIS, intercept=True) - mine) ** 2))
        best.append(np.sum((exact - mine) ** 2))
    assert np.mean(shrunk) < 0.8 * np.mean(alone)
    assert np.mean(shrunk) < 1.1 * np.mean(best)  # the posterior is the best there is


@pytest.mark.parametrize(
    ("rows", "targets"), [([0.57534, 0.575314], [6.0, 2.0]), ([0.66828, 0.6682975, 0.6683628], [6.0, 8.0, 10.0])]
)
def test_rows_that_hardly_differ_do_not_make_a_slope(rows: list[float], targets: list[float]) -> None:
    """Left-out errors of a steep slope are no larger than those of a level: predictions were off by 100 and more."""
    prior = HeadPrior(np.array([11.0, -0.6]), np.array([[1.7, 0.0], [-1.5, 0.8]]), 5.0)
    X, y, offsets = np.array(rows)[:, None], np.array(targets), np.array([0, len(rows)])
    usual, posterior = (PopulationHeads(np.eye(1), prior, True, belief) for belief in ("usual", "own level"))
    apart, expected = np.array([0.18, 1.0]), posterior.own(X, y)
    found = usual.own(X, y), usual.in_arrays(X, y, offsets)[0][0], usual.with_errors(X, y, offsets)[0][0]
    for head in found:
        assert abs(apart @ (head - expected)) < 1.0


def test_units_do_not_matter() -> None:
    X, y, offsets = users([3, 6, 20], np.array([2.0, 0.0, 4.0]))
    stretch, factor = np.array([1e6, 1e-6]), 1e3
    basis, back = BASIS * stretch, factor / stretch
    turn = np.append(back, factor)
    other = HeadPrior(PRIOR.mean * turn, turn[:, None] * PRIOR.root, PRIOR.noise * factor**2)
    found = PopulationHeads(basis, other, intercept=True)(X, factor * y, offsets)
    np.testing.assert_allclose(found / turn, PopulationHeads(BASIS, PRIOR, intercept=True)(X, y, offsets), rtol=1e-6)


def test_where_nothing_is_known_a_user_has_a_level_of_their_own() -> None:
    work = PopulationHeads(BASIS, HeadPrior.unknown(2, intercept=True), True, "nothing known")
    y, offsets = np.array([5.0, 7.0, 6.0, 9.0]) * 1e6, np.array([0, 3, 4])
    np.testing.assert_allclose(work(np.zeros((4, 6)), y, offsets), [[0, 0, 6e6], [0, 0, 9e6]], rtol=1e-6)


@pytest.mark.parametrize(("change", "message"), [({"noise": 0.0}, "noise"), ({"mean": np.full(3, np.nan)}, "finite")])
def test_a_prior_is_checked(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        HeadPrior(**({"mean": PRIOR.mean, "root": PRIOR.root, "noise": 1.0} | change))  # type: ignore[arg-type]
