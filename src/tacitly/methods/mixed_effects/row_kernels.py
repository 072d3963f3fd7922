"""Compiled forms for many users that read their rows: moments, and what each row's own posterior would have been.

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
from tacitly.simd.lazy_njit import njit
from tacitly.simd.registers import absolute, add_to, at_least, load, repeat, root, spread, store, total, where_usable
from tacitly.simd.tiles import transpose_eight

_ROWS = 64  # rows that are standardised before their products are added: few enough for the first-level cache

_kernel: Any = njit(nogil=True, cache=True, fastmath={"contract"}, error_model="numpy")


@_kernel
def write_moments(X, y, offsets, used, center, gain, level, scale, knee, most, out):
    """Write each user's upper triangle of ZᵀZ, then Zᵀt, tᵀt and the number of rows to a row of ``out``.

    Zeros for a user whose numbers cannot be used. ``used`` are the columns of X that are in use.
    """
    d = used.size
    width = d + -d % LANES
    rows, targets = aligned(_ROWS, width), aligned(1, _ROWS)
    gram, sums, rights = aligned(width, width), aligned(1, width), aligned(1, width)
    for user in range(offsets.size - 1):
        gram.fill(0.0)
        sums.fill(0.0)
        rights.fill(0.0)
        level_sum, squares = spread(0.0), spread(0.0)
        for start in range(offsets[user], offsets[user + 1], _ROWS):
            stop = min(start + _ROWS, offsets[user + 1])
            _write_targets(y, start, stop - start, level, scale, targets)
            for j in range(0, stop - start, LANES):
                target = load(targets, j)
                level_sum, squares = level_sum + target, squares + target * target
            _standardise(X, start, stop, used, center, gain, knee, most, rows)
            _add_products(rows, targets, stop - start, d, gram, sums, rights)
        count = offsets[user + 1] - offsets[user]
        _pack(gram, sums, rights, total(level_sum), total(squares), count, d, out[user])


@_kernel
def _write_targets(y, start, count, level, scale, out):
    """Write standardised targets, filled up with zeros to whole registers."""
    for j in range(count):
        out[0, j] = y[start + j]
    for j in range(count, count + -count % LANES):
        out[0, j] = level
    for j in range(0, count, LANES):
        store(out, j, (load(out, j) - spread(level)) / spread(scale))


@_kernel
def _standardise(X, start, stop, used, center, gain, knee, most, out):
    """Write standardised rows: missing cells are zero, cells beyond ±knee grow logarithmically up to ±most."""
    d, whole = used.size, used.size == X.shape[1]
    for j in range(start, stop):
        odd = 0
        if whole:  # no positions to look up: the loop becomes SIMD code
            for a in range(d):
                value = (np.float64(X[j, a]) - center[a]) * gain[a]
                odd += not abs(value) <= knee
                out[j - start, a] = value
        else:
            for a in range(d):
                value = (np.float64(X[j, used[a]]) - center[a]) * gain[a]
                odd += not abs(value) <= knee
                out[j - start, a] = value
        if odd:
            for a in range(d):
                out[j - start, a] = _bounded(out[j - start, a], knee, most)


@_kernel
def _bounded(value, knee, most):
    if not math.isfinite(value):
        return 0.0
    size = abs(value)
    return value if size <= knee else math.copysign(min(knee * (1.0 + math.log(size / knee)), most), value)


@_kernel
def _add_products(rows, targets, count, d, gram, sums, rights):
    """Add the products of columns (at and right of the diagonal), the columns' sums and their products with targets."""
    width = rows.shape[1]
    for a in range(0, width, LANES):
        added, right = load(sums, a), load(rights, a)
        for j in range(count):
            x = load(rows, j * width + a)
            added = added + x
            right = right + repeat(targets, j) * x
        store(sums, a, added)
        store(rights, a, right)
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


@_kernel
def _pack(gram, sums, rights, level_sum, squares, count, d, out):
    """Write one user's moments, or zeros where they are not finite."""
    usable = math.isfinite(squares) and math.isfinite(level_sum)
    for a in range(d):
        usable = usable and math.isfinite(rights[0, a])
    if not usable:
        for a in range(out.size):
            out[a] = 0.0
        return
    # Loops, not slices: slices take Numba seconds to compile.
    out[0], place = count, d + 1
    for a in range(d):
        out[1 + a] = sums[0, a]
    for i in range(d):
        for a in range(i, d):
            out[place + a - i] = gram[i, a]
        place += d - i
    out[place], out[place + 1 + d], out[place + 2 + d] = level_sum, squares, count
    for a in range(d):
        out[place + 1 + a] = rights[0, a]


