"""FedPower (Guo et al. 2021) on its public data sets: the error against true ε.

One metric for every method: the spectral sine of the angle to the exact top-5 space, over all five columns. Tables 2
and 3 are in :mod:`benchmarks.papers.fedpower_tables`, the figures in :mod:`benchmarks.papers.fedpower_figures`.

``python -m benchmarks.papers.fedpower`` (about ten minutes on two cores; ``--quick`` for a smoke test).
The data sets come from TACITLY_DATA; TACITLY_DIFFPRIVLIB names a Python interpreter that has diffprivlib (its
requirements conflict with ours).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.data import available, load, public_range
from benchmarks.tables import RESULTS, keep, table
from tacitly import FedPower, subspace_distance
from tacitly.methods.fedpower.as_printed import Settings, iterates
from tacitly.privacy.accounting import epsilon_of, mu_of

Array = npt.NDArray[np.float64]

K, DELTA = 5, 1e-5
EPSILONS = (0.1, 0.3, 1.0, 3.0)
NUMERIC = "covtype-numeric"  # ten columns: the most that diffprivlib's sampler finishes in a minute
SETS = ("a9a", "connect4", "covtype", "mnist", NUMERIC)
SYNTHETIC = "synthetic"  # rows for --quick, which keeps nothing
TARGETS = {"a9a": 0.05, "mnist": 0.065, "connect4": 0.03, "covtype": 0.02}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="synthetic rows, one draw, nothing is kept")
    parser.add_argument("--sets", default=",".join(SETS), help="only these sets; the others keep their results")
    arguments = parser.parse_args()
    quick = arguments.quick
    if not quick and not available():
        sys.exit("The data sets were not found. Set TACITLY_DATA to their folder.")
    names = [SYNTHETIC] if quick else arguments.sets.split(",")
    draws = 1 if quick else 5
    data: dict[str, Any] = {"true_epsilon": {}}
    kept = RESULTS / "fedpower.json"
    if not quick and set(names) != set(SETS) and kept.is_file():
        data = json.loads(kept.read_text(encoding="utf-8"))
    for name in names:
        X = synthetic_rows() if quick else load(name)
        few = min(draws, 3) if name in ("mnist", "covtype") else draws
        data["true_epsilon"][name] = against_true_epsilon(X, name, few, EPSILONS[2:3] if quick else EPSILONS)
        print(f"{name}: done", file=sys.stderr, flush=True)
        keep("fedpower", data, text_of(data), quick=quick)


def synthetic_rows() -> Array:
    """Return 506×13 correlated rows on [−1, 1]."""
    rng = np.random.default_rng(13)
    factors = rng.normal(size=(506, 4)) @ rng.normal(size=(4, 13)) * 0.3 + 0.2 * rng.normal(size=(506, 13))
    return np.clip(factors + rng.uniform(-0.4, 0.4, size=13), -1.0, 1.0)


def exact(X: Array) -> Array:
    return np.linalg.eigh(X.T @ X)[1][:, ::-1][:, :K]


def devices(X: Array, m: int, draw: int) -> tuple[list[Array], Array, Array]:
    """Assign rows to devices at random; return each device's rows, its matrix and its number of rows."""
    parts = np.array_split(X[np.random.default_rng(draw).permutation(len(X))], m)
    return parts, np.array([A.T @ A / len(A) for A in parts]), np.array([len(A) for A in parts], dtype=np.float64)


def against_true_epsilon(X: Array, name: str, draws: int, epsilons: Iterable[float]) -> dict[str, dict[str, float]]:
    """Row-level, zero-out, δ = 1e-5, everything charged; mean over draws."""
    truth = exact(X)
    low, high = public_range(name)
    out: dict[str, dict[str, float]] = {}
    for epsilon in epsilons:
        common: dict[str, Any] = {"epsilon": epsilon, "delta": DELTA, "feature_range": (low, high)}
        line = {}
        models = [FedPower(K, **common).fit(X) for _ in range(draws)]
        line["tacitly"] = mean(subspace_distance(model.components_.T, truth) for model in models)
        line["tacitly, predicted"] = mean(model.predicted_error_ for model in models)
        models = [FedPower(K, **common, route="power", random_state=i).fit(X) for i in range(min(draws, 2))]
        line["tacitly, power steps"] = mean(subspace_distance(model.components_.T, truth) for model in models)
        line["tacitly, power steps, predicted"] = mean(model.predicted_error_ or math.nan for model in models)
        norms = np.linalg.norm(X, axis=1)
        widest = math.sqrt(X.shape[1]) * max(abs(low), abs(high))
        line["analyze-Gauss, public range"] = mean(gauss(X, widest, epsilon, truth, i) for i in range(draws))
        line["analyze-Gauss, clip in hindsight"] = min(
            mean(gauss(X, float(np.quantile(norms, q)), epsilon, truth, i) for i in range(draws))
            for q in (0.5, 0.9, 1.0)
        )
        line["paper's noise, p = 1"] = mean(paper_at(X, widest, epsilon, truth, i) for i in range(min(draws, 2)))
        theirs = diffprivlib_error(X, widest, epsilon, truth)
        if theirs is not None:
            line["diffprivlib"] = theirs
        out[f"{epsilon:g}"] = line
    return out


