"""AMHT-LRS with privacy as printed (Pal et al. 2024, Algorithm 5, equations 8 and 9), for comparison.

Users choose their coordinates by the printed thresholds (:mod:`tacitly.methods.low_rank_sparse.thresholds`). Rows,
targets, xᵀb and w are clipped one by one at public A₁, A₂, A₃ and A_w. A user contributes m rows (further rows are
dropped, missing ones count as zero), so

    ‖A_i‖ ≤ Γ₁ = m A₁² A_w²    and    ‖V_i‖ ≤ Γ₂ = m A₁ (A₂ + A₃) A_w,

and both sums are released in every iteration with noise in proportion to Γ₁ and Γ₂. With public bounds and a public m
this is sound. (The paper's experiments compute thresholds from the data, do not pay for the start and have users with
different m; this is not sound and not reproduced.) Noise comes from exact accounting instead of the printed constant,
which is a quarter larger than necessary. The printed scalar clipping maps −x to +ρ; |x| is meant.

Releases, unit the user, one Gaussian event each. A contribution depends on one user's rows and public fields.
:class:`ClippedGram`: sensitivity Γ₁ (zero-out), √2·Γ₁ (replace-one: positive semi-definite, so ⟨P, Q⟩ ≥ 0).
:class:`ClippedRight`: sensitivity Γ₂ (zero-out), 2·Γ₂ (replace-one: contributions can point against each other).
:class:`TargetMoment` (the start): norm one; sensitivity 1 (zero-out), √2 (replace-one: positive semi-definite).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tacitly.arrays import Array, Offsets, Rows
from tacitly.federation.base import Federation, Query
from tacitly.linalg import orthonormal, unpack_symmetric
from tacitly.methods.low_rank_sparse.thresholds import Thresholds, check_rounds, follow
from tacitly.methods.shared.whitening import FeatureMoment
from tacitly.privacy.calibration import Phase, Plan
from tacitly.privacy.clipping import clip
from tacitly.privacy.guarantee import Budget, GaussianEvent, positive


@dataclass(frozen=True, kw_only=True)
class Clips:
    """The public bounds A₁ (rows), A₂ (targets), A₃ (xᵀb), A_w (weights), and m (rows per user)."""

    rows: float
    targets: float
    sparse_part: float
    weights: float
    count: int

    def __post_init__(self) -> None:
        positive(
            rows=self.rows, targets=self.targets, sparse_part=self.sparse_part, weights=self.weights, count=self.count
        )
        positive(gram_bound=self.gram, right_bound=self.right)

    @property
    def gram(self) -> float:
        """Γ₁."""
        return self.count * self.rows**2 * self.weights**2

    @property
    def right(self) -> float:
        """Γ₂."""
        return self.count * self.rows * (self.targets + self.sparse_part) * self.weights


@dataclass(frozen=True)
class _Clipped(Query):
    bases: Array  # bases of all rounds so far, one d×r matrix each: a user's state follows from them
    most: int
    clips: Clips
    thresholds: Thresholds
    shared_weight: bool = False

    def __post_init__(self) -> None:
        check_rounds(self.bases, self.most, self.thresholds, shared_weight=self.shared_weight)

    def _parts(self, X: Rows, y: Rows) -> tuple[Array, Array, Array]:
        """Return one user's clipped rows, clipped targets minus the clipped sparse part, and clipped weights."""
        rows, targets = X.astype(np.float64), y.astype(np.float64)
        weights, b = follow(rows, targets, self.bases, self.most, self.thresholds, shared_weight=self.shared_weight)
        rows, targets = rows[: self.clips.count], targets[: self.clips.count]
        sparse_part = rows @ b
        sizes = np.linalg.norm(rows, axis=1, keepdims=True)
        # If a size overflows, the contribution is not finite, and the final clipping turns it into zero.
        kept = rows * np.minimum(1.0, self.clips.rows / np.maximum(sizes, np.finfo(float).tiny))
        left = np.clip(targets, -self.clips.targets, self.clips.targets)
        left = left - np.clip(sparse_part, -self.clips.sparse_part, self.clips.sparse_part)
        return kept, left, clip(weights, self.clips.weights)


