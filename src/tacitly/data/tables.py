"""Read named columns from data frames and files, one batch at a time.

A frame in memory or a file becomes a `Source`: column names, column types, and `batches`, which reads only the
requested columns and never more than a bounded piece of a file at once.

Exceptions of the underlying parsers may quote cells, which are private, so they are replaced and not chained.
"""

from __future__ import annotations

import csv
import math
import re
import time
import weakref
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from lzma import LZMAError
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from tacitly.data.csv_format import COMPRESSED, TEXT_SUFFIXES, CsvFormat, Utf8File, look, suffix_of
from tacitly.data.validation import NULL_WORDS, Array, DataError, listed, rows_in_words

__all__ = ["DataError", "Source", "batch_rows", "check_names", "is_frame", "open_table", "quoted", "row_blocks"]

_CELLS = 1 << 18  # cells in one batch: 2 MiB of float64
_CSV_BLOCK_BYTES = 1 << 20
_LARGER_BLOCKS = 1 << 24, 1 << 28  # for cells that are longer than a block
_PATIENCE = 5000  # milliseconds
_BINARY_SUFFIXES = (".parquet", ".arrow", ".feather")
# With a currency or per cent around a number, and spaces between groups of three digits; what is left of those is read
# with the number (validation.number_of), where a column is one of numbers.
_DECIMAL_COMMA = r"^(\s*[-+]?[$€£¥]?[-+]?[\d \x{a0}\x{202f}']*),(\d+\s*[%$€£¥]?)\s*$"
_THOUSANDS = r"^\s*[-+]?[$€£¥]? ?[-+]?\d{1,3}(,\d{3})+(\.\d+)?\s*[%$€£¥]?\s*$"


@dataclass(frozen=True)
class Source:
    """A table that can be read more than once, some columns at a time.

    Attributes
    ----------
    title
        Name of the table in error messages.
    types
        Column names, in order, with the stored type of each.
    batches
        Called with column names and a number of rows; yields one list of arrays per batch.
    typed
        False if every cell is text, so that an id such as 17 is read as '17'.
    found
        What was found out about the file and is unusual, for a sentence; empty for nothing.
    """

    title: str
    types: dict[str, str]
    batches: Callable[[Sequence[str], int], Iterator[list[Array]]]
    typed: bool = True
    found: str = ""


