"""Refreshing a model, sampling users, and the constants of paper mode."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.base import clone

import tacitly
from tacitly.data.cohort import Cohort
from tacitly.federation.local import LocalPopulation
from tacitly.methods.fedrep import as_printed
from tacitly.methods.shared.whitening import Whitening
from tacitly.privacy.accounting import compose
from tacitly.privacy.guarantee import Adjacency, Budget
from tacitly.privacy.ledger import Ledger
from tacitly.privacy.verification import verify

DATA = tacitly.datasets.make_shared_subspace(1200, 8, 1, 8, random_state=3)
FIRST, SECOND = DATA.users < 600, DATA.users >= 600


def fitted(**settings: object) -> tacitly.PrivateFedRep:
    model = tacitly.PrivateFedRep(rank=1, epsilon=4.0, **{"rounds": 3, **settings})
    return model.fit(DATA.X[FIRST], DATA.y[FIRST], DATA.users[FIRST])


def refreshed(model: tacitly.PrivateFedRep) -> tacitly.PrivateFedRep:
    return model.refresh(DATA.X[SECOND], DATA.y[SECOND], DATA.users[SECOND])


def test_a_refresh_starts_from_the_basis_and_releases_no_votes() -> None:
    model = fitted()
    before = model.certificate_
    refreshed(model)
    names = [release.name for release in model.certificate_.releases[len(before.releases) :]]
    assert "direction votes" not in names
    assert "basis step 3" in names
    assert tacitly.subspace_distance(model.basis_, DATA.basis) < 0.1
    assert list(model.users_) == list(np.unique(DATA.users[SECOND]))


def test_the_certificate_counts_every_call_and_forgetting_one_is_seen() -> None:
    model = fitted()
    before = model.certificate_
    refreshed(model)
    both = model.certificate_
    costs = [release.cost for release in both.releases]
    assert both.releases[: len(before.releases)] == before.releases
    exact = compose(costs, Adjacency.ZERO_OUT, both.budget.delta)
    assert both.budget.epsilon >= exact > 4.0 * 1.2
    assert verify(both.to_json()).ok
    # The mutation: a certificate that states the second call only, with the releases of both.
    assert not verify(replace(both, budget=replace(both.budget, epsilon=4.0)).to_json()).ok


def test_a_refresh_is_a_run_of_its_own_in_the_account(tmp_path: Path) -> None:
    with Ledger(tmp_path / "account.db", ceiling=Budget(epsilon=6.0, delta=1e-6)) as ledger:
        model = fitted(ledger=ledger)
        model.close()
        refreshed(model).close()
        assert [run.name for run in ledger.runs()] == ["private-fedrep", "private-fedrep-2"]
        basis, certificate = model.basis_, model.certificate_
        with pytest.raises(tacitly.BudgetExceeded):
            refreshed(model)
        assert model.basis_ is basis
        assert model.certificate_ is certificate
        assert model.run == "private-fedrep"


def test_a_refreshed_model_verifies_against_its_account(tmp_path: Path) -> None:
    """Both runs count as finished, though nobody closed the first."""
    with Ledger(tmp_path / "account.db") as ledger:
        model = refreshed(fitted(ledger=ledger))
        claim = model.certify()
        model.close()
        verdict = verify(claim.to_json(), ledger=ledger)
        assert verdict.ok, str(verdict)


def test_a_model_that_was_loaded_is_refreshed_on_the_account_of_its_fit_only(tmp_path: Path) -> None:
    with Ledger(tmp_path / "account.db", ceiling=Budget(epsilon=6.0, delta=1e-6)) as ledger:
        tacitly.save(fitted(ledger=ledger), tmp_path / "model")
        loaded = tacitly.load(tmp_path / "model")
        spent = ledger.spent()
        with pytest.raises(ValueError, match="account of the fit"):
            refreshed(loaded)
        assert ledger.spent() == spent
        loaded.ledger = ledger
        assert refreshed(loaded).certificate_.account["epsilon"] == pytest.approx(ledger.spent())


def test_an_older_copy_of_the_account_is_refused(tmp_path: Path) -> None:
    """Its total would state less than the model's releases cost together."""
    with Ledger(tmp_path / "account.db", ceiling=Budget(epsilon=6.0, delta=1e-6)):
        pass
    shutil.copy(tmp_path / "account.db", tmp_path / "older.db")
    with Ledger(tmp_path / "account.db") as ledger, Ledger(tmp_path / "older.db") as older:
        model = fitted(ledger=ledger)
        model.ledger = older
        with pytest.raises(ValueError, match="older copy"):
            refreshed(model)
        assert older.spent() == 0.0


