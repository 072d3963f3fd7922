"""Compiled forms for many users: moments from rows, and posteriors from moments, eight users at a time.

:func:`write_moments` reads each user's rows once. What follows needs moments only: the p×p systems of eight users are
solved together, one per SIMD lane. Lanes do not interact and a user's rows are added in order, so a user's numbers do
not depend on who else is there, to the last bit. Everything is in double precision.

The definitions are in :mod:`~tacitly.methods.mixed_effects.posterior` and
:mod:`~tacitly.methods.mixed_effects.queries`. (Numba caches compiled code and checks for changes in this file only:
after a change in ``tacitly.simd``, delete the cache.)
"""

# Numba kernels are not typed.
# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tacitly.privacy.clipping import LEAST
from tacitly.simd.lazy_njit import njit
from tacitly.simd.registers import fetch, load, load_every, root, spread, store, total, where_usable

LANES = 8  # users solved together: doubles in a register
_WHOLE = 2.0**-1010  # factors above it have all their digits: smaller ones may be denormal numbers
_ROWS = 64  # rows that are standardised before their products are added: few enough for the first-level cache

_kernel: Any = njit(nogil=True, cache=True, fastmath={"contract"}, error_model="numpy")


@_kernel
def write_moments(X, y, offsets, used, center, gain, level, scale, knee, most, out):
    """Write each user's upper triangle of ZᵀZ, then Zᵀt, tᵀt and the number of rows to a row of ``out``.

    Zeros for a user whose numbers cannot be used. ``used`` are the columns of X that are in use.
    """
    d = used.size
    width = d + -d % LANES
    rows, targets = _lane_zeros(_ROWS, width), np.zeros(_ROWS)
    gram, sums, rights = _lane_zeros(width, width), _lane_zeros(1, width), _lane_zeros(1, width)
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
    rows, spreads = _lane_zeros(_ROWS, width), _lane_zeros(d + 1, width)
    weights = _lane_zeros(1, width)
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


