"""The share of the gap lost to privacy at ε = 1, with the same defaults on many kinds of data.

The share is (ours − oracle)/(local − oracle) in population squared error: 0 % is as good as knowing the true subspace,
100 % as bad as local models. ``python -m benchmarks.families [--parts frontier,wide]`` (a few minutes; ``--quick`` for
a smoke test).

*Frontier*: fewer users. The reference is an oracle that knows every user's true head and spends the whole budget on one
noisy sum of unit vectors, Σ (direction of the user's own ridge regression) · headᵀ. No method knows the heads, and the
noise is the least that user-level ε = 1 allows for such a sum. *Wide*: a rank above the true one, 2.
"""

from __future__ import annotations

import argparse
import json
import warnings
from typing import Any

import numpy as np

from benchmarks.tables import RESULTS, keep, table
from tacitly import Cohort, LocalModels, PrivateFedRep
from tacitly.arrays import Array
from tacitly.datasets import SharedSubspace, make_shared_subspace
from tacitly.heads.ridge import fit_heads
from tacitly.linalg import orthonormal
from tacitly.privacy.accounting import mu_of
from tacitly.privacy.guarantee import TooFewUsersWarning

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


PARTS = ("families", "frontier", "wide")
RANKS = (2, 5, 8, "auto")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two families, one draw, nothing is written")
    parser.add_argument("--parts", default=",".join(PARTS), help="only these; the others keep their results")
    arguments = parser.parse_args()
    quick, parts, kept = arguments.quick, arguments.parts.split(","), RESULTS / "families.json"
    warnings.simplefilter("ignore", TooFewUsersWarning)
    data: dict[str, Any] = json.loads(kept.read_text(encoding="utf-8")) if kept.is_file() and not quick else {}
    data = {name: data[name] for name in (*PARTS, "oracle") if name in data}
    if "families" in parts:
        families = dict(list(FAMILIES.items())[:2]) if quick else FAMILIES
        draws = range(1 if quick else 3)
        data["families"] = {
            name: [share({**BASE, **family}, draw) for draw in draws] for name, family in families.items()
        }
    if "frontier" in parts:
        draws, sizes = range(100, 101 if quick else 116), FRONTIER[-1:] if quick else FRONTIER
        problems = {n: {**BASE, "noise": 0.01, "n_users": n} for n in sizes}
        data["frontier"] = {str(n): [share(problem, draw) for draw in draws] for n, problem in problems.items()}
        data["oracle"] = {str(n): [oracle_share(problem, draw) for draw in draws] for n, problem in problems.items()}
    if "wide" in parts:
        problem = {**BASE, "n_users": 200 if quick else 2000}
        data["wide"] = {
            str(rank): [error(problem, 80 + draw, rank) for draw in range(1 if quick else 8)] for rank in RANKS
        }
    keep("families", data, as_text(data), quick=quick)


def as_text(data: dict[str, dict[str, list[float]]]) -> str:
    """Return the tables of the parts that were run."""
    rows = [[name, percent(np.mean(values)), percent(np.max(values))] for name, values in data["families"].items()]
    parts = [table([f"n = {BASE['n_users']:,}, ε = 1", "gap lost, mean", "worst draw"], rows)]
    rows = [
        [
            f"{int(n):,}",
            *(percent(of(values)) for of in (np.median, np.mean, np.max)),
            percent(np.mean(data["oracle"][n])) if "oracle" in data else "–",
        ]
        for n, values in data["frontier"].items()
    ]
    header = ["users (d = 50, k = 2, m = 10), ε = 1", "gap lost, median", "mean", "worst draw", "told all heads, mean"]
    parts.append(table(header, rows))
    if "wide" in data:
        mean = {rank: float(np.mean(values)) for rank, values in data["wide"].items()}
        rows = [[f"rank={rank}", f"{mean[rank]:.4f}", f"{mean[rank] / mean['2'] - 1:+.1%}"] for rank in mean]
        parts.append(table(["2,000 users, true rank 2, ε = 1", "squared error", "over rank 2"], rows))
    return "\n\n".join(parts)


def error(problem: dict[str, Any], draw: int, rank: int | str) -> float:
    """Return the population squared error of a model of this rank."""
    data = make_shared_subspace(**problem, random_state=2000 + draw)
    model = PrivateFedRep(rank=rank, epsilon=1.0).fit(data.X, data.y, data.users)
    return data.population_mse(model.basis_, model.heads_)


def oracle_share(problem: dict[str, Any], draw: int) -> float:
    """Return the share of the gap that the oracle loses: told all heads, one release with the whole budget."""
    data = make_shared_subspace(**problem, random_state=2000 + draw)
    cohort = Cohort.from_arrays(data.X, data.y, data.users)
    heads = data.heads / np.linalg.norm(data.heads, axis=1, keepdims=True)
    total = np.zeros(data.basis.shape)
    for i in range(cohort.n_users):
        rows, targets = cohort.rows(i)
        assert targets is not None
        penalty = 0.3 * float(np.square(rows).sum()) / len(rows)
        own = rows.T @ np.linalg.solve(rows @ rows.T + penalty * np.eye(len(rows)), targets)
        total += np.outer(own / np.linalg.norm(own), heads[i])
    noise = np.random.default_rng([9, draw]).normal(size=total.shape) / mu_of(1.0, 1e-6)
    basis = orthonormal(total + noise)[0]
    return lost(data, cohort, basis, fit_heads(cohort.X, np.asarray(cohort.y), cohort.offsets, basis))


def share(family: dict[str, Any], draw: int) -> float:
    data = make_shared_subspace(**family, random_state=2000 + draw)
    cohort = Cohort.from_arrays(data.X, data.y, data.users)
    model = PrivateFedRep(rank=family["rank"], epsilon=1.0).fit(cohort)
    if not len(model.own_weights_):
        return lost(data, cohort, model.basis_, model.heads_)
    return lost(data, cohort, np.eye(cohort.n_features), model.heads_ @ model.basis_.T + model.own_weights_)


def lost(data: SharedSubspace, cohort: Cohort, basis: Array, heads: Array) -> float:
    """Return the share of the gap between the true subspace and local models that these heads lose."""
    ours = data.population_mse(basis, heads)
    oracle = data.population_mse(data.basis, fit_heads(cohort.X, np.asarray(cohort.y), cohort.offsets, data.basis))
    local = LocalModels().fit(cohort)
    return (ours - oracle) / (data.population_mse(local.basis_, local.heads_) - oracle)


def percent(value: float) -> str:
    return f"{100 * value:.3f} %" if abs(value) < 0.1 else f"{100 * value:.1f} %"


if __name__ == "__main__":
    main()
