"""What an observation of trace regression looks like, and how it is written as one row of numbers.

An observation is a matrix X (d₁×d₂) with a label y = ⟨X, M⟩ + noise. Four designs cover what people have. Only the
dense one is written out; the others are X = a bᵀ, and nothing of size d₁·d₂ is ever made for one of their observations:

* ``dense``: the matrix, row by row (d₁·d₂ numbers);
* ``rank-one``: a and b, one after the other (d₁ + d₂ numbers);
* ``entries``: X = e_i e_jᵀ, matrix completion: i and j (2 numbers);
* ``tasks``: X = e_t xᵀ, multi-task regression: the task t and its features x (1 + d₂ numbers).

A row whose position is no whole number in range adds nothing: which rows those are is private, so nothing is raised.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tacitly.arrays import Array, Rows, check_shape

MOST_ROWS = 1 << 28
"""Of a matrix, and columns: a shape that arrives must not cost all the memory."""

KINDS = ("dense", "rank-one", "entries", "tasks")


@dataclass(frozen=True)
class Design:
    """The shape of M and how observations are written; public.

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
            raise ValueError(f"the shape must be two positive numbers, up to {MOST_ROWS}. Found {(self.d1, self.d2)}.")

    @property
    def n_features(self) -> int:
        """Numbers that an observation is written as."""
        return {"dense": self.d1 * self.d2, "rank-one": self.d1 + self.d2, "entries": 2, "tasks": 1 + self.d2}[
            self.kind
        ]

    @property
    def hot(self) -> tuple[bool, bool]:
        """Whether a, and whether b, is a unit vector given by its position."""
        return self.kind in ("entries", "tasks"), self.kind == "entries"

    def fitted(self, X: Rows, left: Array, right: Array) -> Array:
        """Return ⟨X, left·rightᵀ⟩ of every row; a position out of range gives NaN.

        >>> Design("entries", 2, 2).fitted(np.array([[0.0, 1.0]]), np.array([[2.0], [3.0]]), np.array([[5.0], [7.0]]))
        array([14.])
        """
        if self.kind == "dense":
            return np.asarray(X @ (left @ right.T).ravel(), dtype=np.float64)
        split = 1 if self.hot[0] else self.d1
        a, b = X[:, :split], X[:, split:]
        return np.asarray(np.einsum("ij,ij->i", _times(a, left, self.hot[0]), _times(b, right, self.hot[1])))

    def known(self, X: Rows) -> npt.NDArray[np.bool_]:
        """Return which rows have positions that are whole numbers in range.

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
        """Return sums of squares in every row, and in every column, of all X: for designs that are public.

        Rows with a position out of range add nothing, here as everywhere.
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
    """Where dense designs and their labels are counted from, public: y = level + ⟨X − matrix, M⟩.

    ``weight`` is what an observation weighs when the level is fitted, next to its entries in the scaled design.
    """

    matrix: Array
    level: float = 0.0
    weight: float = 0.0

    def __post_init__(self) -> None:
        check_shape("matrix", self.matrix, None, None)


def check_centre(centre: Centre | None, design: Design) -> None:
    """Raise unless a centre, where there is one, is of this design.

    >>> check_centre(Centre(np.zeros((1, 3))), Design("dense", 1, 2))
    Traceback (most recent call last):
    ValueError: centre must have shape (1, 2). Found (1, 3).
    """
    if centre is None:
        return
    if design.kind != "dense":
        raise ValueError(f"only dense designs are counted from a centre. Found {design.kind!r}.")
    check_shape("centre", centre.matrix, design.d1, design.d2)


def origin(design: Design, centre: Centre | None) -> Array:
    """Return the matrix to subtract from every dense X; zeros for none.

    >>> origin(Design("dense", 1, 2), None)
    array([[0., 0.]])
    """
    return np.zeros((design.d1, design.d2)) if centre is None else centre.matrix


def labels(y: Rows, centre: Centre | None) -> Rows:
    """Return labels counted from the level.

    >>> labels(np.array([3.0]), Centre(np.zeros((1, 1)), 1.0))
    array([2.])
    """
    return y if centre is None else y.astype(np.float64) - centre.level


Squares = tuple[npt.NDArray[np.int64] | Rows, int, bool]


def _squares(part: Rows, size: int, hot: bool) -> Squares:
    return (part[:, 0].astype(np.int64), size, True) if hot else (np.square(part, dtype=np.float64), size, False)


def _weighted(squares: Squares, other: Squares) -> Array:
    """Σ of a² (by coordinate), each row times ‖b‖²."""
    values, size, hot = squares
    weights = np.ones(len(values)) if other[2] else np.asarray(other[0]).sum(axis=1)
    found = np.bincount(values, weights, minlength=size) if hot else weights @ values
    return np.asarray(found, dtype=np.float64)


def _times(part: Rows, factor: Array, hot: bool) -> Array:
    if not hot:
        return np.asarray(part @ factor, dtype=np.float64)
    with np.errstate(all="ignore"):
        place = part[:, 0]
        known = (place >= 0) & (place < len(factor)) & (place == np.floor(place))
        rows = factor[np.where(known, place, 0).astype(np.int64)]
    return np.where(known[:, None], rows, np.nan)
