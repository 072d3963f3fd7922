"""The contribution of one unit to trace regression: of an observation (X, y), or of all observations of a user.

Designs are scaled first, X̃ = D₁ X D₂ with public diagonals (:class:`Scales`), so that Σ⟨X̃, M⟩² is about ‖M‖² if
entries of X are uncorrelated (for correlated entries see :mod:`tacitly.methods.trace_regression.curvature`).
Neighbouring data sets differ in one unit. If ``unit`` is the label, they differ in one label and never in an X, which
is then public. Dense designs and their labels may be centred (:mod:`tacitly.methods.trace_regression.centering`). This
is a public shift of a unit's own numbers before clipping, and no bound below depends on it. Every contribution is a
function of one unit and of public fields, and the last operation clips it to norm C, so zero-out moves a sum by at most
C.

Release :class:`TangentSum`: (A, B) = Σ w·(X̃V, (I − VVᵀ)X̃ᵀU) over the unit's observations, w = y − ⟨X̃, M⟩ and
M = U diag(s) Vᵀ public: the coordinates of the residual-weighted X̃ in the tangent space of rank-r matrices at M. The
squared norm is ‖A‖² + ‖B'‖² − ‖VᵀB'‖² with B' = Σ w·X̃ᵀU, clipped as a whole. Noise is drawn on the coordinates of A and
B; the receiver projects away the part outside the r(d₁ + d₂ − r) dimensions of the tangent space. The power method of
the start uses A or B alone. With ``tracked`` = t > 0 the bin of the unit's norm is released too, with this share of the
squared bound: the gradient part is clipped to C√(1 − t) and the bin has weight C√t, C = ``clip``, so together the norm
is at most C. With a centre, the level's Σ w·weight is one more coordinate, inside the same norm. Sensitivity C
(zero-out), 2C (replace-one: gradients can point against each other). One Gaussian event.

Release :class:`LabelledSum`: Σ y·X̃ of a unit, clipped. Sensitivity C (zero-out), 2C (replace-one: labels can have
either sign). One Gaussian event.

Release :class:`DesignEnergy`: Σ X² by rows and by columns of a unit's matrices, clipped. No entry is negative, so
⟨p, q⟩ ≥ 0 for any two: sensitivity C (zero-out), √2·C (replace-one). One Gaussian event.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tacitly.arrays import Array, Offsets, Rows, check_shape, read_only
from tacitly.federation.base import Query
from tacitly.methods.trace_regression.designs import Centre, Design, check_centre, labels, origin
from tacitly.methods.trace_regression.kernels import BINS, bin_of, dense_products, factored_products
from tacitly.methods.trace_regression.start_kernels import dense_energies, dense_labelled, factored_energies
from tacitly.privacy.clipping import GUARD, LEAST, clip, safe_norm
from tacitly.privacy.guarantee import Unit
from tacitly.simd.registers import padded

PARTS = {"left": 1, "right": 2, "both": 3}
_ORTHONORMAL = 1e-7  # a tenth of the guard of clipping


@dataclass(frozen=True)
class Scales:
    """Public diagonals D₁ and D₂ that bring a design to the scale of the identity."""

    left: Array
    right: Array

    def __post_init__(self) -> None:
        check_shape("left", self.left, None)
        check_shape("right", self.right, None)

    @property
    def matrix(self) -> Array:
        """The scale of every entry."""
        return np.outer(self.left, self.right)


@dataclass(frozen=True)
class TangentSum(Query):
    """Residual-weighted design in the tangent space at U diag(values) Vᵀ; or one product of it, label-weighted."""

    design: Design
    scales: Scales
    left: Array
    right: Array
    values: Array
    parts: str = "both"
    tracked: float = 0.0
    clip: float = 1.0
    unit: Unit = Unit.ROW
    centre: Centre | None = None

    def __post_init__(self) -> None:
        check_scales(self.scales, self.design)
        check_shape("values", self.values, None)
        check_shape("left", self.left, self.design.d1, self.values.size)
        check_shape("right", self.right, self.design.d2, self.values.size)
        check_centre(self.centre, self.design)
        if self.parts not in PARTS or not 0.0 <= self.tracked < 1.0 or not self.clip > 0.0:
            raise ValueError(
                "parts must be 'left', 'right' or 'both', tracked in [0, 1) and clip positive. "
                f"Found {self.parts!r}, {self.tracked!r} and {self.clip!r}."
            )
        if self.parts == "both":  # projects along V after clipping, which increases no norm if VVᵀ is a projection
            gram = self.right.T @ self.right
            if not np.linalg.norm(gram @ gram - gram) <= _ORTHONORMAL:
                raise ValueError("the right factors must be orthonormal (or zero). Found some that are not.")

    @property
    def coordinates(self) -> int:
        """Entries of the products, the level if there is a centre, and the bins if norms are tracked."""
        (d1, d2), r = (self.design.d1, self.design.d2), self.values.size
        sizes = {"left": d1 * r, "right": d2 * r, "both": (d1 + d2) * r}
        return int(sizes[self.parts]) + self._levels + (BINS if self.tracked > 0 else 0)

    def contribution(self, X: Rows, y: Rows) -> Array:
        """Return the products of one unit; if norms are tracked, the products clipped, and the bin of their norm."""
        check_shape("X", X, None, self.design.n_features)
        U, V = self.left, self.right
        left, right = np.zeros((len(U), self.values.size)), np.zeros((len(V), self.values.size))
        level = np.zeros(self._levels)
        for x, target in zip(X, labels(y, self.centre), strict=True):
            a, b = self._times(x)
            fitted = np.sum(b * V, axis=0) @ self.values if self.parts == "both" else 0.0
            weight = float(target) - float(fitted)
            left += weight * a
            right += weight * b
            level += weight * self._weight
        if self.parts == "both":
            right -= V @ (V.T @ right)
        chosen = {"left": [left], "right": [right], "both": [left, right]}[self.parts]
        products = np.concatenate([*(part.ravel() for part in chosen), level])
        if not self.tracked > 0:
            return products
        norm, bins = safe_norm(products)[0], np.zeros(BINS)
        if norm > 0 and math.isfinite(norm):
            bins[bin_of(norm, self._limit)] = self._bin_weight
        return np.concatenate([clip(products, self.clip * math.sqrt(1.0 - self.tracked)), bins])

    def _times(self, x: Rows) -> tuple[Array, Array]:
        """Return X̃V and X̃ᵀU of one observation; X̃ is formed for dense designs only."""
        if self.design.kind == "dense":
            matrix = self.scales.matrix * (as_matrix(self.design, x) - origin(self.design, self.centre))
            return matrix @ self.right, matrix.T @ self.left
        a, b = factors_of(self.design, x)
        a, b = self.scales.left * a, self.scales.right * b
        return np.outer(a, b @ self.right), np.outer(b, a @ self.left)

    def norms(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        """Return norms of the products, in one pass over the observations."""
        return self._pass(X, y, offsets, 1.0)[3]

    def block_sum(self, X: Rows, y: Rows, offsets: Offsets, bound: float) -> Array:
        """Return the clipped sum, in one pass over the observations."""
        limit = self._limit if self.tracked > 0 else bound * (1.0 - GUARD)
        left, right, counts, _ = self._pass(X, y, offsets, limit)
        if self.parts == "both":
            right -= self.right @ (self.right.T @ right)
        chosen = {"left": [left], "right": [right], "both": [left, right]}[self.parts]
        products = np.concatenate([*(part.ravel() for part in chosen), counts[BINS : BINS + self._levels]])
        if not self.tracked > 0:
            return products
        # For a bound smaller than the query's own, everything is scaled down.
        whole = np.concatenate([products, self._bin_weight * counts[:BINS]])
        return np.asarray(min(1.0, bound / self.clip) * whole)

    def split(self, released: Array) -> tuple[Array, Array, Array]:
        """Split the release into the products, d₁×r and d₂×r (empty if not part of it), and the bins."""
        (d1, d2), r = (self.design.d1, self.design.d2), self.values.size
        n1, n2 = d1 * r * (self.parts != "right"), d2 * r * (self.parts != "left")
        left, right = released[:n1].reshape(-1, r), released[n1 : n1 + n2].reshape(-1, r)
        return left, right, released[n1 + n2 + self._levels :]

    def level_of(self, released: Array) -> float:
        """Return the released level; 0 without a centre."""
        return float(released[(self.design.d1 + self.design.d2) * self.values.size]) if self._levels else 0.0

    def counts(self, bins: Array) -> Array:
        """Return the number of units in each bin."""
        return bins / self._bin_weight

    @property
    def _levels(self) -> int:
        return int(self.centre is not None and self.parts == "both")

    @property
    def _weight(self) -> float:
        return 0.0 if self.centre is None or self.parts != "both" else self.centre.weight

    @property
    def _limit(self) -> float:
        return self.clip * (1.0 - GUARD) * math.sqrt(1.0 - self.tracked)

    @property
    def _bin_weight(self) -> float:
        return self.clip * (1.0 - GUARD) * math.sqrt(self.tracked)

    @property
    def _weights(self) -> Array:
        """Singular values of M; zeros for one product alone, which is weighted with the labels themselves."""
        return self.values if self.parts == "both" else np.zeros_like(self.values)

    def _pass(self, X: Rows, y: Rows, offsets: Offsets, limit: float) -> tuple[Array, Array, Array, Array]:
        design, by_row = self.design, self.unit is not Unit.USER
        d1, d2, r, parts = design.d1, design.d2, self.values.size, PARTS[self.parts]
        out1, out2 = np.zeros((d1, r)), np.zeros((d2, r))
        counts, norms = np.zeros(BINS + 1), np.zeros(len(X) if by_row else len(offsets) - 1)
        scaled1, scaled2 = self.scales.left[:, None] * self.left, self.scales.right[:, None] * self.right
        if design.kind != "dense":
            factored_products(
                read_only(X), read_only(y), offsets, by_row, parts, *design.hot, scaled1, scaled2, self.right,
                self._weights, self.scales.left, self.scales.right, limit, out1, out2, counts, norms,
            )  # fmt: skip
            return out1, out2, counts, norms
        # Directions as rows, so that sums run along memory.
        to_right = np.zeros((max(r, 2), d1), dtype=X.dtype)
        to_right[:r] = scaled1.T
        sum1, sum2 = np.zeros((r, d1 * (parts != 2))), np.zeros((r, d2 * (parts != 1)))
        to_left, centre = padded(scaled2.T, X.dtype), origin(design, self.centre)
        rows, targets = read_only(X), read_only(labels(y, self.centre))
        dense_products(
            rows, targets, offsets, by_row, parts, to_left, to_right.ravel(), to_left[:r, :d2] @ centre.T,
            to_right[:r] @ centre, np.ascontiguousarray(self.right.T), self._weights, self.scales.left,
            self.scales.right, self._weight, limit, sum1, sum2, counts, norms,
        )  # fmt: skip
        return np.ascontiguousarray(sum1.T), np.ascontiguousarray(sum2.T), counts, norms


class OnePass(Query):
    """A query whose clipped sum and norms come from one pass over the observations."""

    def norms(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        """Return norms, in one pass over the observations."""
        return self._pass(X, y, offsets, 1.0)[1]

    def block_sum(self, X: Rows, y: Rows, offsets: Offsets, bound: float) -> Array:
        """Return the clipped sum, in one pass over the observations."""
        return self._pass(X, y, offsets, bound * (1.0 - GUARD))[0]

    @abstractmethod
    def _pass(self, X: Rows, y: Rows, offsets: Offsets, limit: float) -> tuple[Array, Array]:
        """Return the sum of contributions, each clipped to the limit, and their norms before clipping."""


@dataclass(frozen=True)
class LabelledSum(OnePass):
    """Label-weighted design, all d₁·d₂ entries: n times the paper's unbiased L̂, before Λ⁻¹."""

    design: Design
    scales: Scales
    unit: Unit = Unit.ROW
    centre: Centre | None = None

    def __post_init__(self) -> None:
        check_scales(self.scales, self.design)
        check_centre(self.centre, self.design)
        if self.design.kind != "dense" and self.unit is Unit.USER:
            raise ValueError("a labelled sum per user is for dense designs. Use the power method for other designs.")

    @property
    def coordinates(self) -> int:
        """Entries of a matrix."""
        return self.design.d1 * self.design.d2

    def contribution(self, X: Rows, y: Rows) -> Array:
        """Return Σ y·X̃."""
        check_shape("X", X, None, self.design.n_features)
        total = sum(
            (
                float(target) * (as_matrix(self.design, x) - origin(self.design, self.centre))
                for x, target in zip(X, labels(y, self.centre), strict=True)
            ),
            np.zeros((self.design.d1, self.design.d2)),
        )
        return np.asarray(self.scales.matrix * total).ravel()

    def _pass(self, X: Rows, y: Rows, offsets: Offsets, limit: float) -> tuple[Array, Array]:
        by_row = self.unit is not Unit.USER
        norms = np.zeros(len(X) if by_row else len(offsets) - 1)
        if self.design.kind == "dense":
            total = np.zeros(self.coordinates)
            centre = origin(self.design, self.centre).ravel()
            rows, targets = read_only(X), read_only(labels(y, self.centre))
            dense_labelled(rows, targets, offsets, by_row, centre, self.scales.matrix.ravel(), limit, total, norms)
            return total, norms
        return self._factored(X, y, limit)

    def _factored(self, X: Rows, y: Rows, limit: float) -> tuple[Array, Array]:
        """Clip by ‖y·X̃‖ = |y|·‖D₁a‖·‖D₂b‖, then take one product for all: nothing of size d₁·d₂ per observation."""
        hot1, hot2 = self.design.hot
        split = 1 if hot1 else self.design.d1
        with np.errstate(all="ignore"):
            a, norm1 = _factor(X[:, :split], self.scales.left, hot1)
            b, norm2 = _factor(X[:, split:], self.scales.right, hot2)
            norms = np.abs(y.astype(np.float64)) * norm1 * norm2
            usable = np.isfinite(norms) & (norms > 2.0**-450) & (norm1 > 2.0**-450) & (norm2 > 2.0**-450)
            weights = np.where(norms > limit, np.sign(y) * limit / (norm1 * norm2), y.astype(np.float64))
            usable &= np.abs(weights) > LEAST
        weights, a, b = weights[usable], a[usable], b[usable]
        total = np.zeros((self.design.d1, self.design.d2))
        if hot1 and hot2:
            np.add.at(total, (a.astype(np.int64), b.astype(np.int64)), weights)
        elif hot1:
            np.add.at(total, a.astype(np.int64), weights[:, None] * b)
        else:
            total = (a * weights[:, None]).T @ b
        return (self.scales.matrix * total).ravel(), norms


