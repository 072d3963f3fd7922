"""Tables of every kind become the same cohort; a bad one leaves a clear error and no files."""

from __future__ import annotations

import gc
import gzip
import mmap
import os
import subprocess
import sys
import textwrap
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as parquet
import pytest

import tacitly.data.csv_file
import tacitly.data.source
import tacitly.data.tables
from tacitly.data.cohort import Cohort, DataError
from tacitly.data.csv_format import CsvFormat, Utf8File
from tacitly.data.schema import Schema

SECRET = "987654.25"
SECRET_USER = "secret-person"


def refusal(tmp_path: Path, table: Any, **options: Any) -> str:
    """Return the one message for memory and disk; check that it is discreet and leaves nothing."""
    before = sorted(tmp_path.rglob("*"))
    messages = []
    for folder in (None, tmp_path / "cohort"):
        with pytest.raises(DataError) as caught:
            Cohort.from_table(table, **{"user": "who", "folder": folder, **options})
        printed = "".join(traceback.format_exception(caught.value, chain=True))
        for private in (SECRET, SECRET_USER):
            assert private not in printed
        messages.append(str(caught.value))
    assert sorted(tmp_path.rglob("*")) == before
    assert messages[0] == messages[1]
    return messages[0]


def mapped(array: Any) -> bool:
    """Whether the memory of an array is, underneath, a file."""
    while isinstance(array, np.ndarray):
        array = array.base
    return isinstance(array, mmap.mmap)


def frame(rows: int = 500, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "who": rng.integers(0, 40, rows),
            "age": rng.integers(1, 99, rows),
            "pay": rng.normal(size=rows).round(6),
            "tall": rng.random(rows) > 0.5,
            "goal": rng.normal(size=rows).round(6),
        }
    )


def as_csv(table: pd.DataFrame, folder: Path) -> Path:
    table.to_csv(folder / "t.csv", index=False)
    return folder / "t.csv"


def as_parquet(table: pd.DataFrame, folder: Path) -> Path:
    parquet.write_table(pa.table(table), folder / "t.parquet", row_group_size=97)
    return folder / "t.parquet"


def as_parquet_folder(table: pd.DataFrame, folder: Path) -> Path:
    (folder / "many").mkdir()
    for k in range(4):
        part = table.iloc[len(table) * k // 4 : len(table) * (k + 1) // 4]
        parquet.write_table(pa.table(part), folder / "many" / f"part-{k}.parquet")
    (folder / "many" / "_SUCCESS").touch()
    return folder / "many"


def as_feather(table: pd.DataFrame, folder: Path) -> Path:
    feather.write_feather(table, folder / "t.feather", chunksize=101)
    return folder / "t.feather"


def as_arrow_stream(table: pd.DataFrame, folder: Path) -> Path:
    data = pa.table(table)
    with pa.ipc.new_stream(folder / "t.arrow", data.schema) as stream:
        stream.write_table(data, max_chunksize=77)
    return folder / "t.arrow"


FORMS: list[Callable[[pd.DataFrame, Path], Any]] = [
    lambda table, folder: table,
    lambda table, folder: pl.from_pandas(table),
    lambda table, folder: pa.table(table),
    as_csv,
    as_parquet,
    as_parquet_folder,
    as_feather,
    as_arrow_stream,
]
NAMES = ["pandas", "polars", "arrow", "csv", "parquet", "folder", "feather", "stream"]
FILES = [(form, name) for form, name in zip(FORMS, NAMES, strict=True)]


@pytest.mark.parametrize("form", FORMS, ids=NAMES)
@pytest.mark.parametrize("text", [False, True], ids=["int", "text"])
@pytest.mark.parametrize("on_disk", [False, True], ids=["memory", "disk"])
def test_every_form_of_a_table_gives_the_cohort_of_its_arrays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: Any, text: bool, on_disk: bool
) -> None:
    monkeypatch.setattr(tacitly.data.source, "_CELLS", 128)  # many small batches
    monkeypatch.setattr(tacitly.data.in_order, "_BUFFER_BYTES", (1000, 1000))  # and many runs
    table = frame()
    if text:
        table["who"] = "user " + table["who"].astype(str)
    expected = Cohort.from_arrays(table[["age", "pay", "tall"]], table["goal"], table["who"])

    cohort = Cohort.from_table(
        form(table, tmp_path),
        user="who",
        target="goal",
        folder=tmp_path / "cohort" if on_disk else None,
    )

    for name in ("X", "y", "offsets", "users"):
        np.testing.assert_array_equal(getattr(cohort, name), getattr(expected, name))
    assert cohort.users.dtype.kind == expected.users.dtype.kind
    assert cohort.feature_names == ("age", "pay", "tall")
    assert cohort.target_name == "goal"
    assert mapped(cohort.X) == on_disk


