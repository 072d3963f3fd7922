"""Read named columns from data frames and files, one batch at a time.

A data frame or file becomes a :class:`~tacitly.data.source.Source`: column names, column types, and ``batches``, which
reads only the requested columns and at most a bounded piece of a file at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import Any

from tacitly.data.csv_file import open_csv
from tacitly.data.csv_format import COMPRESSED, TEXT_SUFFIXES, CsvFormat, suffix_of
from tacitly.data.source import Source, cut, replacing_errors, to_numpy, types_of
from tacitly.data.validation import Array, DataError, array_of

_BINARY_SUFFIXES = (".parquet", ".arrow", ".feather")


def is_frame(table: object) -> bool:
    """Return whether this is a table with named columns (pandas, polars or Arrow)."""
    reads = ("iloc", "to_arrow", "to_batches")
    return any(hasattr(table, name) for name in reads) and hasattr(table, "columns")


def open_table(table: object, user: str | None = None, csv: CsvFormat | None = None, *, blank: bool = False) -> Source:
    """Return a `Source` for a pandas or polars frame, an Arrow table, or a file path; a `Source` is returned unchanged.

    In a text file the `user` column stays text, so that '007' and '7' are two users. ``csv`` gives the format of such a
    file; fields that are None are detected. A row with too many or too few cells is an error; with ``blank`` it is a
    row without values for the user in its user column.
    """
    if isinstance(table, Source):
        return table
    if isinstance(table, (str, PathLike)):
        return _open_path(Path(table), user, csv or CsvFormat(), blank)
    if is_frame(table):
        frame: Any = table
        if hasattr(frame, "iloc"):
            return _open_pandas(frame)
        with replacing_errors("The table", "Arrow"):
            arrow = frame.to_arrow() if hasattr(frame, "to_arrow") else frame
        types = types_of("The table", arrow.schema.names, arrow.schema.types)
        return Source("The table", types, lambda names, rows: cut(arrow, names, rows))
    raise DataError(
        f"table is a {type(table).__name__}. Expected a pandas or polars DataFrame, a pyarrow Table, or the path of a "
        ".csv, .tsv, .parquet, .arrow or .feather file. (Collect a lazy frame first; arrays: Cohort.from_arrays.)"
    )


def _open_path(path: Path, user: str | None, form: CsvFormat, blank: bool) -> Source:
    title = f"The file {path.name!r}"
    if str(path) == "-":
        raise DataError("A table is read more than once, so it cannot come from standard input. Write it to a file.")
    if not path.exists():
        raise DataError(f"{title} was not found. Expected an existing file: check the path.")
    if path.is_dir():
        files = sorted(p for p in path.rglob("*.parquet") if p.name[0] not in "._")
        if not files:
            raise DataError(
                f"The folder {path.name!r} has no .parquet files. Expected a file or a folder of Parquet files. "
                "(A saved cohort is read with Cohort.open.)"
            )
        return _open_parquet(f"The folder {path.name!r}", files)
    suffix, packed = suffix_of(path), path.suffix.lower() in COMPRESSED
    if suffix not in TEXT_SUFFIXES and (packed or suffix not in _BINARY_SUFFIXES):
        sheet = " Save the sheet as CSV." if suffix in (".xlsx", ".xls", ".ods") else ""
        raise DataError(
            f"{title} has the extension {''.join(path.suffixes[-2:] if packed else path.suffixes[-1:])!r}. Expected "
            f".csv, .tsv or .txt (also compressed: .csv.gz), .parquet, .arrow or .feather.{sheet}"
        )
    if path.stat().st_size == 0:
        raise DataError(f"{title} is empty. Expected a header and rows.")
    if suffix in TEXT_SUFFIXES:
        return open_csv(title, path, user, form, blank)
    return _open_parquet(title, [path]) if suffix == ".parquet" else _open_ipc(title, path)


def _open_pandas(frame: Any) -> Source:
    names = [str(name) for name in frame.columns]
    types = types_of("The table", names, list(frame.dtypes))

    def batches(chosen: Sequence[str], rows: int) -> Iterator[list[Array]]:
        columns = [_of_pandas(frame.iloc[:, names.index(name)]) for name in chosen]
        for start in range(0, len(frame), rows):
            yield [column[start : start + rows] for column in columns]

    return Source("The table", types, batches)


def _of_pandas(column: Any) -> Array:
    """Return a column's cells. A complex number or invalid text in one cell does not change other cells."""
    try:
        values: Array = column.to_numpy()
    except Exception:  # pandas' message shows the cell
        return array_of(column)
    if values.dtype.kind != "c":
        return values
    cells, real = values.astype(object), values.imag == 0
    cells[real] = values.real[real]
    return cells


def _open_parquet(title: str, files: Sequence[Path]) -> Source:
    parquet = import_module("pyarrow.parquet")
    with replacing_errors(title, "Parquet"):
        schemas = [parquet.read_schema(file) for file in files]
    if any(set(schema.names) != set(schemas[0].names) for schema in schemas):
        raise DataError(f"{title} holds files with different columns. Expected the same in each.")
    types = types_of(title, schemas[0].names, schemas[0].types)
    for name in types:
        if len(kinds := {str(schema.field(name).type) for schema in schemas}) > 1:
            types[name] = " or ".join(sorted(kinds))

    def batches(names: Sequence[str], rows: int) -> Iterator[list[Array]]:
        with replacing_errors(title, "Parquet"):
            for path in files:
                with parquet.ParquetFile(path, pre_buffer=False, buffer_size=1 << 16) as file:
                    for batch in file.iter_batches(rows, columns=list(names)):
                        yield [to_numpy(batch.column(name)) for name in names]

    return Source(title, types, batches)


def _open_ipc(title: str, path: Path) -> Source:
    pa = import_module("pyarrow")

    def read() -> Iterator[Any]:
        # A memory map reads all columns without copying; selecting columns here would copy them.
        with pa.memory_map(str(path)) as data:
            if data.read(6) == b"ARROW1":
                with pa.ipc.open_file(data) as file:
                    yield file.schema
                    yield from (file.get_batch(i) for i in range(file.num_record_batches))
            else:
                data.seek(0)
                with pa.ipc.open_stream(data) as flow:
                    yield flow.schema
                    yield from flow

    with replacing_errors(title, "Arrow"):
        schema = next(read())
    types = types_of(title, schema.names, schema.types)

    def batches(names: Sequence[str], rows: int) -> Iterator[list[Array]]:
        with replacing_errors(title, "Arrow"):
            stream = read()
            next(stream)
            for batch in stream:
                yield from cut(batch, names, rows)

    return Source(title, types, batches)
