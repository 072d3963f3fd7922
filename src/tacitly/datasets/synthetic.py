"""Synthetic users who share a subspace: yᵢⱼ = ⟨xᵢⱼ, U vᵢ⟩ + noise, with options that make them more realistic."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tacitly.arrays import Array
from tacitly.linalg import orthonormal


@dataclass(frozen=True)
class SharedSubspace:
    """Synthetic users and the true parameters.

    Unpacks as ``X, y, users, basis, heads``.
    """

    X: npt.NDArray[np.floating]
    y: npt.NDArray[np.floating]
    users: npt.NDArray[np.int64]
    basis: Array
    heads: Array
    covariance: Array
    noise: float

    def __iter__(self):  # type: ignore[no-untyped-def]
        return iter((self.X, self.y, self.users, self.basis, self.heads))

    def population_mse(self, basis: npt.ArrayLike, heads: npt.ArrayLike) -> float:
        """Return the mean squared error on new rows, averaged over users, in closed form.

        ``heads`` has one row per user: k weights on ``basis`` and optionally an intercept.
        """
        directions, personal = np.asarray(basis, dtype=np.float64), np.asarray(heads, dtype=np.float64)
        k = directions.shape[1]
        wrong = personal[:, :k] @ directions.T - self.heads @ self.basis.T
        offset = personal[:, k] if personal.shape[1] > k else np.zeros(len(personal))
        spread = np.einsum("nd,de,ne->n", wrong, self.covariance, wrong, optimize=True)
        return float(np.mean(spread + offset**2) + self.noise**2)


def draw_users(n_users: int, n_samples: int | tuple[int, int], rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Return the user of each row; ``n_samples`` is a number of rows per user, or a range to draw it from."""
    low, high = (n_samples, n_samples) if isinstance(n_samples, int) else n_samples
    return np.repeat(np.arange(n_users), rng.integers(low, high + 1, size=n_users))


def make_shared_subspace(
    n_users: int = 1000,
    n_features: int = 50,
    rank: int = 2,
    n_samples: int | tuple[int, int] = 10,
    noise: float = 0.01,
    random_state: int | np.random.Generator | None = None,
    *,
    unit_heads: bool = True,
    condition: float = 1.0,
    feature_spread: float = 1.0,
    correlation: float = 0.0,
    heavy_tails: bool = False,
    target_scale: float = 1.0,
    dtype: npt.DTypeLike = np.float64,
) -> SharedSubspace:
    """Make users who share a low-dimensional subspace.

    Parameters
    ----------
    n_samples
        Rows per user, or a range (low, high) from which each user's number of rows is drawn.
    noise
        Standard deviation of the label noise (R in Private FedRep).
    unit_heads
        Whether heads have norm one before ``condition`` (as in Private FedRep's script) or are Gaussian.
    condition
        Ratio of the heads' largest to smallest singular value.
    feature_spread
        Ratio of the largest to the smallest feature standard deviation.
    correlation
        Correlation of neighbouring features (autoregressive).
    heavy_tails
        Student-t features with four degrees of freedom instead of Gaussian ones, with the same variance.
    target_scale
        Factor for targets, heads and label noise.

    Examples
    --------
    >>> data = make_shared_subspace(n_users=20, n_features=5, rank=1, n_samples=(3, 6), random_state=0)
    >>> X, y, users, basis, heads = data
    >>> X.shape[1], basis.shape, heads.shape
    (5, (5, 1), (20, 1))
    >>> round(data.population_mse(basis, heads), 6)  # the true model's error is the label noise
    0.0001
    """
    if not 1 <= rank <= n_features:
        raise ValueError(f"rank must lie between 1 and n_features ({n_features}). Found {rank!r}.")
    rng = np.random.default_rng(random_state)
    basis, _ = orthonormal(rng.standard_normal((n_features, rank)))
    heads = rng.standard_normal((n_users, rank))
    if unit_heads:
        heads /= np.linalg.norm(heads, axis=1, keepdims=True)
    heads *= np.geomspace(1.0, 1.0 / condition, rank)

    users = draw_users(n_users, n_samples, rng)
    X = rng.standard_normal((len(users), n_features))
    if heavy_tails:
        X = rng.standard_t(4, size=X.shape) / np.sqrt(2.0)
    deviations = rng.permutation(np.geomspace(feature_spread**-0.5, feature_spread**0.5, n_features))
    lags = np.abs(np.subtract.outer(np.arange(n_features), np.arange(n_features)))
    covariance = np.outer(deviations, deviations) * np.power(float(correlation), lags)
    X = X @ np.linalg.cholesky(covariance).T

    weights = heads @ basis.T
    y = np.einsum("nd,nd->n", X, weights[users]) + noise * rng.standard_normal(len(users))
    return SharedSubspace(
        X=X.astype(dtype),
        y=(target_scale * y).astype(dtype),
        users=users,
        basis=basis,
        heads=target_scale * heads,
        covariance=covariance,
        noise=target_scale * noise,
    )
