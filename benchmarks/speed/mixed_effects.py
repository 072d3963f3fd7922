"""Speed of mixed effects: releases relative to reading the rows once, in the same run, and whole fits by size.

A release is timed when the users' statistics exist (moments, likelihoods: see ``methods/mixed_effects/statistics.py``);
building them is timed once, as the first release that needs them. Times of a shared machine depend on who else is
there, so the ratio of processor times is printed beside that of the best elapsed times. Memory is the largest private
(anonymous) memory above that before the fit: pages of memory-mapped rows belong to the system's cache.

``python -m benchmarks.speed.mixed_effects`` (some minutes, 3 GB of disk; ``--quick`` for a smoke test, ``--only`` for
one part).
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

import tacitly
from benchmarks.speed.round import read
from benchmarks.tables import RESULTS, keep, table
from tacitly.data.cohort import Cohort
from tacitly.federation.base import Query
from tacitly.federation.local import LocalFederation
from tacitly.methods.mixed_effects.advantage import Advantage
from tacitly.methods.mixed_effects.posterior import Coordinates, Prior
from tacitly.methods.mixed_effects.queries import Information, MeasuredScore, Score
from tacitly.methods.mixed_effects.statistics import few_digits
from tacitly.methods.mixed_effects.unit_queries import Angles, Magnitudes
from tacitly.methods.mixed_effects.variance_queries import LogVariances, MeasuredSpread, Spread, Variances
from tacitly.methods.shared.typical_norm import TypicalNorm
from tacitly.privacy.ledger import Ledger

FEATURES, ROWS, USERS, REPEATS = 16, 20, 100_000, 9
FITS = (
    (5_000, 6, 13, "float64", False),
    (10_000, 20, 16, "float64", False),
    (100_000, 20, 16, "float64", False),
    (1_000_000, 20, 16, "float32", True),
)
PARTS = ("releases", "fits")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small problems, nothing is written")
    parser.add_argument("--only", choices=PARTS, help="one part; the other is taken from the last results")
    parser.add_argument("--fit", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.fit:
        print(json.dumps(fit(*json.loads(arguments.fit))))
        return
    quick = arguments.quick
    data: dict[str, Any] = {}
    if arguments.only != "fits":
        users, repeats = (5_000, 1) if quick else (USERS, REPEATS)
        data["releases"] = [case for dtype in ("float64", "float32") for case in race(users, dtype, repeats)]
        data["users"] = users
    if arguments.only != "releases":
        cases = ((1_000, 6, 13, "float64", False), (5_000, 6, 13, "float32", True)) if quick else FITS
        data["fits"] = [alone(*case) for case in cases]
    last, today = RESULTS / "speed_mixed_effects.json", datetime.datetime.now(datetime.UTC).date().isoformat()
    data["dates"] = {part: today for part in PARTS if part in data}
    if arguments.only and last.exists():
        before = json.loads(last.read_text("utf-8"))
        data = {**before, **data, "dates": {**before.get("dates", {}), **data["dates"]}}
    keep("speed_mixed_effects", data, as_text(data), quick=quick)


def as_text(data: dict[str, Any]) -> str:
    """Return both tables."""
    parts = []

    def measured(part: str) -> str:
        return f"; measured {data['dates'][part]}" if part in data.get("dates", {}) else ""

    if "releases" in data:
        rows = [
            [
                case["release"],
                case["dtype"],
                f"{1e3 * case['first']:.0f} ms",
                f"{1e3 * case['read']:.1f} ms",
                f"{1e3 * case['time']:.1f} ms",
                f"{case['time'] / case['read']:.1f}×",
                f"{case['cpu'] / case['cpu_read']:.1f}×",
            ]
            for case in data["releases"]
        ]
        header = ["release", "rows", "first", "reading rows once", "release", "ratio", "ratio of processor times"]
        sizes = (
            f"{data['users']:,} users, {ROWS} rows, d = {FEATURES}; 2 cores; best of {REPEATS}{measured('releases')}."
        )
        parts.append(f"{sizes}\n\n{table(header, rows)}")
    if "fits" in data:
        rows = [
            [
                f"{case['users']:,} × {case['rows']} × {case['features']}",
                case["dtype"] + (", out of core" if case["on_disk"] else ""),
                f"{case['megabytes']:.0f} MB",
                f"{case['seconds']:.2f} s",
                f"{case['cpu']:.2f} s",
                f"{case['extra']:.0f} MB",
                f"{case['load']:.1f}",
            ]
            for case in data["fits"]
        ]
        header = ["users × rows × features", "rows", "data", "fit", "processor time", "memory beside the data", "load"]
        title = f"Whole certified fits, heads included, after a first fit{measured('fits')}."
        parts.append(f"{title}\n\n{table(header, rows)}")
    return "\n\n".join(parts)


def make(users: int, rows: int, features: int, dtype: str) -> Cohort:
    """Draw users from a population with personal intercepts and slopes."""
    rng = np.random.default_rng(0)
    kind: Any = np.dtype(dtype).type
    X = rng.standard_normal((users * rows, features), dtype=kind)
    y = rng.standard_normal(users * rows, dtype=kind)
    y *= 0.5
    for start in range(0, users, 10_000):  # in pieces: temporary arrays of a million users would need memory
        stop = min(start + 10_000, users)
        own = 0.5 + 0.3 * rng.standard_normal((stop - start, features + 1), dtype=kind)
        part = X[start * rows : stop * rows].reshape(stop - start, rows, features)
        y[start * rows : stop * rows] += (own[:, :1] + np.einsum("umf,uf->um", part, own[:, 1:])).ravel()
    return Cohort.from_offsets(X, y, np.arange(0, users * rows + 1, rows))


def releases(units: Coordinates, size: int) -> dict[str, Query]:
    """Return the queries of a fit, early ones under a diagonal prior, late ones under a full one."""
    rng = np.random.default_rng(1)
    mean, ones, groups = np.full(size, 0.2), np.ones(size), np.minimum(np.arange(size), 2.0) // 1
    early = Prior(mean, 0.3 * np.eye(size), 0.2)
    axes = few_digits(0.3 * np.linalg.qr(rng.normal(size=(size, size)))[0])
    late = Prior(mean, axes, 0.2)
    found: dict[str, Query] = {
        "magnitudes": Magnitudes(ones, 0 * ones, ones, 30.0),
        "centers": Angles(ones, 0 * ones, ones, ones),
    }
    for name, prior in (("", early), (", full covariance", late)):
        information = Information(units, prior, np.eye(size))
        score = Score(units, prior, np.eye(size), np.eye(size), 1.0)
        found |= {
            f"information{name}": information,
            f"score norm{name}": TypicalNorm(score, 8.0),
            f"score{name}": MeasuredScore(score, 0.5, np.zeros(size)),
        }
        if prior is early:
            found |= {
                "log variances": LogVariances(units, prior, groups),
                "spread norm": TypicalNorm(Spread(units, prior), 8.0),
                "spread": MeasuredSpread(units, prior, 2.0),
            }
        # As in a fit, variances have changed since: the directions of the covariance, and what is kept, are the same.
        later = prior if prior is early else Prior(mean, axes * few_digits(np.linspace(1.0, 1.3, size)), 0.21)
        found[f"variances{name}"] = Variances(units, later, groups)
    return found | {"coverage": Advantage(units, late)}


def race(users: int, dtype: str, repeats: int) -> list[dict[str, Any]]:
    """Time every kind of release against reading the rows."""
    cohort = make(users, ROWS, FEATURES, dtype)
    federation = LocalFederation(cohort, Ledger().run("race", config={}))
    units = Coordinates(np.zeros(FEATURES), np.ones(FEATURES), 0.5, 2.0)
    cores = len(os.sched_getaffinity(0))
    parts = [*np.array_split(cohort.X.ravel(), cores), np.asarray(cohort.y)]
    read(parts[0][:16])
    cases = []
    with ThreadPoolExecutor(cores) as pool:
        for name, query in releases(units, FEATURES + 1).items():

            def release(query: Query = query) -> None:
                federation._exact_sum(query, 1.0, 2.0**-40)

            first, _ = timed(release)
            reading, times = [], []
            for _ in range(repeats):
                reading.append(timed(lambda: list(pool.map(read, parts))))
                times.append(timed(release))
            (best_read, cpu_read), (best, cpu) = np.min(reading, axis=0), np.min(times, axis=0)
            cases.append(
                {
                    "release": name,
                    "dtype": dtype,
                    "first": first,
                    "read": float(best_read),
                    "time": float(best),
                    "cpu_read": float(cpu_read),
                    "cpu": float(cpu),
                    "median_read": float(np.median([elapsed for elapsed, _ in reading])),
                    "median_time": float(np.median([elapsed for elapsed, _ in times])),
                    "cores": cores,
                }
            )
    return cases


def alone(*case: Any) -> dict[str, Any]:
    """Fit in a process of its own, so that memory is that of this fit."""
    command = [sys.executable, "-m", "benchmarks.speed.mixed_effects", "--fit", json.dumps(case)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def fit(users: int, rows: int, features: int, dtype: str, on_disk: bool) -> dict[str, Any]:
    """Time one fit after a first one (of 5,000 users, which loads what is compiled); best of three if it is short."""
    tacitly.MixedEffects(epsilon=1.0).fit(make(5_000, 3, features, dtype))
    with tempfile.TemporaryDirectory() as folder:
        cohort = make(users, rows, features, dtype)
        if on_disk:
            cohort.save(Path(folder) / "cohort")
            del cohort
            cohort = Cohort.open(Path(folder) / "cohort")
        found = []
        for _ in range(5 if users < 50_000 else 1):
            before, peak = anonymous_megabytes(), Peak()
            seconds = timed(lambda: tacitly.MixedEffects(epsilon=1.0).fit(cohort))
            found.append((*seconds, peak.stop() - before))
        best = min(found)
    return {
        "users": users,
        "rows": rows,
        "features": features,
        "dtype": dtype,
        "on_disk": on_disk,
        "megabytes": users * rows * (features + 1) * np.dtype(dtype).itemsize / 1e6,
        "seconds": best[0],
        "cpu": best[1],
        "extra": best[2],
        "load": os.getloadavg()[0],
    }


class Peak:
    """Watches the private memory of this process in the background."""

    def __init__(self) -> None:
        self._largest, self._running = 0.0, True
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def stop(self) -> float:
        """Return the largest number of megabytes seen."""
        self._running = False
        self._thread.join()
        return self._largest

    def _watch(self) -> None:
        while self._running:
            self._largest = max(self._largest, anonymous_megabytes())
            time.sleep(0.02)


def anonymous_megabytes() -> float:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return int(next(line for line in lines if line.startswith("RssAnon")).split()[1]) * 1.024e-3


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Return elapsed and processor time."""
    start, used = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - start, time.process_time() - used


if __name__ == "__main__":
    main()
