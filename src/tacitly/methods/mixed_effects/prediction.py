"""From posteriors to predictions: the one set of rules, for the estimator and where little is installed.

It needs NumPy only (:mod:`tacitly.predictor`). Heads are as in :mod:`tacitly.methods.mixed_effects.heads`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from tacitly.arrays import Array, Rows
from tacitly.methods.mixed_effects.heads import variances
from tacitly.methods.mixed_effects.likelihoods import class_probabilities, count_deviation, mean_response
from tacitly.methods.mixed_effects.posterior import Coordinates, Prior
from tacitly.methods.mixed_effects.statistics import triangle

Answer = TypeVar("Answer", Array, npt.NDArray[np.generic], tuple[Array, Array])
_NUMBERS = 1 << 24  # in the heads of the rows that are predicted together: 128 MiB


@dataclass(frozen=True)
class Rules:
    """What is public about a fitted model, as far as predictions depend on it.

    ``error`` is the covariance of the population's mean, ``inflation`` the calibration of standard deviations, ``weak``
    whether the prior is no better than users' own means; ``other_law`` the share of users, of classes and counts, who
    follow the other distribution (:mod:`~tacitly.methods.mixed_effects.other_law`).
    """

    units: Coordinates
    prior: Prior
    error: Array
    inflation: float
    weak: bool
    other_law: float = 0.0

    @classmethod
    def stored(cls, arrays: Mapping[str, npt.NDArray[Any]], loss: str) -> Rules:
        """Return the rules of a model whose public :meth:`arrays` these are."""
        prior = Prior(arrays["mean"], arrays["root"], float(arrays["noise"][0]), loss)
        inflation, weak, other_law = arrays["calibration"].tolist()
        return cls(Coordinates.stored(arrays), prior, arrays["mean_covariance"], inflation, bool(weak), other_law)

    def arrays(self) -> dict[str, Array]:
        """Return everything as the arrays of a model folder."""
        return {
            "center": self.units.center,
            "gain": self.units.gain,
            "target": self.units.target_array(),
            "mean": self.prior.mean,
            "root": self.prior.root,
            "noise": np.array([self.prior.noise]),
            "mean_covariance": self.error,
            "calibration": np.array([self.inflation, float(self.weak), self.other_law]),
        }

    @property
    def helps(self) -> bool:
        """Whether the prior predicts users' rows better than their own means do."""
        return self.units.spread > 0 and not self.weak

    def prior_at_home(self) -> Prior:
        """Return the prior for personal models: the population's mean is known up to its standard error only."""
        if self.prior.loss != "squared" and not self.helps:
            return self.prior  # own levels, and no population
        return self.prior.doubted(self.error if self.error.ndim == 2 else self.error.mean(axis=0))

    def in_pieces(
        self, answer: Callable[[Rows, Array], Answer], rows: Rows, own: Array, positions: npt.NDArray[np.int64]
    ) -> Answer:
        """Return ``answer`` of rows and their heads, some rows at a time: heads of all rows may not fit into memory."""
        size = max(1, _NUMBERS // max(1, own.shape[1]))
        starts = range(0, max(1, len(rows)), size)
        found = [answer(rows[i : i + size], self.heads_at(own, positions[i : i + size])) for i in starts]
        if isinstance(found[0], tuple):
            return tuple(np.concatenate(parts) for parts in zip(*found, strict=True))  # type: ignore[return-value]
        return np.concatenate(found)

    def heads_at(self, own: Array, positions: npt.NDArray[np.int64]) -> Array:
        """Return the heads at these positions among users' own; the population's where a position is -1."""
        population = np.full(3, np.nan)  # nothing is known about the population
        if self.units.spread > 0:
            prior = self.prior_at_home()
            population = np.append(prior.mean.ravel(), prior.covariance[np.triu_indices(self.units.size)])
            population = np.append(population, np.ones(int(self.prior.loss == "squared")))
        known = positions >= 0
        heads = np.broadcast_to(population, (len(positions), len(population))).copy()
        heads[known] = own[positions[known]]
        return heads

    def scores(self, rows: npt.NDArray[np.floating], heads: Array) -> tuple[Array, Array]:
        """Return posterior means of scores (one per class where there are several), and their variances."""
        # In one order for one row and for many: no score tells, by its last bit, how many rows there are.
        design, mean = np.ascontiguousarray(self.units.design(rows)), self.prior.mean
        weights = heads[:, : mean.size].reshape(-1, *mean.shape)
        spread = np.maximum(variances(design, heads[:, mean.size : mean.size + triangle(self.units.size)]), 0.0)
        return np.einsum("ip,i...p->i...", design, weights), spread

    def probabilities(self, rows: npt.NDArray[np.floating], heads: Array) -> Array:
        """Return one probability per class."""
        return class_probabilities(*self.scores(rows, heads))

    def numbers(self, rows: npt.NDArray[np.floating], heads: Array) -> tuple[Array, Array]:
        """Return mean and standard deviation of new observations."""
        if self.prior.loss != "poisson" and not self.units.spread > 0:
            return heads[:, 0].copy(), np.full(len(rows), np.nan)
        scores, spread = self.scores(rows, heads)
        if self.prior.loss == "poisson":
            return mean_response(scores, spread, self.prior), count_deviation(scores, spread, self.prior)
        unit = self.units.spread
        deviations = np.sqrt((self.prior.noise + spread) * heads[:, -1])
        return scores * unit + self.units.level, deviations * (unit * self.inflation)
