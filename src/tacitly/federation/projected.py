"""Projected rows: a query on directions·x, where the holder of the rows applies the projection.

This is the only form in which rows are projected. :meth:`Federation.projected` returns a view that wraps every query in
:class:`Projected`. :class:`~tacitly.federation.shard.Shard`, which holds the rows on every engine, projects them once
and keeps the result as long as the directions stay the same.

Privacy. The map is public and acts on each row separately, so changing one user's rows changes only that user's
projected rows. Adjacency, sensitivity and event are those of the wrapped query.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tacitly.arrays import Array, Rows, check_shape, check_size, rows_times
from tacitly.federation.query import Query
from tacitly.federation.scores import Scores


@dataclass(frozen=True)
class Projected(Query):
    """``query`` applied to the rows directions·x.

    >>> import numpy as np
    >>> from tacitly.methods.shared.whitening import FeatureMoment
    >>> Projected(FeatureMoment(1), np.ones((1, 2))).contribution(np.array([[1.0, 2.0]]), np.zeros(1))
    array([1.])
    """

    query: Query
    directions: Array

    def __post_init__(self) -> None:
        check_shape("directions", self.directions, None, None)
        # Never more columns than before, so that a remote message cannot exhaust memory.
        check_size("directions", len(self.directions), self.directions.shape[1])
        if isinstance(self.query, Projected):
            raise ValueError("rows can be projected only once: multiply the directions instead.")
        object.__setattr__(self, "unit", self.query.unit)
        object.__setattr__(self, "acute", self.query.acute)
        object.__setattr__(self, "clipped", self.query.clipped)

    @property
    def coordinates(self) -> int:
        """Length of the wrapped query's contribution."""
        return self.query.coordinates

    def contribution(self, X: Rows, y: Rows) -> Array:
        """Return the wrapped query's contribution for the projected rows."""
        return self.query.contribution(self.inside(X), y)

    def form_for(self, n_users: int, n_features: int) -> Projected:
        """Return the form that sums so many users: the wrapped query's, which is the one that runs."""
        form = self.query.form_for(n_users, len(self.directions))
        return self if form is self.query else replace(self, query=form)

    def inside(self, X: Rows) -> Rows:
        """Return the projected rows."""
        check_shape("X", X, None, self.directions.shape[1])
        return project_few(X, self.directions)


def project_few(X: Rows, directions: Array) -> Rows:
    """Return each row's projection in the dtype of X without compiled code: for a few users, or one."""
    return rows_times(X, directions.T).astype(X.dtype)


def losses_in(query: Query) -> Scores | None:
    """Return the :class:`Scores` that ``query`` is or wraps, or None: losses are not clipped and use ``select``."""
    while isinstance(query, Projected):
        query = query.query
    return query if isinstance(query, Scores) else None
