"""Hand-written HTTP/2, for behaviour that no gRPC library has: calls that stop in the middle, malformed headers,
compressed messages."""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Iterable

from tests.attacks.target import Until, connect

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
END_STREAM = ACK = 1
END_HEADERS = 4
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_FRAME = 16384
_AHEAD = 1 << 20
"""Bytes that are prepared before the socket accepts them."""
Metadata = Iterable[tuple[bytes, bytes]]


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def message(data: bytes, *, compressed: bool = False, announced: int | None = None) -> bytes:
    """Encodes a gRPC message; `announced` is a length to announce instead of the real one."""
    return struct.pack(">BI", compressed, len(data) if announced is None else announced) + data


def literal(name: bytes, value: bytes) -> bytes:
    """Encodes a header for HPACK without an index and without Huffman coding."""
    return b"\0" + _text(name) + _text(value)


def _text(data: bytes) -> bytes:
    length = len(data)
    if length < 127:
        return bytes((length,)) + data
    head, length = bytearray((127,)), length - 127
    while length >= 128:
        head.append(length & 127 | 128)
        length >>= 7
    return bytes(head) + bytes((length,)) + data


class Http2:
    """A connection. `pump` sends as far as the peer's windows allow, and answers frames that require an answer."""

    def __init__(self, address: str) -> None:
        self.over = False
        """True once the peer has closed the connection."""
        self.sent = 0
        """Number of DATA bytes sent."""
        self.answers: dict[int, bytes] = {}
        """Header blocks that ended streams, undecoded, by stream."""
        self.resets: dict[int, int] = {}
        """Error codes that ended streams, by stream."""
        self._socket = connect(address)
        self._socket.setblocking(False)
        self._out = bytearray(_PREFACE + frame(SETTINGS, 0, 0))
        self._in = bytearray()
        self._window = self._initial = 65535
        self._streams: dict[int, list[int]] = {}
        """(window, bytes of the body sent) of each stream."""
        self._bodies: dict[int, tuple[bytes, bool]] = {}
        self._next = 1

    @property
    def ended(self) -> int:
        """Number of streams that the peer has ended."""
        return len(self.answers.keys() | self.resets.keys())

    def call(
        self, path: bytes | str, body: bytes = b"", metadata: Metadata = (), *, end: bool = False, bare: bool = False
    ) -> int:
        """Starts a call. With `end`, the call ends after its body. With `bare`, `metadata` are the only headers besides
        the path's."""
        stream, self._next = self._next, self._next + 2
        block = literal(b":method", b"POST") + literal(b":scheme", b"http")
        block += literal(b":path", path if isinstance(path, bytes) else path.encode()) + literal(b":authority", b"x")
        if not bare:
            block += literal(b"te", b"trailers") + literal(b"content-type", b"application/grpc")
        block += b"".join(literal(name, value) for name, value in metadata)
        pieces = [block[start : start + _FRAME] for start in range(0, len(block), _FRAME)]
        for number, piece in enumerate(pieces):
            flags = END_HEADERS if number == len(pieces) - 1 else 0
            self._out += frame(HEADERS if not number else CONTINUATION, flags, stream, piece)
        self._streams[stream] = [self._initial, 0]
        self._bodies[stream] = (body, end)
        return stream

    def pump(self, until: Until, ended: int | None = None) -> None:
        """Sends and receives until `until` has passed, `ended` streams have ended, or the connection is closed."""
        while until and not self.over and (ended is None or self.ended < ended):
            self._fill()
            readable, writable, _ = select.select(
                [self._socket], [self._socket] if self._out else [], [], min(until.left, 0.2)
            )
            try:
                if writable:
                    del self._out[: self._socket.send(self._out)]
                if readable:
                    data = self._socket.recv(1 << 16)
                    self.over = not data
                    self._in += data
            except BlockingIOError:
                continue
            except OSError:
                self.over = True
            self._parse()

    def close(self) -> None:
        self._socket.close()

    def _fill(self) -> None:
        for stream, (body, end) in list(self._bodies.items()):
            state = self._streams.get(stream)
            while state is not None and state[1] < len(body) and len(self._out) < _AHEAD:
                size = min(_FRAME, len(body) - state[1], state[0], self._window)
                if size <= 0:
                    break
                piece = body[state[1] : state[1] + size]
                state[0] -= size
                state[1] += size
                self._window -= size
                self.sent += size
                last = end and state[1] == len(body)
                self._out += frame(DATA, END_STREAM if last else 0, stream, piece)
            if state is None or (state[1] == len(body) and body):
                del self._bodies[stream]

    def _parse(self) -> None:
        while len(self._in) >= 9:
            size = int.from_bytes(self._in[:3], "big")
            if len(self._in) < 9 + size:
                return
            kind, flags = self._in[3], self._in[4]
            stream = int.from_bytes(self._in[5:9], "big") & 0x7FFFFFFF
            payload = bytes(self._in[9 : 9 + size])
            del self._in[: 9 + size]
            self._take(kind, flags, stream, payload)

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == SETTINGS and not flags & ACK:
            for name, value in struct.iter_unpack(">HI", payload):
                if name == 4:
                    for state in self._streams.values():
                        state[0] += value - self._initial
                    self._initial = value
            self._out += frame(SETTINGS, ACK, 0)
        elif kind == PING and not flags & ACK:
            self._out += frame(PING, ACK, 0, payload)
        elif kind == WINDOW_UPDATE:
            (more,) = struct.unpack(">I", payload)
            if not stream:
                self._window += more
            elif stream in self._streams:
                self._streams[stream][0] += more
        elif kind == RST_STREAM:
            (self.resets[stream],) = struct.unpack(">I", payload)
            self._streams.pop(stream, None)
        elif kind == HEADERS and flags & END_STREAM:
            self.answers[stream] = payload
            self._streams.pop(stream, None)


def status(answer: bytes) -> int:
    """Returns gRPC's status code in a header block that ended a stream, if it is not Huffman-coded; -1 if there is
    none."""
    _, found, rest = answer.partition(b"grpc-status")
    return int(rest[1 : 1 + rest[0]]) if found else -1


def blocking(connection: socket.socket, data: bytes | memoryview) -> int:
    """Sends as much as the socket accepts now; returns the number of bytes."""
    try:
        return connection.send(data)
    except BlockingIOError:
        return 0
