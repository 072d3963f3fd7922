"""CENTAUR (Shen et al. 2023), Table 1 and Figure 1: shared bodies and private heads at ε from 0.25 to 4, δ = 1e-5.

Two tables, never mixed: from random numbers, the paper's world, and from a public start, ours.

From random numbers (``--only random``, which measures what is not in the results yet). The paper's LeNet with the
authors' settings (``mode="paper"``: 200 rounds, clip 0.01, warm heads, weight decay; heads see mirror images too), and
:func:`tacitly.neural.image_network`, whose fixed part needs no data either. Settings of the second are those that the
development set chose for the public start.

Public start. All methods start from the paper's LeNet after contrastive training on synthetic images
(:func:`tacitly.neural.contrast`), which uses no image of any data set. Convolutions and the first hidden layer are
frozen; the second hidden layer (384 → 32, factored into public directions and a private matrix) and the heads are
learned. Test accuracy is the mean over users on all test images of a user's classes, after the last round.

Choice of settings. Settings of every method are the best of ``TRIES`` on a development set: Fashion-MNIST objects,
training images for its users and *test* images for its tests, pasted onto synthetic images (``--choose`` writes that
table, which the comparison reads). No CIFAR-10 image was used to choose among the options. But the list of options is
not independent of CIFAR-10: five local steps were added to it after test accuracies there had been seen (kept as
``earlier``), first at rate 0.5 and then also at rate 0.1, with which the strongest baseline had done well. They were
added for all methods. The Fashion-MNIST column is not independent of the choice at all.

    python -m benchmarks.papers.centaur [--quick] [--choose] [--only PART ...] [--tasks NAME ...]

``--only lenet-starts``: what heads reach on a LeNet that was not learned at all, with and without the noise of 200
rounds, which shows how much of Algorithm 2's accuracy users' rows have brought.

Tasks whose data are missing are left out, and tasks that are not run keep their results. Without a GPU the experiment
is small (a short public start, one seed, MNIST writers) and its results are kept separately, as ``centaur_cpu``.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import time
import warnings
from collections.abc import Callable, Collection, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from benchmarks import images
from benchmarks.tables import IMAGES, RESULTS, keep, table, today
from tacitly import neural
from tacitly.datasets.shards import class_shards
from tacitly.neural.engine.executor import Block, Executor
from tacitly.neural.engine.flat import Flat
from tacitly.neural.engine.local_training import LocalTraining
from tacitly.neural.engine.update import UserUpdate
from tacitly.privacy.accounting import mu_of

DELTA = 1e-5
EPSILONS = (0.25, 0.5, 1.0, 2.0, 4.0)
SEEDS = (0, 1, 2)
DIRECTIONS, WIDTH = 64, 32
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CACHE = Path(os.environ.get("TACITLY_CACHE", Path.home() / ".cache" / "tacitly"))
LONG = {"lenet": 6000, "deep": 2500}  # steps
PRETRAINING = LONG if DEVICE == "cuda" else {"lenet": 60, "deep": 30}
BATCH = 2048 if DEVICE == "cuda" else 128


class Task(NamedTuple):
    """Users, their rows, and each user's test rows."""

    name: str
    X: npt.NDArray[np.float32]
    y: npt.NDArray[np.int64]
    users: npt.NDArray[np.int64]
    test_X: npt.NDArray[np.float32]
    test_y: npt.NDArray[np.int64]
    test_rows: list[npt.NDArray[np.int64]]


class Public(NamedTuple):
    """A frozen public part and its width."""

    body: nn.Module
    directions: int


