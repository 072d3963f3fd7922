"""Blocks, views and the network for images: rows stay apart, alone and in a batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from tacitly import neural
from tacitly.neural.engine.executor import Executor
from tacitly.neural.engine.flat import Flat
from tacitly.neural.engine.layers import check_layers, custom_layers
from tacitly.neural.engine.local_training import LocalTraining
from tacitly.neural.engine.rehearsal import rehearse
from tacitly.neural.engine.update import UserUpdate, public_start

torch.set_num_threads(1)
NETWORKS = {
    "transformer": (lambda: neural.transformer(20, 4, width=8, layers=1, heads=2), 4),
    "residual": (lambda: neural.residual_network(classes=2, shape=(1, 8, 8), width=4, blocks=1), 64),
}


def made(name: str, batched: bool, change: type[nn.Module] | None = None) -> tuple[Executor, UserUpdate, int]:
    torch.manual_seed(0)
    (make, width), training = NETWORKS[name], LocalTraining(head_steps=2, rows=6)
    body, head = make()
    if change is not None:
        body = nn.Sequential(*body, change())
    update = UserUpdate(body=Flat(body), head=Flat(head), training=training, classes=2)
    executor = Executor(update, device="cpu", chunk=4)
    executor.batched = batched
    return executor, update, width


@pytest.mark.parametrize("name", NETWORKS)
def test_batched_blocks_give_what_the_loop_gives(name: str) -> None:
    rng, results = np.random.default_rng(0), []
    for batched in (False, True):
        executor, update, width = made(name, batched)
        check_layers(update.body.module, update.head.module)
        X = rng.integers(20, size=(20, width)).astype(np.float32) if not results else X  # noqa: F821
        y = (np.arange(20) // 2 % 2).astype(np.float32)
        rehearse(executor, public_start(update), width, users=4)
        asked = public_start(update), X, y, np.array([0, 5, 11, 14, 20]), 1.0, 0
        results.append(executor.clipped_sum(*asked, normalised=True))
    assert np.abs(results[0]).max() > 0.01
    np.testing.assert_allclose(results[0], results[1], atol=1e-5)


class MixesUsers(nn.Module):
    """Keeps the mean of what it has seen: not a function of its input."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[float] = []

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        self.seen.append(0.0)
        return rows + len(self.seen)


@pytest.mark.parametrize("batched", [False, True])
def test_the_trial_finds_a_layer_that_keeps_something(batched: bool) -> None:
    executor, update, width = made("transformer", batched, MixesUsers)
    assert custom_layers(update.body.module) == ("MixesUsers",)
    with pytest.raises(ValueError, match="MixesUsers"):
        rehearse(executor, public_start(update), width, users=4)


def test_tokens_out_of_range_and_missing_rows() -> None:
    tokens = neural.Tokens(5, length=2, width=3)
    found = tokens(torch.tensor([[0.0, 99.0], [-3.0, 4.0], [float("nan"), 1.0]]))
    torch.testing.assert_close(found[0, 1], tokens.positions[1] + tokens.tokens[4])
    torch.testing.assert_close(found[1, 0], tokens.positions[0] + tokens.tokens[0])
    assert found[2].isnan().any()


def test_a_network_for_images_learns_with_few_users() -> None:
    """Forty users, ε = 8, images of two kinds of stripes, labels swapped for half of the users."""
    rng = np.random.default_rng(0)
    y = rng.integers(2, size=800)
    stripes = np.tile(np.arange(12) % 4 < 2, (12, 1))
    X = np.where(y[:, None, None] == 1, stripes, stripes.T) * 0.5 + rng.uniform(size=(800, 12, 12)) * 0.5
    users = np.arange(800) // 20
    swapped = np.where(users % 2 == 1, 1 - y, y)
    body, head = neural.image_network(2, (1, 12, 12), filters=8, directions=16)
    assert sum(value.numel() for value in body.parameters() if value.requires_grad) == 34
    model = neural.Centaur(body, head, epsilon=8.0, rounds=2, device="cpu", augment=neural.Views((1, 12, 12)))
    assert model.fit(X.reshape(800, -1), swapped, users).score(X.reshape(800, -1), swapped, users) > 0.9
