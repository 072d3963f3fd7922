"""How long a step of trace regression may be: the curvature of the squared residuals along it.

Along a public direction G the sum of squared residuals is a parabola with curvature c = Σ⟨X̃, G⟩²/‖G‖². Where entries of
X̃ are not correlated c is about one. One common factor, or a mean that is not zero, makes it as large as d₁·d₂ in some
directions, and steps of length one then grow without bound. The best length is 1/c; c is known where X or its
covariance is public, and bought along the start, once, where neither is. (Σ y·X̃ leans towards steep directions, so
that is the most a step has to be shortened by.) Steps then read it off the gradients that are out already: between two
of them, the change along the step is c times the step. No step reads X twice.

Release :class:`StepEnergy`: a unit's s = Σ⟨X̃, G⟩² over its observations, cut at levels that double, each as a share of
its level: min(s/Lₖ, 1)/√K. No entry is negative and the norm is at most 1: sensitivity 1 (zero-out), √2 (replace-one).
One Gaussian event. Levels start at twice what a unit would have if c were one, so no scale has to be bought first.
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
_FEW = 0.15  # a level at which units reach this share of it on average cuts off little: 3 % of a squared Gaussian
_UNSURE = 0.05  # noise in that share above which nothing is believed
_FAR = 2.0  # times that two gradients may say a curvature is outside of what was bought (chosen on tasks of 6×5)
_LEAST = 0.1  # no step is longer than ten: directions that hardly any X sees carry noise only

Public = Callable[[Array, Array], float]
"""Σ⟨X, left·rightᵀ⟩² where that is public."""


@dataclass(frozen=True)
class StepEnergy(Query):
    """A unit's Σ⟨X, left·rightᵀ⟩², as shares of levels 2·mean, 4·mean, …, cut at one."""

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

    @property
    def coordinates(self) -> int:
        """Number of levels."""
        return LEVELS

    @property
    def levels(self) -> Array:
        """Where energies are cut."""
        return np.asarray(self.mean * 2.0 ** np.arange(1.0, LEVELS + 1), dtype=np.float64)

    def contribution(self, X: Rows, y: Rows) -> Array:
        """Return the shares of one unit."""
        check_shape("X", X, None, self.design.n_features)
        fitted = self.design.fitted(X[self.design.known(X)].astype(np.float64), self.left, self.right)
        return self._shares(np.array([np.sum((fitted - self._middle) ** 2)]))

    def block_sum(self, X: Rows, y: Rows, offsets: Offsets, bound: float) -> Array:
        """One pass over the observations."""
        by_row = self.unit is not Unit.USER
        energies = np.zeros(len(X) if by_row else len(offsets) - 1)
        if self.design.kind == "dense":
            dense_along(X, offsets, by_row, (self.left @ self.right.T).ravel(), self._middle, energies)
        else:
            factored_along(X, offsets, by_row, *self.design.hot, self.left, self.right, energies)
        return min(1.0, bound) * self._shares(energies)

    @property
    def _middle(self) -> float:
        return (
            0.0 if self.centre is None else float(np.sum(self.left.T @ origin(self.design, self.centre) * self.right.T))
        )

    def _shares(self, energies: Array) -> Array:
        with np.errstate(all="ignore"):
            usable = energies[np.isfinite(energies)]
            total = np.array([np.minimum(usable / level, 1.0).sum() for level in self.levels])
        return total * ((1.0 - GUARD) / math.sqrt(LEVELS))

    def read(self, released: Array, sigma: float, units: int) -> float:
        """Return Σ⟨X, left·rightᵀ⟩² of all, over what it would be if c were one, as far as noise lets it be seen.

        >>> query = StepEnergy(Design("dense", 1, 1), np.ones((1, 1)), np.ones((1, 1)), 1.0)
        >>> X = np.full((1000, 1), 3.0)
        >>> round(query.read(query.block_sum(X, X[:, 0], np.array([0, 1000]), 1.0), 0.1, 1000), 2)
        9.0
        """
        shares, unsure = released * math.sqrt(LEVELS) / units, sigma * math.sqrt(LEVELS) / units
        if unsure > _UNSURE:
            return 1.0
        place = int(np.argmax(shares <= _FEW)) if (shares <= _FEW).any() else LEVELS - 1
        found = max(float(shares[place]), unsure) * 2.0 ** (place + 1)
        # Shrunk towards one, on logarithms, by what noise alone could have moved it.
        away, doubt = math.log(found), unsure / max(float(shares[place]), unsure)
        return math.exp(away * max(0.0, 1.0 - (doubt / away) ** 2)) if away != 0 else 1.0


