"""Whitened sides for tasks and rank-one designs; :mod:`~tacitly.methods.trace_regression.centering` is for dense ones.

X = a bᵀ is as steep as E[aaᵀ] ⊗ E[bbᵀ]. A mean m of b makes that 1 + ‖m‖²/var along m. The public map
W = I − (1 − 1/√λ) qqᵀ, q = m/‖m‖, λ = 1 + ‖m‖²/var makes it flat again, of the same rank: ⟨a(Wb)ᵀ, M̃⟩ = ⟨a bᵀ, M̃W⟩. So
there is no level to be fitted. The means are bought by the same releases as a dense design's, from rows of that side
alone, and rows are mapped at home (:meth:`~tacitly.federation.base.Federation.projected`).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy.linalg import block_diag

from tacitly.arrays import Array
from tacitly.federation.base import Federation
from tacitly.methods.trace_regression.centering import bought
from tacitly.methods.trace_regression.designs import Design
from tacitly.privacy.calibration import Plan
from tacitly.privacy.guarantee import Unit

Maps = tuple[Array, Array]
"""Of a and of b; the identity for a side that is a position, or flat already."""


def flat_sides(federation: Federation, plan: Plan, design: Design, unit: Unit) -> tuple[Federation, Maps | None]:
    """Return the same users with flat sides, and the maps; as they are, and None, where no mean matters."""

    def mean_of(columns: slice) -> tuple[Array | None, float]:
        view = federation.projected(np.eye(design.n_features)[columns])
        size = columns.stop - columns.start
        return bought(view, plan, Design("dense", 1, size), unit, f" from column {columns.start}")

    maps = maps_of(design, mean_of)
    return (federation, None) if maps is None else (federation.projected(on_rows(design, maps)), maps)


def maps_of(design: Design, mean_of: Callable[[slice], tuple[Array | None, float]]) -> Maps | None:
    """Return the maps from the mean (None where it does not matter) of every side, and the distance from it."""
    found, place, flat = [], 0, True
    for hot, size in zip(design.hot, (design.d1, design.d2), strict=True):
        mean, distance = (None, 1.0) if hot else mean_of(slice(place, place + size))
        found.append(np.eye(size) if mean is None else flattening(mean.ravel(), distance))
        flat, place = flat and mean is None, place + (1 if hot else size)
    return None if flat else (found[0], found[1])


def flattening(mean: Array, distance: float) -> Array:
    """Return W for rows of this mean, at this typical distance from it.

    >>> flattening(np.array([0.0, 3.0]), math.sqrt(2.0)).round(3)
    array([[1.   , 0.   ],
           [0.   , 0.316]])
    """
    size = float(mean @ mean)
    steep = 1.0 + size * mean.size / max(distance**2, np.finfo(float).tiny)
    return np.asarray(np.eye(mean.size) - (1.0 - 1.0 / math.sqrt(steep)) / size * np.outer(mean, mean))


def on_rows(design: Design, maps: Maps) -> Array:
    """Return both maps as one of an observation's row of numbers; positions stay."""
    parts = [np.eye(1) if hot else one for hot, one in zip(design.hot, maps, strict=True)]
    return np.asarray(block_diag(*parts), dtype=np.float64)
