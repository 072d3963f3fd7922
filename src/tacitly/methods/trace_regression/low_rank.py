"""Low-rank matrices as factors, and the retraction after a step in their tangent space."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tacitly.arrays import Array
from tacitly.linalg import orthonormal

Factors = tuple[Array, Array]
"""A matrix left · rightᵀ."""


@dataclass(frozen=True)
class LowRank:
    """The matrix left · diag(values) · rightᵀ, with orthonormal factors.

    >>> LowRank(np.array([[1.0], [0.0]]), np.array([2.0]), np.array([[0.0], [1.0]])).matrix
    array([[0., 2.],
           [0., 0.]])
    """

    left: Array
    values: Array
    right: Array

    @property
    def matrix(self) -> Array:
        """The dense matrix."""
        return np.asarray((self.left * self.values) @ self.right.T)

    def times(self, factor: float) -> LowRank:
        """Return M times a positive number."""
        return LowRank(self.left, factor * self.values, self.right)

    def scaled(self, rows: Array, columns: Array) -> LowRank:
        """Return diag(rows) · M · diag(columns)."""
        return _orthonormal(rows[:, None] * self.left, self.values, columns[:, None] * self.right)

    def mapped(self, rows: Array, columns: Array) -> LowRank:
        """Return rowsᵀ · M · columns."""
        return _orthonormal(rows.T @ self.left, self.values, columns.T @ self.right)


def leading(matrix: Array, rank: int, noise: float = 0.0) -> LowRank:
    """Return the leading rank-r part of a matrix with noise of standard deviation ``noise`` in every entry.

    With independent noise a true singular value s is observed as x, x² = (s² + d₁σ²)(s² + d₂σ²)/s²; s is returned.

    >>> leading(np.diag([3.0, 1.0]), 1).values
    array([3.])
    """
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    a, b = matrix.shape[0] * noise**2, matrix.shape[1] * noise**2
    squared = values[:rank] ** 2 - a - b
    true = np.sqrt(np.maximum((squared + np.sqrt(np.maximum(squared**2 - 4 * a * b, 0.0))) / 2, 0.0))
    return LowRank(left[:, :rank], true, right[:rank].T)


def inner(first: Factors, second: Factors) -> float:
    """Return ⟨A Bᵀ, C Dᵀ⟩ without forming either matrix.

    >>> inner((np.ones((2, 1)), np.ones((3, 1))), (np.ones((2, 1)), np.ones((3, 1))))
    6.0
    """
    return float(np.sum((first[0].T @ second[0]) * (first[1].T @ second[1])))


def retract(matrix: LowRank, left: Array, right: Array) -> LowRank:
    """Return the rank-r matrix nearest to M + left·Vᵀ + U·rightᵀ, ``right`` orthogonal to V, by an SVD of a 2r×2r core.

    >>> one = LowRank(np.array([[1.0], [0.0]]), np.array([2.0]), np.array([[1.0], [0.0]]))
    >>> retract(one, np.array([[1.0], [0.0]]), np.array([[0.0], [0.0]])).values
    array([3.])
    """
    U, V, r = matrix.left, matrix.right, matrix.values.size
    inside = U.T @ left
    q1, r1 = orthonormal(left - U @ inside)
    q2, r2 = orthonormal(right)
    core = np.block([[np.diag(matrix.values) + inside, r2.T], [r1, np.zeros((len(r1), len(r2)))]])
    a, values, b = np.linalg.svd(core)
    # If a step has no part outside U, QR returns arbitrary directions; orthonormalising again keeps U a basis.
    return _orthonormal(np.hstack([U, q1]) @ a[:, :r], values[:r], np.hstack([V, q2]) @ b[:r].T)


def _orthonormal(left: Array, values: Array, right: Array) -> LowRank:
    q1, r1 = orthonormal(left)
    q2, r2 = orthonormal(right)
    a, values, b = np.linalg.svd(r1 @ np.diag(values) @ r2.T)
    return LowRank(q1 @ a, values, q2 @ b.T)
