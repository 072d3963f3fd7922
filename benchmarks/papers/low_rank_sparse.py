"""AMHT-LRS (Pal et al. 2024): recovery without privacy (B.1), with it (A.1.4), parameter counts (Table 1), MovieLens.

The paper's mechanism takes the supports by its own thresholds (Algorithm 2). Its constants are not in the paper: B is
the true bound of the generator where there is one (‖u⋆‖ = 1), A twice the privacy noise of an entry of V/(mt), and the
others are defaults (B.1: chosen on a draw that is not reported).

Errors are root mean squared errors on fresh rows in closed form, except for MovieLens, where a fifth of each user's
ratings is held out. Also a comparison of released statistics: subspace error at d = 15, r = 2, m = 30, t = 8,000, two
personal coordinates per user.

``python -m benchmarks.papers.low_rank_sparse`` (about eight minutes on two cores; ``--quick`` for a smoke test;
``--printed recovery,simulation,subspace`` runs the paper's mechanism in these parts only and keeps the other results;
``--own recovery,simulation,subspace,parameters,movielens`` runs everything else in them).
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks import data as folder
from benchmarks.tables import IMAGES, RESULTS, keep, table, today
from tacitly import (
    CentralModel,
    Cohort,
    FedRep,
    FullFineTuning,
    LowRankSparse,
    PromptLearning,
    SingleModel,
    UncertifiedWarning,
    subspace_distance,
)
from tacitly.datasets import LowRankSparseUsers, make_low_rank_sparse
from tacitly.privacy.accounting import mu_of

DELTA = 1e-5
EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)
# Of an independent draw from the same distribution (so public here): where the paper's clips are set, "such that most
# samples do not get clipped".
QUANTILE = 0.99
PRINTED_MODE: dict[str, dict[str, Any]] = {
    "recovery": {"rounds": 90, "clips": (1e3, 1e3, 1e3, 1e3, 100),
                 "thresholds": {"distance": 4.0, "spread": 4.0, "c1": 0.3, "c4": 0.9, "c5": 0.9}},
    "simulation": {"thresholds": {"distance": 1.0, "spread": 4.0}},
}  # fmt: skip
PRINTED = {
    "MovieLens": (241, {"single": 50, "full": 12_050, "rep 1": 291, "prompt 50": 12_100, "sparse 1 1": 532,
                        "sparse 1 3": 1_014, "sparse 1 5": 1_496, "sparse 1 8": 2_219, "sparse 1 10": 2_701}),
    "Jester": (100, {"single": 50, "full": 5_000, "rep 1": 150, "prompt 50": 5_050, "sparse 1 1": 250,
                     "sparse 1 2": 350, "sparse 1 3": 450, "sparse 1 4": 550, "sparse 1 5": 650}),
    "Netflix": (1_000, {"single": 50, "full": 50_000, "rep 1": 1_050, "rep 2": 2_100, "rep 3": 3_150, "rep 4": 4_200,
                        "rep 5": 5_250, "prompt 10": 10_050, "sparse 1 1": 2_050, "sparse 2 1": 3_100,
                        "sparse 3 1": 4_150, "sparse 4 1": 5_200, "sparse 5 1": 6_250}),
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a small problem, nothing is written")
    parser.add_argument("--printed", help="only the paper's mechanism, in these parts; all else keeps its results")
    parser.add_argument("--own", help="all but the paper's mechanism, in these parts; all else keeps its results")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", UncertifiedWarning)
    some = bool(arguments.printed or arguments.own)
    parts: dict[str, Any] = as_kept() if some else {"dates": {}}
    for name, measure in PARTS.items():
        if name in (arguments.own or "") or not some:
            before = parts.get(name, {})
            parts[name] = measure(arguments.quick)
            if name in ERRORS:
                kept = {label: found for label, found in before.get(ERRORS[name], {}).items() if theirs(label)}
                parts[name][ERRORS[name]].update(kept)
            parts["dates"][name] = today()
        if name in AS_PRINTED and (name in (arguments.printed or "") or not some):
            AS_PRINTED[name](parts[name][ERRORS[name]], arguments.quick)
            parts["dates"][f"{name} as printed"] = today()
    for name, say in SAID.items():
        parts[name]["text"] = say(parts[name])
    text = "\n\n".join(parts[name].pop("text") for name in PARTS)
    keep("low_rank_sparse", parts, text, quick=arguments.quick)
    if not arguments.quick:
        plot(parts["simulation"])


def as_kept() -> dict[str, Any]:
    """Return the results of the last run; the text of the parts that this program cannot write without a run too."""
    found = json.loads((RESULTS / "low_rank_sparse.json").read_text(encoding="utf-8"))
    parts = {name: found[name] for name in (*PARTS, "dates")}
    sections = (RESULTS / "low_rank_sparse.md").read_text(encoding="utf-8").rstrip().split("\n\n**")
    parts["parameters"]["text"], parts["movielens"]["text"] = ("**" + section for section in sections[-2:])
    return parts


def theirs(label: str) -> bool:
    """Return whether a row is of the paper's mechanism."""
    return "as printed" in label or label.startswith("paper's")


