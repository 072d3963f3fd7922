"""The compiled part of :func:`~tacitly.heads.ridge.fit_heads`: eight users at a time.

1. Each user's rows are read from memory once and projected on the basis; later steps use about k numbers per row.
2. The eight k×k systems are diagonalised together, one per SIMD lane, by Jacobi's method.
3. Each user's leave-one-out errors are computed for all penalties at once, one penalty per lane.
4. The weights of all penalties of all eight users are computed together.

Nothing is allocated per user. Lanes do not interact, and a lane that has converged does not change any more. So a head
is the same to the last bit, whichever users are processed beside it.
"""

# Numba kernels are not typed.
# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from tacitly.arrays import Array, Offsets
from tacitly.heads.penalties import LEAST_NONE, LEAST_ONE, LEAST_TRACE, PENALTIES
from tacitly.simd.elementary import logarithms, powers_of_two
from tacitly.simd.lanes import LANES
from tacitly.simd.lazy_njit import UNCOUNTED, njit
from tacitly.simd.normal_equations import normal_equations, place_of, project_doubles
from tacitly.simd.registers import (
    aligned_zeros,
    at_least,
    load,
    load_every,
    load_first,
    repeat,
    repeat_pair,
    root,
    spread,
    store,
    total,
    where_usable,
    with_sign_of,
)

_FEW, _SWEEPS = 16, 30  # up to so many directions Jacobi's method is faster than LAPACK; maximum number of sweeps
_NOTHING = 2.0**-112  # squared entries below this are rounding errors of a trace of one
_AHEAD = 1 << 16  # prefetch distance in bytes
_COUNT = len(PENALTIES)
_AT_ONCE = 2 * LANES  # two registers: the first eight penalties; the other four twice, for two rows at a time
_BLOCK = LANES * _AT_ONCE

_kernel: Any = njit(nogil=True, cache=True, fastmath={"contract"}, error_model="numpy")
_inside: Any = njit(**UNCOUNTED)
_inlined: Any = njit(**UNCOUNTED, forceinline=True)  # a call with many arrays takes as long as the work on a row


class Work(NamedTuple):
    """Buffers for eight users: projected rows (one line per direction), targets, systems and results."""

    rows: Any
    turned: Any
    squares: Any
    targets: Any
    systems: Any
    matrix: Any
    vectors: Any
    right: Any
    shrinkage: Any
    fits: Any
    means: Any
    level: Any
    trace: Any
    found: Any
    error: Any
    errors: Any
    weights: Any
    logs: Any
    bits: Any


def padded_penalties() -> Array:
    """Return the penalties, with the last four repeated."""
    assert _COUNT == LANES + LANES // 2
    out = aligned_zeros(1, _AT_ONCE)[0]
    out[:_COUNT], out[_COUNT:] = PENALTIES, PENALTIES[LANES:]
    return np.asarray(out)


def new_work(k: int, padding: int, offsets: Offsets) -> Work:
    """Return buffers for any eight users and k directions. Not compiled: that would take seconds."""
    room, size, one = longest_group(offsets), k + padding, aligned_zeros
    return Work(
        rows=one(size, room),
        turned=one(k, room),
        squares=one(k, room),
        targets=one(1, room)[0],
        systems=one(LANES * (size + 4), size),
        matrix=one(k * k, LANES),
        vectors=one(k * k, LANES),
        right=one(k, LANES),
        shrinkage=one(k, _AT_ONCE),
        fits=one(LANES * k, _AT_ONCE),
        means=one(k, LANES),
        level=one(1, LANES)[0],
        trace=one(1, LANES)[0],
        found=one(k, LANES),
        error=one(1, LANES)[0],
        errors=one(1, _BLOCK)[0],
        weights=one(1, _BLOCK)[0],
        logs=one(1, _BLOCK)[0],
        bits=np.zeros(_BLOCK, np.int64),
    )


