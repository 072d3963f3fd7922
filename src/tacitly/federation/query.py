"""Queries: the function from one user's rows to a contribution, and a rehearsal of it on synthetic rows."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from tacitly.arrays import Array, Offsets, Rows, read_only
from tacitly.federation.statistics import Statistics
from tacitly.privacy.clipping import clip, safe_norm
from tacitly.privacy.guarantee import Unit

Chosen = npt.NDArray[np.bool_]
"""One flag per user: who takes part in a sum."""

BLOCK = 1024
"""Users in a block: public and fixed, so that block boundaries never depend on anyone's rows."""

ROW_BLOCK = 16384
"""Maximum number of rows in a block if the unit is the row (the number of rows is public then)."""


class Query(ABC):
    """The user half of a round: maps one user's rows and public fields to a contribution.

    Subclasses are frozen data classes. Their fields are public; private rows are arguments, never fields.
    """

    acute: ClassVar[bool] = False
    """Whether contributions are acute, as defined in :mod:`tacitly.privacy.guarantee`."""

    clipped: ClassVar[bool] = True
    """Whether clipping is the last operation on a contribution. A sum of unclipped contributions has no event."""

    unit: Unit = Unit.USER
    """What is clipped: the contribution of all rows of a user together, or that of each row."""

    @property
    @abstractmethod
    def coordinates(self) -> int:
        """Length of the contribution."""

    @abstractmethod
    def contribution(self, X: Rows, y: Rows) -> Array:
        """Return one user's contribution before clipping.

        This is the definition of the query: remote nodes run it, and tests compare the fused form with it.
        """

    def norms(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        """Norm of each unit's contribution before clipping; override if it is cheaper than the contribution."""
        return self.plain_norms(X, y, offsets)

    def plain_norms(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        """Return the norms by the definition; override where ``norms`` measures something else."""
        pairs = itertools.pairwise(self.bounds(X, offsets))
        return np.array([safe_norm(self._safely(X[first:last], y[first:last]))[0] for first, last in pairs])

    def block_sum(self, X: Rows, y: Rows, offsets: Offsets, bound: float) -> Array:
        """Sum of the clipped contributions of consecutive users; user i has rows offsets[i] to offsets[i+1].

        If the unit is the row, each row's contribution is computed and clipped separately.
        """
        total = np.zeros(self.coordinates)
        for first, last in itertools.pairwise(self.bounds(X, offsets)):
            total += clip(self._safely(X[first:last], y[first:last]), bound)
        return total

    def block_sums(self, X: Rows, y: Rows, offsets: Offsets, bound: float, size: int) -> npt.NDArray[np.float64]:
        """Sum each block of ``size`` consecutive users, one row per block; override where one call is faster."""
        sums = []
        for start in range(0, len(offsets) - 1, size):
            bounds = offsets[start : start + size + 1]
            rows = slice(int(bounds[0]), int(bounds[-1]))
            sums.append(self.block_sum(X[rows], y[rows], bounds - bounds[0], bound))
        return np.array(sums)

    def form_for(self, n_users: int, n_features: int) -> Query:
        """Return the form for this number of users, a public number. Override if a query has several forms."""
        return self

    @property
    def one_form(self) -> bool:
        """Whether the contribution of one user is the fused form of a batch of one, so that they cannot disagree."""
        return False

    @property
    def statistics(self) -> Statistics | None:
        """Statistics of each user from which this query can be answered; None if it needs the rows."""
        return None

    @property
    def array_statistics(self) -> Statistics | None:
        """Statistics of each user that the definition needs, if they can be kept between releases; else None.

        Used for few users, without compiled code.
        """
        return None

    def sums_at(self, kept: Array, bound: float, size: int) -> Array:
        """Return :meth:`block_sums` by the definition, from :attr:`array_statistics`."""
        raise NotImplementedError

    def sums_of(self, statistics: Array, bound: float, size: int) -> Array:
        """Return :meth:`block_sums` from one row of statistics per user; compiled, so for many users only."""
        raise NotImplementedError

    def inside(self, X: Rows) -> Rows:
        """Return the rows that a wrapped query sees."""
        return X

    def bounds(self, X: Rows, offsets: Offsets) -> npt.NDArray[np.int64]:
        """Boundaries of the units in a block of users: the users' own offsets, or every row."""
        return offsets if self.unit is Unit.USER else np.arange(X.shape[0] + 1)

    def _safely(self, X: Rows, y: Rows) -> Array:
        """Return one contribution, or zeros if the user's numbers make the computation fail.

        Which users make it fail is private, so no exception may escape. A bug in the query itself is not hidden by
        this: :meth:`Federation.release` runs every query on synthetic rows first.
        """
        try:
            with np.errstate(all="ignore"):
                return self.contribution(X, y)
        except MemoryError:  # a property of the machine, not of the user's data
            raise
        except Exception:
            return np.zeros(self.coordinates)


def widest(query: Query) -> int:
    """Return the largest number of coordinates among a query and the queries that it wraps.

    A wrapping query may compute many coordinates and return only a norm of them.
    """
    inner = getattr(query, "query", None)
    return max(query.coordinates, widest(inner)) if isinstance(inner, Query) else query.coordinates


def synthetic_rows(n_features: int) -> tuple[Array, Array]:
    """Return fixed synthetic rows and targets, which belong to no user."""
    rows = np.cos(np.arange(8.0 * n_features)).reshape(8, n_features)
    return read_only(rows), read_only(rows.sum(axis=1))


def rehearse(query: Query, X: Any, y: Array, form: Callable[[Rows, Rows], Array] | None = None) -> None:
    """Run a query (and the query it wraps) on synthetic rows, so that bugs surface before private rows are read.

    Runs the NumPy definition, which raises if shapes do not match; a compiled form would read out of bounds.
    """
    inner = getattr(query, "query", None)
    if form is None and isinstance(inner, Query):
        rehearse(inner, query.inside(X), y)
    vector = (form or query.contribution)(X, y)
    if vector.shape != (query.coordinates,):
        raise ValueError(
            f"{type(query).__name__} must return a vector of {query.coordinates} coordinates. "
            f"Found shape {vector.shape}."
        )
