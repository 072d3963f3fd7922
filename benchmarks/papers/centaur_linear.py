"""Linear CENTAUR: Private FedRep's experiment with its competitors, error against ε, n and d, and Lemma F.3.

CENTAUR's Corollary 5.1 states an error of order d/(nε): exponents −1 in ε, −1 in n and 1 in d, for the distance to the
true subspace. They are fitted here on noiseless labels, with three draws per point, for the printed algorithm, whose
clip is the theorem's (20 rounds, and an n·ε at which its start is found), and for ours, whose clips shrink.

    python -m benchmarks.papers.centaur_linear [--quick] [--printed]

``--printed`` fits the exponents of the printed algorithm only and keeps the other results.
"""

from __future__ import annotations

import argparse
import json
import warnings
from typing import Any

import numpy as np

from benchmarks.papers.private_fedrep import mse
from benchmarks.tables import RESULTS, keep, table
from tacitly import Centaur, Cohort, PrivateAltMin, PrivateFedRep, UncertifiedWarning, subspace_distance
from tacitly.datasets import make_shared_subspace
from tacitly.linalg import orthonormal
from tacitly.methods.centaur.algorithm import agreed

DELTA = 1e-6
POINTS: dict[str, tuple[dict[str, float], dict[str, list[float]], int]] = {
    "auto": (
        {"epsilon": 0.5, "n": 4000, "d": 20},
        {"epsilon": [0.25, 0.5, 1.0], "n": [2000, 4000, 8000], "d": [10, 20, 40]},
        5,
    ),
    "paper": (
        {"epsilon": 40.0, "n": 8000, "d": 20},
        {"epsilon": [20.0, 40.0, 80.0], "n": [4000, 8000, 16000], "d": [10, 20, 40]},
        20,
    ),
}


def rivals(n: int, draws: int, epsilons: tuple[float, ...]) -> dict[str, list[float]]:
    """Measure the population mean squared error on Private FedRep's experiment."""
    errors: dict[str, list[float]] = {}
    for draw in range(draws):
        data = make_shared_subspace(n, 50, 2, 10, 0.01, random_state=1000 + draw)
        cohort = Cohort.from_arrays(data.X, data.y, data.users)
        for epsilon in epsilons:
            public = {"rank": 2, "epsilon": epsilon, "delta": DELTA}
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UncertifiedWarning)
                models = {
                    "CENTAUR": Centaur(**public),
                    "CENTAUR, power start": Centaur(**public, start="power", random_state=draw),
                    "CENTAUR, sampling rate 1/2": Centaur(**public, sampling_rate=0.5),
                    "CENTAUR as printed": Centaur(**public, mode="paper", random_state=draw),
                    "Private FedRep": PrivateFedRep(**public),
                    "Priv-AltMin": PrivateAltMin(**public),
                }
                for name, model in models.items():
                    errors.setdefault(f"{name}, {epsilon:g}", []).append(mse(data, model.fit(cohort)))
    return errors


def exponents(quick: bool, mode: str = "auto") -> dict[str, dict[str, list[float] | float]]:
    """Fit slopes of log distance against log ε, n and d."""
    base, ranges, rounds = POINTS[mode]
    found: dict[str, dict[str, list[float] | float]] = {}
    seen: dict[tuple[float, ...], float] = {}
    for name, values in ranges.items():
        distances = []
        for value in values[:2] if quick else values:
            point = {**base, name: value}
            place = (point["epsilon"], 200 if quick else point["n"], point["d"])
            if place not in seen:
                seen[place] = distance(*place, 1 if quick else 3, mode, rounds)
            distances.append(seen[place])
        slope = float(np.polyfit(np.log(values[: len(distances)]), np.log(distances), 1)[0])
        found[name] = {"values": [float(v) for v in values], "distances": distances, "exponent": slope}
    return found


def distance(epsilon: float, n: float, d: float, draws: int, mode: str, rounds: int) -> float:
    """Return the mean distance to the true subspace."""
    found = []
    for draw in range(draws):
        data = make_shared_subspace(int(n), int(d), 2, 8, 0.0, random_state=draw)
        model = Centaur(rank=2, epsilon=epsilon, delta=DELTA, rounds=rounds, mode=mode, random_state=draw)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UncertifiedWarning)
            found.append(subspace_distance(model.fit(data.X, data.y, data.users).basis_, data.basis))
    return float(np.mean(found))


def boosting(trials: int, success: float = 0.7, k: int = 2, d: int = 20) -> dict[int, float]:
    """Return how often the candidate chosen from T₀ copies is good, if each copy is with this probability."""
    rng = np.random.default_rng(0)
    truth = np.eye(d)[:, :k]
    chances = {}
    for copies in (1, 3, 5, 9, 17):
        good = 0
        for _ in range(trials):
            candidates = [
                orthonormal(truth + 0.002 * rng.normal(size=(d, k)))[0]
                if rng.uniform() < success
                else orthonormal(rng.normal(size=(d, k)))[0]
                for _ in range(copies)
            ]
            good += subspace_distance(candidates[agreed(candidates)], truth) <= 0.2
        chances[copies] = good / trials
    return chances


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--printed", action="store_true", help="exponents of the printed algorithm only")
    arguments = parser.parse_args()
    quick = arguments.quick
    if arguments.printed:
        found = json.loads((RESULTS / "centaur_linear.json").read_text(encoding="utf-8"))
        data = {name: found[name] for name in ("mse", "exponents", "boosting")}
    else:
        n, draws, epsilons = (200, 1, (4.0,)) if quick else (20_000, 2, (1.0, 4.0))
        data = {"mse": rivals(n, draws, epsilons), "exponents": exponents(quick)}
        data["boosting"] = boosting(50 if quick else 1000)
    data["exponents as printed"] = exponents(quick, "paper")
    keep("centaur_linear", data, as_text(data), quick=quick)


def as_text(data: dict[str, dict[Any, Any]]) -> str:
    """Return three tables: errors, exponents, boosting."""
    errors, slopes, chances = data["mse"], data["exponents"], data["boosting"]
    printed = data["exponents as printed"]
    names = list(dict.fromkeys(key.rsplit(", ", 1)[0] for key in errors))
    epsilons = list(dict.fromkeys(key.rsplit(", ", 1)[1] for key in errors))
    rows = [[name, *(f"{np.mean(errors[f'{name}, {epsilon}']):.3e}" for epsilon in epsilons)] for name in names]
    text = table(["population mean squared error", *(f"ε = {epsilon}" for epsilon in epsilons)], rows)
    expected = {"epsilon": -1, "n": -1, "d": 1}
    text += "\n\n" + table(
        ["exponent of the distance in", "Corollary 5.1", "CENTAUR as printed", "CENTAUR, ours"],
        [
            [name, expected[name], f"{printed[name]['exponent']:.2f}", f"{slope['exponent']:.2f}"]
            for name, slope in slopes.items()
        ],
    )
    return (
        text
        + "\n\n"
        + table(
            ["copies of the power method (each good with probability 0.7)", *map(str, chances)],
            [["share of good choices", *chances.values()]],
        )
    )


if __name__ == "__main__":
    main()
