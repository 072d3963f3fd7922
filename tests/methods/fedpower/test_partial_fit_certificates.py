"""The certificate of ``partial_fit`` covers every call that is in the model."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path

import numpy as np
import pytest

import tacitly
from tacitly.data.cohort import Cohort
from tacitly.federation.local import LocalPopulation
from tacitly.privacy.guarantee import Budget
from tacitly.privacy.ledger import Ledger

DAYS = np.random.default_rng(0).normal(size=(3, 500, 4)) * [3, 1, 1, 1]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("first", [{"epsilon": math.inf}, {"epsilon": 0.5, "noise_seed": 1}])
def test_a_call_without_fresh_noise_is_never_certified_later(first: dict[str, float]) -> None:
    model = tacitly.FedPower(1, unit="row", **first).partial_fit(DAYS[0])
    model.set_params(epsilon=0.5, noise_seed=None)
    for rows in DAYS[1:]:
        with contextlib.suppress(ValueError):
            model.partial_fit(rows)
        assert not model.certificate_.certified


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_central_call_is_not_stated_as_local() -> None:
    users = np.arange(500) % 50
    model = tacitly.FedPower(1, 0.5, unit="row").partial_fit(DAYS[0], users=users)
    model.set_params(trust="local")
    with contextlib.suppress(ValueError):
        model.partial_fit(DAYS[1], users=users)
    assert not model.certificate_.trust.startswith("local")


class Elsewhere:
    """An engine with another trust model."""

    def population(self, cohort: Cohort) -> LocalPopulation:
        return LocalPopulation(cohort, trust="secure: nobody sees a sum without noise")


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_call_here_is_not_stated_as_one_elsewhere() -> None:
    users = np.arange(500)
    model = tacitly.FedPower(1, epsilon=0.5).partial_fit(DAYS[0], users=users)
    model.set_params(engine=Elsewhere())
    with contextlib.suppress(ValueError):
        model.partial_fit(DAYS[1], users=users)
    assert model.certificate_.trust.startswith("central")


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_one_number_of_units_is_stated() -> None:
    model = tacitly.FedPower(1, epsilon=0.5, unit="row")
    for rows in DAYS:
        model.partial_fit(rows)
    assert ["n = 1500" in line for line in model.certificate_.public] == [True]


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_no_account_is_stated_to_have_spent_less_than_the_model(tmp_path: Path) -> None:
    users = np.arange(500)
    ceiling = Budget(epsilon=3.0, delta=1e-6)
    with Ledger(tmp_path / "a.ledger", ceiling=ceiling) as one, Ledger(tmp_path / "b.ledger", ceiling=ceiling) as other:
        model = tacitly.FedPower(1, epsilon=0.5, ledger=one).partial_fit(DAYS[0], users=users)
        model.set_params(ledger=other)
        with contextlib.suppress(ValueError):
            model.partial_fit(DAYS[1], users=users)
        account = model.certificate_.account
        assert account is not None
        assert account["epsilon"] >= model.certificate_.epsilon * (1 - 1e-6)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_users_of_several_calls_are_counted_once() -> None:
    model = tacitly.FedPower(1, epsilon=0.5)
    for rows, first in zip(DAYS, (0, 0, 30), strict=True):
        model.partial_fit(rows, users=first + np.arange(500) % 50)
    assert model.certificate_.n_users == 80


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_calls_with_and_without_users_are_not_mixed() -> None:
    model = tacitly.FedPower(1, epsilon=0.5).partial_fit(DAYS[0])
    before = model.certificate_
    with pytest.raises(ValueError, match="unit of the fit"):
        model.partial_fit(DAYS[1], users=np.arange(500) % 5)
    assert model.certificate_ is before


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("some", [{"sampling_rate": 0.1}, {"participants": 100}])
def test_nobody_is_asked_where_a_call_cannot_ask_some_users(some: dict[str, float]) -> None:
    released: list[str] = []
    model = tacitly.FedPower(1, epsilon=0.5, unit="user", **some)
    with pytest.raises(ValueError, match="route 'gram'"):
        model.partial_fit(DAYS[0], users=np.arange(500), on_release=released.append)
    assert not released
