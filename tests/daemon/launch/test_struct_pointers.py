"""Structs with device pointers as arguments of kernels."""

from __future__ import annotations

import ctypes
import struct
from typing import Any

import numpy as np
import pytest

import hearth
from hearth.arrays.base_array import BaseArray
from hearth_proto.reasons import Reason
from hearth_proto.v1 import commands_pb2 as c
from tests.support.daemon.aio_ways import connect
from tests.support.daemon.harness import DaemonProcess
from tests.support.daemon.kernels import gated
from tests.support.daemon.loops import LOOPS
from tests.support.daemon.loops import run as run_loop
from tests.support.daemon.raw import Raw, refused

SOURCE = """
struct Vector { float* data; int n; };
struct Task { char tag; Vector in; float* out; float scale; const float* table[2]; };
extern "C" __global__ void run(Task task, float add) {
    int i = threadIdx.x;
    if (i >= task.in.n) return;
    float value = task.in.data[i] * task.scale + add;
    for (int k = 0; k < 2; k++) if (task.table[k]) value += task.table[k][i];
    task.out[i] = value;
}
"""
VECTOR = np.dtype([("data", object), ("n", np.int32)], align=True)
TASK = np.dtype(
    [("tag", np.int8), ("in", VECTOR), ("out", object), ("scale", np.float32), ("table", object, (2,))], align=True
)


def task(x: object, n: int, out: object, scale: float, table: tuple[object, object] = (None, None)) -> Any:
    """Returns the struct. NumPy takes a device array apart when it is assigned, and not a pointer."""
    x, out, *table = (hearth.pointer(each) if isinstance(each, BaseArray) else each for each in (x, out, *table))
    made = np.zeros((), TASK)
    made["tag"], made["out"], made["scale"] = 1, out, scale
    made["in"]["data"], made["in"]["n"] = x, n
    made["table"][0], made["table"][1] = table
    return made


@pytest.fixture
def run(gpu: hearth.Device) -> hearth.Function:
    return gpu.RawKernel(SOURCE, "run")


def test_numpy_structure_with_pointers(gpu: hearth.Device, run: hearth.Function) -> None:
    x, out, ones = gpu.asarray(np.arange(8, dtype=np.float32)), gpu.zeros(8, np.float32), gpu.ones(8, np.float32)
    run(1, 8, (task(x, 8, out, 2), np.float32(1)))
    assert out.get().tolist() == [2 * i + 1 for i in range(8)]
    run(1, 8, (task(hearth.pointer(x, 8), 4, out[2:], 1, (None, ones)), np.float32(0)))
    assert out.get().tolist() == [1, 3, 3, 4, 5, 6, 13, 15]
    run(1, 8, (task(hearth.read_only(x), 8, out, 3, (hearth.read_only(ones), x))[()], np.float32(0)))  # a scalar
    assert out.get().tolist() == [4 * i + 1 for i in range(8)]


def test_struct_of_bytes_with_pointers(gpu: hearth.Device) -> None:
    class Vector(ctypes.Structure):
        _fields_ = (("data", ctypes.c_void_p), ("n", ctypes.c_int))

    double = gpu.RawKernel(
        "struct Vector { float* data; int n; };"
        'extern "C" __global__ void twice(Vector v) { if (threadIdx.x < v.n) v.data[threadIdx.x] *= 2; }',
        "twice",
    )
    x, vector = gpu.ones(6, np.float32), Vector(None, 4)
    with pytest.raises(hearth.LaunchError, match=r"argument 0 .* a structure with pointers") as refused:
        double(1, 32, (vector,))
    assert "pointers={Type.field.offset: array}" in refused.value.fix
    double(1, 32, (hearth.Struct(bytes(vector), pointers={Vector.data.offset: hearth.pointer(x, 8)}),))
    assert x.get().tolist() == [1, 1, 2, 2, 2, 2]


@pytest.mark.parametrize(("value", "kind"), [(4096, "an integer"), (np.uint64(8), "an integer"), ("x", "str")])
def test_anything_but_arrays_is_refused_in_a_pointer(
    gpu: hearth.Device, run: hearth.Function, value: object, kind: str
) -> None:
    out = gpu.zeros(8, np.float32)
    with pytest.raises(hearth.LaunchTypeError, match=rf"argument 0, field 'in\.data'.* \({kind}.*") as refused:
        run(1, 8, (task(value, 8, out, 1), np.float32(0)))
    assert "hearth.pointer(x" in refused.value.fix
    with pytest.raises(hearth.LaunchTypeError, match=rf"the pointer at byte 8 .* \({kind}"):
        hearth.Struct(bytes(16), pointers={8: value})
    host = np.zeros(4, np.float32)
    with pytest.raises(hearth.LaunchTypeError, match=r"field 'table\[1\]'.*ndarray"):
        run(1, 8, (task(out, 8, out, 1, (None, host)), np.float32(0)))


