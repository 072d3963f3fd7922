"""Direct computations of trace regression from public data: X itself, or known moments of it.

:class:`PublicDesign` is for labels-only privacy, where X is public; :class:`KnownMoments` for everything else. Both
have the same methods for the estimator, which return None if the result is private.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tacitly.arrays import Array, Rows
from tacitly.data.cohort import Cohort
from tacitly.federation.engine import Population
from tacitly.methods.trace_regression.centering import matters
from tacitly.methods.trace_regression.curvature import Public
from tacitly.methods.trace_regression.designs import Design
from tacitly.methods.trace_regression.factor_whitening import Maps, maps_of, row_map
from tacitly.methods.trace_regression.low_rank import LowRank
from tacitly.methods.trace_regression.start import variances

_CELLS = 1 << 20  # amount of numbers in a piece: 8 MiB in double precision


@dataclass(frozen=True)
class KnownMoments:
    """A private design whose covariance or mean may be known."""

    design: Design
    covariance: Array | None
    middle: Array | None
    population: Population

    rows = None

    def energies(self) -> tuple[Array, Array] | None:
        """Return the energy of the design by row and by column, from its covariance and the number of rows."""
        if self.covariance is None:
            return None
        energy = self.population.n_rows * variances(self.covariance, (self.design.d1, self.design.d2))
        return energy.sum(axis=1), energy.sum(axis=0)

    def energy_along(self) -> Public | None:
        """Return the function (left, right) ↦ E Σ⟨X, left·rightᵀ⟩²."""
        covariance = self.covariance
        if covariance is None:
            return None
        return lambda left, right: self.population.n_rows * quadratic(covariance, left @ right.T)

    def mapped_back(self, matrix: LowRank) -> LowRank:
        """Return M unchanged."""
        return matrix


@dataclass(frozen=True)
class PublicDesign:
    """A public X in the form for queries: entries of size about one and, if it is not dense, whitened factors."""

    design: Design
    cohort: Cohort
    scale: float
    maps: Maps | None
    middle: Array | None

    @classmethod
    def of(
        cls, cohort: Cohort, design: Design, *, flat: bool, middle: Array | None, finds_middle: bool
    ) -> PublicDesign:
        """Rescale the rows; with ``flat``, whiten factors; use the given mean or compute it."""
        cohort, scale = in_range(cohort, design)
        cohort, maps = flat_public(cohort, design) if flat else (cohort, None)
        if middle is not None:
            middle = middle * scale
        elif finds_middle:
            middle = middle_of(cohort.X, design)
        return cls(design, cohort, scale, maps, middle)

    def rows(self) -> Cohort:
        """Return the cohort for the queries."""
        return self.cohort

    def energies(self) -> tuple[Array, Array]:
        """Return the energy of the design by row and by column."""
        return energies(self.cohort.X, self.design, self.middle)

    def energy_along(self) -> Public:
        """Return the function (left, right) ↦ Σ⟨X, left·rightᵀ⟩²."""
        return lambda left, right: energy_along(self.cohort.X, self.design, left, right, self.middle)

    def mapped_back(self, matrix: LowRank) -> LowRank:
        """Return M for the original rows."""
        return (matrix if self.maps is None else matrix.mapped(*self.maps)).times(self.scale)


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
    """Return the mean of a public dense design; None if it is too small to matter.

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
    """Return the cohort with the factors of a public, not dense X whitened, and the maps (None if there are none)."""
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
    """Return the energy of a public design by row and by column, around its mean.

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
    """Keep a public number of each user's observations, chosen by the user's own number of observations only."""
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


def checked_covariance(covariance: Any, design: Design, n_rows: Callable[[], int]) -> Array | None:
    """Return a known covariance as an array; raise an error unless it fits this design.

    If every observation has its own Λᵢ (Zha 2024, Assumption 1), return their mean: E Σ yᵢXᵢ = Σ Λᵢ vec M. So the start
    is unbiased with Λ̄ = n⁻¹ΣΛᵢ, as it is with Λᵢ⁻¹ inside the sum, and an observation with a small Λᵢ has no larger
    weight.

    >>> checked_covariance([[[1.0, 2.0]], [[3.0, 2.0]]], Design("dense", 1, 2), lambda: 2)
    array([[2., 2.]])
    """
    if covariance is None:
        return None
    shape, size = (design.d1, design.d2), design.d1 * design.d2
    matrix = np.asarray(covariance, dtype=np.float64)
    if matrix.ndim == 3:
        if len(matrix) != n_rows():
            raise ValueError(f"covariance must have one matrix per observation ({n_rows()}). Found {len(matrix)}.")
        matrix = matrix.mean(axis=0)
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
    """Return a known mean as an array; raise an error unless it fits this design.

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
    """Return the cohort with a public X of extreme size scaled to about one, and the factor for M.

    Squares of entries beyond 1e±100 overflow or underflow.
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
