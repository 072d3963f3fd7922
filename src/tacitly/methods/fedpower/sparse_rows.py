"""Sparse rows, as SciPy's CSR matrices: the operations that FedPower's queries need.

A CSR matrix may hold several entries for one cell, which mean their sum; its flags may be wrong about this. Norms are
norms of the sums, so duplicate entries are always summed here, before norms are computed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tacitly.arrays import Array
from tacitly.linalg import added_up


def is_sparse(X: Any) -> bool:
    """Return whether rows are a sparse matrix."""
    return not isinstance(X, np.ndarray) and hasattr(X, "tocsr")  # not scipy.sparse.issparse: nodes start without SciPy


def dense(X: Any) -> Array:
    """Return a few rows (those of one unit) as a dense float64 array."""
    return np.asarray(X.toarray() if is_sparse(X) else X, dtype=np.float64)


def stays_sparse(centre: Array) -> None:
    """Raise unless the public centre is zero: subtracting any other centre would fill every entry of sparse rows."""
    if centre.any():
        raise ValueError(
            "the centre of sparse rows must be zero: subtracting another fills every entry. Found one that is not."
        )


def squared_norms(X: Any) -> Array:
    """Return the squared norm of every sparse row."""
    squares = added_up(X)
    with np.errstate(all="ignore"):
        squares.data = np.square(squares.data)
        return np.asarray(squares.sum(axis=1), dtype=np.float64).ravel()


def finite_rows(X: Any) -> tuple[Any, npt.NDArray[np.bool_]]:
    """Return sparse rows in float64, duplicates summed, and which rows are finite; the others become empty."""
    rows = added_up(X)
    good = np.ones(rows.shape[0], dtype=bool)
    bad = ~np.isfinite(rows.data)
    if bad.any():
        owner = np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr))
        good[owner[bad]] = False
        rows.data[~good[owner]] = 0.0
    return rows, good
