"""CENTAUR (Shen et al. 2023) with more rounds: Table 3 (T = 400), Table 2 (clips), Figure 3 (ε while training).

    python -m benchmarks.papers.centaur_rounds [--quick] [--only PART ...] [--workers N] [--out FILE]

CIFAR-10 by :mod:`benchmarks.papers.centaur_starts`' *random filters*: no data set is used for what is fixed, and few
parameters are learned. Filters are those of seed 0; users are those of seeds 0, 1 and 2. δ = 1e-5.

* Table 3: 400 rounds at ε = 1. Step lengths (and, for CENTAUR, warm heads) are the best of ``OPTIONS`` on the
  development split of n = 1000, S = 5: users of seed 7, tested on training images that no user has.
* Table 2: the clip out of the paper's four that is best for each ε, with the authors' settings (``mode="paper"``, 200
  rounds) on the same network; on the development split. Choosing a clip by looking is not paid for in the paper; the
  last column is our default, which scales every update to norm one, so that there is nothing to choose.
* Figure 3: accuracy of the public body after t of the 400 rounds, with heads fitted to it, against the ε of t rounds.
  Accuracy is a function of private rows: a curve like this is for whoever holds the rows.
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
import torch

from benchmarks import images
from benchmarks.papers.centaur import DELTA, DEVICE, PAPER, Task, free_layer
from benchmarks.papers.centaur import accuracy as accuracy_of
from benchmarks.papers.centaur_starts import CHOOSING, KINDS, SEEDS, deal, kept_features
from benchmarks.several import Job, Row, several
from benchmarks.tables import IMAGES, keep, table
from tacitly import neural
from tacitly.privacy.accounting import compose

START, WIDTH, ROUNDS = "random filters", 128, 400
TASKS = ((1000, 2), (1000, 5))
EPSILONS, CLIPS = (0.25, 0.5, 1.0, 2.0, 4.0), (0.01, 0.02, 0.04, 0.06)
CHECKPOINTS = (1, 2, 5, 10, 20, 50, 100, 200, 300, 400)
STEPS = (0.02, 0.05, 0.1)
_GENTLE, _STRONG = {"local_steps": 5, "local_rate": 0.1}, {"local_steps": 5, "local_rate": 0.5}
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "DP-FedAvg": [{**_GENTLE, "step": step} for step in STEPS],
    "PMTL": [{**_GENTLE, "step": step} for step in STEPS],
    "PPSGD": [{"head_steps": 1, **_GENTLE, "step": step} for step in STEPS],
    "CENTAUR": [
        {"head_steps": 3, **_STRONG, "step": step, "warm_heads": warm} for step in STEPS for warm in (False, True)
    ],
}


@cache
def _task(n: int, classes: int, seed: int, quick: bool) -> Task:
    if quick:
        return _few_users(n, classes, seed)
    return deal(*kept_features(START, 0), n, classes, seed)


def run(job: Job) -> list[dict[str, Any]]:
    """Fit one model; return a row, or one row per checkpoint."""
    torch.set_num_threads(1 if job["quick"] else 2)
    task = _task(job["n"], job["S"], job["seed"], job["quick"])
    body, head = free_layer(task.X.shape[1])
    settings, kind = dict(job["settings"]), KINDS[job["method"]]
    shared = {"epsilon": float(job["epsilon"]), "delta": DELTA, "noise": "float", "device": DEVICE}
    model, seen = kind(body, head, **shared, **settings), []

    def watch(name: str) -> None:
        number = int(name.rsplit(" ", 1)[1])
        if number - 1 in job.get("checkpoints", ()):
            seen.append((number - 1, model.so_far()))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(task.X, task.y, task.users, on_release=watch)
        rows = [{**_shown(job), "accuracy": accuracy_of(model, task)}]
        if not job.get("checkpoints"):
            return rows
        spent, curve = model.certificate_.releases, {**_shown(job), "part": "figure 3"}
        rows.append({**rows[0], **curve, "round": len(spent), "spent": model.certificate_.epsilon})
        for number, (middle, top) in seen:
            alone = neural.LocalHeads(middle, top, **shared).fit(task.X, task.y, task.users)
            cost = compose([release.event for release in spent[:number]], model._budget().adjacency, DELTA)
            rows.append({**curve, "accuracy": accuracy_of(alone, task), "round": number, "spent": cost})
    return rows


def _shown(job: Job) -> dict[str, Any]:
    return {key: value for key, value in job.items() if key not in ("quick", "checkpoints")}


def choices(quick: bool) -> list[Job]:
    """Return the fits on the development split: all options of Table 3, and Table 2."""
    rounds = 4 if quick else ROUNDS
    base = {"seed": CHOOSING, "quick": quick}
    found = [
        {**base, "part": "choice", "n": n, "S": s, "method": m, "epsilon": 1.0, "settings": {**one, "rounds": rounds}}
        for m, several in OPTIONS.items()
        for one in several
        for n, s in TASKS[1:]
    ]
    return found[-1:] if quick else found


def clips(quick: bool) -> list[Job]:
    """Return the fits of Table 2."""
    kept = {key: value for key, value in PAPER.items() if key not in ("clip", "chunk", "tf32")}
    paper = {**kept, "rounds": 4 if quick else 200}
    ours = {"head_steps": 3, **_STRONG, "rounds": 5}  # as centaur_starts chose
    base = {"part": "clips", "n": 500, "S": 5, "seed": CHOOSING, "quick": quick, "method": "CENTAUR"}
    found = [
        {**base, "epsilon": e, "clip": given.get("clip"), "settings": given}
        for e in EPSILONS
        for given in (*({**paper, "clip": clip} for clip in CLIPS), ours)
    ]
    return found[:1] if quick else found


def results(choice: Sequence[dict[str, Any]], quick: bool) -> list[Job]:
    """Return the fits of Table 3 and Figure 3, with the settings that were best on the development split."""
    found: list[Job] = []
    for method in dict.fromkeys(row["method"] for row in choice):
        sums: dict[str, float] = {}
        for row in choice:
            if row["method"] == method:
                key = json.dumps(row["settings"], sort_keys=True)
                sums[key] = sums.get(key, 0.0) + row["accuracy"]
        settings = json.loads(max(sums, key=lambda key: sums[key]))
        for n, classes in TASKS:
            for seed in SEEDS[:1] if quick else SEEDS:
                job = {"n": n, "S": classes, "seed": seed, "quick": quick, "method": method, "settings": settings}
                curve = {"checkpoints": CHECKPOINTS[:-1]} if (classes, seed) == (5, 0) else {}
                found.append({**job, "part": "table 3", "epsilon": 1.0, **curve})
                if method == "CENTAUR":
                    found.append({**job, "part": "table 3", "epsilon": "inf"})
    return found


def report(rows: Sequence[dict[str, Any]], device: str) -> str:
    """Return Table 3, Table 2 and Figure 3's numbers."""
    parts = []
    if third := [row for row in rows if row["part"] == "table 3"]:
        rounds = third[0]["settings"]["rounds"]
        parts.append(_table_3(third))
        parts.append(f"{rounds} rounds, mean (standard deviation) over seeds; zero-out ε = 1, δ = 1e-5. {device}.")
    if second := [row for row in rows if row["part"] == "clips"]:
        parts.append(_table_2(second))
    if curve := [row for row in rows if row["part"] == "figure 3"]:
        parts.append(_figure_3(curve))
    return "\n\n".join(parts)


