"""The front's mirror of a lane: the responses that the client received over the lane, and those not received yet.

The client counts the results and events that it receives, and resumes by that count. Some responses do not go over the
lane: the device process had not taken the lane over yet, or has lost it, or the front itself created the event. Such a
response is numbered after all responses that went over the lane, and ends the lane, so that the client attaches again
and receives it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import islice

import structlog

from hearth_proto.frames import Kind
from hearth_proto.reasons import Refusal
from hearthd.front.sessions.in_flight import InFlightBatches
from hearthd.front.sessions.link_interface import Link
from hearthd.front.sessions.resume_buffer import ResumeBuffer
from hearthd.shared.log import LogThrottle

log = structlog.get_logger("hearthd.lanes")

_MAX_ACK_LEAD = 1 << 16
"""Number of responses by which a client's acknowledgement may be ahead of the front's copies, which it can overtake."""


class LaneMirror:
    """The lane of one channel, from its handover to the device process until its client attaches again."""

    def __init__(self, link: Link, number: int, batches: InFlightBatches, replies: ResumeBuffer) -> None:
        self._link = link
        self._number = number
        self._batches = batches
        self._replies = replies
        self._batches_before = batches.last
        self._acknowledged = 0
        self.ending = False
        """True once the device process has been asked to close the lane."""
        self._last_sent = replies.number  # the last response that was sent on the Execute stream

    def on_response(self, payload: bytes, over_lane: bool) -> None:
        """Keeps a response of the device process. `over_lane` is True if the client received it over the lane."""
        if not over_lane:
            self.add_unnumbered(payload)
            return
        self._replies.add(payload)
        if self._acknowledged > self._replies.received and self._replies.overrun is None:
            self._release()

    def on_ack(self, over_lane: bool) -> None:
        """Ends the lane if the acknowledgement was not sent over it (`over_lane` is False).

        The reason is that the client waits for the acknowledgement.
        """
        if not over_lane:
            self.request_end()

    def add_unnumbered(self, payload: bytes) -> None:
        """Keeps a response that the client gets with its next Attach.

        Ends the lane, so that the client attaches soon.
        """
        self._replies.add_unnumbered(payload)
        self.request_end()

    def acknowledge(self, responses: int) -> None:
        """Notes the number of responses that the client has acknowledged.

        Raises `INVALID_ARGUMENT` for an impossible number.
        """
        if responses > self._replies.number + _MAX_ACK_LEAD:
            self._replies.release(responses)
        self._acknowledged = responses
        self._release()

    def _release(self) -> None:
        self._replies.release(min(self._acknowledged, self._replies.number))

    def unsent(self) -> list[bytes]:
        """Returns the responses that were not sent on the Execute stream."""
        return list(islice(self._replies, max(0, self._last_sent - self._replies.received), None))

    # ---- end ----

    def request_end(self) -> None:
        """Asks the device process to close the lane. Does not wait until it is closed."""
        if not self.ending:
            self.ending = True
            self._link.send(Kind.LANE_END, b"{}", channel=self._number)

    async def end(self) -> bool:
        """Returns when the lane is closed and all copies have arrived, or when the device process is lost.

        The result is True if a batch arrived over the lane.
        """
        self.ending = True
        try:
            answer = await self._link.ask(Kind.LANE_END, {}, self._number)
        except Refusal:
            return True
        last = int(answer["last"])  # the last batch that the device process received
        self._batches.note_lane_batches(last)
        return last > self._batches_before


class UnusedLanes:
    """Lanes that ended before their clients used them.

    Each is counted, and at most one line is logged each `LOG_INTERVAL_S` seconds.

    A small number of them is normal: clients that ended at that moment. A large number shows that the front or a device
    process does not answer within the second that clients wait for a lane.
    """

    LOG_INTERVAL_S = 10.0
    """Minimum interval between log lines, in seconds."""

    def __init__(self, count: Callable[[], None], clock: Callable[[], float] = time.monotonic) -> None:
        """Creates the counter. `count` is called for each unused lane."""
        self._count = count
        self._clock = clock
        self._log_throttle = LogThrottle(self.LOG_INTERVAL_S)

    def add(self, session: str, reason: str) -> None:
        """Counts an unused lane.

        `reason` is the device process's objection to its client; empty if the client closed the connection.
        """
        self._count()
        lanes = self._log_throttle.times("lane_unused", self._clock())
        if lanes:
            why = reason or "its client has closed the connection"
            log.warning("lane_unused", session=session, why=why, lanes=lanes)
