"""Item factors from noisy moments of pairs of items: a low-rank covariance, fitted to the releases.

:class:`PairMoments` gives, for each pair of items, W·Σ + noise and W + noise, with W the weight of users who rated
both and Σ the covariance of residuals. Outside its diagonal, Σ is fitted by a low-rank matrix M ⪰ 0,

    minimise ½‖S − W∘M‖² (outside the diagonal) + λ·tr M,     λ = ¾‖W∘noise‖.

So pairs that many users rated count more. Directions that noise alone could produce (privacy noise, or sampling noise
of users) are not returned; the number of factors is the number of remaining directions. The norm of the noise is found
by drawing noise from the same distribution, which is public randomness.
"""

from __future__ import annotations

import numpy as np

from tacitly.arrays import Array

_ROUNDS = 200
_KEPT = 0.75
_STEPS = 60
_KNOWN = 0.7  # length of the known part of a user's factors, relative to the prior


def covariance_factors(
    sums: Array,
    weights: Array,
    noise: float,
    weight_noise: float,
    sampling: float | Array,
    most: int,
    rng: np.random.Generator,
    kept: float = _KEPT,
) -> Array:
    """Return factors Q, one row per item, with Σ ≈ Q Qᵀ off the diagonal; no column if nothing exceeds the noise.

    ``noise`` and ``weight_noise`` are standard deviations of diagonal entries; off-diagonal entries have √½ of them.
    ``sampling`` is the variation of off-diagonal entries because users are a sample; a number is the variance of a
    residual of ratings. ``kept`` is λ relative to the norm of the noise.
    """
    size = len(sums)
    weights = np.maximum(_denoised(weights, weight_noise), 0.0)
    largest = float(weights.max())
    if not largest > 0.0 or size < 2:
        return np.zeros((size, 0))
    outside = 1.0 - np.eye(size)
    # A user with m items adds e e'/m: entries vary by variance²·Σ 1/m², and a user's weights sum to m over all pairs.
    rated = float(weights.sum()) / max(float(np.trace(weights)), 1e-9)
    varied = weights * sampling**2 / max(rated, 1.0) if isinstance(sampling, float) else sampling
    drawn = rng.standard_normal((size, size))
    drawn = np.sqrt(noise**2 + 2.0 * varied) * (drawn + drawn.T) / 2.0
    threshold = kept * float(np.linalg.norm(outside * weights * drawn, 2)) / largest**2
    matrix = ahead = np.zeros((size, size))
    pace, values, vectors = 1.0, np.zeros(size), np.eye(size)
    for _ in range(_ROUNDS):  # proximal gradient, accelerated
        values, vectors = np.linalg.eigh(ahead + outside * weights * (sums - weights * ahead) / largest**2)
        values = np.maximum(values - threshold, 0.0)
        moved = (vectors * values) @ vectors.T
        faster = (1.0 + np.sqrt(1.0 + 4.0 * pace**2)) / 2.0
        ahead, matrix, pace = moved + (pace - 1.0) / faster * (moved - matrix), moved, faster
    order = np.argsort(-values)[: min(most, int(np.count_nonzero(values > 1e-6 * max(float(values[-1]), 1e-12))))]
    if not len(order):
        return np.zeros((size, 0))
    directions = vectors[:, order]
    sizes = np.maximum(_refitted(sums, weights * outside, directions), values[order])
    return np.asarray(directions * np.sqrt(sizes))


def refined(factors: Array, sums: Array, noise: float, popularity: Array, variance: float, n_users: int) -> Array:
    """Return factors of all items after a step along the noisy sums of :class:`LoadingSums`, shrunk by its noise.

    For an item of weight W, the expected sum is W·a·(error of its factors), a = 0.7/√r: the part of a user's factors
    along one axis of their direction, if half of a user's factors is known. The errors have a normal prior around zero,
    with one variance for items with factors and one for items without, estimated from all items together.
    """
    rank = factors.shape[1]
    slope = popularity * _KNOWN / np.sqrt(rank)
    sampling = variance * popularity * n_users / max(float(popularity.sum()), 1e-9) / rank
    precision = (np.square(slope) / (noise**2 + sampling + 1e-12))[:, None]
    right = slope[:, None] * sums / (noise**2 + sampling + 1e-12)[:, None]
    moved = np.zeros_like(factors)
    had = np.square(factors).sum(axis=1) > 0
    for some in (had, ~had):
        spread = np.full(rank, 0.01)
        for _ in range(_STEPS if some.any() else 0):
            doubt = 1.0 / (precision[some] + 1.0 / spread)
            mean = doubt * right[some]
            known = precision[some] * doubt
            spread = np.maximum((known * (mean**2 + doubt)).sum(axis=0) / (known.sum(axis=0) + 1e-12), 1e-8)
            moved[some] = mean
    return np.asarray(factors + moved)


def _refitted(sums: Array, weights: Array, directions: Array) -> Array:
    """Return variances of the directions by least squares, because the penalty made them too small."""
    columns = [(weights * np.outer(one, one)).ravel() for one in directions.T]
    design = np.stack(columns, axis=1)
    gram = design.T @ design
    return np.asarray(np.linalg.solve(gram + 1e-9 * np.trace(gram) * np.eye(len(gram)), design.T @ sums.ravel()))


def _denoised(weights: Array, noise: float) -> Array:
    """Return co-rating weights without the eigenvalues that noise alone produces."""
    values, vectors = np.linalg.eigh(weights)
    edge = noise * np.sqrt(len(weights))
    kept = np.sign(values) * np.sqrt(np.maximum(np.square(values) - edge**2, 0.0))
    return np.asarray((vectors * kept) @ vectors.T)
