"""Centers and scales are found for columns as tables have them, with few users, from noisy points alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tacitly.arrays import Array
from tacitly.methods.mixed_effects import units
from tacitly.methods.mixed_effects.algorithm import Settings
from tacitly.methods.mixed_effects.posterior import Coordinates
from tacitly.privacy.guarantee import Budget

ROWS = 6


class Noisy:
    """The door, with noise from a seed: what the search does with it is the same in every run."""

    trust = "central"

    def __init__(self, columns: list[Array], seed: int) -> None:
        self.X, self.y = np.stack(columns[:-1], axis=1), columns[-1]
        self.offsets = np.arange(len(self.y) // ROWS + 1) * ROWS
        self.n_users, self.names = len(self.y) // ROWS, []
        self._rng = np.random.default_rng(seed)

    def release(self, query: Any, event: Any, name: str) -> Array:
        self.names.append(name)
        contributions = query.contributions(self.X, self.y, self.offsets)
        return np.asarray(contributions.sum(axis=0) + event.sigma * self._rng.normal(size=contributions.shape[1]))

    def sum_sigma(self, event: Any) -> float:
        return float(event.sigma)


def columns(n: int, rng: np.random.Generator) -> dict[str, Array]:
    """Columns with centers far from zero, frequent zeros, heavy tails, and those constant within users."""
    own, rows = np.repeat(rng.normal(size=n), ROWS), rng.normal(size=n * ROWS)
    return {
        "year": 1990.0 + np.tile(np.arange(ROWS), n),
        "age": np.round(45 + 12 * own),
        "temperature": 36.8 + 0.4 * rows,
        "log income": 10 + 0.8 * own + 0.3 * rows,
        "height": 172 + 9 * own + 0.5 * rows,
        "standardised": rows,
        "income": np.exp(10 + 0.8 * own + 0.3 * rows),
        "per cent": 100 / (1 + np.exp(-own - rows)),
        "gifts, mostly none": np.where(rng.random(n * ROWS) < 0.8, 0.0, np.exp(6 + rows)),
    }


def found(
    cells: list[Array], epsilon: float, seed: int, ranges: list[tuple[float, float] | None] | None = None
) -> tuple[Array, Array]:
    federation = Noisy(cells, seed)
    settings = Settings(federation.n_users, tuple(ranges or [None] * len(cells)))
    plan = settings.plan(Budget(epsilon=epsilon, delta=1e-6))
    result = units.learn_units(federation, plan, settings.bounds)  # type: ignore[arg-type]
    assert federation.names == [phase.name for phase in plan.phases if phase.name[:3] in ("mag", "cen")]
    with np.errstate(divide="ignore"):
        return np.append(result.center, result.level), np.append(1.0 / result.gain, result.spread)


def test_scales_of_usual_columns_are_found_with_six_hundred_users_in_nearly_every_fit() -> None:
    """Nine columns at a time, ε = 1: at most one in fifty is off by a factor of four."""
    off = 0
    for seed in range(34):
        cells = list(columns(600, np.random.default_rng(seed)).values())
        centers, scales = found(cells, 1.0, seed)
        for cell, center, scale in zip(cells, centers, scales, strict=True):
            tails = float(np.subtract(*np.quantile(cell, [0.9, 0.1]))) / 2.56 or cell.std()
            fits = min(tails, cell.std()) / 4 < scale < 4 * max(tails, cell.std())
            off += not (fits and abs(center - cell.mean()) < 4 * max(scale, cell.std()))
    assert off <= 6


def test_values_are_found_within_ranges_that_are_far_too_wide() -> None:
    """Declared is what is possible. With 600 users and ε = 1 at most one column in fifty is off by a factor of four."""
    off = 0
    for seed in range(25):
        rng = np.random.default_rng(seed)
        own, rows = np.repeat(rng.normal(size=600), ROWS), rng.normal(size=600 * ROWS)
        cells = [40 + 10 * own, 2200 + 560 * rows, 1990.0 + np.tile(np.arange(ROWS), 600), rows]
        ranges = [(0.0, 120.0), (0.0, 20_000.0), (1900.0, 2100.0), None]
        for cell, center, scale in zip(cells, *found(cells, 1.0, seed, ranges), strict=True):
            fits = cell.std() / 4 < scale < 4 * cell.std()
            off += not (fits and abs(center - cell.mean()) < 2 * cell.std())
    assert off <= 2


def test_two_values_at_the_ends_of_a_declared_range_are_told_apart() -> None:
    """On a circle hardly wider than the range its ends would meet: one value, and a coefficient of hundreds."""
    for seed in range(10):
        rng = np.random.default_rng(seed)
        own, rows = np.repeat(rng.random(600), ROWS) < 0.5, rng.random(600 * ROWS) < 0.6
        cells = [1.0 + own, np.where(rows, 1.0, -1.0), np.where(rng.random(600 * ROWS) < 0.3, 10.0, 0.0), rows * 1.0]
        ranges = [(1.0, 2.0), (-1.0, 1.0), (0.0, 10.0), None]
        for cell, center, scale, known in zip(cells, *found(cells, 1.0, seed, ranges), ranges, strict=True):
            if known is not None:
                assert known[0] - cell.std() < center < known[1] + cell.std()
                assert cell.std() / 3 < scale < 3 * cell.std()


def test_features_with_ranges_need_no_magnitudes() -> None:
    rng = np.random.default_rng(3)
    cells, ranges = [rng.normal(size=1800), rng.normal(size=1800)], [(-30.0, 50.0), (-2.0, 2.0)]
    centers, scales = found(cells, np.inf, 3, ranges)
    assert abs(centers[0]) < 0.5
    assert 0.5 < scales[0] < 2.0
    assert scales[1] == 1.0  # a target's range is taken as it is


@pytest.mark.parametrize("offset", [0.0, 30.0, 5e3])
@pytest.mark.parametrize("factor", [1e-6, 1.0, 1e7])
def test_without_noise_any_unit_and_offset_is_found(factor: float, offset: float) -> None:
    cell = factor * (offset + np.random.default_rng(0).normal(size=300 * ROWS))
    centers, scales = found([cell, cell], np.inf, 0)
    np.testing.assert_allclose(centers, cell.mean(), atol=0.5 * cell.std())
    assert (scales > 0.5 * cell.std()).all()
    assert (scales < 2.0 * cell.std()).all()


def test_sums_of_money_with_many_zeros_are_measured_by_what_is_not_zero() -> None:
    """Their scale would be that of a column of ones, and gifts a thousand times as large as a usual value."""
    rng = np.random.default_rng(1)
    gifts = np.where(rng.random(800 * ROWS) < 0.85, 0.0, np.exp(7 + rng.normal(size=800 * ROWS)))
    _, scales = found([gifts, rng.normal(size=800 * ROWS)], 1.0, 1)
    assert gifts.std() / 8 < scales[0] < 2 * gifts.std()


def test_a_column_of_zeros_is_left_out_and_a_constant_one_does_no_harm() -> None:
    rng = np.random.default_rng(2)
    nothing, one = np.full(800 * ROWS, np.nan), np.full(800 * ROWS, 7.0)
    _, scales = found([nothing, one, rng.normal(size=800 * ROWS)], 1.0, 2)
    assert np.isinf(scales[0])
    assert 3.0 < scales[1] < 14.0


def test_one_noisy_length_does_not_decide() -> None:
    """A first look by which a column seems spread is corrected by the second, which sees one sharp value."""
    spreads = units._Spreads(1)
    asked, first = np.array([True]), np.array([1.0])

    def look(period: float, length: float) -> units._Look:
        point = np.array([length + 0j])
        return units._Look(asked, np.zeros(1), np.array([period]), point, np.array([0.15]))

    spreads.add(np.array([1.0]), look(1.0, 0.62))
    assert spreads.sharp(np.ones(1), 0.75)[0] > 0.03  # so it is asked again
    spreads.add(np.array([6.7]), look(1.0 / 6.7, 0.95))
    assert spreads.scales(first)[0] < 0.3 / np.pi


def test_missing_cells_do_not_make_a_column_look_spread() -> None:
    """A third of the cells is missing: the mean of the others' points is as long as without."""
    rng = np.random.default_rng(3)
    weight = np.where(rng.random(1500 * ROWS) < 0.35, np.nan, 75 + 12 * rng.normal(size=1500 * ROWS))
    for seed in range(10):
        centers, scales = found([weight, rng.normal(size=1500 * ROWS)], 1.0, seed)
        assert 6 < scales[0] < 24
        assert 65 < centers[0] < 85


