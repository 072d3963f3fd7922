"""Newton fits of a few users at once with array operations: as :mod:`tacitly.heads.newton`, without compiled code.

The steps are the same and in the same order, so the two agree up to rounding. Rows are processed entry by entry and
summed user by user, so a fit is a function of its user's rows alone. No private number raises an exception; a number
that is not finite affects only its user's fit.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from tacitly.arrays import Array, Offsets, Rows, per_user, rows_times
from tacitly.heads.losses import HINGE, LARGEST_SCORE, LOGISTIC, POISSON, SOFTMAX
from tacitly.heads.newton import LONGEST, SWEEPS


class Projected(NamedTuple):
    """Rows projected on public directions, with a column of ones for intercepts."""

    rows: Array
    means: Array  # subtracted from the rows if there are intercepts; one row per user
    sizes: Array  # mean squares, one per user


class Fits(NamedTuple):
    """Parameters (users × numbers × classes) and the scores that they give each row (classes × rows)."""

    parameters: Array
    scores: Array


def project(X: Rows, offsets: Offsets, directions: Array, *, intercept: bool) -> Projected:
    """Return rows projected on the columns of ``directions``; with an intercept, their user's means are subtracted."""
    counts, rows = np.diff(offsets), rows_times(X, directions)
    present = np.maximum(counts, 1)
    means = per_user(rows, offsets) / present[:, None]
    if intercept:
        rows = rows - np.repeat(means, counts, axis=0)
    sizes = per_user(np.square(rows), offsets).sum(axis=1) / (present * directions.shape[1])
    return Projected(np.column_stack([rows, np.ones(len(rows))]) if intercept else rows, means, sizes)


def fit_each(rows: Array, targets: Array, offsets: Offsets, loss: int, penalties: Array, before: Fits) -> Fits:
    """Improve the fits of all users; ``penalties`` has one row per user."""
    parameters, scores, counts = before.parameters.copy(), before.scores.copy(), np.diff(offsets)
    for _ in range(SWEEPS):
        for a in range(parameters.shape[2]):
            first, second = slopes(loss, targets, scores, a)
            rights = per_user(rows * first[:, None], offsets) - penalties * parameters[:, :, a]
            factor, usable = factors(rows, second, offsets, penalties)
            steps = np.where(usable[:, None], _solved(factor, rights), 0.0)
            moved = _along(rows, steps, counts)
            longest = _largest(np.abs(moved), offsets)
            parts = np.where(longest <= LONGEST, 1.0, LONGEST / np.where(longest > 0, longest, 1.0))
            scores[a] += np.repeat(parts, counts) * moved
            parameters[:, :, a] += parts[:, None] * steps
        if parameters.shape[2] > 1:  # the mean over classes changes no probability, and is zero at the minimum
            parameters -= parameters.mean(axis=2, keepdims=True)
            scores -= scores.mean(axis=0)
    return Fits(parameters, scores)


def slopes(loss: int, targets: Array, scores: Array, a: int) -> tuple[Array, Array]:
    """Return minus the first derivative, and the second derivative, of every row's loss in its score a."""
    score = scores[a]
    if loss == LOGISTIC:
        chance = 1.0 / (1.0 + np.exp(-score))
        return targets - chance, chance * (1.0 - chance)
    if loss == HINGE:
        sign = 2.0 * targets - 1.0
        short = 1.0 - sign * score
        return np.where(short > 0.0, sign * short, 0.0), (short > 0.0).astype(np.float64)
    if loss == POISSON:
        rate = np.exp(np.minimum(score, LARGEST_SCORE))
        return targets - rate, rate
    shares = np.exp(scores - scores.max(axis=0))
    chance = shares[a] / shares.sum(axis=0)
    return (targets == a) - chance, chance * (1.0 - chance)


