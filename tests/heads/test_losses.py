"""Losses beyond least squares: what is fitted, what is refused, and that privacy costs little."""

from __future__ import annotations

import json
import math
import time
import traceback
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import minimize
from scipy.special import expit, softmax
from sklearn.base import clone
from typer.testing import CliRunner

import tacitly
from tacitly.cli.main import app
from tacitly.data.validation import DataError
from tacitly.heads.glm import INTERCEPT_PENALTY, fit_few_loss_heads, fit_loss_heads
from tacitly.heads.losses import Loss
from tacitly.heads.newton import fit_newton
from tacitly.methods.shared.direction_votes import ClassVote, DirectionVote, top_directions
from tacitly.methods.shared.whitening import Whitening
from tacitly.model_folder import publish

RNG = np.random.default_rng(0)


def labelled(n: int, d: int, k: int, m: int, seed: int = 0, *, strength: float = 4.0, classes: int = 2):  # type: ignore[no-untyped-def]
    """Users with personal logistic models on a shared subspace; Gaussian features, Gaussian heads."""
    rng = np.random.default_rng(seed)
    basis = tacitly.linalg.orthonormal(rng.normal(size=(d, k)))[0]
    columns = classes if classes > 2 else 1
    heads = rng.normal(size=(n, k, columns)) * strength / math.sqrt(k)
    users = np.repeat(np.arange(n), m)
    X = rng.normal(size=(n * m, d))
    scores = np.einsum("nk,nkc->nc", X @ basis, heads[users])
    y = (scores + rng.gumbel(size=scores.shape)).argmax(axis=1) if classes > 2 else (
        rng.random(n * m) < expit(scores[:, 0])
    )  # fmt: skip
    return X, y.astype(float), users, basis


def objective(flat, P, y, loss, penalties):  # type: ignore[no-untyped-def]
    V = flat.reshape(P.shape[1], -1)
    scores = P @ V
    if loss.columns > 1:
        value = -np.log(softmax(scores, axis=1)[np.arange(len(y)), y.astype(int)]).sum()
    elif loss.name == "logistic":
        value = np.logaddexp(0.0, scores[:, 0]).sum() - y @ scores[:, 0]
    elif loss.name == "hinge":
        value = 0.5 * np.square(np.maximum(0.0, 1.0 - (2 * y - 1) * scores[:, 0])).sum()
    else:
        value = np.exp(scores[:, 0]).sum() - y @ scores[:, 0]
    return value + 0.5 * float((penalties[:, None] * V**2).sum())


@pytest.mark.parametrize("loss", [Loss("logistic"), Loss("hinge"), Loss("poisson"), Loss("logistic", (0, 1, 2))])
def test_newton_finds_the_minimum_that_a_general_optimiser_finds(loss: Loss) -> None:
    rng = np.random.default_rng(1)
    P, penalties = rng.normal(size=(25, 3)), np.array([0.5, 0.5, 0.1])
    y = rng.integers(0, max(2, loss.columns), size=25).astype(float)
    V, scores = np.zeros((3, loss.columns)), np.zeros((25, loss.columns))
    fit_newton(P, y, loss.code, penalties, V, scores)
    best = minimize(objective, np.zeros(V.size), (P, y, loss, penalties), method="BFGS", options={"gtol": 1e-10})
    np.testing.assert_allclose(V.ravel(), best.x, atol=1e-4)
    np.testing.assert_allclose(scores, P @ V, atol=1e-12)


@pytest.mark.parametrize("loss", ["logistic", "hinge"])
@pytest.mark.parametrize("intercept", [False, True])
def test_a_user_with_one_class_or_no_rows_has_a_finite_head(loss: str, intercept: bool) -> None:
    X = np.concatenate([RNG.normal(size=(10, 3)), np.ones((4, 3))])
    offsets = np.array([0, 5, 10, 10, 14])  # one class; the other; nobody; constant features
    y = np.array([1.0] * 5 + [0.0] * 5 + [1.0, 0.0, 1.0, 1.0])
    heads = fit_loss_heads(X, y, offsets, np.eye(3), Loss(loss), intercept=intercept)[:, :, 0]
    assert np.isfinite(heads).all()
    assert (heads[2] == 0).all()
    scores = X[:5] @ heads[0, :3] + heads[0, 3]
    if intercept:
        assert (scores > 0).all()
        assert (X[5:10] @ heads[1, :3] + heads[1, 3] < 0).all()
        np.testing.assert_allclose(heads[3, :3], 0.0, atol=1e-12)  # nothing but a level to be seen
        assert X[10] @ heads[3, :3] + heads[3, 3] > 0


