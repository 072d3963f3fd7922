"""Low-rank adapters: the public network stays, a small change of it is learned."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from tacitly import neural

torch.set_num_threads(1)


def test_adapters_start_as_the_public_network_and_leave_it_as_it_is() -> None:
    torch.manual_seed(0)
    public, head = neural.transformer(20, 4, width=8, layers=1, heads=2)
    before = {name: value.clone() for name, value in public.state_dict().items()}
    body = neural.adapters(public, rank=1, targets=["inputs", "outputs"])
    rows = torch.arange(12.0).reshape(3, 4)
    torch.testing.assert_close(body(rows), public(rows))
    X, y = np.random.default_rng(0).integers(20, size=(60, 4)), np.arange(60) % 2
    model = neural.Centaur(body, head, epsilon=8.0, rounds=1, head_steps=1, device="cpu", rows_per_user=4)
    fitted = model.fit(X, y, np.arange(60) // 4)
    assert fitted.certificate_.releases[0].coordinates == (8 + 24) + (8 + 8)
    assert all(torch.equal(value, public.state_dict()[name]) for name, value in before.items())
    frozen = [name for name in fitted.body_.state_dict() if ".public." in name]
    assert frozen
    moved = [value for name, value in fitted.body_.state_dict().items() if name.endswith("up.weight")]
    assert all(value.abs().sum() > 0 for value in moved)


def test_targets_must_exist() -> None:
    with pytest.raises(ValueError, match="targets must name linear layers"):
        neural.adapters(nn.Sequential(nn.Linear(3, 2)), targets=["query"])
    with pytest.raises(ValueError, match="rank must be"):
        neural.adapters(nn.Sequential(nn.Linear(3, 2)), rank=0)


def test_images_may_have_any_shape() -> None:
    rng = np.random.default_rng(0)
    X, y, users = rng.uniform(size=(40, 1, 6, 6)), np.arange(40) % 2, np.arange(40) // 4
    body, head = neural.residual_network(classes=2, shape=(1, 6, 6), width=4, blocks=1)
    model = neural.Centaur(body, head, epsilon=8.0, rounds=1, head_steps=1, device="cpu", rows_per_user=4).fit(
        X, y, users
    )
    assert np.array_equal(model.predict(X, users), model.predict(X.reshape(40, 36), users))
    assert model.personalize(X[:4], y[:4]).predict(X[:4].reshape(4, 36)).shape == (4,)
