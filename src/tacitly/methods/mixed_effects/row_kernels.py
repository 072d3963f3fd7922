"""Compiled kernels that read the rows of many users: standardised rows, and their moments.

Each user's rows are read once, in order, and standardised a few at a time; everything is in double precision. A user's
numbers depend on that user's rows alone, to the last bit. The definitions are in
:mod:`~tacitly.methods.mixed_effects.posterior` and :mod:`~tacitly.methods.mixed_effects.queries`. (Numba caches
compiled code and checks for changes in this file only: after a change in ``tacitly.simd``, delete the cache.)
"""

# Numba kernels are not typed.
# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tacitly.simd.lanes import LANES, aligned
from tacitly.simd.lazy_njit import UNCOUNTED, njit
from tacitly.simd.registers import (
    beyond,
    load,
    load_doubles,
    load_first,
    repeat,
    spread,
    store,
    total,
    widened,
)

ROWS = 64  # rows that are standardised before their products are added: few enough for the first-level cache

_kernel: Any = njit(nogil=True, cache=True, fastmath={"contract"}, error_model="numpy")
_inside: Any = njit(**UNCOUNTED)
_inlined: Any = njit(**UNCOUNTED, forceinline=True)  # calls with many arrays take as long as a row


@_kernel
def write_moments(X, y, offsets, used, center, gain, level, scale, knee, most, out):
    """Write each user's upper triangle of ZᵀZ, then Zᵀt, tᵀt and the number of rows to a row of ``out``.

    Zeros for a user whose numbers cannot be used. ``used`` are the columns of X that are in use.
    """
    rows, targets, gram = rows_for(used.size), aligned(1, ROWS), gram_for(used.size)
    for user in range(offsets.size - 1):
        first, last = offsets[user], offsets[user + 1]
        moments_of(X, y, first, last, used, center, gain, level, scale, knee, most, rows, targets, gram, user, out)


@_kernel
def rows_for(d):
    """Return room for standardised rows of d features."""
    return aligned(ROWS, max(LANES, d + -d % LANES))


@_kernel
def gram_for(d):
    """Return room for products of d columns, then their sums and their products with targets."""
    width = max(LANES, d + -d % LANES)
    return aligned(width + 2, width)


@_inlined
def moments_of(X, y, first, last, used, center, gain, level, scale, knee, most, rows, targets, gram, user, out):
    """Write the moments of the user who has these rows to a row of ``out``."""
    level_sum, squares, zero = spread(0.0), spread(0.0), spread(0.0)
    for place in range(0, gram.size, LANES):
        store(gram, place, zero)
    for start in range(first, last, ROWS):
        stop = min(start + ROWS, last)
        write_targets(y, start, stop - start, level, scale, targets)
        for j in range(0, stop - start, LANES):
            target = load(targets, j)
            level_sum, squares = level_sum + target, squares + target * target
        standardise(X, start, stop, used, center, gain, knee, most, rows)
        _add_products(rows, targets, stop - start, used.size, gram)
    _pack(gram, total(level_sum), total(squares), last - first, used.size, user, out)


@_inlined
def write_targets(y, start, count, level, scale, out):
    """Write standardised targets, filled up with zeros to whole registers."""
    for j in range(count):
        out[0, j] = y[start + j]
    for j in range(count, count + -count % LANES):
        out[0, j] = level
    for j in range(0, count, LANES):
        store(out, j, (load(out, j) - spread(level)) / spread(scale))


@_inlined
def standardise(X, start, stop, used, center, gain, knee, most, out):
    """Write standardised rows: missing cells are zero, cells beyond ±knee grow logarithmically up to ±most."""
    d, width, odd = used.size, out.shape[1], 0
    if d == X.shape[1]:
        for a in range(0, d - 7, LANES):
            middle, factor = load(center, a), load(gain, a)
            for j in range(start, stop):
                value = (widened(X, j * d + a) - middle) * factor
                odd |= beyond(value, knee)
                store(out, (j - start) * width + a, value)
        a, rest = d - d % LANES, d % LANES
        if rest:
            middle, factor = load_first(center, a, rest), load_first(gain, a, rest)
            for j in range(start, stop):
                value = (load_doubles(X, j * d + a, rest) - middle) * factor
                odd |= beyond(value, knee)
                store(out, (j - start) * width + a, value)
    else:
        for j in range(start, stop):
            for a in range(d):
                value = (np.float64(X[j, used[a]]) - center[a]) * gain[a]
                odd += not abs(value) <= knee
                out[j - start, a] = value
    if odd:
        _bound(out, stop - start, d, knee, most)


