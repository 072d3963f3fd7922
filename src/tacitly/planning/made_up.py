"""Synthetic users of a described shape: rows to learn from, and new rows of the same users to predict.

Numeric targets of new rows have no noise. Noise adds the same variance to every error, so differences of squared errors
do not change, and fewer rows are needed to compare methods; likewise for classes and counts
(:mod:`tacitly.planning.targets`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tacitly.arrays import Array
from tacitly.baselines.comparison import alternatives
from tacitly.data.cohort import Cohort
from tacitly.data.schema import Column, Schema
from tacitly.heads.losses import Loss
from tacitly.linalg import orthonormal
from tacitly.planning.shape import Shape
from tacitly.planning.targets import drawn_targets, expected_error, latent_unit, level_of, loss_of, truth_of

Counts = npt.NDArray[np.int64]
"""Numbers of rows, one per user."""

FRESH = 4
"""New rows per user, on which predictions are scored."""

_LIKELY = 8  # assumed number of levels of a text column without declared levels


@dataclass(frozen=True)
class MadeUp:
    """Synthetic users: their rows, and new rows with the true expectations of their targets."""

    train: Cohort
    test: Cohort
    truth: Array  # expected targets of new rows, or a probability for each class


class Population(Protocol):
    """A source of synthetic users, and scores for models of them."""

    @property
    def shape(self) -> Shape:
        """The public numbers that describe the users."""

    def draw(self, n_users: int, rng: np.random.Generator) -> MadeUp:
        """Draw that many synthetic users."""

    def others(self, drawn: MadeUp) -> dict[str, float]:
        """Return the errors of users' own models, and of one model for all."""

    def error(self, model: Any, drawn: MadeUp) -> float:
        """Return the error of a fitted model on new rows."""


class WithTarget:
    """Scores of populations with a target: the errors that ``tacitly fit`` prints, on new rows."""

    shape: Shape

    @property
    def noise(self) -> float:
        """Variance of the noise of a numeric target."""
        raise NotImplementedError

    @property
    def loss(self) -> Loss:
        """The loss of the targets."""
        return loss_of(self.shape)

    def others(self, drawn: MadeUp) -> dict[str, float]:
        """Return the errors of users' own means, of their own models, and of one model for all."""
        predicted = alternatives(drawn.train, drawn.test, self.loss)
        return {name: self._error(drawn, values) for name, values in predicted.items()}

    def error(self, model: Any, drawn: MadeUp) -> float:
        """Return the error of a fitted model on new rows."""
        owner = np.repeat(drawn.test.users, np.diff(drawn.test.offsets))
        return self._error(drawn, model.predict(drawn.test.X, owner))

    def _error(self, drawn: MadeUp, predicted: npt.NDArray[Any]) -> float:
        error = expected_error(self.loss, drawn.truth, predicted)
        if self.loss.name == "squared":
            return error + self.noise
        if self.loss.name == "poisson":
            return error + self.loss.error(np.asarray(drawn.test.y), drawn.truth)
        return error


