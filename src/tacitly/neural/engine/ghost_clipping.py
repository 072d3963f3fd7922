"""Slopes of many users' losses, each brought within the clip and added up without ever being written down.

The slope of a linear layer's weights for a user with rows i is M = Σᵢ gᵢ aᵢᵀ: what went into the layer, times the slope
of the loss in what came out. Its norm needs products of rows only, ‖M‖² = Σᵢⱼ (aᵢ·aⱼ)(gᵢ·gⱼ), and the sum over users of
c·M is one product of matrices, (c g)ᵀ a over all rows. Memory is rows × width + weights, not users × weights.

Why nobody adds more than the clip C (a contribution *is* what these numbers a and g, as they are, stand for; u = 2⁻⁵³).

1. **The norm is bounded from above.** Float32 numbers are exact in float64; float64 ones are brought to size one first
   (row by row: a/α and α·g stand for the same). With T = Σᵢ ‖aᵢ‖‖gᵢ‖, a user of m rows and a layer of p × q weights,
   every product in ‖M‖² is off by at most (p + q + 1) u ‖aᵢ‖‖aⱼ‖‖gᵢ‖‖gⱼ‖, and adding m² of them by m² u T² more, to
   first order and in any order of adding. So ‖M‖² ≤ found + n·2u·T² with n = p + q + m² + 8; the 2 and the 8 pay for
   higher orders, for T itself and for the root. Where a user's rows cancel, T and the bound are large against ‖M‖.
2. **Bounds are at least T/κ**, κ = 2¹⁰: a user whose rows cancel to less than a thousandth is brought to less than
   the clip. What is added up then has Σᵢ ‖aᵢ‖‖c gᵢ‖ = c T ≤ κ C: rounding c·g costs κ u C < 2⁻⁴² C.
3. **Rounding of the sum.** Users are added in float64, U at a time, K = U m products an entry, again in any order: off
   by at most K u Σ c T ≤ K u U κ C. Another user in the place of one moves this by at most twice as much, 2 u κ U² m C,
   and U is such that this is at most 2⁻²² C. Other products are not touched. Adding products of n users up to a total
   is off by u n C each time, 2⁻³⁹ C in all for the 1024 users of a block. The clip's guard is 2⁻²⁰ C.

Assumed of the machine: float64 products are added as float64 (fused or not, in any order). TF32 is about float32 and
touches only what a and g are. A user with any number that is not finite has rows of zeros in the sum, not zero times
something; levels (biases) and shared heads are short, so theirs are written down.
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
"""Rows that cancel to less than one part in this many bring their user below the clip."""

_UNIT = 2.0**-53
_ROUNDING = 2.0**-22  # of the clip: what the rounding of a sum may cost


def together_at_most(rows: int) -> int:
    """Users with so many rows each that one product may add up.

    >>> together_at_most(20), together_at_most(128)
    (228, 90)
    """
    return max(1, math.isqrt(int(_ROUNDING / (2.0 * _UNIT * KAPPA) / rows)))


@dataclass(frozen=True)
class Vectors:
    """Something short of every user's, a row each, written down."""

    values: Tensor
    length: Tensor
    scale: Tensor

    @classmethod
    def made(cls, values: Tensor) -> Vectors:
        """Take them in float64, over a scale."""
        return cls(*scaled(values))

    def of(self, user: int) -> Tensor:
        """Return one user's."""
        return self.values[user] * self.scale[user]

    @property
    def spread(self) -> Tensor:
        """Nothing cancels any more where a sum was formed."""
        return self.length

    def add(self, total: Tensor, factors: Tensor, there: Tensor) -> None:
        """Add everybody's times a factor to a flat ``total``, in place."""
        values = self.values if bool(there.all()) else torch.where(there[:, None], self.values, 0.0)
        total += factors @ values


