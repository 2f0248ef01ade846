"""Published buffers: one copy for many sessions, read-only, for as long as any session has it."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hearth
from hearth_proto.reasons import Reason
from hearth_proto.v1 import commands_pb2 as c
from hearth_proto.v1 import device_pb2
from tests.support.daemon.harness import DaemonProcess, StartDaemon, environment, on_cpu, processor_seconds, wait_until
from tests.support.daemon.kernels import COMMON, common
from tests.support.daemon.raw import TIMEOUT, Raw, refused
from tests.support.daemon.tenants import tenants

WEIGHTS = np.arange(5000, dtype=np.float32).reshape(100, 50)
FIRST = WEIGHTS.reshape(-1)[:1000]


@pytest.fixture(params=["shared", "dedicated"])
def other(request: pytest.FixtureRequest, daemon: DaemonProcess) -> Iterator[hearth.Device]:
    """The same device in another session, which has the same or a separate process."""
    with daemon.connect(isolation=request.param) as node:
        yield node.device(0)


def published(gpu: hearth.Device, name: str = "weights", host: np.ndarray[Any, Any] = WEIGHTS) -> hearth.DeviceArray:
    array = gpu.asarray(host)
    array.publish(name)
    return array


def same(array: hearth.DeviceArray, host: np.ndarray[Any, Any] = WEIGHTS) -> None:
    np.testing.assert_array_equal(array.get(), host)


def reason_of(call: Callable[..., Any], *arguments: Any, **keywords: Any) -> str:
    with pytest.raises(hearth.HearthError) as refusal:
        call(*arguments, **keywords)
    assert refusal.value.fix, refusal.value
    return refusal.value.reason


def failure_of(gpu: hearth.Device, call: Callable[[], object]) -> str:
    """Returns the reason of the failure of a one-way command."""

    def all_of_it() -> None:
        call()
        gpu.synchronize()

    return reason_of(all_of_it)


# ---- names ----


def test_published_and_attached(gpu: hearth.Device, other: hearth.Device) -> None:
    x = published(gpu)
    w = other.attach("weights")
    assert (w.shape, w.dtype) == (x.shape, x.dtype)
    same(w)
    same(x)  # the publisher can still use it
    (listed,) = other.published()
    assert listed == hearth.PublishedArray("weights", "default", x.nbytes, x.shape, x.dtype, 1)
    gpu.unpublish("weights")
    assert other.published() == []
    same(w)


def test_names(gpu: hearth.Device, other: hearth.Device) -> None:
    x = published(gpu)
    assert reason_of(gpu.publish, "weights", gpu.zeros(4)) == "NAME_IN_USE"
    assert reason_of(other.publish, "weights", other.zeros(4)) == "NAME_IN_USE"
    assert reason_of(gpu.publish, "", x) == "INVALID_ARGUMENT"
    assert reason_of(gpu.publish, "a\nb", gpu.zeros(4)) == "INVALID_ARGUMENT"
    assert reason_of(other.attach, "nothing") == "NOT_PUBLISHED"
    assert reason_of(other.unpublish, "nothing") == "NOT_PUBLISHED"
    assert reason_of(gpu.publish, "again", x) == "INVALID_ARGUMENT"  # a buffer has only one name
    other.unpublish("weights")  # by another session of the same tenant
    assert reason_of(other.attach, "weights") == "NOT_PUBLISHED"
    x.publish("Gewichte, zweite Fassung")
    same(other.attach("Gewichte, zweite Fassung"))


def test_next_version_under_the_same_name(gpu: hearth.Device, other: hearth.Device) -> None:
    first = published(gpu)
    old = other.attach("weights")
    gpu.unpublish("weights")
    second = published(gpu, host=WEIGHTS + 1)
    new = other.attach("weights")
    same(old)
    same(new, WEIGHTS + 1)
    del first, second


def test_other_devices_names_are_others(daemon: DaemonProcess, pair: list[hearth.Device]) -> None:
    here = published(pair[0])
    there = published(pair[1], host=WEIGHTS * 2)
    with daemon.connect() as node:
        same(node.device(0).attach("weights"))
        same(node.device(1).attach("weights"), WEIGHTS * 2)
    del here, there


@pytest.mark.parametrize("dtype", ["f2", "i1", "u8", "c16", "?", "S7", "M8[ms]"])
def test_dtypes(gpu: hearth.Device, node: hearth.Node, dtype: str) -> None:
    host = np.zeros((2, 0, 3) if dtype == "u8" else 5, dtype)
    x = published(gpu, host=host)
    w = gpu.attach("weights")
    assert (w.shape, w.dtype) == (host.shape, host.dtype)
    np.testing.assert_array_equal(w.get(), host)
    del x


def test_structs_are_published_as_bytes(gpu: hearth.Device, other: hearth.Device) -> None:
    host = np.array([(1, 2.5), (3, 4.5)], [("a", "i4"), ("b", "f8")])
    x = gpu.asarray(host)
    assert reason_of(x.publish, "structs") == "UNSUPPORTED"
    x.view(np.uint8).publish("structs")
    w = other.attach("structs", shape=2, dtype=host.dtype)
    np.testing.assert_array_equal(w.get(), host)
    assert reason_of(other.attach, "structs", shape=3, dtype=host.dtype) == "INVALID_ARGUMENT"


def test_only_whole_buffers(gpu: hearth.Device, other: hearth.Device) -> None:
    x = gpu.asarray(WEIGHTS)
    for part in (x[1:], x[:, :10], x[:50], gpu.empty_pitched((3, 5), np.float32)):
        assert reason_of(part.publish, "part") == "INVALID_ARGUMENT"
    x.reshape(-1).publish("all")  # a view of the whole array
    same(other.attach("all"), WEIGHTS.reshape(-1))
    same(other.attach("all", shape=WEIGHTS.shape, dtype="f4"))


def test_arrays_that_are_none(gpu: hearth.Device, other: hearth.Device) -> None:
    assert reason_of(gpu.publish, "x", WEIGHTS) == "INVALID_ARGUMENT"
    assert reason_of(gpu.publish, "x", other.zeros(3)) == "UNSUPPORTED"
    freed = gpu.zeros(3)
    freed.free()
    assert reason_of(gpu.publish, "x", freed) == "INVALID_HANDLE"


def test_zero_bytes(gpu: hearth.Device, other: hearth.Device) -> None:
    x = published(gpu, host=np.zeros((0, 3), np.int16))
    w = other.attach("weights")
    assert w.shape == (0, 3)
    assert w.get().size == 0
    del x


# ---- descriptions are untrusted data ----


def publish_raw(raw: Raw, name: str, size: int, description: bytes) -> None:
    request = device_pb2.PublishRequest(
        target=raw.target(), buffer=raw.buffer(bytes(range(size))), name=name, description=description
    )
    raw.device.Publish(request, timeout=TIMEOUT)


@pytest.mark.parametrize(
    "description",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"null",
        b"{}",
        b"[" * 4000,
        b'{"shape": [4], "dtype": "O"}',
        b'{"shape": [4], "dtype": "(2,3)f4"}',
        b'{"shape": [4], "dtype": ["f4"]}',
        b'{"shape": [-4], "dtype": "u1"}',
        b'{"shape": [4.0], "dtype": "u1"}',
        b'{"shape": [true], "dtype": "u1"}',
        b'{"shape": [9223372036854775807, 4], "dtype": "u1"}',
        b'{"shape": ' + str([1] * 65).encode() + b', "dtype": "u1"}',
        b'{"shape": "4", "dtype": "u1"}',
        b'{"shape": [4], "dtype": "S99999999999999999999"}',
    ],
)
def test_descriptions_that_describe_nothing(raw: Raw, gpu: hearth.Device, description: bytes) -> None:
    publish_raw(raw, "odd", 16, description)
    (listed,) = gpu.published()
    assert (listed.shape, listed.dtype, listed.nbytes) == (None, None, 16)
    assert reason_of(gpu.attach, "odd") == "INVALID_ARGUMENT"
    seen = gpu.attach("odd", dtype=np.uint8)
    same(seen, np.arange(16, dtype=np.uint8))
    assert gpu.published()[0].attached == 1  # the buffer whose description was invalid is not attached any more


def test_description_that_does_not_fit(raw: Raw, gpu: hearth.Device) -> None:
    publish_raw(raw, "odd", 16, b'{"shape": [5], "dtype": "<f4"}')
    assert reason_of(gpu.attach, "odd") == "INVALID_ARGUMENT"
    assert gpu.attach("odd", shape=(2, 2)).shape == (2, 2)
    assert (gpu.published()[0].shape, gpu.published()[0].dtype) == (None, None)


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
def test_one_way_writes_are_refused_and_spoil_nothing(gpu: hearth.Device, other: hearth.Device, whose: str) -> None:
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


def test_uploads_to_it_are_refused(gpu: hearth.Device, other: hearth.Device) -> None:
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


def test_unpublished_buffer_is_the_publishers_own_at_once(gpu: hearth.Device) -> None:
    x = published(gpu)
    gpu.unpublish("weights")
    x.fill(3)
    same(x, np.full_like(WEIGHTS, 3))


# ---- kernels ----


def reading(array: Any, out: hearth.DeviceArray) -> tuple[Any, ...]:
    """Returns the arguments of a saxpy that copies the first elements of the array to `out`, which holds zeros."""
    return np.float32(1), array, out, np.int32(out.size)


def test_kernels_read_it(gpu: hearth.Device, other: hearth.Device) -> None:
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
def test_launches_with_it_do_not_wait_for_each_other(gpu: hearth.Device, other: hearth.Device, whose: str) -> None:
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
        for _ in range(3):  # repeated: a launch takes the queued path, the inline path or the replay cache
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


def test_what_a_graph_may_write_is_not_published(gpu: hearth.Device) -> None:
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


# ---- order ----


def test_publishing_waits_for_the_work_before(other: hearth.Device, raw: Raw) -> None:
    spin = raw.function(COMMON, "spin")
    one = c.Dim3(x=1, y=1, z=1)
    for number in range(5):
        buffer = raw.buffer(bytes(4))
        raw.call("Launch", c.Launch(function=spin, grid=one, block=one, arguments=[c.Argument(int64=20_000_000)]))
        raw.call("Fill", c.Fill(buffer=buffer, size=4, pattern=b"\5\0\0\0"))
        request = device_pb2.PublishRequest(target=raw.target(), buffer=buffer, name=f"n{number}")
        raw.device.Publish(request, timeout=TIMEOUT)
        assert other.attach(f"n{number}", dtype=np.int32).get()[0] == 5


def test_failed_contents_are_not_published(raw: Raw) -> None:
    with raw.execute() as stream:
        buffer = raw.mint()
        stream.batch(
            c.Command(allocate=c.Allocate(buffer=buffer, size=16)),
            # fails, so that the contents are invalid
            c.Command(copy=c.Copy(destination=buffer, source=buffer, size=99)),
        )
        stream.ask(c.Command(memory_usage=c.MemoryUsage()))  # both commands have been executed by now
        request = device_pb2.PublishRequest(target=raw.target(), buffer=buffer, name="weights")
        assert refused(raw.device.Publish, request, timeout=TIMEOUT).reason is Reason.DEPENDENCY_FAILED
        again = c.Command(fill=c.Fill(buffer=buffer, size=16, pattern=b"\1"))
        assert not stream.ask(again).HasField("error")  # the buffer is writable as before, and the name is free
        raw.device.Publish(request, timeout=TIMEOUT)


def test_handles(raw: Raw, gpu: hearth.Device) -> None:
    x = published(gpu)
    taken = raw.buffer(b"1234")
    for handle, expected in ((taken, Reason.HANDLE_IN_USE), (0, Reason.INVALID_ARGUMENT)):
        request = device_pb2.AttachBufferRequest(target=raw.target(), buffer=handle, name="weights")
        assert refused(raw.device.AttachBuffer, request, timeout=TIMEOUT).reason is expected
    request = device_pb2.PublishRequest(target=raw.target(), buffer=999, name="other")
    assert refused(raw.device.Publish, request, timeout=TIMEOUT).reason is Reason.INVALID_HANDLE
    assert [one.name for one in gpu.published()] == ["weights"]
    assert gpu.published()[0].attached == 0
    del x


# ---- lifetimes ----

EVENTS = ("publisher frees", "unpublish", "attacher frees", "publisher closes", "attacher closes")


@pytest.mark.parametrize("isolation", ["shared", "dedicated"])
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=lambda order: "".join(map(str, order)))
def test_lives_until_the_last_has_let_go(daemon: DaemonProcess, isolation: Any, order: Sequence[int]) -> None:
    host = np.arange(1 << 16, dtype=np.uint8)
    base = in_use(daemon)
    with daemon.connect() as node, daemon.connect(isolation=isolation) as second:
        gpu, other = node.device(0), second.device(0)
        x = published(gpu, host=host)
        w = other.attach("weights")
        wait_until(lambda: in_use(daemon) == base + host.nbytes, "one copy")
        done = set()
        for number in order:
            event = EVENTS[number]
            done.add(event)
            if event == "publisher frees":
                x.free()
                gpu.synchronize()
            elif event == "unpublish":
                gpu.unpublish("weights")
            else:
                w.free()
                other.synchronize()
            if "attacher frees" not in done:
                same(w, host)
            if "publisher frees" not in done:
                same(x, host)
            if len(done) < 3:
                assert in_use(daemon) == base + host.nbytes, done
        wait_until(lambda: in_use(daemon) == base, "the memory's return")
        assert gpu.memory_usage().bytes_in_use == other.memory_usage().bytes_in_use == 0


def in_use(daemon: DaemonProcess) -> int:
    """Returns the bytes in use by all sessions in all processes of device 0."""
    total = 0
    for line in daemon.get("/metrics").body.splitlines():
        if line.startswith("hearth_memory_in_use_bytes") and 'device="0"' in line:
            total += int(float(line.rpartition(" ")[2]))
    return total


@pytest.mark.parametrize("isolation", ["shared", "dedicated"])
def test_publishers_session_closes(daemon: DaemonProcess, isolation: Any) -> None:
    base = in_use(daemon)
    with daemon.connect(isolation=isolation) as second:
        other = second.device(0)
        with daemon.connect() as node:
            published(node.device(0))
            w = other.attach("weights")
        same(w)
        wait_until(lambda: other.published() == [], "the end of the name")
        assert reason_of(other.attach, "weights") == "NOT_PUBLISHED"
        # The memory is charged to the session that has it now.
        wait_until(lambda: other.memory_usage().bytes_in_use == WEIGHTS.nbytes, "the memory's new owner")
        wait_until(lambda: in_use(daemon) == base + WEIGHTS.nbytes, "one copy")
        same(w)
        w.free()
        wait_until(lambda: other.memory_usage().bytes_in_use == 0, "the memory's return")
    wait_until(lambda: in_use(daemon) == base, "the memory's return")


def test_attachers_session_closes(gpu: hearth.Device, daemon: DaemonProcess) -> None:
    x = published(gpu)
    for isolation in ("shared", "dedicated"):
        with daemon.connect(isolation=isolation) as node:
            same(w := node.device(0).attach("weights"))
            assert gpu.published()[0].attached == 1
            del w
        wait_until(lambda: gpu.published()[0].attached == 0, "the end of the attachment")
    gpu.unpublish("weights")
    x.fill(1)
    gpu.synchronize()
    assert gpu.memory_usage().allocations == 1


def test_many_processes_hand_it_on(start_daemon: StartDaemon) -> None:
    """The memory outlives one process after another, and is charged to one that has it."""
    daemon = start_daemon()
    base = in_use(daemon)
    with contextlib.ExitStack() as stack:
        nodes = [stack.enter_context(daemon.connect(isolation="dedicated")) for _ in range(3)]
        devices = [node.device(0) for node in nodes]
        published(devices[0])
        arrays = [device.attach("weights") for device in devices[1:]]
        nodes[0].close()
        for array in arrays:
            same(array)
        wait_until(lambda: in_use(daemon) == base + WEIGHTS.nbytes, "one copy")
        nodes[1].close()
        same(arrays[1])
        wait_until(lambda: devices[2].memory_usage().bytes_in_use == WEIGHTS.nbytes, "the last one bearing it")
        assert in_use(daemon) == base + WEIGHTS.nbytes


def test_publishers_process_is_killed(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    with daemon.connect() as node, daemon.connect(isolation="dedicated") as second:
        gpu, other = node.device(0), second.device(0)
        x = published(gpu)
        near, far = gpu.attach("weights"), other.attach("weights")
        os.kill(daemon.device_pid(), signal.SIGKILL)
        for _ in range(50):
            same(far)
        with contextlib.suppress(hearth.DeviceLostError):  # raised if work was pending
            gpu.synchronize()
        assert reason_of(x.get) == reason_of(near.get) == "BUFFER_LOST"
        assert other.published() == []
        assert reason_of(gpu.attach, "weights") == "NOT_PUBLISHED"
        wait_until(lambda: other.memory_usage().bytes_in_use == WEIGHTS.nbytes, "the memory's new owner")
        same(far)
        again = published(gpu)
        same(other.attach("weights"))
        del again


CLIENT = """
import sys, time, numpy as np, hearth
node = hearth.connect(sys.argv[1])
gpu = node.device(0)
if sys.argv[2] == "publish":
    x = gpu.asarray(np.arange(1000, dtype=np.int64))
    x.publish("weights")
