"""What one user contributes to a step of the shared basis, for the squared loss and for other losses.

Squared loss (an extension of Private FedRep, Algorithm 1, lines 5-7). The user fits a head v to the current basis U by
least squares. The residual e = y − XUv gives the correction g = Xᵀe/(m − k), an estimate of the part of the user's
weights that U misses (in whitened coordinates; it is orthogonal to U by the normal equations). The contribution is

    (g vᵀ / c,  v vᵀ) / ν,    ν = ‖v‖² √(1 + ρ²),   ρ = ‖g‖ / (c ‖v‖).

Other losses: logistic, hinge, Poisson, several classes (left open in the paper's conclusion). The user fits a head V
(k×c'; c' = 1 except for more than two classes) to the projected rows P = XU by Newton's method with a ridge penalty.
With R the negative slopes of the loss at the fit and w their mean curvature, the correction is
G = (I − UUᵀ)XᵀR/(m·w): one Newton step from UV in whitened coordinates, where XᵀWX ≈ m·w·I outside the basis. The
contribution is (G Vᵀ/c, V Vᵀ)/ν, where ν is its true norm.

Releases :class:`BasisStep` and :class:`LossStep`. Unit: the user. A contribution is a function of one user's rows and
of public fields. It is divided by its own norm, so it has norm 1 or is zero, for any rows. So removing a user
(zero-out) moves the sum by at most 1, replacing one by at most 2 (corrections can point against each other). One
Gaussian event per round.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tacitly.arrays import Array, Offsets, Rows, per_user, read_only, rows_times
from tacitly.heads.losses import Loss
from tacitly.linalg import pack_symmetric
from tacitly.methods.fedrep.loss_kernels import LEAST_CURVATURE, LEAST_HEAD, add_loss_steps, round_fits
from tacitly.methods.shared.array_forms import centred, of_rows, packed_moments, solve_each, unit_rows, unpacked
from tacitly.methods.shared.batch import ArrayQuery, norms_of
from tacitly.methods.shared.descent import StepQuery
from tacitly.privacy.clipping import LEAST, clip_factor
from tacitly.simd.small_solves import TINY_RIDGE


@dataclass(frozen=True)
class BasisStep(StepQuery, ArrayQuery):
    """One user's correction of the basis and its head, for the squared loss."""

    centered: bool = False

    def contribution(self, X: Rows, y: Rows) -> Array:
        """Return the unit vector (gvᵀ/c, vvᵀ)/ν; zero for a user with no more rows than unknowns."""
        k = self.basis.shape[1]
        free = len(X) - k - int(self.centered)
        if free <= 0:
            return np.zeros(self.coordinates)
        rows, targets = X.astype(np.float64), y.astype(np.float64)
        if self.centered:
            rows, targets = rows - rows.mean(axis=0), targets - targets.mean()
        energy = np.square(rows[::4] * self.whitening.scale).mean()
        rows = self.whitening.transform_one_user(rows)
        projected = rows @ self.basis
        system = projected.T @ projected
        system += TINY_RIDGE * np.trace(system) * np.eye(k)
        if not (np.isfinite(system).all() and energy > 0):
            return np.zeros(self.coordinates)
        head = np.linalg.lstsq(system, projected.T @ targets)[0]
        correction = rows.T @ (targets - projected @ head) / (free * energy)
        measured = head @ self.head_metric
        joint = np.concatenate(
            [
                np.outer(correction / self.scale, measured).ravel(),
                pack_symmetric(np.outer(measured, measured)),
            ]
        )
        norm = np.linalg.norm(joint)
        return joint / norm if np.isfinite(norm) and norm > 0 else np.zeros(self.coordinates)

    def contributions(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        """Return (gvᵀ/c, vvᵀ)/ν, one row per user."""
        (d, k), counts = self.basis.shape, np.diff(offsets)
        free = counts - k - int(self.centered)
        rows, targets = X.astype(np.float64), y.astype(np.float64)
        if self.centered:
            rows, targets = centred(rows, offsets), centred(targets, offsets)
        projected = rows_times(rows, self.whitening.to_raw(self.basis))
        systems = unpacked(packed_moments(projected, offsets), k)
        heads = solve_each(systems, per_user(projected * targets[:, None], offsets))
        fitted = np.zeros(len(rows))
        for column, weights in zip(projected.T, of_rows(heads, offsets).T, strict=True):
            fitted += column * weights
        some = (np.arange(len(rows)) - np.repeat(offsets[:-1], counts)) % 4 == 0
        quarters = np.append(0, np.cumsum((counts + 3) // 4))
        energy = per_user(np.square(rows[some] * self.whitening.scale), quarters).sum(axis=1)
        size = free * energy / (np.maximum(np.diff(quarters), 1) * d)
        usable = (free > 0) & np.isfinite(size) & (size > 0) & np.isfinite(heads).all(axis=1)
        raw = np.where(usable[:, None], per_user(rows * (targets - fitted)[:, None], offsets), 0.0)
        scaled = self.whitening.scale * raw / np.where(usable, size, 1.0)[:, None]
        corrections = scaled + scaled @ self.whitening.turn
        measured = np.where(usable[:, None], heads, 0.0) @ self.head_metric
        outer = (corrections / self.scale)[:, :, None] * measured[:, None, :]
        moments = pack_symmetric(measured[:, :, None] * measured[:, None, :])
        joint = np.hstack([outer.reshape(len(outer), -1), moments])
        return unit_rows(joint, norms_of(joint))

    def block_sums(self, X: Rows, y: Rows, offsets: Offsets, bound: float, size: int) -> Array:
        """Return the sums of several blocks in one fused pass that runs without the interpreter.

        Each user's rows are read from memory once, and no user's d×k contribution is formed.
        """
        d, k = self.basis.shape
        X, y = np.ascontiguousarray(X), np.ascontiguousarray(y)
        blocks = max(1, -(-(len(offsets) - 1) // size))
        total = self._empty_sums(blocks, X.dtype)
        self._add_blocks(X, y, offsets, size, clip_factor(1.0, bound), total)
        step = self.whitening.transform(total[:, :k, :d].reshape(blocks * k, d)).reshape(blocks, k, d)
        width = d + -d % 16
        moments = [pack_symmetric(block[:k, width : width + k]) for block in total]
        return np.hstack([step.transpose(0, 2, 1).reshape(blocks, -1), moments])

    def _empty_sums(self, blocks: int, dtype: np.dtype[np.floating]) -> Rows:
        from tacitly.simd.registers import aligned_zeros

        rows, width = self._kernel_arguments(dtype)[0].shape
        k = self.basis.shape[1]
        return aligned_zeros(blocks * rows, width + k + -k % 16).reshape(blocks, rows, -1)

    def _add_blocks(self, X: Rows, y: Rows, offsets: Offsets, size: int, weight: float, total: Rows) -> None:
        """Add contributions of norm ``weight``, before whitening, to their blocks."""
        from tacitly.methods.fedrep.kernels import basis_steps

        public = self._kernel_arguments(X.dtype)
        basis_steps(read_only(X), read_only(y), offsets, size, *public, self.scale, weight, self.centered, total)

    def _kernel_arguments(self, dtype: np.dtype[np.floating]) -> tuple[Rows, Rows, Rows, Array, Array]:
        """Return the public fields in the kernel's layout; cached, because they are the same for every block."""
        from tacitly.simd.registers import padded

        cache: dict[np.dtype[np.floating], tuple[Rows, Rows, Rows, Array, Array]]
        cache = self.__dict__.setdefault("_arguments_by_dtype", {})
        if dtype not in cache:
            whitening = self.whitening
            cache[dtype] = (
                padded(whitening.to_raw(self.basis).T, dtype),
                padded(whitening.scale[None], np.float64)[0],
                padded((whitening.scale[:, None] * whitening.directions).T, np.float64),
                (1.0 + whitening.gains) ** 2 - 1.0,
                np.ascontiguousarray(self.head_metric),
            )
        return cache[dtype]


@dataclass(frozen=True)
class LossStep(StepQuery, ArrayQuery):
    """One user's correction of the basis and its head, for targets as ``loss.encode`` gives them."""

    loss: Loss
    intercept: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.loss.name == "squared":
            raise ValueError("loss must not be 'squared' in a LossStep. Use BasisStep.")

    def contribution(self, X: Rows, y: Rows) -> Array:
        """Return the unit vector (GVᵀ/c, VVᵀ)/ν; zero if there is no head or a number is not finite."""
        rows, targets = X.astype(np.float64), y.astype(np.float64)
        centered = rows - rows.mean(axis=0) * self.intercept
        one, directions = np.array([0, len(X)]), self.whitening.to_raw(self.basis)
        (head,), (level,), slope, curvature = round_fits(rows, targets, one, directions, self.loss, self.intercept)
        energy = np.square(centered * self.whitening.scale).mean()
        if not (np.isfinite(level) and np.isfinite(targets).all() and np.square(head).sum() * level > LEAST_HEAD**2):
            return np.zeros(self.coordinates)
        free = max(1, self.loss.columns - 1)
        mean_curvature = max(float(curvature.sum()) / (free * len(rows)), LEAST_CURVATURE)
        correction = self.whitening.transform_one_user(slope.T @ centered / (len(rows) * energy * mean_curvature))
        correction -= correction @ self.basis @ self.basis.T
        measured = self.head_metric @ head
        joint = np.concatenate([(measured @ correction / self.scale).T.ravel(), pack_symmetric(measured @ measured.T)])
        norm = np.linalg.norm(joint)
        return joint / norm if np.isfinite(norm) and norm**2 > LEAST else np.zeros(self.coordinates)

    def contributions(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        """Return (GVᵀ/c, VVᵀ)/ν, one row per user."""
        targets, counts = y.astype(np.float64), np.diff(offsets)
        directions = self.whitening.to_raw(self.basis)
        heads, levels, slopes, curvatures = round_fits(X, targets, offsets, directions, self.loss, self.intercept)
        rows = centred(X, offsets) if self.intercept else X.astype(np.float64)
        present, free = np.maximum(counts, 1), max(1, self.loss.columns - 1)
        energy = per_user(np.square(rows * self.whitening.scale), offsets).sum(axis=1) / (present * rows.shape[1])
        mean_curvature = per_user(curvatures, offsets).sum(axis=1) / (free * present)
        size = present * energy * np.maximum(mean_curvature, LEAST_CURVATURE)
        usable = (per_user((~np.isfinite(targets)).astype(np.float64), offsets) == 0) & np.isfinite(size) & (size > 0)
        usable &= np.isfinite(levels) & (np.square(heads).sum(axis=(1, 2)) * levels > LEAST_HEAD**2)
        raw = np.stack([per_user(rows * column[:, None], offsets) for column in slopes.T], axis=1)
        scaled = self.whitening.scale * np.where(usable[:, None, None], raw, 0.0)
        scaled /= np.where(usable, size, 1.0)[:, None, None]
        corrections = scaled + scaled @ self.whitening.turn
        corrections -= corrections @ self.basis @ self.basis.T
        measured = self.head_metric @ np.where(usable[:, None, None], heads, 0.0)
        steps = np.einsum("nkc,ncd->ndk", measured, corrections) / self.scale
        moments = pack_symmetric(measured @ measured.transpose(0, 2, 1))
        joint = np.hstack([steps.reshape(len(steps), -1), moments])
        return unit_rows(joint, norms_of(joint))

    def block_sums(self, X: Rows, y: Rows, offsets: Offsets, bound: float, size: int) -> Array:
        """Return the sums of several blocks in one fused pass; d×k buffers are per thread, not per user."""
        d, k = self.basis.shape
        blocks = max(1, -(-(len(offsets) - 1) // size))
        step, second = np.zeros((blocks, k, d)), np.zeros((blocks, k, k))
        self._add(X, y, offsets, size, clip_factor(1.0, bound), step, second)
        moments = [pack_symmetric(block) for block in second]
        return np.hstack([step.transpose(0, 2, 1).reshape(blocks, -1), moments])

    def _add(self, X: Rows, y: Rows, offsets: Offsets, size: int, weight: float, step: Array, second: Array) -> None:
        rows, targets, directions = (
            read_only(X),
            read_only(y),
            np.ascontiguousarray(self.whitening.to_raw(self.basis).T),
        )
        basis, across = np.ascontiguousarray(self.basis.T), np.ascontiguousarray(self.whitening.directions.T)
        add_loss_steps(
            *(rows, targets, offsets, size, directions, basis, self.whitening.scale, across, self.whitening.gains),
            *(np.ascontiguousarray(self.head_metric), self.scale, self.loss.code, self.loss.columns),
            *(self.intercept, weight, step, second),
        )
