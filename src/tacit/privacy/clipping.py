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
    return bound / norm


def clip(vector: npt.ArrayLike, bound: float) -> npt.NDArray[np.float64]:
    """Clip one contribution to norm ``bound``.

    >>> clip([3.0, 4.0], 1.0).round(3)
    array([0.6, 0.8])
    >>> clip([float("inf"), 1.0], 1.0)
    array([0., 0.])
    """
    values = np.asarray(vector, dtype=np.float64)
    largest = float(np.max(np.abs(values), initial=0.0))
    if not math.isfinite(largest) or largest == 0.0:
        return np.zeros_like(values)
    # Dividing by the largest entry first keeps the norm of huge entries from overflowing.
    scaled = values / largest
    factor = clip_factor(largest * float(np.linalg.norm(scaled)), bound)
    if factor == 0.0:
        factor = bound * (1.0 - GUARD) / float(np.linalg.norm(scaled))
        return scaled * factor
    return values * factor
