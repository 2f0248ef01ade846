"""The daemon's certificate: checked at the start, and read again when its files change."""

from __future__ import annotations

import hashlib
import math
import ssl
import stat
import threading
import time
from pathlib import Path
from typing import Any

import grpc
import structlog

log = structlog.get_logger("hearthd.tls")

_CHECK_INTERVAL = 5.0
"""Minimum interval, in seconds, between checks of the files. They are checked when a new connection arrives."""

Stamp = tuple[int, ...]
Configuration = Any
"""The type `grpc.ServerCertificateConfiguration`, which is missing in gRPC's stubs."""


class TlsError(Exception):
    """The certificate cannot be used. The text names the file, the reason and the remedy."""


class ServerCertificates:
    """Certificate, key, and the authority of client certificates, read from files.

    Thread-safe, because gRPC calls it from its own thread.
    """

    def __init__(self, certificate: str, key: str, client_ca: str = "") -> None:
        """Reads and checks the files. Raises `TlsError`."""
        self._files = [Path(path) for path in (certificate, key, client_ca) if path]
        self._certificate, self._key = Path(certificate), Path(key)
        self._client_ca = Path(client_ca) if client_ca else None
        self._lock = threading.Lock()
        self._checked_at = time.monotonic()
        self._stamp = self._file_stamp()
        self.expires = 0.0
        """Unix time after which clients refuse the certificate."""
        self.names: tuple[str, ...] = ()
        """Host names for which the certificate is valid."""
        self.context = self._check()
        """The context for HTTP, whose callers show tokens, and for the daemons of a group, which know the certificate
        from their ticket. Neither shows a certificate."""
        self._configuration = self._returned = self._read()

    # ---- interface for listeners ----

    def grpc(self) -> grpc.ServerCredentials:
        """Returns the credentials for gRPC, whose certificate can change while the server runs.

        Clients must show a certificate if `client_ca` is set.
        """
        return grpc.dynamic_ssl_server_credentials(
            self._configuration, self._renewed_configuration, require_client_authentication=self._client_ca is not None
        )

    def fingerprint(self) -> bytes:
        """Returns the SHA-256 of the present certificate in DER."""
        self.refresh()
        return self._fingerprint

    # ---- renewal ----

    def _renewed_configuration(self) -> Configuration:
        """Called by gRPC before each handshake.

        Returns the new configuration, or None if it is unchanged. Another call of `refresh` may have noticed the
        change, so the comparison is with the configuration that was returned last.
        """
        self.refresh()
        previous, self._returned = self._returned, self._configuration
        return None if previous is self._configuration else self._configuration

    def refresh(self) -> bool:
        """Reads the files again if they have changed. Returns True if they had changed and can be used."""
        with self._lock:
            now = time.monotonic()
            if now - self._checked_at < _CHECK_INTERVAL:
                return False
            self._checked_at = now
            try:
                stamp = self._file_stamp()
                if stamp == self._stamp:
                    return False
                self._check()
                self._configuration = self._read()
                self.context.load_cert_chain(self._certificate, self._key)
            except (TlsError, OSError, ssl.SSLError) as error:
                log.error("certificate_not_renewed", why=str(error))  # the earlier certificate stays in use
                return False
            self._stamp = stamp
            log.info("certificate_renewed", certificate=str(self._certificate))
            return True

    def _file_stamp(self) -> Stamp:
        stamp: list[int] = []
        for path in self._files:
            try:
                status = path.stat()
            except OSError as error:
                raise TlsError(f"tls: {path} cannot be read: {error.strerror or error}") from None
            stamp += [status.st_mtime_ns, status.st_size, status.st_ino]
        return tuple(stamp)

    def _read(self) -> Configuration:
        certificate = self._certificate.read_bytes()
        pairs = [(self._key.read_bytes(), certificate)]
        self._fingerprint = hashlib.sha256(_first_der(certificate)).digest()
        authority = self._client_ca.read_bytes() if self._client_ca is not None else None
        return grpc.ssl_server_certificate_configuration(pairs, authority)

    def _check(self) -> ssl.SSLContext:
        """Returns a context with the certificate. Raises `TlsError` if a client could not accept it."""
        mode = self._key.stat().st_mode
        if mode & (stat.S_IROTH | stat.S_IWOTH):
            raise TlsError(
                f"tls.key: every user may read {self._key} (mode {stat.S_IMODE(mode):04o}); chmod 600 {self._key}"
            )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self._certificate, self._key, password=_no_password)
        except ssl.SSLError as error:
            raise TlsError(f"tls: {self._certificate} and {self._key}: {_error_text(error)}") from None
        except OSError as error:
            raise TlsError(f"tls: {error.filename or self._key} cannot be read: {error.strerror or error}") from None
        if self._client_ca is not None:
            try:
                ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(self._client_ca)
            except (ssl.SSLError, OSError) as error:
                raise TlsError(
                    f"tls.client_ca: {self._client_ca} holds no certificates: {_error_text(error)}"
                ) from None
        self.expires, self.names = _verify(context, self._certificate)
        return context


def _verify(server: ssl.SSLContext, certificate: Path) -> tuple[float, tuple[str, ...]]:
    """Returns the end of the certificate's validity (Unix time), and the host names for which it is valid.

    Until that time a client that trusts this certificate accepts it. Performs a handshake in memory, which makes all
    checks of a real one. Raises `TlsError` if the certificate would be refused now.
    """
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    client.load_verify_locations(certificate)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (server.wrap_bio(to_server, to_client, server_side=True), client.wrap_bio(to_client, to_server))
    completed = [False, False]
    for _ in range(8):
        for index in (1, 0):
            try:
                ends[index].do_handshake()
                completed[index] = True
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLCertVerificationError as error:
                raise TlsError(
                    f"tls.certificate: {certificate} is refused by clients: {error.verify_message}"
                ) from None
            except ssl.SSLError as error:
                raise TlsError(f"tls.certificate: {certificate} cannot be used: {_error_text(error)}") from None
        if all(completed):
            break
    certificate_fields: dict[str, Any] = dict(ends[1].getpeercert() or {})
    expires = certificate_fields.get("notAfter")
    names = tuple(str(name) for kind, name in certificate_fields.get("subjectAltName", ()) if kind == "DNS")
    return float(ssl.cert_time_to_seconds(str(expires))) if expires else math.inf, names


def _first_der(pem: bytes) -> bytes:
    """Returns the daemon's own certificate, which precedes those of the authorities in the file."""
    text = pem.decode("ascii", "replace")
    begin = text.index(ssl.PEM_HEADER)
    end = text.index(ssl.PEM_FOOTER, begin) + len(ssl.PEM_FOOTER)
    return ssl.PEM_cert_to_DER_cert(text[begin:end])


def _no_password() -> str:
    raise TlsError(
        "tls.key: the key is encrypted, and a daemon cannot ask for its password; keep it decrypted, mode 600"
    )


def _error_text(error: Exception) -> str:
    reason = getattr(error, "reason", None)
    if reason == "KEY_VALUES_MISMATCH":
        return "the key does not belong to the certificate"
    if reason in ("NO_CERTIFICATE_OR_CRL_FOUND", "NO_START_LINE", "PEM_LIB", "PEM lib"):
        return "it is not a PEM file of the required kind"
    return str(reason or getattr(error, "strerror", None) or error)
