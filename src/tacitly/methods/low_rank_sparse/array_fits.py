"""Fits of a few users' models at once by array operations, without compiled code.

The same as :func:`~tacitly.methods.low_rank_sparse.kernels.fit_users`, for few users, for whom compiling would take
longer: a user fits weights on the basis, adds personal coordinates in parts, and exchanges them while this improves the
fit. No number of one user depends on another user's rows, to the last bit: rows are changed entry by entry and added up
user by user, and all later arrays have one entry per user.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tacitly.arrays import Array, Offsets, Rows, per_user, rows_times

Indices = npt.NDArray[np.int64]

CONSTANT = 1e-13
"""Relative to a feature's mean: smaller variation is rounding error."""

ROUNDING = 1e-12
"""Relative difference of squares below which differences are rounding errors."""

SWAPS = 12
"""How often a head's support may be revised: more than any observed fit needed; most fits need two revisions."""

MOST_COLUMNS = 12
"""Largest number of weights and personal coordinates for array operations, because products grow quadratically."""

_RIDGE = 1e-12  # relative to each column's square, as in the compiled form
_NOTHING = int(np.float64(np.finfo(np.float64).tiny).view(np.int64))  # smaller keys belong to zeros


@dataclass(frozen=True)
class Fits:
    """Fits of several users; columns are the projections on the basis, then the selected features, one array each."""

    columns: list[Array]  # one number per row; zero for rows of users with fewer columns
    targets: Array
    means: list[Array]  # means of the targets, then of the columns, one number per user; zeros without an intercept
    coefficients: list[Array]  # one number per user
    support: Indices  # the selected features, one row per user
    sizes: Indices  # number of selected features
    left: Array  # residuals
    pull: Array  # Xᵀ times residuals, one row per user


