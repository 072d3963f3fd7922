"""DP-RGrad as printed (Zha 2024, Algorithms 1 and 2), with sensitivities as inputs, for comparison. Not certified.

The ledger records sums as releases without noise, because that is what they are for privacy; the paper's noise is added
afterwards. Misprints are corrected: E_Σ is not symmetric (its statistic is not, so the antisymmetric part would be
exact), E_U and E_V are drawn independently, and the logarithm is that of the proof, log(3.75/δ). :data:`REASONS` lists
why it is not certified.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tacitly.arrays import Array
from tacitly.federation.base import Federation
from tacitly.methods.trace_regression.designs import Design
from tacitly.methods.trace_regression.low_rank import LowRank, retract
from tacitly.methods.trace_regression.queries import LabelledSum, Scales, TangentSum
from tacitly.methods.trace_regression.start import unbiased
from tacitly.privacy.guarantee import GaussianEvent, Sensitivity, Unit

REASONS = (
    "R2: the sensitivity of the singular subspaces leaves out a factor √(d₁ + d₂): even Gaussian data violate it",
    "R3: sensitivities hold with high probability over benign data, not for every pair of neighbours (distributional)",
)

# Without noise nothing is protected, so the clipping bound only has to exceed every meaningful sum.
UNPROTECTED = GaussianEvent(sigma=0.0, sensitivity=Sensitivity.of_clip(2.0**30, unit=Unit.ROW))


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Inputs of the printed algorithms: sensitivities Δ⁽¹⁾ (subspaces), Δ⁽²⁾ (values), Δ_l (steps), budget, T, η."""

    sensitivities: tuple[float, float, float]
    epsilon: float
    delta: float
    steps: int = 8
    length: float = 0.75
    seed: int | None = None
    covariance: Array | None = None

    def events(self) -> list[GaussianEvent]:
        """List every release; none is protected."""
        return [UNPROTECTED] * (1 + self.steps)


def learn(federation: Federation, settings: Settings, design: Design, rank: int) -> LowRank:
    """Run both algorithms as printed, misprints corrected."""
    n, rng = federation.n_rows, np.random.default_rng(settings.seed)
    ones = Scales(np.ones(design.d1), np.ones(design.d2))
    total = federation.release(LabelledSum(design, ones), UNPROTECTED, "labelled sum").reshape(design.d1, design.d2)
    matrix = _start(unbiased(total / n, settings.covariance), rank, settings, rng)
    steps = settings.steps
    deviation = _deviation(settings.sensitivities[2] * steps, 1.25 * steps, settings, 2.0)
    for number in range(steps):
        query = TangentSum(design, ones, matrix.left, matrix.right, matrix.values)
        left, right, _ = query.split(federation.release(query, UNPROTECTED, f"step {number + 1}"))
        noise = deviation * rng.normal(size=(design.d1, design.d2))
        left = settings.length * left / n + noise @ matrix.right
        right = settings.length * right / n + noise.T @ matrix.left
        matrix = retract(matrix, left, right - matrix.right @ (matrix.right.T @ right))
    return matrix


def _start(matrix: Array, rank: int, settings: Settings, rng: np.random.Generator) -> LowRank:
    """Run Algorithm 1: noisy projectors, then noisy values between them."""
    U, _, Vt = np.linalg.svd(matrix, full_matrices=False)
    first, second, _ = settings.sensitivities
    deviation = _deviation(first, 3.75, settings, 18.0)
    left, right = (_noisy_projector(basis, deviation, rng) for basis in (U[:, :rank], Vt[:rank].T))
    core = left.T @ matrix @ right + _deviation(second, 3.75, settings, 18.0) * rng.normal(size=(rank, rank))
    a, values, b = np.linalg.svd(core)
    return LowRank(left @ a, values, right @ b.T)


def _noisy_projector(basis: Array, deviation: float, rng: np.random.Generator) -> Array:
    upper = np.triu(deviation * rng.normal(size=(len(basis), len(basis))))
    noisy = basis @ basis.T + upper + np.triu(upper, 1).T
    return np.asarray(np.linalg.eigh(noisy)[1][:, ::-1][:, : basis.shape[1]])


def _deviation(sensitivity: float, over: float, settings: Settings, factor: float) -> float:
    if not math.isfinite(settings.epsilon):
        return 0.0
    return sensitivity / settings.epsilon * math.sqrt(factor * math.log(over / settings.delta))
