"""No contribution exceeds the clip, whatever its numbers are."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tacitly.privacy.clipping import GUARD, clip, clip_factor


@given(arrays(np.float64, st.integers(1, 20)), st.floats(1e-6, 1e6))
def test_a_clipped_contribution_is_finite_and_within_the_guard(vector: np.ndarray, bound: float) -> None:
    clipped = clip(vector, bound)
    assert np.isfinite(clipped).all()
    largest = np.abs(clipped).max()
    norm = largest * np.linalg.norm(clipped / largest) if largest > 0 else 0.0
    assert norm <= bound * (1 - GUARD / 2)


@given(st.floats(0.0), st.floats(1e-6, 1e6))
def test_a_factor_brings_any_norm_within_the_guard(norm: float, bound: float) -> None:
    factor = clip_factor(norm, bound)
    assert 0.0 <= factor <= 1.0
    assert factor == 0.0 or norm * factor <= bound * (1 - GUARD / 2)


def test_a_large_contribution_reaches_the_clip() -> None:
    assert np.linalg.norm(clip([1e12, 1e12], 3.0)) > 0.999 * 3.0
    assert clip_factor(1e12, 3.0) * 1e12 > 0.999 * 3.0


def test_a_small_contribution_is_left_alone() -> None:
    assert clip([1e-12, 0.0], 1.0).tolist() == [1e-12, 0.0]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_one_bad_entry_makes_the_whole_contribution_zero(bad: float) -> None:
    assert clip([1.0, bad, 2.0], 1.0).tolist() == [0.0, 0.0, 0.0]
    assert clip_factor(bad, 1.0) == 0.0


def test_the_largest_floats_do_not_overflow_the_norm() -> None:
    assert np.linalg.norm(clip([1e308, 1e308, 1e308], 1.0)) == pytest.approx(1.0, rel=1e-5)


def test_a_factor_that_would_lose_digits_becomes_zero() -> None:
    assert clip_factor(1e154, 1e-160) == 0.0
    assert clip_factor(1e100, 1e-16) == pytest.approx(1e-116, rel=1e-5)


@pytest.mark.parametrize("bound", [1e-300, 1e-24, 1e-12, 1.0, 1e12])
@pytest.mark.parametrize("size", [1e-150, 1.0, 1e150, 1e308])
def test_clips_of_any_size_hold(bound: float, size: float) -> None:
    clipped = clip(np.full(4, size), bound)
    largest = np.abs(clipped).max()
    assert largest == 0.0 or largest * np.linalg.norm(clipped / largest) <= bound
