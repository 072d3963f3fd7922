"""The public result of a recommender's fit, and predictions and scores from a user's head.

A head is a vector: the user's weights on the columns of the catalogue's table, then the user's taste.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from tacitly.arrays import Array
from tacitly.methods.recommender.heads import RatingHeads
from tacitly.methods.recommender.posterior import Catalogue, Codes, WeightPrior
from tacitly.methods.recommender.tastes import Tastes


@dataclass(frozen=True)
class Learned:
    """Item effects, factors and popularity, the prior of users' weights, and the distribution of tastes."""

    catalogue: Catalogue
    prior: WeightPrior
    popularity: Array
    certainty: Array
    tastes: Tastes
    factors: int
    plays: bool

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return it as the arrays that a model folder keeps."""
        return {
            "table": self.catalogue.table,
            "effects": self.catalogue.effects,
            "range": np.array([self.catalogue.low, self.catalogue.high]),
            "popularity": self.popularity,
            "certainty": self.certainty,
            "mean": self.prior.mean,
            "root": self.prior.root,
            "noise": np.array([self.prior.noise]),
            "taste_features": self.tastes.features,
            "taste_mean": self.tastes.mean,
            "taste_variances": self.tastes.variances,
            "kind": np.array([float(self.factors), float(self.plays), self.tastes.crowd]),
        }

    @classmethod
    def of(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> Self:
        """Rebuild the result from :meth:`arrays`."""
        low, high = (float(value) for value in arrays["range"])
        factors, plays, crowd = (float(value) for value in arrays["kind"])
        tastes = Tastes(arrays["taste_features"], arrays["taste_mean"], arrays["taste_variances"], crowd)
        return cls(
            Catalogue(arrays["table"], arrays["effects"], low, high),
            WeightPrior(arrays["mean"], arrays["root"], float(arrays["noise"][0])),
            arrays["popularity"],
            arrays["certainty"],
            tastes,
            int(factors),
            bool(plays),
        )

    @property
    def home_work(self) -> RatingHeads:
        """The computation of heads, which users make locally."""
        return RatingHeads(self.catalogue, self.prior, self.tastes, self.plays)

    @property
    def nobody(self) -> Array:
        """The head of a user without ratings."""
        return np.append(self.prior.mean, np.zeros(len(self.tastes.variances)))

    def predicted(self, heads: Array, codes: Codes) -> Array:
        """Return each item's rating by the head in the same row, inside the range; for plays, how likely it is next."""
        catalogue = self.catalogue
        weights, tastes = heads[:, : catalogue.size], heads[:, catalogue.size :]
        if self.plays:
            return np.asarray(self._fame()[codes] * np.exp(np.einsum("ij,ij->i", self.tastes.features[codes], tastes)))
        found = np.einsum("ij,ij->i", catalogue.table[codes], weights) + catalogue.effects[codes]
        return np.asarray(np.clip(found * catalogue.unit + catalogue.middle, catalogue.low, catalogue.high))

    def scores(self, heads: Array, by: str) -> Array:
        """Return scores of all items, one row per head."""
        if by not in ("relevance", "rating"):
            raise ValueError(f"by must be 'relevance' or 'rating'. Found {by!r}.")
        catalogue = self.catalogue
        weights, tastes = heads[:, : catalogue.size], heads[:, catalogue.size :]
        ratings = weights @ catalogue.table.T + catalogue.effects
        if by == "rating" and not self.plays:
            return np.asarray(ratings * catalogue.unit + catalogue.middle)
        choice = self._fame() * np.exp(tastes @ self.tastes.features.T)
        if self.plays:
            return np.asarray(choice)
        # Expected rating points above the lowest rating: probability of being chosen times the rating.
        low = (catalogue.low - catalogue.middle) / catalogue.unit
        return np.asarray(choice * np.maximum(ratings - low, 1e-3))

    def _fame(self) -> Array:
        """Return popularity relative to an average item; never zero, since a weight of zero is not certain."""
        return self.popularity / max(float(self.popularity.mean()), 1e-12) + 1e-3


def largest(scores: Array, k: int) -> Codes:
    """Return the positions of the k largest of each row, the largest first.

    >>> largest(np.array([[1.0, 3.0, 2.0]]), 2)
    array([[1, 2]])
    """
    some = np.argpartition(-scores, min(k, scores.shape[1] - 1), axis=1)[:, :k]
    order = np.argsort(-np.take_along_axis(scores, some, axis=1), axis=1, kind="stable")
    return np.asarray(np.take_along_axis(some, order, axis=1))
