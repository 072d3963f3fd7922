"""Compute users' updates: many at once on a GPU, one after another on a few single-threaded workers on a CPU.

Both run the same :class:`~tacitly.neural.engine.update.UserUpdate`. The device decides, according to measurements
(docs/centaur.md): on a GPU a loop over users leaves the device idle; on a CPU batching is slower than the loop. With
one local step on linear layers neither is needed: :mod:`tacitly.neural.engine.one_step` runs chunks of users through
the public body on both devices.

No update may depend on another user's rows, to the last bit (:mod:`tacitly.federation.base`), because local training
can amplify a difference in the last bit. In the loop every user is computed alone. In a batch, positions are public:
chunks have a fixed number of users in the order of the roster (or of the sampled users), and every user is padded to
the same public number of rows. So shapes, and with them the choice of kernels, never depend on private counts; kernels
are deterministic, and no operation mixes positions. If a user's values make a chunk fail, every user in it is computed
again in the same position, alone. Clipping and summing follow in float64; memory is that of one chunk. Users' local
state between rounds, if any, is in :mod:`tacitly.neural.engine.home`.

Device failures (out of memory, a device that stopped) are raised; they are never counted as a contribution of zero.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from tacitly.arrays import Array, Offsets, Rows
from tacitly.neural.engine.chunk_size import chunk_for_rows, chunk_for_updates
from tacitly.neural.engine.device import deterministic, device_failures, one_thread
from tacitly.neural.engine.ghost_clipping import add_clipped, norms, scaled
from tacitly.neural.engine.home import Home, Key, key_of
from tacitly.neural.engine.layers import custom_layers
from tacitly.neural.engine.one_step import Chunk, OneStep, supports_one_step
from tacitly.neural.engine.packing import Packing, to_tensors
from tacitly.neural.engine.update import UserUpdate
from tacitly.portable import cpu_count
from tacitly.privacy.clipping import GUARD

Item = TypeVar("Item")


class Block(NamedTuple):
    """A block of users in one round: the public vector, the users' rows and targets, and the number of the round."""

    public: Array
    X: Rows
    y: Rows
    offsets: Offsets
    round_number: int


