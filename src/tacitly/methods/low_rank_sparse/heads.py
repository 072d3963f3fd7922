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
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from tacitly.arrays import Array, Offsets, Rows, check_shape, check_size, per_user, read_only
from tacitly.heads.base import HeadWork
from tacitly.heads.penalties import PENALTIES
from tacitly.heads.population import HeadPrior, PopulationHeads
from tacitly.heads.ridge_arrays import ridges_beside_means
from tacitly.methods.low_rank_sparse.array_choices import chosen_sizes
from tacitly.methods.low_rank_sparse.array_fits import CONSTANT, MOST_COLUMNS, ROUNDING, SWAPS, fit_in_arrays
from tacitly.simd.lazy_njit import MANY, few

Indices = npt.NDArray[np.int64]

EXPECTED = 0.5
"""Penalty if the number of coordinates is given, which states that they exist: twice this value would hide many."""

UNKNOWN = 1.25
"""Penalty if users choose the number: if no personal coordinates exist, a smaller value would fit noise."""

_MOST = 1 << 20  # coordinates per user
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
        """:attr:`sizes`, or an empty array if there is nothing to choose: kernels have one signature for both."""
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
        """Invert :meth:`packed`. The width is for the largest allowed number, because a user's number is private."""
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
    columns = sparsity.most + np.shape(basis)[1]
    if few(len(offsets) - 1, X.shape[1]) and columns <= MOST_COLUMNS and not shared_weight:
        return _in_arrays(X, y, np.asarray(offsets), np.asarray(basis, dtype=np.float64), sparsity, intercept)
    from tacitly.methods.low_rank_sparse.head_kernels import fit_heads
    from tacitly.methods.low_rank_sparse.kernels import workspace_for
    from tacitly.simd.registers import padded

    X, y, directions = np.ascontiguousarray(X), np.ascontiguousarray(y), np.asarray(basis, dtype=np.float64)
    rank, n, most = directions.shape[1], len(offsets) - 1, sparsity.most
    table, errors = np.zeros((n, rank + 1 + 2 * most)), np.full(n, math.inf)
    fixed = 0 if shared_weight else rank
    fit_heads(
        *(read_only(X), read_only(y), np.array(offsets), padded(directions.T, X.dtype), shared_weight, intercept),
        *(sparsity.choices, PENALTIES, workspace_for(np.asarray(offsets), X, fixed, most), table, errors),
    )
    overflown = ~np.isfinite(table).all(axis=1)
    table[overflown], errors[overflown] = 0.0, math.inf  # no head rather than a meaningless one
    if shared_weight:
        table[:, 0] = 1.0
    indices = table[:, rank + 1 : rank + 1 + most].astype(np.int64)
    return SparseHeads(table[:, :rank], table[:, rank], indices, table[:, rank + 1 + most :]), errors


