"""Nodes answer for a few users at a time, where a batch is the definition of a query."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from tacitly.arrays import Array, Offsets, Rows
from tacitly.data.cohort import Cohort
from tacitly.federation import wire
from tacitly.federation.flower.node import Node
from tacitly.federation.query import Query
from tacitly.federation.shard import Shard
from tacitly.methods.shared.batch import BatchQuery, per_user
from tacitly.methods.shared.typical_norm import TypicalNorm
from tacitly.methods.shared.whitening import FeatureMoment

GRID = 2.0**-40


@dataclass(frozen=True)
class Fragile(BatchQuery):
    """A sum of rows that fails for a whole batch if one of its users has a row of ones, as an inverse would."""

    sizes: list[int] = field(default_factory=list)
    width: int = 3

    @property
    def coordinates(self) -> int:
        return self.width

    def contributions(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        self.sizes.append(len(offsets) - 1)
        if (X == 1.0).all(axis=1).any():
            raise np.linalg.LinAlgError("singular matrix")
        return np.resize(per_user(np.asarray(X, dtype=np.float64), offsets), (len(offsets) - 1, self.width))


def plain_sum(query: BatchQuery, X: Array, offsets: Array) -> Array:
    return np.asarray(Shard(Cohort.from_offsets(X, None, offsets), threads=1, plain=True).exact_sum(query, 0.5, GRID))


def test_a_batch_has_few_users_however_many_there_are() -> None:
    query, X = Fragile(), np.random.default_rng(0).normal(size=(300, 3))
    found = plain_sum(query, X, np.arange(0, 301, 3))
    assert 1 < max(query.sizes) <= 16
    expected = sum(row * min(1.0, 0.5 / np.linalg.norm(row)) for row in X.reshape(100, 3, 3).sum(axis=1))
    np.testing.assert_allclose(found * GRID, expected, atol=1e-5)


@pytest.mark.parametrize("wrapped", [False, True])
def test_of_a_wide_query_a_batch_has_fewer_users(wrapped: bool) -> None:
    """Ten kilobytes can ask for much of one user, and would for sixteen times that; even if only a norm leaves."""
    query = Fragile(width=1 << 20)
    asked = TypicalNorm(query, 8.0) if wrapped else query
    plain_sum(asked, np.random.default_rng(0).normal(size=(15, 3)), np.arange(0, 16, 3))
    assert max(query.sizes) <= 4


@pytest.mark.parametrize("query", [FeatureMoment(60), TypicalNorm(FeatureMoment(60), 8.0)], ids=["itself", "its norm"])
def test_a_node_refuses_what_is_too_wide(query: Query, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node("north", Cohort.from_offsets(np.ones((3, 60)), None, [0, 1, 3]), tmp_path, threads=1)
    assert node._fits(query)
    monkeypatch.setattr(wire, "LIMIT", 8 * 1000)
    assert not node._fits(query)


def test_work_is_judged_by_a_user_with_as_many_rows_as_are_contributed(tmp_path: Path) -> None:
    """Eight rows say little: a user of a network contributes 128, and work may grow with the square of rows."""
    cohort, seen = Cohort.from_offsets(np.ones((3, 6)), None, [0, 1, 3]), []

    class Counting(FeatureMoment):
        def contribution(self, X: Rows, y: Rows) -> Array:
            seen.append(len(X))
            return super().contribution(X, y)

    assert Node("north", cohort, tmp_path, threads=1)._fits(Counting(6))
    assert seen == [8, 128]


def test_a_user_who_makes_a_batch_fail_moves_nobody_else_by_a_bit_and_costs_that_batch_only() -> None:
    X, offsets = np.random.default_rng(1).normal(size=(300, 3)), np.arange(0, 301, 3)
    failing, nothing, asked = X.copy(), X.copy(), Fragile()
    failing[30:33], nothing[30:33] = 1.0, 0.0
    np.testing.assert_array_equal(plain_sum(asked, failing, offsets), plain_sum(Fragile(), nothing, offsets))
    assert sum(asked.sizes) < 1.8 * 100


def test_a_norm_is_one_form_only_if_what_it_is_of_is() -> None:
    assert TypicalNorm(Fragile(), 8.0).one_form
    assert not TypicalNorm(FeatureMoment(3), 8.0).one_form
