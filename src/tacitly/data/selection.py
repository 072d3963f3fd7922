"""Selects the rows of a table that are used, and finds columns that look like ids or free text.

Both examine the cells, so the findings are shown only to the person who has the table; nothing is released.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from tacitly.data.cell_text import text_of
from tacitly.data.source import Source, batch_rows
from tacitly.data.validation import Array, DataError, rows_in_words

_ID_NAME = re.compile(r"(row|obs|index|unnamed|id).*|.*(id|code|_no|_nr|number)")
_MANY = 20


def complete_rows(source: Source, columns: Sequence[str]) -> tuple[Source, int]:
    """Return the table without rows that have a missing cell in these columns, and the number of rows left out.

    Whether a row is kept depends on that row alone.
    """
    return _kept_rows(source, columns, has_all)


def without_empty_rows(source: Source, user: str, columns: Sequence[str]) -> Source:
    """Return the table without rows that hold nothing: no user, and no cell in these columns.

    Spreadsheets write such rows below a table. A row without a user that holds something stays, to be refused.
    """
    if not complete_rows(source, [user])[1]:  # reads one column: nearly always there are none
        return source
    return _kept_rows(source, list(dict.fromkeys([user, *columns])), _filled)[0]


def _kept_rows(source: Source, columns: Sequence[str], kept: Callable[[Sequence[Array]], Array]) -> tuple[Source, int]:
    def batches(names: Sequence[str], rows: int) -> Iterator[list[Array]]:
        wanted = list(dict.fromkeys([*names, *columns]))
        for cells in source.batches(wanted, rows):
            keep = kept([cells[wanted.index(name)] for name in columns])
            yield [cell[keep] for cell in cells[: len(names)]]

    left_out = 0
    for cells in source.batches(list(columns), batch_rows(len(columns))):
        left_out += int(np.count_nonzero(~kept(cells)))
    return (replace(source, batches=batches), left_out) if left_out else (source, 0)


def blanked_rows(source: Source, columns: Sequence[str], user: str) -> tuple[Source, int]:
    """Return the table with rows blanked, except their user, if a cell in these columns is missing, and their number.

    Unlike :func:`complete_rows` this keeps every user: who is on the roster does not depend on the contents of cells.
    """

    def batches(names: Sequence[str], rows: int) -> Iterator[list[Array]]:
        wanted = list(dict.fromkeys([*names, *columns]))
        for cells in source.batches(wanted, rows):
            whole = has_all([cells[wanted.index(name)] for name in columns])
            named = zip(names, cells[: len(names)], strict=True)
            yield [values if name == user or whole.all() else _blanked(values, whole) for name, values in named]

    count = 0
    for cells in source.batches(list(columns), batch_rows(len(columns))):
        count += int(np.count_nonzero(~has_all(cells)))
    return (replace(source, batches=batches), count) if count else (source, 0)


def labelled(source: Source, column: str, labels: Sequence[str]) -> Source:
    """Return the table with a column's text labels replaced by their positions; raise if there are other labels."""
    codes = {text_of(label): float(position) for position, label in enumerate(labels)}
    if len(codes) < len(labels):
        raise DataError("labels must differ, also as numbers: '1' and '01' are the same label.")

    def batches(names: Sequence[str], rows: int) -> Iterator[list[Array]]:
        for cells in source.batches(names, rows):
            named = zip(names, cells, strict=True)
            yield [_coded(values, codes) if name == column else values for name, values in named]

    return replace(source, batches=batches, types={**source.types, column: "double"})


def _coded(values: Array, codes: dict[str, float]) -> Array:
    texts = [text_of(cell) for cell in values.tolist()]
    strange = [text for text in texts if text and text not in codes]
    if strange:
        folded = {label.casefold() for label in codes}
        case = " (capital letters count)" if any(text.casefold() in folded for text in strange) else ""
        raise DataError(
            f"the target has {rows_in_words(len(strange))} with a label that --classes does not declare{case}. "
            "Declare every label that may occur, or drop these rows."
        )
    return np.array([codes.get(text, np.nan) for text in texts])


def id_like(source: Source, user: str, columns: Sequence[str]) -> dict[str, str]:
    """Return the columns that look like ids, with the reason: whole numbers or text, different in every row or user.

    Columns that are named like an id and have many values are included, and text that is almost never repeated.
    Measurements are not included: a number with decimals is rarely an id.
    """
    suspects = {name: _Suspect(name) for name in columns}
    for ids, *cells in source.batches([user, *columns], batch_rows(len(columns) + 1)):
        owners = ids.tolist()
        for name, values in zip(columns, cells, strict=True):
            suspects[name].add(owners, values)
        if not any(suspect.open for suspect in suspects.values()):
            break
    return {name: suspect.reason for name, suspect in suspects.items() if suspect.reason and suspect.rows > 2}


class _Suspect:
    """Counts for one column, until it is clear that it is not an id."""

    def __init__(self, name: str) -> None:
        self.rows = 0
        self._named = _ID_NAME.fullmatch(name.lower()) is not None
        self._every_row = self._every_user = True
        self._prose = False
        self._seen: set[object] = set()
        self._of_user: dict[object, object] = {}

    @property
    def open(self) -> bool:
        return self._every_row or self._every_user

    @property
    def reason(self) -> str:
        if self.open:
            return "is different in every row" if self._every_row else "has a value of its own for every user"
        if self._prose:
            return "is text that hardly ever occurs twice"
        return "has the name and the many values of an id" if self._named else ""

    def add(self, owners: list[object], values: Array) -> None:
        if not self.open:
            return
        whole = values.dtype.kind != "f" or (values == np.floor(values))[~np.isnan(values)].all()
        if self.rows == 0 and (self._named or values.dtype.kind in "OUT"):
            known = values[~np.isnan(values)] if values.dtype.kind == "f" else values  # NaN never equals NaN
            different = len(set(known.tolist()))
            self._named &= bool(whole) and different > _MANY
            self._prose = values.dtype.kind in "OUT" and different > max(_MANY, len(values) // 2)
        if values.dtype.kind == "b" or not whole or (values.dtype.kind == "f" and np.isnan(values).any()):
            self.rows += len(values)
            self._every_row = self._every_user = False
            return
        for owner, value in zip(owners, values.tolist(), strict=True):
            self.rows += 1
            new = value not in self._seen
            self._every_row &= new
            self._every_user &= self._of_user[owner] == value if owner in self._of_user else new
            self._seen.add(value)
            self._of_user[owner] = value
            if not self.open:
                self._seen, self._of_user = set(), {}
                return


def _blanked(values: Array, whole: Array) -> Array:
    """Return cells with those of all other rows set to missing."""
    if values.dtype.kind in "Mm":
        return np.where(whole, values, np.array("NaT", values.dtype))
    if values.dtype.kind in "fiu":
        return np.where(whole, values, np.nan)
    blanked = values.astype(object)
    blanked[~whole] = None
    return blanked


def _filled(cells: Sequence[Array]) -> Array:
    """Return which rows have one of these cells, or more."""
    return np.asarray(np.logical_or.reduce([has_all([values]) for values in cells]))


def has_all(cells: Sequence[Array]) -> Array:
    """Return which rows have a value in each of these columns."""
    whole = np.ones(len(cells[0]), bool)
    for values in cells:
        if values.dtype.kind == "f":
            whole &= ~np.isnan(values)
        elif values.dtype.kind in "Mm":
            whole &= ~np.isnat(values)
        elif values.dtype.kind not in "iub":
            whole &= np.array([bool(text_of(cell)) for cell in values.tolist()], bool)
    return whole
