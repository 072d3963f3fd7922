"""The reference mixed model agrees with statsmodels."""

from __future__ import annotations

import numpy as np

from tacitly.baselines.mixed_model import MixedModel


def test_it_agrees_with_statsmodels() -> None:
    """Numbers by ``MixedLM(y, Z, users, exog_re=Z).fit(reml=False, method="lbfgs")`` of statsmodels 0.15."""
    rng = np.random.default_rng(3)
    counts = rng.integers(2, 9, 60)
    users = np.repeat(np.arange(60), counts)
    X = np.round(rng.normal(size=(len(users), 2)), 3)
    weights = rng.multivariate_normal([1, 0.5, -0.3], [[1, 0.2, 0], [0.2, 0.3, 0], [0, 0, 0.1]], 60)
    y = np.round(weights[users, 0] + (X * weights[users, 1:]).sum(1) + 0.5 * rng.normal(size=len(users)), 3)
    model = MixedModel(iterations=5000, tolerance=1e-9).fit(X, y, users)
    np.testing.assert_allclose(model.mean_, [0.96302355, 0.35293909, -0.31165398], rtol=1e-5)
    expected = [[1.41313498, 0.30847489, 0.0735556], [0.30847489, 0.32672123, 0.05818019]]
    np.testing.assert_allclose(model.covariance_[:2], expected, rtol=1e-3)
    np.testing.assert_allclose(model.noise_variance_, 0.25608961, rtol=1e-4)


def test_units_and_unseen_users() -> None:
    rng = np.random.default_rng(0)
    users = np.repeat(np.arange(100), 6)
    X = rng.normal(size=(600, 2))
    y = 5.0 + rng.normal(size=100)[users] + X @ [1.0, -2.0] + 0.3 * rng.normal(size=600)
    plain = MixedModel().fit(X, y, users)
    other = MixedModel().fit(X * [1e6, 1e-3] + [1e7, 5.0], 100 * y, users)
    np.testing.assert_allclose(
        other.predict(X * [1e6, 1e-3] + [1e7, 5.0], users), 100 * plain.predict(X, users), rtol=1e-3
    )
    unseen = plain.predict(X[:3], [-1, -1, -1])
    np.testing.assert_allclose(unseen, plain.mean_[0] + X[:3] @ plain.mean_[1:])
