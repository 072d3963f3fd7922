"""ε agrees with the closed form, with PLD and with published values, under each adjacency."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import simpson
from scipy.special import erfcx, log_ndtr

from tacitly.privacy.accounting import (
    AccountingError,
    _pld_epsilon,
    _profile,
    compose,
    delta_of,
    epsilon_of,
    log_normal,
    mu_of,
    total_mu,
)
from tacitly.privacy.calibration import Phase, Plan
from tacitly.privacy.guarantee import Adjacency, Budget, GaussianEvent, Sensitivity, Unit


def event(sigma: float, *, acute: bool = False, rate: float = 1.0) -> GaussianEvent:
    return GaussianEvent(sigma=sigma, sensitivity=Sensitivity.of_clip(1.0, acute=acute), sampling_rate=rate)


@pytest.mark.parametrize(
    ("epsilon", "delta", "mu"),
    [(0.25, 1e-5, 0.0753), (1, 1e-5, 0.2681), (8, 1e-5, 1.666), (1, 1e-6, 0.2367), (4, 1e-6, 0.8379)],
)
def test_mu_matches_the_published_values(epsilon: float, delta: float, mu: float) -> None:
    assert mu_of(epsilon, delta) == pytest.approx(mu, rel=1e-3)


@given(st.floats(0.01, 30), st.floats(-12, -2))
@settings(max_examples=60, deadline=None)
def test_epsilon_and_mu_are_inverse_and_err_on_the_private_side(epsilon: float, log_delta: float) -> None:
    delta = 10.0**log_delta
    mu = mu_of(epsilon, delta)
    assert delta_of(mu, epsilon) <= delta
    assert epsilon_of(mu, delta) == pytest.approx(epsilon, rel=1e-6)


@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_the_closed_form_agrees_with_privacy_loss_distributions(adjacency: Adjacency) -> None:
    events = [event(8.34), *[event(18.65)] * 20, event(12.0, acute=True)]
    assert _pld_epsilon(events, adjacency, 1e-5) == pytest.approx(compose(events, adjacency, 1e-5), rel=0.02)


def test_replace_one_doubles_the_sensitivity_and_acute_contributions_pay_root_two() -> None:
    assert total_mu([event(1.0)], Adjacency.REPLACE_ONE) == 2.0
    assert total_mu([event(1.0, acute=True)], Adjacency.REPLACE_ONE) == pytest.approx(math.sqrt(2.0))
    assert total_mu([event(1.0)], Adjacency.ZERO_OUT) == 1.0


@pytest.mark.parametrize(("adjacency", "expected"), [("zero-out", 2.337), ("replace-one", 4.368)])
def test_poisson_sampling_matches_the_published_values(adjacency: str, expected: float) -> None:
    events = [event(2.0, rate=0.1)] * 100
    assert compose(events, Adjacency(adjacency), 1e-5) == pytest.approx(expected, rel=2e-3)


def test_sampled_acute_contributions_get_no_discount_under_replace_one() -> None:
    plain, acute = [event(2.0, rate=0.1)] * 10, [event(2.0, acute=True, rate=0.1)] * 10
    one = Adjacency.REPLACE_ONE
    assert compose(acute, one, 1e-5) == pytest.approx(compose(plain, one, 1e-5))


def test_a_release_without_noise_costs_everything() -> None:
    assert compose([event(5.0), event(0.0)], Adjacency.ZERO_OUT, 1e-5) == math.inf


def test_units_do_not_mix() -> None:
    other = GaussianEvent(sigma=1.0, sensitivity=Sensitivity.of_clip(1.0, unit=Unit.ROW))
    with pytest.raises(AccountingError, match="the same unit"):
        compose([event(1.0), other], Adjacency.ZERO_OUT, 1e-5)


@given(
    st.lists(st.tuples(st.floats(0.05, 1), st.integers(1, 30), st.booleans()), min_size=1, max_size=4),
    st.floats(0.05, 20),
    st.sampled_from(list(Adjacency)),
)
@settings(max_examples=60, deadline=None)
def test_a_plan_spends_its_budget_exactly_and_never_more(
    parts: list[tuple[float, int, bool]], epsilon: float, adjacency: Adjacency
) -> None:
    total = sum(share for share, _, _ in parts)
    phases = [
        Phase(name=str(i), share=share / total * (1 - 1e-15), releases=releases)
        for i, (share, releases, _) in enumerate(parts)
    ]
    plan = Plan(Budget(epsilon=epsilon, delta=1e-6, adjacency=adjacency), phases)
    events = [
        plan.event(str(i), clip=2.5, acute=acute) for i, (_, count, acute) in enumerate(parts) for _ in range(count)
    ]
    spent = compose(events, adjacency, 1e-6)
    assert spent <= epsilon * (1 + 1e-12)
    assert spent == pytest.approx(epsilon, rel=1e-7)


def test_infinite_epsilon_plans_no_noise() -> None:
    plan = Plan(Budget(epsilon=math.inf, delta=1e-6), [Phase(name="all", share=1.0)])
    assert plan.event("all", clip=1.0).sigma == 0.0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Budget(epsilon=-1.0, delta=1e-6), "epsilon must be positive"),
        (lambda: Budget(epsilon=1.0, delta=-0.1), "delta must lie strictly"),
        (lambda: Budget(epsilon=1.0, delta=1e-6, adjacency="other"), "other"),
        (lambda: Sensitivity(zero_out=1.0, replace_one=3.0), "between zero_out and twice"),
        (lambda: Sensitivity.of_clip(float("nan")), "must be positive and finite"),
        (lambda: GaussianEvent(sigma=-1.0, sensitivity=Sensitivity.of_clip(1.0)), "sigma must be"),
        (lambda: Phase(name="a", share=0.0), "share of phase 'a'"),
        (lambda: Plan(Budget(epsilon=1, delta=1e-6), [Phase(name="a", share=1), Phase(name="b", share=0.1)]), "add up"),
    ],
)
def test_meaningless_values_are_refused_with_what_was_found(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()  # type: ignore[operator]


@pytest.mark.parametrize("rate", [0.5, 0.1])
def test_a_sampled_phase_that_rules_acute_contributions_out_spends_what_was_asked(rate: float) -> None:
    """When it was planned for acute contributions, which cost more, only 1.37 of 2 were spent under replace-one."""
    budget = Budget(epsilon=2.0, delta=1e-6, adjacency=Adjacency.REPLACE_ONE)
    plan = Plan(budget, [Phase(name="rounds", share=1.0, releases=3, acute=False)], sampling_rate=rate)
    spent = compose([plan.event("rounds", clip=1.0)] * 3, Adjacency.REPLACE_ONE, 1e-6)
    assert 1.98 < spent <= 2.0
    with pytest.raises(ValueError, match="without acute contributions"):
        plan.event("rounds", clip=1.0, acute=True)


def test_the_logarithm_of_the_normal_law_agrees_with_scipy() -> None:
    x = np.concatenate([np.linspace(-60.0, 30.0, 2001), -np.logspace(-8, 8, 200), [-np.inf]])
    found = np.array([log_normal(float(value)) for value in x])
    np.testing.assert_allclose(found, log_ndtr(x), rtol=2e-13)


@pytest.mark.parametrize("mu", [0.01, 0.3, 4.0])
def test_one_question_and_many_have_the_same_answer(mu: float) -> None:
    points = np.linspace(-3.0, 12.0, 61)
    one_by_one = [delta_of(mu, float(point)) for point in points]
    np.testing.assert_allclose(one_by_one, _profile(mu, points), rtol=1e-9, atol=1e-30)


@pytest.mark.parametrize("mu", [1e-12, 1e-9, 1e-6, 0.0099])
def test_the_profile_of_very_small_releases_is_not_lost_to_cancellation(mu: float) -> None:
    """At μ = 3·10⁻¹² and δ = 10⁻³⁰⁰ the difference of two logarithms gave three quarters of ε."""
    x = np.concatenate([np.linspace(0.0, 8.0, 33), np.linspace(9.0, 37.0, 29)])
    for point, next_point in itertools.pairwise(x):
        # δ(ε) = μ∫φ(u)M(u + μ)du from ε/μ − μ/2 on, and no term of that is negative.
        nodes = np.linspace(point - mu / 2, next_point - mu / 2, 1601)
        part = np.exp(-0.5 * nodes**2) * erfcx((nodes + mu) / math.sqrt(2.0)) / 2.0
        expected = mu * float(simpson(part, x=nodes))
        found = delta_of(mu, mu * point) - delta_of(mu, mu * next_point)
        assert found == pytest.approx(expected, rel=1e-6, abs=0.0)
    assert delta_of(mu, mu * 37.0) > 0.0
    assert delta_of(mu, -mu) == pytest.approx(delta_of(mu, mu) * math.exp(-mu) - math.expm1(-mu), rel=1e-13, abs=0.0)
