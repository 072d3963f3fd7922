"""CENTAUR by writer, in place of EMNIST: MNIST's 539 writers, and the 105 whole writers of a sample of FEMNIST.

    python -m benchmarks.papers.centaur_writers [--quick] [--tasks NAME ...] [--starts NAME ...] [--seeds N ...]

EMNIST is not among our data, so no number here belongs beside the paper's. ε = 1, δ = 1e-5, few learned parameters (one
unit per class beside public directions, as in :mod:`benchmarks.papers.centaur_starts`), and two starts, never mixed:

* *random filters*: the fixed part of :func:`tacitly.neural.image_network`, other filters for every seed; no data;
* *synthetic images*: the paper's LeNet after contrastive training on synthetic images.

One user per writer. FEMNIST (62 classes): every fifth image of a writer is for testing, the same ones for all seeds.
Settings of every method are the best of ``TRIES`` on a development split of the other images, users of seed 7; CENTAUR
has more tries than the others (heads fitted in three, fifteen or sixty steps before the body moves, with and without
cross-fitting). MNIST (10 classes): a tenth of a writer's images is for testing, other ones for every seed; nothing was
chosen there, settings are FEMNIST's. Both starts take what was chosen for random filters.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from benchmarks import images
from benchmarks.papers.centaur import CACHE, DEVICE, Task, accuracies, fitted, free_layer, public_start, writers
from benchmarks.papers.centaur_starts import CHOOSING, FEW, GENTLE, KINDS, LOCAL, SEEDS, SLOW, ahead
from benchmarks.tables import RESULTS, keep, table
from tacitly import neural

Row = dict[str, Any]
STARTS, TASKS = ("random filters", "synthetic images"), ("FEMNIST writers", "MNIST writers")
WIDTH = 128
NOISE, EVERYTHING = "CENTAUR, noise alone", "heads alone, all directions"
METHODS: dict[str, float | str] = {
    **{method: 0.0 if method == "heads alone" else 1.0 for method in list(KINDS)[:-1]},
    EVERYTHING: 0.0,
    NOISE: 0.01,
    "FedRep, no privacy": "inf",
}
"""And their ε. In most rows heads see half of the directions beside the learned units, so that units which hold nothing
but noise are further directions: the two controls show what that is worth."""

_PLAIN = [{**local, **rounds} for local in (GENTLE, LOCAL) for rounds in (FEW, SLOW)]
TRIES: dict[str, list[dict[str, Any]]] = {
    "DP-FedAvg": _PLAIN,
    "PMTL": _PLAIN,
    "PPSGD": [{**one, "head_steps": 1} for one in _PLAIN],
    "CENTAUR": [
        {**LOCAL, **rounds, **head}
        for rounds in (FEW, SLOW)
        for head in (*({"head_steps": steps} for steps in (3, 15, 60)), {"head_steps": 15, "cross_fit": False})
    ],
}


def data_of(name: str) -> images.Images:
    """Return images with their writers; FEMNIST's as white on black, as MNIST's are."""
    if name == "MNIST writers":
        return images.mnist_writers()
    found = images.femnist()
    return found._replace(X=255 - found.X, test_X=255 - found.test_X)


@cache
def directions(name: str, start: str, seed: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Return all images, training and test, in public directions, from a file if there is one."""
    path = CACHE / f"{name} {start} {seed}.npz"
    if not path.is_file():
        data = data_of(name)
        if start == "random filters":
            encoder: nn.Module = nn.Sequential(*list(neural.image_network(10, (1, 28, 28), seed=seed)[0])[:-1])
        else:
            encoder = public_start("lenet", WIDTH, False).body
            data = data._replace(X=images.as_colour(data.X), test_X=images.as_colour(data.test_X))
        seen = neural.Features(encoder, device=DEVICE)
        path.parent.mkdir(parents=True, exist_ok=True)
        parts = (seen(images.rows(X)).astype(np.float16) if len(X) else np.zeros((0, WIDTH)) for X in _used(name, data))
        np.savez(path, **dict(zip(("X", "test_X"), parts, strict=True)))
    stored = np.load(path)
    return stored["X"].astype(np.float32), stored["test_X"].astype(np.float32)


def _used(name: str, data: images.Images) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    return data.X, data.test_X if name == TASKS[0] else data.test_X[:0]  # MNIST's test images have other writers


def task_of(name: str, start: str, seed: int) -> Task:
    """Return one user per writer, with rows in public directions; seed 7 is the development split."""
    data, (X, test_X) = data_of(name), directions(name, start, seed if start == STARTS[0] and seed != CHOOSING else 0)
    if name == TASKS[1] or seed == CHOOSING:
        return writers(name, data._replace(X=255.0 * X), seed)
    assert data.users is not None
    assert data.test_users is not None
    names = np.unique(data.users)
    users, tested = (np.searchsorted(names, part) for part in (data.users, data.test_users))
    order = np.argsort(users, kind="stable")
    test_rows = [np.flatnonzero(tested == user) for user in range(len(names))]
    return Task(name, X[order], data.y[order], users[order], test_X, data.test_y, test_rows)


