"""Heads of AMHT-LRS: weights on a public basis, and a few personal coordinates, stored as indices and values.

A head is fitted locally from one user's rows and public numbers and is never released, so it costs no privacy;
thresholds and the choice of sparsity are local as well. Coordinates are selected by
:func:`~tacitly.methods.low_rank_sparse.kernels.fit_users`; then weights and values are refitted by ridge regressions
averaged by leave-one-out error (:mod:`tacitly.heads.ridge`): close to least squares with many clean rows, shrunk with
few. A user with few rows gets fewer coordinates: one per two rows in excess of the number of weights.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tacitly.arrays import Array, Offsets, Rows, check_shape, check_size, read_only
from tacitly.heads.base import HeadWork
from tacitly.heads.penalties import PENALTIES
from tacitly.heads.population import HeadPrior, PopulationHeads
from tacitly.heads.ridge import average_ridges
from tacitly.methods.low_rank_sparse.kernels import (
    LONG,
    affordable,
    fit_users,
    group_end,
    intercept_of,
    layout_of,
    restore_columns,
    workspace_for,
)
from tacitly.methods.low_rank_sparse.lane_kernels import kernel
from tacitly.simd.registers import frozen, padded
from tacitly.simd.top_k import LANES

Indices = npt.NDArray[np.int64]

EXPECTED = 0.5
"""Penalty where whoever gives a number of coordinates says that they exist: twice as much hides many."""

UNKNOWN = 1.25
"""Penalty where users choose the number: without personal coordinates in the truth, a smaller one lets noise in."""

_SWAPS = 12  # more than any observed fit needed: most end after two
_FOLDS = 5
_MOST = 1 << 20  # coordinates per user
_CONSTANT = 1e-13  # of a feature's mean: smaller variation is rounding error
_ROUNDING = 1e-12  # relative, of squares: smaller differences are rounding errors
_SIZES = np.array([0, 1, 2, 3, 4, 6, 8, 11, 15, 20, 27, 36, 48, 64, 85, 113, 150])


@dataclass(frozen=True)
class Sparsity:
    """Number of personal coordinates per user: ``most``, or up to ``most`` by each user's own choice."""

    most: int
    chosen: bool = False

    def __post_init__(self) -> None:
        check_size("most", self.most + 1, _MOST)

    @classmethod
    def of(cls, given: Any, n_features: int) -> Sparsity:
        """Parse a count, a fraction of the features, or ``"auto"``: each user cross-validates, up to a fifth of them.

        >>> Sparsity.of(3, 50), Sparsity.of(0.1, 50), Sparsity.of("auto", 50)
        (Sparsity(most=3, chosen=False), Sparsity(most=5, chosen=False), Sparsity(most=8, chosen=True))
        """
        if isinstance(given, str) and given == "auto":
            return cls(int(_SIZES[math.ceil(n_features / 5) >= _SIZES][-1]), True)
        whole = isinstance(given, int | np.integer) and not isinstance(given, bool)
        if whole and 0 <= given <= n_features:
            return cls(int(given))
        if isinstance(given, float) and 0.0 < given < 1.0:
            return cls(max(1, round(given * n_features)))
        raise ValueError(
            f"sparsity must be a count from 0 to the number of features ({n_features}), a fraction between 0 and 1, "
            f"or 'auto'. Found {given!r}."
        )

    @property
    def sizes(self) -> Indices:
        """Numbers of coordinates a user may choose from."""
        return _SIZES[self.most >= _SIZES] if self.chosen else np.array([self.most])

    @property
    def choices(self) -> Indices:
        """:attr:`sizes`, or an empty array where there is nothing to choose: kernels have one signature for both."""
        return self.sizes if self.chosen else np.zeros(0, dtype=np.int64)


NONE = Sparsity(0)


@dataclass(frozen=True)
class SparseHeads:
    """Heads of several users, one row per user: r weights, an intercept, and k coordinates with their values."""

    weights: Array
    intercepts: Array
    indices: Indices
    values: Array

    def packed(self) -> Array:
        """Return all heads as one table, one row per user."""
        return np.hstack([self.weights, self.intercepts[:, None], self.indices, self.values])

    @classmethod
    def unpacked(cls, table: Array, rank: int) -> SparseHeads:
        """Invert :meth:`packed`. The width is the most coordinates allowed: how many a user chose is private."""
        k = (table.shape[1] - rank - 1) // 2
        indices, values = table[:, rank + 1 : rank + 1 + k].astype(np.int64), table[:, rank + 1 + k :]
        return cls(table[:, :rank].copy(), table[:, rank].copy(), indices, values.copy())


