"""CENTAUR for linear models: a private start, then noisy steps of the basis through users' heads.

CENTAUR (Shen et al. 2023), Algorithms 3 to 6. The loop is that of :mod:`tacitly.methods.shared.descent` (a user's
gradient in the basis is the rank-one matrix g·vᵀ in both papers). Specific to CENTAUR are the private power method,
several copies of it with a choice among them at no privacy cost, and secret sampling of users.

Releases: :class:`~tacitly.methods.shared.whitening.FeatureMoment`; for the start
:class:`~tacitly.methods.shared.direction_votes.DirectionVote`, or per power step one
:class:`~tacitly.methods.centaur.queries.PowerVote`; per round one :class:`~tacitly.methods.fedrep.queries.BasisStep`.
Each has sensitivity 1 under zero-out (√2 or 2 under replace-one, see the queries) and is one Gaussian event,
Poisson-subsampled if ``sampling_rate`` < 1. The choice among copies reads released bases only, so it is post-processing
(Lemma F.3).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from tacitly.arrays import Array
from tacitly.federation.base import Federation
from tacitly.linalg import orthonormal
from tacitly.methods.centaur.queries import PowerVote
from tacitly.methods.fedrep import algorithm as fedrep
from tacitly.methods.fedrep.queries import BasisStep
from tacitly.methods.shared.descent import FirstBasis, LearnedBasis, refine_basis
from tacitly.methods.shared.direction_votes import first_basis
from tacitly.methods.shared.whitening import Whitening, private_whitening
from tacitly.privacy.calibration import Plan
from tacitly.privacy.guarantee import Budget, GaussianEvent

STARTS = ("auto", "votes", "power")
_EXTRA_COLUMNS = 5  # iterated beyond the rank, so that the leading columns converge
_LARGEST_VOTES = 4_000_000  # numbers of a symmetric d×d release that are still cheap to draw and store


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

    def chosen_start(self, n_features: int, rank: int | str) -> str:
        """Return the start with the smaller predicted error, from public numbers.

        Both add noise of spectral norm about σ√d to a statistic of norm n. Votes do so once. Power steps share the
        budget, so their noise is √(steps · copies) times larger, on a statistic that is no stronger. So the start is by
        votes, unless their d(d+1)/2 numbers are too many to draw.
        """
        if self.start != "auto":
            return self.start
        if isinstance(rank, str):
            return "votes"  # their spectrum shows the rank
        votes, power = n_features * (n_features + 1) // 2, n_features * (rank + _EXTRA_COLUMNS)
        return "power" if votes > max(_LARGEST_VOTES, power) else "votes"

    def plan(self, budget: Budget, n_features: int, rank: int | str) -> Plan:
        """Divide a budget among the phases."""
        steps = self.power_steps * self.copies if self.chosen_start(n_features, rank) == "power" else 1
        phases = [replace(phase, releases=steps) if phase.name == "start" else phase for phase in self.base.phases]
        return Plan(budget, phases, sampling_rate=self.sampling_rate)

    def events(self, plan: Plan, n_features: int, rank: int | str) -> list[GaussianEvent]:
        """List every release the algorithm will make, in order."""
        power = self.chosen_start(n_features, rank) == "power"
        return plan.events({"whitening"} if power else {"whitening", "start"})


def learn(
    federation: Federation, plan: Plan, settings: Settings, rank: int | str, rng: np.random.Generator, *, centered: bool
) -> LearnedBasis:
    """Learn a shared basis of ``rank`` columns.

    ``rng`` is public randomness: the columns that power methods start from.
    """
    if settings.chosen_start(federation.n_features, rank) == "votes":
        start = first_basis(federation, plan, rank, centered=centered)
    else:
        assert isinstance(rank, int)
        whitening, basis = power_start(federation, plan, settings, rank, rng, centered)
        start = FirstBasis(whitening, basis, np.ones(rank), rank)
    base = settings.base
    return refine_basis(federation, plan, start, partial(BasisStep, centered=centered), base.rounds, base.averaging)


def power_start(
    federation: Federation, plan: Plan, settings: Settings, rank: int, rng: np.random.Generator, centered: bool
) -> tuple[Whitening, Array]:
    """Run several copies of the power method (Algorithm 3); return the basis that most others agree with."""
    d = federation.n_features
    whitening = private_whitening(federation, plan, centered=centered)
    event = plan.event("start", clip=1.0)
    width = min(d, rank + _EXTRA_COLUMNS)
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
    """Return the index of the candidate that at least half of all agree with (Algorithm 3, line 5).

    If there is none, return the candidate with the largest median agreement. The agreement of two bases is the least
    cosine of their principal angles; two bases agree if it is at least 1 − 2·accuracy².

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
