"""Naive baseline for trace regression: noisy gradient descent on the factors of M = A Bᵀ, with one clip for all steps.

Private through the same federation at the same ε, with the same scaled design and start as TraceRegression. Its step
length is the better of two in hindsight, which is not accounted for, so its results are optimistic.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tacitly.arrays import Array, Rows
from tacitly.data.cohort import Cohort
from tacitly.federation.base import Query
from tacitly.federation.local import LocalFederation
from tacitly.methods.shared.norm_histogram import NormHistogram, quantile_of
from tacitly.methods.trace_regression.designs import Design
from tacitly.methods.trace_regression.queries import Scales
from tacitly.methods.trace_regression.start import StartSettings, scales_of, start_of
from tacitly.privacy.calibration import Phase, Plan
from tacitly.privacy.clipping import GUARD
from tacitly.privacy.guarantee import Budget, Unit
from tacitly.privacy.ledger import Ledger

STEPS = 10


@dataclass(frozen=True)
class FactorGradient(Query):
    """Residual times (X̃B, X̃ᵀA) of one observation, clipped: sensitivity C (zero-out), 2C (replace-one)."""

    design: Design
    scales: Scales
    left: Array
    right: Array
    unit: Unit = Unit.ROW

    @property
    def coordinates(self) -> int:
        """Entries of both factors."""
        return int(self.left.size + self.right.size)

    def contribution(self, X: Rows, y: Rows) -> Array:
        """Return the gradient of one observation."""
        weight, products = self._products(X, y)
        return (weight[:, None] * products).sum(axis=0)

    def norms(self, X: Rows, y: Rows, offsets: object) -> Array:
        """Return the norms of all rows."""
        weight, products = self._products(X, y)
        return np.abs(weight) * np.linalg.norm(products, axis=1)

    def block_sum(self, X: Rows, y: Rows, offsets: object, bound: float) -> Array:
        """Return the sum of clipped rows; the shape of a block is public."""
        weight, products = self._products(X, y)
        norms = np.linalg.norm(products, axis=1)
        with np.errstate(all="ignore"):
            limit = bound * (1.0 - GUARD) / norms
            weight = np.where(np.isfinite(norms * weight) & (norms > 0), np.clip(weight, -limit, limit), 0.0)
        return weight @ products

    def _products(self, X: Rows, y: Rows) -> tuple[Array, Array]:
        matrices = X.reshape(-1, self.design.d1, self.design.d2)
        A, B = self.scales.left[:, None] * self.left, self.scales.right[:, None] * self.right
        left = (matrices @ B.astype(X.dtype)) * self.scales.left[:, None]
        right = (matrices.transpose(0, 2, 1) @ A.astype(X.dtype)) * self.scales.right[:, None]
        weight = y - np.einsum("njk,jk->n", right, self.right)
        return weight, np.concatenate([left.reshape(len(X), -1), right.reshape(len(X), -1)], axis=1)


def factorised(X: np.ndarray, y: np.ndarray, rank: int, epsilon: float, delta: float) -> Array:
    """Return the better estimate of M of two step lengths."""
    n, d1, d2 = X.shape
    design, unit = Design("dense", d1, d2), Unit.ROW
    cohort = Cohort.from_offsets(X.reshape(n, -1), y, [0, n])
    budget = Budget(epsilon=epsilon, delta=delta, unit=unit)
    phases = [
        ("design scale", 0.01, 1),
        ("design", 0.03, 1),
        ("clip", 0.04, 2),
        ("start", 0.22, 1),
        ("loop", 0.7, STEPS),
    ]
    plan = Plan(budget, [Phase(name=name, share=share, releases=count) for name, share, count in phases])
    found: list[tuple[float, Array]] = []
    for length in (0.25, 1.0):
        federation = LocalFederation(cohort, Ledger(ceiling=budget).run("factors", config={}), noise="float")
        scales = scales_of(federation, plan, design, unit, None)
        start = start_of(federation, plan, design, unit, scales, rank, StartSettings())
        A, B = start.left * np.sqrt(start.values), start.right * np.sqrt(start.values)
        event = plan.event("clip", clip=1.0, acute=True)
        query = FactorGradient(design, scales, A, B)
        histogram = federation.release(NormHistogram(query), event, "norms")
        clip = quantile_of(histogram, event.sigma, 0.9)
        curvature = float(start.values[0])
        for number in range(STEPS):
            query = FactorGradient(design, scales, A, B)
            step = federation.release(query, plan.event("loop", clip=clip), f"step {number + 1}") * length / curvature
            A, B = A + step[: A.size].reshape(A.shape), B + step[A.size :].reshape(B.shape)
        matrix = scales.matrix * (A @ B.T)
        residual = y - X.reshape(n, -1) @ matrix.ravel().astype(X.dtype)
        found.append((math.sqrt(float(np.mean(residual**2))), matrix))
    return min(found, key=lambda pair: pair[0])[1]
