"""Private means of X and y for dense designs, paid from the budget, so that both can be centred.

If X has a nonzero mean m, the curvature of the squared residuals is 1 + ‖m‖²/var along m and about 1 in all other
directions, and a few noisy steps make no progress (entries in [0, 1]: 1 + 3·d₁·d₂). Centring removes this:
y = level + ⟨X − m, M⟩ with the same M. The level is one more number, fitted with M.

Other designs are not centred: X = e_i e_jᵀ has one entry and the same curvature in all directions. For tasks and
rank-one designs see :mod:`tacitly.methods.trace_regression.factor_whitening`.

Release :class:`ObservationSum`: Σ (X − c) of a unit, c public, clipped to norm C. A unit is one summand, and two
contributions can point against each other: sensitivity C (zero-out), 2C (replace-one). One Gaussian event.

Release :class:`LabelSum`: y of an observation, clipped to [−C, C]. Sensitivity C (zero-out), 2C (replace-one: −C
becomes C). One Gaussian event. Units row and label are defined in :mod:`tacitly.methods.trace_regression.queries`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tacitly.arrays import Array, Offsets, Rows, check_shape, read_only
from tacitly.federation.base import Federation, Query
from tacitly.methods.shared.norm_histogram import NormHistogram, quantile_of
from tacitly.methods.trace_regression.designs import Centre, Design, check_centre, origin
from tacitly.methods.trace_regression.queries import OnePass
from tacitly.methods.trace_regression.start_kernels import dense_labelled
from tacitly.privacy.calibration import Plan
from tacitly.privacy.clipping import GUARD
from tacitly.privacy.guarantee import Unit

ROUNDS = 2
"""Number of times the mean of X is released."""

_MARGIN = 1.25  # bounds are this factor above the 90 % quantile of norms: with equal norms nothing is clipped
_CONFIDENCE = 8.0  # noise alone makes a part of a mean longer than the threshold with probability e⁻⁸
_LEAST_CURVATURE = 0.5  # a mean that adds less curvature than this is not subtracted: the level costs noise too


@dataclass(frozen=True)
class ObservationSum(OnePass):
    """The sum of a unit's matrices, centred."""

    design: Design
    unit: Unit = Unit.ROW
    centre: Centre | None = None

    def __post_init__(self) -> None:
        if self.design.kind != "dense":
            raise ValueError(f"only dense designs have a centre. Found {self.design.kind!r}.")
        check_centre(self.centre, self.design)

    @property
    def coordinates(self) -> int:
        """Entries of a matrix."""
        return self.design.n_features

    def contribution(self, X: Rows, y: Rows) -> Array:
        """Return Σ (X − c)."""
        check_shape("X", X, None, self.design.n_features)
        total: Array = (np.asarray(X, dtype=np.float64) - origin(self.design, self.centre).ravel()).sum(axis=0)
        return total

    def _pass(self, X: Rows, y: Rows, offsets: Offsets, limit: float) -> tuple[Array, Array]:
        by_row, size = self.unit is not Unit.USER, self.coordinates
        total, norms = np.zeros(size), np.zeros(len(X) if by_row else len(offsets) - 1)
        centre = origin(self.design, self.centre).ravel()
        rows, ones = read_only(X), read_only(np.ones(len(X)))
        dense_labelled(rows, ones, offsets, by_row, centre, np.ones(size), limit, total, norms)
        return total, norms


