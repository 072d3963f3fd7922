"""Scores: the user's half of a private choice, with a loss in [0, 1] for each public candidate.

Privacy. A user's losses depend on that user's rows and on public fields only. They are clamped to [0, 1] and rounded,
per user, to integer multiples of a public step; integers are added exactly. Hence removing a user's contribution lowers
every candidate's total by an amount in [0, 1] (all in one direction), and replacing the user's data changes each total
by at most 1 in either direction. Permute-and-flip on these totals is sampled exactly in rational arithmetic
(:func:`tacitly.privacy.noise.choose`). :class:`~tacitly.privacy.guarantee.SelectionEvent` is its event and contains the
proof of its ε.
"""

from __future__ import annotations

import itertools
import math
from abc import abstractmethod

import numpy as np

from tacitly.arrays import Array, Offsets, Rows
from tacitly.federation.query import Query

STEPS = 720_720
"""Default number of steps in a loss of 1: divisible by every integer up to 16, so that shares of up to 16 rows are
represented exactly and all others to within 10⁻⁶."""

MOST_STEPS = 1 << 40
"""Maximum number of steps in a loss of 1: finer than float64 resolves a share of rows."""

_CELLS = 1 << 18  # losses (users × candidates) held in memory at a time


class Scores(Query):
    """One user's loss for each candidate; the candidates are public fields of the query.

    If every user has a public number m of rows and losses are multiples of 1/m, ``steps = m`` keeps them exact.
    """

    steps: int = STEPS

    @abstractmethod
    def losses(self, X: Rows, y: Rows) -> Array:
        """Return one user's losses, one per candidate, intended to lie in [0, 1]; they are clamped to it."""

    def contribution(self, X: Rows, y: Rows) -> Array:
        """Return the losses in integer steps; all zero if any loss is not finite."""
        steps: Array = self.whole(self.losses(X, y)[None])[0]
        return steps

    def block_losses(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        """Return the losses of several users, one row per user; override where one pass over all is faster.

        A user's losses must not depend on the other users, to the last bit: no matrix product across users before the
        losses are rounded to steps, because a last bit that changes with another user's row count can move a step.
        """
        return np.array([self._losses(X[a:b], y[a:b]) for a, b in itertools.pairwise(offsets)])

    def block_sum(self, X: Rows, y: Rows, offsets: Offsets, bound: float) -> Array:
        """Sum of all users' integer steps for a choice, which has no bound: exact, and bounded by construction.

        With a finite bound each user's steps are clipped to it like any contribution, so that no wrapping turns a query
        for a choice into a sum that is not clipped.
        """
        if math.isfinite(bound):
            return super().block_sum(X, y, offsets, bound)
        total, some = np.zeros(self.coordinates), max(1, _CELLS // self.coordinates)
        for start in range(0, len(offsets) - 1, some):
            bounds = offsets[start : start + some + 1]
            rows = slice(int(bounds[0]), int(bounds[-1]))
            total += self.whole(self.block_losses(X[rows], y[rows], bounds - bounds[0])).sum(axis=0)
        return total

    def whole(self, losses: Array) -> Array:
        """Clamp rows of losses to [0, 1] and round them to integer steps; a row with a non-finite loss becomes 0."""
        # float64, because in float32 the sum of 720,720 steps over many users would not be exact.
        losses = np.asarray(losses, dtype=np.float64)
        usable = np.isfinite(losses).all(axis=1, keepdims=True)
        within = np.clip(np.where(usable, losses, 0.0), 0.0, 1.0)
        return np.asarray(np.rint(within * self.steps))

    def _losses(self, X: Rows, y: Rows) -> Array:
        try:
            return self.losses(X, y)
        except Exception:  # which users make it fail is private
            return np.zeros(self.coordinates)
