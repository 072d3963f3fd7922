"""What is sent to the users of a named network in other processes: the query of a round, and the fitting of heads.

Release :class:`NetworkUpdate`. Unit: the user. It is :class:`~tacitly.neural.engine.query.BodyUpdate` on a network that
is built where the rows are: a contribution is a function of one user's rows and public numbers, and scaling it to norm
one, in float64, is the last operation. Zero-out changes the sum by at most 1 and replace-one by at most 2 (an update
and its opposite are both possible): one Gaussian event. No state is kept between rounds.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import torch
from torch import nn

from tacitly.arrays import Array, Offsets, Rows
from tacitly.federation.base import Query
from tacitly.heads.base import HeadWork
from tacitly.neural.centaur.heads import HeadMaker
from tacitly.neural.engine.executor import Executor
from tacitly.neural.engine.flat import Flat
from tacitly.neural.engine.module_properties import output_width
from tacitly.neural.engine.query import BodyUpdate
from tacitly.neural.engine.update import UserUpdate
from tacitly.neural.engine.windows import ForwardPass
from tacitly.neural.table_network.named_network import NamedNetwork, with_numbers

_ONE_AT_A_TIME = threading.Lock()  # on a GPU, because the choice of kernels is a setting of the process
_ROUNDS = 1 << 20
Chosen = Callable[[Rows, Rows], tuple[Rows, Rows]]
"""A function that selects some of one user's rows and targets."""


@dataclass(frozen=True, eq=False)
class NetworkUpdate(Query):
    """One user's proposed change of the learned parameters, scaled to norm one."""

    public: Array
    round_number: int
    network: NamedNetwork

    def __post_init__(self) -> None:
        _check_learned(self.public, self.network)
        if not 0 <= self.round_number < _ROUNDS:
            raise ValueError(f"a round's number is from 0 to {_ROUNDS - 1}.")

    @property
    def coordinates(self) -> int:
        """Number of learned parameters."""
        return int(self.public.size)

    def contribution(self, X: Rows, y: Rows) -> Array:
        """Return one user's update, of norm one; zeros if no row is usable."""
        _check_columns(X, self.network)
        with self._alone():
            rows, targets = self._seen(X, y)
            return self._asked.contribution(rows, targets) if len(rows) else np.zeros(self.coordinates)

    def block_sum(self, X: Rows, y: Rows, offsets: Offsets, bound: float) -> Array:
        """Clip and sum a block of users."""
        with self._alone():
            each = [self._seen(X[a:b], y[a:b]) for a, b in itertools.pairwise(offsets.tolist())]
            rows, targets = (np.concatenate(part) for part in zip(*each, strict=True))
            bounds = np.append(0, np.cumsum([len(mine) for _, mine in each])).astype(np.int64)
            return self._asked.block_sum(rows, targets, bounds, bound)

    @cached_property
    def _asked(self) -> BodyUpdate:
        _, rest, head = self._modules
        update = UserUpdate(
            body=Flat(rest), head=Flat(head), training=self.network.training(), classes=self.network.outputs
        )
        executor = Executor(update, workers=1)  # the caller has its own threads
        return BodyUpdate(self.public, self.round_number, executor, normalised=True)

    @cached_property
    def _modules(self) -> tuple[nn.Module, nn.Module, nn.Linear]:
        return self.network.modules()

    @cached_property
    def _seen(self) -> SeenRows:
        # Only the rows of the round pass the public part: the caller chooses it, and a user may have many rows.
        of_round = partial(self._asked.executor.packing.rows_of_round, round_number=self.round_number)
        return SeenRows(self.network, self._modules[0], self._asked.executor.device, of_round)

    def _alone(self) -> AbstractContextManager[object]:
        return nullcontext() if self._asked.executor.device.type == "cpu" else _ONE_AT_A_TIME


@dataclass(frozen=True, eq=False)
class NetworkHeads(HeadWork):
    """Fit heads on the learned body: the parameters of each, then a 1 for every class in its user's rows."""

    learned: Array
    network: NamedNetwork

    def __post_init__(self) -> None:
        _check_learned(self.learned, self.network)

    def __call__(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        """Return the heads of several users, one row per user, each from that user's rows only."""
        return np.array([self.own(X[a:b], y[a:b]) for a, b in itertools.pairwise(offsets.tolist())])

    def own(self, X: Rows, y: Rows) -> Array:
        """Return one user's head, or the public one if fitting fails."""
        _check_columns(X, self.network)

        def seen() -> tuple[Array, Rows, int]:
            rows, targets = self._seen(X, y)
            return np.asarray(self._rest(rows), dtype=np.float64), targets, 1

        return np.concatenate(self._maker.safely(seen))

    @property
    def shape(self) -> tuple[int, ...]:
        """Parameters of a head, and classes."""
        return (self.network.head_size + self.network.outputs,)

    @cached_property
    def _parts(self) -> tuple[nn.Module, nn.Module, nn.Linear]:
        prefix, rest, head = self.network.modules()
        return prefix, with_numbers(rest, self.learned), head

    @cached_property
    def _maker(self) -> HeadMaker:
        return HeadMaker(self._parts[2], self.network.training())

    @cached_property
    def _seen(self) -> SeenRows:
        return SeenRows(self.network, self._parts[0], torch.device("cpu"))

    @cached_property
    def _rest(self) -> ForwardPass:
        return ForwardPass(self._parts[1], torch.device("cpu"))


class SeenRows:
    """One user's usable rows after the public part of a body, and targets as the network sees them.

    Rows with a value that is not finite are left out, and all rows if the public part fails. Both depend only on the
    rows of this user. ``chosen`` selects some of the usable rows (None: all).
    """

    def __init__(
        self, network: NamedNetwork, prefix: nn.Module, device: torch.device, chosen: Chosen | None = None
    ) -> None:
        self._network, self._chosen = network, chosen
        self._forward = ForwardPass(prefix, device, network.window)
        self._width = output_width(prefix, network.columns)

    def __call__(self, X: Rows, y: Rows) -> tuple[Rows, Rows]:
        """Return rows and targets."""
        with np.errstate(all="ignore"):
            rows = np.asarray(X, dtype=np.float32)
            targets = self._network.targets(np.asarray(y, dtype=np.float64)).astype(np.float32)
            usable = np.isfinite(rows).all(axis=1) & np.isfinite(targets)
            rows, targets = rows[usable], targets[usable]
            if self._chosen is not None:
                rows, targets = self._chosen(rows, targets)
            found = self._forward.or_none(rows)
        if found is None:
            return np.zeros((0, self._width), dtype=np.float32), targets[:0]
        return np.asarray(found, dtype=np.float32), targets


def _check_learned(learned: Array, network: NamedNetwork) -> None:
    if learned.shape != (network.learned_size,):
        raise ValueError(f"expected {network.learned_size} learned numbers. Found shape {learned.shape}.")


def _check_columns(X: Rows, network: NamedNetwork) -> None:
    """Raise for rows of another width before anything is built, because memory grows with the width."""
    if X.shape[1] != network.columns:
        raise ValueError(f"the network is for rows of {network.columns} columns. Found {X.shape[1]}.")
