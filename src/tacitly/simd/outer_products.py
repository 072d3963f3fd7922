"""Sums of outer products of rows, XᵀX, for rows that a kernel has just written: one triangle, in double precision.

Rows are stored in panels of :data:`PANEL` columns, each panel row by row, so that the data that a tile of the sum reads
are contiguous and stay in the first-level cache for any number of columns. A tile is eight rows of the sum by sixteen
columns: sixteen registers, for which ten numbers or registers are loaded per row of X.
"""

# Numba-compiled functions have no types that mypy knows.
# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

from typing import Any

from tacitly.simd.lazy_njit import UNCOUNTED, njit
from tacitly.simd.registers import add_to, fetch, load, repeat, spread

PANEL = 16
"""Columns of a panel."""

_SIDE, _LANES, _LINE = 8, 8, 64  # rows of a tile, doubles in a register, bytes of a cache line

_inside: Any = njit(**UNCOUNTED)


@_inside
def add_outer_products(panels, room, count, out, ahead, place, lines):
    """Add XᵀX to the lower triangle of ``out``; values added above the diagonal are meaningless.

    Column c of row j of X is panels[c // 16, j, c % 16], with ``room`` rows per panel, of which ``count`` are used. The
    size of ``out`` is a multiple of 16. Meanwhile this many cache lines of ``ahead``, from an element on, are
    prefetched.
    """
    width, step = out.shape[1], _LINE // ahead.itemsize
    half = width // PANEL
    fetched = -(-lines // (half * (half + 1)))
    for c in range(0, width, PANEL):
        for a in range(c, width, _SIDE):
            for _ in range(fetched):
                fetch(ahead, place)
                place += step
            _add_tile(panels, (a // PANEL * room) * PANEL + a % PANEL, c * room, count, out, a * width + c)


@_inside
def _add_tile(panels, left, right, count, out, place):
    width = out.shape[1]
    s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = t0 = t1 = t2 = t3 = t4 = t5 = t6 = t7 = spread(0.0)
    for j in range(0, count * PANEL, PANEL):
        p, x, z = left + j, load(panels, right + j), load(panels, right + j + _LANES)
        a0, a1, a2, a3 = repeat(panels, p), repeat(panels, p + 1), repeat(panels, p + 2), repeat(panels, p + 3)
        s0, s1, s2, s3 = s0 + a0 * x, s1 + a1 * x, s2 + a2 * x, s3 + a3 * x
        t0, t1, t2, t3 = t0 + a0 * z, t1 + a1 * z, t2 + a2 * z, t3 + a3 * z
        a4, a5, a6, a7 = repeat(panels, p + 4), repeat(panels, p + 5), repeat(panels, p + 6), repeat(panels, p + 7)
        s4, s5, s6, s7 = s4 + a4 * x, s5 + a5 * x, s6 + a6 * x, s7 + a7 * x
        t4, t5, t6, t7 = t4 + a4 * z, t5 + a5 * z, t6 + a6 * z, t7 + a7 * z
    _add_four(out, place, width, s0, s1, s2, s3)
    _add_four(out, place + _LANES, width, t0, t1, t2, t3)
    _add_four(out, place + 4 * width, width, s4, s5, s6, s7)
    _add_four(out, place + 4 * width + _LANES, width, t4, t5, t6, t7)


@_inside
def _add_four(out, place, stride, s0, s1, s2, s3):
    add_to(out, place, s0)
    add_to(out, place + stride, s1)
    add_to(out, place + 2 * stride, s2)
    add_to(out, place + 3 * stride, s3)
