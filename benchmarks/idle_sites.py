"""Measure the processor time of a waiting federation: coordinator, its link process, and nodes, on this machine.

A coordinator and all of its sites except one run as in production (TLS, keys, Flower's processes). The coordinator
waits for the last site, and the other sites wait for a query. When all programs have started and a minute has passed,
the processor time of every process is read, and once more after another minute. The goal is less than 2 % of a core in
total.

``python -m benchmarks.idle_sites [--sites 3] [--quick]``. It reads ``/proc``, so it needs Linux.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

from benchmarks.lost_sites import prepared, started
from benchmarks.tables import keep, table
from tacitly.deployment.settings import Status

START, SETTLE, WATCHED = 600.0, 60.0, 60.0  # seconds: at most until all run; before and while time is measured
PROGRAM = "flwr-serverapp"  # the last that the coordinator starts
TICKS = os.sysconf("SC_CLK_TCK")


def tree(root: int) -> list[int]:
    """Return a process and all that it started, directly or not."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rsplit(")", 1)[1].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
    found = [root]
    for process in found:
        found += [child for child, parent in parents.items() if parent == process]
    return found


def spent(process: int) -> float:
    """Return the seconds of processor time of a process so far: user and system; 0 if it has ended."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICKS


def command(process: int) -> str:
    """Return what a process runs, in a word or two."""
    try:
        words = Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
    except FileNotFoundError:
        return "ended"
    names = [Path(word.decode()).name for word in words if word and not word.startswith(b"-")]
    return " ".join(names[1:3]) if names and names[0].startswith("python") else " ".join(names[:1])


def run(folder: Path, sites: int, settle: float, watched: float) -> list[list[str]]:
    """Start everybody but one site, let them wait, and return a row of the table for each process."""
    homes, status = prepared(folder, sites), Status(folder / "hub")
    asked = ("--invitation", str(folder / "hub" / "invitation.json"), "--patience", "600")
    coordinator = started(folder, "serve", str(folder / "hub"))
    nodes = [started(folder, "join", str(home), *asked) for home in homes[1:]]
    try:
        begun = time.monotonic()
        while not any(PROGRAM in command(process) for process in tree(coordinator.pid)):
            if coordinator.poll() is not None or time.monotonic() - begun > START:
                raise RuntimeError(f"the coordinator did not start: {status.read()}")
            time.sleep(0.5)
        time.sleep(settle)
        who = {process: "coordinator" for process in tree(coordinator.pid)}
        for number, node in enumerate(nodes):
            who |= {process: f"node {number + 1}" for process in tree(node.pid)}
        before, at = {process: spent(process) for process in who}, time.monotonic()
        time.sleep(watched)
        used = {process: spent(process) - before[process] for process in who}
        seconds = time.monotonic() - at
        alive = coordinator.poll() is None and all(node.poll() is None for node in nodes)
        rows = [[side, command(process), f"{used[process] / seconds:.2%}"] for process, side in who.items()]
    finally:
        for process in (coordinator, *nodes):
            process.kill()
            process.wait()
    if not alive:
        raise RuntimeError("somebody ended instead of waiting: " + str(status.read()))
    return [*rows, ["all", "", f"{sum(used.values()) / seconds:.2%}"]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sites", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="for a few seconds; keep nothing")
    chosen = parser.parse_args()
    settle, watched = (2.0, 5.0) if chosen.quick else (SETTLE, WATCHED)
    with tempfile.TemporaryDirectory() as folder:
        rows = run(Path(folder), chosen.sites, settle, watched)
    columns = ["side", "process", "share of a core"]
    told = {"columns": columns, "rows": rows, "sites": chosen.sites, "settled": settle, "watched": watched}
    keep("idle_sites", told, table(columns, rows), quick=chosen.quick)


if __name__ == "__main__":
    main()