def test_offsets_outside_of_arrays_and_structs(gpu: hearth.Device) -> None:
    x = gpu.zeros((4, 4), np.float32)
    assert repr(hearth.pointer(hearth.pointer(x, 16), 48)) == f"pointer({x!r}, 64)"
    for array, offset, size in ((x, 65, 64), (x, -1, 64), (x[1:3], 33, 32), (x[:, 0], 53, 52)):
        with pytest.raises(hearth.ArgumentError, match=f"starts at byte {offset} .* has {size} bytes") as refused:
            hearth.pointer(array, offset)
        assert refused.value.reason == "OUT_OF_BOUNDS"
    with pytest.raises(hearth.ArgumentError):
        hearth.pointer(hearth.pointer(hearth.read_only(x), 60), 5)
    for wrong in (np.zeros(4), 4096, None, x.tensor_map((4, 4))):
        with pytest.raises(hearth.LaunchTypeError, match="takes a device array"):
            hearth.pointer(wrong)  # type: ignore[arg-type]
    with pytest.raises(hearth.LaunchTypeError, match="must be an integer"):
        hearth.pointer(x, 1.5)  # type: ignore[arg-type]
    for pointers in ({9: x}, {-1: x}, {0: x, 4: x}):
        with pytest.raises(hearth.LaunchTypeError, match="a struct of 16 bytes has a pointer at byte"):
            hearth.Struct(bytes(16), pointers=pointers)


def test_freed_and_foreign_arrays_are_named(pair: list[hearth.Device]) -> None:
    gpu, other = pair
    run, out = gpu.RawKernel(SOURCE, "run"), gpu.zeros(8, np.float32)
    with pytest.raises(hearth.LaunchError, match=r"pointer at byte 8 of argument 0 .* another device") as refused:
        run(1, 8, (task(other.zeros(8, np.float32), 8, out, 1), np.float32(0)))
    assert refused.value.details["argument"] == "0"
    freed = gpu.zeros(8, np.float32)
    freed.free()
    with pytest.raises(hearth.HearthError, match=r"pointer at byte 8 of argument 0.* freed"):
        run(1, 8, (task(freed, 8, out, 1), np.float32(0)))


def test_a_number_out_of_range_next_to_a_struct_is_named(gpu: hearth.Device, run: hearth.Function) -> None:
    x = gpu.zeros(8, np.float32)
    with pytest.raises(hearth.LaunchError, match=rf"argument 1 is {2**63}; .*64-bit"):
        run(1, 8, (task(x, 8, x, 1), 2**63))


def test_launches_are_ordered_by_pointers_in_structs(gpu: hearth.Device) -> None:
    """The second stream reads, through a pointer in a struct, the values that the first one writes."""
    copy = gpu.RawKernel(
        'struct P { const int* in; int* out; }; extern "C" __global__ void copy(P p) { *p.out = *p.in; }', "copy"
    )
    first, second = gpu.stream(), gpu.stream()
    x, y = gpu.zeros(1, np.int32), gpu.zeros(1, np.int32)
    pair = hearth.Struct(bytes(16), pointers={0: hearth.read_only(x), 8: y})
    copy(1, 1, (pair,), stream=second)  # compiles the kernel
    second.synchronize()
    with gated(gpu) as gate:
        gate.hold(x, stream=first)
        copy(1, 1, (pair,), stream=second)
        gpu.flush(second)
        gate.open()
        assert y.get(stream=second).item() == 1


