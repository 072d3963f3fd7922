"""Deletion: remove a user's rows and head from model folders, grouped rows and sites.

A user's head and rows can be removed completely. What was published cannot be withdrawn, and need not be: by
differential privacy it is about as likely without this user. The printed statement says how likely, and what has to be
fitted again to remove all traces.

Every file is replaced as a whole, so an interrupted deletion leaves it either with or without the user. Files are
unlinked, not overwritten: the operator has to take care of backups and of free blocks on the disk.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import numpy as np

from tacitly.data.cohort import Cohort
from tacitly.data.user_ids import Directory
from tacitly.portable import AlreadyLocked, lock_file, replacing
from tacitly.privacy import home
from tacitly.privacy.certificate import Certificate, shown
from tacitly.private_arrays import of_users, private_from_bytes, private_to_bytes

_HEADS = Path("private") / "heads.safetensors"


def forget(user: str, *folders: str | os.PathLike[str]) -> list[str]:
    """Remove a user from model folders, folders of grouped rows and sites; return what was done, in sentences.

    Nothing is removed if one of the folders is none of these. Deletions take turns, because each removes what an
    interrupted one has left; a link is followed, because the rows are not where it is.
    """
    with _in_turn():
        places = [Path(folder).resolve() for folder in folders]
        removals = [(_removal(place), place) for place in places]
        return [line for remove, place in removals for line in remove(user, place)]


@contextmanager
def _in_turn() -> Iterator[None]:
    """Wait until no other process deletes; on a machine whose state folder cannot be written, do without."""
    lock = None
    with suppress(OSError):
        home.folder().mkdir(mode=0o700, parents=True, exist_ok=True)
        while lock is None:
            try:
                lock = lock_file(home.folder() / "forget.lock")
            except AlreadyLocked:
                time.sleep(0.05)
    try:
        yield
    finally:
        if lock is not None:
            lock.release()


def _removal(place: Path) -> Callable[[str, Path], list[str]]:
    for rows in (place, place / "cohort"):
        _finish_interrupted(rows)
    for name, remove in (("certificate", _from_model), ("cohort", _from_rows), ("card", _from_site)):
        if (place / f"{name}.json").is_file():
            return remove
    raise ValueError(
        f"{place} must be a model folder, a folder of grouped rows (--on-disk) or a site's folder. Nothing was removed."
    )


def _from_model(user: str, folder: Path) -> list[str]:
    done = f"{folder}: no heads in it"
    heads = folder / _HEADS
    if heads.is_file():
        users, arrays = private_from_bytes(heads.read_bytes())
        keep = _others(users, user)
        if keep is None:
            done = f"{folder}: this user has no head in it"
        elif not keep.any():
            shutil.rmtree(heads.parent)
            done = f"{folder}: removed the only head"
        else:
            _replace(heads, lambda file: file.write(private_to_bytes(users[keep], of_users(arrays, keep))))
            done = f"{folder}: removed 1 of {len(users)} heads"
    certificate = Certificate.from_json((folder / "certificate.json").read_text("utf-8"))
    return [done, f"{folder}: {still_promised(certificate)}"]


def still_promised(certificate: Certificate) -> str:
    """Return what a published model still guarantees to a user who has left."""
    if not certificate.certified:
        return "the model makes no promise of privacy; fit it again without this user, and withdraw what was published"
    return (
        f"the public model stays as it is. It promises ε = {shown(certificate.epsilon)} at δ = {certificate.delta:g} "
        f"({certificate.adjacency}): whatever can be read from it is as likely without this user's rows, up to a "
        f"factor e^{shown(certificate.epsilon)}. To remove all traces, fit a new model without this user; it is "
        "charged to the account of the remaining users"
    )


def _from_rows(user: str, folder: Path) -> list[str]:
    cohort = Cohort.open(folder, mmap=False)
    keep = _others(cohort.users, user)
    if keep is None:
        return [f"{folder}: contains no rows of this user"]
    if not keep.any():
        raise ValueError(f"{folder} contains this user only. Remove the folder.")
    staging, old = _drafts(folder)
    cohort.take(np.flatnonzero(keep)).save(staging)
    folder.rename(old)
    staging.rename(folder)
    shutil.rmtree(old)
    return [f"{folder}: removed this user's rows; {int(keep.sum())} users stay. An interrupted fit on it starts again"]


def _drafts(folder: Path) -> tuple[Path, Path]:
    """Return where rows without a user are written, and where the old ones are while both exist."""
    return folder.with_name(f".{folder.name}.without"), folder.with_name(f".{folder.name}.before")


def _finish_interrupted(folder: Path) -> None:
    """Remove the rows that an interrupted deletion left beside a folder, or put back the folder if it was moved."""
    staging, old = _drafts(folder)
    if old.is_dir() and not folder.exists():
        old.rename(folder)
    for left in (staging, old):
        if left.is_dir():
            shutil.rmtree(left)


def _from_site(user: str, folder: Path) -> list[str]:
    done = _from_rows(user, folder / "cohort")
    heads = folder / "heads.npz"
    if heads.is_file():
        with np.load(heads, allow_pickle=False) as stored:
            arrays = dict(stored)
        keep = _others(arrays["users"], user)
        if keep is not None:
            arrays |= {name: arrays[name][keep] for name in ("users", "heads")}
            _replace(heads, lambda file: np.savez(file, **arrays))
            done.append(f"{heads}: removed this user's head")
    card = json.loads((folder / "card.json").read_text("utf-8"))
    card["users"] = Cohort.open(folder / "cohort").n_users
    draft = folder / ".card.json"
    draft.write_text(json.dumps(card), "utf-8")
    draft.replace(folder / "card.json")
    done.append(f"{folder / 'card.json'}: {card['users']} users; give it to the coordinator for the next run")
    return done


def _others(users: np.ndarray[Any, Any], user: str) -> np.ndarray[Any, Any] | None:
    """Return a mask of all users except one; None if that user does not exist. 17 and '17' are the same id."""
    position = int(Directory(users).find(np.array([user]))[0])
    if position < 0:
        return None
    keep = np.ones(len(users), dtype=bool)
    keep[position] = False
    return keep


def _replace(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Replace a private file as a whole, and remove temporary files of interrupted attempts."""
    for draft in path.parent.glob(f".{path.name}.*"):
        draft.unlink(missing_ok=True)
    with replacing(path) as file:
        write(file)
