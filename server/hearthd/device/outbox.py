"""Outbox: frames for the front, and frames that lanes send to their clients.

They are gathered during one iteration of the loop and sent together, without blocking.
"""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from hearth_proto.frames import HEADER, SLOT, Flag, Kind, header
from hearthd.device.platform.spin_policy import at_most

MAX_VECTORS = 64

COPY_S = 1e-3
"""Longest time, in seconds, for which copies of lane frames wait for other frames to the front. The client already has
them, and each message wakes the front. Acknowledgements also wait, on every path, as on an Execute stream: the client
waits for the result that follows."""

SMALL = 8 << 10
"""Largest payload, in bytes, that is joined with its header into one piece."""

LANED, SLOTTED = int(Flag.LANED), int(Flag.SLOT)
ACK, RESPONSE, RECEIVED, CHUNK = int(Kind.ACK), int(Kind.RESPONSE), int(Kind.RECEIVED), int(Kind.CHUNK)
"""Plain integers, because each lookup of an enum member costs 0.3 us (Python 3.11)."""

LANES = frozenset((ACK, RESPONSE))
"""Kinds of frames that are sent over lanes; an acknowledgement may be sent together with a later frame."""


class Vectors:
    """Pieces of bytes that are queued for a socket, in order."""

    def __init__(self) -> None:
        self.buffers: deque[bytes | memoryview] = deque()

    def send(self, end: socket.socket) -> int:
        """Sends as much as the socket accepts and returns the number of bytes.

        Raises OSError if the peer has closed.
        """
        buffers = self.buffers
        if len(buffers) == 1:
            buffer = buffers[0]
            try:
                sent = end.send(buffer)
            except BlockingIOError:
                return 0
            if sent == len(buffer):
                buffers.clear()
            else:
                buffers[0] = memoryview(buffer)[sent:]
            return sent
        total = 0
        while buffers:
            vectors = list(buffers) if len(buffers) <= MAX_VECTORS else [buffers[index] for index in range(MAX_VECTORS)]
            try:
                sent = end.sendmsg(vectors)
            except BlockingIOError:
                break
            total += sent
            while sent:
                size = len(buffers[0])
                if sent >= size:
                    sent -= size
                    buffers.popleft()
                else:
                    buffers[0] = memoryview(buffers[0])[sent:]
                    sent = 0
        return total

    def put(self, head: bytes, payload: bytes) -> None:
        """Queues a header and its payload."""
        if len(payload) <= SMALL:
            self.buffers.append(head + payload)
        else:
            self.buffers.append(head)
            self.buffers.append(payload)


class LaneSink(Protocol):
    """Interface of a lane (`hearthd.device.channels.lane.LaneConnection`) for the outbox."""

    channel: int
    number: int

    @property
    def clear(self) -> bool:
        """True if every frame for the client has been sent."""
        ...

    @property
    def used(self) -> bool:
        """True if a batch has arrived over the lane."""
        ...

    def begin(self, last: int) -> None:
        """Sets the number of the next expected batch to `last + 1`."""
        ...

    def batch_received(self, seq: int, size: int) -> None:
        """Records that batch `seq`, of `size` bytes, was accepted."""
        ...

    def answer(self, seq: int, payload: bytes) -> bool:
        """Sends a response together with the acknowledgement of the last batch.

        Returns False, without effect, if other frames must be sent first.
        """
        ...

    def put(self, kind: int, payload: bytes = b"") -> None:
        """Queues a frame for the client."""
        ...

    def put_ack(self) -> None:
        """Queues the acknowledgement of the executed batches if the client has not received it yet."""
        ...

    def acknowledge(self, seq: int) -> bool:
        """Records that every batch up to `seq` was executed. Returns True if the lane has something to `settle`."""
        ...

    def repeated(self) -> None:
        """Records that a batch which was sent twice was handled."""
        ...

    def refused(self, reason: str) -> None:
        """Closes the lane because the client sent a message that is not a batch."""
        ...

    def settle(self) -> None:
        """Writes as much as the socket accepts."""
        ...

    def close(self) -> None:
        """Closes the lane. A second call has no effect."""
        ...


