"""Ratings: the private recommender compared with alternatives, on the same split and the same true ε.

``python -m benchmarks.ratings`` runs MovieLens latest-small and Jester from the folder of data sets;
``python -m benchmarks.ratings FOLDER`` runs any MovieLens (100k, 1M, 10M, 20M, 25M, latest) or Jester table of your
own. ``--epsilon 1 --epsilon 4`` chooses budgets, ``--splits`` the number of splits for averages, ``--fast`` leaves out
the slow baselines, ``--set jester`` runs one set, ``--only DPALS`` measures some methods again, ``--quick`` is a smoke
test on generated ratings. A fifth of each user's ratings is held out. Results of your own folder are stored under its
name. ``python -m benchmarks.like_ml_1m FOLDER`` writes a folder like MovieLens 1M, with synthetic ratings.

The unit of privacy is the user with all ratings, δ = 1e-6, zero-out. NDCG counts held-out ratings above the lowest as
gains, among all items that the user has not rated. The recommender's constants were chosen on generated ratings of
other seeds. The shrinkage of tastes and of factors of plays was written after looking at MovieLens latest-small, so its
rows are slightly optimistic.
"""

from __future__ import annotations

import argparse
import json
import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import tacitly
from benchmarks import data as folder
from benchmarks.tables import RESULTS, keep, table
from tacitly.arrays import Array
from tacitly.baselines.recommenders import ItemMeans, PrivateALS, PrivateSGD, private_popularity
from tacitly.data.cohort import Cohort
from tacitly.datasets import Ratings, load_jester, load_movielens, make_ratings
from tacitly.datasets.rating_scores import coverage, held_out, ndcg, recall, rmse, rmse_by_popularity

K = 10
EDGES = (20, 100, 500)


@dataclass(frozen=True)
class Problem:
    """Ratings with a split: users are their positions."""

    name: str
    ratings: Ratings
    low: float
    high: float
    users: np.ndarray
    test: np.ndarray

    @property
    def features(self) -> Array | None:
        """Public features of items, if there are any."""
        found = self.ratings.catalogue_features
        return found if found.shape[1] else None

    def train(self) -> Cohort:
        """Return the ratings that are not held out."""
        rows = ~self.test
        X = self.ratings.items[rows][:, None].astype(np.float64)
        return Cohort.from_arrays(X, self.ratings.values[rows], self.users[rows])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="*", type=Path, help="a MovieLens folder or a Jester table")
    parser.add_argument("--set", default="", help="of the sets that are run without folders, this one")
    parser.add_argument("--epsilon", action="append", type=float)
    parser.add_argument("--splits", type=int, default=1)
    parser.add_argument("--fast", action="store_true", help="leave out MixedEffects, ALS, DPALS and DP-SGD")
    parser.add_argument("--only", default="", help="methods whose name contains this; other rows are kept")
    parser.add_argument("--quick", action="store_true", help="a smoke test on generated ratings; nothing is kept")
    options = parser.parse_args()
    epsilons = options.epsilon or [1.0, 4.0]
    kept = RESULTS / "ratings.json"
    sets: dict[str, Any] = json.loads(kept.read_text())["sets"] if kept.exists() and not options.quick else {}
    for name, load in chosen(options.folders, quick=options.quick).items():
        if options.set not in ("", name):
            continue
        fast = options.fast or options.quick
        kept_rows = sets[name]["methods"] if options.only and name in sets else {}
        sets[name] = measured(name, load, epsilons, options.splits, kept_rows, fast=fast, only=options.only)
        keep("ratings", {"sets": sets}, report(sets), quick=options.quick)


def chosen(folders: Sequence[Path], *, quick: bool) -> dict[str, Callable[[], tuple[Ratings, float, float]]]:
    """Return what to load, by name."""
    if quick:
        return {"generated": lambda: (make_ratings(400, 50, random_state=0), 1.0, 5.0)}
    if folders:
        return {path.name: lambda path=path: loaded(path) for path in folders}  # type: ignore[misc]
    return {
        "ml-latest-small": lambda: (folder.movielens(), 0.5, 5.0),
        "jester": lambda: (load_jester(folder.FOLDER / "jester" / "jester-data-1.csv.zip"), -10.0, 10.0),
    }


def loaded(path: Path) -> tuple[Ratings, float, float]:
    """Return ratings and their public range, by the files that there are."""
    if path.is_file():
        return load_jester(path), -10.0, 10.0
    whole_stars = (path / "u.data").is_file() or (path / "users.dat").is_file()
    return load_movielens(path), 1.0 if whole_stars else 0.5, 5.0


