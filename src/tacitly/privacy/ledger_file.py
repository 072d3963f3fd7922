"""The ledger's file: an append-only SQLite database.

The file itself enforces four properties, so that no caller has to be trusted with them:

* *Append-only.* Triggers forbid deletions, and all changes except two transitions of a release (``debited`` →
  ``debited``, one more attempt, and ``debited`` → ``published``) and one of a run (``open`` → ``finished``, which
  records the hash of the billboard that the run produced).
* *One kind of run.* Certified and uncertified runs never share a file.
* *Durable.* A write-ahead log with ``synchronous=FULL``, so that a commit is on disk before it returns. (A rollback
  journal with FULL is not enough: it commits by deleting the journal file, and a power failure can bring that file
  back, which would undo a debit whose value has already left.)
* *One writer.* Every write begins with ``BEGIN IMMEDIATE``, so a balance that is read and then debited cannot be spent
  twice; and the ledger that writes a run holds a lock on it, which the operating system drops if the process dies
  (:func:`tacitly.portable.lock_file`).
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import sqlite3
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tacitly.portable import AlreadyLocked, FileLock, after_fork_in_child, lock_file, sync_folder
from tacitly.privacy.release import canonical_json

_APPLICATION, _VERSION = 0x54414349, 2
_BUSY_SECONDS = 30.0

_TABLES = f"""
PRAGMA application_id = {_APPLICATION};
PRAGMA user_version = {_VERSION};
CREATE TABLE ceiling (budget TEXT NOT NULL);
CREATE TABLE runs (
    name TEXT PRIMARY KEY, config TEXT NOT NULL, planned TEXT NOT NULL,
    certified INTEGER NOT NULL CHECK (certified IN (0, 1)), state TEXT NOT NULL, billboard TEXT);
CREATE TABLE releases (
    seq INTEGER PRIMARY KEY AUTOINCREMENT CHECK (seq > 0),
    run TEXT NOT NULL REFERENCES runs (name), idx INTEGER NOT NULL, name TEXT NOT NULL,
    event TEXT NOT NULL, noise TEXT NOT NULL, grid REAL NOT NULL, coordinates INTEGER NOT NULL,
    state TEXT NOT NULL, attempts INTEGER NOT NULL, value BLOB, UNIQUE (run, idx));
