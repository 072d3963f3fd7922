"""Paper 003's classifier, as a user sees it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tacitly.arrays import Array
from tacitly.federation.base import Federation
from tacitly.federation.engine import Engine, Population
from tacitly.heads.glm import LossHeads
from tacitly.methods.margin import algorithm as algorithm
from tacitly.methods.shared_basis import SharedBasisModel
from tacitly.privacy.guarantee import Budget, Event
from tacitly.privacy.ledger import Ledger

_NOMINAL_ROWS = 100  # a user, for Lemma 15's logarithm: how many there are is private


class MarginClassifier(SharedBasisModel):
    """Personal classifiers on a shared basis that is chosen, by its margins, under pure ε.

    Two classes. Rows are projected at random to a few dimensions, a basis there is chosen by permute-and-flip for the
    margins it lets everybody have, and every user fits a head to it at home.

    Parameters
    ----------
    rank
        Number of shared directions, k.
    epsilon
        The privacy budget for everything that is released, together. ``math.inf`` for none (not certified).
    delta
        0 for pure ε (the default). Above 0 a noisy gradient loop may propose candidates, and ε holds but with chance δ.
    adjacency
        ``"zero-out"``: a user's contribution against nothing. ``"replace-one"``: against any other data.
    mode
        Where candidates come from: ``"cover"`` (the paper's, where it can be listed), ``"random"``, ``"search"`` (many
        small choices) or ``"gradient"`` (needs ``delta`` > 0). ``"auto"``: cover if small, else gradient or search.
    random_state
        Steers the projection and the candidates: public. The choice itself cannot be seeded with it.
    classes
        The two labels, declared; (0, 1) if none are given.
    margin
        ρ: how far from the boundary a row must lie to count as right, as a share of its length.
    dimension
        k', dimensions to project to; None for Lemma 15's, or 48 if that is more.
    candidates, choices
        How many are scored in a choice, and how many choices a search makes.
    radius
        γ of a cover.
    heads
        ``"all"``: choose and fit on all rows. ``"second half"``: choose on the first half and fit on the second, as
        printed.
    loss
        What heads are fitted with: ``"hinge"``, or ``"logistic"`` for ``predict_proba``.
    fit_intercept
        Whether every user has a level of their own; margins are then measured around the user's own mean.
    noise, noise_seed, ledger, run, threads, engine
        As for :class:`~tacitly.PrivateFedRep`. (Choices are drawn exactly whatever ``noise`` says.)

    Attributes
    ----------
    basis_ : (n_features, rank) orthonormal; public
    heads_, intercepts_, users_ : as for :class:`~tacitly.PrivateFedRep`; private
    dimension_ : k'
    mode_ : where candidates came from
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

    _modes = ("auto", *algorithm.PROPOSALS)

    def __init__(
        self,
        rank: int,
        epsilon: float,
        delta: float = 0.0,
        adjacency: str = "zero-out",
        mode: str = "auto",
        random_state: int = 0,
        *,
        classes: Sequence[Any] | None = None,
        margin: float = 0.05,
        dimension: int | None = None,
        candidates: int = 256,
        choices: int = 20,
        radius: float = 0.5,
        heads: str = "all",
        loss: str = "hinge",
        fit_intercept: bool = False,
        noise: str = "auto",
        noise_seed: int | None = None,
        ledger: Ledger | None = None,
        run: str = "margin-classifier",
        threads: int | None = None,
        engine: Engine | None = None,
    ) -> None:
        self.rank = rank
        self.epsilon = epsilon
        self.delta = delta
        self.adjacency = adjacency
        self.mode = mode
        self.random_state = random_state
        self.classes = classes
        self.margin = margin
        self.dimension = dimension
        self.candidates = candidates
        self.choices = choices
        self.radius = radius
        self.heads = heads
        self.loss = loss
        self.fit_intercept = fit_intercept
        self.noise = noise
        self.noise_seed = noise_seed
        self.ledger = ledger
        self.run = run
        self.threads = threads
        self.engine = engine

    def _settings(self) -> algorithm.Settings:
        return algorithm.Settings(
            proposals=self.mode_,
            dimension=self.dimension_,
            margin=self.margin,
            candidates=self.candidates,
            choices=self.choices,
            radius=self.radius,
            half=self.heads == "second half",
            centered=self.fit_intercept,
        )

    def _planned(self, budget: Budget) -> Sequence[Event]:
        return self._settings().events(self._settings().plan(budget))

    def _learn(self, federation: Federation, budget: Budget) -> Array:
        settings = self._settings()
        return algorithm.learn(federation, settings.plan(budget), settings, self.rank, self.random_state)

    def _head_work(self) -> LossHeads:
        return LossHeads(self.basis_, self._loss(), bool(self.fit_intercept), self.heads == "second half")

    def _check_parameters(self, population: Population) -> None:
        super()._check_parameters(population)
        if self.noise_by != "central":
            raise ValueError(
                f"a choice needs one population that adds up losses: trust 'central'. Found trust {self.noise_by!r}."
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
            raise ValueError(f"margins have two classes; for more: PrivateFedRep. Found {list(self.classes_)!r}.")
        if self.margin < 0 or self.margin >= 1:
            raise ValueError(f"margin must lie in [0, 1): rows are scaled to length one. Found {self.margin!r}.")
        wanted = self.dimension
        if wanted is None:
            lemma = algorithm.target_dimension(population.n_users * _NOMINAL_ROWS, max(self.margin / 2, 1e-6))
            wanted = min(lemma, algorithm.MOST_DIMENSIONS)
        self.dimension_ = min(int(wanted), population.n_features)
        if self.dimension_ < self.rank:
            raise ValueError(f"dimension must be at least the rank ({self.rank}). Found {self.dimension_}.")
        self.mode_ = self.mode
        if self.mode == "auto":
            small = algorithm.covering_size(self.dimension_, self.rank, self.radius) <= algorithm.MOST_COVERED
            self.mode_ = "cover" if small else "gradient" if self.delta > 0 else "search"
