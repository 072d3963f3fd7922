"""The ledger's file: one append-only chain of entries in SQLite.

An entry is a kind, a JSON body and a hash over the previous entry's hash and its own content, so the last hash (the
*head*) commits to all entries. :mod:`tacitly.privacy.book` interprets the entries. The file guarantees:

* *Append-only.* Triggers forbid updates, deletions, and insertions anywhere but at the end. When a file is opened, its
  triggers must exist and its chain must be valid, so a dropped trigger, or a row that was edited with another tool, is
  detected. Rewriting the whole chain, or restoring an older copy, changes the head, which certificates, seals
  (``tacitly budget seal``) and this machine (:mod:`tacitly.privacy.home`) remember.
* *One file.* A rollback journal, deleted at every commit, with ``synchronous=EXTRA``: pages, journal and folder are on
  disk before a commit returns, and a copy of this one file is a complete ledger. (A write-ahead log would keep the
  latest entries in a second file, which a backup may miss. With FULL instead of EXTRA, a power failure may undo the
  deletion of the journal, and the journal would then undo a debit whose value has already been returned.)
* *One name.* SQLite finds the journal of a crashed writer by the file name, so a file with several names (hard links)
  is refused; symbolic links are resolved first. Locks are on the file itself and hold under any name.
* *One writer.* Every write begins with ``BEGIN IMMEDIATE``, so a balance that is read and then debited cannot be spent
  twice; and the ledger that writes a run holds a lock on it, which the operating system drops if the process dies
  (:func:`tacitly.portable.lock_file`).
"""

from __future__ import annotations

import hashlib
import os
import secrets
import sqlite3
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from tacitly.portable import AlreadyLocked, FileLock, after_fork_in_child, lock_file, sync_folder

_APPLICATION, _VERSION = 0x54414349, 3
_BUSY_SECONDS = 30.0

GENESIS = "0" * 64
"""The hash before the first entry."""

_SCHEMA = (
    "CREATE TABLE entries (seq INTEGER PRIMARY KEY, kind TEXT NOT NULL, body TEXT NOT NULL, hash TEXT NOT NULL)",
    "CREATE TABLE blobs (seq INTEGER PRIMARY KEY, value BLOB NOT NULL)",
    "CREATE TRIGGER entries_stay BEFORE UPDATE ON entries BEGIN SELECT RAISE(ABORT, 'a ledger is append-only'); END",
    "CREATE TRIGGER entries_last BEFORE DELETE ON entries BEGIN SELECT RAISE(ABORT, 'a ledger is append-only'); END",
    "CREATE TRIGGER blobs_stay BEFORE UPDATE ON blobs BEGIN SELECT RAISE(ABORT, 'a ledger is append-only'); END",
    "CREATE TRIGGER blobs_last BEFORE DELETE ON blobs BEGIN SELECT RAISE(ABORT, 'a ledger is append-only'); END",
    # SQLite fires no DELETE trigger for a row that INSERT OR REPLACE displaces, hence the condition on existing rows.
    "CREATE TRIGGER entries_grow BEFORE INSERT ON entries WHEN NEW.seq IS NOT (SELECT COUNT(*) + 1 FROM entries) "
    "BEGIN SELECT RAISE(ABORT, 'an entry is appended at the end'); END",
    "CREATE TRIGGER blobs_grow BEFORE INSERT ON blobs WHEN NEW.seq IS NOT (SELECT MAX(seq) FROM entries) "
    "OR EXISTS (SELECT 1 FROM blobs WHERE seq = NEW.seq) "
    "BEGIN SELECT RAISE(ABORT, 'a value belongs to the last entry'); END",
)


class LedgerMismatch(RuntimeError):
    """A request contradicts what the ledger contains, or the ledger cannot be read or written."""


class RunInUse(RuntimeError):
    """A run is already being written, by this or another process."""


@dataclass(frozen=True)
class Entry:
    """One row of the chain."""

    seq: int
    kind: str
    body: str
    hash: str


def chained(previous: str, seq: int, kind: str, body: str) -> str:
    """Return the hash of an entry that follows one with the hash ``previous``."""
    return hashlib.sha256(f"{previous}\n{seq}\n{kind}\n{body}".encode()).hexdigest()


