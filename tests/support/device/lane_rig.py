"""A device process with lanes; the test acts as its front and as its clients."""

from __future__ import annotations

import itertools
import json
import socket

import pytest

from hearth_proto import descriptors
from hearth_proto.frames import Frame, FrameReader, Kind, encode
from hearth_proto.launches import LayoutEntry, Record, pack, pack_layout
from hearth_proto.v1 import commands_pb2 as c
from hearth_proto.v1 import device_pb2
from hearthd.device.cpu.server import CpuServer
from hearthd.shared.device_spec import DeviceSpec
from tests.support.device.local_broker import device_process
from tests.support.device.rig import Command, Rig, compiled

KIB = 1 << 10
LIMITS = {
    "max_batch_bytes": 64 * KIB,
    "max_batches": 16,
    "max_unacked_bytes": 256 * KIB,
    "max_unread_bytes": 256 * KIB,
    "max_unread_hard": 16 << 20,
}
SOURCE = b"""
extern "C" __global__ void add(unsigned long long* sum, unsigned long long what) { *sum = *sum * 3 + what; }
"""
LAYOUT = pack_layout([LayoutEntry(0, 8, pointer=True), LayoutEntry(8, 8)])


class Client:
    """A client's end of a lane."""

    def __init__(self, end: socket.socket) -> None:
        self.end = end
        end.settimeout(30)
        self._reader = FrameReader()
        self._frames: list[Frame] = []
        self.seq = 0
        self.sent = 0

    def send(self, kind: int, payload: bytes = b"", **fields: int) -> None:
        self.end.sendall(encode(kind, payload, **fields))

    def batch(self, *commands: c.Command) -> int:
        self.seq += 1
        self.end.sendall(batch(self.seq, *commands))
        return self.seq

    def next(self) -> Frame:
        """Returns the next frame. Raises EOFError at the end of the connection."""
        while not self._frames:
            try:
                data = self.end.recv(1 << 16)
            except ConnectionResetError:
                data = b""
            if not data:
                raise EOFError
            self._frames = self._reader.feed(data)
        return self._frames.pop(0)

    def until(self, kind: int) -> Frame:
        while (frame := self.next()).kind != kind:
            pass
        return frame

    def response(self) -> device_pb2.ExecuteResponse:
        return device_pb2.ExecuteResponse.FromString(self.until(Kind.RESPONSE).payload)

    def rest(self) -> list[Frame]:
        """Returns all remaining frames until the connection ends."""
        frames: list[Frame] = []
        with pytest.raises(EOFError):
            while True:
                frames.append(self.next())
        return frames


class Laned(Rig[CpuServer]):
    """A device process whose front is the test; `copies` returns the responses and acks that arrived over the link."""

    source = SOURCE

    def __init__(self, server: type[CpuServer] = CpuServer) -> None:
        self.files, self.their_files = descriptors.pair()
        self.clients: list[Client] = []
        self._lane_ids = itertools.count(1000)
        spec = DeviceSpec(0, "cpu", 0, memory_limit=64 << 20, cpu_threads=1, cache_dir=compiled())
        super().__init__(spec, server)

    def _main(self) -> None:
        self.server = self._make(self._spec)
        self.process = device_process(self._theirs, self._spec, self.server, self.their_files)
        self.started()
        self.process.run()

    def started(self) -> None:
        """Called on the device-handle thread, before the process handles any message."""

    def hand_over(self, channel: int = 1, **limits: int) -> Client:
        client_end, process_end = socket.socketpair()
        descriptors.send(self.files, {"kind": "lane", "channel": channel, **LIMITS, **limits}, [process_end.fileno()])
        process_end.close()
        self.clients.append(Client(client_end))
        return self.clients[-1]

    def lane(self, channel: int = 1, **limits: int) -> Client:
        client = self.hand_over(channel, **limits)
        assert client.next() == Frame(Kind.LIVE, 0, 0, 0, b"")
        return client

    def barrier(self) -> None:
        """Returns when the process has handled everything sent before."""
        self.send(Kind.PING, id=5)
        self.until(Kind.PONG, 5)

    def end_lane(self, channel: int = 1) -> int:
        """Ends the lane; returns the number of the last batch that the process received. All copies have arrived
        then."""
        ident = next(self._lane_ids)
        self.send(Kind.LANE_END, channel=channel, id=ident)
        last: int = json.loads(self.until(Kind.LANE_ENDED, ident).payload)["last"]
        return last

    def copies(self) -> list[Frame]:
        """Returns and removes the RESPONSE and ACK frames received over the link so far."""
        copied = [frame for frame in self._frames if frame.kind in (Kind.RESPONSE, Kind.ACK)]
        self._frames = [frame for frame in self._frames if frame not in copied]
        return copied

    def counters(self) -> dict[str, int]:
        self.send(Kind.STATS, id=78)
        counters: dict[str, int] = json.loads(self.until(Kind.STATS, 78).payload)["counters"]
        return counters

    def prepare(self, channel: int = 1) -> None:
        """Loads function 1, and sets the sum in buffer 1 to 0."""
        for kind in (
            {"load_module": c.LoadModule(module=1, kind=c.CODE_KIND_CUDA_CPP, code=SOURCE)},
            {"get_function": c.GetFunction(function=1, module=1, name="add")},
            {"allocate": c.Allocate(buffer=1, size=8)},
            {"fill": c.Fill(buffer=1, size=8, pattern=b"\0")},
            {"describe_module": c.DescribeModule(module=1)},
        ):
            result = self.call(**kind)
            assert not result.HasField("error"), result.error.message

    def sum(self) -> int:
        return int.from_bytes(self.call(read=c.Read(buffer=1, size=8)).read.data, "little")

    def stop(self) -> None:
        super().stop()
        for client in self.clients:
            client.end.close()
        self.files.close()
        self.their_files.close()


def batch(seq: int, *commands: c.Command, claimed: int | None = None) -> bytes:
    message = device_pb2.ExecuteRequest(batch=c.Batch(seq=seq, commands=commands))
    return encode(Kind.BATCH, message.SerializeToString(), id=seq if claimed is None else claimed)


def add(
    summand: int, function: int = 1, stream: int = 0, buffer: int = 1, offset: int = 0, block: int = 1
) -> c.Command:
    """Returns a launch whose effect on the sum depends on its position among other launches and on how often it ran."""
    params = offset.to_bytes(8, "little") + summand.to_bytes(8, "little")
    record = Record(function, stream, (1, 1, 1), (block, 1, 1), 0, 0, 0, LAYOUT, (buffer,), params)
    return Command(launches=pack(record))


def sync(request: int) -> c.Command:
    return Command(request=request, sync=c.Sync())


def summed(*values: int) -> int:
    total = 0
    for value in values:
        total = (total * 3 + value) % (1 << 64)
    return total
