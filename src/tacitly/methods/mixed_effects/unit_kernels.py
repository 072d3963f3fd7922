"""Compiled forms of the queries about units: cosines and sines of cells, averaged over each user's rows.

The definitions are in :mod:`~tacitly.methods.mixed_effects.unit_queries`. A user's cells are copied in double precision
and evaluated eight at a time: columns side by side, or the targets of eight rows. No register contains cells of two
users, so a user's numbers depend on that user's rows only, to the last bit. (Numba caches compiled code and checks for
changes in this file only: after a change in ``tacitly.simd``, delete the cache.)
"""

# Numba kernels are not typed.
# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

import math
from typing import Any

from tacitly.simd.lanes import LANES, aligned
from tacitly.simd.lazy_njit import njit
from tacitly.simd.points import logarithm, point
from tacitly.simd.registers import (
    absolute,
    add_to,
    at_least,
    at_most,
    load,
    nearest,
    spread,
    total,
    where_finite,
    where_usable,
)

_ROWS = 64  # rows that are copied at a time: few enough for the first-level cache; a multiple of the lanes

_kernel: Any = njit(nogil=True, cache=True, fastmath={"contract"}, error_model="numpy")


@_kernel
def write_angles(X, y, offsets, features, target, center, period, weights, out):
    """Write weighted mean cosines, then sines, of π(x − center)/period, for these features and perhaps the target.

    ``center`` and ``period`` have a number for each of the features, padded to whole registers, then a register for
    the target. ``out`` has room for all columns; those of others are left as they are.
    """
    width = center.size - LANES
    rows, targets, sums = aligned(_ROWS, width), aligned(1, _ROWS), aligned(4, center.size)
    for user in range(offsets.size - 1):
        first, last = offsets[user], offsets[user + 1]
        sums.fill(0.0)
        for start in range(first, last, _ROWS):
            count = min(last - start, _ROWS)
            _copy(X, y, start, count, features, rows, targets)
            for a in range(0, features.size, LANES):
                _add_angles(rows, a, width, count, center, period, a, sums)
            if target:
                _add_angles(targets, 0, LANES, -(-count // LANES), center, period, width, sums)
        _write_means(sums, features, target, weights, out, user)


@_kernel
def write_magnitudes(X, y, offsets, features, target, octaves, reach, weights, out):
    """Write weighted mean points of log₂|x| − octaves (cosines, then sines), then the weights of binary features.

    Means are over values that are not zero. A feature whose values are all 0 or 1 has no point but its weight.
    ``octaves`` and ``out`` as ``center`` and ``out`` in :func:`write_angles`.
    """
    columns, width = weights.size, octaves.size - LANES
    rows, targets, sums = aligned(_ROWS, width), aligned(1, _ROWS), aligned(4, octaves.size)
    for user in range(offsets.size - 1):
        first, last = offsets[user], offsets[user + 1]
        sums.fill(0.0)
        for start in range(first, last, _ROWS):
            count = min(last - start, _ROWS)
            _copy(X, y, start, count, features, rows, targets)
            for a in range(0, features.size, LANES):
                _add_magnitudes(rows, a, width, count, octaves, reach, a, sums)
            if target:
                _add_magnitudes(targets, 0, LANES, -(-count // LANES), octaves, reach, width, sums)
            _look_for_others(rows, count, features.size, sums)
        _write_means(sums, features, target, weights, out, user)
        for a in range(features.size):
            if sums[2, a] == _BINARY:
                k = features[a]
                out[user, k], out[user, columns + k], out[user, 2 * columns + k] = 0.0, 0.0, weights[k]


@_kernel
def _copy(X, y, start, count, features, rows, targets):
    """Copy rows in double precision: these features, and targets, which are filled up with missing ones."""
    if features.size == X.shape[1]:  # no positions to look up: the loop becomes SIMD code
        for j in range(count):
            for a in range(X.shape[1]):
                rows[j, a] = X[start + j, a]
    else:
        for j in range(count):
            for a in range(features.size):
                rows[j, a] = X[start + j, features[a]]
    for j in range(count):
        targets[0, j] = y[start + j]
    for j in range(count, count + -count % LANES):
        targets[0, j] = math.nan


@_kernel
def _add_angles(cells, start, step, count, center, period, place, sums):
    """Add the points of ``count`` registers of cells and count them; those that are not finite add nothing."""
    middle, length, half, two = load(center, place), load(period, place), spread(0.5), spread(2.0)
    cosines, sines, counts, one = spread(0.0), spread(0.0), spread(0.0), spread(1.0)
    for j in range(count):
        x = load(cells, start + j * step)
        turns = (x - middle) / length
        cosine, sine = point(turns - two * nearest(half * turns))  # exact
        cosines, sines = cosines + where_finite(x, cosine), sines + where_finite(x, sine)
        counts = counts + where_finite(x, one)
    add_to(sums, place, cosines)
    add_to(sums, sums.shape[1] + place, sines)
    add_to(sums, 3 * sums.shape[1] + place, counts)


@_kernel
def _add_magnitudes(cells, start, step, count, octaves, reach, place, sums):
    """Add the points of ``count`` registers of cells and count them; those zero or not finite add nothing."""
    turn, middle, one = spread(0.9 / reach), load(octaves, place), spread(1.0)
    cosines, sines, counts = spread(0.0), spread(0.0), spread(0.0)
    for j in range(count):
        size = absolute(load(cells, start + j * step))
        cosine, sine = point(at_most(at_least(logarithm(size) - middle, -reach), reach) * turn)
        cosines, sines = cosines + where_usable(size, cosine), sines + where_usable(size, sine)
        counts = counts + where_usable(size, one)
    add_to(sums, place, cosines)
    add_to(sums, sums.shape[1] + place, sines)
    add_to(sums, 3 * sums.shape[1] + place, counts)


_BINARY, _OTHER = 1.0, 2.0


@_kernel
def _look_for_others(rows, count, features, sums):
    """Note of each feature whether a value is finite (:data:`_BINARY`), and whether one is not 0 or 1."""
    for a in range(features):
        j = 0
        while j < count and sums[2, a] < _OTHER:  # of most features the first value is another
            x = rows[j, a]
            if abs(x) < math.inf:
                sums[2, a] = _BINARY if x == 0.0 or x == 1.0 else _OTHER
            j += 1


@_kernel
def _write_means(sums, features, target, weights, out, user):
    """Write means over the cells that were counted, times weights."""
    columns, width = weights.size, sums.shape[1]
    for a in range(features.size):
        k, count = features[a], max(sums[3, a], 1.0)
        out[user, k], out[user, columns + k] = sums[0, a] / count * weights[k], sums[1, a] / count * weights[k]
    if target:
        place = width - LANES
        weight = weights[columns - 1] / max(total(load(sums, 3 * width + place)), 1.0)
        out[user, columns - 1] = total(load(sums, place)) * weight
        out[user, 2 * columns - 1] = total(load(sums, width + place)) * weight
