"""Tastes: which kinds of items users choose, however they rate them.

A user's items are modelled as draws with probability ∝ popularityⱼ·exp(tⱼᵀθ), where t are the item's public features,
whitened over popularity, and θ ~ N(0, T) is the difference of the user's taste from the average. To first order, the
mean x of t over a user's m items is μ + θ + noise of covariance v·I (:func:`drawing`). So μ is the mean of x over users
and T is the mean of x xᵀ − v·I − μμᵀ; both are released. Each user computes the posterior of θ locally, in closed form.
μ would be zero if popularity were known exactly. Features are rotated to the axes of T, so that T is diagonal.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tacitly.arrays import Array, check_shape
from tacitly.linalg import james_stein, unpack_symmetric
from tacitly.methods.recommender.queries import WEIGHT, drawing

_REACH = 6.0  # standard deviations at which a whitened feature is clipped


@dataclass(frozen=True)
class Tastes:
    """Public features of items along the axes of the population's tastes, mean and variance along each."""

    features: Array
    mean: Array
    variances: Array
    crowd: float  # number of equally popular items that is equivalent to the catalogue

    def __post_init__(self) -> None:
        check_shape("mean", self.mean, None)
        check_shape("variances", self.variances, len(self.mean))
        check_shape("features", self.features, None, len(self.variances))

    def posterior(self, sums: Array, rows: Array) -> Array:
        """Return tastes given each user's sum of features over its ``rows`` items; zero without items."""
        moved = np.where(rows[:, None] > 0, sums / np.maximum(rows, 1.0)[:, None] - self.mean, 0.0)
        noise = drawing(rows, self.crowd)[:, None]
        return np.asarray(moved * (self.variances / (self.variances + noise)))


def no_tastes(items: int) -> Tastes:
    """Return the tastes of a catalogue without features."""
    return Tastes(np.zeros((items, 0)), np.zeros(0), np.zeros(0), float(items))


def whitened(features: Array, popularity: Array) -> Array:
    """Return features with mean zero and covariance I over items in proportion to their popularity."""
    shares = popularity + 1e-6 * max(float(popularity.max()), 1e-9)
    shares = shares / float(shares.sum())
    centred = features - shares @ features
    values, vectors = np.linalg.eigh((centred * shares[:, None]).T @ centred)
    kept = values > 1e-3 * max(float(values[-1]) if len(values) else 0.0, 1e-12)
    return np.ascontiguousarray(np.clip(centred @ (vectors[:, kept] / np.sqrt(values[kept])), -_REACH, _REACH))


def crowd_of(popularity: Array) -> float:
    """Return the number of equally popular items that is equivalent to this popularity.

    >>> crowd_of(np.array([1.0, 1.0, 0.0]))
    2.0
    """
    total = float(popularity.sum())
    return total**2 / float(np.sum(np.square(popularity))) if total > 0 else float(len(popularity))


def tastes_of(mean: Array, noise: float, features: Array, crowd: float) -> Tastes:
    """Return tastes from the noisy mean of :class:`TasteMoment`; directions that noise alone explains are left out."""
    size = features.shape[1]
    weight = max(float(mean[-1]) / WEIGHT, 0.5)
    mean, noise = mean / weight, noise / weight
    centre = mean[-1 - size : -1]
    # Subtracting a noisy centre subtracts too much: add its expected noise.
    matrix = unpack_symmetric(mean[: -1 - size], size) - np.outer(centre, centre) + noise**2 * np.eye(size)
    centre = centre * james_stein(centre, noise)
    diagonal = np.diag(matrix)
    common, doubt = float(diagonal.mean()), 2.0 * noise / np.sqrt(size)
    if common <= doubt:  # hidden by the noise: users choose by popularity alone
        return Tastes(features, centre, np.zeros(size), crowd)
    own = james_stein(diagonal - common, noise) * (diagonal - common)
    common *= 1.0 - (doubt / common) ** 2  # false tastes cost more than missed tastes
    values, vectors = np.linalg.eigh(matrix - np.diag(diagonal))
    edge = noise * np.sqrt(2.0 * size)
    kept = np.sign(values) * np.sqrt(np.maximum(np.square(values) - edge**2, 0.0))
    off = (vectors * kept) @ vectors.T
    values, vectors = np.linalg.eigh(np.diag(common + own) + off - np.diag(np.diag(off)))
    variances = np.maximum(values, 0.0)
    return Tastes(np.ascontiguousarray(features @ vectors), vectors.T @ centre, variances, crowd)
