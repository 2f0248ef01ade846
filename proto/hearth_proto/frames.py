"""Frames: length, kind, channel, id and payload on any byte stream.

The front and a device process speak frames over a socket pair; lanes speak them too. A frame is a 20-byte little-endian
header (`HEADER`) and `length` bytes of payload. `channel` names the session on a shared link (0 on a link that is not
shared), `id` what the frame is about: the batch's sequence number, a call, a transfer.

`FrameReader` is sans-I/O: bytes in, frames out, whatever the cuts.
"""

from __future__ import annotations

import enum
import struct
from typing import NamedTuple

HEADER = struct.Struct("<IHHIQ")
"""length of the payload, kind, flags, channel, id"""

STRIPE_OFFSET = struct.Struct("<Q")
"""The offset of a stripe's data in the transfer, in bytes."""

PLACE = struct.Struct("<QQQ")
"""The place of a transfer's bytes in shared memory: the number of a segment, the offset in it, and their number."""

SLOT = struct.Struct("<II")
"""The place of a chunk's data: the number of a slot, and the bytes from its beginning on."""

MAX_PAYLOAD = 64 << 20
"""A longer payload ends the link: nothing that is sent needs it, so the stream has lost its framing."""


UPLOAD_CREDITS = 8
"""Chunks of an upload that may be sent to the device process before it has granted any (`Kind.CREDIT`)."""


class Kind(enum.IntEnum):
    """The kind of a frame. Numbers are append-only."""

    # towards the device process
    OPEN = 1  # channel: a session begins; payload: JSON {session, tenant}
    CLOSE = 2  # channel: the session ends; answered by CLOSED when all that it held is free
    BATCH = 3  # channel, id 0; payload: an ExecuteRequest
    CALL = 4  # channel, id: the call; payload: a Command; answered by RESULT with the same id
    UPLOAD = 5  # channel, id: the transfer; payload: an UploadRequest, its `data` the next bytes
    DOWNLOAD = 6  # channel, id: the transfer; flags: the first credits
    SHUTDOWN = 7  # finish what is queued, then end
    PING = 8  # id: returned by PONG
    STATS = 9  # id: returned by STATS with JSON
    LIMIT = 10  # payload: JSON, how much of the device's memory the process may hold; answered by HELD
    TURN = 11  # flags 1: the process may give the device work; 2: it is alone there again; 4: others wait for it
    RESTORE = 12  # channel; payload: JSON, durable buffers to bring back; answered by RESTORED with the same id
    CANCEL = 13  # channel, id: the call, which is not awaited any more; dropped where it has not begun
    EXPORT = 14  # channel, id; payload: JSON, a buffer to publish; answered by EXPORTED with the same id
    IMPORT = 15  # channel, id; payload: JSON, a published buffer to attach; answered by IMPORTED with the same id

    # either way
    CREDIT = 16  # channel, id: the transfer; flags: how many more chunks may come
    ABORT = 17  # channel, id: the transfer is over before its end; payload: a Status
    COLLECTIVE = 18  # payload: JSON, see hearthd.front.collectives.matcher
    FORGET = 19  # channel, id; payload: JSON, a snapshot or publication that is over
    LANE_END = 20  # towards the device process; channel, id: end the channel's lane; answered by LANE_ENDED
    # towards the device process; payload: JSON, other settings from now on: of a session as OPEN has them, or, where
    # channel is 0, {log_level, log_format, launch_timeout, load_timeout}
    CHANGE = 21
    SLOTS = 22  # towards the device process; id: bit n: what lay in slot n (`Flag.SLOT`) has been taken, it is free

    # towards the front
    READY = 32  # payload: DeviceProperties
    RESPONSE = 33  # channel; payload: an ExecuteResponse; id, where it is not 0: as that of an ACK before it
    ACK = 34  # channel, id: every batch up to this one has been executed; id 0: one had been sent again
    RESULT = 35  # channel, id: the call; payload: a Result
    CHUNK = 36  # channel, id: the transfer; payload: a DownloadResponse
    CLOSED = 37  # channel
    FAULT = 38  # the process is about to end; payload: a Status
    PONG = 39
    HELD = 40  # payload: JSON, memory that the process holds and wants
    BUSY = 41  # flags 1: it has work for the device; 2: and some of it is there
    METER = 42  # payload: JSON, device time used by sessions since the last one
    SNAPSHOT = 43  # channel, id; payload: JSON, what to do with copies of durable buffers; answered in kind, by its id
    RESTORED = 44  # channel, id; payload: JSON
    EXPORTED = 45  # channel, id; payload: JSON
    IMPORTED = 46  # channel, id; payload: JSON
    DENIED = 47  # channel; payload: JSON {operation, right}: a command that its session has not the right to
    LANE_ENDED = 48  # channel, id; payload: JSON {last}: the last batch that has come over the lane or before it
    RECEIVED = 49  # channel; payload: an ExecuteRequest, what a client says on its lane to have received
    TRACED = 50  # channel; payload: JSON {events, epoch_ns, lasted_ns}, a newline, a TraceResult compressed with zlib

    # lanes, where channel is 0
    TICKET = 64  # the client's first frame; payload: LaneOffer.ticket
    LIVE = 65  # the device process's first: batches may come here

    # connections for bulk data (OpenBulk), which begin with TICKET and LIVE as well; channel is 0
    # id: a segment that the client has numbered; payload: JSON {size, signals}, with its memfd, sealed against a change
    # of size, as the descriptor of the frame's first byte; answered by SEGMENT once it may be named in commands, or by
    # ABORT; signals (optional): whether the device is to write there which requests are done (docs/protocol.md)
    SEGMENT = 66
    # Beside it, where OpenBulkResponse.transfers says so: UPLOAD and DOWNLOAD; id: a transfer that a command names, or
    # will name; payload: `PLACE`, where all of its bytes lie, or go to; answered in kind once that is settled, whatever
    # becomes of the connection then, or by ABORT
    RELEASE = 67  # id: the client names the segment no more; it goes when the work that uses it is done
    STRIPE = 68  # either way; id: the transfer; payload: `STRIPE_OFFSET`, then data
    TAKEN = 69  # either way; id: the transfer; payload: `STRIPE_OFFSET` of a STRIPE that need not be sent again

    # connections that are a call (hearth_proto.calls), where channel is 0; PING and PONG go either way there
    METHOD = 70  # the client's first; payload: the method and its metadata
    MESSAGE = 71  # either way; payload: a request or a response
    END = 72  # the client's last; the daemon's, payload: the Status of a call that failed


