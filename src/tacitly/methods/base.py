"""The fit template: the steps that all private estimators share around their algorithms.

:meth:`PrivateModel.fit` reads top-down. Each method supplies the steps that differ:

* ``_check_parameters`` and ``_check_population`` raise on wrong parameters; they write no state;
* ``_cohort`` reads the data passed to ``fit``;
* ``_procedure`` decides settings, plans the releases and binds the algorithm (a :class:`Procedure`);
* ``take_public_arrays`` stores what was learned; ``_home_work`` and ``_take_heads`` define what users compute locally;
* ``_statement`` is what the certificate states besides the numbers.

Nothing in this module reads a private row.
"""

from __future__ import annotations

import math
import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self, cast

import numpy as np
import numpy.typing as npt

from tacitly.arrays import Array, Offsets, Rows
from tacitly.data.bad_rows import SideChannelWarning, check_policy
from tacitly.data.cohort import Cohort
from tacitly.data.fingerprint import rows_fingerprint
from tacitly.data.reading import read_cohort
from tacitly.federation.base import Federation
from tacitly.federation.engine import Engine, Population, engine_named
from tacitly.federation.local import LocalPopulation
from tacitly.methods.conventions import Conventions, not_fitted
from tacitly.methods.copies import Copies, name_of_copy
from tacitly.methods.parameters import PrivacyParameters
from tacitly.methods.progress import fit_progress
from tacitly.privacy.account import record, totals
from tacitly.privacy.certificate import NOT_COVERED, Certificate, large_delta
from tacitly.privacy.guarantee import Adjacency, Budget, Event, LargeDeltaWarning, UncertifiedWarning, Unit
from tacitly.privacy.ledger import Ledger, Run
from tacitly.privacy.people import People, key_name
from tacitly.privacy.signing import signed

NON_PRIVATE = "epsilon = inf: sums were released without noise"
TELLS = (
    "on_bad_rows='raise' tells whoever sees that fit fails something about private rows: a side channel that no ε "
    "covers. Use it to clean the data before a certified run, then on_bad_rows='drop'."
)
SEEDED = "noise came from a seed: whoever knows it can subtract the noise"

HomeWork = Callable[[Rows, Rows, Offsets], Array]
"""What users compute at home from their own rows and public numbers: one row per user, never released."""


@dataclass(frozen=True)
class Procedure:
    """What a fit will do, decided from parameters and public sizes before any user is queried.

    ``releases`` are the planned events. ``learn`` runs the algorithm on a federation and returns the public result as
    :meth:`PrivateModel.take_public_arrays` expects it. ``config`` holds further facts that a resumed run must share.
    ``rows`` returns the cohort that queries see, if a public map changes the rows first.
    """

    releases: Sequence[Event]
    learn: Callable[[Federation], Mapping[str, npt.NDArray[Any]]]
    config: Mapping[str, Any] = field(default_factory=dict)
    rows: Callable[[], Cohort] | None = None


@dataclass(frozen=True)
class Statement:
    """What a certificate states besides the numbers.

    ``trust`` states who sees what if all users are in this process; ``nominal_epsilon`` is what the paper claims, in
    paper mode.
    """

    trust: str
    notes: tuple[str, ...] = ()
    not_covered: tuple[str, ...] = ()
    nominal_epsilon: float | None = None


class Fitted:
    """An estimator that raises scikit-learn's ``NotFittedError`` until its learned attribute is there."""

    _learned: ClassVar[str]

    def _check_fitted(self) -> None:
        if not hasattr(self, self._learned):
            raise not_fitted(f"this {type(self).__name__} is not fitted yet. Call fit first.")