class Executor:
    """Compute an update for many users and sum the clipped results.

    ``device`` is ``"cpu"``, ``"cuda"`` or ``"auto"``; ``chunk`` is the number of users at a time on a GPU (None: as
    many as fit); ``workers`` is the number of threads on a CPU. ``groups`` are the sizes of parts of the update that
    are clipped separately. ``tf32`` trades precision for speed on a GPU: users' updates are rounded more, but privacy
    does not change. If the modules contain custom layers, every user gets a copy of them, one user after another,
    unless :meth:`batch_custom_layers` was called.
    """

    def __init__(
        self,
        update: UserUpdate,
        *,
        device: str = "auto",
        chunk: int | None = None,
        workers: int | None = None,
        groups: tuple[int, ...] = (),
        tf32: bool = False,
    ) -> None:
        name = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
        self.device = torch.device(name)
        self.custom_layers = bool(custom_layers(update.body.module, update.head.module))
        self.batched = self.device.type != "cpu" and not self.custom_layers
        self.workers = (workers or cpu_count()) if self.device.type == "cpu" else 1
        self.groups = groups
        self.tf32 = tf32
        update.body.to(self.device)
        update.head.to(self.device)
        self._update = update
        self.dtype = update.body.start.dtype
        sizes = tuple(part.numel() for part in (*update.body.parts(update.body.start), *_shared_head(update)))
        self.one_step = not self.custom_layers and supports_one_step(update) and groups in ((), sizes)
        fitting = chunk_for_rows(update, self.device) if self.one_step else chunk_for_updates(update.size, self.device)
        self.chunk = chunk or fitting
        self.packing = Packing(update.training.rows, self.dtype, self.device)
        self.home = Home(update.own_start)

    def batch_custom_layers(self, batched: bool = True) -> None:
        """Batch users although modules contain custom layers; allowed only after a trial that they do not mix users."""
        self.batched = batched and self.device.type != "cpu"

    @property
    def size(self) -> int:
        """Length of an update."""
        return self._update.size

    @property
    def update(self) -> UserUpdate:
        """The update computed for every user."""
        return self._update

    def one_update(self, public: Array, X: Rows, y: Rows, round_number: int) -> Array:
        """Return one user's update before clipping, computed alone."""
        return self.updates_alone(public, [(X, y)], round_number)[0]

    def updates_alone(
        self, public: Array, users: Sequence[tuple[Rows, Rows]], round_number: int, *, guarded: bool = False
    ) -> list[Array]:
        """Return several users' updates before clipping, each computed alone, by one worker.

        Failures are raised, so that a network that cannot run at all is reported; with ``guarded``, as in a round, they
        give NaN.
        """
        update, vector = self._update.alone_in_place(), self._public(public)
        tasks = [partial(self._update_alone, update, vector, X, y, round_number) for X, y in users]
        with deterministic(self.tf32), device_failures():
            results = [self._guarded(task) if guarded else task() for task in tasks]
        return [np.asarray(result.cpu().numpy(), dtype=np.float64) for result in results]

    def updates_in_chunk(
        self, public: Array, users: Sequence[tuple[Rows, Rows]], chunk: int, round_number: int, *, guarded: bool = False
    ) -> Array:
        """Return several users' updates (one row per user), computed together in a chunk of ``chunk`` positions."""
        X, y, offsets = _joined(users)
        compute = self._chunk_updates if guarded else self._chunk_or_raise
        with deterministic(self.tf32), device_failures():
            updates = compute(self._public(public), X, y, offsets, chunk, round_number)[: len(users)]
        return np.asarray(updates.cpu().numpy(), dtype=np.float64)

    def first_update_in_chunk(
        self, public: Array, users: Sequence[tuple[Rows, Rows]], chunk: int, round_number: int, *, guarded: bool = False
    ) -> Array:
        """Return the first user's update, computed among others in a chunk and materialised if it is a product."""
        if not self.one_step:
            return np.asarray(self.updates_in_chunk(public, users, chunk, round_number, guarded=guarded)[0])
        rows = self.packing(*_joined(users), chunk, round_number)
        given = self._public(public), *rows, self.home.start([None] * chunk, round_number)
        step = OneStep(self._update)
        with one_thread(), deterministic(self.tf32), device_failures():
            pieces = next(step.guarded(*given, len(users))).pieces if guarded else step(*given)[0]
        moved = torch.cat([piece.materialise(0) for piece in pieces or ()]) * -self._update.training.local_rate
        return np.asarray(moved.cpu().numpy())

    def _public(self, public: Array) -> Tensor:
        # A copy, so that writes of a layer into its parameters do not change the vector that rounds start from.
        return torch.tensor(public, dtype=self.dtype, device=self.device)

    def _update_alone(self, update: UserUpdate, public: Tensor, X: Rows, y: Rows, round_number: int) -> Tensor:
        given = to_tensors(*self.packing.rows_of_round(X, y, round_number), self.dtype)
        rows, targets = (part.to(self.device) for part in given)
        weights = torch.ones_like(targets)
        if len(rows) == 1:  # padded as in a batch, so that neither half of the rows is empty
            rows, targets, weights = (torch.cat([part, torch.zeros_like(part)]) for part in (rows, targets, weights))
        mine = update.alone() if self.custom_layers else update
        who = [key_of(X, y)] if self.home.keeps else []
        own = self.home.start(who or [None], round_number)[0]
        # A clone, so that no layer writes into the next user's initial values.
        moved, ended = mine.with_state(public.clone(), rows, targets, weights, own)
        self.home.keep(who, round_number, ended.detach()[None], [(X, y)])
        return moved.detach()

    def norms(self, public: Array, X: Rows, y: Rows, offsets: Offsets, round_number: int) -> Array:
        """Return the norm of every user's update before clipping; not finite if the update is not."""
        block, results = Block(public, X, y, offsets, round_number), []
        if self.one_step:
            results = self._for_each_chunk(block, lambda part, mine: mine.append(self._chunk_norms(part)))
        elif self.batched:
            results = [_norms(part[:users]) for part, users in self.chunks(block)]
        else:
            results = self._for_each_user(block, lambda vector, mine: mine.append(_norms(vector[None])))
        return np.asarray(torch.cat(results).cpu().numpy())

    def clipped_sum(
        self, public: Array, X: Rows, y: Rows, offsets: Offsets, bound: float, round_number: int, *, normalised: bool
    ) -> Array:
        """Return the sum of the users' updates, each clipped (or scaled, if ``normalised``) to norm ``bound``."""
        block = Block(public, X, y, offsets, round_number)
        total = self._zeros()
        if self.one_step:
            for part in self._for_each_chunk(block, partial(self._add_chunk, bound, normalised)):
                total += part
        elif self.batched:
            for part, users in self.chunks(block):
                total += self.bounded_sum(part[:users], bound, normalised=normalised)
        else:

            def add(vector: Tensor, mine: list[Tensor]) -> None:
                if not mine:
                    mine.append(self._zeros())
                self._add_bounded(vector, bound, mine[0], normalised=normalised)

            for part in self._for_each_user(block, add):
                total += part
        return np.asarray(total.cpu().numpy())

    def bounded_sum(self, updates: Tensor, bound: float, *, normalised: bool) -> Tensor:
        """Return the sum of updates (one row each) after clipping, in float64: the last operation on an update.

        An update that is not finite is counted as zero.
        """
        groups = [scaled(group) for group in torch.split(updates, self._group_sizes, 1)]
        finite = torch.stack([torch.isfinite(norm) & torch.isfinite(scale) for _, norm, scale in groups]).all(0)
        sums, group_bound = [], self._group_bound(bound)
        for group, norm, scale in groups:
            factor = group_bound / torch.where(norm > 0, norm, torch.ones_like(norm))
            if not normalised:
                factor = torch.where(norm * scale <= group_bound, scale, factor)
            factor = torch.where(finite, factor, torch.zeros_like(factor))
            if not bool(finite.all()):  # saves a pass over the chunk if every update is finite
                group = torch.where(finite[:, None], group, torch.zeros_like(group))
            sums.append(factor @ group)
        return torch.cat(sums)

    def _add_bounded(self, update: Tensor, bound: float, total: Tensor, *, normalised: bool) -> None:
        """Add one clipped update to ``total``, in place."""
        if update.dtype == torch.float64:
            total += self.bounded_sum(update[None], bound, normalised=normalised)
            return
        groups = torch.split(update.double(), self._group_sizes)
        norms = [float(torch.linalg.vector_norm(group)) for group in groups]
        if not all(math.isfinite(norm) for norm in norms):
            return
        for group, norm, target in zip(groups, norms, torch.split(total, self._group_sizes), strict=True):
            factor = self._group_bound(bound) / norm if norm > 0 else 0.0
            target.add_(group, alpha=factor if normalised else min(1.0, factor))

    def _add_chunk(self, bound: float, normalised: bool, chunk: Chunk, mine: list[Tensor]) -> None:
        """Add the clipped updates of a chunk whose updates are not materialised."""
        if not mine:
            mine.append(self._zeros())
        if chunk.pieces:
            rate, per_piece = self._update.training.local_rate, bool(self.groups)
            add_clipped(mine[0], chunk.pieces, bound, rate, normalised=normalised, per_piece=per_piece)

    def _chunk_norms(self, chunk: Chunk) -> Tensor:
        if not chunk.pieces:
            users = len(chunk.weights[chunk.positions])
            return torch.full((users,), torch.nan, dtype=torch.float64, device=self.device)
        return norms(chunk.pieces, self._update.training.local_rate)[chunk.positions]

    def _zeros(self) -> Tensor:
        return torch.zeros(self.size, dtype=torch.float64, device=self.device)

    @property
    def _group_sizes(self) -> list[int]:
        return list(self.groups) or [self.size]

    def _group_bound(self, bound: float) -> float:
        return bound * (1.0 - GUARD) / math.sqrt(len(self._group_sizes))

    def _for_each_user(self, block: Block, take: Callable[[Tensor, list[Tensor]], None]) -> list[Tensor]:
        """Pass every user's update, computed alone, to ``take``, in order; workers have one thread each."""
        _, X, y, offsets, round_number = block
        pairs = list(itertools.pairwise(offsets.tolist()))
        vector = self._public(block.public)

        def work(mine: list[tuple[int, int]]) -> list[Tensor]:
            out: list[Tensor] = []
            update = self._update.alone_in_place()  # one per worker: it holds the current call's parameters
            for first, last in mine:
                task = partial(self._update_alone, update, vector, X[first:last], y[first:last], round_number)
                take(self._guarded(task), out)
            return out

        return self._map_workers(pairs, work)

    def _for_each_chunk(self, block: Block, take: Callable[[Chunk, list[Tensor]], None]) -> list[Tensor]:
        """Pass the factors of consecutive chunks' gradients to ``take``, on workers with one thread each."""
        _, X, y, offsets, round_number = block
        vector, users = self._public(block.public), len(offsets) - 1
        chunk = self.chunk_of(users)

        def work(mine: list[int]) -> list[Tensor]:
            out: list[Tensor] = []
            step = OneStep(self._update)
            for start in mine:
                taken = min(chunk, users - start)
                bounds = offsets[start : start + taken + 1]
                packed, who = self.packing(X, y, bounds, chunk, round_number), self._who(X, y, bounds)
                own = self._states(who, chunk, round_number)
                for part in step.guarded(vector, *packed, own, taken):
                    take(part, out)
                    self.home.keep(who[part.positions], round_number, part.own.detach(), [(X, y)])
            return out

        with device_failures():
            return self._map_workers(list(range(0, users, chunk)), work)

    def _map_workers(self, items: list[Item], work: Callable[[list[Item]], list[Tensor]]) -> list[Tensor]:
        """Return the results of ``work`` on consecutive shares of the items, one per worker, in order."""
        cuts = np.linspace(0, len(items), min(self.workers, len(items) or 1) + 1).astype(int).tolist()
        shares = [items[first:last] for first, last in itertools.pairwise(cuts)]
        with one_thread() if self.device.type == "cpu" else nullcontext(), deterministic(self.tf32):
            if len(shares) == 1:
                return work(shares[0])
            with ThreadPoolExecutor(len(shares)) as pool:
                return [part for parts in pool.map(work, shares) for part in parts]

    def _guarded(self, task: Callable[[], Tensor], size: int | None = None) -> Tensor:
        """Return an update, or NaN if the user's values make it fail: whose values do is private."""
        try:
            with device_failures():
                return task()
        except MemoryError:
            raise
        except Exception:
            return torch.full((size or self.size,), torch.nan, device=self.device, dtype=self.dtype)

    def chunk_of(self, users: int) -> int:
        """Return the number of positions in a chunk for this number of users: public."""
        return min(self.chunk, 1 << max(0, users - 1).bit_length())

    def chunks(self, block: Block) -> Iterator[tuple[Tensor, int]]:
        """Yield the updates of consecutive chunks (chunk × parameters) and the number of occupied positions."""
        public, X, y, offsets, round_number = block
        vector, users = self._public(public), len(offsets) - 1
        chunk = self.chunk_of(users)
        with deterministic(self.tf32), device_failures():
            for start in range(0, users, chunk):
                taken = min(chunk, users - start)
                yield self._chunk_updates(vector, X, y, offsets[start : start + taken + 1], chunk, round_number), taken

    def _chunk_updates(
        self, public: Tensor, X: Rows, y: Rows, bounds: Offsets, chunk: int, round_number: int
    ) -> Tensor:
        """Return a chunk's updates; if a user's values make it fail, compute each user alone in the same position."""
        packed, who = self.packing(X, y, bounds, chunk, round_number), self._who(X, y, bounds)
        given = *packed, self._states(who, chunk, round_number)
        try:
            with device_failures():
                updates, ended = self._vmapped(public, *given)
        except MemoryError:
            raise
        except Exception:
            updates, ended = self._each_in_its_position(public, given)
        self.home.keep(who, round_number, ended.detach()[: len(who)], [(X, y)])
        return updates

    def _each_in_its_position(self, public: Tensor, everyone: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Return updates and states of a chunk whose users are computed without the others; NaN for those that fail."""
        alone = [torch.zeros_like(part) for part in everyone]
        results = []
        for position in range(len(everyone[0])):
            for part, given in zip(alone, everyone, strict=True):
                part[position] = given[position]
            mine = partial(self._vmapped_together, public, *alone)
            result = self._guarded(mine, self.size + everyone[-1].shape[1])
            results.append(result if result.ndim == 1 else result[position])
            for part in alone:
                part[position] = 0
        together = torch.stack(results)
        return together[:, : self.size], together[:, self.size :]

    def _chunk_or_raise(
        self, public: Tensor, X: Rows, y: Rows, bounds: Offsets, chunk: int, round_number: int
    ) -> Tensor:
        own = self._states(self._who(X, y, bounds), chunk, round_number)
        return self._vmapped(public, *self.packing(X, y, bounds, chunk, round_number), own)[0]

    def _vmapped(
        self, public: Tensor, rows: Tensor, targets: Tensor, weights: Tensor, own: Tensor
    ) -> tuple[Tensor, Tensor]:
        batch = vmap(self._update.with_state, in_dims=(None, 0, 0, 0, 0), randomness="error")
        updates, ended = batch(public.clone(), rows, targets, weights, own)
        return updates, ended

    def _vmapped_together(self, public: Tensor, *given: Tensor) -> Tensor:
        return torch.cat(self._vmapped(public, *given), 1)

    def _who(self, X: Rows, y: Rows, bounds: Offsets) -> list[Key]:
        """Return keys for the users of these rows, if users keep local state between rounds."""
        if not self.home.keeps:
            return []
        return [key_of(X[first:last], y[first:last]) for first, last in itertools.pairwise(bounds.tolist())]

    def _states(self, who: list[Key], chunk: int, round_number: int) -> Tensor:
        return self.home.start([*who, *[None] * (chunk - len(who))], round_number)


def _joined(users: Sequence[tuple[Rows, Rows]]) -> tuple[Rows, Rows, Offsets]:
    X, y = (np.concatenate([user[i] for user in users]) for i in (0, 1))
    return X, y, np.append(0, np.cumsum([len(user[1]) for user in users])).astype(np.int64)


def _norms(updates: Tensor) -> Tensor:
    _, norms, scale = scaled(updates)
    return (norms * scale).clamp_max(torch.finfo(torch.float64).max)


def _shared_head(update: UserUpdate) -> tuple[Tensor, ...]:
    return update.head.parts(update.head.start) if update.move_head else ()
