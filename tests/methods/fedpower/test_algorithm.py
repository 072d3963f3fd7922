"""Every route of FedPower: sensitivity, public quantities, results, and partial participation."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats

import tacitly
from tacitly.data.cohort import Cohort
from tacitly.data.sparse_cohort import SparseCohort
from tacitly.federation.base import Query
from tacitly.federation.local import LocalFederation
from tacitly.linalg import subspace_distance
from tacitly.methods.fedpower import algorithm as fedpower
from tacitly.methods.fedpower.algorithm import Settings
from tacitly.methods.fedpower.gram import ShiftedGram
from tacitly.privacy.accounting import compose
from tacitly.privacy.calibration import Phase, Plan
from tacitly.privacy.guarantee import Adjacency, Budget, GaussianEvent, Sensitivity, Unit
from tacitly.privacy.ledger import Ledger

D, K = 6, 2


def rows(n: int, rng: np.random.Generator) -> np.ndarray:
    return rng.normal(size=(n, D)) * [4.0, 3.0, 1.0, 1.0, 0.5, 0.5] + [1.0, 0, 0, 2.0, 0, 0]


def cohort(n_users: int, rng: np.random.Generator) -> Cohort:
    offsets = np.concatenate([[0], np.cumsum(rng.integers(1, 9, size=n_users))])
    return Cohort.from_offsets(rows(int(offsets[-1]), rng), None, offsets)


class Recorder(LocalFederation):
    """Record sums before noise, and return a given transcript instead of the releases."""

    def __init__(self, data: Cohort, transcript: list[np.ndarray] | None = None, **options: object) -> None:
        super().__init__(data, Ledger().run("test", config={}), **options)  # type: ignore[arg-type]
        self.sums: list[np.ndarray] = []
        self.bounds: list[Sensitivity] = []
        self.events: list[tuple[str, GaussianEvent]] = []
        self.transcript: list[np.ndarray] = []
        self._given = transcript

    def _debit_and_draw(self, queries, event, name, draw, *, copies=1, seen_early=False):  # type: ignore[no-untyped-def]
        self.events.append((name, event))
        grid, rng = 2.0**-40, np.random.default_rng(len(self.events))

        def noisy(total: np.ndarray, messages: int) -> np.ndarray:
            sigma = self.sum_sigma(event, messages)
            self.sums.append(total * grid)
            self.bounds.append(event.sensitivity)
            answer = total * grid + sigma * rng.normal(size=total.size)
            if self._given is not None:
                answer = self._given[len(self.transcript)]
            self.transcript.append(answer)
            return answer

        return draw(grid, noisy)


ROUTES: dict[str, Settings] = {
    "gram, rows": Settings(),
    "gram, rows, range": Settings(low=np.full(D, -9.0), high=np.full(D, 9.0), centered=True),
    "gram, users": Settings(unit=Unit.USER),
    "gram, refined": Settings(refined=True),
    "gram, refined, users": Settings(refined=True, unit=Unit.USER, centered=True),
    "power, rows": Settings(route="power", rounds=3, seed=0),
    "power, users, centred": Settings(route="power", rounds=3, unit=Unit.USER, centered=True, seed=0),
    "power, rows, in turns": Settings(route="power", rounds=2, turns=4, seed=0),
    "device": Settings(route="device", unit=Unit.USER, rounds=2, local_steps=3, seed=0),
    "device, in turns": Settings(route="device", unit=Unit.USER, rounds=2, local_steps=2, decay=True, turns=3, seed=0),
    "local noise": Settings(route="local-noise", rounds=2, local_steps=2, seed=0),
}


def learn(federation: LocalFederation, settings: Settings, epsilon: float = 1.0) -> fedpower.Spectrum:
    budget = Budget(epsilon=epsilon, delta=1e-6, unit=settings.unit)
    return fedpower.learn(federation, settings.plan(budget), settings, K)


def neighbour(data: Cohort, unit: Unit, change: Callable[[np.ndarray], np.ndarray]) -> Cohort:
    X = np.array(data.X)
    own = slice(data.offsets[7], data.offsets[8]) if unit is Unit.USER else slice(11, 12)
    X[own] = change(X[own])
    return Cohort(X, None, data.offsets, data.users, data.feature_names)


@pytest.mark.parametrize("name", ROUTES)
@pytest.mark.parametrize("scale", [1e-12, -1.0, 1e12, math.nan])
def test_along_a_forced_transcript_one_unit_moves_every_sum_by_at_most_its_clip(name: str, scale: float) -> None:
    settings = ROUTES[name]
    data = cohort(12, np.random.default_rng(0))
    first = Recorder(data)
    mine = learn(first, settings)
    others = {
        "zero_out": neighbour(data, settings.unit, lambda x: np.full_like(x, math.nan)),  # NaN adds nothing
        "replace_one": neighbour(data, settings.unit, lambda x: x * scale),
    }
    for relation, other in others.items():
        run = Recorder(other, first.transcript)
        found = learn(run, settings)
        assert run.events == first.events  # P2: noise, clips and schedule are public
        assert np.array_equal(found.components, mine.components)  # P5: the output is a function of the releases
        moved = [np.linalg.norm(a - b) for a, b in zip(first.sums, run.sums, strict=True)]
        for distance, bound in zip(moved, first.bounds, strict=True):
            assert distance <= getattr(bound, relation)


@pytest.mark.parametrize("name", ROUTES)
def test_the_plan_is_what_is_released_and_costs_what_was_asked_for(name: str) -> None:
    settings = ROUTES[name]
    data = cohort(12, np.random.default_rng(1))
    for adjacency in Adjacency:
        budget = Budget(epsilon=1.0, delta=1e-6, unit=settings.unit, adjacency=adjacency)
        plan = settings.plan(budget)
        run = Ledger(ceiling=budget).run("test", config={}, planned=settings.events(plan))
        fedpower.learn(LocalFederation(data, run), plan, settings, K)
        run.finish()
        spent = compose([release.cost for release in run.releases], adjacency, 1e-6)
        assert spent == pytest.approx(1.0, rel=1e-6)


@pytest.mark.parametrize("trust", ["central", "local"])
def test_noise_has_the_scale_in_the_ledger_and_is_larger_where_users_add_it(trust: str) -> None:
    data = Cohort.from_offsets(np.zeros((40, D)), None, np.arange(0, 41, 4))
    federation = LocalFederation(data, Ledger().run("test", config={}), trust=trust)
    query = ShiftedGram(np.zeros(D), 0.0)
    event = GaussianEvent(sigma=3.0, sensitivity=Sensitivity.of_clip(1.0, acute=True, unit=Unit.ROW))
    answers = np.concatenate([federation.release(query, event, "gram") for _ in range(20)])
    sigma = 3.0 * (math.sqrt(10) if trust == "local" else 1.0)
    assert federation.sum_sigma(event) == pytest.approx(sigma)
    tail = stats.chi2(answers.size)
    statistic = float(np.sum((answers / sigma) ** 2))
    assert min(tail.cdf(statistic), tail.sf(statistic)) > 1e-7  # either side: false-alarm rate 2e-7


def test_answers_one_by_one_are_the_devices_own_sums() -> None:
    data = cohort(5, np.random.default_rng(2))
    query = ShiftedGram(np.zeros(D), 0.5)
    event = GaussianEvent(sigma=1e-3, sensitivity=Sensitivity.of_clip(1e4, acute=True, unit=Unit.ROW))
    federation = LocalFederation(data, Ledger().run("test", config={}), noise="float")
    each = federation.release_each([query] * 5, event, "each")
    for i in range(5):
        np.testing.assert_allclose(each[i], query.contribution(data.rows(i)[0], np.zeros(0)), atol=1e-2)


def test_groups_that_take_turns_cover_everybody_once() -> None:
    data = cohort(7, np.random.default_rng(3))
    query = ShiftedGram(np.zeros(D), 0.5)
    event = GaussianEvent(sigma=1e-3, sensitivity=Sensitivity.of_clip(1e4, acute=True, unit=Unit.ROW))
    federation = LocalFederation(data, Ledger().run("test", config={}), noise="float")
    turns = federation.release_in_turns(lambda out: query, 3, event, "turns")
    np.testing.assert_allclose(turns.sum(axis=0), query.contribution(data.X, np.zeros(0)), atol=2e-2)
    assert len(federation.ledger_run.releases) == 1


@pytest.mark.parametrize("name", ["gram, rows", "gram, users", "power, rows", "device", "local noise"])
def test_devices_that_never_answer_cost_signal_and_no_privacy(name: str) -> None:
    settings, rng = ROUTES[name], np.random.default_rng(4)
    data = Cohort.from_offsets(rows(30_000, rng), None, np.arange(0, 30_001, 100 if name != "local noise" else 10_000))
    truth = np.linalg.eigh(data.X.T @ data.X)[1][:, ::-1][:, :K]
    late = np.random.default_rng(5)
    events, errors = [], []
    for answers in (None, lambda number: late.random(data.n_users) > 0.3):
        federation = Recorder(data, answers=answers)
        found = learn(federation, settings, epsilon=8.0)
        events.append([(name, event.mu(Adjacency.ZERO_OUT)) for name, event in federation.events])
        errors.append(subspace_distance(found.components.T, truth))
    assert [mu for _, mu in events[0]] == pytest.approx([mu for _, mu in events[1]])
    assert max(errors) < 0.2


@pytest.mark.parametrize("route", ["gram", "power"])
@pytest.mark.parametrize("centered", [False, True])
def test_clipped_rows_weigh_the_same_in_every_part_of_the_sum(
    route: str, centered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without noise, and with a clip below some norms, the result is exactly the matrix of weighted rows."""
    data, found = cohort(500, np.random.default_rng(7)), {}
    monkeypatch.setattr(fedpower, "chosen_clip", lambda *_, **__: 60.0)
    real = fedpower.centre_of

    def centre_of(*arguments: object, **options: object) -> tuple[np.ndarray, float]:
        found["centre"], found["scale"] = real(*arguments, **options)  # type: ignore[arg-type]
        return found["centre"], found["scale"]

    monkeypatch.setattr(fedpower, "centre_of", centre_of)
    settings = Settings(route=route, centered=centered, rounds=1, seed=0, iteration_rank=D)
    spectrum = learn(Recorder(data), settings, epsilon=math.inf)
    moved, constant = data.X - found["centre"], 0.1 * found["scale"]
    basis = np.eye(D) if route == "gram" else np.random.default_rng(0).normal(size=(D, D))
    turned = moved if route == "gram" else moved @ np.linalg.qr(basis)[0]
    squared = np.sum(moved**2, axis=1) + constant**2
    norms = squared if route == "gram" else np.sqrt(squared * (np.sum(turned**2, axis=1) + constant**2))
    weights = np.minimum(1.0, 60.0 * (1 - 2.0**-20) / norms)
    assert 0.8 < weights.mean() < 0.99
    mean = weights @ data.X / weights.sum() if centered else np.zeros(D)
    exact = (data.X - mean).T @ ((data.X - mean) * weights[:, None])
    np.testing.assert_allclose(spectrum.values, np.linalg.eigvalsh(exact)[::-1][:K], rtol=1e-6)
    np.testing.assert_allclose(spectrum.mean, mean, atol=1e-6)
    assert spectrum.n_rows == pytest.approx(weights.sum(), rel=1e-6)


