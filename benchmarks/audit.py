"""Audit the papers' flaws, tacitly's estimators, and the papers' mechanisms as printed.

``python -m benchmarks.audit`` (long; shorten it with ``--runs``; ``--quick`` for a smoke test). Every bound is a lower
bound on ε at 95 % confidence. Claims of Gaussian differential privacy are tested with many canaries in each of a few
runs, other claims with one canary in each of many runs.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import tacitly
from benchmarks.flaws import cases
from benchmarks.tables import RESULTS, keep, table
from tacitly.audit import audit, from_runs
from tacitly.audit.attack import first_certificate
from tacitly.audit.one_run import audit_canaries
from tacitly.methods import REGISTRY
from tacitly.methods.base import PrivateModel
from tacitly.neural.centaur import audit_network
from tacitly.privacy.accounting import compose
from tacitly.privacy.guarantee import GaussianEvent

Makers = dict[str, Callable[[], PrivateModel]]

ESTIMATORS, NETWORKS = (
    {
        trial.title: lambda method=method, trial=trial: method.load()(**trial.built())  # type: ignore[misc]
        for method in REGISTRY.values()
        for trial in method.audits
        if trial.title and method.network is network
    }
    for network in (False, True)
)
"""What is audited, by its title. Networks are too slow for thousands of runs: theirs have many canaries each."""

CROWD = 100
"""Canaries in a run, where many share one."""

CROWDED_FEATURES, FEWER_FEATURES = 200, {"MixedEffects": 20, "PrivateAltMin": 20}
"""Features of runs with many canaries. A network's update has as many numbers as the network, a basis of rank one as
many as there are features: in the few of the worlds that single canaries attack, a hundred would hide one another.
Fewer where releases have a number for each pair of features."""

QUIET = {"MixedEffects, logistic": 1000}
"""Quiet users around the canaries, where nearly everything is released at clips and in units that were read off users
before: without a crowd these are noise, and a label, unlike a number, is never so large that it exceeds all of them."""

PAPERS: dict[str, PrivateModel] = {
    **{
        f"Private FedRep, ε = {epsilon:g}, replace-one": tacitly.PrivateFedRep(
            rank=1, epsilon=epsilon, adjacency="replace-one", mode="paper"
        )
        for epsilon in (1.0, 4.0, 8.0)
    },
    "FedPower, ε = 1": tacitly.FedPower(1, 1.0, unit="user", mode="paper"),
    "DP-AMHT-LRS, ε = 1, public clips": tacitly.LowRankSparse(
        rank=1, sparsity=1, epsilon=1.0, mode="paper", clips=(3.0, 3.0, 3.0, 3.0, 6.0)
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few runs, nothing is written")
    parser.add_argument(
        "--only", action="append", help="the model of this name, or all that contain it; others keep theirs"
    )
    parser.add_argument("--runs", type=int, default=10_000, help="runs in each world, where one canary is in each")
    parser.add_argument("--workers", type=int, help="processes of these; all cores if not given")
    parser.add_argument("--crowds", type=int, default=300, help="runs with many canaries each")
    arguments = parser.parse_args()
    quick, runs, crowds = arguments.quick, arguments.runs, arguments.crowds
    wanted = arguments.only or ("",)

    def chosen(everything: dict[str, Any]) -> dict[str, Any]:
        def meant(name: str) -> bool:
            return any(part == name or (part in name and part not in everything) for part in wanted)

        return {name: made for name, made in everything.items() if meant(name)}

    kept: dict[str, list[dict[str, Any]]] = {}
    if arguments.only and (RESULTS / "audit.json").exists():
        kept = json.loads((RESULTS / "audit.json").read_text("utf-8"))
    models, papers = chosen(ESTIMATORS | NETWORKS), chosen(PAPERS)
    if quick:
        runs, crowds, papers = 6, 8, dict(list(PAPERS.items())[1:2])
        models = {name: ESTIMATORS[name] for name in ("PrivateFedRep", "MarginClassifier")}
    kept.setdefault("flaws", [])
    if not kept["flaws"] or any(part in "flaws" for part in wanted):
        kept["flaws"] = flaw_rows(2_000 if quick else 200_000)
    tables = {
        "defaults": default_rows(models, runs, crowds, arguments.workers),
        "papers": paper_rows(runs, papers, arguments.workers),
    }
    for key, rows in tables.items():
        for row in rows:  # written after every row, because all together take long
            kept[key] = merged(kept.get(key, []), [row])
            keep("audit", kept, as_text(kept), quick=quick)


def as_text(found: dict[str, list[dict[str, Any]]]) -> str:
    """Return the tables: flaws, our models at their defaults, mechanisms as printed."""
    headers = {
        "flaws": ["", "flaw", "claimed", "exact", "audited", "corrected, audited", ""],
        "defaults": ["model at its defaults", "claimed", "proved", "canaries in a run", "runs"],
        "papers": ["as printed", "claimed", "exact", "audited", "checks"],
    }
    return "\n\n".join(table(header, [row["cells"] for row in found.get(key, [])]) for key, header in headers.items())


def merged(kept: list[dict[str, Any]], found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Replace rows of the same name by new ones, in the order of the lists above."""
    rows = {row["name"]: row for row in [*kept, *found]}
    return [rows[name] for name in (*ESTIMATORS, *NETWORKS, *PAPERS) if name in rows]


