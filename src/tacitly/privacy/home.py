"""The state folder: a secret key, and the last state of every ledger that this machine has seen.

The folder is ``TACITLY_HOME``, or the platform's folder for application state. It contains

* ``identity.key``: 32 random bytes, created at first use and readable by its owner only. It keys the fingerprints of
  rosters and rows, so that whoever sees a ledger cannot test guesses about the ids and rows behind it. Ids and rows
  themselves are never stored.
* ``accounts/``: for each ledger its path, its number of entries and the hash of the last one. A ledger that has fewer
  entries than this machine has seen, or different ones, is an older copy or was rewritten: this is checked when it is
  opened, and again at every write, because another copy may have been used since. The folder also keeps the
  fingerprints of the people that the command found in each ledger, so that they are recognised even if the ledger is
  gone. The remembered state only grows: processes that remember the same account take turns, so that none restores an
  earlier state.

If the folder cannot be written, everything still works, but older copies of ledgers are not detected.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tacitly.portable import AlreadyLocked, lock_file, replacing

if TYPE_CHECKING:
    from tacitly.privacy.people import People

_FORMAT = "tacitly anchor 1"
_PATIENCE = 10.0  # seconds; a lock that is held longer was left by a crash, on a platform that does not drop it


def folder() -> Path:
    """Return where the state is; it may not exist yet."""
    given = os.environ.get("TACITLY_HOME")
    if given:
        return Path(given).absolute()
    try:
        return _base() / "tacitly"
    except RuntimeError:  # a user without a home folder, as in some containers
        return Path(os.devnull) / "tacitly"


def _base() -> Path:
    if os.name == "nt":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Application Support"
    else:
        base = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    return base


def secret(name: str = "identity.key", size: int = 32) -> bytes:
    """Return the secret of this name, made at first use; raise where others could read it."""
    path = folder() / name
    if not path.exists():
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError:
            raise OSError(f"{path.parent} cannot be made. Set TACITLY_HOME to a folder of your own.") from None
        draft = path.with_name(f"{name}.new-{secrets.token_hex(8)}")
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(secrets.token_bytes(size))
            file.flush()
            os.fsync(file.fileno())
        try:
            with suppress(FileExistsError):  # another process was first: use its key
                os.link(draft, path)
        finally:
            draft.unlink()
    if os.name == "posix" and stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise ValueError(f"{path} must be readable by its owner only. Run: chmod 600 {path}")
    key = path.read_bytes()
    if len(key) != size:
        raise ValueError(f"{path} must hold {size} bytes. Found {len(key)}: restore it from a backup.")
    return key


@dataclass(frozen=True)
class Anchor:
    """What this machine last saw of a ledger: where it is, how many entries it has, and the hash of the last one."""

    path: str
    entries: int
    head: str


def anchor_file(account: str) -> Path:
    """Return the file that remembers an account."""
    if not re.fullmatch("[0-9a-f]{32}", account):
        raise ValueError(f"an account is named by 32 hexadecimal digits. Found {account[:40]!r}.")
    return folder() / "accounts" / f"{account}.json"


def anchor(account: str) -> Anchor | None:
    """Return the remembered state of an account; None if it was never seen on this machine."""
    path = anchor_file(account)
    try:
        text = path.read_text("utf-8")
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None
    if not text:
        return None  # a crash of the machine, between creating the file and filling it
    try:
        content = json.loads(text)
        if content.pop("format") != _FORMAT:
            raise ValueError
        return Anchor(path=str(content["path"]), entries=int(content["entries"]), head=str(content["head"]))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(
            f"{path} is damaged. Compare the ledger with a seal or a certificate, then remove it."
        ) from None


def remember(account: str, seen: Anchor) -> None:
    """Remember the state of an account, unless a later one is known; do nothing if the folder cannot be written."""
    path = anchor_file(account)
    with suppress(OSError), _in_turn(path):
        known = anchor(account)
        if known is not None and known.entries > seen.entries:
            return
        # A copy with the same entries does not change the remembered path, unless that file is gone.
        if known is not None and known.entries == seen.entries and Path(known.path).is_file():
            return
        _write(path, (json.dumps({"format": _FORMAT, **asdict(seen)}) + "\n").encode())


def remember_people(account: str, people: People) -> None:
    """Add the fingerprints of an account's people to those that are stored, unless they were made with another key."""
    path = anchor_file(account).with_suffix(".people")
    with suppress(OSError), _in_turn(path):
        kept = people_of(account)
        everybody = people.joined(kept) if kept is not None and kept.key == people.key else people
        if kept is None or kept.key != everybody.key or len(kept) < len(everybody):
            _write(path, bytes.fromhex(everybody.key) + everybody.to_bytes())


def people_of(account: str) -> People | None:
    """Return the people that were kept for an account; None if none were."""
    from tacitly.privacy.people import People  # here, because it loads NumPy

    try:
        content = anchor_file(account).with_suffix(".people").read_bytes()
    except OSError:
        return None
    return People.from_bytes(content[8 : 8 + (len(content) - 8) // 8 * 8], content[:8].hex())


@contextmanager
def _in_turn(path: Path) -> Iterator[None]:
    """Exclude other processes and threads that update the same state, from reading to writing."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    end, lock = time.monotonic() + _PATIENCE, None
    while lock is None and time.monotonic() < end:
        try:
            lock = lock_file(path.with_name(f"{path.name}.lock"))
        except AlreadyLocked:
            time.sleep(0.001)
        except OSError:  # a file system without locks: writing without a lock is better than not remembering
            break
    try:
        yield
    finally:
        if lock is not None:
            lock.release()


def _write(path: Path, content: bytes) -> None:
    """Replace a file as a whole, readable by its owner only."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with replacing(path) as file:
        file.write(content)


def known() -> dict[str, Anchor]:
    """Return every account that was seen here, by its id."""
    found: dict[str, Any] = {}
    for path in sorted((folder() / "accounts").glob("*.json")):
        seen = anchor(path.stem) if re.fullmatch("[0-9a-f]{32}", path.stem) else None
        if seen is not None:
            found[path.stem] = seen
    return found
