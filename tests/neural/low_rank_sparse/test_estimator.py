"""Estimators with personal parts: what is recovered, certified and saved."""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

import tacitly
from tacitly import neural
from tacitly.model_folder import publish
from tacitly.neural.low_rank_sparse.tanh_network import TanhNetwork
from tacitly.privacy.guarantee import Budget
from tacitly.privacy.ledger import Ledger

torch.set_num_threads(1)
QUICK = {"hidden": (8,), "head_steps": 8, "rows_per_user": 20, "device": "cpu"}


def quietly(model: neural.LowRankSparse, data: neural.synthetic_networks) -> neural.LowRankSparse:  # type: ignore[valid-type]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tacitly.UncertifiedWarning)
        return model.fit(data.X, data.y, data.users)  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def data():  # type: ignore[no-untyped-def]
    return neural.synthetic_networks(150, 4, 1, 40, 2, hidden=(5,), own=1.5, random_state=0)


@pytest.fixture(scope="module")
def model(data):  # type: ignore[no-untyped-def]
    return neural.LowRankSparse(1, 2, 4.0, rounds=3, **QUICK).fit(data.X, data.y, data.users)


def test_many_own_parts_on_the_true_basis_are_found_to_the_entry() -> None:
    found = []
    for seed in (1, 2):
        data = neural.synthetic_networks(40, 4, 1, 60, 2, hidden=(5,), own=1.5, random_state=seed)
        rng = np.random.default_rng(seed)
        rng.normal(size=(31, 1))
        model = neural.LowRankSparse(1, 2, math.inf, hidden=(5,), final_steps=400, penalty=1e-6)
        model.n_features_in_, model.users_ = 4, np.arange(40)
        model.shared_ = 2.0 * TanhNetwork(4, (5,)).start(rng)
        model.own_ = model._own_parts(data.X, data.y, np.arange(0, 2401, 60))
        apart = [model._network_of(row).parameters - true for row, true in zip(model.own_, data.networks, strict=True)]
        found.append(np.mean(np.abs(apart).max(axis=1) < 0.01))
    assert found[0] > 0.3  # the rest found other entries with much the same effect
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
    assert [release.name for release in certificate.releases] == ["answer norm", "step 1", "step 2", "step 3"]
    assert fitted.basis_.shape == (49, 2)
    assert fitted.sparse_indices_.shape == fitted.sparse_values_.shape == (150, 5)


def test_steps_are_divided_by_public_numbers_only(monkeypatch: pytest.MonkeyPatch, data) -> None:  # type: ignore[no-untyped-def]
    """No user is sampled: noise is divided by q·n, not by a count of zero."""
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
    with pytest.raises(tacitly.DataError, match="expecting 4 features"):
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
    with pytest.raises(ValueError, match="network of 49"):
        model.take_private_arrays(arrays)


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
