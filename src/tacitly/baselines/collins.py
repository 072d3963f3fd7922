"""FedRep as printed by Collins, Hassani, Mokhtari and Shakkottai (2021, Algorithm 1 for linear models). Not private.

It starts from a random basis. In each round every user fits a head by least squares on the current basis; the server
moves the basis along the mean gradient by a fixed step and orthonormalises it. All users take part in every round.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tacitly.arrays import Array
from tacitly.data.cohort import Cohort
from tacitly.linalg import orthonormal

ROUNDS = 200
_RIDGE = 1e-12  # relative to the trace: users with fewer rows than directions have no unique head


def learn(cohort: Cohort, rank: int, rounds: int, step_size: float | None, seed: int | None) -> Array:
    """Return the basis after ``rounds`` steps.

    ``step_size`` is η; None for the largest that their Theorem 1 allows, 1/(4σ²), where σ² is the largest eigenvalue of
    the mean of vvᵀ over users. It is computed from the heads, and is the largest value of all rounds so far.
    """
    groups = list(_by_size(cohort))
    basis = orthonormal(np.random.default_rng(seed).normal(size=(cohort.n_features, rank)))[0]
    largest, n = 0.0, sum(len(targets) for _, targets in groups)
    for _ in range(rounds):
        gradient, second = np.zeros_like(basis), np.zeros((rank, rank))
        for rows, targets in groups:
            projected = rows @ basis
            gram = projected.transpose(0, 2, 1) @ projected
            gram += _RIDGE * np.trace(gram, axis1=1, axis2=2)[:, None, None] * np.eye(rank)
            heads = np.linalg.solve(gram, np.einsum("nmk,nm->nk", projected, targets)[..., None])[..., 0]
            left = np.einsum("nmk,nk->nm", projected, heads) - targets
            gradient += np.einsum("nmd,nm->nd", rows, left).T @ heads / rows.shape[1]
            second += heads.T @ heads
        largest = max(largest, float(np.linalg.eigvalsh(second / n)[-1]))
        length = 1.0 / (4.0 * max(largest, 1e-300)) if step_size is None else step_size
        basis = orthonormal(basis - length * gradient / n)[0]
    return basis


def _by_size(cohort: Cohort) -> Iterator[tuple[Array, Array]]:
    """Yield stacked rows and targets of all users with the same number of rows; users without rows are skipped."""
    assert cohort.y is not None
    counts = np.diff(cohort.offsets)
    for size in np.unique(counts[counts > 0]):
        where = cohort.offsets[:-1][counts == size][:, None] + np.arange(size)
        yield np.asarray(cohort.X, np.float64)[where], np.asarray(cohort.y, np.float64)[where]