def longest_group(offsets: Offsets) -> int:
    """Return the buffer length for the rows of any eight users."""
    edges = np.append(offsets[:-1:LANES], offsets[-1])
    return int(np.max(np.diff(edges), initial=0)) + 12 * LANES  # with some padding per user: see place_of


@_kernel
def ridge_heads(X, y, offsets, basis, penalties, metric, intercept, work, heads):
    """Write all users' heads. ``basis`` and ``penalties`` are padded; see :func:`fit_group` for ``metric``."""
    n, k = heads.shape[0], heads.shape[1] - 1
    for start in range(0, n, LANES):
        stop = min(start + LANES, n)
        for u in range(stop - start):
            first, last = offsets[start + u], offsets[start + u + 1]
            place = place_of(first - offsets[start], u)
            project_doubles(X, first, last, basis, work.rows, place, _AHEAD)
            for j in range(last - first):
                work.targets[place + j] = y[first + j]
        fit_group(work, offsets, start, stop, penalties, 0.0, metric, intercept)
        for u in range(stop - start):
            for b in range(k):
                heads[start + u, b] = work.found[b, u]
            heads[start + u, k] = level_of(work, u) if intercept else 0.0


@_inlined
def level_of(work, u):
    """Return a user's intercept; zero if it is not finite."""
    level = work.level[u]
    if not math.isfinite(level):
        return 0.0
    if not work.trace[u] > 0.0:
        return level
    for b in range(work.found.shape[0]):
        level -= work.means[b, u] * work.found[b, u]
    return level


@_kernel
def fit_group(work, offsets, start, stop, penalties, least, metric, intercept):
    """Fit the ridge regressions of up to eight users to ``work.rows`` and ``work.targets``, centred for an intercept.

    ``least`` is added to every penalty. If ``metric`` is not empty, penalties apply to the weights in its coordinates
    (rows times metric). Weights are written to ``work.found`` and leave-one-out sums of squared errors to
    ``work.error``; these are zeros and infinity if there is nothing to fit.
    """
    k = work.found.shape[0]
    for u in range(stop - start):
        m, place = offsets[start + u + 1] - offsets[start + u], place_of(offsets[start + u] - offsets[start], u)
        if intercept:
            _center(work, place, m, u)
        normal_equations(work.rows, place, work.targets, place, place + m, 0.0, work.systems, u)
    _decompose(work, metric, k, stop - start)
    for u in range(stop - start):
        m, place = offsets[start + u + 1] - offsets[start + u], place_of(offsets[start + u] - offsets[start], u)
        if work.trace[u] > 0.0:
            _turn_rows(work, place, m, u)
            _shrink(work, penalties, least, u)
            _left_out(work, place, m, 1.0 - (1.0 / m if intercept else 0.0), u)
    _weigh(work, offsets, start, stop, k + intercept)
    _average(work, stop - start)


@_inlined
def _center(work, place, m, u):
    """Subtract a user's means from their rows and targets, and store the means."""
    share = 1.0 / max(m, 1)
    for b in range(work.found.shape[0]):
        mean = total_of(work.rows, b * work.rows.shape[1] + place, m) * share
        work.means[b, u] = mean
        for j in range(m):
            work.rows[b, place + j] -= mean
    level = total_of(work.targets, place, m) * share
    work.level[u] = level
    for j in range(m):
        work.targets[place + j] -= level


@_inside
def total_of(values, at, m):
    """Return the sum of m values, starting at a position."""
    sums = spread(0.0)
    for i in range(0, m, LANES):
        sums = sums + load_first(values, at + i, m - i)
    return total(sums)