class PrivateModel(Fitted, PrivacyParameters, Conventions):
    """Base class of all private estimators.

    A subclass is a dataclass whose fields are its parameters (:mod:`tacitly.methods.parameters`).
    """

    certificate_: Certificate
    users_: npt.NDArray[Any]
    feature_names_in_: npt.NDArray[Any]
    n_features_in_: int
    target_name_: str | None = None
    user_column_: str | None = None
    account_notes: tuple[str, ...] = ()
    """What is known of these people's other accounts; stated in the certificate."""

    trust: str = "central"
    engine: Engine | str | None = None

    # Ids of users travel with the rows through scikit-learn's pipelines and searches, where routing is switched on.
    __metadata_request__fit: ClassVar[dict[str, bool]] = {"users": True}
    _copies: Copies | None = None

    _modes: tuple[str, ...] = ("auto",)
    _paper_reasons: tuple[str, ...] = ()
    """Why paper mode cannot be certified; none where it can."""

    def fit(
        self, X: Any = None, y: Any = None, users: Any = None, *, on_release: Callable[[str], None] | None = None
    ) -> Self:
        """Learn the shared part privately, then let users compute their personal parts locally.

        Parameters
        ----------
        X
            Rows of features (n_rows × n_features), in any order; or a :class:`~tacitly.data.cohort.Cohort`, without
            further arguments; or None if the ``engine`` has the rows.
        y
            The target of each row.
        users
            The id of the user each row belongs to.
        on_release
            Called with the name of each completed release. Without it, a line on standard error shows the progress of
            a long fit.
        """
        source, budget, procedure = self._prepare(X, y, users)
        population = self._placed(source, procedure)
        units = population.n_users if budget.unit is Unit.USER else population.n_rows
        sizes = {"n_units": units, "n_features": source.n_features}
        run = self._open(budget, procedure.releases, {**sizes, **procedure.config}, source)
        with abandoned_on_failure(run), self._watching(budget, procedure.releases, on_release) as told:
            federation = self._federation(population, run, told)
            learned = procedure.learn(federation)
            self._describe(source)
            self.take_public_arrays(learned)
            self._work_at_home(federation, population)
        self._certify(run, budget, units, population.trust)
        return self

    def _watching(
        self, budget: Budget, events: Sequence[Event], on_release: Callable[[str], None] | None
    ) -> AbstractContextManager[Callable[[str], None] | None]:
        """Return what is told of each release while it is open: whom the caller named, else a line of progress."""
        return fit_progress(budget, events) if on_release is None else nullcontext(on_release)

    def planned_releases(self, cohort: Cohort | None = None) -> int:
        """Return how many releases ``fit(cohort)`` will make; pass None if the engine has the rows."""
        return len(self.plan(cohort)[1])

    def plan(self, cohort: Cohort | None = None) -> tuple[Budget, Sequence[Event]]:
        """Return the budget that ``fit(cohort)`` asks for, and the events of its releases."""
        _, budget, procedure = self._prepare(cohort, None, None)
        return budget, procedure.releases

    def close(self) -> None:
        """Finish the run in its ledger, as ``save`` does: a finished run cannot be resumed."""
        run = self.__dict__.pop("_run", None)
        if run is not None:
            run.finish()

    def certify(self, **words: Any) -> Certificate:
        """Record what the certificate states (with these fields changed) in the account, if there is one; sign it."""
        certificate = replace(self.certificate_, **words)
        run = self.__dict__.get("_run")
        if isinstance(self.ledger, Ledger) and isinstance(run, Run):
            about = {key: value for key, value in self.ledger.about.items() if key in ("curator", "purpose", "region")}
            unsaid: dict[str, Any] = {key: text for key, text in about.items() if getattr(certificate, key) is None}
            certificate = record(replace(certificate, **unsaid), self.ledger, run.name)
        self.certificate_ = signed(certificate)
        return self.certificate_

    def evaluate(self, X: Any, y: Any, users: Any, *, epsilon: float, **options: Any) -> Any:
        """Return a mean loss that may be published, charged with ``epsilon`` to the account.

        See :func:`tacitly.methods.evaluation.evaluate` for ``bound`` (required if the target is a number), ``delta``
        and ``ledger``. Pass held-out rows: on training rows, the loss would be too small.
        """
        from tacitly.methods.evaluation import evaluate

        return evaluate(self, X, y, users, epsilon=epsilon, **options)

    def __sklearn_clone__(self) -> Self:
        """Return an unfitted copy whose fits are on the same account."""
        copied: Self = super().__sklearn_clone__()
        copied._copies = self.__dict__.setdefault("_copies", Copies())
        return copied

    def __getstate__(self) -> dict[str, Any]:
        """Return what other processes get: their copies have an account of their own."""
        state = cast(dict[str, Any], super().__getstate__())
        if "_copies" not in state:
            return state
        return state | {"_copies": Copies(apart=True) if self.ledger is not None else state["_copies"].sent()}

    @abstractmethod
    def public_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return everything that was learned and is public: the billboard."""

    @abstractmethod
    def take_public_arrays(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Set what :meth:`public_arrays` returned; no user has a private part yet."""

    def private_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return what stays with the users, in the order of ``users_``; empty if a model has no heads."""
        return {}

    def take_private_arrays(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Set what :meth:`private_arrays` returned; ``users_`` are set already."""

    @property
    def folder_class(self) -> str:
        """The name of this kind of model in a model folder."""
        return type(self).__name__

    def folder_parameters(self) -> dict[str, Any]:
        """Return the parameters a model folder keeps: plain values that mean something later."""
        left_out = {"ledger", "threads", "engine", "on_bad_rows"}
        return {key: value for key, value in self.get_params(deep=False).items() if key not in left_out}

    @property
    def audit_labels(self) -> tuple[float, float] | None:
        """Two targets that an auditor's users may have, where not every number is allowed."""
        return None

    def as_asked(self, cohort: Cohort) -> Cohort:
        """Return the cohort as queries see it: labels as numbers, rows after a public map."""
        return cohort

    def for_site(self, cohort: Cohort) -> Cohort:
        """Return a site's cohort as the work on heads sees it that travels there."""
        return self.as_asked(cohort)

    def _check_parameters(self) -> None:
        """Raise on parameters that are wrong whatever the data are."""
        if self.mode not in self._modes:
            allowed = f"one of {self._modes}" if len(self._modes) > 1 else repr(self._modes[0])
            raise ValueError(f"mode must be {allowed}. Found {self.mode!r}.")

    def _check_population(self, population: Population) -> None:
        """Raise on parameters that do not suit the population, by what is public about it."""

    def _check_elsewhere(self) -> None:
        """Raise on parameters that need rows in this process, where the engine holds them."""

    def _cohort(self, X: Any, y: Any, users: Any) -> Any:
        """Read what fit was given."""
        return read_cohort(X, y, users, on_bad_rows=self._bad_rows())

    def _bad_rows(self, *, count_is_public: bool = False) -> str:
        """Return what becomes of rows that cannot be used (:mod:`tacitly.data.bad_rows`)."""
        return "blank" if count_is_public and self.on_bad_rows == "drop" else self.on_bad_rows

    def _unit(self, population: Population) -> Unit:
        """Return whose data one unit of privacy is."""
        return Unit.USER

    @abstractmethod
    def _procedure(self, population: Population, budget: Budget) -> Procedure:
        """Decide settings, plan the releases, bind the algorithm."""

    def _home_work(self) -> HomeWork | None:
        """Return what users compute at home once the public part is known; None for nothing."""
        return None

    def _take_heads(self, heads: Array) -> None:
        """Keep what users computed at home, one row per user."""

    @abstractmethod
    def _statement(self, budget: Budget) -> Statement:
        """Return what the certificate states besides the numbers."""

    @property
    def _federation_threads(self) -> int | None:
        """Number of threads the federation uses; None for all cores."""
        return self.threads

    def _prepare(self, X: Any, y: Any, users: Any) -> tuple[Population, Budget, Procedure]:
        """Check, read and plan; no run is open yet and no user was asked anything."""
        self._check_parameters()
        check_policy(self.on_bad_rows, ("drop", "raise"))
        if self.on_bad_rows == "raise" and not self._standing(self._budget())[1]:
            warnings.warn(TELLS, SideChannelWarning, stacklevel=3)
        source = self._source(X, y, users)
        self._check_population(source)
        budget = self._budget(self._unit(source))
        return source, budget, self._procedure(source, budget)

    def _source(self, X: Any, y: Any, users: Any) -> Population:
        """Return the users that fit was given, in this process or where the engine keeps them."""
        engine = engine_named(self.engine)
        if X is None and engine is not None:
            self._check_elsewhere()
            return engine.population(None)
        return LocalPopulation(self._cohort(X, y, users))

    def _placed(self, source: Population, procedure: Procedure) -> Population:
        """Return the users where they will be asked: spread over the engine, rows as queries see them."""
        if not isinstance(source, LocalPopulation):
            return source
        cohort = source.cohort if procedure.rows is None else procedure.rows()
        engine = engine_named(self.engine)
        return LocalPopulation(cohort) if engine is None else engine.population(cohort)

    def _federation(self, population: Population, run: Run, on_release: Callable[[str], None] | None) -> Federation:
        return population.federation(
            run,
            noise=self.noise,
            noise_seed=self.noise_seed,
            on_release=on_release,
            threads=self._federation_threads,
            trust=self.trust,
        )

    def _describe(self, population: Population) -> None:
        self.n_features_in_ = population.n_features
        self.feature_names_in_ = np.array(population.feature_names, dtype=str)
        self.target_name_ = population.target_name

    def _work_at_home(self, federation: Federation, population: Population) -> None:
        """Let users compute their own part; keep it where it does not stay with them."""
        work = self._home_work()
        heads = None if work is None else federation.users_map(work)
        if heads is not None:
            self._take_heads(heads)
            self.users_ = np.asarray(population.users)

    def _budget(self, unit: Unit = Unit.USER) -> Budget:
        return Budget(epsilon=self.epsilon, delta=self.delta, adjacency=Adjacency(self.adjacency), unit=unit)

    def _open(self, budget: Budget, planned: Sequence[Event], sizes: Mapping[str, Any], source: Population) -> Run:
        """Open (or resume) the run; warn if what follows cannot be certified, or has a δ that promises nothing."""
        self._check_noise(budget, planned)
        _, reasons = self._standing(budget)
        if reasons:
            warnings.warn(f"not certified: {'; '.join(reasons)}", UncertifiedWarning, stacklevel=3)
        elif large := large_delta(budget.delta, int(sizes["n_units"])):
            warnings.warn(large, LargeDeltaWarning, stacklevel=3)
        account = self._account(certified=not reasons)
        ledger = account if account is not None else Ledger(ceiling=None if reasons else budget)
        rows, people = self._who(budget.unit, source)
        config = {**self._public_config(sizes), **rows}
        more = {} if people is None else {"people": people}
        name = self.run
        if self._copies is not None:
            name = name_of_copy(self.run)
            if not reasons:
                self._copies.count(budget.epsilon)
        return ledger.run(name, config=config, planned=planned, certified=not reasons, **more)

    def _account(self, *, certified: bool) -> Ledger | None:
        """Return the ledger of this fit, if others are on it: the one given, or that of an estimator's copies."""
        if self.ledger is not None or self._copies is None:
            return self.ledger
        return self._copies.account(certified=certified)

    def _who(self, unit: Unit, source: Population) -> tuple[dict[str, str], People | None]:
        """Return keyed fingerprints of rows and users, for a ledger that others runs share; nothing for one's own.

        A resumed run must have the same rows. Where a row is the unit, the table as a whole stands for its people.
        """
        if not isinstance(self.ledger, Ledger) or source.users is None:
            return {}, None
        secret = self.ledger.secret
        rows = source.fingerprint(secret)
        who = source.users if unit is Unit.USER else [f"rows {rows}"]
        return {"data": f"{key_name(secret)}:{rows}"}, People.of(who, secret)

    def _check_noise(self, budget: Budget, planned: Sequence[Event]) -> None:
        """Raise where nodes are to add the noise and cannot: a node's ledger counts noisy sums of users."""
        if self.noise_by == "central":
            return
        if budget.unit is not Unit.USER:
            raise ValueError(
                f"nodes that add the noise protect whole users (unit user). Found unit {budget.unit} and trust "
                f"{self.noise_by!r}: use trust 'central'."
            )
        if not all(event.private for event in planned):
            raise ValueError(f"nodes that add the noise never send sums without noise. Found trust {self.noise_by!r}.")

    @property
    def noise_by(self) -> str:
        """Who adds the noise: this process or a coordinator ("central"), or the nodes of an engine."""
        return str(getattr(self.engine, "how", "central"))

    def _certify(self, run: Run, budget: Budget, units: int, engine_trust: str | None) -> None:
        """State what was released; close the run unless a ledger was given, whose owner closes it."""
        mode, reasons = self._standing(budget)
        statement, account = self._statement(budget), self._account(certified=not reasons)
        if self.ledger is None and self._copies is not None and self._copies.apart:
            account = None  # its sum need not be that of all fits
        self.certificate_ = Certificate(
            algorithm=type(self).__name__,
            mode=mode,
            budget=budget,
            releases=tuple(run.releases),
            n_users=units,
            trust=self._stated_trust(budget, engine_trust),
            reasons=reasons,
            nominal_epsilon=statement.nominal_epsilon if mode == "paper" else None,
            notes=(*statement.notes, *self.account_notes),
            not_covered=(*statement.not_covered, *NOT_COVERED),
            account=totals(account, budget) if isinstance(account, Ledger) else None,
        )
        self._run = run
        if self.ledger is None:
            self.close()

    def _stated_trust(self, budget: Budget, engine_trust: str | None) -> str:
        """Return who sees what; where users add noise to their own messages, whoever runs the engine."""
        own = self._statement(budget).trust
        return own if self.trust == "local" else engine_trust or own

    def _standing(self, budget: Budget) -> tuple[str, tuple[str, ...]]:
        """Return the certificate's mode, and the reasons why the run cannot be certified."""
        mode = "non-private" if not budget.private else "certified" if self.noise_seed is None else "seeded"
        reasons = {"non-private": (NON_PRIVATE,), "seeded": (SEEDED,)}.get(mode, ())
        if self.mode == "paper" and self._paper_reasons:
            return "paper", (*reasons, *self._paper_reasons)
        return mode, reasons

    def _public_config(self, sizes: Mapping[str, Any]) -> dict[str, Any]:
        """Return what a resumed run must have in common with the one it resumes."""
        left_out = {"ledger", "run", "threads", "noise_seed", "engine"}
        parameters = {key: value for key, value in self.get_params(deep=False).items() if key not in left_out}
        return {
            "algorithm": type(self).__name__,
            **sizes,
            # Where the rows are may change between attempts; who adds the noise is part of what was promised.
            "noise_by": self.noise_by,
            **{key: plain_parameter(value) for key, value in parameters.items()},
        }


def people_of(cohort: Any, unit: Unit, secret: bytes) -> People:
    """Return who is behind a cohort; where a row is the unit, the table as a whole stands for its people."""
    return People.of(cohort.users if unit is Unit.USER else [f"rows {rows_fingerprint(cohort, secret)}"], secret)


@contextmanager
def abandoned_on_failure(run: Run) -> Iterator[None]:
    """Give the run up if what follows fails, so that calling the same fit again resumes it."""
    try:
        yield
    except BaseException:
        run.abandon()
        raise


def plain_parameter(value: Any) -> Any:
    """Return a parameter as the ledger can hold it."""
    if isinstance(value, float) and math.isinf(value):
        return "inf"
    if isinstance(value, tuple | list | range):
        return [plain_parameter(item) for item in value]
    return value.tolist() if hasattr(value, "tolist") else value  # NumPy's, pandas' and Arrow's
