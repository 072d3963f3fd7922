"""Networks U w + b: one user's personal part and update, and what a user may change."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.func import grad

from adversary import clipped, neighbour_violations, violations
from tacitly.neural.engine.executor import Executor
from tacitly.neural.engine.local_training import LocalTraining
from tacitly.neural.engine.query import BodyUpdate
from tacitly.neural.low_rank_sparse.personal_part import PersonalPartUpdate, PromptUpdate, SparseUpdate
from tacitly.neural.low_rank_sparse.tanh_network import TanhNetwork

torch.set_num_threads(1)
D = 5
COUNTS = np.array([5, 16, 21, 1, 40])
OFFSETS = np.append(0, np.cumsum(COUNTS))


def training(**settings: object) -> LocalTraining:
    chosen = {"head_steps": 6, "head_rate": 1.0, "rows": 32, "loss": "squares", **settings}
    return LocalTraining(**chosen)  # type: ignore[arg-type]


def sparse(rank: int = 2, sparsity: int = 3, **settings: object) -> SparseUpdate:
    return SparseUpdate(network=TanhNetwork(D, (4,)), training=training(**settings), rank=rank, sparsity=sparsity)


KINDS: dict[str, PersonalPartUpdate] = {
    "low rank and sparse": sparse(),
    "representation learning": sparse(sparsity=0),
    "single model": replace(sparse(1, 0), shared_weight=True),
    "full fine-tuning": replace(sparse(1, 29), shared_weight=True),
    "prompt learning": PromptUpdate(network=TanhNetwork(D, (4,)), training=training(), embedding=3),
    "three layers, one fit": SparseUpdate(
        network=TanhNetwork(D, (4, 3)), training=training(cross_fit=False), rank=1, sparsity=3
    ),
}


def public(update: PersonalPartUpdate, seed: int = 0) -> np.ndarray:
    return 0.5 * np.random.default_rng(seed).normal(size=update.size)


def query(update: PersonalPartUpdate, *, normalised: bool = False, chunk: int = 8, batched: bool = True) -> BodyUpdate:
    executor = Executor(update, device="cpu", chunk=chunk, workers=1)
    executor.batched = batched
    return BodyUpdate(public(update), 0, executor, normalised)


def rows(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(OFFSETS[-1], D)).astype(np.float32), rng.normal(size=OFFSETS[-1]).astype(np.float32)


def answers(update: PersonalPartUpdate, X: np.ndarray, y: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    people = [(X[first:last], y[first:last]) for first, last in itertools.pairwise(offsets)]
    return query(update).executor.updates_in_chunk(public(update), people, 8, 0)


@pytest.mark.parametrize("name", ["low rank and sparse", "prompt learning", "full fine-tuning"])
def test_no_step_of_an_own_part_raises_what_it_is_to_lower(name: str) -> None:
    """The user's loss plus the penalty; also from a bad start, where the linearised network overestimates the gain."""
    update = replace(KINDS[name], penalty=0.5)
    X, y = (torch.as_tensor(part[:12]).double() for part in rows())
    vector, ones = 6.0 * torch.as_tensor(public(update)), torch.ones(12).double()
    steps = list(update.path(vector, X, y, ones, steps=40))
    losses = update.losses(vector, steps, X, y, ones)
    assert len(steps) == 41
    assert (steps[0] == 0).all()
    assert losses[-1] < 0.7 * losses[0]
    settled = losses[20:]  # the support is selected before
    assert (settled.diff() < 1e-3 * losses[0]).all()  # the penalty may fall at the expense of the loss


