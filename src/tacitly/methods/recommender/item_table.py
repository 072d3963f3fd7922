"""Public features of items as numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from tacitly.arrays import Array
from tacitly.data.validation import DataError


def features_of(given: Any, count: int) -> Array:
    """Return features with one row per item: yes/no columns unchanged, others standardised and clipped at four.

    >>> features_of([[1, 5.0], [0, 5.0], [1, 5.0]], 3).tolist()  # a constant adds nothing to the level
    [[1.0], [0.0], [1.0]]
    """
    if given is None:
        return np.zeros((count, 0))
    try:
        table = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError):
        raise DataError("item_features must be numbers: turn genres into yes/no columns.") from None
    if table.ndim != 2 or len(table) != count:
        raise DataError(f"item_features must have one row per item ({count}). Found shape {table.shape}.")
    if not np.isfinite(table).all():
        count = int(np.count_nonzero(~np.isfinite(table).all(axis=1)))
        raise DataError(f"item_features must be finite numbers. Found missing or infinite values for {count} items.")
    spread = table.std(axis=0)
    table, spread = table[:, spread > 0], spread[spread > 0]
    yes_no = ((table == 0) | (table == 1)).all(axis=0)
    scaled = np.clip((table - table.mean(axis=0)) / spread, -4.0, 4.0)
    return np.asarray(np.where(yes_no, table, scaled))