def test_typical_scales_are_right_within_a_factor_of_two_with_two_thousand_users() -> None:
    for seed in range(12):
        rng = np.random.default_rng(100 + seed)
        cells = [60 + 15 * rng.normal(size=2000 * ROWS), rng.normal(size=2000 * ROWS), 5 + rng.random(2000 * ROWS)]
        _, scales = found(cells, 1.0, seed)
        assert all(0.5 < scale / cell.std() < 2.0 for cell, scale in zip(cells, scales, strict=True))


def test_units_of_a_folder_are_read_as_they_were_stored_and_others_refused() -> None:
    units = Coordinates(np.zeros(1), np.ones(1), 3.0, 2.0, 20.0)
    arrays = {"center": units.center, "gain": units.gain, "target": units.target_array()}
    assert (Coordinates.stored(arrays).level, Coordinates.stored(arrays).knee) == (3.0, 20.0)
    with pytest.raises(ValueError, match="level, spread and knee"):
        Coordinates.stored({**arrays, "target": np.ones(4)})


def test_columns_stay_linear_up_to_the_knee_and_are_bounded_beyond() -> None:
    units = Coordinates(np.zeros(1), np.ones(1), 0.0, 1.0, 20.0)
    cells = np.array([[-15.0], [19.0], [40.0], [1e300]])
    np.testing.assert_allclose(units.design(cells)[:, 1], [-15.0, 19.0, 20.0 * (1 + np.log(2)), 40.0])
