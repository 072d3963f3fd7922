"""CENTAUR, linear: a private power method for a start, then noisy steps of the basis through everybody's heads.

Paper 000, Algorithms 3 to 6 (Shen, Ye, Kang, Hassani and Shokri). The loop is the one of
:mod:`tacitly.methods.fedrep.algorithm` (a user's gradient in the basis is the rank-one matrix g·vᵀ either way), so what
is CENTAUR's own is here: the power method, several copies of it with a choice among them that costs nothing, and users
who take part by secret coins.

Release :class:`PowerVote`: unit user; a contribution is a d×r matrix of norm one (or zero) computed from one user's
rows and the public columns Q. Zero-out moves the sum by at most 1, replace-one by at most 2 (y²(xxᵀ − I)Q can point
either way): one Gaussian event a power step. Choosing among copies reads released bases only: post-processing (Lemma
F.3).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tacitly.arrays import Array, Rows, check_shape
from tacitly.federation.base import Federation, Query
from tacitly.linalg import orthonormal
from tacitly.methods.fedrep import algorithm as fedrep
from tacitly.methods.shared.direction_votes import first_basis
from tacitly.methods.shared.whitening import FeatureMoment, Whitening
from tacitly.privacy.calibration import Phase, Plan
from tacitly.privacy.guarantee import Budget, GaussianEvent

STARTS = ("auto", "votes", "power")
_EXTRA = 5  # columns iterated beyond the rank, so that the top ones settle
_LARGEST_VOTES = 4_000_000  # numbers of a symmetric d×d release that are still drawn and stored with ease


@dataclass(frozen=True)
class PowerVote(Query):
    """One user's part of a power step: Σ y²(xxᵀ − I)Q over its rows in whitened coordinates, at norm one.

    The paper's Algorithm 5 has y²·xxᵀ, whose expectation 2Γ + tr(Γ)·I settles slowly; subtracting y²·I leaves 2Γ.
    """

    columns: Array
    whitening: Whitening
    centered: bool = False

    def __post_init__(self) -> None:
        check_shape("columns", self.columns, self.whitening.scale.size, None)

    @property
    def coordinates(self) -> int:
        """Entries of a d×r matrix."""
        return int(self.columns.size)

    def contribution(self, X: Rows, y: Rows) -> Array:
        """Return the step of one user's rows, scaled to norm one."""
        rows, targets = X.astype(np.float64), y.astype(np.float64)
        if self.centered:
            rows, targets = rows - rows.mean(axis=0), targets - targets.mean()
        rows = self.whitening.transform(rows)
        largest = float(np.max(np.abs(targets), initial=0.0))
        spread = float(np.sqrt(np.mean(rows * rows)))
        if not (math.isfinite(largest) and math.isfinite(spread) and largest > 0.0 and spread > 0.0):
            return np.zeros(self.coordinates)
        weights, rows = (targets / largest) ** 2, rows / spread
        step = rows.T @ (weights[:, None] * (rows @ self.columns)) - weights.sum() * self.columns
        norm = float(np.linalg.norm(step))
        return (step / norm).ravel() if math.isfinite(norm) and norm > 1e-150 else np.zeros(self.coordinates)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How the budget is divided, how the basis starts, and how often users take part."""

    base: fedrep.Settings = field(default_factory=fedrep.Settings)
    start: str = "auto"
    power_steps: int = 6
    copies: int = 1
    sampling_rate: float = 1.0

    def __post_init__(self) -> None:
        if self.start not in STARTS:
            raise ValueError(f"start must be one of {STARTS}. Found {self.start!r}.")
        for name in ("power_steps", "copies"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1. Found {getattr(self, name)!r}.")
        if not 0 < self.sampling_rate <= 1:
            raise ValueError(f"sampling_rate must lie in (0, 1]. Found {self.sampling_rate!r}.")

    def chosen_start(self, n_features: int, rank: int) -> str:
        """Return the start that predicts less error, from public numbers.

        Both put noise of spectral norm about σ√d on a statistic of norm n. Votes do so once; power steps share the
        budget, so theirs is √(steps · copies) times larger on a statistic that is no stronger. So votes, unless their
        d(d+1)/2 numbers are too many to draw.
        """
        if self.start != "auto":
            return self.start
        votes, power = n_features * (n_features + 1) // 2, n_features * (rank + _EXTRA)
        return "power" if votes > max(_LARGEST_VOTES, power) else "votes"

    def plan(self, budget: Budget, n_features: int, rank: int) -> Plan:
        """Divide a budget accordingly."""
        steps = self.power_steps * self.copies if self.chosen_start(n_features, rank) == "power" else 1
        base = self.base
        return Plan(
            budget,
            [
                Phase(name="whitening", share=base.whitening_share),
                Phase(name="start", share=base.start_share, releases=steps),
                Phase(name="rounds", share=1.0 - base.whitening_share - base.start_share, releases=base.rounds),
            ],
            sampling_rate=self.sampling_rate,
        )

    def events(self, plan: Plan, n_features: int, rank: int) -> list[GaussianEvent]:
        """Every release the algorithm will make."""
        steps = next(phase.releases for phase in plan.phases if phase.name == "start")
        power = self.chosen_start(n_features, rank) == "power"
        start = [plan.event("start", clip=1.0, acute=not power)] * steps
        whitening = plan.event("whitening", clip=1.0, acute=True)
        return [whitening, *start] + [plan.event("rounds", clip=1.0)] * self.base.rounds


def learn(
    federation: Federation,
    plan: Plan,
    settings: Settings,
    rank: int,
    *,
    centered: bool = False,
    rng: np.random.Generator | None = None,
) -> Array:
    """Learn a shared basis of ``rank`` columns; return it orthonormal, in raw feature coordinates."""
    start = settings.chosen_start(federation.n_features, rank)
    if start == "votes":
        whitening, basis, strengths = first_basis(federation, plan, rank, centered=centered)
    else:
        whitening, basis = power_start(federation, plan, settings, rank, rng or np.random.default_rng(), centered)
        strengths = np.ones(rank)
    state = fedrep.Descent(basis, np.diag(strengths))
    event = plan.event("rounds", clip=1.0)
    expected = settings.sampling_rate * federation.n_users
    rounds = settings.base.rounds
    for number in range(rounds):
        query = fedrep.BasisStep(state.basis, state.head_metric, state.scale, whitening, centered)
        released = federation.release(query, event, f"basis step {number + 1}")
        late = max(0.0, number - (1.0 - settings.base.averaging) * rounds)
        state.advance(*query.split(released), event.sigma, expected, damping=1.0 / (1.0 + late / 2.0))
    return orthonormal(whitening.to_raw(state.basis))[0]


def power_start(
    federation: Federation, plan: Plan, settings: Settings, rank: int, rng: np.random.Generator, centered: bool
) -> tuple[Whitening, Array]:
    """Algorithm 3: several copies of the power method; return the one that most others agree with."""
    d = federation.n_features
    event = plan.event("whitening", clip=1.0, acute=True)
    moment = federation.release(FeatureMoment(d, centered), event, "feature moment")
    whitening = Whitening.from_moment(moment, event.sigma, d)
    event = plan.event("start", clip=1.0)
    width = min(d, rank + _EXTRA)
    candidates = []
    for copy in range(settings.copies):
        columns = orthonormal(rng.normal(size=(d, width)))[0]
        for step in range(settings.power_steps):
            query = PowerVote(columns, whitening, centered)
            released = federation.release(query, event, f"power step {step + 1} of copy {copy + 1}").reshape(d, width)
            columns = orthonormal(released)[0]
        candidates.append(np.linalg.svd(released, full_matrices=False)[0][:, :rank])
    return whitening, candidates[agreed(candidates)]


def agreed(candidates: Sequence[Array], accuracy: float = 0.01) -> int:
    """Which candidate at least half of all agree with (Algorithm 3, line 5); the most agreeable one if there is none.

    Agreement of two bases is the least cosine of their principal angles; the test asks for 1 − 2·accuracy².

    >>> e = np.eye(3)
    >>> agreed([e[:, :1], e[:, 1:2], e[:, 1:2]])
    1
    """
    agreement = np.array(
        [[np.linalg.svd(one.T @ other, compute_uv=False)[-1] for other in candidates] for one in candidates]
    )
    passes = (agreement >= 1.0 - 2.0 * accuracy**2).mean(axis=1) >= 0.5
    scores = np.median(agreement, axis=1)
    return int(np.argmax(np.where(passes, scores + 1.0, scores) if passes.any() else scores))
