"""Computations that each user makes locally from public values: sent to the user as data, never as code.

A head is fitted by the user, from the user's rows and public numbers only. It is never released, so it costs no
privacy: for all other users it is post-processing of the billboard, and for the user it is computed from their own
data.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from tacitly.arrays import Array, Offsets, Rows


class HeadWork(ABC):
    """A computation that every user makes locally, described by public fields without code, so that it can be sent."""

    span: ClassVar[int] = 1024
    """Number of users that are passed at once, if there are that many."""

    @abstractmethod
    def __call__(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        """Return the heads of several users, one row per user, the intercept last."""

    @abstractmethod
    def own(self, X: Rows, y: Rows) -> Array:
        """Return one user's head."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """Shape of a head."""