@dataclass(frozen=True)
class ClippedGram(_Clipped):
    """One user's wwᵀ ⊗ XᵀX (equation 8)."""

    acute: ClassVar[bool] = True

    @property
    def coordinates(self) -> int:
        """Entries of a dr×dr matrix."""
        return int(self.bases[0].size ** 2)

    def contribution(self, X: Rows, y: Rows) -> Array:
        """Return the matrix, row by row."""
        rows, _, weights = self._parts(X, y)
        return np.asarray(np.kron(np.outer(weights, weights), rows.T @ rows).ravel(), dtype=np.float64)


@dataclass(frozen=True)
class ClippedRight(_Clipped):
    """One user's Xᵀ(y − Xb) wᵀ (equation 9)."""

    @property
    def coordinates(self) -> int:
        """Entries of a d×r matrix."""
        return int(self.bases[0].size)

    def contribution(self, X: Rows, y: Rows) -> Array:
        """Return the matrix, column by column."""
        rows, left, weights = self._parts(X, y)
        return np.outer(weights, rows.T @ left).ravel()


@dataclass(frozen=True)
class TargetMoment(FeatureMoment):
    """One user's Σ y²xxᵀ (appendix F), scaled to norm one; the paper's sum is unbounded."""

    def contribution(self, X: Rows, y: Rows) -> Array:
        """Return S/‖S‖ for S = Xᵀdiag(y²)X, packed."""
        return super().contribution(X.astype(np.float64) * y[:, None], y)

    def block_sum(self, X: Rows, y: Rows, offsets: Offsets, bound: float) -> Array:
        """Weight the rows, then sum as for the features' moment."""
        return super().block_sum(X.astype(np.float64) * y[:, None], y, offsets, bound)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Iterations, clipping bounds, and the start of U: random (public), or method of moments (a private release)."""

    clips: Clips
    thresholds: Thresholds
    rounds: int = 15
    start: str = "random"
    start_share: float = 0.1

    def plan(self, budget: Budget) -> Plan:
        """Divide a budget: the noise of both sums is the same multiple of their bounds, as in Theorem 2."""
        first = [Phase(name="start", share=self.start_share)] if self.start == "moments" else []
        rest = (1.0 - math.fsum(phase.share for phase in first)) / 2
        both = [Phase(name=name, share=rest, releases=self.rounds) for name in ("gram", "right")]
        return Plan(budget, [*first, *both])

    def events(self, plan: Plan) -> list[GaussianEvent]:
        """List every release the algorithm will make, in order."""
        pair = [plan.event("gram", clip=self.clips.gram, acute=True), plan.event("right", clip=self.clips.right)]
        start = [plan.event("start", clip=1.0, acute=True)] if self.start == "moments" else []
        return start + pair * self.rounds


def learn(
    federation: Federation,
    plan: Plan,
    settings: Settings,
    rank: int,
    most: int,
    *,
    shared_weight: bool,
    random_state: int,
) -> Array:
    """Run Algorithm 5; with a shared weight Algorithm 3 with noise (no QR, from zero)."""
    d = federation.n_features
    basis = np.zeros((d, 1)) if shared_weight else _start(federation, plan, settings, rank, random_state)
    gram, right = settings.events(plan)[-2:]
    bases = []
    for number in range(settings.rounds):
        bases.append(basis)
        public = (np.array(bases), most, settings.clips, settings.thresholds, shared_weight)
        matrix = federation.release(ClippedGram(*public), gram, f"gram {number + 1}").reshape(d * rank, d * rank)
        side = federation.release(ClippedRight(*public), right, f"right-hand side {number + 1}")
        basis = np.asarray(np.linalg.lstsq(matrix, side)[0].reshape(rank, d).T, dtype=np.float64)
        if not shared_weight:
            basis = orthonormal(basis)[0]
    return basis


def _start(federation: Federation, plan: Plan, settings: Settings, rank: int, random_state: int) -> Array:
    d = federation.n_features
    if settings.start == "random":
        return orthonormal(np.random.default_rng(random_state).standard_normal((d, rank)))[0]
    event = plan.event("start", clip=1.0, acute=True)
    moment = unpack_symmetric(federation.release(TargetMoment(d), event, "target moment"), d)
    return np.ascontiguousarray(np.linalg.eigh(moment)[1][:, ::-1][:, :rank])
