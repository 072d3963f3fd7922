"""Users and their private rows, stored so that the rows of one user are one slice.

All rows are in one contiguous `X`, grouped by user; `offsets` gives the start of each user's rows. The arrays are
read-only and may be memory maps larger than RAM. Every constructor checks that each cell is a finite number and that
each row has a user id. The unit of privacy is the user, so no guarantee would cover a row without an id. The caller
decides what happens to other bad rows (:mod:`tacitly.data.bad_rows`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from tacitly.data.bad_rows import check_policy, kept_rows, settle, taken
from tacitly.data.grouping import Declared as Declared
from tacitly.data.grouping import (
    aligned_empty,
    check_new,
    check_shape,
    choose_columns,
    matrix,
    new_folder,
    new_map,
    placed,
    schema_of,
    vector,
)
from tacitly.data.grouping import count_users as _count_users
from tacitly.data.in_order import Progress, write_in_order
from tacitly.data.schema import Schema
from tacitly.data.source import row_blocks
from tacitly.data.tables import open_table
from tacitly.data.user_ids import Directory, Positions, check_users, factor, id_array, plain, stable_order
from tacitly.data.validation import Array, DataError, float_type

__all__ = ["Cohort", "DataError"]

_FORMAT = {"format": "tacitly cohort", "version": 2}


class GroupedRows:
    """Sizes of rows that are grouped by user, dense or sparse."""

    X: Any
    users: Array

    @property
    def n_users(self) -> int:
        """The number of users, n."""
        return len(self.users)

    @property
    def n_features(self) -> int:
        """The number of features, d."""
        return int(self.X.shape[1])

    @property
    def n_rows(self) -> int:
        """The number of rows of all users together, N; this number is private."""
        return int(self.X.shape[0])

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the rows."""
        kind: np.dtype[Any] = self.X.dtype
        return kind


