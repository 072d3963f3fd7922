"""The population of heads: the distribution of users' heads on a shared basis, learned for a small share of the budget.

After the basis U is released, two things are missing for users with few rows or none: a direction that all users have
in common although they hardly differ along it, and the distribution of heads over users. So

1. the population's direction joins the basis, if it exceeds the noise
   (:func:`~tacitly.methods.shared.central.population_direction`);
2. the algorithm of mixed effects runs on the projected rows (1, Uᵀx), which have k + 1 numbers instead of d, and learns
   mean and covariance of the heads and the noise variance (:mod:`tacitly.methods.mixed_effects.algorithm`).

Heads are then fitted locally under this prior (:mod:`tacitly.heads.population`). The releases are those of the two
modules. Each is a sum clipped to a public bound C and one Gaussian event: sensitivity C (zero-out), 2C (replace-one).
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
"""Share of the budget for heads: with many users, and the largest, with few users."""

_ORDER_ONE = 4.0
_NARROWER = 4.0  # factor by which a whitened direction may look narrower than others, relative to users' variation
_FIXED = 1e-6  # standard deviation of a weight that is fixed, relative to that of intercepts
_SEEN = 0.25  # with this noise of the advantage over users' own means, it is known whether the prior helps
_WANTED = 90.0  # users per unit of noise of a whole budget from which on the smaller share is enough
# A few directions have a small covariance matrix. With few users, the variances are hard to estimate.
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
    """A public basis and the prior of heads on it; None if the noise hides the distribution of heads."""

    basis: Array
    prior: HeadPrior | None


def population_phases(budget: Budget, n_users: int, n_features: int, rank: int) -> tuple[Phase, ...]:
    """Return the phases of :func:`learn_population`, for a basis of at most ``rank`` directions."""
    direction = direction_phases(budget, n_users, n_features - rank, DIRECTION_SHARE)
    directed = int(bool(direction))
    share = heads_share(budget, n_users)
    # The algorithm plans for a whole budget; a share of a budget equals a whole budget with fewer users.
    alike = mixed_effects.Settings(max(1, round(n_users * math.sqrt(share))), (None,) * (rank + 1 + directed))
    phases = alike.plan(budget).phases
    parts = [phase.share * _HARDER.get(phase.name, 1.0) for phase in phases]
    total = math.fsum(parts) * (1.0 + 1e-12)
    heads = [replace(phase, share=share * part / total, acute=False) for phase, part in zip(phases, parts, strict=True)]
    return (*direction, *heads)


def affordable(phases: tuple[Phase, ...], needed: float) -> bool:
    """Whether these phases leave the basis the share of the budget that it needs: heads on noise are useless."""
    return math.fsum(phase.share for phase in phases) + needed <= 1.0


def heads_share(budget: Budget, n_users: int) -> float:
    """Return the share of the budget for the distribution of heads, from public numbers."""
    whole = Plan(budget, [Phase(name="all", share=1.0)]).event("all", clip=1.0).sigma
    return min(max((_WANTED * whole / n_users) ** 2, HEADS_SHARES[0]), HEADS_SHARES[1])


def learn_population(federation: Federation, plan: Plan, found: LearnedBasis, *, intercept: bool) -> Population:
    """Release the population's direction and the prior of heads; return the basis with both."""
    columns = found.basis
    if "central steps" in {phase.name for phase in plan.phases}:
        direction = population_direction(federation, plan, found.whitening, columns, centered=intercept)
        columns = columns if direction is None else np.column_stack([columns, direction])
    # Directions that are orthogonal in raw units are not suitable: if one column has other units, the scores along all
    # directions would follow this column, and heads could not be distinguished. So heads use whitened directions.
    whitened = found.whitening.to_raw(orthonormal(columns)[0])
    lengths = np.linalg.norm(whitened, axis=0)
    basis, turn = orthonormal(whitened / lengths)
    prior = learn_heads(
        federation.projected((whitened / lengths).T), plan, intercept=intercept, variation=1.0 / lengths
    )
    return Population(basis, None if prior is None else turned(prior, turn))


def turned(prior: HeadPrior, turn: Array) -> HeadPrior:
    """Return the prior of heads on Q from the prior of heads v on Q·turn: on Q, the same weights are turn·v."""
    k = len(turn)
    mean, root = prior.mean.copy(), prior.root.copy()
    mean[:k], root[:k] = turn @ prior.mean[:k], turn @ prior.root[:k]
    return HeadPrior(mean, root, prior.noise)


