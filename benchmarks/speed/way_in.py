"""From a table to a cohort on disk, against what Arrow needs to read the table and to write the same bytes.

``python -m benchmarks.speed.way_in`` (minutes, 2.5 GB of disk in the folder for temporary files; ``--quick`` for a
smoke test). Rows are in random order. Each program runs alone in a process of its own: time, processor time, the peak
of memory that is not a cached file, and bytes written as the system counts them (Linux).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.tables import keep, table

ROWS, FEATURES, PIECE = 20, 64, 100_000
KINDS = ("parquet", "csv")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small table, nothing is written")
    parser.add_argument(
        "--users", type=int, default=100_000, help="users of the Parquet file; a tenth for the CSV file"
    )
    parser.add_argument("--kind", choices=KINDS, action="append", help="these only")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(watched(*options.one)))
        return
    users = 500 if options.quick else options.users
    lines = []
    for kind in options.kind or KINDS:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"rows.{kind}"
            many = users if kind == "parquet" else users // 10
            write_table(path, many)
            lines += [
                {"kind": kind, "users": many, "bytes": path.stat().st_size, **run(program, path)}
                for program in ("arrow", "tacitly")
            ]
    data = {"lines": lines}
    keep("speed_way_in", data, as_text(data), quick=options.quick)


def as_text(data: dict[str, Any]) -> str:
    """Return the table."""
    rows = []
    for line in data["lines"]:
        floor = next(other for other in data["lines"] if other["kind"] == line["kind"])
        rows.append(
            [
                f"{line['users']:,} × {ROWS} × {FEATURES}, {line['kind']}, {line['bytes'] / 1e6:.0f} MB",
                "Arrow: read, write" if line["program"] == "arrow" else "tacitly: cohort on disk",
                f"{line['seconds']:.1f} s",
                f"{line['processor']:.1f} s",
                f"{line['processor'] / floor['processor']:.1f}×",
                f"{line['memory'] / 1e6:.0f} MB",
                f"{line['written'] / 1e6:.0f} MB",
                f"{line['written'] / line['payload']:.2f}",
            ]
        )
    header = ["table", "program", "time", "processor time", "ratio", "memory", "written", "times the rows"]
    note = "The ratio is one of processor times; times vary with what else the machine does. Memory: no cached files."
    return f"{table(header, rows)}\n\n{note}"


def write_table(path: Path, users: int) -> None:
    """Write a table of float32 numbers in random order of users."""
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    rng, writer = np.random.default_rng(0), None
    owners = rng.permutation(users * ROWS) // ROWS
    for start in range(0, len(owners), PIECE):
        some = owners[start : start + PIECE]
        X = rng.standard_normal((FEATURES + 1, len(some)), dtype=np.float32)
        names = ["user", *(f"x{j}" for j in range(FEATURES)), "y"]
        piece = pa.table([pa.array(some), *(pa.array(column) for column in X)], names=names)
        if writer is None:
            make = pa.csv.CSVWriter if path.suffix == ".csv" else pa.parquet.ParquetWriter
            writer = make(path, piece.schema)
        writer.write_table(piece)
    assert writer is not None
    writer.close()


def run(program: str, path: Path) -> dict[str, Any]:
    """Run one program in a process of its own."""
    words = [sys.executable, "-m", "benchmarks.speed.way_in", "--one", program, str(path)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def watched(program: str, path: str) -> dict[str, Any]:
    """Run one program here, and return what it took."""
    work = {"arrow": arrow, "tacitly": cohort}[program]
    work(Path(path), warm=True)
    peak, written, done = [0], _written(), threading.Event()

    def watch() -> None:
        while not done.wait(0.01):
            peak[0] = max(peak[0], _anonymous())

    threading.Thread(target=watch, daemon=True).start()
    start, processor = time.perf_counter(), time.process_time()
    payload = work(Path(path))
    taken = {"seconds": time.perf_counter() - start, "processor": time.process_time() - processor}
    done.set()
    return {"program": program, **taken, "memory": peak[0], "written": _written() - written, "payload": payload}


def arrow(path: Path, *, warm: bool = False) -> int:
    """Read the table in batches, and write the same numbers to a file."""
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    if warm:
        return 0
    batches = pa.csv.open_csv(path) if path.suffix == ".csv" else pa.parquet.ParquetFile(path).iter_batches()
    size, writer = 0, None
    for batch in batches:
        writer = writer or pa.ipc.new_file(path.with_name("copy.arrow"), batch.schema)
        writer.write_batch(batch)
        size += batch.nbytes
    assert writer is not None
    writer.close()
    return size


def cohort(path: Path, *, warm: bool = False) -> int:
    """Write a cohort."""
    from tacitly.data.cohort import Cohort

    if warm:
        return 0
    made = Cohort.from_table(path, user="user", target="y", folder=path.with_name("cohort"))
    assert made.y is not None
    return made.X.nbytes + made.y.nbytes


def _anonymous() -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("RssAnon")).split()[1])


def _written() -> int:
    lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
    return int(next(line for line in lines if line.startswith("wchar")).split()[1])


if __name__ == "__main__":
    main()
