"""Rows of a chunk of users side by side: everybody padded to the same public number of rows, in public places."""

from __future__ import annotations

import itertools
import math

import numpy as np
import torch
from torch import Tensor

from tacitly.arrays import Offsets, Rows

_KEPT = 8 << 30  # bytes of padded rows that may stay on a GPU from round to round


class Packing:
    """Brings users' rows to a device, ``rows`` of each at most."""

    def __init__(self, rows: int, dtype: torch.dtype, device: torch.device) -> None:
        self.rows, self.dtype, self.device = rows, dtype, device
        self.keeps = device.type != "cpu"  # on a CPU they are there already
        self._kept: dict[tuple[object, ...], tuple[Tensor, Tensor, Tensor]] = {}
        self._kept_bytes = 0
        self._sources: list[tuple[Rows, Rows]] = []

    def __call__(self, X: Rows, y: Rows, bounds: Offsets, chunk: int, number: int) -> tuple[Tensor, Tensor, Tensor]:
        """Rows of a chunk's users, padded to the public number of rows and users."""
        size = max(2, self.rows)  # either half of the rows is there
        turns = number if (np.diff(bounds) > size).any() else 0
        # Rows that nobody can write to are kept from round to round, by where they lie; and held, so that they stay.
        key = (*(part.__array_interface__["data"] for part in (X, y)), X.shape[1], bounds.tobytes(), chunk, turns)
        if key in self._kept:
            return self._kept[key]
        rows = torch.zeros((chunk, size, X.shape[1]), dtype=self.dtype)
        targets, weights = (torch.zeros((chunk, size), dtype=self.dtype) for _ in range(2))
        brought = [self.brought(X[i:j], y[i:j], number) for i, j in itertools.pairwise(bounds.tolist())]
        counts = np.array([len(mine) for _, mine in brought])
        taken = torch.from_numpy(np.arange(size) < counts[:, None])
        for place, part in enumerate((rows, targets)):
            part[: len(counts)][taken] = torch.cat([spoiled(*both, self.dtype)[place] for both in brought])
        weights[: len(counts)] = taken
        one, two, three = (part.to(self.device) for part in (rows, targets, weights))
        fixed = self.keeps and not (X.flags.writeable or y.flags.writeable)
        if fixed and turns == 0 and self._kept_bytes + rows.nbytes < _KEPT:
            self._kept[key] = one, two, three
            self._kept_bytes += rows.nbytes
            self._sources.append((X, y))
        return one, two, three

    def brought(self, X: Rows, y: Rows, number: int) -> tuple[Rows, Rows]:
        """Return the rows a user brings to round ``number``: all, or the next stretch of them."""
        size = self.rows
        if len(X) <= size:
            return X, y
        # Scattered, because rows may come sorted by class; a stride without common factor reaches all of them in turn.
        stride = next(s for s in range(int(0.618 * len(X)), 0, -1) if math.gcd(s, len(X)) == 1)
        chosen = (number * size + np.arange(size)) * stride % len(X)
        return X[chosen], y[chosen]


def spoiled(X: Rows, y: Rows, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Rows and targets as tensors; a target that is no number makes its row none, and so its user's update.

    In memory of PyTorch's own, which begins at a multiple of 64: the last bits of a product depend on where its rows
    begin, and where NumPy's do depends on what was there before.
    """
    rows, targets = torch.empty(X.shape, dtype=dtype), torch.empty(y.shape, dtype=dtype)
    with np.errstate(all="ignore"):
        rows.numpy()[...], targets.numpy()[...] = X, y
    if not bool((known := torch.isfinite(targets)).all()):
        rows[~known] = torch.nan
    return rows, targets
