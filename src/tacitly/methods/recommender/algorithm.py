"""Learn from noisy releases what ratings have in common: prior of users, item effects, factors, popularity, tastes.

This is the server's part. Everything between releases is post-processing of public numbers. For ratings:

1. Prior: a few steps of expectation-maximisation for the prior of users' weights on a level and public features.
2. Items: a first release shows how often items are rated. A second has residuals and weights, with gains that minimise
   the error of effects, given the first. Empirical Bayes turns both into effects and popularity. The fewer users there
   are for the catalogue, the more of this budget goes to popularity, which recommendations need most.
3. Factors, if there are enough users: moments of pairs of the most popular items and a low-rank fit; then residuals
   along users' factors for the factors of all other items.
4. Prior again: popularity, effect and factors of an item are further features; users' weights on them get a prior too.
5. Tastes: the features of the items that users choose.

For plays (no ratings) there are popularity, factors of choices and tastes. The division of the budget and the number of
releases depend on the number of users, the size of the catalogue and ε, never on data.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from tacitly.arrays import Array
from tacitly.federation.base import Federation, Query
from tacitly.linalg import unpack_symmetric
from tacitly.methods.recommender.choices import ChoiceMoments, loadings
from tacitly.methods.recommender.effects import Effects, Sums, Weights, effects_of, gains_of, weights_of
from tacitly.methods.recommender.factors import covariance_factors, refined
from tacitly.methods.recommender.learned import Learned
from tacitly.methods.recommender.posterior import Catalogue, Codes, WeightPrior
from tacitly.methods.recommender.prior import advanced, extended
from tacitly.methods.recommender.queries import ItemSums, LoadingSums, PairMoments, PriorStep, TasteMoment
from tacitly.methods.recommender.tastes import Tastes, crowd_of, no_tastes, tastes_of, whitened
from tacitly.methods.shared.noisy_mean import noisy_mean
from tacitly.methods.shared.typical_norm import typical_norm
from tacitly.privacy.calibration import Phase, Plan
from tacitly.privacy.guarantee import Budget

MOST_FACTORS = 20
_PRIOR, _AGAIN, _TASTES, _TASTE_NORM = 0.05, 0.08, 0.03, 0.005
_STEPS = 4  # most steps of expectation-maximisation in a stage
_SPREAD = 0.3  # expected variance of effects
_LARGEST = 200  # largest number of items whose pairs are used
_PAIR_WEIGHT = 0.25  # scale of weights, relative to products of residuals of variance about one
_LOADINGS = 0.5  # share of the factors' budget for items whose pairs are not used
_CHOICES, _CHOICE_TASTES = 0.4, 0.2  # shares of factors of choices, and of tastes with them
_FACTOR = 0.0054  # eigenvalue of a typical factor, beyond what noise could produce, as a share of the number of users
_LEAST = 60  # least number of items whose pairs are useful
_ITEM_SHARE = 0.7  # largest share of effects if there are factors
_CHOICE = 0.02  # share of a typical factor of choices in what popularity does not explain
_ENOUGH = 0.37  # noise of even effects up to which popularity needs no extra budget


@dataclass(frozen=True)
class Settings:
    """Decisions before the first release, from public numbers."""

    n_users: int
    items: int
    features: int
    rank: int | None  # most factors; None for as many as the budget supports
    plays: bool
    sigma: float  # noise multiplier of a single release of the whole budget

    @classmethod
    def of(cls, n_users: int, items: int, features: int, rank: int | None, plays: bool, budget: Budget) -> Settings:
        """Return the settings for a budget."""
        whole = Plan(budget, [Phase(name="all", share=1.0)]).event("all", clip=1.0).sigma
        return cls(n_users, items, features, rank, plays, whole)

    @property
    def pairs(self) -> int:
        """Number of the most popular items whose pairs are used: as many as a typical factor exceeds the noise for.

        A factor that explains a few percent of a rating's variance has an eigenvalue of about a hundredth of the number
        of users; the noise's largest eigenvalue is √(2·items) times its standard deviation. With fewer than a few dozen
        items, too little is known about users to learn the factors of other items from them.
        """
        if self.rank == 0 or self.items < 3:
            return 0
        most = min(self.items, _LARGEST)
        signal, share = (_CHOICE, _CHOICES) if self.plays else (_FACTOR, 0.3)
        noise = self.sigma / math.sqrt(share)
        supported = int(min(0.5 * (signal * self.n_users / noise) ** 2, most)) if noise > 0 else most
        least = min(_LEAST, most)
        if self.rank is not None:
            return max(supported, least)
        return supported if supported >= least else 0

    @property
    def loadings(self) -> bool:
        """Whether there are items whose factors are learned from users' factors, not from pairs."""
        return 0 < self.pairs < self.items and not self.plays

    @property
    def even(self) -> float:
        """An effect's noise if ratings were spread evenly over items, fifty per user."""
        return self.sigma * self.items / (7.0 * self.n_users)

    @property
    def first(self) -> float:
        """The share of the items' budget for their popularity: larger if popularity is hard to estimate."""
        return min(0.1 * max(math.sqrt(self.even / _ENOUGH), 1.0), 0.5)

    @property
    def weight(self) -> float:
        """Scale of weights, relative to residuals of variance about one: larger if noise hides the effects."""
        return min(max(0.25 * math.sqrt(self.even / _ENOUGH), 0.5), 1.5)

    @property
    def more(self) -> int:
        """Further columns that are learned about an item: its popularity and its effect."""
        return 2 if self.items >= 20 and not self.plays else 0

    def steps(self, share: float, size: int) -> int:
        """Return the number of steps that a share can pay for if their noise must stay below the expected changes."""
        single = self.sigma * clip_of(size) / (self.n_users * math.sqrt(share))
        if single <= 0:
            return _STEPS
        return int(np.clip((0.2 / (single * math.sqrt(size))) ** 2, 1, _STEPS))

    @property
    def stages(self) -> tuple[int, int]:
        """Steps of the two stages of the prior."""
        size = 1 + self.features
        later = size + self.more + (8 if self.pairs else 0)
        return self.steps(_PRIOR, size), self.steps(_AGAIN, later)

    def plan(self, budget: Budget) -> Plan:
        """Divide a budget."""
        tastes = _TASTES if self.features else 0.0
        if self.plays:
            tastes = _CHOICE_TASTES if self.pairs else 0.3 if self.features else 0.0
            pairs = _CHOICES if self.pairs else 0.0
            phases = [Phase(name="popularity", share=1.0 - tastes - pairs - (_TASTE_NORM if tastes else 0.0))]
            phases += [Phase(name="pairs", share=pairs)] if pairs else []
        else:
            first, second = self.stages
            rest = 1.0 - _PRIOR - _AGAIN - tastes - (_TASTE_NORM if tastes else 0.0)
            # A small catalogue needs little budget for accurate effects.
            items = rest * (min(max((self.even / 0.05) ** 2, 0.12), _ITEM_SHARE) if self.pairs else 1.0)
            phases = [
                Phase(name="prior", share=_PRIOR, releases=first),
                Phase(name="popularity", share=self.first * items),
                Phase(name="items", share=(1.0 - self.first) * items),
                Phase(name="prior again", share=_AGAIN, releases=second),
            ]
            if self.pairs:
                part = _LOADINGS if self.loadings else 0.0
                phases.append(Phase(name="pairs", share=(rest - items) * (1.0 - part)))
                phases += [Phase(name="loadings", share=(rest - items) * part)] if part else []
        if tastes:
            phases += [Phase(name="taste norm", share=_TASTE_NORM), Phase(name="tastes", share=tastes)]
        total = math.fsum(phase.share for phase in phases)
        return Plan(budget, [replace(phase, share=phase.share / total * (1.0 - 1e-12)) for phase in phases])