def test_a_sampled_plan_costs_what_was_asked_for_with_less_noise() -> None:
    budget = Budget(epsilon=1.0, delta=1e-5)
    phases = [Phase(name="sum", share=1.0, releases=8)]
    sampled = Plan(budget, phases, sampling_rate=0.1).event("sum", clip=1.0)
    assert sampled.sigma < 0.25 * Plan(budget, phases).event("sum", clip=1.0).sigma
    assert 0.95 < compose([sampled] * 8, Adjacency.ZERO_OUT, 1e-5) <= 1.0


def test_sampling_takes_users_by_coins_of_the_right_weight() -> None:
    data = Cohort.from_offsets(np.ones((4000, 1)), None, np.arange(4001))

    class Count(ShiftedGram):
        pass

    event = GaussianEvent(
        sigma=1e-6, sensitivity=Sensitivity.of_clip(1.0, acute=True, unit=Unit.USER), sampling_rate=0.25
    )
    federation = LocalFederation(data, Ledger().run("test", config={}), noise="float")
    query = Count(np.zeros(1), 0.0, Unit.USER)
    counts = [float(federation.release(query, event, "count")[0]) for _ in range(10)]
    assert len(set(counts)) > 1
    assert abs(np.mean(counts) - 1000) < 6 * math.sqrt(4000 * 0.25 * 0.75 / 10)


