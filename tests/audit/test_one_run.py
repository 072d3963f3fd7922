"""Many canaries in one run."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

from tacitly import neural
from tacitly.arrays import Array
from tacitly.audit.attack import Attacker
from tacitly.audit.one_run import _added, _one_run
from tacitly.audit.recording import Entry
from tacitly.audit.worlds import Worlds
from tacitly.data.cohort import Cohort
from tacitly.neural.centaur import audit_network
from tacitly.privacy.accounting import mu_of


def test_canaries_of_a_wide_network_are_nearly_as_loud_as_the_claim_allows() -> None:
    """With more inputs than canaries. Mean of twelve: two whose rows switch all units off contribute nothing."""
    model = neural.Centaur(epsilon=1.0, **audit_network(60))
    *_, delta, power = _one_run(model, 12, 60, np.random.default_rng(0), 1.0)
    assert 0.8 * mu_of(1.0, delta) < power < 1.0001 * mu_of(1.0, delta)


def test_the_attacker_knows_what_a_canary_adds_that_starts_from_its_own_warm_head() -> None:
    """Rounds are replayed in order on the same rows, so the attacker's canaries keep heads as those of the run do."""
    warm = {"warm_heads": True, "head_steps": 5, "local_steps": 2, "local_momentum": 0.9}
    model = neural.Centaur(epsilon=1e5, noise="float", **audit_network(20, **warm))
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(6, 8, 20)), rng.integers(2, size=(6, 8)).astype(float)
    names = tuple(f"x{j}" for j in range(20))
    cohort = Cohort(X.reshape(-1, 20), y.ravel(), np.arange(7) * 8, np.arange(6), names, "y")
    attacker = Attacker(model, Worlds(cohort, cohort))
    first, second = attacker.run(cohort)[1]

    def missed(replayed: list[Entry], rows: Array, targets: Array) -> float:
        added = [_added(entry, rows, targets).sum(axis=0) for entry in replayed][-1]
        return float(np.abs(added - second.value.ravel()).max())

    known, cold = missed([first, second], X, y), missed([second], X.copy(), y.copy())
    assert known < 0.01 < 0.05 < cold
