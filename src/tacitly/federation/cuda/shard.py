"""A shard whose rows are on a device: sums by device forms where queries have one, on the host where they do not."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import numpy.typing as npt
import torch

from tacitly.arrays import Array, Offsets, Rows
from tacitly.data.cohort import Cohort
from tacitly.federation.bounds import exceeded, fused_agrees
from tacitly.federation.cuda.forms import Context, form_of
from tacitly.federation.cuda.rows import DeviceRows
from tacitly.federation.cuda.sums import BlockSums, integer_sums, to_array
from tacitly.federation.projected import Projected
from tacitly.federation.query import BLOCK, ROW_BLOCK, Chosen, Query
from tacitly.federation.shard import Shard
from tacitly.privacy.guarantee import Unit


class DeviceShard(Shard):
    """Sums of queries over the users of a cohort, on a device.

    ``plain`` runs the forms in plain PyTorch; by default that is done where there is no GPU.
    """

    def __init__(
        self,
        cohort: Cohort,
        device: torch.device,
        *,
        threads: int | None = None,
        plain: bool | None = None,
        resident: bool | None = None,
    ) -> None:
        super().__init__(cohort, threads=threads)
        self._context = Context(device, device.type == "cpu" if plain is None else plain, cohort.n_users)
        self._resident = resident
        self._rows: DeviceRows | None = None
        self._last_form: tuple[Query, float, BlockSums | None] | None = None
        self._said: set[str] = set()

    def exact_sum(
        self, query: Query, bound: float, grid: float, chosen: Chosen | None = None, *, end: float = math.inf
    ) -> npt.NDArray[np.int64]:
        """Return the sum of all (or the chosen) users' clipped contributions, in steps of the grid.

        Sums on the device are not interrupted at ``end``: nodes, whose time is limited, have none.
        """
        usual = math.isfinite(bound) and not isinstance(query, Projected)
        form = self._form(query, bound) if usual else None
        if form is None:
            return super().exact_sum(query, bound, grid, chosen, end=end)
        if self._rows is None:
            cohort = self.cohort
            self._rows = DeviceRows(cohort.X, cohort.y, cohort.offsets, self._context.device, self._resident)
        try:
            with torch.no_grad(), _current(self._context.device):
                block = BLOCK if query.unit is Unit.USER else ROW_BLOCK
                total, kept = integer_sums(self._rows, form, bound, grid, chosen, block=block)
        except torch.OutOfMemoryError:
            # Not on the host instead: whether memory suffices depends on private numbers of rows, and the two differ in
            # the last bits, which some queries amplify for everybody.
            raise MemoryError(
                f"the device's memory is too small for {type(query).__name__} of these rows. "
                "Use CudaEngine(resident=False), or engine='local'."
            ) from None
        if not kept:
            raise exceeded(query)
        return total

    def _project(self, directions: Array, end: float) -> Shard:
        other = super()._project(directions, end)
        assert isinstance(other, DeviceShard)
        other._rows, other._last_form = None, None
        other._context = Context(self._context.device, self._context.plain, self.cohort.n_users)
        return other

    def _form(self, query: Query, bound: float) -> BlockSums | None:
        """Return the device form of a query, None where the host sums it; decided once per query, by public numbers."""
        if self._last_form is None or self._last_form[0] is not query or self._last_form[1] != bound:
            form = form_of(query, self._context)
            if form is None:
                self._say(f"there is no device form of {type(query).__name__}")
            elif not fused_agrees(query, self.cohort.n_features, bound, OnDevice(query, self._context)):
                form = None
            self._last_form = query, bound, form
        return self._last_form[2]

    def _say(self, why: str) -> None:
        """Warn, once per reason of a kind, that some sums are computed on the host."""
        kind = why.partition(" of ")[0].partition(" for ")[0]
        if kind not in self._said:
            warnings.warn(
                f"engine='cuda': {why}. Such sums are computed on the host, as engine='local' does.",
                RuntimeWarning,
                stacklevel=6,
            )
        self._said.add(kind)


class OnDevice(Query):
    """A query summed by its device form: what tests and checks on synthetic users run."""

    def __init__(self, query: Query, context: Context) -> None:
        form = form_of(query, context.keeping_nothing())
        if form is None:
            raise ValueError(f"{type(query).__name__} has no device form.")
        self._query, self._form, self._device = query, form, context.device
        object.__setattr__(self, "unit", query.unit)
        object.__setattr__(self, "acute", query.acute)

    @property
    def coordinates(self) -> int:
        """Those of the query."""
        return self._query.coordinates

    def contribution(self, X: Rows, y: Rows) -> Array:
        """Return the query's definition."""
        return self._query.contribution(X, y)

    def block_sum(self, X: Rows, y: Rows, offsets: Offsets, bound: float) -> Array:
        """Return the sum of one block."""
        return np.asarray(self.block_sums(X, y, offsets, bound, max(1, len(offsets) - 1))[0])

    def block_sums(self, X: Rows, y: Rows, offsets: Offsets, bound: float, size: int) -> Array:
        """Return one row per block."""
        rows = DeviceRows(np.asarray(X), np.asarray(y), np.asarray(offsets), self._device, resident=True)
        with torch.no_grad(), _current(self._device):
            return to_array(torch.cat([self._form(span, bound, size, None) for span in rows.spans()]))

    def each_sum(self, units: Sequence[tuple[Rows, Array]], bound: float) -> list[Array | None]:
        """Return what each unit adds; users are blocks of one, so that one call is enough."""
        if self.unit is not Unit.USER:
            return [self.block_sum(X, y, np.array([0, len(X)]), bound) for X, y in units]
        offsets = np.concatenate([[0], np.cumsum([len(X) for X, _ in units])])
        X, y = np.concatenate([X for X, _ in units]), np.concatenate([y for _, y in units])
        return list(self.block_sums(X, y, offsets, bound, 1))


def _current(device: torch.device) -> AbstractContextManager[object]:
    """Make a device the current one: kernels are launched there."""
    return nullcontext() if device.type == "cpu" else torch.cuda.device(device)
