"""What is released, summed over many users: sizes of groups of coordinates, spreads, scores, each user's clipped.

From posteriors (:mod:`~tacitly.methods.mixed_effects.posterior_kernels`) or from what was kept of them. The definitions
are in :mod:`~tacitly.methods.mixed_effects.queries`. (Numba caches compiled code and checks for changes in this file
only: after a change in ``tacitly.simd`` or in the kernels of posteriors, delete the cache.)
"""

# Numba kernels are not typed.
# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tacitly.methods.mixed_effects.posterior_kernels import (
    information,
    lanes_for,
    places,
    posterior,
    products_of,
    spare_for,
    turn_vector,
)
from tacitly.privacy.clipping import LEAST
from tacitly.simd.elementary import cosines_and_sines, logarithms
from tacitly.simd.lanes import LANES, lane_zeros, load_eight, scatter
from tacitly.simd.lazy_njit import njit
from tacitly.simd.registers import load, repeat, spread, store, total, where_usable

USERS = 64
"""Users whose sizes are turned into contributions together: enough for loops over them to become SIMD code."""

_WHOLE = 2.0**-1010  # factors above it have all their digits: smaller ones may be denormal numbers

_kernel: Any = njit(nogil=True, cache=True, fastmath={"contract"}, error_model="numpy")


@_kernel
def write_sizes(moments, mean, turn, diagonal, noise, careful, pairs, members, starts, out):
    """Write for each group and user ‖u‖², tr J and ‖J‖² of the group's coordinates; then the residual, tr J and m.

    ``members`` has the coordinates of group g from starts[g, 0] on, ``pairs`` the places i·p + k, i < k, of pairs of
    them from starts[g, 1] on. ``out`` has one column per user, and room for a multiple of eight users.
    """
    p, width, count, length = mean.size, moments.shape[1], len(starts) - 1, out.shape[1]
    room, spare, products = lanes_for(p, width), spare_for(width), products_of(turn)
    _, means, _, columns = places(p)
    for first in range(0, len(moments), LANES):
        load_eight(moments, first, spare, room, columns, False)
        residual = posterior(room, mean, turn, products, diagonal, noise, careful, moments, first)
        information(room, p, careful)
        trace = spread(0.0)
        for group in range(count):
            square = _sum_of_squares(room, pairs, starts[group, 1], starts[group + 1, 1])
            size, own, square = spread(0.0), spread(0.0), square + square
            for member in range(starts[group, 0], starts[group + 1, 0]):
                place = members[member]
                u, entry = load(room, (means + place) * LANES), load(room, place * (p + 1) * LANES)
                size, own, square = size + u * u, own + entry, square + entry * entry
            trace = trace + own
            store(out, 3 * group * length + first, size)
            store(out, (3 * group + 1) * length + first, own)
            store(out, (3 * group + 2) * length + first, square)
        store(out, 3 * count * length + first, residual)
        store(out, (3 * count + 1) * length + first, trace)
        store(out, (3 * count + 2) * length + first, load(room, (columns + width - 1) * LANES))


@_kernel
def _sum_of_squares(room, pairs, first, last):
    """Add up squares of some entries, four sums at a time: as many as an addition takes cycles."""
    s0 = s1 = s2 = s3 = spread(0.0)
    for pair in range(first, last - 3, 4):
        x0, x1 = load(room, pairs[pair] * LANES), load(room, pairs[pair + 1] * LANES)
        x2, x3 = load(room, pairs[pair + 2] * LANES), load(room, pairs[pair + 3] * LANES)
        s0, s1, s2, s3 = s0 + x0 * x0, s1 + x1 * x1, s2 + x2 * x2, s3 + x3 * x3
    for pair in range(last - (last - first) % 4, last):
        x0 = load(room, pairs[pair] * LANES)
        s0 = s0 + x0 * x0
    return s0 + s1 + (s2 + s3)


