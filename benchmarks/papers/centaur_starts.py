"""CENTAUR's Table 1 on CIFAR-10 with few learned parameters, from five starts, at ε = 1, δ = 1e-5.

    python -m benchmarks.papers.centaur_starts [--quick] [--starts NAME ...] [--features] [--workers N]

The network is the paper's LeNet (the last start: :func:`tacitly.neural.conv_features`). Its layers up to the first
hidden one are fixed; the next is public principal directions (over synthetic images) followed by a private layer that
has one unit per class beside the directions (``free``) or replaces them (``paper``). A start is where the fixed part
comes from:

* *random numbers*: PyTorch's initial values, other ones for every seed;
* *random filters*: random convolutions without a mean; the first hidden layer holds principal directions of what they
  see in synthetic images, in both signs. No data set is used;
* *synthetic images*: contrastive training on synthetic images (:func:`tacitly.neural.contrast`);
* *CIFAR-100* and *CIFAR-100, deeper*: trained on 30,000 labelled images of CIFAR-100, which are public here.

Settings of every method on every start are the best of ``TRIES`` on a development split: users of seed 7, tested on the
tenth of the *training* images that no user has. Results are those of seeds 0, 1 and 2 on the test images. The deeper
start takes the settings of CIFAR-100's. What ``SEARCHED`` adds was tried after results of the first list had been seen.

``--features`` only computes what the fixed parts see (:func:`kept_features`), for a machine that has no images.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from benchmarks import images
from benchmarks.papers.centaur import (
    CACHE,
    DEVICE,
    PRETRAINING,
    Task,
    accuracies,
    fitted,
    free_layer,
    paper_layer,
    public_start,
)
from benchmarks.papers.public_labels import train
from benchmarks.several import Job, Row, several
from benchmarks.tables import RESULTS, keep, table
from tacitly import neural
from tacitly.datasets.shards import class_shards

STARTS = ("random numbers", "random filters", "synthetic images", "CIFAR-100", "CIFAR-100, deeper")
OWN = STARTS[:2]  # starts with random numbers, which differ from seed to seed
TASKS = ((500, 5), (1000, 2), (1000, 5))
SEEDS, CHOOSING = (0, 1, 2), 7
EPSILONS, SWEPT = (0.25, 0.5, 1.0, 2.0, 4.0), ("random filters", "CIFAR-100")
WIDEST = 320
KINDS: dict[str, type[neural.Centaur]] = {
    "heads alone": neural.LocalHeads,
    "DP-FedAvg": neural.FedAvg,
    "PMTL": neural.MeanRegularised,
    "PPSGD": neural.TwoHeads,
    "CENTAUR": neural.Centaur,
    "one common head in rounds": neural.Centaur,
}
LOCAL, GENTLE = {"local_steps": 5, "local_rate": 0.5}, {"local_steps": 5, "local_rate": 0.1}
HEADS, SLOW, FEW = {"head_steps": 3, **LOCAL}, {"step": 1.0}, {"rounds": 5}
Try = tuple[str, dict[str, Any]]
"""A layer (its kind, how many directions heads see, 64 if nothing is said, and how many there are), and settings."""


def _both(layers: Sequence[str], settings: Sequence[dict[str, Any]]) -> list[Try]:
    return [(layer, one) for layer in layers for one in settings]


_GENTLY, _PPSGD = [GENTLE, {**GENTLE, **SLOW}], [{"head_steps": 1, **LOCAL}, {"head_steps": 1, **GENTLE}]
TRIES: dict[str, list[Try]] = {
    "CENTAUR": [
        ("paper 64", HEADS),
        *_both(["free 64", "free 128"], [HEADS, {**HEADS, **SLOW}, {**HEADS, **FEW}]),
        ("free 64", {**HEADS, **SLOW, "rounds": 20}),
    ],
    "one common head in rounds": _both(
        ["free 64", "free 128"], [{"head_steps": 0, **LOCAL}, {"head_steps": 0, **LOCAL, **SLOW}]
    ),
    "DP-FedAvg": _both(["paper 64", "free 64"], _GENTLY),
    "PMTL": _both(["paper 64", "free 64"], _GENTLY),
    "PPSGD": _both(["paper 64", "free 64"], _PPSGD),
}
_WIDE = ["free 128", "free 192", "free 256"]
SEARCHED: dict[str, dict[str, list[Try]]] = {
    "random numbers": {
        "CENTAUR": [
            *_both([*_WIDE, "free 128 128", "free 128 192", "free 320"], [{**HEADS, **FEW}, {**HEADS, "rounds": 3}]),
            ("free 192", {**HEADS, **SLOW}),
        ],
        "DP-FedAvg": _both(_WIDE, [{**GENTLE, **SLOW}, {**GENTLE, **SLOW, **FEW}]),
        "PMTL": _both(_WIDE, [{**GENTLE, **SLOW}, {**GENTLE, **SLOW, **FEW}]),
        "PPSGD": _both(_WIDE, [{"head_steps": 1, **GENTLE}, {"head_steps": 1, **LOCAL, **FEW}]),
    },
    "random filters": {
        "DP-FedAvg": _both(["free 128"], _GENTLY),
        "PMTL": _both(["free 128"], _GENTLY),
        "PPSGD": _both(["free 128"], _PPSGD),
    },
}
PRINTED: dict[str, tuple[float, ...]] = {
    "CIFAR-10, n=500, S=5": (50.0, 46.2, 49.4, 48.7, 53.2),
    "CIFAR-10, n=1000, S=2": (74.1, 57.0, 67.8, 71.5, 76.2),
    "CIFAR-10, n=1000, S=5": (44.6, 37.2, 36.0, 44.6, 49.9),
}
"""Table 1 of the paper: stand-alone, DP-FedAvg, PMTL, PPSGD and CENTAUR, all from random numbers."""


def fixed_part(start: str, seed: int, quick: bool = False) -> nn.Module:
    """Return the part of the network that is not learned."""
    torch.manual_seed(100 + seed)
    if start == "synthetic images":
        return public_start("lenet", 1, quick).body[0]  # type: ignore[index,no-any-return]
    deep, widths = start.endswith("deeper"), (4, 4, 32, 8) if quick else (64, 64, 384, 32)
    body = neural.conv_features() if deep else nn.Sequential(*list(neural.lenet(widths=widths)[0])[:10])
    if start == "random filters":
        _directions_of_filters(body, 100 if quick else 8000)
    if start.startswith("CIFAR-100"):
        _load_trained(body, CACHE / f"cifar100-{'deep' if deep else 'lenet'}.npz", epochs=40 if deep else 150)
    return body.requires_grad_(False).eval()


@torch.no_grad()
def _directions_of_filters(body: nn.Sequential, scenes: int) -> None:
    """Set convolutions to random filters without a mean, and the hidden layer to directions of what they see."""
    for layer in body:
        if isinstance(layer, nn.Conv2d) and layer.bias is not None:
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            layer.weight -= layer.weight.mean((1, 2, 3), keepdim=True)
            layer.bias.zero_()
    hidden = body[8]
    assert isinstance(hidden, nn.Linear)
    half = neural.public_directions(body[:8], hidden.out_features // 2, images=scenes, device=DEVICE)
    hidden.weight.copy_(torch.cat([half.weight, -half.weight]))
    hidden.bias.copy_(torch.cat([half.bias, -half.bias]))


def _load_trained(body: nn.Module, path: Path, epochs: int) -> None:
    """Load the body's values after training on CIFAR-100, from a file if there is one."""
    if not path.is_file():
        train(body, epochs, DEVICE)
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(path, **{name: value.numpy() for name, value in body.state_dict().items()})
    stored = np.load(path)
    body.load_state_dict({name: torch.as_tensor(stored[name]) for name in stored.files})


