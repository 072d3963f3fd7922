"""AMHT-LRS (Pal et al. 2024), B.2: networks U w + b and its four other frameworks on MovieLens, and Table 2's counts.

Three-layer tanh networks (50 and 50 units) on MovieLens latest-small: 610 users, public features of movies (genres and
year), a fifth of each user's ratings held out. Stars are centred at the middle of their public range. Nothing was
tuned on these ratings: rounds, steps and rows are limited by a small machine, the rest are defaults, which were chosen
on synthetic networks or by reasoning.

``python -m benchmarks.papers.neural_low_rank_sparse`` (``--quick`` for a smoke test; ``--counts`` writes the text of
Table 2 anew from the counts of the last run; ``--errors`` keeps these counts and runs the rest).
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
import time
import warnings
from fractions import Fraction
from typing import Any

import numpy as np
import torch

from benchmarks import data as folder
from benchmarks.tables import RESULTS, keep, table
from tacitly import Cohort, UncertifiedWarning
from tacitly.neural import (
    LowRankSparse,
    PromptLearning,
    full_fine_tuning,
    representation_learning,
    single_model,
    synthetic_networks,
)

DELTA = 1e-5
MIDDLE = 2.75  # of the range from half a star to five
RATINGS = 60  # per user, at most
SETTINGS = {"rounds": 10, "rows_per_user": 32, "head_steps": 5, "final_steps": 12, "device": "cpu"}
FRAMEWORKS: dict[str, tuple[str, tuple[str, ...]]] = {
    "single model": ("single", ("inf", "4", "1")),
    "full fine-tuning": ("full", ("inf", "1", "0")),
    "representation learning, r = 1": ("rep 1", ("inf", "1")),
    "prompt learning": ("prompt", ("inf", "1")),
    "low rank + 1 % sparse": ("sparse 1 1", ("inf", "4", "1", "0")),
    "low rank + 20 % sparse": ("sparse 1 20", ("inf",)),
}
# Users, hidden layers, and printed parameter counts; "sparse r p" is rank r with p percent.
PRINTED = {
    "MovieLens": (241, (50, 50), {"single": 5_151, "full": 1_241_391, "rep 1": 5_392, "prompt": 19_701,
                                  "sparse 1 1": 17_924, "sparse 1 5": 67_570, "sparse 1 10": 129_748,
                                  "sparse 1 15": 191_685, "sparse 1 20": 253_863}),
    "Jester": (100, (50,), {"single": 2_601, "full": 260_100, "rep 1": 2_701, "prompt": 10_101, "sparse 1 1": 5_302,
                            "sparse 1 5": 15_706, "sparse 1 10": 28_711, "sparse 1 15": 41_716,
                            "sparse 1 20": 54_721}),
    "Netflix": (1_000, (50,), {"single": 2_601, "full": 2_601_000, "rep 1": 4_601, "rep 2": 9_202, "rep 3": 13_803,
                               "rep 4": 18_404, "rep 5": 23_005, "prompt": 55_101, "sparse 1 1": 30_601,
                               "sparse 2 1": 35_202, "sparse 3 1": 39_803, "sparse 4 1": 44_404,
                               "sparse 5 1": 49_005}),
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small problem, nothing is written")
    parser.add_argument("--counts", action="store_true", help="only the text of Table 2, from the last run's counts")
    parser.add_argument("--errors", action="store_true", help="all but Table 2, whose last counts stay")
    arguments = parser.parse_args()
    quick = arguments.quick
    if arguments.counts:
        counts_again()
        return
    warnings.simplefilter("ignore", UncertifiedWarning)
    torch.set_num_threads(1)
    counts = last_counts() if arguments.errors else parameters(quick)
    parts = {"parameters": counts, "synthetic": synthetic(quick), "movielens": movielens(quick)}
    text = "\n\n".join(part.pop("text") for part in parts.values())
    keep("neural_low_rank_sparse", parts, text, quick=quick)


def framework(method: str, epsilon: float, **settings: Any) -> Any:
    kind, *numbers = method.split()
    sizes = [int(number) for number in numbers]
    makers: dict[str, Any] = {
        "single": lambda: single_model(epsilon, **settings),
        "full": lambda: full_fine_tuning(epsilon, **settings),
        "rep": lambda: representation_learning(sizes[0], epsilon, **settings),
        "prompt": lambda: PromptLearning(epsilon, **settings),
        "sparse": lambda: LowRankSparse(sizes[0], sizes[1] / 100, epsilon, **settings),
    }
    return makers[kind]()


def parameters(quick: bool) -> dict[str, Any]:
    """Count the parameters of fitted models (Table 2)."""
    counts = {}
    for name, (n, hidden, printed) in PRINTED.items():
        settings = {
            "hidden": hidden,
            "rounds": 1,
            "head_steps": 1,
            "final_steps": 1,
            "rows_per_user": 1,
            "cross_fit": False,
        }
        cohort = Cohort.from_arrays(np.zeros((n, 50)), np.zeros(n), np.arange(n))
        for method, expected in printed.items():
            if quick and name != "Jester":
                continue
            fitted = framework(method, math.inf, **settings).fit(cohort)
            counts[f"{name}, {method}"] = [fitted.n_parameters(), expected]
    return {"counts": counts, "text": counts_text(counts)}


def counts_text(counts: dict[str, list[int]]) -> str:
    agree = sum(count == expected for count, expected in counts.values())
    theirs = {name: as_they_count(*name.split(", ")) for name in counts}
    explained = sum(theirs[name] == expected for name, (_, expected) in counts.items())
    text = f"**Table 2, parameters of a model**: {agree} of {len(counts)} as printed, {explained} as the paper counts"
    different = [[*name.split(", "), *both, theirs[name]] for name, both in counts.items() if both[0] != both[1]]
    return text + ".\n\n" + table(["data", "model", "counted", "printed", "as the paper counts"], different)


def as_they_count(data: str, method: str) -> int:
    """Return the count by the three readings that give all printed numbers; the paper's text states none of them.

    A model has r·(P + w·n) + n·s numbers for n users and P parameters. MovieLens: one weight per direction (w = 1), s
    is p % of P, rounded up. Jester: the same, s not rounded (26.01 for 1 %). Netflix: s rounded down, and w = 2, twice
    as many weights as there are users.

    >>> [as_they_count("Netflix", "rep 2"), as_they_count("Jester", "sparse 1 1"), as_they_count("MovieLens", "prompt")]
    [9202, 5302, 19701]
    """
    n, hidden, _ = PRINTED[data]
    sizes = (50, *hidden, 1)
    parameters = sum((a + 1) * b for a, b in itertools.pairwise(sizes))
    kind, *numbers = method.split()
    if kind in ("single", "full"):
        return parameters * (1 if kind == "single" else n)
    if kind == "prompt":  # fifty more inputs, and an embedding of fifty numbers per user
        return parameters + 50 * hidden[0] + 50 * n
    rank, percent = int(numbers[0]), int(numbers[1]) if kind == "sparse" else 0
    weights = 2 if data == "Netflix" else 1
    share = Fraction(percent * parameters, 100)
    own = {"MovieLens": math.ceil(share), "Jester": share, "Netflix": math.floor(share)}[data]
    return int(rank * (parameters + weights * n) + n * own)


def last_counts() -> dict[str, Any]:
    """Return the counts of the last run."""
    kept = (RESULTS / "neural_low_rank_sparse.json").read_text(encoding="utf-8")
    counts = json.loads(kept)["parameters"]["counts"]
    return {"counts": counts, "text": counts_text(counts)}


def counts_again() -> None:
    kept, counts = RESULTS / "neural_low_rank_sparse", last_counts()["counts"]
    rest = kept.with_suffix(".md").read_text(encoding="utf-8").split("\n\n**Synthetic", 1)[1]
    kept.with_suffix(".md").write_text(counts_text(counts) + "\n\n**Synthetic" + rest, encoding="utf-8")


def synthetic(quick: bool) -> dict[str, Any]:
    """Run on synthetic users with networks u w + b: 6 features, 10 units, 4 personal parameters, 40 rows, noise 0.1."""
    n = 20 if quick else 200
    data = synthetic_networks(n, 6, 1, 40, 4, hidden=(10,), noise=0.1, random_state=2000)
    settings = {"hidden": (10,), "rounds": 3 if quick else 15, "device": "cpu"}
    errors = {}
    for name, method in {"single model": "single", "full fine-tuning": "full", "representation learning": "rep 1",
                         "prompt learning": "prompt", "low rank + 5 % sparse": "sparse 1 5"}.items():  # fmt: skip
        errors[name] = [
            data.error(framework(method, epsilon, delta=DELTA, **settings).fit(data.X, data.y, data.users))
            for epsilon in (math.inf, 4.0)
        ]
    rows = [[name, *(f"{value:.3f}" for value in values)] for name, values in errors.items()]
    text = f"**Synthetic networks** ({n} users, 81 parameters, four of them personal; error over that of the mean)\n\n"
    return {"error": errors, "text": text + table(["model", "not private", "ε = 4"], rows)}


def movielens(quick: bool) -> dict[str, Any]:
    """Run on MovieLens latest-small with public features of movies; one draw, standard errors over its users."""
    if quick or not folder.available():
        return {"text": "MovieLens: left out." if quick else "MovieLens: data not found (TACITLY_DATA)."}
    problem = ratings()
    X, y, users, held = problem
    people = len(np.unique(users))
    left: dict[str, dict[str, np.ndarray]] = {}
    sizes, seconds = {}, {}
    for name, (method, epsilons) in FRAMEWORKS.items():
        for label in epsilons:
            left.setdefault(name, {})[label], sizes[name], taken = left_over(problem, method, label)
            seconds[f"{name}, {label}"] = taken
            print(f"{name}, ε = {label}: {root_mean_square(left[name][label]):.3f}", file=sys.stderr, flush=True)
    single, floor = left["single model"], own_means(y, users, held)
    shown, errors, apart, rows = ("inf", "4", "1", "0"), {}, {}, []
    for name, by in left.items():
        errors[name] = {label: root_mean_square(by[label]) for label in by}
        apart[name] = {label: difference(by[label], single[label], users[held]) for label in by if label in single}
        cells = [f"{errors[name][label]:.3f}" if label in by else "–" for label in shown]
        less = ["–" if name == "single model" else f"{mean:+.3f} ± {error:.3f}" for mean, error in
                (apart[name][label] for label in ("inf", "1") if label in apart[name])]  # fmt: skip
        rows.append([name, f"{sizes[name]:,}", *cells, *less, *["–"] * (2 - len(less))])
    rows.append(["each user's mean", f"{people:,}", *"–––", f"{root_mean_square(floor):.3f}", *"––"])
    text = (
        f"**MovieLens latest-small** ({people} users, at most {RATINGS} ratings of each, {X.shape[1]} public "
        f"features, three layers of {LowRankSparse(1, 0, 1.0).hidden} units; root mean squared error in stars on "
        "held-out rows; one draw, standard errors over users; δ = 1e-5, zero-out)\n\n"
    )
    text += table(["model", "parameters", "not private", "ε = 4", "ε = 1", "ε = 0: nothing shared",
                   "minus single model, not private", "ε = 1"], rows)  # fmt: skip
    kept = {"rmse": errors, "over_single": apart, "numbers": sizes, "cpu_seconds": seconds}
    return {**kept, "own_means": root_mean_square(floor), "text": text}


Problem = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def ratings() -> Problem:
    """Return features, centred stars, users and held-out rows; few rows per user, so that one core suffices."""
    X, y, users = folder.movielens().tasks()
    rng, some = np.random.default_rng(0), []
    for user in np.unique(users):
        some.append(np.sort(rng.permutation(np.flatnonzero(users == user))[:RATINGS]))
    rows = np.concatenate(some)
    # Networks have biases and need no column of ones.
    return X[rows][:, 1:], y[rows] - MIDDLE, users[rows], held_out(users[rows])


def left_over(problem: Problem, method: str, label: str) -> tuple[np.ndarray, int, float]:
    """Return a framework's held-out residuals, its number of parameters, and its CPU seconds."""
    X, y, users, held = problem
    train = Cohort.from_arrays(X[~held], y[~held], users[~held], dtype=np.float32)
    settings: dict[str, Any] = {**SETTINGS, "delta": DELTA}
    if label == "0":  # a step of zero: personal parts on the public random start, with nothing shared
        settings.update(rounds=1, step=1e-12)
    began = time.process_time()
    fitted = framework(method, float(label) or math.inf, **settings).fit(train)
    taken = time.process_time() - began
    assert label in ("0", "inf") or fitted.certificate_.certified
    return fitted.predict(X[held], users[held]) - y[held], fitted.n_parameters(), taken


