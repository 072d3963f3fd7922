"""The compiled round equals its definition, user by user, whatever the shapes and the other users."""

from __future__ import annotations

import itertools
import math

import numpy as np
import numpy.typing as npt
import pytest

from tacitly.arrays import Array, Rows
from tacitly.federation.base import Query
from tacitly.linalg import orthonormal
from tacitly.methods.fedrep.queries import BasisStep
from tacitly.methods.shared.whitening import Whitening
from tacitly.privacy.clipping import GUARD

Block = tuple[Rows, Rows, npt.NDArray[np.int64]]


def query(d: int, k: int, *, directions: int = 0, centered: bool = False) -> BasisStep:
    rng = np.random.default_rng(d + k)
    factor = rng.normal(size=(k, k))
    turned = orthonormal(rng.normal(size=(d, directions)))[0] if directions else np.zeros((d, 0))
    whitening = Whitening(rng.uniform(0.5, 2.0, d), turned, rng.uniform(-0.8, 2.0, directions))
    return BasisStep(orthonormal(rng.normal(size=(d, k)))[0], np.eye(k) + factor @ factor.T, 0.5, whitening, centered)


def block(counts: list[int], d: int, dtype: str) -> Block:
    rng = np.random.default_rng(0)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    X, y = rng.normal(size=(offsets[-1], d)) + 0.5, rng.normal(size=offsets[-1]) + 1.0
    return X.astype(dtype), y.astype(dtype), offsets


def spoiled(rows: Block, user: int, value: float) -> Block:
    X, y, offsets = rows[0].copy(), rows[1], rows[2]
    X[offsets[user] + 1, -1] = value
    return X, y, offsets


def fused(step: BasisStep, rows: Block) -> Array:
    return step.block_sum(*rows, 1.0)


COUNTS = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 13, 16, 17, 31, 40, 200, 11, 24, 5]
SHAPES = [(1, 1), (3, 2), (17, 3), (50, 2), (64, 4), (64, 5), (128, 8), (200, 9)]


@pytest.mark.parametrize(("d", "k"), SHAPES)
@pytest.mark.parametrize("centered", [False, True])
@pytest.mark.parametrize("whitened", [False, True])
@pytest.mark.parametrize(("dtype", "tolerance"), [("f8", 1e-12), ("f4", 1e-5)])
def test_the_kernel_is_the_definition(
    d: int, k: int, centered: bool, whitened: bool, dtype: str, tolerance: float
) -> None:
    step = query(d, k, directions=min(d, 6) if whitened else 0, centered=centered)
    rows = block(COUNTS, d, dtype)
    plain = Query.block_sum(step, *rows, 1.0)
    np.testing.assert_allclose(fused(step, rows), plain, rtol=0, atol=tolerance * np.abs(plain).max())


@pytest.mark.parametrize("centered", [False, True])
def test_long_users_are_users_too(centered: bool) -> None:
    step = query(20, 3, directions=4, centered=centered)
    rows = block([5000, 4, 3001, 2, 1], 20, "f8")
    np.testing.assert_allclose(fused(step, rows), Query.block_sum(step, *rows, 1.0), rtol=0, atol=1e-12)


@pytest.mark.parametrize("centered", [False, True])
def test_users_with_no_more_rows_than_unknowns_add_nothing(centered: bool) -> None:
    step = query(6, 3, centered=centered)
    assert not fused(step, block([0, 1, 2, 3, 3 + centered], 6, "f8")).any()
    assert fused(step, block([4 + centered], 6, "f8")).any()


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_a_user_adds_exactly_the_clip_less_its_guard(dtype: str) -> None:
    step = query(17, 3, directions=5)
    X, y, offsets = block(COUNTS, 17, dtype)
    for first, last in itertools.pairwise(offsets[3:]):
        alone = step.block_sum(X[first:last], y[first:last], np.array([0, last - first]), 1.0)
        assert np.linalg.norm(alone) == pytest.approx(1.0 - GUARD, rel=1e-9)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e300])
@pytest.mark.parametrize("d", [3, 64])
@pytest.mark.filterwarnings("ignore:overflow")
def test_a_user_whose_numbers_are_not_finite_adds_zero_and_touches_nobody(d: int, value: float, dtype: str) -> None:
    """Bitwise: the sum equals the sum without that user's rows. 1e300 overflows in single precision, or squared."""
    counts = [9, 20, 12, 7, 30, 8, 15, 21, 10, 11]
    step = query(d, 2, directions=2)
    rows = block(counts, d, dtype)
    for user in (0, 3, 7, 9):
        bad = spoiled(rows, user, value)
        first, last = rows[2][user], rows[2][user + 1]
        keep = np.r_[0:first, last : len(rows[1])]
        others = np.concatenate([[0], np.cumsum(counts[:user] + counts[user + 1 :])])
        np.testing.assert_array_equal(fused(step, bad), fused(step, (rows[0][keep], rows[1][keep], others)))


@pytest.mark.parametrize("size", [1e-150, 1e-30, 1e-18, 1e18, 1e30, 1e150])
@pytest.mark.parametrize("of_targets", [False, True])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.filterwarnings("ignore:overflow")
def test_huge_and_tiny_users_add_no_more_than_anybody(size: float, of_targets: bool, dtype: str) -> None:
    step = query(17, 3, directions=5)
    X, y, offsets = block([25], 17, "f8")
    if of_targets:
        y = y * size
    else:
        X = X * size
    alone = fused(step, (X.astype(dtype), y.astype(dtype), offsets))
    assert not alone.any() or np.linalg.norm(alone) == pytest.approx(1.0 - GUARD, rel=1e-9)


def test_a_contribution_does_not_depend_on_the_neighbours_to_the_last_bit() -> None:
    step = query(50, 3, directions=5, centered=True)
    X, y, offsets = block([14], 50, "f8")
    alone = fused(step, (X, y, offsets))
    for before in ([1], [2, 1], [3] * 7, [1] * 8, [4, 2, 3, 1, 2, 3, 4, 1, 2]):
        extra = sum(before)
        rows = np.concatenate([np.ones((extra, 50)), X, np.ones((2, 50))])
        targets = np.concatenate([np.ones(extra), y, np.ones(2)])
        bounds = np.cumsum([0, *before, 14, 2])
        np.testing.assert_array_equal(fused(step, (rows, targets, bounds)), alone)


def test_several_blocks_at_once_are_the_blocks() -> None:
    step = query(17, 3, directions=5)
    X, y, offsets = block(COUNTS, 17, "f8")
    together = step.block_sums(X, y, offsets, 1.0, 6)
    for number, sums in enumerate(together):
        bounds = offsets[6 * number : 6 * number + 7]
        rows = slice(bounds[0], bounds[-1])
        np.testing.assert_array_equal(sums, step.block_sum(X[rows], y[rows], bounds - bounds[0], 1.0))
    assert len(together) == 4


def test_the_same_rows_give_the_same_bits() -> None:
    step = query(64, 4)
    rows = block(COUNTS, 64, "f4")
    shifted = np.empty(rows[0].size + 5, dtype="f4")[5:].reshape(rows[0].shape)
    shifted[:] = rows[0]
    first = fused(step, rows)
    np.testing.assert_array_equal(first, fused(step, rows))
    np.testing.assert_array_equal(first, fused(step, (shifted, *rows[1:])))