def accuracy(task: Task, method: str, epsilon: float, settings: dict[str, Any]) -> float:
    """Return the test accuracy in percent, mean over users."""
    width, classes = task.X.shape[1], int(task.y.max()) + 1
    make = lambda: free_layer(width, classes, width if method == EVERYTHING else None)  # noqa: E731
    return fitted(task, make, KINDS[_known(method)], epsilon, **settings)[0]


def _known(method: str) -> str:
    return "heads alone" if method == EVERYTHING else "CENTAUR" if method in (NOISE, "FedRep, no privacy") else method


def choose() -> list[Row]:
    """Try all settings on the development split."""
    found, task = [], task_of(TASKS[0], STARTS[0], CHOOSING)
    for method, tries in TRIES.items():
        for settings in tries:
            found.append({"method": method, "settings": settings, "accuracy": accuracy(task, method, 1.0, settings)})
            print(found[-1], flush=True)
    return found


def best(choice: Sequence[Row], method: str) -> dict[str, Any]:
    """Return the settings of a method."""
    if (known := _known(method)) == "heads alone":
        return {}
    settings: dict[str, Any] = max((r for r in choice if r["method"] == known), key=lambda r: r["accuracy"])["settings"]
    return settings


def rows_of(name: str, start: str, seed: int, found: dict[str, Any]) -> list[Row]:
    """Return the accuracies of all methods, new ones where there is none yet."""
    rows, known = [], {(r["task"], r["start"], r["seed"], r["method"]): r for r in found["rows"]}
    task = task_of(name, start, seed)
    for method, epsilon in METHODS.items():
        row = known.get((name, start, seed, method))
        if row is None:
            value = accuracy(task, method, float(epsilon) or 1.0, best(found["choice"], method))
            row = {"start": start, "task": name, "seed": seed, "method": method, "epsilon": epsilon, "accuracy": value}
            print(row, flush=True)
        rows.append(row)
    return rows


def report(found: dict[str, Any]) -> str:
    """Return a table per start, the differences, and what was chosen."""
    rows = found["rows"]
    parts = [accuracies(own) for start in STARTS if (own := [row for row in rows if row["start"] == start])]
    lines = [[m, json.dumps(best(found["choice"], m)), f"{max(_tried(found, m)):.1f}"] for m in TRIES]
    end = f"Mean over users, then mean (standard deviation) over seeds; zero-out ε. {found['device']}."
    return "\n\n".join([*parts, end, ahead(rows), table(["method", "chosen", "development split"], lines)])


def _tried(found: dict[str, Any], method: str) -> list[float]:
    return [row["accuracy"] for row in found["choice"] if row["method"] == method] or [np.nan]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--tasks", nargs="*", default=list(TASKS), choices=TASKS)
    parser.add_argument("--starts", nargs="*", default=list(STARTS), choices=STARTS)
    parser.add_argument("--seeds", nargs="*", type=int, default=list(SEEDS))
    options = parser.parse_args()
    if options.quick:
        _quick()
        return
    torch.set_num_threads(1)
    path = RESULTS / "centaur_writers.json"
    found = json.loads(path.read_text()) if path.is_file() else {"choice": choose(), "rows": []}
    for seed in options.seeds:
        for name in options.tasks:
            for start in options.starts:
                new = rows_of(name, start, seed, found)
                found["rows"] = [r for r in found["rows"] if r not in new] + new
                found["device"] = torch.cuda.get_device_name() if DEVICE == "cuda" else "CPU"
                keep("centaur_writers", found, report(found), quick=False)  # as it comes: all together take long


def _quick() -> None:
    """Run two methods on made-up directions."""
    rng = np.random.default_rng(0)
    users, y = np.repeat(np.arange(10), 20), np.arange(200) % 4
    Z = (rng.normal(size=(200, 16)) + 3 * np.eye(4, 16)[y]).astype(np.float32)
    none = np.zeros((0, 1), dtype=np.uint8)
    task = writers(TASKS[0], images.Images(255.0 * Z, y, none, y[:0], users), 0)
    choice, rows = [], []
    for method, tries in TRIES.items():
        choice.append({"method": method, "settings": {**tries[0], "rounds": 1}, "accuracy": 0.0})
        row = {"start": STARTS[0], "task": task.name, "seed": 0, "method": method, "epsilon": 1.0}
        rows.append({**row, "accuracy": accuracy(task, method, 1.0, choice[-1]["settings"])})
    print(report({"rows": rows, "choice": choice, "device": DEVICE}))


if __name__ == "__main__":
    main()
