"""Accounting and housekeeping after an answer on arrival: deferred until the client's next step, and complete."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from hearth_proto.frames import Kind
from hearth_proto.v1 import commands_pb2 as c
from hearthd.device.platform.spin_policy import SpinPolicy
from hearthd.device.process import device_process
from tests.support.device.lane_rig import add, summed, sync
from tests.support.device.passing import Passing, Polled
from tests.support.device.rig import Command


@pytest.fixture
def lingering(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Passing, threading.Semaphore]]:
    """Simulates many cores, so that the loop polls long for the next request, and returns a semaphore that counts the
    rounds of idle work."""
    monkeypatch.setattr(device_process, "cores", lambda: 8)
    rig, rounds = Passing(Polled), threading.Semaphore(0)
    rig.process.loop.expected_s = 30.0
    rig.prepare()
    idle_work = rig.process.device.idle_work
    real = idle_work.poll

    def poll() -> float | None:
        rounds.release()
        return real()

    idle_work.poll = poll  # type: ignore[method-assign]
    yield rig, rounds
    rig.stop()


def taken(rounds: threading.Semaphore) -> int:
    count = 0
    while rounds.acquire(blocking=False):
        count += 1
    return count


def asked_for_long(rig: Passing) -> None:
    """Makes the loop poll the device for up to 30 s."""
    rig.process.device.tracks.spin_policy = SpinPolicy(30.0)


def test_next_step_runs_before_unawaited_work(lingering: tuple[Passing, threading.Semaphore]) -> None:
    rig, rounds = lingering
    client = rig.lane()
    rig.process.idle_policy.round_s = 0.0
    client.batch(sync(1))
    client.response()
    rig.barrier()
    rig.process.idle_policy.round_s = 60.0
    client.batch(sync(2))
    client.response()
    rig.barrier()  # over the link, so that the loop runs a complete iteration
    taken(rounds)
    for number in range(3, 30):  # few: many accumulated copies of answers would be sent to the front immediately
        client.batch(sync(number))
        assert client.response().result.request == number
    assert not taken(rounds)
    rig.process.loop.expected_s = 1e-3
    client.batch(sync(30))
    client.response()
    client.batch(sync(31))
    client.response()
    assert rounds.acquire(timeout=30), "no message arrives, so the deferred work is done"


def test_deferred_housekeeping_runs_eventually(lingering: tuple[Passing, threading.Semaphore]) -> None:
    rig, rounds = lingering
    rig.process.idle_policy.round_s = 1e-4
    client = rig.lane()
    begun, number = time.perf_counter(), 0
    while time.perf_counter() < begun + 0.2 or number < 50:
        number += 1
        client.batch(sync(number))
        assert client.response().result.request == number
    assert taken(rounds) >= min(number, 100) // 4


def test_other_sources_are_served_during_deferral(lingering: tuple[Passing, threading.Semaphore]) -> None:
    """The front, tasks of other threads, and the lane of another session are served meanwhile."""
    rig, _ = lingering
    rig.process.idle_policy.round_s = 60.0
    rig.send(Kind.OPEN, b"{}", channel=2)
    client, other = rig.lane(), rig.lane(2)
    for number in range(1, 60):
        client.batch(sync(number))
        assert client.response().result.request == number
        if number % 4 == 0:
            rig.barrier()
        elif number % 4 == 1:
            other.batch(sync(number))
            assert other.response().result.request == number
        elif number % 4 == 2:
            done = threading.Event()
            rig.process.loop.post(done.set)
            assert done.wait(30)


def test_deferred_accounting_is_complete(lingering: tuple[Passing, threading.Semaphore]) -> None:
    """Commands, batches and device time are counted, although the accounting is deferred."""
    rig, _ = lingering
    rig.process.executor.sharing.poll_s = 30.0
    asked_for_long(rig)  # so that each batch is awaited in the iteration in which it arrives
    executor = rig.process.executor
    client = rig.lane()
    client.batch(add(1), sync(1))
    client.response()
    rig.barrier()
    telemetry = rig.process.device.telemetry
    session = executor.session(1)
    assert session is not None
    backlog = executor.sharing.backlogs[1]

    def books() -> tuple[int, ...]:
        return telemetry.batches, telemetry.operations["launch"], telemetry.operations["sync"], telemetry.sync_points

    before, used, busy, answered = books(), backlog.used, telemetry.device_busy_ns, rig.answered
    counts = sum(telemetry.sync_wait.counts), sum(telemetry.batch_execution.counts)
    begun = time.perf_counter()
    for number in range(2, 102):
        client.batch(add(1), sync(number))
        assert client.response().result.request == number
    took = time.perf_counter() - begun
    rig.barrier()
    assert tuple(now - then for now, then in zip(books(), before, strict=True)) == (100, 100, 100, 100)
    assert (sum(telemetry.sync_wait.counts) - counts[0], sum(telemetry.batch_execution.counts) - counts[1]) == (
        100,
        100,
    )
    assert rig.answered - answered == 100, "in the iteration in which the batch arrived"
    spent = backlog.used - used
    assert 0 < spent < took
    assert abs((telemetry.device_busy_ns - busy) / 1e9 - spent) < 1e-6
    assert not backlog.active and not executor.sharing.meter.busy
    assert backlog.pace.seconds > 0


@pytest.mark.parametrize("launches", [(5, 0), (5,)])
def test_running_work_of_other_streams_is_accounted(
    lingering: tuple[Passing, threading.Semaphore], launches: tuple[int, ...]
) -> None:
    """A client that is answered for one stream may have submitted work to another stream in the same batch."""
    rig, _ = lingering
    rig.process.executor.sharing.poll_s = 30.0
    asked_for_long(rig)
    executor = rig.process.executor
    for kind in ({"create_stream": c.CreateStream(stream=5)}, {"allocate": c.Allocate(buffer=2, size=8)}):
        assert not rig.call(**kind).HasField("error")
    client = rig.lane()
    backlog = executor.sharing.backlogs[1]
    gate = threading.Event()
    rig.server.streams[-1].submit(gate.wait)
    records = b"".join(add(1, stream=stream, buffer=1 + bool(stream)).launches for stream in launches)
    client.batch(Command(launches=records), Command(request=1, sync=c.Sync()))
    assert client.response().result.request == 1
    rig.barrier()
    assert backlog.active and backlog.metered and executor.sharing.meter.busy
    used = backlog.used
    gate.set()
    client.batch(Command(request=2, sync=c.Sync(all_streams=True)))
    assert client.response().result.request == 2
    rig.barrier()
    assert backlog.used > used and not backlog.active and not executor.sharing.meter.busy


def test_step_after_a_slow_one_runs_first_too(lingering: tuple[Passing, threading.Semaphore]) -> None:
    """A step is answered in a later iteration of the loop; the next step is polled for before deferred work of the
    first."""
    rig, rounds = lingering
    rig.process.executor.sharing.poll_s = 0.0
    asked_for_long(rig)
    executor, tracks = rig.process.executor, rig.process.device.tracks
    client = rig.lane()
    rig.process.idle_policy.round_s = 60.0
    within = 0
    for number in range(1, 20):
        gate = threading.Event()
        rig.server.streams[0].submit(gate.wait)
        client.batch(add(1), sync(number))
        while not tracks.live or rig.process.idle_policy.expected_until:
            time.sleep(1e-4)
        taken(rounds)
        gate.set()
        assert client.response().result.request == number
        client.batch(sync(100 + number))
        assert client.response().result.request == 100 + number
        within += not taken(rounds)
    rig.barrier()
    assert not executor.sharing.active and rig.sum() == summed(*([1] * 19))
    assert within > 10
