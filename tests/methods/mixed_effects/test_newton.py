"""Standard errors of the population's weights: what the noise hides is unknown, and said to be."""

from __future__ import annotations

import numpy as np

from tacitly.arrays import Array
from tacitly.linalg import unpack_symmetric
from tacitly.methods.mixed_effects.newton import Newton, preconditioned


def rounds(slope_noise: float, noise: float = 0.01) -> Newton:
    """Return two rounds about two weights that are both 1; the second weight's slope is a tenth of the first's."""
    newton, slope, at = Newton(2, 1000), np.diag([1.0, 0.1]), np.zeros(2)
    for _ in range(2):
        at = newton.add(slope, slope @ (1.0 - at), at, noise, (slope_noise * np.eye(2), np.eye(2)), np.full(2, 1e-6))
    return newton


def test_a_slope_that_is_known_gives_small_errors() -> None:
    errors = np.sqrt(np.diag(rounds(0.001).covariance()))
    assert errors[0] < 0.2
    assert errors[1] < 0.5


def test_a_slope_that_noise_hides_says_nothing() -> None:
    """With a slope as uncertain as it is large, steps shrink to nothing: that must not look like knowledge."""
    errors = np.sqrt(np.diag(rounds(1.0, noise=1.0).covariance()))
    np.testing.assert_allclose(errors[1], 1.0, atol=0.05)  # the prior's


def test_without_any_round_errors_are_those_of_the_prior() -> None:
    np.testing.assert_allclose(Newton(3, 10).covariance(), np.eye(3))


def test_a_column_that_noise_hides_leaves_the_errors_of_others_alone() -> None:
    """Of a level that two users in a hundred have, noise hides the information: all errors were 2.5 times too large."""

    def errors(size: int) -> Array:
        released, metric = np.diag([0.4, 0.5, 0.5, 0.0][:size]), np.diag([0.8, 0.7, 0.6, 6.0][:size])
        _, slope, slope_noise = preconditioned(released, 0.03, metric)
        newton, at = Newton(size, 1000), np.zeros(size)
        for _ in range(5):
            at = newton.add(slope, slope @ (0.3 - at), at, 0.01, slope_noise, np.full(size, 1e-4))
        return np.asarray(np.sqrt(np.diag(newton.covariance())))

    assert (errors(4)[:3] < 1.5 * errors(3)).all()
    assert errors(4)[3] > 0.4


def test_the_variance_of_a_noisy_slope_times_a_step() -> None:
    """20,000 draws: the variance of each row is within eight standard errors of what the formula says."""
    rng = np.random.default_rng(0)
    left, right, step = rng.normal(size=(3, 3)), rng.normal(size=(3, 3)), rng.normal(size=3)
    drawn = np.array([left @ unpack_symmetric(one, 3) @ right @ step for one in rng.normal(size=(20_000, 6))])
    newton = Newton(3, 1000)
    newton.add(np.eye(3), np.zeros(3), np.zeros(3), 0.0, (left, right), np.full(3, 1e-12))
    precision, _, _, _ = newton._sums(step, np.zeros((3, 3)))
    added = 1.0 / (np.diag(precision) - 1.0) - 0.15**2 * float(step @ step) / 3.0
    np.testing.assert_allclose(added, drawn.var(axis=0), rtol=8.0 * np.sqrt(2.0 / 20_000))


def test_the_noise_of_a_slope_does_not_average_out_over_its_rounds() -> None:
    """Four rounds under one noisy information matrix know a weight hardly better than one; under four, better."""

    def error(matrices: int) -> float:
        factors = [(0.3 * np.eye(2), np.eye(2)) for _ in range(matrices)]
        newton = Newton(2, 1000)
        for number in range(4):
            newton.add(np.eye(2), np.full(2, 0.5), np.zeros(2), 1e-3, factors[number % matrices], np.full(2, 1e-9))
        return float(np.sqrt(newton.covariance()[0, 0]))

    assert error(1) > 1.4 * error(4)
