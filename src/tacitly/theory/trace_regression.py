"""DP-RGrad (Zha 2024): its rates, lower bounds and sample sizes as functions.

Symbols: n observations of a d₁×d₂ matrix of rank r with singular values σ₁ ≥ … ≥ σ_r (``largest``, ``smallest``), label
noise σ_ξ (``noise``). Constants that the paper leaves unnamed are arguments. Its theorems assume Gaussian designs with
eigenvalues of Λ between ``lower`` and ``upper`` (C_l, C_u). Its sensitivities hold for typical data only, and the first
lacks a factor √(d₁ + d₂): rates are valid statements about utility, not about privacy.
"""

from __future__ import annotations

import math

from tacitly.privacy.guarantee import check_target, positive


def start_rate(
    n: float, d1: int, d2: int, rank: int, epsilon: float, delta: float, *, largest: float = 1.0, smallest: float = 1.0,
    noise: float = 1.0, lower: float = 1.0, upper: float = 1.0, weak: bool = False, constant: float = 1.0,
) -> float:  # fmt: skip
    """Return Theorem 1's ‖M̃₀ − M‖_F of the private start; ``weak``: label privacy only (Theorem 6).

    This is the printed rate; the sensitivity behind its second term lacks a factor √(d₁ + d₂).

    >>> start_rate(4e4, 40, 40, 2, 1.0, 1e-6) < start_rate(1e4, 40, 40, 2, 1.0, 1e-6)
    True
    >>> start_rate(4e4, 40, 40, 2, 1.0, 1e-6, weak=True) < start_rate(4e4, 40, 40, 2, 1.0, 1e-6)
    True
    """
    positive(n=n)
    check_target(epsilon, delta)
    d, condition = max(d1, d2), largest / smallest
    level = (math.sqrt(upper * rank) * largest + noise) / math.sqrt(lower)
    moved = noise / math.sqrt(lower) if weak else level
    statistical = condition * math.sqrt(d * math.log(d1 + d2) / n)
    privacy = (condition * math.sqrt(rank * d) + rank) / (n * epsilon) * math.log(n) * math.sqrt(math.log(3.75 / delta))
    return constant * math.sqrt(2 * rank) * (level * statistical + moved * privacy)


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


def score_attack_lower_bound(
    n: float, d1: int, d2: int, rank: int, epsilon: float, *, delta: float = 0.0, noise: float = 1.0,
    constant: float = 1.0,
) -> float:  # fmt: skip
    """Return Theorem 5's lower bound on E‖M̃ − M‖²_F (squared): σ_ξ² (r d/n + r² d²/(nε)²), d = max(d₁, d₂).

    It holds for δ ≤ n^−(1+γ), γ > 0, while Theorem 2 needs δ ≤ e⁻ⁿ; for ε < 1 and rd ≤ nε. Flaw: the text announces it
    for δ ≤ n^(1+γ), which holds for every δ.

    >>> round(score_attack_lower_bound(4e4, 40, 40, 2, 0.9, delta=1e-6, noise=0.5) ** 0.5, 4)
    0.0224
    """
    positive(n=n)
    d = max(d1, d2)
    if not 0 < epsilon < 1 or rank * d > n * epsilon:
        raise ValueError(
            "Theorem 5 needs 0 < epsilon < 1 and rank·max(d1, d2) at most n·epsilon. "
            f"Found epsilon {epsilon!r}, rank·d {rank * d} and n·epsilon {n * epsilon:.3g}."
        )
    if not delta < 1 / n:
        raise ValueError(f"Theorem 5 needs delta below 1/n = {1 / n:.3g}. Found {delta!r}.")
    return constant * noise**2 * (rank * d / n + (rank * d / (n * epsilon)) ** 2)


def start_sample_sizes(
    d1: int, d2: int, rank: int, epsilon: float, delta: float, *, n: float, largest: float = 1.0, smallest: float = 1.0,
    noise: float = 1.0, lower: float = 1.0, upper: float = 1.0, weak: bool = False, constant: float = 1.0,
) -> tuple[float, float, float]:  # fmt: skip
    """Return n₀ (Theorem 1), n₁ and n₂ (Corollary 1; ``weak``: Corollary 2): sample sizes for a start near M.

    n₀ = C_l⁻¹ r a² d log(d₁ + d₂), n₁ = κ² n₀, n₂ = C_l^−½ a (κ r √d + r^1.5) log n √log(3.75/δ)/ε, with
    a = (σ_ξ + √(C_u r) σ₁)/σ_r (``weak``: σ_ξ/σ_r in n₂) and κ = σ₁/σ_r. n₂ contains log n, so n is an argument. Flaw:
    n₂ follows from the sensitivity that lacks √(d₁ + d₂).

    >>> [round(size) for size in start_sample_sizes(40, 40, 2, 1.0, 1e-6, n=4e4, noise=0.5)]
    [1285, 1285, 1221]
    """
    positive(n=n, smallest=smallest)
    check_target(epsilon, delta)
    d, condition = max(d1, d2), largest / smallest
    ratio = (noise + math.sqrt(upper * rank) * largest) / smallest
    zeroth = rank * ratio**2 * d * math.log(d1 + d2) / lower
    moved = noise / smallest if weak else ratio
    logs = math.log(n) * math.sqrt(math.log(3.75 / delta))
    second = moved / math.sqrt(lower) * (condition * rank * math.sqrt(d) + rank**1.5) * logs / epsilon
    return constant * zeroth, constant * condition**2 * zeroth, constant * second


def loop_sample_sizes(
    d1: int, d2: int, rank: int, epsilon: float, delta: float, *, n: float, smallest: float = 1.0, noise: float = 1.0,
    upper: float = 1.0, length: float = 0.75, weak: bool = False, constant: float = 1.0,
) -> tuple[float, float, float]:  # fmt: skip
    """Return n₃, n₄ and n₅ of Theorem 3 (``weak``: Theorem 7): sample sizes for which the loop converges.

    n₃ = r(d₁ + d₂), n₄ = η² κ_ξ² C_u r(d₁ + d₂) log(d₁ + d₂), n₅ = η √C_u (κ_ξ + √C_u) r(d₁ + d₂) log^1.5 n
    √log(1.25 log(n)/δ)/ε, with κ_ξ = σ_ξ/σ_r and η = ``length`` (``weak``: κ_ξ alone in n₅).

    >>> [round(size) for size in loop_sample_sizes(40, 40, 2, 1.0, 1e-6, n=4e4, noise=0.5)]
    [160, 99, 25144]
    """
    positive(n=n, smallest=smallest)
    check_target(epsilon, delta)
    size, ratio = rank * (d1 + d2), noise / smallest
    moved = ratio if weak else ratio + math.sqrt(upper)
    logs = math.log(n) ** 1.5 * math.sqrt(math.log(1.25 * math.log(n) / delta))
    fourth = length**2 * ratio**2 * upper * size * math.log(d1 + d2)
    return constant * size, constant * fourth, constant * length * math.sqrt(upper) * moved * size * logs / epsilon


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
