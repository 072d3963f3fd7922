"""Level, row effects and column effects of matrix completion, paid from the budget, before a low-rank rest is fitted.

A rating is, for example, 3.5 plus how generous the row is plus how good the column is, and a low-rank matrix explains
the rest. A few noisy steps that have to find the level first make no progress. Effects are used if the level matters,
that is, if it is at least half as large as the spread of labels around it.

Release :class:`EffectSum`: an observation (i, j) with label y adds y and a weight κ to the sums of row i and of column
j, a vector of norm √2·√(y² + κ²), clipped to norm C. It depends on that observation alone and can point against another
one: sensitivity C (zero-out), 2C (replace-one). One Gaussian event. A row with a position out of range adds nothing.

:class:`Shifted` is another query on labels minus public effects; its cost is that of the other query.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from tacitly.arrays import Array, Offsets, Rows, check_shape
from tacitly.federation.base import Federation, Query
from tacitly.methods.trace_regression.centering import LabelSum, bound_of
from tacitly.methods.trace_regression.designs import Design
from tacitly.privacy.calibration import Plan
from tacitly.privacy.clipping import GUARD, LEAST
from tacitly.privacy.guarantee import GaussianEvent, Unit

_MATTERS = 0.5  # least level that matters, relative to the spread of labels around it


@dataclass(frozen=True)
class EffectSum(Query):
    """Labels and weights by row and by column of the matrix."""

    design: Design
    weight: float
    unit: Unit = Unit.ROW

    def __post_init__(self) -> None:
        if self.design.kind != "entries" or self.unit is Unit.USER or not self.weight > 0:
            raise ValueError("effects are for design 'entries', by observation, with a positive weight.")

    @property
    def coordinates(self) -> int:
        """A sum and a weight per row and per column."""
        return 2 * (self.design.d1 + self.design.d2)

    def contribution(self, X: Rows, y: Rows) -> Array:
        """Return the sums of a unit before clipping."""
        return self._sum(X, y, math.inf)

    def block_sum(self, X: Rows, y: Rows, offsets: Offsets, bound: float) -> Array:
        """Clip each observation and add them up."""
        return self._sum(X, y, bound * (1.0 - GUARD))

    def _sum(self, X: Rows, y: Rows, limit: float) -> Array:
        check_shape("X", X, None, 2)
        with np.errstate(all="ignore"):
            known = self.design.known(X) & np.isfinite(y)
        rows, columns = X[known].astype(np.int64).T
        labels = y[known].astype(np.float64)
        with np.errstate(all="ignore"):
            norms = math.sqrt(2.0) * np.hypot(labels, self.weight)
            factors = np.where(norms > limit, limit / norms, 1.0)
        # A factor as small as LEAST has lost digits to underflow, so the product could exceed the bound.
        usable = np.isfinite(norms) & (factors > LEAST)
        labels, factors = np.where(usable, labels, 0.0), np.where(usable, factors, 0.0)
        d1, d2 = self.design.d1, self.design.d2
        parts = [
            np.bincount(at, weights, minlength=size)
            for at, size in ((rows, d1), (columns, d2))
            for weights in (factors * labels, factors * self.weight)
        ]
        return np.concatenate(parts)

    def split(self, released: Array) -> tuple[Array, Array, Array, Array]:
        """Return sums and weights by row, then by column; weights as numbers of observations."""
        d1, d2 = self.design.d1, self.design.d2
        rows, row_weights, columns, column_weights = np.split(released, np.cumsum([d1, d1, d2]))
        return rows, row_weights / self.weight, columns, column_weights / self.weight


@dataclass(frozen=True)
class Shifted(Query):
    """A query on labels minus the effects of their row and column."""

    query: Query
    design: Design
    rows: Array
    columns: Array

    def __post_init__(self) -> None:
        check_shape("rows", self.rows, self.design.d1)
        check_shape("columns", self.columns, self.design.d2)
        object.__setattr__(self, "unit", self.query.unit)
        object.__setattr__(self, "acute", self.query.acute)

    @property
    def coordinates(self) -> int:
        """Number of coordinates of the query."""
        return self.query.coordinates

    def contribution(self, X: Rows, y: Rows) -> Array:
        """Return the query's contribution."""
        return self.query.contribution(X, self._left(X, y))

    def norms(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        """Return the query's norms."""
        return self.query.norms(X, self._left(X, y), offsets)

    def plain_norms(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        """Return the query's norms by its definition."""
        return self.query.plain_norms(X, self._left(X, y), offsets)

    def block_sum(self, X: Rows, y: Rows, offsets: Offsets, bound: float) -> Array:
        """Return the query's sum."""
        return self.query.block_sum(X, self._left(X, y), offsets, bound)

    def _left(self, X: Rows, y: Rows) -> Array:
        left = y.astype(np.float64)
        with np.errstate(all="ignore"):
            known = self.design.known(X)
        at = X[known].astype(np.int64)
        left[known] -= self.rows[at[:, 0]] + self.columns[at[:, 1]]
        return left


class ShiftedFederation:
    """A view of the same users, behind the same doors, with effects subtracted from their labels."""

    def __init__(self, federation: Federation, design: Design, rows: Array, columns: Array) -> None:
        self._federation, self._shift = federation, (design, rows, columns)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._federation, name)

    def release(self, query: Query, event: GaussianEvent, name: str) -> Array:
        """Return the noisy sum of the query on shifted labels."""
        return self._federation.release(Shifted(query, *self._shift), event, name)


def effects_of(federation: Federation, plan: Plan, design: Design, unit: Unit) -> tuple[Array, Array]:
    """Release level and effects; return row effects, which contain the level, and column effects.

    Every planned release is made; effects are zero if the level does not matter.
    """
    n, nothing = federation.n_rows, (np.zeros(design.d1), np.zeros(design.d2))
    bound, _ = bound_of(federation, plan, LabelSum(unit), "label scale", "sizes of labels")
    level = float(federation.release(LabelSum(unit), plan.event("label", clip=bound), "mean of the labels")[0]) / n
    around = Shifted(LabelSum(unit), design, np.full(design.d1, level), nothing[1])
    bound, spread = bound_of(federation, plan, around, "effect scale", "sizes of labels around their mean")
    query = EffectSum(design, 0.5 * max(spread, 1e-300), unit)
    event = plan.event("effects", clip=math.sqrt(2.0) * math.hypot(bound, query.weight))
    shifted = Shifted(query, design, np.full(design.d1, level), nothing[1])
    released = federation.release(shifted, event, "row and column effects")
    if abs(level) < _MATTERS * spread / 1.645:  # the spread is a 90 % quantile
        return nothing
    rows, row_weights, columns, column_weights = query.split(released)
    noise = federation.sum_sigma(event), federation.sum_sigma(event) / query.weight
    variance = (spread / 1.645) ** 2
    return level + shrunk_means(rows, row_weights, *noise, variance), shrunk_means(
        columns, column_weights, *noise, variance
    )


def shrunk_means(sums: Array, weights: Array, noise: float, weight_noise: float, variance: float) -> Array:
    """Return means sums/weights, shrunk to zero according to privacy noise and sampling noise.

    ``variance`` is that of a label. The variance of means is estimated from all of them together.

    >>> shrunk_means(np.array([10.0, -10.0]), np.array([10.0, 10.0]), 0.0, 0.0, 1e-9).round(3)
    array([ 1., -1.])
    """
    clear = weights > 3.0 * weight_noise
    counts = np.maximum(weights, max(3.0 * weight_noise, 1e-9))
    means, errors = sums / counts, (noise / counts) ** 2 + variance / counts
    if not clear.any():
        return np.zeros(len(sums))
    precision = np.where(clear, 1.0 / (errors + 1e-300), 0.0)
    spread = max(float(precision @ (np.square(means) - errors)) / float(precision.sum()), 0.0)
    return np.asarray(np.where(clear, means * spread / (spread + errors + 1e-300), 0.0))
