"""Users whose rows are mostly zeros: a cohort that stays one CSR matrix and is never made dense."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacitly.data.bad_rows import check_policy
from tacitly.data.cohort import GroupedRows
from tacitly.data.user_ids import factor, id_array, stable_order
from tacitly.data.validation import DataError
from tacitly.linalg import added_up


@dataclass(frozen=True, eq=False)
class SparseCohort(GroupedRows):
    """A :class:`~tacitly.data.cohort.Cohort` with sparse rows and no target."""

    X: Any
    offsets: NDArray[np.int64]
    users: NDArray[Any]
    feature_names: tuple[str, ...]
    y: None = None

    @classmethod
    def from_matrix(cls, X: Any, users: Any = None, *, on_bad_rows: str = "raise") -> SparseCohort:
        """Group the rows of a sparse matrix by user; without users, all rows belong to one device.

        Unless ``on_bad_rows`` is ``raise``, a row with a missing or infinite entry is treated as a row of zeros, and a
        row without a user is ignored.
        """
        import scipy.sparse  # imported locally: dense rows do not need SciPy

        check_policy(on_bad_rows)
        rows = scipy.sparse.csr_matrix(X)
        if rows.dtype.kind not in "fiub":
            raise DataError(f"X holds {rows.dtype}. Expected numbers.")
        # Repeated entries of a column are added: norms and the check for finite numbers need the sum.
        rows = added_up(rows, np.float32 if rows.dtype == np.float32 else np.float64)
        if not rows.shape[0] or not rows.shape[1]:
            raise DataError(f"X has shape {rows.shape}. Expected at least one row and one column.")
        if on_bad_rows != "raise":
            rows = _without_bad_rows(rows)
        elif bad := int(np.count_nonzero(~np.isfinite(rows.data))):
            raise DataError(f"X has {bad} entries that are missing or infinite. Expected finite numbers.")
        names = tuple(f"x{j}" for j in range(rows.shape[1]))
        if users is None:
            return cls(rows, np.array([0, rows.shape[0]]), np.zeros(1, dtype=np.int64), names)
        given = id_array(users)
        if len(given) != rows.shape[0]:
            raise DataError(f"users has {len(given)} ids and X has {rows.shape[0]} rows. Expected one id per row.")
        ids, codes = factor(given)
        owned = codes >= 0
        if not len(ids) or (on_bad_rows == "raise" and not owned.all()):
            raise DataError(f"users: {int((~owned).sum())} ids are missing. Expected one id per row.")
        if not owned.all():
            rows, codes = rows[owned], codes[owned]
        counts = np.bincount(codes)
        if not (codes[1:] >= codes[:-1]).all():
            rows = rows[stable_order(codes)]
        return cls(rows, np.append(0, np.cumsum(counts)).astype(np.int64), ids, names)


def _without_bad_rows(rows: Any) -> Any:
    """Return the matrix with zeros in rows that contain an entry that is not finite."""
    bad = ~np.isfinite(rows.data)
    if not bad.any():
        return rows
    owner = np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr))
    rows = rows.copy()
    rows.data[np.isin(owner, owner[bad])] = 0.0
    rows.eliminate_zeros()
    return rows
