"""Nodes and coordinator in one process, exchanging the same bytes as on the wire."""

from __future__ import annotations

import json
import math
import stat
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

import tacitly
from engines import EVERY, FEW, REFUSED, ROUGH, distance, fit, promised, users
from loopback import QUICK, Loopback, loopback
from tacitly.deployment.settings import Groups, Settings, Status
from tacitly.federation import wire
from tacitly.federation.flower.coordinator import FlowerFederation, QuorumMissed
from tacitly.federation.flower.kept_heads import read_heads
from tacitly.federation.flower.messages import Answer, Ask
from tacitly.federation.flower.population import FlowerPopulation
from tacitly.federation.local import LocalFederation
from tacitly.methods.fedpower.as_printed import DeviceGram
from tacitly.methods.margin.queries import MarginLosses
from tacitly.methods.shared.whitening import FeatureMoment
from tacitly.privacy.guarantee import Budget, GaussianEvent, Sensitivity
from tacitly.privacy.ledger import Ledger, LedgerMismatch

EVENT = GaussianEvent(sigma=30.0, sensitivity=Sensitivity.of_clip(1.0, acute=True))
CEILING = Budget(epsilon=2.0, delta=1e-6)
GRID = 2.0**-40


def coordinate(hub: Path, transport: object) -> None:
    pytest.importorskip("flwr")
    from tacitly.deployment import server_app

    server_app.coordinate(hub, transport)


def few(name: str) -> tacitly.Cohort:
    """Users whose nodes answer in plain NumPy; fewer where every row is asked for itself."""
    return users(15 if EVERY[name][1].rows else 60, name=name)


@pytest.mark.parametrize("name", [name for name in EVERY if name not in FEW])
@pytest.mark.parametrize("n", [100, 300])  # nodes in plain NumPy, and compiled
def test_every_algorithm_finds_the_same_basis_as_in_one_process(name: str, n: int, tmp_path: Path) -> None:
    data = few(name) if n == 100 else users(n, name=name)
    place = loopback(data, tmp_path, rows=EVERY[name][1].rows)
    assert distance(fit(name, data), fit(name, None, place)) < ROUGH[name]


@pytest.mark.parametrize("name", [name for name in EVERY if name not in FEW])
def test_with_noise_the_ledger_is_the_same(name: str, tmp_path: Path) -> None:
    data = few(name)
    place = loopback(data, tmp_path, rows=EVERY[name][1].rows)
    # Whether a mean is released twice depends on earlier releases, so the noise must not decide it here.
    epsilon = 1000.0 if EVERY[name][1].adaptive else 1.0
    here, there = fit(name, data, epsilon=epsilon), fit(name, None, place, epsilon=epsilon)
    assert promised(here) == promised(there)
    assert here.certificate_.certified == there.certificate_.certified


def test_a_design_is_counted_from_a_mean_that_nodes_were_asked_for(tmp_path: Path) -> None:
    name = "trace of rows, off centre"
    place = loopback(users(300, name=name), tmp_path, rows=True)
    model = fit(name, None, place)
    assert model.intercept_ != 0.0
    assert "mean of the design 2" in [row.name for row in model.certificate_.releases]


def test_heads_stay_at_their_nodes_in_files_that_only_the_owner_reads(tmp_path: Path) -> None:
    data = users(100)
    local, model = fit("fedrep", data), fit("fedrep", None, loopback(data, tmp_path))
    assert len(model.heads_) == len(model.users_) == 0
    stored = [read_heads(tmp_path / f"node{i}" / "heads.npz") for i in range(3)]
    heads = np.concatenate([one["heads"] for one in stored])
    np.testing.assert_allclose(heads[:, :-1], local.heads_, atol=1e-8)
    np.testing.assert_array_equal(np.concatenate([one["users"] for one in stored]), data.users)
    for i in range(3):
        assert stat.S_IMODE((tmp_path / f"node{i}" / "heads.npz").stat().st_mode) == 0o600


