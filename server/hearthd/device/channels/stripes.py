"""Stripes of the sessions: adopts the connections that the front hands over, and handles their events."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from typing import Any

from hearth_proto.frames import HEADER, Kind
from hearth_proto.pipes import STALL_S
from hearth_proto.reasons import Reason, Refusal
from hearth_proto.stripes import taken
from hearthd.device.backend.resources import HostBuffer
from hearthd.device.channels.stripe import OPEN_TIMEOUT_S, OutgoingChunk, Stripe
from hearthd.device.channels.stripe_tls import Guards
from hearthd.device.flows.transfer import DownloadFlow, UploadFlow
from hearthd.device.platform.event_loop import Loop
from hearthd.device.platform.fd_passing import DescriptorSocket
from hearthd.device.platform.log import ProcessLog
from hearthd.device.platform.spin_policy import at_most
from hearthd.device.session.session import DeviceSession
from hearthd.device.transfers.transfers import Transfers

STRIPE = "stripe"
"""Kind of the message on the descriptors socket that carries a stripe."""

MAX_STRIPES = 32
"""Limit of stripes of one session."""

MAX_CHUNK = 16 << 20


class Stripes:
    """Stripes by channel. Device-handle thread only."""

    def __init__(
        self,
        loop: Loop,
        sessions: Callable[[int], DeviceSession | None],
        transfers: Transfers,
        journal: ProcessLog,
        descriptors: DescriptorSocket | None,
    ) -> None:
        self._loop = loop
        self._sessions = sessions
        self._transfers = transfers
        self._journal = journal
        self.stall = STALL_S
        """Seconds that the client of a stripe that comes from now on may stand still with a part of a frame."""
        self._guards = Guards()
        self._by_channel: dict[int, set[Stripe]] = {}
        self._waiting: dict[Stripe, float] = {}
        """Stripes whose channel has not been opened yet, each with the monotonic time until which it is kept: the link
        and the descriptors socket are not ordered."""
        transfers.on_close = self._closed
        transfers.stripes = lambda: sum(map(len, self._by_channel.values()))
        if descriptors is not None:
            descriptors.register(STRIPE, self.handed_over)

    def opened(self, channel: int) -> None:
        """Begins the stripes that were waiting for this channel."""
        for stripe in [waiting for waiting in self._waiting if waiting.channel == channel]:
            del self._waiting[stripe]
            stripe.begin()

    def max_sleep(self, limit: float | None) -> float | None:
        """Returns the longest time in seconds that the loop may sleep, at most `limit`; None: no limit.

        Closes stripes whose channel was not opened in time.
        """
        if not self._waiting:
            return limit
        now = time.monotonic()
        for stripe, deadline in tuple(self._waiting.items()):
            if now >= deadline:
                del self._waiting[stripe]
                self._journal.warning("stripe", channel=stripe.channel, error="its channel was never opened")
                stripe.close()
        return at_most(max(0.0, min(self._waiting.values(), default=now) - now), limit)

    def close(self) -> None:
        """Closes all stripes, because the process ends."""
        for stripes in self._by_channel.values():
            for stripe in stripes:
                stripe.close()

    def _closed(self, session: DeviceSession) -> None:
        for stripe in self._by_channel.get(session.channel, ()):
            stripe.close()

    def handed_over(self, body: dict[str, Any], files: list[int]) -> None:
        """Adopts the socket of a stripe, which the front has handed over on the descriptors socket.

        Closes the socket and logs a warning if the message is invalid or the session has too many stripes.
        """
        for surplus in files[1:]:
            os.close(surplus)
        if not files:
            self._journal.warning("stripe", error="it arrived without its socket")
            return
        end = socket.socket(fileno=files[0])
        try:
            channel, max_chunk = int(body["channel"]), int(body["max_chunk_bytes"])
            if not 0 < max_chunk <= MAX_CHUNK:
                raise ValueError(f"chunks of {max_chunk} bytes")
            guard = self._guards.make(body.get("tls"))
        except (KeyError, TypeError, ValueError, OSError) as error:  # ssl.SSLError is an OSError
            self._journal.warning("stripe", error=f"the front's message cannot be used: {error!r}")
            end.close()
            return
        stripes = self._by_channel.setdefault(channel, set())
        if len(stripes) >= MAX_STRIPES:
            self._journal.warning("stripe", channel=channel, error=f"the session has {MAX_STRIPES} already")
            end.close()
            return
        stripes.add(Stripe(end, channel, max_chunk, guard, self, self._loop.post, self.stall))

    # ---- events of a stripe; see `hearthd.device.channels.stripe.StripeOwner` ----

    def ready(self, stripe: Stripe) -> None:
        """Begins the stripe, or keeps it waiting for at most `OPEN_TIMEOUT_S` if its channel is not open yet."""
        if self._sessions(stripe.channel) is not None:
            stripe.begin()
        else:
            self._waiting[stripe] = time.monotonic() + OPEN_TIMEOUT_S

    def announced(self, stripe: Stripe, kind: int, transfer: int, chunk: int) -> None:
        """Assigns the stripe to the transfer. If that is refused, sends the client ABORT with the reason.

        Closes the stripe if the client did not wait until the stripe had started.
        """
        session = self._sessions(stripe.channel)
        if session is None or not stripe.started:
            stripe.close()
            return
        try:
            if chunk > stripe.max_chunk:
                raise Refusal(
                    Reason.INVALID_ARGUMENT,
                    f"chunks of {chunk} bytes are announced; the maximum is {stripe.max_chunk}",
                    fix="cut the transfer into chunks of OpenBulkResponse.max_chunk_bytes at most",
                    details={"requested": chunk, "allowed": stripe.max_chunk},
                )
            if kind == Kind.UPLOAD:
                self._transfers.striped.announce(session, UploadFlow, transfer, chunk, stripe)
            else:
                self._transfers.striped.announce(session, DownloadFlow, transfer, chunk, stripe)
        except Refusal as refusal:
            payload = refusal.to_status().SerializeToString()
            stripe.put(HEADER.pack(len(payload), Kind.ABORT, 0, 0, transfer) + payload)

    def arrived(self, stripe: Stripe, transfer: int, offset: int, size: int, host: HostBuffer, seconds: float) -> None:
        """Passes the chunk to its upload and confirms it to the client, or drops it if the upload does not want it."""
        session = self._sessions(stripe.channel)
        if session is not None and self._transfers.striped.chunk_arrived(
            session, transfer, stripe, offset, size, host, seconds
        ):
            stripe.put(taken(transfer, offset))
        else:
            self._transfers.stripe_staging.release(host)

    def chunk_received(self, stripe: Stripe, transfer: int, offset: int) -> None:
        """Notifies the download. Closes the stripe if the chunk was never sent."""
        session = self._sessions(stripe.channel)
        if session is not None:
            try:
                self._transfers.striped.chunk_received(session, transfer, stripe, offset)
            except ValueError as error:
                self._journal.warning("stripe", channel=stripe.channel, session=session.id, error=str(error))
                stripe.close()

    def sent(self, stripe: Stripe, chunk: OutgoingChunk, seconds: float) -> None:
        """Returns the chunk's memory to the staging window and notifies the download."""
        self._transfers.stripe_staging.release(chunk.host)
        session = self._sessions(stripe.channel)
        if session is not None:
            self._transfers.striped.chunk_written(session, chunk.transfer, stripe, seconds)

    def stripe_ended(self, stripe: Stripe, reason: str, buffers: list[HostBuffer]) -> None:
        """Removes the stripe, returns its memory, and notifies its transfers. Logs `reason` unless it is empty."""
        self._waiting.pop(stripe, None)
        stripes = self._by_channel.get(stripe.channel, set())
        stripes.discard(stripe)
        if not stripes:
            self._by_channel.pop(stripe.channel, None)
        for host in buffers:
            self._transfers.stripe_staging.release(host)
        session = self._sessions(stripe.channel)
        if session is not None:
            self._transfers.lost(session, stripe)
        if reason:
            session_id = session.id if session is not None else ""
            self._journal.warning("stripe", channel=stripe.channel, session=session_id, error=f"closed: {reason}")
