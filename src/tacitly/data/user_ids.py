"""User ids: conversion of ids of any type to sorted integers or text, and lookup.

If all ids are whole numbers, they become integers, even if they are stored as floats; ids of any other type become
text. An id that is null, NaN, infinite, blank or longer than 1,024 characters is missing. A missing id is never a user,
because no guarantee would cover its rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacitly.data.validation import Array, DataError, absent, array_of, rows_in_words, written

Positions = NDArray[np.int64]

_LONGEST = 1024  # maximum characters of an id: arrays reserve the longest for all ids, so one could use all memory


class Directory:
    """Lookup from ids to user positions by binary search; ids of different types are compared as text.

    >>> Directory([30, 10, 20]).find(["10", "30", 99, None])
    array([ 1,  0, -1, -1])
    """

    def __init__(self, users: Any) -> None:
        given = id_array(users)
        self._users = given if given.dtype.kind in "iuU" else plain(given)
        self._sorted: dict[str, tuple[Array, Positions]] = {}

    def find(self, ids: Any) -> Positions:
        """Return the position of each id, -1 if it is missing or unknown; 17 and '17' are the same id."""
        distinct, codes = factor(id_array(ids))
        return np.append(self._search(distinct), -1)[codes]

    def _search(self, ids: Array) -> Positions:
        kind = ids.dtype.kind if ids.dtype.kind == self._users.dtype.kind else "U"
        if kind not in self._sorted:
            keys = self._users.astype(str) if kind == "U" else self._users
            order = np.argsort(keys, kind="stable")
            self._sorted[kind] = keys[order], order
        keys, order = self._sorted[kind]
        if not len(keys):
            return np.full(len(ids), -1)
        ids = ids.astype(str) if kind == "U" else ids
        at = np.minimum(np.searchsorted(keys, ids), len(keys) - 1)
        return np.where(keys[at] == ids, order[at], -1)


def same_but_for_writing(users: Array) -> bool:
    """Return whether some text ids differ only in capital letters, spaces or zeros in front.

    >>> same_but_for_writing(np.array(["A1", "a1", "b2"])), same_but_for_writing(np.array(["A1", "b1"]))
    (True, False)
    """
    if users.dtype.kind != "U":
        return False
    return len({"".join(text.casefold().split()).lstrip("0") for text in users.tolist()}) < len(users)


def id_array(ids: Any) -> Array:
    """Return ids as an array. A list becomes an object array, because NumPy would turn NaN into the text 'nan'."""
    if isinstance(ids, np.ma.MaskedArray):
        ids = np.where(np.ma.getmaskarray(ids), np.nan, ids.data.astype(object))
    if isinstance(ids, (str, bytes)) or not isinstance(ids, Iterable):
        raise DataError(f"The ids are a single {type(ids).__name__}. Expected a list or an array.")
    array = array_of(ids) if hasattr(ids, "__array__") else np.fromiter(ids, dtype=object)
    if array.ndim != 1:
        raise DataError(f"The ids have {array.ndim} dimensions. Expected one.")
    return array


def plain(users: Any, what: str = "user") -> Array:
    """Return one id per user, in the given order, as integers or text; ``what`` names the id's owner in messages."""
    ids, codes = factor(id_array(users))
    if missing := int((codes < 0).sum()):
        raise DataError(f"{what}s: {missing} ids are missing. Expected one id per {what}.")
    return ids[codes]


def factor(values: Array) -> tuple[Array, Positions]:
    """Return the sorted distinct ids, and the index of every value among them, -1 if it is missing."""
    kind = values.dtype.kind
    if kind == "f":
        missing = ~np.isfinite(values)
        known = values[~missing]
        if (np.abs(known) < 2.0**53).all() and (known == np.rint(known)).all():
            ids, found = _factor_whole(known.astype(np.int64))
            codes = np.full(len(values), -1)
            codes[~missing] = found
            return ids, codes
    if kind in "iub":
        return _factor_whole(values.astype(np.uint64 if values.dtype == np.uint64 else np.int64))
    cells = values.astype(str if kind in "mM" else object).astype(object)
    if kind in "mM":
        cells[np.isnat(values)] = None
    return _factor_cells(cells.tolist())


def stable_order(codes: Positions) -> Positions:
    """Return the stable order of non-negative codes, by 16-bit digits, because NumPy radix-sorts 16-bit integers."""
    order = np.argsort(codes.astype(np.uint16), kind="stable")
    shift, highest = 16, int(codes.max(initial=0))
    while highest >> shift:
        order = order[np.argsort((codes[order] >> shift).astype(np.uint16), kind="stable")]
        shift += 16
    return order


def check_users(users: int, missing: int, where: str) -> None:
    """Raise if some rows have no user, or if all rows have the same user."""
    if missing:
        raise DataError(
            f"{where}: {rows_in_words(missing)} without a user (null, NaN or blank). Expected an id in every row: "
            "users are the unit of privacy. Drop these rows or fill in the ids."
        )
    if users == 1:
        raise DataError(
            f"{where}: every row has the same user. Expected at least two users, because users are the unit of "
            "privacy: choose a column that identifies the people in the data."
        )


def _factor_whole(values: Array) -> tuple[Array, Positions]:
    if not len(values):
        return values, np.empty(0, np.int64)
    low, high = values.min(), values.max()
    if int(high) - int(low) > 4 * len(values):
        ids, codes = np.unique(values, return_inverse=True)
        return ids, codes
    shifted = (values - low).astype(np.int64)  # ids in a dense range need no sorting
    present = np.bincount(shifted) > 0
    return np.flatnonzero(present).astype(values.dtype) + low, (np.cumsum(present) - 1)[shifted]


def _factor_cells(cells: list[Any]) -> tuple[Array, Positions]:
    seen: dict[Any, int] = {}
    try:
        codes = np.fromiter((seen.setdefault(c, len(seen)) for c in cells), np.int64, len(cells))
    except Exception:  # an id that cannot be hashed, such as a list, is replaced by its text; others are unchanged
        return _factor_cells([cell if _hashable(cell) else written(cell) for cell in cells])
    known = {code: cell for cell, code in seen.items() if not _is_missing(cell)}
    distinct, inverse = np.unique(_whole_or_text([*known.values()]), return_inverse=True)
    index = np.full(len(seen), -1)
    index[[*known]] = inverse
    return distinct, index[codes]


def _hashable(cell: Any) -> bool:
    try:
        hash(cell)
    except Exception:
        return False
    return True


def _is_missing(cell: Any) -> bool:
    if (len(cell) if isinstance(cell, str) else cell.bit_length() / 3 if isinstance(cell, int) else 0) > _LONGEST:
        return True
    return absent(cell) or (isinstance(cell, (float, np.floating)) and not np.isfinite(cell))


def _whole_or_text(known: list[Any]) -> Array:
    if known and all(isinstance(i, (int, float, np.integer, np.floating)) and i == i // 1 for i in known):
        ids = np.array([int(i) for i in known])
        if ids.dtype.kind in "iu":
            return ids
    return np.array([_text(i) for i in known], dtype=str)


def _text(cell: Any) -> str:
    if isinstance(cell, bytes):
        return cell.hex()
    if isinstance(cell, (float, np.floating)) and cell == cell // 1:
        return str(int(cell))
    # NumPy drops NUL characters at the end of a text, which would merge ids; a lone surrogate cannot be saved to a
    # file.
    return str(cell).replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode()