def measured(
    name: str,
    load: Callable[[], tuple[Ratings, float, float]],
    epsilons: Sequence[float],
    splits: int,
    before: dict[str, Any],
    *,
    fast: bool,
    only: str,
) -> dict[str, Any]:
    """Return the scores of every method, averaged over splits; those from ``before`` of methods that are left out."""
    ratings, low, high = load()
    _, users = np.unique(ratings.users, return_inverse=True)
    found: dict[str, list[dict[str, Any]]] = {}
    for split in range(splits):
        problem = Problem(name, ratings, low, high, users, held_out(users, random_state=split))
        every = methods(problem, epsilons, fast=fast)
        for label, run in every.items():
            if only not in label:
                continue
            begun = time.perf_counter()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", tacitly.UncertifiedWarning)
                scores = run()
            scores["seconds"] = time.perf_counter() - begun
            print(f"{name}, split {split}, {label}: " + ", ".join(f"{k} {v}" for k, v in scores.items()), flush=True)
            found.setdefault(label, []).append(scores)
    rows = {label: {key: _mean([one.get(key) for one in some]) for key in some[0]} for label, some in found.items()}
    rows = {label: (before | rows)[label] for label in {**dict.fromkeys(every), **before} if label in before | rows}
    sizes = {"users": int(users.max()) + 1, "items": len(ratings.item_ids), "ratings": len(users), "splits": splits}
    return {"sizes": sizes, "methods": rows}


def methods(problem: Problem, epsilons: Sequence[float], *, fast: bool) -> dict[str, Callable[[], dict[str, Any]]]:
    """Return what to run, by name."""
    cohort, items = problem.train(), len(problem.ratings.item_ids)
    bounds = items, problem.low, problem.high
    runs: dict[str, Callable[[], dict[str, Any]]] = {
        "user means": lambda: user_means(problem),
        "popularity, not private": lambda: popular(problem, np.bincount(cohort.X[:, 0].astype(int), minlength=items)),
        "item means + user means, not private": lambda: rated(problem, ItemMeans(math.inf).fit(cohort, *bounds)),
    }
    if not fast:
        runs["ALS, not private"] = lambda: rated(
            problem, PrivateALS(8, math.inf, rounds=8, random_state=0).fit(cohort, *bounds)
        )
    for epsilon in epsilons:
        label = f"ε = {epsilon:g}"
        runs |= {
            f"popularity, {label}": lambda e=epsilon: popular(problem, private_popularity(cohort, items, e)),  # type: ignore[misc]
            f"item means + user means, {label}": lambda e=epsilon: rated(problem, ItemMeans(e).fit(cohort, *bounds)),  # type: ignore[misc]
        }
        if not fast:
            runs |= {
                f"DPALS, {label}": lambda e=epsilon: best_als(problem, cohort, bounds, e),  # type: ignore[misc]
                f"DP-SGD, {label}": lambda e=epsilon: rated(  # type: ignore[misc]
                    problem, PrivateSGD(4, e, random_state=0).fit(cohort, *bounds)
                ),
            }
            if problem.features is not None:
                runs[f"MixedEffects on features, {label}"] = lambda e=epsilon: mixed(problem, e)  # type: ignore[misc]
        runs[f"Recommender, {label}"] = lambda e=epsilon: recommender(problem, e)  # type: ignore[misc]
        runs[f"Recommender, plays alone, {label}"] = lambda e=epsilon: plays(problem, e)  # type: ignore[misc]
    runs["Recommender, not private"] = lambda: recommender(problem, math.inf)
    runs["Recommender, plays alone, not private"] = lambda: plays(problem, math.inf)
    return runs


def recommender(problem: Problem, epsilon: float) -> dict[str, Any]:
    ratings, rows = problem.ratings, ~problem.test
    model = tacitly.Recommender(
        epsilon, 1e-6, items=ratings.item_ids, item_features=problem.features, rating_range=(problem.low, problem.high)
    )
    model.fit(problem.users[rows], ratings.item_ids[ratings.items[rows]], ratings.values[rows])
    predicted = model.predict(problem.users[problem.test], ratings.item_ids[ratings.items[problem.test]])
    best = model.recommend_all(np.arange(int(problem.users.max()) + 1), K)
    return errors(problem, predicted) | ranking(problem, best) | {"factors": model.rank_}


def plays(problem: Problem, epsilon: float) -> dict[str, Any]:
    """Recommend from which items were rated, without the ratings."""
    ratings, rows = problem.ratings, ~problem.test
    model = tacitly.Recommender(epsilon, 1e-6, items=ratings.item_ids, item_features=problem.features)
    model.fit(problem.users[rows], ratings.item_ids[ratings.items[rows]])
    best = model.recommend_all(np.arange(int(problem.users.max()) + 1), K)
    return ranking(problem, best) | {"factors": model.rank_}


