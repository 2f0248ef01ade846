"""Published buffers are read-only: writes are refused, and kernels read them concurrently."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import hearth
from hearth_proto.reasons import Reason
from hearth_proto.v1 import commands_pb2 as c
from hearth_proto.v1 import device_pb2
from tests.support.daemon.harness import DaemonProcess, StartDaemon, on_cpu, wait_until
from tests.support.daemon.kernels import common
from tests.support.daemon.published import FIRST, WEIGHTS, failure_of, published, reason_of, same
from tests.support.daemon.raw import TIMEOUT, Raw, refused

# ---- published memory is read-only ----


def writes(raw: Raw, buffer: int) -> Iterator[tuple[str, Any]]:
    """Yields single calls that would write to a buffer of 64 bytes."""
    source = raw.buffer(bytes(64))
    yield "Write", c.Write(buffer=buffer, data=bytes(64))
    yield "Write", c.Write(buffer=buffer, offset=8, data=b"x")
    yield "Write", c.Write(buffer=buffer, data=b"")
    yield "Fill", c.Fill(buffer=buffer, size=64, pattern=b"\0")
    yield "Copy", c.Copy(destination=buffer, source=source, size=64)
    yield "Copy", c.Copy(destination=buffer, source=buffer, size=8, destination_offset=32)
    yield "Copy", c.Copy(destination=buffer, source=source, size=4, rows=2, destination_pitch=32, source_pitch=4)
    reduce = c.AllReduce(devices=[0], sequence=1, source=source, destination=buffer, count=16, dtype="float32", op=1)
    yield "AllReduce", reduce
    for kind in (c.COLLECTIVE_KIND_ALL_GATHER, c.COLLECTIVE_KIND_BROADCAST, c.COLLECTIVE_KIND_ALL_TO_ALL):
        part = c.CollectiveOperation(kind=kind, source=source, destination=buffer, count=16, dtype="float32")
        yield "Collective", c.Collective(devices=[0], sequence=1, operations=[part])


def attach_raw(raw: Raw, name: str, tenant: str = "") -> int:
    handle = raw.mint()
    request = device_pb2.AttachBufferRequest(target=raw.target(), buffer=handle, name=name, tenant=tenant)
    raw.device.AttachBuffer(request, timeout=TIMEOUT)
    return handle


@pytest.mark.parametrize("whose", ["publisher", "attacher"])
def test_single_calls_that_write_are_refused(daemon: DaemonProcess, whose: str) -> None:
    data = bytes(range(64))
    with Raw(daemon.unix) as publisher, Raw(daemon.unix) as attacher:
        theirs = publisher.buffer(data)
        publisher.device.Publish(
            device_pb2.PublishRequest(target=publisher.target(), buffer=theirs, name="weights"), timeout=TIMEOUT
        )
        ours = attach_raw(attacher, "weights")
        session, buffer = (publisher, theirs) if whose == "publisher" else (attacher, ours)
        for rpc, command in writes(session, buffer):
            refusal = refused(session.call, rpc, command)
            assert refusal.reason is Reason.READ_ONLY, (rpc, refusal)
            assert refusal.fix
            assert refusal.details["buffer"] == str(buffer)
        assert publisher.read(theirs, 64) == attacher.read(ours, 64) == data
        # It can still be the source of a copy.
        target = session.buffer(bytes(64))
        session.call("Copy", c.Copy(destination=target, source=buffer, size=64))
        assert session.read(target, 64) == data


@pytest.mark.parametrize("whose", ["publisher", "attacher"])
def test_one_way_writes_are_refused_without_damage(gpu: hearth.Device, other: hearth.Device, whose: str) -> None:
    x = published(gpu)
    w = other.attach("weights")
    mine, device = (x, gpu) if whose == "publisher" else (w, other)
    for write in (
        lambda: mine.fill(0),
        lambda: mine[3:7].fill(1),
        lambda: mine.set(np.zeros_like(WEIGHTS)),
        lambda: mine[:, 3].set(np.zeros(100, np.float32)),
        lambda: mine.copy_from(device.zeros(WEIGHTS.shape, np.float32)),
        lambda: hearth.Group([device]).all_reduce([device.zeros(WEIGHTS.shape, np.float32)], outs=[mine]),
    ):
        assert failure_of(device, write) == "READ_ONLY"
        same(mine)
    same(x)
    same(w)


def test_uploads_to_published_arrays_are_refused(gpu: hearth.Device, other: hearth.Device) -> None:
    """The uploads are sent on separate gRPC streams."""
    host = np.arange(3 << 20, dtype=np.uint8)
    x = published(gpu, host=host)
    w = other.attach("weights")
    assert failure_of(other, lambda: w.set(np.zeros_like(host))) == "READ_ONLY"
    assert failure_of(gpu, lambda: x.set(np.zeros_like(host))) == "READ_ONLY"
    same(w, host)
    same(x, host)


def test_graph_that_would_write_cannot_be_recorded(gpu: hearth.Device, other: hearth.Device) -> None:
    x = published(gpu)
    w = other.attach("weights")
    with pytest.raises(hearth.HearthError) as refusal, other.graph():
        w.fill(0)
    assert "is attached" in refusal.value.message
    same(w)
    del x


def test_attached_buffer_is_not_published_again(gpu: hearth.Device, other: hearth.Device) -> None:
    x = published(gpu)
    w = other.attach("weights")
    assert reason_of(w.publish, "mine") == "INVALID_ARGUMENT"
    w.copy().publish("mine")
    same(gpu.attach("mine"))
    del x


def test_array_is_writable_again_without_importers(gpu: hearth.Device, other: hearth.Device) -> None:
    x = published(gpu)
    w = other.attach("weights")
    gpu.unpublish("weights")
    assert failure_of(gpu, lambda: x.fill(1)) == "READ_ONLY"  # it is still attached
    same(w)
    w.free()
    other.synchronize()

    def write() -> bool:
        try:
            x.fill(7)
            gpu.synchronize()
        except hearth.ArgumentError as refusal:
            assert refusal.reason == "READ_ONLY"
            return False
        return True

    wait_until(write, "the news that it is attached nowhere")
    same(x, np.full_like(WEIGHTS, 7))
    x.publish("weights")  # at its new address
    same(other.attach("weights"), np.full_like(WEIGHTS, 7))


def test_unpublished_buffer_is_writable_immediately(gpu: hearth.Device) -> None:
    x = published(gpu)
    gpu.unpublish("weights")
    x.fill(3)
    same(x, np.full_like(WEIGHTS, 3))


# ---- kernels ----


def reading(array: Any, out: hearth.DeviceArray) -> tuple[Any, ...]:
    """Returns the arguments of a saxpy that copies the first elements of the array to `out`, which holds zeros."""
    return np.float32(1), array, out, np.int32(out.size)


def test_kernels_read_published_arrays(gpu: hearth.Device, other: hearth.Device) -> None:
    x = published(gpu)
    w = other.attach("weights")
    for array, device in ((x, gpu), (w, other)):
        saxpy = common(device, "saxpy")
        out = device.zeros(1000, np.float32)
        for argument in (array, hearth.read_only(array), array, array):
            out.fill(0)
            saxpy((4,), (256,), reading(argument, out))
            same(out, FIRST)
        with device.graph() as graph:
            saxpy((4,), (256,), reading(array, out))
        prepared = device.prepare([(saxpy, (4,), (256,), reading(array, out))])
        for again in (graph, prepared):
            out.fill(0)
            again.launch()
            same(out, FIRST)
        args = [np.float32(1), array, hearth.Out((1000,), np.float32), np.int32(1000)]
        (sent,) = device.dispatch(saxpy, (4,), (256,), args=args)
        np.testing.assert_array_equal(sent, FIRST)
        out.fill(0)
        saxpy((4,), (256,), reading(array, out), mode="validate")
        same(out, FIRST)


HOLD = r"""
__device__ volatile int gate;
extern "C" __global__ void hold(const float* x) { while (!gate) {} }
"""


@pytest.mark.parametrize("whose", ["publisher", "attacher"])
def test_launches_that_read_a_published_array_do_not_wait_for_each_other(
    gpu: hearth.Device, other: hearth.Device, whose: str
) -> None:
    """The array counts as read only, whether the client declares it or not."""
    x = published(gpu)
    array, device = (x, gpu) if whose == "publisher" else (other.attach("weights"), other)
    module = device.RawModule(code=HOLD)
    gate = module.get_global("gate", np.int32)
    saxpy = common(device, "saxpy")
    out = device.zeros(1000, np.float32)
    side, holding = device.stream(), device.stream()
    for _ in range(2):  # the first launch loads code, which waits for running kernels
        gate.set(np.ones(1, np.int32), stream=side)
        module.get_function("hold")((1,), (1,), (array,), stream=holding, timeout=60)
        saxpy((4,), (256,), reading(array, out), stream=side)
        device.synchronize()
    gate.set(np.zeros(1, np.int32), stream=side)
    out.fill(0, stream=side)
    side.synchronize()
    module.get_function("hold")((1,), (1,), (array,), stream=holding, timeout=60)
    try:
        for _ in range(3):  # repeated: a launch is an operation, direct, or in the replay cache
            saxpy((4,), (256,), reading(array, out), stream=side)
        side.synchronize(timeout=30)
    finally:
        gate.set(np.ones(1, np.int32), stream=side)
        device.synchronize()
    same(out, 3 * FIRST)


@on_cpu
def test_kernel_that_writes_takes_only_its_own_process(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    with daemon.connect() as node, daemon.connect(isolation="dedicated") as rogue:
        gpu, bad = node.device(0), rogue.device(0)
        x = published(gpu)
        w = bad.attach("weights")
        common(bad, "add_one")((1,), (32,), (w, np.int32(32)))
        with pytest.raises(hearth.DeviceLostError) as lost:
            bad.synchronize()
        assert "SIGSEGV" in lost.value.message
        assert reason_of(w.get) == "BUFFER_LOST"
        same(x)
        wait_until(lambda: gpu.published()[0].attached == 0, "the end of its attachment")
        same(bad.attach("weights"))  # in the session's new process


def test_graph_of_the_publisher_keeps_its_memory(gpu: hearth.Device, daemon: DaemonProcess) -> None:
    """The graph is captured while the array is published, and launched after the memory has been moved for another
    process."""
    x = published(gpu)
    saxpy = common(gpu, "saxpy")
    out = gpu.zeros(1000, np.float32)
    with gpu.graph() as graph:
        saxpy((4,), (256,), reading(x, out))
    with daemon.connect(isolation="dedicated") as node:
        same(node.device(0).attach("weights"))
        graph.launch()
        same(out, FIRST)
        same(x)


def test_arrays_written_by_a_graph_cannot_be_published(gpu: hearth.Device) -> None:
    x = gpu.zeros(100, np.int32)
    add = common(gpu, "add_one")
    with gpu.graph() as graph:
        add((1,), (100,), (x, np.int32(100)))
    assert reason_of(x.publish, "weights") == "INVALID_ARGUMENT"
    graph.launch()
    same(x, np.ones(100, np.int32))  # the array is unchanged
    variable = gpu.RawModule(code=HOLD).get_global("gate", np.int32)
    assert reason_of(variable.publish, "weights") == "INVALID_ARGUMENT"


def test_launches_before_and_after_the_memory_is_relocated(gpu: hearth.Device, daemon: DaemonProcess) -> None:
    """Repeats a launch, byte for byte, while the buffer's address changes."""
    x = published(gpu)
    saxpy = common(gpu, "saxpy")
    out = gpu.zeros(1000, np.float32)
    for _ in range(200):
        saxpy((4,), (256,), reading(x, out))
    with daemon.connect(isolation="dedicated") as node:
        w = node.device(0).attach("weights")
        for _ in range(200):
            saxpy((4,), (256,), reading(x, out))
        same(out, 400 * FIRST)
        same(w)
    assert gpu.memory_usage().allocations == 2
