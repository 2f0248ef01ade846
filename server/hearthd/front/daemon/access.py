"""Access to the daemon: tenants, TLS, the identity socket and the audit log, created from the configuration."""

from __future__ import annotations

import json
import socket
import stat
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from hearth_proto import rights
from hearth_proto.frames import Frame, Kind
from hearthd.front.addresses import identity_path
from hearthd.front.audit.recorder import Audit, AuditError
from hearthd.front.auth.authenticator import Authenticator
from hearthd.front.auth.tls import ServerCertificates, TlsError
from hearthd.front.auth.unix_identity import IdentitySocket, IdentityTickets, user_of
from hearthd.front.config.loader import Config, tenants
from hearthd.front.peers.port import Admit, PeerPort
from hearthd.front.sockets import ListenError
from hearthd.front.tenancy.revocations import RevocationError, Revocations

if TYPE_CHECKING:
    from hearthd.front.connections.limits import ConnectionLimits
    from hearthd.front.links.link import DeviceLink
    from hearthd.front.sessions.session import Session
    from hearthd.front.sessions.session_table import SessionTable


log = structlog.get_logger("hearthd.access")


class Access:
    """The access control of a daemon.

    It is created with the daemon, opened before the daemon listens, and closed after the daemon has stopped.
    """

    def __init__(self, config: Config, sessions: SessionTable, on_failure: Callable[[], None]) -> None:
        self.audit = sessions.audit = Audit(config.audit)
        self.auth = Authenticator(
            tenants(config),
            sessions,
            self.audit,
            on_failure,
            max_failures=config.auth.max_failures,
            failure_delay=config.auth.failure_delay,
        )
        sessions.accounts.change(self.auth.directory.tenants)
        self.auth.binding.enabled = config.sessions.bind
        self.certificates: ServerCertificates | None = None
        """The daemon's certificates. None: no TLS."""
        self._config = config
        self._sessions = sessions
        self._tickets = IdentityTickets(config.auth.ticket_lifetime)
        self.auth.redeem = self._tickets.redeem
        self._revocation_changes = 0
        self._identity: IdentitySocket | None = None

    def change(self, config: Config) -> None:
        """Applies the settings that can be changed while the daemon listens."""
        self._config = config
        self.auth.binding.enabled = config.sessions.bind
        self._tickets.lifetime = config.auth.ticket_lifetime
        self.auth.change(config.auth.max_failures, config.auth.failure_delay)

    def open(self) -> None:
        """Opens the audit log and loads certificates and revocations.

        Raises `ListenError` if a configured file cannot be used.
        """
        tls = self._config.tls
        try:
            self.audit.open()
            if tls.certificate:
                self.certificates = ServerCertificates(tls.certificate, tls.key, tls.client_ca)
            if tls.crl:
                self.auth.certificates.revocations = Revocations(tls.crl, tls.client_ca)
        except (AuditError, TlsError, RevocationError) as error:
            raise ListenError(str(error), permanent=True) from None
        self.audit.record("start")

    @property
    def certificate_expires(self) -> float | None:
        """Unix time at which the daemon's certificate expires. None: no TLS."""
        if self.certificates is None:
            return None
        self.certificates.refresh()
        return self.certificates.expires

    def revoked_sessions(self) -> list[Session]:
        """Returns the sessions that were opened with a certificate that has been revoked since."""
        revocations = self.auth.certificates.revocations
        if revocations is None:
            return []
        revocations.refresh()
        if revocations.changes == self._revocation_changes:
            return []
        self._revocation_changes = revocations.changes
        return [session for session in self._sessions if revocations.revokes(session.caller.certificate)]

    @property
    def public_socket(self) -> bool:
        """True if other users of this host may connect to the Unix sockets. They must show a credential."""
        return self.auth.directory.by_user or self._config.listen.unix_access == "all"

    def peers(self, admit: Admit) -> PeerPort:
        """Creates the port at which other daemons join groups of this daemon, with TLS if it is configured."""
        section = self._config.collectives
        certificates = lambda: self.certificates.context if self.certificates is not None else None  # noqa: E731
        return PeerPort(section.listen, section.advertise, socket.gethostname(), admit, certificates)

    def fingerprint(self) -> bytes:
        """Returns the SHA-256 of the daemon's certificate; empty without TLS."""
        return self.certificates.fingerprint() if self.certificates is not None else b""

    def ticket(self, connection: socket.socket) -> str:
        """Issues a ticket for the user at the other end of a Unix socket, as the identity socket does.

        Empty if no tenant is known by user. Raises `OSError`.
        """
        return self._tickets.issue(user_of(connection)) if self.auth.directory.by_user else ""

    async def listen_identity(self, path: str, connections: ConnectionLimits) -> None:
        """Opens the identity socket in the directory of gRPC's Unix socket, if tenants are identified by user or group.

        Raises `ListenError`.
        """
        if self.auth.directory.by_user:
            directory = Path(path).parent
            if not directory.stat().st_mode & stat.S_IXOTH:
                log.warning("socket_out_of_reach", directory=str(directory), fix=f"chmod o+x {directory}")
            self._identity = IdentitySocket(identity_path(path), self._tickets, connections.limiter("identity"))
            await self._identity.start()

    async def watch(self, link: DeviceLink) -> None:
        """Registers for the refusals that a device process sends to sessions, and writes them to the audit log."""
        link.listen(Kind.DENIED, partial(self._on_denied, link))

    def _on_denied(self, link: DeviceLink, frame: Frame) -> None:
        channel = link.channels.get(frame.channel)
        session = self._sessions.accounts.session(channel.session_id) if channel is not None else None
        if session is not None:
            body = json.loads(frame.payload)
            refusal = rights.permission_denied(body["operation"], [body["right"]], session.tenant.name)
            self.audit.refused(session, body["operation"], refusal)

    def device_lost(self, link: DeviceLink, reason: str) -> None:
        """Records a device process that has ended in the audit log, with the sessions that used it."""
        sessions = sorted({channel.session_id for channel in link.channels.values()})
        self.audit.record("device_lost", device=link.ordinal, generation=link.generation, why=reason, sessions=sessions)

    async def close(self) -> None:
        """Closes the identity socket, records the stop, and closes the audit log. Called after the listeners closed."""
        if self._identity is not None:
            await self._identity.stop()
            self._identity = None
        self.audit.record("stop")
        await self.audit.close()
