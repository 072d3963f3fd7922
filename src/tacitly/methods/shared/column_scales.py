"""A private scale per column, so that the units of a feature do not matter.

The moment of features that whitening releases is useful only if columns have similar sizes. If one column has values
in grams and others in tonnes, the noise for the large values hides the small ones. So the order of magnitude of each
column is released first, for a few hundredths of the budget.

Release :class:`ColumnScales`. Unit: the user. A user sends, for each column, the logarithm of its spread over the
user's own rows (around their mean, if users have intercepts) as a point on the unit circle, or zero if the column does
not vary. d points of norm at most 1 have norm at most √d together: sensitivity √d (zero-out), 2√d (replace-one), one
Gaussian event. The direction of a mean point is the typical logarithm; everything after it is post-processing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tacitly.arrays import Array, Offsets, Rows, check_shape, check_size, read_only
from tacitly.federation.base import Federation
from tacitly.methods.shared.batch import ArrayQuery, BatchQuery, circle, per_user, uncircle
from tacitly.privacy.calibration import Phase, Plan
from tacitly.privacy.clipping import GUARD
from tacitly.privacy.guarantee import Budget
from tacitly.simd.elementary import cosines_and_sines, logarithms
from tacitly.simd.lazy_njit import njit

MOST_FEATURES = 1 << 20

PHASE = "column scales"
_REACH = 50.0  # octaves on either side: 10^±15
_WANTED, _ENOUGH = 0.08, 0.17  # noise of a mean point: the target, and the largest with which scales are still useful
_LEAST_SHARE, _MOST_SHARE = 0.005, 0.05
_CONSTANT = 1e-12  # of a column's mean: smaller variation is rounding error
_CHUNK = 32  # users whose rows are handled at once: copies of them stay in cache
_SURE = 5.3  # times the noise: if no user varies in a column, its point is longer than this once in a million runs
_BY_CHANCE = 3.5  # standard deviations of the noise's energy: smaller differences between columns count as noise
_LONG = 0.6  # a point of this length is always long enough: points of usual columns have lengths near 1
_NOTHING = 1e-9  # the gain of a column in which hardly any user varies: nothing can be learned about it


@dataclass(frozen=True)
class ColumnScales(BatchQuery, ArrayQuery):
    """Orders of magnitude of a user's columns; around the user's mean if ``centered``."""

    n_features: int
    centered: bool = False

    def __post_init__(self) -> None:
        check_size("n_features", self.n_features, MOST_FEATURES)

    @property
    def coordinates(self) -> int:
        """A point in the plane per column."""
        return 2 * self.n_features

    @property
    def bound(self) -> float:
        """Largest norm of a contribution."""
        return math.sqrt(self.n_features)

    def contributions(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        """Return one point per user and column, first all abscissas, then all ordinates."""
        points = np.empty((len(offsets) - 1, self.coordinates))
        for start in range(0, len(points), _CHUNK):
            bounds = offsets[start : start + _CHUNK + 1]
            rows = np.asarray(X[bounds[0] : bounds[-1]], dtype=np.float64)
            points[start : start + _CHUNK] = self._points(rows, bounds - bounds[0], wide=X.dtype != np.float32)
        return points

    def block_sum(self, X: Rows, y: Rows, offsets: Offsets, bound: float) -> Array:
        """Sum the block's points in one compiled pass."""
        check_shape("X", X, None, self.n_features)
        total, rows = np.zeros((2, self.n_features)), read_only(np.ascontiguousarray(X))
        _add_points(rows, offsets, self.centered, 0.9 * np.pi / _REACH, bound * (1.0 - GUARD), total)
        return total.ravel()

    def _points(self, rows: Array, offsets: Offsets, *, wide: bool) -> Array:
        counts = np.diff(offsets)
        present = np.maximum(counts, 1.0)[:, None]
        with np.errstate(all="ignore"):
            sizes = per_user(np.abs(rows), offsets) / present
            if self.centered:
                rows = rows - np.repeat(per_user(rows, offsets) / present, counts, axis=0)
            unit = np.where(np.isfinite(sizes) & (sizes > 0), sizes, 1.0)
            if wide:  # in units of the mean size squares neither overflow nor underflow; squares of float32 cannot
                rows = rows / np.repeat(unit, counts, axis=0)
            spread = np.sqrt(per_user(np.square(rows), offsets) / present)
            relative = spread if wide else spread / unit
            seen = np.isfinite(relative) & np.isfinite(sizes) & (relative > _CONSTANT)
            octaves = np.log2(np.where(seen, relative, 1.0)) + np.log2(unit)
        points = circle(octaves, _REACH) * seen[..., None]
        return np.hstack([points[..., 0], points[..., 1]])


def scale_phases(budget: Budget, n_users: int, n_features: int) -> tuple[Phase, ...]:
    """Return the phase that pays for scales; none if there are too few users for this number of columns."""
    whole = Plan(budget, [Phase(name="all", share=1.0)]).event("all", clip=math.sqrt(n_features)).sigma / n_users
    share = min(max((whole / _WANTED) ** 2, _LEAST_SHARE), _MOST_SHARE)
    return (Phase(name=PHASE, share=share, acute=False),) if whole / math.sqrt(share) <= _ENOUGH else ()


