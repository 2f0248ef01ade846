"""Waits between streams that the device receives for commands that depend on each other."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from hearth_proto.v1 import commands_pb2 as c
from hearthd.device.cpu.server import CpuServer
from hearthd.device.cpu.streams import CpuEvent, CpuStream
from hearthd.shared.device_spec import DeviceSpec
from tests.support.device.rig import Rig

SOURCE = b'extern "C" __global__ void twice(int* x) { *x *= 2; }'


class Fenced(CpuServer):
    """Counts the waits of one stream for another."""

    def __init__(self, spec: DeviceSpec) -> None:
        super().__init__(spec)
        self.waits = 0

    def wait(self, stream: CpuStream, event: CpuEvent) -> None:
        self.waits += 1
        super().wait(stream, event)


@pytest.fixture
def rig() -> Iterator[Rig[Fenced]]:
    rig = Rig(DeviceSpec(0, "cpu", 0), Fenced)
    rig.batch(
        c.Command(load_module=c.LoadModule(module=1, kind=c.CODE_KIND_CUDA_CPP, code=SOURCE)),
        c.Command(get_function=c.GetFunction(function=1, module=1, name="twice")),
        c.Command(create_stream=c.CreateStream(stream=5)),
        c.Command(allocate=c.Allocate(buffer=1, size=4)),
        c.Command(fill=c.Fill(buffer=1, size=4, pattern=b"\1\0\0\0")),
    )
    assert not rig.call(sync=c.Sync()).HasField("error")
    yield rig
    rig.close()


def steps(rig: Rig[Fenced], count: int, stream: int) -> None:
    dim = c.Dim3(x=1)
    arguments = [c.Argument(pointer=c.Argument.Pointer(buffer=1))]
    launch = c.Launch(function=1, grid=dim, block=dim, arguments=arguments)
    rig.batch(*(c.Command(stream=stream, launch=launch) for _ in range(count)))


def value(rig: Rig[Fenced], stream: int) -> int:
    result = rig.call(stream=stream, read=c.Read(buffer=1, size=4))
    return int.from_bytes(result.read.data, "little")


def test_a_sequence_of_dependent_steps_has_one_fence(rig: Rig[Fenced]) -> None:
    before, gate = rig.server.waits, threading.Event()
    rig.server.streams[0].submit(gate.wait)  # so that none of the steps is done before the last one is submitted
    steps(rig, 5, stream=0)
    steps(rig, 5, stream=5)
    steps(rig, 5, stream=5)
    assert rig.call(stream=5, flush=c.Flush()).HasField("done") and rig.server.waits == before + 1
    steps(rig, 5, stream=0)
    assert rig.call(flush=c.Flush()).HasField("done") and rig.server.waits == before + 2
    gate.set()
    assert value(rig, 0) == 2**20 and rig.server.waits == before + 2


def test_work_that_is_done_has_no_fence(rig: Rig[Fenced]) -> None:
    steps(rig, 5, stream=0)
    assert value(rig, 0) == 2**5
    before = rig.server.waits
    steps(rig, 5, stream=5)
    assert value(rig, 5) == 2**10 and rig.server.waits == before
