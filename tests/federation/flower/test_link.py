"""Which requests pass the coordinator's outer and inner address."""

from __future__ import annotations

import asyncio
import base64
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from signals import usual_effect
from tacitly import portable
from tacitly.deployment import serve
from tacitly.federation.flower import link, version
from tacitly.federation.flower.link import NODE_HEADER, SECRET_HEADER, Inside, Outside


class Flower:
    """Stand-in for the SuperLink: records what arrives, answers with ``status``."""

    def __init__(self) -> None:
        self.reached: list[str] = []
        self.status = 200

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.reached.append(scope.get("path", scope["type"]))
        await send({"type": "http.response.start", "status": self.status, "headers": []})


def ask(door: Any, path: str, *, method: str = "POST", node: str = "a", **headers: str) -> int:
    told = {"content-length": "10", NODE_HEADER: node} | {key.replace("_", "-"): text for key, text in headers.items()}
    scope = {"type": "http", "method": method, "path": path}
    scope["headers"] = [(key.encode(), text.encode()) for key, text in told.items() if text]
    return asyncio.run(through(door, scope, whole))


async def whole() -> Any:
    return {"type": "http.request", "body": b"", "more_body": False}


async def through(door: Any, scope: Any, receive: Any) -> int:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    await door(scope, receive, send)
    return int(sent[0]["status"])


@pytest.mark.parametrize(
    "path",
    [
        "/v1/control/start-run",
        "/v1/control/register-node",
        "/v1/runtime/acquire-task",
        "/v1/fleet/register-node",
        "/v1/fleet/get-fab",
        "/v1/fleet/../control/start-run",
        "/v1/fleet/%2e%2e/control/start-run",
        "/v1/fleet//push-object",
        "/docs",
        "/",
    ],
)
def test_from_outside_only_what_a_node_needs_is_reached(path: str) -> None:
    flower = Flower()
    assert ask(Outside(flower, 1000), path) == 404
    assert ask(Outside(flower, 1000), "/v1/fleet/pull-messages", method="GET") == 404
    assert flower.reached == []
    assert ask(Outside(flower, 1000), "/v1/fleet/pull-messages") == 200


def test_inside_nothing_is_started_without_the_secret() -> None:
    flower = Flower()
    door = Inside(flower, b"secret")
    for told in ("", "secre", "secret0"):
        assert ask(door, "/v1/control/start-run", **{SECRET_HEADER: told}) == 403
    assert ask(door, "/v1/responses", **{SECRET_HEADER: "secret"}) == 403
    assert flower.reached == []
    assert ask(door, "/v1/control/start-run", **{SECRET_HEADER: "secret"}) == 200
    assert ask(door, "/v1/runtime/acquire-task") == 200  # at once: something was started


