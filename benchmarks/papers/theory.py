"""Draw what the theorems say beside what was measured: ``python -m benchmarks.papers.theory``, from benchmarks/results.

Rates have constants that the papers leave unnamed; they are 1 here. What can be compared is the slope, and how far
apart both are: that factor is the constant, fitted.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.tables import IMAGES, RESULTS, keep, table
from tacitly.theory import centaur, fedpower, low_rank_sparse, private_fedrep, trace_regression

Curve = tuple[str, Sequence[float], list[float], list[float]]
"""What is varied, its values, errors measured and errors predicted."""


def results(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def dp_rgrad() -> Curve:
    """DP-RGrad, Theorem 3, against n: 40×40, rank 2, label noise 0.5, ε = 1."""
    rows = results("trace_regression")["sweeps"]["n"]
    n = [row["n"] for row in rows]
    said = [sum(trace_regression.loop_rate(row["n"], 40, 40, 2, 1.0, 1e-6, noise=0.5)) for row in rows]
    return "DP-RGrad, Theorem 3: n", n, [float(np.mean(row["private"])) for row in rows], said


def fedrep() -> Curve:
    """Private FedRep as printed, Theorem 10, against ε: n = 20,000, d = 50, k = 2, m = 10, heads of norm one."""
    errors = results("private_fedrep")["mse"]
    epsilons, smallest = [0.5, 1.0, 2.0, 4.0, 8.0], math.sqrt(0.5)  # unit heads in two dimensions: V*/√n has σ² = 1/2
    measured = [float(np.mean(errors[f"paper as printed, {e:g}"])) - 1e-4 for e in epsilons]
    sizes = {"noise": 0.01, "largest": smallest, "smallest": smallest}
    said = [sum(private_fedrep.excess_risk(20_000, 10, 50, 2, e, **sizes)) for e in epsilons]
    return "Private FedRep as printed, Theorem 10: ε", epsilons, measured, said


def centaur_linear() -> Curve:
    """CENTAUR as printed, Theorem 5.1 with the printed noise, against ε: n = 8,000, d = 20, k = 2, 20 rounds."""
    found = results("centaur_linear")["exponents as printed"]["epsilon"]
    smallest = math.sqrt(0.5)  # unit heads in two dimensions: W*/√n has singular values with square 1/2
    noise = [2.0 * math.sqrt(20 * math.log(1e6)) / epsilon for epsilon in found["values"]]
    said = [centaur.utility(8000, 20, 2, sigma, smallest=smallest, largest=smallest) for sigma in noise]
    return "CENTAUR as printed, Theorem 5.1: ε", found["values"], found["distances"], said


def amht_lrs() -> Curve:
    """AMHT-LRS as printed, Theorem 3, against ε: 5,000 users, 100 rows, d = 10, r = 1, k = 2, no label noise."""
    errors = results("low_rank_sparse")["simulation"]["rmse"]
    epsilons = [0.5, 1.0, 2.0, 4.0, 8.0]
    measured = [float(np.mean(errors[f"as printed, {e:g}"])) ** 2 for e in epsilons]
    said = [low_rank_sparse.private_risk(5000, 100, 10, 1, 2, e, 1e-5, noise=0.0)[1] for e in epsilons]
    return "AMHT-LRS as printed, Theorem 3: ε", epsilons, measured, said


def fed_power() -> Curve:
    """FedPower as printed, Theorem 5's noise term, against ε₁: a9a on 100 devices, ε₂ = 0.1 (Table 3); gap 1."""
    found, devices, rows = results("fedpower_tables")["table3"]["a9a"], 100, 325
    epsilons, said = [0.1, 1.0, 10.0, 100.0], []
    for epsilon in epsilons:
        # A device's noise, and the server's: that of ε₂ = 0.1 times the largest share, over √Σp².
        own, server = (fedpower.noise_scale(e, 0.01, rows, 1) for e in (epsilon, 0.1))
        noise = math.hypot(own, server / math.sqrt(devices))
        shares = [1 / devices] * devices
        known = {"d": 123, "width": 10, "rounds": 1, "spread": 0.0, "residual": 0.0, "largest": 1.0}
        said.append(fedpower.full_participation(1.0, 0.0, shares=shares, noise=noise, **known)[0])
    return "FedPower as printed, Theorem 5: ε₁", epsilons, [float(np.mean(found[f"{e:g}"])) for e in epsilons], said


CURVES: tuple[Callable[[], Curve], ...] = (dp_rgrad, fedrep, centaur_linear, amht_lrs, fed_power)


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def main() -> None:
    curves = [curve() for curve in CURVES]
    rows = [
        [name, f"{slope(x, measured):.2f}", f"{slope(x, said):.2f}", f"{np.median(np.divide(measured, said)):.2g}"]
        for name, x, measured, said in curves
    ]
    data = {name: {"x": list(x), "measured": m, "predicted": s} for name, x, m, s in curves}
    header = ["theorem: what is varied", "slope measured", "slope predicted", "measured / predicted (constant 1)"]
    quick = "--quick" in sys.argv
    keep("theory", data, table(header, rows), quick=quick)
    if not quick:
        plot(curves)


def plot(curves: list[Curve]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(curves), figsize=(3.6 * len(curves), 3.2))
    for axis, (name, x, measured, said) in zip(axes, curves, strict=True):
        axis.loglog(x, measured, "o-", label="measured")
        axis.loglog(x, said, "s--", color="0.5", label="theorem, constant 1")
        axis.set_title(name, fontsize=8)
        axis.set_xlabel(name.rpartition(": ")[2])
    axes[0].set_ylabel("error")
    axes[0].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(IMAGES / "theory.png", dpi=110)


if __name__ == "__main__":
    main()
