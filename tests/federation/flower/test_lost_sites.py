"""Sites that do not answer cost their signal, not everybody's time; and no site keeps a node or the link busy."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from engines import users
from loopback import Loopback, loopback
from tacitly.federation import wire
from tacitly.federation.flower import coordinator, groups, masks, node
from tacitly.federation.flower.coordinator import FlowerFederation
from tacitly.federation.flower.messages import Answer, Ask
from tacitly.federation.flower.population import Patience
from tacitly.federation.shard import Shard
from tacitly.heads.ridge import RidgeHeads
from tacitly.methods.shared.whitening import FeatureMoment
from tacitly.privacy.guarantee import Budget, GaussianEvent, Sensitivity
from tacitly.privacy.ledger import Ledger

EVENT = GaussianEvent(sigma=30.0, sensitivity=Sensitivity.of_clip(1.0, acute=True))
PATIENCE = Patience(deadline=60.0, gather=30.0, again=10.0, poll=0.05)


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(coordinator, "time", made)
    return made


def federation(place: Any) -> FlowerFederation:
    place.patience = PATIENCE
    return FlowerFederation(place, Ledger().run("test", config={}))


def seconds_of(clock: Clock, fed: FlowerFederation, name: str) -> float:
    started = clock.now
    fed.release(FeatureMoment(6), EVENT, name)
    return clock.now - started


@pytest.mark.parametrize("online", [True, False])
@pytest.mark.parametrize("trust", ["central", "node"])
def test_only_the_first_round_waits_for_a_lost_site(trust: str, online: bool, clock: Clock, tmp_path: Path) -> None:
    """Every later round waited the whole deadline."""
    place = loopback(users(60), tmp_path, trust=trust, ceiling=Budget(epsilon=9.0, delta=1e-6))
    transport = place.transport
    assert isinstance(transport, Loopback)
    fed = federation(place)
    assert seconds_of(clock, fed, "all are there") < 1
    transport.meddle = lambda sender, answer: [] if sender == 11 else [(sender, answer)]
    if not online:
        transport.online = lambda: [10, 12]  # type: ignore[method-assign]
    assert 60 <= seconds_of(clock, fed, "one is lost") < 62
    assert fed.silent == {11}
    assert all(seconds_of(clock, fed, f"later {i}") < 2 for i in range(3))
    transport.meddle = lambda sender, answer: [(sender, answer)]
    transport.online = lambda: [10, 11, 12]  # type: ignore[method-assign]
    assert seconds_of(clock, fed, "it is back") < 2
    assert fed.silent == set()


def test_a_site_that_was_slow_once_is_waited_for_a_little(clock: Clock, tmp_path: Path) -> None:
    """Others take no time; it has half a second, and if it answers in that it is one of them again."""
    place = loopback(users(60), tmp_path)
    fed = federation(place)
    transport, held = place.transport, []
    transport.meddle = lambda sender, answer: held.append(answer) or [] if sender == 11 else [(sender, answer)]
    seconds_of(clock, fed, "slow")
    delivered, before = transport.receive, len(held)

    def late() -> Any:
        answers = list(delivered())
        return answers + ([(11, held[-1])] if len(held) > before and clock.now > started + 0.2 else [])

    transport.receive, started = late, clock.now
    seconds_of(clock, fed, "late, but in time")
    assert fed.silent == set()
    assert fed.verdicts["ok"] == 5


def test_the_quorum_is_waited_for_whoever_was_silent(clock: Clock, tmp_path: Path) -> None:
    place = loopback(users(60), tmp_path)
    fed, transport = federation(place), place.transport
    transport.meddle = lambda sender, answer: [(sender, answer)] if sender == 10 else []
    with pytest.raises(coordinator.QuorumMissed):
        fed.release(FeatureMoment(6), EVENT, "moment")
    started, delivered, held = clock.now, transport.receive, []
    transport.meddle = lambda sender, answer: (
        [(sender, answer)] if sender == 10 else held.append((sender, answer)) or []
    )
    transport.receive = lambda: list(delivered()) + (list(held) if clock.now > started + 30 else [])
    assert seconds_of(clock, fed, "moment") > 30
    assert fed.silent == set()


@pytest.mark.parametrize("lost_at", ["sum", "agree", "unmask"])
def test_a_third_of_twelve_sites_lost_at_any_moment_stops_no_masked_sum(
    lost_at: str, clock: Clock, tmp_path: Path
) -> None:
    """The sum is that of the sites whose masked answers arrived, whoever is lost afterwards."""
    data, kinds = users(120), ["sum", "agree", "unmask"]
    place = loopback(data, tmp_path, 12, trust="secure", ceiling=Budget(epsilon=1e6, delta=1e-6))
    transport, fed = place.transport, federation(place)
    quiet = GaussianEvent(sigma=1e-3, sensitivity=Sensitivity.of_clip(1.0, acute=True))
    fed.ledger_run = Ledger().run("quiet", config={}, certified=True)
    lost, sent = {11, 14, 17, 20}, transport.send

    def send(messages: Any) -> None:
        kind = Ask.from_bytes(next(iter(messages.values()))).kind
        gone = lost if kinds.index(kind) >= kinds.index(lost_at) else set()
        sent({node: data for node, data in messages.items() if node not in gone})

    transport.send = send
    started = clock.now
    found = fed.release(FeatureMoment(6), quiet, "four are lost")
    assert clock.now - started < 62
    present = [i for i in range(12) if lost_at != "sum" or 10 + i not in lost]
    assert len(place.groups["quiet/1.0"]) == len(present)
    kept = data.take(np.concatenate([np.arange(10 * i, 10 * i + 10) for i in present]))
    exact = Shard(kept, threads=1, plain=True).exact_sum(FeatureMoment(6), 1.0, 2.0**-40) * 2.0**-40
    np.testing.assert_allclose(found, exact, atol=0.02)  # noise of 1e-3·√(12/7): 15 standard deviations
    if lost_at == "sum":
        transport.send = sent
        transport.meddle = lambda sender, answer: [] if sender in lost else [(sender, answer)]
        assert fed.silent == lost
        assert all(seconds_of(clock, fed, f"later {i}") < 2 for i in range(2))


@pytest.fixture
def circle(tmp_path: Path) -> Any:
    """Five sites that were asked for a masked sum: their answers, the question, and who they are."""
    place = loopback(users(50), tmp_path, 5, trust="secure", ceiling=Budget(epsilon=9.0, delta=1e-6))
    names = tuple(f"node{i}" for i in range(5))
    told = {"run": "r", "step": "1.0", "token": "t", "thing": wire.encode(FeatureMoment(6)), "grid": 2.0**-39}
    ask = Ask(kind="sum", group=names, honest=3, noise="exact", sigma=30.0, **told)
    nodes = {one.name: one for one in place.transport.nodes.values()}
    hidden = {name: Answer.from_bytes(one.answer(ask.to_bytes())).total for name, one in nodes.items()}
    return SimpleNamespace(ask=ask, nodes=nodes, hidden=hidden, names=names)


def told(circle: Any, name: str, kind: str, group: tuple[str, ...], payload: bytes = b"") -> Answer:
    ask = replace(circle.ask, kind=kind, group=group, thing=circle.nodes[name]._question(circle.ask) + payload)
    return Answer.from_bytes(circle.nodes[name].answer(ask.to_bytes()))


def test_a_site_votes_for_one_group_and_unmasks_none_that_others_did_not_vote_for(circle: Any) -> None:
    """Sums of two groups that differ by one site would reveal that site, with its own share of the noise only."""
    everyone, without = circle.names, circle.names[:4]
    votes = {name: told(circle, name, "agree", everyone).total for name in circle.names[:3]}
    assert told(circle, "node0", "agree", without).code == "refused"
    assert told(circle, "node0", "unmask", without, bytes(200)).code == "refused"
    shares = {
        count: b"".join(masks.for_node("node0", everyone, circle.hidden, dict(list(votes.items())[:count]), everyone))
        for count in (1, 2, 3)
    }
    assert told(circle, "node0", "unmask", everyone, shares[3]).code == "refused"  # three of five: four are needed
    votes["node3"] = told(circle, "node3", "agree", everyone).total
    enough = b"".join(masks.for_node("node0", everyone, circle.hidden, votes, everyone))
    assert told(circle, "node0", "unmask", everyone, enough).code == "ok"
    assert told(circle, "node4", "unmask", everyone, enough).code == "refused"  # votes and shares for another site


def opened_again(ours: node.Node, folder: Path, **changed: Any) -> node.Node:
    """The same site in another process, with some things changed."""
    told = {"trust": "secure", "ceiling": Budget(epsilon=9.0, delta=1e-6), "mask_key": ours._mask_key}
    return node.Node(ours.name, ours.cohort, folder, **{**told, "peers": ours._peers, **changed})


def test_the_same_words_among_others_are_another_question(circle: Any, tmp_path: Path) -> None:
    """A site that joined again under the same names and other keys replayed its answer under the same mask."""
    ours = circle.nodes["node0"]
    stranger = masks.new_key()[1]
    again = opened_again(ours, tmp_path / "node0", peers={**ours._peers, "node1": stranger})
    assert Answer.from_bytes(again.answer(circle.ask.to_bytes())).code == "refused"  # charged, and not sent again
    first, second = (one._masks.hide(np.zeros(3, dtype=np.int64), bytes(32)) for one in (ours, again))
    assert not np.array_equal(first[:3], second[:3])


def at_once(*calls: Callable[[], Answer]) -> list[Answer]:
    """The answers of calls that begin at the same moment."""
    gate = threading.Barrier(len(calls))

    def go(call: Callable[[], Answer]) -> Answer:
        gate.wait()
        return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(go, calls))


def test_a_site_that_was_started_twice_votes_once_and_answers_once(circle: Any, tmp_path: Path) -> None:
    """Two votes for two groups, or two draws of noise under one mask, are what a curious coordinator would need."""
    ours = circle.nodes["node0"]
    twins = [ours, opened_again(ours, tmp_path / "node0")]
    groups = [circle.names, circle.names[:4]]
    for turn in range(4):
        ask = replace(circle.ask, step=f"again {turn}")
        question = ours._question(ask)
        votes = [replace(ask, kind="agree", group=group, thing=question).to_bytes() for group in groups]
        pairs = zip(twins, votes, strict=True)
        found = at_once(*(lambda one=one, vote=vote: Answer.from_bytes(one.answer(vote)) for one, vote in pairs))
        assert sum(answer.code == "ok" for answer in found) <= 1
        data = ask.to_bytes()
        found = at_once(*(lambda one=one, data=data: Answer.from_bytes(one.answer(data)) for one in twins))
        sent = [answer.total for answer in found if answer.code == "ok"]
        assert all(np.array_equal(sent[0], other) for other in sent)
        settled = Answer.from_bytes(twins[turn % 2].answer(data))
        assert settled.code == "ok"
        assert all(np.array_equal(settled.total, other) for other in sent)


def test_shares_and_votes_of_another_question_open_nothing(circle: Any) -> None:
    """Not even if both questions were asked of the same sites and all of them voted for the same group."""
    later, names = replace(circle.ask, step="2.0"), circle.names
    hidden = {name: Answer.from_bytes(one.answer(later.to_bytes())).total for name, one in circle.nodes.items()}
    first = {name: told(circle, name, "agree", names).total for name in names}
    circle.ask = later
    second = {name: told(circle, name, "agree", names).total for name in names}
    for shares, votes in ((circle.hidden, second), (hidden, first)):
        payload = b"".join(masks.for_node("node0", names, shares, votes, names))
        assert told(circle, "node0", "unmask", names, payload).code == "refused"
    payload = b"".join(masks.for_node("node0", names, hidden, second, names))
    assert told(circle, "node0", "unmask", names, payload[:-8]).code == "refused"
    assert told(circle, "node0", "unmask", names, payload).code == "ok"


def test_no_words_of_an_ask_make_a_masked_site_trust_more_or_add_less_noise(circle: Any) -> None:
    for changed in (
        {"group": (), "honest": 0},
        {"sigma": 0.0},
        {"sigma": 0.0, "group": (), "noise": "none"},
        {"noise": "float"},
        {"honest": 1},
        {"honest": 5},
        {"group": circle.names[:4]},
        {"chosen": np.ones(10, dtype=bool)},
    ):
        ask = replace(circle.ask, step="3.0", **changed)
        assert Answer.from_bytes(circle.nodes["node0"].answer(ask.to_bytes())).code == "refused", changed


def test_a_site_without_the_ledger_that_it_began_with_does_nothing(circle: Any, tmp_path: Path) -> None:
    """It would draw fresh noise under the same mask, and vote twice."""
    ours = circle.nodes["node0"]
    for part in tmp_path.glob("node0/node.ledger*"):
        if part.name != "node.ledger.id":
            part.unlink()
    assert Answer.from_bytes(ours.answer(circle.ask.to_bytes())).code == "refused"
    assert told(circle, "node0", "agree", circle.names).code == "refused"
    with pytest.raises(ValueError, match="is not the ledger that this site began with"):
        opened_again(ours, tmp_path / "node0")


@pytest.mark.parametrize(("nodes", "colluding"), [(12, -1), (12, -11), (3, 2), (4, 2), (12, 6), (2, 0)])
def test_masks_that_hide_nothing_or_cannot_be_removed_are_refused(nodes: int, colluding: int) -> None:
    with pytest.raises(ValueError, match="colluding must be a whole number from 0"):
        groups.check_colluding(nodes, colluding)


@pytest.mark.parametrize(
    "group",
    [(), ("node0", "node1"), ("node0",) * 5, ("node0", "node1", "node2", "nobody"), ("node3", "node2", "node1")],
)
def test_a_site_votes_for_no_group_that_is_too_small_or_made_up(group: tuple[str, ...], circle: Any) -> None:
    assert told(circle, "node0", "agree", group).code == "refused"


def test_fewer_shares_than_the_threshold_reveal_nothing(circle: Any) -> None:
    votes = {name: told(circle, name, "agree", circle.names).total for name in circle.names}
    sums = {}
    for name in circle.names:
        payload = b"".join(masks.for_node(name, circle.names, circle.hidden, votes, circle.names))
        sums[name] = told(circle, name, "unmask", circle.names, payload).total
    for chosen in (circle.names[:4], circle.names[1:]):
        some = {name: sums[name] for name in chosen}
        right = masks.revealed(circle.hidden, circle.names, some, circle.names, 21, 4)
        assert np.abs(right * 2.0**-39).max() < 50 + 10 * 30.0 * (5 / 3) ** 0.5
    wrong = masks.revealed(circle.hidden, circle.names, sums, circle.names, 21, 3)
    assert np.median(np.abs(wrong.astype(float))) > 2.0**56


def test_work_that_would_take_too_long_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An ask for heads with hostile numbers kept a node busy for 640 s."""
    one = loopback(users(60), tmp_path).transport.nodes[10]
    ask = Ask(
        kind="heads", run="r", step="heads", token="t", thing=wire.encode(RidgeHeads(np.eye(6)[:, :2]))
    ).to_bytes()
    assert Answer.from_bytes(one.answer(ask)).code == "ok"
    monkeypatch.setattr(node, "ASK_SECONDS", 0.0)
    assert Answer.from_bytes(one.answer(ask)).code == "refused"