def test_flowers_question_for_work_waits_until_a_run_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five questions a second were most of the work of an idle federation."""
    flower, asked, start = Flower(), "/v1/runtime/acquire-task", "/v1/control/start-run"
    door = Inside(flower, b"secret")

    def request(path: str) -> Any:
        told = [(SECRET_HEADER.encode(), b"secret")]
        return through(door, {"type": "http", "method": "POST", "path": path, "headers": told}, whole)

    async def in_order() -> None:
        waits = asyncio.create_task(request(asked))
        await asyncio.sleep(0)
        assert flower.reached == []
        await request(start)
        await waits
        assert flower.reached == [start, asked]
        monkeypatch.setattr(link, "_HOLD", 0.0)
        await request(asked)  # nothing was started: it is not held for ever

    asyncio.run(in_order())
    assert flower.reached == [start, asked, asked]


def test_an_answer_longer_than_the_longest_is_refused_unread() -> None:
    flower = Flower()
    door = Outside(flower, 1000)
    push, announce = "/v1/fleet/push-object", "/v1/fleet/push-messages"
    assert ask(door, push, content_length="1001") == 413
    assert ask(door, announce) == 200
    assert ask(door, push, content_length="900") == 200
    assert ask(door, push, content_length="101") == 413
    assert ask(door, push, content_length="100") == 200
    assert ask(door, push, content_length="1") == 413
    for path in (announce, "/v1/fleet/pull-messages"):
        assert ask(door, path, content_length=str(7 << 20)) == 413
        assert ask(door, path, content_length="") == 411
        assert ask(door, path, transfer_encoding="chunked") == 411
    assert flower.reached == [announce, push, push]


def test_a_stranger_who_claims_a_nodes_key_uses_none_of_its_bytes() -> None:
    flower = Flower()
    door = Outside(flower, 1000)
    assert ask(door, "/v1/fleet/push-messages") == 200
    flower.status = 401
    assert ask(door, "/v1/fleet/push-object", content_length="900") == 401
    assert ask(door, "/v1/fleet/push-messages", node="b") == 401
    flower.status = 200
    assert not door._left  # and nothing about it is stored
    assert ask(door, "/v1/fleet/push-object", content_length="1000") == 200
    flower.status = 401
    assert ask(door, "/v1/fleet/push-messages") == 401
    assert ask(door, "/v1/fleet/push-object", content_length="1") == 413  # a refused announcement grants nothing


def test_a_node_has_one_allowance_however_it_writes_its_key() -> None:
    flower = Flower()
    door = Outside(flower, 1000)
    push = "/v1/fleet/push-object"
    assert base64.b64decode("QQ==", validate=True) == base64.b64decode("QR==", validate=True)
    assert ask(door, push, node="QQ==", content_length="900") == 200
    assert ask(door, push, node="QR==", content_length="900") == 413
    for twice in (NODE_HEADER, "content-length"):
        headers = [(b"content-length", b"900"), (NODE_HEADER.encode(), b"QQ=="), (twice.encode(), b"20")]
        scope = {"type": "http", "method": "POST", "path": push, "headers": headers}
        assert asyncio.run(through(door, scope, whole)) == 400
    assert flower.reached == [push]
    assert len(door._left) == 1


def push(node: str, size: int, signature: bytes) -> dict[str, Any]:
    headers = [
        (b"content-length", str(size).encode()),
        (NODE_HEADER.encode(), node.encode()),
        (b"signature", signature),
    ]
    return {"type": "http", "method": "POST", "path": "/v1/fleet/push-object", "headers": headers}


async def signed_only(scope: Any, receive: Any, send: Any) -> None:
    """Reads a request before it looks whose it is, as Flower does."""
    while (await receive()).get("more_body"):
        pass
    await asyncio.sleep(0)
    status = 200 if (b"signature", b"good") in scope["headers"] else 401
    await send({"type": "http.response.start", "status": status, "headers": []})


def test_requests_that_never_end_hold_nothing_of_a_node_whose_key_they_claim() -> None:
    async def never() -> Any:
        await asyncio.Event().wait()

    async def all_at_once() -> list[int]:
        door = Outside(signed_only, 1000)
        strangers = [asyncio.create_task(through(door, push("a", 1000, b"bad"), never)) for _ in range(5)]
        await asyncio.sleep(0.01)
        full = [through(door, push("a", 1000, b"bad"), whole) for _ in range(5)]
        codes = await asyncio.gather(*full, through(door, push("a", 1000, b"good"), whole))
        for stranger in strangers:
            stranger.cancel()
        return codes

    assert asyncio.run(all_at_once()) == [401] * 5 + [200]


def test_a_node_that_pushes_everything_at_once_has_no_more_bytes_than_one_by_one() -> None:
    async def all_at_once() -> list[int]:
        door = Outside(signed_only, 1000)
        return await asyncio.gather(*[through(door, push("a", 400, b"good"), whole) for _ in range(5)])

    assert sorted(asyncio.run(all_at_once())) == [200, 200, 413, 413, 413]


def test_a_request_that_takes_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tacitly.federation.flower.link._BODY_SECONDS", 0.01)

    async def never() -> Any:
        await asyncio.Event().wait()

    flower = Flower()
    assert asyncio.run(through(Outside(flower, 1000), push("a", 10, b"good"), never)) == 408
    assert flower.reached == []


def test_before_all_keys_are_registered_nodes_are_told_to_come_again() -> None:
    flower, known = Flower(), []
    door = Outside(flower, 1000, lambda: bool(known))
    assert ask(door, "/v1/fleet/activate-node") == 503
    known.append(True)
    assert ask(door, "/v1/fleet/activate-node") == 200


def test_a_node_outlives_a_server_that_does_not_know_it_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("flwr")
    import httpx
    from flwr.supernode import fleet_http_connection

    from tacitly.federation.flower import fleet

    monkeypatch.setattr("os.kill", lambda *_: pytest.fail("the process was interrupted"))
    answer = httpx.Response(401, request=httpx.Request("POST", "https://server"))

    def refused() -> bool:
        answer.raise_for_status()
        return True

    assert fleet_http_connection.HeartbeatSender(refused).heartbeat_fn() is False  # fails, and is retried
    with pytest.raises(httpx.HTTPStatusError):
        fleet.steady_invoker().invoke(refused)  # immediately, so that the node reconnects


@pytest.mark.parametrize("found", ["1.40.2", "1.42.0", "2.0.0"])
def test_another_version_of_flower_is_refused_in_words(found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version, "version", lambda _: found)
    with pytest.raises(version.OtherFlower, match=f"Found {found}"):
        version.check_flower()


def test_a_flower_whose_connections_are_made_otherwise_is_not_half_replaced() -> None:
    pytest.importorskip("flwr")
    from tacitly.federation.flower import fleet

    other = SimpleNamespace(os=None, HeartbeatSender=None, flwr_exit=None)
    with pytest.raises(version.OtherFlower, match="lacks make_simple_http_retry_invoker"):
        fleet.replace_what_ends_processes(other)
    assert other.flwr_exit is None


@pytest.mark.parametrize("number", portable.termination_signals())
def test_what_nodes_sent_is_wiped_when_the_coordinator_is_told_to_end(number: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "control.key").write_bytes(os.urandom(32))
    memory = serve._memory(tmp_path)
    (memory / "state.db").write_bytes(b"a sum without noise")
    with usual_effect(number):
        before = signal.getsignal(number)
        with pytest.raises(SystemExit), serve._forgotten(tmp_path):
            signal.raise_signal(number)
        assert signal.getsignal(number) == before
    assert not memory.exists()


def test_a_hangup_that_was_to_be_ignored_is_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert set(serve._leave_on(signal.SIGHUP)) == set()
    finally:
        signal.signal(signal.SIGHUP, before)


def test_messages_travel_in_few_requests_and_come_back_whole() -> None:
    """Every nested object is a request: short ones are a record in a dictionary, long ones arrays in pieces."""
    pytest.importorskip("flwr")
    from flwr.app import ConfigRecord, RecordDict
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

    from tacitly.federation.flower.fleet import from_content, to_content

    for data, objects in ((b"ask", 2), (bytes(3 << 20), 4)):
        assert from_content(to_content(data)) == data
        assert len(get_all_nested_objects(to_content(data))) == objects
    for other in (RecordDict(), RecordDict({"tacitly": ConfigRecord({"message": 3})}), None):
        assert from_content(other) is None
