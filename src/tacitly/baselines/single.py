"""One model for all users: a pooled fit, not private. It shows the cost of ignoring differences between users."""

from __future__ import annotations

import numpy as np

from tacitly.arrays import Array
from tacitly.baselines.base import Baseline
from tacitly.data.cohort import Cohort
from tacitly.data.source import row_blocks

_RIDGE = 1e-9
_MOST_ROWS = 50_000  # for losses that need many passes: enough for two digits of accuracy


class SingleModel(Baseline):
    """One linear model on the rows of all users.

    Examples
    --------
    >>> import tacitly
    >>> X, y, users, *_ = tacitly.datasets.make_shared_subspace(50, 4, 1, 20, random_state=0)
    >>> tacitly.SingleModel().fit(X, y, users).heads_.shape  # the same head for all
    (50, 1)
    """

    def _fit_cohort(self, cohort: Cohort) -> None:
        weights, level = self._least_squares(cohort) if self.loss == "squared" else self._by_scikit_learn(cohort)
        self.basis_ = np.asarray(weights if weights.ndim > 1 else weights[:, None], dtype=np.float64)
        columns = self.basis_.shape[1]
        own = np.eye(columns) if self._loss().columns > 1 else np.ones(1)
        self.heads_ = np.broadcast_to(own, (cohort.n_users, *own.shape)).copy()
        self.intercepts_ = np.broadcast_to(level, (cohort.n_users, *np.shape(level))).copy()

    def _by_scikit_learn(self, cohort: Cohort) -> tuple[Array, Array]:
        """Fit all rows as one table with weak ridge penalty; if there are very many, fit a sample of them."""
        from sklearn.linear_model import LogisticRegression, PoissonRegressor
        from sklearn.svm import LinearSVC

        assert cohort.y is not None
        step, own = -(-cohort.n_rows // _MOST_ROWS), self.fit_intercept
        codes = self._loss().encode(np.asarray(cohort.y[::step]))
        fitted = {
            "logistic": LogisticRegression(fit_intercept=own, max_iter=300),
            "hinge": LinearSVC(fit_intercept=own),
            "poisson": PoissonRegressor(alpha=1e-3, fit_intercept=own, max_iter=300),
        }[self.loss].fit(np.asarray(cohort.X[::step], np.float64), codes)
        weights, level = np.atleast_2d(fitted.coef_), np.atleast_1d(fitted.intercept_)
        if len(weights) == 1:
            return weights[0], np.asarray(level[0] if own else 0.0)
        return weights.T, level if own else np.zeros(len(weights))

    def _least_squares(self, cohort: Cohort) -> tuple[Array, Array]:
        """Fit all rows, one block at a time."""
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
        return np.asarray(weights[:d], dtype=np.float64), np.asarray(weights[d] if one else 0.0)
