"""Direction votes: a first basis from the direction of every user's own ridge regression.

With few rows a user's ridge regression is mostly noise, but its direction correlates with the user's true weights, and
those lie in the shared subspace. So the top eigenvectors of the sum of projectors on all users' directions lie near it.
(The pair statistic of Private FedRep, Snedeker et al. 2025, Algorithm 2, uses Xᵀy where this uses the ridge estimate:
the correlation is 1/√(1 + d/m) there and √(m/d) here, and the vote is positive semi-definite.) Used as the start of
Private FedRep, CENTAUR (``start="votes"``), AMHT-LRS, private alternating minimisation and the margin classifier's
``gradient`` mode.

Releases :class:`DirectionVote` and, for classes and counts, :class:`ClassVote`. Unit: the user. User i contributes aaᵀ
with ‖a‖ = 1 (or zero) for any rows, so there is no clipping bound to choose. A :class:`ClassVote` is a mean of such
projectors, of norm at most 1. Sensitivity 1 (zero-out); √2 (replace-one: two contributions are positive semi-definite,
so ⟨P, Q⟩ ≥ 0 and ‖P − Q‖² ≤ 2). One Gaussian event.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tacitly.arrays import Array, Offsets, Rows, check_shape, check_size, per_user, read_only
from tacitly.federation.base import Federation
from tacitly.heads.losses import Loss
from tacitly.linalg import pack_symmetric, unpack_symmetric
from tacitly.methods.shared.array_forms import centred, packed_moments, unit_rows, unpacked
from tacitly.methods.shared.batch import ArrayQuery, norms_of
from tacitly.methods.shared.descent import FirstBasis
from tacitly.methods.shared.some_rows import LARGEST, chosen, start_rows, thinned
from tacitly.methods.shared.whitening import Whitening, private_whitening
from tacitly.privacy.calibration import Plan
from tacitly.privacy.clipping import GUARD, LEAST, clip_factor
from tacitly.privacy.guarantee import TooFewUsersWarning

_RIDGE = 0.3  # of a row's mean squared norm; from 0.1 to 1 the direction hardly changes

_LEAST_TRACE = 1e-280  # of a user's moment: below it squares of entries have been lost to underflow

_TWO_CLASSES = Loss("logistic")


@dataclass(frozen=True)
class DirectionVote(ArrayQuery):
    """Projector on the direction of the user's ridge regression, in whitened coordinates.

    If centered targets are all equal, only rounding errors would have a direction, so the user gives no vote.
    """

    whitening: Whitening
    centered: bool = False
    most_rows: int = 0  # rows of each user that are read: see some_rows; 0 for all
    acute: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_size("most_rows + 1", self.most_rows + 1, LARGEST + 1)

    @property
    def varied(self) -> bool:
        """Whether a user whose targets are all equal gives no vote even if targets are not centered."""
        return False

    @property
    def coordinates(self) -> int:
        """Entries of a symmetric d×d matrix."""
        size = self.whitening.scale.size
        return size * (size + 1) // 2

    def contribution(self, X: Rows, y: Rows) -> Array:
        """Return aaᵀ, packed."""
        read = chosen(len(X), self.most_rows)
        rows, targets = self.whitening.transform_one_user(X[read]), y[read].astype(np.float64)
        if (self.centered or self.varied) and targets.max() == targets.min():
            return np.zeros(self.coordinates)
        if self.centered:
            rows, targets = rows - rows.mean(axis=0), targets - targets.mean()
        penalty = _RIDGE * np.square(rows).sum() / len(rows)
        # The smaller of two equivalent forms: one user's number of rows must not decide whether a site answers in time.
        few = len(rows) <= rows.shape[1]
        gram = (rows @ rows.T if few else rows.T @ rows) + penalty * np.eye(min(rows.shape))
        if not (np.isfinite(gram).all() and np.isfinite(targets).all()):
            return np.zeros(self.coordinates)  # LAPACK would print a message
        solved = np.linalg.lstsq(gram, targets if few else rows.T @ targets)[0]
        weights = rows.T @ solved if few else solved
        norm = float(np.linalg.norm(weights))
        if not (np.isfinite(norm) and norm**2 > LEAST):
            return np.zeros(self.coordinates)
        unit = weights / norm
        return pack_symmetric(np.outer(unit, unit))

    def contributions(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        """Return aaᵀ, packed, one row per user."""
        X, y, offsets = thinned(X, y, offsets, self.most_rows)
        rows, targets = np.multiply(X, self.whitening.scale, dtype=np.float64), y.astype(np.float64)
        votes = np.ones(len(offsets) - 1, dtype=bool)
        if self.centered or self.varied:
            first = offsets[:-1][np.diff(offsets) > 0]
            votes[np.diff(offsets) > 0] = np.maximum.reduceat(targets, first) != np.minimum.reduceat(targets, first)
        if self.centered:
            rows, targets = centred(rows, offsets), centred(targets, offsets)
        size = rows.shape[1]
        turn = np.eye(size) + self.whitening.turn
        moments = turn @ unpacked(packed_moments(rows, offsets), size) @ turn
        sides = per_user(rows * targets[:, None], offsets) @ turn
        traces = np.einsum("nii->n", moments)
        # In units of the trace no system is singular, and none overflows.
        usable = votes & np.isfinite(traces) & (traces > _LEAST_TRACE) & np.isfinite(sides).all(axis=1)
        penalties = _RIDGE / np.maximum(np.diff(offsets), 1)
        systems = moments / np.where(usable, traces, 1.0)[:, None, None]
        systems = np.where(usable[:, None, None], systems, 0.0) + penalties[:, None, None] * np.eye(size)
        found = np.linalg.solve(systems, np.where(usable[:, None], sides, 0.0)[:, :, None])
        weights = np.asarray(found[:, :, 0], dtype=np.float64)
        units = unit_rows(weights, norms_of(weights))
        return pack_symmetric(units[:, :, None] * units[:, None, :])

    def block_sum(self, X: Rows, y: Rows, offsets: Offsets, bound: float) -> Array:
        """Compute all directions of the block by compiled code, then one matrix product."""
        from tacitly.methods.shared.few_row_votes import few_row_directions
        from tacitly.methods.shared.vote_kernels import vote_directions

        check_shape("X", X, None, self.whitening.scale.size)
        directions = np.zeros((len(offsets) - 1, X.shape[1]))
        length = math.sqrt(clip_factor(1.0, bound))
        rows, targets = read_only(np.ascontiguousarray(X)), read_only(np.ascontiguousarray(y))
        public = (*self._kernel_arguments(X.dtype), _RIDGE, self.centered, self.varied)
        if self.most_rows:
            few_row_directions(rows, targets, offsets, self.most_rows, *public, length, directions)
        else:
            vote_directions(rows, targets, offsets, *public, length, directions)
        return pack_symmetric(directions.T @ directions)

    def _kernel_arguments(self, dtype: np.dtype[np.floating]) -> tuple[Rows, Rows]:
        """Return the whitening as scales and a matrix, empty if that is the identity; cached for all blocks."""
        from tacitly.simd.registers import padded

        cache: dict[np.dtype[np.floating], tuple[Rows, Rows]] = self.__dict__.setdefault("_arguments_by_dtype", {})
        if dtype not in cache:
            public = self.whitening
            turn = np.zeros((0, 0), dtype=dtype)
            if public.gains.size:
                full = np.eye(public.scale.size) + (public.directions * public.gains) @ public.directions.T
                turn = padded(np.pad(full, (0, -len(full) % 16)), dtype)
            cache[dtype] = padded(public.scale[None], dtype)[0], turn
        return cache[dtype]


@dataclass(frozen=True)
class ClassVote(DirectionVote):
    """Direction vote for targets that are classes or counts, as ``loss.encode`` gives them.

    Two classes are coded as ±1, counts by their logarithm. With more classes each class has a direction (this class
    against the rest). The vote is the mean of their projectors, which has norm at most one and is positive
    semi-definite. A class that a user never (or always) has gets no direction, because it would be the direction of the
    user's mean row.
    """

    loss: Loss = _TWO_CLASSES

    @property
    def varied(self) -> bool:
        """Whether there are more than two classes."""
        # With two classes, rows of one class still point towards the user's weights, or away from them.
        return self.loss.columns > 1

    def contribution(self, X: Rows, y: Rows) -> Array:
        """Return the mean of aaᵀ over classes, packed."""
        votes = [super(ClassVote, self).contribution(X, targets) for targets in self._targets(y)]
        return np.asarray(np.mean(votes, axis=0) * (1.0 - GUARD))  # the fused form applies the guard class by class

    def contributions(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        """Return the mean of aaᵀ over classes, packed, one row per user."""
        votes = [super(ClassVote, self).contributions(X, targets, offsets) for targets in self._targets(y)]
        return np.asarray(np.mean(votes, axis=0) * (1.0 - GUARD))

    def block_sum(self, X: Rows, y: Rows, offsets: Offsets, bound: float) -> Array:
        """Sum the block's votes, class by class."""
        targets = self._targets(y)
        votes = [super(ClassVote, self).block_sum(X, each, offsets, bound / len(targets)) for each in targets]
        return np.asarray(np.sum(votes, axis=0))

    def _targets(self, y: Rows) -> list[Array]:
        codes = y.astype(np.float64)
        if self.loss.columns > 1:
            return [(codes == a) - 1.0 / self.loss.columns for a in range(self.loss.columns)]
        return [2.0 * codes - 1.0] if self.loss.classifies else [np.log1p(np.maximum(codes, 0.0))]


