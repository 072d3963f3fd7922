"""The discrete Gaussian, drawn for many coordinates at once: integers and random bits, no floating-point arithmetic.

A draw y has probability proportional to exp(−y²/2s²) on the integers. Write |y| = kT + j with T = 2^t, about s/16 to
s/32 (T = 1 for small s), 0 ≤ j < T, x = j/T and q = T²/2s², a rational number because s is a float. One candidate:

1. k with probability proportional to exp(−qk²); j uniform; a sign. A negative zero is rejected.
2. It is accepted with probability exp(−γ), γ = qx(2k + x).

Equal in law: exp(−qk²)·exp(−qx(2k + x)) = exp(−q(k + x)²) = exp(−y²/2s²), j and the sign are uniform, and without the
negative zero every integer is one candidate. Candidates are independent, so the accepted ones are independent draws.

*Step 1 is exact.* U, uniform on [0, 1), is compared with the distribution function of k. Its values are enclosed in
integers, with directed rounding; the first 64 bits of U decide unless they fall into an enclosure (probability about
2⁻⁵⁶). Then U gets 64 more bits and the enclosures 64 more, until it is decided.

*Step 2 is exact.* Let A₁, A₂, … be independent coins, Aₙ true with probability g/n, and N the first n with Aₙ false.
Pr[N > n] = gⁿ/n!, so N is odd with probability 1 − g + g²/2 − … = exp(−g) (Canonne, Kamath & Steinke 2020). A coin of
probability g/n, where g = γ/m, is the conjunction of three independent ones, each of them drawn exactly:
x, which is a t-bit integer below j; (2k + x)/2K, which is an integer f below 2K that is less than 2k, or equal to 2k
while another coin of probability x is true; and 2Kq/mn, a rational constant, by its binary digits. K is a power of
two above every k, and m the least integer with 2Kq ≤ m; m independent acceptances have probability exp(−γ).

What is compared is public or random: neither the sum nor anything else private enters here.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal, localcontext
from fractions import Fraction
from functools import lru_cache

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]
RandomBytes = Callable[[int], bytes]

_STEPS = 4  # s/T is at least 2^4, so that 98 of 100 candidates are accepted
_SPAN = 256  # K, unless some k is larger: beyond 8 standard deviations
_WORD = 64
_SPARE = 64  # bits of working precision beyond those of the enclosures
_BLOCK = 1 << 15  # candidates at once: what they need stays in cache


def discrete_gaussian(size: int, scale: float, random_bytes: RandomBytes) -> Integers:
    """Return independent draws from the discrete Gaussian with parameter s = ``scale``.

    >>> discrete_gaussian(5, 50.0, np.random.default_rng(0).bytes)
    array([44, 17, -2, -1, 67])
    """
    drawn, found = np.empty(size, dtype=np.int64), 0
    while found < size:
        some = _candidates(min(_BLOCK, size - found), scale, random_bytes)
        drawn[found : found + len(some)] = some
        found += len(some)
    return drawn


def _candidates(size: int, scale: float, random_bytes: RandomBytes) -> Integers:
    """Return those of ``size`` candidates that are accepted."""
    width = max(0, math.frexp(scale)[1] - 1 - _STEPS)  # t
    q = Fraction(1 << 2 * width, 2) / Fraction(scale) ** 2
    k = _steps(size, q, random_bytes)
    rest = _uniform(size, width + 1, random_bytes)
    negative, j = (rest & 1).astype(bool), rest >> 1
    kept = ~(negative & (k == 0) & (j == 0))
    if width:
        kept &= _accepted(k, j, width, q, random_bytes)
    return np.asarray(np.where(negative, -1, 1)[kept] * ((k << width) + j)[kept], dtype=np.int64)


def _steps(size: int, q: Fraction, random_bytes: RandomBytes) -> Integers:
    """Draw k ≥ 0 with probability proportional to exp(−qk²)."""
    low, high = _word_table(q)
    words = np.frombuffer(random_bytes(8 * size), dtype=np.uint64)
    k = np.searchsorted(high, words, side="right")
    for i in np.flatnonzero(low[k] <= words):
        k[i] = _decided(int(words[i]), q, random_bytes)
    return k


def _decided(word: int, q: Fraction, random_bytes: RandomBytes) -> int:
    """Return k for a uniform number whose first 64 bits are known, drawing more until they decide."""
    bits = _WORD
    while True:
        bits, word = bits + _WORD, word << _WORD | int.from_bytes(random_bytes(_WORD // 8), "little")
        low, high = thresholds(q, bits)
        k = bisect_right(high, word)
        if word < low[k]:
            return k


@lru_cache(maxsize=64)
def _word_table(q: Fraction) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    low, high = thresholds(q, _WORD)
    return np.array(low, dtype=np.uint64), np.array(high, dtype=np.uint64)


def thresholds(q: Fraction, bits: int) -> tuple[list[int], list[int]]:
    """Return integers ``low[k]`` ≤ 2^bits·Pr[at most k] ≤ ``high[k]``, while they are below 2^bits; then a low of 0.

    A uniform number whose first bits are ``word`` exceeds threshold k for certain if ``high[k] <= word``, and for
    certain not if ``word < low[k]``. The last low decides nothing: beyond the list, more bits are needed.
    """
    work = bits + _SPARE
    one = 1 << work
    ratio_low, ratio_high = _exponential(q, work)  # exp(−q(2k + 1)), the ratio of successive weights
    square_low, square_high = ratio_low**2 >> work, (ratio_high**2 >> work) + 1
    low = high = 0
    weight_low = weight_high = one
    sums: list[tuple[int, int]] = []
    while True:
        low, high = low + weight_low, high + weight_high
        sums.append((low, high))
        weight_low, weight_high = weight_low * ratio_low >> work, (weight_high * ratio_high >> work) + 1
        ratio_low, ratio_high = ratio_low * square_low >> work, (ratio_high * square_high >> work) + 1
        rest = (weight_high << work) // (one - ratio_high) + 1  # all further weights: a geometric series bounds them
        if rest >> _SPARE // 2 == 0:
            break
    lows = [(below << bits) // (high + rest) for below, _ in sums]
    highs = [-((-above << bits) // low) for _, above in sums]
    size = bisect_right(highs, (1 << bits) - 1)
    return [*lows[:size], 0], highs[:size]


def _exponential(q: Fraction, bits: int) -> tuple[int, int]:
    """Return integers below and above 2^bits·exp(−q). Decimal's exp is rounded correctly: within one unit."""
    with localcontext() as context:
        context.prec = math.ceil(bits * math.log10(2)) + 10
        numerator, denominator = Decimal(q.numerator), Decimal(q.denominator)
        context.rounding = ROUND_CEILING
        low = Fraction(max(Decimal(0), (-(numerator / denominator)).exp().next_minus()))
        context.rounding = ROUND_FLOOR
        high = Fraction((-(numerator / denominator)).exp().next_plus())
    return math.floor(low * (1 << bits)), math.ceil(high * (1 << bits))


