"""Run independent fits, several at a time, and store every row as soon as it is computed."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

Job = dict[str, Any]
Row = dict[str, Any]


def several(
    function: Callable[[Job], list[Row]], jobs: Sequence[Job], workers: int, out: Path | None = None
) -> list[Row]:
    """Return all rows, in the order of the jobs; print them as they come and append them to ``out`` as JSON lines.

    Jobs and rows are plain data; ``function`` is a module's own, so that other processes can import it.
    """
    found: dict[int, list[Row]] = {}
    for number, rows in _done(function, jobs, workers):
        found[number] = rows
        for row in rows:
            print(row, flush=True)
            if out is not None:
                with out.open("a") as file:
                    file.write(json.dumps(row) + "\n")
    return [row for number in sorted(found) for row in found[number]]


def _done(function: Callable[[Job], list[Row]], jobs: Sequence[Job], workers: int) -> Iterator[tuple[int, list[Row]]]:
    if workers < 2:
        yield from ((number, function(job)) for number, job in enumerate(jobs))
        return
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        pending, failures = {pool.submit(function, job): number for number, job in enumerate(jobs)}, []
        for done in as_completed(pending):
            if (error := done.exception()) is None:
                yield pending[done], done.result()
            else:  # the others are hours of work: they come first
                print(f"failed: {jobs[pending[done]]}: {error!r}", flush=True)
                failures.append(error)
    if failures:
        raise failures[0]
