"""What it is worth to shrink the sparse values of networks: the same shared networks, personal parts with and without.

Made-up users whose networks are U w + b (``neural.synthetic_networks``), no privacy. Entries of b are selected because
they are large on a user's rows, so they are too large on others; held-out rows decide by which factor they are kept.
Error on fresh rows without noise, over that of values as fitted. Seeds are not those on which the rule was chosen.

``python -m benchmarks.papers.sparse_values`` (two minutes; ``--quick`` for a smoke test).
"""

from __future__ import annotations

import argparse
import math
import warnings
from typing import Any

import numpy as np
import torch

from benchmarks.tables import keep, table
from tacitly import Cohort, UncertifiedWarning
from tacitly.neural import LowRankSparse, synthetic_networks
from tacitly.neural.low_rank_sparse import personal_part

SHAPES = {"40 rows, 4 of 81": (40, 4, 6, (10,)), "20 rows, 2 of 49": (20, 2, 5, (8,))}
NOISE = (0.0, 0.1, 0.5, 1.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one small population, nothing is written")
    quick = parser.parse_args().quick
    warnings.simplefilter("ignore", UncertifiedWarning)
    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    for name, shape in SHAPES.items():
        for noise in NOISE[-1:] if quick else NOISE:
            seeds = range(700, 701 if quick else 704)
            found[f"{name}, noise {noise:g}"] = [errors(*shape, noise, seed, 30 if quick else 150) for seed in seeds]
    header = ["personal parameters, label noise", "error, values as fitted", "shrunk / as fitted, mean", "each draw"]
    rows = []
    for name, draws in found.items():
        over = [shrunk / fitted for fitted, shrunk in draws]
        each = ", ".join(f"{ratio:.3f}" for ratio in over)
        rows.append([name, f"{np.mean([fitted for fitted, _ in draws]):.3f}", f"{np.mean(over):.3f}", each])
    keep("sparse_values", {"errors": found}, table(header, rows), quick=quick)


def errors(
    rows: int, own: int, features: int, hidden: tuple[int, ...], noise: float, seed: int, users: int
) -> list[float]:
    """Return the error of values as fitted, and of shrunk ones, on the same shared network."""
    data = synthetic_networks(users, features, 1, rows, own, hidden=hidden, noise=noise, random_state=seed)
    model = LowRankSparse(1, own, math.inf, hidden=hidden, device="cpu").fit(data.X, data.y, data.users)
    shrunk, factors = data.error(model), personal_part.SHRINKAGES
    try:
        personal_part.SHRINKAGES = (1.0,)
        cohort = Cohort.from_arrays(data.X, data.y, data.users, dtype=np.float32)
        model.own_ = model._own_parts(cohort.X, np.asarray(cohort.y), cohort.offsets)
    finally:
        personal_part.SHRINKAGES = factors
    return [data.error(model), shrunk]


if __name__ == "__main__":
    main()
