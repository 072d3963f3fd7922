"""Private FedRep (Snedeker et al. 2025) and the rate it compares with (Jain et al. 2021) as functions.

Symbols: n users with m rows each, d features, rank k; Γ (``head``) bounds the norms of heads, R (``noise``) is the
labels' sub-Gaussian noise; σ_max,* ≥ σ_min,* (``largest``, ``smallest``) are the singular values of V*/√n, and Λ, λ are
taken to be these two. The paper's Õ(·) hides logarithms and constants: both are the argument ``constant``.
"""

from __future__ import annotations

import math

from tacitly.privacy.accounting import epsilon_of
from tacitly.privacy.guarantee import check_target, positive


def gradient_norm(
    n: float, d: int, k: int, *, rows: int = 1, head: float = 1.0, noise: float = 1.0, constant: float = 82.0
) -> float:
    """Return Lemma 7's bound on a user's gradient: 82 (R + Γ) Γ √(dk) log(nb), b = ``rows`` in the batch.

    The lemma prints Õ(·); the constant is from the proof. It is a bound for utility: 82 is far above typical values
    (Figure 1 uses ψ = 10, while this bound is 8,118 · (R + Γ)Γ).

    >>> round(gradient_norm(20_000, 50, 2, noise=0.0))
    8121
    """
    positive(n=n, head=head)
    return constant * (noise + head) * head * math.sqrt(d * k) * math.log(n * rows)


def noise_scale(
    n: float, clip: float, rounds: int, epsilon: float, delta: float, *, constant: float = 4.0, failure: float = 1.25
) -> float:
    """Return Theorem 8's σ̂ = C ψ √(T log(1.25/δ))/(nε) of a round's average gradient.

    Flaws: C is never fixed (the proof of Proposition 29 uses √2, the experiments 4); the sensitivity under the paper's
    own replace-one relation is 2ψ/n, not ψ/n; and ρ + √(ρ log(1/δ)) in the proof lacks a factor 2.
    :func:`true_epsilon` returns the ε that the noise really guarantees.

    >>> sigma = noise_scale(20_000, 10.0, 5, 1.0, 1e-6)
    >>> round(true_epsilon(20_000, 10.0, 5, sigma, 1e-6), 2)
    0.54
    """
    check_target(epsilon, delta)
    positive(n=n, clip=clip, rounds=rounds)
    return constant * clip * math.sqrt(rounds * math.log(failure / delta)) / (n * epsilon)


def true_epsilon(n: float, clip: float, rounds: int, sigma: float, delta: float, *, replace_one: bool = True) -> float:
    """Return the exact ε of T rounds with noise ``sigma`` on the average of n clipped gradients.

    >>> round(true_epsilon(20_000, 10.0, 5, 0.0167, 1e-6, replace_one=False), 2)
    0.26
    """
    positive(n=n, clip=clip, sigma=sigma)
    return epsilon_of((2 if replace_one else 1) * math.sqrt(rounds) * clip / (n * sigma), delta)


def rounds(n: float, *, largest: float = 1.0, smallest: float = 1.0, constant: float = 1.0) -> int:
    """Return Theorem 10's T = c (Λ/λ)² log(n³).

    Flaw: with batches b = ⌊m/2T⌋ this needs m ≥ 2Tk rows for each head to be determined; Figure 1 has m = 10 and
    T = 5, so b = 1 < k = 2.

    >>> rounds(20_000)
    30
    """
    positive(n=n, largest=largest, smallest=smallest)
    return math.ceil(constant * (largest / smallest) ** 2 * math.log(n**3))


def distance(
    n: float, rows: float, d: int, k: int, epsilon: float, *, start: float = 0.0, rounds: int = 1, head: float = 1.0,
    noise: float = 1.0, largest: float = 1.0, smallest: float = 1.0, constant: float = 1.0,
) -> tuple[float, float, float]:  # fmt: skip
    """Return Lemma 9's three terms of dist(U, U*): remaining initial error, privacy, and sampling.

    (1 − cησ²_min/4)^(T/2) dist₀ with η = 1/(2σ²_max) and c = 1 − dist₀²; (R + Γ)Γ d √(kT)/(nεσ²_min);
    √((R² + Γ²)Γ² dT/(nmσ⁴_min)). Flaw: the privacy term omits √log(1/δ), which Theorem 8's noise has.

    >>> [round(term, 4) for term in distance(20_000, 10, 50, 2, 1.0, start=0.5, rounds=5, noise=0.0)]
    [0.3909, 0.0079, 0.0354]
    """
    positive(n=n, rows=rows, epsilon=epsilon, smallest=smallest)
    left = (1 - (1 - start**2) * (smallest / largest) ** 2 / 8) ** (rounds / 2) * start
    privacy = (noise + head) * head * d * math.sqrt(k * rounds) / (n * epsilon * smallest**2)
    sampling = math.sqrt((noise**2 + head**2) * head**2 * d * rounds / (n * rows)) / smallest**2
    return left, constant * privacy, constant * sampling


