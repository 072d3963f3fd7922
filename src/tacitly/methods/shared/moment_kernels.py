"""The compiled half of :class:`~tacitly.methods.shared.whitening.FeatureMoment`.

A user's second moment S is formed in the precision of the rows, while they are in cache, 64 rows at a time. Its norm is
computed in double precision from the numbers that are added, so a contribution has the correct norm for any rounding
errors of S. Rounding errors matter in one way: they can make S indefinite, and the smaller replace-one sensitivity
needs ⟨P, Q⟩ ≥ 0. In single precision (u = 2^-24) the error of a sum of 64 products is at most 64u times the sum of
their absolute values; matrices of 64 rows are added in double precision and rounded once. So the error of S is at most
65u·tr S ≤ 65u√d‖S‖ < 2^-17 √d‖S‖, and ⟨P, Q⟩ ≥ −2^-16 √d for contributions of norm one. The caller reserves
η = 2^-16 √d of the norm: ‖P − Q‖² ≤ 2(1 − η)² + 2η ≤ 2 for η ≤ 1. In double precision all of this is below the guard.

Below 2^-126 rounding errors are not relative: each of m products may have a further error of 2^-150, S one of
m·d·2^-150. Moments for which this exceeds 2^-18 √d‖S‖ are left out.
"""

# Numba kernels are not typed.
# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tacitly.privacy.clipping import LEAST
from tacitly.simd.lanes import aligned_like
from tacitly.simd.lazy_njit import UNCOUNTED, njit
from tacitly.simd.projections import store_four
from tacitly.simd.registers import (
    add_to,
    fetch,
    lanes_of,
    load,
    load_doubles,
    load_first,
    repeat,
    spread,
    store,
    total,
)

_PIECE = 64  # rows whose products are added up in the precision of the rows
_STRIP = 8  # rows of a matrix that are computed together
_AHEAD = 8  # users whose rows are prefetched, if only a few rows of each are read
_LEAST_SINGLE = 2.0**-230  # least squared norm of S in single precision: below it products have underflowed
_LOST = 2.0**-132  # times m√d: the same for the norm, if many products may each have lost a little

_kernel: Any = njit(nogil=True, cache=True, fastmath={"contract"}, error_model="numpy")
_inside: Any = njit(**UNCOUNTED)


@_kernel
def unit_moments(X, offsets, gains, centered, most, weight, out):
    """Add every user's second moment, scaled to Frobenius norm ``weight``, to ``out``.

    Rows are multiplied by ``gains``, which are zero beyond the features; ``out`` has their size. Its lower triangle is
    the result (entries above the diagonal are meaningless). At most ``most`` rows of a user are read; 0 for all.
    """
    width, longest = gains.size, 0
    for i in range(offsets.size - 1):
        longest = max(longest, few_of(offsets[i + 1] - offsets[i], most))
    rows, mean = aligned_like(X, longest, width), np.zeros(width, dtype=X.dtype)
    moment, sums = aligned_like(X, width, width), np.zeros((width, width))
    places = np.zeros(longest, dtype=np.int64)
    least = LEAST if X.itemsize == 8 else _LEAST_SINGLE
    for i in range(offsets.size - 1):
        first, last = offsets[i], offsets[i + 1]
        if most > 0:
            fetch_rows(X, offsets, i + _AHEAD, most, places)
        if first == last:
            continue
        m = places_of(offsets, i, most, places)
        if centered:
            mean_of(X, places, m, mean)
        copy_rows(X, places, m, 0 if most > 0 else m, mean, gains, rows, 0)
        second_moment(rows, m, sums, moment)
        squared = _squared_norm(moment)
        lost = 0.0 if X.itemsize == 8 else width * (m * _LOST) ** 2
        if math.isfinite(squared) and squared > max(least, lost):
            _add(moment, weight / math.sqrt(squared), out)


@_inside
def few_of(count, most):
    """Return how many of a user's rows are read: at most ``most``, all if that is 0."""
    return min(count, most) if most > 0 else count


@_inside
def places_of(offsets, i, most, out):
    """Write the positions of the rows read of user i; return their number: see :mod:`tacitly.methods.shared.some_rows`.

    Row j is number ⌊(2j + 1)·count/(2m)⌋ of the user's rows; positions are computed with two divisions in all.
    """
    first, count = offsets[i], offsets[i + 1] - offsets[i]
    m = few_of(count, most)
    if m == count:
        for j in range(m):
            out[j] = first + j
        return m
    step, more, whole = count // m, 2 * (count % m), 2 * m
    place, rest = first + count // whole, count % whole
    for j in range(m):
        out[j] = place
        rest += more
        place += step + (1 if rest >= whole else 0)
        rest -= whole if rest >= whole else 0
    return m


