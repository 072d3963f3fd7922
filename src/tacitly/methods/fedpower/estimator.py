"""Private SVD and PCA as an estimator: scikit-learn's PCA manners, one budget, one certificate."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse

from tacitly.arrays import Array
from tacitly.data.cohort import Cohort
from tacitly.data.sparse_cohort import SparseCohort
from tacitly.data.validation import DataError
from tacitly.federation.base import Federation
from tacitly.federation.engine import Engine, Population
from tacitly.federation.local import LocalPopulation
from tacitly.methods.base import PrivateModel, abandoned_on_failure
from tacitly.methods.fedpower import algorithm as fedpower
from tacitly.methods.fedpower import as_printed as paper_fedpower
from tacitly.methods.fedpower import route as fedpower_route
from tacitly.methods.fedpower.spectrum import Spectrum
from tacitly.privacy.guarantee import Budget, GaussianEvent, Sensitivity, Unit
from tacitly.privacy.ledger import Ledger

TRUST = {
    "central": "central: the process that adds the noise sees clipped contributions; all others see releases only.",
    "local": "local: every user adds the noise to its own message; nobody sees a contribution without noise.",
}
ROW_NOTE = "the unit is one row: who has several is protected less (the number of rows, and of each user's, is public)"

_LEARNED = ("components", "singular_values", "explained_variance", "confidence", "mean")
_UNPROTECTED = GaussianEvent(sigma=0.0, sensitivity=Sensitivity.of_clip(1.0, acute=True))


class FedPower(PrivateModel):
    """Top principal components of everybody's rows, under differential privacy.

    Parameters
    ----------
    n_components
        Number of components; ``"auto"`` keeps those that stand above the noise.
    epsilon, delta, adjacency
        The promise for everything that is released together. ``math.inf`` for none (not certified).
    unit
        ``"row"`` or ``"user"``: whose data are protected. ``"auto"``: the user if ``users`` are given, else the row.
    center
        Whether to subtract the mean, bought privately, and so to do PCA; False is the SVD of the rows as they are.
    feature_range
        Public bounds (low, high) of the features, numbers or one a feature. None buys the scale of rows instead.
    route
        ``"gram"``, ``"power"``, ``"device"``, ``"local-noise"``, or ``"auto"``: by predicted error.
    trust
        ``"central"``: noise on the sum. ``"local"``: every user (device) puts noise on its own message.
    mode
        ``"auto"``: sound. ``"paper"``: paper 001 as printed, not certified, to compare with.
    rounds, local_steps, decay, iteration_rank, alignment
        For routes that step: noisy sums (default: as many as have the least predicted error), power steps between
        them, whether those are halved from round to round, columns iterated (default twice the components), and how
        local bases are turned (``"procrustes"``, ``"signs"``, ``"none"``). In paper mode T = rounds·local_steps
        iterations.
    participants
        K devices of m that take part in a communication. Sound routes ask public groups of K, without replacement
        (scheme 2), one after the other, each about the basis that the last one left: m/K communications are a round,
        in which every device answers once and pays once. In paper mode: K, drawn by ``scheme`` 1 or 2.
    sampling_rate
        Chance with which a user takes part in a release, by a coin nobody sees (unit user).
    random_state
        Steers public randomness only: where power steps start. Privacy noise cannot be seeded with it.
    noise, noise_seed, ledger, run, threads, engine
        As for :class:`tacitly.PrivateFedRep`.

    Attributes
    ----------
    components_ : (n_components_, n_features)
    singular_values_, explained_variance_ : with the known noise subtracted; 0 where nothing stands above it. Variances
        are NaN on route ``"device"``, which does not release how many rows there are
    confidence_ : estimated squared cosine between each component and the true one, as far as noise goes
    noise_floor_ : largest eigenvalue of the noise alone
    predicted_error_ : estimated sine of the angle to the truth; None where devices' differences add to it unseen
    mean_ : zeros unless ``center``;  route_, n_components_, certificate_

    Examples
    --------
    >>> import numpy as np, tacitly
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(20_000, 8)) * [3, 2, 1, 1, 1, 1, 1, 1]
    >>> model = tacitly.FedPower(2, epsilon=1.0).fit(X)
    >>> tacitly.subspace_distance(model.components_.T, np.eye(8)[:, :2]) < 0.1
    True
    >>> model.certificate_.certified, model.transform(X).shape
    (True, (20000, 2))
    """

    _modes = ("auto", "paper")

    def __init__(
        self,
        n_components: int | str,
        epsilon: float,
        delta: float = 1e-6,
        adjacency: str = "zero-out",
        mode: str = "auto",
        random_state: int | None = None,
        *,
        unit: str = "auto",
        center: bool = False,
        feature_range: tuple[Any, Any] | None = None,
        route: str = "auto",
        trust: str = "central",
        rounds: int | None = None,
        local_steps: int = 1,
        decay: bool = False,
        iteration_rank: int | None = None,
        alignment: str = "procrustes",
        participants: int | None = None,
        scheme: int = 2,
        sampling_rate: float = 1.0,
        noise: str = "auto",
        noise_seed: int | None = None,
        ledger: Ledger | None = None,
        run: str = "fedpower",
        threads: int | None = None,
        engine: Engine | None = None,
    ) -> None:
        self.n_components = n_components
        self.epsilon = epsilon
        self.delta = delta
        self.adjacency = adjacency
        self.mode = mode
        self.random_state = random_state
        self.unit = unit
        self.center = center
        self.feature_range = feature_range
        self.route = route
        self.trust = trust
        self.rounds = rounds
        self.local_steps = local_steps
        self.decay = decay
        self.iteration_rank = iteration_rank
        self.alignment = alignment
        self.participants = participants
        self.scheme = scheme
        self.sampling_rate = sampling_rate
        self.noise = noise
        self.noise_seed = noise_seed
        self.ledger = ledger
        self.run = run
        self.threads = threads
        self.engine = engine

    def fit(
        self, X: Any = None, users: Any = None, *, y: Any = None, on_release: Callable[[str], None] | None = None
    ) -> FedPower:
        """Learn the components.

        Parameters
        ----------
        X
            Rows (n_rows × n_features): an array, a frame, a CSR matrix (never written out), or a Cohort, alone.
        users
            The id of the user (device, hospital) each row belongs to; None where every row stands for itself.
        y
            Ignored.
        on_release
            Called with the name of each release when it is out (for progress bars).
        """
        population = self._population(X, users)
        unit = self._unit(users is not None or X is None or isinstance(X, Cohort | SparseCohort))
        self._check_parameters(population)
        budget = self._budget(Unit.USER if self.mode == "paper" else unit)
        start = self._start()
        settings = self._settings(
            population, budget, start, sparse=scipy.sparse.issparse(X) or isinstance(X, SparseCohort)
        )
        plan = None if settings is None else settings.plan(budget)
        units = population.n_rows if unit is Unit.ROW else population.n_users
        run = self._open(
            budget,
            [_UNPROTECTED] if settings is None or plan is None else settings.events(plan),
            {
                "n_units": units,
                "n_features": population.n_features,
                "route_taken": "paper" if settings is None else settings.route,
                "start": start,
            },
        )
        with abandoned_on_failure(run):
            federation = population.federation(
                run,
                noise=self.noise,
                noise_seed=self.noise_seed,
                on_release=on_release,
                threads=self.threads,
                trust=self.trust,
            )
            rank = None if self.n_components == "auto" else int(self.n_components)
            if settings is None or plan is None:
                self._keep(self._as_printed(federation, rank or 1, start))
            else:
                self._keep(fedpower.learn(federation, plan, settings, rank))
        self.route_ = "paper" if settings is None else settings.route
        self.n_features_in_ = population.n_features
        self.feature_names_in_ = np.array(population.feature_names, dtype=str)
        self._certify(
            run,
            budget,
            units=population.n_rows if budget.unit is Unit.ROW else population.n_users,
            trust=population.trust if population.trust and self.trust == "central" else TRUST[self.trust],
            notes=(ROW_NOTE,) if budget.unit is Unit.ROW else (),
            nominal=2 * self.epsilon,
        )
        return self

    def transform(self, X: Any) -> Array:
        """Rows in the coordinates of the components. Computed from the rows given: not for publication."""
        self._check_fitted()
        rows = X if scipy.sparse.issparse(X) else np.asarray(self._named(X), dtype=np.float64)
        if rows.ndim != 2 or rows.shape[1] != self.n_features_in_:
            raise DataError(f"X must have {self.n_features_in_} columns, as at training. Found shape {rows.shape}.")
        return np.asarray(rows @ self.components_.T - self.mean_ @ self.components_.T)

    def inverse_transform(self, X: npt.ArrayLike) -> Array:
        """Rows from their coordinates, as far as the components reach."""
        self._check_fitted()
        return np.asarray(X, dtype=np.float64) @ self.components_ + self.mean_

    def fit_transform(self, X: Any, users: Any = None, *, y: Any = None) -> Array:
        """Fit, then transform the same rows."""
        rows: Array = self.fit(X, users).transform(X)
        return rows

    def public_arrays(self) -> dict[str, Array]:
        """Everything that was learned, all of it public, for the billboard."""
        self._check_fitted()
        error = math.nan if self.predicted_error_ is None else self.predicted_error_
        numbers = {"noise_floor": self.noise_floor_, "predicted_error": error}
        arrays = {name: np.asarray(getattr(self, f"{name}_"), dtype=np.float64) for name in _LEARNED}
        route = {"route": np.frombuffer(self.route_.encode(), dtype=np.uint8)}
        return arrays | {name: np.array([value]) for name, value in numbers.items()} | route

    def take_public_arrays(self, arrays: Mapping[str, Array]) -> None:
        """Set what :meth:`public_arrays` gave."""
        for name in _LEARNED:
            setattr(self, f"{name}_", arrays[name])
        self.noise_floor_, error = float(arrays["noise_floor"][0]), float(arrays["predicted_error"][0])
        self.predicted_error_ = None if math.isnan(error) else error
        self.route_ = bytes(arrays["route"].tolist()).decode()
        self.n_components_ = len(self.components_)

    def _keep(self, found: Spectrum) -> None:
        self.components_ = found.components
        self.n_components_ = len(found.components)
        self.singular_values_ = np.sqrt(found.values)
        known = found.n_rows - (1 if self.center else 0)
        self.explained_variance_ = found.values / known if known > 0 else np.full(len(found.values), math.nan)
        self.confidence_, self.noise_floor_ = found.confidence, found.floor
        self.predicted_error_, self.mean_ = found.predicted_error, found.mean

    def _as_printed(self, federation: Federation, rank: int, start: int) -> Spectrum:
        matrices, sizes = paper_fedpower.device_matrices(federation)
        settings = paper_fedpower.Settings(
            iterations=(self.rounds or 10) * self.local_steps,
            local_steps=self.local_steps,
            decay=self.decay,
            alignment=self.alignment,
            iteration_rank=self.iteration_rank or 0,
            participants=self.participants,
            scheme=self.scheme,
            epsilon_local=self.epsilon,
            epsilon_central=self.epsilon,
            delta=self.delta,
        )
        basis = paper_fedpower.fed_power(matrices, sizes, rank, settings, start)
        pooled = np.einsum("i,ijk->jk", sizes, matrices)
        values, turn = np.linalg.eigh(basis.T @ pooled @ basis)
        components = (basis @ turn[:, ::-1]).T
        zero = np.zeros(len(pooled))
        return Spectrum(
            components, np.maximum(values[::-1], 0), np.full(rank, math.nan), zero, math.nan, sizes.sum(), None
        )

    def _population(self, X: Any, users: Any) -> Population:
        if X is None and self.engine is not None:
            return self.engine.population(None)
        cohort = self._cohort(X, users)
        return LocalPopulation(cohort) if self.engine is None else self.engine.population(cohort)  # type: ignore[arg-type]

    def _cohort(self, X: Any, users: Any) -> Cohort | SparseCohort:
        if isinstance(X, Cohort | SparseCohort):
            return X
        if scipy.sparse.issparse(X):
            return SparseCohort.from_matrix(X, users)
        if users is None:
            shape = getattr(X, "shape", None) or (len(X),)
            return Cohort.from_offsets(X, None, np.array([0, shape[0]]))
        return Cohort.from_arrays(X, None, users)

    def _unit(self, has_users: bool) -> Unit:
        if self.unit == "auto":
            return Unit.USER if has_users else Unit.ROW
        if self.unit not in ("row", "user"):
            raise ValueError(f"unit must be 'row', 'user' or 'auto'. Found {self.unit!r}.")
        if self.unit == "user" and not has_users:
            raise ValueError("unit='user' needs users: the id of the user each row belongs to.")
        return Unit(self.unit)

    def _start(self) -> int:
        """Where power steps start: as asked for, as the run that is gone on with did, or anywhere."""
        if self.random_state is not None:
            return int(self.random_state)
        known = () if self.ledger is None else self.ledger.runs()
        begun: Mapping[str, Any] = next((run.config for run in known if run.name == self.run), {})
        return int(begun.get("start", secrets.randbits(32)))

    def _settings(
        self, population: Population, budget: Budget, start: int, *, sparse: bool
    ) -> fedpower.Settings | None:
        if self.mode == "paper":
            return None
        d, unit = population.n_features, budget.unit
        low, high = self._range(d)
        public = {
            "d": d,
            "units": population.n_rows if unit is Unit.ROW else population.n_users,
            "rank": 5 if self.n_components == "auto" else int(self.n_components),
            "messages": population.n_users if self.trust == "local" else 1,
        }
        route = self.route
        if route == "auto":
            route = fedpower_route.choose_route(budget, **public, local_steps=self.local_steps)
        if self.route == "auto" and (self.sampling_rate < 1 or self.participants is not None):
            route = "device" if self.local_steps > 1 else "power"
        if sparse and self.center and route == "power":
            raise ValueError("power steps of sparse rows are uncentred. Use center=False, or route='gram'.")
        return fedpower.Settings(
            unit=unit,
            route=route,
            centered=self.center,
            low=low,
            high=high,
            sparse=sparse,
            rounds=self.rounds if self.rounds is not None else fedpower_route.best_rounds(budget, **public),
            local_steps=self.local_steps,
            decay=self.decay,
            iteration_rank=self.iteration_rank or 0,
            alignment=self.alignment,
            turns=1 if self.participants is None else math.ceil(population.n_users / self.participants),
            sampling_rate=self.sampling_rate,
            seed=start,
        )

    def _range(self, d: int) -> tuple[Array | None, Array | None]:
        if self.feature_range is None:
            return None, None
        low, high = (np.asarray(bound, dtype=np.float64) for bound in self.feature_range)
        if low.shape not in ((), (d,)) or high.shape not in ((), (d,)):
            raise ValueError(f"feature_range must be two numbers, or two of {d} numbers each.")
        low, high = np.broadcast_to(low, (d,)), np.broadcast_to(high, (d,))
        if not (np.isfinite(low).all() and np.isfinite(high).all() and (low <= high).all() and (low < high).any()):
            raise ValueError("feature_range must be finite bounds, each low at most its high.")
        return np.array(low), np.array(high)

    def _standing(self, budget: Budget) -> tuple[str, tuple[str, ...]]:
        mode, reasons = super()._standing(budget)
        return (mode, reasons) if self.mode == "auto" else ("paper", (*reasons, *paper_fedpower.REASONS))

    def _check_parameters(self, population: Population) -> None:
        d, wanted = population.n_features, self.n_components
        if wanted != "auto" and not (isinstance(wanted, int | np.integer) and 1 <= wanted <= d):
            raise ValueError(
                f"n_components must be 'auto' or a whole number from 1 to the number of features ({d}). "
                f"Found {wanted!r}."
            )
        if self.mode not in self._modes:
            raise ValueError(f"mode must be one of {self._modes}. Found {self.mode!r}.")
        if self.mode == "paper" and wanted == "auto":
            raise ValueError("paper mode has no way to choose n_components. Give a number.")
        if self.mode == "paper" and self.center:
            raise ValueError("paper mode does not centre. Set center=False.")
        if self.participants is not None and not 1 <= self.participants <= population.n_users:
            raise ValueError(
                f"participants must lie between 1 and the number of devices ({population.n_users}). "
                f"Found {self.participants!r}."
            )
        if self.noise_by != "central" and (self.participants is not None or self.sampling_rate < 1):
            raise ValueError(f"to ask some users at a time needs trust 'central'. Found {self.noise_by!r}.")
        if self.scheme not in (1, 2):
            raise ValueError(f"scheme must be 1 or 2. Found {self.scheme!r}.")
        if self.scheme == 1 and self.mode != "paper" and self.participants is not None:
            raise ValueError(
                "scheme 1 draws devices with replacement, and who is drawn twice pays twice: it is for paper mode "
                "only. Use scheme=2, where every device answers once a round."
            )

    def _named(self, X: Any) -> Any:
        names = [str(name) for name in self.feature_names_in_]
        columns = getattr(X, "columns", None)
        return X[names] if columns is not None and set(names) <= {str(column) for column in columns} else X

    def _check_fitted(self) -> None:
        if not hasattr(self, "components_"):
            raise RuntimeError("this FedPower is not fitted yet. Call fit first.")
