"""OpenBulk: tickets for connections that carry bulk data directly to the device process of a channel.

On the same host, one connection shares segments of memory (`SEGMENT` in `hearth_proto.frames`). Over TCP, several
connections carry a transfer's bytes in stripes. Commands name the bytes that are read and written there, and are
checked together with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hearth_proto import rights
from hearth_proto.reasons import Reason, Refusal
from hearth_proto.rights import Right
from hearth_proto.v1 import device_pb2
from hearthd.front.errors import Context
from hearthd.front.lanes.certificates import ProcessCertificates
from hearthd.front.lanes.listener import LanePort
from hearthd.front.lanes.stripe_port import StripePort
from hearthd.front.lanes.tickets import LIFETIME, TICKET_BYTES
from hearthd.front.rpc.server_call import Behaviour
from hearthd.front.sessions.channel import Channel
from hearthd.front.sessions.session import Session
from hearthd.front.sessions.session_table import SessionTable
from hearthd.front.supervisor.supervisor import Supervisor

NAME = "OpenBulk"
SEGMENTS = "segments"
STRIPE = "stripe"
MAX_STRIPES = 16


@dataclass(frozen=True)
class BulkLimits:
    """Limits on the data that clients move over these connections."""

    segment_bytes: int = 1 << 30
    """Maximum bytes of shared memory in one device process."""
    max_chunk_bytes: int = 4 << 20
    """Maximum bytes of data in one STRIPE frame."""
    tls: bool = False
    """True if clients that connect over TCP use TLS."""


@dataclass(frozen=True)
class BulkConnection:
    """The object that a ticket identifies: one connection to be handed to the device process of `channel`."""

    session: Session
    channel: Channel
    kind: str
    body: dict[str, Any] = field(default_factory=dict)

    async def hand_over(self, connection: int) -> None:
        """Hands the connection to the device process. Raises OSError if the process or the session has ended."""
        if self.session.closing or not self.channel.alive:
            raise ConnectionError("the session has ended in this device process")
        self.channel.link.give(self.kind, {"channel": self.channel.number, **self.body}, connection)


class BulkService:
    """The method OpenBulk of DeviceService."""

    def __init__(
        self,
        sessions: SessionTable,
        supervisor: Supervisor,
        lanes: LanePort,
        stripe_port: StripePort,
        limits: BulkLimits,
    ) -> None:
        self._sessions = sessions
        self._supervisor = supervisor
        self._lanes = lanes
        self._stripe_port = stripe_port
        self._limits = limits
        self._certificates = ProcessCertificates()

    def behaviours(self) -> Mapping[str, Behaviour]:
        """Returns the methods for DeviceService's table."""
        return {NAME: self._open}

    async def _open(self, request: device_pb2.OpenBulkRequest, context: Context) -> device_pb2.OpenBulkResponse:
        session = self._sessions.find(request.session_token)
        device = self._supervisor.find(request.device, session.tenant)
        self._admit(session)
        if request.stripes > MAX_STRIPES:
            raise Refusal(
                Reason.INVALID_ARGUMENT,
                f"{request.stripes} stripes were requested; allowed are 1 to {MAX_STRIPES} (0: shared memory).",
                fix=f"Request at most {MAX_STRIPES}, and more in another call.",
                details={"requested": request.stripes, "allowed": MAX_STRIPES},
                fields=["stripes"],
            )
        refusal = device.quarantine_refusal(session)
        if refusal is not None:
            raise refusal
        with self._sessions.keep_alive(session):
            channel = _attached_channel(session, device.ordinal, request.generation)
            if not channel.link.takes_lanes:
                raise _unsupported("The device process accepts no connections.", "Use Upload and Download.")
            if request.stripes:
                return self._stripes(request.stripes, session, channel, context.peer())
            return self._segments(session, channel, context.peer())

    def _admit(self, session: Session) -> None:
        """Raises `PERMISSION_DENIED` for a tenant that may neither write nor read, because it could move no data."""
        if not session.tenant.may(Right.WRITE) and not session.tenant.may(Right.READ):
            refusal = rights.permission_denied(NAME, [Right.WRITE, Right.READ], session.tenant.name)
            self._sessions.audit.refused(session, NAME, refusal)
            raise refusal

    def _segments(self, session: Session, channel: Channel, peer: str) -> device_pb2.OpenBulkResponse:
        if not self._lanes.path:
            raise _unsupported(
                "This daemon shares no memory with its clients: it has no socket for lanes.",
                "Use Upload and Download, or have the daemon's operator set lanes.enabled and listen.unix.",
            )
        if not peer.startswith("unix:"):
            raise _unsupported(
                "Memory is shared only with clients on this host that use the daemon's Unix socket.",
                "Connect to the daemon's Unix socket, or request stripes.",
            )
        pinned = session.tenant.quotas.pinned_bytes
        max_bytes = min(self._limits.segment_bytes, pinned) if pinned else self._limits.segment_bytes
        connection = BulkConnection(session, channel, SEGMENTS, {"max_bytes": self._limits.segment_bytes})
        return device_pb2.OpenBulkResponse(
            tickets=[self._lanes.issue(connection)],
            valid_ns=int(LIFETIME * 1e9),
            path=self._lanes.path,
            max_segment_bytes=max_bytes,
            transfers=True,
        )

    def _stripes(self, count: int, session: Session, channel: Channel, peer: str) -> device_pb2.OpenBulkResponse:
        address = self._stripe_port.reached_by(peer)
        max_chunk_bytes = self._limits.max_chunk_bytes
        certificate = None
        if self._limits.tls and not peer.startswith("unix:"):
            certificate = self._certificates.of(channel.link)
        tickets = []
        for _ in range(count):
            secret, tls = certificate.proof() if certificate is not None else (b"", None)
            connection = BulkConnection(session, channel, STRIPE, {"max_chunk_bytes": max_chunk_bytes, "tls": tls})
            tickets.append(self._stripe_port.issue(connection, TICKET_BYTES - len(secret)) + secret)
        return device_pb2.OpenBulkResponse(
            tickets=tickets,
            valid_ns=int(LIFETIME * 1e9),
            host=address.host,
            port=address.port,
            certificate=certificate.der if certificate is not None else b"",
            max_chunk_bytes=max_chunk_bytes,
        )


