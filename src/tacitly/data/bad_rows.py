"""Rows that cannot be used, and how a certified fit treats them without revealing them.

A row is bad if a cell that the model needs is missing, infinite or not a number, or if its label was not declared.
Which rows are bad, and how many, is private. The policies:

* ``drop``: bad rows are left out. A user who has no other rows stays on the roster with one row of NaN, so that the
  contribution is zero. Used for releases that protect users. A user's contribution is still a function of that user's
  rows alone, and the roster does not change, so every sensitivity holds as before.
* ``blank``: a bad row stays in place and its unusable cells become NaN, so that the contribution of the row is zero.
  Used for releases that protect rows, whose number is public.
* ``drop-unlabelled``: rows without a target are dropped as by ``drop``; any other unusable cell raises an error. Used
  by commands: they report mistakes to the person who has the table, and still keep every user on the roster.
* ``raise``: an error that names columns and counts. It reveals something about private rows to everyone who sees that
  the program failed. So it is for cleaning data before a certified run, not for the run itself.

One case is always an error: a column (or target) without any usable cell in the whole table, because then it is not
the intended column. One user can change this outcome only if no other user has a usable cell.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tacitly.data.source import row_blocks
from tacitly.data.validation import Array, DataError

POLICIES = ("drop", "blank", "drop-unlabelled", "raise")
Mask = NDArray[np.bool_]
Positions = NDArray[np.int64]


class SideChannelWarning(UserWarning):
    """A certified run was asked for an operation that reveals something about private rows besides its releases."""


def check_policy(on_bad_rows: str, allowed: tuple[str, ...] = POLICIES) -> None:
    """Raise unless this is a known and allowed policy."""
    if on_bad_rows not in allowed:
        raise DataError(f"on_bad_rows must be one of {', '.join(map(repr, allowed))}. Found {on_bad_rows!r}.")


class Kept(NamedTuple):
    """Which rows are kept, which of them are empty, and where each user's kept rows begin."""

    rows: Mask
    empty: Mask
    offsets: Positions


def settle(
    X: Array, y: Array | None, offsets: Positions, on_bad_rows: str, *, may_miss: bool = False
) -> tuple[Array, Array | None, Positions]:
    """Return rows, targets and offsets without bad rows (those with a NaN); nothing is copied if there are none.

    With ``may_miss``, features may be NaN, and only rows without a target are bad.
    """
    kept = kept_rows(X, y, offsets, on_bad_rows, may_miss=may_miss)
    if kept is None:
        return X, y, offsets
    return taken(X, kept), None if y is None else taken(y, kept), kept.offsets


def kept_rows(
    X: Array, y: Array | None, offsets: Positions, on_bad_rows: str, *, may_miss: bool = False
) -> Kept | None:
    """Decide which rows are kept; None if all are."""
    if not on_bad_rows.startswith("drop"):
        return None
    bad = np.zeros(len(X), dtype=bool) if y is None else np.isnan(y)
    if on_bad_rows == "drop" and not may_miss:
        for rows in row_blocks(*X.shape):
            bad[rows] |= np.isnan(X[rows]).any(axis=1)
    if not bad.any():
        return None
    stays = ~bad
    nothing_else = np.add.reduceat(stays, offsets[:-1], dtype=np.int64) == 0
    stays[offsets[:-1][nothing_else]] = True
    return Kept(stays, bad & stays, np.append(0, np.cumsum(stays))[offsets])


def taken(values: Array, kept: Kept, rows: slice = slice(None)) -> Array:
    """Return a copy of the kept rows, of all rows or of a slice."""
    stays = kept.rows[rows]
    found: Array = values[rows][stays]
    found[kept.empty[rows][stays]] = np.nan
    return found
