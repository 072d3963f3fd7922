"""AMHT-LRS's Algorithm 2: thresholds as printed, against values computed by hand."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest

import tacitly
from tacitly.datasets import make_low_rank_sparse
from tacitly.methods.low_rank_sparse.as_printed import ClippedGram, Clips
from tacitly.methods.low_rank_sparse.thresholds import Errors, Thresholds, follow, optimize_sparse_vector

PLAIN = Thresholds(distance=1.0, spread=4.0)


@pytest.mark.parametrize(("steps", "second"), [(1, 0.0), (2, 0.0), (3, 1.0), (4, 1.5)])
def test_the_threshold_falls_as_computed_by_hand(steps: int, second: float) -> None:
    """XᵀX/m = diag(1, ½) and b⋆ = (4, 2): a step moves the second entry of b half of the way.

    α = 0.1, β = 0.4, c₁ = ¼, k = 1: γ = 8, 4.4, 2.6, 1.7 and Δ = 2.2, 1.3, 0.85, 0.625; steps find 1, 1, 1 and 1.5.
    """
    X = np.diag([math.sqrt(2.0), 1.0])
    v = np.array([1.0, 0.0])
    y = X @ (v + np.array([4.0, 2.0]))
    found = optimize_sparse_vector(X, y, v, np.zeros(2), Errors(0.1, 0.4, 8.0, steps), 0.25, 1)
    np.testing.assert_allclose(found, [4.0, second], atol=1e-12)


def test_an_entry_that_equals_the_threshold_is_dropped() -> None:
    """HT keeps entries above Δ only; here Δ = 0.5 + 0.25·(1 + 1) = 1."""
    found = optimize_sparse_vector(
        np.eye(1), np.array([1.0]), np.zeros(1), np.zeros(1), Errors(0.5, 1.0, 1.0, 1), 0.25, 1
    )
    assert found == 0.0


def test_bounds_of_algorithm_1_and_5_are_those_printed() -> None:
    """k = 4, B = 2, γ⁰ = 4, ϵ = 0.1, A = 0.01: T¹ = ⌈log 40⌉, γ² = c₃⁰ϵB + A, T² = ⌈2 log 2.1⌉."""
    constants = Thresholds(distance=2.0, spread=4.0, accuracy=0.1, noise=0.01, c3=0.5, c4=0.5, c5=0.25)
    first, second, third = constants.rounds(4, 3, shared_weight=False)
    assert first == Errors(1.01, 2.01, 4.01, 4)
    assert (second.alpha, second.beta, second.steps) == (0.51, 0.51, 2)
    assert second.gamma == pytest.approx(0.2 + 0.01 + 0.01)
    assert third.gamma == pytest.approx(0.5 * 0.2 + 0.01 + 0.01)
    assert third.steps == math.ceil(3 * math.log((0.1 + 0.01) / 0.1))


def test_bounds_of_algorithm_3_follow_from_each_other() -> None:
    """k = 4: γ¹ = 0.4·4 + 2(1 + 0.2·1/2) = 3.8, β¹ = 0.05·3.8 (α here), τ¹ = 0.1·2·3.8 (β here)."""
    first, second = PLAIN.rounds(4, 2, shared_weight=True)
    assert first == Errors(1.0, 1.0, 4.0, 1)
    assert (second.alpha, second.beta, second.gamma) == pytest.approx((0.19, 0.76, 3.8))


def test_a_round_takes_a_step_where_the_printed_number_is_negative() -> None:
    assert [errors.steps for errors in PLAIN.rounds(4, 3, shared_weight=False)] == [6, 1, 1]


def test_coordinates_are_found_on_the_true_basis() -> None:
    data = make_low_rank_sparse(1, 10, 1, 200, 2, random_state=3, shared_weight=True)
    bases = np.broadcast_to(data.basis, (40, 10, 1))
    _, found = follow(data.X, data.y, bases, 2, PLAIN, shared_weight=True)
    assert set(np.flatnonzero(found)) == set(data.sparse_indices[0])
    np.testing.assert_allclose(found[data.sparse_indices[0]], data.sparse_values[0], atol=1e-6)


@pytest.mark.parametrize(
    ("rank", "shared", "thresholds", "error"),
    [(1, True, {"distance": 1.0, "spread": 4.0}, 1e-3), (2, False, {"distance": 2.0, "spread": 4.0}, 0.02)],
)
def test_paper_mode_without_noise_finds_the_basis(rank: int, shared: bool, thresholds: dict, error: float) -> None:
    data = make_low_rank_sparse(300, 10, rank, 100, 2, random_state=0, shared_weight=shared)
    model = tacitly.LowRankSparse(
        rank, 2, math.inf, mode="paper", shared_weight=shared, clips=(50, 50, 50, 5, 100), thresholds=thresholds
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tacitly.UncertifiedWarning)
        model.fit(data.X, data.y, data.users)
    assert tacitly.subspace_distance(model.basis_, data.basis) < error
    right = [set(a) == set(b) for a, b in zip(model.sparse_indices_, data.sparse_indices, strict=True)]
    assert np.mean(right) > 0.8
    mine = data.users == 5
    head = model.personalize(data.X[mine], data.y[mine])
    np.testing.assert_allclose(head.predict(data.X[mine]), model.predict(data.X[mine], data.users[mine]))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"thresholds": {"d": 1.0}}, "unknown names"),
        ({"thresholds": {"c1": 0.6}}, "c1 must be at most 1/2"),
        ({"thresholds": {"c4": 1.5}}, "c4 must be at most 1"),
        ({"thresholds": {"spread": -1.0}}, "spread must be"),
        ({"thresholds": {"noise": math.nan}}, "noise must be"),
        ({"sparsity": "auto"}, "number of personal coordinates"),
        ({"mode": "auto", "clips": None, "thresholds": {"c1": 0.1}}, "for mode='paper' only"),
    ],
)
def test_constants_that_cannot_be_are_refused_before_anything_is_released(options: dict, said: str) -> None:
    data = make_low_rank_sparse(20, 5, 1, 10, 1, random_state=0)
    words = {"rank": 1, "sparsity": 1, "epsilon": 1.0, "mode": "paper", "clips": (5, 5, 5, 2, 8), **options}
    ledger = tacitly.Ledger()
    with pytest.raises(ValueError, match=said):
        tacitly.LowRankSparse(**words, ledger=ledger).fit(data.X, data.y, data.users)
    assert not ledger.releases()


def test_a_message_cannot_ask_for_endless_work() -> None:
    clips = Clips(rows=1.0, targets=1.0, sparse_part=1.0, weights=1.0, count=5)
    with pytest.raises(ValueError, match="steps must lie between"):
        ClippedGram(np.zeros((9, 3, 1)), 1, clips, Thresholds(distance=1e308, spread=1e308, accuracy=1e-300, c3=1.0))
    with pytest.raises(ValueError, match="rounds must lie between"):
        ClippedGram(np.zeros((2000, 3, 1)), 1, clips, PLAIN)
    with pytest.raises(ValueError, match="steps must lie between"):
        ClippedGram(np.zeros((900, 3, 1)), 1, clips, Thresholds(distance=1e9, spread=1.0, c3=1.0))
