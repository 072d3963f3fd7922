"""What one user contributes to a private power step of linear CENTAUR."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tacitly.arrays import Array, Rows, check_shape
from tacitly.federation.base import Query
from tacitly.methods.shared.whitening import Whitening


@dataclass(frozen=True)
class PowerVote(Query):
    """One user's part of a power step: Σ y²(xxᵀ − I)Q over the user's rows in whitened coordinates, scaled to norm one.

    CENTAUR's Algorithm 5 has y²·xxᵀ, whose expectation 2Γ + tr(Γ)·I converges slowly; subtracting y²·I leaves 2Γ.

    Unit: the user. A contribution is a function of one user's rows and the public columns Q and is a d×r matrix of norm
    one or zero. So zero-out moves the sum by at most 1, replace-one by at most 2 (y²(xxᵀ − I)Q can point either way).
    One Gaussian event per power step.
    """

    columns: Array  # Q
    whitening: Whitening
    centered: bool = False

    def __post_init__(self) -> None:
        check_shape("columns", self.columns, self.whitening.scale.size, None)

    @property
    def coordinates(self) -> int:
        """Entries of a d×r matrix."""
        return int(self.columns.size)

    def contribution(self, X: Rows, y: Rows) -> Array:
        """Return the power step of one user's rows, scaled to norm one."""
        rows, targets = X.astype(np.float64), y.astype(np.float64)
        if self.centered:
            rows, targets = rows - rows.mean(axis=0), targets - targets.mean()
        rows = self.whitening.transform(rows)
        largest = float(np.max(np.abs(targets), initial=0.0))
        spread = float(np.sqrt(np.mean(rows * rows)))
        if not (math.isfinite(largest) and math.isfinite(spread) and largest > 0.0 and spread > 0.0):
            return np.zeros(self.coordinates)
        weights, rows = (targets / largest) ** 2, rows / spread
        step = rows.T @ (weights[:, None] * (rows @ self.columns)) - weights.sum() * self.columns
        norm = float(np.linalg.norm(step))
        return (step / norm).ravel() if math.isfinite(norm) and norm > 1e-150 else np.zeros(self.coordinates)