@_kernel
def write_sizes(moments, mean, turn, diagonal, noise, careful, pairs, starts, out):
    """Write for each user and group ‖u‖², tr J and ‖J‖² of the group's coordinates; then the residual, tr J and m.

    ``pairs`` has the places i·p + k, i ≤ k, of pairs of coordinates of one group, those of group g from starts[2g] on,
    the diagonal from starts[2g + 1] on.
    """
    p, count = mean.size, starts.size // 2
    system, inverse, half = _lane_zeros(p * p, LANES), _lane_zeros(p * p, LANES), _lane_zeros(p * p, LANES)
    right, means, line = _lane_zeros(p, LANES), _lane_zeros(p, LANES), _lane_zeros(3 * count + 3, LANES)
    spare = np.zeros((LANES, moments.shape[1]))
    for first in range(0, len(moments), LANES):
        users, start = _eight(moments, first, spare)
        squares = _whiten(users, start, mean, turn, diagonal, noise, inverse, system, right)
        _invert(system, p, half, inverse)
        _solve(inverse, right, p, means)
        squares = squares - spread(noise) * _explained(system, right, means, p)
        _information(system, inverse, p, careful, half)
        trace = spread(0.0)
        for group in range(count):
            size, own, square = spread(0.0), spread(0.0), spread(0.0)
            for pair in range(starts[2 * group], starts[2 * group + 1]):
                entry = load(inverse, pairs[pair] * LANES)
                square = square + entry * entry
            square = square + square
            for pair in range(starts[2 * group + 1], starts[2 * group + 2]):
                u, entry = load(means, pairs[pair] // p * LANES), load(inverse, pairs[pair] * LANES)
                size, own, square = size + u * u, own + entry, square + entry * entry
            trace = trace + own
            store(line, 3 * group * LANES, size)
            store(line, (3 * group + 1) * LANES, own)
            store(line, (3 * group + 2) * LANES, square)
        store(line, 3 * count * LANES, squares)
        store(line, (3 * count + 1) * LANES, trace)
        store(line, (3 * count + 2) * LANES, load_every(users, start + users.shape[1] - 1, users.shape[1]))
        _scatter(line, first, out)


@_kernel
def add_variances(sizes, noise, weight, cap, knots, capped, limit, size, out):
    """Add excess and weight of each group of coordinates, clipped to ``limit``, to a user's block in ``out``.

    See :class:`~tacitly.methods.mixed_effects.queries.Variances`; ``knots`` are logarithms of degrees of freedom.
    """
    count = out.shape[1] // 2
    line = np.empty((2 * count, 1))
    for user in range(len(sizes)):
        square = 0.0
        for group in range(count):
            ratio, freedom, own = _ratio(sizes[user], group, count, noise, weight)
            place, at = 0, math.log(freedom)
            while place < knots.size - 2 and at >= knots[place + 1]:
                place += 1
            slope = (capped[place + 1] - capped[place]) / (knots[place + 1] - knots[place])
            inside = min(max(at, knots[0]), knots[knots.size - 1])
            line[2 * group, 0] = (min(ratio, cap) - (capped[place] + slope * (inside - knots[place]))) * own
            line[2 * group + 1, 0] = own
            square += line[2 * group, 0] ** 2 + own * own
        _add_line(line, square, limit, out[user // size])


@_kernel
def add_log_variances(sizes, noise, weight, reaches, limit, size, out):
    """Add the points of each group of coordinates, clipped to ``limit``, to a user's block in ``out``.

    See :class:`~tacitly.methods.mixed_effects.queries.LogVariances`.
    """
    count = out.shape[1] // 2
    line = np.empty((2 * count, 1))
    for user in range(len(sizes)):
        square = 0.0
        for group in range(count):
            ratio, freedom, own = _ratio(sizes[user], group, count, noise, weight)
            half, bias = freedom / 2.0, -math.log(freedom / 2.0)
            for _ in range(6):  # the digamma function, by its recurrence and its series
                bias -= 1.0 / half
                half += 1.0
            inverse = 1.0 / (half * half)
            bias += math.log(half) - 0.5 / half - inverse * (1.0 / 12.0 - inverse * (1.0 / 120.0 - inverse / 252.0))
            octaves, reach = (math.log(max(ratio, 1e-300)) - bias) / math.log(2.0), reaches[group]
            angle = min(max(octaves, -reach), reach) * (0.9 * math.pi / reach)
            line[2 * group, 0], line[2 * group + 1, 0] = math.cos(angle) * own, math.sin(angle) * own
            square += line[2 * group, 0] ** 2 + line[2 * group + 1, 0] ** 2
        _add_line(line, square, limit, out[user // size])


@_kernel
def _ratio(sizes, group, count, noise, weight):
    """Return size over expected size, degrees of freedom and weight of a group; the last one is the noise."""
    rows = sizes[sizes.size - 1]
    if group == count - 1:
        trace = max(rows - sizes[sizes.size - 2], 1e-9)
        ratio, freedom = sizes[sizes.size - 3] / (noise * trace), trace
    else:
        trace = sizes[3 * group + 1]
        ratio = sizes[3 * group] / max(trace, 1e-300)
        freedom = trace * trace / max(sizes[3 * group + 2], 1e-300)
    return ratio, max(freedom, 0.5), (trace / (trace + weight) if rows > 0.0 else 0.0)


@_kernel
def _add_line(line, square, limit, out):
    """Add one user's contribution, clipped."""
    factor = _clip_factor(_norm(square, line, 0, 0, len(line)), limit)
    if factor > 0.0:
        for a in range(len(line)):
            out[a] += line[a, 0] * factor


@_kernel
def add_spreads(moments, mean, turn, diagonal, noise, careful, clip, limit, size, norms, out):
    """Write the norms of u uᵀ − J; add it, clipped to ``clip``, and J's squared diagonal under the same factor.

    ``out`` has one row per block of ``size`` users; each user's whole contribution is clipped to ``limit``.
    """
    p = mean.size
    entries, first = p * (p + 1) // 2, 0
    system, inverse, half = _lane_zeros(p * p, LANES), _lane_zeros(p * p, LANES), _lane_zeros(p * p, LANES)
    right, means, line = _lane_zeros(p, LANES), _lane_zeros(p, LANES), _lane_zeros(entries + p, LANES)
    sums, factors, square = _lane_zeros(entries + p, LANES), _lane_zeros(1, LANES), _lane_zeros(2, LANES)
    spare = np.zeros((LANES, moments.shape[1]))
    while first < len(moments):
        users, start = _eight(moments, first, spare)
        _whiten(users, start, mean, turn, diagonal, noise, inverse, system, right)
        _invert(system, p, half, inverse)
        _solve(inverse, right, p, means)
        _information(system, inverse, p, careful, half)
        _write_spread(means, inverse, p, line, square)
        for u in range(LANES):
            factors[0, u] = 0.0
            if first + u < len(moments) and first // size == (first + u) // size:
                norm = _norm(square[0, u], line, u, 0, entries)
                norms[first + u] = norm
                if moments[first + u, moments.shape[1] - 1] > 0.0 and math.isfinite(norm):
                    part = min(1.0, clip / max(norm, 1e-300))
                    whole = math.sqrt((part * norm) ** 2 + part * part * square[1, u])
                    factors[0, u] = _both(part, _clip_factor(whole, limit))
        _add(line, factors, sums)
        block, first = first // size, min(first + LANES, (first // size + 1) * size)
        if first // size > block or first >= len(moments):
            _collect(sums, out[block])


@_kernel
def _write_spread(means, information, p, line, square):
    """Write u uᵀ − J, packed, and the squares of J's diagonal; their squared norms to ``square``."""
    norm, extra, place = spread(0.0), spread(0.0), 0
    for i in range(p):
        u = load(means, i * LANES)
        for k in range(i, p):
            value = u * load(means, k * LANES) - load(information, (i * p + k) * LANES)
            if k > i:
                value = value * spread(math.sqrt(2.0))
            store(line, place, value)
            norm = norm + value * value
            place += LANES
    for i in range(p):
        value = load(information, i * (p + 1) * LANES)
        value = value * value
        store(line, place + i * LANES, value)
        extra = extra + value * value
    store(square, 0, norm)
    store(square, LANES, extra)


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
    entries = p * (p + 1) // 2
    vector, line = _lane_zeros(p, LANES), _lane_zeros(p, LANES)
    factors, spare = _lane_zeros(1, LANES), np.zeros((LANES, width))
    for first in range(0, len(likelihoods), LANES):
        users, start = _eight(likelihoods, first, spare)
        for i in range(p):
            store(vector, i * LANES, load_every(users, start + entries + i, width))
        place = start
        for i in range(p):
            own = load(vector, i * LANES) - load_every(users, place, width) * spread(point[i])
            place += 1
            for k in range(i + 1, p):
                entry = load_every(users, place, width) * spread(math.sqrt(0.5))
                own = own - entry * spread(point[k])
                store(vector, k * LANES, load(vector, k * LANES) - entry * spread(point[i]))
                place += 1
            store(vector, i * LANES, own)
        _turn_vector(vector, turn, False, p, line)
        for u in range(min(LANES, len(likelihoods) - first)):
            weight, norm = likelihoods[first + u, width - 2], likelihoods[first + u, width - 1]
            factors[0, u] = weight * min(1.0, information_clip / max(norm * weight, 1e-300))
        factor = load(factors, 0)
        for i in range(p):
            store(line, i * LANES, load(line, i * LANES) * factor)
        _scatter(line, first, out)


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


@_kernel
def _add(line, factors, sums):
    """Add what the lanes hold, times their factors; nothing from lanes whose factor is zero."""
    factor = load(factors, 0)
    for a in range(len(line)):
        store(sums, a * LANES, load(sums, a * LANES) + where_usable(factor, load(line, a * LANES) * factor))


@_kernel
def _collect(sums, out):
    """Write the sums over the lanes, and set the lanes to zero."""
    for a in range(len(sums)):
        out[a] = total(load(sums, a * LANES))
        store(sums, a * LANES, spread(0.0))


@_kernel
def write_rows(moments, mean, turn, diagonal, noise, careful, covariance, back, back_diagonal, out):
    """Write for each user the upper triangle of BᵀJB (or of BᵀRB, the ``covariance``), then Bᵀu; B is ``back``."""
    p = mean.size
    system, inverse, half = _lane_zeros(p * p, LANES), _lane_zeros(p * p, LANES), _lane_zeros(p * p, LANES)
    right, means, line = _lane_zeros(p, LANES), _lane_zeros(p, LANES), _lane_zeros(p * (p + 3) // 2, LANES)
    product, spare = _lane_zeros(p * p, LANES), np.zeros((LANES, moments.shape[1]))
    for first in range(0, len(moments), LANES):
        users, start = _eight(moments, first, spare)
        _whiten(users, start, mean, turn, diagonal, noise, inverse, system, right)
        _invert(system, p, half, inverse)
        _solve(inverse, right, p, means)
        if not covariance:
            _information(system, inverse, p, careful, half)
        _turn(inverse, back, back_diagonal, p, product, system)
        place = 0
        for i in range(p):
            for k in range(i, p):
                store(line, place, load(system, (i * p + k) * LANES))
                place += LANES
        _turn_vector(means, back, back_diagonal, p, right)
        for i in range(p):
            store(line, place + i * LANES, load(right, i * LANES))
        _scatter(line, first, out)


@_kernel
def _eight(moments, first, spare):
    """Return an array that holds eight users' moments, and where they start; users that are not there have no rows."""
    width = moments.shape[1]
    if first + LANES <= len(moments):
        for a in range(0, LANES * width, LANES):  # the eight after the next: lanes read eight rows at once, which
            fetch(moments, (first + LANES) * width + a)  # the processor does not foresee
        return moments, first * width
    for u in range(LANES):
        for a in range(width):
            spare[u, a] = moments[first + u, a] if first + u < len(moments) else 0.0
    return spare, 0


@_kernel
def _whiten(users, start, mean, turn, diagonal, noise, work, system, right):
    """Write A = LᵀZᵀZL/s² (upper triangle) and LᵀZᵀ(t − Zw̄)/s²; return ‖t − Zw̄‖². ``turn`` is L/s."""
    p, width = mean.size, users.shape[1]
    place, rights = start, start + p * (p + 1) // 2
    squares = load_every(users, rights + p, width)
    for i in range(p):
        value = load_every(users, rights + i, width)
        squares = squares - value * spread(mean[i])
        store(work, i * LANES, value)
    for i in range(p):
        moved = load(work, i * LANES)
        for k in range(i, p):
            value = load_every(users, place, width)
            place += 1
            store(system, (i * p + k) * LANES, value)
            moved = moved - value * spread(mean[k])
            if k > i:
                store(work, k * LANES, load(work, k * LANES) - value * spread(mean[i]))
        squares = squares - moved * spread(mean[i])
        store(work, i * LANES, moved * spread(1.0 / math.sqrt(noise)))
    _turn_vector(work, turn, diagonal, p, right)
    _turn(system, turn, diagonal, p, work, system)
    return squares


@_kernel
def _turn_vector(vector, turn, diagonal, p, out):
    """Write Tᵀv."""
    for i in range(p):
        if diagonal:
            store(out, i * LANES, load(vector, i * LANES) * spread(turn[i, i]))
            continue
        value = spread(0.0)
        for k in range(p):
            value = value + load(vector, k * LANES) * spread(turn[k, i])
        store(out, i * LANES, value)


@_kernel
def _turn(matrix, turn, diagonal, p, work, out):
    """Write the upper triangle of TᵀMT for symmetric M, of which the upper triangle is given; ``out`` may be M."""
    if diagonal:
        for i in range(p):
            for k in range(i, p):
                store(out, (i * p + k) * LANES, load(matrix, (i * p + k) * LANES) * spread(turn[i, i] * turn[k, k]))
        return
    for i in range(p):  # work = M T
        for k in range(0, p, 4):
            k1, k2, k3 = min(k + 1, p - 1), min(k + 2, p - 1), min(k + 3, p - 1)
            s0 = s1 = s2 = s3 = spread(0.0)
            for q in range(p):
                x = load(matrix, (i * p + q if i <= q else q * p + i) * LANES)
                s0, s1 = s0 + x * spread(turn[q, k]), s1 + x * spread(turn[q, k1])
                s2, s3 = s2 + x * spread(turn[q, k2]), s3 + x * spread(turn[q, k3])
            store(work, (i * p + k) * LANES, s0)
            store(work, (i * p + k1) * LANES, s1)
            store(work, (i * p + k2) * LANES, s2)
            store(work, (i * p + k3) * LANES, s3)
    for k in range(p):  # out = Tᵀ work
        for i in range(0, k + 1, 4):
            i1, i2, i3 = min(i + 1, k), min(i + 2, k), min(i + 3, k)
            s0 = s1 = s2 = s3 = spread(0.0)
            for q in range(p):
                x = load(work, (q * p + k) * LANES)
                s0, s1 = s0 + x * spread(turn[q, i]), s1 + x * spread(turn[q, i1])
                s2, s3 = s2 + x * spread(turn[q, i2]), s3 + x * spread(turn[q, i3])
            store(out, (i * p + k) * LANES, s0)
            store(out, (i1 * p + k) * LANES, s1)
            store(out, (i2 * p + k) * LANES, s2)
            store(out, (i3 * p + k) * LANES, s3)


@_kernel
def _invert(system, p, half, out):
    """Write the upper triangle of R = (I + A)⁻¹, by Cholesky: I + A = CᵀC, D = C⁻¹, R = D Dᵀ.

    ``out`` first gets C (the diagonal as its reciprocal) and ``half`` D, both upper triangular; what lies below the
    diagonal of ``half`` must be zero. Two rows and four columns at a time, so that loaded numbers are used several
    times.
    """
    for i in range(0, p, 2):
        _factor_two(system, p, i, out)
    if p % 2:
        store(half, (p * p - 1) * LANES, load(out, (p * p - 1) * LANES))
    for i in range(p - 2 - p % 2, -1, -2):
        _invert_two(out, p, i, half)
    for i in range(0, p, 2):
        _multiply_two(half, p, i, out)


@_kernel
def _factor_two(system, p, i, work):
    """Write rows i and i + 1 of C."""
    one, row, next_row = spread(1.0), i * p, (i + 1) * p
    own, beside, other = load(system, (row + i) * LANES) + one, spread(0.0), one
    if i + 1 < p:
        beside, other = load(system, (row + i + 1) * LANES), load(system, (next_row + i + 1) * LANES) + one
    for q in range(i):
        x = load(work, (q * p + i) * LANES)
        own = own - x * x
        if i + 1 < p:
            z = load(work, (q * p + i + 1) * LANES)
            beside, other = beside - x * z, other - z * z
    inverse = one / root(own)
    beside = beside * inverse
    last = one / root(other - beside * beside)
    store(work, (row + i) * LANES, inverse)
    if i + 1 == p:
        return
    store(work, (row + i + 1) * LANES, beside)
    store(work, (next_row + i + 1) * LANES, last)
    for k in range(i + 2, p, 4):
        k1, k2, k3 = min(k + 1, p - 1), min(k + 2, p - 1), min(k + 3, p - 1)
        s0, s1 = load(system, (row + k) * LANES), load(system, (row + k1) * LANES)
        s2, s3 = load(system, (row + k2) * LANES), load(system, (row + k3) * LANES)
        t0, t1 = load(system, (next_row + k) * LANES), load(system, (next_row + k1) * LANES)
        t2, t3 = load(system, (next_row + k2) * LANES), load(system, (next_row + k3) * LANES)
        for q in range(i):
            line = q * p
            x, z = load(work, (line + i) * LANES), load(work, (line + i + 1) * LANES)
            y0, y1 = load(work, (line + k) * LANES), load(work, (line + k1) * LANES)
            y2, y3 = load(work, (line + k2) * LANES), load(work, (line + k3) * LANES)
            s0, s1, s2, s3 = s0 - x * y0, s1 - x * y1, s2 - x * y2, s3 - x * y3
            t0, t1, t2, t3 = t0 - z * y0, t1 - z * y1, t2 - z * y2, t3 - z * y3
        s0, s1, s2, s3 = s0 * inverse, s1 * inverse, s2 * inverse, s3 * inverse
        t0, t1, t2, t3 = t0 - beside * s0, t1 - beside * s1, t2 - beside * s2, t3 - beside * s3
        _store_at(work, row, k, k1, k2, k3, s0, s1, s2, s3)
        _store_at(work, next_row, k, k1, k2, k3, t0 * last, t1 * last, t2 * last, t3 * last)


@_kernel
def _invert_two(work, p, i, half):
    """Write rows i and i + 1 of D = C⁻¹, given the rows after them."""
    row, next_row = i * p, (i + 1) * p
    inverse, last = load(work, (row + i) * LANES), load(work, (next_row + i + 1) * LANES)
    beside = load(work, (row + i + 1) * LANES)
    for k in range(i + 2, p, 4):
        k1, k2, k3 = min(k + 1, p - 1), min(k + 2, p - 1), min(k + 3, p - 1)
        s0 = s1 = s2 = s3 = spread(0.0)
        t0 = t1 = t2 = t3 = spread(0.0)
        for q in range(i + 2, k3 + 1):
            line = q * p
            x, z = load(work, (row + q) * LANES), load(work, (next_row + q) * LANES)
            y0, y1 = load(half, (line + k) * LANES), load(half, (line + k1) * LANES)
            y2, y3 = load(half, (line + k2) * LANES), load(half, (line + k3) * LANES)
            s0, s1, s2, s3 = s0 - x * y0, s1 - x * y1, s2 - x * y2, s3 - x * y3
            t0, t1, t2, t3 = t0 - z * y0, t1 - z * y1, t2 - z * y2, t3 - z * y3
        t0, t1, t2, t3 = t0 * last, t1 * last, t2 * last, t3 * last
        s0, s1, s2, s3 = s0 - beside * t0, s1 - beside * t1, s2 - beside * t2, s3 - beside * t3
        _store_at(half, row, k, k1, k2, k3, s0 * inverse, s1 * inverse, s2 * inverse, s3 * inverse)
        _store_at(half, next_row, k, k1, k2, k3, t0, t1, t2, t3)
    store(half, (row + i) * LANES, inverse)
    store(half, (row + i + 1) * LANES, spread(0.0) - inverse * beside * last)
    store(half, (next_row + i + 1) * LANES, last)


@_kernel
def _multiply_two(half, p, i, out):
    """Write rows i and i + 1 of D Dᵀ, at and right of the diagonal."""
    row, next_row = i * p, min(i + 1, p - 1) * p
    for k in range(i, p, 4):
        k1, k2, k3 = min(k + 1, p - 1), min(k + 2, p - 1), min(k + 3, p - 1)
        s0 = s1 = s2 = s3 = spread(0.0)
        t0 = t1 = t2 = t3 = spread(0.0)
        for q in range(k, p):
            x, z = load(half, (row + q) * LANES), load(half, (next_row + q) * LANES)
            y0, y1 = load(half, (k * p + q) * LANES), load(half, (k1 * p + q) * LANES)
            y2, y3 = load(half, (k2 * p + q) * LANES), load(half, (k3 * p + q) * LANES)
            s0, s1, s2, s3 = s0 + x * y0, s1 + x * y1, s2 + x * y2, s3 + x * y3
            t0, t1, t2, t3 = t0 + z * y0, t1 + z * y1, t2 + z * y2, t3 + z * y3
        _store_at(out, next_row, k, k1, k2, k3, t0, t1, t2, t3)
        _store_at(out, row, k, k1, k2, k3, s0, s1, s2, s3)


@_kernel
def _store_at(array, row, k, k1, k2, k3, s0, s1, s2, s3):
    store(array, (row + k) * LANES, s0)
    store(array, (row + k1) * LANES, s1)
    store(array, (row + k2) * LANES, s2)
    store(array, (row + k3) * LANES, s3)


@_kernel
def _solve(inverse, right, p, means):
    """Write u = R·right."""
    for i in range(p):
        value = spread(0.0)
        for k in range(p):
            place = i * p + k if i <= k else k * p + i
            value = value + load(inverse, place * LANES) * load(right, k * LANES)
        store(means, i * LANES, value)


@_kernel
def _explained(system, right, means, p):
    """Return uᵀ(2·right − Au): by how much the fit lowers the squares, over s²."""
    gain = spread(0.0)
    for i in range(p):
        u, left = load(means, i * LANES), spread(2.0) * load(right, i * LANES)
        left = left - load(system, i * (p + 1) * LANES) * u
        for k in range(i + 1, p):  # entries above the diagonal count twice
            left = left - spread(2.0) * load(system, (i * p + k) * LANES) * load(means, k * LANES)
        gain = gain + u * left
    return gain


@_kernel
def _information(system, inverse, p, careful, work):
    """Replace the upper triangle of R by that of J: I − R, or the symmetric part of RA where that would cancel."""
    if not careful:
        for i in range(p):
            for k in range(i, p):
                one = spread(1.0) if i == k else spread(0.0)
                store(inverse, (i * p + k) * LANES, one - load(inverse, (i * p + k) * LANES))
        return
    for i in range(p):
        for k in range(i, p):
            value = spread(0.0)
            for q in range(p):
                above, beside = (i * p + q if i <= q else q * p + i), (q * p + k if q <= k else k * p + q)
                value = value + load(inverse, above * LANES) * load(system, beside * LANES)
                value = value + load(inverse, beside * LANES) * load(system, above * LANES)
            store(work, (i * p + k) * LANES, value * spread(0.5))
    for i in range(p):
        for k in range(i, p):
            store(inverse, (i * p + k) * LANES, load(work, (i * p + k) * LANES))


@_kernel
def _scatter(line, first, out):
    """Write what the lanes hold to the rows of the users that are there."""
    for u in range(min(LANES, len(out) - first)):
        for a in range(len(line)):
            out[first + u, a] = line[a, u]


@_kernel
def _lane_zeros(rows, columns):
    """Return zeros that start on a cache line."""
    flat = np.zeros(rows * columns + LANES)
    start = -(flat.ctypes.data // 8) % LANES
    return flat[start : start + rows * columns].reshape(rows, columns)
