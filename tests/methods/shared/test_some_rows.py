"""A start from a few rows of each user: which rows, for how many users, and nobody's bits from another's rows."""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt
import pytest

from tacitly.arrays import Rows
from tacitly.federation.base import Query
from tacitly.federation.wire import WireError, decode, encode
from tacitly.methods.shared.direction_votes import DirectionVote
from tacitly.methods.shared.some_rows import StartRows, chosen, start_rows, thinned
from tacitly.methods.shared.whitening import FeatureMoment, Whitening

D = 20  # with double precision some padding of a row is never written
QUERIES = (FeatureMoment(D, most_rows=8), DirectionVote(Whitening.identity(D), most_rows=8))


def rows_of(rng: np.random.Generator, count: int, dtype: npt.DTypeLike) -> tuple[Rows, Rows]:
    X, y = rng.normal(size=(count, D)), rng.normal(size=count)
    return np.asarray(X, dtype=dtype), np.asarray(y, dtype=dtype)


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 40, 1001])
def test_rows_are_spread_over_all_of_a_users(count: int) -> None:
    rows = chosen(count, 8)
    assert len(rows) == len(set(rows)) == min(count, 8)
    if count > 8:
        assert rows[0] <= count / 8
        assert rows[-1] >= count - 1 - count / 8
        assert np.ptp(np.diff(rows)) <= 1


def test_all_forms_read_the_same_rows() -> None:
    """Rows that are not chosen do not matter, to the last bit; those chosen do."""
    rng, offsets = np.random.default_rng(0), np.cumsum([0, 3, 8, 9, 40, 1, 100, 21, 5, 33])
    for query in QUERIES:
        for dtype in (np.float32, np.float64):
            X, y = rows_of(rng, int(offsets[-1]), dtype)
            plain = Query.block_sum(query, X, y, offsets, 1.0)
            np.testing.assert_allclose(query.block_sum(X, y, offsets, 1.0), plain, atol=2e-3)
            np.testing.assert_allclose(query.contributions(X, y, offsets).sum(axis=0), plain, atol=2e-3)
            few = thinned(X, y, offsets, 8)
            assert np.array_equal(query.block_sum(*few, 1.0), query.block_sum(X, y, offsets, 1.0))


def test_users_of_a_group_do_not_meet() -> None:
    """More users than lanes, one of them not finite at a time: it adds zero and changes no bit of the others' sum."""
    rng, users = np.random.default_rng(1), 37
    offsets = np.append(0, np.cumsum(rng.integers(1, 30, users)))
    for query in QUERIES:
        for dtype in (np.float32, np.float64):
            X, y = rows_of(rng, int(offsets[-1]), dtype)
            for user in (0, 7, 15, 16, 36):
                own, without = slice(offsets[user], offsets[user + 1]), X.copy()
                without[own] = 0.0
                expected = query.block_sum(without, y, offsets, 1.0)
                for bad in (np.nan, np.inf):
                    without[own] = bad
                    assert np.array_equal(query.block_sum(without, y, offsets, 1.0), expected)


def test_the_rule_leaves_few_users_and_much_noise_alone() -> None:
    assert start_rows(20_000, 50, 2, 15.0, 10.0) == StartRows()
    assert start_rows(100_000, 64, 4, 15.0, 10.0) != StartRows()
    assert start_rows(100_000, 64, 4, 15.0, 100.0) == StartRows()
    assert start_rows(100_000, 2000, 4, 15.0, 10.0) == StartRows()


def test_a_number_of_rows_out_of_range_does_not_travel() -> None:
    for query in QUERIES:
        sent = encode(query)
        assert decode(sent).most_rows == 8
        for wrong in (b"-1", b"65"):
            with pytest.raises(WireError):
                decode(sent.replace(b'"most_rows":8', b'"most_rows":' + wrong))


def test_rows_of_users_before_do_not_fill_up_those_of_a_user_with_few() -> None:
    """Users are computed one per lane, in room that earlier users of the lane have written to."""
    rng, counts = np.random.default_rng(0), np.array([8] * 16 + [1, 2, 3, 5] * 8)
    offsets = np.append(0, np.cumsum(counts))
    X, y = rng.normal(size=(offsets[-1], 6)), rng.normal(size=offsets[-1])
    query = DirectionVote(Whitening.identity(6), most_rows=8)
    alone = sum(query.contribution(X[a:b], y[a:b]) for a, b in itertools.pairwise(offsets))
    np.testing.assert_allclose(query.block_sum(X, y, offsets, 1.0), alone, rtol=1e-4, atol=1e-4)
