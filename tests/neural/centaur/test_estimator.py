"""The estimator: certificate, resuming, participation, baselines, attacks."""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import tacitly
from adversary import violations
from tacitly import neural
from tacitly.model_folder import publish
from tacitly.neural.centaur.linear_heads import fit_classes, fit_linear
from tacitly.neural.engine.executor import Executor
from tacitly.neural.engine.query import BodyUpdate
from tacitly.neural.engine.update import Flat, LocalTraining, UserUpdate
from tacitly.privacy.clipping import safe_norm
from tacitly.privacy.guarantee import Budget
from tacitly.privacy.ledger import Ledger

torch.set_num_threads(1)
D = 7


def data(n: int = 60, m: int = 12, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n * m, D))
    users = np.repeat(np.arange(n), m)
    y = (X[:, 0] + 0.3 * X[:, 1] * np.where(users % 2, 1, -1) > 0).astype(int)
    return X, y, users


def model(epsilon: float = 2.0, **settings: object) -> neural.Centaur:
    torch.manual_seed(0)
    body, head = neural.mlp(D, (6, 4), classes=2)
    chosen = {"rounds": 3, "head_steps": 2, "device": "cpu", **settings}
    return neural.Centaur(body, head, epsilon=epsilon, **chosen)  # type: ignore[arg-type]


def query(normalised: bool = False, dtype: torch.dtype = torch.float32, **training: object) -> BodyUpdate:
    torch.manual_seed(0)
    body, head = (module.to(dtype) for module in neural.mlp(D, (5, 4), classes=3))
    settings = LocalTraining(**{"head_steps": 2, **training})  # type: ignore[arg-type]
    update = UserUpdate(body=Flat(body), head=Flat(head), training=settings, classes=3)
    executor = Executor(update, device="cpu", workers=1)
    return BodyUpdate(update.body.start.numpy().astype(np.float64), 0, executor, normalised)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("normalised", [False, True])
def test_no_user_moves_a_round_by_more_than_the_clip(
    normalised: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "adversary.np.arange", lambda *a: np.linspace(-322.0, 307.0, 24) if a[0] == -322.0 else _range(*a)
    )
    assert violations(query(normalised, dtype), 0.05, D) == []


_range = np.arange


@pytest.mark.parametrize("groups", [(), (1024, 15360)])
@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize("route", ["one step", "alone", "batched"])
def test_numbers_whose_squares_vanish_or_overflow_are_clipped_too(
    route: str, normalised: bool, groups: tuple[int, ...]
) -> None:
    """A layer that starts at zero, in float64: 16384 entries near 1e-162 had a norm of a few, and 45 clips passed."""
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
    """Mutation: one user's hole is everybody's."""

    def block_sum(self, X, y, offsets, bound):  # type: ignore[no-untyped-def]
        return super().block_sum(X, y, offsets, bound) + 0.0 * X.sum()


@pytest.mark.parametrize("mutant", [Unclipped, LetsNaNThrough])
def test_a_broken_round_is_caught(mutant: type[BodyUpdate], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "adversary.np.arange", lambda *a: np.linspace(-322.0, 307.0, 12) if a[0] == -322.0 else _range(*a)
    )
    good = query()
    assert violations(mutant(good.public, 0, good.executor), 0.01, D)


def test_a_certified_run_spends_its_budget_and_no_more() -> None:
    fitted = model(clip="auto").fit(*data())
    assert fitted.certificate_.certified
    assert fitted.certificate_.epsilon == pytest.approx(2.0, rel=1e-6)
    assert fitted.certificate_.epsilon <= 2.0
    assert len(fitted.certificate_.releases) == 4
    assert fitted.score(*(data()[i] for i in (0, 1, 2))) > 0.7


def test_participation_by_coin_is_cheaper_and_certified() -> None:
    alone, sampled = model(rounds=2), model(rounds=2, sampling_rate=0.25)
    X, y, users = data()
    first = alone.fit(X, y, users).certificate_.releases[0].event
    second = sampled.fit(X, y, users).certificate_.releases[0].event
    assert second.sampling_rate == 0.25
    assert second.sigma < first.sigma
    assert sampled.certificate_.epsilon <= 2.0


