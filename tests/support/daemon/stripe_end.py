"""A client's end of a stripe, frame by frame, for frames that the client library would not send."""

from __future__ import annotations

import socket
from typing import Any

from hearth_proto import frames, reasons
from hearth_proto.frames import HEADER, STRIPE_OFFSET, Frame, Kind
from hearth_proto.reasons import Refusal
from hearth_proto.stripes import announce, chunk_head, taken
from hearth_proto.v1 import device_pb2, status_pb2
from tests.support.daemon.raw import TIMEOUT, Execute, Raw

CHUNK = 1 << 20


def open_bulk(raw: Raw, stream: Execute, count: int = 1) -> device_pb2.OpenBulkResponse:
    request = device_pb2.OpenBulkRequest(
        session_token=raw.token, device=0, generation=stream.attached.generation, stripes=count
    )
    answer: device_pb2.OpenBulkResponse = raw.device.OpenBulk(request, timeout=TIMEOUT)
    return answer


class StripeEnd:
    """A connected stripe that has presented its ticket."""

    def __init__(self, offer: device_pb2.OpenBulkResponse, ticket: bytes | None = None) -> None:
        self.socket = socket.create_connection((offer.host or "127.0.0.1", offer.port), timeout=20)
        self._pending: list[Frame] = []
        self.send(frames.encode(Kind.TICKET, offer.tickets[0] if ticket is None else ticket))

    def live(self) -> StripeEnd:
        assert self.receive().kind == Kind.LIVE
        return self

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def announce(self, kind: Kind, transfer: int, chunk: int = CHUNK) -> None:
        self.send(announce(kind, transfer, chunk))

    def chunk(self, transfer: int, offset: int, data: bytes) -> None:
        self.send(chunk_head(transfer, offset, len(data)) + data)

    def taken(self, transfer: int, offset: int) -> None:
        self.send(taken(transfer, offset))

    def receive(self) -> Frame:
        """Returns the next frame. Raises EOFError at the end of the connection."""
        length, kind, flags, channel, ident = HEADER.unpack(self._exactly(HEADER.size))
        return Frame(kind, flags, channel, ident, self._exactly(length))

    def until(self, kind: Kind) -> Frame:
        """Returns the next frame of this kind; other frames are kept for later calls."""
        for index, pending in enumerate(self._pending):
            if pending.kind == kind:
                return self._pending.pop(index)
        while (frame := self.receive()).kind != kind:
            self._pending.append(frame)
        return frame

    def refusal(self) -> Refusal:
        """Returns the refusal in the next ABORT."""
        return reasons.from_status(status_pb2.Status.FromString(self.until(Kind.ABORT).payload))

    def offset(self) -> int:
        """Returns the offset in the next TAKEN."""
        offset: int = STRIPE_OFFSET.unpack(self.until(Kind.TAKEN).payload)[0]
        return offset

    def ended(self) -> bool:
        """Reads until the connection ends, which it must do."""
        try:
            while True:
                self.receive()
        except (EOFError, ConnectionError):
            return True

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            received = self.socket.recv(size - len(data))
            if not received:
                raise EOFError("the stripe has ended")
            data += received
        return data

    def __enter__(self) -> StripeEnd:
        return self

    def __exit__(self, *_: Any) -> None:
        self.socket.close()