def shards(
    name: str, data: images.Images, n: int, classes: int, seed: int, share: float = 0.9, distinct: bool = True
) -> Task:
    """Return 90 % of the training rows, with S classes per user, and all test rows of those.

    Without ``distinct`` a user may draw a class twice, which then counts twice in training rows and tests.
    """
    rng = np.random.default_rng(1000 + seed)
    kept = []
    for c in range(int(data.y.max()) + 1):
        mine = rng.permutation(np.flatnonzero(data.y == c))
        kept.append(mine[: int(share * len(mine))])
    train = np.concatenate(kept)
    dealt = class_shards(data.y[train], n, classes, distinct=distinct, random_state=seed)
    chosen = train[dealt.rows]
    by_class = [np.flatnonzero(data.test_y == c) for c in range(int(data.y.max()) + 1)]
    test = [np.concatenate([by_class[c] for c in own]) for own in dealt.classes]
    ids = np.repeat(np.arange(n), chosen.shape[1])
    X, test_X = images.rows(data.X[chosen.ravel()]), images.rows(data.test_X)
    return Task(f"{name}, n={n}, S={classes}", X, data.y[chosen.ravel()], ids, test_X, data.test_y, test)


def writers(name: str, data: images.Images, seed: int) -> Task:
    """Return one user per writer: nine tenths of a writer's images for training, the rest for testing."""
    assert data.users is not None
    X, y, authors = data.X, data.y, np.unique(data.users, return_inverse=True)[1]
    rng = np.random.default_rng(seed)
    held = np.zeros(len(y), dtype=bool)
    for i in range(authors.max() + 1):
        mine = rng.permutation(np.flatnonzero(authors == i))
        held[mine[: max(1, len(mine) // 10)]] = True
    test = np.flatnonzero(held)
    test_rows = [np.flatnonzero(authors[test] == i) for i in range(authors.max() + 1)]
    return Task(name, images.rows(X[~held]), y[~held], authors[~held], images.rows(X[test]), y[test], test_rows)


def public_start(which: str, directions: int, quick: bool) -> Public:
    """Return a body trained on synthetic images, cached in a file, and its public directions."""
    torch.manual_seed(0)
    body = nn.Sequential(*list(neural.lenet()[0])[:10]) if which == "lenet" else neural.conv_features()
    path = CACHE / f"{which}-{LONG[which]}.npz"  # from a machine with a GPU, if there is one
    path = path if path.is_file() else CACHE / f"{which}-{PRETRAINING[which]}.npz"
    if path.is_file():
        stored = np.load(path)
        body.load_state_dict({name: torch.as_tensor(stored[name]) for name in stored.files})
    elif quick:
        neural.contrast(body, steps=2, batch=16, scenes=64)
    else:
        neural.contrast(
            body, steps=PRETRAINING[which], batch=BATCH, scenes=100_000 if DEVICE == "cuda" else 4_000, device=DEVICE
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(path, **{name: value.numpy() for name, value in body.state_dict().items()})
    layer = neural.public_directions(
        body, directions, images=200 if quick else 20_000 if DEVICE == "cuda" else 2_000, device=DEVICE
    )
    return Public(nn.Sequential(body, layer).eval(), directions)


def through(public: Public, task: Task) -> Task:
    """Apply the public part, which all methods share, to all rows."""
    body = public.body.to(DEVICE)
    with torch.no_grad():
        seen = [
            np.concatenate(
                [body(torch.as_tensor(X[i : i + 2000]).to(DEVICE)).cpu().numpy() for i in range(0, len(X), 2000)]
            )
            for X in (task.X, task.test_X)
        ]
    return task._replace(X=seen[0], test_X=seen[1])


def paper_layer(directions: int, classes: int = 10) -> tuple[nn.Sequential, nn.Linear]:
    """Return the paper's second hidden layer: one unit per class starts at zero, the others copy directions."""
    layer = nn.Linear(directions, WIDTH)
    with torch.no_grad():
        layer.weight.zero_()
        layer.weight[classes:, : WIDTH - classes] = torch.eye(WIDTH - classes)
        layer.bias.fill_(3.0)  # three standard deviations above zero, so that ReLU passes the directions' values
    return nn.Sequential(layer, nn.ReLU()), neural.identity_head(WIDTH, classes)


def free_layer(directions: int, classes: int = 10, kept: int | None = None) -> tuple[nn.Sequential, nn.Linear]:
    """Return the recommended private layer: one learned unit per class beside the public directions themselves."""
    kept = directions // 2 if kept is None else kept
    layer = neural.LinearWithSkip(directions, classes, kept)
    return nn.Sequential(layer), neural.identity_head(classes + kept, classes)


COMMON = "one common head in rounds"
METHODS: dict[str, type[neural.Centaur]] = {
    "heads alone (nothing shared)": neural.LocalHeads,
    "DP-FedAvg + local heads": neural.FedAvg,
    "PMTL": neural.MeanRegularised,
    "PPSGD": neural.TwoHeads,
    "CENTAUR": neural.Centaur,
    COMMON: neural.Centaur,  # no user fits a head before the last round: federated averaging of the layer
}
LOCAL, GENTLE = {"local_steps": 5, "local_rate": 0.5}, {"local_steps": 5, "local_rate": 0.1}
OPTIONS: list[dict[str, Any]] = [{}, {"step": 1.0}, LOCAL, {**LOCAL, "step": 1.0}, GENTLE, {**GENTLE, "step": 1.0}]
TRIES: dict[str, list[dict[str, Any]]] = {
    "DP-FedAvg + local heads": OPTIONS,
    "PMTL": OPTIONS,
    "PPSGD": [{"head_steps": h, **more} for h in (1, 5) for more in OPTIONS],
    "CENTAUR": [{"head_steps": 3, **more} for more in OPTIONS],
    COMMON: [{"head_steps": 0, **more} for more in OPTIONS],
    f"recommended layer, {COMMON}": [{"head_steps": 0, **more} for more in OPTIONS],
}
CHOICE = "centaur_choice"
CHOSEN: dict[str, dict[str, Any]] = {  # the best of each on the development set, as --choose wrote it
    "heads alone (nothing shared)": {},
    **json.loads((RESULTS / f"{CHOICE}.json").read_text())["best"],
}


def fitted(
    task: Task,
    make: Callable[[], tuple[nn.Module, nn.Module]],
    kind: type[neural.Centaur],
    epsilon: float,
    **settings: Any,
) -> tuple[float, Any]:
    """Return the test accuracy in percent, mean over users, and the model."""
    body, head = make()
    model = kind(body, head, epsilon=epsilon, delta=DELTA, noise="float", device=DEVICE, **settings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(task.X, task.y, task.users)
    return accuracy(model, task), model


def accuracy(model: Any, task: Task) -> float:
    features = model._features(task.test_X)
    width = features.shape[1]
    right = []
    for head, held, mine in zip(model.heads_, model.held_, task.test_rows, strict=True):
        classes = len(head) // (width + 1)
        scores = features[mine] @ head[: width * classes].reshape(classes, width).T + head[width * classes :]
        guesses = np.where(held > 0, scores, -np.inf).argmax(1)
        right += [np.mean(guesses == task.test_y[mine])] if len(mine) else []
    return 100.0 * float(np.mean(right))


def from_scratch(task: Task, steps: int, rate: float = 0.05, momentum: float = 0.0) -> float:
    """Return the accuracy of stand-alone LeNets: each user trains one on its own rows, from a random start."""
    torch.manual_seed(0)
    body, head = neural.lenet()
    counts = np.bincount(task.users)
    taken = {"local_steps": steps, "local_rate": rate, "local_momentum": momentum, "batch_rows": 18, "head_steps": 0}
    training = LocalTraining(rows=int(counts.max()), **taken)  # type: ignore[arg-type]
    update = UserUpdate(body=Flat(body), head=Flat(head), training=training, classes=10, shared="both")
    executor = Executor(update, device=DEVICE, chunk=64)
    start = torch.cat([update.body.start, update.head.start])
    offsets = np.append(0, np.cumsum(counts)).astype(np.int64)
    tested = torch.as_tensor(task.test_X).to(DEVICE)
    own = [np.unique(task.y[a:b]) for a, b in itertools.pairwise(offsets)]
    right, done = [], 0
    public = start.cpu().numpy().astype(np.float64)
    for part, users in executor.chunks(Block(public, task.X, task.y.astype(np.float32), offsets, 0)):
        for i in range(users):
            vector, rows = part[i] + start, task.test_rows[done][:: max(1, len(task.test_rows[done]) // 400)]
            with torch.no_grad():
                scores = update.head(vector[update.body.size :], update.body(vector[: update.body.size], tested[rows]))
            guess = own[done][scores[:, own[done]].argmax(1).cpu().numpy()]
            right.append(np.mean(guess == task.test_y[rows]))
            done += 1
    return 100.0 * float(np.mean(right))


PAPER = {
    **{"mode": "paper", "clip": 0.01, "rounds": 200, "local_rate": 0.01, "head_rate": 0.01},
    **{"local_decay": 1e-4, "head_decay": 1e-4, "tf32": True, "chunk": 125},
}
"""The authors' settings: a step on all rows per round, fifteen epochs of the head."""


def from_random(task: Task, seed: int, lenets: bool, known: Collection[tuple[str, int, str]]) -> list[dict[str, Any]]:
    """Return accuracies that start from random numbers: the paper's LeNet, and the network for images.

    Those of (task, seed, method) that are ``known`` are left out. DP-FedAvg, PMTL and PPSGD on the network for images
    are in :mod:`benchmarks.papers.centaur_table1`.
    """
    found = []

    def note(
        method: str,
        given: Callable[[], Task],
        make: Callable[[], Any],
        kind: type[neural.Centaur],
        epsilon: float,
        **settings: Any,
    ) -> None:
        if (task.name, seed, method) in known:
            return
        value = fitted(given(), make, kind, epsilon, **settings)[0]
        shown = 0.0 if kind is neural.LocalHeads else plain(epsilon)
        row = {"task": task.name, "seed": seed, "method": method, "epsilon": shown, "accuracy": value}
        found.append({**row, "device": torch.cuda.get_device_name() if DEVICE == "cuda" else "CPU"})
        print(found[-1], flush=True)

    if lenets:
        torch.manual_seed(100 + seed)
        network, most = neural.lenet(), int(np.bincount(task.users).max())
        views = {"augment": neural.Views((3, 32, 32)), "rows_per_user": most}
        note("LeNet: CENTAUR, Algorithm 2", lambda: task, lambda: network, neural.Centaur, 1.0, **PAPER, **views)
    grey = task.X.shape[1] == 784
    body, head = neural.image_network(10, (1, 28, 28) if grey else (3, 32, 32))
    *fixed, learned = body
    seen = cache(lambda: through(Public(nn.Sequential(*fixed), 0), task))  # once, for all methods
    name, images_of, own = "image_network: ", (nn.Sequential(learned), head), CHOSEN["CENTAUR"]
    for method, kind in METHODS.items():
        if method in ("heads alone (nothing shared)", "CENTAUR", COMMON):
            settings = CHOSEN[method] if method != COMMON else {"head_steps": 0}
            note(name + method, seen, lambda: images_of, kind, 1.0, **settings)
    default = name + "CENTAUR, default settings"
    note(default, seen, lambda: images_of, neural.Centaur, 1.0)
    note(f"{default}, warm heads", seen, lambda: images_of, neural.Centaur, 1.0, warm_heads=True)
    note(name + "FedRep, no privacy", seen, lambda: images_of, neural.Centaur, math.inf, **own)
    return found


def add_random(names: Sequence[str]) -> None:
    """Add the accuracies from random numbers that are not in the results yet, those of LeNets on a GPU only.

    The rest of the results stays as it is, and so does what they say of their machine: new rows name their own.
    """
    path = RESULTS / "centaur.json"
    found = json.loads(path.read_text())
    for name in names:
        if name == "fashion-mnist":
            continue
        grey = name == "mnist-writers"
        make = (lambda seed: writers("MNIST writers", images.mnist_writers(), seed)) if grey else task_of(name)
        for seed in SEEDS:
            known = {(row["task"], row["seed"], row["method"]) for row in found["random"]}
            new = from_random(make(seed), seed, DEVICE == "cuda" and not grey and seed == 0, known)
            found["random"] += [{**row, "date": today()} for row in new]
            path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
            path.with_suffix(".md").write_text(report(found) + "\n", encoding="utf-8")


def lenet_starts(users: int = 200) -> list[dict[str, Any]]:
    """Return what heads alone reach on a LeNet that nobody's rows have moved: as it starts, and after noise alone.

    The noise is that of the authors' 200 rounds with all users, in one draw; heads are fitted by ``users`` of them.
    """
    found = []
    for name in TASKS[:2]:
        task = task_of(name)(0)
        n, mine = int(task.users.max()) + 1, task.users < users
        few = task._replace(X=task.X[mine], y=task.y[mine], users=task.users[mine], test_rows=task.test_rows[:users])
        rounds, clip = int(PAPER["rounds"]), float(PAPER["clip"])
        deviation = rounds * clip / (n * mu_of(1.0, DELTA))  # √T rounds of σ = √T/μ clips, divided by n
        for start, scale in (("at its random start", 0.0), ("after the noise of 200 rounds alone", deviation)):
            torch.manual_seed(100)
            body, head = neural.lenet()
            size = math.sqrt(sum(float(p.detach().square().sum()) for p in body.parameters()))
            moved = 0.0
            with torch.no_grad():
                for p in body.parameters():
                    step = scale * torch.randn_like(p)
                    p += step
                    moved = math.hypot(moved, float(step.norm()))
            seen = through(Public(body, 0), few)
            make = lambda head=head: (nn.Sequential(nn.Identity()), head)  # noqa: E731
            value = fitted(seen, make, neural.LocalHeads, 1.0)[0]
            row = {"task": task.name, "start": start, "users": users, "norm": size, "noise": moved, "accuracy": value}
            found.append({**row, "seed": 0, "device": DEVICE, "date": today()})
            print(found[-1], flush=True)
    return found


def pasted(seed: int = 0) -> images.Images:
    """Return the development set: Fashion-MNIST objects in random colours, sizes and positions on synthetic images.

    Its test images are made from Fashion-MNIST's test images.
    """
    found = images.fashion_mnist()
    parts = []
    for number, (X, y) in enumerate(((found.X, found.y), (found.test_X, found.test_y))):
        generator = torch.Generator(device=DEVICE).manual_seed(seed + number)
        ground = neural.synthetic_images(len(X), seed=seed + 500 + number, device=DEVICE)
        blocks = []
        for i in range(0, len(X), 5000):
            x = torch.as_tensor(X[i : i + 5000].copy()).to(DEVICE).float()[:, None] / 255
            blocks.append(_on(ground[i : i + 5000], x, generator))
        parts += [torch.cat(blocks).cpu().numpy(), y]
    return images.Images(*parts)


def _on(ground: torch.Tensor, objects: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    count = len(objects)

    def uniform(*shape: int) -> torch.Tensor:
        return torch.rand(*shape, generator=generator, device=objects.device)

    size, angle = 0.75 + 0.5 * uniform(count), 0.6 * (uniform(count) - 0.5)
    mirror = torch.where(uniform(count) < 0.5, -1.0, 1.0)
    turn = torch.zeros(count, 2, 3, device=objects.device)
    turn[:, 0, 0], turn[:, 0, 1] = mirror * angle.cos() * size, -angle.sin() * size
    turn[:, 1, 0], turn[:, 1, 1] = mirror * angle.sin() * size, angle.cos() * size
    turn[:, :, 2] = 0.4 * (uniform(count, 2) - 0.5)
    grid = nn.functional.affine_grid(turn, [count, 1, 32, 32], align_corners=False)
    seen = nn.functional.grid_sample(objects, grid, align_corners=False)
    noise = torch.randn(count, 4, 1, 1, generator=generator, device=objects.device)
    colour = (0.45 + 0.25 * noise[:, :1] + 0.11 * noise[:, 1:]).clamp(0.05, 1.0)
    cover = seen.clamp(0, 1).sqrt()
    picture = ground * (1 - cover) + cover * colour * (0.5 + 0.7 * seen)
    return (picture.clamp(0, 1) * 255).byte()


def choose() -> dict[str, Any]:
    """Try every method's settings on the development set with two allocations at ε = 1; return all and the best."""
    data = pasted()
    tasks = [shards("pasted", data, n, s, 7, share=0.75) for n, s in ((500, 5), (1000, 2))]
    plain, rich = (public_start("lenet", width, False) for width in (DIRECTIONS, 2 * DIRECTIONS))
    seen = {public.directions: [through(public, task) for task in tasks] for public in (plain, rich)}
    rows = []
    for method, tries in TRIES.items():
        width = 2 * DIRECTIONS if method.startswith("recommended") else DIRECTIONS
        make = free_layer if method.startswith("recommended") else paper_layer
        for settings in tries:
            kind = METHODS.get(method, neural.Centaur)
            found = [fitted(task, partial(make, width), kind, 1.0, **settings)[0] for task in seen[width]]
            rows.append({"method": method, "settings": settings, "accuracy": found})
            print(rows[-1], flush=True)
    best = {m: max((r for r in rows if r["method"] == m), key=lambda r: sum(r["accuracy"]))["settings"] for m in TRIES}
    return {"rows": rows, "best": best}


def plain(epsilon: float) -> float | str:
    """Return ε in a form that JSON can represent."""
    return "inf" if math.isinf(epsilon) else epsilon


TASKS = ("cifar10-5", "cifar10-2", "fashion-mnist", "mnist-writers")


def task_of(name: str) -> Callable[[int], Task]:
    """Return a task as a function of its seed; raise FileNotFoundError if its data are missing."""
    if name.startswith("cifar10"):
        cifar, (n, classes) = images.cifar10(), ((500, 5) if name.endswith("5") else (1000, 2))
        return lambda seed: shards("CIFAR-10", cifar, n, classes, seed)
    found = images.fashion_mnist() if name == "fashion-mnist" else images.mnist_writers()
    found = found._replace(X=images.as_colour(found.X), test_X=images.as_colour(found.test_X))
    if name == "fashion-mnist":
        return lambda seed: shards("Fashion-MNIST", found, 1000, 5, seed)
    return lambda seed: writers("MNIST writers", found, seed)


def compare(
    tasks: Sequence[Callable[[int], Task]], seeds: Sequence[int], public: Public, rich: Public
) -> list[dict[str, Any]]:
    """Run every method on every task at ε = 1, and the non-private counterparts."""
    found = []
    for make_task in tasks:
        for seed in seeds:
            raw = make_task(seed)
            classes = int(raw.y.max()) + 1
            task = through(public, raw)

            def note(method: str, epsilon: float, value: float, task: Task = task, seed: int = seed) -> None:
                found.append(
                    {"task": task.name, "seed": seed, "method": method, "epsilon": plain(epsilon), "accuracy": value}
                )
                print(found[-1], flush=True)

            layer = lambda classes=classes: paper_layer(DIRECTIONS, classes)  # noqa: E731
            for method, kind in METHODS.items():
                epsilon = 0.0 if kind is neural.LocalHeads else 1.0
                note(method, epsilon, fitted(task, layer, kind, 1.0, **CHOSEN[method])[0])
            note(
                "CENTAUR, warm heads",
                1.0,
                fitted(task, layer, neural.Centaur, 1.0, warm_heads=True, **CHOSEN["CENTAUR"])[0],
            )
            for method, twin in (("FedRep", "CENTAUR"), ("FedAvg", "DP-FedAvg + local heads")):
                value = fitted(task, layer, METHODS[twin], math.inf, **CHOSEN[twin])[0]
                note(f"{method}, no privacy", math.inf, value)
            wide = through(rich, raw)
            free = lambda classes=classes: free_layer(rich.directions, classes)  # noqa: E731
            for method, chosen in (("CENTAUR", "CENTAUR"), (COMMON, f"recommended layer, {COMMON}")):
                value = fitted(wide, free, neural.Centaur, 1.0, **CHOSEN[chosen])[0]
                note(f"recommended layer, {method}", 1.0, value)
    return found


def sweep(task: Task, public: Public) -> list[dict[str, Any]]:
    """Return Figure 1: accuracy against ε, with the ε of both adjacencies."""
    found = []
    seen = through(public, task)
    for epsilon in EPSILONS:
        for method, kind in METHODS.items():
            value, model = fitted(seen, lambda: paper_layer(DIRECTIONS), kind, epsilon, **CHOSEN[method])
            both = {}
            if kind is not neural.LocalHeads:
                both = {"zero_out": model.certificate_.epsilon, "replace_one": model.certificate_.epsilon_replace_one}
            found.append({"task": task.name, "method": method, "epsilon": epsilon, "accuracy": value, **both})
            print(found[-1], flush=True)
    return found


def report(found: dict[str, Any]) -> str:
    """Return the tables: mean and standard deviation over seeds; from the public start, then from random numbers."""
    rows = found["compare"]
    parts = [accuracies(rows)]
    alone = "; ".join(f"{task}: {value:.1f}" for task, value in found.get("scratch", {}).items())
    notes = [f"Stand-alone LeNets from a random start (400 steps of 18 rows, seed 0): {alone}."] if alone else []
    notes.append(
        f"Mean over users, then mean (standard deviation) over {len({row['seed'] for row in rows})} seeds; δ = 1e-5; "
        f"ε is zero-out (ε = 1 is 2.15 replace-one). {found.get('device', DEVICE)}."
    )
    parts.append(" ".join(notes))
    if swept := found.get("sweep"):
        kinds = list(dict.fromkeys(row["method"] for row in swept))
        both = {row["epsilon"]: row["replace_one"] for row in swept if "replace_one" in row}
        values = {(row["epsilon"], row["method"]): f"{row['accuracy']:.1f}" for row in swept}
        lines = [[f"{e:g} / {both[e]:.2f}", *(values[e, kind] for kind in kinds)] for e in both]
        parts.append(table([f"{swept[0]['task']}: ε (zero-out / replace-one)", *kinds], lines))
    if found.get("random"):
        parts.append(accuracies(found["random"], PRINTED))
    if starts := found.get("lenet_starts"):
        lines = [
            [f"LeNet {r['start']}, {r['task']}", f"{r['norm']:.1f}", f"{r['noise']:.1f}", f"{r['accuracy']:.1f}"]
            for r in starts
        ]
        header = f"heads alone of {starts[0]['users']} users, on a body that no rows have moved"
        parts.append(table([header, "norm of the start", "norm of the noise", "accuracy"], lines))
    return "\n\n".join(parts)


PRINTED = {
    "CIFAR-10, n=500, S=5": (50.0, 46.2, 49.4, 48.7, 53.2),
    "CIFAR-10, n=1000, S=2": (74.1, 57.0, 67.8, 71.5, 76.2),
}
"""Table 1 of the paper: stand-alone, DP-FedAvg, PMTL, PPSGD and CENTAUR, all from random numbers."""


def accuracies(rows: Sequence[dict[str, Any]], printed: dict[str, tuple[float, ...]] | None = None) -> str:
    """Return one line per method, one column per task; with the paper's own numbers first, if given."""
    tasks, seeds = list(dict.fromkeys(row["task"] for row in rows)), len({row["seed"] for row in rows})
    lines = []
    for i, method in enumerate(("stand-alone", "DP-FedAvg", "PMTL", "PPSGD", "CENTAUR") if printed else ()):
        cells = [f"{printed[task][i]:.1f}" if printed and task in printed else "–" for task in tasks]
        lines.append([f"as printed: {method}", "0" if i == 0 else "1", *cells])
    for method, epsilon in dict.fromkeys((row["method"], float(row["epsilon"])) for row in rows):
        cells = []
        for task in tasks:
            values = [row["accuracy"] for row in rows if (row["task"], row["method"]) == (task, method)]
            spread = f"{np.std(values):.1f}" if len(values) > 1 else "one seed"
            spread += f", {len(values)} seeds" if 1 < len(values) < seeds else ""
            cells.append(f"{np.mean(values):.1f} ({spread})" if values else "–")
        lines.append([method, "∞" if math.isinf(epsilon) else f"{epsilon:g}", *cells])
    return table(["method", "ε", *tasks], lines)


def plot(rows: Sequence[dict[str, Any]]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axis = plt.subplots(figsize=(6, 4))
    for method in dict.fromkeys(row["method"] for row in rows):
        line = [row for row in rows if row["method"] == method]
        axis.plot([row["epsilon"] for row in line], [row["accuracy"] for row in line], marker="o", label=method)
    axis.set(xscale="log", xlabel="ε (zero-out, δ = 1e-5)", ylabel="test accuracy, %", title=rows[0]["task"])
    axis.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(IMAGES / "centaur.png", dpi=110)


def synthetic_task(seed: int) -> Task:
    """Return a tiny task for ``--quick``, whose classes are brightness levels."""
    rng = np.random.default_rng(seed)
    y = rng.integers(10, size=300)
    X = (rng.uniform(size=(300, 3, 32, 32)) * 60 + 19 * y[:, None, None, None]).astype(np.uint8)
    return shards("synthetic", images.Images(X[:200], y[:200], X[200:], y[200:]), 10, 2, seed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--choose", action="store_true")
    parser.add_argument("--only", nargs="*", default=["compare", "sweep", "scratch"])
    parser.add_argument("--tasks", nargs="*", default=list(TASKS if DEVICE == "cuda" else TASKS[3:]), choices=TASKS)
    options = parser.parse_args()
    if options.choose:
        chosen = choose()
        header = ["method", "settings", "n=500, S=5", "n=1000, S=2"]
        rows = [[r["method"], json.dumps(r["settings"]), *(f"{a:.1f}" for a in r["accuracy"])] for r in chosen["rows"]]
        keep(CHOICE, chosen, table(header, rows), quick=False)
        return
    if options.only == ["random"]:
        add_random(options.tasks)
        return
    if options.only == ["lenet-starts"]:
        path = RESULTS / "centaur.json"
        known = json.loads(path.read_text()) | {"lenet_starts": lenet_starts()}
        path.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
        path.with_suffix(".md").write_text(report(known) + "\n", encoding="utf-8")
        return
    started = time.time()
    public = public_start("lenet", DIRECTIONS, options.quick)
    rich = public_start("lenet", 2 * DIRECTIONS, options.quick)
    if options.quick:
        print(report({"compare": compare([synthetic_task], [0], public, rich)}))
        return
    tasks = {}
    for name in options.tasks:
        try:
            tasks[name] = task_of(name)
        except FileNotFoundError:
            print(f"{name}: data not found")
    name = "centaur" if DEVICE == "cuda" else "centaur_cpu"
    path = RESULTS / f"{name}.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    if "compare" in options.only:
        new = compare(list(tasks.values()), SEEDS if DEVICE == "cuda" else SEEDS[:1], public, rich)
        again = {row["task"] for row in new}
        found["compare"] = [row for row in found.get("compare", []) if row["task"] not in again] + new
    cifar = {key: make for key, make in tasks.items() if key.startswith("cifar10") and DEVICE == "cuda"}
    if "sweep" in options.only and "cifar10-5" in cifar:
        found["sweep"] = sweep(cifar["cifar10-5"](0), public)
    if "scratch" in options.only and cifar:
        found["scratch"] = {make(0).name: from_scratch(make(0), 400) for make in cifar.values()}
    found["settings"] = {"delta": DELTA, "directions": DIRECTIONS, "chosen": CHOSEN, "pretraining_steps": PRETRAINING}
    found["device"] = torch.cuda.get_device_name() if DEVICE == "cuda" else "CPU"
    found["seconds"] = time.time() - started
    keep(name, found, report(found), quick=False)
    if "sweep" in options.only and "cifar10-5" in cifar:
        plot(found["sweep"])


if __name__ == "__main__":
    main()