def test_a_resumed_run_goes_on_with_the_same_ledger(tmp_path: Path) -> None:
    class Killed(Exception):
        pass

    def kill(name: str) -> None:
        if name == "body update 2":
            raise Killed

    ceiling = Budget(epsilon=2.0, delta=1e-6)
    with Ledger(tmp_path / "ledger", ceiling=ceiling) as ledger, pytest.raises(Killed):
        model(ledger=ledger).fit(*data(), on_release=kill)
    with Ledger(tmp_path / "ledger", ceiling=ceiling) as ledger:
        before = ledger._file.rows("SELECT value FROM releases WHERE state = 'published' ORDER BY idx")
        assert len(before) == 2
        done = model(ledger=ledger).fit(*data())
        after = ledger._file.rows("SELECT value FROM releases WHERE state = 'published' ORDER BY idx")
        assert after[:2] == before
        assert len(after) == 3
        assert ledger.spent() == pytest.approx(2.0, rel=1e-6)
    assert done.certificate_.certified


def test_another_start_is_not_the_same_run(tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger", ceiling=Budget(epsilon=4.0, delta=1e-6)) as ledger:
        first = model(ledger=ledger).fit(*data())
        first._run.abandon()
        other = model(ledger=ledger)
        with torch.no_grad():
            other.body[0].weight.add_(1.0)
        with pytest.raises(tacitly.privacy.ledger.LedgerMismatch):
            other.fit(*data())


@pytest.mark.parametrize("kind", [neural.FedAvg, neural.MeanRegularised, neural.TwoHeads, neural.LocalHeads])
def test_baselines_run_on_the_same_engine(kind: type[neural.Centaur]) -> None:
    torch.manual_seed(0)
    body, head = neural.mlp(D, (6, 4), classes=2)
    fitted = kind(body, head, epsilon=8.0, rounds=2, head_steps=1, device="cpu").fit(*data())
    assert fitted.score(*data()) > 0.55


def test_the_mean_regulariser_has_a_gradient() -> None:
    X, y, users = data(n=20)
    bodies = []
    for pull in (0.0, 1000.0):
        torch.manual_seed(0)
        body, head = neural.mlp(D, (6, 4), classes=2)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fitted = neural.MeanRegularised(
                body, head, epsilon=math.inf, rounds=1, local_steps=4, local_rate=1e-4, clip=1e6, step=1e6, device="cpu"
            )
            fitted.pull = pull
            fitted.fit(X, y, users)
        bodies.append(fitted.public_arrays())
    moved = max(float(np.abs(bodies[0][name] - bodies[1][name]).max()) for name in bodies[0])
    assert moved > 1e-7


def test_frozen_layers_cost_nothing_and_stay() -> None:
    torch.manual_seed(0)
    body, head = neural.mlp(D, (6, 4), classes=2)
    body[0].requires_grad_(False)
    before = body[0].weight.clone()
    fitted = neural.Centaur(body, head, epsilon=2.0, rounds=2, head_steps=1, device="cpu").fit(*data())
    assert fitted.certificate_.releases[0].coordinates == 6 * 4 + 4
    assert (fitted.body_[0][0].weight == before).all()


def test_a_new_user_gets_a_head_and_an_unknown_one_is_refused() -> None:
    X, y, users = data()
    fitted = model().fit(X, y, users)
    mine = fitted.personalize(X[:12], y[:12])
    assert (mine.predict(X[:12]) == fitted.predict(X[:12], users[:12])).mean() > 0.9
    with pytest.raises(tacitly.DataError, match="no head"):
        fitted.predict(X[:1], np.array([999]))


def test_a_network_is_saved_and_loaded_with_its_modules(tmp_path: Path) -> None:
    X, y, users = data()
    fitted = model().fit(X, y, users)
    folder = tacitly.save(fitted, tmp_path / "model")
    torch.manual_seed(1)
    body, head = neural.mlp(D, (6, 4), classes=2)
    again = tacitly.load(folder, body=body, head=head)
    assert (again.predict(X, users) == fitted.predict(X, users)).all()
    with pytest.raises(ValueError, match="holds a network"):
        tacitly.load(folder)


def test_heads_follow_the_public_head_where_own_rows_say_little() -> None:
    rng = np.random.default_rng(0)
    public = np.array([[3.0, 0.0, 0.0], [-3.0, 0.0, 0.0]])
    z = rng.normal(size=(8, 3))
    weights, _ = fit_classes(z, (z[:, 0] < 0).astype(int), public)
    assert np.argmax(np.abs(weights[0] - weights[1])) == 0
    flat, level = fit_linear(np.zeros((3, 2)), np.ones((3, 1)), np.zeros((1, 2)))
    assert (flat == 0).all()
    assert level[0] == 1.0


def test_counting_who_takes_part_tells_nothing() -> None:
    """Spec F4: a canary with zero gradient. With a fixed denominator the release has one law with and without it."""
    update = query()
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(24, D)), rng.integers(3, size=24).astype(float)
    without = update.block_sum(X, y, np.array([0, 12, 24]), 0.05)
    canary = np.vstack([X, np.full((3, D), np.nan)])
    with_it = update.block_sum(canary, np.append(y, [0.0] * 3), np.array([0, 12, 24, 27]), 0.05)
    assert (without == with_it).all()