def federation(place: FlowerPopulation, ledger: Ledger | None = None, **options: object) -> FlowerFederation:
    run = (ledger or Ledger()).run("test", config={}, certified=False)
    return place.federation(run, **options)


def local_sum(data: tacitly.Cohort) -> np.ndarray:
    return LocalFederation(data, Ledger().run("l", config={}))._exact_sum(FeatureMoment(6), 1.0, GRID)


def test_a_node_that_does_not_answer_costs_its_signal_only(tmp_path: Path) -> None:
    data = users(90)
    place = loopback(data, tmp_path)
    place.transport.meddle = lambda node, answer: [] if node == 11 else [(node, answer)]
    fed = federation(place)
    rest = data.take(np.r_[0:30, 60:90])
    np.testing.assert_allclose(fed._exact_sum(FeatureMoment(6), 1.0, GRID) * GRID, local_sum(rest) * GRID, atol=1e-9)
    assert fed.n_users == 90


def test_below_the_quorum_nothing_is_drawn_and_the_same_run_goes_on(tmp_path: Path) -> None:
    data = users(90)
    place = loopback(data, tmp_path)
    answering = place.transport.meddle
    place.transport.meddle = lambda node, answer: []
    ledger = Ledger(tmp_path / "ledger")
    with pytest.raises(QuorumMissed):
        federation(place, ledger).release(FeatureMoment(6), EVENT, "moment")
    assert [row.state for row in ledger.releases()] == ["debited"]
    ledger.close()
    place.transport.meddle = answering
    with Ledger(tmp_path / "ledger") as again:
        federation(place, again).release(FeatureMoment(6), EVENT, "moment")
        assert [(row.state, row.attempts) for row in again.releases()] == [("published", 2)]


def test_a_release_that_may_have_been_seen_is_not_said_to_go_on(tmp_path: Path) -> None:
    place = loopback(users(90), tmp_path)
    place.transport.meddle = lambda node, answer: []
    with pytest.raises(QuorumMissed, match="start the same run again to resume it"):
        federation(place).release(FeatureMoment(6), EVENT, "moment")
    with pytest.raises(QuorumMissed, match=r"cannot be drawn again\. Start a new run"):
        federation(place).release_in_turns(lambda out: FeatureMoment(6), 2, EVENT, "turns")


def test_garbage_replays_strangers_and_duplicates_change_nothing(tmp_path: Path) -> None:
    data = users(90)
    place = loopback(data, tmp_path)
    expected = federation(place)._exact_sum(FeatureMoment(6), 1.0, GRID)
    seen: list[bytes] = []

    def meddle(node: int, answer: bytes) -> list[tuple[object, object]]:
        seen.append(answer)
        token = Answer.from_bytes(answer).token
        poison = Answer(token, "ok", np.full(21, 2**62)).to_bytes()
        stranger = Answer(token, "ok", np.ones(21, dtype=np.int64)).to_bytes()
        old = Answer("0" * 32, "ok", np.ones(21, dtype=np.int64)).to_bytes()
        return [(node, b"rubbish"), (node, poison), (99, stranger), (node, old), (node, answer), (node, answer)]

    place.transport.meddle = meddle
    fed = federation(place)
    np.testing.assert_array_equal(fed._exact_sum(FeatureMoment(6), 1.0, GRID), expected)
    assert fed.verdicts == {"ok": 3, "malformed": 3, "range": 3, "unknown": 3, "late": 3, "duplicate": 3}


