"""Releases about ratings respect their sensitivity, attain it, and a mutation is caught."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import pytest

from adversary import clipped
from tacitly.audit.sensitivity import check_sensitivity
from tacitly.federation.base import Query
from tacitly.methods.recommender.choices import ChoiceMoments, chances
from tacitly.methods.recommender.posterior import Catalogue, WeightPrior, posteriors
from tacitly.methods.recommender.queries import ItemSums, LoadingSums, PairMoments, PriorStep, TasteMoment
from tacitly.privacy.clipping import GUARD

ITEMS, SIZE = 7, 3
RNG = np.random.default_rng(0)
TABLE = np.column_stack([np.ones(ITEMS), RNG.normal(size=(ITEMS, SIZE - 1))])
CATALOGUE = Catalogue(TABLE, RNG.normal(size=ITEMS), 1.0, 5.0)
PRIOR = WeightPrior(0.1 * RNG.normal(size=SIZE), np.tril(RNG.normal(size=(SIZE, SIZE))) + np.eye(SIZE), 0.5)
PLACE = np.array([0.0, -1.0, 2.0, 1.0, -1.0, 3.0, -1.0])
SHARES = np.array([0.75, 0.15, 0.05, 0.05])
GAINS = RNG.uniform(0.3, 1.0, ITEMS)

QUERIES: dict[str, tuple[Query, float]] = {
    "prior step": (PriorStep(CATALOGUE, PRIOR), 1.0),
    "item sums": (ItemSums(CATALOGUE, PRIOR, GAINS, 0.5, values=True), 0.6),
    "popularity": (ItemSums(CATALOGUE, PRIOR, GAINS, 1.0, values=False), 1.0),
    "pair moments": (PairMoments(CATALOGUE, PRIOR, PLACE, 0.2), 0.3),
    "loading sums": (LoadingSums(CATALOGUE, PRIOR, 2), 0.5),
    "choice moments": (ChoiceMoments(CATALOGUE, PLACE, SHARES), 0.8),
    "taste moment": (TasteMoment(CATALOGUE, RNG.normal(size=(ITEMS, 2)), 5.0), 0.3),
}
EVERY = pytest.mark.parametrize("name", QUERIES)

User = tuple[np.ndarray, np.ndarray]


def users() -> dict[str, User]:
    """Users built to break the bound: extreme ratings, one item, all items, one item many times, bad positions."""
    every = np.arange(float(ITEMS))
    signs = np.where(np.arange(ITEMS) % 2, 9.0, -9.0)
    found = {
        "one item, highest": (np.array([2.0]), np.array([5.0])),
        "one item, lowest": (np.array([5.0]), np.array([1.0])),
        "one item, beyond the range": (np.array([2.0]), np.array([1e300])),
        "all items, alternating": (every, signs),
        "all items, opposite": (every, -signs),
        "all items, high": (every, np.full(ITEMS, 5.0)),
        "one item a thousand times": (np.full(1000, 2.0), np.resize([5.0, 1.0], 1000)),
        "two items many times": (np.resize([2.0, 3.0], 99), np.resize([5.0, 1.0, 5.0], 99)),
        "positions between items": (every + 0.7, signs),
        "positions outside": (np.array([-1.0, 7.0, 1e300, np.inf, np.nan, -np.inf, 1e9]), np.full(7, 5.0)),
        "ratings that are no numbers": (every, np.array([np.nan, np.inf, -np.inf, 5.0, 1.0, 3.0, 2.0])),
        "nothing": (np.zeros(0), np.zeros(0)),
    }
    return {name: (X[:, None], y) for name, (X, y) in found.items()}


@EVERY
def test_no_user_moves_a_release_by_more_than_its_sensitivity(name: str) -> None:
    query, bound = QUERIES[name]
    pairs = list(itertools.pairwise(users().values()))
    assert list(check_sensitivity(query, 1, bound, pairs=pairs).violations) == []
    assert check_sensitivity(query, 3, bound).ok  # further columns are not looked at


@EVERY
def test_some_user_reaches_the_clip(name: str) -> None:
    query, bound = QUERIES[name]
    reached = max(float(np.linalg.norm(clipped(query, user, bound))) for user in users().values())
    assert 0.999 * bound < reached <= bound * (1 - GUARD / 2)


@pytest.mark.parametrize("name", ["prior step", "item sums", "loading sums"])
def test_replacing_a_user_comes_near_two_clips(name: str) -> None:
    query = QUERIES[name][0]
    bound = 1e-3  # so that every user is clipped
    if isinstance(query, ItemSums):
        query = ItemSums(CATALOGUE, PRIOR, GAINS, 1e-3, values=True)
    sums = [clipped(query, user, bound) for user in users().values()]
    furthest = max(float(np.linalg.norm(a - b)) for a, b in itertools.combinations(sums, 2))
    assert (1.95 if isinstance(query, ItemSums) else 1.5) * bound < furthest <= 2.0 * bound


@EVERY
def test_users_meet_in_the_sum_only(name: str) -> None:
    query, bound = QUERIES[name]
    everybody = list(users().values())
    offsets = np.concatenate([[0], np.cumsum([len(y) for _, y in everybody])])
    X, y = np.concatenate([X for X, _ in everybody]), np.concatenate([y for _, y in everybody])
    alone = sum((clipped(query, user, bound) for user in everybody), np.zeros(query.coordinates))
    np.testing.assert_allclose(query.block_sum(X, y, offsets, bound), alone, rtol=1e-9, atol=1e-12)
    plain = Query.block_sum(query, X, y, offsets, bound)
    np.testing.assert_allclose(query.block_sum(X, y, offsets, bound), plain, rtol=1e-9, atol=1e-12)


@EVERY
def test_a_user_without_usable_ratings_sends_nothing(name: str) -> None:
    query = QUERIES[name][0]
    for user in ("positions outside", "nothing"):
        assert not query.contribution(*users()[user]).any()


def test_the_last_of_several_ratings_counts() -> None:
    query = QUERIES["item sums"][0]
    twice = query.contribution(np.array([[2.0], [3.0], [2.0]]), np.array([1.0, 4.0, 5.0]))
    np.testing.assert_array_equal(twice, query.contribution(np.array([[2.0], [3.0]]), np.array([5.0, 4.0])))


def test_item_sums_are_residuals_of_the_posterior_with_weights_of_norm_one() -> None:
    """By hand: one level, three items."""
    catalogue = Catalogue(np.ones((4, 1)), np.array([0.0, 0.5, 0.0, 0.0]), -2.0, 2.0)
    prior = WeightPrior(np.zeros(1), np.eye(1), 1.0)
    query = ItemSums(catalogue, prior, np.ones(4), 0.5, values=True)
    found = query.contribution(np.array([[0.0], [1.0], [3.0]]), np.array([1.0, 1.5, -1.0]))
    level = (1.0 + 1.0 - 1.0) / 4.0
    expected = np.array([1.0 - level, 1.0 - level, 0.0, -1.0 - level]) / np.sqrt(3.0)
    np.testing.assert_allclose(found, np.append(expected, 0.5 * np.array([1, 1, 0, 1]) / np.sqrt(3.0)), atol=1e-12)


def test_loading_sums_are_residuals_along_the_users_direction() -> None:
    """By hand: a level of zero, one factor, of which the user has more than nothing."""
    catalogue = Catalogue(np.array([[0.0, 1.0], [0.0, 0.0], [0.0, 0.5]]), np.zeros(3), -2.0, 2.0)
    query = LoadingSums(catalogue, WeightPrior(np.zeros(2), np.eye(2), 1.0), 1)
    found = query.contribution(np.array([[0.0], [1.0]]), np.array([2.0, 1.5]))
    np.testing.assert_allclose(found, np.array([2.0 - 1.0, 1.5, 0.0]) / np.sqrt(2.0), atol=1e-12)


@dataclass(frozen=True)
class NotTurned(LoadingSums):
    """Mutation: the user's factors themselves instead of their direction, after the clip."""

    def block_sum(self, X, y, offsets, bound):  # type: ignore[no-untyped-def]
        total = np.zeros(self.coordinates)
        for a, b in itertools.pairwise(offsets):
            codes, values, bounds = self.catalogue.rated(X[a:b], y[a:b], np.array([0, b - a]))
            own = posteriors(codes, values, bounds, self.catalogue, self.prior).weights(self.prior)[0, -self.factors :]
            total += float(np.linalg.norm(own)) * super().block_sum(X[a:b], y[a:b], np.array([0, b - a]), bound)
        return total


