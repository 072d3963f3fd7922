"""Item effects and popularity from noisy sums: empirical Bayes on the server.

:class:`ItemSums` first gives weights W + noise for each item, then sums W·b + noise and weights again, with gains that
depend on the first release; all noise is known. Most items of a real catalogue are rare, so noise hides most weights,
and a ratio of noisy numbers would be useless.

Instead W gets a prior that is estimated from all released weights together (their distribution on a grid, by
expectation-maximisation). b gets a normal prior around a + c·log W, since rare items tend to be rated differently, with
a, c and the variance from the released sums. The result is the posterior means: a popular item has its own effect, an
item that nobody rated has the effect of rare items. All of it is post-processing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tacitly.arrays import Array

_GRID, _ROUNDS = 48, 60
_STEP = 0.1  # relative width of a cell of the grid


@dataclass(frozen=True)
class Weights:
    """Released weights under public gains, and their noise standard deviation."""

    gains: Array
    weights: Array
    noise: float


@dataclass(frozen=True)
class Sums(Weights):
    """Released weights with the sums of residuals beside them."""

    sums: Array
    sum_noise: float


@dataclass(frozen=True)
class Effects:
    """Posterior means of effects and weights, one per item, and the certainty of an effect (from 0 to 1)."""

    effects: Array
    popularity: Array
    certainty: Array


def weights_of(noisy: Array, noise: float | Array) -> Array:
    """Return the posterior means of weights under the distribution that fits all of them best, with known noise."""
    noise = np.broadcast_to(noise, noisy.shape)[:, None]
    grid = _grid(noisy, float(noise.max()))
    spread = np.sqrt(np.square(noise) + np.square(_STEP * grid) + 1e-300)
    likelihood = _normal(noisy[:, None] - grid, spread)
    shares = np.full(len(grid), 1.0 / len(grid))
    for _ in range(_ROUNDS):
        posterior = _rows_to_one(likelihood * shares)
        shares = 0.999 * posterior.mean(axis=0) + 0.001 / len(grid)
    # Inside a cell, the released weight itself is more informative than the middle of the cell.
    inside = np.square(_STEP * grid) / np.square(spread)
    return np.asarray(np.sum(posterior * np.maximum(grid + inside * (noisy[:, None] - grid), 0.0), axis=1))


def effects_of(first: Weights, second: Sums, variance: float, n_users: int) -> Effects:
    """Return posterior means of effects.

    ``variance`` is that of a rating around its user's weights. The sampling noise of a sum is variance·Σω², which is
    about the weight times the mean ω of a rating: users over the sum of all weights.
    """
    popularity = popularity_of(first, second)
    weight = popularity * second.gains * _scale(first, second)
    sampling = variance * weight * n_users / max(float(weight.sum()), 1e-9)
    noise = second.sum_noise**2 + sampling + 1e-12
    precision, right = np.square(weight) / noise, weight * second.sums / noise
    level, slope, spread = _population(precision, right, popularity)
    expected = level + slope * _logarithm(popularity)
    effects = (right + expected / spread) / (precision + 1.0 / spread)
    return Effects(effects, popularity, precision * spread / (1.0 + precision * spread))


def popularity_of(first: Weights, second: Weights) -> Array:
    """Return weights of items in units of the first release, from both by their precision."""
    unit = second.gains * _scale(first, second)
    precision = 1.0 / max(first.noise, 1e-9) ** 2 + np.square(unit / max(second.noise, 1e-9))
    right = first.weights / max(first.noise, 1e-9) ** 2 + unit * second.weights / max(second.noise, 1e-9) ** 2
    return weights_of(right / precision, 1.0 / np.sqrt(precision))


def _scale(first: Weights, second: Weights) -> float:
    """Return the factor between an item's weights in both releases, apart from its gain: users' norms differ.

    Gains have a mean square of one over ratings, so the factor is about one; items above the noise show its deviation
    from one.
    """
    seen = first.weights > 4.0 * first.noise
    expected = float((first.weights * second.gains)[seen].sum())
    if not expected > 0:
        return 1.0
    noise = np.count_nonzero(seen) * second.noise**2 + first.noise**2 * float(np.square(second.gains[seen]).sum())
    trust = expected**2 / (expected**2 + 100.0 * noise)  # against one, within a tenth
    return float(1.0 + trust * (second.weights[seen].sum() / expected - 1.0))


def gains_of(popularity: Array, noise: float, spread: float) -> Array:
    """Return gains of a second release that minimise the error of effects, over ratings: water-filling.

    With gain g, an effect of variance ``spread`` is known with s = spread·(W g/noise)². The remaining error,
    Σ W/(1 + s), is smallest under Σ W g² = Σ W (users' norms) for s = W/κ − 1, and s = 0 for items of weight below κ.
    Weights are uncertain, so no item gets less than a fifth of the mean.
    """
    weights = np.maximum(popularity, 1e-6 * max(float(popularity.max()), 1e-9))
    total, unit = float(weights.sum()), noise**2 / spread
    low, high = 1e-12 * float(weights.max()), float(weights.max())
    for _ in range(100):
        level = math.sqrt(low * high)
        used = unit * float(np.sum(np.maximum(weights / level - 1.0, 0.0) / weights))
        low, high = (level, high) if used > total else (low, level)
    squares = np.maximum(weights / high - 1.0, 0.0) / np.square(weights)
    squares *= total / max(float(weights @ squares), 1e-300)
    squares = np.maximum(squares, 0.04)
    return np.asarray(np.sqrt(squares * total / float(weights @ squares)))


def _population(precision: Array, right: Array, popularity: Array) -> tuple[float, float, float]:
    """Return level, slope on log popularity and variance of effects, by expectation-maximisation."""
    level, slope, spread = 0.0, 0.0, 0.1
    x = _logarithm(popularity)
    for _ in range(_ROUNDS):
        variance = 1.0 / (precision + 1.0 / spread)
        mean = variance * (right + (level + slope * x) / spread)
        known = precision * variance  # share of an item's effect that comes from its own ratings
        total = float(known.sum()) + 1e-12
        middle, height = float(known @ x) / total, float(known @ mean) / total
        # A slope of zero counts as ten items: with few items the slope would follow the noise.
        slope = float(known @ ((x - middle) * (mean - height))) / (float(known @ np.square(x - middle)) + 10.0)
        level = height - slope * middle
        spread = max(float(known @ (np.square(mean - level - slope * x) + variance)) / total, 1e-4)
    return level, slope, spread


def _logarithm(popularity: Array) -> Array:
    """Return log popularity, constant below a thousandth of the largest."""
    return np.asarray(np.log(np.maximum(popularity, 1e-3 * max(float(popularity.max()), 1e-9))))


def _grid(noisy: Array, noise: float) -> Array:
    top = max(float(noisy.max()), 4.0 * noise, 1e-9)
    return np.append(0.0, np.geomspace(top / 3000.0, top, _GRID))


def _normal(distance: Array, spread: Array) -> Array:
    return np.asarray(np.exp(-0.5 * np.square(distance / spread)) / spread)


def _rows_to_one(values: Array) -> Array:
    return np.asarray(values / np.maximum(values.sum(axis=1, keepdims=True), 1e-300))
