"""Heads that shrink to the population's head: without rows it is used as it is, with many rows the user's own fit.

The public prior says that heads are distributed over users as N(mean, S) and that rows scatter around their user's
regression line with variance s². Each user averages four heads, weighted by how well each predicts the user's own rows
when each row is left out in turn:

* the population's head, which has not seen the rows;
* the posterior mean under the prior, which is optimal if the prior is right for this user;
* the user's own ridge regression (:mod:`tacitly.heads.ridge`), with a slight penalty for weights that are absurd in
  the population (:attr:`HeadPrior.penalty`);
* the user's own mean, if there are intercepts.

Weights are odds·E^(−(m−1)/2) for a leave-one-out sum of squares E over m rows, which is the evidence if the noise
variance is unknown. Odds are public and favour the posterior. An own fit of q numbers is penalised by (m + 1)^(−q/2)
for having estimated them. So a few rows outweigh the posterior only if it fits badly: for a user unlike others, or
under a prior that is mostly privacy noise. Leave-one-out errors are residuals divided by one minus leverage. Everything
is computed locally: nothing here is released.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from tacitly.arrays import Array, Offsets, Rows, check_shape, per_user, read_only, rows_times
from tacitly.heads.base import HeadWork
from tacitly.heads.ridge import ridge_and_error
from tacitly.heads.ridge_arrays import along, inverses, outer_sums, own_errors, ridges_and_errors
from tacitly.simd.lazy_njit import MANY, few

BELIEFS = {
    "usual": (0.02, 0.945, 0.02, 0.015),
    "never alone": (0.05, 0.95, 0.0, 0.0),
    "nothing known": (0.0, 0.95, 0.05, 0.0),
    "own level": (0.0, 1.0, 0.0, 0.0),
}
"""Prior odds of the population's head, the posterior, the user's own fit and the user's own mean."""

_SLIGHT = 0.01
"""Penalty of own fits, relative to the one under which the population's weights are typical."""


@dataclass(frozen=True)
class HeadPrior:
    """Distribution of heads over users, in the units of the data: N(mean, root·rootᵀ), and the noise variance of rows.

    A head consists of the weights on the basis, followed by the intercept. Without intercepts, the last entry of the
    mean and the last row of the root are zero.
    """

    mean: Array
    root: Array
    noise: float

    def __post_init__(self) -> None:
        check_shape("mean", self.mean, None)
        check_shape("root", self.root, len(self.mean), None)
        if not (np.isfinite(self.mean).all() and np.isfinite(self.root).all()):
            raise ValueError("a prior of heads must be finite. Found entries that are not finite.")
        if not (math.isfinite(self.noise) and self.noise > 0):
            raise ValueError(f"noise must be positive and finite. Found {self.noise!r}.")

    @classmethod
    def unknown(cls, rank: int, *, intercept: bool) -> HeadPrior:
        """Return the prior if nothing is known about the population: each user has their own level and zero slopes.

        >>> work = PopulationHeads(np.eye(1), HeadPrior.unknown(1, intercept=True), True, "nothing known")
        >>> work.own(np.array([[1.0], [2.0], [3.0]]), np.array([1.0, -1.0, 1.0])).round(2) + 0.0
        array([0.  , 0.33])
        """
        root = np.zeros((rank + 1, 1))
        root[rank] = float(intercept)
        return cls(np.zeros(rank + 1), root, 1e-24)  # so small that levels are not shrunk in any units

    @classmethod
    def of_levels(cls, mean: float, spread: float, noise: float) -> HeadPrior:
        """Return the prior of users whose weight on the only direction is one and who differ only in their levels."""
        return cls(np.array([1.0, mean]), np.array([[0.0], [spread]]), noise)

    @property
    def covariance(self) -> Array:
        """S."""
        return np.asarray(self.root @ self.root.T)

    @property
    def metric(self) -> Array:
        """A root of the covariance of weights, without intercepts: own fits are regularised with it, in any units."""
        covariance = self.covariance[:-1, :-1]
        sizes = np.sqrt(np.diag(covariance))
        sizes = np.where(sizes > 0, sizes, 1.0)
        values, vectors = np.linalg.eigh(covariance / np.outer(sizes, sizes))
        return np.asarray(sizes[:, None] * (vectors * np.sqrt(np.maximum(values, 1e-4))))

    @property
    def penalty(self) -> float:
        """The least penalty of own fits, in coordinates of the metric: a hundredth of noise ÷ mean square of weights.

        Rows that hardly differ leave a slope open: scores of 6 and 2 in two rows 0.003 apart make it 1,500. Left-out
        errors do not show this (each row is predicted from rows beside it), and other penalties are relative to how
        much the user's own rows vary. The next row may be far from both.

        >>> HeadPrior(np.array([3.0, 0.0]), np.diag([2.0, 1.0]), 5.0).penalty  # 0.05 / (1 + (3/2)²)
        0.015384615384615385
        """
        mean = np.linalg.solve(self.metric, self.mean[:-1])
        return _SLIGHT * self.noise / (1.0 + float(mean @ mean))


