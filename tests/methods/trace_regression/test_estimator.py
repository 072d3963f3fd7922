"""TraceRegression as its users meet it: designs, units, certificates, folders, and what it says to bad input."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError

import tacitly
from tacitly.privacy.guarantee import Unit

RNG = np.random.default_rng(0)
D1, D2 = 6, 5
M = np.outer(RNG.normal(size=D1), RNG.normal(size=D2))
X = RNG.normal(size=(6000, D1, D2))
Y = np.einsum("nij,ij->n", X, M) + 0.1 * RNG.normal(size=6000)


def relative(model: tacitly.TraceRegression, truth: np.ndarray = M) -> float:
    return float(np.linalg.norm(model.coef_ - truth) / np.linalg.norm(truth))


def quick(**options: Any) -> tacitly.TraceRegression:
    return tacitly.TraceRegression(**{"rank": 1, "epsilon": 4.0, "noise": "float", "threads": 1} | options)


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
        assert len(model.certificate_.releases) == 1 + 1 + 1 + 32


def test_every_observation_may_have_its_own_covariance() -> None:
    """Half of the observations are wide along rows, half along columns: the mean of Λᵢ is what the start needs."""
    rows = np.linspace(0.5, 2.0, D1)[:, None] * np.ones((D1, D2))
    columns = np.ones((D1, D2)) * np.linspace(2.0, 0.5, D2)
    stretch = np.where((np.arange(len(X)) % 2 == 0)[:, None, None], rows, columns)
    y = np.einsum("nij,ij->n", X * stretch, M)
    assert relative(quick(covariance=stretch**2).fit(X * stretch, y)) < 0.1
    with pytest.raises(ValueError, match="one matrix per observation"):
        quick(covariance=stretch[:5] ** 2).fit(X * stretch, y)
    with pytest.raises(ValueError, match="per observation is for mode 'auto'"):
        quick(covariance=stretch**2, mode="paper", sensitivities=(1.0, 1.0, 1.0)).fit(X * stretch, y)


def test_without_privacy_it_is_as_good_as_rgrad() -> None:
    plain = float(np.linalg.norm(tacitly.RGrad(1).fit(X, Y).coef_ - M))
    with pytest.warns(tacitly.UncertifiedWarning):
        model = quick(epsilon=math.inf).fit(X, Y)
    assert float(np.linalg.norm(model.coef_ - M)) < 1.2 * plain + 1e-3


def test_more_budget_is_better() -> None:
    errors = [np.mean([relative(quick(epsilon=e).fit(X, Y)) for _ in range(3)]) for e in (0.3, 20.0)]
    assert errors[1] < errors[0]


def test_a_user_counts_for_at_most_so_many_observations() -> None:
    users = np.where(np.arange(6000) < 3000, 0, np.arange(6000))
    cohort = quick(unit="user", max_observations=10)._cohort(X, Y, users)
    assert np.diff(cohort.offsets).max() == 10
    assert cohort.n_rows == 3010


def test_a_folder_keeps_it(tmp_path: Path) -> None:
    model = quick().fit(X, Y)
    again = tacitly.load(tacitly.save(model, tmp_path / "model"))
    assert isinstance(again, tacitly.TraceRegression)
    np.testing.assert_array_equal(again.predict(X[:5]), model.predict(X[:5]))
    assert again.certificate_.epsilon == model.certificate_.epsilon


def test_paper_mode_is_labelled_distributional_and_never_certified() -> None:
    claimed = tacitly.theory.paper_sensitivities(6000, D1, D2, 1, noise=0.1)
    with pytest.warns(tacitly.UncertifiedWarning, match="R3"):
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
    claimed = tacitly.theory.paper_sensitivities(6000, D1, D2, 1, noise=0.1)
    with pytest.warns(tacitly.UncertifiedWarning):
        moved = quick(mode="paper", sensitivities=claimed, epsilon=8.0).fit(bad, labels)
    assert relative(moved) > 0.5


@pytest.mark.parametrize(
    ("options", "arguments", "message"),
    [
        ({"rank": 6}, (X, Y), r"min\(d1, d2\) = 5, or 'auto'. Found 6"),
        ({"rank": 0}, (X, Y), "rank must be"),
        ({"covariance": -np.ones((D1, D2))}, (X, Y), "positive definite"),
        ({"covariance": np.ones((D1 * D2, D1 * D2))}, (X, Y), "positive definite"),
        ({"covariance": np.ones((2, 2))}, (X, Y), "covariance must have shape"),
        ({}, (X, Y[:-1]), "Expected"),
        ({}, (X[:0], Y[:0]), "no rows"),
        ({}, (X[:, :, 0], Y), "shape"),
        ({"shape": (4, 4)}, (X, Y), "matrices of"),
        ({"on_bad_rows": "raise"}, (np.where(X[3, 0, 0] == X, np.nan, X), Y), "missing|NaN|not finite|finite"),
        ({"on_bad_rows": "raise"}, (X, np.where(Y[3] == Y, np.inf, Y)), "finite|infinite"),
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
    for arguments in ((pairs, y), (tacitly.Cohort.from_offsets(pairs, y, np.array([0, 20_000])),)):
        assert relative(quick(**options).fit(*arguments)) < 0.15


def correlated(share: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng, n = np.random.default_rng(1), 20_000
    truth = rng.normal(size=(10, 2)) @ rng.normal(size=(2, 8))
    rows = math.sqrt(1 - share) * rng.normal(size=(n, 10, 8)) + math.sqrt(share) * rng.normal(size=(n, 1, 1))
    return rows, np.einsum("nij,ij->n", rows, truth) + 0.1 * rng.normal(size=n), truth


@pytest.mark.parametrize("options", [{}, {"privacy": "labels"}, {"epsilon": math.inf}])
@pytest.mark.filterwarnings("ignore::tacitly.UncertifiedWarning")
def test_a_common_factor_in_the_design_does_little_harm(options: dict[str, Any]) -> None:
    """Entries with correlation 0.1 and 0.2: steps of length one reach errors of 0.8 and 1.8.

    At 0.2 and by default errors vary from fit to fit: about one in a thousand is above 0.6 (log-normal, median 0.05),
    and so the median of five is with probability below 1e-8.
    """
    for share, error, fits in ((0.1, 0.05, 1), (0.2, 0.6, 1 if options else 5)):
        rows, y, truth = correlated(share)
        errors = [relative(quick(rank=2, **options).fit(rows, y), truth) for _ in range(fits)]
        assert np.median(errors) < error


def unit_cube(seed: int = 1) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    truth, rows = rng.normal(size=(10, 2)) @ rng.normal(size=(2, 8)), rng.uniform(size=(20_000, 10, 8))
    return rows, np.einsum("nij,ij->n", rows, truth) + 0.1 * rng.normal(size=20_000), truth


@pytest.mark.parametrize(
    "options", [{}, {"epsilon": 1.0}, {"privacy": "labels"}, {"epsilon": math.inf}, {"center": np.full((10, 8), 0.5)}]
)
@pytest.mark.filterwarnings("ignore::tacitly.UncertifiedWarning")
def test_a_design_that_is_not_centred_is_counted_from_its_mean(options: dict[str, Any], tmp_path: Path) -> None:
    """Entries in [0, 1]: counted from zero, errors are 0.5 to 0.95."""
    rows, y, truth = unit_cube()
    model = quick(rank=2, **options).fit(rows, y)
    assert relative(model, truth) < 0.02
    assert model.score(rows, y) > 0.99
    # The truth has none, and y is within ±4 or so of its mean.
    assert abs(model.intercept_) < 0.5
    again = tacitly.load(tacitly.save(model, tmp_path / "model"))
    np.testing.assert_array_equal(again.predict(rows[:5]), model.predict(rows[:5]))


@pytest.mark.parametrize("options", [{}, {"privacy": "labels"}])
@pytest.mark.parametrize("design", ["tasks", "rank-one"])
def test_features_with_a_mean_are_made_flat(design: str, options: dict[str, Any]) -> None:
    """Features in [0, 1]: as they come, errors are 0.2 to 0.8."""
    rng = np.random.default_rng(4)
    truth, b = rng.normal(size=(10, 2)) @ rng.normal(size=(2, 8)), rng.uniform(size=(20_000, 8))
    a = rng.uniform(size=(20_000, 10)) if design == "rank-one" else np.eye(10)[rng.integers(10, size=20_000)]
    y = np.einsum("ni,ij,nj->n", a, truth, b)
    rows = np.hstack([a if design == "rank-one" else a.argmax(axis=1)[:, None], b])
    model = quick(rank=2, design=design, shape=(10, 8), **options).fit(rows, y)
    assert relative(model, truth) < 0.06
    assert model.intercept_ == 0.0
    np.testing.assert_allclose(model.predict(rows[:9]), np.einsum("ni,ij,nj->n", a[:9], model.coef_, b[:9]))


def test_an_offset_of_the_labels_goes_to_the_intercept_of_a_centred_design() -> None:
    rows, y, truth = unit_cube()
    model = quick(rank=2).fit(rows, y + 20.0)
    assert relative(model, truth) < 0.02
    assert model.intercept_ == pytest.approx(20.0, abs=0.5)


def test_a_design_with_no_mean_has_no_intercept_and_pays_for_knowing_it() -> None:
    model = quick().fit(X, Y)
    assert model.intercept_ == 0.0
    names = [release.name for release in model.certificate_.releases]
    assert "mean of the design 2" in names
    assert "mean of the labels" in names
    assert not any("mean" in release.name for release in quick(center=None).fit(X, Y).certificate_.releases)
    assert not any("mean" in release.name for release in quick(privacy="labels").fit(X, Y).certificate_.releases)
    known = quick(center=np.zeros((D1, D2))).fit(X, Y).certificate_
    assert [release.name for release in known.releases if "mean" in release.name] == ["mean of the labels"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"center": "mean"}, "center must be"),
        ({"center": np.zeros(3)}, "center must be finite numbers of shape"),
        ({"center": np.full((D1, D2), np.nan)}, "center must be finite"),
        ({"center": np.zeros((D1, D2)), "covariance": np.ones((D1, D2))}, "center is for"),
        ({"center": np.zeros((D1, D2)), "unit": "user"}, "center is for"),
    ],
)
def test_a_center_that_is_none_gets_a_clear_answer(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        quick(**options).fit(X, Y, np.arange(6000) if "unit" in options else None)


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
    with pytest.raises(NotFittedError, match="not fitted"):
        quick().predict(X)
