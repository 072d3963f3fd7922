"""The user's fit for low rank plus sparse, compiled: weights on the basis and a few coordinates of one's own.

Given a public basis U, a user wants w and a k-sparse b with y ≈ X(Uw + b). Paper 004 (Algorithm 2) steps along the
gradient and keeps what is larger than a threshold Δ that shrinks with error bounds nobody knows. Here Δ is the k-th
largest candidate, so it needs no bounds and shrinks by itself; and after every step the chosen coordinates and w are
fitted together by least squares, so that a right support is exact at once (hard thresholding pursuit):

1. grow: in ``stages`` equal parts, add the coordinates most correlated with what is left;
2. swap: keep the k largest of b + gradient, fit again, until nothing changes or ``swaps`` are used up.

The best fit seen is kept. Candidates are compared in units of ``scale`` (one over each feature's size), so that nothing
depends on units. One user at a time and in a fixed order: nobody's fit depends on anybody else, to the last bit.
"""

# What Numba compiles has no types that mypy knows.
# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from tacit.algorithms.kernels import some_rows
from tacit.compiled import (
    add_products,
    aligned_zeros,
    load_first,
    no_products,
    spread,
    store,
    store_totals,
    total,
)
from tacit.projections import combine_rows, project_rows

Array = npt.NDArray[np.float64]
Work = npt.NDArray[Any]

_RIDGE = 1e-12  # of each column's own square: keeps copies of one column solvable, changes nothing else
_LANES = 8  # doubles in a register
_AHEAD = 1 << 16  # bytes ahead of the rows in work to ask memory for

kernel: Any = njit(nogil=True, cache=True, fastmath={"reassoc", "contract"}, error_model="numpy")


class Desk(NamedTuple):
    """Room for one user's fit, used again for the next; what a fit found is left on it.

    The columns of the fit lie in Z as rows: first the projections on the basis, then the target, then, from the next
    multiple of four on, the chosen features. With an intercept all of them are centred first: next to a column of ones
    features with a large mean would all look the same.
    """

    Z: Work
    means: Array  # of the rows of Z, where they were taken out
    gram: Work  # products of rows of Z, the lower triangle in blocks of four by four
    system: Array
    coefficients: Array  # weights, values of the chosen features
    support: npt.NDArray[np.int64]  # the chosen features
    left: Array  # the residual e
    small: npt.NDArray[np.floating]  # the residual in the precision of the rows
    pull: Work  # its correlation Xᵀe with every feature, in the first row
    score: Array
    best: Array
    candidates: npt.NDArray[np.int64]
    kept: npt.NDArray[np.int64]


def make_desk(longest: int, n_features: int, fixed: int, most: int, dtype: npt.DTypeLike) -> Desk:
    """Make room for users with up to ``longest`` rows, ``fixed`` weights and ``most`` coordinates of their own."""
    room = (longest + 3 + 7) // 8 * 8
    height = first_feature(fixed, max(4, fixed + -fixed % 4)) + most + -most % 4
    size = fixed + most
    shapes = [(height, room), (height,), (height, height), (size, size), (size,), (room,), (n_features,), (most + 1,)]
    Z, means, gram, system, coefficients, left, score, best = _apart(np.float64, *shapes)
    (pull,) = _apart(np.float64, (1, n_features + -n_features % 16))
    support, candidates, kept = _apart(np.int64, (most,), (most,), (most,))
    (small,) = _apart(dtype, (room + 8,))
    return Desk(Z, means, gram, system, coefficients, support, left, small, pull, score, best, candidates, kept)


