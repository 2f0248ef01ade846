"""Segment channel: a client's socket into the device process for shared memory.

The client sends SEGMENT and RELEASE; the device process sends SEGMENT and ABORT. UPLOAD and DOWNLOAD, which give the
place of a transfer's bytes, go in both directions.

Descriptors arrive as ancillary data: the system delivers a descriptor with the first byte of the data that it was sent
with, and one receive never reads past that. So the oldest descriptor that was not taken belongs to the oldest SEGMENT
frame without one, provided that the client follows the protocol and sends each descriptor with the first byte of a
SEGMENT frame.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from queue import SimpleQueue
from select import EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT
from typing import Any

from hearth_proto.frames import PLACE, Frame, FrameError, FrameReader, Kind, encode
from hearth_proto.reasons import Reason, Refusal
from hearthd.device.flows.segment import Segment, SegmentRange
from hearthd.device.flows.segment_policy import check_range
from hearthd.device.flows.transfer import DownloadFlow, UploadFlow
from hearthd.device.platform.event_loop import Loop
from hearthd.device.session.session import DeviceSession
from hearthd.device.transfers.segments import Segments
from hearthd.device.transfers.transfers import Transfers

RECEIVE_BYTES = 64 << 10
MAX_FRAME = 1 << 10
DESCRIPTORS = 8
"""Largest number of descriptors in one receive; the system closes any others."""

MAX_UNREAD = 1 << 20
"""Limit of unsent answers in bytes; if it is exceeded, the connection ends."""

MAX_STRANGE = 64
"""Limit of descriptors that are being closed; if it is exceeded, the connection ends."""


class DescriptorCloser:
    """Closes descriptors that are not memfds on a separate thread, because closing such a file may block."""

    def __init__(self) -> None:
        self._files: SimpleQueue[int] = SimpleQueue()
        self._queued = self._closed = 0

    def __len__(self) -> int:
        """Returns the number of descriptors that are not closed yet."""
        return self._queued - self._closed

    def close(self, files: Iterable[int]) -> None:
        """Queues the descriptors, which the closer owns from now on. Device-handle thread; does not block."""
        for file in files:
            if not self._queued:
                threading.Thread(target=self._run, name="close-files", daemon=True).start()
            self._queued += 1
            self._files.put(file)

    def _run(self) -> None:
        while True:
            with contextlib.suppress(OSError):
                os.close(self._files.get())
            self._closed += 1


class SegmentConnection:
    """The device process's end of the socket.

    Device-handle thread only. `on_end` is called once: with an empty string when the client has disconnected, or with
    the reason when the client has violated the protocol.
    """

    def __init__(
        self,
        end: socket.socket,
        session: DeviceSession,
        max_bytes: int,
        segments: Segments,
        transfers: Transfers,
        closer: DescriptorCloser,
        loop: Loop,
        on_end: Callable[[SegmentConnection, str], None],
    ) -> None:
        self.session = session
        self._end = end
        self._fd = end.fileno()
        self._max_bytes = max_bytes
        self._segments = segments
        self._transfers = transfers
        self._closer = closer
        self._loop = loop
        self._on_end = on_end
        self._reader = FrameReader(MAX_FRAME)
        self._files: deque[int] = deque()
        """Descriptors that have arrived and do not belong to a SEGMENT frame yet, in order."""
        self._received: dict[int, Segment] = {}
        """Segments that arrived over this connection and were not released, by their number."""
        self._out = bytearray()
        self._open = True
        end.setblocking(False)
        loop.add_reader(self._fd, self._ready)

    def begin(self) -> None:
        """Notifies the client that it may send segments."""
        self._put(Kind.LIVE)

    def close(self) -> None:
        """Closes the connection and releases its segments. Further calls have no effect."""
        if not self._open:
            return
        self._open = False
        with contextlib.suppress(OSError):  # the client has disconnected
            self._end.send(self._out)
        self._loop.remove_reader(self._fd)
        # the file descriptor must not be reused while events of this iteration of the loop are handled
        self._loop.post(self._end.close)
        self._closer.close(self._files)
        self._files.clear()
        for segment in self._received.values():
            self._segments.release(segment)
        self._received.clear()

    # ---- from the client ----

    def _ready(self, events: int) -> None:
        if events & EPOLLIN:
            self._receive()
        elif events & (EPOLLHUP | EPOLLERR):
            self._ended("")
        if events & EPOLLOUT:
            self._send()

    def _receive(self) -> None:
        try:
            data, ancillary, _, _ = self._end.recvmsg(
                RECEIVE_BYTES, socket.CMSG_SPACE(DESCRIPTORS * 4), socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            return
        except OSError:
            self._ended("")
            return
        files = _descriptors(ancillary)
        self._files.extend(files[:1])
        self._closer.close(files[1:])
        if not data:
            self._ended("")
            return
        try:
            for frame in self._reader.feed(data):
                self._frame(frame)
        except (FrameError, ValueError) as error:
            self._ended(str(error))
            return
        while len(self._files) > (1 if self._reader.pending else 0):  # these arrived without a SEGMENT frame
            self._closer.close([self._files.popleft()])
        if len(self._closer) > MAX_STRANGE:
            self._ended(f"{len(self._closer)} received descriptors are not memfds and cannot be closed")

    def _frame(self, frame: Frame) -> None:
        if not self._open:
            return
        if frame.kind == Kind.SEGMENT and not (frame.channel or frame.flags):
            self._segment(frame)
        elif frame.kind == Kind.RELEASE and not (frame.channel or frame.flags or frame.payload):
            segment = self._received.pop(frame.id, None)
            if segment is not None:  # otherwise the segment was refused
                self._segments.release(segment)
        elif frame.kind in (Kind.UPLOAD, Kind.DOWNLOAD) and not (frame.channel or frame.flags):
            self._place_transfer(frame)
        else:
            raise ValueError(
                f"a frame of kind {frame.kind} with flags {frame.flags} for channel {frame.channel} is not allowed "
                f"on a connection for segments"
            )

    def _segment(self, frame: Frame) -> None:
        ident = frame.id
        if not self._files:
            refusal = Refusal(
                Reason.INVALID_ARGUMENT,
                "a SEGMENT frame arrived without a descriptor",
                fix="send its memfd with the frame's first byte (SCM_RIGHTS), one descriptor with each frame",
            )
            self._refuse(ident, refusal)
            return
        file = self._files.popleft()
        try:
            announced, signals = _read(frame.payload)
            then = partial(self._answer, ident)
            segment = self._segments.accept(self.session, ident, announced, file, self._max_bytes, then)
            segment.signals = signals
            self._received[ident] = segment
        except Refusal as refusal:
            self._closer.close([file])
            self._refuse(ident, refusal)

    def _place_transfer(self, frame: Frame) -> None:
        """Sets the place of a transfer's bytes. Raises ValueError for a frame that contains no place."""
        try:
            ident, start, size = PLACE.unpack(frame.payload)
        except struct.error as error:
            raise ValueError(f"the payload of frame {frame.kind} is not a valid place: {error}") from None
        try:
            location = SegmentRange(self._segments.find(self.session, ident), start, size)
            check_range(f"transfer {frame.id}", ident, location.segment.size, start, size)
            if frame.kind == Kind.UPLOAD:
                self._transfers.shared.place(self.session, UploadFlow, frame.id, location)
            else:
                self._transfers.shared.place(self.session, DownloadFlow, frame.id, location)
        except Refusal as refusal:
            self._refuse(frame.id, refusal)
        else:
            self._put(frame.kind, id=frame.id)

    # ---- to the client ----

    def _answer(self, ident: int, refusal: Refusal | None) -> None:
        if not self._open:
            return
        if refusal is None:
            self._put(Kind.SEGMENT, id=ident)
        else:
            self._received.pop(ident, None)
            self._refuse(ident, refusal)

    def _refuse(self, ident: int, refusal: Refusal) -> None:
        self._put(Kind.ABORT, refusal.to_status().SerializeToString(), id=ident)

    def _put(self, kind: int, payload: bytes = b"", id: int = 0) -> None:
        self._out += encode(kind, payload, id=id)
        if len(self._out) > MAX_UNREAD:
            self._ended(f"{len(self._out)} bytes of answers are waiting to be read; the maximum is {MAX_UNREAD}")
        else:
            self._send()

    def _send(self) -> None:
        if not self._open:
            return
        try:
            sent = self._end.send(self._out) if self._out else 0
        except BlockingIOError:
            sent = 0
        except OSError:
            self._ended("")
            return
        del self._out[:sent]
        self._loop.watch(self._fd, writes=bool(self._out))

    def _ended(self, reason: str) -> None:
        if self._open:
            self.close()
            self._on_end(self, reason)


def _descriptors(ancillary: Iterable[tuple[int, int, bytes]]) -> list[int]:
    """Returns the descriptors in the ancillary data."""
    descriptors = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
    return list(descriptors)


def _read(payload: bytes) -> tuple[object, bool]:
    """Returns the size in a SEGMENT frame, and True if the segment is for signals.

    Raises Refusal(MALFORMED_MESSAGE).
    """
    try:
        body: Any = json.loads(payload)
        return body["size"], body.get("signals") is True
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise Refusal(
            Reason.MALFORMED_MESSAGE,
            f"the payload of a SEGMENT frame cannot be read: {payload[:80]!r}",
            fix='send JSON, {"size": bytes}',
        ) from None
