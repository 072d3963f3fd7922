"""The compiled part of :mod:`tacitly.methods.trace_regression.queries`: one pass over the rows, one unit at a time.

A unit (an observation, or all observations of a user) is processed alone: its left product Σ w·XV and right product
Σ w·XᵀU are written to buffers, their norm is computed, and they are added with one factor. The norm is computed from
the numbers that are added, in double precision for any precision of the rows. Sums run over units in order; a unit that
is not finite, or whose squares underflow, is skipped and changes no bit of them.

Right products are added unprojected, and the sum is projected off V once. The squared norm of a projected contribution
is therefore computed as ‖A‖² + ‖B‖² − ‖VᵀB‖². It is at least ‖B‖²/2 (UᵀA and (VᵀB)ᵀ are the same matrix, so
‖VᵀB‖ ≤ ‖A‖), and that half is used as a lower bound, so that rounding in the difference cannot let a large B through.
"""

# Numba kernels are not typed.
# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tacitly.privacy.clipping import LEAST
from tacitly.simd.lazy_njit import njit
from tacitly.simd.projections import (
    combine_rows,
    four,
    project_rows_half,
    project_three_half,
    project_two_half,
    store_four,
)
from tacitly.simd.registers import fetch, lanes_of, load_first, spread, store

PER_OCTAVE = 2
"""Bins of the tracked histogram per factor of two in norm."""
BINS = 16
"""Bins of the tracked histogram."""
ZERO = 12
"""The first bin at or above the bound: bins cover six octaves below it and two above."""

# Prefetch distance in bytes. The two products of an observation prefetch half of the cache lines each: if the first
# prefetched all, memory would be idle during the second (measured: 2.2 times the time of reading alone, against 1.35).
_AHEAD = 1 << 15

_kernel: Any = njit(nogil=True, cache=True, fastmath={"reassoc", "contract"}, error_model="numpy")
_exact: Any = njit(nogil=True, cache=True, fastmath={"contract"}, error_model="numpy")


def _combination(ahead):
    """Compile a kernel for two weighted sums of rows at once; it prefetches every other line ``ahead`` bytes away."""

    @_exact
    def combine(X, first, last, weights, at, out, u):
        """Compute two weighted sums of rows, as :func:`~tacitly.simd.projections.combine_rows` does for one."""
        d, lanes, place, width, m = X.shape[1], lanes_of(X), u * out.shape[1], out.shape[1], last - first
        zero, far = spread(X.dtype.type(0)), ahead // X.itemsize
        broad = d - d % (4 * lanes)
        for a in range(0, broad, 4 * lanes):
            s0 = s1 = s2 = s3 = t0 = t1 = t2 = t3 = zero
            for j in range(m):
                s, t = spread(weights[at + j]), spread(weights[at + m + j])
                position = (first + j) * d + a
                if ahead > 0:
                    fetch(X, position + far + lanes)
                    fetch(X, position + far + 3 * lanes)
                x0, x1, x2, x3 = four(X, position, lanes)
                s0, s1, s2, s3 = s0 + s * x0, s1 + s * x1, s2 + s * x2, s3 + s * x3
                t0, t1, t2, t3 = t0 + t * x0, t1 + t * x1, t2 + t * x2, t3 + t * x3
            store_four(out, place + a, lanes, (s0, s1, s2, s3))
            store_four(out, place + width + a, lanes, (t0, t1, t2, t3))
        for a in range(broad, d, lanes):
            s0 = t0 = zero
            for j in range(m):
                x0 = load_first(X, (first + j) * d + a, d - a)
                s0, t0 = s0 + spread(weights[at + j]) * x0, t0 + spread(weights[at + m + j]) * x0
            store(out, place + a, s0)
            store(out, place + width + a, t0)

    return combine


_combine_two = _combination(0)
_combine_two_ahead = _combination(_AHEAD)


@_kernel
def bin_of(norm, limit):
    """Return the bin of a positive norm."""
    octaves = min(max(math.log2(norm) - math.log2(limit), -100.0), 100.0)
    return min(max(ZERO + math.floor(PER_OCTAVE * octaves), 0), BINS - 1)


@_kernel
def _coefficient(norm, weight, limit, counts):
    """Return the factor of a unit with this norm and weight, 0 to skip it; count its bin."""
    size = abs(weight) * norm
    if not (norm * norm > LEAST and size > 0.0 and math.isfinite(size)):
        return 0.0
    coefficient = weight if size <= limit else math.copysign(limit / norm, weight)
    # Smaller coefficients have lost digits to underflow, so the product could exceed the bound.
    if not abs(coefficient) > LEAST:
        return 0.0
    counts[bin_of(size, limit)] += 1.0
    return coefficient


