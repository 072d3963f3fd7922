"""Low-rank trace regression under differential privacy: DP-RGrad (paper 002, Zha), sound.

M ← SVD_r(M + P_T(Σ residual·X̃) + P_T(noise)), from a private start (:mod:`tacitly.methods.trace_regression.start`).
The paper takes sensitivities that hold with high probability for Gaussian data; here every sum is clipped, so they hold
for any (:mod:`tacitly.methods.trace_regression.queries`). What makes it accurate:

* clips follow the residuals: with every gradient a small histogram of norms is released, in the same pass and event,
  and the next clip is the one with the least expected error;
* what a clip takes away is known (Stein's identity) and given back by the length of the step;
* a step is shrunk by what noise alone would be (James and Stein): 1 − pσ²/‖ξ‖², p = r(d₁ + d₂ − r). Far from the
  solution that is one; near it, where a step is mostly noise, repeated steps average their noise, as a Kalman filter
  would.
* dense X and y are counted from their means, where those matter (:mod:`tacitly.methods.trace_regression.centering`);
* a step is as long as the curvature along it lets it be (:mod:`tacitly.methods.trace_regression.curvature`): one where
entries
  of X are not correlated, and less where a common factor makes some directions steep;
* a step after which residuals are clearly larger is taken back, noise and all, and the next is shorter.

All of this is computed from releases. Retraction needs the SVD of a 2r×2r core only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np

from tacitly.arrays import Array
from tacitly.federation.base import Federation
from tacitly.methods.trace_regression.centering import ROUNDS, centre_of
from tacitly.methods.trace_regression.curvature import LineSearch, Public, Secant
from tacitly.methods.trace_regression.designs import Centre, Design
from tacitly.methods.trace_regression.kernels import BINS, PER_OCTAVE, ZERO
from tacitly.methods.trace_regression.low_rank import Factors, LowRank, retract
from tacitly.methods.trace_regression.queries import Scales, TangentSum
from tacitly.methods.trace_regression.sides import flat_sides
from tacitly.methods.trace_regression.start import (
    Clip,
    StartSettings,
    chosen_clip,
    gain_of,
    least_error,
    scales_of,
    start_of,
)
from tacitly.privacy.calibration import Phase, Plan
from tacitly.privacy.guarantee import Budget, GaussianEvent, Unit

# A median residual so many times the best takes a step back. Steps that read their length off two gradients are not
# monotone, and less than this is part of their way.
_WORSE = 2.0
_PER_UNSURE = 8.0  # and more where noise moves the median: by less than twice the share of units that it may hide
_NOT_ACUTE = ("centre", "label", "start", "loop")  # phases whose contributions may point against each other
_UNSURE = 0.05  # share of units that noise may hide in the histogram before it is not looked at


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How the budget is divided and how many noisy steps there are; all public.

    Shares were chosen by reasoning and on synthetic data, mostly d₁ = 30, d₂ = 20, r = 3; the 40×40 problem that is
    reported was looked at on other draws.
    """

    unit: Unit = Unit.ROW
    steps: int = 8
    start: StartSettings = field(default_factory=StartSettings)
    buys_design: bool = True
    centres: int = 0
    buys_level: bool = False
    tracked: float = 0.05
    centre_share: float = 0.035
    level_share: float = 0.005
    design_share: float = 0.03
    curvature_share: float = 0.01
    clip_share: float = 0.04
    start_share: float = 0.22

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"steps must be at least 1. Found {self.steps!r}.")

    def plan(self, budget: Budget) -> Plan:
        """Divide a budget."""
        phases, left = [], 1.0 - self.clip_share - self.start_share
        if self.centres:
            phases.append(Phase(name="centre scale", share=self.centre_share / 7, releases=self.centres * ROUNDS))
            phases.append(Phase(name="centre", share=6 * self.centre_share / 7, releases=self.centres * ROUNDS))
            left -= self.centre_share
        if self.buys_level:
            phases.append(Phase(name="label scale", share=self.level_share / 2))
            phases.append(Phase(name="label", share=self.level_share / 2))
            left -= self.level_share
        if self.buys_design:
            phases.append(Phase(name="design scale", share=self.design_share / 4))
            phases.append(Phase(name="design", share=3 * self.design_share / 4))
            phases.append(Phase(name="curvature", share=self.curvature_share))
            left -= self.design_share + self.curvature_share
        phases.append(Phase(name="clip", share=self.clip_share, releases=self.start.releases + 1))
        phases.append(Phase(name="start", share=self.start_share, releases=self.start.releases))
        phases.append(Phase(name="loop", share=left, releases=self.steps))
        return Plan(budget, phases)

    def events(self, plan: Plan) -> list[GaussianEvent]:
        """Every release that will be made."""
        return [
            plan.event(phase.name, clip=1.0, acute=phase.name not in _NOT_ACUTE)
            for phase in plan.phases
            for _ in range(phase.releases)
        ]


