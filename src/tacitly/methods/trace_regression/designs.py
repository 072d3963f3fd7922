"""Designs of trace regression, and how an observation is written as one row of numbers.

An observation is a matrix X (d₁×d₂) with a label y = ⟨X, M⟩ + noise. There are four designs. Only the dense one stores
the matrix; the others are X = a bᵀ, and nothing of size d₁·d₂ is ever formed for one of their observations:

* ``dense``: the matrix, row by row (d₁·d₂ numbers);
* ``rank-one``: a and b, one after the other (d₁ + d₂ numbers);
* ``entries``: X = e_i e_jᵀ, matrix completion: i and j (2 numbers);
* ``tasks``: X = e_t xᵀ, multi-task regression: the task t and its features x (1 + d₂ numbers).

A row whose position is not an integer in range contributes nothing. Which rows these are is private, so no error is
raised.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tacitly.arrays import Array, Rows, check_shape, row_products, rows_times

MOST_ROWS = 1 << 28
"""Largest number of rows, and of columns, of a matrix: limits the memory that a message from the network can claim."""

KINDS = ("dense", "rank-one", "entries", "tasks")


@dataclass(frozen=True)
class Design:
    """The shape of M and the format of observations; public.

    >>> Design("entries", 5, 4).n_features, Design("tasks", 5, 4).n_features, Design("dense", 5, 4).n_features
    (2, 5, 20)
    """

    kind: str
    d1: int
    d2: int

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"design must be one of {KINDS}. Found {self.kind!r}.")
        if not (1 <= self.d1 <= MOST_ROWS and 1 <= self.d2 <= MOST_ROWS):
            raise ValueError(f"shape must be two integers from 1 to {MOST_ROWS}. Found {(self.d1, self.d2)}.")

    @property
    def n_features(self) -> int:
        """Length of an observation's row of numbers."""
        return {"dense": self.d1 * self.d2, "rank-one": self.d1 + self.d2, "entries": 2, "tasks": 1 + self.d2}[
            self.kind
        ]

    @property
    def hot(self) -> tuple[bool, bool]:
        """Whether a and b are unit vectors given by their positions."""
        return self.kind in ("entries", "tasks"), self.kind == "entries"

    def placed(self, rows: Array) -> Array:
        """Return rows with valid positions in their position columns: the row's number modulo the size."""
        rows = np.array(rows)
        for column, (hot, size) in enumerate(zip(self.hot, (self.d1, self.d2), strict=True)):
            if hot:
                rows[:, column] = np.arange(len(rows)) % size
        return rows

    def fitted(self, X: Rows, left: Array, right: Array) -> Array:
        """Return ⟨X, left·rightᵀ⟩ of every row, from that row alone to the last bit; NaN for a position out of range.

        >>> Design("entries", 2, 2).fitted(np.array([[0.0, 1.0]]), np.array([[2.0], [3.0]]), np.array([[5.0], [7.0]]))
        array([14.])
        """
        if self.kind == "dense":
            rows = np.ascontiguousarray(X, dtype=np.float64)
            return np.asarray(np.einsum("ij,j->i", rows, (left @ right.T).ravel()))
        split = 1 if self.hot[0] else self.d1
        a, b = X[:, :split], X[:, split:]
        return row_products(_times(a, left, self.hot[0]), _times(b, right, self.hot[1]))

    def known(self, X: Rows) -> npt.NDArray[np.bool_]:
        """Return which rows have positions that are integers in range.

        >>> Design("entries", 2, 2).known(np.array([[0.0, 1.0], [0.0, 2.0], [0.5, 0.0]]))
        array([ True, False, False])
        """
        found = np.ones(len(X), dtype=np.bool_)
        with np.errstate(all="ignore"):
            for column, (hot, size) in enumerate(zip(self.hot, (self.d1, self.d2), strict=True)):
                if hot:
                    found &= (X[:, column] >= 0) & (X[:, column] < size) & (X[:, column] == np.floor(X[:, column]))
        return found

    def energies(self, X: Rows) -> tuple[Array, Array]:
        """Return the sums of squares by row and by column over all X, for public designs.

        Rows with a position out of range contribute nothing.
        """
        if self.kind == "dense":
            total = np.einsum("ij,ij->j", X, X, dtype=np.float64).reshape(self.d1, self.d2)
            return total.sum(axis=1), total.sum(axis=0)
        split = 1 if self.hot[0] else self.d1
        X = X[self.known(X)] if self.hot[0] else X
        left, right = (_squares(part, size, hot) for part, size, hot in self._parts(X, split))
        return _weighted(left, right), _weighted(right, left)

    def _parts(self, X: Rows, split: int) -> tuple[tuple[Rows, int, bool], tuple[Rows, int, bool]]:
        return (X[:, :split], self.d1, self.hot[0]), (X[:, split:], self.d2, self.hot[1])


@dataclass(frozen=True)
class Centre:
    """The public centre of a dense design and its labels: y = level + ⟨X − matrix, M⟩.

    ``weight`` is an observation's entry for the level, next to its entries in the scaled design.
    """

    matrix: Array
    level: float = 0.0
    weight: float = 0.0

    def __post_init__(self) -> None:
        check_shape("matrix", self.matrix, None, None)


def check_centre(centre: Centre | None, design: Design) -> None:
    """Raise unless the centre is None or fits the design.

    >>> check_centre(Centre(np.zeros((1, 3))), Design("dense", 1, 2))
    Traceback (most recent call last):
    ValueError: centre must have shape (1, 2). Found (1, 3).
    """
    if centre is None:
        return
    if design.kind != "dense":
        raise ValueError(f"only dense designs have a centre. Found {design.kind!r}.")
    check_shape("centre", centre.matrix, design.d1, design.d2)


def origin(design: Design, centre: Centre | None) -> Array:
    """Return the matrix to subtract from every dense X; zeros without a centre.

    >>> origin(Design("dense", 1, 2), None)
    array([[0., 0.]])
    """
    return np.zeros((design.d1, design.d2)) if centre is None else centre.matrix


def labels(y: Rows, centre: Centre | None) -> Rows:
    """Return labels with the level subtracted.

    >>> labels(np.array([3.0]), Centre(np.zeros((1, 1)), 1.0))
    array([2.])
    """
    return y if centre is None else y.astype(np.float64) - centre.level


Squares = tuple[npt.NDArray[np.int64] | Rows, int, bool]


def _squares(part: Rows, size: int, hot: bool) -> Squares:
    return (part[:, 0].astype(np.int64), size, True) if hot else (np.square(part, dtype=np.float64), size, False)


def _weighted(squares: Squares, other: Squares) -> Array:
    """Return Σ ‖b‖²·a² over rows, by coordinate of a."""
    values, size, hot = squares
    weights = np.ones(len(values)) if other[2] else np.asarray(other[0]).sum(axis=1)
    found = np.bincount(values, weights, minlength=size) if hot else weights @ values
    return np.asarray(found, dtype=np.float64)


def _times(part: Rows, factor: Array, hot: bool) -> Array:
    if not hot:
        return rows_times(part, factor)
    with np.errstate(all="ignore"):
        place = part[:, 0]
        known = (place >= 0) & (place < len(factor)) & (place == np.floor(place))
        rows = factor[np.where(known, place, 0).astype(np.int64)]
    return np.where(known[:, None], rows, np.nan)
