"""Launches with many iterations: a limited number of them is submitted to the device at a time, and other sessions run
in between."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from hearth_proto.v1 import commands_pb2 as c
from hearthd.device.cpu.server import CpuServer
from hearthd.device.streams.track import WHOLE_WINDOW
from hearthd.shared.device_spec import DeviceSpec
from tests.support.device.rig import Rig

SOURCE = b'extern "C" __global__ void add_one(int* x) { *x += 1; }'
TIMES = 3 * WHOLE_WINDOW


class Gated(CpuServer):
    """A CPU device that counts the launches of each stream; kernels wait for `gate`."""

    def __init__(self, spec: DeviceSpec) -> None:
        super().__init__(spec)
        self.gate = threading.Event()
        self.gate.set()
        self.launches: dict[Any, int] = {}

    def launch(self, function: Any, grid: Any, block: Any, shared: int, stream: Any, *rest: Any) -> None:
        self.launches[stream] = self.launches.get(stream, 0) + 1
        if not self.gate.is_set() and len(self.launches) == 1:
            stream.submit(self.gate.wait)
        super().launch(function, grid, block, shared, stream, *rest)


@pytest.fixture
def rig() -> Iterator[Rig[Gated]]:
    rig = Rig(DeviceSpec(0, "cpu", 0), Gated)
    rig.batch(
        c.Command(load_module=c.LoadModule(module=1, kind=c.CODE_KIND_CUDA_CPP, code=SOURCE)),
        c.Command(get_function=c.GetFunction(function=1, module=1, name="add_one")),
        c.Command(create_stream=c.CreateStream(stream=5)),
        *(c.Command(allocate=c.Allocate(buffer=buffer, size=4)) for buffer in (1, 2)),
        *(c.Command(fill=c.Fill(buffer=buffer, size=4, pattern=b"\0")) for buffer in (1, 2)),
    )
    assert not rig.call(sync=c.Sync()).HasField("error")
    assert value(rig, 2, stream=5) == 0, "from now on it is ordered after the stream that wrote it"
    assert not rig.call(describe_module=c.DescribeModule(module=1)).HasField("error")
    yield rig
    rig.server.gate.set()
    rig.close()


def value(rig: Rig[Gated], buffer: int, stream: int = 0) -> int:
    result = rig.call(stream=stream, read=c.Read(buffer=buffer, size=4))
    return int.from_bytes(result.read.data, "little")


def launch(buffer: int, times: int) -> c.Launch:
    dim = c.Dim3(x=1)
    arguments = [c.Argument(pointer=c.Argument.Pointer(buffer=buffer))]
    return c.Launch(function=1, grid=dim, block=dim, arguments=arguments, iterations=times)


def test_a_bounded_number_of_iterations_is_queued(rig: Rig[Gated]) -> None:
    rig.server.gate.clear()
    whole = rig.start(launch=launch(1, TIMES))
    assert not rig.call(stream=5, launch=launch(2, 1)).HasField("error")
    assert value(rig, 2, stream=5) == 1, "another stream runs meanwhile"
    assert 0 < max(rig.server.launches.values()) <= WHOLE_WINDOW
    rig.server.gate.set()
    assert not rig.answer(whole).HasField("error")
    assert value(rig, 1) == TIMES
