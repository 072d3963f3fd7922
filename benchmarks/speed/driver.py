"""What a round costs the driver of a Ray cluster, by the number of shards.

``python -m benchmarks.speed.driver`` (a minute; ``--quick`` for a smoke test). Shards are stubs that decode the query
and answer at once, a few processes in the place of many, so that what is left is the driver's own work: sending the
query to every shard and adding up the answers in a tree. That does not depend on how many users a shard holds.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.tables import keep, table
from tacitly.federation import wire
from tacitly.federation.query import Query
from tacitly.federation.ray import RayFederation
from tacitly.linalg import orthonormal
from tacitly.methods.fedrep.queries import BasisStep
from tacitly.methods.shared.whitening import Whitening

FEATURES, RANK, PROCESSES = 64, 4, 2
SHARDS = (10, 100, 1_000)


class Stub:
    """A shard that answers with ones."""

    def exact_sum(self, message: bytes, *_: Any) -> Any:
        """Decode the query, as a shard does, and answer."""
        return np.ones(wire.decode(message).coordinates, dtype=np.int64)


def main() -> None:
    import ray

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few shards, nothing is written")
    quick = parser.parse_args().quick
    ray.init(address="local", num_cpus=PROCESSES, include_dashboard=False, log_to_driver=False)
    stubs = [ray.remote(num_cpus=0)(Stub).remote() for _ in range(PROCESSES)]
    query = BasisStep(
        orthonormal(np.random.default_rng(0).normal(size=(FEATURES, RANK)))[0],
        np.eye(RANK),
        0.5,
        Whitening.identity(FEATURES),
    )
    lines = [measured(query, stubs, shards, 2 if quick else 5) for shards in (SHARDS[:1] if quick else SHARDS)]
    data = {"lines": lines, "load": os.getloadavg()[0]}
    keep("speed_driver", data, as_text(data), quick=quick)


def measured(query: Query, stubs: list[Any], shards: int, rounds: int) -> dict[str, Any]:
    """Return time and processor time of the driver in a round with this many shards, and what it sends."""
    driver: Any = object.__new__(RayFederation)  # what collects sums, without people and a ledger
    driver._actors = [stubs[i % len(stubs)] for i in range(shards)]
    driver._population = SimpleNamespace(digests=[""] * shards, sizes=[1] * shards, timeout=600.0)
    times, busy = [], []
    for _ in range(rounds + 1):
        start, before = time.perf_counter(), time.process_time()
        total = driver._collect(query, 1.0, 2.0**-40)
        times.append(time.perf_counter() - start)
        busy.append(time.process_time() - before)
        assert (total == shards).all()
    sent = len(wire.encode(query)) * shards
    median = statistics.median
    return {"shards": shards, "seconds": median(times[1:]), "processor": median(busy[1:]), "sent": sent}


def as_text(data: dict[str, Any]) -> str:
    """Return the table."""
    rows = [
        [
            f"{line['shards']:,}",
            f"{1e3 * line['seconds']:.0f} ms",
            f"{1e3 * line['processor']:.0f} ms",
            f"{1e3 * line['processor'] / line['shards']:.2f} ms",
            f"{line['sent'] / 1e6:.2f} MB",
        ]
        for line in data["lines"]
    ]
    header = ["shards", "round, median", "processor time of the driver", "per shard", "queries sent"]
    note = f"{PROCESSES} processes answer for all shards; d = {FEATURES}, k = {RANK}; load average {data['load']:.0f}."
    return f"{note}\n\n{table(header, rows)}"


if __name__ == "__main__":
    main()
