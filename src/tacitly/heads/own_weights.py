"""Heads on a shared basis that may be mostly noise, with further weights of the user's own beside them.

With few users privacy noise hides much of the basis U, and a head on it can predict worse than a model of the user
alone, which no head on U can be: that model has a weight on every feature. So a user's weights are Uv + b with b
outside of U, all shrunk together: with the prior N(0, s²(UUᵀ + r²(I − UUᵀ))) for r in :data:`RATIOS`. At r = 0 all is
in U (the usual head), at r = 1 the basis says nothing (the user's own ridge regression). The fits are averaged by
public odds times the evidence of rows left out in turn, E^(−(m−1)/2) for a leave-one-out sum of squares E over m rows.
All of it happens at home, from the user's rows and the public basis: nothing is released.
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
"""r: how large weights outside of the basis are expected to be, relative to those on it."""

ODDS = (0.1, 1.0, 5.0, 20.0)
"""Of the ratios, before any row is seen. A few rows cannot tell a basis of noise from a good one: the user's own model
is the safe choice then. Rows that show the basis to be good overrule any odds."""

_ZERO = 1e-10  # of the largest singular value: a direction in which the rows do not vary


@dataclass(frozen=True)
class HeadsWithOwnWeights(HeadWork):
    """Heads on a public orthonormal basis, an intercept of 0, and one own weight per feature.

    >>> X = np.random.default_rng(0).normal(size=(30, 3)); y = X @ [2.0, 0.0, 0.5]
    >>> HeadsWithOwnWeights(np.eye(3)[:, :1]).own(X, y).round(2) + 0.0
    array([2. , 0. , 0. , 0. , 0.5])
    """

    basis: Array

    def __post_init__(self) -> None:
        check_shape("basis", self.basis, None, None)
        # It is orthonormal: a message from the network cannot ask for more work than a user's own columns take.
        check_size("directions", self.basis.shape[1] + 1, len(self.basis) + 1)

    def __call__(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        """Fit all users, one after the other."""
        check_shape("X", X, None, len(self.basis))
        heads = [self.own(X[first:last], y[first:last]) for first, last in pairwise(offsets)]
        return np.array(heads).reshape(-1, *self.shape)

    def own(self, X: Rows, y: Rows) -> Array:
        """Fit one user; zeros for rows that cannot be used."""
        with np.errstate(all="ignore"):
            rows, targets = np.asarray(X, dtype=np.float64), np.asarray(y, dtype=np.float64)
            along = rows @ self.basis
            outside = rows - along @ self.basis.T
            if len(rows) == 0 or not (np.isfinite(outside).all() and np.isfinite(targets).all()):
                return np.zeros(self.shape)
            try:
                fits = [self._fitted(along, outside, targets, ratio) for ratio in RATIOS]
            except np.linalg.LinAlgError:  # of a decomposition that does not converge
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
        if not (math.isfinite(energy) and energy > LEAST_TRACE):  # LAPACK would print that numbers overflow
            return np.zeros(self.shape), math.inf
        # A ridge regression in the coordinates in which rows vary: at most one per row, however many features there be.
        left, sizes, right = np.linalg.svd(columns, full_matrices=False)
        used = sizes > _ZERO * sizes[0]
        head, error = ridge_and_error(left[:, used] * sizes[used], targets, intercept=False)
        weights = right[used].T @ head[:-1]
        return np.concatenate([weights[:k], [0.0], ratio * weights[k:]]), error

    @property
    def shape(self) -> tuple[int, ...]:
        """One weight per direction, the intercept, one weight per feature."""
        return (self.basis.shape[1] + 1 + len(self.basis),)
