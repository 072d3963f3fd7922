"""Time of one step of trace regression relative to reading its observations once, on the same array, in one run.

``python -m benchmarks.speed.trace`` (a minute; ``--quick`` for a smoke test): 200,000 observations of 64×64, float32,
3.3 GB. Both process the rows in the same blocks with the same number of threads. Reading adds up all numbers, which
loads each once and computes as little as possible. The second table is of one whole fit: the time from each release to
the next, which includes everything around a step.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from numba import njit

from benchmarks.tables import keep, table
from tacitly import TraceRegression
from tacitly.arrays import Rows
from tacitly.data.cohort import Cohort
from tacitly.federation.base import Query
from tacitly.federation.local import LocalFederation
from tacitly.linalg import orthonormal
from tacitly.methods.trace_regression.designs import Design
from tacitly.methods.trace_regression.queries import Scales, TangentSum
from tacitly.privacy.guarantee import Unit
from tacitly.privacy.ledger import Ledger


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few observations, nothing is written")
    parser.add_argument("--observations", type=int, default=200_000)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--rank", type=int, default=2)
    arguments = parser.parse_args()
    n, d, r = 2_000 if arguments.quick else arguments.observations, 64, arguments.rank
    rng = np.random.default_rng(0)
    X = np.empty((n, d * d), dtype=np.float32)
    for start in range(0, n, 4096):
        rng.standard_normal(dtype=np.float32, out=X[start : start + 4096])
    U, V = (orthonormal(rng.normal(size=(d, r)))[0] for _ in range(2))
    y = (X @ (U @ V.T).astype(np.float32).ravel()).astype(np.float32)
    scales = Scales(np.full(d, n**-0.25), np.full(d, n**-0.25))
    step = TangentSum(Design("dense", d, d), scales, U, V, np.full(r, 0.9 * n**0.5), "both", 0.05, 0.05, Unit.ROW)
    cohort = Cohort.from_offsets(X, y, np.array([0, n]))
    federation = LocalFederation(cohort, Ledger().run("speed", config={}), threads=arguments.threads)

    def asked(query: Query) -> Callable[[], object]:
        return lambda: federation._exact_sum(query, 0.05, 2.0**-40)

    times = [(clock(asked(step)), clock(asked(Read(d * d)))) for _ in range(8)][1:]
    (ours, _), (bare, _) = (np.median(values, axis=0) for values in zip(*times, strict=True))
    ratio, of_cpu = (float(np.median([a[k] / b[k] for a, b in times])) for k in (0, 1))
    gigabytes = X.nbytes / 1e9
    text = table(
        ["observations", "rank", "step / reading X once", "ratio of CPU times", "step", "reading"],
        [
            [
                f"{n:,} of {d}×{d}, float32",
                r,
                ratio,
                of_cpu,
                f"{1e3 * ours:.0f} ms",
                f"{1e3 * bare:.0f} ms ({gigabytes / bare:.1f} GB/s)",
            ]
        ],
    )
    steps = whole_fit(X.reshape(n, d, d), y, r, arguments.threads)
    again = float(np.median([clock(asked(Read(d * d)))[0] for _ in range(5)]))
    read = (float(bare) + again) / 2
    text += "\n\n" + table(
        ["step of a fit", *(str(number) for number in range(1, len(steps) + 1))],
        [["/ reading X once", *(f"{step / read:.2f}" for step in steps)]],
    )
    data = {"rank": r, "ratio": ratio, "ratio_of_processor_time": of_cpu, "wall_and_processor": times}
    data |= {"steps_of_a_fit": steps, "reading_before_and_after": [float(bare), again]}
    keep("speed_trace", data, text, quick=arguments.quick)


def whole_fit(X: np.ndarray, y: np.ndarray, rank: int, threads: int | None) -> list[float]:
    """Return the seconds of every step of a fit, each from the release before it, after a small fit as warm-up."""
    TraceRegression(rank, 1.0, threads=threads).fit(X[:1000], y[:1000])
    released: list[tuple[str, float]] = []
    model = TraceRegression(rank, 1.0, threads=threads)
    model.fit(X, y, on_release=lambda name: released.append((name, time.perf_counter())))
    return [end - start for (_, start), (name, end) in itertools.pairwise(released) if name.startswith("step ")]


class Read(Query):
    """A query that adds up all numbers of a block."""

    unit = Unit.ROW

    def __init__(self, n_features: int) -> None:
        self.n_features = n_features

    @property
    def coordinates(self) -> int:
        """One number."""
        return 1

    def contribution(self, X: Rows, y: Rows) -> npt.NDArray[np.float64]:
        """Return the sum."""
        return np.array([0.0 * float(X.sum())])

    def block_sum(self, X: Rows, y: Rows, offsets: npt.NDArray[np.int64], bound: float) -> npt.NDArray[np.float64]:
        """Return the sum."""
        return np.array([0.0 * total(X.ravel())])  # read, then told to nobody: the door checks every sum


@njit(nogil=True, cache=True, fastmath=True)
def total(values):  # type: ignore[no-untyped-def]
    result = np.float32(0.0)
    for i in range(values.size):
        result += values[i]
    return result


def clock(work: Callable[[], object]) -> tuple[float, float]:
    """Return wall time, and CPU time, which other load affects less."""
    start, spent = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - start, time.process_time() - spent


if __name__ == "__main__":
    main()
