"""The population of heads: how users' heads on a shared basis are spread, learned for a small share of the budget.

After the basis U is released, two things are missing for somebody with few rows or none: a direction that all users
have in common although they hardly differ along it, and how heads are spread over users. So

1. the population's direction joins the basis, where it stands out of the noise
   (:func:`~tacitly.methods.shared.central.population_direction`);
2. the machinery of mixed effects runs on the projected rows (1, Uᵀx), which are k + 1 numbers instead of d, and learns
   mean and covariance of the heads and the noise variance (:mod:`tacitly.methods.mixed_effects.algorithm`).

Heads are then fitted at home under that prior (:mod:`tacitly.heads.population`). Releases: those of the two modules,
each a sum clipped to a public bound C, one Gaussian event: sensitivity C (zero-out), 2C (replace-one).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from tacitly.arrays import Array
from tacitly.federation.base import Federation
from tacitly.heads.population import HeadPrior
from tacitly.linalg import orthonormal
from tacitly.methods.mixed_effects import algorithm as mixed_effects
from tacitly.methods.mixed_effects.advantage import Advantage
from tacitly.methods.mixed_effects.posterior import Coordinates, Prior, Slopes
from tacitly.methods.mixed_effects.units import learn_units
from tacitly.methods.shared.central import direction_phases, population_direction
from tacitly.methods.shared.descent import LearnedBasis
from tacitly.methods.shared.settings import basis_share
from tacitly.privacy.calibration import Phase, Plan
from tacitly.privacy.guarantee import Budget

DIRECTION_SHARE = 0.10
HEADS_SHARES = (0.13, 0.25)
"""Share of the heads where users are many, and at most: it grows where users are few."""

_ORDER_ONE = 4.0
_NARROWER = 4.0  # by what a whitened direction can seem narrower than another, in units of how far users vary along it
_FIXED = 1e-6  # deviation of a weight that is fixed, relative to that of levels
_SEEN = 0.25  # noise of the advantage over users' own means with which it is known whether the prior helps
_WANTED = 90.0  # users per unit of noise of a whole budget that make the smaller share enough
# A few directions have a small covariance matrix, and what is hard to find with few users are the variances.
_HARDER = {
    "log variances": 4.0,
    "variances": 4.0,
    "within": 2.0,
    "spread norm": 2.0,
    "score norm": 2.0,
    "spread": 0.6,
    "coverage": 2.0,
}


@dataclass(frozen=True)
class Population:
    """A public basis and the prior of heads on it; None where the noise hides how heads are spread."""

    basis: Array
    prior: HeadPrior | None


def population_phases(budget: Budget, n_users: int, n_features: int, rank: int) -> tuple[Phase, ...]:
    """Return the phases of :func:`learn_population`, for a basis of at most ``rank`` directions."""
    direction = direction_phases(budget, n_users, n_features - rank, DIRECTION_SHARE)
    directed = int(bool(direction))
    share = heads_share(budget, n_users)
    # The machinery plans for a whole budget; a share of it is worth as much as the whole with fewer users.
    alike = mixed_effects.Settings(max(1, round(n_users * math.sqrt(share))), (None,) * (rank + 1 + directed))
    phases = alike.plan(budget).phases
    parts = [phase.share * _HARDER.get(phase.name, 1.0) for phase in phases]
    total = math.fsum(parts) * (1.0 + 1e-12)
    heads = [replace(phase, share=share * part / total, acute=False) for phase, part in zip(phases, parts, strict=True)]
    return (*direction, *heads)


def affordable(phases: tuple[Phase, ...], needed: float) -> bool:
    """Whether these phases leave the basis the share of the budget that it needs: heads on noise are worth nothing."""
    return math.fsum(phase.share for phase in phases) + needed <= 1.0


def heads_share(budget: Budget, n_users: int) -> float:
    """Return the share of the budget that learns how heads are spread, from public numbers."""
    whole = Plan(budget, [Phase(name="all", share=1.0)]).event("all", clip=1.0).sigma
    return min(max((_WANTED * whole / n_users) ** 2, HEADS_SHARES[0]), HEADS_SHARES[1])


def learn_population(federation: Federation, plan: Plan, found: LearnedBasis, *, intercept: bool) -> Population:
    """Release the population's direction and the prior of heads; return the basis with both."""
    columns = found.basis
    if "central steps" in {phase.name for phase in plan.phases}:
        direction = population_direction(federation, plan, found.whitening, columns, centered=intercept)
        columns = columns if direction is None else np.column_stack([columns, direction])
    # In raw units, directions that are orthogonal need not be: with a column in other units than the others all would
    # follow that column, and heads on them could not be told apart. So heads are learned on whitened directions.
    whitened = found.whitening.to_raw(orthonormal(columns)[0])
    lengths = np.linalg.norm(whitened, axis=0)
    basis, turn = orthonormal(whitened / lengths)
    prior = learn_heads(
        federation.projected((whitened / lengths).T), plan, intercept=intercept, variation=1.0 / lengths
    )
    return Population(basis, None if prior is None else turned(prior, turn))


def turned(prior: HeadPrior, turn: Array) -> HeadPrior:
    """Return the prior of heads on Q from that of heads v on Q·turn: the same weights are turn·v there."""
    k = len(turn)
    mean, root = prior.mean.copy(), prior.root.copy()
    mean[:k], root[:k] = turn @ prior.mean[:k], turn @ prior.root[:k]
    return HeadPrior(mean, root, prior.noise)


