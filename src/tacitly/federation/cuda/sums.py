"""Block sums on a device: clip, add, check, round to the grid, add as integers.

A device form (:mod:`tacitly.federation.cuda.forms`) turns a span of users into sums of blocks of :data:`BLOCK` users:
of each user's contribution, or of short factors of it, times a weight that clips it, in double precision.

Why rounding on the device cannot exceed the bound. Norms are computed in double precision from exactly the numbers that
are added (in whatever precision these were computed), and the weight scales them to (1 − 2⁻²⁰) clips. A weight that is
not finite becomes zero. The products and sums after that are in double precision, with blocks of 1,024 users and a
relative error below 2⁻⁵³ an operation in any order, so the argument of :mod:`tacitly.federation.base` applies without
change: the error is at most B·B·2⁻⁵³ clips per block of B users (or of 16,384 rows, if the unit is the row: 2⁻²⁵
clips), rounding of each block to the grid, exact sums of integers. The margin of clipping covers it, and every block's
sum is compared with the number of its users times the clip before it leaves the device.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tacitly.arrays import Array
from tacitly.federation.cuda.rows import DeviceRows, Span
from tacitly.federation.query import BLOCK
from tacitly.privacy.clipping import GUARD, LEAST

BlockSums = Callable[[Span, float, int, torch.Tensor | None], torch.Tensor]
"""From a span, the clip, the number of users per block and who takes part: one row of sums per block, in float64."""


class NotFinite(RuntimeError):
    """A block's sum is not finite, which a form's weights exclude: a programming error, never bad data."""


def integer_sums(
    rows: DeviceRows,
    sums_of: BlockSums,
    bound: float,
    grid: float,
    chosen: npt.NDArray[np.bool_] | None = None,
    *,
    block: int = BLOCK,
) -> tuple[npt.NDArray[np.int64], bool]:
    """Return the sum over all (or the chosen) users in steps of the grid, and whether every block kept its bound.

    ``block`` is the number of units in a block: of users, or of rows if the unit is the row.
    """
    who = None if chosen is None else torch.from_numpy(np.ascontiguousarray(chosen)).to(rows.device)
    total: torch.Tensor | None = None
    for span in rows.spans():
        sums = sums_of(span, bound, BLOCK, None if who is None else who[span.first : span.first + span.users])
        lengths = torch.linalg.vector_norm(sums / bound, dim=1)
        # Three facts and the sum leave the device together, because every copy waits for it.
        first, last = (int(rows.offsets[at]) for at in (span.first, span.first + span.users))
        kept = _kept(lengths, span.users if block == BLOCK else last - first, block)
        whole = torch.round(sums / grid).to(torch.int64).sum(dim=0)
        part = torch.cat([whole, torch.isfinite(sums).all().to(torch.int64)[None], kept.to(torch.int64)[None]])
        if total is None:
            total = part
        else:
            total[:-2] += part[:-2]
            total[-2:] *= part[-2:]
    assert total is not None
    found = total.cpu().numpy()
    if not found[-2]:
        raise NotFinite("a block's sum on the device is not finite. Nothing of it was released. Use engine='local'.")
    return found[:-2], bool(found[-1])


def _kept(lengths: torch.Tensor, units: int, block: int) -> torch.Tensor:
    """Whether each block's sum, in clips, is at most its number of units; ``units`` in all."""
    last = units - block * (len(lengths) - 1)
    return (lengths[:-1] <= block).all() & (lengths[-1] <= last)


def numbers(array: Any, device: torch.device, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Return a public array on the device."""
    return torch.as_tensor(np.ascontiguousarray(array), dtype=dtype).to(device)


def in_blocks(values: torch.Tensor, size: int) -> torch.Tensor:
    """Return rows of users as blocks × users in a block × columns, the last block filled up with zeros."""
    missing = -len(values) % size
    if missing:
        values = torch.cat([values, values.new_zeros(missing, values.shape[1])])
    return values.reshape(-1, size, values.shape[1])


def clip_weights(norms: torch.Tensor, bound: float) -> torch.Tensor:
    """Return :func:`tacitly.methods.shared.batch.clip_factors` on the device."""
    limit = bound * (1.0 - GUARD)
    factors = torch.where(norms > limit, limit / norms, 1.0)
    return torch.where(torch.isfinite(norms) & (factors > LEAST), factors, 0.0)


def norms_of(values: torch.Tensor) -> torch.Tensor:
    """Return the norm of each row without overflow or underflow; NaN where an entry is not finite."""
    largest = values.abs().amax(dim=1)
    usable = torch.isfinite(largest)
    unit = torch.where(usable & (largest > 0), largest, 1.0)
    norms = unit * torch.linalg.vector_norm(torch.where(usable[:, None], values, 0.0) / unit[:, None], dim=1)
    return torch.where(usable, norms, torch.nan)


def clipped_sums(values: torch.Tensor, bound: float, size: int, who: torch.Tensor | None) -> torch.Tensor:
    """Clip one row per user, rows that are not finite to zero, and add up each block."""
    weights = taking_part(clip_weights(norms_of(values), bound), who)
    values = torch.where((weights > 0)[:, None], values, 0.0)
    blocks = in_blocks(torch.cat([values, weights[:, None]], dim=1), size)
    return torch.bmm(blocks[:, :, -1:].transpose(1, 2), blocks[:, :, :-1])[:, 0]


def taking_part(weights: torch.Tensor, who: torch.Tensor | None) -> torch.Tensor:
    """Return the weights, zero for users who take no part."""
    return weights if who is None else torch.where(who, weights, 0.0)


def packed(matrices: torch.Tensor) -> torch.Tensor:
    """Return the upper triangles of symmetric matrices, off-diagonal entries times √2."""
    size = matrices.shape[-1]
    first, second = torch.triu_indices(size, size, device=matrices.device)
    factors = 1.0 + (math.sqrt(2.0) - 1.0) * (first != second).to(matrices.dtype)
    upper: torch.Tensor = matrices[..., first, second] * factors
    return upper


def to_array(values: torch.Tensor) -> Array:
    """Return a tensor as an array on the host."""
    return np.asarray(values.cpu().numpy(), dtype=np.float64)
