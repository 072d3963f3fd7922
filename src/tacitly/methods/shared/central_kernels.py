"""The compiled form of :class:`~tacitly.methods.shared.central.Correction`: each user's rows are read from memory once.

Users are processed one after the other, each from their own rows only, in double precision. A user with numbers that
are not finite gets zeros.
"""

# Numba kernels are not typed.
# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tacitly.simd.lanes import LANES, aligned
from tacitly.simd.lazy_njit import njit
from tacitly.simd.registers import fetch, load, load_doubles, spread, store, total

_VARIED = 1e-12  # of the largest sum of squares: columns with less do not vary
_AHEAD = 1 << 15  # prefetch distance in bytes

_kernel: Any = njit(nogil=True, cache=True, error_model="numpy", fastmath={"contract"})


@_kernel
def write_corrections(X, y, offsets, public, centered, out):
    """Write one correction per user, on scaled features, to ``out``, which contains zeros.

    ``public`` has the scale and the weights on raw features as rows; it and ``out`` are padded with zeros.
    """
    longest = 1
    for i in range(offsets.size - 1):
        longest = max(longest, offsets[i + 1] - offsets[i])
    left, work = np.empty(longest), aligned(2, out.shape[1])  # residuals; means, then sums of squares
    for i in range(offsets.size - 1):
        first, last = offsets[i], offsets[i + 1]
        if last - first <= centered:
            continue
        level = 0.0
        if centered:
            _write_means(X, first, last, work)
            for j in range(first, last):
                level += y[j] / (last - first)
        _write_residuals(X, y, first, last, work, level, public, left)
        _write_pull(X, first, last, left, work, public, out, i)
        energy, varied = _energy(work)
        size = (last - first - centered) * (energy / ((last - first) * max(varied, 1)))
        if math.isfinite(size) and size > 0.0:
            _divide(out, i, size)
        else:
            out[i] = 0.0


@_kernel
def _write_means(X, first, last, work):
    """Write the means of the columns to the first row of ``work``."""
    d = X.shape[1]
    for a in range(0, d, LANES):
        value = spread(0.0)
        for j in range(first, last):
            value = value + load_doubles(X, j * d + a, d - a)
        store(work, a, value / spread(1.0 * (last - first)))


@_kernel
def _write_residuals(X, y, first, last, work, level, public, out):
    """Write y − level − (x − means)·weights, two rows at a time, because each addition waits for the previous one."""
    d, width, end, ahead = X.shape[1], public.shape[1], (last - 1) * X.shape[1], _AHEAD // X.itemsize
    for j in range(first, last, 2):
        p0 = j * d
        p1 = min(p0 + d, end)
        s0 = s1 = spread(0.0)
        for a in range(0, d, LANES):
            fetch(X, p0 + ahead + 2 * a)
            weights, mean = load(public, width + a), load(work, a)
            s0 = s0 + (load_doubles(X, p0 + a, d - a) - mean) * weights
            s1 = s1 + (load_doubles(X, p1 + a, d - a) - mean) * weights
        out[j - first] = y[j] - level - total(s0)
        if j + 1 < last:
            out[j + 1 - first] = y[j + 1] - level - total(s1)


@_kernel
def _write_pull(X, first, last, left, work, public, out, i):
    """Write Xᵀleft on scaled features to out[i], and the sums of their squares to the second row of ``work``."""
    d, width = X.shape[1], public.shape[1]
    for a in range(0, d, 2 * LANES):
        b = a + LANES
        m0, m1 = load(work, a), load(work, b)
        s0 = s1 = q0 = q1 = spread(0.0)
        for j in range(first, last):
            x0, x1 = load_doubles(X, j * d + a, d - a) - m0, load_doubles(X, j * d + b, d - b) - m1
            error = spread(left[j - first])
            s0, s1, q0, q1 = s0 + x0 * error, s1 + x1 * error, q0 + x0 * x0, q1 + x1 * x1
        m0, m1 = load(public, a), load(public, b)
        store(out, i * width + a, s0 * m0)
        store(out, i * width + b, s1 * m1)
        store(work, width + a, q0 * m0 * m0)
        store(work, width + b, q1 * m1 * m1)


@_kernel
def _energy(work):
    """Return the sum of all squares, and how many columns vary."""
    width, largest, varied = work.shape[1], 0.0, 0
    sums = spread(0.0)
    for a in range(0, width, LANES):
        sums = sums + load(work, width + a)
    for a in range(width):
        largest = max(largest, work[1, a])
    for a in range(width):
        varied += work[1, a] > _VARIED * largest
    return total(sums), varied


@_kernel
def _divide(out, i, size):
    width = out.shape[1]
    for a in range(0, width, LANES):
        store(out, i * width + a, load(out, i * width + a) / spread(size))
