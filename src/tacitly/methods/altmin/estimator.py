"""Private alternating minimisation, as a user sees it."""

from __future__ import annotations

from collections.abc import Sequence

from tacitly.arrays import Array
from tacitly.federation.base import Federation
from tacitly.federation.engine import Engine
from tacitly.methods.altmin import algorithm as altmin
from tacitly.methods.shared_basis import SharedBasisModel
from tacitly.privacy.guarantee import Budget, GaussianEvent
from tacitly.privacy.ledger import Ledger


class PrivateAltMin(SharedBasisModel):
    """Private alternating minimisation (Jain et al. 2021), sound: the method to compare Private FedRep with.

    Parameters are those of :class:`PrivateFedRep`.

    Examples
    --------
    >>> import tacitly
    >>> X, y, users, basis, _ = tacitly.datasets.make_shared_subspace(1000, 8, 1, 10, random_state=0)
    >>> model = tacitly.PrivateAltMin(rank=1, epsilon=8.0).fit(X, y, users)
    >>> tacitly.subspace_distance(model.basis_, basis) < 0.5
    True
    """

    def __init__(
        self,
        rank: int,
        epsilon: float,
        delta: float = 1e-6,
        adjacency: str = "zero-out",
        mode: str = "auto",
        random_state: int | None = None,
        *,
        rounds: int = 2,
        noise: str = "auto",
        noise_seed: int | None = None,
        ledger: Ledger | None = None,
        run: str = "private-altmin",
        threads: int | None = None,
        engine: Engine | None = None,
    ) -> None:
        self.rank = rank
        self.epsilon = epsilon
        self.delta = delta
        self.adjacency = adjacency
        self.mode = mode
        self.random_state = random_state
        self.rounds = rounds
        self.noise = noise
        self.noise_seed = noise_seed
        self.ledger = ledger
        self.run = run
        self.threads = threads
        self.engine = engine

    def _planned(self, budget: Budget) -> Sequence[GaussianEvent]:
        settings = altmin.Settings(rounds=self.rounds)
        return settings.events(settings.plan(budget))

    def _learn(self, federation: Federation, budget: Budget) -> Array:
        settings = altmin.Settings(rounds=self.rounds)
        return altmin.learn(federation, settings.plan(budget), settings, self.rank)