def recovery(quick: bool) -> dict[str, Any]:
    """Run B.1: d = 150, 10 personal coordinates per user, 5 users per coordinate (so 75 users), 100 rows, no noise."""
    draws, rounds = (1, 2) if quick else (5, 30)
    errors: dict[str, list[float]] = {}
    supports = []
    for draw in range(draws):
        data = make_low_rank_sparse(75, 150, 1, 100, 10, random_state=2000 + draw, row_sparsity=5)
        cohort = cohort_of(data)
        methods: dict[str, Any] = {
            "single model": SingleModel(),
            "full fine-tuning": FullFineTuning(math.inf),
            "representation learning, r = 1": FedRep(rank=1),
            "prompt learning": PromptLearning(math.inf),
            **{f"low rank + {k} sparse": LowRankSparse(1, k, math.inf, rounds=rounds) for k in (2, 5, 10)},
        }
        for name, method in methods.items():
            model = method.fit(cohort)
            errors.setdefault(name, []).append(data.population_rmse(model))
        found = [np.sort(row) for row in model.sparse_indices_]
        supports.append(
            float(np.mean([(a == np.sort(b)).all() for a, b in zip(found, data.sparse_indices, strict=True)]))
        )
    return {"rmse": errors, "supports": supports}


def recovery_as_printed(errors: dict[str, list[float]], quick: bool) -> None:
    """Add B.1 by Algorithms 1 and 2 as printed, without noise and with clips that cut nothing: one draw, it is slow."""
    options = PRINTED_MODE["recovery"] | ({"rounds": 2} if quick else {})
    data = make_low_rank_sparse(75, 150, 1, 100, 10, random_state=2000, row_sparsity=5)
    model = LowRankSparse(1, 10, math.inf, mode="paper", random_state=0, **options).fit(cohort_of(data))
    errors["low rank + 10 sparse, as printed"] = [data.population_rmse(model)]


def recovery_text(part: dict[str, Any]) -> str:
    mean = {name: float(np.mean(values)) for name, values in part["rmse"].items()}
    rows = [[name, f"{value:.2e}", f"{value / mean['single model']:.1e}"] for name, value in mean.items()]
    text = "**B.1, no privacy** (75 users, d = 150, 100 rows each)\n\n" + table(
        ["model", "RMSE", "relative to single model"], rows
    )
    draws = len(part["supports"])
    return (
        text
        + f"\n\nSupports exactly recovered: {100 * np.mean(part['supports']):.1f} % of users. Mean of {draws} draws."
    )


def simulation(quick: bool) -> dict[str, Any]:
    """Run A.1.4: one central model, d = 10, two personal coordinates, 100 rows, no label noise, δ = 1e-5."""
    users, draws, epsilons = (100, 1, (1.0,)) if quick else (5_000, 3, EPSILONS)
    errors: dict[str, list[float]] = {}
    for draw in range(draws):
        data = make_low_rank_sparse(users, 10, 1, 100, 2, random_state=2000 + draw, shared_weight=True)
        cohort = cohort_of(data)
        note(errors, "single", data.population_rmse(SingleModel().fit(cohort)))
        note(errors, "not private", data.population_rmse(LowRankSparse(1, 2, math.inf, shared_weight=True).fit(cohort)))
        for epsilon in epsilons:
            model = LowRankSparse(1, 2, epsilon, DELTA, shared_weight=True).fit(cohort)
            assert model.certificate_.certified
            note(errors, f"ours, {epsilon:g}", data.population_rmse(model))
            note(errors, f"private single, {epsilon:g}", data.population_rmse(CentralModel(epsilon, DELTA).fit(cohort)))
    return {"rmse": errors, "users": users}


