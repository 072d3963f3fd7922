"""Whether the prior helps: errors of posteriors beside those of users' own means, in units of the noise variance.

A ratio of one user's two errors says little: with two or three rows, or rows that are nearly all alike, a user's own
mean is now and then almost exact, and the ratio then counts fully against the prior however little was lost. What users
lose in squared error is the difference of the errors, so that is what is added up: in units of 2ms², m rows and the
public noise variance s², cut at ±1. A user with a single row has no own mean that could have predicted it, and says
nothing here.

Adjacency, sensitivity and event are those of :mod:`~tacitly.methods.mixed_effects.queries`: every number is bounded, so
a contribution has norm at most :attr:`Advantage.bound`, and the release is one Gaussian event.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from tacitly.arrays import Array, Offsets, Rows
from tacitly.federation.statistics import Statistics
from tacitly.methods.mixed_effects.posterior import Coordinates, Posteriors, Prior
from tacitly.methods.mixed_effects.queries import PriorQuery
from tacitly.methods.mixed_effects.statistics import left_out_errors
from tacitly.methods.shared.batch import Contributions, per_user

NOMINAL = 1.6448536269514722
"""Standard deviations of a 90 % interval."""

REACHED = np.array([NOMINAL, 2.1])
"""Standard deviations beyond which residuals are counted; the second shows how heavy the tails are."""

_OUTSIDE = np.array([2.0 - 2.0 * NormalDist().cdf(reach) for reach in REACHED])
_TAIL = np.array([1.0, 0.7])  # weights of the two counts
_NARROWED = NormalDist().inv_cdf(1.0 - 0.085 / 2.0)  # intervals that are too wide are narrowed to 91.5 %
_EXTRA = 0.25  # weight of what says how many users can compare

USUAL = (0.25, 0.3)
"""Mean and standard deviation of the advantage, before anything is released about it: the prior nearly always helps."""


@dataclass(frozen=True)
class Advantage(PriorQuery):
    """How well posteriors predict rows that they have not seen: each row of a user from the user's other rows.

    In order: two shares of residuals that are far out, less what a normal law expects; the advantage of the posterior
    in squared error; the weight of users who can compare; the weight of the first two. Users with fewer than four rows
    count less, in proportion. All are bounded, so nothing is cut: a clip would hide exactly the users whose intervals
    are too narrow.
    """

    @property
    def coordinates(self) -> int:
        """Two excesses, the advantage and two weights."""
        return 5

    @property
    def bound(self) -> float:
        """Largest norm of a contribution: all rows far out, and the prior useless."""
        return float(np.linalg.norm([*((1.0 - _OUTSIDE) * _TAIL), 1.0, _EXTRA, _EXTRA]))

    def contributions(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        """Return the five numbers of each user."""
        found = self._posteriors(X, y, offsets)
        residuals, errors = left_out(X, y, offsets, self.units, self.prior, found)
        rows, owner = np.maximum(found.rows, 1.0), np.repeat(np.arange(len(found.rows)), np.diff(offsets))
        outside = per_user((np.abs(residuals)[:, None] > REACHED).astype(np.float64), offsets)
        targets = self.units.targets(y)
        alone = (targets - (per_user(targets, offsets) / rows)[owner]) * (rows / np.maximum(rows - 1.0, 1.0))[owner]
        own, shared = per_user(np.square(alone), offsets), per_user(np.square(errors), offsets)
        return five(outside, own, shared, found.rows, self.prior.noise)

    @property
    def statistics(self) -> Statistics | None:
        """Its own contributions, since it needs rows."""
        return Contributions(self)

    def fused(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        """Return the contributions, compiled."""
        found = left_out_errors(X, y, offsets, self.units, self.prior, REACHED)
        return five(found[:, :-3], found[:, -3], found[:, -2], found[:, -1], self.prior.noise)

    @staticmethod
    def helps(released: Array, noise: float) -> bool:
        """Return whether the prior helps, the released advantage weighed against the usual one by its noise.

        >>> Advantage.helps(np.array([0.0, 0.0, -0.1, 0.2, 0.2]), 0.001), Advantage.helps(np.zeros(5), 0.0)
        (False, True)
        """
        seen = max(float(released[3]) / _EXTRA, 0.0)
        # The sign of usual + kept·(advantage/seen − usual) with kept = 1/(1 + (noise/(seen·deviation))²).
        usual, deviation = USUAL
        return usual * noise**2 + deviation**2 * seen * float(released[2]) >= 0.0

    @staticmethod
    def inflation(released: Array, noise: float) -> float:
        """Return by what to multiply standard deviations so that 90 % intervals cover 90 %.

        Excesses are shrunk by their noise to 0.02 ± 0.03 (real residuals have heavier tails than normal ones), turned
        into normal quantiles, and the reach that leaves 10 % outside is interpolated.
        """
        weight = max(float(released[-1]) / _EXTRA, 0.05)
        excess, error = released[:2] / (_TAIL * weight), noise / (_TAIL * weight)
        excess = 0.02 + (excess - 0.02) * 0.03**2 / (0.03**2 + error**2)
        outside = np.clip(_OUTSIDE + excess, 0.001, 0.5)
        near, far = (NormalDist().inv_cdf(1.0 - share / 2.0) for share in np.minimum.accumulate(outside))
        if near >= NOMINAL:
            # Narrowed less than a normal law allows: targets such as ratings jump, and so does what they cover.
            multiple = min(_NARROWED / near, 1.0)
        elif far <= NOMINAL:
            multiple = REACHED[1] / far
        else:
            multiple = np.interp(NOMINAL, [near, far], REACHED) / NOMINAL
        return float(min(max(multiple, 0.7), 1.8))


def five(outside: Array, own: Array, shared: Array, rows: Array, noise: float) -> Array:
    """Return what users send: from how many residuals are far out, both sums of squared errors, and rows."""
    comparable = (rows > 1) & np.isfinite(own) & np.isfinite(shared)
    difference = np.where(comparable, own, 0.0) - np.where(comparable, shared, 0.0)
    advantage = np.clip(difference / (2.0 * noise * np.maximum(rows, 1.0)), -1.0, 1.0)
    weight = np.minimum(rows / 4.0, 1.0)[:, None]
    excess = (outside / np.maximum(rows, 1.0)[:, None] - _OUTSIDE) * _TAIL
    numbers = [excess, advantage[:, None], _EXTRA * comparable[:, None], np.full((len(rows), 1), _EXTRA)]
    return np.hstack(numbers) * weight


def left_out(
    X: Rows, y: Rows, offsets: Offsets, units: Coordinates, prior: Prior, found: Posteriors
) -> tuple[Array, Array]:
    """Return each row's error when its user's posterior is computed without it: in standard deviations, and as it is.

    No refitting: with q = lᵀRl/s² for the whitened row l, a residual r becomes r/(1 − q), of variance s²/(1 − q).
    """
    design = units.design(X)
    owner = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    weights = prior.mean + found.means @ prior.root.T
    fitted = np.einsum("ij,ij->i", design, weights[owner])
    spread = prior.root @ found.covariances @ prior.root.T
    leverage = np.zeros(len(design))
    step = max(1, (1 << 22) // units.size**2)
    for first in range(0, len(design), step):
        rows = slice(first, first + step)
        leverage[rows] = np.einsum("ri,rij,rj->r", design[rows], spread[owner[rows]], design[rows])
    free = np.maximum(1.0 - leverage / prior.noise, 1e-9)
    residuals = units.targets(y) - fitted
    return np.asarray(residuals / np.sqrt(prior.noise * free)), np.asarray(residuals / free)
