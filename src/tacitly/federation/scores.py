"""The user's half of a choice: a loss in [0, 1] for every public candidate.

Why a choice is as private as its event says. A user's losses are computed from that user's rows and public fields
alone, brought into [0, 1], and rounded by that user to whole steps of a public size; integers add up exactly.
Taking the user away therefore lowers every candidate's total by at most one whole, all in one direction; other data
in its place move each by at most one, either way. Permute-and-flip on such totals is exact in rational arithmetic
(:func:`tacitly.privacy.noise.choose`). Adjacency and cost: see :class:`~tacitly.privacy.guarantee.SelectionEvent`.
"""

from __future__ import annotations

import itertools
from abc import abstractmethod

import numpy as np

from tacitly.arrays import Array, Offsets, Rows
from tacitly.federation.base import Query

STEPS = 720_720
"""Steps in a loss of one, unless a query says otherwise: divisible by every number up to 16, so that shares of up to 16
rows are exact, and others are to a millionth."""

MOST_STEPS = 1 << 40
"""Steps that a loss of one may have: far more than floating point keeps of a share of rows."""

_CELLS = 1 << 18  # losses held at a time: users times candidates


class Scores(Query):
    """One user's loss for every candidate; candidates are public fields of the query.

    Where a user with m rows has losses that are multiples of 1/m for a public m, ``steps = m`` keeps them exactly.
    """

    steps: int = STEPS

    @abstractmethod
    def losses(self, X: Rows, y: Rows) -> Array:
        """Return one user's losses, one a candidate, meant to lie in [0, 1]; what does not is brought there."""

    def contribution(self, X: Rows, y: Rows) -> Array:
        """Return the losses in whole steps; all zero from a user with a loss that is not a number."""
        steps: Array = self.whole(self.losses(X, y)[None])[0]
        return steps

    def block_losses(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        """Return several users' losses, a row a user; override where one pass for all is quicker.

        A user's losses must not depend on who else is there, to the last bit: no matrix product across users before
        losses are rounded to steps (a last bit that moves with a neighbour's row count can move a step).
        """
        return np.array([self._losses(X[a:b], y[a:b]) for a, b in itertools.pairwise(offsets)])

    def block_sum(self, X: Rows, y: Rows, offsets: Offsets, bound: float) -> Array:
        """Sum of everybody's whole steps: exact, so there is nothing to clip but the steps themselves."""
        total, some = np.zeros(self.coordinates), max(1, _CELLS // self.coordinates)
        for start in range(0, len(offsets) - 1, some):
            bounds = offsets[start : start + some + 1]
            rows = slice(int(bounds[0]), int(bounds[-1]))
            total += self.whole(self.block_losses(X[rows], y[rows], bounds - bounds[0])).sum(axis=0)
        return total

    def whole(self, losses: Array) -> Array:
        """Bring rows of losses into [0, 1] and to whole steps, whatever they are."""
        # In single precision 720720 steps of many users would not add up exactly.
        losses = np.asarray(losses, dtype=np.float64)
        usable = np.isfinite(losses).all(axis=1, keepdims=True)
        within = np.clip(np.where(usable, losses, 0.0), 0.0, 1.0)
        return np.asarray(np.rint(within * self.steps))

    def _losses(self, X: Rows, y: Rows) -> Array:
        try:
            return self.losses(X, y)
        except Exception:  # which users make it fail is private
            return np.zeros(self.coordinates)
