"""Points on the circle and logarithms of eight numbers at a time, in registers, by polynomials.

The polynomials interpolate at Chebyshev nodes, so that they need fewer terms than series; errors are below 1e-14. NaN
and infinity give undefined results: callers discard such lanes.
"""

# Numba-compiled functions have no types that mypy knows.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.polynomial import Chebyshev, Polynomial

from tacitly.arrays import Array
from tacitly.simd.lazy_njit import njit
from tacitly.simd.registers import exponent, significand, spread

_inlined: Any = njit(nogil=True, cache=True, error_model="numpy", fastmath={"contract"}, forceinline=True)


def _coefficients(function: Callable[[Array], Array], largest: float, degree: int) -> tuple[float, ...]:
    """Return the polynomial of this degree that is close to a function of [0, largest]."""
    found = Chebyshev.interpolate(function, degree, domain=[0.0, largest]).convert(kind=Polynomial)
    return tuple(float(value) for value in found.coef)


# Functions of squares. The quotients never divide by zero, because Chebyshev nodes lie inside the interval.
_COSINE = _coefficients(lambda square: np.cos(np.pi / 4.0 * np.sqrt(square)), 1.0, 6)
_SINE = _coefficients(lambda square: np.sin(np.pi / 4.0 * np.sqrt(square)) / np.sqrt(square), 1.0, 5)
_LOGARITHM = _coefficients(lambda square: 2.0 / np.log(2.0) * np.arctanh(np.sqrt(square)) / np.sqrt(square), 0.02944, 5)


@_inlined
def point(turns):
    """Return cosine and sine of π·turns, for |turns| ≤ 1: computed for a quarter, then doubled twice."""
    u, one = turns * turns, spread(1.0)
    c = spread(_COSINE[6])
    c = c * u + spread(_COSINE[5])
    c = c * u + spread(_COSINE[4])
    c = c * u + spread(_COSINE[3])
    c = c * u + spread(_COSINE[2])
    c = c * u + spread(_COSINE[1])
    c = c * u + spread(_COSINE[0])
    s = spread(_SINE[5])
    s = s * u + spread(_SINE[4])
    s = s * u + spread(_SINE[3])
    s = s * u + spread(_SINE[2])
    s = s * u + spread(_SINE[1])
    s = (s * u + spread(_SINE[0])) * turns
    twice = s + s
    c, s = one - twice * s, twice * c
    twice = s + s
    return one - twice * s, twice * c


@_inlined
def logarithm(x):
    """Return the base-2 logarithm of positive numbers; below −1022 for subnormal numbers."""
    one, m = spread(1.0), significand(x)
    t = (m - one) / (m + one)  # at most 0.1716
    u = t * t
    p = spread(_LOGARITHM[5])
    p = p * u + spread(_LOGARITHM[4])
    p = p * u + spread(_LOGARITHM[3])
    p = p * u + spread(_LOGARITHM[2])
    p = p * u + spread(_LOGARITHM[1])
    p = p * u + spread(_LOGARITHM[0])
    return exponent(x) + t * p