def directions(
    start: str, seed: int, data: images.Images, width: int = WIDEST, quick: bool = False
) -> npt.NDArray[np.float32]:
    """Return all images, training then test, in public directions of the fixed part."""
    body = fixed_part(start, seed, quick)
    layer = neural.public_directions(body, width, images=100 if quick else 20_000, device=DEVICE)
    features = neural.Features(nn.Sequential(body, layer), device=DEVICE, rows=100 if quick else 2000)
    return np.concatenate([features(images.rows(X)) for X in (data.X, data.test_X)]).astype(np.float32)


def kept_features(start: str, seed: int, width: int = 128) -> tuple[images.Images, npt.NDArray[np.float32]]:
    """Return the labels of CIFAR-10 and all images in public directions, from a file if there is one."""
    path = CACHE / f"cifar10 {start} {seed}.npz"
    if not path.is_file():
        data = images.cifar10()
        path.parent.mkdir(parents=True, exist_ok=True)
        Z = directions(start, seed, data, width).astype(np.float16)
        np.savez(path, Z=Z, y=data.y.astype(np.uint8), test_y=data.test_y.astype(np.uint8))
    stored, no_images = np.load(path), np.zeros((0, 3, 32, 32), dtype=np.uint8)
    y, test_y = (stored[name].astype(np.int64) for name in ("y", "test_y"))
    return images.Images(no_images, y, no_images, test_y), stored["Z"].astype(np.float32)


