"""The estimators a user sees: scikit-learn's manners, one budget, one certificate.

``fit`` builds a cohort, opens an account in a ledger, hands the algorithm a federation, and lets every user fit a head
at home. Nothing here touches a private row.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tacit.algorithms import altmin, fedrep, paper_fedrep
from tacit.cohort import Cohort
from tacit.federation.base import Array, Federation, Rows
from tacit.federation.local import LocalFederation
from tacit.heads import fit_heads
from tacit.personal import PersonalModel
from tacit.privacy.guarantee import Budget, GaussianEvent
from tacit.privacy.ledger import Ledger
from tacit.private_model import PrivateModel, abandoned_on_failure

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
        X: Any,
        y: Any = None,
        users: Any = None,
        *,
        on_release: Callable[[str], None] | None = None,
    ) -> SharedBasisModel:
        """Learn the shared basis privately, then a head for every user.

        Parameters
        ----------
        X
            Rows of features (n_rows × n_features), in any order; or a :class:`~tacit.cohort.Cohort`, alone.
        y
            The target of each row.
        users
            The id of the user each row belongs to.
        on_release
            Called with the name of each release when it is out (for progress bars).
        """
        if isinstance(X, Cohort):
            cohort = X
        else:
            if y is None or users is None:
                raise ValueError("fit needs y and users next to X: the target and the user id of every row.")
            cohort = Cohort.from_arrays(X, y, users)
        if cohort.y is None:
            raise ValueError("the cohort has no target. Build it with a target column.")
        self._check_parameters(cohort)
        budget = self._budget()
        run = self._open(budget, self._planned(budget), {"n_users": cohort.n_users, "n_features": cohort.n_features})
        with abandoned_on_failure(run):
            federation = LocalFederation(
                cohort, run, noise=self.noise, noise_seed=self.noise_seed, on_release=on_release, threads=self.threads
            )
            self.basis_ = self._learn(federation, budget)
            heads = federation.users_map(self._fit_heads)
        self.heads_, self.intercepts_ = heads[:, :-1], heads[:, -1]
        self.users_ = cohort.users
        self.n_features_in_ = cohort.n_features
        self.feature_names_in_ = np.array(cohort.feature_names, dtype=str)
        self.target_name_ = cohort.target_name
        self._certify(run, budget, units=cohort.n_users, trust=TRUST, notes=(FREE_HEADS,), nominal=self.epsilon)
        return self

    @abstractmethod
    def _planned(self, budget: Budget) -> Sequence[GaussianEvent]:
        """Every release the algorithm will make."""

    @abstractmethod
    def _learn(self, federation: Federation, budget: Budget) -> Array:
        """Run the algorithm; return the orthonormal basis."""

    def _fit_heads(self, X: Rows, y: Rows, offsets: npt.NDArray[np.int64]) -> Array:
        return fit_heads(X, y, offsets, self.basis_, intercept=bool(getattr(self, "fit_intercept", False)))

    def _check_parameters(self, cohort: Cohort) -> None:
        if not (isinstance(self.rank, int | np.integer) and 1 <= self.rank <= cohort.n_features):
            raise ValueError(
                f"rank must be a whole number from 1 to the number of features ({cohort.n_features}). "
                f"Found {self.rank!r}."
            )
        if self.mode not in self._modes:
            raise ValueError(f"mode must be one of {self._modes}. Found {self.mode!r}.")


class PrivateFedRep(SharedBasisModel):
    """Learn a shared low-rank representation under user-level differential privacy, and a personal model a user.

    Everybody's weights are wᵢ = U vᵢ: a basis U of ``rank`` directions that all share, learned privately, and a head vᵢ
    that stays with its user. Nothing needs tuning but ``epsilon``.

    Parameters
    ----------
    rank
        Number of shared directions, k.
    epsilon
        The privacy budget for everything that is released, together. ``math.inf`` for none (not certified).
    delta
        Probability with which ε may fail; well below one over the number of users.
    adjacency
        ``"zero-out"``: a user's contribution against nothing. ``"replace-one"``: against any other data.
    mode
        ``"auto"``: the sound algorithm. ``"paper"``: paper 003 as printed, not certified, to compare with.
    random_state
        Steers public randomness only. (The default algorithm has none.) Privacy noise cannot be seeded with it.
    fit_intercept
        Whether every user has a level of their own; it is fitted at home, like the head.
    rounds
        Noisy steps of the basis; None for the default (16; 5 in paper mode).
    noise
        ``"auto"``, ``"exact"`` or ``"float"``: how noise is drawn. The certificate says.
    noise_seed
        Seeds the privacy noise, for experiments that must repeat. The run is then not certified.
    ledger, run
        An account to debit and the name of this run in it; a run that was interrupted goes on from there.
    threads
        Threads to use; None for all cores.

    Attributes
    ----------
    basis_ : (n_features, rank) orthonormal; public
    heads_ : (n_users, rank), rows in the order of ``users_``; private
    intercepts_ : (n_users,), zeros unless ``fit_intercept``; private
    users_ : ids, sorted
    certificate_ : what was released and what it costs

    Examples
    --------
    >>> import tacit
    >>> X, y, users, basis, _ = tacit.datasets.make_shared_subspace(2000, 20, 2, 10, random_state=0)
    >>> model = tacit.PrivateFedRep(rank=2, epsilon=2.0).fit(X, y, users)
    >>> model.certificate_.certified, round(model.certificate_.epsilon, 6)
    (True, 2.0)
    >>> tacit.subspace_distance(model.basis_, basis) < 0.05
    True
    >>> head = model.personalize(X[users == 3], y[users == 3])  # a new user: costs nobody anything
    >>> head.predict(X[:1]).shape
    (1,)
    """

    _modes = ("auto", "paper")

    def __init__(
        self,
        rank: int,
        epsilon: float,
        delta: float = 1e-6,
        adjacency: str = "zero-out",
        mode: str = "auto",
        random_state: int | None = None,
        *,
        fit_intercept: bool = False,
        rounds: int | None = None,
        noise: str = "auto",
        noise_seed: int | None = None,
        ledger: Ledger | None = None,
        run: str = "private-fedrep",
        threads: int | None = None,
    ) -> None:
        self.rank = rank
        self.epsilon = epsilon
        self.delta = delta
        self.adjacency = adjacency
        self.mode = mode
        self.random_state = random_state
        self.fit_intercept = fit_intercept
        self.rounds = rounds
        self.noise = noise
        self.noise_seed = noise_seed
        self.ledger = ledger
        self.run = run
        self.threads = threads

    def _settings(self) -> fedrep.Settings:
        return fedrep.Settings() if self.rounds is None else fedrep.Settings(rounds=self.rounds)

    def _paper_settings(self) -> paper_fedrep.Settings:
        return paper_fedrep.Settings() if self.rounds is None else paper_fedrep.Settings(rounds=self.rounds)

    def _planned(self, budget: Budget) -> Sequence[GaussianEvent]:
        if self.mode == "paper":
            start, loop = self._paper_settings().events(budget)
            return [start] + [loop] * self._paper_settings().rounds
        return self._settings().events(self._settings().plan(budget))

    def _learn(self, federation: Federation, budget: Budget) -> Array:
        if self.mode == "paper":
            return paper_fedrep.learn(federation, budget, self._paper_settings(), self.rank)
        settings = self._settings()
        return fedrep.learn(federation, settings.plan(budget), settings, self.rank, centered=self.fit_intercept)

    def _fit_heads(self, X: Rows, y: Rows, offsets: npt.NDArray[np.int64]) -> Array:
        if self.mode == "paper":
            return paper_fedrep.paper_heads(X, y, offsets, self.basis_)
        return super()._fit_heads(X, y, offsets)

    def _standing(self, budget: Budget) -> tuple[str, tuple[str, ...]]:
        mode, reasons = super()._standing(budget)
        return (mode, reasons) if self.mode == "auto" else ("paper", (*reasons, *paper_fedrep.REASONS))

    def _check_parameters(self, cohort: Cohort) -> None:
        super()._check_parameters(cohort)
        if self.mode == "paper" and self.fit_intercept:
            raise ValueError("paper mode has no intercept. Set fit_intercept=False.")


class PrivateAltMin(SharedBasisModel):
    """Private alternating minimisation (Jain et al. 2021), sound: the method to compare Private FedRep with.

    Parameters are those of :class:`PrivateFedRep`.

    Examples
    --------
    >>> import tacit
    >>> X, y, users, basis, _ = tacit.datasets.make_shared_subspace(1000, 8, 1, 10, random_state=0)
    >>> model = tacit.PrivateAltMin(rank=1, epsilon=8.0).fit(X, y, users)
    >>> tacit.subspace_distance(model.basis_, basis) < 0.5
    True
    """

    def __init__(
        self,
        rank: int,
        epsilon: float,
        delta: float = 1e-6,
        adjacency: str = "zero-out",
        mode: str = "auto",
        random_state: int | None = None,
        *,
        rounds: int = 2,
        noise: str = "auto",
        noise_seed: int | None = None,
        ledger: Ledger | None = None,
        run: str = "private-altmin",
        threads: int | None = None,
    ) -> None:
        self.rank = rank
        self.epsilon = epsilon
        self.delta = delta
        self.adjacency = adjacency
        self.mode = mode
        self.random_state = random_state
        self.rounds = rounds
        self.noise = noise
        self.noise_seed = noise_seed
        self.ledger = ledger
        self.run = run
        self.threads = threads

    def _planned(self, budget: Budget) -> Sequence[GaussianEvent]:
        settings = altmin.Settings(rounds=self.rounds)
        return settings.events(settings.plan(budget))

    def _learn(self, federation: Federation, budget: Budget) -> Array:
        settings = altmin.Settings(rounds=self.rounds)
        return altmin.learn(federation, settings.plan(budget), settings, self.rank)
