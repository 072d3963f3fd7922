"""Each theorem against a value computed by hand: arguments are chosen so that roots and logarithms come out."""

from __future__ import annotations

import inspect
import math
from types import ModuleType

import pytest

import tacitly
from tacitly.theory import centaur, fedpower, low_rank_sparse, private_fedrep, sample_sizes, trace_regression

E = math.e
SIZE2, SIZE5 = 3.75 / E**4, 1.25 / E**4  # δ for which the root of the logarithm is 2
MODULES = (centaur, fedpower, low_rank_sparse, private_fedrep, trace_regression)


@pytest.mark.parametrize(
    ("found", "by_hand"),
    [
        (centaur.step_size(largest=3.0), 1 / 36),
        (centaur.start_is_accepted(0.28, 1.0), True),  # 0 + 1 − 0.96 + 0.28 < 1 − 0.1568
        (centaur.start_is_accepted(0.28, 0.6), False),  # 0.8 more
        (fedpower.holds(0.25, d=16, width=9, k=5), True),  # (3 − 2)/4
        (fedpower.holds(0.26, d=16, width=9, k=5), False),
        (centaur.clip_norm(E, 4, 1), 2.0),
        (centaur.clip_norm(E, 2, 2, smallest=3.0, incoherence=2.0), 4 * 2 * 9 * 2.0),
        (centaur.utility(E, 4, 1, 3.0), 0.25 * 3 * 2 * 2 / E),
        (centaur.utility(E, 4, 1, 3.0, largest=5.0), 0.25 * 3 * 2 * 2 / E),  # κ cancels
        (centaur.noise_limit(E, 2, 4), E / (8 * 2)),
        (centaur.noise_limit(E, 2, 4, condition=2.0, printed=True), 16 * E / (2 * 2)),
        (centaur.printed_epsilon(4.0, 9, math.exp(-4)), 2 * 3 * 2 / 4),
        (centaur.rdp(2.0, 8, 3.0), 2 * 3 * 8 / 4),
        (centaur.tradeoff(100, 10, 4, condition=2.0), 2 * 8 * 10 / 100),
        (centaur.least_epsilon(100, 10, 4, condition=2.0), 10 * 2 / (8 * 100)),
        (centaur.start_rows(3, 2, spectrum=(2.0, 1.0)), 3 * math.log(3) ** 6 * 8 * 5),
        (fedpower.noise_scale(2.0, 1.25e-3, 100, 1), math.sqrt(2 * math.log(1000)) / 200),
        (fedpower.noise_scale(1.0, 1.25e-3, 1, 4, likeliest=0.25), 4 * math.sqrt(2 * math.log(1000))),
        (fedpower.residual_unaligned(0.01, 1, condition=2.0, k=2), 4 * 2 * 2 * 0.01),
        (
            fedpower.residual_aligned(0.01, 1, condition=2.0, largest=1e9, gap=1.0),
            math.sqrt(2) * 2 * 2 * 0.01 / 0.99,
        ),
        (fedpower.residual_aligned(0.01, 4, condition=5.0, largest=3.0, gap=2.0), math.sqrt(2) * 0.015),
        (private_fedrep.gradient_norm(E, 2, 2, head=2.0, noise=1.0), 82 * 3 * 2 * 2),
        (private_fedrep.noise_scale(100, 2.0, 4, 1.0, 1.25e-4), 4 * 2 * 2 * math.sqrt(math.log(1e4)) / 100),
        (sum(private_fedrep.margin_risk(100, 25, 3, 1.0, 0.5)), 4 * 3 / 100 + 2 / 5),
        (private_fedrep.log_cover_size(3, 4, 2.0), 0.0),
        (low_rank_sparse.sampling_error(4, 25, 4, 1, 1), 0.2 + 0.2 + 0.2),
        (low_rank_sparse.noise_multiplier(1.0, math.exp(-3)), 4.0),
        (low_rank_sparse.noise_multiplier(1.0, math.exp(-3), in_proof=True), 2.0),
        (low_rank_sparse.users_needed(4, 1, 1.0, math.exp(-8)), 8 * 3.0),
        (trace_regression.score_attack_lower_bound(100, 5, 2, 2, 0.5, noise=2.0), 4 * (0.1 + 0.04)),
        (trace_regression.minimax_lower_bound(100, 4, 4, 4, 1.0, noise=2.0), 2 * (2 * 0.2 + 4 * 0.04)),
        (trace_regression.minimax_lower_bound(100, 4, 4, 4, 1.0, noise=2.0, signal=0.1), 2 * 0.1),
    ],
)
def test_a_formula_by_hand(found: float, by_hand: float) -> None:
    assert found == pytest.approx(by_hand, rel=1e-12)