class Recorded(neural.Centaur):
    """Answers every round with given numbers instead of anybody's."""

    def _learn(self, federation, plan, executor, update):  # type: ignore[no-untyped-def]
        genuine = federation.release
        federation.release = lambda query, event, name: np.ones_like(genuine(query, event, name))
        return super()._learn(federation, plan, executor, update)


@pytest.mark.parametrize(("clip", "rate"), [(None, 1.0), (0.5, 1.0), (0.5, 0.25), (None, 0.25)])
def test_rounds_are_divided_by_the_clip_and_the_expected_number_of_users(clip: float | None, rate: float) -> None:
    torch.manual_seed(0)
    body, head = neural.mlp(D, (6, 4), classes=2)
    settings = {"rounds": 1, "step": 3.0, "average": False, "head_steps": 1, "device": "cpu"}
    fitted = Recorded(body, head, 2.0, clip=clip, sampling_rate=rate, **settings).fit(*data())  # type: ignore[arg-type]
    moved = fitted.body_[1][0].weight - body[0].weight
    np.testing.assert_allclose(moved.detach(), 3.0 / ((clip or 1.0) * rate * 60), rtol=1e-4)


def test_an_empty_round_is_still_divided_by_the_expected_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody's coin falls right: pure noise over q·n, not over a count of zero."""
    monkeypatch.setattr("tacitly.privacy.noise.coins", lambda size, rate: np.zeros(size, dtype=bool))
    fitted = model(rounds=1, sampling_rate=0.25, average=False).fit(*data())
    moved = max(float(np.abs(value).max()) for value in fitted.public_arrays().values())
    assert math.isfinite(moved)
    assert fitted.certificate_.releases[0].state == "published"


@pytest.mark.parametrize("label", [2, -1, 7, 1e30, 0.4])
def test_a_label_that_is_no_class_is_refused_before_anything_is_released(label: float) -> None:
    X, y, users = data()
    wrong = y.astype(float)
    wrong[3] = label
    with Ledger(ceiling=Budget(epsilon=2.0, delta=1e-6)) as ledger:
        with pytest.raises(tacitly.DataError, match="class numbers from 0 to 1") as error:
            model(ledger=ledger).fit(X, wrong, users)
        assert ledger.releases() == []
    assert f"{label:g}" not in str(error.value).replace("0 to 1", "").replace("1 of 720", "").replace("from 0", "")
    with pytest.raises(tacitly.DataError, match="class numbers"):
        model().fit(X, y, users).personalize(X[:4], wrong[:4])


def test_rows_that_overflow_in_the_public_part_raise_nothing() -> None:
    X, y, users = data()
    X[:12] = 1e38
    torch.manual_seed(0)
    body, head = neural.mlp(D, (6, 4), classes=2)
    with torch.no_grad():
        body[0].weight.mul_(10)
    body[0].requires_grad_(False)
    fitted = neural.Centaur(body, head, epsilon=2.0, rounds=1, head_steps=1, device="cpu").fit(X, y, users)
    assert np.isfinite(fitted.heads_).all()
    assert fitted.certificate_.certified


def test_a_head_that_cannot_be_fitted_is_the_public_one_and_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y, users = data()
    asked = model(rounds=1)

    def failing(rows: np.ndarray, targets: np.ndarray, features: object) -> object:
        if (rows == rows[0, 0]).all():
            raise RuntimeError("private")
        return genuine(rows, targets, features)

    genuine = asked._seen
    monkeypatch.setattr(asked, "_seen", failing)
    X[:12] = 0.125
    fitted = asked.fit(X, y, users)
    public = np.concatenate([v.detach().numpy().ravel() for v in fitted.public_head_.parameters()])
    np.testing.assert_allclose(fitted.heads_[0], public)
    assert not np.allclose(fitted.heads_[1], public)


