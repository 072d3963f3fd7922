"""Private FedRep as printed (Snedeker et al. 2025, Algorithms 1 and 2, constants of appendix B.4). Not certified.

For comparison. The code follows the printed algorithm: the pair statistic for a start, with noise √(2 log(1.25/δ))/ε;
disjoint batches of b = ⌊m/2T⌋ rows of the first half for head and gradient; noise √(16 T log(1.25/δ))/ε in the loop;
heads on the second half. Obvious errors are corrected: the printed clipping divides by the norm twice, and with b < k
the head is the one of least norm.

Why it is not certified: both phases spend ε on the same users, and the sensitivity under replace-one is taken as ψ/n
instead of 2ψ/n. So the true ε exceeds the requested one.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np

from tacitly.arrays import Array, Offsets, Rows, check_shape, check_size
from tacitly.federation.base import Federation, Query
from tacitly.heads.base import HeadWork
from tacitly.linalg import orthonormal, pack_symmetric, unpack_symmetric
from tacitly.methods.shared.whitening import SymmetricMatrixQuery
from tacitly.privacy.guarantee import Budget, GaussianEvent, Sensitivity

REASONS = (
    "V2: the sensitivity of a replaced user is 2ψ/n; the printed noise is for ψ/n",
    "V4: the printed constants come from a conversion that drops a factor 2",
    "V5: start and loop each spend the whole (ε, δ) on the same users",
)


@dataclass(frozen=True)
class PairStatistic(SymmetricMatrixQuery):
    """Mean of y_a y_b x_a x_bᵀ over pairs of different rows of the first half (Algorithm 2, line 4)."""

    def contribution(self, X: Rows, y: Rows) -> Array:
        """Return (aaᵀ − Xᵀdiag(y²)X)/(m(m−1)) with a = Xᵀy."""
        half = len(X) // 2
        if half < 2:
            return np.zeros(self.coordinates)
        weighted = X[:half].astype(np.float64) * y[:half, None]
        total = weighted.sum(axis=0)
        return pack_symmetric((np.outer(total, total) - weighted.T @ weighted) / (half * (half - 1)))


@dataclass(frozen=True)
class BasisGradient(Query):
    """Head on one batch, gradient in U of the loss on another (Algorithm 1, lines 5-7)."""

    basis: Array
    number: int
    rounds: int
    batch: int = 0  # b; 0 for ⌊m/2T⌋

    def __post_init__(self) -> None:
        check_shape("basis", self.basis, None, None)
        check_size("batch + 1", self.batch + 1, 1 << 20)
        check_size("rounds", self.rounds, 1 << 20)
        check_size("number + 1", self.number + 1, self.rounds)

    @property
    def coordinates(self) -> int:
        """Entries of the basis."""
        return self.basis.size

    def contribution(self, X: Rows, y: Rows) -> Array:
        """Return the gradient −(2/b) Xᵀ(y − XUv) vᵀ."""
        half = len(X) // 2
        if half < 2:
            return np.zeros(self.coordinates)
        size = min(self.batch or max(1, len(X) // (2 * self.rounds)), half // 2)
        order = (2 * size * self.number + np.arange(2 * size)) % half
        head_rows, rows = X[order[:size]].astype(np.float64), X[order[size:]].astype(np.float64)
        projected, targets = head_rows @ self.basis, y[order[:size]].astype(np.float64)
        if not (np.isfinite(projected).all() and np.isfinite(targets).all()):
            return np.zeros(self.coordinates)  # LAPACK would print a message
        head = np.linalg.lstsq(projected, targets)[0]
        residual = rows @ (self.basis @ head) - y[order[size:]]
        return np.outer(rows.T @ residual * (2.0 / size), head).ravel()


@dataclass(frozen=True, kw_only=True)
class Settings:
    """T, η, ψ, ψ_init and b (0: ⌊m/2T⌋); the defaults are the constants of appendix B.4."""

    rounds: int = 5
    step_size: float = 2.5
    clip: float = 10.0
    start_clip: float = 10.0
    batch: int = 0

    def __post_init__(self) -> None:
        for name in ("rounds", "step_size", "clip", "start_clip"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be positive and finite. Found {getattr(self, name)!r}.")
        if self.batch < 0:
            raise ValueError(f"batch must be at least 1, or 0 for ⌊m/2T⌋. Found {self.batch!r}.")

    def events(self, budget: Budget) -> tuple[GaussianEvent, GaussianEvent]:
        """Return the printed noise of the start and of one round, on sums (n times the noise on means)."""
        log = math.log(1.25 / budget.delta)
        start = self.start_clip * math.sqrt(2 * log) / budget.epsilon
        loop = self.clip * math.sqrt(16 * self.rounds * log) / budget.epsilon
        return (
            GaussianEvent(sigma=start, sensitivity=Sensitivity.of_clip(self.start_clip)),
            GaussianEvent(sigma=loop, sensitivity=Sensitivity.of_clip(self.clip)),
        )


def learn(federation: Federation, budget: Budget, settings: Settings, rank: int) -> Array:
    """Run Algorithm 2, then Algorithm 1; return the orthonormal basis."""
    n, d = federation.n_users, federation.n_features
    start, loop = settings.events(budget)
    statistic = unpack_symmetric(federation.release(PairStatistic(d), start, "pair statistic"), d)
    left, _, _ = np.linalg.svd(statistic)
    basis = orthonormal(left[:, :rank])[0]
    for number in range(settings.rounds):
        query = BasisGradient(basis, number, settings.rounds, settings.batch)
        gradient = federation.release(query, loop, f"gradient {number + 1}").reshape(d, rank) / n
        basis = orthonormal(basis - settings.step_size * gradient)[0]
    return basis


@dataclass(frozen=True)
class PaperHeads(HeadWork):
    """Least squares on the second half of every user's rows (Algorithm 1, line 14)."""

    basis: Array

    def __post_init__(self) -> None:
        check_shape("basis", self.basis, None, None)

    def __call__(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        """Fit the head of every user."""
        return np.array([self.own(X[first:last], y[first:last]) for first, last in itertools.pairwise(offsets)])

    def own(self, X: Rows, y: Rows) -> Array:
        """Fit one user's head; zeros if the rows contain numbers that are not finite."""
        features, target = X[len(X) // 2 :] @ self.basis, y[len(X) // 2 :].astype(np.float64)
        if not (np.isfinite(features).all() and np.isfinite(target).all()):
            return np.zeros(self.basis.shape[1] + 1)
        return np.append(np.linalg.lstsq(features, target)[0], 0.0)

    @property
    def shape(self) -> tuple[int, ...]:
        """One weight per direction, and an intercept that is always zero."""
        return (self.basis.shape[1] + 1,)