@_kernel
def write_left_out(X, y, offsets, used, center, gain, level, scale, knee, most, posterior, noise, reached, out):
    """Write how many of each user's leave-one-out residuals lie beyond each threshold, then two sums of squared errors.

    ``posterior`` has the upper triangle of the covariance of each user's weights, then their mean. The errors are those
    of the mean of the user's other rows, and of the posterior given the user's other rows.
    """
    d, kinds = used.size, reached.size
    width = max(LANES, d + -d % LANES)
    rows, lanes, sums = aligned(_ROWS, width), aligned(width, LANES), aligned(kinds + 2, LANES)
    targets, present = aligned(1, _ROWS), aligned(1, _ROWS)
    for user in range(offsets.size - 1):
        first, last = offsets[user], offsets[user + 1]
        count, mean = last - first, 0.0
        for j in range(first, last):
            mean += y[j] - level
        mean /= max(count, 1) * scale
        inflation = count / max(count - 1, 1)
        sums.fill(0.0)
        for start in range(first, last, _ROWS):
            stop = min(start + _ROWS, last)
            _standardise(X, start, stop, used, center, gain, knee, most, rows)
            _write_targets(y, start, stop - start, level, scale, targets)
            for j in range(stop - start + (start - stop) % LANES):
                present[0, j] = 1.0 if j < stop - start else 0.0  # what stands in other rows does not count
            for j in range(0, stop - start, LANES):
                for a in range(0, width, LANES):
                    transpose_eight(rows, j * width + a, width, lanes, a)
                _add_left_out(lanes, d, targets, present, j, posterior, user, mean, inflation, noise, reached, sums)
        for q in range(kinds + 2):
            out[user, q] = total(load(sums, q * LANES))


@_kernel
def _add_left_out(lanes, d, targets, present, j, posterior, user, mean, inflation, noise, reached, sums):
    """Add what eight rows of a user say, one per lane; lanes in which no row is present say nothing."""
    place = user * posterior.shape[1]
    weights = place + posterior.shape[1] - d
    fitted, crossed, half = repeat(posterior, weights - 1), spread(0.0), spread(0.5)
    leverage = half * repeat(posterior, place)  # half of zᵀVz: below the diagonal is what is above
    for k in range(d):
        z = load(lanes, k * LANES)
        crossed = crossed + repeat(posterior, place + 1 + k) * z
        fitted = fitted + repeat(posterior, weights + k) * z
    leverage = leverage + crossed
    base = place + d + 1  # entry (i, k) of the features' rows is as far from their row's base as k says
    for i in range(d % 4):
        z = load(lanes, i * LANES)
        value = half * repeat(posterior, base + i) * z
        for k in range(i + 1, d):
            value = value + repeat(posterior, base + k) * load(lanes, k * LANES)
        leverage, base = leverage + value * z, base + d - i - 1
    for i in range(d % 4, d, 4):  # four rows of the matrix at a time: one number loaded for four products
        b1 = base + d - i - 1
        b2 = b1 + d - i - 2
        b3 = b2 + d - i - 3
        z0, z1 = load(lanes, i * LANES), load(lanes, (i + 1) * LANES)
        z2, z3 = load(lanes, (i + 2) * LANES), load(lanes, (i + 3) * LANES)
        v0 = half * repeat(posterior, base + i) * z0 + repeat(posterior, base + i + 1) * z1
        v0 = v0 + repeat(posterior, base + i + 2) * z2 + repeat(posterior, base + i + 3) * z3
        v1 = half * repeat(posterior, b1 + i + 1) * z1 + repeat(posterior, b1 + i + 2) * z2
        v1 = v1 + repeat(posterior, b1 + i + 3) * z3
        v2 = half * repeat(posterior, b2 + i + 2) * z2 + repeat(posterior, b2 + i + 3) * z3
        v3 = half * repeat(posterior, b3 + i + 3) * z3
        for k in range(i + 4, d):
            z = load(lanes, k * LANES)
            v0, v1 = v0 + repeat(posterior, base + k) * z, v1 + repeat(posterior, b1 + k) * z
            v2, v3 = v2 + repeat(posterior, b2 + k) * z, v3 + repeat(posterior, b3 + k) * z
        leverage = leverage + v0 * z0 + v1 * z1 + (v2 * z2 + v3 * z3)
        base = b3 + d - i - 4
    target, there = load(targets, j), load(present, j)
    error, alone = target - fitted, (target - spread(mean)) * spread(inflation)
    free = at_least(spread(1.0) - leverage * spread(2.0 / noise), 1e-9)
    size = absolute(error) / root(spread(noise) * free)
    for q in range(reached.size):
        add_to(sums, q * LANES, where_usable(size - repeat(reached, q), there))
    shared = error / free
    add_to(sums, reached.size * LANES, where_usable(there, alone * alone))
    add_to(sums, (reached.size + 1) * LANES, where_usable(there, shared * shared))