def excess_risk(
    n: float, rows: float, d: int, k: int, epsilon: float, *, new_rows: float | None = None, head: float = 1.0,
    noise: float = 1.0, largest: float = 1.0, smallest: float = 1.0, constant: float = 1.0,
) -> tuple[float, float, float]:  # fmt: skip
    """Return Theorem 10's terms of the excess risk: privacy, sampling of the basis, and the heads' own R²k/m.

    (R² + Γ²)Γ⁴Λ²d²k/(n²ε²σ⁴λ²), (R² + Γ²)Γ⁴Λ²d/(nmσ⁴λ²), R²k/m; with ``new_rows`` = m' the last is R²k/m', a new
    client's (Corollary 11), which has no privacy cost.

    >>> [f"{term:.1e}" for term in excess_risk(20_000, 10, 50, 2, 1.0, noise=0.01)]
    ['1.3e-05', '2.5e-04', '2.0e-05']
    """
    positive(n=n, rows=rows, epsilon=epsilon, smallest=smallest)
    level = (noise**2 + head**2) * head**4 * (largest / smallest) ** 2 / smallest**4
    own = noise**2 * k / (rows if new_rows is None else new_rows)
    return constant * level * d**2 * k / (n * epsilon) ** 2, constant * level * d / (n * rows), own


def jain_excess_risk(
    n: float, rows: float, d: int, k: int, epsilon: float, *, noise: float = 1.0, smallest: float = 1.0,
    constant: float = 1.0,
) -> tuple[float, float, float]:  # fmt: skip
    """Return the terms of Priv-AltMin's excess risk (Jain et al. 2021), as Private FedRep quotes them for Γ = R = 1.

    d³k²/(n²ε²σ⁴), d/(nmσ⁴), k/m: the privacy term is dk times that of Theorem 10. Flaw of the paper's comparison:
    Figure 1 runs Priv-AltMin with m times the noise that it needs and a ridge penalty 50 times its signal.

    >>> ours, theirs = excess_risk(1e4, 10, 50, 2, 1.0)[0], jain_excess_risk(1e4, 10, 50, 2, 1.0)[0]
    >>> round(2 * theirs / ours)  # the 2 is R² + Γ²
    100
    """
    positive(n=n, rows=rows, epsilon=epsilon, smallest=smallest)
    privacy = d**3 * k**2 / (n * epsilon) ** 2 / smallest**4
    return constant * privacy, constant * d / (n * rows) / smallest**4, noise**2 * k / rows


def start_distance(
    n: float, rows: float, d: int, epsilon: float, *, head: float = 1.0, noise: float = 1.0, smallest: float = 1.0,
    constant: float = 1.0,
) -> tuple[float, float]:  # fmt: skip
    """Return Lemma 12's terms of dist(U_init, U*): privacy (R² + Γ²)d^1.5/(nεσ²), sampling √((R² + Γ²)Γ²d/(mnσ⁴)).

    Flaw: Algorithm 2's noise uses ψ/n although replacing a user moves the average by 2ψ/n (the exact ε is 1.66 for a
    claim of 1), and the appendix loses another factor √2 (2.42).

    >>> [round(term, 4) for term in start_distance(20_000, 10, 50, 1.0, noise=0.0)]
    [0.0177, 0.0158]
    """
    positive(n=n, rows=rows, epsilon=epsilon, smallest=smallest)
    level = noise**2 + head**2
    privacy = level * d**1.5 / (n * epsilon * smallest**2)
    return constant * privacy, constant * math.sqrt(level * head**2 * d / (rows * n)) / smallest**2


def margin_risk(
    n: float, rows: float, k: int, epsilon: float, margin: float, *, radius: float = 1.0, head: float = 1.0,
    constant: float = 1.0,
) -> tuple[float, float]:  # fmt: skip
    """Return Theorem 17's terms above the best margin loss: r²Γ²k/(nερ²) and √(r²Γ²/(mρ²)). Neither depends on d.

    Flaw: the cover that it searches has (√k/γ)^(k'k) members (:func:`log_cover_size`), so Algorithm 3 cannot be run as
    stated; the proof bounds the 0-1 loss, but the algorithm scores the margin loss.

    >>> [round(term, 4) for term in margin_risk(2000, 20, 2, 1.0, 0.5)]
    [0.004, 0.4472]
    """
    positive(n=n, rows=rows, epsilon=epsilon, margin=margin)
    scale = (radius * head / margin) ** 2
    return constant * scale * k / (n * epsilon), constant * math.sqrt(scale / rows)


def projected_dimension(
    n: float, rows: float, margin: float, failure: float, *, radius: float = 1.0, head: float = 1.0,
    constant: float = 1.0,
) -> int:  # fmt: skip
    """Return Algorithm 3's k' = c r²Γ² log(nm/β)/ρ². Flaw: the algorithm prints δ for β, a failure probability.

    >>> projected_dimension(2000, 20, 0.5, 0.05)
    55
    """
    positive(n=n, rows=rows, margin=margin, failure=failure)
    return math.ceil(constant * (radius * head / margin) ** 2 * math.log(n * rows / failure))


def log_cover_size(dimension: int, k: int, mesh: float) -> float:
    """Return the natural logarithm of the size of Algorithm 3's cover, (√k/γ)^(k'k): it is too large to enumerate.

    >>> round(log_cover_size(50, 2, 0.1) / math.log(10))
    115
    """
    positive(mesh=mesh)
    return dimension * k * math.log(math.sqrt(k) / mesh)
