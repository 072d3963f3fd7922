"""Functions are compiled when they are first called, for whoever calls them."""

from __future__ import annotations

import gc
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tacitly.portable import lock_file
from tacitly.simd import one_compiler
from tacitly.simd.lazy_njit import njit


@njit(cache=False)
def twice(x):  # type: ignore[no-untyped-def]
    return 2 * x


@njit(cache=False)
def twice_and_one(x):  # type: ignore[no-untyped-def]
    return twice(x) + 1


def test_python_and_other_kernels_may_call_the_same_function() -> None:
    assert twice_and_one(3) == 7
    assert twice(3) == 6
    assert twice_and_one(0.5) == 2.0
    inside, outside = (twice.dispatcher(inside=inside) for inside in (True, False))
    assert (
        inside.py_func.__qualname__ != outside.py_func.__qualname__
    )  # or one's cached code would be loaded as the other's
    assert len(inside.signatures) == 2
    assert len(outside.signatures) == 1


def test_the_garbage_collector_pauses_while_numba_compiles_and_only_then() -> None:
    from numba.core import event

    seen = []

    class Watching(event.Listener):  # type: ignore[misc]
        def on_start(self, event: object) -> None:
            seen.append(gc.isenabled())

        def on_end(self, event: object) -> None:
            seen.append(gc.isenabled())

    twice(1j)  # pauses are registered with the first function, so before this listener
    with event.install_listener("numba:compile", Watching()):
        twice_and_one(1j)
    assert seen
    assert not any(seen[:-1])  # nested: the last to end is the one around the others
    assert gc.isenabled()
    gc.disable()
    try:
        twice_and_one(np.float32(1))
        assert not gc.isenabled()  # whoever had paused it keeps it paused
    finally:
        gc.enable()


KERNEL = """
from tacitly.simd.lazy_njit import njit

@njit(cache=True)
def inner(x):
    return x + 1

@njit(cache=True)
def kernel(x):
    return 2 * inner(x)
"""

# Compiling lasts until the other process has looked for the kernel and found none, or long enough for it to do so.
CALLER = """
import json, sys, time
from pathlib import Path
from numba.core import event
folder, me = Path(sys.argv[1]), sys.argv[2]
sys.path.insert(0, str(folder))
from kernels import kernel
compiled = []
class Watching(event.Listener):
    def on_start(self, event):
        compiled.append(event.data["dispatcher"].py_func.__name__)
        time.sleep(0.5)
    def on_end(self, event):
        pass
event.register("numba:compile", Watching())
(folder / f"{me}.ready").touch()
while len(list(folder.glob("*.ready"))) < 2:
    time.sleep(0.001)
print(json.dumps([kernel(20), compiled]))
"""


def test_processes_that_start_together_compile_a_kernel_once(tmp_path: Path) -> None:
    (tmp_path / "kernels.py").write_text(KERNEL)
    environment = {**os.environ, "NUMBA_CACHE_DIR": ""}
    started = [
        subprocess.Popen([sys.executable, "-c", CALLER, str(tmp_path), me], stdout=subprocess.PIPE, env=environment)
        for me in ("first", "second")
    ]
    answers = [json.loads(process.communicate()[0]) for process in started]
    assert [value for value, _ in answers] == [42, 42]
    assert sorted(names for _, names in answers) == [[], ["kernel", "inner"]]
    assert not list(tmp_path.rglob("*.lock"))


def test_what_cannot_be_compiled_or_locked_keeps_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from numba.core.errors import TypingError

    (tmp_path / "lonely.py").write_text(KERNEL)
    monkeypatch.syspath_prepend(tmp_path)
    kernel = importlib.import_module("lonely").kernel
    with pytest.raises(TypingError):
        kernel("no number")
    assert not list(tmp_path.rglob("*.lock"))
    assert kernel(1) == 4
    path = next(tmp_path.rglob("*kernel*.nbi"))
    monkeypatch.setattr(one_compiler, "PATIENCE", 0.1)
    lock = lock_file(path.with_name(path.name + ".lock"), remove=True)
    assert kernel(1.5) == 5.0  # although another process seems to compile it, for longer than anybody waits
    lock.release()
    monkeypatch.setattr(one_compiler, "lock_file", refused)
    assert kernel(1j) == 2 + 2j


def refused(*_: object, **__: object) -> None:
    raise PermissionError
