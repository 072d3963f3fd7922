"""All users in this process: blocks of users on a few coarse threads, one pass over the rows a release."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from threadpoolctl import ThreadpoolController

from tacit.cohort import Cohort
from tacit.federation.base import BLOCK, ROW_BLOCK, Array, Federation, Query, Rows
from tacit.privacy.guarantee import Unit
from tacit.privacy.ledger import Run
from tacit.privacy.noise import to_grid

T = TypeVar("T")


class LocalFederation(Federation):
    """A :class:`~tacit.cohort.Cohort` behind the door."""

    def __init__(
        self,
        cohort: Cohort,
        run: Run,
        *,
        noise: str = "auto",
        noise_seed: int | None = None,
        on_release: Callable[[str], None] | None = None,
        threads: int | None = None,
    ) -> None:
        super().__init__(run, noise=noise, noise_seed=noise_seed, on_release=on_release)
        self._cohort = cohort
        self._threads = threads or len(os.sched_getaffinity(0))
        self._libraries = ThreadpoolController()
        self._pool: ThreadPoolExecutor | None = None

    @property
    def n_users(self) -> int:
        """Length of the roster: public."""
        return self._cohort.n_users

    @property
    def n_features(self) -> int:
        """Columns of everybody's rows: public."""
        return self._cohort.n_features

    @property
    def n_rows(self) -> int:
        """How many rows there are. Public only where the unit is the row; used for nothing else."""
        return self._cohort.n_rows

    def _exact_sum(self, query: Query, bound: float, grid: float) -> npt.NDArray[np.int64]:
        def several(X: Rows, y: Rows, offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
            size = BLOCK if query.unit is Unit.USER else len(offsets)
            sums = _attempt(lambda: query.block_sums(X, y, offsets, bound, size))
            if sums is None:
                sums = _without_the_cause(query, X, y, offsets, bound, size)
            return np.asarray(to_grid(sums, grid).sum(axis=0), dtype=np.int64)

        total = np.zeros(query.coordinates, dtype=np.int64)
        # Between calls threads hand the interpreter's lock to each other, which costs as much as a hundred users; so
        # many blocks go into one call, where their sums together are small.
        together = 32 if query.coordinates <= 10_000 else 1
        for part in self._blocks(several, query.unit, together):
            total += part
        return total

    def users_map(self, work: Callable[[Rows, Rows, npt.NDArray[np.int64]], Array]) -> Array:
        """Run ``work`` on every block and stack what it returns, a row a user. Stays with the users.

        Not a door: what comes back is private (heads), and the caller keeps it so.
        """
        return np.concatenate(list(self._blocks(work)))

    def _blocks(
        self, work: Callable[[Rows, Rows, npt.NDArray[np.int64]], T], unit: Unit = Unit.USER, together: int = 1
    ) -> Iterator[T]:
        """Run ``work`` on every block of users (or rows), up to ``together`` blocks of users in one call."""
        cohort = self._cohort
        y = cohort.y if cohort.y is not None else np.zeros(cohort.n_rows, dtype=cohort.dtype)
        size, units = (BLOCK, cohort.n_users) if unit is Unit.USER else (ROW_BLOCK, cohort.n_rows)
        spans = list(_spans(units, size, 2 * self._threads, together if unit is Unit.USER else 1))

        def one(span: tuple[int, int]) -> T:
            start, stop = span
            if unit is Unit.USER:
                bounds = cohort.offsets[start : stop + 1]
                rows = slice(int(bounds[0]), int(bounds[-1]))
            else:
                rows, bounds = slice(start, stop), np.array([start, stop])
            # Set here because NumPy keeps it per thread. A warning that depends on private numbers is a leak.
            with np.errstate(all="ignore"):
                return work(np.asarray(cohort.X[rows]), np.asarray(y[rows]), bounds - bounds[0])

        if self._threads == 1 or len(spans) == 1:
            with self._one_blas_thread():
                yield from map(one, spans)
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads)
        with self._one_blas_thread():
            yield from self._pool.map(one, spans)

    def _one_blas_thread(self) -> AbstractContextManager[object]:
        """Keep BLAS from starting threads of its own inside ours: nested pools collapse by 4-60×."""
        limited: AbstractContextManager[object] = self._libraries.limit(limits=1, user_api="blas")
        return limited


def _spans(units: int, size: int, share: int, most: int) -> Iterator[tuple[int, int]]:
    """Cut units into spans of whole blocks: long at first, short at the end, so that threads finish together."""
    start = 0
    while start < units:
        left = -(-(units - start) // size)
        stop = min(units, start + size * max(1, min(most, left // share)))
        yield start, stop
        start = stop


def _without_the_cause(
    query: Query, X: Rows, y: Rows, offsets: npt.NDArray[np.int64], bound: float, size: int
) -> Array:
    """Sum blocks, leaving out users whose numbers make a fused form fail or let something not finite through.

    Everybody is asked again alone by the same fused form, so that nobody's contribution is computed differently
    because of somebody else's numbers.
    """
    bounds = query.bounds(X, offsets)
    size = size if query.unit is Unit.USER else len(bounds)
    sums = np.zeros((-(-(len(bounds) - 1) // size), query.coordinates))
    for i, (first, last) in enumerate(itertools.pairwise(bounds)):
        alone = _attempt(partial(query.block_sum, X[first:last], y[first:last], np.array([0, last - first]), bound))
        if alone is not None:
            sums[i // size] += alone
    return sums


def _attempt(work: Callable[[], Array]) -> Array | None:
    """Return finite sums, or None where private numbers make the work fail: nothing may be raised on them."""
    try:
        sums = work()
    except Exception:
        return None
    return sums if np.isfinite(sums).all() else None
