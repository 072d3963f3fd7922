"""The share of the possible gain, as a function of the noise level n·μ: simulated points and a monotone curve.

*Share of what is possible*, in squared errors on new rows of the same users:

    share = (alone − method at ε) / (alone − possible)

``alone`` is the better of users' own means and their own regressions, which need no sharing. (One model for all does
not count, because it needs the rows of all users.) ``possible`` is the best method without privacy, the same for all
methods, so that their shares can be compared. 0 % means that sharing gained nothing, 100 % that privacy cost nothing. A
fit that is worse than what users have alone counts as 0 %, because users can then use their own model.

Over repetitions the share is a ratio of means: mean gain of the fits, divided by mean possible gain. (A mean of ratios
would be dominated by repetitions in which almost no gain was possible.) Near the ε at which a method starts to work the
share varies most: many fits gain nothing and some gain half of what is possible, so a mean below a half needs many
fits.

Less noise never hurts on average, so the means are made monotone (isotonic regression), and interpolated in log(n·μ)
between simulated points. Outside of them, the error that noise adds is assumed to be proportional to its variance,
1/(n·μ)²: it decreases beyond the last point, and increases before the first one until no gain is left.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from tacitly.arrays import Array

NOTHING = 0.005
"""A mean share below this counts as zero, and so do shares at higher noise."""

_STEP = 0.2  # a point is added between neighbours if their shares differ by more than this
_CLOSE = 1.35  # no point is added between noise levels whose ratio is below this


@dataclass(frozen=True)
class Point:
    """The share at a noise level: the mean, smallest and largest over the repetitions."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Curve:
    """Shares at simulated noise levels, in increasing order; ``limit`` is the mean share without privacy.

    >>> curve = Curve(np.array([10.0, 1000.0]), (Point(0.0, 0.0, 0.0), Point(0.8, 0.7, 0.9)), 1.0)
    >>> [round(curve.at(level)[0], 3) for level in (1.0, 10.0, 100.0, 1000.0, 2000.0, math.inf)]
    [0.0, 0.0, 0.4, 0.8, 0.95, 1.0]
    >>> round(curve.needed(0.4)), curve.needed(1.1)
    (100, None)
    """

    levels: Array
    points: tuple[Point, ...]
    limit: float

    def at(self, level: float) -> tuple[float, float, float]:
        """Return the share at a noise level: the mean, smallest and largest over the repetitions."""
        means = np.array([point.mean for point in self.points])
        low = np.array([point.low for point in self.points]) - means
        high = np.array([point.high for point in self.points]) - means
        share = self._mean(increasing(means), level)
        last = float(self.levels[-1])
        narrower = (last / level) ** 2 if level > last else 1.0
        where, known = math.log(min(level, last)), np.log(self.levels)
        below, above = (narrower * float(np.interp(where, known, values)) for values in (low, high))
        return share, max(share + below, 0.0), share + above

    def needed(self, share: float) -> float | None:
        """Return the smallest noise level n·μ that gives a share; None if no number of users reaches it."""
        low, high = float(self.levels[0]), float(self.levels[-1])
        if share > max(self.limit, self.at(high)[0]):
            return None
        for _ in range(60):
            if self.at(low)[0] < share:
                break
            low, high = low / 2.0, low
        while self.at(high)[0] < share:
            high *= 2.0
            if high > 1e6 * self.levels[-1]:
                return None
        for _ in range(60):
            middle = math.sqrt(low * high)
            low, high = (low, middle) if self.at(middle)[0] >= share else (middle, high)
        return high

    def _mean(self, means: Array, level: float) -> float:
        inside = min(max(level, float(self.levels[0])), float(self.levels[-1]))
        share = float(np.interp(math.log(inside), np.log(self.levels), means))
        if inside == level or share >= self.limit:
            return share
        return max(self.limit - (self.limit - share) * (inside / level) ** 2, 0.0)


def simulated(point: Callable[[float], Point], levels: list[float], limit: float, goal: float) -> Curve:
    """Simulate at these levels, then between neighbours that differ, and at higher levels until the goal is reached.

    The order is from the least noise to the most: below a level without gain there is no gain, so nothing is simulated.
    """
    known: dict[float, Point] = {}
    for level in sorted(set(levels), reverse=True):
        known[level] = point(level)
        if known[level].mean <= NOTHING:
            break
    for _ in range(2):
        for low, high in pairwise(sorted(known)):
            jump = abs(known[high].mean - known[low].mean)
            if jump > _STEP and high / low > _CLOSE**2:
                middle = math.sqrt(low * high)
                known[middle] = point(middle)
    for _ in range(4):
        last = max(known)
        if known[last].mean >= min(goal, 0.98 * limit):
            break
        known[2.0 * last] = point(2.0 * last)
    ordered = sorted(known)
    return Curve(np.array(ordered), tuple(known[level] for level in ordered), limit)


def increasing(values: Array) -> Array:
    """Return the nearest increasing sequence in least squares: neighbours in the wrong order are averaged.

    >>> increasing(np.array([0.0, 0.5, 0.3, 0.9])).tolist()
    [0.0, 0.4, 0.4, 0.9]
    """
    blocks: list[tuple[float, int]] = []
    for value in values.tolist():
        blocks.append((value, 1))
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            (left, m), (right, k) = blocks[-2], blocks[-1]
            blocks[-2:] = [((m * left + k * right) / (m + k), m + k)]
    return np.repeat([mean for mean, _ in blocks], [size for _, size in blocks])