def learn(
    federation: Federation, plan: Plan, settings: Settings, catalogue: Catalogue, rng: np.random.Generator
) -> Learned:
    """Learn from ratings, or from plays; see the module's docstring."""
    learner = _Learner(federation, plan, settings, rng)
    size = catalogue.size
    variances = np.append(0.5, np.full(size - 1, 0.05))
    prior = WeightPrior(np.zeros(size), np.diag(np.sqrt(variances)), 1.0)
    if settings.plays:
        weights = learner.weights(catalogue, prior)
        popularity = weights_of(weights.weights, weights.noise)
        factors = learner.choices(catalogue, popularity) if settings.pairs else np.zeros((settings.items, 0))
        tastes = learner.tastes(replace(catalogue, table=np.hstack([catalogue.table, factors])), popularity)
        none = np.zeros(settings.items)
        return Learned(catalogue, prior, popularity, none, tastes, factors.shape[1], plays=True)
    features = catalogue
    prior = learner.prior(catalogue, prior, "prior", settings.stages[0])
    found = learner.effects(catalogue, prior)
    catalogue = replace(catalogue, effects=found.effects)
    factors = learner.factors(catalogue, prior, found.popularity) if settings.pairs else np.zeros((settings.items, 0))
    columns = [_more(found) if settings.more else np.zeros((settings.items, 0)), factors]
    added = np.hstack(columns)
    variances = np.append(np.full(added.shape[1] - factors.shape[1], 0.02), np.ones(factors.shape[1]))
    prior = extended(prior, variances)
    prior = _without(prior, factors, found.popularity)
    catalogue = replace(catalogue, table=np.ascontiguousarray(np.hstack([catalogue.table, added])))
    prior = learner.prior(catalogue, prior, "prior again", settings.stages[1])
    tastes = learner.tastes(features, found.popularity)
    return Learned(catalogue, prior, found.popularity, found.certainty, tastes, factors.shape[1], plays=False)


