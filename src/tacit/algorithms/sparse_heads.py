"""Heads of low rank plus sparse: weights on a public basis, a few coordinates of one's own, kept as indices and values.

A head is fitted by its user from the user's rows and public numbers only and is never released, so it costs nobody any
privacy; thresholds and the choice of sparsity are the user's own affair. Coordinates are chosen by
:func:`~tacit.algorithms.sparse_kernels.fit_user`; then weights and values are fitted again by ridge regressions,
averaged by leave-one-out error (:mod:`tacit.heads`): least squares where rows are many and clean, shrunk where they are
few. A user with too few rows gets fewer coordinates: one for two rows that the basis leaves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tacit.algorithms.sparse_kernels import affordable, first_feature, fit_user, kernel, level_of, make_desk
from tacit.compiled import padded
from tacit.heads import PENALTIES, average_ridges

Rows = npt.NDArray[np.floating]
Array = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]

_SWAPS = 12  # more than any fit was seen to need: most end after two
_FOLDS = 5
_CONSTANT = 1e-13  # of a feature's mean: what varies less is rounding
_ROUNDING = 1e-12  # of everything squared: differences below it are rounding
_SIZES = np.array([0, 1, 2, 3, 4, 6, 8, 11, 15, 20, 27, 36, 48, 64, 85, 113, 150])


@dataclass(frozen=True)
class Sparsity:
    """How many coordinates of their own users may have: exactly ``most``, or what each chooses up to that."""

    most: int
    chosen: bool = False

    @classmethod
    def of(cls, given: Any, n_features: int) -> Sparsity:
        """Read a count, a fraction of the features, or ``"auto"``: each user's own cross-validation, up to a fifth.

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
        """What a user may choose from."""
        return _SIZES[self.most >= _SIZES] if self.chosen else np.array([self.most])


NONE = Sparsity(0)


@dataclass(frozen=True)
class SparseHeads:
    """Heads of several users, a row a user: r weights, an intercept, and k coordinates with their values (or zeros)."""

    weights: Array
    intercepts: Array
    indices: Indices
    values: Array

    def packed(self) -> Array:
        """Return everything as one table, a row a user."""
        return np.hstack([self.weights, self.intercepts[:, None], self.indices, self.values])

    @classmethod
    def unpacked(cls, table: Array, rank: int) -> SparseHeads:
        """Read what :meth:`packed` gave: as wide as what users may have, for how many anybody chose is private."""
        k = (table.shape[1] - rank - 1) // 2
        indices, values = table[:, rank + 1 : rank + 1 + k].astype(np.int64), table[:, rank + 1 + k :]
        return cls(table[:, :rank].copy(), table[:, rank].copy(), indices, values.copy())


def fit_sparse_heads(
    X: Rows,
    y: Rows,
    offsets: npt.NDArray[np.int64],
    basis: npt.ArrayLike,
    sparsity: Sparsity,
    *,
    intercept: bool = False,
    shared_weight: bool = False,
) -> SparseHeads:
    """Fit a head for each of several users; ``shared_weight`` fixes the weight on the only direction at one.

    >>> X = np.random.default_rng(0).normal(size=(20, 6)); y = X @ [1.0, 1, 1, 1, 1, 4]
    >>> heads = fit_sparse_heads(X, y, np.array([0, 20]), np.ones((6, 1)), Sparsity(1))
    >>> heads.weights.round(6), heads.indices, heads.values.round(6)
    (array([[1.]]), array([[5]]), array([[3.]]))
    """
    X, y, directions = np.ascontiguousarray(X), np.ascontiguousarray(y), np.asarray(basis, dtype=np.float64)
    rank, n, most = directions.shape[1], len(offsets) - 1, sparsity.most
    table = np.zeros((n, rank + 1 + 2 * most))
    fixed = 0 if shared_weight else rank
    _fit(
        *(X, y, np.asarray(offsets), padded(directions.T, X.dtype), shared_weight, intercept),
        *(sparsity.sizes, PENALTIES, make_desk(int(np.diff(offsets).max()), X.shape[1], fixed, most, X.dtype), table),
    )
    table[~np.isfinite(table).all(axis=1)] = 0.0  # numbers too large to compute with: no head rather than nonsense
    if shared_weight:
        table[:, 0] = 1.0
    indices = table[:, rank + 1 : rank + 1 + most].astype(np.int64)
    return SparseHeads(table[:, :rank], table[:, rank], indices, table[:, rank + 1 + most :])


