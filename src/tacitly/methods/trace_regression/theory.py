"""Rates of DP-RGrad (Zha 2024) as functions, to compare results with.

Constants that the paper leaves unnamed are arguments. Its theorems assume Gaussian designs with eigenvalues of Λ
between ``lower`` and ``upper`` (C_l, C_u).
"""

from __future__ import annotations

import math

from tacitly.privacy.guarantee import check_target, positive


def start_rate(
    n: float, d1: int, d2: int, rank: int, epsilon: float, delta: float, *, largest: float = 1.0, smallest: float = 1.0,
    noise: float = 1.0, lower: float = 1.0, upper: float = 1.0, constant: float = 1.0,
) -> float:  # fmt: skip
    """Return Theorem 1's ‖M̃₀ − M‖_F of the private start, σ₁ = ``largest``, σ_r = ``smallest``, σ_ξ = ``noise``.

    This is the printed rate; the sensitivity behind its second term lacks a factor √(d₁ + d₂).

    >>> start_rate(4e4, 40, 40, 2, 1.0, 1e-6) < start_rate(1e4, 40, 40, 2, 1.0, 1e-6)
    True
    """
    positive(n=n)
    check_target(epsilon, delta)
    d, condition = max(d1, d2), largest / smallest
    level = (math.sqrt(upper * rank) * largest + noise) / math.sqrt(lower)
    statistical = condition * math.sqrt(d * math.log(d1 + d2) / n)
    privacy = (condition * math.sqrt(rank * d) + rank) / (n * epsilon) * math.log(n) * math.sqrt(math.log(3.75 / delta))
    return constant * math.sqrt(2 * rank) * level * (statistical + privacy)


def loop_rate(
    n: float, d1: int, d2: int, rank: int, epsilon: float, delta: float, *, smallest: float = 1.0, noise: float = 1.0,
    upper: float = 1.0, weak: bool = False, constant: float = 1.0,
) -> tuple[float, float]:  # fmt: skip
    """Return Theorem 3's statistical and privacy terms of ‖M̃ − M‖_F; ``weak``: label privacy only (Theorem 7).

    >>> [round(term, 4) for term in loop_rate(4e4, 40, 40, 2, math.inf, 1e-6, noise=0.5)]
    [0.0662, 0.0]
    """
    positive(n=n)
    check_target(epsilon, delta)
    size = rank * (d1 + d2)
    level = noise if weak else noise + smallest * math.sqrt(upper)
    statistical = noise * math.sqrt(upper * size / n * math.log(d1 + d2))
    logs = math.log(n) ** 1.5 * math.sqrt(math.log(1.25 * math.log(n) / delta))
    return constant * statistical, constant * math.sqrt(upper) * level * size / (n * epsilon) * logs


def minimax_lower_bound(
    n: float, d1: int, d2: int, rank: int, epsilon: float, *, noise: float = 1.0, upper: float = 1.0,
    signal: float = math.inf, schatten: float = 2.0, constant: float = 1.0,
) -> float:  # fmt: skip
    """Return Theorem 2's lower bound on the expected Schatten-q error of any (ε, δ)-private estimator.

    Proved for δ ≤ e⁻ⁿ and replacing one observation. ``signal`` is σ, the size of the singular values.

    >>> minimax_lower_bound(4e4, 40, 40, 2, 1.0, noise=0.5).__round__(4)
    0.0234
    >>> minimax_lower_bound(4e4, 40, 40, 2, math.inf, noise=0.5, schatten=math.inf).__round__(4)
    0.0158
    """
    positive(n=n)
    if not epsilon > 0:
        raise ValueError(f"epsilon must be positive (or math.inf for no privacy). Found {epsilon!r}.")
    power, d = 0.0 if math.isinf(schatten) else 1.0 / schatten, max(d1, d2)
    error = rank**power * math.sqrt(d / n) + rank ** (0.5 + power) * d / (n * epsilon)
    return min(float(constant * noise / math.sqrt(upper) * error), float(rank**power * signal))


def paper_sensitivities(
    n: float, d1: int, d2: int, rank: int, *, largest: float = 1.0, smallest: float = 1.0, noise: float = 1.0,
    length: float = 0.75, lower: float = 1.0, upper: float = 1.0, constant: float = 1.0,
) -> tuple[float, float, float]:  # fmt: skip
    """Return Δ⁽¹⁾, Δ⁽²⁾ (Theorem 1) and Δ_l (Theorem 3) for ``mode="paper"``. They are not worst-case bounds.

    >>> [round(value, 4) for value in paper_sensitivities(1e4, 10, 10, 2, noise=0.5)]
    [0.0025, 0.0025, 0.0022]
    """
    second = (
        constant * (math.sqrt(upper * rank) * largest + noise) / math.sqrt(lower) * math.sqrt(rank) / n * math.log(n)
    )
    level = noise + smallest * math.sqrt(upper)
    step = constant * length / n * level * math.sqrt(upper * rank * (d1 + d2) * math.log(n))
    return second / smallest, second, step
