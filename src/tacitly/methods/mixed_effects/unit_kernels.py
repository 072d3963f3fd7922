"""Compiled forms of the queries about units: cosines and sines of every cell, averaged over each user's rows.

The definitions are in :mod:`~tacitly.methods.mixed_effects.units`. Angles are in half turns, so that reducing them is
exact; sine and cosine are then Taylor series on an eighth of a turn (accurate to 1e-16), in loops without branches that
become SIMD code.
"""

# Numba kernels are not typed.
# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tacitly.simd.lazy_njit import njit

_kernel: Any = njit(nogil=True, cache=True, fastmath={"contract"}, error_model="numpy")
_inlined: Any = njit(nogil=True, fastmath={"contract"}, error_model="numpy", forceinline=True)


@_kernel
def write_angles(X, y, offsets, columns, center, period, out):
    """Write mean cosines, then mean sines, of π(x − center)/period for these columns; the number d is the target."""
    count, line = columns.size, np.empty(columns.size)
    cosines, sines = np.empty(count), np.empty(count)
    for user in range(offsets.size - 1):
        first, last = offsets[user], offsets[user + 1]
        cosines.fill(0.0)
        sines.fill(0.0)
        for j in range(first, last):
            _row(X, y, j, columns, line)
            for a in range(count):
                seen = abs(line[a]) < math.inf
                turns = ((line[a] if seen else center[a]) - center[a]) / period[a]
                cosine, sine = _point(turns)
                cosines[a] += cosine if seen else 0.0
                sines[a] += sine if seen else 0.0
        _write_means(cosines, sines, max(last - first, 1), out[user])


@_kernel
def write_magnitudes(X, y, offsets, columns, reach, out):
    """Write mean points of log₂|x| on the circle (cosines, then sines), how many cells are not 0 or 1, and finite."""
    count, line = columns.size, np.empty(columns.size)
    cosines, sines, others, finite = np.empty(count), np.empty(count), np.empty(count), np.empty(count)
    for user in range(offsets.size - 1):
        first, last = offsets[user], offsets[user + 1]
        for numbers in (cosines, sines, others, finite):
            numbers.fill(0.0)
        for j in range(first, last):
            _row(X, y, j, columns, line)
            for a in range(count):
                known = abs(line[a]) < math.inf
                finite[a] += 1.0 if known else 0.0
                others[a] += 1.0 if known and line[a] != 0.0 and line[a] != 1.0 else 0.0
                line[a] = abs(line[a]) if known and line[a] != 0.0 else math.nan
            for a in range(count):
                line[a] = math.log2(line[a])
            for a in range(count):
                seen = not math.isnan(line[a])
                size = min(max(line[a], -reach), reach) if seen else 0.0
                cosine, sine = _point(size * (0.9 / reach))
                cosines[a] += cosine if seen else 0.0
                sines[a] += sine if seen else 0.0
        _write_means(cosines, sines, max(last - first, 1), out[user])
        for a in range(count):
            out[user, 2 * count + a], out[user, 3 * count + a] = others[a], finite[a]


@_kernel
def _row(X, y, j, columns, out):
    """Write one row's cells of these columns in double precision."""
    d, whole = X.shape[1], columns.size == X.shape[1] + 1
    if whole:
        for a in range(d):
            out[a] = X[j, a]
        out[d] = y[j]
        return
    for a in range(columns.size):
        out[a] = y[j] if columns[a] == d else X[j, columns[a]]


@_kernel
def _write_means(cosines, sines, rows, out):
    for a in range(cosines.size):
        out[a], out[cosines.size + a] = cosines[a] / rows, sines[a] / rows


@_inlined
def _point(turns):
    """Return cos and sin of π·turns."""
    turns = turns - 2.0 * np.floor(0.5 * turns + 0.5)  # exact
    quarter = np.floor(2.0 * turns + 0.5)
    x = math.pi * (turns - 0.5 * quarter)  # at most π/4
    square = x * x
    sine = 1.0 - square * (1 / 210) * (1.0 - square * (1 / 272))
    sine = 1.0 - square * (1 / 110) * (1.0 - square * (1 / 156) * sine)
    sine = x * (
        1.0
        - square * (1 / 6) * (1.0 - square * (1 / 20) * (1.0 - square * (1 / 42) * (1.0 - square * (1 / 72) * sine)))
    )
    cosine = 1.0 - square * (1 / 182) * (1.0 - square * (1 / 240) * (1.0 - square * (1 / 306)))
    cosine = 1.0 - square * (1 / 90) * (1.0 - square * (1 / 132) * cosine)
    cosine = 1.0 - square * (1 / 2) * (
        1.0 - square * (1 / 12) * (1.0 - square * (1 / 30) * (1.0 - square * (1 / 56) * cosine))
    )
    swapped = quarter == 1.0 or quarter == -1.0
    c, s = (sine if swapped else cosine), (cosine if swapped else sine)
    # cos changes its sign in quarters 1, 2 and −2; sin in −1, 2 and −2.
    half = quarter == 2.0 or quarter == -2.0
    return (-c if half or quarter == 1.0 else c), (-s if half or quarter == -1.0 else s)