def _apart(dtype: npt.DTypeLike, *shapes: tuple[int, ...]) -> list[npt.NDArray[Any]]:
    """Zeros of these shapes, each on cache lines of its own: NumPy would put small ones next to another thread's."""
    lines = [-(-max(1, math.prod(shape)) // 8) + 2 for shape in shapes]
    flat = aligned_zeros(sum(lines) + 2, 8, dtype).ravel()
    places = np.cumsum([2, *lines]) * 8
    return [flat[place : place + math.prod(shape)].reshape(shape) for place, shape in zip(places, shapes, strict=False)]


@kernel
def affordable(rows, fixed, wanted):  # pragma: no cover
    """Count the coordinates a user with so many rows can tell apart: one for two rows that ``fixed`` columns leave."""
    return max(0, min(wanted, (rows - fixed) // 2))


@kernel
def first_feature(fixed, projected):  # pragma: no cover
    """Where the chosen features begin in Z: after the fixed columns and the target, and what projecting overwrites."""
    return max(projected, fixed + 1 + (-fixed - 1) % 4)


@kernel
def fit_user(X, first, last, y, basis, shared, intercept, scale, k, stages, swaps, desk):  # pragma: no cover
    """Fit one user; return how many coordinates were chosen. What was found is on the desk.

    ``basis`` is padded, directions as rows; ``shared`` fixes the only weight at one.
    """
    m, d, fixed = last - first, X.shape[1], desk.coefficients.size - desk.support.size
    Z, support, coefficients, score, pull = desk.Z, desk.support, desk.coefficients, desk.score, desk.pull
    base = first_feature(fixed, basis.shape[0])
    project_rows(X, first, last, d, basis, Z, 0, _AHEAD)
    for j in range(m):
        Z[fixed, j] = y[first + j] - (Z[0, j] if shared else 0.0)
    if intercept:
        for b in range(fixed + 1):
            _center(desk, b, m)
    _products(desk, 0, base, m)

    size, least, kept = 0, math.inf, 0
    _solve(desk, fixed, base, size, m)
    combine_rows(X, first, last, desk.small, 0, pull, 0)
    stages = min(stages, k)
    for stage in range(stages + swaps):
        if k == 0:
            break
        growing = stage < stages
        for a in range(d):
            score[a] = pull[0, a] * scale[a]
        for s in range(size):
            if growing:
                score[support[s]] = 0.0
            else:
                score[support[s]] += coefficients[fixed + s] * m / scale[support[s]]
        if growing:
            wanted = (k * (stage + 1) + stages - 1) // stages - size
            found = _largest(score, wanted, desk.best, desk.candidates)
            for s in range(found):
                support[size + s] = desk.candidates[s]
                _fetch_column(X, first, last, support[size + s], intercept, desk, base + size + s)
            size, changed = size + found, found > 0
        else:
            changed = _largest(score, size, desk.best, desk.candidates) == size
            changed = changed and _exchange(X, first, last, size, base, intercept, desk)
        if not changed:
            break
        _products(desk, base, base + size, m)
        error = _solve(desk, fixed, base, size, m)
        if stage >= stages - 1:
            if error < least:
                least, kept = error, size
                desk.kept[:size] = support[:size]
            elif error > least:
                size = kept
                for s in range(size):
                    support[s] = desk.kept[s]
                    _fetch_column(X, first, last, support[s], intercept, desk, base + s)
                _products(desk, base, base + size, m)
                _solve(desk, fixed, base, size, m)
                swaps = 0
        combine_rows(X, first, last, desk.small, 0, pull, 0)
        if stage >= stages + swaps - 1:
            break
    return size


@kernel
def _fetch_column(X, first, last, feature, intercept, desk, row):  # pragma: no cover
    for j in range(last - first):
        desk.Z[row, j] = X[first + j, feature]
    if intercept:
        _center(desk, row, last - first)


@kernel
def _center(desk, row, m):  # pragma: no cover
    """Take the mean out of a row of Z, and note it."""
    mean = 0.0
    for j in range(m):
        mean += desk.Z[row, j] / m
    for j in range(m):
        desk.Z[row, j] -= mean
    desk.means[row] = mean


@kernel
def level_of(desk, fixed, base, count):  # pragma: no cover
    """Return the intercept that goes with centred columns."""
    level = desk.means[fixed]
    for b in range(fixed + count):
        level -= desk.coefficients[b] * desk.means[b if b < fixed else base + b - fixed]
    return level


@kernel
def _products(desk, start, stop, m):  # pragma: no cover
    """Write the products of rows start..stop of Z with all rows before them, sixteen at a time."""
    Z, gram = desk.Z, desk.gram
    height = gram.shape[1]
    for b in range(start, stop, 4):
        for c in range(0, b + 4, 4):
            sums = no_products(Z)
            for i in range(0, m, _LANES):
                sums = add_products(sums, some_rows(Z, b, i, m - i), some_rows(Z, c, i, m - i), "all")
            store_totals(gram, b * height + c, height, sums)


@kernel
def _solve(desk, fixed, base, size, m):  # pragma: no cover
    """Least squares on the fixed columns and ``size`` features; write what is left and return its square."""
    gram, system, b = desk.gram, desk.system, desk.coefficients
    for i in range(fixed + size):
        row = i if i < fixed else base + i - fixed
        for j in range(min(i, fixed)):
            system[i, j] = gram[row, j]
        for j in range(fixed, i):
            system[i, j] = gram[row, base + j - fixed]
        system[i, i] = gram[row, row] * (1.0 + _RIDGE)
        b[i] = gram[fixed, i] if i < fixed else gram[row, fixed]
    _cholesky(system, b, fixed + size)
    Z, left, small = desk.Z, desk.left, desk.small
    room, squares = Z.shape[1], spread(0.0)
    for i in range(0, m, _LANES):
        value = load_first(Z, fixed * room + i, m - i)
        for j in range(fixed):
            value = value - spread(b[j]) * load_first(Z, j * room + i, m - i)
        for j in range(size):
            value = value - spread(b[fixed + j]) * load_first(Z, (base + j) * room + i, m - i)
        squares = squares + value * value
        store(left, i, value)
        store(small, i, value)
    return total(squares)


@kernel
def _cholesky(A, b, size):  # pragma: no cover
    """Solve the positive definite system in the lower triangle of A in place; NaN where it is not one."""
    for j in range(size):
        diagonal, value = A[j, j], b[j]
        for p in range(j):
            diagonal -= A[j, p] * A[j, p]
            value -= A[j, p] * b[p]
        inverse = 1.0 / math.sqrt(diagonal) if diagonal > 0.0 else math.nan
        A[j, j] = inverse
        b[j] = value * inverse
        for i in range(j + 1, size):
            value = A[i, j]
            for p in range(j):
                value -= A[i, p] * A[j, p]
            A[i, j] = value * inverse
    for i in range(size - 1, -1, -1):
        value = b[i]
        for p in range(i + 1, size):
            value -= A[p, i] * b[p]
        b[i] = value * A[i, i]


@kernel
def _largest(score, count, best, out):  # pragma: no cover
    """Write the positions of the ``count`` largest sizes to ``out``, in order; return how many there are above zero."""
    best[:count] = 0.0
    found = 0
    for a in range(score.size):
        value = abs(score[a])
        if value > best[count - 1]:
            place = min(found, count - 1)
            while place > 0 and best[place - 1] < value:
                best[place], out[place] = best[place - 1], out[place - 1]
                place -= 1
            best[place], out[place] = value, a
            found = min(found + 1, count)
    return found


@kernel
def _exchange(X, first, last, size, base, intercept, desk):  # pragma: no cover
    """Bring the candidates into the support, those that stay in their places; return whether anything changed."""
    support, candidates = desk.support, desk.candidates
    c, changed = 0, False
    for s in range(size):
        if _holds(candidates, size, support[s]):
            continue
        while _holds(support, size, candidates[c]):
            c += 1
        support[s] = candidates[c]
        _fetch_column(X, first, last, support[s], intercept, desk, base + s)
        changed = True
    return changed


@kernel
def _holds(values, count, value):  # pragma: no cover
    found = False
    for i in range(count):
        found = found or values[i] == value
    return found