def test_choice_moments_are_what_popularity_does_not_explain_on_the_unit_sphere() -> None:
    """By hand: two items, equally popular, one of them chosen."""
    catalogue = Catalogue(np.ones((3, 1)), np.zeros(3), 0.0, 1.0)
    query = ChoiceMoments(catalogue, np.array([0.0, -1.0, 1.0]), np.array([0.5, 0.5]))
    found = query.contribution(np.array([[1.0], [2.0]]), np.zeros(2))
    np.testing.assert_allclose(found, [0.5, -0.5 * np.sqrt(2.0), 0.5], atol=1e-9)
    assert not query.contribution(np.array([[0.0], [2.0]]), np.zeros(2)).any()  # all of them: nothing to tell
    np.testing.assert_allclose(chances(SHARES).sum(axis=1), np.arange(5.0), atol=1e-6)


@dataclass(frozen=True)
class NotDivided(ChoiceMoments):
    """Mutation: x xᵀ as it is, longer than one for who chose what few choose."""

    def block_sum(self, X, y, offsets, bound):  # type: ignore[no-untyped-def]
        total = np.zeros(self.coordinates)
        for a, b in itertools.pairwise(offsets):
            place = self.place[X[a:b, 0].astype(int) % ITEMS].astype(int)
            count = len(np.unique(place[place >= 0]))
            chosen = np.isin(np.arange(self.size), place)
            norm = float(np.sum(np.square(chosen - self.expected[count])))
            total += norm * self.contribution(X[a:b], y[a:b])
        return total