@dataclass(frozen=True)
class LabelSum(Query):
    """The label of an observation."""

    unit: Unit = Unit.ROW

    def __post_init__(self) -> None:
        if self.unit is Unit.USER:
            raise ValueError("labels are summed by observation: the unit must be a row or a label. Found unit 'user'.")

    @property
    def coordinates(self) -> int:
        """One number."""
        return 1

    def contribution(self, X: Rows, y: Rows) -> Array:
        """Return the label."""
        return np.array([float(self._labels(X, y).sum())])

    def norms(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        """Return absolute values."""
        return np.abs(self._labels(X, y))

    def block_sum(self, X: Rows, y: Rows, offsets: Offsets, bound: float) -> Array:
        """Clip and sum."""
        limit = bound * (1.0 - GUARD)
        return np.array([float(np.clip(self._labels(X, y), -limit, limit).sum())])

    def _labels(self, X: Rows, y: Rows) -> Array:
        """Return labels; 0 for an observation that is not finite."""
        with np.errstate(all="ignore"):
            usable = np.isfinite(X.sum(axis=1, dtype=np.float64)) & np.isfinite(y)
        return np.where(usable, y, 0.0).astype(np.float64)


def centre_of(
    federation: Federation, plan: Plan, design: Design, unit: Unit, public_mean: Array | None, *, private: bool
) -> Centre | None:
    """Return the centre; None if the mean is too small to matter or hidden by noise. For units row and label.

    With ``private`` the mean of X is released, else it is ``public_mean``. Every planned release is made, independently
    of the results of earlier ones.
    """
    n = federation.n_rows
    mean = private_mean(federation, plan, design, unit)[0] if private else public_mean
    if not private and mean is None:
        return None
    bound, _ = bound_of(federation, plan, LabelSum(unit), "label scale", "sizes of labels")
    level = float(federation.release(LabelSum(unit), plan.event("label", clip=bound), "mean of the labels")[0]) / n
    return None if mean is None else Centre(mean, level, 1.0 / math.sqrt(n))


def private_mean(
    federation: Federation, plan: Plan, design: Design, unit: Unit, where: str = ""
) -> tuple[Array | None, float]:
    """Return the mean (None if it does not matter) and the 90 % quantile of the observations' distance from it.

    There are several rounds: around the mean from the previous round, norms are smaller, and so is the noise.
    """
    n, found, norm = federation.n_rows, np.zeros((design.d1, design.d2)), 0.0
    for number in range(1, ROUNDS + 1):
        query = ObservationSum(design, unit, Centre(found))
        bound, norm = bound_of(federation, plan, query, "centre scale", f"norms of observations {number}{where}")
        event = plan.event("centre", clip=bound)
        more = federation.release(query, event, f"mean of the design {number}{where}").reshape(found.shape) / n
        found = found + shrunk(more, federation.sum_sigma(event) / n)
    return (found if matters(found, norm) else None), norm


def matters(mean: Array, norm: float) -> bool:
    """Return whether a design with this mean and this typical distance from it should be centred.

    >>> matters(np.full(80, 0.5), 80**0.5 * 0.29), matters(np.full(80, 0.01), 80**0.5)
    (True, False)
    """
    return float(np.sum(mean**2)) > _LEAST_CURVATURE * norm**2 / mean.size


def shrunk(mean: Array, sigma: float) -> Array:
    """Return a noisy mean, shrunk by the expected squared norm of the noise (James and Stein).

    The overall mean, row effects, column effects and the rest are shrunk separately: most means have little rest, and
    nearly all of the noise is there. A part that does not exceed the noise is set to zero.

    >>> shrunk(np.array([[3.0, 4.0]]), 0.0), shrunk(np.array([[3.0, 4.0]]), 5.0)
    (array([[3., 4.]]), array([[0., 0.]]))
    """
    d1, d2 = mean.shape
    whole = np.full(mean.shape, mean.mean())
    rows, columns = mean.mean(axis=1, keepdims=True) - whole, mean.mean(axis=0, keepdims=True) - whole
    rest = mean - whole - rows - columns
    parts = ((1, whole), (d1 - 1, rows), (d2 - 1, columns), ((d1 - 1) * (d2 - 1), rest))
    found = np.zeros(mean.shape)
    for dimensions, part in parts:
        size = float(np.sum(part**2))
        # Noise alone exceeds this with probability e^−_CONFIDENCE at most (Laurent and Massart 2000).
        alone = dimensions + 2.0 * math.sqrt(dimensions * _CONFIDENCE) + 2.0 * _CONFIDENCE
        if dimensions and size > alone * sigma**2:
            found += (1.0 - dimensions * sigma**2 / size) * part
    return found


def bound_of(federation: Federation, plan: Plan, query: Query, phase: str, name: str) -> tuple[float, float]:
    """Return a clipping bound above nearly all norms, and the 90 % quantile of norms from which it is computed."""
    event = plan.event(phase, clip=1.0, acute=True)
    norm = quantile_of(federation.release(NormHistogram(query), event, name), federation.sum_sigma(event), 0.9)
    return _MARGIN * norm, norm
