"""One user's update: the same alone and in a batch, and a function of that user's rows only."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import nn

from tacitly.neural.engine.executor import Block, Executor
from tacitly.neural.engine.flat import Flat
from tacitly.neural.engine.local_training import LocalTraining
from tacitly.neural.engine.update import UserUpdate
from tacitly.neural.networks.architectures import lenet, mlp

torch.set_num_threads(1)
COUNTS = np.array([5, 16, 21, 1, 40])
OFFSETS = np.append(0, np.cumsum(COUNTS))


def update_of(shared: str = "body", double: bool = False, **training: object) -> UserUpdate:
    torch.manual_seed(0)
    body, head = mlp(6, (8, 5), classes=3)
    if double:
        body, head = body.double(), head.double()
    settings = LocalTraining(**{"local_steps": 3, "batch_rows": 8, "head_steps": 4, "rows": 32, **training})  # type: ignore[arg-type]
    return UserUpdate(body=Flat(body), head=Flat(head), training=settings, classes=3, shared=shared)


def rows(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(OFFSETS[-1], 6)).astype(np.float32), rng.integers(3, size=OFFSETS[-1]).astype(np.float32)


def start_of(update: UserUpdate) -> np.ndarray:
    parts = [update.body.start, update.head.start] if update.move_head else [update.body.start]
    return torch.cat(parts).numpy().astype(np.float64)


def in_a_batch(update: UserUpdate, X: np.ndarray, y: np.ndarray, offsets: np.ndarray, chunk: int) -> np.ndarray:
    executor = Executor(update, device="cpu")
    executor.batched, executor.chunk = True, chunk
    parts = executor.chunks(Block(start_of(update), X, y, offsets, 1))
    return torch.cat([part[:users] for part, users in parts]).double().numpy()


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("shared", ["body", "both", "sum"])
def test_a_users_update_alone_is_its_row_in_the_batch(shared: str, double: bool) -> None:
    update, (X, y) = update_of(shared, double), rows()
    together = in_a_batch(update, X, y, OFFSETS, chunk=4)
    executor = Executor(update, device="cpu")
    for i in range(len(COUNTS)):
        mine = slice(OFFSETS[i], OFFSETS[i + 1])
        alone = executor.one_update(start_of(update), X[mine], y[mine], 1)
        np.testing.assert_allclose(together[i], alone, rtol=0, atol=1e-14 if double else 1e-6)
        assert np.linalg.norm(together[i] - alone) <= (1e-12 if double else 1e-4) * np.linalg.norm(alone)


ONE_FOR_ALL = nn.Tanh()


@pytest.mark.parametrize(
    "body",
    [
        nn.Linear(6, 5),
        nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5, bias=False), nn.Sigmoid()),
        nn.Sequential(nn.Linear(6, 8), ONE_FOR_ALL, nn.Linear(8, 5), ONE_FOR_ALL),
        nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 5)),
        nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 5)),
        nn.Sequential(nn.Linear(6, 8).requires_grad_(False), nn.ReLU(), nn.Linear(8, 5)),
        nn.Sequential(nn.Unflatten(1, (2, 3)), nn.Linear(3, 2), nn.Flatten(1), nn.Linear(4, 5)),
    ],
    ids=["bare", "perceptron", "one activation twice", "hooks", "hooks and autograd", "frozen", "rows in rows"],
)
@pytest.mark.parametrize("loss", ["classes", "squares"])
def test_steps_in_place_are_the_same_steps(body: nn.Module, loss: str) -> None:
    """Hand-written backward, gradients applied in place and plain autograd give the same update, in float64."""
    torch.manual_seed(1)
    head = nn.Linear(5, 3 if loss == "classes" else 1).double()
    training = LocalTraining(local_steps=3, batch_rows=4, head_steps=2, rows=32, loss=loss)
    update = UserUpdate(body=Flat(body.double()), head=Flat(head), training=training, classes=3)
    X, y = rows()
    given = (torch.tensor(X[:21]).double(), torch.tensor(y[:21]).double(), torch.ones(21, dtype=torch.float64))
    plain = update.alone()(update.body.start.clone(), *given)
    quick = update.alone_in_place()
    assert quick._hooks is not None
    for _ in range(2):
        torch.testing.assert_close(quick(update.body.start.clone(), *given), plain, rtol=1e-10, atol=1e-14)
    assert float(plain.abs().max()) > 1e-4


def test_the_papers_network_agrees_to_the_last_digits_of_float64() -> None:
    """In float32 a near tie in a pool or a ReLU may be decided either way; in float64 none occurs."""
    torch.manual_seed(0)
    body, head = (module.double() for module in lenet(widths=(4, 4, 12, 8)))
    training = LocalTraining(local_steps=2, batch_rows=4, head_steps=2, rows=9)
    executor = Executor(UserUpdate(body=Flat(body), head=Flat(head), training=training, classes=10), device="cpu")
    X, y = np.random.default_rng(0).random(size=(2, 9, 3072)), np.arange(18.0).reshape(2, 9) % 10
    users, public = list(zip(X, y, strict=True)), executor.update.body.start.numpy()
    together = executor.updates_in_chunk(public, users, 2, 0)
    for row, alone in zip(together, executor.updates_alone(public, users, 0), strict=True):
        assert np.linalg.norm(row - alone) < 1e-12 * np.linalg.norm(alone)


@pytest.mark.parametrize("change", ["nan", "huge", "other", "fewer"])
def test_others_updates_do_not_move_by_a_bit(change: str) -> None:
    update, (X, y) = update_of(), rows()
    before = in_a_batch(update, X, y, OFFSETS, chunk=8)
    offsets = OFFSETS
    changed = slice(OFFSETS[2], OFFSETS[3])
    if change == "fewer":
        X, y = (
            np.delete(X, np.arange(OFFSETS[2] + 1, OFFSETS[3]), 0),
            np.delete(y, np.arange(OFFSETS[2] + 1, OFFSETS[3])),
        )
        offsets = np.append(0, np.cumsum(np.where(np.arange(5) == 2, 1, COUNTS)))
    else:
        X[changed] = {"nan": np.nan, "huge": 1e30, "other": 0.5}[change]
    after = in_a_batch(update, X, y, offsets, chunk=8)
    others = np.arange(5) != 2
    assert (before[others] == after[others]).all()


def test_a_loss_that_is_not_a_number_zeroes_its_user_and_nothing_else() -> None:
    update, (X, y) = update_of(), rows()
    X[OFFSETS[1]] = np.nan
    for batched in (False, True):
        executor = Executor(update, device="cpu", workers=2)
        executor.batched, executor.chunk = batched, 8
        total = executor.clipped_sum(start_of(update), X, y, OFFSETS, 0.01, 0, normalised=False)
        alone = sum(
            executor.clipped_sum(start_of(update), X[a:b], y[a:b], np.array([0, b - a]), 0.01, 0, normalised=False)
            for i, (a, b) in enumerate(itertools.pairwise(OFFSETS))
            if i != 1
        )
        np.testing.assert_allclose(total, alone, atol=1e-8)


def test_batches_reach_every_row_and_every_class() -> None:
    update = update_of()
    targets, weights = torch.arange(24.0), torch.ones(32)
    weights[24:] = 0
    padded = torch.cat([targets, torch.zeros(8)])
    seen = {float(value) for _, own, _ in update._batches(padded[:, None], padded, weights) for value in own}
    assert seen == set(map(float, range(24)))


def test_per_layer_clips_keep_the_whole_within_the_clip() -> None:
    update, (X, y) = update_of(), rows()
    lengths = tuple(int(np.prod(shape)) for shape in update.body.shapes.values())
    executor = Executor(update, device="cpu", groups=lengths)
    total = executor.clipped_sum(start_of(update), X[:5], y[:5], np.array([0, 5]), 1e-4, 0, normalised=False)
    assert 0.9e-4 < np.linalg.norm(total) <= 1e-4
    for part in np.split(total, np.cumsum(lengths)[:-1]):
        assert np.linalg.norm(part) <= 1e-4 / np.sqrt(len(lengths))
