"""The compiled part of :class:`~tacitly.heads.population.PopulationHeads`: eight users at a time.

A user's own ridge regression is computed as in :mod:`tacitly.heads.ridge_kernels`. The systems of the posteriors are
factored together, one user per SIMD lane; their leave-one-out errors are computed for eight rows of one user at a time.
With the system LLᵀ and rows t multiplied by the prior's root, leverages are ‖L⁻¹t‖² and fitted values (L⁻¹t)·(L⁻¹b), so
no inverse is formed.
"""

# Numba kernels are not typed.
# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from tacitly.heads.ridge_kernels import fit_group, level_of, total_of
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
    root,
    spread,
    store,
    total,
    where_usable,
)

_AHEAD = 1 << 16  # prefetch distance in bytes
_LOST = 1e-14  # relative to a diagonal entry: a smaller remainder is rounding error, the direction is already covered
_HEADS = 4

_kernel: Any = njit(nogil=True, cache=True, fastmath={"contract"}, error_model="numpy")
_inlined: Any = njit(**UNCOUNTED, forceinline=True)  # a call with many arrays takes as long as the work on a row


class Posteriors(NamedTuple):
    """Buffers for the posteriors of eight users."""

    left: Any
    systems: Any
    gram: Any
    side: Any
    between: Any
    cholesky: Any
    forward: Any
    shift: Any
    turn: Any
    errors: Any
    sizes: Any
    logs: Any
    bits: Any
    out: Any


def new_posteriors(k: int, r: int, room: int) -> Posteriors:
    """Return buffers for k directions and a root of r columns."""
    padded, size, one = k + -k % 4, k + 1, aligned_zeros
    return Posteriors(
        left=one(1, room)[0],
        systems=one(LANES * (padded + 4), padded),
        gram=one(size * size, LANES),
        side=one(size, LANES),
        between=one(size * r, LANES),
        cholesky=one(r * r, LANES),
        forward=one(r, LANES),
        shift=one(r, LANES),
        turn=one(r * size, LANES),
        errors=one(_HEADS, LANES),
        sizes=one(1, (_HEADS + 1) * LANES)[0],
        logs=one(1, (_HEADS + 1) * LANES)[0],
        bits=np.zeros((_HEADS + 1) * LANES, np.int64),
        out=one(size + 1, LANES),
    )


@_kernel
def population_heads(
    X,
    y,
    offsets,
    basis,
    mean,
    prior_root,
    noise,
    metric,
    least,
    belief,
    penalties,
    intercept,
    work,
    those,
    heads,
    errors,
):
    """Write all users' heads and their leave-one-out sums of squared errors; ``belief`` holds log₂ of the odds."""
    n, k, out = heads.shape[0], mean.size - 1, those.out
    for start in range(0, n, LANES):
        stop = min(start + LANES, n)
        for u in range(stop - start):
            first, last = offsets[start + u], offsets[start + u + 1]
            place, m = place_of(first - offsets[start], u), last - first
            project_doubles(X, first, last, basis, work.rows, place, _AHEAD)
            for j in range(m):
                work.targets[place + j] = y[first + j]
            those.errors[0, u] = _left(work, those.left, place, m, mean)
            normal_equations(work.rows, place, those.left, place, place + m, 0.0, those.systems, u)
            if intercept:
                _sums(work.rows, those, place, m, u)
        _posteriors(those, prior_root, noise)
        for u in range(stop - start):
            place = place_of(offsets[start + u] - offsets[start], u)
            m = offsets[start + u + 1] - offsets[start + u]
            those.errors[1, u] = _left_out(work.rows, those, work.squares, place, m, u)
        fit_group(work, offsets, start, stop, penalties, least, metric, intercept)
        _weigh(work, those, offsets, start, stop, belief, k, intercept)
        _combine(work, those, mean, prior_root, intercept)
        for u in range(stop - start):
            empty = offsets[start + u] == offsets[start + u + 1]
            for a in range(k + 1):
                heads[start + u, a] = mean[a] if empty else out[a, u]
            errors[start + u] = 0.0 if empty else out[k + 1, u]


