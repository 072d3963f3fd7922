"""AMHT-LRS, low rank plus sparse: every user's model is U wᵢ + bᵢ, a shared basis and a few personal coordinates.

AMHT-LRS (Pal et al. 2024) alternates: users fit bᵢ by hard thresholding and wᵢ by least squares, the server solves the
normal equations in U. This is the server's part, with three routes to U (queries:
:mod:`tacitly.methods.low_rank_sparse.queries`):

* ``gradient`` (Remark 1's O(mtdr) update): the loop of Private FedRep, with every user's sparse part subtracted first.
  Contributions decrease as U improves, and the noise decreases with them. The r×r second moment of the weights replaces
  the matrix of the equations, so d·r + r² numbers carry noise instead of (dr)².
* ``equations``: the exact normal equations of the *change* of U, both sides clipped together.
* ``central`` (Algorithm 3, rank 1, all weights one): a loop that starts from zero, so no start is released. The
  features' second moment is released once, because it is the same in every round.

One budget covers everything: whitening, start, scales and rounds are phases of one plan. The docstring of each query
states its sensitivity, and each release is one Gaussian event; the server's computations are post-processing.
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
from tacitly.methods.altmin.queries import REACH, SURE, solve_equations
from tacitly.methods.fedrep import algorithm as fedrep
from tacitly.methods.low_rank_sparse.heads import Sparsity
from tacitly.methods.low_rank_sparse.queries import SparseEquations, SparseStep
from tacitly.methods.shared.central import CentralState
from tacitly.methods.shared.descent import TARGET_RATIO, LearnedBasis, run_rounds, shrink_by_noise
from tacitly.methods.shared.direction_votes import first_basis
from tacitly.methods.shared.settings import RoundSettings
from tacitly.methods.shared.typical_norm import Typical, typical_norm
from tacitly.methods.shared.whitening import Whitening, measured_whitening
from tacitly.privacy.calibration import Phase, Plan

# With at least this many users, rounds keep supports as first selected, without revising them. The errors that wrong
# coordinates cause in the basis are independent between users and average out, and a round takes a third less time. (On
# synthetic data with 12,000 to 20,000 users the basis was as accurate either way; with 75 users it was not.)
_MANY_USERS = 10_000

# Standard deviations of the noise that a weight of the central model has to exceed; the second number is for columns
# whose variance does not exceed the noise, on which such weights are rare.
_CLEAR, _CLEARER = 3.0, 4.0
_REACH = 30.0  # octaves around one in which the norm of a correction is searched


def swaps_per_round(n_users: int) -> int:
    """Return how often users revise their supports in a round.

    >>> swaps_per_round(100), swaps_per_round(100_000)
    (2, 0)
    """
    return 2 if n_users < _MANY_USERS else 0


@dataclass(frozen=True, kw_only=True)
class Settings(RoundSettings):
    """The route, and how the budget is divided: shares as for Private FedRep; for the scales, as for AltMin."""

    route: str = "gradient"
    scale_share: float = 0.05
    averaging: float = 0.2

    def __post_init__(self) -> None:
        if self.route not in ("gradient", "equations", "central"):
            raise ValueError(f"route must be 'gradient' or 'equations'. Found {self.route!r}.")
        super().__post_init__()

    @property
    def preparation(self) -> Sequence[Phase]:
        """Phases before the rounds, in order."""
        whitening, start = super().preparation
        if self.route == "gradient":
            return [whitening, start]
        if self.route == "equations":
            scales = Phase(name="scales", share=self.scale_share, releases=self.rounds + 1, acute=False)
            return [whitening, start, scales]
        return [whitening, Phase(name="scales", share=self.scale_share, acute=False)]


def learn(
    federation: Federation,
    plan: Plan,
    settings: Settings,
    rank: int | str,
    sparsity: Sparsity,
    *,
    centered: bool = False,
) -> LearnedBasis:
    """Learn the shared basis (route ``central``: the central model)."""
    if settings.route == "central":
        return _learn_central(federation, plan, settings, sparsity, centered)
    if settings.route == "equations":
        return _learn_by_equations(federation, plan, settings, rank, sparsity, centered)
    step = partial(SparseStep, sparsity=sparsity, swaps=swaps_per_round(federation.n_users))
    like = fedrep.Settings(rounds=settings.rounds, averaging=settings.averaging)
    return fedrep.learn(federation, plan, like, rank, centered=centered, step=step)


def _learn_by_equations(
    federation: Federation, plan: Plan, settings: Settings, rank: int | str, sparsity: Sparsity, centered: bool
) -> LearnedBasis:
    whitening, basis, *_ = first_basis(federation, plan, rank, centered=centered)
    scales, event = plan.event("scales", clip=1.0), plan.event("rounds", clip=1.0)
    d, k = basis.shape
    gram = Typical(1.0, False)
    for number in range(settings.rounds):
        query = partial(
            SparseEquations, basis, whitening, sparsity, centered=centered, swaps=swaps_per_round(federation.n_users)
        )
        if number == 0:
            gram = typical_norm(federation, query(parts="gram"), scales, "gram norm", reach=REACH, sure=SURE)
        name = f"right-hand norm {number + 1}"
        right = typical_norm(federation, query(parts="right"), scales, name, reach=REACH, sure=SURE)
        # √2 on both scales: if both parts have typical size, the joint norm is one.
        joint = query(gram_scale=math.sqrt(2.0) * gram.size, right_scale=math.sqrt(2.0) * right.size)
        released = federation.release(joint, event, f"normal equations {number + 1}")
        if not (gram.found and right.found):
            continue  # noise that hides a scale also hides the equations: the basis stays unchanged
        matrix, right_side = joint.split(released)
        # Off-diagonal blocks are symmetric too, which halves their noise variance.
        noise = federation.sum_sigma(event) * joint.gram_scale / math.sqrt(2.0)
        change = solve_equations(matrix, right_side, noise, k).reshape(k, d).T
        basis = orthonormal(basis + change)[0]
    return LearnedBasis(whitening, basis)


def _learn_central(
    federation: Federation, plan: Plan, settings: Settings, sparsity: Sparsity, centered: bool
) -> LearnedBasis:
    whitening, sure = measured_whitening(federation, plan, centered=centered)
    state = Central(np.zeros((federation.n_features, 1)), swaps=swaps_per_round(federation.n_users), sure=sure)
    event = plan.event("scales", clip=1.0)
    first = state.query(whitening, sparsity, centered)
    typical = typical_norm(federation, first, event, "correction norm", reach=_REACH)
    # If the scale is far too small, the model stays at zero, which does no harm; if far too large, noise would fill it.
    state.scale = (typical.size if typical.found else 2.0**-_REACH) / TARGET_RATIO
    run_rounds(
        federation,
        plan.event("rounds", clip=1.0),
        state,
        lambda: state.query(whitening, sparsity, centered),
        rounds=settings.rounds,
        averaging=settings.averaging,
        name="central step",
    )
    return LearnedBasis(whitening, state.cleaned(whitening))


@dataclass
class Central(CentralState):
    """The server's state for one central model with sparse personal parts."""

    swaps: int = 2
    sure: Array = field(kw_only=True)  # lower limits of columns' variances, in whitened coordinates
    variances: Array = field(init=False)  # variances of the privacy noise in the model

    def __post_init__(self) -> None:
        self.variances = np.zeros(len(self.model))

    def query(self, whitening: Whitening, sparsity: Sparsity, centered: bool) -> SparseStep:
        """Return the query for a correction of the model."""
        public = (self.model, np.eye(1), self.scale, whitening, centered)
        return SparseStep(*public, sparsity=sparsity, shared_weight=True, swaps=self.swaps)

    def advance(self, step: Array, second: Array, sigma: float, n_users: float, *, damping: float) -> None:
        """Move the model and track its noise: a step adds noise, and corrects earlier noise where users vary."""
        weight = self.scale * sigma / max(float(second[0, 0]), sigma * math.sqrt(2.0), np.finfo(float).tiny)
        _, signal = shrink_by_noise(step, sigma, 0)
        super().advance(step, second, sigma, n_users, damping=damping)
        length = damping * self.step_length.value * signal  # length of the step that was just made
        self.variances = np.square(1.0 - min(length, 1.0) * self.sure) * self.variances + (length * weight) ** 2

    def cleaned(self, whitening: Whitening) -> Array:
        """Return the model without the weights that noise alone could have produced.

        If a column is constant within users, no user's rows correct its weight, so noise accumulates in it over all
        rounds and would affect the predictions of the few users in whom the column varies. Whitening by noisy
        correlations also moves weight from other columns to such a column, so only the column's own part counts there.
        """
        back, varies = whitening.from_raw(np.diag(whitening.scale)), self.sure > 0  # columns apart again
        clear = np.square(self.model[:, 0]) > _CLEAR**2 * self.variances
        own = np.square(back @ self.model[:, 0]) > _CLEARER**2 * (np.square(back) @ self.variances)
        clear = (self.sure == 1.0) | (clear & (varies | own))
        raw = whitening.to_raw(np.where(clear[:, None], self.model, 0.0))
        return whitening.from_raw(np.where((clear | varies)[:, None], raw, 0.0))
