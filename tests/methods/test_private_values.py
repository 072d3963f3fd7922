"""No public method tells a private value, or how many there are: neither in an error nor by raising one."""

from __future__ import annotations

import math
import traceback
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pandas
import pytest

import tacitly
from tacitly import neural
from tacitly.data.bad_rows import SideChannelWarning
from tacitly.methods.fedpower.estimator import FedPower
from tacitly.privacy.guarantee import TooFewUsersWarning

SECRET = "S3CR3T"
USERS, ROWS, D = 24, 4, 3
N = USERS * ROWS
RNG = np.random.default_rng(0)
X, IDS = RNG.normal(size=(N, D)), np.repeat(np.arange(USERS), ROWS)
Y = X[:, 0] + 0.1 * RNG.normal(size=N)
YES = (Y > 0).astype(int)
MATRICES = X.reshape(N, 1, D)


def network() -> Any:
    import torch

    body = torch.nn.Sequential(torch.nn.Linear(D, 4), torch.nn.Tanh())
    return neural.Centaur(body, torch.nn.Linear(4, 2), epsilon=math.inf, rounds=1, device="cpu")


MODELS: dict[str, tuple[Callable[[], Any], tuple[Any, ...]]] = {
    "fedrep": (lambda: tacitly.PrivateFedRep(rank=1, epsilon=math.inf), (X, Y, IDS)),
    "fedrep, classes": (
        lambda: tacitly.PrivateFedRep(rank=1, epsilon=math.inf, loss="logistic", classes=(0, 1)),
        (X, YES, IDS),
    ),
    "mixed effects": (lambda: tacitly.MixedEffects(epsilon=math.inf), (X, Y, IDS)),
    "low rank and sparse": (lambda: tacitly.LowRankSparse(rank=1, sparsity=1, epsilon=math.inf), (X, Y, IDS)),
    "trace": (lambda: tacitly.TraceRegression(rank=1, epsilon=math.inf), (MATRICES, Y)),
    "components": (lambda: FedPower(1, epsilon=math.inf), (X, None, IDS)),
    "network": (network, (X, YES, IDS)),
    "low rank network": (
        lambda: neural.LowRankSparse(1, 1, epsilon=math.inf, hidden=(4,), rounds=1, device="cpu"),
        (X, Y, IDS),
    ),
}


@cache
def fitted(name: str) -> Any:
    make, data = MODELS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make().fit(*data)


def spoilt(values: Any, shape: tuple[int, ...] | None = None) -> Any:
    """The same values as objects, one of them a secret."""
    array = np.array(values, dtype=object)
    array[(1,) + (0,) * (array.ndim - 1)] = SECRET
    return array


def told(call: Callable[[], Any]) -> str:
    """Everything that an error shows, with what it was raised from; empty if there is none."""
    try:
        call()
    except Exception as error:
        return "".join(traceback.format_exception(error)) + str(error.__context__) + repr(error.args)
    return ""


def methods(name: str) -> dict[str, Callable[[], Any]]:
    model, (make, data) = fitted(name), MODELS[name]
    rows, ids = data[0][:ROWS], (IDS[:ROWS],) if len(data) == 3 and name != "components" else ()
    targets = () if name == "components" else (data[1][:ROWS],)
    calls: dict[str, Callable[[], Any]] = {"fit X": lambda: make().fit(spoilt(data[0]), *data[1:])}
    if targets:
        calls["fit y"] = lambda: make().fit(data[0], spoilt(data[1]), *data[2:])
        calls["score y"] = lambda: model.score(rows, spoilt(targets[0]), *ids)
        calls["score X"] = lambda: model.score(spoilt(rows), targets[0], *ids)
    for method in ("predict", "predict_proba", "decision_function", "transform", "inverse_transform"):
        if hasattr(model, method):
            calls[method] = lambda method=method: getattr(model, method)(spoilt(rows), *ids)
            calls[f"{method}, list"] = lambda method=method: getattr(model, method)(spoilt(rows).tolist(), *ids)
    if hasattr(model, "personalize"):
        own = model.personalize(rows, targets[0])
        calls["personalize X"] = lambda: model.personalize(spoilt(rows), targets[0])
        calls["personalize y"] = lambda: model.personalize(rows, spoilt(targets[0]))
        for method in ("predict", "predict_proba", "decision_function"):
            if hasattr(own, method):
                calls[f"own {method}"] = lambda method=method: getattr(own, method)(spoilt(rows))
    return calls


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MODELS)
def test_no_error_shows_a_cell(name: str) -> None:
    """NumPy's own message does: could not convert string to float: 'S3CR3T'."""
    shown = [method for method, call in methods(name).items() if SECRET in told(call)]
    assert shown == []


def with_bad(values: Any, bad: Any, rows: Any) -> Any:
    array = np.array(values, dtype=object)
    array[(rows,) + (0,) * (array.ndim - 1)] = bad
    return array


CERTIFIED = {
    name: (lambda name=name: MODELS[name][0]().set_params(epsilon=1.0, delta=1e-3), data)
    for name, (_, data) in MODELS.items()
}


