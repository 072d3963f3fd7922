"""Private evaluation and choice: bounded by user, charged to the account, right within its interval."""

from __future__ import annotations

import math
import warnings
from functools import cache, partial
from typing import Any

import numpy as np
import pandas
import pytest

import tacitly
from tacitly.methods.evaluation import _MeanLoss, _ModelLosses
from tacitly.privacy.ledger import BudgetExceeded, Ledger

DATA = tacitly.datasets.make_shared_subspace(400, 5, 1, 8, noise=0.1, random_state=0)
FIRST = np.arange(len(DATA.y)) % 8 < 5


def fitted(ledger: Ledger | None, run: str = "fit", **options: float) -> tacitly.PrivateFedRep:
    model = tacitly.PrivateFedRep(rank=1, **{"epsilon": 4.0, **options}, ledger=ledger, run=run)
    return model.fit(DATA.X[FIRST], DATA.y[FIRST], DATA.users[FIRST])


def held_out() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return DATA.X[~FIRST], DATA.y[~FIRST], DATA.users[~FIRST]


def test_an_evaluation_is_charged_to_the_account_and_right_within_its_interval() -> None:
    with Ledger(ceiling=6.0) as ledger:
        model = fitted(ledger)
        model.close()
        before = ledger.spent()
        X, y, users = held_out()
        found = model.evaluate(X, y, users, epsilon=0.5, bound=2.0)
        errors = np.minimum(np.abs(y - model.predict(X, users)), 2.0)
        true = np.mean([errors[users == user].mean() for user in np.unique(users)])
        # The noise alone has a standard deviation of 2 · 8.1/400; ten of them: less than one false alarm in 10^20.
        assert abs(found.loss - true) < 0.4
        assert found.low <= found.loss <= found.high <= 2.0
        assert before < ledger.spent() <= 6.0
        assert [run.name for run in ledger.runs()] == ["fit", "fit evaluation 1"]
        assert "95 %" in str(found)
        with pytest.raises(BudgetExceeded):
            model.evaluate(X, y, users, epsilon=5.0, bound=2.0)


def test_an_evaluation_says_what_it_measured_and_whether_an_account_adds_it_up() -> None:
    X, y, users = held_out()
    with Ledger() as ledger:
        found = str(fitted(ledger).evaluate(X, y, users, epsilon=0.5, bound=2.0))
        assert found.startswith("mean absolute error ")
        assert "no account" not in found
    signs = tacitly.PrivateFedRep(rank=1, epsilon=4.0, loss="logistic").fit(
        DATA.X[FIRST], DATA.y[FIRST] > 0, DATA.users[FIRST]
    )
    shares = signs.evaluate(X, y > 0, users, epsilon=8.0, bound=50.0)  # a bound has no meaning for classes
    assert shares.high <= 1.0
    assert str(shares).startswith("share of wrong classes ")
    assert "charged to no account" in str(shares)


def test_the_score_of_an_uncertified_model_does_not_promise_anything_about_its_training_rows() -> None:
    """The noise of the score hides one user's errors, not what a model without noise learnt from that user."""
    X, y, users = held_out()
    with pytest.warns(tacitly.UncertifiedWarning):
        bare = fitted(None, epsilon=math.inf)
    for model, missing in ((bare, 1), (fitted(None), 0)):
        found = model.evaluate(X, y, users, epsilon=0.5, bound=2.0).certificate
        assert found is not None
        assert sum("because the model is not certified" in item for item in found.not_covered) == missing
        assert "heads, and predictions made with them, that are shown to others" in found.not_covered


def test_a_choice_among_models_finds_the_good_one_and_is_charged_once() -> None:
    with Ledger() as ledger:
        good, bad = fitted(ledger, "good"), fitted(ledger, "bad")
        bad.heads_ = -bad.heads_
        # Losses differ by about 0.5 of 400 users: the wrong one wins with a probability below e^-50.
        assert tacitly.choose([bad, good, bad], *held_out(), epsilon=1.0, bound=2.0) == 1
        assert ledger.releases("bad choice 1")[0].event.to_dict()["mechanism"] == "selection"
        with pytest.raises(ValueError, match="at least two"):
            tacitly.choose([good], *held_out(), epsilon=1.0, bound=2.0)


def test_what_must_be_known_beforehand_is_asked_for() -> None:
    model = fitted(None)
    X, y, users = held_out()
    with pytest.raises(ValueError, match="bound must be given for a number"):
        model.evaluate(X, y, users, epsilon=1.0)
    with pytest.raises(ValueError, match="y must be numbers") as caught:
        model.evaluate(X, np.where(y > 0, "S3CR3T", "x"), users, epsilon=1.0, bound=1.0)
    assert "S3CR3T" not in str(caught.value)
    assert model.evaluate(X, y, users, epsilon=1.0, bound=1.0).n_users == 400


