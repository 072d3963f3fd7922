"""The estimator of ratings and plays: a private recommender."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from tacitly.arrays import Array
from tacitly.data.cohort import Cohort
from tacitly.data.reading import read_cohort
from tacitly.data.user_ids import Directory, plain
from tacitly.data.validation import DataError
from tacitly.federation.base import Federation
from tacitly.federation.engine import Population
from tacitly.methods.base import PrivateModel, Procedure, Statement
from tacitly.methods.parameters import EngineParameter
from tacitly.methods.recommender import algorithm
from tacitly.methods.recommender.heads import RatingHeads
from tacitly.methods.recommender.item_table import features_of
from tacitly.methods.recommender.learned import Learned, largest
from tacitly.methods.recommender.posterior import Catalogue
from tacitly.privacy.certificate import shown
from tacitly.privacy.guarantee import Budget

TRUST = (
    "central: whoever runs this process holds the ratings, adds the noise and keeps the personal models; all others "
    "see the billboard only, and each user their own recommendations (joint differential privacy)."
)
FREE_HEADS = (
    "predictions and recommendations for a user cost no privacy: they are computed from public data and that user's "
    "own ratings, and are not released to others"
)
GIVEN = "the catalogue (ids and features of items) and the range of ratings, which are given and assumed to be public"

_CELLS = 1 << 22  # number of scores held in memory at once


class Recommendations(NamedTuple):
    """Ids of items, the best first, and their scores."""

    items: npt.NDArray[Any]
    scores: Array


class _LearnedRecommender:
    """Attributes that a fit sets; no parameters."""

    learned_: Learned
    heads_: Array
    rated_: npt.NDArray[np.int32]
    bounds_: npt.NDArray[np.int64]

    @property
    def item_effects_(self) -> Array:
        """How much better than expected from its features an item is rated, in rating units."""
        return self.learned_.catalogue.effects * self.learned_.catalogue.unit

    @property
    def popularity_(self) -> Array:
        """Weight of each item among ratings."""
        return self.learned_.popularity

    @property
    def rank_(self) -> int:
        """Number of item factors."""
        return self.learned_.factors


@dataclass(eq=False, repr=False)
class Recommender(_LearnedRecommender, PrivateModel, EngineParameter):
    """Recommend items from ratings or plays, learned under user-level differential privacy.

    The public part is learned privately and published: how good and how popular items are, item factors (as many as
    the number of users supports), and a prior of users' tastes. The personal part is computed by each user at no
    privacy cost: the user's level, weights on features and factors of items, and taste. Which items a user rated is as
    private as the ratings.

    Parameters
    ----------
    epsilon, delta, adjacency
        The privacy budget for everything that is released, together; as for :class:`~tacitly.PrivateFedRep`.
    items
        The public catalogue: ids of all items that can be recommended, numbers or text. Ratings of other items are left
        out.
    item_features
        Public features of items, such as genres or year: one row per item of ``items``. Optional; they help if items
        have few ratings.
    rating_range
        The lowest and the highest possible rating; public. Ratings outside are clipped to it. Not needed for plays.
    rank
        Maximum number of item factors; "auto" for as many as the budget supports.
    noise, noise_seed, ledger, run, threads, engine
        As for :class:`~tacitly.PrivateFedRep`. With an engine, the first column of the rows holds the item's position
        in ``items``, from 0.

    Attributes
    ----------
    item_effects_ : how much better than expected from its features an item is rated, in rating units; public
    popularity_ : weight of each item among ratings; public
    rank_ : number of item factors, of ratings or of choices; public
    heads_ : (n_users, ·), users' weights and tastes in the order of ``users_``; private
    users_, certificate_

    Examples
    --------
    >>> import tacitly
    >>> ratings = tacitly.datasets.make_ratings(2000, 60, random_state=0)
    >>> model = tacitly.Recommender(epsilon=2.0, items=ratings.item_ids, rating_range=(1, 5))
    >>> model = model.fit(ratings.users, ratings.item_ids[ratings.items], ratings.values)
    >>> model.predict([7, 7], ratings.item_ids[[3, 5]]).shape
    (2,)
    >>> best = model.recommend(7, k=3)
    >>> len(best.items), bool(best.scores[0] >= best.scores[2])
    (3, True)
    >>> len(model.recommend_new({ratings.item_ids[0]: 5.0, ratings.item_ids[1]: 1.0}, k=3).items)
    3
    """

    _: KW_ONLY
    items: Any = None
    item_features: Any = None
    rating_range: tuple[float, float] | None = None
    rank: int | str = "auto"
    run: str = "recommender"

    _learned: ClassVar[str] = "learned_"

    def fit(  # type: ignore[override]
        self,
        users: Any = None,
        items: Any = None,
        ratings: Any = None,
        *,
        on_release: Callable[[str], None] | None = None,
    ) -> Self:
        """Learn the shared part privately, then let users compute their own part locally.

        Parameters
        ----------
        users, items
            The id of the user and of the item of each rating, in any order. If a user rated an item several times, the
            last rating counts. ``users`` may be a :class:`~tacitly.data.cohort.Cohort` instead, with the item's
            position in its first column, or None if the ``engine`` knows where the users are.
        ratings
            The ratings; None for plays: items that users chose, without a rating.
        on_release
            Called with the name of each release when it is out (for progress bars).
        """
        if users is None or isinstance(users, Cohort):
            return super().fit(users, on_release=on_release)
        self._check_parameters()
        return super().fit(self.cohort(users, items, ratings), on_release=on_release)

    def cohort(self, users: Any, items: Any, ratings: Any = None) -> Cohort:
        """Return ratings as a cohort: the item's position in the first column, -1 for items outside the catalogue."""
        if items is None:
            raise ValueError("fit needs the item of each rating next to its user.")
        found = self._directory().find(items)
        if len(found) and not (found >= 0).any():
            raise DataError(f"items: none of the {len(found)} ids is in the catalogue. Expected ids as in items=…")
        targets = np.zeros(len(found)) if ratings is None else np.asarray(ratings)
        if targets.shape != (len(found),):
            raise DataError(f"ratings must have one value per item ({len(found)}). Found shape {targets.shape}.")
        places, policy = found[:, None].astype(np.float64), self._bad_rows()
        cohort = Cohort.from_arrays(places, targets, users, target_name="rating", on_bad_rows=policy)
        if ratings is not None:
            return cohort
        return Cohort(cohort.X, None, cohort.offsets, cohort.users, cohort.feature_names, None)

    def predict(self, users: Any, items: Any) -> Array:
        """Return the predicted rating of each item by its user, inside the range; the population's for an unseen user.

        For a model of plays: how likely it is that the user chooses the item next, relative to an average item.
        """
        self._check_fitted()
        codes = self._codes(items)
        ids = np.asarray(users)
        if ids.shape != codes.shape:
            raise DataError(f"users must have one id per item ({len(codes)}). Found shape {ids.shape}.")
        heads = self._heads_at(self._positions(ids))
        return self.learned_.predicted(heads, codes)

    def recommend(self, user: Any, k: int = 10, *, exclude_seen: bool = True, by: str = "relevance") -> Recommendations:
        """Return the ``k`` best items for a user that the user has not rated; the population's for an unseen user.

        ``by="relevance"`` multiplies how good an item is for the user by the probability that the user chooses it;
        ``by="rating"`` ranks by predicted rating alone, which favours items that few people know.
        """
        self._check_fitted()
        position = int(self._positions(np.array([user]))[0])
        seen = self._seen(position) if exclude_seen and position >= 0 else np.zeros(0, dtype=np.int64)
        return self._best(self._heads_at(np.array([position])), seen, k, by)

    def recommend_new(
        self,
        ratings: Mapping[Any, float] | Iterable[Any],
        k: int = 10,
        *,
        exclude_seen: bool = True,
        by: str = "relevance",
    ) -> Recommendations:
        """Return the ``k`` best items for a new user; costs no privacy.

        ``ratings`` maps items to ratings; for a model of plays it is a list of items.
        """
        codes, head = self._newcomer(ratings)
        return self._best(head[None], codes[codes >= 0] if exclude_seen else codes[:0], k, by)

    def predict_new(self, ratings: Mapping[Any, float] | Iterable[Any], items: Any) -> Array:
        """Return predictions for a new user, from their own ratings; costs no privacy."""
        head, codes = self._newcomer(ratings)[1], self._codes(items)
        heads = np.broadcast_to(head, (len(codes), len(head)))
        return self.learned_.predicted(heads, codes)

    def recommend_all(self, users: Any, k: int = 10, *, exclude_seen: bool = True, by: str = "relevance") -> Array:
        """Return the positions of the ``k`` best items in the catalogue for each of these users, one row per user."""
        self._check_fitted()
        positions = self._positions(np.asarray(users))
        step = max(1, _CELLS // self.learned_.catalogue.items)
        rows = []
        for first in range(0, len(positions), step):
            some = positions[first : first + step]
            scores = self.learned_.scores(self._heads_at(some), by)
            for row, position in enumerate(some):
                if exclude_seen and position >= 0:
                    scores[row, self._seen(int(position))] = -np.inf
            rows.append(largest(scores, min(k, scores.shape[1])))
        return np.concatenate(rows) if rows else np.zeros((0, k), dtype=np.int64)

    def summary(self) -> str:
        """Return what was learned, in words: public."""
        self._check_fitted()
        certificate = self.certificate_
        privacy = f"ε = {shown(certificate.epsilon)}" if math.isfinite(certificate.epsilon) else "no privacy"
        lines = [
            f"recommender for {certificate.n_users} users and {self.learned_.catalogue.items} items; {privacy} at "
            f"δ = {self.delta:g} ({self.adjacency}), {_counted(len(certificate.releases), 'release')}",
        ]
        if not self.learned_.plays:
            unit = self.learned_.catalogue.unit
            effects = self.item_effects_
            known = int(np.count_nonzero(self.learned_.certainty > 0.5))
            prior = self.learned_.prior
            level = math.sqrt(float(prior.covariance[0, 0])) * unit
            lines += [
                f"items with an effect of their own: {known}; effects vary by {float(effects.std()):.2g}",
                f"users' levels vary by {level:.2g}; a rating varies by {math.sqrt(prior.noise) * unit:.2g} "
                f"around what is predicted; {self.rank_} item factors",
            ]
        else:
            lines.append(f"factors of what is chosen together: {self.rank_}")
        top = np.argsort(-self.popularity_, kind="stable")[:5]
        lines.append(f"most popular: {', '.join(str(self._ids()[at]) for at in top)}")
        return "\n".join(lines)

    def public_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return what was learned about items, and the prior of users."""
        self._check_fitted()
        return self.learned_.arrays()

    def take_public_arrays(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Set what was learned; no user has a head yet."""
        self.learned_ = Learned.of(arrays)
        self.heads_ = np.zeros((0, *self._home_work().shape))
        self.users_ = np.zeros(0, dtype=np.int64)
        self.rated_, self.bounds_ = np.zeros(0, dtype=np.int32), np.zeros(1, dtype=np.int64)

    def private_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return all users' heads and rated items; nothing if they stayed with their users."""
        if not len(self.users_):
            return {}
        kept = {"heads": self.heads_.astype(np.float32)}
        return {**kept, "rated": self.rated_, "bounds": self.bounds_} if len(self.rated_) else kept

    def take_private_arrays(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Set all users' heads and rated items."""
        self.heads_ = arrays["heads"].astype(np.float64)
        nothing = np.zeros(len(self.heads_) + 1, dtype=np.int64)
        # If rows stayed elsewhere, this process does not know who rated what.
        self.rated_, self.bounds_ = arrays.get("rated", nothing[:0]), arrays.get("bounds", nothing)

    def folder_parameters(self) -> dict[str, Any]:
        """Return the parameters a model folder keeps; features of items are on the billboard."""
        kept = {key: value for key, value in super().folder_parameters().items() if key != "item_features"}
        return {**kept, "items": self._ids().tolist()}

    def _public_config(self, sizes: Mapping[str, Any]) -> dict[str, Any]:
        """Return the configuration that a resumed run must share; the catalogue by its digest."""
        config = super()._public_config(sizes)
        given = json.dumps([config.pop("items"), config.pop("item_features")], default=str)
        return {**config, "catalogue": hashlib.sha256(given.encode()).hexdigest()}

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.items is None:
            raise ValueError(
                "items must be given: the ids of the whole catalogue are public, and not read from ratings."
            )
        ids = self._ids()
        different = len(np.unique(ids))
        if not 0 < different == len(ids):
            raise ValueError(f"items must be different ids, at least one. Found {len(ids)} ids, {different} different.")
        self._features()
        if self.rating_range is not None:
            low, high = (float(bound) for bound in self.rating_range)
            if not (math.isfinite(low) and math.isfinite(high) and low < high):
                raise ValueError(
                    f"rating_range must be two finite numbers, the lower first. Found {self.rating_range!r}."
                )
        most = algorithm.MOST_FACTORS
        whole = isinstance(self.rank, int | np.integer) and not isinstance(self.rank, bool)
        if self.rank != "auto" and not (whole and 0 <= int(self.rank) <= most):
            raise ValueError(f"rank must be 'auto' or a number from 0 to {most}. Found {self.rank!r}.")

    def _cohort(self, X: Any, y: Any, users: Any) -> Any:
        return read_cohort(X, y, users, needs_target=False)

    def _procedure(self, population: Population, budget: Budget) -> Procedure:
        cohort = getattr(population, "cohort", None)
        plays = (cohort is not None and cohort.y is None) or (cohort is None and self.rating_range is None)
        if not plays and self.rating_range is None:
            raise ValueError(
                "rating_range must be given with ratings: (1, 5), say. It is public, not read from ratings."
            )
        low, high = (0.0, 1.0) if self.rating_range is None else self.rating_range
        features = self._features()
        table = np.ascontiguousarray(np.hstack([np.ones((len(features), 1)), features]))
        catalogue = Catalogue(table, np.zeros(len(table)), float(low), float(high))
        rank = None if self.rank == "auto" else int(self.rank)
        settings = algorithm.Settings.of(
            population.n_users, catalogue.items, features.shape[1], rank, bool(plays), budget
        )
        plan = settings.plan(budget)

        def learn(federation: Federation) -> Mapping[str, npt.NDArray[Any]]:
            rng = np.random.default_rng(self.random_state)
            return algorithm.learn(federation, plan, settings, catalogue, rng).arrays()

        return Procedure(plan.events(), learn, config={"plays": bool(plays)})

    def _work_at_home(self, federation: Federation, population: Population) -> None:
        super()._work_at_home(federation, population)
        cohort = getattr(population, "cohort", None)
        if cohort is not None and len(self.users_):
            found = self.learned_.catalogue.rated(cohort.X, _targets(cohort), cohort.offsets)
            self.rated_, self.bounds_ = found[0].astype(np.int32), np.asarray(found[2])
        elif len(self.users_):
            self.bounds_ = np.zeros(len(self.users_) + 1, dtype=np.int64)

    def _home_work(self) -> RatingHeads:
        return self.learned_.home_work

    def _take_heads(self, heads: Array) -> None:
        self.heads_ = heads

    def _statement(self, budget: Budget) -> Statement:
        return Statement(TRUST, notes=(FREE_HEADS,), not_covered=(GIVEN,))

    def _ids(self) -> npt.NDArray[Any]:
        return plain(self.items, "item")

    def _directory(self) -> Directory:
        return Directory(self._ids())

    def _features(self) -> Array:
        return features_of(self.item_features, len(self._ids()))

    def _codes(self, items: Any) -> npt.NDArray[np.int64]:
        codes = self._directory().find(items)
        if unknown := int(np.count_nonzero(codes < 0)):
            raise DataError(f"items: {unknown} of {len(codes)} ids are not in the catalogue.")
        return codes

    def _positions(self, users: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        return Directory(self.users_).find(users) if len(self.users_) else np.full(len(users), -1)

    def _seen(self, position: int) -> npt.NDArray[np.int64]:
        return self.rated_[self.bounds_[position] : self.bounds_[position + 1]].astype(np.int64)

    def _heads_at(self, positions: npt.NDArray[np.int64]) -> Array:
        """Return users' heads; the population's for users who are not known."""
        nobody = self.learned_.nobody
        heads = np.broadcast_to(nobody, (len(positions), len(nobody))).copy()
        heads[positions >= 0] = self.heads_[positions[positions >= 0]]
        return heads

    def _newcomer(self, ratings: Mapping[Any, float] | Iterable[Any]) -> tuple[npt.NDArray[np.int64], Array]:
        """Return the items that a new user rated, and this user's head."""
        self._check_fitted()
        if isinstance(ratings, Mapping):
            items, values = list(ratings), np.array(list(ratings.values()), dtype=np.float64)
        elif self.learned_.plays:
            items = list(ratings)
            values = np.zeros(len(items))
        else:
            raise DataError("ratings must map items to ratings, as in {item: 4.0}: the model learned from ratings.")
        if not np.isfinite(values).all():
            raise DataError("ratings must be finite numbers. Found missing or infinite values.")
        codes = self._directory().find(items) if items else np.zeros(0, dtype=np.int64)
        if items and (codes < 0).all():
            raise DataError(f"items: none of the {len(items)} ids is in the catalogue. Expected ids as in items=…")
        return codes, self._home_work().own(codes[:, None].astype(np.float64), values)

    def _best(self, head: Array, seen: npt.NDArray[np.int64], k: int, by: str) -> Recommendations:
        if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
            raise ValueError(f"k must be a whole number, at least 1. Found {k!r}.")
        scores = self.learned_.scores(head, by)
        scores[0, seen] = -np.inf
        left = scores.shape[1] - len(np.unique(seen))
        best = largest(scores, min(int(k), left))[0]
        return Recommendations(self._ids()[best], scores[0, best])


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _targets(cohort: Cohort) -> npt.NDArray[Any]:
    return np.zeros(cohort.n_rows) if cohort.y is None else np.asarray(cohort.y)
