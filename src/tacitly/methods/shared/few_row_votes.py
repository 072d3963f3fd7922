"""Votes of users if only a few rows of each are read: as many users at a time as a register has lanes, one per lane.

Rows are transposed into lanes once. Then the Gram matrix, its factor, the solution and the direction need no sums over
lanes, and one root or division serves all users of a group. All of them are computed for the same number of rows. Rows
that a user does not have are zeros, with targets of zero, and change no bit of the user's solution. Lanes do not
interact, so a user's direction depends on that user's rows alone, to the last bit.

The arithmetic is that of :mod:`tacitly.methods.shared.vote_kernels`: the precision of the rows, except for the norm.
"""

# Numba kernels are not typed.
# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tacitly.methods.shared.moment_kernels import copy_rows, fetch_rows, mean_of, places_of
from tacitly.methods.shared.vote_kernels import multiply, targets_of
from tacitly.privacy.clipping import LEAST
from tacitly.simd.lanes import aligned_like
from tacitly.simd.lazy_njit import UNCOUNTED, njit
from tacitly.simd.projections import four, store_four
from tacitly.simd.registers import (
    add_products,
    lanes_of,
    load,
    load_doubles,
    no_products,
    root,
    spread,
    store,
    total,
)
from tacitly.simd.tiles import transpose_square

_DOUBLES = 8  # in a register

_kernel: Any = njit(nogil=True, cache=True, fastmath={"contract"}, error_model="numpy")
_inside: Any = njit(**UNCOUNTED)


@_kernel
def few_row_directions(X, y, offsets, most, scale, turn, ridge, centered, varied, length, out):
    """Write every user's direction from at most ``most`` rows: see ``vote_directions``."""
    width, lanes, n = scale.size, lanes_of(X), offsets.size - 1
    deep = most + -most % 4
    tall = deep + 1  # users are one row further apart: rows a multiple of 4 KiB apart compete for few cache lines
    rows, plain = aligned_like(X, lanes * tall, width), aligned_like(X, deep, width)
    mean, targets = np.zeros(width, dtype=X.dtype), np.zeros(deep, dtype=X.dtype)
    turned, found = aligned_like(X, width * tall, lanes), aligned_like(X, width, lanes)
    systems, ridges = aligned_like(X, (deep + 1) * deep, lanes), np.zeros(lanes, dtype=X.dtype)
    # Not in the buffer of rows: its padding would keep numbers of one group for the next.
    units, directions = np.zeros(lanes), aligned_like(X, lanes, width)
    places = np.zeros(most, dtype=np.int64)
    for start in range(0, n, lanes):
        for u in range(lanes):
            fetch_rows(X, offsets, start + u + lanes, most, places)
            m, units[u] = 0, 0.0
            if start + u < n:
                m = places_of(offsets, start + u, most, places)
                units[u] = targets_of(y, places, m, centered, varied, targets)
            if units[u] > 0.0:
                if centered:
                    mean_of(X, places, m, mean)
                if turn.size == 0:
                    copy_rows(X, places, m, 0, mean, scale, rows, u * tall)
                else:
                    copy_rows(X, places, m, 0, mean, scale, plain, 0)
                    multiply(plain, m, turn, rows, u * tall)
            else:
                m = 0
            rows[u * tall + m : u * tall + deep] = 0.0
            ridges[u] = ridge / max(m, 1)
            for j in range(deep):
                systems[deep * deep + j, u] = targets[j] if j < m else 0.0
        for j in range(deep):
            for a in range(0, width, lanes):
                transpose_square(rows, j * width + a, tall * width, turned, (a * tall + j) * lanes, tall * lanes)
        _grams(turned, width, deep, systems)
        _solve(systems, deep, ridges)
        _combine(turned, systems, deep, found)
        for a in range(0, width, lanes):
            transpose_square(found, a * lanes, lanes, directions, a, width)
        for u in range(min(lanes, n - start)):
            if units[u] > 0.0:
                _write(directions, u, units[u], length, out, start + u)


