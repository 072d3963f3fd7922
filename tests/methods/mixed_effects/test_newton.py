"""Standard errors of the population's weights: what the noise hides is unknown, and said to be."""

from __future__ import annotations

import numpy as np

from tacitly.methods.mixed_effects.newton import Newton


def rounds(slope_noise: float, noise: float = 0.01) -> Newton:
    """Return two rounds about two weights that are both 1; the second weight's slope is a tenth of the first's."""
    newton, slope, at = Newton(2, 1000), np.diag([1.0, 0.1]), np.zeros(2)
    for _ in range(2):
        at = newton.add(slope, slope @ (1.0 - at), at, noise, slope_noise, np.full(2, 1e-6))
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
