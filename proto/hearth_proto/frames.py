"""Frames: length, kind, channel, id and payload on any byte stream.

The front and a device process exchange frames over a socket pair; lanes use frames too. A frame is a 20-byte
little-endian header (`HEADER`), followed by `length` bytes of payload. `channel` names the session on a shared link (0
on a link that is not shared). `id` names the subject of the frame: the batch's sequence number, a call, a transfer.

`FrameReader` is sans-I/O: it decodes frames from bytes that arrive in arbitrary pieces.
"""

from __future__ import annotations

import enum
import struct
from typing import NamedTuple

HEADER = struct.Struct("<IHHIQ")
"""Header: length of the payload in bytes, kind, flags, channel, id."""

STRIPE_OFFSET = struct.Struct("<Q")
"""Offset of a stripe's data in the transfer, in bytes."""

PLACE = struct.Struct("<QQQ")
"""Location of a transfer's bytes in shared memory: number of the segment, offset in it, and number of bytes."""

SLOT = struct.Struct("<II")
"""Location of a chunk's data: number of the slot, and number of bytes from the slot's beginning on."""

MAX_PAYLOAD = 64 << 20
"""Maximum size of a payload, in bytes. A longer one ends the link: no sender needs it, so the stream has lost its
framing."""


UPLOAD_CREDITS = 8
"""Number of chunks of an upload that may be sent to the device process before it has granted any credit
(`Kind.CREDIT`)."""


class Kind(enum.IntEnum):
    """Kind of a frame. Numbers are only ever added."""

    # to the device process
    OPEN = 1  # channel: a session begins; payload: JSON {session, tenant}
    CLOSE = 2  # channel: the session ends; answered by CLOSED after all objects of the session are freed
    BATCH = 3  # channel, id 0; payload: an ExecuteRequest
    CALL = 4  # channel, id: the call; payload: a Command; answered by RESULT with the same id
    UPLOAD = 5  # channel, id: the transfer; payload: an UploadRequest, its `data` the next bytes
    DOWNLOAD = 6  # channel, id: the transfer; flags: the first credits
    SHUTDOWN = 7  # finish what is queued, then end
    PING = 8  # id: repeated by PONG
    STATS = 9  # id: repeated by STATS, whose payload is JSON
    LIMIT = 10  # payload: JSON, the device memory that the process may hold; answered by HELD
    TURN = 11  # flags 1: the process may submit work; 2: it is alone on the device again; 4: other processes wait
    RESTORE = 12  # channel; payload: JSON, durable buffers to restore; answered by RESTORED with the same id
    CANCEL = 13  # channel, id: the call, which is no longer awaited; dropped if it has not begun
    EXPORT = 14  # channel, id; payload: JSON, a buffer to publish; answered by EXPORTED with the same id
    IMPORT = 15  # channel, id; payload: JSON, a published buffer to attach; answered by IMPORTED with the same id

    # in either direction
    CREDIT = 16  # channel, id: the transfer; flags: number of further chunks that may be sent
    ABORT = 17  # channel, id: the transfer has ended prematurely; payload: a Status
    COLLECTIVE = 18  # payload: JSON, see hearthd.front.collectives.matcher
    LANE_END = 20  # to the device process; channel, id: end the channel's lane; answered by LANE_ENDED
    # to the device process; payload: JSON, settings that change now: those of a session as in OPEN, or, if channel is
    # 0, {log_level, log_format, launch_timeout, load_timeout}
    CHANGE = 21
    SLOTS = 22  # to the device process; id: bit n: the data in slot n (`Flag.SLOT`) was read, the slot is free

    # to the device process; channel; payload: a Command with `Cancel`, which takes effect now, and until that command
    # is executed. Without payload: ends all such effects
    DROP = 23

    # to the front
    READY = 32  # payload: DeviceProperties
    RESPONSE = 33  # channel; payload: an ExecuteResponse; id, if not 0: an acknowledgement as by an ACK before it
    ACK = 34  # channel, id: every batch up to this one has been executed; id 0: a batch had been resent
    RESULT = 35  # channel, id: the call; payload: a Result
    CHUNK = 36  # channel, id: the transfer; payload: a DownloadResponse
    CLOSED = 37  # channel
    FAULT = 38  # the process is about to end; payload: a Status
    PONG = 39
    HELD = 40  # payload: JSON, memory that the process holds and wants
    BUSY = 41  # flags 1: the process has work for the device; 2: and some of it is on the device
    METER = 42  # payload: JSON, device time that sessions have used since the last METER
    # channel, id; payload: JSON, a request about copies of durable buffers; answered by SNAPSHOT with its id
    SNAPSHOT = 43
    RESTORED = 44  # channel, id; payload: JSON
    EXPORTED = 45  # channel, id; payload: JSON
    IMPORTED = 46  # channel, id; payload: JSON
    DENIED = 47  # channel; payload: JSON {operation, right}: a command for which its session lacks the right
    LANE_ENDED = 48  # channel, id; payload: JSON {last}: the last batch received over the lane or before it
    RECEIVED = 49  # channel; payload: an ExecuteRequest: the receipt that a client sent over its lane
    TRACED = 50  # channel; payload: JSON {events, epoch_ns, lasted_ns}, a newline, a TraceResult compressed with zlib

    # lanes; channel is 0
    TICKET = 64  # the client's first frame; payload: LaneOffer.ticket
    LIVE = 65  # the device process's first frame: batches may be sent here

    # connections for bulk data (OpenBulk), which also begin with TICKET and LIVE; channel is 0
    # id: the client's number of a segment; payload: JSON {size, signals}; the segment's memfd, sealed against a change
    # of size, is the descriptor of the frame's first byte. Answered by SEGMENT once commands may name the segment, or
    # by ABORT. signals (optional): the device writes the numbers of completed requests there (docs/protocol.md)
    SEGMENT = 66
    # On the same connections, if OpenBulkResponse.transfers is set: UPLOAD and DOWNLOAD; id: a transfer that a command
    # names or will name; payload: `PLACE`, the location of all of its bytes. Answered by ABORT, or by a frame of the
    # same kind once the location is accepted, which stays valid even if the connection ends
    RELEASE = 67  # id: the client no longer names the segment, which ends when the work that uses it is done
    STRIPE = 68  # in either direction; id: the transfer; payload: `STRIPE_OFFSET`, then data
    TAKEN = 69  # in either direction; id: the transfer; payload: `STRIPE_OFFSET` of a STRIPE that need not be resent

    # connections that carry a call (hearth_proto.calls); channel is 0, and PING and PONG are sent in either direction
    METHOD = 70  # the client's first frame; payload: the method and its metadata
    MESSAGE = 71  # in either direction; payload: a request or a response
    END = 72  # the last frame of the client and of the daemon; the daemon's payload: the Status of a call that failed


