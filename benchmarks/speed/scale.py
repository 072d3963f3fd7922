"""How time, memory and bytes written grow: a round and a whole fit of Private FedRep against users, rows, features.

``python -m benchmarks.speed.scale`` (minutes, 6 GB of disk in the folder for temporary files; ``--quick`` for a smoke
test, ``--only`` for one axis, ``--most`` for fewer users). One size changes at a time, and what was measured is kept
after each axis. Each line is a process of its own. Rows lie in a cohort on disk whose pages are cached; times are
processor times of one thread (elapsed times where there are more), the best of several rounds, and of one fit after a
small one that compiles. Memory is what is not a cached file, above that before. An exponent is the slope of log time
against log size over an axis; 1 is linear.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.speed.mixed_effects import Peak, anonymous_megabytes
from benchmarks.tables import RESULTS, keep, table
from tacitly import PrivateFedRep
from tacitly.data.cohort import Cohort
from tacitly.federation.local import LocalFederation
from tacitly.linalg import orthonormal
from tacitly.methods.fedrep.queries import BasisStep
from tacitly.methods.shared.whitening import Whitening
from tacitly.privacy.ledger import Ledger
from tacitly.simd.lazy_njit import MANY

BASE = {"users": 100_000, "rows": 20, "features": 64, "rank": 4, "threads": 1}
AXES: dict[str, tuple[int, ...]] = {
    "rows": (10, 20, 40, 80),
    "features": (16, 64, 256, 512),
    "rank": (1, 2, 4, 8, 16),
    "threads": (1, 2),
    "users": (10_000, 100_000, 1_000_000),
}
ROUNDS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small problems, nothing is written")
    parser.add_argument("--only", choices=AXES, help="one axis; the others are taken from the last results")
    parser.add_argument("--most", type=int, default=1_000_000, help="most users")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measured(**json.loads(options.one))))
        return
    base = BASE | {"users": 500} if options.quick else BASE
    axes: dict[str, tuple[int, ...]] = {"rank": (2, 4), "users": (500, 1000)} if options.quick else AXES
    last = RESULTS / "speed_scale.json"
    lines = json.loads(last.read_text("utf-8"))["lines"] if last.exists() and not options.quick else []
    for axis in axes if options.only is None else (options.only,):
        # Only users are varied for whole fits: the rest of a fit is rounds.
        cases = [base | {axis: size} for size in axes[axis]]
        found = []
        for case in (case for case in cases if case["users"] <= options.most):
            whole = case | {"fits": axis == "users"}
            taken = measured(**whole) if options.quick else alone(whole)
            found.append({"axis": axis, "case": case, "date": datetime.date.today().isoformat(), **taken})
        lines = [line for line in lines if line["axis"] != axis] + found
        data = {"lines": lines, "exponents": exponents(lines)}
        keep("speed_scale", data, as_text(data), quick=options.quick)


def as_text(data: dict[str, Any]) -> str:
    """Return the table, and the exponents."""
    rows = []
    for line in data["lines"]:
        case, fit = line["case"], line["fit"]
        work = case["users"] * case["rows"] * case["features"]
        rows.append(
            [
                line["axis"],
                f"{case['users']:,} × {case['rows']} × {case['features']}, k = {case['rank']}",
                str(case["threads"]),
                f"{1e3 * line['round']:.1f} ms",
                f"{1e9 * line['round'] / work:.3f} ns",
                "" if fit is None else f"{fit['processor']:.1f} s ({fit['seconds']:.1f} s)",
                "" if fit is None else f"{fit['memory']:.0f} MB",
                "" if fit is None else f"{fit['written'] / 1e6:.1f} MB",
                line["date"],
            ]
        )
    header = ["axis", "users × rows × features", "threads", "a round", "per number"]
    header += ["fit: processor time (elapsed)", "memory", "written", "date"]
    slopes = ", ".join(f"{name} {value:.2f}" for name, value in data["exponents"].items())
    return f"{table(header, rows)}\n\nExponents: {slopes}."


def exponents(lines: list[dict[str, Any]]) -> dict[str, float]:
    """Return the slopes of log time against log size."""
    found = {}
    for axis in ("users", "rows", "features", "rank"):
        some = [line for line in lines if line["axis"] == axis]
        if len(some) > 1:
            sizes = np.log([line["case"][axis] for line in some])
            found[f"round, {axis}"] = float(np.polyfit(sizes, np.log([line["round"] for line in some]), 1)[0])
            if all(line["fit"] for line in some):
                times = [math.log(line["fit"]["processor"]) for line in some]
                found[f"fit, {axis}"] = float(np.polyfit(sizes, times, 1)[0])
    return found


def alone(case: dict[str, Any]) -> dict[str, Any]:
    """Measure in a process of its own."""
    words = [sys.executable, "-m", "benchmarks.speed.scale", "--one", json.dumps(case)]
    done = subprocess.run(words, stdout=subprocess.PIPE, check=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def measured(*, users: int, rows: int, features: int, rank: int, threads: int, fits: bool) -> dict[str, Any]:
    """Return the time of a round and what a fit takes."""
    with tempfile.TemporaryDirectory() as folder:
        cohort = on_disk(Path(folder) / "cohort", users, rows, features)
        federation = LocalFederation(cohort, Ledger().run("scale", config={}), threads=threads)
        basis = orthonormal(np.random.default_rng(1).normal(size=(features, rank)))[0]
        query = BasisStep(basis, np.eye(rank), 0.5, Whitening.identity(features))
        times = []
        for _ in range(ROUNDS + 1):
            start = time.perf_counter() if threads > 1 else time.process_time()
            federation._exact_sum(query, 1.0, 2.0**-40)
            times.append((time.perf_counter() if threads > 1 else time.process_time()) - start)
        return {"round": min(times[1:]), "fit": fitted(cohort, rank) if fits else None}


def on_disk(path: Path, users: int, rows: int, features: int) -> Cohort:
    """Write users with a shared basis in pieces of at most 10,000, and open them."""
    rng, many = np.random.default_rng(0), users * rows
    path.mkdir()
    piece = min(users, 10_000)
    X = rng.standard_normal((piece * rows, features), dtype=np.float32)
    heads = rng.standard_normal((piece, features), dtype=np.float32)
    heads[:, 2:] = 0.0
    y = np.einsum("umf,uf->um", X.reshape(piece, rows, features), heads).ravel()
    y += 0.1 * rng.standard_normal(len(y), dtype=np.float32)
    if users <= piece:
        return Cohort.from_offsets(X, y, np.arange(0, many + 1, rows))
    maps = [np.lib.format.open_memmap(path / "X.npy", "w+", np.float32, (many, features))]
    maps += [np.lib.format.open_memmap(path / "y.npy", "w+", np.float32, (many,))]
    for start in range(0, many, len(y)):
        stop = min(start + len(y), many)
        maps[0][start:stop], maps[1][start:stop] = X[: stop - start], y[: stop - start]
    del maps
    X, y = (np.load(path / f"{name}.npy", mmap_mode="r") for name in "Xy")
    return Cohort.from_offsets(X, y, np.arange(0, many + 1, rows))


def fitted(cohort: Cohort, rank: int) -> dict[str, float]:
    """Return what a certified fit takes, heads included, after a small one."""
    few = cohort.take(np.arange(min(cohort.n_users, MANY)))  # as many as kernels are compiled for
    PrivateFedRep(rank=rank, epsilon=1.0).fit(few)
    peak, before, written = Peak(), anonymous_megabytes(), _written()
    start, used = time.perf_counter(), time.process_time()
    PrivateFedRep(rank=rank, epsilon=1.0).fit(cohort)
    taken = {"seconds": time.perf_counter() - start, "processor": time.process_time() - used}
    return {**taken, "memory": peak.stop() - before, "written": float(_written() - written)}


def _written() -> int:
    lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
    return int(next(line for line in lines if line.startswith("wchar")).split()[1])


if __name__ == "__main__":
    main()
