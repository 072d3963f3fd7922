"""One model for all users: its noisy steps, and the population's direction in addition to a shared basis.

A user's correction of the model p is g = Xᵀ(y − Xp)/(m·q) in whitened coordinates (around the user's own means, if
users have intercepts), an estimate of how the user's weights differ from p. The noisy mean of g moves p. The energy q
is the mean square of the user's features, each on whitening's scale. On average it equals that of whitened features. As
in :class:`~tacitly.methods.fedrep.queries.BasisStep` it needs no whitened rows, each of which takes d² products.

Release :class:`CentralStep`. Unit: the user. A contribution is (g/c, 1)/√(1 + ‖g/c‖²), a function of one user's rows
and of public fields. It is divided by its own norm, so its norm is one or zero for any rows. So zero-out moves the sum
by at most 1, replace-one by at most 2 (corrections can point against each other). One Gaussian event per round. Weights
1/√(1 + ‖g/c‖²) make the result a robust mean. :class:`Correction` is not released; its norm is measured by
:class:`~tacitly.methods.shared.typical_norm.TypicalNorm`, to find the first c.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from tacitly.arrays import Array, Offsets, Rows, check_shape, read_only
from tacitly.federation.base import Federation
from tacitly.linalg import orthonormal
from tacitly.methods.shared.array_forms import centred
from tacitly.methods.shared.batch import BatchQuery, Contributions, norms_of, per_user
from tacitly.methods.shared.descent import TARGET_RATIO, StepLength, scale_change, shrink_by_noise
from tacitly.methods.shared.typical_norm import typical_norm
from tacitly.methods.shared.whitening import Whitening
from tacitly.privacy.calibration import Phase, Plan
from tacitly.privacy.clipping import clip_factor
from tacitly.privacy.guarantee import Budget

ROUNDS = 4
"""Steps of the population's direction: whitened coordinates need few steps, and more steps mean more noise in each."""

_NORM_SHARE = 0.1  # of the phase: two numbers
_SHARED = 0.3  # a direction that this share of all users have must exceed the noise
_SURE = 4.8  # standard deviations: by chance a direction exceeds them less than once in a million runs


