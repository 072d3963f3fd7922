"""Whether the prior helps: errors of posteriors compared with errors of users' own means.

A ratio of one user's two errors would be a poor measure. With two or three rows, or with rows that are nearly equal, a
user's own mean is sometimes almost exact by chance. The ratio would then count fully against the prior, however small
the loss is. The loss in squared error is the difference of the errors, so the differences are added up: in units of
2ms², for m rows and the public noise variance s², and clipped at ±1. A user with a single row has no mean of other rows
and contributes zero here.

Whether a residual is far out is judged by the noise of its own user, as the user's other rows show it
(:mod:`~tacitly.methods.mixed_effects.own_noise`).

Adjacency, sensitivity and event are those of :mod:`~tacitly.methods.mixed_effects.queries`: every number is bounded, so
a contribution has norm at most :attr:`Advantage.bound`, and the release is one Gaussian event.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from tacitly.arrays import Array, Offsets, Rows, row_products
from tacitly.federation.statistics import Statistics
from tacitly.methods.mixed_effects.own_noise import reaches
from tacitly.methods.mixed_effects.posterior import Coordinates, Posteriors, Prior
from tacitly.methods.mixed_effects.queries import PriorQuery
from tacitly.methods.mixed_effects.statistics import left_out_errors
from tacitly.methods.shared.batch import Contributions, per_user

NOMINAL = 1.6448536269514722
"""Standard deviations of a 90 % interval."""

REACHED = np.array([NOMINAL, 2.1])
"""Standard deviations beyond which residuals are counted; the second shows how heavy the tails are."""

_WEIGHTS = np.array([1.0, 0.3, 0.25, 0.15])  # of the two counts, the advantage, and who can compare
_MIDDLE = 0.5  # shares lie between 0 and 1: taken from the middle their norm is half as large
BOUND = float(np.linalg.norm(np.array([_MIDDLE, _MIDDLE, 1.0, 1.0]) * _WEIGHTS))
"""Largest norm of a contribution."""

_OUTSIDE = np.array([0.1, 2.0 - 2.0 * NormalDist().cdf(REACHED[1])])  # shares of a normal distribution
_SINGLE = 0.25  # weight of the counts of a user with one row, which the population alone predicts
_EXPECTED, _DOUBT = 0.105, 0.035  # share outside 90 % intervals before anything is released about it
_NARROWED = NormalDist().inv_cdf(1.0 - 0.085 / 2.0)  # intervals that are too wide are narrowed to 91.5 %
_TAIL, _TAIL_DOUBT = 1.25, 0.02  # exponent of the tails: 1 for a normal distribution

_SURE = 1.14
"""Noise deviations below zero at which an advantage says that the prior does harm.