@_kernel
def _decompose(work, metric, k, count):
    """Diagonalise the eight systems: eigenvalues (on the diagonal), eigenvectors, and right-hand sides in their basis.

    This works in the coordinates of ``metric``, unless it is empty; eigenvectors are returned in the coordinates of the
    rows. ``work.trace`` is zero for systems that are not finite or too small.
    """
    K, size, trace = work.systems.shape[1], work.systems.size // LANES, spread(0.0)
    for b in range(k):
        for c in range(k):
            store(work.matrix, (b * k + c) * LANES, load_every(work.systems, max(b, c) * K + min(b, c), size))
            store(work.vectors, (b * k + c) * LANES, spread(1.0 if b == c else 0.0))
    if metric.size > 0:
        _change(work.matrix, work.vectors, metric, k)
    for b in range(k):
        trace = trace + load(work.matrix, (b * k + b) * LANES)
    check = trace - spread(LEAST_TRACE)
    for b in range(k):
        # x − x is zero, or NaN if x is not finite.
        value = load_every(work.systems, K * K + b, size)
        check = check + (value - value)
    inverse = where_usable(check, spread(1.0) / trace)
    store(work.trace, 0, where_usable(check, trace))
    for i in range(0, work.matrix.size, LANES):
        store(work.matrix, i, where_usable(inverse, load(work.matrix, i)) * inverse)
    if k <= _FEW:
        for _ in range(_SWEEPS):
            if not _unfinished(work.matrix, k):
                break
            _sweep(work.matrix, work.vectors, k)
    else:
        for u in range(count):
            if work.trace[u] > 0.0:
                _decompose_one(work, k, u)
    for c in range(k):
        value = spread(0.0)
        for b in range(k):
            part = where_usable(inverse, load_every(work.systems, K * K + b, size))
            value = value + load(work.vectors, (b * k + c) * LANES) * part
        store(work.right, c * LANES, value)


@_inside
def _change(matrix, vectors, metric, k):
    """Write metricᵀ·matrix·metric to the matrix, and the metric to the vectors."""
    for b in range(k):
        for c in range(k):
            value = spread(0.0)
            for i in range(k):
                value = value + load(matrix, (b * k + i) * LANES) * repeat(metric, i * k + c)
            store(vectors, (b * k + c) * LANES, value)
    for b in range(k):
        for c in range(k):
            value = spread(0.0)
            for i in range(k):
                value = value + load(vectors, (i * k + c) * LANES) * repeat(metric, i * k + b)
            store(matrix, (b * k + c) * LANES, value)
    for i in range(k * k):
        store(vectors, i * LANES, repeat(metric, i))


@_inside
def _unfinished(matrix, k):
    """Whether an entry off the diagonal is above the rounding errors of the trace in any lane."""
    much = spread(0.0)
    for b in range(1, k):
        for c in range(b):
            off = load(matrix, (b * k + c) * LANES)
            much = much + where_usable(off * off - spread(_NOTHING), off * off)
    return total(much) > 0.0


