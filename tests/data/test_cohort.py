"""A cohort groups rows by user, refuses bad data without quoting it, and can live on disk."""

from __future__ import annotations

import json
import mmap
import traceback
import tracemalloc
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tacitly.data.cohort import Cohort, DataError

SECRET = 987654.25
SECRET_USER = "secret-person"
IDS = np.array([2, 1, 2, 3, 1, 2])


def refusal(call: Callable[[], object]) -> str:
    """Return the message of a refusal, after checking that nothing private is printed with it."""
    with pytest.raises(DataError) as caught:
        call()
    printed = "".join(traceback.format_exception_only(caught.value))
    shown: BaseException | None = caught.value
    while shown is not None:
        assert str(SECRET) not in str(shown)
        assert SECRET_USER not in str(shown)
        shown = None if shown.__suppress_context__ else shown.__context__
    return printed


def matrix(rows: int = 6, columns: int = 3) -> np.ndarray[Any, Any]:
    values = np.arange(rows * columns, dtype=float).reshape(rows, columns)
    values[-1, -1] = SECRET
    return values


def shares_memory(cohort: Cohort, array: np.ndarray[Any, Any]) -> bool:
    return np.shares_memory(cohort.X, array)


@settings(max_examples=150, deadline=None)
@given(
    ids=st.lists(
        st.one_of(
            st.integers(-5, 5),
            st.sampled_from(["a", "b", "c", "10", "9"]),
            st.integers(10**15, 10**15 + 3),
        ),
        min_size=2,
        max_size=40,
    ).filter(lambda ids: len({str(i) for i in ids}) > 1),
    data=st.data(),
)
def test_grouping_equals_a_dict_of_lists(ids: list[Any], data: Any) -> None:
    X = data.draw(hnp.arrays(np.float64, (len(ids), 2), elements=st.floats(-9, 9)))
    y = np.arange(len(ids), dtype=float)
    if not all(isinstance(i, int) for i in ids):
        ids = [str(i) for i in ids]
    groups: dict[Any, list[int]] = {}
    for row, i in enumerate(ids):
        groups.setdefault(i, []).append(row)

    cohort = Cohort.from_arrays(X, y, ids)

    assert cohort.users.tolist() == sorted(groups)
    for position, i in enumerate(sorted(groups)):
        own, targets = cohort.rows(position)
        np.testing.assert_array_equal(own, X[groups[i]])
        np.testing.assert_array_equal(targets, y[groups[i]])
    np.testing.assert_array_equal(cohort.index_of(list(groups)), [sorted(groups).index(i) for i in groups])


@pytest.mark.parametrize("spread", [1, 10**12], ids=["dense", "sparse"])
def test_many_integer_ids_group_stably(spread: int) -> None:
    rng = np.random.default_rng(0)
    ids = rng.integers(-70_000, 70_000, 200_000) * spread
    rows = np.arange(len(ids), dtype=float)
    cohort = Cohort.from_arrays(rows[:, None], None, ids)
    order = np.argsort(ids, kind="stable")
    np.testing.assert_array_equal(cohort.X[:, 0], rows[order])
    np.testing.assert_array_equal(np.repeat(cohort.users, np.diff(cohort.offsets)), ids[order])


def test_rows_in_order_of_their_users_are_not_copied() -> None:
    X, y = matrix(), np.zeros(6)
    cohort = Cohort.from_arrays(X, y, ["a", "a", "b", "c", "c", "c"])
    assert shares_memory(cohort, X)
    assert cohort.y is not None
    assert np.shares_memory(cohort.y, y)
    assert cohort.offsets.tolist() == [0, 2, 3, 6]


def test_rows_out_of_order_are_copied_contiguously() -> None:
    X = np.asfortranarray(matrix())
    for ids in (IDS, np.sort(IDS)):
        cohort = Cohort.from_arrays(X, None, ids)
        assert cohort.X.flags.c_contiguous
        assert not shares_memory(cohort, X)


def test_arrays_of_a_cohort_are_read_only_and_the_callers_stay_writeable() -> None:
    X = matrix()
    cohort = Cohort.from_arrays(X, None, np.sort(IDS))
    with pytest.raises(ValueError, match="read-only"):
        cohort.X[0, 0] = 1.0
    X[0, 0] = 1.0


