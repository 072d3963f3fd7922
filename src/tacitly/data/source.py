"""A table that can be read more than once, and functions that the readers of all formats share.

Exceptions of the underlying parsers may quote cells, which are private. So they are replaced, and not chained.
"""

from __future__ import annotations

import csv
import math
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from lzma import LZMAError
from typing import Any

import numpy as np

from tacitly.data.validation import Array, DataError, listed, texts_of

_CELLS = 1 << 18  # cells in one batch: 2 MiB of float64


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
        Unusual properties that were detected in the file, as part of a sentence; empty if there are none.
    """

    title: str
    types: dict[str, str]
    batches: Callable[[Sequence[str], int], Iterator[list[Array]]]
    typed: bool = True
    found: str = ""


def row_blocks(rows: int, columns: int) -> Iterator[slice]:
    """Yield slices of rows, small enough that scanning one needs little memory."""
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


def types_of(title: str, names: Sequence[str], types: Sequence[object]) -> dict[str, str]:
    """Return the stored type of each column by name; raise if two columns share a name."""
    if repeated := _repeated(names):
        raise DataError(f"{title} has duplicate column names: {quoted(repeated)}. Rename them.")
    # pandas saves an unnamed index as a column of this name; it is not a feature.
    return {
        name: str(kind)
        for name, kind in zip(names, types, strict=True)
        if not re.fullmatch(r"__index_level_\d+__", name)
    }


def _repeated(names: Sequence[str]) -> list[str]:
    return sorted(name for name, count in Counter(names).items() if count > 1)


@contextmanager
def replacing_errors(title: str, kind: str) -> Iterator[None]:
    """Replace exceptions of a parser by a :class:`DataError` that quotes no cell."""
    pa = import_module("pyarrow")
    try:
        yield
    except (pa.ArrowException, OSError, EOFError, UnicodeError, csv.Error, LZMAError, zlib.error) as error:
        raise DataError(
            f"{title} could not be read as {kind} ({type(error).__name__}). Check that it is complete and really "
            f"{kind}; the reader's own message is withheld because it may quote data."
        ) from None


def pieces(batch: Any, rows: int) -> Iterator[Any]:
    """Cut an Arrow batch or table into pieces with this number of rows."""
    return (batch.slice(start, rows) for start in range(0, batch.num_rows, rows))


def cut(table: Any, names: Sequence[str], rows: int) -> Iterator[list[Array]]:
    """Yield these columns of an Arrow table as arrays, this number of rows at a time."""
    for piece in pieces(table, rows):
        yield [to_numpy(piece.column(name)) for name in names]


def to_numpy(column: Any) -> Array:
    """Return an Arrow column as an array: numbers unchanged (missing ones as NaN), everything else as objects."""
    pa = import_module("pyarrow")
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if isinstance(column, pa.DictionaryArray):
        column = column.dictionary_decode()
    exact = pa.types.is_integer(column.type) and column.null_count  # floats would round large ids
    text = str(column.type) in ("string", "large_string", "string_view")
    if exact or text or isinstance(column, pa.ExtensionArray):
        return np.fromiter(texts_of(column) if text else column.to_pylist(), dtype=object, count=len(column))
    # Arrow's own conversion below imports pandas if it is installed, which takes longer than reading a table.
    if len(column) and (pa.types.is_integer(column.type) or column.type in (pa.float32(), pa.float64())):
        full = column.fill_null(math.nan) if column.null_count else column
        numbers: Array = np.frombuffer(full.buffers()[1], dtype=full.type.to_pandas_dtype())
        return numbers[full.offset : full.offset + len(full)]
    values: Array = column.to_numpy(zero_copy_only=False)
    return values
