"""Whitened factors of tasks and rank-one designs; dense designs are centred instead (module ``centering``).

For X = a bᵀ the curvature of the squared residuals is E[aaᵀ] ⊗ E[bbᵀ]. If b has mean m, it is 1 + ‖m‖²/var along m. The
public map W = I − (1 − 1/√λ) qqᵀ, q = m/‖m‖, λ = 1 + ‖m‖²/var, makes it 1 again and keeps the rank of M:
⟨a(Wb)ᵀ, M̃⟩ = ⟨a bᵀ, M̃W⟩. So no level has to be fitted. The means are released as for a dense design, from the
columns of that factor alone, and rows are mapped locally (:meth:`~tacitly.federation.base.Federation.projected`).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy.linalg import block_diag

from tacitly.arrays import Array
from tacitly.federation.base import Federation
from tacitly.methods.trace_regression.centering import private_mean
from tacitly.methods.trace_regression.designs import Design
from tacitly.privacy.calibration import Plan
from tacitly.privacy.guarantee import Unit

Maps = tuple[Array, Array]
"""Maps of a and of b; the identity for a factor that is a position or needs no map."""


def whiten_factors(federation: Federation, plan: Plan, design: Design, unit: Unit) -> tuple[Federation, Maps | None]:
    """Return the same users with whitened factors, and the maps; unchanged, and None, if no mean matters."""

    def mean_of(columns: slice) -> tuple[Array | None, float]:
        view = federation.projected(np.eye(design.n_features)[columns])
        size = columns.stop - columns.start
        return private_mean(view, plan, Design("dense", 1, size), unit, f" from column {columns.start}")

    maps = maps_of(design, mean_of)
    return (federation, None) if maps is None else (federation.projected(row_map(design, maps)), maps)


def maps_of(design: Design, mean_of: Callable[[slice], tuple[Array | None, float]]) -> Maps | None:
    """Return the maps, from each factor's mean (None if it does not matter) and the typical distance from it."""
    maps, column, unchanged = [], 0, True
    for hot, size in zip(design.hot, (design.d1, design.d2), strict=True):
        mean, distance = (None, 1.0) if hot else mean_of(slice(column, column + size))
        maps.append(np.eye(size) if mean is None else whitening_map(mean.ravel(), distance))
        unchanged, column = unchanged and mean is None, column + (1 if hot else size)
    return None if unchanged else (maps[0], maps[1])


def whitening_map(mean: Array, distance: float) -> Array:
    """Return W for rows with this mean and this typical distance from it.

    >>> whitening_map(np.array([0.0, 3.0]), math.sqrt(2.0)).round(3)
    array([[1.   , 0.   ],
           [0.   , 0.316]])
    """
    size = float(mean @ mean)
    curvature = 1.0 + size * mean.size / max(distance**2, np.finfo(float).tiny)
    return np.asarray(np.eye(mean.size) - (1.0 - 1.0 / math.sqrt(curvature)) / size * np.outer(mean, mean))


def row_map(design: Design, maps: Maps) -> Array:
    """Return both maps as one matrix for an observation's row of numbers; positions are unchanged."""
    parts = [np.eye(1) if hot else one for hot, one in zip(design.hot, maps, strict=True)]
    return np.asarray(block_diag(*parts), dtype=np.float64)
