"""Every row of docs/coming-from-cupy.md is true: same and mapped names run, refused names raise the row's message.

`ROWS` has a program for each row that is the same or mapped, by the row's first name; a row of refused names needs none
if `hearth.cupy_names` has them.
"""

from __future__ import annotations

import io
import queue
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

import hearth
from hearth import cupy_names
from tests.support.daemon.harness import DaemonProcess
from tests.support.folders import ROOT

PAGE = ROOT / "docs" / "coming-from-cupy.md"
SOURCE = r"""
__constant__ int scale[2];
extern "C" __global__ void add(float* x, float by) { x[threadIdx.x] += by; }
template<typename T> __global__ void twice(T* x) { x[threadIdx.x] *= 2; }
"""
CODE = 'extern "C" __global__ void add(float* x, float by) { x[threadIdx.x] += by; }'


class Row(NamedTuple):
    """A row of the page's tables."""

    names: tuple[str, ...]
    status: str
    text: str
    """The third column, without marks of code."""


def rows() -> list[Row]:
    found = re.findall(r"^\| (`.*?`) \| (\w+) \| (.*) \|$", PAGE.read_text(), re.MULTILINE)
    return [Row(tuple(re.findall("`([^`]+)`", names)), status, text.replace("`", "")) for names, status, text in found]


ALL = rows()


class Port:
    """A session in which the programs of the rows run."""

    def __init__(self, node: hearth.Node) -> None:
        self.node = node
        self.gpu = node.device(0)

    @property
    def kernel(self) -> hearth.Function:
        return self.gpu.RawKernel(CODE, "add")

    @property
    def module(self) -> hearth.RawModule:
        return self.gpu.RawModule(code=SOURCE, name_expressions=("twice<float>",))

    @property
    def group(self) -> hearth.Group:
        if len(self.node.devices) < 2:
            pytest.skip("needs two devices")
        return hearth.Group(self.node.devices[:2])

    def graph(self, x: hearth.DeviceArray) -> hearth.Graph:
        with self.gpu.graph() as g:
            self.kernel((1,), (4,), (x, np.float32(1)))
        return g

    def has(self, name: str) -> Any:
        """Returns the object that a CuPy program gets for a name of the page, with ``cp = gpu``."""
        objects: dict[str, Callable[[], Any]] = {
            "RawKernel": lambda: self.kernel,
            "RawModule": lambda: self.module,
            "Stream": self.gpu.stream,
            "Event": self.gpu.event,
            "ndarray": lambda: zeros(self),
            "Graph": lambda: self.graph(self.gpu.zeros(4, np.float32)),
        }
        if name == "cuda.Event(interprocess=True)":
            return self.gpu.event(interprocess=True)
        first, *rest = name.split(".")
        found = objects[first]() if first in objects and rest else getattr(self.gpu, first)
        for each in rest:
            found = getattr(found, each)
        return found() if isinstance(found, cupy_names.CupyNamespace) else found


@pytest.fixture
def port(node: hearth.Node) -> Iterator[Port]:
    yield Port(node)


Program = Callable[[Port], None]
ROWS: dict[str, Program] = {}


def row(*names: str) -> Callable[[Program], Program]:
    """Registers the program of rows, by their first names."""

    def register(program: Program) -> Program:
        for name in names:
            assert name not in ROWS
            ROWS[name] = program
        return program

    return register


def zeros(port: Port, n: int = 4) -> hearth.DeviceArray:
    return port.gpu.zeros(n, np.float32)


def is_all(x: hearth.DeviceArray, value: float) -> None:
    np.testing.assert_array_equal(x.get(), np.full(x.shape, value, x.dtype))


# ---- kernels and modules ----


@row("RawKernel(code, name, options)", "RawKernel.__call__")
def raw_kernel(port: Port) -> None:
    kernel = port.gpu.RawKernel(CODE, "add", ("-std=c++17",))
    x = zeros(port)
    kernel((1,), (4,), (x, np.float32(2)), shared_mem=16)
    kernel((1, 1), (4, 1, 1), [x, np.float32(1)])
    is_all(x, 3)


