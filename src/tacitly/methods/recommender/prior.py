"""The server's part of :class:`PriorStep`: a step of expectation-maximisation, shrunk according to the known noise.

All of it is post-processing of one noisy mean. In units of the current prior, the new one has mean z and covariance
I + A, where z and A are released with noise ν per coordinate (2ν on A's diagonal, √2·ν off it). Three parts of A have
different noise and are treated differently:

* the variance of the level, and the common change of all other variances: two numbers, used without shrinkage;
* the differences of single variances from the common change: shrunk by James and Stein's factor;
* correlations: noise alone has eigenvalues up to e = 2ν√(2p). An eigenvalue λ is shrunk to √(λ² − e²/4), not set to
  zero, because there are several steps and a later step cannot recover a direction that an earlier one removed.
"""

from __future__ import annotations

import math

import numpy as np

from tacitly.arrays import Array
from tacitly.linalg import james_stein, unpack_symmetric
from tacitly.methods.recommender.posterior import WeightPrior

_LEAST, _MOST = 0.05, 6.0  # limits of the factor by which a variance may change in one step


def advanced(prior: WeightPrior, released: Array, noise: float) -> WeightPrior:
    """Return the prior after one step from the noisy mean of :class:`PriorStep`, ``noise`` per coordinate."""
    size = len(prior.mean)
    step = released[:size].copy()
    step[1:] *= james_stein(step[1:], noise)
    change = _shrunk(2.0 * unpack_symmetric(released[size:-1], size), noise)
    values, vectors = np.linalg.eigh(np.eye(size) + change)
    root = prior.root @ (vectors * np.sqrt(np.clip(values, _LEAST, _MOST))) @ vectors.T
    factor = min(max(1.0 + float(released[-1]), 0.1), 4.0)
    return WeightPrior(prior.mean + prior.root @ step, root, max(prior.noise * factor, 1e-6))


def extended(prior: WeightPrior, variances: Array) -> WeightPrior:
    """Return the prior with further weights of mean zero and these variances."""
    size, more = len(prior.mean), len(variances)
    root = np.zeros((size + more, size + more))
    root[:size, :size] = prior.root
    root[size:, size:] = np.diag(np.sqrt(variances))
    return WeightPrior(np.append(prior.mean, np.zeros(more)), root, prior.noise)


def _shrunk(matrix: Array, noise: float) -> Array:
    size = len(matrix)
    diagonal = np.diag(matrix).copy()
    common = float(diagonal[1:].mean()) if size > 1 else 0.0
    own = diagonal[1:] - common
    diagonal[1:] = common + james_stein(own, noise) * own
    values, vectors = np.linalg.eigh(matrix - np.diag(np.diag(matrix)))
    edge = 2.0 * noise * math.sqrt(2.0 * size)
    kept = np.sign(values) * np.sqrt(np.maximum(np.square(values) - edge**2 / 4.0, 0.0))
    off = (vectors * kept) @ vectors.T
    return np.asarray(np.diag(diagonal) + off - np.diag(np.diag(off)))
