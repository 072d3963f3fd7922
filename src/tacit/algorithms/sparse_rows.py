"""Rows that are mostly zeros, as scipy's CSR matrices: what queries need to know of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from tacit.federation.base import Array


def is_sparse(X: Any) -> bool:
    """Whether rows come as a sparse matrix."""
    return not isinstance(X, np.ndarray) and hasattr(X, "tocsr")  # not SciPy's own test: nodes start without SciPy


def dense(X: Any) -> Array:
    """Return a few rows (one unit's) as float64, written out if they are sparse."""
    return np.asarray(X.toarray() if is_sparse(X) else X, dtype=np.float64)


def squared_norms(X: Any) -> Array:
    """Squared norm of every sparse row."""
    squares = X.copy()
    squares.data = np.square(squares.data, dtype=np.float64)
    return np.asarray(squares.sum(axis=1), dtype=np.float64).ravel()


def finite_rows(X: Any) -> Any:
    """Sparse rows in float64; rows with an entry that is not finite become empty."""
    rows = X.astype(np.float64)
    bad = ~np.isfinite(rows.data)
    if bad.any():
        owner = np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr))
        rows.data[np.isin(owner, owner[bad])] = 0.0
    return rows
