"""Low rank plus sparse (AMHT-LRS): everybody's model is U wᵢ + bᵢ, a shared basis and a few coordinates of one's own.

Paper 004 alternates: users fit bᵢ by hard thresholding and wᵢ by least squares, the server solves the normal equations
in U. The server's half here, three routes to U (queries: :mod:`tacitly.methods.low_rank_sparse.queries`):

* ``gradient`` (Remark 1's O(mtdr) update): the loop of Private FedRep with every user's quirks taken out first. What is
  sent shrinks as U improves, and so does its noise; the matrix of the equations is replaced by the r×r moment of the
  weights, so d·r + r² numbers carry noise instead of (dr)².
* ``equations``: the exact normal equations of the *change* of U, both sides under one clip.
* the central model (Algorithm 3, rank 1, all weights one): a loop of its own from zero, without a start to buy; the
  features' second moment is bought once, for it is the same in every round.

Everything is one budget: coordinates (whitening), start, scales and rounds are phases of one plan.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from tacitly.arrays import Array
from tacitly.federation.base import Federation
from tacitly.linalg import orthonormal
from tacitly.methods.altmin.algorithm import solve_equations
from tacitly.methods.fedrep import algorithm as fedrep
from tacitly.methods.low_rank_sparse.heads import Sparsity
from tacitly.methods.low_rank_sparse.queries import SparseEquations, SparseStep
from tacitly.methods.shared.direction_votes import first_basis
from tacitly.methods.shared.norm_histogram import private_clip
from tacitly.methods.shared.whitening import FeatureMoment, Whitening
from tacitly.privacy.calibration import Phase, Plan
from tacitly.privacy.guarantee import Budget, GaussianEvent

# Rounds of so many users take supports as they grew, without revising them: what wrong coordinates do to the basis is
# another thing for every user and averages out, and a round takes a third less time. (On synthetic data with 12,000 to
# 20,000 users the basis came out as close either way; with 75 it did not.)
_MANY = 10_000


def swaps_for(n_users: int) -> int:
    """How often users revise their supports in a round.

    >>> swaps_for(100), swaps_for(100_000)
    (2, 0)
    """
    return 2 if n_users < _MANY else 0


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Which route, and how the budget is divided: shares as for Private FedRep, and as for AltMin for the scales."""

    route: str = "gradient"
    rounds: int = 16
    whitening_share: float = 0.1
    start_share: float = 0.25
    scale_share: float = 0.05
    averaging: float = 0.2

    def __post_init__(self) -> None:
        if self.route not in ("gradient", "equations", "central"):
            raise ValueError(f"route must be 'gradient' or 'equations'. Found {self.route!r}.")
        if self.rounds < 1:
            raise ValueError(f"rounds must be at least 1. Found {self.rounds!r}.")

    @property
    def phases(self) -> Sequence[Phase]:
        """What is bought, in order."""
        bought = {
            "gradient": [("whitening", self.whitening_share, 1), ("start", self.start_share, 1)],
            "equations": [
                ("whitening", self.whitening_share, 1),
                ("start", self.start_share, 1),
                ("scales", self.scale_share, self.rounds + 1),
            ],
            "central": [("whitening", self.whitening_share, 1), ("scales", self.scale_share, 1)],
        }[self.route]
        first = [Phase(name=name, share=share, releases=count) for name, share, count in bought]
        rest = 1.0 - math.fsum(phase.share for phase in first)
        return [*first, Phase(name="rounds", share=rest, releases=self.rounds)]

    def plan(self, budget: Budget) -> Plan:
        """Divide a budget accordingly."""
        return Plan(budget, self.phases)

    def events(self, plan: Plan) -> list[GaussianEvent]:
        """Every release the algorithm will make."""
        return [
            plan.event(phase.name, clip=1.0, acute=phase.name != "rounds")
            for phase in self.phases
            for _ in range(phase.releases)
        ]


