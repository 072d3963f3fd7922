"""AMHT-LRS's step on a device: the device form of :class:`~tacitly.methods.low_rank_sparse.queries.SparseStep`.

Users are fitted by :mod:`tacitly.federation.cuda.sparse_fits`, and choose how many personal coordinates they have as in
:mod:`tacitly.methods.low_rank_sparse.array_choices`, in double precision. What a user contributes is a step of the
basis as Private FedRep's is, with another head and another residual. So the norm, the weight that makes it (1 − 2⁻²⁰)
clips and the sums of blocks are those of :func:`~tacitly.federation.cuda.basis_step.block_sums`, computed from the
heads and corrections that are found here, whatever they are. Adjacency, sensitivity and event are the query's.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch

from tacitly.federation.cuda.basis_step import Public, Steps, block_sums, public_of
from tacitly.federation.cuda.contributions import Norms
from tacitly.federation.cuda.forms import Context
from tacitly.federation.cuda.rows import Span, in_spans
from tacitly.federation.cuda.sparse_fits import ROUNDING, Model, Users, fit_users
from tacitly.federation.cuda.sums import BlockSums, norms_of

# As in methods.low_rank_sparse: array_fits, array_choices and queries.
CONSTANT, FOLDS, DOUBT, STAGES = 1e-13, 5, 4.0, 2
_FOLD_STAGES, _FOLD_SWAPS = 4, 2


def sparse_step(query: Any, context: Context) -> BlockSums:
    """Return block sums of a step of the basis beside personal coordinates."""
    made: dict[float, Public] = {}

    def sums(span: Span, bound: float, size: int, who: torch.Tensor | None) -> torch.Tensor:
        if bound not in made:
            made[bound] = public_of(query, context.device, torch.float64, bound)
        parts, public = in_spans(span, who, size, _width(query)), made[bound]
        return torch.cat([block_sums(_steps(part, query, public, context), public, size, w) for part, w in parts])

    return sums


def sparse_norms(query: Any, context: Context) -> Norms:
    """Return the form of ratios of corrections to heads, which :class:`TypicalNorm` is asked for."""
    public = public_of(query, context.device, torch.float64)

    def ratios(span: Span) -> torch.Tensor:
        steps = _steps(span, query, public, context)
        pulls = steps.corrections * steps.lengths[:, None] * public.scale
        pulls = pulls + (pulls @ public.across.T * public.gains) @ public.across
        heads = norms_of(steps.heads @ public.metric)
        usable = (steps.lengths > 0) & (heads > 0)
        return torch.where(usable, norms_of(pulls) / torch.where(usable, heads, 1.0), 0.0)[:, None]

    return Norms(ratios, _width(query))


def _width(query: Any) -> int:
    """Return how many numbers per row are held at once; systems of users count as rows do."""
    (d, k), most = query.basis.shape, query.sparsity.most
    return int(3 * d + 6 * (k + most) + (k + most) ** 2 // 50)


def _steps(span: Span, query: Any, public: Public, context: Context) -> Steps:
    """Return the users' heads, raw corrections Xᵀe, and the factors by which these are multiplied."""
    (d, k), most, centered = query.basis.shape, query.sparsity.most, bool(query.centered)
    users = Users.of(span, public.directions, plain=context.plain)
    model = Model(most, 0 if query.shared_weight else k, centered)
    if query.shared_weight:
        users.targets, users.along = users.targets - users.along[:, 0], users.along[:, :0]
    scale = _inverse_sizes(users, centered)
    sizes = query.sparsity.sizes.tolist()
    wanted = _chosen_sizes(users, scale, model, sizes) if query.sparsity.chosen else None
    fit = fit_users(users, scale, model, STAGES, query.swaps, wanted)
    heads = torch.ones_like(users.present)[:, None] if query.shared_weight else fit.kept[:, :k]
    fixed = model.fixed + int(centered)
    free = torch.where(users.counts > fixed, users.counts - fixed - fit.sizes, 0)
    quarter = users.only(users.places % 4 == 0)
    spread = quarter.X.to(torch.float64)
    if centered:
        spread = spread - (users.total(users.X.to(torch.float64)) / users.present[:, None])[quarter.owner]
    energy = quarter.total((spread * public.scale).square()).sum(dim=1) / (quarter.present * d)
    usable = (free > 0) & (energy > 0)
    return Steps(heads, fit.pull(), torch.where(usable, 1.0 / (free * energy) / public.c, 0.0))


def _inverse_sizes(users: Users, centered: bool) -> torch.Tensor:
    """Return 1/size of each feature on each user's rows; 0 if it is constant."""
    rows, means = users.X.to(torch.float64), users.present.new_zeros(())
    if centered:
        rows, means = users.centred(rows)
    sizes = (users.total(rows.square()) / users.present[:, None]).sqrt()
    return torch.where(sizes > CONSTANT * means.abs(), 1.0 / sizes, 0.0)


def _chosen_sizes(users: Users, scale: torch.Tensor, model: Model, sizes: list[int]) -> torch.Tensor:
    """Return each user's number of coordinates: :func:`tacitly.methods.low_rank_sparse.array_choices.chosen_sizes`."""
    counts, n = users.counts, len(users.counts)
    folds = counts.clamp(1, FOLDS)
    fold_of = users.places % folds[users.owner]
    able = model.affordable(counts)
    fewest = counts - torch.div(counts + folds - 1, folds, rounding_mode="floor")  # rows without the largest part
    allowed = torch.minimum(model.affordable(fewest), able)
    errors, squares = (users.present.new_zeros((n, len(sizes))) for _ in range(2))
    for fold in range(FOLDS):
        out = fold_of == fold
        training, left_out = users.only(~out & (fold < folds)[users.owner]), users.only(out)
        for number, size in enumerate(sizes):
            stages = min(size, _FOLD_STAGES)
            fit = fit_users(training, scale, replace(model, most=size), stages, _FOLD_SWAPS)
            left = fit.residuals(left_out).square()[:, None]
            found = left_out.total(torch.cat([left, left.square()], dim=1))
            errors[:, number] += found[:, 0]
            squares[:, number] += found[:, 1]
    limits = torch.tensor(sizes, device=counts.device)
    errors = torch.where(limits > allowed[:, None], math.inf, errors)
    failed = errors.isnan().any(dim=1)
    least, square = torch.where(failed, torch.nan, errors[:, 0]), squares[:, 0]
    for number in range(1, len(sizes)):
        smaller = errors[:, number] < least
        least, square = torch.where(smaller, errors[:, number], least), torch.where(smaller, squares[:, number], square)
    spread = (square - least * least / users.present).clamp(min=0.0).sqrt()
    enough = least + ROUNDING * users.total(users.targets.square())
    none = (errors[:, 0] <= enough + DOUBT * spread) | (able == 0)
    chosen = torch.zeros_like(counts)
    for number in range(len(sizes) - 1, 0, -1):
        chosen = torch.where(errors[:, number] <= enough + spread, sizes[number], chosen)
    return torch.where(none, 0, chosen)
