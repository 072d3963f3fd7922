"""Platform-dependent calls: each works with the platform's functions and without them."""

from __future__ import annotations

import ast
import errno
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tacitly import portable
from tacitly.privacy.guarantee import Budget, GaussianEvent, Sensitivity
from tacitly.privacy.ledger import Ledger, RunInUse

SOURCE = Path(portable.__file__).parent
POSIX_ONLY = {
    "fork",
    "getuid",
    "geteuid",
    "killpg",
    "pwrite",
    "pread",
    "register_at_fork",
    "sched_getaffinity",
    "setsid",
}


def windows_locking() -> SimpleNamespace:
    """Stand-in for msvcrt: byte-range locks that fail with "permission denied", made from flock."""
    fcntl = pytest.importorskip("fcntl")

    def locking(handle: int, mode: int, count: int) -> None:
        assert (mode, count) == (2, 1)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PermissionError(errno.EACCES, "Permission denied") from None

    return SimpleNamespace(locking=locking, LK_NBLCK=2)


@pytest.fixture(params=["native", "windows", "neither"])
def locks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Lock files as each platform can."""
    if request.param != "native":
        monkeypatch.setattr(portable, "_fcntl", None)
        monkeypatch.setattr(portable, "_msvcrt", windows_locking() if request.param == "windows" else None)
    return str(request.param)


def test_a_lock_excludes_others_until_it_is_released(locks: str, tmp_path: Path) -> None:
    path = tmp_path / "lock"
    lock = portable.lock_file(path)
    with pytest.raises(portable.AlreadyLocked) as refused:
        portable.lock_file(path)
    assert refused.value.owner == str(os.getpid())
    lock.release()
    portable.lock_file(path).release()


@pytest.mark.parametrize("remove", [False, True])
def test_a_released_lock_leaves_a_file_only_where_it_may(remove: bool, locks: str, tmp_path: Path) -> None:
    path = tmp_path / "lock"
    portable.lock_file(path, remove=remove).release()
    assert path.exists() == (not remove and locks != "neither")


def test_a_file_that_was_removed_between_opening_and_locking_is_not_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise two processes could hold locks on two files of one name."""
    path, really, seen = tmp_path / "lock", portable._lock, []

    def removed_first(handle: int) -> bool:
        if not seen:
            path.unlink()
        seen.append(handle)
        return really(handle)

    monkeypatch.setattr(portable, "_lock", removed_first)
    lock = portable.lock_file(path)
    assert len(seen) == 2
    assert os.path.samestat(os.fstat(lock._handle), path.stat())
    lock.release()


@pytest.mark.skipif(portable._fcntl is None, reason="needs flock")
def test_an_error_other_than_being_locked_is_not_taken_for_a_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(portable._fcntl, "flock", unsupported)
    with pytest.raises(OSError, match="No locks available"):
        portable.lock_file(tmp_path / "lock")


@pytest.mark.skipif(portable._fcntl is None, reason="needs flock")
def test_the_lock_of_a_process_that_dies_is_free(tmp_path: Path) -> None:
    program = (
        "import os, sys, pathlib; from tacitly.portable import lock_file;"
        "lock_file(pathlib.Path(sys.argv[1]), remove=True); os._exit(1)"
    )
    subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "lock")],
        env={**os.environ, "PYTHONPATH": str(SOURCE.parent)},
        check=False,
        timeout=60,
    )
    assert (tmp_path / "lock").exists()
    portable.lock_file(tmp_path / "lock", remove=True).release()


def test_a_ledger_on_disk_works_and_excludes_other_writers_on_every_platform(locks: str, tmp_path: Path) -> None:
    event = GaussianEvent(sigma=10.0, sensitivity=Sensitivity.of_clip(1.0))
    options = {"noise": "float", "grid": 0.0, "coordinates": 3}
    with Ledger(tmp_path / "ledger", ceiling=Budget(epsilon=1.0, delta=1e-6)) as ledger:
        run = ledger.run("fit", config={})
        run.release("sum", event, lambda: np.ones(3), **options)
        with Ledger(tmp_path / "ledger") as other, pytest.raises(RunInUse, match=f"pid {os.getpid()}"):
            other.run("fit", config={})
    with Ledger(tmp_path / "ledger") as ledger:
        run = ledger.run("fit", config={})
        assert run.release("sum", event, lambda: np.zeros(3), **options).tolist() == [1.0, 1.0, 1.0]
        run.finish()
    assert not list(tmp_path.glob("*.lock-*"))


def test_cpus_are_counted_with_and_without_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2}, raising=False)
    assert portable.cpu_count() == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert portable.cpu_count() == 1


def test_a_platform_without_hangups_or_forks_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(signal, "SIGHUP", raising=False)
    monkeypatch.delattr(os, "register_at_fork", raising=False)
    assert portable.termination_signals() == (signal.SIGTERM,)
    portable.after_fork_in_child(lambda: None)


def test_only_linux_ends_children_with_their_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    assert set(portable.die_with_parent()) == {"preexec_fn"}
    for other in ("darwin", "win32"):
        monkeypatch.setattr(sys, "platform", other)
        assert portable.die_with_parent() == {}


@pytest.mark.parametrize("proc", [True, False])
def test_a_process_is_alive_until_it_ends(proc: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not proc:
        exists = Path.exists
        monkeypatch.setattr(Path, "exists", lambda path: "proc" not in path.parts and exists(path))
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert portable.process_alive(child.pid)
    child.communicate(b"\n")
    assert not portable.process_alive(child.pid)


def test_a_folder_that_cannot_be_opened_is_not_synced_on_windows_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> int:
        raise PermissionError

    portable.sync_folder(tmp_path)
    monkeypatch.setattr(os, "open", refused)
    with pytest.raises(PermissionError):
        portable.sync_folder(tmp_path)
    monkeypatch.setattr(portable, "os", SimpleNamespace(name="nt", open=refused, O_RDONLY=0))
    portable.sync_folder(tmp_path)


def test_no_other_module_uses_calls_of_one_platform() -> None:
    for path in SOURCE.rglob("*.py"):
        if path == Path(portable.__file__):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                assert not {"fcntl", "msvcrt", "resource", "pwd", "termios"} & {name.name for name in node.names}, path
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                assert node.value.id != "os" or node.attr not in POSIX_ONLY, f"{path}: os.{node.attr}"
                assert node.value.id != "signal" or node.attr not in ("SIGHUP", "SIGKILL"), path