else:
    x = gpu.attach("weights")
print("ready", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("what", ["publish", "attach"])
def test_client_is_killed(brief: DaemonProcess, what: str, tmp_path: Path) -> None:
    program = tmp_path / "client.py"
    program.write_text(CLIENT)
    with brief.connect() as node:
        gpu = node.device(0)
        mine = published(gpu, host=np.arange(1000)) if what == "attach" else None
        arguments = [sys.executable, str(program), brief.unix, what]
        with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env=environment()) as client:
            assert client.stdout is not None
            assert client.stdout.readline() == "ready\n"
            w = gpu.attach("weights")
            client.kill()
        expected = [] if mine is None else [1]
        wait_until(lambda: [one.attached for one in gpu.published()] == expected, "its lease's end")
        same(w, np.arange(1000))
        w.free()
        wait_until(lambda: gpu.memory_usage().bytes_in_use == (0 if mine is None else 8000), "the memory's return")


# ---- limits ----


def test_memory_counts_once(gpu: hearth.Device, daemon: DaemonProcess) -> None:
    host = np.zeros(1 << 20, np.uint8)
    base = in_use(daemon)
    x = published(gpu, host=host)
    with daemon.connect() as near, daemon.connect(isolation="dedicated") as far:
        devices = [near.device(0), near.device(0), far.device(0), far.device(0)]
        arrays = [device.attach("weights") for device in devices]
        wait_until(lambda: gpu.memory_usage().bytes_reserved >= host.nbytes, "the publisher's count")
        for device in devices:
            usage = device.memory_usage()
            assert (usage.allocations, usage.bytes_in_use) == (0, 0)
        usage = gpu.memory_usage()
        assert (usage.allocations, usage.bytes_in_use) == (1, host.nbytes)
        wait_until(lambda: in_use(daemon) == base + host.nbytes, "one copy")
        assert len(gpu.published()) == 1
        assert gpu.published()[0].attached == 2
        del arrays, x


