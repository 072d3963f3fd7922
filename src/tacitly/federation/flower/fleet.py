"""A node's connection: pull a message, answer it, push the answer, over Flower's fleet protocol.

Flower's own SuperNode runs whatever app the server sends it, in a new process for every message. A node of tacitly runs
only its own code: it implements the fleet protocol, answers requests that carry the coordinator's signature, and
ignores everything else. The protocol is private to Flower and may change, so only the tested version is accepted
(:mod:`tacitly.federation.flower.version`).
"""

from __future__ import annotations

import logging
import math
import os
import ssl
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import pull_and_inflate_object_from_tree, push_objects
from flwr.supercore.retry import RetryInvoker
from flwr.supercore.retry.http_retry import make_simple_http_retry_invoker
from flwr.supercore.run import RunNotRunningException
from flwr.supernode import fleet_http_connection

from tacitly.federation.flower.keys import opened
from tacitly.federation.flower.version import OtherFlower, check_flower

MESSAGE_TYPE = "query.tacitly"
_STYPE = "tacitly.wire"
_ONE_PIECE = 1 << 20  # bytes
_POLL, _SLOWEST_POLL, _RECONNECT = 0.1, 4.0, 1.0  # seconds
_SLOWER = 1.15  # how much longer each pause is than the one before while nothing arrives

logging.getLogger("flwr").setLevel(logging.ERROR)  # its log messages quote the asks


class NotRegistered(RuntimeError):
    """The server does not know this node's key."""


class OtherServer(RuntimeError):
    """What answers at the server's address has not the certificate that this node was given."""


def _raise_not_registered(*_: object, **__: object) -> NoReturn:
    raise NotRegistered


class SteadyHeartbeat(HeartbeatSender):
    """Flower's heartbeat, for a node that outlives its server.

    A server that was restarted with empty state does not know the node's old id, and Flower then interrupts the
    process. Here the heartbeat just fails: the next pull is refused too, and the node reconnects under a new id.
    """

    def __init__(self, heartbeat_fn: Callable[[], bool]) -> None:
        def beat() -> bool:
            try:
                return heartbeat_fn()
            except (httpx.HTTPError, RuntimeError):
                return False

        super().__init__(beat)


def certificate_differs(error: BaseException | None) -> bool:
    """Whether a connection failed because the server's certificate is not the one that is trusted."""
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError) or "CERTIFICATE_VERIFY_FAILED" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def steady_invoker() -> RetryInvoker:
    """Flower's retries, except that an unknown node gives up where Flower would end the process."""
    invoker = make_simple_http_retry_invoker()
    flower_gives_up = invoker.should_giveup

    def give_up(error: Exception) -> bool:
        unknown = isinstance(error, httpx.HTTPStatusError) and error.response.status_code == httpx.codes.UNAUTHORIZED
        unknown = unknown or certificate_differs(error)
        return unknown or (flower_gives_up is not None and flower_gives_up(error))

    invoker.should_giveup = give_up
    return invoker


_REPLACEMENTS: dict[str, Any] = {
    # Flower ends the process if a connection cannot be made. A node tries again, and reports the reason itself.
    "flwr_exit": _raise_not_registered,
    "HeartbeatSender": SteadyHeartbeat,
    "make_simple_http_retry_invoker": steady_invoker,
    "os": SimpleNamespace(getpid=os.getpid, kill=lambda *_: None),
}


def replace_what_ends_processes(connection: Any) -> None:
    """Replace the functions with which Flower's connection module ends the process: all of them, or none."""
    check_flower()
    if missing := [name for name in _REPLACEMENTS if not hasattr(connection, name)]:
        raise OtherFlower(
            f"Flower's connection module lacks {', '.join(missing)}, which a node replaces. "
            "Install the tested version: pip install 'tacitly[flower]'."
        )
    for name, replacement in _REPLACEMENTS.items():
        setattr(connection, name, replacement)


replace_what_ends_processes(fleet_http_connection)


