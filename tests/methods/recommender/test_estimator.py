"""The recommender learns, recommends, keeps its promises, and takes bad input as it comes."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tacitly
from tacitly.datasets import Ratings, make_ratings
from tacitly.datasets.rating_scores import held_out as held_out_ratings
from tacitly.datasets.rating_scores import ndcg
from tacitly.methods.recommender.algorithm import Settings
from tacitly.methods.recommender.effects import Sums, Weights, gains_of, popularity_of, weights_of
from tacitly.methods.recommender.factors import covariance_factors, refined
from tacitly.methods.recommender.heads import left_out
from tacitly.methods.recommender.posterior import Catalogue, WeightPrior, posteriors
from tacitly.methods.recommender.tastes import whitened

DATA = make_ratings(1500, 60, mean_ratings=25, random_state=1)


def model(epsilon: float = math.inf, data: Ratings = DATA, **options: Any) -> tacitly.Recommender:
    given = {"items": data.item_ids, "item_features": data.item_features[:, 1:], "rating_range": (1, 5)}
    return tacitly.Recommender(**{"epsilon": epsilon, "noise_seed": 0, "random_state": 0, **given, **options})


def fitted(
    epsilon: float = math.inf, rows: Any = slice(None), plays: bool = False, **options: Any
) -> tacitly.Recommender:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tacitly.UncertifiedWarning)
        return model(epsilon, **options).fit(DATA.users[rows], DATA.item_ids[DATA.items[rows]], DATA.values[rows])


@pytest.fixture(scope="module")
def held_out() -> np.ndarray:
    return np.random.default_rng(0).random(len(DATA.users)) < 0.2


@pytest.fixture(scope="module")
def exact(held_out: np.ndarray) -> tacitly.Recommender:
    return fitted(rows=~held_out)


def error(found: tacitly.Recommender, rows: np.ndarray) -> float:
    predicted = found.predict(DATA.users[rows], DATA.item_ids[DATA.items[rows]])
    return float(np.sqrt(np.mean(np.square(predicted - DATA.values[rows]))))


def means_error(train: np.ndarray, rows: np.ndarray) -> float:
    """Error of user means plus item means, not private."""
    users = np.bincount(DATA.users[train], DATA.values[train], 1500) / np.maximum(
        np.bincount(DATA.users[train], None, 1500), 1
    )
    left = DATA.values[train] - users[DATA.users[train]]
    items = np.bincount(DATA.items[train], left, 60) / np.maximum(np.bincount(DATA.items[train], None, 60), 1)
    predicted = users[DATA.users[rows]] + items[DATA.items[rows]]
    return float(np.sqrt(np.mean(np.square(predicted - DATA.values[rows]))))


def test_it_beats_means_without_noise_and_stays_near_with_it(exact: tacitly.Recommender, held_out: np.ndarray) -> None:
    assert error(exact, held_out) < 0.96 * means_error(~held_out, held_out)
    assert error(fitted(4.0, ~held_out), held_out) < 1.04 * error(exact, held_out)  # noise_seed: no false alarm


def test_recommendations_beat_popularity(exact: tacitly.Recommender, held_out: np.ndarray) -> None:
    users = np.arange(1500)
    liked = held_out & (DATA.values >= 4)
    wanted = set(zip(DATA.users[liked].tolist(), DATA.items[liked].tolist(), strict=True))
    famous = np.argsort(-np.bincount(DATA.items[~held_out], minlength=60), kind="stable")
    seen = set(zip(DATA.users[~held_out].tolist(), DATA.items[~held_out].tolist(), strict=True))

    def hits(best: Any) -> int:
        return sum((user, int(item)) in wanted for user in users for item in best[user])

    popular = [[item for item in famous if (user, int(item)) not in seen][:5] for user in users]
    assert hits(exact.recommend_all(users, 5)) > hits(popular)


def test_recommend_excludes_what_was_rated_and_returns_ids(exact: tacitly.Recommender, held_out: np.ndarray) -> None:
    rated = set(DATA.item_ids[DATA.items[~held_out & (DATA.users == 7)]])
    best = exact.recommend(7, k=60)
    assert not rated & set(best.items)
    assert len(best.items) == 60 - len(rated)
    assert (np.diff(best.scores) <= 0).all()
    assert len(exact.recommend(7, k=60, exclude_seen=False).items) == 60
    np.testing.assert_array_equal(exact.recommend_all([7], 5)[0] + 100, exact.recommend(7, k=5).items)


def test_strangers_get_the_population_and_newcomers_their_own(exact: tacitly.Recommender, held_out: np.ndarray) -> None:
    ids = DATA.item_ids[:5]
    np.testing.assert_array_equal(exact.predict(["nobody"] * 5, ids), exact.predict_new({}, ids))
    mine = ~held_out & (DATA.users == 7)
    own = dict(zip(DATA.item_ids[DATA.items[mine]].tolist(), DATA.values[mine].tolist(), strict=True))
    np.testing.assert_allclose(exact.predict_new(own, ids), exact.predict([7] * 5, ids))
    assert not set(own) & set(exact.recommend_new(own, k=10).items)
    with pytest.raises(tacitly.DataError, match="map items to ratings"):
        exact.recommend_new([100])


def test_a_run_is_certified_and_spends_what_it_planned() -> None:
    found = tacitly.Recommender(2.0, items=DATA.item_ids, rating_range=(1, 5))
    found.fit(DATA.users, DATA.item_ids[DATA.items], DATA.values)
    assert found.certificate_.certified
    assert found.certificate_.epsilon == pytest.approx(2.0, abs=1e-6)
    planned = found.planned_releases(found.cohort(DATA.users, DATA.item_ids[DATA.items], DATA.values))
    assert len(found.certificate_.releases) == planned
    assert "releases" in found.summary()


def test_a_model_folder_keeps_predictions_and_what_was_seen(exact: tacitly.Recommender, tmp_path: Path) -> None:
    loaded = tacitly.load(tacitly.save(exact, tmp_path / "model"))
    users, ids = DATA.users[:50], DATA.item_ids[DATA.items[:50]]
    np.testing.assert_allclose(loaded.predict(users, ids), exact.predict(users, ids), atol=1e-4)
    np.testing.assert_array_equal(loaded.recommend(7).items, exact.recommend(7).items)


def test_plays_give_popularity_and_tastes() -> None:
    data = make_ratings(1500, 400, mean_ratings=20, random_state=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tacitly.UncertifiedWarning)
        found = model(data=data, rating_range=None).fit(data.users, data.item_ids[data.items])
    counts = np.bincount(data.items, minlength=400)
    assert np.corrcoef(found.popularity_, counts)[0, 1] > 0.97
    assert found.rank_ == 3  # as generated
    assert len(found.learned_.tastes.variances) == 6 + 3
    assert found.learned_.tastes.variances.max() > 0.01
    assert len(found.recommend_new([100, 101], k=4).items) == 4
    assert (found.predict([1, 2], [100, 101]) > 0).all()


def test_bad_input_is_taken_or_refused_in_words() -> None:
    ids = DATA.item_ids[DATA.items]
    with pytest.raises(ValueError, match="items must be given"):
        tacitly.Recommender(1.0).fit([1, 2], [1, 2], [1.0, 2.0])
    with pytest.raises(ValueError, match="rating_range must be given"):
        tacitly.Recommender(1.0, items=[1, 2]).fit([1, 2], [1, 2], [1.0, 2.0])
    with pytest.raises(tacitly.DataError, match="none of the 2 ids is in the catalogue"):
        model().fit([1, 2], ["a", "b"], [1.0, 2.0])
    with pytest.raises(ValueError, match="different ids"):
        model(items=[1, 1]).fit([1, 2], [1, 1], [1.0, 2.0])
    with pytest.raises(tacitly.DataError, match="one row per item"):
        model(item_features=np.ones((3, 1))).fit(DATA.users, ids, DATA.values)
    with pytest.raises(ValueError, match="rank must be"):
        model(rank=1.5).fit(DATA.users, ids, DATA.values)
    with pytest.raises(tacitly.DataError, match="not in the catalogue"):
        fitted().predict([1], ["unheard of"])
    with pytest.raises(ValueError, match="k must be"):
        fitted().recommend(1, k=0)


def test_odd_rows_change_nothing_but_their_own_users_part() -> None:
    """Unknown items are left out, ratings beyond the range are cut, the last of several counts."""
    ids = DATA.item_ids[DATA.items]
    more_users = np.append(DATA.users, [0, DATA.users[0]])
    more_items = np.append(ids.astype(object), ["unheard of", ids[0]])
    values = np.append(np.where(DATA.values == 5, 70.0, DATA.values), [3.0, DATA.values[0]])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tacitly.UncertifiedWarning)
        found = model(items=DATA.item_ids.astype(str)).fit(more_users, more_items.astype(str), values)
    np.testing.assert_allclose(found.item_effects_, fitted().item_effects_, atol=1e-9)


def test_single_ratings_and_items_that_nobody_rated_are_fine() -> None:
    found = model(1.0, item_features=None, items=np.arange(30))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tacitly.UncertifiedWarning)
        found.fit(np.arange(40), np.arange(40) % 3, np.full(40, 4.0))
    assert np.isfinite(found.predict(np.arange(30), np.arange(30))).all()
    assert len(found.recommend(3, k=50).items) == 29


def test_features_help_where_items_are_many_and_ratings_few() -> None:
    data = make_ratings(1500, 400, mean_ratings=20, n_genres=4, random_state=3)
    held = np.random.default_rng(1).random(len(data.users)) < 0.2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tacitly.UncertifiedWarning)
        errors = {}
        for name, features in {"with": data.item_features[:, 1:], "without": None}.items():
            found = model(1.0, data, item_features=features)
            found.fit(data.users[~held], data.item_ids[data.items[~held]], data.values[~held])
            left = found.predict(data.users[held], data.item_ids[data.items[held]]) - data.values[held]
            errors[name] = float(np.sqrt(np.mean(left**2)))
    assert errors["with"] < errors["without"]


def test_settings_follow_public_numbers_only() -> None:
    budget = model(1.0)._budget()
    assert Settings.of(25_000, 100, 0, None, False, budget).pairs == 100  # Jester
    assert Settings.of(6_040, 3_706, 20, None, False, budget).pairs == 0  # a long tail, few users
    assert Settings.of(6_040, 3_706, 20, None, False, model(4.0)._budget()).loadings
    assert Settings.of(6_040, 3_706, 20, None, True, budget).pairs > 100  # what is chosen together needs fewer
    assert Settings.of(600, 9_000, 20, None, True, budget).pairs == 0
    assert Settings.of(1_000_000, 20_000, 20, None, False, budget).pairs == 200
    assert Settings.of(6_040, 3_706, 20, 0, False, model(math.inf)._budget()).pairs == 0
    assert Settings.of(600, 9_000, 20, None, False, budget).stages == (1, 1)


def test_residuals_of_left_out_ratings_are_those_of_a_fit_without_them() -> None:
    rng = np.random.default_rng(0)
    catalogue = Catalogue(np.column_stack([np.ones(6), rng.normal(size=6)]), rng.normal(size=6), -2.0, 2.0)
    prior = WeightPrior(np.array([0.2, -0.1]), np.array([[1.0, 0.0], [0.3, 0.5]]), 0.7)
    codes, values = np.arange(6), rng.normal(size=6)
    bounds = np.array([0, 6])
    found = left_out(codes, values, bounds, catalogue, prior, posteriors(codes, values, bounds, catalogue, prior))
    for j in range(6):
        rest = np.arange(6) != j
        without = posteriors(codes[rest], values[rest], np.array([0, 5]), catalogue, prior).weights(prior)[0]
        assert found[j] == pytest.approx(values[j] - catalogue.effects[j] - catalogue.table[j] @ without)


def test_weights_are_pulled_to_what_most_items_have() -> None:
    rng = np.random.default_rng(0)
    truth = np.append(np.zeros(900), np.full(100, 50.0))
    noisy = truth + 5.0 * rng.normal(size=1000)
    assert np.mean(np.square(weights_of(noisy, 5.0) - truth)) < 0.4 * np.mean(np.square(noisy - truth))
    np.testing.assert_allclose(weights_of(truth, 0.0), truth, rtol=0.05, atol=0.1)


@pytest.mark.parametrize("noise", [0.0, 1e-3, 5.0, 1e4])
def test_gains_keep_users_norms_and_follow_what_can_be_known(noise: float) -> None:
    weights = np.geomspace(0.01, 300.0, 500)
    gains = gains_of(weights, noise, 0.3)
    assert weights @ np.square(gains) == pytest.approx(weights.sum())
    assert gains.min() > 0.1
    if noise == 5.0:  # neither what is known anyway nor what is lost gets most
        assert max(gains[0], gains[-1]) < 0.5 * gains.max()

        def left(tried: np.ndarray) -> float:
            tried = tried * np.sqrt(weights.sum() / (weights @ np.square(tried)))
            return float(np.sum(weights / (1.0 + 0.3 * np.square(weights * tried / noise))))

        assert left(gains) < min(left(np.ones(500)), left(weights**-0.5), left(weights**-0.25))
    assert np.isfinite(gains_of(np.zeros(4), noise, 0.3)).all()


def test_popularity_that_is_lost_in_the_noise_keeps_its_unit() -> None:
    """Without an item that stands out, weights of the second release must not pass for many times larger ones."""
    rng = np.random.default_rng(0)
    truth = np.append(np.full(3000, 0.5), np.full(30, 25.0))
    first = Weights(np.ones(3030), truth + 10.0 * rng.normal(size=3030), 10.0)
    gains = gains_of(weights_of(first.weights, first.noise), 10.0, 0.3)
    second = Sums(gains, truth * gains + 10.0 * rng.normal(size=3030), 10.0, np.zeros(3030), 10.0)
    found = popularity_of(first, second)
    assert 0.3 * truth.sum() < found.sum() < 3.0 * truth.sum()
    assert found[3000:].mean() > 4.0 * found[:3000].mean()


def test_recommendations_are_no_worse_than_private_popularity_where_users_are_few() -> None:
    """600 users, 4,000 items, ε = 1; popularity has the whole budget to itself."""
    data = make_ratings(600, 4000, mean_ratings=60, random_state=5)
    test = held_out_ratings(data.users, random_state=0)
    users, items, gains = data.users[test], data.items[test], data.values[test]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tacitly.UncertifiedWarning)
        found = [
            model(1.0, data, noise_seed=seed).fit(
                data.users[~test], data.item_ids[data.items[~test]], data.values[~test]
            )
            for seed in range(2)
        ]
    mine = np.mean([ndcg(one.recommend_all(np.arange(600)), users, items, gains) for one in found])
    weights = np.bincount(data.items[~test], 1.0 / np.sqrt(np.bincount(data.users[~test])[data.users[~test]]), 4000)
    sigma = Settings.of(600, 4000, 6, None, False, model(1.0)._budget()).sigma
    rng, theirs = np.random.default_rng(0), []
    seen = np.zeros((600, 4000), dtype=bool)
    seen[data.users[~test], data.items[~test]] = True
    for _ in range(4):
        scores = np.where(seen, -np.inf, weights + sigma * rng.normal(size=4000))
        theirs.append(ndcg(np.argsort(-scores, axis=1)[:, :10], users, items, gains))
    assert mine > np.mean(theirs)  # seeds: no false alarm


def test_noise_alone_has_no_factors_and_a_clear_factor_is_found() -> None:
    rng = np.random.default_rng(0)
    weights = np.full((40, 40), 100.0)
    drawn = rng.normal(size=(40, 40))
    noise = (drawn + drawn.T) / 2.0
    direction = rng.choice([-0.3, 0.3], 40)
    clear = weights * np.outer(direction, direction) + noise
    found = covariance_factors(clear, weights, 1.0, 0.01, 0.0, 20, rng)
    outside = ~np.eye(40, dtype=bool)
    left = (found @ found.T - np.outer(direction, direction))[outside]
    assert np.sqrt(np.mean(left**2)) < 0.02
    assert covariance_factors(0.5 * noise, weights, 1.0, 0.01, 0.0, 20, rng).shape[1] == 0


def test_factors_of_other_items_follow_from_users_factors() -> None:
    """Popular items have theirs, the others none yet; sums as they are expected, with noise."""
    rng = np.random.default_rng(0)
    truth, popularity = 0.2 * rng.normal(size=(400, 2)), np.repeat([100.0, 40.0], 200)
    before = np.where(np.arange(400)[:, None] < 200, truth + 0.05 * rng.normal(size=(400, 2)), 0.0)
    sums = popularity[:, None] * 0.7 / np.sqrt(2.0) * (truth - before) + 3.0 * rng.normal(size=(400, 2))
    found = refined(before, sums, 3.0, popularity, 0.0, 1000)
    for some in (slice(0, 200), slice(200, 400)):
        assert np.mean(np.square(found - truth)[some]) < 0.8 * np.mean(np.square(before - truth)[some])
    alone = refined(before, 3.0 * rng.normal(size=(400, 2)), 3.0, popularity, 0.0, 1000)
    assert np.square(alone - before).mean() < 1e-3  # of noise of 0.01 on average


def test_plays_show_what_is_chosen_together() -> None:
    """Two kinds of items that no feature tells apart; popularity would recommend both alike."""
    rng = np.random.default_rng(0)
    kinds = rng.integers(2, size=2000)
    fame = rng.normal(size=80) + 2.5 * (np.arange(80) % 2 == kinds[:, None])
    picks = np.argsort(-(fame + rng.gumbel(size=fame.shape)), axis=1)[:, :10]
    users = np.repeat(np.arange(2000), 10)
    ranks: tuple[int | str, ...] = (0, "auto")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tacitly.UncertifiedWarning)
        found = {
            rank: tacitly.Recommender(2.0, items=np.arange(80), rank=rank, noise_seed=0, random_state=0).fit(
                users, picks.ravel()
            )
            for rank in ranks
        }
    right = {rank: np.mean(one.recommend_all(np.arange(2000), 5) % 2 == kinds[:, None]) for rank, one in found.items()}
    assert found["auto"].rank_ >= 1
    assert right["auto"] > 0.75 > 0.65 > right[0]  # seeds: no false alarm
    assert len(found["auto"].recommend_new([0, 2, 4], k=5).items) == 5


def test_whitened_features_have_unit_covariance_over_popularity() -> None:
    rng = np.random.default_rng(0)
    features, popularity = rng.normal(size=(50, 3)), rng.uniform(1, 2, 50)
    found = whitened(features, popularity)
    shares = popularity / popularity.sum()
    np.testing.assert_allclose((found * shares[:, None]).T @ found, np.eye(3), atol=1e-4)