def certified_size(name: str, data: Any) -> int:
    """Return the number of users of a certified fit, which must neither raise nor warn."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", TooFewUsersWarning)
        model = CERTIFIED[name][0]().fit(*data)
    assert model.certificate_.certified
    return int(model.certificate_.n_users)


@cache
def size_of_a_certified_fit(name: str) -> int:
    return certified_size(name, CERTIFIED[name][1])


@pytest.mark.parametrize("name", CERTIFIED)
@pytest.mark.parametrize("bad", [np.nan, np.inf, SECRET, -7], ids=repr)
def test_a_certified_fit_does_not_raise_on_private_values(name: str, bad: Any) -> None:
    """It raised with an exact count ("3 rows with a label outside classes"): one cell decided what everybody saw."""
    _, data = CERTIFIED[name]
    sizes = [size_of_a_certified_fit(name)]  # where no row is bad
    for rows in ([1], list(range(ROWS))):  # one row of a user, all rows of a user
        for place in range(min(2, len(data))):
            if name == "components" and place == 1:
                continue  # there is no target
            spoiled = [with_bad(part, bad, rows) if i == place else part for i, part in enumerate(data)]
            sizes.append(certified_size(name, spoiled))
    assert len(set(sizes)) == 1


def test_raising_on_private_values_is_for_cleaning_and_says_so() -> None:
    y = YES.copy()
    y[3] = 7
    model = tacitly.PrivateFedRep(rank=1, epsilon=1.0, loss="logistic", classes=(0, 1), on_bad_rows="raise")
    with pytest.warns(SideChannelWarning, match="side channel"), pytest.raises(tacitly.DataError, match="1 row with"):
        model.fit(X, y, IDS)
    with pytest.raises(tacitly.DataError, match="1 row with"):
        model.set_params(epsilon=math.inf).fit(X, y, IDS)
    with pytest.raises(tacitly.DataError, match="on_bad_rows must be one of"):
        model.set_params(on_bad_rows="ignore").fit(X, YES, IDS)


def test_a_user_whose_rows_are_all_bad_contributes_nothing_and_changes_nobody_else() -> None:
    from tacitly.federation.local import LocalFederation
    from tacitly.federation.shard import Shard
    from tacitly.methods.shared.noisy_mean import noisy_mean
    from tacitly.methods.shared.whitening import FeatureMoment
    from tacitly.privacy.guarantee import GaussianEvent, Sensitivity

    first = slice(0, ROWS)
    spoiled, without = X.copy(), X.copy()
    spoiled[first], without[first] = np.nan, 0.0
    sums, moment, event = (
        [],
        FeatureMoment(D),
        GaussianEvent(sigma=0.0, sensitivity=Sensitivity.of_clip(1.0, acute=True)),
    )
    for rows in (spoiled, without):
        cohort = tacitly.PrivateFedRep(rank=1, epsilon=1.0)._cohort(rows, Y, IDS)
        assert cohort.n_users == USERS
        sums.append(Shard(cohort, threads=1).exact_sum(moment, 1.0, 2.0**-40))
        # Sums are divided by the number of users on the roster, not of those who have rows.
        federation = LocalFederation(cohort, tacitly.Ledger().run("test", config={}, certified=False))
        mean = noisy_mean(federation, moment, event, "moment")[0]
        np.testing.assert_allclose(mean * USERS, sums[-1] * 2.0**-40, rtol=1e-9, atol=1e-9)
        assert len(federation.group_of(1, 0)) == USERS
    np.testing.assert_allclose(sums[0], sums[1], atol=2)


@pytest.mark.parametrize("kind", ["boolean", "string", "object"])
def test_a_missing_label_of_pandas_does_not_make_a_fit_raise(kind: str) -> None:
    """A row without a label is left out, as any other bad row; pandas' NA has no truth value, and raised."""
    labels = {"boolean": (False, True), "string": ("no", "yes"), "object": (0, 1)}[kind]
    rng, users = np.random.default_rng(0), np.repeat(np.arange(60), 3)
    X = rng.normal(size=(len(users), 3))
    y = pandas.array([pandas.NA, *(labels[int(one > 0)] for one in X[1:, 0])], dtype=kind)
    model = tacitly.PrivateFedRep(rank=1, epsilon=1.0, loss="logistic", rounds=1, classes=labels)
    assert model.fit(X, y, users).certificate_.n_users == 60


@pytest.mark.parametrize("name", [name for name in MODELS if "network" not in name])
def test_no_warning_depends_on_the_rows_of_a_prediction(name: str) -> None:
    model, data = fitted(name), MODELS[name][1]
    rows = np.array(data[0][:ROWS])
    rows[0], rows[1], rows[2, ..., 0] = np.finfo(float).max, -np.finfo(float).max, np.inf
    ids = (IDS[:ROWS],) if len(data) == 3 and name != "components" else ()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for method in ("predict", "predict_proba", "decision_function", "transform", "inverse_transform"):
            if hasattr(model, method):
                given = rows[:, : model.components_.shape[0]] if method == "inverse_transform" else rows
                getattr(model, method)(given, *ids)
        if hasattr(model, "personalize"):
            own, targets = data[0][:ROWS], np.array(data[1][:ROWS])
            model.personalize(own, targets).predict(rows)
            for size in (1e155, 1e200, 1e308) if targets.dtype.kind == "f" else ():
                model.personalize(own, np.full(ROWS, size))
                model.personalize(size * own / np.abs(own).max(), np.sign(targets) * size)
                model.score(own, np.sign(targets) * size, *ids)