MOST_DIRECTIONS = 8
"""Most directions that rank "auto" takes."""

_OVER_WIDE = 2  # a rank above this many times the directions found is suspicious: votes may hide weak directions
_STANDS_OUT = 1.15  # times the edge of the spectrum of noise and of users in random directions


def first_basis(
    federation: Federation, plan: Plan, rank: int | str, *, centered: bool = False, loss: Loss | None = None
) -> FirstBasis:
    """Release a whitening (phase ``whitening``) and a first basis (phase ``start``).

    With rank "auto" the basis has the directions that stand out in the released votes.
    """
    d = federation.n_features
    event = plan.event("start", clip=1.0, acute=True)
    sigma, before = federation.sum_sigma(event), plan.event("whitening", clip=1.0, acute=True)
    most = MOST_DIRECTIONS if isinstance(rank, str) else rank
    users = plan.sampling_rate * federation.n_users
    rows = start_rows(users, d, most, federation.sum_sigma(before), sigma)
    whitening = private_whitening(federation, plan, centered=centered, most_rows=rows.moment)
    vote = DirectionVote(whitening, centered, rows.votes)
    if loss is not None:
        # The logarithm of a rate has an intercept, whether or not the model fits one.
        # All rows are read, because which classes a user has depends on all of them.
        vote = ClassVote(whitening, centered or not loss.classifies, loss=loss)
    votes = federation.release(vote, event, "direction votes")
    found = rank_of(votes, sigma, d, users)
    size = found if isinstance(rank, str) else rank
    wide = size > _OVER_WIDE * found
    if wide and plan.budget.private:
        warnings.warn(over_wide(size, found), TooFewUsersWarning, stacklevel=2)
    return FirstBasis(whitening, *top_directions(votes, sigma, d, size), found if wide else size)


