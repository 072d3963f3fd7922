"""Least squares for eight users at once, one per SIMD lane; or for one user, whose rows are distributed over the lanes.

A system grows by rows: its Cholesky factor is extended, not recomputed, and the products of columns are computed on
demand. A trial solution (``trial``) replaces the kept one (``coefficients``, ``left``) where it fits better.
"""

# Numba kernels are not typed.
# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tacitly.simd.lazy_njit import njit
from tacitly.simd.projections import four, store_four
from tacitly.simd.registers import aligned_zeros, load, root, spread, store, total
from tacitly.simd.top_k import LANES, position_mask, where_less

Indices = npt.NDArray[np.int64]
Numbers = npt.NDArray[Any]

_RIDGE = 1e-12  # relative to each column's square: keeps systems with equal columns solvable

_OPTIONS: Any = {"nogil": True, "fastmath": {"reassoc", "contract"}, "error_model": "numpy"}
kernel: Any = njit(cache=True, **_OPTIONS)
inlined: Any = njit(forceinline=True, **_OPTIONS)  # for functions with many arguments and one caller


class Workspace(NamedTuple):
    """Buffers for the fits of one group of users, reused for the next; they hold the results of a fit.

    ``columns`` has the target, the projections on the basis and the selected features as rows; number j of user u is
    at 8j + u, or at j for a user fitted alone. With an intercept all of them are centred first: beside a column of
    ones, features with large means would be nearly collinear.
    """

    columns: Numbers
    means: Numbers  # means of the columns, if they are centred
    spare: Numbers  # 1 on the diagonal for columns that a user does not have, so that the system is solvable
    factor: Numbers  # Cholesky factors, with reciprocal diagonals; the first column is the right-hand side
    trial: Numbers
    coefficients: Numbers  # weights, then values of the selected features
    tried: Numbers  # the residual of the trial
    left: Numbers  # the residual of the kept solution
    small: Numbers  # the same, in the precision of the rows
    errors: Numbers
    least: Numbers
    chosen: Numbers  # 1 in lanes whose trial is kept
    pull: Numbers  # correlations Xᵀe with every feature, one row per user, followed by space for the weights
    score: Numbers
    best: Numbers
    bits: Indices  # ``best``, as integers
    keys: Indices  # ``score``, as integers
    projected: Numbers
    support: Indices  # the selected features, one row per user
    attempt: Indices
    size: Indices
    goal: Indices
    active: Indices
    settled: Indices
    entering: Indices
    marks: Indices
    mask: Indices
    fixed: Indices  # its size is the number of weights


def make_workspace(longest: int, n_features: int, fixed: int, most: int, rows: npt.DTypeLike, alone: int) -> Workspace:
    """Allocate buffers for users with up to ``longest`` rows, ``fixed`` weights and ``most`` personal coordinates.

    A user with at least ``alone`` rows is fitted alone.
    """
    room = max(LANES * min(longest, alone), longest + -longest % LANES) + 4 * LANES
    height = 1 + fixed + most
    lanes = [(height, LANES)] * 4
    shapes = [(height + 3, room), *lanes, (height * (height + 3), LANES), (1, room), (1, room)]
    columns, means, spare, trial, coefficients, factor, tried, left = _separate_zeros(np.float64, *shapes)
    width = n_features + -n_features % 16 + max(16, fixed + -fixed % 16)
    shapes = [(1, LANES), (1, LANES), (1, LANES), (LANES, width), (n_features + -n_features % LANES, LANES)]
    errors, least, chosen, pull, score = _separate_zeros(np.float64, *shapes)
    best, projected = _separate_zeros(np.float64, (most + -most % 4, LANES), (max(4, fixed + -fixed % 4), longest + 11))
    (small,) = _separate_zeros(rows, (1, room + LANES))
    support, attempt = _separate_zeros(np.int64, (LANES, most), (LANES, most))
    integers = _separate_zeros(
        np.int64, *[(1, size) for size in (LANES, LANES, LANES, LANES, most, n_features, 1, fixed)]
    )
    integers[6][:] = position_mask(n_features)
    views = (best, best.view(np.int64), score.view(np.int64))
    return Workspace(
        *(columns, means, spare, factor, trial, coefficients, tried[0], left[0], small[0], errors[0], least[0]),
        *(chosen[0], pull, score, *views, projected, support, attempt, *(numbers[0] for numbers in integers)),
    )


