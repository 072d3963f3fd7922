"""Private FedRep: alternate between personal heads, fitted at home, and one noisy step of the shared basis.

Paper 003, Algorithm 1 (Snedeker, Zhou and Bassily), carried further. In a round every user fits a head v to the
current basis U by least squares and sees what is left: the residual e = y − XUv and the correction g = Xᵀe/(m − k) it
asks for, an estimate of the part of the user's weights that U misses (in whitened coordinates; it is orthogonal to U by
the normal equations). The best change A of the basis makes Av ≈ g for everybody: A = (Σ s·gvᵀ)(Σ s·vvᵀ)⁻¹ for any
weights s. The round releases both sums as *one* vector of norm one a user,

    (g vᵀ / c,  v vᵀ) / ν,    ν = ‖v‖² √(1 + ρ²),   ρ = ‖g‖ / (c ‖v‖),

so that

* there is no clip to choose: the weight s = 1/ν is the clip, and weights do not bias the step;
* the noise shrinks with the correction: c follows ‖g‖/‖v‖, and follows it for free, because the released trace
  of the second part, Σ 1/√(1 + ρ²), tells how large ρ is;
* the second part preconditions the step, so that its length is 1 whatever the spread of heads, features or targets.

Release :class:`BasisStep`: sensitivity 1 (zero-out), 2 (replace-one). One Gaussian event a round. What the server does
with it (shrinking by the known noise level, watching for overshoot) is post-processing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from tacitly.arrays import Array, Offsets, Rows, check_shape, read_only
from tacitly.federation.base import Federation, Query
from tacitly.heads.losses import Loss
from tacitly.linalg import inverse_root, orthonormal, pack_symmetric, unpack_symmetric
from tacitly.methods.fedrep.loss_step import LossStep
from tacitly.methods.shared.direction_votes import first_basis
from tacitly.methods.shared.whitening import Whitening
from tacitly.privacy.calibration import Phase, Plan
from tacitly.privacy.clipping import clip_factor
from tacitly.privacy.guarantee import Budget, GaussianEvent
from tacitly.simd.small_solves import TINY_RIDGE

TARGET = 3.0  # the ρ to aim at: 95 % of a user's unit norm speaks of the basis, 32 % of the head


@dataclass(frozen=True)
class BasisStep(Query):
    """What one user asks the basis to change, and for how much of the user it speaks."""

    basis: Array  # whitened coordinates, orthonormal
    head_metric: Array  # k×k, symmetric: heads are measured as v·head_metric
    scale: float  # c
    whitening: Whitening
    centered: bool = False

    def __post_init__(self) -> None:
        check_shape("basis", self.basis, self.whitening.scale.size, None)
        check_shape("head_metric", self.head_metric, self.basis.shape[1], self.basis.shape[1])

    @property
    def coordinates(self) -> int:
        """Entries of a d×k matrix and of a symmetric k×k one."""
        d, k = self.basis.shape
        return int(d * k + k * (k + 1) // 2)

    def contribution(self, X: Rows, y: Rows) -> Array:
        """Return the unit vector (gvᵀ/c, vvᵀ)/ν, or zero from a user with no more rows than unknowns."""
        k = self.basis.shape[1]
        free = len(X) - k - int(self.centered)
        if free <= 0:
            return np.zeros(self.coordinates)
        rows, targets = X.astype(np.float64), y.astype(np.float64)
        if self.centered:
            rows, targets = rows - rows.mean(axis=0), targets - targets.mean()
        energy = np.square(rows[::4] * self.whitening.scale).mean()
        rows = self.whitening.transform_own(rows)
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

    def block_sum(self, X: Rows, y: Rows, offsets: Offsets, bound: float) -> Array:
        """One fused pass: each user's rows are read once and the d×k contribution is never formed."""
        total: Array = self.block_sums(X, y, offsets, bound, max(1, len(offsets) - 1))[0]
        return total

    def block_sums(self, X: Rows, y: Rows, offsets: Offsets, bound: float, size: int) -> Array:
        """Return the sums of several blocks of ``size`` users, a row a block: one call, one stretch without Python."""
        d, k = self.basis.shape
        X, y = np.ascontiguousarray(X), np.ascontiguousarray(y)
        blocks = max(1, -(-(len(offsets) - 1) // size))
        total = self._room_for(blocks, X.dtype)
        self._add_blocks(X, y, offsets, size, clip_factor(1.0, bound), total)
        step = self.whitening.transform(total[:, :k, :d].reshape(blocks * k, d)).reshape(blocks, k, d)
        width = d + -d % 16
        moments = [pack_symmetric(block[:k, width : width + k]) for block in total]
        return np.hstack([step.transpose(0, 2, 1).reshape(blocks, -1), moments])

    def _room_for(self, blocks: int, dtype: np.dtype[np.floating]) -> Rows:
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
        """Return the public fields as the kernel wants them: the same for every block, so made once."""
        from tacitly.simd.registers import padded

        made: dict[np.dtype[np.floating], tuple[Rows, Rows, Rows, Array, Array]]
        made = self.__dict__.setdefault("_made_for", {})
        if dtype not in made:
            whitening = self.whitening
            made[dtype] = (
                padded(whitening.to_raw(self.basis).T, dtype),
                padded(whitening.scale[None], np.float64)[0],
                padded((whitening.scale[:, None] * whitening.directions).T, np.float64),
                (1.0 + whitening.gains) ** 2 - 1.0,
                np.ascontiguousarray(self.head_metric),
            )
        return made[dtype]

    def split(self, released: Array) -> tuple[Array, Array]:
        """Return the released vector as its two matrices: the step (times 1/c) and the heads' second moment."""
        d, k = self.basis.shape
        return released[: d * k].reshape(d, k), unpack_symmetric(released[d * k :], k)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How the budget is divided; the defaults come from synthetic data and need no tuning."""

    rounds: int = 16
    whitening_share: float = 0.1
    start_share: float = 0.25
    # Over the last part of the rounds steps shorten, so that the result averages what the rounds say.
    averaging: float = 0.2

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise ValueError(f"rounds must be at least 1. Found {self.rounds!r}.")
        for name in ("whitening_share", "start_share"):
            if not 0 < getattr(self, name) < 1:
                raise ValueError(f"{name} must lie strictly between 0 and 1. Found {getattr(self, name)!r}.")
        if self.whitening_share + self.start_share >= 1:
            raise ValueError("whitening_share and start_share must leave something for the rounds.")

    def plan(self, budget: Budget) -> Plan:
        """Divide a budget accordingly."""
        return Plan(
            budget,
            [
                Phase(name="whitening", share=self.whitening_share),
                Phase(name="start", share=self.start_share),
                Phase(
                    name="rounds",
                    share=1.0 - self.whitening_share - self.start_share,
                    releases=self.rounds,
                ),
            ],
        )

    def events(self, plan: Plan) -> list[GaussianEvent]:
        """Every release the algorithm will make."""
        acute = [plan.event(name, clip=1.0, acute=True) for name in ("whitening", "start")]
        return acute + [plan.event("rounds", clip=1.0)] * self.rounds


def learn(
    federation: Federation,
    plan: Plan,
    settings: Settings,
    rank: int,
    *,
    centered: bool = False,
    loss: Loss | None = None,
    step: Callable[..., BasisStep] = BasisStep,
    seen: Callable[[Array], None] | None = None,
) -> Array:
    """Learn a shared basis of ``rank`` columns; return it orthonormal, in raw feature coordinates.

    With a ``loss`` targets are as its ``encode`` gives them; without, they are numbers and the loss is squared.
    ``step`` makes a round's query then: a relative of :class:`BasisStep` may leave more of a user's model at home.
    ``seen`` is called with the basis after every round: all of them are public.
    """
    whitening, basis, strengths = first_basis(federation, plan, rank, centered=centered, loss=loss)
    state = Descent(basis, np.diag(strengths))
    event = plan.event("rounds", clip=1.0)
    for number in range(settings.rounds):
        public = (state.basis, state.head_metric, state.scale, whitening)
        query = step(*public, centered) if loss is None else LossStep(*public, loss, centered)
        released = federation.release(query, event, f"basis step {number + 1}")
        late = max(0.0, number - (1.0 - settings.averaging) * settings.rounds)
        sigma = federation.sum_sigma(event)
        state.advance(*query.split(released), sigma, federation.n_users, damping=1.0 / (1.0 + late / 2.0))
        if seen is not None:
            seen(orthonormal(whitening.to_raw(state.basis))[0])
    return orthonormal(whitening.to_raw(state.basis))[0]


@dataclass
class Pace:
    """How long steps are: shortened when one turns back on the last, lengthened when it goes on."""

    length: float = 1.0
    _previous: Array | None = None

    def watch(self, change: Array, signal: float) -> None:
        """See the next step; only if more of it than noise is seen."""
        previous, self._previous = self._previous, change
        if previous is None or signal < 0.4:
            return
        size = float(np.sum(previous**2))
        turn = float(np.sum(change * previous)) / size if size > 0 else 0.0
        if turn < -0.15:
            self.length *= max(0.4, 1.0 / (1.0 - 1.5 * turn))
        elif turn > 0.3:
            self.length = min(1.2 * self.length, 1.6)

    def turn(self, rotation: Array) -> None:
        """Write the last step in the new basis's coordinates: basis + step = new basis @ ``rotation``."""
        if self._previous is not None:
            self._previous = self._previous @ np.linalg.inv(rotation)


def within_reach(change: Array) -> Array:
    """Shorten a change of an orthonormal basis so that no direction turns by more than 45°.

    What a user asks for is right to first order only. Where features are far from white it can be many times too long,
    and a basis that leaps that far never settles, nor does it look as if it turned back.
    """
    left, sizes, right = np.linalg.svd(change, full_matrices=False)
    return np.asarray((left * np.minimum(sizes, 1.0)) @ right)


@dataclass
class Descent:
    """The server's half of the loop: public state, moved by public releases only."""

    basis: Array
    head_moment: Array
    scale: float = 1.0 / TARGET
    pace: Pace = field(default_factory=Pace)
    head_metric: Array = field(init=False)

    def __post_init__(self) -> None:
        k = self.basis.shape[1]
        self.head_moment = self.head_moment * (k / np.trace(self.head_moment))
        self.head_metric = inverse_root(self.head_moment)

    def advance(self, step: Array, second: Array, sigma: float, n_users: float, *, damping: float) -> None:
        """Move the basis by one release: ``step`` is Σ s·gvᵀ/c and ``second`` is Σ s·vvᵀ, both with noise σ."""
        k = self.basis.shape[1]
        step = step - self.basis @ (self.basis.T @ step)
        step, signal = shrink(step, sigma, k)

        values, vectors = np.linalg.eigh(second)
        values = np.maximum(values, max(sigma * math.sqrt(2.0 * k), np.finfo(float).tiny))
        change = self.scale * step @ ((vectors / values) @ vectors.T) @ self.head_metric
        self.pace.watch(change, signal)

        basis, rotation = orthonormal(self.basis + within_reach(damping * self.pace.length * change))
        self.pace.turn(rotation)
        seen = (vectors * values) @ vectors.T
        root = np.linalg.inv(self.head_metric)
        moment = rotation @ root @ seen @ root @ rotation.T
        moment *= k / np.trace(moment)
        metric = inverse_root(moment)
        # c is measured in units of the metric, so it changes with it.
        units = math.sqrt(np.trace(self.head_metric @ moment @ self.head_metric) / np.trace(metric @ moment @ metric))
        self.scale *= follow(float(np.trace(second)) / n_users) * units
        self.basis, self.head_moment, self.head_metric = basis, moment, metric


def shrink(step: Array, sigma: float, removed: int) -> tuple[Array, float]:
    """Scale a noisy d×k matrix (``removed`` directions are) by the share of it that is not noise; return that too."""
    d, k = step.shape
    size = float(np.sum(step**2))
    share = max(0.0, 1.0 - sigma**2 * (d - removed) * k / size) if size > 0 else 0.0
    return share * step, share


def follow(mean: float) -> float:
    """By what to change the scale c: ``mean`` is what 1/√(1 + ρ²) was on average, and ρ should be the target."""
    mean = min(max(mean, 0.02), 0.995)
    return min(max(math.sqrt(1.0 / mean**2 - 1.0) / TARGET, 0.2), 3.0)
