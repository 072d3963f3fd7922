"""Common code of linear baselines: read rows like the private estimators, predict with heads on a basis."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from tacitly.data.cohort import Cohort
from tacitly.data.reading import read_cohort
from tacitly.methods.conventions import Conventions
from tacitly.methods.shared_basis import HeadsOnBasis


class Baseline(HeadsOnBasis, Conventions):
    """A linear model to compare with; parameters as for :class:`tacitly.PrivateFedRep`."""

    n_features_in_: int

    def __init__(
        self, *, fit_intercept: bool = False, loss: str = "squared", classes: Sequence[Any] | None = None
    ) -> None:
        self.fit_intercept = fit_intercept
        self.loss = loss
        self.classes = classes

    def fit(self, X: Any, y: Any = None, users: Any = None) -> Self:
        """Fit on rows, targets and user ids, or on a cohort."""
        cohort: Cohort = read_cohort(X, y, users)
        self._fit_cohort(cohort)
        self.users_, self.n_features_in_ = cohort.users, cohort.n_features
        self.feature_names_in_ = np.array(cohort.feature_names, dtype=str)
        return self

    @abstractmethod
    def _fit_cohort(self, cohort: Cohort) -> None:
        """Set ``basis_``, ``heads_`` and ``intercepts_``."""
