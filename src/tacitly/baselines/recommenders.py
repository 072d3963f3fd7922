"""Baselines of :class:`tacitly.Recommender`: means, popularity, alternating least squares, DP-SGD.

All of them release through the federation, so their ε is derived from the ledger: each has its own, also at ε = ∞.

* :class:`ItemMeans`: private item means around users' means.
* :func:`private_popularity`: a private count of ratings per item.
* :class:`PrivateALS`: DPALS (Chien et al. 2021). Users solve for their factors locally; per item, the sums of u uᵀ and
  r·u are released in every round. A user's items are weighted by a power of their private counts, which is the paper's
  adaptive weighting, and a user's whole contribution has a bounded norm. At ε = ∞ it is alternating least squares.
* :class:`PrivateSGD`: DP-SGD on the item factors: per-user gradients, clipped, one noisy step per round.

Adjacency, sensitivity, event. One user's contribution is one vector clipped to norm C as the last operation: C
(zero-out), 2C (replace-one), one Gaussian event per release, as in :mod:`tacitly.methods.recommender.queries`.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from tacitly.arrays import Array, Offsets, Rows, check_shape
from tacitly.data.cohort import Cohort
from tacitly.federation.base import Federation, Query
from tacitly.federation.local import LocalFederation
from tacitly.linalg import pack_symmetric, unpack_symmetric
from tacitly.methods.recommender import kernels
from tacitly.methods.recommender.posterior import Catalogue, WeightPrior
from tacitly.methods.recommender.queries import ItemSums
from tacitly.privacy.calibration import Phase, Plan
from tacitly.privacy.clipping import GUARD
from tacitly.privacy.guarantee import Budget, UncertifiedWarning
from tacitly.privacy.ledger import Ledger

Codes = npt.NDArray[np.int64]


@dataclass
class ItemMeans:
    """Users' means, computed locally, and private means per item of the residuals; ``gains`` and shrinkage as usual."""

    epsilon: float
    delta: float = 1e-6

    def fit(self, cohort: Cohort, items: int, low: float, high: float) -> ItemMeans:
        """Learn item means from ratings whose first column is the item's position."""
        plan = Plan(Budget(epsilon=self.epsilon, delta=self.delta), [Phase(name="items", share=1.0)])
        federation = _federation(cohort, plan, "item means")
        self.catalogue = Catalogue(np.ones((items, 1)), np.zeros(items), low, high)
        prior = WeightPrior(np.zeros(1), np.full((1, 1), 1.0), 1.0)
        found, noise = _sums(federation, plan, self.catalogue, prior, "items")
        sums, weights = found
        # Users' variance is about one in these units; a mean is shrunk according to the noise of its sum and weight.
        kept = np.maximum(weights, 0.0)
        self.effects = sums * kept / (kept**2 + noise**2 * 4.0 + kept * 0.1 + 1e-12)
        self.weights, self.noise = weights, noise
        self.levels = _levels(cohort, self.catalogue, self.effects)
        return self

    def predict(self, positions: Codes, codes: Codes) -> Array:
        """Return predicted ratings for users at these positions in the cohort."""
        catalogue = self.catalogue
        found = (self.levels[positions] + self.effects[codes]) * catalogue.unit + catalogue.middle
        return np.asarray(np.clip(found, catalogue.low, catalogue.high))


def private_popularity(cohort: Cohort, items: int, epsilon: float, delta: float = 1e-6) -> Array:
    """Return noisy counts of ratings per item: each user's ratings have weight 1/√m, so that their norm is bounded."""
    plan = Plan(Budget(epsilon=epsilon, delta=delta), [Phase(name="popularity", share=1.0)])
    federation = _federation(cohort, plan, "popularity")
    catalogue = Catalogue(np.ones((items, 1)), np.zeros(items), 0.0, 1.0)
    query = ItemSums(catalogue, WeightPrior(np.zeros(1), np.eye(1), 1.0), np.ones(items), 1.0, values=False)
    return federation.release(query, plan.event("popularity", clip=1.0), "popularity")[items:]