@dataclass
class _Learner:
    """Makes releases and learns from them; holds public numbers only."""

    federation: Federation
    plan: Plan
    settings: Settings
    rng: np.random.Generator

    def prior(self, catalogue: Catalogue, prior: WeightPrior, phase: str, steps: int) -> WeightPrior:
        """Return the prior after some steps."""
        for step in range(steps):
            query = PriorStep(catalogue, prior)
            mean, noise = self._mean(query, phase, f"{phase} {step + 1}", clip_of(catalogue.size))
            prior = advanced(prior, mean, noise)
        return prior

    def effects(self, catalogue: Catalogue, prior: WeightPrior) -> Effects:
        """Release the popularity of items, then residuals with gains that depend on it."""
        first = self.weights(catalogue, prior)
        scale = self.settings.weight
        clip = 1.05 * math.hypot(math.sqrt(prior.noise), scale)
        event = self.plan.event("items", clip=clip)
        gains = gains_of(weights_of(first.weights, first.noise), self.federation.sum_sigma(event), _SPREAD)
        mean, noise = self._mean(ItemSums(catalogue, prior, gains, scale, values=True), "items", "items", clip)
        n, items = self.federation.n_users, catalogue.items
        second = Sums(gains, mean[items:] * n / scale, noise * n / scale, mean[:items] * n, noise * n)
        return effects_of(first, second, prior.noise, n)

    def weights(self, catalogue: Catalogue, prior: WeightPrior) -> Weights:
        """Release weights of items alone."""
        gains = np.ones(catalogue.items)
        mean, noise = self._mean(ItemSums(catalogue, prior, gains, 1.0, values=False), "popularity", "popularity", 1.0)
        n = self.federation.n_users
        return Weights(gains, mean[catalogue.items :] * n, noise * n)

    def factors(self, catalogue: Catalogue, prior: WeightPrior, popularity: Array) -> Array:
        """Release moments of pairs of the most popular items; return factors of all items, zero for the others."""
        chosen, place = self._places(catalogue, popularity)
        query = PairMoments(catalogue, prior, place, _PAIR_WEIGHT * prior.noise)
        size = query.size
        clip = 1.1 * math.hypot(prior.noise, query.scale)
        mean, noise = self._mean(query, "pairs", "pairs", clip)
        n, half = self.federation.n_users, size * (size + 1) // 2
        sums, weights = unpack_symmetric(mean[:half] * n, size), unpack_symmetric(mean[half:] * n / query.scale, size)
        most = MOST_FACTORS if self.settings.rank is None else self.settings.rank
        noise *= n
        found = covariance_factors(sums, weights, noise, noise / query.scale, prior.noise, most, self.rng)
        factors = np.zeros((catalogue.items, found.shape[1]))
        factors[chosen] = found
        return self.loadings(catalogue, prior, popularity, factors) if self.settings.loadings else factors

    def loadings(self, catalogue: Catalogue, prior: WeightPrior, popularity: Array, factors: Array) -> Array:
        """Release residuals along users' factors; return factors of all items."""
        # The release is made and paid for even if no factor was found.
        columns = factors if factors.shape[1] else np.zeros((catalogue.items, 1))
        catalogue, prior = _with_factors(catalogue, prior, columns, popularity)
        query = LoadingSums(catalogue, prior, columns.shape[1])
        mean, noise = self._mean(query, "loadings", "loadings", 1.05 * math.sqrt(prior.noise))
        n = self.federation.n_users
        sums = (mean * n).reshape(columns.shape)
        return refined(factors, sums, noise * n, popularity, prior.noise, n) if factors.shape[1] else factors

    def choices(self, catalogue: Catalogue, popularity: Array) -> Array:
        """Release which of the most popular items are chosen together; return loadings, zero for other items."""
        chosen, place = self._places(catalogue, popularity)
        kept = np.maximum(popularity[chosen], 1e-3 * max(float(popularity.max()), 1e-9))
        query = ChoiceMoments(catalogue, place, kept / float(kept.sum()))
        mean, noise = self._mean(query, "pairs", "pairs", 1.0)
        n, total = self.federation.n_users, max(float(popularity.sum()), 1e-9)
        # Weights are 1/√m, so they sum to √m over a user's items.
        typical = (total / n) ** 2 * float(kept.sum()) / total
        most = MOST_FACTORS if self.settings.rank is None else self.settings.rank
        found = loadings(mean, noise, query, n, typical, most, self.rng)
        factors = np.zeros((catalogue.items, found.shape[1]))
        factors[chosen] = found / np.maximum(np.sqrt(kept @ np.square(found) / total), 1e-12)
        return factors

    def tastes(self, catalogue: Catalogue, popularity: Array) -> Tastes:
        """Release how users differ in the features of the items they choose."""
        if not (self.settings.features or (self.settings.plays and self.settings.pairs)):
            return no_tastes(catalogue.items)
        features = whitened(catalogue.table[:, 1:], popularity)
        if not features.shape[1]:  # no factor exceeds the noise; the release is made and paid for in any case
            features = np.zeros((catalogue.items, 1))
        crowd = crowd_of(popularity)
        query = TasteMoment(catalogue, features, crowd)
        typical = typical_norm(self.federation, query, self.plan.event("taste norm", clip=1.0), "taste norm", reach=12)
        mean, noise = self._mean(query, "tastes", "tastes", 1.5 * typical.size)
        return tastes_of(mean, noise, features, crowd)

    def _places(self, catalogue: Catalogue, popularity: Array) -> tuple[Codes, Array]:
        """Return the most popular items, and the position of each item among them, -1 for the others."""
        chosen = np.argsort(-popularity, kind="stable")[: self.settings.pairs].astype(np.int64)
        place = np.full(catalogue.items, -1.0)
        place[chosen] = np.arange(len(chosen))
        return chosen, place

    def _mean(self, query: Query, phase: str, name: str, clip: float) -> tuple[Array, float]:
        return noisy_mean(self.federation, query, self.plan.event(phase, clip=clip), name)


