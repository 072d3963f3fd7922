"""The server's half of the round loop, on noise-free sums of a whole population."""

from __future__ import annotations

import numpy as np
import pytest

from tacitly.linalg import orthonormal, subspace_distance
from tacitly.methods.shared.descent import Descent, limit_rotation, used_directions


def after_rounds(excess: float, seed: int) -> float:
    """Return the distance to the true basis if corrections along five features are ``excess`` times too long."""
    rng = np.random.default_rng(seed)
    d, k, n = 30, 3, 1000
    true, heads = orthonormal(rng.normal(size=(d, k)))[0], rng.normal(size=(n, k))
    curvature = np.where(np.arange(d) < 5, excess, 1.0)
    state = Descent(orthonormal(true + 0.15 * rng.normal(size=(d, k)))[0], np.eye(k))
    for _ in range(16):
        mine = heads @ (true.T @ state.basis)
        asked = (heads @ true.T - mine @ state.basis.T) * curvature
        asked -= asked @ state.basis @ state.basis.T
        measured = mine @ state.head_metric
        size = np.square(measured).sum(axis=1)
        norms = np.sqrt(np.square(asked).sum(axis=1) * size / state.scale**2 + size**2)[:, None]
        step, second = (asked / state.scale).T @ (measured / norms), (measured / norms).T @ measured
        state.advance(step, second, 1e-6, n, damping=1.0)
    return subspace_distance(true, state.basis)


@pytest.mark.parametrize(("excess", "allowed"), [(1.0, 1e-6), (3.0, 1e-3), (20.0, 0.15)])
def test_steps_that_are_far_too_long_still_settle(excess: float, allowed: float) -> None:
    assert max(after_rounds(excess, seed) for seed in range(3)) < allowed


def test_no_direction_turns_by_more_than_half_a_right_angle() -> None:
    rng = np.random.default_rng(0)
    basis = orthonormal(rng.normal(size=(9, 2)))[0]
    change = rng.normal(size=(9, 2)) * 50.0
    change -= basis @ (basis.T @ change)
    turned = orthonormal(basis + limit_rotation(change))[0]
    assert subspace_distance(basis, turned) == pytest.approx(np.sqrt(0.5))
    small = change / 1000.0
    np.testing.assert_allclose(limit_rotation(small), small, rtol=1e-12)


def test_directions_that_no_head_uses_are_dropped_once_corrections_are_noise() -> None:
    turn = orthonormal(np.random.default_rng(1).normal(size=(4, 4)))[0]
    moment = (turn * [2.0, 1.5, 0.012, 0.01]) @ turn.T
    kept = used_directions(moment, 0.01, 1)
    assert kept.shape == (4, 2)
    assert subspace_distance(kept, turn[:, :2]) < 1e-9
    assert used_directions(moment, 0.2, 1).shape == (4, 4)  # 2.0 is not far above the floor: nothing has converged
    assert used_directions((turn * [2.0, 1.5, 0.03, 0.01]) @ turn.T, 0.01, 1).shape == (4, 3)  # weak, but used
    assert used_directions(moment, 0.01, 3).shape == (4, 3)  # it stood out at the start
