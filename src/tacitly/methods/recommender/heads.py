"""Heads of a recommender: users compute locally their weights on public columns of items, and their taste.

Heads are never released. Weights are the posterior under the public prior. They are averaged with a level alone (the
user's mean, given item effects) according to how well both predict each of the user's ratings from the others. So
features and factors are used as far as they improve these predictions; otherwise mean and item effects remain.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tacitly.arrays import Array, Offsets, Rows, check_shape
from tacitly.heads.base import HeadWork
from tacitly.methods.recommender import kernels
from tacitly.methods.recommender.posterior import Catalogue, Codes, Posteriors, WeightPrior, posteriors
from tacitly.methods.recommender.tastes import Tastes

_BLOCK = 2048
_EVIDENCE = 15.0  # confidence in the prior, as a number of ratings


@dataclass(frozen=True)
class RatingHeads(HeadWork):
    """Weights and tastes of users, one row per user: weights first. ``plays`` ignores ratings."""

    catalogue: Catalogue
    prior: WeightPrior
    tastes: Tastes
    plays: bool

    def __post_init__(self) -> None:
        check_shape("mean", self.prior.mean, self.catalogue.size)
        check_shape("features", self.tastes.features, self.catalogue.items, None)

    def __call__(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        """Return one head per user."""
        blocks = [np.zeros((0, *self.shape))]
        for first in range(0, len(offsets) - 1, _BLOCK):
            bounds = offsets[first : first + _BLOCK + 1]
            rows = slice(int(bounds[0]), int(bounds[-1]))
            blocks.append(self._block(X[rows], y[rows], bounds - bounds[0]))
        return np.concatenate(blocks)

    def own(self, X: Rows, y: Rows) -> Array:
        """Return one user's head."""
        return np.asarray(self._block(X, y, np.array([0, len(X)]))[0])

    @property
    def shape(self) -> tuple[int, ...]:
        """Weights, then the taste."""
        return (self.catalogue.size + len(self.tastes.variances),)

    def _block(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        codes, values, bounds = self.catalogue.rated(X, y, offsets)
        if self.plays:
            weights = np.broadcast_to(self.prior.mean, (len(offsets) - 1, self.catalogue.size))
        else:
            weights = weights_of(codes, values, bounds, self.catalogue, self.prior)
        sums = kernels.feature_sums(codes, bounds, self.tastes.features)
        return np.hstack([weights, self.tastes.posterior(sums, np.diff(bounds).astype(np.float64))])


def weights_of(codes: Codes, values: Array, bounds: Offsets, catalogue: Catalogue, prior: WeightPrior) -> Array:
    """Return users' weights: the posterior, as far as it predicts their ratings better than a level alone."""
    full = posteriors(codes, values, bounds, catalogue, prior)
    weights = full.weights(prior)
    level_catalogue, level_prior = _level_alone(catalogue, prior)
    level = posteriors(codes, values, bounds, level_catalogue, level_prior)
    levels = level.weights(level_prior)
    one = left_out(codes, values, bounds, catalogue, prior, full)
    other = left_out(codes, values, bounds, level_catalogue, level_prior, level)
    gap = other - one
    owner = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
    squares = np.bincount(owner, np.square(gap), minlength=len(bounds) - 1)
    products = np.bincount(owner, other * gap, minlength=len(bounds) - 1)
    trust = _EVIDENCE * squares / np.maximum(full.rows, 1.0)
    share = np.clip((products + trust) / np.maximum(squares + trust, 1e-300), 0.0, 1.0)
    # If both predict the same, the difference is rounding error, which another order of sums would change.
    size = np.bincount(owner, np.square(other), minlength=len(bounds) - 1)
    share = np.where(squares > 1e-20 * size, share, 1.0)[:, None]
    simple = np.broadcast_to(prior.mean, weights.shape).copy()
    simple[:, 0] = levels[:, 0] + prior.mean[0]
    return np.asarray(share * weights + (1.0 - share) * simple)


def left_out(
    codes: Codes, values: Array, bounds: Offsets, catalogue: Catalogue, prior: WeightPrior, found: Posteriors
) -> Array:
    """Return each rating's residual when its user's posterior is computed without it; no refitting is needed.

    With q = zᵀVz/s² for the posterior covariance V, a residual e becomes e/(1 − q).
    """
    left = kernels.residuals(codes, values, bounds, catalogue.table, catalogue.effects, found.weights(prior))
    spread = prior.root @ found.covariances @ prior.root.T
    leverage = kernels.quadratic(codes, bounds, catalogue.table, np.ascontiguousarray(spread)) / prior.noise
    return np.asarray(left / np.maximum(1.0 - leverage, 1e-9))


def _level_alone(catalogue: Catalogue, prior: WeightPrior) -> tuple[Catalogue, WeightPrior]:
    """Return catalogue and prior of a user with a level of their own around the population's weights."""
    effects = catalogue.effects + catalogue.table @ prior.mean
    typical = catalogue.table.mean(axis=0)
    variance = float(typical @ prior.covariance @ typical)
    # For a user with a level only, the part of a rating that features explain is noise.
    extra = float(np.einsum("ij,jk,ik->i", catalogue.table, prior.covariance, catalogue.table).mean()) - variance
    table = np.ones((catalogue.items, 1))
    alone = WeightPrior(np.zeros(1), np.full((1, 1), np.sqrt(variance)), prior.noise + max(extra, 0.0))
    return replace(catalogue, table=table, effects=effects), alone
