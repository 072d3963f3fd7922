"""The estimators: manners, promises, and the errors a user meets."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

import tacitly
from tacitly.datasets import make_shared_subspace
from tacitly.heads.ridge import fit_heads
from tacitly.privacy.ledger import LedgerMismatch


@pytest.fixture(scope="module")
def data():  # type: ignore[no-untyped-def]
    return make_shared_subspace(1500, 12, 2, (6, 14), noise=0.1, random_state=0)


@pytest.fixture(scope="module")
def model(data):  # type: ignore[no-untyped-def]
    return tacitly.PrivateFedRep(rank=2, epsilon=2.0).fit(data.X, data.y, data.users)


def test_a_fit_finds_the_subspace_and_beats_working_alone(data, model) -> None:  # type: ignore[no-untyped-def]
    cohort = tacitly.Cohort.from_arrays(data.X, data.y, data.users)
    oracle = data.population_mse(data.basis, fit_heads(cohort.X, cohort.y, cohort.offsets, data.basis))
    local = tacitly.LocalModels().fit(cohort)
    alone = data.population_mse(local.basis_, local.heads_)
    ours = data.population_mse(model.basis_, model.heads_)
    assert ours - oracle < 0.05 * (alone - oracle)
    np.testing.assert_allclose(model.basis_.T @ model.basis_, np.eye(2), atol=1e-12)


def test_the_certificate_says_what_was_asked_for(model) -> None:  # type: ignore[no-untyped-def]
    certificate = model.certificate_
    assert certificate.certified
    assert certificate.epsilon == pytest.approx(2.0, rel=1e-6)
    assert certificate.epsilon <= 2.0
    assert certificate.epsilon < certificate.epsilon_replace_one < 2.3 * certificate.epsilon
    assert certificate.delta == 1e-6
    assert certificate.adjacency == "zero-out"
    first = ["column scales", "feature moment", "direction votes"]
    assert [release.name for release in certificate.releases][:3] == first
    assert {release.noise for release in certificate.releases} == {"exact"}


def test_replace_one_is_calibrated_for_replace_one(data) -> None:  # type: ignore[no-untyped-def]
    fitted = tacitly.PrivateFedRep(rank=2, epsilon=2.0, adjacency="replace-one").fit(data.X, data.y, data.users)
    assert fitted.certificate_.epsilon == fitted.certificate_.epsilon_replace_one == pytest.approx(2.0, rel=1e-6)
    assert fitted.certificate_.epsilon_zero_out < 1.2


def test_heads_and_users_are_in_one_order_whatever_the_order_of_rows(data) -> None:  # type: ignore[no-untyped-def]
    ids = np.array([f"user-{i}" for i in data.users])
    order = np.argsort(np.random.default_rng(1).permutation(1500)[data.users], kind="stable")
    first = tacitly.FedRep(rank=2).fit(data.X, data.y, ids)
    second = tacitly.FedRep(rank=2).fit(data.X[order], data.y[order], ids[order])
    assert list(first.users_) == sorted(set(ids))
    assert tacitly.subspace_distance(first.basis_, second.basis_) < 1e-6
    np.testing.assert_allclose(first.predict(data.X, ids), second.predict(data.X, ids), atol=1e-5)


def test_predict_uses_each_rows_own_head(data, model) -> None:  # type: ignore[no-untyped-def]
    weights = model.heads_ @ model.basis_.T
    expected = np.einsum("nd,nd->n", data.X, weights[data.users])
    np.testing.assert_allclose(model.predict(data.X, data.users), expected)


def test_a_new_user_gets_a_head_for_free(data, model) -> None:  # type: ignore[no-untyped-def]
    mine = data.users == 7
    head = model.personalize(data.X[mine], data.y[mine])
    np.testing.assert_allclose(np.asarray(head), model.heads_[7])
    np.testing.assert_allclose(head.predict(data.X[mine]), model.predict(data.X[mine], data.users[mine]))
    # 1 for scales, 1 for whitening, 1 for the start, 16 rounds, 5 for the population's direction, 32 for its heads.
    assert len(model.certificate_.releases) == 59


def test_personal_intercepts_are_found(data) -> None:  # type: ignore[no-untyped-def]
    levels = np.random.default_rng(2).normal(size=1500) * 5
    with_levels = tacitly.PrivateFedRep(rank=2, epsilon=4.0, fit_intercept=True)
    with_levels.fit(data.X + 3.0, data.y + levels[data.users], data.users)
    assert with_levels.score(data.X + 3.0, data.y + levels[data.users], data.users) > 0.99
    assert tacitly.subspace_distance(with_levels.basis_, data.basis) < 0.2


def test_estimators_have_scikit_learns_manners(model) -> None:  # type: ignore[no-untyped-def]
    copy = clone(model)
    assert copy.get_params() == model.get_params()
    assert not hasattr(copy, "basis_")
    assert "PrivateFedRep(epsilon=2.0, rank=2)" in repr(model)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"epsilon": math.inf}, "without noise"),
        ({"epsilon": 1.0, "noise_seed": 1}, "seed"),
        ({"epsilon": 1.0, "mode": "paper"}, "V2"),
    ],
)
def test_uncertified_runs_say_so(data, options, reason) -> None:  # type: ignore[no-untyped-def]
    with pytest.warns(tacitly.UncertifiedWarning, match=reason):
        fitted = tacitly.PrivateFedRep(rank=2, **options).fit(data.X, data.y, data.users)
    assert not fitted.certificate_.certified
    assert fitted.certificate_.epsilon == math.inf
    assert "NOT CERTIFIED" in str(fitted.certificate_)


def test_a_seeded_run_repeats_and_a_certified_one_does_not(data) -> None:  # type: ignore[no-untyped-def]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tacitly.UncertifiedWarning)
        seeded = [
            tacitly.PrivateFedRep(rank=2, epsilon=1.0, noise_seed=5).fit(data.X, data.y, data.users) for _ in "ab"
        ]
    assert np.array_equal(seeded[0].basis_, seeded[1].basis_)
    free = [tacitly.PrivateFedRep(rank=2, epsilon=1.0, random_state=5).fit(data.X, data.y, data.users) for _ in "ab"]
    assert not np.array_equal(free[0].basis_, free[1].basis_)


def test_more_budget_means_less_error() -> None:
    data = make_shared_subspace(800, 30, 2, 10, 0.01, random_state=3)
    distances = [
        np.median(
            [
                tacitly.subspace_distance(
                    tacitly.PrivateFedRep(rank=2, epsilon=e).fit(data.X, data.y, data.users).basis_, data.basis
                )
                for _ in range(3)
            ]
        )
        for e in (0.3, 2.0, 30.0)
    ]
    assert distances[0] > distances[1] > distances[2]


def test_without_noise_the_private_method_is_the_plain_one() -> None:
    data = make_shared_subspace(300, 10, 2, 12, 0.0, random_state=4)
    assert tacitly.subspace_distance(tacitly.FedRep(rank=2).fit(data.X, data.y, data.users).basis_, data.basis) < 1e-6


def test_float32_and_float64_agree(data) -> None:  # type: ignore[no-untyped-def]
    double = tacitly.FedRep(rank=2).fit(data.X, data.y, data.users)
    single = tacitly.FedRep(rank=2).fit(data.X.astype(np.float32), data.y.astype(np.float32), data.users)
    assert tacitly.subspace_distance(double.basis_, single.basis_) < 1e-3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank": 0, "epsilon": 1.0}, "rank must be a whole number from 1"),
        ({"rank": 13, "epsilon": 1.0}, r"number of features \(12\), or 'auto'. Found 13"),
        ({"rank": 2, "epsilon": 0.0}, "epsilon must be positive"),
        ({"rank": 2, "epsilon": 1.0, "delta": 2.0}, "delta must lie strictly"),
        ({"rank": 2, "epsilon": 1.0, "mode": "magic"}, "mode must be one of"),
        ({"rank": 2, "epsilon": 1.0, "adjacency": "sideways"}, "sideways"),
        ({"rank": 2, "epsilon": 1.0, "noise": "loud"}, "noise must be"),
        ({"rank": 2, "epsilon": 1.0, "rounds": 0}, "rounds must be at least 1"),
    ],
)
def test_wrong_parameters_are_named_with_what_was_found(data, options, message) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=message):
        tacitly.PrivateFedRep(**options).fit(data.X, data.y, data.users)


def test_unknown_users_and_wrong_shapes_are_told_apart(data, model) -> None:  # type: ignore[no-untyped-def]
    assert model.prior_ is not None
    np.testing.assert_array_equal(model.predict(data.X[:1], [999_999]), model.predict(data.X[:1]))
    with pytest.raises(tacitly.DataError, match="rows of users who have no head"):
        tacitly.LocalModels().fit(data.X, data.y, data.users).predict(data.X[:1], [999_999])
    with pytest.raises(tacitly.DataError, match="expecting 12 features"):
        model.predict(data.X[:, :3], data.users)
    with pytest.raises(ValueError, match="needs y and users"):
        tacitly.PrivateFedRep(rank=2, epsilon=1.0).fit(data.X)
    with pytest.raises(NotFittedError, match="not fitted yet"):
        tacitly.PrivateFedRep(rank=2, epsilon=1.0).predict(data.X, data.users)


def test_one_ledger_serves_several_runs_until_it_is_empty(data) -> None:  # type: ignore[no-untyped-def]
    from tacitly.privacy.guarantee import Budget

    ledger = tacitly.Ledger(ceiling=Budget(epsilon=1.5, delta=1e-6))
    first = tacitly.PrivateFedRep(rank=2, epsilon=1.0, ledger=ledger, run="first").fit(data.X, data.y, data.users)
    first.close()
    with pytest.raises(LedgerMismatch):
        tacitly.PrivateFedRep(rank=2, epsilon=1.0, ledger=ledger, run="first").fit(data.X, data.y, data.users)
    with pytest.raises(tacitly.BudgetExceeded):
        tacitly.PrivateFedRep(rank=2, epsilon=1.4, ledger=ledger, run="second").fit(data.X, data.y, data.users)
    tacitly.PrivateFedRep(rank=2, epsilon=0.4, ledger=ledger, run="third").fit(data.X, data.y, data.users)
    assert ledger.spent() <= 1.5


def test_alternating_minimisation_is_private_and_learns() -> None:
    data = make_shared_subspace(3000, 8, 1, 12, 0.1, random_state=5)
    fitted = tacitly.PrivateAltMin(rank=1, epsilon=4.0).fit(data.X, data.y, data.users)
    assert fitted.certificate_.certified
    assert fitted.certificate_.epsilon == pytest.approx(4.0, rel=1e-6)
    assert tacitly.subspace_distance(fitted.basis_, data.basis) < 0.2
