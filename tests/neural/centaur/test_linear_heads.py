"""Personal linear heads."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from tacitly.neural.centaur import linear_heads
from tacitly.neural.centaur.heads import HeadMaker
from tacitly.neural.centaur.linear_heads import _left_out_errors, fit_classes, fit_linear
from tacitly.neural.engine.local_training import LocalTraining

torch.set_num_threads(1)


def test_heads_follow_the_public_head_where_own_rows_say_little() -> None:
    rng = np.random.default_rng(0)
    public = np.array([[3.0, 0.0, 0.0], [-3.0, 0.0, 0.0]])
    z = rng.normal(size=(8, 3))
    weights, _ = fit_classes(z, (z[:, 0] < 0).astype(int), public)
    assert np.argmax(np.abs(weights[0] - weights[1])) == 0
    flat, level = fit_linear(np.zeros((3, 2)), np.ones((3, 1)), np.zeros((1, 2)))
    assert (flat == 0).all()
    assert level[0] == 1.0


def test_a_row_is_left_out_together_with_its_views() -> None:
    """The formula gives what refitting without the row and its mirror image gives."""
    rng = np.random.default_rng(2)
    z, y, views, penalty = rng.normal(size=(12, 3)), rng.normal(size=(12, 2)), 3, 0.7
    centred = z - z.mean(0)
    values, vectors = np.linalg.eigh(centred @ centred.T)
    kept = values / (values + penalty)
    residuals = vectors @ ((1 - kept)[:, None] * (vectors.T @ (y - y.mean(0))))
    found = _left_out_errors(residuals[None, None], vectors, kept[None], views)
    expected = 0.0
    for row in range(4):
        out = np.arange(12) % 4 == row  # views follow one another, each with all four rows
        mean, level = z[~out].mean(0), y[~out].mean(0)
        a = z[~out] - mean
        weights = np.linalg.solve(a.T @ a + penalty * np.eye(3), a.T @ (y[~out] - level))
        expected += float(np.sum((y[out] - level - (z[out] - mean) @ weights) ** 2))
    assert found.shape == (1, 1)
    assert found[0, 0] == pytest.approx(expected)


def test_views_of_pure_noise_do_not_pass_for_evidence() -> None:
    rng = np.random.default_rng(3)
    z, y = rng.normal(size=(40, 30)), rng.normal(size=(40, 1))
    both, goals = np.vstack([z, z + 0.01 * rng.normal(size=z.shape)]), np.vstack([y, y])
    grouped, apart = (np.linalg.norm(fit_linear(both, goals, np.zeros((1, 30)), views)[0]) for views in (2, 1))
    assert grouped < 0.3 * apart  # measured 0.02 and 1.15: rows apart predict each other


VALUES = [np.nan, np.inf, -np.inf, 5e-324, 1e-310, 1e-160, 1e154, 1e200, 1.79e308, -1.79e308, 0.0, 1.0]


@pytest.mark.parametrize("classes", [1, 3])
def test_hostile_rows_give_a_finite_head(classes: int) -> None:
    """Where nothing can be fitted, the public head; two hundred users with few rows and many."""
    rng = np.random.default_rng(classes)
    maker = HeadMaker(nn.Linear(4, classes), LocalTraining(loss="classes" if classes > 1 else "squares"))
    for _ in range(200):
        m = int(rng.choice([1, 2, 4, 5, 40]))
        features, targets = rng.normal(size=(m, 4)), rng.integers(0, max(classes, 2), size=m) * 1.0
        with np.errstate(all="ignore"):
            if rng.random() < 0.5:
                features *= 10.0 ** rng.uniform(-320, 308, size=(m, 1))
            else:
                features[rng.random(features.shape) < 0.3] = rng.choice(VALUES)
            if classes == 1:
                targets = targets * rng.choice(VALUES)
            head, held = maker.safely(lambda features=features, targets=targets: (features, targets, 1))
        assert head.shape == (maker.size,)
        assert np.isfinite(head).all()
        assert held.sum() >= 1


@pytest.mark.parametrize("m", [6, 7, 40])
def test_more_rows_than_features_take_another_route_to_the_same_head(m: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a matrix of rows by rows."""
    rng = np.random.default_rng(0)
    z, y, public = rng.normal(size=(m, 6)), rng.normal(size=(m, 2)), rng.normal(size=(2, 6))
    found = fit_linear(z, y, public)

    def by_rows(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        values, vectors = np.linalg.eigh(z @ z.T)
        return np.maximum(values, 0.0), vectors

    monkeypatch.setattr(linear_heads, "_directions", by_rows)
    for one, other in zip(found, fit_linear(z, y, public), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)
