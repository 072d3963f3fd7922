"""Noise has the recorded scale, is fresh, and hides what the grid must hide."""

from __future__ import annotations

import math
import os
from decimal import Decimal, localcontext

import numpy as np
import pytest
from scipy import stats
from scipy.special import ndtri

from tacitly.privacy.noise import add_noise, default_mode, grid_of, slack_of, to_grid

FALSE_ALARM = 1e-7  # of one comparison; a test has two at most


def chi_square_p(values: np.ndarray, sigma: float) -> float:
    statistic = float(np.sum((values / sigma) ** 2))
    tail = stats.chi2(values.size)
    return 2 * min(tail.cdf(statistic), tail.sf(statistic))


@pytest.mark.parametrize("mode", ["exact", "float"])
def test_noise_has_the_promised_scale_and_not_one_thirty_percent_off(mode: str) -> None:
    sigma, grid = 3.7, grid_of(1.0, 3.7, 1000)
    values = add_noise(np.zeros(4000, dtype=np.int64), sigma, grid, mode)
    assert chi_square_p(values, sigma) > FALSE_ALARM
    assert chi_square_p(values, sigma * 1.3) < FALSE_ALARM
    assert chi_square_p(values, sigma / 1.3) < FALSE_ALARM
    assert stats.kstest(values / sigma, "norm").pvalue > FALSE_ALARM


@pytest.mark.parametrize("mode", ["exact", "float"])
def test_two_draws_differ_and_are_uncorrelated(mode: str) -> None:
    zeros = np.zeros(2000, dtype=np.int64)
    first, second = (add_noise(zeros, 1.0, 2.0**-40, mode) for _ in range(2))
    # Floats are rounded to cells of σ/2²⁰: of 2,000 pairs one is equal with probability 5e-4, three with 3e-11.
    assert np.count_nonzero(first == second) < 3
    assert abs(np.corrcoef(first, second)[0, 1]) < 6 / math.sqrt(2000)


def test_every_released_value_lies_on_the_grid() -> None:
    grid = grid_of(1.0, 2.0, 10**6)
    for mode in ("exact", "float"):
        steps = add_noise(np.arange(50, dtype=np.int64), 2.0, grid, mode) / grid
        assert np.all(steps == np.rint(steps))


@pytest.mark.parametrize("scale", [1.0, 3.0, 20.0, 200.0])
def test_the_slack_bounds_the_log_ratio_of_discrete_and_rounded_gaussian(scale: float) -> None:
    reach = int(min(40 * scale, 38 * scale))
    x = np.arange(-reach, reach + 1, dtype=np.float64)
    discrete = -(x**2) / (2 * scale**2)
    discrete -= np.logaddexp.reduce(discrete)
    lower = np.abs(x) - 0.5
    upper = lower + 1.0
    # Mirror to the left tail, where differences of distribution functions keep their digits.
    log_a, log_b = stats.norm.logcdf(-lower / scale), stats.norm.logcdf(-upper / scale)
    rounded = log_a + np.log(-np.expm1(log_b - log_a))
    rounded[x == 0] = np.log(1 - 2 * stats.norm.cdf(-0.5 / scale))
    assert np.max(np.abs(rounded - discrete)) <= slack_of(scale, 1.0, 1)


def test_the_grid_never_overflows_and_never_outgrows_the_guard() -> None:
    for n in (1, 10**3, 10**6, 10**9):
        for sigma in (1e-3, 1.0, 1e4):
            grid = grid_of(1.0, sigma, n)
            assert math.log2(grid) == int(math.log2(grid))
            assert (n + 1) / grid <= 2**60
            assert 40 * sigma / grid <= 2**61


def test_rounding_moves_by_half_a_step_at_most() -> None:
    values = np.random.default_rng(0).normal(size=1000)
    assert np.max(np.abs(to_grid(values, 2.0**-20) * 2.0**-20 - values)) <= 2.0**-21


def test_large_releases_use_the_fast_mode() -> None:
    assert default_mode(10**7) == "exact"
    assert default_mode(10**7 + 1) == "float"


def test_noise_without_a_scale_and_scale_without_noise_are_refused() -> None:
    zeros = np.zeros(1, dtype=np.int64)
    with pytest.raises(ValueError, match="sigma must be positive"):
        add_noise(zeros, 0.0, 1.0, "exact")
    with pytest.raises(ValueError, match="sigma must be 0"):
        add_noise(zeros, 1.0, 1.0, "none")


