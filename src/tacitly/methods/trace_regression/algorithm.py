"""Low-rank trace regression under differential privacy: DP-RGrad (Zha 2024) with a sound guarantee.

M ← SVD_r(M + P_T(Σ residual·X̃) + P_T(noise)), from a private start (:mod:`tacitly.methods.trace_regression.start`).
The paper's sensitivities hold with high probability for Gaussian data; here every sum is clipped, so they hold for any
data. Adjacency, sensitivity and event of each release are in :mod:`tacitly.methods.trace_regression.queries`,
:mod:`~tacitly.methods.trace_regression.centering` and :mod:`~tacitly.methods.trace_regression.curvature`. The following
makes it accurate:

* Clipping bounds follow the residuals: a small histogram of norms is released with every gradient, in the same pass and
  event, and the next bound is the one with the least expected error.
* The factor by which clipping shrinks the sum is known (Stein's identity) and compensated by the length of the step.
* A step is shrunk by the expected norm of its noise (James and Stein): 1 − pσ²/‖ξ‖², p = r(d₁ + d₂ − r). Far from the
  solution this factor is about one; near it, where a step is mostly noise, repeated steps average their noise, as a
  Kalman filter would. Energies of noise vary, and the longest of many steps would be those with the most noise. So no
  step is longer than the mean energy of the last few steps allows.
* Dense X and y are centred if their means matter (:mod:`tacitly.methods.trace_regression.centering`).
* The length of a step is one over the curvature along it (:mod:`tacitly.methods.trace_regression.curvature`): one if
  entries of X are uncorrelated, less if a common factor makes the curvature large in some directions.
* If residuals are clearly larger after a step (or, if the histogram does not show them, if the two gradients show that
  the sum of squares has grown), the step is undone, noise included, and taken again from the same released gradient at
  half its length, until a step is kept. The curvature between the two gradients bounds the lengths of later steps.

All of this is computed from releases: post-processing. Retraction needs the SVD of a 2r×2r core only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np

from tacitly.arrays import Array
from tacitly.federation.base import Federation
from tacitly.methods.trace_regression.centering import ROUNDS, centre_of
from tacitly.methods.trace_regression.curvature import LineSearch, Public, Secant
from tacitly.methods.trace_regression.designs import Centre, Design
from tacitly.methods.trace_regression.effects import ShiftedFederation, effects_of
from tacitly.methods.trace_regression.factor_whitening import whiten_factors
from tacitly.methods.trace_regression.kernels import BINS, PER_OCTAVE, ZERO
from tacitly.methods.trace_regression.low_rank import Factors, LowRank, retract
from tacitly.methods.trace_regression.queries import Scales, TangentSum
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

STEPS = 32
"""Default number of noisy steps."""

_FREE_STEPS = 300
# A step is undone if the median residual exceeds the smallest one by this factor. Steps whose length comes from two
# gradients are not monotone, so smaller increases are normal.
_WORSE = 2.0
_PER_NOISE = 8.0  # added to both per share of units that noise hides: noise moves the median by less than twice that
_NO_CLIP = 1e4  # limit relative to the first bound: sums are rounded to a grid that grows with the bound
_CLEARLY = 1.1  # if the last residuals exceed the smallest by this factor, the state with the smallest is returned
_NOT_ACUTE = {"centre", "label", "effects", "start", "loop"}  # phases whose contributions can point against each other
_TOGETHER = 4  # number of steps whose energies are compared with their noise: single steps are large by chance
_MOST_NOISE = 0.05  # share of units that noise may hide in the histogram before the histogram is ignored


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How the budget is divided and how many noisy steps there are; all public.

    Shares were chosen by reasoning and on synthetic data, mostly d₁ = 30, d₂ = 20, r = 3; the reported 40×40 problem
    was evaluated on other draws. ``private_design`` and ``private_level``: whether the design's energies and curvature,
    and the mean label, are released; ``centres``: how many means of X are released.
    """

    unit: Unit = Unit.ROW
    steps: int = STEPS
    private_design: bool = True
    centres: int = 0
    private_level: bool = False
    effects: bool = False  # whether level, row effects and column effects of entries are released
    tracked: float = 0.05
    centre_share: float = 0.035
    level_share: float = 0.005
    effect_share: float = 0.25
    design_share: float = 0.03
    curvature_share: float = 0.01
    clip_share: float = 0.04
    start_share: float = 0.22
    start: StartSettings = field(default_factory=StartSettings)

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"steps must be at least 1. Found {self.steps!r}.")

    def readable(self, budget: Budget, units: int) -> Settings:
        """Return the settings with the largest number of steps, at least 8, that leaves the histogram readable.

        Without the histogram of residuals, good and bad steps cannot be distinguished. The number follows from public
        numbers: the budget and the number of units. Without noise, steps cost only time.
        """
        steps = self.steps if budget.private else _FREE_STEPS
        while budget.private and steps > 8:
            sigma = replace(self, steps=steps).plan(budget).event("loop", clip=1.0).sigma
            if sigma * math.sqrt(BINS / self.tracked) / units <= 0.8 * _MOST_NOISE:
                break
            steps = max(8, steps // 2)
        return replace(self, steps=steps)

    def plan(self, budget: Budget) -> Plan:
        """Divide a budget among the phases."""
        phases, left = [], 1.0 - self.clip_share - self.start_share
        if self.centres:
            phases.append(Phase(name="centre scale", share=self.centre_share / 7, releases=self.centres * ROUNDS))
            phases.append(Phase(name="centre", share=6 * self.centre_share / 7, releases=self.centres * ROUNDS))
            left -= self.centre_share
        if self.private_level:
            phases.append(Phase(name="label scale", share=self.level_share / 2))
            phases.append(Phase(name="label", share=self.level_share / 2))
            left -= self.level_share
        if self.effects:
            for name, part in (("label scale", 0.02), ("label", 0.03), ("effect scale", 0.03), ("effects", 0.92)):
                phases.append(Phase(name=name, share=part * self.effect_share))
            left -= self.effect_share
        if self.private_design:
            phases.append(Phase(name="design scale", share=self.design_share / 4))
            phases.append(Phase(name="design", share=3 * self.design_share / 4))
            phases.append(Phase(name="curvature", share=self.curvature_share))
            left -= self.design_share + self.curvature_share
        phases.append(Phase(name="clip", share=self.clip_share, releases=self.start.releases + 1))
        phases.append(Phase(name="start", share=self.start_share, releases=self.start.releases))
        phases.append(Phase(name="loop", share=left, releases=self.steps))
        return Plan(budget, phases)

    def events(self, plan: Plan) -> list[GaussianEvent]:
        """List every release that will be made, in order."""
        return plan.events({phase.name for phase in plan.phases} - _NOT_ACUTE)


@dataclass(frozen=True)
class Found:
    """The public result: M as factors.

    Labels are ⟨X, M⟩ plus ``intercept`` (0 if X was not centred) plus effects of row and column, if there are any.
    """

    matrix: LowRank
    clips: tuple[float, ...]
    intercept: float = 0.0
    effects: tuple[Array, Array] | None = None


def choose_start(design: Design, unit: Unit) -> str:
    """Return the start with the smaller predicted error, from public numbers.

    In units of τ/μ, the noise in the leading directions is √(d₁d₂)(√d₁ + √d₂) for the whole sum. A power step with r'
    columns has √(d₁r')·√d₁, gets only √(r'/d₂) of the signal from a random start, and shares its budget with three
    others: √(4 d₂)·d₁. The whole sum is better unless the matrix is far from square, or too large to be released.
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
    rank: int | None,
    energies: tuple[Array, Array] | None = None,
    public: Public | None = None,
    mean: Array | None = None,
) -> Found:
    """Learn M through noisy sums.

    ``rank`` None: the rank of the start. The following are given if they are public: ``energies`` of the design by row
    and column, the energy along a step (``public``), and the design's ``mean``.
    """
    unit, maps = settings.unit, None
    if settings.centres and design.kind != "dense":
        federation, maps = whiten_factors(federation, plan, design, unit)
    effects: tuple[Array, Array] | None = None
    if settings.effects:
        effects = effects_of(federation, plan, design, unit)
        federation = cast(Federation, ShiftedFederation(federation, design, *effects))
    centre: Centre | None = None
    if settings.private_level:
        centre = centre_of(federation, plan, design, unit, mean, private=settings.centres > 0)
    scales = scales_of(federation, plan, design, unit, energies, centre)
    matrix = start_of(federation, plan, design, unit, scales, rank, settings.start, centre)
    rank = matrix.values.size
    search = LineSearch(federation, plan, design, scales, unit, public, int(settings.private_design), centre)
    if settings.start.covariance is None:
        # Σ y·X̃ is M times the curvature; a known Λ has already removed this factor.
        search.along((matrix.left * matrix.values, matrix.right))
        # The first step uses the labels themselves: later states are kept only if residuals are not clearly larger.
        matrix = matrix.times(0.0)
    query = TangentSum(design, scales, matrix.left, matrix.right, matrix.values, unit=unit, centre=centre)
    size = rank * (design.d1 + design.d2 - rank) + (centre is not None)
    units = federation.n_users if settings.unit is Unit.USER else federation.n_rows
    clip = chosen_clip(federation, plan, query, "loop", "norms of step 1", size)
    state = _State(matrix, centre, clip, 0.0)
    best, least, clips = state, math.inf, []
    nearest, last = state, math.inf  # the state with the smallest residuals, and residuals of the last one seen
    doubt = 0.0  # uncertainty of its residuals: the smallest of many noisy medians is too small
    taken: _Step | None = None
    shares: list[float] = []  # energies of kept steps relative to the energies of their noise
    for number in range(settings.steps):
        query = _query(design, scales, state.matrix, state.centre, settings, state.clip.bound)
        event = plan.event("loop", clip=state.clip.bound)
        sigma = federation.sum_sigma(event)
        clips.append(state.clip.bound)
        released = federation.release(query, event, f"step {number + 1}")
        (left, right, bins), level = query.split(released), query.level_of(released)
        bound = state.clip.bound
        residuals = _Residuals.read(query.counts(bins), float(query.counts(np.array(sigma))), bound, units)
        gain = state.clip.gain if residuals is None else residuals.gain(bound, settings.unit)
        right = right - state.matrix.right @ (state.matrix.right.T @ right)
        step = _Step(left / gain, right / gain, level / gain, sigma / gain, 0.0, 1.0)
        secant = None
        if taken is not None:
            gradients = taken.factors(best.matrix), step.factors(state.matrix)
            secant = Secant.between(best.matrix, state.matrix, gradients, (taken.noise, step.noise))
        seen = residuals is not None and event.private and not residuals.saturated
        last = residuals.median if residuals is not None and seen else math.inf
        doubt = 0.0 if residuals is None else _PER_NOISE * residuals.noise
        if last < least:
            nearest = state
        energy, expected = step.energy, size * step.noise**2
        if residuals is not None and seen:
            worse = residuals.median > (_WORSE + doubt) * least
        else:
            worse = secant is not None and secant.rises
        if taken is not None and worse:
            search.learn(secant)
            taken = replace(taken, factor=taken.factor / 2)
            state = replace(_moved(best, taken), clip=best.clip)
            continue
        curvature = search.along(step.factors(state.matrix), secant)
        if number == settings.steps - 1:  # the result of the last step is not checked, so the step is short
            curvature = search.largest
        least = min(least, last)
        # The minimum of the parabola along the step, times James and Stein's factor: the share of signal in it.
        shares.append(energy / expected if expected > 0 else math.inf)
        share = min(shares[-1], float(np.mean(shares[-_TOGETHER:])))
        factor = max(0.0, 1.0 - 1.0 / share) / curvature if share > 0 else 0.0
        taken = replace(step, factor=factor, curvature=curvature)
        best, state = state, _moved(state, taken)
        if residuals is not None:
            multiplier = federation.sum_sigma(plan.event("loop", clip=1.0))
            clip = least_error(residuals.counts, residuals.edges, multiplier, size, settings.unit)
            if clip.bound > _NO_CLIP * clips[0]:  # without noise a larger bound is always better
                clip = Clip(_NO_CLIP * clips[0], 1.0)
            state = replace(state, clip=clip)
    if last > (_CLEARLY + doubt) * least and math.isfinite(least):
        state = nearest
    matrix, centre = state.matrix, state.centre
    noise = size * state.variance
    # The length of the last step beyond its noise shows the distance that is still missing.
    missing = taken.factor**2 * max(taken.energy - size * taken.noise**2, 0.0) if taken is not None else 0.0
    matrix = matrix.times(max(0.0, 1.0 - (noise + missing) / max(float(np.sum(matrix.values**2)), 1e-300)))
    # ⟨X̃, M⟩ = ⟨X, D₁MD₂⟩: in the original design M is scaled.
    found = matrix.scaled(scales.left, scales.right)
    found = found if maps is None else found.mapped(*maps)
    intercept = 0.0 if centre is None else centre.level - float(np.sum(centre.matrix * found.matrix))
    return Found(found, tuple(clips), intercept, effects)


@dataclass(frozen=True)
class _State:
    """State of the search: the matrix, the level, the next gradient's bound, the variance from noise in the matrix."""

    matrix: LowRank
    centre: Centre | None
    clip: Clip
    variance: float


@dataclass(frozen=True)
class _Step:
    """A released gradient in the tangent space, its noise, and the length of the step."""

    left: Array
    right: Array
    level: float
    noise: float
    factor: float
    curvature: float

    @property
    def energy(self) -> float:
        """Squared norm of the gradient."""
        return float(np.sum(self.left**2) + np.sum(self.right**2)) + self.level**2

    def factors(self, matrix: LowRank) -> Factors:
        """Return the gradient as a matrix left·rightᵀ."""
        return np.hstack([self.left, matrix.left]), np.hstack([matrix.right, self.right])


def _moved(state: _State, step: _Step) -> _State:
    """Return the state after a step."""
    factor, centre = step.factor, state.centre
    if centre is not None:  # n observations of weight 1/√n: the curvature along the level is one
        centre = replace(centre, level=centre.level + factor * step.curvature * step.level * centre.weight)
    variance = (1.0 - factor * step.curvature) ** 2 * state.variance + (factor * step.noise) ** 2
    return _State(retract(state.matrix, factor * step.left, factor * step.right), centre, state.clip, variance)


def _query(
    design: Design, scales: Scales, matrix: LowRank, centre: Centre | None, settings: Settings, clip: float
) -> TangentSum:
    factors = matrix.left, matrix.right, matrix.values
    return TangentSum(design, scales, *factors, "both", settings.tracked, clip, settings.unit, centre)


@dataclass(frozen=True)
class _Residuals:
    """Norms of all units' contributions at the last M, from the histogram released with the gradient."""

    counts: Array
    edges: Array
    noise: float  # share of units that noise may hide in the histogram

    @classmethod
    def read(cls, counts: Array, sigma: float, bound: float, units: int) -> _Residuals | None:
        """Return counts without negative values; None if noise hides more than a few per cent of the units.

        The share of units below an edge is an unbiased noisy sum. Shares are made monotone by the mean of the running
        maximum from below and the running minimum from above, which is biased in neither direction.
        """
        noise = sigma * math.sqrt(BINS) / units
        if noise > _MOST_NOISE:
            return None
        below = np.cumsum(counts) / units
        below[-1] = 1.0
        below = np.clip(below, 0.0, 1.0)
        monotone = (np.maximum.accumulate(below) + np.minimum.accumulate(below[::-1])[::-1]) / 2
        edges = bound * 2.0 ** ((np.arange(BINS + 1) - ZERO) / PER_OCTAVE)
        return cls(units * np.diff(monotone, prepend=0.0), edges, noise)

    @property
    def median(self) -> float:
        share = np.cumsum(self.counts) / self.counts.sum()
        bin_ = int(np.searchsorted(share, 0.5))
        before = float(share[bin_ - 1]) if bin_ else 0.0
        inside = (0.5 - before) / max(float(share[bin_]) - before, 1e-12)
        return float(self.edges[bin_] * (self.edges[bin_ + 1] / self.edges[bin_]) ** inside)

    @property
    def saturated(self) -> bool:
        """Whether half of the units lie in the first bin, so that the median is not known."""
        return bool(self.counts[0] > 0.45 * self.counts.sum())

    def gain(self, bound: float, unit: Unit) -> float:
        return gain_of(self.counts, np.sqrt(self.edges[:-1] * self.edges[1:]), bound, unit)
