"""The estimators a user sees: scikit-learn's manners, one budget, one certificate.

``fit`` builds a cohort, opens an account in a ledger, hands the algorithm a federation, and lets every user fit a head
at home. Nothing here touches a private row.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tacitly.arrays import Array, Offsets, Rows
from tacitly.data.cohort import Cohort
from tacitly.federation.base import Federation
from tacitly.federation.engine import Population
from tacitly.federation.local import LocalPopulation
from tacitly.heads.ridge import HeadWork
from tacitly.methods.base import PrivateModel, abandoned_on_failure
from tacitly.methods.personal import PersonalModel
from tacitly.privacy.guarantee import Budget, Event

TRUST = (
    "central: whoever runs this process holds the rows, adds the noise and keeps the heads; everybody else sees the "
    "billboard only, and a user their own head (joint differential privacy)."
)
FREE_HEADS = (
    "heads and personalize() cost nothing: a head is computed from the public basis and its own user's rows, so for "
    "everybody else it is post-processing, and it is not released"
)


class SharedBasisModel(PersonalModel, PrivateModel):
    """Common to all estimators that learn a basis through the door and heads at home."""

    rank: int

    def fit(
        self,
        X: Any = None,
        y: Any = None,
        users: Any = None,
        *,
        on_release: Callable[[str], None] | None = None,
    ) -> SharedBasisModel:
        """Learn the shared basis privately, then a head for every user.

        Parameters
        ----------
        X
            Rows of features (n_rows × n_features), in any order; or a :class:`~tacitly.data.cohort.Cohort`, alone; or
            None where the ``engine`` knows where the users are.
        y
            The target of each row.
        users
            The id of the user each row belongs to.
        on_release
            Called with the name of each release when it is out (for progress bars).
        """
        population = self._population(X, y, users)
        self._check_parameters(population)
        budget = self._budget()
        run = self._open(
            budget, self._planned(budget), {"n_users": population.n_users, "n_features": population.n_features}
        )
        with abandoned_on_failure(run):
            federation = population.federation(
                run,
                noise=self.noise,
                noise_seed=self.noise_seed,
                on_release=on_release,
                threads=self.threads,
                trust="central",
            )
            self.take_public_arrays({"basis": self._learn(federation, budget)})
            heads = federation.users_map(self._head_work())
        if heads is not None:
            self._take_heads(heads)
            self.users_ = np.asarray(population.users)
        self.n_features_in_ = population.n_features
        self.feature_names_in_ = np.array(population.feature_names, dtype=str)
        self.target_name_ = population.target_name
        self._certify(
            run,
            budget,
            units=population.n_users,
            trust=population.trust or TRUST,
            notes=(FREE_HEADS,),
            nominal=self.epsilon,
        )
        return self

    @property
    def audit_labels(self) -> tuple[float, float] | None:
        """Two classes, or two counts, that an auditor's users may have; words by their positions."""
        classes = self._loss().classes
        if classes is None or isinstance(classes[0], str):
            return None if self.loss == "squared" else (0.0, 1.0)
        return float(classes[0]), float(classes[1])

    def as_asked(self, cohort: Cohort) -> Cohort:
        """Return the cohort with targets as the loss encodes them; raises where a label is not declared."""
        if self.loss == "squared" or cohort.y is None:
            return cohort
        return replace(cohort, y=self._loss().encode(cohort.y).astype(cohort.dtype))

    def with_heads_of(self, cohort: Cohort) -> SharedBasisModel:
        """Return the same public model with heads fitted to these users' rows instead."""
        refitted, asked = copy(self), self.as_asked(cohort)
        refitted._take_heads(self._fit_heads(asked.X, np.asarray(asked.y), asked.offsets))
        refitted.users_ = cohort.users
        return refitted

    def public_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the basis."""
        self._check_fitted()
        return {"basis": self.basis_}

    def take_public_arrays(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Set the basis; nobody has a head on it yet."""
        self.basis_ = arrays["basis"]
        columns = self._loss().columns
        classes = (columns,) if columns > 1 else ()
        self.heads_, self.intercepts_ = np.zeros((0, self.basis_.shape[1], *classes)), np.zeros((0, *classes))
        self.users_ = np.zeros(0, dtype=np.int64)

    def private_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return heads and intercepts; nothing where they stayed with their users."""
        return {"heads": self.heads_, "intercepts": self.intercepts_} if len(self.users_) else {}

    def take_private_arrays(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Set heads and intercepts."""
        self.heads_, self.intercepts_ = arrays["heads"], arrays["intercepts"]

    @abstractmethod
    def _planned(self, budget: Budget) -> Sequence[Event]:
        """Every release the algorithm will make."""

    @abstractmethod
    def _learn(self, federation: Federation, budget: Budget) -> Array:
        """Run the algorithm; return the orthonormal basis."""

    def _head_work(self) -> HeadWork:
        """Return what every user does at home once the basis is there."""
        return self.head_work()

    def _fit_heads(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        return self._head_work()(X, y, offsets)

    def _population(self, X: Any, y: Any, users: Any) -> Population:
        if X is None and self.engine is not None:
            self._check_codes()
            return self.engine.population(None)
        if isinstance(X, Cohort):
            cohort = X
        else:
            if X is None or y is None or users is None:
                raise ValueError("fit needs y and users next to X: the target and the user id of every row.")
            name = getattr(y, "name", None)
            targets = y if self.loss == "squared" else self._loss().encode(y)
            cohort = Cohort.from_arrays(X, targets, users, target_name=None if name is None else str(name))
        if cohort.y is None:
            raise ValueError("the cohort has no target. Build it with a target column.")
        # What is wrong with the parameters is said before what is wrong with the labels.
        self._check_parameters(LocalPopulation(cohort))
        if cohort is X:
            cohort = self.as_asked(cohort)
        return LocalPopulation(cohort) if self.engine is None else self.engine.population(cohort)

    def _check_codes(self) -> None:
        """Raise unless labels that are read elsewhere need no translation there."""
        classes = self._loss().classes
        if classes is not None and list(classes) != list(range(len(classes))):
            raise ValueError(
                f"where rows stay with others, labels must be the numbers 0 to {len(classes) - 1} there. "
                f"Found classes={list(classes)!r}."
            )

    def _check_parameters(self, population: Population) -> None:
        if not (isinstance(self.rank, int | np.integer) and 1 <= self.rank <= population.n_features):
            raise ValueError(
                f"rank must be a whole number from 1 to the number of features ({population.n_features}). "
                f"Found {self.rank!r}."
            )
        if self.mode not in self._modes:
            raise ValueError(f"mode must be one of {self._modes}. Found {self.mode!r}.")
