"""What trace regression may compute directly where X, or its covariance, is public."""

from __future__ import annotations

import math

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
