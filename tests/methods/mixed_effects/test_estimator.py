"""The estimator of mixed effects: what it learns, predicts, says and keeps."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import tacitly
from tacitly.arrays import Array
from tacitly.baselines.mixed_model import MixedModel
from tacitly.methods.mixed_effects.algorithm import straight
from tacitly.model_folder import load, save
from tacitly.privacy.guarantee import Budget, TooFewUsersWarning

TRUE = np.array([3.0, 1.0, -0.5])
SPREADS = np.array([1.0, 0.5, 0.1])


def hierarchy(n: int, m: int, seed: int, noise: float = 0.5) -> tuple[Array, Array, np.ndarray, Array]:
    """Users with a level and two slopes; returns rows, targets, users and true weights."""
    rng = np.random.default_rng(seed)
    weights = TRUE + SPREADS * rng.normal(size=(n, 3))
    users = np.repeat(np.arange(n), m)
    X = rng.normal(size=(n * m, 2))
    y = weights[users, 0] + np.einsum("ij,ij->i", X, weights[users, 1:]) + noise * rng.normal(size=n * m)
    return X, y, users, weights


def fitted(epsilon: float, *data: Any, **options: Any) -> tacitly.MixedEffects:
    """Fit with seeded noise, so that a test gives the same result every time."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return tacitly.MixedEffects(epsilon=epsilon, noise="float", noise_seed=1, **options).fit(*data)


@pytest.fixture(scope="module")
def private() -> tacitly.MixedEffects:
    return fitted(1.0, *hierarchy(2000, 5, 0)[:3])


def test_without_noise_it_is_the_mixed_model() -> None:
    X, y, users, _ = hierarchy(600, 6, 1)
    X_new, _, users_new, _ = hierarchy(600, 2, 2)
    exact = MixedModel().fit(X, y, users)
    ours = fitted(math.inf, X, y, users)
    difference = ours.predict(X_new, users_new) - exact.predict(X_new, users_new)
    assert np.sqrt(np.mean(difference**2)) < 0.06  # an observation's noise is 0.5
    np.testing.assert_allclose(np.append(ours.intercept_, ours.coef_), TRUE, atol=0.15)


def test_the_population_is_found_at_epsilon_one(private: tacitly.MixedEffects) -> None:
    estimates = np.append(private.intercept_, private.coef_)
    errors = np.append(private.intercept_std_, private.coef_std_)
    assert (np.abs(estimates - TRUE) < 4.0 * errors).all()
    assert (errors < 0.1).all()
    np.testing.assert_allclose(np.sqrt(np.diag(private.covariance_))[:2], SPREADS[:2], rtol=0.25)
    assert private.noise_variance_ == pytest.approx(0.25, rel=0.25)
    assert private.helps_


def test_intervals_cover(private: tacitly.MixedEffects) -> None:
    weights = hierarchy(2000, 5, 0)[3]
    rng = np.random.default_rng(9)
    rows = rng.normal(size=(2000, 2))
    new = weights[:, 0] + np.einsum("ij,ij->i", rows, weights[:, 1:]) + 0.5 * rng.normal(size=2000)
    mean, std = private.predict(rows, np.arange(2000), return_std=True)
    assert np.mean(np.abs(new - mean) < 1.645 * std) == pytest.approx(0.9, abs=0.03)
    # Somebody new has the population's interval, which knows less and is wider.
    nobody, wide = private.predict(rows, return_std=True)
    assert np.mean(wide > std) > 0.97
    assert np.mean(np.abs(new - nobody) < 1.645 * wide) == pytest.approx(0.9, abs=0.03)


def test_effects_of_columns_that_are_constant_within_users_are_found_and_their_errors_say_how_well() -> None:
    """Their information is a thirtieth of the others'. Eight errors of unit variance: 1e-9 for a mean square of 9."""
    errors = []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        users, own = np.repeat(np.arange(600), 8), rng.normal(size=(600, 2)) * [12.0, 3.0] + [40.0, 12.0]
        X = np.hstack([own[users], rng.normal(size=(4800, 5))])
        y = X @ [0.03, -0.1, 0.3, 0.2, 0.1, 0.0, -0.2] + 0.8 * rng.normal(size=600)[users]
        y += 0.45 * rng.normal(size=4800)
        model = tacitly.MixedEffects(epsilon=1.0).fit(X, y, users)
        errors.append((model.coef_[:2] - [0.03, -0.1]) / model.coef_std_[:2])
    assert np.sqrt(np.mean(np.square(errors))) < 3.0


