"""Group rows by user: arrays in one step, tables in two passes that hold one batch at a time.

The first pass over a table counts each user's rows, so that the second pass knows the final position of every row. Rows
are written to memory, or to files larger than memory (:mod:`tacitly.data.in_order`). A folder appears complete or not
at all.
"""

from __future__ import annotations

import difflib
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from tacitly.data.in_order import Piece, Progress
from tacitly.data.schema import Schema, infer
from tacitly.data.source import Source, batch_rows, check_names, quoted, row_blocks
from tacitly.data.tables import is_frame, open_table
from tacitly.data.user_ids import Directory, Positions, check_users, factor, stable_order
from tacitly.data.validation import Array, DataError, Faults, cells_of, convert, float_type, listed

Declared = Schema | Mapping[str, Mapping[str, Any]]
"""A schema, or declarations of some columns; the others are inferred from the table."""


def matrix(
    X: Any,
    names: Iterable[str] | None,
    dtype: DTypeLike | None,
    schema: Declared | None = None,
    *,
    blank: bool = False,
) -> tuple[Array, tuple[str, ...], Schema | None]:
    """Return features as checked, C-contiguous floats, their names, and the schema that encoded them, if any.

    With ``blank``, cells that cannot be used become NaN instead of an error.
    """
    given = None if names is None else tuple(map(str, names))
    if is_frame(X):
        source = open_table(X)
        if schema is not None:
            found = schema_of(source, tuple(source.types), schema, blank=blank)
            encoded = found.source(source, blank=blank)
            floats = _frame_floats(encoded, len(X), found.feature_names, dtype, missing=True, blank=blank)
            return floats, found.feature_names, found
        chosen = tuple(source.types) if given is None else given
        check_shape((len(X), len(source.types)), chosen)
        return _frame_floats(source, len(X), chosen, dtype, blank=blank), chosen, None
    if hasattr(X, "tocsr"):
        raise DataError("X is a sparse matrix, and this method fits dense rows: X.toarray() makes them.")
    if isinstance(X, Mapping):
        raise DataError("X is a mapping. Expected a table: pyarrow.table(X), or a pandas or polars frame of it.")
    array = _array(X, "X")
    if array.ndim != 2:
        raise DataError(f"X has {array.ndim} dimensions. Expected 2: one row per observation, one column per feature.")
    columns = range(array.shape[1])
    labels = [f"column {j}" for j in columns] if given is None else _labels(given)
    chosen = tuple(f"x{j}" for j in columns) if given is None else given
    check_shape(array.shape, chosen)
    if schema is None:
        return _floats(array, labels, dtype, blank=blank), chosen, None
    declared = schema.columns if isinstance(schema, Schema) else schema
    found = schema if isinstance(schema, Schema) else Schema.declared({name: schema.get(name, {}) for name in chosen})
    if found.names != chosen or not found.plain:
        raise DataError(
            f"The schema declares {len(declared)} columns, text or categories among them, for an array of "
            f"{len(chosen)} numbers per row. Give a table with named columns (a DataFrame) instead."
        )
    return _floats(array, labels, dtype, missing=True, blank=blank), chosen, found


def schema_of(source: Source, names: Sequence[str], declared: Declared, *, blank: bool = False) -> Schema:
    """Return the schema of these columns: a stored schema, or declarations completed from the table."""
    if not isinstance(declared, Schema):
        return infer(source, names, declared, blank=blank)
    absent = [name for name in declared.names if name not in source.types]
    if absent:
        raise DataError(f"{source.title} has no column {quoted(absent)}, which the model was fitted with.")
    return declared