@dataclass(frozen=True)
class Products:
    """Slopes of one layer's weights: rows × inputs and rows × outputs in float64, everybody's ``counts`` of rows.

    Counts are private where they are no padding; ``most`` rows of a user is what everything public is made from.
    """

    inputs: Tensor
    slopes: Tensor
    counts: list[int]
    most: int
    length: Tensor
    spread: Tensor
    scale: Tensor

    @classmethod
    def made(cls, inputs: Tensor, slopes: Tensor, counts: list[int], most: int) -> Products:
        """Bound their norms from above, each user's from its rows alone."""
        a, g, scale = _to_size_one(inputs, slopes, counts)
        own = [_squares(*both) for both in zip(own_rows(a, counts), own_rows(g, counts), strict=True)]
        squares, spread = (torch.stack(part) for part in zip(*own, strict=True))
        return cls(a, g, counts, most, _bound(squares, spread, a, g, most), spread, scale)

    @classmethod
    def padded(cls, inputs: Tensor, slopes: Tensor, most: int) -> Products:
        """Do the same for users who all come with ``most`` rows, at once."""
        users = len(inputs) // most
        a, g, scale = _to_size_one(inputs, slopes, [most] * users)
        squares, spread = _squares(a.view(users, most, -1), g.view(users, most, -1))
        return cls(a, g, [most] * users, most, _bound(squares, spread, a, g, most), spread, scale)

    def of(self, user: int) -> Tensor:
        """Return one user's, written down after all."""
        a, g = (own_rows(part, self.counts)[user] for part in (self.inputs, self.slopes))
        return (g.mT @ a).flatten() * self.scale[user]

    def add(self, total: Tensor, factors: Tensor, there: Tensor) -> None:
        """Add everybody's times a factor to a flat ``total``, in place."""
        a, g = self.inputs, self.slopes
        counts = torch.tensor(self.counts, device=a.device)
        if not bool(there.all()):
            rows = there.repeat_interleave(counts)[:, None]
            a, g = (torch.where(rows, part, 0.0) for part in (a, g))
        shares = factors.repeat_interleave(counts)[:, None]
        matrix = total.view(g.shape[1], a.shape[1])
        users, ends = together_at_most(self.most), [0, *itertools.accumulate(self.counts)]
        for start in range(0, len(self.counts), users):
            mine = slice(ends[start], ends[min(start + users, len(self.counts))])
            # A product of its own, in memory of its own: nobody in it touches how others' are rounded.
            matrix += (g[mine] * shares[mine]).mT @ (a[mine].clone() if start else a[mine])


def own_rows(rows: Tensor, counts: list[int]) -> list[Tensor]:
    """Return everybody's rows, each in memory of its own.

    Where a part of a larger array begins depends on how many rows those before it have, and products round differently
    at different places: a last bit of one user's norm would tell of another's number of rows.
    """
    return [part.clone() for part in torch.split(rows, counts)]


