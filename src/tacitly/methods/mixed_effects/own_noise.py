"""How noisy a user's own rows are: a factor for variances of predictions, computed locally at no privacy cost.

Some users are predicted better than others, which is most visible for users with many rows. So user i's covariance is
τᵢ(ZSZᵀ + s²I), where 1/τᵢ has a gamma distribution with mean 1 and :data:`FREEDOM` degrees of freedom: rows jointly
follow a multivariate t distribution (Pinheiro, Liu and Wu 2001). Posterior means of weights do not depend on τᵢ. Given
a user's m rows, with

    Q = rᵀ(ZSZᵀ + s²I)⁻¹r = ‖y − Zw‖²/s² + ‖u‖²     (r = y − Zw̄; at the posterior mean w, u in whitened coordinates),

whose mean is m under the prior, 1/τᵢ has the mean (ν + m)/(ν + Q), and the inverse of this mean is the factor. Leaving
out a row with the standardised left-out residual t reduces Q by exactly t². So intervals can be tested (and calibrated,
by :class:`~tacitly.methods.mixed_effects.advantage.Advantage`) without fitting again.
"""

from __future__ import annotations

from tacitly.arrays import Array

FREEDOM = 4.0
"""Degrees of freedom ν of users' own noise: public, and the same for all tables.

Logarithms of variances then have a standard deviation of 0.8. Where all users are alike it costs 2 % of the score of
intervals from five rows, and less from more; where they differ much, as with sums of money, it saves a third.
"""


def factors(misfits: Array, rows: Array) -> Array:
    """Return the factors of users with these Q and numbers of rows; 1 without rows.

    >>> import numpy as np
    >>> factors(np.array([0.0, 5.0, 50.0]), np.array([0.0, 5.0, 5.0]))
    array([1., 1., 6.])
    """
    return (FREEDOM + misfits) / (FREEDOM + rows)


def reaches(misfits: Array, rows: Array, reached: Array) -> Array:
    """Return the t² of a row that lies ``reached`` deviations out, given the factor of the user's other rows.

    t² > q²·(ν + Q − t²)/(ν + m − 1), solved for t²: one row per user, one column per q.

    >>> import numpy as np
    >>> reaches(np.array([5.0]), np.array([5.0]), np.array([2.0]))  # 3 > 4·(4 + 5 − 3)/8
    array([[3.]])
    """
    squares = reached * reached
    return squares * (FREEDOM + misfits)[:, None] / (FREEDOM + rows[:, None] - 1.0 + squares)
