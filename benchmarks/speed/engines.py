"""What an engine costs: the same rounds in one process, on Ray, and in the simulators one would use instead.

``python -m benchmarks.speed.engines`` measures

* a round of 1,000,000 users in one process on one core, and on two Ray actors;
* a round of 10,000 users in one process on two threads, and on two Ray actors: the difference is Ray's overhead;
* the same round (a user's head by least squares, the gradient in the basis, one vector of norm one, the sum; the change
  of the basis, QR) for users of 50 rows and 200 features, rank 5, in ours and, where they are installed
  (``TACITLY_PFL`` and ``TACITLY_FLOWER`` name a Python), in Apple's ``pfl`` and in Flower's simulator. Everybody is
  asked, from the same rows and the same basis, without noise, and a contender whose next basis differs from ours is an
  error.

Times are medians after a warm-up; compare ratios, not times. Ours are of sums alone: no noise, no ledger. A simulator
that needs longer than ``--limit`` seconds for a round is stopped, and that is what is kept.
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
CLOSE = 1e-5  # of a basis whose entries are about 0.07; rows are in single precision


def cohort(users: int, rows: int, d: int) -> Cohort:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((users * rows, d), dtype=np.float32)
    y = rng.standard_normal(users * rows, dtype=np.float32)
    return Cohort.from_offsets(X, y, np.arange(0, users * rows + 1, rows))


def query(d: int, k: int) -> BasisStep:
    # As single precision has it, so that everybody begins with the same numbers.
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
    """Say how long rounds took after a first one, how long this process computed, and the basis that comes after."""
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
    """Medians of two measurements taken in turns, so that a busy machine is busy for both."""
    found: list[list[float]] = [[], []]
    for _ in range(turns):
        for place, measure in enumerate((first, second)):
            found[place] += measure()
    return [statistics.median(times) for times in found]


def scaling(users: int, rounds: int) -> dict[str, float]:
    d, k = 16, 3
    data, step = cohort(users, 8, d), query(d, k)
    one, two = local(data, 1), on_ray(data, 2)
    # Many turns: two processes that read memory at once depend more on what else the machine does than one.
    alone, spread = alternate(lambda: seconds(one, step, rounds), lambda: seconds(two, step, rounds), 15)
    return {"users": users, "one core": alone, "ray, 2 workers": spread, "ratio": alone / spread}


def overhead(users: int, rounds: int) -> dict[str, float]:
    d, k = 16, 3
    data, step = cohort(users, 8, d), query(d, k)
    here, there = local(data, 2), on_ray(data, 2)
    plain, spread = alternate(lambda: seconds(here, step, rounds), lambda: seconds(there, step, rounds), 3)
    return {"users": users, "local": plain, "ray": spread, "overhead ms": 1000 * (spread - plain)}


def race(users: int, contenders: Sequence[str], limit: float) -> list[dict[str, Any]]:
    """Rows of one size: the same round, from the same rows and basis, by everybody who is here."""
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
                told = run_rounds(there, step, 5)
            else:
                told = other(name, folder, 1 if users > 1_000 and name == "flower" else 3, limit)
            found.append({"users": users, "engine": name, **measured(name, told, expected), "load before": load})
    return found


def measured(name: str, told: dict[str, Any], expected: Array) -> dict[str, Any]:
    """Say how long a round took, of a contender that found the basis which was expected."""
    row: dict[str, Any] = {"rounds timed": 0, "seconds a round": None, "of its main process": None}
    row["basis differs by"] = None
    if not told:
        return row
    if "basis" not in told:
        longer = f"more than {told['more than']:.0f} ({told['answered']} users had answered)"
        return row | {"rounds timed": 1, "seconds a round": longer}
    apart = float(np.abs(np.asarray(told["basis"]) - expected).max())
    if not apart < CLOSE:
        raise RuntimeError(f"{name} computes something else: its basis differs by {apart:.2g}.")
    row |= {"rounds timed": len(told["times"]), "basis differs by": apart}
    return row | {
        "seconds a round": statistics.median(told["times"]),
        "of its main process": statistics.median(told["busy"]),
    }


def other(name: str, folder: str, rounds: int, limit: float) -> dict[str, Any]:
    """Return what somebody else's simulator tells, in its own environment; nothing where it is not installed."""
    python = os.environ.get(OTHERS[name])
    if python is None:
        return {}
    script = Path(__file__).parent / "others" / f"{name}_rounds.py"
    # In a group of its own: a simulator starts processes, and none may be left over.
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
    told: dict[str, Any] = json.loads(out.strip().splitlines()[-1])
    return told


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="tiny sizes, nothing written")
    parser.add_argument("--only", choices=["scaling", "overhead", "race"])
    parser.add_argument("--users", type=int, help="one size of the race only")
    parser.add_argument("--engine", choices=[*OURS, *OTHERS], action="append", help="these contenders only")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds for a round of somebody else's")
    options = parser.parse_args()
    import ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)
    kept = RESULTS / "speed_engines.json"
    # Parts may be measured one by one, each in a quiet minute; what is not measured now is as it was.
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
    "scaling": "Seconds a round, 8 rows a user, 16 features, rank 3",
    "overhead": "Seconds a round of small users: what Ray adds",
    "race": "A round of users with 50 rows, 200 features, rank 5: everybody asked, the same maths",
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
    """How many rounds of ours, in one process, go into one of this engine.

    Of somebody else's only what its main process computed is counted where that is less: on a machine that was busy
    with other things the rest may be waiting.
    """
    ours = {other["engine"]: other["seconds a round"] for other in rows if other["users"] == row["users"]}
    own = row["seconds a round"]
    if not isinstance(own, float) or "tacitly, local" not in ours:
        return None
    least = min(own, row["of its main process"]) if row["engine"] in OTHERS else own
    return float(least / ours["tacitly, local"])


if __name__ == "__main__":
    main()
