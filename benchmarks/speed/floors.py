"""Queries, heads and noise against their floors: reading the rows once, their products, or the random bits they need.

``python -m benchmarks.speed.floors`` (a minute; ``--quick`` for a smoke test). All on one core and in processor time,
which other programs on the machine disturb least; best of several. ``tests/test_speed.py`` measures the same on a
small problem and compares with what was kept here, so that a query that becomes twice as slow is noticed.

The start multiplies for longer than it reads. The moment's floor is one product XᵀX of all rows by BLAS, in the
precision of the rows and without a norm per user; that of the votes is the time of their multiplications (each user's
XXᵀ, its factor, the sum of projectors) at the rate of a large matrix product. Of 100,000 users or more the start reads
a few rows each (:mod:`tacitly.methods.shared.some_rows`): its time per user is measured with as many users as the rest.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.tables import keep, table
from tacitly.arrays import read_only
from tacitly.federation.query import Query
from tacitly.heads.population import HeadPrior, PopulationHeads
from tacitly.heads.ridge import fit_heads
from tacitly.linalg import orthonormal
from tacitly.methods.altmin.queries import NormalEquations
from tacitly.methods.fedrep.queries import BasisStep
from tacitly.methods.shared.central import CentralStep, Correction
from tacitly.methods.shared.column_scales import ColumnScales
from tacitly.methods.shared.direction_votes import DirectionVote
from tacitly.methods.shared.some_rows import start_rows, thinned
from tacitly.methods.shared.whitening import FeatureMoment, Whitening
from tacitly.privacy.noise import add_noise

FEATURES, RANK, BLOCK = 64, 4, 1024
MANY = start_rows(100_000, FEATURES, RANK, 15.0, 10.0)  # rows of each that the start of so many users reads, at ε = 1
SMALL = 2_000  # users of the problem that the test measures
COORDINATES = 200_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small problem, nothing is written")
    parser.add_argument("--users", type=int, default=20_000)
    options = parser.parse_args()
    users = 500 if options.quick else options.users
    lines = measured(users, np.float32, 1 if options.quick else 5)
    lines |= start_of_many(users, np.float32, 1 if options.quick else 5)
    small = {} if options.quick else {name: line["ratio"] for name, line in measured(SMALL, np.float64, 5).items()}
    data = {"users": users, "lines": lines, "small": small}
    keep("speed_floors", data, as_text(data), quick=options.quick)


def as_text(data: dict[str, Any]) -> str:
    """Return the table."""
    rounds = data["lines"]["one round of Private FedRep"]["seconds"]
    rows = [
        [
            name,
            f"{1e6 * line['seconds'] / line['units']:.2f} µs per {line['unit']}",
            line["floor"],
            f"{line['ratio']:.1f}×",
            f"{line['seconds'] / rounds:.1f}" if line["unit"] == "user" else "",
            f"{line['least'] / rounds:.1f}" if line["unit"] == "user" else "",
        ]
        for name, line in data["lines"].items()
    ]
    header = ["", "one core", "floor", "ratio to its floor", "in rounds", "floor in rounds"]
    users = f"{data['users']:,} users, 5 to 40 rows, d = {FEATURES}, k = {RANK}, float32; processor time, one thread."
    return f"{users}\n\n{table(header, rows)}"


@threadpool_limits.wrap(limits=1)
def measured(users: int, dtype: type, repeats: int) -> dict[str, dict[str, Any]]:
    """Return seconds of processor time and the ratio to the floor for everything measured here."""
    X, y, offsets = rows_of(users, dtype)
    public = Whitening.identity(FEATURES)
    basis = orthonormal(np.random.default_rng(1).normal(size=(FEATURES, RANK)))[0]
    prior = HeadPrior(np.zeros(RANK + 1), np.diag([1.0] * RANK + [0.0]), 1.0)
    queries: dict[str, Query] = {
        "one round of Private FedRep": BasisStep(basis, np.eye(RANK), 0.5, public),
        "start: scales of columns": ColumnScales(FEATURES),
        "start: moment of features": FeatureMoment(FEATURES),
        "start: direction votes": DirectionVote(public),
        "normal equations (PrivateAltMin)": NormalEquations(basis, public),
    }
    work: dict[str, Callable[[], object]] = {
        name: (lambda query=query: answer(query, X, y, offsets)) for name, query in queries.items()
    }
    turned = Whitening(np.ones(FEATURES), orthonormal(np.random.default_rng(2).normal(size=(FEATURES, FEATURES)))[0],
                       np.full(FEATURES, 0.01))  # fmt: skip
    central = CentralStep(Correction(np.zeros(FEATURES), turned), 0.5)
    work["step of the population's direction, all directions whitened"] = lambda: answer_many(central, X, y, offsets)
    work["heads: ridge"] = lambda: fit_heads(X, y, offsets, basis)
    work["heads under a prior"] = lambda: PopulationHeads(basis, prior)(X, y, offsets)
    zeros = np.zeros(COORDINATES, dtype=np.int64)
    reading, bits = seconds(lambda: X.sum(), repeats), seconds(lambda: os.urandom(16 * COORDINATES), repeats)
    products = {
        "start: moment of features": (seconds(lambda: X.T @ X, repeats), "XᵀX by BLAS"),
        "start: direction votes": (_multiplications(offsets) * _multiplying(dtype, repeats), "its multiplications"),
    }
    lines = {}
    for name, one in work.items():
        floor, what = products.get(name, (reading, "reading the rows once"))
        lines[name] = _line(seconds(one, repeats), floor, users, "user", what)
    exact = seconds(lambda: add_noise(zeros, 10.0, 2.0**-40, "exact"), repeats)
    lines["exact noise"] = _line(exact, bits, COORDINATES, "coordinate", "16 random bytes")
    return lines


@threadpool_limits.wrap(limits=1)
def start_of_many(users: int, dtype: type, repeats: int) -> dict[str, dict[str, Any]]:
    """Return the same for the start as it is where users are many; its floor is reading the rows that it reads."""
    X, y, offsets = rows_of(users, dtype)
    queries: dict[str, FeatureMoment | DirectionVote] = {
        "moment of features": FeatureMoment(FEATURES, most_rows=MANY.moment),
        "direction votes": DirectionVote(Whitening.identity(FEATURES), most_rows=MANY.votes),
    }
    lines = {}
    for name, query in queries.items():
        read = thinned(X, y, offsets, query.most_rows)[0]
        floor = seconds(read.sum, repeats)
        taken = seconds(lambda query=query: answer(query, X, y, offsets), repeats)  # type: ignore[misc]
        what = f"reading {query.most_rows} rows of each once"
        lines[f"start of 100,000 users: {name}"] = _line(taken, floor, users, "user", what)
    return lines


def rows_of(users: int, dtype: type) -> tuple[Any, Any, Any]:
    """Return synthetic rows of ragged users."""
    rng = np.random.default_rng(0)
    offsets = np.append(0, np.cumsum(rng.integers(5, 41, users)))
    X = rng.standard_normal((offsets[-1], FEATURES)).astype(dtype)
    return read_only(X), read_only(rng.standard_normal(offsets[-1]).astype(dtype)), offsets


def answer(query: Query, X: Any, y: Any, offsets: Any) -> None:
    """Compute all blocks' sums."""
    for start in range(0, len(offsets) - 1, BLOCK):
        bounds = offsets[start : start + BLOCK + 1]
        rows = slice(int(bounds[0]), int(bounds[-1]))
        query.block_sum(X[rows], y[rows], bounds - bounds[0], 1.0)


