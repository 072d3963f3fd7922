"""Private FedRep's step on a device: the device form of :class:`~tacitly.methods.fedrep.queries.BasisStep`.

One pass over the rows gives each user's head v and raw correction r = Xᵀ(y − Pv): by the Triton kernel
:func:`~tacitly.federation.cuda.kernels.user_steps`, or, without Triton, by :func:`plain_steps`, the same in double
precision by PyTorch alone. The rest is common to both: norms in whitened coordinates, the weight that scales a
contribution (g vᵀ/c, v vᵀ) to norm (1 − 2⁻²⁰) clips, and for each block a product of heads and corrections. Whitening
is linear, so it is applied to sums of blocks.

Adjacency, sensitivity and event are the query's. The bound holds for the numbers that are added: the norm is computed
from r as it is stored, after all rounding of the pass over the rows (:mod:`tacitly.federation.cuda.sums`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from tacitly.arrays import Array
from tacitly.federation.cuda.forms import Context
from tacitly.federation.cuda.rows import Own, Span, in_spans, per_user, row_sums
from tacitly.federation.cuda.sums import BlockSums, in_blocks, numbers, packed, taking_part
from tacitly.privacy.clipping import GUARD, LEAST

_RIDGE = 1e-12  # as in simd.small_solves: relative to the trace
_MOST_COLUMNS, _MOST_RANK = 256, 8  # beyond these a user's sums do not fit the registers of one program
_USERS = 16  # users of one program
_PART = 256  # users whose sum one program adds up: a power of two
_CELLS = 1024  # numbers of a sum times users that a program has in registers
_FEW = 16  # directions of a whitening that a program takes one after the other


class Public(NamedTuple):
    """The public fields of a step on the device."""

    directions: torch.Tensor  # k×d: the basis for raw features, in the rows' precision
    squared: torch.Tensor  # whitening's scale, squared
    scale: torch.Tensor
    across: torch.Tensor  # q×d: whitening's directions
    gains: torch.Tensor
    further: torch.Tensor  # what the squared norm has more along them
    metric: torch.Tensor
    limits: torch.Tensor  # the norm of a contribution, and the smallest squared norm of a head and smallest factor
    c: float
    centered: bool


class Steps(NamedTuple):
    """Heads (n×k, float64), raw corrections (n×d) and the factors by which these are multiplied, per user."""

    heads: torch.Tensor
    corrections: torch.Tensor
    lengths: torch.Tensor


def basis_step(query: Any, context: Context) -> BlockSums:
    """Return block sums of a basis step."""
    made: dict[tuple[torch.dtype, float], Public] = {}

    def sums(span: Span, bound: float, size: int, who: torch.Tensor | None) -> torch.Tensor:
        public = made.get((span.X.dtype, bound))
        if public is None:
            public = made[span.X.dtype, bound] = public_of(query, context.device, span.X.dtype, bound)
        k, d = public.directions.shape
        if context.plain or d > _MOST_COLUMNS or k > _MOST_RANK:
            parts = in_spans(span, who, size, d)
            return torch.cat([block_sums(plain_steps(part, public), public, size, w) for part, w in parts])
        return fused_sums(fused_steps(span, public), public, size, who)

    return sums


def public_of(query: Any, device: torch.device, dtype: torch.dtype, bound: float = 1.0) -> Public:
    """Return the public fields for rows of this precision, in two uploads: the device waits for them."""
    whitening, weight = query.whitening, min(1.0, bound * (1.0 - GUARD))
    fields = (
        whitening.to_raw(query.basis).T,
        np.square(whitening.scale),
        whitening.scale,
        whitening.directions.T,
        whitening.gains,
        (1.0 + whitening.gains) ** 2 - 1.0,
        query.head_metric,
        np.array([weight, LEAST]),
    )
    directions, squared = _uploaded(fields[:2], device, dtype)
    scale, across, gains, further, metric, limits = _uploaded(fields[2:], device)
    arrays = (directions, squared, scale, across, gains, further, metric, limits)
    return Public(*arrays, c=float(query.scale), centered=bool(query.centered))


def _uploaded(fields: Sequence[Array], device: torch.device, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    """Upload arrays as one, each at an address that is a multiple of 16 bytes, which kernels are compiled for."""
    places = np.cumsum([0, *(field.size + -field.size % 4 for field in fields)]).tolist()
    flat = np.zeros(places[-1])
    for place, field in zip(places, fields, strict=False):
        flat[place : place + field.size] = field.ravel()
    sent = numbers(flat, device, dtype)
    return [sent[at : at + field.size].view(field.shape) for at, field in zip(places, fields, strict=False)]


def block_sums(steps: Steps, public: Public, size: int, who: torch.Tensor | None) -> torch.Tensor:
    """Scale each user's contribution to the norm that is allowed and add up each block; zero if it is not finite."""
    # Scaled before squared: a correction of normal size may be the product of a tiny and a huge number.
    rows = steps.corrections.to(torch.float64) * steps.lengths[:, None]
    scaled = rows * public.scale
    sizes = scaled.square().sum(dim=1)
    if public.gains.numel():
        sizes = sizes + (scaled @ public.across.T).square() @ public.further
    heads = steps.heads @ public.metric
    size_of_head = heads.square().sum(dim=1)
    norms = size_of_head.sqrt() * (sizes + size_of_head).sqrt()
    parts = public.limits[0] / norms
    usable = (steps.lengths > 0) & torch.isfinite(norms) & (norms > 0) & torch.isfinite(parts) & (size_of_head > LEAST)
    usable = usable & (parts > LEAST)  # smaller ones have lost digits, and would exceed the norm
    parts = taking_part(torch.where(usable, parts, 0.0), who)
    kept = (parts > 0)[:, None]
    heads, rows = torch.where(kept, heads, 0.0), torch.where(kept, rows, 0.0)
    weighted = in_blocks(heads * parts[:, None], size).transpose(1, 2)
    step, second = weighted @ in_blocks(rows, size), weighted @ in_blocks(heads, size)
    return _whitened(step, second, public)