def test_a_user_with_nothing_personal_has_what_everybody_has() -> None:
    """For pure-noise targets a personal part would overfit, and the held-out half prevents it."""
    update, rng = sparse(rank=1, sparsity=10), np.random.default_rng(0)
    vector, apart, greedy = torch.as_tensor(public(update)), [], []
    for _ in range(40):
        X = torch.as_tensor(rng.normal(size=(16, D)))
        y = update.network(update.shared_parameters(vector), X) + torch.as_tensor(rng.normal(size=16))
        fresh = torch.as_tensor(rng.normal(size=(200, D)))
        truth, ones = update.network(update.shared_parameters(vector), fresh), torch.ones(16).double()
        *_, whole = update.path(vector, X, y, ones, steps=20)
        for own, errors in ((update.early_stopped(vector, X, y, ones, steps=20), apart), (whole, greedy)):
            errors.append(float((update.network(update.parameters(vector, own), fresh) - truth).square().mean()))
    assert np.mean(apart) < 0.4 * np.mean(greedy)
    assert np.mean(np.array(apart) == 0.0) > 0.25


def test_held_out_rows_choose_how_much_of_sparse_values_is_kept() -> None:
    """Factors of b alone, as listed; with one factor, nothing is shrunk."""
    update = sparse(rank=2, sparsity=6)
    vector, rng, found = torch.as_tensor(public(update)), np.random.default_rng(0), []
    for _ in range(12):
        X, ones = torch.as_tensor(rng.normal(size=(20, D))), torch.ones(20).double()
        y = update.network(update.shared_parameters(vector), X) + torch.as_tensor(rng.normal(size=20))
        y = y + 1.5 * X[:, 0]
        own = update.early_stopped(vector, X, y, ones, steps=16)
        whole = list(update.path(vector, X, y, ones, steps=16))
        kept = [step for step in whole if torch.equal(step[:2], own[:2])]
        if own[2:].any():
            ratios = [own[2:][step[2:] != 0] / step[2:][step[2:] != 0] for step in kept if step[2:].any()]
            found.append(min((float((each - each.mean()).abs().max()), float(each.mean())) for each in ratios)[1])
    assert all(min(abs(ratio - factor) for factor in update.shrinkages) < 1e-9 for ratio in found)
    assert min(found) < 1.0
    assert sparse(sparsity=0).shrinkages == (1.0,)
    assert KINDS["prompt learning"].shrinkages == (1.0,)


def test_a_user_with_much_of_its_own_keeps_it() -> None:
    update, rng = sparse(rank=1, sparsity=3), np.random.default_rng(0)
    vector = torch.as_tensor(public(update))
    X, ones = torch.as_tensor(rng.normal(size=(60, D))), torch.ones(60).double()
    y = update.network(update.shared_parameters(vector), X) + 2.0
    own = update.early_stopped(vector, X, y, ones, steps=20)
    left = update.losses(vector, [update.start(vector), own], X, y, ones)
    assert left[1] < 0.05 * left[0]


def test_a_user_without_rows_asks_for_nothing_and_has_nothing() -> None:
    update, (X, y) = sparse(), rows()
    offsets = np.array([0, 5, 5, 26])
    asked = query(update, normalised=True)
    total = asked.block_sum(X[:26], y[:26], offsets, 1.0)
    np.testing.assert_allclose(total, asked.block_sum(X[:26], y[:26], np.array([0, 5, 26]), 1.0), atol=1e-7)
    none = [torch.zeros(4, D).double(), torch.zeros(4).double(), torch.zeros(4).double()]
    assert (update.early_stopped(torch.as_tensor(public(update)), *none, steps=5) == 0).all()


def test_a_step_moves_outputs_by_what_was_asked_for() -> None:
    update = sparse(rank=1, sparsity=0)
    vector, way = (torch.as_tensor(public(update, seed)) for seed in (0, 1))
    X = torch.as_tensor(np.random.default_rng(2).normal(size=(50, D)))
    little = 1e-6
    moved = update.network(vector + little * way, X) - update.network(vector, X)
    torch.testing.assert_close(
        update.output_change(vector, way, X), moved.square().mean().sqrt() / little, rtol=1e-4, atol=0
    )


