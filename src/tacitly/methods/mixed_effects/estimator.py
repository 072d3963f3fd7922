"""The estimator of mixed effects models: a privately learned population prior and personal posteriors."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from os import PathLike
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from tacitly.arrays import Array
from tacitly.data.grouping import matrix
from tacitly.data.reading import has_names, in_order, read_rows
from tacitly.data.schema import Schema, read_declared
from tacitly.data.tables import is_frame
from tacitly.data.user_ids import Directory
from tacitly.data.validation import DataError
from tacitly.federation.engine import Population
from tacitly.heads.base import HeadWork
from tacitly.heads.losses import Loss
from tacitly.methods.base import Procedure, Statement
from tacitly.methods.mixed_effects import algorithm, loss_algorithm
from tacitly.methods.mixed_effects.evidence import ALONE, TRUSTED
from tacitly.methods.mixed_effects.few_users import FewUsers, rounded
from tacitly.methods.mixed_effects.heads import PosteriorHeads
from tacitly.methods.mixed_effects.loss_heads import LossPosteriorHeads
from tacitly.methods.mixed_effects.posterior import Coordinates, Prior
from tacitly.methods.mixed_effects.prediction import Answer, Rules
from tacitly.methods.mixed_effects.summary import Summary
from tacitly.methods.parameters import EngineParameter
from tacitly.methods.personal import PersonalModel, Positions, of_classes_only, with_type
from tacitly.methods.targets import TargetsOfLoss
from tacitly.privacy.certificate import shown
from tacitly.privacy.guarantee import Budget, TooFewUsersWarning

TRUST = (
    "central: whoever runs this process holds the rows, adds the noise and keeps the personal models; everybody else "
    "sees the billboard only, and a user their own model (joint differential privacy)."
)
FREE_HEADS = (
    "personal models and personalize() cost nothing: a posterior is computed from the public prior and its own user's "
    "rows, so for everybody else it is post-processing, and it is not released"
)
HEADER = "the table's header: names of columns and whether each holds numbers, yes/no values, categories or text"

Declared = Schema | Mapping[str, Any] | str | PathLike[str]


class Posterior:
    """One user's personal model: the posterior under the public prior. Private to that user."""

    def __init__(self, model: MixedEffects, head: Array) -> None:
        self._model, self._head = model, head

    def __repr__(self) -> str:
        return f"<personal model of a {type(self._model).__name__} with {len(self._model.feature_names_in_)} features>"

    @property
    def numbers(self) -> Array:
        """The head as it is stored: posterior mean and covariance in public coordinates."""
        return self._head

    @property
    def weights(self) -> Array:
        """Intercept and coefficients in the units of the data; one row per class where there are several."""
        mean = self._model.prior_.mean
        return self._model.units_.raw(self._head[: mean.size].reshape(mean.shape))

    @np.errstate(all="ignore")  # no warning depends on a private number
    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Predict this user's rows; with ``return_std`` also the standard deviation of a new observation."""
        rows, heads = self._rows_and_heads(X)
        return self._model._answer(rows, heads, return_std)

    @np.errstate(all="ignore")  # no warning depends on a private number
    def predict_proba(self, X: Any) -> Array:
        """Return one probability per class for each of this user's rows (loss 'logistic')."""
        return self._model._probabilities(*self._rows_and_heads(X))

    def _rows_and_heads(self, X: Any) -> tuple[npt.NDArray[Any], Array]:
        rows = self._model._rows(X)
        return rows, np.broadcast_to(self._head, (len(rows), len(self._head)))


class _LearnedPrior:
    """Attributes that a fit sets."""

    units_: Coordinates
    prior_: Prior
    mean_covariance_: Array
    heads_: Array
    _inflation: float
    _other_law: float
    _weak: bool


