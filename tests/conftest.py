"""Shared set-up of all tests: import paths, threads per library, compiled kernels, and the order of tests."""

from __future__ import annotations

import ast
import atexit
import gc
import hashlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

HERE = Path(__file__).parent
SOURCE = HERE.parent / "src" / "tacitly"
sys.path[:0] = [str(HERE / "support"), str(HERE), str(HERE.parent)]  # helpers, other tests, benchmarks and tools

# Workers share few cores, and a second thread of BLAS waits for the first in a busy loop: some tests took twenty times
# the processor time. Tests that sums do not depend on it set two themselves: tests/federation/test_release.py.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Ray gives its workers the smallest share of a busy machine: beside other tests, answers took seconds.
os.environ.setdefault("RAY_worker_niceness", "0")

# Keys and what was seen of ledgers belong to the tests, not to whoever runs them. Workers inherit the folder.
if "TACITLY_HOME" not in os.environ:
    os.environ["TACITLY_HOME"] = tempfile.mkdtemp(prefix="tacitly-home-")
    atexit.register(shutil.rmtree, os.environ["TACITLY_HOME"], ignore_errors=True)

# The first example may import a library, and the first text on a machine makes Hypothesis build a table of all
# characters: durations of examples say nothing about the code.
settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")

FIRST = (
    # This file compiles most kernels, while the other workers run tests that need few of them and take as long.
    "tests/methods/test_sensitivity.py",
    "tests/neural/low_rank_sparse/",
    "tests/neural/engine/",
    "tests/neural/centaur/",
    "tests/neural/networks/",
    "tests/privacy/",
    # Not before kernels are compiled: processes that start together would each compile one that is not there yet. Not
    # later either: these wait more than they compute, one after the other, and would be left alone at the end.
    "processes",
    "tests/neural/",
    "tests/methods/",
    # Then the slowest files, so that no worker is left alone with one at the end.
    "tests/audit/",
    "tests/federation/",
    "tests/data/",
    "tests/test_benchmarks.py",
)
LIBRARIES = ("torch", "sklearn.utils.estimator_checks", "scipy.stats", "pandas", "polars", "ray", "flwr.app",
             "matplotlib.pyplot", "numba", "dp_accounting.pld", "opendp.prelude", "selenium.webdriver")  # fmt: skip
PROCESSES = {
    "processes, a cluster": ("tests/federation/test_ray.py", "engines_runs"),
    "processes, sites": ("tests/deployment/test_processes.py", "two_sites]"),
}


def group_of(name: str) -> str:
    """Return the group of a test; a group runs in one worker: the tests of a file share kernels and fixtures.

    Tests that start many processes are two groups, so that there is one cluster and not one per worker; one group are
    the files that need the largest kernels of networks, which two workers would compile twice. Benchmarks, examples
    and audits are slow and share nothing: each is a group of its own.
    """
    for group, parts in PROCESSES.items():
        if any(part in name for part in parts):
            return group
    if name.startswith("tests/browser/"):
        return "browser"  # one browser, and not one per worker
    if name.startswith(together := "tests/neural/low_rank_sparse/"):
        return together
    file = name.split("::")[0]
    return name if file in ("tests/test_benchmarks.py", "tests/audit/test_report.py") else file


@pytest.fixture(scope="module", autouse=True)
def _left_as_found() -> Iterator[None]:
    """Undo after each file what its tests changed in the process (Ray replaces SIGTERM, the command SIGINT)."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    environment, folder, path = dict(os.environ), Path.cwd(), list(sys.path)
    # Tests number their users from 0: to the command, those of another file would be the same people.
    os.environ["TACITLY_HOME"] = tempfile.mkdtemp(prefix="home-", dir=os.environ["TACITLY_HOME"])
    yield
    for number, handler in handlers.items():
        if handler is not None:  # None: not set from Python
            signal.signal(number, handler)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.path[:] = path


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # once, before there are workers
        forget_stale_kernels()
        if config.getoption("numprocesses", None):
            import_first()
    if config.getoption("cov_source", None):
        compile_untraced()


def compile_untraced() -> None:
    """Pause coverage's tracing while Numba compiles: no measured code runs then, and tracing would add half the time.

    The tracer sees ``on_start`` begin and ``on_end`` end, so its stack of calls stays right. It may miss the next line
    of a function that waited for its kernel; later calls of the function count.
    """
    from numba.core import event

    class Untraced(event.Listener):  # type: ignore[misc]
        def __init__(self) -> None:
            self.paused: list[Any] = []  # compilation nests, and holds one lock

        def on_start(self, event: Any) -> None:
            tracer = sys.gettrace()
            self.paused.append(tracer if type(tracer).__name__ == "CTracer" else None)
            if self.paused[-1] is not None:
                tracer.stop()  # type: ignore[union-attr]

        def on_end(self, event: Any) -> None:
            tracer = self.paused.pop()
            if tracer is not None:
                tracer.start()

    event.register("numba:compile", Untraced())


def import_first() -> None:
    """Import the large libraries once in a fresh environment, so that not every worker compiles their bytecode."""
    found = importlib.util.find_spec(LIBRARIES[0])
    if found is not None and found.cached is not None and not Path(found.cached).exists():
        lines = (f"with contextlib.suppress(ImportError): import {name}" for name in LIBRARIES)
        subprocess.run([sys.executable, "-c", "\n".join(["import contextlib", *lines])], check=False)


def forget_stale_kernels() -> None:
    """Delete compiled kernels if any kernel's code has changed.

    Numba notices changes in a kernel's own file, but not in what the kernel calls in other files. Comments and
    docstrings do not count.
    """
    files = [path for path in sorted(SOURCE.rglob("*.py")) if "tacitly.simd" in path.read_text(encoding="utf-8")]
    seen = hashlib.sha256("".join(code_of(path) for path in files).encode()).hexdigest()
    stamp = SOURCE / "__pycache__" / "kernels.sha256"
    if stamp.exists() and stamp.read_text() == seen:
        return
    for path in SOURCE.rglob("*.nb[ic]"):
        path.unlink()
    stamp.parent.mkdir(exist_ok=True)
    stamp.write_text(seen)


def code_of(path: Path) -> str:
    """Return a module's syntax tree without its docstrings, as text."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            del node.body[0]
    return ast.dump(tree)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def rank(item: pytest.Item) -> int:
        group = group_of(item.nodeid)
        return next((rank for rank, first in enumerate(FIRST) if group.startswith(first)), len(FIRST))

    items.sort(key=rank)


def pytest_collection_finish() -> None:
    """Keep the garbage collector away from libraries and tests, which stay until the end, and let it run less often."""
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling

    class Groups(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    config.option.loadscopereorder = False  # xdist's order is by number of tests, not by duration
    return Groups(config, log)
