"""Private FedRep: alternate between personal heads, fitted locally, and one noisy step of the shared basis.

An extension of Private FedRep (Snedeker et al. 2025), Algorithm 1. In a round every user fits a head v to the current
basis U and computes a correction g of the user's weights that U misses (:mod:`tacitly.methods.fedrep.queries`). The
best change A of the basis makes Av ≈ g for all users: A = (Σ s·gvᵀ)(Σ s·vvᵀ)⁻¹ for any weights s. The round releases
both sums as *one* vector to which every user contributes (g vᵀ/c, v vᵀ)/ν, of norm one. So

* there is no clipping bound to choose: the weight s = 1/ν bounds the norm, and weights do not bias the step;
* the noise shrinks with the correction: c follows ‖g‖/‖v‖ at no cost, because the released trace of the second part,
  Σ 1/√(1 + ρ²) with ρ = ‖g‖/(c‖v‖), shows how large ρ is;
* the second part preconditions the step, so that its length is 1 for any spread of heads, features or targets.

Releases: :class:`~tacitly.methods.shared.whitening.FeatureMoment`,
:class:`~tacitly.methods.shared.direction_votes.DirectionVote`, and per round one
:class:`~tacitly.methods.fedrep.queries.BasisStep` (or ``LossStep``): sensitivity 1 (zero-out), 2 (replace-one), one
Gaussian event. What the server does with them (:mod:`tacitly.methods.shared.descent`) is post-processing.

With ``sampling_rate`` q < 1, each user takes part in each release with probability q, drawn secretly and anew for every
release. A user's draw and rows are independent of those of all others. So a release is a Poisson-subsampled Gaussian
event of the same sensitivity, accounted by privacy loss distributions. Sums are divided by q·n, never by the number of
users who took part.

From a public basis (:meth:`~tacitly.methods.fedrep.estimator.PrivateFedRep.refresh`) there are no votes to release. The
basis was released before, so it is a public field of the first round's query, like the bases of later rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from tacitly.arrays import Array
from tacitly.federation.base import Federation
from tacitly.heads.losses import Loss
from tacitly.linalg import orthonormal
from tacitly.methods.fedrep.queries import BasisStep, LossStep
from tacitly.methods.shared.descent import FirstBasis, LearnedBasis, StepQuery, refine_basis
from tacitly.methods.shared.direction_votes import first_basis
from tacitly.methods.shared.settings import RoundSettings
from tacitly.methods.shared.whitening import private_whitening
from tacitly.privacy.calibration import Phase, Plan
from tacitly.privacy.guarantee import Budget


@dataclass(frozen=True, kw_only=True)
class Settings(RoundSettings):
    """How the budget is divided; the defaults were chosen on synthetic data and need no tuning.

    In the last share ``averaging`` of the rounds, steps become shorter, so that the result averages over them.
    """

    averaging: float = 0.2
    sampling_rate: float = 1.0
    continues: bool = False  # whether the rounds start from a basis that is public already

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.sampling_rate <= 1:
            raise ValueError(f"sampling_rate must lie in (0, 1]. Found {self.sampling_rate!r}.")

    @property
    def preparation(self) -> Sequence[Phase]:
        """Phases before the rounds: from a public basis, all but the start."""
        return [phase for phase in super().preparation if not (self.continues and phase.name == "start")]

    def plan(self, budget: Budget) -> Plan:
        """Divide a budget among the phases."""
        return Plan(budget, self.phases, sampling_rate=self.sampling_rate)


def learn(
    federation: Federation,
    plan: Plan,
    settings: Settings,
    rank: int | str,
    *,
    centered: bool = False,
    loss: Loss | None = None,
    step: Callable[..., BasisStep] = BasisStep,
    public: Array | None = None,
    on_round: Callable[[Array], None] | None = None,
) -> LearnedBasis:
    """Learn a shared basis of ``rank`` columns; with "auto", of as many columns as stand out in the released votes.

    With a ``loss``, targets are as its ``encode`` gives them. Without one they are numbers, the loss is squared, and
    ``step`` makes each round's query: a subclass of :class:`BasisStep` may keep more of a user's model personal.
    ``public`` is a basis on raw features to start from, instead of votes. ``on_round`` is called with the basis after
    every round; every such basis is public.
    """
    if public is None:
        start = first_basis(federation, plan, rank, centered=centered, loss=loss)
    else:
        whitening = private_whitening(federation, plan, centered=centered)
        k = public.shape[1]
        start = FirstBasis(whitening, orthonormal(whitening.from_raw(public))[0], np.ones(k), k)
    make_query: Callable[..., StepQuery] = partial(step, centered=centered)
    if loss is not None:
        make_query = partial(LossStep, loss=loss, intercept=centered)
    # Only for the plain squared loss is it known what a head is along a direction without information.
    drops = loss is None and step is BasisStep
    return refine_basis(
        *(federation, plan, start, make_query, settings.rounds, settings.averaging, on_round), drops=drops
    )