def simulation_as_printed(errors: dict[str, list[float]], quick: bool) -> None:
    """Add A.1.4 by Algorithm 5 as printed, at the same true ε: one draw, because it is slow.

    The constant A of the thresholds was raised from 0 to its default after a first result at ε = 0.5 on this draw.
    """
    users, epsilons = (100, (1.0,)) if quick else (5_000, EPSILONS)
    reference = make_low_rank_sparse(users, 10, 1, 100, 2, random_state=1, shared_weight=True)
    data = make_low_rank_sparse(users, 10, 1, 100, 2, random_state=2000, shared_weight=True)
    cohort = cohort_of(data)
    clips, rounds, rows = paper_clips(reference, QUANTILE), 15, 100
    right = rows * clips[0] * (clips[1] + clips[2])  # Γ₂
    for epsilon in epsilons:
        noise = 2.0 * math.sqrt(2 * rounds) / mu_of(epsilon, DELTA) * right / (rows * users)
        thresholds = {**PRINTED_MODE["simulation"]["thresholds"], "noise": noise}
        options: dict[str, Any] = {"mode": "paper", "rounds": rounds, "clips": clips, "thresholds": thresholds}
        paper = LowRankSparse(1, 2, epsilon, DELTA, shared_weight=True, **options).fit(cohort)
        assert paper.certificate_.certified
        errors[f"as printed, {epsilon:g}"] = [data.population_rmse(paper)]
        print(epsilon, noise, errors[f"as printed, {epsilon:g}"], file=sys.stderr, flush=True)


def simulation_text(part: dict[str, Any]) -> str:
    users, draws = part.get("users", 5_000), len(part["rmse"]["single"])
    epsilons = [float(name.split(", ")[1]) for name in part["rmse"] if name.startswith("ours, ")]
    mean = {name: float(np.mean(values)) for name, values in part["rmse"].items()}
    rows = []
    for epsilon in epsilons:
        best = mean[f"as printed, {epsilon:g}"]
        ours = mean[f"ours, {epsilon:g}"]
        rows.append(
            [
                f"{epsilon:g}",
                f"{ours:.1e}",
                f"{best:.2f}",
                f"{mean[f'private single, {epsilon:g}']:.2f}",
                f"{100 * ours / mean['single']:.0e} %",
                f"{best / ours:.0e}",
            ]
        )
    text = f"**A.1.4, certified** ({users:,} users, d = 10, 100 rows each, δ = 1e-5)\n\n" + table(
        ["ε", "tacitly", "as printed, at the same true ε", "private single model",
         "tacitly / single model", "paper's / tacitly"],
        rows,
    )  # fmt: skip
    text += (
        f"\n\nWithout privacy: {mean['not private']:.1e}; single model {mean['single']:.2f}. "
        f"Mean of {draws} draws (paper's mechanism: one)."
    )
    return text


def paper_clips(data: LowRankSparseUsers, quantile: float) -> tuple[float, ...]:
    personal = np.take_along_axis(data.X, data.sparse_indices[data.users], axis=1) * data.sparse_values[data.users]
    return (
        float(np.quantile(np.linalg.norm(data.X, axis=1), quantile)),
        float(np.quantile(np.abs(data.y), quantile)),
        float(np.quantile(np.abs(personal.sum(axis=1)), quantile)),
        1.0,
        100,
    )


def subspace(quick: bool) -> dict[str, Any]:
    """Compare released statistics: subspace error at r = 2."""
    users, draws = (100, 1) if quick else (8_000, 3)
    ways: dict[str, dict[str, Any]] = {
        "gradient, 16 rounds": {},
        "equations, 3 rounds": {"route": "equations", "rounds": 3},
    }
    return {"error": _subspace_errors(users, draws, ways), "users": users}


def subspace_as_printed(errors: dict[str, list[float]], quick: bool) -> None:
    """Add the paper's product clip, with its thresholds: one draw."""
    users = 100 if quick else 8_000
    reference = make_low_rank_sparse(users, 15, 2, 30, 2, random_state=1)
    bounds = paper_clips(reference, 0.99)[:3]
    clips = (*bounds, float(np.quantile(np.linalg.norm(reference.heads, axis=1), 0.99)), 30)
    way = {"mode": "paper", "rounds": 3, "clips": clips, "start": "moments"}
    errors.update(_subspace_errors(users, 1, {"paper's product clip, 3 rounds": way}))


