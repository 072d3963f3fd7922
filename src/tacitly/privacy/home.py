"""The user's own state: a secret key, and what this machine last saw of every ledger.

``TACITLY_HOME``, or the platform's folder for application state. It holds

* ``identity.key``: 32 random bytes, made at first use and readable by its owner only. Fingerprints of rosters and rows
  are keyed with it, so that a ledger can be shown to others without letting them test guesses about who or what is
  behind it. Ids and rows themselves are never stored.
* ``accounts/``: for each ledger its path, its number of entries and the hash of the last one. A ledger that has fewer
  entries than this machine has seen, or others, is an older copy or was rewritten. Beside them the fingerprints of the
  people whom the command found in each, so that they are recognised even if the ledger is gone.

A machine whose state cannot be written still works: it notices less.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import stat
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_FORMAT = "tacitly anchor 1"


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
    """Return what is remembered of an account; None if it was never seen here."""
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
    """Keep what was seen of an account, unless more was seen before; do nothing where state cannot be written."""
    path = anchor_file(account)
    with suppress(OSError):
        known = anchor(account)
        if known is not None and known.entries > seen.entries:
            return
        # A copy that is only looked at is not where the account lives, unless the other is gone.
        if known is not None and known.entries == seen.entries and Path(known.path).is_file():
            return
        _write(path, (json.dumps({"format": _FORMAT, **asdict(seen)}) + "\n").encode())


def remember_people(account: str, key: str, hashes: bytes) -> None:
    """Keep the fingerprints of an account's people, made with the key of this name."""
    with suppress(OSError):
        path, content = anchor_file(account).with_suffix(".people"), bytes.fromhex(key) + hashes
        if not path.exists() or path.read_bytes() != content:
            _write(path, content)


def people(account: str) -> tuple[str, bytes] | None:
    """Return the name of the key and the fingerprints of an account's people; None if none were kept."""
    try:
        content = anchor_file(account).with_suffix(".people").read_bytes()
    except OSError:
        return None
    return content[:8].hex(), content[8 : 8 + (len(content) - 8) // 8 * 8]


def _write(path: Path, content: bytes) -> None:
    """Replace a file as a whole, readable by its owner only."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
    draft.replace(path)


def known() -> dict[str, Anchor]:
    """Return every account that was seen here, by its id."""
    found: dict[str, Any] = {}
    for path in sorted((folder() / "accounts").glob("*.json")):
        seen = anchor(path.stem) if re.fullmatch("[0-9a-f]{32}", path.stem) else None
        if seen is not None:
            found[path.stem] = seen
    return found