def test_a_node_cannot_answer_for_another_whatever_the_transport_says_of_the_sender(tmp_path: Path) -> None:
    data = users(90)
    place = loopback(data, tmp_path)
    expected = federation(place)._exact_sum(FeatureMoment(6), 1.0, GRID)
    others = [node for node in place.roster if node != 10]

    def meddle(node: int, answer: bytes) -> list[tuple[object, object]]:
        if node != 10:
            return [(node, answer)]
        forged = Answer(Answer.from_bytes(answer).token, "ok", np.ones(21, dtype=np.int64)).to_bytes()
        return [(other, forged) for other in others] + [(node, answer)]

    place.transport.meddle = meddle
    fed = federation(place)
    np.testing.assert_array_equal(fed._exact_sum(FeatureMoment(6), 1.0, GRID), expected)
    assert fed.verdicts == {"ok": 3, "late": 2}


def test_a_node_counts_for_its_users_and_no_more(tmp_path: Path) -> None:
    place = loopback(users(90), tmp_path)
    far = np.full(21, int(25 / GRID))  # each coordinate is possible for 30 users, but the norm is not

    def meddle(node: int, answer: bytes) -> list[tuple[object, object]]:
        return [(node, Answer(Answer.from_bytes(answer).token, "ok", far).to_bytes() if node == 10 else answer)]

    place.transport.meddle = meddle
    fed = federation(place)
    total = fed._exact_sum(FeatureMoment(6), 1.0, GRID) * GRID
    assert fed.verdicts == {"ok": 2, "clipped": 1}
    rest = local_sum(users(90).take(np.arange(30, 90))) * GRID
    assert np.linalg.norm(total - rest) == pytest.approx(30.0)


def test_what_is_not_clipped_is_neither_asked_of_nodes_nor_released_with_noise(tmp_path: Path) -> None:
    place = loopback(users(30), tmp_path)
    with pytest.raises(ValueError, match="is not clipped: nodes do not answer it"):
        federation(place)._exact_sum(DeviceGram(6), 1.0, GRID)
    with pytest.raises(ValueError, match="no noise makes a sum of it private"):
        federation(place).release(DeviceGram(6), EVENT, "matrices")


def test_what_goes_wrong_at_a_node_leaves_it_as_a_code(tmp_path: Path) -> None:
    place = loopback(users(30), tmp_path)
    node = place.transport.nodes[10]

    def fail(*_: object) -> None:
        raise RuntimeError("secret 42")

    node._shard.exact_sum = fail
    ask = Ask(kind="sum", run="r", step="1.0", token="t", thing=wire.encode(FeatureMoment(6)), grid=GRID)
    assert Answer.from_bytes(node.answer(ask.to_bytes())) == Answer("t", "failed", None)
    assert Answer.from_bytes(node.answer(b"\x80\x04")).code == "malformed"
    assert b"secret" not in node.answer(ask.to_bytes())


@pytest.mark.parametrize("trust", ["node", "secure"])
def test_a_node_asked_again_sends_the_same_bytes_and_for_anything_else_none(trust: str, tmp_path: Path) -> None:
    place = loopback(users(60), tmp_path, trust=trust, ceiling=CEILING)
    federation(place).release(FeatureMoment(6), EVENT, "moment")
    transport = place.transport
    node, data = next(sent for sent in reversed(transport.asked) if Ask.from_bytes(sent[1]).kind == "sum")
    ask = Ask.from_bytes(data)
    first, again = (transport.nodes[node].answer(data) for _ in range(2))
    assert first == again
    for changed in ({"thing": wire.encode(FeatureMoment(6, True))}, {"bound": 0.5}, {"group": ask.group[:-1]}):
        other = Ask(**{**ask.__dict__, **changed}).to_bytes()
        if changed != {"group": ()} or trust == "secure":
            assert Answer.from_bytes(transport.nodes[node].answer(other)).code == "refused", changed


