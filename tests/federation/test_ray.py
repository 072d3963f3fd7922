"""Ray: bit-identical to a single process, even if actors are lost."""

from __future__ import annotations

import math
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse

import tacitly
from engines import EVERY, FEW, ROUGH, distance, fit, promised, users
from tacitly.cli.main import main
from tacitly.data.validation import DataError
from tacitly.federation.local import LocalFederation
from tacitly.federation.wire import WireError
from tacitly.heads.ridge import RidgeHeads
from tacitly.methods.shared.whitening import FeatureMoment
from tacitly.privacy.guarantee import GaussianEvent, Sensitivity
from tacitly.privacy.ledger import Ledger
from tacitly.simd.lazy_njit import MANY

ray = pytest.importorskip("ray")

from tacitly.federation.ray import Part, RayEngine, RayPopulation, ShardsLost, _actor_class  # noqa: E402


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    ray.init(address="local", num_cpus=24, include_dashboard=False, log_to_driver=False, configure_logging=False)
    yield
    ray.shutdown()


class Kept:
    """An engine that distributes the same users once, because starting actors is slower than the algorithms."""

    def __init__(self) -> None:
        self._places: dict[bytes, RayPopulation] = {}

    def population(self, source: Any) -> RayPopulation:
        told = source.X.tobytes() + source.y.tobytes()
        if told not in self._places:
            self._places[told] = RayEngine(workers=2).population(source)
        return self._places[told]


@pytest.fixture(scope="module")
def kept() -> Kept:
    return Kept()


@pytest.mark.parametrize("name", EVERY)
def test_every_algorithm_finds_the_same_basis_as_in_one_process(name: str, kept: Kept) -> None:
    data = users(12 if name in FEW else 200, name=name)
    assert distance(fit(name, data), fit(name, data, kept)) < ROUGH[name]


def test_shards_have_the_share_of_a_gpu_that_was_asked_for() -> None:
    for share in (0.0, 0.25, 1.0):
        assert _actor_class(share)._default_options["num_gpus"] == share
        assert RayEngine(gpus=share).gpus == share


def test_sparse_rows_are_spread_too() -> None:
    data = users(60)
    rows, ids = scipy.sparse.csr_matrix(np.where(data.X > 1, data.X, 0)), np.repeat(data.users, np.diff(data.offsets))
    models = [tacitly.FedPower(2, math.inf, route="gram", engine=engine) for engine in (None, RayEngine(workers=2))]
    for model in models:
        with pytest.warns(tacitly.UncertifiedWarning):
            model.fit(rows, users=ids)
    assert distance(*models) < 1e-9


def test_who_adds_the_noise_is_what_the_certificate_says() -> None:
    model = tacitly.FedPower(2, 1.0, trust="local", engine=RayEngine(workers=2)).fit(users(40))
    assert model.certificate_.trust.startswith("local")


def test_with_whole_blocks_the_sum_is_the_same_to_the_last_bit() -> None:
    data = users(4 * MANY)  # so that every shard takes the compiled form
    alone = LocalFederation(data, Ledger().run("a", config={}))._exact_sum(FeatureMoment(6), 1.0, 2.0**-40)
    for workers in (1, 2, 4):
        run = Ledger().run("b", config={})
        spread = RayEngine(workers=workers).population(data).federation(run)
        np.testing.assert_array_equal(spread._exact_sum(FeatureMoment(6), 1.0, 2.0**-40), alone)


@pytest.mark.parametrize("name", [name for name in EVERY if name not in FEW])
def test_with_noise_the_ledger_is_the_same(name: str, kept: Kept) -> None:
    data = users(200, name=name)
    # What is released later may depend on earlier noise; with little noise it is the same.
    epsilon = 1000.0 if EVERY[name][1].adaptive else 1.0
    here, there = (fit(name, data, engine, epsilon=epsilon) for engine in (None, kept))
    assert promised(here) == promised(there)
    assert here.certificate_.certified == there.certificate_.certified
    assert "Ray" in there.certificate_.trust


def test_a_tree_of_many_sums_adds_up() -> None:
    data = users(40)
    run = Ledger().run("a", config={})
    federation = RayEngine(workers=2).population(data).federation(run)
    parts = [ray.put(np.full(3, i)) for i in range(100)]
    np.testing.assert_array_equal(federation._added_up(parts, 3), np.full(3, 4950))


@pytest.mark.parametrize("read", ["by the actors", "from the object store"])
def test_an_actor_that_is_killed_has_its_shard_again_and_adds_the_same(read: str, tmp_path: Path) -> None:
    data = users(60)
    data.save(tmp_path / "cohort")
    parts = tuple(Part(path=str(tmp_path / "cohort"), first=a, last=b) for a, b in ((0, 30), (30, 60)))
    place = (
        RayEngine(parts=parts).population(None) if read == "by the actors" else RayEngine(workers=2).population(data)
    )
    federation = place.federation(Ledger().run("a", config={}))
    before = federation._exact_sum(FeatureMoment(6), 1.0, 2.0**-40)
    os.kill(ray.get(place._actors[1].about.remote())["process"], signal.SIGKILL)
    np.testing.assert_array_equal(federation._exact_sum(FeatureMoment(6), 1.0, 2.0**-40), before)
    assert federation.lost == 0


def test_an_actor_gone_for_good_adds_nothing_and_the_round_goes_on() -> None:
    data = users(60)
    place = RayEngine(workers=2).population(data)
    federation = place.federation(Ledger().run("a", config={}))
    ray.kill(place._actors[1], no_restart=True)
    half = LocalFederation(data.take(np.arange(30)), Ledger().run("b", config={}))
    query = FeatureMoment(6)
    with pytest.warns(RuntimeWarning, match="30 of 60 users are lost"):
        total = federation._exact_sum(query, 1.0, 2.0**-40)
    np.testing.assert_array_equal(total, half._exact_sum(query, 1.0, 2.0**-40))
    assert federation.lost == 30


