"""Private heads on the features of a public encoder: CENTAUR, Private FedRep or MixedEffects, on the same users.

    python -m benchmarks.features [--quick] [--tasks NAME ...] [--seeds N ...] [--workers N] [--out FILE]

Features are ``neural.Features(encoder)``: rows in other columns, without privacy cost, because the encoder is public.
For CIFAR-10 it is the five convolutions that :mod:`benchmarks.papers.centaur_starts` trains on CIFAR-100; for the
writers of MNIST, the fixed filters of :func:`tacitly.neural.image_network`, which need no data. Columns are the leading
public principal directions. Then, with ten classes, δ = 1e-5, and for each ε:

* *heads alone*: every user fits a head to the columns; nothing is shared;
* *CENTAUR*: one learned unit per class in addition to the columns (``neural.LinearWithSkip``), with the settings that
  centaur_starts chose on its development split;
* *PrivateFedRep*: nine shared directions of the columns, softmax heads;
* *MixedEffects*: a classifier for the population and personal deviations.

The last two have no settings except the number of columns. On the development split of CIFAR-10 (n = 500, S = 5, ε =
1), users of seed 7, a hundred of them tested on every fifth image, MixedEffects had 56.1, 61.9 and 63.6 % with 16, 32
and 64 columns (97, 133 and 305 s), and PrivateFedRep 63.3 and 64.4 % with 32 and 64. Results are test accuracies, as
means over users; all methods predict only classes that the user's own rows contain.
"""

from __future__ import annotations

import argparse
import json
import os
import warnings
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

import tacitly
from benchmarks import images
from benchmarks.papers.centaur import CACHE, DELTA, DEVICE, Task, fitted, free_layer, writers
from benchmarks.papers.centaur_starts import HEADS, deal, kept_features
from benchmarks.several import Job, Row, several
from benchmarks.tables import keep, table
from tacitly import neural

EPSILONS, WIDEST = (1.0, 4.0), 64
TASKS = {"cifar10-5": (500, 5), "cifar10-2": (1000, 2), "mnist-writers": None}
LINES = (("heads alone", 64), ("heads alone", 32), ("CENTAUR", 64), ("PrivateFedRep", 64), ("MixedEffects", 32))
"""How many columns each method sees. MixedEffects takes minutes with 32, and the square of the columns more.

So it has to be compared with heads alone on as many.
"""


def mnist_features() -> tuple[images.Images, npt.NDArray[np.float32]]:
    """Return the writers of MNIST and their images in 64 public directions, from a file if there is one."""
    path = CACHE / "mnist writers.npz"
    if not path.is_file():
        data = images.mnist_writers()
        body, _ = neural.image_network(10, (1, 28, 28), directions=WIDEST)
        Z = neural.Features(nn.Sequential(*list(body)[:-1]), device=DEVICE)(images.rows(data.X)).astype(np.float16)
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(path, Z=Z, y=data.y.astype(np.uint8), users=np.unique(data.users, return_inverse=True)[1])
    stored, none = np.load(path), np.zeros((0, 1), dtype=np.uint8)
    y = stored["y"].astype(np.int64)
    return images.Images(none, y, none, y[:0], stored["users"]), stored["Z"].astype(np.float32)


@cache
def task_of(name: str, seed: int) -> Task:
    """Return users, their columns and their test rows."""
    if name == "quick":
        return _few_users(seed)
    if (sizes := TASKS[name]) is not None:
        data, Z = kept_features("CIFAR-100, deeper", 0)
        return deal(data, Z[:, :WIDEST], *sizes, seed)
    data, Z = mnist_features()
    places = writers("MNIST writers", data._replace(X=np.arange(len(Z))[:, None]), seed)
    train, test = (np.rint(255 * X[:, 0]).astype(np.int64) for X in (places.X, places.test_X))
    return places._replace(X=Z[train], test_X=Z[test])


def run(job: Job) -> list[Row]:
    """Fit one model; return its row."""
    torch.set_num_threads(1)
    task = task_of(job["task"], job["seed"])
    task = task._replace(X=task.X[:, : job["columns"]].copy(), test_X=task.test_X[:, : job["columns"]].copy())
    classes = int(task.y.max()) + 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if job["method"] in ("heads alone", "CENTAUR"):
            kind = neural.LocalHeads if job["method"] == "heads alone" else neural.Centaur
            settings = {} if kind is neural.LocalHeads else {**HEADS, "rounds": 5}
            layer = free_layer(job["columns"], classes, kept=job["columns"])
            value = fitted(task, lambda: layer, kind, job["epsilon"] or 1.0, **settings)[0]
        else:
            value = _accuracy(_on_columns(job, classes).fit(task.X, task.y, task.users), task, classes)
    return [{**job, "accuracy": value}]


