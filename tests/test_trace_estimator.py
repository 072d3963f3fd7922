"""TraceRegression as its users meet it: designs, units, certificates, folders, and what it says to bad input."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tacit
from tacit.privacy.guarantee import Unit

RNG = np.random.default_rng(0)
D1, D2 = 6, 5
M = np.outer(RNG.normal(size=D1), RNG.normal(size=D2))
X = RNG.normal(size=(6000, D1, D2))
Y = np.einsum("nij,ij->n", X, M) + 0.1 * RNG.normal(size=6000)


def relative(model: tacit.TraceRegression, truth: np.ndarray = M) -> float:
    return float(np.linalg.norm(model.coef_ - truth) / np.linalg.norm(truth))


def quick(**options: Any) -> tacit.TraceRegression:
    return tacit.TraceRegression(**{"rank": 1, "epsilon": 4.0, "noise": "float", "threads": 1} | options)


def test_dense_matrices_under_every_unit() -> None:
    users = np.arange(6000) % 1500
    for options, unit in (({}, Unit.ROW), ({"privacy": "labels"}, Unit.LABEL), ({"unit": "user"}, Unit.USER)):
        model = quick(**options).fit(X, Y, users if unit is Unit.USER else None)
        assert model.certificate_.certified
        assert model.certificate_.epsilon == pytest.approx(4.0, rel=1e-5)
        assert model.certificate_.unit is unit
        assert relative(model) < 0.15, unit


def test_the_certificate_of_label_privacy_says_that_covariates_are_public() -> None:
    model = quick(privacy="labels").fit(X, Y)
    assert any("covariates X are public" in note for note in model.certificate_.notes)
    assert not any("design" in release.name for release in model.certificate_.releases)


@pytest.mark.parametrize("unit", ["observation", "user"])
def test_matrix_completion_and_tasks_take_two_lines(unit: str) -> None:
    rng = np.random.default_rng(1)
    users = np.arange(20_000) % 5000 if unit == "user" else None
    pairs = np.column_stack([rng.integers(D1, size=20_000), rng.integers(D2, size=20_000)])
    model = quick(design="entries", shape=(D1, D2), unit=unit, random_state=0).fit(pairs, M[tuple(pairs.T)], users)
    assert relative(model) < 0.15
    np.testing.assert_allclose(model.predict(pairs[:9]), model.coef_[tuple(pairs[:9].T)])
    tasks, x = rng.integers(D1, size=20_000), rng.normal(size=(20_000, D2))
    rows = np.column_stack([tasks, x])
    model = quick(design="tasks", shape=(D1, D2), unit=unit, random_state=0).fit(
        rows, np.sum(M[tasks] * x, axis=1), users
    )
    assert relative(model) < 0.15


def test_rank_one_designs_and_a_known_covariance() -> None:
    rng = np.random.default_rng(2)
    a, b = rng.normal(size=(20_000, D1)), rng.normal(size=(20_000, D2))
    model = quick(design="rank-one", shape=(D1, D2)).fit(np.hstack([a, b]), np.einsum("ni,ij,nj->n", a, M, b))
    assert relative(model) < 0.1
    stretch = np.linspace(0.5, 2.0, D1)[:, None] * np.ones((D1, D2))
    wide = X * stretch
    y = np.einsum("nij,ij->n", wide, M)
    for covariance in (stretch**2, np.diag((stretch**2).ravel())):
        model = quick(covariance=covariance).fit(wide, y)
        assert relative(model) < 0.1
        assert len(model.certificate_.releases) == 1 + 1 + 1 + 8


def test_without_privacy_it_is_as_good_as_rgrad() -> None:
    plain = float(np.linalg.norm(tacit.RGrad(1).fit(X, Y).coef_ - M))
    with pytest.warns(tacit.UncertifiedWarning):
        model = quick(epsilon=math.inf).fit(X, Y)
    assert float(np.linalg.norm(model.coef_ - M)) < 1.2 * plain + 1e-3


def test_more_budget_is_better() -> None:
    errors = [np.mean([relative(quick(epsilon=e).fit(X, Y)) for _ in range(3)]) for e in (0.3, 20.0)]
    assert errors[1] < errors[0]


def test_a_user_counts_for_at_most_so_many_observations() -> None:
    users = np.where(np.arange(6000) < 3000, 0, np.arange(6000))
    cohort = quick(unit="user", max_observations=10)._cohort(X, Y, users)[0]
    assert np.diff(cohort.offsets).max() == 10
    assert cohort.n_rows == 3010


def test_a_folder_keeps_it(tmp_path: Path) -> None:
    model = quick().fit(X, Y)
    again = tacit.load(tacit.save(model, tmp_path / "model"))
    assert isinstance(again, tacit.TraceRegression)
    np.testing.assert_array_equal(again.predict(X[:5]), model.predict(X[:5]))
    assert again.certificate_.epsilon == model.certificate_.epsilon


def test_paper_mode_is_labelled_distributional_and_never_certified() -> None:
    claimed = tacit.theory.paper_sensitivities(6000, D1, D2, 1, noise=0.1)
    with pytest.warns(tacit.UncertifiedWarning, match="R3"):
        model = quick(mode="paper", sensitivities=claimed, epsilon=8.0).fit(X, Y)
    assert not model.certificate_.certified
    assert math.isinf(model.certificate_.epsilon)
    assert model.certificate_.nominal_epsilon == 16.0
    assert any("distributional" in reason for reason in model.certificate_.reasons)


def test_one_outlier_changes_paper_mode_and_not_ours() -> None:
    """R3: a single observation of norm 100 with label 10,000 takes paper mode with it."""
    bad, labels = X.copy(), Y.copy()
    bad[0], labels[0] = 0.0, 1e4
    bad[0, 2, 2] = 100.0
    assert relative(quick().fit(bad, labels)) < 0.15
    claimed = tacit.theory.paper_sensitivities(6000, D1, D2, 1, noise=0.1)
    with pytest.warns(tacit.UncertifiedWarning):
        moved = quick(mode="paper", sensitivities=claimed, epsilon=8.0).fit(bad, labels)
    assert relative(moved) > 0.5


@pytest.mark.parametrize(
    ("options", "arguments", "message"),
    [
        ({"rank": 6}, (X, Y), r"min\(d1, d2\) = 5. Found 6"),
        ({"rank": 0}, (X, Y), "rank must be"),
        ({"covariance": -np.ones((D1, D2))}, (X, Y), "positive definite"),
        ({"covariance": np.ones((D1 * D2, D1 * D2))}, (X, Y), "positive definite"),
        ({"covariance": np.ones((2, 2))}, (X, Y), "covariance must have shape"),
        ({}, (X, Y[:-1]), "Expected"),
        ({}, (X[:0], Y[:0]), "no rows"),
        ({}, (X[:, :, 0], Y), "shape"),
        ({"shape": (4, 4)}, (X, Y), "matrices of"),
        ({}, (np.where(X[3, 0, 0] == X, np.nan, X), Y), "missing|NaN|not finite|finite"),
        ({}, (X, np.where(Y[3] == Y, np.inf, Y)), "finite|infinite"),
        ({}, (X,), "needs y"),
        ({"design": "entries"}, (np.zeros((9, 2)), np.zeros(9)), "needs shape"),
        ({"design": "tasks", "shape": (3, 3)}, (np.zeros((9, 2)), np.zeros(9)), "4 columns"),
        ({"design": "round"}, (X, Y), "design must be"),
        ({"unit": "user"}, (X, Y), "needs users"),
        ({}, (X, Y, np.arange(6000)), "users are for unit='user'"),
        ({"start": "power", "covariance": np.ones((D1, D2))}, (X, Y), "one-shot start"),
        ({"unit": "user", "privacy": "labels"}, (X, Y, np.arange(6000)), "unit='observation'"),
        ({"privacy": "some"}, (X, Y), "privacy must be"),
        ({"mode": "paper"}, (X, Y), "takes sensitivities"),
        ({"epsilon": -1.0}, (X, Y), "epsilon must be positive"),
        ({"steps": 0}, (X, Y), "steps must be"),
    ],
)
def test_bad_input_gets_a_clear_answer(options: dict[str, Any], arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        quick(**options).fit(*arguments)


@pytest.mark.parametrize("privacy", ["full", "labels"])
def test_positions_out_of_range_add_nothing_and_nothing_is_said(privacy: str) -> None:
    rng = np.random.default_rng(3)
    pairs = rng.integers((D1, D2), size=(20_000, 2)).astype(float)
    y = M[tuple(pairs.T.astype(int))]
    pairs[:2, 0], pairs[2, 1], pairs[3, 0] = 17.0, -1.0, 0.5
    options = {"design": "entries", "shape": (D1, D2), "privacy": privacy}
    for arguments in ((pairs, y), (tacit.Cohort.from_offsets(pairs, y, np.array([0, 20_000])),)):
        assert relative(quick(**options).fit(*arguments)) < 0.15


def correlated(share: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng, n = np.random.default_rng(1), 20_000
    truth = rng.normal(size=(10, 2)) @ rng.normal(size=(2, 8))
    rows = math.sqrt(1 - share) * rng.normal(size=(n, 10, 8)) + math.sqrt(share) * rng.normal(size=(n, 1, 1))
    return rows, np.einsum("nij,ij->n", rows, truth) + 0.1 * rng.normal(size=n), truth


@pytest.mark.parametrize("options", [{}, {"privacy": "labels"}, {"epsilon": math.inf}])
@pytest.mark.filterwarnings("ignore::tacit.UncertifiedWarning")
def test_a_common_factor_in_the_design_does_little_harm(options: dict[str, Any]) -> None:
    """Entries with correlation 0.1 and 0.2: steps of length one reach errors of 0.8 and 1.8."""
    for share, error in ((0.1, 0.05), (0.2, 0.6)):
        rows, y, truth = correlated(share)
        assert relative(quick(rank=2, **options).fit(rows, y), truth) < error


@pytest.mark.parametrize("options", [{}, {"privacy": "labels"}, {"epsilon": math.inf}])
@pytest.mark.filterwarnings("ignore::tacit.UncertifiedWarning")
def test_a_design_that_is_not_centred_does_not_make_steps_grow(options: dict[str, Any]) -> None:
    """Entries in [0, 1]: steps of length one end at five times M. Better than nothing is all that is promised."""
    rng = np.random.default_rng(1)
    truth, rows = rng.normal(size=(10, 2)) @ rng.normal(size=(2, 8)), rng.uniform(size=(20_000, 10, 8))
    y = np.einsum("nij,ij->n", rows, truth) + 0.1 * rng.normal(size=20_000)
    model = quick(rank=2, noise_seed=0, **options).fit(rows, y)
    assert relative(model, truth) < 1.0
    assert model.score(rows, y) > 0.0


def test_a_known_covariance_far_from_diagonal_is_used_for_steps_too() -> None:
    rows, y, truth = correlated(0.1)
    model = quick(rank=2, covariance=0.9 * np.eye(80) + 0.1 * np.ones((80, 80))).fit(rows, y)
    assert relative(model, truth) < 0.05


@pytest.mark.parametrize("size", [1e160, 1e-170])
def test_public_covariates_of_any_size_are_brought_into_range(size: float) -> None:
    model = quick(privacy="labels").fit(X * size, Y)
    assert float(np.linalg.norm(size * model.coef_ - M)) < 0.15 * float(np.linalg.norm(M))


def test_a_matrix_of_one_number() -> None:
    model = quick().fit(X[:, :1, :1], 2.0 * X[:, 0, 0])
    assert model.coef_.item() == pytest.approx(2.0, abs=0.1)


def test_it_says_when_it_is_not_fitted() -> None:
    with pytest.raises(RuntimeError, match="not fitted"):
        quick().predict(X)
