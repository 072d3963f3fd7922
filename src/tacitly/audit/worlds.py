"""Two neighbouring cohorts, small enough to run thousands of times: one with a canary, one without it.

All users except the canary are ordinary and known to the attacker. The canary has extreme values, so that its
contribution to every sum is as long as the clipping bound allows: the worst case that a guarantee must cover.
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
    """Neighbouring cohorts: ``inside`` has the canary; ``outside`` does not have it, or has its replacement."""

    inside: Cohort
    outside: Cohort


def canaries(n_features: int = FEATURES, *, labels: tuple[float, float] | None = None) -> Iterator[tuple[User, User]]:
    """Yield canaries, each with its replacement: as extreme as the canary, and as different as possible.

    ``labels`` are the two allowed target values of a classification problem; None for any number.
    """
    rng = np.random.default_rng(7)
    for rows in (ROWS, 1):
        X, direction = rng.normal(size=(rows, n_features)), rng.normal(size=n_features)
        signs = np.where(np.arange(rows) % 2, 1.0, -1.0)
        axis = np.outer(signs, np.eye(n_features)[0])
        for shape in (X, axis):
            for size in (1.0, 1e3, 1e6, 1e40):  # the last exceeds any clipping bound, even one found from pure noise
                for level in (1.0, 1e3, 1e6):
                    y = level * (size * shape @ direction)
                    canary = (size * shape, y)
                    if labels is not None:
                        if level > 1.0:
                            continue
                        canary = (size * shape, np.where(y > 0, labels[1], labels[0]))
                        yield canary, (canary[0], np.where(y > 0, labels[0], labels[1]))
                        # A personal head can change its sign, so changing only the labels may not change the losses.
                        yield canary, (np.roll(canary[0], 1, axis=1), canary[1])
                        continue
                    yield canary, (canary[0], -y)
                    yield canary, (np.roll(canary[0], 1, axis=1), y)


def worlds(
    unit: Unit, adjacency: Adjacency, canary: tuple[User, User], *, labels: tuple[float, float] | None = None
) -> Worlds:
    """Return a cohort of ordinary users with a canary, and its neighbour.

    A unit that must contribute nothing has NaN for its features and, if it is a number, for the target: the federation
    leaves it out of sums but counts it as a user.
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
    other = (
        replacement if adjacency is Adjacency.REPLACE_ONE else (np.full_like(X[:1], np.nan), _nothing(y[:1], labels))
    )

    def with_user(last: User) -> Cohort:
        all_rows, all_targets = np.vstack([rows, last[0]]), np.concatenate([targets, last[1]])
        offsets = np.append(starts, len(all_rows))
        names = tuple(f"x{j}" for j in range(features))
        return Cohort(all_rows, all_targets, offsets, np.arange(USERS + 1), names, "y")

    return Worlds(with_user((X, y)), with_user(other))


def _nothing(y: Array, labels: tuple[float, float] | None) -> Array:
    """Return targets of a unit that contributes nothing; a class must be one of the declared classes."""
    return np.full_like(y, np.nan) if labels is None else y
