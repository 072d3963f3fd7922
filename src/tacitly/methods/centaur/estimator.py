"""The estimator of linear CENTAUR (Shen et al. 2023)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np

from tacitly.arrays import Array
from tacitly.federation.base import Federation
from tacitly.federation.engine import Population, engine_named
from tacitly.methods.base import Procedure
from tacitly.methods.centaur import algorithm as centaur
from tacitly.methods.centaur import as_printed as paper_centaur
from tacitly.methods.fedrep import algorithm as fedrep
from tacitly.methods.shared_basis import SharedBasisModel
from tacitly.privacy.guarantee import Budget


@dataclass(eq=False, repr=False)
class Centaur(SharedBasisModel):
    """Learn a shared low-rank basis under user-level differential privacy, with users sampled at random.

    CENTAUR (Shen et al. 2023) for linear models. For networks see :class:`tacitly.neural.Centaur`.

    Parameters
    ----------
    rank, epsilon, delta, adjacency, fit_intercept, noise, noise_seed, ledger, run, threads, engine
        As for :class:`PrivateFedRep`.
    mode
        ``"auto"``: the sound algorithm. ``"paper"``: Algorithms 3 to 5 with Theorem 5.2's noise, not certified.
    random_state
        Seeds public randomness only: the start of power methods.
    rounds
        Number of noisy steps of the basis; None for the default (16; 5 in paper mode).
    start
        ``"votes"``: a noisy sum of the users' own directions, released once. ``"power"``: the private power method.
        ``"auto"``: the one with the smaller predicted error; this is the first unless there are thousands of features.
    power_steps, copies
        L and T₀ of Algorithm 3. Of several copies, the one with which most others agree is kept, at no privacy cost.
    sampling_rate
        Probability with which a user takes part in a release; who takes part is secret.

    Attributes
    ----------
    basis_, heads_, intercepts_, users_, certificate_ : as for :class:`PrivateFedRep`

    Examples
    --------
    >>> import tacitly
    >>> X, y, users, basis, _ = tacitly.datasets.make_shared_subspace(2000, 20, 2, 10, random_state=0)
    >>> model = tacitly.Centaur(rank=2, epsilon=2.0).fit(X, y, users)
    >>> model.certificate_.certified, tacitly.subspace_distance(model.basis_, basis) < 0.05
    (True, True)
    """

    _: KW_ONLY
    fit_intercept: bool = False
    rounds: int | None = None
    start: str = "auto"
    power_steps: int = 6
    copies: int = 1
    sampling_rate: float = 1.0
    run: str = "centaur"

    _modes = ("auto", "paper")
    _paper_reasons = paper_centaur.REASONS

    def _settings(self, around: Mapping[str, Any] | None = None) -> centaur.Settings:
        given: dict[str, Any] = {} if self.rounds is None else {"rounds": self.rounds}
        base = fedrep.Settings(**given, **(around or {}))
        return centaur.Settings(
            base=base,
            start=self.start,
            power_steps=self.power_steps,
            copies=self.copies,
            sampling_rate=self.sampling_rate,
        )

    def _procedure(self, population: Population, budget: Budget) -> Procedure:
        n, d, k = population.n_users, population.n_features, self.rank
        rng = np.random.default_rng(self.random_state)
        if self.mode == "paper":
            paper = paper_centaur.Settings() if self.rounds is None else paper_centaur.Settings(rounds=self.rounds)
            return Procedure(
                paper.planned(budget, n, d, int(self.rank)),
                lambda federation: {"basis": paper_centaur.learn(federation, budget, paper, int(self.rank), rng)},
            )
        settings = self._settings(self._around_the_basis(population, budget))
        plan = settings.plan(budget, d, k)

        def learn(federation: Federation) -> dict[str, Array]:
            found = centaur.learn(federation, plan, settings, k, centered=self.fit_intercept, rng=rng)
            return self._with_population(federation, plan, found)

        return Procedure(settings.events(plan, d, k), learn)

    @property
    def _ranks_itself(self) -> bool:
        return super()._ranks_itself and self.start != "power"

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.mode == "paper" and engine_named(self.engine) is not None:
            raise ValueError("paper mode is for one process. Leave engine out, or take mode='auto'.")
        if self.mode == "paper" and (self.fit_intercept or self.sampling_rate < 1.0):
            raise ValueError(
                "paper mode has no intercept and asks every user. Set fit_intercept=False, sampling_rate=1."
            )

        ignored = [name for name in ("start", "copies", "power_steps") if getattr(self, name) != getattr(Centaur, name)]
        if self.mode == "paper" and ignored:
            raise ValueError(f"paper mode starts as printed: {ignored[0]} would be ignored. Leave it out.")

    def _check_population(self, population: Population) -> None:
        super()._check_population(population)
        power = self.mode == "paper" or self._settings().chosen_start(population.n_features, self.rank) == "power"
        if self.random_state is None and self.ledger is not None and power:
            raise ValueError("a run that may be resumed must start from the same columns. Set random_state.")
