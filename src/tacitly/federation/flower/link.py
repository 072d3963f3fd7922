"""Flower's SuperLink as a program with two filtered addresses: one for nodes, one for the coordinator's own programs.

Flower serves everything on one port and lets anyone start an app there, so whoever could reach that port could run code
on the coordinator's machine. Here the outer address forwards only the routes that a node needs. The inner address is on
this machine's loopback interface, and starting anything there needs a secret from the coordinator's folder. The program
is started by :mod:`tacitly.deployment.serve`.
"""

from __future__ import annotations

import asyncio
import binascii
import contextlib
import hashlib
import hmac
import sys
import time
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
HEARD = "heard"
"""Folder beside the ready file, with a file for each node that was heard."""
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
_REQUEST = 6 << 20  # maximum bytes of a request: Flower divides longer content into pieces of 5 MiB
_WRONG, _NOT_FOUND, _NO_LENGTH, _TOO_LONG, _FORBIDDEN, _TOO_SLOW, _NOT_YET = 400, 404, 411, 413, 403, 408, 503
_BODY_SECONDS = 60.0  # for the whole body of a request to arrive
_START, _WORK = "/v1/control/start-run", "/v1/runtime/acquire-task"
_OFTEN = 1.0  # seconds between two notes of the same node
_LAST_SECONDS = 1  # for requests that are held back when the program ends
_HOLD = 10.0  # seconds until Flower's executor is told that there is nothing to start: below its timeout of 30 s


class Outside:
    """The nodes' address: passes only their routes, and limits how many bytes a node can push.

    A node may push ``most`` bytes after each message that it announces. A request only claims whose bytes it carries,
    so bytes are charged to a key after Flower has accepted the request and thereby verified its signature. A request
    holds no lock until its body has arrived; then pushes under one key are processed one at a time, so that concurrent
    requests, forged or not, cannot pass the limit before they are counted. Until ``ready`` returns true (all keys are
    registered), every request is answered with "service unavailable", because a node that Flower does not know would
    give up. ``heard`` is told the key of each node whose request was accepted.
    """

    def __init__(
        self,
        app: App,
        most: int,
        ready: Callable[[], bool] = lambda: True,
        heard: Callable[[bytes], None] = lambda key: None,
    ) -> None:
        self._app, self._most, self._ready, self._heard = app, most, ready, heard
        self._left: dict[bytes, int] = {}
        self._turns: WeakValueDictionary[bytes, asyncio.Lock] = WeakValueDictionary()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it without reading it."""
        if scope["type"] != "http" or scope["method"] != "POST" or scope["path"] not in _FLEET:
            await _refuse(scope, send, _NOT_FOUND)
            return
        headers = dict(scope["headers"])
        if len(headers) < len(scope["headers"]):  # repeated: Flower might read the other one
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
            # Before the response is sent: the node's next request may arrive before this call has returned.
            if message["type"] == "http.response.start" and 200 <= message["status"] < 300:
                self._heard(node)
                if pushes:
                    self._left[node] = self._allowed(node) - size
                elif scope["path"].endswith("push-messages"):
                    self._left.pop(node, None)  # the full allowance again
            await send(message)

        if not pushes:
            await self._app(scope, _replayed(body, receive), watched)
            return
        turn = self._turns.setdefault(node, asyncio.Lock())
        async with turn:
            if size > self._allowed(node):
                await _refuse(scope, send, _TOO_LONG)
            else:
                await self._app(scope, _replayed(body, receive), watched)

    def _allowed(self, node: bytes) -> int:
        # A node that announced a message before this process started may still push it.
        return self._left.get(node, self._most)


class Signs:
    """When each node was last heard, as the times of files in a folder: for the coordinator's status.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     signs = Signs(Path(folder))
    ...     signs.heard(b"north")
    ...     round(signs.age(b"north")), signs.age(b"south")
    (0, None)
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._noted: dict[bytes, float] = {}

    def heard(self, key: bytes) -> None:
        """Note that a request of the node with this key was accepted."""
        now = time.monotonic()
        if now - self._noted.get(key, -_OFTEN) >= _OFTEN:
            self._noted[key] = now
            self._folder.mkdir(exist_ok=True)
            self.file(key).touch()

    def age(self, key: bytes) -> float | None:
        """Return the seconds since a node was last heard; None if it was not."""
        try:
            return max(0.0, time.time() - self.file(key).stat().st_mtime)
        except FileNotFoundError:
            return None

    def file(self, key: bytes) -> Path:
        """Return the file whose time is when a node was last heard."""
        return self._folder / hashlib.sha256(key).hexdigest()