def _in_arrays(
    X: Rows, y: Rows, offsets: Offsets, basis: Array, sparsity: Sparsity, intercept: bool
) -> tuple[SparseHeads, Array]:
    """Return the same as :func:`_with_errors`, by array operations."""
    rows, targets, counts, rank = X.astype(np.float64), y.astype(np.float64), np.diff(offsets), basis.shape[1]
    most = sparsity.most
    with np.errstate(all="ignore"):
        scale = inverse_sizes(rows, offsets, intercept)
        wanted = wanted_by(sparsity, rows, targets, offsets, basis, scale, intercept=intercept, doubt=1.0)
        fits = fit_in_arrays(
            *(rows, targets, offsets, basis, scale, most), intercept=intercept, stages=most, swaps=SWAPS, wanted=wanted
        )
        sizes = np.column_stack([np.ones((len(counts), rank)), np.take_along_axis(scale, fits.support, axis=1)])
        columns = np.stack(fits.columns, axis=1) * np.repeat(sizes, counts, axis=0)
        heads, errors = np.zeros((len(counts), rank + most)), np.full(len(counts), math.inf)
        for size in range(most + 1):  # a separate fit for each number of columns: penalties are relative to it
            # Users with other numbers take part without rows: how many chose this one is private, and changes no bit.
            chosen = fits.sizes == size
            own, starts = np.repeat(chosen, counts), np.append(0, np.cumsum(np.where(chosen, counts, 0)))
            used = columns[own, : rank + size]
            fitted, found, _ = ridges_beside_means(used, fits.targets[own], starts, intercept=intercept)
            errors[chosen], heads[chosen, : rank + size] = found[chosen], fitted[chosen, :-1]
        values = np.abs(heads[:, rank:])
        kept = np.isfinite(errors)[:, None] & (values > math.sqrt(ROUNDING) * values.max(axis=1, initial=0.0)[:, None])
        raw = heads * sizes
        levels = fits.means[0] - np.einsum("nb,nb->n", raw, np.stack(fits.means[1:], axis=1)) if intercept else 0.0
        table = np.column_stack([heads[:, :rank], np.where(np.isfinite(levels), levels, 0.0) + np.zeros(len(counts))])
        order = np.argsort(~kept, axis=1, kind="stable")  # kept coordinates come first
        indices = np.take_along_axis(np.where(kept, fits.support, 0), order, axis=1)
        values = np.take_along_axis(np.where(kept, raw[:, rank:], 0.0), order, axis=1)
    usable = np.isfinite(table).all(axis=1) & np.isfinite(values).all(axis=1)
    table, values = np.where(usable[:, None], table, 0.0), np.where(usable[:, None], values, 0.0)
    indices, errors = np.where(usable[:, None], indices, 0), np.where(usable, errors, math.inf)
    return SparseHeads(table[:, :rank], table[:, rank], indices, values), errors


def wanted_by(
    sparsity: Sparsity,
    X: Array,
    y: Array,
    offsets: Offsets,
    basis: Array,
    scale: Array,
    *,
    intercept: bool,
    doubt: float,
) -> Indices | None:
    """Return the number of coordinates that each user has chosen; None if there is nothing to choose."""
    if not sparsity.chosen:
        return None
    return chosen_sizes(X, y, offsets, basis, scale, sparsity.sizes, intercept=intercept, doubt=doubt)


def inverse_sizes(rows: Array, offsets: Offsets, intercept: bool) -> Array:
    """Return 1/size of each feature on each user's rows (around their mean, with an intercept); 0 if it is constant."""
    counts = np.maximum(np.diff(offsets), 1)[:, None]
    means = per_user(rows, offsets) / counts if intercept else np.zeros((len(counts), rows.shape[1]))
    squares = per_user(np.square(rows - np.repeat(means, np.diff(offsets), axis=0)), offsets)
    sizes = np.sqrt(squares / counts)
    return np.where(sizes > CONSTANT * np.abs(means), 1.0 / sizes, 0.0)


@dataclass(frozen=True)
class SparseHeadWork(HeadWork):
    """Fit heads by :func:`fit_sparse_heads` on a public basis, and pack them.

    With a ``prior`` of heads, users average their own fit with the head that the population gives them
    (:mod:`tacitly.heads.population`, without personal coordinates), according to how well each predicts rows that are
    left out. The own fit is penalised for its parameters and for the choice of k of d coordinates: ``penalty`` times
    the neutral value for unknown existence of such coordinates.
    """

    basis: Array
    sparsity: Sparsity
    intercept: bool = False
    shared_weight: bool = False
    prior: HeadPrior | None = None
    belief: str = "usual"
    penalty: float = EXPECTED
    span: ClassVar[int] = MANY

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
        fit = work.in_arrays if few(len(offsets) - 1, X.shape[1]) else work.with_errors
        shrunk, others = fit(X, y, offsets)
        share = self._share(np.diff(offsets), np.count_nonzero(alone.values, axis=1), errors, others)
        weights = alone.weights * share[:, None] + shrunk[:, :-1] * (1.0 - share[:, None])
        if self.shared_weight:
            weights = alone.weights  # exactly one, to the last bit
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
