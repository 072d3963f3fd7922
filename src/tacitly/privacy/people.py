"""People: the users behind a run, as keyed fingerprints.

An account belongs to a group of people. To detect that two runs are on the same people, a ledger keeps 8 bytes for each
user: a keyed hash of the id. Without the key, which stays in :mod:`tacitly.privacy.home`, these bytes reveal nothing
about an id. With the key, its owner can count how many users two accounts share. The fingerprint of all users together
identifies a roster.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

_SIZE = 8


@dataclass(frozen=True)
class People:
    """Users as sorted, distinct keyed hashes; ``key`` names the key, without giving it away."""

    hashes: NDArray[np.uint64]
    key: str

    @classmethod
    def of(cls, ids: Iterable[Any], secret: bytes) -> People:
        """Fingerprint users by their ids; 7 and "7" are one id, because tables do not always keep types.

        >>> a, b = People.of([7, 8], b"k"), People.of(["9", "8", "7"], b"k")
        >>> len(a), a.shared(b), len(a.without(b)), len(b.without(a))
        (2, 2, 0, 1)
        """
        known = [_hash(str(one).strip().encode("utf-8", "backslashreplace"), secret) for one in ids]
        return cls(np.unique(np.frombuffer(b"".join(known), dtype=">u8")).astype(np.uint64), key_name(secret))

    @classmethod
    def from_bytes(cls, data: bytes, key: str) -> People:
        """Read the output of :meth:`to_bytes`."""
        return cls(np.frombuffer(data, dtype=">u8").astype(np.uint64), key)

    def to_bytes(self) -> bytes:
        """Return the hashes, 8 bytes each."""
        return self.hashes.astype(">u8").tobytes()

    def __len__(self) -> int:
        return len(self.hashes)

    @property
    def fingerprint(self) -> str:
        """A name for exactly these users."""
        return hashlib.sha256(self.key.encode() + self.to_bytes()).hexdigest()[:32]

    def shared(self, others: People) -> int:
        """Return how many users are among the others too; 0 if the keys differ, so that hashes cannot be compared."""
        return len(np.intersect1d(self.hashes, others.hashes, assume_unique=True)) if self.key == others.key else 0

    def without(self, others: People) -> People:
        """Return those who are not among the others."""
        if self.key != others.key:
            return self
        return People(np.setdiff1d(self.hashes, others.hashes, assume_unique=True), self.key)

    def joined(self, others: People) -> People:
        """Return all of both, who must have one key."""
        return People(np.union1d(self.hashes, others.hashes), self.key)


def key_name(secret: bytes) -> str:
    """Return a name for a key from which the key cannot be computed."""
    return hashlib.blake2b(b"tacitly key", key=secret, digest_size=8).hexdigest()


def _hash(text: bytes, secret: bytes) -> bytes:
    return hashlib.blake2b(text, key=secret, digest_size=_SIZE, person=b"tacitly user").digest()