def fit_sparse_heads(
    X: Rows,
    y: Rows,
    offsets: Offsets,
    basis: npt.ArrayLike,
    sparsity: Sparsity,
    *,
    intercept: bool = False,
    shared_weight: bool = False,
) -> SparseHeads:
    """Fit the heads of several users alone; ``shared_weight`` fixes the weight on the only direction at one.

    >>> X = np.random.default_rng(0).normal(size=(20, 6)); y = X @ [1.0, 1, 1, 1, 1, 4]
    >>> heads = fit_sparse_heads(X, y, np.array([0, 20]), np.ones((6, 1)), Sparsity(1))
    >>> heads.weights.round(6), heads.indices, heads.values.round(6)
    (array([[1.]]), array([[5]]), array([[3.]]))
    """
    return _with_errors(X, y, offsets, basis, sparsity, intercept, shared_weight)[0]


def _with_errors(
    X: Rows,
    y: Rows,
    offsets: Offsets,
    basis: npt.ArrayLike,
    sparsity: Sparsity,
    intercept: bool,
    shared_weight: bool,
) -> tuple[SparseHeads, Array]:
    """Return heads and their leave-one-out sums of squared errors, given the coordinates that were chosen."""
    X, y, directions = np.ascontiguousarray(X), np.ascontiguousarray(y), np.asarray(basis, dtype=np.float64)
    rank, n, most = directions.shape[1], len(offsets) - 1, sparsity.most
    table, errors = np.zeros((n, rank + 1 + 2 * most)), np.full(n, math.inf)
    fixed = 0 if shared_weight else rank
    _fit(
        *(read_only(X), read_only(y), np.array(offsets), padded(directions.T, X.dtype), shared_weight, intercept),
        *(sparsity.choices, PENALTIES, workspace_for(np.asarray(offsets), X, fixed, most), table, errors),
    )
    overflown = ~np.isfinite(table).all(axis=1)
    table[overflown], errors[overflown] = 0.0, math.inf  # no head rather than a meaningless one
    if shared_weight:
        table[:, 0] = 1.0
    indices = table[:, rank + 1 : rank + 1 + most].astype(np.int64)
    return SparseHeads(table[:, :rank], table[:, rank], indices, table[:, rank + 1 + most :]), errors


