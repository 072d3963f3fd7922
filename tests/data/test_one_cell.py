"""One user's cell changes nothing for the others: neither how theirs are read, nor which columns there are."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest

import tacitly
from tacitly.data import csv_format
from tacitly.data.cell_text import text_of
from tacitly.data.cohort import Cohort
from tacitly.data.schema import Column
from tacitly.data.tables import open_table
from tacitly.data.user_ids import Directory, factor
from tacitly.data.validation import plain_numbers
from tacitly.heads.losses import Loss

PEOPLE = range(40)
COMMAS = "".join(f"p{i};{i},5;süd;{'ja' if i % 2 else 'nein'};{i}\n" for i in PEOPLE)
POINTS = COMMAS.replace(",", ".").replace(";", ",")

ODD = {
    "a decimal point": "q;1.5;süd;ja;1",
    "bytes that are no text": b"q;1,5;\xfc;ja;1",
    "two such bytes": b"q;1,5;\x81\xfc;ja;1",
    "more such bytes than all others have letters": b"q;1,5;" + b"\xfc" * 999 + b";ja;1",
    "a zero byte": "q;1,5;\0;ja;1",
    "control characters": f"q;1,5;{chr(1) * 999};ja;1",
    "a long cell": f"q;1,5;{'x' * 200_000};ja;1",
    "a cell beyond all blocks": f"q;1,5;{'x' * 3_000_000};ja;1",
    "too few cells": "q;1,5;süd",
    "too few cells, and a long one": f"q;{'x' * 200_000}",
    "too many cells, and a long one in quotes": f'"q";1,5;"{";" * 200_000}";ja;1;2',
    "too many cells": "q;1,5;süd;ja;1;2;3",
    "a stray quote": 'q;1,5;s"üd;ja;1',
    "neither yes nor no": "q;1,5;süd;perhaps;1",
    "a number among words": "q;1,5;süd;1;1",
    "a date": "q;2020-01-01;süd;ja;1",
    "thousands, or three decimals": "q;1,5;1,234;ja;1",
}


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_a_cell_changes_no_other_cell_of_a_text_file(tmp_path, odd, first):
    line = (odd if isinstance(odd, bytes) else odd.encode()) + b"\n"
    path, whole = tmp_path / "rows.csv", COMMAS.encode()
    found = []
    for body in (b"q;1,5;\xc3\xbc;ja;1\n" + whole, line + whole if first else whole + line):
        path.write_bytes(b"id;a;b;c;y\n" + body)
        schema = {"b": {"levels": ["nord", "süd"]}}
        found.append(Cohort.from_table(path, user="id", target="y", schema=schema, on_bad_rows="drop"))
    plain, beside = found
    assert plain.feature_names == beside.feature_names == ("a", "b=süd", "c")
    assert plain.users.tolist() == beside.users.tolist()  # also where all that q has cannot be read
    assert np.array_equal(plain.X[: len(PEOPLE)], beside.X[: len(PEOPLE)])
    assert np.isfinite(beside.X[: len(PEOPLE)]).all()


def test_rows_with_another_number_of_cells_stay_in_place_where_rows_are_units(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text(f"id,a,b,c,y\n{POINTS}q,1\n,1\nNA,1,2,3,4,5\n")
    cohort = Cohort.from_table(path, user="id", target="y", features=["a"], on_bad_rows="blank")
    assert cohort.n_users == len(PEOPLE) + 1  # nobody's rows are nobody's
    assert np.isnan(cohort.X[-1]).all()


def test_text_beside_single_precision_changes_no_digit():
    plain = Cohort.from_arrays([[np.float32(0.1)], [2.0]], [0.0, 1.0], ["a", "b"], on_bad_rows="drop")
    beside = Cohort.from_arrays([[np.float32(0.1)], ["x"]], [0.0, 1.0], ["a", "b"], on_bad_rows="drop")
    assert plain.X[0] == beside.X[0]
    assert text_of(np.float32(0.1)) == text_of(float(np.float32(0.1)))


def test_a_long_text_in_a_list_takes_its_own_room_only():
    rows = [[float(i)] for i in range(50_000)] + [["x" * 10_000_000]]  # as NumPy's texts: two terabytes
    cohort = Cohort.from_arrays(rows, [0.0] * len(rows), range(len(rows)), on_bad_rows="drop")
    assert cohort.n_users == len(rows)


@pytest.mark.parametrize("word", ["nan(x)", "-NaN()", "nan"])
def test_what_arrow_reads_as_no_number_is_missing_beside_words_too(tmp_path, word):
    path = tmp_path / "rows.csv"
    for other in ("3", "word"):
        path.write_text(f"id,a\nx,{word}\ny,{other}\n")
        (cells,) = next(open_table(path, "id").batches(["a"], 10))
        assert text_of(cells.tolist()[0]) == ""


LONG = 300_000  # a pattern that takes the square of it: ten minutes


@pytest.mark.parametrize(
    "cell",
    ["1" * LONG + "x", "1" + " " * LONG + "x", "1,5" + " " * LONG + "x", "1." + "1" * LONG + "e", "1 111" * LONG + "x"],
    ids=["digits", "spaces", "spaces after a decimal comma", "decimals", "groups of digits"],
)
def test_a_long_cell_takes_time_in_proportion_to_its_length(cell):
    values = np.array(["1", cell], dtype=object)
    assert np.isnan(Column("a").encode(values)[0][1, 0])
    assert np.isfinite(Column("a", "hashed").encode(values)[0]).all()
    assert csv_format._decimal([["1", "2"], ["3", cell]], ";") is None


@pytest.mark.parametrize("first", [True, False])
def test_a_comma_before_three_digits_stops_no_file_of_whole_numbers(tmp_path, first):
    path, whole = tmp_path / "rows.csv", "".join(f"p{i};{i};;{i}\n" for i in PEOPLE)
    for odd in ("q;1,234;;5\n", "q;1;1,234;5\n"):  # the latter alone in its column
        path.write_text("id;a;b;y\n" + (odd + whole if first else whole + odd))
        cohort = Cohort.from_table(path, user="id", target="y", features=["a"], schema={}, on_bad_rows="drop")
        assert cohort.X[: len(PEOPLE), 0].tolist() == sorted(PEOPLE, key=lambda i: f"p{i}")


def test_a_cell_of_the_first_row_does_not_make_it_the_header(tmp_path):
    path = tmp_path / "rows.csv"
    for cell in ("1", '"1,5"'):
        path.write_text(f"#,id,a,y\n1,q,{cell},1\n" + "".join(f"2,p{i},{i},{i}\n" for i in PEOPLE))
        assert list(open_table(path, "id").types) == ["#", "id", "a", "y"]


@pytest.mark.parametrize("ending", [b"", b"\n", b"\xc3"])
def test_the_last_line_counts_for_the_encoding(tmp_path, ending):
    path = tmp_path / "rows.csv"
    path.write_bytes("id,a\nx,1\ny,ü".encode("cp1252") + ending)
    assert csv_format.look(path, csv_format.CsvFormat())[0].encoding == "cp1252"


CELLS = {
    "bytes": b"x",
    "complex": 1j,
    "a list": [1.0, 2.0],
    "a list of one": [1.0],
    "an array": np.array([1.0, 2.0]),
    "an array of one": np.array([1.0]),
    "masked": np.ma.masked,
    "a date": np.datetime64("2020-01-01"),
    "text": "x",
    "an underscore": "1_0",
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("cell", CELLS.values(), ids=CELLS)
def test_a_cell_of_another_kind_in_a_list_changes_no_other_cell(cell):
    good = [float(i) for i in PEOPLE]
    cohort = Cohort.from_arrays([*([a] for a in good), [cell]], [*good, 1.0], range(41), on_bad_rows="drop")
    assert cohort.X[: len(good), 0].tolist() == good
    cohort = Cohort.from_arrays([[a] for a in [*good, 1.0]], [*good, cell], range(41), on_bad_rows="drop")
    assert cohort.y is not None
    assert cohort.y[: len(good)].tolist() == good
    frame = pd.DataFrame({"a": pd.Series([*good, cell], dtype=object)})
    cohort = Cohort.from_arrays(frame, [*good, 1.0], range(41), schema={}, on_bad_rows="drop")
    assert cohort.X[: len(good), 0].tolist() == good
    codes = Loss("logistic", (0, 1)).encode([i % 2 for i in PEOPLE] + [cell], blank=True)
    assert codes[: len(good)].tolist() == [i % 2 for i in PEOPLE]
    assert plain_numbers([*good, cell], "y", blank=True)[: len(good)].tolist() == good


def test_how_a_number_is_read_does_not_depend_on_words_beside_it():
    alone, beside = (plain_numbers(["1_0", *more], "y", blank=True)[0] for more in ([], ["word"]))
    assert np.array_equal(alone, beside, equal_nan=True)


def text_of_bytes(cells: list[bytes]) -> pa.Array:
    """A column of text whose bytes Arrow does not check."""
    return pa.Array.from_buffers(pa.string(), len(cells), pa.array(cells, type=pa.binary()).buffers())


@pytest.mark.parametrize("form", ["arrow", "polars", "parquet", "feather", "pandas", "pandas with Arrow"])
@pytest.mark.parametrize("column", ["a", "b", "y", "id"])
def test_bytes_that_are_no_text_stop_no_table(tmp_path, form, column):
    """Arrow's error, and pandas' with the cell in it, came out of a fit that was to leave such rows out."""
    found = []
    for odd in (b"x", b"S3CR3T\xff"):
        cells = {
            "id": [b"p%d" % i for i in PEOPLE],
            "a": [b"%d" % i for i in PEOPLE],
            "b": [b"nord" if i % 2 else b"s\xc3\xbcd" for i in PEOPLE],
            "y": [b"%d" % i for i in PEOPLE],
        }
        last = {"id": b"q", "a": b"1", "b": b"nord", "y": b"1", column: odd}
        table = pa.table({name: text_of_bytes([*values, last[name]]) for name, values in cells.items()})
        if form == "parquet":
            pa.parquet.write_table(table, read := tmp_path / "rows.parquet")
        elif form == "feather":
            pa.feather.write_feather(table, read := tmp_path / "rows.feather")
        elif form == "polars":
            read = pytest.importorskip("polars").from_arrow(table)
        else:
            read = {
                "arrow": table,
                "pandas": table.to_pandas(),
                "pandas with Arrow": table.to_pandas(types_mapper=pd.ArrowDtype),
            }[form]
        schema = {"b": {"levels": ["nord", "süd"]}}
        found.append(Cohort.from_table(read, user="id", target="y", schema=schema, on_bad_rows="drop"))
    for cohort in found:
        others = np.isin(cohort.users, [f"p{i}" for i in PEOPLE])
        assert others.sum() == len(PEOPLE)
        rows = np.repeat(others, np.diff(cohort.offsets))
        assert np.isfinite(cohort.X[rows]).all()
        assert np.array_equal(cohort.X[rows][:, 0], cohort.y[rows])


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_ids_that_differ_in_bytes_that_are_no_text_are_two_users(tmp_path, form):
    """As one character for all such bytes, two people had one head, made from the rows of both."""
    ids = [b"J\xf6rg", b"J\xe4rg", *(b"p%d" % i for i in PEOPLE)]
    path = tmp_path / f"rows.{form}"
    if form == "csv":
        more = b"".join(b"%s;%d;s\xc3\xbcd\n" % (name, i) for i, name in enumerate(ids))
        path.write_bytes(b"id;a;b\n" + more)
    else:
        numbers = pa.array(range(len(ids)))
        pa.parquet.write_table(pa.table({"id": text_of_bytes(ids), "a": numbers, "b": numbers}), path)
    cohort = Cohort.from_table(path, user="id", features=["a"], on_bad_rows="drop")
    assert cohort.n_users == len(ids)
    assert sorted(cohort.X[:, 0]) == list(range(len(ids)))


def test_zeros_at_the_end_of_an_id_are_a_part_of_it():
    ids = np.array(["p", "p\0", "p\0\0", "q"], dtype=object)
    assert factor(ids)[1].tolist() == [0, 1, 2, 3]
    assert Directory(ids).find(["p\0\0", "p"]).tolist() == [2, 0]


@pytest.mark.filterwarnings("ignore")
def test_half_of_a_surrogate_pair_in_an_id_stops_neither_a_fit_nor_the_saving_of_its_model(tmp_path):
    """No file can hold it: a model was fitted, ε was spent, and the model could not be saved."""
    ids, X = np.repeat(["a", "b\ud800", "b\udfff", "b"], 2).astype(object), np.eye(8)[:, :2]
    ledger = tacitly.Ledger(tmp_path / "people.ledger")
    model = tacitly.MixedEffects(epsilon=1.0, delta=1e-3, ledger=ledger).fit(X, np.arange(8.0), ids)
    saved = tacitly.load(tacitly.save(model, tmp_path / "model"))
    assert saved.certificate_.n_users == len(ledger.people()[0]) == 4
    np.testing.assert_array_equal(saved.predict(X, ids), model.predict(X, ids))


def test_bytes_that_are_no_text_are_shown_by_no_error():
    for odd in (text_of_bytes([b"1", b"S3CR3T\xff"]), text_of_bytes([b"1", b"S3CR3T\xff"]).to_pandas()):
        cohort = Cohort.from_arrays([[1.0], [2.0]], odd, ["a", "b"], on_bad_rows="drop")
        assert cohort.users.tolist() == ["a", "b"]
        assert Cohort.from_arrays([[1.0], [2.0]], [1.0, 2.0], odd).users[0] == "1"


def test_a_complex_number_makes_no_other_cell_complex():
    """pandas gives all cells of a column one kind."""
    good = [float(i) for i in PEOPLE]
    frame = pd.DataFrame({"id": range(41), "a": [*good, 1j], "y": [*good, 1j]})
    for schema in (None, {}):
        cohort = Cohort.from_table(frame, user="id", target="y", schema=schema, on_bad_rows="drop")
        assert cohort.feature_names == ("a",)
        assert cohort.X[: len(good), 0].tolist() == cohort.y[: len(good)].tolist() == good


class Unprintable:
    """A cell of which nothing can be asked."""

    def __hash__(self) -> int:
        raise RuntimeError("S3CR3T")

    __str__ = __repr__ = __hash__  # type: ignore[assignment]


ODD_IDS = {"list": [2], "dict": {}, "bytes": bytearray(b"x"), "unprintable": Unprintable(), "long": "x" * 10_000_000}
ODD_IDS["digits"] = 10**5000  # more than Python writes


@pytest.mark.parametrize("odd", ODD_IDS.values(), ids=ODD_IDS)
def test_an_id_that_is_none_changes_no_other_id(odd):
    """A list among ids turned 10.0 into the text "10.0", and missing ids into users called "nan" and "None"."""
    ids = np.array([10.0, None, 20, float("nan"), "30", 0], dtype=object)
    ids[5] = odd
    found, codes = factor(ids)
    assert codes[1] == codes[3] == -1
    assert [str(found[code]) for code in codes[[0, 2, 4]]] == ["10", "20", "30"]
    assert found.nbytes < 1000
    assert Directory([30, 10, 20]).find(ids)[:5].tolist() == [1, -1, 2, -1, 0]
