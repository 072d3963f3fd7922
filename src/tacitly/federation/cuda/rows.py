"""Users' rows on a device: all of them, or block by block from the host if they do not fit.

Spans begin at multiples of :data:`SPAN` or :data:`STREAMED` users. The choice depends on the numbers of users and
features only, as if every user had :data:`ROWS` rows. The number of rows is private, and sums over different spans may
differ in their last bits, so the spans must depend on public numbers only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

SPAN = 1 << 20
"""Users whose intermediate results are on the device at a time: a multiple of a block of users."""

STREAMED = 1 << 13
"""The same, where rows come from the host."""

ROWS = 64
"""Rows per user for which there must be room on the device, where rows are kept there."""

_FEWEST_ROWS = 512  # that are added up at once
_SHARE = 0.6  # of the free memory that these rows may take
_STAGED = 1 << 25  # bytes of a buffer through which rows go to the device
_CELLS = 1 << 21  # numbers per row that forms hold at once on a host, for users with one row each
_PER_CELL = 1024  # bytes of a device's memory for each of them there: enough for users with dozens of rows


class Span(NamedTuple):
    """Consecutive users on the device; ``offsets`` count from the first of their rows."""

    first: int
    X: torch.Tensor
    y: torch.Tensor
    offsets: torch.Tensor

    @property
    def users(self) -> int:
        """Number of users."""
        return len(self.offsets) - 1


class Own:
    """The rows of a span in double precision, and whose they are."""

    def __init__(self, span: Span) -> None:
        start, stop = (int(edge) for edge in span.offsets[[0, -1]])
        self.offsets = span.offsets - start
        self.rows, self.targets = span.X[start:stop].to(torch.float64), span.y[start:stop].to(torch.float64)
        self.counts = self.offsets.diff()
        self.present = self.counts.clamp(min=1).to(torch.float64)
        self.owner = torch.repeat_interleave(torch.arange(span.users, device=span.X.device), self.counts)

    def total(self, values: torch.Tensor) -> torch.Tensor:
        """Add up the rows of each user."""
        return per_user(values, self.counts)

    def mean(self, values: torch.Tensor) -> torch.Tensor:
        """Return the mean of each user's rows; zero for a user without rows."""
        return self.total(values) / self.present[:, None]

    def centered(self, values: torch.Tensor) -> torch.Tensor:
        """Subtract each user's mean."""
        return values - self.mean(values)[self.owner]