@_kernel
def _norm(left, right, inside, level):
    """Return the norm of a unit from ‖A‖², ‖B‖², ‖VᵀB‖² and its entry for the level."""
    return math.sqrt(max(left + right - inside, 0.5 * right) + level * level)


@_kernel
def _scale(rows, r, shift, scales):
    """Subtract a public shift from r rows and multiply them by scales, entry by entry; return their squared norm."""
    total = 0.0
    for k in range(r):
        for j in range(scales.size):
            rows[k, j] = (rows[k, j] - shift[k, j]) * scales[j]
            total += rows[k, j] * rows[k, j]
    return total


@_kernel
def _inner(first, k, second, j, size):
    total = 0.0
    for b in range(size):
        total += first[k, b] * second[j, b]
    return total


@_kernel
def _add(target, source, r, size, factor):
    for k in range(r):
        for j in range(size):
            target[k, j] += factor * source[k, j]


@_kernel
def _inside(right, rows, r, core):
    """Write VᵀB to ``core``; return its squared norm."""
    total, size = 0.0, right.shape[1]
    for k in range(r):
        for j in range(r):
            core[k, j] = _inner(right, k, rows, j, size)
            total += core[k, j] * core[k, j]
    return total


@_kernel
def dense_products(
    X, y, offsets, by_row, parts, to_left, to_right, shift1, shift2, right, values, scale1, scale2, level, limit, out1,
    out2, counts, norms
):  # fmt: skip
    """Add every unit's clipped products to ``out1`` (r×d₁) and ``out2`` (r×d₂); write norms, before clipping.

    ``parts``: 1 left, 2 right, 3 both. ``to_left`` holds V scaled, as rows and padded; ``to_right`` U scaled, flat and
    of at least two columns; both in the precision of X. ``right`` is V as rows. ``values`` are the singular values of M
    (zeros: weights are the labels). ``shift1`` and ``shift2`` are the products of the design's centre. ``level`` is an
    observation's entry for the level, which is summed in the last of ``counts``.
    """
    d1, d2, r = scale1.size, scale2.size, values.size
    rows = X.reshape(X.shape[0] * d1, d2)
    A, B = np.zeros((to_left.shape[0], d1 + 16)), np.zeros((max(r, 2), d2 + -d2 % 16))
    sumA, sumB, core = np.zeros((r, d1)), np.zeros((r, d2)), np.zeros((r, r))
    units = X.shape[0] if by_row else offsets.size - 1
    for u in range(units):
        first, last = (u, u + 1) if by_row else (offsets[u], offsets[u + 1])
        if not by_row:
            sumA[:] = 0.0
            sumB[:] = 0.0
        left = right_size = inside = weight = levels = 0.0
        for i in range(first, last):
            left = right_size = inside = 0.0
            if parts != 2:
                if r <= 2:
                    project_two_half(rows, i * d1, (i + 1) * d1, d2, to_left, A, 0, _AHEAD)
                elif r == 3:
                    project_three_half(rows, i * d1, (i + 1) * d1, d2, to_left, A, 0, _AHEAD)
                else:
                    project_rows_half(rows, i * d1, (i + 1) * d1, d2, to_left, A, 0, _AHEAD)
                left = _scale(A, r, shift1, scale1)
            weight = np.float64(y[i])
            if parts != 1:
                _combine_two_ahead(rows, i * d1, (i + 1) * d1, to_right, 0, B, 0)
                for k in range(2, r - 1, 2):
                    _combine_two(rows, i * d1, (i + 1) * d1, to_right, k * d1, B, k)
                if r % 2 == 1 and r > 1:
                    combine_rows(rows, i * d1, (i + 1) * d1, to_right, (r - 1) * d1, 1, B, r - 1)
                right_size = _scale(B, r, shift2, scale2)
                if parts == 3:
                    inside = _inside(right, B, r, core)
                    for k in range(r):
                        weight -= values[k] * core[k, k]
            if not by_row:
                _add(sumA, A, r, d1, weight)
                _add(sumB, B, r, d2, weight)
                levels += weight * level
        if by_row:
            norm = _norm(left, right_size, inside, level)
            coefficient = _coefficient(norm, weight, limit, counts)
            norms[u] = norm * abs(weight)
            counts[BINS] += coefficient * level
            if coefficient != 0.0:
                _add(out1, A, r, out1.shape[1], coefficient)
                _add(out2, B, r, out2.shape[1], coefficient)
            continue
        left = right_size = inside = 0.0
        if parts != 2:
            for k in range(r):
                left += _inner(sumA, k, sumA, k, d1)
        if parts != 1:
            for k in range(r):
                right_size += _inner(sumB, k, sumB, k, d2)
            if parts == 3:
                inside = _inside(right, sumB, r, core)
        norms[u] = _norm(left, right_size, inside, levels)
        coefficient = _coefficient(norms[u], 1.0, limit, counts)
        if coefficient != 0.0:
            counts[BINS] += coefficient * levels
            _add(out1, sumA, r, out1.shape[1], coefficient)
            _add(out2, sumB, r, out2.shape[1], coefficient)


