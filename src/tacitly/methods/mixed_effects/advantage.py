"""Whether the prior helps: errors of posteriors beside those of users' own means, in units of the noise variance.

A ratio of one user's two errors says little: with two or three rows, or rows that are nearly all alike, a user's own
mean is now and then almost exact, and the ratio then counts fully against the prior however little was lost. What users
lose in squared error is the difference of the errors, so that is what is added up: in units of 2ms², m rows and the
public noise variance s², cut at ±1. A user with a single row has no own mean that could have predicted it, and says
nothing here.

Adjacency, sensitivity and event are those of :mod:`~tacitly.methods.mixed_effects.queries`: every number is bounded, so
a contribution has norm at most :attr:`Advantage.bound`, and the release is one Gaussian event.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tacitly.arrays import Array, Offsets, Rows
from tacitly.methods.mixed_effects.queries import _EXTRA, _OUTSIDE, _TAIL, REACHED, Coverage, left_out
from tacitly.methods.mixed_effects.statistics import left_out_sums
from tacitly.methods.shared.batch import per_user

USUAL = (0.25, 0.3)
"""Mean and standard deviation of the advantage, before anything is released about it: the prior nearly always helps."""


@dataclass(frozen=True)
class Advantage(Coverage):
    """Coverage with the advantage of the posterior in squared error, and the weight of users who can compare.

    In order: two shares of residuals that are far out, less what a normal law expects; the advantage; its weight;
    the weight of the first two. Users with fewer than four rows count less, in proportion.
    """

    @property
    def coordinates(self) -> int:
        """Two excesses, the advantage and two weights."""
        return 5

    @property
    def bound(self) -> float:
        """Largest norm of a contribution: all rows far out, and the prior useless."""
        return float(np.linalg.norm([*((1.0 - _OUTSIDE) * _TAIL), 1.0, _EXTRA, _EXTRA]))

    def contributions(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        """Return the five numbers of each user."""
        found = self._posteriors(X, y, offsets)
        residuals, errors = left_out(X, y, offsets, self.units, self.prior, found)
        rows, owner = np.maximum(found.rows, 1.0), np.repeat(np.arange(len(found.rows)), np.diff(offsets))
        outside = per_user((np.abs(residuals)[:, None] > REACHED).astype(np.float64), offsets)
        targets = self.units.targets(y)
        alone = (targets - (per_user(targets, offsets) / rows)[owner]) * (rows / np.maximum(rows - 1.0, 1.0))[owner]
        own, shared = per_user(np.square(alone), offsets), per_user(np.square(errors), offsets)
        return five(outside, own, shared, found.rows, self.prior.noise)

    def fused(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        """Return the contributions, compiled."""
        found, _ = left_out_sums(X, y, offsets, self.units, self.prior, REACHED)
        return five(found[:, :-3], found[:, -3], found[:, -2], found[:, -1], self.prior.noise)

    @staticmethod
    def helps(released: Array, noise: float) -> bool:
        """Return whether the prior helps, the released advantage weighed against the usual one by its noise.

        >>> Advantage.helps(np.array([0.0, 0.0, -0.1, 0.2, 0.2]), 0.001), Advantage.helps(np.zeros(5), 0.0)
        (False, True)
        """
        seen = max(float(released[3]) / _EXTRA, 0.0)
        # The sign of usual + kept·(advantage/seen − usual) with kept = 1/(1 + (noise/(seen·deviation))²).
        usual, deviation = USUAL
        return usual * noise**2 + deviation**2 * seen * float(released[2]) >= 0.0


def five(outside: Array, own: Array, shared: Array, rows: Array, noise: float) -> Array:
    """Return what users send: from how many residuals are far out, both sums of squared errors, and rows."""
    comparable = (rows > 1) & np.isfinite(own) & np.isfinite(shared)
    difference = np.where(comparable, own, 0.0) - np.where(comparable, shared, 0.0)
    advantage = np.clip(difference / (2.0 * noise * np.maximum(rows, 1.0)), -1.0, 1.0)
    weight = np.minimum(rows / 4.0, 1.0)[:, None]
    excess = (outside / np.maximum(rows, 1.0)[:, None] - _OUTSIDE) * _TAIL
    numbers = [excess, advantage[:, None], _EXTRA * comparable[:, None], np.full((len(rows), 1), _EXTRA)]
    return np.hstack(numbers) * weight