def learn_heads(
    federation: Federation, plan: Plan, *, intercept: bool, weight_one: bool = False, variation: Array | None = None
) -> HeadPrior | None:
    """Release how heads on all columns of the (projected) rows are spread; None where the noise hides it.

    ``weight_one``: heads are a level and the weight one on the only column. ``variation``: how far users vary along
    each column, up to a common factor, where that is known (:func:`not_too_narrow`).
    """
    units = learn_units(federation, plan, (None,) * (federation.n_features + 1))
    found = units.spread > 0 and bool((units.gain > 0).all())
    # What was planned is released, whether or not the units were found.
    units = replace(units, gain=np.where(units.gain > 0, units.gain, 1.0))
    if found and variation is not None:
        units = replace(units, gain=not_too_narrow(units.gain, variation))
    if not intercept:
        gain = units.gain / np.hypot(1.0, units.gain * units.center)
        units = Slopes(np.zeros(len(gain)), gain, 0.0, math.hypot(units.spread, units.level) if units.spread else 0.0)
    state = mixed_effects.learn_prior(federation, plan, units)
    prior = state.doubted
    plausible = _plausible(prior)
    if weight_one:
        prior = with_weight_one(units, prior)
    _, helps = state.checked(prior)  # of what users get: a prior of free weights can help where weight one does not
    seen = _blur(plan, plan.sampling_rate * federation.n_users) <= _SEEN
    return in_raw_units(units, prior) if found and helps and seen and plausible else None


def not_too_narrow(gain: Array, variation: Array) -> Array:
    """Return gains no larger than the whitening bears out; ``variation``: how far users vary, up to a common factor.

    The scale of a column is that of most of its values. A direction in which nearly all rows are alike and a few are
    far off (the difference of two columns that nearly always move together) gets the scale of the many. What is far off
    is bounded while heads are learned, but not where they predict: there a weight that is small in such units means
    anything. The whitening weighs all rows of a user, so it knows directions to vary alike, relative to one another.

    >>> not_too_narrow(np.array([1.0, 2.0, 2000.0]), np.array([1.0, 0.5, 0.5]))
    array([1., 2., 8.])
    """
    widest = float(np.max(1.0 / (gain * variation)))
    return np.minimum(gain, _NARROWER / (widest * variation))


def with_weight_one(units: Coordinates, prior: Prior) -> Prior:
    """Return the prior of levels for users who all have weight one on the only column, in standardised units.

    A user with weight w and level a has, beside weight one, the level a + (w − 1)x. The standardised x has mean zero
    and variance one over rows, so levels keep their mean, and their variance grows by E(w − 1)². Levels *given* that a
    weight is one are another thing: those of users unlike all others, where noise or what differs between users has
    pulled weights away from one.
    """
    spread = units.spread or 1.0
    one = 1.0 / (float(units.gain[0]) * spread)
    variance = prior.covariance[0, 0] + prior.covariance[1, 1] + (prior.mean[1] - one) ** 2
    deviation = math.sqrt(float(variance))
    # The weight hardly varies, rather than not at all: covariances are inverted.
    return replace(prior, mean=np.array([prior.mean[0], one]), root=np.diag([deviation, _FIXED * deviation]))


def _plausible(prior: Prior) -> bool:
    """Whether a prior in standardised units is of order one, as it is if the noise did not make it up."""
    largest = max(float(np.abs(prior.mean).max()), float(np.sqrt(np.diag(prior.covariance)).max()))
    return largest < _ORDER_ONE and prior.noise < _ORDER_ONE


def in_raw_units(units: Coordinates, prior: Prior) -> HeadPrior:
    """Return the prior of heads in the units of the data, intercepts last; without them, zeros."""
    k = len(units.gain)
    back, level = np.zeros((k + 1, units.size)), 0.0
    back[np.arange(k), units.size - k + np.arange(k)] = units.gain
    if units.size > k:
        back[k, 0], level = 1.0, units.level
        back[k, 1:] = -units.gain * units.center
    back *= units.spread
    mean = back @ prior.mean
    mean[k] += level
    return HeadPrior(mean, back @ prior.root, prior.noise * units.spread**2)


def too_few_users(n_users: int, n_features: int, rank: int, budget: Budget, *, intercept: bool) -> str:
    """Return the warning for a prior of heads that the noise hides, with the number of users that would do."""
    needed = _users_needed(n_users, n_features, rank, budget, intercept)
    enough = f"About {needed:,} users are enough at" if needed > n_users else "More users would help, or more than"
    return (
        f"the privacy noise hides the distribution of heads: every user falls back on their own rows, and users "
        f"without rows have no prediction. {enough} epsilon = {budget.epsilon:g}. Found {n_users:,}. A lower rank or "
        "a larger epsilon also helps."
    )


@lru_cache(maxsize=64)
def _users_needed(n_users: int, n_features: int, rank: int, budget: Budget, intercept: bool) -> int:
    """Return how many users would do; remembered, because an audit fits the same shape many times."""
    needed = max(n_users, 1)
    while not _enough(needed, n_features, rank, budget, intercept):
        needed = math.ceil(1.1 * needed)
    return needed


def _enough(n_users: int, n_features: int, rank: int, budget: Budget, intercept: bool) -> bool:
    phases = population_phases(budget, n_users, n_features, rank)
    bought = intercept or affordable(phases, basis_share(budget, n_users, n_features, rank))
    return bought and _blur(Plan(budget, phases), n_users) <= _SEEN


def _blur(plan: Plan, n_users: float) -> float:
    """Return the noise of what says whether the prior helps; public beforehand."""
    level = Advantage(Coordinates(np.zeros(0), np.zeros(0), 0.0, 1.0), Prior(np.zeros(1), np.eye(1), 1.0))
    return plan.event("coverage", clip=level.bound).sigma * level.blur / n_users
