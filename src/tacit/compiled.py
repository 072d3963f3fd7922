"""Compiled pieces that several kernels share: small solves, and passes over one user's rows that stay in cache.

Reductions may be reordered (``reassoc``) so that they run on vector units, but NaN and infinity keep their meaning:
kernels rely on it to leave out users whose numbers are not finite.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

# Rows to fetch ahead of the one in work. A user's rows are read in a burst and then worked on, and memory would idle
# meanwhile; asking for the next user's rows during the work overlaps the two (measured: 3.1× of the time of reading
# the data falls to half of that).
_AHEAD = 24


def pad_rows(matrix: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
    """Add zero rows up to a multiple of four, as :func:`project_rows` wants them.

    >>> pad_rows(np.ones((2, 3))).shape
    (4, 3)
    """
    missing = -matrix.shape[0] % 4
    padding = np.zeros((missing, matrix.shape[1]), dtype=matrix.dtype)
    return np.ascontiguousarray(np.vstack([matrix, padding]))


@intrinsic  # type: ignore[untyped-decorator]
def _prefetch(typing_context, array, position):  # type: ignore[no-untyped-def]
    """Ask for the cache line that holds ``array.flat[position]``; harmless beyond the end."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        pointer, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
        address = builder.bitcast(builder.gep(data, [arguments[1]]), pointer)
        kind = ir.FunctionType(ir.VoidType(), [pointer, flag, flag, flag])
        call = builder.module.declare_intrinsic("llvm.prefetch", [pointer], kind)
        builder.call(call, [address, flag(0), flag(3), flag(1)])  # for reading, into every cache, data
        return context.get_dummy_value()

    return types.void(array, types.intp), generate


@njit(nogil=True, cache=True)
def _fetch(X, first, last):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Fetch elements first..last of X, counted along its rows, into cache."""
    for position in range(first, last, 64 // X.itemsize):
        _prefetch(X, position)


@njit(nogil=True, cache=True, fastmath={"reassoc", "contract"})
def project_rows(X, first, last, basis, out):  # type: ignore[no-untyped-def]  # pragma: no cover
    """out[b, j] = basis[b]·X[first + j], two rows by four directions at a time: eight sums live in registers."""
    d = X.shape[1]
    zero = X.dtype.type(0)
    for b in range(0, basis.shape[0], 4):
        for j in range(first, last - 1, 2):
            s00 = s01 = s02 = s03 = zero
            s10 = s11 = s12 = s13 = zero
            if b == 0:
                _fetch(X, (j + _AHEAD) * d, (j + 1 + _AHEAD) * d)
            for a in range(d):
                x0, x1 = X[j, a], X[j + 1, a]
                u0, u1, u2, u3 = basis[b, a], basis[b + 1, a], basis[b + 2, a], basis[b + 3, a]
                s00 += x0 * u0
                s01 += x0 * u1
                s02 += x0 * u2
                s03 += x0 * u3
                s10 += x1 * u0
                s11 += x1 * u1
                s12 += x1 * u2
                s13 += x1 * u3
            o = j - first
            out[b, o], out[b + 1, o], out[b + 2, o], out[b + 3, o] = s00, s01, s02, s03
            out[b, o + 1], out[b + 1, o + 1], out[b + 2, o + 1], out[b + 3, o + 1] = s10, s11, s12, s13
        if (last - first) % 2 == 1:
            s00 = s01 = s02 = s03 = zero
            for a in range(d):
                x0 = X[last - 1, a]
                s00 += x0 * basis[b, a]
                s01 += x0 * basis[b + 1, a]
                s02 += x0 * basis[b + 2, a]
                s03 += x0 * basis[b + 3, a]
            o = last - 1 - first
            out[b, o], out[b + 1, o], out[b + 2, o], out[b + 3, o] = s00, s01, s02, s03


@njit(nogil=True, cache=True, fastmath={"reassoc", "contract"})
def combine_rows(X, first, last, weights, out):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Out = Σ_j weights[j]·X[first + j], four rows at a time."""
    d = X.shape[1]
    for a in range(d):
        out[a] = 0
    whole = last - (last - first) % 4
    for j in range(first, whole, 4):
        o = j - first
        w0, w1, w2, w3 = weights[o], weights[o + 1], weights[o + 2], weights[o + 3]
        _fetch(X, (j + 1 + _AHEAD) * d, (j + 2 + _AHEAD) * d)
        _fetch(X, (j + 3 + _AHEAD) * d, (j + 4 + _AHEAD) * d)
        for a in range(d):
            out[a] += w0 * X[j, a] + w1 * X[j + 1, a] + w2 * X[j + 2, a] + w3 * X[j + 3, a]
    for j in range(whole, last):
        w0 = weights[j - first]
        for a in range(d):
            out[a] += w0 * X[j, a]


@njit(nogil=True, cache=True, fastmath={"reassoc", "contract"})
def normal_equations(P, y, m, k, A, b):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Lower triangle of A = PPᵀ and b = Py for P (k×m), over the first m columns."""
    for i in range(k):
        total = 0.0
        for j in range(m):
            total += P[i, j] * y[j]
        b[i] = total
        for p in range(i + 1):
            total = 0.0
            for j in range(m):
                total += P[i, j] * P[p, j]
            A[i, p] = total


@njit(nogil=True, cache=True, fastmath={"reassoc", "contract"})
def subtract_fit(P, head, m, y):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Y -= Pᵀhead over the first m columns; rows of P and entries of head come in fours."""
    for b in range(0, P.shape[0], 4):
        h0, h1, h2, h3 = head[b], head[b + 1], head[b + 2], head[b + 3]
        for j in range(m):
            y[j] -= y.dtype.type(h0 * P[b, j] + h1 * P[b + 1, j] + h2 * P[b + 2, j] + h3 * P[b + 3, j])


@njit(nogil=True, cache=True, fastmath={"reassoc", "contract"})
def add_outer(weights, g, out):  # type: ignore[no-untyped-def]  # pragma: no cover
    """out[b] += weights[b]·g; rows of out and weights come in fours."""
    for b in range(0, out.shape[0], 4):
        w0, w1, w2, w3 = weights[b], weights[b + 1], weights[b + 2], weights[b + 3]
        for a in range(g.size):
            value = g[a]
            out[b, a] += w0 * value
            out[b + 1, a] += w1 * value
            out[b + 2, a] += w2 * value
            out[b + 3, a] += w3 * value


@njit(nogil=True, cache=True, fastmath={"reassoc", "contract"})
def center_rows(X, first, last, out):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Write rows first..last of X less their mean to ``out``."""
    d = X.shape[1]
    mean = np.zeros(d)
    for j in range(first, last):
        for a in range(d):
            mean[a] += X[j, a]
    for j in range(first, last):
        for a in range(d):
            out[j, a] = X[j, a] - mean[a] / (last - first)


@njit(nogil=True, cache=True, fastmath={"reassoc", "contract"})
def cholesky_solve(A, b, size):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Solve the positive definite system in the lower triangle of A in place; False if it is not one.

    The diagonal is kept as its reciprocal: divisions are what a small solve costs.
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
