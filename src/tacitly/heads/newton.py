"""Ridge fits of small generalised linear models by Newton's method, compiled, for one user at a time.

Parameters V (q×c) on projected rows P (m×q; the last column may be ones) minimise Σ loss + Σ_b penalty_b V_b²/2.
Classes are updated in turn, each with its own Hessian (with one column this is Newton's method). Steps are limited so
that no score changes by more than two, which prevents overshooting from distant starts and on separable rows. The
number of sweeps is fixed, so the running time depends on the number of rows only, not on their values.
"""

# Numba-compiled functions have no types that mypy knows.
# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tacitly.heads.losses import HINGE, LARGEST_SCORE, LOGISTIC, POISSON
from tacitly.simd.lazy_njit import njit
from tacitly.simd.small_solves import cholesky_solve

SWEEPS = 12
LONGEST = 2.0  # largest change of a score in one step

_kernel: Any = njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc", "contract"})


@_kernel
def slopes(loss, targets, scores, j, a):
    """Return minus the first derivative, and the second derivative, of row j's loss in its score a."""
    score, target = scores[j, a], targets[j]
    if loss == LOGISTIC:
        chance = 1.0 / (1.0 + math.exp(-score))
        return target - chance, chance * (1.0 - chance)
    if loss == HINGE:
        sign = 2.0 * target - 1.0
        short = 1.0 - sign * score
        return (sign * short, 1.0) if short > 0.0 else (0.0, 0.0)
    if loss == POISSON:
        rate = math.exp(min(score, LARGEST_SCORE))
        return target - rate, rate
    largest = scores[j, 0]
    for b in range(1, scores.shape[1]):
        largest = max(largest, scores[j, b])
    total = 0.0
    for b in range(scores.shape[1]):
        total += math.exp(scores[j, b] - largest)
    chance = math.exp(score - largest) / total
    return (1.0 if target == a else 0.0) - chance, chance * (1.0 - chance)


@_kernel
def loss_of(loss, target, score):
    """Return the loss of one row with one score, up to a term that depends on the target only."""
    if loss == LOGISTIC:
        return max(score, 0.0) + math.log1p(math.exp(-abs(score))) - target * score
    if loss == HINGE:
        return 0.5 * max(0.0, 1.0 - (2.0 * target - 1.0) * score) ** 2
    return math.exp(min(score, LARGEST_SCORE)) - target * score


@_kernel
def fit_newton(P, targets, loss, penalties, V, scores):
    """Improve V and the scores P V in place."""
    m, q = P.shape
    H, right, moved = np.empty((q, q)), np.empty(q), np.empty(m)
    for _ in range(SWEEPS):
        for a in range(V.shape[1]):
            hessian(P, targets, scores, loss, a, penalties, V, H, right)
            if not cholesky_solve(H, right, q):
                continue
            longest = 0.0
            for j in range(m):
                value = 0.0
                for b in range(q):
                    value += P[j, b] * right[b]
                moved[j] = value
                longest = max(longest, abs(value))
            part = 1.0 if longest <= LONGEST else LONGEST / longest
            for j in range(m):
                scores[j, a] += part * moved[j]
            for b in range(q):
                V[b, a] += part * right[b]
        if V.shape[1] > 1:
            _center_classes(V)
            _center_classes(scores)


@_kernel
def _center_classes(rows):
    """Subtract the mean over classes. This changes no probability, and the mean is zero at the minimum."""
    for j in range(rows.shape[0]):
        mean = 0.0
        for a in range(rows.shape[1]):
            mean += rows[j, a] / rows.shape[1]
        for a in range(rows.shape[1]):
            rows[j, a] -= mean


@_kernel
def hessian(P, targets, scores, loss, a, penalties, V, H, right):
    """Write the lower triangle of the Hessian in class a, and minus the gradient."""
    m, q = P.shape
    H[:] = 0.0
    for b in range(q):
        H[b, b] = penalties[b]
        right[b] = -penalties[b] * V[b, a]
    for j in range(m):
        first, second = slopes(loss, targets, scores, j, a)
        for b in range(q):
            right[b] += first * P[j, b]
            for e in range(b + 1):
                H[b, e] += second * P[j, b] * P[j, e]


@_kernel
def project_user(X, first, last, directions, intercept, P):
    """Write a user's projected rows to P; with an intercept, subtract their means and append a column of ones.

    Returns the mean square of the projected rows (penalties are relative to it) and the means. Rows are processed in a
    fixed order, so that one user's result does not depend on how many rows others have.
    """
    k, d, m = directions.shape[0], directions.shape[1], last - first
    means = np.zeros(k)
    for j in range(m):
        for b in range(k):
            dot = 0.0
            for e in range(d):
                dot += X[first + j, e] * directions[b, e]
            P[j, b] = dot
            means[b] += dot / m
    size = 0.0
    for j in range(m):
        for b in range(k):
            if intercept:
                P[j, b] -= means[b]
            size += P[j, b] * P[j, b]
        if intercept:
            P[j, k] = 1.0
    return size / (m * k), means
