"""Rows that cannot be used are left out without a word, and their users stay on the roster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse

from tacitly.data.cohort import Cohort
from tacitly.data.reading import read_cohort
from tacitly.data.sparse_cohort import SparseCohort
from tacitly.data.validation import DataError

BAD = [np.nan, np.inf, -np.inf, None, "S3CR3T", "1_000", "", 10**400]
IDS = ["a", "a", "b", "b", "b", "c"]
CLEAN = np.arange(12.0).reshape(6, 2)


def cells(bad: Any) -> np.ndarray:
    """User a has one bad row of two, user c has no other row."""
    values = CLEAN.astype(object)
    values[0, 1] = values[5, 0] = bad
    return values


def check(cohort: Cohort) -> None:
    assert cohort.users.tolist() == ["a", "b", "c"]
    assert cohort.offsets.tolist() == [0, 1, 4, 5]
    np.testing.assert_array_equal(cohort.X[:4], CLEAN[1:5])
    assert np.isnan(cohort.X[4]).all()


@pytest.mark.parametrize("bad", BAD, ids=repr)
@pytest.mark.parametrize("form", ["array", "frame", "csv", "folder", "table"])
def test_a_bad_row_is_dropped_and_its_user_stays(bad: Any, form: str, tmp_path: Path) -> None:
    values = cells(bad)
    frame = pd.DataFrame({"who": IDS, "one": values[:, 0], "two": values[:, 1]})
    if form == "array":
        check(Cohort.from_arrays(values, None, IDS, on_bad_rows="drop"))
    elif form == "frame":
        check(Cohort.from_arrays(frame[["one", "two"]], None, IDS, on_bad_rows="drop"))
    elif form == "table":
        check(Cohort.from_table(frame, user="who", on_bad_rows="drop"))
    else:
        frame.to_csv(tmp_path / "rows.csv", index=False)
        folder = tmp_path / "cohort" if form == "folder" else None
        check(Cohort.from_table(tmp_path / "rows.csv", user="who", folder=folder, on_bad_rows="drop"))


@pytest.mark.parametrize("bad", BAD, ids=repr)
def test_a_bad_target_makes_a_bad_row(bad: Any) -> None:
    y = np.ones(6, dtype=object)
    y[0] = y[5] = bad
    cohort = Cohort.from_arrays(CLEAN, y, IDS, on_bad_rows="drop")
    assert cohort.offsets.tolist() == [0, 1, 4, 5]
    assert np.isnan(cohort.y[4])  # type: ignore[index]
    assert np.isfinite(cohort.y[:4]).all()  # type: ignore[index]


def test_where_the_number_of_rows_is_public_a_bad_row_stays_empty() -> None:
    y = np.array([1.0, np.nan, 1.0, 1.0, 1.0, 1.0])
    cohort = read_cohort(cells(np.inf), y, None, needs_users=False, on_bad_rows="blank")
    assert cohort.n_rows == 6
    assert np.isnan([cohort.X[0, 1], cohort.X[5, 0], cohort.y[1]]).all()


def test_rows_without_a_user_are_nobodys() -> None:
    cohort = Cohort.from_arrays(CLEAN, None, ["a", None, "b", "b", "", "c"], on_bad_rows="drop")
    assert (cohort.users.tolist(), cohort.offsets.tolist()) == (["a", "b", "c"], [0, 1, 3, 4])


def test_what_was_given_stays_as_it_was() -> None:
    X, y = CLEAN.copy(), np.array([1.0, np.inf, 1.0, 1.0, 1.0, 1.0])
    X[2, 1] = np.inf
    for array in (X, y):
        array.flags.writeable = False
    assert Cohort.from_arrays(X, y, IDS, on_bad_rows="drop").n_rows == 4
    assert np.isinf([X[2, 1], y[1]]).all()


def test_nothing_is_copied_where_all_rows_are_good() -> None:
    X = CLEAN.copy()
    assert np.shares_memory(Cohort.from_arrays(X, None, IDS, on_bad_rows="drop").X, X)


def test_a_column_without_any_number_is_the_wrong_column() -> None:
    """One user changes this only where nobody else has a number in it."""
    values = CLEAN.astype(object)
    values[:, 1] = "red"
    with pytest.raises(DataError, match=r"no numbers in column 1\b") as caught:
        Cohort.from_arrays(values, None, IDS, on_bad_rows="drop")
    assert "red" not in str(caught.value)
    values[3, 1] = 4.0
    assert Cohort.from_arrays(values, None, IDS, on_bad_rows="drop").n_users == 3


def test_cells_of_another_kind_than_declared_are_missing() -> None:
    frame = pd.DataFrame({"age": ["30", "S3CR3T", "40", "1", "2", "3"], "smokes": ["yes", "no", "x", "no", "no", "no"]})
    schema = {"age": {"kind": "number"}, "smokes": {"kind": "boolean"}}
    cohort = Cohort.from_arrays(frame, np.ones(6), IDS, schema=schema, on_bad_rows="drop")
    assert cohort.n_rows == 6
    assert np.isnan([cohort.X[1, 0], cohort.X[2, 1]]).all()
    with pytest.raises(DataError, match="another kind"):
        Cohort.from_arrays(frame, np.ones(6), IDS, schema=schema)


def test_a_sparse_row_with_a_bad_entry_counts_as_empty() -> None:
    dense = CLEAN.copy()
    dense[1, 1] = np.nan
    cohort = SparseCohort.from_matrix(scipy.sparse.csr_matrix(dense), IDS, on_bad_rows="drop")
    assert cohort.n_users == 3
    expected = CLEAN.copy()
    expected[1] = 0.0
    np.testing.assert_array_equal(cohort.X.toarray(), expected)
    with pytest.raises(DataError, match="missing or infinite"):
        SparseCohort.from_matrix(scipy.sparse.csr_matrix(dense), IDS)


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(DataError, match="on_bad_rows must be one of"):
        Cohort.from_arrays(CLEAN, None, IDS, on_bad_rows="ignore")
