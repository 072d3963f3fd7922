"""The linear mixed model without privacy, by maximum likelihood: the reference that private fits are compared with.

Model: y = zᵀwᵢ + e with z = (1, x), wᵢ ~ N(w̄, S), e ~ N(0, s²); S is a full covariance matrix. The likelihood depends
on a user's rows through ZᵀZ, Zᵀy and yᵀy only, so every iteration works on one p×p matrix per user. Given (S, s²) the
population weights w̄ solve the generalised least-squares equations exactly; (S, s²) are found by parameter-expanded
expectation maximisation (Liu, Rubin and Wu 1998), which has the same fixed points as maximum likelihood.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tacitly.arrays import Array
from tacitly.data.cohort import Cohort
from tacitly.data.user_ids import Directory
from tacitly.methods.conventions import Conventions

_TINY = 1e-10


class MixedModel(Conventions):
    """Personal intercepts and slopes around a population mean, fitted without privacy.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> users = np.repeat(np.arange(200), 5)
    >>> x = rng.normal(size=1000)
    >>> y = 2.0 + rng.normal(size=200)[users] + 3.0 * x + 0.1 * rng.normal(size=1000)
    >>> model = MixedModel().fit(x[:, None], y, users)
    >>> model.mean_.round(1), round(float(model.covariance_[0, 0]), 1)
    (array([2., 3.]), 1.0)
    """

    def __init__(self, *, iterations: int = 500, tolerance: float = 1e-6) -> None:
        self.iterations = iterations
        self.tolerance = tolerance

    def fit(self, X: Any, y: Any = None, users: Any = None) -> MixedModel:
        """Fit by maximum likelihood; rows in any order."""
        cohort = X if isinstance(X, Cohort) else Cohort.from_arrays(X, y, users)
        assert cohort.y is not None
        rows, targets = np.asarray(cohort.X, np.float64), np.asarray(cohort.y, np.float64)
        center, scale = rows.mean(axis=0), rows.std(axis=0)
        scale = np.where(scale > 0, scale, 1.0)
        level, spread = float(targets.mean()), float(targets.std()) or 1.0
        design = np.column_stack([np.ones(len(rows)), (rows - center) / scale])
        moments = _Moments(design, (targets - level) / spread, cohort.offsets)
        mean, covariance, noise = _maximise(moments, self.iterations, self.tolerance)
        posterior = moments.posterior_means(mean, covariance, noise)
        # Back to the units of the data: a linear map of the weights.
        back = np.diag(np.append(1.0, 1.0 / scale)) * spread
        back[0, 1:] = -spread * center / scale
        self.mean_ = back @ mean + np.append(level, np.zeros(len(center)))
        self.covariance_ = back @ covariance @ back.T
        self.noise_variance_ = noise * spread**2
        self.weights_ = posterior @ back.T
        self.weights_[:, 0] += level
        self.users_ = cohort.users
        return self

    def predict(self, X: npt.ArrayLike, users: npt.ArrayLike) -> Array:
        """Predict each row with the posterior mean of its user's weights; unseen users with the population's."""
        rows = np.asarray(X, np.float64)
        positions = Directory(self.users_).find(np.asarray(users))
        weights = np.where((positions >= 0)[:, None], self.weights_[positions], self.mean_)
        return np.asarray(weights[:, 0] + np.einsum("ij,ij->i", rows, weights[:, 1:]))


class _Moments:
    """ZᵀZ, Zᵀy and yᵀy of every user."""

    def __init__(self, design: Array, targets: Array, offsets: npt.NDArray[np.int64]) -> None:
        starts = offsets[:-1]
        self.grams = np.stack(
            [np.add.reduceat(design * design[:, [j]], starts) for j in range(design.shape[1])], axis=1
        )
        self.rights = np.add.reduceat(design * targets[:, None], starts)
        self.squares = np.add.reduceat(targets**2, starts)
        self.n_rows = len(targets)

    def whitened(self, mean: Array, root: Array, noise: float) -> tuple[Array, Array, Array]:
        """Posterior means and covariances in coordinates where the prior is standard normal, and ZᵀZ·root."""
        size = root.shape[1]
        products = self.grams @ root
        covariances: Array = np.linalg.inv(np.eye(size) + root.T @ products / noise).astype(np.float64, copy=False)
        score = (self.rights - self.grams @ mean) @ root / noise
        return np.einsum("nij,nj->ni", covariances, score), covariances, products

    def posterior_means(self, mean: Array, covariance: Array, noise: float) -> Array:
        """Return everybody's posterior mean, one row per user."""
        root = _root(covariance)
        return np.asarray(mean + self.whitened(mean, root, noise)[0] @ root.T)


def _maximise(moments: _Moments, iterations: int, tolerance: float) -> tuple[Array, Array, float]:
    size = moments.rights.shape[1]
    gram, ridge = moments.grams.sum(axis=0), _TINY * np.eye(size)
    mean = np.linalg.solve(gram + np.trace(gram) * ridge, moments.rights.sum(axis=0))
    noise, covariance = 0.5, np.eye(size) * 0.5 / size
    previous: Array | None = None
    for _ in range(iterations):
        root = _root(covariance)
        _, spread, products = moments.whitened(mean, root, noise)
        information = (gram - np.einsum("nij,njk,nlk->il", products, spread, products, optimize=True) / noise) / noise
        score = (moments.rights - moments.grams @ mean) / noise
        centred = np.einsum("nij,nj->ni", spread, score @ root)
        gradient = score.sum(axis=0) - np.einsum("nij,nj->i", products, centred) / noise
        mean = mean + np.linalg.solve(information + np.trace(information) * ridge, gradient)

        means, spread, products = moments.whitened(mean, root, noise)
        covariance = root @ (means.T @ means + spread.sum(axis=0)) @ root.T / len(means)
        weights = mean + means @ root.T
        residuals = (
            moments.squares
            - 2.0 * np.einsum("ni,ni->n", moments.rights, weights)
            + np.einsum("ni,nij,nj->n", weights, moments.grams, weights)
        )
        uncertain = np.einsum("ij,nij->n", root, products @ spread)
        noise = max(float((residuals + uncertain).sum()) / moments.n_rows, 1e-14)
        current = np.concatenate([mean, np.sqrt(np.maximum(np.diag(covariance), 0.0)), [np.sqrt(noise)]])
        if previous is not None and np.abs(current - previous).max() < tolerance * np.sqrt(noise):
            break
        previous = current
    return mean, covariance, noise


def _root(covariance: Array) -> Array:
    size = len(covariance)
    return np.asarray(np.linalg.cholesky(covariance + _TINY * (np.trace(covariance) / size + 1e-30) * np.eye(size)))