@_inlined
def _left(work, left, place, m, mean):
    """Write the residuals of a user's targets under the population's head; return their sum of squares."""
    room, k, sums = work.rows.shape[1], mean.size - 1, spread(0.0)
    for i in range(0, m, LANES):
        value = load(work.targets, place + i) - repeat(mean, k)
        for b in range(k):
            value = value - load(work.rows, b * room + place + i) * repeat(mean, b)
        store(left, place + i, value)
        value = load_first(left, place + i, m - i)
        sums = sums + value * value
    return total(sums)


@_inlined
def _sums(rows, those, place, m, u):
    """Write the terms that an intercept adds to a user's system: number of rows, their sum and the sum of residuals."""
    k = those.side.shape[0] - 1
    for b in range(k):
        those.gram[k * (k + 1) + b, u] = total_of(rows, b * rows.shape[1] + place, m)
    those.gram[k * (k + 1) + k, u] = m
    those.side[k, u] = total_of(those.left, place, m)


@_inlined
def _posteriors(those, prior_root, noise):
    """Factor the eight systems RᵀGR + noise by Cholesky, with reciprocals on the diagonal, and solve them.

    A direction whose remainder is only rounding error is left out.
    """
    size, K, k, r = those.systems.size // LANES, those.systems.shape[1], those.side.shape[0] - 1, prior_root.shape[1]
    for a in range(k):
        store(those.side, a * LANES, load_every(those.systems, K * K + a, size))
        for b in range(a + 1):
            store(those.gram, (a * (k + 1) + b) * LANES, load_every(those.systems, a * K + b, size))
    for a in range(k + 1):
        for c in range(r):
            value = spread(0.0)
            for b in range(k + 1):
                value = value + load(those.gram, (max(a, b) * (k + 1) + min(a, b)) * LANES) * repeat(
                    prior_root, b * r + c
                )
            store(those.between, (a * r + c) * LANES, value)
    for j in range(r):
        for i in range(j, r):
            value = spread(noise) if i == j else spread(0.0)
            for a in range(k + 1):
                value = value + load(those.between, (a * r + j) * LANES) * repeat(prior_root, a * r + i)
            whole = value
            for p in range(j):
                value = value - load(those.cholesky, (i * r + p) * LANES) * load(those.cholesky, (j * r + p) * LANES)
            if i == j:
                scaled = where_usable(value - whole * spread(_LOST), spread(1.0) / root(value))
            else:
                scaled = value * load(those.cholesky, (j * r + j) * LANES)
            store(those.cholesky, (i * r + j) * LANES, scaled)
        inverse, value = load(those.cholesky, (j * r + j) * LANES), spread(0.0)
        for a in range(k + 1):
            value = value + load(those.side, a * LANES) * repeat(prior_root, a * r + j)
            turned = repeat(prior_root, a * r + j)
            for p in range(j):
                turned = turned - load(those.cholesky, (j * r + p) * LANES) * load(
                    those.turn, (p * (k + 1) + a) * LANES
                )
            store(those.turn, (j * (k + 1) + a) * LANES, turned * inverse)
        for p in range(j):
            value = value - load(those.cholesky, (j * r + p) * LANES) * load(those.forward, p * LANES)
        store(those.forward, j * LANES, value * inverse)
    for i in range(r - 1, -1, -1):
        value = load(those.forward, i * LANES)
        for p in range(i + 1, r):
            value = value - load(those.cholesky, (p * r + i) * LANES) * load(those.shift, p * LANES)
        store(those.shift, i * LANES, value * load(those.cholesky, (i * r + i) * LANES))


@_inlined
def _left_out(rows, those, buffer, place, m, u):
    """Return a posterior's leave-one-out sum of squared errors, eight rows at a time."""
    room, k, r, sums = rows.shape[1], those.side.shape[0] - 1, those.forward.shape[0], spread(0.0)
    for i in range(place, place + m, LANES):
        left, rest = load(those.left, i), spread(1.0)
        for b in range(r):
            value = repeat(those.turn, (b * (k + 1) + k) * LANES + u)
            for a in range(k):
                value = value + load(rows, a * room + i) * repeat(those.turn, (b * (k + 1) + a) * LANES + u)
            left, rest = left - value * repeat(those.forward, b * LANES + u), rest - value * value
        store(buffer, i, left / at_least(rest, 1e-6))
        value = load_first(buffer, i, place + m - i)
        sums = sums + value * value
    return total(sums)