@_kernel
def add_variances(sizes, users, noise, weight, cap, knots, capped, limit, size, out):
    """Add excess and weight of each group of coordinates, clipped to ``limit``, to a user's block in ``out``.

    See :class:`~tacitly.methods.mixed_effects.queries.Variances`; ``knots`` are logarithms (base 2) of degrees of
    freedom. Between them expected sizes are straight lines: a sum of bends. ``sizes`` has a multiple of
    :data:`USERS` columns.
    """
    count, last = out.shape[1] // 2, knots.size - 1
    shape = (count, USERS)
    ratios, freedoms, weights, logs = np.empty(shape), np.empty(shape), np.empty(shape), np.empty(shape)
    bits, bends = np.empty(count * USERS, dtype=np.int64), np.zeros(knots.size)
    factors, sums = np.zeros(USERS), np.zeros((2 * count, USERS))
    for j in range(last):
        slope = (capped[j + 1] - capped[j]) / (knots[j + 1] - knots[j])
        bends[j] += slope
        bends[j + 1] -= slope
    for first in range(0, users, USERS):
        for group in range(count):
            _write_ratios(sizes, first, group, count, noise, weight, ratios, freedoms, weights)
        logarithms(freedoms.ravel(), bits, logs.ravel())
        for group in range(count):
            for u in range(USERS):
                freedoms[group, u] = capped[0]
            for j in range(knots.size):
                for u in range(USERS):
                    freedoms[group, u] += bends[j] * max(logs[group, u] - knots[j], 0.0)
            for u in range(USERS):
                ratios[group, u] = (min(ratios[group, u], cap) - freedoms[group, u]) * weights[group, u]
        _add_pairs(ratios, weights, first, users, limit, size, factors, sums, out)


@_kernel
def add_log_variances(sizes, users, noise, weight, reaches, limit, size, out):
    """Add the points of each group of coordinates, clipped to ``limit``, to a user's block in ``out``.

    See :class:`~tacitly.methods.mixed_effects.queries.LogVariances`.
    """
    count = out.shape[1] // 2
    shape = (count, USERS)
    ratios, freedoms, weights, logs = np.empty(shape), np.empty(shape), np.empty(shape), np.empty(shape)
    biases, points = np.empty(shape), np.empty((2, count * USERS))
    bits, factors, sums = np.empty(count * USERS, dtype=np.int64), np.zeros(USERS), np.zeros((2 * count, USERS))
    for first in range(0, users, USERS):
        for group in range(count):
            _write_ratios(sizes, first, group, count, noise, weight, ratios, freedoms, weights)
            for u in range(USERS):  # digamma(ν/2) by its recurrence and its series, without its logarithm
                start = freedoms[group, u] / 2.0
                half, bias = start + 6.0, 0.0
                bias -= 1.0 / start + 1.0 / (start + 1.0) + 1.0 / (start + 2.0)
                bias -= 1.0 / (start + 3.0) + 1.0 / (start + 4.0) + 1.0 / (start + 5.0)
                inverse = 1.0 / (half * half)
                bias -= 0.5 / half + inverse * (1.0 / 12.0 - inverse * (1.0 / 120.0 - inverse / 252.0))
                biases[group, u] = bias / math.log(2.0)
                ratios[group, u] = max(ratios[group, u], 1e-300) * (start / half)  # and the logarithm of ν/2 comes off
        logarithms(ratios.ravel(), bits, logs.ravel())
        for group in range(count):
            reach = reaches[group]
            for u in range(USERS):
                octaves = logs[group, u] - biases[group, u]
                logs[group, u] = min(max(octaves, -reach), reach) * (0.9 * math.pi / reach)
        cosines_and_sines(logs.ravel(), points)
        for group in range(count):
            for u in range(USERS):
                ratios[group, u] = points[0, group * USERS + u] * weights[group, u]
                weights[group, u] = points[1, group * USERS + u] * weights[group, u]
        _add_pairs(ratios, weights, first, users, limit, size, factors, sums, out)


