"""Several queries in one release: each is checked, each has its own noise, and no retry is free after a leak."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
import scipy.sparse
from scipy import stats

from tacitly.data.cohort import Cohort
from tacitly.data.sparse_cohort import SparseCohort
from tacitly.federation.local import LocalFederation
from tacitly.methods.fedpower.gram import ShiftedGram
from tacitly.methods.fedpower.power import PowerStep
from tacitly.privacy.guarantee import GaussianEvent, Sensitivity, Unit
from tacitly.privacy.ledger import Ledger, LedgerMismatch

D, USERS = 4, 6
SUM = GaussianEvent(sigma=2.0, sensitivity=Sensitivity.of_clip(1.0, unit=Unit.ROW))
SOUND = PowerStep(np.eye(D)[:, :1], np.zeros(D), 0.5)
SAME_SIZE = PowerStep(np.eye(D)[:, :1], np.zeros(D), 0.5, Unit.USER)


@dataclass(frozen=True)
class Mistaken(PowerStep):
    """Declares fewer coordinates than it returns."""

    def contribution(self, X, y):  # type: ignore[no-untyped-def]
        return np.ones(3)


@dataclass(frozen=True)
class DenseOnly(PowerStep):
    """Has a bug that only sparse rows trigger."""

    def block_sum(self, X, y, offsets, bound):  # type: ignore[no-untyped-def]
        return super().block_sum(X, y, offsets, bound)[:-1] if scipy.sparse.issparse(X) else np.zeros(self.coordinates)


class Watched(LocalFederation):
    """Counts how often private rows are read."""

    read = 0

    def _exact_sum(self, *arguments, **options):  # type: ignore[no-untyped-def]
        self.read += 1
        return super()._exact_sum(*arguments, **options)


def federation(rows: np.ndarray | None = None, ledger: Ledger | None = None, **options: str) -> Watched:
    X = np.random.default_rng(0).normal(size=(4 * USERS, D)) if rows is None else rows
    cohort = Cohort.from_offsets(X, None, np.arange(0, len(X) + 1, len(X) // USERS))
    return Watched(cohort, (ledger or Ledger()).run("test", config={}), noise="float", **options)  # type: ignore[arg-type]


WRONG = {
    "another unit": (SAME_SIZE, "sensitivity does not belong"),
    "acute": (ShiftedGram(np.zeros(D), 0.5), "sensitivity does not belong"),
    "a mistake": (Mistaken(np.eye(D)[:, :1], np.zeros(D), 0.5), "must return a vector"),
    "more numbers": (PowerStep(np.eye(D)[:, :2], np.zeros(D), 0.5), "coordinates, as the first"),
}


@pytest.mark.parametrize("name", WRONG)
def test_every_users_own_query_is_checked_before_anything_is_debited(name: str) -> None:
    wrong, message = WRONG[name]
    everybody = federation()
    with pytest.raises(ValueError, match=message):
        everybody.release_each([SOUND] * (USERS - 1) + [wrong], SUM, "each")
    assert everybody.read == 0
    assert everybody.ledger_run.releases == []


@pytest.mark.parametrize("name", WRONG)
def test_every_turns_query_is_checked_before_its_rows_are_read(name: str) -> None:
    wrong, message = WRONG[name]
    everybody = federation()
    with pytest.raises(ValueError, match=message):
        everybody.release_in_turns(lambda out: SOUND if len(out) < 2 else wrong, 3, SUM, "turns")
    assert everybody.read == 2


def test_queries_are_rehearsed_on_sparse_rows_where_rows_are_sparse() -> None:
    rows = SparseCohort.from_matrix(scipy.sparse.eye(D, format="csr"))
    query = DenseOnly(np.eye(D)[:, :1], np.zeros(D), 0.5)
    sparse = LocalFederation(rows, Ledger().run("test", config={}), noise="float")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="must return a vector"):
        sparse.release(query, SUM, "step")
    assert sparse.ledger_run.releases == []
    federation().release(query, SUM, "step")


class Stopped(Exception):
    """The process dies here."""


@pytest.mark.parametrize("how", ["local", "in turns", "each"])
def test_what_others_saw_before_an_interruption_is_not_drawn_again(how: str) -> None:
    ledger = Ledger()

    def release(interrupted: bool) -> np.ndarray:
        everybody = federation(ledger=ledger, trust="local" if how == "local" else "central")
        if interrupted:
            real, calls = everybody._exact_sum, iter(range(100))

            def dies(*arguments, **options):  # type: ignore[no-untyped-def]
                if how == "local" or next(calls) > 0:
                    raise Stopped
                return real(*arguments, **options)

            everybody._exact_sum = dies  # type: ignore[method-assign]
        try:
            if how == "local":
                return everybody.release(SOUND, SUM, "step")
            if how == "each":
                return everybody.release_each([SOUND] * USERS, SUM, "step")
            return everybody.release_in_turns(lambda out: SOUND, 3, SUM, "step")
        finally:
            everybody.ledger_run.abandon()

    with pytest.raises(Stopped):
        release(interrupted=True)
    with pytest.raises(LedgerMismatch, match="start a new run"):
        release(interrupted=False)
    assert [row.state for row in ledger.releases()] == ["debited"]  # and paid for


def test_what_nobody_saw_is_drawn_again_for_nothing() -> None:
    ledger = Ledger()
    first = federation(ledger=ledger)
    first._exact_sum = lambda *_, **__: (_ for _ in ()).throw(Stopped)  # type: ignore[method-assign,assignment]
    with pytest.raises(Stopped):
        first.release(SOUND, SUM, "step")
    first.ledger_run.abandon()
    federation(ledger=ledger).release(SOUND, SUM, "step")
    assert [(row.state, row.attempts) for row in ledger.releases()] == [("published", 2)]


@pytest.mark.parametrize("trust", ["central", "local"])
def test_a_turn_has_the_noise_of_its_own_messages(trust: str) -> None:
    nobody = federation(np.full((4 * USERS, D), 0.0), trust=trust)
    query = PowerStep(np.eye(D)[:, :1], np.zeros(D), 1e-9)
    answers = np.concatenate([nobody.release_in_turns(lambda out: query, 3, SUM, "t").ravel() for _ in range(60)])
    sigma = 2.0 * (math.sqrt(USERS / 3) if trust == "local" else 1.0)
    tail, statistic = stats.chi2(answers.size), float(np.sum((answers / sigma) ** 2))
    assert min(tail.cdf(statistic), tail.sf(statistic)) > 1e-7  # either side: false-alarm rate 2e-7


def test_groups_are_public_and_cover_everybody_once() -> None:
    everybody = federation()
    groups = np.array([everybody.group_of(4, turn) for turn in range(4)])
    assert (groups.sum(axis=0) == 1).all()