@pytest.mark.parametrize(
    ("given_type", "asked", "kept"),
    [
        (np.float32, None, np.float32),
        (np.float64, None, np.float64),
        (np.float16, None, np.float64),
        (np.int64, None, np.float64),
        (np.uint8, None, np.float64),
        (np.bool_, None, np.float64),
        (">f4", None, np.float32),
        (np.float64, np.float32, np.float32),
        (np.float32, np.float64, np.float64),
    ],
)
def test_float32_is_kept_and_everything_else_becomes_float64(given_type: Any, asked: Any, kept: Any) -> None:
    X = np.arange(12).reshape(6, 2).astype(given_type)
    cohort = Cohort.from_arrays(X, np.arange(6), IDS, dtype=asked)
    assert cohort.dtype == kept
    assert cohort.y is not None
    assert cohort.y.dtype == kept
    assert cohort.X.dtype.isnative


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame], ids=["pandas", "polars"])
@pytest.mark.parametrize("series", [pd.Series, pl.Series], ids=["pandas", "polars"])
def test_frames_and_series_are_read_with_their_names(frame: Any, series: Any) -> None:
    table = frame({"age": [1, 2, 3], "tall": [True, False, True]})
    ids = series(["b", "a", "b"])
    target = pd.Series([1.0, 2.0, 3.0], name="pay")
    cohort = Cohort.from_arrays(table, target, ids)
    assert cohort.feature_names == ("age", "tall")
    assert cohort.target_name == "pay"
    assert cohort.users.tolist() == ["a", "b"]
    assert cohort.X.tolist() == [[2, 0], [1, 1], [3, 1]]


def test_lists_are_read_and_unnamed_columns_are_numbered() -> None:
    cohort = Cohort.from_arrays([[1, 2], [3, 4]], [0, 1], ["u", "v"])
    assert cohort.feature_names == ("x0", "x1")
    assert cohort.target_name is None
    assert (cohort.n_users, cohort.n_features, cohort.n_rows) == (2, 2, 2)


def test_numbers_written_as_text_are_read_as_numbers() -> None:
    cohort = Cohort.from_arrays(np.array([["1.5"], ["True"]]), None, [0, 1])
    assert cohort.X.tolist() == [[1.5], [1.0]]


PEOPLE = [uuid.UUID(int=1), uuid.UUID(int=2)]


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ([2, 1], [1, 2]),
        ([2.0, 1.0], [1, 2]),
        (np.array([2**63 + 1, 7], np.uint64), [7, 2**63 + 1]),
        ([2**70, 1], ["1", str(2**70)]),
        ([0.5, 1.0], ["0.5", "1"]),
        (["b", "a"], ["a", "b"]),
        ([1, "a"], ["1", "a"]),
        (PEOPLE, [str(person) for person in PEOPLE]),
        ([b"\x02\x00", b"\x01"], ["01", "0200"]),
        ([[2], [1]], ["[1]", "[2]"]),
        (np.array(["2024-01-02", "2024-01-01"], "M8[D]"), ["2024-01-01", "2024-01-02"]),
        (pd.Categorical(["b", "a"]), ["a", "b"]),
        (np.array([True, False]), [0, 1]),
    ],
    ids=str,
)
def test_ids_of_any_type_become_whole_numbers_or_text(ids: Any, expected: list[Any]) -> None:
    cohort = Cohort.from_arrays(np.eye(2), None, ids)
    assert cohort.users.tolist() == expected
    assert cohort.users.dtype.kind in "iuU"
    assert sorted(cohort.index_of(ids).tolist()) == [0, 1]


def test_index_of_gives_minus_one_for_unknown_and_missing_ids() -> None:
    cohort = Cohort.from_arrays(np.eye(3), None, ["a", "b", "c"])
    assert cohort.index_of(["c", "x", None, "a", ""]).tolist() == [2, -1, -1, 0, -1]
    assert cohort.index_of(np.array([], str)).tolist() == []
    assert cohort.index_of([]).dtype == np.int64


def test_index_of_compares_numbers_and_text_by_their_spelling() -> None:
    numbered = Cohort.from_arrays(np.eye(3), None, [2, 10, 7])
    assert numbered.index_of(["10", "2", "02", "x"]).tolist() == [2, 0, -1, -1]
    named = Cohort.from_arrays(np.eye(3), None, ["2", "10", "x"])
    assert named.index_of([2, 10, 3, 2.5]).tolist() == [1, 0, -1, -1]


def test_index_of_one_text_is_refused_instead_of_spelled_out() -> None:
    cohort = Cohort.from_arrays(np.eye(2), None, ["a", "b"])
    assert "Expected a list" in refusal(lambda: cohort.index_of("ab"))
    assert "Expected a list" in refusal(lambda: cohort.index_of(3))


