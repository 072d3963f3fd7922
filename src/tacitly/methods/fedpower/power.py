"""FedPower's queries for noisy power steps, if the Gram matrix is too large to be released.

The Gram matrix of all rows is multiplied with a public basis Z (d×r), and the noisy product, made orthonormal, is the
next basis: Algorithm 1 of FedPower (Guo et al. 2021) with noise. As in :mod:`tacitly.methods.fedpower.gram`, a public
centre m is subtracted from rows and a constant coordinate c appended, so that the product with the uncentred (or
centred) matrix follows exactly.

Release :class:`PowerStep`: Σ a'(a'ᵀW) over the rows a' = (a − m, c) of a unit (a row or a user), W = diag(Z, 1),
clipped to C in Frobenius norm (‖a'‖·‖Wᵀa'‖ for a row). It depends on one unit and public fields. Sensitivity C
(zero-out), 2C (replace-one: a product with Z is not positive semi-definite). One Gaussian event per step.

Release :class:`DeviceStep`: a device takes p steps on its own Gram matrix from the public Z, aligns the result with
the same Z, multiplies once more and clips to C. It uses its own rows and the public Z only, so C bounds its
contribution for any intermediate results: sensitivity C (zero-out), 2C (replace-one), one Gaussian event for p steps.
The unit is the device: for a single row there is no better bound than the one for replacing the whole device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tacitly.arrays import Array, Offsets, Rows, check_shape, check_size
from tacitly.federation.base import Query
from tacitly.linalg import orthonormal, procrustes, sign_fixing
from tacitly.methods.fedpower.gram import shift_row
from tacitly.methods.fedpower.sparse_rows import dense, finite_rows, is_sparse, squared_norms, stays_sparse
from tacitly.privacy.clipping import GUARD, LEAST
from tacitly.privacy.guarantee import Unit
from tacitly.simd.lazy_njit import Elsewhere, njit

ALIGNMENTS: dict[str, Callable[[Array, Array], Array]] = {
    "procrustes": procrustes,
    "signs": sign_fixing,
    "none": lambda matrix, target: np.eye(matrix.shape[1]),
}
DECAYS = (False, True, "subtract", "halve")
_CACHED = 1 << 17  # amount of numbers of X processed at a time, so that they are still in cache for the product
_FEWEST = 256
_AT_ONCE = 16  # number of rows shifted and then multiplied while they are in the first-level cache
_LANES = 8
_MOST_STEPS = 1000


def fewer_steps(steps: int, decay: bool | str) -> int:
    """Return the local steps of the next round: one less (True or "subtract", equation 3.15), half, or unchanged.

    >>> fewer_steps(4, True), fewer_steps(4, "halve"), fewer_steps(4, False), fewer_steps(1, True)
    (3, 2, 4, 1)
    """
    return max(1, steps // 2 if decay == "halve" else steps - 1) if decay else steps


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

    def norms(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        """Return the norm of every unit's product."""
        if self.unit is Unit.USER:
            return super().norms(X, y, offsets)
        return np.concatenate([norms for _, _, norms in self._clipped(X, math.inf)])

    def block_sum(self, X: Rows, y: Rows, offsets: Offsets, bound: float) -> Array:
        """Clip row by row, then take one product for many rows."""
        if self.unit is Unit.USER:
            return super().block_sum(X, y, offsets, bound)
        d, r = self.basis.shape
        total = np.zeros((r + 1, d + 1))
        for moved, along, _ in self._clipped(X, bound * (1.0 - GUARD)):
            if is_sparse(moved):
                total[:, :-1] += np.asarray(moved.T @ along).T
                total[:, -1] += self.constant * along.sum(axis=0)
            else:
                total += (along.T @ moved)[:, : d + 1]
        return np.ascontiguousarray(total.T).ravel()

    def split(self, released: Array) -> tuple[Array, Array, float]:
        """Split the release into the product with the centred matrix, the sum b of centred rows, and their number."""
        d, r = self.basis.shape
        product = released.reshape(d + 1, r + 1)
        return product[:-1, :-1], product[:-1, -1] / self.constant, float(product[-1, -1]) / self.constant**2

    def _along(self, moved: Array) -> Array:
        return np.column_stack([moved @ self.basis, np.full(len(moved), self.constant)])

    def _clipped(self, X: Rows, limit: float) -> Iterator[tuple[Any, Any, Array]]:
        """Yield factors a' and Wᵀa' of some rows' clipped products, and the norms before clipping (NaN: not finite).

        Rows are clipped before any matrix product over several rows. The product of a row orthogonal to the basis
        consists of rounding errors, which in a matrix product depend on the other rows of the block.
        """
        d, r = self.basis.shape
        if is_sparse(X):
            stays_sparse(self.centre)
            rows, good = finite_rows(X)
            along = np.empty((X.shape[0], r + 1))
            along[:, :-1], along[:, -1] = rows @ self.basis, self.constant
            squared = np.where(good, squared_norms(rows) + self.constant**2, math.nan)
            norms = np.empty(len(good))
            _clip_sparse(squared, along, limit, norms)
            yield rows, along, norms
            return
        from tacitly.simd.registers import aligned_zeros, padded

        step = min(max(_FEWEST, _CACHED // d), len(X))
        columns, width = padded(self.basis.T, np.float64), -(-(d + 1) // _LANES) * _LANES
        moved = aligned_zeros(step, width)
        along, norms = aligned_zeros(max(len(columns), r + 1), step + 2 * _LANES), np.empty((2, step))
        for first in range(0, len(X), step):
            part = X[first : first + step]
            some = slice(len(part))
            _clip_dense(part, self.centre, self.constant, columns, r, limit, moved, along, norms)
            yield moved[some], along[: r + 1, some].T, norms[0, some].copy()


@dataclass(frozen=True)
class DeviceStep(Query):
    """Several power steps on the device's own matrix, aligned with the public ``basis``, and one more product."""

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
        rotation: Array = ALIGNMENTS[self.alignment](local, self.basis)
        local = local @ rotation
        return np.asarray(rows.T @ (rows @ local), dtype=np.float64).ravel()


project_rows: Any = Elsewhere("tacitly.simd.projections", "project_rows")

_kernel: Any = njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc", "contract"})


@_kernel
def _factors(squared, size, limit):  # type: ignore[no-untyped-def]
    """Return the scales of both factors of a product of norm √(squared·size), and that norm (NaN: not finite)."""
    norm = math.sqrt(squared) * math.sqrt(size)
    if not math.isfinite(norm):
        return 0.0, 0.0, math.nan
    if norm <= limit:
        return 1.0, 1.0, norm
    # Below LEAST a factor has lost digits to underflow, so the product could exceed the bound.
    if not limit / norm > LEAST:
        return 0.0, 0.0, norm
    # Each gets the root of the factor, so that neither a huge row nor a tiny bound makes one of them denormal.
    return math.sqrt(limit) / math.sqrt(squared), math.sqrt(limit) / math.sqrt(size), norm


@_kernel
def _clip_sparse(squared, along, limit, norms):  # type: ignore[no-untyped-def]
    """Clip the products of rows with known squared norms, by scaling their second factors alone."""
    for i in range(along.shape[0]):
        size = 0.0
        for j in range(along.shape[1]):
            size += along[i, j] * along[i, j]
        first, second, norms[i] = _factors(squared[i], size, limit)
        for j in range(along.shape[1]):
            along[i, j] = along[i, j] * second * first if first > 0.0 else 0.0


@_kernel
def _clip_dense(X, centre, constant, columns, r, limit, moved, along, norms):  # type: ignore[no-untyped-def]
    """Write a' = (a − m, c) and Wᵀa' of every row, scaled so that ‖a'(Wᵀa')ᵀ‖ is at most ``limit``.

    Rows of ``moved`` and of ``columns`` are padded with zeros; ``along`` has one column per row, so that four rows are
    multiplied with four columns at a time. The second row of ``norms`` is a buffer.
    """
    n = X.shape[0]
    for start in range(0, n, _AT_ONCE):
        stop = min(start + _AT_ONCE, n)
        for i in range(start, stop):
            norms[0, i] = shift_row(X, i, centre, constant, moved)
        project_rows(moved, start, stop, moved.shape[1], columns, along, start, 0)
    sizes = norms[1]
    for i in range(n):
        sizes[i] = constant * constant
        along[r, i] = constant
    for b in range(r):
        for i in range(n):
            sizes[i] += along[b, i] * along[b, i]
    for i in range(n):
        squared = norms[0, i]
        norms[0, i] = math.sqrt(squared) * math.sqrt(sizes[i])
        if not (norms[0, i] <= limit and norms[0, i] < math.inf):
            first, second, norms[0, i] = _factors(squared, sizes[i], limit)
            # Not a product with 0, which would turn an infinite entry into NaN.
            for j in range(moved.shape[1]):
                moved[i, j] = moved[i, j] * first if first > 0.0 else 0.0
            for b in range(r + 1):
                along[b, i] = along[b, i] * second if second > 0.0 else 0.0