@dataclass(frozen=True)
class DesignEnergy(OnePass):
    """Sums of squares of a unit's matrices, by row and by column."""

    design: Design
    unit: Unit = Unit.ROW
    centre: Centre | None = None
    acute: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_centre(self.centre, self.design)

    @property
    def coordinates(self) -> int:
        """One number per row and one per column."""
        return self.design.d1 + self.design.d2

    def contribution(self, X: Rows, y: Rows) -> Array:
        """Return Σ X² by row, then by column."""
        check_shape("X", X, None, self.design.n_features)
        rows, columns = np.zeros(self.design.d1), np.zeros(self.design.d2)
        for x in X:
            if self.design.kind == "dense":
                squares = (as_matrix(self.design, x) - origin(self.design, self.centre)) ** 2
                rows += squares.sum(axis=1)
                columns += squares.sum(axis=0)
            else:
                a, b = (factor**2 for factor in factors_of(self.design, x))
                rows += a * b.sum()
                columns += b * a.sum()
        return np.concatenate([rows, columns])

    def _pass(self, X: Rows, y: Rows, offsets: Offsets, limit: float) -> tuple[Array, Array]:
        d1, d2, by_row = self.design.d1, self.design.d2, self.unit is not Unit.USER
        out, norms = np.zeros(d1 + d2), np.zeros(len(X) if by_row else len(offsets) - 1)
        if self.design.kind == "dense":
            dense_energies(X, offsets, by_row, origin(self.design, self.centre), limit, out, norms)
        else:
            factored_energies(X, offsets, by_row, *self.design.hot, d1, d2, limit, out, norms)
        return out, norms


