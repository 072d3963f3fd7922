"""Centers and scales of all columns, learned privately from nothing: no range is assumed, any unit will do.

Features with public bounds (declared ranges, indicators) need nothing. For the others, and for the target:

1. :class:`Magnitudes`: each user's mean, over its rows, of log₂|x| as a point on the unit circle, and whether all of
   its values are 0 or 1. The direction of the mean shows the order of magnitude of a column, of 60 octaves.
2. :class:`Angles`, several times: each user's mean of exp(iπ(x − c)/M), with a period M from the magnitude. Direction
   and length of the mean give center and spread, if the spread is not far below M; otherwise M shrinks to a seventh
   and the next release looks closer. So 1,000 ± 0.01 is found in a few steps.

One user's points have norm at most 1 per column and are weighted by public weights ω (the target heavier), so a
contribution has norm at most ‖ω‖: sensitivity ‖ω‖ (zero-out), 2‖ω‖ (replace-one), one Gaussian event per release.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tacitly.arrays import Array, Offsets, Rows, check_shape, read_only
from tacitly.federation.base import Federation
from tacitly.federation.statistics import Statistics
from tacitly.methods.mixed_effects.posterior import Coordinates
from tacitly.methods.shared.batch import BatchQuery, Contributions, circle, per_user, uncircle
from tacitly.privacy.calibration import Plan

STEPS = 6
"""Releases of :class:`Angles`: the first sees spreads of the column's magnitude, the last 13,500 times smaller ones."""

TARGET_WEIGHT = 1.5
MAGNITUDES_SHARE = 0.35
ANGLES_SHARES = (0.35, 0.12, 0.045, 0.045, 0.045, 0.045)
_REACH, _ZOOM, _PERIOD = 30.0, 6.7, 6.6
_LANES = 8  # numbers in a register of the kernels
_RARE = 0.02  # an indicator that is set less often is left out
_CLEAR = 4.5  # times the noise that a magnitude's point must reach: then it is known to 2.4 octaves
_BLIND = 0.25  # noise of the target's point beyond which its scale is not found


