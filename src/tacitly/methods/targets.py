"""Targets as a loss encodes them: numbers as they are, classes by their positions, counts."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from typing import Any, Self

import numpy as np

from tacitly.arrays import Array
from tacitly.data.cohort import Cohort
from tacitly.data.reading import read_cohort
from tacitly.heads.losses import Loss
from tacitly.methods.base import PrivateModel


class TargetsOfLoss(PrivateModel):
    """An estimator with a ``loss``: reads, checks and encodes targets by it."""

    loss: str

    def _loss(self) -> Loss:
        raise NotImplementedError

    @property
    def audit_labels(self) -> tuple[float, float] | None:
        """Two classes, or two counts, that an auditor's users may have; text labels by their positions."""
        classes = self._loss().classes
        if classes is None or isinstance(classes[0], str):
            return None if self.loss == "squared" else (0.0, 1.0)
        return float(classes[0]), float(classes[1])

    def as_asked(self, cohort: Cohort) -> Cohort:
        """Return the cohort with targets as the loss encodes them; rows whose label is not declared are bad rows."""
        if self.loss == "squared" or cohort.y is None:
            return cohort
        policy = self._bad_rows()
        codes = self._loss().encode(cohort.y, blank=policy != "raise").astype(cohort.dtype)
        return replace(cohort, y=codes).settled(policy)

    def with_heads_of(self, cohort: Cohort) -> Self:
        """Return the same public model with personal models of these users instead."""
        refitted, asked, work = copy(self), self.as_asked(cohort), self._home_work()
        assert work is not None
        refitted._take_heads(work(asked.X, np.asarray(asked.y), asked.offsets))
        refitted.users_ = cohort.users
        return refitted

    def _reading(self) -> dict[str, Any]:
        """Return what is declared about the columns of tables."""
        return {}

    def _cohort(self, X: Any, y: Any, users: Any) -> Cohort:
        policy, name = self._bad_rows(), getattr(y, "name", None)
        whole = X is None or isinstance(X, Cohort) or y is None
        targets: Array | Any = y if whole or self.loss == "squared" else self._loss().encode(y, blank=policy != "raise")
        target_name = None if name is None else str(name)
        cohort: Cohort = read_cohort(X, targets, users, target_name=target_name, on_bad_rows=policy, **self._reading())
        return self.as_asked(cohort) if whole else cohort

    def _check_elsewhere(self) -> None:
        """Raise unless labels that are read elsewhere need no translation there."""
        check_labels_elsewhere(self._loss().classes)


def check_labels_elsewhere(classes: Sequence[Any] | None) -> None:
    """Raise unless labels that are read where rows stay need no translation there.

    >>> check_labels_elsewhere((0, 1, 2))
    """
    if classes is not None and list(classes) != list(range(len(classes))):
        raise ValueError(
            f"where rows stay with others, labels must be the numbers 0 to {len(classes) - 1} there. "
            f"Found classes={list(classes)!r}."
        )
