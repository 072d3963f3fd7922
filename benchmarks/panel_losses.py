"""Classes and counts of real panels: the private population prior compared with alternatives.

``python -m benchmarks.panel_losses`` (about 20 minutes on two cores; ``--quick`` for a smoke test; ``--only NAME``). A
fifth of each user's rows (at least one) is held out, as in :mod:`benchmarks.panels`. Results are log loss for classes
and mean Poisson deviance for counts, on the held-out rows: means over the splits and, for private fits, over four draws
of noise in each.

Targets: union membership (wagepan), on which the method was developed together with synthetic hierarchies; patents
(instinnovation) and grade A in chemistry, the highest score (chem97), which were run once after it was finished.
Features are those of :mod:`benchmarks.panel_data`. in :mod:`benchmarks.panel_data`.

The mixed model is :class:`~tacitly.baselines.mixed_loss_model.MixedLossModel`: maximum likelihood, full covariance
of intercept and slopes. The user mean includes one more row, the mean of all users, so that its log loss is finite.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.special import xlogy

import tacitly
from benchmarks.panel_data import Panel, load
from benchmarks.panels import quietly, split
from benchmarks.tables import RESULTS, keep, table
from tacitly.arrays import Array
from tacitly.baselines.mixed_loss_model import MixedLossModel

EPSILONS = (0.5, 1.0, 2.0, math.inf)
PANELS = {"union": "logistic", "patents": "poisson", "grade A": "logistic"}
DEVELOPED = ("union",)
ALONE = ("user mean", "pooled", "local")
DRAWS = 4
"""Private fits per split: with 545 users the ratio of a single one has a standard error of 0.006 over five splits."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one split, few users; nothing is kept")
    parser.add_argument("--only", action="append", choices=PANELS, help="targets to run; others stay as they were kept")
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--private", action="store_true", help="private methods alone; others as kept")
    options = parser.parse_args()
    kept = RESULTS / "panel_losses.json"
    panels: dict[str, Any] = json.loads(kept.read_text())["panels"] if kept.exists() and not options.quick else {}
    for name in ("union",) if options.quick else tuple(options.only or PANELS):
        before = panels[name]["losses"] if options.private else {}
        known = {method: before[method] for method in (*ALONE, "mixed model") if method in before}
        splits = 1 if options.quick else options.splits
        panels[name] = measured(name, panel(name), splits, known, quick=options.quick)
        keep("panel_losses", {"panels": panels}, report(panels), quick=options.quick)


def panel(name: str) -> Panel:
    """Read a panel with a class or a count as its target."""
    if name == "union":
        return load("wagepan", "union")
    if name == "patents":
        return load("instinnovation", "patents")
    whole = load("chem97")
    return replace(whole, y=(whole.y == whole.y.max()) * 1.0, target="grade A")


def measured(
    name: str, data: Panel, splits: int, known: dict[str, list[float]], *, quick: bool = False
) -> dict[str, Any]:
    """Return losses of every method on each split; ``known`` are not run again."""
    loss, losses = PANELS[name], dict(known)
    for seed in range(splits):
        train, test = split(data.users, seed)
        actual = data.y[test]
        if not known:
            for method, predicted in others(data, loss, train, test, quick=quick).items():
                losses.setdefault(method, []).append(error(loss, predicted, actual))
        for epsilon in (1.0,) if quick else EPSILONS:
            draws = []
            for _ in range(1 if quick or math.isinf(epsilon) else DRAWS):
                model = tacitly.MixedEffects(epsilon=epsilon, loss=loss)
                quietly(model, data.X[train], data.y[train], data.users[train])
                draws.append(error(loss, expected(model, data.X[test], data.users[test]), actual))
            losses.setdefault(f"{epsilon:g}", []).append(float(np.mean(draws)))
        print(name, seed, {method: round(values[-1], 4) for method, values in losses.items()}, flush=True)
    users = len(np.unique(data.users[split(data.users, 0)[0]]))
    rows = round(len(split(data.users, 0)[0]) / users, 1)
    return {"loss": loss, "users": users, "rows": rows, "features": len(data.features), "losses": losses}


def others(data: Panel, loss: str, train: Any, test: Any, *, quick: bool) -> dict[str, Array]:
    """Return what to compare with: expected targets of held-out rows."""
    low, high = data.X.min(axis=0), data.X.max(axis=0)
    scaled = 2.0 * (data.X - low) / np.where(high > low, high - low, 1.0) - 1.0
    rows, targets, users = scaled[train], data.y[train], data.users[train]
    counts = np.bincount(users, minlength=data.users.max() + 1)
    means = (np.bincount(users, targets, minlength=len(counts)) + targets.mean()) / (counts + 1.0)
    found = {"user mean": means[data.users[test]]}
    for name, kind in (("pooled", tacitly.SingleModel), ("local", tacitly.LocalModels)):
        model = quietly(kind(fit_intercept=True, loss=loss), rows, targets, users)
        found[name] = expected(model, scaled[test], data.users[test])
    mixed = MixedLossModel(loss, iterations=10 if quick else 60).fit(data.X[train], targets, users)
    found["mixed model"] = mixed.predict_mean(data.X[test], data.users[test])
    return found


def expected(model: Any, X: Array, users: Array) -> Array:
    """Return the probability of class 1, or the expected count."""
    return np.asarray(model.predict_proba(X, users)[:, 1] if model.loss == "logistic" else model.predict(X, users))


def error(loss: str, predicted: Array, actual: Array) -> float:
    """Return the log loss, or the mean Poisson deviance."""
    if loss == "logistic":
        shares = np.clip(predicted, 1e-12, 1.0 - 1e-12)
        return float(-np.mean(np.where(actual > 0.5, np.log(shares), np.log1p(-shares))))
    rates = np.maximum(predicted, 1e-12)
    return float(2.0 * np.mean(xlogy(actual, actual) - xlogy(actual, rates) - actual + rates))


def report(panels: dict[str, Any]) -> str:
    """Return the table: losses, and what is promised of them."""
    header = ["target", "users × rows, features", *ALONE, "mixed model", *(f"MixedEffects ε={e:g}" for e in EPSILONS)]
    header += ["ε=1 ÷ mixed model", "ε=1 ÷ best of three"]
    rows = []
    for name in (name for name in PANELS if name in panels):
        result = panels[name]
        mean = {key: float(np.mean(values)) for key, values in result["losses"].items()}
        rows.append(
            [
                f"{name} ({result['loss']}; {'developed on' if name in DEVELOPED else 'held out'})",
                f"{result['users']:,} × {result['rows']}, {result['features']}",
                *(f"{mean[key]:.4g}" for key in (*ALONE, "mixed model")),
                *(f"{mean[f'{e:g}']:.4g}" if f"{e:g}" in mean else "" for e in EPSILONS),
                f"{mean['1'] / mean['mixed model']:.3f}",
                f"{mean['1'] / min(mean[key] for key in ALONE):.3f}",
            ]
        )
    return table(header, rows)


if __name__ == "__main__":
    main()
