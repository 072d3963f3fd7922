"""Compiled fits of heads in AMHT-LRS, which are described in :mod:`tacitly.methods.low_rank_sparse.heads`."""

# Numba kernels are not typed.
# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

import math

import numpy as np

from tacitly.heads.ridge import average_ridges
from tacitly.methods.low_rank_sparse.array_choices import FOLDS
from tacitly.methods.low_rank_sparse.array_fits import CONSTANT, ROUNDING, SWAPS
from tacitly.methods.low_rank_sparse.kernels import (
    LONG,
    affordable,
    fit_users,
    group_end,
    intercept_of,
    layout_of,
    restore_columns,
)
from tacitly.methods.low_rank_sparse.lane_kernels import kernel
from tacitly.simd.lanes import lane_zeros
from tacitly.simd.registers import absolute, frozen, load_doubles, root, spread, store, where_usable
from tacitly.simd.tiles import transpose_eight
from tacitly.simd.top_k import LANES


@kernel
def fit_heads(X, y, offsets, basis, shared, intercept, sizes, penalties, work, table, errors):
    """Fit all users' heads; write each to its row of the table, and the leave-one-out sum of squared errors."""
    n, scale, wanted = offsets.size - 1, lane_zeros(work.score.shape[0]), np.zeros(LANES, dtype=np.int64)
    start = np.int64(0)
    while start < n:
        stop = group_end(offsets, start, n)
        first, last, count = offsets[start:stop], offsets[start + 1 : stop + 1], stop - start
        write_inverse_sizes(X, first, last, count, intercept, work.pull, scale)
        for u in range(count):
            wanted[u] = choose_size(X, first[u], last[u], y, basis, shared, intercept, scale, u, sizes, 1.0, work)
        stages = wanted[:count].max()
        fit_users(X, y, first, last, count, basis, shared, intercept, scale, wanted, stages, np.int64(SWAPS), work)
        for u in range(count):
            restore_columns(X, first[u], last[u], intercept, u, work)
            errors[start + u] = _refit(work, last[u] - first[u], u, intercept, penalties, table[start + u], scale)
        start = stop


@kernel
def write_inverse_sizes(X, first, last, n, intercept, rows, scale):
    """Write 1/size of each feature on each user's rows (around their mean, with an intercept); 0 if it is constant.

    Users are lanes of ``scale``, with room for a multiple of eight features; ``rows`` is a buffer of one row for each.
    """
    d, width = X.shape[1], rows.shape[1]
    for u in range(n):
        share = spread(1.0 / max(last[u] - first[u], 1))
        for a in range(0, d, LANES):
            mean, squares = spread(0.0), spread(0.0)
            if intercept:
                for j in range(first[u], last[u]):
                    mean = mean + load_doubles(X, j * d + a, d - a)
                mean = mean * share
            for j in range(first[u], last[u]):
                value = load_doubles(X, j * d + a, d - a) - mean
                squares = squares + value * value
            size = root(squares * share)
            varies = where_usable(size - spread(CONSTANT) * absolute(mean), spread(1.0) / size)
            store(rows, u * width + a, varies)
    for a in range(0, d, LANES):
        transpose_eight(rows, a, width, scale, a)