def vector(
    y: Any, rows: int, name: str | None, dtype: np.dtype[Any], *, blank: bool = False
) -> tuple[Array | None, str | None]:
    """Return targets as checked floats, and their name."""
    if y is None:
        return None, name
    array = _array(y, "y")
    if array.ndim == 2 and array.shape[1] == 1:
        from sklearn.exceptions import DataConversionWarning

        message = "A column-vector y was passed when a 1d array was expected: it is taken as y.ravel()."
        warnings.warn(message, DataConversionWarning, stacklevel=2)
        array = array[:, 0]
    if array.ndim != 1:
        if isinstance(y, str):
            raise DataError("y is a single text. Expected the targets, one per row, not the name of their column.")
        raise DataError(f"y has shape {array.shape}. Expected one dimension: use y.ravel().")
    if len(array) != rows:
        raise DataError(f"y has {len(array)} rows and X has {rows}. Expected the same number.")
    carried = getattr(y, "name", None)
    if name is None and isinstance(carried, str) and carried:
        name = carried
    label = "target y" if name is None else f"target column {name!r}"
    return _floats(array[:, None], [label], dtype, blank=blank)[:, 0], name


def check_shape(shape: tuple[int, ...], names: tuple[str, ...], target: str | None = None) -> None:
    """Raise unless there are rows and columns, and one name per column."""
    rows, columns = shape
    if len(names) != columns:
        raise DataError(f"feature_names has {len(names)} names for {columns} columns. Expected one name per column.")
    if not columns:
        found = f"0 feature(s) (shape=({rows}, 0)) while a minimum of 1 is required"
        raise DataError(f"There are no feature columns: {found}.")
    if not rows:
        raise DataError("X has no rows. Expected at least two users with one row each.")
    check_names(names, target)


def choose_columns(
    source: Source, user: str | None, target: str | None, features: Iterable[str] | None
) -> tuple[str, ...]:
    """Check that the requested columns exist, and return the features."""
    if isinstance(features, str):
        raise DataError("features is a string. Expected a list of column names: features=['age'].")
    chosen = None if features is None else tuple(str(name) for name in features)
    for role, name in [("user", user), ("target", target), *(("feature", f) for f in chosen or ())]:
        if name is not None and name not in source.types:
            absent = [repr(own) for own in chosen or () if own not in source.types]
            if role == "feature" and len(absent) > 1:
                raise DataError(f"{source.title} has no feature columns {listed(absent, ', ', 20)}.")
            raise DataError(no_such_column(source, role, name))
    if user is not None and target == user:
        raise DataError(f"Column {user!r} is both user and target. Expected two columns.")
    if chosen is None:
        chosen = tuple(name for name in source.types if name not in (user, target))
        if any(not name.strip() for name in chosen):
            raise DataError(
                f"{source.title} has a column without a name, often a saved row number. List the columns to use "
                "(features=[...]) or write the table without it."
            )
    check_names(chosen, target)
    if user in chosen:
        raise DataError(f"Column {user!r} is both user and feature. Leave it out of features.")
    return chosen


def aligned_empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return an uninitialised array aligned to a cache line; in NumPy's arrays every wide load straddles two lines."""
    size = int(np.prod(shape)) * dtype.itemsize
    buffer = np.empty(size + 64, dtype=np.uint8)
    start = -buffer.ctypes.data % 64
    return buffer[start : start + size].view(dtype).reshape(shape)


class TableRows(NamedTuple):
    """Rows in the table's order; targets or ids are None if no such column was named."""

    X: Array
    y: Array | None
    users: Array | None


def read_rows(
    table: Any,
    *,
    features: Iterable[str] | None = None,
    target: str | None = None,
    user: str | None = None,
    schema: Schema | None = None,
) -> TableRows:
    """Read a table that is not grouped by user, for predictions and for the heads of single users.

    Columns and cells are checked as by :meth:`Cohort.from_table <tacitly.data.cohort.Cohort.from_table>`. A ``schema``
    encodes the columns that it names; their cells may be missing.
    """
    source = open_table(table, user)
    names = choose_columns(source, user, target, features if schema is None else schema.names)
    if schema is not None:
        names = schema.feature_names
        source = schema.source(source, keep=[name for name in (user, target) if name is not None])
    faults = Faults([*_labels(names), f"target column {target!r}"], may_miss=0 if schema is None else len(names))
    ids, blocks = [], []
    for own, block in _batches(source, user, names, target, np.dtype(np.float64), faults):
        ids.append(own)
        blocks.append(block)
    faults.check()
    if not blocks:
        raise DataError(f"{source.title} has no rows. Expected at least one.")
    rows = np.concatenate(blocks)
    X, y = (rows, None) if target is None else (np.ascontiguousarray(rows[:, :-1]), rows[:, -1])
    return TableRows(X, y, None if user is None else np.concatenate(ids))


