"""Revoked client certificates: lists of their authorities (CRL, RFC 5280), read again when the file changes.

gRPC's Python server does not support such lists, so a revoked certificate completes the handshake and is refused at its
first call. A list remains in force after its `nextUpdate`, with a warning, because without it the revoked certificates
would be valid again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import structlog

from hearthd.shared.log import LogThrottle

log = structlog.get_logger("hearthd.tls")

_CHECK_INTERVAL = 2.0
"""Minimum interval, in seconds, between checks of the file."""


class RevocationError(Exception):
    """The list cannot be used. The text is one line for the operator."""


class CertificateIdentity(NamedTuple):
    """The identity of a certificate: the name of its authority, and its serial number there."""

    issuer: bytes
    serial: int


def identity(pem: bytes) -> CertificateIdentity:
    """Returns the identity of a certificate in PEM. Raises `ValueError`."""
    from cryptography import x509

    certificate = x509.load_pem_x509_certificate(pem)
    return CertificateIdentity(certificate.issuer.public_bytes(), certificate.serial_number)


class Revocations:
    """The revocation lists in one file, of one or more authorities."""

    def __init__(self, path: str, client_ca: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Reads the file; an empty `path` means that there is none. Raises `RevocationError`."""
        self.path = path
        self.next_update = float("inf")
        """Unix time until which the lists are valid; the earliest of their times."""
        self.changes = 0
        """Number of changes of the set of revoked certificates."""
        self._client_ca = client_ca
        self._clock = clock
        self._log_throttle = LogThrottle()
        self._revoked: frozenset[CertificateIdentity] = frozenset()
        self._checked_at = clock()
        self._stamp: tuple[int, ...] = ()
        if path:
            self._stamp = self._file_stamp()
            self._revoked, self.next_update = self._read()

    def __len__(self) -> int:
        return len(self._revoked)

    def refresh(self) -> None:
        """Reads the file again if it has changed; `changes` counts that.

        A file that cannot be used is logged and changes nothing.
        """
        now = self._clock()
        if not self.path or now - self._checked_at < _CHECK_INTERVAL:
            return
        self._checked_at = now
        if self.next_update < time.time() and self._log_throttle.due("expired", now):
            log.warning("crl_expired", path=self.path, action="it remains in force; install the authority's new list")
        try:
            stamp = self._file_stamp()
            if stamp == self._stamp:
                return
            revoked, self.next_update = self._read()
        except RevocationError as error:
            if self._log_throttle.due("unusable", now):
                log.error("crl_not_renewed", why=str(error))
            return
        self.changes += revoked != self._revoked
        self._stamp, self._revoked = stamp, revoked
        log.info("crl_renewed", path=self.path, revoked=len(revoked))

    def revokes(self, certificate: CertificateIdentity | None) -> bool:
        """Returns True if the certificate is on a list."""
        return certificate is not None and certificate in self._revoked

    def _file_stamp(self) -> tuple[int, ...]:
        try:
            status = Path(self.path).stat()
        except OSError as error:
            raise RevocationError(f"tls.crl: {self.path} cannot be read: {error.strerror or error}") from None
        return status.st_mtime_ns, status.st_size, status.st_ino

    def _read(self) -> tuple[frozenset[CertificateIdentity], float]:
        from cryptography import x509

        try:
            data = Path(self.path).read_bytes()
            authorities = x509.load_pem_x509_certificates(Path(self._client_ca).read_bytes())
            blocks = data.split(b"-----BEGIN X509 CRL-----")[1:]
            lists = [x509.load_pem_x509_crl(b"-----BEGIN X509 CRL-----" + block) for block in blocks]
            lists = lists or [x509.load_der_x509_crl(data)]
        except OSError as error:
            raise RevocationError(f"tls.crl: {self.path} cannot be read: {error.strerror or error}") from None
        except ValueError as error:
            raise RevocationError(f"tls.crl: {self.path} is not a list of revoked certificates: {error}") from None
        revoked: set[CertificateIdentity] = set()
        next_update = float("inf")
        for crl in lists:
            issuers = [ca for ca in authorities if ca.subject == crl.issuer]
            if not any(crl.is_signature_valid(ca.public_key()) for ca in issuers):  # type: ignore[arg-type]
                raise RevocationError(
                    f"tls.crl: the list of {crl.issuer.rfc4514_string()} in {self.path} was not signed by any "
                    f"authority of tls.client_ca"
                )
            revoked.update(CertificateIdentity(crl.issuer.public_bytes(), entry.serial_number) for entry in crl)
            if crl.next_update_utc is not None:
                next_update = min(next_update, crl.next_update_utc.timestamp())
        return frozenset(revoked), next_update
