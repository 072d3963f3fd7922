"""The compiled half of :class:`~tacitly.methods.fedrep.queries.LossStep`: heads by Newton's method, and their steps."""

# Numba kernels are not typed.
# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from tacitly.arrays import Array, Offsets, Rows
from tacitly.heads.glm import INTERCEPT_PENALTY
from tacitly.heads.losses import Loss
from tacitly.heads.newton import fit_newton, project_user, slopes
from tacitly.heads.newton_arrays import Fits, fit_each, project
from tacitly.heads.newton_arrays import slopes as slopes_of
from tacitly.privacy.clipping import LEAST
from tacitly.simd.lazy_njit import njit

PENALTY = 1.0
"""Ridge of a round's heads: each direction's part of the score has prior variance one. Chosen by reasoning: the labels
of a few rows cannot distinguish larger scores, and the step uses only a head's direction and relative size."""

LEAST_CURVATURE = 1e-6
"""Lower bound on a user's mean curvature: limits the correction of a user whose rows are all classified with certainty.
"""

LEAST_HEAD = 1e-6
"""Share of the score below which a head is rounding error. A user with one class and an intercept has a zero head;
scaling its rounding error to norm one would add noise."""

_kernel: Any = njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc", "contract"})


class RoundFits(NamedTuple):
    """Heads of several users as a round fits them, and derivatives of the loss at every row."""

    heads: Array  # users × k × classes
    levels: Array  # mean squares of projected rows, one per user
    slopes: Array  # minus the first derivatives of every row's loss in its scores
    curvatures: Array  # the second derivatives


def round_fits(X: Rows, targets: Array, offsets: Offsets, directions: Array, loss: Loss, intercept: bool) -> RoundFits:
    """Fit heads as a round does, by array operations: for one user, or a few."""
    rows, _, levels = project(X, offsets, directions, intercept=intercept)
    (n, k), columns = (len(offsets) - 1, directions.shape[1]), loss.columns
    penalties = np.repeat(PENALTY * levels[:, None], rows.shape[1], axis=1)
    penalties[:, k:] = INTERCEPT_PENALTY
    start = Fits(np.zeros((n, rows.shape[1], columns)), np.zeros((columns, len(rows))))
    heads, scores = fit_each(rows, targets, offsets, loss.code, penalties, start)
    both = [slopes_of(loss.code, targets, scores, a) for a in range(columns)]
    first, second = (np.column_stack(each) for each in zip(*both, strict=True))
    return RoundFits(heads[:, :k], levels, first, second)


@_kernel
def add_loss_steps(
    X, y, offsets, size, directions, basis, scale, across, gains, metric, c, loss, columns, intercept, weight, step,
    second,
):  # fmt: skip
    """Add every user's contribution, of norm ``weight``, to its block of ``size`` users."""
    k, d = directions.shape
    q = k + (1 if intercept else 0)
    G, D, S, mean = np.empty((columns, d)), np.empty((k, d)), np.empty((k, k)), np.empty(d)
    penalties = np.empty(q)
    for i in range(offsets.size - 1):
        first, last = offsets[i], offsets[i + 1]
        m, block = last - first, i // size
        if m == 0:
            continue
        P, targets = np.empty((m, q)), np.empty(m)
        level, _ = project_user(X, first, last, directions, intercept, P)
        if not (math.isfinite(level) and level > 0.0):
            continue
        for j in range(m):
            targets[j] = y[first + j]
        penalties[:] = PENALTY * level
        if intercept:
            penalties[k] = INTERCEPT_PENALTY
        V, scores = np.zeros((q, columns)), np.zeros((m, columns))
        fit_newton(P, targets, loss, penalties, V, scores)
        if not _head_size(V, k) * level > LEAST_HEAD * LEAST_HEAD:
            continue
        energy = _energy(X, first, last, scale, intercept, mean)
        curvature = _corrections(X, first, last, targets, scores, loss, mean, G)
        length = 1.0 / (m * energy * max(curvature, LEAST_CURVATURE))
        _whiten(G, scale, across, gains, length)
        _project_off(G, basis)
        norm = _products(V, metric, G, c, D, S)
        if not (math.isfinite(norm) and norm * norm > LEAST):
            continue
        factor = weight / norm
        for b in range(k):
            for e in range(d):
                step[block, b, e] += factor * D[b, e]
            for e in range(k):
                second[block, b, e] += factor * S[b, e]


@_kernel
def _head_size(V, k):
    size = 0.0
    for b in range(k):
        for a in range(V.shape[1]):
            size += V[b, a] * V[b, a]
    return size


@_kernel
def _energy(X, first, last, scale, centered, mean):
    """Return the mean squared feature in whitening's scale; if centered, around the user's means (``mean``)."""
    d, m = X.shape[1], last - first
    mean[:] = 0.0
    if centered:
        for j in range(first, last):
            for e in range(d):
                mean[e] += X[j, e] / m
    size = 0.0
    for j in range(first, last):
        for e in range(d):
            value = (X[j, e] - mean[e]) * scale[e]
            size += value * value
    return size / (m * d)


@_kernel
def _corrections(X, first, last, targets, scores, loss, mean, G):
    """Write XᵀR to G, one row per class; return the mean curvature."""
    d, c = X.shape[1], scores.shape[1]
    G[:] = 0.0
    curvature = 0.0
    for j in range(last - first):
        for a in range(c):
            slope, second = slopes(loss, targets, scores, j, a)
            # The scores of c classes have c - 1 degrees of freedom.
            curvature += second / max(1, c - 1)
            for e in range(d):
                G[a, e] += slope * (X[first + j, e] - mean[e])
    return curvature / (last - first)


@_kernel
def _whiten(G, scale, across, gains, length):
    d, r = G.shape[1], gains.size
    for a in range(G.shape[0]):
        for e in range(d):
            G[a, e] *= length * scale[e]
        # Directions are orthonormal, so adding a multiple of one does not change the products with the others.
        for p in range(r):
            dot = 0.0
            for e in range(d):
                dot += across[p, e] * G[a, e]
            for e in range(d):
                G[a, e] += gains[p] * dot * across[p, e]


@_kernel
def _project_off(G, basis):
    """Project each row off the basis: the ridge leaves a part there, which would not change the basis."""
    for a in range(G.shape[0]):
        for b in range(basis.shape[0]):
            dot = 0.0
            for e in range(G.shape[1]):
                dot += basis[b, e] * G[a, e]
            for e in range(G.shape[1]):
                G[a, e] -= dot * basis[b, e]


@_kernel
def _products(V, metric, G, c, D, S):
    """Write D = metric·V·G/c and S = (metric·V)(metric·V)ᵀ; return the norm of both together."""
    k, d = D.shape
    columns = V.shape[1]
    M = np.zeros((k, columns))
    for b in range(k):
        for p in range(k):
            for a in range(columns):
                M[b, a] += metric[b, p] * V[p, a]
    squared = 0.0
    for b in range(k):
        for e in range(d):
            value = 0.0
            for a in range(columns):
                value += M[b, a] * G[a, e]
            D[b, e] = value / c
            squared += D[b, e] * D[b, e]
        for e in range(k):
            value = 0.0
            for a in range(columns):
                value += M[b, a] * M[e, a]
            S[b, e] = value
            squared += value * value
    return math.sqrt(squared)
