"""Convert cells to finite numbers, and count those that are not finite numbers.

Invalid cells are counted and never shown: an error message gives a column and a number of rows, never a private value.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

Array = NDArray[Any]

_NO_RESULT = ("#N/A", "#NV", "#DIV/0!", "#VALUE!", "#WERT!", "#REF!", "#BEZUG!", "#NUM!", "#ZAHL!", "#NAME?", "#NULL!")
NULL_WORDS = ("", "NA", "N/A", "NaN", "nan", "-nan", "n/a", "null", "NULL", "None", "<NA>", ".", "-", "?", *_NO_RESULT)
_REAL = (int, float, np.integer, np.floating, np.bool_)
_TRUTH = {"true": 1.0, "false": 0.0}
# Adjacent repetitions that match the same characters would take quadratic time in the length of a cell.
_DRESSED = re.compile(r"([-+]?)[$€£¥]? ?([-+]?[\d.][\d. \u00a0\u202f'e+-]*)", re.IGNORECASE)
_UNITS = "%$€£¥"
_THOUSANDS = re.compile(r"^[^\d,]*\d{1,3}(,\d{3})+\.\d+[^\d,.]*$")
_GROUPED = re.compile(r"[-+]?\d{1,3}([ \u00a0\u202f']\d{3})+(\.\d+)?")
_SINGLE = {"float", "float32", "Float32", "float[pyarrow]"}  # names of float32 in Arrow, NumPy and pandas


class DataError(ValueError):
    """The data cannot be used as given; the message states the column, the number of rows, and what to do."""


class Faults:
    """Counts of invalid rows per column, reported in one error."""

    def __init__(
        self, labels: Sequence[str], *, may_miss: int = 0, blank: bool = False, unlabelled: bool = False
    ) -> None:
        """Cells of the first ``may_miss`` columns may be missing; cells of other columns may not.

        With ``blank``, nothing is counted: unusable cells become NaN, and their rows are treated later
        (:mod:`tacitly.data.bad_rows`). With ``unlabelled``, cells may be missing in rows whose last column is missing.
        """
        self._labels = labels
        self._may_miss = may_miss
        self.blank = blank
        self._unlabelled = unlabelled
        self._usable, self._scanned = np.arange(len(labels)) < may_miss, 0
        self._counts: dict[int, dict[str, int]] = {}

    def add(self, column: int, kind: str, rows: int) -> None:
        """Add `rows` rows of a column with a fault described by `kind`."""
        if rows:
            kinds = self._counts.setdefault(column, {})
            kinds[kind] = kinds.get(kind, 0) + int(rows)

    def scan(self, columns: Iterable[Array], block: Array) -> None:
        """Count cells of `block` that are not finite; `columns` are the same cells before conversion to its dtype."""
        finite = np.isfinite(block)
        if self.blank:
            self._scanned = block.shape[1]
            self._usable[: self._scanned] |= finite.any(axis=0)
            if (infinite := ~finite & ~np.isnan(block)).any():
                block[infinite] = np.nan
            return
        if self._unlabelled:
            self._scanned, self._usable[:-1] = block.shape[1], True
            labelled = ~np.isnan(block[:, -1])
            self._usable[-1] |= labelled.any()
            if not labelled.all():
                columns, block, finite = [column[labelled] for column in columns], block[labelled], finite[labelled]
        if finite.all():
            return
        for j, column in enumerate(columns):
            missing, infinite = np.isnan(column).sum(), np.isinf(column).sum()
            overflowed = (~np.isfinite(block[:, j])).sum() - missing - infinite
            self.add(j, "missing", 0 if j < self._may_miss else missing)
            self.add(j, "infinite", infinite)
            self.add(j, f"too large for {block.dtype}", overflowed)

    def __bool__(self) -> bool:
        return bool(self._counts)

    def check(self) -> None:
        """Raise a `DataError` if anything was counted; with ``blank``, only if a column has no usable cell."""
        if not self._counts and not (useful := self._usable[: self._scanned]).all():
            names = [self._labels[int(j)] for j in np.flatnonzero(~useful)]
            raise DataError(
                f"Found no numbers in {listed(names, ', ', 10)}. Expected finite numbers: encode text as "
                "numbers, or leave the column out of the features."
            )
        if not self._counts:
            return
        parts = [
            f"{self._labels[j]}: " + ", ".join(f"{rows_in_words(n)} {kind}" for kind, n in kinds.items())
            for j, kinds in sorted(self._counts.items())
        ]
        raise DataError(
            f"Found cells that cannot be used. {listed(parts, '; ', 10)}. Expected a finite number in every cell: drop "
            "or fill these rows, encode text as numbers, or leave the column out of the features."
        )


def convert(columns: Sequence[Array], types: Sequence[str], dtype: np.dtype[Any], faults: Faults) -> Array:
    """Stack a batch of columns as rows of `dtype`, counting cells that are not finite numbers."""
    block = np.empty((len(columns[0]), len(columns)), dtype)
    readable = []
    for j, column in enumerate(columns):
        values, invalid = numbers(column, np.nan if faults.blank else 0.0)
        if not faults.blank:
            faults.add(j, f"not numbers (the column's type is {types[j]})", invalid)
        with np.errstate(over="ignore"):
            block[:, j] = values
        readable.append(values)
    faults.scan(readable, block)
    return block


def numbers(values: Array, instead: float = 0.0) -> tuple[Array, int]:
    """Return a column as numbers, with NaN for missing cells, and the number of cells that are not numbers.

    Cells that are not numbers become ``instead``.
    """
    if values.dtype.kind in "fiub":
        return values, 0
    if values.dtype.kind not in "OUT":
        return np.full(len(values), instead), len(values)
    converted, invalid = np.full(len(values), instead), 0
    for i, cell in enumerate(values.tolist()):
        try:
            converted[i] = _number(cell)
        except OverflowError:
            converted[i] = np.inf
        except Exception:  # no exception may depend on a private cell
            invalid += 1
    return converted, invalid


def plain_numbers(values: Any, what: str, dtype: DTypeLike = np.float64, *, blank: bool = False) -> Array:
    """Return values as an array of floats; used for all inputs of public methods after ``fit``.

    If a cell is not a number, an error is raised that shows neither the cell nor the number of such cells; with
    ``blank`` the cell becomes NaN. Missing values stay missing.

    >>> plain_numbers([["1", 2.0]], "X")
    array([[1., 2.]])
    """
    if blank:
        cells = cells_of(values)
        with np.errstate(over="ignore"):
            return np.asarray(numbers(cells.ravel(), np.nan)[0].reshape(cells.shape), dtype=dtype)
    with suppress(Exception):  # NumPy's message shows a cell, so our error is raised without it as context
        return np.asarray(values, dtype=dtype)
    if isinstance(values[0] if isinstance(values, list) and values else values, Mapping):
        raise DataError(f"{what} must be a table or an array. Found a mapping: pandas.DataFrame(…) makes one.")
    raise DataError(f"{what} must be numbers. Found cells that are not.")


def cells_of(values: Any) -> NDArray[Any]:
    """Return values as an array, with dtype object if a list contains anything but numbers; no cell raises.

    NumPy would give all cells of a list one type: next to a text, a number becomes text, and every entry reserves the
    longest length.

    >>> cells_of([1, [2, 3]]).shape, cells_of([[1, "a"], [2, [3]]]).shape
    ((2,), (2, 2))
    >>> cells_of([0, 1, "a"]).tolist()
    [0, 1, 'a']
    """
    if not isinstance(values, (list, tuple)):
        return array_of(values)
    if _plain(values):
        with suppress(ValueError):  # a cell that is a sequence itself
            return np.asarray(values)
    rows = [list(row) for row in values if _is_row(row)]
    table = len(rows) == len(values) and len({len(row) for row in rows}) == 1
    cells = np.empty((len(rows), len(rows[0])) if table else len(values), dtype=object)
    for place, cell in enumerate(itertools.chain.from_iterable(rows) if table else values):
        cells.flat[place] = cell
    return cells


def array_of(values: Any) -> NDArray[Any]:
    """Return ``np.asarray(values)``, also for a text column in Arrow's memory that contains invalid UTF-8.

    Arrow and pandas check such a cell only when it is read, and their error messages show it.

    >>> import pyarrow as pa
    >>> text = pa.Array.from_buffers(pa.string(), 2, pa.array([b"x", bytes([255])]).buffers())
    >>> array_of(text).tolist() == ["x", chr(92) + "xff"]
    True
    """
    with suppress(Exception):
        return np.asarray(values)
    with suppress(Exception):
        pa = import_module("pyarrow")
        column = values if isinstance(values, (pa.Array, pa.ChunkedArray)) else pa.array(values.array)
        return np.fromiter(texts_of(column), dtype=object, count=len(column))
    raise DataError(f"A {type(values).__name__} could not be read as an array.")


def texts_of(column: Any) -> list[str | None]:
    """Return the cells of an Arrow text column; bytes that are not UTF-8, which Arrow does not check, become numbers.

    They are not replaced by one common character, because two different ids must stay different.
    """
    with suppress(UnicodeDecodeError):
        cells: list[str | None] = column.to_pylist()
        return cells
    raw = column.cast(import_module("pyarrow").large_binary()).to_pylist()
    return [None if cell is None else cell.decode("utf-8", "backslashreplace") for cell in raw]


def _plain(values: Iterable[Any]) -> bool:
    """Return whether these are real numbers, or rows of real numbers."""
    return all(
        isinstance(v, _REAL) or (_is_row(v) and (v.dtype.kind in "fiub" if isinstance(v, np.ndarray) else _plain(v)))
        for v in values
    )


def _is_row(value: Any) -> bool:
    return isinstance(value, (list, tuple)) or (getattr(value, "ndim", 0) == 1 and hasattr(value, "__array__"))


def alike(cells: NDArray[Any], others: Any) -> NDArray[np.bool_]:
    """Return where cells equal others (or one other); cells that cannot be compared, such as pandas' NA, are not equal.

    >>> alike(np.array(["a", None, [1, 2]], dtype=object), "a")
    array([ True, False, False])
    """
    given = np.broadcast_to(np.asarray(others), cells.shape)
    if cells.dtype != object and given.dtype != object:
        return np.broadcast_to(np.asarray(cells == given), cells.shape)

    def same(cell: Any, other: Any) -> bool:
        try:
            return bool(cell == other)
        except Exception:  # no exception may depend on a private cell
            return False

    pairs = zip(cells.ravel(), given.ravel(), strict=True)
    return np.fromiter((same(*pair) for pair in pairs), bool, cells.size).reshape(cells.shape)


def written(cell: object) -> str:
    """Return a cell as stripped text; empty if it cannot be written, such as an integer of 5000 digits.

    >>> written(" a "), written(10**5000)
    ('a', '')
    """
    try:
        return str(cell).strip()
    except Exception:  # no exception may depend on a private cell
        return ""


def absent(cell: object) -> bool:
    """Return whether a cell is empty: None, NaN, pandas' NA or NaT, NumPy's masked, or blank text."""
    if isinstance(cell, str):
        return not cell.strip()
    if isinstance(cell, (float, np.floating)):
        return bool(cell != cell)
    return cell is None or type(cell).__name__ in ("NAType", "NaTType", "MaskedConstant")


def float_type(dtype: DTypeLike | None, types: Iterable[str]) -> np.dtype[Any]:
    """Return the requested float type; by default float32 only if every column is stored as float32."""
    if dtype is None:
        return np.dtype(np.float32 if _SINGLE.issuperset(types) else np.float64)
    kind = np.dtype(dtype)
    if kind not in (np.dtype(np.float32), np.dtype(np.float64)):
        raise DataError(f"dtype is {kind}. Expected float32 or float64.")
    return kind


def rows_in_words(count: int) -> str:
    """Return a number of rows as text."""
    return f"{count} row" if count == 1 else f"{count} rows"


def listed(parts: Sequence[str], separator: str, most: int) -> str:
    """Join the first ``most`` parts, and state how many more there are."""
    more = f"{separator}and {len(parts) - most} more" if len(parts) > most else ""
    return separator.join(parts[:most]) + more


def _number(cell: Any) -> float:
    if absent(cell):
        return np.nan
    if getattr(cell, "ndim", 0):
        raise TypeError("a list is not a number, even with one entry")  # NumPy would only warn
    if not isinstance(cell, str):
        return float(cell)
    text = cell.strip()
    if text in NULL_WORDS:
        return np.nan
    if "_" in text:
        raise ValueError("an underscore is not part of a number")
    truth = _TRUTH.get(text.lower())
    return number_of(text) if truth is None else truth


def number_of(text: str) -> float:
    """Return the number that a text represents; it may have a currency or per cent sign or groups of three digits.

    Commas separate thousands only where they cannot be decimal marks: if a point follows. Raises ValueError if the text
    is not a number.

    >>> number_of("1e3"), number_of("$1,200.50"), number_of("45 %"), number_of("12 345.5"), number_of("−€3")
    (1000.0, 1200.5, 45.0, 12345.5, -3.0)
    """
    try:
        return float(text)
    except ValueError:
        bare = text.strip().replace("\u2212", "-")  # the typographic minus
        bare = bare.replace(",", "") if _THOUSANDS.search(bare) else bare
        dressed = _DRESSED.fullmatch(bare[:-1].rstrip() if bare[-1:] in _UNITS else bare)
    if dressed is None:
        raise ValueError("not a number")
    bare = dressed[1] + dressed[2].strip()
    return float(re.sub("[ \u00a0\u202f']", "", bare) if _GROUPED.fullmatch(bare) else bare)