@dataclass(frozen=True)
class FactorSums(Query):
    """Per item ω(u uᵀ, r·u), packed, with u the user's ridge solution given the item factors, and ω of norm one.

    With ``gradient`` it is ω·e·u instead, where e is the residual of u: the gradient of the item's factor.
    """

    catalogue: Catalogue  # its table holds the item factors
    gains: Array
    penalty: float
    gradient: bool

    def __post_init__(self) -> None:
        check_shape("gains", self.gains, self.catalogue.items)

    @property
    def width(self) -> int:
        """Numbers per item."""
        rank = self.catalogue.size
        return rank if self.gradient else rank * (rank + 1) // 2 + rank

    @property
    def coordinates(self) -> int:
        """Numbers of all items."""
        return self.catalogue.items * self.width

    def contribution(self, X: Rows, y: Rows) -> Array:
        """Return one user's sums before clipping."""
        return self.block_sum(X, y, np.array([0, len(X)]), np.inf)

    def block_sum(self, X: Rows, y: Rows, offsets: Offsets, bound: float) -> Array:
        """Clip each user's sums and add them up."""
        codes, values, bounds = self.catalogue.rated(X, y, offsets)
        users = factors_of(codes, values, bounds, self.catalogue, self.penalty)
        left = kernels.residuals(codes, values, bounds, self.catalogue.table, self.catalogue.effects, users)
        out, limit = np.zeros((self.catalogue.items, self.width)), bound * (1.0 - GUARD)
        second = pack_symmetric(users[:, :, None] * users[:, None, :])
        for user in range(len(bounds) - 1):
            rows = slice(bounds[user], bounds[user + 1])
            mine, own = codes[rows], users[user]
            gains = self.gains[mine]
            weights = gains / max(float(np.linalg.norm(gains)), 1e-300)
            if self.gradient:
                added = np.outer(weights * left[rows], own)
            else:
                targets = values[rows] - self.catalogue.effects[mine]
                added = weights[:, None] * np.hstack(
                    [np.broadcast_to(second[user], (len(mine), second.shape[1])), np.outer(targets, own)]
                )
            norm = float(np.linalg.norm(added))
            if np.isfinite(norm):
                out[mine] += added * min(1.0, limit / max(norm, 1e-300))
        return out.ravel()


@dataclass
class PrivateALS:
    """DPALS: alternating least squares with noisy sums per item; plain alternating least squares at ε = ∞."""

    rank: int
    epsilon: float
    delta: float = 1e-6
    rounds: int = 3
    penalty: float = 8.0
    ridge: float = 10.0  # an item's penalty, relative to the noise of its sums
    random_state: int | None = None

    def fit(self, cohort: Cohort, items: int, low: float, high: float) -> PrivateALS:
        """Learn item means with three tenths of the budget, then item factors of the residuals."""
        plan = Plan(
            Budget(epsilon=self.epsilon, delta=self.delta),
            [Phase(name="items", share=0.3), Phase(name="rounds", share=0.7 * (1 - 1e-12), releases=self.rounds)],
        )
        federation = _federation(cohort, plan, "alternating least squares")
        self.means = ItemMeans(self.epsilon, self.delta)
        catalogue = Catalogue(np.ones((items, 1)), np.zeros(items), low, high)
        (sums, weights), noise = _sums(federation, plan, catalogue, WeightPrior(np.zeros(1), np.eye(1), 1.0), "items")
        kept = np.maximum(weights, 0.0)
        effects = sums * kept / (kept**2 + noise**2 * 4.0 + kept * 0.1 + 1e-12)
        gains = (np.maximum(kept, max(noise, 1e-3 * float(kept.max()))) / max(float(kept.max()), 1e-12)) ** -0.25
        levels = _levels(cohort, replace(catalogue, effects=effects), effects)
        rng = np.random.default_rng(self.random_state)
        self.levels, factors = levels, 0.3 * rng.normal(size=(items, self.rank))
        own = _without_levels(cohort, levels, low, high)
        federation = _again(federation, own)
        middle = Catalogue(factors, effects, low - high, high - low)
        for number in range(self.rounds):
            factors = self._round(federation, plan, middle, gains, f"round {number + 1}")
            middle = replace(middle, table=np.ascontiguousarray(factors))
        self.catalogue = middle
        self.scale = catalogue
        assert own.y is not None
        codes, values, bounds = middle.rated(own.X, own.y, own.offsets)
        self.users = factors_of(codes, values, bounds, middle, self.penalty)
        return self

    def _round(self, federation: Federation, plan: Plan, catalogue: Catalogue, gains: Array, name: str) -> Array:
        query = FactorSums(catalogue, gains, self.penalty, gradient=False)
        event = plan.event("rounds", clip=0.5)
        found = federation.release(query, event, name).reshape(catalogue.items, query.width)
        half, rank = query.width - self.rank, self.rank
        noise = federation.sum_sigma(event)
        factors = np.zeros((catalogue.items, rank))
        for item in range(catalogue.items):
            gram = unpack_symmetric(found[item, :half], rank)
            values, vectors = np.linalg.eigh(gram)
            # The paper projects the noisy matrix to positive definite ones; here the penalty grows with the noise.
            ridge = 0.1 + self.ridge * noise
            factors[item] = vectors @ ((vectors.T @ found[item, half:]) / (np.maximum(values, 0.0) + ridge))
        return factors

    def predict(self, positions: Codes, codes: Codes) -> Array:
        """Return predicted ratings for users at these positions in the cohort."""
        inner = np.einsum("ij,ij->i", self.users[positions], self.catalogue.table[codes])
        found = (inner + self.catalogue.effects[codes]) * self.catalogue.unit + self.levels[positions]
        return np.asarray(np.clip(found, self.scale.low, self.scale.high))


