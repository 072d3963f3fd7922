"""The compiled half of :class:`~tacitly.methods.shared.direction_votes.DirectionVote`.

A user's ridge regression is computed in the precision of the rows, while they are in cache: its Gram matrix (of rows,
or of features if these are fewer), a Cholesky factor, the direction. The penalty is 0.3 of the mean eigenvalue, so the
system is well conditioned. Directions are normalised in double precision, so rounding errors rotate a vote but do not
lengthen it: aaᵀ is positive semi-definite and has norm one for any rounding errors.
"""

# Numba kernels are not typed.
# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tacitly.methods.shared.moment_kernels import copy_rows, mean_of, places_of, second_moment
from tacitly.privacy.clipping import LEAST
from tacitly.simd.lanes import aligned_like
from tacitly.simd.lazy_njit import UNCOUNTED, njit
from tacitly.simd.projections import combine_rows, four, store_four
from tacitly.simd.registers import (
    add_products,
    lanes_of,
    load,
    load_first,
    no_products,
    repeat,
    spread,
    store,
    store_totals,
    total,
)

_kernel: Any = njit(nogil=True, cache=True, fastmath={"contract"}, error_model="numpy")
_inside: Any = njit(**UNCOUNTED)


@_kernel
def vote_directions(X, y, offsets, scale, turn, ridge, centered, varied, length, out):
    """Write every user's direction, of norm ``length``, to a row of ``out``; zero if there is none.

    Rows are multiplied by ``scale`` and then by the matrix ``turn``, if that is not empty; ``scale`` is zero beyond the
    features. ``ridge`` is relative to a row's mean squared norm.
    """
    width, d, longest = scale.size, X.shape[1], 1
    for i in range(offsets.size - 1):
        longest = max(longest, offsets[i + 1] - offsets[i])
    longest += -longest % 4
    plain, rows = aligned_like(X, longest, width), aligned_like(X, longest, width)
    mean, targets = np.zeros(width, dtype=X.dtype), np.zeros(longest, dtype=X.dtype)
    room = width if longest > d else 0  # buffer for matrices of features, which only users with many rows need
    moment, sums = np.zeros((room, room), dtype=X.dtype), np.zeros((room, room))
    size = min(longest, width) + 1
    size += -size % (2 * lanes_of(X))
    system, solution = aligned_like(X, size, size), np.zeros(size, dtype=X.dtype)
    found, places = np.zeros((1, width)), np.zeros(longest, dtype=np.int64)
    for i in range(offsets.size - 1):
        m = places_of(offsets, i, 0, places)
        unit = targets_of(y, places, m, centered, varied, targets)
        if m == 0 or not unit > 0.0:
            continue
        if centered:
            mean_of(X, places, m, mean)
        if turn.size == 0:
            copy_rows(X, places, m, m, mean, scale, rows, 0)
        else:
            copy_rows(X, places, m, m, mean, scale, plain, 0)
            multiply(plain, m, turn, rows, 0)
        rows[m : m + -m % 4] = 0.0  # rows are read four at a time
        few = m <= d
        size = m if few else d
        if few:
            _row_products(rows, m, system)
            for j in range(m):
                system[j, m] = targets[j]
        else:
            second_moment(rows, m, sums, moment)
            combine_rows(rows, 0, m, targets, 0, 1, found, 0)
            for a in range(d):
                system[a, d] = found[0, a]
                for c in range(a + 1):
                    system[c, a] = moment[a, c]
        if not _solve(system, size, ridge / m, solution):
            continue
        if few:
            combine_rows(rows, 0, m, solution, 0, 1, found, 0)
        else:
            for a in range(d):
                found[0, a] = solution[a]
        squared = 0.0
        for a in range(d):
            squared += found[0, a] * found[0, a]
        if math.isfinite(squared) and squared > LEAST and squared * unit * unit > LEAST:
            factor = length / math.sqrt(squared)
            for a in range(d):
                out[i, a] = found[0, a] * factor


@_inside
def targets_of(y, places, m, centered, varied, out):
    """Write m targets of a user in units of the largest; return the unit, or 0 if they give no vote.

    Targets that are all equal give no vote if they are centered, or if they have to vary.
    """
    share, level, lowest, highest = 1.0 / max(m, 1), 0.0, math.inf, -math.inf
    for j in range(m):
        value = y[places[j]]
        lowest, highest, level = min(lowest, value), max(highest, value), level + value * share
    if (centered or varied) and lowest == highest:
        return 0.0
    if not centered:
        level = 0.0
    unit = max(abs(lowest - level), abs(highest - level))
    if not (math.isfinite(unit) and math.isfinite(level) and unit > 0.0):
        return 0.0
    for j in range(m):
        out[j] = (y[places[j]] - level) / unit
    return unit


