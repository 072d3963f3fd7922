"""What every fitted model can do: predict for its users, take in a new one, be saved.

A model has a public part (a basis) and a private one (a head a user). They are kept apart from here on: in memory as
separate attributes, on disk in separate places.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tacit.cells import DataError
from tacit.heads import fit_head
from tacit.ids import Directory

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Head:
    """One user's personal model on a public basis. Private to that user.

    ``weights`` are on the basis; ``intercept`` is the user's own level; ``indices`` and ``values`` are features that
    the user weighs otherwise than the basis says, if the model has such.
    """

    weights: Array
    intercept: float
    basis: Array
    indices: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    values: Array = field(default_factory=lambda: np.zeros(0))

    def predict(self, X: npt.ArrayLike) -> Array:
        """Return predictions for this user's rows."""
        rows = np.asarray(X, dtype=np.float64)
        return rows @ (self.basis @ self.weights) + rows[:, self.indices] @ self.values + self.intercept

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return np.array(self.weights, dtype=dtype)


class PersonalModel:
    """Prediction and personalisation with fitted ``basis_``, ``heads_``, ``intercepts_`` and ``users_``."""

    basis_: Array
    heads_: Array
    intercepts_: Array
    users_: npt.NDArray[Any]
    feature_names_in_: npt.NDArray[Any]

    def predict(self, X: npt.ArrayLike, users: npt.ArrayLike) -> Array:
        """Predict each row with the head of its user."""
        self._check_fitted()
        rows = self._rows(X)
        positions = self._positions(users, len(rows))
        prediction = np.einsum("nk,nk->n", rows @ self.basis_, self.heads_[positions])
        return np.asarray(prediction + self.intercepts_[positions])

    def score(self, X: npt.ArrayLike, y: npt.ArrayLike, users: npt.ArrayLike) -> float:
        """Coefficient of determination R² of :meth:`predict`. Computed from private data: not for publication."""
        target = np.asarray(y, dtype=np.float64)
        left = np.sum((target - self.predict(X, users)) ** 2)
        spread = np.sum((target - target.mean()) ** 2)
        return float(1.0 - left / spread) if spread > 0 else 0.0

    def personalize(self, X: npt.ArrayLike, y: npt.ArrayLike) -> Head:
        """Fit a head for a user who was not there at training, from their own rows and the public basis.

        Costs nobody any privacy: nothing of it is released.
        """
        self._check_fitted()
        rows = self._rows(X)
        target = np.asarray(y, dtype=np.float64)
        if target.shape != (len(rows),):
            raise DataError(f"y must have one value a row of X ({len(rows)}). Found shape {target.shape}.")
        if not (np.isfinite(rows).all() and np.isfinite(target).all()):
            raise DataError("X and y must be finite numbers. Found missing or infinite values.")
        return self._head(rows, target)

    def _head(self, X: Array, y: Array) -> Head:
        """Fit one user's head on rows that were checked."""
        fitted = fit_head(X, y, self.basis_, intercept=bool(getattr(self, "fit_intercept", False)))
        return Head(fitted[:-1], float(fitted[-1]), self.basis_)

    def _rows(self, X: npt.ArrayLike) -> Array:
        columns = getattr(X, "columns", None)
        names = [str(name) for name in self.feature_names_in_]
        if columns is not None and set(names) <= {str(column) for column in columns}:
            X = X[names]  # type: ignore[call-overload,index]
        rows = np.asarray(X, dtype=np.float64)
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