class Flag(enum.IntFlag):
    LAST = 1  # the last UPLOAD or CHUNK of its transfer
    LANED = 2  # a RESPONSE or ACK that went to the client over its lane: for the front to keep, not to pass on
    # a CHUNK whose data lies in memory that the device process shares with the front: its payload is `SLOT`, then what
    # stands before the data in the DownloadResponse; answered by SLOTS, whatever has become of its channel and transfer
    SLOT = 4


class FrameError(ValueError):
    """The bytes are no frames: the link has to be given up."""


class FrameTooLarge(FrameError):
    """A frame is announced that is longer than the reader takes; `size` and `limit` are bytes of its payload."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(f"a frame of {size} bytes is announced; the most is {limit}")
        self.size = size
        self.limit = limit


class Frame(NamedTuple):
    kind: int
    flags: int
    channel: int
    id: int
    payload: bytes


def encode(kind: int, payload: bytes = b"", *, channel: int = 0, id: int = 0, flags: int = 0) -> bytes:
    """Encodes a frame as bytes."""
    return header(kind, len(payload), channel=channel, id=id, flags=flags) + payload


def header(kind: int, length: int, *, channel: int = 0, id: int = 0, flags: int = 0) -> bytes:
    """The header alone, for payloads that are sent from where they lie."""
    if length > MAX_PAYLOAD:
        raise FrameError(f"a payload of {length} bytes does not fit a frame; the most is {MAX_PAYLOAD}")
    return HEADER.pack(length, kind, flags, channel, id)


class FrameReader:
    """Turns a byte stream, cut anywhere, into frames. Each payload is copied once, however many pieces it came in."""

    def __init__(self, max_payload: int = MAX_PAYLOAD) -> None:
        self.max_payload = max_payload
        """Bytes that a payload may have; a change counts for frames whose header has not come."""
        self._head = b""  # of the next frame, while it is not whole
        self._frame: tuple[int, int, int, int, int] | None = None  # the header of the frame whose payload is on its way
        self._pieces: list[memoryview] = []
        self._missing = 0

    @property
    def pending(self) -> int:
        """Bytes of an unfinished frame."""
        if self._frame is None:
            return len(self._head)
        return HEADER.size + self._frame[0] - self._missing

    def feed(self, data: bytes | bytearray | memoryview) -> list[Frame]:
        """The frames that `data` completes, in order. Raises `FrameError` where no frame can begin."""
        if not isinstance(data, bytes):
            data = bytes(data)  # pieces are kept, and the caller's buffer is used again
        if self._frame is None and not self._head and len(data) >= HEADER.size:
            length, kind, flags, channel, ident = HEADER.unpack_from(data)
            if length == len(data) - HEADER.size and length <= self.max_payload:  # the rule while a thread waits
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
            taken = min(self._missing, size - position)
            piece = view[position : position + taken]
            position += taken
            self._missing -= taken
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
