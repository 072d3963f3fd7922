"""Linear algebra on public arrays: subspaces, symmetric matrices as vectors, spectra above a known noise level."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from tacitly.arrays import Array


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
        raise ValueError(f"both bases must have the same shape. Found {first.shape} and {second.shape}.")
    return min(1.0, float(np.linalg.norm(second - first @ (first.T @ second), 2)))


def pack_symmetric(matrix: npt.NDArray[np.floating]) -> Array:
    """Write a symmetric matrix (or each of a stack) as a vector whose Euclidean norm is the matrix's Frobenius norm.

    Off-diagonal entries are scaled by √2. Independent noise on these d(d+1)/2 coordinates is then calibrated
    noise for a symmetric statistic: full variance on the diagonal, half of it off the diagonal.

    >>> pack_symmetric(np.array([[1.0, 2.0], [2.0, 3.0]])).round(3)
    array([1.   , 2.828, 3.   ])
    """
    *stack, size, _ = matrix.shape
    upper, off = _upper(size)
    packed: Array = np.ascontiguousarray(matrix).reshape(*stack, -1)[..., upper].astype(np.float64)
    packed[..., off] *= math.sqrt(2.0)
    return packed


def unpack_symmetric(vector: npt.NDArray[np.floating], size: int) -> Array:
    """Invert :func:`pack_symmetric`.

    >>> unpack_symmetric(pack_symmetric(np.eye(2)), 2)
    array([[1., 0.],
           [0., 1.]])
    """
    upper, off = _upper(size)
    matrix = np.zeros((size, size))
    matrix.ravel()[upper] = np.where(off, math.sqrt(0.5), 1.0) * vector
    return matrix + np.triu(matrix, 1).T


@lru_cache(maxsize=4)
def _upper(size: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Return the flat positions of the upper triangle, and which of them lie off the diagonal."""
    rows, columns = np.triu_indices(size)
    return rows * size + columns, rows != columns


def denoise_spectrum(values: Array, level: float) -> Array:
    """Shrink eigenvalue deviations of a noisy symmetric matrix to their best estimates.

    ``level`` is the half-radius s of the noise's semicircle (edge at 2s). A deviation x beyond the edge comes
    from a true one ℓ with x = ℓ + s²/ℓ, and its eigenvector has squared cosine 1 − s²/ℓ² with the true one.
    A deviation inside the edge (with a 10 % margin for the edge's fluctuation) is indistinguishable from noise and
    becomes 0.
    """
    size = np.abs(values)
    beyond = size > 2.2 * level
    root = np.sqrt(np.maximum(size**2 - 4 * level**2, 0.0))
    true = np.where(beyond, (size + root) / 2, 1.0)
    return np.where(beyond, np.sign(values) * true * (1 - (level / true) ** 2), 0.0)


def spike_size(values: Array, level: float) -> Array:
    """Return the true eigenvalue ℓ of each noisy x = ℓ + s²/ℓ, s = ``level``; 0 inside the noise's edge 2s.

    >>> spike_size(np.array([10.1, 1.5]), 1.0).round(3)
    array([10.,  0.])
    """
    root = np.sqrt(np.maximum(values**2 - 4 * level**2, 0.0))
    return np.where(values > 2 * level, (values + root) / 2, 0.0)


def james_stein(values: Array, noise: float) -> float:
    """Return the factor by which values with known noise are shrunk, to be closer to the truth on average.

    >>> james_stein(np.array([3.0, 4.0]), 1.0), james_stein(np.array([0.1, 0.1]), 1.0)
    (0.92, 0.0)
    """
    energy = float(np.sum(np.square(values)))
    return max(0.0, 1.0 - values.size * noise**2 / energy) if energy > 0 else 0.0


def procrustes(matrix: Array, target: Array) -> Array:
    """Return the orthogonal D that brings ``matrix``·D closest to ``target`` (FedPower, equation 3.2).

    >>> turn = np.array([[0.0, 1.0], [-1.0, 0.0]])
    >>> np.allclose(np.eye(2) @ turn @ procrustes(turn, np.eye(2)), np.eye(2))
    True
    """
    left, _, right = np.linalg.svd(matrix.T @ target)
    return np.asarray(left @ right)


def sign_fixing(matrix: Array, target: Array) -> Array:
    """Return the diagonal D of signs that brings ``matrix``·D closest to ``target`` (FedPower, equation 3.16)."""
    return np.diag(np.where(np.einsum("ij,ij->j", matrix, target) < 0, -1.0, 1.0))


def inverse_root(matrix: Array, floor: float = 1e-3) -> Array:
    """Return the symmetric inverse square root, with eigenvalues floored at ``floor`` times the largest."""
    values, vectors = np.linalg.eigh(matrix)
    values = np.maximum(values, floor * max(float(values[-1]), np.finfo(float).tiny))
    root: Array = (vectors / np.sqrt(values)) @ vectors.T
    return root


def added_up(X: Any, dtype: npt.DTypeLike = np.float64) -> Any:
    """Return a copy of sparse rows in canonical form: repeated entries of a column are summed.

    >>> import scipy.sparse
    >>> twice = scipy.sparse.csr_matrix((np.ones(2), np.zeros(2, dtype=int), [0, 2]), shape=(1, 3))
    >>> added_up(twice).data
    array([2.])
    """
    import scipy.sparse  # imported locally: a node with dense rows starts without SciPy

    # Rebuilt from the arrays, so that SciPy looks for duplicates independent of the flags of the input.
    rows = scipy.sparse.csr_matrix((X.data.astype(dtype, copy=True), X.indices, X.indptr), shape=X.shape)
    if not rows.has_canonical_format:
        rows.indices, rows.indptr = rows.indices.copy(), rows.indptr.copy()
        with np.errstate(all="ignore"):
            rows.sum_duplicates()
    return rows
