"""The last thing that happens to a contribution before it is added.

A contribution is scaled, whole, so that its norm is at most the clip less a guard of 2⁻²⁰. The guard pays
for every rounding that follows (products of factors in float32, block sums, the noise grid), so that the norm
bound holds for the numbers really added, not only for the ideal ones. A contribution with any non-finite
entry becomes zero; nothing here raises, because an exception that depends on private values is a release.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

GUARD = 2.0**-20
"""Share of the clip kept back for rounding."""

LEAST = 2.0**-900
"""Least squared norm that kernels accept: below it squares have been lost to underflow."""


def clip_factor(norm: float, clip: float) -> float:
    """Scale that brings a contribution of this norm within the clip; 0 for a norm that is not finite.

    Written for plain floats so that compiled kernels can use the same function.

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
    # A factor this small is losing digits to underflow, so that the product could exceed the clip.
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
    # Through entries of size one, so that neither huge entries nor tiny clips meet a denormal factor.
    scaled = values / largest
    return np.asarray(scaled * (bound * (1.0 - GUARD) / float(np.linalg.norm(scaled))))


def safe_norm(values: npt.NDArray[np.floating]) -> tuple[float, float]:
    """Return the Euclidean norm, and the largest entry, without overflow or underflow on the way.

    Squares of entries below 1e-162 vanish; a norm that forgets them would let a contribution through unclipped.

    >>> safe_norm(np.array([3e-200, 4e-200]))[0] == 5e-200
    True
    """
    largest = float(np.max(np.abs(values), initial=0.0))
    if not math.isfinite(largest):
        return math.nan, largest
    if largest == 0.0:
        return 0.0, 0.0
    norm = largest * float(np.linalg.norm(np.asarray(values, dtype=np.float64) / largest))
    # Beyond the largest float the norm is only needed for being above any clip.
    return min(norm, float(np.finfo(np.float64).max)), largest
