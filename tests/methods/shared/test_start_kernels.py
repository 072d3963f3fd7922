"""The compiled start in single precision: as close to the definition as it says, and within its sensitivity."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from tacitly.federation.base import Query
from tacitly.linalg import orthonormal, unpack_symmetric
from tacitly.methods.shared.column_scales import ColumnScales
from tacitly.methods.shared.direction_votes import DirectionVote
from tacitly.methods.shared.whitening import FeatureMoment, ScaledMoment, Whitening

D = 21  # not a multiple of a register
RNG = np.random.default_rng(1)
WHITENING = Whitening(RNG.uniform(0.5, 2.0, D), orthonormal(RNG.normal(size=(D, 5)))[0], RNG.uniform(-0.5, 2.0, 5))
QUERIES: dict[str, tuple[Query, float]] = {
    "moment": (FeatureMoment(D), 1.0),
    "moment, centred": (FeatureMoment(D, centered=True), 1.0),
    "moment, scaled": (ScaledMoment(D, gains=np.geomspace(1e-6, 1e6, D)), 1.0),
    "votes": (DirectionVote(Whitening.identity(D)), 1.0),
    "votes, whitened": (DirectionVote(WHITENING, centered=True), 1.0),
    "moment, some rows": (FeatureMoment(D, centered=True, most_rows=8), 1.0),
    "votes, some rows": (DirectionVote(Whitening.identity(D), most_rows=8), 1.0),
    "votes, some rows, whitened": (DirectionVote(WHITENING, centered=True, most_rows=13), 1.0),
    "scales": (ColumnScales(D), math.sqrt(D)),
}


@pytest.mark.parametrize("name", QUERIES)
def test_sums_in_single_precision_are_those_of_the_definition(name: str) -> None:
    """Few rows and many: up to 64 are added at a time, and beyond D the system has the size of the features."""
    query, bound = QUERIES[name]
    rng, offsets = np.random.default_rng(2), np.cumsum([0, 1, 2, 5, 21, 22, 30, 64, 65, 200])
    X = (rng.normal(size=(offsets[-1], D)) * np.geomspace(1e-3, 1e3, D)).astype(np.float32)
    y = (1e20 * rng.normal(size=len(X))).astype(np.float32)
    plain = Query.block_sum(query, X, y, offsets, bound)
    found = query.block_sum(X, y, offsets, bound)
    np.testing.assert_allclose(found, plain, atol=2e-4 * np.abs(plain).max())


@pytest.mark.parametrize(
    "make",
    [
        FeatureMoment,
        lambda d: DirectionVote(Whitening.identity(d)),
        lambda d: FeatureMoment(d, most_rows=8),
        lambda d: DirectionVote(Whitening.identity(d), most_rows=8),
    ],
)
def test_opposite_users_in_single_precision_are_root_two_clips_apart(make: Callable[[int], Query]) -> None:
    """Moments on orthogonal subspaces, of which only rounding errors overlap: the worst case of ⟨P, Q⟩ ≥ 0."""
    rng, largest = np.random.default_rng(3), 0.0
    for d in (7, 64, 128):
        query = make(d)
        for rows in (1, 3, 64, 200):
            turn = np.linalg.qr(rng.normal(size=(d, d)))[0]
            half, sums = d // 2, []
            for part in (turn[:, :half], turn[:, half:]):
                X = (rng.normal(size=(rows, part.shape[1])) @ part.T).astype(np.float32)
                y = rng.normal(size=rows).astype(np.float32)
                sums.append(query.block_sum(X, y, np.array([0, rows]), 1.0))
            apart = float(np.linalg.norm(sums[0] - sums[1]))
            assert apart <= math.sqrt(2.0)
            largest = max(largest, apart)
    assert largest > 0.999 * math.sqrt(2.0)


def test_moments_in_single_precision_are_definite_up_to_the_reserve() -> None:
    """The proof's ⟨P, Q⟩ ≥ −2^-16 √d follows from eigenvalues above −2^-17 √d; rows that almost cancel come nearest."""
    rng, d = np.random.default_rng(4), 64
    for scale in (1e-15, 1e-3, 1.0, 1e15):
        row = rng.normal(size=d)
        X = (scale * (row + 1e-4 * rng.normal(size=(500, d)))).astype(np.float32)
        moment = unpack_symmetric(FeatureMoment(d).block_sum(X, X[:, 0], np.array([0, 500]), 1.0), d)
        assert np.linalg.eigvalsh(moment)[0] >= -(2.0**-17) * math.sqrt(d)
        assert 1.0 - 2.0**-15 * math.sqrt(d) < np.linalg.norm(moment) <= 1.0


def test_what_one_user_leaves_in_buffers_reaches_nobody_else() -> None:
    """Numbers that are not finite, or overflow in single precision, add zero and change no bit of the others' sum."""
    rng, offsets = np.random.default_rng(5), np.array([0, 30, 60, 60, 67, 90])
    for query, bound in QUERIES.values():
        X, y = rng.normal(size=(90, D)).astype(np.float32), rng.normal(size=90).astype(np.float32)
        X[30:60] = 0.0
        without = query.block_sum(X, y, offsets, bound)
        for bad in (np.nan, np.inf, 3e38):
            X[30:60] = bad * np.where(np.arange(D) % 2, 1.0, 0.0) if np.isfinite(bad) else bad
            if np.isfinite(bad) and isinstance(query, ColumnScales):
                continue  # in double precision there: nothing overflows
            assert np.array_equal(query.block_sum(X, y, offsets, bound), without), type(query).__name__


def test_a_moment_whose_products_underflow_is_not_indefinite() -> None:
    """In two million rows the square of one feature is lost 2^-150 at a time, and its product with the other is not."""
    rows = 1 << 21
    query, X = FeatureMoment(2), np.array([[0.9999 * 2.0**-75, 2.0**-68]], dtype=np.float32)
    found = query.block_sum(np.repeat(X, rows, axis=0), np.zeros(rows), np.array([0, rows]), 1.0)
    least = np.linalg.eigh(unpack_symmetric(found, 2))[1][:, :1].T.astype(np.float32)
    other = query.block_sum(least, np.zeros(1), np.array([0, 1]), 1.0)
    assert np.linalg.norm(found - other) <= math.sqrt(2.0)
