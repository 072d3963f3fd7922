"""Private scores that may be published, and a private choice among models; both are charged to the account.

Every user has one loss in [0, 1]: the mean error over their rows. The error of a row is 0 or 1 for classes, and |y −
ŷ|/``bound`` (at most 1) for numbers. A row whose cells or target are not numbers has loss 1, so that no private cell
decides whether an exception or a warning is raised. Predictions are made locally, with the user's own head, and only
the results below are released. Predictions do not depend on other users' rows, not even in the last bit: if a score is
zero up to rounding, the last bit decides the class, and thereby a whole loss.

:func:`evaluate` releases the sum of these losses. Adjacency: zero-out or replace-one, unit user. Sensitivity: a user's
term p lies in [0, 1]. If it becomes zero, the sum changes by |p| ≤ 1. If it is replaced by q ∈ [0, 1], the sum changes
by |p − q| ≤ 1, which the acute bound √2 covers. Event: Gaussian. The number of users is public, so the mean is
post-processing.

:func:`choose` takes the model with approximately the smallest sum, through :meth:`Federation.select
<tacitly.federation.base.Federation.select>`: pure ε (:class:`~tacitly.privacy.guarantee.SelectionEvent`), whatever the
number of models.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from tacitly.arrays import Array, Rows
from tacitly.data.grouping import matrix
from tacitly.data.reading import dense, has_names, in_order, read_cohort
from tacitly.data.tables import is_frame
from tacitly.data.validation import DataError, alike, cells_of, plain_numbers
from tacitly.federation.base import Federation
from tacitly.federation.engine import Population
from tacitly.federation.local import LocalPopulation
from tacitly.federation.query import Query
from tacitly.federation.scores import Scores
from tacitly.portable import staged
from tacitly.privacy.account import record, totals
from tacitly.privacy.calibration import Phase, Plan
from tacitly.privacy.certificate import NOT_COVERED, Certificate
from tacitly.privacy.guarantee import Adjacency, Budget, Event, GaussianEvent, SelectionEvent, positive
from tacitly.privacy.ledger import Ledger, Run
from tacitly.privacy.people import People
from tacitly.privacy.signing import signed

if TYPE_CHECKING:  # models know how they are evaluated
    from tacitly.methods.base import PrivateModel

_NORMAL_95 = 1.959963984540054
FILE = "evaluation.json"
"""The result, in the folder of an evaluation; ``certificate.json`` is beside it."""

_TRUST = (
    "central: whoever runs this process holds the rows and the personal models, and adds the noise; everybody else "
    "sees the mean loss only."
)
UNPROTECTED = "what a score of this model tells about the rows it was fitted to, because the model is not certified"
"""Not covered by the certificate of a score: whatever the noise of the score, such a model may give users away."""
_UNREADABLE = "a user without a usable row counts with the largest loss"


@dataclass(frozen=True)
class _MeanLoss(Query):
    """A user's mean loss, in [0, 1]; rows hold the loss of each observation."""

    acute: ClassVar[bool] = True

    @property
    def coordinates(self) -> int:
        """One number."""
        return 1

    def contribution(self, X: Rows, y: Rows) -> Array:
        """Return the mean."""
        return np.asarray(np.clip(np.mean(X[:, :1], axis=0), 0.0, 1.0))


