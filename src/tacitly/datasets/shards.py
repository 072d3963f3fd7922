"""Users who hold a few classes each: how label-skewed federations are made from a labelled data set."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt


class Shards(NamedTuple):
    """``rows[i]`` are the rows of user i, and ``classes[i]`` the classes they are of."""

    rows: npt.NDArray[np.int64]
    classes: npt.NDArray[np.int64]


def class_shards(
    labels: npt.ArrayLike, users: int, classes_per_user: int, *, random_state: int | None = None
) -> Shards:
    """Divide rows among users who hold ``classes_per_user`` different classes each, in equal shares.

    Classes are dealt out as evenly as can be, no user gets one twice, and every user gets the same number of rows of
    each of its classes (what does not divide is left out).

    Parameters
    ----------
    labels
        Class numbers from 0, one a row.
    users, classes_per_user
        n and S.
    random_state
        Steers who gets what.

    Examples
    --------
    >>> shards = class_shards(np.repeat(np.arange(10), 60), users=20, classes_per_user=3, random_state=0)
    >>> shards.rows.shape, all(len(set(own)) == 3 for own in shards.classes)
    ((20, 30), True)
    """
    numbers = np.asarray(labels, dtype=np.int64)
    count = int(numbers.max()) + 1
    if not 1 <= classes_per_user <= count:
        raise ValueError(f"classes_per_user must lie between 1 and {count}. Found {classes_per_user!r}.")
    rng = np.random.default_rng(random_state)
    own = _deal(users, classes_per_user, count, rng)
    holders = [np.flatnonzero((own == c).any(axis=1)) for c in range(count)]
    share = min(np.count_nonzero(numbers == c) // len(holders[c]) for c in range(count) if len(holders[c]))
    if share < 1:
        raise ValueError(f"{len(numbers)} rows are too few for {users} users of {classes_per_user} classes.")
    rows = np.zeros((users, classes_per_user, share), dtype=np.int64)
    for c in range(count):
        pool = rng.permutation(np.flatnonzero(numbers == c))
        for place, user in enumerate(holders[c]):
            rows[user, np.flatnonzero(own[user] == c)[0]] = pool[place * share : (place + 1) * share]
    return Shards(rows.reshape(users, -1), own)


def _deal(users: int, each: int, count: int, rng: np.random.Generator) -> npt.NDArray[Any]:
    """Deal classes out evenly, then swap those that came twice to one user."""
    hands = -(-users * each // count)
    own = np.concatenate([rng.permutation(count) for _ in range(hands)])[: users * each].reshape(users, each)
    while True:
        twice = [i for i in range(users) if len(set(own[i].tolist())) < each]
        if not twice:
            return own.astype(np.int64)
        for i in twice:
            j, a, b = int(rng.integers(users)), int(rng.integers(each)), int(rng.integers(each))
            mine, yours = own[i].copy(), own[j].copy()
            mine[a], yours[b] = own[j, b], own[i, a]
            if i != j and len(set(yours.tolist())) == each and len(set(mine.tolist())) >= len(set(own[i].tolist())):
                own[i], own[j] = mine, yours
