"""The four frameworks that AMHT-LRS (Pal et al. 2024) compares with; they are private if something is shared.

| framework | user i's model | here | numbers (d features, n users) |
|---|---|---|---|
| single model | u | :class:`CentralModel` | d |
| full fine-tuning | uᵢ | :class:`FullFineTuning` | d·n |
| representation learning | U wᵢ | :class:`tacitly.PrivateFedRep`, :class:`tacitly.FedRep` | r(d + n) |
| prompt learning | u, cᵢ: uᵀ(x ‖ cᵢ) | :class:`PromptLearning` | d + e·n |

In a linear model an embedding cᵢ appended to the features adds one number to every prediction, whatever its length e: a
personal intercept. So it is fitted as an intercept here; the paper counts all e numbers.

All three release what is shared through the federation; ``epsilon = math.inf`` is the non-private version.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import ClassVar

import numpy as np

from tacitly.baselines.base import Baseline
from tacitly.baselines.local import LocalModels
from tacitly.data.cohort import Cohort
from tacitly.methods.low_rank_sparse.estimator import LowRankSparse
from tacitly.privacy.certificate import Certificate
from tacitly.privacy.guarantee import UncertifiedWarning


class CentralModel(Baseline):
    """One linear model for all users, learned privately; ``epsilon = math.inf`` is the non-private version.

    Examples
    --------
    >>> import tacitly
    >>> data = tacitly.datasets.make_low_rank_sparse(500, 5, 1, 10, 0, shared_weight=True, random_state=0)
    >>> model = tacitly.CentralModel(epsilon=4.0).fit(data.X, data.y, data.users)
    >>> data.population_rmse(model) < 0.05, model.certificate_.certified
    (True, True)
    """

    certificate_: Certificate

    _with_intercept: ClassVar[bool] = False

    def __init__(self, epsilon: float, delta: float = 1e-6) -> None:
        self.epsilon = epsilon
        self.delta = delta

    def n_parameters(self) -> int:
        """Count the numbers of the model: one per feature."""
        self._check_fitted()
        return len(self.basis_)

    def _fit_cohort(self, cohort: Cohort) -> None:
        """Learn the model privately; personal intercepts, if any, are fitted locally."""
        model = LowRankSparse(1, 0, self.epsilon, self.delta, shared_weight=True, fit_intercept=self._with_intercept)
        with warnings.catch_warnings():
            if np.isinf(self.epsilon):
                warnings.simplefilter("ignore", UncertifiedWarning)
            model.fit(cohort)
        self.basis_, self.heads_, self.intercepts_ = model.basis_, model.heads_, model.intercepts_
        self.prior_ = model.prior_
        self.certificate_ = replace(model.certificate_, algorithm=type(self).__name__)


class PromptLearning(CentralModel):
    """One linear model for all users, with a personal embedding appended to the features.

    Examples
    --------
    >>> import tacitly
    >>> data = tacitly.datasets.make_low_rank_sparse(500, 5, 1, 10, 0, shared_weight=True, random_state=0)
    >>> levels = data.users % 7
    >>> model = tacitly.PromptLearning(epsilon=4.0).fit(data.X, data.y + levels, data.users)
    >>> abs(model.intercepts_[:7] - range(7)).max() < 0.1
    np.True_
    """

    _with_intercept: ClassVar[bool] = True

    def __init__(self, epsilon: float, delta: float = 1e-6, *, embedding: int | None = None) -> None:
        super().__init__(epsilon, delta)
        self.embedding = embedding

    def n_parameters(self) -> int:
        """Count the numbers of the model as the paper does: d + e·n, with e = d unless ``embedding`` is given."""
        self._check_fitted()
        return len(self.basis_) + (self.embedding or len(self.basis_)) * len(self.users_)


class FullFineTuning(CentralModel):
    """One whole model per user: the central one plus a ridge regression on its residuals.

    Examples
    --------
    >>> import tacitly
    >>> data = tacitly.datasets.make_low_rank_sparse(200, 5, 1, 20, 2, random_state=0)
    >>> model = tacitly.FullFineTuning(epsilon=4.0).fit(data.X, data.y, data.users)
    >>> data.population_rmse(model) < 0.01, model.n_parameters()
    (True, 1000)
    """

    def n_parameters(self) -> int:
        """Count the numbers of the model: d·n."""
        self._check_fitted()
        return int(self.heads_.size)

    def _fit_cohort(self, cohort: Cohort) -> None:
        """Learn the central model privately, and the personal models locally."""
        super()._fit_cohort(cohort)
        central = self.basis_[:, 0]
        residuals = np.asarray(cohort.y, dtype=np.float64) - cohort.X @ central
        own = LocalModels().fit(Cohort.from_offsets(cohort.X, residuals, cohort.offsets, users=cohort.users))
        self.heads_, self.basis_ = own.heads_ + central, np.eye(cohort.n_features)
