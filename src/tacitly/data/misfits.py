"""Contradictions between the first rows of a table and what was declared: levels, ranges, codes of missing values.

A level in different letter case, a range in different units or a −9 that means "unknown" spoils a fit, and nothing that
is released may reveal it. So findings are shown only to the person who has the table, on their own console, before any
budget is spent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tacitly.data.cell_text import text_of
from tacitly.data.kinds import is_number
from tacitly.data.schema import Column, Schema
from tacitly.data.selection import has_all
from tacitly.data.source import Source
from tacitly.data.validation import Array, numbers

_ROWS, _CELLS = 100_000, 4_000_000  # maximum number that is examined
_MANY = 3  # from this number of rows on, a code is not considered an accident
_CODES = np.array([*(-1 * d for d in (1, 7, 8, 9, 77, 88, 99, 777, 888, 999, 9999, 99999)), 99, 999, 9999, 99999])


@dataclass(frozen=True)
class Misfit:
    """What is unusual about a column, in words, and the share of its cells that contradict the declaration."""

    words: str
    share: float = 0.0
    code: str = ""
    """A number that looks like a code for a missing value; empty if there is none."""
    constant: bool = False
    mixed: bool = False
    """Text, most of which are numbers."""


def misfits(source: Source, schema: Schema, target: str) -> dict[str, Misfit]:
    """Return the columns, including the target, whose first cells contradict what was declared."""
    columns = [*schema.columns, Column(target)]
    cells = _first(source, [column.name for column in columns])
    found = {
        column.name: misfit for column, own in zip(columns, cells, strict=True) if (misfit := _misfit(column, own))
    }
    if target in found and found[target].constant:  # the comparison with baselines reports this
        del found[target]
    return found


def zero_or_one(source: Source, target: str) -> bool:
    """Return whether all of the first targets are the numbers 0 and 1, and both occur."""
    values, wrong = numbers(_first(source, [target])[0], np.nan)
    return not wrong and set(np.unique(values[~np.isnan(values)]).tolist()) == {0.0, 1.0}


def whole(source: Source, target: str) -> bool:
    """Return whether all of the first targets that are numbers are integers."""
    values = numbers(_first(source, [target])[0], np.nan)[0]
    known = values[np.isfinite(values)]
    return bool((known == np.rint(known)).all())


def totals(source: Source, names: Sequence[str], target: str) -> int:
    """Return how many of the first rows hold a target and no feature, as totals below a table do."""
    if len(names) < 2:  # a row without the only feature is nothing unusual
        return 0
    known, *features = _first(source, [target, *names])
    rest = np.flatnonzero(has_all([known]))
    for values in features:
        rest = rest[~has_all([values[rest]])]
    return len(rest)


def _first(source: Source, names: Sequence[str]) -> list[Array]:
    most = min(_ROWS, _CELLS // max(1, len(names)))
    parts: list[list[Array]] = [[] for _ in names]
    seen = 0
    for batch in source.batches(names, min(most, 1 << 14)):
        for part, values in zip(parts, batch, strict=True):
            part.append(values)
        seen += len(batch[0])
        if seen >= most:
            break
    return [_joined(part) for part in parts]


def _joined(part: Sequence[Array]) -> Array:
    """Return batches as one column, with dtype object if the batches have different kinds."""
    if not part:
        return np.zeros(0)
    alike = len({values.dtype.kind for values in part}) == 1
    return np.concatenate(part if alike else [values.astype(object) for values in part])


def _misfit(column: Column, cells: Array) -> Misfit | None:
    if column.kind == "category":
        return _undeclared(column, cells)
    if column.kind == "hashed":
        return _mixed(column, cells)
    if column.kind != "number" or not len(cells):
        return None
    values = np.asarray(numbers(column.missing.blanked(cells), np.nan)[0], dtype=np.float64)
    values = values[np.isfinite(values)]
    if not len(values):
        return Misfit("has no value in any row", constant=True)
    if column.range is not None:
        low, high = column.range
        outside = float(np.mean((values < low) | (values > high)))
        return Misfit(f"has {_percent(outside)} of its values outside the declared range", outside) if outside else None
    different, counts = np.unique(values, return_counts=True)
    if len(different) == 1 and len(values) > 1:
        return Misfit("has the same value in every row", constant=True)
    return _code(different, counts)


def _mixed(column: Column, cells: Array) -> Misfit | None:
    """Return that most cells of a text column are numbers: values below a limit (<0.5), or two columns in one."""
    texts = [text for cell in column.missing.blanked(cells).tolist() if (text := text_of(cell))]
    share = float(np.mean([is_number(text) for text in texts])) if texts else 0.0
    return Misfit(f"is text, though {_percent(share)} of its cells are numbers", mixed=True) if share > 0.5 else None


def _undeclared(column: Column, cells: Array) -> Misfit | None:
    texts = [text for cell in column.missing.blanked(cells).tolist() if (text := text_of(cell))]
    strange = [text for text in texts if text not in column.levels]
    if not strange:
        return None
    folded = {level.casefold() for level in column.levels}
    case = " (capital letters count)" if any(text.casefold() in folded for text in strange) else ""
    share = len(strange) / len(texts)
    return Misfit(f"has {_percent(share)} of its cells at levels that are not declared{case}", share)


def _code(different: Array, counts: Array) -> Misfit | None:
    """Return the usual code for a missing value that lies apart from all other values, if there is one.

    A negative code is reported if no other value is negative and the other values are not close to it. A positive code
    is reported if it is the largest value and more than twice as large as the next.
    """
    for place, edge in ((0, "low"), (len(different) - 1, "high")):
        value, others = float(different[place]), np.delete(different, place)
        if value not in _CODES or counts[place] < _MANY or len(others) < 2:
            continue
        low, high = float(others.min()), float(others.max())
        apart = value < 0 <= low and (value < -1 or low > 0) if edge == "low" else value > 2.0 * high > 0
        if apart:
            words = f"has {value:g} in several rows, apart from all its other values"
            return Misfit(words, code=f"{value:g}")
    return None


def _percent(share: float) -> str:
    return "less than 1 %" if share < 0.01 else f"{100 * share:.0f} %"
