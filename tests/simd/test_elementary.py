"""Polynomials agree with the C library to a few units in the last place."""

from __future__ import annotations

import numpy as np

from tacitly.simd.elementary import cosines_and_sines, logarithms, powers_of_two

EPS = np.finfo(float).eps


def test_logarithms() -> None:
    values = np.concatenate([2.0 ** np.linspace(-1020.0, 1020.0, 999), 1.0 + np.linspace(-0.4, 0.5, 1001)])
    out, bits = np.empty(values.size), np.empty(values.size, dtype=np.int64)
    logarithms(values, bits, out)
    np.testing.assert_allclose(out, np.log2(values), rtol=4 * EPS, atol=4 * EPS)


def test_powers_of_two() -> None:
    values = np.concatenate([np.linspace(-999.0, 999.0, 1999), np.linspace(-1.0, 1.0, 1001), [-1000.0, -1e300]])
    out, bits = np.empty(values.size), np.empty(values.size, dtype=np.int64)
    powers_of_two(values, bits, out)
    np.testing.assert_allclose(out[:-2], 2.0 ** values[:-2], rtol=8 * EPS)
    assert not out[-2:].any()


def test_cosines_and_sines() -> None:
    angles = np.linspace(-np.pi, np.pi, 2001)
    out = np.empty((2, angles.size))
    cosines_and_sines(angles, out)
    np.testing.assert_allclose(out, [np.cos(angles), np.sin(angles)], atol=8 * EPS)