def _separate_zeros(dtype: npt.DTypeLike, *shapes: tuple[int, int]) -> list[npt.NDArray[Any]]:
    """Return zeros of these shapes on separate cache lines, so that no line is shared with another thread's array."""
    lines = [-(-max(1, math.prod(shape)) // 16) + 1 for shape in shapes]
    flat = aligned_zeros(sum(lines) + 2, 16, dtype).ravel()
    starts = np.cumsum([1, *lines]) * 16
    return [flat[start : start + math.prod(shape)].reshape(shape) for start, shape in zip(starts, shapes, strict=False)]


@inlined
def subtract_mean(columns, means, row, u, at, step, m):
    """Subtract the mean from a user's column, and store it."""
    mean = 0.0
    for j in range(m):
        mean += columns[row, at + j * step] / m
    for j in range(m):
        columns[row, at + j * step] -= mean
    means[row, u] = mean


@inlined
def extend_factor(columns, spare, factor, low, top, height, alone):
    """Compute rows low..top of the factors, from products of their columns with all earlier ones; NaN if singular.

    Entries right of the diagonal are not used.
    """
    room, width = columns.shape[1], columns.shape[0] * LANES
    for i in range(low, top):
        row = i * width
        for c in range(0, i + 1, 4):
            s0 = s1 = s2 = s3 = spread(0.0)
            for j in range(0, height * LANES, LANES):
                x = load(columns, i * room + j)
                x0, x1, x2, x3 = four(columns, c * room + j, room)
                s0, s1, s2, s3 = s0 + x * x0, s1 + x * x1, s2 + x * x2, s3 + x * x3
            if alone:
                s0, s1, s2, s3 = spread(total(s0)), spread(total(s1)), spread(total(s2)), spread(total(s3))
            store_four(factor, row + c * LANES, LANES, (s0, s1, s2, s3))
        square = load(factor, row + i * LANES) * spread(1.0 + _RIDGE) + load(spare, i * LANES)
        right = load(factor, row)
        for p in range(1, i):
            value = load(factor, row + p * LANES) * load(factor, p * (width + LANES))
            store(factor, row + p * LANES, value)
            square = square - value * value
            right = right - value * load(factor, p * width)
            for q in range(p + 1, i):
                place = row + q * LANES
                store(factor, place, load(factor, place) - value * load(factor, q * width + p * LANES))
        inverse = spread(1.0) / root(square)
        store(factor, row + i * LANES, inverse)
        store(factor, row, right * inverse)


@inlined
def solve(columns, factor, trial, tried, top, height, alone):
    """Write the solutions of the systems with rows 1..top and their residuals; return the sums of squares."""
    room, width = columns.shape[1], columns.shape[0] * LANES
    for i in range(top - 1, 0, -1):
        value = load(factor, i * width)
        for p in range(i + 1, top):
            value = value - load(factor, p * width + i * LANES) * load(trial, p * LANES)
        store(trial, i * LANES, value * load(factor, i * (width + LANES)))
    for j in range(0, height * LANES, 4 * LANES):
        x0, x1, x2, x3 = four(columns, j, LANES)
        for i in range(1, top):
            b = load(trial, i * LANES)
            z0, z1, z2, z3 = four(columns, i * room + j, LANES)
            x0, x1, x2, x3 = x0 - b * z0, x1 - b * z1, x2 - b * z2, x3 - b * z3
        store_four(tried, j, LANES, (x0, x1, x2, x3))
    squares = spread(0.0)
    for j in range(0, height * LANES, LANES):
        value = load(tried, j)
        squares = squares + value * value
    return spread(total(squares)) if alone else squares


@inlined
def keep_chosen(chosen, trial, kept, tried, left, small, top, height):
    """Keep solutions and residuals in lanes where ``chosen`` is positive."""
    zero, mask = spread(0.0), load(chosen, 0)
    for i in range(LANES, top * LANES, LANES):
        store(kept, i, where_less(zero, mask, load(trial, i), load(kept, i)))
    for j in range(0, height * LANES, LANES):
        value = where_less(zero, mask, load(tried, j), load(left, j))
        store(left, j, value)
        store(small, j, value)