def plain_steps(span: Span, public: Public) -> Steps:
    """Return the steps by PyTorch alone, in double precision; each user's rows are reduced by themselves."""
    own = Own(span)
    rows, targets, counts, owner = own.rows, own.targets, own.counts, own.owner
    if public.centered:
        rows, targets = own.centered(rows), own.centered(targets[:, None])[:, 0]
    position = torch.arange(len(rows), device=rows.device) - own.offsets[:-1][owner]
    fourth = (position % 4 == 0).to(torch.float64)[:, None]
    energy = per_user(rows.square() * public.squared.to(torch.float64) * fourth, counts).sum(dim=1)
    directions = public.directions.to(torch.float64)
    k = len(directions)
    projected = torch.stack([row_sums(rows * direction) for direction in directions], dim=1)
    systems = per_user((projected[:, :, None] * projected[:, None, :]).reshape(-1, k * k), counts).reshape(-1, k, k)
    right = per_user(projected * targets[:, None], counts)
    ridge = _RIDGE * systems.diagonal(dim1=1, dim2=2).sum(dim=1)
    systems = systems + ridge[:, None, None] * torch.eye(k, dtype=torch.float64, device=rows.device)
    lower, failed = torch.linalg.cholesky_ex(torch.nan_to_num(systems, nan=0.0, posinf=0.0, neginf=0.0))
    heads = torch.cholesky_solve(right[:, :, None], torch.where((failed > 0)[:, None, None], torch.nan, lower))[:, :, 0]
    heads = torch.where(torch.isfinite(systems).all(dim=2).all(dim=1)[:, None], heads, torch.nan)
    errors = targets - row_sums(projected * heads[owner])
    corrections = per_user(rows * errors[:, None], counts)
    return Steps(heads, corrections, _lengths(energy, counts, rows.shape[1], public))


