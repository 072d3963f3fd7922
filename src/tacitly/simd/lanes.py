"""Eight users at a time, one per SIMD lane: move their numbers into lanes, and back.

Arrays of lanes have one row of :data:`LANES` doubles, a register, for each number; they start on a cache line.
"""

# Numba-compiled functions have no types that mypy knows.
# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

from typing import Any

import numpy as np

from tacitly.simd.lazy_njit import UNCOUNTED, njit
from tacitly.simd.registers import fetch
from tacitly.simd.tiles import transpose_back, transpose_eight

LANES = 8  # doubles in a register

_kernel: Any = njit(nogil=True, cache=True, fastmath={"contract"}, error_model="numpy")
_inside: Any = njit(**UNCOUNTED)


@_kernel
def aligned(rows, columns):
    """Return zeros that start on a cache line."""
    flat = np.zeros(rows * columns + LANES)
    start = -(flat.ctypes.data // 8) % LANES
    return flat[start : start + rows * columns].reshape(rows, columns)


@_kernel
def aligned_like(array, rows, columns):
    """Return zeros of an array's dtype that start on a cache line: loads that straddle two lines take twice as long."""
    line = 64 // array.itemsize
    flat = np.zeros(rows * columns + line, dtype=array.dtype)
    start = -(flat.ctypes.data // array.itemsize) % line
    return flat[start : start + rows * columns].reshape(rows, columns)


@_kernel
def lane_zeros(count):
    """Return zeros for this many numbers of eight users."""
    return aligned(count, LANES)


@_inside
def load_eight(rows, first, spare, out, place, ahead):
    """Write the rows of eight users from ``first`` on to lanes from ``place`` on; missing users have zeros.

    Eight columns are read at a time: lanes and ``spare``, of eight rows, need room for a multiple of eight. ``ahead``
    says whether to prefetch the next eight users, because the processor's own prefetching fails for eight rows at once.
    """
    width = rows.shape[1]
    if first + LANES < len(rows):  # columns past the end of a row belong to the next user and are ignored
        start = first * width
        for a in range(0, width, LANES):
            if ahead:  # a few lines at a time, which is twice as fast as all at once
                for b in range(0, LANES * LANES, LANES):
                    fetch(rows, start + LANES * (width + a) + b)
            transpose_eight(rows, start + a, width, out, place + a)
        return
    for u in range(LANES):
        for a in range(width):
            spare[u, a] = rows[first + u, a] if first + u < len(rows) else 0.0
    for a in range(0, width, LANES):
        transpose_eight(spare, a, spare.shape[1], out, place + a)


@_inside
def scatter(lanes, first, out):
    """Write the values in the lanes to the rows of the existing users."""
    count, width, whole = len(lanes), out.shape[1], 0
    if first + LANES <= len(out):
        whole = count - count % LANES
        for a in range(0, whole, LANES):
            transpose_back(lanes, a, out, first * width + a, width)
    for u in range(min(LANES, len(out) - first)):
        for a in range(whole, count):
            out[first + u, a] = lanes[a, u]