@pytest.mark.parametrize("name", KINDS)
def test_the_answer_is_minus_the_gradient_in_what_is_shared(name: str) -> None:
    """By autograd through the user's network, with the personal part fixed."""
    update = replace(KINDS[name], training=training(cross_fit=False))
    X, y = (torch.as_tensor(part[:12]).double() for part in rows())
    ones, vector = torch.ones(12).double(), torch.as_tensor(public(update)).float().double()
    own = update.fitted(vector, X, y, ones)
    expected = -grad(lambda v: 0.5 * (update.network(update.parameters(v, own), X) - y).square().mean())(vector)
    torch.testing.assert_close(update(vector, X, y, ones), expected.float())


def test_an_embedding_behind_the_rows_is_a_shift_of_the_first_levels() -> None:
    update = KINDS["prompt learning"]
    vector, own = torch.as_tensor(public(update)), torch.randn(3).double()
    X = torch.randn(6, D).double()
    wide, units = TanhNetwork(D + 3, (4,)), 4
    matrix = torch.cat([vector[: units * D].view(units, D), vector[update.network.size :].view(units, 3)], 1)
    longer = torch.cat([matrix.reshape(-1), vector[units * D : update.network.size]])
    together = torch.cat([X, own.expand(6, 3)], 1)
    torch.testing.assert_close(wide(longer, together), update.network(update.parameters(vector, own), X))
    assert update.size == wide.size


def test_an_own_part_has_no_more_entries_than_it_may() -> None:
    update = sparse(rank=2, sparsity=3)
    X, y = (torch.as_tensor(part[:12]).double() for part in rows())
    own = update.fitted(torch.as_tensor(public(update)), X, y, torch.ones(12).double())
    assert int((own[2:] != 0).sum()) == 3
    assert (own[:2] != 0).all()


@pytest.mark.parametrize("name", KINDS)
def test_a_users_answer_alone_is_its_row_in_the_batch(name: str) -> None:
    update, (X, y) = KINDS[name], rows()
    together = answers(update, X, y, OFFSETS)
    for row, first, last in zip(together, OFFSETS, OFFSETS[1:], strict=False):
        alone = query(update).contribution(X[first:last], y[first:last])
        np.testing.assert_allclose(row, alone, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["low rank and sparse", "full fine-tuning", "single model", "three layers, one fit"])