def flaw_rows(runs: int) -> list[dict[str, Any]]:
    rows = []
    for case in cases():
        bounds = []
        for draw in (case.flawed, case.sound):
            # In parts, because some cases draw a thousand numbers per run.
            parts = [draw(np.random.default_rng(), 2_000) for _ in range(runs // 2_000)]
            inside, outside = (np.concatenate(worlds) for worlds in zip(*parts, strict=True))
            kinds = (False, True) if case.gaussian else (False,)
            found = [from_runs(inside, outside, case.delta, confidence=0.975, gaussian=kind) for kind in kinds]
            bounds.append(max(bound.epsilon for bound in found))
        exact = "" if case.exact is None else f"{case.exact:.2f}"
        cells = [case.id, case.what, f"{case.claim:.3g}", exact, f"≥ {bounds[0]:.2f}", f"≥ {bounds[1]:.2f}"]
        cells.append("tight" if case.tight else "")
        rows.append({"id": case.id, "claim": case.claim, "flawed": bounds[0], "sound": bounds[1], "cells": cells})
    return rows


def default_rows(chosen: Makers, runs: int, crowds: int, workers: int | None) -> Iterator[dict[str, Any]]:
    """Attack each model once: by many canaries in few runs what claims Gaussian privacy, else by one in many runs."""
    for name, make in chosen.items():
        certificate, began = first_certificate(make()), time.perf_counter()
        events = [row.event for row in certificate.releases]
        if all(isinstance(event, GaussianEvent) and event.sampling_rate == 1 for event in events):
            proved, canaries, number, told = _by_many(name, make, crowds), CROWD, crowds, {}
        else:
            report = audit(make(), runs=runs, workers=workers)
            proved, canaries, number = report.proved, 1, 2 * runs
            told = {"ok": report.ok, "findings": list(report.findings)}
        cells = [name, f"{certificate.epsilon:.2f}", f"≥ {proved:.2f}", str(canaries), f"{number:,}"]
        seconds = time.perf_counter() - began
        entry = {"name": name, "claimed": certificate.epsilon, "audited": proved, "runs": number, "canaries": canaries}
        yield {**entry, **told, "seconds": seconds, "cells": cells}


def _by_many(name: str, make: Callable[[], PrivateModel], runs: int) -> float:
    features, quiet = (_of(name, numbers) for numbers in (FEWER_FEATURES, QUIET))
    bound = audit_canaries(
        _wide(make()), canaries=CROWD, runs=runs, n_features=features or CROWDED_FEATURES, crowd=quiet
    )
    return bound.epsilon


def _of(name: str, numbers: dict[str, int]) -> int:
    """Return the number of the models whose name begins like this one's; zero if there is none."""
    return next((number for part, number in numbers.items() if name.startswith(part)), 0)


def _wide(estimator: PrivateModel) -> PrivateModel:
    """Return the estimator with a network or a matrix for so many features, where it was given one."""
    parameters = estimator.get_params(deep=False)
    if "body" in parameters:
        parameters |= audit_network(CROWDED_FEATURES)
    if parameters.get("shape") is not None:
        parameters["shape"] = (10, CROWDED_FEATURES // 10)
    wide: PrivateModel = type(estimator)(**parameters)
    return wide


def paper_rows(runs: int, chosen: dict[str, PrivateModel], workers: int | None) -> Iterator[dict[str, Any]]:
    for name, model in chosen.items():
        certificate = first_certificate(model)
        exact = compose([r.event for r in certificate.releases], certificate.adjacency, certificate.delta)
        report = audit(model, runs=runs, workers=workers)
        broken = "; ".join(report.findings)
        audited = "" if math.isinf(exact) else f"≥ {report.proved:.2f}"
        cells = [name, f"{report.claimed:.2f}", "∞" if math.isinf(exact) else f"{exact:.2f}", audited, broken]
        yield {"name": name, "exact": exact, "audited": report.proved, "broken": broken, "cells": cells}


if __name__ == "__main__":
    main()