@row("RawModule(code=, path=, options=, name_expressions=)", "RawModule.get_function")
def raw_module(port: Port) -> None:
    x = port.gpu.ones(4, np.float32)
    module = port.gpu.RawModule(code=SOURCE, options=("-std=c++17",), name_expressions=["twice<float>"])
    module.get_function("twice<float>")((1,), (4,), (x,))
    is_all(x, 2)
    with pytest.raises(OSError):
        port.gpu.RawModule(path="/nonexistent/kernel.cubin")


@row("RawKernel(enable_cooperative_groups=True)")
def cooperative(port: Port) -> None:
    source = r"""
    #include <cooperative_groups.h>
    extern "C" __global__ void count(int* x) {
        atomicAdd(x, 1);
        cooperative_groups::this_grid().sync();
        if (*x != gridDim.x) x[1] = 1;
    }
    """
    x = port.gpu.zeros(2, np.int32)
    port.gpu.RawKernel(source, "count", enable_cooperative_groups=True)((2,), (1,), (x,))
    assert x.get().tolist() == [2, 0]


@row("RawKernel(backend=, translate_cucomplex=, jitify=)")
def without_effect(port: Port) -> None:
    x = zeros(port)
    given = {"backend": "nvcc", "translate_cucomplex": True, "jitify": True}
    port.gpu.RawKernel(CODE, "add", **given)((1,), (4,), (x, np.float32(2)))
    is_all(x, 2)
    log = io.StringIO()
    port.gpu.RawModule(code=CODE, **given).compile(log)
    assert all(name in log.getvalue() for name in given)


@row("RawKernel.name")
def name(port: Port) -> None:
    assert port.kernel.name == "add"


@row("RawKernel.attributes")
def attributes(port: Port) -> None:
    kernel = port.kernel
    for key in kernel.attributes:
        assert kernel.attributes[key] == getattr(kernel, key)
    listed = {name.rpartition(".")[2] for each in ALL for name in each.names if name.startswith("RawKernel.")}
    assert len(kernel.attributes) == 10 and kernel.attributes.keys() <= listed


@row("RawKernel.preferred_shared_memory_carveout")
def carveout(port: Port) -> None:
    kernel = port.gpu.RawKernel(CODE, "add")
    assert kernel.preferred_shared_memory_carveout == -1
    kernel.preferred_shared_memory_carveout = 50
    assert kernel.preferred_shared_memory_carveout == 50


@row("RawKernel.max_dynamic_shared_size_bytes")
def dynamic_shared(port: Port) -> None:
    kernel = port.kernel
    most = kernel.max_dynamic_shared_size_bytes
    kernel.max_dynamic_shared_size_bytes = 1024
    assert kernel.max_dynamic_shared_size_bytes == most >= 1024


@row("RawModule.get_global")
def get_global(port: Port) -> None:
    scale = port.module.get_global("scale", np.int32, (2,))
    scale.set(np.array([3, 4], np.int32))
    assert scale.get().tolist() == [3, 4]


@row("RawModule.compile", "RawKernel.compile")
def compiled(port: Port) -> None:
    log = io.StringIO()
    module = port.gpu.RawModule(code=CODE)
    module.compile(log_stream=log)
    assert module.get_function("add").num_regs >= 0
    with pytest.raises(hearth.CompileError):
        port.gpu.RawModule(code="__global__ void f( {").compile()


# ---- streams, events, graphs ----


@row("Stream.synchronize", "cuda.runtime.streamSynchronize", "cuda.runtime.streamQuery", "Stream.__enter__")
@row("cuda.Stream", "cuda.get_current_stream", "cuda.runtime.streamCreate", "Stream.is_non_blocking")
def stream(port: Port) -> None:
    x = zeros(port)
    with port.gpu.stream(priority=0, non_blocking=True) as s:
        port.kernel((1,), (4,), (x, np.float32(2)))
        assert not s.records
    s.synchronize()
    assert s.done
    is_all(x, 2)


