"""Learn centers and scales of all columns privately, without any assumption about ranges or units.

Indicators need no units. A feature with a declared range needs step 2 only, which starts with a period as wide as the
range, because people declare which values are possible (ages from 0 to 120) and not where most values are. For the
other features, and for the target:

1. :class:`Magnitudes`, twice: the typical log₂|x| of a column, first on a circle of 60 octaves, then on a circle of 16
   octaves around the first estimate. This costs a seventh of a single release with the same precision.
2. :class:`Angles`, several times: each user's mean of exp(iπ(x − c)/M), with a period M from the magnitude. If a
   column's spread is far below M, the length of the point is near one, its direction shows the center, and the next
   release uses a smaller period, about M/7. So a year, 2,010 ± 5, is found in five steps.

All releases of :class:`Angles` are combined by Bayes' rule on a grid of spreads (:class:`_Spreads`), so that no
decision depends on a single noisy length. Everything in this module except the queries is post-processing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tacitly.arrays import Array
from tacitly.federation.base import Federation
from tacitly.methods.mixed_effects.posterior import Coordinates
from tacitly.methods.mixed_effects.unit_queries import Angles, Magnitudes, Shares
from tacitly.methods.shared.batch import uncircle
from tacitly.privacy.calibration import Phase, Plan

TARGET_WEIGHT = 1.5
_MAGNITUDES_SHARES = (0.14, 0.14)
_ANGLES_SHARES = (0.30, 0.18, 0.08, 0.06, 0.05, 0.05)
_LEAST_SHARE, _MOST_SHARE = 0.06, 0.30
_NOISE = 0.13  # of a feature's point in the second release of magnitudes, if the largest share allows it
_REACHES = (30.0, 8.0)  # octaves on half of a circle
_PERIOD, _ZOOM = 6.6, 6.7  # first period in magnitudes, and by what it shrinks
_AROUND = 4.0  # first period of a declared range in quarters of it: half a circle, so that its ends are far apart
_RARE = 0.02  # an indicator that is set less often is left out
_SEEN = 16.0  # squared length of both points of a magnitude in units of the noise; noise alone reaches it in 0.3 %
_BLIND = 20.0  # expected squared length of the target's below which its scale is not looked for
_SHARP = 0.75  # expected length of a point above which a look shows the center rather than the spread
_DOUBT = 0.03  # probability of being that sharp from which on a column is looked at more closely

_Columns = npt.NDArray[np.bool_]  # which columns


def phases(n_users: int, unknown: int, sigma: float, ranged: int = 0) -> list[Phase]:
    """Return the releases for ``unknown`` columns, the target included, and for ``ranged`` features.

    ``sigma`` is the noise of a single release with the whole budget. The share of the budget grows with few users and
    many columns; features with a range need fewer releases, and count half.
    """
    if not unknown and not ranged:
        return []
    count = unknown + ranged / 2.0 + (TARGET_WEIGHT**2 - 1.0) * (unknown > 0)
    needed = count / (_NOISE * n_users / sigma) ** 2 if sigma > 0 else 0.0
    share = min(max(needed / _MAGNITUDES_SHARES[1], _LEAST_SHARE), _MOST_SHARE)
    parts = {"magnitudes": _MAGNITUDES_SHARES if unknown else (), "centers": _ANGLES_SHARES}
    return [
        Phase(name=f"{name} {step + 1}", share=share * part)
        for name, shares in parts.items()
        for step, part in enumerate(shares)
    ]


def learn_units(
    federation: Federation, plan: Plan, bounds: tuple[tuple[float, float] | None, ...], texts: tuple[int, ...] = ()
) -> Coordinates:
    """Return public units: from ``bounds`` (features, then the target) if they are known, else from releases.

    ``texts`` has, for each feature, the number of its text column from 1, or 0. Indicators of text columns are kept if
    their released share exceeds the noise and is at least one in fifty. A feature whose scale is not found gets a gain
    of zero, which leaves it out. ``spread`` is zero if the target's scale is not found.
    """
    center, scale = np.zeros(len(bounds)), np.ones(len(bounds))
    used, ranged = np.array([known is None for known in bounds]), in_range(bounds)
    for column, known in enumerate(bounds):
        if known == (0.0, 1.0):
            scale[column] = 0.5
        elif known is not None:
            center[column], scale[column] = (known[0] + known[1]) / 2.0, (known[1] - known[0]) / 4.0
    found = np.ones(len(bounds), dtype=bool)
    if (used | ranged).any():
        searched = _search(federation, plan, used, np.where(ranged, scale, 0.0), center)
        center, scale = (np.where(used | ranged, *pair) for pair in zip(searched[:2], (center, scale), strict=True))
        found = np.where(used, searched[2], found)
    gain = np.where(found, 1.0 / scale, 0.0)
    if any(texts):
        gain[:-1] = gain[:-1] * _frequent(federation, plan, np.array(texts))
    return Coordinates(center[:-1], gain[:-1], float(center[-1]), float(scale[-1]) if found[-1] else 0.0)


def in_range(bounds: tuple[tuple[float, float] | None, ...]) -> _Columns:
    """Return which columns are features with a declared range; (0, 1) is an indicator, and the target comes last.

    >>> in_range(((0.0, 120.0), (0.0, 1.0), None, (-2.0, 2.0))).tolist()
    [True, False, False, False]
    """
    return np.array([*(known is not None and known != (0.0, 1.0) for known in bounds[:-1]), False])


def weights_of(count: int) -> Array:
    """Return the public weights of ``count`` columns, the target last."""
    return np.append(np.ones(count - 1), TARGET_WEIGHT)


def _frequent(federation: Federation, plan: Plan, texts: npt.NDArray[np.int64]) -> _Columns:
    """Return which features are no indicators of text columns, or frequent ones; all but the most frequent of each."""
    query = Shares((texts > 0).astype(np.float64), len(np.unique(texts[texts > 0])))
    event = plan.event("shares of text", clip=query.bound)
    shares = federation.release(query, event, "shares of text") / federation.n_users
    kept = (texts == 0) | (shares > max(3.0 * federation.sum_sigma(event) / federation.n_users, _RARE))
    for column in np.unique(texts[texts > 0]):  # the most frequent level is the reference
        own = np.flatnonzero(texts == column)
        kept[own[np.argmax(shares[own])]] = False
    return np.asarray(kept)


def _search(
    federation: Federation, plan: Plan, used: _Columns, quarters: Array, middles: Array
) -> tuple[Array, Array, _Columns]:
    """Return centers, scales and which were found of the columns in use, and of those with a range.

    ``quarters`` of declared ranges, zero for columns without one, and their ``middles``.
    """
    ranged = quarters > 0
    nothing = _Found(np.ones(len(used)), np.zeros_like(used), np.zeros_like(used))
    found = _magnitudes(federation, plan, used) if used.any() else nothing
    found = _Found(np.where(ranged, quarters, found.size), found.seen | ranged, found.binary)
    weights, n = weights_of(len(used)), plan.sampling_rate * federation.n_users
    first = np.where(ranged, _AROUND * quarters, _PERIOD * found.size)
    center, period, active = np.where(ranged, middles, 0.0), first.copy(), found.seen & ~found.binary
    spreads, looks, sharp = _Spreads(len(used)), [], np.zeros(len(used))
    for step in range(len(_ANGLES_SHARES)):
        asked = np.where(active, center, 0.0), np.where(active, period, 1.0)
        query = Angles(active.astype(np.float64), *asked, weights)
        event = plan.event(f"centers {step + 1}", clip=query.bound)
        released = federation.release(query, event, f"centers {step + 1}") / n
        noise = np.maximum(federation.sum_sigma(event) / n / weights, 1e-12)
        points = (released.reshape(2, -1) / weights).T @ np.array([1.0, 1j])
        looks.append(_Look(active, *asked, points, noise))
        spreads.add(first / asked[1], looks[-1])
        center = spreads.centers(first, looks)
        sharp = active * spreads.sharp(first / period, _SHARP)
        active = sharp > _DOUBT
        period = np.where(active, period / _ZOOM, period)
    scale = np.where(sharp > 0.5, found.size, spreads.scales(first))  # sharp at every step: constant, or rare values
    scale = np.maximum(np.where(found.binary, 0.5, scale), 1e-12 * np.maximum(found.size, 1e-300))
    return np.where(found.binary, 0.0, center), scale, found.seen | found.binary


@dataclass(frozen=True)
class _Found:
    """Typical sizes of columns, which were seen at all, and which are all 0 or 1."""

    size: Array
    seen: _Columns
    binary: _Columns


def _magnitudes(federation: Federation, plan: Plan, used: _Columns) -> _Found:
    weights, n = weights_of(len(used)), plan.sampling_rate * federation.n_users
    octaves, evidence, expected = np.zeros(len(used)), np.zeros(len(used)), 0.0
    flags, sure, binary = np.zeros(len(used)), np.zeros(len(used)), np.zeros(len(used), dtype=bool)
    for step, reach in enumerate(_REACHES):
        query = Magnitudes((used & ~binary).astype(np.float64), octaves, weights, reach)
        event = plan.event(f"magnitudes {step + 1}", clip=query.bound)
        released = federation.release(query, event, f"magnitudes {step + 1}") / n
        noise = np.maximum(federation.sum_sigma(event) / n / weights, 1e-12)
        *point, flag = released.reshape(3, -1) / weights
        length = np.hypot(*point)
        octaves = octaves + np.where(length > 2.0 * noise, uncircle(np.stack(point, axis=-1), reach), 0.0)
        evidence, expected = evidence + np.square(length / noise), expected + 1.0 / noise[-1] ** 2
        if step == 0:
            flags, sure = flag, 3.5 * noise
            binary = used & (flags > np.maximum(0.5, 3.0 * noise))
    seen = used & (evidence > _SEEN)
    # Too few values beyond 0 and 1 to see how large they are.
    binary = binary | (used & ~seen & (flags > sure))
    binary[-1] = False
    size = np.where(seen, 2.0**octaves, 1.0)
    seen[-1] = used[-1] and expected > _BLIND  # of a target that is nearly always zero a size of one will do
    return _Found(size, seen, binary)


@dataclass(frozen=True)
class _Look:
    """One release of :class:`Angles`: what was asked of which columns, and the noisy points as complex numbers."""

    asked: _Columns
    center: Array
    period: Array
    points: npt.NDArray[np.complex128]
    noise: Array


class _Spreads:
    """How far each column is spread: probabilities on a grid, after Bayes, of spread and share of one frequent value.

    Spreads are those of a normal law, in units of the first period divided by π. A share a of the rows may have one and
    the same value (zeros, above all), so the expected length at a period is a + (1 − a)·exp(−ρ²/2).
    """

    _GRID = np.exp(np.linspace(math.log(3.0), math.log(1e-7), 260))
    _SAME = np.array([0.0, 0.3, 0.5, 0.7, 0.9])
    _MISFIT, _WORST = 0.05, 12.0  # columns are not normal: lengths are off by this, and one may be off by much

    def __init__(self, columns: int) -> None:
        # Most columns are spread about as far as their values are large, and few have one frequent value.
        prior = np.log(np.where(self._GRID > 0.25, 1.0, 0.08))[:, None] + np.log(np.where(self._SAME > 0, 0.02, 1.0))
        self._logs = np.repeat(prior[None], columns, axis=0)

    def add(self, closer: Array, look: _Look) -> None:
        """Take a look into account; its periods are the first ones divided by ``closer``."""
        noise = look.noise[:, None, None]
        expected = np.hypot(self._lengths(closer), noise)
        off = (np.abs(look.points)[:, None, None] - expected) / np.hypot(noise, self._MISFIT)
        self._logs = self._logs - np.where(look.asked[:, None, None], np.minimum(0.5 * off**2, self._WORST), 0.0)

    def sharp(self, closer: Array, length: float) -> Array:
        """Return the probability that the expected length at these periods is above ``length``."""
        return np.asarray(np.sum(self._probabilities() * (self._lengths(closer) > length), axis=(1, 2)))

    def scales(self, first: Array) -> Array:
        """Return standard deviations."""
        spread, same = self._typical()
        return np.asarray(spread * first / math.pi * np.sqrt(1.0 - same))

    def centers(self, first: Array, looks: list[_Look]) -> Array:
        """Return centers, refined by each look at which the column is still sharp by what is known now."""
        spread, same = self._typical()
        center = looks[0].center
        for look in looks:
            length = same + (1.0 - same) * np.exp(-0.5 * np.square(spread * first / look.period))
            used = look.asked & (length > 0.3) & (np.abs(look.points) > 2.0 * look.noise)
            turn = np.angle(look.points * np.exp(1j * np.pi * (look.center - center) / look.period))
            center = np.where(used, center + turn * look.period / math.pi, center)
        return center

    def _lengths(self, closer: Array) -> Array:
        radius = np.minimum(self._GRID * closer[:, None], 30.0)[..., None]
        return np.asarray(self._SAME + (1.0 - self._SAME) * np.exp(-0.5 * np.square(radius)))

    def _probabilities(self) -> Array:
        relative = np.exp(self._logs - self._logs.max(axis=(1, 2), keepdims=True))
        return np.asarray(relative / relative.sum(axis=(1, 2), keepdims=True))

    def _typical(self) -> tuple[Array, Array]:
        """Return each column's median spread and its mean share of one value."""
        found = self._probabilities()
        median = (np.cumsum(found.sum(axis=2), axis=1) > 0.5).argmax(axis=1)
        return self._GRID[median], np.asarray(np.sum(found * self._SAME, axis=(1, 2)))
