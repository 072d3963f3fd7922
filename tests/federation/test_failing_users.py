"""A user whose numbers make a batch fail changes nothing for others, however the batch is computed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import scipy.sparse

from tacitly.arrays import Array, Offsets, Rows
from tacitly.data.cohort import Cohort
from tacitly.federation import forms
from tacitly.federation.query import BLOCK, Query
from tacitly.federation.shard import Shard
from tacitly.federation.statistics import Statistics
from tacitly.methods.mixed_effects.posterior import Coordinates, Prior, posteriors
from tacitly.methods.mixed_effects.variance_queries import LogVariances, Spread, Variances
from tacitly.privacy.guarantee import Unit


@dataclass(frozen=True)
class _Amplified(Query):
    """Something that a batch computes otherwise than a user alone, as rounding may; large values make a batch fail."""

    @property
    def coordinates(self) -> int:
        return 1

    def contribution(self, X: Rows, y: Rows) -> Array:
        return np.array([1.0 if len(X) else 0.0])

    def block_sum(self, X: Rows, y: Rows, offsets: Offsets, bound: float) -> Array:
        if len(X) and np.abs(X).max() > 1e6:
            raise FloatingPointError
        users = np.count_nonzero(np.diff(offsets))
        return np.array([bound * users if len(offsets) == 2 else -bound * users])


def _cohorts(users: int, rows: int, hostile: Array, targets: Array) -> tuple[Cohort, Cohort]:
    """Return the same users twice: with the first one's hostile rows, and with none of them that count."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=((users - 1) * rows, hostile.shape[1])), rng.normal(size=(users - 1) * rows)
    found = []
    for first, own in ((hostile, targets), (hostile[:1] * 0, np.full(1, 1e300))):
        offsets = np.concatenate([[0], len(first) + np.arange(users) * rows])
        found.append(Cohort.from_offsets(np.vstack([first, X]), np.append(own, y), offsets))
    return found[0], found[1]


def test_batches_keep_their_shape_when_a_user_is_left_out() -> None:
    with_user, without = _cohorts(50, 3, np.full((2, 2), 1e9), np.zeros(2))
    query, grid = _Amplified(), 2.0**-30
    sums = [Shard(cohort, threads=1)._sum(query, query, 1.0, grid, None)[0] * grid for cohort in (with_user, without)]
    assert abs(sums[0] - sums[1]) <= 1.0


@dataclass(frozen=True)
class _FirstRows(Statistics):
    """The first row of each user; not numbers where they are large."""

    width = 16

    def __call__(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        return np.where(X[offsets[:-1]] > 1.0, np.nan, X[offsets[:-1]])


@dataclass(frozen=True)
class _SumOfFirstRows(Query):
    """A sum from statistics that have been kept."""

    statistics = _FirstRows()

    @property
    def coordinates(self) -> int:
        return 16

    def contribution(self, X: Rows, y: Rows) -> Array:
        return np.asarray(X[0], dtype=np.float64)

    def sums_of(self, statistics: Array, bound: float, size: int) -> Array:
        return np.array([statistics[start : start + size].sum(axis=0) for start in range(0, len(statistics), size)])


def test_others_keep_their_blocks_when_a_user_with_kept_statistics_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user affects the rounding of one block only: nobody moves to the place of one who is left out."""
    monkeypatch.setattr(forms, "MANY", 1)
    rows, sums = np.random.default_rng(0).uniform(high=0.2, size=(20 * BLOCK, 16)), []
    for first in (2.0, 0.0):
        rows[0] = first
        cohort = Cohort.from_offsets(rows.copy(), None, np.arange(len(rows) + 1))
        sums.append(Shard(cohort, threads=1).exact_sum(_SumOfFirstRows(), 1.0, 1.0))
    np.testing.assert_array_equal(sums[0], sums[1])


@dataclass(frozen=True)
class _AmplifiedRows(Query):
    """The same for rows, counting calls: batches of another length are computed otherwise."""

    calls: list[int]
    unit = Unit.ROW

    @property
    def coordinates(self) -> int:
        return 1

    def contribution(self, X: Rows, y: Rows) -> Array:
        return np.ones(1)

    def block_sum(self, X: Rows, y: Rows, offsets: Offsets, bound: float) -> Array:
        self.calls.append(X.shape[0])
        values = X.data if scipy.sparse.issparse(X) else X
        if len(values) and not np.abs(values).max() < 1e6:
            raise FloatingPointError
        return np.array([bound * X.shape[0] * (1 if X.shape[0] == 400 else -1)])


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("bad", [1, 3])
def test_rows_that_fail_change_no_other_row_and_cost_a_few_batches(bad: int, sparse: bool) -> None:
    X = np.random.default_rng(0).normal(size=(400, 2))
    hostile = X.copy()
    hostile[[7, 250, 399][:bad]] = [[1e9, np.nan]]
    sums, query = [], _AmplifiedRows([])
    for rows in (X, hostile):
        cohort = Cohort.from_offsets(X, np.ones(400), np.arange(0, 401, 4))
        object.__setattr__(cohort, "X", scipy.sparse.csr_matrix(rows) if sparse else rows)  # as no check lets through
        shard = Shard(cohort, threads=1)
        sums.append(shard._sum(query, query, 1.0, 2.0**-30, None)[0] * 2.0**-30)
    assert abs(sums[0] - sums[1]) <= bad
    assert sum(query.calls[1:]) <= (3 + 3 * bad) * 400


def test_a_singular_posterior_is_left_out_and_nobody_else_is_computed_differently() -> None:
    """A noise variance of 1e-14 and equal rows: I + G/s² is singular in float64 for some numbers of rows."""
    units = Coordinates(np.zeros(5), np.ones(5), 0.0, 1.0)
    root = np.diag(np.sqrt(np.append(0.5, np.full(5, 0.1 / 6)))) + 0.02
    prior = Prior(np.array([3.1, 0.2, -0.3, 0.15, 0.7, -0.45]), root, 1e-14)
    groups = np.array([0.0, 1, 1, 1, 1, 1])
    singular = 0
    for rows in range(380, 420, 4):
        hostile = np.full((rows, 5), 1e9)
        found = posteriors(hostile, np.full(rows, 0.5), np.array([0, rows]), units, prior)
        singular += int(found.rows[0] == 0)
        cohorts = _cohorts(64, 8, hostile, np.full(rows, 0.5))
        for query, bound in (
            (LogVariances(units, prior, groups), 3**0.5),
            (Variances(units, prior, groups), 2.2),
            (Spread(units, prior), 1.0),
        ):
            grid = 2.0**-30
            one, other = (Shard(cohort, threads=1).exact_sum(query, bound, grid) * grid for cohort in cohorts)
            assert np.linalg.norm(one - other) <= bound * (1 + 1e-6)
    assert singular > 0
