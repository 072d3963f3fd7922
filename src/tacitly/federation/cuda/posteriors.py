"""Mixed effects on a device: moments of users' rows, posteriors under a public prior, and the queries about them.

Mirrors ``posterior``, ``queries`` and ``variance_queries`` of :mod:`tacitly.methods.mixed_effects`, in double
precision. Moments (ZᵀZ, Zᵀt, tᵀt of each user) and the inverses that posteriors need are kept on the device between
releases that share them, where there is room. They are private like the rows, and computed from one user's rows each:
by a Triton kernel or by :func:`~tacitly.federation.cuda.rows.per_user`, then one p×p matrix per user.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import torch

from tacitly.arrays import Array
from tacitly.federation.cuda.contributions import Norms, clipped
from tacitly.federation.cuda.forms import Context
from tacitly.federation.cuda.grams import grams_of
from tacitly.federation.cuda.rows import Own, Span, row_sums
from tacitly.federation.cuda.sums import BlockSums, norms_of, numbers, packed


@dataclass(frozen=True)
class Key:
    """What kept inverses depend on."""

    units: Any
    root: Array
    noise: float


@dataclass(frozen=True)
class Found:
    """Posteriors of several users: :class:`tacitly.methods.mixed_effects.posterior.Posteriors`."""

    means: torch.Tensor
    covariances: torch.Tensor
    information: torch.Tensor
    residuals: torch.Tensor
    rows: torch.Tensor


Of = Callable[[Span, Found], torch.Tensor]


def information(query: Any, context: Context) -> BlockSums:
    """Return the form of a user's information about the population's weights."""
    return _form(query, query.prior, context, _information(query, context, query.metric, query.prior))


def information_norms(query: Any, context: Context) -> Norms:
    """Return the form of norms of the information."""
    return _norms(query, query.prior, context, _information(query, context, query.metric, query.prior))


def information_shares(query: Any, context: Context) -> BlockSums:
    """Return the form of the roots of the weights' shares in a user's information."""

    def of(span: Span, found: Found) -> torch.Tensor:
        sizes = found.information.diagonal(dim1=1, dim2=2).clamp(min=0.0)
        totals = sizes.sum(dim=1)
        usable = (found.rows > 0) & (totals > 0) & torch.isfinite(totals)
        shares = torch.where(usable[:, None], sizes, 0.0) / torch.where(usable, totals, 1.0)[:, None]
        return shares.sqrt()

    return _form(query, query.prior, context, of)


def measured_score(query: Any, context: Context) -> BlockSums:
    """Return the form of a clipped score, with four numbers that say what the clip did."""
    score, clip, extra = _score(query.score, context), query.clip, _home(query)._EXTRA
    mask, shared = numbers(query.constant, context.device), query.shared

    def of(span: Span, found: Found) -> torch.Tensor:
        scores, freedoms = score(span, found)
        norms = norms_of(scores)
        factors = torch.where(norms > 0, clip / norms.clamp(min=clip), 0.0)
        length = (norms / clip).clamp(max=1.0).square()
        units = torch.where(norms > 0, 1.0 / norms, 0.0)[:, None] * scores
        constant = (units.square() * mask).sum(dim=1).clamp(max=1.0)
        shares = torch.stack([1.0 - constant, constant], dim=1)
        ranks = torch.stack([(freedoms - shared).clamp(min=1.0), torch.full_like(norms, max(shared, 1.0))], dim=1)
        slopes = factors[:, None] * (1.0 - (norms > clip).to(torch.float64)[:, None] * shares / ranks)
        lengths = length[:, None] * shares
        return torch.cat([scores * factors[:, None], extra * clip * torch.cat([slopes, lengths], dim=1)], dim=1)

    return _form(query.score, query.score.prior, context, of)


def score_norms(query: Any, context: Context) -> Norms:
    """Return the form of norms of scores."""
    score = _score(query, context)
    return _norms(query, query.prior, context, lambda span, found: score(span, found)[0])


def log_variances(query: Any, context: Context) -> BlockSums:
    """Return the form of logarithms of sizes of groups of coordinates, as points on circles."""
    reaches = _home(query).REACHES
    ratios = _ratios(query, context)

    def of(span: Span, found: Found) -> torch.Tensor:
        ratio, freedom, weight = ratios(found)
        bias = torch.digamma(freedom / 2.0) - torch.log(freedom / 2.0)
        octaves = (torch.log(ratio.clamp(min=1e-300)) - bias) / math.log(2.0)
        reach = numbers(reaches, context.device)
        angle = torch.minimum(torch.maximum(octaves, -reach), reach) * (0.9 * math.pi / reach)
        return (torch.stack([angle.cos(), angle.sin()], dim=2) * weight[:, :, None]).flatten(1)

    return _form(query, query.prior, context, of)


def variances(query: Any, context: Context) -> BlockSums:
    """Return the form of sizes of groups of coordinates less their expectation, with the weights they carry."""
    home, ratios = _home(query), _ratios(query, context)
    places, values = numbers(np.log(home._FREEDOM), context.device), numbers(home._CAPPED, context.device)

    def of(span: Span, found: Found) -> torch.Tensor:
        ratio, freedom, weight = ratios(found)
        excess = (ratio.clamp(max=home._CAP) - interpolated(torch.log(freedom), places, values)) * weight
        return torch.stack([excess, weight], dim=2).flatten(1)

    return _form(query, query.prior, context, of)


def spread_norms(query: Any, context: Context) -> Norms:
    """Return the form of norms of the spread u uᵀ − J."""
    return _norms(query, query.prior, context, lambda span, found: _spread(found))


def measured_spread(query: Any, context: Context) -> BlockSums:
    """Return the form of the clipped spread, with squares of J's diagonal under the same factor."""

    def of(span: Span, found: Found) -> torch.Tensor:
        spread = _spread(found)
        factors = torch.where(found.rows > 0, query.clip / norms_of(spread).clamp(min=query.clip), 0.0)
        diagonal = found.information.diagonal(dim1=1, dim2=2)
        return torch.cat([spread, diagonal.square()], dim=1) * factors[:, None]

    return _form(query, query.prior, context, of)


