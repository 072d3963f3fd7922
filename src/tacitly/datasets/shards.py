"""Label-skewed users from a labelled data set: each user has rows of a few classes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt


class Shards(NamedTuple):
    """``rows[i]`` are the row numbers of user i, and ``classes[i]`` their classes."""

    rows: npt.NDArray[np.int64]
    classes: npt.NDArray[np.int64]


def class_shards(
    labels: npt.ArrayLike,
    users: int,
    classes_per_user: int,
    *,
    distinct: bool = True,
    random_state: int | None = None,
) -> Shards:
    """Divide rows among users with ``classes_per_user`` classes each, in equal shares.

    Classes are assigned as evenly as possible, and every user gets the same number of rows of each of its classes (a
    remainder is left out).

    Parameters
    ----------
    labels
        Class numbers from 0, one per row.
    users, classes_per_user
        n and S.
    distinct
        Whether a user's classes are all different. If not, users draw S shares at random and may draw a class twice.
        They then have *at most* S classes, as in Collins et al. (2021) and the papers that follow their allocation.
    random_state
        Seed of the assignment.

    Examples
    --------
    >>> shards = class_shards(np.repeat(np.arange(10), 60), users=20, classes_per_user=3, random_state=0)
    >>> shards.rows.shape, all(len(set(classes)) == 3 for classes in shards.classes)
    ((20, 30), True)
    >>> shards = class_shards(np.repeat(np.arange(10), 60), 20, 3, distinct=False, random_state=0)
    >>> shards.rows.shape, sum(len(set(classes)) < 3 for classes in shards.classes)
    ((20, 30), 4)
    """
    numbers = np.asarray(labels, dtype=np.int64)
    count = int(numbers.max()) + 1
    if not 1 <= classes_per_user <= count:
        raise ValueError(f"classes_per_user must lie between 1 and {count}. Found {classes_per_user!r}.")
    rng = np.random.default_rng(random_state)
    classes = _assign(users, classes_per_user, count, distinct, rng)
    places = [np.argwhere(classes == c) for c in range(count)]
    share = min(np.count_nonzero(numbers == c) // len(places[c]) for c in range(count) if len(places[c]))
    if share < 1:
        raise ValueError(
            f"{len(numbers)} rows are too few for {users} users with {classes_per_user} classes each. Use fewer users "
            "or classes."
        )
    rows = np.zeros((users, classes_per_user, share), dtype=np.int64)
    for c in range(count):
        pool = rng.permutation(np.flatnonzero(numbers == c))
        for i, (user, place) in enumerate(places[c]):
            rows[user, place] = pool[i * share : (i + 1) * share]
    return Shards(rows.reshape(users, -1), classes)


def _assign(users: int, each: int, count: int, distinct: bool, rng: np.random.Generator) -> npt.NDArray[Any]:
    """Assign classes evenly; if they must be distinct, swap classes between users until no user has one twice."""
    rounds = -(-users * each // count)
    if not distinct:
        dealt = rng.permutation(np.tile(np.arange(count), rounds))[: users * each]
        return dealt.reshape(users, each).astype(np.int64)
    held = np.concatenate([rng.permutation(count) for _ in range(rounds)])[: users * each].reshape(users, each)
    while True:
        repeated = [i for i in range(users) if len(set(held[i].tolist())) < each]
        if not repeated:
            return held.astype(np.int64)
        for i in repeated:
            j, a, b = int(rng.integers(users)), int(rng.integers(each)), int(rng.integers(each))
            first, second = held[i].copy(), held[j].copy()
            first[a], second[b] = held[j, b], held[i, a]
            better = len(set(first.tolist())) >= len(set(held[i].tolist()))
            if i != j and len(set(second.tolist())) == each and better:
                held[i], held[j] = first, second
