"""Where users' updates are computed: many at once on a GPU, one after the other on a few coarse workers on a CPU.

Both run the same :class:`~tacit.neural.update.UserUpdate`. Measured (docs/centaur.md): on a GPU a loop over users
leaves the device idle, on a CPU batching them loses to the loop; so the device decides.

Nobody's update may depend on anybody else's rows, to the last bit (:mod:`tacit.federation.base`), since local training
can blow a last bit up. In the loop every user is alone. In the batch, a user's place is public: chunks of a fixed
number of users in the order of the roster (or of the coins, under sampling), every user padded to the same public
number of rows, so that shapes, and with them the choice of kernels, never depend on private counts; kernels are asked
to be deterministic, and no operation mixes places. Where a user's numbers make a chunk fail, everybody in it is asked
again in the same place, alone. Clip and sum follow in float64; memory is that of one chunk.

What a machine does (no memory, a device that stopped) is no user's doing and is never taken for a contribution of zero.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.func import vmap

from tacit.neural.layers import own_kinds
from tacit.neural.update import UserUpdate
from tacit.privacy.clipping import GUARD

Array = npt.NDArray[np.float64]
Rows = npt.NDArray[np.floating]
Offsets = npt.NDArray[np.int64]

_KEPT = 8 << 30  # bytes of padded rows that may stay on a GPU from round to round


class DeviceFailure(MemoryError):
    """The machine failed, not a user: out of memory, or a device that stopped. The door lets this one out."""


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
        self.workers = (workers or len(os.sched_getaffinity(0))) if self.device.type == "cpu" else 1
        self.groups = groups
        self.tf32 = tf32
        update.body.to(self.device)
        update.head.to(self.device)
        self._update = update
        self.dtype = update.body.start.dtype
        self.chunk = chunk or _fitting(update.size, self.device)
        self._kept: dict[tuple[object, ...], tuple[Tensor, Tensor, Tensor]] = {}
        self._kept_bytes = 0
        self._sources: list[tuple[Rows, Rows]] = []

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
        update, vector = self._update.alone(), self._public(public)
        works = [partial(self._alone, update, vector, X, y, number) for X, y in users]
        with deterministic(self.tf32), machine_failures():
            found = [self._guarded(work) if guarded else work() for work in works]
        return [np.asarray(answer.cpu().numpy(), dtype=np.float64) for answer in found]

    def in_places(
        self, public: Array, users: Sequence[tuple[Rows, Rows]], chunk: int, number: int, *, guarded: bool = False
    ) -> Array:
        """Return several users' updates as they are computed together, a row a user, in a chunk of so many places."""
        X, y = (np.concatenate([user[i] for user in users]) for i in (0, 1))
        offsets = np.append(0, np.cumsum([len(user[1]) for user in users])).astype(np.int64)
        work = self._together if guarded else self._all_at_once
        with deterministic(self.tf32), machine_failures():
            answers = work(self._public(public), X, y, offsets, chunk, number)[: len(users)]
        return np.asarray(answers.cpu().numpy(), dtype=np.float64)

    def _public(self, public: Array) -> Tensor:
        # A copy: what a layer writes into its parameters must not reach the numbers that rounds are made from.
        return torch.tensor(public, dtype=self.dtype, device=self.device)

    def _alone(self, update: UserUpdate, public: Tensor, X: Rows, y: Rows, number: int) -> Tensor:
        rows, targets = (part.to(self.device) for part in _spoiled(*self._brought(X, y, number), self.dtype))
        weights = torch.ones_like(targets)
        if len(rows) == 1:  # padded like in a batch, so that either half of the rows is there
            rows, targets, weights = (torch.cat([part, torch.zeros_like(part)]) for part in (rows, targets, weights))
        mine = update.alone() if self.own_layers else update
        return mine(public.clone(), rows, targets, weights).detach()  # nobody's layers write into another's start

    def norms(self, public: Array, X: Rows, y: Rows, offsets: Offsets, number: int) -> Array:
        """Norms of everybody's updates, before the clip; not finite where an update is not."""
        found: list[Tensor] = []
        if self.batched:
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
        if self.batched:
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
        found = [_scaled(piece) for piece in torch.split(answers, self._lengths, 1)]
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
        shares = [part.tolist() for part in np.array_split(np.arange(len(pairs)), min(self.workers, len(pairs)) or 1)]
        vector = self._public(public)

        def work(mine: list[int]) -> list[Tensor]:
            out: list[Tensor] = []
            update = self._update.alone()  # a worker's own: calls with other parameters are not safe across threads
            for i in mine:
                first, last = pairs[i]
                mine_alone = partial(self._alone, update, vector, X[first:last], y[first:last], number)
                take(self._guarded(mine_alone), out)
            return out

        with one_thread(), deterministic(self.tf32):
            if len(shares) == 1:
                found += work(shares[0])
                return
            with ThreadPoolExecutor(len(shares)) as pool:
                for part in pool.map(work, shares):
                    found += part

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

    def _packed(self, X: Rows, y: Rows, bounds: Offsets, chunk: int, number: int) -> tuple[Tensor, Tensor, Tensor]:
        """Rows of a chunk's users, padded to the public number of rows and users."""
        size = self._update.training.rows
        turns = number if (np.diff(bounds) > size).any() else 0
        # Rows that nobody can write to are kept from round to round, by where they lie; and held, so that they stay.
        key = (*(part.__array_interface__["data"] for part in (X, y)), X.shape[1], bounds.tobytes(), chunk, turns)
        if key in self._kept:
            return self._kept[key]
        rows = torch.zeros((chunk, size, X.shape[1]), dtype=self.dtype)
        targets, weights = (torch.zeros((chunk, size), dtype=self.dtype) for _ in range(2))
        for place, (first, last) in enumerate(itertools.pairwise(bounds.tolist())):
            brought = _spoiled(*self._brought(X[first:last], y[first:last], number), self.dtype)
            count = len(brought[1])
            rows[place, :count], targets[place, :count], weights[place, :count] = *brought, 1.0
        one, two, three = (part.to(self.device) for part in (rows, targets, weights))
        fixed = not (X.flags.writeable or y.flags.writeable)
        if fixed and turns == 0 and self._kept_bytes + rows.nbytes < _KEPT:
            self._kept[key] = one, two, three
            self._kept_bytes += rows.nbytes
            self._sources.append((X, y))
        return one, two, three

    def _brought(self, X: Rows, y: Rows, number: int) -> tuple[Rows, Rows]:
        """Return the rows a user brings to round ``number``: all, or the next stretch of them."""
        size = self._update.training.rows
        if len(X) <= size:
            return X, y
        # Scattered, because rows may come sorted by class; a stride without common factor reaches all of them in turn.
        stride = next(s for s in range(int(0.618 * len(X)), 0, -1) if math.gcd(s, len(X)) == 1)
        chosen = (number * size + np.arange(size)) * stride % len(X)
        return X[chosen], y[chosen]


