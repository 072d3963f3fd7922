"""The estimator of private alternating minimisation."""

from __future__ import annotations

from tacitly.federation.engine import Engine, Population
from tacitly.methods.altmin import algorithm as altmin
from tacitly.methods.base import Procedure
from tacitly.methods.shared_basis import SharedBasisModel
from tacitly.privacy.guarantee import Budget
from tacitly.privacy.ledger import Ledger


class PrivateAltMin(SharedBasisModel):
    """Private alternating minimisation (Jain et al. 2021), with sound noise: a baseline for Private FedRep.

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
        super().__init__(epsilon, delta, adjacency, mode, random_state, noise, noise_seed, ledger, run, threads, engine)
        self.rank = rank
        self.rounds = rounds

    def _procedure(self, population: Population, budget: Budget) -> Procedure:
        settings = altmin.Settings(rounds=self.rounds)
        plan = settings.plan(budget)
        return Procedure(
            settings.events(plan), lambda federation: {"basis": altmin.learn(federation, plan, settings, self.rank)}
        )