@dataclass(frozen=True)
class SparseHeadWork(HeadWork):
    """Fit heads by :func:`fit_sparse_heads` on a public basis, and pack them.

    With a ``prior`` of heads, users weigh their own fit against the head that the population gives them
    (:mod:`tacitly.heads.population`, without personal coordinates) by how well each predicts rows that are left out.
    The own fit pays for its numbers and for the choice of k of d coordinates: ``penalty`` times what is fair if nobody
    can say whether such coordinates exist.
    """

    basis: Array
    sparsity: Sparsity
    intercept: bool = False
    shared_weight: bool = False
    prior: HeadPrior | None = None
    belief: str = "usual"
    penalty: float = EXPECTED

    def __post_init__(self) -> None:
        check_shape("basis", self.basis, None, 1 if self.shared_weight else None)
        if not 0.0 <= self.penalty < math.inf:
            raise ValueError(f"penalty must be a number from 0 on. Found {self.penalty!r}.")
        if self.prior is not None:
            check_shape("mean", self.prior.mean, self.basis.shape[1] + 1)
        check_size("sparsity", self.sparsity.most + 1, len(self.basis) + 1)

    def __call__(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        """Fit and pack the heads of all users."""
        return self.fit(X, y, offsets).packed()

    def fit(self, X: Rows, y: Rows, offsets: Offsets) -> SparseHeads:
        """Fit the heads of all users."""
        check_shape("X", X, None, len(self.basis))
        alone, errors = _with_errors(
            *(X, y, offsets, self.basis, self.sparsity), intercept=self.intercept, shared_weight=self.shared_weight
        )
        if self.prior is None:
            return alone
        work = PopulationHeads(self.basis, self.prior, self.intercept, self.belief)
        shrunk, others = work.with_errors(X, y, offsets)
        share = self._share(np.diff(offsets), np.count_nonzero(alone.values, axis=1), errors, others)
        weights = alone.weights * share[:, None] + shrunk[:, :-1] * (1.0 - share[:, None])
        if self.shared_weight:
            weights = alone.weights  # one, also to the last bit
        intercepts = alone.intercepts * share + shrunk[:, -1] * (1.0 - share)
        return SparseHeads(weights, intercepts, alone.indices, alone.values * share[:, None])

    def _share(self, rows: Indices, chosen: Indices, alone: Array, shrunk: Array) -> Array:
        """Return the weight of each user's own fit of ``chosen`` coordinates, by leave-one-out sums of squares."""
        d, numbers = len(self.basis), chosen + int(self.intercept)
        if not self.shared_weight:
            numbers = numbers + self.basis.shape[1]
        fair = numbers / 2.0 * np.log(rows + 1.0) + chosen * np.log(math.e * d / np.maximum(chosen, 1))
        paid = self.penalty * fair
        with np.errstate(all="ignore"):
            scores = rows / 2.0 * (np.log(shrunk) - np.log(alone)) - paid
            scores = np.where(np.isnan(scores), -math.inf, np.clip(scores, -700.0, 700.0))
            return np.asarray(np.where(np.isfinite(alone), 1.0 / (1.0 + np.exp(-scores)), 0.0))

    def own(self, X: Rows, y: Rows) -> Array:
        """Fit and pack one user's head."""
        head: Array = self(X, y, np.array([0, len(X)]))[0]
        return head

    @property
    def shape(self) -> tuple[int, ...]:
        """Weights, the intercept, coordinates and their values."""
        return (self.basis.shape[1] + 1 + 2 * self.sparsity.most,)


@kernel
def _fit(X, y, offsets, basis, shared, intercept, sizes, penalties, work, table, errors):  # type: ignore[no-untyped-def]
    n, scale, wanted = offsets.size - 1, np.zeros((X.shape[1], LANES)), np.zeros(LANES, dtype=np.int64)
    start = np.int64(0)
    while start < n:
        stop = group_end(offsets, start, n)
        first, last, count = offsets[start:stop], offsets[start + 1 : stop + 1], stop - start
        for u in range(count):
            write_inverse_sizes(X, first[u], last[u], intercept, scale, u)
            wanted[u] = choose_size(X, first[u], last[u], y, basis, shared, intercept, scale, u, sizes, 1.0, work)
        stages = wanted[:count].max()
        fit_users(X, y, first, last, count, basis, shared, intercept, scale, wanted, stages, np.int64(_SWAPS), work)
        for u in range(count):
            restore_columns(X, first[u], last[u], intercept, u, work)
            errors[start + u] = _refit(work, last[u] - first[u], u, intercept, penalties, table[start + u], scale)
        start = stop


@kernel
def write_inverse_sizes(X, first, last, intercept, scale, u):  # type: ignore[no-untyped-def]
    """Write 1/size of each feature on these rows (around their mean, with an intercept); 0 for a constant feature."""
    m, d = last - first, X.shape[1]
    mean, squares = np.zeros(d), np.zeros(d)
    if intercept:
        for j in range(first, last):
            for a in range(d):
                mean[a] += X[j, a] / m
    for j in range(first, last):
        for a in range(d):
            squares[a] += (X[j, a] - mean[a]) * (X[j, a] - mean[a])
    for a in range(d):
        size = math.sqrt(squares[a] / m)
        scale[a, u] = 1.0 / size if size > _CONSTANT * abs(mean[a]) else 0.0


@kernel
def choose_size(X, first, last, y, basis, shared, intercept, scale, u, sizes, doubt, work):  # type: ignore[no-untyped-def]
    """Return the number of coordinates: the most allowed, or one of ``sizes`` by the user's cross-validation.

    Cross-validation takes the fewest whose error is within one standard error of the smallest, and none at all within
    ``doubt`` standard errors (at least one).
    """
    m, fixed = last - first, work.fixed.size
    most = affordable(m, fixed + intercept, work.support.shape[1])
    if sizes.size == 0:
        return most
    if most == 0:
        return 0
    # Rows in the order of folds, written twice: the rows outside a fold are then contiguous, from its end to its start.
    folds = min(_FOLDS, m)
    rows, targets = np.empty((2 * m, X.shape[1]), dtype=X.dtype), np.empty(2 * m, dtype=y.dtype)
    begin, end, row = np.empty(folds, dtype=np.int64), np.empty(folds, dtype=np.int64), 0
    for fold in range(folds):
        end[fold] = m + row
        for j in range(first + fold, last, folds):
            rows[row], rows[m + row] = X[j], X[j]
            targets[row] = targets[m + row] = y[j]
            row += 1
        begin[fold] = row
    user_scale, wanted = np.empty(scale.shape), np.empty(folds, dtype=np.int64)
    for a in range(scale.shape[0]):
        user_scale[a] = scale[a, u]
    together = folds if m < LONG else 1
    errors, squares = np.zeros(sizes.size), np.zeros(sizes.size)
    for number in range(sizes.size):
        if sizes[number] > affordable((end - begin).min(), fixed + intercept, most):
            errors[number] = math.inf
            continue
        wanted[:] = sizes[number]
        stages = min(sizes[number], 4)
        for some in range(0, folds, together):
            fit_users(
                frozen(rows), frozen(targets), begin[some:], end[some:], together, basis, shared, intercept, user_scale,
                wanted, stages, np.int64(2), work,
            )  # fmt: skip
            for v in range(together):
                fold = some + v
                restore_columns(frozen(rows), begin[fold], end[fold], intercept, v, work)
                for j in range(end[fold] - m, begin[fold]):
                    left = _residual_of(rows, j, targets[j], basis, shared, intercept, v, work)
                    errors[number] += left * left
                    squares[number] += (left * left) ** 2
    energy = 0.0
    for j in range(m):
        energy += targets[j] * targets[j]
    best = np.argmin(errors)
    spread = math.sqrt(max(squares[best] - errors[best] * errors[best] / m, 0.0))
    enough = errors[best] + _ROUNDING * energy
    if errors[0] <= enough + doubt * spread:
        return 0
    for number in range(1, sizes.size):
        if errors[number] <= enough + spread:
            return sizes[number]
    return 0


@kernel
def _residual_of(X, j, target, basis, shared, intercept, u, work):  # type: ignore[no-untyped-def]
    """Return the residual of row j under the fit of user u."""
    fixed = work.fixed.size
    left = target - (intercept_of(work, u) if intercept else 0.0)
    for b in range(1 if shared else fixed):
        along = 0.0
        for a in range(X.shape[1]):
            along += basis[b, a] * X[j, a]
        left -= along if shared else work.coefficients[1 + b, u] * along
    for s in range(work.size[u]):
        left -= work.coefficients[1 + fixed + s, u] * X[j, work.support[u, s]]
    return left


@kernel
def _refit(work, m, u, intercept, penalties, out, scale):  # type: ignore[no-untyped-def]
    """Refit a user's weights and values with penalties, on columns scaled to one size; return the left-out error."""
    fixed, count, most = work.fixed.size, work.size[u], work.support.shape[1]
    support, rank = work.support[u], out.size - 1 - 2 * most
    at, step = layout_of(m, u)
    columns, sizes, targets = np.empty((m, fixed + count)), np.ones(fixed + count), np.empty(m)
    for b in range(fixed + count):
        if b >= fixed:
            sizes[b] = scale[support[b - fixed], u]
        for j in range(m):
            columns[j, b] = work.columns[1 + b, at + j * step] * sizes[b]
    for j in range(m):
        targets[j] = work.columns[0, at + j * step]
    work.coefficients[:, u] = 0.0
    error = math.inf
    if fixed + count > 0:
        head, error = average_ridges(columns, targets, intercept, penalties)
        largest, kept = 0.0, 0
        for b in range(fixed):
            out[b] = head[b]
        for b in range(fixed, head.size):
            largest = max(largest, abs(head[b]))
        for b in range(fixed, head.size):
            if math.isfinite(error) and abs(head[b]) > math.sqrt(_ROUNDING) * largest:
                out[rank + 1 + kept] = support[b - fixed]
                out[rank + 1 + most + kept] = head[b] * sizes[b]
                kept += 1
        for b in range(head.size):
            work.coefficients[1 + b, u] = head[b] * sizes[b]
    if intercept:
        level = intercept_of(work, u)
        if math.isfinite(level):
            out[rank] = level
    return error
