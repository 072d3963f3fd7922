"""What a fitted model is compared with."""

from __future__ import annotations

import numpy as np
import pytest

import tacitly
from tacitly.baselines import comparison
from tacitly.baselines.comparison import LOCAL, MEANS, OURS, SINGLE, TWIN, Line, compare, verdict


def test_no_fit_without_noise_where_it_would_take_hours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise leaves out most of 900 columns; without it all were learned from, for more than an hour."""
    rng = np.random.default_rng(0)
    users = np.repeat(np.arange(300), 4)
    X = rng.normal(size=(1200, 2))
    y = X[:, 0] + rng.normal(size=300)[users] + rng.normal(size=1200)
    cohort = tacitly.Cohort.from_arrays(X, y, users)
    model = tacitly.MixedEffects(epsilon=8.0).fit(cohort)
    assert {line.method for line in compare(model, cohort)} == {MEANS, LOCAL, SINGLE, TWIN, OURS}
    monkeypatch.setattr(comparison, "_MOST_WORK", 300 * 3**3 - 1)
    lines = compare(model, cohort)
    assert {line.method for line in lines} == {MEANS, LOCAL, SINGLE, OURS}
    worse = [line if line.method != OURS else Line(OURS, "", 100.0, 0.0) for line in lines]
    assert "More users, a larger epsilon, fewer columns" in verdict(worse)


def test_a_better_model_for_all_is_named_although_sharing_helped() -> None:
    """Families of two whose diseases have little to do with each other: own rows mislead, and only means are worse."""
    lines = [Line(MEANS, "", 2.0, 0.0), Line(LOCAL, "", 1.9, 0.0), Line(TWIN, "", 1.0, 0.0), Line(OURS, "", 1.0, 0.5)]
    better = verdict([*lines, Line(SINGLE, "", 0.8, 0.6, doubt=0.05)])
    assert better.startswith("Sharing helped")
    assert "one model for all is better: its error is 20 % below" in better
    for by_chance in (Line(SINGLE, "", 0.8, 0.6, doubt=0.2), Line(SINGLE, "", 1.0, 0.5), Line(SINGLE, "", 1.2, 0.4)):
        assert "one model for all" not in verdict([*lines, by_chance])
