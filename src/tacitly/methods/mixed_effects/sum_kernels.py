"""Sums of clipped contributions over many users: sizes of groups of coordinates, spreads, scores.

They are computed from posteriors (:mod:`~tacitly.methods.mixed_effects.posterior_kernels`) or from kept statistics. The
definitions are in :mod:`~tacitly.methods.mixed_effects.queries`. (Numba caches compiled code and checks for changes in
this file only: after a change in ``tacitly.simd`` or in the kernels of posteriors, delete the cache.)
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
    residual,
    scales_of,
    spare_for,
    turn_vector,
)
from tacitly.privacy.clipping import LEAST
from tacitly.simd.lanes import LANES, lane_zeros, load_eight, scatter
from tacitly.simd.lazy_njit import UNCOUNTED, njit
from tacitly.simd.points import logarithm, point
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

_WHOLE = 2.0**-1010  # factors above it have all their digits: smaller ones may be denormal numbers

_kernel: Any = njit(nogil=True, cache=True, fastmath={"contract"}, error_model="numpy")
_inside: Any = njit(**UNCOUNTED)


@_kernel
def write_sizes(moments, mean, turn, diagonal, noise, careful, pairs, members, starts, out):
    """Write for each group and user ‖u‖², tr J and ‖J‖² of the group's coordinates; then the residual, tr J and m.

    ``members`` has the coordinates of group g from starts[g, 0] on, ``pairs`` the places i·p + k, i < k, of pairs of
    them from starts[g, 1] on.
    """
    p, width = mean.size, moments.shape[1]
    room, spare, scales = lanes_for(p, width), spare_for(width), scales_of(mean, turn, noise)
    columns, found = places(p)[3], lane_zeros(out.shape[1])
    for first in range(0, len(moments), LANES):
        load_eight(moments, first, spare, room, columns, False)
        posterior(room, mean, turn, scales, diagonal, noise, careful, moments, first)
        errors = residual(room, p, scales, diagonal, noise, careful)
        information(room, p, careful)
        _write_sizes(room, p, errors, pairs, members, starts, found)
        scatter(found, first, out)


@_inside
def _write_sizes(room, p, errors, pairs, members, starts, found):
    """Write the sizes of eight users."""
    _, means, _, columns = places(p)
    trace, place = spread(0.0), 0
    for group in range(len(starts) - 1):
        square = _sum_of_squares(room, pairs, starts[group, 1], starts[group + 1, 1])
        size, own, square = spread(0.0), spread(0.0), square + square
        for member in range(starts[group, 0], starts[group + 1, 0]):
            at = members[member]
            u, entry = load(room, (means + at) * LANES), load(room, at * (p + 1) * LANES)
            size, own, square = size + u * u, own + entry, square + entry * entry
        trace = trace + own
        store(found, place, size)
        store(found, place + LANES, own)
        store(found, place + 2 * LANES, square)
        place += 3 * LANES
    store(found, place, where_number(errors, at_least(errors, 0.0)))
    store(found, place + LANES, trace)
    store(found, place + 2 * LANES, load(room, (columns + p * (p + 3) // 2 + 1) * LANES))


@_inside
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
def add_variances(
    moments, mean, turn, diagonal, noise, careful, pairs, members, starts, weight, fine, cap, table, limit, size, out
):
    """Add two numbers for each group of coordinates and for the noise, clipped to ``limit``, to a user's block.

    Excess and weight (``fine``), sizes being capped at ``cap``; the table has their expectation as bends. Else
    points on circles, and the table has their reaches. See
    :class:`~tacitly.methods.mixed_effects.variance_queries.Variances` and
    :class:`~tacitly.methods.mixed_effects.variance_queries.LogVariances`. ``out`` has one row per block of ``size``
    users.
    """
    p, width, numbers, first = mean.size, moments.shape[1], out.shape[1], 0
    room, spare, scales = lanes_for(p, width), spare_for(width), scales_of(mean, turn, noise)
    columns, found = places(p)[3], lane_zeros(3 * numbers // 2)
    own, factors, sums = lane_zeros(numbers), lane_zeros(1), lane_zeros(numbers)
    while first < len(moments):
        load_eight(moments, first, spare, room, columns, False)
        posterior(room, mean, turn, scales, diagonal, noise, careful, moments, first)
        errors = residual(room, p, scales, diagonal, noise, careful)
        information(room, p, careful)
        _write_sizes(room, p, errors, pairs, members, starts, found)
        for group in range(numbers // 2):
            if fine:
                _write_excess(found, group, numbers // 2, noise, weight, cap, table, own)
            else:
                _write_point(found, group, numbers // 2, noise, weight, table, own)
        block = first // size
        users = min(LANES, len(moments) - first, (block + 1) * size - first)
        _write_factors(own, limit, users, factors)
        factor = load(factors, 0)
        for a in range(numbers):
            add_to(sums, a * LANES, where_usable(factor, load(own, a * LANES) * factor))
        first += users
        if first // size > block or first >= len(moments):
            for a in range(numbers):
                out[block, a] = total(load(sums, a * LANES))
                store(sums, a * LANES, spread(0.0))


@_inside
def _write_excess(found, group, count, noise, weight, cap, table, own):
    """Write the capped size less its expectation, and the weight of both."""
    ratio, freedom, share = _ratio(found, group, count, noise, weight)
    octaves, expected = logarithm(freedom), repeat(table, 0)
    for j in range(1, len(table)):  # where it bends, and by how much
        expected = expected + repeat(table, 2 * j + 1) * at_least(octaves - repeat(table, 2 * j), 0.0)
    store(own, 2 * group * LANES, (at_most(ratio, cap) - expected) * share)
    store(own, (2 * group + 1) * LANES, share)


@_inside
def _write_point(found, group, count, noise, weight, table, own):
    """Write the logarithm of the size, without its bias, as a point on the circle of radius weight."""
    ratio, freedom, share = _ratio(found, group, count, noise, weight)
    x = freedom * spread(0.5)  # digamma(x) by its recurrence and its series, without its logarithm
    half = x + spread(6.0)
    inverse = spread(1.0) / (half * half)
    over = (((x + spread(15.0)) * x + spread(85.0)) * x + spread(225.0)) * x + spread(274.0)
    over = (over * x + spread(120.0)) * x  # x(x + 1)…(x + 5): its derivative over itself is the sum of reciprocals
    under = ((spread(6.0) * x + spread(75.0)) * x + spread(340.0)) * x + spread(675.0)
    under = (under * x + spread(548.0)) * x + spread(120.0)
    series = spread(1.0 / 12.0) - inverse * (spread(1.0 / 120.0) - inverse * spread(1.0 / 252.0))
    bias = spread(0.0) - under / over - inverse * (spread(0.5) * half + series)
    inside = at_least(ratio, 1e-300) * (x * half * inverse)  # and the logarithm of ν/2 comes off
    octaves, reach = logarithm(inside) - bias * spread(1.0 / math.log(2.0)), table[group, 0]
    cosine, sine = point(at_most(at_least(octaves, -reach), reach) * spread(0.9 / reach))
    store(own, 2 * group * LANES, cosine * share)
    store(own, (2 * group + 1) * LANES, sine * share)


@_inside
def _ratio(found, group, count, noise, weight):
    """Return size over expected size, degrees of freedom and weight of a group; the last one is the noise.

    The weight is not a number where one of them is not.
    """
    at = 3 * group * LANES
    size, trace, rows = load(found, at), load(found, at + LANES), load(found, (3 * count - 1) * LANES)
    if group == count - 1:
        square = rows - trace - trace
        for other in range(count - 1):
            square = square + load(found, (3 * other + 2) * LANES)
        trace = where_number(trace, at_least(rows - trace, 1e-9))
        least = trace * trace / at_least(rows, 1.0)
        ratio, freedom = size / (spread(noise) * trace), trace * trace / (least + at_least(square - least, 0.0))
    else:
        ratio = size / at_least(trace, 1e-300)
        freedom = trace * trace / at_least(load(found, at + 2 * LANES), 1e-300)
    share = where_usable(rows, trace / (trace + spread(weight)))
    return ratio, at_least(freedom, 0.5), where_number(ratio, where_number(freedom, share))


@_inside
def _write_factors(own, limit, users, factors):
    """Write by what to multiply each user's numbers so that their norm is at most ``limit``; 0 if it is not finite."""
    square = spread(0.0)
    for a in range(len(own)):
        value = load(own, a * LANES)
        square = square + value * value
    store(factors, 0, square)
    for u in range(LANES):
        norm = _norm(factors[0, u], own, u, 0, len(own))
        factors[0, u] = _clip_factor(norm, limit) if u < users else 0.0


