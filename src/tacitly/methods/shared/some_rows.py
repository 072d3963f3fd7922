"""A few rows of each user for the start, if there are so many users that more rows would hardly improve the fit.

The start (a whitening and a first basis) need not be as accurate as the fit, because the rounds correct it. But it must
exceed the noise of its two releases and the spread of users. If it does so by a wide margin with a few rows of each
user, the other rows are not read, and the start takes a fraction of the time.

Rows are chosen by their positions only, evenly spaced over the user's rows, so that rows sorted by time are read over
the whole period. The largest number of rows depends on public numbers only: users, features, rank and noise.

Privacy. A contribution is still a function of one user's rows and of public fields, with the same clipping bound. So
adjacency, sensitivity and event are those of the query.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tacitly.arrays import Offsets, Rows, read_only

LARGEST = 64
"""Largest limit on rows that a query may have; if more rows are needed, all are read."""

_USERS = 50_000  # number of users from which on rows are left out
_MOMENT, _VOTES = 8, 8  # rows of each user
_WIDE = 10.0  # times the effect of the noise and of the spread of users


class StartRows(NamedTuple):
    """Numbers of rows of each user that the two releases of a start read; 0 for all."""

    moment: int = 0
    votes: int = 0


def start_rows(n_users: float, n_features: int, rank: int, moment_sigma: float, votes_sigma: float) -> StartRows:
    """Return how many rows of each user the start needs, from public numbers.

    With m rows a user's moment of whitened features has norm one and trace √d/√(1 + d/m), and n users' votes add up to
    n·m/((m + d)k) along each of k directions, over a bulk of n/d. Noise of standard deviation σ has eigenvalues up to
    σ√(2d); n users in random directions spread the bulk by 2√(n/d).

    >>> start_rows(100_000, 64, 4, 15.0, 10.0), start_rows(20_000, 64, 4, 15.0, 10.0)
    (StartRows(moment=8, votes=8), StartRows(moment=0, votes=0))
    >>> start_rows(100_000, 64, 4, 150.0, 100.0)
    StartRows(moment=0, votes=0)
    """
    d = n_features
    moment = n_users / math.sqrt(d * (1.0 + d / _MOMENT))
    votes = n_users / rank * _VOTES / (_VOTES + d)
    above = min(
        moment / max(moment_sigma * math.sqrt(2.0 * d), math.sqrt(n_users / d)),
        votes / math.hypot(votes_sigma * math.sqrt(2.0 * d), 2.0 * math.sqrt(n_users / d)),
    )
    return StartRows(_MOMENT, _VOTES) if n_users >= _USERS and above >= _WIDE else StartRows()


def chosen(count: int, most: int) -> npt.NDArray[np.int64]:
    """Return which of ``count`` rows are read, at most ``most`` of them (0 for all).

    >>> chosen(20, 4), chosen(3, 4)
    (array([ 2,  7, 12, 17]), array([0, 1, 2]))
    """
    few = min(count, most) if most else count
    return (2 * np.arange(few) + 1) * count // (2 * max(few, 1))


def thinned(X: Rows, y: Rows, offsets: Offsets, most: int) -> tuple[Rows, Rows, Offsets]:
    """Return the chosen rows and targets of several users, and their offsets."""
    if not most:
        return X, y, offsets
    counts = np.diff(offsets)
    few = np.minimum(counts, most)
    starts = np.append(0, np.cumsum(few))
    place = np.arange(starts[-1]) - np.repeat(starts[:-1], few)
    rows = np.repeat(offsets[:-1], few) + (2 * place + 1) * np.repeat(counts, few) // (2 * np.repeat(few, few))
    return read_only(X[rows]), read_only(y[rows]), starts
