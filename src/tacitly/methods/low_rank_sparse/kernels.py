"""The users' fits for low rank plus sparse, compiled: weights on the basis and a few coordinates of one's own.

Given a public basis U, a user wants w and a k-sparse b with y ≈ X(Uw + b). Paper 004 (Algorithm 2) steps along the
gradient and keeps what is larger than a threshold Δ that shrinks with error bounds nobody knows. Here Δ is the k-th
largest candidate, so it needs no bounds and shrinks by itself; and after every step the chosen coordinates and w are
fitted together by least squares, so that a right support is exact at once (hard thresholding pursuit):

1. grow: in ``stages`` equal parts, add the coordinates most correlated with what is left;
2. swap: keep the k largest of b + gradient and fit again, for as long as that fits better, ``swaps`` times at most.

Candidates are compared in units of ``scale`` (one over each feature's size), so that nothing depends on units.

Eight users are fitted together, one a lane of a register (:mod:`tacitly.methods.low_rank_sparse.lane_kernels`):
everything but reading rows is then eight times as fast. Lanes do not meet, so nobody's fit depends on anybody else, to
the last bit. A user with many rows is fitted alone, its rows dealt out to the lanes; who is decided by the user's own
number of rows.
"""

# What Numba compiles has no types that mypy knows.
# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from tacitly.arrays import Offsets
from tacitly.methods.low_rank_sparse.lane_kernels import (
    Desk,
    extend_factor,
    inlined,
    keep_chosen,
    kernel,
    make_desk,
    solve,
    take_mean,
)
from tacitly.simd.projections import combine_rows, project_rows, project_three
from tacitly.simd.registers import load, load_every, spread, store
from tacitly.simd.top_k import LANES, NOTHING, get, keep_largest, keyed, put

LONG = 128  # rows from which on a user is fitted alone: eight users with fewer fit the second cache
_AHEAD = 1 << 16  # bytes ahead of the rows in work to ask memory for


def desk_for(offsets: Offsets, X: npt.NDArray[np.floating], fixed: int, most: int) -> Desk:
    """Make a desk for any of these users, with ``fixed`` weights and up to ``most`` coordinates of their own."""
    return make_desk(int(np.diff(offsets).max()), X.shape[1], fixed, most, X.dtype, LONG)