def _spoiled(X: Rows, y: Rows, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Rows and targets as tensors; a target that is no number makes its row none, and so its user's update.

    In memory of PyTorch's own, which begins at a multiple of 64: the last bits of a product depend on where its rows
    begin, and where NumPy's do depends on what was there before.
    """
    rows, targets = torch.empty(X.shape, dtype=dtype), torch.empty(y.shape, dtype=dtype)
    with np.errstate(all="ignore"):
        rows.numpy()[...], targets.numpy()[...] = X, y
    if not bool((known := torch.isfinite(targets)).all()):
        rows[~known] = torch.nan
    return rows, targets


def _scaled(answers: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return answers over a scale (a row each, in float64), their norms after that, and the scales.

    Squares of float32 numbers neither overflow nor vanish in float64, so their scale is one. Those of float64 do: an
    answer of entries near 1e-162 would have no norm, and pass the clip whole. Their scale is the largest entry.
    """
    if answers.dtype != torch.float64:
        answers = answers.double()
        return answers, torch.linalg.vector_norm(answers, dim=1), torch.ones_like(answers[:, 0])
    largest = answers.abs().amax(1)
    answers = answers / torch.where(largest > 0, largest, torch.ones_like(largest))[:, None]
    return answers, torch.linalg.vector_norm(answers, dim=1), largest


def _norms(answers: Tensor) -> Tensor:
    _, norms, scale = _scaled(answers)
    return (norms * scale).clamp_max(torch.finfo(torch.float64).max)


@contextmanager
def machine_failures() -> Iterator[None]:
    """Tell what a machine does from what a user's numbers do."""
    try:
        yield
    except RuntimeError as error:
        text = str(error)
        if isinstance(error, torch.cuda.OutOfMemoryError) or "can't allocate memory" in text or "CUDA error" in text:
            raise DeviceFailure(f"{text.splitlines()[0]} Take a smaller chunk, or fewer rows_per_user.") from None
        raise


def _fitting(size: int, device: torch.device) -> int:
    """Users at a time: what a chunk's copies of the body leave room for, and never more than pays (public)."""
    if device.type == "cpu":
        return 1
    memory = torch.cuda.get_device_properties(device).total_memory
    room = int(memory // 4 // max(1, 4 * 8 * size))  # the body, its gradient, intermediate copies, float64
    return max(1, min(256 if size > 1 << 16 else 1024, 1 << max(0, room.bit_length() - 1)))


@contextmanager
def one_thread() -> Iterator[None]:
    """Keep PyTorch from starting threads of its own inside ours."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def deterministic(tf32: bool = False) -> Iterator[None]:
    """Ask for kernels whose result does not depend on timing, and (unless ``tf32``) for whole float32 products."""
    convolutions, products = torch.backends.cudnn, torch.backends.cuda.matmul
    before = convolutions.deterministic, convolutions.benchmark, convolutions.allow_tf32, products.allow_tf32
    convolutions.deterministic, convolutions.benchmark = True, False
    convolutions.allow_tf32 = products.allow_tf32 = tf32
    try:
        yield
    finally:
        convolutions.deterministic, convolutions.benchmark, convolutions.allow_tf32, products.allow_tf32 = before
