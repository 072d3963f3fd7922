"""Bounds on ε, compared with naive oracles and with mechanisms whose ε is known."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import binom, norm

from tacitly.audit.bounds import (
    from_accuracy,
    from_counts,
    from_one_run,
    from_runs,
    mu_from_counts,
    rate_at_least,
    rate_at_most,
)
from tacitly.privacy.accounting import epsilon_of, mu_of


@pytest.mark.parametrize(("successes", "trials"), [(0, 7), (3, 7), (7, 7), (40, 100), (999, 1000)])
def test_rates_invert_the_binomial_tail(successes: int, trials: int) -> None:
    low, high = rate_at_least(successes, trials, 0.975), rate_at_most(successes, trials, 0.975)
    if successes:
        assert low == pytest.approx(brentq(lambda p: binom.sf(successes - 1, trials, p) - 0.025, 1e-12, 1 - 1e-12))
    if successes < trials:
        assert high == pytest.approx(brentq(lambda p: binom.cdf(successes, trials, p) - 0.025, 1e-12, 1 - 1e-12))
    assert 0 <= low <= successes / trials <= high <= 1


def test_counts_prove_what_their_intervals_say() -> None:
    low, high = rate_at_least(80, 100, 0.975), rate_at_most(10, 100, 0.975)
    assert from_counts(80, 10, 100, 1e-3) == pytest.approx(math.log((low - 1e-3) / high))
    assert from_counts(10, 80, 100, 1e-3) == 0.0
    assert from_counts(0, 0, 100, 1e-3) == 0.0


@pytest.mark.parametrize("gaussian", [False, True])
def test_a_bound_is_right_as_often_as_it_says(gaussian: bool) -> None:
    """200 audits of a mechanism whose ε is known: at 95 %, more than 28 overshoots have probability below 1e-6."""
    mu, delta = 1.0, 1e-3
    rng = np.random.default_rng(0)
    bounds = [
        from_runs(rng.normal(mu, 1, 2000), rng.normal(0, 1, 2000), delta, gaussian=gaussian).epsilon for _ in range(200)
    ]
    assert sum(bound > epsilon_of(mu, delta) for bound in bounds) <= 28
    assert np.median(bounds) > (0.75 if gaussian else 0.35) * epsilon_of(mu, delta)


@pytest.mark.parametrize(("power", "alarms"), [(0.5, 0.5), (0.6, 0.5), (0.9, 0.7), (0.1, 0.02), (1.0, 0.4)])
@pytest.mark.parametrize("confidence", [0.9, 0.999])
def test_guesses_of_unequal_chances_are_within_the_binomial_interval(
    power: float, alarms: float, confidence: float
) -> None:
    """Exactly, by adding up all outcomes of twenty runs in each world."""
    runs, share = 20, (power + 1 - alarms) / 2
    counts = np.arange(runs + 1)
    wrong = 0.0
    for seen, chance in enumerate(binom.pmf(counts, runs, power)):
        over = [rate_at_least(seen + runs - rare, 2 * runs, confidence) > share * (1 + 1e-12) for rare in counts]
        wrong += chance * float(binom.pmf(counts, runs, alarms) @ np.array(over))
    assert wrong <= 1 - confidence


def test_half_of_the_noise_is_proved_and_all_of_it_is_not() -> None:
    """At ε = 1 and 10,000 runs, at a confidence of 1 - 1e-9."""
    delta, rng = 1e-6, np.random.default_rng(5)
    mu = mu_of(1.0, delta)
    outside, inside = rng.normal(0, 1, 10_000), rng.normal(0, 1, 10_000)
    assert from_runs(inside + mu, outside, delta, confidence=1 - 1e-9, gaussian=True).epsilon <= 1.0
    assert from_runs(inside + 2 * mu, outside, delta, confidence=1 - 1e-9, gaussian=True).epsilon > 1.0
    assert from_runs(inside + mu, outside, delta, gaussian=True).epsilon > 0.6


def test_identical_worlds_prove_nothing() -> None:
    rng = np.random.default_rng(1)
    assert from_runs(rng.normal(size=(5000, 3)), rng.normal(size=(5000, 3)), 1e-5).epsilon < 0.5
    same = np.ones((100, 2))
    assert from_runs(same, same, 1e-5).epsilon == 0.0


def test_a_difference_in_scale_alone_is_found() -> None:
    rng = np.random.default_rng(2)
    wide, narrow = rng.normal(size=(4000, 50)) * 3, rng.normal(size=(4000, 50))
    energy = [np.sum(x**2, axis=1) for x in (wide, narrow)]
    bound = from_runs(*energy, 1e-5)
    assert bound.epsilon > 5
    assert bound.epsilon == pytest.approx(bound.ceiling, abs=1.0)


def test_a_worse_world_either_way_round_is_found() -> None:
    rng = np.random.default_rng(3)
    far, near = rng.normal(2, 1, 4000), rng.normal(0, 1, 4000)
    assert from_runs(far, near, 1e-5).epsilon == pytest.approx(from_runs(near, far, 1e-5).epsilon, abs=1.0)
    assert from_runs(near, far, 1e-5).epsilon > 2


def test_too_few_runs_are_refused() -> None:
    with pytest.raises(ValueError, match="at least four runs"):
        from_runs([1.0, 2.0], [1.0, 2.0], 1e-5)


def test_mu_from_perfect_separation_is_finite() -> None:
    assert 2 < mu_from_counts(100, 0, 100) < 10


def one_run_by_enumeration(right: int, guesses: int, epsilon: float) -> float:
    """Return P(at least ``right`` correct), each guess correct as often as ε allows, by summing over all outcomes."""
    chance = math.exp(epsilon) / (1 + math.exp(epsilon))
    total = 0.0
    for outcome in itertools.product((0, 1), repeat=guesses):
        if sum(outcome) >= right:
            total += math.prod(chance if hit else 1 - chance for hit in outcome)
    return total


@pytest.mark.parametrize(("right", "guesses"), [(10, 10), (9, 10), (12, 12)])
def test_one_run_without_delta_inverts_the_enumerated_tail(right: int, guesses: int) -> None:
    found = from_one_run(right, guesses, 100, 0.0).epsilon
    assert one_run_by_enumeration(right, guesses, found) == pytest.approx(0.05, rel=1e-6)


def test_one_run_pays_for_delta_and_for_luck() -> None:
    assert from_one_run(80, 100, 1000, 1e-5).epsilon < from_one_run(80, 100, 1000, 0.0).epsilon
    assert from_one_run(55, 100, 1000, 0.0).epsilon == 0.0
    with pytest.raises(ValueError, match="correct guesses"):
        from_one_run(5, 4, 10, 0.0)


def test_one_run_is_right_about_randomised_response() -> None:
    """ε = 1 exactly; 100 audits of 1,000 coins each; more than 18 overshoots have probability below 1e-6."""
    rng = np.random.default_rng(4)
    right = rng.binomial(1000, math.e / (1 + math.e), size=100)
    bounds = np.array([from_one_run(int(r), 1000, 1000, 0.0).epsilon for r in right])
    assert np.count_nonzero(bounds > 1) <= 18  # 5 expected
    assert np.median(bounds) > 0.8


def test_the_accuracy_of_many_guesses_is_right_about_a_gaussian() -> None:
    """μ = 0.2367 (ε = 1) exactly; 200 audits of 40 runs with 100 coins; more than 30 overshoots: below 1e-6."""
    rng = np.random.default_rng(5)
    right = rng.binomial(100, norm.cdf(0.2367 / 2), size=(200, 40)) / 100
    bounds = np.array([from_accuracy(fractions, 1e-6).epsilon for fractions in right])
    assert np.count_nonzero(bounds > epsilon_of(0.2367, 1e-6)) <= 30  # 10 expected
    assert np.median(bounds) > 0.6
    assert from_accuracy(np.full(10, 0.5), 1e-6).epsilon == 0.0
    with pytest.raises(ValueError, match="at least 8 runs"):
        from_accuracy([0.5] * 7, 1e-6)
