"""Heads for classes and counts: posteriors by expectation propagation. Computed at home, never released.

A head is the posterior mean of the user's p weights (p for each class where there are several), followed by the upper
triangle of their posterior covariance (the mean over classes), both in public coordinates.

People are not drawn from a normal law: many more than it says are far from everybody else (members of a union who stay
in it for life), and privacy noise blurs S besides. So for classes the prior at home is a mixture: S multiplied by one
of :data:`SCALES`, with public odds. Each user's own rows weigh them by their evidence under each, and the head has the
means of means and covariances: those who are far off keep more of what is their own. (The spread between the means is
left out: probabilities saturate, and with it a user who always answers "yes" would be given less than each of the
posteriors says.) Where users do follow the normal law this costs a few thousandths of the log loss.

Counts say clearly how far off a user is under S itself. There the other prior knows nothing but that people have
levels: users whose rows the population's prior would all but exclude fall back on their own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from tacitly.arrays import Array, Offsets, Rows
from tacitly.heads.base import HeadWork
from tacitly.methods.mixed_effects.likelihoods import class_by_class, propagated
from tacitly.methods.mixed_effects.posterior import Coordinates, Prior

SCALES = {0.5: 0.27, 2.0: 0.33, 4.0: 0.15, 8.0: 0.07}
"""For classes: by what S is multiplied, and how often users are expected to be so, relative to S itself.

Public, and chosen before they were tried on any table.
"""

ALONE = 0.05
"""For counts: odds of a user who is predicted by nothing but the user's own level."""

OWN = {"logistic": 2.0, "poisson": 5.0}
"""Deviations of levels of users about whom nothing is known."""

_BLOCK = 4096
_LARGEST = 300.0  # logarithm of a ratio of evidences


@dataclass(frozen=True)
class LossPosteriorHeads(HeadWork):
    """Means and covariances of users' weights under a public prior for classes or counts."""

    units: Coordinates
    prior: Prior

    def __call__(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        """Return one head per user."""
        blocks = []
        for first in range(0, len(offsets) - 1, _BLOCK):
            bounds = offsets[first : first + _BLOCK + 1]
            rows = slice(int(bounds[0]), int(bounds[-1]))
            blocks.append(self._block(X[rows], y[rows], bounds - bounds[0]))
        return np.concatenate(blocks) if blocks else np.zeros((0, *self.shape))

    def own(self, X: Rows, y: Rows) -> Array:
        """Return one user's head."""
        return np.asarray(self._block(X, y, np.array([0, len(X)]))[0])

    @property
    def shape(self) -> tuple[int, ...]:
        """Weights and the upper triangle of their covariance."""
        size = self.units.size
        return (self.prior.mean.size + size * (size + 1) // 2,)

    def _block(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        design, targets = self.units.design(X), np.asarray(y, dtype=np.float64)
        weights, total = [], np.zeros((len(offsets) - 1, self.units.size, self.units.size))
        for own, prior in class_by_class(targets, self.prior):
            mean, covariances = mixed_posteriors(design, own, offsets, prior)
            weights.append(mean)
            total += covariances
        upper = np.triu_indices(self.units.size)
        return np.hstack([*weights, total[:, upper[0], upper[1]] / len(weights)])


def mixed_posteriors(design: Array, targets: Array, offsets: Offsets, prior: Prior) -> tuple[Array, Array]:
    """Return means (n×p) and covariances (n×p×p) of users' weights under the mixture; of the prior for no rows.

    >>> prior = Prior(np.zeros(1), np.eye(1), 1.0, "logistic")
    >>> ten, odds = np.array([0, 10]), np.ones((10, 1))
    >>> mixed_posteriors(odds, np.ones(10), ten, prior)[0].round(1)  # ten times yes: 1.7 under the prior alone
    array([[2.4]])
    >>> bool(abs(mixed_posteriors(odds, np.arange(10) % 2.0, ten, prior)[0][0, 0]) < 0.01)
    True
    """
    usual = propagated(design, targets, offsets, prior)
    total, means = np.full(len(usual.rows), 1.0), prior.mean + usual.means @ prior.root.T
    spread = _turned(usual.covariances, prior.root)
    for odds, other in others(prior):
        found = propagated(design, targets, offsets, other)
        ratio = np.clip(np.nan_to_num(found.evidence - usual.evidence), -_LARGEST, _LARGEST)
        share = np.where((usual.rows > 0) & (found.rows > 0), odds * np.exp(ratio), 0.0)
        total += share
        means += share[:, None] * (other.mean + found.means @ other.root.T)
        spread += share[:, None, None] * _turned(found.covariances, other.root)
    return means / total[:, None], spread / total[:, None, None]


def others(prior: Prior) -> Iterator[tuple[float, Prior]]:
    """Yield the other priors that users weigh against ``prior``, each with its odds relative to it."""
    if prior.loss == "logistic":
        for scale, odds in SCALES.items():
            yield odds, replace(prior, root=prior.root * math.sqrt(scale))
    else:
        size = len(prior.mean)
        own = np.append(OWN["poisson"], np.full(size - 1, 1e-3))
        yield ALONE, replace(prior, mean=np.zeros(size), root=np.diag(own))


def _turned(covariances: Array, root: Array) -> Array:
    return np.asarray(root @ covariances @ root.T)
