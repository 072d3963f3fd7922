"""A shard: users in this process, summed in blocks on a few threads, with one pass over the rows per release.

Every engine is built from shards: a local federation is one shard, a Ray actor holds one, a Flower node is one. A shard
computes sums on the grid and never draws noise.
"""

from __future__ import annotations

import copy
import itertools
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cache
from typing import TypeVar, cast

import numpy as np
import numpy.typing as npt
from threadpoolctl import ThreadpoolController

from tacitly.arrays import Array, Offsets, Rows
from tacitly.data.cohort import Cohort
from tacitly.federation.bounds import check_sums, fused_agrees, one_form
from tacitly.federation.failing_users import OutOfTime, attempt, check_time, without_failing_units
from tacitly.federation.forms import Few, OfArrays, OfStatistics, Plain, form_of
from tacitly.federation.projected import Projected, project_few
from tacitly.federation.query import BLOCK, ROW_BLOCK, Chosen, Query, rehearse, synthetic_rows
from tacitly.federation.scores import Scores
from tacitly.federation.statistics import Statistics, same
from tacitly.portable import cpu_count
from tacitly.privacy.guarantee import Unit
from tacitly.privacy.noise import to_grid
from tacitly.simd.lazy_njit import few

T = TypeVar("T")
Numbers = TypeVar("Numbers", bound=npt.NDArray[np.floating])

_ROW_CELLS = 1 << 22  # numbers in a block of rows: 32 MiB of float64
_KEPT = 1 << 28  # most numbers of statistics that are kept: 2 GiB


