"""Queries for targets that are classes or counts; a complement of :mod:`~tacitly.methods.mixed_effects.queries`.

Adjacency, sensitivity and event are those of that module: a contribution is clipped as a whole to a public bound C, so
the sum moves by at most C (zero-out) or 2C (replace-one), and each release is one Gaussian event. In contrast to
numbers, the information J = I − R of a class or a count depends on the targets as well as the features. Therefore:

* users are weighted by the information that is expected from their features, because a weight that depends on targets
  would bias the score;
* sizes of groups of coordinates are compared with their expectation by differences, Σ‖u‖² − tr J, whose mean is zero
  for any distribution of u; ratios and logarithms would need u to be normal.

With K > 2 classes there are K scores, one per class against the rest, and one spread, the mean over classes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from tacitly.arrays import Array, Offsets, Rows, check_shape, check_size
from tacitly.linalg import pack_symmetric
from tacitly.methods.mixed_effects.likelihoods import LossPosteriors, class_by_class, loss_posteriors, propagated
from tacitly.methods.mixed_effects.loss_heads import by_evidence
from tacitly.methods.mixed_effects.other_law import compared
from tacitly.methods.mixed_effects.posterior import Coordinates, Prior, users_at_once
from tacitly.methods.mixed_effects.queries import Measured, directions, share_roots
from tacitly.methods.mixed_effects.variance_queries import GROUPS
from tacitly.methods.shared.batch import BatchQuery, circle, norms_of, per_user, uncircle

MOST_CLASSES = 1000
MOST_ALTERNATIVES, MOST_SCALE = 16, 1e6
REACHES = {"logistic": 8.0, "poisson": 16.0}
"""Log odds, and log rates, that fit on the circle of :class:`Level`."""

SHARES = np.array([0.2, 0.5])
"""Shares of users at which it is asked how likely each follows the other law."""

_SHARE, _LEAST = 0.3, 0.1
_LARGEST_GAIN = 300.0
_PARTS, _CLEAR = (np.arange(90) + 0.5) / 100.0, np.geomspace(0.01, 1.0, 25)
_EXPECTED = np.log1p(-_PARTS) - 0.5 * np.log(_PARTS)
_BENT, _LEAST_BENT = 0.12, 0.01  # by which released numbers are off the line: of themselves, and of its slope


@dataclass(frozen=True)
class Level(BatchQuery):
    """The log odds of each class among a user's rows, or the log of its mean count, as points on circles.

    A half is added to every number of rows, so that all are finite. K points of norm 1/√K: norm at most 1.
    """

    loss: str
    classes: int  # how many points; 1 for two classes and for counts

    def __post_init__(self) -> None:
        check_size("classes", self.classes, MOST_CLASSES)
        if self.loss not in REACHES:
            raise ValueError(f"loss must be one of {tuple(REACHES)}. Found {self.loss!r}.")

    @property
    def coordinates(self) -> int:
        """A point per class."""
        return 2 * self.classes

    def contributions(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        """Return one point per user and class."""
        targets = np.asarray(y, dtype=np.float64)
        if self.classes > 1:
            values = np.where(np.isfinite(targets)[:, None], targets[:, None] == np.arange(self.classes), np.nan)
        else:
            values = targets[:, None]
        rows = np.diff(offsets).astype(np.float64)[:, None]
        totals = per_user(values, offsets)
        usable = (rows > 0) & np.isfinite(totals) & (totals >= 0)
        totals = np.where(usable, totals, 0.0)
        rest = np.maximum(rows - totals, 0.0) + 0.5 if self.loss == "logistic" else np.maximum(rows, 1.0)
        points = circle(np.log((totals + 0.5) / rest), REACHES[self.loss]) * usable[..., None]
        return np.asarray(points.reshape(len(points), -1) / np.sqrt(self.classes))

    def levels(self, released: Array, noise: float) -> tuple[Array, bool]:
        """Return the typical log odds or log rate of each class, and whether they stand out of the noise."""
        points = released.reshape(-1, 2)
        # Noise as large as a point can be hides everything; without that, one time in ninety it would not seem to.
        clear = (np.hypot(points[:, 0], points[:, 1]) > 3.0 * noise) & (3.0 * noise < 1.0 / np.sqrt(self.classes))
        usual = -np.log(max(self.classes - 1.0, 1.0))
        return np.where(clear, uncircle(points, REACHES[self.loss]), usual), bool(clear.mean() > 0.5)


@dataclass(frozen=True)
class _LossQuery(BatchQuery):
    """A query about posteriors under a public prior for classes or counts."""

    units: Coordinates
    prior: Prior

    def __post_init__(self) -> None:
        check_shape("root", self.prior.root, self.units.size, self.units.size)
        check_size("classes", self.prior.mean.size // self.units.size, MOST_CLASSES)  # each is a posterior to compute
        if self.prior.loss == "squared":
            raise ValueError("loss must be 'logistic' or 'poisson'. Found 'squared'.")

    @property
    def at_once(self) -> int:
        """As many as posteriors are computed of together."""
        return users_at_once(self.units.size)

    def _posteriors(self, X: Rows, y: Rows, offsets: Offsets) -> LossPosteriors:
        return loss_posteriors(X, y, offsets, self.units, self.prior)


@dataclass(frozen=True)
class LossInformationShares(_LossQuery):
    """How a user's information is divided among the weights: √(Jᵢᵢ / tr J) with the expected J, of norm one."""

    @property
    def coordinates(self) -> int:
        """One number per weight."""
        return self.units.size

    def contributions(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        """Return one vector per user."""
        found = self._posteriors(X, y, offsets)
        return share_roots(np.einsum("nii->ni", found.expected), found.rows)


@dataclass(frozen=True)
class LossInformation(_LossQuery):
    """A user's information H about the population's weights, as metric·H·metric; for K classes their mean, and shares.

    The weight of a user is 1/√trace of the information that is expected from features alone, so cut that the expected
    contribution does not exceed ``clip``.
    """

    metric: Array
    clip: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check_shape("metric", self.metric, self.units.size, self.units.size)

    @property
    def coordinates(self) -> int:
        """Entries of a symmetric matrix, and one number per class where there are several."""
        several = len(self.prior.mean) if self.prior.mean.ndim > 1 else 0
        return self.units.size * (self.units.size + 1) // 2 + several

    def contributions(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        """Return one packed matrix per user, and shares."""
        found = self._posteriors(X, y, offsets)
        turned = np.linalg.solve(self.prior.root, self.metric)
        parts = [pack_symmetric(turned.T @ found.information @ turned)]
        if self.prior.mean.ndim > 1:
            parts.append(_SHARE * found.shares / self.units.size)
        return np.hstack(parts) * self.factors(found)[:, None]

    def factors(self, found: LossPosteriors) -> Array:
        """Return each user's weight: 1/√trace of the expected information, and what brings it to the clip."""
        weights, norms = self.weights(found)
        return np.asarray(weights * (self.clip / np.maximum(norms * weights, self.clip)))

    def weights(self, found: LossPosteriors) -> tuple[Array, Array]:
        """Return 1/√trace of the expected information, zero for a user without rows, and its norm."""
        turned = np.linalg.solve(self.prior.root, self.metric)
        expected = turned.T @ found.expected @ turned
        traces = np.einsum("nii->n", expected)
        weights = np.where((found.rows > 0) & (traces > 0), 1.0 / np.sqrt(np.maximum(traces, 1e-300)), 0.0)
        return weights, norms_of(pack_symmetric(expected))


@dataclass(frozen=True)
class LossScore(_LossQuery):
    """A user's score of each class, in a metric, weighted as its information was when that was released."""

    metric: Array
    information_metric: Array
    information_clip: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check_shape("metric", self.metric, self.units.size, self.units.size)

    @property
    def coordinates(self) -> int:
        """One number per weight and class."""
        return int(self.prior.mean.size)

    def contributions(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        """Return one score per user."""
        return self.with_freedoms(X, y, offsets)[0]

    def with_freedoms(self, X: Rows, y: Rows, offsets: Offsets) -> tuple[Array, Array]:
        """Return one score per user, and in about how many directions the user has information about all classes."""
        found = self._posteriors(X, y, offsets)
        information = LossInformation(self.units, self.prior, self.information_metric, self.information_clip)
        scores = found.means @ np.linalg.solve(self.prior.root, self.metric)
        scores = scores.reshape(len(scores), -1)
        weights, norms = information.weights(found)
        freedoms = directions(weights, norms) * (scores.shape[1] // self.units.size)
        return np.asarray(scores * information.factors(found)[:, None]), freedoms


@dataclass(frozen=True)
class MeasuredLossScore(Measured):
    """Scores of all classes, clipped and measured together."""

    score: LossScore
    clip: float
    constant: Array

    def __post_init__(self) -> None:
        check_shape("constant", self.constant, self.score.coordinates)

    @property
    def shared(self) -> float:
        """One direction per class, if there are constant columns."""
        return super().shared * (self.score.coordinates // self.score.units.size)

    def contributions(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        """Return one clipped score and four numbers per user."""
        return self._measured(*self.score.with_freedoms(X, y, offsets))


@dataclass(frozen=True)
class LossSizes(_LossQuery):
    """Σ‖u‖² − tr J and tr J² for each group of coordinates, and the same for the noise of log rates.

    The first is zero on average if the variances are right; its derivative by the logarithm of a variance is the
    second. Both are divided by √(0.1 + tr J²) with the expected J: about the standard deviation of the first.
    """

    groups: Array  # the number of its group for each coordinate

    bound: ClassVar[float] = 3.5

    def __post_init__(self) -> None:
        super().__post_init__()
        check_shape("groups", self.groups, self.units.size)

    @property
    def coordinates(self) -> int:
        """Two numbers per group, and two for the noise."""
        return 2 * (GROUPS + 1)

    def contributions(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        """Return excess and sensitivity per user and group."""
        found = self._posteriors(X, y, offsets)
        means = found.means.reshape(len(found.rows), -1, self.units.size)
        excesses, squares, expected = [], [], []
        for group in range(GROUPS):
            own = np.flatnonzero(self.groups == group)
            information = found.information[:, own][:, :, own]
            lengths = np.square(means[:, :, own]).sum(axis=(1, 2)) / means.shape[1]
            excesses.append(lengths - np.einsum("nii->n", information))
            squares.append(np.square(information).sum(axis=(1, 2)))
            expected.append(np.square(found.expected[:, own][:, :, own]).sum(axis=(1, 2)))
        excess = np.stack([*excesses, found.noise_excess], axis=1)
        square = np.stack([*squares, found.noise_information], axis=1)
        scale = (found.rows > 0)[:, None] / np.sqrt(_LEAST + np.stack([*expected, found.rows], axis=1))
        return np.stack([excess * scale, square * scale], axis=2).reshape(len(excess), -1)

    @staticmethod
    def factors(released: Array, noise: float) -> tuple[Array, Array]:
        """Return by what to multiply each variance, and the noise of the logarithms of these factors."""
        pairs = released.reshape(-1, 2)
        slopes = np.maximum(pairs[:, 1], 0.0) + noise
        return np.clip(1.0 + pairs[:, 0] / (slopes + 1e-12), 0.25, 4.0), noise / (slopes + 1e-12)


@dataclass(frozen=True)
class Evidences(_LossQuery):
    """How much better other priors fit a user's rows: the log evidence under each, minus that under the prior.

    An alternative multiplies the deviations of the weights by a row of ``scales``. With K classes the mean over them.
    """

    scales: Array  # one row per alternative, one positive number per weight
    stretches: Array  # by what each alternative multiplies the mean

    bound: ClassVar[float] = 1.5

    def __post_init__(self) -> None:
        super().__post_init__()
        check_shape("scales", self.scales, None, self.units.size)
        check_shape("stretches", self.stretches, len(self.scales))
        check_size("alternatives", len(self.scales), MOST_ALTERNATIVES)
        if not ((self.scales > 0) & (self.scales <= MOST_SCALE)).all():
            raise ValueError(f"scales must be positive and at most {MOST_SCALE:g}.")

    @property
    def coordinates(self) -> int:
        """One number per alternative."""
        return len(self.scales)

    def contributions(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        """Return differences of log evidences, zeros for a user whose rows cannot be used."""
        design, targets = self.units.design(X), np.asarray(y, dtype=np.float64)
        usual = propagated(design, targets, offsets, self.prior)
        classes = max(1, self.prior.mean.size // self.units.size)
        out = np.zeros((len(usual.rows), len(self.scales)))
        for number, (scale, stretch) in enumerate(zip(self.scales, self.stretches, strict=True)):
            other = replace(self.prior, mean=self.prior.mean * stretch, root=self.prior.root * scale[:, None])
            found = propagated(design, targets, offsets, other)
            usable = (usual.rows > 0) & (found.rows > 0)
            out[:, number] = np.where(usable, (found.evidence - usual.evidence) / classes, 0.0)
        return np.asarray(np.where(np.isfinite(out), out, 0.0))


@dataclass(frozen=True)
class OtherLaw(_LossQuery):
    """For each share in :data:`SHARES`: the probability that a user follows the other distribution, minus the share.

    Each probability is computed as if that share of all users follows the other distribution
    (:mod:`~tacitly.methods.mixed_effects.other_law`). It lies between 0 and 1, so a contribution has norm at most √Σ
    max(p, 1 − p)². For two classes and for counts.
    """

    bound: ClassVar[float] = float(np.linalg.norm(np.maximum(SHARES, 1.0 - SHARES)))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.prior.mean.ndim > 1:
            raise ValueError("the other law is for two classes and for counts. Found a mean per class.")

    @property
    def coordinates(self) -> int:
        """One number per share."""
        return len(SHARES)

    def contributions(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        """Return, for each user and share, the probability of the other distribution minus the share."""
        design = self.units.design(X)
        ((targets, _),) = class_by_class(np.asarray(y, dtype=np.float64), self.prior)
        found = compared(by_evidence(design, targets, offsets, self.prior), design, targets, offsets, self.prior)
        gains = np.clip(np.nan_to_num(found.gains), -_LARGEST_GAIN, _LARGEST_GAIN)[:, None]
        likely = 1.0 / (1.0 + np.exp(-gains) * (1.0 - SHARES) / SHARES)
        return np.asarray((likely - SHARES) * (found.usual.usable & found.other.usable)[:, None])

    @staticmethod
    def share(released: Array, noise: float) -> float:
        """Return the estimated share of users that follow the other distribution.

        The value released at p is about a·(π − p), where π is the share and a measures how clearly users' rows
        distinguish the two distributions. The estimate applies Bayes' rule on a grid, with log a uniform and π ~
        Beta(½, 2); it is a fifth if the noise hides everything.

        >>> round(OtherLaw.share(0.4 * (0.0 - SHARES), 0.01), 2), round(OtherLaw.share(np.zeros(2), 10.0), 2)
        (0.03, 0.21)
        """
        expected = _CLEAR[:, None, None] * (_PARTS[:, None] - SHARES)
        doubt = np.sqrt(noise**2 + np.square(_BENT * expected) + np.square(_LEAST_BENT * _CLEAR)[:, None, None])
        chances = (-0.5 * np.square((released - expected) / doubt) - np.log(doubt)).sum(axis=2) + _EXPECTED
        weights = np.exp(chances - chances.max())
        return float((weights * _PARTS).sum() / weights.sum())


@dataclass(frozen=True)
class LossSpread(_LossQuery):
    """u uᵀ − J, the mean over classes, clipped to ``clip``, with squares of J's diagonal under the same factor.

    A ``clip`` of zero is none.
    """

    clip: float

    @property
    def coordinates(self) -> int:
        """Entries of a symmetric matrix and of a diagonal."""
        return self.units.size * (self.units.size + 3) // 2

    @property
    def bound(self) -> float:
        """The bound at which a contribution is clipped as a whole."""
        return 1.12 * self.clip

    def contributions(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        """Return one packed matrix and one diagonal per user."""
        found = self._posteriors(X, y, offsets)
        means = found.means.reshape(len(found.rows), -1, self.units.size)
        outer = means.transpose(0, 2, 1) @ means / means.shape[1]
        spread = pack_symmetric(outer - found.information)
        factors = (found.rows > 0).astype(np.float64)
        if self.clip > 0:
            factors = factors * (self.clip / np.maximum(norms_of(spread), self.clip))
        squares = np.square(np.einsum("nii->ni", found.information)) * (self.clip > 0)
        return np.hstack([spread, squares]) * factors[:, None]
