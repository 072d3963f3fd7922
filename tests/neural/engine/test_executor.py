"""The executor: users do not affect each other, and device failures are not contributions of zero."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from small_networks import TRAPS, Category, D, M, N, body_with, data, executor, model
from tacitly.neural.engine.device import DeviceFailure
from tacitly.neural.engine.executor import Block, Executor
from tacitly.neural.engine.flat import Flat
from tacitly.neural.engine.local_training import LocalTraining
from tacitly.neural.engine.one_step import OneStep
from tacitly.neural.engine.packing import Packing
from tacitly.neural.engine.update import UserUpdate

torch.set_num_threads(1)


@pytest.mark.parametrize("place", TRAPS)
def test_nothing_of_a_user_stays_between_updates(place: str) -> None:
    X, y, _ = data()
    torch.manual_seed(0)
    update = UserUpdate(
        body=Flat(TRAPS[place]()), head=Flat(nn.Linear(4, 2)), training=LocalTraining(head_steps=2, rows=M), classes=2
    )
    made = Executor(update, device="cpu", workers=1)
    public = made.update.body.start.numpy().astype(np.float64)
    trapped = np.full((M, D), 77.0 if place == "first" else 38.5)
    if place == "behind what is learned":
        public[: D * D] = 2.0 * np.eye(D).ravel()
    rows = [(trapped, y[:M]), (X[M : 2 * M], y[M : 2 * M])]
    assert (made.updates_alone(public, rows, 0)[1] == made.one_update(public, *rows[1], 0)).all()


def test_nobody_writes_into_anybody_elses_start() -> None:
    """Regression: an embedding with max_norm writes into its parameters, which shared memory with the public vector."""
    torch.manual_seed(0)
    body = nn.Sequential(Category(max_norm=0.1), nn.Linear(D + 2, 4)).double()
    head = nn.Sequential(nn.Linear(4, 2)).double()
    update = UserUpdate(body=Flat(body), head=Flat(head), training=LocalTraining(rows=M, head_steps=2), classes=2)
    made = Executor(update, device="cpu", workers=1)
    public = update.body.start.numpy().copy()
    X, y, _ = data()
    X[:, 0] = 0.0
    given = public.copy()
    made.updates_alone(public, [(X[:M], y[:M]), (X[M : 2 * M], y[M : 2 * M])], 0)
    assert (public == given).all()
    assert np.linalg.norm(public[:3]) > 0.1
    vector = made._public(public)
    assert not np.shares_memory(vector.numpy(), public)
    made._update_alone(update.alone(), vector, X[:M], y[:M], 0)
    assert (vector.numpy() == given).all()


def test_layers_that_write_over_their_input_leave_rows_alone() -> None:
    made = executor(nn.Sequential(nn.ReLU(inplace=True), nn.Linear(D, 4)), batched=True)
    rows, targets, _ = (np.asarray(part, dtype=np.float32) for part in data())
    for part in (rows, targets):
        part.flags.writeable = False
    made.clipped_sum(
        made.update.body.start.numpy().astype(np.float64),
        rows,
        targets,
        np.arange(0, N * M + 1, M),
        1.0,
        0,
        normalised=True,
    )
    kept = next(iter(made.packing._cache.values()))[0]
    assert (kept[0].numpy() == rows[:M]).all()


def test_dropout_and_spectral_norm_do_not_join_users() -> None:
    """Regression: one row less of one user changed all other users' updates by several clips."""
    X, y, _ = data()
    torch.manual_seed(0)
    body = nn.Sequential(
        torch.nn.utils.parametrizations.spectral_norm(nn.Linear(D, 5)), nn.Dropout(0.5), nn.ReLU(), nn.Linear(5, 4)
    )
    for mine in (X[:M], X[: M - 1], np.full((M, D), np.nan)):
        made = executor(body, local_steps=3, local_rate=1.0)
        public = made.update.body.start.numpy().astype(np.float64)
        answers = made.updates_alone(public, [(mine, y[: len(mine)]), (X[M : 2 * M], y[M : 2 * M])], 0)
        other = executor(body, local_steps=3, local_rate=1.0)
        assert (answers[1] == other.one_update(public, X[M : 2 * M], y[M : 2 * M], 0)).all()


@pytest.mark.parametrize("place", [(Executor, "_update_alone"), (Packing, "__call__"), (OneStep, "__call__")], ids=str)
def test_a_machine_without_memory_is_no_contribution_of_zero(
    place: tuple[type, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = executor(body_with(), batched=place[0] is Packing)
    made.one_step = place[0] is OneStep
    X, y, _ = data()

    def full(*_: object) -> Tensor:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(*place, full)
    with pytest.raises(DeviceFailure, match="smaller chunk"):
        made.clipped_sum(
            made.update.body.start.numpy().astype(np.float64), X, y, np.arange(0, N * M + 1, M), 1.0, 0, normalised=True
        )


@pytest.mark.parametrize(("kind", "name", "steps"), [(Executor, "_update_alone", 2), (OneStep, "__call__", 1)], ids=str)
def test_running_out_of_memory_in_a_round_ends_the_fit(
    kind: type, name: str, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: the failure was attributed to users, which gave a certified model that had learned nothing."""
    genuine, calls = getattr(kind, name), []

    def full(self: object, *arguments: object) -> object:
        calls.append(1)
        if len(calls) > 6:  # after the dry runs of the network and of the federation
            raise torch.cuda.OutOfMemoryError("CUDA out of memory.")
        return genuine(self, *arguments)

    monkeypatch.setattr(kind, name, full)
    with pytest.raises(MemoryError):
        model(body_with(), local_steps=steps, rounds=10).fit(*data())
    assert len(calls) >= 7


def test_a_user_who_makes_a_chunk_fail_moves_nobody_else() -> None:
    """Regression: the users were computed again in other positions, and last bits were amplified to whole clips."""

    X, y, _ = data()
    X[:, 0] = np.arange(len(X)) % 4
    torch.manual_seed(0)
    made = executor(nn.Sequential(Category(), nn.Linear(D + 2, 4)), batched=True)
    public = made.update.body.start.numpy().astype(np.float64)
    offsets = np.arange(0, N * M + 1, M)
    good = torch.cat([part for part, _ in made.chunks(Block(public, X, y, offsets, 0))])
    X[0, 0] = 77
    bad = torch.cat([part for part, _ in made.chunks(Block(public, X, y, offsets, 0))])
    assert torch.equal(good[1:], bad[1:])
    assert bool(torch.isnan(bad[0]).all())