def test_below_the_quorum_nothing_is_released(tmp_path: Path) -> None:
    place = RayEngine(workers=2, quorum=0.6).population(users(60))
    ledger = Ledger()
    federation = place.federation(ledger.run("a", config={}))
    ray.kill(place._actors[1], no_restart=True)
    event = GaussianEvent(sigma=3.0, sensitivity=Sensitivity.of_clip(1.0, acute=True))
    with pytest.raises(ShardsLost, match="30 of 60 users are lost; the quorum is 60%"):
        federation.release(FeatureMoment(6), event, "moment")
    assert [row.state for row in ledger.releases()] == ["debited"]


def test_a_shard_that_is_read_again_with_other_users_is_lost(tmp_path: Path) -> None:
    users(60).save(tmp_path / "cohort")
    parts = tuple(Part(path=str(tmp_path / "cohort"), first=a, last=b) for a, b in ((0, 40), (40, 60)))
    place = RayEngine(parts=parts).population(None)
    federation = place.federation(Ledger().run("a", config={}))
    shutil.rmtree(tmp_path / "cohort")
    users(60, seed=1).save(tmp_path / "cohort")
    os.kill(ray.get(place._actors[1].about.remote())["process"], signal.SIGKILL)
    with pytest.warns(RuntimeWarning, match="20 of 60 users are lost"):
        federation._exact_sum(FeatureMoment(6), 1.0, 2.0**-40)


def test_a_shard_that_hangs_is_lost_when_its_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tacitly.federation.ray._RESTART_SECONDS", 1.0)
    place = RayEngine(workers=2, timeout=2.0, quorum=1.0).population(users(60))
    federation = place.federation(Ledger().run("a", config={}))
    os.kill(ray.get(place._actors[1].about.remote())["process"], signal.SIGSTOP)
    with pytest.raises(ShardsLost):
        federation._exact_sum(FeatureMoment(6), 1.0, 2.0**-40)
    with pytest.raises(ShardsLost, match="within 2 s"):
        federation.users_map(RidgeHeads(np.eye(6)[:, :2]))


def test_a_question_that_no_shard_can_read_is_a_mistake_and_not_a_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    federation = RayEngine(workers=2).population(users(60)).federation(Ledger().run("a", config={}))
    monkeypatch.setattr("tacitly.federation.wire.encode", lambda query: b"rubbish")
    with pytest.raises(WireError, match="not a message"):
        federation._exact_sum(FeatureMoment(6), 1.0, 2.0**-40)
    assert federation.lost == 0


@pytest.mark.parametrize(("given", "used"), [(None, "local"), ("auto", "auto")])
def test_a_cluster_that_nobody_named_is_not_used(given: str | None, used: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stopped(Exception):
        pass

    def init(**told: Any) -> None:
        raise Stopped(told["address"])

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    with pytest.raises(Stopped, match=f"^{used}$"):
        RayEngine(address=given).population(users(4))


def test_a_user_with_rows_in_two_parts_is_refused(tmp_path: Path) -> None:
    data = users(20)
    data.save(tmp_path / "cohort")
    parts = tuple(Part(path=str(tmp_path / "cohort"), first=a, last=b) for a, b in ((0, 11), (10, 20)))
    with pytest.raises(DataError, match="1 users have rows in more than one part"):
        RayEngine(parts=parts).population(None)


def test_rows_that_actors_read_themselves_give_the_same_model(tmp_path: Path) -> None:
    data = users(50)
    data.save(tmp_path / "cohort")
    parts = tuple(Part(path=str(tmp_path / "cohort"), first=a, last=b) for a, b in ((0, 20), (20, 50)))
    place = RayEngine(parts=parts).population(None)
    keys = (bytes(32), b"k" * 32)
    assert place.fingerprint(keys[0]) == place.fingerprint(keys[0]) != place.fingerprint(keys[1])
    model = tacitly.PrivateFedRep(
        rank=2, rounds=2, epsilon=math.inf, engine=SimpleNamespace(population=lambda _: place)
    )
    with pytest.warns(tacitly.UncertifiedWarning):
        model.fit()
    with pytest.warns(tacitly.UncertifiedWarning):
        local = tacitly.PrivateFedRep(rank=2, rounds=2, epsilon=math.inf).fit(data)
    assert distance(model, local) < 1e-10
    assert model.users_.tolist() == list(range(50))


def test_the_command_fits_on_a_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    rows = [f"{i // 6},{a:.3f},{b:.3f},{a:.3f}" for i, (a, b) in enumerate(rng.normal(size=(600, 2)))]
    (tmp_path / "rows.csv").write_text("\n".join(["u,a,b,y", *rows]) + "\n")
    words = [
        "fit",
        str(tmp_path / "rows.csv"),
        "--user",
        "u",
        "--target",
        "y",
        "--method",
        "fedrep",
        "--rank",
        "1",
        "--epsilon",
        "2",
    ]
    words += ["--no-compare", "--out", str(tmp_path / "model"), "--engine", "ray", "--workers", "2", "--full"]
    monkeypatch.setattr("sys.argv", ["tacitly", *words])
    with pytest.raises(SystemExit) as stop:
        main()
    assert not stop.value.code
    assert "Ray cluster" in capsys.readouterr().out
    model = tacitly.load(tmp_path / "model")
    assert model.engine is None
    assert len(model.heads_) == 100
