"""A plain client of shared memory that uses its own memfds and its own socket, frame by frame."""

from __future__ import annotations

import array
import contextlib
import fcntl
import json
import mmap
import os
import socket
from collections.abc import Sequence
from types import TracebackType

from hearth_proto.frames import Frame, FrameReader, Kind, encode
from hearth_proto.reasons import Refusal, from_status
from hearth_proto.v1 import commands_pb2 as c
from hearth_proto.v1 import device_pb2, status_pb2
from tests.support.daemon.raw import TIMEOUT, Execute, Raw

SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def sealed(size: int, seals: int = SEALS) -> int:
    """Returns the descriptor of a memfd of `size` bytes."""
    file = os.memfd_create("segment", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(file, size)
    if seals:
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, seals)
    return file


def open_bulk(raw: Raw, generation: int, stripes: int = 0) -> device_pb2.OpenBulkResponse:
    request = device_pb2.OpenBulkRequest(session_token=raw.token, device=0, generation=generation, stripes=stripes)
    answer: device_pb2.OpenBulkResponse = raw.device.OpenBulk(request, timeout=TIMEOUT, metadata=raw.metadata)
    return answer


class Shared:
    """A connection for the segments of an attached session."""

    def __init__(self, raw: Raw, generation: int) -> None:
        self.offer = open_bulk(raw, generation)
        self.end = socket.socket(socket.AF_UNIX)
        self.end.settimeout(TIMEOUT)
        self.end.connect(self.offer.path)
        self._reader = FrameReader()
        self._frames: list[Frame] = []
        self.maps: dict[int, mmap.mmap] = {}
        self.end.sendall(encode(Kind.TICKET, self.offer.tickets[0]))
        assert self.next() == Frame(Kind.LIVE, 0, 0, 0, b"")

    def next(self) -> Frame:
        """Returns the next frame. Raises EOFError at the end of the connection."""
        while not self._frames:
            try:
                data = self.end.recv(1 << 16)
            except ConnectionResetError:
                data = b""
            if not data:
                raise EOFError
            self._frames += self._reader.feed(data)
        return self._frames.pop(0)

    def send(self, data: bytes, files: Sequence[int] = ()) -> None:
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))] if files else []
        sent = self.end.sendmsg([data], ancillary)
        if sent < len(data):
            self.end.sendall(data[sent:])

    def announce(self, ident: int, size: object, files: Sequence[int] = ()) -> None:
        """Sends a SEGMENT frame with any descriptors."""
        self.send(encode(Kind.SEGMENT, json.dumps({"size": size}).encode(), id=ident), files)

    def share(self, ident: int, size: int) -> mmap.mmap:
        """Announces a new segment; returns its memory."""
        file = sealed(size)
        try:
            self.announce(ident, size, [file])
            memory = self.maps[ident] = mmap.mmap(file, size)
        finally:
            os.close(file)
        assert self.next() == Frame(Kind.SEGMENT, 0, 0, ident, b"")
        return memory

    def refused(self, ident: int) -> Refusal:
        """Returns the refusal of an announced segment."""
        frame = self.next()
        assert (frame.kind, frame.id) == (Kind.ABORT, ident), frame
        return from_status(status_pb2.Status.FromString(frame.payload))

    def refuse(self, ident: int, size: object, *files: int) -> Refusal:
        """Announces a segment that must be refused, closes the descriptors, and returns the refusal."""
        self.announce(ident, size, files)
        for file in files:
            os.close(file)
        return self.refused(ident)

    def release(self, ident: int) -> None:
        self.send(encode(Kind.RELEASE, id=ident))
        memory = self.maps.pop(ident, None)
        if memory is not None:
            memory.close()

    def over(self) -> bool:
        """Waits until the connection ends."""
        with contextlib.suppress(EOFError):
            while True:
                self.next()
        return True

    def close(self) -> None:
        self.end.close()
        for memory in self.maps.values():
            memory.close()
        self.maps.clear()

    def __enter__(self) -> Shared:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def write(buffer: int, segment: int, size: int, offset: int = 0, at: int = 0, **more: object) -> c.Command:
    """Returns a Write of `size` bytes from offset `at` of the segment to `offset` of the buffer."""
    shared = c.Shared(segment=segment, offset=at)
    return c.Command(write=c.Write(buffer=buffer, offset=offset, size=size, shared=shared, **more))  # type: ignore[arg-type]


def read(buffer: int, segment: int, size: int, offset: int = 0, at: int = 0, **more: object) -> c.Command:
    """Returns a Read of `size` bytes from `offset` of the buffer to offset `at` of the segment."""
    shared = c.Shared(segment=segment, offset=at)
    return c.Command(read=c.Read(buffer=buffer, offset=offset, size=size, shared=shared, **more))  # type: ignore[arg-type]


class Sharing:
    """A session with an Execute stream and a connection for segments."""

    def __init__(self, target: str, bearer: str = "") -> None:
        self._closed = False
        self.raw = Raw(target, bearer)
        self.stream: Execute = self.raw.execute()
        self.shared = Shared(self.raw, self.stream.attached.generation)

    def allocate(self, size: int) -> int:
        handle = self.raw.mint()
        self.stream.batch(c.Command(allocate=c.Allocate(buffer=handle, size=size)))
        return handle

    def ask(self, command: c.Command) -> c.Result:
        """Returns the result of a command. Raises its refusal."""
        result = self.stream.ask(command)
        if result.HasField("error"):
            raise from_status(result.error)
        return result

    def close(self) -> None:
        """Closes the session. A second call has no effect."""
        if self._closed:
            return
        self._closed = True
        self.shared.close()
        self.stream.__exit__()
        self.raw.__exit__(None, None, None)

    def __enter__(self) -> Sharing:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