@_inside
def _sweep(matrix, vectors, k):
    """Rotate every pair of directions once in every lane (matrices of trace one); negligible entries are skipped.

    Pairs are ordered as in a round-robin tournament: the pairs of one round have no direction in common, so the
    processor can work on several at once.
    """
    rounds = k - 1 + k % 2
    for i in range(rounds):
        for j in range((rounds + 1) // 2):
            p, q = (i + j) % rounds, (i - j) % rounds if j > 0 else rounds
            p, q = min(p, q), max(p, q)
            if q < k:
                _turn_pair(matrix, vectors, k, p, q)


@_inside
def _turn_pair(matrix, vectors, k, p, q):
    off = load(matrix, (q * k + p) * LANES)
    low, high = load(matrix, (p * k + p) * LANES), load(matrix, (q * k + q) * LANES)
    double, apart, much = off + off, high - low, off * off - spread(_NOTHING)
    tangent = double / (apart + with_sign_of(root(apart * apart + double * double), apart))
    tangent = where_usable(much, tangent)
    cosine = spread(1.0) / root(spread(1.0) + tangent * tangent)
    sine = tangent * cosine
    store(matrix, (p * k + p) * LANES, low - tangent * off)
    store(matrix, (q * k + q) * LANES, high + tangent * off)
    store(matrix, (q * k + p) * LANES, off - where_usable(much, off))
    for b in range(k):
        if b != p and b != q:
            i, j = (max(b, p) * k + min(b, p)) * LANES, (max(b, q) * k + min(b, q)) * LANES
            x, y = load(matrix, i), load(matrix, j)
            store(matrix, i, cosine * x - sine * y)
            store(matrix, j, sine * x + cosine * y)
        i, j = (b * k + p) * LANES, (b * k + q) * LANES
        x, y = load(vectors, i), load(vectors, j)
        store(vectors, i, cosine * x - sine * y)
        store(vectors, j, sine * x + cosine * y)


@_kernel
def _decompose_one(work, k, u):
    """Diagonalise one user's system with LAPACK."""
    full = np.empty((k, k))
    for b in range(k):
        for c in range(b + 1):
            full[b, c] = full[c, b] = work.matrix[b * k + c, u]
    values, turn = np.linalg.eigh(full)
    for b in range(k):
        work.matrix[b * k + b, u] = values[b]
        for c in range(k):
            full[b, c] = work.vectors[b * k + c, u]
    for b in range(k):
        for c in range(k):
            value = 0.0
            for i in range(k):
                value += full[b, i] * turn[i, c]
            work.vectors[b * k + c, u] = value


@_inlined
def _turn_rows(work, place, m, u):
    """Write a user's rows in coordinates of the eigenvectors, and their squares."""
    k, room = work.found.shape[0], work.rows.shape[1]
    for i in range(place, place + m, LANES):
        for c in range(k):
            value = load(work.rows, i) * repeat(work.vectors, c * LANES + u)
            for b in range(1, k):
                value = value + load(work.rows, b * room + i) * repeat(work.vectors, (b * k + c) * LANES + u)
            store(work.turned, c * room + i, value)
            store(work.squares, c * room + i, value * value)


@_inlined
def _shrink(work, penalties, least, u):
    """Write 1/(eigenvalue + penalty) and the fits' weights in coordinates of the eigenvectors, for all penalties."""
    k, trace = work.found.shape[0], work.trace[u]
    for b in range(k):
        value, right = spread(max(work.matrix[b * k + b, u], 0.0) * trace + least), spread(work.right[b, u])
        for q in range(0, _AT_ONCE, LANES):
            part = spread(1.0) / (value + load(penalties, q) * spread(trace / k))
            store(work.shrinkage, b * _AT_ONCE + q, part)
            store(work.fits, (u * k + b) * _AT_ONCE + q, part * right)


@_inlined
def _left_out(work, place, m, free, u):
    """Write sums of squared leave-one-out errors of all penalties: residuals over one minus leverage.

    ``free`` is 1 minus the leverage that an intercept adds to each row. Two rows are processed at a time, in three
    registers: the first eight penalties of each row, and the last four penalties of both.
    """
    k, room, end = work.found.shape[0], work.turned.shape[1], place + m - m % 2
    sums, last = spread(0.0), spread(0.0)
    for j in range(place, end, 2):
        left0, left1, left2 = repeat(work.targets, j), repeat(work.targets, j + 1), repeat_pair(work.targets, j)
        rest0 = rest1 = rest2 = spread(free)
        for b in range(k):
            p, q = b * room + j, (u * k + b) * _AT_ONCE
            fit, part = load(work.fits, q), load(work.shrinkage, b * _AT_ONCE)
            left0, left1 = left0 - repeat(work.turned, p) * fit, left1 - repeat(work.turned, p + 1) * fit
            rest0, rest1 = rest0 - repeat(work.squares, p) * part, rest1 - repeat(work.squares, p + 1) * part
            left2 = left2 - repeat_pair(work.turned, p) * load(work.fits, q + LANES)
            rest2 = rest2 - repeat_pair(work.squares, p) * load(work.shrinkage, b * _AT_ONCE + LANES)
        rest0, rest1, rest2 = at_least(rest0, 1e-6), at_least(rest1, 1e-6), at_least(rest2, 1e-6)
        both = spread(1.0) / (rest0 * rest1)  # one division for two rows
        left0, left1, left2 = left0 * rest1 * both, left1 * rest0 * both, left2 / rest2
        sums, last = sums + left0 * left0 + left1 * left1, last + left2 * left2
    if m % 2:
        left0 = left1 = repeat(work.targets, end)
        rest0 = rest1 = spread(free)
        for b in range(k):
            p, q = b * room + end, (u * k + b) * _AT_ONCE
            left0 = left0 - repeat(work.turned, p) * load(work.fits, q)
            left1 = left1 - repeat(work.turned, p) * load(work.fits, q + LANES)
            rest0 = rest0 - repeat(work.squares, p) * load(work.shrinkage, b * _AT_ONCE)
            rest1 = rest1 - repeat(work.squares, p) * load(work.shrinkage, b * _AT_ONCE + LANES)
        left0, left1 = left0 / at_least(rest0, 1e-6), left1 / at_least(rest1, 1e-6)
        store(work.errors, u * _AT_ONCE, left1 * left1)
        sums, last = sums + left0 * left0, last + load_first(work.errors, u * _AT_ONCE, LANES // 2)
    store(work.errors, u * _AT_ONCE, sums)
    store(work.errors, u * _AT_ONCE + LANES, last)
    for q in range(u * _AT_ONCE + LANES, u * _AT_ONCE + _COUNT):
        work.errors[q] += work.errors[q + LANES // 2]


@_inlined
def _weigh(work, offsets, start, stop, unknowns):
    """Write (best/error)^(rows/2) for the penalties in use, zero for others; the best gets one."""
    errors, weights = work.errors, work.weights
    weights[:] = 1.0
    for u in range(stop - start):
        free, at, best = offsets[start + u + 1] - offsets[start + u] - unknowns, u * _AT_ONCE, math.inf
        least = LEAST_NONE if free <= 0 else (LEAST_ONE if free == 1 else 0)
        for q in range(_AT_ONCE):
            errors[at + q] = errors[at + q] if least <= q < _COUNT else math.nan
            best = min(best, errors[at + q]) if errors[at + q] < math.inf else best
        for q in range(at, at + _AT_ONCE, LANES):
            store(weights, q, at_least(spread(best) / load(errors, q), 2.0**-1000))
        if best == 0.0:
            for q in range(at, at + _AT_ONCE):
                weights[q] = 1.0 if errors[q] == 0.0 else 2.0**-1000
    logarithms(weights, work.bits, work.logs)
    for u in range(stop - start):
        half = spread(0.5 * (offsets[start + u + 1] - offsets[start + u]))
        for q in range(u * _AT_ONCE, (u + 1) * _AT_ONCE, LANES):
            store(work.logs, q, load(work.logs, q) * half)
    powers_of_two(work.logs, work.bits, weights)
    for q in range((stop - start) * _AT_ONCE):
        # An error that is NaN gets weight zero.
        weights[q] = weights[q] if errors[q] < math.inf else 0.0


@_inlined
def _average(work, count):
    """Write the averages of users' fits, and of their errors."""
    k = work.found.shape[0]
    for u in range(count):
        at = u * _AT_ONCE
        w0, w1 = load(work.weights, at), load(work.weights, at + LANES)
        whole = total(w0 + w1)
        usable = work.trace[u] > 0.0 and whole > 0.0
        share = 1.0 / whole if usable else 0.0
        # Fits with weight zero are left out, not multiplied: they may be infinite.
        error = where_usable(w0, w0 * load(work.errors, at)) + where_usable(w1, w1 * load(work.errors, at + LANES))
        work.error[u] = total(error) * share if usable else math.inf
        for c in range(k):
            p = (u * k + c) * _AT_ONCE
            value = where_usable(w0, w0 * load(work.fits, p)) + where_usable(w1, w1 * load(work.fits, p + LANES))
            work.right[c, u] = total(value) * share if usable else 0.0
    for b in range(k):
        value = load(work.vectors, b * k * LANES) * load(work.right, 0)
        for c in range(1, k):
            value = value + load(work.vectors, (b * k + c) * LANES) * load(work.right, c * LANES)
        store(work.found, b * LANES, value)