@dataclass(frozen=True)
class Found:
    """What was learned, public: M as factors, and how far privacy noise is expected to have moved it (Frobenius).

    Labels are ⟨X, M⟩ plus ``intercept``, which is 0 where X was not counted from a centre.
    """

    matrix: LowRank
    noise: float
    clips: tuple[float, ...]
    intercept: float = 0.0


def choose_start(design: Design, rank: int, unit: Unit) -> str:
    """Return the start with the smaller predicted error; all that enters is public.

    In units of τ/μ, the noise that the leading directions meet is √(d₁d₂)(√d₁ + √d₂) for the whole sum. A power step
    with r' columns meets √(d₁r')·√d₁, from a random start only √(r'/d₂) of the signal, and shares its budget with three
    others: √(4 d₂)·d₁. The whole sum wins unless the matrix is far from square, or too large to be released.
    """
    d1, d2 = design.d1, design.d2
    if (design.kind != "dense" and unit is Unit.USER) or d1 * d2 > 1 << 21:
        return "power"
    whole = math.sqrt(d1 * d2) * (math.sqrt(d1) + math.sqrt(d2))
    return "one-shot" if whole <= 2 * math.sqrt(d2) * d1 else "power"


def learn(
    federation: Federation,
    plan: Plan,
    settings: Settings,
    design: Design,
    rank: int,
    energies: tuple[Array, Array] | None = None,
    public: Public | None = None,
    middle: Array | None = None,
) -> Found:
    """Learn M through noisy sums.

    Where they are public: ``energies`` of the design by row and column, and along a step, and its mean ``middle``.
    """
    unit, maps = settings.unit, None
    if settings.centres and design.kind != "dense":
        federation, maps = flat_sides(federation, plan, design, unit)
    centre: Centre | None = None
    if settings.buys_level:
        centre = centre_of(federation, plan, design, unit, middle, buys=settings.centres > 0)
    scales = scales_of(federation, plan, design, unit, energies, centre)
    matrix = start_of(federation, plan, design, unit, scales, rank, settings.start, centre)
    search = LineSearch(federation, plan, design, scales, unit, public, int(settings.buys_design), centre)
    if settings.start.covariance is None:
        # Σ y·X̃ is M times the curvature; with Λ known that is seen to already.
        steep = search.along((matrix.left * matrix.values, matrix.right))
        matrix = matrix.times(1.0 / steep)
    query = TangentSum(design, scales, matrix.left, matrix.right, matrix.values, unit=unit, centre=centre)
    size = rank * (design.d1 + design.d2 - rank) + (centre is not None)
    units = federation.n_users if settings.unit is Unit.USER else federation.n_rows
    clip = chosen_clip(federation, plan, query, "loop", "norms of step 1", size)
    best, least, length, variance, clips = (matrix, centre, clip, 0.0), math.inf, 1.0, 0.0, []
    earlier: tuple[LowRank, Factors, float] | None = None
    for number in range(settings.steps):
        query = _query(design, scales, matrix, centre, settings, clip.bound)
        event = plan.event("loop", clip=clip.bound)
        sigma = federation.sum_sigma(event)
        clips.append(clip.bound)
        released = federation.release(query, event, f"step {number + 1}")
        (left, right, bins), level = query.split(released), query.level_of(released)
        seen = _Residuals.read(query.counts(bins), float(query.counts(np.array(sigma))), clip.bound, units)
        if seen is not None:
            clip = Clip(clip.bound, seen.gain(clip.bound, settings.unit))
        right = right - matrix.right @ (matrix.right.T @ right)
        left, right, level, noise = left / clip.gain, right / clip.gain, level / clip.gain, sigma / clip.gain
        step = np.hstack([left, matrix.left]), np.hstack([matrix.right, right])
        secant = None
        if earlier is not None:
            secant = Secant.between(earlier[0], matrix, (earlier[1], step), (earlier[2], noise))
        steep = search.along(step, secant)
        if seen is not None and seen.median > (_WORSE + _PER_UNSURE * seen.unsure) * least:
            (matrix, centre, clip, variance), earlier = best, None
            length = length if search.shorten() else length / 2
            continue
        if seen is not None:
            least = min(least, seen.median)
        best = matrix, centre, clip, variance
        moved = float(np.sum(left**2) + np.sum(right**2)) + level**2
        # Where the parabola along the step is lowest: James and Stein's factor is how much of it is not noise.
        factor = length * max(0.0, 1.0 - size * noise**2 / moved) / steep if moved > 0 else 0.0
        earlier = matrix, step, noise
        matrix = retract(matrix, factor * left, factor * right)
        if centre is not None:  # n observations of weight 1/√n: the level's own curvature is one
            centre = replace(centre, level=centre.level + factor * steep * level * centre.weight)
        variance = (1.0 - factor * steep) ** 2 * variance + (factor * noise) ** 2
        if seen is not None:
            multiplier = federation.sum_sigma(plan.event("loop", clip=1.0))
            clip = least_error(seen.counts, seen.edges, multiplier, size, settings.unit)
    # ⟨X̃, M⟩ = ⟨X, D₁MD₂⟩: back in the design as it came, M and its error are scaled.
    scale = math.sqrt(float(np.mean(scales.left**2)) * float(np.mean(scales.right**2)))
    found = matrix.scaled(scales.left, scales.right)
    found = found if maps is None else found.mapped(*maps)
    intercept = 0.0 if centre is None else centre.level - float(np.sum(centre.matrix * found.matrix))
    return Found(found, scale * math.sqrt(size * variance), tuple(clips), intercept)


