"""The share of the gap lost to privacy at ε = 1, with the same defaults on many kinds of data.

The share is (ours − oracle)/(local − oracle) in population squared error: 0 % is as good as knowing the true subspace,
100 % as bad as local models. ``python -m benchmarks.families`` (a few minutes; ``--quick`` for a smoke test).
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from benchmarks.tables import keep, table
from tacitly import Cohort, LocalModels, PrivateFedRep
from tacitly.datasets import make_shared_subspace
from tacitly.heads.ridge import fit_heads

BASE: dict[str, Any] = {"n_users": 5000, "n_features": 50, "rank": 2, "n_samples": 10, "noise": 0.1}
FAMILIES: dict[str, dict[str, Any]] = {
    "as in Private FedRep (noise 0.01)": {"noise": 0.01},
    "d = 20": {"n_features": 20},
    "d = 100": {"n_features": 100},
    "d = 200, m = 20": {"n_features": 200, "n_samples": 20},
    "k = 1": {"rank": 1},
    "k = 3": {"rank": 3},
    "k = 5, m = 20": {"rank": 5, "n_samples": 20},
    "m = 5": {"n_samples": 5},
    "m = 40": {"n_samples": 40},
    "m from 5 to 40": {"n_samples": (5, 40)},
    "k = 5, m from 5 to 40": {"rank": 5, "n_samples": (5, 40)},
    "label noise 0.5": {"noise": 0.5},
    "heavy-tailed features": {"heavy_tails": True},
    "head condition 10": {"rank": 3, "condition": 10.0},
    "Gaussian heads": {"unit_heads": False},
    "feature scales over 4×": {"feature_spread": 4.0},
    "correlated features (0.8)": {"correlation": 0.8},
    "scales 4× and correlation 0.5": {"feature_spread": 4.0, "correlation": 0.5},
    "targets × 1e6": {"target_scale": 1e6},
    "targets × 1e-6": {"target_scale": 1e-6},
    "float32": {"dtype": np.float32},
}
FRONTIER = (300, 500, 700, 1000, 2000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two families, one draw, nothing is written")
    quick = parser.parse_args().quick
    draws = 1 if quick else 3
    families = dict(list(FAMILIES.items())[:2]) if quick else FAMILIES
    shares = {name: [share({**BASE, **family}, draw) for draw in range(draws)] for name, family in families.items()}
    draws = 1 if quick else 8
    sizes = FRONTIER[-1:] if quick else FRONTIER
    frontier = {n: [share({**BASE, "noise": 0.01, "n_users": n}, 50 + draw) for draw in range(draws)] for n in sizes}
    data = {"families": shares, "frontier": {str(n): values for n, values in frontier.items()}}
    keep("families", data, as_text(data), quick=quick)


def as_text(data: dict[str, dict[str, list[float]]]) -> str:
    """Return both tables."""
    rows = [[name, percent(np.mean(values)), percent(np.max(values))] for name, values in data["families"].items()]
    text = table([f"n = {BASE['n_users']:,}, ε = 1", "gap lost, mean", "worst draw"], rows)
    rows = [
        [f"{int(n):,}", percent(np.median(values)), percent(np.mean(values)), percent(np.max(values))]
        for n, values in data["frontier"].items()
    ]
    header = ["users (d = 50, k = 2, m = 10), ε = 1", "gap lost, median", "mean", "worst draw"]
    return text + "\n\n" + table(header, rows)


def share(family: dict[str, Any], draw: int) -> float:
    data = make_shared_subspace(**family, random_state=2000 + draw)
    cohort = Cohort.from_arrays(data.X, data.y, data.users)
    model = PrivateFedRep(rank=family["rank"], epsilon=1.0).fit(cohort)
    ours = data.population_mse(model.basis_, model.heads_)
    oracle = data.population_mse(data.basis, fit_heads(cohort.X, np.asarray(cohort.y), cohort.offsets, data.basis))
    local = LocalModels().fit(cohort)
    return (ours - oracle) / (data.population_mse(local.basis_, local.heads_) - oracle)


def percent(value: float) -> str:
    return f"{100 * value:.3f} %" if abs(value) < 0.1 else f"{100 * value:.1f} %"


if __name__ == "__main__":
    main()
