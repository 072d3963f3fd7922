"""Compiled fits of users' models in AMHT-LRS: weights on the basis and a few personal coordinates.

Given a public basis U, a user fits w and a k-sparse b with y ≈ X(Uw + b). AMHT-LRS (Pal et al. 2024, Algorithm 2) steps
along the gradient and keeps entries above a threshold Δ that decreases with unknown error bounds. Here Δ is the k-th
largest candidate, so it needs no bounds and decreases automatically. After every step the selected coordinates and w
are fitted together by least squares, so that a correct support gives the exact solution at once (hard thresholding
pursuit):

1. grow: in ``stages`` equal parts, add the coordinates most correlated with the residual;
2. swap: keep the k largest of b + gradient and fit again, while this improves the fit, at most ``swaps`` times.

Candidates are compared in units of ``scale`` (one over each feature's size), so that results do not depend on units.

Eight users are fitted together, one per SIMD lane (:mod:`tacitly.methods.low_rank_sparse.lane_kernels`); everything
except reading rows is then eight times as fast. Lanes do not interact, so no user's fit depends on another user, to the
last bit. A user with many rows is fitted alone, with rows distributed over the lanes; this depends on the user's own
number of rows only.
"""

# Numba kernels are not typed.
# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from tacitly.arrays import Offsets
from tacitly.methods.low_rank_sparse.lane_kernels import (
    Workspace,
    extend_factor,
    inlined,
    keep_chosen,
    kernel,
    make_workspace,
    solve,
    subtract_mean,
)
from tacitly.simd.projections import combine_rows, project_rows, project_three
from tacitly.simd.registers import load, spread, store
from tacitly.simd.tiles import transpose_eight
from tacitly.simd.top_k import LANES, NOTHING, get, keep_largest, keyed, put

LONG = 128  # number of rows from which on a user is fitted alone: eight users with fewer fit the second-level cache
_AHEAD = 1 << 16  # prefetch distance in bytes


def workspace_for(offsets: Offsets, X: npt.NDArray[np.floating], fixed: int, most: int) -> Workspace:
    """Allocate a workspace for any of these users, with ``fixed`` weights and up to ``most`` personal coordinates."""
    return make_workspace(int(np.diff(offsets).max()), X.shape[1], fixed, most, X.dtype, LONG)


@kernel
def affordable(rows, fixed, wanted):
    """Limit the number of coordinates to one per two rows in excess of ``fixed`` columns."""
    return max(0, min(wanted, (rows - fixed) // 2))


@kernel
def group_end(offsets, start, end):
    """Return the end of the group that starts here: one long user, or at most eight others."""
    stop = start
    while stop < min(end, start + LANES) and offsets[stop + 1] - offsets[stop] < LONG:
        stop += 1
    return max(stop, start + 1)


@kernel
def layout_of(rows, u):
    """Return where a user's numbers start in a workspace row, and their stride."""
    return (0, 1) if rows >= LONG else (u, LANES)


@kernel
def fit_users(X, y, first, last, n, basis, shared, intercept, scale, wanted, stages, swaps, work):
    """Fit n users with ``wanted`` coordinates each (fewer if more do not help); results are left in the workspace.

    User u has rows first[u] to last[u]. ``basis`` is padded, directions as rows; ``shared`` fixes the only weight at
    one; ``scale`` has one column per user.
    """
    base, alone = 1 + work.fixed.size, last[0] - first[0] >= LONG
    # Bound to names here, so that Numba does not count references inside the loops.
    columns, factor, spare, trial, tried = work.columns, work.factor, work.spare, work.trial, work.tried
    kept, left, small, errors = work.coefficients, work.left, work.small, work.errors
    size, active, settled, support, attempt = work.size, work.active, work.settled, work.support, work.attempt
    pull, least, chosen = work.pull, work.least, work.chosen
    height = _load_columns(X, y, first, last, n, basis, shared, intercept, work)
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
                low, top = _grow(X, first, last, n, intercept, scale, wanted, stages, turn - 1, work)
            else:
                low, top = _swap(X, first, last, n, intercept, scale, work)
            if low == top:
                continue
        extend_factor(columns, spare, factor, low, top, height, alone)
        store(errors, 0, solve(columns, factor, trial, tried, top, height, alone))
        for v in range(LANES):
            u = 0 if alone else v
            # Every growth is kept, even if it failed: no number of another user may remain in the workspace.
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
                at, step = layout_of(last[u] - first[u], u)
                combine_rows(X, first[u], last[u], small, at, step, pull, u)


@kernel
def restore_columns(X, first, last, intercept, u, work):
    """Reload the columns of a user's support, if those of a rejected trial are in the workspace."""
    if not work.settled[u]:
        for s in range(work.size[u]):
            row = 1 + work.fixed.size + s
            _fetch_column(X, first, last, work.support[u, s], intercept, work.columns, work.means, row, u)
        work.settled[u] = 1


@kernel
def intercept_of(work, u):
    """Return a user's intercept, from the means of its centred columns."""
    level = work.means[0, u]
    for b in range(1, 1 + work.fixed.size + work.size[u]):
        level -= work.coefficients[b, u] * work.means[b, u]
    return level


@inlined
def _load_columns(X, y, first, last, n, basis, shared, intercept, work):
    """Load targets and projections into the workspace; return how many registers a column takes."""
    columns, projected, fixed = work.columns, work.projected, work.fixed.size
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
        at, step = layout_of(m, u)
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
                subtract_mean(columns, work.means, b, u, at, step, m)
    return height


@inlined
def _grow(X, first, last, n, intercept, scale, wanted, stages, stage, work):
    """Add coordinates to the supports; return the range of new rows of the systems."""
    size, support, base, mask, goals = work.size, work.support, 1 + work.fixed.size, work.mask[0], work.goal
    score, best, bits, spare, columns, means = work.score, work.best, work.bits, work.spare, work.columns, work.means
    count = 0
    _score(work.pull, scale, mask, score)
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
def _swap(X, first, last, n, intercept, scale, work):
    """Load the largest of b + gradient as trial supports; return the range of new rows of the systems."""
    size, support, attempt, base, mask = work.size, work.support, work.attempt, 1 + work.fixed.size, work.mask[0]
    pull, score, keys, best, bits, active = work.pull, work.score, work.keys, work.best, work.bits, work.active
    kept, columns, means, entering, marks = work.coefficients, work.columns, work.means, work.entering, work.marks
    settled = work.settled
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
    """Write the best candidates as trial support, keeping positions of those that stay; return whether any is new."""
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
    """Write every user's correlations with the residual, in units of scale, as sort keys."""
    for a in range(0, score.shape[0], LANES):
        transpose_eight(pull, a, pull.shape[1], score, a)
    for a in range(score.shape[0]):
        store(score, a * LANES, keyed(load(score, a * LANES) * load(scale, a * LANES), a, mask))


@inlined
def _fetch_column(X, first, last, feature, intercept, columns, means, row, u):
    at, step = layout_of(last - first, u)
    place, source, d = row * columns.shape[1] + at, first * X.shape[1] + feature, X.shape[1]
    for _ in range(last - first):
        put(columns, place, get(X, source))
        place, source = place + step, source + d
    if intercept:
        subtract_mean(columns, means, row, u, at, step, last - first)