def deal(
    data: images.Images, Z: npt.NDArray[np.float32], n: int, classes: int, seed: int, title: str = "CIFAR-10"
) -> Task:
    """Return the paper's allocation; the development split is tested on training images that no user has."""
    rng = np.random.default_rng(1000 + seed)
    mixed = [rng.permutation(np.flatnonzero(data.y == c)) for c in range(int(data.y.max()) + 1)]
    train_rows = np.concatenate([mine[: int(0.9 * len(mine))] for mine in mixed])
    dealt = class_shards(data.y[train_rows], n, classes, random_state=seed)
    chosen = train_rows[dealt.rows]
    by_class = [mine[int(0.9 * len(mine)) :] for mine in mixed]
    if seed != CHOOSING:
        by_class = [len(data.y) + np.flatnonzero(data.test_y == c) for c in range(len(mixed))]
    tested, labels = np.concatenate(by_class), np.concatenate([data.y, data.test_y])
    places = np.zeros(len(Z), dtype=np.int64)
    places[tested] = np.arange(len(tested))
    test_rows = [places[np.concatenate([by_class[c] for c in own])] for own in dealt.classes]
    ids = np.repeat(np.arange(n), chosen.shape[1])
    name = f"{title}, n={n}, S={classes}"
    return Task(name, Z[chosen.ravel()], labels[chosen.ravel()], ids, Z[tested], labels[tested], test_rows)


def accuracy(task: Task, method: str, one: Try, epsilon: float) -> float:
    """Return the test accuracy in percent, mean over users."""
    kind, *sizes = one[0].split()
    width, seen = int(sizes[-1]), int(sizes[0]) if len(sizes) > 1 else min(64, int(sizes[-1]))
    cut = task._replace(X=task.X[:, :width].copy(), test_X=task.test_X[:, :width].copy())
    make = (lambda: paper_layer(width)) if kind == "paper" else (lambda: free_layer(width, kept=seen))
    return fitted(cut, make, KINDS[method], epsilon, **one[1])[0]


@cache
def _kept(start: str, seed: int) -> tuple[images.Images, npt.NDArray[np.float32]]:
    return kept_features(start, seed, WIDEST if start == "random numbers" else 128)


