"""When does a personal head in every round beat a common one? Fashion-MNIST, users with five of ten classes each.

    python -m benchmarks.papers.centaur_names [--quick] [--networks NAME ...] [--seeds N ...] [--out FILE]

500 users as in Table 1 of CENTAUR (Shen et al. 2023), dealt as its CIFAR-10 users are. What varies is what classes are
*called*: a share of the users has names of their own (a permutation of the ten numbers, one per user), the others use
the common ones. Two networks, both from random numbers:

* *one layer on random filters*: the fixed part of :func:`tacitly.neural.image_network`, one unit per class is learned
  (1,290 parameters);
* *small LeNet*: 4 and 8 channels, 32 and 16 units, every parameter is learned (5,560).

Settings were chosen once on users of seed 7, tested on training images that no user has, for each method, with common
names and with own names (``--choose``). Results are other seeds on the test images. In all methods heads are fitted at
home at the end, in closed form, so the table shows what rounds did to the body. Committed results are those of the
first network.
"""

from __future__ import annotations

import argparse
import json
import math
import warnings
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from benchmarks import images
from benchmarks.papers.centaur import CACHE, DELTA, Task, free_layer, shards
from benchmarks.several import Job, Row, several
from benchmarks.tables import RESULTS, keep, table
from tacitly import neural

NAME, CHOOSING, SEEDS = "centaur_names", 7, (0, 1, 2)
FILTERS, LENET = "one layer on random filters", "small LeNet"
SHARES, EPSILONS = (0.0, 0.5, 1.0), (1.0, math.inf)
HEADS, AVERAGE, COMMON, PERSONAL = "heads alone", "FedAvg", "one common head in rounds", "CENTAUR: own head in rounds"
KINDS: dict[str, type[neural.Centaur]] = {
    HEADS: neural.LocalHeads,
    AVERAGE: neural.FedAvg,
    COMMON: neural.Centaur,
    PERSONAL: neural.Centaur,
}
_LOCAL = [{"local_steps": 5, "local_rate": rate} for rate in (0.1, 0.5)]
TRIES: dict[str, list[dict[str, Any]]] = {
    AVERAGE: _LOCAL,
    COMMON: [{**local, "head_steps": 0} for local in _LOCAL],
    PERSONAL: [{**local, "head_steps": steps} for local in _LOCAL for steps in (3, 15)],
}
ROUNDS = {FILTERS: 5, LENET: 20}


@cache
def columns() -> images.Images:
    """Return Fashion-MNIST in the public directions of random filters, from a file if there is one."""
    path, data = CACHE / "fashion random filters.npz", images.fashion_mnist()
    if not path.is_file():
        encoder = neural.Features(nn.Sequential(*list(neural.image_network(10, (1, 28, 28))[0])[:-1]), device="cpu")
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(
            path, **{k: encoder(images.rows(v)).astype(np.float16) for k, v in (("X", data.X), ("t", data.test_X))}
        )
    kept = np.load(path)
    return data._replace(X=255 * kept["X"].astype(np.float32), test_X=255 * kept["t"].astype(np.float32))


def dealt(data: images.Images, seed: int, users: int = 500, own: int = 5) -> Task:
    """Return the users; those of the development seed are tested on training images that nobody has."""
    if seed != CHOOSING:
        return shards("Fashion-MNIST", data, users, own, seed)
    cut = np.random.default_rng(CHOOSING).permutation(len(data.y))
    train, test = np.sort(cut[10_000:]), np.sort(cut[:10_000])
    return shards(
        "Fashion-MNIST", images.Images(data.X[train], data.y[train], data.X[test], data.y[test]), users, own, 7
    )


def renamed(task: Task, share: float, seed: int) -> tuple[Task, list[npt.NDArray[np.int64]]]:
    """Return the task with own names for a share of the users, and everybody's names."""
    rng, n = np.random.default_rng(50 + seed), len(task.test_rows)
    names = [rng.permutation(10) if user < round(share * n) else np.arange(10) for user in range(n)]
    return task._replace(y=np.stack(names)[task.users, task.y]), names


def network(name: str, seed: int) -> tuple[nn.Module, nn.Module]:
    """Return body and head from random numbers."""
    if name == FILTERS:
        return free_layer(128, 10)
    torch.manual_seed(100 + seed)
    return neural.lenet(10, (1, 28, 28), (4, 8, 32, 16))


def accuracy(model: Any, task: Task, names: list[npt.NDArray[np.int64]]) -> float:
    """Return the mean over users of the share of test images called by their user's names, in percent."""
    features, right = model._features(task.test_X), []
    width = features.shape[1]
    for user, (head, held, mine) in enumerate(zip(model.heads_, model.held_, task.test_rows, strict=True)):
        scores = features[mine] @ head[: width * 10].reshape(10, width).T + head[width * 10 :]
        guesses = np.where(held > 0, scores, -np.inf).argmax(1)
        right.append(np.mean(guesses == names[user][task.test_y[mine]]))
    return 100.0 * float(np.mean(right))