@_inside
def fetch_rows(X, offsets, i, most, places):
    """Prefetch the rows read of user i, if the user exists: hardware does not predict reads of a few rows per user."""
    if i + 1 < offsets.size:
        d, line = X.shape[1], 64 // X.itemsize
        for j in range(places_of(offsets, i, most, places)):
            for a in range(0, d + line - 1, line):
                fetch(X, places[j] * d + a)


@_inside
def mean_of(X, places, m, out):
    """Write the mean of m rows."""
    d, lanes = X.shape[1], lanes_of(X)
    share = spread(X.dtype.type(1.0 / m))
    for a in range(0, d, lanes):
        value = spread(X.dtype.type(0))
        for j in range(m):
            value = value + load_first(X, places[j] * d + a, d - a)
        store(out, a, value * share)


@_inside
def copy_rows(X, places, m, ahead, mean, gains, out, place):
    """Write (x − mean)·gains of m rows, from row ``place`` on; prefetch the rows ``ahead`` further on, if any."""
    d, lanes, width = X.shape[1], lanes_of(X), gains.size
    for j in range(m):
        row = places[j]
        for a in range(0, d, lanes):
            if ahead > 0:
                fetch(X, (row + ahead) * d + a)
            value = (load_first(X, row * d + a, d - a) - load(mean, a)) * load(gains, a)
            store(out, (place + j) * width + a, value)


@_kernel
def second_moment(rows, count, sums, out):
    """Write the lower triangle of XᵀX for the first ``count`` rows; ``sums`` is a buffer."""
    _moment_of(rows, 0, min(count, _PIECE), out)
    if count <= _PIECE:
        return
    sums[:] = 0.0
    for start in range(_PIECE, count, _PIECE):
        _add(out, 1.0, sums)
        _moment_of(rows, start, min(start + _PIECE, count), out)
    _add(out, 1.0, sums)
    for a in range(len(sums)):
        for c in range(0, len(sums), 8):
            store(out, a * len(sums) + c, load(sums, a * len(sums) + c))


@_kernel
def _moment_of(rows, first, last, out):
    """Write the lower triangle of XᵀX for rows first to last, a strip of its rows by a register at a time."""
    width, lanes = rows.shape[1], lanes_of(rows)
    for c in range(0, width, lanes):
        for a in range(c, width, _STRIP):
            s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = spread(rows.dtype.type(0))
            for j in range(first, last):
                x, p = load(rows, j * width + c), j * width + a
                s0, s1 = s0 + repeat(rows, p) * x, s1 + repeat(rows, p + 1) * x
                s2, s3 = s2 + repeat(rows, p + 2) * x, s3 + repeat(rows, p + 3) * x
                s4, s5 = s4 + repeat(rows, p + 4) * x, s5 + repeat(rows, p + 5) * x
                s6, s7 = s6 + repeat(rows, p + 6) * x, s7 + repeat(rows, p + 7) * x
            store_four(out, a * width + c, width, (s0, s1, s2, s3))
            store_four(out, (a + 4) * width + c, width, (s4, s5, s6, s7))


@_kernel
def _squared_norm(moment):
    """Return the squared Frobenius norm in double precision; square blocks on the diagonal are complete."""
    width, lanes = len(moment), lanes_of(moment)
    s0 = s1 = t0 = t1 = spread(0.0)
    for a in range(0, width, 2):  # two rows at a time, because each addition waits for the previous one
        edge = a * width + a - a % lanes
        for p in range(a * width, edge, 8):
            x, y = load_doubles(moment, p, 8), load_doubles(moment, p + width, 8)
            s0, s1 = s0 + x * x, s1 + y * y
        for p in range(edge, edge + lanes, 8):
            x, y = load_doubles(moment, p, 8), load_doubles(moment, p + width, 8)
            t0, t1 = t0 + x * x, t1 + y * y
    return total(t0 + t1) + 2.0 * total(s0 + s1)


@_kernel
def _add(moment, factor, out):
    """Add the lower triangle of the moment times a factor."""
    width, lanes, factors = len(moment), lanes_of(moment), spread(factor)
    for a in range(width):
        for p in range(a * width, a * width + a - a % lanes + lanes, 8):
            add_to(out, p, load_doubles(moment, p, 8) * factors)