@_inside
def multiply(rows, count, turn, out, place):
    """Write rows·turn from row ``place`` on, four rows at a time; each row's result depends on that row alone."""
    width, lanes = turn.shape[1], lanes_of(rows)
    for j in range(0, count, 4):  # the buffers have room for a multiple of four rows
        p, at, even = j * width, (place + j) * width, width - width % (2 * lanes)
        for c in range(0, even, 2 * lanes):  # two registers at a time, because each addition waits for the previous one
            s0 = s1 = s2 = s3 = t0 = t1 = t2 = t3 = spread(rows.dtype.type(0))
            for a in range(width):
                x, z = load(turn, a * width + c), load(turn, a * width + c + lanes)
                r0, r1 = repeat(rows, p + a), repeat(rows, p + width + a)
                r2, r3 = repeat(rows, p + 2 * width + a), repeat(rows, p + 3 * width + a)
                s0, s1, s2, s3 = s0 + r0 * x, s1 + r1 * x, s2 + r2 * x, s3 + r3 * x
                t0, t1, t2, t3 = t0 + r0 * z, t1 + r1 * z, t2 + r2 * z, t3 + r3 * z
            store_four(out, at + c, width, (s0, s1, s2, s3))
            store_four(out, at + c + lanes, width, (t0, t1, t2, t3))
        for c in range(even, width, lanes):
            s0 = s1 = s2 = s3 = spread(rows.dtype.type(0))
            for a in range(width):
                x = load(turn, a * width + c)
                s0, s1 = s0 + repeat(rows, p + a) * x, s1 + repeat(rows, p + width + a) * x
                s2, s3 = s2 + repeat(rows, p + 2 * width + a) * x, s3 + repeat(rows, p + 3 * width + a) * x
            store_four(out, at + c, width, (s0, s1, s2, s3))


@_inside
def _row_products(rows, count, out):
    """Write the upper triangle of XXᵀ, four by four rows at a time."""
    width, lanes, room = rows.shape[1], lanes_of(rows), out.shape[1]
    for j in range(0, count, 4):
        for i in range(j, count, 4):
            sums = no_products(rows)
            for a in range(0, width, lanes):
                sums = add_products(sums, four(rows, j * width + a, width), four(rows, i * width + a, width), "all")
            store_totals(out, j * room + i, room, sums)


@_inside
def _solve(system, size, ridge, out):
    """Solve (A + ridge·tr A·I)x = b; return False if A is zero or not finite.

    Row j of ``system`` has A[j:, j] and then b[j]; b goes through the factorisation as one more row of A. Rows become
    those of the transposed factor, with reciprocals on the diagonal; entries before the diagonal are set to zero.
    """
    lanes, room = lanes_of(system), system.shape[1]
    trace = 0.0
    for j in range(size):
        trace += system[j, j]
    penalty = ridge * trace
    if not (math.isfinite(penalty) and penalty > 0.0):
        return False
    for j in range(size):
        edge = j - j % lanes
        for c in range(edge, size + 1, 2 * lanes):
            # Two sums each, because a subtraction waits for the previous one.
            # Zeros after b: numbers of other users must not remain there.
            s0 = load_first(system, j * room + c, size + 1 - c)
            s1 = load_first(system, j * room + c + lanes, size + 1 - c - lanes)
            t0 = t1 = spread(system.dtype.type(0))
            for p in range(0, j - 1, 2):
                x, z = repeat(system, p * room + j), repeat(system, (p + 1) * room + j)
                s0, s1 = s0 - x * load(system, p * room + c), s1 - x * load(system, p * room + c + lanes)
                p += 1
                t0, t1 = t0 - z * load(system, p * room + c), t1 - z * load(system, p * room + c + lanes)
            if j % 2:
                x, p = repeat(system, (j - 1) * room + j), (j - 1) * room + c
                s0, s1 = s0 - x * load(system, p), s1 - x * load(system, p + lanes)
            store(system, j * room + c, s0 + t0)
            store(system, j * room + c + lanes, s1 + t1)
        diagonal = system[j, j] + penalty
        if not (math.isfinite(diagonal) and diagonal > 0.0):
            return False
        inverse = 1.0 / math.sqrt(diagonal)
        factor = spread(system.dtype.type(inverse))
        for c in range(edge, size + 1, lanes):
            store(system, j * room + c, load(system, j * room + c) * factor)
        for c in range(edge, j):
            system[j, c] = 0.0
        system[j, j] = inverse
    out[:] = 0.0
    for j in range(size - 1, -1, -1):
        value = spread(system.dtype.type(0))
        for c in range(j - j % lanes, size, lanes):
            value = value + load(system, j * room + c) * load(out, c)
        out[j] = (system[j, size] - total(value)) * system[j, j]
    return True
