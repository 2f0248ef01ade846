"""A CPU device that loads code under the restrictions of a GPU, and commands for tests of it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

from hearth_proto.frames import Kind
from hearth_proto.v1 import commands_pb2 as c
from hearth_proto.v1 import device_pb2
from hearthd.device.cpu.server import CpuServer
from hearthd.shared.device_spec import DeviceSpec
from tests.support.device.rig import Rig

SOURCE = b'extern "C" __global__ void add_one(int* x) { *x += 1; }'


class Strict(CpuServer):
    """A CPU device that loads and unloads code as a GPU does: never while a kernel runs. `gate` lets kernels end."""

    loading_waits = True

    def __init__(self, spec: DeviceSpec) -> None:
        super().__init__(spec)
        self.gate = threading.Event()
        self.gate.set()
        self.running = 0
        self.loaded: list[str] = []
        self._lock = threading.Lock()

    def launch(self, function: Any, grid: Any, block: Any, shared: int, stream: Any, *rest: Any) -> None:
        with self._lock:
            self.running += 1
        stream.submit(self.gate.wait)
        super().launch(function, grid, block, shared, stream, *rest)
        stream.submit(self._ended)

    def _ended(self) -> None:
        with self._lock:
            self.running -= 1

    def load(self, image: Any) -> Any:
        assert not self.running
        self.loaded.append("load")
        return super().load(image)

    def unload(self, module: Any) -> None:
        assert not self.running
        self.loaded.append("unload")


def load(rig: Rig[Strict], number: int, salt: bytes = b"") -> None:
    """Sends the loading of module `number` with function `number`. The module, compiled or cached, is available only
    after it has been loaded."""
    code = SOURCE + b"// " + salt
    module = c.LoadModule(module=number, kind=c.CODE_KIND_CUDA_CPP, code=code)
    rig.batch(
        c.Command(load_module=module),
        c.Command(get_function=c.GetFunction(function=number, module=number, name="add_one")),
    )


def ready(rig: Rig[Strict], number: int) -> Any:
    return rig.start(describe_module=c.DescribeModule(module=number))


def launch(function: int, buffer: int, stream: int = 0) -> c.Command:
    dim = c.Dim3(x=1)
    arguments = [c.Argument(pointer=c.Argument.Pointer(buffer=buffer))]
    return c.Command(
        stream=stream, launch=c.Launch(function=function, grid=dim, block=dim, arguments=arguments)
    )  # fmt: skip


def prepare(rig: Rig[Strict]) -> Callable[[int], int]:
    """Prepares a loaded module, two streams and a zeroed buffer on each; returns a function that reads the number in a
    buffer."""
    load(rig, 1)
    assert not rig.answer(ready(rig, 1)).HasField("error")
    rig.batch(
        c.Command(create_stream=c.CreateStream(stream=5)),
        *(c.Command(allocate=c.Allocate(buffer=buffer, size=4)) for buffer in (1, 2)),
        *(c.Command(fill=c.Fill(buffer=buffer, size=4, pattern=b"\0")) for buffer in (1, 2)),
    )

    def value(buffer: int) -> int:
        result = rig.call(stream=5 if buffer == 2 else 0, read=c.Read(buffer=buffer, size=4))
        return int.from_bytes(result.read.data, "little")

    assert [value(1), value(2)] == [0, 0]
    return value


def other(rig: Rig[Strict], *commands: c.Command, seq: int) -> None:
    """Sends a batch of session "other" on channel 2."""
    message = device_pb2.ExecuteRequest(batch=c.Batch(seq=seq, commands=commands))
    rig.send(Kind.BATCH, message.SerializeToString(), channel=2)


def endless(rig: Rig[Strict], tenant: str = "") -> Callable[[int], int]:
    """Prepares this session, and another one, of the same tenant by default, with a kernel that does not end before the
    gate is opened. Returns a function that reads the value of a buffer."""
    value = prepare(rig)
    rig.send(Kind.OPEN, json.dumps({"session": "other", "tenant": tenant}).encode(), channel=2)
    other(
        rig,
        c.Command(load_module=c.LoadModule(module=1, kind=c.CODE_KIND_CUDA_CPP, code=SOURCE)),
        c.Command(get_function=c.GetFunction(function=1, module=1, name="add_one")),
        c.Command(allocate=c.Allocate(buffer=1, size=4)),
        c.Command(request=1, describe_module=c.DescribeModule(module=1)),
        seq=1,
    )
    rig.until(Kind.RESPONSE)
    rig.server.gate.clear()
    other(rig, launch(1, 1), seq=2)
    while not rig.server.running:
        rig.gauges()
    return value
