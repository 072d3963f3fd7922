"""The estimator of DP-RGrad (Zha 2024): private low-rank trace regression.

Matrix covariates, matrix completion, multi-task regression.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tacitly.arrays import Array
from tacitly.data.cohort import Cohort
from tacitly.data.reading import read_cohort
from tacitly.data.validation import DataError, plain_numbers
from tacitly.federation.base import Federation
from tacitly.federation.engine import Population
from tacitly.federation.local import LocalPopulation
from tacitly.methods.base import PrivateModel, Procedure, Statement, plain_parameter
from tacitly.methods.parameters import EngineParameter, RankParameter
from tacitly.methods.personal import with_type
from tacitly.methods.trace_regression import algorithm as trace_regression
from tacitly.methods.trace_regression import as_printed as paper_trace
from tacitly.methods.trace_regression.designs import Design
from tacitly.methods.trace_regression.low_rank import LowRank
from tacitly.methods.trace_regression.parameters import check_choices
from tacitly.methods.trace_regression.public_design import (
    KnownMoments,
    PublicDesign,
    bounded,
    checked_centre,
    checked_covariance,
)
from tacitly.methods.trace_regression.start import StartSettings
from tacitly.privacy.guarantee import Budget, Unit

TRUST = "central: the process that adds the noise sees clipped contributions; all others see releases only."
NOTES = {
    Unit.ROW: (
        "the unit is one observation: a person with several observations is protected less (the number of observations "
        "is public)"
    ),
    Unit.LABEL: (
        "the unit is one label: covariates X are public and shared by neighbouring data sets; who takes part, and with "
        "which X, is not protected"
    ),
    Unit.USER: "the unit is all of a user's observations together",
}


class Observations(LocalPopulation):
    """Rows in this process, and their design."""

    def __init__(self, cohort: Cohort, design: Design) -> None:
        super().__init__(cohort)
        self.design = design


@dataclass(eq=False, repr=False)
class TraceRegression(PrivateModel, EngineParameter, RankParameter):
    """Estimate a low-rank matrix M from observations y = ⟨X, M⟩ + noise, under differential privacy.

    Parameters
    ----------
    rank
        Rank of M, or "auto": the number of directions, up to ten, that exceed the noise (of privacy and of sampling)
        in the first release. "auto" is not available in paper mode.
    mode
        ``"auto"``: the sound algorithm. ``"paper"``: the paper's algorithms with ``sensitivities`` as inputs, not
        certified.
    random_state
        Seeds public randomness only: the start of the power method (and, in paper mode, its noise).
    unit
        The unit of privacy: ``"observation"`` or ``"user"``.
    privacy
        ``"full"``: X and y are private. ``"labels"``: only y is private; X is public, and the design costs no budget.
    design
        ``"dense"``: X is (n, d1, d2). ``"entries"``: rows (i, j), matrix completion. ``"tasks"``: rows (task,
        features). ``"rank-one"``: rows (a, b), X = a bᵀ. Positions count from 0. A row with a position out of range
        contributes zero and raises no error, because which rows these are is private.
    shape
        (d1, d2). It is public and must be given, except for dense designs, whose matrices show it.
    covariance
        Known covariance Λ of the design: (d1, d2) variances of the entries, or the whole (d1·d2)² matrix; or one of
        either per observation, (n, …), in the order of X (not in paper mode). It is public and never computed from X.
        None: the energy of rows and columns is released privately, paid from the budget. For dense designs with unit
        observation.
    center
        The origin of X, for unit observation and without a covariance. ``"auto"``: the mean of X, if it matters;
        released privately and paid from the budget, unless X is public. For tasks and rank-one designs, features with a
        mean are whitened instead; for entries, level, row and column effects of the labels are released. (d1, d2)
        numbers: a known mean of dense X. None: zero.
    max_observations
        For unit user: the maximum number of observations per user, evenly spaced; None for all (clipping bounds their
        effect in any case).
    steps
        Number of noisy gradient steps. None: 32, or fewer (at least 8) if the budget and the number of observations are
        too small for that many; 300 without noise.
    start
        ``"one-shot"``, ``"power"``, or ``"auto"``: the one with the smaller predicted error.
    sensitivities
        Δ⁽¹⁾, Δ⁽²⁾ and Δ_l of paper mode; see :func:`tacitly.theory.paper_sensitivities`.
    epsilon, delta, adjacency, noise, noise_seed, ledger, run, threads, engine
        As for :class:`tacitly.PrivateFedRep`.

    Attributes
    ----------
    left_, singular_values_, right_ : M = left_ · diag(singular_values_) · right_ᵀ; public
    row_effects_, column_effects_ : of matrix completion, if labels have a level; row effects contain it. Else zero
    coef_ : M, (d1, d2), effects included
    intercept_ : added to ⟨X, M⟩ in predictions; 0 unless X was centred
    certificate_ : what was released and what it costs

    Examples
    --------
    >>> import numpy as np, tacitly
    >>> rng = np.random.default_rng(0)
    >>> M = np.outer(rng.normal(size=6), rng.normal(size=5))
    >>> X = rng.normal(size=(20_000, 6, 5))
    >>> model = tacitly.TraceRegression(rank=1, epsilon=1.0).fit(X, np.einsum("nij,ij->n", X, M))
    >>> bool(np.linalg.norm(model.coef_ - M) < 0.05 * np.linalg.norm(M)), model.certificate_.certified
    (True, True)

    Matrix completion:

    >>> pairs = rng.integers(0, (6, 5), size=(20_000, 2))
    >>> model = tacitly.TraceRegression(1, 1.0, design="entries", shape=(6, 5)).fit(pairs, M[tuple(pairs.T)])
    >>> bool(np.linalg.norm(model.coef_ - M) < 0.1 * np.linalg.norm(M))
    True
    """

    _: KW_ONLY
    unit: str = "observation"
    privacy: str = "full"
    design: str = "dense"
    shape: tuple[int, int] | None = None
    covariance: Any = None
    center: Any = "auto"
    max_observations: int | None = None
    steps: int | None = None
    start: str = "auto"
    sensitivities: tuple[float, float, float] | None = None
    run: str = "trace-regression"

    _modes = ("auto", "paper")
    _paper_reasons = paper_trace.REASONS
    _learned = "left_"

    @property
    def coef_(self) -> Array:
        """M as a dense matrix, effects of rows and columns included."""
        self._check_fitted()
        left, right = self._factors()
        return np.asarray(left @ right.T)

    @np.errstate(all="ignore")  # no warning depends on a private number
    def predict(self, X: Any) -> Array:
        """Return ⟨X, M⟩ of every observation, plus the intercept if there is one."""
        self._check_fitted()
        design = Design(self.design, len(self.left_), len(self.right_))
        return design.fitted(self._rows(X, design), *self._factors()) + self.intercept_

    def _factors(self) -> tuple[Array, Array]:
        """Return factors of M and its effects."""
        rows, columns = self.row_effects_, self.column_effects_
        left = np.column_stack([self.left_ * self.singular_values_, rows, np.ones(len(rows))])
        return left, np.column_stack([self.right_, np.ones(len(columns)), columns])

    def score(self, X: Any, y: npt.ArrayLike) -> float:
        """Return R². Computed from the labels: not private."""
        targets = plain_numbers(y, "y")
        residual, total = np.sum((targets - self.predict(X)) ** 2), np.sum((targets - targets.mean()) ** 2)
        return float(1.0 - residual / total) if total > 0 else float("nan")

    def public_arrays(self) -> dict[str, Array]:
        """Return the factors of M; all of it is public."""
        self._check_fitted()
        matrix = LowRank(self.left_, self.singular_values_, self.right_)
        return _public(matrix, self.intercept_, (self.row_effects_, self.column_effects_))

    def take_public_arrays(self, arrays: Mapping[str, Array]) -> None:
        """Set what :meth:`public_arrays` returned."""
        self.left_, self.singular_values_, self.right_ = arrays["left"], arrays["singular_values"], arrays["right"]
        self.intercept_ = float(arrays["intercept"][0])
        self.row_effects_, self.column_effects_ = arrays["row_effects"], arrays["column_effects"]

    def folder_parameters(self) -> dict[str, Any]:
        """Return the parameters a model folder keeps; for one covariance per observation, their mean, which is used."""
        kept = super().folder_parameters()
        return {**kept, "covariance": np.mean(self.covariance, axis=0)} if np.ndim(self.covariance) == 3 else kept

    def __sklearn_tags__(self) -> Any:
        """Return scikit-learn's tags: a regressor."""
        return with_type(super().__sklearn_tags__(), classifies=False)

    def _public_config(self, sizes: Mapping[str, Any]) -> dict[str, Any]:
        config = super()._public_config(sizes)
        return {**config, "covariance": plain_parameter(self.folder_parameters()["covariance"])}

    def _unit_of_privacy(self) -> Unit:
        if self.unit == "user":
            return Unit.USER
        return Unit.LABEL if self.privacy == "labels" and self.mode == "auto" else Unit.ROW

    def _unit(self, population: Population) -> Unit:
        return self._unit_of_privacy()

    def _procedure(self, population: Population, budget: Budget) -> Procedure:
        design, rank = self._design(population), None if self.rank == "auto" else int(self.rank)
        covariance = checked_covariance(self.covariance, design, lambda: population.n_rows)
        if self.mode == "paper":
            assert rank is not None
            paper = self._paper_settings(covariance)
            return Procedure(
                paper.events(),
                lambda federation: _public(paper_trace.learn(federation, paper, design, rank), 0.0),
            )
        known = self._known(population, design, covariance)
        settings = self._settings(design, budget.unit, covariance, has_middle=known.middle is not None)
        if self.steps is None:
            units = population.n_users if budget.unit is Unit.USER else population.n_rows
            settings = settings.readable(budget, units)
        plan = settings.plan(budget)

        def learn(federation: Federation) -> dict[str, Array]:
            public = known.energies(), known.energy_along(), known.middle
            found = trace_regression.learn(federation, plan, settings, design, rank, *public)
            matrix = known.mapped_back(found.matrix)
            return _public(matrix, found.intercept, found.effects)

        return Procedure(settings.events(plan), learn, rows=known.rows)

    def _known(self, population: Population, design: Design, covariance: Array | None) -> PublicDesign | KnownMoments:
        """Return public data about the design: X itself (if only labels are protected), or the given moments."""
        given = None if self.center is None or isinstance(self.center, str) else checked_centre(self.center, design)
        if self._unit_of_privacy() is not Unit.LABEL:
            return KnownMoments(design, covariance, given, population)
        assert isinstance(population, LocalPopulation)
        return PublicDesign.of(
            population.cohort,
            design,
            flat=self.center is not None,
            middle=given,
            finds_middle=isinstance(self.center, str) and covariance is None,
        )

    def _settings(
        self, design: Design, unit: Unit, covariance: Array | None, *, has_middle: bool
    ) -> trace_regression.Settings:
        route = trace_regression.choose_start(design, unit) if self.start == "auto" else self.start
        start = StartSettings(
            "one-shot" if covariance is not None else route, seed=self.random_state, covariance=covariance
        )
        buys = covariance is None and unit is not Unit.LABEL
        centred = buys and unit is Unit.ROW and isinstance(self.center, str)
        centres = (1 if design.kind == "dense" else 2 - sum(design.hot)) if centred else 0
        return trace_regression.Settings(
            unit=unit,
            steps=trace_regression.STEPS if self.steps is None else self.steps,
            start=start,
            private_design=buys,
            centres=centres,
            private_level=(centres > 0 and design.kind == "dense") or has_middle,
            effects=centred and design.kind == "entries",
        )

    def _paper_settings(self, covariance: Array | None) -> paper_trace.Settings:
        if self.sensitivities is None:
            raise ValueError("paper mode takes sensitivities (Δ1, Δ2, Δl) as an input. See tacitly.theory.")
        first, second, third = (float(value) for value in self.sensitivities)
        return paper_trace.Settings(
            sensitivities=(first, second, third),
            epsilon=self.epsilon,
            delta=self.delta,
            steps=trace_regression.STEPS if self.steps is None else self.steps,
            seed=self.random_state,
            covariance=covariance,
        )

    def _statement(self, budget: Budget) -> Statement:
        return Statement(TRUST, notes=(NOTES[budget.unit],), nominal_epsilon=2 * self.epsilon)

    def _source(self, X: Any, y: Any, users: Any) -> Population:
        source = super()._source(X, y, users)
        return Observations(source.cohort, design=self._design_of(X)) if isinstance(source, LocalPopulation) else source

    def _cohort(self, X: Any, y: Any, users: Any) -> Cohort:
        has_ids = users is not None
        check_choices(self, has_ids or isinstance(X, Cohort), has_ids)
        unit = self._unit_of_privacy()
        policy = self._bad_rows(count_is_public=unit is not Unit.USER)
        rows = X
        if X is not None and not isinstance(X, Cohort):
            rows = self._rows(X, self._design_of(X), blank=policy != "raise" and unit is not Unit.LABEL)
            if unit is Unit.LABEL and not np.isfinite(rows).all():
                raise DataError("X must be finite numbers. Found others, in X that is public with privacy='labels'.")
        cohort: Cohort = read_cohort(rows, y, users, needs_users=self.unit == "user", on_bad_rows=policy)
        return bounded(cohort, self.max_observations if self.unit == "user" else None)

    def _design(self, population: Population) -> Design:
        return population.design if isinstance(population, Observations) else self._design_of(None)

    def _design_of(self, X: Any) -> Design:
        """Return the design, with the declared size of M or, for dense matrices, the size of X."""
        if self.shape is not None:
            first, second = (int(size) for size in self.shape)
            return Design(self.design, first, second)
        shape: tuple[int, ...] = np.shape(X) if X is not None and not isinstance(X, Cohort) else ()
        if self.design == "dense" and len(shape) == 3:
            return Design("dense", int(shape[1]), int(shape[2]))
        raise ValueError(f"design {self.design!r} needs shape=(d1, d2): the size of M is public and must be given.")

    def _rows(self, X: Any, design: Design, *, blank: bool = False) -> npt.NDArray[np.floating]:
        single = design.kind == "dense" and getattr(X, "dtype", None) == np.float32
        rows = plain_numbers(X, "X", np.float32 if single else np.float64, blank=blank)
        if not len(rows):
            raise DataError("X has no rows. Expected at least one observation.")
        if design.kind == "dense" and rows.ndim == 3:
            if rows.shape[1:] != (design.d1, design.d2):
                raise DataError(f"X must have matrices of {(design.d1, design.d2)}. Found {rows.shape[1:]}.")
            rows = rows.reshape(len(rows), -1)
        if rows.ndim != 2 or rows.shape[1] != design.n_features:
            raise DataError(
                f"X of design {design.kind!r} must have {design.n_features} columns. Found shape {rows.shape}."
            )
        return np.ascontiguousarray(rows)

    def _check_elsewhere(self) -> None:
        check_choices(self, True, False)
        if self.privacy == "labels" and self.mode == "auto":
            raise ValueError("privacy='labels' reads X, which is public then: give the rows to fit.")
        if self.max_observations is not None:
            raise ValueError("max_observations is for rows in this process. Drop surplus rows where they are kept.")

    def _check_population(self, population: Population) -> None:
        design = self._design(population)
        if population.n_features != design.n_features:
            raise DataError(
                f"design {self.design!r} with shape {(design.d1, design.d2)} has {design.n_features} columns. "
                f"Found {population.n_features}."
            )
        most = min(design.d1, design.d2)
        if self.rank == "auto" and self.mode != "paper":
            return
        if not (isinstance(self.rank, int | np.integer) and 1 <= self.rank <= most):
            raise ValueError(
                f"rank must be a whole number from 1 to min(d1, d2) = {most}, or 'auto'. Found {self.rank!r}."
            )


def _public(matrix: LowRank, intercept: float, effects: tuple[Array, Array] | None = None) -> dict[str, Array]:
    """Return a result as :meth:`TraceRegression.take_public_arrays` expects it."""
    rows, columns = (np.zeros(len(matrix.left)), np.zeros(len(matrix.right))) if effects is None else effects
    # Signs of singular vectors are arbitrary: the largest entry on the left is made positive, on every engine.
    rank = np.arange(matrix.left.shape[1])
    signs = np.where(matrix.left[np.argmax(np.abs(matrix.left), axis=0), rank] < 0, -1.0, 1.0)
    return {
        "left": matrix.left * signs,
        "singular_values": matrix.values,
        "right": matrix.right * signs,
        "intercept": np.array([intercept]),
        "row_effects": rows,
        "column_effects": columns,
    }
