"""FedPower's queries for one noisy Gram matrix, of rows from which a public centre is subtracted.

The mean carries most of a row's norm, and noise is proportional to the square of the clipping bound. So a small share
of the budget pays for a centre m, and the Gram matrix of the rows (a − m, c) is released. Besides the centred Gram
matrix, it contains the sum of the centred rows, because of the constant coordinate c. With H the matrix,
b = H[:d, d]/c and N the number of rows,

    Σ aaᵀ = H[:d, :d] + b mᵀ + m bᵀ + N·m mᵀ,        Σ (a − ā)(a − ā)ᵀ = H[:d, :d] − b bᵀ/N,

so an error of the centre increases the bound but introduces no bias. Everything after the releases is post-processing.
Unit: a row, or a user with all their rows; a contribution depends on one unit and on public fields.

Release :class:`CentreVote`: (Σ(a − a₀), n·s) of a unit with n rows, scaled to norm one; a₀ and s are public.
Sensitivity 1 (zero-out), 2 (replace-one: votes can point against each other). One Gaussian event.

Release :class:`ShiftedGram`: Σ (a − m, c)(a − m, c)ᵀ of a unit, clipped in Frobenius norm to C. Sensitivity C
(zero-out), √2·C (replace-one: two contributions are positive semi-definite, so ⟨P, Q⟩ ≥ 0). One Gaussian event.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tacitly.arrays import Array, Offsets, Rows, check_shape, read_only
from tacitly.federation.base import Query
from tacitly.linalg import pack_symmetric
from tacitly.methods.fedpower.sparse_rows import dense, finite_rows, is_sparse, squared_norms, stays_sparse
from tacitly.privacy.clipping import GUARD, LEAST, clip_factor, safe_norm
from tacitly.privacy.guarantee import Unit
from tacitly.simd.lazy_njit import njit


@dataclass(frozen=True)
class CentreVote(Query):
    """Sum of a unit's rows around ``origin`` and their number times ``scale``, scaled to norm one together."""

    origin: Array
    scale: float
    unit: Unit = Unit.ROW

    def __post_init__(self) -> None:
        check_shape("origin", self.origin, None)

    @property
    def coordinates(self) -> int:
        """One number per feature, and the weight."""
        return self.origin.size + 1

    def contribution(self, X: Rows, y: Rows) -> Array:
        """Return (Σ(a − a₀), n·s)/‖·‖."""
        total = np.append((dense(X) - self.origin).sum(axis=0), len(dense(X)) * self.scale)
        norm = np.linalg.norm(total)
        return total / norm if np.isfinite(norm) else np.zeros(self.coordinates)

    def block_sum(self, X: Rows, y: Rows, offsets: Offsets, bound: float) -> Array:
        """Sum votes in one pass over the rows."""
        if is_sparse(X):
            return super().block_sum(X, y, offsets, bound)
        total = np.zeros(self.coordinates)
        bounds = offsets if self.unit is Unit.USER else np.zeros(0, dtype=np.int64)
        _centre_votes(X, bounds, self.origin, self.scale, clip_factor(1.0, bound), total)
        return total