def test_with_one_penalty_leaving_rows_out_is_what_refitting_without_them_gives() -> None:
    """The first-order leave-one-out score is close to the true one."""
    from tacitly.heads.glm import _left_out
    from tacitly.heads.newton import loss_of

    rng = np.random.default_rng(2)
    P, penalties = rng.normal(size=(40, 2)), np.array([2.0, 2.0])
    y = (rng.random(40) < expit(2 * P[:, 0])).astype(float)
    V, scores = np.zeros((2, 1)), np.zeros((40, 1))
    fit_newton(P, y, 1, penalties, V, scores)
    found = _left_out(P, y, scores, 1, penalties, V)
    truth = 0.0
    for j in range(40):
        keep = np.arange(40) != j
        W, other = np.zeros((2, 1)), np.zeros((39, 1))
        fit_newton(P[keep], y[keep], 1, penalties, W, other)
        truth += loss_of(1, y[j], float(P[j] @ W[:, 0]))
    assert found == pytest.approx(truth, rel=0.01)
    assert INTERCEPT_PENALTY > 0


@pytest.mark.parametrize("fit", [fit_loss_heads, fit_few_loss_heads])
def test_one_users_head_does_not_depend_on_others(fit) -> None:  # type: ignore[no-untyped-def]
    X, y, _, basis = labelled(9, 6, 2, 11)
    together = fit(X, y, np.arange(0, 100, 11), basis, Loss("logistic"))
    alone = fit(X[22:33], y[22:33], np.array([0, 11]), basis, Loss("logistic"))
    np.testing.assert_array_equal(together[2], alone[0])
    spoilt = np.where((np.arange(len(X)) < 11)[:, None], np.nan, X)
    np.testing.assert_array_equal(fit(spoilt, y, np.arange(0, 100, 11), basis, Loss("logistic"))[1:], together[1:])


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize(
    "loss", [Loss("logistic"), Loss("hinge"), Loss("poisson"), Loss("logistic", ("a", "b", "c"))], ids=str
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_heads_of_few_users_equal_those_of_many(loss: Loss, intercept: bool, dtype: type) -> None:
    rng = np.random.default_rng(6)
    offsets = np.append(0, np.cumsum([0, 1, 1, 2, 5, 30, *rng.integers(0, 12, 40)]))
    X = rng.normal(size=(offsets[-1], 5)).astype(dtype)
    y = rng.integers(0, 3 if loss.columns > 1 or loss.name == "poisson" else 2, offsets[-1]).astype(dtype)
    X[1], X[2:4], X[4] = 0.0, 1e6, np.inf  # all zeros, rows that are equal and large, and a row that is not finite
    X[offsets[6] : offsets[7]] = 0.0
    basis = tacitly.linalg.orthonormal(rng.normal(size=(5, 2)))[0]
    many, some = (fit(X, y, offsets, basis, loss, intercept=intercept) for fit in (fit_loss_heads, fit_few_loss_heads))
    np.testing.assert_allclose(some, many, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Loss("absolute"), "loss must be one of"),
        (lambda: Loss("logistic", (1,)), "at least two"),
        (lambda: Loss("logistic", (1, 1)), "at least two different"),
        (lambda: Loss("hinge", (0, 1, 2)), "needs two classes"),
        (lambda: Loss("logistic", {0, 1}), "must be a list of labels.*Found a set"),
        (lambda: Loss("logistic", "ab"), "must be a list of labels"),
        (lambda: Loss("logistic", (1, "a")), "all text or all numbers"),
    ],
)
def test_a_loss_that_means_nothing_is_refused(make, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.filterwarnings("ignore::tacitly.data.bad_rows.SideChannelWarning")
def test_labels_outside_the_declared_set_are_counted_and_never_shown() -> None:
    X, y, users, _ = labelled(30, 4, 1, 8)
    odd = y.copy()
    odd[:3] = 7
    model = tacitly.PrivateFedRep(rank=1, epsilon=1.0, loss="logistic", on_bad_rows="raise")
    for give in (lambda: model.fit(X, odd, users), lambda: model.fit(tacitly.Cohort.from_arrays(X, odd, users))):
        with pytest.raises(DataError, match=r"3 rows with a label outside classes=\[0, 1\]") as caught:
            give()
        assert "7" not in str(caught.value)
    with pytest.raises(DataError, match="below zero"):
        tacitly.PrivateFedRep(rank=1, epsilon=1.0, loss="poisson", on_bad_rows="raise").fit(X, y - 1, users)
    with pytest.raises(ValueError, match="paper mode is for loss='squared'"):
        tacitly.PrivateFedRep(rank=1, epsilon=1.0, loss="logistic", mode="paper").fit(X, y, users)


SECRET = "nobody-may-see-this"


@pytest.mark.filterwarnings("ignore::tacitly.data.bad_rows.SideChannelWarning")
@pytest.mark.parametrize("loss", ["squared", "poisson"])
def test_a_cell_that_is_no_number_is_counted_and_never_shown(loss: str) -> None:
    X, y, users, _ = labelled(30, 4, 1, 8)
    model = tacitly.PrivateFedRep(rank=1, epsilon=1.0, loss=loss, on_bad_rows="raise")
    words = np.array(y, dtype=object)
    words[:2] = SECRET
    holes = X.astype(object)
    holes[1, 1] = SECRET
    fitted = tacitly.PrivateFedRep(rank=1, epsilon=1.0, loss=loss).fit(X, y, users)
    for give in (
        lambda: model.fit(X, words, users),
        lambda: fitted.personalize(X[:8], words[:8]),
        lambda: fitted.score(X, words, users),
        lambda: fitted.personalize(holes[:8], y[:8]),
        lambda: fitted.predict(holes, users),
    ):
        with pytest.raises(DataError, match="not") as caught:
            give()
        told = "".join(traceback.format_exception(caught.value))
        assert SECRET not in told
        assert caught.value.__context__ is None or SECRET not in str(caught.value.__context__)


@pytest.mark.filterwarnings("ignore::tacitly.data.bad_rows.SideChannelWarning")
def test_labels_that_are_missing_are_counted() -> None:
    X, y, users, _ = labelled(30, 4, 1, 8)
    labels = pd.Series(y.astype(int)).astype("Int64")
    labels[:2] = pd.NA
    with pytest.raises(DataError, match="2 rows with a label outside"):
        tacitly.PrivateFedRep(rank=1, epsilon=1.0, loss="logistic", on_bad_rows="raise").fit(X, labels, users)


@pytest.mark.parametrize("make", [pd.Index, pd.Series, np.array, list])
def test_classes_may_come_in_any_list(make, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    X, y, users, _ = labelled(60, 4, 1, 8)
    model = tacitly.PrivateFedRep(rank=1, epsilon=4.0, loss="logistic", classes=make([1, 0])).fit(X, y, users)
    assert model.classes_.tolist() == [1, 0]
    again = tacitly.load(tacitly.save(model, tmp_path / "model"))
    np.testing.assert_array_equal(again.predict(X, users), model.predict(X, users))


def test_classes_without_a_loss_for_them_are_refused(tmp_path: Path) -> None:
    X, y, users, _ = labelled(30, 4, 1, 8)
    with pytest.raises(ValueError, match="classes are for loss"):
        tacitly.PrivateFedRep(rank=1, epsilon=1.0, classes=(0, 1)).fit(X, y, users)
    words = ["fit", "rows.csv", "--user", "u", "--target", "t", "--method", "fedrep", "--rank", "1"]
    words += ["--epsilon", "1", "--classes", "0,1"]
    refusals = {"fedrep": "--classes is for --loss logistic and hinge", "altmin": "--classes is for --method"}
    for method, refusal in refusals.items():
        done = CliRunner().invoke(app, [*words, "--method", method, "--out", str(tmp_path / "model")])
        assert refusal in str(done.exception)


def test_a_command_with_a_wrong_delta_leaves_no_ledger_behind(tmp_path: Path) -> None:
    X, y, users, _ = labelled(40, 3, 1, 10)
    table = tmp_path / "rows.csv"
    pd.DataFrame(X, columns=["a", "b", "c"]).assign(u=users, t=y).to_csv(table, index=False)
    commands = {
        "fit": ["--user", "u", "--target", "t", "--method", "fedrep", "--rank", "1", "--epsilon", "4", "--no-compare"],
        "svd": ["--user", "u", "--rank", "1", "--epsilon", "4", "--unit", "user"],
    }
    for name, words in commands.items():
        out = tmp_path / name
        wrong = CliRunner().invoke(app, [name, str(table), *words, "--out", str(out), "--delta", "0"])
        assert "delta must lie strictly between 0 and 1" in str(wrong.exception)
        assert not out.exists()
        right = CliRunner().invoke(app, [name, str(table), *words, "--out", str(out)])
        assert right.exit_code == 0, right.output


def test_leaving_rows_out_costs_less_than_fitting_them() -> None:
    """The Hessian is factored once, and every row takes a substitution."""
    from tacitly.heads.glm import _left_out

    rng = np.random.default_rng(3)
    P, penalties, V, scores = rng.normal(size=(300, 150)), np.full(150, 2.0), np.zeros((150, 1)), np.zeros((300, 1))
    y = (P[:, 0] > 0).astype(float)
    times = []
    for _ in range(3):  # the first compiles
        began = time.process_time()
        fit_newton(P, y, 1, penalties, V, scores)
        between = time.process_time()
        _left_out(P, y, scores, 1, penalties, V)
        times.append((between - began, time.process_time() - between))
    fitting, leaving = np.min(times[1:], axis=0)
    assert leaving < fitting


def test_users_vote_only_for_directions_that_their_labels_have() -> None:
    """Of ten classes a user with seven rows lacks most: their directions would be that of the mean row."""
    n, m, d, loss = 4000, 7, 40, Loss("logistic", tuple(range(10)))
    X, y, _, basis = labelled(n, d, 3, m, classes=10)
    for centered in (False, True):
        votes = ClassVote(Whitening.identity(d), centered, loss=loss).block_sum(X, y, np.arange(0, n * m + 1, m), 1.0)
        assert tacitly.subspace_distance(top_directions(votes, 1e-9, d, 3)[0], basis) < 0.25
    # Around their mean, equal targets leave rounding alone; it has no vote either.
    same, one = np.full(m, 0.1), np.array([0, m])
    for vote in (
        DirectionVote(Whitening.identity(d), centered=True),
        ClassVote(Whitening.identity(d), centered=True, loss=Loss("poisson")),
    ):
        assert not vote.block_sum(X[:m], same, one, 1.0).any()
        assert not vote.contribution(X[:m], same).any()


def test_labels_may_be_words_and_come_back_as_such() -> None:
    X, y, users, _ = labelled(400, 5, 1, 12)
    words = np.where(y > 0, "yes", "no")
    model = tacitly.PrivateFedRep(rank=1, epsilon=64.0, loss="logistic", classes=("no", "yes")).fit(X, words, users)
    assert set(model.predict(X, users)) == {"no", "yes"}
    assert model.score(X, words, users) > 0.8
    assert model.classes_.tolist() == ["no", "yes"]
    chances = model.predict_proba(X[:9], users[:9])
    np.testing.assert_allclose(chances.sum(axis=1), 1.0)
    assert ((chances[:, 1] > 0.5) == (model.predict(X[:9], users[:9]) == "yes")).all()
    assert clone(model).classes == ("no", "yes")


@pytest.mark.parametrize("loss", ["hinge", "poisson", "squared"])
def test_probabilities_only_where_they_make_sense(loss: str) -> None:
    X, y, users, _ = labelled(60, 4, 1, 8)
    model = tacitly.PrivateFedRep(rank=1, epsilon=4.0, loss=loss).fit(X, y, users)
    with pytest.raises(AttributeError, match="needs loss='logistic'"):
        model.predict_proba(X, users)
    if loss != "hinge":
        with pytest.raises(AttributeError, match="has no classes"):
            _ = model.classes_


def test_privacy_costs_little_of_what_sharing_gains() -> None:
    """A tenth of the size that docs/losses.md reports: what ε = 4 leaves of the gap between alone and the truth."""
    X, y, users, basis = labelled(2000, 20, 2, 20)
    late = np.tile(np.arange(20) >= 14, 2000)
    model = tacitly.PrivateFedRep(rank=2, epsilon=4.0, loss="logistic").fit(X[~late], y[~late], users[~late])
    local = tacitly.LocalModels(loss="logistic").fit(X[~late], y[~late], users[~late])
    oracle = clone(model)
    oracle.__dict__.update(model.__dict__)
    oracle.basis_ = basis
    oracle._take_heads(oracle.head_work()(X[~late], y[~late], np.arange(0, 2001 * 14, 14)))
    ours, alone, best = (each.score(X[late], y[late], users[late]) for each in (model, local, oracle))
    assert best - alone > 0.05
    assert (best - ours) / (best - alone) < 0.15
    assert model.certificate_.certified
    assert model.certificate_.epsilon == pytest.approx(4.0, rel=1e-6)


def test_several_classes_share_one_basis() -> None:
    X, y, users, basis = labelled(1500, 12, 2, 20, classes=4)
    model = tacitly.PrivateFedRep(rank=2, epsilon=4.0, loss="logistic", classes=range(4)).fit(X, y, users)
    assert model.heads_.shape == (1500, 2, 4)
    assert tacitly.subspace_distance(model.basis_, basis) < 0.3
    assert model.score(X, y, users) > 0.6
    head = model.personalize(X[:20], y[:20])
    np.testing.assert_allclose(head.predict_proba(X[:5]), model.predict_proba(X[:5], users[:5]))


def test_counts_are_predicted_as_rates() -> None:
    rng = np.random.default_rng(3)
    X, _, users, basis = labelled(800, 8, 1, 20)
    heads = rng.normal(size=800)
    y = rng.poisson(np.exp(0.5 * (X @ basis)[:, 0] * heads[users] + 0.3)).astype(float)
    model = tacitly.PrivateFedRep(rank=1, epsilon=4.0, loss="poisson", fit_intercept=True).fit(X, y, users)
    rates = model.predict(X, users)
    assert (rates > 0).all()
    assert model.score(X, y, users) > 0.1


@pytest.mark.parametrize("classes", [2, 3])
def test_a_classifier_survives_its_folder_and_takes_in_new_users(tmp_path: Path, classes: int) -> None:
    X, y, users, _ = labelled(200, 5, 1, 10, classes=classes)
    labels = list(range(classes))
    model = tacitly.PrivateFedRep(rank=1, epsilon=4.0, loss="logistic", classes=labels).fit(X, y, users)
    again = tacitly.load(tacitly.save(model, tmp_path / "model"))
    np.testing.assert_array_equal(again.predict_proba(X, users), model.predict_proba(X, users))
    publish(tmp_path / "model", tmp_path / "public")
    public = tacitly.load(tmp_path / "public")
    head = public.personalize(X[:10], y[:10])
    np.testing.assert_array_equal(head.predict(X[:10]), model.predict(X[:10], users[:10]))
    with pytest.raises(DataError, match="outside classes"):
        public.personalize(X[:10], y[:10] + 5)


def test_the_command_fits_predicts_and_personalises_classes(tmp_path: Path) -> None:
    X, y, users, _ = labelled(200, 3, 1, 10)
    table = pd.DataFrame(X, columns=["a", "b", "c"]).assign(user=users, bought=y.astype(int))
    table.to_csv(tmp_path / "rows.csv", index=False)
    run = CliRunner().invoke
    where = str(tmp_path / "model")
    base = [
        "--user",
        "user",
        "--target",
        "bought",
        "--method",
        "fedrep",
        "--rank",
        "1",
        "--epsilon",
        "4",
        "--out",
        where,
    ]
    done = run(app, ["fit", str(tmp_path / "rows.csv"), *base, "--loss", "logistic"])
    assert done.exit_code == 0, done.output
    assert "accuracy" in done.output
    done = run(app, ["predict", where, str(tmp_path / "rows.csv"), "--out", str(tmp_path / "out.csv")])
    assert done.exit_code == 0, done.output
    assert set(pd.read_csv(tmp_path / "out.csv")["prediction"]) == {0, 1}
    table[table.user == 3].to_csv(tmp_path / "mine.csv", index=False)
    done = run(app, ["personalize", where, str(tmp_path / "mine.csv"), "--out", str(tmp_path / "head.json")])
    assert done.exit_code == 0, done.output
    assert len(json.loads((tmp_path / "head.json").read_text())["weights"]) == 1
    done = run(app, ["predict", where, str(tmp_path / "mine.csv"), "--head", str(tmp_path / "head.json")])
    assert done.exit_code == 0, done.output
    bad = [*base[:-1], str(tmp_path / "m2")]
    done = run(app, ["fit", str(tmp_path / "rows.csv"), *bad, "--loss", "logistic", "--classes", "1,2"])
    assert "outside classes=[1, 2]" in str(done.exception)


@pytest.mark.parametrize("loss", ["logistic", "hinge", "poisson"])
def test_empty_users_single_classes_and_constant_features_are_no_trouble(loss: str) -> None:
    X, y, _, _ = labelled(60, 5, 1, 8)
    X[:, 3] = 2.0
    y[: 8 * 20] = 1.0
    with pytest.raises(DataError, match="1 users have no rows"):
        tacitly.Cohort.from_offsets(X, y, np.insert(np.arange(0, 481, 8), 31, 240))
    cohort = tacitly.Cohort.from_offsets(X, y, np.arange(0, 481, 8))
    for intercept in (False, True):
        model = tacitly.PrivateFedRep(rank=1, epsilon=4.0, loss=loss, fit_intercept=intercept).fit(cohort)
        assert np.isfinite(model.basis_).all()
        assert np.isfinite(model.heads_).all()
        if loss != "poisson" and intercept:  # without a level of its own a user of one class has only what noise left
            assert model.score(X[:160], y[:160], np.repeat(np.arange(20), 8)) > 0.95
