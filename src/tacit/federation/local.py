"""All users in this process: blocks of users on a few coarse threads, one pass over the rows a release."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
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
        def one(X: Rows, y: Rows, offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
            return to_grid(_finite_sum(query, X, y, offsets, bound), grid)

        total = np.zeros(query.coordinates, dtype=np.int64)
        for part in self._blocks(one, query.unit):
            total += part
        return total

    def users_map(self, work: Callable[[Rows, Rows, npt.NDArray[np.int64]], Array]) -> Array:
        """Run ``work`` on every block and stack what it returns, a row a user. Stays with the users.

        Not a door: what comes back is private (heads), and the caller keeps it so.
        """
        return np.concatenate(list(self._blocks(work)))

    def _blocks(self, work: Callable[[Rows, Rows, npt.NDArray[np.int64]], T], unit: Unit = Unit.USER) -> Iterator[T]:
        cohort = self._cohort
        y = cohort.y if cohort.y is not None else np.zeros(cohort.n_rows, dtype=cohort.dtype)
        size, units = (BLOCK, cohort.n_users) if unit is Unit.USER else (ROW_BLOCK, cohort.n_rows)

        def one(start: int) -> T:
            stop = min(start + size, units)
            if unit is Unit.USER:
                bounds = cohort.offsets[start : stop + 1]
                rows = slice(int(bounds[0]), int(bounds[-1]))
            else:
                rows, bounds = slice(start, stop), np.array([start, stop])
            # Set here because NumPy keeps it per thread. A warning that depends on private numbers is a leak.
            with np.errstate(all="ignore"):
                return work(np.asarray(cohort.X[rows]), np.asarray(y[rows]), bounds - bounds[0])

        starts = range(0, units, size)
        if self._threads == 1 or len(starts) == 1:
            with self._one_blas_thread():
                yield from map(one, starts)
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads)
        with self._one_blas_thread():
            yield from self._pool.map(one, starts)

    def _one_blas_thread(self) -> AbstractContextManager[object]:
        """Keep BLAS from starting threads of its own inside ours: nested pools collapse by 4-60×."""
        limited: AbstractContextManager[object] = self._libraries.limit(limits=1, user_api="blas")
        return limited


def _finite_sum(query: Query, X: Rows, y: Rows, offsets: npt.NDArray[np.int64], bound: float) -> Array:
    """Sum a block; if a fused form fails or lets something not finite through, leave out the user who caused it.

    The others are asked again one by one by the same fused form, so that nobody's contribution is computed
    differently because of somebody else's numbers.
    """
    total = _attempt(query, X, y, offsets, bound)
    if total is not None:
        return total
    total = np.zeros(query.coordinates)
    for first, last in itertools.pairwise(offsets):
        alone = _attempt(query, X[first:last], y[first:last], np.array([0, last - first]), bound)
        if alone is not None:
            total += alone
    return total


def _attempt(query: Query, X: Rows, y: Rows, offsets: npt.NDArray[np.int64], bound: float) -> Array | None:
    """Return the block's sum, or None where private numbers make it fail: nothing may be raised on them."""
    try:
        total = query.block_sum(X, y, offsets, bound)
    except Exception:
        return None
    return total if np.isfinite(total).all() else None
