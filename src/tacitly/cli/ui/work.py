"""The work behind the page's forms: read tables, plan, fit one model at a time, write reports.

Plans and fits run in their own threads, so that pages can be served meanwhile. A fit uses the functions of ``tacitly
fit``; only its progress is shown differently.
"""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tacitly.cli import console, reading
from tacitly.cli import fit as fitting
from tacitly.cli.accounts import opened_account
from tacitly.methods import REGISTRY
from tacitly.methods.options import labels

if TYPE_CHECKING:
    from tacitly.data.cohort import Cohort

EPSILONS = (0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0, 8.0, 10.0)
"""Positions of the slider."""
PLANNED = (0.1, 0.3, 1.0, 3.0, 10.0)
"""Values of ε for which the plan is simulated; between them the share is interpolated."""

KINDS = {"squared": "a number", "logistic": "one of several classes", "poisson": "a count: 0, 1, 2, …"}
"""Kinds of targets, by the loss that each is fitted with."""

_SUFFIXES = (".csv", ".tsv", ".txt", ".gz", ".parquet", ".arrow", ".feather")
DELTA = 1e-6


@dataclass(frozen=True)
class Order:
    """The content of the forms: a table, how its columns are used, and the budget."""

    path: str
    user: str
    target: str
    leave_out: tuple[str, ...] = ()
    epsilon: float = 1.0
    name: str = "model"
    loss: str = "squared"
    classes: tuple[Any, ...] = ()
    method: str = REGISTRY.default("fit").name

    @property
    def words(self) -> tuple[str, ...]:
        """The classes, if they are text; a fit then uses their positions."""
        return self.classes if self.classes and isinstance(self.classes[0], str) else ()

    @property
    def parameters(self) -> dict[str, Any]:
        """The method's parameters, as the plan simulates it; raise if the method cannot predict such a target."""
        shape = {"target": True, "loss": self.loss, "classes": len(self.classes), "directions": None}
        found = REGISTRY[self.method].simulated(shape)
        if isinstance(found, str):
            raise ValueError(f"method {self.method} does not fit here: {found}. Choose another one.")
        own = {"classes": tuple(range(len(self.words))) or self.classes} if self.classes else {}
        return {**found, **own}

    @classmethod
    def of(cls, fields: Iterable[tuple[str, str]]) -> Order:
        """Read a form; raise if a field is missing or invalid."""
        given: dict[str, list[str]] = {}
        for key, value in fields:
            given.setdefault(key, []).append(value)
        missing = [key for key in ("path", "user", "target") if not given.get(key, [""])[0]]
        if missing:
            raise ValueError(f"choose a table, the column with the user, and what to predict. Missing: {missing}.")
        if given["user"][0] == given["target"][0]:
            raise ValueError("the column with the user and the one to predict must be two columns.")
        loss = given.get("loss", ["squared"])[0]
        classes = tuple(labels(given.get("classes", [""])[0])) if loss == "logistic" else ()
        method = given.get("method", [cls.method])[0]
        if loss not in KINDS or method not in REGISTRY:
            raise ValueError(f"unknown type of target or unknown method. Found {loss!r} and {method!r}.")
        try:
            epsilon = float(given.get("epsilon", ["1"])[0])
        except ValueError:
            raise ValueError(f"ε must be a number. Found {given['epsilon'][0]!r}.") from None
        if not 0 < epsilon < math.inf:
            raise ValueError(f"ε must be positive and finite. Found {epsilon:g}.")
        return cls(
            given["path"][0],
            given["user"][0],
            given["target"][0],
            tuple(name for name in given.get("leave_out", ()) if name not in (given["user"][0], given["target"][0])),
            epsilon,
            given.get("name", ["model"])[0],
            loss,
            classes,
            method,
        )

    def fields(self) -> list[tuple[str, str]]:
        """Return the form's fields, without budget and name."""
        own = {"path": self.path, "user": self.user, "target": self.target, "loss": self.loss, "method": self.method}
        more = [("classes", ",".join(map(str, self.classes)))] if self.classes else []
        return [*own.items(), *more, *(("leave_out", name) for name in self.leave_out)]


@dataclass(frozen=True)
class Looked:
    """What is shown about a table before a fit, to the person who has the table."""

    users: int
    rows: int
    features: int
    columns: tuple[str, ...]
    kinds: tuple[str, ...]


