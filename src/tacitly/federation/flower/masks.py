"""A sum, and no summand: every node hides its answer behind masks that cancel when all answers are added.

Two nodes that know each other's public key (from the roster each was given, not from the coordinator) agree on a secret
(X25519), derive a fresh key from it (HKDF-SHA256) for every question, to the last of its numbers, and stretch that to
integers (ChaCha20). Two nodes that were asked different things (another clip, say) have masks that do not cancel.
One adds them, the other subtracts, modulo 2⁶⁴. What the coordinator gets of a node is uniform to whoever does not know
its secrets; what it gets of the whole group is the sum, with the noise that every node put into its own answer before.

Why one answer a release. Given sums of two groups that differ by one node, the coordinator would know that node's
answer with that node's share of the noise only. So a node answers for one group a release (its ledger remembers which);
if somebody of the group is lost after that, masks do not cancel, the sum is unreadable and the release is aborted.
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
    """Make a private key and its public one, 32 bytes each.

    >>> private, public = new_key()
    >>> len(private), len(public)
    (32, 32)
    """
    key = X25519PrivateKey.generate()
    return key.private_bytes_raw(), key.public_key().public_bytes_raw()


def masked(
    total: npt.NDArray[np.int64], name: str, ask: Ask, private: bytes, peers: Mapping[str, bytes]
) -> npt.NDArray[np.int64]:
    """Hide ``total`` behind the masks that ``name`` shares with everybody else of the ask's group.

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
        about = json.dumps(["tacitly mask", *sorted((name, other)), ask.question().hex()]).encode()
        mask = _stretched(secret, about, total.size)
        hidden = hidden + mask if name < other else hidden - mask
    return hidden.view(np.int64)


def _stretched(secret: bytes, about: bytes, size: int) -> npt.NDArray[np.uint64]:
    """Turn a shared secret into ``size`` integers, another for every ``about``."""
    key = HKDF(algorithm=hashes.SHA256(), length=32, salt=None, info=about).derive(secret)
    # The key is used once, so the nonce (and counter) may be zero.
    stream = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(8 * size))
    return np.frombuffer(stream, dtype="<u8").astype(np.uint64)
