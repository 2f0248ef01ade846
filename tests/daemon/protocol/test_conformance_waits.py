"""Waits and their targets: thousands of outstanding answers, other streams, other clients, events that are
destroyed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pytest

import hearth
from hearth_proto.reasons import Reason, from_status
from hearth_proto.v1 import commands_pb2 as c
from tests.support.daemon.harness import BACKEND, DaemonProcess, StartDaemon, on_cpu, processor_seconds, wait_until
from tests.support.daemon.kernels import COMMON, GATE, common, gated, saxpy_works
from tests.support.daemon.raw import Execute, Raw

HOLD_LIMIT_NS = 60 * 10**9


@dataclass
class RawGate:
    """A kernel on the stream `held` that runs until `open`; the session's other streams are not blocked."""

    stream: Execute
    held: int
    free: int
    _flag: int

    def open(self) -> None:
        self.stream.batch(c.Command(stream=self.free, write=c.Write(buffer=self._flag, data=b"\1\0\0\0")))


@pytest.fixture
def held(raw: Raw) -> Iterator[RawGate]:
    """Yields a gate that blocks a stream, and that is opened at the end."""
    function = raw.function(GATE, "hold")
    flag, held, free = raw.mint(), raw.mint(), raw.mint()
    raw.call("GetGlobal", c.GetGlobal(buffer=flag, module=function - 1, name="gate"))
    dim = c.Dim3(x=1)
    hold = c.Launch(function=function, grid=dim, block=dim, arguments=[c.Argument(uint64=0)], timeout_ns=HOLD_LIMIT_NS)
    with raw.execute() as stream:
        stream.batch(
            c.Command(create_stream=c.CreateStream(stream=held)),
            c.Command(create_stream=c.CreateStream(stream=free)),
            c.Command(stream=free, write=c.Write(buffer=flag, data=bytes(4))),
        )
        assert stream.failures(free) == stream.failures() == []
        stream.batch(c.Command(stream=held, launch=hold))
        gate = RawGate(stream, held, free, flag)
        try:
            yield gate
        finally:
            gate.open()
            assert stream.failures(held) == []


def answers(stream: Execute, count: int) -> Iterator[c.Result]:
    """Yields the next `count` results; other responses in between are skipped."""
    while count:
        response = stream.receive()
        if response.WhichOneof("kind") == "result":
            count -= 1
            yield response.result


# ---- many concurrent waits ----


def test_a_thousand_reads_outstanding_each_with_its_own_bytes(raw: Raw, held: RawGate) -> None:
    """Checks that there is no limit from an array of fixed size, and that no answer arrives before its own copy has
    completed, whichever other streams are waited for."""
    stream = held.stream
    buffers = [1 << 40 | index for index in range(1000)]
    commands = []
    for index, buffer in enumerate(buffers):
        commands += [
            c.Command(stream=held.held, allocate=c.Allocate(buffer=buffer, size=64)),
            c.Command(stream=held.held, fill=c.Fill(buffer=buffer, size=64, pattern=index.to_bytes(4, "little"))),
        ]
    stream.batch(*commands)
    stream.batch(
        *(
            c.Command(request=10_000 + index, stream=held.held, read=c.Read(buffer=buffer, size=64))
            for index, buffer in enumerate(buffers)
        )
    )
    for _ in range(3):  # a sync of one stream is answered independently of others
        stream.batch(c.Command(request=1, stream=held.free, sync=c.Sync()))
        (first,) = answers(stream, 1)
        assert first.request == 1 and not first.HasField("error")
    held.open()
    got = {result.request - 10_000: result.read.data for result in answers(stream, len(buffers))}
    assert got == {index: index.to_bytes(4, "little") * 16 for index in range(len(buffers))}
    stream.batch(c.Command(stream=held.held, free=c.Free(buffers=buffers)))