def row_blocks(rows: int, columns: int) -> Iterator[slice]:
    """Yield slices of rows small enough that a scan of one needs little memory."""
    step = max(1, _CELLS // max(1, columns))
    return (slice(start, min(start + step, rows)) for start in range(0, rows, step))


def batch_rows(columns: int) -> int:
    """Return how many rows of this many columns to read at once."""
    return int(np.clip(_CELLS // max(1, columns), 1, 1 << 16))


def check_names(features: Sequence[str], target: str | None) -> None:
    """Raise if there are no features, a feature is named twice, or the target is among the features."""
    if not features:
        raise DataError("There are no feature columns. Expected at least one.")
    if repeated := _repeated(features):
        raise DataError(f"Duplicate feature names: {quoted(repeated)}. Expected each name once.")
    if target is not None and target in features:
        raise DataError(f"Column {target!r} is both target and feature. Leave it out of features.")


def quoted(names: Iterable[str]) -> str:
    """Return the first twenty column names, quoted, for a message."""
    return listed([repr(name) for name in names], ", ", 20)


def is_frame(table: object) -> bool:
    """Return whether this is a table with named columns (pandas, polars or Arrow)."""
    reads = ("iloc", "to_arrow", "to_batches")
    return any(hasattr(table, name) for name in reads) and hasattr(table, "columns")


def open_table(table: object, user: str | None = None, csv: CsvFormat | None = None, *, blank: bool = False) -> Source:
    """Return a `Source` for a pandas or polars frame, an Arrow table, or the path of a file; one that is open as it is.

    In a text file the `user` column stays text, so that '007' and '7' are two users. ``csv`` says how such a file is
    written, where that is not to be found out. A row of it with too many or too few cells is an error, or with
    ``blank`` one without cells of whoever stands in its user column.
    """
    if isinstance(table, Source):
        return table
    if isinstance(table, (str, PathLike)):
        return _open_path(Path(table), user, csv or CsvFormat(), blank)
    if is_frame(table):
        frame: Any = table
        if hasattr(frame, "iloc"):
            return _open_pandas(frame)
        with _replacing_errors("The table", "Arrow"):
            arrow = frame.to_arrow() if hasattr(frame, "to_arrow") else frame
        types = _types("The table", arrow.schema.names, arrow.schema.types)
        return Source("The table", types, lambda names, rows: _cut(arrow, names, rows))
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
        return _open_csv(title, path, user, form, blank)
    return _open_parquet(title, [path]) if suffix == ".parquet" else _open_ipc(title, path)


def _open_pandas(frame: Any) -> Source:
    names = [str(name) for name in frame.columns]
    types = _types("The table", names, list(frame.dtypes))

    def batches(chosen: Sequence[str], rows: int) -> Iterator[list[Array]]:
        columns = [frame.iloc[:, names.index(name)].to_numpy() for name in chosen]
        for start in range(0, len(frame), rows):
            yield [column[start : start + rows] for column in columns]

    return Source("The table", types, batches)


def _open_csv(title: str, path: Path, user: str | None, given: CsvFormat, blank: bool) -> Source:
    """Read every cell as a number, and as text that is converted here where some are not: types inferred are wrong."""
    arrow_csv, pa = import_module("pyarrow.csv"), import_module("pyarrow")
    with _replacing_errors(title, "CSV"):
        form, header = look(path, given, user)
    if header is None:
        raise DataError(f"{title} is empty. Expected a header and rows.")
    if user is not None and user not in header and any(_reads_as_number(n) for n in header):
        raise DataError(
            f"{title} has no column {user!r}, and its first line looks like data. Expected a header line with column "
            "names."
        )
    types = _types(title, header, ["text"] * len(header))
    place = header.index(user) if user in header else len(header)

    def stream(names: Sequence[str], numeric: bool, block: int, malformed: list[str] | None) -> Iterator[Any]:
        def skip(row: Any) -> str:
            assert malformed is not None
            malformed.append(_cell(row.text, form.separator, place))
            return "skip"

        read = arrow_csv.ReadOptions(block_size=max(block, 256 * len(header)), encoding="utf8", skip_rows=form.skipped)
        parse = arrow_csv.ParseOptions(
            delimiter=form.separator,
            newlines_in_values=True,
            invalid_row_handler=None if malformed is None else skip,
        )
        convert = arrow_csv.ConvertOptions(
            include_columns=list(names),
            column_types={name: pa.float64() if numeric and name != user else pa.string() for name in names},
            strings_can_be_null=True,
            null_values=list(NULL_WORDS),
        )
        file: Any = path
        reader, lent = None, [weakref.ref[Any](skip)]
        if path.suffix.lower() in COMPRESSED or form.encoding != "utf-8" or not form.pure:
            file = Utf8File(path, form)
            lent.append(weakref.ref(file))
        try:
            reader = arrow_csv.open_csv(file, read, parse, convert)
            yield from reader
        finally:
            if reader is not None:
                reader.close()
            del reader, file, parse, skip
            _wait_for_release(lent)

    def batches(names: Sequence[str], rows: int) -> Iterator[list[Array]]:
        # Cells as numbers; as text if one is not written as a number; if some rows are malformed, without those; in
        # larger blocks if a cell is longer than one. No earlier: Arrow's threads hold the function that collects
        # malformed rows, and one that lets go of it while Python ends aborts.
        malformed: list[str] = []
        ways: list[tuple[bool, int, list[str] | None]] = [(False, _CSV_BLOCK_BYTES, None)]
        ways += [(False, block, malformed) for block in (_CSV_BLOCK_BYTES, *_LARGER_BLOCKS)]
        done = 0
        with _replacing_errors(title, "CSV"):
            for numeric, block, collected in ways if form.decimal else [(True, _CSV_BLOCK_BYTES, None), *ways]:
                seen = done
                malformed.clear()
                try:
                    for batch in stream(names, numeric, block, collected):
                        new = batch.slice(min(seen, batch.num_rows))
                        seen -= batch.num_rows - new.num_rows
                        yield from columns(new, names, rows)
                        done += new.num_rows
                    break
                except pa.ArrowInvalid:
                    if block == _LARGER_BLOCKS[-1]:
                        raise
        if malformed and not blank:
            raise DataError(
                f"{title} has {rows_in_words(len(malformed))} without exactly {len(header)} cells, the number of "
                "columns in its header. Look for stray separators, quotes or line breaks."
            )
        for start in range(0, len(malformed), rows):
            ids = np.array([*malformed[start : start + rows], ""], dtype=object)[:-1]
            yield [ids if name == user else np.full(len(ids), np.nan) for name in names]

    def columns(batch: Any, names: Sequence[str], rows: int) -> Iterator[list[Array]]:
        for piece in _pieces(batch, rows):
            yield [_csv_column(piece.column(name), name == user, form) for name in names]

    return Source(title, types, batches, typed=False, found=form.words)


def _wait_for_release(lent: Sequence[weakref.ref[Any]]) -> None:
    """Wait until Arrow's threads have let go of Python objects that were lent to them.

    A thread that lets go of one while Python is ending aborts the process ("terminate called without an active
    exception"), after all work was done.
    """
    for _ in range(_PATIENCE):
        if all(thing() is None for thing in lent):
            return
        time.sleep(0.001)


def _cell(line: str, separator: str | None, place: int) -> str:
    """Return one cell of a line that has not as many cells as it should; empty if it is not there."""
    try:
        row = next(csv.reader([line], delimiter=separator or ","))
    except (csv.Error, StopIteration):
        return ""
    cell = row[place].strip() if place < len(row) else ""
    return "" if cell in NULL_WORDS else cell


def _csv_column(column: Any, is_id: bool, form: CsvFormat) -> Array:
    pa, pc = import_module("pyarrow"), import_module("pyarrow.compute")
    if is_id:
        return _to_numpy(pc.utf8_trim_whitespace(column))
    if pa.types.is_floating(column.type):
        return _to_numpy(column)
    if form.decimal == ",":
        column = pc.replace_substring_regex(column, _DECIMAL_COMMA, r"\1.\2")
    elif form.decimal == "." or form.separator == ",":  # in the latter they are in quotes
        plain = pc.replace_substring(column, ",", "")
        column = pc.if_else(pc.match_substring_regex(column, _THOUSANDS), plain, column)
    try:
        return _to_numpy(pc.cast(column, pa.float64()))
    except pa.ArrowInvalid:
        return _to_numpy(column)


def _open_parquet(title: str, files: Sequence[Path]) -> Source:
    parquet = import_module("pyarrow.parquet")
    with _replacing_errors(title, "Parquet"):
        schemas = [parquet.read_schema(file) for file in files]
    if any(set(schema.names) != set(schemas[0].names) for schema in schemas):
        raise DataError(f"{title} holds files with different columns. Expected the same in each.")
    types = _types(title, schemas[0].names, schemas[0].types)
    for name in types:
        if len(kinds := {str(schema.field(name).type) for schema in schemas}) > 1:
            types[name] = " or ".join(sorted(kinds))

    def batches(names: Sequence[str], rows: int) -> Iterator[list[Array]]:
        with _replacing_errors(title, "Parquet"):
            for path in files:
                with parquet.ParquetFile(path, pre_buffer=False, buffer_size=1 << 16) as file:
                    for batch in file.iter_batches(rows, columns=list(names)):
                        yield [_to_numpy(batch.column(name)) for name in names]

    return Source(title, types, batches)


def _open_ipc(title: str, path: Path) -> Source:
    pa = import_module("pyarrow")

    def read() -> Iterator[Any]:
        # A memory map reads all columns without a copy; selecting columns here would copy them.
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

    with _replacing_errors(title, "Arrow"):
        schema = next(read())
    types = _types(title, schema.names, schema.types)

    def batches(names: Sequence[str], rows: int) -> Iterator[list[Array]]:
        with _replacing_errors(title, "Arrow"):
            stream = read()
            next(stream)
            for batch in stream:
                yield from _cut(batch, names, rows)

    return Source(title, types, batches)


@contextmanager
def _replacing_errors(title: str, kind: str) -> Iterator[None]:
    pa = import_module("pyarrow")
    try:
        yield
    except (pa.ArrowException, OSError, EOFError, UnicodeError, csv.Error, LZMAError, zlib.error) as error:
        raise DataError(
            f"{title} could not be read as {kind} ({type(error).__name__}). Check that it is complete and really "
            f"{kind}; the reader's own message is withheld because it may quote data."
        ) from None


def _types(title: str, names: Sequence[str], types: Sequence[object]) -> dict[str, str]:
    if repeated := _repeated(names):
        raise DataError(f"{title} has duplicate column names: {quoted(repeated)}. Rename them.")
    # pandas saves an unnamed index as a column of this name; it is not a feature.
    return {
        name: str(kind)
        for name, kind in zip(names, types, strict=True)
        if not re.fullmatch(r"__index_level_\d+__", name)
    }


def _pieces(batch: Any, rows: int) -> Iterator[Any]:
    return (batch.slice(start, rows) for start in range(0, batch.num_rows, rows))


def _cut(table: Any, names: Sequence[str], rows: int) -> Iterator[list[Array]]:
    for piece in _pieces(table, rows):
        yield [_to_numpy(piece.column(name)) for name in names]


def _to_numpy(column: Any) -> Array:
    pa = import_module("pyarrow")
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if isinstance(column, pa.DictionaryArray):
        column = column.dictionary_decode()
    exact = pa.types.is_integer(column.type) and column.null_count  # floats would round large ids
    text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
    if exact or text or isinstance(column, pa.ExtensionArray):
        return np.fromiter(column.to_pylist(), dtype=object, count=len(column))
    # Arrow's own conversion, below, imports pandas where that is installed: it takes longer than to read a table.
    if len(column) and (pa.types.is_integer(column.type) or column.type in (pa.float32(), pa.float64())):
        full = column.fill_null(math.nan) if column.null_count else column
        numbers: Array = np.frombuffer(full.buffers()[1], dtype=full.type.to_pandas_dtype())
        return numbers[full.offset : full.offset + len(full)]
    values: Array = column.to_numpy(zero_copy_only=False)
    return values


def _reads_as_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _repeated(names: Sequence[str]) -> list[str]:
    return sorted(name for name, count in Counter(names).items() if count > 1)