@pytest.mark.parametrize(
    ("found", "by_hand"),
    [
        (private_fedrep.distance(100, 25, 4, 4, 2.0, noise=0.0), (0.0, 4 * 2 / 200, math.sqrt(4 / 2500))),
        (private_fedrep.excess_risk(10, 5, 4, 2, 1.0, noise=0.0), (16 * 2 / 100, 4 / 50, 0.0)),
        (private_fedrep.excess_risk(10, 5, 4, 2, 1.0, new_rows=8), (2 * 0.32, 2 * 0.08, 2 / 8)),
        (private_fedrep.jain_excess_risk(10, 5, 4, 2, 1.0), (64 * 4 / 100, 4 / 50, 2 / 5)),
        (private_fedrep.start_distance(10, 5, 4, 2.0, noise=0.0), (8 / 20, math.sqrt(4 / 50))),
        (low_rank_sparse.errors(4, 25, 4, 1, 1, noise=2.0), (1.2, 1.2, 4 * (0.36 + 0.08))),
        (low_rank_sparse.rows_needed(3, 1, 2, noise=2.0, largest=2.0), (2 + 4 + 4, 3 * (2 + 4 + 8))),
        (low_rank_sparse.sensitivities(10, 2.0, 3.0, 1.0, 0.5), (10 * 4 * 0.25, 10 * 2 * 4 * 0.5)),
        (low_rank_sparse.private_risk(10, 1e30, 2, 1, 1, 1.0, math.exp(-3)), (2 / 10 / 1e30, 2 * 4 / 100 * (4 + 4))),
        (low_rank_sparse.central_model_rows(3, 4, 5), (4, 6, 60)),
        (
            trace_regression.start_sample_sizes(4, 4, 1, 1.0, SIZE2, n=E, largest=2.0),
            (9 * 4 * math.log(8), 36 * 4 * math.log(8), 3 * (2 * 2 + 1) * 2),
        ),
        (trace_regression.start_sample_sizes(4, 4, 1, 1.0, SIZE2, n=E, weak=True)[2:], ((2 + 1) * 2,)),
        (
            trace_regression.loop_sample_sizes(4, 4, 2, 1.0, SIZE5, n=E, length=0.5, noise=2.0),
            (16, 16 * math.log(8), 0.5 * 3 * 16 * 2),
        ),
        (trace_regression.loop_sample_sizes(4, 4, 2, 1.0, SIZE5, n=E, length=0.5, weak=True)[2:], (0.5 * 16 * 2,)),
        (
            trace_regression.loop_rate(E, 4, 4, 2, 1.0, SIZE5, noise=2.0),
            (2 * math.sqrt(16 / E * math.log(8)), 3 * 16 / E * 2),
        ),
        (trace_regression.loop_rate(E, 4, 4, 2, 1.0, SIZE5, noise=2.0, weak=True)[1:], (2 * 16 / E * 2,)),
        (trace_regression.paper_sensitivities(E, 2, 2, 1, largest=2.0, smallest=0.5), (6 / E, 3 / E, 2.25 / E)),
        (centaur.start_settings(E, 4, 1), (4, 12, E / (4 * math.sqrt(4 * math.log(12))))),
    ],
)
def test_terms_by_hand(found: tuple[float, ...], by_hand: tuple[float, ...]) -> None:
    # S² of the private risk has cross terms of order 1e-30.
    assert found == pytest.approx(by_hand, rel=1e-9, abs=1e-25)


def test_weak_privacy_of_the_start_costs_less_by_the_matrix_alone() -> None:
    # Theorem 1: √2·(3e + 3p); Theorem 6: √2·(3e + p), for r = 1, σ₁ = 2, σ_r = 1, noise 1.
    known = {"n": E, "d1": 2, "d2": 2, "rank": 1, "epsilon": 1.0, "delta": SIZE2, "largest": 2.0}
    e, p = 2 * math.sqrt(2 * math.log(4) / E), (2 * math.sqrt(2) + 1) / E * 2
    assert trace_regression.start_rate(**known) == pytest.approx(math.sqrt(2) * (3 * e + 3 * p))
    assert trace_regression.start_rate(**known, weak=True) == pytest.approx(math.sqrt(2) * (3 * e + p))


def test_fedpowers_terms_by_hand() -> None:
    known = {"d": 4, "width": 9, "noise": 0.1, "rounds": 1, "spread": 0.1, "residual": 0.5, "largest": 2.0}
    halves = [0.5, 0.5]
    assert fedpower.full_participation(3.0, 1.0, shares=halves, **known) == pytest.approx(
        (0.1 * math.sqrt(0.5) * 3 * 2 / 1.5, 2 * (0.1 + 2.1 * 0.5) / 1.5)
    )
    phi = 0.25 + 0.5 + 0.5
    assert fedpower.sampled_with_replacement(3.0, 1.0, shares=halves, participants=2, **known) == pytest.approx(
        (0.1 / math.sqrt(2) * 6 / 1.0, 2 * 1.15 / 1.0, 2 * phi * math.log(13))
    )
    # Shares 3/4 and 1/4, one device asked: ς = 3/4, ς̲ = 1/4, ζ = 9/16, m/K = 2; the gap is 2·2·(1/4 − 0).
    terms = fedpower.sampled_without_replacement(
        3.0, 1.0, shares=[0.75, 0.25], participants=1, **{**known, "residual": 0.0}
    )
    squares, uneven = 0.625, 1.5
    psi = (1 - squares) + squares + 2 * squares
    assert terms == pytest.approx(
        (uneven * 0.75 * 2 * 0.1 * 6, uneven * 1.5 * 2 * 0.1, uneven * 2 * psi * math.log(13), 0.75 * 2 * 2 * 0.5)
    )


