"""Step lengths of trace regression, from the curvature of the squared residuals along a step.

Along a public direction G the sum of squared residuals is a parabola with curvature c = Σ⟨X̃, G⟩²/‖G‖². If entries of X̃
are uncorrelated, c is about one. A common factor, or a nonzero mean, makes it as large as d₁·d₂ in some directions, and
steps of length one then diverge. The best length is 1/c. If X or its covariance is public, c is known; otherwise it is
released once, along the start. (Σ y·X̃ is dominated by directions of large curvature, so no other step has to be
shortened more.) Later steps estimate c from released gradients: between two gradients, the change along the step is c
times the step. No step reads X twice.

Release :class:`StepEnergy`: a unit's s = Σ⟨X̃, G⟩² over its observations, at K levels Lₖ that double, each clipped and
divided by its level: min(s/Lₖ, 1)/√K. It depends on one unit and public fields; no entry is negative and the norm is at
most 1: sensitivity 1 (zero-out), √2 (replace-one: ⟨p, q⟩ ≥ 0). One Gaussian event. Levels start at twice a unit's
energy for c = 1, so no scale has to be released first.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from tacitly.arrays import Array, Offsets, Rows, check_shape
from tacitly.federation.base import Federation, Query
from tacitly.methods.trace_regression.designs import Centre, Design, check_centre, origin
from tacitly.methods.trace_regression.low_rank import Factors, LowRank, inner
from tacitly.methods.trace_regression.queries import Scales
from tacitly.methods.trace_regression.start_kernels import dense_along, factored_along
from tacitly.privacy.calibration import Plan
from tacitly.privacy.clipping import GUARD
from tacitly.privacy.guarantee import Unit

LEVELS = 15
_FEW = 0.15  # if units reach this share of a level on average, little is clipped: 3 % of a squared Gaussian
_MOST_NOISE = 0.05  # noise of that share above which the release is ignored
_FAR = 2.0  # factor by which gradients may leave the range of released curvatures (chosen on tasks of 6×5)
_LEAST = 0.1  # no step is longer than ten: directions in which hardly any X varies carry noise only

Public = Callable[[Array, Array], float]
"""The function (left, right) ↦ Σ⟨X, left·rightᵀ⟩², if it is public."""


@dataclass(frozen=True)
class StepEnergy(Query):
    """A unit's Σ⟨X, left·rightᵀ⟩² as shares of the levels 2·mean, 4·mean, …, clipped at one."""

    design: Design
    left: Array
    right: Array
    mean: float
    unit: Unit = Unit.ROW
    centre: Centre | None = None
    acute: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_shape("left", self.left, self.design.d1, None)
        check_shape("right", self.right, self.design.d2, self.left.shape[1])
        check_centre(self.centre, self.design)
        if not self.mean > 0:  # otherwise levels would be zero
            raise ValueError(f"mean must be positive. Found {self.mean!r}.")

    @property
    def coordinates(self) -> int:
        """Number of levels."""
        return LEVELS

    @property
    def levels(self) -> Array:
        """Levels at which energies are clipped."""
        return np.asarray(self.mean * 2.0 ** np.arange(1.0, LEVELS + 1), dtype=np.float64)

    def contribution(self, X: Rows, y: Rows) -> Array:
        """Return the shares of one unit."""
        check_shape("X", X, None, self.design.n_features)
        fitted = self.design.fitted(X[self.design.known(X)].astype(np.float64), self.left, self.right)
        return self._shares(np.array([np.sum((fitted - self._shift) ** 2)]))

    def block_sum(self, X: Rows, y: Rows, offsets: Offsets, bound: float) -> Array:
        """Return the sum of shares, in one pass over the observations."""
        by_row = self.unit is not Unit.USER
        energies = np.zeros(len(X) if by_row else len(offsets) - 1)
        if self.design.kind == "dense":
            dense_along(X, offsets, by_row, (self.left @ self.right.T).ravel(), self._shift, energies)
        else:
            factored_along(X, offsets, by_row, *self.design.hot, self.left, self.right, energies)
        return min(1.0, bound) * self._shares(energies)

    @property
    def _shift(self) -> float:
        return (
            0.0 if self.centre is None else float(np.sum(self.left.T @ origin(self.design, self.centre) * self.right.T))
        )

    def _shares(self, energies: Array) -> Array:
        with np.errstate(all="ignore"):
            usable = energies[np.isfinite(energies)]
            total = np.array([np.minimum(usable / level, 1.0).sum() for level in self.levels])
        return total * ((1.0 - GUARD) / math.sqrt(LEVELS))

    def read(self, released: Array, sigma: float, units: int) -> float:
        """Return the total Σ⟨X, left·rightᵀ⟩² relative to its value for c = 1, shrunk towards 1 by its noise.

        >>> query = StepEnergy(Design("dense", 1, 1), np.ones((1, 1)), np.ones((1, 1)), 1.0)
        >>> X = np.full((1000, 1), 3.0)
        >>> round(query.read(query.block_sum(X, X[:, 0], np.array([0, 1000]), 1.0), 0.1, 1000), 2)
        9.0
        """
        shares, noise = released * math.sqrt(LEVELS) / units, sigma * math.sqrt(LEVELS) / units
        if noise > _MOST_NOISE:
            return 1.0
        level = int(np.argmax(shares <= _FEW)) if (shares <= _FEW).any() else LEVELS - 1
        found = max(float(shares[level]), noise) * 2.0 ** (level + 1)
        # Shrunk towards one, on logarithms, by the relative noise.
        away, doubt = math.log(found), noise / max(float(shares[level]), noise)
        return math.exp(away * max(0.0, 1.0 - (doubt / away) ** 2)) if away != 0 else 1.0


