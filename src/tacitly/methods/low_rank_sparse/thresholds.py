"""AMHT-LRS's own choice of personal coordinates: hard thresholds as printed (Pal et al. 2024, Algorithms 1 to 3).

Algorithm 2 (OptimizeSparseVector) takes T gradient steps on b and after each sets to zero what is not larger than

    Δ = α + c₁(γ + β/√k),    then    γ ← 2c₁γ + 2(α + c₁β/√k).

α, β and γ bound the errors of the user's shared part (largest entry, norm) and of b (largest entry). Algorithm 1 sets
them from public constants: in round ℓ, α = O(c₄^(ℓ−1) B/√k), β = O(c₅^(ℓ−1) B), γ⁽ℓ⁾ = c₃^(ℓ−1) ϵB and
T⁽ℓ⁾ = ℓ log(γ⁽ℓ⁻¹⁾/ϵ). Algorithm 5 adds A, for noise, to all three. Algorithm 3 (a shared weight) is the same step with
T = 1 and error bounds that follow from each other: γ⁽ℓ⁾ by the rule above, then β = c₂√k γ⁽ℓ⁾ and α = c₃γ⁽ℓ⁾ (the paper
calls them τ and β there).

The paper does not state two things: a start of w (here least squares on the first basis), and T for B ≤ 1, where the
logarithm is negative from the second round on (here at least one step).

The thresholds limit the number of coordinates only if the bounds hold. If they do not, or if XᵀX/m has an eigenvalue
above 2 (about m < 6d), b gets many non-zero entries, and a step of length one diverges.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tacitly.arrays import Array, Offsets, Rows, check_shape, check_size
from tacitly.heads.base import HeadWork
from tacitly.privacy.guarantee import positive

MOST_STEPS = 10_000
"""Gradient steps in a round: limits the work that a message from the network can cause."""

MOST_ROUNDS = 1_000
"""Rounds that a user goes through."""


@dataclass(frozen=True)
class Errors:
    """Arguments of one call of Algorithm 2: bounds α, β, γ and the number of steps T."""

    alpha: float
    beta: float
    gamma: float
    steps: int


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """Public constants behind the thresholds; they must not come from the data.

    ``distance`` is B (with a shared weight τ⁽⁰⁾ ≥ ‖u⋆‖), ``spread`` γ⁽⁰⁾ ≥ max|b⋆|, ``accuracy`` ϵ, ``noise`` A;
    ``alpha`` and ``beta`` stand for what O(·) hides in α and β.
    """

    distance: float
    spread: float
    accuracy: float = 0.01
    noise: float = 0.0
    alpha: float = 1.0
    beta: float = 1.0
    c1: float = 0.2
    c2: float = 0.1
    c3: float = 0.05
    c4: float = 0.75
    c5: float = 0.75

    def __post_init__(self) -> None:
        positive(
            distance=self.distance, spread=self.spread, accuracy=self.accuracy, alpha=self.alpha, beta=self.beta,
            c1=self.c1, c2=self.c2, c3=self.c3, c4=self.c4, c5=self.c5,
        )  # fmt: skip
        if not 0.0 <= self.noise < math.inf:
            raise ValueError(f"noise must be a number from 0 on. Found {self.noise!r}.")
        if self.c1 > 0.5:
            raise ValueError(f"c1 must be at most 1/2, or thresholds grow. Found {self.c1!r}.")
        for name in ("c3", "c4", "c5"):
            if getattr(self, name) > 1.0:
                raise ValueError(f"{name} must be at most 1, or bounds grow. Found {getattr(self, name)!r}.")

    def rounds(self, k: int, count: int, *, shared_weight: bool) -> Iterator[Errors]:
        """Yield the bounds and steps of each round.

        >>> first, second = Thresholds(distance=2.0, spread=4.0, accuracy=0.1).rounds(4, 2, shared_weight=False)
        >>> first, second.alpha, round(second.gamma, 9), second.steps
        (Errors(alpha=1.0, beta=2.0, gamma=4.0, steps=4), 0.75, 0.2, 2)
        """
        sizes = self._shared(k) if shared_weight else self._printed(k)
        return itertools.islice(sizes, count)

    def _printed(self, k: int) -> Iterator[Errors]:
        gamma, root = self.spread, math.sqrt(k)
        for number in itertools.count(1):
            decayed = self.distance * self.c4 ** (number - 1), self.distance * self.c5 ** (number - 1)
            yield Errors(
                self.alpha * decayed[0] / root + self.noise,
                self.beta * decayed[1] + self.noise,
                gamma + self.noise,
                max(1, math.ceil(number * (math.log(gamma) - math.log(self.accuracy)))),
            )
            gamma = self.c3 ** (number - 1) * self.accuracy * self.distance + self.noise
            gamma = min(max(gamma, np.finfo(float).tiny), np.finfo(float).max)

    def _shared(self, k: int) -> Iterator[Errors]:
        gamma, root = self.spread, math.sqrt(k)
        alpha, beta = self.alpha * self.distance, self.beta * self.distance
        while True:
            yield Errors(alpha + self.noise, beta + self.noise, gamma + self.noise, 1)
            gamma = tightened(gamma, alpha, beta, self.c1, k)
            alpha, beta = self.c3 * gamma, self.c2 * root * gamma


def tightened(gamma: float, alpha: float, beta: float, c1: float, k: int) -> float:
    """Return γ after a step (Algorithm 2, line 4)."""
    return 2.0 * c1 * gamma + 2.0 * (alpha + c1 * beta / math.sqrt(k))


def optimize_sparse_vector(X: Array, y: Array, shared: Array, b: Array, errors: Errors, c1: float, k: int) -> Array:
    """Return b after the T steps of Algorithm 2; ``shared`` is v = Uw.

    >>> X = np.sqrt(3) * np.eye(3)  # XᵀX/m is the identity: one step finds b
    >>> y = X @ [5.0, 0.4, 1.5]
    >>> optimize_sparse_vector(X, y, np.zeros(3), np.zeros(3), Errors(0.5, 1.0, 2.0, 1), 0.2, 1).round(9)  # Δ = 1.1
    array([5. , 0. , 1.5])
    """
    gamma = errors.gamma
    for _ in range(errors.steps):
        moved = b - X.T @ (X @ (shared + b) - y) / len(X)
        threshold = errors.alpha + c1 * (gamma + errors.beta / math.sqrt(k))
        b = np.where(np.abs(moved) > threshold, moved, 0.0)
        gamma = tightened(gamma, errors.alpha, errors.beta, c1, k)
    return b


def follow(
    X: Array, y: Array, bases: Array, k: int, thresholds: Thresholds, *, shared_weight: bool
) -> tuple[Array, Array]:
    """Return one user's w and b after as many rounds as there are bases, the newest last.

    A user's state is a function of their rows and of the bases so far, so it need not be kept between rounds.
    """
    rank = bases.shape[2]
    w = np.ones(1) if shared_weight else _weights(X, y, bases[0], np.zeros(X.shape[1]))
    b = np.zeros(X.shape[1])
    bounds = thresholds.rounds(max(k, 1), len(bases), shared_weight=shared_weight)
    for basis, errors in zip(bases, bounds, strict=True):
        if k > 0:
            b = optimize_sparse_vector(X, y, basis @ w, b, errors, thresholds.c1, k)
        if not shared_weight:
            w = _weights(X, y, basis, b)
    return w.reshape(rank), b


def _weights(X: Array, y: Array, basis: Array, b: Array) -> Array:
    """Return w by least squares (equation 5); raise, as for any fit that fails, if its numbers are not finite."""
    rows, left = X @ basis, y - X @ b
    if not (np.isfinite(rows).all() and np.isfinite(left).all()):
        raise np.linalg.LinAlgError("not finite")  # LAPACK would print a message
    return np.asarray(np.linalg.lstsq(rows, left)[0], dtype=np.float64)


def check_rounds(bases: Array, k: int, thresholds: Thresholds, *, shared_weight: bool) -> None:
    """Raise unless bases and thresholds ask for a bounded amount of work."""
    check_shape("bases", bases, None, None, 1 if shared_weight else None)
    check_size("rounds", len(bases), MOST_ROUNDS)
    check_size("personal coordinates", k + 1, bases.shape[1] + 1)
    steps = sum(errors.steps for errors in thresholds.rounds(max(k, 1), len(bases), shared_weight=shared_weight))
    check_size("steps", steps, MOST_STEPS)


@dataclass(frozen=True)
class PrintedSparseHeads(HeadWork):
    """Fit w and b locally as in the rounds, on the final basis: lines 4 and 5 of Algorithm 1, ``rounds`` times.

    The k largest entries of b are kept, because the printed thresholds may leave another number.
    """

    basis: Array
    most: int
    thresholds: Thresholds
    rounds: int
    shared_weight: bool = False

    def __post_init__(self) -> None:
        check_shape("basis", self.basis, None, 1 if self.shared_weight else None)
        check_size("rounds", self.rounds, MOST_ROUNDS)
        check_rounds(self._bases(), self.most, self.thresholds, shared_weight=self.shared_weight)

    def __call__(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        """Fit and pack the heads of all users."""
        heads = [self.own(X[first:last], y[first:last]) for first, last in itertools.pairwise(offsets)]
        return np.array(heads).reshape(-1, *self.shape)

    def own(self, X: Rows, y: Rows) -> Array:
        """Fit and pack one user's head; zeros where its numbers are not finite."""
        head, k, rank = np.zeros(self.shape), self.most, self.basis.shape[1]
        rows, targets = np.asarray(X, dtype=np.float64), np.asarray(y, dtype=np.float64)
        try:
            with np.errstate(all="ignore"):
                w, b = follow(rows, targets, self._bases(), k, self.thresholds, shared_weight=self.shared_weight)
                kept = np.sort(np.argsort(-np.abs(b), kind="stable")[:k])
                values, sparse = b[kept], np.zeros(len(b))
                sparse[kept] = values
                if not self.shared_weight:
                    w = _weights(rows, targets, self.basis, sparse)
        except np.linalg.LinAlgError:
            return self._without_fit(head)
        if not (np.isfinite(w).all() and np.isfinite(values).all()):
            return self._without_fit(head)
        head[:rank], head[rank + 1 : rank + 1 + k], head[rank + 1 + k :] = w, kept, values
        return head

    @property
    def shape(self) -> tuple[int, ...]:
        """Weights, an intercept that is always zero, coordinates and their values."""
        return (self.basis.shape[1] + 1 + 2 * self.most,)

    def _bases(self) -> Array:
        return np.broadcast_to(self.basis, (self.rounds, *self.basis.shape))

    def _without_fit(self, head: Array) -> Array:
        head[0] = 1.0 if self.shared_weight else 0.0
        return head