def test_a_cohort_streamed_to_a_folder_opens_again(tmp_path: Path) -> None:
    cohort = Cohort.from_table(frame(), user="who", folder=tmp_path / "cohort")
    again = Cohort.open(tmp_path / "cohort")
    np.testing.assert_array_equal(cohort.X, again.X)
    assert again.y is None
    assert sorted(p.name for p in (tmp_path / "cohort").iterdir()) == [
        "X.npy",
        "cohort.json",
        "offsets.npy",
        "users.npy",
    ]
    assert [p.name for p in tmp_path.iterdir()] == ["cohort"]


def test_features_are_taken_in_the_order_asked(tmp_path: Path) -> None:
    table = frame()
    for form in FORMS[:5]:
        cohort = Cohort.from_table(form(table, tmp_path), user="who", features=["pay", "age"])
        assert cohort.feature_names == ("pay", "age")
        assert cohort.X[:, 1].sum() == table["age"].sum()


@pytest.mark.parametrize("form", [f for f, n in FILES if n != "csv"], ids=[n for n in NAMES if n != "csv"])
def test_float32_columns_stay_float32(tmp_path: Path, form: Any) -> None:
    table = frame()[["who", "pay", "goal"]].astype({"pay": "float32", "goal": "float32"})
    assert Cohort.from_table(form(table, tmp_path), user="who").dtype == np.float32
    table["goal"] = table["goal"].astype(float)
    again = tmp_path / "again"
    again.mkdir()
    assert Cohort.from_table(form(table, again), user="who").dtype == np.float64
    assert Cohort.from_table(table, user="who", dtype=np.float32).dtype == np.float32


def write(tmp_path: Path, text: str | bytes, name: str = "t.csv") -> Path:
    path = tmp_path / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_csv_ids_are_numbers_only_if_that_keeps_every_spelling(tmp_path: Path) -> None:
    plain = Cohort.from_table(write(tmp_path, "who,a\n10,1\n9,2\n-3,3\n"), user="who")
    assert plain.users.tolist() == [-3, 9, 10]
    padded = Cohort.from_table(write(tmp_path, "who,a\n007,1\n7,2\n"), user="who")
    assert padded.users.tolist() == ["007", "7"]
    vast = Cohort.from_table(write(tmp_path, f"who,a\n{10**30},1\n7,2\n"), user="who")
    assert vast.users.tolist() == [str(10**30), "7"]


def test_csv_ids_are_not_split_by_stray_spaces(tmp_path: Path) -> None:
    cohort = Cohort.from_table(write(tmp_path, "who,a\nx,1\n x ,2\ny,3\n"), user="who")
    assert cohort.users.tolist() == ["x", "y"]


def test_csv_types_are_not_guessed_from_the_first_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tacitly.data.csv_file, "_CSV_BLOCK_BYTES", 256)
    lines = [f"{i},{i}" for i in range(200)] + ["late,0.5", "later, 7 "]
    cohort = Cohort.from_table(write(tmp_path, "who,a\n" + "\n".join(lines)), user="who")
    assert cohort.X[cohort.index_of(["late", "later", 17])].ravel().tolist() == [0.5, 7, 17]