@dataclass(eq=False, repr=False)
class MixedEffects(_LearnedPrior, PersonalModel[Posterior], TargetsOfLoss, EngineParameter):
    """Mixed model with random intercepts and slopes, learned under user-level differential privacy.

    User i has weights wᵢ ~ N(w̄, S), and y = (1, x)ᵀwᵢ + e with e ~ N(0, s²): a linear mixed model, as lme4 or
    statsmodels fit without privacy. The prior (w̄, S, s²) is learned through noisy sums and is public. A user's personal
    model is the posterior of wᵢ given their own rows, computed by that user. A user without rows gets the population's
    prediction; a user with many rows gets nearly their own regression. Only ``epsilon`` has to be chosen: columns may
    be in any units, text and missing cells need no preparation, and the rank of S adapts to the number of users.

    Parameters
    ----------
    epsilon, delta, adjacency
        The privacy budget for everything that is released, together; as for :class:`~tacitly.PrivateFedRep`.
    schema
        Public facts about the columns: a mapping such as ``{"age": {"range": [0, 120]}, "region": {"levels":
        ["north", "south"]}, "income": {"missing": [-9]}}``, a :class:`~tacitly.data.schema.Schema`, or the path of a
        JSON file. Types of columns that it does not state are taken from the table. Scales that it does not state are
        released privately, paid from the budget.
    target_range
        Public bounds (low, high) of the target, if known; they save a part of the budget. For numbers only.
    loss
        ``"squared"`` for numbers, ``"logistic"`` for classes, ``"poisson"`` for counts. For counts s² is the variance
        of log rates around a user's own line (overdispersion).
    classes
        All labels that may occur, if the target is a class; default (0, 1). They must be declared and are never read
        from the rows, because which labels occur is private.
    noise, noise_seed, ledger, run, threads, engine
        As for :class:`~tacitly.PrivateFedRep`.

    Attributes
    ----------
    coef_, intercept_ : population coefficients in the units of the data (of log odds or log rates for classes and
        counts; one row per class where there are more than two); public
    coef_std_, intercept_std_ : their standard errors, privacy noise included; public
    covariance_ : (d + 1, d + 1), covariance of intercept and coefficients across users; public
    noise_variance_ : variance of an observation around its user's line, of log rates for counts; public
    classes_ : the declared labels, if the target is a class
    helps_ : whether the prior predicts better than users' own means; if not, every personal model is the user's mean
    weights_ : (n_users, d + 1), users' posterior means in standardised units, in the order of ``users_``; private
    users_, certificate_

    Examples
    --------
    >>> import tacitly
    >>> rng = np.random.default_rng(0)
    >>> users = np.repeat(np.arange(2000), 5)
    >>> x = rng.normal(size=10_000)
    >>> slopes = 1.0 + 0.5 * rng.normal(size=2000)
    >>> y = 3.0 + rng.normal(size=2000)[users] + slopes[users] * x + 0.3 * rng.normal(size=10_000)
    >>> model = tacitly.MixedEffects(epsilon=1.0).fit(x[:, None], y, users)
    >>> bool(abs(model.coef_[0] - 1.0) < 0.2), model.score(x[:, None], y, users) > 0.9
    (True, True)
    >>> mean, std = model.predict([[0.5]], users=[17], return_std=True)
    >>> model.predict([[0.5]]).shape  # no user given: the population's prediction
    (1,)
    >>> yes = (y > 3.0).astype(int)
    >>> model = tacitly.MixedEffects(epsilon=1.0, loss="logistic").fit(x[:, None], yes, users)
    >>> model.predict_proba(x[:2, None], users[:2]).shape, model.score(x[:, None], yes, users) > 0.8
    ((2, 2), True)
    """

    _: KW_ONLY
    schema: Declared | None = None
    target_range: tuple[float, float] | None = None
    loss: str = "squared"
    classes: Sequence[Any] | None = None
    run: str = "mixed-effects"

    _learned: ClassVar[str] = "prior_"
    _takes_missing: ClassVar[bool] = True
    fit_intercept: ClassVar[bool] = True

    @np.errstate(all="ignore")  # no warning depends on a private number
    def predict(self, X: Any, users: Any = None, *, return_std: bool = False) -> Any:
        """Predict each row with its user's posterior; rows of unseen users, or without users, with the population's.

        Numbers, classes or expected counts, depending on the loss. With ``return_std`` also return the standard
        deviation of a new observation; for numbers mean ± 1.645·std is a 90 % interval.
        """
        return self._each(partial(self._answer, return_std=return_std), X, users)

    @of_classes_only
    @np.errstate(all="ignore")  # no warning depends on a private number
    def predict_proba(self, X: Any, users: Any = None) -> Array:
        """Return one probability per class for each row (loss 'logistic'), in the order of ``classes_``.

        Probabilities are averaged over the posterior, so a user with few rows gets less extreme ones.
        """
        return self._each(self._probabilities, X, users)

    @np.errstate(all="ignore")  # no warning depends on a private number
    def decision_function(self, X: Any, users: Any = None) -> Array:
        """Return a score per row: log odds of the second of two classes, log rates; one per class if there are several.

        Log odds are those of :meth:`predict_proba`, so that both rank rows in the same order. Other scores are
        posterior means.
        """
        if self.loss == "logistic" and self._loss().columns == 1:
            chances = np.clip(self._each(self._probabilities, X, users), 1e-300, 1.0)
            return np.asarray(np.log(chances[:, 1]) - np.log(chances[:, 0]))
        return self._each(self._scores if self.loss != "squared" else self._predicted, X, users)[0]

    def summary(self) -> Summary:
        """Return the population's coefficients, their standard errors and how much users differ: public."""
        self._check_fitted()
        certificate = self.certificate_
        few = self._few_users(certificate.n_users)
        used = np.append(True, self.units_.gain > 0)
        if not self.units_.spread > 0:
            used[:] = False
        names = np.append("(intercept)", self.feature_names_in_)
        schema = self._schema
        texts = np.append(0, np.zeros(len(used) - 1, dtype=np.int64) if schema is None else np.array(schema.texts))
        privacy = f"ε = {shown(certificate.epsilon)}" if math.isfinite(certificate.epsilon) else "no privacy"
        title = f"mixed effects of {certificate.n_users} users; {privacy} at δ = {self.delta:g} ({self.adjacency})"
        shown_names = [str(name) for name in names[used]]
        raw, errors = self.units_.raw(self.prior_.mean), self._raw_errors()
        if raw.ndim > 1:
            shown_names = [f"{label}: {name}" for label in self.classes_ for name in shown_names]
        spreads = np.sqrt(np.maximum(np.diag(self.covariance_), 0.0))
        # Nobody is 0 years old: levels are compared where rows are, not where small errors of slopes add up.
        spreads[0] = math.sqrt(self.prior_.covariance[0, 0]) * (self.units_.spread or 1.0)
        return Summary(
            title=title,
            names=tuple(shown_names),
            estimates=raw[..., used].ravel(),
            errors=errors[..., used].ravel(),
            spreads=np.broadcast_to(spreads, raw.shape)[..., used].ravel(),
            residual=math.nan if self.loss == "logistic" else math.sqrt(self.noise_variance_),
            target=self.target_name_ or "y",
            left_out=_left_out(names, used, texts),
            warning=few.caution(int(used.sum())) if self.helps_ else few.fallback(),
            counts=self.loss == "poisson",
            scale=self._scale(),
        )

    def _scale(self) -> str:
        """Return the scale of the estimates for the summary (log odds, log rates); empty for the target itself."""
        if self.loss == "poisson":
            return "log rates"
        if self.loss == "squared":
            return ""
        two = len(self.classes_) == 2
        return f"the log odds that it is {self.classes_[1]}" if two else "the log odds of each class against the others"

    def users_needed(self, features: int) -> int:
        """Return about how many users make the privacy noise small for this many features, from public numbers."""
        return rounded(algorithm.users_needed(features + 1, self._budget()))

    @property
    def coef_(self) -> Array:
        """Population coefficients in the units of the data."""
        return self.units_.raw(self.prior_.mean)[..., 1:]

    @property
    def intercept_(self) -> Any:
        """Population level of a row with all features zero."""
        return _one_or_all(self.units_.raw(self.prior_.mean)[..., 0])

    @property
    def coef_std_(self) -> Array:
        """Standard errors of ``coef_``: of sampling users and of the privacy noise together."""
        return self._raw_errors()[..., 1:]

    @property
    def intercept_std_(self) -> Any:
        """Standard error of ``intercept_``."""
        return _one_or_all(self._raw_errors()[..., 0])

    @property
    def covariance_(self) -> Array:
        """Covariance of intercept and coefficients across users, in the units of the data."""
        return self.units_.raw_covariance(self.prior_.covariance)

    @property
    def noise_variance_(self) -> float:
        """Variance of an observation around its user's own line; of its log rate for counts."""
        return self.prior_.noise * self.units_.spread**2

    @property
    def helps_(self) -> bool:
        """Whether the prior predicts users' rows better than their own means, according to the last release."""
        return self._rules().helps

    @property
    def weights_(self) -> Array:
        """Users' posterior means in standardised units, in the order of ``users_``; private."""
        mean = self.prior_.mean
        return self.heads_[:, : mean.size].reshape(-1, *mean.shape)

    def head_work(self) -> HeadWork:
        """Return what fits a head: data, so that it can travel to users."""
        return self._home_work()

    def public_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return units, prior and calibration."""
        self._check_fitted()
        return self._rules().arrays()

    def take_public_arrays(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Set units, prior and calibration; no user has a posterior yet."""
        rules = Rules.stored(arrays, self.loss)
        self.units_, self.prior_, self.mean_covariance_ = rules.units, rules.prior, rules.error
        self._inflation, self._weak, self._other_law = rules.inflation, rules.weak, rules.other_law
        self.heads_ = np.zeros((0, *self._home_work().shape))
        self.users_ = np.zeros(0, dtype=np.int64)

    def private_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return all users' posteriors; nothing where they stayed with their users."""
        return {"posteriors": self.heads_.astype(np.float32)} if len(self.users_) else {}

    def take_private_arrays(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Set all users' posteriors."""
        self.heads_ = arrays["posteriors"].astype(np.float64)

    def folder_parameters(self) -> dict[str, Any]:
        """Return the parameters a model folder keeps; the schema as it was completed at fit."""
        return {**super().folder_parameters(), "schema": None if self._schema is None else self._schema.to_dict()}

    def __sklearn_tags__(self) -> Any:
        """Return scikit-learn's tags: a regressor or a classifier, by the loss, that takes missing values."""
        tags = with_type(super().__sklearn_tags__(), classifies=self.loss == "logistic")
        tags.input_tags.allow_nan = True
        return tags

    @property
    def _schema(self) -> Schema | None:
        found: Schema | None = self.__dict__.get("schema_")
        if found is None:
            declared = self._declared()
            found = declared if isinstance(declared, Schema) else None
        return found

    def _declared(self) -> Schema | Mapping[str, Mapping[str, Any]]:
        """Return the schema as it was given: complete, or declarations of some columns."""
        if self.schema is None:
            return {}
        if isinstance(self.schema, Schema):
            return self.schema
        given = self.schema if isinstance(self.schema, Mapping) else read_declared(str(self.schema))
        return Schema.from_dict(given) if "version" in given else given

    def _reading(self) -> dict[str, Any]:
        return {"schema": self._declared()}

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.loss not in ("squared", "logistic", "poisson"):
            raise ValueError(f"loss must be 'squared', 'logistic' or 'poisson'. Found {self.loss!r}.")
        if self.classes is not None and self.loss != "logistic":
            raise ValueError(f"classes are for loss='logistic'. Found loss={self.loss!r}.")
        if self.target_range is not None and self.loss != "squared":
            raise ValueError(f"target_range is for loss='squared': classes and counts need none. Found {self.loss!r}.")
        self._loss()

    def _describe(self, population: Population) -> None:
        super()._describe(population)
        self.schema_ = getattr(getattr(population, "cohort", None), "schema", None)

    def _procedure(self, population: Population, budget: Budget) -> Procedure:
        schema = self._schema_of(population)
        settings = self._settings(population.n_users, schema)
        plan = settings.plan(budget)

        def learn(federation: Any) -> Mapping[str, npt.NDArray[Any]]:
            if isinstance(settings, loss_algorithm.LossSettings):
                learned = loss_algorithm.learn(federation, plan, settings)
            else:
                learned = algorithm.learn(federation, plan, settings)
            calibration = learned.inflation, learned.weak, learned.other_law
            return Rules(learned.units, learned.prior, learned.mean_covariance, *calibration).arrays()

        return Procedure(settings.events(plan), learn)

    def _settings(self, n_users: int, schema: Schema) -> algorithm.Settings:
        if self.loss == "squared":
            target = None if self.target_range is None else _checked(self.target_range)
            return algorithm.Settings(n_users, (*schema.bounds, target), schema.texts)
        bounds, columns = (*schema.bounds, loss_algorithm.UNITLESS), self._loss().columns
        return loss_algorithm.LossSettings(n_users, bounds, schema.texts, self.loss, columns)

    def _schema_of(self, population: Population) -> Schema:
        found: Schema | None = getattr(getattr(population, "cohort", None), "schema", None)
        if found is not None:
            return found
        # Rows that are elsewhere have been encoded there: only ranges can be declared here.
        declared = self._declared()
        columns = {} if isinstance(declared, Schema) else declared
        return Schema.declared({name: columns.get(name, {}) for name in population.feature_names})

    def _work_at_home(self, federation: Any, population: Population) -> None:
        super()._work_at_home(federation, population)
        if not self.helps_:
            warnings.warn(self._few_users(population.n_users).fallback(), TooFewUsersWarning, stacklevel=3)

    def _home_work(self) -> HeadWork:
        if self.loss != "squared":
            return LossPosteriorHeads(self.units_, self._prior_at_home(), self._other_law)
        if self.units_.spread > 0:
            return PosteriorHeads(self.units_, self._prior_at_home(), np.array(TRUSTED if self.helps_ else ALONE))
        # Nothing was found out about the target: everybody's own mean.
        nothing = np.zeros(len(self.units_.center))
        level = Prior(np.zeros(1), np.eye(1), 1.0)
        return PosteriorHeads(Coordinates(nothing, nothing, 0.0, 1.0), level, np.array(ALONE))

    def _prior_at_home(self) -> Prior:
        """Return the prior for personal models, which includes the error of the estimated population mean."""
        return self._rules().prior_at_home()

    def _rules(self) -> Rules:
        return Rules(self.units_, self.prior_, self.mean_covariance_, self._inflation, self._weak, self._other_law)

    def _take_heads(self, heads: Array) -> None:
        self.heads_ = heads

    def _statement(self, budget: Budget) -> Statement:
        return Statement(TRUST, notes=(FREE_HEADS,), not_covered=(HEADER,))

    def _loss(self) -> Loss:
        return Loss(self.loss, self.classes)

    def _rows(self, X: Any) -> npt.NDArray[Any]:
        schema = self._schema
        if schema is not None and is_frame(X) and has_names(schema.names):
            return matrix(in_order(X, schema.names), None, np.float64, schema)[0]
        return read_rows(X, self.feature_names_in_, np.float64)

    def _check_known(self, positions: Positions) -> None:
        """Unseen users have the population's prediction."""

    def _positions(self, users: npt.ArrayLike, rows: int) -> Positions:
        ids = np.asarray(users)
        if ids.shape != (rows,):
            raise DataError(f"users must have one id per row of X ({rows}). Found shape {ids.shape}.")
        return Directory(self.users_).find(ids) if len(self.users_) else np.full(rows, -1)

    def _each(self, answer: Callable[[npt.NDArray[Any], Array], Answer], X: Any, users: Any) -> Answer:
        """Return what ``answer`` makes of rows and their users' heads."""
        self._check_fitted()
        rows = self._rows(X)
        positions = np.full(len(rows), -1) if users is None else self._positions(users, len(rows))
        return self._rules().in_pieces(answer, rows, self.heads_, positions)

    def _answer(self, rows: npt.NDArray[Any], heads: Array, return_std: bool) -> Any:
        """Return predictions, and standard deviations of new observations where they are asked for."""
        if self.loss == "logistic":
            if return_std:
                raise ValueError("return_std is for numbers and counts. Use predict_proba for classes.")
            return self.classes_[self._probabilities(rows, heads).argmax(axis=1)]
        mean, std = self._predicted(rows, heads)
        return (mean, std) if return_std else mean

    def _scores(self, rows: npt.NDArray[Any], heads: Array) -> tuple[Array, Array]:
        return self._rules().scores(rows, heads)

    def _probabilities(self, rows: npt.NDArray[Any], heads: Array) -> Array:
        if self.loss != "logistic":
            raise AttributeError(f"predict_proba needs loss='logistic'. Found loss={self.loss!r}.")
        return self._rules().probabilities(rows, heads)

    def _predicted(self, rows: npt.NDArray[Any], heads: Array) -> tuple[Array, Array]:
        """Return mean and standard deviation of new observations."""
        return self._rules().numbers(rows, heads)

    def _predictions(self, rows: npt.NDArray[Any], positions: Positions) -> npt.NDArray[Any]:
        answer = partial(self._answer, return_std=False)
        return np.asarray(self._rules().in_pieces(answer, rows, self.heads_, positions))

    def _personal_model(self, rows: npt.NDArray[Any], targets: Array) -> Posterior:
        return Posterior(self, self._home_work().own(rows, targets))

    def _raw_errors(self) -> Array:
        """Return standard errors of intercept and coefficients in the units of the data."""
        covariance = self.units_.raw_covariance(self.mean_covariance_)
        return np.asarray(np.sqrt(np.maximum(np.einsum("...ii->...i", covariance), 0.0)))

    def _few_users(self, n_users: int) -> FewUsers:
        return FewUsers(self._budget(), n_users, len(self.feature_names_in_), self._schema)


def _left_out(names: npt.NDArray[Any], used: npt.NDArray[np.bool_], texts: npt.NDArray[np.int64]) -> tuple[str, ...]:
    """Return columns without a coefficient, except the intercept; a text column if none of its buckets has one."""
    found: list[str] = []
    for name, own, text in zip(names[1:].tolist(), used[1:], texts[1:], strict=True):
        whole = str(name) if not text else str(name).rsplit("#", 1)[0]
        if not (own if not text else used[texts == text].any()) and whole not in found:
            found.append(whole)
    return tuple(found)


def _one_or_all(values: Array) -> Any:
    return values if values.ndim else float(values)


def _checked(bounds: tuple[float, float]) -> tuple[float, float]:
    low, high = (float(bound) for bound in bounds)
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ValueError(f"target_range must be two finite numbers, the lower first. Found {bounds!r}.")
    return low, high
