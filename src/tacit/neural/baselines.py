"""What one would run instead, on the same engine, through the same door, with the same budget.

* :class:`LocalHeads`: nothing is shared; every user fits a head on the public start. ε = 0.
* :class:`FedAvg`: body and head are one shared model (DP-FedAvg; non-private at ε = ∞); heads are fitted at the end.
* :class:`MeanRegularised`: the same with local training pulled towards the shared model by ½λ‖w − w̄‖², whose gradient
  is really taken (PMTL; local models begin anew from w̄ in every round, since users keep no state between rounds).
* :class:`TwoHeads`: a shared head and a user's own, added (PPSGD).

FedRep without privacy is :class:`~tacit.neural.Centaur` at ε = ∞.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
from torch import nn

from tacit.federation.local import LocalFederation
from tacit.neural.centaur import Centaur
from tacit.neural.executor import Executor
from tacit.neural.parts import split_body, through
from tacit.neural.update import UserUpdate
from tacit.privacy.ledger import Ledger


class FedAvg(Centaur):
    """One shared network (DP-FedAvg), heads fitted locally at the end. Parameters are those of :class:`Centaur`."""

    def _update(self, body: nn.Module, **variant: Any) -> UserUpdate:
        return super()._update(body, shared="both", **variant)


class MeanRegularised(Centaur):
    """One shared network with local training pulled towards it. Parameters are those of :class:`Centaur`."""

    pull = 1.0

    def _update(self, body: nn.Module, **variant: Any) -> UserUpdate:
        return super()._update(body, shared="both", pull=self.pull, **variant)


class TwoHeads(Centaur):
    """A shared network whose head is added to one of the user's own. Parameters are those of :class:`Centaur`."""

    def _update(self, body: nn.Module, **variant: Any) -> UserUpdate:
        return super()._update(body, shared="sum", **variant)


class LocalHeads(Centaur):
    """A head a user on the body as it is given: nothing is released."""

    def fit(
        self, X: Any, y: Any = None, users: Any = None, *, on_release: Callable[[str], None] | None = None
    ) -> LocalHeads:
        """Fit heads."""
        cohort = self._cohort(X, y, users)
        prefix, rest = split_body(self.body, cohort.n_features, whole=self.augment is not None)
        executor = Executor(self._update(rest), device=self.device, chunk=self.chunk)
        self.body_ = nn.Sequential(copy.deepcopy(prefix), copy.deepcopy(rest)).eval()
        self.public_head_ = copy.deepcopy(self.head).eval()
        with Ledger() as ledger:
            run = ledger.run("local heads", config={})
            federation = LocalFederation(
                through(prefix, cohort, self.rows_per_user, executor.device), run, threads=self.threads
            )
            self.heads_ = self._fit_heads(federation)
        self.users_, self.n_features_in_ = cohort.users, cohort.n_features
        self.feature_names_in_ = np.array(cohort.feature_names, dtype=str)
        return self