def gauss(X: Array, clip: float, epsilon: float, truth: Array, draw: int) -> float:
    """Dwork et al. 2014: one noisy Gram matrix of clipped rows."""
    rng, d = np.random.default_rng([7, draw]), X.shape[1]
    scale = np.minimum(1.0, clip / np.maximum(np.linalg.norm(X, axis=1), 1e-300))[:, None]
    noise = rng.normal(size=(d, d)) * clip**2 / mu_of(epsilon, DELTA)
    gram = (X * scale).T @ (X * scale) + (noise + noise.T) / 2
    return subspace_distance(np.linalg.eigh(gram)[1][:, ::-1][:, :K], truth)


def paper_at(X: Array, widest: float, epsilon: float, truth: Array, draw: int) -> float:
    """Run the printed algorithm where it has a finite ε (p = 1), with the nominal ε whose true row-level ε is this."""
    rounds = 10
    _, matrices, sizes = devices(X, max(len(X) // 1000, 3), draw)

    def run(nominal: float) -> list[Array]:
        settings = Settings(iterations=rounds, local_steps=1, epsilon_local=nominal, delta=DELTA)
        return list(iterates(matrices, sizes, K, settings, draw))

    # A row moves a message by ‖a‖²/s at most; its noise is σ·‖Z‖_max, the largest entry of the last basis.
    entries = np.array([np.abs(basis).max() for basis in run(1.0)])
    sigma = Settings(iterations=rounds, local_steps=1, delta=DELTA).scale(1.0, int(sizes.min()))
    mu = math.sqrt(float(np.sum((widest**2 / sizes.min() / (sigma * entries)) ** 2)))
    assert epsilon_of(mu, DELTA) > 0
    return subspace_distance(run(mu_of(epsilon, DELTA) / mu)[-1], truth)


DIFFPRIVLIB = """
import sys, warnings, numpy as np
warnings.simplefilter("ignore")
from diffprivlib.models import PCA
X = np.load(sys.argv[1]); out = []
for seed in range(1):
    model = PCA(5, epsilon=float(sys.argv[2]), data_norm=float(sys.argv[3]), centered=True, random_state=seed).fit(X)
    out.append(model.components_.T)
np.save(sys.argv[4], np.array(out))
"""


def diffprivlib_error(X: Array, widest: float, epsilon: float, truth: Array) -> float | None:
    """Run IBM's PCA (pure ε) in its own interpreter; return None if there is none or it takes too long."""
    python = os.environ.get("TACITLY_DIFFPRIVLIB")
    if python is None or X.shape[1] > 12:
        return None
    with tempfile.TemporaryDirectory() as folder:
        rows, result = Path(folder) / "rows.npy", Path(folder) / "out.npy"
        np.save(rows, X)
        words = [python, "-c", DIFFPRIVLIB, str(rows), str(epsilon), str(widest * (1 + 1e-9)), str(result)]
        try:
            subprocess.run(words, check=True, capture_output=True, timeout=200)
        except (subprocess.TimeoutExpired, subprocess.CalledProcessError):
            return None
        return mean(subspace_distance(basis, truth) for basis in np.load(result))


def mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))


def text_of(data: dict[str, Any]) -> str:
    methods = sorted({m for sets in data["true_epsilon"].values() for line in sets.values() for m in line})
    methods = ["tacitly"] + [m for m in methods if m != "tacitly"]
    rows = [
        [f"{name}, ε = {epsilon}", *(f"{line[m]:.3f}" if m in line else "–" for m in methods)]
        for name, sets in data["true_epsilon"].items()
        for epsilon, line in sets.items()
    ]
    return table([f"row-level, true ε, δ = {DELTA:g}", *methods], rows)


if __name__ == "__main__":
    main()