@dataclass
class LineSearch:
    """Curvatures along steps: public; or released while ``releases_left``; or estimated from gradients."""

    federation: Federation
    plan: Plan
    design: Design
    scales: Scales
    unit: Unit
    public: Public | None
    releases_left: int
    centre: Centre | None = None
    released: list[float] = field(default_factory=list)
    largest: float = 0.0

    def learn(self, secant: Secant | None) -> None:
        """Use the curvature along a step that was too long: it bounds the lengths of later steps."""
        if secant is not None and self.released and secant.value - 2.0 * secant.deviation > max(self.released):
            self.released.append(secant.value)
            self.largest = max(self.largest, secant.value)

    def along(self, step: Factors, secant: Secant | None = None) -> float:
        """Return c along left·rightᵀ, in the scaled design."""
        size = inner(step, step)
        if not (size > 0 and math.isfinite(size)):  # no step; the planned release is made in any case
            step, size = (np.zeros_like(step[0]), np.zeros_like(step[1])), 1.0
        left, right = self.scales.left[:, None] * step[0], self.scales.right[:, None] * step[1]
        if self.public is not None:
            found = self.public(left, right) / size
        elif self.releases_left > 0:
            self.releases_left -= 1
            units = self.federation.n_users if self.unit is Unit.USER else self.federation.n_rows
            query = StepEnergy(self.design, left, right, size / units, self.unit, self.centre)
            event = self.plan.event("curvature", clip=1.0, acute=True)
            noisy = self.federation.release(query, event, f"curvature {len(self.released) + 1}")
            found = query.read(noisy, self.federation.sum_sigma(event), units)
            self.released.append(found)
        else:
            # Gradients are noisy: limit the estimate to values near the released curvatures and one.
            found = self.released[-1] if secant is None or secant.value <= 0 else secant.shrunk(self.released[-1])
            found = min(max(found, min(1.0, *self.released) / _FAR), _FAR * max(1.0, *self.released))
        found = max(found, _LEAST) if found > 0 and math.isfinite(found) else 1.0
        self.largest = max(self.largest, found)
        return found


@dataclass(frozen=True)
class Secant:
    """Curvature along the step between two matrices, from the gradients at both, and its standard deviation.

    ``rises`` is whether the sum of squares has grown along the step, beyond noise: by the trapezoid rule, which is
    exact for a parabola, it falls by the mean of both gradients along the step.
    """

    value: float
    deviation: float
    rises: bool = False

    @classmethod
    def between(
        cls, before: LowRank, after: LowRank, gradients: tuple[Factors, Factors], noises: tuple[float, float]
    ) -> Secant | None:
        """Return ⟨ΔM, g − g'⟩/‖ΔM‖²; None if there was no step."""
        step = (
            np.hstack([after.left * after.values, -before.left * before.values]),
            np.hstack([after.right, before.right]),
        )
        size = inner(step, step)
        if not size > 0:
            return None
        first, second = inner(step, gradients[0]), inner(step, gradients[1])
        deviation = math.hypot(*noises) / math.sqrt(size)
        return cls((first - second) / size, deviation, (first + second) / size < -2.0 * deviation)

    def shrunk(self, prior: float) -> float:
        """Return the value, shrunk towards ``prior`` by its noise.

        >>> Secant(3.0, 0.0).shrunk(1.0), Secant(3.0, 9.0).shrunk(1.0)
        (3.0, 1.0)
        """
        away = self.value - prior
        return prior + away * max(0.0, 1.0 - (self.deviation / away) ** 2) if away != 0 else prior
