"""The heads that a site keeps for its users: one file, replaced as a whole, readable by its owner only."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tacitly.federation import wire
from tacitly.heads.base import HeadWork
from tacitly.portable import replacing


def write_heads(path: Path, users: npt.NDArray[Any], heads: npt.NDArray[np.float64], work: HeadWork) -> Path:
    """Write heads, and what they were fitted to, atomically to a file that only its owner can read."""
    basis = np.asarray(getattr(work, "basis", 0.0))
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with replacing(path, durable=True) as file:
        np.savez(file, users=users, heads=heads, basis=basis, model=digest_of(work))
    return path


def read_heads(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Read the file of :func:`write_heads`: ``users``, ``heads`` (intercept last), their ``basis``, the ``model``.

    The last is :func:`digest_of` what they were fitted to; empty in a file of an earlier version.
    """
    with np.load(path, allow_pickle=False) as stored:
        return {"model": np.array("")} | {name: stored[name] for name in stored.files}


def digest_of(work: HeadWork) -> str:
    """Return a digest of everything that heads depend on besides a user's rows: bases, priors, settings."""
    return hashlib.sha256(wire.encode(work)).hexdigest()
