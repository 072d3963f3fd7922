"""Users with own weights beside a shared basis: a good basis is used, a basis of noise does hardly any harm."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tacitly import LocalModels, PrivateFedRep
from tacitly.arrays import Array
from tacitly.datasets import make_shared_subspace
from tacitly.heads.own_weights import HeadsWithOwnWeights
from tacitly.heads.ridge import RidgeHeads
from tacitly.linalg import orthonormal
from tacitly.model_folder import load, save
from tacitly.privacy.guarantee import TooFewUsersWarning

FEATURES, RANK, ROWS = 30, 2, 10


def errors_on(basis: Array, noise: float) -> tuple[float, float, float]:
    """Return population errors of heads with own weights, of heads on the basis alone, and of local models."""
    data = make_shared_subspace(200, FEATURES, RANK, ROWS, noise, random_state=1)
    X, y, offsets = np.asarray(data.X), np.asarray(data.y), np.arange(0, 200 * ROWS + 1, ROWS)
    both, alone = HeadsWithOwnWeights(basis)(X, y, offsets), RidgeHeads(basis)(X, y, offsets)
    k, local = basis.shape[1], LocalModels().fit(data.X, data.y, data.users)
    own = both[:, :k] @ basis.T + both[:, k + 1 :]
    return (
        data.population_mse(np.eye(FEATURES), own),
        data.population_mse(basis, alone[:, :-1]),
        data.population_mse(local.basis_, local.heads_),
    )


@pytest.mark.parametrize("noise", [0.01, 0.5])
def test_a_basis_of_noise_does_hardly_any_harm(noise: float) -> None:
    ours, alone, local = errors_on(orthonormal(np.random.default_rng(3).normal(size=(FEATURES, RANK)))[0], noise)
    assert ours < 1.05 * local
    assert ours < 0.9 * alone


def test_the_true_basis_is_used() -> None:
    basis = make_shared_subspace(200, FEATURES, RANK, ROWS, 0.01, random_state=1).basis
    ours, alone, local = errors_on(basis, 0.01)
    assert ours < 1.05 * alone < 0.01 * local


def test_half_a_basis_is_better_than_either() -> None:
    basis = make_shared_subspace(200, FEATURES, RANK, ROWS, 0.01, random_state=1).basis
    noisy = orthonormal(basis + 0.15 * np.random.default_rng(4).normal(size=basis.shape))[0]
    ours, alone, local = errors_on(noisy, 0.01)
    assert ours < 0.95 * min(alone, local)


def test_more_rows_than_features_and_features_that_never_vary_are_fitted() -> None:
    rng = np.random.default_rng(5)
    X = np.column_stack([rng.normal(size=(40, 3)), np.zeros(40)])
    head = HeadsWithOwnWeights(np.eye(4)[:, :1]).own(X, X @ [1.0, -2.0, 0.5, 0.0])
    np.testing.assert_allclose(head, [1.0, 0.0, 0.0, -2.0, 0.5, 0.0], atol=1e-3)


def test_few_users_keep_own_weights_through_predict_personalize_and_a_folder(tmp_path: Path) -> None:
    data = make_shared_subspace(60, 12, 2, 10, 0.1, random_state=0)
    with pytest.warns(TooFewUsersWarning):
        model = PrivateFedRep(rank=2, epsilon=1.0).fit(data.X, data.y, data.users)
    assert model.own_weights_.shape == (60, 12)
    weights = model.heads_ @ model.basis_.T + model.own_weights_
    predicted = model.predict(data.X, data.users)
    np.testing.assert_allclose(predicted, np.einsum("nd,nd->n", data.X, weights[data.users]), rtol=1e-9)
    mine = data.users == 7
    np.testing.assert_allclose(model.personalize(data.X[mine], data.y[mine]).predict(data.X[mine]), predicted[mine])
    save(model, tmp_path / "model")
    again = load(tmp_path / "model")
    np.testing.assert_allclose(again.predict(data.X, data.users), predicted)


def test_where_users_are_enough_the_basis_says_all() -> None:
    data = make_shared_subspace(3000, 10, 1, 10, 0.1, random_state=0)
    model = PrivateFedRep(rank=1, epsilon=2.0).fit(data.X, data.y, data.users)
    assert model.prior_ is not None
    assert len(model.own_weights_) == 0


def test_more_directions_than_features_are_refused() -> None:
    with pytest.raises(ValueError, match="directions"):
        HeadsWithOwnWeights(np.ones((5, 3000)))  # from the network: seconds of work for every user
