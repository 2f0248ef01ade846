"""Authentication: determines the tenant of each call from its credential.

The possible credentials are, in this order: the metadata `authorization: Bearer <token>`, `hearth-ticket` (see
`unix_identity`), `hearth-session` (a session's token, for all calls except the opening of a session), and the client
certificate of the TLS connection. Only the first one present counts, even if it is invalid and a later one would be
valid.

A peer that fails often is answered with a delay, and its failures are no longer written to the audit log. Valid
credentials are never delayed, so that no client can lock out other clients at the same address.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import structlog

from hearth_proto.reasons import Refusal
from hearthd.front.audit.recorder import Audit
from hearthd.front.auth.session_binding import Binding, ClientCertificates
from hearthd.front.errors import Context
from hearthd.front.sessions.session_table import SessionTable
from hearthd.front.tenancy.tenants import Caller, Directory, User, unauthenticated

log = structlog.get_logger("hearthd.auth")

AUTHORIZATION = "authorization"
TICKET = "hearth-ticket"
SESSION = "hearth-session"
_CREDENTIAL_KEYS = frozenset((AUTHORIZATION, TICKET, SESSION))

_WINDOW_S = 60.0
_MAX_PEERS = 1024
_MAX_DELAYED = 64
"""Maximum number of responses that are delayed concurrently. Further ones are sent without delay, which costs less."""


class AuthFailures:
    """The number of failures of each peer within the last minute.

    Pure. Bounded: the least recent peers are forgotten.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._peers: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def __len__(self) -> int:
        """Number of peers whose failures are remembered."""
        return len(self._peers)

    def add(self, peer: str, now: float) -> int:
        """Adds a failure and returns the peer's number of failures."""
        window_start, count = self._peers.pop(peer, (now, 0))
        if now - window_start >= _WINDOW_S:
            window_start, count = now, 0
        self._peers[peer] = (window_start, count + 1)
        if len(self._peers) > _MAX_PEERS:
            self._peers.popitem(last=False)
        return count + 1


