"""The posterior of a user by the loss of the prior: exact for numbers, by expectation propagation for classes, counts.

For any likelihood, in coordinates where the prior is standard normal, the posterior mean u = E[v | rows] is the score
of the population's weights and I − R = I − Cov[v | rows] their observed information; and E[u uᵀ] = E[I − R] if the
prior is right, by the law of total variance. So whatever is learned from (u, J = I − R) for numbers is learned for
classes and counts in the same way, and only the posteriors differ.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tacitly.arrays import Array, Offsets, Rows
from tacitly.methods.mixed_effects import posterior, propagation
from tacitly.methods.mixed_effects.posterior import Coordinates, Posteriors, Prior

CODES = {"logistic": propagation.LOGISTIC, "poisson": propagation.POISSON}

LARGEST_COUNT = 1e9
"""Counts beyond it are taken for it."""


@dataclass(frozen=True)
class LossPosteriors(Posteriors):
    """Posteriors for classes or counts, and what rows say about the noise of log rates."""

    noise_excess: Array  # zero on average if the noise variance is right
    noise_information: Array  # how sensitive the excess is to it


def posteriors(X: Rows, y: Rows, offsets: Offsets, units: Coordinates, prior: Prior) -> Posteriors:
    """Return the posteriors of several users under a public prior; a user without rows has the prior."""
    if prior.loss == "squared":
        return posterior.posteriors(X, y, offsets, units, prior)
    return propagated(units.design(X), np.asarray(y, dtype=np.float64), offsets, prior)


def propagated(design: Array, targets: Array, offsets: Offsets, prior: Prior) -> LossPosteriors:
    """Return posteriors for classes (0 or 1) or counts by expectation propagation.

    >>> prior = Prior(np.zeros(1), np.eye(1), 1e-9, "logistic")
    >>> found = propagated(np.ones((2, 1)), np.array([1.0, 1.0]), np.array([0, 2]), prior)
    >>> found.means.round(2), found.covariances[0].round(2).tolist()
    (array([[0.68]]), [[0.73]])
    """
    count, size = len(offsets) - 1, len(prior.mean)
    means, covariances, extra = np.zeros((count, size)), np.zeros((count, size, size)), np.zeros((count, 3))
    code = CODES[prior.loss]
    if code == propagation.POISSON:
        targets = np.where(targets >= 0, np.minimum(targets, LARGEST_COUNT), np.nan)
    noise = prior.noise if code == propagation.POISSON else 0.0
    propagation.propagate(
        np.ascontiguousarray(design),
        np.ascontiguousarray(targets),
        np.ascontiguousarray(offsets, dtype=np.int64),
        np.ascontiguousarray(prior.mean),
        np.ascontiguousarray(prior.root),
        noise,
        code,
        means,
        covariances,
        extra,
    )
    information = np.eye(size) - covariances
    return LossPosteriors(means, covariances, information, np.zeros(count), extra[:, 2], extra[:, 0], extra[:, 1])