class StuckGrid:
    """Flower's grid: one site announced an answer that it never sends, so pulling it takes minutes."""

    def __init__(self) -> None:
        self.end = threading.Event()

    def get_node_ids(self) -> list[int]:
        return [1, 2, 3]

    def push_messages(self, messages: Any) -> list[str]:
        return [f"to {message.metadata.dst_node_id}" for message in messages]

    def pull_messages(self, ids: list[str]) -> list[Any]:
        if "to 2" in ids:
            self.end.wait(60)
        return [reply(each) for each in ids if each != "to 2"]


def reply(asked: str) -> Any:
    metadata = SimpleNamespace(reply_to_message_id=asked, src_node_id=int(asked[-1]))
    return SimpleNamespace(metadata=metadata, content=None, has_content=lambda: False)


def test_an_answer_that_was_announced_and_never_sent_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """It held a round for 185 s past its deadline of 20 s."""
    pytest.importorskip("flwr")
    from tacitly.deployment import server_app

    monkeypatch.setattr(server_app, "_HELD_UP", 0.05)
    monkeypatch.setattr(server_app, "signed", lambda data, key: data)
    monkeypatch.setattr(server_app, "Message", lambda **told: SimpleNamespace(metadata=SimpleNamespace(**told)))
    grid = StuckGrid()
    transport = server_app.GridTransport(grid, b"")  # type: ignore[arg-type]
    try:
        for _ in range(2):  # also in the round after it
            transport.begin()
            transport.send(dict.fromkeys((1, 2, 3), b"ask"))
            heard: set[Any] = set()
            while heard != {1, 3}:
                heard |= {sender for sender, _ in transport.receive()}
                threading.Event().wait(0.01)
    finally:
        grid.end.set()


