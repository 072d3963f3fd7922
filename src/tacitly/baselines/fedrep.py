"""FedRep without privacy: the same algorithm without noise and with more rounds, to measure the cost of privacy."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any, Self

from tacitly.methods.fedrep.estimator import PrivateFedRep
from tacitly.privacy.guarantee import UncertifiedWarning


class FedRep(PrivateFedRep):
    """Shared basis and personal heads, not private.

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
    ) -> None:
        super().__init__(
            rank, math.inf, fit_intercept=fit_intercept, loss=loss, classes=classes, rounds=rounds, run="fedrep"
        )

    def n_parameters(self) -> int:
        """Count the numbers of the model as AMHT-LRS (Pal et al. 2024) does: r(d + n)."""
        self._check_fitted()
        return int(self.basis_.size + self.heads_.size)

    def fit(self, X: Any = None, y: Any = None, users: Any = None, **options: Any) -> Self:
        """Fit without the warning that the result is not certified."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UncertifiedWarning)
            return super().fit(X, y, users, **options)

    @classmethod
    def _get_param_names(cls) -> list[str]:
        return ["classes", "fit_intercept", "loss", "rank", "rounds"]
