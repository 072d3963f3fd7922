"""Masked sums: every node hides its answer behind a mask, and any ``threshold`` nodes can remove the sum of the masks.

A masked sum takes three exchanges, all through the coordinator:

1. Every node sends its answer plus a mask, modulo the prime p = 2⁶¹ - 1, and to every other node a share of that mask
   (Shamir 1979: the values of a polynomial of degree t - 1 whose constant is the mask), encrypted for that node.
2. The coordinator names the group: the nodes whose answers arrived. Every node votes for one group per question, once
   and for all (its ledger records which), by a message authentication code for each other node.
3. A node that sees t votes for the group adds up its shares of the group's masks and sends the sum. The sums of any t
   nodes determine the sum of the group's masks, and nothing else about them.

So the loss of a node at any moment does not stop the sum, as long as t other nodes are available.

Why it hides summands. Nodes know each other's public keys from the roster that each was given, not from the
coordinator. With t = ⌊(n + c)/2⌋ + 1, any two sets of t nodes share a node that is not among the c colluding ones, and
this node votes once. So only one group per question can have t votes, and honest nodes add up shares for one group
only. Fewer than t shares of a mask contain no information about it, and c < t. Hence the coordinator and c nodes learn
the sum of the group's answers, which contains the noise that every honest node of the group added to its own answer,
and no other function of the honest nodes' answers. This requires that all n - c other nodes follow the protocol and
keep their ledgers: a node that votes twice counts as colluding. Keys, masks and shares are derived from the whole
question and the roster's keys (HKDF-SHA256 over their digests, expanded by ChaCha20). So answers to different
questions, or of nodes with different rosters, cannot be added, and a node that is asked again sends the same bytes.
There is no forward secrecy: whoever steals a node's key can decrypt what that node sent earlier, if it was recorded.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from tacitly.federation.flower.groups import TAG, threshold

Integers = npt.NDArray[np.int64]

PRIME = 2**61 - 1

_NONCE = bytes(12)  # a key seals one message only


def new_key() -> tuple[bytes, bytes]:
    """Make a private key and the matching public key, 32 bytes each.

    >>> private, public = new_key()
    >>> len(private), len(public)
    (32, 32)
    """
    key = X25519PrivateKey.generate()
    return key.private_bytes_raw(), key.public_key().public_bytes_raw()


def roster_digest(keys: Mapping[str, bytes], colluding: int) -> bytes:
    """Return a digest of who takes part, by name and public key, and of how many may collude."""
    content = [sorted((name, key.hex()) for name, key in keys.items()), colluding]
    return hashlib.sha256(json.dumps(content).encode()).digest()


def hidden_size(coordinates: int, nodes: int) -> int:
    """Return the length of a masked answer: the answer, and a share for every other node, in words of 64 bits."""
    return coordinates + (nodes - 1) * (coordinates + TAG // 8)


@dataclass(frozen=True)
class Masks:
    """What a node needs for masked sums: its name and private key, and the others' public keys by name.

    >>> keys = {name: new_key() for name in "abc"}
    >>> nodes = [
    ...     Masks(name, keys[name][0], {other: key for other, (_, key) in keys.items() if other != name}, 1)
    ...     for name in keys
    ... ]
    >>> question, group = b"all three were asked", ("a", "b", "c")
    >>> hidden = {node.name: node.hide(np.array([1, -2]), question) for node in nodes}
    >>> votes = {node.name: node.vote(question, group) for node in nodes}
    >>> sums = {
    ...     node.name: node.unmask(question, group, *for_node(node.name, group, hidden, votes, "abc")) for node in nodes
    ... }
    >>> revealed(hidden, group, sums, "abc", 2, 3)
    array([ 3, -6])
    """

    name: str
    private: bytes
    peers: Mapping[str, bytes]
    colluding: int

    @cached_property
    def names(self) -> list[str]:
        """All nodes, in the order that numbers them."""
        return sorted((self.name, *self.peers))

    @cached_property
    def roster(self) -> bytes:
        """Who takes part, as this node was told: part of every question, so that no answer serves two rosters."""
        own = X25519PrivateKey.from_private_bytes(self.private).public_key().public_bytes_raw()
        return roster_digest({**self.peers, self.name: own}, self.colluding)

    @property
    def needed(self) -> int:
        """How many nodes must take part in removing masks."""
        return threshold(len(self.names), self.colluding)

    def hide(self, total: Integers, question: bytes) -> Integers:
        """Return ``total`` plus a mask, and after it the shares of that mask, sealed for each other node in order."""
        terms = self._polynomial(total.size, question)
        masked = (np.mod(total, PRIME).astype(np.uint64) + terms[0]) % PRIME
        sealed = [
            ChaCha20Poly1305(self._key(other, question, "share", self.name, other)).encrypt(
                _NONCE, self._share(terms, other).astype("<u8").tobytes(), None
            )
            for other in self.names
            if other != self.name
        ]
        return np.concatenate([masked.astype(np.int64), np.frombuffer(b"".join(sealed), dtype="<i8")])

    def vote(self, question: bytes, group: Sequence[str]) -> Integers:
        """Return a vote for a group, for each other node in order. The caller lets no node vote for two groups."""
        votes = [self._vote(other, question, group, self.name, other) for other in self.names if other != self.name]
        return np.frombuffer(b"".join(votes), dtype="<i8").astype(np.int64)

    def unmask(self, question: bytes, group: Sequence[str], votes: bytes, sealed: bytes) -> Integers | None:
        """Return the sum of this node's shares of the group's masks; None without enough votes or with other shares."""
        others, members = [name for name in self.names if name != self.name], [n for n in group if n != self.name]
        own = [votes[i * TAG : (i + 1) * TAG] for i in range(len(others))]
        right = [
            hmac.compare_digest(one, self._vote(other, question, group, other, self.name))
            for one, other in zip(own, others, strict=True)
        ]
        length = len(sealed) // max(len(members), 1)
        if 1 + sum(right) < self.needed or length * len(members) != len(sealed) or length % 8 or length <= TAG:
            return None
        size = (length - TAG) // 8
        total = np.zeros(size, dtype=np.uint64)
        for i, other in enumerate(members):
            key = self._key(other, question, "share", other, self.name)
            try:
                share = ChaCha20Poly1305(key).decrypt(_NONCE, sealed[i * length : (i + 1) * length], None)
            except InvalidTag:
                return None
            total = (total + np.frombuffer(share, dtype="<u8") % PRIME) % PRIME
        if self.name in group:
            total = (total + self._share(self._polynomial(size, question), self.name)) % PRIME
        return total.astype(np.int64)

    def _polynomial(self, size: int, question: bytes) -> npt.NDArray[np.uint64]:
        """Return the mask and the other coefficients: one row per power, pseudorandom below p.

        (61 random bits are p itself with probability 2⁻⁶¹, and count as 0 then.)
        """
        key = self._derived(self.private, question, "mask", self.name, str(size))
        cipher = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
        stream = cipher.update(bytes(8 * size * self.needed))
        words = np.frombuffer(stream, dtype="<u8").reshape(self.needed, size)
        return (words & np.uint64(PRIME)) % PRIME

    def _share(self, terms: npt.NDArray[np.uint64], other: str) -> npt.NDArray[np.uint64]:
        """Return the polynomial's value at another node's number, by Horner's rule."""
        at = self.names.index(other) + 1
        value: npt.NDArray[np.uint64] = terms[-1]
        for term in terms[-2::-1]:
            value = (_times(value, at) + term) % PRIME
        return value

    def _vote(self, other: str, question: bytes, group: Sequence[str], voter: str, reader: str) -> bytes:
        key = self._key(other, question, "vote", voter, reader)
        return hmac.digest(key, json.dumps(list(group)).encode(), hashlib.sha256)[:TAG]

    def _key(self, other: str, question: bytes, *purpose: str) -> bytes:
        mine, theirs = (X25519PrivateKey.from_private_bytes(self.private), self.peers[other])
        return self._derived(mine.exchange(X25519PublicKey.from_public_bytes(theirs)), question, *purpose)

    def _derived(self, secret: bytes, question: bytes, *purpose: str) -> bytes:
        context = json.dumps(["tacitly", *purpose, self.roster.hex(), question.hex()]).encode()
        return HKDF(algorithm=hashes.SHA256(), length=32, salt=None, info=context).derive(secret)