@pytest.mark.parametrize("rows", [[[0.0]], [[1.0]], [[1e308]] * 9, [[-5.0]], [[0.2], [0.9]]])
def test_a_user_moves_the_sum_by_at_most_one_whatever_the_rows(rows: list[list[float]]) -> None:
    X = np.array(rows)
    term = float(_MeanLoss().contribution(X, X[:, 0])[0])
    assert 0.0 <= term <= 1.0
    assert term == pytest.approx(np.clip(X.mean(), 0, 1))
    both = _ModelLosses(2).contribution(np.hstack([X, 1 - X]), X[:, 0])
    assert ((both >= 0) & (both <= _ModelLosses(2).steps)).all()


def test_one_user_can_reach_the_bound() -> None:
    assert _MeanLoss().contribution(np.ones((3, 1)), np.ones(3)).tolist() == [1.0]
    assert _ModelLosses(2).contribution(np.array([[1.0, 0.0]]), np.ones(1)).tolist() == [_ModelLosses(2).steps, 0.0]


def of_classes(name: str, X: np.ndarray, users: np.ndarray) -> Any:
    """Fit a model of classes, or of counts."""
    labels = np.digitize(X[:, 0], [0.0, 0.5])
    basis = partial(tacitly.PrivateFedRep, rank=2, epsilon=20.0)
    kinds = {
        "two classes": lambda: basis(loss="logistic", classes=(0, 1)).fit(X, np.minimum(labels, 1), users),
        "three classes": lambda: basis(loss="logistic", classes=(0, 1, 2)).fit(X, labels, users),
        "hinge": lambda: basis(loss="hinge", classes=(0, 1)).fit(X, np.minimum(labels, 1), users),
        "rates": lambda: basis(loss="poisson").fit(X, labels, users),
        "prior of classes": lambda: tacitly.MixedEffects(epsilon=20.0, loss="logistic", classes=(0, 1, 2)).fit(
            X, labels, users
        ),
        "prior of counts": lambda: tacitly.MixedEffects(epsilon=20.0, loss="poisson").fit(X, labels, users),
    }
    return kinds[name]()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name", ["two classes", "three classes", "hinge", "rates", "prior of classes", "prior of counts"]
)
def test_a_users_loss_is_the_same_to_the_last_bit_whatever_rows_others_have(name: str) -> None:
    """Where scores were zero but for rounding, one user's rows turned the classes of two others."""
    rng, users = np.random.default_rng(0), np.repeat(np.arange(300), 4)
    model = of_classes(name, rng.normal(size=(1200, 40)), users)
    rows, ids = rng.normal(size=(300, 40)), np.arange(300)
    if hasattr(model, "basis_") and model.heads_.ndim == 2:
        own = model.heads_ @ model.basis_.T
        for _ in range(3):  # no score is left but rounding
            rows -= (np.sum(rows * own, axis=1) / np.sum(own * own, axis=1))[:, None] * own
    alone = model.decision_function(rows, ids)
    single = [model.decision_function(rows[[i]], ids[[i]]) for i in range(60)]
    np.testing.assert_array_equal(np.concatenate(single), alone[:60])
    for more in range(1, 9):
        among = model.decision_function(
            np.vstack([np.repeat(rows[:1], more, axis=0), rows]), np.append([0] * more, ids)
        )
        np.testing.assert_array_equal(among[more:], alone)


def spoilt(values: np.ndarray, cell: object) -> np.ndarray:
    """Return values with another one in the first row."""
    changed = values.astype(object)
    changed.flat[0:1] = np.fromiter([cell], dtype=object)
    return changed


@pytest.mark.parametrize(
    "cell", ["S3CR3T", None, np.nan, np.inf, 1e308, 10**400, "7", pandas.NA, (1, 2)], ids=lambda cell: str(cell)[:9]
)
@pytest.mark.parametrize("kind", ["basis", "prior", "classes", "table"])
def test_no_private_cell_decides_whether_an_evaluation_raises_or_warns(kind: str, cell: object) -> None:
    """A fit does neither: a text among numbers raised here, a huge number warned."""
    X, y, users = held_out()
    model, bound = models()[kind], None if kind == "classes" else 2.0
    if kind == "classes":
        y = (y > 0).astype(np.int64)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for rows, targets in ((spoilt(X, cell), y), (X, spoilt(y, cell))):
            given = pandas.DataFrame(rows, columns=list("abcde")) if kind == "table" else rows
            assert model.evaluate(given, targets, users, epsilon=0.1, bound=bound).n_users == 400
            assert tacitly.choose([model, model], given, targets, users, epsilon=0.1, bound=bound) in (0, 1)


@cache
def models() -> dict[str, Any]:
    X, y, users = DATA.X[FIRST], DATA.y[FIRST], DATA.users[FIRST]
    logistic = tacitly.MixedEffects(epsilon=1.0, loss="logistic", classes=(0, 1))
    return {
        "basis": fitted(None),
        "prior": tacitly.MixedEffects(epsilon=1.0).fit(X, y, users),
        "classes": logistic.fit(X, (y > 0).astype(np.int64), users),
        "table": tacitly.MixedEffects(epsilon=1.0).fit(pandas.DataFrame(X, columns=list("abcde")), y, users),
    }
