"""Private whitening: features on one scale, for a small share of the budget.

The papers assume features with identity covariance; real features do not have it. So the second moment of all users'
features is released once, and the rest of the run works in coordinates x' = Wᵀx. In these coordinates the moment is as
close to the identity as the noise allows. Used by Private FedRep, CENTAUR, AMHT-LRS, private alternating minimisation
and the margin classifier's ``gradient`` mode.

Release :class:`FeatureMoment`. Unit: the user. User i contributes S/‖S‖ with S = XᵢᵀXᵢ, a vector of norm one (or zero)
for any rows, so there is no clipping bound to choose. Sensitivity 1 (zero-out); √2 (replace-one: two contributions are
positive semi-definite, so ⟨P, Q⟩ ≥ 0 and ‖P − Q‖² ≤ 2). One Gaussian event. Everything after it is post-processing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from tacitly.arrays import Array, Offsets, Rows, check_shape, check_size, read_only, rows_times
from tacitly.federation.base import Federation, Query
from tacitly.linalg import denoise_spectrum, pack_symmetric, unpack_symmetric
from tacitly.methods.shared.array_forms import centred, packed_moments, unit_rows
from tacitly.methods.shared.batch import ArrayQuery, norms_of
from tacitly.methods.shared.column_scales import MOST_FEATURES, column_gains
from tacitly.methods.shared.some_rows import LARGEST, chosen, thinned
from tacitly.privacy.calibration import Plan
from tacitly.privacy.clipping import LEAST, clip_factor
from tacitly.simd.lazy_njit import njit
from tacitly.simd.small_solves import center_rows

# Noise raises some variances and lowers others. Adding this many noise standard deviations keeps the lowered variances
# away from zero. Division by a variance near zero would make its feature dominate, and the loop would overshoot.
_DAMPING = 1.5
_SMALLEST_EIGENVALUE = 0.02
_SURE = 3.0  # the lower limit of a variance is this many noise standard deviations below it
# Fused sums compute the squared norm after whitening as ‖s‖² + Σ((1 + g)² − 1)(a·s)². Its error, relative to the
# squared norm, is at most that of the directions over the smallest (1 + g)²: 2.7e-7, below the guard of clipping
# (2^-20). They whiten sums, not contributions. Rounding errors of a sum are multiplied by 1 + g, which is therefore
# bounded.
_ORTHONORMAL = 1e-12
_FEW_TO_TURN = 16  # up to this many features, rows are whitened by array operations
_FEW_FEATURES = 128  # up to this many features, a user's moment is formed, and stays in cache
_SINGLE = 2.0**-16  # of the norm, times √d, reserved where moments are formed in single precision: see moment_kernels
LEAST_GAIN, MOST_GAIN, _LARGEST_EIGENVALUE = 2.0**-9 - 1.0, 2.0**3 - 1.0, 2.0**18


@dataclass(frozen=True)
class SymmetricMatrixQuery(Query):
    """A query whose contribution is a packed symmetric d×d matrix."""

    n_features: int

    def __post_init__(self) -> None:
        check_size("n_features", self.n_features, MOST_FEATURES)

    @property
    def coordinates(self) -> int:
        """Entries of a symmetric d×d matrix."""
        return self.n_features * (self.n_features + 1) // 2


@dataclass(frozen=True)
class FeatureMoment(SymmetricMatrixQuery, ArrayQuery):
    """Second moment of a user's features, scaled to norm one; around the user's mean if ``centered``."""

    centered: bool = False
    most_rows: int = 0  # rows of each user that are read: see some_rows; 0 for all
    acute: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_size("most_rows + 1", self.most_rows + 1, LARGEST + 1)

    def contribution(self, X: Rows, y: Rows) -> Array:
        """Return S/‖S‖ for S = XᵀX, packed."""
        rows = self.scaled(X[chosen(len(X), self.most_rows)].astype(np.float64))
        if self.centered:
            rows = rows - rows.mean(axis=0)
        moment = rows.T @ rows
        norm = float(np.linalg.norm(moment))
        return pack_symmetric(moment / norm) if norm**2 > LEAST else np.zeros(self.coordinates)

    def contributions(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        """Return S/‖S‖, packed, one row per user."""
        X, y, offsets = thinned(X, y, offsets, self.most_rows)
        rows = np.asarray(self.scaled(X), dtype=np.float64)
        moments = packed_moments(centred(rows, offsets) if self.centered else rows, offsets)
        return unit_rows(moments, norms_of(moments))

    def block_sum(self, X: Rows, y: Rows, offsets: Offsets, bound: float) -> Array:
        """Form each user's moment while its rows are in cache; with many features, scale rows and multiply chunks."""
        weight = clip_factor(1.0, bound)
        if self.n_features <= _FEW_FEATURES:
            return self._sum_of_moments(np.ascontiguousarray(X), offsets, weight)
        X, y, offsets = thinned(X, y, offsets, self.most_rows)
        total = np.zeros((self.n_features, self.n_features))
        for chunk, _, starts in user_chunks(X, y, offsets):
            rows = np.empty(chunk.shape, dtype=np.float64)
            _unit_moment_rows(self.scaled(chunk), starts, self.centered, weight, rows)
            total += rows.T @ rows
        return pack_symmetric(total)

    def _sum_of_moments(self, X: Rows, offsets: Offsets, weight: float) -> Array:
        from tacitly.methods.shared.moment_kernels import unit_moments
        from tacitly.simd.registers import aligned_zeros, padded

        d = self.n_features
        check_shape("X", X, None, d)
        gains = padded(self.scaled(np.ones((1, d))), X.dtype)[0]
        if X.dtype == np.float32:
            weight *= 1.0 - _SINGLE * math.sqrt(d)
        total = aligned_zeros(gains.size, gains.size)
        unit_moments(read_only(X), offsets, gains, self.centered, self.most_rows, weight, total)
        lower = np.tril(total[:d, :d])
        return pack_symmetric(lower + np.tril(lower, -1).T)

    def scaled(self, X: Rows) -> Rows:
        """Return rows on the scale on which the moment is taken: as they are."""
        return X


