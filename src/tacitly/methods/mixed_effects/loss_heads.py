"""Heads for classes and counts: posteriors by expectation propagation. Computed at home, never released.

A head is the posterior mean of the user's p weights (p for each class where there are several), followed by the upper
triangle of their posterior covariance (the mean over classes), both in public coordinates.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tacitly.arrays import Array, Offsets, Rows
from tacitly.heads.base import HeadWork
from tacitly.methods.mixed_effects.likelihoods import loss_posteriors
from tacitly.methods.mixed_effects.posterior import Coordinates, Prior

_BLOCK = 4096


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
        found = loss_posteriors(X, y, offsets, self.units, self.prior)
        weights = self.prior.mean + found.means @ self.prior.root.T
        covariances = self.prior.root @ found.covariances @ self.prior.root.T
        upper = np.triu_indices(self.units.size)
        return np.hstack([weights.reshape(len(weights), -1), covariances[:, upper[0], upper[1]]])
