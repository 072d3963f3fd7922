"""Pack the rows of a chunk of users, padded to the same public number of rows, in public positions."""

from __future__ import annotations

import itertools
import math

import numpy as np
import torch
from torch import Tensor

from tacitly.arrays import Offsets, Rows

_CACHE_LIMIT = 8 << 30  # maximum bytes of padded rows that stay on a GPU between rounds


class Packing:
    """Move users' rows to a device, at most ``rows`` per user."""

    def __init__(self, rows: int, dtype: torch.dtype, device: torch.device) -> None:
        self.rows, self.dtype, self.device = rows, dtype, device
        self.caches = device.type != "cpu"  # on a CPU there is no transfer to save
        self._cache: dict[tuple[object, ...], tuple[Tensor, Tensor, Tensor]] = {}
        self._cached_bytes = 0
        self._cached_sources: list[tuple[Rows, Rows]] = []

    def __call__(
        self, X: Rows, y: Rows, bounds: Offsets, chunk: int, round_number: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return rows, targets and weights of a chunk's users, padded to the public numbers of users and rows."""
        size = max(2, self.rows)  # at least two, so that neither half of the rows is empty
        turns = round_number if (np.diff(bounds) > size).any() else 0
        # Read-only rows are cached by address between rounds; the arrays are referenced so that the address stays
        # valid.
        key = (*(part.__array_interface__["data"] for part in (X, y)), X.shape[1], bounds.tobytes(), chunk, turns)
        if key in self._cache:
            return self._cache[key]
        rows = torch.zeros((chunk, size, X.shape[1]), dtype=self.dtype)
        targets, weights = (torch.zeros((chunk, size), dtype=self.dtype) for _ in range(2))
        users = [self.rows_of_round(X[i:j], y[i:j], round_number) for i, j in itertools.pairwise(bounds.tolist())]
        counts = np.array([len(mine) for _, mine in users])
        taken = torch.from_numpy(np.arange(size) < counts[:, None])
        for index, part in enumerate((rows, targets)):
            part[: len(counts)][taken] = torch.cat([to_tensors(*both, self.dtype)[index] for both in users])
        weights[: len(counts)] = taken
        packed = rows.to(self.device), targets.to(self.device), weights.to(self.device)
        read_only = not (X.flags.writeable or y.flags.writeable)
        if self.caches and read_only and turns == 0 and self._cached_bytes + rows.nbytes < _CACHE_LIMIT:
            self._cache[key] = packed
            self._cached_bytes += rows.nbytes
            self._cached_sources.append((X, y))
        return packed

    def rows_of_round(self, X: Rows, y: Rows, round_number: int) -> tuple[Rows, Rows]:
        """Return the rows that a user contributes to a round: all, or the next ``rows`` rows in turn."""
        size = self.rows
        if len(X) <= size:
            return X, y
        # Spread, because rows may be sorted by class; a stride coprime to their number reaches all of them in turn.
        stride = next(s for s in range(int(0.618 * len(X)), 0, -1) if math.gcd(s, len(X)) == 1)
        chosen = (round_number * size + np.arange(size)) * stride % len(X)
        return X[chosen], y[chosen]


def to_tensors(X: Rows, y: Rows, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return rows and targets as tensors; a target that is not finite makes its row NaN, and so its user's update.

    They are copied into memory allocated by PyTorch, which is aligned to 64 bytes. The last bits of a product depend on
    the alignment of its operands, and the alignment of NumPy's arrays depends on earlier allocations.
    """
    rows, targets = torch.empty(X.shape, dtype=dtype), torch.empty(y.shape, dtype=dtype)
    with np.errstate(all="ignore"):
        rows.numpy()[...], targets.numpy()[...] = X, y
    if not bool((known := torch.isfinite(targets)).all()):
        rows[~known] = torch.nan
    return rows, targets
