"""Where users are, before the door is opened: what an estimator takes as ``engine``, and what it gets from it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy.typing as npt

from tacitly.federation.base import Federation
from tacitly.privacy.ledger import Run


class Population(Protocol):
    """Where users are, before the door is opened: what is public about them, and how to open it.

    ``users`` are ids (None where they stay with the nodes); ``trust`` says who sees what, for the certificate (None
    for what the estimator says of itself).
    """

    @property
    def n_users(self) -> int:
        """Length of the roster."""

    @property
    def n_features(self) -> int:
        """Columns of everybody's rows."""

    @property
    def n_rows(self) -> int:
        """Rows of all users; asked for only where the unit is the row."""

    @property
    def users(self) -> npt.NDArray[Any] | None:
        """Everybody's id."""

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the columns."""

    @property
    def target_name(self) -> str | None:
        """Name of the target."""

    @property
    def trust(self) -> str | None:
        """Who sees what."""

    def federation(
        self,
        run: Run,
        *,
        noise: str,
        noise_seed: int | None,
        on_release: Callable[[str], None] | None,
        threads: int | None,
        trust: str,
    ) -> Federation:
        """Put the users behind the door."""


class Engine(Protocol):
    """How to reach users elsewhere; what an estimator takes as ``engine``."""

    def population(self, source: Any) -> Population:
        """Return where the users of ``source`` are: a cohort to spread out, or None for those the engine knows."""
