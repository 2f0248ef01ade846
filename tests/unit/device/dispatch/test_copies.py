"""Dispatches with little staging memory: they wait for it, or do without it, and release all of it."""

from __future__ import annotations

import itertools
import os
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from hearth_proto.chunks import download_response, upload_request
from hearth_proto.frames import Flag, Frame, FrameReader, Kind, encode
from hearth_proto.reasons import Reason, Refusal, from_status
from hearth_proto.v1 import commands_pb2 as c
from hearthd.device.cpu.server import CpuServer
from hearthd.shared.device_spec import DeviceSpec
from tests.support.device.local_broker import device_process

SOURCE = b"""
extern "C" __global__ void add(const unsigned char* a, const unsigned char* b, unsigned char* sum, int n) {
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum[i] += a[i] + b[i];
}
"""
B = c.Binding
STAGING = 64 << 10
SIZE = 50_000


class Scarce:
    """A ComputeServer whose host locks no memory while `locks` is False."""

    def __init__(self, server: CpuServer) -> None:
        self._server = server
        self.locks = True
        self.direct = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._server, name)

    def allocate_host(self, size: int) -> Any:
        return self._server.allocate_host(size) if self.locks else None

    def host_refusal(self, size: int) -> Refusal | None:
        return None if self.locks else Refusal(Reason.OUT_OF_MEMORY, f"{size} bytes cannot be locked")

    def write_now(self, *arguments: Any) -> None:
        self.direct += 1
        self._server.write_now(*arguments)

    def read_now(self, *arguments: Any) -> None:
        self.direct += 1
        self._server.read_now(*arguments)


class Rig:
    """A device process's loop on a thread, with one session, and `add` as its function 1."""

    def __init__(self) -> None:
        self.sock, theirs = socket.socketpair()
        self.sock.settimeout(60)
        self._reader = FrameReader()
        self._frames: list[Frame] = []
        self._ids = itertools.count(1)
        spec = DeviceSpec(0, "cpu", 0, staging_bytes=STAGING, max_inline_bytes=1 << 20, chunk_bytes=16 << 10)
        made = threading.Event()

        def main() -> None:
            self.server = Scarce(CpuServer(spec))
            self.process = device_process(theirs, spec, self.server)
            made.set()
            self.process.run()

        self._thread = threading.Thread(target=main)
        self._thread.start()
        assert made.wait(60)
        self.expect(Kind.READY)
        self.send(Kind.OPEN, b"{}", channel=1)
        self.call(load_module=c.LoadModule(module=1, kind=c.CODE_KIND_CUDA_CPP, code=SOURCE))
        self.call(get_function=c.GetFunction(function=1, module=1, name="add"))

    def send(self, kind: int, payload: bytes = b"", **fields: int) -> None:
        self.sock.sendall(encode(kind, payload, **fields))

    def expect(self, kind: int, ident: int | None = None) -> Frame:
        """Returns the first received frame of this kind that no earlier call has returned."""
        while True:
            for index, frame in enumerate(self._frames):
                if frame.kind == kind and ident in (None, frame.id):
                    return self._frames.pop(index)
            self._frames += self._reader.feed(self.sock.recv(1 << 20))

    def start(self, **kind: Any) -> int:
        number = next(self._ids)
        self.send(Kind.CALL, c.Command(request=1, **kind).SerializeToString(), channel=1, id=number)
        return number

    def result(self, number: int) -> c.Result:
        return c.Result.FromString(self.expect(Kind.RESULT, number).payload)

    def call(self, **kind: Any) -> c.Result:
        result = self.result(self.start(**kind))
        assert not result.HasField("error"), from_status(result.error)
        return result

    def stop(self) -> None:
        self.send(Kind.CLOSE, channel=1)
        self.expect(Kind.CLOSED)
        assert self.process.device.staging.in_use == 0
        self.send(Kind.SHUTDOWN)
        self._thread.join(30)
        assert not self._thread.is_alive()
        self.sock.close()


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    made.stop()