@_kernel
def _write_ratios(sizes, first, group, count, noise, weight, ratios, freedoms, weights):
    """Write size over expected size, degrees of freedom and weight of a group; the last one is the noise.

    The weight is not a number where one of them is not.
    """
    residual = 3 * (count - 1)
    for u in range(USERS):
        rows = sizes[residual + 2, first + u]
        if group == count - 1:
            trace = max(rows - sizes[residual + 1, first + u], 1e-9)
            ratio, freedom = sizes[residual, first + u] / (noise * trace), trace
        else:
            trace = sizes[3 * group + 1, first + u]
            ratio = sizes[3 * group, first + u] / max(trace, 1e-300)
            freedom = trace * trace / max(sizes[3 * group + 2, first + u], 1e-300)
        own = trace / (trace + weight) if rows > 0.0 else 0.0
        ratios[group, u], freedoms[group, u] = ratio, max(freedom, 0.5)
        weights[group, u] = own + (0.0 if ratio == ratio and freedom == freedom else math.nan)


@_kernel
def _add_pairs(one, other, first, users, limit, size, factors, sums, out):
    """Add each user's contribution, pairs of numbers, clipped to ``limit``; ``sums`` has those of the last block.

    There is a sum for each place among :data:`USERS`; they are added up at the end of a block.
    """
    count = len(one)
    _write_factors(one, other, limit, factors)
    start, total_users = 0, min(users - first, USERS)
    while start < total_users:
        block = (first + start) // size
        stop = min(total_users, (block + 1) * size - first)
        for group in range(count):
            for u in range(start, stop):
                used = factors[u] > 0.0
                sums[2 * group, u] += one[group, u] * factors[u] if used else 0.0
                sums[2 * group + 1, u] += other[group, u] * factors[u] if used else 0.0
        if first + stop == min((block + 1) * size, users):
            for a in range(2 * count):
                for u in range(USERS):
                    out[block, a] += sums[a, u]
                    sums[a, u] = 0.0
        start = stop


@_kernel
def _write_factors(one, other, limit, factors):
    """Write by what to multiply each user's pairs so that their norm is at most ``limit``; 0 if it is not finite."""
    odd = 0
    factors.fill(0.0)
    for group in range(len(one)):
        for u in range(USERS):
            factors[u] += one[group, u] ** 2 + other[group, u] ** 2
    for u in range(USERS):
        odd += not 1e-200 < factors[u] < 1e200
    if odd:
        line = np.empty((2 * len(one), 1))
        for u in range(USERS):
            for group in range(len(one)):
                line[2 * group, 0], line[2 * group + 1, 0] = one[group, u], other[group, u]
            factors[u] = _norm(factors[u], line, 0, 0, len(line))
    else:
        for u in range(USERS):
            factors[u] = math.sqrt(factors[u])
    for u in range(USERS):
        factors[u] = _clip_factor(factors[u], limit)


@_kernel
def add_spreads(moments, mean, turn, diagonal, noise, careful, clip, limit, size, norms, out):
    """Write the norms of u uᵀ − J; add it, clipped to ``clip``, and J's squared diagonal under the same factor.

    ``out`` has one row per block of ``size`` users; each user's whole contribution is clipped to ``limit``.
    """
    p, width = mean.size, moments.shape[1]
    entries, first = p * (p + 1) // 2, 0
    room, spare, products = lanes_for(p, width), spare_for(width), products_of(turn)
    columns, sums = places(p)[3], lane_zeros(entries + p)
    factors, square = lane_zeros(1), lane_zeros(2)
    while first < len(moments):
        load_eight(moments, first, spare, room, columns, False)
        posterior(room, mean, turn, products, diagonal, noise, careful, moments, first)
        information(room, p, careful)
        block = first // size
        users = min(LANES, len(moments) - first, (block + 1) * size - first)
        _write_spread_norms(room, p, square)
        for u in range(LANES):
            norm, rows = square[0, u], room[columns + width - 1, u]
            part = min(1.0, clip / max(norm, 1e-300))
            whole = math.sqrt((part * norm) ** 2 + part * part * square[1, u])
            factor = _both(part, _clip_factor(whole, limit))
            factors[0, u] = factor if rows > 0.0 and norm < math.inf and u < users else 0.0
        for u in range(users):
            norms[first + u] = square[0, u]
        _add_spread(room, p, factors, sums)
        first += users
        if first // size > block or first >= len(moments):
            _collect(sums, p, out[block])


