"""Exact noise has the probabilities of the discrete Gaussian, and a sampler that is slightly wrong is noticed."""

from __future__ import annotations

import math
import os
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from tacitly.privacy import discrete_gaussian as sampler
from tacitly.privacy.discrete_gaussian import discrete_gaussian, rational_coins, thresholds

FALSE_ALARM = 1e-7  # of one test; there are fewer than ten random ones
SCALES = [0.7, 3.3, 20.5, 45.7, 1000.3]
"""Steps of 1 below 32, then of 2 and of 32: without and with the acceptance."""


def p_value(draws: np.ndarray, scale: float, fold: int = 0) -> float:
    """Chi-square of the draws against exact probabilities, in bins of 20 expected draws; or of |y| mod ``fold``."""
    reach = math.ceil(9 * scale) + 1
    x = np.arange(-reach, reach + 1)
    weights = np.exp(-(x**2) / (2 * scale**2))
    expected = len(draws) * weights / weights.sum()
    counts = np.bincount(np.clip(draws, -reach, reach) + reach, minlength=len(x))
    bins = np.minimum(np.cumsum(expected) // 20, np.cumsum(expected)[-1] // 20 - 1).astype(int)
    bins = np.unique(np.abs(x) % fold if fold else bins, return_inverse=True)[1]
    found, wanted = np.bincount(bins, counts), np.bincount(bins, expected)
    return float(stats.chi2(len(wanted) - 1).sf(((found - wanted) ** 2 / wanted).sum()))


def given(*pieces: bytes) -> sampler.RandomBytes:
    """Return a source of randomness that yields these pieces."""
    rest = iter(pieces)
    return lambda size: next(rest)


@pytest.mark.parametrize("scale", SCALES)
def test_every_integer_has_its_exact_probability(scale: float) -> None:
    assert p_value(discrete_gaussian(200_000, scale, os.urandom), scale) > FALSE_ALARM


def accept_all(k: np.ndarray, *_: object) -> np.ndarray:
    return np.ones(len(k), dtype=bool)


def two_zeros(size: int, scale: float, random_bytes: sampler.RandomBytes) -> np.ndarray:
    k = sampler._steps(size, Fraction(1, 2) / Fraction(scale) ** 2, random_bytes)
    return k * np.where(np.frombuffer(random_bytes(size), np.uint8) & 1, -1, 1)


@pytest.mark.parametrize(("scale", "flaw"), [(33.0, ("_accepted", accept_all)), (3.3, ("_candidates", two_zeros))])
def test_a_flaw_in_the_sampler_is_caught(
    scale: float, flaw: tuple[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without acceptance odd numbers are 2.4 % too frequent; negative zeros make zero twice as frequent."""
    assert p_value(discrete_gaussian(1_000_000, scale, os.urandom), scale, fold=2) > FALSE_ALARM
    monkeypatch.setattr(sampler, *flaw)
    assert p_value(discrete_gaussian(1_000_000, scale, os.urandom), scale, fold=2) < FALSE_ALARM


def test_the_size_of_steps_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "_STEPS", 1)
    assert p_value(discrete_gaussian(200_000, 45.7, os.urandom), 45.7) > FALSE_ALARM


def test_noise_thirty_percent_off_is_caught() -> None:
    draws = discrete_gaussian(20_000, 45.7, os.urandom)
    assert p_value(draws, 45.7 * 1.3) < FALSE_ALARM
    assert p_value(draws, 45.7 / 1.3) < FALSE_ALARM


@pytest.mark.parametrize("scale", SCALES[:3])
@pytest.mark.parametrize("bits", [64, 192])
def test_thresholds_enclose_the_distribution_function(scale: float, bits: int) -> None:
    """Against sums of 100-digit exponentials."""
    q = Fraction(1, 2) / Fraction(scale) ** 2
    low, high = thresholds(q, bits)
    with localcontext() as context:
        context.prec = 100
        rate = Decimal(q.numerator) / Decimal(q.denominator)
        weights = [(-rate * k * k).exp() for k in range(len(high) + math.ceil(20 * scale) + 5)]
        total, reached = sum(weights), Decimal(0)
        for k in range(len(high)):
            reached += weights[k]
            exact = reached / total * (1 << bits)
            assert low[k] <= exact <= high[k] <= low[k] + 2
        assert (reached + weights[len(high)]) / total * (1 << bits) > (1 << bits) - 2
    assert low[len(high)] == 0


def test_a_uniform_number_at_a_threshold_is_decided_by_more_bits() -> None:
    q = Fraction(1, 2) / Fraction(20.5) ** 2
    low, _ = thresholds(q, 64)
    for k in (0, 7, 100):
        word = low[k].to_bytes(8, "little")
        later = [low[k] << 64 | more in range(thresholds(q, 128)[1][k], 1 << 128) for more in (0, 2**64 - 1)]
        for passed, more in zip(later, (bytes(8), b"\xff" * 8), strict=True):
            assert sampler._steps(1, q, given(word, more)).tolist() == [k + passed]
        assert later == [False, True]


def test_a_uniform_number_beyond_the_table_gets_a_larger_table() -> None:
    q = Fraction(1, 2) / Fraction(20.5) ** 2
    (k,) = sampler._steps(1, q, given(b"\xff" * 8, b"\xff" * 8, bytes(8)))
    assert len(thresholds(q, 128)[1]) <= k < len(thresholds(q, 192)[1])
    tail = 2 * stats.norm.sf(k / 20.5)
    assert 2.0**-129 < tail < 2.0**-127


@pytest.mark.parametrize(
    ("k", "j", "width", "q"),
    [(0, 1, 1, Fraction(1)), (1, 3, 2, Fraction(1, 7)), (200, 5, 3, Fraction(1, 512)), (1000, 1, 1, Fraction(1, 1800))],
)
def test_a_candidate_is_accepted_with_the_probability_of_its_rest(
    k: int, j: int, width: int, q: Fraction, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small k: an integer f equal to 2k decides; large k or q: several coins."""
    monkeypatch.setattr(sampler, "_SPAN", 1)
    n, x = 40_000, j / 2**width
    kept = sampler._accepted(np.full(n, k), np.full(n, j), width, q, os.urandom).sum()
    p = math.exp(-float(q) * x * (2 * k + x))
    assert stats.binomtest(int(kept), n, p).pvalue > FALSE_ALARM
    assert stats.binomtest(int(kept), n, p**1.2).pvalue < FALSE_ALARM


def test_a_rational_coin_compares_all_digits() -> None:
    third = Fraction(1, 3)  # 0.010101… in binary: every word is 0x5555555555555555
    same, above, below = (bytes([b]) * 8 for b in (0x55, 0x56, 0x54))

    def coin(*pieces: bytes) -> bool:
        return bool(rational_coins(third, 1, given(*pieces))[0])

    assert [coin(below), coin(above), coin(same, below), coin(same, same, above)] == [True, False, True, False]
    half = Fraction(1, 2)  # one digit, then zeros: a tie is not below
    assert not rational_coins(half, 1, lambda size: (1 << 63).to_bytes(8, "little"))[0]


@pytest.mark.parametrize("scale", [1.3 * 2.0**45, 2.0**54])
def test_wide_noise_is_normal_to_its_last_bits(scale: float) -> None:
    draws = discrete_gaussian(50_000, scale, os.urandom)
    assert stats.kstest(draws / scale, "norm").pvalue > FALSE_ALARM
    assert stats.chisquare(np.bincount(draws & 15, minlength=16)).pvalue > FALSE_ALARM


def test_bits_of_the_noise_come_from_the_bytes_given() -> None:
    first, again = (discrete_gaussian(100, 77.7, np.random.default_rng(5).bytes) for _ in range(2))
    assert first.tolist() == again.tolist()
