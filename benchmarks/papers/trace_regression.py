"""Trace regression after DP-RGrad (Zha 2024), which has no experiments. Gaussian designs, δ = 1e-6, full accounting.

Error ‖M̂ − M‖_F of the certified method against n, d, r and ε, with fitted slopes beside Theorem 3's; the minimax lower
bound (Theorem 2, constant 1), non-private RGrad, the nuclear norm, a naive noisy gradient on factors and paper mode at
its own sensitivities; privacy of labels only; the outlier attack; linear convergence of non-private RGrad.

``python -m benchmarks.papers.trace_regression`` (half an hour on one core; ``--quick`` for a smoke test; ``--pieces
FILE`` keeps what is done in a file, so that a run that was stopped goes on from there).
"""

from __future__ import annotations

import argparse
import math
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.papers.trace_attack import spent_by_outlier
from benchmarks.papers.trace_factorised import factorised
from benchmarks.tables import IMAGES, Pieces, keep, table
from tacitly import NuclearNorm, RGrad, TraceRegression, UncertifiedWarning
from tacitly.linalg import orthonormal
from tacitly.theory.trace_regression import loop_rate, minimax_lower_bound, paper_sensitivities

DELTA, NOISE = 1e-6, 0.5
BASE = {"n": 40_000, "d": 40, "r": 2, "epsilon": 1.0}
SWEEPS: dict[str, Sequence[float]] = {
    "n": (10_000, 20_000, 40_000, 80_000),
    "d": (20, 28, 40),
    "r": (1, 2, 4),
    "epsilon": (0.5, 1.0, 2.0, 4.0),
}
QUICK: dict[str, Sequence[float]] = {"n": (2_000, 4_000), "d": (8, 12), "r": (1, 2), "epsilon": (1.0, 4.0)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small problem, nothing is written")
    parser.add_argument("--pieces", type=Path, help="a file for what is done")
    options = parser.parse_args()
    quick, pieces = options.quick, Pieces(options.pieces)
    base = {**BASE, "n": 4_000, "d": 8} if quick else BASE
    draws, sweeps = (1, QUICK) if quick else (2, SWEEPS)

    data: dict[str, Any] = {"base": base, "noise": NOISE, "delta": DELTA, "draws": draws}
    # All sweeps contain the base problem, which is measured once.
    settings = {tuple({**base, name: value}.items()) for name, values in sweeps.items() for value in values}
    measured = {setting: pieces(str(setting), partial(measure, dict(setting), draws)) for setting in sorted(settings)}
    data["sweeps"] = {
        name: [measured[tuple({**base, name: value}.items())] for value in values] for name, values in sweeps.items()
    }
    data["methods"] = pieces("methods", lambda: methods(base, draws))
    shape = (20, 2, 2_000) if quick else (100, 3, 6_000)
    data["convergence"] = pieces("convergence", lambda: convergence(*shape))
    data["outlier"] = spent_by_outlier(runs=4 if quick else 300, pieces=pieces)
    keep("trace_regression", data, report(data, sweeps), quick=quick)
    if not quick:
        plot(data, sweeps)


def draw(setting: dict[str, float], seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return Gaussian X (float32), labels with noise 0.5, and M with all singular values 1."""
    n, d, r = int(setting["n"]), int(setting["d"]), int(setting["r"])
    rng = np.random.default_rng([7, seed, n, d, r])
    M = orthonormal(rng.normal(size=(d, r)))[0] @ orthonormal(rng.normal(size=(d, r)))[0].T
    X = rng.standard_normal((n, d, d), dtype=np.float32)
    y = X.reshape(n, -1) @ M.ravel().astype(np.float32) + NOISE * rng.standard_normal(n, dtype=np.float32)
    return X, y, M


def fit(X: np.ndarray, y: np.ndarray, setting: dict[str, float], **options: Any) -> np.ndarray:
    model = TraceRegression(int(setting["r"]), setting["epsilon"], DELTA, noise="float", **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UncertifiedWarning)
        return model.fit(X, y).coef_


def measure(setting: dict[str, float], draws: int) -> dict[str, Any]:
    """Return errors of the certified and the non-private fit, and of privacy alone, from two fits of the same data."""
    found: dict[str, list[float]] = {"private": [], "labels": [], "nonprivate": [], "privacy": [], "apart": []}
    for seed in range(draws):
        X, y, M = draw(setting, seed)
        plain = RGrad(int(setting["r"]), tolerance=1e-5).fit(X, y).coef_
        first, second = fit(X, y, setting), fit(X, y, setting)
        found["nonprivate"].append(norm(plain - M))
        found["private"] += [norm(first - M), norm(second - M)]
        found["labels"].append(norm(fit(X, y, setting, privacy="labels") - M))
        found["privacy"].append(norm(first - second) / math.sqrt(2))
        found["apart"] += [norm(first - plain), norm(second - plain)]
    return {**setting, **found}


def methods(setting: dict[str, float], draws: int) -> dict[str, list[float]]:
    """Return the errors of all methods on the same data."""
    n, d, r, epsilon = int(setting["n"]), int(setting["d"]), int(setting["r"]), setting["epsilon"]
    claimed = paper_sensitivities(n, d, d, r, noise=NOISE)
    runs: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
        "RGrad, not private": lambda X, y: RGrad(r, tolerance=1e-5).fit(X, y).coef_,
        "nuclear norm, not private": lambda X, y: NuclearNorm().fit(X, y).coef_,
        "tacitly, zero-out": lambda X, y: fit(X, y, setting),
        "tacitly, replace-one": lambda X, y: fit(X, y, setting, adjacency="replace-one"),
        "tacitly, power start": lambda X, y: fit(X, y, setting, start="power"),
        "tacitly, known Λ": lambda X, y: fit(X, y, setting, covariance=np.ones((d, d))),
        "tacitly, labels only": lambda X, y: fit(X, y, setting, privacy="labels"),
        "paper mode, C = 1 (not certified)": lambda X, y: fit(X, y, setting, mode="paper", sensitivities=claimed),
        "naive noisy gradient on factors": lambda X, y: factorised(X, y, r, epsilon, DELTA),
    }
    errors: dict[str, list[float]] = {name: [] for name in runs}
    for seed in range(draws):
        X, y, M = draw(setting, 100 + seed)
        for name, run in runs.items():
            errors[name].append(norm(run(X, y) - M))
    return errors


def convergence(d: int, r: int, n: int) -> dict[str, Any]:
    """Return the relative error of every iterate of non-private RGrad, without label noise."""
    rng = np.random.default_rng(0)
    M = orthonormal(rng.normal(size=(d, r)))[0] @ orthonormal(rng.normal(size=(d, r)))[0].T
    X = rng.normal(size=(n, d, d))
    path: list[float] = []
    RGrad(r).fit(X, X.reshape(n, -1) @ M.ravel(), on_step=lambda found: path.append(norm(found - M) / norm(M)))
    return {"d": d, "r": r, "n": n, "relative_error": path}


def norm(matrix: np.ndarray) -> float:
    return float(np.linalg.norm(matrix))


def slope(values: Sequence[float], errors: Sequence[float]) -> float:
    return float(np.polyfit(np.log(values), np.log(errors), 1)[0])


def means(data: dict[str, Any], name: str, what: str) -> list[float]:
    return [float(np.sqrt(np.mean(np.square(row[what])))) for row in data["sweeps"][name]]


def size(row: dict[str, Any]) -> float:
    """Return p = r(2d − r), which Theorem 3's privacy term is proportional to in d and r."""
    return row["r"] * (2 * row["d"] - row["r"])


def report(data: dict[str, Any], sweeps: dict[str, Sequence[float]]) -> str:
    lines = []
    for name, values in sweeps.items():
        rows = []
        for row, value in zip(data["sweeps"][name], values, strict=True):
            n, d, r, epsilon = int(row["n"]), int(row["d"]), int(row["r"]), row["epsilon"]
            plain, private = (math.sqrt(np.mean(np.square(row[k]))) for k in ("nonprivate", "private"))
            labels, privacy, apart = (math.sqrt(np.mean(np.square(row[k]))) for k in ("labels", "privacy", "apart"))
            bound = minimax_lower_bound(n, d, d, r, epsilon, noise=NOISE)
            rate = sum(loop_rate(n, d, d, r, epsilon, DELTA, noise=NOISE))
            rows.append([f"{value:g}", private, plain, private / plain, labels, privacy, apart, bound, rate])
        header = [name, "certified", "not private", "ratio", "labels only", "privacy term", "from non-private fit"]
        lines.append(table([*header, "lower bound (c = 1)", "Theorem 3 (C = 1)"], rows))
    along = {"n": sweeps["n"], "ε": sweeps["epsilon"]}
    terms = {"n": means(data, "n", "privacy"), "ε": means(data, "epsilon", "privacy")}
    for symbol, name in (("p (through d)", "d"), ("p (through r)", "r")):
        along[symbol] = [size(row) for row in data["sweeps"][name]]
        terms[symbol] = means(data, name, "privacy")
    expected = {"n": -1.0, "ε": -1.0, "p (through d)": 1.0, "p (through r)": 1.0}
    slopes = [[symbol, slope(along[symbol], terms[symbol]), expected[symbol]] for symbol in along]
    lines.append(table(["privacy term in", "fitted slope", "Theorem 3"], slopes))
    best = float(np.mean(data["methods"]["RGrad, not private"]))
    rows = [[name, float(np.mean(errors)), float(np.mean(errors)) / best] for name, errors in data["methods"].items()]
    lines.append(table(["method", "error", "relative to RGrad"], rows))
    run, attack = data["convergence"], data["outlier"]
    path = run["relative_error"]
    lines.append(
        f"Non-private RGrad, no label noise, {run['d']}×{run['d']}, r = {run['r']}, n = {run['n']:,}: "
        f"relative error {path[-1]:.1e} after {len(path) - 1} steps."
    )
    lines.append(
        f"One observation of norm 100 and label 100: claimed ε = {attack['claimed']:g}, spent at most "
        f"{attack['spent']:.4f} (exact), audited ≥ {attack['audited']:.3f} ({attack['runs']} runs each, 95 %)."
    )
    lines.append(
        f"Root mean squares over {data['draws']} draws, label noise {data['noise']:g}, singular values 1. "
        "Privacy term: distance between two fits of the same data, over √2."
    )
    return "\n\n".join(lines)


def plot(data: dict[str, Any], sweeps: dict[str, Sequence[float]]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 5, figsize=(17, 3.6))
    styles = {"private": "o-", "labels": "s--", "nonprivate": "k:", "privacy": "^-"}
    labels = {"private": "certified", "labels": "labels only", "nonprivate": "not private", "privacy": "privacy term"}
    for place, (name, values) in zip(axes, sweeps.items(), strict=False):
        for what, style in styles.items():
            place.loglog(values, means(data, name, what), style, label=labels[what], markersize=4)
        bounds = [
            minimax_lower_bound(row["n"], int(row["d"]), int(row["d"]), int(row["r"]), row["epsilon"], noise=NOISE)
            for row in data["sweeps"][name]
        ]
        place.loglog(values, bounds, color="grey", label="lower bound, c = 1")
        place.set_xlabel({"epsilon": "ε"}.get(name, name))
        place.set_xticks(list(values), [f"{value:g}" for value in values], minor=False)
        place.minorticks_off()
    axes[0].set_ylabel("‖M̂ − M‖ (Frobenius)")
    axes[0].legend(fontsize=7)
    axes[-1].semilogy(data["convergence"]["relative_error"])
    axes[-1].set_xlabel("steps of RGrad, without any noise")
    axes[-1].set_ylabel("relative error")
    figure.tight_layout()
    IMAGES.mkdir(parents=True, exist_ok=True)
    figure.savefig(IMAGES / "trace_regression.png", dpi=110)


if __name__ == "__main__":
    main()
