"""Leave-one-out predictions: each row predicted from its user's other rows, compiled for many users.

Nothing is fitted again: see the definition, :func:`~tacitly.methods.mixed_effects.advantage.left_out`. A user's numbers
depend on that user's rows alone, to the last bit. (Numba caches compiled code and checks for changes in this file only:
after a change in ``tacitly.simd`` or in the kernels of rows and posteriors, delete the cache.)
"""

# Numba kernels are not typed.
# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

from typing import Any

import numpy as np

from tacitly.methods.mixed_effects.posterior_kernels import lanes_for, pack_weights, places, weights
from tacitly.methods.mixed_effects.row_kernels import ROWS, gram_for, moments_of, rows_for, standardise, write_targets
from tacitly.simd.lanes import LANES, aligned, lane_zeros, load_eight, scatter
from tacitly.simd.lazy_njit import UNCOUNTED, njit
from tacitly.simd.registers import (
    add_to,
    at_least,
    at_most,
    load,
    repeat,
    spread,
    store,
    total,
    where_number,
    where_usable,
)
from tacitly.simd.tiles import transpose_eight

_kernel: Any = njit(nogil=True, cache=True, fastmath={"contract"}, error_model="numpy")
_AHEAD = 1024  # most cache lines of the next users' rows that are fetched: a part of the second-level cache

_inlined: Any = njit(**UNCOUNTED, forceinline=True)


@_kernel
def write_left_out(X, y, offsets, used, center, gain, level, scale, knee, most, posterior, noise, limits, out):
    """Write how many squares of each user's leave-one-out residuals exceed limits, then two sums of squared errors.

    ``posterior`` has the upper triangle of the covariance of each user's weights, then their mean; ``limits`` has a row
    per user. The errors are those of the mean of the user's other rows, and of the posterior given these.
    """
    rows, targets, present = rows_for(used.size), aligned(1, ROWS), aligned(1, ROWS)
    lanes, sums = aligned(rows.shape[1], LANES), aligned(limits.shape[1] + 2, LANES)
    units, room = (used, center, gain, level, scale, knee, most), (rows, lanes, targets, present, sums)
    for user in range(offsets.size - 1):
        _left_out(X, y, offsets[user], offsets[user + 1], units, room, posterior, user, noise, limits, user, user, out)


@_kernel
def write_left_out_alone(
    X, y, offsets, used, center, gain, level, scale, knee, most, prior, precision, length, noise, freedom, reached, out
):
    """Write the same from rows and the prior alone, then rows; eight users at a time, so that all stays in the cache.

    ``precision`` is the inverse P of the prior's covariance, ``prior`` is Pw̄, ``length`` w̄ᵀPw̄; ``reached`` are squares
    of numbers of deviations, from which limits follow as in :mod:`~tacitly.methods.mixed_effects.own_noise`.
    """
    d, p = used.size, prior.size
    width, entries = p * (p + 1) // 2 + p + 2, p * (p + 3) // 2
    rows, targets, present, gram = rows_for(d), aligned(1, ROWS), aligned(1, ROWS), gram_for(d)
    lanes, sums = aligned(rows.shape[1], LANES), aligned(reached.size + 2, LANES)
    moments, posterior, spare = np.zeros((LANES + 1, width)), np.zeros((LANES, entries)), np.zeros((1, 1))
    limits = np.zeros((LANES, reached.size))
    room, line, columns = lanes_for(p, width), lane_zeros(entries), places(p)[3]
    units, space = (used, center, gain, level, scale, knee, most), (rows, lanes, targets, present, sums)
    for start in range(0, offsets.size - 1, LANES):
        users = min(LANES, offsets.size - 1 - start)
        for u in range(users):
            first, last = offsets[start + u], offsets[start + u + 1]
            moments_of(X, y, first, last, used, center, gain, level, scale, knee, most, rows, targets, gram, u, moments)
        load_eight(moments, 0, spare, room, columns, False)
        following, after = min(start + LANES, offsets.size - 1), min(start + 2 * LANES, offsets.size - 1)
        lines = min((offsets[after] - offsets[following]) * X.shape[1] // LANES, _AHEAD)
        weights(room, prior, precision, noise, X, offsets[following] * X.shape[1], lines)
        pack_weights(room, p, line)
        scatter(line, 0, posterior)
        for u in range(users):
            first, last = offsets[start + u], offsets[start + u + 1]
            misfit, below = moments[u, width - 2] / noise + length, p * (p + 1) // 2
            for i in range(p):
                misfit -= posterior[u, below + i] * (moments[u, below + i] / noise + prior[i])
            for q in range(reached.size):
                spread_out = reached[q] * (freedom + max(misfit, 0.0))
                limits[u, q] = spread_out / (freedom + moments[u, width - 1] - 1.0 + reached[q])
            _left_out(X, y, first, last, units, space, posterior, u, noise, limits, u, start + u, out)
            out[start + u, reached.size + 2] = moments[u, width - 1]


@_inlined
def _left_out(X, y, first, last, units, room, posterior, place, noise, limits, own, user, out):
    """Write what the rows of one user say, whose posterior and limits stand in these rows of both."""
    used, center, gain, level, scale, knee, most = units
    rows, lanes, targets, present, sums = room
    d, width, kinds = used.size, rows.shape[1], limits.shape[1]
    count, mean = last - first, 0.0
    for j in range(first, last):
        mean += y[j] - level
    mean /= max(count, 1) * scale
    inflation = count / max(count - 1, 1)
    for q in range(kinds + 2):
        store(sums, q * LANES, spread(0.0))
    for start in range(first, last, ROWS):
        stop = min(start + ROWS, last)
        standardise(X, start, stop, used, center, gain, knee, most, rows)
        write_targets(y, start, stop - start, level, scale, targets)
        for j in range(stop - start + (start - stop) % LANES):
            present[0, j] = 1.0 if j < stop - start else 0.0  # what stands in other rows does not count
        for j in range(0, stop - start, LANES):
            for a in range(0, width, LANES):
                transpose_eight(rows, j * width + a, width, lanes, a)
            _add_left_out(lanes, d, targets, present, j, posterior, place, mean, inflation, noise, limits, own, sums)
    for q in range(kinds + 2):
        out[user, q] = total(load(sums, q * LANES))


@_inlined
def _add_left_out(lanes, d, targets, present, j, posterior, user, mean, inflation, noise, limits, own, sums):
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
    shared = error / free
    square = where_number(error, at_most(error * shared * spread(1.0 / noise), 1e300))  # in variances; not infinite
    kinds = limits.shape[1]
    for q in range(kinds):
        add_to(sums, q * LANES, where_usable(square - repeat(limits, own * kinds + q), there))
    add_to(sums, kinds * LANES, where_usable(there, alone * alone))
    add_to(sums, (kinds + 1) * LANES, where_usable(there, shared * shared))