def test_take_returns_the_chosen_users_in_the_order_asked() -> None:
    cohort = Cohort.from_arrays(matrix(), np.arange(6), IDS, target_name="y")
    part = cohort.take([2, 0])
    assert part.users.tolist() == [3, 1]
    for mine, theirs in [(0, 2), (1, 0)]:
        np.testing.assert_array_equal(part.rows(mine)[0], cohort.rows(theirs)[0])
        np.testing.assert_array_equal(part.rows(mine)[1], cohort.rows(theirs)[1])
    assert part.index_of([1, 2, 3]).tolist() == [1, -1, 0]
    assert part.target_name == "y"


def test_take_of_neighbours_is_a_view() -> None:
    cohort = Cohort.from_arrays(matrix(), None, IDS)
    part = cohort.take(np.array([1, 2]))
    assert shares_memory(part, cohort.X)
    np.testing.assert_array_equal(part.X, cohort.X[cohort.offsets[1] :])
    assert cohort.take([1]).n_users == 1


@pytest.mark.parametrize(
    ("positions", "said"),
    [
        ([-1, 0], "1 of 2 positions"),
        ([0, 3], "1 of 2 positions"),
        ([0, 0], "1 ids are repeated"),
        ([], "at least one"),
        ([True, False, True], "flatnonzero"),
        ([[0]], "one dimension"),
    ],
)
def test_take_refuses_positions_that_are_not_users(positions: Any, said: str) -> None:
    cohort = Cohort.from_arrays(matrix(), None, IDS)
    assert said in refusal(lambda: cohort.take(positions))


def test_rows_outside_the_cohort_are_an_index_error() -> None:
    cohort = Cohort.from_arrays(matrix(), None, IDS)
    for i in (-1, 3):
        with pytest.raises(IndexError, match="Expected 0 to 2"):
            cohort.rows(i)


def test_repr_shows_only_what_is_public() -> None:
    cohort = Cohort.from_arrays(matrix(), None, IDS)
    assert repr(cohort) == str(cohort) == "Cohort(n_users=3, n_features=3, dtype=float64)"


def test_from_offsets_copies_nothing() -> None:
    X, y = matrix(), np.ones(6)
    cohort = Cohort.from_offsets(X, y, [0, 1, 6], users=["z", "a"])
    assert shares_memory(cohort, X)
    assert cohort.y is not None
    assert np.shares_memory(cohort.y, y)
    assert cohort.users.tolist() == ["z", "a"]
    assert cohort.index_of(["a", "z"]).tolist() == [1, 0]
    assert Cohort.from_offsets(X, y, [0, 6]).users.tolist() == [0]


@pytest.mark.parametrize(
    ("offsets", "users", "said"),
    [
        ([0, 2, 2, 2, 6], None, "2 users have no rows"),
        ([0, 4, 2, 6], None, "decreases"),
        ([1, 6], None, "from 0"),
        ([0, 5], None, "6 rows"),
        ([0], None, "one more than the number of users"),
        ([0.0, 6.0], None, "integers"),
        ([0, 3, 6], ["a"], "3 entries for 1 users"),
        ([0, 3, 6], [SECRET_USER, SECRET_USER], "1 ids are repeated"),
        ([0, 3, 6], [SECRET_USER, None], "1 ids are missing"),
    ],
)
def test_from_offsets_refuses_offsets_that_do_not_cut_the_rows(offsets: Any, users: Any, said: str) -> None:
    assert said in refusal(lambda: Cohort.from_offsets(matrix(), None, offsets, users=users))


def test_from_offsets_checks_every_cell() -> None:
    X = matrix()
    X[[0, 4], 1] = np.nan
    said = refusal(lambda: Cohort.from_offsets(X, None, [0, 6]))
    assert "column 1: 2 rows missing" in said


def test_every_fault_of_every_column_is_counted_in_one_error() -> None:
    X = matrix()
    X[:2, 0] = np.nan
    X[3, 1] = -np.inf
    X[4, 0] = np.inf
    named = refusal(lambda: Cohort.from_arrays(X, None, IDS, feature_names=["age", "pay", "top"]))
    assert "column 'age': 2 rows missing, 1 row infinite; column 'pay': 1 row infinite." in named
    assert "top" not in named
    assert "column 0: 2 rows missing" in refusal(lambda: Cohort.from_arrays(X, None, IDS))


def test_faults_in_late_blocks_of_a_long_array_are_counted() -> None:
    X = np.zeros((3_000_000, 1), np.float32)
    X[[5, -1]] = np.nan
    assert "2 rows missing" in refusal(lambda: Cohort.from_offsets(X, None, [0, len(X)]))