def learn(
    federation: Federation, plan: Plan, settings: Settings, rank: int, sparsity: Sparsity, *, centered: bool = False
) -> Array:
    """Learn the shared basis, or the central model where the route is that; in raw feature coordinates."""
    if settings.route == "central":
        return _learn_central(federation, plan, settings, sparsity, centered)
    if settings.route == "equations":
        return _learn_by_equations(federation, plan, settings, rank, sparsity, centered)
    step = partial(SparseStep, sparsity=sparsity, swaps=swaps_for(federation.n_users))
    like = fedrep.Settings(rounds=settings.rounds, averaging=settings.averaging)
    return fedrep.learn(federation, plan, like, rank, centered=centered, step=step)


def _learn_by_equations(
    federation: Federation, plan: Plan, settings: Settings, rank: int, sparsity: Sparsity, centered: bool
) -> Array:
    whitening, basis, _ = first_basis(federation, plan, rank, centered=centered)
    scales, event = plan.event("scales", clip=1.0, acute=True), plan.event("rounds", clip=1.0)
    d = federation.n_features
    gram = 0.0
    for number in range(settings.rounds):
        query = partial(
            SparseEquations, basis, whitening, sparsity, centered=centered, swaps=swaps_for(federation.n_users)
        )
        if number == 0:
            gram = private_clip(federation, query(parts="gram"), scales, "gram norms")
        right = private_clip(federation, query(parts="right"), scales, f"right-hand norms {number + 1}")
        # √2 on both scales: at the median of each, the joint norm is one.
        asked = query(gram_scale=math.sqrt(2.0) * gram, right_scale=math.sqrt(2.0) * right)
        released = federation.release(asked, event, f"normal equations {number + 1}")
        matrix, pull = asked.split(released)
        # The second symmetry halves off-diagonal blocks.
        noise = federation.sum_sigma(event) * asked.gram_scale / math.sqrt(2.0)
        change = solve_equations(matrix, pull, noise, rank).reshape(rank, d).T
        basis = orthonormal(basis + change)[0]
    return orthonormal(whitening.to_raw(basis))[0]


def _learn_central(federation: Federation, plan: Plan, settings: Settings, sparsity: Sparsity, centered: bool) -> Array:
    d = federation.n_features
    event = plan.event("whitening", clip=1.0, acute=True)
    moment = federation.release(FeatureMoment(d, centered), event, "feature moment")
    whitening = Whitening.from_moment(moment, federation.sum_sigma(event), d)
    state = Central(np.zeros((d, 1)), swaps=swaps_for(federation.n_users))
    event = plan.event("scales", clip=1.0, acute=True)
    typical = private_clip(federation, state.query(whitening, sparsity, centered), event, "correction norms")
    state.scale = typical / fedrep.TARGET
    event = plan.event("rounds", clip=1.0)
    for number in range(settings.rounds):
        query = state.query(whitening, sparsity, centered)
        released = federation.release(query, event, f"central step {number + 1}")
        late = max(0.0, number - (1.0 - settings.averaging) * settings.rounds)
        sigma = federation.sum_sigma(event)
        state.advance(*query.split(released), sigma, federation.n_users, damping=1.0 / (1.0 + late / 2.0))
    return whitening.to_raw(state.model)


@dataclass
class Central:
    """The server's half for one central model: public state, moved by public releases only."""

    model: Array  # whitened coordinates, d×1
    scale: float = 1.0
    swaps: int = 2
    pace: fedrep.Pace = field(default_factory=fedrep.Pace)

    def query(self, whitening: Whitening, sparsity: Sparsity, centered: bool) -> SparseStep:
        """Ask for a correction of the model."""
        public = (self.model, np.eye(1), self.scale, whitening, centered)
        return SparseStep(*public, sparsity=sparsity, shared_weight=True, swaps=self.swaps)

    def advance(self, step: Array, count: Array, sigma: float, n_users: int, *, damping: float) -> None:
        """Move the model by one release: ``step`` is Σ s·g/c and ``count`` is Σ s, both with noise σ."""
        step, signal = fedrep.shrink(step, sigma, 0)
        total = float(count[0, 0])
        change = self.scale * step / max(total, sigma * math.sqrt(2.0), np.finfo(float).tiny)
        self.pace.watch(change, signal)
        self.model = self.model + damping * self.pace.length * change
        self.scale *= fedrep.follow(total / n_users)
