"""Users whose rows make code fail: they are left out of sums, without an exception and without effects on others.

Which users fail is private. So no exception may depend on it, and every other user's contribution must be the same, to
the last bit, as if the failing users had no rows. Two exceptions are public and are raised: the process is out of
memory, or the time for the sum is over.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt

from tacitly.arrays import Array, Offsets, Rows
from tacitly.federation.query import BLOCK, Query
from tacitly.privacy.guarantee import Unit


class OutOfTime(Exception):
    """The time for a sum is over: what was summed so far is discarded. No user's numbers are in it."""


def check_time(end: float) -> None:
    """Raise :class:`OutOfTime` once ``end``, a time of :func:`time.monotonic`, has passed."""
    if time.monotonic() > end:
        raise OutOfTime("the time for this sum is over.")


def attempt(work: Callable[[], Array], shape: tuple[int, ...]) -> Array | None:
    """Return finite sums, or None if private numbers make the work fail, because no exception may depend on them.

    The result and even its shape may depend on those numbers, so both are checked. Running out of memory is raised: a
    sum without the users for whom there was no memory would be certified but useless. The end of the time for a sum is
    raised too.
    """
    try:
        sums = np.asarray(work(), dtype=np.float64)
        return sums if sums.shape == shape and np.isfinite(sums).all() else None
    except (MemoryError, OutOfTime):
        raise
    except Exception:
        return None


def without_failing_units(query: Query, X: Rows, y: Rows, offsets: Offsets, bound: float, end: float) -> Array:
    """Sum blocks again, leaving out units whose numbers make the fused form fail or return a non-finite sum.

    The same blocks are then summed as if those users had no rows. If the unit is the row, the failing rows are replaced
    by zeros (a row of zeros changes a sum by no more than any other row). So batches keep their shapes, and every other
    unit's numbers stay the same, to the last bit. (Computed alone, a unit's numbers may differ in the last bits from
    those computed among others, and a query may amplify that.)
    """
    bounds = query.bounds(X, offsets)
    units, by_user = len(bounds) - 1, query.unit is Unit.USER
    size = BLOCK if by_user else max(units, 1)
    shape = -(-units // size), query.coordinates
    usable, parts = np.ones(units, dtype=bool), np.zeros(shape)
    for block in range(shape[0]):
        span = block * size, min((block + 1) * size, units)
        _sum_parts(query, X, y, bounds, bound, span, usable, parts[block], end)
    if by_user:
        counts = np.diff(offsets)
        kept = np.repeat(usable, counts)
        emptied = np.concatenate([[0], np.cumsum(np.where(usable, counts, 0))])
        sums = attempt(lambda: query.block_sums(X[kept], y[kept], emptied, bound, BLOCK), shape)
    else:
        zeroed, targets = _with_zeros(X, ~usable), np.where(usable, y, 0.0)
        sums = attempt(lambda: query.block_sums(zeroed, targets, offsets, bound, BLOCK), shape)
    return parts if sums is None else sums


def _sum_parts(
    query: Query,
    X: Rows,
    y: Rows,
    bounds: Offsets,
    bound: float,
    span: tuple[int, int],
    usable: npt.NDArray[np.bool_],
    total: Array,
    end: float,
) -> None:
    """Add the parts of a span of units that can be summed, and mark the units that cannot, by halving what fails.

    One unit that fails costs as much as summing the span twice, because halves become shorter; f of them f·log n parts.
    """
    spans = [span]
    while spans:
        check_time(end)
        first, last = spans.pop()
        start, stop = int(bounds[first]), int(bounds[last])
        own = bounds[first : last + 1] - start if query.unit is Unit.USER else np.array([0, stop - start])
        part = attempt(partial(query.block_sum, X[start:stop], y[start:stop], own, bound), total.shape)
        if part is not None:
            total += part
        elif last - first == 1:
            usable[first] = False
        else:
            middle = (first + last) // 2
            spans += [(first, middle), (middle, last)]


def _with_zeros(X: Rows, rows: npt.NDArray[np.bool_]) -> Rows:
    """Return a copy in which these rows are zero; in a sparse matrix too, with the same entries."""
    copied = X.copy()
    if isinstance(copied, np.ndarray):
        copied[rows] = 0.0
    else:
        copied.data[np.repeat(rows, np.diff(copied.indptr))] = 0.0
    return copied
