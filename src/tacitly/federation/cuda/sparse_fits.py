"""Fits of users' models in AMHT-LRS on a device: weights on a public basis and a few personal coordinates.

What :mod:`tacitly.methods.low_rank_sparse.array_fits` does, with its names, in double precision; the products of a
user's columns are added up by a Triton kernel, the rest is PyTorch. No number of one user depends on another's rows, to
the last bit: rows are changed entry by entry and added up user by user, every array after that has one entry per user,
and loops have public lengths.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from tacitly.federation.cuda.grams import grams_of
from tacitly.federation.cuda.rows import Span, per_user, row_sums

RIDGE, ROUNDING = 1e-12, 1e-12  # as in methods.low_rank_sparse.array_fits
_NOTHING = 0x0010000000000000  # the smallest normal number as an integer: keys below it are of zeros
_MOST_ENTRYWISE = 32  # columns of a system that is solved entry by entry: beyond, work grows as their third power


class Users:
    """The rows of a span in their own precision, and whose they are. ``plain``: by PyTorch alone."""

    def __init__(
        self, X: torch.Tensor, targets: torch.Tensor, along: torch.Tensor, counts: torch.Tensor, *, plain: bool
    ) -> None:
        self.X, self.targets, self.along, self.counts, self.plain = X, targets, along, counts, plain
        self.offsets = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        self.present = counts.clamp(min=1).to(torch.float64)
        self.owner = torch.repeat_interleave(torch.arange(len(counts), device=X.device), counts, output_size=len(X))

    @classmethod
    def of(cls, span: Span, basis: torch.Tensor, *, plain: bool) -> Users:
        """Return the users of a span, whose rows are projected on a basis (directions as rows)."""
        start, stop = (int(edge) for edge in span.offsets[[0, -1]])
        X = span.X[start:stop]
        along = torch.stack([row_sums(X * direction) for direction in basis], dim=1)
        return cls(X, span.y[start:stop].to(torch.float64), along, span.offsets.diff(), plain=plain)

    def only(self, rows: torch.Tensor) -> Users:
        """Return all users with some of their rows; which ones is a function of places, not of numbers."""
        counts = per_user(rows.to(torch.float64), self.counts).to(torch.int64)
        return Users(self.X[rows], self.targets[rows], self.along[rows], counts, plain=self.plain)

    def total(self, values: torch.Tensor) -> torch.Tensor:
        """Add up the rows of each user."""
        return per_user(values, self.counts)

    def largest(self, values: torch.Tensor) -> torch.Tensor:
        """Return each user's largest number; zero for a user without rows, or with no number above it."""
        if not len(values):
            return values.new_zeros(len(self.counts))
        found = torch.segment_reduce(values[:, None], "max", lengths=self.counts, axis=0, unsafe=True, initial=0.0)
        return found[:, 0]

    def centred(self, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return values around the mean of each user's rows, and the means."""
        means = self.total(values) / self.present.reshape(-1, *[1] * (values.ndim - 1))
        return values - means[self.owner], means

    @property
    def places(self) -> torch.Tensor:
        """The place of every row among its user's."""
        return torch.arange(len(self.X), device=self.X.device) - self.offsets[:-1][self.owner]


@dataclass(frozen=True)
class Model:
    """What users fit: the most personal coordinates, the number of weights, and whether they have an intercept."""

    most: int
    fixed: int
    centered: bool

    def affordable(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the number of coordinates: one per two rows in excess of the other columns."""
        return torch.div(rows - self.fixed - int(self.centered), 2, rounding_mode="floor").clamp(0, self.most)


class Columns(NamedTuple):
    """Projections on the basis, then the selected features: one row per row, zero where a user has fewer."""

    values: torch.Tensor
    means: torch.Tensor  # one row per user; zeros without an intercept


def fit_users(
    users: Users, scale: torch.Tensor, model: Model, stages: int, swaps: int, wanted: torch.Tensor | None = None
) -> Fit:
    """Fit all users: :func:`tacitly.methods.low_rank_sparse.array_fits.fit_in_arrays`."""
    fit = Fit(users, scale, model)
    if wanted is None:
        wanted = model.affordable(users.counts)
    parts = wanted.clamp(max=stages)
    for stage in range(min(stages, model.most)):
        goals = torch.div(wanted * (stage + 1) + parts - 1, parts.clamp(min=1), rounding_mode="floor")
        goals = torch.where(stage < parts, goals, 0)
        fit.grow((goals - fit.sizes).clamp(min=0), -(-model.most // stages))
    for _ in range(swaps if model.most else 0):
        fit.swap()
    return fit


class Fit:
    """Fits of all users as they grow."""

    columns: Columns
    kept: torch.Tensor  # coefficients
    left: torch.Tensor  # residuals
    least: torch.Tensor  # sums of their squares

    def __init__(self, users: Users, scale: torch.Tensor, model: Model) -> None:
        self.users, self.scale, self.model = users, scale, model
        n, self.most = len(users.counts), model.most
        self.targets, self.level = self._centred(users.targets)
        self.along = Columns(*self._centred(users.along))
        self.support, self.sizes = users.counts.new_zeros((n, self.most)), torch.zeros_like(users.counts)
        self.active = torch.ones(n, dtype=torch.bool, device=users.X.device)
        self.mask = (1 << (users.X.shape[1] - 1).bit_length()) - 1
        self._solve_and_keep()

    def grow(self, goals: torch.Tensor, most: int) -> None:
        """Add to each support the coordinates most correlated with the residual, ``most`` at most."""
        keys = self._keys(self.pull() * self.scale)
        # Places without a feature point behind the last one.
        taken = torch.where(self._there, self.support, keys.shape[1])
        keys = torch.cat([keys, torch.zeros_like(keys[:, :1])], dim=1).scatter_(1, taken, 0)
        best = _largest(keys, min(most, keys.shape[1] - 1), self.mask)
        for place, (key, feature) in enumerate(best):
            chosen = (goals > place) & (key >= _NOTHING)
            at = torch.where(chosen, self.sizes, self.most)[:, None]  # behind the last place: nowhere
            wider = torch.cat([self.support, self.support[:, :1]], dim=1).scatter_(1, at, feature[:, None])
            self.support, self.sizes = wider[:, :-1].contiguous(), self.sizes + chosen
        self._solve_and_keep()

    def swap(self) -> None:
        """Try the largest of b + gradient as supports."""
        attempt = self._attempts()
        columns = self._columns(attempt)
        trial, tried, errors = self._solve(columns)
        better = self.active = self.active & (errors < self.least)
        rows = better[self.users.owner]
        self.kept = torch.where(better[:, None], trial, self.kept)
        self.left, self.least = torch.where(rows, tried, self.left), torch.where(better, errors, self.least)
        self.support = torch.where(better[:, None], attempt, self.support)
        self.columns = Columns(
            torch.where(rows[:, None], columns.values, self.columns.values),
            torch.where(better[:, None], columns.means, self.columns.means),
        )

    def pull(self) -> torch.Tensor:
        """Return Xᵀ times the residual of each user."""
        return self.users.total(self.users.X * self.left[:, None])

    def residuals(self, users: Users) -> torch.Tensor:
        """Return residuals of other rows of the same users."""
        owner = users.owner
        level = self.level
        for column in range(self.kept.shape[1]):
            level = level - self.kept[:, column] * self.columns.means[:, column]
        left = users.targets - level[owner]
        for column in range(self.model.fixed):
            left = left - self.kept[:, column][owner] * users.along[:, column]
        for place in range(self.most):
            value = torch.where(place < self.sizes, self.kept[:, self.model.fixed + place], 0.0)[owner]
            left = left - value * users.X.gather(1, self.support[:, place][owner][:, None])[:, 0]
        return left

    @property
    def _there(self) -> torch.Tensor:
        """Which places of the supports have a feature."""
        return torch.arange(self.most, device=self.sizes.device) < self.sizes[:, None]

    def _solve_and_keep(self) -> None:
        self.columns = self._columns(self.support)
        self.kept, self.left, self.least = self._solve(self.columns)

    def _attempts(self) -> torch.Tensor:
        """Return trial supports, in which coordinates that stay keep their places, and note who has a new one."""
        values, there = self.pull() * self.scale, self._there
        for place in range(self.most):
            own = self.support[:, [place]]
            step = self.kept[:, [self.model.fixed + place]] * self.users.counts[:, None] / self.scale.gather(1, own)
            old = values.gather(1, own)
            values = values.scatter(1, own, torch.where(there[:, [place]], old + step, old))
        best = _largest(self._keys(values), min(self.most, values.shape[1]), self.mask)
        keys, order = (torch.stack(part, dim=1) for part in zip(*best, strict=True))
        last = keys.gather(1, (self.sizes - 1).clamp(min=0)[:, None])[:, 0]
        same = (self.support[:, :, None] == order[:, None, :]) & there[:, :, None] & there[:, None, :]
        leaving, entering = there & ~same.any(dim=2), there & ~same.any(dim=1)
        self.active = self.active & (self.sizes > 0) & (last >= _NOTHING) & entering.any(dim=1)
        first = torch.argsort((~entering).to(torch.int64), dim=1, stable=True)  # those that enter, in order
        newcomers = order.gather(1, first)
        ranks = (leaving.to(torch.int64).cumsum(dim=1) - 1).clamp(min=0)
        return torch.where(leaving, newcomers.gather(1, ranks), self.support)

    def _keys(self, values: torch.Tensor) -> torch.Tensor:
        """Return absolute values as integers of the same order, with the position in the lowest bits."""
        sizes = torch.where(torch.isfinite(values), values.abs(), 0.0)
        return (sizes.view(torch.int64) & ~self.mask) | torch.arange(values.shape[1], device=values.device)

    def _columns(self, support: torch.Tensor) -> Columns:
        """Return the columns of the fits with these supports."""
        owner = self.users.owner
        selected = self.users.X.gather(1, support[owner]).to(torch.float64)
        values, means = self._centred(torch.where(self._there[owner], selected, 0.0))
        along = self.along
        return Columns(torch.cat([along.values, values], dim=1), torch.cat([along.means, means], dim=1))

    def _solve(self, columns: Columns) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return least-squares coefficients, residuals and sums of squares; not finite for a singular system."""
        values, fixed = columns.values, self.model.fixed
        joint = torch.cat([values, self.targets[:, None]], dim=1)
        grams = grams_of(joint, self.users, plain=self.users.plain)
        # Columns by columns by users; the last row is the right-hand side.
        systems = grams.permute(1, 2, 0)[:, :-1].contiguous()
        diagonal = systems[:-1].diagonal(dim1=0, dim2=1)
        diagonal *= 1.0 + RIDGE
        diagonal[:, fixed:] += (~self._there).to(torch.float64)
        found = solved(systems)
        left = self.targets
        for column in range(values.shape[1]):
            left = left - values[:, column] * found[:, column][self.users.owner]
        return found, left, self.users.total(left.square())

    def _centred(self, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.model.centered:
            return values, values.new_zeros((len(self.users.counts), *values.shape[1:]))
        return self.users.centred(values)


def _largest(keys: torch.Tensor, count: int, mask: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return the largest keys of each row, in order, and their positions; keys differ, unless there are fewer."""
    found = []
    for _ in range(count):
        key = keys.amax(dim=1)
        feature = (key & mask).clamp(max=keys.shape[1] - 1)
        found.append((key, feature))
        keys = keys.scatter(1, feature[:, None], -1)
    return found


def solved(systems: torch.Tensor) -> torch.Tensor:
    """Solve positive definite systems by Cholesky; the last index is the system. Not finite where one is singular."""
    count = systems.shape[1]
    if count > _MOST_ENTRYWISE:
        return _solved_at_once(systems)
    rows = []
    for at in range(count):  # what is left of the systems is ever smaller
        column = systems[:, 0] / systems[0, 0].sqrt()
        systems = systems[1:, 1:] - column[1:, None] * column[None, 1 : count - at]
        rows.append(column)
    found = systems.new_zeros((count, systems.shape[-1]))
    for at in range(count - 1, -1, -1):
        column = rows[at]  # the pivot, what is below it, and the right-hand side
        found[at] = (column[-1] - (column[1:-1] * found[at + 1 :]).sum(dim=0)) / column[0]
    return found.T


def _solved_at_once(systems: torch.Tensor) -> torch.Tensor:
    whole = systems.permute(2, 0, 1)
    matrices, rights = whole[:, :-1], whole[:, -1, :, None]
    finite = torch.isfinite(matrices).all(dim=2).all(dim=1) & torch.isfinite(rights).all(dim=2).all(dim=1)
    eye = torch.eye(matrices.shape[1], dtype=matrices.dtype, device=matrices.device)
    lower, failed = torch.linalg.cholesky_ex(torch.where(finite[:, None, None], matrices, eye))
    found = torch.cholesky_solve(torch.where(finite[:, None, None], rights, 0.0), lower)[:, :, 0]
    return torch.where((finite & (failed == 0))[:, None], found, torch.nan)
