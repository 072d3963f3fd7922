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
from tacitly.simd.registers import load, spread, store, total

_ROWS = 64  # rows that are standardised before their products are added: few enough for the first-level cache

_kernel: Any = njit(nogil=True, cache=True, fastmath={"contract"}, error_model="numpy")


@_kernel
def write_moments(X, y, offsets, used, center, gain, level, scale, knee, most, out):
    """Write each user's upper triangle of ZᵀZ, then Zᵀt, tᵀt and the number of rows to a row of ``out``.

    Zeros for a user whose numbers cannot be used. ``used`` are the columns of X that are in use.
    """
    d = used.size
    width = d + -d % LANES
    rows, targets = aligned(_ROWS, width), np.zeros(_ROWS)
    gram, sums, rights = aligned(width, width), aligned(1, width), aligned(1, width)
    for user in range(offsets.size - 1):
        gram.fill(0.0)
        sums.fill(0.0)
        rights.fill(0.0)
        level_sum, squares = 0.0, 0.0
        for start in range(offsets[user], offsets[user + 1], _ROWS):
            stop = min(start + _ROWS, offsets[user + 1])
            for j in range(stop - start):
                targets[j] = (y[start + j] - level) / scale
                level_sum += targets[j]
                squares += targets[j] * targets[j]
            _standardise(X, start, stop, used, center, gain, knee, most, rows)
            _add_products(rows, targets, stop - start, d, gram, sums, rights)
        _pack(gram, sums, rights, level_sum, squares, offsets[user + 1] - offsets[user], d, out[user])


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
            right = right + spread(targets[j]) * x
        store(sums, a, added)
        store(rights, a, right)
        for i in range(0, min(a + LANES, d), 4):  # four rows of the matrix: as many sums as an addition takes cycles
            place = i * width + a
            s0, s1 = load(gram, place), load(gram, place + width)
            s2, s3 = load(gram, place + 2 * width), load(gram, place + 3 * width)
            for j in range(count):
                x = load(rows, j * width + a)
                s0 = s0 + spread(rows[j, i]) * x
                s1 = s1 + spread(rows[j, i + 1]) * x
                s2 = s2 + spread(rows[j, i + 2]) * x
                s3 = s3 + spread(rows[j, i + 3]) * x
            store(gram, place, s0)
            store(gram, place + width, s1)
            store(gram, place + 2 * width, s2)
            store(gram, place + 3 * width, s3)


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
    d = used.size
    width = d + -d % LANES
    rows, spreads = aligned(_ROWS, width), aligned(d + 1, width)
    weights = aligned(1, width)
    for user in range(offsets.size - 1):
        own, place, count = posterior[user], d + 1, offsets[user + 1] - offsets[user]
        for a in range(d):
            spreads[d, a] = 2.0 * own[1 + a]  # with the intercept, twice: above and below the diagonal
            weights[0, a] = own[own.size - d + a]
            for k in range(a, d):
                spreads[a, k] = spreads[k, a] = own[place + k - a]
            place += d - a
        mean, alone, shared = 0.0, 0.0, 0.0
        for j in range(offsets[user], offsets[user + 1]):
            mean += (y[j] - level) / scale / count
        for q in range(reached.size):
            out[user, q] = 0.0
        for start in range(offsets[user], offsets[user + 1], _ROWS):
            stop = min(start + _ROWS, offsets[user + 1])
            _standardise(X, start, stop, used, center, gain, knee, most, rows)
            for j in range(stop - start):
                target = (y[start + j] - level) / scale
                fitted, leverage = _fitted(rows, j, d, weights, spreads)
                error = target - own[own.size - d - 1] - fitted
                free = max(1.0 - (own[0] + leverage) / noise, 1e-9)
                size = abs(error / math.sqrt(noise * free))
                for q in range(reached.size):
                    out[user, q] += size > reached[q]
                alone += ((target - mean) * count / max(count - 1, 1)) ** 2
                shared += (error / free) ** 2
        out[user, reached.size], out[user, reached.size + 1] = alone, shared


@_kernel
def _fitted(rows, j, d, weights, spreads):
    """Return wᵀz and zᵀVz + 2vᵀz for one row z; v is the last row of ``spreads``."""
    width = rows.shape[1]
    fitted, leverage = spread(0.0), spread(0.0)
    for a in range(0, width, LANES):
        x, value = load(rows, j * width + a), load(spreads, d * width + a)
        for i in range(d):
            value = value + spread(rows[j, i]) * load(spreads, i * width + a)
        fitted, leverage = fitted + load(weights, a) * x, leverage + value * x
    return total(fitted), total(leverage)
