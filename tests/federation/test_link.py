"""Who is let in at the coordinator's two doors."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tacit.federation.flower.link import NODE_HEADER, SECRET_HEADER, Inside, Outside


class Flower:
    """Stands in for the SuperLink: remembers what came through, answers with ``status``."""

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
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(door(scope, None, send))
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
    assert ask(door, "/v1/runtime/acquire-task") == 200


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
    assert not door._left  # nor is anything remembered of it
    assert ask(door, "/v1/fleet/push-object", content_length="1000") == 200
    flower.status = 401
    assert ask(door, "/v1/fleet/push-messages") == 401
    assert ask(door, "/v1/fleet/push-object", content_length="1") == 413  # a refused announcement grants nothing
