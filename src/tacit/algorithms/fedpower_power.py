"""Noisy power steps, for matrices too large to be released whole.

A public basis Z (d×r) is multiplied with everybody's Gram matrix, and the noisy product, made orthonormal, is the next
basis: paper 001's Algorithm 1 with noise. Rows are moved to a public centre m and carry a constant coordinate c, as in
:mod:`tacit.algorithms.fedpower_gram`, so that the product with the uncentred (or centred) matrix follows exactly.

Release :class:`PowerStep`: Σ a'(a'ᵀW) of a unit's rows a' = (a − m, c), W = diag(Z, 1), clipped in Frobenius norm
(‖a'‖·‖Wᵀa'‖ for a row). Sensitivity C (zero-out), 2C (replace-one: a product with Z is not positive semi-definite).

Release :class:`DeviceStep`: a device takes p steps on its own matrix, starting at the public Z, turns the result
towards the same public Z, multiplies once more and clips. It uses its own rows and public Z only, so whatever happened
in between, the clip bounds it: sensitivity C (zero-out), 2C (replace-one), one event for p steps. The unit is the
device: for one row of it there is no better bound than replacing the device.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tacit.algorithms.fedpower_gram import _row_norms
from tacit.algorithms.sparse_rows import dense, finite_rows, is_sparse, squared_norms
from tacit.federation.base import Array, Query, Rows
from tacit.lazy import njit
from tacit.linalg import check_shape, check_size, orthonormal, procrustes, sign_fixing
from tacit.privacy.clipping import GUARD, LEAST
from tacit.privacy.guarantee import Unit

ALIGNMENTS: dict[str, Callable[[Array, Array], Array]] = {
    "procrustes": procrustes,
    "signs": sign_fixing,
    "none": lambda matrix, target: np.eye(matrix.shape[1]),
}
_CACHED = 1 << 18  # numbers of X worked on at a time: both products find them in cache
_FEWEST = 256
_MOST_STEPS = 1000


@dataclass(frozen=True)
class PowerStep(Query):
    """Product of a unit's Gram matrix, around ``centre`` and with a constant coordinate, with ``basis``."""

    basis: Array
    centre: Array
    constant: float
    unit: Unit = Unit.ROW

    def __post_init__(self) -> None:
        check_shape("basis", self.basis, None, None)
        check_shape("centre", self.centre, self.basis.shape[0])

    @property
    def coordinates(self) -> int:
        """Entries of the product."""
        d, r = self.basis.shape
        return int((d + 1) * (r + 1))

    def contribution(self, X: Rows, y: Rows) -> Array:
        """Return RᵀRW for the unit's rows R = (A − m, c)."""
        rows = np.column_stack([dense(X) - self.centre, np.full(X.shape[0], self.constant)])
        return (rows.T @ self._along(rows[:, :-1])).ravel()

    def norms(self, X: Rows, y: Rows, offsets: npt.NDArray[np.int64]) -> Array:
        """Norm of every unit's product."""
        if self.unit is Unit.USER:
            return super().norms(X, y, offsets)
        step = _rows_at_once(X)
        return np.concatenate([self._row_products(X[i : i + step])[1] for i in range(0, X.shape[0], step)])

    def block_sum(self, X: Rows, y: Rows, offsets: npt.NDArray[np.int64], bound: float) -> Array:
        """Two products with the rows, which are neither copied nor centred one by one."""
        if self.unit is Unit.USER:
            return super().block_sum(X, y, offsets, bound)
        d, r = self.basis.shape
        upper, heads, limit = np.zeros((r + 1, d)), np.zeros(r + 1), bound * (1.0 - GUARD)
        step, product = _rows_at_once(X), np.empty((r + 1, d))
        shift = np.append(self.centre @ self.basis, -self.constant)
        # A column of zeros makes room for the constant coordinate.
        basis = np.column_stack([self.basis, np.zeros(d)])
        for first in range(0, X.shape[0], step):
            part = X[first : first + step]
            if not is_sparse(part):
                along = np.empty((len(part), r + 1))
                np.matmul(part, basis, out=along)
                if not _clip_products(part, along, shift, self.centre, self.constant, limit, heads):
                    # A row that is not finite must vanish from both factors: zero times infinity is not zero.
                    part = np.where(along[:, -1:] == 0.0, 0.0, part)
                upper += np.matmul(along.T, part, out=product)
                continue
            part = finite_rows(part)
            along, norms = self._row_products(part)
            with np.errstate(all="ignore"):
                factor = np.where(norms > limit, limit / norms, 1.0)
            along *= factor[:, None]
            upper += np.asarray(part.T @ along).T
            heads += along.sum(axis=0)
        whole = np.empty((d + 1, r + 1))
        whole[:-1] = upper.T - np.outer(self.centre, heads)
        whole[-1] = self.constant * heads
        return whole.ravel()

    def split(self, released: Array) -> tuple[Array, Array, float]:
        """Return the product with the centred matrix, the sum b of centred rows, and their number."""
        d, r = self.basis.shape
        product = released.reshape(d + 1, r + 1)
        return product[:-1, :-1], product[:-1, -1] / self.constant, float(product[-1, -1]) / self.constant**2

    def _along(self, moved: Array) -> Array:
        return np.column_stack([moved @ self.basis, np.full(len(moved), self.constant)])

    def _row_products(self, X: Rows) -> tuple[Array, Array]:
        """Return a'ᵀW of every row, and ‖a'‖·‖Wᵀa'‖."""
        with np.errstate(all="ignore"):
            along = np.empty((X.shape[0], self.basis.shape[1] + 1))
            along[:, :-1] = X @ self.basis - self.centre @ self.basis
            along[:, -1] = self.constant
            if is_sparse(X):
                squared = squared_norms(X) + self.constant**2
            else:
                squared = np.empty(len(X))
                _row_norms(X, self.centre, self.constant, squared)
            return along, np.sqrt(squared * np.einsum("ij,ij->i", along, along))


