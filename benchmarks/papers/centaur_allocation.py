"""Does it matter whether a user's S classes are all different? CENTAUR's LeNet on two allocations of CIFAR-10.

    python -m benchmarks.papers.centaur_allocation [--quick] [--seeds N ...] [--minutes M]

Shen et al. (2023) follow the allocation of Collins et al. (2021), in which a user has *at most* S classes: users draw S
shares at random and may draw a class twice. Our other tables give everybody S different classes, which is harder. Here
the paper's LeNet, with the authors' settings (``mode="paper"``: 200 rounds, clip 0.01, rate 0.01, warm heads that see
mirror images too; the baselines without), meets both. A class drawn twice counts twice in a user's tests. Stand-alone
LeNets are those of the first 200 users (1,000 steps of 18 rows, momentum 0.9, rate 0.01). Accuracies are those of the
last round. Nothing was chosen here.

Needs a GPU and CIFAR-10. Rows that are in the results already are not measured again; no row is begun after M minutes.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from benchmarks import images
from benchmarks.papers.centaur import DEVICE, PAPER, Task, accuracies, fitted, from_scratch, shards
from benchmarks.tables import RESULTS, keep, table
from tacitly import neural

NAME = "centaur_allocation"
SETTINGS = ((500, 5), (1000, 2), (1000, 5))
ALLOCATIONS = {"at most S classes": False, "S different classes": True}
PRINTED = {"n=500, S=5": (50.0, 46.2, 49.4, 48.7, 53.2), "n=1000, S=2": (74.1, 57.0, 67.8, 71.5, 76.2)}
PRINTED |= {"n=1000, S=5": (44.6, 37.2, 36.0, 44.6, 49.9)}
ALONE = 200
"""Users whose stand-alone LeNets are trained."""


def alone(task: Task, users: int = ALONE, steps: int = 1000) -> float:
    """Return the accuracy of stand-alone LeNets of the first users."""
    mine = task.users < users
    few = task._replace(X=task.X[mine], y=task.y[mine], users=task.users[mine], test_rows=task.test_rows[:users])
    return from_scratch(few, steps, rate=0.01, momentum=0.9)


def shared(kind: type[neural.Centaur], epsilon: float, **settings: Any) -> Callable[[Task, int], float]:
    """Return a measurement: the accuracy of a LeNet learned together in the authors' way."""

    def accuracy(task: Task, seed: int) -> float:
        torch.manual_seed(100 + seed)
        network, most = neural.lenet(), int(np.bincount(task.users).max())
        views = {"augment": neural.Views((3, 32, 32))} if kind is neural.Centaur else {}
        given = {**PAPER, **views, "rows_per_user": most, **settings}
        return fitted(task, lambda: network, kind, epsilon, **given)[0]

    return accuracy


METHODS: dict[str, tuple[float, Callable[[Task, int], float]]] = {
    "LeNet: stand-alone": (0.0, lambda task, seed: alone(task)),
    "LeNet: CENTAUR": (1.0, shared(neural.Centaur, 1.0)),
    "LeNet: DP-FedAvg": (1.0, shared(neural.FedAvg, 1.0)),
    "LeNet: PMTL": (1.0, shared(neural.MeanRegularised, 1.0)),
    "LeNet: PPSGD": (1.0, shared(neural.TwoHeads, 1.0)),
    "LeNet: CENTAUR, no noise": (math.inf, shared(neural.Centaur, math.inf)),
}


def different(task: Task) -> float:
    """Return how many different classes users have, on average."""
    ends = np.flatnonzero(np.diff(task.users)) + 1
    return float(np.mean([len(np.unique(part)) for part in np.split(task.y, ends)]))


def report(found: dict[str, Any]) -> str:
    """Return one table per allocation, the printed numbers in the first, and how many classes users have."""
    order = [f"n={n}, S={s}" for n, s in SETTINGS]
    parts = []
    for allocation in ALLOCATIONS:
        rows = [row for row in found["rows"] if row["allocation"] == allocation]
        if rows:
            rows.sort(key=lambda row: (order.index(row["task"]), list(METHODS).index(row["method"])))
            named = [{**row, "task": f"{row['task']}, {allocation}"} for row in rows]
            printed = {f"{task}, {allocation}": value for task, value in PRINTED.items()}
            parts.append(accuracies(named, printed if not ALLOCATIONS[allocation] else None))
    lines = [[task, *(f"{found['classes'][f'{task}, {a}']:.2f}" for a in ALLOCATIONS)] for task in order]
    parts.append(table(["classes per user, mean", *ALLOCATIONS], lines))
    parts.append(
        f"CIFAR-10; mean over users, then mean (standard deviation) over seeds; zero-out ε. {found['device']}."
    )
    return "\n\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seeds", nargs="*", type=int, default=[0])
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--methods", nargs="*", default=list(METHODS))
    options = parser.parse_args()
    if options.quick:
        _quick()
        return
    path, data, began = RESULTS / f"{NAME}.json", images.cifar10(), time.monotonic()
    found: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {"rows": [], "classes": {}}
    found["device"] = torch.cuda.get_device_name() if DEVICE == "cuda" else "CPU"
    for method, seed in ((m, s) for s in options.seeds for m in options.methods):
        for allocation, distinct in ALLOCATIONS.items():
            for n, classes in SETTINGS:
                row = {"task": f"n={n}, S={classes}", "allocation": allocation, "seed": seed, "method": method}
                if any(row.items() <= known.items() for known in found["rows"]):
                    continue
                if time.monotonic() - began > 60 * options.minutes:
                    return
                task = shards("CIFAR-10", data, n, classes, seed, distinct=distinct)
                found["classes"][f"{row['task']}, {allocation}"] = different(task)
                epsilon, measure = METHODS[method]
                since, value = time.monotonic(), measure(task, seed)
                shown = "inf" if math.isinf(epsilon) else epsilon
                taken = round(time.monotonic() - since, 1)
                found["rows"].append({**row, "epsilon": shown, "accuracy": value, "seconds": taken})
                print(found["rows"][-1], flush=True)
                path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    keep(NAME, found, report(found), quick=False)


def _quick() -> None:
    """Run two methods on a few made-up images."""
    rng = np.random.default_rng(0)
    y = np.arange(300) % 10
    X = (rng.uniform(size=(300, 3, 32, 32)) * 60 + 19 * y[:, None, None, None]).astype(np.uint8)
    data = images.Images(X[:200], y[:200], X[200:], y[200:])
    found: dict[str, Any] = {"rows": [], "classes": {}, "device": DEVICE}
    for allocation, distinct in ALLOCATIONS.items():
        for n, s in SETTINGS:
            task = shards("made up", data, 10, 2, 0, distinct=distinct)
            found["classes"][f"n={n}, S={s}, {allocation}"] = different(task)
        few = {"rounds": 1, "tf32": False}
        for method, value in (
            ("LeNet: stand-alone", alone(task, 3, 2)),
            ("LeNet: CENTAUR", shared(neural.Centaur, 1.0, **few)(task, 0)),
        ):
            row = {"task": "n=500, S=5", "allocation": allocation, "seed": 0, "method": method, "accuracy": value}
            found["rows"].append({**row, "epsilon": METHODS[method][0]})
    print(report(found))


if __name__ == "__main__":
    main()