@row("cuda.Stream.null", "cuda.runtime.deviceSynchronize")
def default_stream(port: Port) -> None:
    x = zeros(port)
    port.kernel((1,), (4,), (x, np.float32(2)))
    port.gpu.synchronize()
    is_all(x, 2)


@row("Stream.priority", "cuda.runtime.streamGetPriority")
def priority(port: Port) -> None:
    assert port.gpu.stream(priority=-1).priority == -1 and port.gpu.stream().priority == 0


@row("Stream.record", "cuda.runtime.streamWaitEvent", "cuda.runtime.eventRecord")
def order(port: Port) -> None:
    x, first, second, e = zeros(port), port.gpu.stream(), port.gpu.stream(), port.gpu.event()
    port.kernel((1,), (4,), (x, np.float32(2)), stream=first)
    assert first.record(e) is e
    second.wait_event(e)
    port.kernel((1,), (4,), (x, np.float32(1)), stream=second)
    second.synchronize()
    is_all(x, 3)


@row("Stream.add_callback", "cuda.runtime.streamAddCallback")
def callback(port: Port) -> None:
    s, calls = port.gpu.stream(), queue.SimpleQueue[tuple[object, ...]]()
    port.kernel((1,), (4,), (zeros(port), np.float32(2)), stream=s)
    s.launch_host_func(lambda number: calls.put((number,)), 7)
    s.add_callback(lambda *given: calls.put(given), "done")
    assert calls.get(timeout=60) == (7,)
    assert calls.get(timeout=60) == (s, 0, "done")


@row("Event.record", "Event.synchronize", "cuda.Event", "cuda.runtime.eventCreate", "cuda.runtime.eventQuery")
@row("cuda.runtime.eventSynchronize", "cuda.get_elapsed_time", "cuda.runtime.eventElapsedTime")
def events(port: Port) -> None:
    start, end, s = port.gpu.event(), port.gpu.event(block=True, disable_timing=False), port.gpu.stream()
    start.record(s)
    port.kernel((1,), (4,), (zeros(port), np.float32(2)), stream=s)
    end.record(stream=s)
    end.synchronize()
    assert start.done and end.done
    assert hearth.get_elapsed_time(start, end) >= 0


@row("Graph.launch", "cuda.Graph", "cuda.runtime.graphLaunch", "cuda.runtime.graphDestroy")
def graph(port: Port) -> None:
    x, s = zeros(port), port.gpu.stream()
    g = port.graph(x)
    assert not s.records
    g.launch(stream=s)
    g.launch(2, s)
    s.synchronize()
    is_all(x, 3)
    g.close()


@row("Stream.begin_capture", "cuda.runtime.streamBeginCapture", "cuda.runtime.streamIsCapturing")
def capture(port: Port) -> None:
    x, s = zeros(port), port.gpu.stream()
    with s:
        s.begin_capture()
        port.kernel((1,), (4,), (x, np.float32(2)))
        assert s.is_capturing()
        g = s.end_capture()
    assert not s.is_capturing()
    g.launch(stream=s)
    s.synchronize()
    is_all(x, 2)


@row("Graph.debug_dot_str", "cuda.runtime.graphDebugDotPrint")
def dot(port: Port) -> None:
    assert "add" in port.graph(zeros(port)).debug_dot_str()


# ---- NCCL ----


@row("cuda.nccl.available")
def available(port: Port) -> None:
    assert "collectives" in port.node.describe().features


def arrays(group: hearth.Group, n: int = 4) -> list[hearth.DeviceArray]:
    return [gpu.full(n, rank + 1, np.float32) for rank, gpu in enumerate(group.devices)]


