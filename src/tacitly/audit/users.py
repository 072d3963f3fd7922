"""Users built to break a bound: scales from 1e-322 to 1e308, NaN and infinity, degenerate and enormous data."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np

from tacitly.arrays import Array
from tacitly.federation.base import Query
from tacitly.privacy.guarantee import Unit

User = tuple[Array, Array]

EXPONENTS = tuple(-322.0 + 1.5 * step for step in range(421))
"""Exponents in small steps: squares underflow, become subnormal and overflow in narrow ranges of magnitude."""


def adversarial_users(
    n_features: int, random_state: int = 0, exponents: Iterable[float] = EXPONENTS
) -> list[tuple[str, User]]:
    """Return named users, each with its rows and targets; ``exponents`` are the powers of ten of their scales.

    >>> users = dict(adversarial_users(3))
    >>> users["one row"][0].shape
    (1, 3)
    """
    with np.errstate(all="ignore"):
        return list(_users(n_features, np.random.default_rng(random_state), exponents))


def adversarial_units(
    query: Query, n_features: int, random_state: int = 0, exponents: Iterable[float] = EXPONENTS
) -> Iterator[tuple[str, User]]:
    """Yield adversarial users, or single rows of them if the query's unit is the row."""
    for name, (X, y) in adversarial_users(n_features, random_state, exponents):
        if query.unit is Unit.USER:
            yield name, (X, y)
            continue
        for i in {min(3, len(X) - 1), len(X) - 1}:  # NaN and infinity are in row 3, the huge row is the last
            yield f"{name}, row {i}", (X[i : i + 1], y[i : i + 1])


def _users(d: int, rng: np.random.Generator, exponents: Iterable[float]) -> Iterator[tuple[str, User]]:
    X, y = rng.normal(size=(12, d)), rng.normal(size=12)
    yield "ordinary", (X, y)
    for exponent in exponents:
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
        spoilt = X.copy()
        spoilt[3, 0] = bad
        yield f"feature {bad}", (spoilt, y)
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
