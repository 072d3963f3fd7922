"""Cross-validation folds within users: every tested user also has rows in training."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from sklearn.model_selection import BaseCrossValidator

from tacitly.data.user_ids import factor, id_array

Rows = npt.NDArray[np.int64]


class WithinUsers(BaseCrossValidator):  # type: ignore[misc]
    """Split the rows of every user among ``n_splits`` folds, at random and as evenly as possible.

    Personal models are scored on other rows of the same people; ``GroupKFold`` scores predictions for people who are
    not in the training data. A user with one row is always in training. The ids are passed as the splitter's ``users``
    if scikit-learn routes metadata (``sklearn.set_config(enable_metadata_routing=True)``), and as ``groups`` otherwise.

    >>> users = np.repeat([7, 8, 9], [4, 2, 1])
    >>> for train, test in WithinUsers(2, random_state=0).split(users, groups=users):
    ...     print(np.unique(users[train]), np.unique(users[test]))
    [7 8 9] [7 8]
    [7 8 9] [7 8]
    """

    __metadata_request__split: ClassVar[dict[str, bool]] = {"users": True}

    def __init__(self, n_splits: int = 5, *, random_state: int | None = None) -> None:
        if n_splits < 2:
            raise ValueError(f"n_splits must be at least 2. Found {n_splits!r}.")
        self.n_splits, self.random_state = n_splits, random_state

    def split(self, X: Any, y: Any = None, groups: Any = None, users: Any = None) -> Iterator[tuple[Rows, Rows]]:
        """Yield the positions of the rows to train on and to test on, fold by fold."""
        given = groups if users is None else users
        if given is None:
            raise ValueError("users were not given. Expected one id per row: users=ids, or groups=ids.")
        folds = self._folds(factor(id_array(given))[1])
        for fold in range(self.n_splits):
            yield np.flatnonzero(folds != fold), np.flatnonzero(folds == fold)

    def get_n_splits(self, X: Any = None, y: Any = None, groups: Any = None, users: Any = None) -> int:
        """Return the number of folds."""
        return self.n_splits

    def _folds(self, codes: npt.NDArray[Any]) -> Rows:
        """Return the fold in which each row is tested; -1 if it is never tested."""
        rng = np.random.default_rng(self.random_state)
        order = rng.permutation(len(codes))
        order = order[np.argsort(codes[order], kind="stable")]
        counts = np.bincount(codes)
        if not (counts > 1).any():
            raise ValueError("every user has one row. Expected users with two or more: one to test, one to learn from.")
        first = np.repeat(np.cumsum(counts) - counts, counts)
        start = np.repeat(rng.integers(self.n_splits, size=len(counts)), counts)
        folds = np.empty(len(codes), np.int64)
        folds[order] = (np.arange(len(codes)) - first + start) % self.n_splits
        folds[counts[codes] == 1] = -1
        return folds
