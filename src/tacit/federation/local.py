"""All users in this process: blocks of users on a few coarse threads, one pass over the rows a release."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from threadpoolctl import ThreadpoolController

from tacit.cohort import Cohort
from tacit.federation.base import BLOCK, Array, Federation, Query, Rows
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
            total = query.block_sum(X, y, offsets, bound)
            if not np.isfinite(total).all():
                # A fused kernel let something non-finite through. The plain form clips user by user, so
                # the damage stays with the user who caused it.
                total = Query.block_sum(query, X, y, offsets, bound)
            return to_grid(total, grid)

        total = np.zeros(query.coordinates, dtype=np.int64)
        for part in self._blocks(one):
            total += part
        return total

    def users_map(self, work: Callable[[Rows, Rows, npt.NDArray[np.int64]], Array]) -> Array:
        """Run ``work`` on every block and stack what it returns, a row a user. Stays with the users.

        Not a door: what comes back is private (heads), and the caller keeps it so.
        """
        return np.concatenate(list(self._blocks(work)))

    def _blocks(self, work: Callable[[Rows, Rows, npt.NDArray[np.int64]], T]) -> Iterator[T]:
        cohort = self._cohort
        y = cohort.y if cohort.y is not None else np.zeros(cohort.n_rows, dtype=cohort.dtype)

        def one(start: int) -> T:
            bounds = cohort.offsets[start : min(start + BLOCK, cohort.n_users) + 1]
            rows = slice(int(bounds[0]), int(bounds[-1]))
            return work(np.asarray(cohort.X[rows]), np.asarray(y[rows]), bounds - bounds[0])

        starts = range(0, cohort.n_users, BLOCK)
        if self._threads == 1 or len(starts) == 1:
            with self._one_blas_thread():
                yield from map(one, starts)
            return
        with self._one_blas_thread(), ThreadPoolExecutor(self._threads) as pool:
            yield from pool.map(one, starts)

    def _one_blas_thread(self) -> AbstractContextManager[object]:
        """Keep BLAS from starting threads of its own inside ours: nested pools collapse by 4-60×."""
        limited: AbstractContextManager[object] = self._libraries.limit(limits=1, user_api="blas")
        return limited
