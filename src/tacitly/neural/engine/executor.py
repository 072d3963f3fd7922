"""Where users' updates are computed: many at once on a GPU, one after the other on a few coarse workers on a CPU.

Both run the same :class:`~tacitly.neural.engine.update.UserUpdate`. Measured (docs/centaur.md): on a GPU a loop over
users leaves the device idle, on a CPU batching them loses to the loop; so the device decides. With one local step on
linear layers neither is needed: :mod:`tacitly.neural.engine.one_step` runs chunks of users through the public body on
both.

Nobody's update may depend on anybody else's rows, to the last bit (:mod:`tacitly.federation.base`), since local
training can blow a last bit up. In the loop every user is alone. In the batch, a user's place is public: chunks of a
fixed number of users in the order of the roster (or of the coins, under sampling), every user padded to the same public
number of rows, so that shapes, and with them the choice of kernels, never depend on private counts; kernels are asked
to be deterministic, and no operation mixes places. Where a user's numbers make a chunk fail, everybody in it is asked
again in the same place, alone. Clip and sum follow in float64; memory is that of one chunk.

What a machine does (no memory, a device that stopped) is no user's doing and is never taken for a contribution of zero.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from tacitly.arrays import Array, Offsets, Rows
from tacitly.neural.engine.device import deterministic, machine_failures, one_thread
from tacitly.neural.engine.ghost_clipping import add_bounded, norms, scaled
from tacitly.neural.engine.layers import own_kinds
from tacitly.neural.engine.one_step import Chunk, OneStep, can
from tacitly.neural.engine.packing import Packing, spoiled
from tacitly.neural.engine.update import UserUpdate
from tacitly.portable import cpu_count
from tacitly.privacy.clipping import GUARD

Item = TypeVar("Item")


class Executor:
    """Runs an update for many users and adds the clipped answers up.

    ``device`` is ``"cpu"``, ``"cuda"`` or ``"auto"``; ``chunk`` the number of users at a time on a GPU (None: as many
    as fit); ``workers`` the number of threads on a CPU. ``groups`` are lengths of pieces that are clipped each by
    itself. ``tf32`` trades digits for speed on a GPU: users' updates are then rounded more, not protected less.
    Where modules hold layers that nobody has read, every user gets a copy of them, one after the other on any device.
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
        self.own_layers = bool(own_kinds(update.body.module, update.head.module))
        self.batched = self.device.type != "cpu" and not self.own_layers
        self.workers = (workers or cpu_count()) if self.device.type == "cpu" else 1
        self.groups = groups
        self.tf32 = tf32
        update.body.to(self.device)
        update.head.to(self.device)
        self._update = update
        self.dtype = update.body.start.dtype
        lengths = tuple(part.numel() for part in (*update.body.parts(update.body.start), *_shared_head(update)))
        self.one_step = not self.own_layers and can(update) and groups in ((), lengths)
        fitting = _fitting(update.size, self.device) if not self.one_step else _fitting_rows(update, self.device)
        self.chunk = chunk or fitting
        self._packed = Packing(update.training.rows, self.dtype, self.device)
        self._brought = self._packed.brought

    @property
    def size(self) -> int:
        """Coordinates of an answer."""
        return self._update.size

    @property
    def update(self) -> UserUpdate:
        """What every user runs."""
        return self._update

    def one(self, public: Array, X: Rows, y: Rows, number: int) -> Array:
        """One user's update, before the clip, computed alone."""
        return self.one_after_the_other(public, [(X, y)], number)[0]

    def one_after_the_other(
        self, public: Array, users: Sequence[tuple[Rows, Rows]], number: int, *, guarded: bool = False
    ) -> list[Array]:
        """Return several users' updates, each computed alone, by one worker.

        What fails is raised, so that a network that cannot run at all is heard of; unless ``guarded``, as in a round.
        """
        update, vector = self._update.quick(), self._public(public)
        works = [partial(self._alone, update, vector, X, y, number) for X, y in users]
        with deterministic(self.tf32), machine_failures():
            found = [self._guarded(work) if guarded else work() for work in works]
        return [np.asarray(answer.cpu().numpy(), dtype=np.float64) for answer in found]

    def in_places(
        self, public: Array, users: Sequence[tuple[Rows, Rows]], chunk: int, number: int, *, guarded: bool = False
    ) -> Array:
        """Return several users' updates as they are computed together, a row a user, in a chunk of so many places."""
        X, y, offsets = _joined(users)
        work = self._together if guarded else self._all_at_once
        with deterministic(self.tf32), machine_failures():
            answers = work(self._public(public), X, y, offsets, chunk, number)[: len(users)]
        return np.asarray(answers.cpu().numpy(), dtype=np.float64)

    def in_first_place(
        self, public: Array, users: Sequence[tuple[Rows, Rows]], chunk: int, number: int, *, guarded: bool = False
    ) -> Array:
        """Return the first user's update as it is computed, or stands for itself, among others in a chunk."""
        if not self.one_step:
            return np.asarray(self.in_places(public, users, chunk, number, guarded=guarded)[0])
        given = self._public(public), *self._packed(*_joined(users), chunk, number)
        step = OneStep(self._update)
        with one_thread(), deterministic(self.tf32), machine_failures():
            pieces = next(step.guarded(*given, len(users))).pieces if guarded else step(*given)
        moved = torch.cat([piece.of(0) for piece in pieces or ()]) * -self._update.training.local_rate
        return np.asarray(moved.cpu().numpy())

    def _public(self, public: Array) -> Tensor:
        # A copy: what a layer writes into its parameters must not reach the numbers that rounds are made from.
        return torch.tensor(public, dtype=self.dtype, device=self.device)

    def _alone(self, update: UserUpdate, public: Tensor, X: Rows, y: Rows, number: int) -> Tensor:
        rows, targets = (part.to(self.device) for part in spoiled(*self._brought(X, y, number), self.dtype))
        weights = torch.ones_like(targets)
        if len(rows) == 1:  # padded like in a batch, so that either half of the rows is there
            rows, targets, weights = (torch.cat([part, torch.zeros_like(part)]) for part in (rows, targets, weights))
        mine = update.alone() if self.own_layers else update
        return mine(public.clone(), rows, targets, weights).detach()  # nobody's layers write into another's start

    def norms(self, public: Array, X: Rows, y: Rows, offsets: Offsets, number: int) -> Array:
        """Norms of everybody's updates, before the clip; not finite where an update is not."""
        found: list[Tensor] = []
        if self.one_step:
            found = self._in_one_step(
                public, X, y, offsets, number, lambda part, mine: mine.append(self._bounds_of(part))
            )
        elif self.batched:
            parts = self._parts(public, X, y, offsets, number)
            found = [_norms(part[:users]) for part, users in parts]
        else:
            self._each(public, X, y, offsets, number, lambda vector, mine: mine.append(_norms(vector[None])), found)
        return np.asarray(torch.cat(found).cpu().numpy())

    def clipped_sum(
        self, public: Array, X: Rows, y: Rows, offsets: Offsets, bound: float, number: int, *, normalised: bool
    ) -> Array:
        """Sum of everybody's updates, each clipped (or brought) to norm ``bound``."""
        total = torch.zeros(self.size, dtype=torch.float64, device=self.device)
        if self.one_step:
            pieces = partial(self._add_pieces, bound, normalised)
            for part in self._in_one_step(public, X, y, offsets, number, pieces):
                total += part
        elif self.batched:
            for part, users in self._parts(public, X, y, offsets, number):
                total += self.bounded_sum(part[:users], bound, normalised=normalised)
        else:

            def add(vector: Tensor, mine: list[Tensor]) -> None:
                if not mine:
                    mine.append(torch.zeros(self.size, dtype=torch.float64, device=self.device))
                self._add_bounded(vector, bound, mine[0], normalised=normalised)

            found: list[Tensor] = []
            self._each(public, X, y, offsets, number, add, found)
            for part in found:
                total += part
        return np.asarray(total.cpu().numpy())

    def bounded_sum(self, answers: Tensor, bound: float, *, normalised: bool) -> Tensor:
        """Sum of answers (a row each) brought within the clip, in float64: the last thing that happens to them.

        An answer that is not finite is zero.
        """
        found = [scaled(piece) for piece in torch.split(answers, self._lengths, 1)]
        finite = torch.stack([torch.isfinite(length) & torch.isfinite(scale) for _, length, scale in found]).all(0)
        sums, share = [], self._share(bound)
        for piece, length, scale in found:
            factor = share / torch.where(length > 0, length, torch.ones_like(length))
            if not normalised:
                factor = torch.where(length * scale <= share, scale, factor)
            factor = torch.where(finite, factor, torch.zeros_like(factor))
            if not bool(finite.all()):  # where nothing is wrong, save a pass over the chunk
                piece = torch.where(finite[:, None], piece, torch.zeros_like(piece))
            sums.append(factor @ piece)
        return torch.cat(sums)

    def _add_bounded(self, answer: Tensor, bound: float, total: Tensor, *, normalised: bool) -> None:
        """Do the same for one answer, added to ``total`` in place."""
        if answer.dtype == torch.float64:
            total += self.bounded_sum(answer[None], bound, normalised=normalised)
            return
        pieces = torch.split(answer.double(), self._lengths)
        norms = [float(torch.linalg.vector_norm(piece)) for piece in pieces]
        if not all(math.isfinite(norm) for norm in norms):
            return
        for piece, norm, place in zip(pieces, norms, torch.split(total, self._lengths), strict=True):
            factor = self._share(bound) / norm if norm > 0 else 0.0
            place.add_(piece, alpha=factor if normalised else min(1.0, factor))

    def _add_pieces(self, bound: float, normalised: bool, chunk: Chunk, mine: list[Tensor]) -> None:
        """Do the same for a chunk whose answers are not written down."""
        if not mine:
            mine.append(torch.zeros(self.size, dtype=torch.float64, device=self.device))
        if chunk.pieces:
            rate, each = self._update.training.local_rate, bool(self.groups)
            add_bounded(mine[0], chunk.pieces, bound, rate, normalised=normalised, each=each)

    def _bounds_of(self, chunk: Chunk) -> Tensor:
        if not chunk.pieces:
            return torch.full((len(chunk.weights[chunk.places]),), torch.nan, dtype=torch.float64, device=self.device)
        return norms(chunk.pieces, self._update.training.local_rate)[chunk.places]

    @property
    def _lengths(self) -> list[int]:
        return list(self.groups) or [self.size]

    def _share(self, bound: float) -> float:
        return bound * (1.0 - GUARD) / math.sqrt(len(self._lengths))

    def _each(
        self,
        public: Array,
        X: Rows,
        y: Rows,
        offsets: Offsets,
        number: int,
        take: Callable[[Tensor, list[Tensor]], None],
        found: list[Tensor],
    ) -> None:
        """Hand everybody's update, computed alone, to ``take``; coarse workers with one thread each, in order."""
        pairs = list(itertools.pairwise(offsets.tolist()))
        vector = self._public(public)

        def work(mine: list[tuple[int, int]]) -> list[Tensor]:
            out: list[Tensor] = []
            update = self._update.quick()  # a worker's own: calls with other parameters are not safe across threads
            for first, last in mine:
                mine_alone = partial(self._alone, update, vector, X[first:last], y[first:last], number)
                take(self._guarded(mine_alone), out)
            return out

        found += self._shared_out(pairs, work)

    def _shared_out(self, items: list[Item], work: Callable[[list[Item]], list[Tensor]]) -> list[Tensor]:
        """Return what workers with one thread each make of consecutive shares of some items, in order."""
        cuts = np.linspace(0, len(items), min(self.workers, len(items) or 1) + 1).astype(int).tolist()
        shares = [items[first:last] for first, last in itertools.pairwise(cuts)]
        with one_thread() if self.device.type == "cpu" else nullcontext(), deterministic(self.tf32):
            if len(shares) == 1:
                return work(shares[0])
            with ThreadPoolExecutor(len(shares)) as pool:
                return [part for parts in pool.map(work, shares) for part in parts]

    def _in_one_step(
        self,
        public: Array,
        X: Rows,
        y: Rows,
        offsets: Offsets,
        number: int,
        take: Callable[[Chunk, list[Tensor]], None],
    ) -> list[Tensor]:
        """Hand what consecutive chunks' slopes are made of to ``take``, on coarse workers."""
        vector, users = self._public(public), len(offsets) - 1
        chunk = self.chunk_of(users)

        def work(mine: list[int]) -> list[Tensor]:
            out: list[Tensor] = []
            step = OneStep(self._update)
            for start in mine:
                taken = min(chunk, users - start)
                packed = self._packed(X, y, offsets[start : start + taken + 1], chunk, number)
                for part in step.guarded(vector, *packed, taken):
                    take(part, out)
            return out

        with machine_failures():
            return self._shared_out(list(range(0, users, chunk)), work)

    def _guarded(self, work: Callable[[], Tensor]) -> Tensor:
        """Return an answer, or nothing finite where a user's numbers make it fail: who they are is private."""
        try:
            with machine_failures():
                return work()
        except MemoryError:
            raise
        except Exception:
            return torch.full((self.size,), torch.nan, device=self.device, dtype=self.dtype)

    def chunk_of(self, users: int) -> int:
        """Places in a chunk where there are so many users: public."""
        return min(self.chunk, 1 << max(0, users - 1).bit_length())

    def _parts(self, public: Array, X: Rows, y: Rows, offsets: Offsets, number: int) -> Iterator[tuple[Tensor, int]]:
        """Return updates of consecutive chunks (chunk × coordinates) and how many of their places are taken."""
        vector, users = self._public(public), len(offsets) - 1
        chunk = self.chunk_of(users)
        with deterministic(self.tf32), machine_failures():
            for start in range(0, users, chunk):
                taken = min(chunk, users - start)
                yield self._together(vector, X, y, offsets[start : start + taken + 1], chunk, number), taken

    def _together(self, public: Tensor, X: Rows, y: Rows, bounds: Offsets, chunk: int, number: int) -> Tensor:
        """Return a chunk's updates; if a user's numbers make it fail, each user's in its place without the others."""
        try:
            with machine_failures():
                return self._all_at_once(public, X, y, bounds, chunk, number)
        except MemoryError:
            raise
        except Exception:
            packed = self._packed(X, y, bounds, chunk, number)
            nobody = [torch.zeros_like(part) for part in packed]
            found = []
            for place in range(chunk):
                for part, mine in zip(nobody, packed, strict=True):
                    part[place] = mine[place]
                alone = self._guarded(partial(self._answers, public, *nobody))
                found.append(alone if alone.ndim == 1 else alone[place])
                for part in nobody:
                    part[place] = 0
            return torch.stack(found)

    def _all_at_once(self, public: Tensor, X: Rows, y: Rows, bounds: Offsets, chunk: int, number: int) -> Tensor:
        """Return a chunk's updates, or raise."""
        return self._answers(public, *self._packed(X, y, bounds, chunk, number))

    def _answers(self, public: Tensor, rows: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        together = vmap(self._update, in_dims=(None, 0, 0, 0), randomness="error")
        answers: Tensor = together(public.clone(), rows, targets, weights)
        return answers


def _joined(users: Sequence[tuple[Rows, Rows]]) -> tuple[Rows, Rows, Offsets]:
    X, y = (np.concatenate([user[i] for user in users]) for i in (0, 1))
    return X, y, np.append(0, np.cumsum([len(user[1]) for user in users])).astype(np.int64)


def _norms(answers: Tensor) -> Tensor:
    _, norms, scale = scaled(answers)
    return (norms * scale).clamp_max(torch.finfo(torch.float64).max)


def _fitting(size: int, device: torch.device) -> int:
    """Users at a time: what a chunk's copies of the body leave room for, and never more than pays (public)."""
    if device.type == "cpu":
        return 1
    memory = torch.cuda.get_device_properties(device).total_memory
    room = int(memory // 4 // max(1, 4 * 8 * size))  # the body, its gradient, intermediate copies, float64
    # Measured on an H200: the paper's LeNet (735,000 numbers) is quickest at 128, its perceptron (236,000) at 1,024.
    return max(1, min(128 if size > 1 << 19 else 1024, 1 << max(0, room.bit_length() - 1)))


def _fitting_rows(update: UserUpdate, device: torch.device) -> int:
    """Users at a time where only their rows take room: those of a chunk stay in a CPU's cache (public)."""
    rows = max(2, update.training.rows)
    if device.type == "cpu":
        return 1 << max(0, min(64, 2048 // rows).bit_length() - 1)
    width = sum(sum(shape) for shape in update.body.shapes.values())
    each = 40 * rows * width + 24 * rows**2  # what goes in and out of layers, and products of rows with rows
    room = int(torch.cuda.get_device_properties(device).total_memory // 8 // each)
    return max(1, min(1024, 1 << max(0, room.bit_length() - 1)))


def _shared_head(update: UserUpdate) -> tuple[Tensor, ...]:
    return update.head.parts(update.head.start) if update.move_head else ()
