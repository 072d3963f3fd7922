"""Features of a public network: fixed, row by row, free."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import tacitly
from tacitly import neural

torch.set_num_threads(1)


def encoder() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 4), nn.Tanh())


def test_a_rows_features_are_its_own_and_the_encoder_stays_as_it_was() -> None:
    network = encoder()
    before = network[0].weight.detach().clone()
    features, rng = neural.Features(network, rows=3, device="cpu"), np.random.default_rng(0)
    X = rng.normal(size=(7, 2, 4))
    first, (changed, others) = features(X), (X.copy(), np.arange(7) != 4)
    changed[4] = np.nan
    again = features(changed)
    assert np.array_equal(first[others], again[others])
    assert np.isnan(again[4]).all()
    assert torch.equal(before, network[0].weight)
    with torch.no_grad():
        network[0].weight.zero_()
    assert np.array_equal(first, features(X))


def test_bounded_features_are_no_longer_than_one() -> None:
    X = np.random.default_rng(0).normal(size=(50, 8)) * 10
    assert np.linalg.norm(neural.Features(encoder(), bound=0.5, device="cpu")(X), axis=1).max() <= 1 + 1e-12
    with pytest.raises(ValueError, match="bound must be positive"):
        neural.Features(encoder(), bound=0.0)


def test_mixed_effects_learns_from_features() -> None:
    rng = np.random.default_rng(0)
    X, users = rng.normal(size=(3000, 8)), np.arange(3000) // 10
    features = neural.Features(encoder(), device="cpu").fit().transform(X)
    y = features @ [1.0, -1.0, 0.5, 0.0] + 0.05 * rng.normal(size=3000)
    model = tacitly.MixedEffects(epsilon=4.0).fit(features, y, users)
    assert model.certificate_.certified
    assert model.score(features, y, users) > 0.5
