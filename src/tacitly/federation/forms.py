"""Other forms in which a shard evaluates a query: by its definition, or from stored statistics of users.

A node that does not trust a query's compiled form evaluates the definition (:class:`Plain`; :class:`Few` if the
definition takes several users at a time). If a query can be answered from statistics that are kept between releases,
the statistics take the place of the users' rows (:class:`OfStatistics`, :class:`OfArrays`).
"""

from __future__ import annotations

from functools import partial

import numpy as np

from tacitly.arrays import Array, Offsets, Rows
from tacitly.federation.failing_users import attempt, check_time, without_failing_units
from tacitly.federation.query import Query, widest
from tacitly.federation.statistics import Statistics
from tacitly.simd.lazy_njit import MANY

_WORK = 1e9
"""Users times the third power of features from which on compiled kernels are used, for however few users: array
operations would take minutes, and compiling takes half a minute, once on a machine."""
_AT_ONCE = 16  # users in a batch of a node: public, because last bits may depend on the shape of a batch
_NUMBERS = 1 << 22  # in an array with a row for each user of such a batch: 32 MiB


def form_of(query: Query, n_users: int, n_features: int) -> Query:
    """Return the form for this number of users, if it agrees with the definition. The choice uses public sizes only.

    Statistics that are kept are for queries that compute matrices over all features for every user.
    """
    statistics = query.statistics
    wide = n_users * float(n_features) ** 3 >= _WORK
    if statistics is not None and (n_users >= MANY or (wide and statistics.kept)):
        return OfStatistics(query, statistics)
    return query.form_for(n_users, n_features)


class OfStatistics(Query):
    """A query about users whose rows are their statistics, or whose ``statistics`` are computed block by block."""

    def __init__(self, query: Query, statistics: Statistics | None = None) -> None:
        self._query, self._statistics = query, statistics

    @property
    def coordinates(self) -> int:
        """Those of the query."""
        return self._query.coordinates

    def contribution(self, X: Rows, y: Rows) -> Array:
        """Return the sum of one user."""
        return self.block_sum(X, y, np.array([0, len(X)]), 1.0)

    def block_sum(self, X: Rows, y: Rows, offsets: Offsets, bound: float) -> Array:
        """Return the sum of one block."""
        return np.asarray(self.block_sums(X, y, offsets, bound, len(offsets) - 1)[0])

    def block_sums(self, X: Rows, y: Rows, offsets: Offsets, bound: float, size: int) -> Array:
        """Return one row per block."""
        rows = _one_each(X, offsets) if self._statistics is None else self._statistics.of_rows(X, y, offsets)
        return self._query.sums_of(np.asarray(rows, dtype=np.float64), bound, size)


class OfArrays(OfStatistics):
    """A query about users whose rows are what its definition is computed from."""

    def block_sums(self, X: Rows, y: Rows, offsets: Offsets, bound: float, size: int) -> Array:
        """Return one row per block."""
        return self._query.sums_at(np.asarray(_one_each(X, offsets), dtype=np.float64), bound, size)


def _one_each(X: Rows, offsets: Offsets) -> Rows:
    """Return one row per user, zeros for a user who was left out: the others keep their places, and their blocks."""
    present = np.diff(offsets) > 0
    if present.all():
        return X
    rows = np.zeros((len(present), X.shape[1]), dtype=X.dtype)
    rows[present] = X
    return rows


class Plain(Query):
    """A query evaluated by its NumPy definition, one contribution at a time, until ``end``."""

    def __init__(self, query: Query, end: float) -> None:
        self._query, self.unit, self._end = query, query.unit, end

    @property
    def coordinates(self) -> int:
        """Those of the query."""
        return self._query.coordinates

    def contribution(self, X: Rows, y: Rows) -> Array:
        """Return the definition."""
        return self._query.contribution(X, y)

    def _safely(self, X: Rows, y: Rows) -> Array:
        check_time(self._end)
        return super()._safely(X, y)


class Few(Plain):
    """A query whose batch is its definition, evaluated for a few users at a time.

    Batches are small for two reasons. The sender of a query chooses its numbers, and a block of users might need a
    thousand times the memory of one user. And if one user's numbers make a batch fail, only the others in this batch
    are summed again, so a failure has little effect on the time of an answer.
    """

    def __init__(self, query: Query, n_features: int, end: float) -> None:
        super().__init__(query, end)
        self._at_once = _at_once(query, n_features)

    def block_sum(self, X: Rows, y: Rows, offsets: Offsets, bound: float) -> Array:
        """Return the sum of one block, a few users at a time."""
        total = np.zeros(self.coordinates)
        for start in range(0, len(offsets) - 1, self._at_once):
            check_time(self._end)
            bounds = offsets[start : start + self._at_once + 1]
            rows = slice(int(bounds[0]), int(bounds[-1]))
            few = X[rows], y[rows], bounds - bounds[0], bound
            found = attempt(partial(self._query.block_sum, *few), total.shape)
            total += without_failing_units(self._query, *few, self._end)[0] if found is None else found
        return total


def _at_once(query: Query, n_features: int) -> int:
    """Return how many users' contributions, or matrices over all features, are held at a time: public numbers."""
    return max(1, min(_AT_ONCE, _NUMBERS // max(widest(query), (n_features + 1) ** 2)))