def test_compiled_personal_parts_are_those_of_the_definition(name: str) -> None:
    update, (X, y) = KINDS[name], rows()
    assert isinstance(update, SparseUpdate)
    vector = torch.as_tensor(public(update))
    found = update.early_stopped_parts(vector, X, y, OFFSETS[1:], steps=12)
    for own, first, last in zip(found, OFFSETS[1:], OFFSETS[2:], strict=False):
        mine = (torch.as_tensor(part[first:last]).double() for part in (X, y, np.ones(len(y))))
        torch.testing.assert_close(own, update.early_stopped(vector, *mine, steps=12), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("change", ["nan", "huge", "other", "fewer"])
def test_others_answers_do_not_move_by_a_bit(change: str) -> None:
    X, y = rows()
    before = answers(KINDS["low rank and sparse"], X, y, OFFSETS)
    offsets, gone = OFFSETS, np.arange(OFFSETS[2] + 1, OFFSETS[3])
    if change == "fewer":
        X, y = np.delete(X, gone, 0), np.delete(y, gone)
        offsets = np.append(0, np.cumsum(np.where(np.arange(5) == 2, 1, COUNTS)))
    else:
        X[OFFSETS[2] : OFFSETS[3]] = {"nan": np.nan, "huge": 1e30, "other": 0.5}[change]
    after = answers(KINDS["low rank and sparse"], X, y, offsets)
    others = np.arange(5) != 2
    assert (before[others] == after[others]).all()


@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize("name", ["low rank and sparse", "low rank and sparse, compiled", "prompt learning"])
def test_a_user_that_is_no_number_adds_nothing_and_changes_nothing(name: str, normalised: bool) -> None:
    kind, compiled = KINDS[name.removesuffix(", compiled")], name.endswith("compiled")
    asked, (X, y) = query(kind, normalised=normalised, batched=not compiled), rows()
    X[OFFSETS[1]] = np.nan
    total = asked.block_sum(X, y, OFFSETS, 0.01)
    others = [asked.block_sum(X[a:b], y[a:b], np.array([0, b - a]), 0.01) for a, b in itertools.pairwise(OFFSETS)]
    assert (others[1] == 0).all()
    np.testing.assert_allclose(total, sum(others), atol=1e-8)


@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize("name", ["low rank and sparse", "low rank and sparse, compiled", "prompt learning"])
def test_no_user_moves_a_round_by_more_than_the_clip(name: str, normalised: bool) -> None:
    kind, compiled = KINDS[name.removesuffix(", compiled")], name.endswith("compiled")
    asked = query(replace(kind, training=training(head_steps=2)), normalised=normalised, batched=not compiled)
    assert violations(asked, 0.05, D) == []
    X = 3 * np.random.default_rng(5).normal(size=(40, D))
    assert neighbour_violations(asked, 0.05, X, np.array([0, 8, 9, 20, 40])) == []


@pytest.mark.parametrize("normalised", [False, True])
def test_replacing_a_user_reaches_two_clips(normalised: bool) -> None:
    """Opposite targets far from the network's outputs give opposite updates."""
    asked, (X, _) = query(KINDS["single model"], normalised=normalised), rows()
    added = [clipped(asked, (X[:12], np.full(12, target)), 0.01) for target in (1e6, -1e6)]
    assert 0.999 * 0.01 < np.linalg.norm(added[0]) <= 0.01
    assert 0.999 * 0.02 < np.linalg.norm(added[0] - added[1]) <= 0.02


class NormOfOneFactor(BodyUpdate):
    """Mutation: clips g and forgets that U's gradient is g wᵀ."""

    def block_sum(self, X, y, offsets, bound):  # type: ignore[no-untyped-def]
        update = self.executor.update
        vector, total = torch.as_tensor(self.public), np.zeros(self.coordinates)
        for first, last in itertools.pairwise(offsets):
            mine = [torch.as_tensor(np.array(part[first:last])).double() for part in (X, y)]
            own = update.fitted(vector, *mine, torch.ones(last - first).double())
            passed = update.network.forward(update.parameters(vector, own), mine[0])
            gradient = update.network.gradient(passed, mine[1], torch.ones(last - first).double())[0]
            norm = float(gradient.norm())
            if math.isfinite(norm) and norm > 0:
                total += update.public_gradient(own, gradient * min(1.0, bound / norm)).numpy()
        return total


class DividesByWhoCame(BodyUpdate):
    """Mutation: the mean over users with finite rows instead of the sum."""

    def block_sum(self, X, y, offsets, bound):  # type: ignore[no-untyped-def]
        came = sum(np.isfinite(X[a:b]).all() for a, b in itertools.pairwise(offsets))
        return super().block_sum(X, y, offsets, bound) * len(offsets) / max(1, came)


class LetsNaNThrough(BodyUpdate):
    """Mutation: one user's NaN spoils the whole sum."""

    def block_sum(self, X, y, offsets, bound):  # type: ignore[no-untyped-def]
        return super().block_sum(X, y, offsets, bound) + 0.0 * X.sum()


@pytest.mark.parametrize("mutant", [NormOfOneFactor, DividesByWhoCame, LetsNaNThrough])
def test_a_broken_round_is_caught(mutant: type[BodyUpdate]) -> None:
    good = query(sparse(rank=2, sparsity=3, cross_fit=False, head_steps=2))
    X = 3 * np.random.default_rng(5).normal(size=(40, D))
    broken = mutant(good.public, 0, good.executor)
    assert violations(broken, 0.05, D) or neighbour_violations(broken, 0.05, X, np.array([0, 8, 9, 20, 40]))