def test_float_noise_has_no_holes_far_out() -> None:
    """Every cell of the coarse grid near the tail can occur, whatever the sum is."""
    sigma, grid = 8.0, grid_of(1.0, 8.0, 1000)
    values = add_noise(np.full(200_000, 12345, dtype=np.int64), sigma, grid, "float")
    cell = 2.0 ** math.floor(math.log2(sigma) - 20)
    steps = values / cell
    assert np.all(steps == np.rint(steps))
    assert len(np.unique(values[np.abs(values) > 2 * sigma])) > 0.99 * np.count_nonzero(np.abs(values) > 2 * sigma)
    assert stats.kstest(values / sigma, "norm").pvalue > FALSE_ALARM


def phi(x: float | Decimal) -> Decimal:
    """Upper tail of the standard normal at x > 0, to 60 digits."""
    with localcontext() as context:
        context.prec = 120
        z = Decimal(x)
        term = total = z
        n = 1
        while term > total * Decimal(10) ** -110:
            n += 2
            term = term * z * z / n
            total += term
        pi = 16 * _arctan(5) - 4 * _arctan(239)
        return Decimal("0.5") - (-z * z / 2).exp() / (2 * pi).sqrt() * total


def _arctan(inverse: int) -> Decimal:
    return sum((Decimal((-1) ** k) / ((2 * k + 1) * Decimal(inverse) ** (2 * k + 1)) for k in range(100)), Decimal(0))


@pytest.mark.parametrize("at", [0.3, 2.0, 8.0])
def test_a_cell_of_float_noise_has_the_probability_of_the_ideal_gaussian(
    at: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Float64 alone is wrong by 2^-30 at two standard deviations and by 2^-28 at eight, and nothing was charged."""
    sigma, grid = 11.0, 2.0**-40
    cell = 2.0 ** (math.floor(math.log2(sigma)) - 20)
    index = round(at * sigma / cell)

    def noisy(number: int) -> float:
        """What is released if the 127 bits after the sign are this number, and the bits drawn later are zeros."""
        words = [(number >> 64) << 1, number & (2**64 - 1)]
        drawn = np.array(words, dtype=np.uint64).tobytes()
        monkeypatch.setattr(os, "urandom", lambda size: drawn if size == 16 else bytes(size))
        return abs(float(add_noise(np.zeros(1, dtype=np.int64), sigma, grid, "float")[0]))

    def edge(beyond: int) -> Decimal:
        """Probability, in both tails alike, of a cell at or beyond this one."""
        low, high = 0, 2**127
        while high - low > 1:
            middle = (low + high) // 2
            if noisy(middle) >= (beyond - 0.25) * cell:
                low = middle
            else:
                high = middle
        return Decimal(high) / Decimal(2) ** 128

    with localcontext() as context:
        context.prec = 100
        found = edge(index) - edge(index + 1)
        low, high = (Decimal((index + side) * cell) / Decimal(sigma) for side in (-0.5, 0.5))
        ideal = phi(low) - phi(high)
        assert abs(found / ideal - 1) < Decimal(2) ** -50


def test_float64_decides_only_where_its_error_cannot_matter() -> None:
    """The quantile function is 2^10 times more accurate than the margin at the borders of cells needs it to be."""
    rng = np.random.default_rng(0)
    tails = np.concatenate([2.0 ** -rng.uniform(1, 60, 300), rng.uniform(0, 0.5, 100)])
    for tail, z in zip(tails, -ndtri(tails), strict=True):
        exact = phi(float(z))  # the tail that this quantile really has
        slope = math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
        assert abs(float(exact - Decimal(float(tail)))) / slope < 2.0**-48 * (1 + z)


def test_the_exact_decision_walks_to_the_right_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a margin of everything each coordinate is decided exactly, and agrees with the proposal: 2^-17 are near."""
    from tacitly.privacy import normal_cells

    def fixed(size: int) -> bytes:
        return np.random.default_rng(1).bytes(size)

    totals = np.random.default_rng(2).integers(-(2**50), 2**50, 60)
    proposed = normal_cells.noisy_cells(totals, 3.7e12, fixed)
    monkeypatch.setattr(normal_cells, "_MARGIN", 1.0)
    decided = normal_cells.noisy_cells(totals, 3.7e12, fixed)
    assert proposed[0].tolist() == decided[0].tolist()
    assert np.abs(decided[0] * decided[1] - totals).max() < 6 * 3.7e12


@pytest.mark.parametrize("scale", [3.0, 2.0**19, 2.0**45])
def test_float_noise_of_any_scale_is_normal(scale: float) -> None:
    values = add_noise(np.zeros(20_000, dtype=np.int64), scale, 1.0, "float")
    smear = np.random.default_rng(3).uniform(-0.5, 0.5, len(values)) * max(1.0, 2.0 ** (math.log2(scale) // 1 - 20))
    assert stats.kstest((values + smear) / math.hypot(scale, math.sqrt(1 / 6)), "norm").pvalue > FALSE_ALARM
