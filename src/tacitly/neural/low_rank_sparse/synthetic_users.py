"""Synthetic users whose networks are U w + b, for trying settings and for tests. No real data are used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from tacitly.arrays import Array
from tacitly.neural.low_rank_sparse.tanh_network import TanhNetwork


class Predicts(Protocol):
    """A model with personal predictions."""

    def predict(self, X: npt.ArrayLike, users: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Predict each row for its user."""


@dataclass(frozen=True)
class NetworkUsers:
    """Rows, targets and user ids; test rows with noiseless targets; and the true networks, one row per user."""

    X: Array
    y: Array
    users: npt.NDArray[np.int64]
    X_test: Array
    y_test: Array
    users_test: npt.NDArray[np.int64]
    networks: Array

    def error(self, model: Predicts) -> float:
        """Return the root mean squared error on the test rows, relative to that of predicting the mean."""
        residuals = model.predict(self.X_test, self.users_test) - self.y_test
        return float(np.sqrt(np.mean(residuals**2)) / np.std(self.y_test))


def synthetic_networks(
    n_users: int,
    n_features: int,
    rank: int,
    n_rows: int,
    sparsity: int,
    *,
    hidden: tuple[int, ...] = (8,),
    own: float = 1.0,
    weights: float = 0.3,
    noise: float = 0.0,
    random_state: int | None = None,
) -> NetworkUsers:
    """Return users with ``n_rows`` Gaussian rows each and targets from their own networks.

    The first column of U is a random network, the others are random directions of the same norm. ``weights`` is the
    standard deviation of w around (1, 0, …), ``own`` that of the non-zero entries of b, ``noise`` that of the targets'
    errors.

    >>> data = synthetic_networks(5, 3, 1, 4, 2, random_state=0)
    >>> data.X.shape, data.networks.shape
    ((20, 3), (5, 41))
    """
    rng = np.random.default_rng(random_state)
    network = TanhNetwork(n_features, hidden)
    basis = rng.normal(size=(network.size, rank))
    basis[:, 0] = 2.0 * network.start(rng)
    basis *= np.linalg.norm(basis[:, 0]) / np.linalg.norm(basis, axis=0)
    heads = np.eye(1, rank) + weights * rng.normal(size=(n_users, rank))
    sparse = np.zeros((n_users, network.size))
    for row in sparse:
        row[rng.permutation(network.size)[:sparsity]] = own * rng.normal(size=sparsity)
    networks = heads @ basis.T + sparse

    def drawn(rows: int) -> tuple[Array, Array, npt.NDArray[np.int64]]:
        X = rng.normal(size=(n_users, rows, n_features))
        outputs = torch.vmap(network)(torch.as_tensor(networks), torch.as_tensor(X)).numpy()
        return X.reshape(-1, n_features), outputs.reshape(-1), np.repeat(np.arange(n_users), rows)

    X, y, users = drawn(n_rows)
    return NetworkUsers(X, y + noise * rng.normal(size=len(y)), users, *drawn(20), networks)