@on_cpu
def test_no_room_for_a_copy_that_others_can_map(start_daemon: StartDaemon) -> None:
    """The attaching session gets the error; the publishing session is unaffected."""
    daemon = start_daemon(devices={"memory_limit": "96MiB"})
    host = np.arange(60 << 20, dtype=np.uint8)
    with daemon.connect() as node, daemon.connect(isolation="dedicated") as second:
        gpu, other = node.device(0), second.device(0)
        x = published(gpu, "big", host)
        assert reason_of(other.attach, "big") == "OUT_OF_MEMORY"
        assert gpu.published()[0].attached == 0
        same(gpu.attach("big"), host)  # in its own process it needs no memory
        small = published(gpu, "small")
        same(other.attach("small"))
        same(x, host)
        x.free()
        gpu.unpublish("big")
        y = published(gpu, "big", host[: 40 << 20])
        same(other.attach("big"), host[: 40 << 20])
        assert gpu.memory_usage().bytes_in_use == y.nbytes + small.nbytes


def test_big_buffer_attaches_in_milliseconds(daemon: DaemonProcess, gpu: hearth.Device, other: hearth.Device) -> None:
    """The limit is on the processor time of front and device process, for sixteen times that number of bytes in
    total."""
    host = np.arange(64 << 20, dtype=np.uint8)
    x = published(gpu, host=host)
    other.attach("weights").free()  # for another process, so that the memory is moved once now
    other.synchronize()
    pids = (daemon.process.pid, daemon.device_pid())
    used = sum(map(processor_seconds, pids))
    for _ in range(16):
        other.attach("weights").free()
    other.synchronize()
    assert sum(map(processor_seconds, pids)) - used < 16 * 0.03
    same(other.attach("weights"), host)
    del x