@_kernel
def _write_spread_norms(room, p, square):
    """Write the norms of u uᵀ − J, and the squared norms of the squares of J's diagonal."""
    means = places(p)[1]
    norm, other, extra = spread(0.0), spread(0.0), spread(0.0)
    for i in range(p):
        u, own = load(room, (means + i) * LANES), load(room, i * (p + 1) * LANES)
        value, own = u * u - own, own * own
        norm, extra = norm + value * value * spread(0.5), extra + own * own
        for k in range(i + 1, p):
            value = u * load(room, (means + k) * LANES) - load(room, (i * p + k) * LANES)
            norm, other = other + value * value, norm  # two sums in turn: an addition takes longer than the rest
    norm = norm + other
    store(square, 0, norm + norm)
    store(square, LANES, extra)
    odd = 0
    for u in range(LANES):
        odd += not 1e-200 < square[0, u] < 1e200
    if odd:
        _write_odd_norms(room, p, square)
        return
    for u in range(LANES):
        square[0, u] = math.sqrt(square[0, u])


@_kernel
def _write_odd_norms(room, p, square):
    """Write the norms of u uᵀ − J where some squares may have left the range of numbers: those lanes once more."""
    means, line = places(p)[1], np.empty((p * (p + 1) // 2, 1))
    for u in range(LANES):
        if 1e-200 < square[0, u] < 1e200:
            square[0, u] = math.sqrt(square[0, u])
            continue
        place, total_square = 0, 0.0
        for i in range(p):
            for k in range(i, p):
                value = room[means + i, u] * room[means + k, u] - room[i * p + k, u]
                line[place, 0] = value if i == k else value * math.sqrt(2.0)
                total_square += line[place, 0] ** 2
                place += 1
        square[0, u] = _norm(total_square, line, 0, 0, len(line))


@_kernel
def _add_spread(room, p, factors, sums):
    """Add u uᵀ − J and the squares of J's diagonal, times the factors of the lanes; nothing where they are zero."""
    means, place, squares = places(p)[1], 0, p * (p + 1) // 2 * LANES
    factor = load(factors, 0)
    for i in range(p):
        u, own = load(room, (means + i) * LANES), load(room, i * (p + 1) * LANES)
        at = squares + i * LANES
        store(sums, at, load(sums, at) + where_usable(factor, own * own * factor))
        for k in range(i, p):
            value = u * load(room, (means + k) * LANES) - load(room, (i * p + k) * LANES)
            store(sums, place, load(sums, place) + where_usable(factor, value * factor))
            place += LANES


@_kernel
def _collect(sums, p, out):
    """Write the sums over the lanes, off the diagonal times √2, and set the lanes to zero."""
    place = 0
    for i in range(p):
        for k in range(i, p):
            value = total(load(sums, place * LANES))
            out[place] = value if i == k else value * math.sqrt(2.0)
            store(sums, place * LANES, spread(0.0))
            place += 1
    for i in range(p):
        out[place + i] = total(load(sums, (place + i) * LANES))
        store(sums, (place + i) * LANES, spread(0.0))


@_kernel
def weigh_likelihoods(p, moments, out):
    """Pack the upper triangles that ``out`` starts with, and write 1/√trace and the norm at its end; 0 without rows."""
    for user in range(len(out)):
        trace, square, place = 0.0, 0.0, 0
        for i in range(p):
            trace += out[user, place]
            square += out[user, place] ** 2
            for a in range(place + 1, place + p - i):
                out[user, a] *= math.sqrt(2.0)
                square += out[user, a] ** 2
            place += p - i
        known = moments[user, moments.shape[1] - 1] > 0.0 and trace > 0.0
        out[user, out.shape[1] - 2] = 1.0 / math.sqrt(max(trace, 1e-300)) if known else 0.0
        out[user, out.shape[1] - 1] = math.sqrt(square)


@_kernel
def write_scores(likelihoods, point, turn, information_clip, out):
    """Write (score − H·point)·turn for each user, times the weight its clipped information had."""
    p, width = point.size, likelihoods.shape[1]
    vector = p * (p + 1) // 2
    scores = width + -width % LANES
    room, spare = lane_zeros(scores + p), spare_for(width)
    line, factors = lane_zeros(p), lane_zeros(1)
    for first in range(0, len(likelihoods), LANES):
        load_eight(likelihoods, first, spare, room, 0, True)
        place = 0
        for i in range(p):
            own = load(room, (vector + i) * LANES) - load(room, place) * repeat(point, i)
            other, half = spread(0.0), spread(math.sqrt(0.5) * point[i])
            place += LANES
            for k in range(i + 1, p):
                entry, at = load(room, place), (vector + k) * LANES
                other = other + entry * repeat(point, k)
                store(room, at, load(room, at) - entry * half)
                place += LANES
            store(room, (vector + i) * LANES, own - other * spread(math.sqrt(0.5)))
        turn_vector(room, vector, turn, False, p, scores)
        for u in range(LANES):
            weight, norm = room[width - 2, u], room[width - 1, u]
            factors[0, u] = weight * min(1.0, information_clip / max(norm * weight, 1e-300))
        factor = load(factors, 0)
        for i in range(p):
            store(line, i * LANES, load(room, (scores + i) * LANES) * factor)
        scatter(line, first, out)


@_kernel
def add_scores(scores, freedoms, constant, shared, clip, extra, limit, size, norms, out):
    """Write the norms of scores; add scores clipped to ``clip``, with what the clip did, to their block in ``out``.

    See :class:`~tacitly.methods.mixed_effects.queries.MeasuredScore`.
    """
    p = scores.shape[1]
    for user in range(len(scores)):
        square = 0.0
        for a in range(p):
            square += scores[user, a] * scores[user, a]
        norm = _norm(square, scores.T, user, 0, p)
        norms[user] = norm
        if not norm > 0.0:
            continue
        factor = min(1.0, clip / max(norm, 1e-300))
        length = min(norm / clip, 1.0) ** 2
        second = 0.0
        for a in range(p):
            second += (scores[user, a] / norm) ** 2 * constant[a]
        second = min(second, 1.0)
        first = 1.0 - second
        cut = 1.0 if norm > clip else 0.0
        varying = factor * (1.0 - cut * first / max(freedoms[user] - shared, 1.0))
        fixed = factor * (1.0 - cut * second / max(shared, 1.0))
        squares = varying * varying + fixed * fixed + length * length * (first * first + second * second)
        whole = math.sqrt((factor * norm) ** 2 + (extra * clip) ** 2 * squares)
        weight, block = _clip_factor(whole, limit), user // size
        both = _both(factor, weight)
        if both > 0.0:
            for a in range(p):
                out[block, a] += scores[user, a] * both
            out[block, p] += extra * clip * varying * weight
            out[block, p + 1] += extra * clip * fixed * weight
            out[block, p + 2] += extra * clip * length * first * weight
            out[block, p + 3] += extra * clip * length * second * weight


@_kernel
def _norm(square, values, lane, first, last):
    """Return the norm of values[first:last, lane], whose sum of squares is ``square`` unless that left the range."""
    if 1e-200 < square < 1e200:
        return math.sqrt(square)
    largest = 0.0
    for a in range(first, last):
        if not math.isfinite(values[a, lane]):
            return math.nan
        largest = max(largest, abs(values[a, lane]))
    if largest == 0.0:
        return 0.0
    square = 0.0
    for a in range(first, last):
        square += (values[a, lane] / largest) ** 2
    return largest * math.sqrt(square)


@_kernel
def _both(factor, weight):
    """Return the product of two factors; 0 where it has lost digits to underflow, so that it could exceed the clip."""
    product = factor * weight
    return product if product > _WHOLE else 0.0


@_kernel
def _clip_factor(norm, limit):
    """Return :func:`~tacitly.methods.shared.batch.clip_factors` of one norm."""
    if not math.isfinite(norm):
        return 0.0
    factor = limit / norm if norm > limit else 1.0
    return factor if factor > LEAST else 0.0