@dataclass(frozen=True)
class ScaledMoment(FeatureMoment):
    """The same for features that are multiplied by public gains, one per feature."""

    gains: Array = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_shape("gains", self.gains, self.n_features)

    def scaled(self, X: Rows) -> Rows:
        """Return rows times the gains."""
        return read_only(np.multiply(X, self.gains, dtype=np.float64))


@dataclass(frozen=True)
class Whitening:
    """Invertible coordinates x' = (I + Q diag(gains) Qᵀ) diag(scale) x with orthonormal Q.

    Fused sums compute norms in these coordinates and rely on Q being orthonormal. This is checked, because a whitening
    may have been received from the network.
    """

    scale: Array
    directions: Array
    gains: Array

    def __post_init__(self) -> None:
        check_shape("scale", self.scale, None)
        check_shape("directions", self.directions, self.scale.size, None)
        check_shape("gains", self.gains, self.directions.shape[1])
        if not (np.isfinite(self.scale).all() and np.isfinite(self.directions).all() and np.isfinite(self.gains).all()):
            raise ValueError("a whitening must be finite. Found entries that are not.")
        if not ((self.scale > 0).all() and (self.gains >= LEAST_GAIN).all() and (self.gains <= MOST_GAIN).all()):
            raise ValueError(
                "a whitening must have scales above 0 and gains from 2^-9 - 1 to 2^3 - 1. Found some that are not."
            )
        off = self.directions.T @ self.directions - np.eye(self.gains.size)
        if not np.linalg.norm(off) <= _ORTHONORMAL:
            raise ValueError("the directions of a whitening must be orthonormal. Found some that are not.")

    @classmethod
    def identity(cls, n_features: int) -> Whitening:
        """Return the identity: features unchanged."""
        return cls(np.ones(n_features), np.zeros((n_features, 0)), np.zeros(0))

    @classmethod
    def from_moment(cls, packed: Array, sigma: float, n_features: int) -> Whitening:
        """Estimate coordinates from a noisy second moment whose noise has standard deviation ``sigma``.

        First the variances are shrunk towards their mean (James and Stein), because each has noise ``sigma``. Then, for
        the remaining correlations, eigenvalues outside the noise's semicircle are denoised, and the others are set
        to 1.
        """
        moment = unpack_symmetric(packed, n_features)
        variances = np.diag(moment)
        mean = float(variances.mean())
        if not mean > sigma:
            return cls.identity(n_features)
        variances = _shrunk_variances(variances, sigma)[0] + _DAMPING * sigma
        variances = np.maximum(variances, 1e-12 * float(variances.max()))
        scale = 1.0 / np.sqrt(variances)
        values, vectors = np.linalg.eigh(moment * np.outer(scale, scale))
        level = sigma * math.sqrt(n_features / 2.0) * float(np.mean(scale**2))
        floor = max(_SMALLEST_EIGENVALUE, min(1.0, level))
        values = np.clip(1.0 + denoise_spectrum(values - 1.0, level), floor, _LARGEST_EIGENVALUE)
        keep = np.abs(values - 1.0) > 1e-9
        # Only relative scale matters from here on.
        return cls(scale, vectors[:, keep], 1.0 / np.sqrt(values[keep]) - 1.0)

    def transform(self, X: Rows) -> Array:
        """Transform rows; each row's result depends on that row alone, to the last bit.

        With few features, array operations take hardly longer than compiled code and need no compiling.
        """
        if self.scale.size <= _FEW_TO_TURN:
            rows = np.multiply(X, self.scale, dtype=np.float64)
            return rows + rows_times(rows, self.turn) if self.gains.size else rows
        out = np.empty(X.shape)
        _whiten_rows(read_only(X), self.scale, np.ascontiguousarray(self.directions.T), self.gains, out)
        return out

    def transform_one_user(self, X: Rows) -> Array:
        """Transform one user's rows without compiled code; for rows of several users use :meth:`transform`."""
        rows: Array = np.multiply(X, self.scale, dtype=np.float64)
        return rows + (rows @ self.directions) * self.gains @ self.directions.T

    @property
    def turn(self) -> Array:
        """The matrix Q diag(gains) Qᵀ that scaled rows are multiplied by, besides the identity."""
        return np.asarray((self.directions * self.gains) @ self.directions.T)

    def to_raw(self, basis: Array) -> Array:
        """Convert directions in whitened coordinates to weights on raw features."""
        full = basis + self.directions @ (self.gains[:, None] * (self.directions.T @ basis))
        return self.scale[:, None] * full

    def from_raw(self, basis: Array) -> Array:
        """Convert weights on raw features to directions in whitened coordinates: the inverse of :meth:`to_raw`."""
        scaled = basis / self.scale[:, None]
        back = self.gains / (1.0 + self.gains)
        return np.asarray(scaled - self.directions @ (back[:, None] * (self.directions.T @ scaled)))


