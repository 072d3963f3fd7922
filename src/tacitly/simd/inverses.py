"""Inverses of eight symmetric matrices at once, one per SIMD lane (:mod:`tacitly.simd.lanes`).

Gauss–Jordan elimination on the upper triangle, in place: sweeping the pivots K replaces M by

    M_KK ← −P,  M_iK ← M_iK P,  M_ij ← M_ij − M_iK P M_Kj,  P = M_KK⁻¹,

and after all pivots are swept, M is minus its inverse. For positive definite matrices no pivots need to be chosen. Four
pivots are swept at a time, so that almost all arithmetic is on tiles of four by four numbers, which fill the registers;
the remainder of the number of rows modulo four is swept first, one pivot at a time. Every sweep passes over one
triangle, which stays in the first-level cache, and all sweeps take p³/2 multiplications and additions: as many as
Cholesky, with fewer loads and without square roots.
"""

# Numba-compiled functions have no types that mypy knows.
# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

from typing import Any

from tacitly.simd.lanes import LANES
from tacitly.simd.lazy_njit import UNCOUNTED, njit
from tacitly.simd.registers import fetch, load, spread, store
from tacitly.simd.tiles import SIDE, invert_four, reciprocal, subtract_products, subtract_upper_products

_inside: Any = njit(**UNCOUNTED)


@_inside
def invert(room, matrix, p, swept, right, work, ahead, place, lines):
    """Replace the upper triangle of a positive definite M by that of −M⁻¹, and a vector by M⁻¹ times it.

    Both are in the lanes of ``room``: the p·p numbers of M from row ``matrix`` on (those below the diagonal are
    overwritten), and the vector from row ``right`` on; 4p + 10 rows from ``work`` on are work space. The first
    ``swept`` pivots, at most p % 4, have already been swept. The result is NaN if a matrix is not positive definite.

    ``ahead[place:]`` is read next: this many cache lines of it are prefetched, a few at a time. (Prefetched all at
    once, they would wait for each other, and the inversion for them.)
    """
    rest, tiles = p % SIDE, p // SIDE
    pivot = work + SIDE * p
    fetched = -(-lines // max(1, tiles * tiles))
    for a in range(swept, rest):
        _sweep_one(room, matrix, p, a, right, work)
    if rest < p:
        invert_four(room, matrix + rest * (p + 1), p, pivot)
    for s in range(rest, p, SIDE):
        following = s + SIDE
        _write_columns(room, matrix, p, s, right, work)
        if following < p:  # the next pivots first: the processor inverts them while it continues with the rest
            place_of = matrix + following * (p + 1)
            subtract_upper_products(room, place_of, p, matrix + s * p + following, 1, p, work + following, p)
            invert_four(room, place_of, p, pivot)
        for a in range(rest):
            _update_row(room, matrix + a * p, a, s, p, work)
        for i in range(rest, p, SIDE):
            for _ in range(fetched):
                fetch(ahead, place)
                place += LANES
            if i == s:
                continue
            # Coefficients of four rows are the current values in the columns of the pivots.
            first, row_step, step = (i * p + s, p, 1) if i < s else (s * p + i, 1, p)
            if i != following:
                subtract_upper_products(room, matrix + i * (p + 1), p, matrix + first, row_step, step, work + i, p)
            for k in range(i + SIDE, p, SIDE):
                if k != s:
                    subtract_products(room, matrix + i * p + k, p, matrix + first, row_step, step, work + k, p)


@_inside
def _sweep_one(room, matrix, p, a, right, work):
    """Sweep one pivot."""
    inverse = reciprocal(load(room, (matrix + a * (p + 1)) * LANES))
    for i in range(p):
        store(room, (work + i) * LANES, load(room, (matrix + (i * p + a if i < a else a * p + i)) * LANES))
    store(room, (work + a) * LANES, spread(0.0))
    own = load(room, (right + a) * LANES) * inverse
    for i in range(p):
        factor = load(room, (work + i) * LANES)
        store(room, (right + i) * LANES, load(room, (right + i) * LANES) - factor * own)
        factor = factor * inverse
        if i != a:
            for k in range(i, p):
                place = (matrix + i * p + k) * LANES
                store(room, place, load(room, place) - factor * load(room, (work + k) * LANES))
            store(room, (matrix + (i * p + a if i < a else a * p + i)) * LANES, factor)
    store(room, (matrix + a * (p + 1)) * LANES, spread(0.0) - inverse)
    store(room, (right + a) * LANES, own)


@_inside
def _write_columns(room, matrix, p, s, right, work):
    """Copy the columns M_iK of four pivots to the work space, replace them by M_iK P, and sweep the vector."""
    pivot = work + SIDE * p
    p00, p01, p02, p03 = _four(room, pivot, 1)
    p11, p12, p13, p22 = _four(room, pivot + 4, 1)
    p23, p33 = load(room, (pivot + 8) * LANES), load(room, (pivot + 9) * LANES)
    c0, c1, c2, c3 = _four(room, right + s, 1)
    r0, r1 = c0 * p00 + c1 * p01 + c2 * p02 + c3 * p03, c0 * p01 + c1 * p11 + c2 * p12 + c3 * p13
    r2, r3 = c0 * p02 + c1 * p12 + c2 * p22 + c3 * p23, c0 * p03 + c1 * p13 + c2 * p23 + c3 * p33
    for half in range(2):
        first, last, step = (0, s, 1) if half == 0 else (s + SIDE, p, p)
        for i in range(first, last):
            place, at = matrix + (i * p + s if half == 0 else s * p + i), (right + i) * LANES
            c0, c1, c2, c3 = _four(room, place, step)
            _put_four(room, work + i, p, c0, c1, c2, c3)
            store(room, at, load(room, at) - r0 * c0 - r1 * c1 - r2 * c2 - r3 * c3)
            b0, b1 = c0 * p00 + c1 * p01 + c2 * p02 + c3 * p03, c0 * p01 + c1 * p11 + c2 * p12 + c3 * p13
            b2, b3 = c0 * p02 + c1 * p12 + c2 * p22 + c3 * p23, c0 * p03 + c1 * p13 + c2 * p23 + c3 * p33
            _put_four(room, place, step, b0, b1, b2, b3)
    _put_four(room, right + s, 1, r0, r1, r2, r3)


@_inside
def _update_row(room, row, a, s, p, work):
    """Update row a of the matrix, from the diagonal on, except for the columns of the pivots."""
    b0, b1, b2, b3 = _four(room, row + s, 1)
    for k in range(a, p):
        if k < s or k >= s + SIDE:
            c0, c1, c2, c3 = _four(room, work + k, p)
            place = (row + k) * LANES
            store(room, place, load(room, place) - b0 * c0 - b1 * c1 - b2 * c2 - b3 * c3)


@_inside
def _four(room, place, step):
    at, step = place * LANES, step * LANES
    return load(room, at), load(room, at + step), load(room, at + 2 * step), load(room, at + 3 * step)


@_inside
def _put_four(room, place, step, s0, s1, s2, s3):
    at, step = place * LANES, step * LANES
    store(room, at, s0)
    store(room, at + step, s1)
    store(room, at + 2 * step, s2)
    store(room, at + 3 * step, s3)
