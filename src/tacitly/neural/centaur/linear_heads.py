"""A user's linear head on the public body: a deviation from the public head that grows with the user's evidence.

The head is α·W₀ + Δ: the public head W₀ times a factor, plus a ridge regression Δ of the residuals, both fitted to the
user's rows. α (zero, half or all of the least-squares factor) and the penalty of Δ are averaged with weights L^(−m/2)
that fall with their leave-one-out errors L, as in :mod:`tacitly.heads.ridge`. It is never released, and is computed
from one user's rows only.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tacitly.arrays import Array

PENALTIES = (1e-3, 1e-2, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0)
"""Relative to the mean squared norm of the user's centred features; with the largest penalty Δ is nearly zero."""

_SHARES = (0.0, 0.5, 1.0)


def fit_linear(
    features: npt.ArrayLike, targets: npt.ArrayLike, public: npt.ArrayLike, views: int = 1
) -> tuple[Array, Array]:
    """Return weights (outputs × k) and intercepts of one user's head.

    ``targets`` is m × outputs (one-hot classes, or numbers), ``public`` is W₀, outputs × k. With several ``views`` of
    each row, one set after another, a row is left out with all its views. Otherwise a row's own mirror image would
    predict it, and nothing would be shrunk.

    >>> rng = np.random.default_rng(0)
    >>> z = rng.normal(size=(30, 3)); weights, intercepts = fit_linear(z, z[:, :1] * 2 + 1, np.zeros((1, 3)))
    >>> weights.round(2) + 0.0, intercepts.round(2)
    (array([[2., 0., 0.]]), array([1.]))
    """
    z, y = np.asarray(features, dtype=np.float64), np.asarray(targets, dtype=np.float64)
    prior = np.asarray(public, dtype=np.float64)
    if len(prior) > 1:
        prior = prior - prior.mean(axis=0)  # only differences between the user's classes matter
    m, target_mean, mean = len(z), y.mean(axis=0), z.mean(axis=0)
    z, y = z - mean, y - target_mean
    scale = float(np.sum(z * z)) / m
    if not (np.isfinite(scale) and scale > 0.0):
        return np.zeros_like(prior), np.nan_to_num(target_mean)
    values, vectors = _directions(z)
    public_scores = z @ prior.T
    size = float(np.sum(public_scores * public_scores))
    factor = max(0.0, float(np.sum(public_scores * y)) / size) if size > 0.0 else 0.0
    shares = _SHARES if factor > 0.0 else (0.0,)
    penalised = values + scale * np.array(PENALTIES)[:, None]  # penalties × directions
    kept = values / penalised
    left = np.array([y - share * factor * public_scores for share in shares])  # shares × m × outputs
    rotated = vectors.T @ left
    residuals = left[:, None] - vectors @ (kept[None, :, :, None] * rotated[:, None])
    errors = _left_out_errors(residuals, vectors, kept, views)
    best = float(errors.min())
    averaging = np.where(errors <= best, 1.0, (best / np.maximum(errors, 1e-300)) ** (m / views / 2.0))
    averaging /= averaging.sum()
    dual = np.einsum("sp,pm,smc->mc", averaging, 1.0 / penalised, rotated)
    alpha = factor * float(averaging.sum(axis=1) @ np.array(shares))
    weights = (z.T @ (vectors @ dual)).T + alpha * prior
    return weights, target_mean - weights @ mean


def _directions(z: Array) -> tuple[Array, Array]:
    """Return eigenvalues and eigenvectors of zzᵀ, including all non-zero ones, without forming a rows × rows matrix.

    A user may have many rows, and the memory and time for a head must not reveal their number.
    """
    if len(z) <= z.shape[1]:
        values, vectors = np.linalg.eigh(z @ z.T)
        return np.maximum(values, 0.0), np.asarray(vectors)
    vectors, roots, _ = np.linalg.svd(z, full_matrices=False)
    return np.square(roots), np.asarray(vectors)


def _left_out_errors(residuals: Array, vectors: Array, kept: Array, views: int) -> Array:
    """Return squared leave-one-out errors, shares × penalties: (I − H)⁻¹ times residuals, H a row's hat matrix.

    H is a number for one view, and a views × views matrix for several.
    """
    m, directions = vectors.shape
    if views == 1:
        free = np.maximum(1.0 - kept @ (vectors * vectors).T - 1.0 / m, 1e-6)
        left_out = residuals / free[None, :, :, None]
        return np.asarray(np.sum(left_out * left_out, axis=(2, 3)))
    by_row = vectors.reshape(views, m // views, directions).transpose(1, 0, 2)  # rows × views × directions
    hats = np.einsum("gak,pk,gbk->pgab", by_row, kept, by_row, optimize=True) + 1.0 / m
    values, turns = np.linalg.eigh(hats)
    shares, penalties, _, outputs = residuals.shape
    grouped = residuals.reshape(shares, penalties, views, m // views, outputs).swapaxes(2, 3)
    left_out = turns.swapaxes(-1, -2)[None] @ grouped / np.maximum(1.0 - values, 1e-6)[None, :, :, :, None]
    return np.asarray(np.sum(left_out * left_out, axis=(2, 3, 4)))


def fit_classes(
    features: npt.ArrayLike, labels: npt.ArrayLike, public: npt.ArrayLike, views: int = 1
) -> tuple[Array, Array]:
    """Return weights and intercepts over all classes; classes that the user does not have get a score of −10⁹.

    >>> z = np.array([[0.0], [0.1], [1.0], [1.1]])
    >>> weights, intercepts = fit_classes(z, [0, 0, 2, 2], np.zeros((3, 1)))
    >>> (z @ weights.T + intercepts).argmax(1)
    array([0, 0, 2, 2])
    """
    held, codes = np.unique(np.asarray(labels, dtype=np.int64), return_inverse=True)
    prior = np.asarray(public, dtype=np.float64)
    weights, intercepts = np.zeros_like(prior), np.full(len(prior), -1e9)
    weights[held], intercepts[held] = fit_linear(features, np.eye(len(held))[codes], prior[held], views)
    return weights, intercepts
