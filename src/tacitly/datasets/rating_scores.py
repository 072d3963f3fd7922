"""Hold out ratings, and score predictions and recommendations on them.

All scores are computed from private ratings, so do not publish them without a private release.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tacitly.arrays import Array

Codes = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


def held_out(
    users: npt.ArrayLike,
    *,
    how: str = "user",
    share: float = 0.2,
    times: npt.ArrayLike | None = None,
    random_state: int | None = None,
) -> Flags:
    """Return which ratings are held out.

    ``how="user"``: a share of each user's ratings, rounded down. ``"time"``: that share, each user's latest ratings.
    ``"leave-one-out"``: one rating of each user with at least two, the latest if there are ``times``.

    >>> held_out([1, 1, 1, 2], how="leave-one-out", times=[3, 9, 5, 1])
    array([False,  True, False, False])
    >>> int(held_out(np.repeat([1, 2], 10), random_state=0).sum())
    4
    """
    if how not in ("user", "time", "leave-one-out"):
        raise ValueError(f"how must be 'user', 'time' or 'leave-one-out'. Found {how!r}.")
    if how == "time" and times is None:
        raise ValueError("how='time' needs times: one per rating. Found None.")
    _, owner, counts = np.unique(np.asarray(users), return_inverse=True, return_counts=True)
    rng = np.random.default_rng(random_state)
    keys = rng.random(len(owner)) if how == "user" or times is None else -np.asarray(times, dtype=np.float64)
    order = np.lexsort((keys, owner))
    rank = np.empty(len(owner), dtype=np.int64)
    rank[order] = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
    most = np.minimum(counts - 1, 1) if how == "leave-one-out" else np.floor(share * counts)
    return np.asarray(rank < most[owner])


def rmse(predicted: npt.ArrayLike, ratings: npt.ArrayLike) -> float:
    """Return the root mean squared error.

    >>> round(rmse([3.0, 4.0], [3.0, 2.0]), 3)
    1.414
    """
    return float(np.sqrt(np.mean(np.square(np.asarray(predicted) - np.asarray(ratings)))))


def rmse_by_popularity(
    predicted: Array, ratings: Array, counts: Array, edges: tuple[int, ...] = (20, 100, 500)
) -> list[float]:
    """Return the error for items with fewer than each edge of ratings, and with more; NaN where there are none."""
    buckets = [np.digitize(counts, edges) == bucket for bucket in range(len(edges) + 1)]
    return [rmse(predicted[own], ratings[own]) if own.any() else float("nan") for own in buckets]


def ndcg(best: Codes, rows: Codes, items: Codes, gains: Array) -> float:
    """Return the mean normalised discounted cumulative gain of recommended items, over users with held-out gains.

    ``best`` has one row of items per user, -1 for none; ``rows``, ``items`` and ``gains`` are held-out ratings: the
    user's row, the item, and the value of recommending it.

    >>> ndcg(np.array([[5, 7]]), np.array([0, 0]), np.array([7, 9]), np.array([1.0, 1.0])).__round__(3)
    0.387
    """
    k = best.shape[1]
    discount = 1.0 / np.log2(np.arange(2, k + 2))
    found = np.take(discount, np.arange(k)) * _gains(best, rows, items, gains)
    order = np.lexsort((-gains, rows))
    start = np.searchsorted(rows[order], rows[order])
    place = np.arange(len(order)) - start
    inside = place < k
    ideal = np.bincount(rows[order][inside], gains[order][inside] * discount[place[inside]], minlength=len(best))
    counted = ideal > 0
    return float(np.mean(found.sum(axis=1)[counted] / ideal[counted])) if counted.any() else float("nan")


def recall(best: Codes, rows: Codes, items: Codes) -> float:
    """Return the mean share of a user's held-out items that are recommended, relative to how many could be.

    >>> recall(np.array([[5, 7]]), np.array([0, 0]), np.array([7, 9]))
    0.5
    """
    hits = _gains(best, rows, items, np.ones(len(rows))).sum(axis=1)
    counts = np.minimum(np.bincount(rows, minlength=len(best)), best.shape[1])
    return float(np.mean(hits[counts > 0] / counts[counts > 0])) if counts.any() else float("nan")


def coverage(best: Codes, n_items: int) -> float:
    """Return the share of the catalogue that is recommended to any user; -1 is no item.

    >>> coverage(np.array([[0, 2], [2, -1]]), 4)
    0.5
    """
    return len(np.unique(best[best >= 0])) / n_items


def _gains(best: Codes, rows: Codes, items: Codes, gains: Array) -> Array:
    """Return the gain of each recommended item: that of the held-out rating, else zero."""
    width = max(int(best.max(initial=0)), int(items.max(initial=0))) + 1
    keys = rows * width + items
    order = np.argsort(keys, kind="stable")
    asked = np.arange(len(best))[:, None] * width + best
    at = np.minimum(np.searchsorted(keys[order], asked), len(keys) - 1)
    return np.asarray(np.where((best >= 0) & (keys[order][at] == asked), gains[order][at], 0.0))
