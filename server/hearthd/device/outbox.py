"""Frames on their way to the front: gathered during a turn of the loop, sent together, never waited for."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable

from hearth_proto.frames import Kind, header

MAX_VECTORS = 64


class Outbox:
    """`put` frames, `send` what the socket takes. Belongs to the device-handle thread."""

    def __init__(self, link: socket.socket, watch_writes: Callable[[bool], None]) -> None:
        self._link = link
        self._watch_writes = watch_writes
        self._watching = False
        self._parts: deque[bytes | memoryview] = deque()

    def put(self, kind: int, payload: bytes = b"", *, channel: int = 0, id: int = 0, flags: int = 0) -> None:
        self._parts.append(header(kind, len(payload), channel=channel, id=id, flags=flags))
        if payload:
            self._parts.append(payload)

    def put_chunk(self, head: bytes, data: bytes, *, channel: int, id: int, flags: int) -> None:
        """A CHUNK whose payload is `head` and `data`, sent from where they lie."""
        frame = header(Kind.CHUNK, len(head) + len(data), channel=channel, id=id, flags=flags)
        self._parts.append(frame + head)
        if data:
            self._parts.append(data)

    def send(self) -> None:
        """Sends what fits; the rest goes when the socket takes more."""
        parts = self._parts
        while parts:
            vectors = [parts[index] for index in range(min(MAX_VECTORS, len(parts)))]
            try:
                sent = self._link.sendmsg(vectors)
            except BlockingIOError:
                break
            except OSError:
                parts.clear()  # the front is gone; the loop learns of it by the end of the stream
                break
            while sent:
                size = len(parts[0])
                if sent >= size:
                    sent -= size
                    parts.popleft()
                else:
                    parts[0] = memoryview(parts[0])[sent:]
                    sent = 0
        if bool(parts) != self._watching:
            self._watching = bool(parts)
            self._watch_writes(self._watching)

    def send_all(self) -> None:
        """Sends everything, waiting for the front: for the last words of a process that ends."""
        self._link.settimeout(1.0)
        try:
            while self._parts:
                self._link.sendall(self._parts.popleft())
        except OSError:
            self._parts.clear()
