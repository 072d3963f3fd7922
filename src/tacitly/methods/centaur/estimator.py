"""Linear CENTAUR, as a user sees it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tacitly.arrays import Array
from tacitly.federation.base import Federation
from tacitly.federation.engine import Engine, Population
from tacitly.methods.centaur import algorithm as centaur
from tacitly.methods.centaur import as_printed as paper_centaur
from tacitly.methods.fedrep import algorithm as fedrep
from tacitly.methods.shared_basis import SharedBasisModel
from tacitly.privacy.guarantee import Budget, GaussianEvent
from tacitly.privacy.ledger import Ledger


class Centaur(SharedBasisModel):
    """Learn a shared low-rank basis under user-level differential privacy, with users who may take part by coin.

    CENTAUR (paper 000) for linear models. For networks see :class:`tacitly.neural.Centaur`.

    Parameters
    ----------
    rank, epsilon, delta, adjacency, fit_intercept, noise, noise_seed, ledger, run, threads, engine
        As for :class:`PrivateFedRep`.
    mode
        ``"auto"``: the sound algorithm. ``"paper"``: Algorithms 3 to 5 with Theorem 5.2's noise, not certified.
    random_state
        Steers public randomness only: where power methods start.
    rounds
        Noisy steps of the basis; None for the default (16; 5 in paper mode).
    start
        ``"votes"``: everybody's own direction, released once. ``"power"``: the private power method. ``"auto"``: the
        one that predicts less error, which is the first unless there are thousands of features.
    power_steps, copies
        L and T₀ of Algorithm 3; of several copies the one that most others agree with is taken, at no cost.
    sampling_rate
        Chance with which a user takes part in a release, by a coin nobody sees.

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

    _modes = ("auto", "paper")

    def __init__(
        self,
        rank: int,
        epsilon: float,
        delta: float = 1e-6,
        adjacency: str = "zero-out",
        mode: str = "auto",
        random_state: int | None = None,
        *,
        fit_intercept: bool = False,
        rounds: int | None = None,
        start: str = "auto",
        power_steps: int = 6,
        copies: int = 1,
        sampling_rate: float = 1.0,
        noise: str = "auto",
        noise_seed: int | None = None,
        ledger: Ledger | None = None,
        run: str = "centaur",
        threads: int | None = None,
        engine: Engine | None = None,
    ) -> None:
        self.rank = rank
        self.epsilon = epsilon
        self.delta = delta
        self.adjacency = adjacency
        self.mode = mode
        self.random_state = random_state
        self.fit_intercept = fit_intercept
        self.rounds = rounds
        self.start = start
        self.power_steps = power_steps
        self.copies = copies
        self.sampling_rate = sampling_rate
        self.noise = noise
        self.noise_seed = noise_seed
        self.ledger = ledger
        self.run = run
        self.threads = threads
        self.engine = engine

    def _settings(self) -> centaur.Settings:
        base = fedrep.Settings() if self.rounds is None else fedrep.Settings(rounds=self.rounds)
        return centaur.Settings(
            base=base,
            start=self.start,
            power_steps=self.power_steps,
            copies=self.copies,
            sampling_rate=self.sampling_rate,
        )

    def _paper_settings(self) -> paper_centaur.Settings:
        return paper_centaur.Settings() if self.rounds is None else paper_centaur.Settings(rounds=self.rounds)

    def _planned(self, budget: Budget) -> Sequence[GaussianEvent]:
        n, d = self._sizes
        if self.mode == "paper":
            return self._paper_settings().planned(budget, n, d, self.rank)
        settings = self._settings()
        return settings.events(settings.plan(budget, d, self.rank), d, self.rank)

    def _learn(self, federation: Federation, budget: Budget) -> Array:
        rng = np.random.default_rng(self.random_state)
        if self.mode == "paper":
            return paper_centaur.learn(federation, budget, self._paper_settings(), self.rank, rng)
        settings = self._settings()
        plan = settings.plan(budget, federation.n_features, self.rank)
        return centaur.learn(federation, plan, settings, self.rank, centered=self.fit_intercept, rng=rng)

    def _standing(self, budget: Budget) -> tuple[str, tuple[str, ...]]:
        mode, reasons = super()._standing(budget)
        return (mode, reasons) if self.mode == "auto" else ("paper", (*reasons, *paper_centaur.REASONS))

    def _check_parameters(self, population: Population) -> None:
        super()._check_parameters(population)
        self._sizes = (population.n_users, population.n_features)
        if self.mode == "paper" and self.engine is not None:
            raise ValueError("paper mode is for one process. Leave engine out, or take mode='auto'.")
        if self.mode == "paper" and (self.fit_intercept or self.sampling_rate < 1.0):
            raise ValueError(
                "paper mode has no intercept and asks everybody. Set fit_intercept=False, sampling_rate=1."
            )
        power = self.mode == "paper" or self._settings().chosen_start(population.n_features, self.rank) == "power"
        if self.random_state is None and self.ledger is not None and power:
            raise ValueError("a run that may be resumed must start from the same columns. Set random_state.")
