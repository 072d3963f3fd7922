"""Networks U w + b: one user's answer, what it may move, what is recovered, what is kept."""

from __future__ import annotations

import itertools
import json
import math
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.func import grad, vmap

import tacitly
from adversary import clipped, neighbour_violations, violations
from tacitly import neural
from tacitly.audit.users import adversarial_users
from tacitly.model_folder import publish
from tacitly.neural.engine.executor import Executor
from tacitly.neural.engine.query import BodyUpdate
from tacitly.neural.engine.update import LocalTraining
from tacitly.neural.low_rank_sparse.personal_part import OwnPartUpdate, PromptUpdate, SparseUpdate
from tacitly.neural.low_rank_sparse.tanh_network import TanhNetwork
from tacitly.privacy.guarantee import Budget
from tacitly.privacy.ledger import Ledger

torch.set_num_threads(1)
D = 5
COUNTS = np.array([5, 16, 21, 1, 40])
OFFSETS = np.append(0, np.cumsum(COUNTS))
QUICK = {"hidden": (8,), "head_steps": 8, "rows_per_user": 20, "device": "cpu"}


def training(**settings: object) -> LocalTraining:
    chosen = {"head_steps": 6, "head_rate": 1.0, "rows": 32, "loss": "squares", **settings}
    return LocalTraining(**chosen)  # type: ignore[arg-type]


def sparse(rank: int = 2, sparsity: int = 3, **settings: object) -> SparseUpdate:
    return SparseUpdate(network=TanhNetwork(D, (4,)), training=training(**settings), rank=rank, sparsity=sparsity)


KINDS: dict[str, OwnPartUpdate] = {
    "low rank and sparse": sparse(),
    "representation learning": sparse(sparsity=0),
    "single model": replace(sparse(1, 0), shared_weight=True),
    "full fine-tuning": replace(sparse(1, 29), shared_weight=True),
    "prompt learning": PromptUpdate(network=TanhNetwork(D, (4,)), training=training(), embedding=3),
    "three layers, one fit": SparseUpdate(
        network=TanhNetwork(D, (4, 3)), training=training(cross_fit=False), rank=1, sparsity=3
    ),
}


def public(update: OwnPartUpdate, seed: int = 0) -> np.ndarray:
    return 0.5 * np.random.default_rng(seed).normal(size=update.size)


def query(update: OwnPartUpdate, *, normalised: bool = False, chunk: int = 8) -> BodyUpdate:
    executor = Executor(update, device="cpu", chunk=chunk, workers=1)
    executor.batched = True
    return BodyUpdate(public(update), 0, executor, normalised)


def rows(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(OFFSETS[-1], D)).astype(np.float32), rng.normal(size=OFFSETS[-1]).astype(np.float32)


