"""Compiled sums for the start of trace regression: energies of the design, labelled sums, energies along a step.

The rules of :mod:`tacitly.methods.trace_regression.kernels` apply: a unit is processed alone, its norm is computed in
double precision from the numbers that are added, and it is skipped if it is not finite or its squares underflow.
"""

# Numba kernels are not typed.
# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tacitly.methods.trace_regression.kernels import position, touch
from tacitly.privacy.clipping import LEAST
from tacitly.simd.lazy_njit import njit

_kernel: Any = njit(nogil=True, cache=True, fastmath={"reassoc", "contract"}, error_model="numpy")


@_kernel
def dense_energies(X, offsets, by_row, centre, limit, out, norms):
    """Add every unit's clipped sums of squares, by row and by column of its centred matrices."""
    d1, d2 = centre.shape
    own = np.zeros(d1 + d2)
    for u in range(X.shape[0] if by_row else offsets.size - 1):
        first, last = (u, u + 1) if by_row else (offsets[u], offsets[u + 1])
        own[:] = 0.0
        for i in range(first, last):
            for a in range(d1):
                total = 0.0
                for b in range(d2):
                    value = np.float64(X[i, a * d2 + b]) - centre[a, b]
                    square = value * value
                    total += square
                    own[d1 + b] += square
                own[a] += total
        _add_energies(own, limit, out, norms, u)


@_kernel
def _add_energies(own, limit, out, norms, u):
    total = 0.0
    for j in range(own.size):
        total += own[j] * own[j]
    norms[u] = math.sqrt(total)
    if total > LEAST and math.isfinite(total):
        factor = min(1.0, limit / norms[u])
        for j in range(own.size):
            out[j] += factor * own[j]


@_kernel
def factored_energies(X, offsets, by_row, hot1, hot2, d1, d2, limit, out, norms):
    """Add energies as :func:`dense_energies` does, for X = a bᵀ: a²·‖b‖² and b²·‖a‖²."""
    split = 1 if hot1 else d1
    own = np.zeros(d1 + d2)
    marks, touched = np.zeros(d1 + d2, dtype=np.int8), np.zeros(d1 + d2, dtype=np.int64)
    for u in range(X.shape[0] if by_row else offsets.size - 1):
        first, last = (u, u + 1) if by_row else (offsets[u], offsets[u + 1])
        count = 0
        for i in range(first, last):
            at1 = position(X[i, 0], d1) if hot1 else 0
            at2 = position(X[i, split], d2) if hot2 else 0
            if at1 < 0 or at2 < 0:
                continue
            norm1 = norm2 = 1.0
            if not hot1:
                norm1 = 0.0
                for a in range(d1):
                    norm1 += np.float64(X[i, a]) * np.float64(X[i, a])
            if not hot2:
                norm2 = 0.0
                for b in range(d2):
                    norm2 += np.float64(X[i, split + b]) * np.float64(X[i, split + b])
            for a in range(at1, at1 + 1 if hot1 else d1):
                count = touch(a, marks, touched, count)
                own[a] += norm2 * (1.0 if hot1 else np.float64(X[i, a]) * np.float64(X[i, a]))
            for b in range(at2, at2 + 1 if hot2 else d2):
                count = touch(d1 + b, marks, touched, count)
                own[d1 + b] += norm1 * (1.0 if hot2 else np.float64(X[i, split + b]) * np.float64(X[i, split + b]))
        total = 0.0
        for t in range(count):
            total += own[touched[t]] * own[touched[t]]
        norms[u] = math.sqrt(total)
        usable = total > LEAST and math.isfinite(total)
        for t in range(count):
            j = touched[t]
            marks[j] = 0
            if usable:
                out[j] += min(1.0, limit / norms[u]) * own[j]
            own[j] = 0.0


@_kernel
def dense_labelled(X, y, offsets, by_row, centre, scales, limit, out, norms):
    """Add every unit's clipped Σ y·X̃ to ``out``, with X centred.

    Entries are scaled before they are squared: if scales are large, squares of unscaled entries could underflow.
    """
    own = np.zeros(X.shape[1] if not by_row else 0)
    for u in range(X.shape[0] if by_row else offsets.size - 1):
        total, weight = 0.0, 1.0
        if by_row:
            weight = np.float64(y[u])
            for j in range(scales.size):
                value = scales[j] * (np.float64(X[u, j]) - centre[j])
                total += value * value
        else:
            own[:] = 0.0
            for i in range(offsets[u], offsets[u + 1]):
                for j in range(scales.size):
                    own[j] += np.float64(y[i]) * (scales[j] * (np.float64(X[i, j]) - centre[j]))
            for j in range(scales.size):
                total += own[j] * own[j]
        norm = math.sqrt(total)
        norms[u] = norm * abs(weight)
        if not (total > LEAST and norms[u] > 0.0 and math.isfinite(norms[u])):
            continue
        coefficient = weight if norms[u] <= limit else math.copysign(limit / norm, weight)
        if abs(coefficient) > LEAST:
            for j in range(scales.size):
                out[j] += coefficient * (scales[j] * (np.float64(X[u, j]) - centre[j]) if by_row else own[j])


@_kernel
def dense_along(X, offsets, by_row, direction, shift, out):
    """Write every unit's Σ(⟨X, direction⟩ − shift)²."""
    for u in range(X.shape[0] if by_row else offsets.size - 1):
        first, last = (u, u + 1) if by_row else (offsets[u], offsets[u + 1])
        for i in range(first, last):
            total = 0.0
            for j in range(direction.size):
                total += np.float64(X[i, j]) * direction[j]
            out[u] += (total - shift) * (total - shift)


@_kernel
def factored_along(X, offsets, by_row, hot1, hot2, left, right, out):
    """Write energies as :func:`dense_along` does, for X = a bᵀ and the direction left·rightᵀ."""
    d1, d2, r = left.shape[0], right.shape[0], left.shape[1]
    split = 1 if hot1 else d1
    p, q = np.zeros(r), np.zeros(r)
    for u in range(X.shape[0] if by_row else offsets.size - 1):
        first, last = (u, u + 1) if by_row else (offsets[u], offsets[u + 1])
        for i in range(first, last):
            at1 = position(X[i, 0], d1) if hot1 else 0
            at2 = position(X[i, split], d2) if hot2 else 0
            if at1 < 0 or at2 < 0:
                continue
            p[:] = 0.0
            q[:] = 0.0
            for a in range(at1, at1 + 1 if hot1 else d1):
                value = 1.0 if hot1 else np.float64(X[i, a])
                for k in range(r):
                    p[k] += left[a, k] * value
            for b in range(at2, at2 + 1 if hot2 else d2):
                value = 1.0 if hot2 else np.float64(X[i, split + b])
                for k in range(r):
                    q[k] += right[b, k] * value
            total = 0.0
            for k in range(r):
                total += p[k] * q[k]
            out[u] += total * total
