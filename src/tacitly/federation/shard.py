"""A shard: users in this process, summed in blocks on a few threads, with one pass over the rows per release.

Every engine is built from shards: a local federation is one shard, a Ray actor holds one, a Flower node is one. A shard
computes sums on the grid and never draws noise.
"""

from __future__ import annotations

import copy
import itertools
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cache, partial
from typing import TypeVar, cast

import numpy as np
import numpy.typing as npt
from threadpoolctl import ThreadpoolController

from tacitly.arrays import Array, Offsets, Rows
from tacitly.data.cohort import Cohort
from tacitly.federation.base import BLOCK, ROW_BLOCK, Chosen, Query
from tacitly.federation.bounds import check_sums, fused_agrees, one_form
from tacitly.federation.projected import Projected, project_few
from tacitly.federation.query import rehearse, synthetic_rows, widest
from tacitly.federation.scores import Scores
from tacitly.federation.statistics import Statistics, same
from tacitly.portable import cpu_count
from tacitly.privacy.guarantee import Unit
from tacitly.privacy.noise import to_grid
from tacitly.simd.lazy_njit import MANY, few

T = TypeVar("T")


class OutOfTime(Exception):
    """The time for a sum is over: what was summed so far is discarded. No user's numbers are in it."""


Numbers = TypeVar("Numbers", bound=npt.NDArray[np.floating])

_ROW_CELLS = 1 << 22  # numbers in a block of rows: 32 MiB of float64
_AT_ONCE = 16  # users in a batch of a node: public, because last bits may depend on the shape of a batch
_NUMBERS = 1 << 22  # in an array with a row for each user of such a batch: 32 MiB
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
        # One sum at a time: statistics of the next are written over those that this one reads.
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
        of_statistics = form is not query and isinstance(form, _OfStatistics)
        if of_statistics:
            # Bugs surface here; below, no exception may, because it could depend on private numbers.
            rehearse(form, *synthetic_rows(self.cohort.n_features))
        if self._plain or not fused_agrees(query, self.cohort.n_features, bound, form):
            # Where a batch is the definition, several users at once are as plain as one.
            together = self._plain and one_form(query, bound)
            plain = _Few(query, _at_once(query, self.cohort.n_features), end) if together else _Plain(query, end)
            return self._sum(query, plain, bound, grid, chosen, end)
        in_arrays = not of_statistics and few(self.cohort.n_users, self.cohort.n_features)
        statistics = query.statistics if of_statistics else query.array_statistics if in_arrays else None
        shard = None if statistics is None else self._with(statistics, end)
        if shard is None:
            if math.isfinite(end) and form is query and one_form(query, bound):
                form = _Few(query, _at_once(query, self.cohort.n_features), end)  # a look at the clock every few users
            return self._sum(query, form, bound, grid, chosen, end)
        answered = _OfStatistics(query) if of_statistics else _OfArrays(query)
        return shard._sum(query, answered, bound, grid, chosen, end)

    def _sum(
        self, query: Query, form: Query, bound: float, grid: float, chosen: Chosen | None, end: float = math.inf
    ) -> npt.NDArray[np.int64]:
        """Return the sum by one form of a query, whose bound is enforced whatever form it is."""

        def block_sums(X: Rows, y: Rows, offsets: Offsets) -> npt.NDArray[np.int64]:
            units = _units(query, X, offsets)
            shape = len(units), query.coordinates
            sums = _attempt(lambda: form.block_sums(X, y, offsets, bound, BLOCK), shape)
            if sums is None:
                sums = _without_failing_units(form, X, y, offsets, bound, end)
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
        starts = list(range(0, max(1, users - size + 1), size))  # the last span takes what is left
        spans = list(itertools.pairwise([*starts, users]))
        stacked = room
        for (first, last), part in zip(spans, self._blocks(work, spans, end=end), strict=True):
            if stacked is None:  # filled in place: a list of all parts would hold everything twice
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
            # A source of the same kind that is not there would be replaced at once: not kept, then.
            passing = type(source) is type(statistics) and not same(kept, source)
            base = self if source is None else None if passing else self._with(source, end)
            self._statistics.pop(type(statistics), None)  # so that two of a kind are never held at once
            for kind, (other, _, _) in list(self._statistics.items()):
                if type(other.source) is type(statistics):  # they came from what is replaced now
                    del self._statistics[kind]
            if room is not None and room.shape != (self.cohort.n_users, statistics.width):
                room = None
            try:
                where, work = (self, statistics.of_rows) if base is None else (base, statistics)
                # Into the same memory: to ask the system for other pages takes longer than to compute what is in them.
                rows = where._map(work, end, room)
            except (MemoryError, OutOfTime):
                raise
            except Exception:  # no exception may depend on private numbers: sums leave out who fails
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
            _check_time(end)
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
    """Limit BLAS to one thread, because thread pools nested in ours are 4-60× slower.

    Costs almost nothing if BLAS is limited already.
    """
    libraries = _loaded_libraries()
    if all(library.num_threads == 1 for library in libraries.lib_controllers if library.user_api == "blas"):
        return nullcontext()
    limited: AbstractContextManager[object] = libraries.limit(limits=1, user_api="blas")
    return limited