def test_unseen_users_are_predicted_by_the_population_and_personalize_agrees(private: tacitly.MixedEffects) -> None:
    X, y, users, _ = hierarchy(2000, 5, 0)
    rows = X[:4]
    np.testing.assert_array_equal(private.predict(rows, [-1, -2, -3, -4]), private.predict(rows))
    personal = private.personalize(X[users == 7], y[users == 7])
    np.testing.assert_allclose(personal.predict(rows), private.predict(rows, [7] * 4), rtol=1e-9)
    mean, std = personal.predict(rows, return_std=True)
    assert mean.shape == std.shape == (4,)
    np.testing.assert_allclose(personal.weights[0] + rows @ personal.weights[1:], mean, rtol=1e-6)
    nobody = private.personalize(np.zeros((0, 2)), np.zeros(0))
    np.testing.assert_allclose(nobody.predict(rows), private.predict(rows), rtol=1e-9)


@pytest.mark.parametrize(("factor", "offset"), [(1e6, 0.0), (1e-6, 0.0), (1.0, 1e3), (1e3, -1e6)])
def test_units_do_not_matter(factor: float, offset: float) -> None:
    X, y, users, _ = hierarchy(3000, 5, 3)
    moved = X.copy()
    moved[:, 0] = moved[:, 0] * factor + offset
    for epsilon in (1.0, math.inf):
        plain = fitted(epsilon, X, y, users).score(X, y, users)
        assert fitted(epsilon, moved, y, users).score(moved, y, users) == pytest.approx(plain, abs=0.01)
        far = fitted(epsilon, X, y * factor + offset, users).score(X, y * factor + offset, users)
        assert far == pytest.approx(plain, abs=0.01)


@pytest.mark.parametrize("n", [3, 12, 50])
def test_few_users_are_told_so_and_fall_back_on_their_own_rows(n: int) -> None:
    X, y, users, _ = hierarchy(n, 20, 4)
    with pytest.warns(TooFewUsersWarning, match="users are enough"):
        model = tacitly.MixedEffects(epsilon=1.0).fit(X, y, users)
    assert not model.helps_
    means = np.array([y[users == user].mean() for user in range(n)])
    np.testing.assert_allclose(model.predict(X, users), means[users], rtol=1e-6)
    assert "users are enough" in str(model.summary())


def test_three_hundred_users_are_never_far_behind_their_own_means() -> None:
    """20 draws of noise; the worst is at most 2 % above the better of user mean and the local fit."""
    X, y, users, weights = hierarchy(300, 6, 5)
    X_new, _, users_new, _ = hierarchy(300, 3, 6)
    truth = weights[users_new, 0] + np.einsum("ij,ij->i", X_new, weights[users_new, 1:])
    means = np.array([y[users == user].mean() for user in range(300)])
    alone = np.sqrt(np.mean((means[users_new] - truth) ** 2 + 0.25))
    for seed in range(20):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = tacitly.MixedEffects(epsilon=1.0, noise="float", noise_seed=seed).fit(X, y, users)
        error = np.sqrt(np.mean((model.predict(X_new, users_new) - truth) ** 2 + 0.25))
        assert error < 1.02 * alone


def test_a_text_column_without_a_second_frequent_level_is_said_to_be_left_out() -> None:
    X, y, users, _ = hierarchy(400, 3, 7)
    frame = pd.DataFrame({"age": X[:, 0], "sex": np.where(np.arange(len(y)) == 0, "f", "m")})
    model = fitted(2.0, frame, y, users)
    assert model.summary().left_out == ("sex",)
    assert "sex" in str(model.summary())


