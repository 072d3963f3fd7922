"""Fitted networks: prediction, new users, saving, loading, publishing."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import small_networks as small
import tacitly
from centaur_fits import D, data, model
from tacitly import neural
from tacitly.model_folder import publish

torch.set_num_threads(1)


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
    wider, fitting = neural.mlp(D, (7, 4), classes=2)
    with pytest.raises(ValueError, match="body must have the architecture that was saved, with parameters of shapes"):
        tacitly.load(folder, body=wider, head=fitting)


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


def test_the_wrong_number_of_columns_is_said_in_words() -> None:
    X, y, users = data()
    with pytest.raises(ValueError, match="does not accept rows of 6 features"):
        model().fit(X[:, :6], y, users)
    fitted = model().fit(X, y, users)
    with pytest.raises(tacitly.DataError, match="expecting 7 features"):
        fitted.predict(X[:, :6], users)
    with pytest.raises(tacitly.DataError, match="finite"):
        fitted.personalize(np.full((2, D), np.nan), [0, 1])


@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize("kind", [neural.Centaur, neural.LocalHeads])
def test_a_category_that_is_not_there_is_nobodys_business(kind: type[neural.Centaur], frozen: bool) -> None:
    """Regression: it raised from the public prefix and from predict, but which user has it is private."""
    X, y, users = small.data()
    X[:, 0] = np.arange(len(X)) % 4
    X[3, 0] = 77
    torch.manual_seed(0)
    body = nn.Sequential(small.Category().requires_grad_(not frozen), nn.Linear(small.D + 2, 4))
    asked = kind(
        body,
        nn.Linear(4, 2),
        epsilon=2.0,
        rounds=1,
        head_steps=1,
        device="cpu",
        rows_per_user=small.M,
        trust_custom_layers=True,
    )
    fitted = asked.fit(X, y, users)
    assert np.isfinite(fitted.heads_).all()
    assert np.abs(fitted.heads_[1]).max() > 0
    assert set(fitted.predict(X, users)) <= {0, 1}


def test_a_users_predictions_do_not_depend_on_others_rows() -> None:
    class Centre(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x - x.mean(0)

    X, y, users = small.data()
    fitted = small.model(nn.Sequential(nn.Linear(small.D, 4), Centre()), trust_custom_layers=True).fit(X, y, users)
    before = fitted.predict(X, users)[: small.M]
    X[small.M :] += 5.0
    assert (fitted.predict(X, users)[: small.M] == before).all()


@pytest.mark.parametrize("settings", [{}, {"mode": "paper", "clip": 0.1}])
def test_probabilities_are_those_of_the_users_classes(settings: dict[str, object]) -> None:
    X, y, users = data(n=10)
    y = np.where(users == 0, 0, y)  # one user holds a single class
    fitted = model(**settings, rounds=1).fit(X, y, users)
    found = fitted.predict_proba(X, users)
    np.testing.assert_allclose(found.sum(axis=1), 1.0)
    assert (found >= 0).all()
    assert (found[users == 0] == [1.0, 0.0]).all()
    assert (found.argmax(axis=1) == fitted.predict(X, users)).mean() > 0.99
    with pytest.raises(AttributeError, match="loss='classes'"):
        model(loss="squares").predict_proba(X, users)