@pytest.mark.parametrize(("unit", "trust"), [(Unit.ROW, "central"), (Unit.USER, "local")])
def test_sampling_is_refused_where_it_hides_nobody(unit: Unit, trust: str) -> None:
    event = GaussianEvent(sigma=1.0, sensitivity=Sensitivity.of_clip(1.0, acute=True, unit=unit), sampling_rate=0.5)
    federation = LocalFederation(cohort(5, np.random.default_rng(0)), Ledger().run("test", config={}), trust=trust)
    with pytest.raises(ValueError, match="sampling hides only whole users"):
        federation.release(ShiftedGram(np.zeros(D), 0.1, unit), event, "gram")


@pytest.mark.parametrize("route", ["gram", "power"])
def test_sparse_rows_give_what_dense_rows_give(route: str) -> None:
    import scipy.sparse

    rng = np.random.default_rng(6)
    X = rows(300, rng) * (rng.random((300, D)) < 0.3)
    sparse = SparseCohort.from_matrix(scipy.sparse.csr_matrix(X))
    query: Query = ShiftedGram(np.zeros(D), 0.5)
    if route == "power":
        from tacitly.methods.fedpower.power import PowerStep

        query = PowerStep(np.eye(D)[:, :K], np.zeros(D), 0.5)
    y, offsets = np.zeros(300), np.array([0, 300])
    np.testing.assert_allclose(
        query.block_sum(sparse.X, y, offsets, 3.0), query.block_sum(X, y, offsets, 3.0), rtol=1e-9, atol=1e-9
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"route": "magic"}, "route must be one of"),
        ({"route": "device"}, "protects unit 'user'"),
        ({"route": "local-noise", "unit": Unit.USER}, "protects unit 'row'"),
        ({"local_steps": 2}, "local_steps > 1 is for the routes"),
        ({"route": "device", "unit": Unit.USER, "centered": True}, "does not centre rows"),
        ({"sampling_rate": 0.5}, "needs unit='user'"),
        ({"turns": 2}, "participants is for the routes"),
        ({"route": "power", "unit": Unit.USER, "turns": 2, "sampling_rate": 0.5}, "do not go together"),
        ({"alignment": "luck"}, "alignment must be one of"),
        ({"rounds": 0}, "at least 1"),
        ({"decay": "slowly"}, "decay must be one of"),
        ({"route": "power", "refined": True}, "refined is for the route 'gram'"),
    ],
)
def test_settings_that_cannot_be_private_or_mean_nothing_are_refused(settings: dict, message: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(ValueError, match=message):
        Settings(**settings)


def test_noise_is_not_taken_for_the_scale_of_a_few_hundred_rows() -> None:
    """A histogram's noise was, in half of such fits. False alarms: the clip is off by eleven standard deviations."""
    rng = np.random.default_rng(0)
    for number in range(8):
        given = rng.normal(size=(400, 6)) * 2.0 ** (4 * number - 16)
        model = tacitly.FedPower(2, 1.0, unit="row", route="gram").fit(given)
        clip = next(r.event.sensitivity.zero_out for r in model.certificate_.releases if r.name == "gram matrix")
        assert abs(math.log2(clip / np.median(np.sum(given**2, axis=1)))) < 3.0


ASKED: list[dict[str, Any]] = [
    {"route": "gram"},
    {"route": "power", "rounds": 2},
    {"unit": "user", "route": "device", "rounds": 2},
]


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
@pytest.mark.parametrize("options", ASKED, ids=str)
def test_what_few_units_are_asked_is_what_was_planned(options: dict[str, Any], adjacency: str) -> None:
    """Two numbers can point against each other, bins cannot: under replace-one they have other sensitivities."""
    rng = np.random.default_rng(0)
    for n in (120, 6000):
        given, users = rng.normal(size=(n, 4)), np.arange(n) // 2
        model = tacitly.FedPower(1, 4.0, adjacency=adjacency, **options).fit(given, users=users)
        released = {r.name: (r.coordinates, r.event.sensitivity.replace_one) for r in model.certificate_.releases}
        norms = next(found for name, found in released.items() if name.startswith("norms of"))
        assert norms == ((2, 2.0) if n == 120 else (1920, math.sqrt(2.0)))
        assert model.certificate_.epsilon <= 4.0
