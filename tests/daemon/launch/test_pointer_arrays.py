"""Arrays of pointers: addresses that the daemon writes, and launches that are ordered by their targets."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest

import hearth
from hearth_proto.reasons import Reason
from hearth_proto.v1 import commands_pb2 as c
from tests.support.daemon.aio_ways import connect
from tests.support.daemon.durables import lose
from tests.support.daemon.harness import DaemonProcess
from tests.support.daemon.kernels import gated
from tests.support.daemon.loops import LOOPS
from tests.support.daemon.loops import run as run_loop
from tests.support.daemon.raw import Raw, refused

SUM = """
extern "C" __global__ void sum(const float* const* rows, int n, float* out) {
    float total = 0;
    for (int k = 0; k < n; k++) if (rows[k]) total += rows[k][threadIdx.x];
    out[threadIdx.x] = total;
}
extern "C" __global__ void scale(float** rows, int n) {
    for (int k = 0; k < n; k++) if (rows[k]) rows[k][threadIdx.x] *= 2;
}
"""
LIST = """
struct Node { const float* data; const Node* next; int n; };
extern "C" __global__ void total(const Node* node, float* out) {
    float sum = 0;
    for (; node; node = node->next) for (int i = 0; i < node->n; i++) sum += node->data[i];
    *out = sum;
}
"""
NODE = np.dtype([("data", object), ("next", object), ("n", np.int32)], align=True)


def numbers(gpu: hearth.Device, n: int) -> hearth.DeviceArray:
    return gpu.asarray(np.arange(n, dtype=np.float32))


def test_kernels_follow_the_addresses(gpu: hearth.Device) -> None:
    module = gpu.RawModule(code=SUM)
    x, y, z, out = numbers(gpu, 4), gpu.ones(4, np.float32), numbers(gpu, 12), gpu.zeros(4, np.float32)
    rows = gpu.pointers([x, hearth.read_only(y), None, (z, 16), hearth.pointer(z[4:], 16), z[2:]])
    assert (rows.shape, rows.dtype) == ((6,), np.uint64)
    module.get_function("sum")(1, 4, (rows, 6, out))
    assert out.get().tolist() == [(i) + 1 + (i + 4) + (i + 8) + (i + 2) for i in range(4)]
    module.get_function("scale")(1, 4, (rows, 1))
    assert x.get().tolist() == [0, 2, 4, 6] and y.get().tolist() == [1] * 4
    addresses = rows.get()
    assert addresses[2] == 0 and addresses[3] + 16 == addresses[4] == addresses[5] + 24
    assert gpu.pointers([]).shape == (0,) and gpu.pointers([None]).get().tolist() == [0]


def linked(gpu: hearth.Device, parts: list[hearth.DeviceArray]) -> hearth.DeviceArray:
    """Returns the first node of a linked list, in which each node is an array of one structure."""
    node: Any = None
    for part in reversed(parts):
        made = np.zeros(1, NODE)
        made[0] = (hearth.pointer(part), node if node is None else hearth.pointer(node), part.size)
        node = gpu.pointers(made)
    assert isinstance(node, hearth.DeviceArray)
    return node


def test_a_linked_list_of_structures_keeps_its_targets(gpu: hearth.Device) -> None:
    total, out = gpu.RawKernel(LIST, "total"), gpu.zeros(1, np.float32)
    parts = [gpu.full(100 + i, i + 1, np.float32) for i in range(5)]
    first, expected = linked(gpu, parts), float(sum((100 + i) * (i + 1) for i in range(5)))
    assert first.dtype.names == ("data", "next", "n") and first.dtype["next"] == np.uint64
    total(1, 1, (first, out))
    assert out.item() == expected
    for part in parts:
        part.free()
    del parts, part
    others = [gpu.full(100 + i, -1, np.float32) for i in range(5)]  # would get the memory of the parts
    total(1, 1, (first, out))
    assert out.item() == expected and len(others) == 5
    in_use = gpu.memory_usage().bytes_in_use
    first.free()
    del first
    assert gpu.memory_usage().bytes_in_use <= in_use - 4 * sum(range(100, 105)) - 5 * NODE.itemsize


@pytest.mark.parametrize("nested", [False, True])
def test_launches_are_ordered_by_the_targets(gpu: hearth.Device, nested: bool) -> None:
    """The second stream reads, through arrays of pointers, the values that the first one writes; later writes wait."""
    copy = gpu.RawKernel(
        'extern "C" __global__ void copy(void* from, int deep, int* out)'
        " { *out = deep ? ***(int***)from : **(int**)from; }",
        "copy",
    )
    first, second = gpu.stream(), gpu.stream()
    x, y = gpu.zeros(1, np.int32), gpu.zeros(1, np.int32)
    rows = gpu.pointers([hearth.read_only(x)])
    if nested:
        rows = gpu.pointers([rows])
    for _ in range(4):  # at first with a new plan, at last from the replay cache
        copy(1, 1, (rows, int(nested), y), stream=second)
        second.synchronize()
        with gated(gpu) as gate:
            before = x.item()
            gate.hold(x, stream=first)
            copy(1, 1, (rows, int(nested), y), stream=second)
            gpu.flush(second)
            gate.open()
            assert y.get(stream=second).item() == before + 1


def test_graphs_and_prepared_lists_keep_the_targets(gpu: hearth.Device) -> None:
    module, out = gpu.RawModule(code=SUM), gpu.zeros(4, np.float32)
    x, y = gpu.ones(4, np.float32), numbers(gpu, 4)
    rows, kernel = gpu.pointers([x, y]), module.get_function("sum")
    with gpu.graph() as graph:
        kernel(1, 4, (rows, 2, out))
    with gpu.prepared() as prepared:
        kernel(1, 4, (rows, 2, out))
    del x, y, rows
    others = [gpu.full(4, -1, np.float32) for _ in range(8)]
    for launched in (graph, prepared):
        out.fill(0)
        launched.launch()
        assert out.get().tolist() == [1, 2, 3, 4] and len(others) == 8
    with gpu.graph() as refused_graph:
        with pytest.raises(hearth.LaunchError, match="recorded"):
            gpu.pointers([out])
        kernel(1, 4, (gpu_rows := graph and others[0], 0, out))
    assert gpu_rows is others[0] and refused_graph is not None


def test_operations_that_would_lose_the_targets_are_refused_by_name(gpu: hearth.Device) -> None:
    x = gpu.ones(4, np.float32)
    rows = gpu.pointers([x])
    kernel = gpu.RawModule(code=SUM).get_function("sum")
    attempts: list[tuple[Any, str, str]] = [
        (lambda: rows.fill(1), "READ_ONLY", "contains addresses"),
        (lambda: rows.set(np.zeros(1, np.uint64)), "READ_ONLY", "contains addresses"),
        (lambda: rows.copy_from(gpu.zeros(1, np.uint64)), "READ_ONLY", "contains addresses"),
        (rows.copy, "UNSUPPORTED", "would not be ordered by the targets"),
        (lambda: gpu.durable(rows), "INVALID_ARGUMENT", "not those of a later device process"),
        (lambda: kernel(1, 4, (rows, 1, x), mode="validate"), "UNSUPPORTED", "holds addresses that cannot be replaced"),
        (lambda: gpu.publish("rows", rows), "INVALID_ARGUMENT", "which other sessions cannot use"),
    ]
    for attempt, reason, text in attempts:
        with pytest.raises(hearth.HearthError, match=text) as caught:
            attempt()
            gpu.synchronize()
        assert caught.value.reason == reason and caught.value.fix, caught.value
    kernel(1, 4, (rows, 1, x))
    assert x.get().tolist() == [1] * 4


def test_a_loss_of_the_device_ends_the_array_and_not_its_durable_targets(lossy: DaemonProcess) -> None:
    with lossy.connect() as node:
        gpu = node.device(0)
        kernel, x = gpu.RawModule(code=SUM).get_function("sum"), gpu.durable(gpu.ones(4, np.float32))
        rows, target = gpu.pointers([x, x]), hearth.pointer(x)
        gpu.synchronize()
        lose(lossy, gpu)
        out = gpu.zeros(4, np.float32)
        with pytest.raises(hearth.BufferLostError):
            kernel(1, 4, (rows, 2, out))
        with pytest.raises(hearth.BufferLostError):
            gpu.pointers([rows])
        kernel(1, 4, (gpu.pointers([x, target]), 2, out))
        assert out.get().tolist() == [2] * 4


def test_invalid_targets(pair: list[hearth.Device]) -> None:
    gpu, other = pair
    x = gpu.ones(4, np.float32)
    for targets, text in (
        ([4096], r"pointer 0 is 4096 \(an integer"),
        ([x, np.ones(3)], r"pointer 1 is array.*ndarray"),
        (x, "pointers takes a list of device arrays"),
        (np.array([(x.nbytes, None, 1)], NODE), r"structure 0, field 'data', is 16 \(an integer"),
    ):
        with pytest.raises(hearth.LaunchTypeError, match=text) as refusal:
            gpu.pointers(targets)
        assert refusal.value.fix
    with pytest.raises(hearth.ArgumentError, match="starts at byte 17"):
        gpu.pointers([(x, 17)])
    with pytest.raises(hearth.UnsupportedError, match="another device or session"):
        gpu.pointers([other.ones(4, np.float32)])
    with pytest.raises(hearth.ArgumentError, match=r"an array of 65537 pointers .* maximum is 65536"):
        gpu.pointers([x] * 65_537)
    freed = gpu.ones(4, np.float32)
    freed.free()
    with pytest.raises(hearth.InvalidHandleError, match="was freed"):
        gpu.pointers([x, freed])


def test_the_command_and_its_refusals(raw: Raw) -> None:
    """The daemon repeats the checks of the Python client, and accepts pointers into the buffer itself."""
    x, rows, unfilled = raw.buffer(bytes(12)), raw.buffer(bytes(24)), raw.buffer(bytes(16))
    target = c.WritePointers.Target

    def command(size: int, *pointers: tuple[int, int, int]) -> c.WritePointers:
        """Returns the command with (offset, target, offset in the target) of each pointer."""
        made = c.WritePointers(buffer=rows, data=struct.pack("<QQQ", 5, 6, 7)[:size])
        made.targets.extend([target(buffer=x), target(buffer=rows, read_only=True)])
        for at, index, offset in pointers:
            made.at.append(at)
            made.target.append(index)
            made.offset.append(offset)
        return made

    short = command(24, (0, 0, 0))
    short.offset.append(1)
    unknown = command(24)
    unknown.targets.add(buffer=99)
    many = command(24)
    for column in (many.at, many.target, many.offset):
        column.extend([0] * 65_537)
    for wrong, reason, text in (
        (command(16), Reason.INVALID_ARGUMENT, "has 24 bytes, and `data` 16"),
        (command(24, (17, 0, 0)), Reason.INVALID_ARGUMENT, "a pointer at byte 17"),
        (command(24, (8, 0, 0), (4, 0, 0)), Reason.INVALID_ARGUMENT, "a pointer at byte 4"),
        (command(24, (0, 2, 0)), Reason.INVALID_ARGUMENT, "a pointer to target 2; there are 2"),
        (command(24, (0, 0, 13)), Reason.OUT_OF_BOUNDS, f"byte 13 of buffer {x}, which has 12"),
        (short, Reason.INVALID_ARGUMENT, "1 places of pointers, 1 targets and 2 offsets"),
        (many, Reason.INVALID_ARGUMENT, "65537 pointers; the maximum is 65536"),
        (unknown, Reason.INVALID_HANDLE, "buffer 99"),
    ):
        refusal = refused(raw.call, "WritePointers", wrong)
        assert refusal.reason == reason and text in refusal.message, refusal.message
    raw.call("WritePointers", command(24, (0, 0, 12), (8, 1, 16)))
    to_x, to_rows, seven = struct.unpack("<QQQ", raw.read(rows, 24))
    assert to_x and to_rows and seven == 7
    assert refused(raw.call, "WritePointers", command(24)).reason == Reason.INVALID_ARGUMENT
    assert refused(raw.call, "Write", c.Write(buffer=rows, data=bytes(8))).reason == Reason.READ_ONLY
    raw.call("WritePointers", c.WritePointers(buffer=unfilled, data=bytes(16)))
    again = c.WritePointers(buffer=unfilled, data=bytes(16), targets=[target(buffer=x)])
    assert refused(raw.call, "WritePointers", again).reason == Reason.INVALID_ARGUMENT
    raw.call("Free", c.Free(buffers=[x, rows]))
    usage = raw.call("MemoryUsage", c.MemoryUsage())
    assert usage.allocations == 1, "the memory of targets is freed with the last array of pointers"


def test_the_number_of_targets_is_bounded(gpu: hearth.Device) -> None:
    """Each launch is ordered by all targets, so that their number is the time that a launch takes the daemon."""
    kernel, out = gpu.RawModule(code=SUM).get_function("sum"), gpu.full(1, 5, np.float32)
    parts = gpu.empty_many([(1, np.int8)] * 4096)
    rows = [gpu.pointers(parts[:4095]) for _ in range(15)]
    gpu.synchronize()
    for targets, text in (
        (parts, "reaches 4096 buffers, .* at most 4095"),
        ([rows[0]], "reaches 4096 buffers"),
        (parts[:4000] + parts[:4000], None),
        (parts[:96], "the session reaches 65521; the maximum is 65520"),
    ):
        made = gpu.pointers(targets)
        if text is None:
            rows.append(made)
            gpu.synchronize()
            continue
        kernel(1, 1, (made, 1, out))
        with pytest.raises(hearth.QuotaExceededError, match=text) as refusal:
            gpu.synchronize()
        assert "by offsets" in refusal.value.fix
        assert out.item() == 5, "the launch was skipped"
    rows.clear()
    del made
    gpu.pointers(parts[:4095])
    gpu.synchronize()


def test_asyncio(daemon: DaemonProcess) -> None:
    async def main() -> None:
        async with connect(daemon) as node:
            gpu = node.device(0)
            x, out = gpu.asarray(np.arange(4, dtype=np.float32)), gpu.zeros(4, np.float32)
            rows = gpu.pointers([x, None, (x, 0)])
            gpu.RawModule(code=SUM).get_function("sum")(1, 4, (rows, 3, out))
            assert (await out.get()).tolist() == [0, 2, 4, 6]

    run_loop(main, LOOPS[0])