def test_graphs_lists_and_validation(gpu: hearth.Device, run: hearth.Function) -> None:
    x, y, z = gpu.ones(4, np.float32), gpu.zeros(4, np.float32), gpu.zeros(4, np.float32)
    with gpu.graph() as graph:
        run(1, 4, (task(x, 4, y, 2), np.float32(0)))
    graph.launch()
    graph.nodes[0].set_args((task(x, 4, z, 3), np.float32(0)))
    graph.launch()
    assert (y.get().tolist(), z.get().tolist()) == ([2] * 4, [3] * 4)
    with gpu.prepared() as prepared:
        run(1, 4, (task(z, 4, y, 2), np.float32(0)))
    prepared.launch(2)
    assert y.get().tolist() == [6] * 4
    run(1, 8, (task(x, 4, z, 7), np.float32(0)), mode="validate")
    assert z.get().tolist() == [7] * 4
    run(1, 8, (task(x, 4, z, 7), np.float32(0)), mode="validate")
    run(1, 8, (task(hearth.pointer(x), 8, hearth.pointer(z, 8), 7), np.float32(0)), mode="validate")
    with pytest.raises(hearth.LaunchError, match=r"wrote outside its buffers: .* argument 0") as late:
        gpu.synchronize()
    assert late.value.reason == "OUT_OF_BOUNDS_WRITE"


def test_dispatch_with_pointers_in_a_struct(gpu: hearth.Device) -> None:
    add = gpu.RawKernel(
        "struct Vector { float* data; int n; };"
        'extern "C" __global__ void add(const float* x, Vector v, float* out)'
        " { out[threadIdx.x] = x[threadIdx.x] + v.data[threadIdx.x]; }",
        "add",
    )
    for offset in (0, 4):
        y = gpu.asarray(np.arange(5, dtype=np.float32))
        vector = hearth.Struct(bytes(16), pointers={0: hearth.pointer(y, offset)})
        (out,) = gpu.dispatch(add, 1, 4, args=[hearth.In(np.ones(4, np.float32)), vector, hearth.Out(4, np.float32)])
        assert out.tolist() == [1 + i + offset // 4 for i in range(4)]


def test_the_readable_launch_and_malformed_structures(raw: Raw) -> None:
    """Other languages send the message `Launch`; the daemon repeats the checks of the Python client."""
    function = raw.function(
        "struct V { float* data; float* out; int n; };"
        'extern "C" __global__ void copy(V v) { for (int i = 0; i < v.n; i++) v.out[i] = v.data[i]; }',
        "copy",
    )
    x, y = raw.buffer(struct.pack("<3f", 1, 2, 3)), raw.buffer(bytes(12))
    field = c.Argument.Structure.Field

    def launch(pointers: list[Any], size: int = 24) -> c.Launch:
        data = struct.pack("<QQi4x", 77, 0, 2)[:size]
        value = c.Argument(structure=c.Argument.Structure(data=data, pointers=pointers))
        return c.Launch(function=function, grid=c.Dim3(x=1), block=c.Dim3(x=1), arguments=[value])

    to_x = field(at=0, pointer=c.Argument.Pointer(buffer=x, offset=4, read_only=True))
    to_y = field(at=8, pointer=c.Argument.Pointer(buffer=y))
    raw.call("Launch", launch([to_x, to_y]))
    assert struct.unpack("<3f", raw.read(y, 12)) == (2, 3, 0)
    beyond = field(at=8, pointer=c.Argument.Pointer(buffer=y, offset=13))
    for wrong, reason, text in (
        ([to_y, to_x], Reason.LAUNCH_INVALID, "a pointer at offset 0 of argument 0 overlaps the one before"),
        ([to_x, field(at=4, pointer=to_y.pointer)], Reason.LAUNCH_INVALID, "overlaps the one before"),
        ([field(at=17, pointer=to_y.pointer)], Reason.LAUNCH_INVALID, "argument 0 has a pointer at byte 17"),
        ([to_x, beyond], Reason.OUT_OF_BOUNDS, f"argument 0 starts at byte 13 of buffer {y}, which has 12"),
        ([field(pointer=c.Argument.Pointer(buffer=99))], Reason.INVALID_HANDLE, "buffer 99"),
    ):
        refusal = refused(raw.call, "Launch", launch(wrong))
        assert refusal.reason == reason and text in refusal.message, refusal.message
    assert refused(raw.call, "Launch", launch([to_x, to_y], size=16)).reason == Reason.LAUNCH_INVALID
    assert struct.unpack("<3f", raw.read(y, 12)) == (2, 3, 0)


def test_asyncio(daemon: DaemonProcess) -> None:
    async def main() -> None:
        async with connect(daemon) as node:
            gpu = node.device(0)
            x, out = gpu.asarray(np.arange(4, dtype=np.float32)), gpu.zeros(4, np.float32)
            kernel = gpu.RawModule(code=SOURCE).get_function("run")
            kernel(1, 4, (task(hearth.read_only(x), 4, out, 2), np.float32(1)))
            assert (await out.get()).tolist() == [1, 3, 5, 7]

    run_loop(main, LOOPS[0])
