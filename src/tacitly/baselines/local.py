"""Local models: one ridge regression per user, with the penalty chosen by the user's own leave-one-out error.

Nothing is shared, so nothing needs protection. Sharing must beat these models to be useful.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tacitly.baselines.base import Baseline
from tacitly.data.cohort import Cohort
from tacitly.heads.glm import fit_loss_heads
from tacitly.heads.ridge import fit_heads

_PENALTIES = np.array([1e-6, 1e-3, 1e-2, 0.1, 0.3, 1.0, 3.0, 10.0])


class LocalModels(Baseline):
    """One ridge regression (or logistic, hinge, Poisson) per user.

    Parameters
    ----------
    fit_intercept, loss, classes
        As for :class:`tacitly.PrivateFedRep`.
    gradient_steps
        None: exact fits. A number: that many steps of gradient descent from zero on the user's mean squared error,
        each of the largest safe length (one over the largest curvature), as in the local baseline of Private FedRep
        (Figure 2).

    Examples
    --------
    >>> import tacitly
    >>> X, y, users, *_ = tacitly.datasets.make_shared_subspace(5, 4, 1, 20, noise=0.0, random_state=0)
    >>> round(tacitly.LocalModels().fit(X, y, users).score(X, y, users), 3)
    1.0
    """

    def __init__(
        self,
        *,
        fit_intercept: bool = False,
        loss: str = "squared",
        classes: Sequence[Any] | None = None,
        gradient_steps: int | None = None,
    ) -> None:
        super().__init__(fit_intercept=fit_intercept, loss=loss, classes=classes)
        self.gradient_steps = gradient_steps

    def _fit_cohort(self, cohort: Cohort) -> None:
        d = cohort.n_features
        self.basis_ = np.eye(d)
        if self.gradient_steps is not None:
            if self.loss != "squared" or self.fit_intercept:
                raise ValueError("gradient_steps are for loss='squared' without intercepts. Leave gradient_steps out.")
            self._take_heads(
                np.array([_descended(*cohort.rows(i), self.gradient_steps) for i in range(cohort.n_users)])
            )
            return
        loss = self._loss()
        heads = np.zeros((cohort.n_users, d + 1, *((loss.columns,) if loss.columns > 1 else ())))
        few = np.diff(cohort.offsets) <= d
        for i in range(cohort.n_users):
            rows, targets = cohort.rows(i)
            assert targets is not None
            if loss.name != "squared":
                heads[i] = self._on_own_span(np.asarray(rows, np.float64), loss.encode(targets))
            elif few[i]:
                heads[i] = _dual(np.asarray(rows, np.float64), np.asarray(targets, np.float64), self.fit_intercept)
            else:
                span = np.array([0, len(rows)])
                heads[i] = fit_heads(rows, targets, span, self.basis_, intercept=self.fit_intercept)[0]
        self._take_heads(heads)

    def _on_own_span(self, X: npt.NDArray[np.float64], y: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Fit on an orthonormal basis of the user's own rows, because a ridge solution lies in their span."""
        loss = self._loss()
        span = np.linalg.qr(X.T)[0] if len(X) < X.shape[1] else np.eye(X.shape[1])
        head = fit_loss_heads(X, y, np.array([0, len(X)]), span, loss, intercept=self.fit_intercept)[0]
        whole = np.vstack([span @ head[:-1], head[-1:]])
        return whole if loss.columns > 1 else whole[:, 0]


def _descended(X: npt.NDArray[Any], y: npt.NDArray[Any] | None, steps: int) -> npt.NDArray[np.float64]:
    """Return weights after gradient steps from zero, and an intercept of zero."""
    assert y is not None
    rows, targets, weights = np.asarray(X, np.float64), np.asarray(y, np.float64), np.zeros(X.shape[1])
    largest = float(np.linalg.norm(rows, 2)) ** 2 if len(rows) else 0.0
    for _ in range(steps if largest > 0 else 0):
        weights += rows.T @ (targets - rows @ weights) / largest
    return np.append(weights, 0.0)


def _dual(X: npt.NDArray[np.float64], y: npt.NDArray[np.float64], intercept: bool) -> npt.NDArray[np.float64]:
    """Fit ridge with fewer rows than features through the m×m kernel; leave-one-out by α_j / (K + λ)⁻¹_jj."""
    means, level = (X.mean(axis=0), float(y.mean())) if intercept else (np.zeros(X.shape[1]), 0.0)
    rows, targets = X - means, y - level
    values, vectors = np.linalg.eigh(rows @ rows.T)
    values = np.maximum(values, 0.0)
    turned = vectors.T @ targets
    scale = float(values.mean())
    if not scale > 0:
        return np.append(np.zeros(X.shape[1]), level)
    penalties = scale * _PENALTIES[:, None]
    inverse = 1.0 / (values + penalties)
    alphas = (inverse * turned) @ vectors.T
    leverages = inverse @ (vectors**2).T
    if intercept:
        # The intercept adds a leverage of 1/m to every row.
        leverages = leverages - 1.0 / (len(y) * penalties)
    errors = np.sum((alphas / np.maximum(leverages, 1e-9 * inverse.max(axis=1, keepdims=True))) ** 2, axis=1)
    weights = rows.T @ alphas[int(np.argmin(errors))]
    return np.append(weights, level - float(means @ weights) if intercept else 0.0)
