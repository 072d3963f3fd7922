"""A question to one user, and how to try it out on rows that nobody has."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from tacitly.arrays import Array, Offsets, Rows, read_only
from tacitly.privacy.clipping import clip, safe_norm
from tacitly.privacy.guarantee import Unit


class Query(ABC):
    """The user's half of a round: from one user's rows and public fields to a contribution.

    Subclasses are frozen data classes. Their fields are public; rows are arguments, never fields.
    """

    acute: ClassVar[bool] = False
    """Whether any two possible contributions have a non-negative inner product."""

    clipped: ClassVar[bool] = True
    """Whether the last thing done to a contribution is the clip; without it there is no event that describes a sum."""

    unit: Unit = Unit.USER
    """Whose contribution is clipped: a user's rows together, or every row by itself."""

    @property
    @abstractmethod
    def coordinates(self) -> int:
        """Length of the contribution."""

    @abstractmethod
    def contribution(self, X: Rows, y: Rows) -> Array:
        """Return one user's contribution, before the clip.

        This is the definition: what a remote node runs, and what the fused form is tested against.
        """

    def norms(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        """Norms of several units' contributions before the clip; override where they are cheaper than those."""
        return self.plain_norms(X, y, offsets)

    def plain_norms(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        """Return the same by the definition of a contribution; override where ``norms`` are of something else."""
        pairs = itertools.pairwise(self.bounds(X, offsets))
        return np.array([safe_norm(self._safely(X[first:last], y[first:last]))[0] for first, last in pairs])

    def block_sum(self, X: Rows, y: Rows, offsets: Offsets, bound: float) -> Array:
        """Sum of clipped contributions of consecutive users; user i has rows offsets[i] to offsets[i+1].

        A query whose unit is the row is asked for, and clipped, row by row.
        """
        total = np.zeros(self.coordinates)
        for first, last in itertools.pairwise(self.bounds(X, offsets)):
            total += clip(self._safely(X[first:last], y[first:last]), bound)
        return total

    def block_sums(self, X: Rows, y: Rows, offsets: Offsets, bound: float, size: int) -> npt.NDArray[np.float64]:
        """Sum consecutive blocks of ``size`` users, a row a block; override where one call for all is quicker."""
        sums = []
        for start in range(0, len(offsets) - 1, size):
            bounds = offsets[start : start + size + 1]
            rows = slice(int(bounds[0]), int(bounds[-1]))
            sums.append(self.block_sum(X[rows], y[rows], bounds - bounds[0], bound))
        return np.array(sums)

    def inside(self, X: Rows) -> Rows:
        """Return rows as a query inside this one sees them."""
        return X

    def bounds(self, X: Rows, offsets: Offsets) -> npt.NDArray[np.int64]:
        """Where units begin and end in a block of these users: after every row, if that is the unit."""
        return offsets if self.unit is Unit.USER else np.arange(X.shape[0] + 1)

    def _safely(self, X: Rows, y: Rows) -> Array:
        """One contribution, or zero where the user's numbers make the computation fail.

        Which users make it fail is private, so nothing may be raised. A mistake in the query itself does not hide
        here: :meth:`Federation.release` tries every query on made-up rows first.
        """
        try:
            with np.errstate(all="ignore"):
                return self.contribution(X, y)
        except MemoryError:  # the machine's doing, not the user's
            raise
        except Exception:
            return np.zeros(self.coordinates)


def made_up(n_features: int) -> tuple[Array, Array]:
    """Rows and targets that nobody has."""
    rows = np.cos(np.arange(8.0 * n_features)).reshape(8, n_features)
    return read_only(rows), read_only(rows.sum(axis=1))


def rehearse(query: Query, X: Any, y: Array, form: Callable[[Rows, Rows], Array] | None = None) -> None:
    """Run a query (and one inside it) on made-up rows, so that a mistake in it shows before a private row is touched.

    By its definition, which is NumPy and raises on arrays that do not fit; a compiled form would read beyond them.
    """
    inner = getattr(query, "query", None)
    if form is None and isinstance(inner, Query):
        rehearse(inner, query.inside(X), y)
    vector = (form or query.contribution)(X, y)
    if vector.shape != (query.coordinates,):
        raise ValueError(
            f"{type(query).__name__} promises {query.coordinates} coordinates. Found shape {vector.shape}."
        )