@dataclass(frozen=True)
class PopulationHeads(HeadWork):
    """Heads on a public basis under a public prior.

    >>> X, y = np.array([[1.0, 0.0], [2.0, 0.0], [3.0, 1.0]]), np.array([2.0, 4.0, 6.0])
    >>> work = PopulationHeads(np.eye(2)[:, :1], HeadPrior(np.array([1.0, 0.0]), np.diag([0.5, 0.0]), 0.01))
    >>> work.own(X[:0], y[:0]), work.own(X, y).round(2)
    (array([1., 0.]), array([2., 0.]))
    """

    basis: Array
    prior: HeadPrior
    intercept: bool = False
    belief: str = "usual"
    span: ClassVar[int] = MANY

    def __post_init__(self) -> None:
        if self.belief not in BELIEFS:
            raise ValueError(f"belief must be one of {tuple(BELIEFS)}. Found {self.belief!r}.")
        check_shape("basis", self.basis, None, len(self.prior.mean) - 1)

    def __call__(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        """Fit all users, with compiled code if there are many."""
        check_shape("X", X, None, len(self.basis))
        if few(len(offsets) - 1, X.shape[1]):
            return self.in_arrays(X, y, offsets)[0]
        return self.with_errors(X, y, offsets)[0]

    def in_arrays(self, X: Rows, y: Rows, offsets: Offsets) -> tuple[Array, Array]:
        """Return the result of :meth:`with_errors`, computed with array operations."""
        prior, counts = self.prior, np.diff(offsets)
        with np.errstate(all="ignore"):
            rows, targets = rows_times(X, self.basis), np.asarray(y, dtype=np.float64)
            design = np.column_stack([rows, np.full(len(rows), float(self.intercept))])
            left = targets - rows_times(design, prior.mean[:, None])[:, 0]
            turned = rows_times(design, prior.root)
            grams, squares = outer_sums(turned, offsets), per_user(np.square(left), offsets)
            sides = per_user(turned * left[:, None], offsets)
            usable = (counts > 0) & np.isfinite(grams).all(axis=(1, 2)) & np.isfinite(squares)
            systems = grams + prior.noise * np.eye(turned.shape[1])
            inverse = inverses(np.where(usable[:, None, None], systems, np.eye(turned.shape[1])))
            shifts = np.einsum("nij,nj->ni", inverse, sides)
            leverage = (along(turned, inverse, counts) * turned).sum(axis=1)
            after = left - along(turned, shifts[:, :, None], counts)[:, 0]
            after = per_user(np.square(after / np.maximum(1.0 - leverage, 1e-6)), offsets)
            alone, errors = ridges_and_errors(
                rows_times(rows, prior.metric), targets, offsets, intercept=self.intercept, least=prior.penalty
            )
            alone = np.column_stack([alone[:, :-1] @ prior.metric.T, alone[:, -1]])
            levels, spreads = np.zeros(len(counts)), np.full(len(counts), np.inf)
            if self.intercept:
                levels = per_user(targets, offsets) / np.maximum(counts, 1)
                spreads = own_errors(targets - np.repeat(levels, counts), offsets)
            means = np.column_stack([np.zeros((len(counts), rows.shape[1])), levels])
            weights = _weights_of(
                self._belief,
                np.column_stack([squares, after, errors, spreads]),
                counts,
                rows.shape[1],
                int(self.intercept),
            )
            found = [np.broadcast_to(prior.mean, means.shape), prior.mean + shifts @ prior.root.T, alone, means]
            # Heads with weight zero are left out, not multiplied: they may be infinite.
            heads, total = np.zeros_like(means), np.zeros(len(counts))
            for weight, head, error in zip(weights.T, found, (squares, after, errors, spreads), strict=True):
                heads += np.where(weight[:, None] > 0, weight[:, None] * head, 0.0)
                total += np.where(weight > 0, weight * error, 0.0)
        usable &= np.isfinite(heads).all(axis=1)
        total = np.where(usable, total, np.where(counts > 0, np.inf, 0.0))
        return np.where(usable[:, None], heads, prior.mean), total

    def with_errors(self, X: Rows, y: Rows, offsets: Offsets) -> tuple[Array, Array]:
        """Return all users' heads and their leave-one-out sums of squared errors."""
        from tacitly.heads.population_kernels import new_posteriors, population_heads
        from tacitly.heads.ridge_kernels import longest_group, new_work, padded_penalties
        from tacitly.simd.registers import padded

        check_shape("X", X, None, len(self.basis))
        heads, errors = np.empty((len(offsets) - 1, len(self.prior.mean))), np.empty(len(offsets) - 1)
        rows, targets = read_only(np.ascontiguousarray(X)), read_only(np.ascontiguousarray(y))
        with np.errstate(divide="ignore"):
            belief = np.log2(self._belief)
        public = (self.prior.mean, np.ascontiguousarray(self.prior.root), float(self.prior.noise), self.prior.metric)
        others = self.prior.penalty, belief, padded_penalties(), bool(self.intercept)
        basis, k, r = padded(self.basis.T, np.float64), self.basis.shape[1], self.prior.root.shape[1]
        work = new_work(k, -k % 4, offsets), new_posteriors(k, r, longest_group(offsets))
        population_heads(rows, targets, np.array(offsets), basis, *public, *others, *work, heads, errors)
        return heads, errors

    def own(self, X: Rows, y: Rows) -> Array:
        """Fit one user with NumPy; return the population's head if the rows cannot be used."""
        try:
            head = self._fitted(X, y)
        except np.linalg.LinAlgError:  # a singular system
            return self.prior.mean.copy()
        return head if np.isfinite(head).all() else self.prior.mean.copy()

    def _fitted(self, X: Rows, y: Rows) -> Array:
        prior, m = self.prior, len(X)
        with np.errstate(all="ignore"):
            rows, targets = np.asarray(X, dtype=np.float64) @ self.basis, np.asarray(y, dtype=np.float64)
            design = np.column_stack([rows, np.full(m, float(self.intercept))])
            left = targets - design @ prior.mean
            turned = design @ prior.root
            if m == 0 or not (np.isfinite(turned.T @ turned).all() and np.isfinite(left @ left)):
                return prior.mean.copy()
            inverse = np.linalg.inv(turned.T @ turned + prior.noise * np.eye(turned.shape[1]))
            shift = inverse @ (turned.T @ left)
            leverage = np.einsum("ij,jk,ik->i", turned, inverse, turned)
            turn, least = prior.metric, prior.penalty
            alone, error = ridge_and_error(rows @ turn, targets, intercept=self.intercept, least=least)
            alone = np.append(turn @ alone[:-1], alone[-1])
            after = np.square((left - turned @ shift) / np.maximum(1.0 - leverage, 1e-6)).sum()
            level, spread = _own_mean(targets) if self.intercept else (0.0, math.inf)
            errors = np.array([left @ left, after, error, spread])
            weights = _weights(self._belief, errors, m, rows.shape[1], int(self.intercept))
        mean = np.append(np.zeros(rows.shape[1]), level)
        heads = np.array([prior.mean, prior.mean + prior.root @ shift, alone, mean])
        return np.asarray(weights[weights > 0] @ heads[weights > 0])

    @property
    def _belief(self) -> Array:
        return np.array(BELIEFS[self.belief])

    @property
    def shape(self) -> tuple[int, ...]:
        """One weight per direction, and the intercept."""
        return (self.basis.shape[1] + 1,)


def _own_mean(targets: Array) -> tuple[float, float]:
    """Return a user's mean and the leave-one-out sum of squared errors of this mean."""
    level, m = float(targets.mean()), len(targets)
    return level, float(np.sum(np.square(targets - level))) * (m / max(m - 1.0, 1e-6)) ** 2


def _weights(belief: Array, errors: Array, rows: int, slopes: int, intercept: int) -> Array:
    """Return the weights of the four heads from their leave-one-out sums of squares."""
    return np.asarray(_weights_of(belief, errors[None], np.array([rows]), slopes, intercept)[0])


def _weights_of(belief: Array, errors: Array, rows: npt.NDArray[np.int64], slopes: int, intercept: int) -> Array:
    """Return the weights of each user's four heads, one row per user; the population's head if all errors are NaN."""
    paid = np.array([0.0, 0.0, slopes + intercept, intercept]) / 2.0 * np.log(rows + 1.0)[:, None]
    least = 1e-300 + 1e-12 * errors[:, :1]
    scores = np.log(belief) - paid - (rows[:, None] - 1.0) / 2.0 * np.log(np.maximum(errors, least))
    usable = np.isfinite(scores)
    scores = np.where(usable, scores, -np.inf)
    scores[~usable.any(axis=1)] = [0.0, -np.inf, -np.inf, -np.inf]
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    weights[rows == 1] = [0.0, 1.0, 0.0, 0.0]  # a single row cannot be predicted from other rows
    return np.asarray(weights)
