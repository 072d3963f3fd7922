"""The estimator of FedPower (Guo et al. 2021): private SVD and PCA, with the interface of scikit-learn's PCA."""

from __future__ import annotations

import math
import secrets
import warnings
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, Self

import numpy as np

from tacitly.arrays import Array
from tacitly.data.cohort import Cohort
from tacitly.data.reading import read_cohort
from tacitly.data.sparse_cohort import SparseCohort
from tacitly.data.validation import DataError
from tacitly.federation.base import Federation
from tacitly.federation.engine import Population, engine_named
from tacitly.federation.local import LocalPopulation
from tacitly.methods.base import Procedure, Statement
from tacitly.methods.fedpower import algorithm as fedpower
from tacitly.methods.fedpower import as_printed as paper_fedpower
from tacitly.methods.fedpower import route as fedpower_route
from tacitly.methods.fedpower.fitted import Components
from tacitly.methods.fedpower.parameters import check_choices
from tacitly.methods.fedpower.refinement import FEATURES_PER_COMPONENT
from tacitly.methods.fedpower.spectrum import Spectrum, clear_confidence
from tacitly.methods.further_calls import Continued
from tacitly.methods.parameters import EngineParameter
from tacitly.privacy.calibration import Plan
from tacitly.privacy.guarantee import Budget, GaussianEvent, Sensitivity, TooFewUsersWarning, Unit

TRUST = {
    "central": "central: the process that adds the noise sees clipped contributions; all others see releases only.",
    "local": "local: every user adds the noise to its own message; nobody sees a contribution without noise.",
}
ROW_NOTE = (
    "the unit is one row: a user with several rows is protected less (the number of rows, and each user's number of "
    "rows, are public)"
)

_UNPROTECTED = GaussianEvent(sigma=0.0, sensitivity=Sensitivity.of_clip(1.0, acute=True))


class RowsAlone(LocalPopulation):
    """Rows without user ids: every row may be its own unit."""


class _Additive(Continued):
    """State that ``partial_fit`` keeps between calls. Not a dataclass, because none of it is a parameter."""

    _stream: fedpower.Stream | None = None
    _adding: bool = False
    _calls: int = 0
    _promise: tuple[Any, ...] = ()


@dataclass(eq=False, repr=False)
class ComponentsParameter:
    """The number of components, first."""

    n_components: int | str


