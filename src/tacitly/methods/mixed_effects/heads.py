"""Heads that are posteriors of users' weights under the public prior. Users compute them locally; never released.

A head is the user's p weights (:mod:`~tacitly.methods.mixed_effects.evidence`), the upper triangle of the covariance of
their error, both in public coordinates, and the factor of the user's own noise
(:mod:`~tacitly.methods.mixed_effects.own_noise`). The head of a user without rows is the prior; with many rows the
prior hardly matters.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from tacitly.arrays import Array, Offsets, Rows, check_shape, row_products
from tacitly.heads.base import HeadWork
from tacitly.methods.mixed_effects.evidence import CHANCE, SCALES, TRUSTED, own_noise, personal_weights, shares_of
from tacitly.methods.mixed_effects.posterior import Coordinates, Prior, users_at_once
from tacitly.methods.mixed_effects.statistics import Moments, left_out_sums, misfits_of, triangle

_MANY = 8192  # users from which on they are computed by compiled kernels, as a shard's sums are


@dataclass(frozen=True)
class PosteriorHeads(HeadWork):
    """Means and covariances of users' weights under a public prior; ``odds`` are the prior odds of the candidates."""

    units: Coordinates
    prior: Prior
    odds: Array
    span: ClassVar[int] = _MANY
    short_span: ClassVar[int] = 1024
    """Users per span where there are fewer than ``span``: several threads, and arrays that stay in cache."""

    def __post_init__(self) -> None:
        check_shape("odds", self.odds, len(TRUSTED))

    def __call__(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        """Return one head per user; compiled if there are many."""
        form = self._compiled if len(offsets) > _MANY else self._block
        blocks, size = [], users_at_once(self.units.size)
        for first in range(0, len(offsets) - 1, size):
            bounds = offsets[first : first + size + 1]
            rows = slice(int(bounds[0]), int(bounds[-1]))
            blocks.append(form(X[rows], y[rows], bounds - bounds[0]))
        return np.concatenate(blocks) if blocks else np.zeros((0, *self.shape))

    def own(self, X: Rows, y: Rows) -> Array:
        """Return one user's head."""
        return np.asarray(self._block(X, y, np.array([0, len(X)]))[0])

    @property
    def shape(self) -> tuple[int, ...]:
        """Weights, the upper triangle of their covariance, and the factor of the noise."""
        return (self.units.size + triangle(self.units.size) + 1,)

    def _block(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        weights, covariances, noise = personal_weights(X, y, offsets, self.units, self.prior, self.odds)
        upper = np.triu_indices(self.units.size)
        return np.hstack([weights, covariances[:, upper[0], upper[1]], noise[:, None]])

    def _compiled(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        """Return what :func:`~tacitly.methods.mixed_effects.evidence.personal_weights` does, by compiled kernels."""
        from tacitly.methods.mixed_effects.head_kernels import write_mixed

        moments, size = Moments(self.units)(X, y, offsets), self.units.size
        rows, entries = moments[:, -1], triangle(size)
        candidates, errors = np.zeros((len(SCALES) + 1, len(rows), size)), np.zeros((len(SCALES) + 1, len(rows)))
        posteriors, freedoms = np.zeros((0, entries)), np.ones_like(errors)
        first, second = np.triu_indices(size)
        twice = moments[:, :entries] * np.where(first == second, 1.0, 2.0)
        for number, scale in enumerate(SCALES):
            prior = replace(self.prior, noise=scale * self.prior.noise)
            sums, found = left_out_sums(X, y, offsets, self.units, prior, np.zeros(0), moments)
            candidates[number], errors[number], errors[-1] = found[:, entries:], sums[:, 1], sums[:, 0]
            freedoms[number] = np.einsum("ij,ij->i", found[:, :entries], twice) / prior.noise
            if scale == 1.0:
                posteriors = found
        count = np.maximum(rows, 1.0)
        candidates[-1, :, 0] = np.where(rows > 0, moments[:, entries] / count, self.prior.mean[0])
        errors = np.where(rows > 0, errors, 0.0)
        shares = shares_of((errors + CHANCE * self.prior.noise) / count, freedoms, rows, self.odds)
        out = np.empty((len(rows), *self.shape))
        write_mixed(candidates, shares, posteriors, np.ascontiguousarray(rows), self.prior.mean, out)
        misfits = misfits_of(moments, posteriors, self.prior)
        out[:, -1] = own_noise(shares, errors / self.prior.noise, misfits, rows)
        return out


def variances(design: Array, triangles: Array) -> Array:
    """Return zᵀVz for each row z of the design, with V the covariance whose upper triangle stands in the same row.

    >>> variances(np.array([[1.0, 2.0]]), np.array([[1.0, 0.5, 3.0]]))  # 1 + 2·0.5·2 + 3·4
    array([15.])
    """
    first, second = np.triu_indices(design.shape[1])
    products = design[:, first] * design[:, second] * np.where(first == second, 1.0, 2.0)
    return row_products(products, triangles)
