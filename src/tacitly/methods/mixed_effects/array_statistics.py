"""Statistics of each user for the array forms of the queries, computed once and kept where the rows are.

This is the counterpart of :mod:`~tacitly.methods.mixed_effects.statistics` for few users, without compiled code.
Moments do not depend on the prior, covariances of posteriors do not depend on its mean, and the weights of scores do
not depend on the round. The numbers are those of :mod:`~tacitly.methods.mixed_effects.posterior`, in one row per user,
so a query that is answered from them is the definition itself. Private, like the rows;
:mod:`tacitly.federation.statistics` says where they live.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tacitly.arrays import Array, Offsets, Rows
from tacitly.federation.statistics import Statistics
from tacitly.linalg import pack_symmetric
from tacitly.methods.mixed_effects import posterior
from tacitly.methods.mixed_effects.posterior import Coordinates, Solved
from tacitly.methods.shared.batch import norms_of


@dataclass(frozen=True)
class ArrayMoments(Statistics):
    """ZᵀZ, Zᵀt, tᵀt and the number of rows."""

    units: Coordinates

    @property
    def width(self) -> int:
        """p² + p + 2."""
        return self.units.size * (self.units.size + 1) + 2

    def __call__(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        """Return one row per user."""
        grams, rights, squares, rows = posterior.moments(X, y, offsets, self.units)
        return np.hstack([grams.reshape(len(grams), -1), rights, squares[:, None], rows[:, None]])


@dataclass(frozen=True)
class ArraySolved(Statistics):
    """Moments, then the covariances R and the information J of posteriors under a prior of this root and noise."""

    units: Coordinates
    root: Array
    noise: float

    @property
    def source(self) -> ArrayMoments:
        """Computed from moments."""
        return ArrayMoments(self.units)

    @property
    def width(self) -> int:
        """Moments, and 2p²."""
        return self.source.width + 2 * self.units.size**2

    def __call__(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        """Return one row per user; X holds moments."""
        moments, out = np.asarray(X, dtype=np.float64), np.empty((len(X), self.width))
        found = posterior.solved(_moments(moments, self.units.size), self.root, self.noise)
        out[:, : X.shape[1]], out[:, X.shape[1] - 1] = moments, found.moments[-1]
        covariances, information = _solutions(out, self.units.size)
        covariances[:], information[:] = found.covariances, found.information
        return out


@dataclass(frozen=True)
class ArrayInformation(Statistics):
    """The same, then metric·H·metric, packed, 1/√trace of it and its norm: see the query ``Information``."""

    units: Coordinates
    root: Array
    noise: float
    metric: Array

    @property
    def source(self) -> ArraySolved:
        """Computed from covariances."""
        return ArraySolved(self.units, self.root, self.noise)

    @property
    def width(self) -> int:
        """Those of the source, p(p + 1)/2 and 2."""
        return self.source.width + self.units.size * (self.units.size + 1) // 2 + 2

    def __call__(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        """Return one row per user; X holds what its source does."""
        out, start = np.empty((len(X), self.width)), X.shape[1]
        found = solved_in(np.asarray(X, dtype=np.float64), self.units.size)
        turn = np.linalg.solve(self.root, self.metric)
        turned = np.asarray(turn.T @ found.information @ turn)
        # A copy, so that the numbers of each user are added in the same order, whether alone or among others.
        traces = np.ascontiguousarray(np.diagonal(turned, axis1=1, axis2=2)).sum(axis=1)
        known = (found.moments[-1] > 0) & (traces > 0)
        packed = pack_symmetric(turned)
        out[:, :start], out[:, start:-2] = X, packed
        out[:, -2] = np.where(known, 1.0 / np.sqrt(np.maximum(traces, 1e-300)), 0.0)
        out[:, -1] = norms_of(packed)
        return out


def solved_in(rows: Array, size: int) -> Solved:
    """Return what rows of :class:`ArraySolved`, or of :class:`ArrayInformation`, hold."""
    return Solved(_moments(rows, size), *_solutions(rows, size))


def _moments(rows: Array, size: int) -> tuple[Array, Array, Array, Array]:
    square = size * size
    grams = rows[:, :square].reshape(len(rows), size, size)
    return grams, rows[:, square : square + size], rows[:, square + size], rows[:, square + size + 1]


def _solutions(rows: Array, size: int) -> tuple[Array, Array]:
    square = size * size
    start = square + size + 2
    shape = len(rows), size, size
    covariances = rows[:, start : start + square].reshape(shape)
    return covariances, rows[:, start + square : start + 2 * square].reshape(shape)
