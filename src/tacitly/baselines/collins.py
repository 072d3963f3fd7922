"""FedRep as Collins, Hassani, Mokhtari and Shakkottai printed it (2021, Algorithm 1 for linear models). Not private.

From a random basis: every user fits a head by least squares on the current basis, the server moves the basis along the
mean gradient by a fixed step and orthonormalises it. All users take part in every round.
"""

from __future__ import annotations

import itertools

import numpy as np

from tacitly.arrays import Array
from tacitly.data.cohort import Cohort
from tacitly.linalg import orthonormal

ROUNDS = 200


def learn(cohort: Cohort, rank: int, rounds: int, step_size: float | None, seed: int | None) -> Array:
    """Return the basis after ``rounds`` steps.

    ``step_size`` is η; None for the largest that their Theorem 1 allows, 1/(4σ²), where σ² is the largest eigenvalue of
    the mean of vvᵀ over users. It is read off the heads, as large as they became so far.
    """
    assert cohort.y is not None
    users = [
        (np.asarray(cohort.X[first:last], np.float64), np.asarray(cohort.y[first:last], np.float64))
        for first, last in itertools.pairwise(cohort.offsets)
        if last > first
    ]
    basis = orthonormal(np.random.default_rng(seed).normal(size=(cohort.n_features, rank)))[0]
    largest = 0.0
    for _ in range(rounds):
        gradient, heads = np.zeros_like(basis), []
        for rows, targets in users:
            projected = rows @ basis
            head = np.linalg.lstsq(projected, targets)[0]
            gradient += np.outer(rows.T @ (projected @ head - targets) / len(rows), head)
            heads.append(head)
        largest = max(largest, float(np.linalg.eigvalsh(np.transpose(heads) @ heads / len(heads))[-1]))
        length = 1.0 / (4.0 * max(largest, 1e-300)) if step_size is None else step_size
        basis = orthonormal(basis - length * gradient / len(users))[0]
    return basis
