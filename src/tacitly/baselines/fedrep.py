"""FedRep without privacy: the same algorithm without noise and with more rounds, to measure the cost of privacy.

``mode="paper"`` is FedRep as Collins et al. (2021) printed it (:mod:`tacitly.baselines.collins`).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from tacitly.baselines import collins
from tacitly.data.cohort import Cohort
from tacitly.data.reading import read_cohort
from tacitly.federation.local import LocalPopulation
from tacitly.heads.ridge import fit_heads
from tacitly.methods.fedrep.estimator import PrivateFedRep
from tacitly.privacy.guarantee import UncertifiedWarning


class FedRep(PrivateFedRep):
    """Shared basis and personal heads, not private.

    Parameters
    ----------
    rank, fit_intercept, loss, classes
        As for :class:`PrivateFedRep`.
    rounds
        Steps of the basis; None for the default (16; 200 in paper mode).
    mode
        ``"auto"``: the algorithm of :class:`PrivateFedRep` without noise. ``"paper"``: that of Collins et al. (2021),
        for the squared loss without intercepts: a random start and gradient steps of one length.
    step_size
        η of Collins et al., in paper mode; None for the largest that their theorem allows.
    random_state
        Seeds the start of paper mode.

    Examples
    --------
    >>> import tacitly
    >>> X, y, users, basis, _ = tacitly.datasets.make_shared_subspace(200, 10, 1, 10, random_state=0)
    >>> tacitly.subspace_distance(tacitly.FedRep(rank=1).fit(X, y, users).basis_, basis) < 0.01
    True
    """

    def __init__(
        self,
        rank: int | str,
        *,
        fit_intercept: bool = False,
        loss: str = "squared",
        classes: Sequence[Any] | None = None,
        rounds: int | None = 30,
        mode: str = "auto",
        step_size: float | None = None,
        random_state: int | None = None,
    ) -> None:
        super().__init__(
            *(rank, math.inf), mode=mode, random_state=random_state, step_size=step_size,
            fit_intercept=fit_intercept, loss=loss, classes=classes, rounds=rounds, run="fedrep",
        )  # fmt: skip

    def n_parameters(self) -> int:
        """Count the numbers of the model as AMHT-LRS (Pal et al. 2024) does: r(d + n)."""
        self._check_fitted()
        return int(self.basis_.size + self.heads_.size)

    def fit(self, X: Any = None, y: Any = None, users: Any = None, **options: Any) -> Self:
        """Fit without the warning that the result is not certified."""
        if self.mode == "paper":
            return self._as_printed(X, y, users)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UncertifiedWarning)
            return super().fit(X, y, users, **options)

    def _as_printed(self, X: Any, y: Any, users: Any) -> Self:
        self._check_parameters()
        cohort: Cohort = read_cohort(X, y, users)
        self._check_population(LocalPopulation(cohort))
        rounds = collins.ROUNDS if self.rounds is None else self.rounds
        self.basis_ = collins.learn(cohort, int(self.rank), rounds, self.step_size, self.random_state)
        self._take_heads(fit_heads(cohort.X, np.asarray(cohort.y), cohort.offsets, self.basis_))
        self.users_, self.n_features_in_ = cohort.users, cohort.n_features
        self.feature_names_in_, self.prior_ = np.array(cohort.feature_names, dtype=str), None
        return self

    @classmethod
    def _get_param_names(cls) -> list[str]:
        return ["classes", "fit_intercept", "loss", "mode", "random_state", "rank", "rounds", "step_size"]
