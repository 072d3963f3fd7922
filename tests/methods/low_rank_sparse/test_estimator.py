"""Low rank plus sparse as a user meets it."""

from __future__ import annotations

import contextlib
import json
import math
import warnings
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

import tacitly
from tacitly.baselines.comparison import compare
from tacitly.datasets import make_low_rank_sparse
from tacitly.head_file import load_head, save_head
from tacitly.methods.low_rank_sparse import algorithm
from tacitly.methods.low_rank_sparse import as_printed as paper_low_rank_sparse
from tacitly.model_folder import ModelError, publish


@pytest.fixture(scope="module")
def data():  # type: ignore[no-untyped-def]
    return make_low_rank_sparse(3000, 15, 2, (20, 40), 2, noise=0.1, random_state=0)


@pytest.fixture(scope="module")
def model(data):  # type: ignore[no-untyped-def]
    return tacitly.LowRankSparse(rank=2, sparsity=2, epsilon=2.0).fit(data.X, data.y, data.users)


def test_the_basis_is_found_and_the_certificate_says_what_was_asked_for(data, model) -> None:  # type: ignore[no-untyped-def]
    assert tacitly.subspace_distance(model.basis_, data.basis) < 0.05
    certificate = model.certificate_
    assert certificate.certified
    assert 2.0 * (1 - 1e-6) < certificate.epsilon <= 2.0
    assert [release.name for release in certificate.releases][:4] == [
        "column scales",
        "feature moment",
        "direction votes",
        "basis step 1",
    ]


@pytest.mark.parametrize("options", [{"route": "equations"}, {"adjacency": "replace-one"}, {"sparsity": "auto"}])
def test_other_ways_find_it_too(data, options) -> None:  # type: ignore[no-untyped-def]
    parameters = {"rank": 2, "sparsity": 2, "epsilon": 4.0, **options}
    model = tacitly.LowRankSparse(**parameters).fit(data.X, data.y, data.users)
    assert tacitly.subspace_distance(model.basis_, data.basis) < 0.1
    assert model.certificate_.certified
    assert model.certificate_.epsilon == pytest.approx(4.0, rel=1e-6)


