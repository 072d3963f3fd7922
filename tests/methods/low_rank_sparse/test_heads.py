"""The sparse fit finds the true support, whatever the units, and every user gets a usable head."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tacitly.audit.users import adversarial_users
from tacitly.datasets import make_low_rank_sparse
from tacitly.datasets.low_rank_sparse import LowRankSparseUsers
from tacitly.heads.population import HeadPrior
from tacitly.methods.low_rank_sparse import heads as heads_module
from tacitly.methods.low_rank_sparse.heads import (
    EXPECTED,
    UNKNOWN,
    SparseHeads,
    SparseHeadWork,
    Sparsity,
    fit_sparse_heads,
)


def fit(data: LowRankSparseUsers, sparsity: Sparsity, **options: bool) -> SparseHeads:
    offsets = np.concatenate([[0], np.cumsum(np.bincount(data.users))])
    return fit_sparse_heads(data.X, data.y, offsets, data.basis, sparsity, **options)


def supports(heads: SparseHeads) -> list[set[int]]:
    return [set(i[v != 0].tolist()) for i, v in zip(heads.indices, heads.values, strict=True)]


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("sparsity", [Sparsity(4), Sparsity.of("auto", 40)])
def test_supports_and_values_are_exact_without_label_noise(sparsity: Sparsity, dtype: type) -> None:
    data = make_low_rank_sparse(60, 40, 2, (50, 70), 4, random_state=0, dtype=dtype)
    heads = fit(data, sparsity)
    assert supports(heads) == [set(row.tolist()) for row in data.sparse_indices]
    found = data.models(data.basis, heads.weights, heads.indices, heads.values)
    true = data.models(data.basis, data.heads, data.sparse_indices, data.sparse_values)
    np.testing.assert_allclose(found, true, atol=1e-6 if dtype is np.float64 else 1e-4)


def test_the_support_found_is_mostly_the_best_of_all() -> None:
    """Against brute force, on data with label noise, where supports are not obvious."""
    data = make_low_rank_sparse(40, 8, 1, 20, 2, noise=0.2, random_state=1)
    found = supports(fit(data, Sparsity(2)))
    agree = 0
    for i in range(40):
        X, y = data.X[data.users == i], data.y[data.users == i]
        errors = {}
        for a in range(8):
            for b in range(a):
                columns = np.column_stack([X @ data.basis, X[:, [a, b]]])
                errors[a, b] = float(np.sum((y - columns @ np.linalg.lstsq(columns, y)[0]) ** 2))
        agree += found[i] == set(min(errors, key=errors.__getitem__))
    assert agree >= 36


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("intercept", [False, True])
def test_heads_of_many_users_are_those_of_few(intercept: bool, dtype: type, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    offsets = np.concatenate([[0], np.cumsum(rng.integers(1, 25, 200))])
    X = rng.normal(size=(offsets[-1], 9)) * rng.uniform(0.1, 10.0, 9) + 5.0 * intercept
    X[:, 3] = 2.0
    basis, y = np.linalg.qr(rng.normal(size=(9, 2)))[0], X[:, 1] + 0.1 * rng.normal(size=len(X))
    X, y = X.astype(dtype), y.astype(dtype)
    close = 1e-8 if dtype is np.float64 else 1e-3
    for most in (0, 2, 4):
        work = SparseHeadWork(
            basis, Sparsity(most), intercept, prior=HeadPrior(np.zeros(3), np.diag([1.0, 1.0, intercept]), 0.3)
        )
        few = work.fit(X, y, offsets)
        with monkeypatch.context() as patched:
            patched.setattr(heads_module, "few", lambda users, features: False)
            many = work.fit(X, y, offsets)
        same = (few.indices == many.indices).all(axis=1)  # in single precision a choice may be a tie
        assert same.all() if dtype is np.float64 else same.mean() > 0.9
        for name in ("weights", "intercepts", "values"):
            found, expected = getattr(few, name)[same], getattr(many, name)[same]
            np.testing.assert_allclose(found, expected, rtol=close, atol=close)


@pytest.mark.parametrize("intercept", [False, True])
def test_units_do_not_matter(intercept: bool) -> None:
    data = make_low_rank_sparse(20, 10, 1, 25, 2, noise=0.1, random_state=2)
    offsets = np.arange(0, 501, 25)
    factors = np.geomspace(1e-3, 1e3, 10)
    plain = fit_sparse_heads(data.X, data.y, offsets, data.basis, Sparsity(2), intercept=intercept)
    scaled = fit_sparse_heads(
        data.X * factors, 7.0 * data.y, offsets, data.basis / factors[:, None], Sparsity(2), intercept=intercept
    )
    np.testing.assert_array_equal(plain.indices, scaled.indices)
    np.testing.assert_allclose(7.0 * plain.values, scaled.values * factors[scaled.indices], rtol=1e-8, atol=1e-8)


def test_levels_are_found_next_to_quirks() -> None:
    data = make_low_rank_sparse(30, 40, 2, 80, 2, random_state=3)
    levels = np.arange(30.0) - 10.0
    heads = fit_sparse_heads(
        data.X + 5.0, data.y + levels[data.users], np.arange(0, 2401, 80), data.basis, Sparsity(2), intercept=True
    )
    assert supports(heads) == [set(row.tolist()) for row in data.sparse_indices]
    true = data.models(data.basis, data.heads, data.sparse_indices, data.sparse_values)
    np.testing.assert_allclose(heads.intercepts, levels - 5.0 * true.sum(axis=1), atol=1e-5)


def test_a_shared_weight_stays_one() -> None:
    data = make_low_rank_sparse(30, 12, 1, 40, 2, random_state=3, shared_weight=True)
    heads = fit(data, Sparsity(2), shared_weight=True)
    assert (heads.weights == 1.0).all()
    assert supports(heads) == [set(row.tolist()) for row in data.sparse_indices]


def test_users_get_no_more_coordinates_than_their_rows_can_tell_apart() -> None:
    data = make_low_rank_sparse(50, 12, 2, (1, 9), 5, random_state=4)
    counts = np.bincount(data.users)
    own = (fit(data, Sparsity(5)).values != 0).sum(axis=1)
    assert (own <= np.maximum((counts - 2) // 2, 0)).all()
    assert own.max() == 3


def test_users_without_quirks_mostly_choose_none() -> None:
    data = make_low_rank_sparse(100, 20, 1, 40, 0, noise=1.0, random_state=5)
    heads = fit(data, Sparsity.of("auto", 20))
    assert np.median((heads.values != 0).sum(axis=1)) == 0


@pytest.mark.parametrize("shared_weight", [False, True])
@pytest.mark.parametrize("sparsity", [Sparsity(3), Sparsity(3, chosen=True)])
def test_no_user_gets_a_head_that_is_not_finite(sparsity: Sparsity, shared_weight: bool) -> None:
    basis = np.linalg.qr(np.random.default_rng(6).normal(size=(7, 1)))[0]
    for name, (X, y) in adversarial_users(7):
        offsets = np.array([0, len(X)])
        heads = fit_sparse_heads(X, y, offsets, basis, sparsity, intercept=True, shared_weight=shared_weight)
        assert np.isfinite(heads.packed()).all(), name


def test_nobodys_head_depends_on_anybody_else() -> None:
    data = make_low_rank_sparse(9, 12, 2, (3, 30), 3, noise=0.3, random_state=8)
    together = fit(data, Sparsity(3)).packed()
    for i in range(9):
        mine = data.users == i
        alone = fit_sparse_heads(data.X[mine], data.y[mine], np.array([0, mine.sum()]), data.basis, Sparsity(3))
        np.testing.assert_array_equal(alone.packed()[0], together[i])


def test_heads_survive_packing_and_do_not_show_how_many_coordinates_anybody_chose() -> None:
    heads = SparseHeads(np.ones((2, 1)), np.zeros(2), np.array([[3, 0], [5, 0]]), np.array([[1.0, 0], [2.0, 0]]))
    again = SparseHeads.unpacked(heads.packed(), 1)
    np.testing.assert_array_equal(again.indices, heads.indices)
    np.testing.assert_array_equal(again.values, heads.values)


@pytest.mark.parametrize("view", [lambda X: X[::-1], lambda X: X[:, ::-1], np.asfortranarray, lambda X: X[:, 1:]])
def test_how_rows_lie_in_memory_does_not_matter(view) -> None:  # type: ignore[no-untyped-def]
    rng = np.random.default_rng(9)
    X, y = view(rng.normal(size=(30, 7))), rng.normal(size=60)[::2]
    basis = rng.normal(size=(X.shape[1], 1))
    found = fit_sparse_heads(X, y, np.array([0, 12, 30]), basis, Sparsity(2))
    right = fit_sparse_heads(X.copy("C"), y.copy(), np.array([0, 12, 30]), basis, Sparsity(2))
    np.testing.assert_array_equal(found.packed(), right.packed())


def test_a_large_mean_of_features_does_not_matter_to_levels() -> None:
    data = make_low_rank_sparse(30, 12, 2, 60, 2, random_state=10)
    offsets, shift = np.arange(0, 1801, 60), 1e6 * np.random.default_rng(11).normal(size=12)
    plain, moved = (
        fit_sparse_heads(X, data.y, offsets, data.basis, Sparsity(2), intercept=True) for X in (data.X, data.X + shift)
    )
    np.testing.assert_array_equal(moved.indices, plain.indices)
    np.testing.assert_allclose(moved.weights, plain.weights, atol=1e-5)
    np.testing.assert_allclose(moved.values, plain.values, atol=1e-5)


def test_no_room_is_made_for_coordinates_nobody_may_choose() -> None:
    for d in (1, 7, 50, 750, 5000):
        sparsity = Sparsity.of("auto", d)
        assert sparsity.most == sparsity.sizes[-1] <= 150


@pytest.mark.parametrize("target", [1e190, 1e194, 1e250, 1e300])
@pytest.mark.parametrize("intercept", [False, True])
def test_targets_too_large_to_compute_with_give_finite_heads(target: float, intercept: bool) -> None:
    rng = np.random.default_rng(12)
    X, y = rng.normal(size=(20, 6)), target * rng.normal(size=20)
    heads = fit_sparse_heads(X, y, np.array([0, 20]), np.eye(6)[:, :1], Sparsity(2), intercept=intercept)
    assert np.isfinite(heads.packed()).all()


@pytest.mark.parametrize("bad", [-1, 11, 0.0, 1.5, True, "all", math.nan])
def test_a_sparsity_that_means_nothing_is_refused(bad: object) -> None:
    with pytest.raises(ValueError, match="sparsity must be a count"):
        Sparsity.of(bad, 10)


def test_a_larger_penalty_believes_less_and_noise_free_coordinates_are_believed_at_any() -> None:
    rows, chosen = np.array([20, 20, 20]), np.array([1, 1, 0])
    alone, shrunk = np.array([10.0, 1e-20, 10.0]), np.array([20.0, 20.0, 10.0])
    shares = [
        SparseHeadWork(np.eye(20)[:, :2], Sparsity(1), penalty=penalty)._share(rows, chosen, alone, shrunk)
        for penalty in (0.0, EXPECTED, 1.0, UNKNOWN)
    ]
    assert (np.diff([share[0] for share in shares]) < 0).all()
    assert shares[0][0] > 0.9 > 0.1 > shares[-1][0]
    assert [share[1] for share in shares] == pytest.approx([1.0] * 4)
    with pytest.raises(ValueError, match="penalty must be a number from 0 on"):
        SparseHeadWork(np.eye(3), Sparsity(1), penalty=-1.0)


def test_how_many_coordinates_others_have_moves_no_bit_of_a_head():
    # Users with equally many coordinates are fitted together. Were the others left out of that batch, its shape would
    # say how many there are: 12 of these 300 heads changed in their last bit.
    rng = np.random.default_rng(0)
    for _ in range(300):
        basis = np.linalg.qr(rng.normal(size=(5, 1)))[0]
        watched = np.sign(rng.normal(size=(4, 5)))  # rows for one coordinate, as another user has with 5 rows, not 13
        heads = []
        for rows in (5, 13):
            X = np.vstack([rng.normal(size=(rows, 5)), watched])
            y = np.append(rng.normal(size=rows), np.sign(watched @ [1.0, 0.5, 0.0, 0.0, 0.0]))
            offsets = np.array([0, rows, rows + 4])
            heads.append(fit_sparse_heads(X, y, offsets, basis, Sparsity(4), intercept=True).packed()[1])
        assert np.array_equal(*heads)