class Flag(enum.IntFlag):
    """Flags of UPLOAD, CHUNK, RESPONSE and ACK frames. Other kinds use the field differently: see `Kind`."""

    LAST = 1  # the last UPLOAD or CHUNK of its transfer
    LANED = 2  # a RESPONSE or ACK that was sent over the lane: for the front to keep, not to forward
    # a CHUNK whose data lies in memory that the device process shares with the front: its payload is `SLOT`, then the
    # bytes before the data in the DownloadResponse; answered by SLOTS, even if its channel or transfer has ended
    SLOT = 4


class FrameError(ValueError):
    """Raised for bytes that are not frames: the link must be closed."""


class FrameTooLarge(FrameError):
    """Raised for a frame that is longer than the reader accepts; `size` and `limit` of its payload in bytes."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(f"a frame of {size} bytes is announced; the maximum is {limit}")
        self.size = size
        self.limit = limit


class Frame(NamedTuple):
    """A decoded frame; `Kind` describes the meaning of the fields for each `kind`."""

    kind: int
    flags: int
    channel: int
    id: int
    payload: bytes


def encode(kind: int, payload: bytes = b"", *, channel: int = 0, id: int = 0, flags: int = 0) -> bytes:
    """Encodes a frame as bytes."""
    return header(kind, len(payload), channel=channel, id=id, flags=flags) + payload


def header(kind: int, length: int, *, channel: int = 0, id: int = 0, flags: int = 0) -> bytes:
    """Returns the header alone, for payloads that are sent without a copy."""
    if length > MAX_PAYLOAD:
        raise FrameError(f"a payload of {length} bytes does not fit into a frame; the maximum is {MAX_PAYLOAD}")
    return HEADER.pack(length, kind, flags, channel, id)


class FrameReader:
    """Splits a byte stream, received in arbitrary pieces, into frames.

    Each payload is copied once, regardless of the number of pieces.
    """

    def __init__(self, max_payload: int = MAX_PAYLOAD) -> None:
        self.max_payload = max_payload
        """Maximum size of a payload, in bytes. A change applies to frames whose header has not arrived."""
        self._head = b""  # the incomplete header of the next frame
        self._frame: tuple[int, int, int, int, int] | None = None  # header of the frame whose payload is incomplete
        self._pieces: list[memoryview] = []
        self._missing = 0

    @property
    def pending(self) -> int:
        """Number of bytes received of an incomplete frame."""
        if self._frame is None:
            return len(self._head)
        return HEADER.size + self._frame[0] - self._missing

    def feed(self, data: bytes | bytearray | memoryview) -> list[Frame]:
        """Returns the frames that `data` completes, in order. Raises `FrameError` for bytes that are not a frame."""
        if not isinstance(data, bytes):
            data = bytes(data)  # a copy, because pieces are kept, and the caller reuses its buffer
        if self._frame is None and not self._head and len(data) >= HEADER.size:
            length, kind, flags, channel, ident = HEADER.unpack_from(data)
            if length == len(data) - HEADER.size and length <= self.max_payload:  # the usual case while a thread waits
                return [Frame(kind, flags, channel, ident, data[HEADER.size :])]
        if self._head:
            data = self._head + data
            self._head = b""
        view = memoryview(data)
        frames: list[Frame] = []
        position = 0
        size = len(data)
        while True:
            if self._frame is None:
                if size - position < HEADER.size:
                    self._head = data[position:]
                    return frames
                self._frame = HEADER.unpack_from(data, position)
                position += HEADER.size
                self._missing = self._frame[0]
                if self._missing > self.max_payload:
                    raise FrameTooLarge(self._missing, self.max_payload)
            count = min(self._missing, size - position)
            piece = view[position : position + count]
            position += count
            self._missing -= count
            if self._missing:
                self._pieces.append(piece)
                return frames
            _, kind, flags, channel, ident = self._frame
            if self._pieces:
                self._pieces.append(piece)
                payload = b"".join(self._pieces)
                self._pieces.clear()
            else:
                payload = bytes(piece)
            frames.append(Frame(kind, flags, channel, ident, payload))
            self._frame = None
