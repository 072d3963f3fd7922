"""The GPU engine finds what the local engine finds; here its forms run in plain PyTorch, on the processor."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

import tacitly
from engines import distance, fit, promised, users
from tacitly.data.cohort import Cohort
from tacitly.federation.bounds import BoundExceeded
from tacitly.federation.cuda import forms, rows, sums
from tacitly.federation.cuda.engine import NO_DEVICE, CudaEngine
from tacitly.federation.cuda.shard import DeviceShard
from tacitly.federation.cuda.sums import NotFinite
from tacitly.federation.engine import engine_named
from tacitly.federation.shard import Shard
from tacitly.methods.fedrep.queries import BasisStep
from tacitly.methods.shared.whitening import Whitening

CPU = torch.device("cpu")
GRID = 2.0**-40
STEP = BasisStep(np.eye(6)[:, :2], np.eye(2), 0.4, Whitening.identity(6))


def exact(shard: Shard, **options: object) -> np.ndarray:
    return np.asarray(shard.exact_sum(STEP, 1.0, GRID, **options)) * GRID  # type: ignore[arg-type]


ON_DEVICE = (
    *("fedrep", "fedrep, intercepts", "logistic", "three classes", "hinge", "poisson"),
    *("mixed effects", "sparse", "sparse, chosen", "sparse, central"),
)


@pytest.mark.parametrize("name", ON_DEVICE)
def test_a_fit_finds_the_same_model(name: str) -> None:
    data = users(200, name=name)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)  # every query has a device form
        assert distance(fit(name, data), fit(name, data, CudaEngine(device="cpu"))) < 1e-5


@pytest.mark.parametrize("name", ["fedrep", "sparse, chosen"])
def test_a_certified_fit_states_the_same_releases(name: str) -> None:
    data = users(200)
    models = [fit(name, data, engine, epsilon=1.0) for engine in (None, CudaEngine(device="cpu"))]
    assert models[1].certificate_.certified
    assert promised(models[0]) == promised(models[1])


def test_the_sum_does_not_depend_on_how_rows_reach_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    data = users(3000)
    kept = exact(DeviceShard(data, CPU, resident=True))
    monkeypatch.setattr(rows, "STREAMED", 1024)
    assert np.array_equal(kept, exact(DeviceShard(data, CPU, resident=False)))
    assert np.allclose(kept, exact(Shard(data)), atol=1e-5)


def test_where_rows_lie_does_not_depend_on_how_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neighbours differ in a user's rows, however many; users and features decide."""
    device, free = torch.device("cuda"), 100 * (rows.ROWS * 4 * 8 + 8) / 0.6
    for extra, resident in ((1, True), (-1, False)):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device, extra=extra: (free + extra, 0))
        for each in (0, 1, 5000):
            offsets = np.append(np.zeros(100, dtype=np.int64), each)
            assert rows.DeviceRows(np.zeros((each, 3)), None, offsets, device).resident == resident


def test_users_who_take_no_part_add_nothing() -> None:
    data = users(1500)
    chosen = np.random.default_rng(0).random(1500) < 0.3
    found = exact(DeviceShard(data, CPU), chosen=chosen)
    assert np.allclose(found, exact(Shard(data), chosen=chosen), atol=1e-6)
    assert np.allclose(found, exact(DeviceShard(data.take(np.flatnonzero(chosen)), CPU)), atol=1e-6)


def test_a_user_with_absurd_numbers_changes_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    data = users(50)
    X = np.array(data.X)
    X[data.offsets[7] : data.offsets[8]] = np.nan
    without = exact(DeviceShard(data, CPU), chosen=np.arange(50) != 7)
    assert np.array_equal(
        exact(DeviceShard(Cohort(X, data.y, data.offsets, data.users, data.feature_names), CPU)), without
    )


def test_a_device_sum_that_is_not_finite_is_refused() -> None:
    """The host does not sum instead: it differs in the last bits, and private rows would decide which one ran."""
    shard = DeviceShard(users(50), CPU)
    shard._last_form = STEP, 1.0, lambda span, *rest: torch.full((1, STEP.coordinates), torch.nan, dtype=torch.float64)
    with pytest.raises(NotFinite, match="Nothing of it was released"):
        exact(shard)


def test_a_form_that_exceeds_its_users_times_the_clip_is_refused() -> None:
    shard = DeviceShard(users(50), CPU)
    shard._last_form = STEP, 1.0, lambda span, *rest: torch.full((1, STEP.coordinates), 50.0, dtype=torch.float64)
    with pytest.raises(BoundExceeded, match="Nothing of it was released"):
        exact(shard)


def test_a_form_that_disagrees_with_the_definition_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(span: rows.Span, bound: float, size: int, who: object) -> torch.Tensor:
        return torch.zeros(-(-span.users // size), STEP.coordinates, dtype=torch.float64)

    data, query = users(50), replace(STEP)  # another query: each is compared once
    monkeypatch.setattr("tacitly.federation.cuda.shard.form_of", lambda query, context: wrong)
    found = DeviceShard(data, CPU).exact_sum(query, 1.0, GRID)
    assert np.array_equal(found, Shard(data).exact_sum(query, 1.0, GRID))


@dataclass(frozen=True)
class Other(BasisStep):
    """A step that has no device form of its own."""


def test_a_query_without_a_form_is_summed_on_the_host_with_one_warning() -> None:
    data, query = users(50), Other(STEP.basis, STEP.head_metric, STEP.scale, STEP.whitening)
    shard = DeviceShard(data, CPU)
    with pytest.warns(RuntimeWarning, match="there is no device form of Other") as said:
        found = [shard.exact_sum(query, bound, GRID) for bound in (1.0, 0.5)]
    assert len(said) == 1
    assert np.array_equal(found[0] * GRID, exact(Shard(data)))


def test_what_is_kept_on_the_device_belongs_to_its_users() -> None:
    context = forms.Context(CPU, True, 10)
    made = [context.keep("moments", Whitening.identity(2), (0, 10), lambda: torch.ones(1)) for _ in range(2)]
    assert made[0] is made[1]
    assert context.keeping_nothing().n_users > 1e300
    assert context.keep("moments", Whitening.identity(3), (0, 10), lambda: torch.zeros(1)) is not made[0]


def test_engines_have_names(monkeypatch: pytest.MonkeyPatch) -> None:
    assert engine_named(None) is engine_named("local") is None
    assert isinstance(engine_named("cuda"), CudaEngine)
    with pytest.raises(ValueError, match="engine must be 'local', 'cuda', 'ray' or an engine"):
        tacitly.PrivateFedRep(rank=1, epsilon=1.0, engine="gpu").fit(users(20))


def test_without_a_device_one_sentence_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RuntimeError, match="needs PyTorch with a CUDA device; found none") as raised:
        tacitly.PrivateFedRep(rank=1, epsilon=1.0, engine="cuda").fit(users(20))
    assert str(raised.value) == NO_DEVICE


def test_integers_are_added_on_the_device_as_on_the_host() -> None:
    data = users(10)
    held = rows.DeviceRows(data.X, data.y, data.offsets, CPU)
    halves = torch.tensor([[0.5 * GRID, 1.5 * GRID, -2.5 * GRID]], dtype=torch.float64)
    found, kept = sums.integer_sums(held, lambda *_: halves, 1.0, GRID)
    assert (found.tolist(), kept) == ([0, 2, -2], True)  # to the nearest, ties to even, as numpy.rint does
