"""The estimator of Private FedRep (Snedeker et al. 2025)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

from tacitly.arrays import Array
from tacitly.federation.base import Federation
from tacitly.federation.engine import Population
from tacitly.heads.base import HeadWork
from tacitly.methods.base import Procedure
from tacitly.methods.fedrep import algorithm as fedrep
from tacitly.methods.fedrep import as_printed as paper_fedrep
from tacitly.methods.shared_basis import SharedBasisModel
from tacitly.privacy.guarantee import Budget


@dataclass(eq=False, repr=False)
class PrivateFedRep(SharedBasisModel):
    """Learn a shared low-rank representation under user-level differential privacy, and one head per user.

    User i's weights are wᵢ = U vᵢ: a basis U of ``rank`` directions that all users share, learned privately, and a head
    vᵢ that stays with its user. Nothing needs tuning but ``epsilon``.

    Parameters
    ----------
    rank
        Number of shared directions, k. ``"auto"``: those that stand out of the noise in the spectrum of a release that
        is made anyway, at most 8.
    epsilon
        The privacy budget for everything that is released, together. ``math.inf`` for none (not certified).
    delta
        Probability with which ε may fail; well below one over the number of users.
    adjacency
        ``"zero-out"``: a user's contribution against nothing. ``"replace-one"``: against any other data.
    mode
        ``"auto"``: the sound algorithm. ``"paper"``: the paper as printed, not certified, to compare with.
    random_state
        Seeds public randomness only. (The default algorithm has none.) Privacy noise cannot be seeded with it.
    fit_intercept
        Whether every user has an intercept, fitted at home like the head.
    loss
        ``"squared"`` for numbers, ``"logistic"`` or ``"hinge"`` for classes, ``"poisson"`` for counts.
    classes
        The labels that may occur, where the target is a class; (0, 1) if none are given. Declared, never read from the
        rows: which labels occur is private. More than two need loss ``"logistic"``; heads then have one column per
        class.
    rounds
        Noisy steps of the basis; None for the default (16; 5 in paper mode).
    noise
        ``"auto"``, ``"exact"`` or ``"float"``: how noise is drawn. The certificate states it.
    noise_seed
        Seeds the privacy noise, for experiments that must repeat. The run is then not certified.
    ledger, run
        An account to debit and the name of this run in it; an interrupted run resumes from there.
    threads
        Number of threads; None for all cores.
    on_bad_rows
        What becomes of rows with a missing or infinite cell, text among numbers, or a label that was not declared.
        ``"drop"``: they are left out, and their users stay on the roster; nothing tells that there were any.
        ``"raise"``: an error with columns and counts, to clean the data before a certified run.
    engine
        Where the users are: None or ``"local"`` for this process, ``"cuda"`` for this process with the rows on a GPU
        (:class:`~tacitly.federation.cuda.engine.CudaEngine`), or a :class:`~tacitly.federation.ray.RayEngine`.

    Attributes
    ----------
    basis_ : (n_features, rank) orthonormal; public. One column more, the population's direction, where that stands out
    prior_ : how heads are spread over users (squared loss): mean, covariance, noise; public. None where noise hides it
    heads_ : (n_users, rank), rows in the order of ``users_``; private; (n_users, rank, classes) for more than two
    intercepts_ : (n_users,), zeros unless ``fit_intercept``; private; (n_users, classes) for more than two
    classes_ : the declared labels, where the target is a class
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
    run: str = "private-fedrep"

    _modes = ("auto", "paper")
    _paper_reasons = paper_fedrep.REASONS

    def _procedure(self, population: Population, budget: Budget) -> Procedure:
        given: dict[str, Any] = {} if self.rounds is None else {"rounds": self.rounds}
        if self.mode == "paper":
            paper = paper_fedrep.Settings(**given)
            start, loop = paper.events(budget)
            return Procedure(
                [start] + [loop] * paper.rounds,
                lambda federation: {"basis": paper_fedrep.learn(federation, budget, paper, int(self.rank))},
            )
        settings = fedrep.Settings(**given, **self._around_the_basis(population, budget))
        plan = settings.plan(budget)
        loss = None if self.loss == "squared" else self._loss()

        def learn(federation: Federation) -> dict[str, Array]:
            found = fedrep.learn(federation, plan, settings, self.rank, centered=self.fit_intercept, loss=loss)
            return self._with_population(federation, plan, found)

        return Procedure(settings.events(plan), learn)

    def _home_work(self) -> HeadWork:
        return paper_fedrep.PaperHeads(self.basis_) if self.mode == "paper" else super()._home_work()

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.mode == "paper" and self.fit_intercept:
            raise ValueError("paper mode has no intercept. Set fit_intercept=False.")
        if self.mode == "paper" and self.loss != "squared":
            raise ValueError(f"paper mode is for loss='squared'. Found {self.loss!r}.")
        if self.classes is not None and not self._loss().classifies:
            raise ValueError(f"classes are for loss='logistic' and loss='hinge'. Found loss={self.loss!r}.")