def root_mean_square(left: np.ndarray) -> float:
    return float(np.sqrt(np.mean(left**2)))


def difference(left: np.ndarray, other: np.ndarray, users: np.ndarray) -> tuple[float, float]:
    """Return the difference of two root mean squares, and its standard error over users."""
    _, user = np.unique(users, return_inverse=True)
    by_user = np.bincount(user, left**2 - other**2)
    both = len(left) * max(root_mean_square(left) + root_mean_square(other), 1e-300)  # a² − b² = (a − b)(a + b)
    return float(by_user.sum() / both), float(np.sqrt(len(by_user)) * by_user.std(ddof=1) / both)


def held_out(users: np.ndarray) -> np.ndarray:
    """Choose a fifth of each user's rows, as in the first draw of the linear benchmark."""
    rng = np.random.default_rng(2000)
    held = np.zeros(len(users), dtype=bool)
    for user in np.unique(users):
        mine = np.flatnonzero(users == user)
        held[rng.permutation(mine)[: len(mine) // 5]] = True
    return held


def own_means(y: np.ndarray, users: np.ndarray, held: np.ndarray) -> np.ndarray:
    """Return the residuals of held-out rows from their user's mean."""
    _, user = np.unique(users, return_inverse=True)
    means = np.bincount(user[~held], y[~held]) / np.bincount(user[~held])
    return np.asarray(y[held] - means[user[held]])


if __name__ == "__main__":
    main()
