"""The estimator of private alternating minimisation."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from tacitly.arrays import Array
from tacitly.federation.base import Federation
from tacitly.federation.engine import Population
from tacitly.methods.altmin import algorithm as altmin
from tacitly.methods.base import Procedure
from tacitly.methods.shared_basis import SharedBasisModel
from tacitly.privacy.guarantee import Budget


@dataclass(eq=False, repr=False)
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

    _: KW_ONLY
    rounds: int = 2
    run: str = "private-altmin"

    def _procedure(self, population: Population, budget: Budget) -> Procedure:
        settings = altmin.Settings(rounds=self.rounds, **self._around_the_basis(population, budget))
        plan = settings.plan(budget)

        def learn(federation: Federation) -> dict[str, Array]:
            return self._with_population(federation, plan, altmin.learn(federation, plan, settings, self.rank))

        return Procedure(settings.events(plan), learn)
