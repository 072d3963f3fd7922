"""CENTAUR (Shen et al. 2023): its theorems for linear models as functions.

Symbols: n users, d features, rank k; s₁ ≥ … ≥ s_k (``largest``, ``smallest``) are the singular values of W*/√n, the
matrix of true heads; κ = s₁/s_k; μ (``incoherence``) bounds heads by ‖w‖ ≤ μ√k·s_k. Labels have no noise. Constants
that the paper leaves unnamed are the argument ``constant``, so a value is a rate and not a prediction.
"""

from __future__ import annotations

import math

from tacitly.privacy.accounting import epsilon_of
from tacitly.privacy.guarantee import positive


def step_size(*, largest: float = 1.0) -> float:
    """Return Theorem 5.1's step η = 1/(4 s₁²).

    >>> step_size(largest=2.0)
    0.0625
    """
    positive(largest=largest)
    return 1 / (4 * largest**2)


def clip_norm(
    n: float, d: int, k: int, *, smallest: float = 1.0, incoherence: float = 1.0, constant: float = 1.0
) -> float:
    """Return ζ = c μ² k s_k² √(d k log n), which no gradient exceeds with high probability (Lemma C.1).

    The bound concerns utility only: clipping makes the guarantee hold for any data.

    >>> round(clip_norm(1000, 50, 2), 2)
    52.57
    """
    positive(n=n, smallest=smallest, incoherence=incoherence)
    return constant * incoherence**2 * k * smallest**2 * math.sqrt(d * k * math.log(n))


def utility(
    n: float, d: int, k: int, noise: float, *, smallest: float = 1.0, incoherence: float = 1.0,
    largest: float = 1.0, constant: float = 1.0,
) -> float:  # fmt: skip
    """Return Theorem 5.1's bound on dist(B, B*): c κ² η σ ζ √d/n, with noise multiplier σ = ``noise``.

    κ cancels: it equals (c/4)·σ μ² k^1.5 d √(log n)/n, the second form that the theorem prints.

    >>> round(utility(20_000, 50, 2, 10.0), 4)
    0.0556
    """
    positive(noise=noise)
    condition = largest / smallest
    clip = clip_norm(n, d, k, smallest=smallest, incoherence=incoherence)
    return constant * condition**2 * step_size(largest=largest) * noise * clip * math.sqrt(d) / n


def noise_limit(
    n: float, d: int, k: int, *, incoherence: float = 1.0, condition: float = 1.0, printed: bool = False,
    constant: float = 1.0,
) -> float:  # fmt: skip
    """Return the largest noise multiplier for which Theorem 5.1 holds: c n/(μ² k^1.5 d √(log n)).

    Flaw: the paper prints c n κ⁴/(μ² d √(k log n)) (``printed=True``), which would allow *more* noise for badly
    conditioned heads. The proof needs the noise floor of its equation 22 to stay below ε₀ = 0.2; κ cancels there, and
    a factor k is missing.

    >>> round(noise_limit(20_000, 50, 2), 1), round(noise_limit(20_000, 50, 2, printed=True), 1)
    (44.9, 89.9)
    """
    positive(n=n, incoherence=incoherence, condition=condition)
    if printed:
        return constant * n * condition**4 / (incoherence**2 * d * math.sqrt(k * math.log(n)))
    return constant * n / (incoherence**2 * math.pow(k, 1.5) * d * math.sqrt(math.log(n)))


def rounds(floor: float, *, condition: float = 1.0, start: float = 0.2) -> int:
    """Return Theorem 5.1's number of rounds T: (16 κ²/E₀) log(ε₀/floor), E₀ = √(1 − ε₀²).

    After these rounds the initial error is negligible. Flaw: the paper prints T = c κ² log(κ η ζ σ d/n), the logarithm
    of the floor itself, which is negative wherever the theorem is informative. This function returns the number that
    follows from its recursion (22).

    >>> rounds(0.01), rounds(0.01, condition=2.0)
    (49, 196)
    """
    positive(floor=floor, condition=condition)
    contraction = math.sqrt(1 - start**2) / (8 * condition**2)
    return max(1, math.ceil(2 / contraction * math.log(start / floor)))


def printed_epsilon(noise: float, rounds: int, delta: float) -> float:
    """Return Theorem 5.2's ε = 2 √(T log(1/δ))/σ for T rounds with noise multiplier σ.

    Flaw: it is too small. (α, 4αT/σ²)-RDP gives 4T/σ² + 4 √(T log(1/δ))/σ; :func:`true_epsilon` is the exact value.

    >>> round(printed_epsilon(20.0, 100, 1e-5), 2), round(true_epsilon(20.0, 100, 1e-5), 2)
    (3.39, 4.38)
    """
    positive(noise=noise, delta=delta)
    return 2 * math.sqrt(rounds * math.log(1 / delta)) / noise


