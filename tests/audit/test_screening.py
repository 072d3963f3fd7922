"""Screening canaries must not lose what a full search found."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

import tacitly
from tacitly.audit.findings import exact_findings
from tacitly.audit.search import strongest
from tacitly.federation.query import Query
from tacitly.methods.base import Procedure
from tacitly.methods.shared.whitening import FeatureMoment
from tacitly.privacy.accounting import mu_of
from tacitly.privacy.guarantee import Adjacency, GaussianEvent, Sensitivity, Unit


class Honest(tacitly.PrivateAltMin):
    """Publishes one released moment."""

    def _procedure(self, population: Any, budget: Any) -> Procedure:
        sensitivity = Sensitivity.of_clip(1.0, acute=True)
        event = GaussianEvent(sigma=1.001 / mu_of(budget.epsilon, budget.delta), sensitivity=sensitivity)
        return Procedure([event], lambda federation: {"basis": self._learn(federation, event)})

    def _learn(self, federation: Any, event: Any) -> Any:
        self._moment = self._ask(federation, event)
        return np.eye(federation.n_features)[:, : self.rank]

    def _ask(self, federation: Any, event: Any) -> Any:
        return federation.release(FeatureMoment(federation.n_features), event, "moment")

    def public_arrays(self) -> dict[str, Any]:
        return {"moment": self._moment}


@dataclass(frozen=True)
class SlightlyLoud(FeatureMoment):
    """2.5 % longer than the clip for users with one row of middle size."""

    def block_sum(self, X: Any, y: Any, offsets: Any, bound: float) -> Any:
        total = np.zeros(self.coordinates)
        for first, last in itertools.pairwise(offsets):
            own = super().block_sum(X[first:last], y[first:last], np.array([0, last - first]), bound)
            total += own * (1.025 if last - first == 1 and 10 < np.abs(X[first:last]).max() < 1e5 else 1.0)
        return total

    def block_sums(self, *given: Any) -> Any:
        return Query.block_sums(self, *given)


class BreaksForOneRow(Honest):
    def _ask(self, federation: Any, event: Any) -> Any:
        return federation.release(SlightlyLoud(federation.n_features), event, "moment")


class LessNoiseForSome(Honest):
    """A tenth of the noise if somebody's numbers are of middle size."""

    def _ask(self, federation: Any, event: Any) -> Any:
        if 10 < np.nanmax(np.abs(federation._cohort.X)) < 1e5:
            event = replace(event, sigma=event.sigma / 10)
        return federation.release(FeatureMoment(federation.n_features), event, "moment")


class RaisesForSome(Honest):
    """Fails if somebody's numbers are of middle size, which tells that they are there."""

    def _ask(self, federation: Any, event: Any) -> Any:
        if 10 < np.nanmax(np.abs(federation._cohort.X)) < 1e5:
            raise ValueError("unusual numbers")
        return super()._ask(federation, event)


class RaisesForTargets(Honest):
    """Fails for targets of one user only if its features are small: the first canary of that size has small targets."""

    def _ask(self, federation: Any, event: Any) -> Any:
        if np.nanmax(np.abs(federation._cohort.X)) < 10 and np.nanmax(np.abs(federation._cohort.y)) > 100:
            raise ValueError("unusual numbers")
        return super()._ask(federation, event)


def test_a_finalist_that_makes_a_fit_raise_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Screening took its failure for a canary without power. Here everybody is a finalist."""
    monkeypatch.setattr("tacitly.audit.search._FINALISTS", 100)
    monkeypatch.setattr("tacitly.audit.search._REPEATS", 0)
    found = strongest(RaisesForTargets(rank=1, epsilon=1.0), Unit.USER, Adjacency.ZERO_OUT)
    assert any("raise ValueError" in finding for finding in found.findings)


@pytest.mark.parametrize("broken", [BreaksForOneRow, LessNoiseForSome, RaisesForSome])
def test_what_breaks_for_some_canaries_only_is_found(broken: type) -> None:
    found = strongest(broken(rank=1, epsilon=1.0), Unit.USER, Adjacency.ZERO_OUT)
    assert [*found.findings, *exact_findings(found.attacker, Adjacency.ZERO_OUT)]
