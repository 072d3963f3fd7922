"""Processes that start together compile each kernel once, not once each.

Sites, actors and workers on one machine share the folder in which Numba caches compiled kernels, and often need the
same kernel at the same moment. A process that finds it missing takes a lock next to it, looks again, and compiles if it
is still missing; the others wait and load it. The lock also prevents two processes from giving the same number to the
files of two signatures, which Numba's index does not exclude.

A kernel that calls others is locked while these are locked, always in the order of the calls, so that no two processes
wait for each other. No process waits longer than :data:`PATIENCE`; a kernel is then compiled twice, which is harmless.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

from tacitly.portable import AlreadyLocked, FileLock, lock_file

PATIENCE = 600.0
"""Seconds after which a process compiles a kernel itself although another one holds the lock: on a busy machine, the
largest kernels take minutes."""

_POLL = 0.1  # seconds
_held: set[Path] = set()  # locks of this process, in which Numba compiles in one thread at a time


class OneCompiler:
    """Numba's cache of one function; a missing entry is locked until it is saved, or until compiling has failed."""

    def __init__(self, cache: Any) -> None:
        self._cache = cache
        self._path = Path(cache._cache_file._index_path + ".lock")
        self._locks: list[FileLock | None] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)

    def load_overload(self, signature: Any, target: Any) -> Any:
        """Return the compiled function, or None if the caller must compile it."""
        found = self._cache.load_overload(signature, target)
        if found is not None:
            return found
        self._locks.append(self._lock())
        try:
            found = self._cache.load_overload(signature, target)
        except BaseException:
            self.release()
            raise
        if found is not None:
            self.release()
        return found

    def save_overload(self, signature: Any, data: Any) -> None:
        """Save the compiled function, and let others load it."""
        try:
            self._cache.save_overload(signature, data)
        finally:
            self.release()

    def release(self) -> None:
        """Let others compile, if there is a lock."""
        lock = self._locks.pop() if self._locks else None
        if lock is not None:
            _held.discard(self._path)
            lock.release()

    def _lock(self) -> FileLock | None:
        """Wait for the lock; None if this process has it, locking is impossible, or another process takes too long."""
        end = time.monotonic() + PATIENCE
        while self._path not in _held:
            with contextlib.suppress(AlreadyLocked):
                try:
                    self._cache._impl.locator.ensure_cache_path()
                    lock = lock_file(self._path, remove=True)
                except OSError:
                    return None  # the folder is read-only, or its disk does not support locks
                _held.add(self._path)
                return lock
            if time.monotonic() > end:
                return None
            time.sleep(_POLL)
        return None
