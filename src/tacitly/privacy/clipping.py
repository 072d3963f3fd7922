"""Clipping: the last operation on a contribution before it is added.

A contribution is scaled as a whole so that its norm is at most (1 − 2⁻²⁰) times the clip. The margin of 2⁻²⁰ (the
guard) covers all rounding that follows (products of factors in float32, block sums, the noise grid). So the bound holds
for the floating-point numbers that are added, not only for exact ones (:mod:`tacitly.federation.base` adds these errors
up). A contribution with a non-finite entry becomes zero. Nothing here raises, because an exception that depends on
private values would be a release.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

GUARD = 2.0**-20
"""Fraction of the clip reserved for rounding errors."""

LEAST = 2.0**-900
"""Smallest squared norm that kernels accept: below it, squares have been lost to underflow."""


def clip_factor(norm: float, clip: float) -> float:
    """Factor that scales a contribution of this norm to within the clip; 0 if the norm is not finite.

    Takes plain floats, so that compiled kernels can use the same function.

    >>> clip_factor(0.5, 1.0)
    1.0
    >>> clip_factor(float("nan"), 1.0)
    0.0
    """
    bound = clip * (1.0 - 2.0**-20)
    if not math.isfinite(norm):
        return 0.0
    if norm <= bound:
        return 1.0
    # A factor this small has lost digits to underflow, so that the product could exceed the clip.
    return bound / norm if bound / norm > LEAST else 0.0


def clip(vector: npt.ArrayLike, bound: float) -> npt.NDArray[np.float64]:
    """Clip one contribution to norm ``bound``.

    >>> clip([3.0, 4.0], 1.0).round(3)
    array([0.6, 0.8])
    >>> clip([float("inf"), 1.0], 1.0)
    array([0., 0.])
    """
    values = np.asarray(vector, dtype=np.float64)
    norm, largest = safe_norm(values)
    if not math.isfinite(norm) or norm == 0.0:
        return np.zeros_like(values)
    if norm <= bound * (1.0 - GUARD):
        return values.copy()
    # Scale to entries of size 1 first, so that neither huge entries nor tiny clips need a denormal factor.
    scaled = values / largest
    return np.asarray(scaled * (bound * (1.0 - GUARD) / float(np.linalg.norm(scaled))))


def safe_norm(values: npt.NDArray[np.floating]) -> tuple[float, float]:
    """Return the Euclidean norm and the largest absolute entry, without intermediate overflow or underflow.

    Squares of entries below 1e-162 underflow to zero; a norm that misses them would let a contribution pass unclipped.

    >>> safe_norm(np.array([3e-200, 4e-200]))[0] == 5e-200
    True
    """
    largest = float(np.max(np.abs(values), initial=0.0))
    if not math.isfinite(largest):
        return math.nan, largest
    if largest == 0.0:
        return 0.0, 0.0
    norm = largest * float(np.linalg.norm(np.asarray(values, dtype=np.float64) / largest))
    # A norm beyond the largest float is capped: it only needs to be above any clip.
    return min(norm, float(np.finfo(np.float64).max)), largest
