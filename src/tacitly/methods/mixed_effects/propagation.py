"""Posteriors for classes and counts: expectation propagation, compiled, one user after the other.

Model: a row's target depends on the user's weights through η = zᵀw (+ e for counts, e ~ N(0, s²)) only:

* ``logistic``: y ∈ {0, 1}, P(y = 1) = 1/(1 + exp(−η));
* ``poisson``: y ~ Poisson(exp η). Real counts nearly always vary more than a Poisson distribution; e models this.

In whitened coordinates (w = w̄ + L v, rows a = Lᵀz) the posterior of v is N(0, I) times one factor per row. Expectation
propagation (Minka 2001) replaces each factor by a Gaussian one, exp(νf − τf²/2) of f = aᵀv, and refines one at a time:
remove the row's own factor, multiply by the exact one, and match mean and variance of f by one-dimensional quadrature.
For random effects and few rows its means and covariances are almost exact, also where Laplace's approximation at the
mode is most biased (a user whose answers are all "no"). Tests compare it with dense quadrature.

Factors are log-concave, so every τ ≥ 0, every variance stays positive, and no damping is needed. The number of sweeps
is bounded and depends on the user's own rows only. A change of one factor changes R and u by a rank-one update, so a
sweep costs 2mp² operations (m³ with fewer rows than weights), and no matrix is inverted. Numbers of one user are
computed by loops over that user's rows.
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

_SETTLED = 1e-3  # change of a row's mean, in posterior standard deviations, below which a user is done
_NODES, _REACH = 25, 3.0  # of the quadrature: x = mode + width·sinh t at equal steps of t over ± REACH, for long tails
_LARGEST = 30.0  # of a log rate
_MODE_STEPS = 40  # at most, to the mode: five are usual, more where the variance is large
_WIDE = 3.2  # nodes reach at least three deviations, also where the factor bends sharply at its mode

_STEPS = np.linspace(-_REACH, _REACH, _NODES)
_SINH, _COSH = np.sinh(_STEPS), np.cosh(_STEPS)
_STEP, _CIRCLE = 2.0 * _REACH / (_NODES - 1), 2.0 * math.pi

_kernel: Any = njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc", "contract"})


@_kernel
def propagate(design, targets, offsets, mean, root, noise, code, means, covariances, expected, extra, left_out, apart):
    """Write each user's posterior mean u and covariance R, what R is expected to be, and four numbers, ``extra``.

    The expectation is (I + Σ κ a aᵀ)⁻¹ with the curvature κ of each row's factor at the population's mean: it does not
    depend on targets. The four numbers are Σ s²(α² − β) and Σ (s²β)² over rows, of which the first is zero on average
    if the noise variance s² is right and the second says how sensitive it is to s² (α and β as in :func:`_tilted`); the
    number of rows, 0 for a user whose numbers cannot be used; and the evidence, log p(targets) up to a constant that
    does not depend on the prior. ``left_out`` has log p(target | the user's other rows) for each row, up to the same
    constant: what its exact factor says under the law of f without it; ``apart`` has mean and variance of the row's
    score zᵀw under that law. A user without rows has the prior.
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
        own = slice(first, first + m)
        _user(rows, level, targets[own], noise, code, u, R, extra[i], left_out[own], apart[own])
        for a in range(size):
            if not (math.isfinite(u[a]) and math.isfinite(R[a, a])):
                extra[i, 0] = extra[i, 1] = extra[i, 2] = extra[i, 3] = 0.0
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
    along = np.empty(rows.shape[1])
    for j in range(rows.shape[0]):
        share = _share(level[j])
        curvature = share * (1.0 - share) if code == LOGISTIC else math.exp(min(level[j], _LARGEST))
        _shrink(R, rows[j], curvature / (1.0 + noise * curvature), along)


@_kernel
def _shrink(R, row, precision, along):
    """Add precision·row·rowᵀ to the inverse of R."""
    v = _along(R, row, along)
    _downdate(R, along, precision / (1.0 + precision * v))


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
def _downdate(R, along, weight):
    for a in range(along.size):
        factor = weight * along[a]
        for b in range(along.size):
            R[a, b] -= factor * along[b]


@_kernel
def _user(rows, level, targets, noise, code, u, R, extra, left_out, apart):
    """Refine the factors among the p weights or, with fewer rows than that, among the m values f; the same numbers."""
    m, size = rows.shape
    tau, nu = np.zeros(m), np.zeros(m)
    if m >= size:
        _refine(rows, False, level, targets, noise, code, u, R, tau, nu, extra, left_out, apart)
        return
    K, along = np.empty((m, m)), np.empty(size)
    for i in range(m):
        for j in range(m):
            total = 0.0
            for a in range(size):
                total += rows[i, a] * rows[j, a]
            K[i, j] = total
    _refine(rows, True, level, targets, noise, code, np.zeros(m), K, tau, nu, extra, left_out, apart)
    right = np.zeros(size)
    for j in range(m):
        _shrink(R, rows[j], tau[j], along)
        for a in range(size):
            right[a] += nu[j] * rows[j, a]
    _along(R, right, u)


@_kernel
def _refine(rows, dual, level, targets, noise, code, u, R, tau, nu, extra, left_out, apart):
    """Sweep over the rows' factors exp(νf − τf²/2) until they settle; u and R are mean and covariance of v, or of f.

    The evidence is that of the Gaussian factors, ½ log|R| + ½ Σ νf, times for each row the integral of the exact factor
    over that of its Gaussian one, both under the law of f without the row. It is stationary where factors have settled.
    """
    along, determinant = np.empty(u.size), 0.0
    apart[:, 0] = level
    for _ in range(SWEEPS):
        moved, excess, information, scales = 0.0, 0.0, 0.0, 0.0
        for j in range(rows.shape[0]):
            if dual:
                along[:] = R[j]
                v, f = R[j, j], u[j]
            else:
                v, f = _along(R, rows[j], along), 0.0
                for a in range(u.size):
                    f += rows[j, a] * u[a]
            if not v > 1e-14:
                continue
            left = max(1.0 - tau[j] * v, 1e-9)
            variance, center = v / left, (f - nu[j] * v) / left
            alpha, beta, integral = _tilted(level[j] + center, variance + noise, targets[j], code)
            kept = max(1.0 - variance * beta, 1e-9)
            precision, shift = beta / kept, (alpha + beta * center) / kept
            gain = precision - tau[j]
            scale = (shift - nu[j] - gain * f) / (1.0 + gain * v)
            weight = gain / (1.0 + gain * v)
            for a in range(u.size):
                u[a] += along[a] * scale
            _downdate(R, along, weight)
            moved = max(moved, abs(scale) * math.sqrt(v), abs(weight) * v)
            tau[j], nu[j], left_out[j] = precision, shift, integral
            apart[j, 0], apart[j, 1] = level[j] + center, variance
            determinant -= math.log(1.0 + gain * v)
            wider = 1.0 + precision * variance
            gaussian = (shift * (2.0 * center + shift * variance) - precision * center * center) / wider
            scales += integral - 0.5 * (gaussian - math.log(wider))
            excess += noise * (alpha * alpha - beta)
            information += (noise * beta) ** 2
        extra[0], extra[1], extra[3] = excess, information, 0.5 * determinant + scales
        if moved < _SETTLED:
            break
    for j in range(rows.shape[0]):
        f = u[j] if dual else 0.0
        if not dual:
            for a in range(u.size):
                f += rows[j, a] * u[a]
        extra[3] += 0.5 * nu[j] * f


@_kernel
def _tilted(center, variance, target, code):
    """Return α = d/dμ log Z, β = −d²/dμ² log Z and log Z for Z(μ) = E p(y | η), η ~ N(μ, variance), at μ = center.

    Under the law of η given y, E η = μ + αV and Var η = V − βV². Where the factor is wide, α and β come from its
    derivatives, else from these moments: each is accurate where the other cancels. log Z of a count lacks log y!.
    """
    if code == LOGISTIC:  # P(y = 0 | η) = P(y = 1 | −η)
        if target > 0.5:
            return _tilted_share(center, variance)
        alpha, beta, integral = _tilted_share(-center, variance)
        return -alpha, beta, integral
    return _tilted_count(center, variance, target)


@_kernel
def _tilted_share(center, variance):
    """:func:`_tilted` for y = 1 and p = 1/(1 + exp(−η))."""
    mode = _logistic_mode(center, variance)
    share = _share(mode)
    width = max(1.0 / math.sqrt(1.0 / variance + share * (1.0 - share)), math.sqrt(variance) / _WIDE)
    most, half = 0.5 * (mode - center) ** 2 / variance, 0.5 / variance
    total, first, second, slopes, squares, bends = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    for node in range(_NODES):
        away = _SINH[node] * width
        x = mode + away
        share = _share(x)
        weight = _COSH[node] * share * math.exp(most - half * (x - center) ** 2)
        total += weight
        first += weight * away
        second += weight * away * away
        slopes += weight * (1.0 - share)
        squares += weight * (1.0 - share) ** 2
        bends -= weight * share * (1.0 - share)
    alpha, beta = _matched(center, variance, mode, total, first, second, slopes, squares, bends)
    return alpha, beta, math.log(total * width * _STEP) - most - 0.5 * math.log(_CIRCLE * variance)


@_kernel
def _tilted_count(center, variance, count):
    """:func:`_tilted` for y ~ Poisson(exp η)."""
    mode = _poisson_mode(center, variance, count)
    rate = math.exp(mode)
    width = 1.0 / math.sqrt(1.0 / variance + rate)
    most, half = count * mode - rate - 0.5 * (mode - center) ** 2 / variance, 0.5 / variance
    total, first, second, slopes, squares, bends = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    for node in range(_NODES):
        away = _SINH[node] * width
        x = mode + away
        rate = math.exp(min(x, 700.0))
        weight = _COSH[node] * math.exp(count * x - rate - half * (x - center) ** 2 - most)
        if weight > 0.0:
            total += weight
            first += weight * away
            second += weight * away * away
            slopes += weight * (count - rate)
            squares += weight * (count - rate) ** 2
            bends -= weight * rate
    alpha, beta = _matched(center, variance, mode, total, first, second, slopes, squares, bends)
    return alpha, beta, math.log(total * width * _STEP) + most - 0.5 * math.log(_CIRCLE * variance)


@_kernel
def _matched(center, variance, mode, total, first, second, slopes, squares, bends):
    first, second, slopes = first / total, second / total, slopes / total
    spread = second - first * first
    if variance > 1.0 or spread < 0.5 * variance:
        alpha, beta = (mode + first - center) / variance, (variance - spread) / variance**2
    else:
        alpha, beta = slopes, slopes * slopes - (squares + bends) / total
    return alpha, min(max(beta, 0.0), (1.0 - 1e-9) / variance)


@_kernel
def _share(x):
    """Return 1/(1 + exp(−x))."""
    if x >= 0.0:
        return 1.0 / (1.0 + math.exp(-x))
    small = math.exp(x)
    return small / (1.0 + small)


@_kernel
def _logistic_mode(center, variance):
    """Return the x that maximises log p(1 | x) − (x − μ)²/2V, by Newton's method inside a shrinking bracket."""
    low, high = center, center + variance
    x = low + min(1.0, 0.5 * variance)
    for _ in range(_MODE_STEPS):
        share = _share(-x)
        error = x - center - variance * share
        if error > 0.0:
            high = min(high, x)
        else:
            low = max(low, x)
        step = error / (1.0 + variance * share * (1.0 - share))
        x -= step
        if not low < x < high:
            x = 0.5 * (low + high)
        elif abs(step) < 1e-9:
            break
    return x


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
