"""Nodes answer for a few users at a time, where a batch is the definition of a query."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tacitly.arrays import Array, Offsets, Rows
from tacitly.data.cohort import Cohort
from tacitly.federation.shard import Shard
from tacitly.methods.shared.batch import BatchQuery, per_user
from tacitly.methods.shared.typical_norm import TypicalNorm
from tacitly.methods.shared.whitening import FeatureMoment

GRID = 2.0**-40


@dataclass(frozen=True)
class Fragile(BatchQuery):
    """A sum of rows that fails for a whole batch if one of its users has a row of ones, as an inverse would."""

    sizes: list[int] = field(default_factory=list)

    @property
    def coordinates(self) -> int:
        return 3

    def contributions(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        self.sizes.append(len(offsets) - 1)
        if (X == 1.0).all(axis=1).any():
            raise np.linalg.LinAlgError("singular matrix")
        return per_user(np.asarray(X, dtype=np.float64), offsets)


def plain_sum(query: BatchQuery, X: Array, offsets: Array) -> Array:
    return np.asarray(Shard(Cohort.from_offsets(X, None, offsets), threads=1, plain=True).exact_sum(query, 0.5, GRID))


def test_a_batch_has_few_users_however_many_there_are() -> None:
    query, X = Fragile(), np.random.default_rng(0).normal(size=(300, 3))
    found = plain_sum(query, X, np.arange(0, 301, 3))
    assert 1 < max(query.sizes) <= 16
    expected = sum(row * min(1.0, 0.5 / np.linalg.norm(row)) for row in X.reshape(100, 3, 3).sum(axis=1))
    np.testing.assert_allclose(found * GRID, expected, atol=1e-5)


def test_a_user_who_makes_a_batch_fail_moves_nobody_else_by_a_bit_and_costs_that_batch_only() -> None:
    X, offsets = np.random.default_rng(1).normal(size=(300, 3)), np.arange(0, 301, 3)
    failing, nothing, asked = X.copy(), X.copy(), Fragile()
    failing[30:33], nothing[30:33] = 1.0, 0.0
    np.testing.assert_array_equal(plain_sum(asked, failing, offsets), plain_sum(Fragile(), nothing, offsets))
    assert sum(asked.sizes) < 1.8 * 100


def test_a_norm_is_one_form_only_if_what_it_is_of_is() -> None:
    assert TypicalNorm(Fragile(), 8.0).one_form
    assert not TypicalNorm(FeatureMoment(3), 8.0).one_form