def answer_many(query: CentralStep, X: Any, y: Any, offsets: Any) -> None:
    """Compute all blocks' sums as they are computed for many users: from statistics of each."""
    for start in range(0, len(offsets) - 1, BLOCK):
        bounds = offsets[start : start + BLOCK + 1]
        rows = slice(int(bounds[0]), int(bounds[-1]))
        query.sums_of(query.statistics.of_rows(X[rows], y[rows], bounds - bounds[0]), 1.0, BLOCK)


def seconds(work: Callable[[], object], repeats: int) -> float:
    """Return the least processor time of several runs, after one that may compile."""
    work()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def _multiplications(offsets: Any) -> float:
    """Return how many multiplications the votes of users with fewer rows than features take."""
    m = np.diff(offsets).astype(np.float64)
    own = FEATURES * m * (m + 1) / 2 + m**3 / 6 + FEATURES * m
    return float(own.sum() + len(m) * FEATURES * (FEATURES + 1) / 2)


def _multiplying(dtype: type, repeats: int) -> float:
    """Return the seconds of a multiplication and addition in a large matrix product."""
    square = np.random.default_rng(2).standard_normal((512, 512)).astype(dtype)
    return seconds(lambda: square @ square, repeats) / 512**3


def _line(taken: float, floor: float, units: int, unit: str, what: str) -> dict[str, Any]:
    return {"seconds": taken, "units": units, "unit": unit, "floor": what, "least": floor, "ratio": taken / floor}


if __name__ == "__main__":
    main()
