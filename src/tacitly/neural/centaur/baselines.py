"""What one would run instead, on the same engine, through the same door, with the same budget.

* :class:`LocalHeads`: nothing is shared; every user fits a head on the public start. ε = 0.
* :class:`FedAvg`: body and head are one shared model (DP-FedAvg; non-private at ε = ∞); heads are fitted at the end.
* :class:`MeanRegularised`: the same with local training pulled towards the shared model by ½λ‖w − w̄‖², whose gradient
  is really taken (PMTL; local models begin anew from w̄ in every round, since users keep no state between rounds).
* :class:`TwoHeads`: a shared head and a user's own, added (PPSGD).

FedRep without privacy is :class:`~tacitly.neural.Centaur` at ε = ∞.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from torch import nn

from tacitly.federation.local import LocalFederation
from tacitly.methods.base import abandoned_on_failure
from tacitly.neural.centaur.estimator import Centaur
from tacitly.neural.engine.rehearsal import rehearse_rows
from tacitly.neural.engine.update import UserUpdate, public_start


class FedAvg(Centaur):
    """One shared network (DP-FedAvg), heads fitted locally at the end. Parameters are those of :class:`Centaur`."""

    def _update(self, body: nn.Module, **variant: Any) -> UserUpdate:
        return super()._update(body, shared="both", **variant)


class MeanRegularised(Centaur):
    """One shared network with local training pulled towards it. Parameters are those of :class:`Centaur`."""

    pull = 1.0

    def _update(self, body: nn.Module, **variant: Any) -> UserUpdate:
        return super()._update(body, shared="both", pull=self.pull, **variant)

    def _public_config(self, sizes: Mapping[str, Any]) -> dict[str, Any]:
        return {**super()._public_config(sizes), "pull": self.pull}


class TwoHeads(Centaur):
    """A shared network whose head is added to one of the user's own. Parameters are those of :class:`Centaur`."""

    def _update(self, body: nn.Module, **variant: Any) -> UserUpdate:
        return super()._update(body, shared="sum", **variant)


class LocalHeads(Centaur):
    """A head a user on the body as it is given: nothing is released, ε = 0."""

    _learns: ClassVar[bool] = False

    def fit(
        self, X: Any, y: Any = None, users: Any = None, *, on_release: Callable[[str], None] | None = None
    ) -> LocalHeads:
        """Fit heads."""
        cohort = self._cohort(X, y, users)
        engine, budget = self._engine(cohort), self._budget()
        rehearse_rows(self.body, cohort.n_features, engine.executor.device)
        run = self._open(budget, [], {"n_users": cohort.n_users, "n_features": cohort.n_features})
        with abandoned_on_failure(run):
            self._take(engine, public_start(engine.update))
            federation = LocalFederation(self._through(engine, cohort), run, threads=self.threads)
            self._take_heads(federation.users_map(self._fit_heads))
        self._know(cohort)
        self._state(run, budget, cohort.n_users)
        return self
