"""Compiled loops over the ratings of users, which give one small matrix per user or a sum over items.

Users' numbers are combined in sums only. Everything before is computed from one user's own ratings, in their order, so
no bit of a contribution depends on other users.
"""

# Numba kernels are not typed.
# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

from typing import Any

import numpy as np

from tacitly.simd.lazy_njit import njit

_kernel: Any = njit(nogil=True, cache=True, error_model="numpy")


@_kernel
def distinct(X, y, offsets, items, low, high):
    """Return position of the item, rating and user bounds of the ratings that count.

    The first column of a row is the item's position in the catalogue. Rows outside the catalogue are left out, the last
    rating of an item by one user counts, and ratings are clipped to [low, high]. A rating that is not a number is left
    out.
    """
    codes, values = np.empty(len(y), np.int64), np.empty(len(y), np.float64)
    bounds = np.zeros(len(offsets), np.int64)
    seen, at = np.full(items, -1, np.int64), np.zeros(items, np.int64)
    count = 0
    for user in range(len(offsets) - 1):
        for row in range(offsets[user], offsets[user + 1]):
            place, value = float(X[row, 0]), float(y[row])
            if not (place >= 0.0 and place < items) or not np.isfinite(value):
                continue
            code = int(np.floor(place))
            if seen[code] != user:
                seen[code], at[code] = user, count
                codes[count] = code
                count += 1
            values[at[code]] = min(max(value, low), high)
        bounds[user + 1] = count
    return codes[:count], values[:count], bounds


@_kernel
def normal_equations(codes, values, bounds, table, offset):
    """Return ZᵀZ, Zᵀr and rᵀr of each user for rows z of the table and residuals r = value − offset."""
    users, size = len(bounds) - 1, table.shape[1]
    grams, rights = np.zeros((users, size, size)), np.zeros((users, size))
    squares = np.zeros(users)
    for user in range(users):
        gram, right = grams[user], rights[user]
        for row in range(bounds[user], bounds[user + 1]):
            code = codes[row]
            left = values[row] - offset[code]
            squares[user] += left * left
            for i in range(size):
                entry = table[code, i]
                if entry != 0.0:
                    right[i] += entry * left
                    for j in range(i + 1):
                        gram[i, j] += entry * table[code, j]
        for i in range(size):
            for j in range(i):
                gram[j, i] = gram[i, j]
    return grams, rights, squares


@_kernel
def residuals(codes, values, bounds, table, offset, weights):
    """Return the residual of each rating under its user's weights."""
    left = np.empty(len(codes))
    for user in range(len(bounds) - 1):
        for row in range(bounds[user], bounds[user + 1]):
            code, fitted = codes[row], 0.0
            for i in range(table.shape[1]):
                fitted += table[code, i] * weights[user, i]
            left[row] = values[row] - offset[code] - fitted
    return left


@_kernel
def quadratic(codes, bounds, table, matrices):
    """Return zᵀVz for each rating, with V its user's matrix."""
    out = np.empty(len(codes))
    for user in range(len(bounds) - 1):
        for row in range(bounds[user], bounds[user + 1]):
            code, total = codes[row], 0.0
            for i in range(table.shape[1]):
                entry = table[code, i]
                if entry != 0.0:
                    for j in range(table.shape[1]):
                        total += entry * matrices[user, i, j] * table[code, j]
            out[row] = total
    return out


@_kernel
def item_sums(codes, left, bounds, gains, scale, limit):
    """Return the sum over users of clipped (ω e, scale·ω), ω = gain/√(Σ gain²): sums first, then weights.

    The sum depends on a user through one vector, whose norm is computed from the numbers that are added.
    """
    items = len(gains)
    out = np.zeros(2 * items)
    for user in range(len(bounds) - 1):
        energy, squares = 0.0, 0.0
        for row in range(bounds[user], bounds[user + 1]):
            gain = gains[codes[row]]
            energy += gain * gain
            squares += gain * gain * (left[row] * left[row] + scale * scale)
        if energy <= 0.0:
            continue
        factor = 1.0 / np.sqrt(energy)
        norm = factor * np.sqrt(squares)
        if norm > limit:
            factor *= limit / norm
        for row in range(bounds[user], bounds[user + 1]):
            code = codes[row]
            weight = factor * gains[code]
            out[code] += weight * left[row]
            out[items + code] += scale * weight
    return out


@_kernel
def loading_sums(codes, left, bounds, directions, items, limit):
    """Return the sum over users of clipped ω·e·d per item, ω = 1/√m and d the user's direction; items × width.

    Directions have norm one or zero, so the norm of a contribution is that of ω·e.
    """
    width = directions.shape[1]
    out = np.zeros((items, width))
    for user in range(len(bounds) - 1):
        rows = bounds[user + 1] - bounds[user]
        length = 0.0
        for k in range(width):
            length += directions[user, k] * directions[user, k]
        if rows == 0 or length == 0.0:
            continue
        squares = 0.0
        for row in range(bounds[user], bounds[user + 1]):
            squares += left[row] * left[row]
        factor = 1.0 / np.sqrt(rows)
        norm = factor * np.sqrt(squares * length)
        if norm > limit:
            factor *= limit / norm
        for row in range(bounds[user], bounds[user + 1]):
            for k in range(width):
                out[codes[row], k] += factor * left[row] * directions[user, k]
    return out


@_kernel
def pair_sums(codes, left, bounds, place, size, scale, limit):
    """Return the sum over users of clipped (e eᵀ, scale·1 1ᵀ)/m over the items that have a place, packed.

    Upper triangles with off-diagonals times √2, so that norms are Frobenius norms.
    """
    half = size * (size + 1) // 2
    out = np.zeros(2 * half)
    mine, kept = np.empty(size, np.int64), np.empty(size)
    for user in range(len(bounds) - 1):
        count, squares = 0, 0.0
        for row in range(bounds[user], bounds[user + 1]):
            at = place[codes[row]]
            if at >= 0:
                mine[count], kept[count] = at, left[row]
                squares += left[row] * left[row]
                count += 1
        if count == 0:
            continue
        factor = 1.0 / count
        norm = np.sqrt((squares * factor) ** 2 + scale * scale)
        if norm > limit:
            factor *= limit / norm
        for a in range(count):
            for b in range(count):
                i, j = mine[a], mine[b]
                if i <= j:
                    entry = factor if i == j else factor * np.sqrt(2.0)
                    index = i * size - i * (i - 1) // 2 + j - i
                    out[index] += entry * kept[a] * kept[b]
                    out[half + index] += entry * scale
    return out


@_kernel
def feature_sums(codes, bounds, table):
    """Return each user's sum of the table's rows over the items that the user rated."""
    out = np.zeros((len(bounds) - 1, table.shape[1]))
    for user in range(len(bounds) - 1):
        for row in range(bounds[user], bounds[user + 1]):
            for i in range(table.shape[1]):
                out[user, i] += table[codes[row], i]
    return out