@_inside
def _bound(out, count, d, knee, most):
    """Bound the cells of those rows that have some beyond ±knee."""
    for j in range(count):
        odd = 0
        for a in range(d):
            odd += not abs(out[j, a]) <= knee
        if odd:
            for a in range(d):
                out[j, a] = _bounded(out[j, a], knee, most)


@_inside
def _bounded(value, knee, most):
    if not math.isfinite(value):
        return 0.0
    size = abs(value)
    return value if size <= knee else math.copysign(min(knee * (1.0 + math.log(size / knee)), most), value)


@_inlined
def _add_products(rows, targets, count, d, gram):
    """Add the products of columns (at and right of the diagonal), the columns' sums and their products with targets."""
    width = rows.shape[1]
    for a in range(0, width, LANES):
        at, below = width * width + a, width * width + width + a
        added, right, other, beside = load(gram, at), load(gram, below), spread(0.0), spread(0.0)
        for j in range(0, count - 1, 2):  # two sums in turn: an addition takes longer than the rest
            x, z = load(rows, j * width + a), load(rows, (j + 1) * width + a)
            added, right = added + x, right + repeat(targets, j) * x
            other, beside = other + z, beside + repeat(targets, j + 1) * z
        if count % 2:
            x = load(rows, (count - 1) * width + a)
            added, right = added + x, right + repeat(targets, count - 1) * x
        store(gram, at, added + other)
        store(gram, below, right + beside)
        for i in range(0, min(a + LANES, d), LANES):  # eight rows of the matrix: one number loaded for eight products
            place = i * width + a
            s0, s1 = load(gram, place), load(gram, place + width)
            s2, s3 = load(gram, place + 2 * width), load(gram, place + 3 * width)
            s4, s5 = load(gram, place + 4 * width), load(gram, place + 5 * width)
            s6, s7 = load(gram, place + 6 * width), load(gram, place + 7 * width)
            for j in range(count):
                x, own = load(rows, j * width + a), j * width + i
                s0, s1 = s0 + repeat(rows, own) * x, s1 + repeat(rows, own + 1) * x
                s2, s3 = s2 + repeat(rows, own + 2) * x, s3 + repeat(rows, own + 3) * x
                s4, s5 = s4 + repeat(rows, own + 4) * x, s5 + repeat(rows, own + 5) * x
                s6, s7 = s6 + repeat(rows, own + 6) * x, s7 + repeat(rows, own + 7) * x
            store(gram, place, s0)
            store(gram, place + width, s1)
            store(gram, place + 2 * width, s2)
            store(gram, place + 3 * width, s3)
            store(gram, place + 4 * width, s4)
            store(gram, place + 5 * width, s5)
            store(gram, place + 6 * width, s6)
            store(gram, place + 7 * width, s7)


@_inlined
def _pack(gram, level_sum, squares, count, d, user, out):
    """Write one user's moments, or zeros where they are not finite."""
    width, last = gram.shape[1], out.shape[1]
    usable = math.isfinite(squares) and math.isfinite(level_sum)
    for a in range(d):
        usable = usable and math.isfinite(gram[width + 1, a])
    if not usable:
        for a in range(last):
            out[user, a] = 0.0
        return
    out[user, 0], place = count, 1 + d
    if d >= LANES:  # what a register has too much is overwritten by what comes next
        for a in range(0, d, LANES):
            store(out, user * last + 1 + a, load(gram, width * width + a))
        for i in range(d):
            for a in range(i, d, LANES):
                store(out, user * last + place + a - i, load(gram, i * width + a))
            place += d - i
    else:
        for a in range(d):
            out[user, 1 + a] = gram[width, a]
        for i in range(d):
            for a in range(i, d):
                out[user, place + a - i] = gram[i, a]
            place += d - i
    whole = d - d % LANES
    for a in range(0, whole, LANES):
        store(out, user * last + place + 1 + a, load(gram, width * (width + 1) + a))
    for a in range(whole, d):
        out[user, place + 1 + a] = gram[width + 1, a]
    out[user, place], out[user, last - 2], out[user, last - 1] = level_sum, squares, count
