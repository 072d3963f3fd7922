"""AMHT-LRS on Jester by its protocol (Pal et al. 2024, A.1.3, Figures 1c and 2c; B.2.2, Figure 6 for networks).

100 users who rated all 100 jokes; of 30 users 10 % of the ratings are training rows, of 40 users 50 %, of 30 users
90 %. Jokes have 50 features: the training ratings are completed under a nuclear-norm penalty, and their right singular
vectors are taken (``Ratings.uncertified_item_features``: private, so nothing here is certified). No noise, no
intercepts, the defaults of every model; root mean squared error on the other ratings. The paper shows figures without
numbers. Which 100 users, and which of their ratings are kept, is drawn anew each time. ``sparsity`` of ``"auto"`` and
numbers beside ``sparsity=0``, on the same rows. Networks get targets on [−1, 1] (the public range is ±10) and features
of size one, because tanh units need numbers of that size.

The features have seen the ratings that users then train on, and no choice that a user makes with these ratings can
know that. So linear models are also run with features that were made in the same way from 100 other users.

``python -m benchmarks.papers.jester [--draws 20] [--networks] [--pieces FILE]`` (``--quick`` for a smoke test on
made-up ratings; a run with the same FILE goes on where it was stopped; networks take 3 draws).
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import data as folder
from benchmarks.tables import RESULTS, Pieces, keep, table
from tacitly import Cohort, FedRep, FullFineTuning, LowRankSparse, PromptLearning, SingleModel, UncertifiedWarning
from tacitly.datasets import Ratings, load_jester
from tacitly.datasets.ratings import ratings_of

USERS, FEATURES = 100, 50
KEPT = {"10 %": (0, 30, 0.1), "50 %": (30, 70, 0.5), "90 %": (70, 100, 0.9)}
MODELS: dict[str, Any] = {
    "single model": lambda: SingleModel(),
    "full fine-tuning": lambda: FullFineTuning(math.inf),
    "prompt learning": lambda: PromptLearning(math.inf),
    "representation learning, r = 1": lambda: FedRep(rank=1),
    "low rank, r = 1, k = 0": lambda: LowRankSparse(1, 0, math.inf),
    **{f"low rank + sparse, r = 1, k = {k}": lambda k=k: LowRankSparse(1, k, math.inf) for k in (1, 2, 3, 4, 5)},
    "low rank + sparse, r = 1, k = auto": lambda: LowRankSparse(1, "auto", math.inf),
}
PLAIN = "low rank, r = 1, k = 0"
CHOSEN = "low rank + sparse, r = 1, k = auto"
APART = {name: MODELS[name] for name in (PLAIN, "low rank + sparse, r = 1, k = 1", CHOSEN)}
PLAIN_RUN = Pieces()
TITLES = {
    "linear": "**Linear models (Figures 1c and 2c)**",
    "apart": "**Linear models, features from the ratings of 100 other users**",
    "networks": "**Networks with 50 tanh units (Figure 6)**",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="made-up ratings, one draw, nothing is kept")
    parser.add_argument("--draws", type=int, help="20 for linear models and 3 for networks unless given")
    parser.add_argument("--networks", action="store_true", help="Figure 6 only; the linear results stay")
    parser.add_argument("--pieces", type=Path, help="a file for models that are done")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", UncertifiedWarning)
    if arguments.quick:
        table_of = np.random.default_rng(0).normal(size=(USERS, 100))
        few = {name: MODELS[name] for name in (PLAIN, CHOSEN)}
        print(text_of({"linear": [errors(table_of, 0, few)]}))
        return
    if not folder.available():
        sys.exit("The data sets were not found. Set TACITLY_DATA to their folder.")
    whole = full_rows()
    kept = RESULTS / "jester.json"
    found = json.loads(kept.read_text(encoding="utf-8")) if kept.is_file() else {}
    data: dict[str, Any] = {part: found[part] for part in TITLES if part in found}
    pieces = Pieces(arguments.pieces)
    if arguments.networks:
        models = networks()
        data["networks"] = [errors(whole, draw, models, 10.0, pieces=pieces) for draw in range(arguments.draws or 3)]
    else:
        draws = range(arguments.draws or 20)
        data["linear"] = [errors(whole, draw, MODELS, pieces=pieces) for draw in draws]
        data["apart"] = [errors(whole, draw, APART, apart=True, pieces=pieces) for draw in draws]
    keep("jester", data, text_of(data), quick=False)


def full_rows() -> np.ndarray:
    """Return the ratings of all users who rated every joke."""
    ratings = load_jester(folder.FOLDER / "jester" / "jester-data-1.csv.zip")
    matrix = np.full((len(ratings.roster), 100), np.nan)
    matrix[np.searchsorted(ratings.roster, ratings.users), ratings.items] = ratings.values
    return matrix[np.isfinite(matrix).all(axis=1)]


def networks() -> dict[str, Any]:
    """Return Figure 6's models: one hidden layer of 50 tanh units, 2 % personal parameters."""
    from tacitly.neural import LowRankSparse as Network
    from tacitly.neural import PromptLearning as Prompt
    from tacitly.neural import full_fine_tuning, representation_learning, single_model

    same: dict[str, Any] = {"hidden": (50,), "rounds": 30, "device": "cpu"}
    return {
        "single model": lambda: single_model(math.inf, **same),
        "full fine-tuning": lambda: full_fine_tuning(math.inf, **same),
        "prompt learning": lambda: Prompt(math.inf, **same),
        "representation learning, r = 1": lambda: representation_learning(1, math.inf, **same),
        "low rank + 2 % sparse": lambda: Network(1, 0.02, math.inf, **same),
    }


