"""Compiled contributions of AMHT-LRS, which are described in :mod:`tacitly.methods.low_rank_sparse.queries`."""

# Numba kernels are not typed.
# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

import math

import numpy as np

from tacitly.methods.fedrep.kernels import add_gains, add_steps, mean_row, mean_square, scale_row, weigh
from tacitly.methods.low_rank_sparse.array_choices import DOUBT
from tacitly.methods.low_rank_sparse.head_kernels import choose_size, write_inverse_sizes
from tacitly.methods.low_rank_sparse.kernels import fit_users, group_end, layout_of
from tacitly.methods.low_rank_sparse.lane_kernels import kernel
from tacitly.privacy.clipping import LEAST
from tacitly.simd.lanes import aligned, lane_zeros
from tacitly.simd.registers import load, store
from tacitly.simd.top_k import LANES


@kernel
def fit_group(X, y, offsets, start, stop, basis, shared, centered, scale, sizes, effort, work, group):
    """Fit a group of users as a round does; write each user's residual degrees of freedom (zero: no fit).

    Coordinates are compared in units of the user's own columns, written to ``scale``: with the released sizes of
    columns, which carry noise, users would confuse columns.
    """
    fixed, n = work.fixed.size + centered, stop - start
    first, last, wanted, free, size = group[0], group[1], group[2], group[3], work.size
    for u in range(LANES):
        first[u] = last[u] = wanted[u] = free[u] = 0
    for u in range(n):
        if offsets[start + u + 1] - offsets[start + u] > fixed:
            first[u], last[u] = offsets[start + u], offsets[start + u + 1]
    if work.support.shape[1] > 0:
        write_inverse_sizes(X, first, last, n, centered, work.pull, scale)
        for u in range(n):
            wanted[u] = choose_size(X, first[u], last[u], y, basis, shared, centered, scale, u, sizes, DOUBT, work)
    fit_users(X, y, first, last, n, basis, shared, centered, scale, wanted, effort[0], effort[1], work)
    for u in range(n):
        free[u] = max(0, last[u] - first[u] - fixed - size[u])


@kernel
def add_sparse_steps(
    X, y, offsets, size, basis, scale, directions, gains, metric, c, weight, centered, shared, sizes, effort, work,
    ratios, out,
):  # fmt: skip
    """Add every user's contribution, of norm ``weight``, to its block; write its ratio of correction to head."""
    k, n, lanes, rows = metric.shape[0], offsets.size - 1, lane_zeros(work.score.shape[0]), work.pull
    errors, mean = np.zeros_like(work.small), np.zeros((1, basis.shape[1]), dtype=X.dtype)
    squared, group = (scale * scale).astype(X.dtype), np.zeros((4, LANES), dtype=np.int64)
    free, coefficients = group[3], work.coefficients
    heads, measured, weights = np.ones((k, LANES)), aligned(basis.shape[0], LANES), aligned(basis.shape[0], LANES)
    lengths, norms, along = np.zeros(LANES), np.zeros(LANES), aligned(directions.shape[0], LANES)
    start = np.int64(0)  # a literal would compile the called functions twice
    while start < n:
        stop = group_end(offsets, start, min(n, start - start % size + size))
        fit_group(X, y, offsets, start, stop, basis, shared, centered, lanes, sizes, effort, work, group)
        for u in range(LANES):
            lengths[u] = norms[u] = 0.0
            if free[u] > 0:
                first, last = offsets[start + u], offsets[start + u + 1]
                if centered:
                    mean_row(X, first, last, errors, mean)
                lengths[u] = 1.0 / (c * free[u] * mean_square(X, first, last, mean, squared))
                norms[u] = scale_row(rows, u, lengths[u], scale)
        for b in range(0 if shared else k):
            store(heads, b * LANES, load(coefficients, (1 + b) * LANES))
        add_gains(rows, directions, gains, along, norms)
        weigh(heads, metric, lengths, norms, weight, measured, weights)
        for u in range(stop - start):
            square = 0.0
            for b in range(k):
                square += measured[b, u] * measured[b, u]
            ratios[start + u] = math.sqrt(max(norms[u], 0.0) / square) if square > 0.0 else 0.0
        add_steps(measured, weights, k, rows, scale.size, out, start // size)
        start = stop


@kernel
def write_equations(
    X, whitened, y, offsets, basis, scales, centered, shared, sizes, effort, work, heads, moments, grams, sides,
    rights,
):  # fmt: skip
    """Write each user's head, second moment and right-hand side, scaled to norm one, and norms of their products."""
    d, k, n, lanes = X.shape[1], heads.shape[1], offsets.size - 1, lane_zeros(work.score.shape[0])
    moment, mean, group = np.empty((d, d)), np.zeros(d), np.zeros((4, LANES), dtype=np.int64)
    free, coefficients, residual = group[3], work.coefficients, work.left
    start = np.int64(0)  # a literal would compile the called functions twice
    while start < n:
        stop = group_end(offsets, start, n)
        fit_group(X, y, offsets, start, stop, basis, shared, centered, lanes, sizes, effort, work, group)
        for i in range(start, stop):
            first, last, u = offsets[i], offsets[i + 1], i - start
            m = last - first
            if free[u] == 0:
                continue
            at, step = layout_of(m, u)
            for b in range(k):
                heads[i, b] = 1.0 if shared else coefficients[1 + b, u]
            if centered:
                mean[:] = 0.0
                for j in range(first, last):
                    for a in range(d):
                        mean[a] += whitened[j, a] / m
            moment[:] = 0.0
            for j in range(first, last):
                left = residual[at + (j - first) * step]
                for a in range(d):
                    whitened[j, a] -= mean[a]
                for a in range(d):
                    value = whitened[j, a]
                    for b in range(a + 1):
                        moment[a, b] += value * whitened[j, b]
                    sides[i, a] += value * left
            entry = 0
            for a in range(d):
                moments[i, entry] = moment[a, a]
                entry += 1
                for b in range(a + 1, d):
                    moments[i, entry] = math.sqrt(2.0) * moment[b, a]
                    entry += 1
            size, spread, pull = _to_unit(heads[i]), _to_unit(moments[i]), _to_unit(sides[i])
            gram, right = size * size * (spread / (m * scales[0])), size * (pull / (m * scales[1]))
            if math.isfinite(gram) and math.isfinite(right):
                grams[i], rights[i] = gram, right
        start = stop


@kernel
def _to_unit(vector):
    """Scale to norm one in place and return the norm; write zeros if the norm is zero or (returning NaN) not finite."""
    total = 0.0
    for a in range(vector.size):
        total += vector[a] * vector[a]
    if not (math.isfinite(total) and total > LEAST):
        bad = not math.isfinite(total)
        vector[:] = 0.0
        return math.nan if bad else 0.0
    norm = math.sqrt(total)
    for a in range(vector.size):
        vector[a] /= norm
    return norm
