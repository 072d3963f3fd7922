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
from tacitly.simd.lazy_njit import njit
from tacitly.simd.registers import load, repeat, spread, store
from tacitly.simd.tiles import SIDE, reciprocal

_kernel: Any = njit(nogil=True, cache=True, fastmath={"contract"}, error_model="numpy")


@_kernel
def write_rows(moments, mean, turn, diagonal, noise, careful, covariance, back, back_diagonal, out):
    """Write for each user the upper triangle of BᵀJB (or of BᵀRB, the ``covariance``), then Bᵀu; B is ``back``."""
    p, width = mean.size, moments.shape[1]
    room, spare, products = lanes_for(p, width), spare_for(width), products_of(turn)
    right, means, work, columns = places(p)
    line = lane_zeros(p * (p + 3) // 2)
    for first in range(0, len(moments), LANES):
        load_eight(moments, first, spare, room, columns, False)
        posterior(room, mean, turn, products, diagonal, noise, careful, moments, first)
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
def write_weights(moments, mean, precision, noise, out):
    """Write the upper triangle of V = (P + ZᵀZ/s²)⁻¹, then w̄ + VZᵀ(t − Zw̄)/s²; P is the prior's ``precision``."""
    p, width = mean.size, moments.shape[1]
    room, spare, line = lanes_for(p, width), spare_for(width), lane_zeros(p * (p + 3) // 2)
    _, means, work, columns = places(p)
    rights = columns + p * (p + 1) // 2
    for first in range(0, len(moments), LANES):
        load_eight(moments, first, spare, room, columns, False)
        place, share = columns, spread(1.0 / noise)
        for i in range(p):
            store(room, (means + i) * LANES, load(room, (rights + i) * LANES))
        for i in range(p):
            _move_row(room, place, p, i, mean, means)
            for k in range(i, p):
                store(room, (i * p + k) * LANES, load(room, place * LANES) * share + repeat(precision, i * p + k))
                place += 1
        for i in range(p):
            store(room, (means + i) * LANES, load(room, (means + i) * LANES) * share)
        invert(room, 0, p, 0, means, work + p * p, moments, (first + LANES) * width, width)
        place = 0
        for i in range(p):
            for k in range(i, p):
                store(line, place, spread(0.0) - load(room, (i * p + k) * LANES))
                place += LANES
        for i in range(p):
            store(line, place + i * LANES, load(room, (means + i) * LANES) + repeat(mean, i))
        scatter(line, first, out)


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


@_kernel
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
def products_of(turn):
    """Return the products of pairs of entries of the diagonal, in the order of moments."""
    p, place = len(turn), 0
    products = np.empty(p * (p + 1) // 2)
    for i in range(p):
        for k in range(i, p):
            products[place] = turn[i, i] * turn[k, k]
            place += 1
    return products


@_kernel
def posterior(room, mean, turn, products, diagonal, noise, careful, moments, first):
    """Replace the system by minus the upper triangle of R, write u, and return the residual. ``turn`` is L/s.

    The room has the moments of eight users, from ``first`` on. Where J needs care, A is kept.
    """
    p, width = mean.size, moments.shape[1]
    right, means, work, _ = places(p)
    swept = 0
    if diagonal and not careful:
        squares, swept = _whiten_diagonal(room, mean, turn, products, noise), min(p % SIDE, 1)
    else:
        squares = _whiten(room, mean, turn, diagonal, noise)
        for i in range(p):
            for k in range(i, p):
                store(room, (work + i * p + k) * LANES, load(room, (i * p + k) * LANES))
            store(room, i * (p + 1) * LANES, load(room, i * (p + 1) * LANES) + spread(1.0))
            store(room, (means + i) * LANES, load(room, (right + i) * LANES))
    invert(room, 0, p, swept, means, work + p * p, moments, (first + LANES) * width, width)
    explained = spread(0.0)  # uᵀ(2b − Au), by how much the fit lowers the squares, is uᵀ(b + u) since Au = b − u
    for i in range(p):
        u = load(room, (means + i) * LANES)
        explained = explained + u * (load(room, (right + i) * LANES) + u)
    return squares - spread(noise) * explained


@_kernel
def _whiten_diagonal(room, mean, turn, products, noise):
    """Write I + A and b as :func:`_whiten` does, for a diagonal L, and b to u as well; return ‖t − Zw̄‖².

    If the number of rows is not a multiple of four, the first pivot is swept on the way, which then costs nothing.
    """
    p = mean.size
    right, means, pivots, columns = places(p)
    rights = columns + p * (p + 1) // 2
    squares = load(room, (rights + p) * LANES)
    for i in range(p):
        value = load(room, (rights + i) * LANES)
        squares = squares - value * repeat(mean, i)
        store(room, (right + i) * LANES, value)
        store(room, (pivots + i) * LANES, spread(0.0))
    inverse, start = spread(0.0), min(p % SIDE, 1)
    if start:
        for k in range(p):
            store(room, (pivots + k) * LANES, load(room, (columns + k) * LANES) * repeat(products, k))
        store(room, pivots * LANES, load(room, pivots * LANES) + spread(1.0))
        inverse = reciprocal(load(room, pivots * LANES))
        _move_row(room, columns, p, 0, mean, right)
    place = start * p
    for i in range(start, p - 1, 2):
        _whiten_two(room, columns, place, p, i, mean, products, inverse)
        place += 2 * (p - i) - 1
    if (p - start) % 2:
        factor = load(room, (pivots + p - 1) * LANES)
        value = load(room, (columns + place) * LANES) * repeat(products, place) + spread(1.0)
        store(room, (p * p - 1) * LANES, value - factor * inverse * factor)
        _move_row(room, columns + place, p, p - 1, mean, right)
    scale = 1.0 / math.sqrt(noise)
    for i in range(p):
        value = load(room, (right + i) * LANES)
        squares = squares - value * repeat(mean, i)
        value = value * spread(scale * turn[i, i])
        store(room, (right + i) * LANES, value)
        store(room, (means + i) * LANES, value)
    if start:
        own = load(room, right * LANES) * inverse
        for k in range(1, p):
            factor = load(room, (pivots + k) * LANES)
            store(room, (means + k) * LANES, load(room, (right + k) * LANES) - factor * own)
            store(room, k * LANES, factor * inverse)
        store(room, means * LANES, own)
        store(room, 0, spread(0.0) - inverse)
    return squares


@_kernel
def _whiten_two(room, columns, place, p, i, mean, products, inverse):
    """Write rows i and i + 1 of I + A, and do as :func:`_move_row` does, two rows at a time."""
    right, pivots = p * p, p * p + 2 * p
    below = place + p - i - 1  # so that entry (i + 1, k) is as far from it as (i, k) is from ``place``
    one, first, second = spread(1.0), repeat(mean, i), repeat(mean, i + 1)
    x, z = load(room, (pivots + i) * LANES), load(room, (pivots + i + 1) * LANES)
    c, b = x * inverse, z * inverse
    g0, g1 = load(room, (columns + place) * LANES), load(room, (columns + place + 1) * LANES)
    g2 = load(room, (columns + below + 1) * LANES)
    moved = load(room, (right + i) * LANES) - g0 * first - g1 * second
    other = load(room, (right + i + 1) * LANES) - g1 * first - g2 * second
    row, next_row = i * p, (i + 1) * p
    store(room, (row + i) * LANES, g0 * repeat(products, place) + one - c * x)
    store(room, (row + i + 1) * LANES, g1 * repeat(products, place + 1) - c * z)
    store(room, (next_row + i + 1) * LANES, g2 * repeat(products, below + 1) + one - b * z)
    for k in range(i + 2, p):
        at, under = place + k - i, below + k - i
        g0, g1 = load(room, (columns + at) * LANES), load(room, (columns + under) * LANES)
        m, x, moves = repeat(mean, k), load(room, (pivots + k) * LANES), (right + k) * LANES
        moved, other = moved - g0 * m, other - g1 * m
        store(room, moves, load(room, moves) - g0 * first - g1 * second)
        store(room, (row + k) * LANES, g0 * repeat(products, at) - c * x)
        store(room, (next_row + k) * LANES, g1 * repeat(products, under) - b * x)
    store(room, (right + i) * LANES, moved)
    store(room, (right + i + 1) * LANES, other)


@_kernel
def _move_row(room, place, p, i, mean, right):
    """Subtract from Zᵀt what row i of ZᵀZ, from its diagonal on, adds to ZᵀZw̄."""
    own = repeat(mean, i)
    moved = load(room, (right + i) * LANES) - load(room, place * LANES) * own
    for k in range(i + 1, p):
        value, at = load(room, (place + k - i) * LANES), (right + k) * LANES
        moved = moved - value * repeat(mean, k)
        store(room, at, load(room, at) - value * own)
    store(room, (right + i) * LANES, moved)


@_kernel
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


@_kernel
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


@_kernel
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


@_kernel
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


@_kernel
def _negate(room, p):
    for i in range(p):
        for k in range(i, p):
            place = (i * p + k) * LANES
            store(room, place, spread(0.0) - load(room, place))
