"""FedPower on a device, where the unit is the row: rows around a public centre, clipped one by one, and their products.

Mirrors :mod:`tacitly.methods.fedpower.gram` and :mod:`tacitly.methods.fedpower.power`, in double precision. The number
of rows is public where the unit is the row. No matrix product over several rows comes before the clip: inner products
with the basis are sums over the columns of one row. Where the unit is a user, the host computes these sums.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any, NamedTuple

import torch

from tacitly.federation.cuda.forms import Context
from tacitly.federation.cuda.rows import Span
from tacitly.federation.cuda.sums import BlockSums, clip_weights, numbers, packed
from tacitly.federation.query import ROW_BLOCK
from tacitly.privacy.clipping import GUARD, LEAST
from tacitly.privacy.guarantee import Unit

_CELLS = 1 << 27  # numbers of rows held at once
_MOST_COLUMNS, _MOST_DIRECTIONS = 1024, 16  # beyond these a row does not fit the registers of one program

RowSums = Callable[[torch.Tensor, float], torch.Tensor]
"""From rows as blocks × rows × columns to one sum per block; rows of NaN fill up the last block and add nothing."""


def centre_vote(query: Any, context: Context) -> BlockSums | None:
    """Return the form of a row around the origin and a constant, scaled to norm one."""
    origin = numbers(query.origin, context.device)

    def sums(rows: torch.Tensor, bound: float) -> torch.Tensor:
        moved = with_constant(rows.to(torch.float64) - origin, query.scale)
        squared = moved.square().sum(dim=2)
        usable = torch.isfinite(squared) & (squared > LEAST)
        weights = torch.where(usable, min(1.0, bound * (1.0 - GUARD)) / squared.sqrt(), 0.0)
        return (torch.where(usable[..., None], moved, 0.0) * weights[..., None]).sum(dim=1)

    return _by_row(query, sums, len(query.origin))


def shifted_gram(query: Any, context: Context) -> BlockSums | None:
    """Return the form of the Gram matrix of rows around the centre, each clipped."""
    clip = clip_plainly if context.plain or len(query.centre) > _MOST_COLUMNS else clip_fused
    public = Public(numbers(query.centre, context.device), None, float(query.constant))

    def sums(rows: torch.Tensor, bound: float) -> torch.Tensor:
        moved, _ = clip(rows, public, bound)
        return packed(moved.transpose(1, 2) @ moved)

    return _by_row(query, sums, len(query.centre))


def power_step(query: Any, context: Context) -> BlockSums | None:
    """Return the form of the product of a row's Gram matrix with the basis, each clipped."""
    d, r = query.basis.shape
    clip = clip_plainly if context.plain or d > _MOST_COLUMNS or r > _MOST_DIRECTIONS else clip_fused
    centre, basis = numbers(query.centre, context.device), numbers(query.basis.T, context.device)
    public = Public(centre, basis, float(query.constant))

    def sums(rows: torch.Tensor, bound: float) -> torch.Tensor:
        moved, along = clip(rows, public, bound)
        return (moved.transpose(1, 2) @ along).flatten(1)

    return _by_row(query, sums, d)


class Public(NamedTuple):
    """The public fields: what rows are multiplied with (directions as rows), if anything."""

    centre: torch.Tensor
    basis: torch.Tensor | None
    constant: float