def coverage(query: Any, context: Context) -> BlockSums:
    """Return the form of how well posteriors predict rows that they have not seen."""
    home, prior, device = _home(query), query.prior, context.device
    mean, root = numbers(prior.mean, device), numbers(prior.root, device)
    reached = numbers(home.REACHED, device)
    public = (numbers(part, device) for part in (home._OUTSIDE, home._WEIGHTS))
    outside, weights_of = public

    def of(span: Span, found: Found) -> torch.Tensor:
        own = Own(span)
        design, targets = _design(own, query.units, device)
        weights = mean + found.means @ root.T
        spread = root @ found.covariances @ root.T
        fitted = row_sums(design * weights[own.owner])
        leverage = torch.zeros_like(fitted)
        for column in range(design.shape[1]):
            leverage += design[:, column] * row_sums(spread[:, column][own.owner] * design)
        free = (1.0 - leverage / prior.noise).clamp(min=1e-9)
        residuals = targets - fitted
        misfits = found.residuals / prior.noise + found.means.square().sum(dim=1)
        limits = home.reaches(misfits, found.rows, reached)
        far = (residuals.square() / (prior.noise * free))[:, None] > limits[own.owner]
        factor = (own.present / (own.present - 1.0).clamp(min=1.0))[own.owner]
        alone = own.centered(targets[:, None])[:, 0] * factor
        columns = [far.to(torch.float64), alone.square()[:, None], (residuals / free).square()[:, None]]
        sums = own.total(torch.cat(columns, dim=1))
        return _covered(sums[:, :-2], sums[:, -2], sums[:, -1], found.rows, prior.noise, outside, weights_of, home)

    return _form(query, prior, context, of)


def _covered(
    counts: torch.Tensor,
    own: torch.Tensor,
    shared: torch.Tensor,
    rows: torch.Tensor,
    noise: float,
    outside: torch.Tensor,
    weights: torch.Tensor,
    home: Any,
) -> torch.Tensor:
    comparable = (rows > 1) & torch.isfinite(own) & torch.isfinite(shared)
    difference = torch.where(comparable, own, 0.0) - torch.where(comparable, shared, 0.0)
    advantage = (difference / (2.0 * noise * rows.clamp(min=1.0))).clamp(-1.0, 1.0)
    counted = torch.where(comparable, 1.0, home._SINGLE)[:, None]
    shares = (counts / rows.clamp(min=1.0)[:, None] - outside) * counted + outside - home._MIDDLE
    columns = torch.cat([shares, advantage[:, None], comparable[:, None].to(torch.float64)], dim=1)
    return columns * weights * (rows > 0)[:, None]


