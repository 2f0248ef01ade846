"""A device process driven frame by frame, without a front."""

from __future__ import annotations

import itertools
import multiprocessing
import socket
from collections.abc import Callable
from typing import Any

from hearth_proto import descriptors
from hearth_proto.frames import Flag, Frame, FrameReader, Kind, encode
from hearth_proto.v1 import commands_pb2, device_pb2, node_pb2
from hearthd.entry import device_main
from hearthd.shared.device_spec import DeviceSpec

Command = commands_pb2.Command


class DeviceLink:
    """A device process and its link, with an open `channel` 1."""

    def __init__(self, spec: DeviceSpec, main: Callable[..., None] = device_main) -> None:
        self.sock, theirs = socket.socketpair()
        self.sock.settimeout(60)
        self.files, their_files = descriptors.pair()
        life_reader, self._life_writer = multiprocessing.Pipe(duplex=False)
        context = multiprocessing.get_context("spawn")
        self.process = context.Process(target=main, args=(theirs, spec, their_files, life_reader), daemon=True)
        self.process.start()
        for end in (theirs, their_files, life_reader):
            end.close()
        self._reader = FrameReader()
        self._frames: list[Frame] = []
        self._calls = itertools.count(1)
        self._seq = itertools.count(1)
        ready = self.expect(Kind.READY)
        self.properties = node_pb2.DeviceProperties.FromString(ready.payload)
        self.open(1)

    def open(self, channel: int) -> None:
        self.send(Kind.OPEN, b'{"session": "test"}', channel=channel)

    def send(self, kind: int, payload: bytes = b"", **fields: int) -> None:
        self.sock.sendall(encode(kind, payload, **fields))

    def next(self) -> Frame:
        while not self._frames:
            data = self.sock.recv(1 << 20)
            if not data:
                raise EOFError("the device process has ended")
            self._frames = self._reader.feed(data)
        return self._frames.pop(0)

    def expect(self, kind: int, ident: int | None = None) -> Frame:
        """Returns the next frame of this kind; other frames are dropped."""
        while True:
            frame = self.next()
            if frame.kind == kind and (ident is None or frame.id == ident):
                return frame

    def call(self, channel: int = 1, stream: int = 0, **kind: Any) -> commands_pb2.Result:
        """Sends a command as a single call; returns its result."""
        ident = next(self._calls)
        command = Command(request=1, stream=stream, **kind)
        self.send(Kind.CALL, command.SerializeToString(), channel=channel, id=ident)
        return commands_pb2.Result.FromString(self.expect(Kind.RESULT, ident).payload)

    def batch(self, *commands: commands_pb2.Command, channel: int = 1, seq: int | None = None) -> int:
        seq = next(self._seq) if seq is None else seq
        message = device_pb2.ExecuteRequest(batch=commands_pb2.Batch(seq=seq, commands=commands))
        self.send(Kind.BATCH, message.SerializeToString(), channel=channel)
        return seq

    def response(self) -> device_pb2.ExecuteResponse:
        return device_pb2.ExecuteResponse.FromString(self.expect(Kind.RESPONSE).payload)

    def upload(self, transfer: int, chunks: list[bytes], channel: int = 1) -> None:
        for index, chunk in enumerate(chunks):
            message = device_pb2.UploadRequest(data=chunk)
            flags = int(Flag.LAST) if index == len(chunks) - 1 else 0
            self.send(Kind.UPLOAD, message.SerializeToString(), channel=channel, id=transfer, flags=flags)

    def close(self) -> None:
        self.sock.close()
        self.process.join(10)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.files.close()
        self._life_writer.close()