def fused_steps(
    span: Span,
    public: Public,
    *,
    rows: int = 4,
    width: int = 0,
    users: int = _USERS,
    stages: int = 3,
    again: int = 1,
    **options: Any,
) -> Steps:
    """Return the steps by a Triton kernel that reads the rows from memory once."""
    import triton

    from tacitly.federation.cuda.kernels import user_steps

    k, d = public.directions.shape
    width = width or tile_width(d, k)
    tiles = -(-d // width)
    basis, squared = public.directions, public.squared
    if tiles * width > d:
        basis, squared = (torch.nn.functional.pad(each, (0, tiles * width - d)) for each in (basis, squared))
    heads, corrections, energies = _outputs(span, d, k)
    user_steps[(triton.cdiv(span.users, users),)](
        *(span.X, span.y, span.offsets, basis, squared, heads, corrections, energies, span.users, d, _RIDGE),
        K=k,
        TILES=tiles,
        WIDTH=width,
        ROWS=rows,
        USERS=users,
        CENTERED=public.centered,
        FULL=tiles * width == d,
        STAGES=stages,
        AGAIN=again,
        **{"num_warps": 1, **options},
    )
    return Steps(heads, corrections, _lengths(energies, span.offsets.diff(), d, public))


def fused_sums(
    steps: Steps, public: Public, size: int, who: torch.Tensor | None, *, users: int = 0, warps: int = 1
) -> torch.Tensor:
    """Return :func:`block_sums` by a Triton kernel that reads heads and corrections once."""
    import triton

    from tacitly.federation.cuda.kernels import add_steps

    n, k = steps.heads.shape
    d = steps.corrections.shape[1]
    part, lanes, few = min(_PART, size), max(16, triton.next_power_of_2(d)), len(public.gains) <= _FEW
    further = steps.lengths
    if not few:  # a matrix product for all users costs less than one direction after the other
        scaled = steps.corrections.to(torch.float64) * (steps.lengths[:, None] * public.scale)
        further = (scaled @ public.across.T).square() @ public.further
    blocks = -(-n // size)
    out = torch.empty(blocks * (size // part), k * d + k * k, dtype=torch.float64, device=steps.heads.device)
    add_steps[(len(out),)](
        *(steps.heads, steps.corrections, taking_part(steps.lengths, who), further, public.scale, public.across),
        *(public.further, public.metric, public.limits, out, n, d, len(public.gains) if few else 0),
        K=k,
        D=lanes,
        USERS=min(users or _power_below(max(1, _CELLS // (lanes * k))), part),
        PART=part,
        FURTHER=not few,
        num_warps=warps,
    )
    sums = out.reshape(blocks, size // part, -1).sum(dim=1)
    return _whitened(sums[:, : k * d].reshape(-1, k, d), sums[:, k * d :].reshape(-1, k, k), public)


def tile_width(d: int, k: int) -> int:
    """Return how many columns a tile has: the fewer, the less lanes exchange, but directions must fit the registers."""
    return min(max(16, 1 << (max(1, d * k // 32) - 1).bit_length()), max(16, 1 << (d - 1).bit_length()))


def _outputs(span: Span, d: int, k: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    options: dict[str, Any] = {"dtype": torch.float64, "device": span.X.device}
    corrections = torch.empty(span.users, d, dtype=span.X.dtype, device=span.X.device)
    return torch.empty(span.users, k, **options), corrections, torch.empty(span.users, **options)


def _lengths(energies: torch.Tensor, counts: torch.Tensor, d: int, public: Public) -> torch.Tensor:
    """Return 1/(c·free·energy), zero for a user with no more rows than unknowns; energies are sums of squares here."""
    free = (counts - len(public.directions) - int(public.centered)).to(torch.float64)
    mean = energies / (torch.div(counts + 3, 4, rounding_mode="floor") * d)
    return torch.where(free > 0, 1.0 / (free * mean) / public.c, 0.0)


def _whitened(step: torch.Tensor, second: torch.Tensor, public: Public) -> torch.Tensor:
    """Return sums of blocks as the query lays them out: whitening is linear, so it is applied to the sums."""
    step = step * public.scale
    if public.gains.numel():
        step = step + (step @ public.across.T * public.gains) @ public.across
    return torch.cat([step.transpose(1, 2).reshape(len(step), -1), packed(second)], dim=1)


def _power_below(number: int) -> int:
    """Return the largest power of two that is not above a number: lanes need one, and it divides a part.

    >>> _power_below(1), _power_below(21), _power_below(64)
    (1, 16, 64)
    """
    return 1 << number.bit_length() - 1
