"""The release door: what it adds, what it refuses, and that nothing else affects the result."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import pytest
from scipy import stats
from threadpoolctl import threadpool_info, threadpool_limits

from tacitly.data.cohort import Cohort
from tacitly.federation.local import LocalFederation
from tacitly.federation.query import BLOCK, Query
from tacitly.methods.altmin import algorithm as altmin
from tacitly.methods.fedrep import algorithm as fedrep
from tacitly.methods.fedrep import as_printed as paper_fedrep
from tacitly.methods.shared.whitening import FeatureMoment
from tacitly.privacy.guarantee import Budget, GaussianEvent, Sensitivity, Unit
from tacitly.privacy.ledger import BudgetExceeded, Ledger

D, K = 5, 2
BUDGET = Budget(epsilon=1.0, delta=1e-6)
EVENT = GaussianEvent(sigma=3.0, sensitivity=Sensitivity.of_clip(1.0, acute=True))


def cohort(n: int, rng: np.random.Generator, *, zero: bool = False, dtype: type = np.float64) -> Cohort:
    counts = rng.integers(1, 9, size=n)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    X, y = rng.normal(size=(offsets[-1], D)).astype(dtype), rng.normal(size=offsets[-1]).astype(dtype)
    return Cohort.from_offsets(X * (not zero), y * (not zero), offsets)


def federation(data: Cohort, **options: object) -> LocalFederation:
    return LocalFederation(data, Ledger().run("test", config={}), **options)  # type: ignore[arg-type]


class Recorder(LocalFederation):
    """Records the sums before noise, and answers with a given transcript."""

    def __init__(self, data: Cohort, transcript: list[np.ndarray] | None = None) -> None:
        super().__init__(data, Ledger().run("test", config={}))
        self.sums: list[np.ndarray] = []
        self.events: list[tuple[str, GaussianEvent]] = []
        self.transcript: list[np.ndarray] = []
        self._given = transcript

    def release(self, query: Query, event: GaussianEvent, name: str) -> np.ndarray:
        self.events.append((name, event))
        self.sums.append(self._exact_sum(query, event.sensitivity.zero_out, 2.0**-40) * 2.0**-40)
        answer = self._given[len(self.transcript)] if self._given else super().release(query, event, name)
        self.transcript.append(answer)
        return answer


ALGORITHMS = {
    "fedrep": lambda fed: fedrep.learn(fed, fedrep.Settings().plan(BUDGET), fedrep.Settings(), K),
    "fedrep, centred": lambda fed: fedrep.learn(
        fed, fedrep.Settings().plan(BUDGET), fedrep.Settings(), K, centered=True
    ),
    "altmin": lambda fed: altmin.learn(fed, altmin.Settings().plan(BUDGET), altmin.Settings(), K),
    "paper": lambda fed: paper_fedrep.learn(fed, BUDGET, paper_fedrep.Settings(), K),
}


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12, math.nan])
def test_along_a_forced_transcript_one_user_moves_every_sum_by_at_most_its_clip(name: str, scale: float) -> None:
    rng = np.random.default_rng(0)
    data = cohort(60, rng)
    first = Recorder(data)
    ALGORITHMS[name](first)
    neighbour = np.array(data.X)
    neighbour[data.offsets[7] : data.offsets[8]] = 0.0
    zeroed = Cohort(neighbour, data.y, data.offsets, data.users, data.feature_names, data.target_name)
    neighbour = np.array(data.X)
    neighbour[data.offsets[7] : data.offsets[8]] *= scale
    replaced = Cohort(neighbour, data.y, data.offsets, data.users, data.feature_names, data.target_name)

    runs = {}
    for label, other in (("zero-out", zeroed), ("replace-one", replaced)):
        run = Recorder(other, first.transcript)
        ALGORITHMS[name](run)
        assert run.events == first.events  # noise, clips and schedule are public
        runs[label] = run.sums
    for (_, event), mine, zero, other in zip(
        first.events, first.sums, runs["zero-out"], runs["replace-one"], strict=True
    ):
        assert np.linalg.norm(mine - zero) <= event.sensitivity.zero_out
        assert np.linalg.norm(mine - other) <= event.sensitivity.replace_one


@pytest.mark.parametrize("name", ["fedrep", "altmin"])
def test_with_zero_data_every_release_is_noise_of_the_scale_in_the_ledger(name: str) -> None:
    recorder = Recorder(cohort(50, np.random.default_rng(1), zero=True))
    ALGORITHMS[name](recorder)
    for answer, (label, event) in zip(recorder.transcript, recorder.events, strict=True):
        tail = stats.chi2(answer.size)
        statistic = float(np.sum((answer / event.sigma) ** 2))
        assert min(tail.cdf(statistic), tail.sf(statistic)) > 1e-9 / 2, label  # of all releases: below 1e-6


def test_noise_is_fresh_in_every_release_and_every_run() -> None:
    noises = []
    for _ in range(2):
        recorder = Recorder(cohort(50, np.random.default_rng(1), zero=True))
        ALGORITHMS["fedrep"](recorder)
        noises += [answer for answer in recorder.transcript if answer.size == D * K + K * (K + 1) // 2]
    stacked = np.array(noises)
    assert len(np.unique(stacked)) == stacked.size
    correlation = np.corrcoef(stacked) - np.eye(len(stacked))
    assert np.abs(correlation).max() < 6.5 / math.sqrt(stacked.shape[1])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_sum_does_not_depend_on_threads_or_on_who_is_asked_first(dtype: type) -> None:
    data = cohort(2 * BLOCK + 100, np.random.default_rng(2), dtype=dtype)
    sums = []
    for blas in (1, 2):
        with threadpool_limits(limits=blas, user_api="blas"):
            sums += [federation(data, threads=t)._exact_sum(FeatureMoment(D), 1.0, 2.0**-40) for t in (1, 2, 3)]
    for other in sums[1:]:
        assert np.array_equal(sums[0], other)


@dataclass(frozen=True)
class Wide(FeatureMoment):
    """The plain form on users with many rows, whose products BLAS divides among its threads if it has several."""

    blas: set[int] = field(default_factory=set, compare=False)

    def block_sum(self, X, y, offsets, bound):  # type: ignore[no-untyped-def]
        self.blas.update(blas_threads())
        return Query.block_sum(self, X, y, offsets, bound)

    block_sums = Query.block_sums


def blas_threads() -> list[int]:
    return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]


@pytest.mark.parametrize("threads", [1, 2])
def test_sums_are_computed_with_one_thread_of_blas_whatever_it_is_set_to(threads: int) -> None:
    if not blas_threads():
        pytest.skip("the number of threads of this BLAS cannot be set")
    offsets, width = np.cumsum([0, *[1] * BLOCK, 500, 500]), 64  # two blocks
    data = Cohort.from_offsets(np.random.default_rng(2).normal(size=(offsets[-1], width)), None, offsets)
    sums, query = [], Wide(width)
    for blas in (1, 2):
        with threadpool_limits(limits=blas, user_api="blas"):
            sums.append(federation(data, threads=threads)._exact_sum(query, 1.0, 2.0**-40))
            assert max(blas_threads()) == blas  # as it was before
    assert query.blas == {1}
    assert np.array_equal(*sums)


def test_a_user_touches_the_rounding_of_its_own_block_only() -> None:
    data = cohort(2 * BLOCK, np.random.default_rng(3))
    query = FeatureMoment(D)
    whole = federation(data)._exact_sum(query, 1.0, 2.0**-40)
    X = np.array(data.X)
    X[data.offsets[0] : data.offsets[1]] = 0.0
    without = Cohort(X, data.y, data.offsets, data.users, data.feature_names, data.target_name)
    moved = (whole - federation(without)._exact_sum(query, 1.0, 2.0**-40)) * 2.0**-40
    mine = query.contribution(data.X[: data.offsets[1]], data.y[: data.offsets[1]])
    np.testing.assert_allclose(moved, mine, atol=2.0**-19)
    assert np.linalg.norm(moved) <= 1.0


def test_the_mean_of_a_release_is_the_sum() -> None:
    data = cohort(200, np.random.default_rng(4))
    exact = federation(data)._exact_sum(FeatureMoment(D), 1.0, 2.0**-40) * 2.0**-40
    answers = [federation(data).release(FeatureMoment(D), EVENT, "moment") for _ in range(50)]
    error = np.mean(answers, axis=0) - exact
    assert np.abs(error).max() < 5.5 * EVENT.sigma / math.sqrt(50)


def test_an_event_that_does_not_belong_to_the_query_is_refused() -> None:
    wrong = GaussianEvent(sigma=3.0, sensitivity=Sensitivity.of_clip(1.0, acute=False))
    with pytest.raises(ValueError, match="does not belong to FeatureMoment"):
        federation(cohort(5, np.random.default_rng(0))).release(FeatureMoment(D), wrong, "moment")


def test_the_ledger_is_debited_before_anything_is_drawn_and_can_say_no() -> None:
    ledger = Ledger(ceiling=Budget(epsilon=0.1, delta=1e-6))
    run = ledger.run("test", config={})
    touched = []

    class Watched(LocalFederation):
        def _exact_sum(self, query, bound, grid):  # type: ignore[no-untyped-def]
            touched.append(query)
            return super()._exact_sum(query, bound, grid)

    with pytest.raises(BudgetExceeded):
        Watched(cohort(5, np.random.default_rng(0)), run).release(FeatureMoment(D), EVENT, "moment")
    assert touched == []


@dataclass(frozen=True)
class Fails(Query):
    """A query that fails on some users' numbers."""

    @property
    def coordinates(self) -> int:
        return 1

    def contribution(self, X: np.ndarray, y: np.ndarray) -> np.ndarray:
        if X[0, 0] > 2:
            raise RuntimeError(f"secret {X[0, 0]}")
        return np.ones(1)


