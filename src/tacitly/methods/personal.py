"""What every fitted model can do: predict for its users, take in a new one, be saved.

A model has a public part (a basis) and a private one (a head a user). They are kept apart from here on: in memory as
separate attributes, on disk in separate places.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tacitly.arrays import Array, Offsets
from tacitly.data.user_ids import Directory
from tacitly.data.validation import DataError
from tacitly.heads.glm import LossHeads
from tacitly.heads.losses import Loss
from tacitly.heads.ridge import HeadWork, RidgeHeads

_SQUARED = Loss()


@dataclass(frozen=True)
class Head:
    """One user's personal model on a public basis. Private to that user.

    ``weights`` are on the basis; ``intercept`` is the user's own level. With more than two classes both have a column
    (a number) a class. ``indices`` and ``values`` are features that the user weighs otherwise than the basis says, if
    the model has such.
    """

    weights: Array
    intercept: float | Array
    basis: Array
    loss: Loss = _SQUARED
    indices: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    values: Array = field(default_factory=lambda: np.zeros(0))

    def decision_function(self, X: npt.ArrayLike) -> Array:
        """Return the scores of this user's rows: what the loss is a function of."""
        rows = np.asarray(X, dtype=np.float64)
        scores = rows @ (self.basis @ self.weights) + self.intercept
        return np.asarray(scores + rows[:, self.indices] @ self.values if self.values.size else scores)

    def predict(self, X: npt.ArrayLike) -> npt.NDArray[Any]:
        """Return predictions for this user's rows: numbers, classes or rates, as the loss says."""
        return self.loss.predict(self.decision_function(X))

    def predict_proba(self, X: npt.ArrayLike) -> Array:
        """Return a probability a class (loss 'logistic')."""
        return self.loss.probabilities(self.decision_function(X))

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return np.array(self.weights, dtype=dtype)


class PersonalModel:
    """Prediction and personalisation with fitted ``basis_``, ``heads_``, ``intercepts_`` and ``users_``."""

    basis_: Array
    heads_: Array
    intercepts_: Array
    users_: npt.NDArray[Any]
    feature_names_in_: npt.NDArray[Any]
    loss: str = "squared"
    classes: Sequence[Any] | None = None
    fit_intercept: bool = False

    @property
    def classes_(self) -> npt.NDArray[Any]:
        """The declared labels, in the order of the columns of :meth:`predict_proba`."""
        labels = self._loss().classes
        if labels is None:
            raise AttributeError(f"a model with loss={self.loss!r} has no classes.")
        return np.asarray(labels)

    def decision_function(self, X: npt.ArrayLike, users: npt.ArrayLike) -> Array:
        """Return the score of each row under its user's head; one a class where there are more than two."""
        self._check_fitted()
        rows = self._rows(X)
        positions = self._positions(users, len(rows))
        scores = np.einsum("nk,nk...->n...", rows @ self.basis_, self.heads_[positions])
        return np.asarray(scores + self.intercepts_[positions])

    def predict(self, X: npt.ArrayLike, users: npt.ArrayLike) -> npt.NDArray[Any]:
        """Predict each row with the head of its user: numbers, classes or rates, as the loss says."""
        return self._loss().predict(self.decision_function(X, users))

    def predict_proba(self, X: npt.ArrayLike, users: npt.ArrayLike) -> Array:
        """Return a probability a class for each row (loss 'logistic'), in the order of ``classes_``."""
        return self._loss().probabilities(self.decision_function(X, users))

    def score(self, X: npt.ArrayLike, y: npt.ArrayLike, users: npt.ArrayLike) -> float:
        """Accuracy for classes, R² for numbers, explained deviance for counts; of private data, not for publication."""
        return self._loss().score(y, self.predict(X, users))

    def personalize(self, X: npt.ArrayLike, y: npt.ArrayLike) -> Head:
        """Fit a head for a user who was not there at training, from their own rows and the public basis.

        Costs nobody any privacy: nothing of it is released.
        """
        self._check_fitted()
        rows = self._rows(X)
        loss = self._loss()
        target = loss.encode(y)
        if target.shape != (len(rows),):
            raise DataError(f"y must have one value a row of X ({len(rows)}). Found shape {target.shape}.")
        if not (np.isfinite(rows).all() and np.isfinite(target).all()):
            raise DataError("X and y must be finite numbers. Found missing or infinite values.")
        return self._head(rows, target)

    def _head(self, X: Array, y: Array) -> Head:
        """Fit one user's head on rows that were checked and targets as the loss encodes them."""
        fitted = self._heads(X, y, np.array([0, len(X)]))[0]
        level = fitted[-1] if fitted.ndim > 1 else float(fitted[-1])
        return Head(fitted[:-1], level, self.basis_, self._loss())

    def _loss(self) -> Loss:
        return Loss(self.loss, self.classes)

    def _heads(self, X: npt.NDArray[np.floating], y: npt.NDArray[np.floating], offsets: Offsets) -> Array:
        """Fit heads for encoded targets, a row a user: k weights, then the intercept, each with a column a class."""
        return self.head_work()(X, y, offsets)

    def head_work(self) -> HeadWork:
        """Return what fits a head: data, so that it can travel to users."""
        loss = self._loss()
        if loss.name == "squared":
            return RidgeHeads(self.basis_, bool(self.fit_intercept))
        return LossHeads(self.basis_, loss, bool(self.fit_intercept))

    def _take_heads(self, heads: Array) -> None:
        self.heads_, self.intercepts_ = heads[:, :-1], heads[:, -1]

    def _rows(self, X: npt.ArrayLike) -> Array:
        columns = getattr(X, "columns", None)
        names = [str(name) for name in self.feature_names_in_]
        if columns is not None and set(names) <= {str(column) for column in columns}:
            X = X[names]  # type: ignore[call-overload,index]
        rows = _as_rows(X)
        if rows.ndim != 2 or rows.shape[1] != len(self.basis_):
            raise DataError(f"X must have {len(self.basis_)} columns, as at training. Found shape {rows.shape}.")
        return rows

    def _positions(self, users: npt.ArrayLike, rows: int) -> npt.NDArray[np.int64]:
        ids = np.asarray(users)
        if ids.shape != (rows,):
            raise DataError(f"users must have one id a row of X ({rows}). Found shape {ids.shape}.")
        positions = Directory(self.users_).find(ids)
        unknown = int(np.count_nonzero(positions < 0))
        if unknown:
            raise DataError(
                f"{unknown} of {rows} rows belong to users who have no head. "
                "Give a new user one with personalize(X, y), from that user's own rows."
            )
        return positions

    def _check_fitted(self) -> None:
        if not hasattr(self, "basis_"):
            raise RuntimeError(f"this {type(self).__name__} is not fitted yet. Call fit first.")


def _as_rows(X: npt.ArrayLike) -> Array:
    """Return rows as floats; what cannot be is refused without showing it."""
    try:
        return np.asarray(X, dtype=np.float64)
    except (TypeError, ValueError):
        pass  # its message shows a cell
    raise DataError("X must be rows of numbers. Found cells that are not.")
