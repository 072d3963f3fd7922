"""Tables as they come: text, yes/no values and missing cells become numbers by a declared or inferred schema."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tacitly.data.cohort import Cohort
from tacitly.data.schema import Column, Schema, infer, read_declared
from tacitly.data.tables import open_table
from tacitly.data.validation import DataError

MESSY = """person,age,region,smoker,note,score
a,40,north,yes,x,1.5
a,NA,south,no,,2.5
b,31,west,yes,zz,0.5
b,29,north,,y,1.0
c,55,,no,x,3.0
c,60,south,no,q,2.0
"""


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "messy.csv"
    path.write_text(MESSY)
    return path


DECLARED = {"region": {"levels": ["north", "south", "west"]}, "age": {"range": [0, 120]}}


def test_a_messy_table_is_read_as_its_columns_say(table: Path) -> None:
    data = Cohort.from_table(table, user="person", target="score", schema=DECLARED)
    assert data.feature_names[:4] == ("age", "region=south", "region=west", "smoker")
    assert data.feature_names[4:] == tuple(f"note#{bucket}" for bucket in range(16))
    np.testing.assert_array_equal(data.X[:4, 0], [40, np.nan, 31, 29])
    np.testing.assert_array_equal(data.X[:, 1], [0, 1, 0, 0, np.nan, 1])
    np.testing.assert_array_equal(data.X[:, 3], [1, 0, 1, np.nan, 0, 0])
    assert np.nansum(data.X[:, 4:]) == 5
    assert np.isnan(data.X[1, 4:]).all()


def test_a_file_a_frame_and_a_folder_give_the_same_rows(table: Path, tmp_path: Path) -> None:
    one = Cohort.from_table(table, user="person", target="score", schema=DECLARED)
    frame = pd.read_csv(table, keep_default_na=True)
    two = Cohort.from_table(frame, user="person", target="score", schema=DECLARED)
    three = Cohort.from_arrays(
        frame.drop(columns=["person", "score"]), frame["score"], frame["person"], schema=DECLARED
    )
    Cohort.from_table(table, user="person", target="score", schema=DECLARED, folder=tmp_path / "cohort")
    four = Cohort.open(tmp_path / "cohort")
    for other in (two, three, four):
        assert other.feature_names == one.feature_names
        assert other.schema == one.schema
        np.testing.assert_array_equal(other.X, one.X)


def test_without_a_schema_missing_cells_and_text_are_refused_as_before(table: Path) -> None:
    with pytest.raises(DataError, match="column 'region': 5 rows not numbers"):
        Cohort.from_table(table, user="person", target="score")


def test_a_stored_schema_encodes_new_rows_the_same_way(table: Path) -> None:
    fitted = Cohort.from_table(table, user="person", target="score", schema=DECLARED)
    assert fitted.schema is not None
    again = Schema.from_dict(fitted.schema.to_dict())
    assert again == fitted.schema
    new = pd.DataFrame(
        {"note": ["new words"], "age": [33], "region": ["east"], "smoker": [True], "person": ["z"], "score": [0.0]}
    )
    rows = Cohort.from_table(
        pd.concat([new, new.assign(person="y")]), user="person", target="score", features=again.names, schema=again
    )
    assert rows.feature_names == fitted.feature_names
    assert rows.X[0, 0] == 33
    assert np.isnan(rows.X[0, 1:3]).all()  # a level that was not declared counts as missing
    assert rows.X[0, 3] == 1
    assert rows.X[0, 4:].sum() == 1  # a bucket is a function of the text, whether or not it occurred before


def test_a_missing_column_is_named(table: Path) -> None:
    schema = Cohort.from_table(table, user="person", target="score", schema=DECLARED).schema
    assert schema is not None
    frame = pd.read_csv(table).drop(columns=["age"])
    with pytest.raises(DataError, match="no feature column 'age'"):
        Cohort.from_table(frame, user="person", target="score", features=schema.names, schema=schema)
    with pytest.raises(DataError, match="no column 'age', which the model was fitted with"):
        Cohort.from_arrays(frame.drop(columns=["score", "person"]), None, frame["person"], schema=schema)


def test_buckets_do_not_depend_on_other_rows() -> None:
    column = Column("note", "hashed")
    alone, _ = column.encode(np.array(["hay"], dtype=object))
    among, _ = column.encode(np.array(["needle", "hay", None, "stack"], dtype=object))
    np.testing.assert_array_equal(alone[0], among[1])
    assert np.isnan(among[2]).all()


@pytest.mark.parametrize("cell", ["2024-03-01", "2024-03-01 10:00", "1.3.2024", "03/01/24"])
def test_dates_are_refused_with_a_remedy(cell: str) -> None:
    frame = pd.DataFrame({"when": [cell, cell], "x": [1.0, 2.0]})
    with pytest.raises(DataError, match="days since a fixed day"):
        infer(open_table(frame), ["when", "x"])
    stored = pd.DataFrame({"when": pd.to_datetime(["2024-03-01"] * 2)})
    with pytest.raises(DataError, match="Columns hold dates: 'when'"):
        infer(open_table(stored), ["when"])


def test_kinds_follow_from_all_cells_not_from_the_first() -> None:
    frame = pd.DataFrame(
        {"late": ["1"] * 4400 + ["north"] * 601, "flag": ["Yes", "no"] * 2500 + [None], "n": ["1e3"] * 5001}
    )
    kinds = {column.name: column.kind for column in infer(open_table(frame), ["late", "flag", "n"]).columns}
    assert kinds == {"late": "hashed", "flag": "boolean", "n": "number"}


def test_a_typo_among_numbers_is_refused_instead_of_turning_the_column_into_text() -> None:
    frame = pd.DataFrame({"late": ["1"] * 5000 + ["north"], "n": ["1e3"] * 5001})
    with pytest.raises(DataError, match=r"Columns hold numbers, but for a few cells: 'late' \(1 row\)") as error:
        infer(open_table(frame), ["late", "n"])
    assert "north" not in str(error.value)
    declared = {"late": {"kind": "hashed"}}
    assert infer(open_table(frame), ["late", "n"], declared).columns[0].kind == "hashed"


def test_cells_of_another_kind_are_counted_and_never_shown() -> None:
    schema = Schema.declared({"age": {"range": [0, 120]}})
    with pytest.raises(DataError, match=r"column 'age' \(number\): 1 row") as error:
        schema.encode([np.array(["forty", "41"], dtype=object)])
    assert "forty" not in str(error.value)


@pytest.mark.parametrize(
    ("about", "message"),
    [
        ({"kind": "colour"}, "kind must be one of"),
        ({"levels": ["a"]}, "two or more levels"),
        ({"levels": ["a", "a"]}, "each declared once"),
        ({"range": [1, 0]}, "the lower first"),
        ({"range": [0, float("inf")]}, "two finite ones"),
        ({"limits": [0, 1]}, "the schema says limits"),
        ({"kind": "hashed", "buckets": 1}, "buckets must lie between"),
    ],
)
def test_a_wrong_declaration_is_explained(about: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        Schema.declared({"x": about})


def test_a_schema_file_holds_columns_or_what_a_model_stored(tmp_path: Path) -> None:
    schema = Schema.declared(DECLARED)
    file = tmp_path / "schema.json"
    file.write_text('{"region": {"levels": ["north", "south", "west"]}, "age": {"range": [0, 120]}}')
    assert Schema.declared(read_declared(file)) == schema
    import json

    file.write_text(json.dumps(schema.to_dict()))
    assert Schema.declared(read_declared(file)) == schema
    file.write_text("region: north")
    with pytest.raises(DataError, match="Expected JSON such as"):
        read_declared(file)


def test_declared_columns_must_be_in_the_table(table: Path) -> None:
    with pytest.raises(DataError, match="does not have: 'regoin'"):
        Cohort.from_table(table, user="person", target="score", schema={"regoin": {"levels": ["a", "b"]}})


def test_an_array_of_numbers_takes_ranges_and_missing_cells() -> None:
    X = np.array([[1.0, np.nan], [2.0, 3.0]])
    data = Cohort.from_arrays(X, [1.0, 2.0], [0, 1], schema={"x0": {"range": [0, 5]}})
    assert data.schema is not None
    assert data.schema.bounds == ((0.0, 5.0), None)
    assert np.isnan(data.X[0, 1])
    with pytest.raises(DataError, match="infinite"):
        Cohort.from_arrays([[np.inf]], [1.0], [0], schema={})
    with pytest.raises(DataError, match="Give a table with named columns"):
        Cohort.from_arrays(X, [1.0, 2.0], [0, 1], schema={"x0": {"levels": ["1", "2"]}})


def test_with_blank_a_few_other_cells_among_numbers_are_missing_and_nothing_is_said() -> None:
    frame = pd.DataFrame({"late": ["1"] * 5000 + ["north"]})
    assert infer(open_table(frame), ["late"], blank=True).columns[0].kind == "number"
    strange = Schema.declared({"note": {"kind": "hashed"}})
    cells = np.array(["a", "\ud800", "b"], dtype=object)
    assert strange.encode([cells]).shape == (3, strange.columns[0].buckets)


@pytest.mark.parametrize("cells", [["007", "012", "1.50"], ["9007199254740993", "+5", "1e2"], ["-0", "INF", "NAN"]])
@pytest.mark.parametrize("kind", ["category", "hashed"])
def test_text_in_one_cell_of_a_file_changes_no_other_cell(tmp_path: Path, cells: list[str], kind: str) -> None:
    about = {"kind": kind, "levels": ["word", *cells[:2]]} if kind == "category" else {"kind": kind}
    schema, encoded = Schema.declared({"code": about}), []
    for first in ("3", "word"):  # read as numbers, and as text
        path = tmp_path / f"{first}.csv"
        path.write_text("id,code\n" + "".join(f"{i},{cell}\n" for i, cell in enumerate([first, *cells])))
        encoded += [schema.encode(batch, blank=True)[1:] for batch in open_table(path, "id").batches(["code"], 100)]
    assert np.array_equal(*encoded, equal_nan=True)
    assert np.isfinite(encoded[0]).all(axis=1).any()


def test_a_number_that_is_no_truth_value_is_missing_whatever_else_its_column_holds() -> None:
    flag = Column("flag", "boolean")
    numbers, misfits = flag.encode(np.array([1.0, 2.0, 0.0, np.nan, np.inf]))
    texts, others = flag.encode(np.array(["1", "2", "00", "", "1e400"], dtype=object))
    assert np.array_equal(numbers, [[1.0], [np.nan], [0.0], [np.nan], [np.nan]], equal_nan=True)
    assert np.array_equal(numbers, texts, equal_nan=True)
    assert misfits == others == 2


@pytest.mark.parametrize("kind", ["boolean", "category", "hashed"])
def test_one_long_cell_takes_no_memory_for_the_others(kind: str) -> None:
    cells = np.full(50_000, "yes", dtype=object)
    cells[0] = "x" * 50_000
    column = Column("text", kind, ("yes", "no") if kind == "category" else ())
    tracemalloc.start()
    encoded, _ = column.encode(cells)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(encoded) == len(cells)
    assert most < 100_000_000  # as an array of texts they would take 10 GB