@dataclass(frozen=True)
class Correction(BatchQuery):
    """Estimate of how a user's weights differ from the central model, by one step from it, in whitened coordinates."""

    model: Array  # p, whitened coordinates
    whitening: Whitening
    centered: bool = False

    def __post_init__(self) -> None:
        check_shape("model", self.model, self.whitening.scale.size)

    @property
    def coordinates(self) -> int:
        """One number per feature."""
        return len(self.model)

    def contributions(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        """Return one correction per user; zero for a user without enough rows."""
        rows, counts = np.multiply(X, self.whitening.scale, dtype=np.float64), np.diff(offsets)
        targets, present = np.asarray(y, dtype=np.float64), np.maximum(counts, 1.0)
        if self.centered:
            rows, targets = centred(rows, offsets), centred(targets, offsets)
        left = targets - (rows * self._turned).sum(axis=1)
        squares = per_user(np.square(rows), offsets)
        free = counts - int(self.centered)
        # Only columns in which the user varies count: the others carry no information and would make the step too long.
        varied = np.count_nonzero(squares > 1e-12 * squares.max(axis=1, keepdims=True, initial=0.0), axis=1)
        energy = squares.sum(axis=1) / (present * np.maximum(varied, 1))
        usable = (free > 0) & np.isfinite(energy) & (energy > 0)
        size = np.where(usable, free * energy, 1.0)
        pull = np.where(usable[:, None], per_user(rows * left[:, None], offsets) / size[:, None], 0.0)
        return self._turn(pull)

    @property
    def statistics(self) -> Contributions:
        """The contributions themselves, by a compiled form: for many users."""
        return Contributions(self)

    def fused(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        """Return one correction per user, compiled."""
        from tacitly.methods.shared.central_kernels import write_corrections
        from tacitly.simd.registers import aligned_zeros, padded

        d = len(self.model)
        check_shape("X", X, None, d)
        public = padded(np.stack([self.whitening.scale, self.whitening.scale * self._turned]), np.float64)
        pull = aligned_zeros(len(offsets) - 1, public.shape[1])
        rows, targets = read_only(np.ascontiguousarray(X)), read_only(np.ascontiguousarray(y))
        write_corrections(rows, targets, offsets, public, bool(self.centered), pull)
        return self._turn(np.asarray(pull[:, :d], dtype=np.float64))

    @property
    def _turned(self) -> Array:
        """The model as weights on scaled features."""
        return np.asarray(self.model + self.whitening.turn @ self.model)

    def _turn(self, pull: Array) -> Array:
        """Return vectors on scaled features, one per user, in whitened coordinates."""
        return np.asarray(pull + pull @ self.whitening.turn) if self.whitening.gains.size else pull


@dataclass(frozen=True)
class CentralStep(BatchQuery):
    """A user's correction of the central model and its weight, together of norm one."""

    correction: Correction
    scale: float  # c

    @property
    def coordinates(self) -> int:
        """One number per feature, and the weight."""
        return self.correction.coordinates + 1

    def contributions(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        """Return (g/c, 1)/ν, one row per user; zero if there is no correction."""
        return self._joint(self.correction.contributions(X, y, offsets))

    @property
    def statistics(self) -> Contributions:
        """The corrections, by a compiled form: for many users."""
        return Contributions(self.correction)

    def contributions_of(self, statistics: Array) -> Array:
        """Return the contributions of several users from their corrections."""
        return self._joint(statistics)

    def sums_of(self, statistics: Array, bound: float, size: int) -> Array:
        """Add up each block's contributions, which have norm one, from corrections."""
        blocks = (statistics[start : start + size] for start in range(0, len(statistics), size))
        return np.array([self._block_sum(block, clip_factor(1.0, bound)) for block in blocks])

    def _block_sum(self, corrections: Array, weight: float) -> Array:
        with np.errstate(all="ignore"):
            scaled = corrections / self.scale
            squared = np.einsum("ij,ij->i", scaled, scaled)
            usable = np.isfinite(squared) & (squared > 0)
            if not usable.all():
                scaled, squared = np.where(usable[:, None], scaled, 0.0), np.where(usable, squared, 1.0)
            weights = np.where(usable, weight / np.sqrt(1.0 + squared), 0.0)
            return np.append(weights @ scaled, weights.sum())

    def _joint(self, corrections: Array) -> Array:
        with np.errstate(all="ignore"):
            scaled = corrections / self.scale
            norms = norms_of(scaled)
            length = np.hypot(norms, 1.0)
            joint = np.hstack([scaled, np.ones((len(scaled), 1))]) / length[:, None]
            return np.where((np.isfinite(length) & (norms > 0))[:, None], joint, 0.0)


@dataclass
class CentralState:
    """The server's state for one central model: public, moved by public releases only."""

    model: Array  # whitened coordinates, d×1
    scale: float = 1.0
    step_length: StepLength = field(default_factory=StepLength)

    def advance(self, step: Array, second: Array, sigma: float, n_users: float, *, damping: float) -> None:
        """Move the model by one release: ``step`` is Σ s·g/c and ``second`` is Σ s, both with noise σ."""
        step, signal = shrink_by_noise(step, sigma, 0)
        total = float(second[0, 0])
        change = self.scale * step / max(total, sigma * math.sqrt(2.0), np.finfo(float).tiny)
        self.step_length.update(change, signal)
        self.model = self.model + damping * self.step_length.value * change
        self.scale *= scale_change(total / n_users)


def direction_phases(budget: Budget, n_users: int, freedom: int, share: float) -> list[Phase]:
    """Return the phases of :func:`population_direction`, which get ``share`` of the budget.

    None if the basis leaves no direction, or if there are so few users that a direction could exceed the noise only if
    nearly all of them shared it.
    """
    if freedom < 1:
        return []
    phases = [
        Phase(name="correction norm", share=_NORM_SHARE * share),
        Phase(name="central steps", share=(1.0 - _NORM_SHARE) * share, releases=ROUNDS),
    ]
    noise = Plan(budget, phases).event("central steps", clip=1.0).sigma
    return phases if noise * math.sqrt(freedom * _chance(freedom)) <= _SHARED * n_users else []


def population_direction(
    federation: Federation, plan: Plan, whitening: Whitening, basis: Array, *, centered: bool
) -> Array | None:
    """Return the direction of all users' common weights, orthogonal to a basis in whitened coordinates.

    None if the direction does not exceed the noise: then the releases show nothing beyond the basis. At the start the
    model is zero, so the energy of corrections without a common direction is known beforehand.
    """
    size, n = len(basis), plan.sampling_rate * federation.n_users
    state = CentralState(np.zeros((size, 1)))
    event = plan.event("correction norm", clip=1.0)
    first = Correction(state.model[:, 0], whitening, centered)
    state.scale = typical_norm(federation, first, event, "correction norm", reach=30.0).size / TARGET_RATIO
    event = plan.event("central steps", clip=1.0)
    sigma = federation.sum_sigma(event)
    inside, stands_out = orthonormal(basis)[0], False
    for number in range(ROUNDS):
        query = CentralStep(Correction(state.model[:, 0], whitening, centered), state.scale)
        released = federation.release(query, event, f"central step {number + 1}")
        step, total = released[:-1], float(released[-1])
        if number == 0:
            outside = step - inside @ (inside.T @ step)
            share = min(max(total / n, 0.0), 1.0)
            expected = n * (1.0 - share**2) + sigma**2 * (size - basis.shape[1])
            stands_out = float(outside @ outside) > expected * _chance(size - basis.shape[1])
        # From the second step on, every step gives a separate estimate; the model is their mean.
        damping = 1.0 / max(1, number)
        state.advance(step[:, None], np.array([[total]]), sigma, n, damping=damping)
    direction = state.model[:, 0] - inside @ (inside.T @ state.model[:, 0])
    length = float(np.linalg.norm(direction))
    return direction / length if stands_out and math.isfinite(length) and length > 0 else None


def _chance(freedom: int) -> float:
    """Return the largest factor by which a χ² variable exceeds its mean (Wilson and Hilferty's approximation).

    >>> round(_chance(10), 1), round(_chance(100), 1)
    (4.9, 1.8)
    """
    part = 2.0 / (9.0 * freedom)
    return (1.0 - part + _SURE * math.sqrt(part)) ** 3
