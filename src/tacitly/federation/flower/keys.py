"""Keys and certificates of a federation, made with ``cryptography``: the identity of nodes and of the coordinator."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.x509.oid import NameOID

from tacitly.portable import write_private

_SIGNATURE = 64
_DAYS = 825


def make_node_key(path: Path) -> str:
    """Make the key by which Flower identifies a node; write the private part to ``path``, return the public part."""
    key = ec.generate_private_key(ec.SECP384R1())
    form = serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    write_private(path, key.private_bytes(*form))
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return public.decode()


def make_signing_key(path: Path) -> str:
    """Make the key with which the coordinator signs every ask; return the public part as hexadecimal digits."""
    key = Ed25519PrivateKey.generate()
    write_private(path, key.private_bytes_raw())
    return key.public_key().public_bytes_raw().hex()


def signed(data: bytes, private: bytes) -> bytes:
    """Prepend a signature to a message.

    >>> key = Ed25519PrivateKey.generate()
    >>> public = key.public_key().public_bytes_raw()
    >>> opened(signed(b"ask", key.private_bytes_raw()), public)
    b'ask'
    >>> opened(bytes(64) + b"ask", public) is None
    True
    """
    return Ed25519PrivateKey.from_private_bytes(private).sign(data) + data


def opened(data: bytes, public: bytes) -> bytes | None:
    """Return a message without its signature, or None if the signature is not valid."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(data[:_SIGNATURE], data[_SIGNATURE:])
    except InvalidSignature:
        return None
    return data[_SIGNATURE:]


def make_certificates(folder: Path, host: str) -> None:
    """Make a certificate authority and a certificate for ``host``: ca.crt, server.pem and server.key."""
    authority = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tacitly federation")])
    root = _certificate(name, name, authority.public_key(), authority, authority=True)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
    names: list[x509.GeneralName] = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    try:
        names.append(x509.IPAddress(ipaddress.ip_address(host)))
    except ValueError:
        names.append(x509.DNSName(host))
    leaf = _certificate(subject, name, key.public_key(), authority, names=list(dict.fromkeys(names)))
    # The authority's key is never written, so that nobody can issue another certificate.
    (folder / "ca.crt").write_bytes(root.public_bytes(serialization.Encoding.PEM))
    (folder / "server.pem").write_bytes(leaf.public_bytes(serialization.Encoding.PEM))
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    write_private(folder / "server.key", key.private_bytes(*form))


def _certificate(
    subject: x509.Name,
    issuer: x509.Name,
    public: ec.EllipticCurvePublicKey,
    signer: ec.EllipticCurvePrivateKey,
    *,
    names: list[x509.GeneralName] | None = None,
    authority: bool = False,
) -> x509.Certificate:
    now = datetime.datetime.now(datetime.UTC) - datetime.timedelta(minutes=5)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now)
        .not_valid_after(now + datetime.timedelta(days=_DAYS))
        .add_extension(x509.BasicConstraints(ca=authority, path_length=0 if authority else None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    if authority:
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        builder = builder.add_extension(usage, critical=True)
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(signer, hashes.SHA256())
