"""A client's end of a connection for segments; the test acts as the front that hands the connection over."""

from __future__ import annotations

import array
import fcntl
import json
import mmap
import os
import socket

from hearth_proto import descriptors
from hearth_proto.frames import Frame, FrameReader, Kind, encode
from hearthd.device.flows.segment_policy import SEALS


def hand_over(files: socket.socket, channel: int = 1, most: int = 1 << 40) -> Client:
    """Hands over a new connection of the channel; `files` is the front's end of the socket for descriptors."""
    client_end, process_end = socket.socketpair()
    descriptors.send(files, {"kind": "segments", "channel": channel, "max_bytes": most}, [process_end.fileno()])
    process_end.close()
    return Client(client_end)


class Client:
    def __init__(self, end: socket.socket) -> None:
        self.end = end
        end.settimeout(30)
        self._reader = FrameReader()
        self._frames: list[Frame] = []

    def next(self) -> Frame:
        while not self._frames:
            data = self.end.recv(1 << 16)
            if not data:
                raise EOFError
            self._frames += self._reader.feed(data)
        return self._frames.pop(0)

    def send(self, ident: int, size: int, file: int, **more: object) -> None:
        frame = encode(Kind.SEGMENT, json.dumps({"size": size, **more}).encode(), id=ident)
        self.end.sendmsg([frame], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [file]))])

    def announce(self, ident: int, size: int, **more: object) -> mmap.mmap:
        file = os.memfd_create("segment", os.MFD_ALLOW_SEALING)
        os.ftruncate(file, size)
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, SEALS)
        self.send(ident, size, file, **more)
        memory = mmap.mmap(file, size)
        os.close(file)
        return memory

    def share(self, ident: int, size: int, **more: object) -> mmap.mmap:
        """Announces a segment that must be accepted; `more` holds fields of the announcement besides the size."""
        memory = self.announce(ident, size, **more)
        assert self.next() == Frame(Kind.SEGMENT, 0, 0, ident, b"")
        return memory

    def release(self, ident: int) -> None:
        self.end.sendall(encode(Kind.RELEASE, id=ident))
