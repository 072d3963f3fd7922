"""Masked sums: every node hides its answer behind masks that cancel when all answers of a group are added.

Two nodes that know each other's public key (from the roster that each was given, not from the coordinator) agree on a
secret (X25519), derive a fresh key from it for every question (HKDF-SHA256 over the digest of the whole question), and
expand that key to integers (ChaCha20). One node adds them, the other subtracts them, modulo 2⁶⁴. If two nodes are asked
different questions (with different clips, say), their masks do not cancel.

Why it hides summands. To anyone who does not know a node's secrets, its masked answer is indistinguishable from uniform
integers, because ChaCha20 with a fresh key is a pseudorandom stream. The sum over the group is the sum of the answers,
including the noise that every node added to its own.

Why one answer per release. From the sums of two groups that differ by one node, the coordinator would learn that node's
answer protected by that node's share of the noise only. So a node answers for one group per release (its ledger records
which). If a node of the group is lost after that, the masks do not cancel, the sum is unreadable and the release is
aborted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from tacitly.federation.flower.messages import Ask


def new_key() -> tuple[bytes, bytes]:
    """Make a private key and the matching public key, 32 bytes each.

    >>> private, public = new_key()
    >>> len(private), len(public)
    (32, 32)
    """
    key = X25519PrivateKey.generate()
    return key.private_bytes_raw(), key.public_key().public_bytes_raw()


def masked(
    total: npt.NDArray[np.int64], name: str, ask: Ask, private: bytes, peers: Mapping[str, bytes]
) -> npt.NDArray[np.int64]:
    """Hide ``total`` behind the masks that ``name`` shares with each other node of the ask's group.

    >>> (a, public_a), (b, public_b) = new_key(), new_key()
    >>> ask = Ask(kind="sum", run="model", step="1.0", token="t", thing=b"", group=("a", "b"))
    >>> masked(np.array([1, 2]), "a", ask, a, {"b": public_b}) + masked(np.array([3, 4]), "b", ask, b, {"a": public_a})
    array([4, 6])
    """
    hidden = total.astype(np.uint64)
    key = X25519PrivateKey.from_private_bytes(private)
    for other in ask.group:
        if other == name:
            continue
        secret = key.exchange(X25519PublicKey.from_public_bytes(peers[other]))
        context = json.dumps(["tacitly mask", *sorted((name, other)), ask.question().hex()]).encode()
        mask = _expanded(secret, context, total.size)
        hidden = hidden + mask if name < other else hidden - mask
    return hidden.view(np.int64)


def _expanded(secret: bytes, context: bytes, size: int) -> npt.NDArray[np.uint64]:
    """Expand a shared secret to ``size`` pseudorandom integers, different for every ``context``."""
    key = HKDF(algorithm=hashes.SHA256(), length=32, salt=None, info=context).derive(secret)
    # The key is used once, so nonce and counter may be zero.
    stream = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(8 * size))
    return np.frombuffer(stream, dtype="<u8").astype(np.uint64)