def run(job: Job) -> list[Row]:
    """Fit one model; return its row."""
    torch.set_num_threads(1)
    data = columns() if job["network"] == FILTERS else images.fashion_mnist()
    task, names = renamed(dealt(data, job["seed"]), job["share"], job["seed"])
    return [{**job, "accuracy": measured(job, task, names)}]


def measured(job: Job, task: Task, names: list[npt.NDArray[np.int64]]) -> float:
    """Return a job's accuracy on users that are given."""
    body, head = network(job["network"], job["seed"])
    given = {"epsilon": float(job["epsilon"]) or 1.0, "delta": DELTA, "noise": "float", "device": "cpu", "threads": 1}
    more = {} if job["method"] == HEADS else {"rounds": ROUNDS[job["network"]], **job["settings"]}
    model = KINDS[job["method"]](body, head, **given, **more)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(task.X, task.y, task.users)
    return accuracy(model, task, names)


def choice_jobs(networks: Sequence[str]) -> list[Job]:
    """Return the tries of every method on the development split, at ε = 1."""
    return [
        {"network": name, "method": m, "settings": s, "share": share, "epsilon": 1.0, "seed": CHOOSING}
        for name in networks
        for share in (0.0, 1.0)
        for m, tries in TRIES.items()
        for s in tries
    ]


def jobs(networks: Sequence[str], seeds: Sequence[int], choice: Sequence[Row]) -> list[Job]:
    """Return all fits with the settings that were chosen; between none and all own names, those of all."""
    return [
        {
            "network": name,
            "method": m,
            "settings": best(choice, name, m, share),
            "share": share,
            "epsilon": "inf" if math.isinf(e) else e,
            "seed": seed,
        }
        for seed in seeds
        for name in networks
        for share in SHARES
        for m in KINDS
        for e in ((0.0,) if m == HEADS else EPSILONS)
    ]


def best(choice: Sequence[Row], name: str, method: str, share: float) -> dict[str, Any]:
    """Return the settings of a method on a network that did best on the development split."""
    own = [r for r in choice if (r["network"], r["method"], r["share"]) == (name, method, float(share > 0))]
    found: dict[str, Any] = max(own, key=lambda r: r["accuracy"])["settings"] if own else {}
    return found


def report(rows: Sequence[Row]) -> str:
    """Return one table per network: methods by the share of users with own names, at each ε."""
    parts = []
    for name in dict.fromkeys(row["network"] for row in rows):
        own = [row for row in rows if row["network"] == name]
        lines = []
        for method, epsilon in dict.fromkeys((row["method"], float(row["epsilon"])) for row in own):
            cells = []
            for share in SHARES:
                seen = [
                    r["accuracy"]
                    for r in own
                    if (r["method"], float(r["epsilon"]), r["share"]) == (method, epsilon, share)
                ]
                spread = f"{np.std(seen):.1f}" if len(seen) > 1 else "one seed"
                cells.append(f"{np.mean(seen):.1f} ({spread})" if seen else "–")
            lines.append([method, "∞" if math.isinf(epsilon) else f"{epsilon:g}", *cells])
        heads = [f"{100 * share:.0f} % have own names" for share in SHARES]
        parts.append(table([f"{name}: method", "ε", *heads], lines))
    return "\n\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--networks", nargs="*", default=[FILTERS, LENET], choices=[FILTERS, LENET])
    parser.add_argument("--seeds", nargs="*", type=int, default=list(SEEDS))
    parser.add_argument("--out", type=Path, help="write rows here as they come")
    options = parser.parse_args()
    if options.quick:
        _quick()
        return
    path = RESULTS / f"{NAME}.json"
    before = json.loads(path.read_text()) if path.is_file() else {"choice": [], "rows": []}
    tried = {row["network"] for row in before["choice"]}
    choice = before["choice"] + several(
        run, choice_jobs([n for n in options.networks if n not in tried]), 1, options.out
    )
    new = several(run, jobs(options.networks, options.seeds, choice), 1, options.out)
    known = {(row["network"], row["seed"]) for row in new}
    rows = [row for row in before["rows"] if (row["network"], row["seed"]) not in known] + new
    keep(NAME, {"choice": choice, "rows": rows}, report(rows), quick=False)


def _quick() -> None:
    """Fit few users on made-up columns."""
    rng = np.random.default_rng(0)
    y = np.arange(400) % 10
    Z = (rng.normal(size=(400, 128)) + 3 * np.eye(10, 128)[y]).astype(np.float32)
    task = Task("quick", Z, y, np.arange(400) // 20, Z, y, [np.arange(400)] * 20)
    rows = []
    for job in jobs([FILTERS], [0], []):
        if job["share"] == 1.0 and job["epsilon"] in (0.0, 1.0):
            job["settings"] = TRIES.get(job["method"], [{}])[0]
            rows.append({**job, "accuracy": measured(job, *renamed(task, job["share"], 0))})
    print(report(rows))


if __name__ == "__main__":
    main()
