"""Operating-system calls that differ between platforms, each with a fallback.

All of tacitly uses this module for calls that exist only on some platforms: CPU affinity (Linux), ``fcntl`` and
``fork`` (POSIX), ``msvcrt`` (Windows), ``SIGHUP``, ``prctl``. It imports nothing of tacitly.

File locks. :func:`lock_file` excludes other processes and other locks of the same process. With ``flock`` (Linux,
macOS) and ``msvcrt.locking`` (Windows) the operating system releases the lock of a process that dies. If neither
exists, a file that is created exclusively marks the lock. It survives a crash and must then be removed by hand, so the
fallback can refuse too often but never admits two owners.

Private files. :func:`write_private` and :func:`replacing` create files that only their owner can read from the moment
they exist, if the platform has such permissions (POSIX).
"""

from __future__ import annotations

import ctypes
import os
import secrets
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import IO, Any


def _optional(module: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        return None


_fcntl, _msvcrt = _optional("fcntl"), _optional("msvcrt")
_LOCKED_BYTE = 1 << 30  # beyond the content, because Windows locks are mandatory and the process id must be readable
_PR_SET_PDEATHSIG = 1


def cpu_count() -> int:
    """Return the number of CPUs that this process may use, if the platform reports it; else that of the machine.

    >>> cpu_count() >= 1
    True
    """
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


class AlreadyLocked(RuntimeError):
    """Another process (or another lock of this one) holds the lock; ``owner`` is its process id, as text."""

    def __init__(self, path: Path, owner: str) -> None:
        super().__init__(f"{path} is locked by process {owner}.")
        self.owner = owner


class FileLock:
    """An exclusive lock on a file, created by :func:`lock_file`."""

    def __init__(self, path: Path, handle: int, *, remove: bool) -> None:
        self._path, self._handle, self._remove = path, handle, remove

    def release(self) -> None:
        """Release the lock; if requested, remove the file first."""
        if self._remove and _fcntl is not None:
            with suppress(FileNotFoundError):
                self._path.unlink()  # while the lock is held, so that no other process can hold it
        if _fcntl is not None:
            _fcntl.flock(self._handle, _fcntl.LOCK_UN)  # a forked child may have inherited the handle
        os.close(self._handle)
        if _fcntl is None and (self._remove or _msvcrt is None):
            with suppress(OSError):  # Windows does not remove a file that another process has opened
                self._path.unlink()

    def forget(self) -> None:
        """Close the inherited handle in a forked child; the parent keeps the lock."""
        os.close(self._handle)


def lock_file(path: Path, *, remove: bool = False) -> FileLock:
    """Lock a file exclusively, creating it if needed, or raise :class:`AlreadyLocked` without waiting.

    The file holds the owner's process id. ``remove`` deletes it on release.
    """
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0)
    if _fcntl is None and _msvcrt is None:
        flags |= os.O_EXCL
    while True:
        try:
            handle = os.open(path, flags, 0o600)
        except FileExistsError:
            raise AlreadyLocked(path, _owner(path.read_bytes())) from None
        if not _lock(handle):
            owner = os.read(handle, 32)
            os.close(handle)
            raise AlreadyLocked(path, _owner(owner))
        if _same_file(handle, path):
            break
        os.close(handle)  # its owner removed it between open and lock
    os.ftruncate(handle, 0)
    os.lseek(handle, 0, os.SEEK_SET)
    os.write(handle, f"{os.getpid()}\n".encode())
    return FileLock(path, handle, remove=remove)


def write_private(path: Path, data: bytes) -> None:
    """Write a new file that only its owner can read; if writing fails, there is no file."""
    file = _new_private(path)
    try:
        with file:
            file.write(data)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


@contextmanager
def staged(target: Path) -> Iterator[Path]:
    """Make a folder that becomes ``target`` when it is complete; if writing fails, there is no folder."""
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        yield staging
        staging.chmod(0o755)
        staging.rename(target)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise


@contextmanager
def replacing(path: Path, *, durable: bool = False) -> Iterator[IO[bytes]]:
    """Open a file that only its owner can read; it replaces ``path`` after it was written.

    ``durable``: it is on disk before it replaces the old file. If writing fails, ``path`` is not changed.
    """
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with _new_private(draft) as file:
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def _new_private(path: Path) -> IO[bytes]:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")


def sync_folder(folder: Path) -> None:
    """Make the entries of a folder durable, if folders can be opened (not on Windows)."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except PermissionError:
        if os.name != "nt":
            raise
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def after_fork_in_child(action: Callable[[], None]) -> None:
    """Call ``action`` in every forked child, on platforms that fork."""
    register = getattr(os, "register_at_fork", None)
    if register is not None:
        register(after_in_child=action)


def termination_signals() -> tuple[signal.Signals, ...]:
    """Return the signals that ask a program to end: SIGTERM, and SIGHUP (a closed terminal) where it exists."""
    hangup = getattr(signal, "SIGHUP", None)
    return (signal.SIGTERM,) if hangup is None else (signal.SIGTERM, hangup)


def die_with_parent() -> dict[str, Any]:
    """Return options for ``subprocess.Popen`` that end the child with its parent, on Linux; empty elsewhere.

    On other platforms a child keeps running if its parent is killed.
    """
    if not sys.platform.startswith("linux"):
        return {}

    def ask_for_death() -> None:
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    return {"preexec_fn": ask_for_death}


def process_alive(process: int) -> bool:
    """Whether a process runs; zombies do not count on Linux. Elsewhere signal 0 tells; on Windows it is assumed."""
    if Path("/proc/self/stat").exists():
        try:
            state = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return False
        return state != "Z"
    if os.name == "nt":  # os.kill would terminate the process on Windows
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _lock(handle: int) -> bool:
    """Lock an open file in the operating system; False if another process has the lock; raises if locking fails."""
    try:
        if _fcntl is not None:
            _fcntl.flock(handle, _fcntl.LOCK_EX | _fcntl.LOCK_NB)
        elif _msvcrt is not None:
            os.lseek(handle, _LOCKED_BYTE, os.SEEK_SET)
            try:
                _msvcrt.locking(handle, _msvcrt.LK_NBLCK, 1)
            finally:
                os.lseek(handle, 0, os.SEEK_SET)
    except (BlockingIOError, PermissionError):  # raised by flock and by msvcrt
        return False
    return True


def _owner(content: bytes) -> str:
    return content[:32].decode(errors="replace").strip() or "unknown"


def _same_file(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False
