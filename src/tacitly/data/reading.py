"""Reads the inputs of all estimators: users and their rows at ``fit``, only rows at ``predict``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from tacitly.data.cohort import Cohort
from tacitly.data.grouping import Declared
from tacitly.data.source import quoted
from tacitly.data.sparse_cohort import SparseCohort
from tacitly.data.tables import is_frame, open_table
from tacitly.data.validation import Array, DataError, plain_numbers

_MOST_BYTES = 1 << 34  # maximum size of a sparse matrix that is made dense


def read_cohort(
    X: Any,
    y: Any = None,
    users: Any = None,
    *,
    needs_target: bool = True,
    needs_users: bool = True,
    sparse: bool = False,
    densify: bool = False,
    target_name: str | None = None,
    dtype: DTypeLike | None = None,
    schema: Declared | None = None,
    on_bad_rows: str = "raise",
) -> Any:
    """Return arrays or tables as a cohort; a cohort is returned as it is.

    If ids are not needed and ``users`` is not given, all rows belong to one device. ``sparse`` also accepts sparse
    matrices, as a :class:`~tacitly.data.sparse_cohort.SparseCohort`; ``densify`` accepts them as dense rows. A
    ``schema`` (``{}`` to infer it from the table) accepts text, yes/no values and missing cells. ``on_bad_rows`` says
    what happens to rows that cannot be used (:mod:`tacitly.data.bad_rows`).

    >>> read_cohort([[1.0], [2.0], [3.0]], [1.0, 0.0, 1.0], ["b", "a", "b"]).users.tolist()
    ['a', 'b']
    >>> read_cohort([[1.0], [2.0]], needs_target=False, needs_users=False).n_users
    1
    """
    if isinstance(X, Cohort | SparseCohort):
        if needs_target and X.y is None:
            raise ValueError("the cohort has no target. Build it with a target column.")
        return X
    needed = {"y": needs_target, "users": needs_users}
    if X is None or (y is None and needs_target) or (users is None and needs_users):
        no_target = "fit requires y to be passed, but the target y is None: "
        raise ValueError((no_target if X is not None and y is None and needs_target else "") + _missing(needed))
    if sparse and hasattr(X, "tocsr"):
        return SparseCohort.from_matrix(X, users, on_bad_rows=on_bad_rows)
    if densify:
        X = dense(X)
    _check_order(X, y, users)
    options: dict[str, Any] = {"target_name": target_name, "dtype": dtype, "on_bad_rows": on_bad_rows}
    if users is None:
        shape = getattr(X, "shape", None) or np.asarray(X).shape
        return Cohort.from_offsets(X, y, np.array([0, shape[0]]), **options)
    return Cohort.from_arrays(X, y, users, schema=schema, **options)


def read_rows(X: Any, feature_names: Array, dtype: DTypeLike = np.float64) -> Array:
    """Return rows as numbers, with the columns of training: matched by name, in any order, if X has names.

    If a cell is not a number, the error message does not show it. Values are not checked further: a missing value stays
    missing.

    >>> read_rows([[1, 2]], np.array(["a", "b"]))
    array([[1., 2.]])
    """
    names = [str(name) for name in feature_names]
    rows = plain_numbers(dense(in_order(X, names)), "X", dtype)
    if rows.ndim == 1:
        raise DataError("X has one dimension. Reshape your data: X.reshape(1, -1) if it is one row.")
    if rows.ndim != 2 or rows.shape[1] != len(names):
        raise DataError(wrong_width(rows.shape, len(names)))
    return rows


def dense(X: Any) -> Any:
    """Return a sparse matrix as a dense array, if it fits into memory; anything else is returned unchanged.

    The limit is on the dense rows only. Methods that release a matrix of all products of columns have other limits.

    >>> import scipy.sparse
    >>> dense(scipy.sparse.csr_matrix([[0.0, 2.0]]))
    array([[0., 2.]])
    """
    if not hasattr(X, "tocsr"):
        return X
    rows, columns = X.shape
    if (needed := rows * columns * 8) > _MOST_BYTES:
        raise DataError(
            f"X is a sparse matrix of {rows:,} × {columns:,} numbers: {needed / 2**30:.1f} GiB as the dense rows "
            "that this method reads. Choose fewer columns, or reduce them to components first: FedPower keeps sparse "
            "rows sparse."
        )
    return X.toarray()


def wrong_width(shape: tuple[int, ...], expected: int) -> str:
    """Return the error message for rows whose number of columns differs from that of training."""
    return (
        f"X has {shape[-1]} features, but it is expecting {expected} features as input, as at training. "
        f"Found shape {shape}."
    )


def has_names(feature_names: Iterable[str]) -> bool:
    """Return whether a model was fitted on named columns; columns of an array are called x0, x1 and so on."""
    return any(str(name) != f"x{place}" for place, name in enumerate(feature_names))


def in_order(X: Any, names: Sequence[str]) -> Any:
    """Return a table with the columns of training, in their order; raise if one is missing.

    Arrays, and tables given to a model that was fitted on an array, are matched by position.

    >>> import pandas
    >>> in_order(pandas.DataFrame({"b": [2.0], "a": [1.0]}), ["a", "b"]).columns.tolist()
    ['a', 'b']
    """
    if not is_frame(X):
        return X
    columns = list(open_table(X).types)
    missing = [name for name in names if name not in columns]
    if not missing:
        return X.iloc[:, [columns.index(name) for name in names]] if hasattr(X, "iloc") else X.select(list(names))
    if not has_names(names):
        return X
    unknown = [name for name in columns if name not in names]
    also = f" Unseen at fit time: {quoted(unknown)}." if unknown else ""
    raise DataError(
        "The feature names should match those that were passed during fit. Seen at fit time, yet now missing: "
        f"{quoted(missing)}.{also}"
    )


def _check_order(*parts: Any) -> None:
    """Raise if parts of a pandas table have the same row labels in another order: rows are paired by position."""
    labels = [part.index for part in parts if hasattr(part, "iloc")]
    for other in labels[1:]:
        if len(other) == len(labels[0]) and not other.equals(labels[0]) and set(other) == set(labels[0]):
            raise DataError(
                "X, y and users have the same row labels (index) in different orders, but rows are paired by position. "
                "Sort them alike; if the positions are right, drop the labels: reset_index(drop=True)."
            )


def _missing(needed: dict[str, bool]) -> str:
    meanings = {"y": "the target", "users": "the user id"}
    names = [name for name, wanted in needed.items() if wanted]
    if not names:
        return "fit needs X: rows of features."
    what = " and ".join(meanings[name] for name in names)
    return f"fit needs {' and '.join(names)} next to X: {what} of every row."
