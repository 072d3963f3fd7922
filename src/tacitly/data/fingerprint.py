"""A keyed fingerprint of rows: it shows whether two fits used the same data, and reveals nothing about the data.

A resumed run replays what was released from the rows it was started with. On other rows, the certificate would describe
data that the model never saw. So a run records a fingerprint of its rows. The fingerprint is keyed
(:func:`tacitly.privacy.home.secret`): a person who has the ledger but not the key cannot test guesses about a row.
"""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from tacitly.portable import cpu_count

_BLOCK = 1 << 26  # bytes hashed at a time; hashing releases the GIL, so blocks are hashed in parallel


def rows_fingerprint(cohort: Any, secret: bytes) -> str:
    """Return a keyed hash of all arrays of a cohort: rows, targets, ids."""
    digest = hashlib.blake2b(key=secret, digest_size=16, person=b"tacitly rows")
    for name, array in sorted(_arrays(cohort).items()):
        digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        for part in _hashes(array, secret):
            digest.update(part)
    return digest.hexdigest()


def _arrays(cohort: Any) -> dict[str, np.ndarray[Any, Any]]:
    """Return the arrays of a cohort by name, including those of a sparse matrix."""
    found = {}
    for name in ("X", "y", "offsets", "users"):
        value = getattr(cohort, name, None)
        if isinstance(value, np.ndarray):
            found[name] = value
        elif value is not None:
            parts = {part: getattr(value, part, None) for part in ("data", "indices", "indptr")}
            found |= {f"{name}.{part}": array for part, array in parts.items() if isinstance(array, np.ndarray)}
    return found


def _hashes(array: np.ndarray[Any, Any], secret: bytes) -> list[bytes]:
    if array.dtype.hasobject:
        array = array.astype(str)
    flat = np.ascontiguousarray(array).reshape(-1)
    step = max(1, _BLOCK // max(flat.itemsize, 1))
    blocks = [flat[start : start + step] for start in range(0, len(flat), step)]

    def one(block: np.ndarray[Any, Any]) -> bytes:
        return hashlib.blake2b(np.ascontiguousarray(block).view(np.uint8).data, key=secret, digest_size=32).digest()

    with ThreadPoolExecutor(cpu_count()) as pool:
        return list(pool.map(one, blocks))
