"""The user's fit for low rank plus sparse, compiled: weights on the basis and a few coordinates of one's own.

Given a public basis U, a user wants w and a k-sparse b with y ≈ X(Uw + b). Paper 004 (Algorithm 2) steps along the
gradient and keeps what is larger than a threshold Δ that shrinks with error bounds nobody knows. Here Δ is the k-th
largest candidate, so it needs no bounds and shrinks by itself; and after every step the chosen coordinates and w are
fitted together by least squares, so that a right support is exact at once (hard thresholding pursuit):

1. grow: in ``stages`` equal parts, add the coordinates most correlated with what is left;
2. swap: keep the k largest of b + gradient, fit again, until nothing changes or ``swaps`` are used up.

The best fit seen is kept. Candidates are compared in units of ``scale`` (one over each feature's size), so that nothing
depends on units. One user at a time and in a fixed order: nobody's fit depends on anybody else, to the last bit.
"""

# What Numba compiles has no types that mypy knows.
# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

from tacit.algorithms.kernels import combine_rows, project_rows
from tacit.compiled import cholesky_solve

_RIDGE = 1e-12  # of each column's own square: keeps copies of one column solvable, changes nothing else
AHEAD = 1 << 16  # bytes ahead of the rows in work to ask memory for

kernel: Any = njit(nogil=True, cache=True, fastmath={"reassoc", "contract"}, error_model="numpy")


