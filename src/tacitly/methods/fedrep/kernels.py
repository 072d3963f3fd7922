"""The compiled part of :class:`~tacitly.methods.fedrep.queries.BasisStep`: a round nearly as fast as reading the rows.

Users are processed eight at a time, few enough for their rows to stay in cache:

1. each user's rows are read from memory, once: projections P = XU, the k×k system PᵀP, the energy of the rows;
2. the eight systems are solved together, one per SIMD lane;
3. each user's rows are read again, from cache: residuals e and the correction Xᵀe;
4. norms and weights of the eight users, one per lane, and the sum of their weighted rank-one steps.

Users' numbers are combined in sums only, and lanes do not interact. A user with numbers that are not finite gets a norm
that is not finite, and adds zero. Sums run over users in order, so a user who adds zero changes no bit of them. k×k
systems, norms and sums are in double precision for any precision of the rows. A contribution is normalised with the
norm of the numbers that are added.

Arrays are addressed by position, counted along rows; see :mod:`tacitly.simd.registers`. (Numba caches compiled code and
checks for changes in this file only: after a change in ``tacitly.simd``, delete the cache.)
"""

# Numba kernels, and functions that generate code for them, are not typed.
# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

from typing import Any

import numpy as np

from tacitly.privacy.clipping import LEAST
from tacitly.simd.lanes import aligned
from tacitly.simd.lazy_njit import UNCOUNTED, njit
from tacitly.simd.normal_equations import normal_equations, place_of
from tacitly.simd.projections import combine_rows, four, project_rows, store_four
from tacitly.simd.registers import (
    lanes_of,
    load,
    load_doubles,
    load_every,
    load_first,
    root,
    spread,
    store,
    total,
    where_usable,
)
from tacitly.simd.small_solves import TINY_RIDGE

_USERS = 8  # SIMD lanes: doubles in a register
_GROUP_BYTES = 1 << 18  # largest size of the rows of a group of users: a quarter of a common second-level cache
_AHEAD = 1 << 16  # prefetch distance in bytes

_kernel: Any = njit(nogil=True, cache=True, fastmath={"contract"}, error_model="numpy")
_inside: Any = njit(**UNCOUNTED)


