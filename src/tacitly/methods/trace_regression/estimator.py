"""Private low-rank trace regression, as a user sees it: matrix covariates, matrix completion, multi-task regression."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tacitly.arrays import Array
from tacitly.data.cohort import Cohort
from tacitly.data.validation import DataError
from tacitly.federation.engine import Engine, Population
from tacitly.federation.local import LocalPopulation
from tacitly.methods.base import PrivateModel, abandoned_on_failure
from tacitly.methods.trace_regression import algorithm as trace_regression
from tacitly.methods.trace_regression import as_printed as paper_trace
from tacitly.methods.trace_regression.curvature import Public
from tacitly.methods.trace_regression.designs import Design
from tacitly.methods.trace_regression.low_rank import LowRank
from tacitly.methods.trace_regression.parameters import check_choices
from tacitly.methods.trace_regression.public_design import (
    bounded,
    checked_centre,
    checked_covariance,
    energies,
    energy_along,
    flat_public,
    in_range,
    middle_of,
    quadratic,
)
from tacitly.methods.trace_regression.start import StartSettings, variances
from tacitly.privacy.guarantee import Budget, GaussianEvent, Unit
from tacitly.privacy.ledger import Ledger

TRUST = "central: the process that adds the noise sees clipped contributions; all others see releases only."
NOTES = {
    Unit.ROW: "the unit is one observation: who has several is protected less (the number of observations is public)",
    Unit.LABEL: (
        "the unit is one label: covariates X are public and shared by neighbouring data sets; who takes part, and with "
        "which X, is not protected"
    ),
    Unit.USER: "the unit is all of a user's observations together",
}


class TraceRegression(PrivateModel):
    """Estimate a low-rank matrix M from observations y = ⟨X, M⟩ + noise, under differential privacy.

    Parameters
    ----------
    rank
        Rank of M.
    epsilon, delta, adjacency
        The promise for everything that is released together. ``math.inf`` for none (not certified).
    mode
        ``"auto"``: sound. ``"paper"``: paper 002's algorithms with ``sensitivities`` as inputs, not certified.
    random_state
        Steers public randomness only: where the power method starts (and, in paper mode, its noise).
    unit
        ``"observation"`` or ``"user"``: whose data are protected.
    privacy
        ``"full"``: X and y. ``"labels"``: y alone; X is then public, and the design costs nothing.
    design
        ``"dense"``: X is (n, d1, d2). ``"entries"``: rows (i, j), matrix completion. ``"tasks"``: rows (task,
        features). ``"rank-one"``: rows (a, b), X = a bᵀ. Positions count from 0. A row with a position out of range
        adds nothing, and nothing is said about it: which rows those are is private.
    shape
        (d1, d2): public, so it has to be said, except where dense matrices show it.
    covariance
        Known covariance Λ of the design: (d1, d2) variances of the entries, or the whole (d1·d2)² matrix. None buys the
        energy of rows and columns instead. For dense designs and unit observation.
    center
        What X is counted from. ``"auto"``: its mean, where that matters; bought, unless X is public. For tasks and
        rank-one designs, features with a mean are made flat instead. (d1, d2) numbers: a mean of dense X that is known.
        None: zero. Not with a covariance, for unit observation only.
    max_observations
        For unit user: at most so many observations of each, evenly spaced; None for all (the clip bounds them anyway).
    steps
        Noisy gradient steps.
    start
        ``"one-shot"``, ``"power"`` or ``"auto"``: by predicted error.
    sensitivities
        Δ⁽¹⁾, Δ⁽²⁾ and Δ_l of paper mode; see :func:`tacitly.theory.paper_sensitivities`.
    noise, noise_seed, ledger, run, threads, engine
        As for :class:`tacitly.PrivateFedRep`.

    Attributes
    ----------
    left_, singular_values_, right_ : M = left_ · diag(singular_values_) · right_ᵀ; public
    coef_ : M, (d1, d2)
    intercept_ : what predictions add to ⟨X, M⟩: 0, except where X was counted from a centre
    noise_error_ : expected distance (Frobenius) that privacy noise alone has moved M by
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
        unit: str = "observation",
        privacy: str = "full",
        design: str = "dense",
        shape: tuple[int, int] | None = None,
        covariance: Any = None,
        center: Any = "auto",
        max_observations: int | None = None,
        steps: int = 8,
        start: str = "auto",
        sensitivities: tuple[float, float, float] | None = None,
        noise: str = "auto",
        noise_seed: int | None = None,
        ledger: Ledger | None = None,
        run: str = "trace-regression",
        threads: int | None = None,
        engine: Engine | None = None,
    ) -> None:
        self.rank = rank
        self.epsilon = epsilon
        self.delta = delta
        self.adjacency = adjacency
        self.mode = mode
        self.random_state = random_state
        self.unit = unit
        self.privacy = privacy
        self.design = design
        self.shape = shape
        self.covariance = covariance
        self.center = center
        self.max_observations = max_observations
        self.steps = steps
        self.start = start
        self.sensitivities = sensitivities
        self.noise = noise
        self.noise_seed = noise_seed
        self.ledger = ledger
        self.run = run
        self.threads = threads
        self.engine = engine

    def fit(
        self, X: Any = None, y: Any = None, users: Any = None, *, on_release: Callable[[str], None] | None = None
    ) -> TraceRegression:
        """Learn M.

        Parameters
        ----------
        X
            Observations as ``design`` says; or a :class:`~tacitly.data.cohort.Cohort` with a target whose features are
            such rows, alone (it may be larger than memory); or None where the ``engine`` knows where the rows are.
        y
            The label of every observation.
        users
            For unit user: the id of the user each observation belongs to.
        on_release
            Called with the name of each release when it is out (for progress bars).
        """
        elsewhere = X is None and self.engine is not None
        check_choices(self, elsewhere or users is not None or isinstance(X, Cohort), users is not None)
        unit, unit_of_x, maps, rows = self._unit_of_privacy(), 1.0, None, np.zeros((0, 0))
        if elsewhere:
            design, population = self._design(None), self._elsewhere()
            self._check_sizes(design)
        else:
            cohort, design = self._cohort(X, y, users)
            self._check_sizes(design)
            if unit is Unit.LABEL:
                cohort, unit_of_x = in_range(cohort, design)
                cohort, maps = flat_public(cohort, design) if self.center is not None else (cohort, None)
            rows = cohort.X
            population = LocalPopulation(cohort) if self.engine is None else self.engine.population(cohort)
        budget = self._budget(unit)
        middle = self._middle(rows, design, unit_of_x)
        settings, paper = self._settings(design, unit, middle is not None), self._paper_settings(design)
        plan = settings.plan(budget)
        units = population.n_users if unit is Unit.USER else population.n_rows
        planned: Sequence[GaussianEvent] = settings.events(plan) if paper is None else paper.events()
        run = self._open(budget, planned, {"n_units": units, "n_features": population.n_features})
        with abandoned_on_failure(run):
            federation = population.federation(
                run,
                noise=self.noise,
                noise_seed=self.noise_seed,
                on_release=on_release,
                threads=self.threads,
                trust="central",
            )
            if paper is None:
                known = (
                    self._energies(population, rows, design, middle),
                    self._along(population, rows, design, middle),
                    middle,
                )
                found = trace_regression.learn(federation, plan, settings, design, int(self.rank), *known)
                matrix = found.matrix if maps is None else found.matrix.mapped(*maps)
                self._keep(matrix.times(unit_of_x), unit_of_x * found.noise, found.intercept)
            else:
                self._keep(paper_trace.learn(federation, paper, design, int(self.rank)), np.nan, 0.0)
        self.n_features_in_ = population.n_features
        self.feature_names_in_ = np.array(population.feature_names, dtype=str)
        trust = population.trust or TRUST
        self._certify(run, budget, units=units, trust=trust, notes=(NOTES[unit],), nominal=2 * self.epsilon)
        return self

    @property
    def coef_(self) -> Array:
        """M, written out."""
        self._check_fitted()
        return np.asarray((self.left_ * self.singular_values_) @ self.right_.T)

    def predict(self, X: Any) -> Array:
        """Return ⟨X, M⟩ of every observation, and the intercept where there is one."""
        self._check_fitted()
        design = Design(self.design, len(self.left_), len(self.right_))
        fitted = design.fitted(self._rows(X, design), self.left_ * self.singular_values_, self.right_)
        return fitted + self.intercept_

    def score(self, X: Any, y: npt.ArrayLike) -> float:
        """Return the share of the labels' variance that predictions explain. Computed from the labels: not private."""
        targets = np.asarray(y, dtype=np.float64)
        wrong, all_of_it = np.sum((targets - self.predict(X)) ** 2), np.sum((targets - targets.mean()) ** 2)
        return float(1.0 - wrong / all_of_it) if all_of_it > 0 else float("nan")

    def public_arrays(self) -> dict[str, Array]:
        """Return the factors of M, all of it public."""
        self._check_fitted()
        return {
            "left": self.left_,
            "singular_values": self.singular_values_,
            "right": self.right_,
            "noise_error": np.array([self.noise_error_]),
            "intercept": np.array([self.intercept_]),
        }

    def take_public_arrays(self, arrays: Mapping[str, Array]) -> None:
        """Set what :meth:`public_arrays` gave."""
        found = LowRank(arrays["left"], arrays["singular_values"], arrays["right"])
        # Folders written before there was an intercept have none.
        self._keep(found, float(arrays["noise_error"][0]), float(arrays.get("intercept", np.zeros(1))[0]))

    def _keep(self, matrix: LowRank, noise: float, intercept: float) -> None:
        self.left_, self.singular_values_, self.right_ = matrix.left, matrix.values, matrix.right
        self.noise_error_, self.intercept_ = noise, intercept

    def _unit_of_privacy(self) -> Unit:
        if self.unit == "user":
            return Unit.USER
        return Unit.LABEL if self.privacy == "labels" and self.mode == "auto" else Unit.ROW

    def _settings(self, design: Design, unit: Unit, has_middle: bool) -> trace_regression.Settings:
        route = trace_regression.choose_start(design, int(self.rank), unit) if self.start == "auto" else self.start
        covariance = checked_covariance(self.covariance, design)
        start = StartSettings(
            "one-shot" if covariance is not None else route, seed=self.random_state, covariance=covariance
        )
        buys = covariance is None and unit is not Unit.LABEL
        centred = buys and unit is Unit.ROW and isinstance(self.center, str)
        centres = (1 if design.kind == "dense" else 2 - sum(design.hot)) if centred else 0
        return trace_regression.Settings(
            unit=unit,
            steps=self.steps,
            start=start,
            private_design=buys,
            centres=centres,
            private_level=(centres > 0 and design.kind == "dense") or has_middle,
        )

    def _paper_settings(self, design: Design) -> paper_trace.Settings | None:
        if self.mode != "paper":
            return None
        if self.sensitivities is None:
            raise ValueError("paper mode takes sensitivities (Δ1, Δ2, Δl) as an input. See tacitly.theory.")
        first, second, third = (float(value) for value in self.sensitivities)
        return paper_trace.Settings(
            sensitivities=(first, second, third),
            epsilon=self.epsilon,
            delta=self.delta,
            steps=self.steps,
            seed=self.random_state,
            covariance=checked_covariance(self.covariance, design),
        )

    def _elsewhere(self) -> Population:
        """Return where the rows are; refuse what would need to see them here."""
        assert self.engine is not None
        if self.privacy == "labels" and self.mode == "auto":
            raise ValueError("privacy='labels' reads X, which is public then: give the rows to fit.")
        if self.max_observations is not None:
            raise ValueError("max_observations is for rows that are here. Leave them out where the rows are.")
        population = self.engine.population(None)
        self._check_columns(self._design(None), population.n_features)
        return population

    def _middle(self, rows: npt.NDArray[Any], design: Design, unit_of_x: float) -> Array | None:
        """Return what X is counted from where that is public: said to be, or X itself is."""
        if not isinstance(self.center, str):
            return None if self.center is None else checked_centre(self.center, design) * unit_of_x
        return middle_of(rows, design) if self._unit_of_privacy() is Unit.LABEL and self.covariance is None else None

    def _energies(
        self, population: Population, rows: npt.NDArray[Any], design: Design, middle: Array | None
    ) -> tuple[Array, Array] | None:
        """Energies of the design by row and column where they are public: X itself is, or its covariance and n."""
        if self._unit_of_privacy() is Unit.LABEL:
            return energies(rows, design, middle)
        covariance = checked_covariance(self.covariance, design)
        if covariance is None:
            return None
        energy = population.n_rows * variances(covariance, (design.d1, design.d2))
        return energy.sum(axis=1), energy.sum(axis=0)

    def _along(
        self, population: Population, rows: npt.NDArray[Any], design: Design, middle: Array | None
    ) -> Public | None:
        """Σ⟨X, left·rightᵀ⟩² where it is public."""
        if self._unit_of_privacy() is Unit.LABEL:
            return lambda left, right: energy_along(rows, design, left, right, middle)
        covariance = checked_covariance(self.covariance, design)
        return (
            None
            if covariance is None
            else lambda left, right: population.n_rows * quadratic(covariance, left @ right.T)
        )

    def _cohort(self, X: Any, y: Any, users: Any) -> tuple[Cohort, Design]:
        if isinstance(X, Cohort):
            if X.y is None:
                raise ValueError("the cohort has no target. Build it with a target column.")
            design = self._design(None)
            self._check_columns(design, X.n_features)
            return bounded(X, self.max_observations if self.unit == "user" else None), design
        if y is None:
            raise ValueError("fit needs y next to X: the label of every observation.")
        design = self._design(X)
        rows = self._rows(X, design)
        if self.unit == "user":
            return bounded(Cohort.from_arrays(rows, y, users), self.max_observations), design
        return Cohort.from_offsets(rows, y, np.array([0, len(rows)])), design

    def _design(self, X: Any) -> Design:
        if self.shape is not None:
            first, second = (int(size) for size in self.shape)
            return Design(self.design, first, second)
        shape: tuple[int, ...] = np.shape(X) if X is not None else ()
        if self.design == "dense" and len(shape) == 3:
            return Design("dense", int(shape[1]), int(shape[2]))
        raise ValueError(f"design {self.design!r} needs shape=(d1, d2): the size of M is public, so it has to be said.")

    def _rows(self, X: Any, design: Design) -> npt.NDArray[np.floating]:
        rows = np.asarray(X)
        if rows.dtype != np.float32 or design.kind != "dense":
            rows = rows.astype(np.float64, copy=False)
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

    def _standing(self, budget: Budget) -> tuple[str, tuple[str, ...]]:
        mode, reasons = super()._standing(budget)
        return (mode, reasons) if self.mode == "auto" else ("paper", (*reasons, *paper_trace.REASONS))

    def _check_columns(self, design: Design, found: int) -> None:
        if found != design.n_features:
            raise DataError(
                f"design {self.design!r} with shape {(design.d1, design.d2)} has {design.n_features} columns. "
                f"Found {found}."
            )

    def _check_sizes(self, design: Design) -> None:
        most = min(design.d1, design.d2)
        if not (isinstance(self.rank, int | np.integer) and 1 <= self.rank <= most):
            raise ValueError(f"rank must be a whole number from 1 to min(d1, d2) = {most}. Found {self.rank!r}.")

    def _check_fitted(self) -> None:
        if not hasattr(self, "left_"):
            raise RuntimeError("this TraceRegression is not fitted yet. Call fit first.")
