"""Baselines for CENTAUR: the same engine, releases through the same federation, and the same budget.

* :class:`LocalHeads`: nothing is shared; every user fits a head on the public starting body. ε = 0.
* :class:`FedAvg`: body and head are one shared model (DP-FedAvg; non-private at ε = ∞); heads are fitted at the end.
* :class:`MeanRegularised`: as FedAvg, but local training is pulled towards the shared model by ½λ‖w − w̄‖², whose
  gradient is part of the update (PMTL). Local models start from w̄ in every round, or, with warm_heads, from their
  state after the previous round: users then keep a whole network locally.
* :class:`TwoHeads`: the sum of a shared head and a private one (PPSGD), which warm_heads keeps between rounds.

FedRep without privacy is :class:`~tacitly.neural.Centaur` at ε = ∞.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import nn

from tacitly.federation.engine import Population
from tacitly.methods.base import Procedure
from tacitly.neural.centaur.estimator import Centaur
from tacitly.neural.engine.rehearsal import rehearse_rows
from tacitly.neural.engine.update import UserUpdate, public_start
from tacitly.privacy.guarantee import Budget


class FedAvg(Centaur):
    """One shared network (DP-FedAvg), heads fitted locally at the end. Parameters are those of :class:`Centaur`."""

    _fits_heads: ClassVar[bool] = False
    _steps_heads: ClassVar[bool] = False

    def _update(self, body: nn.Module, head: nn.Module, **variant: Any) -> UserUpdate:
        return super()._update(body, head, shared="both", **variant)


class MeanRegularised(Centaur):
    """One shared network with local training pulled towards it. Parameters are those of :class:`Centaur`."""

    _steps_heads: ClassVar[bool] = False  # any local state is a whole network

    pull = 1.0

    def _update(self, body: nn.Module, head: nn.Module, **variant: Any) -> UserUpdate:
        return super()._update(body, head, shared="both", pull=self.pull, **variant)

    def _public_config(self, sizes: Mapping[str, Any]) -> dict[str, Any]:
        return {**super()._public_config(sizes), "pull": self.pull}


class TwoHeads(Centaur):
    """A shared network whose head is added to the user's private one. Parameters are those of :class:`Centaur`."""

    _crosses_heads: ClassVar[bool] = False

    def _update(self, body: nn.Module, head: nn.Module, **variant: Any) -> UserUpdate:
        return super()._update(body, head, shared="sum", **variant)


class LocalHeads(Centaur):
    """One head per user on the given body: nothing is released, ε = 0.

    Takes the parameters of :class:`Centaur`; those that concern rounds have no effect, because there are no rounds.
    """

    _learns: ClassVar[bool] = False
    _fits_heads: ClassVar[bool] = False
    _steps_heads: ClassVar[bool] = False

    @property
    def _federation_threads(self) -> int | None:
        return self.threads

    def _procedure(self, population: Population, budget: Budget) -> Procedure:
        setup = self._round_setup(population.n_features)
        rehearse_rows(self._modules(population.n_features)[0], population.n_features, setup.executor.device)
        return Procedure(
            [],
            lambda federation: self._learned_state(setup, public_start(setup.update)),
            rows=self._rows_asked(setup, population),
        )