def test_a_csv_cell_that_is_no_plain_number_is_read_as_before_wherever_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tacitly.data.csv_file, "_CSV_BLOCK_BYTES", 256)
    for at in (0, 30, 199):
        cells = [str(i) for i in range(200)]
        cells[at] = "True"
        text = "who,a,b\n" + "".join(f"{i // 2},{cell},0.5\n" for i, cell in enumerate(cells))
        cohort = Cohort.from_table(write(tmp_path, text), user="who")
        assert cohort.X[:, 0].tolist() == [1.0 if i == at else i for i in range(200)]
        with pytest.raises(DataError, match="column 'a': 1 row not numbers"):
            Cohort.from_table(write(tmp_path, text.replace("True", "x1")), user="who")


@pytest.mark.parametrize(
    "content", [b"PK\x03\x04\x14\x00", bytes(range(256)) * 9, b"\x7fELF\x02\x01\n,;\n\x05\x06\x07"]
)
def test_a_file_of_bytes_is_no_table_and_none_of_it_is_shown(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "rows.csv").write_bytes(content)
    with pytest.raises(DataError, match=r"^The file 'rows\.csv' is not a text table") as raised:
        tacitly.data.tables.open_table(tmp_path / "rows.csv", "who")
    assert str(raised.value).isprintable()
    assert ("save the sheet as CSV" in str(raised.value)) == content.startswith(b"PK")


def test_csv_of_other_tools_is_understood(tmp_path: Path) -> None:
    text = b'\xef\xbb\xbfwho,"a, b",c\r\n"x\ny",1,True\r\n\r\nz,2,false\r\n'
    cohort = Cohort.from_table(write(tmp_path, text), user="who")
    assert cohort.feature_names == ("a, b", "c")
    assert cohort.users.tolist() == ["x\ny", "z"]
    assert cohort.X.tolist() == [[1, 1], [2, 0]]


def test_mixed_ids_that_change_kind_between_batches_are_one_user(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tacitly.data.source, "_CELLS", 2)
    table = pd.DataFrame({"who": pd.Series([1, 2, "a", "1", 1, 2.0], dtype=object), "a": range(6)})
    cohort = Cohort.from_table(table, user="who")
    assert cohort.users.tolist() == ["1", "2", "a"]
    assert cohort.X.ravel().tolist() == [0, 3, 4, 1, 5, 2]


def test_arrow_ids_of_special_types_become_plain(tmp_path: Path) -> None:
    ids = [b"\x01" * 16, b"\x00" * 16]
    for who, expected in [
        (pa.array(ids, pa.binary(16)), ["00" * 16, "01" * 16]),
        (pa.array(["b", "a"]).dictionary_encode(), ["a", "b"]),
        (pa.array([2**53 + 1, 2**53]), [2**53, 2**53 + 1]),
        (
            pa.array(ids, pa.binary(16)).cast(pa.uuid()) if hasattr(pa, "uuid") else None,
            ["00000000-0000-0000-0000-000000000000", "01010101-0101-0101-0101-010101010101"],
        ),
    ]:
        if who is not None:
            cohort = Cohort.from_table(pa.table({"who": who, "a": [1.0, 2.0]}), user="who")
            assert cohort.users.tolist() == expected


def test_an_index_that_pandas_saved_is_not_a_feature(tmp_path: Path) -> None:
    frame()[lambda t: t["age"] > 10].to_parquet(tmp_path / "t.parquet")
    cohort = Cohort.from_table(tmp_path / "t.parquet", user="who")
    assert cohort.feature_names == ("age", "pay", "tall", "goal")


def test_a_column_without_a_name_is_refused_unless_features_are_named(tmp_path: Path) -> None:
    frame().to_csv(tmp_path / "t.csv")
    assert "without a name" in refusal(tmp_path, tmp_path / "t.csv")
    assert Cohort.from_table(tmp_path / "t.csv", user="who", features=["age"]).n_features == 1


@pytest.mark.parametrize("form", FORMS, ids=NAMES)
def test_missing_cells_are_counted_in_every_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: Any) -> None:
    monkeypatch.setattr(tacitly.data.source, "_CELLS", 64)
    table = frame().astype({"age": "Int64", "tall": "boolean"})
    table.loc[[0, 250, 499], "age"] = None
    table.loc[[7, 480], "pay"] = np.nan
    table.loc[[3], "tall"] = None
    table.loc[[1, 2, 3, 4], "goal"] = None
    said = refusal(tmp_path, form(table, tmp_path), target="goal")
    assert "column 'age': 3 rows missing" in said
    assert "column 'pay': 2 rows missing" in said
    assert "column 'tall': 1 row missing" in said
    assert "target column 'goal': 4 rows missing" in said


