"""Triton kernels: one pass over users' rows on the device, each user by a program of its own.

A program walks its users one after the other and a user's rows a few at a time, in an order and in tiles that depend on
public sizes alone. No number of one user depends on another's rows, to the last bit (:mod:`tacitly.federation.base`).

:func:`user_steps` finds heads and corrections of Private FedRep's step. A user's rows are read from memory once: the
second time, for the residuals, they are still in the processor's own cache. :func:`add_steps` scales the contributions
to norm one and adds up those of a part of a block, users in order. k×k systems, norms and sums are in double precision.
:func:`user_grams` is the one pass over standardised rows that mixed effects need, :func:`clip_rows` that of FedPower.
"""

# What Triton compiles has no types that mypy knows.
# ruff: noqa: B007, RUF005
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def user_steps(
    X,
    y,
    offsets,
    basis,
    squared,
    heads,
    corrections,
    energies,
    n_users,
    d,
    ridge,
    K: tl.constexpr,
    TILES: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    USERS: tl.constexpr,
    CENTERED: tl.constexpr,
    FULL: tl.constexpr,
    STAGES: tl.constexpr,
    AGAIN: tl.constexpr,
):
    """Write each user's head v, raw correction Xᵀ(y − Pv) and the squares of every fourth row, weighted by ``squared``.

    K directions in ``basis``; TILES tiles of WIDTH columns cover the d columns (FULL: exactly). A program has USERS
    users and loads rows STAGES ahead.
    """
    columns, rows = tl.arange(0, WIDTH), tl.arange(0, ROWS)
    number = X.dtype.element_ty
    nothing = tl.zeros([ROWS, WIDTH], number)
    directions = ()
    for j in tl.static_range(K):
        for i in tl.static_range(TILES):
            directions = directions + (tl.load(basis + (j * TILES + i) * WIDTH + columns),)
    start_user = tl.program_id(0) * USERS
    for user in range(start_user, tl.minimum(start_user + USERS, n_users)):
        first, last = tl.load(offsets + user), tl.load(offsets + user + 1)
        means, level = _means(X, y, first, last, d, columns, rows, nothing, TILES, WIDTH, CENTERED, FULL)

        system, target = (), ()
        for j in tl.static_range(K):
            target = target + (tl.zeros([ROWS], tl.float64),)
        for j in tl.static_range(K * (K + 1) // 2):
            system = system + (tl.zeros([ROWS], tl.float64),)
        for start in tl.range(first, last, ROWS, num_stages=STAGES):
            there = start + rows < last
            wide = _target(y, start + rows, there, level, CENTERED)
            x = _rows(X, start + rows, there, d, columns, means, TILES, WIDTH, CENTERED, FULL)
            doubles, crossed, summed = (), (), ()
            for j in tl.static_range(K):
                products = x[0] * directions[j * TILES][None, :]
                for i in tl.static_range(1, TILES):
                    products += x[i] * directions[j * TILES + i][None, :]
                doubles = doubles + (tl.sum(products, axis=1).to(tl.float64),)
            for j in tl.static_range(K):
                crossed = crossed + (target[j] + doubles[j] * wide,)
                for i in tl.static_range(j + 1):
                    summed = summed + (system[j * (j + 1) // 2 + i] + doubles[j] * doubles[i],)
            target, system = crossed, summed
        head = _solved(system, target, ridge, K)

        fitted, sums, squares = (), (), ()
        for i in tl.static_range(TILES):
            weights = tl.zeros([WIDTH], number)
            for j in tl.static_range(K):
                weights += directions[j * TILES + i] * head[j].to(number)
            fitted, sums, squares = fitted + (weights,), sums + (nothing,), squares + (nothing,)
        for start in tl.range(first, last, ROWS, num_stages=AGAIN):
            there = start + rows < last
            wide = _target(y, start + rows, there, level, CENTERED)
            x = _rows(X, start + rows, there, d, columns, means, TILES, WIDTH, CENTERED, FULL)
            products = x[0] * fitted[0][None, :]
            for i in tl.static_range(1, TILES):
                products += x[i] * fitted[i][None, :]
            errors = (wide - tl.sum(products, axis=1).to(tl.float64)).to(number)
            fourth = (start - first + rows) % 4 == 0
            added, energy = (), ()
            for i in tl.static_range(TILES):
                added = added + (sums[i] + x[i] * errors[:, None],)
                energy = energy + (squares[i] + tl.where(fourth[:, None], x[i] * x[i], 0.0),)
            sums, squares = added, energy
        energy = tl.zeros([], tl.float64)
        for i in tl.static_range(TILES):
            inside = i * WIDTH + columns < d
            tl.store(corrections + user * d + i * WIDTH + columns, tl.sum(sums[i], axis=0), mask=inside)
            weights = tl.load(squared + i * WIDTH + columns)
            energy += tl.sum(tl.sum(squares[i] * weights[None, :], axis=1).to(tl.float64), axis=0)
        tl.store(energies + user, energy)
        for j in tl.static_range(K):
            tl.store(heads + user * K + j, head[j])


@triton.jit
def add_steps(
    heads,
    corrections,
    lengths,
    further,
    scale,
    across,
    gains,
    metric,
    limits,
    out,
    n_users,
    d,
    n_across,
    K: tl.constexpr,
    D: tl.constexpr,
    USERS: tl.constexpr,
    PART: tl.constexpr,
    FURTHER: tl.constexpr,
):
    """Scale contributions to the first of ``limits`` and write sums of v rᵀ, then of v vᵀ, for each PART users.

    ``lengths`` multiply corrections (zero for a user who adds nothing). ``scale`` and ``across`` are whitening's scale
    and directions, as rows; ``gains`` are what the squared norm has more along them, ``further`` the same summed up.
    """
    columns, users = tl.arange(0, D), tl.arange(0, USERS)
    inside = columns < d
    scales = tl.load(scale + columns, mask=inside, other=0.0)
    steps, seconds = (), ()
    for j in tl.static_range(K):
        steps = steps + (tl.zeros([USERS, D], tl.float64),)
    for j in tl.static_range(K * K):
        seconds = seconds + (tl.zeros([USERS], tl.float64),)
    first = tl.program_id(0) * PART
    for start in range(first, first + PART, USERS):
        own = start + users
        there = own < n_users
        length = tl.load(lengths + own, mask=there, other=0.0)
        mask = there[:, None] & inside[None, :]
        r = tl.load(corrections + own[:, None] * d + columns[None, :], mask=mask, other=0.0).to(tl.float64)
        r *= length[:, None]
        scaled = r * scales[None, :]
        size = tl.sum(scaled * scaled, axis=1)
        if FURTHER:
            size += tl.load(further + own, mask=there, other=0.0)
        for q in range(n_across):
            along = tl.sum(scaled * tl.load(across + q * d + columns, mask=inside, other=0.0)[None, :], axis=1)
            size += tl.load(gains + q) * along * along
        measured, length_of_head = (), tl.zeros([USERS], tl.float64)
        for j in tl.static_range(K):
            value = tl.zeros([USERS], tl.float64)
            for p in tl.static_range(K):
                value += tl.load(heads + own * K + p, mask=there, other=0.0) * tl.load(metric + p * K + j)
            measured = measured + (value,)
            length_of_head += value * value
        norm = tl.sqrt(length_of_head) * tl.sqrt(size + length_of_head)
        part = tl.load(limits) / norm
        # Comparisons with NaN are false, and an infinite norm or part is excluded by the upper bounds.
        usable = (length > 0) & (length < float("inf")) & (norm > 0) & (norm < float("inf"))
        least = tl.load(limits + 1)
        usable = usable & (part < float("inf")) & (part > least) & (length_of_head > least)
        part = tl.where(usable, part, 0.0)
        r = tl.where(usable[:, None], r, 0.0)
        added, moments, kept = (), (), ()
        for j in tl.static_range(K):
            kept = kept + (tl.where(usable, measured[j], 0.0),)
        for j in tl.static_range(K):
            added = added + (steps[j] + (kept[j] * part)[:, None] * r,)
            for p in tl.static_range(K):
                moments = moments + (seconds[j * K + p] + kept[j] * part * kept[p],)
        steps, seconds = added, moments
    place = out + tl.program_id(0) * (K * d + K * K)
    for j in tl.static_range(K):
        tl.store(place + j * d + columns, tl.sum(steps[j], axis=0), mask=inside)
        for p in tl.static_range(K):
            tl.store(place + K * d + j * K + p, tl.sum(seconds[j * K + p], axis=0))


@triton.jit
def user_grams(rows, offsets, out, size, SIZE: tl.constexpr):
    """Write the Gram matrix of each user's rows, one user per program, rows in order."""
    user = tl.program_id(0).to(tl.int64)
    across, down = tl.arange(0, SIZE)[None, :], tl.arange(0, SIZE)[:, None]
    total = tl.zeros([SIZE, SIZE], tl.float64)
    for row in range(tl.load(offsets + user), tl.load(offsets + user + 1)):
        one = tl.load(rows + row * size + across, mask=across < size, other=0.0)
        other = tl.load(rows + row * size + down, mask=down < size, other=0.0)
        total += one * other
    place = out + user * size * size + down * size + across
    tl.store(place, total, mask=(across < size) & (down < size))


@triton.jit
def clip_rows(
    X,
    centre,
    basis,
    limits,
    moved,
    along,
    n_rows,
    d,
    K: tl.constexpr,
    D: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Write rows a' = (a − centre, constant) and, if K, Wᵀa' = (a'·basis, constant), scaled to bound a' ⊗ Wᵀa'.

    Without a basis that product is a'a'ᵀ. ``limits`` are the constant, the bound, its root, and the smallest factor
    that has not lost digits. Zeros are written for a row that is not finite.
    """
    columns = tl.arange(0, D)
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside, there = columns < d, rows < n_rows
    constant, bound, root, least = tl.load(limits), tl.load(limits + 1), tl.load(limits + 2), tl.load(limits + 3)
    mask = there[:, None] & inside[None, :]
    x = tl.load(X + rows[:, None] * d + columns[None, :], mask=mask, other=0.0).to(tl.float64)
    x = tl.where(mask, x - tl.load(centre + columns, mask=inside, other=0.0)[None, :], 0.0)
    squared = tl.sum(x * x, axis=1) + constant * constant
    size = squared
    if K > 0:
        size = tl.zeros([ROWS], tl.float64) + constant * constant
        for j in tl.static_range(K):
            part = tl.sum(x * tl.load(basis + j * d + columns, mask=inside, other=0.0)[None, :], axis=1)
            size += part * part
    norm = tl.sqrt(squared) * tl.sqrt(size)
    usable = norm < float("inf")  # false for NaN
    cut = norm > bound
    usable = usable & ((bound / norm > least) | (norm <= bound))
    first = tl.where(usable, tl.where(cut, root / tl.sqrt(squared), 1.0), 0.0)
    second = tl.where(usable, tl.where(cut, root / tl.sqrt(size), 1.0), 0.0)
    x = tl.where(usable[:, None], x, 0.0)
    place = rows * (d + 1)
    tl.store(moved + place[:, None] + columns[None, :], x * first[:, None], mask=mask)
    tl.store(moved + place + d, constant * first, mask=there)
    if K > 0:
        for j in tl.static_range(K):
            part = tl.sum(x * tl.load(basis + j * d + columns, mask=inside, other=0.0)[None, :], axis=1)
            tl.store(along + rows * (K + 1) + j, part * second, mask=there)
        tl.store(along + rows * (K + 1) + K, constant * second, mask=there)


@triton.jit
def _rows(
    X,
    at,
    there,
    d,
    columns,
    means,
    TILES: tl.constexpr,
    WIDTH: tl.constexpr,
    CENTERED: tl.constexpr,
    FULL: tl.constexpr,
):
    """Load a few rows, tile by tile; zeros where there are none."""
    x = ()
    for i in tl.static_range(TILES):
        mask = there[:, None]
        if not FULL:
            mask = mask & (i * WIDTH + columns < d)[None, :]
        tile = tl.load(X + at[:, None] * d + (i * WIDTH + columns)[None, :], mask=mask, other=0.0)
        if CENTERED:
            tile = tl.where(mask, tile - means[i][None, :], 0.0)
        x = x + (tile,)
    return x


@triton.jit
def _target(y, at, there, level, CENTERED: tl.constexpr):
    wide = tl.load(y + at, mask=there, other=0.0).to(tl.float64)
    if CENTERED:
        wide = tl.where(there, wide - level, 0.0)
    return wide


@triton.jit
def _means(
    X,
    y,
    first,
    last,
    d,
    columns,
    rows,
    nothing,
    TILES: tl.constexpr,
    WIDTH: tl.constexpr,
    CENTERED: tl.constexpr,
    FULL: tl.constexpr,
):
    """Return the mean row, tile by tile, and the mean target of a user; zeros unless they are wanted."""
    totals, means, level = (), (), tl.zeros([], tl.float64)
    for i in tl.static_range(TILES):
        totals = totals + (nothing,)
    if CENTERED:
        levels = tl.zeros([rows.shape[0]], tl.float64)
        for start in range(first, last, rows.shape[0]):
            there = start + rows < last
            levels += tl.load(y + start + rows, mask=there, other=0.0).to(tl.float64)
            added = ()
            x = _rows(X, start + rows, there, d, columns, totals, TILES, WIDTH, False, FULL)
            for i in tl.static_range(TILES):
                added = added + (totals[i] + x[i],)
            totals = added
        level = tl.sum(levels, axis=0) / (last - first).to(tl.float64)
    for i in tl.static_range(TILES):
        if CENTERED:
            means = means + (tl.sum(totals[i], axis=0) / (last - first).to(nothing.dtype),)
        else:
            means = means + (tl.zeros([WIDTH], nothing.dtype),)
    return means, level


@triton.jit
def _solved(system, target, ridge, K: tl.constexpr):
    """Solve the K×K system of one user by Cholesky, in double precision; NaN or infinity where it is singular."""
    entries, right, trace = (), (), 0.0
    for j in tl.static_range(K * (K + 1) // 2):
        entries = entries + (tl.sum(system[j], axis=0),)
    for j in tl.static_range(K):
        right = right + (tl.sum(target[j], axis=0),)
        trace += entries[j * (j + 1) // 2 + j]
    lower, half = (), ()  # the diagonal of ``lower`` as its reciprocal
    for j in tl.static_range(K):
        for i in tl.static_range(j + 1):
            value = entries[j * (j + 1) // 2 + i]
            for p in tl.static_range(i):
                value -= lower[j * (j + 1) // 2 + p] * lower[i * (i + 1) // 2 + p]
            if i == j:
                lower = lower + (tl.rsqrt(value + ridge * trace),)
            else:
                lower = lower + (value * lower[i * (i + 1) // 2 + i],)
        value = right[j]
        for p in tl.static_range(j):
            value -= lower[j * (j + 1) // 2 + p] * half[p]
        half = half + (value * lower[j * (j + 1) // 2 + j],)
    backwards = ()
    for back in tl.static_range(K):
        value = half[K - 1 - back]
        for p in tl.static_range(back):
            value -= lower[(K - 1 - p) * (K - p) // 2 + K - 1 - back] * backwards[p]
        backwards = backwards + (value * lower[(K - 1 - back) * (K - back) // 2 + K - 1 - back],)
    head = ()
    for j in tl.static_range(K):
        head = head + (backwards[K - 1 - j],)
    return head