class Shard:
    """Sums of queries over the users of a :class:`~tacitly.data.cohort.Cohort`.

    ``plain`` uses the queries' NumPy definitions, which need no compilation.

    >>> from tacitly.methods.shared.whitening import FeatureMoment
    >>> data = Cohort.from_offsets([[1.0, 0.0], [0.0, 1.0]], None, [0, 1, 2])
    >>> shard = Shard(data, threads=1, plain=True)
    >>> (shard.exact_sum(FeatureMoment(2), 1.0, 2.0**-40) * 2.0**-40).round(3)
    array([1., 0., 1.])
    """

    def __init__(self, cohort: Cohort, *, threads: int | None = None, plain: bool = False) -> None:
        self.cohort = cohort
        self._plain = plain
        self._threads = threads or cpu_count()
        self._pool: ThreadPoolExecutor | None = None
        self._last_projection: tuple[bytes, Shard] | None = None
        self._statistics: dict[type[Statistics], tuple[Statistics, Shard, Array]] = {}
        # One sum at a time: the next sum may overwrite the statistics that this one reads.
        self._turn = threading.RLock()

    @property
    def threads(self) -> int:
        """How many threads sum users."""
        return self._threads

    def exact_sum(
        self, query: Query, bound: float, grid: float, chosen: Chosen | None = None, *, end: float = math.inf
    ) -> npt.NDArray[np.int64]:
        """Return the sum of all (or the chosen) users' clipped contributions, in steps of the grid.

        Raises :class:`OutOfTime` between two users (between two blocks, where users are summed by compiled code) once
        ``end``, a time of :func:`time.monotonic`, has passed.
        """
        with self._turn:
            return self._exact_sum(query, bound, grid, chosen, end)

    def _exact_sum(
        self, query: Query, bound: float, grid: float, chosen: Chosen | None, end: float
    ) -> npt.NDArray[np.int64]:
        if isinstance(query, Projected):
            projected = self.projected(query.directions, end)
            return projected.exact_sum(query.query, bound, grid, chosen, end=end)
        if not math.isfinite(bound) and query.clipped and not isinstance(query, Scores):
            raise ValueError(f"a sum without a bound is for losses only. Found {type(query).__name__}.")
        form = query if self._plain else form_of(query, self.cohort.n_users, self.cohort.n_features)
        of_statistics = form is not query and isinstance(form, OfStatistics)
        if of_statistics:
            # Bugs surface here; below, no exception may, because it could depend on private numbers.
            rehearse(form, *synthetic_rows(self.cohort.n_features))
        if self._plain or not fused_agrees(query, self.cohort.n_features, bound, form):
            # If batches are the definition, several users can be evaluated at once.
            together = self._plain and one_form(query, bound)
            plain = Few(query, self.cohort.n_features, end) if together else Plain(query, end)
            return self._sum(query, plain, bound, grid, chosen, end)
        in_arrays = not of_statistics and few(self.cohort.n_users, self.cohort.n_features)
        statistics = query.statistics if of_statistics else query.array_statistics if in_arrays else None
        shard = None if statistics is None else self._with(statistics, end)
        if shard is None:
            if math.isfinite(end) and form is query and one_form(query, bound):
                form = Few(query, self.cohort.n_features, end)  # so that time is checked every few users
            return self._sum(query, form, bound, grid, chosen, end)
        answered = OfStatistics(query) if of_statistics else OfArrays(query)
        return shard._sum(query, answered, bound, grid, chosen, end)

    def _sum(
        self, query: Query, form: Query, bound: float, grid: float, chosen: Chosen | None, end: float = math.inf
    ) -> npt.NDArray[np.int64]:
        """Return the sum by one form of a query, whose bound is enforced whatever form it is."""

        def block_sums(X: Rows, y: Rows, offsets: Offsets) -> npt.NDArray[np.int64]:
            units = _units(query, X, offsets)
            shape = len(units), query.coordinates
            sums = attempt(lambda: form.block_sums(X, y, offsets, bound, BLOCK), shape)
            if sums is None:
                sums = without_failing_units(form, X, y, offsets, bound, end)
            check_sums(query, sums, units, bound)
            return np.asarray(to_grid(sums, grid).sum(axis=0), dtype=np.int64)

        total = np.zeros(query.coordinates, dtype=np.int64)
        spans, of_rows = self._spans(query, chosen), query.unit is not Unit.USER
        for part in self._blocks(block_sums, spans, of_rows=of_rows, end=end):
            total += part
        return total

    def users_map(
        self, work: Callable[[Rows, Rows, npt.NDArray[np.int64]], Numbers], *, end: float = math.inf
    ) -> Numbers:
        """Run ``work`` on every block and stack the results, one row per user; raise :class:`OutOfTime` after ``end``.

        Not a door: the result (heads) is private, and the caller must keep it with the users. Heads come last, so that
        statistics make room for them.
        """
        with self._turn:
            self._statistics.clear()
            return self._map(work, end)

    def _map(
        self,
        work: Callable[[Rows, Rows, npt.NDArray[np.int64]], Numbers],
        end: float,
        room: Numbers | None = None,
    ) -> Numbers:
        """Do the same with ``room`` for the results, if it is given: what stands in it may be what is mapped."""
        users = self.cohort.n_users
        size = int(getattr(work, "span", BLOCK))
        if users < size:
            size = int(getattr(work, "short_span", size))
        starts = list(range(0, max(1, users - size + 1), size))  # the last span includes the remaining users
        spans = list(itertools.pairwise([*starts, users]))
        stacked = room
        for (first, last), part in zip(spans, self._blocks(work, spans, end=end), strict=True):
            if stacked is None:  # filled in place: a list of parts would need twice the memory
                stacked = cast(Numbers, np.empty((users, *part.shape[1:]), dtype=part.dtype))
            stacked[first:last] = part
        assert stacked is not None
        return stacked

    def projected(self, directions: Array, end: float = math.inf) -> Shard:
        """Return the same users with rows directions·x; the last result is kept and returned for equal directions.

        Each projected row depends on its own row alone, to the last bit. Projected rows are held in memory, even if the
        rows themselves are memory-mapped.
        """
        key = directions.shape[0].to_bytes(8) + directions.tobytes()
        if self._last_projection is None or self._last_projection[0] != key:
            self._last_projection = None  # so that two projections are never held at once
            self._last_projection = key, self._project(directions, end)
        return self._last_projection[1]

    def _project(self, directions: Array, end: float) -> Shard:
        users, project = self.cohort.n_users, project_few
        if not few(users, self.cohort.n_features):
            from tacitly.simd.projections import project_each as project

        spans = [(a, min(a + BLOCK, users)) for a in range(0, users, BLOCK)]
        rows = np.concatenate(list(self._blocks(lambda X, y, offsets: project(X, directions), spans, end=end)))
        names = tuple(f"direction {j}" for j in range(len(directions)))
        other = copy.copy(self)
        other._statistics = {}
        other.cohort = replace(self.cohort, X=rows, feature_names=names)
        return other

    def _with(self, statistics: Statistics, end: float = math.inf) -> Shard | None:
        """Return the same users with their statistics as the only row of each; None if they are not kept.

        Public sizes decide: the number of users and of statistics. (Computed block by block they are the same.)
        """
        if not statistics.kept or self.cohort.n_users * statistics.width > _KEPT:
            return None
        kept, shard, room = self._statistics.get(type(statistics), (None, None, None))
        if shard is None or not same(kept, statistics):
            source = statistics.source
            # A source of the same class would be replaced immediately, so it is not kept.
            passing = type(source) is type(statistics) and not same(kept, source)
            base = self if source is None else None if passing else self._with(source, end)
            self._statistics.pop(type(statistics), None)  # so that memory never holds two of the same class
            for kind, (other, _, _) in list(self._statistics.items()):
                if type(other.source) is type(statistics):  # they were computed from what is replaced now
                    del self._statistics[kind]
            if room is not None and room.shape != (self.cohort.n_users, statistics.width):
                room = None
            try:
                where, work = (self, statistics.of_rows) if base is None else (base, statistics)
                # Reuse the memory: allocating new pages takes longer than computing their content.
                rows = where._map(work, end, room)
            except (MemoryError, OutOfTime):
                raise
            except Exception:  # no exception may depend on private numbers: sums leave out failing users
                return None
            names = tuple(f"statistic {j}" for j in range(statistics.width))
            shard = copy.copy(self)
            shard.cohort = Cohort(rows, None, np.arange(len(rows) + 1), self.cohort.users, names)
            self._statistics[type(statistics)] = statistics, shard, rows
        return shard

    def _spans(self, query: Query, chosen: Chosen | None) -> Sequence[tuple[int, int]]:
        """Boundaries of the blocks: in rows if the unit is the row (their number is public then), else in users."""
        offsets = self.cohort.offsets
        users = [(0, self.cohort.n_users)] if chosen is None else _runs(chosen)
        if query.unit is Unit.USER:
            # Handing over the interpreter lock between calls costs as much as a hundred users, so one call takes
            # several blocks, unless their sums together would be large.
            most = 32 if query.coordinates <= 10_000 else 1
            return [span for first, last in users for span in _spans(first, last, BLOCK, 2 * self._threads, most)]
        step = int(np.clip(_ROW_CELLS // self.cohort.n_features, 256, ROW_BLOCK))
        rows = [(int(offsets[first]), int(offsets[last])) for first, last in users]
        return [(a, min(a + step, last)) for first, last in rows for a in range(first, last, step)]

    def _blocks(
        self,
        work: Callable[[Rows, Rows, npt.NDArray[np.int64]], T],
        spans: Sequence[tuple[int, int]],
        *,
        of_rows: bool = False,
        end: float = math.inf,
    ) -> Iterator[T]:
        cohort = self.cohort
        y = cohort.y if cohort.y is not None else np.zeros(cohort.n_rows, dtype=cohort.dtype)

        def one(span: tuple[int, int]) -> T:
            check_time(end)
            if of_rows:
                rows, bounds = slice(*span), np.array([0, span[1] - span[0]])
            else:
                bounds = cohort.offsets[span[0] : span[1] + 1]
                rows, bounds = slice(int(bounds[0]), int(bounds[-1])), bounds - bounds[0]
            X = cohort.X[rows]
            # Set here because NumPy keeps it per thread. A warning that depends on private numbers would be a leak.
            with np.errstate(all="ignore"):
                return work(np.asarray(X) if isinstance(X, np.ndarray) else X, np.asarray(y[rows]), bounds)

        if self._threads == 1 or len(spans) == 1:
            with one_blas_thread():
                yield from map(one, spans)
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads)
        with one_blas_thread():
            yield from self._pool.map(one, spans)


def one_blas_thread() -> AbstractContextManager[object]:
    """Limit BLAS to one thread, because thread pools nested in those of a shard are 4-60× slower.

    Costs almost nothing if BLAS is limited already.
    """
    libraries = _loaded_libraries()
    if all(library.num_threads == 1 for library in libraries.lib_controllers if library.user_api == "blas"):
        return nullcontext()
    limited: AbstractContextManager[object] = libraries.limit(limits=1, user_api="blas")
    return limited


@cache
def _loaded_libraries() -> ThreadpoolController:
    """Find the loaded BLAS libraries once: it takes milliseconds."""
    return ThreadpoolController()


def _runs(chosen: Chosen) -> list[tuple[int, int]]:
    """Ranges of consecutive chosen users: first, and one past the last."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], chosen, [False]])))
    return [(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def _spans(start: int, stop: int, size: int, share: int, most: int) -> Iterator[tuple[int, int]]:
    """Divide users into spans of whole blocks, long at first and short at the end, so that threads finish together.

    Blocks begin at multiples of their size, and at ``start``: without a sampled user, only that user's block changes.
    """
    if start < stop and start % size:
        end = min(stop, start - start % size + size)
        yield start, end
        start = end
    while start < stop:
        left = -(-(stop - start) // size)
        end = min(stop, start + size * max(1, min(most, left // share)))
        yield start, end
        start = end


def _units(query: Query, X: Rows, offsets: Offsets) -> npt.NDArray[np.int64]:
    """Return the number of units in each block."""
    if query.unit is not Unit.USER:
        return np.array([X.shape[0]])
    users = len(offsets) - 1
    return np.array([min(BLOCK, users - start) for start in range(0, users, BLOCK)])