@_inside
def _grams(turned, width, deep, systems):
    """Write the lower triangles of all XXᵀ, four by four rows at a time."""
    lanes, tall = lanes_of(turned), deep + 1
    for i in range(0, deep, 4):
        for p in range(0, i + 1, 4):
            sums = no_products(turned)
            for a in range(0, width * tall, tall):
                sums = add_products(
                    sums, four(turned, (a + i) * lanes, lanes), four(turned, (a + p) * lanes, lanes), "all"
                )
            place, step = (i * deep + p) * lanes, deep * lanes
            store_four(systems, place, lanes, (sums[0], sums[1], sums[2], sums[3]))
            store_four(systems, place + step, lanes, (sums[4], sums[5], sums[6], sums[7]))
            store_four(systems, place + 2 * step, lanes, (sums[8], sums[9], sums[10], sums[11]))
            store_four(systems, place + 3 * step, lanes, (sums[12], sums[13], sums[14], sums[15]))


@_inside
def _solve(systems, deep, ridges):
    """Solve (A + ridge·tr A·I)x = b for all users by Cholesky; x replaces b, the row after A.

    The result is NaN if A is zero or not finite.
    """
    lanes, trace = lanes_of(systems), load(systems, 0)
    for j in range(1, deep):
        trace = trace + load(systems, j * (deep + 1) * lanes)
    penalty = trace * load(ridges, 0)
    one = spread(systems.dtype.type(1))
    for j in range(deep):
        at = j * deep
        value = load(systems, (at + j) * lanes) + penalty
        for p in range(j):
            factor = load(systems, (at + p) * lanes)
            value = value - factor * factor
        inverse = one / root(value)
        store(systems, (at + j) * lanes, inverse)
        for i in range((j + 1) * deep, (deep + 1) * deep, deep):
            value = load(systems, (i + j) * lanes)
            for p in range(j):
                value = value - load(systems, (i + p) * lanes) * load(systems, (at + p) * lanes)
            store(systems, (i + j) * lanes, value * inverse)
    right = deep * deep
    for j in range(deep - 1, -1, -1):
        value = load(systems, (right + j) * lanes)
        for p in range(j + 1, deep):
            value = value - load(systems, (p * deep + j) * lanes) * load(systems, (right + p) * lanes)
        store(systems, (right + j) * lanes, value * load(systems, j * (deep + 1) * lanes))


@_inside
def _combine(turned, systems, deep, out):
    """Write Xᵀx for all users, four features at a time."""
    lanes, tall, right = lanes_of(turned), deep + 1, deep * deep
    for a in range(0, out.shape[0], 4):
        s0 = s1 = s2 = s3 = spread(turned.dtype.type(0))
        for j in range(deep):
            x, p = load(systems, (right + j) * lanes), (a * tall + j) * lanes
            s0, s1 = s0 + x * load(turned, p), s1 + x * load(turned, p + tall * lanes)
            s2, s3 = s2 + x * load(turned, p + 2 * tall * lanes), s3 + x * load(turned, p + 3 * tall * lanes)
        store_four(out, a * lanes, lanes, (s0, s1, s2, s3))


@_inside
def _write(rows, u, unit, length, out, i):
    """Write a user's direction, of norm ``length``; nothing if it is not finite, or underflows."""
    width, d, s0, s1 = rows.shape[1], out.shape[1], spread(0.0), spread(0.0)
    for a in range(0, width, 2 * _DOUBLES):
        x = load_doubles(rows, u * width + a, _DOUBLES)
        z = load_doubles(rows, u * width + a + _DOUBLES, _DOUBLES)
        s0, s1 = s0 + x * x, s1 + z * z
    squared = total(s0 + s1)
    if math.isfinite(squared) and squared > LEAST and squared * unit * unit > LEAST:
        factor = length / math.sqrt(squared)
        for a in range(0, d - d % _DOUBLES, _DOUBLES):
            store(out, i * d + a, load_doubles(rows, u * width + a, _DOUBLES) * spread(factor))
        for a in range(d - d % _DOUBLES, d):
            out[i, a] = rows[u, a] * factor