def private_whitening(federation: Federation, plan: Plan, *, centered: bool = False, most_rows: int = 0) -> Whitening:
    """Release the second moment of features (phase ``whitening``) and return coordinates estimated from it.

    If the plan has a share for the scales of columns, they are released first, and the moment is in these units.
    """
    return measured_whitening(federation, plan, centered=centered, most_rows=most_rows)[0]


def measured_whitening(
    federation: Federation, plan: Plan, *, centered: bool = False, most_rows: int = 0
) -> tuple[Whitening, Array]:
    """Return :func:`private_whitening`, and lower limits of columns' variances in its coordinates.

    Both come from the same releases. A limit is one if the scales of columns show that many users vary in the column;
    otherwise it comes from the moment (:func:`sure_part`).
    """
    d = federation.n_features
    gains, found = column_gains(federation, plan, centered=centered)
    event = plan.event("whitening", clip=1.0, acute=True)
    query = FeatureMoment(d, centered, most_rows)
    if not (gains == 1.0).all():
        query = ScaledMoment(d, centered, most_rows, gains=gains)
    moment, sigma = federation.release(query, event, "feature moment"), federation.sum_sigma(event)
    whitening = Whitening.from_moment(moment, sigma, d)
    variances, trust = _shrunk_variances(np.diag(unpack_symmetric(moment, d)), sigma)
    sure = np.where(found, 1.0, sure_part(variances, sigma, trust))
    return replace(whitening, scale=whitening.scale * gains), sure


def sure_part(variances: Array, sigma: float, trust: float) -> Array:
    """Return a lower limit of each column's variance in whitened coordinates (the variance is one, or less by damping).

    The limit is near zero for a column in which hardly any user varies, because its whitened coordinate is noise.
    ``variances`` were shrunk to their mean with ``trust``, and so was their noise.

    >>> sure_part(np.array([100.0, 1.0]), 1.0, 1.0).round(2)
    array([0.96, 0.  ])
    """
    least = np.maximum(variances - _SURE * math.sqrt(trust) * sigma, 0.0)
    return np.asarray(least / np.maximum(variances + _DAMPING * sigma, np.finfo(float).tiny))


