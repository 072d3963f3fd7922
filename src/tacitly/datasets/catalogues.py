"""Generated ratings with the skew of real ones: few items and few users account for most of the ratings."""

from __future__ import annotations

import numpy as np

from tacitly.datasets.ratings import Ratings


def make_ratings(
    n_users: int,
    n_items: int,
    *,
    mean_ratings: float = 40.0,
    n_genres: int = 6,
    rank: int = 3,
    stars: int = 5,
    random_state: int | None = None,
) -> Ratings:
    """Return ratings from 1 to ``stars`` of a catalogue with genres.

    An item's log popularity is −6·u^1.5 with u uniform on [0, 1], numbers of ratings per user are log-normal, users
    choose what they like more often, and popular items are rated higher, as in MovieLens. A rating is the sum of the
    user's level, effects of genres and of the item, ``rank`` factors, and noise.

    >>> ratings = make_ratings(50, 30, mean_ratings=8, random_state=0)
    >>> ratings.item_features.shape, bool(ratings.values.min() >= 1 and ratings.values.max() <= 5)
    ((30, 7), True)
    """
    rng = np.random.default_rng(random_state)
    fame = -6.0 * np.sort(rng.random(n_items)) ** 1.5
    genres = (rng.random((n_items, n_genres)) < 0.3).astype(np.float64)
    effects = 0.45 * rng.normal(size=n_items) + 0.12 * (fame - fame.mean())
    factors = 0.2 * rng.normal(size=(n_items, rank))
    counts = np.clip(mean_ratings * np.exp(rng.normal(-0.4, 0.9, n_users)), 2, 0.8 * n_items).astype(np.int64)
    users, items, values = [], [], []
    for user, count in enumerate(counts):
        tastes = genres @ (0.25 * rng.normal(size=n_genres)) + factors @ rng.normal(size=rank)
        chosen = np.argpartition(-(fame + tastes + rng.gumbel(size=n_items)), count)[:count]
        level = 3.6 + 0.4 * rng.normal()
        users.append(np.full(count, user))
        items.append(chosen)
        values.append(level + effects[chosen] + tastes[chosen] + 0.8 * rng.normal(size=count))
    stars_given = np.clip(np.rint(np.concatenate(values) * (stars / 5.0)), 1, stars)
    names = ("one", *(f"genre {j}" for j in range(n_genres)))
    return Ratings(
        users=np.concatenate(users),
        items=np.concatenate(items).astype(np.int64),
        values=stars_given,
        item_ids=100 + np.arange(n_items),
        item_features=np.column_stack([np.ones(n_items), genres]),
        feature_names=names,
    )
