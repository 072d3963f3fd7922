"""The estimator of Private FedRep (Snedeker et al. 2025)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Self

from tacitly.arrays import Array
from tacitly.data.validation import DataError
from tacitly.federation.base import Federation
from tacitly.federation.engine import Population
from tacitly.heads.base import HeadWork
from tacitly.methods.base import Procedure
from tacitly.methods.fedrep import algorithm as fedrep
from tacitly.methods.fedrep import as_printed as paper_fedrep
from tacitly.methods.further_calls import Continued
from tacitly.methods.own_weights import WithOwnWeights
from tacitly.privacy.guarantee import Budget

PRINTED = ("step_size", "clip", "start_clip", "batch")
"""Parameters of paper mode only: η, ψ, ψ_init, b."""


class _Continued(Continued):
    """State that ``refresh`` passes to the fit. Not a dataclass, because it is not a parameter."""

    _public: Array | None = None  # the basis from which a refresh starts


@dataclass(eq=False, repr=False)
class PrivateFedRep(_Continued, WithOwnWeights):
    """Learn a shared low-rank representation under user-level differential privacy, and one head per user.

    User i's weights are wᵢ = U vᵢ: a basis U of ``rank`` directions that all users share, learned privately, and a head
    vᵢ that stays with its user. Only ``epsilon`` and ``rank`` have to be chosen.

    Parameters
    ----------
    rank
        Maximum number of shared directions, k. If it is far too large, directions that no head uses are removed from
        the basis (squared loss). ``"auto"``: the directions that exceed the noise in the spectrum of a release that is
        made anyway, at most 8.
    epsilon
        The privacy budget of the whole fit: the ε of all releases together. ``math.inf`` for no privacy (not
        certified).
    delta
        Probability with which the bound of ε may fail; choose it well below one over the number of users.
    adjacency
        ``"zero-out"``: neighbouring data sets differ in one user who contributes zero. ``"replace-one"``: they differ
        in one user whose rows are arbitrary others.
    mode
        ``"auto"``: the sound algorithm. ``"paper"``: the paper as printed, not certified, for comparison.
    random_state
        Seeds public randomness only. (The default algorithm has none.) Privacy noise cannot be seeded with it.
    fit_intercept
        Whether every user has an intercept, fitted locally together with the head.
    loss
        ``"squared"`` for numbers, ``"logistic"`` or ``"hinge"`` for classes, ``"poisson"`` for counts.
    classes
        All labels that may occur, if the target is a class; default (0, 1). They must be declared and are never read
        from the rows, because which labels occur is private. More than two need loss ``"logistic"``; heads then have
        one column per class.
    rounds
        Number of noisy steps of the basis; None for the default (16; 5 in paper mode).
    sampling_rate
        Probability with which a user takes part in a release, drawn secretly and independently for each user and
        release. Sampling needs less noise for the same ε, and fewer users have to be reached; if all users are
        available, 1 is more accurate.
    step_size, clip, start_clip, batch
        η, ψ, ψ_init and b of the paper's Algorithms 1 and 2, in paper mode only; None for those of its appendix B.4
        (2.5, 10, 10, ⌊rows/2·rounds⌋).
    noise
        ``"auto"``, ``"exact"`` or ``"float"``: how noise is drawn. The certificate states which was used.
    noise_seed
        Seeds the privacy noise, for reproducible experiments. The run is then not certified.
    ledger, run
        The account to debit, and the name of this run in it. An interrupted run of that name resumes.
    threads
        Number of threads; None for all cores.
    on_bad_rows
        How to treat rows with a missing or infinite cell, text among numbers, or a label that was not declared.
        ``"drop"``: leave them out without a message; their users stay on the roster.
        ``"raise"``: raise an error with columns and counts, for cleaning the data before a certified run.
    engine
        Where the users are: None or ``"local"`` for this process, ``"cuda"`` for this process with the rows on a GPU
        (:class:`~tacitly.federation.cuda.engine.CudaEngine`), or a :class:`~tacitly.federation.ray.RayEngine`.

    Attributes
    ----------
    basis_ : (n_features, directions) orthonormal; public. One direction may be that of the population's mean weights
    prior_ : distribution of heads over users (squared loss): mean, covariance, noise; public. None if noise hides it
    heads_ : (n_users, directions), rows in the order of ``users_``; private; one column per class for more than two
    intercepts_ : (n_users,), zeros unless ``fit_intercept``; private; (n_users, classes) for more than two
    own_weights_ : (n_users, n_features), added to the weights on the basis; private. Empty if ``prior_`` is known, with
        intercepts and with other losses: then all weights are on the basis
    classes_ : the declared labels, if the target is a class
    users_ : ids, sorted
    certificate_ : what was released and what it costs

    Examples
    --------
    >>> import tacitly
    >>> X, y, users, basis, _ = tacitly.datasets.make_shared_subspace(2000, 20, 2, 10, random_state=0)
    >>> model = tacitly.PrivateFedRep(rank=2, epsilon=2.0).fit(X, y, users)
    >>> model.certificate_.certified, round(model.certificate_.epsilon, 6)
    (True, 2.0)
    >>> tacitly.subspace_distance(model.basis_, basis) < 0.05
    True
    >>> head = model.personalize(X[users == 3], y[users == 3])  # a new user: costs no privacy
    >>> head.predict(X[:1]).shape
    (1,)
    >>> yes = (y > 0).astype(int)
    >>> model = tacitly.PrivateFedRep(rank=2, epsilon=2.0, loss="logistic").fit(X, yes, users)
    >>> model.predict_proba(X[:3], users[:3]).shape, model.score(X, yes, users) > 0.8
    ((3, 2), True)
    """

    _: KW_ONLY
    fit_intercept: bool = False
    loss: str = "squared"
    classes: Sequence[Any] | None = None
    rounds: int | None = None
    sampling_rate: float = 1.0
    step_size: float | None = None
    clip: float | None = None
    start_clip: float | None = None
    batch: int | None = None
    run: str = "private-fedrep"

    _modes = ("auto", "paper")
    _paper_reasons = paper_fedrep.REASONS

    def refresh(
        self, X: Any = None, y: Any = None, users: Any = None, *, on_release: Callable[[str], None] | None = None
    ) -> Self:
        """Update the model with further rows, starting from its current basis.

        The rows may be new rows of the same users, or of other users. The basis is already public, so no budget is
        spent on a start. Each call costs the whole ``epsilon`` and is a run of its own in the ledger. The certificate
        adds up all calls, as if one user had rows in each. Afterwards, heads are those of the users given here; fit
        others with ``personalize``. A call that fails leaves the model and its certificate unchanged. A model that was
        saved and loaded needs the account of its fit first: ``model.ledger = tacitly.Ledger(path)``.

        >>> import tacitly
        >>> X, y, users, basis, _ = tacitly.datasets.make_shared_subspace(2000, 10, 1, 10, random_state=0)
        >>> first = users < 1000
        >>> model = tacitly.PrivateFedRep(rank=1, epsilon=1.0).fit(X[first], y[first], users[first])
        >>> model = model.refresh(X[~first], y[~first], users[~first])
        >>> 1.0 < model.certificate_.epsilon < 2.0, len(model.users_)
        (True, 1000)
        """
        self._check_fitted()
        if self.mode == "paper":
            raise ValueError("paper mode has no refresh. Fit with mode='auto'.")
        before, (mode, _) = self.certificate_, self._standing(self._budget())
        if mode != before.mode or self.adjacency != before.budget.adjacency:
            raise ValueError(
                "refresh must promise what the fit did: the same adjacency, noise of the same kind. Found "
                f"{mode}, {self.adjacency} after {before.mode}, {before.budget.adjacency}. Start anew with fit()."
            )
        self._check_account(before)
        state, calls = dict(self.__dict__), sum(release.name == "feature moment" for release in before.releases)
        try:
            self._before, self._public, self.run = before, self.basis_, f"{self.run}-{calls + 1}"
            super().fit(X, y, users, on_release=on_release)
            self.certificate_ = self._added_up(before)
        except BaseException:  # whatever stops a call, model and certificate remain those of the calls before
            self.__dict__.clear()
            self.__dict__.update(state)
            raise
        self._before, self._public, self.run = None, None, state["run"]
        return self

    def _procedure(self, population: Population, budget: Budget) -> Procedure:
        given: dict[str, Any] = {} if self.rounds is None else {"rounds": self.rounds}
        if self.mode == "paper":
            paper = paper_fedrep.Settings(**given, **self._printed())
            start, loop = paper.events(budget)
            return Procedure(
                [start] + [loop] * paper.rounds,
                lambda federation: {"basis": paper_fedrep.learn(federation, budget, paper, int(self.rank))},
            )
        public = self._public
        settings = fedrep.Settings(
            **given,
            **self._around_the_basis(population, budget),
            sampling_rate=self.sampling_rate,
            continues=public is not None,
        )
        plan = settings.plan(budget)
        loss = None if self.loss == "squared" else self._loss()

        def learn(federation: Federation) -> dict[str, Array]:
            found = fedrep.learn(
                federation, plan, settings, self.rank, centered=self.fit_intercept, loss=loss, public=public
            )
            return self._with_population(federation, plan, found)

        return Procedure(settings.events(plan), learn, {} if public is None else {"start": _digest(public)})

    def _most_directions(self, n_features: int) -> int:
        return super()._most_directions(n_features) if self._public is None else self._public.shape[1]

    def _printed(self) -> dict[str, Any]:
        """Return the constants of paper mode that were given."""
        given = {name: getattr(self, name) for name in PRINTED}
        return {name: value for name, value in given.items() if value is not None}

    def _home_work(self) -> HeadWork:
        return paper_fedrep.PaperHeads(self.basis_) if self.mode == "paper" else super()._home_work()

    def _check_population(self, population: Population) -> None:
        super()._check_population(population)
        if self._public is not None and len(self._public) != population.n_features:
            raise DataError(
                f"X has {population.n_features} features, but {type(self).__name__} is expecting {len(self._public)} "
                "features as input: those of the fit."
            )

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.mode != "paper" and (extra := list(self._printed())):
            raise ValueError(f"{extra[0]} is for mode='paper'. Leave it out: nothing needs tuning here.")
        if self.mode == "paper" and self.sampling_rate != 1.0:
            raise ValueError(f"paper mode asks every user. Set sampling_rate=1. Found {self.sampling_rate!r}.")
        if self.mode == "paper" and self.fit_intercept:
            raise ValueError("paper mode has no intercept. Set fit_intercept=False.")
        if self.mode == "paper" and self.loss != "squared":
            raise ValueError(f"paper mode is for loss='squared'. Found {self.loss!r}.")
        fedrep.Settings(sampling_rate=self.sampling_rate)  # checks it
        if self.classes is not None and not self._loss().classifies:
            raise ValueError(f"classes are for loss='logistic' and loss='hinge'. Found loss={self.loss!r}.")


def _digest(basis: Array) -> str:
    """Return what tells bases apart: a resumed refresh must start where it started."""
    return hashlib.sha256(basis.tobytes()).hexdigest()[:16]
