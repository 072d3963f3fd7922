"""Posteriors for classes and counts: expectation propagation, compiled, one user after the other.

Model: a row's target depends on the user's weights through η = zᵀw (+ e for counts, e ~ N(0, s²)) only:

* ``logistic``: y ∈ {0, 1}, P(y = 1) = 1/(1 + exp(−η));
* ``poisson``: y ~ Poisson(exp η). Counts vary more than Poisson's law allows nearly everywhere; e takes that up.

In whitened coordinates (w = w̄ + L v, rows a = Lᵀz) the posterior of v is N(0, I) times one factor per row. Expectation
propagation (Minka 2001) replaces each factor by a Gaussian one, exp(νf − τf²/2) of f = aᵀv, and refines one at a time:
take the row's own factor out, multiply the exact one in, match mean and variance of f by quadrature in one dimension.
For random effects and few rows its means and covariances are all but exact, where Laplace's approximation at the mode
is biased most (a user whose answers are all "no"): tests compare it with dense quadrature.

Factors are log-concave, so every τ ≥ 0, every variance stays positive and nothing needs damping. The number of sweeps
is bounded and depends on the user's own rows only. A change of one factor changes R and u by a rank-one update, so a
sweep costs 2mp² operations, and no matrix is inverted. Numbers of one user are computed by loops over that user's rows.
"""

# mypy does not see the types that Numba compiles.
# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tacitly.simd.lazy_njit import njit

SWEEPS = 8
"""Most times that each factor is refined; two or three are enough for most users."""

LOGISTIC, POISSON = 1, 2

_SETTLED = 1e-4  # change of a row's mean, in posterior standard deviations, below which a user is done
_NODES, _REACH = 25, 3.0  # of the quadrature: x = mode + width·sinh t at equal steps of t over ± REACH, for long tails
_LARGEST = 30.0  # of a log rate

_kernel: Any = njit(nogil=True, cache=True, error_model="numpy")


@_kernel
def propagate(design, targets, offsets, mean, root, noise, code, means, covariances, expected, extra):
    """Write each user's posterior mean u and covariance R, what R is expected to be, and three numbers, ``extra``.

    The expectation is (I + Σ κ a aᵀ)⁻¹ with the curvature κ of each row's factor at the population's mean: it does not
    depend on targets. The three numbers are Σ s²(α² − β) and Σ (s²β)² over rows, of which the first is zero on average
    if the noise variance s² is right and the second says how sensitive it is to s² (α and β as in :func:`_tilted`); and
    the number of rows, 0 for a user whose numbers cannot be used. A user without rows has the prior.
    """
    size = mean.size
    for i in range(offsets.size - 1):
        first, m = offsets[i], offsets[i + 1] - offsets[i]
        u, R = means[i], covariances[i]
        _prior(u, expected[i])
        _prior(u, R)
        usable = m > 0
        for j in range(m):
            if not math.isfinite(targets[first + j]):
                usable = False
        if not usable:
            continue
        rows, level = np.zeros((m, size)), np.zeros(m)
        for j in range(m):
            for a in range(size):
                z = design[first + j, a]
                level[j] += z * mean[a]
                for b in range(size):
                    rows[j, b] += z * root[a, b]
        extra[i, 2] = m
        _expect(rows, level, noise, code, expected[i])
        _user(rows, level, targets[first : first + m], noise, code, u, R, extra[i])
        for a in range(size):
            if not (math.isfinite(u[a]) and math.isfinite(R[a, a])):
                extra[i, 0] = extra[i, 1] = extra[i, 2] = 0.0
        if extra[i, 2] == 0.0:
            _prior(u, expected[i])
            _prior(u, R)


@_kernel
def _prior(u, R):
    for a in range(u.size):
        u[a] = 0.0
        for b in range(u.size):
            R[a, b] = 1.0 if a == b else 0.0


@_kernel
def _expect(rows, level, noise, code, R):
    m, size = rows.shape
    along = np.empty(size)
    for j in range(m):
        _, bend = _derivatives(level[j], 0.0, code)
        curvature = -bend / (1.0 - noise * bend)
        v = _along(R, rows[j], along)
        weight = curvature / (1.0 + curvature * v)
        for a in range(size):
            for b in range(size):
                R[a, b] -= weight * along[a] * along[b]


@_kernel
def _along(R, row, along):
    """Write R·row and return rowᵀ·R·row."""
    v = 0.0
    for a in range(row.size):
        total = 0.0
        for b in range(row.size):
            total += R[a, b] * row[b]
        along[a] = total
        v += row[a] * total
    return v


