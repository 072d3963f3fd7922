"""Rows that are mostly zeros, as scipy's CSR matrices: what queries need to know of them.

A CSR matrix may name a column of a row twice and mean the sum of both; its own flags may say otherwise. Norms are of
the sums, so entries are added up here, whatever the flags say, before anything is measured.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tacitly.arrays import Array
from tacitly.linalg import added_up


def is_sparse(X: Any) -> bool:
    """Whether rows come as a sparse matrix."""
    return not isinstance(X, np.ndarray) and hasattr(X, "tocsr")  # not SciPy's own test: nodes start without SciPy


def dense(X: Any) -> Array:
    """Return a few rows (one unit's) as float64, written out if they are sparse."""
    return np.asarray(X.toarray() if is_sparse(X) else X, dtype=np.float64)


def stays_sparse(centre: Array) -> None:
    """Raise unless rows around this public centre are as sparse as before."""
    if centre.any():
        raise ValueError("sparse rows cannot be moved: every entry would be filled. Use a centre of zeros.")


def squared_norms(X: Any) -> Array:
    """Squared norm of every sparse row."""
    squares = added_up(X)
    with np.errstate(all="ignore"):
        squares.data = np.square(squares.data)
        return np.asarray(squares.sum(axis=1), dtype=np.float64).ravel()


def finite_rows(X: Any) -> tuple[Any, npt.NDArray[np.bool_]]:
    """Sparse rows in float64, with one entry a column, and which of them are finite; the others become empty."""
    rows = added_up(X)
    good = np.ones(rows.shape[0], dtype=bool)
    bad = ~np.isfinite(rows.data)
    if bad.any():
        owner = np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr))
        good[owner[bad]] = False
        rows.data[~good[owner]] = 0.0
    return rows, good
