"""Noise: the only module that draws it.

A sum is represented by integers on a grid of spacing γ (a power of two), and integer noise is added, so that no
low-order floating-point bit of a private sum survives. Two modes:

* ``exact``: discrete Gaussian noise, drawn in integer arithmetic (:mod:`tacitly.privacy.discrete_gaussian`) with
  entropy from the operating system. A choice among candidates is always exact: OpenDP's permute-and-flip on integer
  losses, in rational arithmetic.
* ``float``: the noisy sum is rounded to cells of width about σ/2²⁰. The noise is the normal quantile function of random
  bits from the operating system. float64 proposes the cell, and decides wherever its error cannot matter, which is
  fast. Near the border of a cell (for one coordinate in 2¹⁷), 200-digit arithmetic decides
  (:mod:`tacitly.privacy.normal_cells`). So each cell has exactly the probability that the ideal Gaussian gives it, and
  the result is post-processing of the Gaussian mechanism. The certificate states which mode was used.

Why discrete noise may be accounted as Gaussian. Let s = σ/γ. Adding the ideal Gaussian to a grid point and rounding to
the grid is post-processing of the Gaussian mechanism, hence exactly μ-Gaussian-DP. It gives the integer x the
probability r(x) = φ_s(x)·E[cosh(xu/s²) e^(−u²/2s²)] with u uniform on (−½, ½). The discrete Gaussian gives p(x) =
φ_s(x)/Z with 1 < Z < 1 + 3e^(−2π²s²). The expectation is at least e^(−1/8s²), because |u| ≤ ½ and cosh ≥ 1, and at most
sinh(x/2s²)/(x/2s²) ≤ e^(x²/24s⁴). So log r(x)/p(x) lies between −1/8s² and x²/24s⁴ + log Z, which for |x| ≤ 40s (the
mass beyond is below 10⁻³⁴⁸) is less than 67/s² + log Z. Over D coordinates the two distributions are within e^±η of
each other with η = 200·D/s²; this is almost 3 times as large as 67·D/s², which more than covers log Z. :func:`slack_of`
returns η, and the accountant charges it. Typically η < 10⁻¹⁶.
"""

from __future__ import annotations

import math
import os
from typing import Literal

import numpy as np
import numpy.typing as npt

from tacitly.privacy.discrete_gaussian import discrete_gaussian
from tacitly.privacy.normal_cells import noisy_cells

Mode = Literal["exact", "float", "seeded", "none"]

EXACT_LIMIT = 10_000_000
"""Number of coordinates up to which ``exact`` is the default: about two seconds of sampling."""

_FINEST = 40  # the grid is never finer than 2^-40 of the clip, which would gain nothing
_RANGE = 60  # integers stay below 2^60, well within int64


def default_mode(coordinates: int) -> Mode:
    """Return the noise mode for a release of this size.

    >>> default_mode(500), default_mode(10**8)
    ('exact', 'float')
    """
    return "exact" if coordinates <= EXACT_LIMIT else "float"


def grid_of(clip: float, sigma: float, n_units: int) -> float:
    """Spacing γ of the grid: public, a power of two, coarse enough that no sum over the roster overflows.

    >>> grid_of(1.0, 10.0, 1000) == 2.0**-40
    True
    """
    finest = math.floor(math.log2(clip)) - _FINEST
    largest = max((n_units + 1) * clip, 64 * sigma)
    return 2.0 ** max(finest, math.ceil(math.log2(largest)) - _RANGE)


def slack_of(sigma: float, grid: float, coordinates: int) -> float:
    """Bound η on the log-ratio between the distribution of the noise drawn and the rounded ideal Gaussian."""
    return 200.0 * coordinates * (grid / sigma) ** 2 if sigma > 0 else 0.0


def to_grid(values: npt.NDArray[np.float64], grid: float) -> npt.NDArray[np.int64]:
    """Round to integers on the grid.

    Scaling by a power of two is exact, so a value changes by at most half a step.

    >>> to_grid(np.array([0.26, -1.0]), 0.25)
    array([ 1, -4])
    """
    return np.rint(values / grid).astype(np.int64)


def add_noise(
    total: npt.NDArray[np.int64],
    sigma: float,
    grid: float,
    mode: Mode,
    generator: np.random.Generator | None = None,
) -> npt.NDArray[np.float64]:
    """Return ``total`` on the grid plus noise of standard deviation ``sigma`` in every coordinate."""
    if mode == "none":
        if sigma != 0:
            raise ValueError(f"mode 'none' draws no noise, so sigma must be 0. Found {sigma!r}.")
        return np.asarray(total * grid, dtype=np.float64)
    if not sigma > 0:
        raise ValueError(f"sigma must be positive in mode {mode!r}. Found {sigma!r}.")
    if mode == "exact":
        noisy = total + discrete_gaussian(total.size, sigma / grid, os.urandom).reshape(total.shape)
    elif mode == "float":
        cells, size = noisy_cells(total, sigma / grid, os.urandom)
        return np.asarray(cells * (size * grid), dtype=np.float64)
    else:
        if generator is None:
            raise ValueError("mode 'seeded' needs a generator. Found None.")
        noisy = total + np.rint(generator.standard_normal(total.size) * (sigma / grid)).astype(np.int64)
    return np.asarray(noisy * grid, dtype=np.float64)


def choose(
    losses: npt.NDArray[np.int64], scale: float, mode: Mode, generator: np.random.Generator | None = None
) -> int:
    """Return the index of the smallest loss after subtracting Exponential(``scale``) noise: permute-and-flip.

    (Both have the same law: Ding et al. 2021.) Losses are integers, and ``scale`` is in their units.
    """
    if (mode == "none") != (scale == 0):
        raise ValueError(f"scale must be 0 if and only if mode is 'none'. Found {scale!r} in mode {mode!r}.")
    if mode == "none":
        return int(np.argmin(losses))
    if mode == "exact":
        return _permute_and_flip(losses, scale)
    if mode != "seeded" or generator is None:
        raise ValueError(f"mode must be 'exact', or 'seeded' with a generator, for a choice. Found {mode!r}.")
    return int(np.argmin(losses - generator.exponential(scale, losses.size)))


def coins(size: int, rate: float) -> npt.NDArray[np.bool_]:
    """Draw which users take part in a sampled release: independent coins from the operating system, never published.

    >>> bool(coins(3, 1.0).all())
    True
    """
    bits = np.frombuffer(os.urandom(8 * size), dtype=np.uint64) >> np.uint64(11)
    # 53 bits resolve the rate to 2^-53. Rounding down keeps the probability at or below the accounted rate.
    return np.asarray(bits < np.uint64(rate * 2.0**53))


def _permute_and_flip(losses: npt.NDArray[np.int64], scale: float) -> int:
    from opendp.domains import atom_domain, vector_domain
    from opendp.measurements import make_noisy_max
    from opendp.measures import max_divergence
    from opendp.metrics import linf_distance
    from opendp.mod import enable_features

    enable_features("contrib")
    # ``monotonic`` changes only OpenDP's own accounting, which is not used here, not the distribution.
    space = vector_domain(atom_domain(T="i64")), linf_distance(T="i64", monotonic=True)
    mechanism = make_noisy_max(*space, max_divergence(), scale=scale, negate=True)
    # Only differences matter; measured from the smallest they cannot overflow.
    return int(mechanism((losses - losses.min()).tolist()))