@_inlined
def _weigh(work, those, offsets, start, stop, belief, k, intercept):
    """Write leave-one-out errors of the four heads to ``those.errors``, unnormalised weights to ``those.logs``."""
    errors, own = those.errors, 1 if intercept else 0
    those.sizes[:] = 1.0
    for u in range(stop - start):
        m, place = offsets[start + u + 1] - offsets[start + u], place_of(offsets[start + u] - offsets[start], u)
        around = 0.0
        if intercept:  # rows and targets are already centred
            for j in range(m):
                around += work.targets[place + j] * work.targets[place + j]
            around *= (m / max(m - 1.0, 1e-6)) ** 2
        errors[2, u] = work.error[u]
        errors[3, u] = around if intercept else math.inf
        if intercept and not math.isfinite(work.error[u]):  # no slope can be fitted: use the user's own mean
            errors[2, u] = around
        least = 1e-300 + 1e-12 * errors[0, u]
        for c in range(_HEADS):
            if math.isfinite(errors[c, u]) and math.isfinite(least):
                those.sizes[c * LANES + u] = max(errors[c, u], least)
        those.sizes[_HEADS * LANES + u] = m + 1.0
    logarithms(those.sizes, those.bits, those.logs)
    for u in range(stop - start):
        m, paid = offsets[start + u + 1] - offsets[start + u], 0.5 * those.logs[_HEADS * LANES + u]
        best = -math.inf
        for c in range(_HEADS):
            numbers = k + own if c == 2 else (own if c == 3 else 0)
            score = belief[c] - numbers * paid - 0.5 * (m - 1.0) * those.logs[c * LANES + u]
            if m == 1:  # a single row cannot be predicted from other rows
                score = 0.0 if c == 1 else -math.inf
            score = score if math.isfinite(errors[c, u]) or (m == 1 and c == 1) else -math.inf
            those.sizes[c * LANES + u] = score
            best = max(best, score)
        for c in range(_HEADS):
            score = those.sizes[c * LANES + u]
            those.sizes[c * LANES + u] = score - best if score > -math.inf else -math.inf
    powers_of_two(those.sizes, those.bits, those.logs)


@_inlined
def _combine(work, those, mean, prior_root, intercept):
    """Write the eight users' weighted heads and errors; without usable heads, the population's head and infinity."""
    k, r, out = mean.size - 1, prior_root.shape[1], those.out
    w0, w1 = load(those.logs, 0), load(those.logs, LANES)
    w2, w3 = load(those.logs, 2 * LANES), load(those.logs, 3 * LANES)
    whole = w0 + w1 + w2 + w3
    w0, w1, w2, w3 = w0 / whole, w1 / whole, w2 / whole, w3 / whole
    # Heads with weight zero are left out, not multiplied: they may be infinite.
    error = where_usable(w0, w0 * load(those.errors, 0)) + where_usable(w1, w1 * load(those.errors, LANES))
    error = error + where_usable(w2, w2 * load(those.errors, 2 * LANES))
    store(out, (k + 1) * LANES, error + where_usable(w3, w3 * load(those.errors, 3 * LANES)))
    for a in range(k + 1):
        shift = spread(0.0)
        for c in range(r):
            shift = shift + repeat(prior_root, a * r + c) * load(those.shift, c * LANES)
        value = repeat(mean, a) * (w0 + w1) + where_usable(w1, w1 * shift)
        if a < k:
            value = value + where_usable(w2, w2 * load(work.found, a * LANES))
        store(out, a * LANES, value)
    for u in range(LANES):
        if intercept:
            w2, w3 = those.logs[2 * LANES + u], those.logs[3 * LANES + u]
            whole = those.logs[u] + those.logs[LANES + u] + w2 + w3
            out[k, u] += w2 / whole * level_of(work, u) if w2 > 0.0 else 0.0
            out[k, u] += w3 / whole * work.level[u] if w3 > 0.0 else 0.0
        size = those.errors[0, u]
        for a in range(k + 1):
            size += out[a, u] + those.side[a, u]
        if not math.isfinite(size):
            out[k + 1, u] = math.inf
            for a in range(k + 1):
                out[a, u] = mean[a]