@dataclass(frozen=True)
class Described(WithTarget):
    """Users drawn from a :class:`~tacitly.planning.shape.Shape`, optionally with columns as declared by a schema."""

    shape: Shape
    schema: Schema | None = None

    @property
    def noise(self) -> float:
        """Variance of the noise of a target."""
        return self.shape.noise

    def draw(self, n_users: int, rng: np.random.Generator) -> MadeUp:
        """Draw that many synthetic users."""
        shape = self.shape
        low, high = shape.row_range
        counts = rng.integers(low, high + 1, size=n_users)
        columns = [Column(f"x{j}") for j in range(shape.features)] if self.schema is None else self.schema.columns
        own = rng.standard_normal((n_users, len(columns)))

        def features(rows: Counts) -> Array:
            owner = np.repeat(np.arange(n_users), rows)
            latent = np.sqrt(1.0 - shape.between) * rng.standard_normal((len(owner), len(columns)))
            return encoded(columns, latent + np.sqrt(shape.between) * own[owner])

        X, fresh = features(counts), features(np.full(n_users, FRESH))
        center, scale = X.mean(axis=0), X.std(axis=0)
        scale[~(scale > 0)] = 1.0
        parts = [self._scorer(n_users, rng) for _ in range(self.loss.columns)]

        def scores(rows: Array, number: Counts) -> Array:
            found = [_signal((rows - center) / scale, weights, levels, number) for weights, levels in parts]
            return level_of(shape) + latent_unit(shape) * (found[0] if len(found) == 1 else np.column_stack(found))

        noise = shape.noise if shape.loss == "squared" else 0.0
        y = drawn_targets(self.loss, scores(X, counts), noise, rng)
        ahead = scores(fresh, np.full(n_users, FRESH))
        truth = truth_of(self.loss, ahead)
        later = truth if shape.loss == "squared" else drawn_targets(self.loss, ahead, 0.0, rng)
        return made_up((X, y, counts), (fresh, later, np.full(n_users, FRESH)), truth, self.schema)

    def _scorer(self, n_users: int, rng: np.random.Generator) -> tuple[Array, Array]:
        """Return the weights and levels of all users, for one score."""
        common, personal = self._weights(n_users, rng)
        return common + personal, np.sqrt(self.shape.levels) * rng.standard_normal(n_users)

    def _weights(self, n_users: int, rng: np.random.Generator) -> tuple[Array, Array]:
        """Return the common weights and all users' deviations from them, for features of variance one."""
        shape = self.shape
        common = rng.standard_normal(shape.features)
        common *= np.sqrt(max(shape.common, 0.0)) / np.linalg.norm(common)
        size = shape.features if shape.directions is None else shape.directions
        basis, _ = orthonormal(rng.standard_normal((shape.features, size)))
        return common, np.sqrt(shape.slopes / size) * rng.standard_normal((n_users, size)) @ basis.T


Grouped = tuple[Array, Array, Counts]
"""Rows of users in order, their targets, and the number of rows of each user."""


def made_up(rows: Grouped, fresh: Grouped, truth: Array, schema: Schema | None) -> MadeUp:
    """Combine rows to learn from and new rows."""
    names = tuple(f"x{j}" for j in range(rows[0].shape[1])) if schema is None else schema.feature_names

    def cohort(X: Array, y: Array, number: Counts) -> Cohort:
        offsets = np.concatenate([[0], np.cumsum(number)]).astype(np.int64)
        return Cohort(np.ascontiguousarray(X), y, offsets, np.arange(len(number)), names, "y", schema)

    return MadeUp(cohort(*rows), cohort(*fresh), truth)


def encoded(columns: Sequence[Column], latent: Array) -> Array:
    """Return columns as a model sees them, from one standard normal number per row and column of the table.

    Ranges are assumed to be generous (six standard deviations wide), levels and yes/no values to be equally frequent.
    """
    parts = []
    for column, values in zip(columns, latent.T, strict=True):
        if column.kind == "number":
            low, high = (-3.0, 3.0) if column.range is None else column.range
            parts.append(np.clip((low + high) / 2.0 + values * (high - low) / 6.0, low, high)[:, None])
        elif column.kind == "boolean":
            parts.append((values > 0.0)[:, None].astype(np.float64))
        else:
            parts.append(_levels(column, values))
    return np.hstack(parts)


def _levels(column: Column, values: Array) -> Array:
    """Cut one number per row into levels, and return indicators of each row's level."""
    number = len(column.levels) if column.kind == "category" else min(_LIKELY, column.buckets)
    cuts = np.quantile(values, np.arange(1, number) / number)
    codes = np.searchsorted(cuts, values)
    if column.kind == "category":
        return np.asarray(codes[:, None] == np.arange(1, number), dtype=np.float64)
    return np.asarray(codes[:, None] == np.arange(column.buckets), dtype=np.float64)


def _signal(rows: Array, weights: Array, levels: Array, counts: Counts) -> Array:
    owner = np.repeat(np.arange(len(counts)), counts)
    return np.asarray(np.einsum("nd,nd->n", rows, weights[owner]) + levels[owner])
