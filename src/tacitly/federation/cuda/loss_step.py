"""Private FedRep's step for classes and counts on a device: the device form of ``LossStep``.

Mirrors :class:`tacitly.methods.fedrep.queries.LossStep` and :mod:`tacitly.heads.newton_arrays`, in double precision:
the same Newton steps in the same order for all users, as many whatever the rows are. A user's rows are changed entry by
entry and added up by themselves, and every array after that has one entry per user. Contributions of norm one are
clipped like any other's (:func:`~tacitly.federation.cuda.sums.clipped_sums`).
"""

from __future__ import annotations

from typing import Any

import torch

from tacitly.federation.cuda.contributions import clipped
from tacitly.federation.cuda.forms import Context
from tacitly.federation.cuda.grams import grams_of
from tacitly.federation.cuda.rows import Span
from tacitly.federation.cuda.sparse_fits import Users, solved
from tacitly.federation.cuda.sums import BlockSums, norms_of, numbers, packed
from tacitly.privacy.clipping import LEAST

# As in heads.losses, heads.newton, heads.glm and methods.fedrep.loss_kernels.
LOGISTIC, HINGE, POISSON, LARGEST_SCORE = 1, 2, 3, 30.0
SWEEPS, LONGEST = 12, 2.0
INTERCEPT_PENALTY, PENALTY, LEAST_CURVATURE, LEAST_HEAD = 0.05, 1.0, 1e-6, 1e-6


def loss_step(query: Any, context: Context) -> BlockSums:
    """Return the form of a user's correction of the basis and its head, together of norm one."""
    (d, k), columns, device = query.basis.shape, query.loss.columns, context.device
    directions, basis = numbers(query.whitening.to_raw(query.basis).T, device), numbers(query.basis, device)
    scale, turn, metric = (
        numbers(part, device) for part in (query.whitening.scale, query.whitening.turn, query.head_metric)
    )

    def contributions(span: Span) -> torch.Tensor:
        users = Users.of(span, directions, plain=context.plain)
        heads, levels, scores = _round_fits(users, query.loss.code, columns, intercept=query.intercept)
        rows = users.X.to(torch.float64)
        rows = users.centred(rows)[0] if query.intercept else rows
        energy = users.total((rows * scale).square()).sum(dim=1) / (users.present * d)
        slopes = [_slopes(query.loss.code, users.targets, scores, a) for a in range(columns)]
        first, second = (torch.stack(part, dim=1) for part in zip(*slopes, strict=True))
        curvature = users.total(second).sum(dim=1) / (max(1, columns - 1) * users.present)
        size = users.present * energy * curvature.clamp(min=LEAST_CURVATURE)
        usable = users.total((~torch.isfinite(users.targets)).to(torch.float64)) == 0
        usable = usable & torch.isfinite(size) & (size > 0) & torch.isfinite(levels)
        usable = usable & (heads.square().sum(dim=(1, 2)) * levels > LEAST_HEAD**2)
        pulls = torch.stack([users.total(rows * first[:, [a]]) for a in range(columns)], dim=1)
        pulls = scale * torch.where(usable[:, None, None], pulls, 0.0) / torch.where(usable, size, 1.0)[:, None, None]
        pulls = pulls + pulls @ turn
        pulls = pulls - pulls @ basis @ basis.T
        measured = metric @ torch.where(usable[:, None, None], heads, 0.0)
        steps = (measured @ pulls).transpose(1, 2) / query.scale
        joint = torch.cat([steps.flatten(1), packed(measured @ measured.transpose(1, 2))], dim=1)
        norms = norms_of(joint)
        long = torch.isfinite(norms) & (norms.square() > LEAST)
        return torch.where(long[:, None], joint / torch.where(long, norms, 1.0)[:, None], 0.0)

    return clipped(contributions, 4 * d + (columns + 1) * (k + 2) + d * k // 8)


def _round_fits(
    users: Users, loss: int, columns: int, *, intercept: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return heads (users × k × classes), mean squares of projected rows, and scores (classes × rows)."""
    rows, (n, k) = users.along, (len(users.counts), users.along.shape[1])
    if intercept:
        rows = users.centred(rows)[0]
    levels = users.total(rows.square()).sum(dim=1) / (users.present * k)
    penalties = (PENALTY * levels)[:, None].repeat(1, k + int(intercept))
    if intercept:
        rows = torch.cat([rows, torch.ones_like(rows[:, :1])], dim=1)
        penalties[:, k:] = INTERCEPT_PENALTY
    heads, scores = rows.new_zeros((n, rows.shape[1], columns)), rows.new_zeros((columns, len(rows)))
    for _ in range(SWEEPS):
        for a in range(columns):
            first, second = _slopes(loss, users.targets, scores, a)
            steps = _newton(users, rows, first, second, penalties, heads[:, :, a])
            moved = torch.zeros_like(first)
            for column in range(rows.shape[1]):
                moved = moved + rows[:, column] * steps[:, column][users.owner]
            longest = users.largest(moved.abs())
            parts = torch.where(longest <= LONGEST, 1.0, LONGEST / torch.where(longest > 0, longest, 1.0))
            scores[a] += parts[users.owner] * moved
            heads[:, :, a] += parts[:, None] * steps
        if columns > 1:  # the mean over classes changes no probability, and is zero at the minimum
            heads = heads - heads.mean(dim=2, keepdim=True)
            scores = scores - scores.mean(dim=0)
    return heads[:, :k], levels, scores


def _newton(
    users: Users,
    rows: torch.Tensor,
    first: torch.Tensor,
    second: torch.Tensor,
    penalties: torch.Tensor,
    heads: torch.Tensor,
) -> torch.Tensor:
    """Return a Newton step of each user; zero where there is none."""
    rights = users.total(rows * first[:, None]) - penalties * heads
    hessians = grams_of(rows * second.sqrt()[:, None], users, plain=users.plain)
    hessians.diagonal(dim1=1, dim2=2).add_(penalties)
    found = solved(torch.cat([hessians, rights[:, None, :]], dim=1).permute(1, 2, 0).contiguous())
    return torch.where(torch.isfinite(found).all(dim=1)[:, None], found, 0.0)


def _slopes(loss: int, targets: torch.Tensor, scores: torch.Tensor, a: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return minus the first derivative, and the second derivative, of every row's loss in its score a."""
    score = scores[a]
    if loss == LOGISTIC:
        chance = 1.0 / (1.0 + (-score).exp())
        return targets - chance, chance * (1.0 - chance)
    if loss == HINGE:
        sign = 2.0 * targets - 1.0
        short = 1.0 - sign * score
        return torch.where(short > 0.0, sign * short, 0.0), (short > 0.0).to(torch.float64)
    if loss == POISSON:
        rate = score.clamp(max=LARGEST_SCORE).exp()
        return targets - rate, rate
    shares = (scores - scores.amax(dim=0)).exp()
    chance = shares[a] / shares.sum(dim=0)
    return (targets == a).to(torch.float64) - chance, chance * (1.0 - chance)
