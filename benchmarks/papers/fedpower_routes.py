"""Which route of FedPower for m devices with s rows each? Errors, rounds and bytes, on a9a (123 features, k = 5).

The rows of a9a are dealt to m devices; the unit is the device (user-level ε, δ = 1e-5, zero-out). *Gram*: one noisy sum
of matrices. *Power*: noisy power steps. *In turns*: the same, a quarter of the devices at a time. *Coins*: half of the
devices by secret coins. *Device, p = 2*: two local steps between communications, as in the paper. *Local noise, p = 2*:
the same with noise in every device's own steps, so that no unit but the row is protected (row-level ε). The sine is
that of the largest angle, so it is 1 as soon as one of the five components was not found; *noise* says that the model
warned that none was. Bytes are those that one device sends in all rounds.

``python -m benchmarks.papers.fedpower_routes`` (``--quick`` for a smoke test).
"""

from __future__ import annotations

import argparse
import sys
import warnings
from typing import Any

import numpy as np

from benchmarks.data import available, load, min_max
from benchmarks.tables import keep, table
from tacitly import FedPower, subspace_distance
from tacitly.privacy.guarantee import TooFewUsersWarning

K, DELTA = 5, 1e-5
SIZES = ((30, 1000), (300, 100), (3000, 10))
EPSILONS = (1.0, 4.0, 16.0)
ROUTES: dict[str, dict[str, Any]] = {
    "gram": {"route": "gram"},
    "power": {"route": "power"},
    "power, in turns": {"route": "power", "participants": 0.25},
    "power, coins": {"route": "power", "sampling_rate": 0.5},
    "device, p = 2": {"route": "device", "local_steps": 2, "rounds": 4},
    "device, p = 2, in turns": {"route": "device", "local_steps": 2, "rounds": 4, "participants": 0.25},
    "local noise, p = 2 (row-level)": {"route": "local-noise", "local_steps": 2, "rounds": 3, "unit": "row"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="made-up rows, one size, nothing is kept")
    quick = parser.parse_args().quick
    if not quick and not available():
        sys.exit("The data sets were not found. Set TACITLY_DATA to their folder.")
    X = min_max(np.random.default_rng(0).normal(size=(1000, 12)) ** 2) if quick else load("a9a")
    found = []
    for m, s in ((50, 20),) if quick else SIZES:
        for epsilon in EPSILONS[2:] if quick else EPSILONS:
            for name, how in ROUTES.items():
                if name.startswith("local noise") and m > 300:
                    continue  # a release for every device and step
                draws = 1 if quick or name.startswith("local noise") else 2
                found.append({"m": m, "s": s, "epsilon": epsilon, "route": name} | one(X, m, s, epsilon, how, draws))
                print(found[-1], file=sys.stderr, flush=True)
    keep("fedpower_routes", {"routes": found}, text_of(found), quick=quick)


def one(X: np.ndarray, m: int, s: int, epsilon: float, how: dict[str, Any], draws: int) -> dict[str, Any]:
    """Return the error of a route, averaged over draws, with its rounds, bytes and warnings."""
    errors, warned = [], []
    for draw in range(draws):
        rows = X[np.random.default_rng([5, draw]).permutation(len(X))[: m * s]]
        truth = np.linalg.eigh(rows.T @ rows)[1][:, ::-1][:, :K]
        given = {"unit": "user", **how}
        if "participants" in given:
            given["participants"] = max(1, round(given["participants"] * m))
        model = FedPower(K, epsilon=epsilon, delta=DELTA, feature_range=(-1.0, 1.0), random_state=draw, **given)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            model.fit(rows, users=np.arange(m * s) % m)
        errors.append(subspace_distance(model.components_.T, truth))
        warned.append(any(issubclass(warning.category, TooFewUsersWarning) for warning in said))
    steps = sum("step" in release.name and "norms" not in release.name for release in model.certificate_.releases)
    return {"error": errors, "warned": warned, "rounds": max(steps, 1), "bytes": model.bytes_sent_}


def text_of(found: list[dict[str, Any]]) -> str:
    """Return one line per route and size, errors at each ε."""
    rows = []
    epsilons = sorted({line["epsilon"] for line in found})
    for m, s, route in dict.fromkeys((line["m"], line["s"], line["route"]) for line in found):
        lines = {line["epsilon"]: line for line in found if (line["m"], line["s"], line["route"]) == (m, s, route)}
        cells = [
            f"{np.mean(lines[e]['error']):.3f}{' (noise)' if np.mean(lines[e]['warned']) > 0.5 else ''}"
            for e in epsilons
        ]
        some = lines[epsilons[-1]]
        rows.append([f"{m} × {s}", route, *cells, some["rounds"], f"{some['bytes']:,}"])
    return table(["devices × rows", "route", *(f"sine, ε = {e:g}" for e in epsilons), "rounds", "bytes sent"], rows)


if __name__ == "__main__":
    main()
