"""Flower's SuperLink behind two doors, as a program: nodes come in by one, the coordinator's own programs by the other.

Flower serves everything on one port and asks nobody who starts an app there, so whoever reached it could run code on
the coordinator's machine. Here the outer door lets through what a node needs and nothing else; the inner one is on this
machine's loopback, and starting anything there takes a secret that lies in the coordinator's folder.
"""

from __future__ import annotations

import asyncio
import binascii
import contextlib
import hmac
import sys
from base64 import b64decode
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from tacitly.federation.flower.version import check_flower

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Scope]]
Send = Callable[[Scope], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

SECRET_HEADER = "x-tacitly-control"
NODE_HEADER = "flwr-public-key"
_FLEET = frozenset(
    f"/v1/fleet/{name}"
    for name in (
        "activate-node",
        "deactivate-node",
        "send-node-heartbeat",
        "pull-messages",
        "pull-object",
        "confirm-message-received",
        "push-messages",
        "push-object",
    )
)
_REQUEST = 6 << 20  # bytes of a request: Flower cuts what is longer into pieces of 5 MiB
_WRONG, _NOT_FOUND, _NO_LENGTH, _TOO_LONG, _FORBIDDEN, _TOO_SLOW, _NOT_YET = 400, 404, 411, 413, 403, 408, 503
_PATIENCE = 60.0  # seconds for a request to be here whole


class Outside:
    """The nodes' door: their routes only, and no more bytes in an answer than the longest one has.

    A node may push ``most`` bytes after each message it announces. Whose bytes they are is what the request claims, so
    they are counted when Flower has taken them, because the claim was signed. Until a request is here whole it holds
    nothing; then pushes under one key go on one after the other, so that a stranger who claims it cannot be ahead of
    the count. Before ``ready`` says that all keys are registered, everybody is told to come again: a node that Flower
    does not know would end.
    """

    def __init__(self, app: App, most: int, ready: Callable[[], bool] = lambda: True) -> None:
        self._app, self._most, self._ready = app, most, ready
        self._left: dict[bytes, int] = {}
        self._turns: WeakValueDictionary[bytes, asyncio.Lock] = WeakValueDictionary()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or refuse it unread."""
        if scope["type"] != "http" or scope["method"] != "POST" or scope["path"] not in _FLEET:
            await _refuse(scope, send, _NOT_FOUND)
            return
        headers = dict(scope["headers"])
        if len(headers) < len(scope["headers"]):  # which of two counts, Flower and this door might see differently
            await _refuse(scope, send, _WRONG)
            return
        length = headers.get(b"content-length", b"")
        if b"transfer-encoding" in headers or not length.isdigit():
            await _refuse(scope, send, _NO_LENGTH)
            return
        if not self._ready():
            await _refuse(scope, send, _NOT_YET)
            return
        size, node, pushes = int(length), _key(headers), scope["path"].endswith("push-object")
        if size > (min(_REQUEST, self._allowed(node)) if pushes else _REQUEST):
            await _refuse(scope, send, _TOO_LONG)
            return
        body = await _body(receive)
        if body is None:
            await _refuse(scope, send, _TOO_SLOW)
            return

        async def watched(message: Scope) -> None:
            # Before the node hears of it: what it sends next may be here before this call has returned.
            if message["type"] == "http.response.start" and 200 <= message["status"] < 300:
                if pushes:
                    self._left[node] = self._allowed(node) - size
                elif scope["path"].endswith("push-messages"):
                    self._left.pop(node, None)  # all of it again
            await send(message)

        if not pushes:
            await self._app(scope, _again(body, receive), watched)
            return
        turn = self._turns.setdefault(node, asyncio.Lock())
        async with turn:
            if size > self._allowed(node):
                await _refuse(scope, send, _TOO_LONG)
            else:
                await self._app(scope, _again(body, receive), watched)

    def _allowed(self, node: bytes) -> int:
        # Who announced a message before this process was started may push it still.
        return self._left.get(node, self._most)


class Inside:
    """The door for this machine: Flower's own processes, and whoever knows the secret for starting things."""

    def __init__(self, app: App, secret: bytes) -> None:
        self._app, self._secret = app, secret

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or refuse it unread."""
        if scope["type"] == "http":
            path, told = scope["path"], dict(scope["headers"]).get(SECRET_HEADER.encode(), b"")
            knows = path.startswith("/v1/control/") and hmac.compare_digest(told, self._secret)
            if not knows and not path.startswith("/v1/runtime/"):
                await _refuse(scope, send, _FORBIDDEN)
                return
        await self._app(scope, receive, send)


def _key(headers: Mapping[bytes, bytes]) -> bytes:
    """Return whose request it claims to be, read as Flower does: one key can be written in several ways."""
    written = headers.get(NODE_HEADER.encode(), b"")
    try:
        return b64decode(written, validate=True)
    except binascii.Error:
        return written


async def _body(receive: Receive) -> list[Scope] | None:
    """Return a request's body, or None if it does not come in time, or its sender is gone."""
    parts: list[Scope] = []
    try:
        async with asyncio.timeout(_PATIENCE):
            while not parts or parts[-1].get("more_body", False):
                parts.append(await receive())
                if parts[-1]["type"] != "http.request":
                    return None
    except TimeoutError:
        return None
    return parts


def _again(parts: list[Scope], receive: Receive) -> Receive:
    """Return what gives these parts, and then whatever comes after them."""
    left = iter(parts)

    async def replay() -> Scope:
        part = next(left, None)
        return await receive() if part is None else part

    return replay


async def _refuse(scope: Scope, send: Send, status: int) -> None:
    if scope["type"] != "http":
        return
    headers = [(b"content-length", b"0"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


def main() -> None:
    """Run the SuperLink: outer address, most bytes of an answer, files with the secret and of being ready; Flower's."""
    outside, most, secret, ready, *rest = sys.argv[1:]
    sys.argv = ["flower-superlink", *rest]
    check_flower()
    from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER
    from flwr.superlink.cli.flower_superlink import SuperLinkLifespan, _parse_superlink_lifespan_config
    from flwr.superlink.main import create_app

    if FLEET_HTTP_PUBLIC_KEY_HEADER.lower() != NODE_HEADER:
        raise RuntimeError("this version of Flower names nodes otherwise.")
    config = _parse_superlink_lifespan_config()
    app: Any = create_app(config, SuperLinkLifespan)
    asyncio.run(_serve(app, config, outside, int(most), Path(secret).read_bytes(), Path(ready)))


async def _serve(app: App, config: Any, outside: str, most: int, secret: bytes, ready: Path) -> None:
    import uvicorn

    class Quiet(uvicorn.Server):
        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield  # the inner server hears them for both

    host, port = outside.rsplit(":", 1)
    shared: dict[str, Any] = {
        "ssl_keyfile": config.ssl_keyfile,
        "ssl_certfile": config.ssl_certfile,
        "access_log": False,
        "proxy_headers": False,
        "log_level": "warning",
        "ws": "none",
    }
    inner = uvicorn.Server(uvicorn.Config(Inside(app, secret), host=config.host, port=config.port, **shared))
    outer = Quiet(uvicorn.Config(Outside(app, most, ready.exists), host=host, port=int(port), lifespan="off", **shared))
    nodes = asyncio.create_task(outer.serve())
    try:
        await inner.serve()
    finally:
        outer.should_exit = True
        await nodes


if __name__ == "__main__":
    main()
