"""Wide tables are summed by compiled kernels however few the users are: array operations took minutes."""

from __future__ import annotations

import numpy as np
import pytest

from tacitly.data.cohort import Cohort
from tacitly.federation import forms
from tacitly.federation.forms import OfStatistics, form_of
from tacitly.federation.shard import Shard
from tacitly.methods.mixed_effects.posterior import Coordinates, Prior
from tacitly.methods.mixed_effects.queries import Information
from tacitly.methods.shared.whitening import FeatureMoment


def information(features: int) -> Information:
    units = Coordinates(np.zeros(features), np.ones(features), 0.0, 1.0)
    size = features + 1
    return Information(units, Prior(np.zeros(size), np.eye(size) / 3.0, 0.5), np.eye(size))


def test_public_sizes_alone_decide_which_form_is_used() -> None:
    for users, features, compiled in ((3000, 200, True), (1000, 60, False), (8192, 5, True), (8000, 40, False)):
        assert isinstance(form_of(information(features), users, features), OfStatistics) == compiled
    assert not isinstance(form_of(FeatureMoment(400), 8000, 400), OfStatistics)  # it has no statistics to keep


def test_both_forms_of_a_wide_table_have_the_same_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    rng, features = np.random.default_rng(0), 40
    users = np.repeat(np.arange(50), rng.integers(1, 9, 50))
    cohort = Cohort.from_arrays(rng.normal(size=(len(users), features)), rng.normal(size=len(users)), users)
    sums = []
    for work in (0.0, np.inf):
        monkeypatch.setattr(forms, "_WORK", work)
        sums.append(Shard(cohort).exact_sum(information(features), 1.0, 2.0**-40) * 2.0**-40)
    assert np.abs(sums[1]).max() > 0.1
    np.testing.assert_allclose(sums[0], sums[1], atol=1e-9)
