"""The covariance is learned along the directions in which users have information, whatever columns move together."""

from __future__ import annotations

import math

import numpy as np
import pytest

import tacitly
from tacitly.arrays import Array
from tacitly.baselines.mixed_model import MixedModel
from tacitly.linalg import pack_symmetric
from tacitly.methods.mixed_effects.covariance import changed, grown, turned
from tacitly.methods.mixed_effects.evidence import TRUSTED, personal_weights, shares_of
from tacitly.methods.mixed_effects.posterior import Coordinates, Prior


def related_columns(n: int, rows: int, seed: int) -> tuple[Array, Array, Array]:
    """Users whose three columns move together, and who differ most along a difference of two of them."""
    rng = np.random.default_rng(seed)
    users = np.repeat(np.arange(n), rows)
    size = rng.normal(size=n)[users] + 0.5 * rng.normal(size=n * rows)
    X = size[:, None] + 0.3 * rng.normal(size=(n * rows, 3))
    slopes = np.array([1.0, -0.5, 0.3]) + rng.normal(size=(n, 1)) * np.array([0.8, -0.8, 0.0])
    y = 0.5 * rng.normal(size=n)[users] + np.einsum("ij,ij->i", X, slopes[users]) + 0.05 * rng.normal(size=n * rows)
    return X, y, users


def test_turned_roots_have_the_same_covariance_and_a_diagonal_information() -> None:
    root, metric = np.diag([1.0, 0.3, 0.2]), np.diag([1.0, 2.0, 3.0]) + 0.1
    axes, sizes = turned(root, metric)
    np.testing.assert_allclose(axes @ axes.T, root @ root.T, atol=1e-14)
    half = np.linalg.solve(metric, axes)
    np.testing.assert_allclose(half.T @ half, np.diag(sizes), atol=1e-12)


def test_one_step_finds_the_covariance_where_information_is_diagonal() -> None:
    gains = np.array([0.9, 0.5, 0.2])
    truth = np.array([[0.5, 0.3, 0.0], [0.3, 1.0, -0.4], [0.0, -0.4, 2.0]])
    released = np.concatenate([pack_symmetric(truth * np.outer(gains, gains)), gains**2])
    root, _ = grown(np.eye(3), changed(released, 1e-12, gains, 10**9))
    np.testing.assert_allclose(root @ root.T, np.eye(3) + truth, atol=1e-6)


def test_noise_alone_changes_no_covariance() -> None:
    rng = np.random.default_rng(5)
    gains, noise = np.full(4, 0.5), 0.1
    for _ in range(20):
        released = np.concatenate([pack_symmetric(np.zeros((4, 4))), gains**2]) + 0.5 * noise * rng.normal(size=14)
        assert not np.any(changed(released, noise, gains, 1000))


def test_columns_that_move_together_cost_nothing_against_maximum_likelihood() -> None:
    X, y, users = related_columns(600, 6, seed=5)
    seen = np.tile(np.arange(6) < 5, 600)
    fresh = ~seen
    model = tacitly.MixedEffects(epsilon=math.inf)
    with pytest.warns(tacitly.UncertifiedWarning):
        model.fit(X[seen], y[seen], users[seen])
    exact = MixedModel().fit(X[seen], y[seen], users[seen])
    errors = [np.sqrt(np.mean(np.square(m.predict(X[fresh], users[fresh]) - y[fresh]))) for m in (model, exact)]
    assert errors[0] < 1.05 * errors[1]


def test_a_fit_through_as_many_rows_as_weights_is_not_believed() -> None:
    errors = np.array([[1e-6], [1e-3], [1.0], [2.0], [3.0]])
    through = np.array([[5.9], [5.0], [2.0], [1.0], [1.0]])
    shares = shares_of(errors, through, np.array([6.0]), np.array(TRUSTED))
    assert shares[2, 0] > 0.9
    believed = shares_of(errors, np.ones((5, 1)), np.array([6.0]), np.array(TRUSTED))
    assert believed[0, 0] > 0.9


def test_a_user_far_from_the_population_is_still_believed() -> None:
    units = Coordinates(np.zeros(1), np.ones(1), 0.0, 1.0)
    prior = Prior(np.zeros(2), 0.1 * np.eye(2), 1.0)
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(12, 1))
    far = 20.0 + 5.0 * rows[:, 0] + 0.1 * rng.normal(size=12)
    weights, _, noise = personal_weights(rows, far, np.array([0, 12]), units, prior, np.array(TRUSTED))
    assert abs(weights[0, 0] - 20.0) < 2.0  # the posterior alone says 2
    assert noise[0] < 3.0  # and by the prior alone such rows would be noisy: 200


def test_answers_that_are_alike_by_chance_are_no_certainty() -> None:
    """Three equal answers leave a user's own mean no error; trusting it lost 7 % to one model for all."""
    rng = np.random.default_rng(3)
    users, month = np.repeat(np.arange(1000), 4), np.tile([0.0, 6.0, 12.0, 24.0], 1000)
    level = 0.6 + 0.4 * rng.normal(size=1000)[users] + 0.8 * (month > 0)
    y = np.clip(np.rint(level + 0.6 * rng.normal(size=4000)), 0.0, 2.0)
    seen = rng.permuted(np.tile(np.arange(4) > 0, (1000, 1)), axis=1).ravel()
    model = tacitly.MixedEffects(epsilon=math.inf)
    with pytest.warns(tacitly.UncertifiedWarning):
        model.fit(month[seen, None], y[seen], users[seen])
    one_for_all = np.polynomial.Polynomial.fit(month[seen], y[seen], 1)(month[~seen])
    error = np.mean(np.square(model.predict(month[~seen, None], users[~seen]) - y[~seen]))
    assert error < 0.97 * np.mean(np.square(one_for_all - y[~seen]))


def test_variances_do_not_fall_to_nothing_where_most_users_are_alike() -> None:
    rng = np.random.default_rng(2)
    users = np.repeat(np.arange(1500), 2)
    ill = (rng.random(1500) < 0.2)[users] ^ (rng.random(3000) < 0.05)  # a diagnosis, as 0 and 1
    model = tacitly.MixedEffects(epsilon=math.inf)
    with pytest.warns(tacitly.UncertifiedWarning):
        model.fit(rng.normal(size=(3000, 2)), ill * 1.0, users)
    assert model.noise_variance_ + model.covariance_[0, 0] > 0.3 * np.var(ill)
