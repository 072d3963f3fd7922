"""What an engine costs: the same rounds in one process, on Ray, and in the simulators one would use instead.

``python -m benchmarks.speed.engines`` measures

* a round of 1,000,000 users in one process on one core, and on two Ray actors;
* a round of 10,000 users in one process on two threads, and on two Ray actors: the difference is Ray's overhead;
* the same maths (a user's head by least squares, the gradient in the basis, its clip, the sum) for users of 50 rows and
  200 features, rank 5, in ours and, where they are installed (``TACIT_PFL`` and ``TACIT_FLOWER`` name a Python), in
  Apple's ``pfl`` and in Flower's simulator.

Times are medians after a warm-up; compare ratios, not times. Ours are of sums alone: no noise, no ledger. (pfl
adds noise; Flower's clients draw their rows in every round.)
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.tables import RESULTS, keep, table
from tacit.algorithms.fedrep import BasisStep
from tacit.algorithms.whitening import Whitening
from tacit.cohort import Cohort
from tacit.federation.base import Federation
from tacit.federation.local import LocalFederation
from tacit.linalg import orthonormal
from tacit.privacy.ledger import Ledger

OTHERS = Path(__file__).parent / "others"


def cohort(users: int, rows: int, d: int) -> Cohort:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((users * rows, d), dtype=np.float32)
    y = rng.standard_normal(users * rows, dtype=np.float32)
    return Cohort.from_offsets(X, y, np.arange(0, users * rows + 1, rows))


def query(d: int, k: int) -> BasisStep:
    basis = orthonormal(np.random.default_rng(1).normal(size=(d, k)))[0]
    return BasisStep(basis, np.eye(k), 0.5, Whitening.identity(d))


def seconds(federation: Federation, step: BasisStep, rounds: int) -> list[float]:
    federation._exact_sum(step, 1.0, 2.0**-40)
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        federation._exact_sum(step, 1.0, 2.0**-40)
        times.append(time.perf_counter() - start)
    return times


def local(data: Cohort, threads: int) -> LocalFederation:
    return LocalFederation(data, Ledger().run("local", config={}), threads=threads)


def on_ray(data: Cohort, workers: int) -> Federation:
    from tacit.federation.ray import RayEngine

    return RayEngine(workers=workers).place(data).federation(Ledger().run("ray", config={}))


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
    alone, spread = alternate(lambda: seconds(one, step, rounds), lambda: seconds(two, step, rounds), 3)
    return {"users": users, "one core": alone, "ray, 2 workers": spread, "ratio": alone / spread}


def overhead(users: int, rounds: int) -> dict[str, float]:
    d, k = 16, 3
    data, step = cohort(users, 8, d), query(d, k)
    here, there = local(data, 2), on_ray(data, 2)
    plain, spread = alternate(lambda: seconds(here, step, rounds), lambda: seconds(there, step, rounds), 3)
    return {"users": users, "local": plain, "ray": spread, "overhead ms": 1000 * (spread - plain)}


def race(users: int, rounds: int) -> dict[str, float | None]:
    d, k, m = 200, 5, 50
    data, step = cohort(users, m, d), query(d, k)
    result: dict[str, float | None] = {"users": users}
    result["tacit, local"] = 1 / statistics.median(seconds(local(data, 2), step, rounds))
    result["tacit, ray"] = 1 / statistics.median(seconds(on_ray(data, 2), step, rounds))
    for name, variable in (("pfl", "TACIT_PFL"), ("flower", "TACIT_FLOWER")):
        result[name] = other(os.environ.get(variable), name, users)
    return result


def other(python: str | None, name: str, users: int) -> float | None:
    """Return rounds per second of somebody else's simulator, in its own environment."""
    if python is None:
        return None
    command = [python, str(OTHERS / f"{name}_rounds.py"), str(users)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        sys.stderr.write(done.stderr[-2000:])
        return None
    return float(json.loads(done.stdout.strip().splitlines()[-1])["rounds per second"])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="tiny sizes, nothing written")
    parser.add_argument("--only", choices=["scaling", "overhead", "race"])
    parser.add_argument("--users", type=int, help="one size of the race only")
    options = parser.parse_args()
    import ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)
    kept = RESULTS / "speed_engines.json"
    # Parts may be measured one by one, each in a quiet minute; what is not measured now is as it was.
    result = json.loads(kept.read_text("utf-8")) if options.only and kept.exists() else {}
    if options.only in (None, "scaling"):
        result["scaling"] = [scaling(20_000 if options.quick else 1_000_000, 3)]
    if options.only in (None, "overhead"):
        result["overhead"] = [overhead(2_000 if options.quick else 10_000, 5 if options.quick else 50)]
    if options.only in (None, "race"):
        sizes = (options.users,) if options.users else ((200,) if options.quick else (1_000, 10_000))
        before = {row["users"]: row for row in result.get("race", [])}
        result["race"] = list((before | {users: race(users, 5) for users in sizes}).values())
    keep("speed_engines", result, tables(result), quick=options.quick)


TITLES = {
    "scaling": "Seconds a round, 8 rows a user, 16 features, rank 3",
    "overhead": "Seconds a round of small users: what Ray adds",
    "race": "Rounds a second, 50 rows a user, 200 features, rank 5",
}


def tables(result: dict[str, Any]) -> str:
    parts = []
    for name, title in TITLES.items():
        if rows := result.get(name):
            cells = [["not measured" if value is None else value for value in row.values()] for row in rows]
            parts.append(f"{title}\n\n{table(list(rows[0]), cells)}")
    return "\n\n".join(parts)


if __name__ == "__main__":
    main()
