"""What paper 004 compares low rank plus sparse with: its four frameworks, private where something is shared.

| framework | user i's model | here | numbers (d features, n users) |
|---|---|---|---|
| single model | u | :class:`CentralModel` | d |
| full fine-tuning | uᵢ | :class:`FullFineTuning` | d·n |
| representation learning | U wᵢ | :class:`tacitly.PrivateFedRep`, :class:`tacitly.FedRep` | r(d + n) |
| prompt learning | u, cᵢ: uᵀ(x ‖ cᵢ) | :class:`PromptLearning` | d + e·n |

In a linear model an embedding cᵢ put behind the features adds one number to every prediction, whatever its length e: a
level of the user's own. That is how it is fitted here; the paper counts all e.

All three learn what is shared through the door, with ``epsilon = math.inf`` for the non-private version.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator

from tacitly.baselines.local import LocalModels
from tacitly.data.cohort import Cohort
from tacitly.methods.low_rank_sparse.estimator import LowRankSparse
from tacitly.methods.personal import PersonalModel
from tacitly.privacy.certificate import Certificate
from tacitly.privacy.guarantee import UncertifiedWarning


class CentralModel(PersonalModel, BaseEstimator):  # type: ignore[misc]
    """One linear model for everybody, learned privately; ``epsilon = math.inf`` for the non-private one.

    Examples
    --------
    >>> import tacitly
    >>> data = tacitly.datasets.make_low_rank_sparse(500, 5, 1, 10, 0, shared_weight=True, random_state=0)
    >>> model = tacitly.CentralModel(epsilon=4.0).fit(data.X, data.y, data.users)
    >>> data.population_rmse(model) < 0.05, model.certificate_.certified
    (True, True)
    """

    certificate_: Certificate

    def __init__(self, epsilon: float, delta: float = 1e-6) -> None:
        self.epsilon = epsilon
        self.delta = delta

    def fit(self, X: Any, y: Any = None, users: Any = None) -> CentralModel:
        """Learn the model."""
        self._take(self._learn(_cohort(X, y, users), intercept=False))
        return self

    def n_parameters(self) -> int:
        """Count its numbers: one a feature."""
        self._check_fitted()
        return len(self.basis_)

    def _learn(self, cohort: Cohort, *, intercept: bool) -> LowRankSparse:
        model = LowRankSparse(1, 0, self.epsilon, self.delta, shared_weight=True, fit_intercept=intercept)
        with warnings.catch_warnings():
            if np.isinf(self.epsilon):
                warnings.simplefilter("ignore", UncertifiedWarning)
            model.fit(cohort)
        return model

    def _take(self, model: LowRankSparse) -> None:
        self.basis_, self.heads_, self.intercepts_ = model.basis_, model.heads_, model.intercepts_
        self.users_, self.n_features_in_ = model.users_, model.n_features_in_
        self.feature_names_in_ = model.feature_names_in_
        self.certificate_ = replace(model.certificate_, algorithm=type(self).__name__)


class PromptLearning(CentralModel):
    """One linear model for everybody and an embedding of every user's own behind the features.

    Examples
    --------
    >>> import tacitly
    >>> data = tacitly.datasets.make_low_rank_sparse(500, 5, 1, 10, 0, shared_weight=True, random_state=0)
    >>> levels = data.users % 7
    >>> model = tacitly.PromptLearning(epsilon=4.0).fit(data.X, data.y + levels, data.users)
    >>> abs(model.intercepts_[:7] - range(7)).max() < 0.1
    np.True_
    """

    def __init__(self, epsilon: float, delta: float = 1e-6, *, embedding: int | None = None) -> None:
        super().__init__(epsilon, delta)
        self.embedding = embedding

    def fit(self, X: Any, y: Any = None, users: Any = None) -> PromptLearning:
        """Learn the model privately, the levels at home."""
        self._take(self._learn(_cohort(X, y, users), intercept=True))
        return self

    def n_parameters(self) -> int:
        """Count its numbers as the paper does: d + e·n, with e = d unless ``embedding`` says otherwise."""
        self._check_fitted()
        return len(self.basis_) + (self.embedding or len(self.basis_)) * len(self.users_)


class FullFineTuning(CentralModel):
    """A model of their own for every user: the central one plus a ridge regression on what it leaves.

    Examples
    --------
    >>> import tacitly
    >>> data = tacitly.datasets.make_low_rank_sparse(200, 5, 1, 20, 2, random_state=0)
    >>> model = tacitly.FullFineTuning(epsilon=4.0).fit(data.X, data.y, data.users)
    >>> data.population_rmse(model) < 0.01, model.n_parameters()
    (True, 1000)
    """

    def fit(self, X: Any, y: Any = None, users: Any = None) -> FullFineTuning:
        """Learn the central model privately, everybody's own at home."""
        cohort = _cohort(X, y, users)
        central = self._learn(cohort, intercept=False)
        self._take(central)
        assert cohort.y is not None
        left = np.asarray(cohort.y, dtype=np.float64) - cohort.X @ central.basis_[:, 0]
        own = LocalModels().fit(Cohort.from_offsets(cohort.X, left, cohort.offsets, users=cohort.users))
        self.heads_ = own.heads_ + central.basis_[:, 0]
        self.basis_ = np.eye(cohort.n_features)
        return self

    def n_parameters(self) -> int:
        """Count its numbers: d·n."""
        self._check_fitted()
        return int(self.heads_.size)


def _cohort(X: Any, y: Any, users: Any) -> Cohort:
    return X if isinstance(X, Cohort) else Cohort.from_arrays(X, y, users)