def form_of(query: Query, n_users: int, n_features: int) -> Query:
    """Return the form that sums so many users, wherever it agrees with the definition: public sizes decide."""
    if query.statistics is not None and n_users >= MANY:
        return _OfStatistics(query, query.statistics)
    return query.form_for(n_users, n_features)


class _OfStatistics(Query):
    """A query about users whose rows are their statistics, or whose ``statistics`` are computed block by block."""

    def __init__(self, query: Query, statistics: Statistics | None = None) -> None:
        self._query, self._statistics = query, statistics

    @property
    def coordinates(self) -> int:
        return self._query.coordinates

    def contribution(self, X: Rows, y: Rows) -> Array:
        return self.block_sum(X, y, np.array([0, len(X)]), 1.0)

    def block_sum(self, X: Rows, y: Rows, offsets: Offsets, bound: float) -> Array:
        return np.asarray(self.block_sums(X, y, offsets, bound, len(offsets) - 1)[0])

    def block_sums(self, X: Rows, y: Rows, offsets: Offsets, bound: float, size: int) -> Array:
        rows = _one_each(X, offsets) if self._statistics is None else self._statistics.of_rows(X, y, offsets)
        return self._query.sums_of(np.asarray(rows, dtype=np.float64), bound, size)


class _OfArrays(_OfStatistics):
    """A query about users whose rows are what its definition is computed from."""

    def block_sums(self, X: Rows, y: Rows, offsets: Offsets, bound: float, size: int) -> Array:
        return self._query.sums_at(np.asarray(_one_each(X, offsets), dtype=np.float64), bound, size)


def _one_each(X: Rows, offsets: Offsets) -> Rows:
    """Return one row per user, zeros for a user who was left out: the others keep their places, and their blocks."""
    present = np.diff(offsets) > 0
    if present.all():
        return X
    rows = np.zeros((len(present), X.shape[1]), dtype=X.dtype)
    rows[present] = X
    return rows


class _Plain(Query):
    """A query evaluated by its NumPy definition, one contribution at a time, until ``end``."""

    def __init__(self, query: Query, end: float) -> None:
        self._query, self.unit, self._end = query, query.unit, end

    @property
    def coordinates(self) -> int:
        return self._query.coordinates

    def contribution(self, X: Rows, y: Rows) -> Array:
        return self._query.contribution(X, y)

    def _safely(self, X: Rows, y: Rows) -> Array:
        _check_time(self._end)
        return super()._safely(X, y)


class _Few(_Plain):
    """A query whose batch is its definition, evaluated for a few users at a time.

    A few, because whoever asks chooses the numbers: a block of users might need a thousand times the memory of one. And
    if one user's numbers make a batch fail, the others in it are summed again, not a block: little of that is seen in
    the time that an answer takes.
    """

    def __init__(self, query: Query, at_once: int, end: float) -> None:
        super().__init__(query, end)
        self._at_once = at_once

    def block_sum(self, X: Rows, y: Rows, offsets: Offsets, bound: float) -> Array:
        total = np.zeros(self.coordinates)
        for start in range(0, len(offsets) - 1, self._at_once):
            _check_time(self._end)
            bounds = offsets[start : start + self._at_once + 1]
            rows = slice(int(bounds[0]), int(bounds[-1]))
            few = X[rows], y[rows], bounds - bounds[0], bound
            found = _attempt(partial(self._query.block_sum, *few), total.shape)
            total += _without_failing_units(self._query, *few, self._end)[0] if found is None else found
        return total


