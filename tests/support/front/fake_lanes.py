"""A fake device process that accepts lanes, and a client's end of a lane."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import threading
from pathlib import Path
from typing import Any

from hearth_proto import descriptors, frames
from hearth_proto.frames import HEADER, Flag, Frame, Kind
from hearth_proto.v1 import commands_pb2, device_pb2
from hearthd.shared import chunk_ring, crash_record
from hearthd.shared.device_spec import DeviceSpec
from tests.support.front.fake_device import FakeDevice, FakeLauncher


class LaneDevice(FakeDevice):
    """A fake device process. It sends its messages over the channel's lane, if there is one, with a copy to the
    front."""

    def __init__(self, spec: DeviceSpec, launcher: FakeLauncher) -> None:
        self.given: list[dict[str, Any]] = []
        """Descriptions of the lanes that were handed over."""
        self.bulk: list[tuple[dict[str, Any], socket.socket]] = []
        """Connections for bulk data, with their descriptions."""
        self.lanes: dict[int, socket.socket] = {}
        self.asked: list[int] = []
        """Channels whose lanes the front asked to end."""
        self.last: dict[int, int] = {}
        self.said = threading.RLock()
        self._later: list[tuple[int, int, bytes, int]] = []
        super().__init__(spec, launcher)
        self.descriptors, self._files = descriptors.pair()
        threading.Thread(target=self._take_files, daemon=True).start()

    def die(self, exit_code: int | None = -11) -> None:
        super().die(exit_code)
        for channel in list(self.lanes):
            self.drop(channel)

    def drop(self, channel: int = 1) -> None:
        """Breaks the channel's lane."""
        lane = self.lanes.pop(channel, None)
        if lane is not None:
            with contextlib.suppress(OSError):
                lane.shutdown(socket.SHUT_RDWR)

    def send(self, kind: int, payload: bytes = b"", **fields: int) -> None:
        with self.said:
            super().send(kind, payload, **fields)

    def say(self, kind: int, payload: bytes = b"", channel: int = 1, id: int = 0, copied: bool = True) -> None:
        """Sends a response or ack. With `copied` False, the front's copy is lost with the process."""
        with self.said:
            lane = self.lanes.get(channel)
            if lane is not None:
                with contextlib.suppress(OSError):
                    lane.sendall(frames.encode(kind, payload, id=id))
            if copied:
                self.send(kind, payload, channel=channel, id=id, flags=Flag.LANED if lane is not None else 0)

    def release_acks(self) -> None:
        """Sends the acks that were held back, over the lane or the link, whichever is in use now."""
        self.launcher.hold_acks = False
        later, self._later = self._later, []
        for channel, kind, payload, ident in later:
            self.say(kind, payload, channel, ident)

    # ---- run on threads of the fake ----

    def _take_files(self) -> None:
        while (message := descriptors.receive(self._files)) is not None:
            body, [file] = message
            if body["kind"] in (crash_record.FILE, chunk_ring.FILE):
                os.close(file)
                continue
            connection = socket.socket(fileno=file)
            if body["kind"] != "lane":
                self.bulk.append((body, connection))
                connection.setblocking(True)
                connection.sendall(frames.encode(Kind.LIVE))
                continue
            del body["kind"]
            self.kept = connection
            self.given.append(body)
            if self.launcher.adopts:  # type: ignore[attr-defined]
                self.adopt(connection, body["channel"])
        self._files.close()

    def adopt(self, connection: socket.socket, channel: int = 1) -> None:
        connection.setblocking(True)
        with self.said:
            self.lanes[channel] = connection
            connection.sendall(frames.encode(Kind.LIVE))
        threading.Thread(target=self._read_lane, args=(connection, channel), daemon=True).start()

    def _read_lane(self, lane: socket.socket, channel: int) -> None:
        reader = frames.FrameReader()
        with contextlib.suppress(OSError):
            while data := lane.recv(1 << 16):
                for frame in reader.feed(data):
                    with self.said:
                        if self.lanes.get(channel) is not lane:
                            return
                        if frame.id:
                            self._on_batch(frame._replace(channel=channel))
                        else:
                            self.send(Kind.RECEIVED, frame.payload, channel=channel)
        if self.lanes.get(channel) is lane:
            self.drop(channel)

    def on_frame(self, frame: Frame) -> None:
        if frame.kind == Kind.LANE_END:
            with self.said:
                self.asked.append(frame.channel)
                self.drop(frame.channel)
                last = json.dumps({"last": self.last.get(frame.channel, 0)}).encode()
                self.send(Kind.LANE_ENDED, last, channel=frame.channel, id=frame.id)
        else:
            if frame.kind == Kind.CLOSE:
                self.drop(frame.channel)
            super().on_frame(frame)

    def _on_batch(self, frame: Frame) -> None:
        batch = device_pb2.ExecuteRequest.FromString(frame.payload).batch
        channel = frame.channel
        assert batch.seq == self.last.get(channel, 0) + 1, "each batch arrives once"
        self.last[channel] = batch.seq
        self.batches.append(batch)
        self._later.append((channel, Kind.ACK, b"", batch.seq))
        self._later += [
            (channel, Kind.RESPONSE, result(command.request), 0) for command in batch.commands if command.request
        ]
        if not self.launcher.hold_acks:
            self.release_acks()