class Elsewhere:
    """An engine with another trust model."""

    def population(self, cohort: Cohort) -> LocalPopulation:
        return LocalPopulation(cohort, trust="secure: nobody sees a sum without noise")


def test_a_refresh_elsewhere_is_refused_before_it_spends() -> None:
    model, released = fitted(), []
    model.engine = Elsewhere()
    with pytest.raises(ValueError, match="one trust"):
        model.refresh(DATA.X[SECOND], DATA.y[SECOND], DATA.users[SECOND], on_release=released.append)
    assert not released


def test_other_users_add_to_the_number_and_the_same_do_not() -> None:
    model = refreshed(fitted())
    assert model.certificate_.n_users == 1200
    again = model.refresh(DATA.X[FIRST], DATA.y[FIRST], DATA.users[FIRST])
    assert again.certificate_.n_users == 1200


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_copy_of_an_estimator_is_refreshed_on_the_account_of_its_fit() -> None:
    model = clone(tacitly.PrivateFedRep(rank=1, epsilon=4.0, rounds=1))
    model.fit(DATA.X[FIRST], DATA.y[FIRST], DATA.users[FIRST])
    account = refreshed(model).certificate_.account
    assert account["epsilon"] >= model.certificate_.epsilon * (1 - 1e-6)


def test_a_refresh_must_promise_what_the_fit_did() -> None:
    model = fitted()
    model.adjacency = "replace-one"
    with pytest.raises(ValueError, match="same adjacency"):
        refreshed(model)
    model.adjacency, model.noise_seed = "zero-out", 0
    with pytest.raises(ValueError, match="noise of the same kind"):
        refreshed(model)
    model.noise_seed = None
    with pytest.raises(tacitly.DataError, match="expecting 8"):
        model.refresh(DATA.X[SECOND][:, :5], DATA.y[SECOND], DATA.users[SECOND])


def test_users_by_coin_are_accounted_and_without_the_coin_the_noise_is_too_little() -> None:
    model = fitted(sampling_rate=0.5, rounds=1)
    assert {release.event.sampling_rate for release in model.certificate_.releases} == {0.5}
    assert model.certificate_.epsilon <= 4.0
    assert tacitly.subspace_distance(model.basis_, DATA.basis) < 0.3
    # The mutation: the same releases, had everybody taken part, cost more than was promised.
    everybody = [replace(release.event, sampling_rate=1.0) for release in model.certificate_.releases]
    assert compose(everybody, Adjacency.ZERO_OUT, 1e-6) > 4.0


@pytest.mark.parametrize("rate", [0.0, 1.5])
def test_a_rate_outside_its_range_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match="sampling_rate must lie"):
        fitted(sampling_rate=rate)


def test_the_constants_of_the_paper_are_used_in_paper_mode_only() -> None:
    with pytest.raises(ValueError, match="clip is for mode='paper'"):
        fitted(clip=1.0)
    with pytest.warns(tacitly.UncertifiedWarning):
        model = fitted(mode="paper", clip=2.0, start_clip=3.0, step_size=0.5, batch=2)
    bounds = [release.event.sensitivity.zero_out for release in model.certificate_.releases]
    assert bounds == [3.0, 2.0, 2.0, 2.0]
    with pytest.raises(ValueError, match="step_size must be positive"):
        as_printed.Settings(step_size=0.0)


def test_a_batch_of_b_rows_is_what_the_gradient_reads() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(20, 4)), rng.normal(size=20)
    query = as_printed.BasisGradient(np.eye(4)[:, :1], 0, 2, batch=3)
    far = X.copy()
    far[6:] = 1e6  # three rows for the head, three for the gradient; the others do not matter
    assert (query.contribution(X, y) == query.contribution(far, y)).all()


def test_from_raw_inverts_to_raw() -> None:
    rng = np.random.default_rng(1)
    directions = np.linalg.qr(rng.normal(size=(6, 2)))[0]
    whitening = Whitening(rng.uniform(0.5, 2.0, 6), directions, np.array([0.7, -0.4]))
    basis = rng.normal(size=(6, 3))
    np.testing.assert_allclose(whitening.from_raw(whitening.to_raw(basis)), basis, atol=1e-12)
