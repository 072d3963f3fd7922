"""Non-private trace regression: Riemannian gradient descent at a fixed rank, and a nuclear-norm penalty."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from tacitly.arrays import Array
from tacitly.methods.conventions import Conventions
from tacitly.methods.trace_regression.low_rank import leading, retract


class RGrad(Conventions):
    """Riemannian gradient descent on matrices of rank r (Algorithm 2 of DP-RGrad without noise), exact line search.

    It starts at the best rank-r approximation of n⁻¹ Σ yX. ``X`` has shape (n, d1, d2) and ``coef_`` is M.

    Examples
    --------
    >>> import numpy as np, tacitly
    >>> rng = np.random.default_rng(0)
    >>> M, X = np.outer(rng.normal(size=6), rng.normal(size=5)), rng.normal(size=(200, 6, 5))
    >>> bool(np.allclose(tacitly.RGrad(1).fit(X, np.einsum("nij,ij->n", X, M)).coef_, M))
    True
    """

    def __init__(self, rank: int, *, steps: int = 100, tolerance: float = 1e-12) -> None:
        self.rank = rank
        self.steps = steps
        self.tolerance = tolerance

    def fit(self, X: npt.ArrayLike, y: npt.ArrayLike, *, on_step: Callable[[Array], None] | None = None) -> RGrad:
        """Fit, until a step is shorter than ``tolerance`` relative to M; ``on_step`` is called with every iterate."""
        covariates, targets = np.asarray(X), np.asarray(y)
        shape = covariates.shape[1:]
        rows = covariates.reshape(len(targets), -1)
        found = leading((rows.T @ targets).reshape(shape) / len(targets), self.rank)
        for _ in range(self.steps):
            if on_step is not None:
                on_step(found.matrix)
            residuals = targets - rows @ found.matrix.ravel().astype(rows.dtype)
            gradient = (rows.T @ residuals).reshape(shape)
            left, right = gradient @ found.right, gradient.T @ found.left
            right = right - found.right @ (found.right.T @ right)
            tangent = left @ found.right.T + found.left @ right.T
            along = float(np.sum((rows @ tangent.ravel().astype(rows.dtype)).astype(np.float64) ** 2))
            if not along > 0:
                break
            length = float(np.sum(tangent**2)) / along
            found = retract(found, length * left, length * right)
            if length * np.linalg.norm(tangent) <= self.tolerance * np.linalg.norm(found.values):
                break
        self.coef_ = found.matrix
        return self


class NuclearNorm(Conventions):
    """Least squares with a nuclear-norm penalty chosen on held-out rows, by accelerated proximal gradient descent.

    Examples
    --------
    >>> import numpy as np, tacitly
    >>> rng = np.random.default_rng(0)
    >>> M, X = np.outer(rng.normal(size=6), rng.normal(size=5)), rng.normal(size=(400, 6, 5))
    >>> model = tacitly.NuclearNorm().fit(X, np.einsum("nij,ij->n", X, M))
    >>> bool(np.linalg.norm(model.coef_ - M) < 0.05 * np.linalg.norm(M))
    True
    """

    def __init__(self, *, penalties: int = 9, steps: int = 100) -> None:
        self.penalties = penalties
        self.steps = steps

    def fit(self, X: npt.ArrayLike, y: npt.ArrayLike) -> NuclearNorm:
        """Choose the penalty on the last fifth of the rows, then fit all; candidates halve from the labels' scale."""
        covariates, targets = np.asarray(X), np.asarray(y)
        shape, n = covariates.shape[1:], len(targets)
        rows, cut = covariates.reshape(n, -1), n - n // 5
        largest = float(np.std(targets)) * (np.sqrt(shape[0]) + np.sqrt(shape[1])) / np.sqrt(n)
        gram, cross = _moments(rows[:cut], targets[:cut])
        start, errors = np.zeros(shape), []
        choices = largest * 2.0 ** -np.arange(self.penalties)
        for penalty in choices:
            start = _proximal(gram, cross, penalty, start, self.steps)
            errors.append(float(np.mean((targets[cut:] - rows[cut:] @ start.ravel().astype(rows.dtype)) ** 2)))
        self.penalty_ = float(choices[int(np.argmin(errors))])
        self.coef_ = _proximal(*_moments(rows, targets), self.penalty_, start, self.steps)
        return self


def _moments(rows: npt.NDArray[np.floating], targets: npt.NDArray[np.floating]) -> tuple[Array, Array]:
    gram, cross = rows.T @ rows / len(rows), rows.T @ targets / len(rows)
    return gram.astype(np.float64), cross.astype(np.float64)


def _proximal(gram: Array, cross: Array, penalty: float, start: Array, steps: int) -> Array:
    length = 1.0 / float(np.linalg.norm(gram, 2)) if len(gram) <= 64 else 1.0 / _largest(gram)
    matrix, ahead, momentum = start, start, 1.0
    for _ in range(steps):
        step = ahead - length * (gram @ ahead.ravel() - cross).reshape(start.shape)
        left, values, right = np.linalg.svd(step, full_matrices=False)
        new: Array = (left * np.maximum(values - length * penalty, 0.0)) @ right
        following = (1.0 + np.sqrt(1.0 + 4.0 * momentum**2)) / 2.0
        ahead = new + (momentum - 1.0) / following * (new - matrix)
        matrix, momentum = new, following
    return matrix


def _largest(gram: Array) -> float:
    """Return the largest eigenvalue by power iteration, plus 5 %, because the iteration approaches it from below."""
    vector = np.ones(len(gram))
    for _ in range(50):
        vector = gram @ (vector / np.linalg.norm(vector))
    return 1.05 * float(np.linalg.norm(vector))