def losses(loss: int, targets: Array, scores: Array) -> Array:
    """Return every row's loss, up to a term that depends on the target only."""
    if loss == SOFTMAX:
        largest, found = scores.max(axis=0), np.zeros(len(targets))
        total = np.log(np.exp(scores - largest).sum(axis=0)) + largest
        for a, own in enumerate(scores):
            found = np.where(targets == a, total - own, found)
        return found
    score = scores[0]
    if loss == LOGISTIC:
        out = np.maximum(score, 0.0) + np.log1p(np.exp(-np.abs(score))) - targets * score
    elif loss == HINGE:
        out = 0.5 * np.square(np.maximum(0.0, 1.0 - (2.0 * targets - 1.0) * score))
    else:
        out = np.exp(np.minimum(score, LARGEST_SCORE)) - targets * score
    return np.asarray(out, dtype=np.float64)


def left_out(rows: Array, targets: Array, offsets: Offsets, loss: int, penalties: Array, fits: Fits) -> Array:
    """Return each user's sum of losses of rows under fits that leave them out, to first order."""
    without, counts, found = fits.scores.copy(), np.diff(offsets), np.ones(len(offsets) - 1, dtype=bool)
    for a in range(len(without)):
        first, second = slopes(loss, targets, fits.scores, a)
        factor, usable = factors(rows, second, offsets, penalties)
        found &= usable
        leverage = _leverages(rows, factor, counts)
        without[a] -= first * leverage / np.maximum(1.0 - second * leverage, 1e-3)
    return np.where(found, per_user(losses(loss, targets, without), offsets), math.inf)


def factors(rows: Array, weights: Array, offsets: Offsets, penalties: Array) -> tuple[Array, Array]:
    """Return Cholesky factors of each user's Hessian, with reciprocal diagonals, and which of them exist."""
    q = rows.shape[1]
    factor, usable = np.zeros((len(penalties), q, q)), np.ones(len(penalties), dtype=bool)
    for b in range(q):
        weighted = rows[:, b] * weights
        column = per_user(weighted[:, None] * rows[:, b:], offsets)
        column[:, 0] += penalties[:, b]
        column -= np.einsum("np,nip->ni", factor[:, b, :b], factor[:, b:, :b])
        usable &= np.isfinite(column[:, 0]) & (column[:, 0] > 0.0)
        inverse = 1.0 / np.sqrt(np.where(usable, column[:, 0], 1.0))
        factor[:, b:, b] = column * inverse[:, None]
        factor[:, b, b] = inverse
    return factor, usable


def _solved(factor: Array, rights: Array) -> Array:
    out, q = rights.copy(), rights.shape[1]
    for b in range(q):
        out[:, b] = (out[:, b] - (factor[:, b, :b] * out[:, :b]).sum(axis=1)) * factor[:, b, b]
    for b in range(q - 1, -1, -1):
        out[:, b] = (out[:, b] - (factor[:, b + 1 :, b] * out[:, b + 1 :]).sum(axis=1)) * factor[:, b, b]
    return out


def _leverages(rows: Array, factor: Array, counts: Offsets) -> Array:
    """Return pᵀH⁻¹p = ‖L⁻¹p‖² of every row."""
    parts = np.zeros_like(rows)
    for b in range(rows.shape[1]):
        own = np.repeat(factor[:, b, : b + 1], counts, axis=0)
        parts[:, b] = (rows[:, b] - (own[:, :b] * parts[:, :b]).sum(axis=1)) * own[:, b]
    return np.asarray(np.square(parts).sum(axis=1))


def _along(rows: Array, steps: Array, counts: Offsets) -> Array:
    out = np.zeros(len(rows))
    for column, step in zip(rows.T, steps.T, strict=True):
        out += column * np.repeat(step, counts)
    return out


def _largest(values: Array, offsets: Offsets) -> Array:
    """Return each user's largest value; zero for a user without rows."""
    if len(offsets) > 1 and (offsets[1:] > offsets[:-1]).all():
        return np.asarray(np.maximum.reduceat(values, offsets[:-1]))
    out, present = np.zeros(len(offsets) - 1), np.flatnonzero(np.diff(offsets))
    if len(present):
        out[present] = np.maximum.reduceat(values, offsets[present])
    return out
