"""A user's own linear head on the public body: a deviation from the public head, as large as the user's rows support.

The head is α·W₀ + Δ: the public head W₀ times a factor, and a ridge regression Δ of what that leaves, both on the
user's own rows. α (none, half or all of the least-squares factor) and the penalty of Δ are averaged with weights that
fall with their leave-one-out errors, L^(−m/2), as in :mod:`tacitly.heads.ridge`. Never released; computed from one
user's rows alone.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tacitly.arrays import Array

PENALTIES = (1e-3, 1e-2, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0)
"""Of the mean squared length of the user's centred features; at the last Δ has all but gone."""

_SHARES = (0.0, 0.5, 1.0)


def fit_linear(features: npt.ArrayLike, targets: npt.ArrayLike, public: npt.ArrayLike) -> tuple[Array, Array]:
    """Return weights (outputs × k) and intercepts of one user's head.

    ``targets`` is m × outputs (indicators of the user's classes, or numbers), ``public`` is W₀, outputs × k.

    >>> rng = np.random.default_rng(0)
    >>> z = rng.normal(size=(30, 3)); weights, intercepts = fit_linear(z, z[:, :1] * 2 + 1, np.zeros((1, 3)))
    >>> weights.round(2) + 0.0, intercepts.round(2)
    (array([[2., 0., 0.]]), array([1.]))
    """
    z, y = np.asarray(features, dtype=np.float64), np.asarray(targets, dtype=np.float64)
    prior = np.asarray(public, dtype=np.float64)
    if len(prior) > 1:
        prior = prior - prior.mean(axis=0)  # only differences between a user's own classes count
    m, level, mean = len(z), y.mean(axis=0), z.mean(axis=0)
    z, y = z - mean, y - level
    gram = z @ z.T
    scale = float(np.trace(gram)) / m
    if not (np.isfinite(scale) and scale > 0.0):
        return np.zeros_like(prior), np.nan_to_num(level)
    values, vectors = np.linalg.eigh(gram)
    values = np.maximum(values, 0.0)
    guess = z @ prior.T
    size = float(np.sum(guess * guess))
    factor = max(0.0, float(np.sum(guess * y)) / size) if size > 0.0 else 0.0
    shares = _SHARES if factor > 0.0 else (0.0,)
    penalised = values + scale * np.array(PENALTIES)[:, None]  # penalties × m
    kept = values / penalised
    free = np.maximum(1.0 - kept @ (vectors * vectors).T - 1.0 / m, 1e-6)
    turned = np.array([vectors.T @ (y - share * factor * guess) for share in shares])  # shares × m × outputs
    left = vectors @ ((1.0 - kept)[None, :, :, None] * turned[:, None]) / free[None, :, :, None]
    errors = np.sum(left * left, axis=(2, 3))
    best = float(errors.min())
    chances = np.where(errors <= best, 1.0, (best / np.maximum(errors, 1e-300)) ** (m / 2.0))
    chances /= chances.sum()
    inside = np.einsum("sp,pm,smc->mc", chances, 1.0 / penalised, turned)
    along = factor * float(chances.sum(axis=1) @ np.array(shares))
    weights = (z.T @ (vectors @ inside)).T + along * prior
    return weights, level - weights @ mean


def fit_classes(features: npt.ArrayLike, labels: npt.ArrayLike, public: npt.ArrayLike) -> tuple[Array, Array]:
    """Return weights and intercepts over all classes; those the user has never seen get a score of −10⁹.

    >>> z = np.array([[0.0], [0.1], [1.0], [1.1]])
    >>> weights, levels = fit_classes(z, [0, 0, 2, 2], np.zeros((3, 1)))
    >>> (z @ weights.T + levels).argmax(1)
    array([0, 0, 2, 2])
    """
    own, places = np.unique(np.asarray(labels, dtype=np.int64), return_inverse=True)
    prior = np.asarray(public, dtype=np.float64)
    weights, levels = np.zeros_like(prior), np.full(len(prior), -1e9)
    weights[own], levels[own] = fit_linear(features, np.eye(len(own))[places], prior[own])
    return weights, levels
