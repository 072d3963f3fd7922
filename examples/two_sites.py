"""Two sites over Flower.

Two sites and a coordinator on this machine, each with its own folder, as three programs. The commands are those of a
real deployment (docs/deploy.md), with a local address. Rows and heads never leave their site's folder.
Needs ``pip install tacitly[flower]``.
"""

from __future__ import annotations

import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import tacitly
from tacitly.federation.flower.kept_heads import read_heads

SITES = ("north", "south")
PREPARE = "tacitly join north --table north.csv --user id --target y"
SERVE = "tacitly serve hub --node north.json --node south.json --server hub.example:8600 --epsilon 1 --page 8601"
TAKE_PART = "tacitly join north --invitation invitation.json"
PUBLISH = ("tacitly verify model", "tacitly publish model public")
PREDICT = "tacitly predict public new.csv --heads north"

# What this machine needs besides: time for programs that start together and compile at first.
SLOW = " --deadline 300"
PATIENT = " --patience 600"


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        north, south, hub = (Path(name) / place for place in (*SITES, "coordinator"))
        write_tables(north, south)
        hub.mkdir()
        for site in (north, south):
            run(as_site(PREPARE, site), cwd=site)
            shutil.copy(site / site.name / "card.json", hub / f"{site.name}.json")
        here = SERVE.replace("hub.example:8600", f"127.0.0.1:{free_port()}").replace("8601", str(free_port()))
        processes = [start(here + SLOW, cwd=hub)]
        invitation = hub / "hub" / "invitation.json"
        while not (hub / "hub" / "settings.json").exists():
            if processes[0].poll() is not None:
                raise SystemExit("the coordinator did not start")
            time.sleep(0.2)
        for site in (north, south):
            shutil.copy(invitation, site)
            processes.append(start(as_site(TAKE_PART, site) + PATIENT, cwd=site))
        try:
            for process in processes:
                process.wait(timeout=3600)
        finally:
            for process in processes:
                process.kill()
        for command in PUBLISH:
            run(command, cwd=hub)
        for site in (north, south):
            shutil.copytree(hub / "public", site / "public")
            run(as_site(PREDICT, site) + " --out predictions.csv", cwd=site)
            print(f"{site.name}: {len(read_heads(site / site.name / 'heads.npz')['heads'])} heads, in its own folder")
        print(str(tacitly.load(hub / "public").certificate_).splitlines()[0])


def write_tables(*sites: Path) -> None:
    """Write one table per site, of users with a shared subspace, and rows to predict."""
    data = tacitly.datasets.make_shared_subspace(1000, 10, 2, 8, noise=0.1, random_state=0)
    header = ",".join(["id", *(f"x{j}" for j in range(10)), "y"])
    for site, mine in zip(sites, (data.users < 500, data.users >= 500), strict=True):
        site.mkdir()
        rows = np.column_stack([data.users, data.X, data.y])[mine]
        for file, some in ((f"{site.name}.csv", rows), ("new.csv", rows[:20])):
            np.savetxt(site / file, some, delimiter=",", header=header, comments="", fmt="%.6g")


def as_site(command: str, site: Path) -> str:
    return command.replace("north", site.name)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run(command: str, cwd: Path) -> None:
    subprocess.run(words(command), cwd=cwd, check=True)


def start(command: str, cwd: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(words(command), cwd=cwd)


def words(command: str) -> list[str]:
    """Return a command's words, for the Python that runs this script."""
    return [sys.executable, "-m", *shlex.split(command)]


if __name__ == "__main__":
    main()