def inputs() -> tuple[bytes, bytes, bytes]:
    a, b = os.urandom(SIZE), os.urandom(SIZE)
    return a, b, bytes((x + y) % 256 for x, y in zip(a, b, strict=True))


def command(*bindings: c.Binding) -> c.Dispatch:
    value = B(role=B.ROLE_VALUE, value=c.Argument(int32=SIZE))
    return c.Dispatch(function=1, grid=c.Dim3(x=1), block=c.Dim3(x=32), bindings=[*bindings, value], timed=True)


@pytest.mark.parametrize("locks", [True, False])
def test_inline(rig: Rig, locks: bool) -> None:
    """Makes three copies, each of which needs nearly all of the staging memory."""
    rig.server.locks = locks
    a, b, sum_ = inputs()
    bindings = [B(role=B.ROLE_INPUT, size=SIZE, data=data) for data in (a, b)]
    for _ in range(2):
        dispatch = command(*bindings, B(role=B.ROLE_OUTPUT, size=SIZE))
        result = rig.call(dispatch=dispatch).dispatch
        assert list(result.outputs) == [sum_] and list(result.sizes) == [SIZE]
    part = command(*bindings, B(role=B.ROLE_INPUT_OUTPUT, size=SIZE, data=bytes(SIZE), range_offset=7, range_size=11))
    assert list(rig.call(dispatch=part).dispatch.outputs) == [sum_[7:18]]
    assert (rig.server.direct > 0) == (not locks)
    assert rig.call(memory_usage=c.MemoryUsage()).memory_usage.bytes_in_use == 0


@pytest.mark.parametrize("locks", [True, False])
def test_transfers(rig: Rig, locks: bool) -> None:
    """Two uploads with interleaved chunks, and a download that its client receives chunk by chunk."""
    rig.server.locks = locks
    a, b, sum_ = inputs()
    bindings = [B(role=B.ROLE_INPUT, size=SIZE, upload=number) for number in (11, 12)]
    number = rig.start(dispatch=command(*bindings, B(role=B.ROLE_OUTPUT, size=SIZE, range_offset=1, download=13)))
    step = 10_000
    for at in range(0, SIZE, step):
        for transfer, data in ((12, b), (11, a)):
            message = upload_request(b"", memoryview(data)[at : at + step])
            flags = int(Flag.LAST) if at + step == SIZE else 0
            rig.send(Kind.UPLOAD, message, channel=1, id=transfer, flags=flags)
    rig.send(Kind.DOWNLOAD, channel=1, id=13, flags=1)
    got = b""
    while len(got) < SIZE - 1:
        frame = rig.expect(Kind.CHUNK, 13)
        offset, data = download_response(frame.payload)
        assert offset == len(got)
        got += data
        rig.send(Kind.CREDIT, channel=1, id=13, flags=1)
    assert got == sum_[1:] and frame.flags & Flag.LAST
    result = rig.result(number).dispatch
    assert list(result.outputs) == [b""] and list(result.sizes) == [SIZE - 1]
    assert (rig.server.direct > 0) == (not locks)


def test_a_session_that_closes_while_one_waits_for_its_stream(rig: Rig) -> None:
    rig.server.locks = False
    a, b, _ = inputs()
    rig.start(dispatch=command(*(B(role=B.ROLE_INPUT, size=SIZE, data=each) for each in (a, b)),
                               B(role=B.ROLE_OUTPUT, size=SIZE, download=9)))  # fmt: skip
    rig.send(Kind.CLOSE, channel=1)
    assert rig.expect(Kind.ABORT).id == 9
    rig.expect(Kind.CLOSED)
    rig.send(Kind.OPEN, b"{}", channel=1)
    assert rig.call(memory_usage=c.MemoryUsage()).memory_usage.bytes_reserved == 0
