"""Ghost clipping: clip and sum many users' gradients without materialising a gradient.

The gradient of a linear layer's weights for a user with rows i is M = Σᵢ gᵢ aᵢᵀ, where aᵢ is the layer's input and gᵢ
the gradient of the loss in its output. The norm of M needs inner products of rows only, ‖M‖² = Σᵢⱼ (aᵢ·aⱼ)(gᵢ·gⱼ), and
the sum over users of c·M is one matrix product, (c g)ᵀ a over all rows. Memory is rows × width + weights, not users ×
weights.

Why no user adds more than the clipping bound C. (A contribution *is* the product of the numbers a and g as stored; u =
2⁻⁵³.)

1. **The norm is bounded from above.** Float32 numbers are exact in float64; float64 ones are rescaled to size one first
   (row by row: a/α and α·g have the same product). With T = Σᵢ ‖aᵢ‖‖gᵢ‖, a user of m rows and a layer of p × q weights,
   every product in ‖M‖² is off by at most (p + q + 1) u ‖aᵢ‖‖aⱼ‖‖gᵢ‖‖gⱼ‖, and summing m² of them by m² u T² more, to
   first order and in any order of summation. So ‖M‖² ≤ computed + n·2u·T² with n = p + q + m² + 8; the 2 and the 8
   cover higher orders, T itself and the square root. If a user's rows cancel, T and the bound are large against ‖M‖.
2. **Bounds are at least T/κ**, κ = 2¹⁰: a user whose rows cancel to less than a thousandth is scaled to less than C.
   The summed rows then have Σᵢ ‖aᵢ‖‖c gᵢ‖ = c T ≤ κ C: rounding c·g costs κ u C < 2⁻⁴² C.
3. **Rounding of the sum.** Users are summed in float64, U at a time, K = U m products per entry, again in any order:
   off by at most K u Σ c T ≤ K u U κ C. Replacing one user changes this by at most twice as much, 2 u κ U² m C, and U
   is chosen so that this is at most 2⁻²² C. Other matrix products are not affected. Adding the products of n users to
   a total is off by u n C each time, 2⁻³⁹ C in all for the 1024 users of a block. The guard of clipping is 2⁻²⁰ C.

Assumptions about the hardware: float64 products are accumulated in float64 (fused or not, in any order). TF32 concerns
float32 and changes only the values of a and g. A user with any non-finite number has rows of zeros in the sum (they are
not multiplied by zero). Biases and shared heads are short, so their gradients are materialised.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tacitly.privacy.clipping import GUARD

KAPPA = 2.0**10
"""A user whose rows cancel to less than one part in this number is scaled to less than the clipping bound."""

_UNIT_ROUNDOFF = 2.0**-53
_ROUNDING = 2.0**-22  # allowance for rounding of a sum, relative to the clipping bound


def max_users_per_product(rows: int) -> int:
    """Return how many users with this many rows each may be summed by one matrix product.

    >>> max_users_per_product(20), max_users_per_product(128)
    (228, 90)
    """
    return max(1, math.isqrt(int(_ROUNDING / (2.0 * _UNIT_ROUNDOFF * KAPPA) / rows)))


@dataclass(frozen=True)
class Vectors:
    """Materialised gradients of one short parameter: ``values`` has one row per user, divided by ``scale``."""

    values: Tensor
    norm_bound: Tensor
    scale: Tensor

    @classmethod
    def from_rows(cls, values: Tensor) -> Vectors:
        """Convert gradients (one row per user) to float64, divided by a scale per user."""
        return cls(*scaled(values))

    def materialise(self, user: int) -> Tensor:
        """Return one user's gradient."""
        return self.values[user] * self.scale[user]

    @property
    def uncancelled(self) -> Tensor:
        """The norm itself: the rows are already summed, so nothing can cancel any more."""
        return self.norm_bound

    def add(self, total: Tensor, factors: Tensor, finite: Tensor) -> None:
        """Add every user's gradient times a factor to a flat ``total``, in place."""
        values = self.values if bool(finite.all()) else torch.where(finite[:, None], self.values, 0.0)
        total += factors @ values


