"""Estimators with a shared vector and an own part a user: rounds, own parts, prediction, saving.

Release: :class:`~tacitly.neural.engine.query.BodyUpdate`, the sum of everybody's answers
(:mod:`tacitly.neural.low_rank_sparse.personal_part`), each brought to norm one, or clipped, as the last thing done to
it. Unit: the user. An answer is a function of one user's rows and public numbers, so zero-out moves the sum by at most
the clip, replace-one by at most two: one Gaussian event a round. The public vector moves by the released sum over a
public number of users.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tacitly.arrays import Array, Offsets, Rows
from tacitly.data.cohort import Cohort
from tacitly.data.user_ids import Directory
from tacitly.data.validation import DataError
from tacitly.federation.base import Federation
from tacitly.federation.local import LocalFederation
from tacitly.methods.base import PrivateModel, abandoned_on_failure
from tacitly.methods.shared.norm_histogram import private_clip
from tacitly.neural.engine.executor import Executor
from tacitly.neural.engine.neural_cohort import cohort_of
from tacitly.neural.engine.query import BodyUpdate
from tacitly.neural.engine.rehearsal import rehearse
from tacitly.neural.engine.update import LocalTraining
from tacitly.neural.low_rank_sparse.personal_part import PersonalPartUpdate
from tacitly.neural.low_rank_sparse.tanh_network import TanhNetwork
from tacitly.privacy.calibration import Phase, Plan
from tacitly.privacy.guarantee import Budget, GaussianEvent
from tacitly.privacy.ledger import Ledger

TRUST = (
    "central: whoever runs this process holds the rows, adds the noise and keeps the users' own parts; everybody else "
    "sees what is shared only, and a user their own part (joint differential privacy)."
)
FREE_OWN_PARTS = (
    "own parts and personalize() cost nothing: an own part is computed from what is public and its own user's rows, so "
    "for everybody else it is post-processing, and it is not released"
)
PUBLIC_SCALES = "how features and targets were scaled before fit is taken for public"

_CELLS = 1 << 16  # parameters of users computed together on a CPU: what a core's own memory holds
_ROWS = 1 << 12  # rows, padding counted in, of users whose own parts are fitted together at the end
_STANDARD_ROWS = 256  # made-up rows of independent standard normals, that say how far a step moves outputs
_TINY = float(np.finfo(np.float64).tiny)


@dataclass(frozen=True)
class OwnNetwork:
    """One user's network. Private to that user."""

    network: TanhNetwork
    parameters: Array
    own: Array

    def predict(self, X: npt.ArrayLike) -> Array:
        """Return predictions for this user's rows."""
        rows = torch.as_tensor(np.asarray(X, dtype=np.float64))
        return np.asarray(self.network(torch.as_tensor(self.parameters), rows).numpy())


