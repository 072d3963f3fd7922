"""Signatures on certificates: Ed25519, with a key that stays in :mod:`tacitly.privacy.home`.

A signature proves who issued a certificate, to anybody who got the public key through another channel
(``tacitly verify --key``; :mod:`tacitly.privacy.verification` checks it). Signing needs the package ``cryptography``
(extra ``signing``); without it, certificates are not signed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tacitly.privacy import home

if TYPE_CHECKING:
    from tacitly.privacy.certificate import Certificate

_CONTEXT = b"tacitly certificate\n"


def signed(certificate: Certificate) -> Certificate:
    """Return the certificate with this user's signature; without one where no key can be made or used."""
    plain = replace(certificate, signature=None)
    try:
        key = _private()
    except (ImportError, OSError):
        return plain
    value = key.sign(_CONTEXT + plain.digest.encode()).hex()
    return replace(plain, signature={"key": key.public_key().public_bytes_raw().hex(), "value": value})


def _private() -> Any:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(home.secret("signing.key"))
