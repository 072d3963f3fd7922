"""Expected counts: the mean of a log-normal rate, but for rows so far out that nothing is known about their rates."""

from __future__ import annotations

import numpy as np

from tacitly.methods.mixed_effects.likelihoods import count_deviation, mean_response
from tacitly.methods.mixed_effects.posterior import Prior

PRIOR = Prior(np.zeros(2), np.diag([1.0, 0.5]), 0.5, "poisson")


def test_usual_rows_have_the_mean_of_a_log_normal_rate() -> None:
    np.testing.assert_allclose(mean_response(np.ones(2), np.array([0.0, 1.25]), PRIOR), np.exp([1.25, 1.875]))


def test_a_row_far_out_has_the_variance_of_a_usual_one() -> None:
    """Ten scales out a slope that varies by a half adds 25 to the variance, and would multiply a count by 268,000."""
    far, usual = np.array([25.0]), np.array([1.25])
    np.testing.assert_allclose(mean_response(np.ones(1), far, PRIOR), mean_response(np.ones(1), usual, PRIOR))
    np.testing.assert_allclose(count_deviation(np.ones(1), far, PRIOR), count_deviation(np.ones(1), usual, PRIOR))