def test_checking_a_large_array_needs_little_memory() -> None:
    X = np.zeros((1_000_000, 16), np.float32)
    tracemalloc.start()
    cohort = Cohort.from_offsets(X, X[:, 0].copy(), [0, len(X)])
    peak = tracemalloc.get_traced_memory()[1] - X[:, 0].nbytes
    tracemalloc.stop()
    assert shares_memory(cohort, X)
    assert peak < 16 << 20


def test_missing_targets_are_counted() -> None:
    y = pd.Series([1, None, SECRET, None, 1, 1], name="pay")
    assert "target column 'pay': 2 rows missing" in refusal(lambda: Cohort.from_arrays(matrix(), y, IDS))
    assert "target y: 2 rows missing" in refusal(lambda: Cohort.from_arrays(matrix(), y.tolist(), IDS))


def test_masked_cells_are_missing() -> None:
    X = np.ma.masked_array(np.ones((6, 1), int), mask=np.array([[1], [0], [0], [1], [0], [0]], bool))
    assert "2 rows missing" in refusal(lambda: Cohort.from_arrays(X, None, IDS))
    ids = np.ma.masked_array(IDS, mask=IDS == 1)
    assert "2 rows without a user" in refusal(lambda: Cohort.from_arrays(matrix(), None, ids))


def test_values_too_large_for_float32_are_counted() -> None:
    X = matrix()
    X[:4, 2] = 1e39
    X[5, 2] = np.inf
    said = refusal(lambda: Cohort.from_arrays(X, None, IDS, dtype=np.float32))
    assert "column 2: 1 row infinite, 4 rows too large for float32" in said
    target = refusal(lambda: Cohort.from_arrays(matrix().astype(np.float32), X[:, 2], IDS))
    assert "target y: 1 row infinite, 4 rows too large for float32" in target


@pytest.mark.parametrize(
    "ids",
    [
        ["a", None, SECRET_USER, np.nan, "a", "  "],
        [1, None, 2, np.inf, 3, pd.NA],
        np.array([1, np.nan, 2, np.inf, 3, np.nan]),
        pd.Series([1, None, 2, None, 3, None], dtype="Int64"),
        pl.Series(["a", None, SECRET_USER, None, "c", None]),
        np.array(["2024-01-01", "NaT", "2024-01-02", "NaT", "2024-01-03", "NaT"], "M8[s]"),
    ],
    ids=["text", "objects", "floats", "nullable", "polars", "dates"],
)
def test_missing_users_are_counted(ids: Any) -> None:
    said = refusal(lambda: Cohort.from_arrays(matrix(), None, ids))
    assert "3 rows without a user" in said


def test_one_user_for_every_row_is_refused() -> None:
    said = refusal(lambda: Cohort.from_arrays(matrix(), None, [SECRET_USER] * 6))
    assert "every row has the same user" in said
    assert "unit of privacy" in said


def test_no_users_at_all_is_refused() -> None:
    assert "unit of privacy" in refusal(lambda: Cohort.from_arrays(matrix()))


def test_a_typo_in_a_column_of_numbers_is_counted() -> None:
    table = pd.DataFrame({"age": [1, 2, 3, 4, SECRET_USER, "1_0"], "pay": [1.0] * 6})
    said = refusal(lambda: Cohort.from_arrays(table, None, IDS))
    assert "column 'age': 2 rows not numbers (the column's type is object)" in said
    assert "pay" not in said


@pytest.mark.parametrize(
    "column",
    [
        [SECRET_USER] * 6,
        pd.to_datetime(["2024-01-01"] * 6),
        [1j] * 6,
        [[1, 2]] * 6,
        pd.to_timedelta([1] * 6),
    ],
    ids=["text", "dates", "complex", "lists", "durations"],
)
def test_columns_without_numbers_are_named_with_their_type(column: Any) -> None:
    table = pd.DataFrame({"age": [1] * 6, "city": column})
    said = refusal(lambda: Cohort.from_arrays(table, None, IDS))
    assert "column 'city': 6 rows not numbers" in said
    assert str(table.dtypes["city"]) in said
    assert "out of the features" in said


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"X": np.zeros(6)}, "X has 1 dimensions"),
        ({"X": np.zeros((6, 0))}, "no feature columns"),
        ({"X": np.zeros((0, 2)), "users": []}, "no rows"),
        ({"X": pd.DataFrame({"a": []}), "users": []}, "no rows"),
        ({"X": pd.DataFrame(index=range(6))}, "no feature columns"),
        ({"X": [[1], [1, 2]]}, "different lengths"),
        ({"y": np.zeros(5)}, "y has 5 rows and X has 6"),
        ({"y": np.zeros((6, 2))}, "ravel"),
        ({"users": [1, 2]}, "users has 2 ids and X has 6 rows"),
        ({"users": np.zeros((6, 1))}, "2 dimensions"),
        ({"feature_names": ["a"]}, "1 names for 3 columns"),
        ({"feature_names": ["a", "b", "a"]}, "Duplicate feature names: 'a'"),
        ({"feature_names": ["a", "b", "c"], "target_name": "b", "y": np.ones(6)}, "both target"),
        ({"target_name": "pay"}, "without y"),
        ({"dtype": np.int32}, "dtype is int32"),
    ],
)
def test_wrong_shapes_and_names_are_refused(change: dict[str, Any], said: str) -> None:
    arguments: dict[str, Any] = {"X": matrix(), "y": None, "users": IDS, **change}
    assert said in refusal(lambda: Cohort.from_arrays(**arguments))