@pytest.mark.parametrize("head", [nn.Linear(4, 6, bias=False), nn.Sequential(nn.Linear(4, 6))], ids=["flat", "nested"])
def test_no_head_predicts_a_class_its_user_does_not_hold(head: nn.Module, tmp_path: Path) -> None:
    X, _, users = data()
    y = users % 5 + (X[:, 0] > 0)
    torch.manual_seed(0)
    body, _ = neural.mlp(D, (6, 4), classes=2)
    fitted = neural.Centaur(body, head, epsilon=4.0, rounds=2, head_steps=2, device="cpu").fit(X, y, users)
    again = tacitly.load(tacitly.save(fitted, tmp_path / "model"), body=body, head=head)
    for asked in (fitted, again):
        assert all(
            label in (user % 5, user % 5 + 1) for label, user in zip(asked.predict(X, users), users, strict=True)
        )
    assert set(fitted.personalize(X[:12], y[:12]).predict(X)) <= {0, 1}


def test_a_network_is_published_without_its_modules(tmp_path: Path) -> None:
    folder = tacitly.save(model().fit(*data()), tmp_path / "model")
    public = publish(folder, tmp_path / "public")
    assert not (public / "private").exists()
    body, head = neural.mlp(D, (6, 4), classes=2)
    X, y, _ = data()
    assert tacitly.load(public, body=body, head=head).personalize(X[:12], y[:12]).predict(X[:3]).shape == (3,)


def test_heads_alone_are_certified_at_nothing_and_saved(tmp_path: Path) -> None:
    body, head = neural.mlp(D, (6, 4), classes=2)
    fitted = neural.LocalHeads(body.requires_grad_(False), head, epsilon=1.0, device="cpu").fit(*data())
    assert fitted.certificate_.epsilon == 0.0
    assert fitted.certificate_.releases == ()
    again = tacitly.load(tacitly.save(fitted, tmp_path / "model"), body=body, head=head)
    assert (again.predict(data()[0], data()[2]) == fitted.predict(data()[0], data()[2])).all()


@pytest.mark.parametrize("name", ["neural.LocalTraining", "neural.synthetic_images", "neural.nothing", "Budget"])
def test_a_folder_names_an_estimator_or_is_refused(name: str, tmp_path: Path) -> None:
    folder = tacitly.save(model().fit(*data()), tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "class": name}))
    with pytest.raises(ValueError, match="Expected one of"):
        tacitly.load(folder, body=nn.Identity(), head=nn.Identity())


def test_views_are_used_for_new_users_and_asked_for_on_loading(tmp_path: Path) -> None:
    X, y, users = data()
    fitted = model(augment=lambda rows: -rows).fit(X, y, users)
    mine = fitted.personalize(X[:12], y[:12])
    np.testing.assert_allclose(mine.head, fitted.heads_[0], rtol=1e-4, atol=1e-5)
    folder = tacitly.save(fitted, tmp_path / "model")
    with pytest.raises(ValueError, match="augment="):
        tacitly.load(folder, body=fitted.body, head=fitted.head)
    again = tacitly.load(folder, body=fitted.body, head=fitted.head, augment=lambda rows: -rows)
    np.testing.assert_allclose(again.personalize(X[:12], y[:12]).head, mine.head)


def test_another_pull_is_another_run(tmp_path: Path) -> None:
    body, head = neural.mlp(D, (6, 4), classes=2)
    configs = []
    for pull in (1.0, 2.0):
        asked = neural.MeanRegularised(body, head, epsilon=2.0)
        asked.pull = pull
        configs.append(asked._public_config({}))
    assert configs[0] != configs[1]


def test_the_wrong_number_of_columns_is_said_in_words() -> None:
    X, y, users = data()
    with pytest.raises(ValueError, match="does not accept rows of 6 features"):
        model().fit(X[:, :6], y, users)
    fitted = model().fit(X, y, users)
    with pytest.raises(tacitly.DataError, match="7 columns"):
        fitted.predict(X[:, :6], users)
    with pytest.raises(tacitly.DataError, match="finite"):
        fitted.personalize(np.full((2, D), np.nan), [0, 1])


def test_a_public_start_leaves_the_common_generator_alone() -> None:
    body, _ = neural.lenet(widths=(2, 2, 4, 2))
    before = torch.get_rng_state()
    neural.contrast(body, steps=1, batch=4, scenes=8)
    assert torch.equal(before, torch.get_rng_state())


def test_read_only_rows_raise_no_warning() -> None:
    cohort = tacitly.Cohort.from_arrays(*data(), dtype=np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.manual_seed(0)
        body, _ = neural.mlp(D, (6, 4), classes=2)
        head = nn.Sequential(nn.Linear(4, 2))
        neural.Centaur(body, head, epsilon=2.0, rounds=1, head_steps=1, device="cpu").fit(cohort)
