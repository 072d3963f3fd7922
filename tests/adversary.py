"""Worst-case users, and the checks every query must survive. A mutated query must not."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from tacit.federation.base import Query
from tacit.privacy.guarantee import Unit

Rows = tuple[np.ndarray, np.ndarray]


def adversarial_users(d: int, rng: np.random.Generator) -> list[tuple[str, Rows]]:
    """Users built to break a bound: scales from 1e-322 to 1e308, holes, degenerate and enormous data."""
    with np.errstate(all="ignore"):
        return list(_adversarial_users(d, rng))


def _adversarial_users(d: int, rng: np.random.Generator) -> Iterator[tuple[str, Rows]]:
    X, y = rng.normal(size=(12, d)), rng.normal(size=12)
    yield "ordinary", (X, y)
    # Every few orders of magnitude: squares underflow, overflow and turn denormal in narrow windows.
    for exponent in np.arange(-322.0, 308.5, 1.5):
        scale = float(10.0**exponent)
        stretched, column = X * scale, X.copy()
        stretched[:, 0] *= 1.5
        column[:, 0] *= scale
        yield f"features {scale:g}", (stretched, y)
        yield f"targets {scale:g}", (X, y * scale)
        yield f"both {scale:g}", (X * scale, y * scale)
        yield f"two rows {scale:g}", (X[:2], y[:2] * scale)
        yield f"column {scale:g}", (column, y)
        yield f"row {scale:g}", (np.vstack([X, X[:1] * scale]), np.append(y, 1.0))
        yield f"against {scale:g}", (X * scale, y / scale if scale > 1e-307 else y)
    for bad in (math.nan, math.inf, -math.inf):
        holed = X.copy()
        holed[3, 0] = bad
        yield f"feature {bad}", (holed, y)
        yield f"target {bad}", (X, np.where(np.arange(12) == 3, bad, y))
        yield f"all {bad}", (np.full_like(X, bad), np.full_like(y, bad))
    yield "zeros", (np.zeros_like(X), np.zeros_like(y))
    yield "zero targets", (X, np.zeros_like(y))
    yield "rank one", (np.outer(y, X[0]), y)
    yield "duplicates", (np.repeat(X[:1], 12, axis=0), np.repeat(y[:1], 12))
    yield "one row", (X[:1], y[:1])
    yield "two rows", (X[:2], y[:2])
    yield "one huge row", (np.vstack([X, X[:1] * 1e12]), np.append(y, 1e12))
    many = 100_000 // d
    yield "many rows", (rng.normal(size=(many, d)), rng.normal(size=many))


def clipped(query: Query, user: Rows, bound: float, dtype: type = np.float64) -> np.ndarray:
    """What this user alone adds to the sum, by the fused form that releases use."""
    with np.errstate(all="ignore"):
        X, y = np.ascontiguousarray(user[0], dtype=dtype), np.ascontiguousarray(user[1], dtype=dtype)
        return query.block_sum(X, y, np.array([0, len(X)]), bound)


def placed(query: Query, X: np.ndarray) -> np.ndarray:
    """Rows with valid positions, where the query's design has columns that are positions."""
    design = getattr(getattr(query, "query", query), "design", None)
    X = X.copy()
    if design is not None:
        for column, (hot, size) in enumerate(zip(design.hot, (design.d1, design.d2), strict=True)):
            if hot:
                X[:, column] = np.arange(len(X)) % size
    return X


def units(query: Query, d: int, rng: np.random.Generator) -> Iterator[tuple[str, Rows]]:
    """Adversarial users, or single rows of them where the row is the query's unit."""
    users = adversarial_users(d, rng)
    if any(getattr(getattr(getattr(query, "query", query), "design", None), "hot", ())):
        users += [(f"{name}, placed", (placed(query, X), y)) for name, (X, y) in users]
    for name, (X, y) in users:
        if query.unit is Unit.USER:
            yield name, (X, y)
            continue
        for i in {min(3, len(X) - 1), len(X) - 1}:  # the holes are in row 3, the huge row is the last
            yield f"{name}, row {i}", (X[i : i + 1], y[i : i + 1])


def violations(query: Query, bound: float, d: int, *, pairs: list[tuple[Rows, Rows]] = ()) -> list[str]:
    """Everything that contradicts the sensitivity that ``query`` claims at this clip."""
    rng = np.random.default_rng(0)
    found: list[str] = []
    added = {}
    for dtype in (np.float64, np.float32):
        for name, user in units(query, d, rng):
            vector = clipped(query, user, bound, dtype)
            if not np.isfinite(vector).all():
                found.append(f"{name} ({dtype.__name__}): not finite")
                continue
            if np.linalg.norm(vector) > bound:
                found.append(f"{name} ({dtype.__name__}): norm {np.linalg.norm(vector):.6g} above the clip {bound:g}")
            added[name, dtype.__name__] = vector
    for first, second in pairs:
        added[f"pair {len(added)}"] = clipped(query, first, bound)
        added[f"pair {len(added)}"] = clipped(query, second, bound)
    # Where contributions may point against each other, two that are each within the clip are never further than 2C.
    if query.acute and not found:
        vectors = np.unique(np.array(list(added.values())), axis=0)
        squares = np.einsum("ij,ij->i", vectors, vectors)
        for start in range(0, len(vectors), 512):  # in pieces: all pairs at once take gigabytes
            part = slice(start, start + 512)
            squared = squares[part, None] + squares - 2 * vectors[part] @ vectors.T
            if np.sqrt(squared.max()) > math.sqrt(2.0) * bound * (1 + 1e-9):
                found.append(f"two users are {np.sqrt(squared.max()) / bound:.4f} clips apart, more than 1.4142")
                break
    return found