@_kernel
def basis_steps(X, y, offsets, size, basis, scale, directions, gains, metric, c, weight, centered, out):
    """Add every user's contribution, of norm ``weight``, to its block of ``size`` users in ``out``.

    A contribution is v rᵀ in the first columns and v vᵀ in the last, where r is the correction divided by c before
    whitening. Whitening is linear, so the caller applies it once, to the sum. Here it is used for the norm only. Its
    directions are orthonormal, so ‖g‖² = ‖scale∘r‖² + Σ_q gains[q]·(directions[q]·r)². ``basis`` and ``directions`` (as
    rows, for raw features), ``scale`` and both parts of ``out`` are :func:`~tacitly.simd.registers.padded`.
    """
    k, K, width = metric.shape[0], basis.shape[0], basis.shape[1]
    n, d, row_bytes = offsets.size - 1, X.shape[1], X.shape[1] * X.itemsize
    room = _longest_group(offsets, size, row_bytes)
    projected, errors = aligned(K, room), np.empty(room, dtype=X.dtype)
    mean, squared = np.zeros((1, width), dtype=X.dtype), (scale * scale).astype(X.dtype)
    systems, cholesky = aligned(_USERS * (K + 4), K), aligned(K * K, _USERS)
    heads, measured, weights = aligned(k, _USERS), aligned(K, _USERS), aligned(K, _USERS)
    free, energy, level = aligned(1, _USERS)[0], aligned(1, _USERS)[0], aligned(1, _USERS)[0]
    lengths, sizes = aligned(1, _USERS)[0], aligned(1, _USERS)[0]
    rows, along = aligned(_USERS, out.shape[2]), aligned(directions.shape[0], _USERS)

    start = 0
    while start < n:
        stop = _group_end(offsets, start, size, row_bytes)
        free[:] = 0.0
        for u in range(stop - start):
            first, last = offsets[start + u], offsets[start + u + 1]
            free[u] = max(0, last - first - k - centered)
            if free[u] > 0:
                place = place_of(first - offsets[start], u)
                project_rows(X, first, last, d, basis, projected, place, _AHEAD)
                if centered:
                    mean_row(X, first, last, errors, mean)
                    level[u] = _center(projected, place, y, first, last)
                energy[u] = mean_square(X, first, last, mean, squared)
                normal_equations(projected, place, y, first, last, level[u], systems, u)
        _solve(systems, k, cholesky, heads)
        store(lengths, 0, spread(1.0 / c) / (load(free, 0) * load(energy, 0)))
        for u in range(stop - start):
            first, last = offsets[start + u], offsets[start + u + 1]
            if free[u] > 0:
                _residuals(projected, place_of(first - offsets[start], u), y, first, last, level[u], heads, u, errors)
        for u in range(stop - start - 1, -1, -1):  # backwards: the rows read last are still in the first-level cache
            first, last = offsets[start + u], offsets[start + u + 1]
            if free[u] > 0:
                combine_rows(X, first, last, errors, place_of(first - offsets[start], u), 1, rows, u)
                sizes[u] = scale_row(rows, u, lengths[u], scale)
        add_gains(rows, directions, gains, along, sizes)
        weigh(heads, metric, lengths, sizes, weight, measured, weights)
        add_steps(measured, weights, k, rows, width, out, start // size)
        start = stop


@_inside
def add_steps(measured, weights, k, rows, width, out, block):
    """Add the weighted steps of eight users to their block."""
    _complete_rows(measured, weights, k, rows, width)
    _add_outer(weights, rows, out, block)


@_inside
def _group_end(offsets, start, size, row_bytes):
    """Return the end of a group: at most eight users of one block, with rows that fit the cache (or one user)."""
    stop, end = start + 1, min(offsets.size - 1, start + _USERS, start - start % size + size)
    while stop < end:
        if (offsets[stop + 1] - offsets[start]) * row_bytes > _GROUP_BYTES:
            break
        stop += 1
    return stop


@_inside
def _longest_group(offsets, size, row_bytes):
    """Return the buffer length for the projections of any group."""
    rows, start = 0, 0
    while start < offsets.size - 1:
        stop = _group_end(offsets, start, size, row_bytes)
        rows = max(rows, offsets[stop] - offsets[start])
        start = stop
    return place_of(rows, _USERS) + 8


@_inside
def mean_row(X, first, last, weights, out):
    """Write the mean of rows first..last to the first row of ``out``; ``weights`` is a buffer, one number per row."""
    for j in range(last - first):
        weights[j] = 1.0 / (last - first)
    combine_rows(X, first, last, weights, 0, 1, out, 0)


@_inside
def _center(P, place, y, first, last):
    """Subtract the means from a user's projections; return the mean target."""
    m = last - first
    for b in range(P.shape[0]):
        mean = 0.0
        for j in range(m):
            mean += P[b, place + j] / m
        for j in range(m):
            P[b, place + j] -= mean
    mean = 0.0
    for j in range(first, last):
        mean += y[j] / m
    return mean


@_inside
def mean_square(X, first, last, mean, squared):
    """Return the mean squared feature (in whitening's scale) of every fourth row: enough for the step's length."""
    d, lanes = X.shape[1], lanes_of(X)
    zero = spread(X.dtype.type(0))
    sums, broad = zero, d - d % (4 * lanes)
    for a in range(0, broad, 4 * lanes):
        s0 = s1 = s2 = s3 = zero
        m0, m1, m2, m3 = four(mean, a, lanes)
        for j in range(first, last, 4):
            x0, x1, x2, x3 = four(X, j * d + a, lanes)
            x0, x1, x2, x3 = x0 - m0, x1 - m1, x2 - m2, x3 - m3
            s0, s1, s2, s3 = s0 + x0 * x0, s1 + x1 * x1, s2 + x2 * x2, s3 + x3 * x3
        m0, m1, m2, m3 = four(squared, a, lanes)
        sums = sums + (s0 * m0 + s1 * m1) + (s2 * m2 + s3 * m3)
    for a in range(broad, d, lanes):
        part = zero
        for j in range(first, last, 4):
            value = load_first(X, j * d + a, d - a) - load(mean, a)
            part = part + value * value
        sums = sums + part * load(squared, a)
    return total(sums) / ((last - first + 3) // 4 * d)


@_inside
def _solve(systems, k, cholesky, heads):
    """Solve for the heads of eight users at once, one per lane, by Cholesky. A singular lane gets NaN or infinity.

    The diagonal is kept as its reciprocal, because divisions dominate the cost of a small solve.
    """
    K, size = systems.shape[1], systems.size // _USERS
    trace = spread(0.0)
    for i in range(k):
        trace = trace + load_every(systems, i * K + i, size)
    ridge = trace * spread(TINY_RIDGE)
    for j in range(k):
        for i in range(j, k):
            value = load_every(systems, i * K + j, size)
            for p in range(j):
                value = value - load(cholesky, (i * K + p) * _USERS) * load(cholesky, (j * K + p) * _USERS)
            scaled = spread(1.0) / root(value + ridge) if i == j else value * load(cholesky, (j * K + j) * _USERS)
            store(cholesky, (i * K + j) * _USERS, scaled)
        value = load_every(systems, K * K + j, size)
        for p in range(j):
            value = value - load(cholesky, (j * K + p) * _USERS) * load(heads, p * _USERS)
        store(heads, j * _USERS, value * load(cholesky, (j * K + j) * _USERS))
    for i in range(k - 1, -1, -1):
        value = load(heads, i * _USERS)
        for p in range(i + 1, k):
            value = value - load(cholesky, (p * K + i) * _USERS) * load(heads, p * _USERS)
        store(heads, i * _USERS, value * load(cholesky, (i * K + i) * _USERS))


@_inside
def _residuals(P, place, y, first, last, level, heads, u, out):
    """Write y − level − Pᵀ heads[:, u] to ``out``."""
    m, room = last - first, P.shape[1]
    for i in range(0, m, _USERS):
        value = load_doubles(y, first + i, m - i) - spread(level)
        for b in range(heads.shape[0]):
            value = value - load(P, b * room + place + i) * spread(heads[b, u])
        store(out, place + i, value)


@_inside
def scale_row(rows, u, factor, scale):
    """Multiply rows[u] by a factor; return the squared norm of the result in whitening's scale.

    Scaled before it is squared: a correction of normal size may be the product of a tiny and a huge number.
    """
    start, sums, factors = u * rows.shape[1], spread(0.0), spread(factor)
    for a in range(0, scale.size, _USERS):
        value = load(rows, start + a) * factors
        store(rows, start + a, value)
        value = value * load(scale, a)
        sums = sums + value * value
    return total(sums)


@_inside
def add_gains(rows, directions, gains, along, sizes):
    """Add the contribution of whitening's directions to the squared norms of the eight users."""
    if gains.size == 0:
        return
    project_rows(rows, 0, _USERS, directions.shape[1], directions, along, 0, 0)
    value = load(sizes, 0)
    for q in range(gains.size):
        part = load(along, q * _USERS)
        value = value + spread(gains[q]) * part * part
    store(sizes, 0, value)


@_inside
def weigh(heads, metric, lengths, sizes, weight, measured, weights):
    """Write measured heads, and weights that give the eight contributions (weights ⊗ (r, v)) the norm ``weight``.

    Both are zero for a user whose numbers are not finite or underflow.
    """
    k = metric.shape[0]
    size = spread(0.0)
    for b in range(k):
        value = spread(0.0)
        for p in range(k):
            value = value + load(heads, p * _USERS) * spread(metric[p, b])
        store(measured, b * _USERS, value)
        size = size + value * value
    norm = root(size) * root(load(sizes, 0) + size)  # ν
    # A length of zero means that the energy overflowed.
    part = where_usable(load(lengths, 0), where_usable(norm, spread(weight) / norm))
    part = where_usable(size - spread(LEAST), part)
    part = where_usable(part - spread(LEAST), part)  # smaller weights have lost digits, and would exceed the norm
    for b in range(k):
        value = where_usable(part, load(measured, b * _USERS))
        store(measured, b * _USERS, value)
        store(weights, b * _USERS, value * part)


@_inside
def _complete_rows(measured, weights, k, rows, width):
    """Append measured heads to the corrections; clear rows of weight zero, because zero times NaN is NaN."""
    for u in range(_USERS):
        size = 0.0
        for b in range(k):
            rows[u, width + b] = measured[b, u]
            size += abs(weights[b, u])
        if size == 0.0:
            rows[u] = 0.0


@_inside
def _add_outer(weights, rows, out, block):
    """Add Σ_u weights[b, u]·rows[u] to out[block, b], four rows of out at a time, users in order."""
    width, height = out.shape[2], out.shape[1]
    for b in range(0, height, 4):
        for a in range(0, width, 2 * _USERS):
            position = (block * height + b) * width + a
            s0, s1, s2, s3 = four(out, position, width)
            t0, t1, t2, t3 = four(out, position + _USERS, width)
            for u in range(_USERS):
                low, high = load(rows, u * width + a), load(rows, u * width + a + _USERS)
                w0, w1 = spread(weights[b, u]), spread(weights[b + 1, u])
                w2, w3 = spread(weights[b + 2, u]), spread(weights[b + 3, u])
                s0, s1, s2, s3 = s0 + w0 * low, s1 + w1 * low, s2 + w2 * low, s3 + w3 * low
                t0, t1, t2, t3 = t0 + w0 * high, t1 + w1 * high, t2 + w2 * high, t3 + w3 * high
            store_four(out, position, width, (s0, s1, s2, s3))
            store_four(out, position + _USERS, width, (t0, t1, t2, t3))
