"""Calibration: from a budget to noise scales.

A plan divides one budget among named phases by shares of μ². Squares of Gaussian-DP parameters add up, so a phase with
share s and R releases may spend μ·√(s/R) on each: its releases together cost R·μ²·s/R = s·μ², independently of what
they release. With shares that sum to at most 1 the total is at most μ, hence at most (ε, δ). The plan is public and
complete before any data are touched; the ledger compares the releases with it at the end.

Choices (permute-and-flip) satisfy pure ε each. Their ε is reserved first; μ is then the largest value for which the
exact composition of both satisfies (ε, δ).
"""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from dataclasses import dataclass

from tacitly.privacy.accounting import added, compose, mu_of
from tacitly.privacy.guarantee import Budget, GaussianEvent, SelectionEvent, Sensitivity

# Margin for the slack of noise on a grid (tacitly.privacy.noise) and for rounding in the profile itself, so that the
# total never exceeds the budget.
_RESERVE = 2e-8
_ROUNDING = 1e-12  # relative rounding error of a sum of shares of ε


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A named part of a plan: its share of μ² and its number of releases.

    ``acute`` states whether its contributions may be acute (:mod:`tacitly.privacy.guarantee`). Under sampling, the
    accountant gives acute contributions no discount, so a phase without acute contributions needs less noise.
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
            raise ValueError(
                f"a plan with choices must have sampling_rate 1, because every user answers. Found {sampling_rate!r}."
            )
        if phases and budget.private and budget.delta == 0:
            raise ValueError("delta must be positive if sums are released, because Gaussian noise has no pure epsilon.")
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
                self._mu *= self._amplification()

    def event(self, phase: str, *, clip: float, acute: bool = False) -> GaussianEvent:
        """Return the event of one release of ``phase`` for contributions clipped to norm ``clip``."""
        part = self._phases[phase]
        if acute and not part.acute and self.sampling_rate < 1.0:
            raise ValueError(
                f"phase {phase!r} was planned without acute contributions, which would cost more than planned. "
                "Plan it with acute=True."
            )
        sensitivity = Sensitivity.of_clip(clip, acute=acute, unit=self.budget.unit)
        moved = sensitivity.under(self.budget.adjacency)
        sigma = moved * math.sqrt(part.releases / part.share) / self._mu
        return GaussianEvent(sigma=sigma, sensitivity=sensitivity, sampling_rate=self.sampling_rate)

    def events(self, acute: Container[str] = ()) -> list[GaussianEvent]:
        """Return the events of all phases, in order; contributions of the phases named in ``acute`` are acute.

        Clips are one: what a release costs depends on the ratio of noise to clip, and clips may follow from releases.
        """
        return [
            self.event(phase.name, clip=1.0, acute=phase.name in acute)
            for phase in self.phases
            for _ in range(phase.releases)
        ]

    def choice(self, number: int) -> SelectionEvent:
        """Return the event of choice ``number`` (from 0), with the ε reserved for it."""
        if not self.budget.private:
            return SelectionEvent(scale=0.0)
        return SelectionEvent.of_epsilon(self.choices[number], self.budget.adjacency)

    def _amplification(self) -> float:
        """Return by what factor sampling allows a larger μ (less noise); found by the secant method.

        Every release is assumed acute unless its phase excludes that, because acute releases cost the most under
        sampling of all that the plan may be used for.
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
            # A coarse loss grid is ten times faster and an upper bound, so a plan that fits here fits.
            interval = min(2e-3, max(1e-4, 1e-3 * self.budget.epsilon))
            return compose(events, self.budget.adjacency, self.budget.delta, interval=interval)

        # One evaluation takes a second and ε is smooth in the factor: a few secant steps, on logarithms, in a bracket.
        low, high, tried = 0.05, 2.0 / self.sampling_rate, [(0.0, math.log(max(cost(1.0), 1e-9) / target))]
        low, high = (1.0, high) if tried[0][1] <= 0 else (low, 1.0)
        while tried[-1][1] > 0 or tried[-1][1] < -0.005:
            x, y = tried[-1]
            slope = (y - tried[-2][1]) / (x - tried[-2][0]) if len(tried) > 1 and x != tried[-2][0] else 1.0
            # Aim slightly below the target, where an answer satisfies it.
            factor = math.exp(x - (y + 0.0025) / max(slope, 0.5))
            if not low < factor < high:
                factor = math.sqrt(low * high)
            if high / low < 1.005:
                break
            tried.append((math.log(factor), math.log(max(cost(factor), 1e-9) / target)))
            low, high = (factor, high) if tried[-1][1] <= 0 else (low, factor)
        self._mu = alone
        return low
