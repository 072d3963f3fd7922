"""What users send so that a population prior can be learned: all of it from their posteriors under the current prior.

Adjacency, sensitivity and event are the same for every query here: a user's contribution is clipped, whole, to a
public bound C, so the sum moves by at most C (zero-out) or 2C (replace-one), and each release is one Gaussian event.
No clip, step or weight depends on data other than through earlier releases, and a user without rows sends zero.

In the notation of :mod:`~tacitly.methods.mixed_effects.posterior`, u and J are a user's score and information about the
population's weights in whitened coordinates, and E[u uᵀ] = J if the prior is right:

* :class:`InformationShares` gives a scale on which every weight has about as much information, so that the noise of the
  next release hides none of them.
* :class:`Information` and :class:`Score` give the population's weights by Newton's method. Both carry the same weight
  1/√tr J per user, so that users with thousands of rows do not drown the others and the ratio stays unbiased.
* :class:`LogVariances` and :class:`Variances` compare ‖u‖² with tr J for groups of coordinates, and residuals with
  their degrees of freedom: first on a logarithmic scale, from any distance, then finely.
* :class:`Spread` is u uᵀ − J, the direction in which the whole covariance should change.
* :class:`~tacitly.methods.mixed_effects.advantage.Advantage` predicts rows from a user's other rows, to calibrate
  intervals and to see whether the prior helps.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np

from tacitly.arrays import Array, Offsets, Rows, check_shape
from tacitly.federation.statistics import Statistics
from tacitly.linalg import pack_symmetric
from tacitly.methods.mixed_effects.array_statistics import ArrayInformation, ArraySolved, solved_in
from tacitly.methods.mixed_effects.posterior import Coordinates, Posteriors, Prior, posteriors_of
from tacitly.methods.mixed_effects.statistics import (
    Likelihoods,
    Moments,
    along,
    clipped_scores,
    directions_of,
    information_and_score,
    log_variance_sums,
    score_norms,
    scores,
    sizes,
    spread_norms,
    spread_sums,
    triangle,
    variance_sums,
)
from tacitly.methods.shared.batch import BatchQuery, circle, clip_factors, norms_of, per_user, uncircle

GROUPS = 3
"""Groups of coordinates with a variance factor of their own: the intercept, the bulk, directions that stand out."""

REACHES = (12.0, 12.0, 12.0, 20.0)
"""Octaves that fit on the circle of :class:`LogVariances`, per group and for the noise."""

_CAP, _WEIGHT, _EXTRA = 3.0, 0.2, 0.25
# E min(χ²_ν/ν, 3), which is P(χ²_{ν+2} ≤ 3ν) + 3 P(χ²_ν > 3ν).
_FREEDOM = np.array([0.5, 1, 1.5, 2, 3, 4, 6, 8, 12, 20, 40, 100])
_CAPPED = np.array(
    [0.715147, 0.858168, 0.918929, 0.950213, 0.978809, 0.990085, 0.99747, 0.999275, 0.999929, 0.999999, 1.0, 1.0]
)


@dataclass(frozen=True)
class WithinVariance(BatchQuery):
    """The variance of a user's own targets; its typical size starts the noise level. Zero from a single row."""

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
class PriorQuery(BatchQuery):
    """A query about posteriors under a public prior."""

    units: Coordinates
    prior: Prior

    def __post_init__(self) -> None:
        check_shape("mean", self.prior.mean, self.units.size)

    @property
    def statistics(self) -> Statistics | None:
        """Moments, from which posteriors follow, along the prior's directions."""
        return Moments(self.units, directions_of(self.prior.root))

    @property
    def array_statistics(self) -> Statistics | None:
        """What does not depend on the prior's mean; none where a subclass needs rows, or changes a form."""
        return self._kept if type(self).contributions is PriorQuery.contributions and self.one_form else None

    def contributions(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        """Return one row per user."""
        return self.contributions_at(self._kept.of_rows(X, y, offsets))

    def contributions_at(self, kept: Array) -> Array:
        """Return one row per user from array statistics."""
        return self._of_posteriors(self._posteriors_at(kept))

    @property
    def _kept(self) -> Statistics:
        return ArraySolved(self.units, self.prior.root, self.prior.noise)

    def _posteriors(self, X: Rows, y: Rows, offsets: Offsets) -> Posteriors:
        return self._posteriors_at(self._kept.of_rows(X, y, offsets))

    def _posteriors_at(self, kept: Array) -> Posteriors:
        return posteriors_of(solved_in(kept, self.units.size), self.prior)

    def _of_posteriors(self, found: Posteriors) -> Array:
        raise NotImplementedError


@dataclass(frozen=True)
class InformationShares(PriorQuery):
    """How a user's information is divided among the weights: √(Jᵢᵢ / tr J), a vector of norm one (or zero)."""

    @property
    def coordinates(self) -> int:
        """One number per weight."""
        return self.units.size

    def _of_posteriors(self, found: Posteriors) -> Array:
        """Return one vector per user."""
        return share_roots(np.einsum("nii->ni", found.information), found.rows)

    def contributions_of(self, statistics: Array) -> Array:
        """Return one vector per user."""
        size = self.units.size
        own = np.arange(size, dtype=np.float64)  # groups of one coordinate each
        found = sizes(statistics, along(self.prior), own, size)
        return share_roots(found[:, 1 : 3 * size : 3], statistics[:, -1])


def share_roots(diagonals: Array, rows: Array) -> Array:
    """Return the roots of the shares of each row's entries in their sum; zeros for a user without rows.

    >>> share_roots(np.array([[0.09, 0.16], [0.5, 0.0]]), np.array([3.0, 0.0]))
    array([[0.6, 0.8],
           [0. , 0. ]])
    """
    sizes = np.maximum(diagonals, 0.0)
    totals = sizes.sum(axis=1)
    usable = (rows > 0) & (totals > 0) & np.isfinite(totals)
    return np.asarray(np.sqrt(np.where(usable[:, None], sizes, 0.0) / np.where(usable, totals, 1.0)[:, None]))


@dataclass(frozen=True)
class Information(PriorQuery):
    """A user's information H = ZᵀΩ⁻¹Z about the population's weights, as metric·H·metric / √trace."""

    metric: Array

    def __post_init__(self) -> None:
        super().__post_init__()
        check_shape("metric", self.metric, self.units.size, self.units.size)

    @property
    def coordinates(self) -> int:
        """Entries of a symmetric matrix."""
        return self.units.size * (self.units.size + 1) // 2

    @property
    def _kept(self) -> ArrayInformation:
        return ArrayInformation(self.units, self.prior.root, self.prior.noise, self.metric)

    def contributions_at(self, kept: Array) -> Array:
        """Return one packed matrix per user."""
        return np.asarray(kept[:, -2 - self.coordinates : -2] * kept[:, -2:-1])

    @property
    def statistics(self) -> Likelihoods:
        """The information itself."""
        return Likelihoods(self.units, self.prior.root, self.prior.noise, self.metric)

    def contributions_of(self, statistics: Array) -> Array:
        """Return one packed matrix per user."""
        return np.asarray(statistics[:, : self.coordinates] * statistics[:, -2:-1])

    def norms_of(self, statistics: Array) -> Array:
        """Return one norm per user."""
        return np.asarray(statistics[:, -1] * statistics[:, -2])

    def sums_of(self, statistics: Array, bound: float, size: int) -> Array:
        """Clip each contribution and add up those of each block: weights and clips first, then one product."""
        weights = clip_factors(self.norms_of(statistics), bound) * statistics[:, -2]
        blocks = [slice(start, start + size) for start in range(0, len(statistics), size)]
        return np.array([weights[block] @ statistics[block, : self.coordinates] for block in blocks])


@dataclass(frozen=True)
class Score(PriorQuery):
    """A user's score ZᵀΩ⁻¹(y − Zw̄), in a metric, weighted as its information was when that was released.

    ``information`` is the query that was released and ``information_clip`` its clip; ``prior`` is the one it had, but
    for the mean, which moves from round to round.
    """

    metric: Array
    information_metric: Array
    information_clip: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check_shape("metric", self.metric, self.units.size, self.units.size)
        check_shape("information_metric", self.information_metric, self.units.size, self.units.size)

    @property
    def coordinates(self) -> int:
        """One number per weight."""
        return self.units.size

    @property
    def _kept(self) -> ArrayInformation:
        return ArrayInformation(self.units, self.prior.root, self.prior.noise, self.information_metric)

    def contributions_at(self, kept: Array) -> Array:
        """Return one score per user."""
        return self.with_freedoms(kept)[0]

    def with_freedoms(self, kept: Array) -> tuple[Array, Array]:
        """Return one score per user, and in about how many directions the user has information."""
        found, weights, norms = self._posteriors_at(kept), kept[:, -2], kept[:, -1]
        freedoms = directions(weights, norms)
        weights = weights * (self.information_clip / np.maximum(norms * weights, self.information_clip))
        return found.means @ np.linalg.solve(self.prior.root, self.metric) * weights[:, None], freedoms

    @property
    def statistics(self) -> Likelihoods:
        """The information, and the score at weights of zero."""
        return Likelihoods(self.units, self.prior.root, self.prior.noise, self.information_metric)

    def contributions_of(self, statistics: Array) -> Array:
        """Return one score per user: that at zero less the information times the weights, in the metric."""
        point = np.asarray(np.linalg.solve(self.information_metric, self.prior.mean), dtype=np.float64)
        turn = np.asarray(np.linalg.solve(self.information_metric, self.metric), dtype=np.float64)
        return scores(statistics, point, turn, self.information_clip)

    def norms_of(self, statistics: Array) -> Array:
        """Return one norm per user."""
        return score_norms(self.contributions_of(statistics))


def directions(weights: Array, norms: Array) -> Array:
    """Return in about how many directions users have information, (trace/norm)², from 1/√trace and the norm.

    >>> directions(np.array([0.5, 0.0]), np.array([2.0, 0.0]))  # an identity matrix of size four; no rows
    array([4., 1.])
    """
    known = (weights > 0) & (norms > 0)
    ratios = 1.0 / (np.square(np.where(known, weights, 1.0)) * np.where(known, norms, 1.0))
    return np.maximum(np.square(ratios), 1.0)


class Measured(BatchQuery):
    """A score, clipped to ``clip``, with four numbers that say what the clip did: mean slopes and squared lengths.

    A clipped vector follows a change of its argument except along itself: in one of the directions in which the user
    has information. Columns that are constant within users share one direction per user, so their slope is another.
    ``constant`` has a 1 for each such coordinate, else 0. Subclasses are data classes with these three fields.
    """

    score: BatchQuery
    clip: float
    constant: Array

    @property
    def coordinates(self) -> int:
        """Those of the score, and four."""
        return self.score.coordinates + 4

    @property
    def bound(self) -> float:
        """Largest norm of a contribution: slopes are at most one, and so is the sum of the squared lengths."""
        return float(self.clip * np.sqrt(1.0 + 3.0 * _EXTRA**2))

    @property
    def counts(self) -> Array:
        """How many coordinates vary within users, and how many do not; at least one."""
        constant = float(np.sum(self.constant))
        return np.maximum([len(self.constant) - constant, constant], 1.0)

    @property
    def shared(self) -> float:
        """In how many directions a user has information about constant columns: one per class, if there are any."""
        return float(np.any(self.constant > 0))

    def _measured(self, scores: Array, freedoms: Array) -> Array:
        norms = norms_of(scores)
        factors = np.where(norms > 0, self.clip / np.maximum(norms, self.clip), 0.0)
        length = np.square(np.minimum(norms / self.clip, 1.0))
        units = np.where((norms > 0)[:, None], scores, 0.0) / np.where(norms > 0, norms, 1.0)[:, None]
        constant = np.minimum(np.square(units) @ self.constant, 1.0)
        shares = np.stack([1.0 - constant, constant], axis=1)
        ranks = np.stack([np.maximum(freedoms - self.shared, 1.0), np.full(len(norms), max(self.shared, 1.0))], axis=1)
        slopes = factors[:, None] * (1.0 - (norms > self.clip)[:, None] * shares / ranks)
        extra = _EXTRA * self.clip * np.hstack([slopes, length[:, None] * shares])
        return np.hstack([scores * factors[:, None], extra])

    def split(self, released: Array, noise: float, usual: tuple[float, float]) -> tuple[Array, Array, Array]:
        """Return the mean score, and for each of its coordinates the mean slope and the mean square of clipped scores.

        Slopes and lengths are shrunk by their known noise to what is usual.
        """
        group = self.constant.astype(np.int64)
        doubt = noise / (_EXTRA * self.clip)
        slopes, lengths = (released[-4:] / (_EXTRA * self.clip)).reshape(2, 2)
        parts = self.counts / len(self.constant)
        lengths, doubts = lengths / parts, np.square(doubt / parts)
        slopes = usual[0] + (slopes - usual[0]) * 0.01 / (0.01 + doubt**2)
        lengths = usual[1] + (lengths - usual[1]) * 0.02 / (0.02 + doubts)
        squares = np.clip(lengths, 0.15, 3.0) * self.clip**2 / len(self.constant)
        return released[:-4], np.clip(slopes, 0.3, 1.0)[group], squares[group]


@dataclass(frozen=True)
class MeasuredScore(Measured):
    """A score of the population's weights, clipped and measured."""

    score: Score
    clip: float
    constant: Array

    def __post_init__(self) -> None:
        check_shape("constant", self.constant, self.score.coordinates)

    @property
    def statistics(self) -> Likelihoods:
        """Those of the score."""
        return self.score.statistics

    @property
    def array_statistics(self) -> Statistics | None:
        """Those of the score."""
        usual = type(self).contributions is MeasuredScore.contributions and self.one_form
        return self.score.array_statistics if usual else None

    def contributions(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        """Return one clipped score and four numbers per user."""
        return self.contributions_at(self.score._kept.of_rows(X, y, offsets))

    def contributions_at(self, kept: Array) -> Array:
        """Return one clipped score and four numbers per user."""
        return self._measured(*self.score.with_freedoms(kept))

    def contributions_of(self, statistics: Array) -> Array:
        """Return one clipped score and four numbers per user."""
        return self._measured(self.score.contributions_of(statistics), directions(statistics[:, -2], statistics[:, -1]))

    def sums_of(self, statistics: Array, bound: float, size: int) -> Array:
        """Clip each contribution and add up those of each block."""
        found, freedoms = self.score.contributions_of(statistics), directions(statistics[:, -2], statistics[:, -1])
        clips = {"clip": self.clip, "extra": _EXTRA, "bound": bound}
        return clipped_scores(found, freedoms, self.constant, self.shared, **clips, size=size)[1]


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
    """u uᵀ − J: how a user's posterior differs from what the prior expects."""

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
    """The spread, clipped to ``clip``, with squares of J's diagonal under the same factor: how sensitive it is."""

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
