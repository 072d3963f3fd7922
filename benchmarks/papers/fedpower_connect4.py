"""Why does connect-4 differ in FedPower's Table 2 (Guo et al. 2021)? One thing changed at a time.

The set is 67,557 boards of 42 squares, one-hot in 126 columns. What is varied: which rows (all, a random tenth, the
first n of the file, which is sorted, so they have another spectrum), and the encoding (42 columns of 0, 1, 2). Devices
have about 1,000 rows, so fewer rows are fewer devices. Everything else, and the metric of each column, is as in
:mod:`benchmarks.papers.fedpower_tables`.

``python -m benchmarks.papers.fedpower_connect4`` (three minutes; ``--quick`` for a smoke test).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from benchmarks.data import available, load, min_max
from benchmarks.papers.fedpower_tables import METHODS, PRINTED, K, add_table2
from benchmarks.tables import keep, table

Array = npt.NDArray[np.float64]
DRAWS = 10


def squares(X: Array) -> Array:
    """Return one column of 0, 1 or 2 per square."""
    return X.reshape(len(X), -1, 3).argmax(axis=2).astype(np.float64)


def tenth(X: Array) -> Array:
    return X[np.random.default_rng(0).choice(len(X), len(X) // 10, replace=False)]


VARIANTS: dict[str, Callable[[Array], Array]] = {
    "all rows, 126 columns": lambda X: X,
    "all rows, 42 columns": squares,
    "a random tenth": tenth,
    "the first 6,000": lambda X: X[:6000],
    "the first 7,000": lambda X: X[:7000],
    "the first 7,500": lambda X: X[:7500],
    "the first 8,000": lambda X: X[:8000],
    "the first 12,000": lambda X: X[:12000],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="made-up boards, one draw, nothing is kept")
    quick = parser.parse_args().quick
    if not quick and not available():
        sys.exit("The data sets were not found. Set TACITLY_DATA to their folder.")
    boards = np.eye(3)[np.random.default_rng(0).integers(0, 3, size=(3000, 6))].reshape(3000, 18)
    X = boards if quick else load("connect4")
    data: dict[str, dict[str, list[float]]] = {}
    rows = [["printed", "", *("{:.2e} ({:.0e})".format(*PRINTED["table2"]["connect4"][method]) for method in METHODS)]]
    for name, choose in list(VARIANTS.items())[: 2 if quick else None]:
        part, found = min_max(choose(X)), {}
        for draw in range(1 if quick else DRAWS):
            found = add_table2(part, found, "connect4", draw)
        data[name] = {method: found[f"{method}, as theirs"] for method in METHODS}
        values = np.linalg.eigvalsh(part.T @ part)[::-1]
        cells = [f"{np.mean(data[name][method]):.2e} ({np.std(data[name][method]):.0e})" for method in METHODS]
        rows.append([name, f"{values[K] / values[K - 1]:.3f}", *cells])
        print(rows[-1], file=sys.stderr, flush=True)
    keep("fedpower_connect4", {"table2": data}, table(["connect-4", "λ₆/λ₅", *METHODS], rows), quick=quick)


if __name__ == "__main__":
    main()
