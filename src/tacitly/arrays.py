"""Array types, and checks that guard compiled code."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
"""Double precision: all public values, and all contributions."""

Rows = npt.NDArray[np.floating]
"""Private rows (or targets), float32 or float64 as the cohort stores them."""

Offsets = npt.NDArray[np.int64]
"""Start of each user's rows: user i has rows offsets[i] to offsets[i + 1]."""

_AT_ONCE = 2048  # number of rows whose columns stay in cache

Kind = TypeVar("Kind", bound=np.generic)


def read_only(array: npt.NDArray[Kind]) -> npt.NDArray[Kind]:
    """Return a read-only view: cohort arrays are read-only, and Numba compiles a kernel again for writable ones.

    >>> read_only(np.ones(2)).flags.writeable
    False
    """
    view = array.view()
    view.flags.writeable = False
    return view


def per_user(values: Array, offsets: Offsets) -> Array:
    """Add up the rows of each user, one after another; zero for a user without rows.

    >>> per_user(np.array([[1.0], [2.0], [5.0]]), np.array([0, 2, 2, 3])).ravel()
    array([3., 0., 5.])
    """
    if len(offsets) > 1 and (offsets[1:] > offsets[:-1]).all():
        return np.asarray(np.add.reduceat(values, offsets[:-1]), dtype=np.float64)
    out = np.zeros((len(offsets) - 1, *values.shape[1:]))
    present = np.flatnonzero(np.diff(offsets))
    if len(present):
        out[present] = np.add.reduceat(values, offsets[present])
    return out


def rows_times(X: Rows, matrix: Array) -> Array:
    """Return X·matrix; each row's result depends on that row only, to the last bit, which BLAS does not guarantee.

    Columns of X are added one after another. Use it for a small number of columns, and compiled kernels for more.

    >>> rows_times(np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[1.0], [1.0]]))
    array([[3.],
           [7.]])
    """
    out = np.empty((len(X), matrix.shape[1]))
    for start in range(0, len(X), _AT_ONCE):
        columns = np.ascontiguousarray(X[start : start + _AT_ONCE].T, dtype=np.float64)
        products = np.zeros((matrix.shape[1], columns.shape[1]))
        for column, weights in zip(columns, matrix, strict=True):
            products += weights[:, None] * column
        out[start : start + _AT_ONCE] = products.T
    return out


def row_products(first: Array, second: Array) -> Array:
    """Return the sum of products of each pair of rows; it depends on that pair only, to the last bit.

    The arrays must be row-major. If they are column-major, NumPy sums one row in another order than several rows, and
    so reveals whether there is only one row.

    >>> row_products(np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[1.0, 1.0], [2.0, 0.0]]))
    array([3., 6.])
    """
    return np.asarray(np.einsum("ij,ij->i", np.ascontiguousarray(first), np.ascontiguousarray(second)))


def check_shape(name: str, array: npt.NDArray[np.floating], *sizes: int | None) -> None:
    """Raise unless an array has these sizes (None for any size): compiled loops do not check bounds.

    >>> check_shape("basis", np.zeros((3, 2)), 3, None)
    >>> check_shape("basis", np.zeros(3), 3, None)
    Traceback (most recent call last):
    ValueError: basis must have shape (3, any). Found (3,).
    """
    fits = array.ndim == len(sizes)
    if not (fits and all(size in (None, found) for size, found in zip(sizes, array.shape, strict=True))):
        wanted = ", ".join("any" if size is None else str(size) for size in sizes) + ("," if len(sizes) == 1 else "")
        raise ValueError(f"{name} must have shape ({wanted}). Found {array.shape}.")


def check_size(name: str, value: int, most: int) -> None:
    """Raise unless an integer lies between 1 and ``most``, so that an untrusted size cannot exhaust memory.

    >>> check_size("steps", 0, 10)
    Traceback (most recent call last):
    ValueError: steps must lie between 1 and 10. Found 0.
    """
    if not 1 <= value <= most:
        raise ValueError(f"{name} must lie between 1 and {most}. Found {value}.")