def true_epsilon(noise: float, rounds: int, delta: float, *, replace_one: bool = True) -> float:
    """Return the exact ε of T rounds: μ = 2√T/σ if a user is replaced (the paper's relation), √T/σ under zero-out.

    >>> round(true_epsilon(20.0, 100, 1e-5, replace_one=False), 2)
    1.99
    """
    positive(noise=noise, delta=delta)
    return epsilon_of((2 if replace_one else 1) * math.sqrt(rounds) / noise, delta)


def rdp(noise: float, rounds: int, order: float) -> float:
    """Return the loop's Rényi divergence in the proof of Theorem 5.2 (Appendix A.4), 2αT/σ² (sensitivity 2ζ).

    Flaw: Remark 4.1 gives αT/(2σ²) for the same algorithm (sensitivity ζ); the experiments were run with the latter.

    >>> rdp(20.0, 100, 2.0)
    1.0
    """
    positive(noise=noise, order=order)
    return 2 * order * rounds / noise**2


def tradeoff(
    n: float, d: int, k: int, *, condition: float = 1.0, incoherence: float = 1.0, constant: float = 1.0
) -> float:
    """Return Corollary 5.1's least product ε_a·ε_dp = c κ k^1.5 μ² d/n of error and budget.

    >>> round(tradeoff(20_000, 50, 2), 5)
    0.00707
    """
    positive(n=n, condition=condition, incoherence=incoherence)
    return constant * condition * math.pow(k, 1.5) * incoherence**2 * d / n


def least_epsilon(
    n: float, d: int, k: int, *, condition: float = 1.0, incoherence: float = 1.0, constant: float = 1.0
) -> float:
    """Return Corollary 5.1's least ε: c μ² d √k/(κ³ n), from the noise that Theorem 5.1 allows.

    Flaw: it inherits the power of κ of the printed noise limit; see :func:`noise_limit`.

    >>> round(least_epsilon(20_000, 50, 2), 5)
    0.00354
    """
    positive(n=n, condition=condition, incoherence=incoherence)
    return constant * incoherence**2 * d * math.sqrt(k) / (condition**3 * n)


def start_settings(
    n: float, d: int, k: int, *, spectrum: tuple[float, ...] = (), incoherence: float = 1.0, accuracy: float = 0.01,
    constant: float = 1.0,
) -> tuple[float, int, float]:  # fmt: skip
    """Return Lemma F.1's clip ζ₀, rounds L and noise multiplier σ₀ of one private power method.

    ζ₀ = c μ² k^1.5 s_k² √d log n (√(log n) + √k), L = c (s_k² + Σ s_j²)/s_k² · log(kd/ε_i), and
    σ₀ = n s_k²/(c ζ₀ k √(d log L)). ``spectrum`` is s₁ … s_k; empty: all one.

    Flaw: Lemma F.2 charges αL/σ₀² for it, which is neither the value for add/remove (half of it) nor replace-one
    (twice).

    >>> [round(value, 2) for value in start_settings(1_000_000, 20, 2)]
    [896.69, 25, 69.5]
    """
    positive(n=n, incoherence=incoherence, accuracy=accuracy)
    squares = [s**2 for s in spectrum or (1.0,) * k]
    last, log = squares[-1], math.log(n)
    clip = constant * incoherence**2 * k**1.5 * last * math.sqrt(d) * log * (math.sqrt(log) + math.sqrt(k))
    steps = math.ceil(constant * (last + sum(squares)) / last * math.log(k * d / accuracy))
    noise = n * last / (constant * clip * k * math.sqrt(d * math.log(steps)))
    return clip, steps, noise


def start_rows(
    d: int, k: int, *, spectrum: tuple[float, ...] = (), incoherence: float = 1.0, constant: float = 1.0
) -> float:
    """Return Lemma F.1's least m·n/log⁶(m·n) rows in all: c d log⁶(d) k³ μ² Σ s_i²/s_k² (equation 66).

    >>> round(start_rows(10, 1))
    1490
    """
    positive(d=d, incoherence=incoherence)
    squares = [s**2 for s in spectrum or (1.0,) * k]
    return constant * d * math.log(d) ** 6 * k**3 * incoherence**2 * sum(squares) / squares[-1]


def start_copies(failure: float, *, success: float = 0.99) -> int:
    """Return Lemma F.3's number of copies T₀ = 8 p log(1/δ), of which a good one is chosen with probability 1 − δ.

    Each copy is charged: T₀ copies need √T₀ times the noise at the same ε. The choice is post-processing.

    >>> start_copies(1e-3)
    55
    """
    positive(failure=failure, success=success)
    return math.ceil(8 * success * math.log(1 / failure))


def start_is_accepted(single: float, wanted: float) -> bool:
    """Return whether the accuracy ε_i of copies is sufficient to choose one for ε₀ (Lemma F.3, equation 69).

    >>> start_is_accepted(0.01, 0.2), start_is_accepted(0.1, 0.2)
    (True, False)
    """
    return math.sqrt(1 - wanted**2) + 1 - math.sqrt(1 - single**2) + single < 1 - 2 * single**2
