"""Where a dense design has its middle: the means of X and of y, bought, so that both can be counted from there.

A mean m of X that is not zero makes the squared residuals as steep as 1 + ‖m‖²/var along m, where they are about 1
along everything else, and a few noisy steps get nowhere (entries in [0, 1]: 1 + 3·d₁·d₂). Counted from m,
y = level + ⟨X − m, M⟩ with the same M, and that is gone. The level is a number of its own, fitted with M.

Other designs are not counted from anywhere: X = e_i e_jᵀ has one entry, and is as steep along all; what is done for
tasks and rank-one designs is in :mod:`tacitly.methods.trace_regression.sides`.

Release :class:`ObservationSum`: Σ (X − c) of a unit, c public, clipped to norm C. One unit is one summand, and two may
point against each other: sensitivity C (zero-out), 2C (replace-one). One Gaussian event.

Release :class:`LabelSum`: y of an observation, cut at ±C. Sensitivity C (zero-out), 2C (replace-one: −C becomes C).
One Gaussian event. Both for units row and label as :mod:`tacitly.methods.trace_regression.queries` says.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tacitly.arrays import Array, Offsets, Rows, check_shape, read_only
from tacitly.federation.base import Federation, Query
from tacitly.methods.shared.norm_histogram import NormHistogram, quantile_of
from tacitly.methods.trace_regression.designs import Centre, Design, check_centre, origin
from tacitly.methods.trace_regression.start_kernels import dense_labelled
from tacitly.privacy.calibration import Plan
from tacitly.privacy.clipping import GUARD
from tacitly.privacy.guarantee import Unit

ROUNDS = 2
"""Times that the mean of X is asked for."""

_ROOM = 1.25  # clips lie this much above the 90 % quantile of norms: where norms are even nothing is cut
_SURE = 8.0  # a part of a mean has to be longer than noise alone is in all but e⁻⁸ of the cases
_STEEP = 0.5  # a mean that adds less than this share to the steepness is left where it is: the level costs noise too


@dataclass(frozen=True)
class ObservationSum(Query):
    """The sum of a unit's matrices."""

    design: Design
    unit: Unit = Unit.ROW
    centre: Centre | None = None

    def __post_init__(self) -> None:
        if self.design.kind != "dense":
            raise ValueError(f"only dense designs are counted from a centre. Found {self.design.kind!r}.")
        check_centre(self.centre, self.design)

    @property
    def coordinates(self) -> int:
        """Entries of a matrix."""
        return self.design.n_features

    def contribution(self, X: Rows, y: Rows) -> Array:
        """Return Σ X, counted from the centre."""
        check_shape("X", X, None, self.design.n_features)
        total: Array = (np.asarray(X, dtype=np.float64) - origin(self.design, self.centre).ravel()).sum(axis=0)
        return total

    def norms(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        """Norms, in one pass."""
        return self._pass(X, offsets, 1.0)[1]

    def block_sum(self, X: Rows, y: Rows, offsets: Offsets, bound: float) -> Array:
        """One pass over the observations."""
        return self._pass(X, offsets, bound * (1.0 - GUARD))[0]

    def _pass(self, X: Rows, offsets: Offsets, limit: float) -> tuple[Array, Array]:
        by_row, size = self.unit is not Unit.USER, self.coordinates
        total, norms = np.zeros(size), np.zeros(len(X) if by_row else len(offsets) - 1)
        middle = origin(self.design, self.centre).ravel()
        rows, ones = read_only(X), read_only(np.ones(len(X)))
        dense_labelled(rows, ones, offsets, by_row, middle, np.ones(size), limit, total, norms)
        return total, norms


@dataclass(frozen=True)
class LabelSum(Query):
    """The label of an observation."""

    unit: Unit = Unit.ROW

    def __post_init__(self) -> None:
        if self.unit is Unit.USER:
            raise ValueError("labels are added up by observation. Found unit 'user'.")

    @property
    def coordinates(self) -> int:
        """One number."""
        return 1

    def contribution(self, X: Rows, y: Rows) -> Array:
        """Return the label."""
        return np.array([float(self._labels(X, y).sum())])

    def norms(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        """Absolute values."""
        return np.abs(self._labels(X, y))

    def block_sum(self, X: Rows, y: Rows, offsets: Offsets, bound: float) -> Array:
        """Cut and add."""
        limit = bound * (1.0 - GUARD)
        return np.array([float(np.clip(self._labels(X, y), -limit, limit).sum())])

    def _labels(self, X: Rows, y: Rows) -> Array:
        """Return labels; 0 of an observation that is not finite."""
        with np.errstate(all="ignore"):
            usable = np.isfinite(X.sum(axis=1, dtype=np.float64)) & np.isfinite(y)
        return np.where(usable, y, 0.0).astype(np.float64)


def centre_of(
    federation: Federation, plan: Plan, design: Design, unit: Unit, public: Array | None, *, buys: bool
) -> Centre | None:
    """Return where to count from; None where the mean is too small to matter, or lost in noise. For units of rows.

    ``public`` is a mean that is known. What was planned is asked for whatever comes out of it.
    """
    n = federation.n_rows
    if buys:
        public = bought(federation, plan, design, unit)[0]
    elif public is None:
        return None
    bound, _ = _bound(federation, plan, LabelSum(unit), "label scale", "sizes of labels")
    level = float(federation.release(LabelSum(unit), plan.event("label", clip=bound), "mean of the labels")[0]) / n
    return None if public is None else Centre(public, level, 1.0 / math.sqrt(n))


def bought(
    federation: Federation, plan: Plan, design: Design, unit: Unit, where: str = ""
) -> tuple[Array | None, float]:
    """Return the mean (None where it does not matter) and how far from it observations are (90 % of them).

    In rounds: counted from what the last one found, norms are smaller, and noise with them.
    """
    n, found, norm = federation.n_rows, np.zeros((design.d1, design.d2)), 0.0
    for number in range(1, ROUNDS + 1):
        query = ObservationSum(design, unit, Centre(found))
        bound, norm = _bound(federation, plan, query, "centre scale", f"norms of observations {number}{where}")
        event = plan.event("centre", clip=bound)
        more = federation.release(query, event, f"mean of the design {number}{where}").reshape(found.shape) / n
        found = found + shrunk(more, federation.sum_sigma(event) / n)
    return (found if matters(found, norm) else None), norm


def matters(mean: Array, norm: float) -> bool:
    """Return whether X of this mean and with this (typical) distance from it is worth counting from there.

    >>> matters(np.full(80, 0.5), 80**0.5 * 0.29), matters(np.full(80, 0.01), 80**0.5)
    (True, False)
    """
    return float(np.sum(mean**2)) > _STEEP * norm**2 / mean.size


def shrunk(mean: Array, sigma: float) -> Array:
    """Return a noisy mean without what noise alone would add to its length (James and Stein).

    The mean of all, what rows and columns add to it, and the rest are shrunk each by its own length: most means have
    little rest, and nearly all of the noise is there. What does not stand out is taken for zero.

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
        # Noise alone is longer with probability e^−_SURE at most (Laurent and Massart 2000).
        alone = dimensions + 2.0 * math.sqrt(dimensions * _SURE) + 2.0 * _SURE
        if dimensions and size > alone * sigma**2:
            found += (1.0 - dimensions * sigma**2 / size) * part
    return found


def _bound(federation: Federation, plan: Plan, query: Query, phase: str, name: str) -> tuple[float, float]:
    """Return a clip that cuts hardly anybody, and the 90 % quantile of norms that it comes from."""
    event = plan.event(phase, clip=1.0, acute=True)
    norm = quantile_of(federation.release(NormHistogram(query), event, name), federation.sum_sigma(event), 0.9)
    return _ROOM * norm, norm
