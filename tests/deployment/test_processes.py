"""A real federation on loopback, with TLS and keys: a coordinator, three sites, and what goes wrong between them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import tacitly
from engines import fit, users
from ledgers import published_values
from tacitly.deployment.settings import Settings, Status
from tacitly.federation.flower.kept_heads import read_heads
from tacitly.privacy.ledger import Ledger
from tacitly.privacy.verification import verify

pytest.importorskip("flwr")

from tacitly.deployment import join, serve

NAME = "hinge"

GARBAGE = """
import json, os, sys
from pathlib import Path
from tacitly.federation.flower.fleet import stay
folder, invitation = Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text())
stay(lambda ask: os.urandom(300), server=invitation["server"], key=folder / "node.key",
     authority=invitation["authority"], coordinator=bytes.fromhex(invitation["coordinator"]), patience=600.0)
"""


class Site:
    """Processes of a test, all ended with it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.running: list[subprocess.Popen[bytes]] = []

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        log = (self.folder / f"log{len(self.running)}.txt").open("wb")
        self.running.append(subprocess.Popen([sys.executable, *words], stdout=log, stderr=subprocess.STDOUT))
        return self.running[-1]

    def logs(self) -> str:
        return "\n".join(f"{path.name}: {path.read_text()[-1500:]}" for path in sorted(self.folder.glob("log*.txt")))


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    for process in made.running:
        process.kill()


def wait_for(what: Callable[[], bool], site: Site, seconds: float = 600.0) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, site.logs()
        time.sleep(0.05)


def free_port() -> int:
    """Return a port that nobody takes meanwhile: below those of outgoing connections, another for each process."""
    for port in range(10_000 + os.getpid() % 20_000, 32_768):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("no port is free")


def test_nothing_is_lost_when_sites_and_coordinator_fail(site: Site, tmp_path: Path) -> None:
    data, hub = users(90, name=NAME), tmp_path / "hub"  # of two classes, for which there are few releases
    cards = [join.prepare(tmp_path / f"n{i}", f"n{i}", data.take(np.arange(30 * i, 30 * i + 30))) for i in range(3)]
    stranger = join.prepare(tmp_path / "stranger", "n1", data.take(np.arange(30)))
    settings = Settings(
        server=f"127.0.0.1:{free_port()}",
        out=str(tmp_path / "model"),
        method="fedrep",
        options={"rank": 2, "rounds": 3, "loss": "hinge"},
        epsilon=1.0,
        cards=tuple(cards),
        patience={"deadline": 300.0, "again": 4.0, "gather": 300.0},
    )
    serve.prepare(hub, settings)
    fit(NAME, data)  # compiles what the coordinator will try out, so that no deadline below waits for a compiler
    invitation, status = str(hub / "invitation.json"), Status(hub)
    command = ("-m", "tacitly", "serve", str(hub))
    asked = ("--invitation", invitation, "--patience", "600")  # keys are known only when the coordinator is up

    coordinator = site.start(*command)
    first = site.start("-m", "tacitly", "join", str(tmp_path / "n0"), *asked)
    site.start("-m", "tacitly", "join", str(tmp_path / "n1"), *asked)
    site.start("-c", GARBAGE, str(tmp_path / "n2"), invitation)
    lone = ("-m", "tacitly", "join", str(tmp_path / "stranger"))
    forged = json.loads(Path(invitation).read_text())
    forged["mask_keys"]["n1"] = stranger.mask_key
    (tmp_path / "forged.json").write_text(json.dumps(forged))
    refused = site.start(*lone, "--invitation", str(tmp_path / "forged.json"), "--patience", "20")

    def published() -> int:
        return int(status.read().get("releases", 0))

    wait_for(lambda: published() >= 1 or coordinator.poll() is not None, site)
    assert coordinator.poll() is None, site.logs()
    assert started_by_a_stranger(json.loads(Path(invitation).read_text()), hub) == 404
    first.kill()
    process = int(status.read()["process"])
    os.kill(process, signal.SIGKILL)  # who holds the ledger, in the middle of a round
    coordinator.kill()  # and who started it
    first.wait()
    coordinator.wait()
    before = stored(hub)
    site.start("-m", "tacitly", "join", str(tmp_path / "n0"), *asked)
    again = site.start(*command)
    wait_for(lambda: again.poll() is not None, site)
    assert again.returncode == 0, site.logs()

    after = stored(hub)
    assert len(before) < len(after)
    assert all(after[index] == value for index, value in before.items())  # what was drawn is never drawn again
    assert len(set(after.values())) == len(after)
    with Ledger(hub / "ledger") as ledger:
        assert ledger.spent() == pytest.approx(1.0, abs=1e-6)
        assert all(row.state == "published" for row in ledger.releases())
    text = (tmp_path / "model" / "certificate.json").read_text()
    names = ("billboard.safetensors", "config.json")
    assert verify(text, files={name: (tmp_path / "model" / name).read_bytes() for name in names}).ok
    assert not (tmp_path / "model" / "private").exists()
    told = status.read()
    assert told["state"] == "finished"
    kept = [path for path in hub.rglob("*") if path.is_file()]
    assert not any(path.name.startswith("state.db") for path in kept)
    memory = serve._memory(hub)  # made anew, and empty: it was removed when the model was there
    assert not list(memory.iterdir())
    memory.rmdir()
    assert not any(b'{"answer":[' in path.read_bytes() for path in kept)  # sums without noise are on no disk
    assert told["verdicts"]["ok"] >= 10
    assert told["verdicts"]["malformed"] >= 5
    for i in (0, 1):
        assert len(read_heads(tmp_path / f"n{i}" / "heads.npz")["heads"]) == 30
    assert not (tmp_path / "n2" / "heads.npz").exists()

    wait_for(lambda: refused.poll() is not None, site)
    assert refused.returncode == 2
    assert "does not know this node's key" in site.logs()
    assert stranger.key not in json.dumps(told)

    newcomer = [sys.executable, *lone, "--personalize-only", str(tmp_path / "model")]
    subprocess.run(newcomer, check=True, stdout=subprocess.DEVNULL)
    own = read_heads(tmp_path / "stranger" / "heads.npz")
    np.testing.assert_array_equal(own["basis"], tacitly.load(tmp_path / "model").basis_)


def started_by_a_stranger(invitation: dict[str, str], hub: Path) -> int:
    """Ask the public address to start an app, as somebody would who has the invitation and nothing else."""
    import httpx
    from flwr.proto.control_pb2 import StartRunRequest

    fab = serve.build_app(hub)
    address, authority = invitation["server"], invitation["authority"].encode()
    with serve.control(address, authority) as control, pytest.raises(httpx.HTTPStatusError) as refused:
        control.StartRun(StartRunRequest(fab=fab))
    return int(refused.value.response.status_code)


def stored(hub: Path) -> dict[int, bytes]:
    with Ledger(hub / "ledger") as ledger:
        return published_values(ledger)
