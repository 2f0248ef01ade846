"""Transfers over stripes: connections for bulk data, any number of which carry any number of transfers.

A transfer is divided into chunks of one size; the last chunk may be shorter. One STRIPE frame carries each chunk, over
any stripe and in any order. The receiver answers each chunk with TAKEN; chunks of a broken stripe that were not
answered are sent again over other stripes. When an upload has arrived completely, the daemon answers with TAKEN for the
offset after its last byte, on every stripe that announced the upload, also on those that announce it later, because a
TAKEN of a single chunk may have been lost.

A client that will send an upload over a stripe announces it there with UPLOAD, whose payload is the size of the chunks.
The device process answers with CREDIT (`flags`: the number of further STRIPE frames of the transfer that may be sent
over this stripe) when it has memory for them and the Write that uses them is executing; so it never needs to leave
received bytes unread. A client that will receive a download announces DOWNLOAD in the same way, and receives STRIPE
frames from then on. ABORT, from the device process, reports that a transfer has ended prematurely. At any time the
client may use Upload or Download instead; then all bytes of the transfer, from the first on, are sent over gRPC.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple

from hearth_proto.frames import HEADER, MAX_PAYLOAD, STRIPE_OFFSET, FrameError, Kind

CHUNK_BYTES = struct.Struct("<Q")
"""Payload of UPLOAD and DOWNLOAD on a stripe: the size of the chunks in bytes."""

MIN_CHUNK = 64 << 10
TICKET_NAME = 16
"""Number of bytes of the ticket that are sent before TLS begins; the remaining bytes are sent inside TLS."""
TICKET_BYTES = 32

HEAD = HEADER.size
OFFSET = STRIPE_OFFSET.size


@dataclass(frozen=True, slots=True)
class StripeCut:
    """Division of a transfer of `size` bytes into chunks of `chunk` bytes."""

    size: int
    chunk: int

    @property
    def count(self) -> int:
        """Number of chunks."""
        return -(-self.size // self.chunk)

    def span(self, index: int) -> tuple[int, int]:
        """Returns the offset and the length of a chunk, in bytes."""
        offset = index * self.chunk
        return offset, min(self.chunk, self.size - offset)

    def index(self, offset: int, length: int) -> int:
        """Returns the index of the chunk with this offset and length. Raises `ValueError` if there is none."""
        index, remainder = divmod(offset, self.chunk)
        if remainder or not 0 <= index < self.count or self.span(index)[1] != length:
            raise ValueError(
                f"{length} bytes at offset {offset} are not a chunk of a transfer of {self.size} bytes in "
                f"chunks of {self.chunk}"
            )
        return index


class StripeHead(NamedTuple):
    """Header of a frame on a stripe."""

    length: int
    kind: int
    flags: int
    id: int


def read_head(head: bytes | bytearray, max_chunk: int, kinds: frozenset[int]) -> StripeHead:
    """Returns the decoded header. Raises `FrameError` for a header that is not valid for any of `kinds`."""
    length, kind, flags, channel, ident = HEADER.unpack(head)
    if kind not in kinds or channel or (flags and kind != Kind.CREDIT):
        raise FrameError(f"a frame of kind {kind} with flags {flags} for channel {channel} is not allowed on a stripe")
    if kind == Kind.STRIPE:
        fits = OFFSET < length <= OFFSET + max_chunk
    elif kind == Kind.ABORT:
        fits = length <= MAX_ABORT
    else:
        fits = length == (0 if kind in (Kind.CREDIT, Kind.LIVE) else OFFSET)
    if not fits:
        raise FrameError(f"a frame of kind {kind} has {length} bytes; the maximum of a chunk is {max_chunk}")
    return StripeHead(length, kind, flags, ident)


MAX_ABORT = min(64 << 10, MAX_PAYLOAD)


def chunk_head(transfer: int, offset: int, length: int) -> bytes:
    """Returns the header and offset that precede a chunk's `length` bytes."""
    return HEADER.pack(OFFSET + length, Kind.STRIPE, 0, 0, transfer) + STRIPE_OFFSET.pack(offset)


def taken(transfer: int, offset: int) -> bytes:
    """Returns the frame by which a receiver acknowledges the chunk at `offset`.

    The total size as `offset` acknowledges a whole upload.
    """
    return HEADER.pack(OFFSET, Kind.TAKEN, 0, 0, transfer) + STRIPE_OFFSET.pack(offset)


def credit(transfer: int, chunks: int) -> bytes:
    """Returns the frame by which the device process allows `chunks` further chunks of an upload on this stripe."""
    return HEADER.pack(0, Kind.CREDIT, chunks, 0, transfer)


def announce(kind: Kind, transfer: int, chunk: int) -> bytes:
    """Returns the frame that announces an upload or download (`kind`) on a stripe."""
    return HEADER.pack(CHUNK_BYTES.size, kind, 0, 0, transfer) + CHUNK_BYTES.pack(chunk)
