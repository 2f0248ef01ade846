"""A device that does not notify of completions, as with CUDA: it is polled, without a pause while that is
worthwhile."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from hearth_proto.frames import Frame, FrameReader, Kind, encode
from hearth_proto.launches import LayoutEntry, Record, pack, pack_layout
from hearth_proto.v1 import commands_pb2 as c
from hearthd.device import outbox as outbox_module
from hearthd.device.cpu.server import CpuServer
from hearthd.device.process.idle_policy import MAX_DEFERRED
from hearthd.device.scheduler import fair_share
from hearthd.device.streams import stream_pool
from hearthd.shared.device_spec import DeviceSpec
from tests.support.compiled import skip_if_compiled
from tests.support.device.local_broker import device_process
from tests.support.device.rig import Rig
from tests.support.timing import LATE

CODE = b'extern "C" __global__ void add_one(int* x) { x[0] += 1; }'
RECORD = pack(
    Record(1, 0, (1, 1, 1), (1, 1, 1), 0, 0, 0, pack_layout([LayoutEntry(0, 8, pointer=True)]), (1,), bytes(8))
)
LIMITED = pack(
    Record(1, 0, (1, 1, 1), (1, 1, 1), 0, 0, 10**10, pack_layout([LayoutEntry(0, 8, pointer=True)]), (1,), bytes(8))
)


class Polled(CpuServer):
    """A server that must be polled; `polls` counts the polls."""

    polls = 0

    def on_progress(self, wake: Any) -> bool:
        super().on_progress(None)
        return False

    def done(self, event: Any) -> bool:
        self.polls += 1
        return super().done(event)

    def shut(self) -> threading.Event:
        """Makes work submitted from now on wait for the returned gate."""
        gate = threading.Event()
        self.streams[0].submit(gate.wait)
        return gate


@pytest.fixture
def rig() -> Iterator[Rig[Polled]]:
    rig = Rig(DeviceSpec(0, "cpu", 0), Polled)
    rig.batch(
        c.Command(load_module=c.LoadModule(module=1, kind=c.CODE_KIND_CUDA_CPP, code=CODE)),
        c.Command(get_function=c.GetFunction(function=1, module=1, name="add_one")),
        c.Command(allocate=c.Allocate(buffer=1, size=4)),
        c.Command(fill=c.Fill(buffer=1, size=4, pattern=b"\0")),
    )
    ok(rig.call(sync=c.Sync()))
    yield rig
    rig.close()


def ok(result: c.Result) -> c.Result:
    assert not result.HasField("error"), result.error
    return result


def value(rig: Rig[Polled]) -> int:
    return int.from_bytes(ok(rig.call(read=c.Read(buffer=1, size=4))).read.data, "little")


def test_sync_is_answered_when_its_work_is_done(rig: Rig[Polled]) -> None:
    for count in range(1, 200):
        rig.batch(c.Command(launches=RECORD))
        ok(rig.call(sync=c.Sync(all_streams=count % 3 == 0)))
        if count % 20 == 0:
            assert value(rig) == count


def test_long_kernel_is_polled_seldom_and_idle_device_never(rig: Rig[Polled]) -> None:
    gate = rig.server.shut()
    try:
        rig.batch(c.Command(launches=RECORD))
        sync = rig.start(sync=c.Sync())
        rig.gauges()
        began, before, cpu = time.perf_counter(), rig.server.polls, time.process_time()
        time.sleep(0.4)
        polls, cpu = rig.server.polls - before, time.process_time() - cpu
        elapsed = time.perf_counter() - began
        assert polls < 5000 * elapsed, "continuous polling would be about 250,000 polls per second"
        assert cpu < 0.75 * elapsed
    finally:
        gate.set()
    ok(rig.answer(sync))
    deadline = time.perf_counter() + LATE
    polls = -1
    while polls != rig.server.polls:  # no work is awaited, so the device is not polled
        assert time.perf_counter() < deadline
        polls = rig.server.polls
        time.sleep(0.2)


def test_waits_for_a_long_kernel_make_no_copy_wait_for_a_sleep(rig: Rig[Polled]) -> None:
    """Copies 64 bytes to the device and back on another stream, while waits for a long kernel are polled at
    intervals."""
    rig.batch(
        c.Command(create_stream=c.CreateStream(stream=5)),
        c.Command(stream=5, allocate=c.Allocate(buffer=2, size=64)),
        c.Command(stream=5, fill=c.Fill(buffer=2, size=64, pattern=b"\0")),
    )
    ok(rig.call(describe_module=c.DescribeModule(module=1)))
    ok(rig.call(sync=c.Sync(all_streams=True)))
    gate = rig.server.shut()
    rig.batch(c.Command(launches=RECORD))
    waits = [rig.start(sync=c.Sync(all_streams=number % 2 == 0)) for number in range(7)]
    rig.gauges()  # so that all of them have arrived
    sleeps: list[float] = []
    real = rig.process.loop.on_poll

    def polled() -> float | None:
        asleep = real()
        sleeps.append(60.0 if asleep is None else asleep)
        return asleep

    rig.process.loop.on_poll = polled
    try:
        for number in range(1, 101):
            data = bytes([number]) * 64
            ok(rig.call(stream=5, write=c.Write(buffer=2, data=data)))
            assert ok(rig.call(stream=5, read=c.Read(buffer=2, size=64))).read.data == data
        assert sleeps and max(sleeps) <= 2e-3 and not rig.came(Kind.RESULT, *waits)
    finally:
        gate.set()
    for wait in waits:
        ok(rig.answer(wait))


def test_continuous_waits_do_not_block_periodic_work(rig: Rig[Polled]) -> None:
    """Each sync starts a new wait, and none completes; periodic work is still done."""
    polls = 0
    idle_work = rig.process.device.idle_work
    real = idle_work.poll

    def poll() -> float | None:
        nonlocal polls
        polls += 1
        return real()

    idle_work.poll = poll  # type: ignore[method-assign]
    rig.send(Kind.OPEN, b"{}", channel=2)
    gate = rig.server.shut()
    rig.batch(c.Command(launches=LIMITED))
    syncs = []
    for count in range(40 * MAX_DEFERRED):
        syncs.append(rig.start(sync=c.Sync()))
        if count % MAX_DEFERRED == 0:
            rig.send(Kind.CALL, c.Command(request=1, flush=c.Flush()).SerializeToString(), channel=2, id=10**6 + count)
            assert c.Result.FromString(rig.until(Kind.RESULT, 10**6 + count).payload).HasField("done")
    assert polls >= 40 // 2
    gate.set()
    for sync in syncs:
        ok(rig.answer(sync))
    assert value(rig) == 1


def test_an_answer_goes_out_before_the_rest_is_done(rig: Rig[Polled]) -> None:
    """The answer of completed work is sent directly after the poll that notices its completion, before
    `FairShare.settle`."""
    skip_if_compiled(stream_pool, fair_share, outbox_module)
    order: list[str] = []
    tracks, sharing, outbox = rig.process.device.tracks, rig.process.executor.sharing, rig.process.outbox
    poll, settle, answer = tracks.poll, sharing.settle, outbox.answer

    def polled() -> bool:
        progress = poll()
        order.extend(["done"] * progress)
        return progress

    tracks.poll = polled  # type: ignore[method-assign]
    sharing.settle = lambda idle: (order.append("settle"), settle(idle))[1]  # type: ignore[method-assign]
    outbox.answer = lambda: (order.append("answer"), answer())[1]  # type: ignore[method-assign]
    gate = rig.server.shut()
    rig.batch(c.Command(launches=RECORD))
    sync = rig.start(sync=c.Sync())
    gate.set()
    ok(rig.answer(sync))
    rig.gauges()
    assert order[order.index("done") + 1] == "answer" and order[-1] == "settle"


def test_answer_during_a_short_sleep_is_sent_before_the_next_turn() -> None:
    """The loop runs only when the test calls it."""
    link, process_end = socket.socketpair()
    link.settimeout(30)
    server = Polled(DeviceSpec(0, "cpu", 0))
    process = device_process(process_end, DeviceSpec(0, "cpu", 0, cpu_threads=1), server)
    loop, tracks = process.loop, process.device.tracks
    reader = FrameReader()
    frames: list[Frame] = []

    def hear(kind: int) -> None:
        while not any(frame.kind == kind for frame in frames):
            frames.extend(reader.feed(link.recv(1 << 16)))

    with link, process_end:
        link.sendall(encode(Kind.OPEN, b"{}", channel=1))
        loop.on_idle()
        hear(Kind.READY)
        loop.run_once(None)
        gate = server.shut()
        flag = c.Command(request=1, record_event=c.RecordEvent(event=1))
        sync = c.Command(request=1, sync=c.Sync())
        for call, command in enumerate((flag, sync), 1):
            link.sendall(encode(Kind.CALL, command.SerializeToString(), channel=1, id=call))
            loop.run_once(None)
            loop.on_poll()
            loop.on_idle()
        hear(Kind.RESULT)
        frames.clear()
        assert not loop.on_nap(), "the gate is closed"
        gate.set()
        while loop.on_nap() is not True:
            pass
        hear(Kind.RESULT)
        assert [frame.id for frame in frames] == [2]
        assert tracks.poll(), "it counts as progress"
        server.close()
        process.device.compiler.close()
        loop.close()
