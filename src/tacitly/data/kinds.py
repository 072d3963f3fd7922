"""The kind of each column that was not declared: inferred from the stored type, else from all of its cells."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence

import numpy as np

from tacitly.data.cell_text import TRUTH, distinct
from tacitly.data.source import Source, batch_rows
from tacitly.data.validation import Array as Cells
from tacitly.data.validation import DataError, listed, number_of, rows_in_words

_DATE = re.compile(r"\d{4}-\d{1,2}-\d{1,2}([ T].*)?|\d{1,2}[./]\d{1,2}[./]\d{2,4}")
_COMMAS = re.compile(r"[-+−]?[$€£¥]? ?[-+−]?\d(?:[\d .']*,\d+|\d{0,2}(?:,\d{3})+(?:\.\d+)?) ?[%$€£¥]?")
_CODED = re.compile(r"dictionary<values=([^,]*)")  # Arrow's type name of a categorical column
_STORED_DATES = ("date", "time", "timestamp", "duration")
_FIRST_ROWS = 1000  # number of rows that are examined for a hint
_TYPOS = 0.1  # up to this share, cells of another kind are treated as mistakes


def kinds_of(source: Source, names: Sequence[str], *, blank: bool) -> dict[str, str]:
    """Return the kind of each of these columns.

    A column in which only a few cells are of another kind is an error; with ``blank`` it is treated as a column of its
    kind.
    """
    kinds: dict[str, str] = {}
    for name in names:
        stored = source.types[name].lower()
        if coded := _CODED.match(stored):  # its indices are integers, but its values may be of any type
            stored = coded[1]
        if stored.startswith("bool"):
            kinds[name] = "boolean"
        elif stored.startswith(_STORED_DATES):
            kinds[name] = "date"
        elif any(word in stored for word in ("int", "float", "double", "decimal", "half")):
            kinds[name] = "number"
    unsure = [name for name in names if name not in kinds]
    looks = {name: _Looks() for name in unsure}
    if unsure:
        for cells in source.batches(unsure, batch_rows(len(unsure))):
            for name, values in zip(unsure, cells, strict=True):
                looks[name].add(values)
    found = {name: look.kind for name, look in looks.items()}
    if not blank:
        for kind, what in (("number", "numbers"), ("boolean", "yes or no")):
            odd = {name: look.odd(kind) for name, look in looks.items() if found[name] == kind}
            typos = [f"{name!r} ({rows_in_words(count)})" for name, count in odd.items() if count]
            if typos:
                raise DataError(
                    f"Columns hold {what}, but for a few cells: {listed(typos, ', ', 10)}. Correct these cells, leave "
                    "them empty, or declare what stands for a missing value in the schema: "
                    '{"column": {"missing": ["unknown", -9]}}; if the column really is text: '
                    '{"column": {"kind": "hashed"}}.'
                )
    return kinds | found


def dates_in(source: Source) -> tuple[str, ...]:
    """Return the columns that contain dates in the first rows. This is a hint for forms, not a decision."""

    def first(names: Sequence[str], rows: int) -> Iterator[list[Cells]]:
        return itertools.islice(source.batches(names, min(rows, _FIRST_ROWS)), 1)

    start = Source(source.title, source.types, first, source.typed)
    return tuple(name for name, kind in kinds_of(start, list(source.types), blank=True).items() if kind == "date")


class _Looks:
    """Counts of cells by kind, updated batch by batch."""

    def __init__(self) -> None:
        self._present, self._fits = 0, dict.fromkeys(("number", "boolean", "date", "commas"), 0)

    @property
    def kind(self) -> str:
        """The first kind that fits all present cells, except for a few; text if there is none."""
        return next((kind for kind in self._fits if self.odd(kind) <= _TYPOS * self._present), "hashed")

    def odd(self, kind: str) -> int:
        """Return the number of cells that are not of this kind."""
        return self._present - self._fits[kind]

    def add(self, values: Cells) -> None:
        if values.dtype.kind in "fiubMm":
            missing = np.isnan(values) if values.dtype.kind in "fMm" else np.zeros(len(values), bool)
            present = int(np.count_nonzero(~missing))
            self._present += present
            self._fits[{"b": "boolean", "M": "date", "m": "date"}.get(values.dtype.kind, "number")] += present
            return
        texts, places = distinct(values)
        for text, count in zip(texts, np.bincount(places, minlength=len(texts)).tolist(), strict=True):
            if text:
                self._present += count
                for kind in _possible(text):
                    self._fits[kind] += count


def _possible(text: str) -> set[str]:
    """Return the kinds that fit a cell."""
    fits = {
        "number": is_number(text),
        "boolean": text.lower() in TRUTH,
        "date": _DATE.fullmatch(text) is not None,
        "commas": is_number(text) or _COMMAS.fullmatch(text) is not None,
    }
    return {kind for kind, possible in fits.items() if possible}


def is_number(text: str) -> bool:
    """Return whether a cell is a number as people write it."""
    try:
        number_of(text)
    except ValueError:
        return False
    return "_" not in text