@dataclass(eq=False, repr=False)
class FedPower(Components, _Additive, EngineParameter, ComponentsParameter):
    """Learn the top principal components of all users' rows under differential privacy.

    Parameters
    ----------
    n_components
        Number of components; ``"auto"`` keeps those that exceed the noise.
    unit
        The unit of privacy, ``"row"`` or ``"user"``. ``"auto"``: the user if ``users`` are given, else the row.
    center
        True: PCA, which subtracts the mean; the mean is released privately and paid from the budget. False: SVD of the
        rows as given.
    feature_range
        Public bounds (low, high) of the features: two numbers, or two sequences with one number per feature. None: the
        scale of the rows is released privately, paid from the budget.
    route
        ``"gram"``, ``"power"``, ``"device"``, ``"local-noise"``, or ``"auto"``: the route with the smallest predicted
        error.
    trust
        ``"central"``: noise is added to the sum. ``"local"``: every user (device) adds noise to its own message.
    mode
        ``"auto"``: the sound algorithm. ``"paper"``: the paper as printed, not certified, for comparison.
    rounds, local_steps, decay, iteration_rank, alignment
        For iterative routes: the number of noisy sums (default: the number with the smallest predicted error); the
        number of power steps between them; whether that number decreases from round to round (True or ``"subtract"``:
        by one, equation 3.15; ``"halve"``); the number of columns iterated (default: twice the components); and how
        local bases are aligned (``"procrustes"``, ``"signs"``, ``"none"``).
    iterations, epsilon_central, per_round
        Paper mode only: T, the total number of power steps (default rounds·local_steps; steps after the last
        communication get no noise, as printed); the server's ε₂ (default ε₁ = ``epsilon``); and whether both are the
        budget of one communication, as in Table 3, rather than of all of them.
    participants
        K, the number of devices (of m) that take part in a communication. Sound routes query public groups of K
        devices without replacement (scheme 2), one group after the other, each with the basis from the previous group.
        m/K communications are one round, in which every device answers once and pays once. In paper mode, K devices
        are drawn by ``scheme`` 1 or 2.
    sampling_rate
        Probability with which a user takes part in a release; who takes part is secret (unit user).
    random_state
        Seeds public randomness only: the start of power steps. Privacy noise cannot be seeded with it.
    epsilon, delta, adjacency, noise, noise_seed, ledger, run, threads, engine
        As for :class:`tacitly.PrivateFedRep`.

    Attributes
    ----------
    components_ : (n_components_, n_features)
    singular_values_, explained_variance_ : with the known noise subtracted; 0 if they do not exceed it. Variances are
        NaN for route ``"device"``, which does not release the number of rows
    explained_variance_ratio_, noise_variance_ : as in scikit-learn's PCA; NaN if no Gram matrix was released
    eigenvalues_ : of the released matrix, noise included (empty if there is none): see :meth:`plot_scree`
    bytes_sent_ : bytes that one device sends in all releases together, 8 per number
    confidence_ : estimated squared cosine between each component and the true one, for privacy noise only
    noise_floor_ : largest eigenvalue of the noise alone
    predicted_error_ : estimated sine of the angle to the truth; None if differences between devices also contribute
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

    _: KW_ONLY
    unit: str = "auto"
    center: bool = False
    feature_range: tuple[Any, Any] | None = None
    route: str = "auto"
    trust: str = "central"
    rounds: int | None = None
    local_steps: int = 1
    decay: bool | str = False
    iteration_rank: int | None = None
    alignment: str = "procrustes"
    participants: int | None = None
    scheme: int = 2
    sampling_rate: float = 1.0
    iterations: int | None = None
    epsilon_central: float | None = None
    per_round: bool = False
    run: str = "fedpower"

    _modes = ("auto", "paper")
    _paper_reasons = paper_fedpower.REASONS

    def fit(
        self, X: Any = None, y: Any = None, users: Any = None, *, on_release: Callable[[str], None] | None = None
    ) -> Self:
        """Learn the components.

        Parameters
        ----------
        X
            Rows (n_rows × n_features): an array, a table, a CSR matrix (kept sparse), or a Cohort, alone.
        y
            Ignored: there is no target. In scikit-learn's pipelines the second argument is one.
        users
            The id of the user (device, hospital) each row belongs to; None where every row is its own unit.
        on_release
            Called with the name of each release when it is out (for progress bars).
        """
        self._stream, self._adding, self._calls = None, False, 0
        super().fit(X, None, users, on_release=on_release)
        self._warn_if_hidden()
        return self

    def partial_fit(
        self, X: Any = None, y: Any = None, users: Any = None, *, on_release: Callable[[str], None] | None = None
    ) -> Self:
        """Update the model with further rows: their noisy Gram matrix is added to that of earlier calls.

        Every call costs the whole ``epsilon`` and is a run of its own in the ledger. The certificate adds up all calls,
        as if one user had rows in each. The loss of a user with rows in one call only is that of this call. Scale,
        centre and clip are those of the first call. A model that was saved and loaded starts anew.

        >>> import numpy as np, tacitly
        >>> rows = np.random.default_rng(0).normal(size=(3, 5000, 4)) * [3, 1, 1, 1]
        >>> model = tacitly.FedPower(1, epsilon=0.5)
        >>> for day in rows:
        ...     model = model.partial_fit(day)
        >>> 0.5 < model.certificate_.budget.epsilon < 1.5, bool(abs(model.components_[0, 0]) > 0.9)
        (True, True)
        """
        if self.mode == "paper" or self.route not in ("auto", "gram"):
            raise ValueError(
                f"partial_fit adds Gram matrices: route 'gram' or 'auto', not paper mode. Found {self.route!r}."
            )
        who = type(engine_named(self.engine)), self.noise_by
        promise = self.unit, self.trust, self._standing(self._budget()), who
        if self._calls and promise != self._promise:
            raise ValueError(
                "further calls must promise what the first did: the same unit and trust, noise of the same kind, the "
                "same engine, and a finite epsilon or none throughout. Start anew with fit()."
            )
        before = self.certificate_ if self._calls else None
        if before is not None:
            self._check_account(before)
        state = dict(self.__dict__)
        try:
            self._before, self._adding, self.run = before, True, f"{self.run}-{self._calls + 1}"
            super().fit(X, None, users, on_release=on_release)
            if before is not None:
                self.certificate_ = self._added_up(before)
        except BaseException:  # whatever stops a call, model and certificate remain those of the calls before
            self.__dict__.clear()
            self.__dict__.update(state)
            raise
        self._before, self._adding, self.run = None, False, state["run"]
        self._calls, self._promise = self._calls + 1, promise
        self._warn_if_hidden()
        return self

    def _warn_if_hidden(self) -> None:
        """Warn if no component exceeds the level that noise alone reaches once in a hundred times."""
        hidden = not (self.confidence_ > clear_confidence(self.n_features_in_)).any()
        if self.certificate_.mode in ("certified", "seeded") and hidden:
            warnings.warn(
                f"the privacy noise hides all {len(self.confidence_)} components: they cannot be distinguished from "
                f"noise. Route: {self.route_!r}. More units, a larger epsilon, unit='row', fewer local steps, or "
                "route='gram' with few features help.",
                TooFewUsersWarning,
                stacklevel=3,
            )

    def _public(self, found: Spectrum, route: str, groups: int = 1) -> dict[str, Array]:
        """Return a spectrum as :meth:`take_public_arrays` expects it."""
        known = max(found.n_rows - (1 if self.center else 0), 1.0) if found.n_rows > 0 else math.nan
        error = math.nan if found.predicted_error is None else found.predicted_error
        return {
            "components": found.components,
            "singular_values": np.sqrt(found.values),
            "explained_variance": found.values / known,
            "total_variance": np.array([found.total / known]),
            "eigenvalues": found.all_values,
            "groups": np.array([float(groups)]),
            "confidence": found.confidence,
            "mean": found.mean,
            "noise_floor": np.array([found.floor]),
            "predicted_error": np.array([error]),
            "route": np.frombuffer(route.encode(), dtype=np.uint8),
        }

    def _cohort(self, X: Any, y: Any, users: Any) -> Cohort | SparseCohort:
        by_row = self.mode != "paper" and (self.unit == "row" or (self.unit == "auto" and users is None))
        read: Cohort | SparseCohort = read_cohort(
            X,
            None,
            users,
            needs_target=False,
            needs_users=False,
            sparse=True,
            on_bad_rows=self._bad_rows(count_is_public=by_row),
        )
        return read

    def _source(self, X: Any, y: Any, users: Any) -> Population:
        source = super()._source(X, y, users)
        if isinstance(source, LocalPopulation) and users is None and not isinstance(X, Cohort | SparseCohort):
            return RowsAlone(source.cohort)
        return source

    def _describe(self, population: Population) -> None:
        super()._describe(population)
        self.target_name_ = None

    def _unit(self, population: Population) -> Unit:
        if self.mode == "paper":
            return Unit.USER
        if self.unit == "auto":
            return Unit.ROW if isinstance(population, RowsAlone) else Unit.USER
        return Unit(self.unit)

    def _procedure(self, population: Population, budget: Budget) -> Procedure:
        start = self._start()
        rank = None if self.n_components == "auto" else int(self.n_components)
        if self.mode == "paper":
            return Procedure(
                [_UNPROTECTED],
                lambda federation: self._public(self._as_printed(federation, rank or 1, start), "paper"),
                {"route_taken": "paper", "start": start},
            )
        settings = self._settings(population, budget, start)
        plan = settings.plan(budget)
        groups = population.n_users if settings.route == "local-noise" else settings.turns
        if self._adding:
            return Procedure(
                settings.events(plan),
                lambda federation: self._public(self._more(federation, plan, settings, rank), settings.route),
                {"route_taken": settings.route, "start": start, "call": self._calls + 1},
            )
        return Procedure(
            settings.events(plan),
            lambda federation: self._public(fedpower.learn(federation, plan, settings, rank), settings.route, groups),
            {"route_taken": settings.route, "start": start},
        )

    def _more(self, federation: Federation, plan: Plan, settings: fedpower.Settings, rank: int | None) -> Spectrum:
        found, self._stream = fedpower.learn_more(federation, plan, settings, rank, self._stream)
        return found

    def _statement(self, budget: Budget) -> Statement:
        notes = (ROW_NOTE,) if budget.unit is Unit.ROW else ()
        second = self.epsilon if self.epsilon_central is None else self.epsilon_central
        times = len(self._printed_settings().synchronisations()) if self.per_round else 1
        return Statement(TRUST[self.trust], notes=notes, nominal_epsilon=times * (self.epsilon + second))

    def _as_printed(self, federation: Federation, rank: int, start: int) -> Spectrum:
        matrices, sizes = paper_fedpower.device_matrices(federation)
        settings = self._printed_settings()
        basis = paper_fedpower.fed_power(matrices, sizes, rank, settings, start)
        pooled = np.einsum("i,ijk->jk", sizes, matrices)
        values, turn = np.linalg.eigh(basis.T @ pooled @ basis)
        components = (basis @ turn[:, ::-1]).T
        zero = np.zeros(len(pooled))
        return Spectrum(
            components, np.maximum(values[::-1], 0), np.full(rank, math.nan), zero, math.nan, sizes.sum(), None
        )

    def _printed_settings(self) -> paper_fedpower.Settings:
        return paper_fedpower.Settings(
            iterations=self.iterations if self.iterations is not None else (self.rounds or 10) * self.local_steps,
            local_steps=self.local_steps,
            decay=self.decay,
            alignment=self.alignment,
            iteration_rank=self.iteration_rank or 0,
            participants=self.participants,
            scheme=self.scheme,
            epsilon_local=self.epsilon,
            epsilon_central=self.epsilon if self.epsilon_central is None else self.epsilon_central,
            delta=self.delta,
            per_round=self.per_round,
        )

    def _start(self) -> int:
        """Return the seed of power steps: the parameter, that of the run to be resumed, or a random one."""
        if self.random_state is not None:
            return int(self.random_state)
        known = () if self.ledger is None else self.ledger.runs()
        resumed: Mapping[str, Any] = next((run.config for run in known if run.name == self.run), {})
        return int(resumed.get("start", secrets.randbits(32)))

    def _settings(self, population: Population, budget: Budget, start: int) -> fedpower.Settings:
        sparse = isinstance(population, LocalPopulation) and isinstance(population.cohort, SparseCohort)
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
        if self._adding:  # last: settings that need another route are refused before anybody is asked
            route = "gram"
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
            refined=route == "gram" and not self._adding and self._worth_refining(d),
            continues=self._adding and self._stream is not None,
            units=public["units"],
        )

    def _worth_refining(self, d: int) -> bool:
        """Return whether there are enough features per component for a second measurement along the components."""
        return self.n_components != "auto" and d >= FEATURES_PER_COMPONENT * int(self.n_components)

    def _range(self, d: int) -> tuple[Array | None, Array | None]:
        if self.feature_range is None:
            return None, None
        bounds = [np.asarray(bound, dtype=np.float64) for bound in self.feature_range]
        if len(bounds) != 2 or any(bound.shape not in ((), (d,)) for bound in bounds):
            raise ValueError(f"feature_range must be (low, high): two numbers, or two sequences of {d} numbers each.")
        low, high = bounds
        low, high = np.broadcast_to(low, (d,)), np.broadcast_to(high, (d,))
        if not (np.isfinite(low).all() and np.isfinite(high).all() and (low <= high).all() and (low < high).any()):
            raise ValueError("feature_range must be finite bounds, each low at most its high.")
        return np.array(low), np.array(high)

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_choices(self)

    def _check_population(self, population: Population) -> None:
        if self.unit == "user" and isinstance(population, RowsAlone):
            raise ValueError("unit='user' needs users: the id of the user each row belongs to.")
        if self._stream is not None and self._adding and self._stream.query.centre.size != population.n_features:
            raise DataError(
                f"X has {population.n_features} features, but {type(self).__name__} is expecting "
                f"{self._stream.query.centre.size} features as input: those of the first call."
            )
        d, wanted = population.n_features, self.n_components
        if wanted != "auto" and not (isinstance(wanted, int | np.integer) and 1 <= wanted <= d):
            raise ValueError(
                f"n_components must be 'auto' or a whole number from 1 to the number of features ({d}). "
                f"Found {wanted!r}."
            )
        if self.participants is not None and not 1 <= self.participants <= population.n_users:
            raise ValueError(
                f"participants must lie between 1 and the number of devices ({population.n_users}). "
                f"Found {self.participants!r}."
            )