def result(request: int) -> bytes:
    answer = commands_pb2.Result(request=request, done=commands_pb2.Done())
    return device_pb2.ExecuteResponse(result=answer).SerializeToString()


class LaneLauncher(FakeLauncher):
    """Starts fake processes that accept lanes."""

    def __init__(self) -> None:
        super().__init__()
        self.adopts = True

    async def launch(self, spec: DeviceSpec) -> FakeDevice:
        device = LaneDevice(spec, self)
        self.started.append(device)
        return device


class LaneClient:
    """A client's end of a lane."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @staticmethod
    async def connect(offer: device_pb2.LaneOffer) -> LaneClient:
        """Connects and presents the ticket; the server then sends LIVE, or ends the connection."""
        client = LaneClient(*await asyncio.open_unix_connection(offer.path))
        client.write(frames.encode(Kind.TICKET, offer.ticket))
        return client

    @staticmethod
    async def live(offer: device_pb2.LaneOffer) -> LaneClient:
        client = await LaneClient.connect(offer)
        assert (await client.read()).kind == Kind.LIVE
        return client

    def write(self, data: bytes) -> None:
        self._writer.write(data)

    def send(self, request: device_pb2.ExecuteRequest) -> None:
        self.write(frames.encode(Kind.BATCH, request.SerializeToString(), id=request.batch.seq))

    async def read(self) -> Frame:
        """Returns the next frame. Raises `IncompleteReadError` at the end of the stream."""
        length, kind, flags, channel, ident = HEADER.unpack(await self._reader.readexactly(HEADER.size))
        return Frame(kind, flags, channel, ident, await self._reader.readexactly(length))

    async def take(self, results: int, acked: int = 0) -> list[int]:
        """Reads until `results` results and the ack of batch `acked` have arrived; returns the results' numbers."""
        numbers: list[int] = []
        last = 0
        while len(numbers) < results or last < acked:
            frame = await self.read()
            if frame.kind == Kind.ACK:
                last = frame.id
            else:
                numbers.append(device_pb2.ExecuteResponse.FromString(frame.payload).result.request)
        return numbers

    async def over(self) -> None:
        """Returns when the other end has closed the connection."""
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                await self.read()
        self.close()

    def close(self) -> None:
        self._writer.close()


def open_sockets() -> set[str]:
    """Returns the sockets that this process has open."""
    links = set()
    for name in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            links.add(str(name.readlink()))
    return {link for link in links if link.startswith("socket:")}