def _on_columns(job: Job, classes: int) -> Any:
    shared = {"epsilon": job["epsilon"], "delta": DELTA, "loss": "logistic", "classes": range(classes), "threads": 1}
    if job["method"] == "MixedEffects":
        return tacitly.MixedEffects(**shared)
    return tacitly.PrivateFedRep(rank=classes - 1, fit_intercept=True, **shared)


def _accuracy(model: Any, task: Task, classes: int) -> float:
    """Return the mean over users in percent; answers are classes that the user's own rows contain."""
    right = []
    for user, mine in enumerate(task.test_rows):
        chances = model.predict_proba(task.test_X[mine], np.full(len(mine), user))
        held = np.isin(np.arange(classes), task.y[task.users == user])
        right.append(np.mean(np.where(held, chances, -1.0).argmax(1) == task.test_y[mine]))
    return 100.0 * float(np.mean(right))


def jobs(tasks: Sequence[str], seeds: Sequence[int]) -> list[Job]:
    """Return all fits, quick ones first."""
    found = [
        {"task": name, "method": method, "columns": columns, "epsilon": epsilon, "seed": seed}
        for seed in seeds
        for method, columns in LINES
        for name in tasks
        for epsilon in ((0.0,) if method == "heads alone" else EPSILONS)
    ]
    return sorted(found, key=lambda job: (job["seed"], job["method"] == "MixedEffects"))


def report(rows: Sequence[Row]) -> str:
    """Return one table per task: methods by ε."""
    parts = []
    for name in dict.fromkeys(row["task"] for row in rows):
        own = [row for row in rows if row["task"] == name]
        epsilons = sorted({row["epsilon"] for row in own} - {0.0})
        lines = []
        for method, columns in sorted({(row["method"], row["columns"]) for row in own}, key=_order):
            cells = []
            for epsilon in epsilons:
                seen = [
                    row["accuracy"]
                    for row in own
                    if (row["method"], row["columns"]) == (method, columns) and row["epsilon"] in (epsilon, 0.0)
                ]
                spread = f"{np.std(seen):.1f}" if len(seen) > 1 else "one seed"
                cells.append(f"{np.mean(seen):.1f} ({spread})" if seen else "–")
            lines.append([method, columns, *cells])
        parts.append(table([f"{_title(name)}: method", "columns", *(f"ε = {e:g}" for e in epsilons)], lines))
    return "\n\n".join(parts)


def _order(line: tuple[str, int]) -> tuple[int, int]:
    return ["heads alone", "CENTAUR", "PrivateFedRep", "MixedEffects"].index(line[0]), line[1]


def _title(name: str) -> str:
    sizes = TASKS.get(name)
    return f"CIFAR-10, n={sizes[0]}, S={sizes[1]}" if sizes else {"mnist-writers": "MNIST, 539 writers"}.get(name, name)


def _few_users(seed: int) -> Task:
    rng = np.random.default_rng(seed)
    y = np.arange(600) % 3
    Z = (rng.normal(size=(600, 6)) + 2.0 * np.eye(3, 6)[y]).astype(np.float32)
    test = [np.arange(400, 600)] * 20
    return Task("quick", Z[:400], y[:400], np.arange(400) // 20, Z, y, test)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--tasks", nargs="*", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--seeds", nargs="*", type=int, default=[0])
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--out", type=Path, help="write rows here as they come")
    parser.add_argument("--read", type=Path, nargs="*", help="make the table of such files; fit nothing")
    options = parser.parse_args()
    if options.quick:
        todo = [{**job, "columns": 6} for job in jobs(["quick"], (0,)) if job["epsilon"] != 1.0]
    else:
        todo = jobs(options.tasks, options.seeds)
    if options.read:
        rows = [json.loads(line) for path in options.read for line in path.read_text().splitlines()]
    else:
        rows = several(run, todo, options.workers, options.out)
    machine = torch.cuda.get_device_name() if DEVICE == "cuda" else os.environ.get("TACITLY_DEVICE", "CPU")
    keep("features", {"rows": rows, "device": machine}, report(rows), quick=options.quick)


if __name__ == "__main__":
    main()
