"""Tastes: which kinds of items users choose, whatever they think of them.

A user's items are modelled as draws with probability ∝ popularityⱼ·exp(tⱼᵀθ), t the item's public features whitened
over popularity and θ ~ N(0, T) the user's taste. To first order, the mean of t over a user's m items is θ + noise of
covariance v·I (:func:`drawing`). So T is the mean of x xᵀ − v·I over users, which is released, and θ has a posterior at
home in closed form. Features are turned to the axes of T, so that T is diagonal.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tacitly.arrays import Array, check_shape
from tacitly.linalg import unpack_symmetric
from tacitly.methods.recommender.prior import james_stein
from tacitly.methods.recommender.queries import WEIGHT, drawing

_REACH = 6.0  # standard deviations beyond which a whitened feature is cut


@dataclass(frozen=True)
class Tastes:
    """Public features of items along the axes of the population's tastes, and the variance along each."""

    features: Array
    variances: Array
    crowd: float  # how many equally popular items the catalogue amounts to

    def __post_init__(self) -> None:
        check_shape("variances", self.variances, None)
        check_shape("features", self.features, None, len(self.variances))

    def posterior(self, sums: Array, rows: Array) -> Array:
        """Return tastes given each user's sum of features over its ``rows`` items; zero without items."""
        means = sums / np.maximum(rows, 1.0)[:, None]
        noise = drawing(rows, self.crowd)[:, None]
        return np.asarray(means * (self.variances / (self.variances + noise)))


def no_tastes(items: int) -> Tastes:
    """Return the tastes of a catalogue without features."""
    return Tastes(np.zeros((items, 0)), np.zeros(0), float(items))


def whitened(features: Array, popularity: Array) -> Array:
    """Return features with mean zero and covariance I over items in proportion to their popularity."""
    shares = popularity + 1e-6 * max(float(popularity.max()), 1e-9)
    shares = shares / float(shares.sum())
    centred = features - shares @ features
    values, vectors = np.linalg.eigh((centred * shares[:, None]).T @ centred)
    kept = values > 1e-3 * max(float(values[-1]) if len(values) else 0.0, 1e-12)
    return np.ascontiguousarray(np.clip(centred @ (vectors[:, kept] / np.sqrt(values[kept])), -_REACH, _REACH))


def crowd_of(popularity: Array) -> float:
    """Return how many equally popular items amount to the same.

    >>> crowd_of(np.array([1.0, 1.0, 0.0]))
    2.0
    """
    total = float(popularity.sum())
    return total**2 / float(np.sum(np.square(popularity))) if total > 0 else float(len(popularity))


def tastes_of(mean: Array, noise: float, features: Array, crowd: float) -> Tastes:
    """Return tastes from the noisy mean of :class:`TasteMoment`; directions that noise alone explains are left out."""
    size = features.shape[1]
    weight = max(float(mean[-1]) / WEIGHT, 0.5)
    matrix, noise = unpack_symmetric(mean[:-1], size) / weight, noise / weight
    diagonal = np.diag(matrix)
    common = float(diagonal.mean())
    if common < 2.0 * noise / np.sqrt(size):  # lost in the noise: users choose by popularity alone
        return Tastes(features, np.zeros(size), crowd)
    own = james_stein(diagonal - common, noise) * (diagonal - common)
    values, vectors = np.linalg.eigh(matrix - np.diag(diagonal))
    edge = noise * np.sqrt(2.0 * size)
    kept = np.sign(values) * np.sqrt(np.maximum(np.square(values) - edge**2, 0.0))
    off = (vectors * kept) @ vectors.T
    values, vectors = np.linalg.eigh(np.diag(common + own) + off - np.diag(np.diag(off)))
    variances = np.maximum(values, 0.0)
    return Tastes(np.ascontiguousarray(features @ vectors), variances, crowd)