@kernel
def affordable(rows, fixed, wanted):  # pragma: no cover
    """Count the coordinates a user with so many rows can tell apart: one for two rows that ``fixed`` columns leave."""
    return max(0, min(wanted, (rows - fixed) // 2))


@kernel
def fit_user(  # pragma: no cover
    X, first, last, y, basis, shared, intercept, scale, k, stages, swaps, Z, support, coefficients, left, small, rows
):
    """Fit one user; return how many coordinates were chosen (−1 where there is no fit).

    ``basis`` is padded, directions as rows; ``shared`` fixes the only weight at one. On return ``support`` holds the
    coordinates, ``coefficients`` the weights, the intercept (if any) and the coordinates' values, ``left`` the
    residual, rows[0] its correlation Xᵀe with every feature. ``Z`` (columns as rows, of the fit), ``small`` (residual
    in the rows' precision) are room to work in.
    """
    m, d, r = last - first, X.shape[1], coefficients.size - support.size - intercept
    top = basis.shape[0]
    project_rows(X, first, last, d, basis, Z, 0, AHEAD)
    target = Z[top]
    for j in range(m):
        target[j] = y[first + j] - (Z[0, j] if shared else 0.0)
    columns = np.empty(r + intercept + k, dtype=np.int64)
    for b in range(r):
        columns[b] = b
    if intercept:
        columns[r] = top + 1
        Z[top + 1, :m] = 1.0
    fixed = r + intercept
    for s in range(k):
        columns[fixed + s] = top + 2 + s
    gram, right, system = np.empty((fixed + k, fixed + k)), np.empty(fixed + k), np.empty((fixed + k, fixed + k))
    for b in range(fixed):
        _correlate(Z, columns, b, m, target, gram, right)

    size, best, best_size = 0, math.inf, 0
    best_support = np.empty(k, dtype=np.int64)
    score = np.empty(d)
    _solve(Z, columns, fixed, m, target, gram, right, system, coefficients, left, small)
    combine_rows(X, first, last, small, 0, rows, 0)
    stages = min(stages, k)
    for stage in range(stages + swaps):
        if k == 0:
            break
        growing = stage < stages
        for a in range(d):
            score[a] = rows[0, a] * scale[a]
        if growing:
            for s in range(size):
                score[support[s]] = 0.0
            wanted = (k * (stage + 1) + stages - 1) // stages
        else:
            for s in range(size):
                score[support[s]] += coefficients[fixed + s] * m / scale[support[s]]
            wanted = k
        before = size
        if growing:
            size = _largest(score, wanted - size, support, size)
            changed = size > before
            for s in range(before, size):
                _fetch_column(X, first, last, support[s], Z[top + 2 + s])
                _correlate(Z, columns, fixed + s, m, target, gram, right)
        else:
            candidates = np.empty(wanted, dtype=np.int64)
            changed = _largest(score, wanted, candidates, 0) == size == wanted
            changed = changed and _exchange(
                X, first, last, candidates, support, Z, top + 2, columns, fixed, m, target, gram, right
            )
        if not changed:
            break
        error = _solve(Z, columns, fixed + size, m, target, gram, right, system, coefficients, left, small)
        if not growing or stage == stages - 1:
            if error < best:
                best, best_size = error, size
                best_support[:size] = support[:size]
            elif error > best:
                size = best_size
                for s in range(size):
                    support[s] = best_support[s]
                    _fetch_column(X, first, last, support[s], Z[top + 2 + s])
                    _correlate(Z, columns, fixed + s, m, target, gram, right)
                _solve(Z, columns, fixed + size, m, target, gram, right, system, coefficients, left, small)
                combine_rows(X, first, last, small, 0, rows, 0)
                break
        combine_rows(X, first, last, small, 0, rows, 0)
    return size


@kernel
def _fetch_column(X, first, last, feature, out):  # pragma: no cover
    for j in range(last - first):
        out[j] = X[first + j, feature]


@kernel
def _correlate(Z, columns, c, m, target, gram, right):  # pragma: no cover
    """Write the inner products of column c with all before it, itself and the target (and the mirror ones)."""
    row = Z[columns[c]]
    for b in range(c + 1):
        other = Z[columns[b]]
        dot = 0.0
        for j in range(m):
            dot += row[j] * other[j]
        gram[c, b] = dot
    dot = 0.0
    for j in range(m):
        dot += row[j] * target[j]
    right[c] = dot


@kernel
def _solve(Z, columns, size, m, target, gram, right, system, coefficients, left, small):  # pragma: no cover
    """Least squares on the first ``size`` columns; write what is left and return its square."""
    for a in range(size):
        for b in range(a):
            system[a, b] = gram[a, b]
        system[a, a] = gram[a, a] * (1.0 + _RIDGE)
        coefficients[a] = right[a]
    if not cholesky_solve(system, coefficients, size):
        for a in range(size):
            coefficients[a] = math.nan
    for j in range(m):
        left[j] = target[j]
    for a in range(size):
        value, row = coefficients[a], Z[columns[a]]
        for j in range(m):
            left[j] -= value * row[j]
    error = 0.0
    for j in range(m):
        error += left[j] * left[j]
        small[j] = left[j]
    return error


@kernel
def _largest(score, count, out, start):  # pragma: no cover
    """Append the positions of the ``count`` largest sizes to ``out``; the score of what was taken becomes zero."""
    for _ in range(count):
        best, where = 0.0, -1
        for a in range(score.size):
            value = abs(score[a])
            if value > best:
                best, where = value, a
        if where < 0:
            break
        out[start] = where
        start += 1
        score[where] = 0.0
    return start


@kernel
def _exchange(  # pragma: no cover
    X, first, last, candidates, support, Z, place, columns, fixed, m, target, gram, right
):
    """Bring ``candidates`` into the support, as many as it holds; return whether anything changed."""
    free, wanted = np.ones(candidates.size, dtype=np.bool_), np.ones(candidates.size, dtype=np.bool_)
    for c in range(candidates.size):
        for s in range(candidates.size):
            if support[s] == candidates[c]:
                free[s], wanted[c] = False, False
    changed, s, lowest = False, 0, candidates.size
    for c in range(candidates.size):
        if not wanted[c]:
            continue
        while not free[s]:
            s += 1
        support[s] = candidates[c]
        free[s] = False
        _fetch_column(X, first, last, support[s], Z[place + s])
        lowest, changed = min(lowest, s), True
    # A column's products with those after it are theirs to hold.
    for s in range(lowest, candidates.size):
        _correlate(Z, columns, fixed + s, m, target, gram, right)
    return changed
