"""What the columns of a table mean and how they are encoded as numbers: declared, stored with the model, reused.

A model learns from numbers. A :class:`Schema` declares for every feature column whether it contains numbers (with a
public range, if one is known), yes/no values, or categories, and encodes a table row by row:

* a number is unchanged; a missing number stays missing (NaN), and the model fills in the population's mean. Codes that
  are declared to mean "missing" are treated in the same way (:mod:`tacitly.data.missing`);
* a yes/no value becomes 0 or 1;
* a category with *declared* levels becomes one indicator per level except the first, the reference level. A level that
  was not declared is treated as missing;
* a category without declared levels becomes indicators of hash buckets. Which levels occur, and how often, is private.
  Buckets are a public function of the text, so no list of levels is ever read from the rows.

The encoding is a public function of one row. Only a table's header is *not* private: the names and kinds of its
columns. :func:`infer` reads the kinds from the cells if the file does not state them. Declare them if even that
reveals too much.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tacitly.arrays import Array
from tacitly.data.cell_text import TRUTH, distinct, text_of
from tacitly.data.kinds import kinds_of
from tacitly.data.missing import NO_CODES, Codes, without_codes
from tacitly.data.source import Source
from tacitly.data.validation import Array as Cells
from tacitly.data.validation import DataError, listed, numbers, rows_in_words

BUCKETS = 16
"""Indicators of a text column without declared levels."""

_VERSION = 1
_KINDS = ("number", "boolean", "category", "hashed")


@dataclass(frozen=True)
class Column:
    """One column: its kind, the levels of a category, the public range of a number, and codes for missing values.

    >>> Column("region", "category", levels=("north", "south", "west")).encoded
    ('region=south', 'region=west')
    >>> Column("age", "number", range=(0.0, 120.0)).encoded
    ('age',)
    """

    name: str
    kind: str = "number"
    levels: tuple[str, ...] = ()
    range: tuple[float, float] | None = None
    buckets: int = BUCKETS
    missing: Codes = NO_CODES

    def __post_init__(self) -> None:
        object.__setattr__(self, "levels", tuple(text_of(level) for level in self.levels))
        if self.kind not in _KINDS:
            raise DataError(f"Column {self.name!r}: kind must be one of {', '.join(_KINDS)}. Found {self.kind!r}.")
        if self.kind == "category" and (len(self.levels) < 2 or len(set(self.levels)) < len(self.levels)):
            raise DataError(f"Column {self.name!r}: a category needs two or more levels, each declared once.")
        if self.kind == "hashed" and not 2 <= self.buckets <= 1024:
            raise DataError(f"Column {self.name!r}: buckets must lie between 2 and 1024. Found {self.buckets!r}.")
        if self.range is not None:
            low, high = self.range
            if self.kind != "number" or not (np.isfinite(low) and np.isfinite(high) and low < high):
                raise DataError(f"Column {self.name!r}: a range is for numbers: two finite ones, the lower first.")

    @property
    def encoded(self) -> tuple[str, ...]:
        """Names of the numeric columns that encode it."""
        if self.kind == "category":
            return tuple(f"{self.name}={level}" for level in self.levels[1:])
        if self.kind == "hashed":
            return tuple(f"{self.name}#{bucket}" for bucket in range(self.buckets))
        return (self.name,)

    @property
    def bounds(self) -> tuple[tuple[float, float] | None, ...]:
        """Public bounds of each encoded column; None if there are none."""
        return (self.range if self.kind == "number" else (0.0, 1.0),) * len(self.encoded)

    def encode(self, cells: Cells) -> tuple[Array, int]:
        """Return the encoded columns, one row per cell, and how many cells do not fit the declared kind."""
        cells = self.missing.blanked(cells)
        if self.kind == "number":
            values, misfits = numbers(cells, np.nan)
            values = np.array(values, dtype=np.float64)
            values[~np.isfinite(values)] = np.nan
            return values[:, None], misfits
        if self.kind == "boolean":
            return _booleans(cells)
        texts, position = distinct(cells)
        codes = np.array([self._code(text) for text in texts], dtype=np.int64)[position]
        width = len(self.encoded)
        out = np.zeros((len(codes), width))
        seen = codes >= 0
        first = 1 if self.kind == "category" else 0  # the reference level has no indicator
        marked = seen & (codes >= first)
        out[marked, codes[marked] - first] = 1.0
        out[~seen] = np.nan
        return out, 0

    def _code(self, text: str) -> int:
        if not text:
            return -1
        if self.kind == "category":
            return self.levels.index(text) if text in self.levels else -1
        digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        return int.from_bytes(digest, "little") % self.buckets

    def to_dict(self) -> dict[str, Any]:
        """Return the column as plain data."""
        extra: dict[str, Any] = {}
        if self.kind == "category":
            extra["levels"] = list(self.levels)
        if self.kind == "hashed":
            extra["buckets"] = self.buckets
        if self.range is not None:
            extra["range"] = list(self.range)
        if self.missing:
            extra["missing"] = list(self.missing.words)
        return {"kind": self.kind, **extra}


@dataclass(frozen=True)
class Schema:
    """The columns of a table that a model learns from, in order.

    >>> schema = Schema.declared({"age": {"range": [0, 120]}, "smoker": {"kind": "boolean"}})
    >>> schema.feature_names
    ('age', 'smoker')
    >>> schema.encode([np.array([40.0, np.nan]), np.array(["yes", "no"])])
    array([[40.,  1.],
           [nan,  0.]])
    """

    columns: tuple[Column, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the table's columns."""
        return tuple(column.name for column in self.columns)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the numeric columns that encode the table."""
        return tuple(name for column in self.columns for name in column.encoded)

    @property
    def bounds(self) -> tuple[tuple[float, float] | None, ...]:
        """Public bounds of each numeric column; None if there are none."""
        return tuple(bound for column in self.columns for bound in column.bounds)

    @property
    def texts(self) -> tuple[int, ...]:
        """For each numeric column, the number (from 1) of the text column whose hash bucket it is, or 0."""
        numbers: list[int] = []
        count = 0
        for column in self.columns:
            count += column.kind == "hashed"
            numbers += [count if column.kind == "hashed" else 0] * len(column.encoded)
        return tuple(numbers)

    @property
    def plain(self) -> bool:
        """Whether every column is a number, so that encoding changes nothing."""
        return all(column.kind == "number" and not column.missing for column in self.columns)

    def encode(self, cells: Sequence[Cells], *, blank: bool = False) -> Array:
        """Return the table's cells, one array per column, as rows of numbers; NaN if a value is missing.

        Cells that are not of the declared kind are an error, or with ``blank`` missing.
        """
        parts, misfits = [], []
        for column, values in zip(self.columns, cells, strict=True):
            encoded, wrong = column.encode(np.asarray(values))
            parts.append(encoded)
            if wrong and not blank:
                misfits.append(f"column {column.name!r} ({column.kind}): {rows_in_words(wrong)}")
        if misfits:
            raise DataError(
                f"Found cells of another kind than the schema declares. {listed(misfits, '; ', 10)}. Correct them, "
                "leave them empty, or declare the column's kind and levels in the schema."
            )
        return np.hstack(parts) if parts else np.zeros((0, 0))

    def source(self, source: Source, keep: Sequence[str] = (), *, blank: bool = False) -> Source:
        """Return a table with the encoded columns in place of the original ones, and the columns to ``keep`` as is."""
        homes = {name: column for column in self.columns for name in column.encoded}

        def batches(names: Sequence[str], rows: int) -> Iterator[list[Cells]]:
            needed = [column for column in self.columns if any(homes.get(name) is column for name in names)]
            others = [name for name in names if name not in homes]
            sub = Schema(tuple(needed))
            place = {name: index for index, name in enumerate(sub.feature_names)}
            for cells in source.batches([*(column.name for column in needed), *others], rows):
                block = sub.encode(cells[: len(needed)], blank=blank)
                rest = dict(zip(others, cells[len(needed) :], strict=True))
                yield [block[:, place[name]] if name in place else rest[name] for name in names]

        types = {name: source.types[name] for name in keep} | dict.fromkeys(self.feature_names, "double")
        return Source(source.title, types, batches, source.typed)

    def to_dict(self) -> dict[str, Any]:
        """Return the schema as plain data, in the form stored with a model."""
        return {"version": _VERSION, "columns": {column.name: column.to_dict() for column in self.columns}}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Schema:
        """Make the schema that :meth:`to_dict` wrote."""
        if data.get("version") != _VERSION:
            raise DataError(f"The schema has version {data.get('version')!r}. Expected {_VERSION}.")
        return cls.declared(data["columns"])

    @classmethod
    def declared(cls, columns: Mapping[str, Mapping[str, Any]]) -> Schema:
        """Make a schema from ``{"name": {"kind": …, "levels": […], "range": [low, high], "missing": […]}}``.

        If the kind is not given, it follows from the other keys: levels make a category, anything else is a number.
        """
        return cls(tuple(_column(str(name), about) for name, about in columns.items()))


def read_declared(file: str | Path) -> dict[str, dict[str, Any]]:
    """Read the declared columns of a schema file (JSON): in the form stored by a model, or only the columns."""
    path = Path(file)
    try:
        data = json.loads(path.read_text("utf-8"))
        columns = data["columns"] if isinstance(data.get("columns"), dict) and "version" in data else data
        return {str(name): dict(about) for name, about in columns.items()}
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise DataError(
            f"The schema {path.name!r} could not be read ({type(error).__name__}). Expected JSON such as "
            '{"age": {"range": [0, 120]}, "region": {"levels": ["north", "south"]}}.'
        ) from None


def infer(
    source: Source,
    names: Sequence[str],
    declared: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    blank: bool = False,
) -> Schema:
    """Return the schema of these columns: as declared, else by the stored type, else inferred from the cells.

    Kinds are treated as public, like the header. Dates are refused: a program cannot guess what matters about them (an
    age, a month, days since an event). So are numbers with commas, which may be decimal marks or separate thousands. A
    column in which only a few cells are of another kind is an error; with ``blank`` it is treated as a column of its
    kind, because whether there are such cells, and how many, is private.
    """
    given = dict(declared or {})
    unknown = sorted(set(given) - set(source.types))
    if unknown:
        raise DataError(
            f"The schema declares columns that {source.title[0].lower()}{source.title[1:]} does not have: "
            f"{listed([repr(name) for name in unknown], ', ', 10)}.{_nearest(unknown[0], source)}"
        )
    open_names = [name for name in names if name not in given or not _says_kind(given[name])]
    codes = {name: Codes.of(about["missing"]) for name, about in given.items() if "missing" in about}
    kinds = kinds_of(without_codes(source, codes), open_names, blank=blank)
    dates = [name for name, kind in kinds.items() if kind == "date"]
    if dates:
        raise DataError(
            f"Columns hold dates: {listed([repr(name) for name in dates], ', ', 10)}. Turn each into a number that "
            "means something (age, month, days since a fixed day), or leave it out."
        )
    if commas := [repr(name) for name, kind in kinds.items() if kind == "commas"]:
        raise DataError(
            f"Columns hold numbers with commas, as text: {listed(commas, ', ', 10)}. Read the table again with its "
            "decimal mark or thousands separator (pandas.read_csv(decimal=',') or thousands=','; in tacitly --decimal "
            'or csv=CsvFormat(decimal=…)), or declare that a column is text: {"column": {"kind": "hashed"}}.'
        )
    columns = []
    for name in names:
        column = _column(name, given.get(name, {}))
        columns.append(replace(column, kind=kinds[name]) if name in kinds else column)
    return Schema(tuple(columns))


def _nearest(name: str, source: Source) -> str:
    close = difflib.get_close_matches(name, source.types, 1)
    return f" Did you mean {close[0]!r}?" if close else ""


def _column(name: str, about: Mapping[str, Any]) -> Column:
    if not isinstance(about, Mapping):
        raise DataError(
            f'Column {name!r}: expected a mapping such as {{"range": [0, 120]}}. Found a {type(about).__name__}.'
        )
    strange = sorted(set(about) - {"kind", "levels", "range", "buckets", "missing"})
    if strange:
        raise DataError(
            f"Column {name!r}: the schema says {', '.join(strange)}. Expected kind, levels, range, buckets, missing."
        )
    levels = tuple(about.get("levels", ()))
    kind = str(about.get("kind", "category" if levels else "number"))
    low_high = about.get("range")
    if low_high is not None and (isinstance(low_high, str) or len(low_high) != 2):
        raise DataError(f"Column {name!r}: range must be two numbers, such as [0, 120]. Found {low_high!r:.40}.")
    return Column(
        name,
        kind,
        levels,
        None if low_high is None else (float(low_high[0]), float(low_high[1])),
        int(about.get("buckets", BUCKETS)),
        Codes.of(about.get("missing", [])),
    )


def _says_kind(about: Mapping[str, Any]) -> bool:
    return bool({"kind", "levels", "range"} & set(about))


def _booleans(cells: Cells) -> tuple[Array, int]:
    if cells.dtype.kind in "bfiu":
        values = cells.astype(np.float64)
        values[~np.isnan(values) & (values != 0) & (values != 1)] = np.inf
    else:
        known = {**TRUTH, "1": 1.0, "0": 0.0, "": np.nan}
        texts, position = distinct(cells)
        values = np.array([known.get(text.lower(), np.inf) for text in texts])[position]
    wrong = int(np.count_nonzero(np.isinf(values)))
    return np.where(np.isinf(values), np.nan, values)[:, None], wrong
