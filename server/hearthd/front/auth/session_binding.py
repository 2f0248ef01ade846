"""Session binding (sessions bound to the credential that opened them), and checks of client certificates.

A session's token alone is sufficient to use the session, so that a client can reconnect over another connection. If
`sessions.bind` is set, the token is refused with any credential other than the one that opened the session. A session
that was opened with a certificate is refused on connections without that certificate, so that a stolen token is
useless.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from hearth_proto.reasons import Reason, Refusal
from hearthd.front.tenancy.revocations import CertificateIdentity, Revocations, identity

if TYPE_CHECKING:
    from hearthd.front.tenancy.tenants import Caller

_MAX_IDENTITIES = 1024

shown_caller: ContextVar[Caller | None] = ContextVar("shown_caller", default=None)
"""The caller that the headers of the present call show. None: they show no credential."""


class ClientCertificates:
    """The certificates of connections, each parsed once, and the list of revoked certificates."""

    def __init__(self) -> None:
        self.revocations: Revocations | None = None
        """The revocation lists. None: none is configured."""
        self._identities: dict[bytes, CertificateIdentity | None] = {}

    def identity(self, auth_context: Mapping[str, Any]) -> CertificateIdentity | None:
        """Returns the identity of a connection's certificate.

        None if no revocation list is configured, or the certificate cannot be parsed.
        """
        if self.revocations is None:
            return None
        pem = next(iter(auth_context.get("x509_pem_cert") or ()), b"")
        if pem not in self._identities:
            if len(self._identities) >= _MAX_IDENTITIES:
                del self._identities[next(iter(self._identities))]
            try:
                self._identities[pem] = identity(pem)
            except ValueError:
                self._identities[pem] = None
        return self._identities[pem]

    def revokes(self, certificate: CertificateIdentity | None) -> bool:
        """Returns True if a revocation list is configured and the certificate is on it, or could not be parsed."""
        if self.revocations is None:
            return False
        self.revocations.refresh()
        return certificate is None or self.revocations.revokes(certificate)


class Binding:
    """The setting `sessions.bind`, and its check."""

    enabled = False

    def check_call(self, owner: Caller) -> None:
        """Raises `UNAUTHENTICATED` if the present call shows another credential than the session's owner.

        Also raises it if the call shows none and the owner's credential is a certificate.
        """
        if self.enabled:
            self.check(owner, shown_caller.get())

    def check(self, owner: Caller, shown: Caller | None) -> None:
        """Checks the credential `shown`, in the same way as `check_call`."""
        if shown is None and not isinstance(owner.proof, tuple):
            return
        if shown is None or shown.proof != owner.proof or shown.certificate != owner.certificate:
            raise Refusal(
                Reason.UNAUTHENTICATED,
                f"The session was opened with another credential ({owner.credential}), to which it is bound.",
                fix="Use the credential that opened it, or open another session.",
            )
