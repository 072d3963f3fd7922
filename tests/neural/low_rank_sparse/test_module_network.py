"""Low rank plus sparse on a module: its derivatives, what a user may change, classes, and folders."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import grad, hessian, jacrev

import tacitly
from adversary import clipped, neighbour_violations, violations
from tacitly import neural
from tacitly.neural.engine.executor import Executor
from tacitly.neural.engine.local_training import LocalTraining
from tacitly.neural.engine.query import BodyUpdate
from tacitly.neural.low_rank_sparse.module_network import ModuleNetwork
from tacitly.neural.low_rank_sparse.personal_part import SparseUpdate
from tacitly.neural.low_rank_sparse.tanh_network import TanhNetwork

torch.set_num_threads(1)
D, CLASSES = 3, 3
X = torch.as_tensor(np.random.default_rng(0).normal(size=(9, D)))
WEIGHTS = torch.tensor([1.0] * 7 + [0.0] * 2).double()


def tanh() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(D, 4), nn.Tanh(), nn.Linear(4, 1))


def classifier() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(D, 4), nn.ReLU(), nn.Linear(4, CLASSES))


def update(network: ModuleNetwork | TanhNetwork, loss: str) -> SparseUpdate:
    return SparseUpdate(network=network, training=LocalTraining(head_steps=2, rows=16, loss=loss), rank=2, sparsity=2)


def test_a_module_of_tanh_units_is_the_compiled_network() -> None:
    module, plain = ModuleNetwork(tanh(), D, None), TanhNetwork(D, (4,))
    vector, y = module.flat.start, X[:, 0] * 2
    direction = torch.as_tensor(np.random.default_rng(1).normal(size=module.size))
    ours, theirs = module.forward(vector, X), plain.forward(vector, X)
    torch.testing.assert_close(module.gradient(ours, y, WEIGHTS), plain.gradient(theirs, y, WEIGHTS))
    torch.testing.assert_close(module.jvp(ours, direction), plain.jvp(theirs, direction))
    torch.testing.assert_close(module.curvature(ours, WEIGHTS), plain.curvature(theirs, WEIGHTS))
    public = torch.as_tensor(np.random.default_rng(2).normal(size=2 * module.size))
    asked = [update(network, "squares")(public, X, y, WEIGHTS) for network in (module, plain)]
    torch.testing.assert_close(*asked)


def test_derivatives_for_classes_are_those_of_the_definition() -> None:
    network = ModuleNetwork(classifier(), D, CLASSES)
    vector, y, rows = network.flat.start, torch.arange(7) % 3, X[:7]
    cross = nn.functional.cross_entropy
    passed = network.forward(vector, rows)
    found, loss = network.gradient(network.forward(vector, X), torch.cat([y, y[:2]]).double(), WEIGHTS)
    torch.testing.assert_close(loss, cross(passed.outputs, y))
    torch.testing.assert_close(found, grad(lambda v: cross(network(v, rows), y))(vector))
    slopes = jacrev(lambda v: network(v, rows))(vector)
    bends = torch.stack([hessian(lambda o, c=c: cross(o, c))(o) for o, c in zip(passed.outputs, y, strict=True)])
    ones = torch.ones(7).double()
    wanted = torch.einsum("rkd,rkl,rld->d", slopes, bends, slopes) / 7
    torch.testing.assert_close(network.curvature(passed, ones), wanted)
    changes = slopes @ torch.ones(network.size).double()
    torch.testing.assert_close(
        network.bend(passed, changes, ones), torch.einsum("rk,rkl,rl->", changes, bends, changes) / 7
    )


def test_no_user_of_a_module_moves_a_round_by_more_than_the_clip_and_one_reaches_it() -> None:
    """One layer and one step: what is clipped is tried here; the executor that clips has tests of its own."""
    training = LocalTraining(head_steps=1, rows=8, loss="classes", cross_fit=False)
    network = ModuleNetwork(nn.Linear(D, CLASSES), D, CLASSES)
    asked_of = SparseUpdate(network=network, training=training, rank=1, sparsity=1)
    executor = Executor(asked_of, device="cpu", chunk=8, workers=1)
    executor.batched = True
    asked = BodyUpdate(0.5 * np.random.default_rng(0).normal(size=asked_of.size), 0, executor)
    assert violations(asked, 0.05, D) == []
    rows = 3 * np.random.default_rng(5).normal(size=(20, D))
    assert neighbour_violations(asked, 0.05, rows, np.array([0, 8, 9, 20])) == []
    reached = clipped(asked, (30 * rows[:12], np.arange(12) % 3), 0.001)
    assert 0.999 * 0.001 < np.linalg.norm(reached) <= 0.001


def test_a_users_answer_does_not_depend_on_who_is_in_the_batch() -> None:
    asked_of = update(ModuleNetwork(classifier(), D, CLASSES), "classes")
    executor = Executor(asked_of, device="cpu", chunk=8, workers=1)
    executor.batched = True
    start = 0.5 * np.random.default_rng(0).normal(size=asked_of.size)
    rng, offsets = np.random.default_rng(1), [0, 5, 12, 20]
    rows, y = rng.normal(size=(20, D)).astype(np.float32), rng.integers(3, size=20).astype(np.float32)
    people = [(rows[a:b], y[a:b]) for a, b in itertools.pairwise(offsets)]
    others = [(1e30 * a, b) if i else (a, b) for i, (a, b) in enumerate(people)]
    first, second = (executor.updates_in_chunk(start, who, 8, 0)[0] for who in (people, others))
    assert np.array_equal(first, second)


def fitted(rank: int = 1) -> tuple[neural.LowRankSparse, np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    rows, users = rng.normal(size=(360, D)), np.arange(360) // 12
    y = rows[:, :CLASSES].argmax(1)
    settings = {"rounds": 3, "head_steps": 3, "final_steps": 6, "device": "cpu", "rows_per_user": 12}
    model = neural.LowRankSparse(rank, 2, 20.0, module=classifier(), loss="classes", **settings)
    with pytest.warns(UserWarning, match=r"torch\.func"):
        model.fit(rows, y, users)
    return model, rows, y, users


@pytest.mark.parametrize("rank", [1, 5])
def test_classes_are_learned_with_a_basis_of_modules(rank: int) -> None:
    model, rows, y, users = fitted(rank)
    assert model.certificate_.certified
    assert model.score(rows, y, users) > 0.55  # a third by chance
    chances = model.predict_proba(rows, users)
    assert (chances.argmax(1) == model.predict(rows, users)).all()
    np.testing.assert_allclose(chances.sum(1), 1.0)


def test_a_folder_asks_for_the_module(tmp_path: Path) -> None:
    model, rows, _, users = fitted()
    folder = tacitly.save(model, tmp_path / "model")
    with pytest.raises(ValueError, match="module"):
        tacitly.load(folder)
    assert (tacitly.load(folder, module=classifier()).predict(rows, users) == model.predict(rows, users)).all()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"loss": "classes"}, "needs a module"),
        ({"module": tanh(), "hidden": (3,)}, "hidden has no effect"),
        ({"module": classifier()}, "must return one number"),
        ({"module": nn.Sequential(nn.Linear(D, 2), nn.PReLU(), nn.Linear(2, 1))}, "not a layer that is known"),
    ],
)
@pytest.mark.filterwarnings("ignore:personal parts")
def test_what_would_be_ignored_or_cannot_be_kept_is_refused(settings: dict[str, object], said: str) -> None:
    model = neural.LowRankSparse(1, 1, 1.0, device="cpu", **settings)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=said):
        model.fit(X.numpy(), np.zeros(9), np.arange(9))
