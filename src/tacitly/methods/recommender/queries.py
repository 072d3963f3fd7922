"""The vectors that users send when a recommender is learned.

Adjacency, sensitivity and event are the same for every query here. Neighbours differ in one user with all their
ratings (zero-out, or replaced). A contribution is one vector computed from one user's ratings and public numbers. The
last operation clips the whole vector to a public bound C. So the sum moves by at most C (zero-out) or 2C (replace-one),
and each release is one Gaussian event. Which items a user rated is private: a contribution about items has a coordinate
for every item of the public catalogue, zero for items that the user did not rate, and the bound holds for the whole
vector, for any number of items. A user without ratings sends zero.

* :class:`PriorStep`: one step of expectation-maximisation for the prior of users' weights.
* :class:`ItemSums`: residuals and weights per item, for the effects of items and their popularity.
* :class:`PairMoments`: products of residuals of pairs of items, for item factors.
* :class:`LoadingSums`: residuals along users' factors, for the factors of all items.
* :class:`TasteMoment`: which kinds of items users choose, however they rate them.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np

from tacitly.arrays import Array, Offsets, Rows, check_shape, check_size
from tacitly.federation.base import Query
from tacitly.linalg import pack_symmetric
from tacitly.methods.recommender import kernels
from tacitly.methods.recommender.posterior import Catalogue, Codes, Posteriors, WeightPrior, posteriors
from tacitly.methods.shared.batch import BatchQuery
from tacitly.privacy.clipping import GUARD

LEAST, MOST = 2.0**-200, 2.0**200
_FEATURES = 1024  # largest number of features of items: a user's matrix has a number for each pair
_CUT = 3.0  # an excess of squared residuals is limited to three times the expected one


@dataclass(frozen=True)
class PriorStep(BatchQuery):
    """Posterior mean u, ½(u uᵀ + V − I) and the excess of squared residuals, in units of the current prior.

    Their means over users are zero if the prior is right; otherwise they are the step of expectation-maximisation
    (:mod:`~tacitly.methods.recommender.prior`).
    """

    catalogue: Catalogue
    prior: WeightPrior

    def __post_init__(self) -> None:
        check_shape("mean", self.prior.mean, self.catalogue.size)

    @property
    def coordinates(self) -> int:
        """A vector, a symmetric matrix and a number."""
        size = self.catalogue.size
        return size + size * (size + 1) // 2 + 1

    def contributions(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        """Return one vector per user."""
        found = posteriors(*self.catalogue.rated(X, y, offsets), self.catalogue, self.prior)
        second = found.means[:, :, None] * found.means[:, None, :] + found.covariances - np.eye(self.catalogue.size)
        excess = found.squares / (np.maximum(found.rows, 1.0) * self.prior.noise) - 1.0
        rows = np.hstack([found.means, 0.5 * pack_symmetric(second), np.clip(excess, -_CUT, _CUT)[:, None]])
        return np.where((found.rows > 0)[:, None], rows, 0.0)


class UserSum(Query):
    """A query whose contribution is its sum over one user, before clipping."""

    def contribution(self, X: Rows, y: Rows) -> Array:
        """Return the contribution of one user: a sum over one user that is not clipped."""
        return self._sum(X, y, np.array([0, len(X)]), np.inf)

    def block_sum(self, X: Rows, y: Rows, offsets: Offsets, bound: float) -> Array:
        """Clip each contribution and add them up."""
        return self._sum(X, y, offsets, bound * (1.0 - GUARD))

    @abstractmethod
    def _sum(self, X: Rows, y: Rows, offsets: Offsets, limit: float) -> Array:
        """Return the sum of several users' contributions, each clipped to the limit."""


@dataclass(frozen=True)
class _ResidualQuery(UserSum):
    """A query about the residuals of a user's ratings under the user's posterior."""

    catalogue: Catalogue
    prior: WeightPrior

    def __post_init__(self) -> None:
        check_shape("mean", self.prior.mean, self.catalogue.size)

    def _residuals(self, X: Rows, y: Rows, offsets: Offsets) -> tuple[Codes, Array, Offsets]:
        codes, values, bounds = self.catalogue.rated(X, y, offsets)
        found: Posteriors = posteriors(codes, values, bounds, self.catalogue, self.prior)
        weights = found.weights(self.prior)
        left = kernels.residuals(codes, values, bounds, self.catalogue.table, self.catalogue.effects, weights)
        return codes, left, bounds


@dataclass(frozen=True)
class ItemSums(_ResidualQuery):
    """For each item ω·e and scale·ω: e is the rating's residual under the posterior, ω = gⱼ/√(Σ g²) over the user.

    So each user's weights have norm 1, for any number of ratings. ``gains`` g are public: rare items may get more than
    popular ones. e is the score of the item's effect. With ``values=False`` e is zero: popularity alone.
    """

    gains: Array
    scale: float
    values: bool

    def __post_init__(self) -> None:
        super().__post_init__()
        check_shape("gains", self.gains, self.catalogue.items)
        # Beyond these limits, squares and norms lose digits.
        if not all(LEAST <= number <= MOST for number in (self.gains.min(), self.gains.max(), self.scale)):
            raise ValueError("gains and the scale of weights must be positive, and neither tiny nor huge.")

    @property
    def coordinates(self) -> int:
        """A sum and a weight per item."""
        return 2 * self.catalogue.items

    def _sum(self, X: Rows, y: Rows, offsets: Offsets, limit: float) -> Array:
        if self.values:
            codes, left, bounds = self._residuals(X, y, offsets)
        else:
            codes, left, bounds = self.catalogue.rated(X, y, offsets)
            left = np.zeros(len(codes))
        return np.asarray(kernels.item_sums(codes, left, bounds, self.gains, self.scale, limit))


