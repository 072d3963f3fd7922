"""Complete a matrix of ratings by soft thresholding of its singular values (Mazumder, Hastie, Tibshirani 2010).

AMHT-LRS (Pal et al. 2024, A.1.2) uses it for features of items: the ratings are completed under a nuclear-norm penalty,
and the leading right singular vectors are the features. They are computed from all ratings without privacy, so a model
on top of them protects no user. For experiments without privacy only.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tacitly.arrays import Array

Codes = npt.NDArray[np.int64]

LARGEST = 50_000_000
"""Maximum number of cells of a completed matrix, which is dense."""

_HELD_OUT = 0.1
_STEPS = 100


def complete(users: Codes, items: Codes, values: Array, shape: tuple[int, int]) -> Array:
    """Return the completed matrix; the penalty is chosen on a tenth of the ratings, then all are used.

    >>> left, right = np.arange(1.0, 21.0), np.array([1.0, -1.0, 2.0, 0.5, 1.5, -2.0])
    >>> whole, seen = np.outer(left, right), np.arange(120) % 7 > 1
    >>> where = np.flatnonzero(seen)
    >>> found = complete(where // 6, where % 6, whole.ravel()[where], (20, 6))
    >>> bool(np.linalg.norm(found - whole) < 0.05 * np.linalg.norm(whole))
    True
    """
    held = np.random.default_rng(0).random(len(values)) < _HELD_OUT
    kept = ~held
    largest = float(np.linalg.norm(_filled(users[kept], items[kept], values[kept], shape), 2))
    penalties = largest * 2.0 ** -np.arange(1.0, 12.0)
    matrix, best, least = np.zeros(shape), 0, np.inf
    for number, penalty in enumerate(penalties):
        matrix = _soft_impute(users[kept], items[kept], values[kept], matrix, penalty)
        error = float(np.mean(np.square(matrix[users[held], items[held]] - values[held]))) if held.any() else 0.0
        if error <= least:
            best, least = number, error
    matrix = np.zeros(shape)
    for penalty in penalties[: best + 1]:  # each starts from the previous one: a small penalty alone converges slowly
        matrix = _soft_impute(users, items, values, matrix, penalty)
    return matrix


def _filled(users: Codes, items: Codes, values: Array, shape: tuple[int, int]) -> Array:
    matrix = np.zeros(shape)
    matrix[users, items] = values
    return matrix


def _soft_impute(users: Codes, items: Codes, values: Array, start: Array, penalty: float) -> Array:
    """Alternate between setting the known cells and shrinking all singular values by the penalty."""
    matrix = start
    for _ in range(_STEPS):
        filled = matrix.copy()
        filled[users, items] = values
        left, sizes, right = np.linalg.svd(filled, full_matrices=False)
        new = (left * np.maximum(sizes - penalty, 0.0)) @ right
        moved, size = float(np.linalg.norm(new - matrix)), float(np.linalg.norm(new))
        matrix = np.asarray(new)
        if moved <= 1e-4 * size:
            break
    return matrix