@dataclass(frozen=True)
class ClippedByItem(ItemSums):
    """Mutation: clips each item's part alone, so that somebody with many ratings counts many times."""

    def block_sum(self, X, y, offsets, bound):  # type: ignore[no-untyped-def]
        found = [self.contribution(X[a:b], y[a:b]) for a, b in itertools.pairwise(offsets)]
        return sum((np.clip(one, -bound, bound) for one in found), np.zeros(self.coordinates))


@dataclass(frozen=True)
class Repeated(PairMoments):
    """Mutation: counts every rating of an item, while the norm counts each item once."""

    def block_sum(self, X, y, offsets, bound):  # type: ignore[no-untyped-def]
        times = max(int(np.bincount(np.abs(X[:, 0]).astype(int) % ITEMS, minlength=1).max()), 1) if len(X) < 2000 else 1
        return min(times, 3) * super().block_sum(X, y, offsets, bound)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (ClippedByItem, "item sums"),
        (Repeated, "pair moments"),
        (NotDivided, "choice moments"),
        (NotTurned, "loading sums"),
    ],
)
def test_a_mutation_is_caught(kind: type, name: str) -> None:
    query, bound = QUERIES[name]
    mutated = kind(**{name: getattr(query, name) for name in query.__dataclass_fields__})  # type: ignore[attr-defined]
    pairs = list(itertools.combinations([(X, y) for X, y in users().values() if np.isfinite(X).all()], 2))
    bound = 0.3 if kind is ClippedByItem else bound
    assert list(check_sensitivity(mutated, 1, bound, pairs=pairs).violations)
