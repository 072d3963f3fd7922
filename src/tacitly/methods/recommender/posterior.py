"""One user's posterior under a public prior, for many users at once.

Model: a rating of item j by user i is r = bⱼ + zⱼᵀwᵢ + e, wᵢ ~ N(w̄, S), e ~ N(0, s²). zⱼ is row j of a public table
(one, features, what was learned about the item), bⱼ a public effect. With S = L Lᵀ, in coordinates where the prior is
standard normal (w = w̄ + L u), G = LᵀZᵀZL/s²: covariance V = (I + G)⁻¹, mean u = V·LᵀZᵀ(r − b − Zw̄)/s².
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tacitly.arrays import Array, Offsets, Rows, check_shape, check_size, read_only
from tacitly.methods.recommender import kernels

Codes = npt.NDArray[np.int64]
"""Positions of items in the catalogue."""

REACH = 2.0
"""The public range of ratings is mapped to [−2, 2]."""

_ITEMS, _COLUMNS = 10_000_000, 512


@dataclass(frozen=True)
class Catalogue:
    """Public data about items: a table with one row per item (its first column is ones), their effects, the range.

    ``low`` and ``high`` bound ratings. Inside, ratings are (r − middle)/unit with unit a quarter of the range.
    """

    table: Array
    effects: Array
    low: float
    high: float

    def __post_init__(self) -> None:
        check_shape("effects", self.effects, None)
        check_shape("table", self.table, len(self.effects), None)
        check_size("items", len(self.effects), _ITEMS)
        check_size("columns", self.table.shape[1], _COLUMNS)
        if not self.low < self.high:
            raise ValueError(f"low must lie below high. Found {self.low!r} and {self.high!r}.")

    @property
    def items(self) -> int:
        """Number of items."""
        return len(self.effects)

    @property
    def size(self) -> int:
        """Number of weights of a user, p."""
        return int(self.table.shape[1])

    @property
    def unit(self) -> float:
        """Size of one standardised unit in rating units."""
        return (self.high - self.low) / (2.0 * REACH)

    @property
    def middle(self) -> float:
        """The rating that corresponds to zero in standardised units."""
        return (self.low + self.high) / 2.0

    def rated(self, X: Rows, y: Rows, offsets: Offsets) -> tuple[Codes, Array, Offsets]:
        """Return items, standardised ratings and bounds of users: each item once per user, in range."""
        codes, values, bounds = kernels.distinct(read_only(X), read_only(y), offsets, self.items, self.low, self.high)
        return codes, (values - self.middle) / self.unit, bounds


@dataclass(frozen=True)
class WeightPrior:
    """The public prior of users' weights, N(mean, root·rootᵀ), and the variance of a rating around them."""

    mean: Array
    root: Array
    noise: float

    def __post_init__(self) -> None:
        check_shape("mean", self.mean, None)
        check_shape("root", self.root, len(self.mean), len(self.mean))
        if not self.noise > 0:
            raise ValueError(f"noise must be positive. Found {self.noise!r}.")

    @property
    def covariance(self) -> Array:
        """S."""
        return np.asarray(self.root @ self.root.T)


@dataclass(frozen=True)
class Posteriors:
    """Posteriors of several users in coordinates where the prior is standard normal, one row per user."""

    means: Array
    covariances: Array
    squares: Array  # expected ‖r − b − Zw‖² under the posterior
    rows: Array

    def weights(self, prior: WeightPrior) -> Array:
        """Return the posterior means of the weights themselves."""
        return np.asarray(prior.mean + self.means @ prior.root.T)


def posteriors(codes: Codes, values: Array, bounds: Offsets, catalogue: Catalogue, prior: WeightPrior) -> Posteriors:
    """Return the posteriors of several users; a user without ratings has the prior.

    >>> one = Catalogue(np.ones((2, 1)), np.zeros(2), -2.0, 2.0)
    >>> prior = WeightPrior(np.zeros(1), np.eye(1), 1.0)
    >>> found = posteriors(np.array([0, 1]), np.ones(2), np.array([0, 2]), one, prior)
    >>> found.means.round(3), found.covariances.round(3).tolist()  # the mean of two ones, shrunk by a third
    (array([[0.667]]), [[[0.333]]])
    """
    grams, rights, squares = kernels.normal_equations(codes, values, bounds, catalogue.table, catalogue.effects)
    moved = rights - np.einsum("nij,j->ni", grams, prior.mean)
    squares = squares - np.einsum("ni,i->n", rights + moved, prior.mean)
    root, noise = prior.root, prior.noise
    turned = np.einsum("ji,nj->ni", root, moved) / noise
    whitened = root.T @ grams @ root / noise
    covariances: Array = np.linalg.inv(np.eye(len(root)) + whitened).astype(np.float64, copy=False)
    means = np.einsum("nij,nj->ni", covariances, turned)
    fitted = np.einsum("nij,nj->ni", whitened, means)
    left = squares - noise * np.einsum("ni,ni->n", means, 2.0 * turned - fitted)
    spread = noise * np.einsum("nij,nji->n", covariances, whitened)
    return Posteriors(means, covariances, np.maximum(left, 0.0) + spread, np.diff(bounds).astype(np.float64))
