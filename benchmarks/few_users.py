"""What can 300 users achieve at ε = 1? Designs of a private start and an oracle (d = 50, k = 2, 10 rows, noise 0.01).

The results are mean squared sines of the angles to the true subspace, for designs that spend the whole budget on the
basis: no scales, no whitening, no population. All designs are noisy sums over users of contributions of norm one, with
noise σ = 1/μ(ε = 1, δ = 1e-6) divided by the root of their share of the budget. Noise is drawn with a seed, outside of
the federation's releases, to compare designs; nothing is certified.

* *votes, then rounds*: the library's design, a share for direction votes and the rest for rounds of corrections;
* *power rounds*: d×k numbers each, Σ a·(direction of aᵀQ) for users' directions a, from a random Q; Q is then the
  column space of the last release, or of all releases together;
* *votes, then power rounds*: Q maximises the likelihood of votes and rounds together;
* *votes, weighted*: a user's direction is weighted by the length of their own fit, which measures how much of it lies
  in the subspace; the longest tenth have full weight (a quantile that is given, not paid for);
* *groups*: sample and aggregate, like private subspace estimators whose noise does not grow with d (Tsfadia 2024). Each
  group of users computes its own subspace P without noise, and the mean of all P is released. If groups agree, noise is
  proportional to the distance between them instead of their size. Here the largest distance is given, and the test
  whether groups agree, which needs at least log(1/δ)/ε = 14 groups, is left out, so this is better than any private
  version can be;
* *told all heads*: one sum Σ a·headᵀ, which uses heads that no method knows.

``python -m benchmarks.few_users`` (a minute; ``--quick`` for a smoke test).
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from benchmarks.tables import keep, table
from tacitly.arrays import Array
from tacitly.datasets import make_shared_subspace
from tacitly.linalg import orthonormal, pack_symmetric
from tacitly.methods.shared.descent import Descent
from tacitly.methods.shared.direction_votes import top_directions
from tacitly.privacy.accounting import mu_of

D, K, ROWS, NOISE = 50, 2, 10, 0.01
SIGMA = 1.0 / mu_of(1.0, 1e-6)


@dataclass
class Problem:
    """One population, its directions of ridge regressions, and a generator of noise."""

    X: Array  # users × rows × features
    y: Array
    basis: Array
    heads: Array
    directions: Array
    lengths: Array
    rng: np.random.Generator

    def missed(self, basis: Array) -> float:
        """Return the mean squared sine between a basis and the true one."""
        return 1.0 - float(np.sum((basis.T @ self.basis) ** 2)) / K

    def noise(self, share: float) -> Array:
        """Return the noise of a release of d×k numbers."""
        return SIGMA / math.sqrt(share) * self.rng.normal(size=(D, K))

    def symmetric_noise(self, size: int, sigma: float) -> Array:
        """Return the noise of a packed symmetric matrix."""
        lower = np.tril(self.rng.normal(size=(size, size)), -1) / math.sqrt(2.0)
        return sigma * (lower + lower.T + np.diag(self.rng.normal(size=size)))


def problem(n_users: int, seed: int) -> Problem:
    data = make_shared_subspace(n_users, D, K, ROWS, NOISE, random_state=7000 + seed)
    X = np.asarray(data.X, dtype=np.float64).reshape(n_users, ROWS, D)
    y = np.asarray(data.y, dtype=np.float64).reshape(n_users, ROWS)
    penalty = 0.3 * np.square(X).sum(axis=(1, 2)) / ROWS
    gram = X @ X.transpose(0, 2, 1) + penalty[:, None, None] * np.eye(ROWS)
    own = np.einsum("nmd,nm->nd", X, np.linalg.solve(gram, y[..., None])[..., 0])
    lengths = np.linalg.norm(own, axis=1)
    return Problem(X, y, data.basis, data.heads, own / lengths[:, None], lengths, np.random.default_rng([7, seed]))


def votes_then_rounds(found: Problem, start: float, rounds: int) -> Array:
    sigma = SIGMA / math.sqrt(start)
    votes = found.directions.T @ found.directions + found.symmetric_noise(D, sigma)
    basis, strengths = top_directions(pack_symmetric(votes), sigma, D, K)
    state, share = Descent(basis, np.diag(strengths)), (1.0 - start) / rounds
    for number in range(rounds):
        step, second = corrections(found, state)
        second = second + found.symmetric_noise(K, SIGMA / math.sqrt(share))
        late = max(0.0, number - 0.8 * rounds)
        state.advance(
            *(step + found.noise(share), second, SIGMA / math.sqrt(share), len(found.X)), damping=1 / (1 + late / 2)
        )
    return state.basis


def corrections(found: Problem, state: Descent) -> tuple[Array, Array]:
    """Return the two sums of a round (see ``methods/fedrep/queries.py``), without noise."""
    rows = found.X @ state.basis
    systems = rows.transpose(0, 2, 1) @ rows + 1e-9 * np.eye(K)
    heads = np.linalg.solve(systems, np.einsum("nmk,nm->nk", rows, found.y)[..., None])[..., 0]
    left = found.y - np.einsum("nmk,nk->nm", rows, heads)
    asked, heads = np.einsum("nmd,nm->nd", found.X, left) / (ROWS - K) / state.scale, heads @ state.head_metric
    sizes = np.linalg.norm(heads, axis=1)
    weights = 1.0 / (sizes * np.hypot(sizes, np.linalg.norm(asked, axis=1)))[:, None]
    return (weights * asked).T @ heads, (weights * heads).T @ heads


def power_step(found: Problem, basis: Array, share: float) -> Array:
    along = found.directions @ basis
    total: Array = found.directions.T @ (along / np.linalg.norm(along, axis=1, keepdims=True))
    return total + found.noise(share)


def power_rounds(found: Problem, rounds: int, *, together: bool) -> Array:
    basis, steps = orthonormal(found.rng.normal(size=(D, K)))[0], []
    for _ in range(rounds):
        steps.append(power_step(found, basis, 1.0 / rounds))
        basis = np.linalg.svd(np.hstack(steps if together else steps[-1:]))[0][:, :K]
    return basis


def votes_and_power_rounds(found: Problem, start: float, rounds: int) -> Array:
    sigma, share, steps = SIGMA / math.sqrt(start), (1.0 - start) / max(rounds, 1), []
    votes = found.directions.T @ found.directions + found.symmetric_noise(D, sigma)
    votes -= np.median(np.linalg.eigvalsh(votes)) * np.eye(D)
    basis = np.linalg.eigh(votes)[1][:, ::-1][:, :K]
    for _ in range(rounds):
        steps.append(power_step(found, basis, share) * math.sqrt(share) / SIGMA)
        joint = np.hstack(steps)
        for _ in range(40):
            # The gradient of ‖UᵀVU‖²/2σ² + ‖UᵀY‖²/2, V the votes and Y the steps in units of their noise.
            slope = 2.0 * votes @ basis @ (basis.T @ votes @ basis) / sigma**2 + joint @ (joint.T @ basis)
            basis = orthonormal(slope)[0]
    return basis


def weighted_votes(found: Problem) -> Array:
    weights = np.minimum(1.0, found.lengths / np.quantile(found.lengths, 0.9))
    votes = (weights[:, None] * found.directions).T @ found.directions + found.symmetric_noise(D, SIGMA)
    return np.linalg.eigh(votes)[1][:, ::-1][:, :K]


def grouped(found: Problem, groups: int) -> Array:
    spaces = []
    for members in np.array_split(np.arange(len(found.X)), groups):
        basis = np.linalg.svd(found.directions[members].T, full_matrices=False)[0][:, :K]
        spaces.append(basis @ basis.T)
    apart = max(float(np.linalg.norm(a - b)) for a, b in itertools.combinations(spaces, 2))
    total = np.sum(spaces, axis=0) + found.symmetric_noise(D, SIGMA * apart)
    return np.linalg.eigh(total)[1][:, ::-1][:, :K]


def told_all_heads(found: Problem) -> Array:
    return orthonormal(found.directions.T @ found.heads + found.noise(1.0))[0]


DESIGNS: dict[str, Callable[[Problem], Array]] = {
    "votes (a quarter), then 16 rounds": lambda found: votes_then_rounds(found, 0.25, 16),
    "votes (a half), then 8 rounds": lambda found: votes_then_rounds(found, 0.5, 8),
    "votes (a half), then 4 rounds": lambda found: votes_then_rounds(found, 0.5, 4),
    "votes alone": lambda found: votes_and_power_rounds(found, 1.0, 0),
    "4 power rounds, the last": lambda found: power_rounds(found, 4, together=False),
    "4 power rounds together": lambda found: power_rounds(found, 4, together=True),
    "8 power rounds together": lambda found: power_rounds(found, 8, together=True),
    "votes (0.4) and 4 power rounds together": lambda found: votes_and_power_rounds(found, 0.4, 4),
    "votes (0.4) and 8 power rounds together": lambda found: votes_and_power_rounds(found, 0.4, 8),
    "votes, weighted by confidence": weighted_votes,
    "5 groups, told how far apart": lambda found: grouped(found, 5),
    "15 groups, told how far apart": lambda found: grouped(found, 15),
    "30 groups, told how far apart": lambda found: grouped(found, 30),
    "100 groups, told how far apart": lambda found: grouped(found, 100),
    "told all heads": told_all_heads,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one population, nothing is written")
    quick = parser.parse_args().quick
    sizes = (300,) if quick else (300, 500)
    data: dict[str, dict[str, list[float]]] = {name: {} for name in DESIGNS}
    for n in sizes:
        for seed in range(1 if quick else 30):
            for name, design in DESIGNS.items():
                found = problem(n, seed)
                data[name].setdefault(str(n), []).append(found.missed(design(found)))
    header = ["design, ε = 1, all of the budget", *(f"{n} users: missed, mean (worst)" for n in sizes)]
    cells = [
        [name, *(f"{np.mean(draws):.2f} ({np.max(draws):.2f})" for draws in by.values())] for name, by in data.items()
    ]
    keep("few_users", {"missed": data}, table(header, cells), quick=quick)


if __name__ == "__main__":
    main()
