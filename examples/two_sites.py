"""Two sites over Flower.

Two sites and a coordinator on this machine, as three programs. Rows and heads never leave their site's folder. The
commands are those of a real deployment, with local addresses (docs/deploy.md). Needs ``pip install tacitly[flower]``.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import tacitly
from tacitly.federation.flower.node import read_heads

TACITLY = [sys.executable, "-m", "tacitly"]


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_tables(folder)
        for site in ("north", "south"):
            run("join", f"{site}", "--table", f"{site}.csv", "--user", "user", "--target", "y", cwd=folder)
        cards = ["--node", "north/card.json", "--node", "south/card.json"]
        server = ["--server", f"127.0.0.1:{free_port()}"]
        server += ["--deadline", "300"]  # in the first round sites may still compile
        model = ["--method", "fedrep", "--rank", "2", "--epsilon", "4", "--rounds", "3"]
        hub = start("serve", "hub", *cards, *server, *model, cwd=folder)
        while not (folder / "hub" / "settings.json").exists():
            if hub.poll() is not None:
                raise SystemExit("the coordinator did not start")
        known = ["--invitation", "hub/invitation.json", "--patience", "600"]
        sites = [start("join", site, *known, cwd=folder) for site in ("north", "south")]
        try:
            hub.wait(timeout=900)
        finally:
            for process in [hub, *sites]:
                process.kill()
        print(str(tacitly.load(folder / "model").certificate_).splitlines()[0])
        for site in ("north", "south"):
            print(f"{site}: {len(read_heads(folder / site / 'heads.npz')['heads'])} heads, in its own folder")


def write_tables(folder: Path) -> None:
    """Write one table per site, of users with a shared subspace."""
    data = tacitly.datasets.make_shared_subspace(1000, 10, 2, 8, noise=0.1, random_state=0)
    header = ",".join(["user", *(f"x{j}" for j in range(10)), "y"])
    for site, half in (("north", data.users < 500), ("south", data.users >= 500)):
        rows = np.column_stack([data.users, data.X, data.y])[half]
        np.savetxt(folder / f"{site}.csv", rows, delimiter=",", header=header, comments="", fmt="%.6g")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run(*words: str, cwd: Path) -> None:
    subprocess.run([*TACITLY, *words], cwd=cwd, check=True)


def start(*words: str, cwd: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([*TACITLY, *words], cwd=cwd)


if __name__ == "__main__":
    main()