@dataclass(frozen=True)
class Products:
    """Gradients of one layer's weights, as factors: rows × inputs and rows × outputs, in float64.

    ``counts`` are the users' numbers of rows, which are private unless the rows are padded. Public quantities are
    computed from ``max_rows``, the maximum number of rows of a user. ``norm_bound`` bounds the norm from above (up to
    ``scale``), and ``uncancelled`` is T in the module's docstring.
    """

    inputs: Tensor
    gradients: Tensor
    counts: list[int]
    max_rows: int
    norm_bound: Tensor
    uncancelled: Tensor
    scale: Tensor

    @classmethod
    def from_rows(cls, inputs: Tensor, gradients: Tensor, counts: list[int], max_rows: int) -> Products:
        """Bound the norms from above, each user's from that user's rows only."""
        a, g, scale = _rescaled(inputs, gradients, counts)
        pairs = zip(copied_rows(a, counts), copied_rows(g, counts), strict=True)
        per_user = [_squared_norms(*pair) for pair in pairs]
        squares, uncancelled = (torch.stack(part) for part in zip(*per_user, strict=True))
        return cls(a, g, counts, max_rows, _bound(squares, uncancelled, a, g, max_rows), uncancelled, scale)

    @classmethod
    def from_padded(cls, inputs: Tensor, gradients: Tensor, max_rows: int) -> Products:
        """Do the same in one batch for users who are all padded to ``max_rows`` rows."""
        users = len(inputs) // max_rows
        a, g, scale = _rescaled(inputs, gradients, [max_rows] * users)
        squares, uncancelled = _squared_norms(a.view(users, max_rows, -1), g.view(users, max_rows, -1))
        bound = _bound(squares, uncancelled, a, g, max_rows)
        return cls(a, g, [max_rows] * users, max_rows, bound, uncancelled, scale)

    def materialise(self, user: int) -> Tensor:
        """Return one user's gradient."""
        a, g = (copied_rows(part, self.counts)[user] for part in (self.inputs, self.gradients))
        return (g.mT @ a).flatten() * self.scale[user]

    def add(self, total: Tensor, factors: Tensor, finite: Tensor) -> None:
        """Add every user's gradient times a factor to a flat ``total``, in place."""
        a, g = self.inputs, self.gradients
        counts = torch.tensor(self.counts, device=a.device)
        if not bool(finite.all()):
            rows = finite.repeat_interleave(counts)[:, None]
            a, g = (torch.where(rows, part, 0.0) for part in (a, g))
        row_factors = factors.repeat_interleave(counts)[:, None]
        matrix = total.view(g.shape[1], a.shape[1])
        users, ends = max_users_per_product(self.max_rows), [0, *itertools.accumulate(self.counts)]
        for start in range(0, len(self.counts), users):
            mine = slice(ends[start], ends[min(start + users, len(self.counts))])
            # A separate product in a separate buffer, so that users outside of it cannot affect its rounding.
            matrix += (g[mine] * row_factors[mine]).mT @ (a[mine].clone() if start else a[mine])


def copied_rows(rows: Tensor, counts: list[int]) -> list[Tensor]:
    """Copy each user's rows into its own buffer.

    The start of a slice in a larger array depends on the number of rows before it, and products round differently at
    different alignments. So the last bit of one user's norm would depend on another user's number of rows.
    """
    return [part.clone() for part in torch.split(rows, counts)]


