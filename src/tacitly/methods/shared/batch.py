"""Queries that compute the contributions of many users at once, by array operations.

The definition and the fast form are one function: the contribution of a single user is a batch of one. This is sound
because no number of one user depends on another user's rows, to the last bit (:mod:`tacitly.federation.base`). Rows are
reduced user by user (:func:`~tacitly.arrays.per_user`), and every later array has one entry per user. So its shape and
each user's position in it depend on the number of users only, which is public.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tacitly.arrays import Array, Offsets, Rows, read_only
from tacitly.arrays import per_user as per_user
from tacitly.federation.base import Query
from tacitly.federation.query import BLOCK
from tacitly.federation.statistics import Statistics
from tacitly.privacy.clipping import GUARD, LEAST
from tacitly.simd.lazy_njit import few


class BatchQuery(Query):
    """A query defined by the contributions of several users, one row per user."""

    @abstractmethod
    def contributions(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        """Return the contributions of several users before clipping, one row per user."""

    @property
    def one_form(self) -> bool:
        """True unless a subclass has a sum of its own: :meth:`contribution` is a batch of one."""
        names = ("contribution", "block_sum", "block_sums")
        return all(getattr(type(self), name) is getattr(BatchQuery, name) for name in names)

    def contribution(self, X: Rows, y: Rows) -> Array:
        """Return the contribution of one user: a batch of one."""
        return np.asarray(self.contributions(X, y, np.array([0, len(X)]))[0])

    def norms(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        """Return the norms of several users' contributions."""
        return norms_of(self.contributions(X, y, offsets))

    @property
    def at_once(self) -> int:
        """Number of users whose contributions are computed together: public, and smaller if each needs much memory."""
        return BLOCK

    def block_sum(self, X: Rows, y: Rows, offsets: Offsets, bound: float) -> Array:
        """Clip each contribution and add them up."""
        total, step = np.zeros(self.coordinates), self.at_once
        if len(offsets) - 1 <= step:
            return clipped_sum(self.contributions(X, y, offsets), bound)
        for first in range(0, len(offsets) - 1, step):
            bounds = offsets[first : first + step + 1]
            rows = slice(int(bounds[0]), int(bounds[-1]))
            total += clipped_sum(self.contributions(X[rows], y[rows], bounds - bounds[0]), bound)
        return total

    def block_sums(self, X: Rows, y: Rows, offsets: Offsets, bound: float, size: int) -> Array:
        """Sum each block of ``size`` users; blocks of one user, as the auditor asks for, all at once."""
        if size > 1 or not self.one_form:
            return super().block_sums(X, y, offsets, bound, size)
        return clipped_rows(self.contributions(X, y, offsets), bound)

    def contributions_at(self, kept: Array) -> Array:
        """Return :meth:`contributions` from array statistics, if the query names some."""
        raise NotImplementedError

    def sums_at(self, kept: Array, bound: float, size: int) -> Array:
        """Clip each contribution and add up those of each block, from array statistics."""
        blocks = [kept[start : start + size] for start in range(0, len(kept), size)]
        return np.array([self._sum_at(block, bound) for block in blocks])

    def _sum_at(self, kept: Array, bound: float) -> Array:
        total, step = np.zeros(self.coordinates), self.at_once
        for first in range(0, len(kept), step):
            total += clipped_sum(self.contributions_at(kept[first : first + step]), bound)
        return total

    def fused(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        """Return :meth:`contributions` by a compiled form, if there is one: see :class:`Contributions`."""
        raise NotImplementedError

    def contributions_of(self, statistics: Array) -> Array:
        """Return the contributions of several users from their statistics, if the query names some."""
        if isinstance(self.statistics, Contributions):
            return statistics
        raise NotImplementedError

    def norms_of(self, statistics: Array) -> Array:
        """Return the norms of several users' contributions from their statistics."""
        return norms_of(self.contributions_of(statistics))

    def sums_of(self, statistics: Array, bound: float, size: int) -> Array:
        """Clip each contribution and add up those of each block, from statistics."""
        if isinstance(self.statistics, Contributions):
            return clipped_sums(statistics, bound, size)
        starts = range(0, len(statistics), size)
        return np.array(
            [clipped_sum(self.contributions_of(statistics[start : start + size]), bound) for start in starts]
        )


class ArrayQuery(Query):
    """A query with a compiled form, and a form by array operations for few users, for whom compiling takes longer."""

    @abstractmethod
    def contributions(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        """Return the contributions of several users before clipping, one row per user, without compiled code."""

    def form_for(self, n_users: int, n_features: int) -> Query:
        """Return the form to use for this number of users; it depends on public sizes only.

        A subclass that changes another form has no array form unless it also defines ``contributions``.
        """
        forms = {"contribution", "contributions", "block_sum", "block_sums"}
        own = next(forms & set(vars(kind)) for kind in type(self).__mro__ if forms & set(vars(kind)))
        return _InArrays(self) if "contributions" in own and few(n_users, n_features) else self


@dataclass(frozen=True)
class _InArrays(BatchQuery):
    """The form of a query that clips and adds up contributions computed by array operations."""

    query: ArrayQuery

    def __post_init__(self) -> None:
        object.__setattr__(self, "acute", self.query.acute)
        object.__setattr__(self, "unit", self.query.unit)

    @property
    def coordinates(self) -> int:
        """Number of coordinates of the query."""
        return self.query.coordinates

    def contributions(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        """Return the contributions of several users, one row per user."""
        with np.errstate(all="ignore"):
            return self.query.contributions(X, y, offsets)


@dataclass(frozen=True)
class Contributions(Statistics):
    """A query's own contributions by its compiled form; later queries cannot use them."""

    query: BatchQuery
    kept: ClassVar[bool] = False

    @property
    def width(self) -> int:
        """Coordinates of the query."""
        return self.query.coordinates

    def __call__(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        """Return the contributions, one row per user."""
        return self.query.fused(X, y, offsets)


def clipped_sums(rows: Array, bound: float, size: int) -> Array:
    """Return :func:`clipped_sum` of each block of ``size`` rows, compiled."""
    from tacitly.methods.shared.clip_kernels import add_clipped

    out = np.zeros((-(-len(rows) // size), rows.shape[1]))
    add_clipped(read_only(np.ascontiguousarray(rows)), bound * (1.0 - GUARD), size, out)
    return out


def clipped_sum(rows: Array, bound: float) -> Array:
    """Clip each row to the bound, set rows with entries that are not finite to zero, and add all rows.

    >>> clipped_sum(np.array([[3.0, 4.0], [np.nan, 0.0], [0.1, 0.0]]), 1.0).round(3)
    array([0.7, 0.8])
    """
    return np.asarray(clipped_rows(rows, bound).sum(axis=0))


def clipped_rows(rows: Array, bound: float) -> Array:
    """Clip each row to the bound; set rows with entries that are not finite to zero."""
    factors = clip_factors(norms_of(rows), bound)
    return np.asarray(np.where((factors > 0)[:, None], rows, 0.0) * factors[:, None])


def clip_factors(norms: Array, bound: float) -> Array:
    """Return factors that scale rows of these norms to the bound at most; 0 if a norm is not finite."""
    limit = bound * (1.0 - GUARD)
    usable = np.isfinite(norms)
    factors = np.where(norms > limit, limit / np.where(norms > 0, norms, 1.0), 1.0)
    return np.where(usable & (factors > LEAST), factors, 0.0)  # smaller ones have lost digits to underflow


def norms_of(rows: Array) -> Array:
    """Return the norm of each row without overflow; NaN if an entry is not finite.

    >>> norms_of(np.array([[3e200, 4e200], [np.inf, 0.0], [0.0, 0.0]]))
    array([5.e+200,     nan, 0.e+000])
    """
    largest = np.max(np.abs(rows), axis=1, initial=0.0)
    usable = np.isfinite(largest)
    unit = np.where(usable & (largest > 0), largest, 1.0)
    norms = unit * np.sqrt(np.sum(np.square(np.where(usable[:, None], rows, 0.0) / unit[:, None]), axis=1))
    return np.where(usable, np.where(largest > 0, norms, 0.0), np.nan)


def circle(logarithm: Array, reach: float) -> Array:
    """Return points on the unit circle, one per entry: the logarithm as an angle, ±``reach`` at ±162°.

    The mean of such points shows a typical size over many orders of magnitude, and one user contributes one point.
    """
    angle = np.clip(logarithm, -reach, reach) * (0.9 * np.pi / reach)
    return np.stack([np.cos(angle), np.sin(angle)], axis=-1)


def uncircle(point: Array, reach: float) -> Array:
    """Return the logarithm that :func:`circle` maps to this direction.

    >>> round(float(uncircle(circle(np.array(3.0), 8.0), 8.0)), 6)
    3.0
    """
    return np.asarray(np.arctan2(point[..., 1], point[..., 0]) * (reach / (0.9 * np.pi)))