def interpolated(at: torch.Tensor, places: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Return :func:`numpy.interp`."""
    right = torch.searchsorted(places, at.contiguous()).clamp(1, len(places) - 1)
    low, high = places[right - 1], places[right]
    share = ((at - low) / (high - low)).clamp(0.0, 1.0)
    return values[right - 1] + share * (values[right] - values[right - 1])


def _information(query: Any, context: Context, metric: Array, prior: Any) -> Of:
    turned = numbers(np.linalg.solve(prior.root, metric), context.device)

    def of(span: Span, found: Found) -> torch.Tensor:
        matrices = turned.T @ found.information @ turned
        return packed(matrices) * _weights(matrices, found)[:, None]

    return of


def _score(query: Any, context: Context) -> Callable[[Span, Found], tuple[torch.Tensor, torch.Tensor]]:
    """Return the form of scores, and of in about how many directions users have information."""
    about = numbers(np.linalg.solve(query.prior.root, query.information_metric), context.device)
    turned = numbers(np.linalg.solve(query.prior.root, query.metric), context.device)
    clip = query.information_clip

    def of(span: Span, found: Found) -> tuple[torch.Tensor, torch.Tensor]:
        matrices = about.T @ found.information @ about
        weights, norms = _weights(matrices, found), norms_of(packed(matrices))
        known = (weights > 0) & (norms > 0)
        ratios = 1.0 / (torch.where(known, weights, 1.0).square() * torch.where(known, norms, 1.0))
        weights = weights * (clip / (norms * weights).clamp(min=clip))
        return (found.means @ turned) * weights[:, None], ratios.square().clamp(min=1.0)

    return of


def _weights(matrices: torch.Tensor, found: Found) -> torch.Tensor:
    """Return 1/√trace, zero for a user without rows."""
    traces = matrices.diagonal(dim1=1, dim2=2).sum(dim=1)
    return torch.where((found.rows > 0) & (traces > 0), traces.clamp(min=1e-300).rsqrt(), 0.0)


def _spread(found: Found) -> torch.Tensor:
    outer = found.means[:, :, None] * found.means[:, None, :]
    return packed(outer - found.information) * (found.rows > 0)[:, None]


def _ratios(query: Any, context: Context) -> Callable[[Found], tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Return size over expected size, degrees of freedom and weight of each group, and of the noise."""
    home = _home(query)
    groups = [torch.as_tensor(np.flatnonzero(query.groups == group)).to(context.device) for group in range(home.GROUPS)]

    def of(found: Found) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        sizes, traces, squares = [], [], []
        for own in groups:
            inside = found.information[:, own][:, :, own]
            sizes.append(found.means[:, own].square().sum(dim=1))
            traces.append(inside.diagonal(dim1=1, dim2=2).sum(dim=1))
            squares.append(inside.square().sum(dim=(1, 2)))
        rows, whole = found.rows, found.information.diagonal(dim1=1, dim2=2).sum(dim=1)
        left = (rows - whole).clamp(min=1e-9)
        trace, square = torch.stack(traces, dim=1), torch.stack(squares, dim=1)
        ratio = torch.stack(sizes, dim=1) / trace.clamp(min=1e-300)
        ratio = torch.cat([ratio, (found.residuals / (query.prior.noise * left))[:, None]], dim=1)
        apart = rows - 2.0 * whole + square.sum(dim=1)
        own = left.square() / torch.maximum(apart, left.square() / rows.clamp(min=1.0))
        freedom = torch.cat([trace.square() / square.clamp(min=1e-300), own[:, None]], dim=1)
        trace = torch.cat([trace, left[:, None]], dim=1)
        weight = trace / (trace + home._WEIGHT) * (found.rows > 0)[:, None]
        return ratio, freedom.clamp(min=0.5), weight

    return of


def _form(query: Any, prior: Any, context: Context, of: Of) -> BlockSums:
    return clipped(_about_posteriors(query, prior, context, of), _width(query.units))


def _norms(query: Any, prior: Any, context: Context, of: Of) -> Norms:
    return Norms(_about_posteriors(query, prior, context, of), _width(query.units))


def _about_posteriors(query: Any, prior: Any, context: Context, of: Of) -> Callable[[Span], torch.Tensor]:
    """Return what ``of`` makes of the posteriors of a span."""

    def contributions(span: Span) -> torch.Tensor:
        return of(span, posteriors(span, query.units, prior, context))

    return contributions


def _width(units: Any) -> int:
    """Return how many numbers a user's matrices take: they count where users are divided into parts."""
    return int(8 * (units.size + 1) ** 2)


def posteriors(span: Span, units: Any, prior: Any, context: Context) -> Found:
    """Return the posteriors of a span's users; a user without rows has the prior."""
    device = context.device
    mean, root, noise = numbers(prior.mean, device), numbers(prior.root, device), prior.noise
    grams, rows = moments(span, units, context)
    grams, rights, squares = grams[:, :-1, :-1], grams[:, :-1, -1], grams[:, -1, -1]
    moved = rights - grams @ mean
    squares = squares - (rights + moved) @ mean
    grams, rights = root.T @ grams @ root, moved @ root

    def inverses() -> torch.Tensor:
        found, failed = torch.linalg.inv_ex(torch.eye(len(mean), dtype=torch.float64, device=device) + grams / noise)
        usable = (failed == 0) & torch.isfinite(found).all(dim=2).all(dim=1)
        return torch.where(usable[:, None, None], found, 0.0)

    covariances = _kept(context, "inverses", Key(units, prior.root, float(noise)), span, units, inverses)
    rows = torch.where(covariances.diagonal(dim1=1, dim2=2).sum(dim=1) > 0, rows, 0.0)
    information = covariances @ (grams / noise)
    information = (information + information.transpose(1, 2)) / 2.0
    means = (covariances @ (rights / noise)[:, :, None])[:, :, 0]
    fitted = (grams @ means[:, :, None])[:, :, 0]
    residuals = squares - (means * (2.0 * rights - fitted)).sum(dim=1)
    return Found(means, covariances, information, residuals.clamp(min=0.0), rows)


def moments(span: Span, units: Any, context: Context) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the Gram matrix of (z, target) of each user, and numbers of rows; zeros for numbers that are no use."""

    def grams() -> torch.Tensor:
        own = Own(span)
        design, targets = _design(own, units, context.device)
        joint = torch.cat([design, targets[:, None]], dim=1)
        found = grams_of(joint, own, plain=context.plain)
        usable = torch.isfinite(found).all(dim=2).all(dim=1)
        return torch.where(usable[:, None, None], found, torch.nan)

    found = _kept(context, "moments", units, span, units, grams)
    usable = torch.isfinite(found[:, -1, -1])
    rows = torch.where(usable, span.offsets.diff(), 0).to(torch.float64)
    return torch.where(usable[:, None, None], found, 0.0), rows


def _kept(
    context: Context, name: str, key: Any, span: Span, units: Any, make: Callable[[], torch.Tensor]
) -> torch.Tensor:
    """Return one matrix per user, kept on the device where there is room: sizes are public."""
    if 8 * context.n_users * (units.size + 1) ** 2 > context.room:
        return make()
    return context.keep(name, key, (span.first, span.users), make)


def _design(own: Own, units: Any, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return rows as (1, standardised features) and standardised targets, as the units say."""
    used = torch.as_tensor(units.used).to(device)
    center, gain = numbers(units.center[units.used], device), numbers(units.gain[units.used], device)
    rows = (own.rows[:, used] - center) * gain
    rows = torch.where(torch.isfinite(rows), rows, 0.0)
    size = rows.abs()
    bounded = (units.knee * (1.0 + torch.log(size.clamp(min=units.knee) / units.knee))).clamp(max=2.0 * units.knee)
    rows = torch.where(size <= units.knee, rows, torch.sign(rows) * bounded)
    if units.size > len(used):
        rows = torch.cat([torch.ones_like(own.targets)[:, None], rows], dim=1)
    return rows, (own.targets - units.level) / (units.spread or 1.0)


def _home(query: Any) -> Any:
    """Return the query's own module, for its public constants."""
    return import_module(type(query).__module__)