class LedgerFile:
    """The open database file (or in-memory database, if ``path`` is None) of one ledger.

    ``first`` is the kind and body of the first entry of a new file; an existing file keeps its own.
    """

    def __init__(self, path: str | os.PathLike[str] | None, first: tuple[str, str]) -> None:
        self.path = None if path is None else Path(path).resolve()
        self._guard = threading.RLock()
        self._process = os.getpid()
        self._locks: dict[str, FileLock | None] = {}  # None in memory: no other process can reach it
        if self.path is None:
            self._db = _connect(":memory:")
            _initialise(self._db, first)
        else:
            if not self.path.exists():
                _create(self.path, first)
            self._db = _open(self.path)
        _OPEN.add(self)

    def after(self, seq: int) -> list[Entry]:
        """Return the entries after number ``seq``."""
        self._check_process()
        with self._guard, self._reporting_damage():
            query = "SELECT seq, kind, body, hash FROM entries WHERE seq > ? ORDER BY seq"
            return [Entry(*row) for row in self._db.execute(query, (seq,))]

    def last(self) -> tuple[int, str]:
        """Return the number and the hash of the last entry in the file."""
        with self._guard, self._reporting_damage():
            row = self._db.execute("SELECT seq, hash FROM entries ORDER BY seq DESC LIMIT 1").fetchone()
        return (0, GENESIS) if row is None else (int(row[0]), str(row[1]))

    def blob(self, seq: int, sha256: str) -> bytes:
        """Return the bytes stored with an entry, whose body has their hash; raise if they are others or none."""
        self._check_process()
        with self._guard, self._reporting_damage():
            row = self._db.execute("SELECT value FROM blobs WHERE seq = ?", (seq,)).fetchone()
        if row is None or hashlib.sha256(row[0]).hexdigest() != sha256:
            raise LedgerMismatch(f"entry {seq} of {self._named} was changed: its value is not what was stored.")
        return bytes(row[0])

    def append(self, previous: str, seq: int, kind: str, body: str, blob: bytes | None = None) -> str:
        """Append entry ``seq`` after one with the hash ``previous``, inside a :meth:`transaction`; return its hash."""
        added = _insert(self._db, previous, seq, kind, body)
        if blob is not None:
            self._db.execute("INSERT INTO blobs VALUES (?, ?)", (seq, blob))
        return added

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Exclude other threads of this process while what was read is taken in."""
        with self._guard:
            yield

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Exclude every other writer; commit durably at the end, or roll back on any exception."""
        self._check_process()
        with self._guard, self._reporting_damage():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                if self.path is not None:
                    check_one_name(self.path)
                    _check_journal(self._db, self.path)
                yield
                self._db.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):  # what cannot be undone now is undone by whoever opens the file next
                    if self._db.in_transaction:
                        self._db.execute("ROLLBACK")
                raise

    def lock(self, run: str) -> None:
        """Make the caller the only writer of ``run``, or raise :class:`RunInUse`."""
        self._check_process()
        with self._guard:
            if run in self._locks:
                raise RunInUse(
                    f"run {run!r} is already open in this process, for a model that was fitted under that name. "
                    "Another fit on this ledger needs a name of its own: run='second', say."
                )
            self._locks[run] = None if self.path is None else self._lock_sidecar(run)

    def unlock(self, run: str) -> None:
        """Let others write ``run``."""
        lock = self._locks.pop(run, None)
        if lock is not None:
            lock.release()

    def close(self) -> None:
        """Release every lock and close the file."""
        for run in list(self._locks):
            self.unlock(run)
        self._db.close()

    def forget_locks(self) -> None:
        """Drop the inherited locks in a forked child, so that they do not outlive the owner."""
        for lock in self._locks.values():
            if lock is not None:
                lock.forget()
        self._locks.clear()

    @property
    def _named(self) -> str:
        return "the ledger in memory" if self.path is None else str(self.path)

    def _lock_sidecar(self, run: str) -> FileLock:
        digest = hashlib.sha256(run.encode()).hexdigest()[:16]
        try:
            return lock_file(Path(f"{self.path}.lock-{digest}"), remove=True)
        except AlreadyLocked as error:
            raise RunInUse(
                f"run {run!r} of {self.path} is being written by another process (pid {error.owner}). "
                "Wait until it ends, or choose another name."
            ) from None

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise RuntimeError(
                "a ledger must be opened by the process that uses it. "
                f"Found one opened by process {self._process} in process {os.getpid()}."
            )

    @contextmanager
    def _reporting_damage(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            kind = getattr(error, "sqlite_errorname", "")
            if kind.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN")):
                raise LedgerMismatch(
                    f"{self._named} cannot be written: {error}. Was it moved, replaced or protected? No value was "
                    "returned."
                ) from error
            if kind.startswith(("SQLITE_FULL", "SQLITE_IOERR")):
                raise LedgerMismatch(
                    f"{self._named} could not be written: {error}. Values that were not written were not returned. "
                    "Free disk space, then run the same again."
                ) from error
            raise
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            if type(error) not in (sqlite3.DatabaseError, UnicodeDecodeError):
                raise  # forbidden by a trigger: not damage
            raise LedgerMismatch(f"the ledger {self.path} is damaged: {error}. Restore it from a backup.") from error


def check_one_name(path: Path) -> None:
    """Raise if a file has more than one name or none, after removing drafts that a killed creator left."""
    if not path.is_file():
        raise LedgerMismatch(f"{path} must be a ledger's file. Found a folder, or nothing any more.")
    if path.stat().st_nlink == 1:
        return
    for draft in path.parent.glob(f"{path.name}.new-*"):
        with suppress(FileNotFoundError):
            if draft.samefile(path):
                draft.unlink(missing_ok=True)
    names = path.stat().st_nlink
    if names > 1:
        raise LedgerMismatch(
            f"{path} has {names} names (hard links). A ledger must have one, or a crash under one name cannot be "
            "repaired under another: remove the others, or copy the file."
        )


def _connect(target: str) -> sqlite3.Connection:
    database = sqlite3.connect(target, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False, uri=True)
    database.text_factory = lambda data: data.decode("utf-8", "replace")  # damaged text shows in the chain's hashes
    database.execute("PRAGMA synchronous = EXTRA")
    database.execute("PRAGMA fullfsync = ON")  # macOS: flush the disk's own cache too
    return database


def _uri(path: Path) -> str:
    # mode=rw: SQLite must never create a file here, or a deleted ledger would read as unspent.
    return f"file:{quote(str(path.absolute()))}?mode=rw"


def _initialise(database: sqlite3.Connection, first: tuple[str, str]) -> None:
    database.execute(f"PRAGMA application_id = {_APPLICATION}")
    database.execute(f"PRAGMA user_version = {_VERSION}")
    for statement in _SCHEMA:
        database.execute(statement)
    _insert(database, GENESIS, 1, *first)


def _insert(database: sqlite3.Connection, previous: str, seq: int, kind: str, body: str) -> str:
    added = chained(previous, seq, kind, body)
    database.execute("INSERT INTO entries VALUES (?, ?, ?, ?)", (seq, kind, body, added))
    return added


def _create(path: Path, first: tuple[str, str]) -> None:
    """Build the file under another name and link it into place, so that an incomplete ledger is never visible."""
    draft = path.with_name(f"{path.name}.new-{secrets.token_hex(8)}")
    os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    try:
        database = _connect(_uri(draft))
        try:
            _initialise(database, first)
        except sqlite3.OperationalError as error:
            raise LedgerMismatch(f"{path} could not be created: {error}.") from error
        finally:
            database.close()
        with suppress(FileExistsError):  # another process was first: keep its ledger
            os.link(draft, path)
    finally:
        draft.unlink(missing_ok=True)  # whoever opens the new ledger meanwhile may have removed it
        draft.with_name(draft.name + "-journal").unlink(missing_ok=True)
    sync_folder(path.parent)


def _open(path: Path) -> sqlite3.Connection:
    check_one_name(path)
    try:
        database = _connect(_uri(path))
        (application,) = database.execute("PRAGMA application_id").fetchone()
        (version,) = database.execute("PRAGMA user_version").fetchone()
        found = {sql for (sql,) in database.execute("SELECT sql FROM sqlite_master")}
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # the latter: SQLite's message quotes damaged text
        raise LedgerMismatch(f"{path} cannot be read as a ledger: {error}. Choose another path.") from error
    try:
        if application != _APPLICATION:
            raise LedgerMismatch(f"{path} is not a tacitly ledger. Move it away or choose another path.")
        if version != _VERSION:
            raise LedgerMismatch(
                f"the schema version of {path} must be {_VERSION}. Found {version}: use the version of "
                "tacitly that wrote it."
            )
        if found != set(_SCHEMA):
            raise LedgerMismatch(
                f"{path} was changed with another tool: its tables and the triggers that keep them append-only are "
                "not as they were made. Restore it from a backup."
            )
        _check_journal(database, path)
    except BaseException:
        database.close()
        raise
    return database


def _check_journal(database: sqlite3.Connection, path: Path) -> None:
    (mode,) = database.execute("PRAGMA journal_mode").fetchone()
    if mode != "delete":
        raise LedgerMismatch(
            f"{path} was set to journal mode {mode!r} with another tool, which keeps entries in a second file. "
            "Set it back: sqlite3 FILE 'PRAGMA journal_mode = DELETE'."
        )


def _forget_locks_after_fork() -> None:
    for file in list(_OPEN):
        file.forget_locks()


_OPEN: weakref.WeakSet[LedgerFile] = weakref.WeakSet()
after_fork_in_child(_forget_locks_after_fork)
