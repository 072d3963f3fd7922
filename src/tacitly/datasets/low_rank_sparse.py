"""Synthetic users with a shared subspace and sparse personal parts: yᵢⱼ = ⟨xᵢⱼ, U wᵢ + bᵢ⟩ + noise (AMHT-LRS)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tacitly.arrays import Array
from tacitly.datasets.synthetic import draw_users
from tacitly.linalg import orthonormal


@dataclass(frozen=True)
class LowRankSparseUsers:
    """Synthetic users and the true parameters; features have identity covariance."""

    X: npt.NDArray[np.floating]
    y: npt.NDArray[np.floating]
    users: npt.NDArray[np.int64]
    basis: Array
    heads: Array
    sparse_indices: npt.NDArray[np.int64]
    sparse_values: Array
    noise: float

    def models(self, basis: Array, heads: Array, indices: npt.NDArray[np.int64], values: Array) -> Array:
        """Return all users' dense weights, one row per user, for evaluation only."""
        weights = heads @ basis.T
        np.add.at(weights, (np.arange(len(weights))[:, None], indices), values)
        return np.asarray(weights)

    def population_rmse(self, model: Any) -> float:
        """Return a fitted model's root mean squared error on new rows without label noise, in closed form."""
        true = self.models(self.basis, self.heads, self.sparse_indices, self.sparse_values)
        none = np.zeros((len(true), 0))
        found = self.models(
            model.basis_,
            model.heads_,
            getattr(model, "sparse_indices_", none.astype(np.int64)),
            getattr(model, "sparse_values_", none),
        )
        return float(np.sqrt(np.mean(np.sum((found - true) ** 2, axis=1) + np.square(model.intercepts_))))


def make_low_rank_sparse(
    n_users: int = 1000,
    n_features: int = 50,
    rank: int = 2,
    n_samples: int | tuple[int, int] = 30,
    sparsity: int = 3,
    noise: float = 0.0,
    random_state: int | np.random.Generator | None = None,
    *,
    shared_weight: bool = False,
    row_sparsity: int | None = None,
    dtype: npt.DTypeLike = np.float64,
) -> LowRankSparseUsers:
    """Make users with a shared subspace and ``sparsity`` personal coordinates each, all entries standard normal.

    Parameters
    ----------
    n_samples
        Rows per user, or a range (low, high) from which each user's number of rows is drawn.
    shared_weight
        Whether all weights are one (rank 1; the basis is then uniform on the unit sphere), as in AMHT-LRS, A.1.4.
    row_sparsity
        ζ, the maximum number of users that share a personal coordinate (n_users·sparsity ≤ n_features·ζ); None for no
        bound.

    Examples
    --------
    >>> data = make_low_rank_sparse(20, 10, 1, 8, sparsity=2, random_state=0)
    >>> data.X.shape, data.sparse_indices.shape
    ((160, 10), (20, 2))
    """
    if not 0 <= sparsity <= n_features:
        raise ValueError(f"sparsity must lie between 0 and n_features ({n_features}). Found {sparsity!r}.")
    rng = np.random.default_rng(random_state)
    basis, _ = orthonormal(rng.standard_normal((n_features, rank)))
    heads = np.ones((n_users, rank)) if shared_weight else rng.standard_normal((n_users, rank))
    indices = _supports(n_users, n_features, sparsity, row_sparsity, rng)
    values = rng.standard_normal((n_users, sparsity))
    users = draw_users(n_users, n_samples, rng)
    X = rng.standard_normal((len(users), n_features))
    y = np.einsum("nk,nk->n", X @ basis, heads[users])
    y += np.einsum("nk,nk->n", np.take_along_axis(X, indices[users], axis=1), values[users])
    y += noise * rng.standard_normal(len(users))
    return LowRankSparseUsers(
        X=X.astype(dtype),
        y=y.astype(dtype),
        users=users,
        basis=basis,
        heads=heads,
        sparse_indices=indices,
        sparse_values=values,
        noise=noise,
    )


def _supports(
    n_users: int, n_features: int, sparsity: int, row_sparsity: int | None, rng: np.random.Generator
) -> npt.NDArray[np.int64]:
    if row_sparsity is None:
        order = np.argpartition(rng.random((n_users, n_features)), max(sparsity - 1, 0), axis=1)
        return np.ascontiguousarray(order[:, :sparsity])
    if n_users * sparsity > n_features * row_sparsity:
        raise ValueError(
            f"row_sparsity must be at least {-(-n_users * sparsity // n_features)} for {n_users} users with {sparsity} "
            f"coordinates of {n_features}. Found {row_sparsity!r}."
        )
    # Assign every feature at most ζ times, the least used first, so that no user gets a feature twice.
    left = np.full(n_features, row_sparsity)
    indices = np.zeros((n_users, sparsity), dtype=np.int64)
    for i in range(n_users):
        indices[i] = np.lexsort((rng.random(n_features), -left))[:sparsity]
        left[indices[i]] -= 1
    return indices