@dataclass(frozen=True)
class _ModelLosses(Scores):
    """A user's mean loss under each of several models; rows hold the losses of each observation."""

    models: int

    @property
    def coordinates(self) -> int:
        """One number for each model."""
        return self.models

    def losses(self, X: Rows, y: Rows) -> Array:
        """Return the means."""
        return np.asarray(np.mean(X[:, : self.models], axis=0))


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """A private mean loss over users, which may be published: estimate and 95 % interval, in the units of ``bound``.

    The interval covers the privacy noise and the sampling of users, whose losses in [0, bound] with mean m have a
    variance of at most m·(bound − m).
    """

    loss: float
    low: float
    high: float
    n_users: int
    epsilon: float
    delta: float
    adjacency: Adjacency
    run: str
    measure: str  # what the loss is, in words
    charged: bool  # whether an account adds it to what these users have spent
    bound: float = 1.0
    model: str | None = None  # SHA-256 of the model's billboard, if the model was saved
    certificate: Certificate | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return (
            f"{self.measure} {self.loss:.4g} (95 %: {self.low:.4g} to {self.high:.4g}), {self.n_users} users; "
            f"ε = {self.epsilon:g}, δ = {self.delta:g} ({self.adjacency}), run {self.run!r}"
            + ("" if self.charged else ", charged to no account (pass ledger=… to charge one)")
        )

    def to_json(self) -> str:
        """Return the result as JSON, without the certificate, which holds the SHA-256 of this text."""
        numbers = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "certificate"}
        return json.dumps(numbers, indent=2, ensure_ascii=False) + "\n"

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write ``evaluation.json`` and ``certificate.json`` to a new folder, for ``tacitly verify``."""
        target = Path(folder)
        assert self.certificate is not None
        if target.exists():
            raise FileExistsError(f"{target} exists already. Choose another folder, or remove it.")
        with staged(target) as staging:
            (staging / FILE).write_text(self.to_json(), encoding="utf-8")
            (staging / "certificate.json").write_text(self.certificate.to_json(), encoding="utf-8")
        return target


def evaluate(
    model: PrivateModel,
    X: Any,
    y: Any,
    users: Any,
    *,
    epsilon: float,
    bound: float | None = None,
    delta: float = 1e-6,
    ledger: Ledger | None = None,
) -> Evaluation:
    """Return the mean loss of a model's predictions over users, with (``epsilon``, ``delta``)-differential privacy.

    Larger errors than ``bound`` count as ``bound``, in the units of the target; it must not come from the data.
    ``ledger`` is the account to debit, by default the model's own. Without an account, no certificate includes the
    cost.
    """
    budget, event = planned(model, epsilon, delta)
    population = _losses([model], X, y, users, bound)
    account = ledger or model.ledger
    run = _opened(account, f"{model.run} evaluation", budget, [event], population)
    total = float(_behind_the_door(population, run).release(_MeanLoss(), event, "mean loss")[0])
    n, most = population.n_users, 1.0 if bound is None or _classifies(model) else bound
    mean = min(1.0, max(0.0, total / n))
    spread = math.hypot(noise_of(event, n), _NORMAL_95 * math.sqrt(max(mean * (1 - mean), 1 / n) / n))
    found = Evaluation(
        loss=most * mean,
        low=most * max(0.0, mean - spread),
        high=most * min(1.0, mean + spread),
        n_users=n,
        epsilon=epsilon,
        delta=delta,
        adjacency=budget.adjacency,
        run=run.name,
        measure="share of wrong classes" if _classifies(model) else "mean absolute error",
        charged=account is not None,
        bound=most,
        model=model.certificate_.billboard_sha256,
    )
    certificate = Certificate(
        algorithm=f"evaluation of {type(model).__name__}",
        mode="certified",
        budget=budget,
        releases=tuple(run.releases),
        n_users=n,
        trust=_TRUST,
        not_covered=(*(() if model.certificate_.certified else (UNPROTECTED,)), *NOT_COVERED),
        notes=(_UNREADABLE, *model.account_notes),
        files={FILE: hashlib.sha256(found.to_json().encode()).hexdigest()},
        account=None if account is None else totals(account, budget),
    )
    if account is not None:
        certificate = record(certificate, account, run.name)
    run.finish()
    return replace(found, certificate=signed(certificate))


def planned(model: PrivateModel, epsilon: float, delta: float) -> tuple[Budget, GaussianEvent]:
    """Return the budget of an evaluation, and the event of its only release."""
    budget = Budget(epsilon=epsilon, delta=delta, adjacency=Adjacency(model.adjacency))
    return budget, Plan(budget, [Phase(name="evaluation", share=1.0)]).event("evaluation", clip=1.0, acute=True)


def noise_of(event: GaussianEvent, n_users: int) -> float:
    """Return how far the privacy noise moves a mean loss in [0, 1], in 95 % of evaluations."""
    return _NORMAL_95 * event.sigma / n_users


def choose(
    models: Sequence[PrivateModel],
    X: Any,
    y: Any,
    users: Any,
    *,
    epsilon: float,
    bound: float | None = None,
    ledger: Ledger | None = None,
) -> int:
    """Return the index of the model with approximately the smallest mean loss by user, under pure ``epsilon``.

    Fits of the models are charged separately. So fit all models on one ledger, and pass it here.

    >>> import tacitly
    >>> visits, ledger = tacitly.datasets.load_visits(600), tacitly.Ledger(ceiling=3.0)
    >>> X, score, patient = visits.select(["week", "age", "dose"]), visits["score"], visits["patient"]
    >>> models = [tacitly.MixedEffects(epsilon=e, ledger=ledger, run=f"ε = {e}") for e in (0.5, 1.0)]
    >>> fitted = [model.fit(X, score, patient) for model in models]
    >>> choose(fitted, X, score, patient, epsilon=0.5, bound=50.0) in (0, 1)
    True
    """
    if len(models) < 2:
        raise ValueError(f"choose needs at least two models. Found {len(models)}.")
    first = models[0]
    budget = Budget(epsilon=epsilon, delta=0.0, adjacency=Adjacency(first.adjacency))
    event = SelectionEvent.of_epsilon(epsilon, budget.adjacency)
    population = _losses(models, X, y, users, bound)
    run = _opened(ledger or first.ledger, f"{first.run} choice", budget, [event], population)
    chosen = _behind_the_door(population, run).select(_ModelLosses(len(models)), event, "choice among models")
    run.finish()
    return chosen


def _losses(models: Sequence[PrivateModel], X: Any, y: Any, users: Any, bound: float | None) -> Population:
    """Return the loss of every row under each model, by user: private, computed where the rows are."""
    with np.errstate(all="ignore"):  # a warning that depends on private numbers would be a leak
        columns = [_errors(model, X, y, users, bound) for model in models]
    losses = np.nan_to_num(np.clip(np.column_stack(columns), 0.0, 1.0), nan=1.0)
    return LocalPopulation(read_cohort(losses, np.zeros(len(losses)), users))


def _errors(model: PrivateModel, X: Any, y: Any, users: Any, bound: float | None) -> Array:
    if not hasattr(model, "predict"):
        raise ValueError(f"{type(model).__name__} predicts nothing, so there is no loss.")
    model._check_fitted()
    rows = _readable(model, X)
    personal = hasattr(model, "_loss")
    predicted = model.predict(rows, users) if personal else model.predict(rows)
    if _classifies(model):
        labels = cells_of(y).ravel()
        if len(labels) != len(predicted):
            raise DataError(f"y must have one label per row of X. Found {len(labels)} for {len(predicted)} rows.")
        return np.asarray(~alike(labels, predicted), dtype=np.float64)
    if bound is None:
        raise ValueError("bound must be given for a number: the largest error that counts, known beforehand.")
    positive(bound=bound)
    targets = plain_numbers(y, "y", blank=True)
    if not np.isfinite(targets).any():
        raise DataError("y must be numbers. Found none.")
    return np.asarray(np.abs(targets - predicted) / bound)


def _classifies(model: PrivateModel) -> bool:
    return hasattr(model, "_loss") and bool(model._loss().classifies)


def _readable(model: PrivateModel, X: Any) -> Any:
    """Return rows as the model reads them, with NaN in place of cells that are no numbers."""
    if is_frame(X):
        schema = getattr(model, "_schema", None)
        if schema is not None and has_names(schema.names):
            return matrix(in_order(X, schema.names), None, np.float64, schema, blank=True)[0]
        X = in_order(X, [str(name) for name in model.feature_names_in_])
    return plain_numbers(dense(X), "X", blank=True)


def _opened(account: Ledger | None, name: str, budget: Budget, planned: Sequence[Event], population: Population) -> Run:
    """Open a run under the next free name, in the account or (nothing is added up then) in memory."""
    ledger = Ledger(ceiling=budget) if account is None else account
    taken, number = ledger.book.runs, 1
    while f"{name} {number}" in taken:
        number += 1
    people = People.of(np.asarray(population.users), ledger.secret)
    return ledger.run(f"{name} {number}", config={"bound": "1"}, planned=planned, people=people)


def _behind_the_door(population: Population, run: Run) -> Federation:
    return population.federation(run, noise="auto", noise_seed=None, on_release=None, threads=None, trust="central")
