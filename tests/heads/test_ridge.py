"""Heads: what a user fits at home."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tacitly.heads.penalties import PENALTIES
from tacitly.heads.ridge import fit_few_heads, fit_head, fit_heads


def loo_reference(P: np.ndarray, y: np.ndarray, penalties: np.ndarray, intercept: bool) -> np.ndarray:
    """Leave-one-out errors by refitting without each row."""
    errors = []
    for relative in penalties:
        total = 0.0
        centred = P - P.mean(axis=0) if intercept else P
        penalty = relative * np.trace(centred.T @ centred) / P.shape[1]
        for j in range(len(P)):
            keep = np.arange(len(P)) != j
            rows, targets = P[keep], y[keep]
            means, level = (rows.mean(axis=0), targets.mean()) if intercept else (0.0, 0.0)
            head = np.linalg.solve(
                (rows - means).T @ (rows - means) + penalty * np.eye(P.shape[1]), (rows - means).T @ (targets - level)
            )
            total += (y[j] - level - (P[j] - means) @ head) ** 2
        errors.append(total)
    return np.array(errors)


@pytest.mark.parametrize("intercept", [False, True])
def test_the_average_is_weighted_by_true_leave_one_out_errors(intercept: bool) -> None:
    rng = np.random.default_rng(0)
    P = rng.normal(size=(12, 3))
    y = P @ np.array([1.0, -2.0, 0.5]) + 0.5 * rng.normal(size=12) + 3.0 * intercept
    errors = loo_reference(P, y, PENALTIES, intercept)
    weights = (errors.min() / errors) ** (len(P) / 2)
    centred, targets = (P - P.mean(axis=0), y - y.mean()) if intercept else (P, y)
    system = centred.T @ centred
    heads = [
        np.linalg.solve(system + relative * np.trace(system) / 3 * np.eye(3), centred.T @ targets)
        for relative in PENALTIES
    ]
    expected = np.average(heads, axis=0, weights=weights)
    np.testing.assert_allclose(fit_head(P, y, np.eye(3), intercept=intercept)[:3], expected, rtol=1e-6)


def test_clean_rows_give_the_exact_head() -> None:
    rng = np.random.default_rng(1)
    basis = np.linalg.qr(rng.normal(size=(6, 2)))[0]
    X = rng.normal(size=(8, 6))
    np.testing.assert_allclose(fit_head(X, X @ basis @ [2.0, -1.0], basis)[:2], [2.0, -1.0], rtol=1e-6)


def test_an_intercept_is_the_users_own_level() -> None:
    rng = np.random.default_rng(2)
    X = rng.normal(size=(30, 4)) + 5.0
    head = fit_head(X, X[:, 0] + 7.0, np.eye(4)[:, :1], intercept=True)
    np.testing.assert_allclose(head, [1.0, 7.0], rtol=1e-6)


@pytest.mark.parametrize("scale", [1e-200, 1e-100, 1.0, 1e100, 1e200])
def test_degenerate_users_get_finite_heads(scale: float) -> None:
    X = np.ones((3, 4)) * scale
    for y in (np.zeros(3), np.ones(3), np.ones(3) * scale):
        with np.errstate(all="ignore"):
            assert np.isfinite(fit_head(X, y, np.eye(4)[:, :2])).all()


@pytest.mark.parametrize("fit", [fit_heads, fit_few_heads])
def test_users_do_not_see_each_other(fit) -> None:  # type: ignore[no-untyped-def]
    rng = np.random.default_rng(3)
    X, y = rng.normal(size=(20, 5)), rng.normal(size=20)
    basis = np.linalg.qr(rng.normal(size=(5, 2)))[0]
    together = fit(X, y, np.array([0, 6, 20]), basis)
    np.testing.assert_allclose(together[0], fit_head(X[:6], y[:6], basis))
    np.testing.assert_allclose(together[1], fit_head(X[6:], y[6:], basis))


@pytest.mark.parametrize("fit", [fit_heads, fit_few_heads])
@pytest.mark.parametrize("rank", [3, 4, 17])
def test_other_forms_equal_the_plain_one_and_nobody_changes_a_bit_of_them(rank: int, fit) -> None:  # type: ignore[no-untyped-def]
    """Eight users share registers: in groups that are not full, without rows, and beside users who are not finite."""
    rng, counts = np.random.default_rng(5), [7, 0, 1, 40, 18, 3, 25, 9, 9, 30, 5]
    offsets = np.concatenate([[0], np.cumsum(counts)])
    X, basis = rng.normal(size=(offsets[-1], 20)), np.linalg.qr(rng.normal(size=(20, rank)))[0]
    y = X @ basis @ rng.normal(size=rank) + 0.3 * rng.normal(size=len(X))
    for intercept in (False, True):
        together = fit(X, y, offsets, basis, intercept=intercept)
        plain = [fit_head(X[a:b], y[a:b], basis, intercept=intercept) for a, b in itertools.pairwise(offsets)]
        np.testing.assert_allclose(together, plain, rtol=1e-9, atol=1e-11)
        for bad in (np.nan, np.inf, 1e300):
            beside = X.copy()
            beside[offsets[3] : offsets[4]] = bad
            found = fit(beside, y, offsets, basis, intercept=intercept)
            assert (found[3, :-1] == 0.0).all()
            np.testing.assert_array_equal(np.delete(found, 3, axis=0), np.delete(together, 3, axis=0))


def test_more_directions_than_rows_do_not_explode() -> None:
    rng = np.random.default_rng(4)
    sizes = []
    for _ in range(200):
        X = rng.normal(size=(5, 5))
        head = rng.normal(size=5)
        sizes.append(
            np.linalg.norm(fit_head(X, X @ head + 0.1 * rng.normal(size=5), np.eye(5))[:5]) / np.linalg.norm(head)
        )
    assert max(sizes) < 20