class Authenticator:
    """Authenticates callers.

    Belongs to the event loop. `directory` is replaced as a whole if the configuration changes.
    """

    def __init__(
        self,
        directory: Directory,
        sessions: SessionTable,
        audit: Audit,
        on_failure: Callable[[], None],
        *,
        max_failures: int = 10,
        failure_delay: float = 1.0,
    ) -> None:
        """Creates the authenticator. `on_failure` is called for every failure of every peer."""
        self.directory = directory
        self.redeem: Callable[[str], User | None] = lambda ticket: None
        """Returns the user of a ticket; see `unix_identity.IdentitySocket`."""
        self.certificates = ClientCertificates()
        self.binding = Binding()
        sessions.check_use = lambda session: self.binding.check_call(session.caller)
        self._sessions = sessions
        self._audit = audit
        self._on_failure = on_failure
        self._failures = AuthFailures(max_failures)
        self._delay = failure_delay
        self._delayed = 0

    def change(self, max_failures: int, failure_delay: float) -> None:
        """Changes the limits. Failures that were counted before remain."""
        self._failures.limit, self._delay = max_failures, failure_delay

    def has_credential(self, context: Context) -> bool:
        """Returns True if the headers of a call, or its connection, show any credential."""
        if any(key in _CREDENTIAL_KEYS for key, _ in context.invocation_metadata() or ()):
            return True
        return bool(certificate_names(context.auth_context()))

    def identify(self, context: Context, *, by_session: bool = True) -> Caller:
        """Returns the caller, from the headers of the call and its connection.

        Raises `UNAUTHENTICATED`, or `SESSION_EXPIRED` for a session that does not exist.
        """
        metadata = {str(key): value for key, value in context.invocation_metadata() or ()}
        peer = context.peer()
        if AUTHORIZATION in metadata:
            return self._token(_text(metadata[AUTHORIZATION]), peer)
        if TICKET in metadata:
            return self._ticket(_text(metadata[TICKET]), peer)
        if SESSION in metadata and by_session:
            session = self._sessions.owner(_text(metadata[SESSION]))
            if self.binding.enabled and isinstance(session.caller.proof, tuple):
                self.binding.check(session.caller, self._certificate(context.auth_context(), peer))
            return session.caller
        caller = self._certificate(context.auth_context(), peer)
        if caller is None:
            raise self._no_credential()
        return caller

    def reidentify(self, caller: Caller) -> Caller:
        """Identifies a caller again, with the tenants and revocations of now. Raises `UNAUTHENTICATED`."""
        if isinstance(caller.proof, tuple):
            self._check_certificate(caller)
        return self.directory.reidentify(caller, time.time())

    async def identify_request(self, header: str | None, user: User | None, peer: str, page: str) -> Caller:
        """Returns the caller of an HTTP request.

        It is identified by the Authorization header, otherwise by the user at the other end of the Unix socket. Raises
        `UNAUTHENTICATED`, with a delay if the peer has failed often.
        """
        try:
            if header is not None:
                return self._token(header, peer)
            if user is None:
                raise self._no_credential()
            return self._user(user, peer)
        except Refusal as refusal:
            await self.record_failure(peer, page, refusal)
            raise

    def _certificate(self, auth_context: Mapping[str, Any], peer: str) -> Caller | None:
        """Returns the caller that a certificate identifies; None: the connection shows no certificate.

        Raises `UNAUTHENTICATED`.
        """
        names = certificate_names(auth_context)
        if not names:
            return None
        tenant, name = self.directory.certificate(names)
        certificate = self.certificates.identity(auth_context)
        caller = Caller(tenant, f"certificate {name}", peer, proof=tuple(names), certificate=certificate)
        self._check_certificate(caller)
        return caller

    def _check_certificate(self, caller: Caller) -> None:
        """Raises `UNAUTHENTICATED` if the certificate that identifies the caller has been revoked."""
        if self.certificates.revokes(caller.certificate):
            raise unauthenticated(
                f"The client's {caller.credential} was revoked by its authority.",
                "Ask the daemon's operator for another certificate.",
            )

    def _token(self, header: str, peer: str) -> Caller:
        scheme, _, token = header.strip().partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise unauthenticated(
                "The authorization metadata of the call is not a bearer token.", 'Send "authorization: Bearer <token>".'
            )
        tenant, credential = self.directory.token(token.strip(), time.time())
        return Caller(tenant, f"token {credential.name}", peer, expires=credential.expires, proof=credential.key)

    def _ticket(self, ticket: str, peer: str) -> Caller:
        user = self.redeem(ticket)
        if user is None:
            raise unauthenticated(
                "The ticket is unknown: it was used before, or it has expired.",
                "Connect to the identity socket again; a ticket is valid for one call and for a few seconds.",
            )
        return self._user(user, peer)

    def _user(self, user: User, peer: str) -> Caller:
        tenant, name = self.directory.user(user)
        return Caller(tenant, name, peer, uid=user.uid, proof=user)

    def _no_credential(self) -> Refusal:
        return unauthenticated(
            "This daemon serves only its tenants, and the call has no credentials.",
            f"Send {self.directory.accepts}: hearth.connect(token=...) or HEARTH_TOKEN, or "
            '"authorization: Bearer <token>" in the metadata of the call.',
        )

    async def record_failure(self, peer: str, method: str, refusal: Refusal, *, wait: bool = True) -> None:
        """Counts a failure of a peer. If there were many, returns with a delay, unless `wait` is False."""
        self._on_failure()
        host = host_of(peer)
        count = self._failures.add(host, time.monotonic())
        if count <= self._failures.limit:
            log.warning("authentication_failed", peer=peer, method=method, why=refusal.message)
            self._audit.record("authentication_failed", peer=peer, method=method, why=refusal.message)
            return
        if count == self._failures.limit + 1:
            log.warning(
                "authentication_failures", peer=host, count=count, action="answered with a delay, not logged again"
            )
            self._audit.record("authentication_failures", peer=host, count=count)
        refusal.retry_after_s = self._delay
        if wait and self._delayed < _MAX_DELAYED:
            self._delayed += 1
            try:
                await asyncio.sleep(self._delay)
            finally:
                self._delayed -= 1


def certificate_names(auth_context: Mapping[str, Iterable[bytes]]) -> list[str]:
    """Returns the names in a client certificate: its alternative names or, without any, its common name."""
    for key in ("x509_subject_alternative_name", "x509_common_name"):
        names = [value.decode("utf-8", "replace") for value in auth_context.get(key) or ()]
        if names:
            return names
    return []


def host_of(peer: str) -> str:
    """Returns the host of a gRPC peer: `ipv4:10.0.0.1:5000` without the port, which differs between connections.

    All peers on Unix sockets count as one host, because a client chooses the path to which its own end is bound.
    """
    if peer.startswith("unix"):
        return "unix:"
    return peer.rpartition(":")[0] if peer.startswith(("ipv4:", "ipv6:")) else peer


def _text(value: Any) -> str:
    return value if isinstance(value, str) else bytes(value).decode("utf-8", "replace")