@dataclass(frozen=True)
class Magnitudes(BatchQuery):
    """Orders of magnitude of the columns in use (features, then the target), and which are all 0 or 1."""

    used: Array  # 1 for a column whose units are to be found, else 0
    weights: Array

    def __post_init__(self) -> None:
        check_shape("weights", self.weights, len(self.used))

    @property
    def coordinates(self) -> int:
        """A point and a flag per column."""
        return 3 * len(self.used)

    @property
    def bound(self) -> float:
        """Largest norm of a contribution."""
        return float(np.linalg.norm(self.weights * self.used))

    def contributions(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        """Return weighted mean points and flags; a column that is all 0 or 1 sends the flag instead of the point."""
        columns = _columns(X, y)
        rows = np.maximum(np.diff(offsets), 1.0)[:, None]
        seen = np.isfinite(columns) & (columns != 0)
        points = circle(np.log2(np.abs(np.where(seen, columns, 1.0))), _REACH) * seen[..., None]
        means = [per_user(points[..., axis], offsets) / rows for axis in (0, 1)]
        others = per_user((np.isfinite(columns) & (columns != 0) & (columns != 1)).astype(np.float64), offsets)
        binary = (others == 0) & (per_user(np.isfinite(columns).astype(np.float64), offsets) > 0)
        return self._weighted(means[0], means[1], binary)

    @property
    def statistics(self) -> Statistics | None:
        """Its own contributions."""
        return Contributions(self)

    def fused(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        """Return the contributions, compiled; columns that are not in use are not looked at."""
        from tacitly.methods.mixed_effects.unit_kernels import write_magnitudes

        out, weights = np.zeros((len(offsets) - 1, self.coordinates)), self.weights * self.used
        rows, in_use = _kernel_rows(X, y, len(self.used)), _in_use(self.used)
        write_magnitudes(*rows, offsets, *in_use, _REACH, weights, out)
        return out

    def _weighted(self, cosines: Array, sines: Array, binary: npt.NDArray[np.bool_]) -> Array:
        binary[:, -1] = False
        weights = self.weights * self.used
        return np.hstack([*(np.where(binary, 0.0, mean) * weights for mean in (cosines, sines)), binary * weights])


@dataclass(frozen=True)
class Angles(BatchQuery):
    """Mean points of (x − center)/period on the circle, for the columns that are still looked at."""

    used: Array
    center: Array
    period: Array
    weights: Array

    def __post_init__(self) -> None:
        for name in ("center", "period", "weights"):
            check_shape(name, getattr(self, name), len(self.used))
        if not (self.period > 0).all():
            raise ValueError("periods must be positive.")

    @property
    def coordinates(self) -> int:
        """A point per column."""
        return 2 * len(self.used)

    @property
    def bound(self) -> float:
        """Largest norm of a contribution; a small one where nothing is looked at, since a clip must be positive."""
        return float(np.linalg.norm(self.weights * self.used)) or float(np.linalg.norm(self.weights))

    def contributions(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        """Return weighted mean points."""
        columns = _columns(X, y)
        rows = np.maximum(np.diff(offsets), 1.0)[:, None]
        seen = np.isfinite(columns) & (self.used > 0)
        angles = np.remainder((np.where(seen, columns, self.center) - self.center) / self.period, 2.0) * np.pi
        weights = self.weights * self.used
        means = [per_user(part(angles) * seen, offsets) / rows for part in (np.cos, np.sin)]
        return np.hstack([mean * weights for mean in means])

    @property
    def statistics(self) -> Statistics | None:
        """Its own contributions."""
        return Contributions(self)

    def fused(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        """Return the contributions, compiled; columns that are not in use are not looked at."""
        from tacitly.methods.mixed_effects.unit_kernels import write_angles

        out, weights = np.zeros((len(offsets) - 1, self.coordinates)), self.weights * self.used
        rows, in_use = _kernel_rows(X, y, len(self.used)), _in_use(self.used)
        public = _in_lanes(self.center, in_use[0], 0.0), _in_lanes(self.period, in_use[0], 1.0)
        write_angles(*rows, offsets, *in_use, *public, weights, out)
        return out


@dataclass(frozen=True)
class Shares(BatchQuery):
    """How often each indicator of a text column is set: mean over a user's rows; zero for all other columns.

    The indicators of one text column are set once per row, so its means have norm at most 1: a contribution has norm at
    most √(number of text columns).
    """

    used: Array  # 1 for an indicator of a text column, else 0
    texts: int  # how many text columns there are

    @property
    def coordinates(self) -> int:
        """A mean per feature."""
        return len(self.used)

    @property
    def bound(self) -> float:
        """Largest norm of a contribution."""
        return math.sqrt(self.texts)

    def contributions(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        """Return mean indicators."""
        cells = np.asarray(X, dtype=np.float64)
        rows = np.maximum(np.diff(offsets), 1.0)[:, None]
        return np.asarray(per_user(np.where(np.isfinite(cells), cells, 0.0) * self.used, offsets) / rows)


@dataclass
class _Search:
    """Public state of the search, one entry per column."""

    center: Array
    scale: Array
    magnitude: Array
    period: Array
    found: npt.NDArray[np.bool_]
    active: npt.NDArray[np.bool_]
    spread_seen: npt.NDArray[np.bool_]


def learn_units(
    federation: Federation, plan: Plan, bounds: tuple[tuple[float, float] | None, ...], texts: tuple[int, ...] = ()
) -> Coordinates:
    """Return public units: from ``bounds`` (features, then the target) where they are known, else released.

    ``texts`` has, for each feature, the number of its text column from 1, or 0: of the indicators of text columns those
    are kept whose released share stands out of the noise and is at least one in fifty.
    A feature whose scale is not found gets a gain of zero, which leaves it out. ``spread`` is zero if the target's is
    not.
    """
    center, scale = np.zeros(len(bounds)), np.ones(len(bounds))
    found, used = np.ones(len(bounds), dtype=bool), np.zeros(len(bounds), dtype=bool)
    for column, known in enumerate(bounds):
        if known is None:
            used[column] = True
        elif known == (0.0, 1.0):
            scale[column] = 0.5
        else:
            center[column], scale[column] = (known[0] + known[1]) / 2.0, (known[1] - known[0]) / 4.0
    if used.any():
        searched = _search(federation, plan, used)
        center, scale = np.where(used, searched.center, center), np.where(used, searched.scale, scale)
        found = np.where(used, searched.found, found)
    gain = np.where(found, 1.0 / scale, 0.0)
    if any(texts):
        gain[:-1] = gain[:-1] * _frequent(federation, plan, np.array(texts))
    return Coordinates(center[:-1], gain[:-1], float(center[-1]), float(scale[-1]) if found[-1] else 0.0)


def blind(sigma: float, n_users: float) -> bool:
    """Whether the target's scale cannot be found: ``sigma`` is the noise of :class:`Magnitudes`; public beforehand."""
    return sigma / n_users / TARGET_WEIGHT > _BLIND


def weights_of(count: int) -> Array:
    """Return the public weights of ``count`` columns, the target last."""
    return np.append(np.ones(count - 1), TARGET_WEIGHT)


def _frequent(federation: Federation, plan: Plan, texts: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Return which features are no indicators of text columns, or frequent ones; all but the most frequent of each."""
    query = Shares((texts > 0).astype(np.float64), len(np.unique(texts[texts > 0])))
    event = plan.event("shares of text", clip=query.bound)
    shares = federation.release(query, event, "shares of text") / federation.n_users
    kept = (texts == 0) | (shares > max(3.0 * federation.sum_sigma(event) / federation.n_users, _RARE))
    for column in np.unique(texts[texts > 0]):  # the most frequent level is the reference
        own = np.flatnonzero(texts == column)
        kept[own[np.argmax(shares[own])]] = False
    return np.asarray(kept)


def _search(federation: Federation, plan: Plan, used: npt.NDArray[np.bool_]) -> _Search:
    weights, n = weights_of(len(used)), plan.sampling_rate * federation.n_users
    state = _magnitudes(federation, plan, used, weights, n)
    for step in range(STEPS):
        active = state.active.astype(np.float64)
        period = np.where(state.active, state.period, 1.0)
        query = Angles(active, np.where(state.active, state.center, 0.0), period, weights)
        event = plan.event(f"centers {step + 1}", clip=query.bound)
        released = federation.release(query, event, f"centers {step + 1}") / n
        noise = np.maximum(federation.sum_sigma(event) / n / weights, 1e-12)
        points = released.reshape(2, -1).T / weights[:, None]
        _look(state, points, noise, first=step == 0)
    state.scale = np.where(state.active, state.magnitude, state.scale)  # sharp at every step: constant, or rare values
    state.scale = np.maximum(state.scale, 1e-12 * np.maximum(state.magnitude, 1e-300))
    if blind(
        federation.sum_sigma(plan.event("magnitudes", clip=Magnitudes(used.astype(np.float64), weights).bound)), n
    ):
        state.found[-1] = False
    return state


def _magnitudes(federation: Federation, plan: Plan, used: npt.NDArray[np.bool_], weights: Array, n: float) -> _Search:
    query = Magnitudes(used.astype(np.float64), weights)
    event = plan.event("magnitudes", clip=query.bound)
    released = federation.release(query, event, "magnitudes") / n
    noise = federation.sum_sigma(event) / n / weights
    x, y, flags = released.reshape(3, -1) / weights
    length = np.hypot(x, y)
    binary = used & (flags > 0.5) & (3.0 * noise < 1.0)
    seen = length > _CLEAR * noise
    magnitude = np.where(seen, 2.0 ** uncircle(np.stack([x, y], axis=-1), _REACH), 1.0)
    period = _PERIOD * magnitude
    return _Search(
        center=np.zeros(len(used)),
        scale=np.where(binary, 0.5, period / 4.0),
        magnitude=magnitude,
        period=period,
        found=binary | seen,
        active=used & ~binary,
        spread_seen=np.zeros(len(used), dtype=bool),
    )


def _look(state: _Search, points: Array, noise: Array, *, first: bool) -> None:
    """Take one release of :class:`Angles` into account: public numbers only."""
    length = np.hypot(points[:, 0], points[:, 1])
    highest = np.maximum(1.0 - np.maximum(noise / 2.0, 1e-9), 0.05)
    radius = np.sqrt(-2.0 * np.log(np.clip(length, 0.05, highest)))
    clear = state.active & (length > np.maximum(3.0 * noise, 0.05 if first else 0.35))
    unclear = state.active & ~clear
    if first:
        state.found = state.found | clear
    else:  # uniform on the finer circle: the spread is at least of the period's size
        wide = np.maximum(state.scale, 1.5 * state.period / math.pi)
        state.scale = np.where(unclear, wide, state.scale)
    atoms = clear & state.spread_seen  # a spread was seen before, yet the column is sharp here: few separate values
    state.scale = np.where(atoms, state.magnitude, state.scale)
    moved = clear & ~atoms
    angle = np.arctan2(points[:, 1], points[:, 0])
    state.center = np.where(moved, state.center + angle * state.period / math.pi, state.center)
    state.scale = np.where(moved, radius * state.period / math.pi, state.scale)
    state.spread_seen = np.where(moved, (length + 2.5 * noise < 1.0) & (length < 0.97), state.spread_seen)
    measured = state.active & (length + 1.5 * noise < (0.9 if first else 0.75))
    state.active = moved & ~measured
    state.period = np.where(state.active, state.period / _ZOOM, state.period)


def _kernel_rows(X: Rows, y: Rows, columns: int) -> tuple[Rows, Rows]:
    """Return rows as kernels take them; there are ``columns`` columns, the target included."""
    check_shape("X", X, None, columns - 1)
    check_shape("y", y, len(X))
    return read_only(np.ascontiguousarray(X)), read_only(np.ascontiguousarray(y))


def _in_use(used: Array) -> tuple[npt.NDArray[np.int64], bool]:
    """Return the positions of the features in use, and whether the target is."""
    return np.flatnonzero(used[:-1]), bool(used[-1])


def _in_lanes(values: Array, features: npt.NDArray[np.int64], filling: float) -> Array:
    """Return the features' numbers, filled up to whole registers of eight, then a register of the target's."""
    width = max(1, -(-len(features) // _LANES)) * _LANES
    lanes = np.full(width + _LANES, filling)
    lanes[: len(features)], lanes[width:] = values[features], values[-1]
    return lanes


def _columns(X: Rows, y: Rows) -> Array:
    return np.concatenate([np.asarray(X, dtype=np.float64), np.asarray(y, dtype=np.float64)[:, None]], axis=1)