def learn_heads(
    federation: Federation, plan: Plan, *, intercept: bool, weight_one: bool = False, variation: Array | None = None
) -> HeadPrior | None:
    """Release the distribution of heads on all columns of the (projected) rows; None if the noise hides it.

    ``weight_one``: heads are an intercept and the weight one on the only column. ``variation``: how far users vary
    along each column, up to a common factor, if this is known (:func:`not_too_narrow`).
    """
    units = learn_units(federation, plan, (None,) * (federation.n_features + 1))
    found = units.spread > 0 and bool((units.gain > 0).all())
    # Planned releases are made whether or not the units were found.
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
    _, helps = state.checked(prior)  # checked for what users get: free weights may help even if weight one does not
    seen = _blur(plan, plan.sampling_rate * federation.n_users) <= _SEEN
    return in_raw_units(units, prior) if found and helps and seen and plausible else None


def not_too_narrow(gain: Array, variation: Array) -> Array:
    """Return gains limited by the whitening; ``variation``: how far users vary, up to a common factor.

    The scale of a column is the scale of most of its values. In some directions nearly all rows are close together and
    a few are far away (the difference of two columns that nearly always move together). Such a direction would get the
    scale of the many rows. Values far away are bounded while heads are learned, but not in predictions: a weight that
    is small in these units could then have any effect. The whitening uses all rows of a user, so it shows how far users
    vary along each direction, relative to the others.

    >>> not_too_narrow(np.array([1.0, 2.0, 2000.0]), np.array([1.0, 0.5, 0.5]))
    array([1., 2., 8.])
    """
    widest = float(np.max(1.0 / (gain * variation)))
    return np.minimum(gain, _NARROWER / (widest * variation))


def with_weight_one(units: Coordinates, prior: Prior) -> Prior:
    """Return the prior of intercepts for users who all have weight one on the only column, in standardised units.

    A user with weight w and intercept a has, given weight one, the intercept a + (w − 1)x. The standardised x has mean
    zero and variance one over rows. So intercepts keep their mean, and their variance grows by E(w − 1)². This differs
    from the distribution of intercepts *conditional* on a weight of one: if noise or differences between users have
    moved weights away from one, that would be the distribution of untypical users.
    """
    spread = units.spread or 1.0
    one = 1.0 / (float(units.gain[0]) * spread)
    variance = prior.covariance[0, 0] + prior.covariance[1, 1] + (prior.mean[1] - one) ** 2
    deviation = math.sqrt(float(variance))
    # The weight hardly varies, rather than not at all: covariances are inverted.
    return replace(prior, mean=np.array([prior.mean[0], one]), root=np.diag([deviation, _FIXED * deviation]))


def _plausible(prior: Prior) -> bool:
    """Whether a prior in standardised units is of order one, as it is unless it is only noise."""
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
    """Return the warning for a prior of heads that the noise hides, with the number of users that would be enough."""
    needed = _users_needed(n_users, n_features, rank, budget, intercept)
    enough = f"About {needed:,} users are enough at" if needed > n_users else "More users would help, or more than"
    return (
        f"the privacy noise hides the distribution of heads: every user falls back on their own rows, and users "
        f"without rows have no prediction. {enough} epsilon = {budget.epsilon:g}. Found {n_users:,}. A lower rank or "
        "a larger epsilon also helps."
    )


@lru_cache(maxsize=64)
def _users_needed(n_users: int, n_features: int, rank: int, budget: Budget, intercept: bool) -> int:
    """Return how many users would be enough; cached, because an audit fits the same shape many times."""
    needed = max(n_users, 1)
    while not _enough(needed, n_features, rank, budget, intercept):
        needed = math.ceil(1.1 * needed)
    return needed


def _enough(n_users: int, n_features: int, rank: int, budget: Budget, intercept: bool) -> bool:
    phases = population_phases(budget, n_users, n_features, rank)
    bought = intercept or affordable(phases, basis_share(budget, n_users, n_features, rank))
    return bought and _blur(Plan(budget, phases), n_users) <= _SEEN


def _blur(plan: Plan, n_users: float) -> float:
    """Return the noise of the release that shows whether the prior helps; known and public in advance."""
    level = Advantage(Coordinates(np.zeros(0), np.zeros(0), 0.0, 1.0), Prior(np.zeros(1), np.eye(1), 1.0))
    return plan.event("coverage", clip=level.bound).sigma * level.blur / n_users
