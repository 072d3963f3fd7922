"""Mixed models for classes and counts without privacy: the reference that private fits are compared with.

Model: η = zᵀwᵢ with z = (1, x), wᵢ ~ N(w̄, S), and y a class of probability 1/(1 + exp(−η)) or a count of rate
exp(η + e), e ~ N(0, s²). S is full, or has only the intercept's variance. Maximum likelihood, by Newton's method on the
moments of users' posteriors: at the maximum Σu = 0, Σ(u uᵀ − J) = 0 and Σ s²(α² − β) = 0 in the notation of
:mod:`~tacitly.methods.mixed_effects.likelihoods`. Posteriors are those of expectation propagation.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tacitly.arrays import Array
from tacitly.data.cohort import Cohort
from tacitly.data.user_ids import Directory
from tacitly.methods.conventions import Conventions
from tacitly.methods.mixed_effects.likelihoods import LossPosteriors, mean_response, propagated
from tacitly.methods.mixed_effects.posterior import Prior


class MixedLossModel(Conventions):
    """Personal intercepts and slopes around a population mean for loss ``"logistic"`` or ``"poisson"``; not private.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> users = np.repeat(np.arange(500), 8)
    >>> rate = np.exp(1.0 + 0.5 * rng.normal(size=500))[users]
    >>> model = MixedLossModel("poisson").fit(np.zeros((4000, 1)), rng.poisson(rate), users)
    >>> round(float(model.prior_.mean[0]), 1), round(float(model.prior_.covariance[0, 0] ** 0.5), 1)
    (1.0, 0.5)
    """

    def __init__(self, loss: str, *, slopes: bool = True, iterations: int = 60) -> None:
        self.loss = loss
        self.slopes = slopes
        self.iterations = iterations

    def fit(self, X: Any, y: Any = None, users: Any = None) -> MixedLossModel:
        """Fit by maximum likelihood; rows in any order, targets 0 and 1 or counts."""
        cohort = X if isinstance(X, Cohort) else Cohort.from_arrays(X, y, users)
        assert cohort.y is not None
        rows, targets = np.asarray(cohort.X, np.float64), np.asarray(cohort.y, np.float64)
        self._center, scale = rows.mean(axis=0), rows.std(axis=0)
        self._gain = np.where(scale > 0, 1.0 / np.where(scale > 0, scale, 1.0), 0.0)
        design, size = self._design(rows), rows.shape[1] + 1
        level = float(np.mean(targets))
        mean = np.append(np.log(level) if self.loss == "poisson" else np.log(level / (1.0 - level)), np.zeros(size - 1))
        deviations = np.append(0.7, np.full(size - 1, 0.3 / np.sqrt(size) if self.slopes else 0.01))
        prior = Prior(mean, np.diag(deviations), 0.1, self.loss)
        for _ in range(self.iterations):
            prior = self._step(propagated(design, targets, cohort.offsets, prior), prior)
        found = propagated(design, targets, cohort.offsets, prior)
        self.prior_, self.users_ = prior, cohort.users
        self.weights_ = prior.mean + found.means @ prior.root.T
        self.covariances_ = prior.root @ found.covariances @ prior.root.T
        return self

    def predict_mean(self, X: npt.ArrayLike, users: npt.ArrayLike) -> Array:
        """Return the probability of class 1, or the expected count, under each user's posterior."""
        positions = Directory(self.users_).find(np.asarray(users))
        known = positions >= 0
        weights = np.where(known[:, None], self.weights_[positions], self.prior_.mean)
        covariances = np.where(known[:, None, None], self.covariances_[positions], self.prior_.covariance)
        design = self._design(np.asarray(X, np.float64))
        scores = np.einsum("ij,ij->i", design, weights)
        return mean_response(scores, np.einsum("ij,ijk,ik->i", design, covariances, design), self.prior_)

    def _design(self, rows: Array) -> Array:
        return np.column_stack([np.ones(len(rows)), (rows - self._center) * self._gain])

    def _step(self, found: LossPosteriors, prior: Prior) -> Prior:
        """One Newton step for the mean, one for the covariance, one for the noise."""
        n, size = found.means.shape
        information = found.information.mean(axis=0)
        damped = information + 1e-9 * np.trace(information) * np.eye(size)
        mean = prior.mean + prior.root @ np.linalg.lstsq(damped, found.means.mean(axis=0), rcond=1e-12)[0]
        change = found.means.T @ found.means / n - information
        diagonals = np.einsum("nii->ni", found.information)
        change = change / np.maximum(diagonals.T @ diagonals / n, 0.05)
        if not self.slopes:
            change = np.diag(np.append(change[0, 0], np.zeros(size - 1)))
        values, vectors = np.linalg.eigh(np.eye(size) + 0.8 * change)
        root = prior.root @ (vectors * np.sqrt(np.clip(values, 0.3, 3.0)))
        root = np.linalg.cholesky(root @ root.T + 1e-12 * np.eye(size))
        factor = 1.0 + found.noise_excess.sum() / max(found.noise_information.sum(), 1e-12)
        noise = float(np.clip(prior.noise * np.clip(factor, 0.3, 3.0), 1e-6, 25.0))
        return replace(prior, mean=mean, root=root, noise=noise if self.loss == "poisson" else prior.noise)