def test_a_hundred_threads_wait_for_their_own_streams(gpu: hearth.Device) -> None:
    """Half of the streams are blocked: exactly the threads of the other half return."""
    # A GPU has 32 hardware queues for all streams of a process; work that waits at the head of a queue blocks the work
    # after it.
    count = 40 if BACKEND == "cpu" else 12
    streams = [gpu.stream() for _ in range(count)]
    add_one, arrays = common(gpu, "add_one"), [gpu.zeros(1, np.int32, stream) for stream in streams]
    for array, stream in zip(arrays, streams, strict=True):
        add_one((1,), (1,), (array, np.int32(1)), stream=stream)
    gpu.synchronize()
    with gated(gpu) as gate, ThreadPoolExecutor(count) as pool:
        gate.hold(arrays[0], stream=streams[0])
        for stream in streams[2::2]:  # ordered after the blocked stream, because they use the same buffer
            add_one((1,), (1,), (arrays[0], np.int32(1)), stream=stream)
        waiting = [pool.submit(stream.synchronize) for stream in streams]
        for future in waiting[1::2]:
            future.result(30)
        assert not any(future.done() for future in waiting[0::2])
        gate.open()
        for future in waiting:
            future.result(30)
    assert arrays[0].item() == 1 + 1 + count // 2 - 1


# ---- other clients ----


def percentile(samples: list[float], share: float) -> float:
    """Returns a percentile in milliseconds."""
    return sorted(samples)[min(len(samples) - 1, int(share * len(samples)))] * 1e3


def copies(gpu: hearth.Device, stream: hearth.Stream, count: int) -> list[float]:
    """Returns the seconds of each of `count` round trips of 64 bytes to the device and back."""
    host, x = np.arange(64, dtype=np.uint8), gpu.zeros(64, np.uint8, stream)
    stream.synchronize()
    took = []
    for turn in range(count):
        began = time.perf_counter()
        x.set(host + turn % 100, stream=stream)
        back = x.get(stream=stream)
        took.append(time.perf_counter() - began)
        assert back[0] == turn % 100
    return took


def test_a_wait_for_a_long_kernel_delays_no_other_client(daemon: DaemonProcess) -> None:
    """The device-handle thread never waits for the kernel. Prints the duration of a copy during a wait, and without
    one."""
    with daemon.connect() as waiting, daemon.connect() as copying:
        gpu, other = waiting.device(0), copying.device(0)
        stream = other.stream()
        alone = copies(other, stream, 300)
        with gated(gpu) as gate, ThreadPoolExecutor(8) as pool:
            began = time.perf_counter()
            gate.hold()
            waits = [pool.submit(gpu.synchronize) for _ in range(4)]
            waits += [pool.submit(gpu.default_stream.synchronize) for _ in range(3)]
            beside: list[float] = []
            while len(beside) < 300 or time.perf_counter() - began < 0.25:
                beside += copies(other, stream, 50)
            assert not any(wait.done() for wait in waits)
            gate.open()
            for wait in waits:
                wait.result(30)
    print(
        f"64 bytes there and back: alone p50 {percentile(alone, 0.5):.2f} ms, p99 {percentile(alone, 0.99):.2f} ms; "
        f"beside 7 waits for a kernel p50 {percentile(beside, 0.5):.2f} ms, p99 {percentile(beside, 0.99):.2f} ms "
        f"({len(beside)} copies)"
    )


def test_a_compile_delays_no_other_client(daemon: DaemonProcess) -> None:
    with daemon.connect() as compiling, daemon.connect() as copying:
        gpu, other = compiling.device(0), copying.device(0)
        stream = other.stream()
        copies(other, stream, 20)
        loops = "".join(
            f"__global__ void g{n}(int* x) {{ for (int i = 0; i < x[0]; i++) x[i % 7] += x[i * {n} % 5]; }}\n"
            for n in range(25)  # a compile of about a second, which is under way when the copies begin
        )
        code = f'// {time.time_ns()}\n{loops}extern "C" __global__ void f(int* x) {{ *x += 1; }}'
        x = gpu.zeros(1, np.int32)
        kernel = gpu.RawKernel(code, "f")
        kernel((1,), (1,), (x,))
        with ThreadPoolExecutor(1) as pool:
            result = pool.submit(x.item)
            beside: list[float] = []
            while not result.done():
                beside += copies(other, stream, 1)
            assert result.result() == 1
    print(f"beside a compile: {len(beside)} copies, p99 {percentile(beside, 0.99):.2f} ms")
    # A copy that the compile delayed would return at the end of the compile. On a busy machine some are late for other
    # reasons.
    assert len(beside) > 3 and percentile(beside, 0.5) < 100


