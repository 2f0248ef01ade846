"""The loop of a device process on a thread of the test process, driven frame by frame, over a server that the test
provides."""

from __future__ import annotations

import gc
import itertools
import json
import socket
import threading
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from hearth_proto.frames import Flag, Frame, FrameReader, Kind, encode
from hearth_proto.v1 import commands_pb2, device_pb2
from hearthd.shared.device_spec import DeviceSpec
from tests.support.device.local_broker import device_process

Command = commands_pb2.Command
S = TypeVar("S")


_compiled = ""


def keep_compiled(folder: str) -> None:
    """Sets the directory that `compiled` returns."""
    global _compiled  # noqa: PLW0603 - rigs are made by helpers that no fixture reaches
    _compiled = folder


def compiled() -> str:
    """Returns the directory of compiled modules for rigs, shared because most tests compile the same few kernels."""
    return _compiled


class Rig(Generic[S]):
    """A device process's loop on a thread. `make` builds the server on the device-handle thread; `channel` 1 is
    open, with the session's `info` from the front."""

    server: S

    def __init__(
        self, spec: DeviceSpec, make: Callable[[DeviceSpec], S], info: Mapping[str, Any] | None = None
    ) -> None:
        self.sock, self._theirs = socket.socketpair()
        self.sock.settimeout(60)
        self._spec = spec
        self._make = make
        self._reader = FrameReader()
        self._frames: list[Frame] = []
        self.ids = itertools.count(1)
        self._seq = itertools.count(1)
        self.thread = threading.Thread(target=self._main, name="device-handle")
        self.thread.start()
        self.until(Kind.READY)
        self.open(1, info)

    def _main(self) -> None:
        self.server = self._make(self._spec)
        self.process = device_process(self._theirs, self._spec, self.server)
        self.process.run()

    def send(self, kind: int, payload: bytes = b"", **fields: int) -> None:
        self.sock.sendall(encode(kind, payload, **fields))

    def until(self, kind: int, ident: int | None = None) -> Frame:
        """Returns the first frame of this kind; other frames are kept for later calls."""
        while True:
            for index, frame in enumerate(self._frames):
                if frame.kind == kind and ident in (None, frame.id):
                    return self._frames.pop(index)
            data = self.sock.recv(1 << 20)
            assert data, "the device process has ended"
            self._frames += self._reader.feed(data)

    def came(self, kind: int, *idents: int) -> list[Frame]:
        """Returns the frames of this kind (and with one of `idents`, if any are given) that were received and not yet
        returned by `until`. Reads nothing from the socket."""
        return [frame for frame in self._frames if frame.kind == kind and (not idents or frame.id in idents)]

    def forget(self) -> None:
        """Drops the frames that were received and not yet returned."""
        self._frames.clear()

    def open(self, channel: int, info: Mapping[str, Any] | None = None) -> None:
        """Opens another session."""
        self.send(Kind.OPEN, json.dumps(info or {}).encode(), channel=channel)

    def start(self, stream: int = 0, channel: int = 1, **kind: Any) -> int:
        """Sends one command as a single call; returns the number under which `answer` finds its result."""
        ident = next(self.ids)
        command = Command(request=1, stream=stream, **kind)
        self.send(Kind.CALL, command.SerializeToString(), channel=channel, id=ident)
        return ident

    def answer(self, ident: int) -> commands_pb2.Result:
        return commands_pb2.Result.FromString(self.until(Kind.RESULT, ident).payload)

    def call(self, stream: int = 0, channel: int = 1, **kind: Any) -> commands_pb2.Result:
        return self.answer(self.start(stream, channel, **kind))

    def barrier(self) -> None:
        """Returns when the process has handled all earlier messages and run its loop."""
        for _ in range(3):
            self.send(Kind.PING, id=5)
            self.until(Kind.PONG, 5)

    def batch(self, *commands: commands_pb2.Command) -> None:
        message = device_pb2.ExecuteRequest(batch=commands_pb2.Batch(seq=next(self._seq), commands=commands))
        self.send(Kind.BATCH, message.SerializeToString(), channel=1)

    def upload(self, transfer: int, data: bytes, chunk: int) -> None:
        """Sends the bytes of a Write, in chunks."""
        for start in range(0, len(data), chunk):
            message = device_pb2.UploadRequest(data=data[start : start + chunk])
            last = Flag.LAST if start + chunk >= len(data) else 0
            self.send(Kind.UPLOAD, message.SerializeToString(), channel=1, id=transfer, flags=int(last))

    def download(self, transfer: int) -> bytes:
        """Returns the bytes of a Read, requested one chunk at a time."""
        self.send(Kind.DOWNLOAD, channel=1, id=transfer, flags=1)
        data = b""
        while True:
            frame = self.until(Kind.CHUNK, transfer)
            response = device_pb2.DownloadResponse.FromString(frame.payload)
            assert response.offset == len(data)
            data += response.data
            if frame.flags & Flag.LAST:
                return data
            self.send(Kind.CREDIT, channel=1, id=transfer, flags=1)

    def gauges(self) -> dict[str, Any]:
        self.send(Kind.STATS, id=77)
        gauges: dict[str, Any] = json.loads(self.until(Kind.STATS, 77).payload)["gauges"]
        return gauges

    def close(self) -> None:
        """Ends the session, then the loop."""
        self.send(Kind.CLOSE, channel=1)
        self.until(Kind.CLOSED)
        self.stop()

    def stop(self) -> None:
        self.send(Kind.SHUTDOWN)
        self.thread.join(30)
        assert not self.thread.is_alive()
        gc.unfreeze()  # the process has frozen its objects, whose descriptors the collector would not find
        self.sock.close()
        self._theirs.close()
