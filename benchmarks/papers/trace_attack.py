"""The outlier attack on trace regression: what one observation of norm 100 spends, exactly and as an auditor sees it.

An adversary who knows all other observations, and every release, computes the likelihood ratio of the whole transcript:
no test is better. Neighbours are zero-out: the outlier, against an observation that adds nothing.

``python -m benchmarks.papers.trace_attack`` (two minutes; ``--quick`` for a smoke test). At ε = 1 and δ = 1e-6 no test
of a few hundred runs can tell the two apart; ε = 8 is there to show that the auditor sees what there is to see.
"""

from __future__ import annotations

import argparse
import math
from typing import Any

import numpy as np
from scipy.stats import beta

from benchmarks.tables import keep, table
from tacit.algorithms.designs import Design
from tacit.algorithms.trace_regression import Settings, learn
from tacit.cohort import Cohort
from tacit.federation.base import Array, Query
from tacit.federation.local import LocalFederation
from tacit.linalg import orthonormal
from tacit.privacy.accounting import epsilon_of
from tacit.privacy.guarantee import Budget, GaussianEvent, Unit
from tacit.privacy.ledger import Ledger


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few runs, nothing is kept")
    quick = parser.parse_args().quick
    found = [spent_by_outlier(runs=10 if quick else 400, epsilon=epsilon) for epsilon in (1.0, 8.0)]
    rows = [[one["claimed"], f"{one['spent']:.4f}", f"{one['audited']:.3f}", one["runs"]] for one in found]
    text = table(["claimed ε", "spent, exactly, at most", "audited ≥ (95 %)", "runs with, and without, it"], rows)
    keep("trace_attack", {"attacks": found}, text, quick=quick)


class Watched(LocalFederation):
    """Writes down the likelihood ratio of every release, and what the observation under attack has spent."""

    ratio = 0.0
    spent = 0.0

    def watch(self, others: Cohort, outlier: tuple[Array, Array]) -> Watched:
        """Say who is attacked, and what is known of everybody else."""
        self._others, self._outlier = others, outlier
        return self

    def release(self, query: Query, event: GaussianEvent, name: str) -> Array:
        """Release; then look at it as the adversary does."""
        value = super().release(query, event, name)
        bound, own = event.sensitivity.zero_out, self._cohort
        self._cohort = self._others
        known = self._exact_sum(query, bound, 2.0**-40 * bound) * (2.0**-40 * bound)
        self._cohort = own
        added = query.block_sum(*self._outlier, np.array([0, 1]), bound)
        self.ratio += float((value - known) @ added - added @ added / 2) / event.sigma**2
        self.spent += float(added @ added) / event.sigma**2
        return value


def spent_by_outlier(
    *, runs: int, n: int = 400, d: int = 8, rank: int = 2, epsilon: float = 1.0, delta: float = 1e-6
) -> dict[str, Any]:
    """Attack ``runs`` transcripts with the outlier in the data, and as many without."""
    rng = np.random.default_rng(0)
    M = orthonormal(rng.normal(size=(d, rank)))[0] @ orthonormal(rng.normal(size=(d, rank)))[0].T
    X = rng.normal(size=(n, d * d))
    y = X @ M.ravel() + 0.5 * rng.normal(size=n)
    outlier = np.zeros((1, d * d)), np.array([100.0])
    outlier[0][0, d * d // 2] = 100.0
    # An observation of zeros has norm zero and adds nothing to any sum or histogram.
    cohorts = {
        present: Cohort.from_offsets(np.vstack([row, X[1:]]), np.append(label, y[1:]), [0, n])
        for present, row, label in ((True, outlier[0], 100.0), (False, np.zeros((1, d * d)), 0.0))
    }
    design, settings, budget = Design("dense", d, d), Settings(), Budget(epsilon=epsilon, delta=delta, unit=Unit.ROW)
    plan = settings.plan(budget)
    ratios: dict[bool, list[float]] = {True: [], False: []}
    spent = 0.0
    for present, cohort in cohorts.items():
        for _ in range(runs):
            run = Ledger(ceiling=budget).run("attack", config={}, planned=settings.events(plan))
            federation = Watched(cohort, run, noise="float", threads=1).watch(cohorts[False], outlier)
            learn(federation, plan, settings, design, rank)
            ratios[present].append(federation.ratio)
            spent = max(spent, federation.spent)
    return {
        "claimed": epsilon,
        "spent": epsilon_of(math.sqrt(spent), delta),
        "audited": audited(np.array(ratios[True]), np.array(ratios[False]), delta),
        "runs": runs,
    }


def audited(attacked: Array, absent: Array, delta: float) -> float:
    """Lower bound on ε, 95 % sure: the threshold is chosen on one half of the runs and judged on the other."""
    half, best = len(attacked) // 2, 0.0
    for first, second in ((attacked, absent), (-absent, -attacked)):
        thresholds = np.quantile(np.concatenate([first[:half], second[:half]]), np.linspace(0.01, 0.999, 200))
        guesses = [_bound(first[:half], second[:half], level, delta) for level in thresholds]
        # Two directions are tried, so each is allowed half of the 5 %.
        best = max(best, _bound(first[half:], second[half:], thresholds[int(np.argmax(guesses))], delta))
    return best


def _bound(first: Array, second: Array, threshold: float, delta: float) -> float:
    hits, alarms = int((first > threshold).sum()), int((second > threshold).sum())
    low = float(beta.ppf(0.0125, hits, len(first) - hits + 1)) if hits else 0.0
    high = float(beta.ppf(0.9875, alarms + 1, len(second) - alarms)) if alarms < len(second) else 1.0
    return math.log((low - delta) / high) if low > delta else 0.0


if __name__ == "__main__":
    main()