def _table_3(rows: Sequence[dict[str, Any]]) -> str:
    printed = json.loads((Path(__file__).parent / "printed.json").read_text())["CENTAUR"]["table3"]
    lines = []
    for method, epsilon in dict.fromkeys((row["method"], row["epsilon"]) for row in rows):
        cells = []
        for n, classes in TASKS:
            found = [
                r["accuracy"]
                for r in rows
                if (r["method"], r["epsilon"], r["n"], r["S"]) == (method, epsilon, n, classes)
            ]
            value, spread = printed[f"CIFAR-10, n={n}, S={classes}"].get(method, ("–", "–"))
            cells.append(f"{np.mean(found):.1f} ({np.std(found):.1f})" if found else "–")
            cells.append(f"{value} ({spread})" if epsilon == 1.0 else "–")
        name = method if epsilon == 1.0 else "FedRep, no privacy"
        lines.append([name, *cells])
    return table(["method", *(f"n={n}, S={s}: {who}" for n, s in TASKS for who in ("ours", "printed"))], lines)


def _table_2(rows: Sequence[dict[str, Any]]) -> str:
    lines = []
    for epsilon in dict.fromkeys(row["epsilon"] for row in rows):
        by_clip = {row["settings"].get("clip"): row["accuracy"] for row in rows if row["epsilon"] == epsilon}
        known = [clip for clip in CLIPS if clip in by_clip]
        best = max(known, key=lambda clip: by_clip[clip]) if known else "–"
        cells = [f"{by_clip[clip]:.1f}" if clip in by_clip else "–" for clip in (*CLIPS, None)]
        lines.append([f"{epsilon:g}", *cells[:-1], best, cells[-1]])
    return table(["ε", *(f"clip {clip}" for clip in CLIPS), "best clip", "default: norm one, 5 rounds"], lines)