PlanKey = tuple[int, int, int, str, int, str]
"""Users, rows per user, features, loss, number of classes, method: the inputs of a plan."""


@dataclass
class Job:
    """A fit that is running or finished."""

    order: Order
    planned: int = 0
    released: int = 0
    latest: str = "reading the table"
    spent: float = 0.0
    account: str = ""
    error: str = ""
    done: bool = False
    started: float = field(default_factory=time.monotonic)

    def state(self) -> dict[str, Any]:
        """Return the progress of the fit, as plain data."""
        return {
            "name": self.order.name,
            "epsilon": self.order.epsilon,
            "planned": self.planned,
            "released": self.released,
            "latest": self.latest,
            "spent": round(self.spent, 4),
            "account": self.account,
            "error": self.error,
            "done": self.done,
            "seconds": round(time.monotonic() - self.started, 1),
        }


class Desk:
    """The working folder, what is known about its tables, and the fits of this session."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._jobs: list[Job] = []
        self._cohorts: dict[tuple[str, ...], Cohort] = {}
        self._plans: dict[PlanKey, Any] = {}
        self._lock = threading.Lock()

    def tables(self) -> list[str]:
        """Return the tables in the folder."""
        files = (path for path in self._folder.iterdir() if path.is_file() and path.suffix.lower() in _SUFFIXES)
        return sorted(path.name for path in files)

    def models(self) -> list[str]:
        """Return the model folders in the folder."""
        return sorted(path.parent.name for path in self._folder.glob("*/billboard.safetensors"))

    def free_name(self) -> str:
        """Return a name for the next model."""
        taken, number = {path.name for path in self._folder.iterdir()}, 2
        name = "model"
        while name in taken:
            name, number = f"model-{number}", number + 1
        return name

    def columns(self, path: str) -> list[str]:
        """Return the names of a table's columns."""
        from tacitly.data.tables import open_table

        return [name for name in open_table(self._file(path)).types if name.strip()]

    def dates(self, path: str) -> tuple[str, ...]:
        """Return the columns that look like dates, which no method accepts."""
        from tacitly.data.kinds import dates_in
        from tacitly.data.tables import open_table

        return dates_in(open_table(self._file(path)))

    def look(self, order: Order) -> Looked:
        """Read a table and describe what a fit would learn from."""
        cohort = self._cohort(order)
        kinds = () if cohort.schema is None else tuple(_without_flags(line) for line in reading.kinds(cohort.schema))
        names = cohort.feature_names if cohort.schema is None else cohort.schema.names
        return Looked(cohort.n_users, cohort.n_rows, cohort.n_features, tuple(map(str, names)), kinds)

    def plan_of(self, order: Order, looked: Looked) -> Any:
        """Return the plan for a table of this shape, an error, or None while the simulation runs."""
        rows = max(1, round(looked.rows / looked.users))
        key = (looked.users, rows, looked.features, order.loss, len(order.classes), order.method)
        with self._lock:
            if key not in self._plans:
                self._plans[key] = None
                threading.Thread(target=self._simulate, args=(key,), daemon=True).start()
        return self._plans[key]

    def begin(self, order: Order) -> int:
        """Start a fit in its own thread; return its number."""
        if not order.name or order.name != Path(order.name).name or order.name.startswith("."):
            raise ValueError(f"a model's name must be the name of a new folder. Found {order.name!r}.")
        console.check_new(self._folder / order.name)
        with self._lock:
            if any(not job.done for job in self._jobs):
                raise ValueError("a model is being fitted. Wait until it is done.")
            self._jobs.append(Job(order))
        threading.Thread(target=self._fit, args=(self._jobs[-1],), daemon=True).start()
        return len(self._jobs)

    def job(self, number: int) -> Job:
        """Return a fit by its number."""
        if not 1 <= number <= len(self._jobs):
            raise ValueError(f"there is no fit number {number} in this session.")
        return self._jobs[number - 1]

    def report(self, name: str, edition: str) -> str:
        """Return a report: the public one of any model here, the private one of a model fitted in this session."""
        from tacitly.reporting import report

        if name not in self.models() or edition not in ("public", "private"):
            raise ValueError(f"there is no model {name!r} in this folder.")
        if edition == "public":
            return report(self._folder / name)
        order = next((job.order for job in self._jobs if job.order.name == name and job.done), None)
        if order is None:
            raise ValueError("the private edition needs the table: fit the model here, or tacitly report --table.")
        return report(self._folder / name, rows=self._cohort(order))

    def _file(self, path: str) -> Path:
        return self._folder / Path(path).expanduser()

    def _cohort(self, order: Order) -> Cohort:
        file = self._file(order.path)
        changed = str(file.stat().st_mtime_ns if file.exists() else 0)
        key = (str(file), changed, *(f"{name}={value}" for name, value in order.fields()))
        if key not in self._cohorts:
            columns = reading.Columns(order.user, order.target, None, order.leave_out, order.words)
            source = reading.opened(file, order.user, None, None)
            schema: dict[str, Any] | None = {} if REGISTRY[order.method].takes_schema else None
            cohort = reading.read_cohort(
                source, columns, schema, drop_missing=False, folder=None, method=REGISTRY[order.method]
            )
            _check_classes(order, cohort)
            self._cohorts = {key: cohort}
        return self._cohorts[key]

    def _simulate(self, key: PlanKey) -> None:
        users, rows, features, loss, classes, method = key
        asked: dict[str, Any] = {"loss": loss, **({"classes": classes} if classes else {})}
        try:
            from tacitly.planning import plan

            asked |= {"epsilons": PLANNED, "methods": [method], "repeats": 1}
            found = plan(users=users, rows=rows, features=features, **asked)
        except Exception as error:  # a plan is only advice: a fit is possible without it
            self._plans[key] = f"no plan: {error}"
        else:
            self._plans[key] = found

    def _fit(self, job: Job) -> None:
        order, out = job.order, self._folder / job.order.name
        try:
            method, parameters = REGISTRY[order.method], order.parameters
            fitting.check_budget(method, parameters, order.epsilon, DELTA, "zero-out")
            cohort = self._cohort(order)
            parameters |= {"schema": {}} if method.takes_schema else {}
            model = method.build(**parameters, epsilon=order.epsilon, delta=DELTA, adjacency="zero-out")
            fitting.check_targets(model, cohort)
            job.planned = model.planned_releases(cohort)
            with opened_account(model, cohort, None, out) as path:
                job.account = str(path)
                fitting.fit_and_save(model, cohort, order.user, order.words, out, _watched(job))
                job.spent = model.certificate_.epsilon
            job.latest = "done"
        except Exception as error:  # shown on the page, because exceptions of a thread are not reported otherwise
            job.error = str(error)
        job.done = True


