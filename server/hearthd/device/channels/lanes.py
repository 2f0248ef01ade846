"""Lanes of the sessions: adopts the sockets that the front hands over, and ends lanes.

A lane that breaks is dropped. Its batches still run, and their answers go only to the front, which keeps them until the
client has reconnected and the front has ended the lane (LANE_END).
"""

from __future__ import annotations

import itertools
import json
import os
import socket
import time
from collections.abc import Callable
from typing import Any, Protocol

from hearth_proto.frames import Frame, Kind
from hearthd.device.channels.lane import LaneConnection, LaneLimits
from hearthd.device.outbox import RECEIVED, LaneSink, Outbox
from hearthd.device.platform.event_loop import Loop
from hearthd.device.platform.fd_passing import DescriptorSocket
from hearthd.device.platform.log import ProcessLog
from hearthd.device.platform.spin_policy import at_most
from hearthd.device.scheduler.fair_share import FairShare
from hearthd.device.session.session import DeviceSession

OPEN_TIMEOUT_S = 5.0
"""Seconds for which a socket is kept while its channel is not open yet, because the link and the descriptors socket are
not ordered."""

LANE = "lane"
"""Kind of the message on the descriptors socket that carries a lane."""


class LaneExecutor(Protocol):
    """Interface of the executor (`hearthd.device.process.executor.Executor`), which runs the batches of lanes."""

    in_order: dict[int, Callable[[DeviceSession, Frame], None]]
    """Handlers by frame kind, called after all earlier frames of the session have been handled."""
    sharing: FairShare

    def session(self, channel: int) -> DeviceSession | None:
        """Returns the open session of a channel; None if the channel is not open, or not yet."""
        ...

    def frame(self, frame: Frame) -> None:
        """Handles a frame as if it had arrived over the link. A frame of an unknown session is ignored."""
        ...

    def run_step(self, lane: LaneSink, seq: int, payload: bytes) -> bool:
        """Executes a batch that is a step. Returns False, without effect, if the batch takes the general path."""
        ...

    def run_on_arrival(self, channel: int) -> None:
        """Runs the batches of the channel that have arrived, if no other session has work."""
        ...


class LaneConnections:
    """Lanes by channel. Device-handle thread only."""

    def __init__(
        self,
        loop: Loop,
        outbox: Outbox,
        executor: LaneExecutor,
        journal: ProcessLog,
        descriptors: DescriptorSocket,
    ) -> None:
        self._loop = loop
        self._outbox = outbox
        self._executor = executor
        self._journal = journal
        self._descriptors = descriptors
        self.open_timeout_s = OPEN_TIMEOUT_S
        self._waiting: dict[int, tuple[socket.socket, LaneLimits, float]] = {}
        """Lanes whose channel has not been opened yet, each with its socket, its limits, and the monotonic time until
        which it is kept."""
        self._numbers = itertools.count(1)
        executor.in_order[Kind.LIVE] = self._begin
        descriptors.register(LANE, self._arrived)

    def opened(self, channel: int) -> None:
        """Begins the lane that was waiting for this channel, if any."""
        waiting = self._waiting.pop(channel, None)
        if waiting is not None:
            self._adopt(channel, *waiting[:2])

    def max_sleep(self, limit: float | None) -> float | None:
        """Returns the longest time in seconds that the loop may sleep, at most `limit`; None: no limit.

        Drops lanes whose channel was not opened in time.
        """
        if not self._waiting:
            return limit
        now = time.monotonic()
        for channel, (_, _, deadline) in tuple(self._waiting.items()):
            if now >= deadline:
                self._journal.warning("lane", channel=channel, error="its channel was never opened")
                self.drop(channel)
        return at_most(max(0.0, min((entry[2] for entry in self._waiting.values()), default=now) - now), limit)

    def close(self) -> None:
        """Closes all lanes, because the process ends."""
        for channel in (*self._waiting, *self._outbox.lanes):
            self.drop(channel)

    # ---- beginning ----

    def _arrived(self, body: dict[str, Any], files: list[int]) -> None:
        for surplus in files[1:]:
            os.close(surplus)
        if not files:
            self._journal.warning("lane", error="it arrived without its socket")
            return
        end = socket.socket(fileno=files[0])
        try:
            channel = int(body["channel"])
            limits = LaneLimits.parse(body)
        except (KeyError, TypeError, ValueError) as error:
            self._journal.warning("lane", error=f"the front's message cannot be read: {error!r}")
            end.close()
            return
        if channel in self._outbox.lanes or channel in self._waiting:
            self._journal.warning("lane", channel=channel, error="the channel has one already")
            end.close()
        elif self._executor.session(channel) is None:
            self._waiting[channel] = (end, limits, time.monotonic() + self.open_timeout_s)
        else:
            self._adopt(channel, end, limits)

    def _adopt(self, channel: int, end: socket.socket, limits: LaneLimits) -> None:
        number = next(self._numbers)
        lane = LaneConnection(
            end,
            channel,
            number,
            limits,
            self._loop,
            self._on_frame,
            self._outbox.crowded,
            self._on_end,
            self._executor.run_on_arrival,
            self._executor.run_step,
        )
        self._outbox.lanes[channel] = lane
        self._outbox.schedule_settle(lane)
        # Batches of an earlier attachment may still be queued: the number of the next batch depends on them.
        self._executor.frame(Frame(Kind.LIVE, 0, channel, number, b""))

    def _begin(self, session: DeviceSession, frame: Frame) -> None:
        lane = self._outbox.lanes.get(session.channel)
        if lane is not None and lane.number == frame.id:
            lane.begin(session.last_seq)

    # ---- frames of clients ----

    def _on_frame(self, frame: Frame) -> None:
        if frame.kind == RECEIVED:
            self._outbox.put(RECEIVED, frame.payload, channel=frame.channel)
        else:
            self._executor.frame(frame)

    # ---- the end ----

    def _on_end(self, lane: LaneConnection, reason: str) -> None:
        """Drops a lane whose client has disconnected or has violated the protocol."""
        if self._outbox.lanes.get(lane.channel) is lane:
            del self._outbox.lanes[lane.channel]
            # the client may use its stream again: the front must know that no batch comes over the lane
            if not lane.used:
                body = json.dumps({"unused": True, "why": reason}).encode()
                self._outbox.put(Kind.LANE_ENDED, body, channel=lane.channel)
        if reason:
            session = self._executor.session(lane.channel)
            session_id = session.id if session is not None else ""
            self._journal.warning("lane", channel=lane.channel, session=session_id, error=f"closed: {reason}")

    def end(self, frame: Frame) -> None:
        """Ends the lane of a channel on request of the front, if there is one.

        The answer follows the copies of the lane's answers on the link.
        """
        self.drop(frame.channel)
        session = self._executor.session(frame.channel)
        last = self._executor.sharing.last_batch(session) if session is not None else 0
        self._outbox.put(Kind.LANE_ENDED, json.dumps({"last": last}).encode(), channel=frame.channel, id=frame.id)

    def drop(self, channel: int) -> None:
        """Closes the channel's lane, if it has one."""
        # handles earlier messages of the front, whichever of the two sockets the loop polled first
        self._descriptors.receive()
        waiting = self._waiting.pop(channel, None)
        if waiting is not None:
            waiting[0].close()
        lane = self._outbox.lanes.pop(channel, None)
        if lane is not None:
            lane.close()