"""

# (operation, table, forbidden condition, message). The INSERT rules look for an existing row because SQLite fires no
# DELETE trigger for a row that INSERT OR REPLACE displaces.
_FORBIDDEN = (
    ("UPDATE", "ceiling", "1", "the ceiling of a ledger cannot be changed"),
    ("DELETE", "ceiling", "1", "the ceiling of a ledger cannot be removed"),
    ("INSERT", "ceiling", "EXISTS (SELECT 1 FROM ceiling)", "a ledger has one ceiling"),
    ("DELETE", "runs", "1", "a ledger is append-only"),
    (
        "INSERT",
        "runs",
        "NEW.state <> 'open' OR NEW.billboard IS NOT NULL OR EXISTS (SELECT 1 FROM runs WHERE name = NEW.name)",
        "a run is appended once, as open",
    ),
    (
        "INSERT",
        "runs",
        "EXISTS (SELECT 1 FROM runs WHERE certified <> NEW.certified)",
        "certified and uncertified runs do not share a ledger",
    ),
    (
        "UPDATE",
        "runs",
        "NOT (OLD.state = 'open' AND NEW.state = 'finished' AND NEW.name = OLD.name"
        " AND NEW.config = OLD.config AND NEW.planned = OLD.planned AND NEW.certified = OLD.certified)",
        "a run can only be finished",
    ),
    ("DELETE", "releases", "1", "a ledger is append-only"),
    (
        "INSERT",
        "releases",
        "NEW.state <> 'debited' OR NEW.attempts <> 1 OR NEW.value IS NOT NULL"
        " OR EXISTS (SELECT 1 FROM releases WHERE seq = NEW.seq)"
        " OR NEW.idx <> (SELECT COUNT(*) FROM releases WHERE run = NEW.run)"
        " OR NOT EXISTS (SELECT 1 FROM runs WHERE name = NEW.run AND state = 'open')",
        "a release is appended to an open run, as debited",
    ),
    (
        "UPDATE",
        "releases",
        "NOT (OLD.state = 'debited' AND NEW.seq = OLD.seq AND NEW.run = OLD.run"
        " AND NEW.idx = OLD.idx AND NEW.name = OLD.name AND NEW.event = OLD.event"
        " AND NEW.noise = OLD.noise AND NEW.grid = OLD.grid AND NEW.coordinates = OLD.coordinates"
        " AND ((NEW.state = 'debited' AND NEW.attempts = OLD.attempts + 1 AND NEW.value IS NULL)"
        " OR (NEW.state = 'published' AND NEW.attempts = OLD.attempts AND NEW.value NOT NULL)))",
        "a release can only be tried again or published",
    ),
)


class LedgerMismatch(RuntimeError):
    """A request contradicts what the ledger contains, or the ledger cannot be read."""


class RunInUse(RuntimeError):
    """A run is already being written, by this or another process."""


class LedgerFile:
    """The open database file (or in-memory database, if ``path`` is None) of one ledger.

    ``ceiling`` is stored in a new file; an existing file keeps its own.
    """

    def __init__(self, path: str | os.PathLike[str] | None, ceiling: str) -> None:
        self.path = None if path is None else Path(path)
        self._guard = threading.RLock()
        self._process = os.getpid()
        self._locks: dict[str, FileLock | None] = {}  # None in memory: no other process can reach it
        if self.path is None:
            self._db = _connect(":memory:")
            _initialise(self._db, ceiling)
        else:
            if not self.path.exists():
                _create(self.path, ceiling)
            self._db = _open(self.path)
        _OPEN.add(self)

    def rows(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run one statement and return its rows."""
        self._check_process()
        with self._guard, self._reporting_damage():
            return self._db.execute(statement, values).fetchall()

    def change(self, statement: str, *values: Any) -> int:
        """Run one statement inside a :meth:`transaction` and return the number of changed rows."""
        return self._db.execute(statement, values).rowcount

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Exclude every other writer; commit durably at the end, or roll back on any exception."""
        self._check_process()
        with self._guard, self._reporting_damage():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    def lock(self, run: str) -> None:
        """Make the caller the only writer of ``run``, or raise :class:`RunInUse`."""
        self._check_process()
        with self._guard:
            if run in self._locks:
                raise RunInUse(
                    f"run {run!r} is already open in this process. Finish or abandon it, or choose another name."
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
        except sqlite3.DatabaseError as error:
            if type(error) is not sqlite3.DatabaseError:
                raise  # locked, full, forbidden by a trigger: not damage
            raise LedgerMismatch(f"the ledger {self.path} is damaged: {error}. Restore it from a backup.") from error


def _connect(target: str) -> sqlite3.Connection:
    database = sqlite3.connect(target, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False, uri=True)
    database.execute("PRAGMA synchronous = FULL")
    database.execute("PRAGMA fullfsync = ON")  # macOS: flush the disk's own cache too
    database.execute("PRAGMA foreign_keys = ON")
    return database


def _uri(path: Path) -> str:
    # mode=rw: SQLite must never create a file here, or a deleted ledger would read as unspent.
    return f"file:{quote(str(path.absolute()))}?mode=rw"


def _initialise(database: sqlite3.Connection, ceiling: str) -> None:
    database.executescript(_TABLES)
    database.execute("INSERT INTO ceiling VALUES (?)", (ceiling,))
    for number, (operation, table, condition, message) in enumerate(_FORBIDDEN):
        database.execute(
            f"CREATE TRIGGER rule_{number} BEFORE {operation} ON {table} WHEN {condition} "
            f"BEGIN SELECT RAISE(ABORT, '{message}'); END"
        )


def _create(path: Path, ceiling: str) -> None:
    """Build the file under another name and link it into place, so that an incomplete ledger is never visible."""
    draft = path.with_name(f"{path.name}.new-{secrets.token_hex(8)}")
    os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    try:
        database = _connect(_uri(draft))
        database.execute("PRAGMA journal_mode = WAL")
        _initialise(database, ceiling)
        database.close()
        with suppress(FileExistsError):  # another process was first: keep its ledger
            os.link(draft, path)
    finally:
        draft.unlink()
    sync_folder(path.parent)


def _open(path: Path) -> sqlite3.Connection:
    try:
        database = _connect(_uri(path))
        (application,) = database.execute("PRAGMA application_id").fetchone()
        (version,) = database.execute("PRAGMA user_version").fetchone()
    except sqlite3.DatabaseError as error:
        raise LedgerMismatch(f"{path} cannot be read as a ledger: {error}. Choose another path.") from error
    if application != _APPLICATION:
        database.close()
        raise LedgerMismatch(f"{path} is not a tacitly ledger. Move it away or choose another path.")
    if version != _VERSION:
        database.close()
        raise LedgerMismatch(
            f"the schema version of {path} must be {_VERSION}. Found {version}: use the version of "
            "tacitly that wrote it."
        )
    return database


def _forget_locks_after_fork() -> None:
    for file in list(_OPEN):
        file.forget_locks()


def check_resumable(name: str, found: Sequence[Any], config: str, plan: str, certified: bool) -> None:
    """Raise unless the stored run ``found`` is open and equals the requested one."""
    stored_config, stored_plan, stored_certified, state = found
    if state == "finished":
        raise LedgerMismatch(f"run {name!r} is finished. Choose another name for a new run.")
    if stored_config != config:
        old, new = json.loads(stored_config), json.loads(config)
        keys = [key for key in sorted({*old, *new}) if _entry(old, key) != _entry(new, key)]
        raise LedgerMismatch(
            f"run {name!r} was begun with another configuration; these keys differ: "
            f"{', '.join(keys)}. Choose another name, or use that configuration."
        )
    if stored_plan != plan:
        raise LedgerMismatch(f"run {name!r} was begun with another plan of releases. Choose another name.")
    if bool(stored_certified) != certified:
        raise LedgerMismatch(f"run {name!r} was begun with certified={bool(stored_certified)}. Found {certified}.")


def _entry(config: Mapping[str, Any], key: str) -> str:
    return canonical_json(config[key]) if key in config else "absent"


_OPEN: weakref.WeakSet[LedgerFile] = weakref.WeakSet()
after_fork_in_child(_forget_locks_after_fork)