def test_a_query_that_fails_on_private_numbers_raises_nothing() -> None:
    data = cohort(50, np.random.default_rng(5))
    event = GaussianEvent(sigma=1e-6, sensitivity=Sensitivity.of_clip(1.0))
    failing = sum(data.X[start, 0] > 2 for start in data.offsets[:-1])
    assert failing > 0
    answer = federation(data).release(Fails(), event, "count")
    assert answer[0] == pytest.approx(50 - failing, abs=1e-3)


@dataclass(frozen=True)
class Mistaken(Fails):
    """A query with a bug that does not depend on the data."""

    def contribution(self, X: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.ones(2)


def test_a_mistake_in_a_query_shows_before_private_rows_are_touched() -> None:
    event = GaussianEvent(sigma=1.0, sensitivity=Sensitivity.of_clip(1.0))
    with pytest.raises(ValueError, match="must return a vector of 1 coordinates"):
        federation(cohort(5, np.random.default_rng(0))).release(Mistaken(), event, "count")


def layouts(query: Query, mine: tuple[np.ndarray, np.ndarray], dtype: type) -> list[bytes]:
    """The contribution of one user, in blocks where all other users contribute zero but have different row counts."""
    found = []
    for before in (0, 1, 7, 300, 5000):
        X = np.vstack([np.zeros((before, D)), mine[0], np.zeros((3, D))]).astype(dtype)
        y = np.concatenate([np.zeros(before), mine[1], np.zeros(3)]).astype(dtype)
        offsets = (
            np.array([0, before, before + len(mine[0]), len(X)]) if before else np.array([0, len(mine[0]), len(X)])
        )
        found.append(query.block_sum(X, y, offsets, 1.0).tobytes())
    return found


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", ["ordinary", "rounding noise"])
def test_nobodys_contribution_depends_on_how_many_rows_others_have(dtype: type, kind: str) -> None:
    """A changed last bit is amplified to a whole clip if the direction itself is rounding noise."""
    from tacitly.linalg import orthonormal
    from tacitly.methods.fedrep.queries import BasisStep
    from tacitly.methods.shared.direction_votes import DirectionVote
    from tacitly.methods.shared.whitening import Whitening

    rng = np.random.default_rng(6)
    row = rng.normal(size=D)
    X, y = rng.normal(size=(6, D)), rng.normal(size=6)
    if kind == "rounding noise":
        X, y = np.array([row, 3 * row, row, 3 * row]), np.array([3.0, -1.0, 3.0, -1.0])
    whitening = Whitening(rng.uniform(0.5, 2, D), orthonormal(rng.normal(size=(D, 3)))[0], rng.uniform(-0.9, 2, 3))
    basis = orthonormal(rng.normal(size=(D, K)))[0]
    for query in (FeatureMoment(D), DirectionVote(whitening), BasisStep(basis, np.eye(K), 0.5, whitening)):
        for form in (query, query.form_for(3, D)):  # of many users and of few
            assert len(set(layouts(form, (X, y), dtype))) == 1, type(query).__name__


def test_one_users_bad_numbers_do_not_change_how_others_are_computed() -> None:
    @dataclass(frozen=True)
    class Leaky(FeatureMoment):
        def block_sum(self, X, y, offsets, bound):  # type: ignore[no-untyped-def]
            return super().block_sum(X, y, offsets, bound) + (math.inf if (np.abs(X) > 1e9).any() else 0.0)

    data = cohort(40, np.random.default_rng(7))
    X = np.array(data.X)
    X[data.offsets[3] : data.offsets[4]] = 1e10
    spoiled = Cohort(X, data.y, data.offsets, data.users, data.feature_names, data.target_name)
    X = np.array(data.X)
    X[data.offsets[3] : data.offsets[4]] = 0.0
    without = Cohort(X, data.y, data.offsets, data.users, data.feature_names, data.target_name)
    first = federation(spoiled)._exact_sum(Leaky(D), 1.0, 2.0**-40)
    second = federation(without)._exact_sum(Leaky(D), 1.0, 2.0**-40)
    assert np.abs(first - second).max() <= 2  # steps of the grid


def test_a_sampled_user_changes_the_rounding_of_one_block() -> None:
    """Blocks were counted from the last user left out: without one more, all later blocks of a long run moved."""
    n, grid = 20 * BLOCK, 2.0**-8
    data = Cohort.from_offsets(np.random.default_rng(8).normal(size=(n, D)), np.zeros(n), np.arange(n + 1))
    doors, query, everybody = federation(data), FeatureMoment(D), np.ones(n, dtype=bool)
    whole = doors._exact_sum(query, 1.0, grid, everybody)
    for user in (1, 700, BLOCK - 1, BLOCK, 2500):
        others = everybody.copy()
        others[user] = False
        own = query.block_sum(data.X[user : user + 1], data.y[user : user + 1], np.array([0, 1]), 1.0)
        apart = (whole - doors._exact_sum(query, 1.0, grid, others)) * grid - own
        assert np.abs(apart).max() <= 1.5 * grid + 1e-9


def test_an_event_with_a_sampling_rate_is_refused_where_everybody_is_asked() -> None:
    sampled = GaussianEvent(sigma=3.0, sensitivity=Sensitivity.of_clip(1.0, acute=True), sampling_rate=0.1)
    everybody = federation(cohort(5, np.random.default_rng(0)))
    with pytest.raises(ValueError, match="sampling_rate must be 1"):
        everybody.release_each([FeatureMoment(D)] * 5, sampled, "moment")
    with pytest.raises(ValueError, match="sampling_rate must be 1"):
        everybody.release_in_turns(lambda out: FeatureMoment(D), 2, sampled, "moment")


def test_private_numbers_raise_no_warning(recwarn: pytest.WarningsRecorder) -> None:
    data = cohort(2 * BLOCK, np.random.default_rng(8))
    X = np.array(data.X)
    X[5] = 1.7e308
    loud = Cohort(X, data.y, data.offsets, data.users, data.feature_names, data.target_name)
    ALGORITHMS["fedrep"](federation(loud))
    assert [str(warning.message) for warning in recwarn.list] == []


@dataclass(frozen=True)
class RowCount(Query):
    """A row-unit query whose fused form passes on the infinity of one row."""

    unit = Unit.ROW

    @property
    def coordinates(self) -> int:
        return 1

    def contribution(self, X: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.ones(1)

    def block_sum(self, X, y, offsets, bound):  # type: ignore[no-untyped-def]
        return np.array([math.inf if (np.abs(X) > 1e9).any() else float(len(X))])


def test_one_bad_row_counts_as_one_of_zeros_and_its_block_stays() -> None:
    data = cohort(300, np.random.default_rng(9))
    X = np.array(data.X)
    X[17] = 1e10
    spoiled = Cohort(X, data.y, data.offsets, data.users, data.feature_names, data.target_name)
    assert federation(spoiled)._exact_sum(RowCount(), 1.0, 1.0).tolist() == [data.n_rows]