def _attached_channel(session: Session, ordinal: int, generation: int) -> Channel:
    """Returns the channel to which the session is attached.

    Raises `DEVICE_LOST` if that channel has ended, and `INVALID_ARGUMENT` if the session was never attached.
    """
    channel = session.channels.get(ordinal)
    ended_channel = session.ended.get(ordinal)
    if channel is not None and channel.link.generation == generation and channel.alive:
        if channel.sink is not None or channel.replies is not None:
            return channel
    elif ended_channel is not None and ended_channel.link.generation == generation:
        raise ended_channel.loss or _channel_lost(ordinal, generation)
    elif channel is not None:
        raise _channel_lost(ordinal, generation)
    raise Refusal(
        Reason.INVALID_ARGUMENT,
        f"Session {session.id} is not attached to device {ordinal} (generation {generation}).",
        fix="Attach to the device with Execute first, and name Attached.generation.",
        details={"session": session.id, "device": ordinal, "generation": generation},
        fields=["generation"],
    )


def _channel_lost(ordinal: int, generation: int) -> Refusal:
    return Refusal(
        Reason.DEVICE_LOST,
        f"The session is not attached to generation {generation} of device {ordinal} any more.",
        fix="Attach again, and name the generation of Attached.",
        details={"device": ordinal, "generation": generation},
    )


def _unsupported(message: str, fix: str) -> Refusal:
    return Refusal(Reason.UNSUPPORTED, message, fix=fix)
