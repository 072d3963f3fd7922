"""The certificate of ``partial_fit`` covers every call that is in the model."""

from __future__ import annotations

import contextlib
import math

import numpy as np
import pytest

import tacitly

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
