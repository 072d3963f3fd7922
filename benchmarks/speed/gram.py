"""Time of one Gram pass and one power step relative to their matrix products, on the same array, in one run.

All on one thread, in processor time, best of several: other programs on the machine disturb that least.

``python -m benchmarks.speed.gram`` (a minute; ``--quick`` for a smoke test). Needs the data sets (TACITLY_DATA).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.data import available, load
from benchmarks.tables import keep, table
from tacitly.data.cohort import Cohort
from tacitly.federation.base import Query
from tacitly.federation.local import LocalFederation
from tacitly.linalg import orthonormal
from tacitly.methods.fedpower.gram import ShiftedGram
from tacitly.methods.fedpower.power import PowerStep
from tacitly.privacy.ledger import Ledger


@threadpool_limits.wrap(limits=1)
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="synthetic rows, nothing is written")
    quick = parser.parse_args().quick
    sets = {name: load(name) for name in ("covtype", "mnist")} if available() and not quick else {}
    if not sets:
        sets = {"synthetic": np.random.default_rng(0).normal(size=(20_000, 50))}
    rows, data = [], {}
    for name, X in sets.items():
        d = X.shape[1]
        basis = orthonormal(np.random.default_rng(0).normal(size=(d, 10)))[0]
        cohort = Cohort.from_offsets(X, None, np.array([0, len(X)]))
        federation = LocalFederation(cohort, Ledger().run("speed", config={}), threads=1)
        centre = X.mean(axis=0)
        clip = float(np.quantile(np.sum((X - centre) ** 2, axis=1), 0.95))

        def summed(query: Query, federation: LocalFederation = federation, clip: float = clip) -> Callable[[], object]:
            return lambda: federation._exact_sum(query, clip, 2.0**-30)

        ours, bare = together(summed(ShiftedGram(centre, 1.0)), lambda X=X: X.T @ X)
        step, products = together(summed(PowerStep(basis, centre, 1.0)), lambda X=X, basis=basis: (X @ basis).T @ X)
        rows.append([f"{name} {X.shape[0]:,}×{d}", f"{ours / bare:.2f}", f"{step / products:.2f}"])
        data[name] = {"gram": [ours, bare], "step": [step, products]}
        rows[-1] += [f"{1e3 * ours:.0f} / {1e3 * bare:.0f} ms", f"{1e3 * step:.0f} / {1e3 * products:.0f} ms"]
    text = table(["rows", "Gram pass / bare XᵀX", "power step / its two products", "", ""], rows)
    keep("speed_gram", data, text, quick=quick)


def together(first: Callable[[], object], second: Callable[[], object], repeats: int = 7) -> tuple[float, float]:
    """Return the least processor times of two functions, run in turns so that other load affects both."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats + 1):
        for function, kept in zip((first, second), times, strict=True):
            start = time.process_time()
            function()
            kept.append(time.process_time() - start)
    return min(times[0][1:]), min(times[1][1:])


if __name__ == "__main__":
    main()
