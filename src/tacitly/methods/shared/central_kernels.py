"""The compiled form of :class:`~tacitly.methods.shared.central.Correction`: each user's rows are read from memory once.

Users are computed one after the other, each from their own rows only. A user whose numbers are not finite gets zeros.
"""

# Numba kernels are not typed.
# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

import math

import numpy as np

from tacitly.simd.lazy_njit import njit

_VARIED = 1e-12  # of the largest sum of squares: columns with less do not vary


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc", "contract"})
def write_corrections(X, y, offsets, scale, directions, gains, model, centered, out):
    """Write one correction per user to ``out``; ``directions`` are rows, of norm one."""
    d, r = X.shape[1], gains.size
    mean, row, along = np.zeros(d), np.empty(d), np.empty(r)
    sums, squares = np.empty(d), np.empty(d)
    for i in range(offsets.size - 1):
        first, last, level = offsets[i], offsets[i + 1], 0.0
        for a in range(d):
            out[i, a], sums[a], squares[a] = 0.0, 0.0, 0.0
        if last - first <= centered:
            continue
        if centered:
            mean[:] = 0.0
            for j in range(first, last):
                level += y[j]
                for a in range(d):
                    mean[a] += X[j, a]
            level /= last - first
            for a in range(d):
                mean[a] /= last - first
        for j in range(first, last):
            for a in range(d):
                row[a] = (X[j, a] - mean[a]) * scale[a]
            for q in range(r):
                dot = 0.0
                for a in range(d):
                    dot += directions[q, a] * row[a]
                along[q] = gains[q] * dot
            for q in range(r):
                for a in range(d):
                    row[a] += along[q] * directions[q, a]
            left = y[j] - level
            fitted = 0.0
            for a in range(d):
                fitted += row[a] * model[a]
            left -= fitted
            for a in range(d):
                sums[a] += row[a] * left
                squares[a] += row[a] * row[a]
        largest, total, varied = 0.0, 0.0, 0
        for a in range(d):
            largest, total = max(largest, squares[a]), total + squares[a]
        for a in range(d):
            varied += squares[a] > _VARIED * largest
        size = (last - first - centered) * (total / ((last - first) * max(varied, 1)))
        if math.isfinite(size) and size > 0.0:
            for a in range(d):
                out[i, a] = sums[a] / size
