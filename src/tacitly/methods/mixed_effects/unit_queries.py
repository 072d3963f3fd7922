"""Queries about the units of columns: values are mapped to points on circles, which are bounded for any data.

One user's point has norm at most 1 per column, and columns are weighted by public weights ω. So a contribution has norm
at most ‖ω‖: the sensitivity is ‖ω‖ (zero-out) or 2‖ω‖ (replace-one), with one Gaussian event per release.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tacitly.arrays import Array, Offsets, Rows, check_shape, read_only
from tacitly.federation.statistics import Statistics
from tacitly.methods.shared.batch import BatchQuery, Contributions, circle, per_user

_LANES = 8  # numbers in a register of the kernels
_OCTAVES = 2200.0  # more than any two floating-point numbers are apart


@dataclass(frozen=True)
class Magnitudes(BatchQuery):
    """Orders of magnitude of the columns in use (features, then the target), and flags for columns of 0 and 1 only.

    Each nonzero value x of a column is mapped to a unit vector: log₂|x| − ``octaves`` on a circle that covers
    ±``reach`` octaves. The column's point is the mean of these vectors. A feature whose values are all 0 or 1 sends a
    flag of 1 instead.
    """

    used: Array  # 1 for a column whose units are to be found, else 0
    octaves: Array  # what the circle is centered on
    weights: Array
    reach: float

    def __post_init__(self) -> None:
        for name in ("octaves", "weights"):
            check_shape(name, getattr(self, name), len(self.used))
        if not (np.abs(self.octaves) <= _OCTAVES).all() or not 1.0 <= self.reach <= _OCTAVES:
            raise ValueError(f"octaves must be finite numbers and reach at least 1. Found reach {self.reach!r}.")

    @property
    def coordinates(self) -> int:
        """A point and a flag per column."""
        return 3 * len(self.used)

    @property
    def bound(self) -> float:
        """Largest norm of a contribution; a small one where nothing is looked at, since a clip must be positive."""
        return _bound(self.weights, self.used)

    def contributions(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        """Return weighted mean points and flags."""
        columns = _columns(X, y)
        finite = np.isfinite(columns)
        seen = finite & (columns != 0)
        octaves = np.log2(np.abs(np.where(seen, columns, 1.0))) - self.octaves
        points = circle(octaves, self.reach) * seen[..., None]
        counts = np.maximum(per_user(seen.astype(np.float64), offsets), 1.0)
        means = [per_user(points[..., axis], offsets) / counts for axis in (0, 1)]
        others = per_user((seen & (columns != 1)).astype(np.float64), offsets)
        binary = (others == 0) & (per_user(finite.astype(np.float64), offsets) > 0)
        binary[:, -1] = False
        weights = self.weights * self.used
        return np.hstack([*(np.where(binary, 0.0, mean) * weights for mean in means), binary * weights])

    @property
    def statistics(self) -> Statistics | None:
        """Its own contributions."""
        return Contributions(self)

    def fused(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        """Return the contributions, compiled; columns that are not in use are not looked at."""
        from tacitly.methods.mixed_effects.unit_kernels import write_magnitudes

        out, weights = np.zeros((len(offsets) - 1, self.coordinates)), self.weights * self.used
        rows, in_use = _kernel_rows(X, y, len(self.used)), _in_use(self.used)
        octaves = _in_lanes(self.octaves, in_use[0], 0.0)
        write_magnitudes(*rows, offsets, *in_use, octaves, self.reach, weights, out)
        return out


@dataclass(frozen=True)
class Angles(BatchQuery):
    """Mean points of (x − center)/period on the circle, over cells that are not missing, for the columns in use."""

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
        return _bound(self.weights, self.used)

    def contributions(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        """Return weighted mean points."""
        asked = np.flatnonzero(self.used)
        center, columns = self.center[asked], _columns(X, y)[:, asked]
        seen = np.isfinite(columns)
        counts = np.maximum(per_user(seen.astype(np.float64), offsets), 1.0)
        angles = np.remainder((np.where(seen, columns, center) - center) / self.period[asked], 2.0) * np.pi
        out = np.zeros((len(offsets) - 1, 2, len(self.used)))
        for axis, part in enumerate((np.cos, np.sin)):
            out[:, axis, asked] = per_user(part(angles) * seen, offsets) / counts * (self.weights * self.used)[asked]
        return out.reshape(len(out), -1)

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


def _bound(weights: Array, used: Array) -> float:
    return float(np.linalg.norm(weights * used)) or float(np.linalg.norm(weights))


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