def _figure_3(rows: Sequence[dict[str, Any]]) -> str:
    methods = list(dict.fromkeys(row["method"] for row in rows))
    cost = {row["round"]: row["spent"] for row in rows}
    value = {(row["round"], row["method"]): f"{row['accuracy']:.1f}" for row in rows}
    lines = [
        [number, f"{cost[number]:.3f}", *(value.get((number, m), "–") for m in methods)] for number in sorted(cost)
    ]
    return table(["rounds so far", "ε so far", *methods], lines)


def plot(rows: Sequence[dict[str, Any]]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    curve = [row for row in rows if row["part"] == "figure 3"]
    figure, axis = plt.subplots(figsize=(6, 4))
    for method in dict.fromkeys(row["method"] for row in curve):
        line = sorted((row["spent"], row["accuracy"]) for row in curve if row["method"] == method)
        axis.plot(*zip(*line, strict=True), marker="o", label=method)
    axis.set(xlabel="ε spent so far (zero-out, δ = 1e-5)", ylabel="test accuracy, %", title="CIFAR-10, n=1000, S=5")
    axis.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(IMAGES / "centaur_rounds.png", dpi=110)


def _few_users(n: int, classes: int, seed: int) -> Task:
    """Return a small task on made-up features for ``--quick``."""
    rng = np.random.default_rng(seed)
    y = np.arange(2000) % 10
    Z = rng.normal(size=(3000, 16)).astype(np.float32)
    Z[:, :10] += 2.0 * np.eye(10, dtype=np.float32)[np.concatenate([y, y[:1000]])]
    none = np.zeros((0, 1), dtype=np.uint8)
    return deal(images.Images(none, y, none, y[:1000]), Z, min(n, 20), classes, seed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", nargs="*", default=["table 3", "clips"])
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--out", type=Path, help="write rows here as they come")
    parser.add_argument("--read", type=Path, help="make the tables of such a file; fit nothing")
    options = parser.parse_args()
    rows: list[Row] = []
    if options.read:
        rows = [json.loads(line) for line in options.read.read_text().splitlines()]
    else:
        if "table 3" in options.only:
            rows += several(run, choices(options.quick), options.workers, options.out)
            rows += several(run, results(rows, options.quick), options.workers, options.out)
        if "clips" in options.only:
            rows += several(run, clips(options.quick), options.workers, options.out)
    on_gpu = torch.cuda.get_device_name() if DEVICE == "cuda" else os.environ.get("TACITLY_DEVICE", "CPU")
    keep("centaur_rounds", {"rows": rows, "device": on_gpu}, report(rows, on_gpu), quick=options.quick)
    if not options.quick:
        plot(rows)


if __name__ == "__main__":
    main()