def clip_plainly(rows: torch.Tensor, public: Public, bound: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a' = (a − m, c) and Wᵀa' (without a basis a' again), scaled so that their product is bounded."""
    moved = rows.to(torch.float64) - public.centre
    along = moved
    if public.basis is not None:
        along = torch.stack([(moved * direction).sum(dim=2) for direction in public.basis], dim=2)
    moved, along = with_constant(moved, public.constant), with_constant(along, public.constant)
    squared, size = moved.square().sum(dim=2), along.square().sum(dim=2)
    weights = clip_weights(squared.sqrt() * size.sqrt(), bound)
    # Half of the factor each, so that neither a huge row nor a tiny clip makes one of them denormal.
    cut = (weights < 1) & (weights > 0)
    limit = (bound * (1.0 - GUARD)) ** 0.5
    first = torch.where(cut, limit / squared.sqrt(), weights)[..., None]
    second = torch.where(cut, limit / size.sqrt(), weights)[..., None]
    return torch.where(first > 0, moved, 0.0) * first, torch.where(second > 0, along, 0.0) * second


def clip_fused(rows: torch.Tensor, public: Public, bound: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return :func:`clip_plainly` by a Triton kernel that reads the rows once."""
    import triton

    from tacitly.federation.cuda.kernels import clip_rows

    blocks, size, d = rows.shape
    k = 0 if public.basis is None else len(public.basis)
    options: dict[str, Any] = {"dtype": torch.float64, "device": rows.device}
    moved, along = torch.empty(blocks, size, d + 1, **options), torch.empty(blocks, size, k + 1 if k else 0, **options)
    limit = bound * (1.0 - GUARD)
    limits = numbers([public.constant, limit, limit**0.5, LEAST], rows.device)
    basis = public.centre if public.basis is None else public.basis
    lanes = max(16, triton.next_power_of_2(d))
    tile = max(1, 1024 // lanes)
    clip_rows[(triton.cdiv(blocks * size, tile),)](
        *(rows, public.centre, basis, limits, moved, along, blocks * size, d), K=k, D=lanes, ROWS=tile, num_warps=4
    )
    return moved, along if k else moved


def norm_histogram(query: Any, context: Context) -> BlockSums | None:
    """Return the form of the bin of the norm of a row's contribution to another query."""
    home, inner = import_module(type(query).__module__), query.query
    norms = _norms(inner, context)
    if norms is None:
        return None
    bins, lowest = query.coordinates, home._LOWEST

    def sums(rows: torch.Tensor, bound: float) -> torch.Tensor:
        found = norms(rows)
        seen = torch.isfinite(found) & (found > 0)
        at = torch.floor((torch.log2(torch.where(seen, found, 1.0)) - lowest) * query.per_octave)
        at = at.clamp(0, bins - 1).to(torch.int64)
        counts = torch.zeros(len(rows), bins, dtype=torch.int64, device=rows.device)
        counts.scatter_add_(1, at, seen.to(torch.int64))  # integers: the order of additions does not matter
        return counts.to(torch.float64) * min(1.0, bound * (1.0 - GUARD))

    return _by_row(query, sums, len(inner.centre))


def _norms(query: Any, context: Context) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """Return the norms of contributions before the clip; None for queries that are not of this module."""
    kind = type(query).__name__
    if kind not in ("ShiftedGram", "PowerStep") or not type(query).__module__.startswith("tacitly.methods.fedpower."):
        return None
    centre = numbers(query.centre, context.device)
    basis = None if kind == "ShiftedGram" else numbers(query.basis, context.device)

    def of(rows: torch.Tensor) -> torch.Tensor:
        moved = rows.to(torch.float64) - centre
        squared: torch.Tensor = moved.square().sum(dim=2) + query.constant**2
        if basis is None:
            return squared
        size = torch.full_like(squared, query.constant**2)
        for direction in basis.T:
            size += (moved * direction).sum(dim=2).square()
        return squared.sqrt() * size.sqrt()

    return of


def with_constant(rows: torch.Tensor, constant: float) -> torch.Tensor:
    """Append a constant coordinate."""
    return torch.cat([rows, torch.full_like(rows[..., :1], constant)], dim=-1)


def _by_row(query: Any, sums: RowSums, d: int) -> BlockSums | None:
    """Return a form that divides rows into blocks; None where the unit is not the row."""
    if query.unit is not Unit.ROW:
        return None

    def form(span: Span, bound: float, size: int, who: torch.Tensor | None) -> torch.Tensor:
        return torch.cat([sums(blocks, bound) for blocks in _blocks(span, who, d)])

    return form


def _blocks(span: Span, who: torch.Tensor | None, d: int) -> Iterator[torch.Tensor]:
    """Yield rows as blocks × rows × columns, NaN where there is none or it takes no part."""
    start, stop = (int(edge) for edge in span.offsets[[0, -1]])
    part = None if who is None else torch.repeat_interleave(who, span.offsets.diff())
    step = ROW_BLOCK * max(1, _CELLS // (ROW_BLOCK * max(1, d)))
    for first in range(start, max(stop, start + 1), step):
        rows = span.X[first : min(first + step, stop)]
        if part is not None:
            rows = torch.where(part[first - start : first - start + len(rows), None], rows, torch.nan)
        missing = -len(rows) % ROW_BLOCK if len(rows) else ROW_BLOCK
        if missing:
            rows = torch.cat([rows, rows.new_full((missing, d), torch.nan)])
        yield rows.reshape(-1, ROW_BLOCK, d)