@pytest.mark.parametrize("form", FORMS, ids=NAMES)
@pytest.mark.parametrize("kind", ["Int64", "str"])
def test_missing_users_are_counted_in_every_form(tmp_path: Path, form: Any, kind: str) -> None:
    table = frame()
    table["who"] = table["who"].astype(cast(Any, kind))
    table.loc[[0, 100, 499], "who"] = None
    said = refusal(tmp_path, form(table, tmp_path))
    assert "user column 'who': 3 rows without a user" in said


@pytest.mark.parametrize("form", FORMS, ids=NAMES)
def test_infinite_cells_and_overflow_are_counted_in_every_form(tmp_path: Path, form: Any) -> None:
    table = frame()
    table.loc[[0, 499], "pay"] = [np.inf, -np.inf]
    table.loc[[1, 2, 3], "goal"] = 1e300
    said = refusal(tmp_path, form(table, tmp_path), dtype=np.float32)
    assert "column 'pay': 2 rows infinite" in said
    assert "column 'goal': 3 rows too large for float32" in said


@pytest.mark.parametrize("form", FORMS, ids=NAMES)
def test_text_is_counted_in_every_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: Any) -> None:
    monkeypatch.setattr(tacitly.data.source, "_CELLS", 64)
    table = frame()
    table["city"] = SECRET_USER
    table["pay"] = table["pay"].astype(str)
    table.loc[[0, 499], "pay"] = SECRET_USER
    said = refusal(tmp_path, form(table, tmp_path))
    assert "column 'pay': 2 rows not numbers" in said
    assert "column 'city': 500 rows not numbers" in said
    assert "out of the features" in said


def test_a_typo_among_numbers_in_an_object_column_is_counted(tmp_path: Path) -> None:
    table = frame()
    table["age"] = table["age"].astype(object)
    table.loc[3, "age"] = SECRET_USER
    said = refusal(tmp_path, table)
    assert "column 'age': 1 row not numbers (the column's type is object)" in said


def test_dates_are_not_numbers(tmp_path: Path) -> None:
    table = frame()
    table["day"] = pd.Timestamp("2024-01-01")
    for form in FORMS:
        place = tmp_path / str(id(form))
        place.mkdir()
        assert "column 'day': 500 rows not numbers" in refusal(place, form(table, place))


@pytest.mark.parametrize("form", FORMS, ids=NAMES)
def test_one_user_for_every_row_is_refused_in_every_form(tmp_path: Path, form: Any) -> None:
    table = frame()
    table["who"] = SECRET_USER
    said = refusal(tmp_path, form(table, tmp_path))
    assert "user column 'who': every row has the same user" in said
    assert "unit of privacy" in said


@pytest.mark.parametrize("form", FORMS, ids=NAMES)
def test_a_table_without_rows_is_refused(tmp_path: Path, form: Any) -> None:
    assert "has no rows" in refusal(tmp_path, form(frame().iloc[:0], tmp_path))


def test_duplicate_columns_are_refused(tmp_path: Path) -> None:
    said = refusal(tmp_path, write(tmp_path, f"who,a,b,a\nx,1,2,{SECRET}\ny,1,2,3\n"))
    assert "'t.csv' has duplicate column names: 'a'" in said
    doubled = pd.concat([frame(), frame()[["age"]]], axis=1)
    assert "duplicate column names: 'age'" in refusal(tmp_path, doubled)
    arrow = pa.Table.from_arrays([pa.array([1, 2])] * 3, names=["who", "a", "a"])
    assert "duplicate column names: 'a'" in refusal(tmp_path, arrow)


