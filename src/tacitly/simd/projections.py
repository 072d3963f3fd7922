"""Many short dot products at once: rows on public directions, and weighted sums of rows.

The result for a row depends on that row only, to the last bit, independent of its position and its neighbours; a matrix
product does not guarantee that. (Numba's cache checks this file only: delete the cache after a change in
``registers.py``.)
"""

# Numba-compiled functions, and code generators for them, have no types that mypy knows.
# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tacitly.simd.lazy_njit import UNCOUNTED, njit
from tacitly.simd.registers import (
    add_products,
    aligned_zeros,
    fetch,
    lanes_of,
    load,
    load_first,
    no_products,
    padded,
    spread,
    store,
    store_totals,
)

_ROWS = 256  # projected at a time, so that the block stays in cache until it is transposed

_inside: Any = njit(**UNCOUNTED)


def project_each(X: npt.NDArray[np.floating], directions: npt.NDArray[np.float64]) -> npt.NDArray[np.floating]:
    """Return the dot products of every row with the rows of ``directions``, in the dtype of X.

    >>> project_each(np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[1.0, 1.0]]))
    array([[3.],
           [7.]])
    """
    public = padded(directions, X.dtype)
    out = np.empty((len(X), len(directions)), dtype=X.dtype)
    block = aligned_zeros(len(public), _ROWS + 8)
    for start in range(0, len(X), _ROWS):
        stop = min(start + _ROWS, len(X))
        project_rows(X, start, stop, X.shape[1], public, block, 0, 0)
        out[start:stop] = block[: len(directions), : stop - start].T
    return out


@_inside
def four(X, position, stride):
    """Load four registers that lie ``stride`` apart."""
    return (
        load(X, position),
        load(X, position + stride),
        load(X, position + 2 * stride),
        load(X, position + 3 * stride),
    )


@_inside
def store_four(X, position, stride, registers):
    """Store four registers ``stride`` apart."""
    store(X, position, registers[0])
    store(X, position + stride, registers[1])
    store(X, position + 2 * stride, registers[2])
    store(X, position + 3 * stride, registers[3])


def _projection(part, lines=1):
    """Return the compiled projection on a basis in which only ``part`` of every four rows is not zero.

    Every ``lines``-th cache line is prefetched; the others are left to the code that reads the rows next.
    """

    @_inside
    def project(X, first, last, d, basis, out, place, ahead):
        """Write basis[b]·X[first + j] to out[b, place + j], over the first d columns, four by four at a time.

        Up to three columns after the last are overwritten with copies of it. Rows ``ahead`` bytes further on are
        prefetched: a user's rows are read in a burst and processed for longer, and memory would be idle meanwhile.
        """
        length, width, lanes, room = X.shape[1], basis.shape[1], lanes_of(X), out.shape[1]
        whole, end, ahead = d - d % lanes, (last - 1) * length, ahead // X.itemsize
        for j in range(first, last, 4):
            p0 = j * length
            p1, p2, p3 = min(p0 + length, end), min(p0 + 2 * length, end), min(p0 + 3 * length, end)
            if ahead > 0:
                for position in range(0, 4 * length, lines * lanes):
                    fetch(X, p0 + ahead + position)
            for b in range(0, basis.shape[0], 4):
                sums = no_products(X)
                for a in range(0, whole, lanes):
                    rows = load(X, p0 + a), load(X, p1 + a), load(X, p2 + a), load(X, p3 + a)
                    sums = add_products(sums, four(basis, b * width + a, width), rows, part)
                if whole < d:
                    a, rest = whole, d - whole
                    rows = (
                        load_first(X, p0 + a, rest),
                        load_first(X, p1 + a, rest),
                        load_first(X, p2 + a, rest),
                        load_first(X, p3 + a, rest),
                    )
                    sums = add_products(sums, four(basis, b * width + a, width), rows, part)
                store_totals(out, b * room + place + j - first, room, sums)

    return project


project_rows = _projection("all")
project_three = _projection("three")
project_rows_half = _projection("all", 2)
project_two_half = _projection("two", 2)
project_three_half = _projection("three", 2)


@_inside
def combine_rows(X, first, last, weights, at, stride, out, u):
    """Write Σ_j weights[at + stride·j]·X[first + j] to out[u], a few columns at a time to keep sums in registers."""
    d, lanes, place = X.shape[1], lanes_of(X), u * out.shape[1]
    zero = spread(X.dtype.type(0))
    broad, even = d - d % (4 * lanes), last - (last - first) % 2
    for a in range(0, broad, 4 * lanes):
        # Two rows at a time with separate sums, because each addition waits for the previous one on the same sum.
        s0 = s1 = s2 = s3 = t0 = t1 = t2 = t3 = zero
        w = at
        for j in range(first, even, 2):
            s, t = spread(weights[w]), spread(weights[w + stride])
            x0, x1, x2, x3 = four(X, j * d + a, lanes)
            s0, s1, s2, s3 = s0 + s * x0, s1 + s * x1, s2 + s * x2, s3 + s * x3
            x0, x1, x2, x3 = four(X, (j + 1) * d + a, lanes)
            t0, t1, t2, t3 = t0 + t * x0, t1 + t * x1, t2 + t * x2, t3 + t * x3
            w += 2 * stride
        if even < last:
            s = spread(weights[w])
            x0, x1, x2, x3 = four(X, even * d + a, lanes)
            s0, s1, s2, s3 = s0 + s * x0, s1 + s * x1, s2 + s * x2, s3 + s * x3
        store_four(out, place + a, lanes, (s0 + t0, s1 + t1, s2 + t2, s3 + t3))
    for a in range(broad, d, 4 * lanes):  # at most once
        rest, w = d - a, at
        s0 = s1 = s2 = s3 = zero
        for j in range(first, last):
            s, p = spread(weights[w]), j * d + a
            s0 = s0 + s * load_first(X, p, rest)
            s1 = s1 + s * load_first(X, p + lanes, rest - lanes)
            s2 = s2 + s * load_first(X, p + 2 * lanes, rest - 2 * lanes)
            s3 = s3 + s * load_first(X, p + 3 * lanes, rest - 3 * lanes)
            w += stride
        store(out, place + a, s0)
        if rest > lanes:
            store(out, place + a + lanes, s1)
        if rest > 2 * lanes:
            store(out, place + a + 2 * lanes, s2)
        if rest > 3 * lanes:
            store(out, place + a + 3 * lanes, s3)