@dataclass
class LineSearch:
    """Finds curvatures along steps: from what is public, else bought while ``looks`` are left, else from gradients."""

    federation: Federation
    plan: Plan
    design: Design
    scales: Scales
    unit: Unit
    public: Public | None
    looks: int
    centre: Centre | None = None
    seen: list[float] = field(default_factory=list)
    careful: bool = False

    def shorten(self) -> bool:
        """Take the next step by the largest curvature that was bought; say whether that is any shorter."""
        before, self.careful = self.careful, self.public is None and self.looks == 0
        return self.careful and not before

    def along(self, step: Factors, secant: Secant | None = None) -> float:
        """Return c along left·rightᵀ, in the scaled design."""
        size = inner(step, step)
        if not (size > 0 and math.isfinite(size)):  # no step; what was planned is asked all the same
            step, size = (np.zeros_like(step[0]), np.zeros_like(step[1])), 1.0
        left, right = self.scales.left[:, None] * step[0], self.scales.right[:, None] * step[1]
        if self.public is not None:
            found = self.public(left, right) / size
        elif self.looks > 0:
            self.looks -= 1
            units = self.federation.n_users if self.unit is Unit.USER else self.federation.n_rows
            query = StepEnergy(self.design, left, right, size / units, self.unit, self.centre)
            event = self.plan.event("curvature", clip=1.0, acute=True)
            released = self.federation.release(query, event, f"curvature {len(self.seen) + 1}")
            found = query.read(released, self.federation.sum_sigma(event), units)
            self.seen.append(found)
        else:
            # Gradients are noisy: nothing far outside what was bought, and one, is believed.
            found = self.seen[-1] if secant is None else secant.shrunk(self.seen[-1])
            found = min(max(found, min(1.0, *self.seen) / _FAR), _FAR * max(1.0, *self.seen))
            found, self.careful = (max(self.seen), False) if self.careful else (found, False)
        return max(found, _LEAST) if found > 0 and math.isfinite(found) else 1.0


@dataclass(frozen=True)
class Secant:
    """Curvature along the step between two matrices, from the gradients at both, and its standard deviation."""

    value: float
    deviation: float

    @classmethod
    def between(
        cls, before: LowRank, after: LowRank, gradients: tuple[Factors, Factors], noises: tuple[float, float]
    ) -> Secant | None:
        """Return ⟨ΔM, g − g'⟩/‖ΔM‖²; None for no step at all."""
        step = (
            np.hstack([after.left * after.values, -before.left * before.values]),
            np.hstack([after.right, before.right]),
        )
        size = inner(step, step)
        if not size > 0:
            return None
        changed = inner(step, gradients[0]) - inner(step, gradients[1])
        return cls(changed / size, math.hypot(*noises) / math.sqrt(size))

    def shrunk(self, prior: float) -> float:
        """Return the value, as far towards ``prior`` as its noise asks for.

        >>> Secant(3.0, 0.0).shrunk(1.0), Secant(3.0, 9.0).shrunk(1.0)
        (3.0, 1.0)
        """
        away = self.value - prior
        return prior + away * max(0.0, 1.0 - (self.deviation / away) ** 2) if away != 0 else prior