def test_a_node_asks_rarely_while_there_is_nothing_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten times a second kept the link's machine busy."""
    pytest.importorskip("flwr")
    from tacitly.federation.flower import fleet

    pauses: list[float] = []
    monkeypatch.setattr(fleet, "time", SimpleNamespace(sleep=pauses.append, monotonic=lambda: 0.0))
    connection = (None, lambda: None, *[None] * 6)
    fleet._answer_all(connection, lambda data: data, b"", None, lambda: len(pauses) >= 100)
    assert pauses[0] == 0.1
    assert pauses[-1] == 4.0
    assert sum(pauses[:20]) < 12  # still quick within a round


def test_another_certificate_is_named_as_the_reason() -> None:
    pytest.importorskip("flwr")
    import httpx

    from tacitly.federation.flower import fleet

    outer = httpx.ConnectError("connection failed")
    outer.__cause__ = ssl.SSLCertVerificationError(1, "certificate verify failed")
    assert fleet.certificate_differs(outer)
    assert fleet.steady_invoker().should_giveup(outer)  # type: ignore[misc]
    assert not fleet.certificate_differs(httpx.ConnectError("connection refused"))


def test_a_node_that_meets_another_server_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    import httpx
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    from tacitly.federation.flower import fleet

    def meets(*_: Any) -> Any:
        raise httpx.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed certificate")

    key = ec.generate_private_key(ec.SECP384R1())
    path = tmp_path / "key"
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    monkeypatch.setattr(fleet.fleet_http_connection, "http_request_response", meets)
    with pytest.raises(fleet.OtherServer, match="is not the one that this site was given"):
        fleet.stay(lambda data: data, server="hub:1", key=path, authority="", coordinator=b"")