def methods_of(loss: str) -> dict[str, str]:
    """Return the methods that predict a target of this kind, each with a one-line description."""
    shape = {"target": True, "loss": loss, "classes": 2, "directions": None}
    offered = REGISTRY.offered("fit").values()
    return {m.name: m.summary or m.about for m in offered if not isinstance(m.simulated(shape), str)}


def _check_classes(order: Order, cohort: Cohort) -> None:
    """Before anything is spent, raise if no row has a declared class, or if a count is negative."""
    from tacitly.heads.losses import Loss

    if cohort.y is None or order.loss == "squared":
        return
    codes = tuple(range(len(order.words))) or order.classes
    Loss(order.loss, codes or None).encode(cohort.y, blank=True)


def _without_flags(line: str) -> str:
    """Return a message about columns without the options that only the command has."""
    return re.sub(r" \(--[^)]*\)", "", line).strip()


def _watched(job: Job) -> Callable[[Any, Cohort], None]:
    """Return a function that fits a model and reports its progress to the page."""
    from tacitly.privacy.accounting import compose

    def fitted(model: Any, cohort: Cohort) -> None:
        budget, planned = model.plan(cohort)

        def released(name: str) -> None:
            count = job.released + 1
            spent = compose(list(planned[:count]), budget.adjacency, budget.delta)
            job.released, job.latest, job.spent = count, name, spent

        job.latest = "starting (the first fit on a machine compiles for half a minute)"
        model.fit(cohort, on_release=released)

    return fitted


def shares(plan: Any) -> Mapping[float, float]:
    """Return the share of what is possible at every position of the slider, interpolated in log ε."""
    import numpy as np

    found = [plan.line(epsilon).share for epsilon in PLANNED]
    between = np.interp(np.log(EPSILONS), np.log(PLANNED), found)
    return {epsilon: float(share) for epsilon, share in zip(EPSILONS, between, strict=True)}
