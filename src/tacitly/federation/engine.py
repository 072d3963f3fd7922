"""Engines and populations: the parameter ``engine`` of estimators, and what an engine provides before any release."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy.typing as npt

from tacitly.federation.base import Federation, Roster
from tacitly.privacy.ledger import Run


class Population(Roster, Protocol):
    """A set of users, wherever their rows are: public facts about them, and how to open a federation.

    ``users`` are the user ids (None if they stay with the nodes). ``trust`` states who sees what, for the certificate
    (None: use the estimator's own statement).
    """

    @property
    def users(self) -> npt.NDArray[Any] | None:
        """User ids."""

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the columns."""

    @property
    def target_name(self) -> str | None:
        """Name of the target."""

    @property
    def trust(self) -> str | None:
        """Who sees what."""

    def fingerprint(self, secret: bytes) -> str | None:
        """Return a keyed fingerprint of the users' rows; None if they stay with the nodes."""

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
        """Put the users behind the doors."""


def engine_named(engine: Engine | str | None) -> Engine | None:
    """Return the engine that a name means: None for "local" (and for None), an engine for "cuda" and "ray".

    >>> engine_named("local") is None, engine_named("cuda")
    (True, CudaEngine(device='cuda', resident=None))
    """
    if engine is None or engine == "local":
        return None
    if engine == "cuda":
        from tacitly.federation.cuda.engine import CudaEngine

        return CudaEngine()
    if engine == "ray":
        from tacitly.federation.ray import RayEngine

        return RayEngine()
    if isinstance(engine, str) or not hasattr(engine, "population"):
        raise ValueError(f"engine must be 'local', 'cuda', 'ray' or an engine. Found {engine!r}.")
    return engine


class Engine(Protocol):
    """A way to reach users who are elsewhere; what an estimator takes as ``engine``."""

    def population(self, source: Any) -> Population:
        """Return the population of ``source``: a cohort to distribute, or None for the users the engine knows."""
