"""Rows of a chunk of users: which rows are packed, and which are cached."""

from __future__ import annotations

import numpy as np
import torch

from small_networks import body_with, data, executor
from tacitly.neural.engine.packing import Packing

torch.set_num_threads(1)


def test_rows_that_are_kept_on_a_device_are_those_that_were_asked_for() -> None:
    made = executor(body_with(), batched=True)
    public = made.update.body.start.numpy().astype(np.float64)
    X, y, _ = (np.asarray(part, dtype=np.float32) for part in data())

    def total(X: np.ndarray, y: np.ndarray, offsets: list[int]) -> np.ndarray:
        return made.clipped_sum(public, X, y, np.array(offsets), 1.0, 0, normalised=True)

    for part in (X, y):
        part.flags.writeable = False
    first = total(X[:16], y[:16], [0, 8, 16])
    assert made.packing._cached_bytes > 0
    assert (total(X[:16], y[:16], [0, 8, 16]) == first).all()
    other = 1 - y[:16]
    other.flags.writeable = False
    assert not (total(X[:16], other, [0, 8, 16]) == first).all()
    assert not (total(X[:16], y[:16], [0, 5, 16]) == first).all()
    mine = np.array(X[:16])
    before = total(mine, y[:16], [0, 8, 16])
    mine[:] = 7.0
    assert not (total(mine, y[:16], [0, 8, 16]) == before).all()


def test_a_user_with_more_rows_brings_other_ones_in_turn() -> None:
    packing = Packing(4, torch.float32, torch.device("cpu"))
    X = np.arange(10.0)[:, None]
    seen = {float(value) for number in range(5) for value in packing.rows_of_round(X, X[:, 0], number)[1]}
    assert seen == set(map(float, range(10)))