If priors help 19 times in 20, gain or loss being of any size alike, the expected gain given a noisy advantage t is
19·(φ(t) + tΦ(t)) − (φ(t) − tΦ(−t)), in noise deviations: it changes its sign at t = −1.14. Falling back on own means by
mistake costs several percent, and what a useless prior costs is limited by users' own evidence.
"""


@dataclass(frozen=True)
class Advantage(PriorQuery):
    """How well posteriors predict left-out rows: each row of a user from the user's other rows.

    A contribution has four numbers: two shares of residuals that are far out, minus ½; the advantage of the posterior
    in squared error; and whether the user can compare. Users with one row count less in the first two, as if most of
    their rows were as expected. All numbers are bounded, so no clipping is needed: a smaller clip would hide exactly
    the users whose intervals are too narrow.
    """

    @property
    def coordinates(self) -> int:
        """Two shares, the advantage and a weight."""
        return 4

    @property
    def bound(self) -> float:
        """Largest norm of a contribution: no row or all rows far out, and the prior useless or perfect."""
        return BOUND

    @property
    def blur(self) -> float:
        """Noise of the advantage for a noise of one."""
        return 1.0 / float(_WEIGHTS[2])

    def contributions(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        """Return the four numbers of each user."""
        found = self._posteriors(X, y, offsets)
        residuals, errors = left_out(X, y, offsets, self.units, self.prior, found)
        rows, owner = np.maximum(found.rows, 1.0), np.repeat(np.arange(len(found.rows)), np.diff(offsets))
        misfits = found.residuals / self.prior.noise + np.square(found.means).sum(axis=1)
        far = np.square(residuals)[:, None] > reaches(misfits, found.rows, REACHED)[owner]
        outside = per_user(far.astype(np.float64), offsets)
        targets = self.units.targets(y)
        alone = (targets - (per_user(targets, offsets) / rows)[owner]) * (rows / np.maximum(rows - 1.0, 1.0))[owner]
        own, shared = per_user(np.square(alone), offsets), per_user(np.square(errors), offsets)
        return four(outside, own, shared, found.rows, self.prior.noise)

    @property
    def statistics(self) -> Statistics | None:
        """Its own contributions, since it needs rows."""
        return Contributions(self)

    def fused(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        """Return the contributions, compiled."""
        found = left_out_errors(X, y, offsets, self.units, self.prior, REACHED)
        return four(found[:, :-3], found[:, -3], found[:, -2], found[:, -1], self.prior.noise)

    @staticmethod
    def helps(released: Array, noise: float) -> bool:
        """Return whether the prior helps: unless the released advantage is clearly below zero, see :data:`_SURE`.

        >>> Advantage.helps(np.array([0.0, 0.0, -0.1, 0.1]), 0.001), Advantage.helps(np.zeros(4), 0.0)
        (False, True)
        """
        return bool(released[2] >= -_SURE * noise)

    @staticmethod
    def inflation(released: Array, noise: float) -> float:
        """Return the factor for standard deviations with which 90 % intervals cover 90 %.

        Both shares are posterior means given their noise: the first with prior mean :data:`_EXPECTED`, the second with
        the prior mean that follows from the first. In the tails, the quantile of residuals that a share p exceeds is
        modelled as a power of the normal quantile, z(p)^γ. γ follows from the two shares, and so does the number of
        deviations beyond which 10 % lie.
        """
        seen = min(max(float(released[3] / _WEIGHTS[3]), 0.0), 1.0)
        weight = seen + _SINGLE * (1.0 - seen)
        shares = (released[:2] / _WEIGHTS[:2] + _MIDDLE - _OUTSIDE) / weight + _OUTSIDE
        errors = noise / (_WEIGHTS[:2] * weight)
        near = _normal_reach(_weighed(float(shares[0]), float(errors[0]), _EXPECTED, _DOUBT))
        if near >= NOMINAL:
            # Narrow less than a normal distribution suggests: discrete targets such as ratings make coverage jump.
            return min(max(_NARROWED / near, 0.6), 1.0)
        further = math.log(REACHED[1] / NOMINAL)
        usual = 2.0 - 2.0 * NormalDist().cdf(near * math.exp(further / _TAIL))
        far = _normal_reach(_weighed(float(shares[1]), float(errors[1]), usual, _TAIL_DOUBT))
        power = min(max(further / max(math.log(far / near), 1e-9), 0.8), 2.0)
        return float(min((NOMINAL / near) ** power, 2.5))


def four(outside: Array, own: Array, shared: Array, rows: Array, noise: float) -> Array:
    """Return what users send: from how many residuals are far out, both sums of squared errors, and rows."""
    comparable = (rows > 1) & np.isfinite(own) & np.isfinite(shared)
    difference = np.where(comparable, own, 0.0) - np.where(comparable, shared, 0.0)
    advantage = np.clip(difference / (2.0 * noise * np.maximum(rows, 1.0)), -1.0, 1.0)
    counted = np.where(comparable, 1.0, _SINGLE)[:, None]
    shares = (outside / np.maximum(rows, 1.0)[:, None] - _OUTSIDE) * counted + _OUTSIDE - _MIDDLE
    numbers = np.hstack([shares, advantage[:, None], comparable[:, None]])
    return np.asarray(numbers * _WEIGHTS * (rows > 0)[:, None])


def _weighed(seen: float, error: float, expected: float, doubt: float) -> float:
    """Return the posterior mean of a share that is observed with normal error and has a normal prior."""
    return min(max(expected + (seen - expected) * doubt**2 / (doubt**2 + error**2), 0.001), 0.6)


def _normal_reach(share: float) -> float:
    """Return how many standard deviations of a normal distribution leave this share outside."""
    return NormalDist().inv_cdf(1.0 - share / 2.0)


def left_out(
    X: Rows, y: Rows, offsets: Offsets, units: Coordinates, prior: Prior, found: Posteriors
) -> tuple[Array, Array]:
    """Return each row's error if its user's posterior is computed without it: in standard deviations, and unscaled.

    No refitting: with q = lᵀRl/s² for the whitened row l, a residual r becomes r/(1 − q), of variance s²/(1 − q).
    """
    design = np.ascontiguousarray(units.design(X))  # a last bit may decide whether a row counts as far out
    owner = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    weights = prior.mean + found.means @ prior.root.T
    fitted = row_products(design, weights[owner])
    spread = prior.root @ found.covariances @ prior.root.T
    leverage = np.zeros(len(design))
    step = max(1, (1 << 22) // units.size**2)
    for first in range(0, len(design), step):
        rows = slice(first, first + step)
        leverage[rows] = row_products(np.einsum("ri,rij->rj", design[rows], spread[owner[rows]]), design[rows])
    free = np.maximum(1.0 - leverage / prior.noise, 1e-9)
    residuals = units.targets(y) - fitted
    return np.asarray(residuals / np.sqrt(prior.noise * free)), np.asarray(residuals / free)
