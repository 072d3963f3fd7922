"""Posteriors of many users from their moments, eight users at a time: the p×p systems are solved one per SIMD lane.

Lanes do not interact, so a user's numbers do not depend on who else is there, to the last bit. Everything is in double
precision. The definitions are in :mod:`~tacitly.methods.mixed_effects.posterior`; what is made of posteriors is in
:mod:`~tacitly.methods.mixed_effects.sum_kernels`. (Numba caches compiled code and checks for changes in this file only:
after a change in ``tacitly.simd``, delete the cache.)
"""

# Numba kernels are not typed.
# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tacitly.simd.inverses import invert
from tacitly.simd.lanes import LANES, lane_zeros, load_eight, scatter
from tacitly.simd.lazy_njit import UNCOUNTED, njit
from tacitly.simd.registers import load, repeat, spread, store
from tacitly.simd.tiles import SIDE, reciprocal

_kernel: Any = njit(nogil=True, cache=True, fastmath={"contract"}, error_model="numpy")
_inside: Any = njit(**UNCOUNTED)


@_kernel
def write_rows(moments, mean, turn, diagonal, noise, careful, covariance, back, back_diagonal, out):
    """Write for each user the upper triangle of BᵀJB (or of BᵀRB, the ``covariance``), then Bᵀu; B is ``back``."""
    p, width = mean.size, moments.shape[1]
    room, spare, scales = lanes_for(p, width), spare_for(width), scales_of(mean, turn, noise)
    right, means, work, columns = places(p)
    line = lane_zeros(p * (p + 3) // 2)
    for first in range(0, len(moments), LANES):
        load_eight(moments, first, spare, room, columns, False)
        posterior(room, mean, turn, scales, diagonal, noise, careful, moments, first)
        if covariance:
            _negate(room, p)
        else:
            information(room, p, careful)
        _turn(room, back, back_diagonal, p, work)
        place = 0
        for i in range(p):
            for k in range(i, p):
                store(line, place, load(room, (i * p + k) * LANES))
                place += LANES
        turn_vector(room, means, back, back_diagonal, p, right)
        for i in range(p):
            store(line, place + i * LANES, load(room, (right + i) * LANES))
        scatter(line, first, out)


@_kernel
def write_weights(moments, prior, precision, noise, out):
    """Write the upper triangle of V = (P + ZᵀZ/s²)⁻¹, then V(Pw̄ + Zᵀt/s²); P is the prior's ``precision``.

    ``prior`` is Pw̄.
    """
    p, width = prior.size, moments.shape[1]
    room, spare, line = lanes_for(p, width), spare_for(width), lane_zeros(p * (p + 3) // 2)
    columns = places(p)[3]
    for first in range(0, len(moments), LANES):
        load_eight(moments, first, spare, room, columns, False)
        weights(room, prior, precision, noise, moments, (first + LANES) * width, width)
        pack_weights(room, p, line)
        scatter(line, first, out)


@_inside
def weights(room, prior, precision, noise, ahead, place, lines):
    """Write −V in the place of the system, and the posterior mean of the weights in that of u.

    ``ahead[place:]``, this many cache lines, is what will be read next.
    """
    p = prior.size
    _, means, work, columns = places(p)
    moment, rights, share = columns, columns + p * (p + 1) // 2, spread(1.0 / noise)
    for i in range(p):
        store(room, (means + i) * LANES, load(room, (rights + i) * LANES) * share + repeat(prior, i))
        for k in range(i, p):
            store(room, (i * p + k) * LANES, load(room, moment * LANES) * share + repeat(precision, i * p + k))
            moment += 1
    invert(room, 0, p, 0, means, work + p * p, ahead, place, lines)


@_inside
def pack_weights(room, p, line):
    """Write the upper triangle of V, then the weights."""
    means, place = places(p)[1], 0
    for i in range(p):
        for k in range(i, p):
            store(line, place, spread(0.0) - load(room, (i * p + k) * LANES))
            place += LANES
    for i in range(p):
        store(line, place + i * LANES, load(room, (means + i) * LANES))


@_kernel
def write_turned(moments, directions, out):
    """Write the moments of the rows ZB for the directions B."""
    p, width = len(directions), moments.shape[1]
    room, spare, line, mean = lanes_for(p, width), spare_for(width), lane_zeros(width), np.zeros(p)
    right, _, _, columns = places(p)
    for first in range(0, len(moments), LANES):
        load_eight(moments, first, spare, room, columns, True)
        _whiten(room, mean, directions, False, 1.0)
        place = 0
        for i in range(p):
            for k in range(i, p):
                store(line, place, load(room, (i * p + k) * LANES))
                place += LANES
        for i in range(p):
            store(line, place + i * LANES, load(room, (right + i) * LANES))
        for i in range(2):  # tᵀt and the number of rows
            store(line, (width - 2 + i) * LANES, load(room, (columns + width - 2 + i) * LANES))
        scatter(line, first, out)


@_kernel
def lanes_for(p, width):
    """Return lanes for posteriors of eight users, from moments of this width."""
    return lane_zeros(places(p)[3] + width + -width % LANES)


@_inside
def places(p):
    """Return where lanes have b = Lᵀz/s², u, work space, and moments; the system comes first.

    One array with places in it, not an array for each: Numba would count references to them all the time. The work
    space has two matrices, or a matrix and what inverting needs.
    """
    return p * p, p * p + p, p * p + 2 * p, 3 * p * p + 6 * p + 10


@_kernel
def spare_for(width):
    """Return room for rows of eight users, as :func:`~tacitly.simd.lanes.load_eight` needs it."""
    return np.zeros((LANES, width + -width % LANES))


@_kernel
def scales_of(mean, turn, noise):
    """Return what moments are multiplied by under a diagonal L, in their order, then v = L⁻¹w̄; of no use for others."""
    p, place = len(turn), 0
    scales = np.empty(p * (p + 5) // 2)
    for i in range(p):
        for k in range(i, p):
            scales[place] = turn[i, i] * turn[k, k]
            place += 1
    for i in range(p):
        scales[place + i] = turn[i, i] / math.sqrt(noise)
        scales[place + p + i] = mean[i] / (turn[i, i] * math.sqrt(noise))
    return scales


@_inside
def posterior(room, mean, turn, scales, diagonal, noise, careful, moments, first):
    """Replace the system by minus the upper triangle of R, and write u. ``turn`` is L/s.

    The room has the moments of eight users, from ``first`` on. Where J needs care, A is kept.
    """
    p, width = mean.size, moments.shape[1]
    right, means, work, columns = places(p)
    ahead = (first + LANES) * width
    if diagonal and not careful:
        # With b of the targets themselves, u = R(b − Av) = R(b + v) − v: moments need not be moved to w̄.
        _whiten_diagonal(room, p, scales)
        invert(room, 0, p, min(p % SIDE, 1), means, work + p * p, moments, ahead, width)
        for i in range(p):
            at = (means + i) * LANES
            store(room, at, load(room, at) - repeat(scales, p * (p + 3) // 2 + i))
        return
    squares = _whiten(room, mean, turn, diagonal, noise)
    store(room, (columns + width - 2) * LANES, squares)
    for i in range(p):
        for k in range(i, p):
            store(room, (work + i * p + k) * LANES, load(room, (i * p + k) * LANES))
        store(room, i * (p + 1) * LANES, load(room, i * (p + 1) * LANES) + spread(1.0))
        store(room, (means + i) * LANES, load(room, (right + i) * LANES))
    invert(room, 0, p, 0, means, work + p * p, moments, ahead, width)


@_inside
def residual(room, p, scales, diagonal, noise, careful):
    """Return ‖t − Zw‖² at the weights w of :func:`posterior`."""
    right, means, work, columns = places(p)
    rights = columns + p * (p + 1) // 2
    squares, less = load(room, (rights + p) * LANES), spread(0.0)
    if diagonal and not careful:  # as it is, tᵀt − 2wᵀZᵀt + wᵀZᵀZw: errors of w change it least
        for i in range(p):
            weight = load(room, (means + i) * LANES) + repeat(scales, p * (p + 3) // 2 + i)
            store(room, (work + i) * LANES, weight * spread(noise * scales[p * (p + 1) // 2 + i]))
        place = columns
        for i in range(p):
            own, other = load(room, place * LANES) * load(room, (work + i) * LANES), spread(0.0)
            for k in range(i + 1, p):
                place += 1
                other = other + load(room, place * LANES) * load(room, (work + k) * LANES)
            place += 1
            own = own + other + other - spread(2.0) * load(room, (rights + i) * LANES)
            less = less - own * load(room, (work + i) * LANES)
        return squares - less
    for i in range(p):  # uᵀ(2b − Au), by how much the fit lowers the squares, is uᵀ(b + u) since Au = b − u
        u = load(room, (means + i) * LANES)
        less = less + u * (load(room, (right + i) * LANES) + u)
    return squares - spread(noise) * less


@_inside
def _whiten_diagonal(room, p, scales):
    """Write I + A, b = LᵀZᵀt/s², and b + v in the place of u, for a diagonal L.

    If the number of rows is not a multiple of four, the first pivot is swept on the way, which then costs nothing.
    """
    right, means, pivots, columns = places(p)
    entries, inverse, one = p * (p + 1) // 2, spread(0.0), spread(1.0)
    for i in range(p):
        value = load(room, (columns + entries + i) * LANES) * repeat(scales, entries + i)
        store(room, (right + i) * LANES, value)
        store(room, (means + i) * LANES, value + repeat(scales, entries + p + i))
        store(room, (pivots + i) * LANES, spread(0.0))
    start = min(p % SIDE, 1)
    if start:
        inverse = reciprocal(load(room, columns * LANES) * repeat(scales, 0) + one)
        own = load(room, means * LANES) * inverse
        store(room, means * LANES, own)
        store(room, 0, spread(0.0) - inverse)
        for k in range(1, p):
            value, at = load(room, (columns + k) * LANES) * repeat(scales, k), (means + k) * LANES
            store(room, (pivots + k) * LANES, value)
            store(room, at, load(room, at) - value * own)
            store(room, k * LANES, value * inverse)
    place = start * p
    for i in range(start, p):
        factor = load(room, (pivots + i) * LANES)
        value = load(room, (columns + place) * LANES) * repeat(scales, place) + one
        store(room, i * (p + 1) * LANES, value - factor * inverse * factor)
        factor = factor * inverse
        for k in range(i + 1, p):
            place += 1
            value = load(room, (columns + place) * LANES) * repeat(scales, place)
            store(room, (i * p + k) * LANES, value - factor * load(room, (pivots + k) * LANES))
        place += 1


@_inside
def _move_row(room, place, p, i, mean, right):
    """Subtract from Zᵀt what row i of ZᵀZ, from its diagonal on, adds to ZᵀZw̄."""
    own = repeat(mean, i)
    moved = load(room, (right + i) * LANES) - load(room, place * LANES) * own
    for k in range(i + 1, p):
        value, at = load(room, (place + k - i) * LANES), (right + k) * LANES
        moved = moved - value * repeat(mean, k)
        store(room, at, load(room, at) - value * own)
    store(room, (right + i) * LANES, moved)


@_inside
def _whiten(room, mean, turn, diagonal, noise):
    """Write A = LᵀZᵀZL/s² (upper triangle) and b = LᵀZᵀ(t − Zw̄)/s²; return ‖t − Zw̄‖²."""
    p = mean.size
    right, means, work, columns = places(p)
    place, rights = columns, columns + p * (p + 1) // 2
    squares = load(room, (rights + p) * LANES)
    for i in range(p):
        value = load(room, (rights + i) * LANES)
        squares = squares - value * spread(mean[i])
        store(room, (means + i) * LANES, value)
    for i in range(p):
        _move_row(room, place, p, i, mean, means)
        for k in range(i, p):
            store(room, (i * p + k) * LANES, load(room, place * LANES))
            place += 1
        value = load(room, (means + i) * LANES)
        squares = squares - value * spread(mean[i])
        store(room, (means + i) * LANES, value * spread(1.0 / math.sqrt(noise)))
    turn_vector(room, means, turn, diagonal, p, right)
    _turn(room, turn, diagonal, p, work)
    return squares


@_inside
def turn_vector(room, vector, turn, diagonal, p, out):
    """Write Tᵀv."""
    for i in range(p):
        if diagonal:
            store(room, (out + i) * LANES, load(room, (vector + i) * LANES) * spread(turn[i, i]))
            continue
        value = spread(0.0)
        for k in range(p):
            value = value + load(room, (vector + k) * LANES) * repeat(turn, k * p + i)
        store(room, (out + i) * LANES, value)


@_inside
def _turn(room, turn, diagonal, p, work):
    """Replace the upper triangle of the system M, symmetric, by that of TᵀMT."""
    if diagonal:
        for i in range(p):
            for k in range(i, p):
                place = (i * p + k) * LANES
                store(room, place, load(room, place) * spread(turn[i, i] * turn[k, k]))
        return
    for i in range(p):  # work = M T
        for k in range(0, p, 4):
            k1, k2, k3 = min(k + 1, p - 1), min(k + 2, p - 1), min(k + 3, p - 1)
            s0 = s1 = s2 = s3 = spread(0.0)
            for q in range(p):
                x, row = load(room, (i * p + q if i <= q else q * p + i) * LANES), q * p
                s0, s1 = s0 + x * repeat(turn, row + k), s1 + x * repeat(turn, row + k1)
                s2, s3 = s2 + x * repeat(turn, row + k2), s3 + x * repeat(turn, row + k3)
            row = work + i * p
            store(room, (row + k) * LANES, s0)
            store(room, (row + k1) * LANES, s1)
            store(room, (row + k2) * LANES, s2)
            store(room, (row + k3) * LANES, s3)
    for k in range(p):  # M = Tᵀ work
        for i in range(0, k + 1, 4):
            i1, i2, i3 = min(i + 1, k), min(i + 2, k), min(i + 3, k)
            s0 = s1 = s2 = s3 = spread(0.0)
            for q in range(p):
                x, row = load(room, (work + q * p + k) * LANES), q * p
                s0, s1 = s0 + x * repeat(turn, row + i), s1 + x * repeat(turn, row + i1)
                s2, s3 = s2 + x * repeat(turn, row + i2), s3 + x * repeat(turn, row + i3)
            store(room, (i * p + k) * LANES, s0)
            store(room, (i1 * p + k) * LANES, s1)
            store(room, (i2 * p + k) * LANES, s2)
            store(room, (i3 * p + k) * LANES, s3)


@_inside
def information(room, p, careful):
    """Replace −R by the upper triangle of J: I − R, or the symmetric part of RA where that would cancel."""
    kept = places(p)[2]
    work = kept + p * p
    if not careful:
        for i in range(p):
            place = i * (p + 1) * LANES
            store(room, place, load(room, place) + spread(1.0))
        return
    for i in range(p):
        for k in range(i, p):
            value = spread(0.0)
            for q in range(p):
                above, beside = (i * p + q if i <= q else q * p + i), (q * p + k if q <= k else k * p + q)
                value = value - load(room, above * LANES) * load(room, (kept + beside) * LANES)
                value = value - load(room, beside * LANES) * load(room, (kept + above) * LANES)
            store(room, (work + i * p + k) * LANES, value * spread(0.5))
    for i in range(p):
        for k in range(i, p):
            store(room, (i * p + k) * LANES, load(room, (work + i * p + k) * LANES))


@_inside
def _negate(room, p):
    for i in range(p):
        for k in range(i, p):
            place = (i * p + k) * LANES
            store(room, place, spread(0.0) - load(room, place))