def for_node(
    name: str, group: Sequence[str], hidden: Mapping[str, Integers], votes: Mapping[str, Integers], names: Sequence[str]
) -> tuple[bytes, bytes]:
    """Return what a node needs for unmasking: the votes for it, zeros where there is none, and the group's shares."""
    others = [other for other in sorted(names) if other != name]
    ballots = [_piece(votes[other], other, name, names, 0) if other in votes else bytes(TAG) for other in others]
    parts = []
    for other in group:
        if other != name:
            size = (hidden[other].size - (len(names) - 1) * TAG // 8) // len(names)
            parts.append(_piece(hidden[other][size:], other, name, names, size))
    return b"".join(ballots), b"".join(parts)


def _piece(words: Integers, sender: str, reader: str, names: Sequence[str], size: int) -> bytes:
    place = [other for other in sorted(names) if other != sender].index(reader)
    length = size + TAG // 8
    return bytes(words[place * length : (place + 1) * length].astype("<i8").tobytes())


def revealed(
    hidden: Mapping[str, Integers],
    group: Sequence[str],
    sums: Mapping[str, Integers],
    names: Sequence[str],
    coordinates: int,
    needed: int,
) -> Integers:
    """Return the sum of the group's answers from their masked answers and any ``needed`` sums of shares."""
    points = {name: sorted(names).index(name) + 1 for name in list(sums)[:needed]}
    masks = np.zeros(coordinates, dtype=object)
    for name, at in points.items():
        weight = 1
        for other in points.values():
            if other != at:
                weight = weight * other * pow(other - at, -1, PRIME) % PRIME
        masks = (masks + weight * sums[name].astype(object)) % PRIME
    total = sum(hidden[name][:coordinates].astype(object) for name in group)
    value = np.asarray((total - masks) % PRIME).astype(np.int64)
    return np.where(value > PRIME // 2, value - PRIME, value)


def _times(values: npt.NDArray[np.uint64], factor: int) -> npt.NDArray[np.uint64]:
    """Return the product with a number below 2¹⁶ modulo p, for values below p: 2⁶¹ is 1 there."""
    low, high = (values & np.uint64(2**32 - 1)) * np.uint64(factor), (values >> np.uint64(32)) * np.uint64(factor)
    total = (high >> np.uint64(29)) + ((high & np.uint64(2**29 - 1)) << np.uint64(32)) + low
    return np.asarray(total % PRIME)
