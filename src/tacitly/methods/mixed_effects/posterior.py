"""One user's posterior under a public prior, for many users at once.

Model: y = zᵀwᵢ + e with z = (1, x), wᵢ ~ N(w̄, S), e ~ N(0, s²). With S = L Lᵀ and r = y − Zw̄, in coordinates where the
prior is standard normal (w = w̄ + L v):

    G = LᵀZᵀZL/s²,  R = (I + G)⁻¹ (posterior covariance),  u = R·LᵀZᵀr/s² (posterior mean),  J = RG = I − R.

u is also the score for w̄, and J its information: both are LᵀZᵀΩ⁻¹(r, ZL), where Ω = Z S Zᵀ + s² I is the covariance of
y. So E[u uᵀ] = J if the prior is correct; the method learns the prior from this equation.

The numbers of one user depend on that user's rows only, to the last bit. Rows are added one after the other, and
everything after that has one p×p matrix per user, whose position in memory does not depend on any number of rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tacitly.arrays import Array, Offsets, Rows, check_shape
from tacitly.methods.shared.batch import per_user

KNEE = 5.0
"""Standardised features beyond ±knee grow logarithmically, up to twice that: no absurd cell rules a user's fit."""

_CELLS = 1 << 21  # numbers that products of columns may take at once
_MOST_USERS, _NUMBERS = 4096, 1 << 24  # whose posteriors are computed together, and numbers in one matrix of each


