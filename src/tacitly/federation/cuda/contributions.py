"""Device forms of queries that are defined by contributions of many users at once: one row per user, then the clip.

Each function mirrors the ``contributions`` of the query that it is named after, in double precision and in PyTorch
alone. A user's rows are added up by themselves (:func:`~tacitly.federation.cuda.rows.per_user`), and every array after
that has one entry per user, so that shapes depend on public numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from tacitly.federation.cuda.forms import Context, norms_form_of
from tacitly.federation.cuda.grams import grams_of
from tacitly.federation.cuda.rows import Own, Span, in_spans
from tacitly.federation.cuda.sums import BlockSums, clipped_sums, norms_of, numbers

Rows = Callable[[Span], torch.Tensor]
"""From a span to one row per user."""


def clipped(contributions: Rows, width: int) -> BlockSums:
    """Return the form that clips contributions and adds them up; ``width`` numbers per row are held."""

    def sums(span: Span, bound: float, size: int, who: torch.Tensor | None) -> torch.Tensor:
        parts = in_spans(span, who, size, width)
        return torch.cat([clipped_sums(contributions(part), bound, size, w) for part, w in parts])

    return sums


def circle(logarithm: torch.Tensor, reach: float) -> torch.Tensor:
    """Return points on the unit circle: :func:`tacitly.methods.shared.batch.circle`."""
    angle = logarithm.clamp(-reach, reach) * (0.9 * math.pi / reach)
    return torch.stack([angle.cos(), angle.sin()], dim=-1)


def typical_norm(query: Any, context: Context) -> BlockSums | None:
    """Return the form of the logarithm of the norm of another query's contribution, as a point."""
    norms = norms_form_of(query.query, context)
    if norms is None:
        return None

    def points(span: Span) -> torch.Tensor:
        found = norms(span)
        seen = torch.isfinite(found) & (found > 0)
        octaves = torch.log2(torch.where(seen, found, 1.0)) - math.log2(query.around)
        on_circle: torch.Tensor = circle(octaves, query.reach) * seen[:, None]
        return on_circle

    return clipped(points, norms.width)


def column_scales(query: Any, context: Context) -> BlockSums:
    """Return the form of orders of magnitude of a user's columns."""
    reach, constant = 50.0, 1e-12  # as in methods.shared.column_scales

    def contributions(span: Span) -> torch.Tensor:
        own = Own(span)
        sizes, rows = own.mean(own.rows.abs()), own.rows
        if query.centered:
            rows = own.centered(rows)
        unit = torch.where(torch.isfinite(sizes) & (sizes > 0), sizes, 1.0)
        spread = own.mean((rows / unit[own.owner]).square()).sqrt()
        seen = torch.isfinite(spread) & torch.isfinite(sizes) & (spread > constant)
        points = circle(torch.log2(torch.where(seen, spread, 1.0)) + torch.log2(unit), reach) * seen[..., None]
        return torch.cat([points[..., 0], points[..., 1]], dim=1)

    return clipped(contributions, 4 * query.n_features)


def magnitudes(query: Any, context: Context) -> BlockSums:
    """Return the form of orders of magnitude of columns, and which are all 0 or 1."""
    weights, octaves = (numbers(part, context.device) for part in (query.weights * query.used, query.octaves))

    def contributions(span: Span) -> torch.Tensor:
        own = Own(span)
        columns = _columns(own)
        finite = torch.isfinite(columns)
        seen = finite & (columns != 0)
        points = circle(torch.log2(torch.where(seen, columns, 1.0).abs()) - octaves, query.reach) * seen[..., None]
        counts = own.total(seen.to(torch.float64)).clamp(min=1.0)
        cosines, sines = own.total(points[..., 0]) / counts, own.total(points[..., 1]) / counts
        others = own.total((seen & (columns != 1)).to(torch.float64))
        binary = (others == 0) & (own.total(finite.to(torch.float64)) > 0)
        binary[:, -1] = False
        means = [torch.where(binary, 0.0, mean) * weights for mean in (cosines, sines)]
        return torch.cat([*means, binary * weights], dim=1)

    return clipped(contributions, 6 * len(query.used))


