"""The typical norm of a contribution, for choosing a clipping bound: two numbers, for any order of magnitude.

Release :class:`TypicalNorm`. A user sends the logarithm of the norm of their contribution to another query as a point
on the unit circle, and nothing if that norm is zero or not finite. Sensitivity 1 (zero-out), 2 (replace-one). One
Gaussian event. The direction of the noisy mean is the typical logarithm; its length shows how certain it is.

:mod:`~tacitly.methods.shared.norm_histogram` finds quantiles instead. This release has 2 coordinates instead of
hundreds, so it works with far fewer users, and it finds a kind of mean.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from tacitly.arrays import Array, Offsets, Rows, read_only
from tacitly.federation.base import Federation, Query
from tacitly.federation.statistics import Statistics
from tacitly.methods.shared.batch import BatchQuery, circle, norms_of, uncircle
from tacitly.privacy.clipping import clip_factor
from tacitly.privacy.guarantee import GaussianEvent


@dataclass(frozen=True)
class TypicalNorm(BatchQuery):
    """The logarithm (base 2) of a contribution's norm as a point on the circle; ±``reach`` octaves fit on it.

    Octaves are counted from ``around``, a public guess. If the norm is roughly known, a smaller reach finds it more
    precisely.
    """

    query: Query
    reach: float
    around: float = 1.0

    def __post_init__(self) -> None:
        if not self.reach > 0:
            raise ValueError(f"reach must be positive. Found {self.reach!r}.")
        if not 0 < self.around < math.inf:
            raise ValueError(f"around must be positive and finite. Found {self.around!r}.")
        object.__setattr__(self, "unit", self.query.unit)

    @property
    def coordinates(self) -> int:
        """A point in the plane."""
        return 2

    @property
    def at_once(self) -> int:
        """Number of users that the query processes together."""
        return self.query.at_once if isinstance(self.query, BatchQuery) else super().at_once

    @property
    def one_form(self) -> bool:
        """True if the norms come from a batch that is the definition."""
        names = ("contribution", "block_sum", "block_sums")
        return self.query.one_form and all(getattr(type(self), name) is getattr(TypicalNorm, name) for name in names)

    def contribution(self, X: Rows, y: Rows) -> Array:
        """Return one unit's point, from the norm of the query's definition, which needs no compiled code."""
        norms = self.query.norms if self.query.one_form else self.query.plain_norms
        return np.asarray(self._points(norms(X, y, np.array([0, X.shape[0]])))[0])

    def contributions(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        """Return one point per user."""
        return self._points(self.query.norms(X, y, offsets))

    def form_for(self, n_users: int, n_features: int) -> TypicalNorm:
        """Return the form to use for this number of users; it depends on public sizes only."""
        form = self.query.form_for(n_users, n_features)
        return self if form is self.query else replace(self, query=form)

    @property
    def statistics(self) -> Statistics | None:
        """Those of the query."""
        return self.query.statistics

    @property
    def array_statistics(self) -> Statistics | None:
        """Those of the query."""
        usual = self.one_form and type(self).contributions is TypicalNorm.contributions
        usual = usual and getattr(type(self.query), "norms", None) is BatchQuery.norms
        return self.query.array_statistics if usual else None

    def contributions_at(self, kept: Array) -> Array:
        """Return one point per user from array statistics."""
        assert isinstance(self.query, BatchQuery)
        return self._points(norms_of(self.query.contributions_at(kept)))

    def contributions_of(self, statistics: Array) -> Array:
        """Return one point per user."""
        assert isinstance(self.query, BatchQuery)
        return self._points(self.query.norms_of(statistics))

    def sums_of(self, statistics: Array, bound: float, size: int) -> Array:
        """Add up each block's points, which have norm one, or are zero."""
        from tacitly.methods.shared.circle_kernels import add_points

        assert isinstance(self.query, BatchQuery)
        norms = np.ascontiguousarray(self.query.norms_of(statistics), dtype=np.float64)
        out = np.zeros((-(-len(norms) // size), 2))
        add_points(read_only(norms), float(self.reach), math.log2(self.around), size, out)
        return clip_factor(1.0, bound) * out

    def _points(self, norms: Array) -> Array:
        seen = np.isfinite(norms) & (norms > 0)
        octaves = np.log2(np.where(seen, norms, 1.0)) - math.log2(self.around)
        return circle(octaves, self.reach) * seen[:, None]


@dataclass(frozen=True)
class Typical:
    """A typical size, and whether it exceeds the noise."""

    size: float
    found: bool


def typical_norm(
    federation: Federation,
    query: Query,
    event: GaussianEvent,
    name: str,
    *,
    reach: float,
    sure: float = 3.0,
    around: float = 1.0,
) -> Typical:
    """Release the typical norm of the contributions to ``query``.

    A norm counts as found if it exceeds the noise by ``sure`` standard deviations. Its logarithm then has an error of
    ``reach``/(π · ``sure``) octaves, and noise alone is mistaken for it once in exp(``sure``²/2) releases: in 90, by
    default.
    """
    released = federation.release(TypicalNorm(query, reach, around), event, name)
    found = float(np.hypot(*released)) > sure * federation.sum_sigma(event)
    return Typical(around * float(2.0 ** uncircle(released, reach)), found)
