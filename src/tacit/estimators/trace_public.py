"""What trace regression may compute directly where X, or its covariance, is public."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tacit.algorithms.designs import Design
from tacit.cohort import Cohort
from tacit.federation.base import Array, Rows

_PIECE = 4096


def energy_along(X: Rows, design: Design, left: Array, right: Array) -> float:
    """Return Σ⟨X, left·rightᵀ⟩² of all rows, a piece at a time; rows with a position out of range add nothing.

    >>> energy_along(np.array([[0.0, 1.0], [5.0, 0.0]]), Design("entries", 2, 2), np.ones((2, 1)), np.full((2, 1), 3.0))
    9.0
    """
    total = 0.0
    for first in range(0, len(X), _PIECE):
        part = X[first : first + _PIECE]
        fitted = design.fitted(part[design.known(part)].astype(np.float64), left, right)
        total += float(fitted @ fitted)
    return total


def quadratic(covariance: Array, matrix: Array) -> float:
    """Return vec(matrix)ᵀ Λ vec(matrix); Λ diagonal (variances in the matrix's shape) or full.

    >>> quadratic(np.array([[1.0, 2.0]]), np.ones((1, 2))), quadratic(np.eye(2), np.ones((1, 2)))
    (3.0, 2.0)
    """
    if covariance.shape == matrix.shape:
        return float(np.sum(covariance * matrix**2))
    return float(matrix.ravel() @ covariance @ matrix.ravel())


def in_range(cohort: Cohort, design: Design) -> tuple[Cohort, float]:
    """Return the cohort with its X, public and far from one, brought near it, and what M is then to be multiplied by.

    Squares of entries beyond 1e±100 leave the range of floating point.
    """
    first = sum(design.hot)
    if first == design.n_features or not cohort.n_rows:
        return cohort, 1.0
    largest = max(float(cohort.X[:, first:].max()), -float(cohort.X[:, first:].min()))
    if not math.isfinite(largest) or largest == 0 or 1e-100 < largest < 1e100:
        return cohort, 1.0
    X = cohort.X.astype(np.float64)
    X[:, first:] /= largest
    assert cohort.y is not None
    again = Cohort.from_offsets(X, cohort.y, cohort.offsets, users=cohort.users)
    return again, 1.0 / largest ** (2 if design.kind == "rank-one" else 1)


def checked_covariance(given: Any, design: Design) -> Array | None:
    """Return a declared covariance of the design as numbers; raises unless it is one.

    >>> checked_covariance([[1, 2]], Design("dense", 1, 2))
    array([[1., 2.]])
    """
    if given is None:
        return None
    shape, size = (design.d1, design.d2), design.d1 * design.d2
    matrix = np.asarray(given, dtype=np.float64)
    if matrix.shape not in (shape, (size, size)):
        raise ValueError(f"covariance must have shape {shape} or {(size, size)}. Found {matrix.shape}.")
    if matrix.shape == shape and shape != (size, size):
        definite = bool(np.isfinite(matrix).all() and (matrix > 0).all())
    else:
        definite = bool(np.isfinite(matrix).all() and np.allclose(matrix, matrix.T))
        definite = definite and float(np.linalg.eigvalsh(matrix)[0]) > 0
    if not definite:
        raise ValueError("covariance must be positive definite: finite, symmetric, no eigenvalue at or below 0.")
    return matrix