class Outbox:
    """Queues frames (`put`) and sends as much as the sockets take (`send`). Device-handle thread only."""

    def __init__(self, link: socket.socket, watch_writes: Callable[[bool], None]) -> None:
        self._link = link
        self._watch_writes = watch_writes
        self._watching = False
        self._vectors = Vectors()
        self._buffers = self._vectors.buffers
        self._urgent = False
        self._copies_due = 0.0
        self._ack: tuple[int, int, int] | None = None
        """Channel, batch number and flags of the acknowledgement at the end of the queue for the front. The next
        response of that channel carries it. None if no acknowledgement is queued."""
        self.lanes: dict[int, LaneSink] = {}
        """The lane of each channel that has one, by channel number."""
        self._unsettled: dict[LaneSink, None] = {}
        self._ack_pending: dict[LaneSink, None] = {}
        """Lanes with acknowledgements that wait for other frames. They are sent at the latest together with the copies
        of those acknowledgements for the front."""

    def put(self, kind: int, payload: bytes = b"", *, channel: int = 0, id: int = 0, flags: int = 0) -> None:
        """Queues a frame.

        A response or an acknowledgement is also sent over the channel's lane, if the channel has a lane.
        """
        is_copy = kind == RECEIVED
        if kind in LANES and self.lanes:
            lane = self.lanes.get(channel)
            if lane is not None:
                is_copy = True
                flags |= LANED
                if kind == RESPONSE:
                    lane.put(kind, payload)
                    self._unsettled[lane] = None
                else:
                    self._ack_pending[lane] = None
                    if lane.acknowledge(id):
                        self._unsettled[lane] = None
        ack = self._ack
        if ack is not None and (channel != ack[0] or flags != ack[2] or kind not in LANES):
            self._put_ack()
            ack = None
        if kind == ACK:  # all earlier batches are executed too, so this acknowledgement may replace an earlier one
            if not self._buffers and ack is None:
                self._copies_due = time.perf_counter() + COPY_S
            self._ack = channel, id, flags
            return
        if ack is not None:
            id, self._ack = ack[1], None
        elif is_copy and not self._buffers:
            self._copies_due = time.perf_counter() + COPY_S
        self._urgent = self._urgent or not is_copy
        self._vectors.put(header(kind, len(payload), channel=channel, id=id, flags=flags), payload)

    def answer_batch(self, lane: LaneSink, seq: int, payload: bytes) -> None:
        """Sends a response together with the acknowledgement of its batch `seq`, now unless other frames are first.

        The batch is the last that arrived over the lane, and all earlier batches are executed.
        """
        channel = lane.channel
        if self._urgent or not lane.answer(seq, payload):
            self.put(ACK, channel=channel, id=seq)
            self.put(RESPONSE, payload, channel=channel)
            self.answer()
            return
        if self._ack is not None:
            self._put_ack()
        if not self._buffers:
            self._copies_due = time.perf_counter() + COPY_S
        self._vectors.put(HEADER.pack(len(payload), RESPONSE, LANED, channel, seq), payload)

    def _put_ack(self) -> None:
        """Queues the pending acknowledgement ahead of the next frame."""
        if self._ack is not None:
            channel, seq, flags = self._ack
            self._ack = None
            self._buffers.append(HEADER.pack(0, ACK, flags, channel, seq))

    def put_chunk(self, head: bytes, data: bytes, *, channel: int, id: int, flags: int) -> None:
        """Queues a CHUNK whose payload is `head` followed by `data`, without copying `data`."""
        self._urgent = True
        self._put_ack()
        frame = header(CHUNK, len(head) + len(data), channel=channel, id=id, flags=flags)
        self._vectors.put(frame + head, data)

    def put_slot(self, slot: int, size: int, head: bytes, *, channel: int, id: int, flags: int) -> None:
        """Queues a CHUNK whose `size` bytes of data are in a slot that the front has mapped."""
        self._urgent = True
        self._put_ack()
        payload = SLOT.pack(slot, size) + head
        self._buffers.append(HEADER.pack(len(payload), CHUNK, flags | SLOTTED, channel, id) + payload)

    # ---- batches that are not executed ----

    def repeated(self, channel: int, seq: int) -> None:
        """Acknowledges a batch that the client had sent again.

        `seq` is 0 if the batch came over the link, where the acknowledgement only releases the batch's place in the
        front's window.
        """
        lane = self.lanes.get(channel)
        if not seq:
            self._urgent = True
            self._put_ack()
            self._buffers.append(header(ACK, 0, channel=channel))
        elif lane is not None:
            self._unsettled[lane] = None
            lane.repeated()

    def refused(self, channel: int, reason: str) -> None:
        """Closes the lane after a message that was not a batch. The client has been notified."""
        lane = self.lanes.get(channel)
        if lane is not None:
            self._unsettled[lane] = None
            lane.refused(reason)

    # ---- sending ----

    def crowded(self) -> bool:
        """True if the queue of frames for the front is so long that lanes should accept no more batches."""
        return len(self._buffers) > 64 * MAX_VECTORS

    @property
    def waits(self) -> bool:
        """True if frames must be sent before the loop reads more input."""
        return self._urgent or bool(self._unsettled) or len(self._buffers) >= MAX_VECTORS

    def schedule_settle(self, lane: LaneSink) -> None:
        """Schedules `settle` of the lane for the end of the loop iteration."""
        self._unsettled[lane] = None

    def max_sleep(self, limit: float | None) -> float | None:
        """Returns how long the loop may sleep, in seconds; at most `limit`, where None means no limit."""
        if self._watching or not (self._buffers or self._ack) or self._link_is_urgent():
            return limit
        return at_most(COPY_S, limit)  # a shorter sleep would cost more than the earlier delivery gains

    def _link_is_urgent(self) -> bool:
        """True if the frames for the front are to be sent now."""
        return (
            self._urgent
            or self._watching
            or len(self._buffers) >= MAX_VECTORS
            or time.perf_counter() >= self._copies_due
        )

    def answer(self) -> None:
        """Sends the answers that clients wait for, unless other frames must be sent first."""
        if self._urgent:
            self.send()
        elif self._unsettled:
            self._settle()

    def send(self) -> None:
        """Sends as much as the sockets accept; the rest is sent when they become writable.

        Lanes are served before the copies of their frames for the front, because clients wait for the lanes. Urgent
        frames for the front are sent first of all: after a command is reported done to the client, the front must
        already know about the command (for example, that a durable copy is complete).
        """
        urgent = bool(self._buffers or self._ack) and self._link_is_urgent()
        if urgent and self._ack_pending:
            for lane in self._ack_pending:
                lane.put_ack()
            self._unsettled.update(self._ack_pending)
            self._ack_pending.clear()
        if self._urgent:
            self._send_link()
            urgent = False
        if self._unsettled and not self._urgent:
            self._settle()
        if urgent:
            self._send_link()

    def _settle(self) -> None:
        unsettled, self._unsettled = self._unsettled, {}
        for lane in unsettled:
            lane.settle()

    def _send_link(self) -> None:
        self._put_ack()
        crowded, buffers = self.crowded(), self._buffers
        try:
            self._vectors.send(self._link)
        except OSError:
            buffers.clear()  # the front is gone; the loop notices by the end of the stream
        self._urgent = self._urgent and bool(buffers)
        if bool(buffers) != self._watching:
            self._watching = bool(buffers)
            self._watch_writes(self._watching)
        if crowded and not self.crowded():
            for lane in tuple(self.lanes.values()):
                lane.settle()  # settle now, because nothing else may happen before the loop sleeps

    def send_all(self) -> None:
        """Sends everything and blocks until the front has read it, with a timeout of 1 s per write.

        Used by the fatal exit of a process.
        """
        for lane in tuple(self.lanes.values()):
            lane.put_ack()
            lane.settle()
        self._put_ack()
        self._link.settimeout(1.0)
        try:
            while self._buffers:
                self._link.sendall(self._buffers.popleft())
        except OSError:
            self._buffers.clear()
