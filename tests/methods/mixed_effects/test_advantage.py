"""Whether the prior helps: what users lose or gain in squared error decides, and only users who can compare."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import pytest

import tacitly
from tacitly.data.cohort import Cohort
from tacitly.methods.mixed_effects.advantage import _WEIGHTS, NOMINAL, REACHED, Advantage, four
from tacitly.methods.mixed_effects.posterior import Coordinates, Prior

UNITS = Coordinates(np.zeros(0), np.zeros(0), 0.0, 1.0)


def test_two_rows_per_user_show_the_advantage_of_the_right_prior() -> None:
    """Own means of two rows lose a third of the error; a ratio per user would show next to nothing of that."""
    rng = np.random.default_rng(0)
    n, prior = 20_000, Prior(np.zeros(1), 0.5 * np.eye(1), 1.0)
    y = np.repeat(0.5 * rng.normal(size=n), 2) + rng.normal(size=2 * n)
    found = Advantage(UNITS, prior).contributions(np.zeros((2 * n, 0)), y, np.arange(0, 2 * n + 1, 2)).mean(axis=0)
    assert (found[2] / _WEIGHTS[2]) / (found[3] / _WEIGHTS[3]) > 0.2
    assert Advantage.helps(found, 0.05)


def test_a_wrong_prior_is_seen() -> None:
    rng = np.random.default_rng(1)
    y = np.repeat(rng.normal(size=500), 4) + 0.1 * rng.normal(size=2000)
    wrong = Prior(np.array([5.0]), 0.1 * np.eye(1), 0.05)
    found = Advantage(UNITS, wrong).contributions(np.zeros((2000, 0)), y, np.arange(0, 2001, 4)).mean(axis=0)
    assert not Advantage.helps(found, 0.02)


def test_a_small_advantage_is_not_taken_for_none_by_the_noise() -> None:
    """A twentieth of the noise variance, seen with an error as large, as with 600 users at ε = 1.

    20,000 draws fall back in 1.6 % of cases (a symmetric rule: 16 %); 2.5 % is 10 standard errors away.
    """
    errors = 0.05 * np.random.default_rng(4).normal(size=20_000)
    released = (np.array([0.0, 0.0, 0.05 + error, 1.0]) * _WEIGHTS for error in errors)
    assert np.mean([not Advantage.helps(found, 0.05 * _WEIGHTS[2]) for found in released]) < 0.025


def test_users_with_one_row_say_nothing_about_their_own_means() -> None:
    sent = four(np.zeros((2, 2)), np.array([0.0, 8.0]), np.array([9.0, 2.0]), np.array([1.0, 4.0]), 1.0) / _WEIGHTS
    np.testing.assert_allclose(sent[:, 2:], [[0.0, 0.0], [0.75, 1.0]])


def test_a_user_whom_the_prior_predicts_far_better_than_the_own_mean_attains_the_bound() -> None:
    """No share is above one half from the middle, so the norm is half of what counts from zero would need."""
    query = Advantage(Coordinates(np.zeros(1), np.ones(1), 0.0, 1.0), Prior(np.array([0.0, 3.0]), 0.1 * np.eye(2), 0.1))
    x = np.array([[-2.0], [-1.0], [1.0], [2.0]])
    norm = np.linalg.norm(query.contribution(x, 3.0 * x[:, 0]))
    assert 0.999 * query.bound <= norm <= query.bound
    assert query.bound < 0.62


def test_whether_a_row_is_far_out_does_not_depend_on_whether_others_have_rows() -> None:
    """Of the only row of a block a last bit was another: at the edge that moved the contribution by 0.4 clips."""
    rng, size = np.random.default_rng(0), 6
    units = Coordinates(np.zeros(size - 1), np.ones(size - 1), 0.0, 1.0)
    for _ in range(10):
        query = Advantage(units, Prior(rng.normal(size=size), rng.normal(size=(size, size)), 1.3))
        X, low, high = rng.normal(size=(4, size - 1)), 0.0, 1e4

        def sent(target: float, rows: int, query: Advantage = query, X: np.ndarray = X) -> np.ndarray:
            y = np.append(target, np.zeros(rows - 1))
            return query.contributions(X[:rows], y, np.array([0, 1, rows]))[0]

        near = sent(low, 1)
        while np.nextafter(low, high) < high:
            middle = (low + high) / 2.0
            low, high = (middle, high) if np.array_equal(sent(middle, 1), near) else (low, middle)
        for target in low * (1.0 + np.arange(-20, 21) * 2.0**-52):
            np.testing.assert_array_equal(sent(target, 4), sent(target, 1))


def test_a_user_without_rows_sends_nothing() -> None:
    sent = four(np.zeros((1, 2)), np.zeros(1), np.zeros(1), np.zeros(1), 1.0)
    np.testing.assert_array_equal(sent, np.zeros((1, 4)))


def test_a_noisy_count_of_few_users_is_weighed_against_what_is_expected() -> None:
    """20,000 noisy releases about populations as spread as expected: calibrated shares are nearer to a tenth.

    The root mean square after calibration is below 0.6 of that before in expectation; 0.7 is 50 standard errors away.
    """
    rng, noise = np.random.default_rng(3), 0.014
    scales = np.exp(rng.normal(size=20_000) * 0.1)
    law = NormalDist()
    before, after = [], []
    for scale, error in zip(scales, noise * rng.normal(size=(len(scales), 4)), strict=True):
        outside = [2.0 - 2.0 * law.cdf(reach / scale) for reach in REACHED]
        released = np.array([outside[0] - 0.5, outside[1] - 0.5, 0.3, 1.0]) * _WEIGHTS + error
        before.append(outside[0] - 0.1)
        after.append(1.9 - 2.0 * law.cdf(NOMINAL * Advantage.inflation(released, noise) / scale))
    assert np.sqrt(np.mean(np.square(after))) < 0.7 * np.sqrt(np.mean(np.square(before)))


@pytest.mark.filterwarnings("ignore:not certified")
def test_with_one_row_per_user_the_population_is_used() -> None:
    """Nobody can compare: that is no reason to predict with the one row that everybody has."""
    rng = np.random.default_rng(2)
    x = rng.normal(size=(600, 1))
    cohort = Cohort.from_arrays(x, 3.0 * x[:, 0] + rng.normal(size=600), np.arange(600))
    model = tacitly.MixedEffects(epsilon=float("inf")).fit(cohort)
    assert model.helps_
    assert abs(model.predict([[2.0]])[0] - 6.0) < 0.5
