"""Heads for losses beyond least squares: ridge fits by Newton's method, averaged over penalties.

As for least squares (:mod:`tacitly.heads.ridge`) nothing needs tuning: heads for a fixed grid of penalties are averaged
with weights exp(−leave-one-out loss) on the user's own rows. Penalties are in units of a standardised direction: λ
means that a direction's share of the score has a variance of about 1/λ. Leave-one-out scores come from the last
Hessian, without refitting: removing row j moves its score by −r q/(1 − w q), with r and w its slope and curvature and
q = pᵀH⁻¹p.

A user whose rows all have one class gets a finite head (the penalty bounds it); a user without rows gets a zero head.
"""

# mypy does not see the types that Numba compiles.
# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from tacitly.arrays import Array, Offsets, Rows, check_shape, read_only
from tacitly.heads.base import HeadWork
from tacitly.heads.losses import SOFTMAX, Loss
from tacitly.heads.newton import fit_newton, hessian, loss_of, project_user, slopes
from tacitly.heads.newton_arrays import Fits, fit_each, left_out, project
from tacitly.simd.lazy_njit import MANY, few, njit
from tacitly.simd.small_solves import cholesky_solve

PENALTIES = np.array([100.0, 30.0, 10.0, 3.0, 1.0, 0.3, 0.1, 0.03])  # each fit starts from the previous one
INTERCEPT_PENALTY = 0.05  # prior variance 20 of an intercept: allows any level except probabilities of almost 0 or 1

_kernel: Any = njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc", "contract"})


def fit_loss_heads(
    X: Rows, y: Rows, offsets: Offsets, basis: npt.ArrayLike, loss: Loss, *, intercept: bool = False
) -> Array:
    """Fit one head per user, (users, k + 1, columns): weights on the basis, then the intercept (or 0).

    ``y`` are targets as returned by ``loss.encode``.

    >>> X = np.array([[1.0], [2.0], [-1.0], [-2.0]]); y = np.array([1.0, 1.0, 0.0, 0.0])
    >>> bool(fit_loss_heads(X, y, np.array([0, 4]), np.eye(1), Loss("logistic"))[0, 0, 0] > 1)
    True
    """
    directions = np.ascontiguousarray(np.asarray(basis, dtype=np.float64).T)
    heads = np.zeros((len(offsets) - 1, len(directions) + 1, loss.columns))
    rows, targets = read_only(np.asarray(X)), read_only(np.asarray(y))
    _fit(rows, directions, targets, np.array(offsets), loss.code, PENALTIES, intercept, heads)
    return heads


def fit_few_loss_heads(
    X: Rows, y: Rows, offsets: Offsets, basis: npt.ArrayLike, loss: Loss, *, intercept: bool = False
) -> Array:
    """Fit heads as :func:`fit_loss_heads` does, with array operations.

    >>> X = np.array([[1.0], [2.0], [-1.0], [-2.0]]); y = np.array([1.0, 1.0, 0.0, 0.0])
    >>> bool(fit_few_loss_heads(X, y, np.array([0, 4]), np.eye(1), Loss("logistic"))[0, 0, 0] > 1)
    True
    """
    directions, targets = np.asarray(basis, dtype=np.float64), np.asarray(y, dtype=np.float64)
    k, n = directions.shape[1], len(offsets) - 1
    heads = np.zeros((n, k + 1, loss.columns))
    with np.errstate(all="ignore"):
        rows, means, sizes = project(X, offsets, directions, intercept=intercept)
        usable = (np.diff(offsets) > 0) & np.isfinite(sizes) & ((sizes > 0) | ((sizes == 0) & intercept))
        q = rows.shape[1]
        fits = Fits(np.zeros((n, q, loss.columns)), np.zeros((loss.columns, len(rows))))
        kept, errors = np.empty((len(PENALTIES), n, q, loss.columns)), np.empty((len(PENALTIES), n))
        for g, penalty in enumerate(PENALTIES):
            penalties = np.repeat(penalty * np.where(sizes > 0, sizes, 1.0)[:, None], q, axis=1)
            penalties[:, k:] = INTERCEPT_PENALTY
            fits = fit_each(rows, targets, offsets, loss.code, penalties, fits)
            kept[g], errors[g] = fits.parameters, left_out(rows, targets, offsets, loss.code, penalties, fits)
        errors[~(np.isfinite(errors) & np.isfinite(kept).all(axis=(2, 3)) & usable)] = math.inf
        best = errors.min(axis=0)
        weights = np.where(np.isfinite(errors), np.exp(np.where(np.isfinite(best), best, 0.0) - errors), 0.0)
        totals = weights.sum(axis=0)
        kept = np.where(weights[:, :, None, None] > 0, kept, 0.0)
        found = np.einsum("gn,gnqc->nqc", weights, kept) / np.where(totals > 0, totals, 1.0)[:, None, None]
        heads[:, :q] = np.where((totals > 0)[:, None, None], found, 0.0)
        if intercept:
            shift = np.einsum("nk,nkc->nc", np.where((totals > 0)[:, None], means, 0.0), heads[:, :k])
            heads[:, k] -= shift
    return heads