def _accepted(k: Integers, j: Integers, width: int, q: Fraction, random_bytes: RandomBytes) -> npt.NDArray[np.bool_]:
    """Return for each candidate an independent coin of probability exp(−γ)."""
    span = max(_SPAN, 1 << int(k.max()).bit_length())
    times = math.ceil(2 * span * q)
    kept = np.ones(len(k), dtype=bool)
    for _ in range(times):
        kept &= _exponential_coins(k, j, width, span, 2 * span * q / times, random_bytes)
    return kept


def _exponential_coins(
    k: Integers, j: Integers, width: int, span: int, constant: Fraction, random_bytes: RandomBytes
) -> npt.NDArray[np.bool_]:
    """Return coins of probability exp(−g), g = constant·x(2k + x)/2K, by whether the first false coin is an odd one."""
    odd = np.ones(len(k), dtype=bool)
    left, n = np.arange(len(k)), 0
    while len(left):
        n += 1
        f = _uniform(len(left), (2 * span).bit_length() - 1, random_bytes) - 2 * k[left]
        left, edge = left[f <= 0], (f == 0)[f <= 0]
        true = _uniform(len(left), width, random_bytes) < j[left]
        true[edge] &= _uniform(int(edge.sum()), width, random_bytes) < j[left[edge]]
        left = left[true]
        left = left[rational_coins(constant / n, len(left), random_bytes)]
        odd[left] = ~odd[left]
    return odd


def rational_coins(p: Fraction, size: int, random_bytes: RandomBytes) -> npt.NDArray[np.bool_]:
    """Return coins of probability p ≤ 1: the binary digits of a uniform number are compared with those of p.

    >>> rational_coins(Fraction(1), 3, bytes).all(), rational_coins(Fraction(0), 3, bytes).any()
    (np.True_, np.False_)
    """
    if p == 1:
        return np.ones(size, dtype=bool)
    digits, rest = divmod(p.numerator << _WORD, p.denominator)
    words = np.frombuffer(random_bytes(8 * size), dtype=np.uint64)
    true, equal = words < np.uint64(digits), words == np.uint64(digits)
    if rest and equal.any():
        true[equal] = rational_coins(Fraction(rest, p.denominator), int(equal.sum()), random_bytes)
    return true


def _uniform(size: int, bits: int, random_bytes: RandomBytes) -> Integers:
    """Return uniform integers of at most 62 bits."""
    kind = np.dtype(np.uint16 if bits <= 16 else np.uint64)
    words = np.frombuffer(random_bytes(kind.itemsize * size), dtype=kind)
    return (words >> kind.type(8 * kind.itemsize - bits)).astype(np.int64)
