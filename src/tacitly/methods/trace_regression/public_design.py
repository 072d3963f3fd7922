"""What trace regression may compute directly where X, or its covariance, is public; and checks of what is given."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from tacitly.arrays import Array, Rows
from tacitly.data.cohort import Cohort
from tacitly.methods.trace_regression.centering import matters
from tacitly.methods.trace_regression.designs import Design
from tacitly.methods.trace_regression.factor_whitening import Maps, maps_of, row_map

_CELLS = 1 << 20  # numbers in a piece: 8 MiB in double precision


def energy_along(X: Rows, design: Design, left: Array, right: Array, middle: Array | None = None) -> float:
    """Return Σ⟨X − middle, left·rightᵀ⟩² of all rows, piece by piece; rows with a position out of range add nothing.

    >>> energy_along(np.array([[0.0, 1.0], [5.0, 0.0]]), Design("entries", 2, 2), np.ones((2, 1)), np.full((2, 1), 3.0))
    9.0
    """
    total, shift = 0.0, 0.0 if middle is None else float(np.sum(left.T @ middle * right.T))
    for part in _pieces(X):
        fitted = design.fitted(part[design.known(part)].astype(np.float64), left, right) - shift
        total += float(fitted @ fitted)
    return total


def middle_of(X: Rows, design: Design) -> Array | None:
    """Return the mean of a dense design that is public; None where it is too small to matter.

    >>> middle_of(np.array([[1.0, 2.0], [3.0, 2.0]]), Design("dense", 1, 2))
    array([[2., 2.]])
    >>> middle_of(np.array([[1.0, 2.0], [-1.0, -2.0]]), Design("dense", 1, 2)) is None
    True
    """
    if design.kind != "dense":
        return None
    mean, square = np.zeros(design.n_features), 0.0
    for part in _pieces(X):
        wide = part.astype(np.float64)
        mean += wide.sum(axis=0) / len(X)
        square += float(np.sum(wide**2)) / len(X)
    return (
        mean.reshape(design.d1, design.d2) if matters(mean, math.sqrt(max(square - float(mean @ mean), 0.0))) else None
    )


def flat_public(cohort: Cohort, design: Design) -> tuple[Cohort, Maps | None]:
    """Return the cohort with the sides of its X, public and not dense, made flat, and the maps that did it."""
    if design.kind == "dense" or all(design.hot):
        return cohort, None
    known = cohort.X[design.known(cohort.X)]

    def mean_of(columns: slice) -> tuple[Array | None, float]:
        part = known[:, columns].astype(np.float64)
        mean = part.mean(axis=0) if len(part) else np.zeros(part.shape[1])
        distance = math.sqrt(float(np.sum((part - mean) ** 2)) / max(1, len(part)))
        return (mean if matters(mean, distance) else None), distance

    maps = maps_of(design, mean_of)
    return (cohort, None) if maps is None else (replace(cohort, X=cohort.X @ row_map(design, maps).T), maps)


def energies(X: Rows, design: Design, middle: Array | None) -> tuple[Array, Array]:
    """Return the energy of a public design by row and by column, counted from its mean.

    >>> energies(np.array([[1.0, 2.0], [3.0, 2.0]]), Design("dense", 1, 2), np.array([[2.0, 2.0]]))
    (array([2.]), array([2., 0.]))
    """
    if middle is None:
        return design.energies(X)
    rows, columns = np.zeros(design.d1), np.zeros(design.d2)
    for part in _pieces(X):
        more = design.energies(part - middle.ravel())
        rows += more[0]
        columns += more[1]
    return rows, columns


def quadratic(covariance: Array, matrix: Array) -> float:
    """Return vec(matrix)ᵀ Λ vec(matrix); Λ diagonal (variances in the matrix's shape) or full.

    >>> quadratic(np.array([[1.0, 2.0]]), np.ones((1, 2))), quadratic(np.eye(2), np.ones((1, 2)))
    (3.0, 2.0)
    """
    if covariance.shape == matrix.shape:
        return float(np.sum(covariance * matrix**2))
    return float(matrix.ravel() @ covariance @ matrix.ravel())


def bounded(cohort: Cohort, most: int | None) -> Cohort:
    """Keep a public number of each user's observations; which, depends on the user's own number of them alone."""
    if most is None:
        return cohort
    counts = np.diff(cohort.offsets)
    kept = np.concatenate(
        [
            first + (np.arange(count) if count <= most else np.arange(most) * count // most)
            for first, count in zip(cohort.offsets[:-1], counts, strict=True)
        ]
    )
    offsets = np.append(0, np.cumsum(np.minimum(counts, most)))
    assert cohort.y is not None
    return replace(cohort, X=cohort.X[kept], y=cohort.y[kept], offsets=offsets)


def checked_covariance(covariance: Any, design: Design) -> Array | None:
    """Return a known covariance as an array; raise unless it is one of this design.

    >>> checked_covariance([[1.0, 2.0]], Design("dense", 1, 2))
    array([[1., 2.]])
    """
    if covariance is None:
        return None
    shape, size = (design.d1, design.d2), design.d1 * design.d2
    matrix = np.asarray(covariance, dtype=np.float64)
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


def checked_centre(center: Any, design: Design) -> Array:
    """Return a known mean as an array; raise unless it is one of this design.

    >>> checked_centre([[1.0, 2.0]], Design("dense", 1, 2))
    array([[1., 2.]])
    """
    matrix = np.asarray(center, dtype=np.float64)
    if matrix.shape != (design.d1, design.d2) or not np.isfinite(matrix).all():
        raise ValueError(f"center must be finite numbers of shape {(design.d1, design.d2)}. Found {matrix.shape}.")
    return matrix


def _pieces(X: Rows) -> Iterator[Rows]:
    step = max(1, _CELLS // X.shape[1])
    return (X[first : first + step] for first in range(0, len(X), step))


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
    return replace(cohort, X=X), 1.0 / largest ** (2 if design.kind == "rank-one" else 1)