@kernel
def choose_size(X, first, last, y, basis, shared, intercept, scale, u, sizes, doubt, work):
    """Return the number of coordinates: the most allowed, or one of ``sizes`` by the user's cross-validation.

    Cross-validation takes the smallest number whose error is within one standard error of the smallest error, or zero
    if its error is within ``doubt`` standard errors (at least one).
    """
    m, fixed = last - first, work.fixed.size
    most = affordable(m, fixed + intercept, work.support.shape[1])
    if sizes.size == 0:
        return most
    if most == 0:
        return 0
    # Rows in the order of folds, written twice: the rows outside a fold are then contiguous, from its end to its start.
    folds = min(FOLDS, m)
    rows, targets = np.empty((2 * m, X.shape[1]), dtype=X.dtype), np.empty(2 * m, dtype=y.dtype)
    begin, end, row = np.empty(folds, dtype=np.int64), np.empty(folds, dtype=np.int64), 0
    for fold in range(folds):
        end[fold] = m + row
        for j in range(first + fold, last, folds):
            rows[row], rows[m + row] = X[j], X[j]
            targets[row] = targets[m + row] = y[j]
            row += 1
        begin[fold] = row
    user_scale, wanted = np.empty(scale.shape), np.empty(folds, dtype=np.int64)
    for a in range(scale.shape[0]):
        user_scale[a] = scale[a, u]
    together = folds if m < LONG else 1
    errors, squares = np.zeros(sizes.size), np.zeros(sizes.size)
    for number in range(sizes.size):
        if sizes[number] > affordable((end - begin).min(), fixed + intercept, most):
            errors[number] = math.inf
            continue
        wanted[:] = sizes[number]
        stages = min(sizes[number], 4)
        for some in range(0, folds, together):
            fit_users(
                frozen(rows), frozen(targets), begin[some:], end[some:], together, basis, shared, intercept, user_scale,
                wanted, stages, np.int64(2), work,
            )  # fmt: skip
            for v in range(together):
                fold = some + v
                restore_columns(frozen(rows), begin[fold], end[fold], intercept, v, work)
                for j in range(end[fold] - m, begin[fold]):
                    left = _residual_of(rows, j, targets[j], basis, shared, intercept, v, work)
                    errors[number] += left * left
                    squares[number] += (left * left) ** 2
    energy = 0.0
    for j in range(m):
        energy += targets[j] * targets[j]
    best = np.argmin(errors)
    spread = math.sqrt(max(squares[best] - errors[best] * errors[best] / m, 0.0))
    enough = errors[best] + ROUNDING * energy
    if errors[0] <= enough + doubt * spread:
        return 0
    for number in range(1, sizes.size):
        if errors[number] <= enough + spread:
            return sizes[number]
    return 0


@kernel
def _residual_of(X, j, target, basis, shared, intercept, u, work):
    """Return the residual of row j under the fit of user u."""
    fixed = work.fixed.size
    left = target - (intercept_of(work, u) if intercept else 0.0)
    for b in range(1 if shared else fixed):
        along = 0.0
        for a in range(X.shape[1]):
            along += basis[b, a] * X[j, a]
        left -= along if shared else work.coefficients[1 + b, u] * along
    for s in range(work.size[u]):
        left -= work.coefficients[1 + fixed + s, u] * X[j, work.support[u, s]]
    return left


@kernel
def _refit(work, m, u, intercept, penalties, out, scale):
    """Refit a user's weights and values with penalties, on columns scaled to one size; return the left-out error."""
    fixed, count, most = work.fixed.size, work.size[u], work.support.shape[1]
    support, rank = work.support[u], out.size - 1 - 2 * most
    at, step = layout_of(m, u)
    columns, sizes, targets = np.empty((m, fixed + count)), np.ones(fixed + count), np.empty(m)
    for b in range(fixed + count):
        if b >= fixed:
            sizes[b] = scale[support[b - fixed], u]
        for j in range(m):
            columns[j, b] = work.columns[1 + b, at + j * step] * sizes[b]
    for j in range(m):
        targets[j] = work.columns[0, at + j * step]
    work.coefficients[:, u] = 0.0
    error = math.inf
    if fixed + count > 0:
        head, error = average_ridges(columns, targets, intercept, penalties)
        largest, kept = 0.0, 0
        for b in range(fixed):
            out[b] = head[b]
        for b in range(fixed, head.size):
            largest = max(largest, abs(head[b]))
        for b in range(fixed, head.size):
            if math.isfinite(error) and abs(head[b]) > math.sqrt(ROUNDING) * largest:
                out[rank + 1 + kept] = support[b - fixed]
                out[rank + 1 + most + kept] = head[b] * sizes[b]
                kept += 1
        for b in range(head.size):
            work.coefficients[1 + b, u] = head[b] * sizes[b]
    if intercept:
        level = intercept_of(work, u)
        if math.isfinite(level):
            out[rank] = level
    return error