def check_scales(scales: Scales, design: Design) -> None:
    """Raise unless there is one scale per row and one per column of the matrix."""
    check_shape("scales.left", scales.left, design.d1)
    check_shape("scales.right", scales.right, design.d2)


def as_matrix(design: Design, x: Rows) -> Array:
    """Return one observation as a matrix, for the plain form of a query, which remote nodes run and tests use.

    >>> as_matrix(Design("entries", 2, 3), np.array([1.0, 2.0]))
    array([[0., 0., 0.],
           [0., 0., 1.]])
    """
    if design.kind == "dense":
        return np.asarray(x, dtype=np.float64).reshape(design.d1, design.d2)
    return np.outer(*factors_of(design, x))


def factors_of(design: Design, x: Rows) -> tuple[Array, Array]:
    """Return a and b of one observation X = a bᵀ.

    >>> factors_of(Design("entries", 2, 3), np.array([1.0, 2.0]))
    (array([0., 1.]), array([0., 0., 1.]))
    """
    hot1, hot2 = design.hot
    split = 1 if hot1 else design.d1
    return _dense_factor(x[:split], design.d1, hot1), _dense_factor(x[split:], design.d2, hot2)


def _dense_factor(part: Rows, size: int, hot: bool) -> Array:
    if not hot:
        return np.asarray(part, dtype=np.float64)
    out, position = np.zeros(size), float(part[0])
    if 0 <= position < size and position == math.floor(position):
        out[int(position)] = 1.0
    return out


def _factor(part: Rows, scales: Array, hot: bool) -> tuple[Rows, Array]:
    """Return one factor of every observation and its norm in the scaled design; NaN for a position out of range."""
    if not hot:
        wide = part.astype(np.float64)
        return wide, np.sqrt(np.einsum("ij,ij->i", wide * scales, wide * scales))
    position = part[:, 0].astype(np.float64)
    known = (position >= 0) & (position < scales.size) & (position == np.floor(position))
    return position, np.where(known, scales[np.where(known, position, 0).astype(np.int64)], np.nan)
