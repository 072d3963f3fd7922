"""From a promise to noise scales.

A plan divides one budget among named phases by shares of μ²: because Gaussian-DP parameters add as squares, a
phase with share s and R releases may spend μ·√(s/R) on each, whatever the releases are of. The total is then
(ε, δ) to the last digit, and never above. The plan is public and complete before any data is touched; it is
what the ledger is compared with at the end.

Choices (permute-and-flip) are pure ε each. They are set aside first, in ε; μ is then the largest that still fits beside
them, by the exact composition of both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tacitly.privacy.accounting import added, compose, mu_of
from tacitly.privacy.guarantee import Budget, GaussianEvent, SelectionEvent, Sensitivity

# Room for the slack of noise on a grid (tacitly.privacy.noise) and for rounding in the profile itself, so that the
# total
# is never above what was asked for.
_RESERVE = 2e-8
_ROUNDING = 1e-12  # of a sum of shares of one ε


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A named part of a plan: its share of μ² and how many releases it makes.

    ``acute`` says whether they may be of acute contributions, which cost more where users are sampled; a phase that
    rules it out gets by with less noise there.
    """

    name: str
    share: float
    releases: int = 1
    acute: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"share of phase {self.name!r} must lie in (0, 1]. Found {self.share!r}.")
        if self.releases < 1:
            raise ValueError(f"phase {self.name!r} must make at least one release. Found {self.releases!r}.")


class Plan:
    """A budget divided among phases.

    >>> plan = Plan(Budget(epsilon=1.0, delta=1e-5), [Phase(name="start", share=0.2),
    ...                                               Phase(name="rounds", share=0.8, releases=20)])
    >>> round(plan.event("start", clip=1.0).sigma, 2), round(plan.event("rounds", clip=1.0).sigma, 2)
    (8.34, 18.65)
    """

    def __init__(
        self, budget: Budget, phases: Sequence[Phase], *, sampling_rate: float = 1.0, choices: Sequence[float] = ()
    ) -> None:
        if choices and sampling_rate < 1.0:
            raise ValueError("a plan with choices must have sampling_rate 1: everybody is asked.")
        if phases and budget.private and budget.delta == 0:
            raise ValueError("delta must be positive where sums are released: Gaussian noise has no pure epsilon.")
        if budget.private and added(choices) > budget.epsilon * (1 + _ROUNDING):
            raise ValueError(f"choices must cost at most epsilon = {budget.epsilon:.6g}. Found {added(choices):.6g}.")
        self.choices = tuple(choices)
        names = [phase.name for phase in phases]
        if len(set(names)) != len(names):
            raise ValueError(f"phase names must be distinct. Found {names!r}.")
        total = math.fsum(phase.share for phase in phases)
        if total > 1 + 1e-12:
            raise ValueError(f"shares must add up to at most 1. Found {total!r}.")
        self.budget = budget
        self.phases = tuple(phases)
        self._phases = {phase.name: phase for phase in phases}
        self.sampling_rate = sampling_rate
        self._mu = math.inf
        if budget.private and phases:
            self._mu = mu_of(
                budget.epsilon * (1 - _RESERVE),
                budget.delta * (1 - _RESERVE),
                self.choices,
            )
            if sampling_rate < 1.0:
                self._mu *= self._hidden_by_sampling()

    def event(self, phase: str, *, clip: float, acute: bool = False) -> GaussianEvent:
        """Return one release of ``phase`` for contributions clipped to norm ``clip``."""
        part = self._phases[phase]
        if acute and not part.acute and self.sampling_rate < 1.0:
            raise ValueError(
                f"phase {phase!r} was planned without acute contributions: it would cost more than planned."
            )
        sensitivity = Sensitivity.of_clip(clip, acute=acute, unit=self.budget.unit)
        moved = sensitivity.under(self.budget.adjacency)
        sigma = moved * math.sqrt(part.releases / part.share) / self._mu
        return GaussianEvent(sigma=sigma, sensitivity=sensitivity, sampling_rate=self.sampling_rate)

    def choice(self, number: int) -> SelectionEvent:
        """Return the choice of this number (from 0), as it was set aside."""
        if not self.budget.private:
            return SelectionEvent(scale=0.0)
        return SelectionEvent.of_epsilon(self.choices[number], self.budget.adjacency)

    def _hidden_by_sampling(self) -> float:
        """Return how many times less noise does where users take part by secret coins; found by secants.

        Every release is taken for acute unless its phase rules that out: of all that the plan may be used for, that
        costs the most under sampling.
        """
        alone = self._mu
        target = self.budget.epsilon * (1 - 1e-6)

        def cost(factor: float) -> float:
            self._mu = alone * factor
            events = [
                self.event(phase.name, clip=1.0, acute=phase.acute)
                for phase in self.phases
                for _ in range(phase.releases)
            ]
            # Coarse losses: ten times quicker, and an upper bound, so that what holds here holds.
            interval = min(2e-3, max(1e-4, 1e-3 * self.budget.epsilon))
            return compose(events, self.budget.adjacency, self.budget.delta, interval=interval)

        # Accounting takes a second a time, and ε is smooth in the factor: a few secants, on logarithms, in a bracket.
        low, high, tried = 0.05, 2.0 / self.sampling_rate, [(0.0, math.log(max(cost(1.0), 1e-9) / target))]
        low, high = (1.0, high) if tried[0][1] <= 0 else (low, 1.0)
        while tried[-1][1] > 0 or tried[-1][1] < -0.005:
            x, y = tried[-1]
            slope = (y - tried[-2][1]) / (x - tried[-2][0]) if len(tried) > 1 and x != tried[-2][0] else 1.0
            # Aim a little below the target, where an answer is one that holds.
            factor = math.exp(x - (y + 0.0025) / max(slope, 0.5))
            if not low < factor < high:
                factor = math.sqrt(low * high)
            if high / low < 1.005:
                break
            tried.append((math.log(factor), math.log(max(cost(factor), 1e-9) / target)))
            low, high = (factor, high) if tried[-1][1] <= 0 else (low, factor)
        self._mu = alone
        return low
