"""Personal models: prediction for known users, and personal parts for new users.

A model has a public part and a private part for each user. They are always kept separate: in different attributes in
memory, and in different files on disk. Subclasses define the public part (a basis, a prior, a network).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from types import MethodType
from typing import Any, ClassVar, Generic, TypeVar, cast

import numpy as np
import numpy.typing as npt

from tacitly.arrays import Array
from tacitly.data.reading import read_rows
from tacitly.data.user_ids import Directory
from tacitly.data.validation import DataError
from tacitly.heads.losses import Loss
from tacitly.methods.base import Fitted

Personal = TypeVar("Personal")
"""One user's personal model."""

Method = TypeVar("Method", bound=Callable[..., Any])

Positions = npt.NDArray[np.int64]
"""Where each row's user stands in ``users_``."""


class PersonalModel(Fitted, ABC, Generic[Personal]):
    """Prediction and personalisation for models in which each of ``users_`` has a private part."""

    users_: npt.NDArray[Any]
    feature_names_in_: npt.NDArray[Any]

    __metadata_request__predict: ClassVar[dict[str, bool]] = {"users": True}
    __metadata_request__score: ClassVar[dict[str, bool]] = {"users": True}

    _row_type: ClassVar[npt.DTypeLike] = np.float64
    _private_part: ClassVar[str] = "head"
    _takes_missing: ClassVar[bool] = False
    """Whether features may be missing."""

    @property
    def classes_(self) -> npt.NDArray[Any]:
        """The declared labels, in the order of the columns of :meth:`predict_proba`."""
        labels = self._loss().classes
        if labels is None:
            raise AttributeError(f"a model with loss={self._loss().name!r} has no classes.")
        return np.asarray(labels)

    @np.errstate(all="ignore")  # no warning depends on a private number
    def predict(self, X: npt.ArrayLike, users: npt.ArrayLike) -> npt.NDArray[Any]:
        """Predict each row with its user's personal model: numbers, classes or rates, depending on the loss."""
        return self._predictions(*self._rows_and_positions(X, users))

    @np.errstate(all="ignore")  # no warning depends on a private number
    def score(
        self, X: npt.ArrayLike, y: npt.ArrayLike, users: npt.ArrayLike | None = None, sample_weight: Any = None
    ) -> float:
        """Return accuracy for classes, R² for numbers, explained deviance for counts.

        The score is computed from private data: do not publish it. Without ``users``, the population's predictions are
        scored.
        """
        predicted = self.predict(X) if users is None else self.predict(X, users)  # type: ignore[call-arg]
        return self._loss().score(y, predicted, sample_weight)

    @np.errstate(all="ignore")  # no warning depends on a private number
    def personalize(self, X: npt.ArrayLike, y: npt.ArrayLike) -> Personal:
        """Fit the personal model of a new user, from their rows and the public part.

        This costs no privacy budget, because nothing is released.
        """
        self._check_fitted()
        rows, targets = self._rows(X), self._encoded(y)
        if targets.shape != (len(rows),):
            raise DataError(f"y must have one value per row of X ({len(rows)}). Found shape {targets.shape}.")
        if not (np.isfinite(targets).all() and (self._takes_missing or np.isfinite(rows).all())):
            what = "y" if self._takes_missing else "X and y"
            raise DataError(f"{what} must be finite numbers. Found missing or infinite values.")
        return self._personal_model(rows, targets)

    @abstractmethod
    def _loss(self) -> Loss:
        """Return what targets mean."""

    def _encoded(self, y: npt.ArrayLike) -> Array:
        """Return targets as numbers."""
        return self._loss().encode(y)

    @abstractmethod
    def _predictions(self, rows: npt.NDArray[Any], positions: Positions) -> npt.NDArray[Any]:
        """Predict rows whose users stand at ``positions`` in ``users_``."""

    @abstractmethod
    def _personal_model(self, rows: npt.NDArray[Any], targets: Array) -> Personal:
        """Fit one user's model on checked rows and encoded targets."""

    def _rows_and_positions(self, X: npt.ArrayLike, users: Any) -> tuple[npt.NDArray[Any], Positions]:
        self._check_fitted()
        rows = self._rows(X)
        return rows, self._positions(users, len(rows))

    def _rows(self, X: npt.ArrayLike) -> npt.NDArray[Any]:
        return read_rows(X, self.feature_names_in_, self._row_type)

    def _positions(self, users: Any, rows: int) -> Positions:
        ids = np.asarray(users)
        if ids.shape != (rows,):
            raise DataError(f"users must have one id per row of X ({rows}). Found shape {ids.shape}.")
        positions = Directory(self.users_).find(ids)
        self._check_known(positions)
        return positions

    def _check_known(self, positions: Positions) -> None:
        """Raise where a row's user (position -1) has no private part; a model with a population prediction need not."""
        if (positions < 0).any():
            raise DataError(
                f"Found rows of users who have no {self._private_part}. "
                "Give a new user one with personalize(X, y), from that user's own rows."
            )


def by_user(positions: Positions) -> Iterator[tuple[int, Positions]]:
    """Yield each user's position and the indices of that user's rows.

    >>> [(user, mine.tolist()) for user, mine in by_user(np.array([2, 0, 2]))]
    [(0, [1]), (2, [0, 2])]
    """
    order = np.argsort(positions, kind="stable")
    for mine in np.split(order, np.flatnonzero(np.diff(positions[order])) + 1):
        if len(mine):
            yield int(positions[mine[0]]), mine


def of_classes_only(method: Method) -> Method:
    """Return a method that models of other losses do not have: ``hasattr`` says so, and the error says why."""
    return cast(Method, _OfClassesOnly(method))


class _OfClassesOnly:
    def __init__(self, method: Callable[..., Any]) -> None:
        self._method = method
        self.__doc__ = method.__doc__

    def __get__(self, model: Any, kind: type | None = None) -> Any:
        if model is None:
            return self._method
        if model.loss != "logistic":
            raise AttributeError(f"{self._method.__name__} needs loss='logistic'. Found loss={model.loss!r}.")
        return MethodType(self._method, model)


def with_type(tags: Any, *, classifies: bool) -> Any:
    """Return scikit-learn's tags with the estimator's type set: a classifier or a regressor, with a target."""
    from sklearn.utils import ClassifierTags, RegressorTags

    tags.target_tags.required = True
    if classifies:
        tags.estimator_type, tags.classifier_tags = "classifier", ClassifierTags()
    else:
        tags.estimator_type, tags.regressor_tags = "regressor", RegressorTags()
    return tags