@dataclass(frozen=True, eq=False, repr=False)
class Cohort(GroupedRows):
    """Users and their rows; build one with `from_arrays`, `from_table`, `from_offsets` or `open`.

    Attributes
    ----------
    X
        Features, N x d, C-contiguous, float32 or float64.
    y
        Targets, N, of the same dtype; or None.
    offsets
        Start of each user's rows, n + 1 entries: the rows of user i are `X[offsets[i]:offsets[i + 1]]`.
    users
        The n distinct ids: integers or text. Ids of any other type become text.
    feature_names, target_name
        Names of the columns.
    schema
        How the columns of a table were encoded as these features; None if they were already numbers. Features may be
        missing (NaN) only if there is a schema.

    Examples
    --------
    >>> cohort = Cohort.from_arrays([[1.0], [2.0], [3.0]], [1.0, 0.0, 1.0], users=["a", "b", "a"])
    >>> cohort.n_users, cohort.offsets.tolist(), cohort.rows(0)[0].ravel().tolist()
    (2, [0, 2, 3], [1.0, 3.0])
    """

    X: Array
    y: Array | None
    offsets: Positions
    users: Array
    feature_names: tuple[str, ...]
    target_name: str | None = None
    schema: Schema | None = None

    def __post_init__(self) -> None:
        _check_structure(self)
        for name in ("X", "y", "offsets", "users"):
            if (array := getattr(self, name)) is not None:
                view = np.asarray(array).view()
                view.flags.writeable = False
                object.__setattr__(self, name, view)

    @classmethod
    def from_arrays(
        cls,
        X: Any,
        y: Any = None,
        users: Any = None,
        *,
        feature_names: Iterable[str] | None = None,
        target_name: str | None = None,
        dtype: DTypeLike | None = None,
        schema: Declared | None = None,
        on_bad_rows: str = "raise",
    ) -> Cohort:
        """Group rows by user; rows already sorted by user id are not copied.

        Parameters
        ----------
        X
            N x d numbers: an array, nested lists, or a pandas, polars or Arrow table.
        y
            N numbers, or None.
        users
            N ids, one per row, in any order. A user's rows keep their order.
        feature_names, target_name
            By default the names that `X` and `y` carry, if any.
        dtype
            float32 or float64. By default float32 is kept and everything else becomes float64.
        schema
            Meaning of the columns (:mod:`tacitly.data.schema`), for text, yes/no values and missing cells; ``{}`` to
            infer it from the table. Without a schema, every cell must be a finite number.
        on_bad_rows
            What to do with rows that have unusable cells: ``raise``, ``drop`` or ``blank``
            (:mod:`tacitly.data.bad_rows`).
        """
        check_policy(on_bad_rows, ("drop", "blank", "raise"))
        blank = on_bad_rows != "raise"
        if users is None:
            raise DataError(
                "users was not given. Expected one id per row: users are the unit of privacy. If every row is a "
                "different person, pass users=range(len(X))."
            )
        X, names, schema = matrix(X, feature_names, dtype, schema, blank=blank)
        y, target_name = vector(y, len(X), target_name, X.dtype, blank=blank)
        given = id_array(users)
        if len(given) != len(X):
            raise DataError(f"users has {len(given)} ids and X has {len(X)} rows. Expected one id per row.")
        ids, codes = factor(given)
        owned = codes >= 0
        check_users(len(ids), 0 if blank else int((~owned).sum()), "users")
        if not owned.all():
            X, y, codes = X[owned], None if y is None else y[owned], codes[owned]
        if not (codes[1:] >= codes[:-1]).all():
            order = stable_order(codes)
            X = np.take(X, order, axis=0, out=aligned_empty(X.shape, X.dtype), mode="clip")
            y = None if y is None else y[order]
        offsets = _offsets(np.bincount(codes))
        X, y, offsets = settle(X, y, offsets, on_bad_rows, may_miss=schema is not None)
        return cls(X, y, offsets, ids, names, target_name, schema)

    @classmethod
    def from_offsets(
        cls,
        X: Any,
        y: Any,
        offsets: ArrayLike,
        *,
        users: Any = None,
        feature_names: Iterable[str] | None = None,
        target_name: str | None = None,
        dtype: DTypeLike | None = None,
        on_bad_rows: str = "raise",
    ) -> Cohort:
        """Wrap rows that are already grouped, without copying; users default to 0, 1, 2, ..."""
        check_policy(on_bad_rows, ("drop", "blank", "raise"))
        X, names, _ = matrix(X, feature_names, dtype, blank=on_bad_rows != "raise")
        y, target_name = vector(y, len(X), target_name, X.dtype, blank=on_bad_rows != "raise")
        starts = np.asarray(offsets)
        if starts.ndim != 1 or starts.dtype.kind not in "iu" or len(starts) < 2:
            raise DataError(
                f"offsets has shape {starts.shape} and type {starts.dtype}. Expected integers in one dimension, "
                "one more than the number of users."
            )
        ids = np.arange(len(starts) - 1) if users is None else plain(users)
        # Check the structure first: the code below relies on the offsets.
        whole = cls(X, y, starts.astype(np.int64), ids, names, target_name)
        return whole if on_bad_rows == "raise" else whole.settled(on_bad_rows)

    @classmethod
    def from_table(
        cls,
        table: Any,
        *,
        user: str,
        target: str | None = None,
        features: Iterable[str] | None = None,
        dtype: DTypeLike | None = None,
        folder: str | os.PathLike[str] | None = None,
        schema: Declared | None = None,
        on_bad_rows: str = "raise",
        progress: Progress | None = None,
    ) -> Cohort:
        """Group the rows of a table by the ids in its `user` column.

        Parameters
        ----------
        table
            A pandas or polars DataFrame, a pyarrow Table, the path of a .csv, .parquet, .arrow or .feather file, or of
            a folder of Parquet files.
        The columns with the ids and with the target (None if there is no target).
            The columns with the ids and, if there is one, the target.
        features
            The columns to learn from; by default all others.
        dtype
            float32 or float64; by default float32 only if every feature is stored as float32.
        folder
            Folder to write the cohort to, as `save` does, for tables larger than RAM. The table is read twice in small
            batches: first to count each user's rows, then to write them. Every byte is written at most twice
            (:mod:`tacitly.data.in_order`). The folder appears complete or not at all.
        schema, on_bad_rows
            As for :meth:`from_arrays`; also ``drop-unlabelled``: drop rows without a target, raise for other bad rows.
        progress
            Called while a cohort is written to a folder, with the name of the current step and its completed fraction;
            0 if the fraction is not known.
        """
        check_policy(on_bad_rows)
        blank, unlabelled = on_bad_rows in ("drop", "blank"), on_bad_rows == "drop-unlabelled" and target is not None
        user, target = str(user), None if target is None else str(target)
        source = open_table(table, user, blank=blank)
        names = choose_columns(source, user, target, features)
        if schema is not None:
            schema = schema_of(source, names, schema, blank=blank)
            names = schema.feature_names
            source = schema.source(source, keep=(user,) if target is None else (user, target), blank=blank)
        kind = float_type(dtype, [source.types[name] for name in names])
        if folder is not None:
            check_new(Path(folder))
        progress = progress or _silent
        users, counts = _count_users(source, user, blank=blank, progress=progress)
        offsets = _offsets(counts)
        shape = (int(offsets[-1]), len(names))
        missing = schema is not None
        rules = {"missing": missing, "blank": blank, "unlabelled": unlabelled}
        pieces = placed(source, user, names, target, users, offsets, kind, **rules)
        if folder is None:
            X, y = aligned_empty(shape, kind), None if target is None else np.empty(shape[0], kind)
            for positions, (features, *targets) in pieces:
                X[positions] = features
                if y is not None:
                    y[positions] = targets[0]
            X, y, offsets = settle(X, y, offsets, on_bad_rows, may_miss=missing)
            return cls(X, y, offsets, users, names, target, schema)
        with new_folder(Path(folder)) as staging:
            maps = [new_map(staging / "X.npy", kind, shape)]
            if target is not None:
                maps.append(new_map(staging / "y.npy", kind, shape[:1]))
            write_in_order(pieces, maps, progress)
            X, y = maps[0], None if target is None else maps[1]
            X, y, offsets = _settled_maps(staging, X, y, offsets, on_bad_rows, may_miss=missing)
            _write_metadata(cls(X, y, offsets, users, names, target, schema), staging)
            del X, y, maps
        return cls.open(folder)

    @classmethod
    def open(cls, folder: str | os.PathLike[str], *, mmap: bool = True) -> Cohort:
        """Open a saved cohort; with `mmap` the rows stay on disk until they are read."""
        source = Path(folder)
        try:
            metadata = json.loads((source / "cohort.json").read_text("utf-8"))
            if {key: metadata.get(key) for key in _FORMAT} != _FORMAT:
                raise DataError(
                    f"The folder {source.name!r} has another format or version. Expected {_FORMAT}: build the cohort "
                    "again with this version of tacitly."
                )
            mode: Literal["r"] | None = "r" if mmap else None
            X = np.load(source / "X.npy", mode, allow_pickle=False)
            y = np.load(source / "y.npy", mode, allow_pickle=False) if metadata["has_target"] else None
            offsets = np.load(source / "offsets.npy", allow_pickle=False)
            users = np.load(source / "users.npy", allow_pickle=False)
            names, target_name = tuple(metadata["feature_names"]), metadata["target_name"]
            schema = None if metadata["schema"] is None else Schema.from_dict(metadata["schema"])
        except DataError:
            raise
        except (OSError, ValueError, KeyError, AttributeError, TypeError, EOFError) as error:
            raise DataError(
                f"The folder {source.name!r} could not be opened ({type(error).__name__}). Expected a folder written "
                "by Cohort.save or Cohort.from_table."
            ) from None
        return cls(X, y, offsets, users, names, target_name, schema)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the cohort to a new folder, which appears complete or not at all."""
        with new_folder(Path(folder)) as staging:
            np.save(staging / "X.npy", self.X, allow_pickle=False)
            if self.y is not None:
                np.save(staging / "y.npy", self.y, allow_pickle=False)
            _write_metadata(self, staging)

    def rows(self, i: int) -> tuple[Array, Array | None]:
        """Return the features and targets of the user at position `i`, as views."""
        if not 0 <= i < self.n_users:
            raise IndexError(f"There is no user {i}. Expected 0 to {self.n_users - 1}.")
        rows = slice(self.offsets[i], self.offsets[i + 1])
        return self.X[rows], None if self.y is None else self.y[rows]

    def settled(self, on_bad_rows: str) -> Cohort:
        """Return the cohort with rows that contain a NaN dropped or blanked; the cohort itself if there are none."""
        X, y, offsets = settle(self.X, self.y, self.offsets, on_bad_rows, may_miss=self.schema is not None)
        return self if X is self.X else replace(self, X=X, y=y, offsets=offsets)

    def index_of(self, ids: Any) -> Positions:
        """Return the position of each id, -1 if the id is unknown; 17 and '17' are the same id."""
        return self._directory.find(ids)

    def take(self, positions: ArrayLike) -> Cohort:
        """Return a cohort of the users at these positions, in this order; consecutive users are not copied."""
        chosen = np.asarray(positions)
        if chosen.ndim != 1 or chosen.dtype.kind not in "iu" or not len(chosen):
            raise DataError(
                f"positions has shape {chosen.shape} and type {chosen.dtype}. Expected integers in one dimension, "
                "at least one (np.flatnonzero(mask) for a mask)."
            )
        if outside := int(((chosen < 0) | (chosen >= self.n_users)).sum()):
            raise DataError(
                f"{outside} of {len(chosen)} positions are outside 0 to {self.n_users - 1}. "
                "(index_of returns -1 for an unknown user.)"
            )
        chosen = chosen.astype(np.int64)
        offsets = _offsets(np.diff(self.offsets)[chosen])
        starts = self.offsets[chosen]
        rows: slice | Positions = slice(starts[0], starts[0] + offsets[-1])
        if (np.diff(chosen) != 1).any():
            rows = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], np.diff(offsets))
        y = None if self.y is None else self.y[rows]
        return Cohort(self.X[rows], y, offsets, self.users[chosen], self.feature_names, self.target_name, self.schema)

    def __repr__(self) -> str:
        return f"Cohort(n_users={self.n_users}, n_features={self.n_features}, dtype={self.dtype})"

    @cached_property
    def _directory(self) -> Directory:
        return Directory(self.users)


def _silent(what: str, part: float) -> None:
    """Show no progress."""


def _offsets(counts: Array) -> Positions:
    return np.append(0, np.cumsum(counts))


def _settled_maps(
    folder: Path, X: Array, y: Array | None, offsets: Positions, on_bad_rows: str, *, may_miss: bool
) -> tuple[Array, Array | None, Positions]:
    """Drop or blank bad rows of memory-mapped arrays; if there are any, the files are rewritten block by block."""
    kept = kept_rows(X, y, offsets, on_bad_rows, may_miss=may_miss)
    if kept is None:
        return X, y, offsets

    def again(name: str, values: Array) -> Array:
        draft, start = folder / f"{name}.kept", 0
        written = new_map(draft, values.dtype, (int(kept.offsets[-1]), *values.shape[1:]))
        for rows in row_blocks(len(values), int(np.prod(values.shape[1:], dtype=np.int64))):
            part = taken(values, kept, rows)
            written[start : start + len(part)] = part
            start += len(part)
        os.replace(draft, folder / name)
        return written

    return again("X.npy", X), None if y is None else again("y.npy", y), kept.offsets


def _check_structure(cohort: Cohort) -> None:
    X, y, offsets, users = cohort.X, cohort.y, cohort.offsets, cohort.users
    if X.ndim != 2 or X.dtype not in (np.float32, np.float64) or not X.flags.c_contiguous:
        raise DataError(f"X is {X.ndim}-D {X.dtype}. Expected C-contiguous 2-D float32 or float64.")
    if y is not None and (y.shape != X.shape[:1] or y.dtype != X.dtype):
        raise DataError(f"y is {y.shape} {y.dtype}. Expected {X.shape[:1]} {X.dtype}, as X.")
    if y is None and cohort.target_name is not None:
        raise DataError("target_name was given without y. Expected both or neither.")
    if offsets.ndim != 1 or offsets.dtype != np.int64:
        raise DataError(f"offsets is {offsets.ndim}-D {offsets.dtype}. Expected 1-D int64.")
    check_shape(X.shape, cohort.feature_names, cohort.target_name)
    if len(offsets) != len(users) + 1 or offsets[0] != 0 or offsets[-1] != len(X):
        raise DataError(
            f"offsets has {len(offsets)} entries for {len(users)} users and {len(X)} rows. Expected one more than "
            "users, from 0 to the number of rows."
        )
    if empty := int((np.diff(offsets) == 0).sum()):
        raise DataError(f"offsets: {empty} users have no rows. Expected at least one row per user: drop these users.")
    if (np.diff(offsets) < 0).any():
        raise DataError("offsets decreases. Expected each user to begin where the previous one ends.")
    if users.dtype.kind not in "iuU":
        raise DataError(f"users has type {users.dtype}. Expected integers or text.")
    if not (users[1:] > users[:-1]).all() and (repeated := len(users) - len(np.unique(users))):
        raise DataError(f"users: {repeated} ids are repeated. Expected each user once.")


def _write_metadata(cohort: Cohort, folder: Path) -> None:
    np.save(folder / "offsets.npy", cohort.offsets, allow_pickle=False)
    np.save(folder / "users.npy", cohort.users, allow_pickle=False)
    metadata = {
        **_FORMAT,
        "feature_names": list(cohort.feature_names),
        "target_name": cohort.target_name,
        "has_target": cohort.y is not None,
        "schema": None if cohort.schema is None else cohort.schema.to_dict(),
    }
    (folder / "cohort.json").write_text(json.dumps(metadata, indent=1), "utf-8")
