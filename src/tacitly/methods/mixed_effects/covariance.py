"""Update the prior's covariance from a noisy mean of u uᵀ − J: all of it is post-processing."""

from __future__ import annotations

import math

import numpy as np

from tacitly.arrays import Array
from tacitly.linalg import james_stein, unpack_symmetric


def turned(root: Array, metric: Array) -> tuple[Array, Array]:
    """Return a root of the same covariance, in whose coordinates the mean of J is nearly diagonal, and the diagonal.

    ``metric`` is an inverse root of the mean information. Correlated columns (output and investment of a firm) make J
    far from diagonal in their own coordinates, and :func:`grown` would divide by the wrong numbers.
    """
    half = np.linalg.solve(metric, root)
    values, vectors = np.linalg.eigh(half.T @ half)
    return root @ vectors[:, ::-1], np.maximum(values[::-1], 0.0)


def changed(mean: Array, noise: float, sizes: Array, n_users: int) -> Array:
    """Return the change D of the whitened covariance, I + D, from the noisy mean spread; zeros if noise hides it.

    If J is nearly diagonal (:func:`turned`), with a diagonal proportional to about ``sizes``, the mean of u uᵀ − J is
    about k∘D with kᵢⱼ = E JᵢᵢJⱼⱼ. The eigenvalues of the noise alone lie in [−e, e], e = noise·√(2p). Eigenvalues
    beyond it are shrunk to √(λ² − e²), and the rest of the diagonal by the James-Stein factor. D is of order one, so
    the result is divided by k + noise²/k + 4/n instead of k. The additional terms are the privacy noise and the noise
    of sampling n users, whose contributions vary by about 4k.
    """
    size = len(sizes)
    squares = mean[-size:]
    usual = np.square(sizes) * max(float(squares @ np.square(sizes)), 0.0) / max(float(np.sum(sizes**4)), 1e-300)
    deviations = squares - usual
    gains = np.sqrt(np.clip(usual + james_stein(deviations, noise) * deviations, 1e-9, 1.0))
    matrix = unpack_symmetric(mean[:-size], size)
    values, vectors = np.linalg.eigh(matrix)
    edge = noise * math.sqrt(2.0 * size)
    beyond = np.sign(values) * np.sqrt(np.maximum(values**2 - edge**2, 0.0))
    spikes = (vectors * beyond) @ vectors.T
    rest = np.diag(matrix - spikes)
    slopes = np.outer(gains, gains)
    return np.asarray(
        (spikes + james_stein(rest, noise) * np.diag(rest)) / (slopes + noise**2 / slopes + 4.0 / n_users)
    )


def grown(root: Array, change: Array) -> tuple[Array, Array]:
    """Return a root of the covariance root·(I + change)·rootᵀ, and the group of each of its directions.

    The group is 0 for the direction nearest to the intercept, 2 for directions whose variance exceeds the noise, else
    1.
    """
    size = len(root)
    values, vectors = np.linalg.eigh(np.eye(size) + change)
    values = np.clip(values, 0.05, 20.0)
    intercept = int(np.argmax(np.abs(vectors[0])))
    others = np.delete(np.arange(size), intercept)
    groups = np.ones(size)
    groups[intercept] = 0.0
    if len(others):
        large = values[others] > 1.5 * max(float(np.median(values[others])), 0.2)
        groups[others[large]] = 2.0
    return root @ (vectors * np.sqrt(values)), groups
