"""Write rows to files in their final order, although they arrive in any order, with little memory and few writes.

Rows are collected until a buffer is full, and the buffer is written as a *run*, sorted by final position. At the end
the final files are filled one buffer at a time: the rows of one stretch of a file are one slice of every run. So every
byte is written twice, in long sequential pieces. A buffer that contains exactly the rows of one stretch is written
there directly. So a table that is already in order, or that fits into the buffer, is written once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import numpy as np

from tacitly.data.user_ids import Positions
from tacitly.data.validation import Array

Piece = tuple[Positions, Sequence[Array]]
"""Final positions of some rows, and the values of each array at these rows."""

Progress = Callable[[str, float], None]
"""Called with the name of the current step and its completed fraction, at most 1; 0 if the fraction is not known."""

_BUFFER_BYTES = 1 << 23, 1 << 27  # minimum and maximum; in between, 1/32 of all bytes
_PIECE_BYTES = 1 << 21
_INDEX = np.empty(1, dtype=np.int64)


def write_in_order(pieces: Iterable[Piece], maps: Sequence[np.memmap[Any, Any]], progress: Progress) -> None:
    """Write pieces, which together contain every row once, to the files of these memory maps.

    Nothing is written through the maps themselves: pages changed in random order would be written to disk repeatedly.
    """
    rows, path = len(maps[0]), Path(f"{maps[0].filename}.runs")
    row_bytes = 8 + sum(array.strides[0] for array in maps)
    least, most = _BUFFER_BYTES
    size = max(1, min(max(least, rows * row_bytes // 32), most) // row_bytes)
    with ExitStack() as opened:
        files = [opened.enter_context(Path(str(array.filename)).open("r+b")) for array in maps]
        rest = _Rest(opened.enter_context(path.open("w+b")), rows, size)
        final = _Final(files, maps)
        seen = 0
        for positions, values in _buffers(pieces, maps, min(size, rows)):
            order = np.argsort(positions)
            first, last = positions[order[0]], positions[order[-1]]
            if last - first + 1 == len(order):
                final.write(int(first), values, order)
            else:
                rest.add(positions, values, order)
            seen += len(order)
            progress("reading rows", seen / rows)
        for start, filled in rest.stretches(values):
            final.write(start, values, filled)
            progress("putting rows in order", (start + len(filled)) / rows)
    path.unlink()


def _buffers(pieces: Iterable[Piece], maps: Sequence[Array], size: int) -> Iterator[tuple[Positions, list[Array]]]:
    """Yield as many rows as fit into the buffers, which are reused; the last arrays yielded have full size."""
    places = np.empty(size, dtype=np.int64)
    values = [np.empty((size, *array.shape[1:]), array.dtype) for array in maps]
    held = 0
    for positions, given in pieces:
        start = 0
        while start < len(positions):
            taken = min(size - held, len(positions) - start)
            places[held : held + taken] = positions[start : start + taken]
            for own, other in zip(values, given, strict=True):
                own[held : held + taken] = other[start : start + taken]
            held, start = held + taken, start + taken
            if held == size:
                yield places, values
                held = 0
    if held:
        yield places[:held], values


class _Final:
    """The final files, which can be written at any row."""

    def __init__(self, files: Sequence[IO[bytes]], maps: Sequence[np.memmap[Any, Any]]) -> None:
        self._files, self._maps = files, maps

    def write(self, start: int, values: Sequence[Array], order: Positions) -> None:
        for file, array, own in zip(self._files, self._maps, values, strict=True):
            file.seek(array.offset + start * array.strides[0])
            _write(file, own, order)


class _Rest:
    """Runs of rows, sorted by final position, in one file, and where stretches of the final files begin in them."""

    def __init__(self, file: IO[bytes], rows: int, size: int) -> None:
        self._file, self._size = file, size
        self._starts = np.arange(0, rows, size)
        self._ends = np.minimum(self._starts + size, rows)
        self._runs: list[tuple[int, int, Positions]] = []

    def add(self, positions: Positions, values: Sequence[Array], order: Positions) -> None:
        self._runs.append((self._file.tell(), len(order), np.searchsorted(positions, self._starts, sorter=order)))
        for array in (positions, *values):
            _write(self._file, array, order)

    def stretches(self, values: Sequence[Array]) -> Iterator[tuple[int, Positions]]:
        """Fill the buffers one stretch at a time; yield its first row, and which of its rows are to be written."""
        for number, start in enumerate(self._starts):
            filled = np.zeros(self._ends[number] - start, dtype=bool)
            for begin, rows, cuts in self._runs:
                last = rows if number + 1 == len(cuts) else cuts[number + 1]
                at = np.concatenate([_INDEX[:0], *self._read(begin, cuts[number], last, _INDEX)]) - start
                filled[at] = True
                begin += rows * 8
                for array in values:
                    done = 0
                    for part in self._read(begin, cuts[number], last, array):
                        array[at[done : done + len(part)]] = part
                        done += len(part)
                    begin += rows * array.strides[0]
            # Rows that were written directly are missing here; that may be all of them.
            for first, last in _stretches_of(filled):
                yield int(start) + first, np.arange(first, last)

    def _read(self, begin: int, first: int, last: int, like: Array) -> Iterator[Array]:
        """Yield rows of one array of a run in small pieces."""
        width = like.strides[0]
        self._file.seek(begin + first * width)
        for rows in _steps(last - first, width):
            data = self._file.read(len(rows) * width)
            yield np.frombuffer(data, like.dtype).reshape(-1, *like.shape[1:])


def _stretches_of(mask: Array) -> Iterator[tuple[int, int]]:
    """Yield first and last + 1 of each stretch of True values.

    >>> list(_stretches_of(np.array([True, True, False, True])))
    [(0, 2), (3, 4)]
    """
    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]]).astype(np.int8)))
    return zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)


def _write(file: IO[bytes], values: Array, order: Positions) -> None:
    for rows in _steps(len(order), values.strides[0]):
        file.write(values[order[rows.start : rows.stop]].data)


def _steps(rows: int, width: int) -> Iterator[range]:
    """Yield ranges of rows of ``width`` bytes each, small enough to copy."""
    step = max(1, _PIECE_BYTES // width)
    return (range(start, min(start + step, rows)) for start in range(0, rows, step))
