"""Worst-case users under short names: the auditor's, and neighbours among others. A mutated query must not survive."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np

from tacitly.arrays import read_only
from tacitly.audit.sensitivity import SensitivityReport, added_by, check_sensitivity
from tacitly.audit.users import EXPONENTS, adversarial_units
from tacitly.audit.users import User as Rows
from tacitly.federation.base import Query
from tacitly.methods.low_rank_sparse.queries import SparseEquations, SparseStep
from tacitly.methods.trace_regression.designs import Design


def clipped(query: Query, user: Rows, bound: float, dtype: type = np.float64) -> np.ndarray:
    """What this user alone adds to the sum, by the fused form that releases use."""
    vector = added_by(query, user, bound, dtype)
    assert vector is not None
    return vector


def placed(query: Query, X: np.ndarray) -> np.ndarray:
    """Rows with valid positions, where the query's design has columns that are positions."""
    design, X = design_of(query), X.copy()
    if design is not None:
        for column, (hot, size) in enumerate(zip(design.hot, (design.d1, design.d2), strict=True)):
            if hot:
                X[:, column] = np.arange(len(X)) % size
    return X


def exponents_for(query: Query) -> tuple[float, ...]:
    """All, but fewer for queries that train a network or search for supports: they would take a minute each."""
    if any(kind.__module__.startswith("tacitly.neural") for kind in type(query).__mro__):
        return EXPONENTS[::36]
    return EXPONENTS[:: 8 if isinstance(query, SparseEquations | SparseStep) else 1]


def units(query: Query, d: int) -> Iterator[tuple[str, Rows]]:
    """Adversarial users, or single rows of them where the row is the query's unit."""
    for name, (X, y) in adversarial_units(query, d, exponents=exponents_for(query)):
        yield name, (X, y)
        if not np.array_equal(X, at := placed(query, X), equal_nan=True):
            yield f"{name}, placed", (at, y)


def violations(query: Query, bound: float, d: int, *, pairs: Sequence[tuple[Rows, Rows]] = ()) -> list[str]:
    """Everything that contradicts the sensitivity that ``query`` claims at this clip."""
    return list(attacked(query, bound, d, pairs=pairs).violations)


def attacked(query: Query, bound: float, d: int, *, pairs: Sequence[tuple[Rows, Rows]] = ()) -> SensitivityReport:
    """What worst-case users do to the sensitivity that ``query`` claims at this clip."""
    both = list(pairs)
    if any(getattr(design_of(query), "hot", ())):
        # The auditor's units know nothing of columns that are positions; those with valid ones are handed to it as
        # pairs.
        at = [user for name, user in units(query, d) if name.endswith(", placed")]
        both += zip(at[::2], at[1::2], strict=False)
    return check_sensitivity(query, d, bound, pairs=both, exponents=exponents_for(query))


def design_of(query: Query) -> Design | None:
    """The design of a query about matrices, or of the query that it wraps."""
    design: Design | None = getattr(getattr(query, "query", query), "design", None)
    return design


def neighbour_violations(query: Query, bound: float, X: np.ndarray, offsets: np.ndarray) -> list[str]:
    """Everything that one unit among others moves by more than ``query`` claims: the sum itself, on neighbours.

    A unit that is not finite adds nothing, so it stands for one that is left out. Where a contribution is a function of
    its own unit alone this follows from :func:`violations`; a query that looks at others as well is caught here only.
    """
    found, furthest = [], math.sqrt(2.0) if query.acute else 2.0
    bounds = query.bounds(X, offsets)

    def total(first: int, last: int, value: object) -> np.ndarray:
        other = X.copy()
        other[first:last] = value
        with np.errstate(all="ignore"):
            return query.block_sum(read_only(other), read_only(np.zeros(len(X))), offsets, bound)

    for i, (first, last) in enumerate(itertools.pairwise(bounds)):
        sums = {
            "as it is": total(first, last, X[first:last]),
            "turned": total(first, last, -X[first:last, ::-1]),
            "longer": total(first, last, 2 * X[first:last]),
        }
        without = total(first, last, math.nan)
        for name, vector in sums.items():
            if not np.linalg.norm(vector - without) <= bound * (1 + 1e-9):
                found.append(f"unit {i}, {name}: moves by {np.linalg.norm(vector - without) / bound:.3f} clips")
            if not np.linalg.norm(vector - sums["as it is"]) <= furthest * bound * (1 + 1e-9):
                found.append(f"unit {i}, {name}: replaced, moves by more than {furthest:.3f} clips")
    return found
