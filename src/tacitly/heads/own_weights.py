"""Heads on a shared basis that may be mostly noise, combined with additional weights of the user.

With few users, privacy noise can dominate the basis U. A head on U can then predict worse than a model fitted by the
user alone, which has a weight for every feature and so is not a head on U. Therefore a user's weights are Uv + b, with
b orthogonal to U, and all of them are shrunk together by the prior N(0, s²(UUᵀ + r²(I − UUᵀ))) for each r in
:data:`RATIOS`. With r = 0 all weights lie in U (the usual head); with r = 1 the basis is ignored (the user's own ridge
regression). The fits are averaged with weights (public prior odds) times E^(−(m−1)/2), where E is the leave-one-out sum
of squared errors over m rows. Everything is computed locally from the user's rows and the public basis: nothing is
released.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from tacitly.arrays import Array, Offsets, Rows, check_shape, check_size
from tacitly.heads.base import HeadWork
from tacitly.heads.penalties import LEAST_TRACE
from tacitly.heads.ridge import ridge_and_error

RATIOS = (0.0, 0.1, 0.3, 1.0)
"""r: the expected size of weights outside of the basis, relative to those on the basis."""

ODDS = (0.1, 1.0, 5.0, 20.0)
"""Prior odds of the ratios, before any row is seen. A few rows cannot distinguish a noisy basis from a good one, and
then the user's own model is the safe choice. Many rows that show that the basis is good outweigh any odds."""

_ZERO = 1e-10  # relative to the largest singular value: the rows do not vary in such a direction


@dataclass(frozen=True)
class HeadsWithOwnWeights(HeadWork):
    """Heads on a public orthonormal basis: weights on the basis, an intercept of 0, and one own weight per feature.

    >>> X = np.random.default_rng(0).normal(size=(30, 3)); y = X @ [2.0, 0.0, 0.5]
    >>> HeadsWithOwnWeights(np.eye(3)[:, :1]).own(X, y).round(2) + 0.0
    array([2. , 0. , 0. , 0. , 0.5])
    """

    basis: Array

    def __post_init__(self) -> None:
        check_shape("basis", self.basis, None, None)
        # Must be orthonormal, so that a message from the network cannot cause more work than a user's own columns do.
        check_size("directions", self.basis.shape[1] + 1, len(self.basis) + 1)

    def __call__(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        """Fit all users, one after another."""
        check_shape("X", X, None, len(self.basis))
        heads = [self.own(X[first:last], y[first:last]) for first, last in pairwise(offsets)]
        return np.array(heads).reshape(-1, *self.shape)

    def own(self, X: Rows, y: Rows) -> Array:
        """Fit one user; return zeros if the rows cannot be used."""
        with np.errstate(all="ignore"):
            rows, targets = np.asarray(X, dtype=np.float64), np.asarray(y, dtype=np.float64)
            along = rows @ self.basis
            outside = rows - along @ self.basis.T
            if len(rows) == 0 or not (np.isfinite(outside).all() and np.isfinite(targets).all()):
                return np.zeros(self.shape)
            try:
                fits = [self._fitted(along, outside, targets, ratio) for ratio in RATIOS]
            except np.linalg.LinAlgError:  # a decomposition did not converge
                return np.zeros(self.shape)
            errors = np.array([error for _, error in fits])
            least = max(float(errors.min()), np.finfo(float).tiny)
            weights = np.array(ODDS) * (least / np.maximum(errors, least)) ** ((len(rows) - 1) / 2.0)
            head: Array = weights @ np.array([head for head, _ in fits]) / weights.sum()
        return head if np.isfinite(head).all() else np.zeros(self.shape)

    def _fitted(self, along: Array, outside: Array, targets: Array, ratio: float) -> tuple[Array, float]:
        """Return the head for one ratio and its leave-one-out sum of squared errors."""
        d, k = self.basis.shape
        if ratio == 0.0:
            head, error = ridge_and_error(along, targets, intercept=False)
            return np.append(head, np.zeros(d)), error
        columns = np.hstack([along, ratio * outside])
        energy = float(np.sum(np.square(columns)))
        if not (math.isfinite(energy) and energy > LEAST_TRACE):  # otherwise LAPACK prints a message about overflow
            return np.zeros(self.shape), math.inf
        # A ridge regression in the coordinates in which the rows vary: at most one per row, for any number of features.
        left, sizes, right = np.linalg.svd(columns, full_matrices=False)
        used = sizes > _ZERO * sizes[0]
        head, error = ridge_and_error(left[:, used] * sizes[used], targets, intercept=False)
        weights = right[used].T @ head[:-1]
        return np.concatenate([weights[:k], [0.0], ratio * weights[k:]]), error

    @property
    def shape(self) -> tuple[int, ...]:
        """One weight per direction, then the intercept, then one weight per feature."""
        return (self.basis.shape[1] + 1 + len(self.basis),)