def test_duplicate_frame_columns_are_refused() -> None:
    table = pd.DataFrame(matrix(), columns=["a", "b", "a"])
    said = refusal(lambda: Cohort.from_arrays(table, None, IDS))
    assert "duplicate column names: 'a'" in said


def mapped(array: Any) -> bool:
    """Whether the memory of an array is, underneath, a file."""
    while isinstance(array, np.ndarray):
        array = array.base
    return isinstance(array, mmap.mmap)


def same(a: Cohort, b: Cohort) -> None:
    for name in ("X", "y", "offsets", "users"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
    assert (a.feature_names, a.target_name) == (b.feature_names, b.target_name)
    assert a.dtype == b.dtype


@pytest.mark.parametrize("ids", [IDS, np.array(["é", "b", "é", "c", "b", "é"])], ids=["int", "text"])
@pytest.mark.parametrize("mapping", [True, False])
@pytest.mark.parametrize("y", [None, np.arange(6)], ids=["bare", "target"])
def test_a_saved_cohort_opens_as_it_was(tmp_path: Path, ids: Any, mapping: bool, y: Any) -> None:
    cohort = Cohort.from_arrays(matrix().astype(np.float32), y, ids)
    cohort.save(tmp_path / "kept")
    again = Cohort.open(tmp_path / "kept", mmap=mapping)
    same(cohort, again)
    assert not again.X.flags.writeable
    assert type(again.X) is np.ndarray
    assert mapped(again.X) == mapping
    assert [p.name for p in tmp_path.iterdir()] == ["kept"]


def test_a_cohort_folder_is_only_for_its_owner(tmp_path: Path) -> None:
    Cohort.from_arrays(matrix(), None, IDS).save(tmp_path / "kept")
    assert (tmp_path / "kept").stat().st_mode & 0o077 == 0


def test_save_never_writes_over_anything(tmp_path: Path) -> None:
    cohort = Cohort.from_arrays(matrix(), None, IDS)
    (tmp_path / "kept").mkdir()
    cohort.save(tmp_path / "kept")
    assert "exists" in refusal(lambda: cohort.save(tmp_path / "kept"))
    assert "Create it first" in refusal(lambda: cohort.save(tmp_path / "no" / "kept"))
    assert [p.name for p in tmp_path.iterdir()] == ["kept"]


def damage_json(folder: Path) -> None:
    (folder / "cohort.json").write_text("{")


def damage_version(folder: Path) -> None:
    about = json.loads((folder / "cohort.json").read_text())
    (folder / "cohort.json").write_text(json.dumps({**about, "version": 99}))


def damage_array(folder: Path) -> None:
    (folder / "X.npy").write_bytes(b"not an array")


def damage_pickle(folder: Path) -> None:
    np.save(folder / "users.npy", np.array([object()] * 3), allow_pickle=True)


def damage_missing(folder: Path) -> None:
    (folder / "offsets.npy").unlink()


def damage_shape(folder: Path) -> None:
    np.save(folder / "offsets.npy", np.array([0, 1, 2, 9]))


@pytest.mark.parametrize(
    "damage",
    [damage_json, damage_version, damage_array, damage_pickle, damage_missing, damage_shape],
)
def test_a_damaged_folder_is_refused(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    Cohort.from_arrays(matrix(), None, IDS).save(tmp_path / "kept")
    damage(tmp_path / "kept")
    refusal(lambda: Cohort.open(tmp_path / "kept"))


def test_a_folder_that_is_no_cohort_is_refused(tmp_path: Path) -> None:
    assert "Cohort.save" in refusal(lambda: Cohort.open(tmp_path))
    assert "FileNotFoundError" in refusal(lambda: Cohort.open(tmp_path / "nowhere"))