def _to_size_one(inputs: Tensor, slopes: Tensor, counts: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Return rows and slopes in float64, and everybody's scale: float64 ones over it, so that no square is lost."""
    if inputs.dtype != torch.float64:
        return inputs.double(), slopes.double(), torch.ones(len(counts), dtype=torch.float64, device=slopes.device)
    size = inputs.abs().amax(1, keepdim=True)
    inputs, slopes = inputs / torch.where(size == 0, 1.0, size), slopes * size
    scale = torch.stack([part.abs().amax() for part in torch.split(slopes, counts)])
    each = scale.repeat_interleave(torch.tensor(counts, device=scale.device))[:, None]
    return inputs, slopes / torch.where(each == 0, 1.0, each), scale


def _bound(squares: Tensor, spread: Tensor, a: Tensor, g: Tensor, most: int) -> Tensor:
    n = a.shape[1] + g.shape[1] + most**2 + 8
    return (squares.clamp_min(0.0) + 2.0 * n * _UNIT * spread.square()).sqrt()


def _squares(a: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """Return Σᵢⱼ (aᵢ·aⱼ)(gᵢ·gⱼ) and Σᵢ ‖aᵢ‖‖gᵢ‖, of one user or of every one."""
    between, across = a @ a.mT, g @ g.mT
    sizes = torch.diagonal(between, dim1=-2, dim2=-1) * torch.diagonal(across, dim1=-2, dim2=-1)
    return between.mul_(across).sum((-2, -1)), sizes.sqrt_().sum(-1)


Piece = Vectors | Products


def bounds(pieces: Sequence[Piece]) -> tuple[Tensor, Tensor]:
    """Return, for every user, a bound of the norm of all pieces together over a scale, and that scale."""
    scales = torch.stack([piece.scale for piece in pieces])
    scale = scales.amax(0)
    shares = scales / torch.where(scale == 0, 1.0, scale)
    length = torch.linalg.vector_norm(shares * torch.stack([piece.length for piece in pieces]), dim=0)
    spread = torch.linalg.vector_norm(shares * torch.stack([piece.spread for piece in pieces]), dim=0)
    return torch.maximum(length, spread / KAPPA), scale


def add_bounded(
    total: Tensor,
    pieces: Sequence[Piece],
    bound: float,
    rate: float,
    *,
    normalised: bool,
    each: bool = False,
) -> None:
    """Add −rate times everybody's slopes to ``total``, each user's brought within ``bound``, as a whole or each piece.

    >>> slopes = Products.made(torch.tensor([[3.0]]), torch.tensor([[2.0]]), [1], most=1)
    >>> total = torch.zeros(1, dtype=torch.float64)
    >>> add_bounded(total, [slopes], 1.0, 0.1, normalised=False)
    >>> round(float(total), 6)
    -0.6
    """
    groups = [[piece] for piece in pieces] if each else [list(pieces)]
    found = [bounds(group) for group in groups]
    there = torch.stack([torch.isfinite(length) & torch.isfinite(scale) for length, scale in found]).all(0)
    share = bound * (1.0 - GUARD) / math.sqrt(len(groups))
    places = iter(torch.split(total, [_numbers(piece) for piece in pieces]))
    for group, (length, scale) in zip(groups, found, strict=True):
        factor = share / torch.where(length > 0, length, 1.0)
        if not normalised:
            factor = torch.where(length * (rate * scale) <= share, rate * scale, factor)
        factor = torch.where(there & (length > 0), factor, 0.0)
        for piece in group:
            mine = -factor * torch.where(there & (scale > 0), piece.scale / torch.where(scale > 0, scale, 1.0), 0.0)
            piece.add(next(places), mine, there)


def norms(pieces: Sequence[Piece], rate: float) -> Tensor:
    """Return the bounds themselves: of the norm of everybody's slope, times ``rate``; not finite where that is not."""
    length, scale = bounds(pieces)
    there = torch.isfinite(length) & torch.isfinite(scale)
    return torch.where(there, (length * (rate * scale)).clamp_max(torch.finfo(torch.float64).max), torch.nan)


def _numbers(piece: Piece) -> int:
    if isinstance(piece, Vectors):
        return piece.values.shape[1]
    return piece.inputs.shape[1] * piece.slopes.shape[1]


def scaled(answers: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return answers over a scale (a row each, in float64), their norms after that, and the scales.

    Squares of float32 numbers neither overflow nor vanish in float64, so their scale is one. Those of float64 do: an
    answer of entries near 1e-162 would have no norm, and pass the clip whole. Their scale is the largest entry.
    """
    if answers.dtype != torch.float64:
        answers = answers.double()
        return answers, torch.linalg.vector_norm(answers, dim=1), torch.ones_like(answers[:, 0])
    largest = answers.abs().amax(1)
    answers = answers / torch.where(largest > 0, largest, torch.ones_like(largest))[:, None]
    return answers, torch.linalg.vector_norm(answers, dim=1), largest
