"""Sessions that are bound to the credential that opened them, and the client certificates that may be shown.

A session's token alone is enough to use it, which is what lets a client come back over another connection. Where
`sessions.bind` is set, it is refused beside another credential than the one that opened the session; one that was
opened with a certificate is refused on connections without that certificate, so that a thief has no use for the token.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from hearth_proto.reasons import Reason, Refusal
from hearthd.front.tenancy.revocations import CertificateIdentity, Revocations, identity

if TYPE_CHECKING:
    from hearthd.front.tenancy.tenants import Caller

_MOST_KNOWN = 1024

showing: ContextVar[Caller | None] = ContextVar("showing", default=None)
"""The caller by the headers of the call that this task serves; None: they show no credential."""


class ClientCertificates:
    """The certificates of connections, parsed once each, and the list of those that were revoked."""

    def __init__(self) -> None:
        self.revocations: Revocations | None = None
        """The revocation lists; None: none is configured."""
        self._known: dict[bytes, CertificateIdentity | None] = {}

    def identity(self, auth_context: Mapping[str, Any]) -> CertificateIdentity | None:
        """Returns the identity of a connection's certificate; None without a revocation list, or if it cannot be
        read."""
        if self.revocations is None:
            return None
        pem = next(iter(auth_context.get("x509_pem_cert") or ()), b"")
        if pem not in self._known:
            if len(self._known) >= _MOST_KNOWN:
                del self._known[next(iter(self._known))]
            try:
                self._known[pem] = identity(pem)
            except ValueError:
                self._known[pem] = None
        return self._known[pem]

    def revokes(self, certificate: CertificateIdentity | None) -> bool:
        """Returns True if a list is configured and the certificate is on it, or cannot be looked up there."""
        if self.revocations is None:
            return False
        self.revocations.look()
        return certificate is None or self.revocations.revokes(certificate)


class Binding:
    """`sessions.bind`."""

    on = False

    def check_call(self, owner: Caller) -> None:
        """Raises `UNAUTHENTICATED` where the call under way shows another credential than the session's owner, or none
        where that is a certificate."""
        if self.on:
            self.check(owner, showing.get())

    def check(self, owner: Caller, shown: Caller | None) -> None:
        """Checks `shown` as `check_call` does."""
        if shown is None and not isinstance(owner.proof, tuple):
            return
        if shown is None or shown.proof != owner.proof or shown.certificate != owner.certificate:
            raise Refusal(
                Reason.UNAUTHENTICATED,
                f"The session was opened with another credential ({owner.credential}), to which it is bound.",
                fix="Show the credential that opened it, or open a session of your own.",
            )
