"""Public linear algebra: subspaces, symmetric matrices as vectors, spectra above a known noise level."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


def orthonormal(matrix: npt.ArrayLike) -> tuple[Array, Array]:
    """QR decomposition with a positive diagonal, so that equal inputs give equal bases.

    >>> q, r = orthonormal([[-2.0], [0.0]])
    >>> q.ravel(), r.ravel()
    (array([-1.,  0.]), array([2.]))
    """
    q, r = np.linalg.qr(np.asarray(matrix, dtype=np.float64))
    signs = np.where(np.diag(r) < 0, -1.0, 1.0)
    return q * signs, r * signs[:, None]


def subspace_distance(a: npt.ArrayLike, b: npt.ArrayLike) -> float:
    """Sine of the largest principal angle between two column spaces (spectral).

    >>> subspace_distance([[1.0], [0.0]], [[1.0], [1.0]])  # 45 degrees
    0.7071067811865475
    """
    first, _ = orthonormal(a)
    second, _ = orthonormal(b)
    if first.shape != second.shape:
        raise ValueError(f"both subspaces must have one shape. Found {first.shape} and {second.shape}.")
    return min(1.0, float(np.linalg.norm(second - first @ (first.T @ second), 2)))


def pack_symmetric(matrix: npt.NDArray[np.floating]) -> Array:
    """Write a symmetric matrix as a vector whose Euclidean norm is the matrix's Frobenius norm.

    Off-diagonal entries are scaled by √2. Independent noise on these d(d+1)/2 coordinates is then the right
    noise for a symmetric statistic: full variance on the diagonal, half of it off the diagonal.

    >>> pack_symmetric(np.array([[1.0, 2.0], [2.0, 3.0]])).round(3)
    array([1.   , 2.828, 3.   ])
    """
    upper, weights = _upper(matrix.shape[0])
    packed: Array = matrix[upper].astype(np.float64) * weights
    return packed


def unpack_symmetric(vector: npt.NDArray[np.floating], size: int) -> Array:
    """Invert :func:`pack_symmetric`.

    >>> unpack_symmetric(pack_symmetric(np.eye(2)), 2)
    array([[1., 0.],
           [0., 1.]])
    """
    upper, weights = _upper(size)
    matrix = np.zeros((size, size))
    matrix[upper] = vector / weights
    return matrix + np.triu(matrix, 1).T


@lru_cache(maxsize=4)
def _upper(size: int) -> tuple[tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]], Array]:
    """Where the upper triangle is, and √2 off its diagonal: more work to find than to use."""
    upper = np.triu_indices(size)
    return upper, np.where(upper[0] == upper[1], 1.0, math.sqrt(2.0))


def denoise_spectrum(values: Array, level: float) -> Array:
    """Shrink eigenvalue deviations of a noisy symmetric matrix to their best guess.

    ``level`` is the half-radius s of the noise's semicircle (edge at 2s). A deviation x beyond the edge comes
    from a true one ℓ with x = ℓ + s²/ℓ, and its eigenvector has squared cosine 1 − s²/ℓ² with the true one;
    what is inside the edge (10 % margin for its own fluctuation) cannot be told from noise and becomes 0.
    """
    size = np.abs(values)
    beyond = size > 2.2 * level
    root = np.sqrt(np.maximum(size**2 - 4 * level**2, 0.0))
    true = np.where(beyond, (size + root) / 2, 1.0)
    return np.where(beyond, np.sign(values) * true * (1 - (level / true) ** 2), 0.0)


def inverse_root(matrix: Array, floor: float = 1e-3) -> Array:
    """Symmetric inverse square root, eigenvalues floored at ``floor`` times the largest."""
    values, vectors = np.linalg.eigh(matrix)
    values = np.maximum(values, floor * max(float(values[-1]), np.finfo(float).tiny))
    root: Array = (vectors / np.sqrt(values)) @ vectors.T
    return root