def mixed(problem: Problem, epsilon: float) -> dict[str, Any]:
    assert problem.features is not None
    rows = problem.features[problem.ratings.items]
    train = ~problem.test
    model = tacitly.MixedEffects(epsilon, 1e-6, target_range=(problem.low, problem.high))
    model.fit(rows[train], problem.ratings.values[train], problem.users[train])
    return errors(problem, model.predict(rows[problem.test], problem.users[problem.test]))


def rated(problem: Problem, model: Any) -> dict[str, Any]:
    return errors(problem, model.predict(problem.users[problem.test], problem.ratings.items[problem.test]))


def best_als(problem: Problem, cohort: Cohort, bounds: tuple[int, float, float], epsilon: float) -> dict[str, Any]:
    """Return DPALS with the rank and penalty that are best on the held-out ratings, which it is not charged for."""
    found = [
        rated(problem, PrivateALS(rank, epsilon, ridge=ridge, random_state=0).fit(cohort, *bounds))
        for rank, ridge in ((2, 40.0), (4, 10.0), (4, 40.0), (8, 160.0))
    ]
    return min(found, key=lambda scores: float(scores["rmse"]))


def user_means(problem: Problem) -> dict[str, Any]:
    train, values = ~problem.test, problem.ratings.values
    count = int(problem.users.max()) + 1
    totals = np.bincount(problem.users[train], values[train], count)
    means = totals / np.maximum(np.bincount(problem.users[train], minlength=count), 1)
    return errors(problem, means[problem.users[problem.test]])


def popular(problem: Problem, counts: Array) -> dict[str, Any]:
    """Recommend what is most popular and was not rated by the user."""
    order = np.argsort(-counts, kind="stable")
    users = int(problem.users.max()) + 1
    train = ~problem.test
    seen = np.bincount(problem.users[train], minlength=users)
    best, items = np.zeros((users, K), dtype=np.int64), problem.ratings.items[train]
    by_user = np.split(items[np.argsort(problem.users[train], kind="stable")], np.cumsum(seen)[:-1])
    for user, mine in enumerate(by_user):
        first = order[: K + len(mine)]
        left = first[~np.isin(first, mine)][:K]
        best[user] = np.append(left, np.full(K - len(left), -1))
    return ranking(problem, best)


def errors(problem: Problem, predicted: Array) -> dict[str, Any]:
    values, items = problem.ratings.values[problem.test], problem.ratings.items
    counts = np.bincount(items[~problem.test], minlength=len(problem.ratings.item_ids))[items[problem.test]]
    return {"rmse": rmse(predicted, values), "by popularity": rmse_by_popularity(predicted, values, counts, EDGES)}


def ranking(problem: Problem, best: np.ndarray) -> dict[str, Any]:
    users, items = problem.users[problem.test], problem.ratings.items[problem.test]
    gains = problem.ratings.values[problem.test] - problem.low
    return {
        "ndcg": ndcg(best, users, items, gains),
        "recall": recall(best, users, items),
        "coverage": coverage(best, len(problem.ratings.item_ids)),
    }


def report(sets: dict[str, Any]) -> str:
    """Return the tables."""
    edges = [f"< {edge}" for edge in EDGES] + [f"≥ {EDGES[-1]}"]
    parts = []
    for name, found in sets.items():
        sizes = found["sizes"]
        parts.append(
            f"**{name}**: {sizes['users']:,} users, {sizes['items']:,} items, {sizes['ratings']:,} ratings; "
            f"{sizes['splits']} split(s), δ = 1e-6, user-level\n"
        )
        header = [
            "method",
            "RMSE",
            f"NDCG@{K}",
            f"recall@{K}",
            "coverage",
            *(f"RMSE, {edge} ratings" for edge in edges),
        ]
        rows = []
        for label, scores in found["methods"].items():
            cells = [_shown(scores.get(key)) for key in ("rmse", "ndcg", "recall", "coverage")]
            rows.append([label, *cells, *(_shown(value) for value in scores.get("by popularity", [None] * 4))])
        parts.append(table(header, rows) + "\n")
    return "\n".join(parts)


def _shown(value: float | None) -> str:
    return "" if value is None or math.isnan(value) else f"{value:.4f}"


def _mean(values: list[Any]) -> Any:
    found = np.mean(np.array(values, dtype=np.float64), axis=0)
    return found.tolist() if found.ndim else float(found)


if __name__ == "__main__":
    main()