def _subspace_errors(users: int, draws: int, ways: dict[str, dict[str, Any]]) -> dict[str, list[float]]:
    errors: dict[str, list[float]] = {}
    for draw in range(draws):
        data = make_low_rank_sparse(users, 15, 2, 30, 2, random_state=2000 + draw)
        cohort = cohort_of(data)
        for epsilon, (name, options) in itertools.product((1.0, 4.0, 16.0), ways.items()):
            model = LowRankSparse(2, 2, epsilon, DELTA, random_state=draw, **options).fit(cohort)
            assert model.certificate_.certified
            note(errors, f"{name}, {epsilon:g}", subspace_distance(model.basis_, data.basis))
    return errors


def subspace_text(part: dict[str, Any]) -> str:
    mean = {name: float(np.mean(values)) for name, values in part["error"].items()}
    users, draws = part.get("users", 8_000), len(next(iter(part["error"].values())))
    names = list(dict.fromkeys(name.rsplit(", ", 1)[0] for name in mean))
    rows = [[name, *(f"{mean[f'{name}, {epsilon}']:.1e}" for epsilon in (1, 4, 16))] for name in names]
    text = f"**Subspace error** ({users:,} users, d = 15, r = 2, 30 rows, two personal coordinates)\n\n"
    text += table(["released statistic", "ε = 1", "ε = 4", "ε = 16"], rows)
    return text + f"\n\nMean of {draws} draws (the paper's product clip: one)."


def parameters(quick: bool) -> dict[str, Any]:
    """Count the parameters of fitted models (Table 1)."""
    rows, counts = [], {}
    for name, (n, printed) in PRINTED.items():
        data = make_low_rank_sparse(n, 50, 1, 30, 3, random_state=0)
        cohort = cohort_of(data)
        for method, expected in printed.items():
            if quick and name != "Jester":
                continue
            count = framework(method).fit(cohort).n_parameters()
            counts[f"{name}, {method}"] = [count, expected]
            rows.append([name, method, count, expected])
    agree = sum(count == expected for count, expected in counts.values())
    text = f"**Table 1, parameters of a model**: {agree} of {len(counts)} as printed"
    different = [row for row in rows if row[2] != row[3]]
    text += "." if not different else "\n\n" + table(["data", "model", "counted", "printed"], different)
    return {"counts": counts, "text": text}


def framework(method: str) -> Any:
    kind, *numbers = method.split()
    sizes = [int(number) for number in numbers]
    makers: dict[str, Any] = {
        "single": lambda: CentralModel(math.inf),
        "full": lambda: FullFineTuning(math.inf),
        "rep": lambda: FedRep(sizes[0], rounds=1),
        "prompt": lambda: PromptLearning(math.inf, embedding=sizes[0]),
        "sparse": lambda: LowRankSparse(sizes[0], sizes[1], math.inf, rounds=1),
    }
    return makers[kind]()


