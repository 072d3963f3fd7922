"""Work that users do at home with what is public: data that can travel to them, never code.

A head is fitted by the user, from the user's rows and public numbers only. It is never released, so it costs no
privacy: for all others it is post-processing of the billboard, and for the user it is their own data at home.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from tacitly.arrays import Array, Offsets, Rows


class HeadWork(ABC):
    """What every user computes at home, as data: public fields and no code, so that it can travel."""

    span: ClassVar[int] = 1024
    """How many users are handed over at once, where there are as many."""

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
