"""FedPower (Guo et al. 2021): its theorems as functions.

Symbols: σ_k (``kth``) and σ_{k+1} (``following``) are eigenvalues of M = AᵀA/n, ``largest`` is σ₁; devices have shares
p_i of the rows (``shares``); r ≥ k columns are iterated (``width``), with p local steps between communications
(``local_steps``) and T steps in total (``steps``); η (``spread``) bounds ‖M_i − M‖ by η‖M‖. Unnamed constants are the
argument ``constant``.

Privacy in these theorems is the paper's: one entry of AᵀA changes by at most 1. This protects no row and no person;
:mod:`tacitly.methods.fedpower.as_printed` gives eight reasons why the printed noise does not even guarantee that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tacitly.privacy.guarantee import check_target, positive


def iterations(kth: float, following: float, d: int, error: float, *, printed: bool = False) -> int:
    """Return Theorem 1's number of power steps: σ_k/(σ_k − σ_{k+1}) · log(d/error).

    Flaw: the theorems print σ_k/σ_{k+1} (``printed=True``), which *falls* as the gap closes. The proof (Lemma 10) has
    the difference.

    >>> iterations(2.0, 1.0, 100, 0.01), iterations(1.1, 1.0, 100, 0.01), iterations(1.1, 1.0, 100, 0.01, printed=True)
    (19, 102, 11)
    """
    positive(kth=kth, following=following, error=error)
    _check_gap(kth, following)
    ratio = kth / following if printed else kth / (kth - following)
    return math.ceil(ratio * math.log(d / error))


def noise_scale(epsilon: float, delta: float, smallest: float, rounds: int, *, likeliest: float = 1.0) -> float:
    """Return Algorithm 2's σ = R/(ε s) √(2 log(1.25 R q/δ)) for R = ⌊T/p⌋ communications.

    ``smallest`` is s, the number of rows of the smallest device.

    ``likeliest`` is max q_i, the probability that a device is drawn (Algorithm 3); 1 if all take part. Flaws: a device
    takes part with probability K/m, not 1/m, and the server knows which ones do (reason P7); the sum over R
    communications is naive composition, 4.5 times the noise that R = 10 needs.

    >>> round(noise_scale(1.0, 1e-5, 1000, 10), 4)
    0.053
    """
    check_target(epsilon, delta)
    positive(smallest=smallest, rounds=rounds, likeliest=likeliest)
    inside = 1.25 * rounds * likeliest / delta
    if inside <= 1:
        raise ValueError(
            f"1.25·R·q/δ must exceed 1, or the printed noise is undefined. Found {inside:.3g}. Use a smaller delta."
        )
    return rounds / (epsilon * smallest) * math.sqrt(2 * math.log(inside))


def full_participation(
    kth: float, following: float, *, d: int, width: int, shares: Sequence[float], noise: float, rounds: int,
    spread: float, residual: float, largest: float, constant: float = 1.0,
) -> tuple[float, float]:  # fmt: skip
    """Return Theorem 5's I₁ (noise) and I₂ (differences of devices); the sine of the angle is at most of their order.

    I₁ = σ √(Σp_i²) √r (√d + √log R)/g and I₂ = σ₁ (η + (2 + η) ρ)/g with g = (σ_k − σ_{k+1})(1 − (1 − p₁) ρ), R
    communications, ρ = ``residual`` (Theorem 6). Flaw: the printed I₂ has ρ₁ for p₁ in g.

    >>> terms = full_participation(
    ...     2.0, 1.0, d=100, width=4, shares=[0.1] * 10, noise=0.01, rounds=10, spread=0.01, residual=0.0, largest=3.0
    ... )
    >>> [round(term, 4) for term in terms]
    [0.0728, 0.03]
    """
    _check_gap(kth, following)
    gap = (kth - following) * (1 - (1 - max(shares)) * residual)
    together = math.sqrt(sum(p**2 for p in shares))
    first = noise * together * math.sqrt(width) * (math.sqrt(d) + math.sqrt(math.log(rounds)))
    return constant * first / gap, constant * largest * (spread + (2 + spread) * residual) / gap


def residual_aligned(
    spread: float, local_steps: int, *, condition: float, largest: float, gap: float, ratio: float = 0.0,
    tangent: float = 0.0,
) -> float:  # fmt: skip
    """Return Theorem 6's bound on ρ with Procrustes alignment: min(2e² κ^p p η, η σ₁/δ_k + 2 γ^(p/4) tan θ).

    ``ratio`` is γ_k = σ_{k+1}/σ_k, ``tangent`` is tan θ_k at the last communication. Flaw: Lemma 14, which proves it,
    has a factor √2 for both, and (1 + η)^(p − 1)/(1 − η)^p where the theorem has e². This function returns the lemma's
    value.

    >>> round(residual_aligned(0.001, 2, condition=2.0, largest=3.0, gap=1.0), 5)
    0.00424
    """
    positive(spread=spread, local_steps=local_steps, condition=condition, gap=gap)
    _check_spread(spread, local_steps, condition)
    p = local_steps
    few = 2 * condition**p * p * spread * (1 + spread) ** (p - 1) / (1 - spread) ** p
    many = spread * largest / gap + 2 * ratio ** (p / 4) * tangent
    return float(math.sqrt(2) * min(few, many))


def residual_unaligned(spread: float, local_steps: int, *, condition: float, k: int) -> float:
    """Return Theorem 6's bound on ρ without alignment: 4 √(2k) p κ^p η (1 + η)^(p − 1) (Lemma 15); it grows with κ^p.

    Flaw: the theorem prints 4e√k p κ^p η and loses the lemma's √2, which matters if η is near 1/p.

    >>> round(residual_unaligned(0.001, 2, condition=2.0, k=2), 4)
    0.0641
    """
    positive(spread=spread, local_steps=local_steps, condition=condition, k=k)
    _check_spread(spread, local_steps, condition)
    p = local_steps
    return 4 * math.sqrt(2 * k) * p * condition**p * spread * (1 + spread) ** (p - 1)


def sampled_with_replacement(
    kth: float, following: float, *, d: int, width: int, shares: Sequence[float], participants: int, noise: float,
    rounds: int, spread: float, residual: float, largest: float, constant: float = 1.0,
) -> tuple[float, float, float]:  # fmt: skip
    """Return Theorem 8's I₁ (noise), I₂ (differences of devices) and I₃ (sampling, scheme 1).

    φ(K) = Σ_{i≠j} p_i p_j/K + Σ p_i² + 1/K = 1/K + (1 − 1/K) Σ p_i² + 1/K. Flaw: it does not vanish as K grows, since
    Σ p_i² ≥ 1/m, so I₃ ≥ σ₁ log(d + r)/(m·gap) even if every device is drawn many times.

    >>> terms = sampled_with_replacement(
    ...     2.0, 1.0, d=100, width=4, shares=[0.1] * 10, participants=5, noise=0.01, rounds=10, spread=0.01,
    ...     residual=0.0, largest=3.0,
    ... )
    >>> [round(term, 4) for term in terms]
    [0.103, 0.03, 10.0036]
    """
    _check_gap(kth, following)
    gap = (kth - following) * (1 - residual)
    squares = sum(p**2 for p in shares)
    phi = (1 - squares) / participants + squares + 1 / participants
    first = noise / math.sqrt(participants) * math.sqrt(width) * (math.sqrt(d) + math.sqrt(math.log(rounds)))
    second = largest * (spread + (2 + spread) * residual)
    third = largest * phi * (math.log(d + width) + math.log(rounds))
    return constant * first / gap, constant * second / gap, constant * third / gap


def sampled_without_replacement(
    kth: float, following: float, *, d: int, width: int, shares: Sequence[float], participants: int, noise: float,
    rounds: int, spread: float, residual: float, largest: float, constant: float = 1.0,
) -> tuple[float, float, float, float]:  # fmt: skip
    """Return Theorem 9's I₁ … I₄ (scheme 2): noise, differences of devices, sampling, unequal sizes of devices.

    ς, ς̲ and ζ are the largest and smallest sum, and the largest sum of squares, of K shares; ψ(K) = Σ_{i≠j} p_i p_j/K
    + (1 + m/K) Σ p_i². Flaw: at K = m there is no sampling, but ψ(m) is still 1/m + (2 − 1/m)·Σ p_i² > 0.

    >>> terms = sampled_without_replacement(
    ...     2.0, 1.0, d=100, width=4, shares=[0.1] * 10, participants=5, noise=0.01, rounds=10, spread=0.01,
    ...     residual=0.0, largest=3.0,
    ... )
    >>> [round(term, 4) for term in terms]
    [0.103, 0.03, 10.0036, 0.0]
    """
    _check_gap(kth, following)
    m, ranked = len(shares), sorted(shares)
    most, least = sum(ranked[-participants:]), sum(ranked[:participants])
    heaviest, squares = sum(p**2 for p in ranked[-participants:]), sum(p**2 for p in shares)
    scale = m / participants
    gap = (kth - following) * scale * (least - most * residual)
    uneven = max(scale * most, 1.0)
    psi = (1 - squares) / participants + squares + scale * squares
    first = math.sqrt(heaviest) * scale * noise * math.sqrt(width) * (math.sqrt(d) + math.sqrt(math.log(rounds)))
    second = scale * most * largest * (spread + (2 + spread) * residual)
    third = largest * psi * (math.log(d + width) + math.log(rounds))
    fourth = most * largest * scale * abs(scale * most - 1)
    return tuple(constant * t / gap for t in (uneven * first, uneven * second, uneven * third, fourth))  # type: ignore[return-value]


def rows_per_device(spread: float, *, rank: int, devices: int, coherence: float = 1.0, failure: float = 0.01) -> int:
    """Return Lemma 24's rows per device for which Assumption 1 holds with η = ``spread``: 3 μ ρ/η² · log(ρ m/ζ).

    >>> rows_per_device(0.1, rank=10, devices=100)
    34539
    """
    positive(spread=spread, rank=rank, devices=devices, coherence=coherence, failure=failure)
    return math.ceil(3 * coherence * rank / spread**2 * math.log(rank * devices / failure))


def holds(error: float, *, d: int, width: int, k: int) -> bool:
    """Return whether an error is small enough for Theorems 5, 8 and 9: at most min(1/2, (√r − √(k − 1))/√d).

    >>> holds(0.1, d=100, width=10, k=5), holds(0.2, d=100, width=10, k=5)
    (True, False)
    """
    return error <= min(0.5, (math.sqrt(width) - math.sqrt(k - 1)) / math.sqrt(d))


def _check_gap(kth: float, following: float) -> None:
    if not kth > following:
        raise ValueError(f"kth must exceed following: without a gap no space is defined. Found {kth!r}, {following!r}.")


def _check_spread(spread: float, local_steps: int, condition: float) -> None:
    if spread > 1 / local_steps or spread * condition > 1 / 3:
        raise ValueError(
            "Theorem 6 needs spread at most 1/local_steps and spread·condition at most 1/3. "
            f"Found spread {spread!r}, local_steps {local_steps!r}, condition {condition!r}."
        )
