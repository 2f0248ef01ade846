"""Certificates of device processes, for the stripes of clients that use TLS.

Kernels of tenants run in a device process, so it must not have the node's own key. It gets a separate key, which is
made here and is useless elsewhere. Clients receive the certificate over their gRPC connection, and trust only that
certificate for stripes.
"""

from __future__ import annotations

import datetime
import hashlib
import secrets
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from hearthd.front.sessions.link_interface import Link

SECRET_BYTES = 16
_VALID_FROM = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)
_VALID_UNTIL = datetime.datetime(9999, 1, 1, tzinfo=datetime.UTC)
"""End of the validity of a certificate. It is never reached, because the certificate is discarded with its process; so
clocks of clients do not matter."""


class ProcessCertificate(NamedTuple):
    """A self-signed certificate with its key."""

    der: bytes
    pem: str
    key: str

    def proof(self) -> tuple[bytes, dict[str, Any]]:
        """Returns the secret second half of a ticket, and the data that the device process needs to check it.

        The data are sent together with the connection.
        """
        secret = secrets.token_bytes(SECRET_BYTES)
        return secret, {
            "certificate": self.pem,
            "key": self.key,
            "secret": hashlib.sha256(secret).hexdigest(),
        }


class ProcessCertificates:
    """The certificates of device processes. Each is created when it is first requested."""

    def __init__(self) -> None:
        self._certificates: WeakKeyDictionary[Link, ProcessCertificate] = WeakKeyDictionary()

    def of(self, link: Link) -> ProcessCertificate:
        """Returns the certificate of a device process."""
        certificate = self._certificates.get(link)
        if certificate is None:
            certificate = self._certificates[link] = make(f"hearth device process, generation {link.generation}")
        return certificate


def make(name: str) -> ProcessCertificate:
    """Returns a new certificate."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_VALID_FROM)
        .not_valid_after(_VALID_UNTIL)
        # The certificate is its own authority.
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return ProcessCertificate(
        certificate.public_bytes(serialization.Encoding.DER),
        certificate.public_bytes(serialization.Encoding.PEM).decode(),
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ).decode(),
    )
