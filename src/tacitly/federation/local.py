"""The local engine: all users in this process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tacitly.arrays import Array, Rows
from tacitly.data.cohort import Cohort
from tacitly.data.fingerprint import rows_fingerprint
from tacitly.federation.base import Chosen, Federation, Query
from tacitly.federation.shard import Shard
from tacitly.privacy.ledger import Run


class LocalFederation(Federation):
    """A :class:`~tacitly.data.cohort.Cohort` behind the doors.

    ``answers`` simulates stragglers: called with the number of the release, it returns which users answer in time. The
    others contribute nothing. Noise, denominators and schedule stay the same, so stragglers cost accuracy, not privacy.
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
        super().__init__(cohort, run, noise=noise, noise_seed=noise_seed, on_release=on_release, trust=trust)
        self.sparse = not isinstance(cohort.X, np.ndarray)
        self._answers = answers
        self._shard = Shard(cohort, threads=threads)

    @property
    def _cohort(self) -> Cohort:
        return self._shard.cohort

    def _collect(self, query: Query, bound: float, grid: float, chosen: Chosen | None = None) -> npt.NDArray[np.int64]:
        if self._answers is not None:
            present = self._answers(self._counter.releases)
            chosen = present if chosen is None else chosen & present
        return self._shard.exact_sum(query, bound, grid, chosen)

    def users_map(self, work: Callable[[Rows, Rows, npt.NDArray[np.int64]], Array]) -> Array:
        """Run ``work`` on every block and stack the results, one row per user. The result is private."""
        shard = self._shard if self._directions is None else self._shard.projected(self._directions)
        return shard.users_map(work)


@dataclass(frozen=True)
class LocalPopulation:
    """A cohort in this process, as a :class:`~tacitly.federation.engine.Population`."""

    cohort: Cohort
    trust: str | None = None
    n_users: int = field(init=False, repr=False, compare=False)
    n_features: int = field(init=False, repr=False, compare=False)
    n_rows: int = field(init=False, repr=False, compare=False)
    users: npt.NDArray[Any] = field(init=False, repr=False, compare=False)
    feature_names: tuple[str, ...] = field(init=False, repr=False, compare=False)
    target_name: str | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("n_users", "n_features", "n_rows", "users", "feature_names", "target_name"):
            object.__setattr__(self, name, getattr(self.cohort, name, None))

    def fingerprint(self, secret: bytes) -> str:
        """Return a keyed fingerprint of the rows."""
        return rows_fingerprint(self.cohort, secret)

    def federation(self, run: Run, **options: Any) -> LocalFederation:
        """Put the users behind the doors."""
        return LocalFederation(self.cohort, run, **options)
