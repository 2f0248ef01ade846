"""Lane: a socket from a client into the device process, which carries batches and their answers."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from select import EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT
from typing import Any

from hearth_proto.frames import HEADER, Frame, FrameError, FrameReader, Kind
from hearthd.device.outbox import ACK, RECEIVED, RESPONSE, Vectors
from hearthd.device.platform.event_loop import Loop

BATCH = int(Kind.BATCH)
HEAD = HEADER.size
ANSWER = struct.Struct(HEADER.format + HEADER.format[1:])
"""Two headers: that of an ack, and that of the response after it."""

RECEIVE_BYTES = 64 << 10
LONG_RECEIVE_BYTES = 1 << 20
"""Bytes of one receive while a frame is incomplete and its missing part is longer than a header."""

FRAMING = 64
"""Number of bytes by which a frame may be longer than its batch."""

MAX_RECEIVED = 256 << 10
"""Largest size in bytes of a client's report of the answers that it has received: the front must have room for it."""


@dataclass(frozen=True)
class LaneLimits:
    """Limits of the batches and answers in progress on a lane; see `hearthd.front.sessions.attach.ExecuteWindow`."""

    max_batch_bytes: int
    max_batches: int
    max_unacked_bytes: int
    max_unread_bytes: int
    max_unread_hard: int

    @classmethod
    def parse(cls, body: dict[str, Any]) -> LaneLimits:
        """Returns the limits in a message of the front. Raises ValueError."""
        values = [body.get(name) for name in cls.__dataclass_fields__]
        if not all(isinstance(value, int) and value > 0 for value in values):
            raise ValueError(f"the limits of a lane are not positive numbers: {values}")
        return cls(*values)  # type: ignore[arg-type]


class LaneError(Exception):
    """A violation of the lane protocol by the client."""


