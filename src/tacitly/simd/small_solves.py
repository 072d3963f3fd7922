"""Compiled linear algebra on one user's rows, shared by several queries."""

# Numba-compiled functions have no types that mypy knows.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import math

import numpy as np

from tacitly.simd.lazy_njit import njit

TINY_RIDGE = 1e-12  # relative to the trace: keeps a singular head system solvable, with no other visible effect


@njit(nogil=True, cache=True, fastmath={"reassoc", "contract"})
def center_rows(X, first, last, out):
    """Write rows first to last of X, minus their mean, to ``out``."""
    d = X.shape[1]
    mean = np.zeros(d)
    for j in range(first, last):
        for a in range(d):
            mean[a] += X[j, a]
    for j in range(first, last):
        for a in range(d):
            out[j, a] = X[j, a] - mean[a] / (last - first)


@njit(nogil=True, cache=True, fastmath={"reassoc", "contract"})
def cholesky_solve(A, b, size):
    """Solve A x = b in place, A positive definite in its lower triangle; return False if it is not.

    The factor's diagonal is stored as reciprocals, because divisions dominate the cost of a small solve.
    """
    for j in range(size):
        diagonal = A[j, j]
        for p in range(j):
            diagonal -= A[j, p] * A[j, p]
        if not diagonal > 0.0 or not math.isfinite(diagonal):
            return False
        inverse = 1.0 / math.sqrt(diagonal)
        A[j, j] = inverse
        for i in range(j + 1, size):
            value = A[i, j]
            for p in range(j):
                value -= A[i, p] * A[j, p]
            A[i, j] = value * inverse
        value = b[j]
        for p in range(j):
            value -= A[j, p] * b[p]
        b[j] = value * inverse
    for i in range(size - 1, -1, -1):
        value = b[i]
        for p in range(i + 1, size):
            value -= A[p, i] * b[p]
        b[i] = value * A[i, i]
    return True
