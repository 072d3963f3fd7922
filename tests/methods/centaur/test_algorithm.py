"""Linear CENTAUR: starts, boosting, participation, the paper's settings."""

from __future__ import annotations

import math

import numpy as np
import pytest

import tacitly
from tacitly.arrays import Array
from tacitly.data.cohort import Cohort
from tacitly.datasets import make_shared_subspace
from tacitly.federation.local import LocalFederation
from tacitly.linalg import orthonormal
from tacitly.methods.centaur.algorithm import Settings, agreed, learn
from tacitly.methods.fedrep import algorithm as fedrep
from tacitly.methods.shared.descent import Descent
from tacitly.methods.shared.whitening import Whitening
from tacitly.privacy.guarantee import Budget
from tacitly.privacy.ledger import Ledger

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
    """Lemma F.3 by simulation: one copy is good with probability 0.7; of nine, the agreed one in 19 of 20 cases."""
    rng, truth = np.random.default_rng(0), np.eye(20)[:, :2]
    good = 0
    for _ in range(300):
        noise = [0.002 if rng.uniform() < 0.7 else 100.0 for _ in range(9)]
        candidates = [orthonormal(truth + scale * rng.normal(size=(20, 2)))[0] for scale in noise]
        good += tacitly.subspace_distance(candidates[agreed(candidates)], truth) <= 0.2
    assert good >= 285  # a single copy: 210


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


@pytest.mark.parametrize(("trust", "factor"), [("central", 1.0), ("local", math.sqrt(300))])
@pytest.mark.parametrize("start", ["votes", "power"])
def test_the_server_uses_the_noise_of_the_sum_whoever_adds_it(
    start: str, trust: str, factor: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where every user adds noise to its own message, the noise of the sum is √n times the event's σ."""
    users = make_shared_subspace(300, 6, 2, 8, random_state=0)
    cohort = Cohort.from_arrays(users.X, users.y, users.users)
    federation = LocalFederation(cohort, Ledger().run("test", config={}), trust=trust)
    settings = Settings(base=fedrep.Settings(rounds=3), start=start, power_steps=2)
    plan = settings.plan(Budget(epsilon=1e4, delta=1e-6), 6, 2)
    whitened, advanced = [], []
    from_moment, advance = Whitening.from_moment, Descent.advance

    def record_whitening(packed: Array, sigma: float, n_features: int) -> Whitening:
        whitened.append(sigma)
        return from_moment(packed, sigma, n_features)

    def record_step(
        state: Descent, step: Array, second: Array, sigma: float, n_users: float, *, damping: float
    ) -> None:
        advanced.append(sigma)
        advance(state, step, second, sigma, n_users, damping=damping)

    monkeypatch.setattr(Whitening, "from_moment", record_whitening)
    monkeypatch.setattr(Descent, "advance", record_step)
    learn(federation, plan, settings, 2, np.random.default_rng(0), centered=False)
    assert whitened == [pytest.approx(factor * plan.event("whitening", clip=1.0, acute=True).sigma)]
    assert advanced == [pytest.approx(factor * plan.event("rounds", clip=1.0).sigma)] * 3


@pytest.mark.parametrize("settings", [{"copies": 3}, {"power_steps": 2}, {"start": "power"}])
def test_paper_mode_refuses_what_it_would_ignore(settings: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="would be ignored"):
        tacitly.Centaur(rank=1, epsilon=1.0, mode="paper", **settings).fit(np.eye(4), np.ones(4), np.arange(4))  # type: ignore[arg-type]
