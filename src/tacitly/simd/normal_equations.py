"""Eight users at a time: their projected rows next to each other, and their k×k systems, one per SIMD lane.

Shared by kernels that solve a small system per user. A user's numbers depend on that user's rows only, to the last bit:
rows are read under a mask, and lanes do not interact. (Numba's cache checks each file separately: delete the cache
after a change here.)
"""

# Numba kernels are not typed.
# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

from typing import Any

from tacitly.simd.lanes import LANES
from tacitly.simd.lazy_njit import UNCOUNTED, njit
from tacitly.simd.projections import four
from tacitly.simd.registers import (
    add_products,
    fetch,
    load_doubles,
    load_first,
    no_products,
    spread,
    store_totals,
    widened,
)

_inside: Any = njit(**UNCOUNTED)


@_inside
def place_of(rows, u):
    """Return where a user's projections start: aligned, with three columns of padding after the previous user's."""
    return (rows + 10 * u) // 8 * 8


@_inside
def normal_equations(P, place, y, first, last, level, systems, u):
    """Write the lower triangle of PPᵀ to systems[u], and P(y − level) as the row after it."""
    m, K = last - first, P.shape[0]
    for b in range(0, K, 4):
        for c in range(0, b, 4):
            sums = no_products(P)
            for i in range(0, m, LANES):
                rows = some_rows(P, b, place + i, m - i)
                sums = add_products(sums, rows, some_rows(P, c, place + i, m - i), "all")
            store_totals(systems, (u * (K + 4) + b) * K + c, K, sums)
        sums, right = no_products(P), no_products(P)
        for i in range(0, m, LANES):
            rows = some_rows(P, b, place + i, m - i)
            target = load_doubles(y, first + i, m - i) - spread(level)
            sums = add_products(sums, rows, rows, "lower")
            right = add_products(right, (target, target, target, target), rows, "first")
        store_totals(systems, (u * (K + 4) + b) * K + b, K, sums)
        store_totals(systems, (u * (K + 4) + K) * K + b, K, right)


@_inside
def some_rows(P, b, place, count):
    """Read ``count`` elements, then zeros, of four consecutive rows."""
    room = P.shape[1]
    position = b * room + place
    return (
        load_first(P, position, count),
        load_first(P, position + room, count),
        load_first(P, position + 2 * room, count),
        load_first(P, position + 3 * room, count),
    )


@_inside
def project_doubles(X, first, last, basis, out, place, ahead):
    """Write basis[b]·X[first + j] to out[b, place + j] in double precision, four by four at a time.

    Up to three columns after the last are overwritten with copies of it. Rows ``ahead`` bytes further on are
    prefetched.
    """
    d, width, room = X.shape[1], basis.shape[1], out.shape[1]
    whole, end, ahead = d - d % LANES, (last - 1) * d, ahead // X.itemsize
    for j in range(first, last, 4):
        p0 = j * d
        p1, p2, p3 = min(p0 + d, end), min(p0 + 2 * d, end), min(p0 + 3 * d, end)
        for position in range(0, 4 * d, 64 // X.itemsize):
            fetch(X, p0 + ahead + position)
        for b in range(0, basis.shape[0], 4):
            sums = no_products(basis)
            for a in range(0, whole, LANES):
                rows = widened(X, p0 + a), widened(X, p1 + a), widened(X, p2 + a), widened(X, p3 + a)
                sums = add_products(sums, four(basis, b * width + a, width), rows, "all")
            if whole < d:
                a, rest = whole, d - whole
                rows = (
                    load_doubles(X, p0 + a, rest),
                    load_doubles(X, p1 + a, rest),
                    load_doubles(X, p2 + a, rest),
                    load_doubles(X, p3 + a, rest),
                )
                sums = add_products(sums, four(basis, b * width + a, width), rows, "all")
            store_totals(out, b * room + place + j - first, room, sums)
