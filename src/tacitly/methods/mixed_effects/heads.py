"""Heads that are posteriors: what a user's own rows make of the public prior. Computed at home, never released.

A head is the posterior mean of the user's p weights, followed by the upper triangle of their posterior covariance, both
in public coordinates. A user without rows has the prior; with many rows the prior hardly matters. With several classes
there are p weights for each, and one covariance, the mean over classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tacitly.arrays import Array, Offsets, Rows
from tacitly.heads.base import HeadWork
from tacitly.methods.mixed_effects.likelihoods import posteriors
from tacitly.methods.mixed_effects.posterior import Coordinates, Prior

_BLOCK = 4096


@dataclass(frozen=True)
class PosteriorHeads(HeadWork):
    """Posterior means and covariances of users' weights under a public prior."""

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
        found = posteriors(X, y, offsets, self.units, self.prior)
        weights = self.prior.mean + found.means @ self.prior.root.T
        covariances = self.prior.root @ found.covariances @ self.prior.root.T
        upper = np.triu_indices(self.units.size)
        return np.hstack([weights.reshape(len(weights), -1), covariances[:, upper[0], upper[1]]])


def variances(design: Array, triangles: Array) -> Array:
    """Return zᵀVz for each row z of the design, with V the covariance whose upper triangle stands in the same row.

    >>> variances(np.array([[1.0, 2.0]]), np.array([[1.0, 0.5, 3.0]]))  # 1 + 2·0.5·2 + 3·4
    array([15.])
    """
    first, second = np.triu_indices(design.shape[1])
    products = design[:, first] * design[:, second] * np.where(first == second, 1.0, 2.0)
    return np.asarray(np.einsum("ij,ij->i", products, triangles))