@row("cuda.nccl.get_unique_id", "cuda.nccl.NcclCommunicator", "cuda.nccl.NcclCommunicator.allReduce")
@row("cuda.nccl.NCCL_INT8", "cuda.nccl.NcclCommunicator.destroy")
def all_reduce(port: Port) -> None:
    with port.group as group:
        for x in group.all_reduce(arrays(group), op="sum"):
            is_all(x, 3)
    assert group.closed


@row("cuda.nccl.NCCL_SUM")
def reductions(port: Port) -> None:
    group = port.group
    for op, expected in {"sum": 3, "prod": 2, "max": 2, "min": 1, "mean": 1.5}.items():
        is_all(group.all_reduce(arrays(group), op=op)[1], expected)


@row("cuda.nccl.NcclCommunicator.reduce", "cuda.nccl.NcclCommunicator.broadcast")
@row("cuda.nccl.NcclCommunicator.reduceScatter", "cuda.nccl.NcclCommunicator.allGather")
def collectives(port: Port) -> None:
    group = port.group
    is_all(group.reduce(arrays(group), root=0, op="sum"), 3)
    is_all(group.broadcast(arrays(group), root=0)[1], 1)
    is_all(group.reduce_scatter(arrays(group), op="sum")[1], 3)
    assert group.all_gather(arrays(group))[0].get()[:, 0].tolist() == [1, 2]


@row("cuda.nccl.NcclCommunicator.send", "cuda.nccl.groupStart")
def messages(port: Port) -> None:
    group = port.group
    x, y = arrays(group)
    with group.batch():
        group.send(x, to=1)
        group.recv(y, source=0)
    is_all(y, 1)


@row("cuda.nccl.NcclCommunicator.device_id", "cuda.nccl.NcclCommunicator.size")
def ranks(port: Port) -> None:
    group = port.group
    assert len(group) == 2 and [device.ordinal for device in group.devices] == [0, 1]


@row("cuda.nccl.NcclError", "cuda.nccl.NcclCommunicator.check_async_error", "cuda.nccl.NcclCommunicator.abort")
def missing_rank(port: Port) -> None:
    group = port.group
    group.send(arrays(group)[0], to=1, timeout=0.1)
    with pytest.raises(hearth.CommunicatorError):
        group.devices[0].synchronize()


# ---- runtime ----


@row("cuda.is_available", "cuda.runtime.getDeviceCount", "cuda.runtime.getDevice", "cuda.Device")
def devices(port: Port) -> None:
    last = len(port.node.devices) - 1
    assert port.node.device(last) is port.node.devices[last] and port.node.gpu is port.node.device(0)


@row("cuda.runtime.deviceGetAttribute", "cuda.runtime.deviceGetByPCIBusId", "cuda.runtime.is_hip")
@row("cuda.runtime.driverGetVersion", "cuda.get_local_runtime_version")
def properties(port: Port) -> None:
    found = port.gpu.properties
    assert found.max_threads_per_block >= 256 and found.uuid and found.backend in ("cpu", "cuda")
    assert isinstance(found.driver_version, str) and isinstance(found.runtime_version, str)


@row("cuda.runtime.CUDARuntimeError")
def errors(port: Port) -> None:
    port.kernel((1,), (4,), (zeros(port), np.float64(2)))
    with pytest.raises(hearth.HearthError):
        port.gpu.synchronize()


@row("cuda.runtime.ipcGetMemHandle")
def published(port: Port) -> None:
    x = port.gpu.ones(4, np.float32)
    x.publish("coming-from-cupy")
    is_all(port.gpu.attach("coming-from-cupy"), 1)
    port.gpu.unpublish("coming-from-cupy")


@row("cuda.runtime.ipcGetEventHandle")
def published_event(port: Port) -> None:
    event = port.gpu.default_stream.record()
    event.publish("coming-from-cupy")
    port.gpu.default_stream.wait_event(port.gpu.attach_event("coming-from-cupy"))


