"""A first basis: everybody votes for the direction of their own model.

A user alone can fit a ridge regression on their own rows. With few rows it is mostly noise, but its direction leans
towards the user's true weights, and those lie in the shared subspace; so the sum of the projectors on everybody's
direction has its top eigenvectors there. (Paper 003's pair statistic, Algorithm 2, uses Xᵀy where this uses the
ridge estimate: the lean is √(m/d) instead of 1/√(1 + d/m), and the vote is positive semi-definite.)

Release :class:`DirectionVote`: user i contributes aaᵀ with ‖a‖ = 1, a unit vector whatever the data, so there is no
clip to choose. Sensitivity 1 (zero-out), √2 (replace-one: positive semi-definite). One Gaussian event.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tacitly.arrays import Array, Offsets, Rows
from tacitly.federation.base import Federation, Query
from tacitly.heads.losses import Loss
from tacitly.linalg import pack_symmetric, unpack_symmetric
from tacitly.methods.shared.whitening import Whitening, gram_lower, private_whitening, user_chunks
from tacitly.privacy.calibration import Plan
from tacitly.privacy.clipping import GUARD, LEAST, clip_factor
from tacitly.simd.lazy_njit import njit
from tacitly.simd.small_solves import center_rows, cholesky_solve

_RIDGE = 0.3  # of a row's mean squared norm; anything from 0.1 to 1 does, the direction hardly changes


_TWO_CLASSES = Loss("logistic")


@dataclass(frozen=True)
class DirectionVote(Query):
    """Projector on the direction of the user's own ridge regression, in whitened coordinates.

    Around their mean, targets that are all the same have no direction but that of rounding: no vote.
    """

    whitening: Whitening
    centered: bool = False
    acute: ClassVar[bool] = True

    @property
    def varied(self) -> bool:
        """Whether targets that are all the same give no vote even around zero."""
        return False

    @property
    def coordinates(self) -> int:
        """Entries of a symmetric d×d matrix."""
        size = self.whitening.scale.size
        return size * (size + 1) // 2

    def contribution(self, X: Rows, y: Rows) -> Array:
        """Return aaᵀ, packed."""
        rows, targets = self.whitening.transform_one_user(X), y.astype(np.float64)
        if (self.centered or self.varied) and targets.max() == targets.min():
            return np.zeros(self.coordinates)
        if self.centered:
            rows, targets = rows - rows.mean(axis=0), targets - targets.mean()
        penalty = _RIDGE * np.square(rows).sum() / len(rows)
        gram = rows @ rows.T + penalty * np.eye(len(rows))
        if not (np.isfinite(gram).all() and np.isfinite(targets).all()):
            return np.zeros(self.coordinates)  # LAPACK would complain on the console
        weights = rows.T @ np.linalg.lstsq(gram, targets)[0]
        norm = float(np.linalg.norm(weights))
        if not (np.isfinite(norm) and norm**2 > LEAST):
            return np.zeros(self.coordinates)
        unit = weights / norm
        return pack_symmetric(np.outer(unit, unit))

    def block_sum(self, X: Rows, y: Rows, offsets: Offsets, bound: float) -> Array:
        """All directions of the block, then one matrix product."""
        directions = np.zeros((len(offsets) - 1, X.shape[1]))
        length = math.sqrt(clip_factor(1.0, bound))
        done = 0
        for mine, targets, starts in user_chunks(X, y, offsets):
            users = len(starts) - 1
            _directions(
                self.whitening.transform(mine),
                targets,
                starts,
                self.centered,
                self.varied,
                length,
                directions[done : done + users],
            )
            done += users
        return pack_symmetric(directions.T @ directions)


@dataclass(frozen=True)
class ClassVote(DirectionVote):
    """The same vote where targets are classes or counts, as ``loss.encode`` gives them.

    Two classes count as ±1, counts by their logarithm. Of more classes each has a direction (that class against the
    rest) and the vote is the mean of their projectors: norm at most one, and positive semi-definite again. A class that
    a user has never (or always) has none there: what would be left is the direction of the user's mean row.
    """

    loss: Loss = _TWO_CLASSES

    @property
    def varied(self) -> bool:
        """Whether there are more than two classes."""
        # Rows that all have one of two labels do lean towards the user's weights, or away from them.
        return self.loss.columns > 1

    def contribution(self, X: Rows, y: Rows) -> Array:
        """Return the mean of aaᵀ over classes, packed."""
        votes = [super(ClassVote, self).contribution(X, targets) for targets in self._targets(y)]
        return np.asarray(np.mean(votes, axis=0) * (1.0 - GUARD))  # as the fused form keeps it back, class by class

    def block_sum(self, X: Rows, y: Rows, offsets: Offsets, bound: float) -> Array:
        """Add up the block's votes, class by class."""
        targets = self._targets(y)
        votes = [super(ClassVote, self).block_sum(X, each, offsets, bound / len(targets)) for each in targets]
        return np.asarray(np.sum(votes, axis=0))

    def _targets(self, y: Rows) -> list[Array]:
        codes = y.astype(np.float64)
        if self.loss.columns > 1:
            return [(codes == a) - 1.0 / self.loss.columns for a in range(self.loss.columns)]
        return [2.0 * codes - 1.0] if self.loss.classifies else [np.log1p(np.maximum(codes, 0.0))]