def clip_of(size: int) -> float:
    """Return the clipping bound of :class:`PriorStep`: most users' vectors are shorter if the prior is about right."""
    return 1.0 + 1.1 * math.sqrt(size)


def _with_factors(
    catalogue: Catalogue, prior: WeightPrior, factors: Array, popularity: Array
) -> tuple[Catalogue, WeightPrior]:
    """Return catalogue and prior with factors as further columns; users' weights on them have variance one."""
    table = np.ascontiguousarray(np.hstack([catalogue.table, factors]))
    prior = _without(extended(prior, np.ones(factors.shape[1])), factors, popularity)
    return replace(catalogue, table=table), prior


def _without(prior: WeightPrior, factors: Array, popularity: Array) -> WeightPrior:
    """Return the prior, with the part that factors explain subtracted from the variance of a rating."""
    explained = float(popularity @ np.square(factors).sum(axis=1)) / max(float(popularity.sum()), 1e-9)
    return replace(prior, noise=max(prior.noise - explained, 0.3 * prior.noise))


def _more(found: Effects) -> Array:
    """Return popularity (its logarithm) and effect of each item as features with unit variance over ratings."""
    floor = 0.02 * max(float(found.popularity.max()), 1e-9)
    columns = []
    shares = (found.popularity + 1e-9) / float((found.popularity + 1e-9).sum())
    for column in (np.log(found.popularity + floor), found.effects):
        middle = float(shares @ column)
        spread = math.sqrt(float(shares @ np.square(column - middle)))
        columns.append(np.clip((column - middle) / max(spread, 0.05), -4.0, 4.0))
    return np.stack(columns, axis=1)
