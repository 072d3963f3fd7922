"""Models with a public basis U and private heads vᵢ on it: user i's weights are U vᵢ.

For the squared loss, how heads are spread over users is public too (:mod:`tacitly.methods.shared.population`): heads
shrink to the population's, and whoever has no head has the population's prediction.

:class:`HeadsOnBasis` predicts and personalises; :class:`SharedBasisModel` adds the private fit of the basis.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from tacitly.arrays import Array, rows_times
from tacitly.data.validation import plain_numbers
from tacitly.federation.base import Federation
from tacitly.federation.engine import Population
from tacitly.heads.base import HeadWork
from tacitly.heads.glm import LossHeads
from tacitly.heads.losses import Loss
from tacitly.heads.population import HeadPrior, PopulationHeads
from tacitly.heads.ridge import RidgeHeads
from tacitly.methods.base import Statement
from tacitly.methods.parameters import EngineParameter, RankParameter
from tacitly.methods.personal import PersonalModel, Positions, of_classes_only, with_type
from tacitly.methods.shared.column_scales import scale_phases
from tacitly.methods.shared.descent import LearnedBasis
from tacitly.methods.shared.direction_votes import MOST_DIRECTIONS
from tacitly.methods.shared.population import affordable, learn_population, population_phases, too_few_users
from tacitly.methods.shared.settings import basis_share, whitening_share
from tacitly.methods.targets import TargetsOfLoss
from tacitly.privacy.calibration import Plan
from tacitly.privacy.guarantee import Budget, TooFewUsersWarning

TRUST = (
    "central: whoever runs this process holds the rows, adds the noise and keeps the heads; all others see the "
    "billboard only, and each user their own head (joint differential privacy)."
)
FREE_HEADS = (
    "heads and personalize() cost no privacy: a head is computed from the public basis and its user's own rows, so for "
    "all others it is post-processing, and it is not released"
)
USUAL_RANK = 2
"""What rank "auto" is planned for: the directions that are found are those that need no more."""
_SQUARED = Loss()


@dataclass(frozen=True)
class Head:
    """One user's personal model on a public basis. Private to that user.

    ``weights`` are on the basis; ``intercept`` is the user's own level. With more than two classes, weights have one
    column and intercepts one number per class. ``indices`` and ``values`` are features with weights of the user's own,
    added to those of the basis, where the model has them.
    """

    weights: Array
    intercept: float | Array
    basis: Array
    loss: Loss = _SQUARED
    indices: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    values: Array = field(default_factory=lambda: np.zeros(0))

    @np.errstate(all="ignore")  # no warning depends on a private number
    def decision_function(self, X: npt.ArrayLike) -> Array:
        """Return the scores of this user's rows, of which the loss is a function."""
        rows = plain_numbers(X, "X")
        scores = rows @ (self.basis @ self.weights) + self.intercept
        return np.asarray(scores + rows[:, self.indices] @ self.values if self.values.size else scores)

    @np.errstate(all="ignore")  # no warning depends on a private number
    def predict(self, X: npt.ArrayLike) -> npt.NDArray[Any]:
        """Return predictions for this user's rows: numbers, classes or rates, depending on the loss."""
        return self.loss.predict(self.decision_function(X))

    @np.errstate(all="ignore")  # no warning depends on a private number
    def predict_proba(self, X: npt.ArrayLike) -> Array:
        """Return one probability per class (loss 'logistic')."""
        return self.loss.probabilities(self.decision_function(X))

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return np.array(self.weights, dtype=dtype)


