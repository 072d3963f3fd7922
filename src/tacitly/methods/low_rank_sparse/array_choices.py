"""Users' choice of the number of personal coordinates, by cross-validation on their own rows: array operations.

The same as :func:`~tacitly.methods.low_rank_sparse.head_kernels.choose_size`, for few users, for whom compiling would
take longer. :mod:`~tacitly.methods.low_rank_sparse.array_fits` fits every fold of every user. Users with fewer folds
than others take part without rows, so no number of one user depends on another user's rows, to the last bit.
"""

from __future__ import annotations

import numpy as np

from tacitly.arrays import Array, Offsets, per_user, rows_times
from tacitly.methods.low_rank_sparse.array_fits import ROUNDING, Fits, Indices, affordable, fit_in_arrays

FOLDS = 5
"""Number of parts of a user's rows that are left out in turn."""

DOUBT = 4.0
"""Standard errors by which personal coordinates must predict better than none before a user subtracts them in a round.

A head can later be averaged with the population's. A basis that was learned with coordinates that fit noise cannot be
corrected.
"""


def chosen_sizes(
    X: Array, y: Array, offsets: Offsets, basis: Array, scale: Array, sizes: Indices, *, intercept: bool, doubt: float
) -> Indices:
    """Return the number of coordinates of each user, one of ``sizes``.

    This is the smallest number whose left-out error is within one standard error of the smallest error, or zero if its
    error is within ``doubt`` standard errors (at least one).

    >>> rng = np.random.default_rng(0); X = rng.normal(size=(60, 6)); y = X @ [1.0, 1, 1, 1, 1, 4]
    >>> users, ones, sizes = np.array([0, 60]), np.ones((6, 1)), np.array([0, 1, 2])
    >>> chosen_sizes(X, y, users, ones, np.ones((1, 6)), sizes, intercept=False, doubt=1.0)
    array([1])
    """
    counts, fixed, most = np.diff(offsets), basis.shape[1] + int(intercept), int(sizes[-1])
    folds = np.maximum(np.minimum(FOLDS, counts), 1)
    owner = np.repeat(np.arange(len(counts)), counts)
    fold_of = (np.arange(len(X)) - np.repeat(offsets[:-1], counts)) % folds[owner]
    able = affordable(counts, fixed, most)
    allowed = np.minimum(affordable(counts - -(-counts // folds), fixed, most), able)
    errors, squares = np.zeros((len(counts), len(sizes))), np.zeros((len(counts), len(sizes)))
    along, scales = rows_times(X, basis), np.tile(scale, (FOLDS, 1))
    # All folds at once: first every user without the first part of their rows, then every user without the second...
    kept = [np.flatnonzero((fold_of != fold) & (fold < folds)[owner]) for fold in range(FOLDS)]
    starts = np.append(0, np.cumsum([np.bincount(owner[rows], minlength=len(counts)) for rows in kept]))
    rows, targets = X[np.concatenate(kept)], y[np.concatenate(kept)]
    for number, size in enumerate(sizes.tolist()):
        options = {"intercept": intercept, "stages": min(size, 4), "swaps": 2}
        fits = fit_in_arrays(rows, targets, starts, basis, scales, size, **options)
        found = np.square(_residuals(X, y, along, fold_of * len(counts) + owner, fits))
        errors[:, number], squares[:, number] = per_user(found, offsets), per_user(np.square(found), offsets)
    errors[sizes > allowed[:, None]] = np.inf
    best = np.argmin(errors, axis=1)[:, None]
    least, square = (np.take_along_axis(sums, best, axis=1)[:, 0] for sums in (errors, squares))
    spread = np.sqrt(np.maximum(square - least * least / np.maximum(counts, 1), 0.0))
    enough = least + ROUNDING * per_user(np.square(y), offsets)
    within = errors <= (enough + spread)[:, None]
    none = ~within[:, 1:].any(axis=1) | (errors[:, 0] <= enough + doubt * spread) | (able == 0)
    return np.where(none, 0, sizes[1:][np.argmax(within[:, 1:], axis=1)] if len(sizes) > 1 else 0)


def _residuals(X: Array, y: Array, along: Array, owner: Indices, fits: Fits) -> Array:
    """Return residuals of rows under fits of others; ``owner`` says which fit is for which row."""
    level = fits.means[0]
    for weight, mean in zip(fits.coefficients, fits.means[1:], strict=True):
        level = level - weight * mean
    left, rank = y - level[owner], along.shape[1]
    for b in range(rank):
        left = left - fits.coefficients[b][owner] * along[:, b]
    for place in range(fits.support.shape[1]):
        value = np.where(place < fits.sizes, fits.coefficients[rank + place], 0.0)[owner]
        features = fits.support[:, place][owner]
        left = left - value * np.take_along_axis(X, features[:, None], axis=1)[:, 0]
    return left
