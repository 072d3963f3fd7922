"""Time of one iteration of low rank plus sparse relative to reading the data once, in the same run, on all cores.

Both routes: the O(mdr) step (the default) and the exact normal equations, including the users' personal fits as they
are done for this many users; the step with supports revised twice, as for fewer users; and, to show the cost of the
fits, the step without personal coordinates. Memory: the peak above the resident memory before.

``python -m benchmarks.speed.low_rank_sparse`` (a minute; ``--quick`` for a smoke test).
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from benchmarks.speed.round import extra_megabytes, read
from benchmarks.tables import keep, table
from tacitly.data.cohort import Cohort
from tacitly.datasets import make_low_rank_sparse
from tacitly.federation.base import Query
from tacitly.federation.local import LocalFederation
from tacitly.linalg import orthonormal
from tacitly.methods.low_rank_sparse.algorithm import swaps_per_round
from tacitly.methods.low_rank_sparse.heads import Sparsity
from tacitly.methods.low_rank_sparse.queries import SparseEquations, SparseStep
from tacitly.methods.shared.whitening import Whitening
from tacitly.privacy.ledger import Ledger

FEATURES, RANK, ROWS, OWN = 50, 3, 20, 5
REPEATS = 9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small problem, nothing is written")
    quick = parser.parse_args().quick
    users = 2_000 if quick else 100_000
    rows, found = [], []
    for dtype in (np.float32, np.float64):
        for case in race(users, dtype, 1 if quick else REPEATS):
            found.append(case)
            rows.append(
                [
                    f"{case['route']}, {np.dtype(dtype).name}",
                    f"{case['megabytes']:.0f} MB",
                    f"{1e3 * case['read']:.1f} ms",
                    f"{1e3 * case['iteration']:.0f} ms",
                    f"{case['iteration'] / case['read']:.1f}×",
                    f"{case['best_iteration'] / case['best_read']:.1f}×",
                    f"{case['extra']:.0f} MB",
                ]
            )
    header = [
        "one iteration",
        "data",
        "reading it once",
        "the iteration",
        "ratio",
        "ratio of best times",
        "extra memory",
    ]
    text = (
        f"{users:,} users, d = {FEATURES}, r = {RANK}, {ROWS} rows, {OWN} own coordinates; {os.cpu_count()} cores.\n\n"
    )
    keep("speed_low_rank_sparse", {"cases": found}, text + table(header, rows), quick=quick)


def race(users: int, dtype: Any, repeats: int) -> list[dict[str, Any]]:
    data = make_low_rank_sparse(users, FEATURES, RANK, ROWS, OWN, random_state=0, dtype=dtype)
    cohort = Cohort.from_arrays(data.X, data.y, data.users)
    federation = LocalFederation(cohort, Ledger().run("race", config={}))
    rng = np.random.default_rng(1)
    basis = orthonormal(data.basis + 0.02 * rng.normal(size=data.basis.shape))[0]
    plain, swaps = Whitening.identity(FEATURES), swaps_per_round(users)
    queries: dict[str, Query] = {
        "step": SparseStep(basis, np.eye(RANK), 0.1, plain, sparsity=Sparsity(OWN), swaps=swaps),
        "step, supports revised": SparseStep(basis, np.eye(RANK), 0.1, plain, sparsity=Sparsity(OWN), swaps=2),
        "step, no own coordinates": SparseStep(basis, np.eye(RANK), 0.1, plain),
        "equations": SparseEquations(basis, plain, Sparsity(OWN), 10.0, 1.0, swaps=swaps),
    }
    cores = len(os.sched_getaffinity(0))
    parts = np.array_split(cohort.X.ravel(), cores)
    read(parts[0][:16])
    cases = []
    with ThreadPoolExecutor(cores) as pool:
        for name, query in queries.items():

            def iterate(query: Query = query) -> None:
                federation._exact_sum(query, 1.0, 2.0**-40)

            iterate()
            extra = extra_megabytes(iterate)
            reading, iterations = [], []
            for _ in range(repeats):
                reading.append(timed(lambda: list(pool.map(read, parts))))
                iterations.append(timed(iterate))
            cases.append(
                {
                    "route": name,
                    "dtype": np.dtype(dtype).name,
                    "megabytes": cohort.X.nbytes / 1e6,
                    "read": float(np.median(reading)),
                    "iteration": float(np.median(iterations)),
                    "best_read": min(reading),
                    "best_iteration": min(iterations),
                    "extra": extra,
                    "cores": cores,
                }
            )
    return cases


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
