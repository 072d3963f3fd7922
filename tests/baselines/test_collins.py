"""FedRep as Collins et al. printed it, and local gradient descent."""

from __future__ import annotations

import numpy as np
import pytest

import tacitly

DATA = tacitly.datasets.make_shared_subspace(60, 6, 1, 8, random_state=0)


def test_the_printed_fedrep_finds_the_basis_from_a_random_start() -> None:
    model = tacitly.FedRep(rank=1, mode="paper", rounds=120, random_state=0).fit(DATA.X, DATA.y, DATA.users)
    assert tacitly.subspace_distance(model.basis_, DATA.basis) < 0.02
    assert model.score(DATA.X, DATA.y, DATA.users) > 0.99


def test_gradient_steps_approach_the_exact_fit_from_zero() -> None:
    rng = np.random.default_rng(0)
    X, y, users = rng.normal(size=(90, 3)), rng.normal(size=90), np.repeat([0, 1, 2], 30)
    none, many = (tacitly.LocalModels(gradient_steps=steps).fit(X, y, users) for steps in (0, 400))
    assert not none.heads_.any()
    exact = [np.linalg.lstsq(X[users == user], y[users == user])[0] for user in range(3)]
    np.testing.assert_allclose(many.heads_, exact, atol=1e-6)
    with pytest.raises(ValueError, match="gradient_steps are for"):
        tacitly.LocalModels(gradient_steps=5, fit_intercept=True).fit(X, y, users)