@pytest.mark.parametrize("form", FORMS, ids=NAMES)
def test_missing_columns_are_named_with_the_nearest_there_is(tmp_path: Path, form: Any) -> None:
    table = form(frame(), tmp_path)
    said = refusal(tmp_path, table, user="whom")
    assert "has no user column 'whom'" in said
    assert "'who', 'age', 'pay', 'tall', 'goal'" in said
    assert "Did you mean 'who'?" in said
    assert "has no target column 'goals'" in refusal(tmp_path, table, target="goals")
    assert "has no feature column 'ages'" in refusal(tmp_path, table, features=["pay", "ages"])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"target": "pay", "features": ["age", "pay"]}, "'pay' is both target and feature"),
        ({"features": ["age", "who"]}, "'who' is both user and feature"),
        ({"target": "who"}, "'who' is both user and target"),
        ({"features": []}, "no feature columns"),
        ({"features": ["age", "age"]}, "Duplicate feature names: 'age'"),
        ({"features": "age"}, "Expected a list"),
        ({"dtype": np.int64}, "dtype is int64"),
    ],
)
def test_columns_in_two_roles_are_refused(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    assert said in refusal(tmp_path, frame(), **options)


def test_a_table_of_users_and_targets_alone_has_no_features(tmp_path: Path) -> None:
    table = frame()[["who", "goal"]]
    assert "no feature columns" in refusal(tmp_path, table, target="goal")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "'t.csv' is empty"),
        (b"\n\n", "'t.csv' is empty"),
        (b"who,a\n", "'t.csv' has no rows"),
        (b"who,a", "'t.csv' could not be read as CSV|'t.csv' has no rows"),
        (f"who,a\nx,1\ny,2,{SECRET}\nz\nx,2\n".encode(), "2 rows without exactly 2 cells"),
        (f'who,a\nx,1\ny,"{SECRET}\nz,2\n'.encode(), "1 row without|column 'a': 1 row not numbers"),
        (f"who,a\nx,1\ny,\xff{SECRET}\n".encode("latin-1"), "column 'a': 1 row not numbers"),
        (f"who,a\nx,{SECRET}\n".encode("utf-16"), "column 'a': 1 row not numbers|at least two users"),
        (b"\x00\x01\x02\x03", "is not a text table"),
        (f"17,0,0,{SECRET}\n18,2,0.1,1\n".encode(), "first line looks like data"),
        (f"{SECRET_USER},0,0,1\nother,2,0.1,1\n".encode(), "first line looks like data"),
    ],
    ids=[
        "empty",
        "blank",
        "header",
        "bare",
        "torn",
        "quote",
        "latin",
        "utf16",
        "binary",
        "headless",
        "named",
    ],
)
def test_text_that_is_not_a_table_is_refused(tmp_path: Path, text: bytes, said: str) -> None:
    message = refusal(tmp_path, write(tmp_path, text))
    assert any(part in message for part in said.split("|")), message


def test_rows_torn_in_one_place_are_counted_in_all(tmp_path: Path) -> None:
    lines = ["who,a"] + [f"{i % 7},{i}" + (f",{SECRET}" if i % 100 == 0 else "") for i in range(999)]
    said = refusal(tmp_path, write(tmp_path, "\n".join(lines)))
    assert "10 rows without exactly 2 cells" in said


@pytest.mark.parametrize("name", ["t.parquet", "t.feather", "t.arrow"])
@pytest.mark.parametrize("text", [b"", b"who,a\n1,2\n"], ids=["empty", "text"])
def test_files_that_are_not_what_they_are_called_are_refused(tmp_path: Path, name: str, text: bytes) -> None:
    said = refusal(tmp_path, write(tmp_path, text, name))
    assert name in said
    assert "is empty" in said or "could not be read as" in said


def test_paths_that_lead_nowhere_are_refused(tmp_path: Path) -> None:
    assert "'no.csv' was not found" in refusal(tmp_path, tmp_path / "no.csv")
    assert "was not found" in refusal(tmp_path, str(tmp_path / "no.csv"))
    assert "no .parquet files" in refusal(tmp_path, tmp_path)
    said = refusal(tmp_path, write(tmp_path, "who,a\n", "t.xlsx"))
    assert "extension '.xlsx'" in said
    assert ".parquet" in said


def test_things_that_are_no_tables_are_refused(tmp_path: Path) -> None:
    for thing in ({"who": [1]}, [[1]], np.eye(2), pl.LazyFrame({"who": [1]}), None):
        assert "Expected a pandas or polars DataFrame" in refusal(tmp_path, thing)


