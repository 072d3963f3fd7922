"""Shares between and beyond simulated noise levels."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tacitly.planning.curve import NOTHING, Curve, Point, increasing, simulated


def law(level: float) -> Point:
    """Return two repetitions of a share that noise of variance 1/level² takes away."""
    shares = np.maximum(np.array([1.0, 0.9]) - 100.0 / (100.0 + level**2), 0.0)
    return Point(shares.mean(), shares.min(), shares.max())


def test_a_jump_between_neighbours_is_looked_at_more_closely_and_a_plain_is_not() -> None:
    curve = simulated(law, [0.1, 0.2, 10.0, 1000.0, 2000.0], 0.95, 0.9)
    added = set(curve.levels) - {0.1, 0.2, 10.0, 1000.0, 2000.0}
    assert added
    assert all(0.2 < level < 1000.0 for level in added)


def test_points_are_added_above_until_the_goal_is_reached() -> None:
    curve = simulated(law, [1.0, 2.0], 0.95, 0.9)
    assert curve.levels[-1] > 10.0
    assert curve.at(curve.levels[-1])[0] > 0.5


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_the_needed_level_gives_the_share(share: float) -> None:
    curve = simulated(law, list(np.geomspace(1.0, 1000.0, 20)), 0.95, 0.9)
    needed = curve.needed(share)
    assert needed is not None
    assert curve.at(needed)[0] == pytest.approx(share, abs=1e-6)
    assert law(needed).mean == pytest.approx(share, abs=0.02)


def test_beyond_the_last_level_noise_falls_as_its_variance() -> None:
    curve = Curve(np.array([10.0, 50.0]), (law(10.0), law(50.0)), 0.95)
    assert curve.at(200.0)[0] == pytest.approx(law(200.0).mean, abs=1e-3)
    assert curve.at(math.inf)[0] == 0.95


def test_repetitions_bound_the_share_from_both_sides() -> None:
    curve = simulated(law, [1.0, 10.0, 100.0], 0.95, 0.9)
    for level in (0.5, 3.0, 30.0, 500.0):
        middle, low, high = curve.at(level)
        assert low <= middle <= high


def test_no_number_of_users_reaches_more_than_there_is() -> None:
    assert simulated(law, [1.0, 100.0], 0.95, 0.9).needed(0.96) is None


def test_what_is_in_order_stays_as_it_is() -> None:
    values = np.array([0.1, 0.2, 0.2, 0.9])
    assert (increasing(values) == values).all()


def test_below_a_level_that_gives_nothing_nothing_is_simulated() -> None:
    asked: list[float] = []

    def point(level: float) -> Point:
        asked.append(level)
        return law(level)

    curve = simulated(point, [0.01, 0.1, 1.0, 1000.0], 0.95, 0.9)
    assert law(1.0).mean <= NOTHING
    assert min(asked) == 1.0
    assert curve.at(0.001)[0] <= NOTHING


def test_fewer_users_than_were_simulated_are_promised_less() -> None:
    """Two hundred users were promised what eight hundred got."""
    curve = Curve(np.array([100.0]), (law(100.0),), 0.95)
    assert curve.at(25.0)[0] == pytest.approx(law(25.0).mean, abs=0.03)
    assert curve.at(1.0)[0] == 0.0
    needed = curve.needed(0.5)
    assert needed is not None
    assert needed < 100.0
