"""Linear CENTAUR: starts, boosting, participation, the paper's settings."""

from __future__ import annotations

import numpy as np
import pytest

import tacitly
from tacitly.datasets import make_shared_subspace
from tacitly.linalg import orthonormal
from tacitly.methods.centaur.algorithm import Settings, agreed
from tacitly.privacy.guarantee import Budget

DATA = make_shared_subspace(1500, 12, 2, 10, 0.01, random_state=0)


def fitted(**settings: object) -> tacitly.Centaur:
    return tacitly.Centaur(rank=2, epsilon=4.0, **settings).fit(DATA.X, DATA.y, DATA.users)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "settings",
    [{}, {"start": "power", "random_state": 0}, {"start": "power", "copies": 2, "random_state": 0}],
    ids=["votes", "power", "copies"],
)
def test_every_start_finds_the_subspace_within_the_budget(settings: dict[str, object]) -> None:
    model = fitted(**settings)
    assert tacitly.subspace_distance(model.basis_, DATA.basis) < 0.1
    assert model.certificate_.certified
    assert 3.99 < model.certificate_.epsilon <= 4.0


def test_users_by_coin_are_accounted_by_privacy_loss_distributions() -> None:
    model = fitted(sampling_rate=0.5, rounds=1)
    assert {release.event.sampling_rate for release in model.certificate_.releases} == {0.5}
    assert model.certificate_.epsilon <= 4.0
    assert tacitly.subspace_distance(model.basis_, DATA.basis) < 0.2


def test_paper_mode_is_not_certified_and_says_why() -> None:
    with pytest.warns(tacitly.UncertifiedWarning, match="F2"):
        model = fitted(mode="paper", random_state=0)
    assert not model.certificate_.certified
    assert model.certificate_.nominal_epsilon == 4.0


def test_the_start_is_chosen_from_public_numbers() -> None:
    assert Settings().chosen_start(50, 2) == "votes"
    assert Settings().chosen_start(5000, 2) == "power"
    plan = Settings(start="power", copies=2, power_steps=3).plan(Budget(epsilon=1.0, delta=1e-6), 50, 2)
    assert [phase.releases for phase in plan.phases] == [1, 6, 16]


def test_choosing_among_copies_boosts_the_chance_of_success() -> None:
    """Lemma F.3 by simulation: a copy is good with chance 0.7; of nine, the agreed one in 19 of 20 cases."""
    rng, truth = np.random.default_rng(0), np.eye(20)[:, :2]
    good = 0
    for _ in range(300):
        noise = [0.002 if rng.uniform() < 0.7 else 100.0 for _ in range(9)]
        candidates = [orthonormal(truth + scale * rng.normal(size=(20, 2)))[0] for scale in noise]
        good += tacitly.subspace_distance(candidates[agreed(candidates)], truth) <= 0.2
    assert good >= 285  # one copy alone: 210


def test_without_agreement_the_most_agreeable_copy_is_taken() -> None:
    rng, truth = np.random.default_rng(0), np.eye(20)[:, :1]
    near = [orthonormal(truth + 0.05 * rng.normal(size=(20, 1)))[0] for _ in range(3)]
    far = [orthonormal(rng.normal(size=(20, 1)))[0] for _ in range(2)]
    assert agreed([*far, *near]) >= 2


def test_a_resumable_power_start_needs_a_public_seed() -> None:
    with (
        tacitly.Ledger(ceiling=Budget(epsilon=4.0, delta=1e-6)) as ledger,
        pytest.raises(ValueError, match="random_state"),
    ):
        fitted(start="power", ledger=ledger)


@pytest.mark.parametrize("start", ["auto", "votes", "power"])
@pytest.mark.parametrize("n_features", [50, 3000])
def test_what_is_planned_is_what_is_released_whatever_the_start(start: str, n_features: int) -> None:
    settings = Settings(start=start, power_steps=1)
    plan = settings.plan(Budget(epsilon=1.0, delta=1e-6), n_features, 2)
    power = settings.chosen_start(n_features, 2) == "power"
    assert settings.events(plan, n_features, 2)[1] == plan.event("start", clip=1.0, acute=not power)