def column_gains(federation: Federation, plan: Plan, *, centered: bool) -> tuple[Array, npt.NDArray[np.bool_]]:
    """Release scales; return a gain per column that equalises spreads, and in which columns users certainly vary.

    If the plan has no share for it, gains are one and users count as varying in all columns.
    """
    d, n = federation.n_features, plan.sampling_rate * federation.n_users
    if PHASE not in {phase.name for phase in plan.phases}:
        return np.ones(d), np.ones(d, dtype=bool)
    query = ColumnScales(d, centered)
    event = plan.event(PHASE, clip=query.bound)
    points = federation.release(query, event, PHASE).reshape(2, d).T / n
    noise = federation.sum_sigma(event) / n
    return gains_of(points, noise), found_in(points, noise)


def found_in(points: Array, noise: float) -> npt.NDArray[np.bool_]:
    """Return which mean points are longer than noise alone makes them: columns in which many users vary."""
    return np.asarray(np.hypot(points[:, 0], points[:, 1]) > max(min(_SURE * noise, _LONG), 1e-6))


def gains_of(points: Array, noise: float) -> Array:
    """Return gains from mean points with known noise.

    Differences between columns are kept as far as they exceed the noise of their logarithms (James and Stein). The
    energy of the noise of d columns varies by a share √(2/d), so an energy that noise reaches by chance is not a
    difference; then only columns that certainly differ are treated differently. One column in other units shows nothing
    about the other columns.
    """
    length, found = np.hypot(points[:, 0], points[:, 1]), found_in(points, noise)
    octaves = uncircle(points, _REACH)
    middle = float(np.median(octaves[found])) if found.any() else 0.0
    # The noise of an angle is that of a point over its length.
    errors = _REACH / (0.9 * np.pi) * noise / np.where(found, length, 1.0)
    apart = np.where(found, octaves - middle, 0.0)
    far = found & (np.abs(apart) > _SURE * errors)
    near = found & ~far
    kept = _kept(apart[found], errors[found]) if _differ(apart[near], errors[near]) else far.astype(np.float64)
    gains = 2.0 ** (-middle - kept * apart)
    return np.asarray(np.where(~found & (_SURE * noise < 0.05), _NOTHING * gains, gains))


def _differ(apart: Array, errors: Array) -> bool:
    """Return whether columns differ by more than noise makes equal columns differ."""
    by_chance = 1.0 + _BY_CHANCE * math.sqrt(2.0 / max(apart.size, 1))
    return bool(np.sum(np.square(apart)) > by_chance * np.sum(np.square(errors)))


def _kept(apart: Array, errors: Array) -> float:
    """Return the share of differences that is not noise (James and Stein)."""
    energy = float(np.sum(np.square(apart)))
    return max(0.0, 1.0 - float(np.sum(np.square(errors))) / energy) if energy > 0 else 0.0


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"contract"})
def _add_points(X, offsets, centered, turn, limit, out):  # type: ignore[no-untyped-def]
    """Add every user's points, clipped to ``limit``: abscissas to out[0], ordinates to out[1]."""
    d = X.shape[1]
    mean, unit, inverse, square, relative = np.empty((5, d))
    logs, units, angles, points, bits = np.empty(d), np.empty(d), np.empty(d), np.empty((2, d)), np.empty(d, np.int64)
    for i in range(offsets.size - 1):
        first, last = offsets[i], offsets[i + 1]
        if first == last:
            continue
        mean[:], unit[:], square[:] = 0.0, 0.0, 0.0
        for j in range(first, last):
            for a in range(d):
                mean[a] += X[j, a]
                unit[a] += abs(X[j, a])
        share = 1.0 / (last - first)
        for a in range(d):
            mean[a] = mean[a] * share if centered else 0.0
            units[a] = unit[a] * share
            usable = math.isfinite(units[a]) and units[a] > 0.0
            unit[a] = max(units[a], 2.0**-1000) if usable else 1.0  # its reciprocal is finite
            inverse[a] = 1.0 / unit[a]
        for j in range(first, last):
            for a in range(d):
                value = (X[j, a] - mean[a]) * inverse[a]
                square[a] += value * value
        seen = 0.0
        for a in range(d):
            relative[a] = math.sqrt(square[a] * share)
            found = math.isfinite(relative[a]) and math.isfinite(units[a])
            found = found and relative[a] * unit[a] > _CONSTANT * units[a]
            relative[a], units[a] = (relative[a], 1.0) if found else (1.0, 0.0)
            seen += units[a]
        logarithms(relative, bits, logs)
        logarithms(unit, bits, relative)
        for a in range(d):
            angles[a] = min(max(logs[a] + relative[a], -_REACH), _REACH) * turn
        cosines_and_sines(angles, points)
        norm = math.sqrt(seen)
        factor = limit / norm if norm > limit else 1.0
        for a in range(d):
            out[0, a] += points[0, a] * (units[a] * factor)
            out[1, a] += points[1, a] * (units[a] * factor)