class LaneConnection:
    """The device process's end of a lane.

    Device-handle thread only. Accepts no frames before `begin`, and none beyond the client's window.

    `run_step` is called first with a batch that arrives while no other batch is under way on the lane; it returns True
    if it has executed the batch, see `hearthd.device.scheduler.steps`. `on_frame` receives all other frames, and
    `on_batches` the channel after the frames of one receive if batches are among them. `crowded` returns True if the
    front has too many frames to read. `on_end` is called once: with an empty string when the client has disconnected,
    or with the reason when the client has violated the protocol.
    """

    def __init__(
        self,
        end: socket.socket,
        channel: int,
        number: int,
        limits: LaneLimits,
        loop: Loop,
        on_frame: Callable[[Frame], None],
        crowded: Callable[[], bool],
        on_end: Callable[[LaneConnection, str], None],
        on_batches: Callable[[int], None],
        run_step: Callable[[LaneConnection, int, bytes], bool],
    ) -> None:
        self.channel = channel
        self.number = number
        self._end = end
        self._fd = end.fileno()
        self._limits = limits
        self._ack_at = limits.max_batches // 8
        self._loop = loop
        self._on_frame = on_frame
        self._crowded = crowded
        self._on_end = on_end
        self._on_batches = on_batches
        self._run_step = run_step
        self._max_frame = limits.max_batch_bytes + FRAMING
        self._reader = FrameReader(self._max_frame)
        self._has_partial_frame = False
        """True if only a part of a frame has arrived."""
        self._passed_on = False
        """True if a batch was passed to `on_frame` since the last call of `on_batches`."""
        self._open = True
        self._started = self._reading = self._writing = False
        self._error = ""
        """The client's error, which has been reported to the client; the lane closes after the report."""
        self._out = Vectors()
        self._unread = 0
        """Number of bytes that are queued for sending."""
        self._executed = self._acked = 0
        """Numbers of the last batch that has been executed, and of the last batch that has been acknowledged to the
        client."""
        self._last = self._first = 0
        """Numbers of the last batch that has arrived, and of the last batch before this lane began."""
        self._sizes: deque[int] = deque()
        """Sizes of the batches that have arrived and are not acknowledged, oldest first."""
        self._repeated: deque[int] = deque()
        """Sizes of the repeated batches that have not been handled yet."""
        self._unacked = 0
        """Sum of `_sizes` and `_repeated`, in bytes."""
        end.setblocking(False)
        loop.add_reader(self._fd, self._ready)
        loop.watch(self._fd, reads=False)
        self.put(Kind.LIVE)

    def begin(self, last: int) -> None:
        """Starts to read. All earlier frames must have been handled; the next batch has the number `last` + 1."""
        if self._open:
            self._last = self._first = last
            self._started = True
            self._watch()

    @property
    def used(self) -> bool:
        """True if a batch has arrived over this lane."""
        return self._last > self._first

    def close(self) -> None:
        """Sends as much as the socket accepts, and stops reading. Further calls have no effect."""
        if self._open:
            self._open = False
            with contextlib.suppress(OSError):  # the client has disconnected
                self._out.send(self._end)
            self._loop.remove_reader(self._fd)
            # the file descriptor must not be reused while events of this iteration of the loop are handled
            self._loop.post(self._end.close)

    # ---- to the client ----

    def put(self, kind: int, payload: bytes = b"") -> None:
        """Queues a frame for the client, after the ack of executed batches."""
        head = HEADER.pack(len(payload), kind, 0, 0, 0)
        if self._acked != self._executed:
            head = self._ack() + head
        self._out.put(head, payload)
        self._unread += len(head) + len(payload)

    def acknowledge(self, seq: int) -> bool:
        """Records that every batch up to `seq` has been executed.

        The ack is sent with the next frame, or as soon as it covers an eighth of the client's window. Returns True if
        `settle` has work to do: sending the ack, or resuming to read.
        """
        self._executed = seq
        sizes = self._sizes
        for _ in range(len(sizes) - max(self._last - seq, 0)):
            self._unacked -= sizes.popleft()
        if seq - self._acked >= self._ack_at:
            self.put_ack()
            return True
        return not self._reading

    def answer(self, seq: int, payload: bytes) -> bool:
        """Sends a response immediately, together with the ack of the last batch that has arrived.

        Returns False, with no effect, if other frames must be sent first.
        """
        if self._unread or self._error or not self._open:
            return False
        self._executed = self._acked = seq
        self._sizes.clear()
        self._unacked = 0
        self._out.put(ANSWER.pack(0, ACK, 0, 0, seq, len(payload), RESPONSE, 0, 0, 0), payload)
        self._unread = ANSWER.size + len(payload)
        self.settle()
        return True

    @property
    def clear(self) -> bool:
        """True if every frame that was queued for the client has been sent."""
        return not self._unread and self._open

    def put_ack(self) -> None:
        """Queues the ack of executed batches."""
        ack = self._ack()
        if ack:
            self._out.put(ack, b"")
            self._unread += len(ack)

    def _ack(self) -> bytes:
        """Returns the frame of the ack; empty if the client has already been sent it."""
        if self._acked == self._executed:
            return b""
        self._acked = self._executed
        return HEADER.pack(0, ACK, 0, 0, self._executed)

    def settle(self) -> None:
        """Completes an iteration of the loop: sends as much as the socket accepts.

        Also resumes reading if there is room.
        """
        if not self._open:
            return
        if self._unread:
            try:
                self._unread -= self._out.send(self._end)
            except OSError:
                self._ended("")
                return
            if self._unread > self._limits.max_unread_hard:
                limit = self._limits.max_unread_hard
                self._error = f"{self._unread} bytes are waiting to be read; the maximum is {limit}"
        if self._error:
            self._ended(self._error)
        elif self._writing != bool(self._unread) or (self._started and not self._reading):
            self._watch()

    def repeated(self) -> None:
        """Records that a repeated batch was handled."""
        if self._repeated:
            self._unacked -= self._repeated.popleft()

    def refused(self, reason: str) -> None:
        """Records that the client has been notified of an invalid batch."""
        self._error = self._error or reason

    # ---- from the client ----

    def _room(self) -> bool:
        """True if the lane may accept more frames."""
        limits = self._limits
        return (
            len(self._sizes) + len(self._repeated) <= limits.max_batches
            and self._unacked <= limits.max_unacked_bytes
            and self._unread <= limits.max_unread_bytes
            and not self._crowded()
        )

    def _watch(self) -> None:
        """Registers for those events that can be handled now, and only those."""
        self._reading = self._started and self._room()
        self._writing = bool(self._unread)
        self._loop.watch(self._fd, reads=self._reading, writes=self._writing)

    def _ready(self, events: int) -> None:
        if events & EPOLLIN and self._reading:
            if not (self._sizes or self._unread or self._repeated or self._crowded()) or self._room():
                self._receive()
            else:
                self._watch()  # until `settle` finds room; code that makes room calls `Outbox.schedule_settle`
        elif events & (EPOLLHUP | EPOLLERR):
            self._ended("")
        if events & EPOLLOUT:
            self.settle()

    def _receive(self) -> None:
        has_partial_frame = self._has_partial_frame
        try:
            data = self._end.recv(
                LONG_RECEIVE_BYTES if has_partial_frame and self._reader.pending > HEAD else RECEIVE_BYTES
            )
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._ended("")
            return
        try:
            at = 0 if has_partial_frame else self._handle_complete(data)
            if at < len(data):
                for frame in self._reader.feed(data[at:] if at else data):
                    self._frame(*frame)
                self._has_partial_frame = self._reader.pending > 0
            if self._passed_on:
                self._passed_on = False
                self._on_batches(self.channel)
        except (FrameError, LaneError) as error:
            self._ended(str(error))

    def _handle_complete(self, data: bytes) -> int:
        """Handles the frames that arrived complete (one or a few, if a client waits for an answer).

        Returns the end of the last one in `data`.
        """
        at, size = 0, len(data)
        while size - at >= HEAD:
            length, kind, flags, channel, seq = HEADER.unpack_from(data, at)
            end = at + HEAD + length
            if end > size or length > self._max_frame:
                break
            payload = data[at + HEAD : end]
            at = end
            if (
                kind != BATCH
                or seq != self._last + 1
                or channel
                or flags
                or self._unacked
                or self._unread
                or not self._run_step(self, seq, payload)
            ):
                self._frame(kind, flags, channel, seq, payload)
        return at

    def _frame(self, kind: int, flags: int, channel: int, seq: int, payload: bytes) -> None:
        if kind != BATCH or channel or flags:
            raise LaneError(f"a frame of kind {kind} with flags {flags} for channel {channel} is not allowed on a lane")
        size = len(payload)
        if not seq:
            if size > MAX_RECEIVED:
                raise LaneError(f"a message without a number has {size} bytes; the maximum is {MAX_RECEIVED}")
            self._on_frame(Frame(RECEIVED, 0, self.channel, 0, payload))
            return
        if seq == self._last + 1:
            self.batch_received(seq, size)
        elif seq <= self._last:
            self._repeated.append(size)
            self._unacked += size
        else:
            raise LaneError(f"batch {seq} arrived; the expected batch is {self._last + 1}")
        self._passed_on = True
        self._on_frame(Frame(BATCH, 0, self.channel, seq, payload))

    def batch_received(self, seq: int, size: int) -> None:
        """Counts the next batch, of `size` bytes, as received."""
        self._last = seq
        self._sizes.append(size)
        self._unacked += size

    def _ended(self, reason: str) -> None:
        if self._open:
            self.close()
            self._on_end(self, reason)
