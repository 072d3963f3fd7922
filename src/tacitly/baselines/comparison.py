"""A comparison with what users would have otherwise, on rows held out from every head.

A fifth of each user's rows is held out. All methods fit on the rest; the private basis is the released one
(differential privacy bounds what it can know of the held-out rows), only heads are fitted again. The numbers are
computed from private data and are not in any ledger: they are for the operator alone.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tacitly.baselines import FedRep, LocalModels, SingleModel
from tacitly.data.cohort import Cohort
from tacitly.methods.low_rank_sparse.estimator import LowRankSparse
from tacitly.methods.shared_basis import HeadsOnBasis, SharedBasisModel
from tacitly.privacy.certificate import shown
from tacitly.privacy.guarantee import UncertifiedWarning

_MOST_USERS = 4000  # enough for two digits; fitting local models of all users would take longer than the fit
_MOST_TRAINED = 50_000  # the non-private methods train on this many users, so that a copy of their rows fits


@dataclass(frozen=True)
class Line:
    """One method: what it shares, whether that is private, and its error and score on held-out rows.

    Squared error and R² for numbers, share of errors and accuracy for classes, (explained) deviance for counts.
    """

    method: str
    private: str
    error: float
    score: float


def compare(model: SharedBasisModel, cohort: Cohort, *, random_state: int = 0) -> list[Line]:
    """Compare a fitted model with local models, one model for all, and the same method without privacy.

    >>> import tacitly
    >>> X, y, users, *_ = tacitly.datasets.make_shared_subspace(500, 8, 1, 10, random_state=0)
    >>> cohort = tacitly.Cohort.from_arrays(X, y, users)
    >>> lines = compare(tacitly.PrivateFedRep(rank=1, epsilon=8.0).fit(cohort), cohort)
    >>> [line.method for line in lines]
    ['tacitly (this model)', 'the same, not private', 'local models', 'one model for all']
    """
    rng = np.random.default_rng(random_state)
    if cohort.n_users > _MOST_TRAINED:
        cohort = cohort.take(np.sort(rng.permutation(cohort.n_users)[:_MOST_TRAINED]))
    train, test = _split(cohort, rng)
    same: dict[str, Any] = {"fit_intercept": model.fit_intercept, "loss": model.loss, "classes": model.classes}
    some = np.sort(rng.permutation(train.n_users)[:_MOST_USERS])

    ours = model.with_heads_of(train)
    everyone = _not_private(model, train, same)
    local = LocalModels(**same).fit(train.take(some))
    single = SingleModel(**same).fit(train)
    probe = test.take(some)
    epsilon = model.certificate_.epsilon
    return [
        _line("tacitly (this model)", f"ε = {shown(epsilon)}" if np.isfinite(epsilon) else "no", ours, probe),
        _line("the same, not private", "no", everyone, probe),
        _line("local models", "nothing shared", local, probe),
        _line("one model for all", "no", single, probe),
    ]


def _split(cohort: Cohort, rng: np.random.Generator) -> tuple[Cohort, Cohort]:
    """Hold out a fifth of every user's rows (at least one); users with fewer than two rows are left out."""
    counts = np.diff(cohort.offsets)
    order = rng.random(cohort.n_rows)
    owner = np.repeat(np.arange(cohort.n_users), counts)
    ranks = np.empty(cohort.n_rows, dtype=np.int64)
    ranks[np.lexsort((order, owner))] = np.arange(cohort.n_rows)
    held = ranks - cohort.offsets[owner] < np.maximum(counts // 5, 1)[owner]
    kept = (counts >= 2)[owner]
    return _rows(cohort, owner, kept & ~held), _rows(cohort, owner, kept & held)


def _rows(cohort: Cohort, owner: npt.NDArray[np.int64], chosen: npt.NDArray[np.bool_]) -> Cohort:
    users, counts = np.unique(owner[chosen], return_counts=True)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    assert cohort.y is not None
    return Cohort.from_offsets(cohort.X[chosen], cohort.y[chosen], offsets, users=cohort.users[users])


def _not_private(model: SharedBasisModel, train: Cohort, same: dict[str, Any]) -> HeadsOnBasis:
    if not isinstance(model, LowRankSparse):
        return FedRep(rank=model.rank, **same).fit(train)
    # Not scikit-learn's clone: it copies parameters, and an open ledger cannot be copied.
    ours = {"epsilon": math.inf, "mode": "auto", "clips": None, "start": "random", "ledger": None, "noise_seed": None}
    twin = LowRankSparse(**{**model.get_params(deep=False), **ours})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UncertifiedWarning)
        return twin.fit(train)


def _line(method: str, private: str, fitted: HeadsOnBasis, test: Cohort) -> Line:
    ids = np.repeat(test.users, np.diff(test.offsets))
    target, loss = np.asarray(test.y, dtype=np.float64), fitted._loss()
    prediction = fitted.predict(test.X, ids)
    return Line(method, private, loss.error(target, prediction), loss.score(target, prediction))
