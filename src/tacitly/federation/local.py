"""All users in this process."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tacitly.arrays import Array, Rows
from tacitly.data.cohort import Cohort
from tacitly.federation.base import Chosen, Federation, Query
from tacitly.federation.shard import Shard
from tacitly.privacy.ledger import Run


class LocalFederation(Federation):
    """A :class:`~tacitly.data.cohort.Cohort` behind the door.

    ``answers`` plays stragglers: called with the number of the release, it says which users answer in time. The others
    add nothing. Nothing public changes with it (noise, denominators, schedule), so it costs signal and no privacy.
    """

    def __init__(
        self,
        cohort: Cohort,
        run: Run,
        *,
        noise: str = "auto",
        noise_seed: int | None = None,
        on_release: Callable[[str], None] | None = None,
        threads: int | None = None,
        trust: str = "central",
        answers: Callable[[int], Chosen] | None = None,
    ) -> None:
        super().__init__(run, noise=noise, noise_seed=noise_seed, on_release=on_release, trust=trust)
        self.sparse = not isinstance(cohort.X, np.ndarray)
        self._answers = answers
        self._shard = Shard(cohort, threads=threads)

    @property
    def _cohort(self) -> Cohort:
        return self._shard.cohort

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

    def _exact_sum(
        self, query: Query, bound: float, grid: float, chosen: Chosen | None = None
    ) -> npt.NDArray[np.int64]:
        if self._answers is not None:
            present = self._answers(self._made.releases)
            chosen = present if chosen is None else chosen & present
        return self._shard.exact_sum(query, bound, grid, chosen)

    def projected(self, directions: Array) -> LocalFederation:
        """Return the same users behind the same doors, with rows directions·x; each depends on that row alone.

        The projected rows are held in memory, also where the rows themselves are mapped from a file. Releases are
        counted together, so that no seed draws the same noise through both.
        """
        other = copy.copy(self)
        other._shard = self._shard.projected(directions)
        other._through = directions if self._through is None else directions @ self._through
        return other

    def users_map(self, work: Callable[[Rows, Rows, npt.NDArray[np.int64]], Array]) -> Array:
        """Run ``work`` on every block and stack what it returns, a row a user. Stays with the users."""
        return self._shard.users_map(work)


@dataclass(frozen=True)
class LocalPopulation:
    """A cohort in this process, as a :class:`~tacitly.federation.engine.Population`."""

    cohort: Cohort
    trust: str | None = None

    @property
    def n_users(self) -> int:
        """Length of the roster."""
        return self.cohort.n_users

    @property
    def n_features(self) -> int:
        """Columns of everybody's rows."""
        return self.cohort.n_features

    @property
    def n_rows(self) -> int:
        """Rows of all users."""
        return self.cohort.n_rows

    @property
    def users(self) -> npt.NDArray[Any]:
        """Everybody's id."""
        return self.cohort.users

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the columns."""
        return self.cohort.feature_names

    @property
    def target_name(self) -> str | None:
        """Name of the target."""
        return getattr(self.cohort, "target_name", None)

    def federation(self, run: Run, **options: Any) -> LocalFederation:
        """Put the users behind the door."""
        return LocalFederation(self.cohort, run, **options)
