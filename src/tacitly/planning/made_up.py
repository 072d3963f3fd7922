"""Made-up users of a described shape: rows to learn from, and fresh rows of the same users to predict.

Targets of fresh rows carry no noise. Noise adds the same variance to every error there is, so differences of squared
errors do not change, and fewer rows tell them apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from tacitly.arrays import Array
from tacitly.baselines.comparison import alternatives
from tacitly.data.cohort import Cohort
from tacitly.data.schema import Column, Schema
from tacitly.heads.losses import Loss
from tacitly.linalg import orthonormal
from tacitly.planning.shape import Shape

FRESH = 4
"""Fresh rows per user, on which predictions are scored."""

_LIKELY = 8  # levels of a text column whose levels nobody declared


@dataclass(frozen=True)
class MadeUp:
    """Users who do not exist: their rows, and fresh rows with targets free of noise."""

    train: Cohort
    test: Cohort


class Population(Protocol):
    """Where made-up users come from, and how models of them are scored."""

    @property
    def shape(self) -> Shape:
        """The public numbers."""

    def draw(self, n_users: int, rng: np.random.Generator) -> MadeUp:
        """Make up that many users."""

    def others(self, drawn: MadeUp) -> dict[str, float]:
        """Return the errors of what users have alone, and of one model for all."""

    def error(self, model: Any, drawn: MadeUp) -> float:
        """Return the error of a fitted model on fresh rows."""


class WithTarget:
    """Scores of populations with a target: squared errors on fresh rows."""

    @property
    def noise(self) -> float:
        """Variance of the noise of a target."""
        raise NotImplementedError

    def others(self, drawn: MadeUp) -> dict[str, float]:
        """Return the errors of users' own means, of their own regressions, and of one model for all."""
        predicted = alternatives(drawn.train, drawn.test, Loss())
        return {name: self._squared(drawn, values) for name, values in predicted.items()}

    def error(self, model: Any, drawn: MadeUp) -> float:
        """Return the error of a fitted model on fresh rows."""
        owner = np.repeat(drawn.test.users, np.diff(drawn.test.offsets))
        return self._squared(drawn, model.predict(drawn.test.X, owner))

    def _squared(self, drawn: MadeUp, predicted: Array) -> float:
        return float(np.mean(np.square(predicted - np.asarray(drawn.test.y)))) + self.noise


@dataclass(frozen=True)
class Described(WithTarget):
    """Users made up from a :class:`~tacitly.planning.shape.Shape` alone, or with columns as a schema declares them."""

    shape: Shape
    schema: Schema | None = None

    @property
    def noise(self) -> float:
        """Variance of the noise of a target."""
        return self.shape.noise

    def draw(self, n_users: int, rng: np.random.Generator) -> MadeUp:
        """Make up that many users."""
        shape = self.shape
        low, high = shape.row_range
        counts = rng.integers(low, high + 1, size=n_users)
        columns = [Column(f"x{j}") for j in range(shape.features)] if self.schema is None else self.schema.columns
        own = rng.standard_normal((n_users, len(columns)))

        def features(rows: Array) -> Array:
            owner = np.repeat(np.arange(n_users), rows)
            latent = np.sqrt(1.0 - shape.between) * rng.standard_normal((len(owner), len(columns)))
            return encoded(columns, latent + np.sqrt(shape.between) * own[owner])

        X, fresh = features(counts), features(np.full(n_users, FRESH))
        center, scale = X.mean(axis=0), X.std(axis=0)
        scale[~(scale > 0)] = 1.0
        common, personal = self._weights(n_users, rng)
        levels = np.sqrt(shape.levels) * rng.standard_normal(n_users)
        weights = common + personal
        signal = _signal((X - center) / scale, weights, levels, counts)
        y = signal + np.sqrt(shape.noise) * rng.standard_normal(len(signal))
        truth = _signal((fresh - center) / scale, weights, levels, np.full(n_users, FRESH))
        return made_up(X, y, counts, fresh, truth, np.full(n_users, FRESH), self.schema)

    def _weights(self, n_users: int, rng: np.random.Generator) -> tuple[Array, Array]:
        """Return the common weights and everybody's deviations from them, in units of the features' deviations."""
        shape = self.shape
        common = rng.standard_normal(shape.features)
        common *= np.sqrt(max(shape.common, 0.0)) / np.linalg.norm(common)
        size = shape.features if shape.directions is None else shape.directions
        basis, _ = orthonormal(rng.standard_normal((shape.features, size)))
        return common, np.sqrt(shape.slopes / size) * rng.standard_normal((n_users, size)) @ basis.T


def made_up(
    X: Array, y: Array, counts: Array, fresh: Array, truth: Array, fresh_counts: Array, schema: Schema | None
) -> MadeUp:
    """Group rows of users, in order, ``counts`` each, and their fresh rows, ``fresh_counts`` each."""
    names = tuple(f"x{j}" for j in range(X.shape[1])) if schema is None else schema.feature_names

    def grouped(rows: Array, targets: Array, number: Array) -> Cohort:
        offsets = np.concatenate([[0], np.cumsum(number)]).astype(np.int64)
        return Cohort(np.ascontiguousarray(rows), targets, offsets, np.arange(len(number)), names, "y", schema)

    return MadeUp(grouped(X, y, counts), grouped(fresh, truth, fresh_counts))


def encoded(columns: Sequence[Column], latent: Array) -> Array:
    """Return columns as a model sees them, from one standard normal number per row and column of the table.

    Ranges are taken to be generous (six standard deviations wide), levels and yes/no to be equally frequent.
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
    """Cut one number per row into levels, and mark each row's own."""
    number = len(column.levels) if column.kind == "category" else min(_LIKELY, column.buckets)
    cuts = np.quantile(values, np.arange(1, number) / number)
    codes = np.searchsorted(cuts, values)
    if column.kind == "category":
        return np.asarray(codes[:, None] == np.arange(1, number), dtype=np.float64)
    return np.asarray(codes[:, None] == np.arange(column.buckets), dtype=np.float64)


def _signal(rows: Array, weights: Array, levels: Array, counts: Array) -> Array:
    return np.asarray(np.einsum("nd,nd->n", rows, np.repeat(weights, counts, axis=0)) + np.repeat(levels, counts))