@dataclass(frozen=True)
class LossHeads(HeadWork):
    """Heads fitted by :func:`fit_loss_heads` on a public basis; ``half`` fits on the second half of each user's rows.

    >>> X = np.array([[1.0], [2.0], [-1.0], [-2.0]]); y = np.array([1.0, 1.0, 0.0, 0.0])
    >>> LossHeads(np.eye(1), Loss("logistic")).own(X, y).shape
    (2,)
    """

    basis: Array
    loss: Loss
    intercept: bool = False
    half: bool = False
    span: ClassVar[int] = MANY

    def __post_init__(self) -> None:
        check_shape("basis", self.basis, None, None)
        if self.loss.name == "squared":
            raise ValueError("heads for loss 'squared' are ridge regressions. Use RidgeHeads.")

    def __call__(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        """Fit all users, with compiled code if there are many."""
        check_shape("X", X, None, len(self.basis))
        fit = fit_few_loss_heads if few(len(offsets) - 1, X.shape[1]) else fit_loss_heads
        if self.half:
            counts = np.diff(offsets)
            late = np.arange(len(X)) >= np.repeat(offsets[:-1] + counts // 2, counts)
            X, y, offsets = X[late], y[late], np.concatenate([[0], np.cumsum(counts - counts // 2)])
        heads = fit(X, y, offsets, self.basis, self.loss, intercept=self.intercept)
        return heads if self.loss.columns > 1 else heads[:, :, 0]

    def own(self, X: Rows, y: Rows) -> Array:
        """Fit one user."""
        head: Array = self(np.ascontiguousarray(X), np.ascontiguousarray(y), np.array([0, len(X)]))[0]
        return head

    @property
    def shape(self) -> tuple[int, ...]:
        """One weight per direction, and the intercept; one column per class if there are more than two classes."""
        columns = (self.loss.columns,) if self.loss.columns > 1 else ()
        return (self.basis.shape[1] + 1, *columns)


@_kernel
def _fit(X, directions, y, offsets, loss, grid, intercept, heads):
    for i in range(offsets.size - 1):
        if offsets[i + 1] > offsets[i]:
            _fit_user(X, directions, y, offsets[i], offsets[i + 1], loss, grid, intercept, heads[i])


@_kernel
def _fit_user(X, directions, y, first, last, loss, grid, intercept, head):
    k, m, c = directions.shape[0], last - first, head.shape[1]
    q = k + (1 if intercept else 0)
    P, targets = np.empty((m, q)), np.empty(m)
    size, means = project_user(X, first, last, directions, intercept, P)
    for j in range(m):
        targets[j] = y[first + j]
    if not (math.isfinite(size) and size > 0.0):
        if not (intercept and size == 0.0):
            return
        size = 1.0
    V, scores = np.zeros((q, c)), np.zeros((m, c))
    kept, errors, penalties = np.empty((grid.size, q, c)), np.empty(grid.size), np.empty(q)
    for g in range(grid.size):
        penalties[:] = grid[g] * size
        if intercept:
            penalties[k] = INTERCEPT_PENALTY
        fit_newton(P, targets, loss, penalties, V, scores)
        kept[g] = V
        errors[g] = _left_out(P, targets, scores, loss, penalties, V)
    _average(kept, errors, means, intercept, head)


@_kernel
def _average(kept, errors, means, intercept, head):
    """Average heads with weights by how well each predicts left-out rows; heads that are not finite are ignored."""
    k, c, best, total = means.size, head.shape[1], math.inf, 0.0
    for g in range(errors.size):
        if math.isfinite(errors[g]) and np.isfinite(kept[g]).all():
            best = min(best, errors[g])
    for g in range(errors.size):
        if not (math.isfinite(errors[g]) and np.isfinite(kept[g]).all()):
            continue
        weight = math.exp(best - errors[g])
        total += weight
        for a in range(c):
            for b in range(kept.shape[1]):
                head[b, a] += weight * kept[g, b, a]
    if total == 0.0:
        return
    for a in range(c):
        for b in range(k + 1):
            head[b, a] /= total
        if intercept:
            for b in range(k):
                head[k, a] -= means[b] * head[b, a]


@_kernel
def _left_out(P, targets, scores, loss, penalties, V):
    """Return the sum of losses of rows under fits that leave them out, to first order."""
    m, q = P.shape
    c = V.shape[1]
    H, part, without = np.empty((q, q)), np.empty(q), scores.copy()
    for a in range(c):
        hessian(P, targets, scores, loss, a, penalties, V, H, part)
        if not cholesky_solve(H, part, q):  # leaves the factor L, reciprocals on its diagonal
            return math.inf
        for j in range(m):
            leverage = 0.0  # pᵀH⁻¹p = ‖L⁻¹p‖²
            for b in range(q):
                value = P[j, b]
                for e in range(b):
                    value -= H[b, e] * part[e]
                part[b] = value * H[b, b]
                leverage += part[b] * part[b]
            first, second = slopes(loss, targets, scores, j, a)
            without[j, a] -= first * leverage / max(1.0 - second * leverage, 1e-3)
    error = 0.0
    for j in range(m):
        if loss != SOFTMAX:
            error += loss_of(loss, targets[j], without[j, 0])
            continue
        largest = without[j].max()
        total = 0.0
        for a in range(c):
            total += math.exp(without[j, a] - largest)
        for a in range(c):
            if targets[j] == a:
                error += math.log(total) + largest - without[j, a]
    return error