def test_parquet_files_with_different_columns_are_refused(tmp_path: Path) -> None:
    folder = as_parquet_folder(frame(), tmp_path)
    frame().drop(columns="pay").to_parquet(folder / "zz.parquet")
    assert "different columns" in refusal(tmp_path, folder)


def test_an_existing_folder_is_never_written_over(tmp_path: Path) -> None:
    Cohort.from_table(frame(), user="who", folder=tmp_path / "cohort")
    with pytest.raises(DataError, match="exists"):
        Cohort.from_table(frame(), user="who", folder=tmp_path / "cohort")


def test_a_file_that_changes_between_the_passes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = as_csv(frame(), tmp_path)
    count = tacitly.data.cohort._count_users

    def count_then_change(source: Any, user: str, **options: Any) -> Any:
        found = count(source, user, **options)
        frame(seed=1).to_csv(path, index=False)
        return found

    monkeypatch.setattr("tacitly.data.cohort._count_users", count_then_change)
    assert "changed while it was read" in refusal_once(tmp_path, path)


def refusal_once(tmp_path: Path, path: Path) -> str:
    with pytest.raises(DataError) as caught:
        Cohort.from_table(path, user="who", folder=tmp_path / "cohort")
    assert sorted(p.name for p in tmp_path.iterdir()) == [path.name]
    return str(caught.value)