class HeadsOnBasis(PersonalModel[Head]):
    """Prediction and personalisation with fitted ``basis_``, ``heads_``, ``intercepts_`` and ``users_``."""

    basis_: Array
    heads_: Array
    intercepts_: Array
    prior_: HeadPrior | None = None
    loss: str = "squared"
    classes: Sequence[Any] | None = None
    fit_intercept: bool = False

    _learned: ClassVar[str] = "basis_"

    @np.errstate(all="ignore")  # no warning depends on a private number
    def predict(self, X: npt.ArrayLike, users: npt.ArrayLike | None = None) -> npt.NDArray[Any]:
        """Predict each row with its user's head; rows of unseen users, or without users, with the population's.

        Numbers, classes or rates, depending on the loss. A model that knows nothing about the population (``prior_`` is
        None) raises where a user has no head.
        """
        return self._predictions(*self._rows_and_positions(X, users))

    @np.errstate(all="ignore")  # no warning depends on a private number
    def decision_function(self, X: npt.ArrayLike, users: npt.ArrayLike | None = None) -> Array:
        """Return the score of each row under its user's head; one score per class where there are more than two."""
        return self._scores(*self._rows_and_positions(X, users))

    @of_classes_only
    @np.errstate(all="ignore")  # no warning depends on a private number
    def predict_proba(self, X: npt.ArrayLike, users: npt.ArrayLike | None = None) -> Array:
        """Return one probability per class for each row (loss 'logistic'), in the order of ``classes_``."""
        return self._loss().probabilities(self.decision_function(X, users))

    def head_work(self) -> HeadWork:
        """Return what fits a head: data, so that it can travel to users."""
        loss = self._loss()
        if loss.name == "squared":
            return RidgeHeads(self.basis_, bool(self.fit_intercept))
        return LossHeads(self.basis_, loss, bool(self.fit_intercept))

    def __sklearn_tags__(self) -> Any:
        """Return scikit-learn's tags: a classifier or a regressor, by the loss."""
        return with_type(super().__sklearn_tags__(), classifies=self.loss in ("logistic", "hinge"))  # type: ignore[misc]

    def _loss(self) -> Loss:
        return Loss(self.loss, self.classes)

    def _scores(self, rows: npt.NDArray[Any], positions: Positions) -> Array:
        heads, intercepts = self._heads_at(positions)
        # To the last bit, no row's score depends on which others are scored: it may decide a class that is evaluated.
        return np.asarray(np.einsum("nk,nk...->n...", rows_times(rows, self.basis_), heads) + intercepts)

    def _heads_at(self, positions: Positions) -> tuple[Array, Array]:
        """Return head and intercept of each row's user; the population's where the user (position -1) has none."""
        if self.prior_ is None or (positions >= 0).all():
            return self.heads_[positions], self.intercepts_[positions]
        # One more row at the end, which position -1 finds.
        heads = np.vstack([self.heads_, self.prior_.mean[:-1]])
        return heads[positions], np.append(self.intercepts_, self.prior_.mean[-1])[positions]

    def _positions(self, users: Any, rows: int) -> Positions:
        if users is None or (self.prior_ is not None and len(self.users_) == 0):
            positions = np.full(rows, -1)
            self._check_known(positions)
            return positions
        return super()._positions(users, rows)

    def _check_known(self, positions: Positions) -> None:
        """Unseen users have the population's prediction, where there is one."""
        if self.prior_ is None:
            super()._check_known(positions)

    def _predictions(self, rows: npt.NDArray[Any], positions: Positions) -> npt.NDArray[Any]:
        return self._loss().predict(self._scores(rows, positions))

    def _personal_model(self, rows: npt.NDArray[Any], targets: Array) -> Head:
        fitted = self.head_work()(rows, targets, np.array([0, len(rows)]))[0]
        intercept = fitted[-1] if fitted.ndim > 1 else float(fitted[-1])
        return Head(fitted[:-1], intercept, self.basis_, self._loss())

    def _take_heads(self, heads: Array) -> None:
        self.heads_, self.intercepts_ = heads[:, :-1], heads[:, -1]


