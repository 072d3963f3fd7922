"""A question about rows that are projected first, where they are: a public map, row by row.

Whoever is asked keeps the projected rows (:class:`~tacitly.federation.shard.Shard`), so that a row is projected once.
Changing one user's rows changes that user's projected rows alone, so whatever holds of the question inside (adjacency,
sensitivity, event) holds of this one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tacitly.arrays import Array, Rows, check_shape, check_size
from tacitly.federation.base import Query
from tacitly.federation.scores import Scores


@dataclass(frozen=True)
class Projected(Query):
    """``query`` of rows directions·x.

    >>> from tacitly.methods.shared.whitening import FeatureMoment
    >>> Projected(FeatureMoment(1), np.ones((1, 2))).contribution(np.array([[1.0, 2.0]]), np.zeros(1))
    array([1.])
    """

    query: Query
    directions: Array

    def __post_init__(self) -> None:
        check_shape("directions", self.directions, None, None)
        check_size("directions", len(self.directions), self.directions.shape[1])  # no more than rows had before
        if isinstance(self.query, Projected):
            raise ValueError("rows are projected once.")
        object.__setattr__(self, "unit", self.query.unit)
        object.__setattr__(self, "acute", self.query.acute)
        object.__setattr__(self, "clipped", self.query.clipped)

    @property
    def coordinates(self) -> int:
        """Those of the question inside."""
        return self.query.coordinates

    def contribution(self, X: Rows, y: Rows) -> Array:
        """Ask about projected rows."""
        return self.query.contribution(self.inside(X), y)

    def inside(self, X: Rows) -> Rows:
        """Project."""
        from tacitly.simd.projections import project_each

        check_shape("X", X, None, self.directions.shape[1])
        return project_each(np.ascontiguousarray(X), self.directions)


def losses_in(query: Query) -> Scores | None:
    """Return the losses that this asks for, if it does: they are not clipped, so they go through another door."""
    inner = query.query if isinstance(query, Projected) else query
    return inner if isinstance(inner, Scores) else None