def test_a_hundred_attachments(gpu: hearth.Device, other: hearth.Device) -> None:
    x = published(gpu)
    arrays = [other.attach("weights") for _ in range(100)]
    for array in arrays[::10]:
        same(array)
    assert gpu.published()[0].attached == 1  # it counts sessions
    del array, arrays
    other.synchronize()
    wait_until(lambda: gpu.published()[0].attached == 0, "the end of all")
    same(x)


def test_unpublishing_and_attaching_at_once(daemon: DaemonProcess, other: hearth.Device) -> None:
    """An attach either returns the whole array or fails with a clear error."""
    stop = threading.Event()
    wrong: list[BaseException] = []
    got = 0

    def attach() -> None:
        nonlocal got
        while not stop.is_set():
            try:
                array = other.attach("weights")
                version = array.get()
                assert (version == version[0]).all()
                array.free()
                got += 1
            except hearth.InvalidHandleError as refusal:
                if refusal.reason != "NOT_PUBLISHED":
                    wrong.append(refusal)
            except BaseException as error:
                wrong.append(error)
                return

    with daemon.connect() as node:
        gpu = node.device(0)
        thread = threading.Thread(target=attach)
        thread.start()
        try:
            for version in range(40):
                array = gpu.full(1000, version, np.int32)
                array.publish("weights")
                gpu.unpublish("weights")
                array.free()
        finally:
            array = gpu.full(1000, 99, np.int32)
            array.publish("weights")
            wait_until(lambda: got or wrong, "one that was attached")
            stop.set()
            thread.join()
        assert not wrong
        gpu.unpublish("weights")
        array.free()
        other.synchronize()
        wait_until(lambda: gpu.memory_usage().bytes_in_use == 0, "the memory's return")


