"""Array types, and checks that guard compiled code."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
"""Double precision: everything public, and every contribution."""

Rows = npt.NDArray[np.floating]
"""Private rows (or targets), float32 or float64 as the cohort stores them."""

Offsets = npt.NDArray[np.int64]
"""Where each user's rows begin: user i has rows offsets[i] to offsets[i + 1]."""

Kind = TypeVar("Kind", bound=np.generic)


def read_only(array: npt.NDArray[Kind]) -> npt.NDArray[Kind]:
    """Return a read-only view: cohort arrays are read-only, and Numba compiles a kernel again for writable ones.

    >>> read_only(np.ones(2)).flags.writeable
    False
    """
    view = array.view()
    view.flags.writeable = False
    return view


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
