"""Synthetic users whose rows have no target: they share a few principal components.

    x = √(1 − noise) · scores · components + √noise · e

Features have variance one; ``noise`` is the share of variance outside the shared components, whose number is
``directions``. The error of a fit is the share of the variance of new rows that its components do not explain. Alone, a
user has only the components of their own rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tacitly.arrays import Array
from tacitly.baselines.comparison import LOCAL, SINGLE
from tacitly.linalg import orthonormal
from tacitly.planning.made_up import FRESH, Counts, MadeUp, made_up
from tacitly.planning.shape import Shape


@dataclass(frozen=True)
class Components:
    """Synthetic users of a shape without a target."""

    shape: Shape

    def draw(self, n_users: int, rng: np.random.Generator) -> MadeUp:
        """Draw that many synthetic users."""
        shape, size = self.shape, self.shape.directions or 1
        low, high = shape.row_range
        counts, fresh = rng.integers(low, high + 1, size=n_users), np.full(n_users, FRESH)
        components = orthonormal(rng.standard_normal((shape.features, size)))[0].T
        own = rng.standard_normal((n_users, size))

        def rows(number: Counts) -> Array:
            owner = np.repeat(np.arange(n_users), number)
            scores = np.sqrt(1.0 - shape.between) * rng.standard_normal((len(owner), size))
            scores += np.sqrt(shape.between) * own[owner]
            signal = np.sqrt((1.0 - shape.noise) * shape.features / size) * scores @ components
            return np.asarray(signal + np.sqrt(shape.noise) * rng.standard_normal(signal.shape))

        X, Z = rows(counts), rows(fresh)
        none = np.zeros(len(Z))
        return made_up((X, np.zeros(len(X)), counts), (Z, none, fresh), none, None)

    def others(self, drawn: MadeUp) -> dict[str, float]:
        """Return the errors of users' own components, and of the components of all rows without privacy."""
        size = self.shape.directions or 1
        left = 0.0
        for i in range(drawn.train.n_users):
            fresh = drawn.test.rows(i)[0]
            left += _left_over(fresh, _top(drawn.train.rows(i)[0], size)) * float(np.sum(np.square(fresh)))
        alone = left / float(np.sum(np.square(drawn.test.X)))
        return {LOCAL: alone, SINGLE: _left_over(drawn.test.X, _top(drawn.train.X, size))}

    def error(self, model: Any, drawn: MadeUp) -> float:
        """Return the share of the variance of new rows that a fitted model's components do not explain."""
        return _left_over(drawn.test.X, model.components_)


def _top(rows: Array, size: int) -> Array:
    return np.asarray(np.linalg.svd(rows, full_matrices=False)[2][:size])


def _left_over(rows: Array, components: Array) -> float:
    return 1.0 - float(np.sum(np.square(rows @ components.T)) / np.sum(np.square(rows)))
