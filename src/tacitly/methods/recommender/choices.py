"""Choice factors: which popular items the same users choose, however they rate them.

A user chose m of the K most popular items. If popularity alone decided, item j would be among them with probability
πⱼ(m) = 1 − exp(−c·sⱼ), where s are the items' shares of popularity and c is such that the probabilities sum to m. What
popularity does not explain is x = a − π(m), where aⱼ = 1 for items that were chosen. If users differ in a taste θ for
loadings t of items, then xⱼ ≈ vⱼ·tⱼᵀθ + noise with vⱼ = πⱼ(1 − πⱼ). So outside its diagonal the mean of x xᵀ is
v vᵀ∘(t T tᵀ) up to a constant. This is a low-rank matrix, fitted as for ratings
(:mod:`~tacitly.methods.recommender.factors`). Loadings become further features of items; how much users' tastes vary
along them is learned together with the other features (:mod:`tastes`).

Adjacency, sensitivity, event. Neighbours differ in one user with all their items (zero-out, or replaced). A user's
contribution is x xᵀ/‖x‖², packed so that norms are Frobenius norms; it is computed from that user's items and public
numbers, has norm 1 (0 without a choice), and is clipped to C as the last operation. The sum moves by at most C
(zero-out) or 2C (replace-one): one Gaussian event.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tacitly.arrays import Array, Offsets, Rows, check_shape, check_size
from tacitly.linalg import pack_symmetric, unpack_symmetric
from tacitly.methods.recommender.factors import covariance_factors
from tacitly.methods.recommender.posterior import Catalogue
from tacitly.methods.recommender.queries import LEAST, MOST, UserSum, check_places

_KEPT = 1.0  # false tastes cost more than missed tastes
_MOST = 2000
_USERS = 2048  # number of users whose choices are held in memory at once


@dataclass(frozen=True)
class ChoiceMoments(UserSum):
    """x xᵀ/‖x‖², where x is the part of a user's choices among the items with a place that popularity does not explain.

    ``place`` has the position of each such item, -1 for the others; ``shares`` their shares of popularity.
    """

    catalogue: Catalogue
    place: Array
    shares: Array

    def __post_init__(self) -> None:
        check_shape("place", self.place, self.catalogue.items)
        check_shape("shares", self.shares, None)
        check_size("shares", len(self.shares), _MOST)
        check_places(self.place, len(self.shares))
        if len(self.shares) < 2 or not (self.shares.min() >= LEAST and self.shares.max() <= MOST):
            raise ValueError("shares of popularity must be positive and finite, and at least two.")

    @property
    def size(self) -> int:
        """Number of chosen items, K."""
        return len(self.shares)

    @property
    def coordinates(self) -> int:
        """A symmetric matrix."""
        return self.size * (self.size + 1) // 2

    @cached_property
    def expected(self) -> Array:
        """π(m), one row for every m from 0 to K."""
        return chances(self.shares)

    def _sum(self, X: Rows, y: Rows, offsets: Offsets, limit: float) -> Array:
        codes, _, bounds = self.catalogue.rated(X, y, offsets)
        place, total = self.place.astype(np.int64), np.zeros((self.size, self.size))
        for first in range(0, len(bounds) - 1, _USERS):
            ends = bounds[first : first + _USERS + 1]
            at = place[codes[ends[0] : ends[-1]]]
            owner = np.repeat(np.arange(len(ends) - 1), np.diff(ends))
            left = np.zeros((len(ends) - 1, self.size))
            left[owner[at >= 0], at[at >= 0]] = 1.0
            count = left.sum(axis=1).astype(np.int64)
            left -= self.expected[count]
            norms = np.sqrt(np.square(left).sum(axis=1))
            # A user who chose none or all of the items shows nothing about which items go together.
            told = (count > 0) & (count < self.size) & (norms > 0.0)
            left *= np.where(told, np.sqrt(min(1.0, limit)) / np.where(told, norms, 1.0), 0.0)[:, None]
            total += left.T @ left
        return pack_symmetric(total)


def chances(shares: Array) -> Array:
    """Return the probability that each item is among m chosen ones, one row for every m from 0 to the number of items.

    >>> chances(np.array([0.5, 0.5])).round(3).tolist()
    [[0.0, 0.0], [0.5, 0.5], [1.0, 1.0]]
    """
    size = len(shares)
    wanted = np.minimum(np.arange(size + 1.0), size - 1e-9)
    low, high = np.zeros(size + 1), np.full(size + 1, 50.0 / float(shares.min()))
    for _ in range(80):
        middle = (low + high) / 2.0
        under = np.sum(-np.expm1(-middle[:, None] * shares), axis=1) < wanted
        low, high = np.where(under, middle, low), np.where(under, high, middle)
    return np.asarray(-np.expm1(-low[:, None] * shares))


def loadings(
    mean: Array, noise: float, query: ChoiceMoments, n_users: int, typical: float, most: int, rng: np.random.Generator
) -> Array:
    """Return loadings t of the query's items from its noisy mean; no column if nothing exceeds the noise.

    ``noise`` is the noise of each coordinate, ``typical`` the number of the items that a typical user chose.
    """
    likely = query.expected[int(np.clip(round(typical), 1, query.size - 1))]
    slope = likely * (1.0 - likely)
    energy = float(slope.sum())
    # Probabilities that sum to m make items repel each other: without tastes, off-diagonal entries are −v vᵀ/(Σv)².
    pushed = np.outer(slope, slope) / energy**2
    sums = n_users * (unpack_symmetric(mean, query.size) + pushed)
    sampling = n_users * np.outer(slope, slope) / energy**2
    weights = n_users * np.outer(slope, slope) / energy
    return covariance_factors(sums, weights, noise * n_users, 0.0, sampling, most, rng, _KEPT)
