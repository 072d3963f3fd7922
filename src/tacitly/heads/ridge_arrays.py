"""Heads of a few users at once with array operations: as :mod:`tacitly.heads.ridge`, without compiled code.

Rows are processed entry by entry and summed user by user, so a head is a function of its user's rows alone.
"""

from __future__ import annotations

import contextlib

import numpy as np
import numpy.typing as npt

from tacitly.arrays import Array, Offsets, per_user
from tacitly.heads.penalties import LEAST_NONE, LEAST_ONE, LEAST_TRACE, PENALTIES


def ridges_and_errors(
    rows: Array, targets: Array, offsets: Offsets, *, intercept: bool, least: float = 0.0
) -> tuple[Array, Array]:
    """Return :func:`~tacitly.heads.ridge.ridge_and_error` for each user: heads with the intercept last, and errors."""
    heads, errors, alone = ridges_beside_means(rows, targets, offsets, intercept=intercept, least=least)
    return heads, np.where(np.isfinite(errors), errors, alone) if intercept else errors


def ridges_beside_means(
    rows: Array, targets: Array, offsets: Offsets, *, intercept: bool, least: float = 0.0
) -> tuple[Array, Array, Array]:
    """Return heads and their errors, infinite if there is nothing to fit, and the errors of users' own means."""
    counts, k = np.diff(offsets), rows.shape[1]
    present = np.maximum(counts, 1)
    means, levels = np.zeros((len(counts), k)), np.zeros(len(counts))
    if intercept:
        means, levels = per_user(rows, offsets) / present[:, None], per_user(targets, offsets) / present
        rows, targets = rows - np.repeat(means, counts, axis=0), targets - np.repeat(levels, counts)
    systems, rights = outer_sums(rows, offsets), per_user(rows * targets[:, None], offsets)
    traces = np.einsum("nii->n", systems)
    usable = np.isfinite(traces) & (traces > LEAST_TRACE) & np.isfinite(rights).all(axis=1)
    usable &= np.isfinite(systems).all(axis=(1, 2))
    values, vectors, found = eigenvectors(np.where(usable[:, None, None], systems, np.eye(k)))
    usable &= found
    traces = np.where(usable, traces, k)
    turned, rights = along(rows, vectors, counts), np.einsum("nb,nbc->nc", rights, vectors)
    penalties = PENALTIES[:, None] * (traces / k)[:, None, None] + least
    shrinkage = 1.0 / (np.maximum(values, 0.0)[:, None] + penalties)
    fitted = along(turned, (shrinkage * rights[:, None]).transpose(0, 2, 1), counts)
    leverage = along(np.square(turned), shrinkage.transpose(0, 2, 1), counts)
    share = np.repeat(1.0 / present, counts)[:, None] if intercept else 0.0
    left = (targets[:, None] - fitted) / np.maximum(1.0 - leverage - share, 1e-6)
    errors = per_user(np.square(left), offsets)
    errors[np.arange(len(PENALTIES)) < _least_penalties(counts - k - int(intercept))[:, None]] = np.inf
    best = errors.min(axis=1, keepdims=True)
    weights = np.where(errors == best, 1.0, (best / errors) ** (counts / 2.0)[:, None])
    totals = weights.sum(axis=1)
    heads = np.einsum("nbc,nc->nb", vectors, np.einsum("nq,nqc->nc", weights, shrinkage) * rights / totals[:, None])
    left_out = np.where(weights > 0, weights * errors, 0.0).sum(axis=1) / totals
    alone = own_errors(targets, offsets)
    heads = np.where(usable[:, None], heads, 0.0)
    own = levels - np.einsum("nb,nb->n", np.where(usable[:, None], means, 0.0), heads)
    heads = np.column_stack([heads, np.where(np.isfinite(own), own, 0.0) if intercept else np.zeros(len(counts))])
    return heads, np.where(usable, left_out, np.inf), alone


def own_errors(centred: Array, offsets: Offsets) -> Array:
    """Return the leave-one-out sum of squared errors of each user's mean from centred values; infinite without rows."""
    counts = np.diff(offsets)
    errors = per_user(np.square(centred), offsets) * np.square(counts / np.maximum(counts - 1.0, 1e-6))
    return np.where(counts > 0, errors, np.inf)


def inverses(matrices: Array) -> Array:
    """Return the inverse of each matrix, computed independently of the others; NaN for singular matrices."""
    try:
        return np.asarray(np.linalg.inv(matrices), dtype=np.float64)
    except np.linalg.LinAlgError:
        found = np.full_like(matrices, np.nan)
        for i, matrix in enumerate(matrices):
            with contextlib.suppress(np.linalg.LinAlgError):
                found[i] = np.linalg.inv(matrix)
        return found


def eigenvectors(matrices: Array) -> tuple[Array, Array, npt.NDArray[np.bool_]]:
    """Return eigenvalues and eigenvectors of symmetric matrices, each computed independently, and whether they exist.

    If columns have very different sizes, LAPACK may not converge, and NumPy then raises for all matrices together. The
    identity's eigenvalues and eigenvectors are returned in place of missing ones.
    """
    found = np.ones(len(matrices), dtype=bool)
    try:
        values, vectors = np.linalg.eigh(matrices)
    except np.linalg.LinAlgError:
        values, vectors = np.ones(matrices.shape[:2]), np.tile(np.eye(matrices.shape[1]), (len(matrices), 1, 1))
        for i, matrix in enumerate(matrices):
            try:
                values[i], vectors[i] = np.linalg.eigh(matrix)
            except np.linalg.LinAlgError:
                found[i] = False
    return values, vectors, found


def outer_sums(rows: Array, offsets: Offsets) -> Array:
    """Return XᵀX of each user.

    >>> outer_sums(np.array([[1.0, 2.0], [0.0, 1.0]]), np.array([0, 2]))[0]
    array([[1., 2.],
           [2., 5.]])
    """
    columns = [per_user(rows * column[:, None], offsets) for column in rows.T]
    return np.stack(columns, axis=1) if columns else np.zeros((len(offsets) - 1, 0, 0))


def along(rows: Array, matrices: Array, counts: npt.NDArray[np.int64]) -> Array:
    """Return each row multiplied by its user's matrix.

    >>> along(np.array([[1.0], [2.0]]), np.array([[[3.0]], [[5.0]]]), np.array([1, 1])).ravel()
    array([ 3., 10.])
    """
    out = np.zeros((len(rows), matrices.shape[2]))
    for b in range(rows.shape[1]):
        out += rows[:, b, None] * np.repeat(matrices[:, b], counts, axis=0)
    return out


def _least_penalties(free: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the index of each user's smallest penalty to use; ``free`` is rows minus unknowns, per user."""
    return np.where(free <= 0, LEAST_NONE, np.where(free == 1, LEAST_ONE, 0))