@row("cuda.runtime.malloc", "cuda.runtime.free", "cuda.runtime.memset")
def memory(port: Port) -> None:
    x = port.gpu.empty(100, np.uint8)
    x.fill(7)
    is_all(x, 7)
    x.free()
    with pytest.raises(hearth.InvalidHandleError):
        x.get()


@row("cuda.runtime.hostAlloc", "cupyx.empty_pinned", "get_default_pinned_memory_pool")
def pinned(port: Port) -> None:
    a = hearth.empty_pinned(4, np.float32)
    a[:] = 5
    is_all(port.gpu.asarray(a), 5)
    assert not hearth.zeros_pinned(3).any()


@row("cuda.runtime.memGetInfo", "cuda.runtime.memPoolTrimTo", "get_default_memory_pool")
def usage(port: Port) -> None:
    port.gpu.memory_cleanup()
    assert 0 < port.gpu.memory_usage().device_free <= port.gpu.memory_usage().device_total


@row("cuda.runtime.memcpy", "ndarray.set", "ndarray.get", "asnumpy")
def copies(port: Port) -> None:
    x, y, a, s = zeros(port), zeros(port), np.arange(4, dtype=np.float32), port.gpu.stream()
    x.set(a, s)
    y.copy_from(x)
    assert y.get(out=np.empty_like(a)).tolist() == y.get(stream=s).tolist() == a.tolist()
    with pytest.raises(hearth.ArgumentError, match="out is Stream") as caught:
        y.get(s)  # type: ignore[arg-type]
    assert "x.get(stream=s)" in caught.value.fix
    assert [each.tolist() for each in port.gpu.get([x, y])] == [a.tolist()] * 2


@row("cuda.runtime.memcpyPeer", "cuda.runtime.deviceCanAccessPeer")
def peer_copy(port: Port) -> None:
    group = port.group
    x, y = arrays(group)
    y.copy_from(x)
    is_all(y, 1)


@row("cuda.runtime.memcpy2D")
def rectangles(port: Port) -> None:
    x, a = port.gpu.zeros((4, 4), np.float32), np.arange(8, dtype=np.float32).reshape(4, 2)
    x[:, 1:3].set(a)
    np.testing.assert_array_equal(x.get(), np.pad(a, ((0, 0), (1, 1))))


@row("cuda.runtime.profilerStart")
def trace(port: Port) -> None:
    with port.gpu.trace() as t:
        port.kernel((1,), (4,), (zeros(port), np.float32(2)))
    assert any(event.kernel == "add" for event in t.events)


# ---- arrays ----


@row("asarray", "arange")
def creation(port: Port) -> None:
    gpu = port.gpu
    for x in (
        gpu.asarray([1.0, 1.0]),
        gpu.array([1.0, 1.0]),
        gpu.ones(2),
        gpu.full(2, 1.0),
        gpu.zeros_like(gpu.ones(2)),
    ):
        assert x.shape == (2,)
    assert gpu.empty(3).size == 3 and not gpu.zeros(3).get().any()
    assert gpu.arange(3).get().tolist() == [0, 1, 2] and gpu.linspace(0, 1, 3).get().tolist() == [0, 0.5, 1]


@row("ndarray.astype", "moveaxis")
def shapes(port: Port) -> None:
    a = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    x = port.gpu.asarray(a)
    for found, expected in (
        (x.astype(np.int32), a.astype(np.int32)),
        (x.reshape(4, 6), a.reshape(4, 6)),
        (x.T.ravel(), a.T.ravel()),
        (x.transpose(1, 0, 2), a.transpose(1, 0, 2)),
        (x.swapaxes(0, 2), a.swapaxes(0, 2)),
        (x.moveaxis(0, -1), np.moveaxis(a, 0, -1)),
        (x.view(np.int32), a.view(np.int32)),
        (x[:, ::-2], a[:, ::-2]),
    ):
        np.testing.assert_array_equal(found.get(), expected)
    x[0, :, 1] = 7
    a[0, :, 1] = 7
    np.testing.assert_array_equal(x.get(), a)


