"""Read delimited text files: columns become numbers if all of their cells are numbers, else text."""

from __future__ import annotations

import itertools
import re
import time
import weakref
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from tacitly.data.csv_format import COMPRESSED, CsvFormat, Utf8File, look
from tacitly.data.source import Source, pieces, replacing_errors, to_numpy, types_of
from tacitly.data.validation import NULL_WORDS, Array, DataError, rows_in_words

_CSV_BLOCK_BYTES = 1 << 20
_LARGER_BLOCKS = 1 << 24, 1 << 28  # for cells that are larger than a block
_PATIENCE = 5000  # milliseconds
# A number with a currency or per cent sign, and spaces between groups of three digits. Other formats are read together
# with the number (validation.number_of), if the column is numeric.
_DECIMAL_COMMA = r"^(\s*[-+−]?[$€£¥]?[-+−]?[\d \x{a0}\x{202f}']*),(\d+(?:[eE][-+]?\d+)?\s*[%$€£¥]?)\s*$"
_POINTS = r"^\s*[-+−]?[$€£¥]? ?[-+−]?[1-9]\d{0,2}(\.\d{3})+(,\d+)%s\s*[%%$€£¥]?\s*$"
_THOUSANDS = r"^\s*[-+]?[$€£¥]? ?[-+]?\d{1,3}(,\d{3})+(\.\d+)?\s*[%$€£¥]?\s*$"


def open_csv(title: str, path: Path, user: str | None, given: CsvFormat, blank: bool) -> Source:
    """Read cells as numbers, or as text that is converted here: types inferred by Arrow would be wrong."""
    arrow_csv, pa = import_module("pyarrow.csv"), import_module("pyarrow")
    with replacing_errors(title, "CSV"):
        form, header = look(path, given, user)
    if header is None:
        raise DataError(f"{title} is empty. Expected a header and rows.")
    if user is not None and user not in header and any(_reads_as_number(n) for n in header):
        raise DataError(
            f"{title} has no column {user!r}, and its first line looks like data. Expected a header line with column "
            "names."
        )
    named = [name for number, name in enumerate(header) if name.strip() or not number]  # a saved row number is first
    types = types_of(title, named, ["text"] * len(named))
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
        # Read cells as numbers; then as text, if a cell is not written as a number; then without malformed rows, if
        # there are some; then in larger blocks, if a cell is larger than a block. Malformed rows are collected only if
        # needed: Arrow's threads hold the collecting function, and releasing it while Python exits aborts the process.
        malformed: list[str] = []
        ways: list[tuple[bool, int, list[str] | None]] = [(False, _CSV_BLOCK_BYTES, None)]
        ways += [(False, block, malformed) for block in (_CSV_BLOCK_BYTES, *_LARGER_BLOCKS)]
        done = 0
        with replacing_errors(title, "CSV"):
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
        for piece in pieces(batch, rows):
            yield [_csv_column(piece.column(name), name == user, form, name in form.pointed) for name in names]

    return Source(title, types, batches, typed=False, found=form.words)


def _wait_for_release(lent: Sequence[weakref.ref[Any]]) -> None:
    """Wait until Arrow's threads have released the Python objects that were passed to them.

    If a thread releases one while Python is exiting, the process aborts ("terminate called without an active
    exception"), after all work was done.
    """
    for _ in range(_PATIENCE):
        if all(thing() is None for thing in lent):
            return
        time.sleep(0.001)


def _cell(line: str, separator: str | None, place: int) -> str:
    """Return one cell of a line that has the wrong number of cells; empty if the line has no such cell.

    Python's reader is not used, because it refuses lines with a long cell, and then the line's user would not be on the
    roster.
    """
    mark = re.escape(separator or ",")
    cells = re.finditer(rf'(?:"([^"]*(?:""[^"]*)*)"?)?([^{mark}]*)(?:{mark}|\Z)', line)
    found = next(itertools.islice(cells, place, None), None)
    cell = "" if found is None else ((found[1] or "").replace('""', '"') + found[2]).strip()
    return "" if cell in NULL_WORDS else cell


def _csv_column(column: Any, is_id: bool, form: CsvFormat, pointed: bool) -> Array:
    pa, pc = import_module("pyarrow"), import_module("pyarrow.compute")
    if is_id:
        return to_numpy(pc.utf8_trim_whitespace(column))
    if pa.types.is_floating(column.type):
        return to_numpy(column)
    if form.decimal == ",":
        plain = pc.replace_substring(column, ".", "")
        column = pc.if_else(pc.match_substring_regex(column, _POINTS % ("" if pointed else "?")), plain, column)
        column = pc.replace_substring_regex(column, _DECIMAL_COMMA, r"\1.\2")
    elif form.decimal == "." or form.separator == ",":  # with comma as separator, numbers with commas are in quotes
        plain = pc.replace_substring(column, ",", "")
        column = pc.if_else(pc.match_substring_regex(column, _THOUSANDS), plain, column)
    try:
        return to_numpy(pc.cast(column, pa.float64()))
    except pa.ArrowInvalid:
        return to_numpy(column)


def _reads_as_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
