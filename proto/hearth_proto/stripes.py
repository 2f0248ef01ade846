"""Transfers over stripes: connections for bulk data, any number of them for any number of transfers.

The transfer is cut into chunks of one size, the last one shorter. For each, one STRIPE frame comes over any stripe, in
any order; one that has come is answered by TAKEN, and those of a stripe that broke without are sent again over others.
An upload that has come whole is answered by TAKEN for the byte behind its last, on every stripe that was to carry it
and on every one that is announced for it later: what said so of a chunk may have been lost.

A client that will send an upload over a stripe says so there: UPLOAD, its payload the size of the chunks. The device
process answers by CREDIT (`flags`: how many more STRIPE frames of the transfer may come over this stripe) when it has
memory for them and the Write that wants them has its turn; so it never has to leave anything unread. A client that
will take a download says DOWNLOAD in the same way, and gets STRIPE frames from then on. ABORT, from the device
process, says that a transfer is over before its end. Bytes may go by Upload or Download instead, whenever the client
likes, and then all of them do, from the first on.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple

from hearth_proto.frames import HEADER, MAX_PAYLOAD, STRIPE_OFFSET, FrameError, Kind

CHUNK_BYTES = struct.Struct("<Q")
"""The payload of UPLOAD and DOWNLOAD on a stripe."""

MIN_CHUNK = 64 << 10
TICKET_NAME = 16
"""Bytes of the ticket that are shown before TLS begins; the others are shown inside."""
TICKET_BYTES = 32

HEAD = HEADER.size
OFFSET = STRIPE_OFFSET.size


@dataclass(frozen=True, slots=True)
class StripeCut:
    """A transfer of `size` bytes in chunks of `chunk`."""

    size: int
    chunk: int

    @property
    def count(self) -> int:
        return -(-self.size // self.chunk)

    def span(self, index: int) -> tuple[int, int]:
        """Offset and length of a chunk."""
        offset = index * self.chunk
        return offset, min(self.chunk, self.size - offset)

    def index(self, offset: int, length: int) -> int:
        """Returns the index of the chunk that lies there. Raises ValueError if there is none."""
        index, rest = divmod(offset, self.chunk)
        if rest or not 0 <= index < self.count or self.span(index)[1] != length:
            raise ValueError(
                f"{length} bytes at byte {offset} are no chunk of a transfer of {self.size} bytes in chunks of "
                f"{self.chunk}"
            )
        return index


class StripeHead(NamedTuple):
    """The header of a frame on a stripe."""

    length: int
    kind: int
    flags: int
    id: int


def read_head(head: bytes | bytearray, max_chunk: int, kinds: frozenset[int]) -> StripeHead:
    """Raises `FrameError` for a header that none of `kinds` begins with."""
    length, kind, flags, channel, ident = HEADER.unpack(head)
    if kind not in kinds or channel or (flags and kind != Kind.CREDIT):
        raise FrameError(f"a frame of kind {kind} with flags {flags} for channel {channel} has no place on a stripe")
    if kind == Kind.STRIPE:
        fits = OFFSET < length <= OFFSET + max_chunk
    elif kind == Kind.ABORT:
        fits = length <= MAX_ABORT
    else:
        fits = length == (0 if kind in (Kind.CREDIT, Kind.LIVE) else OFFSET)
    if not fits:
        raise FrameError(f"a frame of kind {kind} has {length} bytes; a chunk here has at most {max_chunk}")
    return StripeHead(length, kind, flags, ident)


MAX_ABORT = min(64 << 10, MAX_PAYLOAD)


def chunk_head(transfer: int, offset: int, length: int) -> bytes:
    """Returns the header of a chunk's bytes."""
    return HEADER.pack(OFFSET + length, Kind.STRIPE, 0, 0, transfer) + STRIPE_OFFSET.pack(offset)


def taken(transfer: int, offset: int) -> bytes:
    return HEADER.pack(OFFSET, Kind.TAKEN, 0, 0, transfer) + STRIPE_OFFSET.pack(offset)


def credit(transfer: int, chunks: int) -> bytes:
    return HEADER.pack(0, Kind.CREDIT, chunks, 0, transfer)


def announce(kind: Kind, transfer: int, chunk: int) -> bytes:
    """UPLOAD or DOWNLOAD."""
    return HEADER.pack(CHUNK_BYTES.size, kind, 0, 0, transfer) + CHUNK_BYTES.pack(chunk)