def _shrunk_variances(variances: Array, sigma: float) -> tuple[Array, float]:
    """Return variances that carry noise ``sigma``, shrunk to their mean (James and Stein), and by what factor."""
    mean, spread = float(variances.mean()), float(variances.var())
    trust = max(0.0, 1.0 - sigma**2 / spread) if spread > 0 else 0.0
    return np.maximum(mean + trust * (variances - mean), 0.0), trust


def user_chunks(
    X: Rows, y: Rows, offsets: Offsets, size: int = 64
) -> Iterator[tuple[Rows, Rows, npt.NDArray[np.int64]]]:
    """Split a block into chunks of a few users, so that copies of their rows stay in cache."""
    for start in range(0, len(offsets) - 1, size):
        bounds = offsets[start : start + size + 1]
        rows = slice(int(bounds[0]), int(bounds[-1]))
        yield read_only(X[rows]), read_only(y[rows]), bounds - bounds[0]


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc", "contract"})
def _whiten_rows(X, scale, directions, gains, out):  # type: ignore[no-untyped-def]
    """Whiten row by row in a fixed order, because the last bits of a matrix product depend on its number of rows."""
    d, r = X.shape[1], gains.size
    along = np.empty(r)
    for j in range(X.shape[0]):
        for a in range(d):
            out[j, a] = X[j, a] * scale[a]
        for q in range(r):
            dot = 0.0
            for a in range(d):
                dot += directions[q, a] * out[j, a]
            along[q] = gains[q] * dot
        for q in range(r):
            for a in range(d):
                out[j, a] += along[q] * directions[q, a]


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc", "contract"})
def gram_lower(X, first, last, out):  # type: ignore[no-untyped-def]
    """Write inner products of rows first..last to the lower triangle, four at a time: one load serves four products."""
    d = X.shape[1]
    for j in range(last - first):
        row = first + j
        p = 0
        while p + 3 <= j:
            s0 = s1 = s2 = s3 = 0.0
            for a in range(d):
                value = X[row, a]
                s0 += value * X[first + p, a]
                s1 += value * X[first + p + 1, a]
                s2 += value * X[first + p + 2, a]
                s3 += value * X[first + p + 3, a]
            out[j, p], out[j, p + 1], out[j, p + 2], out[j, p + 3] = s0, s1, s2, s3
            p += 4
        while p <= j:
            s0 = 0.0
            for a in range(d):
                s0 += X[row, a] * X[first + p, a]
            out[j, p] = s0
            p += 1


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc", "contract"})
def _unit_moment_rows(X, offsets, centered, weight, out):  # type: ignore[no-untyped-def]
    """Scale each user's rows so that the user's second moment has Frobenius norm ``weight`` (or is zero)."""
    d = X.shape[1]
    for i in range(offsets.size - 1):
        first, last = offsets[i], offsets[i + 1]
        if centered:
            center_rows(X, first, last, out)
        else:
            for j in range(first, last):
                for a in range(d):
                    out[j, a] = X[j, a]
        squared = 0.0
        if last - first <= d:
            gram = np.empty((last - first, last - first))
            gram_lower(out, first, last, gram)
            for j in range(last - first):
                for p in range(j):
                    squared += 2.0 * gram[j, p] * gram[j, p]
                squared += gram[j, j] * gram[j, j]
        else:
            moment = np.zeros((d, d))
            for j in range(first, last):
                for a in range(d):
                    value = out[j, a]
                    for b in range(a + 1):
                        moment[a, b] += value * out[j, b]
            for a in range(d):
                for b in range(a):
                    squared += 2.0 * moment[a, b] * moment[a, b]
                squared += moment[a, a] * moment[a, a]
        factor = 0.0
        if math.isfinite(squared) and squared > LEAST:
            factor = math.sqrt(weight / math.sqrt(squared))
        for j in range(first, last):
            for a in range(d):
                # Not a product with 0, which would turn an infinite entry into NaN.
                out[j, a] = out[j, a] * factor if factor > 0.0 else 0.0
