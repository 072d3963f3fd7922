"""The Gram matrix of every user's rows, in double precision: by a Triton kernel, or by PyTorch alone."""

from __future__ import annotations

from typing import Protocol

import torch

_WARPS = {16: 1, 32: 1, 64: 4, 128: 16}  # by the number of columns; beyond, a matrix does not fit a program's registers


class Owners(Protocol):
    """Whose rows they are: the number and the first row of each user, and sums over each user's rows."""

    counts: torch.Tensor
    offsets: torch.Tensor

    def total(self, values: torch.Tensor) -> torch.Tensor: ...  # noqa: D102


def grams_of(rows: torch.Tensor, own: Owners, *, plain: bool) -> torch.Tensor:
    """Return RᵀR of each user's rows R; a user's matrix is added up from that user's rows alone, in order."""
    size = rows.shape[1]
    if plain or size > max(_WARPS):
        return torch.stack([own.total(rows * rows[:, [column]]) for column in range(size)], dim=1)
    import triton

    from tacitly.federation.cuda.kernels import user_grams

    users, lanes = len(own.counts), max(16, triton.next_power_of_2(size))
    out = torch.empty(users, size, size, dtype=torch.float64, device=rows.device)
    user_grams[(users,)](rows.contiguous(), own.offsets, out, size, SIZE=lanes, num_warps=_WARPS[lanes])
    return out