def angles(query: Any, context: Context) -> BlockSums:
    """Return the form of mean points of (x − center)/period on the circle."""
    used, center, period = (numbers(part, context.device) for part in (query.used, query.center, query.period))
    weights = numbers(query.weights * query.used, context.device)

    def contributions(span: Span) -> torch.Tensor:
        own = Own(span)
        columns = _columns(own)
        seen = torch.isfinite(columns) & (used > 0)
        angle = torch.remainder((torch.where(seen, columns, center) - center) / period, 2.0) * math.pi
        counts = own.total(seen.to(torch.float64)).clamp(min=1.0)
        return torch.cat([own.total(part * seen) / counts * weights for part in (angle.cos(), angle.sin())], dim=1)

    return clipped(contributions, 6 * len(query.used))


def shares(query: Any, context: Context) -> BlockSums:
    """Return the form of how often each indicator of a text column is set."""
    used = numbers(query.used, context.device)

    def contributions(span: Span) -> torch.Tensor:
        own = Own(span)
        return own.mean(torch.where(torch.isfinite(own.rows), own.rows, 0.0) * used)

    return clipped(contributions, 2 * len(query.used))


def central_step(query: Any, context: Context) -> BlockSums:
    """Return the form of a user's correction of the central model and its weight, together of norm one."""
    correction = _correction(query.correction, context)

    def contributions(span: Span) -> torch.Tensor:
        scaled = correction(span) / query.scale
        norms = norms_of(scaled)
        length = torch.hypot(norms, torch.ones_like(norms))
        joint = torch.cat([scaled, torch.ones_like(norms)[:, None]], dim=1) / length[:, None]
        return torch.where((torch.isfinite(length) & (norms > 0))[:, None], joint, 0.0)

    return clipped(contributions, 2 * len(query.correction.model) ** 2)


class Norms:
    """The norms of a query's contributions; ``width`` numbers per row are held."""

    def __init__(self, contributions: Rows, width: int) -> None:
        self._contributions, self.width = contributions, width

    def __call__(self, span: Span) -> torch.Tensor:
        """Return one norm per user."""
        return norms_of(self._contributions(span))


def correction_norms(query: Any, context: Context) -> Norms:
    """Return the form of how far a user's weights are from the central model."""
    return Norms(_correction(query, context), 2 * len(query.model) ** 2)


def within_norms(query: Any, context: Context) -> Norms:
    """Return the form of the variance of a user's own targets."""
    units = query.coordinates_of

    def contributions(span: Span) -> torch.Tensor:
        own = Own(span)
        targets = ((own.targets - units.level) / (units.spread or 1.0))[:, None]
        left = own.total(own.centered(targets).square())[:, 0]
        found = torch.where(own.counts > 1, left / (own.counts - 1).clamp(min=1), 0.0)
        return found[:, None]

    return Norms(contributions, query.coordinates_of.center.size + 4)


def _correction(query: Any, context: Context) -> Rows:
    """Return corrections, from each user's Gram matrix: whitening it is the same as whitening the rows."""
    whitening, device = query.whitening, context.device
    across, gains = numbers(whitening.directions, device), numbers(whitening.gains, device)
    scale = numbers(whitening.scale, device)
    turn = scale[:, None] * (torch.eye(len(across)).to(across) + (across * gains) @ across.T)
    weights = turn @ numbers(query.model, device)

    def contributions(span: Span) -> torch.Tensor:
        own = Own(span)
        rows, targets = own.rows, own.targets[:, None]
        if query.centered:
            rows, targets = own.centered(rows), own.centered(targets)
        grams = grams_of(rows, own, plain=context.plain)
        pull = (own.total(rows * targets) - grams @ weights) @ turn
        squares = grams.diagonal(dim1=1, dim2=2) * scale.square()
        free = own.counts - int(query.centered)
        varied = (squares > 1e-12 * squares.amax(dim=1, keepdim=True)).sum(dim=1)
        energy = squares.sum(dim=1) / (own.present * varied.clamp(min=1))
        usable = (free > 0) & torch.isfinite(energy) & (energy > 0)
        size = torch.where(usable, free * energy, 1.0)
        return torch.where(usable[:, None], pull / size[:, None], 0.0)

    return contributions


def _columns(own: Own) -> torch.Tensor:
    return torch.cat([own.rows, own.targets[:, None]], dim=1)