@pytest.mark.parametrize("trust", ["node", "secure"])
def test_a_node_that_does_not_trust_the_coordinator_is_not_talked_out_of_it(trust: str, tmp_path: Path) -> None:
    place = loopback(users(60), tmp_path, trust=trust, ceiling=CEILING)
    federation(place).release(FeatureMoment(6), EVENT, "moment")
    node, data = next(sent for sent in place.transport.asked if Ask.from_bytes(sent[1]).kind == "sum")
    ask = Ask.from_bytes(data)
    group = () if trust == "secure" else ("node0", "node1")
    for number, changed in enumerate(
        [{"sigma": 0.0}, {"sigma": 1e-3}, {"group": group}, {"honest": 1000}, {"grid": 0.25}, {"noise": "seeded"}]
    ):
        if trust == "node" and "honest" in changed:
            continue
        other = Ask(**{**ask.__dict__, **changed, "step": f"9.{number}"}).to_bytes()
        assert Answer.from_bytes(place.transport.nodes[node].answer(other)).code == "refused", changed


@pytest.mark.parametrize(("trust", "shares"), [("node", 3.0), ("secure", 3 / 2)])
def test_noise_of_the_nodes_adds_up_to_what_the_certificate_says(trust: str, shares: float, tmp_path: Path) -> None:
    place = loopback(users(60), tmp_path, trust=trust, ceiling=Budget(epsilon=1e6, delta=1e-6))
    exact = local_sum(users(60)) * GRID
    errors = []
    for number in range(40):
        run = Ledger().run(f"run{number}", config={}, certified=False)
        fed = place.federation(run)
        errors.append(fed.release(FeatureMoment(6), EVENT, "moment") - exact)
    assert fed.sum_sigma(EVENT) == pytest.approx(30.0 * math.sqrt(shares))
    spread = np.sqrt(np.mean(np.square(errors)))  # 840 draws: a relative error of 2.4 %
    assert abs(spread / fed.sum_sigma(EVENT) - 1) < 6 * 0.0244


def test_a_masked_answer_alone_is_uniform_and_below_the_threshold_unreadable(tmp_path: Path) -> None:
    place = loopback(users(60), tmp_path, trust="secure", ceiling=CEILING)
    seen = []

    def meddle(node: int, answer: bytes) -> list[tuple[object, object]]:
        total = Answer.from_bytes(answer).total
        assert total is not None
        if len(total) > 60:  # an answer with shares, not a vote or a sum of shares
            seen.append(total[:21])
        return [(node, answer)] if len(total) > 60 or node != 12 else []

    place.transport.meddle = meddle
    with pytest.raises(QuorumMissed, match="3 of 3 nodes must be there to remove the masks"):
        federation(place).release(FeatureMoment(6), EVENT, "moment")
    assert np.median(np.abs(np.array(seen, dtype=np.float64))) > 2.0**58  # far beyond any sum of 60 users


def test_a_group_that_is_too_small_is_not_unmasked(tmp_path: Path) -> None:
    place = loopback(users(60), tmp_path, trust="secure", ceiling=CEILING)
    transport = place.transport
    assert isinstance(transport, Loopback)
    del transport.nodes[10], transport.nodes[11]
    with pytest.raises(QuorumMissed, match="a masked sum needs 3"):
        federation(place).release(FeatureMoment(6), EVENT, "moment")
    assert {Ask.from_bytes(ask).kind for _, ask in transport.asked} == {"sum"}


def test_with_masks_and_noise_a_whole_model_is_learned_and_certified(tmp_path: Path) -> None:
    place = loopback(users(900), tmp_path, trust="secure", ceiling=Budget(epsilon=8.0, delta=1e-6))
    model = fit("fedrep", None, place, epsilon=8.0)
    assert model.certificate_.certified
    assert "with up to 1 of the nodes" in model.certificate_.trust
    assert "all others follow the protocol" in model.certificate_.trust
    with Ledger(tmp_path / "node0" / "node.ledger") as own:
        assert own.spent() == pytest.approx(model.certificate_.epsilon, rel=1e-6)


_COMPILED = (
    "low_rank_sparse.heads",
    "low_rank_sparse.queries",
    "low_rank_sparse.as_printed",
    "trace_regression.queries",
    "trace_regression.curvature",
    "trace_regression.centering",
    "trace_regression.effects",
    "recommender.heads",
    "recommender.posterior",
    "recommender.queries",
    "recommender.tastes",
)
COMPILED = tuple(f"tacitly.methods.{name}" for name in _COMPILED)
"""Questions that load a compiler when they first arrive."""


