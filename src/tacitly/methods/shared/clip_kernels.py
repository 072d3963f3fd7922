"""The compiled form of :func:`~tacitly.methods.shared.batch.clipped_sum` for several blocks of users.

Each row is clipped as in the definition: a row with entries that are not finite adds nothing, and a norm whose square
overflows or underflows is computed from entries divided by the largest one. Users are added one after the other.
"""

# Numba kernels are not typed.
# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

import math
from typing import Any

from tacitly.privacy.clipping import LEAST
from tacitly.simd.lanes import LANES
from tacitly.simd.lazy_njit import njit
from tacitly.simd.registers import add_to, load, load_first, spread, total

_kernel: Any = njit(nogil=True, cache=True, fastmath={"contract"}, error_model="numpy")


@_kernel
def add_clipped(rows, limit, size, out):
    """Add each row, clipped to ``limit``, to the row of ``out`` of its block of ``size`` rows."""
    width = rows.shape[1]
    whole = width - width % LANES
    for user in range(len(rows)):
        start, place, squares = user * width, user // size * width, spread(0.0)
        for a in range(0, whole, LANES):
            x = load(rows, start + a)
            squares = squares + x * x
        x = load_first(rows, start + whole, width - whole)
        norm = _norm(total(squares + x * x), rows, user)
        factor = limit / norm if norm > limit else 1.0
        if not (math.isfinite(norm) and factor > LEAST):
            continue
        for a in range(0, whole, LANES):
            add_to(out, place + a, load(rows, start + a) * spread(factor))
        for a in range(whole, width):
            out[user // size, a] += rows[user, a] * factor


@_kernel
def _norm(square, rows, user):
    """Return the norm of a row whose sum of squares is ``square``, also if that overflowed or underflowed."""
    if 1e-200 < square < 1e200:
        return math.sqrt(square)
    largest = 0.0
    for a in range(rows.shape[1]):
        if not math.isfinite(rows[user, a]):
            return math.nan
        largest = max(largest, abs(rows[user, a]))
    if largest == 0.0:
        return 0.0
    square = 0.0
    for a in range(rows.shape[1]):
        square += (rows[user, a] / largest) ** 2
    return largest * math.sqrt(square)
