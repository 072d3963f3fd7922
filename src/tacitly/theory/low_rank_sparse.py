"""AMHT-LRS (Pal et al. 2024): its theorems as functions.

Symbols: t users (tasks) with m rows each, d features, rank r, k personal coordinates, label noise σ; λ₁ ≥ λ_r are
eigenvalues of (r/t)WᵀW (``largest``, ``smallest``); μ* is the incoherence of heads and basis, ζ (``overlap``) the
number of users that share a personal coordinate. Unnamed constants and logarithms are the argument ``constant``.
"""

from __future__ import annotations

import math

from tacitly.privacy.accounting import epsilon_of
from tacitly.privacy.guarantee import check_target, positive


def sampling_error(
    users: float, rows: float, d: int, rank: int, sparsity: int, *, incoherence: float = 1.0, smallest: float = 1.0
) -> float:
    """Return Theorem 1's S = μ* √(r³d/(mt)) + √(r³/(mλ_r)) + √(k/m), on which all its bounds depend.

    >>> round(sampling_error(5000, 100, 10, 1, 2), 4)
    0.2459
    """
    positive(users=users, rows=rows, smallest=smallest)
    shared = incoherence * math.sqrt(rank**3 * d / (rows * users))
    return shared + math.sqrt(rank**3 / (rows * smallest)) + math.sqrt(sparsity / rows)


def errors(
    users: float, rows: float, d: int, rank: int, sparsity: int, *, noise: float = 1.0, incoherence: float = 1.0,
    smallest: float = 1.0, constant: float = 1.0,
) -> tuple[float, float, float]:  # fmt: skip
    """Return Theorem 1's bounds: ‖(I − UU*ᵀ…)U‖_F = σS/√(μ*λ_r), ‖b − b*‖_∞ = σS/√k, and a new user's excess risk.

    The last is σ²(S² + (k + r)/m). Flaw: S contains √(r³/(mλ_r)) and √(k/m), which do not decrease with the number of
    users: by this bound more users never improve the basis beyond 1/√m. Measured errors do decrease.

    >>> [round(value, 4) for value in errors(5000, 100, 10, 1, 2)]
    [0.2459, 0.1739, 0.0905]
    """
    size = sampling_error(users, rows, d, rank, sparsity, incoherence=incoherence, smallest=smallest)
    basis = noise * size / math.sqrt(incoherence * smallest)
    risk = noise**2 * (size**2 + (sparsity + rank) / rows)
    return constant * basis, constant * noise * size / math.sqrt(sparsity), constant * risk


def rows_needed(
    d: int, rank: int, sparsity: int, *, noise: float = 1.0, incoherence: float = 1.0, largest: float = 1.0,
    smallest: float = 1.0, constant: float = 1.0,
) -> tuple[float, float]:  # fmt: skip
    """Return Theorem 1's least m (rows per user) and m·t (rows in total).

    m = c(k + r²μ*(λ₁/λ_r)² + σ²r³/λ_r), mt = c r³dμ*(r μ*⁴λ_r²k + μ*(λ₁/λ_r)² + σ²(1 + 1/λ_r)).

    >>> rows_needed(10, 1, 2, noise=0.0)
    (3.0, 30.0)
    """
    positive(d=d, incoherence=incoherence, largest=largest, smallest=smallest)
    condition = (largest / smallest) ** 2
    each = sparsity + rank**2 * incoherence * condition + noise**2 * rank**3 / smallest
    inside = rank * incoherence**4 * smallest**2 * sparsity + incoherence * condition + noise**2 * (1 + 1 / smallest)
    return constant * each, constant * rank**3 * d * incoherence * inside


def noise_multiplier(epsilon: float, delta: float, *, in_proof: bool = False) -> float:
    """Return Theorem 2's σ_DP = 2√(log(1/δ) + ε)/ε.

    It is sound for adding or removing a user with exactly m rows, and loose (the exact ε is 0.73 for a claim of 1).
    Flaw: the proof of Theorem 3 uses half of it (``in_proof=True``), for which the exact ε is 1.55.

    >>> [round(true_epsilon(noise_multiplier(1.0, 1e-5, in_proof=p), 1e-5), 2) for p in (False, True)]
    [0.73, 1.55]
    """
    check_target(epsilon, delta)
    return (1 if in_proof else 2) * math.sqrt(math.log(1 / delta) + epsilon) / epsilon