def to_content(data: bytes) -> RecordDict:
    """Wrap bytes in a Flower record.

    Each object in it is a request of its own: an array is three of them, a setting is one, but travels in one piece.
    """
    if len(data) <= _ONE_PIECE:
        return RecordDict({"tacitly": ConfigRecord({"message": data})})
    array = Array(dtype="uint8", shape=(len(data),), stype=_STYPE, data=data)
    return RecordDict({"tacitly": ArrayRecord({"message": array})})


def from_content(content: Any) -> bytes | None:
    """Unwrap the bytes of a Flower record; None for any other content."""
    try:
        found = content["tacitly"]["message"]
        if isinstance(found, Array):
            return bytes(found.data) if found.stype == _STYPE else None
        return found if isinstance(found, bytes) else None
    except Exception:
        return None


def stay(
    answer: Callable[[bytes], bytes],
    *,
    server: str,
    key: Path,
    authority: str,
    coordinator: bytes,
    patience: float = 60.0,
    on_answer: Callable[[], None] | None = None,
    until: Callable[[], bool] = lambda: False,
) -> None:
    """Answer the coordinator's asks until ``until`` is true; reconnect whenever the connection is lost.

    A node whose key the server does not know retries for ``patience`` seconds, then raises :class:`NotRegistered`.
    """
    private = load_ssh_private_key(key.read_bytes(), None)
    if not isinstance(private, ec.EllipticCurvePrivateKey):
        raise ValueError(f"{key} must hold a node's private key (elliptic curve). Found another kind of key.")
    keys, refused, end = (private, private.public_key()), False, time.monotonic() + patience
    while not until():
        try:
            with fleet_http_connection.http_request_response(server, False, authority.encode(), keys) as connection:
                end = math.inf  # once accepted, a node keeps reconnecting
                _answer_all(connection, answer, coordinator, on_answer, until)
        except NotRegistered:
            refused = True
        except (httpx.TransportError, OSError) as error:
            if certificate_differs(error):
                raise OtherServer(
                    f"the certificate at {server} is not the one that this site was given, so nothing was sent: the "
                    "coordinator was set up anew, the address is wrong, or somebody is in between. Ask whoever runs "
                    "the coordinator for its current invitation, and compare fingerprints."
                ) from None
            if not isinstance(error, httpx.HTTPError):
                raise
        if refused and time.monotonic() > end:
            raise NotRegistered(
                f"{server} does not know this node's key. Give card.json to whoever runs the coordinator."
            )
        time.sleep(_RECONNECT)


def _answer_all(
    connection: Any,
    answer: Callable[[bytes], bytes],
    coordinator: bytes,
    on_answer: Callable[[], None] | None,
    until: Callable[[], bool],
) -> None:
    _, receive, send, _, _, pull, push, confirm = connection

    def answer_one(message: Message, tree: Any) -> bool:
        run = message.metadata.run_id
        filled = pull_and_inflate_object_from_tree(tree, partial(pull, run), partial(confirm, run), return_type=Message)
        reply = _reply(message, from_content(filled.content), answer, coordinator)
        if reply is None:
            return False
        with no_object_id_recompute():
            reply.metadata.__dict__["_message_id"] = reply.object_id
            wanted, session = send(reply, get_object_tree(reply), 0.0)
            push_objects(get_all_nested_objects(reply), partial(push, run, session), object_ids_to_push=wanted)
        return True

    pause = _POLL
    while not until():
        try:
            got = receive()
            if got is None:
                time.sleep(pause)
                # An idle federation costs next to nothing; the first ask after a long pause waits for seconds.
                pause = min(_SLOWER * pause, _SLOWEST_POLL)
                continue
            pause = _POLL
            if answer_one(*got) and on_answer is not None:
                on_answer()
        except RunNotRunningException:
            continue  # a message of a run that has ended, for example because its coordinator was killed


def _reply(message: Message, data: bytes | None, answer: Callable[[bytes], bytes], coordinator: bytes) -> Any:
    """Answer an ask that the coordinator signed; return None for anything else, without even an error."""
    if message.metadata.message_type != MESSAGE_TYPE or data is None:
        return None
    ask = opened(data, coordinator)
    return None if ask is None else Message(content=to_content(answer(ask)), reply_to=message)
