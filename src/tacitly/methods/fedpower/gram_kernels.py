"""The compiled part of :class:`~tacitly.methods.fedpower.gram.ShiftedGram` for rows that are the units.

Rows are shifted, measured and clipped one by one, into panels that stay in cache; then their outer products are added.
Each row is clipped before any other row is read.
"""

# Numba kernels are not typed.
# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

import math
from typing import Any

from tacitly.arrays import Rows
from tacitly.privacy.clipping import LEAST
from tacitly.simd.lazy_njit import UNCOUNTED, njit
from tacitly.simd.outer_products import PANEL, add_outer_products
from tacitly.simd.registers import aligned_zeros, load, load_doubles, load_first, spread, store, total

_LANES = 8  # doubles in a register
_AT_ONCE = 48  # rows: two panels fit the first-level cache, the next rows the second-level one; not a power of two,
# because panels a multiple of 4 KiB apart compete for few cache lines

_kernel: Any = njit(nogil=True, cache=True, fastmath={"contract"}, error_model="numpy")
_inside: Any = njit(**UNCOUNTED)


def panels_of(width: int) -> Rows:
    """Return buffers for some rows of this width, a multiple of 16."""
    return aligned_zeros(width // PANEL * _AT_ONCE, PANEL).reshape(-1, _AT_ONCE, PANEL)


@_kernel
def clipped_gram(X, centre, constant, bound, panels, row, out):
    """Add f·(a − m, c)(a − m, c)ᵀ of all rows a, f = min(1, bound/‖(a − m, c)‖²), to the lower triangle of ``out``.

    ``panels`` is a buffer for some rows of ``out``'s width, ``row`` for one row; both and ``centre`` are zero beyond d.
    """
    room, d = panels.shape[1], X.shape[1]
    for first in range(0, X.shape[0], room):
        last = min(first + room, X.shape[0])
        for i in range(first, last):
            squared = _shift(X, i, centre, constant, row)
            _put(row, _factor_of(squared, bound), panels, i - first)
        # Prefetch: otherwise memory would be idle while products are computed.
        add_outer_products(panels, room, last - first, out, X, last * d, room * d * X.itemsize // 64)


@_inside
def _shift(X, i, centre, constant, row):
    """Write (a − m, c) of row i; return its squared norm."""
    d = X.shape[1]
    s0 = s1 = spread(0.0)
    whole = d - d % (2 * _LANES)
    for a in range(0, whole, 2 * _LANES):
        x = load_doubles(X, i * d + a, _LANES) - load(centre, a)
        z = load_doubles(X, i * d + a + _LANES, _LANES) - load(centre, a + _LANES)
        store(row, a, x)
        store(row, a + _LANES, z)
        s0, s1 = s0 + x * x, s1 + z * z
    for a in range(whole, d, _LANES):
        x = load_doubles(X, i * d + a, d - a) - load_first(centre, a, d - a)
        store(row, a, x)
        s0 = s0 + x * x
    row[d] = constant
    return total(s0 + s1) + constant * constant


@_inside
def _factor_of(squared, bound):
    """Return √f; zero if the row is not finite."""
    if squared <= bound:
        return 1.0
    # A ratio below LEAST has lost digits to underflow, so the product could exceed the bound.
    return math.sqrt(bound / squared) if math.isfinite(squared) and bound / squared > LEAST else 0.0


@_inside
def _put(row, factor, panels, j):
    """Write a row times a factor to its place in the panels."""
    room = panels.shape[1]
    for a in range(0, row.size, PANEL):
        x, z, place = load(row, a), load(row, a + _LANES), (a * room) + j * PANEL
        if factor != 1.0:
            # Not a product with 0, which would turn an infinite entry into NaN.
            x = x * spread(factor) if factor > 0.0 else spread(0.0)
            z = z * spread(factor) if factor > 0.0 else spread(0.0)
        store(panels, place, x)
        store(panels, place + _LANES, z)
