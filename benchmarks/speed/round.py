"""Time of one Private FedRep round relative to reading the data once from memory, in the same run, on all cores.

``python -m benchmarks.speed.round`` (under a minute; ``--quick`` for a smoke test). Ratios, because times depend on the
machine; reading times vary by tens of percent between runs on a shared machine, so both are printed.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit

from benchmarks.tables import keep, table
from tacitly import PrivateFedRep
from tacitly.data.cohort import Cohort
from tacitly.datasets import make_shared_subspace
from tacitly.federation.local import LocalFederation
from tacitly.linalg import orthonormal
from tacitly.methods.fedrep.queries import BasisStep
from tacitly.methods.shared.whitening import Whitening
from tacitly.privacy.ledger import Ledger

CASES = ((100_000, 64, 4), (100_000, 128, 8))
REPEATS = 25
CACHED = 1 << 19  # bytes of rows that stay in a second-level cache


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small problem, nothing is written")
    quick = parser.parse_args().quick
    cases = [race(n, d, k) for n, d, k in (((2_000, 16, 2),) if quick else CASES)]
    users = 1_000 if quick else 20_000
    data = {"cases": cases, "fit_seconds": whole_fit(users)}
    keep("speed_round", data, as_text(data, users), quick=quick)


def as_text(data: dict[str, Any], users: int = 20_000) -> str:
    """Return the table of rounds, and a sentence on a whole fit with ``users`` users."""
    rows = [
        [
            f"{case['users']:,} users, 5 to 40 rows, d = {case['features']}, k = {case['rank']}, float32",
            f"{case['megabytes']:.0f} MB",
            f"{1e3 * case['read']:.1f} ms",
            f"{1e3 * case['round']:.1f} ms",
            f"{case['round'] / case['read']:.2f}×",
            f"{1e3 * case['cached']:.1f} ms",
            f"{100 * case['extra'] / case['megabytes']:.1f} %",
        ]
        for case in data["cases"]
    ]
    header = ["one round", "data", "reading it once", "the round", "ratio", "the same, rows in cache", "extra memory"]
    seconds = data["fit_seconds"]
    return table(header, rows) + (
        f"\n\nA whole certified fit of Private FedRep's experiment ({users:,} users, 18 releases, exact noise, ledger, "
        f"heads): {np.median(seconds):.2f} s (median of {len(seconds)} after the first, which compiles)."
    )


def race(n: int, d: int, k: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    offsets = np.concatenate([[0], np.cumsum(rng.integers(5, 41, n))])
    users = np.repeat(rng.permutation(n), np.diff(offsets))
    X = rng.standard_normal((len(users), d), dtype=np.float32)
    y = rng.standard_normal(len(users), dtype=np.float32)
    cohort = Cohort.from_arrays(X, y, users)
    X = cohort.X
    federation = LocalFederation(cohort, Ledger().run("race", config={}))
    query = BasisStep(orthonormal(rng.normal(size=(d, k)))[0], np.eye(k), 0.5, Whitening.identity(d))
    cores = len(os.sched_getaffinity(0))
    parts = np.array_split(X.ravel(), cores)
    federation._exact_sum(query, 1.0, 2.0**-40)
    read(parts[0][:16])
    extra = extra_megabytes(lambda: federation._exact_sum(query, 1.0, 2.0**-40))
    reading, rounds = [], []
    with ThreadPoolExecutor(cores) as pool:
        for _ in range(REPEATS):
            start = time.perf_counter()
            list(pool.map(read, parts))
            reading.append(time.perf_counter() - start)
            start = time.perf_counter()
            federation._exact_sum(query, 1.0, 2.0**-40)
            rounds.append(time.perf_counter() - start)
    return {
        "users": n,
        "features": d,
        "rank": k,
        "megabytes": X.nbytes / 1e6,
        "read": float(np.median(reading)),
        "round": float(np.median(rounds)),
        "best_read": min(reading),
        "best_round": min(rounds),
        "cached": cached(query, cohort) / cores,
        "extra": extra,
        "cores": cores,
    }


def cached(query: BasisStep, cohort: Cohort) -> float:
    """Return the seconds that the rows of all users would take on one core if they were in its cache.

    Two parts of different size are repeated: their difference is without the time that a call takes.
    """
    assert isinstance(cohort.X, np.ndarray)
    found = []
    for size in (CACHED // 4, CACHED):
        users = max(1, int(np.searchsorted(cohort.offsets, size // cohort.X[0].nbytes, side="right")) - 1)
        users = min(users, cohort.n_users)
        rows = int(cohort.offsets[users])
        part = cohort.X[:rows], np.asarray(cohort.y)[:rows], cohort.offsets[: users + 1]
        times = []
        for _ in range(REPEATS):
            start = time.process_time()
            for _ in range(50):
                query.block_sums(*part, 1.0, 1 << 20)
            times.append((time.process_time() - start) / 50)
        found.append((rows, min(times)))
    (few, short), (many, long) = found
    return (long - short) / max(many - few, 1) * cohort.n_rows


def whole_fit(users: int) -> list[float]:
    data = make_shared_subspace(users, 50, 2, 10, 0.01, random_state=0)
    cohort = Cohort.from_arrays(data.X, data.y, data.users)
    seconds = []
    for _ in range(12):
        start = time.perf_counter()
        PrivateFedRep(rank=2, epsilon=1.0).fit(cohort)
        seconds.append(time.perf_counter() - start)
    return seconds[1:]


def extra_megabytes(work: Callable[[], object]) -> float:
    """Return the peak resident memory during the work above that before it, by the kernel's high-water mark."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before = _status_megabytes("VmRSS")
    work()
    return max(0.0, _status_megabytes("VmHWM") - before)


def _status_megabytes(field: str) -> float:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1]) * 1.024e-3


@njit(nogil=True, cache=True, fastmath=True)
def read(values):  # type: ignore[no-untyped-def]
    """Add up all values: the cost of reading them."""
    total = values.dtype.type(0)
    for i in range(values.size):
        total += values[i]
    return total


if __name__ == "__main__":
    main()
