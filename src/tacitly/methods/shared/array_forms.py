"""Statistics of many users at once by array operations, without compiled code: shared by the linear queries.

No number of one user depends on another user's rows, to the last bit: rows are changed entry by entry and added up user
by user (:func:`~tacitly.arrays.per_user`), and all later arrays have one row per user. Nothing here raises an error
because of private numbers; numbers that are not finite stay in their user's row.
"""

from __future__ import annotations

import itertools
import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from tacitly.arrays import Array, Offsets, Rows, per_user, read_only
from tacitly.linalg import pack_symmetric
from tacitly.privacy.clipping import LEAST
from tacitly.simd.small_solves import TINY_RIDGE

_NARROW = 4  # columns whose products are faster by array operations


def of_rows(values: Array, offsets: Offsets) -> Array:
    """Return each user's entry once for every row of that user."""
    return np.repeat(values, np.diff(offsets), axis=0)


def centred(values: Rows, offsets: Offsets) -> Array:
    """Return rows (or targets) minus the mean of the same user's rows (or targets).

    >>> centred(np.array([1.0, 3.0, 5.0]), np.array([0, 2, 3]))
    array([-1.,  1.,  0.])
    """
    numbers = np.asarray(values, dtype=np.float64)
    counts = np.maximum(np.diff(offsets), 1).reshape(-1, *(1,) * (numbers.ndim - 1))
    return np.asarray(numbers - of_rows(per_user(numbers, offsets) / counts, offsets))


def packed_moments(rows: Array, offsets: Offsets) -> Array:
    """Return XᵀX of each user as :func:`~tacitly.linalg.pack_symmetric` packs it.

    >>> packed_moments(np.array([[1.0, 2.0], [0.0, 1.0]]), np.array([0, 2])).round(3)
    array([[1.   , 2.828, 5.   ]])
    """
    size = rows.shape[1]
    if size > _NARROW:  # a matrix product per user
        whole = np.empty((len(offsets) - 1, size, size))
        for user, (start, stop) in enumerate(itertools.pairwise(offsets.tolist())):
            own = rows[start:stop]
            np.matmul(own.T, own, out=whole[user])
        return pack_symmetric(whole)
    first, second = _triangle(size)
    out = per_user(rows[:, first] * rows[:, second], offsets)
    out[:, first != second] *= math.sqrt(2.0)
    return out


def unpacked(packed: Array, size: int) -> Array:
    """Return symmetric matrices, one per user, from :func:`packed_moments`."""
    first, second = _triangle(size)
    out = np.empty((len(packed), size, size))
    values = packed * np.where(first == second, 1.0, math.sqrt(0.5))
    out[:, first, second] = values
    out[:, second, first] = values
    return out


@lru_cache(maxsize=8)
def _triangle(size: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return rows and columns of the upper triangle."""
    first, second = np.triu_indices(size)
    return read_only(first), read_only(second)


def solve_each(systems: Array, rights: Array) -> Array:
    """Solve one positive definite system per user by Cholesky, with a tiny ridge; not finite where it is singular.

    >>> solve_each(np.array([[[4.0, 2.0], [2.0, 3.0]]]), np.array([[8.0, 8.0]])).round(6)
    array([[1., 2.]])
    """
    k = rights.shape[1]
    ridge = TINY_RIDGE * np.einsum("nii->n", systems)
    factor, solution = np.zeros_like(systems), np.empty_like(rights)
    for j in range(k):
        for i in range(j, k):
            value = systems[:, i, j] - (factor[:, i, :j] * factor[:, j, :j]).sum(axis=1)
            factor[:, i, j] = np.sqrt(value + ridge) if i == j else value / factor[:, j, j]
        solution[:, j] = (rights[:, j] - (factor[:, j, :j] * solution[:, :j]).sum(axis=1)) / factor[:, j, j]
    for j in range(k - 1, -1, -1):
        solution[:, j] = (solution[:, j] - (factor[:, j + 1 :, j] * solution[:, j + 1 :]).sum(axis=1)) / factor[:, j, j]
    return solution


def unit_rows(rows: Array, norms: Array) -> Array:
    """Divide each user's row by its norm; zeros if the norm is not finite, or if its square underflows."""
    usable = np.isfinite(norms) & (np.square(norms) > LEAST)
    return np.where(usable[:, None], rows, 0.0) / np.where(usable, norms, 1.0)[:, None]