def true_epsilon(multiplier: float, delta: float) -> float:
    """Return the exact ε of the noise multiplier σ_DP when a user is added or removed: μ = √2/σ_DP.

    Two matrices per round, each with noise √L·σ_DP times its sensitivity, for L rounds.

    >>> round(true_epsilon(7.07, 1e-5), 2)
    0.73
    """
    positive(multiplier=multiplier, delta=delta)
    return epsilon_of(math.sqrt(2) / multiplier, delta)


def sensitivities(rows: int, features: float, labels: float, personal: float, head: float) -> tuple[float, float]:
    """Return Theorem 2's sensitivities of A and V: m A₁² A_w² and m A₁ (A₂ + A₃) A_w.

    Flaws: they hold for users with at most m rows (a user with 3,070 rows where 500 were assumed spends 7.9 for a claim
    of 1), and the printed clipping of a scalar, x·min(1, ρ/x), turns every negative label into +ρ.

    >>> sensitivities(100, 3.0, 2.0, 1.0, 1.0)
    (900.0, 900.0)
    """
    positive(rows=rows, features=features, head=head)
    return rows * features**2 * head**2, rows * features * (labels + personal) * head


def private_risk(
    users: float, rows: float, d: int, rank: int, sparsity: int, epsilon: float, delta: float, *, noise: float = 1.0,
    incoherence: float = 1.0, largest: float = 1.0, smallest: float = 1.0, personal: float = 0.0, constant: float = 1.0,
) -> tuple[float, float]:  # fmt: skip
    """Return Theorem 3's terms of a new user's excess risk: σ²S², and privacy.

    Privacy: d r²(log(1/δ) + ε)(λ_rμ*)²(κ² + r²d²)/(ε²t²), κ = 1 + √(λ_r/λ₁) + max‖b‖/√(μ*λ_r). Flaws: the initial
    basis, by the method of moments, is not private, and thresholds are chosen from the data.

    >>> [round(term, 4) for term in private_risk(5000, 100, 10, 1, 2, 1.0, 1e-5, noise=0.0)]
    [0.0, 0.0005]
    """
    check_target(epsilon, delta)
    size = sampling_error(users, rows, d, rank, sparsity, incoherence=incoherence, smallest=smallest)
    kappa = 1 + math.sqrt(smallest / largest) + personal / math.sqrt(incoherence * smallest)
    level = d * rank**2 * (math.log(1 / delta) + epsilon) * (smallest * incoherence) ** 2
    privacy = level / (epsilon * users) ** 2 * (kappa**2 + (rank * d) ** 2)
    return constant * noise**2 * size**2, constant * privacy


def users_needed(
    d: int, rank: int, epsilon: float, delta: float, *, incoherence: float = 1.0, constant: float = 1.0
) -> float:
    """Return Theorem 3's least number of users: c (rd)^1.5 √(log(1/δ) + ε) μ*/ε, in addition to Theorem 1's condition.

    >>> round(users_needed(10, 1, 1.0, 1e-5))
    112
    """
    check_target(epsilon, delta)
    return constant * math.pow(rank * d, 1.5) * math.sqrt(math.log(1 / delta) + epsilon) * incoherence / epsilon


def central_model_rows(d: int, sparsity: int, overlap: int, *, constant: float = 1.0) -> tuple[float, float, float]:
    """Return Theorem 4's least m = c k, m·t = c d√k and m·t² = c ζkd for one central model (rank 1, no label noise).

    >>> central_model_rows(10, 4, 2)
    (4.0, 20.0, 80.0)
    """
    positive(d=d, sparsity=sparsity)
    return constant * sparsity, constant * d * math.sqrt(sparsity), constant * overlap * sparsity * d


def central_model_rounds(accuracy: float, *, personal: float, entry: float, length: float, sparsity: int) -> int:
    """Return Theorem 4's L = log((max‖b‖_∞ + ‖u‖_∞ + ‖u‖₂/√k)/ε₀): each round reduces the error by a constant factor.

    >>> central_model_rounds(1e-3, personal=1.0, entry=0.5, length=1.0, sparsity=4)
    8
    """
    positive(accuracy=accuracy, sparsity=sparsity)
    return max(1, math.ceil(math.log((personal + entry + length / math.sqrt(sparsity)) / accuracy)))
