"""Users' own noise: people differ in how well they are predicted, and intervals follow."""

from __future__ import annotations

import numpy as np
import pytest

import tacitly
from tacitly.arrays import Array
from tacitly.methods.mixed_effects.advantage import NOMINAL, Advantage, left_out
from tacitly.methods.mixed_effects.own_noise import factors, reaches
from tacitly.methods.mixed_effects.posterior import Coordinates, Posteriors, Prior, posteriors

UNITS = Coordinates(np.zeros(2), np.ones(2), 0.0, 1.0)
PRIOR = Prior(np.array([0.3, -0.2, 0.5]), np.diag([1.0, 0.4, 0.2]), 0.5)


def misfit(found: Posteriors) -> float:
    return float(found.residuals[0] / PRIOR.noise + np.square(found.means[0]).sum())


def test_leaving_out_a_row_takes_the_square_of_its_left_out_residual_from_the_misfit() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(6, 2)), 2.0 * rng.normal(size=6)
    whole = posteriors(X, y, np.array([0, 6]), UNITS, PRIOR)
    residuals, _ = left_out(X, y, np.array([0, 6]), UNITS, PRIOR, whole)
    for row in range(6):
        kept = np.arange(6) != row
        rest = posteriors(X[kept], y[kept], np.array([0, 5]), UNITS, PRIOR)
        assert misfit(whole) - misfit(rest) == pytest.approx(residuals[row] ** 2, rel=1e-9)
        limit = reaches(np.array([misfit(whole)]), np.array([6.0]), np.array([abs(residuals[row])]))[0, 0]
        own = factors(np.array([misfit(rest)]), np.array([5.0]))[0]
        assert (residuals[row] ** 2 > limit) == (own < 1.0)


def test_shares_outside_are_counted_by_the_noise_of_each_user() -> None:
    """Rows ten times as noisy as the prior says are about as often outside as usual ones, not nearly always."""
    rng, n, m = np.random.default_rng(1), 2000, 20
    X = rng.normal(size=(n * m, 2))
    y = np.sqrt(10.0 * PRIOR.noise) * rng.normal(size=n * m)
    sent = Advantage(UNITS, PRIOR).contributions(X, y, np.arange(0, n * m + 1, m)).mean(axis=0)
    assert sent[0] + 0.5 < 0.25  # 0.55 by the prior's noise


def people(n: int = 1500) -> tuple[Array, Array, np.ndarray, Array]:
    """Those who have many rows are noisy, as restaurants of a chain are."""
    rng = np.random.default_rng(2)
    rows = np.where(rng.random(n) < 0.25, 40, 8)
    users, deviations = np.repeat(np.arange(n), rows), np.where(rows > 8, 3.0, 1.0) * np.exp(0.4 * rng.normal(size=n))
    x = rng.normal(size=(len(users), 1))
    y = rng.normal(size=n)[users] + x[:, 0] + deviations[users] * rng.normal(size=len(users))
    return x, y, users, deviations


@pytest.mark.filterwarnings("ignore:not certified")
def test_intervals_cover_quiet_and_noisy_users_alike() -> None:
    """One noise for all covered 0.78 of all rows, 0.99 of the rows of quiet users and 0.71 of those of noisy ones."""
    x, y, users, deviations = people()
    held = np.arange(len(users)) % 4 == 0
    model = tacitly.MixedEffects(epsilon=float("inf")).fit(x[~held], y[~held], users[~held])
    mean, std = model.predict(x[held], users[held], return_std=True)
    inside, noisy = np.abs(mean - y[held]) < NOMINAL * std, (deviations > np.median(deviations))[users[held]]
    assert 0.86 < inside.mean() < 0.92
    assert inside[noisy].mean() > 0.82
    assert inside[~noisy].mean() < 0.985


def test_a_user_without_rows_has_the_noise_of_the_population() -> None:
    assert factors(np.zeros(1), np.zeros(1))[0] == 1.0
