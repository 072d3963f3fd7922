"""Correct a variance between users by how well users' rows agree with smaller and larger ones: post-processing.

Users of classes release their mean gains in log evidence
(:class:`~tacitly.methods.mixed_effects.loss_queries.Evidences`). This module turns these noisy gains into the logarithm
of a factor of the variance, and says how uncertain it is.
"""

from __future__ import annotations

import math

import numpy as np

from tacitly.arrays import Array

_BESTS = np.linspace(-3.0, 3.0, 61)
_RELIABLE = np.geomspace(0.02, 0.95, 16)  # κ is small for two yes-or-no rows: a least κ of 0.1 inflated variances
_MISFIT = 0.01  # error of the formula of evidence, per unit of t


def corrected_log(gains: Array, noise: float, logs: Array, unknown: float, weights: int = 1) -> tuple[float, float]:
    """Return the posterior mean and variance of x, the logarithm of a corrected variance, from noisy evidence.

    ``gains`` are users' mean gains in log evidence if the variance v of ``weights`` weights is multiplied by eᵗ, for
    each t in ``logs``. Suppose that a user's rows measure each weight with an error, so that v is a share κ of the
    variance of the measurement, and that the right variance is v·eˣ. Then the mean gain per weight is

        −½ [log(1 + κ(eᵗ − 1)) + (1 + κ(eˣ − 1))·(1/(1 + κ(eᵗ − 1)) − 1)]

    (A parabola would bias the variance by a third: evidence falls faster above its maximum than below.) The prior of x
    is normal with variance ``unknown``; log κ is uniform, with smaller κ the more weights there are. Bayes' rule is
    applied on a grid. If noise hides the gains, x stays near zero.

    >>> seen = np.array([-0.036, -0.1215])  # κ = 0.4, and the variance is right
    >>> abs(corrected_log(seen, 0.001, np.log([0.25, 4.0]), 1.0)[0]) < 0.15
    True
    >>> abs(corrected_log(seen, 10.0, np.log([0.25, 4.0]), 1.0)[0]) < 0.01
    True
    """
    reliable = _RELIABLE / math.sqrt(weights)
    tried = 1.0 + reliable[:, None] * np.expm1(logs)
    right = 1.0 + reliable * np.expm1(_BESTS)[:, None]
    expected = -0.5 * weights * (np.log(tried) + right[:, :, None] * (1.0 / tried - 1.0))
    off = (gains - expected) / np.hypot(noise, _MISFIT * np.abs(logs))
    chances = -0.5 * np.square(off).sum(axis=2) - 0.5 * np.square(_BESTS)[:, None] / unknown
    chances = np.exp(chances - chances.max()).sum(axis=1)
    chances /= chances.sum()
    best = float(chances @ _BESTS)
    return best, float(chances @ np.square(_BESTS - best))