# ---- tenants ----


@pytest.mark.parametrize("isolation", ["tenant", "shared"])
def test_other_tenants_attach_what_they_are_granted(start_daemon: StartDaemon, isolation: str) -> None:
    config, tokens = tenants("alice", "bob", "carol", devices={"isolation": isolation})
    daemon = start_daemon(**config)
    with contextlib.ExitStack() as stack:
        alice, bob, carol = (
            stack.enter_context(daemon.connect(token=tokens[name])).device(0) for name in ("alice", "bob", "carol")
        )
        private, granted, public = (alice.full(100, number, np.int32) for number in range(3))
        private.publish("private")
        granted.publish("granted", tenants=["bob"])
        public.publish("public", tenants="*")
        same(bob.attach("granted", tenant="alice"), np.full(100, 1, np.int32))
        same(bob.attach("public", tenant="alice"), np.full(100, 2, np.int32))
        same(carol.attach("public", tenant="alice"), np.full(100, 2, np.int32))
        for device, name in ((bob, "private"), (carol, "private"), (carol, "granted")):
            with pytest.raises(hearth.InvalidHandleError) as there:
                device.attach(name, tenant="alice")
            with pytest.raises(hearth.InvalidHandleError) as absent:
                device.attach("absent", tenant="alice")
            assert there.value.message.replace(name, "absent") == absent.value.message
        # bob's own tenant has published no buffer of that name
        assert reason_of(bob.attach, "public") == "NOT_PUBLISHED"
        assert reason_of(bob.unpublish, "granted") == "NOT_PUBLISHED"
        assert [(one.tenant, one.name) for one in bob.published()] == [("alice", "granted"), ("alice", "public")]
        assert [one.name for one in carol.published()] == ["public"]
        bob.zeros(3).publish("public")  # each tenant has its own names
        assert [one.tenant for one in bob.published()] == ["bob", "alice", "alice"]
        assert alice.memory_usage().bytes_in_use == 1200
        assert bob.memory_usage().bytes_in_use == 24
