"""How time and memory of the recommender grow: users with 100 ratings each of 20,000 items, ε = 1, on two threads.

``python -m benchmarks.speed.ratings`` (ten minutes; ``--quick`` for a smoke test; ``--users`` for other sizes). Ratings
are drawn at random: what they say does not matter here. Each size runs in its own process, so that its peak memory is
its own; that of the ratings themselves (16 bytes each: position and rating) is shown beside it.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time

import numpy as np

from benchmarks.tables import keep, table

ITEMS, EACH, FEATURES = 20_000, 100, 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--users", type=int, action="append")
    parser.add_argument("--one", type=int, help="measure one size and print it")
    options = parser.parse_args()
    if options.one is not None:
        print(json.dumps(measured(options.one, quick=options.quick)))
        return
    sizes = options.users or ([500, 1_000] if options.quick else [25_000, 50_000, 100_000])
    found = []
    for users in sizes:
        words = [sys.executable, "-m", "benchmarks.speed.ratings", "--one", str(users), *(["--quick"] * options.quick)]
        found.append(json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout))
    first = found[0]
    rows = [
        [
            f"{one['users']:,}",
            f"{one['seconds']:.0f} s",
            f"{one['seconds'] / first['seconds'] / (one['users'] / first['users']):.2f}",
            f"{one['releases']}",
            f"{one['ratings_gib']:.2f}",
            f"{one['peak_gib']:.2f}",
        ]
        for one in found
    ]
    header = ["users", "fit", "time per user, relative", "releases", "ratings, GiB", "peak memory, GiB"]
    text = table(header, rows) + f"\n\n{ITEMS:,} items with {FEATURES} features, {EACH} ratings per user."
    keep("speed_ratings", {"sizes": found}, text, quick=options.quick)


def measured(users: int, *, quick: bool) -> dict[str, float]:
    """Fit once and return time and memory."""
    import tacitly
    from tacitly.data.cohort import Cohort

    items = 500 if quick else ITEMS
    rng = np.random.default_rng(0)
    fame = np.exp(-6.0 * np.linspace(0.0, 1.0, items) ** 0.5)
    places = rng.choice(items, size=users * EACH, p=fame / fame.sum()).astype(np.float64)
    ratings = rng.integers(1, 6, size=users * EACH).astype(np.float64)
    cohort = Cohort.from_offsets(places[:, None], ratings, np.arange(users + 1) * EACH)
    features = (rng.random((items, FEATURES)) < 0.2).astype(np.float64)
    model = tacitly.Recommender(1.0, items=np.arange(items), item_features=features, rating_range=(1, 5), threads=2)
    begun = time.perf_counter()
    model.fit(cohort)
    seconds = time.perf_counter() - begun
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    held = 16 * users * EACH / 2**30
    count = len(model.certificate_.releases)
    return {"users": users, "seconds": seconds, "releases": count, "ratings_gib": held, "peak_gib": peak}


if __name__ == "__main__":
    main()
