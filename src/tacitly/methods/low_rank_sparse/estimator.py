"""The estimator of low rank plus sparse (AMHT-LRS, Pal et al. 2024)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from tacitly.arrays import Array
from tacitly.federation.base import Federation
from tacitly.federation.engine import Population
from tacitly.heads.base import HeadWork
from tacitly.heads.population import HeadPrior
from tacitly.methods.base import Procedure
from tacitly.methods.low_rank_sparse import algorithm as low_rank_sparse
from tacitly.methods.low_rank_sparse import as_printed as paper_low_rank_sparse
from tacitly.methods.low_rank_sparse.heads import EXPECTED, UNKNOWN, SparseHeads, SparseHeadWork, Sparsity
from tacitly.methods.low_rank_sparse.thresholds import PrintedSparseHeads, Thresholds
from tacitly.methods.parameters import RankAndSparsity
from tacitly.methods.personal import Positions
from tacitly.methods.shared.descent import LearnedBasis
from tacitly.methods.shared.population import learn_heads, population_phases
from tacitly.methods.shared_basis import Head, SharedBasisModel, arrays_of
from tacitly.privacy.calibration import Plan
from tacitly.privacy.guarantee import Budget


@dataclass(eq=False, repr=False)
class LowRankSparse(SharedBasisModel, RankAndSparsity):
    """Learn a shared basis privately; every user adds a few personal coordinates (AMHT-LRS, Pal et al. 2024).

    User i has weights U wᵢ + bᵢ, where bᵢ is sparse with k coordinates; wᵢ and bᵢ stay with their user. The personal
    parts of n users are n·(r + k) numbers.

    Parameters
    ----------
    rank
        Number of shared directions, r.
    sparsity
        Number of personal coordinates per user: a count, a fraction of the features, or ``"auto"``: every user chooses
        it by cross-validation on their own rows, locally and at no privacy cost.
    mode
        ``"auto"``: our algorithm. ``"paper"``: Algorithm 5 with the public ``clips`` and ``thresholds``, for
        comparison. It is certified too, and needs a number for ``sparsity``.
    random_state
        Seeds public randomness only: the start of paper mode. None means a fixed start, so that an interrupted run
        resumes from the same one.
    shared_weight
        All users have weight one (rank 1): one central model, sparsely fine-tuned by every user. ``basis_`` is then
        this model, and its norm is not one.
    route
        ``"gradient"``, ``"equations"`` (exact normal equations with one clip), or ``"auto"``: the gradient.
    rounds
        Number of noisy sums; None for the default (16; equations 3; paper mode 15).
    penalty
        Penalty on personal coordinates when a user's own fit is weighed against the population's head, locally: 1 is
        neutral if it is unknown whether such coordinates exist, 0 trusts every fit. None: 0.5 if ``sparsity`` is a
        number (which states that they exist), 1.25 if it is ``"auto"``.
    clips
        Paper mode: (A₁, A₂, A₃, A_w, m), bounds on rows, targets, xᵀb and weights, and the rows per user. They are
        public and must not be derived from the data.
    thresholds
        Paper mode: public constants of Algorithm 2 by name, if they differ from the defaults: ``distance`` (B; A_w,
        or A₂ with a shared weight), ``spread`` (γ⁽⁰⁾; A₃), ``accuracy`` (ϵ; 0.01), ``noise`` (A; 0), ``alpha`` and
        ``beta`` (what O(·) hides; 1), ``c1`` (0.2), ``c2`` (0.1), ``c3`` (0.05), ``c4``, ``c5`` (0.75).
    start
        Paper mode: ``"random"``, or ``"moments"`` (Appendix F, paid from the budget).
    epsilon, delta, adjacency, fit_intercept, noise, noise_seed, ledger, run, threads, engine
        As for :class:`tacitly.PrivateFedRep`.

    Attributes
    ----------
    basis_ : (n_features, rank) orthonormal (unless ``shared_weight``); public
    heads_ : (n_users, rank), rows in the order of ``users_``; private
    sparse_indices_, sparse_values_ : (n_users, most per user), value 0 where a user has fewer; private
    intercepts_ : (n_users,), zeros unless ``fit_intercept``; private
    users_, certificate_

    Examples
    --------
    >>> import tacitly
    >>> data = tacitly.datasets.make_low_rank_sparse(3000, 15, 2, 30, sparsity=2, random_state=0)
    >>> model = tacitly.LowRankSparse(rank=2, sparsity=2, epsilon=2.0).fit(data.X, data.y, data.users)
    >>> model.certificate_.certified, tacitly.subspace_distance(model.basis_, data.basis) < 0.1
    (True, True)
    >>> model.sparse_indices_.shape
    (3000, 2)
    >>> mine = data.users == 3
    >>> model.personalize(data.X[mine], data.y[mine]).values.shape  # a new user: costs no privacy
    (2,)
    """

    _: KW_ONLY
    shared_weight: bool = False
    fit_intercept: bool = False
    route: str = "auto"
    rounds: int | None = None
    penalty: float | None = None
    clips: Sequence[float] | None = None
    thresholds: Mapping[str, float] | None = None
    start: str = "random"
    run: str = "low-rank-sparse"

    _modes = ("auto", "paper")

    def private_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return weights, intercepts, and the personal coordinates as indices and values."""
        arrays, indices = super().private_arrays(), self.sparse_indices_.astype(np.int32)
        return arrays and {**arrays, "sparse_indices": indices, "sparse_values": self.sparse_values_}

    def take_private_arrays(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Set what :meth:`private_arrays` returned."""
        super().take_private_arrays(arrays)
        indices, values = arrays["sparse_indices"].astype(np.int64), arrays["sparse_values"]
        features = len(self.basis_)
        if indices.shape != values.shape or not ((indices >= 0) & (indices < features)).all():
            raise ValueError(f"the heads have coordinates that this model's {features} features do not have.")
        self.sparse_indices_, self.sparse_values_ = indices, values

    def take_public_arrays(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Set the basis; no user has a head on it yet."""
        super().take_public_arrays(arrays)
        self.sparse_indices_, self.sparse_values_ = np.zeros((0, 0), dtype=np.int64), np.zeros((0, 0))

    def n_parameters(self) -> int:
        """Return the number of parameters as counted in the paper's Table 1: r(d + n) + k·n, without indices.

        A shared weight is not counted per user. If users choose k, the largest allowed k is counted, because their
        choices are private.
        """
        self._check_fitted()
        own = 0 if self.shared_weight else self.heads_.size
        most = Sparsity.of(self.sparsity, len(self.basis_)).most
        return int(self.basis_.size + own + most * len(self.users_))

    def _settings(self, around: Mapping[str, Any]) -> low_rank_sparse.Settings | paper_low_rank_sparse.Settings:
        if self.mode == "paper":
            rounds = 15 if self.rounds is None else self.rounds
            clips = self._paper_clips()
            thresholds = self._paper_thresholds(clips)
            return paper_low_rank_sparse.Settings(clips=clips, thresholds=thresholds, rounds=rounds, start=self.start)
        route = "gradient" if self.route == "auto" else self.route
        route = "central" if self.shared_weight else route
        rounds = self.rounds if self.rounds is not None else (3 if route == "equations" else 16)
        return low_rank_sparse.Settings(route=route, rounds=rounds, **around)

    def _paper_clips(self) -> paper_low_rank_sparse.Clips:
        if self.clips is None or len(self.clips) != 5:
            raise ValueError(f"paper mode needs five public clips, (A1, A2, A3, Aw, m). Found {self.clips!r}.")
        rows, targets, quirks, weights, count = (float(bound) for bound in self.clips)
        if not count.is_integer():
            raise ValueError(f"the last clip, m, must be a whole number of rows. Found {count!r}.")
        return paper_low_rank_sparse.Clips(
            rows=rows, targets=targets, sparse_part=quirks, weights=weights, count=int(count)
        )

    def _paper_thresholds(self, clips: paper_low_rank_sparse.Clips) -> Thresholds:
        given = {"distance": clips.targets if self.shared_weight else clips.weights, "spread": clips.sparse_part}
        given |= dict(self.thresholds or {})
        known = [field.name for field in fields(Thresholds)]
        if unknown := sorted(set(given) - set(known)):
            raise ValueError(f"thresholds has unknown names: {unknown}. Known are {known}.")
        return Thresholds(**{name: float(value) for name, value in given.items()})

    def _procedure(self, population: Population, budget: Budget) -> Procedure:
        settings = self._settings(self._around_the_basis(population, budget))
        plan = settings.plan(budget)
        sparsity = Sparsity.of(self.sparsity, population.n_features)

        def learn(federation: Federation) -> dict[str, Array]:
            if isinstance(settings, low_rank_sparse.Settings):
                found = low_rank_sparse.learn(
                    federation, plan, settings, self.rank, sparsity, centered=self.fit_intercept
                )
                return self._with_population(federation, plan, found)
            return {
                "basis": paper_low_rank_sparse.learn(
                    *(federation, plan, settings, int(self.rank), sparsity.most),
                    shared_weight=self.shared_weight,
                    random_state=0 if self.random_state is None else self.random_state,
                )
            }

        return Procedure(settings.events(plan), learn)

    def head_work(self) -> HeadWork:
        """Return the computation of a head as data, so that it can be sent to users."""
        sparsity = Sparsity.of(self.sparsity, len(self.basis_))
        if self.mode == "paper":
            rounds, clips = 15 if self.rounds is None else self.rounds, self._paper_clips()
            thresholds = self._paper_thresholds(clips)
            return PrintedSparseHeads(self.basis_, sparsity.most, thresholds, rounds, bool(self.shared_weight))
        flags = bool(self.fit_intercept), bool(self.shared_weight)
        penalty = (UNKNOWN if sparsity.chosen else EXPECTED) if self.penalty is None else float(self.penalty)
        return SparseHeadWork(
            self.basis_, sparsity, *flags, prior=self._prior_at_home(), belief=self._belief(), penalty=penalty
        )

    def _around_the_basis(self, population: Population, budget: Budget) -> dict[str, Any]:
        around, sizes = super()._around_the_basis(population, budget), (population.n_users, population.n_features)
        if around and not self.shared_weight:
            # Even with few users: without the population, personal coordinates fit the noise.
            around["after"] = population_phases(budget, *sizes, self._most_directions(sizes[1]))
        elif around:
            # The central model is the population's direction, and its weight is one: only intercepts vary.
            around["after"] = population_phases(budget, sizes[0], 1, 1) if self.fit_intercept else ()
        return around

    def _with_population(self, federation: Federation, plan: Plan, found: LearnedBasis) -> dict[str, Array]:
        if not self.shared_weight:
            return super()._with_population(federation, plan, found)
        model = found.whitening.to_raw(found.basis)
        if not self.fit_intercept:
            return arrays_of(model, HeadPrior.of_levels(0.0, 0.0, 1.0))
        return arrays_of(model, learn_heads(federation.projected(model.T), plan, intercept=True, weight_one=True))

    def _prior_at_home(self) -> HeadPrior | None:
        if self.prior_ is None and self.shared_weight and self.mode != "paper":
            return HeadPrior.of_levels(0.0, 1.0, 1e-24)
        return super()._prior_at_home()

    def _belief(self) -> str:
        if not self.shared_weight:
            return super()._belief()
        return "own level" if self.prior_ is None else "never alone"

    def _take_heads(self, table: Array) -> None:
        heads = SparseHeads.unpacked(table, self.basis_.shape[1])
        self.heads_, self.intercepts_ = heads.weights, heads.intercepts
        self.sparse_indices_, self.sparse_values_ = heads.indices, heads.values

    def _scores(self, rows: npt.NDArray[Any], positions: Positions) -> Array:
        """Return the scores of rows; no user's d weights are formed."""
        scores, known = super()._scores(rows, positions), positions >= 0
        own = np.take_along_axis(rows[known], self.sparse_indices_[positions[known]], axis=1)
        scores[known] += np.einsum("nk,nk->n", own, self.sparse_values_[positions[known]])
        return scores

    def _personal_model(self, rows: npt.NDArray[Any], targets: Array) -> Head:
        table = self.head_work()(rows, targets, np.array([0, len(rows)]))
        one = SparseHeads.unpacked(table, self.basis_.shape[1])
        intercept = float(one.intercepts[0])
        return Head(one.weights[0], intercept, self.basis_, indices=one.indices[0], values=one.values[0])

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.shared_weight and self.rank != 1:
            raise ValueError(f"shared_weight is for rank 1: one central model. Found rank {self.rank!r}.")
        if self.route not in ("auto", "gradient", "equations"):
            raise ValueError(f"route must be 'auto', 'gradient' or 'equations'. Found {self.route!r}.")
        if self.shared_weight and self.route == "equations":
            raise ValueError("with a shared weight the equations' matrix is released once: use route='auto'.")
        if self.penalty is not None and not 0 <= self.penalty < math.inf:
            raise ValueError(f"penalty must be a number from 0 on, or None. Found {self.penalty!r}.")
        if self.start not in ("random", "moments"):
            raise ValueError(f"start must be 'random' or 'moments'. Found {self.start!r}.")
        if self.mode != "paper" and (self.clips, self.thresholds, self.start) != (None, None, "random"):
            raise ValueError("clips, thresholds and start are for mode='paper' only.")
        if self.mode == "paper":
            self._check_paper()

    def _check_population(self, population: Population) -> None:
        super()._check_population(population)
        Sparsity.of(self.sparsity, population.n_features)

    def _check_paper(self) -> None:
        if self.sparsity == "auto":
            raise ValueError("paper mode needs the number of personal coordinates: set sparsity to a number.")
        if self.fit_intercept:
            raise ValueError("paper mode has no intercept. Set fit_intercept=False.")
        if self.route != "auto":
            raise ValueError("paper mode has one route. Set route='auto'.")
        if self.shared_weight and self.start == "moments":
            raise ValueError("with a shared weight paper mode starts at zero, not by moments. Set start='random'.")
