"""Estimators with a shared vector and one personal part per user: rounds, personal parts, prediction, saving.

Release: :class:`~tacitly.neural.engine.query.BodyUpdate`, the sum of all users' answers
(:mod:`tacitly.neural.low_rank_sparse.personal_part`). Scaling each answer to norm one, or clipping it, is the last
operation on it. Unit: the user. An answer is a function of one user's rows and public numbers, so zero-out changes the
sum by at most the clipping bound, and replace-one by at most twice the bound: one Gaussian event per round. The public
vector moves by the released sum divided by a public number of users.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tacitly.arrays import Array, Offsets, Rows
from tacitly.data.cohort import Cohort
from tacitly.data.reading import read_cohort
from tacitly.data.validation import plain_numbers
from tacitly.federation.base import Federation
from tacitly.federation.engine import Population
from tacitly.heads.losses import Loss
from tacitly.methods.base import HomeWork, PrivateModel, Procedure, Statement
from tacitly.methods.personal import PersonalModel, Positions, by_user, with_type
from tacitly.neural.engine.bound import update_bound
from tacitly.neural.engine.executor import Executor
from tacitly.neural.engine.local_training import LocalTraining
from tacitly.neural.engine.one_process import check_engine
from tacitly.neural.engine.query import BodyUpdate
from tacitly.neural.engine.rehearsal import rehearse
from tacitly.neural.low_rank_sparse.network import Network
from tacitly.neural.low_rank_sparse.personal_part import PersonalPartUpdate, SparseUpdate
from tacitly.neural.low_rank_sparse.tanh_network import TanhNetwork
from tacitly.privacy.calibration import Phase, Plan
from tacitly.privacy.guarantee import Budget

TRUST = (
    "central: whoever runs this process holds the rows, adds the noise and keeps the personal parts; all others see "
    "what is shared only, and each user their own part (joint differential privacy)."
)
FREE_OWN_PARTS = (
    "personal parts and personalize() cost no privacy: a personal part is computed from what is public and its user's "
    "own rows, so for all others it is post-processing, and it is not released"
)
PUBLIC_SCALES = "the scaling of features and targets before fit is assumed to be public"

_CELLS = 1 << 16  # parameters of users that are computed together on a CPU: what fits into a core's cache
_ROWS = 1 << 12  # rows, including padding, of users whose personal parts are fitted together at the end
_STANDARD_ROWS = 256  # synthetic standard normal rows, for measuring how far a step moves outputs
_TINY = float(np.finfo(np.float64).tiny)


@dataclass(frozen=True)
class OwnNetwork:
    """One user's network. Private to that user."""

    network: Network
    parameters: Array
    own: Array

    def predict(self, X: npt.ArrayLike) -> npt.NDArray[Any]:
        """Return predictions for this user's rows: numbers, or class numbers."""
        return np.asarray(self.network.answers(self._outputs(X)).numpy())

    def predict_proba(self, X: npt.ArrayLike) -> Array:
        """Return one probability per class for each of this user's rows."""
        return np.asarray(self._outputs(X).softmax(dim=-1).numpy())

    def _outputs(self, X: npt.ArrayLike) -> Tensor:
        rows = torch.as_tensor(np.asarray(plain_numbers(X, "X"), dtype=np.float64))
        with torch.no_grad():
            return self.network(torch.as_tensor(self.parameters), rows)


@dataclass(eq=False, repr=False, kw_only=True)
class NetworkParameters:
    """The parameters that these estimators share; documented in :class:`~tacitly.neural.LowRankSparse`."""

    hidden: tuple[int, ...] = (50, 50)
    rounds: int = 15
    step: float = 1.0
    clip: float | str | None = None
    clip_share: float = 0.05
    sampling_rate: float = 1.0
    head_steps: int = 10
    final_steps: int = 40
    penalty: float = 3.0
    cross_fit: bool = True
    rows_per_user: int = 64
    device: str = "auto"
    chunk: int | None = None
    engine: Any = None


