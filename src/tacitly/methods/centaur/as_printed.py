"""CENTAUR for linear models as printed (Shen et al. 2023, Algorithms 3 to 5, Theorems 5.1 and 5.2). Not certified.

For comparison. The code follows the printed algorithm: y²·xxᵀ power steps on batches, T₀ copies and the choice among
them, heads and gradients on disjoint batches, plain clipping, QR. The theorems do not specify their constants; they are
1 here, and the population quantities they need (κ, μ, s_k) are settings. Noise is that of Theorem 5.2,
ε = 2√(T·log(1/δ))/σ; the start uses as much of the budget as the loop.

Why it is not certified: this formula drops a term and a factor, and Lemma F.2's sensitivity is right under neither
adjacency. So the true ε exceeds the requested one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tacitly.arrays import Array, Rows, check_shape, check_size
from tacitly.federation.base import Federation, Query
from tacitly.linalg import orthonormal
from tacitly.methods.centaur.algorithm import agreed
from tacitly.privacy.guarantee import Budget, GaussianEvent, Sensitivity

REASONS = (
    "F1: the sensitivity is counted once in one place and twice in another",
    "F2: Theorem 5.2's closed form drops 4T/σ² and half of the rest",
    "F5: Lemma F.2 bounds the power steps under neither adjacency",
)


@dataclass(frozen=True)
class PowerStatistic(Query):
    """Mean of y²·x(xᵀQ) over the batch of this step (Algorithm 5, lines 6 and 7)."""

    columns: Array
    number: int
    batch: int

    def __post_init__(self) -> None:
        check_shape("columns", self.columns, None, None)
        _check_batch(self.number, self.batch)

    @property
    def coordinates(self) -> int:
        """Entries of a d×k matrix."""
        return int(self.columns.size)

    def contribution(self, X: Rows, y: Rows) -> Array:
        """Return Y, d×k."""
        order = _batch(len(X), self.batch, self.number)
        rows, targets = X[order].astype(np.float64), y[order].astype(np.float64)
        return np.asarray(rows.T @ (np.square(targets)[:, None] * (rows @ self.columns)) / len(order)).ravel()


@dataclass(frozen=True)
class HeadGradient(Query):
    """Head on one batch, gradient in B of the mean loss on another (Algorithm 4)."""

    basis: Array
    number: int
    batch: int

    def __post_init__(self) -> None:
        check_shape("basis", self.basis, None, None)
        _check_batch(self.number, self.batch)

    @property
    def coordinates(self) -> int:
        """Entries of the basis."""
        return int(self.basis.size)

    def contribution(self, X: Rows, y: Rows) -> Array:
        """Return G = xᵀ(xBw − y)wᵀ/m, d×k."""
        order = _batch(len(X), 2 * self.batch, self.number)
        half = len(order) // 2
        if half < 1:
            return np.zeros(self.coordinates)
        first, second = order[:half], order[half:]
        projected, targets = X[first].astype(np.float64) @ self.basis, y[first].astype(np.float64)
        if not (np.isfinite(projected).all() and np.isfinite(targets).all()):
            return np.zeros(self.coordinates)  # LAPACK would print a message
        head = np.linalg.lstsq(projected, targets)[0]
        rows = X[second].astype(np.float64)
        residual = rows @ (self.basis @ head) - y[second]
        return np.outer(rows.T @ residual / len(second), head).ravel()


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Constants of the theorems."""

    condition: float = 1.0  # κ
    incoherence: float = 1.0  # μ
    least_strength: float = 0.5  # s_k² of heads of unit norm at rank two
    copies: int = 3
    power_steps: int = 8
    rounds: int = 5
    batch: int = 5

    def clips(self, n: int, d: int, k: int) -> tuple[float, float]:
        """Return the clipping bounds of a power step and of a gradient (Lemma F.1, Theorem 5.1)."""
        log = math.log(n)
        start = (
            self.incoherence**2 * k**1.5 * self.least_strength * math.sqrt(d) * log * (math.sqrt(log) + math.sqrt(k))
        )
        return start, self.incoherence**2 * k * self.least_strength * math.sqrt(d * k * log)

    def events(self, budget: Budget, n: int, d: int, k: int) -> tuple[GaussianEvent, GaussianEvent]:
        """Return the printed noise of a power step and of a round, on sums."""
        multiplier = 2.0 * math.sqrt(self.rounds * math.log(1.0 / budget.delta)) / budget.epsilon
        start_multiplier = multiplier * math.sqrt(self.copies * self.power_steps / (2.0 * self.rounds))
        start, loop = self.clips(n, d, k)
        return (
            GaussianEvent(sigma=start * start_multiplier, sensitivity=Sensitivity.of_clip(start)),
            GaussianEvent(sigma=loop * multiplier, sensitivity=Sensitivity.of_clip(loop)),
        )

    def planned(self, budget: Budget, n: int, d: int, k: int) -> list[GaussianEvent]:
        """List every release, in order."""
        start, loop = self.events(budget, n, d, k)
        return [start] * (self.copies * self.power_steps) + [loop] * self.rounds


def learn(federation: Federation, budget: Budget, settings: Settings, rank: int, rng: np.random.Generator) -> Array:
    """Run Algorithm 3, then Algorithm 1 with Algorithm 4; return the orthonormal basis."""
    n, d = federation.n_users, federation.n_features
    start, loop = settings.events(budget, n, d, rank)
    candidates = []
    for copy in range(settings.copies):
        columns = orthonormal(rng.normal(size=(d, rank)))[0]
        for step in range(settings.power_steps):
            query = PowerStatistic(columns, step, settings.batch)
            released = federation.release(query, start, f"power step {step + 1} of copy {copy + 1}")
            columns = orthonormal(released.reshape(d, rank))[0]
        candidates.append(columns)
    basis = candidates[agreed(candidates)]
    strongest = settings.condition**2 * settings.least_strength
    for number in range(settings.rounds):
        query_g = HeadGradient(basis, number, settings.batch)
        gradient = federation.release(query_g, loop, f"gradient {number + 1}").reshape(d, rank) / n
        basis = orthonormal(basis - gradient / (4.0 * strongest))[0]
    return basis


def _check_batch(number: int, batch: int) -> None:
    check_size("batch", batch, 1 << 20)
    check_size("number + 1", number + 1, 1 << 20)


def _batch(rows: int, size: int, number: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the positions of batch ``number``, of ``size`` rows, wrapping around; all rows if there are no more."""
    return np.arange(rows) if rows <= size else (number * size + np.arange(size)) % rows