class SharedBasisModel(HeadsOnBasis, TargetsOfLoss, EngineParameter, RankParameter):
    """Common to all estimators that learn a basis through the door and heads at home."""

    def __sklearn_tags__(self) -> Any:
        """Return scikit-learn's tags: sparse matrices are taken, as dense rows."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def _reading(self) -> dict[str, Any]:
        return {"densify": True}

    def public_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the basis and, where it is known, how heads are spread."""
        self._check_fitted()
        return arrays_of(self.basis_, self.prior_)

    def take_public_arrays(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Set the basis and the prior of heads; no user has a head yet."""
        self.basis_, self.prior_ = arrays["basis"], None
        if "head_mean" in arrays:
            self.prior_ = HeadPrior(arrays["head_mean"], arrays["head_root"], float(arrays["head_noise"][0]))
        columns = self._loss().columns
        classes = (columns,) if columns > 1 else ()
        self.heads_, self.intercepts_ = np.zeros((0, self.basis_.shape[1], *classes)), np.zeros((0, *classes))
        self.users_ = np.zeros(0, dtype=np.int64)

    def private_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return heads and intercepts; nothing where they stayed with their users."""
        return {"heads": self.heads_, "intercepts": self.intercepts_} if len(self.users_) else {}

    def take_private_arrays(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Set heads and intercepts."""
        self.heads_, self.intercepts_ = arrays["heads"], arrays["intercepts"]

    def _around_the_basis(self, population: Population, budget: Budget) -> dict[str, Any]:
        """Return what the budget buys around the basis: scales of columns, a whitening, the population of heads.

        The population for the squared loss, and where it leaves the basis what that needs. Not for a paper's version as
        printed.
        """
        if self.mode == "paper":
            return {}
        sizes = population.n_users, population.n_features
        before = scale_phases(budget, *sizes)
        if self.loss != "squared":
            return {"before": before}
        usual = USUAL_RANK if isinstance(self.rank, str) else int(self.rank)
        needed = basis_share(budget, *sizes, min(usual, sizes[1]))
        after = population_phases(budget, *sizes, self._most_directions(sizes[1]))
        # With intercepts users need the population: a few rows do not tell a level from a slope.
        if not (self.fit_intercept or affordable(after, needed)):
            after = ()
        return {"before": before, "after": after, "whitening_share": whitening_share(budget, *sizes, needed)}

    def _most_directions(self, n_features: int) -> int:
        """Return how many directions the basis may have before the population's joins it."""
        return min(MOST_DIRECTIONS, n_features) if isinstance(self.rank, str) else int(self.rank)

    def _prior_at_home(self) -> HeadPrior | None:
        """Return the prior that heads are fitted with: where the noise hides it, that nothing is known."""
        if self.prior_ is not None or self.loss != "squared" or self.mode == "paper":
            return self.prior_
        return HeadPrior.unknown(self.basis_.shape[1], intercept=bool(self.fit_intercept))

    def _belief(self) -> str:
        """Return which heads users choose among at home (:data:`tacitly.heads.population.BELIEFS`)."""
        return "nothing known" if self.prior_ is None else "usual"

    def head_work(self) -> HeadWork:
        """Return what fits a head: data, so that it can travel to users."""
        prior = self._prior_at_home()
        if prior is None or (self.prior_ is None and not self.fit_intercept):
            return super().head_work()  # one's own ridge regression, which chooses how far to shrink by one's own rows
        return PopulationHeads(self.basis_, prior, bool(self.fit_intercept), self._belief())

    def _with_population(self, federation: Federation, plan: Plan, found: LearnedBasis) -> dict[str, Array]:
        """Learn the population of heads where the plan has a share for it; return what is public."""
        if "spread" not in {phase.name for phase in plan.phases}:
            return {"basis": found.raw}
        learned = learn_population(federation, plan, found, intercept=bool(self.fit_intercept))
        return arrays_of(learned.basis, learned.prior)

    def _work_at_home(self, federation: Federation, population: Population) -> None:
        super()._work_at_home(federation, population)
        if self.prior_ is None and self.loss == "squared" and self.mode != "paper":
            sizes = population.n_users, population.n_features, self.basis_.shape[1]
            said = too_few_users(*sizes, self._budget(), intercept=bool(self.fit_intercept))
            warnings.warn(said, TooFewUsersWarning, stacklevel=3)

    def _home_work(self) -> HeadWork:
        """Return how the users of the fit compute their heads; new users follow :meth:`head_work`."""
        return self.head_work()

    def _statement(self, budget: Budget) -> Statement:
        return Statement(TRUST, notes=(FREE_HEADS,), nominal_epsilon=self.epsilon)

    def _check_population(self, population: Population) -> None:
        if self.rank == "auto" and self._ranks_itself:
            return
        if not (isinstance(self.rank, int | np.integer) and 1 <= self.rank <= population.n_features):
            auto = ", or 'auto'" if self._ranks_itself else ""
            raise ValueError(
                f"rank must be a whole number from 1 to the number of features ({population.n_features}){auto}. "
                f"Found {self.rank!r}."
            )

    @property
    def _ranks_itself(self) -> bool:
        """Whether the rank may be read off the spectrum of released votes."""
        return self.mode != "paper"


def arrays_of(basis: Array, prior: HeadPrior | None) -> dict[str, Array]:
    """Return a basis and the prior of heads, if there is one, as the billboard keeps them."""
    if prior is None:
        return {"basis": basis}
    return {
        "basis": basis,
        "head_mean": prior.mean,
        "head_root": prior.root,
        "head_noise": np.array([prior.noise]),
    }