@dataclass(frozen=True)
class DeviceStep(Query):
    """Several steps on the device's own matrix, turned towards the public ``basis``, and one product more."""

    basis: Array
    steps: int = 1
    alignment: str = "procrustes"

    def __post_init__(self) -> None:
        check_shape("basis", self.basis, None, None)
        check_size("steps", self.steps, _MOST_STEPS)
        if self.alignment not in ALIGNMENTS:
            raise ValueError(f"alignment must be one of {', '.join(ALIGNMENTS)}. Found {self.alignment!r}.")

    @property
    def coordinates(self) -> int:
        """Entries of the basis."""
        return int(self.basis.size)

    def contribution(self, X: Rows, y: Rows) -> Array:
        """Return AᵀA·Z_local·D."""
        rows: Any = X if is_sparse(X) else dense(X)
        local = self.basis
        for _ in range(self.steps - 1):
            local = orthonormal(rows.T @ (rows @ local))[0]
        turn: Array = ALIGNMENTS[self.alignment](local, self.basis)
        local = local @ turn
        return np.asarray(rows.T @ (rows @ local), dtype=np.float64).ravel()


@njit(nogil=True, cache=True, fastmath={"reassoc", "contract"})
def _clip_products(X, along, shift, centre, constant, limit, heads):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Turn every row's aᵀW into the clipped a'ᵀW, add it to ``heads``; say whether all rows were finite."""
    finite = True
    for i in range(X.shape[0]):
        squared = constant * constant
        for j in range(X.shape[1]):
            value = X[i, j] - centre[j]
            squared += value * value
        size = 0.0
        for j in range(along.shape[1]):
            along[i, j] -= shift[j]
            size += along[i, j] * along[i, j]
        norm = math.sqrt(squared) * math.sqrt(size)
        # A factor below LEAST loses digits to underflow, and the product could exceed the clip.
        if not (math.isfinite(norm) and norm * LEAST < limit):
            finite = False
            for j in range(along.shape[1]):
                along[i, j] = 0.0
            continue
        factor = limit / norm if norm > limit else 1.0
        for j in range(along.shape[1]):
            along[i, j] *= factor
            heads[j] += along[i, j]
    return finite


def _rows_at_once(X: Rows) -> int:
    return int(X.shape[0]) if is_sparse(X) else max(_FEWEST, _CACHED // int(X.shape[1]))
