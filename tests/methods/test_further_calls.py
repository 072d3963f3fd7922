"""One certificate for several calls states what is true of all of them."""

from __future__ import annotations

from tacitly.methods.further_calls import added_up
from tacitly.privacy.certificate import Certificate
from tacitly.privacy.guarantee import Budget, GaussianEvent, Sensitivity
from tacitly.privacy.release import Release


def certificate(account: str, epsilon: float) -> Certificate:
    event = GaussianEvent(sigma=10.0, sensitivity=Sensitivity.of_clip(1.0))
    release = Release(
        run="run",
        index=1,
        name="sum",
        event=event,
        noise="exact",
        grid=2.0**-40,
        coordinates=1,
        state="published",
        attempts=1,
    )
    return Certificate(
        algorithm="FedPower",
        mode="certified",
        budget=Budget(epsilon=0.5, delta=1e-6),
        releases=(release,),
        n_users=300,
        trust="central",
        account={"id": account, "epsilon": epsilon},
    )


def test_accounts_and_numbers_of_users_are_those_of_all_calls() -> None:
    one, same, other = certificate("a", 0.5), certificate("a", 0.7), certificate("b", 0.5)
    assert added_up(one, same, 600).account == same.account
    assert added_up(one, other, 600).account is None
    assert ["n = 600" in line for line in added_up(one, same, 600).public] == [True]