@dataclass(frozen=True)
class Coordinates:
    """Public units of features and target: z = (1, (x − center)·gain), target (y − level)/spread.

    A feature with a gain of zero is left out: z has an entry for each of the others. A missing cell is replaced by the
    center, the population's mean. A spread of zero means that the target's scale was not found, so nothing can be
    learned. Standardised features stay linear up to ±``knee``.
    """

    center: Array
    gain: Array
    level: float
    spread: float
    knee: float = KNEE

    def __post_init__(self) -> None:
        check_shape("center", self.center, None)
        check_shape("gain", self.gain, len(self.center))
        if not 1.0 <= self.knee <= 1000.0:
            raise ValueError(f"knee must be between 1 and 1000. Found {self.knee!r}.")
        if not (np.isfinite(self.center).all() and (self.gain >= 0).all() and self.spread >= 0):
            raise ValueError("centers must be finite, gains and the spread not negative.")

    @classmethod
    def stored(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> Coordinates:
        """Return the units that a model folder has stored: centers, gains and :meth:`target_array`."""
        target = [float(value) for value in arrays["target"]]
        if len(target) != 3:
            raise ValueError(f"units of the target must be level, spread and knee. Found {len(target)} numbers.")
        return cls(arrays["center"], arrays["gain"], *target)

    def target_array(self) -> Array:
        """Return the numbers that a model folder stores beside centers and gains."""
        return np.array([self.level, self.spread, self.knee])

    @property
    def used(self) -> npt.NDArray[np.int64]:
        """Positions of the features that are not left out."""
        return np.flatnonzero(self.gain)

    @property
    def size(self) -> int:
        """Number of weights, p: the intercept and the features that are used."""
        return 1 + int(np.count_nonzero(self.gain))

    def raw(self, weights: Array) -> Array:
        """Return weights as intercept and coefficients in the units of the data; zeros for features left out."""
        raw = weights @ self._to_raw().T
        raw[..., 0] += self.level
        return np.asarray(raw)

    def raw_covariance(self, covariance: Array) -> Array:
        """Return a covariance of weights as that of intercept and coefficients in the units of the data."""
        turn = self._to_raw()
        return np.asarray(turn @ covariance @ turn.T)

    def _to_raw(self) -> Array:
        used = self.used
        turn = np.zeros((len(self.center) + 1, len(used) + 1))
        turn[0, 0] = 1.0
        turn[used + 1, np.arange(len(used)) + 1] = self.gain[used]
        turn[0, 1:] = -self.gain[used] * self.center[used]
        return np.asarray(turn * (self.spread or 1.0))

    def design(self, X: Rows) -> Array:
        """Return rows as (1, standardised features)."""
        used, knee = self.used, self.knee
        rows = (np.asarray(X[:, used], dtype=np.float64) - self.center[used]) * self.gain[used]
        rows = np.where(np.isfinite(rows), rows, 0.0)
        size = np.abs(rows)
        bounded = np.minimum(knee * (1.0 + np.log(np.maximum(size, knee) / knee)), 2.0 * knee)
        rows = np.where(size <= knee, rows, np.sign(rows) * bounded)
        return np.concatenate([np.ones((len(rows), 1)), rows], axis=1)

    def targets(self, y: Rows) -> Array:
        """Return standardised targets."""
        return np.asarray((np.asarray(y, dtype=np.float64) - self.level) / (self.spread or 1.0))


@dataclass(frozen=True)
class Slopes(Coordinates):
    """Coordinates without an intercept, for models that have none; centers are zero."""

    @property
    def size(self) -> int:
        """Number of weights, p: the features that are used."""
        return int(np.count_nonzero(self.gain))

    def design(self, X: Rows) -> Array:
        """Return rows as standardised features."""
        return super().design(X)[:, 1:]

    @property
    def levelled(self) -> Coordinates:
        """The same with an intercept, as kernels take it."""
        return Coordinates(self.center, self.gain, self.level, self.spread, self.knee)


@dataclass(frozen=True)
class Prior:
    """The public prior: w ~ N(mean, root·rootᵀ) and noise variance, in public coordinates; and the loss."""

    mean: Array
    root: Array
    noise: float
    loss: str = "squared"

    def __post_init__(self) -> None:
        several = (None,) if self.loss == "logistic" and self.mean.ndim > 1 else ()  # one row per class
        check_shape("mean", self.mean, *several, None)
        check_shape("root", self.root, self.mean.shape[-1], self.mean.shape[-1])
        if self.loss not in ("squared", "logistic", "poisson"):
            raise ValueError(f"loss must be 'squared', 'logistic' or 'poisson'. Found {self.loss!r}.")
        if not self.noise > 0:
            raise ValueError(f"noise must be positive. Found {self.noise!r}.")

    @property
    def covariance(self) -> Array:
        """S."""
        return np.asarray(self.root @ self.root.T)

    def doubted(self, covariance: Array) -> Prior:
        """Return the prior if the mean is known up to an error with this covariance: N(mean, S + covariance).

        With many users this changes nothing. If privacy noise makes the mean uncertain, users trust their own rows
        more, and intervals are wider.
        """
        values, vectors = np.linalg.eigh(self.covariance + covariance)
        return replace(self, root=vectors * np.sqrt(np.maximum(values, 1e-14 * values[-1])))


def users_at_once(weights: int) -> int:
    """Return how many users' posteriors are computed together, for users with so many weights: a public number.

    >>> users_at_once(14), users_at_once(1000)
    (4096, 16)
    """
    return max(1, min(_MOST_USERS, _NUMBERS // weights**2))


@dataclass(frozen=True)
class Posteriors:
    """Posteriors of several users in whitened coordinates, one row per user."""

    means: Array  # u, n×p
    covariances: Array  # R, n×p×p
    information: Array  # J, n×p×p
    residuals: Array  # ‖y − Zw‖² at the posterior mean
    rows: Array  # m; 0 for a user whose numbers cannot be used


def posteriors(X: Rows, y: Rows, offsets: Offsets, coordinates: Coordinates, prior: Prior) -> Posteriors:
    """Return the posteriors of several users; a user without rows has the prior.

    >>> units = Coordinates(np.zeros(1), np.ones(1), 0.0, 1.0)
    >>> one = posteriors(np.zeros((2, 1)), np.ones(2), np.array([0, 2]), units, Prior(np.zeros(2), np.eye(2), 1.0))
    >>> one.means.round(3), one.covariances[0].round(3).tolist()  # the mean of two ones, shrunk to zero by a third
    (array([[0.667, 0.   ]]), [[0.333, 0.0], [0.0, 1.0]])
    """
    return posteriors_of(solved(moments(X, y, offsets, coordinates), prior.root, prior.noise), prior)


@dataclass(frozen=True)
class Solved:
    """The part of several users' posteriors that does not depend on the prior's mean."""

    moments: tuple[Array, Array, Array, Array]  # as :func:`moments` returns them; no rows where there is no inverse
    covariances: Array
    information: Array


def solved(found: tuple[Array, Array, Array, Array], root: Array, noise: float) -> Solved:
    """Return the covariances of posteriors from moments, under a prior with this root and noise."""
    grams, rights, squares, rows = found
    whitened = root.T @ grams @ root / noise
    covariances, usable = _inverses(np.eye(len(root)) + whitened)
    information = covariances @ whitened
    information = (information + information.transpose(0, 2, 1)) / 2.0
    return Solved((grams, rights, squares, np.where(usable, rows, 0.0)), covariances, information)


def posteriors_of(found: Solved, prior: Prior) -> Posteriors:
    """Return posteriors under a prior whose root and noise are those that were solved for."""
    (grams, rights, squares, rows), root = found.moments, prior.root
    moved = rights - grams @ prior.mean
    squares, rights = squares - (rights + moved) @ prior.mean, moved @ root
    means = np.einsum("nij,nj->ni", found.covariances, rights / prior.noise)
    fitted = np.einsum("nij,nj->ni", grams, means @ root.T) @ root
    residuals = squares - np.einsum("ni,ni->n", means, 2.0 * rights - fitted)
    return Posteriors(means, found.covariances, found.information, np.maximum(residuals, 0.0), rows)


def _inverses(matrices: Array) -> tuple[Array, npt.NDArray[np.bool_]]:
    """Return the inverse of each matrix, and which inverses exist; zeros for the others.

    Each is computed separately, so a matrix that is singular in float64 (a user with a thousand equal rows, if the
    noise variance is tiny) has no effect on other users.
    """
    try:
        return np.asarray(np.linalg.inv(matrices), dtype=np.float64), np.ones(len(matrices), dtype=bool)
    except np.linalg.LinAlgError:
        inverses, solved = np.zeros_like(matrices), np.ones(len(matrices), dtype=bool)
        for i, matrix in enumerate(matrices):
            try:
                inverses[i] = np.linalg.inv(matrix)
            except np.linalg.LinAlgError:
                solved[i] = False
        return inverses, solved


def moments(X: Rows, y: Rows, offsets: Offsets, coordinates: Coordinates) -> tuple[Array, Array, Array, Array]:
    """Return ZᵀZ, Zᵀy, yᵀy and the number of rows of each user; zeros for a user with numbers that cannot be used.

    Products of columns are added row by row, never by a matrix product over rows of several users.
    """
    count, size = len(offsets) - 1, coordinates.size
    design, targets = coordinates.design(X), coordinates.targets(y)
    grams = np.zeros((count, size, size))
    step = max(1, _CELLS // max(1, design.size))
    for first in range(0, size, step):
        columns = design[:, None, :] * design[:, first : first + step, None]
        grams[:, first : first + step] = per_user(columns, offsets)
    rights, squares = per_user(design * targets[:, None], offsets), per_user(targets**2, offsets)
    usable = np.isfinite(squares) & np.isfinite(rights).all(axis=1)
    rows = np.where(usable, np.diff(offsets), 0).astype(np.float64)
    return (
        np.where(usable[:, None, None], grams, 0.0),
        np.where(usable[:, None], rights, 0.0),
        np.where(usable, squares, 0.0),
        rows,
    )
