"""Codes that stand for a missing value in a table: -9, 999, "refused".

Surveys and registers use such codes for unknown values, and a model would treat them as values. Codes are declared, as
public knowledge about a column (``{"income": {"missing": [-9]}}``, ``--missing income=-9``), never guessed: 999 may be
a true value. Whether a cell is a code depends on that cell alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tacitly.data.source import Source
from tacitly.data.validation import Array, DataError, absent, number_of, written


@dataclass(frozen=True)
class Codes:
    """Texts and numbers that mean a missing value.

    >>> Codes.of([-9, "refused"]).blanked(np.array([1.0, -9.0, 3.0]))
    array([ 1., nan,  3.])
    >>> Codes.of([-9, "refused"]).blanked(np.array(["12", "-9.0", " refused"], dtype=object)).tolist()
    ['12', None, None]
    """

    words: tuple[str, ...] = ()

    @classmethod
    def of(cls, given: Any) -> Codes:
        """Make codes from what a schema declares: one code or a list, each a text or a number."""
        several = given if isinstance(given, (list, tuple)) else [given]
        if any(isinstance(code, bool) or not isinstance(code, (str, int, float)) for code in several):
            raise DataError("missing must be a list of texts or numbers, such as [-9, 'refused'].")
        return cls(tuple(dict.fromkeys(str(code).strip() for code in several)))

    def __bool__(self) -> bool:
        return bool(self.words)

    def blanked(self, cells: Array) -> Array:
        """Return the cells with codes replaced by missing values; the same array if no cell is a code."""
        numbers = [number for number in map(_number_or_none, self.words) if number is not None]
        if cells.dtype.kind in "fiu":
            coded = np.isin(cells, numbers)
            return np.where(coded, np.nan, cells) if coded.any() else cells
        if cells.dtype.kind not in "OUT" or not self.words:
            return cells
        texts = set(self.words)
        coded = np.array([_is_code(cell, texts, numbers) for cell in cells.tolist()], dtype=bool)
        if not coded.any():
            return cells
        blank = cells.astype(object)
        blank[coded] = None
        return blank


NO_CODES = Codes()


def without_codes(source: Source, codes: Mapping[str, Codes]) -> Source:
    """Return the table with these columns' codes read as missing cells."""
    if not codes:
        return source

    def batches(names: Sequence[str], rows: int) -> Iterator[list[Array]]:
        for cells in source.batches(names, rows):
            named = zip(names, cells, strict=True)
            yield [codes[name].blanked(values) if name in codes else values for name, values in named]

    return replace(source, batches=batches)


def _is_code(cell: Any, texts: set[str], numbers: list[float]) -> bool:
    if absent(cell):
        return False
    text = written(cell)
    return text in texts or _number_or_none(text) in numbers


def _number_or_none(text: str) -> float | None:
    try:
        return number_of(text)
    except ValueError:
        return None