@dataclass(frozen=True)
class PairMoments(_ResidualQuery):
    """e eᵀ/m and scale·1 1ᵀ/m over the m chosen items that the user rated, packed.

    ``place`` has the position of each chosen item, -1 for the others. The first mean divided by the second is the
    covariance of residuals of two items over users who rated both.
    """

    place: Array
    scale: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check_shape("place", self.place, self.catalogue.items)
        check_places(self.place)
        if not self.scale > 0:
            raise ValueError("the scale must be positive.")

    @property
    def size(self) -> int:
        """Number of chosen items."""
        return int(self.place.max()) + 1

    @property
    def coordinates(self) -> int:
        """Two symmetric matrices."""
        return self.size * (self.size + 1)

    def _sum(self, X: Rows, y: Rows, offsets: Offsets, limit: float) -> Array:
        codes, left, bounds = self._residuals(X, y, offsets)
        place = self.place.astype(np.int64)
        return np.asarray(kernels.pair_sums(codes, left, bounds, place, self.size, self.scale, limit))


@dataclass(frozen=True)
class LoadingSums(_ResidualQuery):
    """For each item ω·e·d: e is the rating's residual under the user's posterior, ω = 1/√m for m ratings.

    d is the direction of the user's weights on the last ``factors`` columns of the table, of norm 1. So e·d is the
    score of the item's factors, up to the length of the user's factors, and d does not change the contribution's norm.
    """

    factors: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.factors <= self.catalogue.size:
            raise ValueError(f"factors must be 1 to {self.catalogue.size}. Found {self.factors!r}.")

    @property
    def coordinates(self) -> int:
        """One number per item and factor."""
        return self.catalogue.items * self.factors

    def _sum(self, X: Rows, y: Rows, offsets: Offsets, limit: float) -> Array:
        codes, values, bounds = self.catalogue.rated(X, y, offsets)
        weights = posteriors(codes, values, bounds, self.catalogue, self.prior).weights(self.prior)
        left = kernels.residuals(codes, values, bounds, self.catalogue.table, self.catalogue.effects, weights)
        own = weights[:, -self.factors :]
        lengths = np.sqrt(np.square(own).sum(axis=1, keepdims=True))
        directions = np.where(lengths > 1e-9, own / np.maximum(lengths, 1e-9), 0.0)
        return np.asarray(kernels.loading_sums(codes, left, bounds, directions, self.catalogue.items, limit)).ravel()


@dataclass(frozen=True)
class TasteMoment(BatchQuery):
    """x xᵀ − v·I and x, where x is the mean of public features over the m items that a user rated.

    ``features`` are whitened over items in proportion to their popularity. So for a user who chooses by popularity
    alone, x has mean zero and covariance v·I, with v = :func:`drawing` of m; the rest shows how users differ. The
    numbers are divided by 1/8 + v, so that users with few ratings do not determine the bound; the last coordinate is
    this weight. ``crowd`` is the number of equally popular items that is equivalent to the catalogue.
    """

    catalogue: Catalogue
    features: Array
    crowd: float

    def __post_init__(self) -> None:
        check_shape("features", self.features, self.catalogue.items, None)
        check_size("features + 1", self.features.shape[1] + 1, _FEATURES)

    @property
    def coordinates(self) -> int:
        """A symmetric matrix, a vector and a number."""
        size = self.features.shape[1]
        return int(size * (size + 1) // 2 + size + 1)

    def contributions(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        """Return one packed matrix, one vector and one weight per user."""
        codes, _, bounds = self.catalogue.rated(X, y, offsets)
        rows = np.diff(bounds).astype(np.float64)
        variance = drawing(rows, self.crowd)
        means = kernels.feature_sums(codes, bounds, self.features) / np.maximum(rows, 1.0)[:, None]
        second = means[:, :, None] * means[:, None, :] - np.eye(means.shape[1]) * variance[:, None, None]
        weight = np.where(rows > 0, 1.0 / (0.125 + variance), 0.0)
        return np.hstack([pack_symmetric(second), means, np.full((len(rows), 1), WEIGHT)]) * weight[:, None]


def drawing(rows: Array, crowd: float) -> Array:
    """Return the variance of the mean of ``rows`` draws without replacement from ``crowd`` items of unit variance."""
    count = np.maximum(rows, 1.0)
    return np.asarray(np.maximum(1.0 - count / max(crowd, 1.0), 0.1) / count)


WEIGHT = 0.25
"""Factor of the weight of :class:`TasteMoment`."""


def check_places(place: Array, size: int | None = None) -> None:
    """Raise unless places are -1, or different whole numbers from 0 (``size`` of them): kernels use them as positions.

    >>> check_places(np.array([1.0, -1.0, 0.0]))
    >>> check_places(np.array([0.0, -0.5]))  # would be rounded to 0
    Traceback (most recent call last):
    ValueError: places must be -1, or different whole numbers from 0.
    """
    chosen = np.sort(place[place != -1.0])
    right = bool(len(chosen)) and np.array_equal(chosen, np.arange(len(chosen)))
    if not (right and size in (None, len(chosen))):
        raise ValueError("places must be -1, or different whole numbers from 0.")
