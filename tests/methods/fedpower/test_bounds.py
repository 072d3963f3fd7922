"""Rows built to evade a clip of FedPower: duplicate entries, a distant centre, tiny clips, a row that is not finite."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import pytest
import scipy.sparse

from adversary import units
from tacitly.data.sparse_cohort import SparseCohort
from tacitly.data.validation import DataError
from tacitly.federation.base import Query
from tacitly.linalg import orthonormal
from tacitly.methods.fedpower.algorithm import Settings
from tacitly.methods.fedpower.gram import ShiftedGram
from tacitly.methods.fedpower.power import PowerStep
from tacitly.methods.fedpower.sparse_rows import finite_rows, squared_norms
from tacitly.methods.shared.norm_histogram import NormHistogram
from tacitly.privacy.clipping import safe_norm
from tacitly.privacy.guarantee import Unit

D, K = 7, 2
BASIS = orthonormal(np.random.default_rng(1).normal(size=(D, K)))[0]
ZERO = np.zeros(D)


def named_twice(values: list[float], *, believed: bool = True) -> scipy.sparse.csr_matrix:
    """One row with many entries for its first column, and a flag that denies it."""
    places = (np.array(values), np.zeros(len(values), dtype=np.int32), np.array([0, len(values)]))
    rows = scipy.sparse.csr_matrix(places, shape=(1, D))
    if believed:
        rows.has_canonical_format = True
    return rows


def added(query: Query, X: object, bound: float, rows: int = 1) -> np.ndarray:
    with np.errstate(all="ignore"):
        return query.block_sum(X, np.zeros(rows), np.array([0, rows]), bound)  # type: ignore[arg-type]


@pytest.mark.parametrize("believed", [False, True])
@pytest.mark.parametrize("query", [ShiftedGram(ZERO, 1e-3), PowerStep(np.eye(D)[:, :K], ZERO, 1e-3)])
def test_a_column_named_many_times_counts_as_their_sum(query: Query, believed: bool) -> None:
    row = named_twice([1.0] * 400, believed=believed)
    assert squared_norms(row)[0] == 400.0**2
    assert np.linalg.norm(added(query, row, 1.0)) <= 1.0
    once = scipy.sparse.csr_matrix(row.toarray())
    np.testing.assert_allclose(added(query, row, 1.0), added(query, once, 1.0), rtol=1e-12)
    np.testing.assert_array_equal(added(NormHistogram(query), row, 1.0), added(NormHistogram(query), once, 1.0))
    assert row.nnz == 400  # the caller's matrix is unchanged


@pytest.mark.parametrize("values", [[1.7e308, 1.7e308], [math.inf, -math.inf]])
def test_a_sum_that_is_not_finite_contributes_nothing_and_is_not_let_in(values: list[float]) -> None:
    row = named_twice(values)
    for query in (ShiftedGram(ZERO, 0.5), PowerStep(BASIS, ZERO, 0.5)):
        assert not added(query, row, 3.0).any()
        assert not added(NormHistogram(query), row, 1.0).any()
    with pytest.raises(DataError, match="missing or infinite"):
        SparseCohort.from_matrix(named_twice(values, believed=False))


def test_a_sparse_cohort_has_one_entry_a_column() -> None:
    given = named_twice([1.0, 2.0, 4.0])
    kept = SparseCohort.from_matrix(given)
    assert kept.X.nnz == 1
    assert kept.X.data[0] == 7.0
    assert given.nnz == 3


@pytest.mark.parametrize("query", [ShiftedGram(ZERO, 0.5), PowerStep(BASIS, ZERO, 0.5)])
def test_a_sparse_row_with_a_hole_adds_nothing_at_all(query: Query) -> None:
    row = scipy.sparse.csr_matrix(np.array([[1.0, math.nan, 0, 0, 2.0, 0, 0]]))
    assert not finite_rows(row)[1][0]
    assert not added(query, row, 3.0).any()  # not even its constant coordinate


@pytest.mark.parametrize("query", [ShiftedGram(np.ones(D), 0.5), PowerStep(BASIS, np.ones(D), 0.5)])
def test_sparse_rows_are_not_moved_and_not_taken_as_if_they_were(query: Query) -> None:
    for asked in (query, NormHistogram(query)):
        with pytest.raises(ValueError, match="centre of sparse rows must be zero"):
            added(asked, scipy.sparse.csr_matrix(np.eye(1, D)), 1.0)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_bad_row_does_not_take_others_with_it(dtype: type) -> None:
    """A row so long that its clipped constant is 0 is still finite."""
    query = PowerStep(BASIS, ZERO, 1e-200)
    long = np.full((1, D), 1e30, dtype=dtype) * 1e4
    bad = np.vstack([long, np.full((1, D), math.nan, dtype=dtype)])
    np.testing.assert_array_equal(added(query, bad, 1.0, 2), added(query, long, 1.0))
    assert np.linalg.norm(added(query, bad, 1.0, 2)) > 0.99


@pytest.mark.parametrize("unit", [Unit.ROW, Unit.USER])
def test_a_far_centre_cancels_nothing(unit: Unit) -> None:
    rng = np.random.default_rng(0)
    centre = np.full(D, 1e9)
    rows = centre + np.rint(8 * rng.normal(size=(50, D)))  # differences are exact
    query, near = PowerStep(BASIS, centre, 1.0, unit), PowerStep(BASIS, ZERO, 1.0, unit)
    y, offsets = np.zeros(50), np.array([0, 50])
    expected = near.block_sum(rows - centre, y, offsets, 30.0)
    np.testing.assert_allclose(query.block_sum(rows, y, offsets, 30.0), expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(query.norms(rows, y, offsets), near.norms(rows - centre, y, offsets), rtol=1e-12)


@pytest.mark.parametrize("d", [7, 54, 300])
def test_a_row_across_the_basis_adds_the_same_whatever_lies_around_it(d: int) -> None:
    """Its product consists of rounding errors, which must not depend on other rows. Other rows here add exactly 0."""
    rng = np.random.default_rng(2)
    basis = orthonormal(rng.normal(size=(d, 5)))[0]
    row = rng.normal(size=d)
    row = 1e25 * (row - basis @ (basis.T @ row))
    query, found, norms = PowerStep(basis, np.zeros(d), 1e-6), set(), set()
    for before, after in ((0, 0), (1, 0), (3, 2), (7, 30), (300, 1), (5000, 77)):
        X = np.vstack([np.full((before, d), math.nan), row[None], np.full((after, d), math.nan)])
        found.add(added(query, X, 1.0, len(X)).tobytes())
        norms.add(query.norms(X, np.zeros(len(X)), np.array([0, len(X)]))[before])
    assert len(found) == 1
    assert len(norms) == 1


QUERIES = {
    "gram, row": ShiftedGram(ZERO, 1e-9),
    "gram, user": ShiftedGram(ZERO, 1e-9, Unit.USER),
    "power step, row": PowerStep(BASIS, ZERO, 1e-9),
    "power step, user": PowerStep(BASIS, ZERO, 1e-9, Unit.USER),
}


@cache
def rows_of(name: str, sparse: bool) -> list[Any]:
    few = [X for _, (X, _) in units(QUERIES[name], D) if len(X) <= 100]
    return [scipy.sparse.csr_matrix(X) for X in few] if sparse else few


@pytest.mark.parametrize("name", QUERIES)
@pytest.mark.parametrize("bound", [1e-300, 1e-250, 1e-120, 1e-30, 3.0])
@pytest.mark.parametrize("sparse", [False, True])
def test_clips_hold_however_small(name: str, bound: float, sparse: bool) -> None:
    query, worst = QUERIES[name], 0.0
    for X in rows_of(name, sparse):
        vector = added(query, X, bound, X.shape[0])
        assert np.isfinite(vector).all()
        worst = max(worst, safe_norm(vector)[0])
    assert worst <= bound
    assert worst > 0.99 * bound or bound < 1e-260  # below that a clip loses digits


def test_a_users_matrix_whose_square_underflows_is_clipped() -> None:
    rows = np.full((3, D), 1e-95)
    for X in (rows, np.repeat(rows, 4, axis=0)):  # fewer rows than features, and more
        assert safe_norm(added(ShiftedGram(ZERO, 0.0, Unit.USER), X, 1e-200, len(X)))[0] <= 1e-200


@pytest.mark.parametrize("width", [1e-25, 1e25])
def test_a_range_whose_squares_lose_digits_is_refused(width: float) -> None:
    with pytest.raises(ValueError, match="Rescale the features"):
        Settings(low=np.zeros(D), high=np.full(D, width))
    Settings(low=np.zeros(D), high=np.full(D, 1e-15))
