"""Newton's method for the population's weights, from noisy scores and noisy information: all of it post-processing."""

from __future__ import annotations

import math

import numpy as np

from tacitly.arrays import Array
from tacitly.linalg import james_stein, pack_symmetric

SlopeNoise = tuple[Array, Array]
"""Left and right factor of the privacy noise of a slope, left·E·right, with a symmetric E as released: independent
entries of variance 1 on and ½ off its diagonal, so that E[E M E] = (tr M·I + M)/2 for a symmetric M.

If one number replaced the factors (the norm of their product), the direction with the least information would decide
for all: one column that is zero for 98 % of users would make all standard errors five times too large.
"""


class Newton:
    """Rounds of Newton's method as measurements of the population's weights, combined by their precision.

    A round releases g ≈ J(w − wₜ) + noise at wₜ with a known slope J. Its noise has four parts: of privacy, of sampling
    users, of the slope's own privacy noise, and of the linearisation; the last two grow with the step w − wₜ.
    """

    def __init__(self, size: int, n_users: int) -> None:
        self._rounds: list[tuple[Array, Array, Array, float, SlopeNoise, Array]] = []
        self._size = size
        self._weights: Array = np.zeros(size)

    def add(
        self, slope: Array, score: Array, at: Array, noise: float, slope_noise: SlopeNoise, sampling: Array
    ) -> Array:
        """Add a round; return the estimate of the weights from all of them."""
        self._rounds.append((slope, score, at, noise, slope_noise, sampling))
        known = np.zeros((self._size, self._size))
        for number in range(6):
            precision, right, _, _ = self._sums(self._weights if number else None, known)
            self._weights = np.asarray(np.linalg.solve(precision, right))
        return self._weights

    def stretch(self, factor: float) -> None:
        """Multiply the weights by ``factor``, as if all rounds had been taken in coordinates stretched by it."""
        self._weights = self._weights * factor
        self._rounds = [
            (slope / factor, score, at * factor, noise, (slope_noise[0] / factor, slope_noise[1]), sampling)
            for slope, score, at, noise, slope_noise, sampling in self._rounds
        ]

    def covariance(self) -> Array:
        """Return the covariance of the estimate's error; 1.1 for the information matrix being noisy itself.

        A step to the true weights is the step to the estimate and what is unknown about that: where noise hides the
        slope, estimates are shrunk and steps look small, yet the slope's noise is multiplied by the true ones. What no
        round says stays as unknown as it was before them, with the variance of the standard normal prior.
        """
        unknown: Array = np.eye(self._size)
        for _ in range(6):
            precision, _, extra, shared = self._sums(self._weights, unknown)
            unknown = np.asarray(np.linalg.inv(precision))
        return np.asarray(unknown @ (1.1 * (extra + shared @ shared.T) + np.eye(self._size)) @ unknown)

    def _sums(self, weights: Array | None, unknown: Array) -> tuple[Array, Array, Array, Array]:
        """Return precision, right side and both parts of the noise, with steps to ``weights`` ± ``unknown``."""
        # In standardised units weights are of order one: a standard normal prior holds what rounds do not say.
        precision, right = np.eye(self._size), np.zeros(self._size)
        extra, sampled = np.zeros((self._size, self._size)), np.zeros((self._size, self._size))
        slopes: dict[int, Array] = {}
        for slope, score, at, noise, (left, inner), sampling in self._rounds:
            step = np.zeros(self._size) if weights is None else weights - at
            squares = np.outer(step, step) + unknown
            moved = inner @ squares @ inner.T
            moved = (np.trace(moved) * np.eye(self._size) + moved) / 2.0
            of_slope = np.sum((left @ moved) * left, axis=1)
            added = noise**2 + 0.15**2 * float(np.sum((slope @ squares) * slope)) / self._size
            variance = added + of_slope + sampling
            precision += slope.T / variance @ slope
            right += slope.T / variance @ (score + slope @ at)
            extra += slope.T * (added / variance**2) @ slope
            # Every round asks the same users, and rounds under one information matrix have the same noise of the slope:
            # neither averages out over rounds.
            sampled += slope.T * (np.sqrt(sampling) / variance)
            slopes[id(inner)] = slopes.get(id(inner), np.zeros_like(slope)) + slope.T * (np.sqrt(of_slope) / variance)
        shared = np.hstack([sampled, *slopes.values()])
        return precision, right, extra, shared


def evened(roots: Array, noise: float, scales: Array) -> tuple[Array, Array]:
    """Return a diagonal metric in which every weight has about as much information, from noisy roots of shares.

    What users say about a column that is constant within them is a small part of their information: in plain units it
    would drown in the noise of the rest. The second array has a 1 for such weights, of less than a quarter of the
    largest information, else 0.
    """
    found = np.maximum(roots, max(noise, 1e-3)) / scales
    constant = (np.square(found) < 0.25 * np.square(found).max()).astype(np.float64)
    return np.diag(np.exp(np.mean(np.log(found))) / found), constant


def preconditioned(matrix: Array, noise: float, metric: Array) -> tuple[Array, Array, SlopeNoise]:
    """Return from a noisy information matrix the metric for scores, the slope of scores in it, and the slope's noise.

    Off-diagonals are shrunk by James and Stein's factor, eigenvalues kept above the noise; the metric is the inverse
    root of what is left, so that scores have a like size in every direction.
    """
    size = len(matrix)
    diagonal = np.diag(np.diag(matrix))
    off = matrix - diagonal
    kept = james_stein(pack_symmetric(off)[np.triu_indices(size)[0] != np.triu_indices(size)[1]], noise)
    values, vectors = np.linalg.eigh(diagonal + kept * off)
    floor = max(0.5 * noise * math.sqrt(2.0 * size), 2e-3 * max(float(values.max()), 0.0), 1e-9)
    cleaned = (vectors * np.maximum(values, floor)) @ vectors.T
    back = np.linalg.inv(metric)
    information = back @ cleaned @ back
    values, vectors = np.linalg.eigh(information)
    values = np.maximum(values, 1e-6 * values.max())
    found = (vectors / np.sqrt(values)) @ vectors.T
    found *= math.sqrt(np.trace(cleaned) / np.trace(found @ information @ found))
    turned: Array = np.asarray(noise * (found @ back), dtype=np.float64)
    return found, np.asarray(found @ information), (turned, np.asarray(back, dtype=np.float64))
