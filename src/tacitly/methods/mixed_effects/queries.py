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
* :mod:`~tacitly.methods.mixed_effects.variance_queries` compares ‖u‖² with tr J, and u uᵀ with J.
* :class:`~tacitly.methods.mixed_effects.advantage.Advantage` predicts rows from a user's other rows, to calibrate
  intervals and to see whether the prior helps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tacitly.arrays import Array, Offsets, Rows, check_shape
from tacitly.federation.statistics import Statistics
from tacitly.methods.mixed_effects.array_statistics import ArrayInformation, ArraySolved, solved_in
from tacitly.methods.mixed_effects.posterior import Coordinates, Posteriors, Prior, posteriors_of, users_at_once
from tacitly.methods.mixed_effects.statistics import (
    Likelihoods,
    Moments,
    along,
    clipped_scores,
    directions_of,
    score_norms,
    scores,
    sizes,
)
from tacitly.methods.shared.batch import BatchQuery, clip_factors, norms_of

_EXTRA = 0.25


@dataclass(frozen=True)
class PriorQuery(BatchQuery):
    """A query about posteriors under a public prior."""

    units: Coordinates
    prior: Prior

    def __post_init__(self) -> None:
        check_shape("mean", self.prior.mean, self.units.size)

    @property
    def at_once(self) -> int:
        """As many as posteriors are computed of together."""
        return users_at_once(self.units.size)

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
    def at_once(self) -> int:
        """Those of the score."""
        return self.score.at_once

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
        least = np.minimum(0.15, 2.0 * np.sqrt(doubts))
        squares = np.clip(lengths, least, 3.0) * self.clip**2 / len(self.constant)
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