def test_a_table_with_text_and_missing_cells(tmp_path: Path) -> None:
    X, y, users, _ = hierarchy(2000, 5, 7)
    rng = np.random.default_rng(8)
    region = rng.choice(["north", "south", "east"], size=len(y))
    frame = pd.DataFrame(
        {"age": X[:, 0], "income": 1e4 * X[:, 1], "region": region, "member": rng.random(len(y)) < 0.5}
    )
    frame.loc[rng.random(len(y)) < 0.1, "age"] = np.nan
    target = pd.Series(y + 2.0 * (region == "south"), name="score")
    model = fitted(2.0, frame, target, users, schema={"region": {"levels": ["north", "south", "east"]}})
    effect = dict(zip(model.feature_names_in_, model.coef_, strict=True))
    south, north = (next(v for k, v in effect.items() if k.endswith(level)) for level in ("south", "east"))
    assert south - north == pytest.approx(2.0, abs=0.5)
    assert np.isfinite(model.predict(frame.head(20), users[:20])).all()
    save(model, tmp_path / "model")
    again = load(tmp_path / "model")
    np.testing.assert_allclose(
        again.predict(frame.head(20), users[:20]), model.predict(frame.head(20), users[:20]), rtol=1e-5
    )
    unknown = frame.head(3).assign(region=["west", None, "north"])
    assert np.isfinite(again.predict(unknown)).all()


@pytest.mark.parametrize("loss", ["squared", "logistic", "poisson"])
def test_a_model_says_the_same_after_it_was_saved_and_loaded(loss: str, tmp_path: Path) -> None:
    X, y, users = hierarchy(400, 5, 0)[:3]
    target = {"squared": y, "logistic": (y > 0).astype(int), "poisson": np.abs(y).astype(int)}[loss]
    model = tacitly.MixedEffects(epsilon=4.0, loss=loss).fit(X, target, users)
    folder = tacitly.save(model, tmp_path / "model")
    for where in (folder, tacitly.model_folder.publish(folder, tmp_path / "public")):
        loaded = tacitly.load(where)
        assert str(loaded.summary()).splitlines()[0] == str(model.summary()).splitlines()[0]
        assert len(str(loaded.summary()).splitlines()) == len(str(model.summary()).splitlines())


def test_the_summary_is_a_table_in_the_units_of_the_data() -> None:
    text = str(tacitly.MixedEffects(epsilon=1.0).fit(*hierarchy(1000, 5, 0)[:3]).summary())
    assert "ε = 1" in text
    for word in ("(intercept)", "estimate", "std. err.", "95 % interval", "users vary by", "residual"):
        assert word in text
    assert all(len(line) <= 100 for line in text.splitlines())


def test_rows_in_single_precision_give_the_same_model() -> None:
    X, y, users, _ = hierarchy(500, 5, 10)
    double = fitted(math.inf, X, y, users)
    single = fitted(math.inf, X.astype(np.float32), y.astype(np.float32), users)
    np.testing.assert_allclose(single.coef_, double.coef_, rtol=1e-3)


def test_predictions_of_many_rows_are_made_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads of all rows together filled the memory: 2 GB for 600 rows of a thousand columns."""
    X, y, users, *_ = tacitly.datasets.make_shared_subspace(200, 3, 1, 6, random_state=0)
    model = tacitly.MixedEffects(epsilon=8.0).fit(X, y, users)
    whole = model.predict(X, users, return_std=True)
    monkeypatch.setattr("tacitly.methods.mixed_effects.prediction._NUMBERS", 100)
    np.testing.assert_array_equal(model.predict(X, users, return_std=True), whole)
    assert model.predict(X[:0], users[:0]).shape == (0,)


def test_groups_of_text_that_nobody_is_in_do_not_draw_in_tails() -> None:
    """Sixteen groups are asked about, two are found: the two weights decide how far columns stay linear."""
    rng = np.random.default_rng(5)
    users = np.repeat(np.arange(1000), 4)
    table = pd.DataFrame({"visits": rng.exponential(size=4000), "clinic": np.where(users % 2, "north", "south")})
    units = fitted(1.0, table, rng.normal(size=4000), users).units_
    assert units.size == 3
    assert units.knee == straight(3, 1000, Budget(epsilon=1.0, delta=1e-6)) > 15.0