def _batches(
    source: Source, user: str | None, names: tuple[str, ...], target: str | None, kind: np.dtype[Any], faults: Faults
) -> Iterator[tuple[Any, Array]]:
    """Yield the ids (None without a user column) and the checked numbers of each batch, the target last."""
    columns = [*names] if target is None else [*names, target]
    types = [source.types[name] for name in columns]
    for cells in source.batches([*columns] if user is None else [user, *columns], batch_rows(len(columns))):
        ids, cells = (None, cells) if user is None else (cells[0], cells[1:])
        yield ids, convert(cells, types, kind, faults)


def count_users(
    source: Source, user: str, *, blank: bool = False, progress: Progress | None = None
) -> tuple[Array, Positions]:
    """Read the user column once; return the sorted ids and the number of rows of each user.

    Rows without an id are an error; with ``blank`` they are ignored.
    """
    pending: list[tuple[Array, Array]] = []
    held = missing = merged = rows = 0
    for (values,) in source.batches([user], batch_rows(1)):
        rows += len(values)
        if progress is not None:
            progress(f"counting rows: {rows:,}", 0.0)
        ids, codes = factor(values)
        missing += int((codes < 0).sum())
        pending.append((ids, np.bincount(codes[codes >= 0], minlength=len(ids))))
        held += len(ids)
        if held > 2 * merged + 4 * batch_rows(1):
            pending = [_merge(pending)]
            held = merged = len(pending[0][0])
    if not pending:
        raise DataError(f"{source.title} has no rows. Expected at least two users with one row each.")
    users, counts = _merge(pending)
    check_users(len(users), 0 if blank else missing, f"user column {user!r}")
    return (users, counts) if source.typed else _whole_if_text_is(users, counts)


def placed(
    source: Source,
    user: str,
    names: tuple[str, ...],
    target: str | None,
    users: Array,
    offsets: Positions,
    kind: np.dtype[Any],
    *,
    missing: bool = False,
    blank: bool = False,
    unlabelled: bool = False,
) -> Iterator[Piece]:
    """Read the table a second time; yield final positions of rows, each after the earlier rows of the same user.

    Rows are yielded as features and, if there is one, target. With ``blank``, unusable cells become NaN and rows
    without a user are left out, instead of an error. With ``unlabelled``, a row may lack its target, and in such a row
    other cells may be missing too.
    """
    labels = [*_labels(names), f"target column {target!r}"]
    faults = Faults(labels, may_miss=len(names) if missing else 0, blank=blank, unlabelled=unlabelled)
    directory, free, changed = Directory(users), offsets[:-1].copy(), False
    for ids, block in _batches(source, user, names, target, kind, faults):
        if faults:
            continue
        owners = directory.find(ids)
        if blank and not (owned := owners >= 0).all():
            owners, block = owners[owned], block[owned]
        changed = bool((owners < 0).any())
        if changed:
            break
        order = stable_order(owners)
        grouped = owners[order]
        positions = np.empty(len(owners), dtype=np.int64)
        positions[order] = free[grouped] + np.arange(len(grouped)) - np.searchsorted(grouped, grouped)
        changed = bool((positions >= offsets[owners + 1]).any())
        if changed:
            break
        free[grouped] = positions[order] + 1  # with repeated owners NumPy keeps the last value, which is the highest
        yield positions, [block] if target is None else [block[:, :-1], block[:, -1]]
    faults.check()
    if changed or (free != offsets[1:]).any():
        raise DataError(f"{source.title} changed while it was read. Read it again while nothing writes to it.")