@kernel
def affordable(rows, fixed, wanted):
    """Count the coordinates a user with so many rows can tell apart: one for two rows that ``fixed`` columns leave."""
    return max(0, min(wanted, (rows - fixed) // 2))


@kernel
def group_end(offsets, start, end):
    """Find the end of a group that starts here: one long user, or at most eight others."""
    stop = start
    while stop < min(end, start + LANES) and offsets[stop + 1] - offsets[stop] < LONG:
        stop += 1
    return max(stop, start + 1)


@kernel
def place_of(rows, u):
    """Where a user's numbers begin on the desk, and how far they are apart."""
    return (0, 1) if rows >= LONG else (u, LANES)


@inlined
def fit_users(X, y, first, last, n, basis, shared, intercept, scale, wanted, stages, swaps, desk):
    """Fit n users with ``wanted`` coordinates each (or fewer, where no more help). What was found is on the desk.

    User u has rows first[u] to last[u]. ``basis`` is padded, directions as rows; ``shared`` fixes the only weight at
    one; ``scale`` has a column a user.
    """
    base, alone = 1 + desk.fixed.size, last[0] - first[0] >= LONG
    # Names for all of them here: Numba counts who uses an array, and must not do so in the loops.
    columns, factor, spare, trial, tried = desk.columns, desk.factor, desk.spare, desk.trial, desk.tried
    kept, left, small, errors = desk.coefficients, desk.left, desk.small, desk.errors
    size, active, settled, support, attempt = desk.size, desk.active, desk.settled, desk.support, desk.attempt
    pull, least, chosen = desk.pull, desk.least, desk.chosen
    height = _lay_out(X, y, first, last, n, basis, shared, intercept, desk)
    growths = 0
    for u in range(n):
        size[u], active[u], settled[u] = 0, 1, 1
        growths = max(growths, min(stages, wanted[u]))
    for b in range(base, columns.shape[0] - 3):
        store(spare, b * LANES, spread(1.0))
    low, top = 1, base
    for turn in range(1 + growths + swaps):
        growing = turn <= growths
        if turn > 0:
            if growing:
                low, top = _grow(X, first, last, n, intercept, scale, wanted, stages, turn - 1, desk)
            else:
                low, top = _swap(X, first, last, n, intercept, scale, desk)
            if low == top:
                continue
        extend_factor(columns, spare, factor, low, top, height, alone)
        store(errors, 0, solve(columns, factor, trial, tried, top, height, alone))
        for v in range(LANES):
            u = 0 if alone else v
            # Every growth is kept, also one that cannot be computed: nothing of somebody else's may stay on the desk.
            better = growing or (u < n and active[u] == 1 and errors[u] < least[u])
            chosen[v] = 1.0 if better else 0.0
        keep_chosen(chosen, trial, kept, tried, left, small, top, height)
        for u in range(n):
            active[u] = 1 if chosen[u] > 0.0 else 0
            if active[u] == 1:
                least[u] = errors[u]
                if not growing:
                    settled[u] = 1
                    for s in range(size[u]):
                        support[u, s] = attempt[u, s]
                at, step = place_of(last[u] - first[u], u)
                combine_rows(X, first[u], last[u], small, at, step, pull, u)


@kernel
def settle(X, first, last, intercept, u, desk):
    """Bring the columns of a user's support back to the desk, if those of a worse one were left there."""
    if not desk.settled[u]:
        for s in range(desk.size[u]):
            row = 1 + desk.fixed.size + s
            _fetch_column(X, first, last, desk.support[u, s], intercept, desk.columns, desk.means, row, u)
        desk.settled[u] = 1


@kernel
def level_of(desk, u):
    """Return the intercept that goes with the centred columns of a settled user."""
    level = desk.means[0, u]
    for b in range(1, 1 + desk.fixed.size + desk.size[u]):
        level -= desk.coefficients[b, u] * desk.means[b, u]
    return level


@inlined
def _lay_out(X, y, first, last, n, basis, shared, intercept, desk):
    """Put targets and projections on the desk; return how many registers a column takes."""
    columns, projected, fixed = desk.columns, desk.projected, desk.fixed.size
    room, length = columns.shape[1], projected.shape[1]
    rows = 0
    for u in range(n):
        rows = max(rows, last[u] - first[u])
    height = rows if rows < LONG else -(-rows // LANES)
    for b in range(columns.shape[0] - 3):
        for j in range(0, height * LANES, LANES):
            store(columns, b * room + j, spread(0.0))
    for u in range(n):
        m = last[u] - first[u]
        at, step = place_of(m, u)
        if fixed == 3:
            project_three(X, first[u], last[u], X.shape[1], basis, projected, 0, _AHEAD)
        else:
            project_rows(X, first[u], last[u], X.shape[1], basis, projected, 0, _AHEAD)
        place = at
        for j in range(m):
            put(columns, place, get(y, first[u] + j) - (get(projected, j) if shared else 0.0))
            place += step
        for b in range(fixed):
            place = (1 + b) * room + at
            for j in range(m):
                put(columns, place, get(projected, b * length + j))
                place += step
        if intercept:
            for b in range(1 + fixed):
                take_mean(columns, desk.means, b, u, at, step, m)
    return height


@inlined
def _grow(X, first, last, n, intercept, scale, wanted, stages, stage, desk):
    """Add coordinates to the supports; return which rows of the systems are new."""
    size, support, base, mask, goals = desk.size, desk.support, 1 + desk.fixed.size, desk.mask[0], desk.goal
    score, best, bits, spare, columns, means = desk.score, desk.best, desk.bits, desk.spare, desk.columns, desk.means
    count = 0
    _score(desk.pull, scale, mask, score)
    for u in range(n):
        for s in range(size[u]):
            score[support[u, s], u] = 0.0
        parts = min(stages, wanted[u])
        goal = (wanted[u] * (stage + 1) + parts - 1) // parts if stage < parts else 0
        goals[u] = max(0, goal - size[u])
        count = max(count, goals[u])
    keep_largest(score, X.shape[1], count, best)
    low = top = base + support.shape[1]
    for u in range(n):
        before = size[u]
        for c in range(goals[u]):
            if best[c, u] < NOTHING:
                break
            row = base + size[u]
            support[u, size[u]] = bits[c, u] & mask
            _fetch_column(X, first[u], last[u], support[u, size[u]], intercept, columns, means, row, u)
            for v in range(u, u + 1 if last[u] - first[u] < LONG else LANES):
                spare[row, v] = 0.0
            size[u] += 1
        if size[u] > before:
            low = min(low, base + before)
    if low < top:
        top = base
        for u in range(n):
            top = max(top, base + size[u])
    return low, top


@inlined
def _swap(X, first, last, n, intercept, scale, desk):
    """Put the largest of b + gradient on the desk as supports to try; return which rows of the systems are new."""
    size, support, attempt, base, mask = desk.size, desk.support, desk.attempt, 1 + desk.fixed.size, desk.mask[0]
    pull, score, keys, best, bits, active = desk.pull, desk.score, desk.keys, desk.best, desk.bits, desk.active
    kept, columns, means, entering, marks = desk.coefficients, desk.columns, desk.means, desk.entering, desk.marks
    settled = desk.settled
    _score(pull, scale, mask, score)
    count = 0
    for u in range(n):
        if active[u] == 1:
            count = max(count, size[u])
            for s in range(size[u]):
                a = support[u, s]
                step = kept[base + s, u] * (last[u] - first[u]) / scale[a, u]
                value = abs(pull[u, a] * scale[a, u] + step)
                score[a, u] = value if value < math.inf else 0.0
                keys[a, u] = keys[a, u] & ~mask | a
    keep_largest(score, X.shape[1], count, best)
    low, top = base + count, base + count
    for u in range(n):
        if active[u] == 1:
            found = size[u] > 0 and best[size[u] - 1, u] >= NOTHING
            found = found and _exchange(size[u], u, support, attempt, entering, marks, bits, mask)
            active[u] = 1 if found else 0
        if active[u] == 1:
            settled[u] = 0
            for s in range(size[u]):
                if attempt[u, s] != support[u, s]:
                    low = min(low, base + s)
                    _fetch_column(*(X, first[u], last[u], attempt[u, s], intercept, columns, means, base + s, u))
    return low, top


@inlined
def _exchange(size, u, support, attempt, entering, marks, bits, mask):
    """Write the best candidates as the support to try, those that stay in their places; return whether any is new."""
    for s in range(size):
        marks[support[u, s]] = 1
    new = 0
    for c in range(size):
        candidate = bits[c, u] & mask
        if marks[candidate] == 0:
            entering[new] = candidate
            new += 1
        marks[candidate] = 2
    place = 0
    for s in range(size):
        attempt[u, s] = support[u, s]
        if marks[support[u, s]] == 1:
            attempt[u, s] = entering[place]
            place += 1
    for s in range(size):
        marks[support[u, s]] = marks[bits[s, u] & mask] = 0
    return new > 0


@inlined
def _score(pull, scale, mask, score):
    """Write every user's correlations with what is left, in units of scale, as keys."""
    for a in range(scale.shape[0]):
        value = load_every(pull, a, pull.shape[1]) * load(scale, a * LANES)
        store(score, a * LANES, keyed(value, a, mask))


@inlined
def _fetch_column(X, first, last, feature, intercept, columns, means, row, u):
    at, step = place_of(last - first, u)
    place, source, d = row * columns.shape[1] + at, first * X.shape[1] + feature, X.shape[1]
    for _ in range(last - first):
        put(columns, place, get(X, source))
        place, source = place + step, source + d
    if intercept:
        take_mean(columns, means, row, u, at, step, last - first)
