"""Made-up users whose networks are U w + b: to try settings on, and to test with. No data set is in them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from tacitly.arrays import Array
from tacitly.neural.low_rank_sparse.tanh_network import TanhNetwork


class Predicts(Protocol):
    """Anything with personal predictions."""

    def predict(self, X: npt.ArrayLike, users: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Predict each row for its user."""


@dataclass(frozen=True)
class NetworkUsers:
    """Rows, targets and users; rows and targets without noise to test on; and everybody's network, a row a user."""

    X: Array
    y: Array
    users: npt.NDArray[np.int64]
    X_test: Array
    y_test: Array
    users_test: npt.NDArray[np.int64]
    networks: Array

    def error(self, model: Predicts) -> float:
        """Root mean squared error on the test rows, over that of saying the mean."""
        left = model.predict(self.X_test, self.users_test) - self.y_test
        return float(np.sqrt(np.mean(left**2)) / np.std(self.y_test))


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
    """Return users with ``n_rows`` Gaussian rows each and targets of their own network.

    The first column of U is a random network, others are random directions of the same length. ``weights`` is the
    spread of w around (1, 0, …), ``own`` that of the non-zero entries of b, ``noise`` that of the targets' errors.

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
    quirks = np.zeros((n_users, network.size))
    for row in quirks:
        row[rng.permutation(network.size)[:sparsity]] = own * rng.normal(size=sparsity)
    networks = heads @ basis.T + quirks

    def drawn(rows: int) -> tuple[Array, Array, npt.NDArray[np.int64]]:
        X = rng.normal(size=(n_users, rows, n_features))
        outputs = torch.vmap(network)(torch.as_tensor(networks), torch.as_tensor(X)).numpy()
        return X.reshape(-1, n_features), outputs.reshape(-1), np.repeat(np.arange(n_users), rows)

    X, y, users = drawn(n_rows)
    return NetworkUsers(X, y + noise * rng.normal(size=len(y)), users, *drawn(20), networks)
