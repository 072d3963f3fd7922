"""Baselines for ratings: right without noise, bounded with it."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from adversary import clipped
from tacitly.baselines.recommenders import FactorSums, ItemMeans, PrivateALS, PrivateSGD, factors_of, private_popularity
from tacitly.data.cohort import Cohort
from tacitly.methods.recommender.posterior import Catalogue


def cohort(n: int = 400, items: int = 12, rank: int = 2, noise: float = 0.05) -> tuple[Cohort, np.ndarray]:
    """Return users who rated all but four items each, and the whole matrix."""
    rng = np.random.default_rng(0)
    whole = np.clip(3.0 + rng.normal(size=(n, rank)) @ (0.6 * rng.normal(size=(rank, items))), 1.0, 5.0)
    chosen = [rng.permutation(items)[: items - 4] for _ in range(n)]
    X = np.concatenate(chosen)[:, None].astype(np.float64)
    users = np.repeat(np.arange(n), items - 4)
    return Cohort.from_arrays(X, whole[users, X[:, 0].astype(int)] + noise * rng.normal(size=len(X)), users), whole


def test_item_means_without_noise_are_item_means() -> None:
    rng = np.random.default_rng(0)
    effects, n = np.array([0.5, -0.5, 0.2, -0.2]), 300
    users, items = np.repeat(np.arange(n), 4), np.tile(np.arange(4), n)
    y = 3.0 + effects[items] + 0.01 * rng.normal(size=4 * n)
    found = ItemMeans(math.inf).fit(Cohort.from_arrays(items[:, None].astype(float), y, users), 4, 1.0, 5.0)
    np.testing.assert_allclose(found.effects, effects, atol=0.03)
    assert np.abs(found.predict(users, items) - y).max() < 0.35  # levels are shrunk a little


def test_popularity_counts() -> None:
    users, items = np.repeat(np.arange(100), 2), np.tile([0, 1], 100)
    items[::4] = 2
    counted = private_popularity(Cohort.from_arrays(items[:, None].astype(float), np.zeros(200), users), 4, math.inf)
    np.testing.assert_allclose(counted, np.bincount(items, minlength=4) / math.sqrt(2.0), rtol=1e-5)


def test_alternating_least_squares_completes_a_low_rank_matrix() -> None:
    data, whole = cohort()
    exact = PrivateALS(2, math.inf, rounds=10, penalty=0.5, random_state=0).fit(data, 12, 1.0, 5.0)
    means = ItemMeans(math.inf).fit(data, 12, 1.0, 5.0)
    users, items = np.divmod(np.arange(whole.size), 12)
    errors = [np.sqrt(np.mean(np.square(one.predict(users, items) - whole[users, items]))) for one in (exact, means)]
    assert errors[0] < 0.5 * errors[1]


def test_private_versions_run_within_their_budget() -> None:
    data, _ = cohort(200)
    for kind in (PrivateALS, PrivateSGD):
        found = kind(2, 4.0, random_state=0).fit(data, 12, 1.0, 5.0)
        assert np.isfinite(found.predict(np.arange(12), np.arange(12))).all()


@pytest.mark.parametrize("gradient", [True, False])
def test_one_users_factor_sums_are_bounded_and_reach_the_clip(gradient: bool) -> None:
    rng = np.random.default_rng(0)
    query = FactorSums(Catalogue(rng.normal(size=(5, 2)), np.zeros(5), -2.0, 2.0), np.ones(5), 0.1, gradient)
    users = [
        (np.arange(5.0)[:, None], np.array([9.0, -9.0, 9.0, 9.0, -9.0])),
        (np.full((50, 1), 2.0), np.full(50, 2.0)),
        (np.array([[1.0], [np.nan], [7.0]]), np.array([2.0, 1.0, 1.0])),
    ]
    sums = [clipped(query, user, 1e-3) for user in users]
    assert all(np.linalg.norm(one) <= 1e-3 for one in sums)
    assert max(np.linalg.norm(one) for one in sums) > 0.999e-3
    assert max(np.linalg.norm(a - b) for a, b in itertools.combinations(sums, 2)) <= 2e-3


def test_users_factors_are_ridge_solutions() -> None:
    rng = np.random.default_rng(0)
    catalogue = Catalogue(rng.normal(size=(6, 2)), rng.normal(size=6), -2.0, 2.0)
    codes, values = np.arange(6), rng.normal(size=6)
    found = factors_of(codes, values, np.array([0, 6]), catalogue, 0.7)[0]
    V = catalogue.table
    np.testing.assert_allclose(found, np.linalg.solve(V.T @ V + 0.7 * np.eye(2), V.T @ (values - catalogue.effects)))
