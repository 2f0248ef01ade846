"""One lane: a socket from a client into the device process for its batches and their answers."""

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
"""Two headers: of an ack, and of the response behind it."""

RECEIVE_BYTES = 64 << 10
LONG_RECEIVE_BYTES = 1 << 20
"""While a frame is under way that is longer than what has come of it."""

FRAMING = 64
"""What a frame may be longer than a batch."""

MAX_RECEIVED = 256 << 10
"""The longest message of what a client has received: it is passed on, so the front has to have room for it."""


@dataclass(frozen=True)
class LaneLimits:
    """Limits of the work under way on a lane; see `hearthd.front.sessions.attach.ExecuteWindow`."""

    max_batch_bytes: int
    max_batches: int
    max_unacked_bytes: int
    max_unread_bytes: int
    max_unread_hard: int

    @classmethod
    def parse(cls, body: dict[str, Any]) -> LaneLimits:
        """Of what the front says. Raises ValueError."""
        values = [body.get(name) for name in cls.__dataclass_fields__]
        if not all(isinstance(value, int) and value > 0 for value in values):
            raise ValueError(f"the limits of a lane are no positive numbers: {values}")
        return cls(*values)  # type: ignore[arg-type]


class LaneError(Exception):
    """The client has broken the lane."""


class LaneConnection:
    """The device process's end of a lane. Device-handle thread only. It takes no frames before `begin`, nor beyond the
    client's window.

    `take` is handed the frames of the channel; before it, `inline_path` may take a batch that comes while nothing waits
    here, see `hearthd.device.fast_path.inline_path`. `crowded` says whether the front has too much to hear; `over` is
    told once that the client has gone (an empty string) or what it has done.
    """

    def __init__(
        self,
        end: socket.socket,
        channel: int,
        number: int,
        limits: LaneLimits,
        loop: Loop,
        take: Callable[[Frame], None],
        crowded: Callable[[], bool],
        over: Callable[[LaneConnection, str], None],
        inline_path: Callable[[LaneConnection, int, bytes], bool] = lambda lane, seq, payload: False,
    ) -> None:
        self.channel = channel
        self.number = number
        self._end = end
        self._fd = end.fileno()
        self._limits = limits
        self._ack_at = limits.max_batches // 8
        self._loop = loop
        self._take = take
        self._crowded = crowded
        self._over = over
        self._inline = inline_path
        self._most = limits.max_batch_bytes + FRAMING
        self._reader = FrameReader(self._most)
        self._partly = False
        """Whether a part of a frame has come."""
        self._open = True
        self._begun = self._reading = self._writing = False
        self._why = ""
        """What the client has been told that it has done: the lane ends behind that."""
        self._out = Vectors()
        self._unread = 0
        """Bytes that wait to be written."""
        self._acked = self._told = 0
        """The last batch that has been executed, as far as is known here and as far as the client is told."""
        self._last = self._first = 0
        """The number of the last batch that has come, and of the last one that came before this lane."""
        self._sizes: deque[int] = deque()
        """Of the batches that have come and are not acknowledged: those up to the last one."""
        self._repeated: deque[int] = deque()
        """Of those that have come again and have not been looked at."""
        self._unacked = 0
        """Bytes of both."""
        end.setblocking(False)
        loop.add_reader(self._fd, self._ready)
        loop.watch(self._fd, reads=False)
        self.put(Kind.LIVE)

    def begin(self, last: int) -> None:
        """All that came before has been looked at: the next batch is the one behind `last`."""
        if self._open:
            self._last = self._first = last
            self._begun = True
            self._watch()

    @property
    def used(self) -> bool:
        """Whether a batch has come over it."""
        return self._last > self._first

    def close(self) -> None:
        """Writes what goes at once; nothing more is taken. A second call does nothing."""
        if self._open:
            self._open = False
            with contextlib.suppress(OSError):  # nobody reads
                self._out.send(self._end)
            self._loop.remove_reader(self._fd)
            self._loop.post(self._end.close)  # its number may not be another's while events of this turn are looked at

    # ---- to the client ----

    def put(self, kind: int, payload: bytes = b"") -> None:
        """A frame for the client, behind the ack of what has been executed."""
        head = HEADER.pack(len(payload), kind, 0, 0, 0)
        if self._told != self._acked:
            head = self._ack() + head
        self._out.put(head, payload)
        self._unread += len(head) + len(payload)

    def acknowledge(self, seq: int) -> bool:
        """Every batch up to this one has been executed. The client is told with what it is told next, unless an eighth
        of its window waits for that. Whether there is something to `settle`: that, or room for more."""
        self._acked = seq
        sizes = self._sizes
        for _ in range(len(sizes) - max(self._last - seq, 0)):
            self._unacked -= sizes.popleft()
        if seq - self._told >= self._ack_at:
            self.put_ack()
            return True
        return not self._reading

    def answer(self, seq: int, payload: bytes) -> bool:
        """A response with the ack of the last batch that has come, now. False, with nothing done, where something is to
        go before it."""
        if self._unread or self._why or not self._open:
            return False
        self._acked = self._told = seq
        self._sizes.clear()
        self._unacked = 0
        self._write(ANSWER.pack(0, ACK, 0, 0, seq, len(payload), RESPONSE, 0, 0, 0) + payload)
        return True

    @property
    def clear(self) -> bool:
        """Whether the client has been sent all that it is to be told by now."""
        return not self._unread and self._open

    def respond(self, payload: bytes) -> bool:
        """A response, now, behind the ack of what has been executed. False, with nothing done, where it has to wait."""
        if self._unread or self._why or not self._open:
            return False
        head = HEADER.pack(len(payload), RESPONSE, 0, 0, 0)
        if self._told != self._acked:
            head = self._ack() + head
        self._write(head + payload)
        return True

    def _write(self, data: bytes) -> None:
        """Sends it, where nothing else waits to be; what does not go waits."""
        try:
            sent = self._end.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._ended("")
            return
        if sent < len(data):
            self._out.parts.append(data[sent:])
            self._unread = len(data) - sent
        if self._unread or not self._reading:
            self._watch()

    def put_ack(self) -> None:
        """Tells the client what has been executed."""
        ack = self._ack()
        if ack:
            self._out.put(ack, b"")
            self._unread += len(ack)

    def _ack(self) -> bytes:
        """The frame that says it; empty where the client has been told."""
        if self._told == self._acked:
            return b""
        self._told = self._acked
        return HEADER.pack(0, ACK, 0, 0, self._acked)

    def settle(self) -> None:
        """The turn is over: writes what goes, and looks whether more may be taken."""
        if not self._open:
            return
        if self._unread:
            try:
                self._unread -= self._out.send(self._end)
            except OSError:
                self._ended("")
                return
            if self._unread > self._limits.max_unread_hard:
                self._why = f"{self._unread} bytes wait to be read; the most is {self._limits.max_unread_hard}"
        if self._why:
            self._ended(self._why)
        elif self._writing != bool(self._unread) or (self._begun and not self._reading):
            self._watch()

    def repeated(self) -> None:
        """One that had come again was looked at."""
        if self._repeated:
            self._unacked -= self._repeated.popleft()

    def refused(self, why: str) -> None:
        """The client has been told that what it sent was no batch."""
        self._why = self._why or why

    # ---- from the client ----

    def _room(self) -> bool:
        """Whether more may be taken."""
        limits = self._limits
        return (
            len(self._sizes) + len(self._repeated) <= limits.max_batches
            and self._unacked <= limits.max_unacked_bytes
            and self._unread <= limits.max_unread_bytes
            and not self._crowded()
        )

    def _watch(self) -> None:
        """Listens for what can be done something about, and only for that."""
        self._reading = self._begun and self._room()
        self._writing = bool(self._unread)
        self._loop.watch(self._fd, reads=self._reading, writes=self._writing)

    def _ready(self, events: int) -> None:
        if events & EPOLLIN and self._reading:
            if not (self._sizes or self._unread or self._repeated or self._crowded()) or self._room():
                self._receive()
            else:
                self._watch()  # until `settle` finds room: who makes any stirs the lane
        elif events & (EPOLLHUP | EPOLLERR):
            self._ended("")
        if events & EPOLLOUT:
            self.settle()

    def _receive(self) -> None:
        partly = self._partly
        try:
            data = self._end.recv(LONG_RECEIVE_BYTES if partly and self._reader.pending > HEAD else RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._ended("")
            return
        try:
            at = 0 if partly else self._whole(data)
            if at < len(data):
                for frame in self._reader.feed(data[at:] if at else data):
                    self._frame(*frame)
                self._partly = self._reader.pending > 0
        except (FrameError, LaneError) as error:
            self._ended(str(error))

    def _whole(self, data: bytes) -> int:
        """Takes the frames that came whole, one or a few where somebody waits; up to where that was."""
        at, size = 0, len(data)
        while size - at >= HEAD:
            length, kind, flags, channel, seq = HEADER.unpack_from(data, at)
            end = at + HEAD + length
            if end > size or length > self._most:
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
                or not self._inline(self, seq, payload)
            ):
                self._frame(kind, flags, channel, seq, payload)
        return at

    def _frame(self, kind: int, flags: int, channel: int, seq: int, payload: bytes) -> None:
        if kind != BATCH or channel or flags:
            raise LaneError(f"a frame of kind {kind} with flags {flags} for channel {channel} is none of a lane's")
        size = len(payload)
        if not seq:
            if size > MAX_RECEIVED:
                raise LaneError(f"a message without a number has {size} bytes; the most is {MAX_RECEIVED}")
            self._take(Frame(RECEIVED, 0, self.channel, 0, payload))
            return
        if seq == self._last + 1:
            self.came(seq, size)
        elif seq <= self._last:
            self._repeated.append(size)
            self._unacked += size
        else:
            raise LaneError(f"batch {seq} has come; the next is {self._last + 1}")
        self._take(Frame(BATCH, 0, self.channel, seq, payload))

    def came(self, seq: int, size: int) -> None:
        """The next batch has been taken; it has so many bytes."""
        self._last = seq
        self._sizes.append(size)
        self._unacked += size

    def _ended(self, why: str) -> None:
        if self._open:
            self.close()
            self._over(self, why)
