"""Item effects and popularity from noisy sums: empirical Bayes on the server.

One release of :class:`ItemSums` gives, for each item, a sum W·b + noise and a weight W + noise, both with known noise.
Most items of a real catalogue are rare, so most weights are lost in the noise; a ratio would be worthless there.

Instead W is given a prior that is found from all released weights together (their distribution on a grid, by
expectation-maximisation), and so is b: normal around a + c·log W, since rare items tend to be rated differently, with
a, c and the variance from the released sums. What is returned are posterior means: a popular item has its own effect,
an item that nobody rated that of rare items. All of it is post-processing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tacitly.arrays import Array

_GRID, _ROUNDS = 48, 60
_STEP = 0.1  # relative width of a cell of the grid


@dataclass(frozen=True)
class Sums:
    """One release: sums and weights under public gains, and their noise standard deviations."""

    gains: Array
    sums: Array
    weights: Array
    sum_noise: float
    weight_noise: float


@dataclass(frozen=True)
class Effects:
    """Posterior means of effects and weights, one per item, and how sure an effect is (from 0 to 1)."""

    effects: Array
    popularity: Array
    certainty: Array


def weights_of(noisy: Array, noise: float | Array) -> Array:
    """Return the posterior means of weights under the distribution that fits all of them best; noise known for each."""
    noise = np.broadcast_to(noise, noisy.shape)[:, None]
    grid = _grid(noisy, float(noise.max()))
    spread = np.sqrt(np.square(noise) + np.square(_STEP * grid) + 1e-300)
    likelihood = _normal(noisy[:, None] - grid, spread)
    shares = np.full(len(grid), 1.0 / len(grid))
    for _ in range(_ROUNDS):
        posterior = _rows_to_one(likelihood * shares)
        shares = 0.999 * posterior.mean(axis=0) + 0.001 / len(grid)
    # Inside a cell, the released weight itself says more than the cell's middle.
    inside = np.square(_STEP * grid) / np.square(spread)
    return np.asarray(np.sum(posterior * np.maximum(grid + inside * (noisy[:, None] - grid), 0.0), axis=1))


def effects_of(rounds: list[Sums], variance: float, n_users: int) -> Effects:
    """Return posterior means of effects from several releases.

    ``variance`` is that of a rating around its user's weights. The sampling noise of a sum is variance·Σω², which is
    about the weight times the mean ω of a rating: users over the sum of all weights.
    """
    popularity = popularity_of(rounds)
    precision, right = np.zeros(len(popularity)), np.zeros(len(popularity))
    for one in rounds:
        weight = popularity * one.gains * _scale(one, rounds[0])
        sampling = variance * weight * n_users / max(float(weight.sum()), 1e-9)
        noise = one.sum_noise**2 + sampling + 1e-12
        precision += np.square(weight) / noise
        right += weight * one.sums / noise
    level, slope, spread = _population(precision, right, popularity)
    expected = level + slope * _logarithm(popularity)
    effects = (right + expected / spread) / (precision + 1.0 / spread)
    return Effects(effects, popularity, precision * spread / (1.0 + precision * spread))


def popularity_of(rounds: list[Sums]) -> Array:
    """Return weights of items in units of the first round, from all rounds together by their precision."""
    precision, right = np.zeros(len(rounds[0].weights)), np.zeros(len(rounds[0].weights))
    for one in rounds:
        unit = one.gains * _scale(one, rounds[0])
        precision += np.square(unit / max(one.weight_noise, 1e-9))
        right += unit * one.weights / max(one.weight_noise, 1e-9) ** 2
    return weights_of(right / precision, 1.0 / np.sqrt(precision))


def _scale(one: Sums, first: Sums) -> float:
    """Return by what an item's weight differs between rounds, but for its gain: users' norms differ."""
    if one is first:
        return 1.0
    seen = np.maximum(first.weights, 0.0) * (first.weights > 3.0 * first.weight_noise)
    expected = float(seen @ one.gains)
    return float(np.maximum(one.weights, 0.0) @ (seen > 0)) / expected if expected > 0 else 1.0


def _population(precision: Array, right: Array, popularity: Array) -> tuple[float, float, float]:
    """Return level, slope on log popularity and variance of effects, by expectation-maximisation."""
    level, slope, spread = 0.0, 0.0, 0.1
    x = _logarithm(popularity)
    for _ in range(_ROUNDS):
        variance = 1.0 / (precision + 1.0 / spread)
        mean = variance * (right + (level + slope * x) / spread)
        known = precision * variance  # how much of an item's effect is its own
        total = float(known.sum()) + 1e-12
        middle, height = float(known @ x) / total, float(known @ mean) / total
        # A slope of zero is worth ten items: with few items it would follow the noise.
        slope = float(known @ ((x - middle) * (mean - height))) / (float(known @ np.square(x - middle)) + 10.0)
        level = height - slope * middle
        spread = max(float(known @ (np.square(mean - level - slope * x) + variance)) / total, 1e-4)
    return level, slope, spread


def _logarithm(popularity: Array) -> Array:
    """Return log popularity, level below a thousandth of the largest."""
    return np.asarray(np.log(np.maximum(popularity, 1e-3 * max(float(popularity.max()), 1e-9))))


def _grid(noisy: Array, noise: float) -> Array:
    top = max(float(noisy.max()), 4.0 * noise, 1e-9)
    return np.append(0.0, np.geomspace(top / 3000.0, top, _GRID))


def _normal(distance: Array, spread: Array) -> Array:
    return np.asarray(np.exp(-0.5 * np.square(distance / spread)) / spread)


def _rows_to_one(values: Array) -> Array:
    return np.asarray(values / np.maximum(values.sum(axis=1, keepdims=True), 1e-300))
