"""The coordinator: creates keys, starts Flower's SuperLink with TLS and node authentication, and supervises the run.

State that must survive a restart is on disk: the ledger, the registered nodes, and the groups of nodes that were asked.
Answers of nodes are kept in memory only. A coordinator that was killed at any moment resumes when it is started again:
published releases are read from the ledger; releases that were only debited are requested again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NoReturn

from tacitly import portable
from tacitly.deployment.settings import INVITATION, Settings, Status, write_whole
from tacitly.federation.flower.card import Card
from tacitly.federation.flower.keys import make_certificates, make_signing_key
from tacitly.federation.flower.link import HEARD, SECRET_HEADER, Signs
from tacitly.federation.flower.version import check_flower
from tacitly.portable import write_private

_APP = {
    "pyproject.toml": """[project]
name = "tacitly-app"
version = "0.1.0"
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "tacitly"
[tool.flwr.app.components]
serverapp = "tacitly_app.server_app:app"
clientapp = "tacitly_app.client_app:app"
[tool.flwr.app.config]
folder = ""
""",
    "tacitly_app/__init__.py": '"""The app that Flower starts."""\n',
    "tacitly_app/server_app.py": "from tacitly.deployment import server_app\n\napp = server_app.app\n",
    # Flower requires a client app; nodes run their own program and never this one.
    "tacitly_app/client_app.py": "from flwr.clientapp import ClientApp\n\napp = ClientApp()\n",
}
_ATTEMPTS = 5
_START = 600.0  # seconds for Flower to start a run: three processes in sequence, possibly on a busy machine


def prepare(folder: Path, settings: Settings) -> None:
    """Create a coordinator's folder: certificates, its key, and the invitation for sites."""
    if Path(settings.out).exists():
        raise FileExistsError(f"{settings.out} exists already. Choose another --out, or remove it.")
    settings.model(None, None)  # raises an error for invalid settings before anything is written
    folder.mkdir(mode=0o700, parents=True)
    make_certificates(folder, settings.server.rsplit(":", 1)[0])
    public = make_signing_key(folder / "coordinator.key")
    write_private(folder / "control.key", secrets.token_hex(32).encode())
    invitation = {
        **INVITATION,
        "server": settings.server,
        "authority": (folder / "ca.crt").read_text("utf-8"),
        "coordinator": public,
        "trust": settings.trust,
        "colluding": settings.colluding,
        "epsilon": str(settings.epsilon),
        "delta": settings.delta,
        "adjacency": settings.adjacency,
        "unit": str(settings.unit),
        "run": settings.run,
        "learns": settings.learns,
        "mask_keys": {card.name: card.mask_key for card in settings.cards},
    }
    write_whole(folder / "invitation.json", json.dumps(invitation, indent=2))
    for name, text in _APP.items():
        path = folder / "app" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    (folder / "cards").mkdir()
    for card in settings.cards:
        (folder / "cards" / f"{card.name}.pub").write_text(card.key + "\n", "utf-8")
    settings.save(folder)  # last: a folder that has settings is complete


def serve(folder: Path, say: Callable[[str], None]) -> bool:
    """Run the coordinator; return True when the model is saved, False if the run had to stop."""
    check_flower()
    settings, status = Settings.load(folder), Status(folder)
    inner = f"127.0.0.1:{_free_port()}"
    with _alone(folder), _forgotten(folder), _superlink(folder, settings, inner) as link:
        for address in (inner, settings.server):
            _wait_for_port(address, link)
        _register(folder, settings, inner)
        say(f"{len(settings.cards)} nodes registered; waiting for them at {settings.server}")
        for attempt in range(_ATTEMPTS):
            status.change(state="starting", process=None, attempt=attempt + 1)
            _start_run(folder, inner)
            if _ended(status, link):
                break
            say(f"stopped: {status.read().get('last_error') or 'the run was lost'}")
            time.sleep(1.0)
        else:
            return False
    return True


