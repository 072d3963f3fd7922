"""What every private estimator does around its algorithm: one budget, one account, one certificate.

A model opens a run in a ledger, hands a federation to its algorithm, and states what was released. Nothing here touches
a private row.
"""

from __future__ import annotations

import math
import warnings
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy.typing as npt
from sklearn.base import BaseEstimator

from tacitly.data.cohort import Cohort
from tacitly.federation.engine import Engine
from tacitly.privacy.certificate import NOT_COVERED, Certificate
from tacitly.privacy.guarantee import Adjacency, Budget, Event, UncertifiedWarning, Unit
from tacitly.privacy.ledger import Ledger, Run

NON_PRIVATE = "epsilon = inf: sums were released without noise"
SEEDED = "noise came from a seed: whoever knows it can subtract the noise"


class PrivateModel(BaseEstimator):  # type: ignore[misc]
    """Common to all estimators that learn through the door."""

    epsilon: float
    delta: float
    adjacency: str
    mode: str
    noise: str
    noise_seed: int | None
    ledger: Ledger | None
    run: str
    threads: int | None
    engine: Engine | None = None
    certificate_: Certificate
    users_: npt.NDArray[Any]
    feature_names_in_: npt.NDArray[Any]
    n_features_in_: int
    target_name_: str | None = None
    user_column_: str | None = None

    _modes: tuple[str, ...] = ("auto",)

    def close(self, billboard_sha256: str | None = None) -> None:
        """Finish the run in its ledger, as ``save`` does: a finished run cannot be resumed.

        Without the hash of what was saved, the model cannot be verified against its ledger later.
        """
        run = self.__dict__.pop("_run", None)
        if run is not None:
            run.finish(billboard_sha256)

    @abstractmethod
    def public_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Everything that was learned and may be known: the billboard."""

    @abstractmethod
    def take_public_arrays(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Set what :meth:`public_arrays` gave, with nobody's private part."""

    def private_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return what stays with the users, in the order of ``users_``; nothing where a model has no heads."""
        return {}

    def take_private_arrays(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Set what :meth:`private_arrays` gave; ``users_`` are there already."""

    @property
    def folder_class(self) -> str:
        """What a model folder calls this kind of model."""
        return type(self).__name__

    def folder_parameters(self) -> dict[str, Any]:
        """Return the parameters a model folder keeps: those that are plain and say something later."""
        left_out = {"ledger", "threads", "engine"}
        return {key: value for key, value in self.get_params(deep=False).items() if key not in left_out}

    @property
    def audit_labels(self) -> tuple[float, float] | None:
        """Two targets that an auditor's users may have, where not any number will do."""
        return None

    def as_asked(self, cohort: Cohort) -> Cohort:
        """Return the cohort as queries see it: labels as numbers."""
        return cohort

    def _budget(self, unit: Unit = Unit.USER) -> Budget:
        return Budget(epsilon=self.epsilon, delta=self.delta, adjacency=Adjacency(self.adjacency), unit=unit)

    def _open(self, budget: Budget, planned: Sequence[Event], sizes: Mapping[str, Any]) -> Run:
        """Open (or resume) the run; warn if what follows cannot be certified."""
        self._check_noise(budget, planned)
        _, reasons = self._standing(budget)
        if reasons:
            warnings.warn(f"not certified: {'; '.join(reasons)}", UncertifiedWarning, stacklevel=3)
        ledger = self.ledger if self.ledger is not None else Ledger(ceiling=None if reasons else budget)
        return ledger.run(self.run, config=self._public_config(sizes), planned=planned, certified=not reasons)

    def _check_noise(self, budget: Budget, planned: Sequence[Event]) -> None:
        """Raise where those who are to add the noise would not: a node's own ledger counts noisy sums of users."""
        if self.noise_by == "central":
            return
        if budget.unit is not Unit.USER:
            raise ValueError(
                f"nodes that add the noise guard whole users: unit user. Found unit {budget.unit} and trust "
                f"{self.noise_by!r}: use trust 'central'."
            )
        if not all(event.private for event in planned):
            raise ValueError(f"nodes that add the noise send no sum without it. Found trust {self.noise_by!r}.")

    @property
    def noise_by(self) -> str:
        """Who adds the noise: this process or a coordinator ("central"), or the nodes of an engine."""
        return str(getattr(self.engine, "how", "central"))

    def _certify(
        self,
        run: Run,
        budget: Budget,
        *,
        units: int,
        trust: str,
        notes: tuple[str, ...],
        nominal: float | None = None,
        not_covered: tuple[str, ...] = (),
    ) -> None:
        """State what was released; close the run unless somebody else keeps the account."""
        mode, reasons = self._standing(budget)
        self.certificate_ = Certificate(
            algorithm=type(self).__name__,
            mode=mode,
            budget=budget,
            releases=tuple(run.releases),
            n_users=units,
            trust=trust,
            reasons=reasons,
            nominal_epsilon=nominal if mode == "paper" else None,
            notes=notes,
            not_covered=(*not_covered, *NOT_COVERED),
        )
        self._run = run
        if self.ledger is None:
            self.close()

    def _standing(self, budget: Budget) -> tuple[str, tuple[str, ...]]:
        """Return whether the run can be certified, and why not."""
        if not budget.private:
            return "non-private", (NON_PRIVATE,)
        if self.noise_seed is not None:
            return "seeded", (SEEDED,)
        return "certified", ()

    def _public_config(self, sizes: Mapping[str, Any]) -> dict[str, Any]:
        """Return what a resumed run must have in common with the one it goes on with."""
        left_out = {"ledger", "run", "threads", "noise_seed", "engine"}
        parameters = {key: value for key, value in self.get_params(deep=False).items() if key not in left_out}
        return {
            "algorithm": type(self).__name__,
            **sizes,
            # Where the rows are may change between attempts; who adds the noise is part of what was promised.
            "noise_by": self.noise_by,
            **{key: plain_parameter(value) for key, value in parameters.items()},
        }


@contextmanager
def abandoned_on_failure(run: Run) -> Iterator[None]:
    """Give the run up if what follows fails, so that the same fit, asked for again, can go on with it."""
    try:
        yield
    except BaseException:
        run.abandon()
        raise


def plain_parameter(value: Any) -> Any:
    """Return a parameter as the ledger can hold it."""
    if isinstance(value, float) and math.isinf(value):
        return "inf"
    if isinstance(value, tuple | list | range):
        return [plain_parameter(item) for item in value]
    return value.tolist() if hasattr(value, "tolist") else value  # NumPy's, pandas' and Arrow's
