"""Cost of an engine: the same rounds in one process, on Ray, and in other simulators.

``python -m benchmarks.speed.engines`` measures

* a round of 1,000,000 users in one process on one core, and on two Ray actors;
* a round of 10,000 users in one process on two threads, and on two Ray actors: the difference is Ray's overhead;
* the same round (a user's head by least squares, the gradient in the basis, one vector of norm one, the sum; the change
  of the basis, QR) for users with 50 rows and 200 features, rank 5, in tacitly and, if installed (``TACITLY_PFL`` and
  ``TACITLY_FLOWER`` name a Python interpreter), in Apple's ``pfl`` and in Flower's simulator. All users take part, with
  the same rows and the same basis, without noise; a simulator whose next basis differs from tacitly's is an error.

Times are medians after a warm-up; compare ratios, not times. Those of tacitly are of sums only: no noise, no ledger. A
simulator that needs longer than ``--limit`` seconds for a round is stopped, and the limit is recorded.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.speed.others.same_maths import SCALE, K, advance
from benchmarks.tables import RESULTS, keep, table
from tacitly.arrays import Array
from tacitly.data.cohort import Cohort
from tacitly.federation.base import Federation
from tacitly.federation.local import LocalFederation
from tacitly.linalg import orthonormal
from tacitly.methods.fedrep.queries import BasisStep
from tacitly.methods.shared.whitening import Whitening
from tacitly.privacy.ledger import Ledger

OTHERS = {"pfl": "TACITLY_PFL", "flower": "TACITLY_FLOWER"}
OURS = {"tacitly, one core": 1, "tacitly, local": 2, "tacitly, ray": 2}
GRID = 2.0**-40
CLOSE = 1e-5  # largest difference of a basis whose entries are about 0.07; rows are in single precision


def cohort(users: int, rows: int, d: int) -> Cohort:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((users * rows, d), dtype=np.float32)
    y = rng.standard_normal(users * rows, dtype=np.float32)
    return Cohort.from_offsets(X, y, np.arange(0, users * rows + 1, rows))


def query(d: int, k: int) -> BasisStep:
    # Rounded to single precision, so that all contenders start from the same numbers.
    basis = orthonormal(np.random.default_rng(1).normal(size=(d, k)))[0].astype(np.float32).astype(np.float64)
    return BasisStep(basis, np.eye(k), SCALE, Whitening.identity(d))


def seconds(federation: Federation, step: BasisStep, rounds: int) -> list[float]:
    federation._exact_sum(step, 1.0, GRID)
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        federation._exact_sum(step, 1.0, GRID)
        times.append(time.perf_counter() - start)
    return times


def run_rounds(federation: Federation, step: BasisStep, rounds: int) -> dict[str, Any]:
    """Return wall and CPU times of rounds after a warm-up round, and the next basis."""
    times, busy, after = [], [], step.basis
    for _ in range(rounds + 1):
        start, before = time.perf_counter(), time.process_time()
        after = advance(step.basis, federation._exact_sum(step, 1.0, GRID) * GRID)
        times.append(time.perf_counter() - start)
        busy.append(time.process_time() - before)
    return {"times": times[1:], "busy": busy[1:], "basis": after}


def local(data: Cohort, threads: int) -> LocalFederation:
    return LocalFederation(data, Ledger().run("local", config={}), threads=threads)


def on_ray(data: Cohort, workers: int) -> Federation:
    from tacitly.federation.ray import RayEngine

    return RayEngine(workers=workers).population(data).federation(Ledger().run("ray", config={}))


def alternate(first: Callable[[], list[float]], second: Callable[[], list[float]], turns: int) -> list[float]:
    """Return medians of two measurements taken in turns, so that other load affects both."""
    found: list[list[float]] = [[], []]
    for _ in range(turns):
        for times, measure in zip(found, (first, second), strict=True):
            times += measure()
    return [statistics.median(times) for times in found]


def scaling(users: int, rounds: int) -> dict[str, float]:
    d, k = 16, 3
    data, step = cohort(users, 8, d), query(d, k)
    one, two = local(data, 1), on_ray(data, 2)
    # Many turns: two processes that read memory at once are more sensitive to other load than one.
    alone, spread = alternate(lambda: seconds(one, step, rounds), lambda: seconds(two, step, rounds), 15)
    return {"users": users, "one core": alone, "ray, 2 workers": spread, "ratio": alone / spread}


def overhead(users: int, rounds: int) -> dict[str, float]:
    d, k = 16, 3
    data, step = cohort(users, 8, d), query(d, k)
    here, there = local(data, 2), on_ray(data, 2)
    plain, spread = alternate(lambda: seconds(here, step, rounds), lambda: seconds(there, step, rounds), 3)
    return {"users": users, "local": plain, "ray": spread, "overhead ms": 1000 * (spread - plain)}


def race(users: int, contenders: Sequence[str], limit: float) -> list[dict[str, Any]]:
    """Time the same round, with the same rows and basis, in every available engine."""
    m, d, found = 50, 200, []
    data, step = cohort(users, m, d), query(d, K)
    expected = run_rounds(local(data, 2), step, 0)["basis"]
    with tempfile.TemporaryDirectory() as folder:
        if not set(contenders) <= set(OURS):
            np.save(Path(folder) / "X.npy", data.X.reshape(users, m, d))
            np.save(Path(folder) / "y.npy", np.asarray(data.y).reshape(users, m))
            np.save(Path(folder) / "basis.npy", step.basis.astype(np.float32))
        for name in contenders:
            load = os.getloadavg()[0]
            if name in OURS:
                there = on_ray(data, OURS[name]) if name.endswith("ray") else local(data, OURS[name])
                report = run_rounds(there, step, 5)
            else:
                report = other(name, folder, 1 if users > 1_000 and name == "flower" else 3, limit)
            found.append({"users": users, "engine": name, **measured(name, report, expected), "load before": load})
    return found


def measured(name: str, report: dict[str, Any], expected: Array) -> dict[str, Any]:
    """Return the time of a round, after checking the basis that the engine found."""
    row: dict[str, Any] = {"rounds timed": 0, "seconds per round": None, "CPU seconds of main process": None}
    row["basis differs by"] = None
    if not report:
        return row
    if "basis" not in report:
        longer = f"more than {report['more than']:.0f} ({report['answered']} users had answered)"
        return row | {"rounds timed": 1, "seconds per round": longer}
    apart = float(np.abs(np.asarray(report["basis"]) - expected).max())
    if not apart < CLOSE:
        raise RuntimeError(f"{name} computes something else: its basis differs by {apart:.2g}.")
    row |= {"rounds timed": len(report["times"]), "basis differs by": apart}
    return row | {
        "seconds per round": statistics.median(report["times"]),
        "CPU seconds of main process": statistics.median(report["busy"]),
    }


def other(name: str, folder: str, rounds: int, limit: float) -> dict[str, Any]:
    """Run another simulator in its own environment and return its report; empty if it is not installed."""
    python = os.environ.get(OTHERS[name])
    if python is None:
        return {}
    script = Path(__file__).parent / "others" / f"{name}_rounds.py"
    # In its own process group, because a simulator starts processes and none may be left running.
    process = subprocess.Popen(
        [python, str(script), folder, str(rounds), str(limit)],
        stdout=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    try:
        out, _ = process.communicate(timeout=limit + 300)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.returncode != 0:
        raise RuntimeError(f"{name} failed.")
    report: dict[str, Any] = json.loads(out.strip().splitlines()[-1])
    return report


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="tiny sizes, nothing written")
    parser.add_argument("--only", choices=["scaling", "overhead", "race"])
    parser.add_argument("--users", type=int, help="this number of users only, in the race")
    parser.add_argument("--engine", choices=[*OURS, *OTHERS], action="append", help="these engines only")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds allowed for a round of another simulator")
    options = parser.parse_args()
    import ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)
    kept = RESULTS / "speed_engines.json"
    # Parts may be measured separately, while the machine is quiet; the others keep their results.
    result = json.loads(kept.read_text("utf-8")) if options.only and not options.quick and kept.exists() else {}
    if options.only in (None, "scaling"):
        result["scaling"] = [scaling(20_000 if options.quick else 1_000_000, 3)]
    if options.only in (None, "overhead"):
        result["overhead"] = [overhead(2_000 if options.quick else 10_000, 5 if options.quick else 50)]
    if options.only in (None, "race"):
        sizes = (options.users,) if options.users else ((200,) if options.quick else (1_000, 10_000))
        found = {(row["users"], row["engine"]): row for row in result.get("race", [])}
        for users in sizes:
            for row in race(users, options.engine or [*OURS, *OTHERS], options.limit):
                found[users, row["engine"]] = row
        result["race"] = [found[key] for key in sorted(found, key=lambda key: (key[0], [*OURS, *OTHERS].index(key[1])))]
    keep("speed_engines", result, tables(result), quick=options.quick)


TITLES = {
    "scaling": "Seconds per round, 8 rows per user, 16 features, rank 3",
    "overhead": "Seconds per round with small users: Ray's overhead",
    "race": "The same round with 50 rows per user, 200 features, rank 5, all users taking part",
}


def tables(result: dict[str, Any]) -> str:
    parts = []
    for name, title in TITLES.items():
        if rows := result.get(name):
            if name == "race":
                rows = [row | {"local is faster by": faster(row, rows)} for row in rows]
            cells = [["not measured" if value is None else value for value in row.values()] for row in rows]
            parts.append(f"{title}\n\n{table(list(rows[0]), cells)}")
    return "\n\n".join(parts)


def faster(row: dict[str, Any], rows: list[dict[str, Any]]) -> float | None:
    """Return how much faster tacitly is in one process than this engine.

    Of another simulator, only the CPU time of its main process counts if that is less than its wall time, because on a
    busy machine the rest may be waiting.
    """
    ours = {other["engine"]: other["seconds per round"] for other in rows if other["users"] == row["users"]}
    wall = row["seconds per round"]
    if not isinstance(wall, float) or "tacitly, local" not in ours:
        return None
    least = min(wall, row["CPU seconds of main process"]) if row["engine"] in OTHERS else wall
    return float(least / ours["tacitly, local"])


if __name__ == "__main__":
    main()
