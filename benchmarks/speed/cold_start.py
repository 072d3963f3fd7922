"""How long a first fit takes: after a fresh install, and in the next process, from Python and by the command.

``python -m benchmarks.speed.cold_start`` (two minutes; ``--quick`` for a smoke test). A fresh install has no compiled
kernels, so every first process gets an empty folder for them (``NUMBA_CACHE_DIR``); bytecode of Python files is there,
as pip leaves it: a fit beforehand writes it (``PYTHONPYCACHEPREFIX``). Times are those of whole processes: starting
Python, imports, the data and the fit.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.tables import keep, table

USERS, ROWS, FEATURES = 5000, 10, 8
GOALS = {"import": 0.15, "first": 5.0, "second": 2.0}
METHODS = {
    "MixedEffects": "MixedEffects(epsilon=1.0)",
    "PrivateFedRep": "PrivateFedRep(rank=2, epsilon=1.0)",
    "PrivateAltMin": "PrivateAltMin(rank=2, epsilon=1.0)",
    "PrivateFedRep, two classes": "PrivateFedRep(rank=2, epsilon=1.0, loss='logistic')",
    "PrivateFedRep, three classes": "PrivateFedRep(rank=2, epsilon=1.0, loss='logistic', classes=(0, 1, 2))",
    "LowRankSparse": "LowRankSparse(2, 2, epsilon=1.0)",
}
COMMANDS = {"MixedEffects": ["mixed-effects"], "PrivateFedRep": ["fedrep", "--rank", "2"]}
LIBRARY = """
import sys, numpy, tacitly
data = numpy.load(sys.argv[1])
y = data["y"] if {classes} < 2 else numpy.digitize(data["y"], numpy.arange({classes} - 1))
tacitly.{model}.fit(data["X"], y, data["users"])
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few users, nothing is written")
    options = parser.parse_args()
    lines: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        write_rows(Path(folder), 50 if options.quick else USERS)
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = str(Path(folder) / "bytecode")
        lines.append({"what": "import tacitly", "way": "library", **timed_import(1 if options.quick else 9)})
        ways = (
            [("MixedEffects", "library")]
            if options.quick
            else [(m, w) for m in METHODS for w in ("library", "command") if w == "library" or m in COMMANDS]
        )
        for method, way in ways:
            if not options.quick:
                first_and_second(Path(folder), method, way, runs=("first",))
            lines.append({"what": method, "way": way, **first_and_second(Path(folder), method, way)})
    keep("speed_cold_start", {"lines": lines}, as_text({"lines": lines}), quick=options.quick)


def as_text(data: dict[str, Any]) -> str:
    """Return the table."""
    rows = []
    for line in data["lines"]:
        if "import" in line:
            rows.append([line["what"], line["way"], f"{line['import']:.3f} s", "", ""])
            continue
        times = [f"{line[which]:.1f} s ({line[f'{which}_processor']:.1f} s)" for which in ("first", "second")]
        rows.append([f"fit: {line['what']}", line["way"], "", *times])
    note = (
        f"{USERS:,} users × {ROWS} rows × {FEATURES} features; wall time (processor time) of whole processes. "
        f"Goals: import {GOALS['import']} s, first {GOALS['first']:.0f} s, second {GOALS['second']:.0f} s."
    )
    return f"{table(['what', 'through', 'import', 'first process', 'second process'], rows)}\n\n{note}"


def timed_import(times: int) -> dict[str, float]:
    """Return the median processor time of the import, without starting Python."""
    program = "import time; t = time.process_time(); import tacitly; print(time.process_time() - t)"
    found = [float(subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout)
             for _ in range(times)]  # fmt: skip
    return {"import": float(np.median(found))}


def write_rows(folder: Path, users: int) -> None:
    """Write the same rows for both ways: as arrays, and as a table."""
    rng = np.random.default_rng(0)
    X, owner = rng.normal(size=(users * ROWS, FEATURES)), np.repeat(np.arange(users), ROWS)
    weights = rng.normal(size=(users, 2)) @ rng.normal(size=(2, FEATURES))
    y = np.einsum("ij,ij->i", X, weights[owner]) + 0.1 * rng.normal(size=len(X))
    np.savez(folder / "rows.npz", X=X, y=y, users=owner)
    header = ",".join(["person", *(f"x{j}" for j in range(FEATURES)), "score"])
    np.savetxt(
        folder / "rows.csv", np.column_stack([owner, X, y]), delimiter=",", header=header, comments="", fmt="%.6g"
    )


def first_and_second(
    folder: Path, method: str, way: str, runs: tuple[str, ...] = ("first", "second")
) -> dict[str, float]:
    """Run the same fit in two processes, the first of them without compiled kernels."""
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as kernels, tempfile.TemporaryDirectory() as home:
        environment = {**os.environ, "NUMBA_CACHE_DIR": kernels, "TACITLY_HOME": home}
        for which in runs:
            if way == "library":
                classes = {"two": 2, "three": 3}.get(method.split(", ")[-1].split()[0], 0)
                program = LIBRARY.format(model=METHODS[method], classes=classes)
                words = [sys.executable, "-c", program, str(folder / "rows.npz")]
            else:
                words = [sys.executable, "-m", "tacitly", "fit", str(folder / "rows.csv")]
                words += ["--user", "person", "--target", "score", "--method", *COMMANDS[method], "--epsilon", "1"]
                words += ["--out", str(Path(home) / f"model-{which}"), "--ledger", str(Path(home) / f"{which}.ledger")]
            before, began = os.times(), time.perf_counter()
            subprocess.run(words, env=environment, capture_output=True, check=True, cwd=home)
            found[which], after = time.perf_counter() - began, os.times()
            spent = after.children_user + after.children_system - before.children_user - before.children_system
            found[f"{which}_processor"] = spent
    return found


if __name__ == "__main__":
    main()