@kernel
def _fit(X, y, offsets, basis, shared, intercept, sizes, penalties, desk, table):  # type: ignore[no-untyped-def]  # pragma: no cover
    most = desk.support.size
    rank, fixed = table.shape[1] - 1 - 2 * most, desk.coefficients.size - most
    scale = np.zeros(X.shape[1])
    for i in range(offsets.size - 1):
        first, last = offsets[i], offsets[i + 1]
        own_scale(X, first, last, intercept, scale)
        wanted = choose_size(X, first, last, y, basis, shared, intercept, scale, sizes, desk)
        count = fit_user(X, first, last, y, basis, shared, intercept, scale, wanted, wanted, _SWAPS, desk)
        _refit(desk, basis.shape[0], last - first, fixed, intercept, count, penalties, table[i], rank, scale)


@kernel
def own_scale(X, first, last, intercept, scale):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Write one over the size of each feature on these rows (around their mean, with an intercept); 0 for no size."""
    m, d = last - first, X.shape[1]
    mean = np.zeros(d)
    if intercept:
        for j in range(first, last):
            for a in range(d):
                mean[a] += X[j, a] / m
    scale[:] = 0.0
    for j in range(first, last):
        for a in range(d):
            scale[a] += (X[j, a] - mean[a]) * (X[j, a] - mean[a])
    for a in range(d):
        size = math.sqrt(scale[a] / m)
        scale[a] = 1.0 / size if size > _CONSTANT * abs(mean[a]) else 0.0


@kernel
def choose_size(X, first, last, y, basis, shared, intercept, scale, sizes, desk):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Choose the number of coordinates: the last of ``sizes`` if it is alone, else by the user's own cross-validation.

    The fewest whose error is within one standard error of the smallest; never more than the rows can tell apart.
    """
    m, d, fixed = last - first, X.shape[1], desk.coefficients.size - desk.support.size
    most = affordable(m, fixed + intercept, sizes[-1])
    if sizes.size == 1 or most == 0:
        return most
    folds = min(_FOLDS, m)
    base = first_feature(fixed, basis.shape[0])
    mine, targets = np.empty((m, d), dtype=X.dtype), np.empty(m, dtype=X.dtype)
    errors, squares = np.zeros(sizes.size), np.zeros(sizes.size)
    for fold in range(folds):
        kept, held = 0, m - 1
        for j in range(m):
            place = kept
            if j % folds == fold:
                place, held = held, held - 1
            else:
                kept += 1
            mine[place] = X[first + j]
            targets[place] = y[first + j]
        for number in range(sizes.size):
            size = sizes[number]
            if size > affordable(kept, fixed + intercept, most):
                errors[number] = math.inf
                continue
            count = fit_user(mine, 0, kept, targets, basis, shared, intercept, scale, size, min(size, 4), 2, desk)
            level = level_of(desk, fixed, base, count) if intercept else 0.0
            for j in range(kept, m):
                left = targets[j] - level
                for b in range(1 if shared else fixed):
                    weight = 1.0 if shared else desk.coefficients[b]
                    for a in range(d):
                        left -= weight * basis[b, a] * mine[j, a]
                for s in range(count):
                    left -= desk.coefficients[fixed + s] * mine[j, desk.support[s]]
                errors[number] += left * left
                squares[number] += (left * left) ** 2
    energy = 0.0
    for j in range(m):
        energy += targets[j] * targets[j]
    best = np.argmin(errors)
    spread = math.sqrt(max(squares[best] - errors[best] * errors[best] / m, 0.0))
    enough = errors[best] + spread + _ROUNDING * energy
    for number in range(sizes.size):
        if errors[number] <= enough:
            return sizes[number]
    return 0


@kernel
def _refit(desk, projected, m, fixed, intercept, count, penalties, out, rank, scale):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Fit weights and values again, with penalties; coordinates are brought to one size for it."""
    Z, support, most = desk.Z, desk.support, desk.support.size
    base = first_feature(fixed, projected)
    columns, sizes = np.empty((m, fixed + count)), np.ones(fixed + count)
    for b in range(fixed + count):
        row = b if b < fixed else base + b - fixed
        if b >= fixed:
            sizes[b] = scale[support[b - fixed]]
        for j in range(m):
            columns[j, b] = Z[row, j] * sizes[b]
    desk.coefficients[:] = 0.0
    if fixed + count > 0:
        head, solved = average_ridges(columns, Z[fixed, :m].copy(), intercept, penalties)
        largest, kept = 0.0, 0
        for b in range(fixed):
            out[b] = head[b]
        for b in range(fixed, head.size):
            largest = max(largest, abs(head[b]))
        for b in range(fixed, head.size):
            if solved and abs(head[b]) > math.sqrt(_ROUNDING) * largest:
                out[rank + 1 + kept] = support[b - fixed]
                out[rank + 1 + most + kept] = head[b] * sizes[b]
                kept += 1
        for b in range(head.size):
            desk.coefficients[b] = head[b] * sizes[b]
    if intercept:
        level = level_of(desk, fixed, base, count)
        if math.isfinite(level):
            out[rank] = level
