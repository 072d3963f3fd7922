"""Many canaries in one run."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

import tacitly
from tacitly import neural
from tacitly.audit.attack import Attacker
from tacitly.audit.one_run import _added, _cohort, _Kind, _one_run, _users
from tacitly.audit.recording import Entry
from tacitly.audit.worlds import Worlds
from tacitly.methods.mixed_effects.unit_queries import Magnitudes
from tacitly.neural.centaur import audit_network
from tacitly.privacy.accounting import mu_of


def test_canaries_of_a_wide_network_are_nearly_as_loud_as_the_claim_allows() -> None:
    """With more inputs than canaries. Mean of twelve: two whose rows switch all units off contribute nothing."""
    model = neural.Centaur(epsilon=1.0, **audit_network(60))
    *_, delta, power = _one_run(model, 12, 60, np.random.default_rng(0), _Kind(1.0))
    assert 0.8 * mu_of(1.0, delta) < power < 1.0001 * mu_of(1.0, delta)


def test_canaries_that_are_away_add_nothing_by_their_targets_either() -> None:
    """They did, and an attacker who took them for silent guessed wrongly."""
    users = _users(tacitly.PrivateFedRep(rank=1, epsilon=1.0), 5, 4, np.random.default_rng(0), _Kind())
    query = Magnitudes(np.ones(5), np.zeros(5), np.ones(5), 30.0)
    there, away = (
        query.contributions(np.asarray(group.X), np.asarray(group.y), group.offsets)
        for group in (_cohort(users.there), _cohort(users.away))
    )
    assert np.abs(there).max(axis=1).min() > 0.0
    assert not away.any()


def test_what_a_crowd_adds_is_known() -> None:
    """With so little noise every coin is read off, but only if the sums of the crowd are taken off first."""
    model = tacitly.FedPower(1, 1000.0, unit="user")
    run = _one_run(model, 8, 20, np.random.default_rng(0), _Kind(1e3, False, 40))
    np.testing.assert_array_equal(run.scores > 0, run.there)


def test_the_attacker_knows_what_a_canary_adds_that_starts_from_its_own_warm_head() -> None:
    """Rounds are replayed in order on the same rows, so the attacker's canaries keep heads as those of the run do."""
    warm = {"warm_heads": True, "head_steps": 5, "local_steps": 2, "local_momentum": 0.9}
    model = neural.Centaur(epsilon=1e7, noise="float", **audit_network(20, **warm))
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(6, 8, 20)), rng.integers(2, size=(6, 8)).astype(float)
    cohort = _cohort((X, y))
    attacker = Attacker(model, Worlds(cohort, cohort))
    first, second = attacker.run(cohort)[1]

    def missed(replayed: list[Entry]) -> float:
        canaries = _cohort((X, y))  # heads are kept for rows in this memory
        added = [_added(entry, canaries).sum(axis=0) for entry in replayed][-1]
        return float(np.abs(added - second.value.ravel()).max())

    known, cold = missed([first, second]), missed([second])
    assert known < 0.01 < 0.05 < cold
