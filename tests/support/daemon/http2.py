"""A hand-written HTTP/2 client for behaviour that regular clients do not show: it grants no window, and delays its
reads."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from types import TracebackType
from typing import NamedTuple

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, END_HEADERS, ACK = 1, 4, 1
INITIAL_WINDOW_SIZE = 4


class Frame(NamedTuple):
    kind: int
    flags: int
    stream: int
    payload: bytes


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def literal(name: str, value: str) -> bytes:
    """Encodes a header field without indexing (RFC 7541, 6.2.2); name and value must be shorter than 127 bytes."""
    return b"\0" + b"".join(bytes((len(text),)) + text.encode() for text in (name, value))


class Http2:
    """An HTTP/2 connection. `window` is the number of bytes that the server may send on each stream before the client
    grants more."""

    def __init__(self, address: str, window: int = 65535) -> None:
        if address.startswith("unix:"):
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.connect(address.removeprefix("unix:"))
        else:
            host, _, port = address.rpartition(":")
            self.socket = socket.create_connection((host, int(port)))
        self.socket.settimeout(20)
        self._next = 1
        self._buffer = b""
        settings = struct.pack(">HI", INITIAL_WINDOW_SIZE, window)
        self.socket.sendall(PREFACE + frame(SETTINGS, 0, 0, settings))

    def __enter__(self) -> Http2:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    def call(self, path: str, message: bytes = b"") -> int:
        """Starts a gRPC call with one message; returns the number of its stream."""
        stream, self._next = self._next, self._next + 2
        fields = {
            ":method": "POST",
            ":scheme": "http",
            ":path": path,
            ":authority": "localhost",
            "te": "trailers",
            "content-type": "application/grpc",
        }
        block = b"".join(literal(name, value) for name, value in fields.items())
        body = b"\0" + struct.pack(">I", len(message)) + message
        self.socket.sendall(frame(HEADERS, END_HEADERS, stream, block) + frame(DATA, END_STREAM, stream, body))
        return stream

    def grant(self, stream: int, size: int) -> None:
        """Lets the server send `size` more bytes on a stream."""
        self.socket.sendall(frame(WINDOW_UPDATE, 0, stream, struct.pack(">I", size)))

    def frames(self) -> Iterator[Frame]:
        """Yields the received frames until the connection ends; acknowledges pings and settings, as gRPC requires."""
        while True:
            head = self._read(9)
            if not head:
                return
            length, kind, flags = int.from_bytes(head[:3]), head[3], head[4]
            payload = self._read(length)
            if kind in (PING, SETTINGS) and not flags & ACK:
                self.socket.sendall(frame(kind, ACK, 0, payload if kind == PING else b""))
            yield Frame(kind, flags, int.from_bytes(head[5:]) & 0x7FFFFFFF, payload)

    def _read(self, size: int) -> bytes:
        while len(self._buffer) < size:
            piece = self.socket.recv(65536)
            if not piece:
                return b""
            self._buffer += piece
        found, self._buffer = self._buffer[:size], self._buffer[size:]
        return found
