"""The estimator of Private FedRep's classifier by margins (Snedeker et al. 2025)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np

from tacitly.arrays import Array
from tacitly.federation.base import Federation
from tacitly.federation.engine import Population
from tacitly.heads.glm import LossHeads
from tacitly.methods.base import Procedure
from tacitly.methods.margin import algorithm
from tacitly.methods.shared_basis import SharedBasisModel
from tacitly.privacy.guarantee import Budget

_NOMINAL_ROWS = 100  # assumed rows per user, for Lemma 15's logarithm: the true number is private


@dataclass(eq=False, repr=False)
class MarginClassifier(SharedBasisModel):
    """Personal classifiers on a shared basis that is chosen by its margins under pure ε.

    For two classes and a guarantee with δ = 0. At ε = 1 it is often worse than local models, which share nothing,
    unless there are tens of thousands of users with few rows each. If δ > 0 is allowed,
    :class:`~tacitly.PrivateFedRep` with a loss for classes needs far fewer users.

    Rows are projected at random to a few dimensions. Permute-and-flip chooses a basis there by the margins that users
    reach with it, and every user fits a head to it locally.

    Parameters
    ----------
    delta
        0 for pure ε (the default). Above 0 a noisy gradient loop may propose candidates, and the bound of ε may fail
        with probability δ.
    mode
        Source of candidates: ``"cover"`` (the paper's, if it is small enough to list), ``"random"``, ``"search"`` (many
        small choices) or ``"gradient"`` (needs ``delta`` > 0). ``"auto"``: cover if small, else gradient or search.
    random_state
        Seeds the projection and the candidates, which are public. The choice itself cannot be seeded with it.
    classes
        The two declared labels; default (0, 1).
    margin
        ρ: the distance from the boundary that a row needs to count as correct, as a share of its length.
    dimension
        k', the dimensions to project to; None for Lemma 15's, but at most 48.
    candidates, choices
        How many candidates a choice scores, and how many choices a search makes.
    radius
        γ, the radius of a cover.
    heads
        ``"all"``: choose the basis and fit heads on all rows. ``"second half"``: choose on the first half and fit on
        the second, as printed.
    loss
        The loss of heads: ``"hinge"``, or ``"logistic"`` for ``predict_proba``.
    fit_intercept
        Whether every user has an intercept; margins are then measured around the user's own mean.
    rank, epsilon, adjacency, noise, noise_seed, ledger, run, threads, engine
        As for :class:`~tacitly.PrivateFedRep`. (Choices are always drawn exactly, for any ``noise``.)

    Attributes
    ----------
    basis_ : (n_features, rank) orthonormal; public
    heads_, intercepts_, users_ : as for :class:`~tacitly.PrivateFedRep`; private
    dimension_ : k'
    mode_ : source of candidates; ``fit`` sets ``dimension_`` and ``mode_``, and a model folder does not keep them
    certificate_ : what was released and what it costs

    Examples
    --------
    >>> import tacitly
    >>> X, y, users, *_ = tacitly.datasets.make_shared_subspace(1000, 6, 1, 12, random_state=0)
    >>> model = tacitly.MarginClassifier(rank=1, epsilon=2.0, choices=6, candidates=64).fit(X, y > 0, users)
    >>> model.certificate_.delta, round(model.certificate_.epsilon, 6)
    (0.0, 2.0)
    >>> model.score(X, y > 0, users) > 0.8
    True
    """

    delta: float = 0.0
    random_state: int | None = 0
    _: KW_ONLY
    classes: Sequence[Any] | None = None
    margin: float = 0.05
    dimension: int | None = None
    candidates: int = 256
    choices: int = 20
    radius: float = 0.5
    heads: str = "all"
    loss: str = "hinge"
    fit_intercept: bool = False
    run: str = "margin-classifier"

    _modes = ("auto", *algorithm.PROPOSALS)

    def _settings(self, population: Population) -> algorithm.Settings:
        dimension = self._dimension(population)
        proposals = self.mode
        if self.mode == "auto":
            small = algorithm.covering_size(dimension, int(self.rank), self.radius) <= algorithm.MOST_COVERED
            proposals = "cover" if small else "gradient" if self.delta > 0 else "search"
        return algorithm.Settings(
            proposals=proposals,
            dimension=dimension,
            margin=self.margin,
            candidates=self.candidates,
            choices=self.choices,
            radius=self.radius,
            half=self.heads == "second half",
            centered=self.fit_intercept,
        )

    def _dimension(self, population: Population) -> int:
        """Return k': as given, or Lemma 15's within limits; never more than there are features."""
        wanted = self.dimension
        if wanted is None:
            lemma = algorithm.target_dimension(population.n_users * _NOMINAL_ROWS, max(self.margin / 2, 1e-6))
            wanted = min(lemma, algorithm.MOST_DIMENSIONS)
        return min(int(wanted), population.n_features)

    def _procedure(self, population: Population, budget: Budget) -> Procedure:
        settings = self._settings(population)
        plan = settings.plan(budget)

        def learn(federation: Federation) -> dict[str, Array]:
            self.mode_, self.dimension_ = settings.proposals, settings.dimension
            assert self.random_state is not None
            return {"basis": algorithm.learn(federation, plan, settings, int(self.rank), self.random_state)}

        return Procedure(settings.events(plan), learn)

    def _home_work(self) -> LossHeads:
        return LossHeads(self.basis_, self._loss(), bool(self.fit_intercept), self.heads == "second half")

    @property
    def _ranks_itself(self) -> bool:
        return False

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.noise_by != "central":
            raise ValueError(
                f"a choice needs one process that adds up losses: trust 'central'. Found trust {self.noise_by!r}."
            )
        if not isinstance(self.random_state, int | np.integer):
            raise ValueError(
                "random_state must be a whole number: candidates are public, and a resumed run makes them again. "
                f"Found {self.random_state!r}."
            )
        if self.heads not in ("all", "second half"):
            raise ValueError(f"heads must be 'all' or 'second half'. Found {self.heads!r}.")
        if self.loss not in ("hinge", "logistic"):
            raise ValueError(f"loss must be 'hinge' or 'logistic'. Found {self.loss!r}.")
        if self._loss().columns > 1:
            raise ValueError(f"MarginClassifier has two classes. Found {list(self.classes_)!r}: use PrivateFedRep.")
        if self.margin < 0 or self.margin >= 1:
            raise ValueError(f"margin must lie in [0, 1): rows are scaled to length one. Found {self.margin!r}.")

    def _check_population(self, population: Population) -> None:
        super()._check_population(population)
        if (dimension := self._dimension(population)) < int(self.rank):
            raise ValueError(f"dimension must be at least the rank ({self.rank}). Found {dimension}.")