def first_basis(
    federation: Federation, plan: Plan, rank: int, *, centered: bool = False, loss: Loss | None = None
) -> tuple[Whitening, Array, Array]:
    """Buy coordinates (phase ``whitening``) and a basis in them (phase ``start``); return both, and its strengths."""
    d = federation.n_features
    whitening = private_whitening(federation, plan, centered=centered)
    event = plan.event("start", clip=1.0, acute=True)
    vote = DirectionVote(whitening, centered)
    if loss is not None:
        # A rate's logarithm has a level of its own, whether or not the model lets it.
        vote = ClassVote(whitening, centered or not loss.classifies, loss=loss)
    votes = federation.release(vote, event, "direction votes")
    return whitening, *top_directions(votes, federation.sum_sigma(event), d, rank)


def top_directions(votes: Array, sigma: float, size: int, rank: int) -> tuple[Array, Array]:
    """Top eigenvectors of noisy votes, and how strong each is above the noise (at least a twentieth of the first).

    The strengths say how the users' heads spread over the directions; they start the preconditioner.
    """
    values, vectors = np.linalg.eigh(unpack_symmetric(votes, size))
    basis, strengths = vectors[:, ::-1][:, :rank], values[::-1][:rank]
    # Votes of pure noise still add up to a multiple of the identity: the bulk. It says nothing of direction.
    strengths = strengths - float(np.median(values))
    level = sigma * math.sqrt(size / 2.0)
    root = np.sqrt(np.maximum(strengths**2 - 4 * level**2, 0.0))
    strengths = np.where(strengths > 2 * level, (strengths + root) / 2, max(level, np.finfo(float).tiny))
    return basis, np.maximum(strengths, 0.05 * float(strengths.max()))


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc", "contract"})
def _directions(X, y, offsets, centered, varied, length, out):  # type: ignore[no-untyped-def]
    """Direction of each user's ridge regression, scaled to ``length``; zero where there is none."""
    d = X.shape[1]
    for i in range(offsets.size - 1):
        first, last = offsets[i], offsets[i + 1]
        m = last - first
        if centered or varied:
            lowest, highest = math.inf, -math.inf
            for j in range(first, last):
                lowest, highest = min(lowest, y[j]), max(highest, y[j])
            if lowest == highest:
                continue
        mean = 0.0
        if centered:
            center_rows(X, first, last, X)
            for j in range(first, last):
                mean += y[j]
            mean /= m
        trace = 0.0
        for j in range(first, last):
            for a in range(d):
                trace += X[j, a] * X[j, a]
        penalty = _RIDGE * trace / m
        if not (math.isfinite(penalty) and penalty > 0.0):
            continue
        size = min(m, d)
        A = np.empty((size, size))
        b = np.zeros(size)
        if m <= d:
            gram_lower(X, first, last, A)
            for j in range(m):
                b[j] = y[first + j] - mean
        else:
            A[:] = 0.0
            for j in range(first, last):
                target = y[j] - mean
                for a in range(d):
                    value = X[j, a]
                    b[a] += value * target
                    for c in range(a + 1):
                        A[a, c] += value * X[j, c]
        for j in range(size):
            A[j, j] += penalty
        if not cholesky_solve(A, b, size):
            continue
        if m <= d:
            for j in range(m):
                for a in range(d):
                    out[i, a] += b[j] * X[first + j, a]
        else:
            for a in range(d):
                out[i, a] = b[a]
        squared = 0.0
        for a in range(d):
            squared += out[i, a] * out[i, a]
        factor = 0.0
        if math.isfinite(squared) and squared > LEAST:
            factor = length / math.sqrt(squared)
        for a in range(d):
            out[i, a] = out[i, a] * factor if factor > 0.0 else 0.0