def errors(
    whole: np.ndarray,
    draw: int,
    models: dict[str, Any],
    scale: float | None = None,
    *,
    apart: bool = False,
    pieces: Pieces = PLAIN_RUN,
) -> dict[str, dict[str, float]]:
    """Return the error of every model on all held-out ratings, and by how many ratings a user kept.

    With a ``scale``, targets are divided by it for the fit and features have size one. ``apart``: features are made
    from as many ratings of other users.
    """
    rng = np.random.default_rng([4, draw])
    order = rng.permutation(len(whole))
    matrix = whole[order[:USERS]]
    users, items = np.divmod(np.arange(matrix.size), matrix.shape[1])
    train = np.zeros(matrix.shape, dtype=bool)
    for first, last, share in KEPT.values():
        for user in range(first, last):
            train[user, rng.permutation(matrix.shape[1])[: round(share * matrix.shape[1])]] = True
    train = train.ravel()
    source = whole[order[USERS : 2 * USERS]] if apart else matrix
    seen = ratings_of(users[train], items[train], source.ravel()[train], {joke: ("", ()) for joke in range(100)})
    columns, unit = features(seen), 1.0 if scale is None else scale
    if scale is not None:
        columns = columns / np.sqrt(np.mean(np.square(columns), axis=0))
    X, of = columns[items], users[~train]
    cohort = Cohort.from_arrays(X[train], matrix.ravel()[train] / unit, users[train])

    def measured(make: Any) -> dict[str, float]:
        left = unit * make().fit(cohort).predict(X[~train], of) - matrix.ravel()[~train]
        parts = {label: left[(of >= first) & (of < last)] for label, (first, last, _) in KEPT.items()}
        return {label: root_mean_square(part) for label, part in {"all": left, **parts}.items()}

    out = {}
    for name, make in models.items():
        where = ", features of others" if apart else ""
        out[name] = pieces(f"{draw}, {name}{where}", partial(measured, make))
        print(f"draw {draw}, {name}{where}: {out[name]['all']:.3f}", file=sys.stderr, flush=True)
    return out


def features(seen: Ratings) -> np.ndarray:
    return seen.uncertified_item_features(FEATURES)


def root_mean_square(left: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(left))))


def text_of(data: dict[str, Any]) -> str:
    """Return one table per part."""
    parts = []
    for part, title in TITLES.items():
        if part not in data:
            continue
        draws = data[part]
        plain = PLAIN if PLAIN in draws[0] else "representation learning, r = 1"
        rows = []
        for name in draws[0]:
            found = {of: [draw[name][of] for draw in draws] for of in ("all", *KEPT)}
            over = [draw[name]["all"] / draw[plain]["all"] for draw in draws]
            cells = [f"{np.mean(values):.3f} ({np.std(values):.2f})" for values in found.values()]
            error = f" ± {np.std(over, ddof=1) / math.sqrt(len(over)):.3f}" if len(over) > 1 and name != plain else ""
            rows.append([name, *cells, f"{np.mean(over):.3f}{error}", f"{min(over):.3f} to {max(over):.3f}"])
        header = ["model", "all users", *(f"{of} of ratings kept" for of in KEPT), f"over {plain}", "draws between"]
        parts.append(f"{title}, {len(draws)} {'draw' if len(draws) == 1 else 'draws'}\n\n" + table(header, rows))
    return "\n\n".join(parts)


if __name__ == "__main__":
    main()
