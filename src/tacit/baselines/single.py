"""One model for everybody: pooled least squares, not private. What ignoring that users differ costs."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator

from tacit.cohort import Cohort
from tacit.personal import PersonalModel
from tacit.tables import row_blocks

_RIDGE = 1e-9


class SingleModel(PersonalModel, BaseEstimator):  # type: ignore[misc]
    """One linear model on everybody's rows.

    Examples
    --------
    >>> import tacit
    >>> X, y, users, *_ = tacit.datasets.make_shared_subspace(50, 4, 1, 20, random_state=0)
    >>> tacit.SingleModel().fit(X, y, users).heads_.shape  # the same head for all
    (50, 1)
    """

    def __init__(self, *, fit_intercept: bool = False) -> None:
        self.fit_intercept = fit_intercept

    def fit(self, X: Any, y: Any = None, users: Any = None) -> SingleModel:
        """Fit the pooled model, a block of rows at a time."""
        cohort = X if isinstance(X, Cohort) else Cohort.from_arrays(X, y, users)
        assert cohort.y is not None
        d, one = cohort.n_features, int(self.fit_intercept)
        gram, right = np.zeros((d + one, d + one)), np.zeros(d + one)
        for block in row_blocks(cohort.n_rows, d):
            rows = np.asarray(cohort.X[block], dtype=np.float64)
            if one:
                rows = np.column_stack([rows, np.ones(len(rows))])
            gram += rows.T @ rows
            right += rows.T @ np.asarray(cohort.y[block], dtype=np.float64)
        gram += _RIDGE * np.trace(gram) / len(gram) * np.eye(len(gram))
        weights = np.linalg.solve(gram, right)
        self.basis_ = np.asarray(weights[:d, None], dtype=np.float64)
        self.heads_ = np.ones((cohort.n_users, 1))
        self.intercepts_ = np.full(cohort.n_users, weights[d] if one else 0.0)
        self.users_ = cohort.users
        self.n_features_in_ = d
        self.feature_names_in_ = np.array(cohort.feature_names, dtype=str)
        return self
