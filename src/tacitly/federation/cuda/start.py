"""The releases that start Private FedRep on a device: the moment of features, and votes for directions.

All are sums of one positive semi-definite matrix of norm at most one per user. Matrices of a user (its Gram matrix, the
ridge system) are computed in double precision, from that user's rows alone; every array after that has one matrix per
user. Sums over users come after the clip.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from tacitly.federation.cuda.forms import Context
from tacitly.federation.cuda.grams import grams_of
from tacitly.federation.cuda.rows import Own, Span, in_spans, thinned
from tacitly.federation.cuda.sums import BlockSums, in_blocks, numbers, packed, taking_part
from tacitly.privacy.clipping import GUARD, LEAST

# As in methods.shared.whitening, whose moments of single-precision rows reserve a part of the norm: both add the same.
_SINGLE, _FEW_FEATURES = 2.0**-16, 128


def feature_moment(query: Any, context: Context) -> BlockSums:
    """Return the form of the second moment of a user's features, scaled to norm one."""
    gains = getattr(query, "gains", None)
    factors = None if gains is None else numbers(gains, context.device)
    d = query.n_features

    def sums(span: Span, bound: float, size: int, who: torch.Tensor | None) -> torch.Tensor:
        weight, found = min(1.0, bound * (1.0 - GUARD)), []
        if span.X.dtype == torch.float32 and d <= _FEW_FEATURES:
            weight *= 1.0 - _SINGLE * math.sqrt(d)
        for part, w in in_spans(span, who, size, d * d):
            own = Own(thinned(part, query.most_rows))
            rows = own.rows if factors is None else own.rows * factors
            rows = own.centered(rows) if query.centered else rows
            moments = grams_of(rows, own, plain=context.plain)
            norms = torch.linalg.vector_norm(moments.flatten(1), dim=1)
            weights = torch.where(torch.isfinite(norms) & (norms.square() > LEAST), weight / norms, 0.0)
            found.append(_weighted(moments, taking_part(weights, w), size))
        return torch.cat(found)

    return sums


def direction_vote(query: Any, context: Context) -> BlockSums:
    """Return the form of the projector on the direction of a user's ridge regression, in whitened coordinates."""
    ridge = 0.3  # as in methods.shared.direction_votes
    whitening, device = query.whitening, context.device
    scale, across = numbers(whitening.scale, device), numbers(whitening.directions, device)
    gains, d = numbers(whitening.gains, device), len(whitening.scale)
    eye = torch.eye(d, dtype=torch.float64, device=device)
    turn = scale[:, None] * (eye + (across * gains) @ across.T)

    def directions(part: Span, length: float, w: torch.Tensor | None) -> torch.Tensor:
        own = Own(thinned(part, query.most_rows))
        rows, targets = own.rows, own.targets[:, None]
        alike = torch.zeros(part.users, dtype=torch.bool, device=device)
        if query.centered or query.varied:
            alike = _all_equal(targets, own)
        if query.centered:
            rows, targets = own.centered(rows), own.centered(targets)
        # Whitening a user's matrix is the same as whitening its rows, and its shape is public.
        moments = turn.T @ grams_of(rows, own, plain=context.plain) @ turn
        right = (own.total(rows * targets) @ turn)[:, :, None]
        penalty = ridge * moments.diagonal(dim1=1, dim2=2).sum(dim=1) / own.present
        usable = torch.isfinite(penalty) & (penalty > 0) & torch.isfinite(right).all(dim=1)[:, 0] & ~alike
        moments = torch.where(usable[:, None, None], moments + penalty[:, None, None] * eye, eye)
        lower, failed = torch.linalg.cholesky_ex(moments)
        solved = torch.cholesky_solve(torch.where(usable[:, None, None], right, 0.0), lower)[:, :, 0]
        norms = torch.linalg.vector_norm(solved, dim=1)
        usable = usable & (failed == 0) & torch.isfinite(norms) & (norms.square() > LEAST)
        factors = taking_part(torch.where(usable, length / norms, 0.0), w)
        return torch.where((factors > 0)[:, None], solved, 0.0) * factors[:, None]

    def sums(span: Span, bound: float, size: int, who: torch.Tensor | None) -> torch.Tensor:
        length, found = min(1.0, bound * (1.0 - GUARD)) ** 0.5, []
        for part, w in in_spans(span, who, size, 4 * d * d):
            blocks = in_blocks(directions(part, length, w), size)
            found.append(packed(blocks.transpose(1, 2) @ blocks))
        return torch.cat(found)

    return sums


def class_vote(query: Any, context: Context) -> BlockSums:
    """Return the form of the mean of projectors, one for each class against the rest."""
    vote, classes = direction_vote(query, context), query.loss.columns

    def sums(span: Span, bound: float, size: int, who: torch.Tensor | None) -> torch.Tensor:
        start, stop = (int(edge) for edge in span.offsets[[0, -1]])
        codes, total = span.y[start:stop].to(torch.float64), torch.zeros(())
        for number in range(classes):
            if classes > 1:
                targets = (codes == number).to(torch.float64) - 1.0 / classes
            else:
                targets = 2.0 * codes - 1.0 if query.loss.classifies else codes.clamp(min=0.0).log1p()
            own = Span(span.first, span.X[start:stop], targets, span.offsets - start)
            found = vote(own, bound / classes, size, who)
            total = found if number == 0 else total + found
        return total

    return sums


def _all_equal(targets: torch.Tensor, own: Own) -> torch.Tensor:
    """Whether a user's targets are all equal; True for a user without rows."""
    if not len(targets):
        return torch.ones(len(own.counts), dtype=torch.bool, device=targets.device)
    first = targets[own.offsets[:-1].clamp(max=len(targets) - 1)]
    return own.total((targets - first[own.owner]).abs())[:, 0] == 0


def _weighted(matrices: torch.Tensor, weights: torch.Tensor, size: int) -> torch.Tensor:
    """Add up each block's matrices times their weights; nothing where the weight is zero."""
    values = torch.where((weights > 0)[:, None], packed(matrices), 0.0)
    blocks = in_blocks(torch.cat([values, weights[:, None]], dim=1), size)
    return torch.bmm(blocks[:, :, -1:].transpose(1, 2), blocks[:, :, :-1])[:, 0]