class Inside:
    """The inner address: for Flower's own processes, and for control requests that carry the secret.

    Flower's executor asks several times a second whether there is a run to start, which would be most of the work of an
    idle federation. Its question is held back until a run was started.
    """

    def __init__(self, app: App, secret: bytes) -> None:
        self._app, self._secret = app, secret
        self._started = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it without reading it."""
        if scope["type"] == "http":
            path, given = scope["path"], dict(scope["headers"]).get(SECRET_HEADER.encode(), b"")
            knows = path.startswith("/v1/control/") and hmac.compare_digest(given, self._secret)
            if not knows and not path.startswith("/v1/runtime/"):
                await _refuse(scope, send, _FORBIDDEN)
                return
            if path == _WORK:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._started.wait(), _HOLD)
                self._started.clear()
        await self._app(scope, receive, send)
        if scope["type"] == "http" and scope["path"] == _START:
            self._started.set()


def _key(headers: Mapping[bytes, bytes]) -> bytes:
    """Return the key that a request claims, decoded as Flower does: one key has several base64 encodings."""
    written = headers.get(NODE_HEADER.encode(), b"")
    try:
        return b64decode(written, validate=True)
    except binascii.Error:
        return written


async def _body(receive: Receive) -> list[Scope] | None:
    """Return a request's body, or None if it does not arrive in time or the sender disconnects."""
    parts: list[Scope] = []
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            while not parts or parts[-1].get("more_body", False):
                parts.append(await receive())
                if parts[-1]["type"] != "http.request":
                    return None
    except TimeoutError:
        return None
    return parts


def _replayed(parts: list[Scope], receive: Receive) -> Receive:
    """Return a receive function that yields these parts first, then whatever arrives after them."""
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
    """Run the SuperLink. Arguments: outer address, maximum bytes per answer, secret file, ready file, Flower's own."""
    outside, most, secret, ready, *rest = sys.argv[1:]
    sys.argv = ["flower-superlink", *rest]
    check_flower()
    from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER
    from flwr.superlink.cli.flower_superlink import SuperLinkLifespan, _parse_superlink_lifespan_config
    from flwr.superlink.main import create_app

    if FLEET_HTTP_PUBLIC_KEY_HEADER.lower() != NODE_HEADER:
        raise RuntimeError(
            f"Flower must name nodes in the header {NODE_HEADER!r}. Found {FLEET_HTTP_PUBLIC_KEY_HEADER!r}: "
            "install the tested version, pip install 'tacitly[flower]'."
        )
    config = _parse_superlink_lifespan_config()
    app: Any = create_app(config, SuperLinkLifespan)
    asyncio.run(_serve(app, config, outside, int(most), Path(secret).read_bytes(), Path(ready)))


async def _serve(app: App, config: Any, outside: str, most: int, secret: bytes, ready: Path) -> None:
    import uvicorn

    class Quiet(uvicorn.Server):
        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield  # the inner server handles signals for both

    host, port = outside.rsplit(":", 1)
    shared: dict[str, Any] = {
        "ssl_keyfile": config.ssl_keyfile,
        "ssl_certfile": config.ssl_certfile,
        "access_log": False,
        "proxy_headers": False,
        "log_level": "warning",
        "ws": "none",
    }
    inner = uvicorn.Server(
        uvicorn.Config(
            Inside(app, secret), host=config.host, port=config.port, timeout_graceful_shutdown=_LAST_SECONDS, **shared
        )
    )
    nodes_app = Outside(app, most, ready.exists, Signs(ready.with_name(HEARD)).heard)
    outer = Quiet(uvicorn.Config(nodes_app, host=host, port=int(port), lifespan="off", **shared))
    nodes = asyncio.create_task(outer.serve())
    try:
        await inner.serve()
    finally:
        outer.should_exit = True
        await nodes


if __name__ == "__main__":
    main()
