"""Kill a third of the sites of a masked run, as processes on this machine, and measure whether and when it ends.

A coordinator and its sites run as in production: TLS, keys, Flower's processes, masked sums. After some releases, a
third of the sites is killed (SIGKILL) in the middle of a round, and they are not restarted. The run must end by itself,
its certificate must verify, and the remaining sites must have heads.

``python -m benchmarks.lost_sites [--sites 9] [--none] [--quick]``; ``--none`` also runs without killing sites, for
comparison.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import tacitly
from benchmarks.tables import keep, table
from tacitly.deployment import join, serve
from tacitly.deployment.settings import Settings, Status
from tacitly.federation.flower.groups import least_group
from tacitly.privacy.verification import verify

DEADLINE = 30.0
RELEASES = 4  # that are out before anybody is killed
LIMIT = 840.0  # seconds after which the run counts as one that does not end


def users(count: int, seed: int = 0) -> tacitly.Cohort:
    """Return users of two classes who share two directions."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(10 * count, 6))
    heads = rng.normal(size=(count, 2)) @ np.linalg.qr(rng.normal(size=(6, 2)))[0].T
    y = np.einsum("ij,ij->i", X, np.repeat(heads, 10, axis=0)) > 0
    return tacitly.Cohort.from_offsets(X, y.astype(float), np.arange(0, 10 * count + 1, 10))


def free_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def prepared(folder: Path, sites: int) -> list[Path]:
    """Make the folders of a coordinator (``hub``) and of its sites."""
    data, each = users(20 * sites), np.arange(20)
    names = [f"site{i}" for i in range(sites)]
    cards = [join.prepare(folder / name, name, data.take(20 * i + each)) for i, name in enumerate(names)]
    settings = Settings(
        server=f"127.0.0.1:{free_port()}",
        out=str(folder / "model"),
        method="fedrep",
        options={"rank": 2, "rounds": 3, "loss": "hinge"},
        epsilon=1.0,
        trust="secure",
        cards=tuple(cards),
        patience={"deadline": DEADLINE, "again": 2.0, "gather": 300.0},
    )
    serve.prepare(folder / "hub", settings)
    return [folder / name for name in names]


def started(folder: Path, *words: str) -> subprocess.Popen[bytes]:
    """Start the command in a process of its own, with a log file, and with accounts that only this run has."""
    command, own = [sys.executable, "-m", "tacitly", *words], {**os.environ, "TACITLY_HOME": str(folder / "home")}
    with (folder / f"log-{len(list(folder.glob('log-*')))}.txt").open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=own)


def run(folder: Path, sites: int, lost: int) -> list[str]:
    """Run a federation, kill ``lost`` sites in its middle; return a row of the table."""
    homes, status = prepared(folder, sites), Status(folder / "hub")
    asked = ("--invitation", str(folder / "hub" / "invitation.json"), "--patience", "600")
    coordinator = started(folder, "serve", str(folder / "hub"))
    nodes = [started(folder, "join", str(home), *asked) for home in homes]
    killed_at, begun = 0.0, time.monotonic()
    try:
        while coordinator.poll() is None and time.monotonic() - begun < LIMIT:
            out = int(status.read().get("releases", 0))
            if lost and not killed_at and out >= RELEASES:
                for node in nodes[1 : 1 + lost]:
                    node.kill()
                killed_at = time.monotonic()
            time.sleep(0.05)
        after = time.monotonic() - (killed_at or begun)
        ended = coordinator.poll() == 0
    finally:
        for process in (coordinator, *nodes):
            process.kill()
            process.wait()
    if not ended:
        logs = "\n".join(path.read_text(errors="replace")[-400:] for path in sorted(folder.glob("log-*.txt")))
        return [str(sites), str(lost), f"no, after {after:.0f} s", "", "", logs if os.environ.get("LOGS") else ""]
    names = ("billboard.safetensors", "config.json")
    files = {name: (folder / "model" / name).read_bytes() for name in names}
    sound = verify((folder / "model" / "certificate.json").read_text(), files=files).ok
    heads = sum((home / "heads.npz").is_file() for home in homes)
    releases = str(status.read()["releases"])
    return [str(sites), str(lost), f"yes, after {after:.0f} s", releases, "yes" if sound else "no", str(heads)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sites", type=int, default=9)
    parser.add_argument("--quick", action="store_true", help="keep nothing")
    parser.add_argument("--none", action="store_true", help="also a run in which nobody is killed")
    chosen = parser.parse_args()
    most = chosen.sites - least_group(chosen.sites, 1)
    rows = []
    for lost in ([0] if chosen.none else []) + [min(chosen.sites // 3, most)]:
        with tempfile.TemporaryDirectory() as folder:
            rows.append(run(Path(folder), chosen.sites, lost))
    columns = ["sites", "killed", "ended", "releases", "certificate verifies", "sites with heads"]
    told = {"columns": columns, "rows": rows, "deadline": DEADLINE, "releases before the kill": RELEASES}
    keep("lost_sites", told, table(columns, rows), quick=chosen.quick)


if __name__ == "__main__":
    main()