def _at_once(query: Query, n_features: int) -> int:
    """Return how many users' contributions, or matrices over all features, are held at a time: public numbers."""
    return max(1, min(_AT_ONCE, _NUMBERS // max(widest(query), (n_features + 1) ** 2)))


@cache
def _loaded_libraries() -> ThreadpoolController:
    """Find the loaded BLAS libraries once: it takes milliseconds."""
    return ThreadpoolController()


def _runs(chosen: Chosen) -> list[tuple[int, int]]:
    """Ranges of consecutive chosen users: first, and one past the last."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], chosen, [False]])))
    return [(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def _spans(start: int, stop: int, size: int, share: int, most: int) -> Iterator[tuple[int, int]]:
    """Divide users into spans of whole blocks, long at first and short at the end, so that threads finish together."""
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


def _check_time(end: float) -> None:
    if time.monotonic() > end:
        raise OutOfTime("the time for this sum is over.")


def _without_failing_units(query: Query, X: Rows, y: Rows, offsets: Offsets, bound: float, end: float) -> Array:
    """Sum blocks again, leaving out units whose numbers make the fused form fail or return a non-finite sum.

    Then the same blocks are summed as if those users had no rows, or with zeros for those rows if the unit is the row
    (such a row counts as one of zeros, and moves a sum by no more than any other): batches keep their shapes, and with
    them every other unit's numbers, to the last bit. (Computed alone, a unit's numbers may differ in the last bits from
    those computed among others, and a query may amplify that.)
    """
    bounds = query.bounds(X, offsets)
    units, by_user = len(bounds) - 1, query.unit is Unit.USER
    size = BLOCK if by_user else max(units, 1)
    shape = -(-units // size), query.coordinates
    usable, parts = np.ones(units, dtype=bool), np.zeros(shape)
    for block in range(shape[0]):
        span = block * size, min((block + 1) * size, units)
        _sum_parts(query, X, y, bounds, bound, span, usable, parts[block], end)
    if by_user:
        counts = np.diff(offsets)
        kept = np.repeat(usable, counts)
        emptied = np.concatenate([[0], np.cumsum(np.where(usable, counts, 0))])
        sums = _attempt(lambda: query.block_sums(X[kept], y[kept], emptied, bound, BLOCK), shape)
    else:
        zeroed, targets = _with_zeros(X, ~usable), np.where(usable, y, 0.0)
        sums = _attempt(lambda: query.block_sums(zeroed, targets, offsets, bound, BLOCK), shape)
    return parts if sums is None else sums


def _sum_parts(
    query: Query,
    X: Rows,
    y: Rows,
    bounds: Offsets,
    bound: float,
    span: tuple[int, int],
    usable: npt.NDArray[np.bool_],
    total: Array,
    end: float,
) -> None:
    """Add the parts of a span of units that can be summed, and mark the units that cannot, by halving what fails.

    One unit that fails costs as much as summing the span twice, because halves become shorter; f of them f·log n parts.
    """
    spans = [span]
    while spans:
        _check_time(end)
        first, last = spans.pop()
        start, stop = int(bounds[first]), int(bounds[last])
        own = bounds[first : last + 1] - start if query.unit is Unit.USER else np.array([0, stop - start])
        part = _attempt(partial(query.block_sum, X[start:stop], y[start:stop], own, bound), total.shape)
        if part is not None:
            total += part
        elif last - first == 1:
            usable[first] = False
        else:
            middle = (first + last) // 2
            spans += [(first, middle), (middle, last)]


def _with_zeros(X: Rows, rows: npt.NDArray[np.bool_]) -> Rows:
    """Return a copy in which these rows are zero; in a sparse matrix too, with the same entries."""
    copied = X.copy()
    if isinstance(copied, np.ndarray):
        copied[rows] = 0.0
    else:
        copied.data[np.repeat(rows, np.diff(copied.indptr))] = 0.0
    return copied


def _attempt(work: Callable[[], Array], shape: tuple[int, ...]) -> Array | None:
    """Return finite sums, or None if private numbers make the work fail, because no exception may depend on them.

    The result and even its shape may depend on those numbers, so both are checked. Running out of memory is different:
    a sum that lacks the users for whom there was no memory would be certified and useless, so that is raised. So is the
    end of the time for a sum.
    """
    try:
        sums = np.asarray(work(), dtype=np.float64)
        return sums if sums.shape == shape and np.isfinite(sums).all() else None
    except (MemoryError, OutOfTime):
        raise
    except Exception:
        return None