class PersonalPartModel(PersonalModel[OwnNetwork], PrivateModel, NetworkParameters):
    """Base class of :class:`~tacitly.neural.LowRankSparse` and its baselines.

    ``fit`` expects features and targets of magnitude about one, by public scales: tanh units saturate beyond a few.
    """

    shared_: Array
    own_: Array

    _learned: ClassVar[str] = "shared_"
    _private_part: ClassVar[str] = "network"

    def __sklearn_tags__(self) -> Any:
        """Return scikit-learn's tags: a regressor."""
        return with_type(super().__sklearn_tags__(), classifies=False)

    @abstractmethod
    def n_parameters(self) -> int:
        """Count the numbers of the model, as the paper's Table 2 does."""

    def public_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the shared parameters."""
        self._check_fitted()
        return {"shared": self.shared_}

    def take_public_arrays(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Set the shared parameters; no user has a personal part then."""
        network = self._network()
        expected = (self._update(network).size,)
        if arrays["shared"].shape != expected:
            raise ValueError(f"this model shares {expected[0]} numbers. Found shape {arrays['shared'].shape}.")
        self.shared_ = arrays["shared"]
        self.own_, self.users_ = np.zeros((0, self._packed_size(network))), np.zeros(0, dtype=np.int64)

    def private_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the personal parts."""
        return {"own": self.own_}

    def take_private_arrays(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Set the personal parts."""
        expected = (len(self.users_), self._packed_size(self._network()))
        if arrays["own"].shape != expected:
            raise ValueError(f"there must be one personal part per user, {expected}. Found {arrays['own'].shape}.")
        self.own_ = arrays["own"]

    @property
    def folder_class(self) -> str:
        """The name of this kind of model in a model folder."""
        return f"neural.{type(self).__name__}"

    @abstractmethod
    def _update(self, network: Network) -> PersonalPartUpdate:
        """Return the user's part of a round."""

    @abstractmethod
    def _start(self, network: Network, rng: np.random.Generator) -> Array:
        """Return the initial public vector."""

    @abstractmethod
    def _packed_size(self, network: Network) -> int:
        """Return the length of a stored personal part."""

    def _packed(self, own: Tensor) -> Tensor:
        """Return personal parts, one row per user, as they are stored."""
        return own

    def _unpacked(self, row: Array) -> Tensor:
        """Return one user's personal part from its stored form."""
        return torch.as_tensor(row)

    def _network(self, n_features: int | None = None) -> Network:
        """Return the network for this many features; by default, those of training."""
        return TanhNetwork(self.n_features_in_ if n_features is None else n_features, tuple(self.hidden))

    def _task(self) -> str:
        """Return the loss: squared error."""
        return "squares"

    def _loss(self) -> Loss:
        return Loss()

    def _cohort(self, X: Any, y: Any, users: Any) -> Cohort:
        cohort: Cohort = read_cohort(X, y, users, dtype=np.float32, on_bad_rows=self._bad_rows())
        return cohort

    @property
    def _federation_threads(self) -> int | None:
        """One, because users are computed in batches."""
        return 1

    def _procedure(self, population: Population, budget: Budget) -> Procedure:
        plan = self._plan(budget)
        network = self._network(population.n_features)
        return Procedure(plan.events(), lambda federation: {"shared": self._learn(federation, plan, network)})

    def _statement(self, budget: Budget) -> Statement:
        return Statement(TRUST, notes=(FREE_OWN_PARTS, PUBLIC_SCALES))

    def _predictions(self, rows: npt.NDArray[Any], positions: Positions) -> npt.NDArray[Any]:
        predicted = np.zeros(len(rows), dtype=np.float64 if self._task() == "squares" else np.int64)
        for user, mine in by_user(positions):
            predicted[mine] = self._network_of(self.own_[user]).predict(rows[mine])
        return predicted

    def _personal_model(self, rows: npt.NDArray[Any], targets: Array) -> OwnNetwork:
        return self._network_of(self._own_parts(rows, targets, np.array([0, len(rows)]))[0])

    def _home_work(self) -> HomeWork:
        return self._own_parts

    def _take_heads(self, heads: Array) -> None:
        self.own_ = heads

    def _training(self) -> LocalTraining:
        return LocalTraining(
            head_steps=self.head_steps,
            cross_fit=self.cross_fit,
            rows=self.rows_per_user,
            loss=self._task(),
        )

    def _plan(self, budget: Budget) -> Plan:
        clip = [Phase(name="clip", share=self.clip_share, acute=False)] if self.clip == "auto" else []
        rest = 1.0 - math.fsum(phase.share for phase in clip)
        return Plan(
            budget,
            [*clip, Phase(name="rounds", share=rest, releases=self.rounds)],
            sampling_rate=self.sampling_rate,
        )

    def _learn(self, federation: Federation, plan: Plan, network: Network) -> Array:
        """Move the public vector by noisy sums; steps shrink over the rounds, and if a sum is mostly noise."""
        update = self._update(network)
        compiled = isinstance(update, SparseUpdate) and update.compiles
        executor = Executor(update, device=self.device, chunk=self.chunk, workers=None if compiled else 1)
        if not (executor.batched or compiled):  # small networks run three times as fast in batches, also on a CPU
            executor.batched, executor.chunk = True, self.chunk or _together(update.size)
        state = self._start(network, np.random.default_rng(0 if self.random_state is None else self.random_state))
        rehearse(executor, state, federation.n_features, federation.n_users)
        standard = np.random.default_rng(0).normal(size=(_STANDARD_ROWS, federation.n_features))
        bound = update_bound(federation, plan, self.clip, BodyUpdate(state, 0, executor), "answer norm")
        event = plan.event("rounds", clip=bound)
        for number in range(self.rounds):
            query = BodyUpdate(state, number, executor, normalised=self.clip is None)
            moved = federation.release(query, event, f"step {number + 1}")
            reaction = update.output_change(*(torch.as_tensor(part) for part in (state, moved, standard)))
            length = self.step * (1.0 - number / self.rounds) * share_of_signal(moved, federation.sum_sigma(event))
            agreed = np.linalg.norm(moved) / (bound * self.sampling_rate * federation.n_users)
            state = state + moved * (length * agreed / max(float(reaction), _TINY))
        return state

    def _own_parts(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        """Fit all personal parts, one row per user."""
        network = self._network()
        update, shared = self._update(network), torch.as_tensor(self.shared_)
        out = np.zeros((len(offsets) - 1, self._packed_size(network)))
        nothing = self._packed(update.start(shared)[None]).numpy()
        compiled = isinstance(update, SparseUpdate) and update.compiles
        fitted = self._compiled if compiled else self._padded
        for mine, parts in fitted(update, shared, X, y, offsets):
            own = self._packed(parts).numpy()
            out[mine] = np.where(np.isfinite(own).all(axis=1, keepdims=True), own, nothing)
        return out

    def _compiled(
        self, update: Any, shared: Tensor, X: Rows, y: Rows, offsets: Offsets
    ) -> Iterator[tuple[Positions, Tensor]]:
        """Yield some users and their personal parts, each computed alone."""
        users, most = np.arange(len(offsets) - 1), _together(update.size)
        for first in range(0, len(users), most):
            mine = users[first : first + most]
            bounds = offsets[first : first + most + 1]
            yield mine, update.early_stopped_parts(shared, X, y, bounds, steps=self.final_steps)

    def _padded(
        self, update: Any, shared: Tensor, X: Rows, y: Rows, offsets: Offsets
    ) -> Iterator[tuple[Positions, Tensor]]:
        """Yield some users and their personal parts, computed together with others of about as many rows.

        To the last bit, no part depends on how many rows other users have. Rows are padded to a power of two, and users
        have public positions in a batch of public size; positions of users of another size are filled with zeros.
        """
        sizes = np.exp2(np.ceil(np.log2(np.maximum(np.diff(offsets), 2)))).astype(np.int64)
        together = torch.vmap(lambda *part: update.early_stopped(shared, *part, steps=self.final_steps))
        for size in np.unique(sizes).tolist():
            most = max(1, min(_together(update.size), _ROWS // size, len(sizes)))
            for first in range(0, len(sizes), most):
                mine = first + np.flatnonzero(sizes[first : first + most] == size)
                if len(mine):
                    yield mine, together(*_padded(X, y, offsets, mine, mine - first, (most, size)))[mine - first]

    def _network_of(self, row: Array) -> OwnNetwork:
        network = self._network()
        whole = self._update(network).parameters(torch.as_tensor(self.shared_), self._unpacked(row))
        return OwnNetwork(network, np.asarray(whole.numpy()), row)

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_engine(self.engine)
        for name in ("rounds", "head_steps", "final_steps", "rows_per_user"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1. Found {getattr(self, name)!r}.")
        if not (math.isfinite(self.step) and self.step > 0):
            raise ValueError(f"step must be positive. Found {self.step!r}.")
        if not (math.isfinite(self.penalty) and self.penalty >= 0):
            raise ValueError(f"penalty must not be negative. Found {self.penalty!r}.")
        if not 0 < self.sampling_rate <= 1:
            raise ValueError(f"sampling_rate must lie in (0, 1]. Found {self.sampling_rate!r}.")
        number = isinstance(self.clip, int | float) and math.isfinite(self.clip) and self.clip > 0
        if not (self.clip is None or self.clip == "auto" or number):
            raise ValueError(f"clip must be None, a positive number or 'auto'. Found {self.clip!r}.")

    def _check_population(self, population: Population) -> None:
        self._network(population.n_features)

    def _public_config(self, sizes: Mapping[str, Any]) -> dict[str, Any]:
        config = super()._public_config(sizes)
        for name in ("device", "chunk"):
            config.pop(name)
        return config


def share_of_signal(released: Array, sigma: float) -> float:
    """Return the share of a released sum's square that is not noise: between 0 (all noise) and 1.

    >>> share_of_signal(np.array([3.0, 4.0]), 0.0), share_of_signal(np.array([3.0, 4.0]), 5.0)
    (1.0, 0.0)
    """
    square = float(np.sum(released**2))
    return max(0.0, 1.0 - sigma**2 * released.size / square) if square > 0.0 else 0.0


def _together(size: int) -> int:
    """Return the number of users with this many parameters that are computed at a time: a power of two."""
    return min(256, 1 << max(0, (_CELLS // size).bit_length() - 1))


def _padded(
    X: Rows, y: Rows, offsets: Offsets, users: Positions, places: Positions, shape: tuple[int, int]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return rows, targets and weights of users at these positions of a batch of this shape; padding has weight 0.

    They are in memory allocated by PyTorch, because the last bits of products depend on the alignment of their
    operands.
    """
    rows = torch.zeros((*shape, X.shape[1]), dtype=torch.float64)
    targets, weights = (torch.zeros(shape, dtype=torch.float64) for _ in range(2))
    for user, place in zip(users.tolist(), places.tolist(), strict=True):
        first, last = int(offsets[user]), int(offsets[user + 1])
        rows.numpy()[place, : last - first], targets.numpy()[place, : last - first] = X[first:last], y[first:last]
        weights[place, : last - first] = 1.0
    return rows, targets, weights