def check_new(folder: Path) -> None:
    """Raise if the folder exists and is not empty, or if its parent is missing."""
    if not folder.parent.is_dir():
        raise DataError(f"The parent folder {folder.parent.name!r} does not exist. Create it first.")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise DataError(f"The folder {folder.name!r} exists. Expected a new one: remove it or choose another name.")


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder next to ``folder``; it is renamed on success and removed on failure."""
    check_new(folder)
    staging = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        yield staging
        os.rename(staging, folder)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise


def new_map(path: Path, dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.memmap[Any, Any]:
    """Create a memory-mapped array file with all of its disk space allocated."""
    array: np.memmap[Any, Any] = np.lib.format.open_memmap(path, "w+", dtype, shape)
    if hasattr(os, "posix_fallocate"):  # a full disk then raises here instead of crashing at a later write
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    return array


def no_such_column(source: Source, role: str, name: str) -> str:
    """Return the message for a column that does not exist, with the most similar name."""
    close = difflib.get_close_matches(name, source.types, 1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return f"{source.title} has no {role} column {name!r}. It has {quoted(source.types)}.{hint}"


def _frame_floats(
    source: Source,
    rows: int,
    names: tuple[str, ...],
    dtype: DTypeLike | None,
    *,
    missing: bool = False,
    blank: bool = False,
) -> Array:
    types = list(source.types.values())
    faults = Faults(_labels(names), may_miss=len(names) if missing else 0, blank=blank)
    out = np.empty((rows, len(names)), float_type(dtype, types))
    start = 0
    for batch in source.batches(tuple(source.types), batch_rows(len(names))):
        block = convert(batch, types, out.dtype, faults)
        out[start : start + len(block)] = block
        start += len(block)
    faults.check()
    return out


def _floats(
    array: Array, labels: Sequence[str], dtype: DTypeLike | None, *, missing: bool = False, blank: bool = False
) -> Array:
    """Check every cell, and convert to the requested type if necessary, one block of rows at a time."""
    kind = float_type(dtype, [array.dtype.name])
    out = array if array.dtype == kind else np.empty(array.shape, kind)
    faults = Faults(labels, may_miss=len(labels) if missing else 0, blank=blank)
    for rows in row_blocks(*array.shape):
        if array.dtype.kind not in "fiub":
            out[rows] = convert(list(array[rows].T), [str(array.dtype)] * len(labels), kind, faults)
            continue
        if out is not array:
            with np.errstate(over="ignore"):
                out[rows] = array[rows]
        elif blank and np.isinf(array[rows]).any():
            out = array.copy()  # the caller's array is not changed
        faults.scan(array[rows].T, out[rows])
    faults.check()
    return np.require(out, requirements=["C", "A"])


def _array(values: Any, what: str) -> Array:
    if isinstance(values, np.ma.MaskedArray):
        values = np.ma.filled(values if values.dtype.kind == "f" else values.astype(float), np.nan)
    if hasattr(values, "collect") and hasattr(values, "lazy"):
        raise DataError(f"{what} is a lazy frame. Collect it first: {what}.collect().")
    array = cells_of(values)
    if array.dtype.kind == "c":
        raise DataError(f"Complex data not supported. Found complex numbers in {what}. Expected real ones.")
    if what == "X" and array.ndim == 1 and array.dtype == object and any(isinstance(row, list) for row in array):
        raise DataError("X has rows of different lengths. Expected rows of the same length.")
    return array


def _labels(names: Iterable[str]) -> list[str]:
    return [f"column {name!r}" for name in names]


def _merge(tallies: list[tuple[Array, Array]]) -> tuple[Array, Positions]:
    kinds = {ids.dtype.kind for ids, _ in tallies if len(ids)}
    ids = [ids if len(kinds) == 1 else ids.astype(str) for ids, _ in tallies if len(ids)]
    users, codes = factor(np.concatenate(ids or [np.empty(0, np.int64)]))
    counts = np.zeros(len(users), np.int64)
    np.add.at(counts, codes, np.concatenate([n for ids, n in tallies if len(ids)] or [codes]))
    return users, counts


def _whole_if_text_is(users: Array, counts: Positions) -> tuple[Array, Positions]:
    """Convert ids read as text to integers if each converts back to the same text."""
    try:
        whole = users.astype(np.int64)
    except (ValueError, OverflowError):
        return users, counts
    if (whole.astype(str) != users).any():
        return users, counts
    order = np.argsort(whole)
    return whole[order], counts[order]