def _query(
    design: Design, scales: Scales, matrix: LowRank, centre: Centre | None, settings: Settings, clip: float
) -> TangentSum:
    factors = matrix.left, matrix.right, matrix.values
    return TangentSum(design, scales, *factors, "both", settings.tracked, clip, settings.unit, centre)


@dataclass(frozen=True)
class _Residuals:
    """Norms of everybody's contributions at the last M, read off what rode along with the gradient."""

    counts: Array
    edges: Array
    unsure: float

    @classmethod
    def read(cls, counts: Array, sigma: float, bound: float, units: int) -> _Residuals | None:
        """Return counts that noise no longer makes negative; None where it hides more than a few per cent of the units.

        Shares below an edge are noisy sums, without bias. They are made to grow from edge to edge by the mean of the
        largest so far and the smallest to come, which leans neither way.
        """
        unsure = sigma * math.sqrt(BINS) / units
        if unsure > _UNSURE:
            return None
        below = np.cumsum(counts) / units
        below[-1] = 1.0
        below = np.clip(below, 0.0, 1.0)
        rising = (np.maximum.accumulate(below) + np.minimum.accumulate(below[::-1])[::-1]) / 2
        edges = bound * 2.0 ** ((np.arange(BINS + 1) - ZERO) / PER_OCTAVE)
        return cls(units * np.diff(rising, prepend=0.0), edges, unsure)

    @property
    def median(self) -> float:
        share = np.cumsum(self.counts) / self.counts.sum()
        place = int(np.searchsorted(share, 0.5))
        before = float(share[place - 1]) if place else 0.0
        inside = (0.5 - before) / max(float(share[place]) - before, 1e-12)
        return float(self.edges[place] * (self.edges[place + 1] / self.edges[place]) ** inside)

    def gain(self, bound: float, unit: Unit) -> float:
        return gain_of(self.counts, np.sqrt(self.edges[:-1] * self.edges[1:]), bound, unit)
