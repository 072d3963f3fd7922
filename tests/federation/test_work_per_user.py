"""What a site computes for one user grows with the user's rows, never with their square."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from federation.test_wire import SENT, WORKS
from methods.test_sensitivity import features
from tacitly.privacy.guarantee import Unit

ROWS = 2000
USER = {name: query for name, (query, _) in SENT.items() if query.unit is Unit.USER}


def peak_per_row(call: object, X: np.ndarray, y: np.ndarray) -> float:
    """Numbers held at a time, per number of the user's rows."""
    call(X[:20], y[:20])  # type: ignore[operator]  # whatever is compiled or imported at first use
    tracemalloc.start()
    try:
        call(X, y)  # type: ignore[operator]
        return tracemalloc.get_traced_memory()[1] / X.nbytes
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", USER)
def test_one_users_number_of_rows_does_not_make_a_site_fail(name: str) -> None:
    """A matrix of rows by rows would: 30,000 rows are 7 GB, and the coordinator sees who has them."""
    d = features(USER[name])
    X, y = np.random.default_rng(0).normal(size=(ROWS, d)), np.arange(ROWS) % 3.0
    assert peak_per_row(USER[name].contribution, X, y) < ROWS / 10  # rows by rows: ROWS / d or more


@pytest.mark.parametrize("work", WORKS.values(), ids=WORKS)
def test_one_users_head_needs_no_matrix_of_rows_by_rows(work: object) -> None:
    X, y = np.random.default_rng(0).normal(size=(ROWS, 7)), np.arange(ROWS) % 3.0
    assert peak_per_row(work.own, X, y) < ROWS / 10  # type: ignore[attr-defined]