class OwnPartModel(PrivateModel):
    """What :class:`~tacitly.neural.LowRankSparse` and its baselines have in common."""

    shared_: Array
    own_: Array

    def __init__(
        self,
        epsilon: float,
        delta: float,
        adjacency: str,
        mode: str,
        random_state: int | None,
        *,
        hidden: tuple[int, ...],
        rounds: int,
        step: float,
        clip: float | str | None,
        clip_share: float,
        sampling_rate: float,
        head_steps: int,
        final_steps: int,
        penalty: float,
        cross_fit: bool,
        rows_per_user: int,
        device: str,
        chunk: int | None,
        noise: str,
        noise_seed: int | None,
        ledger: Ledger | None,
        run: str,
        threads: int | None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.adjacency = adjacency
        self.mode = mode
        self.random_state = random_state
        self.hidden = hidden
        self.rounds = rounds
        self.step = step
        self.clip = clip
        self.clip_share = clip_share
        self.sampling_rate = sampling_rate
        self.head_steps = head_steps
        self.final_steps = final_steps
        self.penalty = penalty
        self.cross_fit = cross_fit
        self.rows_per_user = rows_per_user
        self.device = device
        self.chunk = chunk
        self.noise = noise
        self.noise_seed = noise_seed
        self.ledger = ledger
        self.run = run
        self.threads = threads

    def fit(self, X: Any, y: Any = None, users: Any = None, *, on_release: Callable[[str], None] | None = None) -> Any:
        """Learn what is shared privately, then everybody's own part at home.

        Parameters
        ----------
        X
            Rows (n_rows × n_features), in any order; or a :class:`~tacitly.data.cohort.Cohort`, alone. Features of size
            about one, by public scales: tanh units know nothing beyond a few.
        y
            Numbers to predict, likewise.
        users
            The id of the user each row belongs to.
        on_release
            Called with the name of each release when it is out (for progress bars).
        """
        cohort = cohort_of(X, y, users)
        self._check_parameters(cohort)
        budget, plan = self._budget(), self._plan(self._budget())
        run = self._open(budget, self._events(plan), {"n_users": cohort.n_users, "n_features": cohort.n_features})
        self.n_features_in_ = cohort.n_features
        with abandoned_on_failure(run):
            federation = LocalFederation(
                cohort, run, noise=self.noise, noise_seed=self.noise_seed, on_release=on_release, threads=1
            )
            self.shared_ = self._learn(federation, plan)
            self.own_ = federation.users_map(self._own_parts)
        self.users_ = cohort.users
        self.feature_names_in_ = np.array(cohort.feature_names, dtype=str)
        self.target_name_ = cohort.target_name
        self._certify(run, budget, units=cohort.n_users, trust=TRUST, notes=(FREE_OWN_PARTS, PUBLIC_SCALES))
        return self

    def predict(self, X: npt.ArrayLike, users: npt.ArrayLike) -> Array:
        """Predict each row with the network of its user."""
        rows, ids = self._rows(X), np.asarray(users)
        if ids.shape != (len(rows),):
            raise DataError(f"users must have one id a row of X ({len(rows)}). Found shape {ids.shape}.")
        places = Directory(self.users_).find(ids)
        if unknown := int(np.count_nonzero(places < 0)):
            raise DataError(
                f"{unknown} of {len(rows)} rows belong to users who have no network. "
                "Give a new user one with personalize(X, y), from that user's own rows."
            )
        out, order = np.zeros(len(rows)), np.argsort(places, kind="stable")
        for mine in np.split(order, np.flatnonzero(np.diff(places[order])) + 1):
            if len(mine):
                out[mine] = self._network_of(self.own_[places[mine[0]]]).predict(rows[mine])
        return out

    def personalize(self, X: npt.ArrayLike, y: npt.ArrayLike) -> OwnNetwork:
        """Fit a network for a user who was not there at training. Costs nobody any privacy: nothing is released."""
        rows, targets = self._rows(X), np.asarray(y, dtype=np.float64)
        if targets.shape != (len(rows),):
            raise DataError(f"y must have one value a row of X ({len(rows)}). Found shape {targets.shape}.")
        return self._network_of(self._own_parts(rows, targets, np.array([0, len(rows)]))[0])

    @abstractmethod
    def n_parameters(self) -> int:
        """Count the numbers that the model holds, as the paper's Table 2 does."""

    def public_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return what is shared."""
        return {"shared": self.shared_}

    def take_public_arrays(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Set what is shared; nobody has an own part yet."""
        expected = (self._update().size,)
        if arrays["shared"].shape != expected:
            raise ValueError(f"this model shares {expected[0]} numbers. Found shape {arrays['shared'].shape}.")
        self.shared_ = arrays["shared"]
        self.own_, self.users_ = np.zeros((0, self._packed_size())), np.zeros(0, dtype=np.int64)

    def private_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the own parts."""
        return {"own": self.own_}

    def take_private_arrays(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Set the own parts."""
        expected = (len(self.users_), self._packed_size())
        if arrays["own"].shape != expected:
            raise ValueError(f"there must be an own part a user, {expected}. Found shape {arrays['own'].shape}.")
        self.own_ = arrays["own"]

    @property
    def folder_class(self) -> str:
        """What a model folder calls this kind of model."""
        return f"neural.{type(self).__name__}"

    @abstractmethod
    def _update(self) -> PersonalPartUpdate:
        """Return the user's half; the number of features is known."""

    @abstractmethod
    def _start(self, rng: np.random.Generator) -> Array:
        """Return the public vector that rounds begin from."""

    @abstractmethod
    def _packed_size(self) -> int:
        """Length of an own part as it is kept."""

    def _packed(self, own: Tensor) -> Tensor:
        """Return own parts, a row a user, as they are kept."""
        return own

    def _unpacked(self, row: Array) -> Tensor:
        """Return one user's own part from what was kept."""
        return torch.as_tensor(row)

    def _network(self) -> TanhNetwork:
        return TanhNetwork(self.n_features_in_, tuple(self.hidden))

    def _training(self) -> LocalTraining:
        return LocalTraining(
            head_steps=self.head_steps,
            cross_fit=self.cross_fit,
            rows=self.rows_per_user,
            loss="squares",
        )

    def _plan(self, budget: Budget) -> Plan:
        bought = [Phase(name="clip", share=self.clip_share)] if self.clip == "auto" else []
        rest = 1.0 - math.fsum(phase.share for phase in bought)
        return Plan(
            budget,
            [*bought, Phase(name="rounds", share=rest, releases=self.rounds)],
            sampling_rate=self.sampling_rate,
        )

    def _events(self, plan: Plan) -> list[GaussianEvent]:
        return [
            plan.event(phase.name, clip=1.0, acute=phase.name == "clip")
            for phase in plan.phases
            for _ in range(phase.releases)
        ]

    def _learn(self, federation: Federation, plan: Plan) -> Array:
        """Move the public vector by noisy sums; steps shrink to nothing over the rounds, and where a sum is noise."""
        update = self._update()
        executor = Executor(update, device=self.device, chunk=self.chunk, workers=1)
        if not executor.batched:  # small networks are three times as quick together as one by one, on a CPU too
            executor.batched, executor.chunk = True, self.chunk or _together(update.size)
        state = self._start(np.random.default_rng(0 if self.random_state is None else self.random_state))
        rehearse(executor, state, federation.n_features, federation.n_users)
        standard, bound = np.random.default_rng(0).normal(size=(_STANDARD_ROWS, federation.n_features)), 1.0
        if self.clip == "auto":
            event = plan.event("clip", clip=1.0, acute=True)
            bound = private_clip(federation, BodyUpdate(state, 0, executor), event, "answer norms")
        elif self.clip is not None:
            bound = float(self.clip)
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
        """Everybody's own part, a row a user; users with about as many rows together, so that little is padded."""
        update, counts = self._update(), np.diff(offsets)
        shared = torch.as_tensor(self.shared_)
        together = torch.vmap(lambda *part: update.early_stopped(shared, *part, steps=self.final_steps))
        out = np.zeros((len(counts), self._packed_size()))
        nothing = self._packed(update.start(shared)[None]).numpy()
        order, start, most = np.argsort(counts, kind="stable"), 0, _together(update.size)
        while start < len(order):
            rows_each = counts[order[start : start + most]]
            taken = max(1, int(np.count_nonzero(rows_each * np.arange(1, len(rows_each) + 1) <= _ROWS)))
            mine = order[start : start + taken]
            rows, targets, weights = _padded(X, y, offsets, mine, int(rows_each[taken - 1]))
            own = self._packed(together(rows, targets, weights)).numpy()
            out[mine] = np.where(np.isfinite(own).all(axis=1, keepdims=True), own, nothing)
            start += taken
        return out

    def _network_of(self, row: Array) -> OwnNetwork:
        whole = self._update().parameters(torch.as_tensor(self.shared_), self._unpacked(row))
        return OwnNetwork(self._network(), np.asarray(whole.numpy()), row)

    def _rows(self, X: npt.ArrayLike) -> Array:
        rows = np.asarray(X, dtype=np.float64)
        if rows.ndim != 2 or rows.shape[1] != self.n_features_in_:
            raise DataError(f"X must have {self.n_features_in_} columns. Found shape {rows.shape}.")
        return rows

    def _check_parameters(self, cohort: Cohort) -> None:
        self.n_features_in_ = cohort.n_features
        if self.mode != "auto":
            raise ValueError(f"mode must be 'auto'. Found {self.mode!r}.")
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
        self._network()

    def _public_config(self, sizes: Mapping[str, Any]) -> dict[str, Any]:
        config = super()._public_config(sizes)
        for name in ("device", "chunk"):
            config.pop(name)
        return config


def share_of_signal(released: Array, sigma: float) -> float:
    """Return the share of a released sum's square that noise does not explain: between 0 (all noise) and 1.

    >>> share_of_signal(np.array([3.0, 4.0]), 0.0), share_of_signal(np.array([3.0, 4.0]), 5.0)
    (1.0, 0.0)
    """
    square = float(np.sum(released**2))
    return max(0.0, 1.0 - sigma**2 * released.size / square) if square > 0.0 else 0.0


def _together(size: int) -> int:
    """How many users of so many parameters are computed at a time: a power of two."""
    return min(256, 1 << max(0, (_CELLS // size).bit_length() - 1))


def _padded(
    X: Rows, y: Rows, offsets: Offsets, users: npt.NDArray[np.int64], size: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Rows, targets and weights of some users, a slice a user; weight 0 where there is no row."""
    rows, targets = np.zeros((len(users), size, X.shape[1])), np.zeros((len(users), size))
    weights = np.zeros((len(users), size))
    for place, user in enumerate(users):
        first, last = int(offsets[user]), int(offsets[user + 1])
        rows[place, : last - first], targets[place, : last - first] = X[first:last], y[first:last]
        weights[place, : last - first] = 1.0
    return torch.as_tensor(rows), torch.as_tensor(targets), torch.as_tensor(weights)