def movielens(quick: bool) -> dict[str, Any]:
    """Run on MovieLens latest-small: 610 users, public features of movies (one, genres, year), half-star ratings."""
    if quick or not folder.available():
        return {"text": "MovieLens: left out." if quick else "MovieLens: data not found (TACITLY_DATA)."}
    ratings = folder.movielens()
    X, y, users = ratings.tasks()
    errors: dict[str, list[float]] = {}
    by_rows: dict[str, dict[str, list[float]]] = {}
    sizes: dict[str, str] = {}
    for draw in range(5):
        rng = np.random.default_rng(2000 + draw)
        held = np.zeros(len(y), dtype=bool)
        for user in np.unique(users):
            mine = np.flatnonzero(users == user)
            held[rng.permutation(mine)[: len(mine) // 5]] = True
        train = Cohort.from_arrays(X[~held], y[~held], users[~held])
        methods: dict[str, tuple[Any, str]] = {
            "single model": (SingleModel(), "0"),
            "prompt learning": (PromptLearning(math.inf), "1"),
            "full fine-tuning": (FullFineTuning(math.inf), str(X.shape[1])),
            "representation learning, r = 1": (FedRep(rank=1), "1"),
            "representation learning, r = 3": (FedRep(rank=3), "3"),
            **{f"central + {k} sparse": (LowRankSparse(1, k, math.inf, shared_weight=True), str(k)) for k in (1, 2, 4)},
            "central + sparse, chosen": (LowRankSparse(1, "auto", math.inf, shared_weight=True), "≤ 5"),
            "r = 1 + 2 sparse": (LowRankSparse(1, 2, math.inf), "3"),
            "r = 3 + 2 sparse": (LowRankSparse(3, 2, math.inf), "5"),
            **{
                f"central + sparse, chosen, ε = {e:g}": (LowRankSparse(1, "auto", e, DELTA, shared_weight=True), "≤ 5")
                for e in (1.0, 4.0, 16.0)
            },
            **{f"r = 1 + 2 sparse, ε = {e:g}": (LowRankSparse(1, 2, e, DELTA), "3") for e in (1.0, 4.0, 16.0)},
        }
        for name, (method, own) in methods.items():
            fitted = method.fit(train)
            left = fitted.predict(X[held], users[held]) - y[held]
            note(errors, name, float(np.sqrt(np.mean(left**2))))
            for part, theirs in thirds_of(users, held).items():
                note(by_rows.setdefault(part, {}), name, float(np.sqrt(np.mean(left[theirs] ** 2))))
            sizes[name] = own
    mean = {name: float(np.mean(values)) for name, values in errors.items()}
    rows = [
        [name, sizes[name], f"{value:.4f}", *(f"{np.mean(part[name]):.3f}" for part in by_rows.values())]
        for name, value in mean.items()
    ]
    text = (
        f"**MovieLens latest-small** ({len(np.unique(users))} users, {X.shape[1]} public features, rows held out; by "
        "thirds of users, ordered by their number of ratings)\n\n"
    )
    text += table(["model", "parameters per user", "RMSE, stars", *by_rows], rows)
    return {"rmse": errors, "by_rows": by_rows, "text": text}


def thirds_of(users: npt.NDArray[Any], held: npt.NDArray[np.bool_]) -> dict[str, npt.NDArray[np.bool_]]:
    """Return which held-out rows are of users with few, medium and many rows to learn from: a third of users each."""
    names, counts = np.unique(users[~held], return_counts=True)
    place = np.empty(len(names), dtype=int)
    place[np.argsort(counts, kind="stable")] = 3 * np.arange(len(names)) // len(names)
    third = place[np.searchsorted(names, users[held])]
    return {name: third == number for number, name in enumerate(("data-starved", "medium", "data-rich"))}


PARTS: dict[str, Callable[[bool], dict[str, Any]]] = {
    "recovery": recovery,
    "simulation": simulation,
    "subspace": subspace,
    "parameters": parameters,
    "movielens": movielens,
}
AS_PRINTED: dict[str, Callable[[dict[str, list[float]], bool], None]] = {
    "recovery": recovery_as_printed,
    "simulation": simulation_as_printed,
    "subspace": subspace_as_printed,
}
ERRORS = {"recovery": "rmse", "simulation": "rmse", "subspace": "error"}  # where a part keeps them
SAID: dict[str, Callable[[dict[str, Any]], str]] = {
    "recovery": recovery_text,
    "simulation": simulation_text,
    "subspace": subspace_text,
}


def cohort_of(data: LowRankSparseUsers) -> Cohort:
    return Cohort.from_arrays(data.X, data.y, data.users)


def note(errors: dict[str, list[float]], name: str, value: float) -> None:
    errors.setdefault(name, []).append(value)


def plot(part: dict[str, Any]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    mean = {name: float(np.mean(values)) for name, values in part["rmse"].items()}
    figure, axes = plt.subplots(figsize=(7.5, 3.8))
    axes.loglog(EPSILONS, [mean[f"ours, {e:g}"] for e in EPSILONS], "o-", label="tacitly")
    best = [mean[f"as printed, {e:g}"] for e in EPSILONS]
    axes.loglog(EPSILONS, best, "v-", label="paper's mechanism, same true ε")
    axes.loglog(EPSILONS, [mean[f"private single, {e:g}"] for e in EPSILONS], "s--", label="private single model")
    axes.axhline(mean["single"], color="grey", linestyle=":", label="single model, not private")
    axes.set_xlabel("ε (δ = 1e-5, all releases accounted)")
    axes.set_ylabel("root mean squared error")
    axes.set_title("AMHT-LRS, A.1.4: one central model, two personal coordinates per user")
    axes.legend(fontsize=8)
    figure.tight_layout()
    IMAGES.mkdir(parents=True, exist_ok=True)
    figure.savefig(IMAGES / "low_rank_sparse.png", dpi=120)


if __name__ == "__main__":
    main()
