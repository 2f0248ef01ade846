"""The front's copy of a lane: responses that the client gets there, and responses that it has yet to get.

The client counts the results and events that come to it, and resumes by that count. So what did not go over the lane
(the device process had not taken it over yet, or has lost it; an event of the front's own) is numbered behind all that
did, and ends the lane: the client comes back for it.
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

log = structlog.get_logger("hearthd.lanes")

_AHEAD = 1 << 16
"""Responses by which a client's acknowledgement may be ahead of the front's copies, which it can overtake."""


class LaneMirror:
    """The lane of one channel, from when it is handed over until its client attaches again."""

    def __init__(self, link: Link, number: int, batches: InFlightBatches, replies: ResumeBuffer) -> None:
        self._link = link
        self._number = number
        self._batches = batches
        self._replies = replies
        self._first = batches.last
        self._said = 0
        self.ending = False
        """True once the device process has been asked to close the lane."""
        self._heard = replies.number  # of the last response that went out on the Execute stream

    def on_response(self, payload: bytes, copied: bool) -> None:
        """`copied`: it has gone over the lane."""
        if not copied:
            self.put_aside(payload)
            return
        self._replies.keep(payload)
        if self._said > self._replies.received:
            self._release()

    def on_ack(self, copied: bool) -> None:
        """The client waits for one that did not come to it."""
        if not copied:
            self.end()

    def put_aside(self, payload: bytes) -> None:
        """Puts a response aside for the client, which gets it with its next attach, which follows now."""
        self._replies.put_aside(payload)
        self.end()

    def came(self, responses: int) -> None:
        """Notes the number of responses that have come to the client. Raises `INVALID_ARGUMENT` for an impossible
        number."""
        if responses > self._replies.number + _AHEAD:
            self._replies.release(responses)
        self._said = responses
        self._release()

    def _release(self) -> None:
        self._replies.release(min(self._said, self._replies.number))

    def unsent(self) -> list[bytes]:
        """Returns the responses that have not gone out on the Execute stream."""
        return list(islice(self._replies, max(0, self._heard - self._replies.received), None))

    # ---- its end ----

    def end(self) -> None:
        """Has the device process close it, and does not wait for that."""
        if not self.ending:
            self.ending = True
            self._link.send(Kind.LANE_END, b"{}", channel=self._number)

    async def ended(self) -> bool:
        """Returns when it is closed and all copies have come, or the device process is lost; whether a batch has come
        over it."""
        self.ending = True
        try:
            last = await self._link.end_lane(self._number)
        except Refusal:
            return True
        self._batches.went_by(last)
        return last > self._first


class UnusedLanes:
    """Lanes that ended before their clients used them: each is counted, and the log has a line for all of some time.

    A few are clients that ended just then. Many say that the front or a device process does not answer within the
    second that clients wait for a lane.
    """

    EVERY_S = 10.0
    """Seconds from one line to the next."""

    def __init__(self, count: Callable[[], None], clock: Callable[[], float] = time.monotonic) -> None:
        """`count` is called for each."""
        self._count = count
        self._clock = clock
        self._told = float("-inf")
        self._untold = 0

    def add(self, session: str, why: str) -> None:
        """Counts a lane; `why`: the device process's objection to its client, empty if the client has hung up."""
        self._count()
        self._untold += 1
        now = self._clock()
        if now - self._told >= self.EVERY_S:
            log.warning("lane_unused", session=session, why=why or "its client has hung up", lanes=self._untold)
            self._told, self._untold = now, 0
