"""The release of a round: no user adds more than the clip, at any scale of numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from adversary import violations
from tacitly import neural
from tacitly.neural.engine.executor import Executor
from tacitly.neural.engine.flat import Flat
from tacitly.neural.engine.local_training import LocalTraining
from tacitly.neural.engine.query import BodyUpdate
from tacitly.neural.engine.update import UserUpdate
from tacitly.privacy.clipping import safe_norm

torch.set_num_threads(1)
D = 7


def query(normalised: bool = False, dtype: torch.dtype = torch.float32, **training: object) -> BodyUpdate:
    torch.manual_seed(0)
    body, head = (module.to(dtype) for module in neural.mlp(D, (5, 4), classes=3))
    settings = LocalTraining(**{"head_steps": 2, **training})  # type: ignore[arg-type]
    update = UserUpdate(body=Flat(body), head=Flat(head), training=settings, classes=3)
    executor = Executor(update, device="cpu", workers=1)
    return BodyUpdate(update.body.start.numpy().astype(np.float64), 0, executor, normalised)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("normalised", [False, True])
def test_no_user_moves_a_round_by_more_than_the_clip(normalised: bool, dtype: torch.dtype) -> None:
    assert violations(query(normalised, dtype), 0.05, D) == []


@pytest.mark.parametrize("groups", [(), (1024, 15360)])
@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize("route", ["one step", "alone", "batched"])
def test_numbers_whose_squares_vanish_or_overflow_are_clipped_too(
    route: str, normalised: bool, groups: tuple[int, ...]
) -> None:
    """Regression: 16384 float64 entries near 1e-162, from a layer that starts at zero, passed with norm 45 clips."""
    torch.manual_seed(0)
    body, head = nn.Linear(4096, 4, bias=False).double(), nn.Linear(4, 2).double()
    nn.init.zeros_(body.weight)
    training = LocalTraining(head_steps=0, rows=4)
    update = UserUpdate(body=Flat(body), head=Flat(head), training=training, classes=2)
    executor = Executor(update, device="cpu", workers=1, groups=groups)
    assert executor.one_step == (groups == ())
    executor.batched, executor.chunk = route == "batched", 2
    executor.one_step = route == "one step" and groups == ()
    asked = BodyUpdate(update.body.start.numpy().copy(), 0, executor, normalised)
    X, y = np.full((4, 4096), 1.0), np.array([0.0, 1.0, 0.0, 1.0])
    X[1::2] = 0.0
    reached = []
    for scale in [0.0, *(10.0 ** np.arange(-320.0, 300.0, 31.0)), *(1e-161 * np.geomspace(0.3, 30.0, 25))]:
        for bound in (1.0, 1e-150, 1e150):
            norm = np.linalg.norm(asked.block_sum(scale * X, y, np.array([0, 4]), bound) / bound)
            assert norm <= 1.0
            reached.append(norm)
    assert max(reached) > 0.999
    answers = torch.full((2, 16384), 1.0, dtype=torch.float64) * torch.tensor([[1e-200], [1e200]], dtype=torch.float64)
    sums = [executor.bounded_sum(row[None], 1e-3, normalised=normalised).numpy() for row in answers]
    found = np.array([safe_norm(part)[0] for part in sums])
    np.testing.assert_allclose(found, [1e-3 if normalised else 1.28e-198, 1e-3], rtol=2e-6)


def test_norms_that_clips_are_chosen_by_neither_vanish_nor_overflow() -> None:
    X, y = np.zeros((2, D)), np.zeros(2)
    asked = query(dtype=torch.float64)
    asked.executor.one_step = False
    for size in (1e-200, 1e200):
        asked.executor._update_alone = lambda *_, size=size: torch.full((asked.coordinates,), size, dtype=torch.float64)  # type: ignore[method-assign]
        norm = asked.norms(X, y, np.array([0, 2]))
        np.testing.assert_allclose(norm, size * np.sqrt(asked.coordinates), rtol=1e-12)


@pytest.mark.parametrize("normalised", [False, True])
def test_some_user_reaches_the_clip(normalised: bool) -> None:
    rng = np.random.default_rng(0)
    X, y = 50 * rng.normal(size=(12, D)), rng.integers(3, size=12).astype(float)
    reached = np.linalg.norm(query(normalised).block_sum(X, y, np.array([0, 12]), 0.01))
    assert 0.999 * 0.01 < reached < 0.01


class Unclipped(BodyUpdate):
    """Mutation: the clip is forgotten."""

    def block_sum(self, X, y, offsets, bound):  # type: ignore[no-untyped-def]
        return super().block_sum(X, y, offsets, 100.0 * bound)


class LetsNaNThrough(BodyUpdate):
    """Mutation: one user's NaN spoils the whole sum."""

    def block_sum(self, X, y, offsets, bound):  # type: ignore[no-untyped-def]
        return super().block_sum(X, y, offsets, bound) + 0.0 * X.sum()


@pytest.mark.parametrize("mutant", [Unclipped, LetsNaNThrough])
def test_a_broken_round_is_caught(mutant: type[BodyUpdate]) -> None:
    good = query()
    assert violations(mutant(good.public, 0, good.executor), 0.01, D)


def test_counting_who_takes_part_tells_nothing() -> None:
    """The papers' flaw F4, a canary with zero gradient: with a fixed denominator the release does not depend on it."""
    update = query()
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(24, D)), rng.integers(3, size=24).astype(float)
    without = update.block_sum(X, y, np.array([0, 12, 24]), 0.05)
    canary = np.vstack([X, np.full((3, D), np.nan)])
    with_it = update.block_sum(canary, np.append(y, [0.0] * 3), np.array([0, 12, 24, 27]), 0.05)
    assert (without == with_it).all()