# ---- events that are destroyed during a wait for them ----


def test_event_may_be_destroyed_during_a_wait(raw: Raw, held: RawGate) -> None:
    """The event is destroyed, or recorded again on another stream: a caller that waited before gets the answer for the
    event as it was then."""
    stream = held.stream
    event, start = raw.mint(), raw.mint()
    stream.batch(
        c.Command(stream=held.free, record_event=c.RecordEvent(event=start)),
        c.Command(stream=held.held, record_event=c.RecordEvent(event=event)),
        c.Command(request=101, query_event=c.QueryEvent(event=event, wait=True)),
        c.Command(request=102, elapsed_time=c.ElapsedTime(start=start, end=event)),
        c.Command(stream=held.free, record_event=c.RecordEvent(event=event)),
        c.Command(request=103, query_event=c.QueryEvent(event=event, wait=True)),
    )
    (answer,) = answers(stream, 1)
    assert answer.request == 103 and answer.event.done, "the record on the free stream"
    stream.batch(
        c.Command(destroy_event=c.DestroyEvent(event=event)), c.Command(destroy_event=c.DestroyEvent(event=start))
    )
    # Events come from a pool: a later recording must not be mistaken for the destroyed event.
    stream.batch(*(c.Command(stream=held.free, record_event=c.RecordEvent(event=7000 + n)) for n in range(8)))
    assert not stream.ask(c.Command(stream=held.free, sync=c.Sync())).HasField("error")
    held.open()
    late = {result.request: result for result in answers(stream, 2)}
    assert late[101].event.done and not late[101].HasField("error")
    assert late[102].event.elapsed_ns >= 0 and not late[102].HasField("error")
    assert stream.failures() == []


def test_session_may_close_during_waits_for_its_events(daemon: DaemonProcess) -> None:
    pid = daemon.device_pid()
    dim = c.Dim3(x=1)
    for _ in range(2):
        with Raw(daemon.unix) as session:
            spin = session.function(COMMON, "spin")
            session.call("Sync", c.Sync())
            with session.execute() as stream:
                long = c.Launch(function=spin, grid=dim, block=dim, arguments=[c.Argument(int64=400_000_000)])
                stream.batch(
                    c.Command(record_event=c.RecordEvent(event=1)),
                    c.Command(launch=long),
                    c.Command(record_event=c.RecordEvent(event=2)),
                    c.Command(request=1, query_event=c.QueryEvent(event=2, wait=True)),
                    c.Command(request=2, elapsed_time=c.ElapsedTime(start=1, end=2)),
                    c.Command(request=3, sync=c.Sync()),
                    c.Command(request=4, flush=c.Flush()),
                )
                (answer,) = answers(stream, 1)
                assert answer.request == 4, "the kernel runs, and three wait for it"
    with daemon.connect() as node:
        saxpy_works(node.device(0))
    assert daemon.device_pid() == pid


# ---- idle processes, and their start ----


@on_cpu  # a GPU's process has threads of CUDA as well
def test_idle_daemon_uses_no_processor_time(lossy: DaemonProcess) -> None:
    with lossy.connect() as node:
        saxpy_works(node.device(0))
        pids = [lossy.process.pid, lossy.device_pid()]
        began, clock = [processor_seconds(pid) for pid in pids], time.perf_counter()
        time.sleep(1.0)  # the duration that is measured: a session is open, and no work arrives
        used = [processor_seconds(pid) - before for pid, before in zip(pids, began, strict=True)]
        elapsed = time.perf_counter() - clock
    print(f"idle: front {used[0] / elapsed:.1%}, device process {used[1] / elapsed:.1%} of a core")
    assert all(each < 0.1 * elapsed for each in used)