@_kernel
def position(value, size):
    """Return a number as a position, or −1 if it is not an integer in range."""
    if value >= 0.0 and value < size and value == math.floor(value):
        return int(value)
    return -1


@_kernel
def touch(coordinate, marks, touched, count):
    """Record a coordinate unless it is already recorded; return the number of recorded coordinates."""
    if marks[coordinate] == 0:
        marks[coordinate] = 1
        touched[count] = coordinate
        return count + 1
    return count


@_kernel
def _add_touched(target, source, touched, marks, count, factor):
    """Add the touched rows of ``source``, times a factor (0: skip), to ``target``; clear them and their marks."""
    for t in range(count):
        a = touched[t]
        marks[a] = 0
        for k in range(source.shape[1]):
            if factor != 0.0:
                target[a, k] += factor * source[a, k]
            source[a, k] = 0.0


@_kernel
def factored_products(
    X, y, offsets, by_row, parts, hot1, hot2, scaled1, scaled2, right, values, scale1, scale2, limit, out1, out2,
    counts, norms
):  # fmt: skip
    """Add clipped products as :func:`dense_products` does, for X = a bᵀ; ``out1`` is d₁×r, ``out2`` d₂×r, ``right`` V.

    ``scaled1`` and ``scaled2`` are U and V with scaled rows. Only coordinates that a unit touches are visited.
    """
    d1, d2, r = scale1.size, scale2.size, values.size
    split = 1 if hot1 else d1
    A, B, core = np.zeros((d1, r)), np.zeros((d2, r)), np.zeros((r, r))
    marks1, marks2 = np.zeros(d1, dtype=np.int8), np.zeros(d2, dtype=np.int8)
    touched1, touched2 = np.zeros(d1, dtype=np.int64), np.zeros(d2, dtype=np.int64)
    p, q = np.zeros(r), np.zeros(r)
    units = X.shape[0] if by_row else offsets.size - 1
    for u in range(units):
        first, last = (u, u + 1) if by_row else (offsets[u], offsets[u + 1])
        n1 = n2 = 0
        for i in range(first, last):
            at1 = position(X[i, 0], d1) if hot1 else 0
            at2 = position(X[i, split], d2) if hot2 else 0
            if at1 < 0 or at2 < 0:
                continue
            weight = np.float64(y[i])
            p[:] = 0.0
            q[:] = 0.0
            for b in range(at2, at2 + 1 if hot2 else d2):
                value = 1.0 if hot2 else np.float64(X[i, split + b])
                for k in range(r):
                    p[k] += scaled2[b, k] * value
            for a in range(at1, at1 + 1 if hot1 else d1):
                value = 1.0 if hot1 else np.float64(X[i, a])
                for k in range(r):
                    q[k] += scaled1[a, k] * value
            for k in range(r):
                weight -= values[k] * p[k] * q[k]
            if parts != 2:
                for a in range(at1, at1 + 1 if hot1 else d1):
                    n1 = touch(a, marks1, touched1, n1)
                    value = weight * scale1[a] * (1.0 if hot1 else np.float64(X[i, a]))
                    for k in range(r):
                        A[a, k] += value * p[k]
            if parts != 1:
                for b in range(at2, at2 + 1 if hot2 else d2):
                    n2 = touch(b, marks2, touched2, n2)
                    value = weight * scale2[b] * (1.0 if hot2 else np.float64(X[i, split + b]))
                    for k in range(r):
                        B[b, k] += value * q[k]
        left = right_size = inside = 0.0
        core[:] = 0.0
        for t in range(n1):
            for k in range(r):
                left += A[touched1[t], k] * A[touched1[t], k]
        for t in range(n2):
            b = touched2[t]
            for k in range(r):
                right_size += B[b, k] * B[b, k]
                if parts == 3:
                    for j in range(r):
                        core[j, k] += right[b, j] * B[b, k]
        for k in range(r):
            for j in range(r):
                inside += core[j, k] * core[j, k]
        norms[u] = _norm(left, right_size, inside, 0.0)
        coefficient = _coefficient(norms[u], 1.0, limit, counts)
        _add_touched(out1, A, touched1, marks1, n1, coefficient)
        _add_touched(out2, B, touched2, marks2, n2, coefficient)
