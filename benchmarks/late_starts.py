"""Do all fits of 1,000 users converge? Private FedRep's basis, round by round.

d = 50, k = 2, 10 rows per user, ε = 1, the estimator's own plan. The error is 1 − cos² of the larger of the two angles
to the true subspace. Fits are grouped by whether the error of the last basis exceeds a thousandth.

``python -m benchmarks.late_starts`` (a minute; ``--quick`` for a smoke test).
"""

from __future__ import annotations

import argparse
import warnings

import numpy as np

from benchmarks.families import BASE
from benchmarks.tables import keep, table
from tacitly import Budget, Cohort, Ledger
from tacitly.arrays import Array
from tacitly.datasets import make_shared_subspace
from tacitly.federation.local import LocalFederation
from tacitly.methods.fedrep import algorithm as fedrep
from tacitly.methods.shared.column_scales import scale_phases
from tacitly.methods.shared.population import affordable, population_phases
from tacitly.methods.shared.settings import basis_share, whitening_share
from tacitly.privacy.guarantee import TooFewUsersWarning

ROUNDS = (1, 4, 8, 12, 16)
LATE = 1e-3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two fits, nothing is written")
    quick = parser.parse_args().quick
    warnings.simplefilter("ignore", TooFewUsersWarning)
    n_users = 1000
    fits = [missed_by_round(n_users, draw) for draw in range(100, 102 if quick else 180)]
    keep("late_starts", {"missed": fits}, text_of(fits), quick=quick)


def text_of(fits: list[list[float]]) -> str:
    late = np.array([rounds[-1] > LATE for rounds in fits])
    rows = []
    for name, chosen in {"fits that converge": ~late, "the others": late}.items():
        if not chosen.any():
            continue
        found = np.array(fits)[chosen]
        cells = [f"{value:.1e}" for value in np.median(found[:, [r - 1 for r in ROUNDS]], axis=0)]
        rows.append([name, len(found), int(np.sum(found[:, 0] > 0.9)), *cells, f"{found[:, -1].max():.1e}"])
    header = ["1,000 users, ε = 1", "fits", "the votes missed a direction"]
    return table([*header, *(f"missed after round {r}, median" for r in ROUNDS), "largest"], rows)


def missed_by_round(n_users: int, draw: int) -> list[float]:
    """Return how much of the worse direction the basis misses after each round."""
    data = make_shared_subspace(**{**BASE, "noise": 0.01, "n_users": n_users}, random_state=2000 + draw)
    cohort, budget = Cohort.from_arrays(data.X, data.y, data.users), Budget(epsilon=1.0, delta=1e-6)
    sizes, rank = (n_users, int(BASE["n_features"])), int(BASE["rank"])
    needed, after = basis_share(budget, *sizes, rank), population_phases(budget, *sizes, rank)
    settings = fedrep.Settings(
        before=scale_phases(budget, *sizes),
        after=after if affordable(after, needed) else (),
        whitening_share=whitening_share(budget, *sizes, needed),
    )
    found: list[float] = []

    def note(basis: Array) -> None:
        found.append(1.0 - float(np.linalg.svd(basis.T @ data.basis)[1].min()) ** 2)

    federation = LocalFederation(cohort, Ledger().run("late starts", config={}))
    fedrep.learn(federation, settings.plan(budget), settings, rank, on_round=note)
    return found


if __name__ == "__main__":
    main()
