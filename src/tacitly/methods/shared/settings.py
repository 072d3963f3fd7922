"""How methods that whiten, start from direction votes and then run rounds divide their budget.

Used by Private FedRep, CENTAUR, AMHT-LRS and private alternating minimisation. All of it is public and fixed before any
row is read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tacitly.privacy.calibration import Phase, Plan
from tacitly.privacy.guarantee import Budget, GaussianEvent


@dataclass(frozen=True, kw_only=True)
class RoundSettings:
    """Number of rounds and the budget shares of what precedes them; the rounds get the rest."""

    rounds: int = 16
    whitening_share: float = 0.1
    start_share: float = 0.25
    before: tuple[Phase, ...] = ()  # what precedes the whitening, and what follows the rounds;
    after: tuple[Phase, ...] = ()  # their shares are taken from all others alike

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise ValueError(f"rounds must be at least 1. Found {self.rounds!r}.")
        for name in ("whitening_share", "start_share"):
            if not 0 < getattr(self, name) < 1:
                raise ValueError(f"{name} must lie strictly between 0 and 1. Found {getattr(self, name)!r}.")
        if self.whitening_share + self.start_share >= 1:
            raise ValueError(
                "whitening_share and start_share must add up to less than 1, to leave a share for the rounds. "
                f"Found {self.whitening_share + self.start_share!r}."
            )

    @property
    def preparation(self) -> Sequence[Phase]:
        """Phases before the rounds, in order. Their contributions are acute."""
        return [Phase(name="whitening", share=self.whitening_share), Phase(name="start", share=self.start_share)]

    @property
    def phases(self) -> Sequence[Phase]:
        """All phases, in order."""
        rest = 1.0 - math.fsum(phase.share for phase in self.preparation)
        phases = [*self.preparation, Phase(name="rounds", share=rest, releases=self.rounds)]
        left = 1.0 - math.fsum(phase.share for phase in (*self.before, *self.after))
        return [*self.before, *(replace(phase, share=left * phase.share) for phase in phases), *self.after]

    def plan(self, budget: Budget) -> Plan:
        """Divide a budget among the phases."""
        return Plan(budget, self.phases)

    def events(self, plan: Plan) -> list[GaussianEvent]:
        """List every release the algorithm will make, in order."""
        acute = {phase.name for phase in self.preparation}
        return [
            plan.event(phase.name, clip=1.0, acute=phase.name in acute)
            for phase in self.phases
            for _ in range(phase.releases)
        ]