def _rescaled(inputs: Tensor, gradients: Tensor, counts: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Return inputs and gradients in float64, and a scale per user; float64 values are divided by it.

    Without the scale, squares of float64 numbers could underflow or overflow.
    """
    if inputs.dtype != torch.float64:
        ones = torch.ones(len(counts), dtype=torch.float64, device=gradients.device)
        return inputs.double(), gradients.double(), ones
    size = inputs.abs().amax(1, keepdim=True)
    inputs, gradients = inputs / torch.where(size == 0, 1.0, size), gradients * size
    scale = torch.stack([part.abs().amax() for part in torch.split(gradients, counts)])
    row_scale = scale.repeat_interleave(torch.tensor(counts, device=scale.device))[:, None]
    return inputs, gradients / torch.where(row_scale == 0, 1.0, row_scale), scale


def _bound(squares: Tensor, uncancelled: Tensor, a: Tensor, g: Tensor, max_rows: int) -> Tensor:
    n = a.shape[1] + g.shape[1] + max_rows**2 + 8
    return (squares.clamp_min(0.0) + 2.0 * n * _UNIT_ROUNDOFF * uncancelled.square()).sqrt()


def _squared_norms(a: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """Return Σᵢⱼ (aᵢ·aⱼ)(gᵢ·gⱼ) and Σᵢ ‖aᵢ‖‖gᵢ‖, for one user or for a batch of users."""
    products, output_products = a @ a.mT, g @ g.mT
    sizes = torch.diagonal(products, dim1=-2, dim2=-1) * torch.diagonal(output_products, dim1=-2, dim2=-1)
    return products.mul_(output_products).sum((-2, -1)), sizes.sqrt_().sum(-1)


Piece = Vectors | Products
"""All users' gradients of one parameter."""


def norm_bounds(pieces: Sequence[Piece]) -> tuple[Tensor, Tensor]:
    """Return, per user, a bound on the norm of all pieces together divided by a scale, and that scale."""
    scales = torch.stack([piece.scale for piece in pieces])
    scale = scales.amax(0)
    shares = scales / torch.where(scale == 0, 1.0, scale)
    bound = torch.linalg.vector_norm(shares * torch.stack([piece.norm_bound for piece in pieces]), dim=0)
    uncancelled = torch.linalg.vector_norm(shares * torch.stack([piece.uncancelled for piece in pieces]), dim=0)
    return torch.maximum(bound, uncancelled / KAPPA), scale


def add_clipped(
    total: Tensor,
    pieces: Sequence[Piece],
    bound: float,
    rate: float,
    *,
    normalised: bool,
    per_piece: bool = False,
) -> None:
    """Add −rate times every user's gradient to ``total``, clipped to ``bound``: as a whole, or each piece separately.

    >>> gradients = Products.from_rows(torch.tensor([[3.0]]), torch.tensor([[2.0]]), [1], max_rows=1)
    >>> total = torch.zeros(1, dtype=torch.float64)
    >>> add_clipped(total, [gradients], 1.0, 0.1, normalised=False)
    >>> round(float(total), 6)
    -0.6
    """
    groups = [[piece] for piece in pieces] if per_piece else [list(pieces)]
    bounded = [norm_bounds(group) for group in groups]
    finite = torch.stack([torch.isfinite(norm) & torch.isfinite(scale) for norm, scale in bounded]).all(0)
    group_bound = bound * (1.0 - GUARD) / math.sqrt(len(groups))
    targets = iter(torch.split(total, [_size_of(piece) for piece in pieces]))
    for group, (norm, scale) in zip(groups, bounded, strict=True):
        factor = group_bound / torch.where(norm > 0, norm, 1.0)
        if not normalised:
            factor = torch.where(norm * (rate * scale) <= group_bound, rate * scale, factor)
        factor = torch.where(finite & (norm > 0), factor, 0.0)
        for piece in group:
            share = torch.where(finite & (scale > 0), piece.scale / torch.where(scale > 0, scale, 1.0), 0.0)
            piece.add(next(targets), -factor * share, finite)


def norms(pieces: Sequence[Piece], rate: float) -> Tensor:
    """Return the norm bounds for clipping: norm of every user's gradient times ``rate``; NaN if it is not finite."""
    norm, scale = norm_bounds(pieces)
    finite = torch.isfinite(norm) & torch.isfinite(scale)
    return torch.where(finite, (norm * (rate * scale)).clamp_max(torch.finfo(torch.float64).max), torch.nan)


def _size_of(piece: Piece) -> int:
    if isinstance(piece, Vectors):
        return piece.values.shape[1]
    return piece.inputs.shape[1] * piece.gradients.shape[1]


def scaled(updates: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return updates (one row each, float64) divided by a scale per row, their norms after that, and the scales.

    Squares of float32 numbers neither overflow nor underflow in float64, so their scale is one. Squares of float64
    numbers do: an update with entries near 1e-162 would have norm zero and pass the clip unscaled. Their scale is the
    largest absolute entry.
    """
    if updates.dtype != torch.float64:
        updates = updates.double()
        return updates, torch.linalg.vector_norm(updates, dim=1), torch.ones_like(updates[:, 0])
    largest = updates.abs().amax(1)
    updates = updates / torch.where(largest > 0, largest, torch.ones_like(largest))[:, None]
    return updates, torch.linalg.vector_norm(updates, dim=1), largest
