"""Private alternating minimisation (Jain et al. 2021): exact normal equations of the basis instead of its gradient.

In a round every user fits a head v to the current basis U and contributes its part of the least-squares problem in U:
A = vvᵀ ⊗ XᵀX/m and b = Xᵀy vᵀ/m, solved as U ← A⁻¹b. Both are released as one vector (A/c_A, b/c_b) of norm at most
one, so a round is one event. (The script released with Private FedRep, Snedeker et al. 2025, adds m times too much
noise to b, and its ridge dominates A.)

Releases: :class:`~tacitly.methods.shared.whitening.FeatureMoment`,
:class:`~tacitly.methods.shared.direction_votes.DirectionVote`, two
:class:`~tacitly.methods.shared.typical_norm.TypicalNorm`, which are the scales c_A and c_b, and one
:class:`~tacitly.methods.altmin.queries.NormalEquations` per round: clip 1, sensitivity 1 (zero-out), 2 (replace-one).
If the noise hides a scale, the releases of the rounds are noise too, and the basis remains that of users' votes. The
statistic does not decrease as the basis improves, so its noise does not either. This is the difference to Private
FedRep.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tacitly.federation.base import Federation
from tacitly.methods.altmin.queries import REACH, SURE, NormalEquations
from tacitly.methods.shared.descent import LearnedBasis
from tacitly.methods.shared.direction_votes import first_basis
from tacitly.methods.shared.settings import RoundSettings
from tacitly.methods.shared.typical_norm import typical_norm
from tacitly.privacy.calibration import Phase, Plan


@dataclass(frozen=True, kw_only=True)
class Settings(RoundSettings):
    """How the budget is divided."""

    rounds: int = 2
    start_share: float = 0.3
    clip_share: float = 0.05

    @property
    def preparation(self) -> Sequence[Phase]:
        """Phases before the rounds, in order."""
        return [*super().preparation, Phase(name="clips", share=self.clip_share, releases=2, acute=False)]


def learn(federation: Federation, plan: Plan, settings: Settings, rank: int | str) -> LearnedBasis:
    """Learn a shared basis of ``rank`` columns."""
    whitening, basis, *_ = first_basis(federation, plan, rank)
    event = plan.event("clips", clip=1.0)
    gram, right = (
        typical_norm(
            federation, NormalEquations(basis, whitening, parts=part), event, f"{name} norm", reach=REACH, sure=SURE
        )
        for part, name in (("gram", "gram"), ("right", "right-hand"))
    )
    event = plan.event("rounds", clip=1.0)
    for number in range(settings.rounds):
        # √2 on both scales: if both parts have typical size, the joint norm is one.
        query = NormalEquations(basis, whitening, math.sqrt(2.0) * gram.size, math.sqrt(2.0) * right.size)
        released = federation.release(query, event, f"normal equations {number + 1}")
        if gram.found and right.found:
            basis = query.solve(released, federation.sum_sigma(event))
    return LearnedBasis(whitening, basis)
