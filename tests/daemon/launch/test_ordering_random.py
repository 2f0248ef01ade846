"""Random programs over random streams of several sessions, compared with NumPy executed in the order of submission.

The daemon has few CUDA streams, so that logical streams share them, within a session and between sessions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hearth
from hearth_proto.v1 import commands_pb2 as c
from tests.support.daemon.harness import DaemonProcess, StartDaemon
from tests.support.daemon.kernels import COMMON, GATE, common, gated
from tests.support.daemon.raw import Raw

N = 48
"""Number of elements of a buffer."""
BUFFERS = 4
STREAMS = 5
SESSIONS = 2
MAX_STREAMS = 3
"""Number of CUDA streams of the device: fewer than the streams of each session."""

KINDS = ["write", "fill", "copy", "mix", "mix", "mix", "mix_all", "read", "renew", "event", "spin", "spin"]


@pytest.fixture(scope="module")
def folded(cache: Path) -> Iterator[DaemonProcess]:
    """A daemon whose device has few CUDA streams. Tests must leave its state unchanged."""
    process = DaemonProcess(cache, {"devices": {"max_streams": MAX_STREAMS}}, 1)
    yield process
    code, log = process.stop(), process.log()
    left = process.left_behind()
    process.remove()
    assert code == 0, log[-4000:]
    assert not left


@dataclass(frozen=True)
class Step:
    """A command: its session, kind, stream, buffers, range and value."""

    session: int
    kind: str
    stream: int
    a: int
    b: int
    start: int
    stop: int
    value: int


@st.composite
def steps(draw: st.DrawFn) -> Step:
    start = draw(st.integers(0, N - 1))
    return Step(
        draw(st.integers(0, SESSIONS - 1)),
        draw(st.sampled_from(KINDS)),
        draw(st.integers(0, STREAMS - 1)),
        draw(st.integers(0, BUFFERS - 1)),
        draw(st.integers(0, BUFFERS - 1)),
        start,
        draw(st.integers(start + 1, N)),
        draw(st.integers(0, 2**32 - 1)),
    )


class Machine:
    """A session that runs steps on the device and on NumPy arrays. Values that are read must be equal."""

    def __init__(self, gpu: hearth.Device) -> None:
        self.gpu = gpu
        self.mix, self.spin = common(gpu, "mix"), common(gpu, "spin")
        self.streams = [gpu.default_stream, *(gpu.stream() for _ in range(STREAMS - 1))]

    def reset(self) -> None:
        self.device = [self.gpu.full(N, index, np.uint32) for index in range(BUFFERS)]
        self.host = [np.full(N, index, np.uint32) for index in range(BUFFERS)]

    def run(self, step: Step) -> None:
        stream, part, size = self.streams[step.stream], slice(step.start, step.stop), step.stop - step.start
        x, y = self.device[step.a], self.device[step.b]
        hx, hy = self.host[step.a], self.host[step.b]
        value = np.uint32(step.value)
        if step.kind == "write":
            data = (np.arange(size, dtype=np.uint64) * 7 + step.value).astype(np.uint32)
            x[part].set(data, stream=stream)
            hx[part] = data
        elif step.kind == "fill":
            x[part].fill(value, stream=stream)
            hx[part] = value
        elif step.kind == "copy" and step.a != step.b:
            x[part].copy_from(y[part], stream=stream)
            hx[part] = hy[part]
        elif step.kind == "mix" and step.a != step.b:
            self.mix((1,), (N,), (hearth.read_only(y[part]), x[part], np.int32(size)), stream=stream)
            hx[part] = 3 * hx[part] + hy[part]
        elif step.kind == "mix_all" and step.a != step.b:  # both arguments count as written
            self.mix((2,), (N // 2,), (y, x, np.int32(N)), stream=stream)
            hx[:] = 3 * hx + hy
        elif step.kind == "read":
            np.testing.assert_array_equal(x[part].get(stream=stream), hx[part])
        # freed while it may be in use; the next one is allocated and filled on other streams
        elif step.kind == "renew":
            x.free()
            self.device[step.a] = fresh = self.gpu.empty(N, np.uint32, stream)
            fresh.fill(value, stream=self.streams[step.value % STREAMS])
            self.host[step.a] = np.full(N, value)
        elif step.kind == "spin":  # makes the streams drift apart
            self.spin((1,), (1,), (np.int64(step.value % 300_000),), stream=stream)
        elif step.kind == "event":
            self.streams[step.value % STREAMS].wait_event(stream.record())

    def check(self) -> None:
        for x, hx in zip(self.device, self.host, strict=True):
            np.testing.assert_array_equal(x.get(), hx)


@pytest.fixture(scope="module")
def machines(folded: DaemonProcess) -> Iterator[list[Machine]]:
    nodes = [folded.connect() for _ in range(SESSIONS)]
    yield [Machine(node.device(0)) for node in nodes]
    for node in nodes:
        node.close()
    assert folded.gauge("memory_in_use_bytes") == 0
    assert 1 < folded.gauge("streams") <= MAX_STREAMS


@settings(
    max_examples=120,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(program=st.lists(steps(), min_size=10, max_size=80))
def test_random_programs_of_several_sessions_on_folded_streams(machines: list[Machine], program: list[Step]) -> None:
    for machine in machines:
        machine.reset()
    for step in program:
        machines[step.session].run(step)
    for machine in machines:
        machine.check()


def test_a_long_random_program_of_several_sessions(machines: list[Machine]) -> None:
    """More commands than a pooled CUDA stream accepts, with few waits."""
    for machine in machines:
        machine.reset()
    rng = np.random.default_rng(31)
    quick = [kind for kind in KINDS if kind not in ("read", "spin")]
    for index in range(3000):
        start = int(rng.integers(N))
        kind = str(rng.choice(KINDS if index % 100 == 0 else quick))
        session, stream, a, b = (int(rng.integers(top)) for top in (SESSIONS, STREAMS, BUFFERS, BUFFERS))
        stop = int(rng.integers(start + 1, N + 1))
        machines[session].run(Step(session, kind, stream, a, b, start, stop, int(rng.integers(2**32))))
    for machine in machines:
        machine.check()


# ---- state that folded streams share, and state that they do not ----


def test_folded_streams_do_not_exchange_errors(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(devices={"max_streams": 1})
    with daemon.connect() as first, daemon.connect() as second:
        devices = [first.device(0), second.device(0)]
        streams = [gpu.stream() for gpu in devices for _ in range(2)]
        arrays = [gpu.zeros(4, np.int32) for gpu in devices for _ in range(2)]
        add_one = [common(gpu, "add_one") for gpu in devices for _ in range(2)]
        for kernel, x, stream in zip(add_one, arrays, streams, strict=True):
            kernel((1,), (4,), (x, np.int32(4)), stream=stream)
        add_one[0]((1,), (4,), (arrays[0],), stream=streams[0])  # one argument is missing
        for x, stream in zip(arrays[1:], streams[1:], strict=True):
            stream.synchronize()
            assert x.get(stream=stream).tolist() == [1] * 4
        second.device(0).synchronize()
        with pytest.raises(hearth.LaunchError) as caught:
            streams[0].synchronize()
        assert len(caught.value.failures) == 1
        assert arrays[0].get(stream=streams[0]).tolist() == [1] * 4
        assert daemon.gauge("streams") == 1


def test_one_session_after_another_gets_the_same_streams(start_daemon: StartDaemon) -> None:
    """CUDA streams are reused instead of new ones being created, and no state of their previous owner remains."""
    daemon = start_daemon(devices={"max_streams": 4})
    for turn in range(6):
        with daemon.connect() as node:
            gpu = node.device(0)
            streams = [gpu.stream() for _ in range(6)]
            x = gpu.zeros(8, np.int32)
            for stream in streams:
                common(gpu, "add_one")((1,), (8,), (x, np.int32(8)), stream=stream)
            if turn % 2:
                common(gpu, "add_one")((1,), (8,), (x,), stream=streams[turn])
                with pytest.raises(hearth.LaunchError):
                    gpu.synchronize()
            assert x.get().tolist() == [6] * 8
        assert daemon.gauge("streams") <= 4


# ---- memory in use ----


@pytest.mark.parametrize("where", ["on the stream that had it", "on another stream"])
@pytest.mark.parametrize("size", [512, 1 << 20])
def test_memory_freed_in_flight_is_reused_only_after_its_last_use(gpu: hearth.Device, where: str, size: int) -> None:
    """Three different streams are involved: the one that allocated the memory, the one that still reads it, and the one
    that gets it next."""
    home, reader, writer = (gpu.stream() for _ in range(3))
    with gated(gpu) as gate:
        x = gpu.full(size, 1, np.uint8, home)
        out = gpu.zeros(size, np.uint8, reader)
        y = gpu.full(size, 3, np.uint8, home)
        y.fill(4, stream=writer)  # `writer` is now ordered after the work of `home` so far
        home.synchronize()
        reader.synchronize()
        gate.hold(stream=reader)
        out.copy_from(x, stream=reader)
        x.free()
        allocate_on = home if where == "on the stream that had it" else writer
        fresh = [gpu.empty(size, np.uint8, allocate_on) for _ in range(4)]
        for index, array in enumerate(fresh):
            array.fill(10 + index, stream=writer)
        gate.open()
        assert (out.get(stream=reader) == 1).all(), "overwritten before it was read"
        for index, array in enumerate(fresh):
            assert (array.get(stream=writer) == 10 + index).all()
        assert (y.get() == 4).all()


def test_memory_stays_while_a_collective_needs_it(pair: list[hearth.Device]) -> None:
    size = 1 << 18
    sources = [device.full(size, device.ordinal + 1, np.int32) for device in pair]
    outs = [device.zeros(size, np.int32) for device in pair]
    for device in pair:
        device.synchronize()
    with gated(pair[0]) as gate:
        gate.hold()
        hearth.Group(pair).all_reduce(sources, outs=outs)
        for array in sources:
            array.free()
        fresh = [device.full(size, 99, np.int32, device.stream()) for device in pair for _ in range(4)]
        gate.open()
        for out in outs:
            assert (out.get() == 3).all()
        assert all((array.get() == 99).all() for array in fresh)


def test_temporaries_of_a_client_ahead_of_the_device_wait_for_memory(start_daemon: StartDaemon) -> None:
    """A pipeline that runs ahead of the device and frees before it allocates again is slowed down, but does not run out
    of memory."""
    daemon = start_daemon(devices={"memory_limit": "64MiB"})
    with daemon.connect() as node:
        gpu = node.device(0)
        total, add_one, spin = gpu.zeros(1, np.int32), common(gpu, "add_one"), common(gpu, "spin")
        for _ in range(1500):
            temporary = gpu.empty(1 << 20, np.uint8)
            spin((1,), (1,), (np.int64(400_000),))  # makes the device slower than the client
            add_one((1,), (1,), (temporary, np.int32(0)))
            add_one((1,), (1,), (total, np.int32(1)))
            temporary.free()
        assert total.item() == 1500
        gpu.synchronize()
        assert gpu.memory_usage().allocations == 1


def test_flood_on_a_blocked_stream_delays_no_other(raw: Raw) -> None:
    """Events, waits, fills, frees and allocations fill the device's queues as launches do, and the queues are
    bounded."""
    hold, (gate, mark) = raw.function(GATE, "hold"), (raw.mint(), raw.mint())
    module = hold - 1
    add_one, dim = raw.function(COMMON, "add_one"), c.Dim3(x=1)
    count, quick = raw.buffer(bytes(4)), raw.buffer(bytes(4))
    held, free = raw.mint(), raw.mint()
    raw.call("GetGlobal", c.GetGlobal(buffer=gate, module=module, name="gate"))

    def add_to(buffer: int) -> c.Launch:
        arguments = [c.Argument(pointer=c.Argument.Pointer(buffer=buffer)), c.Argument(int32=1)]
        return c.Launch(function=add_one, grid=dim, block=dim, arguments=arguments)

    def flood() -> Iterator[c.Command]:
        for index in range(600):
            buffer = (1 << 40) + index
            yield c.Command(stream=held, record_event=c.RecordEvent(event=mark + 1000))
            yield c.Command(stream=held, wait_event=c.WaitEvent(event=mark + 1000))
            yield c.Command(stream=held, allocate=c.Allocate(buffer=buffer, size=512))
            yield c.Command(stream=held, fill=c.Fill(buffer=buffer, size=512, pattern=b"x"))
            yield c.Command(stream=held, free=c.Free(buffers=[buffer]))
            yield c.Command(stream=held, launch=add_to(count))

    with raw.execute() as stream:
        start = c.Launch(function=hold, grid=dim, block=dim, arguments=[c.Argument(uint64=0)], timeout_ns=60 * 10**9)
        stream.batch(
            c.Command(create_stream=c.CreateStream(stream=held)),
            c.Command(create_stream=c.CreateStream(stream=free)),
            c.Command(stream=free, launch=add_to(quick)),
            c.Command(write=c.Write(buffer=gate, data=bytes(4))),
        )
        assert stream.failures(free) == stream.failures() == []
        stream.batch(
            c.Command(stream=held, launch=start), c.Command(stream=held, record_event=c.RecordEvent(event=mark))
        )
        try:
            stream.batch(*flood())
            for turn in range(20):
                stream.batch(c.Command(stream=free, launch=add_to(quick)))
                read = stream.ask(c.Command(stream=free, read=c.Read(buffer=quick, size=4)))
                assert int.from_bytes(read.read.data, "little") == turn + 2
            assert not stream.ask(c.Command(query_event=c.QueryEvent(event=mark))).event.done
        finally:
            stream.batch(c.Command(stream=free, write=c.Write(buffer=gate, data=b"\1\0\0\0")))
        assert stream.failures(held) == []
        read = stream.ask(c.Command(stream=held, read=c.Read(buffer=count, size=4)))
        assert int.from_bytes(read.read.data, "little") == 600