def run(job: Job) -> list[Row]:
    """Fit one model; return its row."""
    torch.set_num_threads(1)
    data, Z = _kept(job["start"], job["seed"] if job["start"] in OWN and job["seed"] != CHOOSING else 0)
    task = deal(data, Z, job["n"], job["S"], job["seed"])
    known = "CENTAUR" if job["method"].startswith("FedRep") else job["method"]
    epsilon = 1.0 if job["epsilon"] == 0.0 else float(job["epsilon"])  # heads alone spend nothing
    value = accuracy(task, known, (job["layer"], job["settings"]), epsilon)
    return [{**job, "task": task.name, "accuracy": value}]


def choices(start: str) -> list[Job]:
    """Return all settings on the development split, both allocations of the first two tasks."""
    return [
        {"start": start, "method": m, "layer": layer, "settings": s, "epsilon": 1.0, "n": n, "S": c, "seed": CHOOSING}
        for m, tries in TRIES.items()
        for layer, s in [*tries, *SEARCHED.get(start, {}).get(m, [])]
        for n, c in TASKS[:2]
    ]


def chosen(rows: Sequence[Row]) -> list[Row]:
    """Return one row per setting, with the accuracies of both allocations."""
    named = [{key: row[key] for key in ("start", "method", "layer", "settings")} for row in rows]
    pairs = zip(named[::2], rows[::2], rows[1::2], strict=True)
    return [{**name, "accuracy": [first["accuracy"], second["accuracy"]]} for name, first, second in pairs]


def best_of(choice: Sequence[dict[str, Any]], start: str, method: str) -> Try:
    """Return the layer and settings with the largest sum of accuracies on the development split."""
    known = "CIFAR-100" if start.endswith("deeper") else start
    rows = [row for row in choice if (row["start"], row["method"]) == (known, method)]
    best = max(rows, key=lambda row: sum(row["accuracy"]))
    return best["layer"], best["settings"]


def results(start: str, choice: Sequence[Row]) -> list[Job]:
    """Return all methods at ε = 1 and FedRep without privacy, on all tasks and seeds."""
    found = []
    for n, classes in TASKS:
        for seed in SEEDS:
            for method in (*KINDS, "FedRep, no privacy"):
                known = "CENTAUR" if method in ("heads alone", "FedRep, no privacy") else method
                layer, settings = best_of(choice, start, known)
                epsilon = "inf" if method.startswith("FedRep") else 0.0 if method == "heads alone" else 1.0
                given = {} if method == "heads alone" else settings
                job = {"start": start, "method": method, "epsilon": epsilon, "layer": layer, "settings": given}
                found.append({**job, "n": n, "S": classes, "seed": seed})
    return found


def sweep(start: str, choice: Sequence[Row]) -> list[Job]:
    """Return Figure 1: accuracy against ε, with the settings that were chosen at ε = 1, seed 0."""
    n, classes = TASKS[0]
    found = []
    for epsilon in EPSILONS:
        for method in list(KINDS)[1:]:
            layer, settings = best_of(choice, start, method)
            job = {"start": start, "method": method, "epsilon": epsilon, "layer": layer, "settings": settings}
            found.append({**job, "n": n, "S": classes, "seed": 0})
    return found


def against_epsilon(rows: Sequence[dict[str, Any]]) -> str:
    """Return the sweep as a table: one line per start and ε."""
    methods = list(KINDS)[1:]
    values = {(row["start"], row["epsilon"], row["method"]): f"{row['accuracy']:.1f}" for row in rows}
    starts = list(dict.fromkeys(row["start"] for row in rows))
    lines = [[start, f"{e:g}", *(values[start, e, method] for method in methods)] for start in starts for e in EPSILONS]
    return table([f"{rows[0]['task']}, seed 0: start", "ε", *methods], lines)


