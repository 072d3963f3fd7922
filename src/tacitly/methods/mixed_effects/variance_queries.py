"""Queries about differences between users: variances and covariance of their weights, and the noise of their rows.

Adjacency, sensitivity, event and notation are those of :mod:`~tacitly.methods.mixed_effects.queries`: E[u uᵀ] = J if
the prior is right.

* :class:`WithinVariance` gives the initial noise variance, before there is a prior.
* :class:`LogVariances` and :class:`Variances` compare ‖u‖² with tr J for groups of coordinates, and residuals with
  their degrees of freedom: first on a logarithmic scale, which works for any initial value, then with higher precision.
* :class:`Spread` is u uᵀ − J, the direction of the update of the whole covariance.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np

from tacitly.arrays import Array, Offsets, Rows, check_shape
from tacitly.linalg import pack_symmetric
from tacitly.methods.mixed_effects.posterior import Coordinates, Posteriors, Prior
from tacitly.methods.mixed_effects.queries import PriorQuery
from tacitly.methods.mixed_effects.statistics import (
    along,
    information_and_score,
    log_variance_sums,
    sizes,
    spread_norms,
    spread_sums,
    triangle,
    variance_sums,
)
from tacitly.methods.shared.batch import BatchQuery, circle, norms_of, per_user, uncircle

GROUPS = 3
"""Groups of coordinates with a variance factor of their own: the intercept, the bulk, directions that stand out."""

REACHES = (12.0, 12.0, 12.0, 20.0)
"""Octaves that fit on the circle of :class:`LogVariances`, per group and for the noise."""

_CAP, _WEIGHT = 3.0, 0.2
# E min(χ²_ν/ν, 3), which is P(χ²_{ν+2} ≤ 3ν) + 3 P(χ²_ν > 3ν).
_FREEDOM = np.array([0.5, 1, 1.5, 2, 3, 4, 6, 8, 12, 20, 40, 100])
_CAPPED = np.array(
    [0.715147, 0.858168, 0.918929, 0.950213, 0.978809, 0.990085, 0.99747, 0.999275, 0.999929, 0.999999, 1.0, 1.0]
)


@dataclass(frozen=True)
class WithinVariance(BatchQuery):
    """The variance of a user's own targets, for the initial noise variance. Zero for a single row."""

    coordinates_of: Coordinates

    @property
    def coordinates(self) -> int:
        """One number."""
        return 1

    def contributions(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        """Return one variance per user."""
        targets = self.coordinates_of.targets(y)
        rows = np.diff(offsets).astype(np.float64)
        means = per_user(targets, offsets) / np.maximum(rows, 1.0)
        left = per_user(np.square(targets - np.repeat(means, np.diff(offsets))), offsets)
        return np.where(rows > 1, left / np.maximum(rows - 1.0, 1.0), 0.0)[:, None]


@dataclass(frozen=True)
class _GroupQuery(PriorQuery):
    """A query about sizes of groups of coordinates: ``groups`` has the number of its group for each coordinate."""

    groups: Array

    def __post_init__(self) -> None:
        super().__post_init__()
        check_shape("groups", self.groups, self.units.size)

    def _of_posteriors(self, found: Posteriors) -> Array:
        return self._of(*self._ratios(self._sizes(found)))

    def contributions_of(self, statistics: Array) -> Array:
        """Return one row per user."""
        return self._of(*self._ratios(self._sizes_of(statistics)))

    def _sizes_of(self, statistics: Array) -> Array:
        return sizes(statistics, along(self.prior), self.groups, GROUPS)

    @abstractmethod
    def _of(self, ratio: Array, freedom: Array, weight: Array) -> Array:
        """Return contributions from what :meth:`_ratios` returns."""

    def _sizes(self, found: Posteriors) -> Array:
        """Return ‖u‖², tr J and ‖J‖² of each group, then the residual, tr J and the number of rows."""
        columns = []
        for group in range(GROUPS):
            own = np.flatnonzero(self.groups == group)
            information = found.information[:, own][:, :, own]
            columns.append(np.square(found.means[:, own]).sum(axis=1))
            columns.append(np.einsum("nii->n", information))
            columns.append(np.square(information).sum(axis=(1, 2)))
        return np.stack([*columns, found.residuals, np.einsum("nii->n", found.information), found.rows], axis=1)

    def _ratios(self, found: Array) -> tuple[Array, Array, Array]:
        """Return size over expected size, degrees of freedom and weight, one column per group and one for the noise."""
        size, trace, square = (found[:, first : 3 * GROUPS : 3] for first in range(3))
        residual, whole, rows = found[:, -3], found[:, -2], found[:, -1]
        left = np.maximum(rows - whole, 1e-9)
        ratio = np.empty((len(found), GROUPS + 1))
        freedom, traces = np.empty_like(ratio), np.empty_like(ratio)
        ratio[:, :-1], ratio[:, -1] = size / np.maximum(trace, 1e-300), residual / (self.prior.noise * left)
        freedom[:, :-1] = np.square(trace) / np.maximum(square, 1e-300)
        # Residuals have the covariance s²(I − H), H with the eigenvalues of J: (m − tr J)²/(m − 2 tr J + ‖J‖²), at
        # most m. Groups leave out some of ‖J‖². For one row it is 1; m − tr J, a half, let the noise grow for ever.
        spread = rows - 2.0 * whole + square.sum(axis=1)
        freedom[:, -1] = np.square(left) / np.maximum(spread, np.square(left) / np.maximum(rows, 1.0))
        traces[:, :-1], traces[:, -1] = trace, left
        weight = traces / (traces + _WEIGHT) * (rows > 0)[:, None]
        return ratio, np.maximum(freedom, 0.5), weight


@dataclass(frozen=True)
class LogVariances(_GroupQuery):
    """Logarithms of the sizes as points on circles, corrected for the bias of the logarithm of a χ² variable."""

    @property
    def coordinates(self) -> int:
        """A point per group, and one for the noise."""
        return 2 * (GROUPS + 1)

    def _of(self, ratio: Array, freedom: Array, weight: Array) -> Array:
        """Return one point per user and group."""
        bias = digamma(freedom / 2.0) - np.log(freedom / 2.0)
        octaves = (np.log(np.maximum(ratio, 1e-300)) - bias) / np.log(2.0)
        points = [circle(octaves[:, column], reach) for column, reach in enumerate(REACHES)]
        return np.concatenate([point * weight[:, [column]] for column, point in enumerate(points)], axis=1)

    def sums_of(self, statistics: Array, bound: float, size: int) -> Array:
        """Clip each contribution and add up those of each block."""
        return log_variance_sums(
            statistics, along(self.prior), self.groups, bound, size, np.array(REACHES), weight=_WEIGHT
        )

    @staticmethod
    def factors(released: Array, noise: float) -> Array:
        """Return by what to multiply each variance; 1 where nothing stands out of the noise."""
        points = released.reshape(-1, 2)
        clear = np.hypot(points[:, 0], points[:, 1]) > 3.0 * noise
        octaves = [float(uncircle(point, reach)) for point, reach in zip(points, REACHES, strict=True)]
        return np.where(clear, 2.0 ** np.array(octaves), 1.0)


@dataclass(frozen=True)
class Variances(_GroupQuery):
    """Sizes capped at three times the expected one, less their expectation, with the weights they carry."""

    @property
    def coordinates(self) -> int:
        """Two numbers per group, and two for the noise."""
        return 2 * (GROUPS + 1)

    def _of(self, ratio: Array, freedom: Array, weight: Array) -> Array:
        """Return excess and weight per user and group."""
        expected = np.interp(np.log(freedom), np.log(_FREEDOM), _CAPPED)
        excess = (np.minimum(ratio, _CAP) - expected) * weight
        return np.stack([excess, weight], axis=2).reshape(len(excess), -1)

    def sums_of(self, statistics: Array, bound: float, size: int) -> Array:
        """Clip each contribution and add up those of each block."""
        tables = np.log2(_FREEDOM), _CAPPED
        return variance_sums(
            statistics, along(self.prior), self.groups, GROUPS, bound, size, *tables, weight=_WEIGHT, cap=_CAP
        )

    @staticmethod
    def factors(released: Array, noise: float) -> Array:
        """Return by what to multiply each variance."""
        pairs = released.reshape(-1, 2)
        return np.clip(1.0 + pairs[:, 0] / (np.maximum(pairs[:, 1], 0.0) + 2.0 * noise + 1e-12), 0.2, 3.0)


@dataclass(frozen=True)
class Spread(PriorQuery):
    """u uᵀ − J: the difference between a user's posterior and what the prior expects."""

    @property
    def coordinates(self) -> int:
        """Entries of a symmetric matrix."""
        return self.units.size * (self.units.size + 1) // 2

    def _of_posteriors(self, found: Posteriors) -> Array:
        return self.of(found)

    @staticmethod
    def of(found: Posteriors) -> Array:
        """Return u uᵀ − J, packed; zero for a user without rows."""
        outer = found.means[:, :, None] * found.means[:, None, :]
        return pack_symmetric(outer - found.information) * (found.rows > 0)[:, None]

    def contributions_of(self, statistics: Array) -> Array:
        """Return one packed matrix per user."""
        return spread_of(statistics, along(self.prior))[0]

    def norms_of(self, statistics: Array) -> Array:
        """Return one norm per user."""
        return spread_norms(statistics, along(self.prior))


@dataclass(frozen=True)
class MeasuredSpread(PriorQuery):
    """The spread, clipped to ``clip``, and squares of J's diagonal times the same factor, which give its slope."""

    clip: float

    @property
    def coordinates(self) -> int:
        """Entries of a symmetric matrix and of a diagonal."""
        return self.units.size * (self.units.size + 3) // 2

    @property
    def bound(self) -> float:
        """The bound at which a contribution is clipped as a whole."""
        return 1.12 * self.clip

    def _of_posteriors(self, found: Posteriors) -> Array:
        return self._measured(Spread.of(found), np.einsum("nii->ni", found.information), found.rows)

    def contributions_of(self, statistics: Array) -> Array:
        """Return one packed matrix and one diagonal per user."""
        return self._measured(*spread_of(statistics, along(self.prior)), statistics[:, -1])

    def sums_of(self, statistics: Array, bound: float, size: int) -> Array:
        """Clip each contribution and add up those of each block."""
        return spread_sums(statistics, along(self.prior), self.clip, bound, size)

    def _measured(self, spread: Array, diagonal: Array, rows: Array) -> Array:
        norms = norms_of(spread)
        factors = np.where(rows > 0, self.clip / np.maximum(norms, self.clip), 0.0)
        return np.hstack([spread, np.square(diagonal)]) * factors[:, None]


def spread_of(moments: Array, prior: Prior) -> tuple[Array, Array]:
    """Return :meth:`Spread.of` and the diagonal of J from moments."""
    size = len(prior.mean)
    first, second = np.triu_indices(size)
    found = information_and_score(moments, prior, np.eye(size))
    information, means = found[:, : triangle(size)], found[:, triangle(size) :]
    outer = means[:, first] * means[:, second] - information
    outer *= np.where(first == second, 1.0, np.sqrt(2.0))
    return outer * (moments[:, -1] > 0)[:, None], information[:, first == second]


def digamma(x: Array) -> Array:
    """Return the logarithmic derivative of the gamma function for x ≥ ¼ (no SciPy on a node).

    >>> digamma(np.array([0.5, 1.0])).round(6)
    array([-1.96351 , -0.577216])
    """
    shifted, total = np.asarray(x, dtype=np.float64), np.zeros(np.shape(x))
    for _ in range(6):
        total = total - 1.0 / shifted
        shifted = shifted + 1.0
    inverse = 1.0 / np.square(shifted)
    series = inverse * (1.0 / 12.0 - inverse * (1.0 / 120.0 - inverse / 252.0))
    return np.asarray(total + np.log(shifted) - 0.5 / shifted - series)