def test_a_node_starts_without_a_compiler_or_scipy() -> None:
    program = (
        "import sys, importlib\nfrom tacitly.federation import wire\nimport tacitly.federation.flower.node\n"
        f"[importlib.import_module(name) for name in set(wire.KNOWN.values()) - set({COMPILED})]\n"
        "print([name for name in ('numba', 'scipy', 'sklearn', 'pyarrow', 'flwr', 'ray') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_coins_show_neither_in_who_is_asked_nor_in_what_is_told(tmp_path: Path) -> None:
    place = loopback(users(60), tmp_path, 60)
    told: list[dict[str, object]] = []
    place.on_round = told.append
    sampled = GaussianEvent(sigma=3.0, sensitivity=Sensitivity.of_clip(1.0, acute=True), sampling_rate=0.2)
    federation(place).release(FeatureMoment(6), sampled, "moment")
    assert sorted(node for node, _ in place.transport.asked) == sorted(place.roster)
    assert told == [{"step": "1.0", "asked": 60}]


def test_a_message_that_was_lost_gives_no_node_up(tmp_path: Path) -> None:
    data = users(90)
    place = loopback(data, tmp_path)
    first = {11}

    def meddle(node: int, answer: bytes) -> list[tuple[object, object]]:
        if node in first:
            first.remove(node)
            return [(node, None)]  # how a transport reports a message that it could not deliver
        return [(node, answer)]

    place.transport.meddle = meddle
    fed = federation(place)
    np.testing.assert_allclose(fed._exact_sum(FeatureMoment(6), 1.0, GRID) * GRID, local_sum(data) * GRID, atol=1e-9)
    assert fed.verdicts == {"ok": 3, "lost": 1}


def test_what_asks_some_users_at_a_time_needs_central_trust(tmp_path: Path) -> None:
    place = loopback(users(60), tmp_path, trust="node", ceiling=CEILING)
    with pytest.raises(ValueError, match="release_in_turns asks some users at a time"):
        federation(place).release_in_turns(lambda out: FeatureMoment(6), 2, EVENT, "moment")
    with pytest.raises(ValueError, match="release_each asks some users at a time"):
        federation(place).release_each([FeatureMoment(6)] * 60, EVENT, "moment")
    federation(place).release(FeatureMoment(6), EVENT, "moment")
    node, data = place.transport.asked[-1]
    some = Ask(**{**Ask.from_bytes(data).__dict__, "step": "9.0", "chosen": np.ones(20, dtype=bool)})
    assert Answer.from_bytes(place.transport.nodes[node].answer(some.to_bytes())).code == "refused"


def test_a_masked_sum_is_resumed_with_the_same_group_whoever_is_back(tmp_path: Path) -> None:
    place = loopback(users(100), tmp_path, 5, trust="secure", ceiling=CEILING)
    place.groups = Groups(tmp_path)
    transport, answering = place.transport, place.transport.meddle
    late = transport.nodes.pop(14)
    transport.meddle = lambda node, answer: [(node, answer)] if len(Answer.from_bytes(answer).total) > 60 else []
    with pytest.raises(QuorumMissed, match="4 of 5 nodes must be there"):
        federation(place).release(FeatureMoment(6), EVENT, "moment")
    transport.nodes[14], transport.meddle = late, answering
    place.groups = Groups(tmp_path)  # another process
    total = federation(place).release(FeatureMoment(6), EVENT, "moment")
    assert place.groups["test/1.0"] == ["node0", "node1", "node2", "node3"]
    assert np.abs(total).max() < 100 + 10 * 30.0 * math.sqrt(5 / 3)


def test_sites_take_part_in_one_run_after_the_other_under_their_own_ceiling(tmp_path: Path) -> None:
    place = loopback(users(90), tmp_path, trust="node", ceiling=Budget(epsilon=4.0, delta=1e-6))
    for number, epsilon in enumerate((2.0, 1.0)):
        hub = coordinators_folder(tmp_path / f"hub{number}", place, trust="node", epsilon=epsilon)
        coordinate(hub, place.transport)
        assert Status(hub).read()["state"] == "finished"


def coordinators_folder(hub: Path, place: FlowerPopulation, **changed: object) -> Path:
    hub.mkdir()
    options = {"server": "127.0.0.1:1", "out": f"{hub}-model", "epsilon": 4.0}
    options |= {"method": "fedrep", "options": {"rank": 2, "rounds": 1}}
    options |= {"cards": tuple(place.roster.values()), "patience": asdict(QUICK)}
    Settings(**options | changed).save(hub)
    (hub / "nodes.json").write_text(json.dumps({card.name: node for node, card in place.roster.items()}))
    return hub


def test_a_model_folder_that_was_there_before_is_no_success(tmp_path: Path) -> None:
    place = loopback(users(90), tmp_path)
    hub = coordinators_folder(tmp_path / "hub", place)
    (tmp_path / "hub-model").mkdir()
    with pytest.raises(FileExistsError):
        coordinate(hub, place.transport)
    assert "this run did not write it" in Status(hub).read()["last_error"]
    assert place.transport.asked == []
    (tmp_path / "hub-model").rmdir()
    coordinate(hub, place.transport)
    coordinate(hub, place.transport)  # the model that this run made before
    other = coordinators_folder(tmp_path / "other", place, out=f"{hub}-model")
    with pytest.raises(FileExistsError):
        coordinate(other, place.transport)


def test_a_run_is_not_resumed_with_somebody_else_adding_the_noise(tmp_path: Path) -> None:
    data, path = users(90), tmp_path / "ledger"
    place = loopback(data, tmp_path)
    place.transport.meddle = lambda node, answer: []
    with Ledger(path, ceiling=Budget(epsilon=4.0, delta=1e-6)) as ledger, pytest.raises(QuorumMissed):
        fit("fedrep", None, place, epsilon=4.0, ledger=ledger, run="r")
    other = loopback(data, tmp_path, trust="node", ceiling=CEILING)
    with Ledger(path) as ledger, pytest.raises(LedgerMismatch):
        fit("fedrep", None, other, epsilon=4.0, ledger=ledger, run="r")


LOSSES = MarginLosses(np.array([[[1.0], *[[0.0]] * 5], [[0.0], [1.0], *[[0.0]] * 4]]), np.ones((1, 1)), 0.1)


def test_a_certificate_says_that_the_coordinator_sees_losses(tmp_path: Path) -> None:
    name = "margin, cover"
    model = fit(name, None, loopback(users(90, name=name), tmp_path), epsilon=1.0)
    assert "of their losses for a choice; the coordinator sees those sums without noise" in (model.certificate_.trust)


def test_losses_are_counted_exactly_and_choose_as_in_one_process(tmp_path: Path) -> None:
    data = users(90, name="hinge")
    there = federation(loopback(data, tmp_path))._exact_sum(LOSSES, math.inf, 1.0)
    here = LocalFederation(data, Ledger().run("l", config={}))._exact_sum(LOSSES, math.inf, 1.0)
    np.testing.assert_array_equal(there, here)


@pytest.mark.parametrize("rubbish", [[-1, 0], [30 * LOSSES.steps + 1, 0], [0], [0, 0, 0]])
def test_losses_that_no_users_could_have_are_not_counted(rubbish: list[int], tmp_path: Path) -> None:
    data = users(90, name="hinge")
    place = loopback(data, tmp_path)
    place.transport.meddle = lambda node, answer: [
        (node, Answer(Answer.from_bytes(answer).token, "ok", np.array(rubbish)).to_bytes() if node == 10 else answer)
    ]
    doors = federation(place)
    rest = LocalFederation(data.take(np.arange(30, 90)), Ledger().run("l", config={}))
    np.testing.assert_array_equal(doors._exact_sum(LOSSES, math.inf, 1.0), rest._exact_sum(LOSSES, math.inf, 1.0))
    assert doors.verdicts["ok"] == 2


@pytest.mark.parametrize("trust", ["node", "secure"])
def test_where_nobody_is_trusted_with_losses_nothing_is_asked(trust: str, tmp_path: Path) -> None:
    place = loopback(users(90, name="hinge"), tmp_path, trust=trust, ceiling=CEILING)
    with pytest.raises(ValueError, match="a choice needs one process that adds up losses"):
        tacitly.MarginClassifier(1, 1.0, mode="cover", dimension=2, engine=place).fit()
    assert not place.transport.asked


def test_labels_that_nodes_would_have_to_translate_are_refused(tmp_path: Path) -> None:
    place = loopback(users(90, name="hinge"), tmp_path)
    with pytest.raises(ValueError, match="labels must be the numbers 0 to 1 there"):
        tacitly.PrivateFedRep(2, 1.0, loss="hinge", classes=("no", "yes"), engine=place).fit()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"privacy": "labels"}, "reads X, which is public then"),
        ({"unit": "user", "max_observations": 3}, "Drop surplus rows where they are kept"),
        ({"shape": (3, 3)}, "has 9 columns. Found 6"),
        ({"covariance": np.ones((2, 3))}, "have not published their numbers of rows"),
    ],
)
def test_trace_regression_refuses_what_needs_rows_here(options: dict[str, object], reason: str, tmp_path: Path) -> None:
    place = loopback(users(90), tmp_path)
    with pytest.raises(ValueError, match=reason):
        tacitly.TraceRegression(1, 1.0, **{"shape": (2, 3), "engine": place} | options).fit()


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("centaur", {"rank": 1, "rounds": 2}),
        ("low-rank-sparse", {"rank": 1, "sparsity": 1}),
        ("margin", {"rank": 1, "dimension": 2, "mode": "cover"}),
        ("trace", {"rank": 1, "shape": [2, 3]}),
        ("svd", {"n_components": 1, "unit": "row", "route": "gram"}),
        ("networks", {"rounds": 1, "widths": [3], "target_range": [-9, 9]}),
    ],
)
def test_a_coordinator_learns_by_every_method(method: str, options: dict[str, object], tmp_path: Path) -> None:
    data = users(90, name="margin, cover" if method == "margin" else "")
    place = loopback(data, tmp_path, rows=True)
    hub = tmp_path / "hub"
    hub.mkdir()
    settings = Settings(
        server="-", out=str(tmp_path / "model"), epsilon=4.0, method=method, options=options,
        cards=tuple(place.roster.values()),
    )  # fmt: skip
    settings.save(hub)
    (hub / "nodes.json").write_text(json.dumps({card.name: node for node, card in place.roster.items()}))
    coordinate(hub, place.transport)
    model = tacitly.load(tmp_path / "model")
    assert model.certificate_.certified
    assert max(row.coordinates for row in model.certificate_.releases) * 8 < settings.longest_answer


@pytest.mark.parametrize("name", [name for name in EVERY if name not in FEW])
def test_where_nodes_add_the_noise_an_algorithm_runs_or_refuses_at_once(name: str, tmp_path: Path) -> None:
    place = loopback(users(60, name=name), tmp_path, rows=EVERY[name][1].rows, trust="node", ceiling=CEILING)
    if name in REFUSED:
        with pytest.raises(ValueError, match=REFUSED[name]):
            fit(name, None, place, epsilon=2.0)
        assert not place.transport.asked
        return
    model = fit(name, None, place, epsilon=2.0)
    assert model.certificate_.certified == EVERY[name][1].certified
