"""Outlier attack on trace regression: the ε that one observation of norm 100 spends, exactly and by an audit.

An adversary who knows all other observations, and every release, computes the likelihood ratio of the whole transcript,
which is the optimal test. Neighbours are zero-out: the outlier is replaced by an observation that contributes nothing.

Two lower bounds on ε are proved from the runs. One makes no assumption; at ε = 1 and δ = 1e-6 it would need millions of
runs. The other tests the claim itself, that the whole transcript is as private as one Gaussian of this ε and δ
(:mod:`tacitly.audit.bounds`), and proves most of it.

``python -m benchmarks.papers.trace_attack`` (half an hour on one core; ``--quick`` for a smoke test; ``--pieces FILE``
keeps what is done in a file, so that a run that was stopped goes on from there).
"""

from __future__ import annotations

import argparse
import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.tables import Pieces, keep, table
from tacitly.arrays import Array
from tacitly.audit import from_runs
from tacitly.audit.bounds import mu_from_counts
from tacitly.audit.recording import Recording
from tacitly.data.cohort import Cohort
from tacitly.federation.base import Query
from tacitly.federation.local import LocalFederation
from tacitly.federation.shard import Shard
from tacitly.linalg import orthonormal
from tacitly.methods.trace_regression.algorithm import Settings, learn
from tacitly.methods.trace_regression.designs import Design
from tacitly.privacy.accounting import epsilon_of
from tacitly.privacy.guarantee import Budget, GaussianEvent, Unit

_PIECE = 250  # runs of one piece


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few runs, nothing is written")
    parser.add_argument("--pieces", type=Path, help="a file for what is done")
    options = parser.parse_args()
    pieces = Pieces(options.pieces)
    plans = ((1.0, 4 if options.quick else 5000), (8.0, 4 if options.quick else 1000))
    data = {"attacks": [spent_by_outlier(runs=runs, epsilon=epsilon, pieces=pieces) for epsilon, runs in plans]}
    keep("trace_attack", data, as_text(data), quick=options.quick)


def as_text(data: dict[str, list[dict[str, Any]]]) -> str:
    rows = [
        [one["claimed"], *(f"{one[key]:.4f}" for key in ("spent", "audited", "audited_freely")), one["runs"]]
        for one in data["attacks"]
    ]
    header = ["claimed ε", "spent exactly (largest run)", "proved ≥ (95 %, against the claimed Gaussian curve)"]
    return table([*header, "proved ≥ (95 %, no assumption)", "runs in each world"], rows)


class Watched(LocalFederation):
    """Adds up the likelihood ratio of every release, and what the attacked observation has spent."""

    ratio = 0.0
    spent = 0.0

    def watch(self, others: Cohort, outlier: tuple[Array, Array]) -> Watched:
        """Set the attacked observation, and the cohort without it."""
        self._others, self._outlier = others, outlier
        return self

    def release(self, query: Query, event: GaussianEvent, name: str) -> Array:
        """Release, then update the adversary's likelihood ratio."""
        value = super().release(query, event, name)
        bound, own = event.sensitivity.zero_out, self._shard
        self._shard = Shard(self._others)
        known = self._exact_sum(query, bound, 2.0**-40 * bound) * (2.0**-40 * bound)
        self._shard = own
        added = query.block_sum(*self._outlier, np.array([0, 1]), bound)
        self.ratio += float((value - known) @ added - added @ added / 2) / event.sigma**2
        self.spent += float(added @ added) / event.sigma**2
        return value


def spent_by_outlier(
    *, runs: int, epsilon: float = 1.0, delta: float = 1e-6, pieces: Pieces | None = None
) -> dict[str, Any]:
    """Attack ``runs`` transcripts of all default releases with the outlier, and as many without it."""
    budget, pieces = Budget(epsilon=epsilon, delta=delta, unit=Unit.ROW), pieces or Pieces()
    ratios: dict[bool, list[float]] = {True: [], False: []}
    spent = 0.0
    for first in range(0, runs, _PIECE):
        count = min(_PIECE, runs - first)
        for present in (True, False):
            name = f"ε = {epsilon:g}, {'present' if present else 'absent'}, {count} runs from {first}"
            found = pieces(name, partial(transcripts, budget, present, count))
            ratios[present] += found["ratios"]
            spent = max(spent, found["spent"])
    odds = np.array(ratios[True]), np.array(ratios[False])
    return {
        "claimed": epsilon,
        "spent": epsilon_of(math.sqrt(spent), delta),
        "audited": proved(*odds, delta, gaussian=True),
        "audited_freely": proved(*odds, delta, gaussian=False),
        "runs": runs,
    }


def transcripts(budget: Budget, present: bool, runs: int, *, n: int = 200, d: int = 6, rank: int = 2) -> dict[str, Any]:
    """Return likelihood ratios of transcripts with the outlier, or without it, and the most that it spent."""
    rng = np.random.default_rng(0)
    M = orthonormal(rng.normal(size=(d, rank)))[0] @ orthonormal(rng.normal(size=(d, rank)))[0].T
    X = rng.normal(size=(n, d * d))
    y = X @ M.ravel() + 0.5 * rng.normal(size=n)
    outlier = np.zeros((1, d * d)), np.array([100.0])
    outlier[0][0, d * d // 2] = 100.0
    attacked = Cohort.from_offsets(np.vstack([outlier[0], X[1:]]), np.append(outlier[1], y[1:]), [0, n])
    # An observation that is not finite contributes nothing to any sum or histogram.
    absent = replace(attacked, X=np.vstack([np.full((1, d * d), np.nan), X[1:]]))
    design, settings = Design("dense", d, d), Settings(centres=1, private_level=True)
    plan = settings.plan(budget)
    ratios, spent = [], 0.0
    for _ in range(runs):
        # What is spent is added up here, so a ledger would only take time.
        run: Any = Recording().run("attack", config={})
        federation = Watched(attacked if present else absent, run, noise="float", threads=1).watch(absent, outlier)
        learn(federation, plan, settings, design, rank)
        ratios.append(federation.ratio)
        spent = max(spent, federation.spent)
    return {"ratios": ratios, "spent": spent}


def proved(attacked: Array, absent: Array, delta: float, *, gaussian: bool) -> float:
    """Return a lower bound on ε at 95 % confidence.

    ``gaussian`` assumes the claimed Gaussian trade-off curve and uses the threshold of likelihood ratio one, the best
    one for two Gaussians, so that no threshold has to be chosen on the runs.
    """
    if not gaussian:
        return from_runs(attacked, absent, delta).epsilon
    hits, alarms = int((attacked > 0).sum()), int((absent > 0).sum())
    return epsilon_of(mu_from_counts(hits, alarms, len(attacked)), delta)


if __name__ == "__main__":
    main()
