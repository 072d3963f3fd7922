"""Heads by ridge regression: a small personal linear model on a public basis.

Ridge regression over a fixed grid of penalties. The fits are averaged with weights L^(−m/2), where L is a penalty's
leave-one-out error on the user's own m rows: with many clean rows the best penalty dominates; with few rows the average
is more stable than choosing one penalty. Penalties are relative to the mean eigenvalue of the user's own k×k system, so
scale does not matter. Leave-one-out errors need no refitting: given the eigenvectors of the system they are residuals
divided by one minus leverage. If there are barely more rows than directions, even leave-one-out cannot detect a fit
that diverges, so the smallest penalties are not used then. The largest penalty leaves nothing but the intercept.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from tacitly.arrays import Array, Offsets, Rows, check_shape, read_only, rows_times
from tacitly.heads.base import HeadWork
from tacitly.heads.penalties import LEAST_NONE, LEAST_ONE, LEAST_TRACE, PENALTIES
from tacitly.heads.ridge_arrays import eigenvectors, ridges_and_errors
from tacitly.simd.elementary import logarithms, powers_of_two
from tacitly.simd.lazy_njit import MANY, Elsewhere, few, njit

_LANES = 16  # number of penalties that left_out_errors computes: at least as many as there are
_FEW, _SWEEPS = 8, 30  # up to so many columns, eigenvectors are found here, not by LAPACK; maximum number of sweeps


left_out_errors: Any = Elsewhere("tacitly.heads.left_out", "left_out_errors")


def fit_heads(X: Rows, y: Rows, offsets: Offsets, basis: npt.ArrayLike, *, intercept: bool = False) -> Array:
    """Fit one head per user: one row per user, the personal intercept (or 0) in the last column.

    >>> X = np.array([[1.0, 0.0], [2.0, 0.0], [3.0, 1.0]]); y = 2 * X[:, 0]
    >>> fit_heads(X, y, np.array([0, 3]), np.eye(2)[:, :1]).round(6)
    array([[2., 0.]])
    """
    from tacitly.heads.ridge_kernels import new_work, padded_penalties, ridge_heads
    from tacitly.simd.registers import padded

    directions = np.asarray(basis, dtype=np.float64)
    check_shape("X", X, None, len(directions))
    heads = np.zeros((len(offsets) - 1, directions.shape[1] + 1))
    rows, targets = read_only(np.ascontiguousarray(X)), read_only(np.ascontiguousarray(y))
    public = padded(directions.T, np.float64), padded_penalties(), np.zeros((0, 0)), bool(intercept)
    k = directions.shape[1]
    ridge_heads(rows, targets, np.array(offsets), *public, new_work(k, -k % 4, offsets), heads)
    return heads


def fit_few_heads(X: Rows, y: Rows, offsets: Offsets, basis: npt.ArrayLike, *, intercept: bool = False) -> Array:
    """Fit heads as :func:`fit_heads` does, with array operations.

    >>> X = np.array([[1.0, 0.0], [2.0, 0.0], [3.0, 1.0]]); y = 2 * X[:, 0]
    >>> fit_few_heads(X, y, np.array([0, 3]), np.eye(2)[:, :1]).round(6)
    array([[2., 0.]])
    """
    directions = np.asarray(basis, dtype=np.float64)
    check_shape("X", X, None, len(directions))
    with np.errstate(all="ignore"):
        rows, targets = rows_times(X, directions), np.asarray(y, dtype=np.float64)
        heads = ridges_and_errors(rows, targets, offsets, intercept=intercept)[0]
    return np.where(np.isfinite(heads).all(axis=1, keepdims=True), heads, 0.0)


def fit_head(X: npt.ArrayLike, y: npt.ArrayLike, basis: npt.ArrayLike, *, intercept: bool = False) -> Array:
    """Fit one user's head with NumPy, as a device does: k weights and the intercept (or 0).

    >>> X = np.array([[1.0, 0.0], [2.0, 0.0], [3.0, 1.0]])
    >>> fit_head(X, 2 * X[:, 0], np.eye(2)[:, :1]).round(6)
    array([2., 0.])
    """
    with np.errstate(all="ignore"):
        rows = np.asarray(X, dtype=np.float64) @ np.asarray(basis, dtype=np.float64)
        head = ridge_and_error(rows, np.asarray(y, dtype=np.float64), intercept=intercept)[0]
    return head if np.isfinite(head).all() else np.zeros_like(head)


def ridge_and_error(rows: Array, targets: Array, *, intercept: bool, least: float = 0.0) -> tuple[Array, float]:
    """Return one user's ridge regression, intercept (or 0) last, and its leave-one-out sum of squared errors.

    ``least`` is added to every penalty.
    """
    (m, k), mean, level = rows.shape, np.zeros(rows.shape[1]), 0.0
    if intercept and m > 0:
        mean, level = rows.mean(axis=0), float(targets.mean())
        rows, targets = rows - mean, targets - level
    system, right = rows.T @ rows, rows.T @ targets
    trace = float(np.trace(system))
    usable = math.isfinite(trace) and trace > LEAST_TRACE and bool(np.isfinite(right).all())
    (values,), (vectors,), (found,) = eigenvectors((system if usable else np.eye(k))[None])
    if not (usable and found):
        alone = float(np.sum(np.square(targets))) * (m / max(m - 1.0, 1e-6)) ** 2 if intercept and m > 0 else math.inf
        return np.append(np.zeros(k), level if math.isfinite(level) else 0.0), alone
    turned, right = rows @ vectors, vectors.T @ right
    shrinkage = 1.0 / (np.maximum(values, 0.0) + (PENALTIES[:, None] * (trace / k) + least))
    fitted = (shrinkage * right) @ turned.T
    leverage = shrinkage @ (turned**2).T + (1.0 / m if intercept else 0.0)
    errors = np.square((targets - fitted) / np.maximum(1.0 - leverage, 1e-6)).sum(axis=1)
    errors[: _least_penalty(m - k - int(intercept))] = np.inf
    best = errors.min()
    weights = np.where(errors == best, 1.0, (best / errors) ** (m / 2.0))
    head = vectors @ ((weights @ shrinkage) * right / weights.sum())
    used = weights > 0
    error = float(weights[used] @ errors[used] / weights.sum())
    return np.append(head, level - mean @ head if intercept else 0.0), error


@dataclass(frozen=True)
class RidgeHeads(HeadWork):
    """Heads fitted by :func:`fit_heads` on a public basis.

    >>> X = np.array([[1.0, 0.0], [2.0, 0.0], [3.0, 1.0]])
    >>> RidgeHeads(np.eye(2)[:, :1]).own(X, 2 * X[:, 0]).round(6)
    array([2., 0.])
    """

    basis: Array
    intercept: bool = False
    span: ClassVar[int] = MANY

    def __post_init__(self) -> None:
        check_shape("basis", self.basis, None, None)

    def __call__(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        """Fit all users, with compiled code if there are many."""
        fit = fit_few_heads if few(len(offsets) - 1, X.shape[1]) else fit_heads
        return fit(X, y, offsets, self.basis, intercept=self.intercept)

    def own(self, X: Rows, y: Rows) -> Array:
        """Fit one user with NumPy."""
        return fit_head(X, y, self.basis, intercept=self.intercept)

    @property
    def shape(self) -> tuple[int, ...]:
        """One weight per direction, and the intercept."""
        return (self.basis.shape[1] + 1,)


def _least_penalty(free: int) -> int:
    """Return the index of the smallest penalty to use; ``free`` is the number of rows minus the number of unknowns."""
    return LEAST_NONE if free <= 0 else (LEAST_ONE if free == 1 else 0)


@njit(nogil=True, cache=True, error_model="numpy")
def second_moments(rows, targets):  # type: ignore[no-untyped-def]
    """Return XᵀX and Xᵀy; for a few columns this is faster than a BLAS call."""
    m, k = rows.shape
    system, right = np.zeros((k, k)), np.zeros(k)
    for j in range(m):
        for b in range(k):
            value = rows[j, b]
            right[b] += value * targets[j]
            for c in range(b + 1):
                system[b, c] += value * rows[j, c]
    for b in range(k):
        for c in range(b):
            system[c, b] = system[b, c]
    return system, right


@njit(nogil=True, cache=True, error_model="numpy")
def _turned(system, vectors):  # type: ignore[no-untyped-def]
    """Diagonalise a symmetric matrix of trace one by Jacobi's method: eigenvalues (on the diagonal) and eigenvectors.

    Entries below the rounding errors of the trace are skipped. The first sweep that skips all entries is the last.
    """
    k = len(system)
    for _ in range(_SWEEPS):
        turned = False
        for p in range(k - 1):
            for q in range(p + 1, k):
                off, low, high = system[p, q], system[p, p], system[q, q]
                if abs(off) <= 2.0**-56:
                    continue
                turned = True
                ratio = (high - low) / (2.0 * off)
                tangent = 1.0 / (abs(ratio) + math.sqrt(1.0 + ratio * ratio))
                tangent = tangent if ratio >= 0.0 else -tangent
                cosine = 1.0 / math.sqrt(1.0 + tangent * tangent)
                sine = tangent * cosine
                for b in range(k):
                    x, y = system[b, p], system[b, q]
                    system[b, p], system[b, q] = cosine * x - sine * y, sine * x + cosine * y
                for b in range(k):
                    x, y = system[p, b], system[q, b]
                    system[p, b], system[q, b] = cosine * x - sine * y, sine * x + cosine * y
                    x, y = vectors[b, p], vectors[b, q]
                    vectors[b, p], vectors[b, q] = cosine * x - sine * y, sine * x + cosine * y
        if not turned:
            return


@njit(nogil=True, cache=True, error_model="numpy")
def average_ridges(rows, targets, intercept, penalties):  # type: ignore[no-untyped-def]
    """Return the average of one user's ridge fits over the penalties, and its leave-one-out sum of squared errors.

    ``intercept`` means that rows and targets were already centred. The error is infinite if there was nothing to fit.
    """
    m, k = rows.shape
    system, right = second_moments(rows, targets)
    trace = np.trace(system)
    if not (math.isfinite(trace) and trace > LEAST_TRACE and np.isfinite(right).all()):
        return np.zeros(k), math.inf
    if k <= _FEW:
        vectors, values = np.eye(k), np.empty(k)
        for b in range(k):
            for c in range(k):
                system[b, c] /= trace
        _turned(system, vectors)
        for b in range(k):
            values[b] = system[b, b] * trace
    else:
        values, vectors = np.linalg.eigh(system)
    turned = product(rows, vectors)
    right = product(right.reshape(1, k), vectors)[0]
    shrinkage, errors = np.empty((k, _LANES)), np.empty(_LANES)
    for b in range(k):
        value = max(values[b], 0.0)
        for q in range(_LANES):
            shrinkage[b, q] = 1.0 / (value + penalties[min(q, penalties.size - 1)] * trace / k)
    left_out_errors(turned, targets, right, shrinkage, 1.0 - (1.0 / m if intercept else 0.0), errors)
    free = m - k - (1 if intercept else 0)
    least = LEAST_NONE if free <= 0 else (LEAST_ONE if free == 1 else 0)
    weights = _weights_of(errors, least, penalties.size, m)
    total, mean = 0.0, 0.0
    for q in range(_LANES):
        total += weights[q]
        if weights[q] > 0.0:
            mean += weights[q] * errors[q]
    found = np.zeros(k)
    if not total > 0.0:
        return found, math.inf
    for c in range(k):
        chosen = 0.0
        for q in range(_LANES):
            if weights[q] > 0.0:
                chosen += weights[q] * shrinkage[c, q]
        for b in range(k):
            found[b] += vectors[b, c] * (chosen * right[c] / total)
    return found, mean / total


@njit(nogil=True, cache=True, error_model="numpy")
def _weights_of(errors, least, stop, rows):  # type: ignore[no-untyped-def]
    """Return (best/error)^(rows/2) for penalties from ``least`` to ``stop``, and zero for others; the best gets one."""
    best = math.inf
    for q in range(least, stop):
        best = min(best, errors[q])
    values, powers, bits = np.ones(_LANES), np.empty(_LANES), np.empty(_LANES, np.int64)
    for q in range(least, stop):
        values[q] = min(max(best / errors[q], 2.0**-1000), 1.0) if errors[q] > best else 1.0
    logarithms(values, bits, powers)
    for q in range(_LANES):
        powers[q] *= rows / 2.0
    powers_of_two(powers, bits, values)
    for q in range(_LANES):
        # An error that is NaN gets weight zero.
        values[q] = values[q] if least <= q < stop and errors[q] >= best and errors[q] < math.inf else 0.0
    return values


@njit(nogil=True, cache=True, error_model="numpy")
def product(rows, matrix):  # type: ignore[no-untyped-def]
    """Return rows·matrix for a small matrix."""
    m, k = rows.shape
    out = np.zeros((m, matrix.shape[1]))
    for j in range(m):
        for b in range(k):
            value = rows[j, b]
            for c in range(matrix.shape[1]):
                out[j, c] += value * matrix[b, c]
    return out