def test_device_starts_once_for_concurrent_first_sessions(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()

    def first_use(_: int) -> tuple[int, bool]:
        with daemon.connect() as node:
            gpu = node.device(0)
            saxpy_works(gpu)
            return daemon.device_pid(), gpu.generation == 1

    with ThreadPoolExecutor(8) as pool:
        seen = list(pool.map(first_use, range(8)))
    assert len({pid for pid, _ in seen}) == 1 and all(first for _, first in seen)


def test_all_resources_of_a_client_are_freed_with_it(start_daemon: StartDaemon) -> None:
    """Buffers, streams, events, modules and profiles are freed; memory returns when pending work has completed."""
    daemon = start_daemon()
    before = daemon.status()["devices"][0]["gauges"]
    for _ in range(3):
        node = daemon.connect()
        gpu = node.device(0)
        streams = [gpu.stream() for _ in range(10)]
        arrays = [gpu.full(1 << 16, 1, np.uint8, stream) for stream in streams]
        events = [stream.record() for stream in streams]
        for array, stream in zip(arrays, streams, strict=True):
            common(gpu, "add_one")((64,), (256,), (array, np.int32(1 << 14)), stream=stream)
        gpu.profile().__enter__()
        assert len(arrays) == len(events) == 10
        wait_until(lambda: daemon.gauge("buffers") == before["buffers"] + 10, "all buffers")
        node.close()
        after = daemon.status()["devices"][0]["gauges"]
        for name in ("sessions", "buffers", "modules", "profiles_open", "commands_waiting", "memory_in_use_bytes",
                     "staging_bytes"):  # fmt: skip
            assert after[name] == before[name], name
    assert daemon.gauge("streams") <= 11, "streams of the device are reused"


# ---- variables of modules ----


def test_global_is_freed_with_its_module(raw: Raw) -> None:
    """The variable's handle must not give access to memory that no longer exists, also for commands that wait when the
    module is unloaded."""
    for _ in range(3):
        module, variable, copied = raw.mint(), raw.mint(), raw.buffer(bytes(4))
        raw.call("LoadModule", c.LoadModule(module=module, kind=c.CODE_KIND_CUDA_CPP, code=GATE.encode()))
        raw.call("GetGlobal", c.GetGlobal(buffer=variable, module=module, name="gate"))
        with raw.execute() as stream:
            stream.batch(
                c.Command(write=c.Write(buffer=variable, data=b"\7\0\0\0")),
                c.Command(copy=c.Copy(destination=copied, source=variable, size=4)),
                c.Command(unload_module=c.UnloadModule(module=module)),
                c.Command(fill=c.Fill(buffer=variable, size=4, pattern=b"x")),
            )
            (failure,) = stream.failures()
            assert failure.command == "fill" and from_status(failure.status).reason == Reason.INVALID_HANDLE
            assert raw.read(copied, 4) == b"\7\0\0\0"
            late = stream.ask(c.Command(read=c.Read(buffer=variable, size=4)))
            assert from_status(late.error).reason == Reason.INVALID_HANDLE


def test_two_handles_of_one_variable_are_one_buffer(gpu: hearth.Device) -> None:
    module = gpu.RawModule(code=GATE + "__device__ int variable;")
    first, second = module.get_global("variable", np.int32), module.get_global("variable", np.int32)
    busy, side = gpu.stream(), gpu.stream()
    first.set(np.array([1], np.int32), stream=busy)
    busy.synchronize()
    with gated(gpu) as gate:
        gate.hold(stream=busy)
        first.set(np.array([2], np.int32), stream=busy)
        value, copied = gpu.zeros(1, np.int32, side), side.record()
        value.copy_from(second, stream=side)
        copied.synchronize()
        assert not side.done, "it waits for the write through the other handle"
        gate.open()
        assert value.get(stream=side).tolist() == [2]