def per_user(values: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Add up the rows of each user, one after the other; zero for a user without rows."""
    if not values.numel():
        return values.new_zeros((len(counts), *values.shape[1:]))
    # Numbers without columns would be added up in a tree, which may follow where in memory a user's rows begin.
    table = values.reshape(len(values), -1).contiguous()
    # Unchecked: the check of the counts, which are those of these rows, would wait for the device twice.
    found = torch.segment_reduce(table, "sum", lengths=counts, axis=0, unsafe=True, initial=0.0)
    return found.reshape(len(counts), *values.shape[1:])


def row_sums(products: torch.Tensor) -> torch.Tensor:
    """Add up the numbers of each row. On a GPU they are added in another order where there are very few rows."""
    few = max(0, _FEWEST_ROWS - len(products))
    padded = torch.cat([products, products.new_zeros((few, products.shape[1]))]) if few else products
    return padded.sum(dim=1)[: len(products)]


def thinned(span: Span, most: int) -> Span:
    """Return at most ``most`` rows of each user, evenly spaced, as :mod:`tacitly.methods.shared.some_rows` does."""
    if not most:
        return span
    counts = span.offsets.diff()
    few = counts.clamp(max=most)
    starts = torch.cat([few.new_zeros(1), few.cumsum(0)])
    owner = torch.repeat_interleave(torch.arange(span.users, device=span.X.device), few)
    place = torch.arange(len(owner), device=span.X.device) - starts[owner]
    rows = span.offsets[owner] + (2 * place + 1) * counts[owner] // (2 * few[owner])
    return Span(span.first, span.X[rows], span.y[rows], starts)


def in_spans(
    span: Span, who: torch.Tensor | None, size: int, numbers: int
) -> Iterator[tuple[Span, torch.Tensor | None]]:
    """Divide a span at blocks of ``size`` users, so that ``numbers`` per row fit memory; public sizes decide."""
    users = max(1, _cells(span.X.device) // max(1, numbers) // size) * size
    for first in range(0, span.users, users):
        last = min(first + users, span.users)
        part = Span(span.first + first, span.X, span.y, span.offsets[first : last + 1])
        yield part, None if who is None else who[first:last]


def _cells(device: torch.device) -> int:
    if device.type == "cpu":
        return _CELLS
    return int(torch.cuda.get_device_properties(device).total_memory // _PER_CELL)


@dataclass
class DeviceRows:
    """The rows of a cohort for one device. ``resident`` None decides by free memory, users and features."""

    X: npt.NDArray[Any]
    y: npt.NDArray[Any] | None
    offsets: npt.NDArray[np.int64]
    device: torch.device
    resident: bool | None = None

    def __post_init__(self) -> None:
        if self.resident is None:
            self.resident = self._fits()
        self._held: Span | None = None

    @property
    def n_users(self) -> int:
        """Number of users."""
        return len(self.offsets) - 1

    def spans(self) -> Iterator[Span]:
        """Yield all users, a span at a time."""
        if not self.resident:
            for first in range(0, self.n_users, STREAMED):
                yield self._span(first, min(first + STREAMED, self.n_users))
            return
        if self._held is None:
            self._held = self._span(0, self.n_users)
        held = self._held
        for first in range(0, self.n_users, SPAN):
            last = min(first + SPAN, self.n_users)
            # Offsets of a resident cohort count from its first row, so that no slice waits for the device.
            yield Span(first, held.X, held.y, held.offsets[first : last + 1])

    def _span(self, first: int, last: int) -> Span:
        start, stop = int(self.offsets[first]), int(self.offsets[last])
        y = np.zeros(stop - start, dtype=self.X.dtype) if self.y is None else self.y[start:stop]
        offsets = self.offsets[first : last + 1] - start
        return Span(first, self._put(self.X[start:stop]), self._put(y), self._put(offsets))

    def _put(self, array: npt.NDArray[Any]) -> torch.Tensor:
        """Copy an array, which may be a memory map, to the device."""
        if self.device.type == "cpu":
            return torch.from_numpy(np.array(array))
        return staged(array, self.device)

    def _fits(self) -> bool:
        if self.device.type == "cpu":
            return True
        free, _ = torch.cuda.mem_get_info(self.device)
        return fits(self.n_users, self.X.shape[1], self.X.itemsize, free)


def fits(users: int, features: int, itemsize: int, free: int) -> bool:
    """Whether rows are kept on a device with so much free memory; a function of public numbers.

    >>> fits(1_000_000, 64, 4, free=139 << 30), fits(1_000_000, 64, 4, free=16 << 30)
    (True, False)
    """
    return users * (ROWS * (features + 1) * itemsize + 8) <= _SHARE * free


def staged(array: npt.NDArray[Any], device: torch.device) -> torch.Tensor:
    """Copy an array to a device by way of two buffers in pinned memory: while one is filled, the other is sent."""
    flat = np.ascontiguousarray(array).reshape(-1)
    dtype = torch.from_numpy(np.empty(0, flat.dtype)).dtype
    out = torch.empty(flat.size, dtype=dtype, device=device)
    step = max(1, min(_STAGED // flat.itemsize, flat.size))
    buffers = [torch.empty(step, dtype=dtype, pin_memory=True) for _ in range(2)]
    sent: list[torch.cuda.Event | None] = [None, None]
    for turn, start in enumerate(range(0, flat.size, step)):
        buffer, before = buffers[turn % 2], sent[turn % 2]
        if before is not None:
            before.synchronize()
        size = min(step, flat.size - start)
        buffer.numpy()[:size] = flat[start : start + size]
        out[start : start + size].copy_(buffer[:size], non_blocking=True)
        sent[turn % 2] = torch.cuda.Event()  # type: ignore[no-untyped-call]
        sent[turn % 2].record(torch.cuda.current_stream(device))  # type: ignore[union-attr]
    torch.cuda.synchronize(device)  # before the buffers are gone
    return out.reshape(array.shape)