def answers(update: OwnPartUpdate, X: np.ndarray, y: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    people = [(X[first:last], y[first:last]) for first, last in itertools.pairwise(offsets)]
    return query(update).executor.in_places(public(update), people, 8, 0)


@pytest.mark.parametrize("hidden", [(4,), (4, 3), (3, 4, 2)])
def test_derivatives_by_hand_are_those_of_the_tape(hidden: tuple[int, ...]) -> None:
    network, rng = TanhNetwork(D, hidden), np.random.default_rng(0)
    vector, way = (torch.as_tensor(rng.normal(size=network.size)) for _ in range(2))
    X, y, weights = torch.randn(9, D).double(), torch.randn(9).double(), torch.ones(9).double()
    weights[7:] = 0.0
    seen = network.forward(vector, X)

    def half(v: torch.Tensor) -> torch.Tensor:
        return 0.5 * ((network(v, X) - y).square() * weights).sum() / 7

    slope, loss = network.slope(seen, y, weights)
    torch.testing.assert_close(slope, grad(half)(vector))
    torch.testing.assert_close(loss, half(vector))
    jacobian = vmap(grad(lambda v, x: network(v, x[None])[0]), in_dims=(None, 0))(vector, X)
    torch.testing.assert_close(network.push(seen, way), jacobian @ way)
    torch.testing.assert_close(network.curvature(seen, weights), jacobian[:7].square().mean(0))


@pytest.mark.parametrize("name", ["low rank and sparse", "prompt learning", "full fine-tuning"])
def test_no_step_of_an_own_part_raises_what_it_is_to_lower(name: str) -> None:
    """The user's loss and its prior; from a bad start too, where the linearised network promises too much."""
    update = replace(KINDS[name], penalty=0.5)
    X, y = (torch.as_tensor(part[:12]).double() for part in rows())
    vector, ones = 6.0 * torch.as_tensor(public(update)), torch.ones(12).double()
    steps = list(update.path(vector, X, y, ones, steps=40))
    losses = update.losses(vector, steps, X, y, ones)
    assert len(steps) == 41
    assert (steps[0] == 0).all()
    assert losses[-1] < 0.7 * losses[0]
    settled = losses[20:]  # entries are chosen before
    assert (settled.diff() < 1e-3 * losses[0]).all()  # the prior may fall at the loss's cost


def test_a_user_with_nothing_personal_has_what_everybody_has() -> None:
    """Targets that no network explains: an own part would fit noise, and a half that was not fitted says so."""
    update, rng = sparse(rank=1, sparsity=10), np.random.default_rng(0)
    vector, apart, greedy = torch.as_tensor(public(update)), [], []
    for _ in range(40):
        X = torch.as_tensor(rng.normal(size=(16, D)))
        y = update.network(update.everybodys(vector), X) + torch.as_tensor(rng.normal(size=16))
        fresh = torch.as_tensor(rng.normal(size=(200, D)))
        truth, ones = update.network(update.everybodys(vector), fresh), torch.ones(16).double()
        *_, whole = update.path(vector, X, y, ones, steps=20)
        for own, errors in ((update.held_back(vector, X, y, ones, steps=20), apart), (whole, greedy)):
            errors.append(float((update.network(update.whole(vector, own), fresh) - truth).square().mean()))
    assert np.mean(apart) < 0.4 * np.mean(greedy)
    assert np.mean(np.array(apart) == 0.0) > 0.25


def test_a_user_with_much_of_its_own_keeps_it() -> None:
    update, rng = sparse(rank=1, sparsity=3), np.random.default_rng(0)
    vector = torch.as_tensor(public(update))
    X, ones = torch.as_tensor(rng.normal(size=(60, D))), torch.ones(60).double()
    y = update.network(update.everybodys(vector), X) + 2.0
    own = update.held_back(vector, X, y, ones, steps=20)
    left = update.losses(vector, [update.first(vector), own], X, y, ones)
    assert left[1] < 0.05 * left[0]


def test_a_user_without_rows_asks_for_nothing_and_has_nothing() -> None:
    update, (X, y) = sparse(), rows()
    offsets = np.array([0, 5, 5, 26])
    asked = query(update, normalised=True)
    total = asked.block_sum(X[:26], y[:26], offsets, 1.0)
    np.testing.assert_allclose(total, asked.block_sum(X[:26], y[:26], np.array([0, 5, 26]), 1.0), atol=1e-7)
    none = [torch.zeros(4, D).double(), torch.zeros(4).double(), torch.zeros(4).double()]
    assert (update.held_back(torch.as_tensor(public(update)), *none, steps=5) == 0).all()


def test_a_step_moves_outputs_by_what_was_asked_for() -> None:
    update = sparse(rank=1, sparsity=0)
    vector, way = (torch.as_tensor(public(update, seed)) for seed in (0, 1))
    X = torch.as_tensor(np.random.default_rng(2).normal(size=(50, D)))
    little = 1e-6
    moved = update.network(vector + little * way, X) - update.network(vector, X)
    torch.testing.assert_close(
        update.reaction(vector, way, X), moved.square().mean().sqrt() / little, rtol=1e-4, atol=0
    )


@pytest.mark.parametrize("name", KINDS)
def test_the_answer_is_minus_the_gradient_in_what_is_shared(name: str) -> None:
    """By the tape, through the network the own part makes, with the own part held."""
    update = replace(KINDS[name], training=training(cross_fit=False))
    X, y = (torch.as_tensor(part[:12]).double() for part in rows())
    ones, vector = torch.ones(12).double(), torch.as_tensor(public(update)).float().double()
    own = update.fitted(vector, X, y, ones)
    expected = -grad(lambda v: 0.5 * (update.network(update.whole(v, own), X) - y).square().mean())(vector)
    torch.testing.assert_close(update(vector, X, y, ones), expected.float())


def test_an_embedding_behind_the_rows_is_a_shift_of_the_first_levels() -> None:
    update = KINDS["prompt learning"]
    vector, own = torch.as_tensor(public(update)), torch.randn(3).double()
    X = torch.randn(6, D).double()
    wide, units = TanhNetwork(D + 3, (4,)), 4
    matrix = torch.cat([vector[: units * D].view(units, D), vector[update.network.size :].view(units, 3)], 1)
    longer = torch.cat([matrix.reshape(-1), vector[units * D : update.network.size]])
    together = torch.cat([X, own.expand(6, 3)], 1)
    torch.testing.assert_close(wide(longer, together), update.network(update.whole(vector, own), X))
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
@pytest.mark.parametrize("name", ["low rank and sparse", "prompt learning"])
def test_a_user_that_is_no_number_adds_nothing_and_changes_nothing(name: str, normalised: bool) -> None:
    asked, (X, y) = query(KINDS[name], normalised=normalised), rows()
    X[OFFSETS[1]] = np.nan
    total = asked.block_sum(X, y, OFFSETS, 0.01)
    others = [asked.block_sum(X[a:b], y[a:b], np.array([0, b - a]), 0.01) for a, b in itertools.pairwise(OFFSETS)]
    assert (others[1] == 0).all()
    np.testing.assert_allclose(total, sum(others), atol=1e-8)


@pytest.fixture
def fewer_scales(monkeypatch: pytest.MonkeyPatch) -> None:
    """Adversarial users of some scales, and all without one: three thousand of them take minutes here."""
    users = adversarial_users(D)
    some = [user for place, user in enumerate(users) if place % 89 == 0 or not set(user[0]) & set("0123456789")]
    monkeypatch.setattr("tacitly.audit.users.adversarial_users", lambda *_: some)


@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize("name", ["low rank and sparse", "prompt learning"])
def test_no_user_moves_a_round_by_more_than_the_clip(name: str, normalised: bool, fewer_scales: None) -> None:
    asked = query(replace(KINDS[name], training=training(head_steps=2)), normalised=normalised)
    assert violations(asked, 0.05, D) == []
    X = 3 * np.random.default_rng(5).normal(size=(40, D))
    assert neighbour_violations(asked, 0.05, X, np.array([0, 8, 9, 20, 40])) == []


@pytest.mark.parametrize("normalised", [False, True])
def test_replacing_a_user_reaches_two_clips(normalised: bool) -> None:
    """Opposite targets, far from what the network says, ask for opposite moves."""
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
            seen = update.network.forward(update.whole(vector, own), mine[0])
            slope = update.network.slope(seen, mine[1], torch.ones(last - first).double())[0]
            norm = float(slope.norm())
            if math.isfinite(norm) and norm > 0:
                total += update.public_slope(own, slope * min(1.0, bound / norm)).numpy()
        return total


class DividesByWhoCame(BodyUpdate):
    """Mutation: the mean over those whose answer is finite, in place of the sum."""

    def block_sum(self, X, y, offsets, bound):  # type: ignore[no-untyped-def]
        came = sum(np.isfinite(X[a:b]).all() for a, b in itertools.pairwise(offsets))
        return super().block_sum(X, y, offsets, bound) * len(offsets) / max(1, came)


class LetsNaNThrough(BodyUpdate):
    """Mutation: one user's hole is everybody's."""

    def block_sum(self, X, y, offsets, bound):  # type: ignore[no-untyped-def]
        return super().block_sum(X, y, offsets, bound) + 0.0 * X.sum()


@pytest.mark.parametrize("mutant", [NormOfOneFactor, DividesByWhoCame, LetsNaNThrough])
def test_a_broken_round_is_caught(mutant: type[BodyUpdate], fewer_scales: None) -> None:
    good = query(sparse(rank=2, sparsity=3, cross_fit=False, head_steps=2))
    X = 3 * np.random.default_rng(5).normal(size=(40, D))
    broken = mutant(good.public, 0, good.executor)
    assert violations(broken, 0.05, D) or neighbour_violations(broken, 0.05, X, np.array([0, 8, 9, 20, 40]))


def quietly(model: neural.LowRankSparse, data: neural.made_up_networks) -> neural.LowRankSparse:  # type: ignore[valid-type]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tacitly.UncertifiedWarning)
        return model.fit(data.X, data.y, data.users)  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def data():  # type: ignore[no-untyped-def]
    return neural.made_up_networks(150, 4, 1, 40, 2, hidden=(5,), own=1.5, random_state=0)


@pytest.fixture(scope="module")
def model(data):  # type: ignore[no-untyped-def]
    return neural.LowRankSparse(1, 2, 4.0, rounds=3, **QUICK).fit(data.X, data.y, data.users)


def test_many_own_parts_on_the_true_basis_are_found_to_the_entry() -> None:
    found = []
    for seed in (1, 2):
        data = neural.made_up_networks(40, 4, 1, 60, 2, hidden=(5,), own=1.5, random_state=seed)
        rng = np.random.default_rng(seed)
        rng.normal(size=(31, 1))
        model = neural.LowRankSparse(1, 2, math.inf, hidden=(5,), final_steps=400, penalty=1e-6)
        model.n_features_in_, model.users_ = 4, np.arange(40)
        model.shared_ = 2.0 * TanhNetwork(4, (5,)).start(rng)
        model.own_ = model._own_parts(data.X, data.y, np.arange(0, 2401, 60))
        apart = [model._network_of(row).parameters - true for row, true in zip(model.own_, data.networks, strict=True)]
        found.append(np.mean(np.abs(apart).max(axis=1) < 0.01))
    assert found[0] > 0.3  # others have entries that do much the same
    assert np.mean(found) > 0.4


def test_without_privacy_low_rank_and_sparse_networks_beat_what_cannot_hold_them(data) -> None:  # type: ignore[no-untyped-def]
    settings = {**QUICK, "hidden": (5,), "rows_per_user": 40, "penalty": 0.1, "rounds": 15, "final_steps": 60}
    models = [neural.LowRankSparse(1, 4, math.inf, **settings), neural.single_model(math.inf, **settings)]
    models += [neural.representation_learning(1, math.inf, **settings)]
    errors = [data.error(quietly(model, data)) for model in models]
    assert errors[0] < 0.7 * min(errors[1:]), errors


def test_a_certified_run_spends_its_budget_and_no_more(data) -> None:  # type: ignore[no-untyped-def]
    fitted = neural.LowRankSparse(2, 0.1, 2.0, clip="auto", rounds=3, **QUICK).fit(data.X, data.y, data.users)
    certificate = fitted.certificate_
    assert certificate.certified
    assert 2.0 * (1 - 1e-6) < certificate.epsilon <= 2.0
    assert [release.name for release in certificate.releases] == ["answer norms", "step 1", "step 2", "step 3"]
    assert fitted.basis_.shape == (49, 2)
    assert fitted.sparse_indices_.shape == fitted.sparse_values_.shape == (150, 5)


def test_steps_are_divided_by_public_numbers_only(monkeypatch: pytest.MonkeyPatch, data) -> None:  # type: ignore[no-untyped-def]
    """Nobody's coin falls right: noise over q·n, not over a count of zero."""
    monkeypatch.setattr("tacitly.privacy.noise.coins", lambda size, rate: np.zeros(size, dtype=bool))
    fitted = neural.LowRankSparse(1, 2, 2.0, rounds=1, sampling_rate=0.25, **QUICK).fit(data.X, data.y, data.users)
    assert np.isfinite(fitted.basis_).all()
    assert fitted.certificate_.epsilon <= 2.0


def test_a_resumed_run_goes_on_with_the_same_ledger(tmp_path: Path, data) -> None:  # type: ignore[no-untyped-def]
    class Killed(Exception):
        pass

    def kill(name: str) -> None:
        if name == "step 2":
            raise Killed

    ceiling, settings = Budget(epsilon=2.0, delta=1e-6), {"rounds": 3, **QUICK}
    with Ledger(tmp_path / "ledger", ceiling=ceiling) as ledger, pytest.raises(Killed):
        neural.LowRankSparse(1, 2, 2.0, ledger=ledger, **settings).fit(data.X, data.y, data.users, on_release=kill)
    with Ledger(tmp_path / "ledger", ceiling=ceiling) as ledger:
        done = neural.LowRankSparse(1, 2, 2.0, ledger=ledger, **settings).fit(data.X, data.y, data.users)
        assert ledger.spent() == pytest.approx(2.0, rel=1e-6)
    assert done.certificate_.certified
    assert len(done.certificate_.releases) == 3


def test_a_new_user_gets_the_network_a_member_has_and_an_unknown_one_is_refused(data, model) -> None:  # type: ignore[no-untyped-def]
    mine = data.users == 3
    own = model.personalize(data.X[mine].astype(np.float32), data.y[mine].astype(np.float32))
    np.testing.assert_allclose(own.predict(data.X[mine]), model.predict(data.X[mine], data.users[mine]), atol=1e-6)
    with pytest.raises(tacitly.DataError, match="no network"):
        model.predict(data.X[:1], np.array([999]))
    with pytest.raises(tacitly.DataError, match="4 columns"):
        model.predict(data.X[:1, :3], np.array([3]))


@pytest.mark.parametrize("kind", ["sparse", "prompt"])
def test_a_model_is_saved_loaded_and_published_without_own_parts(kind: str, tmp_path: Path, data, model) -> None:  # type: ignore[no-untyped-def]
    fitted = model
    if kind == "prompt":
        fitted = neural.PromptLearning(4.0, rounds=1, embedding=2, **QUICK).fit(data.X, data.y, data.users)
    folder = tacitly.save(fitted, tmp_path / "model")
    again = tacitly.load(folder)
    assert type(again) is type(fitted)
    assert (again.predict(data.X, data.users) == fitted.predict(data.X, data.users)).all()
    out = publish(folder, tmp_path / "public")
    assert sorted(path.name for path in out.iterdir()) == ["billboard.safetensors", "certificate.json", "config.json"]
    stranger, mine = tacitly.load(out), data.users == 3
    prediction = fitted.personalize(data.X[mine], data.y[mine]).predict(data.X[mine])
    assert (stranger.personalize(data.X[mine], data.y[mine]).predict(data.X[mine]) == prediction).all()
    assert stranger.own_.shape[0] == 0


def test_own_parameters_that_do_not_exist_are_refused(data, model) -> None:  # type: ignore[no-untyped-def]
    arrays = model.private_arrays()
    arrays["sparse_indices"] = arrays["sparse_indices"] + 1000
    with pytest.raises(ValueError, match="Found positions outside"):
        model.take_private_arrays(arrays)


# Table 2: users, hidden layers; single, full, representation and prompt learning; 1 and 20 % (all in the benchmark).
PRINTED = {
    "MovieLens": (241, (50, 50), [5151, 1241391, 5392, 19701], [17924, 253863]),
    "Jester": (100, (50,), [2601, 260100, 2701, 10101], []),
}


@pytest.mark.parametrize("name", PRINTED)
def test_numbers_are_counted_as_the_paper_counts_them(name: str) -> None:
    n, hidden, four, sparse_ones = PRINTED[name]
    X, y = np.zeros((n, 50)), np.zeros(n)
    settings = {"hidden": hidden, "rounds": 1, "head_steps": 1, "final_steps": 1, "rows_per_user": 2}
    models = [neural.single_model(8.0, **settings), neural.full_fine_tuning(8.0, **settings)]
    models += [neural.representation_learning(1, 8.0, **settings)]
    models += [neural.LowRankSparse(1, share, 8.0, **settings) for share in (0.01, 0.2) if sparse_ones]
    counts = [fitted.fit(X, y, np.arange(n)).n_parameters() for fitted in models]
    prompt = neural.PromptLearning(8.0, **settings).fit(X, y, np.arange(n)).n_parameters()
    assert [*counts[:3], prompt] == four
    assert counts[3:] == sparse_ones


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sparsity": 1.5}, "sparsity"),
        ({"sparsity": -1}, "sparsity"),
        ({"rank": 0}, "rank"),
        ({"rank": 2, "shared_weight": True}, "shared_weight"),
        ({"hidden": ()}, "layers"),
        ({"clip": "median"}, "clip"),
        ({"clip": math.nan}, "clip"),
        ({"step": math.nan}, "step"),
        ({"sampling_rate": 0.0}, "sampling_rate"),
        ({"rounds": 0}, "rounds"),
        ({"penalty": -1.0}, "penalty"),
    ],
)
def test_settings_that_make_no_sense_are_refused_before_anything_is_spent(settings, message: str, data) -> None:  # type: ignore[no-untyped-def]
    with Ledger(ceiling=Budget(epsilon=1.0, delta=1e-6)) as ledger:
        model = neural.LowRankSparse(**{"rank": 1, "sparsity": 2, "epsilon": 1.0, "ledger": ledger, **settings})
        with pytest.raises(ValueError, match=message):
            model.fit(data.X, data.y, data.users)
        assert ledger.spent() == 0.0


def test_the_folder_says_nothing_of_machines(tmp_path: Path, model) -> None:  # type: ignore[no-untyped-def]
    folder = tacitly.save(model, tmp_path / "again")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert config["class"] == "neural.LowRankSparse"
    assert "ledger" not in config["parameters"]