@contextmanager
def _forgotten(folder: Path) -> Iterator[None]:
    """Delete the answers of nodes when the coordinator ends for any reason: a resumed run does not need them.

    After SIGKILL they remain until the next start, which deletes them when it ends. The ids that Flower assigned are
    deleted too, so nodes are registered again if there is no state to resume.
    """
    if not (_memory(folder) / _STATE).exists():
        (folder / "nodes.json").unlink(missing_ok=True)
    before = _leave_on(*portable.termination_signals())  # SIGHUP is sent when a terminal or connection is closed
    try:
        yield
    finally:
        shutil.rmtree(_memory(folder), ignore_errors=True)
        for number, handler in before.items():
            signal.signal(number, handler)


def _leave_on(*numbers: signal.Signals) -> dict[signal.Signals, Any]:
    """Exit cleanly on these signals; return their previous handlers. An ignored signal (nohup) stays ignored."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    heard = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    return {number: signal.signal(number, _leave) for number in heard}


def _leave(number: int, _: object) -> NoReturn:
    signal.signal(number, signal.SIG_IGN)  # a second signal must not interrupt the deletion
    raise SystemExit(128 + number)


def _ended(status: Status, link: subprocess.Popen[bytes]) -> bool:
    """Wait until the run is over; return whether the model is saved."""
    started, seen = time.monotonic(), None
    while True:
        current = status.read()
        if current["state"] == "finished":
            return True
        if link.poll() is not None:
            raise RuntimeError("Flower's SuperLink ended. See superlink.log in the coordinator's folder.")
        seen = current.get("process") or seen
        if current["state"] == "stopped" or (seen and not portable.process_alive(seen)):
            return False
        if seen is None and time.monotonic() - started > _START:
            raise RuntimeError(f"Flower did not start the run within {_START:g} s. See superlink.log.")
        time.sleep(0.5)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the folder's lock; if the coordinator ends, its server app notices that the lock is free."""
    for _ in range(50):
        with contextlib.suppress(portable.AlreadyLocked):
            lock = portable.lock_file(folder / "serve.lock")
            break
        time.sleep(0.2)
    else:
        raise RuntimeError(f"another coordinator is using {folder}.")
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _superlink(folder: Path, settings: Settings, inner: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run Flower's SuperLink: nodes reach its fleet routes, and only this program can start runs on it."""
    host, port = inner.rsplit(":", 1)
    home = folder / "flower"
    home.mkdir(exist_ok=True)
    tls = [f"--ssl-{name}={folder / file}" for name, file in _CERTIFICATES.items()]
    command = [sys.executable, "-m", "tacitly.federation.flower.link", settings.server, str(settings.longest_answer)]
    command += [
        str(folder / "control.key"),
        str(_memory(folder) / _READY),
        *tls,
        "--enable-supernode-auth",
        f"--host={host}",
        f"--port={port}",
    ]
    command += [f"--database={_memory(folder) / _STATE}", "--disable-runtime-dependency-installation"]
    with (folder / "superlink.log").open("ab") as log:
        link = _start(command, folder, log)
    try:
        yield link
    finally:
        link.terminate()
        try:
            link.wait(10)
        except subprocess.TimeoutExpired:
            link.kill()
            link.wait()  # its state is deleted next, and must not be written again


_MEMORY = Path("/dev/shm")
_STATE, _READY = "state.db", "registered"
_CERTIFICATES = {"ca-certfile": "ca.crt", "certfile": "server.pem", "keyfile": "server.key"}


def _start(command: list[str], folder: Path, log: IO[bytes]) -> subprocess.Popen[bytes]:
    quiet: dict[str, Any] = {"stdout": log, "stderr": log, "stdin": subprocess.DEVNULL}
    return subprocess.Popen(command, env=environment(folder), **quiet, **portable.die_with_parent())


def environment(folder: Path) -> dict[str, str]:
    """Return environment variables that keep Flower's files in this folder and disable its telemetry."""
    programs = str(Path(sys.executable).parent)
    return {
        **os.environ,
        "PATH": os.pathsep.join([programs, os.environ.get("PATH", "")]),
        "FLWR_HOME": str((folder / "flower").absolute()),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
        "RAY_USAGE_STATS_ENABLED": "0",
    }


def _memory(folder: Path) -> Path:
    """Return the folder in shared memory where Flower stores the answers of nodes; it outlives the processes.

    Under central trust these are sums without noise, which must not be written to a disk.
    """
    if not _MEMORY.is_dir():
        raise RuntimeError(f"{_MEMORY} does not exist: sums without noise would be written to a disk.")
    place = _place(folder)
    place.mkdir(mode=0o700, exist_ok=True)
    return place


def _place(folder: Path) -> Path:
    """Return where :func:`_memory` is: a name that cannot be guessed."""
    secret = (folder / "control.key").read_bytes()
    return _MEMORY / f"tacitly-{hashlib.sha256(secret).hexdigest()[:32]}"


def current_status(folder: Path) -> dict[str, Any]:
    """Return the coordinator's status, and for each site the seconds since it was last heard."""
    status = Status(folder).read()
    if "sites" in status and (folder / "control.key").is_file() and (_place(folder) / _STATE).exists():
        signs = Signs(_place(folder) / HEARD)
        ages = {card.name: signs.age(raw_key(card)) for card in Settings.load(folder).cards}
        status["heard"] = {name: round(age, 1) for name, age in ages.items() if age is not None}
    return status


def raw_key(card: Card) -> bytes:
    """Return a site's public key as Flower sends it."""
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes

    return bytes(public_key_to_bytes(load_ssh_public_key(card.key.encode())))  # type: ignore[arg-type]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class _Secret:
    """Adds the secret that the inner interface requires to every request."""

    def __init__(self, secret: str) -> None:
        self._secret = secret

    def intercept(self, context: Any, call_next: Callable[[Any], Any]) -> Any:
        context.request.headers[SECRET_HEADER] = self._secret
        return call_next(context)


def control(address: str, authority: bytes, *, secret: str = "") -> Any:
    """Connect to Flower's control interface."""
    from flwr.supercore.control import ControlHttpClient
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

    added: list[Any] = [RuntimeVersionHttpInterceptor(component_name="flwr"), _Secret(secret)]
    return contextlib.closing(ControlHttpClient.from_server_address(address, False, authority, interceptors=added))


def _own_control(folder: Path, inner: str) -> Any:
    return control(inner, (folder / "ca.crt").read_bytes(), secret=(folder / "control.key").read_text("ascii"))


def _register(folder: Path, settings: Settings, inner: str) -> None:
    """Register unknown keys, store every node's id by its name, then admit the nodes."""
    from flwr.proto.control_pb2 import RegisterNodeRequest

    path = folder / "nodes.json"
    known: dict[str, int] = json.loads(path.read_text("utf-8")) if path.exists() else {}
    with _own_control(folder, inner) as link:
        for card in settings.cards:
            if card.name not in known:
                asked = RegisterNodeRequest(public_key=raw_key(card), name=card.name)
                known[card.name] = link.RegisterNode(asked).node_id
                write_whole(path, json.dumps(known))
    (_memory(folder) / _READY).touch()


def build_app(folder: Path) -> Any:
    """Return the app for Flower to start."""
    from flwr.cli.build import build_fab_from_disk
    from flwr.common.serde import fab_to_proto
    from flwr.supercore.fab import Fab

    content = build_fab_from_disk(folder / "app")
    return fab_to_proto(Fab(hashlib.sha256(content).hexdigest(), content, {}))


def _start_run(folder: Path, inner: str) -> None:
    from flwr.common.serde import user_config_to_proto
    from flwr.proto.control_pb2 import StartRunRequest

    config = user_config_to_proto({"folder": str(folder.absolute())})
    with _own_control(folder, inner) as link:
        link.StartRun(StartRunRequest(fab=build_app(folder), override_config=config))


def _wait_for_port(server: str, link: subprocess.Popen[bytes], seconds: float = _START) -> None:
    host, port = server.rsplit(":", 1)
    end = time.monotonic() + seconds
    while time.monotonic() < end and link.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=1):
            return
        time.sleep(0.1)
    raise RuntimeError(f"Flower's SuperLink did not start at {server}. See superlink.log.")
