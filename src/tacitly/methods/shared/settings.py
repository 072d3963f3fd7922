"""How methods that whiten, start from direction votes and then run rounds divide their budget.

Used by Private FedRep, CENTAUR, AMHT-LRS and private alternating minimisation. All of it is public and fixed before any
row is read.

With few users, a phase gets budget only if its release exceeds the noise at that number of users, and if the basis,
without which the other releases are useless, still exceeds the noise with the remaining budget (:func:`basis_share`,
:func:`whitening_share`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tacitly.privacy.calibration import Phase, Plan
from tacitly.privacy.guarantee import Budget, GaussianEvent

_START, _WHITENING = 0.25, 0.1  # shares with many users
_ROWS = 10.0  # rows of a typical user: the true number is private
_ABOVE = 1.1  # times the noise threshold: rounds can start from votes just above it
_DOMINANT = 0.6  # share of users' squared rows along one direction that a whitening must at least detect


@dataclass(frozen=True, kw_only=True)
class RoundSettings:
    """Number of rounds and the budget shares of the phases before them; the rounds get the rest."""

    rounds: int = 16
    whitening_share: float = _WHITENING
    start_share: float = _START
    before: tuple[Phase, ...] = ()  # phases before the whitening, and phases after the rounds;
    after: tuple[Phase, ...] = ()  # their shares reduce the shares of all others in proportion

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
        """Phases before the rounds, in order. Their contributions are acute, unless a phase says otherwise."""
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
        return plan.events({phase.name for phase in self.preparation if phase.acute})


def basis_share(budget: Budget, n_users: int, n_features: int, rank: int) -> float:
    """Return the share of the budget that start and rounds need for votes above the noise; above 1 it is impossible.

    The direction of a user's ridge regression with m rows has squared cosine of at least about m/(m + d) with the true
    one, so n votes add up to n·m/((m + d)k) along each of k directions. The noise has eigenvalues up to 2s, s = σ√(d/2)
    and hides everything below s: there, top eigenvectors are independent of the true ones (Baik, Ben Arous and Péché).
    """
    threshold = _whole(budget) * math.sqrt(n_features / 2.0)
    votes = n_users / rank * _ROWS / (_ROWS + n_features)
    return (_ABOVE * threshold / votes) ** 2 / _START


def whitening_share(budget: Budget, n_users: int, n_features: int, needed: float) -> float:
    """Return the share of the whitening if the basis needs the share ``needed``.

    It is large enough to detect a direction that dominates users' rows, such as the mean of columns that are not
    centered: n times its share of the rows is then above the edge of the noise, σ√(2d).
    """
    least = (_whole(budget) * math.sqrt(2.0 * n_features) / (_DOMINANT * n_users)) ** 2
    return min(_WHITENING, max(1.0 - needed, least))


def _whole(budget: Budget) -> float:
    """Return the noise of one acute release of norm one that uses the whole budget."""
    return Plan(budget, [Phase(name="all", share=1.0)]).event("all", clip=1.0, acute=True).sigma
