"""Segment channels of the sessions: adopts the sockets that the front hands over, and closes them."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from typing import Any

from hearthd.device.channels.segment_channel import DescriptorCloser, SegmentConnection
from hearthd.device.platform.event_loop import Loop
from hearthd.device.platform.fd_passing import DescriptorSocket
from hearthd.device.platform.log import ProcessLog
from hearthd.device.session.session import DeviceSession
from hearthd.device.transfers.segments import Segments
from hearthd.device.transfers.transfers import Transfers

SEGMENTS = "segments"
"""Kind of the message on the descriptors socket that carries a segment channel."""

MAX_CONNECTIONS = 4
"""Limit of connections of one session. One is enough; a second may arrive before the end of the previous one is
noticed."""

WAITING = 64
OPEN_TIMEOUT_S = 5.0
"""Number of sockets kept while their channel is not open yet, and for how many seconds: the link and the descriptors
socket are not ordered."""


class SegmentConnections:
    """Segment connections by session. Device-handle thread only."""

    def __init__(
        self,
        loop: Loop,
        sessions: Callable[[int], DeviceSession | None],
        segments: Segments,
        transfers: Transfers,
        journal: ProcessLog,
        descriptors: DescriptorSocket,
    ) -> None:
        self._loop = loop
        self._segments = segments
        self._transfers = transfers
        self._session_of = sessions
        self._journal = journal
        self._closer = DescriptorCloser()
        self._open: dict[DeviceSession, list[SegmentConnection]] = {}
        self._waiting: list[tuple[socket.socket, int, int, float]] = []
        self._latest = 0
        """Highest channel opened so far: channels are numbered in ascending order."""
        segments.journal = journal
        descriptors.register(SEGMENTS, self._arrived)

    def opened(self, channel: int) -> None:
        """Begins the connections that were waiting for this channel."""
        self._latest = max(self._latest, channel)
        if self._waiting:
            now = time.monotonic()
            waiting, self._waiting = self._waiting, []
            for end, expected_channel, max_bytes, deadline in waiting:
                if expected_channel == channel:
                    self._adopt(end, expected_channel, max_bytes)
                elif now > deadline:
                    end.close()
                else:
                    self._waiting.append((end, expected_channel, max_bytes, deadline))

    def close(self, session: DeviceSession) -> None:
        """Closes the connections and segments of a session that ends."""
        for connection in self._open.pop(session, ()):
            connection.close()
        self._segments.close(session)

    def _arrived(self, body: dict[str, Any], files: list[int]) -> None:
        for surplus in files[1:]:
            os.close(surplus)
        if not files:
            self._journal.warning(SEGMENTS, error="a connection arrived without its socket")
            return
        end = socket.socket(fileno=files[0])
        try:
            channel, max_bytes = int(body["channel"]), int(body["max_bytes"])
        except (KeyError, TypeError, ValueError) as error:
            self._journal.warning(SEGMENTS, error=f"the front's message cannot be read: {error!r}")
            end.close()
            return
        if self._session_of(channel) is not None:
            self._adopt(end, channel, max_bytes)
        elif channel > self._latest and len(self._waiting) < WAITING:
            self._waiting.append((end, channel, max_bytes, time.monotonic() + OPEN_TIMEOUT_S))
        else:
            end.close()  # the session has ended

    def _adopt(self, end: socket.socket, channel: int, max_bytes: int) -> None:
        session = self._session_of(channel)
        assert session is not None
        connections = self._open.setdefault(session, [])
        if len(connections) >= MAX_CONNECTIONS:
            self._journal.warning(SEGMENTS, session=session.id, error=f"it has {len(connections)} connections already")
            end.close()
            return
        connection = SegmentConnection(
            end, session, max_bytes, self._segments, self._transfers, self._closer, self._loop, self._on_end
        )
        connections.append(connection)
        connection.begin()

    def _on_end(self, connection: SegmentConnection, reason: str) -> None:
        connections = self._open.get(connection.session, [])
        if connection in connections:
            connections.remove(connection)
        if reason:
            self._journal.warning(SEGMENTS, session=connection.session.id, error=f"closed: {reason}")