def ahead(rows: Sequence[Row]) -> str:
    """Return by how much CENTAUR is ahead of each other method: the mean over seeds, and each seed's difference."""
    tasks, lines = list(dict.fromkeys(row["task"] for row in rows)), []
    for start in dict.fromkeys(row["start"] for row in rows):
        for other in ("DP-FedAvg", "PMTL", "PPSGD"):
            cells = []
            for task in tasks:
                one, two = (
                    {r["seed"]: r["accuracy"] for r in rows if (r["start"], r["task"], r["method"]) == (start, task, m)}
                    for m in ("CENTAUR", other)
                )
                apart = [one[seed] - two[seed] for seed in sorted(one.keys() & two.keys())]
                mean, *each = (f"{round(value, 1) + 0.0:+.1f}" for value in [np.mean(apart or [0.0]), *apart])
                cells.append(f"{mean} ({', '.join(each)})" if apart else "–")
            lines.append([f"{start}: CENTAUR − {other}", *cells])
    return table(["points, mean (each seed)", *tasks], lines)


def report(found: dict[str, Any]) -> str:
    """Return two tables, never mixed: without any data set, beside the paper's numbers; and from a public start."""
    rows = [{**row, "method": f"{row['start']}: {row['method']}"} for row in found["rows"]]
    own, public = ([row for row in rows if (row["start"] in OWN) == mine] for mine in (True, False))
    ends = (
        f"Mean over users, then mean (standard deviation) over seeds; zero-out ε. {found['device']}.",
        "Stand-alone LeNets, 100 users of seed 0, momentum 0.9, rate 0.01: "
        + "; ".join(f"n={r['n']}, S={r['S']}, {r['steps']:,} steps {r['accuracy']:.1f}" for r in found["alone"])
        + ".",
    )
    tables = [accuracies(own, PRINTED), *([accuracies(public)] if public else [])]
    swept = [against_epsilon(found["sweep"])] if found["sweep"] else []
    return "\n\n".join([*tables, " ".join(ends[: 1 + bool(found["alone"])]), *swept, ahead(found["rows"])])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--starts", nargs="*", default=list(STARTS), choices=STARTS)
    parser.add_argument("--features", action="store_true")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--out", type=Path, help="write rows here as they come")
    options = parser.parse_args()
    if options.quick:
        _quick()
        return
    if options.features:
        for start in options.starts:
            for seed in SEEDS if start in OWN else SEEDS[:1]:
                _kept(start, seed)
        return
    path = RESULTS / "centaur_starts.json"
    empty: dict[str, Any] = {"choice": [], "rows": [], "sweep": [], "alone": []}
    found = {**empty, **(json.loads(path.read_text()) if path.is_file() else {})}
    for start in options.starts:
        if not start.endswith("deeper"):
            kept = [row for row in found["choice"] if row["start"] != start]
            found["choice"] = kept + chosen(several(run, choices(start), options.workers, options.out))
        kept = [row for row in found["rows"] if row["start"] != start]
        found["rows"] = kept + several(run, results(start, found["choice"]), options.workers, options.out)
        if start in SWEPT:
            kept = [row for row in found["sweep"] if row["start"] != start]
            found["sweep"] = kept + several(run, sweep(start, found["choice"]), options.workers, options.out)
        found |= {"device": torch.cuda.get_device_name() if DEVICE == "cuda" else "CPU", "pretraining": PRETRAINING}
        keep("centaur_starts", found, report(found), quick=False)


def _quick() -> None:
    """Run one method of one start on a few images."""
    rng = np.random.default_rng(0)
    y = np.arange(400) % 10
    X = (rng.uniform(size=(400, 3, 32, 32)) * 60 + 19 * y[:, None, None, None]).astype(np.uint8)
    data = images.Images(X[:300], y[:300], X[300:], y[300:])
    task = deal(data, directions("random filters", 0, data, 16, quick=True), 10, 2, 0)
    value = accuracy(task, "CENTAUR", ("free 16", {**HEADS, "rounds": 2}), 1.0)
    row = {"start": "random filters", "task": task.name, "seed": 0, "method": "CENTAUR", "epsilon": 1.0}
    print(report({"rows": [{**row, "accuracy": value}], "sweep": [], "alone": [], "device": DEVICE}))


if __name__ == "__main__":
    main()