STREAM = """
    import sys, threading, time
    import pyarrow.compute, pyarrow.parquet
    from tacitly.data.cohort import Cohort

    def held():  # anonymous memory only: the system can reclaim the pages of mapped files
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) * 1024 for line in status if "RssAnon" in line)

    def watch():
        while True:
            seen.append(held())
            time.sleep(0.002)

    seen = [held()]
    threading.Thread(target=watch, daemon=True).start()
    cohort = Cohort.from_table(sys.argv[1], user="who", target="f0", folder=sys.argv[2])
    print(cohort.n_users, cohort.X.nbytes, max(seen) - seen[0])
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's memory account")
@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_a_table_streams_into_a_folder_with_far_less_memory_than_it_needs(tmp_path: Path, kind: str) -> None:
    rows, d = 400_000, 65
    values = np.random.default_rng(0).integers(0, 5000, rows)
    column = pa.array(values / 8)  # one column many times over: large to read, quick to write
    table = pa.table([pa.array(values), *[column] * d], names=["who", *(f"f{j}" for j in range(d))])
    if kind == "parquet":
        parquet.write_table(table, tmp_path / "t.parquet", row_group_size=rows)
    else:
        with pa.ipc.new_file(tmp_path / "t.arrow", table.schema) as file:
            file.write_table(table)
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            textwrap.dedent(STREAM),
            tmp_path / f"t.{kind}",
            tmp_path / "cohort",
        ],
        env={**os.environ, "PYTHONPATH": str(Path(tacitly.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    users, size, grown = map(int, done.stdout.split())
    assert (users, size) == (5000, rows * (d - 1) * 8)
    assert grown < size / 2


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('who,x\na,"12,345"\nb,"1,234.5"\n', [12345.0, 1234.5]),
        ('who,x\na,"$1,200.50"\nb,$3\n', [1200.5, 3.0]),
        ("who,x\na,45%\nb,7 %\n", [45.0, 7.0]),
        ("who;x\na;1 234,5\nb;12\u202f345,25 €\n", [1234.5, 12345.25]),
        ("sep=;\nwho;x\na;1\nb;2\n", [1.0, 2.0]),
        ("# saved by a program\n# yesterday\nwho\tx\na\t1\nb\t2\n", [1.0, 2.0]),
        ("#who,x\na,1\nb,2\n", [1.0, 2.0]),
        ("Export of 3 May;\n\nwho;x\na;1,5\nb;2\n", [1.5, 2.0]),
        ("Export\nwho,x\na,1\nb,2\n", [1.0, 2.0]),
        ("who;x;y\na;1.234;0,5\nb;980;1,5\n", [1234.0, 980.0]),
        ("who;x\na;1.234.567,5 €\nb;-12,25\n", [1234567.5, -12.25]),
        ("who;x;y\na;1.234;0,5\nb;0.5;1,5\nc;36.5;2,5\n", [1.234, 0.5, 36.5]),
        ("who;x\na;1,5E-02\nb;−2,5\n", [0.015, -2.5]),
        ("who;x;y\na;1,5;#DIV/0!\nb;2,5;#NV\n", [1.5, 2.5]),
        ("who;x;;;\na;1,5;;;\nb;2,5;;;\n", [1.5, 2.5]),
        ('who,x\na,"46,8"\nb,"53,75 €"\nc,"1,125"\nd,7\n', [46.8, 53.75, 1.125, 7.0]),
        (";Marks;\nwho;x;y\na;1,5;2\nb;2;3\n", [1.5, 2.0]),
        ("District;;\n;;\n;Marks;\nwho;x;y\na;1,5;2\nb;2;3\n", [1.5, 2.0]),
    ],
    ids=["thousands", "money", "per cent", "spaces", "excel", "comments", "header with #", "title", "bare title",
         "points", "points and comma", "decimal points", "typographic", "no results", "empty columns",
         "quoted decimal commas", "merged header", "title and merged header"],
)  # fmt: skip
def test_numbers_and_first_lines_as_programs_and_people_write_them(tmp_path: Path, text: str, value: Any) -> None:
    """Money and per cent were taken for text, without a word; a line before the header for the header."""
    path = tmp_path / "t.txt"
    path.write_text(text, encoding="utf-8")
    user = "#who" if text.startswith("#who") else "who"
    for schema in (None, {}):
        cohort = Cohort.from_table(path, user=user, features=["x"], schema=schema)
        assert cohort.feature_names == ("x",)
        assert cohort.X[:, 0].tolist() == value


def test_points_that_could_separate_thousands_are_asked_about_and_others_not(tmp_path: Path) -> None:
    """Of 980 and 1.234 the second was read as 1.234: a thousandth, without a word."""
    path = tmp_path / "t.csv"
    lines = [("w", "x"), ("a", "980"), ("b", "1.234"), ("c", "2.500"), ("d", "12.125")]
    for mark in ";\t":
        path.write_text("\n".join(map(mark.join, lines)))
        with pytest.raises(DataError, match=r"a point and three digits.*thousands or decimals\?"):
            tacitly.data.tables.open_table(path, "w")
        for decimal, values in ((",", [980.0, 1234.0]), (".", [980.0, 1.234])):
            source = tacitly.data.tables.open_table(path, "w", csv=CsvFormat(decimal=decimal))
            assert next(source.batches(["x"], 10))[0][:2].tolist() == values
    for text in ("w;x\na;980\nb;1.234\nc;2.5\nd;2.125\ne;3.125\n", "w,x\na,980\nb,1.234\nc,2.500\nd,2.125\n"):
        path.write_text(text)
        assert next(tacitly.data.tables.open_table(path, "w").batches(["x"], 10))[0][1] == 1.234


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        (["$1,200.50", "$3", "$14.25"], "number"),
        (["1,2,3", "2,3,4", "1"], "hashed"),
        (["46,8", "53,75", "7"], None),
        (["1,234", "980", "12,345"], None),
    ],
    ids=["a point follows", "lists", "decimal commas", "thousands"],
)
def test_numbers_with_commas_in_a_frame_are_not_taken_for_text(cells: list[str], kind: str | None) -> None:
    """read_csv without decimal=',' leaves text: 16 groups of it were learned from, without a word."""
    frame = pd.DataFrame({"who": ["a", "b", "c"], "x": cells})
    schema: dict[str, Any] = {}
    if kind is None:
        with pytest.raises(DataError, match=r"numbers with commas, as text: 'x'.*decimal=','"):
            Cohort.from_table(frame, user="who", schema={})
        kind, schema = "hashed", {"x": {"kind": "hashed"}}
    read = Cohort.from_table(frame, user="who", schema=schema).schema
    assert read is not None
    assert [column.kind for column in read.columns] == [kind]


def test_a_range_that_is_not_two_numbers_is_named() -> None:
    with pytest.raises(DataError, match=r"'x': range must be two numbers, such as \[0, 120\]. Found '0-1'"):
        Schema.declared({"x": {"range": "0-1"}})


def test_a_few_points_neither_stop_a_file_nor_let_it_go_on(tmp_path: Path) -> None:
    """Three cells such as 1.234 stopped a file of whole numbers, whoever wrote them; one 2.5 let go on what stops."""
    path, amounts = tmp_path / "t.csv", [["980"], ["1.234"], ["12.500"]] * 100
    for odd in ("2.5", "1,5", "x"):
        path.write_text("w;x\n" + "".join(f"{place};{cell}\n" for place, (cell,) in enumerate([*amounts, [odd]])))
        with pytest.raises(DataError, match="thousands or decimals"):
            tacitly.data.tables.open_table(path, "w")
    for few in (["1.234"] * 20, ["1.234.567"] * 20):
        cells = [*few, *(str(number) for number in range(280))]
        path.write_text("w;x\n" + "".join(f"{place};{cell}\n" for place, cell in enumerate(cells)))
        read = next(tacitly.data.tables.open_table(path, "w").batches(["x"], 1000))[0]
        assert [float(cell) for cell in read[20:]] == list(range(280))


def test_text_with_numbers_in_it_stays_text(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("who,x\na,5 kg\nb,10:30\nc,1-2\n")
    cohort = Cohort.from_table(path, user="who", schema={})
    assert cohort.schema is not None
    assert [column.kind for column in cohort.schema.columns] == ["hashed"]


@pytest.mark.parametrize("encoding", ["utf-8", "cp1252", "utf-16"])
@pytest.mark.parametrize("ending", ["csv", "csv.gz"])
@pytest.mark.parametrize("whole", [True, False])
def test_arrow_keeps_no_python_object_after_reading(tmp_path, encoding, ending, whole):
    """A thread of Arrow's that lets go of one while Python is ending aborts the process."""
    path = tmp_path / f"rows.{ending}"
    text = "id;größe\n" + "".join(f"{i};{i},5\n" for i in range(100_000))
    with gzip.open(path, "wb") if ending.endswith("gz") else open(path, "wb") as file:
        file.write(text.encode(encoding))
    batches = tacitly.data.tables.open_table(path, "id").batches(["id", "größe"], 1000)
    first = next(batches)
    rows = len(first[0]) + (sum(len(ids) for ids, _ in batches) if whole else 0)
    batches.close()
    assert rows == (100_000 if whole else 1000)
    assert first[1][:3].tolist() == [0.5, 1.5, 2.5]
    assert not any(isinstance(thing, Utf8File) for thing in gc.get_objects())


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (pa.array([1.5, None, 3.0]), [1.5, np.nan, 3.0]),
        (pa.array([1.5, None, 3.0], pa.float32()).slice(1), [np.nan, 3.0]),
        (pa.array([7, 8, 9], pa.uint16()).slice(1, 1), [8]),
        (pa.array([1, None], pa.int64()), [1, None]),
        (pa.array(["b", None, "a"]).slice(1), [None, "a"]),
        (pa.array(["b"], pa.large_string()), ["b"]),
        (pa.array([True, False]), [True, False]),
        (pa.array([], pa.float64()), []),
        (pa.array(["b", "a", "b"]).dictionary_encode(), ["b", "a", "b"]),
        (pa.chunked_array([[1.0], [2.0]]), [1.0, 2.0]),
    ],
)
def test_columns_of_arrow_become_arrays_of_the_same_cells(values: Any, expected: list[Any]) -> None:
    found = tacitly.data.source.to_numpy(values)
    np.testing.assert_array_equal(found, np.array(expected, dtype=found.dtype))
    plain = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    if found.dtype != object:
        assert found.dtype == plain.to_numpy(zero_copy_only=False).dtype


def test_a_table_is_read_without_pandas(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    table.write_text("person,x,score\n" + "".join(f"p{i % 3},{i}.5,{i}\n" for i in range(9)), encoding="utf-8")
    program = f"""
import sys
from tacitly.data.cohort import Cohort
print(Cohort.from_table({str(table)!r}, user="person", target="score").n_users, "pandas" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "3 False"