@dataclass(frozen=True)
class ShiftedGram(Query):
    """Gram matrix of a unit's rows (a − centre, constant)."""

    centre: Array
    constant: float
    unit: Unit = Unit.ROW
    acute: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_shape("centre", self.centre, None)

    @property
    def coordinates(self) -> int:
        """Entries of a symmetric (d + 1)×(d + 1) matrix."""
        size = self.centre.size + 1
        return size * (size + 1) // 2

    def contribution(self, X: Rows, y: Rows) -> Array:
        """Return the Gram matrix, packed."""
        rows = _shifted(X, self.centre, self.constant)
        return pack_symmetric(rows.T @ rows)

    def norms(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        """Return the Frobenius norm of every unit's matrix: ‖row‖² for a row."""
        if is_sparse(X) and self.unit is Unit.ROW:
            stays_sparse(self.centre)
            rows, good = finite_rows(X)
            return np.where(good, squared_norms(rows) + self.constant**2, math.nan)
        if self.unit is Unit.ROW:
            found = np.empty(len(X))
            _row_norms(X, self.centre, self.constant, found)
            return found
        return np.array([_user_gram(_shifted(X[a:b], self.centre, self.constant))[1] for a, b in _pairs(offsets)])

    def block_sum(self, X: Rows, y: Rows, offsets: Offsets, bound: float) -> Array:
        """Clip row by row in compiled code, then add the outer products of many rows; no matrix per row is formed."""
        if self.unit is Unit.USER:
            return pack_symmetric(self._of_users(X, offsets, bound))
        if is_sparse(X):
            return pack_symmetric(self._of_sparse_rows(X, bound))
        return pack_symmetric(self._of_rows(X, bound))

    def _of_rows(self, X: Rows, bound: float) -> Array:
        from tacitly.methods.fedpower.gram_kernels import clipped_gram, panels_of
        from tacitly.simd.registers import aligned_zeros

        check_shape("X", X, None, self.centre.size)
        size = self.centre.size + 1
        width = size + -size % 16
        centre, total = np.append(self.centre, np.zeros(width - size + 1)), aligned_zeros(width, width)
        rows = read_only(np.ascontiguousarray(X))
        public = centre, float(self.constant), bound * (1.0 - GUARD)
        clipped_gram(rows, *public, panels_of(width), aligned_zeros(1, width)[0], total)
        lower = np.tril(total[:size, :size])
        return np.asarray(lower + np.tril(lower, -1).T)

    def _of_users(self, X: Rows, offsets: Offsets, bound: float) -> Array:
        size = self.centre.size + 1
        total = np.zeros((size, size))
        for first, last in _pairs(offsets):
            rows = _shifted(X[first:last], self.centre, self.constant)
            with np.errstate(all="ignore"):
                gram, norm = _user_gram(rows)
                factor = clip_factor(norm, bound)
                if factor == 0.0:
                    continue
                if gram is None:
                    rows *= math.sqrt(factor)
                    gram, factor = rows.T @ rows, 1.0
                total += gram if factor == 1.0 else gram * factor
        return total

    def _of_sparse_rows(self, X: Rows, bound: float) -> Array:
        """Return the matrix of sparse rows; each row is scaled down if it exceeds the bound."""
        stays_sparse(self.centre)
        rows, good = finite_rows(X)
        factors = np.array([clip_factor(norm, bound) for norm in squared_norms(rows) + self.constant**2]) * good
        root = np.sqrt(factors)
        scaled = rows.multiply(root[:, None]).tocsr()
        size = self.centre.size + 1
        total = np.zeros((size, size))
        total[:-1, :-1] = (scaled.T @ scaled).toarray()
        total[:-1, -1] = total[-1, :-1] = self.constant * (scaled.T @ root)
        total[-1, -1] = self.constant**2 * factors.sum()
        return total


class GramAgain(ShiftedGram):
    """The same matrix, charged as contributions that can point against each other: 2C under replace-one, not √2·C.

    It replaces a power step, which has this sensitivity, so that a plan need not know which of the two is released.
    """

    acute: ClassVar[bool] = False


def _pairs(offsets: Offsets) -> itertools.pairwise[tuple[int, int]]:
    return itertools.pairwise(int(a) for a in offsets)


def _shifted(X: Rows, centre: Array, constant: float) -> Array:
    rows = dense(X)
    out = np.empty((len(rows), centre.size + 1))
    out[:, :-1] = rows - centre
    out[:, -1] = constant
    return out


def _user_gram(rows: Array) -> tuple[Array | None, float]:
    """Return RᵀR (None if RRᵀ is smaller) and its Frobenius norm, computed from the smaller of RᵀR and RRᵀ."""
    with np.errstate(all="ignore"):
        if len(rows) < rows.shape[1]:
            return None, safe_norm(rows @ rows.T)[0]
        gram = rows.T @ rows
        return gram, safe_norm(gram)[0]


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc", "contract"})
def shift_row(X, i, centre, constant, out):  # type: ignore[no-untyped-def]
    """Write (a − m, c) of row i to out[i]; return its squared norm."""
    squared, d = constant * constant, X.shape[1]
    for j in range(d):
        value = X[i, j] - centre[j]
        out[i, j] = value
        squared += value * value
    out[i, d] = constant
    return squared


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc", "contract"})
def _row_norms(X, centre, constant, out):  # type: ignore[no-untyped-def]
    for i in range(X.shape[0]):
        squared = constant * constant
        for j in range(X.shape[1]):
            value = X[i, j] - centre[j]
            squared += value * value
        out[i] = squared


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc", "contract"})
def _centre_votes(X, offsets, origin, scale, weight, total):  # type: ignore[no-untyped-def]
    """Add every unit's vote to ``total``; if offsets are empty, every row is a unit."""
    d = X.shape[1]
    vote = np.empty(d)
    units = offsets.size - 1 if offsets.size > 0 else X.shape[0]
    for i in range(units):
        first, last = (offsets[i], offsets[i + 1]) if offsets.size > 0 else (i, i + 1)
        vote[:] = 0.0
        for row in range(first, last):
            for j in range(d):
                vote[j] += X[row, j] - origin[j]
        mass = (last - first) * scale
        squared = mass * mass
        for j in range(d):
            squared += vote[j] * vote[j]
        if not (math.isfinite(squared) and squared > LEAST):
            continue
        factor = weight / math.sqrt(squared)
        for j in range(d):
            total[j] += vote[j] * factor
        total[d] += mass * factor