def over_wide(rank: int, found: int) -> str:
    """Return the warning for a rank far above the number of directions that stand out."""
    return (
        f"{found} of the {rank} directions asked for stand out of the privacy noise. The others share the budget until "
        "the rounds show that users' heads do not need them: rank='auto' takes those that stand out."
    )


def rank_of(votes: Array, sigma: float, size: int, n_users: float) -> int:
    """Return how many eigenvalues of noisy votes stand out: at least one, at most :data:`MOST_DIRECTIONS`.

    Two causes spread the others around the bulk b: the noise, by up to 2σ√(d/2), and the finite number n of users in
    random directions, by up to b(2√(d/n) + d/n) (Marchenko and Pastur). They are independent, so their squares add up.

    >>> rank_of(pack_symmetric(np.diag([900.0, 400.0, *[10.0] * 8])), 1.0, 10, 1400)
    2
    """
    values = np.linalg.eigvalsh(unpack_symmetric(votes, size))[::-1]
    bulk = max(float(np.median(values)), 0.0)
    edge = math.hypot(sigma * math.sqrt(2.0 * size), 2.0 * bulk * math.sqrt(size / n_users)) + bulk * size / n_users
    above = int(np.count_nonzero(values - bulk > _STANDS_OUT * edge))
    return min(max(above, 1), MOST_DIRECTIONS, size)


def top_directions(votes: Array, sigma: float, size: int, rank: int) -> tuple[Array, Array]:
    """Return the top eigenvectors of noisy votes and the strength of each above the noise.

    A strength is at least a twentieth of the largest. Strengths estimate the spread of users' heads over the
    directions; they initialise the preconditioner.
    """
    values, vectors = np.linalg.eigh(unpack_symmetric(votes, size))
    basis, strengths = vectors[:, ::-1][:, :rank], values[::-1][:rank]
    # Votes of pure noise add up to a multiple of the identity (the bulk), which carries no direction.
    strengths = strengths - float(np.median(values))
    level = sigma * math.sqrt(size / 2.0)
    root = np.sqrt(np.maximum(strengths**2 - 4 * level**2, 0.0))
    strengths = np.where(strengths > 2 * level, (strengths + root) / 2, max(level, np.finfo(float).tiny))
    return basis, np.maximum(strengths, 0.05 * float(strengths.max()))