def test_a_central_model_is_found_from_zero_whatever_the_units() -> None:
    data = make_low_rank_sparse(2000, 8, 1, 30, 2, random_state=1, shared_weight=True)
    for factor in (1.0, 1e6):
        model = tacitly.LowRankSparse(1, 2, 1.0, shared_weight=True).fit(data.X, factor * data.y, data.users)
        np.testing.assert_allclose(model.basis_ / factor, data.basis, atol=1e-4)
        assert model.certificate_.certified
        assert (model.heads_ == 1.0).all()


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_noise_is_not_taken_for_the_scale_of_a_central_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scale read off noise made predictions of 10²² on a real panel in one fit of forty."""
    few = make_low_rank_sparse(40, 5, 1, 6, 1, noise=0.1, random_state=0, shared_weight=True)
    scales: list[float] = []
    monkeypatch.setattr(algorithm, "run_rounds", lambda *given, **more: scales.append(given[2].scale))
    for seed in range(8):
        model = tacitly.LowRankSparse(1, 1, 0.1, shared_weight=True, noise="float", noise_seed=seed)
        with contextlib.suppress(RuntimeError):  # rounds that were planned are missing
            model.fit(few.X, few.y, few.users)
    assert len(scales) == 8
    assert max(scales) < 1e-6


@pytest.mark.parametrize("seed", range(3))
def test_columns_that_are_constant_within_users_do_no_harm_to_a_central_model(seed: int) -> None:
    """Nobody's rows correct weights on them: predictions were up to ten times as bad as users' own means."""
    rng, n, kept = np.random.default_rng(0), 800, np.tile([True, True, True, False], 800)
    users = np.repeat(np.arange(n), 4)
    X = np.column_stack([rng.uniform(-1.0, 1.0, (4 * n, 2)), rng.choice([-1.0, 1.0], (n, 7))[users]])
    y = X[:, :2] @ [1.5, 1.0] + rng.normal(size=n)[users] + 0.5 * rng.normal(size=4 * n)
    model = tacitly.LowRankSparse(1, 0, 1.0, shared_weight=True, fit_intercept=True, noise="float", noise_seed=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tacitly.UncertifiedWarning)
        model.fit(X[kept], y[kept], users[kept])

    def error(predicted: Any) -> float:
        return float(np.sqrt(np.mean(np.square(predicted - y[~kept]))))

    assert error(y[kept].reshape(n, 3).mean(axis=1)) > 1.25  # users' own means
    assert error(model.predict(X[~kept], users[~kept])) < 0.63  # 0.58 if the weights are known
    assert error(model.predict(X[~kept])) < 1.25  # without rows of one's own; 1.12 if the weights are known


@pytest.mark.parametrize("options", [{}, {"start": "moments"}, {"shared_weight": True}])
def test_paper_mode_releases_what_it_planned(data, options) -> None:  # type: ignore[no-untyped-def]
    few = data.users < 30
    model = tacitly.LowRankSparse(1, 1, 2.0, mode="paper", rounds=2, clips=(6.0, 6.0, 4.0, 3.0, 40), **options)
    model.fit(data.X[few], data.y[few], data.users[few])
    assert model.certificate_.epsilon == pytest.approx(2.0, rel=1e-6)


def test_paper_mode_goes_on_from_its_own_start(data, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    few, starts, original = data.users < 30, [], paper_low_rank_sparse._start

    def watched(*arguments: Any) -> Any:
        starts.append(original(*arguments))
        return starts[-1]

    def stop(name: str) -> None:
        if name == "gram 1":
            raise KeyboardInterrupt

    monkeypatch.setattr(paper_low_rank_sparse, "_start", watched)
    ledger = tacitly.Ledger()
    for watch in (stop, None):
        model = tacitly.LowRankSparse(2, 1, 2.0, mode="paper", rounds=1, clips=(6.0, 6.0, 4.0, 3.0, 40), ledger=ledger)
        with contextlib.suppress(KeyboardInterrupt):
            model.fit(data.X[few], data.y[few], data.users[few], on_release=watch)
    np.testing.assert_array_equal(*starts)


def test_paper_mode_is_certified_and_worse(data, model) -> None:  # type: ignore[no-untyped-def]
    few = data.users < 500
    paper = tacitly.LowRankSparse(2, 2, 2.0, mode="paper", rounds=2, clips=(6.0, 6.0, 4.0, 3.0, 40), random_state=0)
    paper.fit(data.X[few], data.y[few], data.users[few])
    assert paper.certificate_.certified
    assert 2.0 * (1 - 1e-6) < paper.certificate_.epsilon <= 2.0
    assert tacitly.subspace_distance(paper.basis_, data.basis) > 0.3


def test_personal_levels_are_found(data) -> None:  # type: ignore[no-untyped-def]
    levels = np.arange(3000) % 7 - 3.0
    model = tacitly.LowRankSparse(2, 2, math.inf, fit_intercept=True, rounds=12)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tacitly.UncertifiedWarning)
        model.fit(data.X, data.y + levels[data.users], data.users)
    assert np.median(np.abs(model.intercepts_ - levels)) < 0.1


def test_a_large_mean_of_features_does_not_matter(data) -> None:  # type: ignore[no-untyped-def]
    shifted = data.X + 1e6 * np.random.default_rng(0).normal(size=15)
    model = tacitly.LowRankSparse(2, 2, 8.0, fit_intercept=True).fit(shifted, data.y + 3.0, data.users)
    assert tacitly.subspace_distance(model.basis_, data.basis) < 0.05
    assert np.sqrt(np.mean((model.predict(shifted, data.users) - data.y - 3.0) ** 2)) < 0.2


def test_prediction_writes_nobodys_weights_out(data, model) -> None:  # type: ignore[no-untyped-def]
    weights = data.models(model.basis_, model.heads_, model.sparse_indices_, model.sparse_values_)
    expected = np.einsum("nd,nd->n", data.X, weights[data.users])
    np.testing.assert_allclose(model.predict(data.X, data.users), expected, atol=1e-9)
    assert model.n_parameters() == 2 * (15 + 3000) + 2 * 3000


def test_a_new_user_gets_a_head_that_can_be_kept(data, model, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    mine = data.users == 7
    head = model.personalize(data.X[mine], data.y[mine])
    np.testing.assert_allclose(head.predict(data.X[mine]), model.predict(data.X[mine], data.users[mine]))
    save_head(head, tmp_path / "head.json")
    again = load_head(tmp_path / "head.json", model)
    np.testing.assert_array_equal(again.predict(data.X[mine]), head.predict(data.X[mine]))


@pytest.mark.parametrize("change", [{"indices": [0, 99]}, {"indices": [0, -1]}, {"values": [1.0]}, {"indices": "ab"}])
def test_a_head_of_another_model_is_refused(data, model, tmp_path: Path, change) -> None:  # type: ignore[no-untyped-def]
    head = {"weights": [1.0, 2.0], "intercept": 0.0, "indices": [0, 1], "values": [1.0, 2.0], **change}
    (tmp_path / "head.json").write_text(json.dumps(head), encoding="utf-8")
    with pytest.raises(ModelError):
        load_head(tmp_path / "head.json", model)


def test_a_saved_model_predicts_the_same_and_a_published_one_has_no_heads(data, model, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    folder = tacitly.save(model, tmp_path / "model")
    again = tacitly.load(folder)
    np.testing.assert_array_equal(again.predict(data.X, data.users), model.predict(data.X, data.users))
    assert (folder / "private" / "heads.safetensors").stat().st_size < 3000 * (2 * 8 + 8 + 2 * 12 + 8) + 4000
    public = tacitly.load(publish(folder, tmp_path / "public"))
    assert len(public.users_) == len(public.sparse_values_) == 0
    assert public.personalize(data.X[:20], data.y[:20]).values.shape == (2,)


def test_heads_with_coordinates_that_are_not_there_are_refused(data, model) -> None:  # type: ignore[no-untyped-def]
    arrays = model.private_arrays()
    for wrong in (np.full_like(arrays["sparse_indices"], 15), arrays["sparse_indices"] - 100):
        with pytest.raises(ValueError, match="15 features do not have"):
            tacitly.LowRankSparse.take_private_arrays(copy(model), {**arrays, "sparse_indices": wrong})


def test_the_size_of_a_model_does_not_tell_what_anybody_chose(data) -> None:  # type: ignore[no-untyped-def]
    few = data.users < 40
    sizes = set()
    for y in (data.y[few], data.X[few].sum(axis=1), np.zeros(few.sum())):
        model = tacitly.LowRankSparse(1, "auto", 2.0, rounds=1).fit(data.X[few], y, data.users[few])
        shared = model.basis_.size + model.heads_.size  # of as many directions as the releases show: public
        sizes.add((model.n_parameters() - shared, model.sparse_values_.shape))
    assert sizes == {(3 * 40, (40, 3))}


def test_a_head_is_the_same_however_rows_lie_in_memory(data, model) -> None:  # type: ignore[no-untyped-def]
    mine = data.users == 7
    table = np.column_stack([data.X[mine], data.y[mine]])
    right = model.personalize(data.X[mine], data.y[mine])
    for X in (table[:, :-1], np.asfortranarray(data.X[mine])):
        head = model.personalize(X, table[:, -1])
        np.testing.assert_array_equal(head.weights, right.weights)
        np.testing.assert_array_equal(head.values, right.values)


def test_it_is_compared_with_what_users_would_have_in_an_account_that_is_kept(data, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    few = data.users < 200
    cohort = tacitly.Cohort.from_arrays(data.X[few], data.y[few], data.users[few])
    with tacitly.Ledger(tmp_path / "account.ledger") as ledger:
        kept = tacitly.LowRankSparse(1, 1, 2.0, rounds=2, ledger=ledger).fit(cohort)
        before = len(ledger.releases())
        assert len(compare(kept, cohort)) == 5
        assert len(ledger.releases()) == before


def test_it_is_compared_with_what_users_would_have_without_it(data, model) -> None:  # type: ignore[no-untyped-def]
    lines = compare(model, tacitly.Cohort.from_arrays(data.X, data.y, data.users))
    _, _, single, twin, ours = lines
    assert ours.error < 1.5 * twin.error
    assert ours.error < 0.5 * single.error


def test_awkward_users_break_nothing() -> None:
    """Fewer rows than unknowns, zero targets, identical rows, huge outliers: finite, and the basis stands."""
    data = make_low_rank_sparse(1500, 10, 2, 25, 2, noise=0.1, random_state=2)
    X, y, users = [data.X], [data.y], [data.users]
    rng = np.random.default_rng(3)
    odd = [
        (rng.normal(size=(2, 10)), rng.normal(size=2)),
        (rng.normal(size=(20, 10)), np.zeros(20)),
        (np.ones((20, 10)), np.ones(20)),
        (1e100 * rng.normal(size=(20, 10)), rng.normal(size=20)),
        (rng.normal(size=(20, 10)), 1e100 * rng.normal(size=20)),
        (np.zeros((20, 10)), np.ones(20)),
    ]
    for number, (rows, targets) in enumerate(odd * 5):
        X.append(rows)
        y.append(targets)
        users.append(np.full(len(rows), 2000 + number))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = tacitly.LowRankSparse(2, 2, 2.0).fit(np.vstack(X), np.concatenate(y), np.concatenate(users))
    assert tacitly.subspace_distance(model.basis_, data.basis) < 0.1
    for array in (model.heads_, model.sparse_values_, model.intercepts_):
        assert np.isfinite(array).all()


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"sparsity": 16}, "sparsity must be a count"),
        ({"shared_weight": True}, "rank 1"),
        ({"rank": 1, "shared_weight": True, "route": "equations"}, "released once"),
        ({"route": "newton"}, "route must be"),
        ({"mode": "paper"}, "five public clips"),
        ({"mode": "paper", "clips": (1, 1, 1, 1, 5), "start": "zero"}, "start must be"),
        ({"mode": "paper", "clips": (-1, 1, 1, -1, 5)}, "rows must be positive"),
        ({"mode": "paper", "clips": (1, 1, 1, 1, 2.5)}, "whole number"),
        ({"mode": "paper", "clips": (1e-100, 1, 1, 1e-100, 5)}, "gram_bound must be positive"),
        ({"mode": "paper", "clips": (1, 1, 1, 1, 5), "route": "equations"}, "one route"),
        (
            {"rank": 1, "mode": "paper", "clips": (1, 1, 1, 1, 5), "shared_weight": True, "start": "moments"},
            "starts at zero",
        ),
        ({"clips": (1, 1, 1, 1, 5)}, "mode='paper' only"),
        ({"start": "moments"}, "mode='paper' only"),
    ],
)
def test_mistakes_are_named(data, parameters, message: str) -> None:  # type: ignore[no-untyped-def]
    model = tacitly.LowRankSparse(**{"rank": 2, "sparsity": 2, "epsilon": 1.0, **parameters})
    with pytest.raises(ValueError, match=message):
        model.fit(data.X, data.y, data.users)


def test_it_has_scikit_learns_manners(model) -> None:  # type: ignore[no-untyped-def]
    assert clone(model).get_params() == model.get_params()


def test_the_papers_frameworks_order_as_they_should() -> None:
    data = make_low_rank_sparse(300, 20, 1, 15, 2, noise=0.1, random_state=4)
    cohort = tacitly.Cohort.from_arrays(data.X, data.y, data.users)
    rmse = {
        "single": data.population_rmse(tacitly.CentralModel(math.inf).fit(cohort)),
        "prompt": data.population_rmse(tacitly.PromptLearning(math.inf).fit(cohort)),
        "full": data.population_rmse(tacitly.FullFineTuning(math.inf).fit(cohort)),
        "rep": data.population_rmse(tacitly.FedRep(1).fit(cohort)),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tacitly.UncertifiedWarning)
        ours = data.population_rmse(tacitly.LowRankSparse(1, 2, math.inf).fit(cohort))
    assert ours < 0.6 * min(rmse.values())
    assert tacitly.PromptLearning(2.0).fit(cohort).certificate_.algorithm == "PromptLearning"
    assert rmse["single"] == pytest.approx(data.population_rmse(tacitly.SingleModel().fit(cohort)), rel=0.02)
