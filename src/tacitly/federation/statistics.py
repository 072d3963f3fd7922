"""Statistics of users: one row of numbers per user, computed from the user's rows, that several queries share.

A query that names its :class:`Statistics` can be answered from them (:meth:`~tacitly.federation.query.Query.sums_of`).
:class:`~tacitly.federation.shard.Shard`, which holds the rows on every engine, computes them once and keeps them, in
memory only, as long as the queries ask for equal ones.

Privacy. Statistics are as private as the rows, and they never leave the shard. A user's statistics depend on that
user's rows and on public fields only, to the last bit. Adjacency, sensitivity and event are those of the query.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np

from tacitly.arrays import Array, Offsets, Rows


class Statistics(ABC):
    """One row of numbers per user. Subclasses are frozen data classes with public fields, as queries are."""

    kept: ClassVar[bool] = True
    """Whether later queries are likely to ask for the same."""

    @property
    def source(self) -> Statistics | None:
        """Other statistics from which these are computed; None if they are computed from the rows."""
        return None

    @property
    @abstractmethod
    def width(self) -> int:
        """How many numbers there are per user."""

    @abstractmethod
    def __call__(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        """Return the statistics of several users; X holds their rows, or their source's statistics if there is one."""

    def of_rows(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        """Return the statistics of several users from their rows."""
        if self.source is None:
            return self(X, y, offsets)
        users = len(offsets) - 1
        return self(self.source.of_rows(X, y, offsets), np.zeros(users), np.arange(users + 1))


def same(one: Any, other: Any) -> bool:
    """Whether two data classes have equal fields.

    >>> from tacitly.methods.shared.whitening import Whitening
    >>> same(Whitening.identity(2), Whitening.identity(2)), same(Whitening.identity(2), Whitening.identity(3))
    (True, False)
    """
    if dataclasses.is_dataclass(one):
        names = [field.name for field in dataclasses.fields(one)]
        return type(one) is type(other) and all(same(getattr(one, name), getattr(other, name)) for name in names)
    return bool(np.array_equal(one, other))
