"""The clip of updates: a typical norm if there is one in what was released, or one so small that it harms nobody."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tacitly.methods.shared.batch import circle
from tacitly.methods.shared.whitening import FeatureMoment
from tacitly.neural.engine.bound import update_bound
from tacitly.privacy.calibration import Phase, Plan
from tacitly.privacy.guarantee import Budget

PLAN = Plan(Budget(epsilon=1.0, delta=1e-6), [Phase(name="clip", share=1.0, acute=False)])


def bound(released: Any) -> float:
    """Return the clip that is read off what users released."""
    federation = SimpleNamespace(release=lambda *_: np.asarray(released), sum_sigma=lambda event: 10.0)
    return update_bound(federation, PLAN, "auto", FeatureMoment(2), "update norm")  # type: ignore[arg-type]


@pytest.mark.parametrize("released", [(0.0, 0.0), (20.0, -20.0), (-70.0, 70.0)])
def test_noise_is_not_taken_for_a_norm(released: tuple[float, float]) -> None:
    """A clip of 2^30 would drown every update; at a tiny one all updates count alike."""
    assert bound(released) == 2.0**-30


@pytest.mark.parametrize("octave", [-12.0, 0.0, 5.0])
def test_a_norm_that_stands_out_is_the_clip(octave: float) -> None:
    point = circle(np.array([octave]), 30.0)[0]
    assert bound(101.0 * point) == pytest.approx(2.0**octave)