def affordable(rows: Indices, fixed: int, most: int) -> Indices:
    """Return the number of coordinates: one per two rows in excess of ``fixed`` columns, at most ``most``.

    >>> affordable(np.array([1, 5, 9]), 2, 3)
    array([0, 1, 3])
    """
    return np.clip((rows - fixed) // 2, 0, most)


def fit_in_arrays(
    X: Array,
    y: Array,
    offsets: Offsets,
    basis: Array,
    scale: Array,
    most: int,
    *,
    intercept: bool,
    stages: int,
    swaps: int,
    wanted: Indices | None = None,
) -> Fits:
    """Fit all users: weights on the basis, and up to ``most`` personal coordinates if there are enough rows.

    ``wanted`` has the number of coordinates of each user, if users have chosen one.

    ``scale`` has one row per user and one number per feature; candidates are compared in these units.
    """
    state = _State(X, y, offsets, basis, scale, most, intercept)
    state.solve_and_keep()
    if wanted is None:
        wanted = affordable(state.counts, basis.shape[1] + int(intercept), most)
    parts = np.minimum(stages, wanted)
    for stage in range(min(stages, most)):
        goals = np.where(stage < parts, -(-wanted * (stage + 1) // np.maximum(parts, 1)), 0)
        state.grow(np.maximum(goals - state.sizes, 0))
    for _ in range(swaps if most else 0):
        if not state.swap():
            break
    return state.fits()


class _State:
    def __init__(
        self, X: Array, y: Array, offsets: Offsets, basis: Array, scale: Array, most: int, intercept: bool
    ) -> None:
        self.X, self.offsets, self.scale, self.intercept = X, offsets, scale, intercept
        self.counts = np.diff(offsets)
        n, self.most, self.fixed = len(self.counts), most, basis.shape[1]
        self.owner = np.repeat(np.arange(n), self.counts)
        self.targets, level = self._centred(y)
        loaded = [self._centred(column) for column in rows_times(X, basis).T]
        self.columns, self.means = [column for column, _ in loaded], [level, *(mean for _, mean in loaded)]
        self.support, self.sizes = np.zeros((n, most), dtype=np.int64), np.zeros(n, dtype=np.int64)
        self.selected: list[tuple[Array, Array]] = [(np.zeros(len(y)), np.zeros(n)) for _ in range(most)]
        self.active = np.ones(n, dtype=bool)
        self.mask = (1 << (X.shape[1] - 1).bit_length()) - 1

    def fits(self) -> Fits:
        columns = [*self.columns, *(column for column, _ in self.selected)]
        means = [*self.means, *(mean for _, mean in self.selected)]
        return Fits(columns, self.targets, means, self.kept, self.support, self.sizes, self.left, self.pull)

    def grow(self, goals: Indices) -> None:
        """Add to each support the coordinates most correlated with the residual."""
        if not goals.any():
            return
        keys = self._keys(self.pull * self.scale)
        users = np.arange(len(goals))
        for place in range(self.most):
            has = self.sizes > place
            keys[users[has], self.support[has, place]] = 0
        order = np.argsort(-keys, axis=1, kind="stable")
        for place in range(min(int(goals.max()), keys.shape[1])):
            candidate = order[:, place]
            chosen = (goals > place) & (keys[users, candidate] >= _NOTHING)
            self.support[users[chosen], self.sizes[chosen]] = candidate[chosen]
            self.sizes = self.sizes + chosen
        self.selected = [self._selected(self.support, place) for place in range(self.most)]
        self.solve_and_keep()

    def solve_and_keep(self) -> None:
        """Fit all users to their columns."""
        self.kept, self.left, self.least = self._solve(self.selected)
        self.pull = self._pull()

    def swap(self) -> bool:
        """Try the largest of b + gradient as supports; return whether any user continues."""
        attempt = self._attempts()
        if not self.active.any():
            return False
        selected = [self._selected(attempt, place) for place in range(self.most)]
        trial, tried, errors = self._solve(selected)
        better = self.active = self.active & (errors < self.least)
        rows = better[self.owner]
        self.kept = [np.where(better, new, old) for new, old in zip(trial, self.kept, strict=True)]
        self.left, self.least = np.where(rows, tried, self.left), np.where(better, errors, self.least)
        self.support = np.where(better[:, None], attempt, self.support)
        self.selected = [
            (np.where(rows, new, old), np.where(better, mean, before))
            for (new, mean), (old, before) in zip(selected, self.selected, strict=True)
        ]
        self.pull = self._pull()
        return bool(better.any())

    def _attempts(self) -> Indices:
        """Return trial supports, in which kept coordinates keep their places; record which users have a new one."""
        users, places = np.arange(len(self.sizes)), np.arange(self.most)
        values = self.pull * self.scale
        for place in range(self.most):
            own = self.support[:, place]
            step = self.kept[self.fixed + place] * self.counts / self.scale[users, own]
            moved = np.where(place < self.sizes, values[users, own] + step, values[users, own])
            values[users, own] = moved
        keys = self._keys(values)
        order = np.argsort(-keys, axis=1, kind="stable")[:, : self.most]
        there = places < self.sizes[:, None]
        last = np.take_along_axis(keys, order, axis=1)[users, np.maximum(self.sizes - 1, 0)]
        same = (self.support[:, :, None] == order[:, None, :]) & there[:, :, None] & there[:, None, :]
        leaving, entering = there & ~same.any(axis=2), there & ~same.any(axis=1)
        self.active = self.active & (self.sizes > 0) & (last >= _NOTHING) & entering.any(axis=1)
        first = np.argsort(~entering, axis=1, kind="stable")  # the entering coordinates, in order
        newcomers = np.take_along_axis(order, first, axis=1)
        ranks = np.maximum(np.cumsum(leaving, axis=1) - 1, 0)
        return np.where(leaving, np.take_along_axis(newcomers, ranks, axis=1), self.support)

    def _keys(self, values: Array) -> Indices:
        """Return absolute values as integers of the same order, with the position in the lowest bits."""
        sizes = np.where(np.isfinite(values), np.abs(values), 0.0)
        return np.asarray((sizes.view(np.int64) & ~self.mask) | np.arange(values.shape[1]))

    def _solve(self, selected: list[tuple[Array, Array]]) -> tuple[list[Array], Array, Array]:
        """Return least-squares coefficients, residuals and sums of squares; not finite for a singular system."""
        columns = [*self.columns, *(column for column, _ in selected)]
        count, forward = len(columns), list[Array]()
        factor: dict[tuple[int, int], Array] = {}
        spare = [0.0] * self.fixed + [(self.sizes <= place).astype(np.float64) for place in range(self.most)]
        rights = [per_user(column * self.targets, self.offsets) for column in columns]
        for i in range(count):
            row = [per_user(columns[i] * columns[j], self.offsets) for j in range(i + 1)]
            row[i] = row[i] * (1.0 + _RIDGE) + spare[i]
            right = rights[i]
            for j in range(i + 1):
                for p in range(j):
                    row[j] = row[j] - factor[i, p] * factor[j, p]
                factor[i, j] = np.sqrt(row[j]) if i == j else row[j] / factor[j, j]
            for p in range(i):
                right = right - factor[i, p] * forward[p]
            forward.append(right / factor[i, i])
        found: list[Array] = [np.zeros(len(self.counts))] * count
        for i in range(count - 1, -1, -1):
            value = forward[i]
            for p in range(i + 1, count):
                value = value - factor[p, i] * found[p]
            found[i] = value / factor[i, i]
        left = self.targets
        for column, weight in zip(columns, found, strict=True):
            left = left - column * weight[self.owner]
        return found, left, per_user(np.square(left), self.offsets)

    def _pull(self) -> Array:
        return per_user(self.X * self.left[:, None], self.offsets)

    def _selected(self, support: Indices, place: int) -> tuple[Array, Array]:
        """Return the column of each user's coordinate at this place; zeros for users without a coordinate there."""
        features = support[:, place][self.owner]
        column = np.take_along_axis(self.X, features[:, None], axis=1)[:, 0] if self.X.size else np.zeros(0)
        column = np.where((place < self.sizes)[self.owner], column, 0.0)
        return self._centred(column)

    def _centred(self, column: Rows) -> tuple[Array, Array]:
        if not self.intercept:
            return np.asarray(column, dtype=np.float64), np.zeros(len(self.counts))
        means = per_user(np.asarray(column, dtype=np.float64), self.offsets) / np.maximum(self.counts, 1)
        return np.asarray(column - means[self.owner]), means
