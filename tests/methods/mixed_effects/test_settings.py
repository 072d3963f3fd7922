"""How a budget is divided: public numbers decide, and few users are no reason to lose every text column."""

from __future__ import annotations

import pytest

from tacitly.methods.mixed_effects.algorithm import Settings
from tacitly.privacy.guarantee import Budget


def text_noise(n_users: int, columns: int) -> float:
    """Return the noise of a level's share; sixteen levels per text column."""
    texts = tuple(number + 1 for number in range(columns) for _ in range(16))
    plan = Settings(n_users, (*((0.0, 1.0),) * len(texts), None), texts).plan(Budget(epsilon=1.0, delta=1e-6))
    return plan.event("shares of text", clip=columns**0.5).sigma / n_users


@pytest.mark.parametrize(
    ("n_users", "columns", "least"), [(320, 4, 0.2), (500, 6, 0.2), (600, 1, 0.12), (5000, 3, 0.05)]
)
def test_frequent_levels_stand_out_of_the_noise(n_users: int, columns: int, least: float) -> None:
    assert 3.0 * text_noise(n_users, columns) < least


def test_shares_of_a_budget_add_up() -> None:
    plan = Settings(300, ((0.0, 1.0), (0.0, 1.0), None), (1, 1)).plan(Budget(epsilon=1.0, delta=1e-6))
    assert sum(phase.share for phase in plan.phases) == pytest.approx(1.0, abs=1e-9)
