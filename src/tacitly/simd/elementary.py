"""Logarithms, powers of two, cosines and sines of many numbers at once, by polynomials that compile to vector code.

The compiler calls the C library once per number for these functions, which takes longer than reading a user's rows. The
errors are a few units in the last place, which is enough for weights and for sums with a guard of 2^-20.
"""

# Numba-compiled functions have no types that mypy knows.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import math

import numpy as np

from tacitly.simd.lazy_njit import njit

_HALF_ROOT = np.array([math.sqrt(0.5)]).view(np.int64)[0]  # bits of the smallest significand, √½; the largest is √2
_LOGARITHM = tuple(2.0 / (math.log(2.0) * (2 * i + 1)) for i in range(11))  # of (1 + t)/(1 − t), in powers of t²
_POWER = tuple(math.log(2.0) ** i / math.factorial(i) for i in range(14))
_COSINE = tuple((-1.0) ** i / math.factorial(2 * i) for i in range(9))
_SINE = tuple((-1.0) ** i / math.factorial(2 * i + 1) for i in range(9))


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"contract"})
def logarithms(values, bits, out):
    """Write the logarithms to base 2 of positive normal numbers; ``bits`` is a buffer of integers."""
    numbers, parts = values.view(np.int64), bits.view(np.float64)
    for a in range(values.size):
        exponent = (numbers[a] - _HALF_ROOT) >> 52
        out[a] = exponent
        bits[a] = numbers[a] - (exponent << 52)
    for a in range(values.size):
        t = (parts[a] - 1.0) / (parts[a] + 1.0)  # at most 0.172
        u = t * t
        p = _LOGARITHM[10]
        p = p * u + _LOGARITHM[9]
        p = p * u + _LOGARITHM[8]
        p = p * u + _LOGARITHM[7]
        p = p * u + _LOGARITHM[6]
        p = p * u + _LOGARITHM[5]
        p = p * u + _LOGARITHM[4]
        p = p * u + _LOGARITHM[3]
        p = p * u + _LOGARITHM[2]
        p = p * u + _LOGARITHM[1]
        p = p * u + _LOGARITHM[0]
        out[a] += t * p


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"contract"})
def powers_of_two(values, bits, out):
    """Write 2^x; 0 below −1000; ``bits`` is a buffer of integers. No x may be above 1000."""
    scales = bits.view(np.float64)
    for a in range(values.size):
        x = max(values[a], -1000.0)
        whole = math.floor(x + 0.5)
        bits[a] = (np.int64(whole) + 1023) << 52
        x -= whole
        p = _POWER[13]
        p = p * x + _POWER[12]
        p = p * x + _POWER[11]
        p = p * x + _POWER[10]
        p = p * x + _POWER[9]
        p = p * x + _POWER[8]
        p = p * x + _POWER[7]
        p = p * x + _POWER[6]
        p = p * x + _POWER[5]
        p = p * x + _POWER[4]
        p = p * x + _POWER[3]
        p = p * x + _POWER[2]
        p = p * x + _POWER[1]
        out[a] = p * x + _POWER[0]
    for a in range(values.size):
        out[a] = out[a] * scales[a] if values[a] > -1000.0 else 0.0


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"contract"})
def cosines_and_sines(angles, out):
    """Write cosines to out[0] and sines to out[1], for |angle| ≤ π: computed for a quarter, then doubled twice."""
    for a in range(angles.size):
        x = 0.25 * angles[a]
        u = x * x
        c, s = _COSINE[8], _SINE[8]
        c, s = c * u + _COSINE[7], s * u + _SINE[7]
        c, s = c * u + _COSINE[6], s * u + _SINE[6]
        c, s = c * u + _COSINE[5], s * u + _SINE[5]
        c, s = c * u + _COSINE[4], s * u + _SINE[4]
        c, s = c * u + _COSINE[3], s * u + _SINE[3]
        c, s = c * u + _COSINE[2], s * u + _SINE[2]
        c, s = c * u + _COSINE[1], s * u + _SINE[1]
        c, s = c * u + _COSINE[0], (s * u + _SINE[0]) * x
        c, s = c * c - s * s, 2.0 * c * s
        out[0, a], out[1, a] = c * c - s * s, 2.0 * c * s
