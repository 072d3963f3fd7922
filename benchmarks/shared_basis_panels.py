"""Real panels with a shared basis: heads that shrink to a private population, compared with alternatives.

``python -m benchmarks.shared_basis_panels`` (half an hour on two cores; ``--quick`` for a smoke test; ``--only NAME``).
A fifth of each user's rows (at least one) is held out; results are RMSEs on it, as means over splits. Columns are
scaled to [−1, 1] by their ranges. "Unseen" predicts the held-out rows as if their users were unknown: the population's
prediction.

The method was developed on three of the panels; the four others were run once, when it was finished.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np

import tacitly
from benchmarks.panel_data import DEVELOPED, HELD_OUT, Panel, load
from benchmarks.panels import quietly, rmse, split, user_mean
from benchmarks.tables import RESULTS, keep, table

MODELS: dict[str, Callable[[float], Any]] = {
    "PrivateFedRep, 1": lambda epsilon: tacitly.PrivateFedRep(1, epsilon, fit_intercept=True),
    "PrivateFedRep, 2": lambda epsilon: tacitly.PrivateFedRep(2, epsilon, fit_intercept=True),
    "PrivateFedRep, auto": lambda epsilon: tacitly.PrivateFedRep("auto", epsilon, fit_intercept=True),
    "LowRankSparse, 1": lambda epsilon: tacitly.LowRankSparse(1, "auto", epsilon, fit_intercept=True),
    "LowRankSparse, central": lambda epsilon: tacitly.LowRankSparse(
        1, "auto", epsilon, shared_weight=True, fit_intercept=True
    ),
}
EPSILONS = (1.0, math.inf)
_UNSEEN = "PrivateFedRep, auto"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one split of one small panel; nothing is kept")
    parser.add_argument("--only", action="append", help="panels to run; others stay as they were kept")
    parser.add_argument("--splits", type=int, default=2)
    options = parser.parse_args()
    names = ("wagepan",) if options.quick else tuple(options.only or (*DEVELOPED, *HELD_OUT))
    kept = RESULTS / "shared_basis_panels.json"
    panels: dict[str, Any] = json.loads(kept.read_text())["panels"] if kept.exists() and not options.quick else {}
    for name in names:
        panels[name] = measured(load(name), 1 if options.quick else options.splits)
        keep("shared_basis_panels", {"panels": panels}, report(panels), quick=options.quick)


def measured(panel: Panel, splits: int) -> dict[str, Any]:
    """Return errors of every model on each split."""
    low, high = panel.X.min(axis=0), panel.X.max(axis=0)
    X = 2.0 * (panel.X - low) / np.where(high > low, high - low, 1.0) - 1.0
    errors: dict[str, list[float]] = {}

    def note(name: str, predicted: Any, test: Any) -> None:
        errors.setdefault(name, []).append(rmse(predicted, panel.y[test]))

    for seed in range(splits):
        train, test = split(panel.users, seed)
        rows = X[train], panel.y[train], panel.users[train]
        note("user mean", user_mean(panel, train, test), test)
        pooled = quietly(tacitly.SingleModel(fit_intercept=True), *rows)
        note("pooled", pooled.predict(X[test], panel.users[test]), test)
        for epsilon in EPSILONS:
            for name, make in MODELS.items():
                model = quietly(make(epsilon), *rows)
                note(f"{name}, ε={epsilon:g}", model.predict(X[test], panel.users[test]), test)
                if name == _UNSEEN and model.prior_ is not None:
                    note(f"unseen, ε={epsilon:g}", model.predict(X[test]), test)
        print(panel.name, seed, {name: round(values[-1], 4) for name, values in errors.items()}, flush=True)
    users = len(np.unique(panel.users[split(panel.users, 0)[0]]))
    return {"users": users, "features": len(panel.features), "splits": splits, "errors": errors}


def report(panels: dict[str, Any]) -> str:
    """Return one table per group of panels."""
    columns = [f"{name}, ε={epsilon:g}" for epsilon in EPSILONS for name in MODELS]
    unseen = [f"unseen, ε={epsilon:g}" for epsilon in EPSILONS]
    header = ["panel", "users, features", "user mean", "pooled", *columns, "largest ÷ best of two", *unseen]
    text = []
    for title, names in (("developed on", DEVELOPED), ("held out", HELD_OUT)):
        rows = []
        for name in (name for name in names if name in panels):
            result = panels[name]
            mean = {key: float(np.mean(values)) for key, values in result["errors"].items()}
            best, largest = min(mean["user mean"], mean["pooled"]), max(mean[key] for key in columns)
            cells = [f"{mean[key]:.4g}" if key in mean else "" for key in ("user mean", "pooled", *columns)]
            others = [f"{mean[key]:.4g}" if key in mean else "" for key in unseen]
            sizes = f"{result['users']:,}, {result['features']}"
            rows.append([name, sizes, *cells, f"{largest / best:.3f}", *others])
        if rows:
            text += [f"Panels {title}:", "", table(header, rows), ""]
    return "\n".join(text)


if __name__ == "__main__":
    main()