@dataclass
class PrivateSGD(PrivateALS):
    """DP-SGD on the item factors; users solve for their factors locally."""

    rounds: int = 10
    step: float = 3.0

    def _round(self, federation: Federation, plan: Plan, catalogue: Catalogue, gains: Array, name: str) -> Array:
        query = FactorSums(catalogue, np.ones(catalogue.items), self.penalty, gradient=True)
        found = federation.release(query, plan.event("rounds", clip=0.3), name)
        moved = found.reshape(catalogue.table.shape) / federation.n_users
        return np.asarray(catalogue.table + self.step * catalogue.items**0.5 * moved)


def factors_of(codes: Codes, values: Array, bounds: Offsets, catalogue: Catalogue, penalty: float) -> Array:
    """Return users' factors given those of items: a local ridge regression."""
    grams, rights, _ = kernels.normal_equations(codes, values, bounds, catalogue.table, catalogue.effects)
    return np.asarray(np.linalg.solve(grams + penalty * np.eye(catalogue.size), rights[..., None])[..., 0])


def _sums(
    federation: Federation, plan: Plan, catalogue: Catalogue, prior: WeightPrior, phase: str
) -> tuple[tuple[Array, Array], float]:
    query = ItemSums(catalogue, prior, np.ones(catalogue.items), 0.5, values=True)
    event = plan.event(phase, clip=1.1)
    released = federation.release(query, event, phase)
    return (released[: catalogue.items], released[catalogue.items :] / 0.5), federation.sum_sigma(event)


def _levels(cohort: Cohort, catalogue: Catalogue, effects: Array) -> Array:
    """Return users' means of ratings minus item effects, slightly shrunk, in the catalogue's units."""
    assert cohort.y is not None
    codes, values, bounds = catalogue.rated(cohort.X, cohort.y, cohort.offsets)
    owner = np.repeat(np.arange(cohort.n_users), np.diff(bounds))
    sums = np.bincount(owner, values - effects[codes], minlength=cohort.n_users)
    return np.asarray(sums / (np.diff(bounds) + 2.0))


def _without_levels(cohort: Cohort, levels: Array, low: float, high: float) -> Cohort:
    """Return ratings minus their users' levels, computed locally. Levels become rating units."""
    assert cohort.y is not None
    levels *= (high - low) / 4.0
    levels += (low + high) / 2.0
    owner = np.repeat(np.arange(cohort.n_users), np.diff(cohort.offsets))
    y = np.clip(np.asarray(cohort.y, dtype=np.float64), low, high) - levels[owner]
    return replace(cohort, y=y)


def _federation(cohort: Cohort, plan: Plan, name: str) -> LocalFederation:
    events = plan.events()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UncertifiedWarning)
        ledger = Ledger(ceiling=plan.budget if plan.budget.private else None)
        run = ledger.run(name, config={}, planned=events, certified=plan.budget.private)
    return LocalFederation(cohort, run, noise="float")


def _again(federation: LocalFederation, cohort: Cohort) -> LocalFederation:
    """Return the same run on other rows of the same users, which they computed locally."""
    other = LocalFederation(cohort, federation.ledger_run, noise="float")
    other._counter = federation._counter
    return other