@_kernel
def _user(rows, level, targets, noise, code, u, R, extra):
    m, size = rows.shape
    tau, nu, along = np.zeros(m), np.zeros(m), np.empty(size)
    for _ in range(SWEEPS):
        moved, excess, information = 0.0, 0.0, 0.0
        for j in range(m):
            v, f = _along(R, rows[j], along), 0.0
            for a in range(size):
                f += rows[j, a] * u[a]
            if not v > 1e-14:
                continue
            left = max(1.0 - tau[j] * v, 1e-9)
            variance, center = v / left, (f - nu[j] * v) / left
            alpha, beta = _tilted(level[j] + center, variance + noise, targets[j], code)
            kept = max(1.0 - variance * beta, 1e-9)
            precision, shift = beta / kept, (alpha + beta * center) / kept
            gain = precision - tau[j]
            scale = (shift - nu[j] - gain * f) / (1.0 + gain * v)
            weight = gain / (1.0 + gain * v)
            for a in range(size):
                u[a] += along[a] * scale
                for b in range(size):
                    R[a, b] -= weight * along[a] * along[b]
            moved = max(moved, abs(scale) * math.sqrt(v), abs(weight) * v)
            tau[j], nu[j] = precision, shift
            excess += noise * (alpha * alpha - beta)
            information += (noise * beta) ** 2
        extra[0], extra[1] = excess, information
        if moved < _SETTLED:
            break


@_kernel
def _tilted(center, variance, target, code):
    """Return α = d/dμ log Z and β = −d²/dμ² log Z for Z(μ) = E p(y | η), η ~ N(μ, variance), at μ = center.

    Under the law of η given y, E η = μ + αV and Var η = V − βV². Where the factor is wide, α and β come from its
    derivatives, else from these moments: each is accurate where the other cancels.
    """
    mode = _logistic_mode(center, variance, target) if code == LOGISTIC else _poisson_mode(center, variance, target)
    slope, bend = _derivatives(mode, target, code)
    width = 1.0 / math.sqrt(1.0 / variance - bend)
    step = 2.0 * _REACH / (_NODES - 1)
    peak = _value(mode, target, code) - 0.5 * (mode - center) ** 2 / variance
    total, first, second, slopes, squares, bends = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    for node in range(_NODES):
        t = node * step - _REACH
        away = math.sinh(t) * width
        x = mode + away
        weight = math.cosh(t) * math.exp(_value(x, target, code) - 0.5 * (x - center) ** 2 / variance - peak)
        slope, bend = _derivatives(x, target, code)
        total += weight
        first += weight * away
        second += weight * away * away
        slopes += weight * slope
        squares += weight * slope * slope
        bends += weight * bend
    first, second, slopes, squares, bends = (
        first / total,
        second / total,
        slopes / total,
        squares / total,
        bends / total,
    )
    spread = second - first * first
    if variance > 1.0 or spread < 0.5 * variance:
        alpha, beta = (mode + first - center) / variance, (variance - spread) / variance**2
    else:
        alpha, beta = slopes, slopes * slopes - squares - bends
    return alpha, min(max(beta, 0.0), (1.0 - 1e-9) / variance)


@_kernel
def _value(x, target, code):
    """Return log p(y | η = x), without constants."""
    if code == LOGISTIC:
        signed = x if target > 0.5 else -x
        return -math.log1p(math.exp(-signed)) if signed > 0.0 else signed - math.log1p(math.exp(signed))
    return target * x - math.exp(min(x, _LARGEST))


@_kernel
def _derivatives(x, target, code):
    """Return first and second derivative of log p(y | η) at x."""
    if code == LOGISTIC:
        share = 1.0 / (1.0 + math.exp(-x)) if x > 0.0 else math.exp(x) / (1.0 + math.exp(x))
        return (1.0 if target > 0.5 else 0.0) - share, -share * (1.0 - share)
    rate = math.exp(min(x, _LARGEST))
    return target - rate, -rate


@_kernel
def _logistic_mode(center, variance, target):
    """Return the x that maximises log p(y | x) − (x − μ)²/2V, by Newton's method inside a shrinking bracket."""
    sign = 1.0 if target > 0.5 else -1.0
    low = sign * center
    high = low + variance
    x = low + min(1.0, 0.5 * variance)
    for _ in range(8):
        share = 1.0 / (1.0 + math.exp(min(x, 700.0)))
        error = x - sign * center - variance * share
        if error > 0.0:
            high = min(high, x)
        else:
            low = max(low, x)
        x -= error / (1.0 + variance * share * (1.0 - share))
        if not low < x < high:
            x = 0.5 * (low + high)
    return sign * x


@_kernel
def _poisson_mode(center, variance, target):
    """Return the x that maximises yx − exp x − (x − μ)²/2V: a − ω with ω + log ω = a + log V, a = μ + Vy."""
    a = center + variance * target
    x = a + math.log(variance)
    omega = x - math.log(x) if x > 1.0 else math.exp(min(x, 0.0)) * 0.6 + 1e-300
    for _ in range(8):
        error = x - omega - math.log(omega)
        omega *= max((1.0 + error / (1.0 + omega)), 0.05)
    return min(a - omega, _LARGEST)