@_kernel
def write_spread_norms(moments, mean, turn, diagonal, noise, careful, norms):
    """Write the norms of u uᵀ − J."""
    p, width = mean.size, moments.shape[1]
    room, spare, scales = lanes_for(p, width), spare_for(width), scales_of(mean, turn, noise)
    columns, square = places(p)[3], lane_zeros(2)
    for first in range(0, len(moments), LANES):
        load_eight(moments, first, spare, room, columns, False)
        posterior(room, mean, turn, scales, diagonal, noise, careful, moments, first)
        information(room, p, careful)
        _write_spread_norms(room, p, square)
        for u in range(min(LANES, len(moments) - first)):
            norms[first + u] = square[0, u]


@_kernel
def add_spreads(moments, mean, turn, diagonal, noise, careful, clip, limit, size, out):
    """Add u uᵀ − J, clipped to ``clip``, and J's squared diagonal under the same factor, to a user's block.

    ``out`` has one row per block of ``size`` users; each user's whole contribution is clipped to ``limit``.
    """
    p, width = mean.size, moments.shape[1]
    entries, first = p * (p + 1) // 2, 0
    room, spare, scales = lanes_for(p, width), spare_for(width), scales_of(mean, turn, noise)
    columns, sums = places(p)[3], lane_zeros(entries + p)
    factors, square = lane_zeros(1), lane_zeros(2)
    while first < len(moments):
        load_eight(moments, first, spare, room, columns, False)
        posterior(room, mean, turn, scales, diagonal, noise, careful, moments, first)
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


@_inside
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


@_inside
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


@_inside
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


@_inside
def _both(factor, weight):
    """Return the product of two factors; 0 where it has lost digits to underflow, so that it could exceed the clip."""
    product = factor * weight
    return product if product > _WHOLE else 0.0


@_inside
def _clip_factor(norm, limit):
    """Return :func:`~tacitly.methods.shared.batch.clip_factors` of one norm."""
    if not math.isfinite(norm):
        return 0.0
    factor = limit / norm if norm > limit else 1.0
    return factor if factor > LEAST else 0.0