@row("float32")
def numpys_values(port: Port) -> None:
    for name in ("float32", "dtype", "newaxis", "pi"):
        with pytest.raises(hearth.UnsupportedAttributeError) as caught:
            getattr(port.gpu, name)
        assert caught.value.fix == f"use np.{name}."


@row("ndarray")
def array_type(port: Port) -> None:
    assert isinstance(zeros(port), hearth.DeviceArray)


@row("CUDA_LAUNCH_BLOCKING=1")
def launch_blocking(port: Port) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEARTH_LAUNCH_BLOCKING", "1")
        with hearth.connect() as node, pytest.raises(hearth.LaunchError):
            Port(node).kernel((1,), (4,), (node.gpu.zeros(4, np.float32), np.float64(2)))


# ---- the tests ----


@pytest.mark.parametrize("each", ALL, ids=lambda each: each.names[0])
def test_row(each: Row, port: Port, daemon: DaemonProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEARTH_TARGET", daemon.unix)
    for name in each.names:
        if name in cupy_names.fixes() or each.status == "refused":
            try:
                port.has(name)
            except hearth.UnsupportedAttributeError as error:
                assert error.fix == f"{each.text}." and error.details["name"] == name
            else:
                assert each.status == "mapped", f"{name} exists"
    if each.status != "refused":
        ROWS[each.names[0]](port)


def test_rows_and_programs_correspond() -> None:
    firsts = [each.names[0] for each in ALL]
    assert len(firsts) == len(set(firsts)) > 100
    assert {each.status for each in ALL} == {"same", "mapped", "refused"}
    assert set(ROWS) == {each.names[0] for each in ALL if each.status != "refused"}
    refused = {name for each in ALL if each.status == "refused" for name in each.names}
    listed = {name for each in ALL for name in each.names}
    assert refused - set(dir(np)) <= set(cupy_names.fixes()) <= listed


def test_other_missing_names(port: Port) -> None:
    with pytest.raises(AttributeError, match="no attribute 'syncronize'") as caught:
        port.gpu.stream().syncronize()  # type: ignore[attr-defined]
    assert not isinstance(caught.value, hearth.HearthError)
    with pytest.raises(hearth.UnsupportedAttributeError, match=r"cuda\.runtime\.cudaDevAttrWarpSize") as refused:
        port.gpu.cuda.runtime.cudaDevAttrWarpSize  # type: ignore[attr-defined]  # noqa: B018
    assert "docs/coming-from-cupy.md" in refused.value.fix
    with pytest.raises(hearth.UnsupportedAttributeError, match="no concatenate, which NumPy has"):
        port.gpu.concatenate  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(AttributeError, match="no attribute 'arrange'") as caught:
        port.gpu.arrange  # type: ignore[attr-defined]  # noqa: B018
    assert not isinstance(caught.value, hearth.HearthError)
    assert not hasattr(zeros(port), "data")
    assert not hasattr(port.gpu.stream(), "ptr") and not hasattr(port.gpu, "__cuda_array_interface__")


def test_names_of_asyncio(daemon: DaemonProcess) -> None:
    import asyncio

    async def main() -> None:
        async with hearth.aio.connect(daemon.unix) as node:
            gpu = node.device(0)
            with pytest.raises(hearth.UnsupportedAttributeError) as caught:
                gpu.stream(non_blocking=True).ptr  # type: ignore[attr-defined]  # noqa: B018
            assert "stream=s" in caught.value.fix
            with pytest.raises(hearth.UnsupportedAttributeError) as caught:
                gpu.asnumpy  # type: ignore[attr-defined]  # noqa: B018
            assert caught.value.fix == "use x.get()."
            with pytest.raises(hearth.UnsupportedAttributeError) as caught:
                gpu.zeros(4).data  # type: ignore[attr-defined]  # noqa: B018
            assert "x.ipc()" in caught.value.fix
            with pytest.raises(hearth.UnsupportedAttributeError):
                gpu.event(interprocess=True)

    asyncio.run(main())
