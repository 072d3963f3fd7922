"""Do low-rank adapters learn what users share? A synthetic language, a public transformer, 2,000 users, ε = 8.

    python -m benchmarks.adapters [--quick] [--choose]

Each word has a topic (four numbers). The public transformer was trained on texts in the standard language. Users write
half of their words in a slang that it has never seen, and each user likes different topics: a user's label for a text
is the sign of the inner product of that user's taste and the mean topic of the words. The meaning of slang is common to
all users; taste is not.

Three methods are compared in one run: only heads on the public transformer, adapters shared at ε = 8 (δ = 1e-6), and
the same without privacy. ``--choose`` tries settings on the language of seed 100; results are for seeds 0, 1 and 2.
"""

from __future__ import annotations

import argparse
import math
import time
import warnings
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from benchmarks.tables import keep, table
from tacitly import neural

WORDS, SLANG, LENGTH, TOPICS, WIDTH = 48, 24, 16, 4, 32
USERS, ROWS, EPSILON, DELTA = 2000, 40, 8.0, 1e-6
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CHOSEN: dict[str, Any] = {"rank": 4, "rounds": 80, "step": 5.0, "local_steps": 1, "local_rate": 0.1}
_ONE, _FIVE = {"local_steps": 1, "local_rate": 0.1}, {"local_steps": 5, "local_rate": 0.5}
OPTIONS: list[dict[str, Any]] = [
    {"rank": rank, "rounds": rounds, "step": step, **steps}
    for rank, rounds, step, steps in (
        *((2, 20, step, steps) for step in (0.5, 1.0) for steps in (_ONE, _FIVE)),
        (2, 40, 0.5, _ONE),
        (2, 60, 5.0, _FIVE),
        *((4, 40, step, _FIVE) for step in (2.0, 5.0)),
        (4, 80, 2.0, _FIVE),
        *((4, rounds, step, _ONE) for rounds, step in ((40, 5.0), (80, 5.0), (80, 10.0))),
    )
]


class Language(NamedTuple):
    """Topics of all words, slang last, and a public body that knows the others."""

    topics: npt.NDArray[np.float32]
    body: nn.Module


class Texts(NamedTuple):
    """Rows of word numbers by user, and the users' labels; half of the rows for tests."""

    X: npt.NDArray[np.float32]
    y: npt.NDArray[np.int64]
    users: npt.NDArray[np.int64]
    test: npt.NDArray[np.bool_]


def language(seed: int, steps: int) -> Language:
    """Return a language and a transformer trained on texts without slang, to say their mean topic."""
    rng = np.random.default_rng(seed)
    topics = rng.normal(size=(WORDS + SLANG, TOPICS)).astype(np.float32)
    torch.manual_seed(seed)
    body = neural.transformer(WORDS + SLANG, LENGTH, width=WIDTH)[0].to(DEVICE)
    top, known = nn.Linear(WIDTH, TOPICS).to(DEVICE), torch.as_tensor(topics, device=DEVICE)
    optimizer = torch.optim.AdamW([*body.parameters(), *top.parameters()], lr=3e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        words = torch.randint(WORDS, (512, LENGTH), device=DEVICE)
        loss = (top(body(words.float())) - LENGTH**0.5 * known[words].mean(1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return Language(topics, body.cpu().eval().requires_grad_(False))


def texts(of: Language, users: int, seed: int) -> Texts:
    """Return every user's texts, half of whose words are slang, with labels by that user's taste."""
    rng = np.random.default_rng(1000 + seed)
    rows = 2 * ROWS * users
    slang = rng.random((rows, LENGTH)) < 0.5
    words = np.where(
        slang, rng.integers(WORDS, WORDS + SLANG, (rows, LENGTH)), rng.integers(WORDS, size=(rows, LENGTH))
    )
    ids, tastes = np.repeat(np.arange(users), 2 * ROWS), rng.normal(size=(users, TOPICS))
    labels = (of.topics[words].mean(1) * tastes[ids]).sum(1) > 0
    return Texts(words.astype(np.float32), labels.astype(np.int64), ids, np.arange(rows) % 2 == 1)


def accuracy(of: Language, given: Texts, epsilon: float | None, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the test accuracy, mean over users (all have the same number of rows), in percent; None: heads alone."""
    torch.manual_seed(0)
    head = nn.Linear(WIDTH, 2)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    rank, rest = settings["rank"], {key: value for key, value in settings.items() if key != "rank"}
    started = time.perf_counter()
    common: dict[str, Any] = {"delta": DELTA, "noise": "float", "device": DEVICE, "rows_per_user": ROWS}
    if epsilon is None:
        model: neural.Centaur = neural.LocalHeads(of.body, head, epsilon=1.0, **common)
    else:
        model = neural.Centaur(neural.adapters(of.body, rank), head, epsilon=epsilon, **common, **rest)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(given.X[~given.test], given.y[~given.test], given.users[~given.test])
    guessed = model.predict(given.X[given.test], given.users[given.test])
    learned = sum(value.numel() for value in model.body.parameters() if value.requires_grad)
    right = 100.0 * float(np.mean(guessed == given.y[given.test]))
    return {"accuracy": right, "parameters": learned, "seconds": time.perf_counter() - started}


def choose(users: int) -> None:
    """Print accuracies of all options on a language that is not reported."""
    of = language(100, 1500)
    given = texts(of, users, 100)
    print("heads alone", accuracy(of, given, None, CHOSEN), flush=True)
    for settings in OPTIONS:
        print(settings, *(accuracy(of, given, epsilon, settings) for epsilon in (EPSILON, math.inf)), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--choose", action="store_true")
    options = parser.parse_args()
    if options.choose:
        choose(USERS)
        return
    users, steps, seeds = (8, 5, (0,)) if options.quick else (USERS, 1500, (0, 1, 2))
    settings = {**CHOSEN, "rounds": 1} if options.quick else CHOSEN
    rows = []
    for seed in seeds:
        of = language(seed, steps)
        given = texts(of, users, seed)
        for method, epsilon in (("heads alone", None), ("adapters", EPSILON), ("adapters", math.inf)):
            found = accuracy(of, given, epsilon, settings)
            shown = "0" if epsilon is None else "∞" if math.isinf(epsilon) else f"{epsilon:g}"
            rows.append({"method": method, "epsilon": shown, "seed": seed, **found})
            print(rows[-1], flush=True)
    data = {"rows": rows, "settings": settings, "users": users, "rows_per_user": ROWS, "device": DEVICE}
    keep("adapters", data, report(rows), quick=options.quick)


def report(rows: list[dict[str, Any]]) -> str:
    """Return accuracies and, of what sharing gains without privacy, the part that is left with it."""
    kinds = list(dict.fromkeys((row["method"], row["epsilon"]) for row in rows))
    values = {kind: [row["accuracy"] for row in rows if (row["method"], row["epsilon"]) == kind] for kind in kinds}
    alone, _, free = (np.array(values[kind]) for kind in kinds)
    lines = []
    for kind in kinds:
        parts = (np.array(values[kind]) - alone) / (free - alone)
        shown = "" if kind == kinds[0] else f"{100 * parts.mean():.0f} % ({100 * parts.std():.0f})"
        lines.append([*kind, f"{np.mean(values[kind]):.1f} ({np.std(values[kind]):.1f})", shown])
    return table(["method", "ε", "accuracy, mean (spread) over seeds", "part of the gain without privacy"], lines)


if __name__ == "__main__":
    main()