@pytest.mark.parametrize(
    ("found", "by_hand"),
    [
        (fedpower.iterations(2.0, 1.0, 100, 100 / math.exp(4.9)), 10),
        (fedpower.iterations(2.0, 1.0, 100, 100 / math.exp(4.9), printed=True), 10),
        (fedpower.iterations(4.0, 3.0, 100, 100 / math.exp(4.9)), 20),
        (fedpower.iterations(4.0, 3.0, 100, 100 / math.exp(4.9), printed=True), 7),
        (fedpower.rows_per_device(0.5, rank=1, devices=1, failure=math.exp(-2)), 24),
        (private_fedrep.rounds(math.exp(2), largest=2.0), 24),
        (private_fedrep.projected_dimension(10, 10, 0.5, 100 * math.exp(-3)), 12),
        (centaur.start_copies(math.exp(-2), success=0.5), 8),
        (centaur.rounds(0.2 / math.exp(math.sqrt(0.96)), condition=1.0), 16),
        (low_rank_sparse.central_model_rounds(3 / math.exp(4), personal=1.0, entry=1.0, length=2.0, sparsity=4), 4),
    ],
)
def test_a_number_by_hand(found: int, by_hand: int) -> None:
    assert found == by_hand


def test_what_the_printed_noise_is_worth() -> None:
    # The exact values of the Gaussian profile at μ = 1 and √2/σ.
    assert centaur.true_epsilon(20.0, 100, 1e-5) == pytest.approx(4.38, abs=0.01)
    assert low_rank_sparse.true_epsilon(low_rank_sparse.noise_multiplier(1.0, 1e-5), 1e-5) == pytest.approx(
        0.725, abs=1e-3
    )
    sigma = private_fedrep.noise_scale(20_000, 10.0, 5, 1.0, 1e-6)
    assert private_fedrep.true_epsilon(20_000, 10.0, 5, sigma, 1e-6) == pytest.approx(0.540, abs=1e-3)


def test_theorems_are_not_evaluated_outside_their_conditions() -> None:
    with pytest.raises(ValueError, match="without a gap"):
        fedpower.iterations(1.0, 1.0, 10, 0.1)
    with pytest.raises(ValueError, match="Theorem 6 needs spread"):
        fedpower.residual_aligned(0.4, 4, condition=2.0, largest=1.0, gap=1.0)
    with pytest.raises(ValueError, match=r"1\.25·R·q/δ must exceed 1"):
        fedpower.noise_scale(1.0, 0.5, 100, 1, likeliest=0.01)
    with pytest.raises(ValueError, match="0 < epsilon < 1"):
        trace_regression.score_attack_lower_bound(100, 5, 2, 2, 2.0)
    with pytest.raises(ValueError, match="delta below 1/n"):
        trace_regression.score_attack_lower_bound(100, 5, 2, 2, 0.5, delta=0.1)


@pytest.mark.parametrize("method", sorted(sample_sizes._RATES))
def test_the_answer_is_the_least_number_of_users(method: str) -> None:
    known = {"epsilon": 1.0, "features": 20, "rank": 2, "rows": 1000}
    error = 0.2
    need = tacitly.theory.how_many(method, error=error, **known)
    assert sum(need.terms.values()) <= error
    rate, _ = sample_sizes._RATES[method]
    question = sample_sizes._Question(1.0, 1e-6, 20, 2, 1000, 1.0, 1.0, 1, 20, 1.0)
    assert sum(rate(need.users - 1, question).values()) > error
    assert need.decided_by in need.terms
    less_privacy = tacitly.theory.how_many(method, error=error, **{**known, "epsilon": 2.0})
    assert less_privacy.users <= need.users


def test_more_users_do_not_replace_rows() -> None:
    with pytest.raises(ValueError, match="no number of users is enough"):
        tacitly.theory.how_many("private_fedrep", error=0.1, epsilon=1.0, features=10, rank=2, rows=10)
    with pytest.raises(ValueError, match="method must be one of"):
        tacitly.theory.how_many("median", error=0.1, epsilon=1.0, features=10, rank=2)


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__.rpartition(".")[2])
def test_every_theorem_names_its_source_and_has_an_example(module: ModuleType) -> None:
    for name, function in inspect.getmembers(module, inspect.isfunction):
        if function.__module__ != module.__name__ or name.startswith("_"):
            continue
        text = inspect.getdoc(function) or ""
        assert ">>>" in text, name
        assert any(word in text for word in ("Theorem", "Lemma", "Corollary", "Algorithm", "exact")), name
