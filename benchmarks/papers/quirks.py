"""Do personal coordinates help where there are none? ``python -m benchmarks.papers.quirks [--quick]``.

Users of AMHT-LRS's model with 0, 1 or 3 personal coordinates in the truth and label noise; squared error of the
weights, relative to ``sparsity=0``, at ε = 4. *Always* is ``sparsity=1``; *auto* lets users choose, with the default
penalty and with the one that believes personal coordinates exist (0.5).
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from benchmarks.tables import keep, table
from tacitly import LowRankSparse
from tacitly.datasets import make_low_rank_sparse

PROBLEMS = [(0, 1.0, 20), (0, 1.0, 10), (0, 0.3, 20), (1, 1.0, 20), (1, 0.3, 20), (3, 0.3, 40)]
MODELS: dict[str, dict[str, Any]] = {
    "none": {"sparsity": 0},
    "always": {"sparsity": 1},
    "auto, penalty 0.5": {"sparsity": "auto", "penalty": 0.5},
    "auto": {"sparsity": "auto"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one small problem, nothing is kept")
    quick = parser.parse_args().quick
    results = []
    for quirks, noise, rows in PROBLEMS[:1] if quick else PROBLEMS:
        users, draws = (150, 1) if quick else (1500, 3)
        errors = {
            name: [error(quirks, noise, rows, users, draw, how) for draw in range(draws)]
            for name, how in MODELS.items()
        }
        results.append({"quirks": quirks, "noise": noise, "rows": rows, "errors": errors})
    lines = []
    for result in results:
        means = {name: float(np.mean(found)) for name, found in result["errors"].items()}
        ratios = [f"{means[name] / means['none']:.3f}" for name in list(MODELS)[1:]]
        result["auto over none"] = means["auto"] / means["none"]
        lines.append([result["quirks"], result["noise"], result["rows"], f"{means['none']:.3f}", *ratios])
    header = [
        "personal coordinates",
        "label noise",
        "rows",
        "error of sparsity=0",
        *(f"{name} / none" for name in list(MODELS)[1:]),
    ]
    keep("quirks", {"problems": results}, table(header, lines), quick=quick)


def error(quirks: int, noise: float, rows: int, users: int, draw: int, how: dict[str, Any]) -> float:
    """Return the mean squared error of users' weights, which is the excess risk for rows of unit covariance."""
    data = make_low_rank_sparse(users, 20, 2, rows, sparsity=quirks, noise=noise, random_state=draw)
    model = LowRankSparse(rank=2, epsilon=4.0, **how).fit(data.X, data.y, data.users)
    probe = np.eye(20)
    truth = data.heads @ data.basis.T
    np.add.at(truth, (np.arange(users)[:, None], data.sparse_indices), data.sparse_values)
    found = model.predict(np.tile(probe, (users, 1)), np.repeat(np.arange(users), 20)).reshape(users, 20)
    return float(np.mean(np.sum((found - truth) ** 2, axis=1)))


if __name__ == "__main__":
    main()
