"""Two neighbouring worlds, small enough to run thousands of times: with a canary, and with nothing in its place.

Everybody but the canary is ordinary and known to the attacker. The canary is as loud as a user can be, so that what it
adds to every sum is as long as the clip allows: the worst case that a guarantee must cover.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tacitly.arrays import Array
from tacitly.audit.users import User
from tacitly.data.cohort import Cohort
from tacitly.privacy.guarantee import Adjacency, Unit

USERS, ROWS, FEATURES = 12, 6, 4


@dataclass(frozen=True)
class Worlds:
    """Neighbouring cohorts: the canary is in one of them only, or is somebody else there."""

    inside: Cohort
    outside: Cohort


def canaries(n_features: int = FEATURES, *, labels: tuple[float, float] | None = None) -> Iterator[tuple[User, User]]:
    """Yield loud users, each with the user that would replace it: as loud, and as different as can be.

    ``labels`` are the two values that targets may have, where they may have only two.
    """
    rng = np.random.default_rng(7)
    for rows in (ROWS, 1):
        X, direction = rng.normal(size=(rows, n_features)), rng.normal(size=n_features)
        signs = np.where(np.arange(rows) % 2, 1.0, -1.0)
        axis = np.outer(signs, np.eye(n_features)[0])
        for shape in (X, axis):
            for size in (1.0, 1e3, 1e6, 1e40):  # the last is beyond any clip, also one that was read off noise
                for level in (1.0, 1e3, 1e6):
                    y = level * (size * shape @ direction)
                    mine = (size * shape, y)
                    if labels is not None:
                        if level > 1.0:
                            continue
                        mine = (size * shape, np.where(y > 0, labels[1], labels[0]))
                        yield mine, (mine[0], np.where(y > 0, labels[0], labels[1]))
                        # Losses that let everybody turn their head around do not see labels that are turned.
                        yield mine, (np.roll(mine[0], 1, axis=1), mine[1])
                        continue
                    yield mine, (mine[0], -y)
                    yield mine, (np.roll(mine[0], 1, axis=1), y)


def worlds(
    unit: Unit, adjacency: Adjacency, canary: tuple[User, User], *, labels: tuple[float, float] | None = None
) -> Worlds:
    """Put a canary among ordinary users; make the neighbouring world.

    A unit that contributes nothing has holes for numbers: the door leaves it out, and it still counts in the roster.
    """
    rng = np.random.default_rng(11)
    (X, y), replacement = canary
    features = X.shape[1]
    rows = rng.normal(size=(USERS * ROWS, features))
    targets = rows @ rng.normal(size=features) + 0.1 * rng.normal(size=len(rows))
    if labels is not None:
        targets = np.where(targets > 0, labels[1], labels[0])
    starts = np.arange(USERS + 1) * ROWS
    if unit is Unit.ROW:
        X, y, replacement = X[:1], y[:1], (replacement[0][:1], replacement[1][:1])
    other = replacement if adjacency is Adjacency.REPLACE_ONE else (np.full_like(X[:1], np.nan), y[:1])

    def cohort(more: User) -> Cohort:
        together, goals = np.vstack([rows, more[0]]), np.concatenate([targets, more[1]])
        offsets = np.append(starts, len(together))
        names = tuple(f"x{j}" for j in range(features))
        return Cohort(together, goals, offsets, np.arange(USERS + 1), names, "y")

    return Worlds(cohort((X, y)), cohort(other))


def flat(cohort: Cohort) -> tuple[Array, Array]:
    """Rows and targets, for an attacker who knows them."""
    return np.asarray(cohort.X, dtype=np.float64), np.asarray(cohort.y, dtype=np.float64)
