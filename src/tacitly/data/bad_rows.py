"""Rows that cannot be used: what a certified fit does about them, without telling anybody.

A row is bad if a cell that the model needs is missing, infinite or not a number, or if its label was not declared.
Which rows are bad is private, and so is how many there are. The policies:

* ``drop``: a bad row is left out. A user who has no other row stays on the roster with one empty row, which is not
  finite, so that the contribution is zero. For releases that protect users. What a user contributes is then still a
  function of that user's rows alone, and the roster is the same, so every sensitivity holds as before.
* ``blank``: a bad row stays where it is, and what cannot be used of it becomes NaN, so that the contribution of the row
  is zero. For releases that protect rows, whose number is public.
* ``drop-unlabelled``: a row without a target is left out as by ``drop``; any other cell that cannot be used raises. For
  commands, which tell whoever holds the table about mistakes in it and still keep everybody on the roster.
* ``raise``: an error that names columns and counts. It tells something about private rows to whoever sees that the
  program failed, so it is for cleaning data before a certified run, not for the run itself.

One thing is always an error: a column (or target) without a single usable cell in the whole table, because then it is
not the column that was meant. One user can change that only if nobody else has a usable cell, so that there is nothing
to learn.
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
    """A certified run was asked to do something that tells of private rows besides its releases."""


def check_policy(on_bad_rows: str, allowed: tuple[str, ...] = POLICIES) -> None:
    """Raise unless this is a policy."""
    if on_bad_rows not in allowed:
        raise DataError(f"on_bad_rows must be one of {', '.join(map(repr, allowed))}. Found {on_bad_rows!r}.")


class Kept(NamedTuple):
    """Which rows stay, which of them are empty, and where each user's rows begin then."""

    rows: Mask
    empty: Mask
    offsets: Positions


def settle(
    X: Array, y: Array | None, offsets: Positions, on_bad_rows: str, *, may_miss: bool = False
) -> tuple[Array, Array | None, Positions]:
    """Return rows, targets and offsets without bad rows (those with a NaN); nothing is copied where there are none.

    With ``may_miss``, features may be NaN, and only a row without a target is bad.
    """
    kept = kept_rows(X, y, offsets, on_bad_rows, may_miss=may_miss)
    if kept is None:
        return X, y, offsets
    return taken(X, kept), None if y is None else taken(y, kept), kept.offsets


def kept_rows(
    X: Array, y: Array | None, offsets: Positions, on_bad_rows: str, *, may_miss: bool = False
) -> Kept | None:
    """Decide which rows stay; None for all of them."""
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
    """Return the rows that stay, of all or of a slice of them, as a copy."""
    stays = kept.rows[rows]
    found: Array = values[rows][stays]
    found[kept.empty[rows][stays]] = np.nan
    return found
