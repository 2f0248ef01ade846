"""Batches have the same results on the inline path and on the queued path, and take the inline path only while the
device does nothing else."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hearth_proto.frames import Kind, encode
from hearth_proto.reasons import from_status
from hearth_proto.v1 import commands_pb2 as c
from hearth_proto.v1 import device_pb2
from hearthd.device.cpu.server import CpuServer
from hearthd.device.fast_path.inline_path import InlinePath
from hearthd.device.platform.spin_policy import SpinPolicy
from hearthd.device.process import device_process
from tests.support.device.inline_programs import BROKEN, FRESH, LAUNCH, Step, launch, run
from tests.support.device.lane_rig import Client, add, batch, summed, sync
from tests.support.device.passing import Passing, Polled
from tests.support.device.rig import Command


@pytest.fixture(params=[CpuServer, Polled])
def rig(request: pytest.FixtureRequest) -> Iterator[Passing]:
    made = Passing(request.param)
    made.prepare()
    yield made
    made.stop()


@pytest.fixture(scope="module", params=[CpuServer, Polled])
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[Passing, Passing]]:
    both = Passing(request.param), Passing(request.param, inline_path=False)
    yield both
    for each in both:
        each.stop()


def reason(client: Client) -> str:
    """Returns the reason why the last request was refused."""
    return from_status(client.response().result.error).reason


# ---- the same programs on both ways ----

OTHERS: list[dict[str, Any]] = [
    {"flush": c.Flush()},
    {"record_event": c.RecordEvent(event=1)},
    {"wait_event": c.WaitEvent(event=1)},
    {"query_event": c.QueryEvent(event=1, wait=True)},
    {"fill": c.Fill(buffer=1, size=8, pattern=b"\1")},
    {"write": c.Write(buffer=1, data=b"12345678")},
    {"read": c.Read(buffer=1, size=8)},
    {"create_stream": c.CreateStream(stream=6)},
    {"destroy_stream": c.DestroyStream(stream=6)},
    {"begin_capture": c.BeginCapture(graph=1)},
    {"end_capture": c.EndCapture(graph=1)},
]


@st.composite
def steps(draw: st.DrawFn, wrong: bool) -> Step:
    """`wrong`: draws steps with failures. Each batch is then awaited, because for batches under way at the same time it
    is undefined which one reports a failure."""
    if wrong and draw(st.integers(0, 5)) == 5:
        return Step((Command(request=1, **draw(st.sampled_from(OTHERS))),), True)
    records = st.one_of(LAUNCH, LAUNCH, FRESH, BROKEN) if wrong else st.one_of(LAUNCH, LAUNCH, FRESH)
    runs = draw(st.lists(st.lists(records, min_size=1, max_size=5), max_size=2))
    stream = draw(st.sampled_from([0, 0, 0, 5, 9] if wrong else [0, 0, 5]))
    wait = Command(request=1, stream=stream, sync=c.Sync(all_streams=draw(st.booleans())))
    waits = [wait] * draw(st.sampled_from([1, 1, 1, 1, 0, 2]))
    others = [Command(**draw(st.sampled_from(OTHERS)))] if wrong and draw(st.integers(0, 5)) == 5 else []
    commands = [*others, *[Command(launches=b"".join(each)) for each in runs], *waits]
    return Step(tuple(commands), wrong or draw(st.booleans()))


@pytest.mark.parametrize("wrong", [False, True])
@given(st.data())
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_inline_and_queued_path_give_same_results(
    pair: tuple[Passing, Passing], wrong: bool, data: st.DataObject
) -> None:
    short, long = pair
    program = data.draw(st.lists(steps(wrong), min_size=1, max_size=8))
    assert run(short, program) == run(long, program)


def test_most_batches_took_inline_path(pair: tuple[Passing, Passing]) -> None:
    """Otherwise the comparison would prove nothing."""
    short, long = pair
    step = Step((Command(launches=launch(1)), sync(1)), True)
    before = short.taken
    assert run(short, [step] * 20) == run(long, [step] * 20)
    assert short.taken - before >= 19 and not long.taken


# ---- the inline path, and what does not take it ----


def test_launches_with_a_sync_take_inline_path(rig: Passing) -> None:
    client = rig.lane()
    for number in range(1, 300):
        every = number % 3 == 0
        client.batch(
            *[Command(launches=launch(number % 5) * (number % 4))] * bool(number % 4),
            Command(request=number, sync=c.Sync(all_streams=every)),
        )
        assert client.response().result.request == number
    assert rig.taken == 299
    values = [value for number in range(1, 300) for value in [number % 5] * (number % 4)]
    assert rig.sum() == summed(*values)
    counters = rig.counters()
    assert counters["kernel_launches"] == len(values) and counters["sync_points"] >= 299
    assert counters["batches"] == 299
    assert rig.end_lane() == 299
    copies = rig.copies()
    assert [frame.id for frame in copies if frame.kind == Kind.ACK] == list(range(1, 300))
    assert len([frame for frame in copies if frame.kind == Kind.RESPONSE]) == 299


def test_batches_forwarded_by_the_front_take_inline_path(rig: Passing) -> None:
    """A single frame carries the answer and the acknowledgement, so that the front wakes up only once."""
    alone = 0
    for number in range(1, 100):
        rig.batch(Command(launches=launch(number)), Command(request=number, sync=c.Sync(all_streams=bool(number % 2))))
        answer = rig.until(Kind.RESPONSE)
        assert answer.id in (number, 0) and not answer.flags
        assert device_pb2.ExecuteResponse.FromString(answer.payload).result.request == number
        alone += not answer.id  # a delayed answer, as on a busy machine: the acknowledgement was sent before
    assert rig.taken == 99 and alone < 50
    assert len([frame for frame in rig.copies() if frame.kind == Kind.ACK]) == alone
    assert rig.sum() == summed(*range(1, 100))
    assert rig.counters()["batches"] == 99


def test_batches_forwarded_by_the_front_during_a_lane_take_queued_path(rig: Passing) -> None:
    client = rig.lane()
    client.batch(add(1), sync(1))
    assert client.response().result.request == 1
    rig.batch()  # number 1, which the lane has already delivered
    rig.barrier()
    taken = rig.taken
    rig.batch(add(2), sync(2))
    assert client.response().result.request == 2
    assert rig.taken == taken and rig.sum() == summed(1, 2)


def test_single_copy_takes_inline_path(rig: Passing) -> None:
    """The copy is answered or not, followed by a wait in the same message or not, and refused like any other
    command."""
    client = rig.lane()
    for number in range(1, 40):
        data = number.to_bytes(8, "little")
        client.batch(Command(write=c.Write(buffer=1, data=data)))
        client.batch(Command(request=number, read=c.Read(buffer=1, size=8)))
        assert client.response().result.read.data == data
    assert rig.taken == 78
    client.batch(Command(request=100, write=c.Write(buffer=1, offset=1 << 20, data=b"x")))
    assert reason(client) == "OUT_OF_BOUNDS"
    client.batch(Command(request=101, read=c.Read(buffer=77, size=8)))
    assert reason(client) == "INVALID_HANDLE"
    client.batch(Command(write=c.Write(buffer=77, data=b"12345678")))
    client.batch(sync(102))
    assert reason(client) == "INVALID_HANDLE", "a failure of an unawaited command"
    client.seq += 1
    together = batch(client.seq, Command(write=c.Write(buffer=1, data=b"12345678")))
    client.seq += 1
    taken = rig.taken
    client.end.sendall(together + batch(client.seq, sync(104)))
    assert client.response().result.request == 104
    assert rig.taken > taken, "the first of what came together"
    assert rig.counters()["batches"] == client.seq
    assert rig.end_lane() == client.seq


def test_several_batches_at_once_take_queued_path(rig: Passing) -> None:
    data = b""
    for number in range(1, 4):
        message = device_pb2.ExecuteRequest(batch=c.Batch(seq=number, commands=[add(number), sync(number)]))
        data += encode(Kind.BATCH, message.SerializeToString(), channel=1)
    rig.sock.sendall(data)
    answers = [rig.until(Kind.RESPONSE) for _ in range(3)]
    rig.barrier()
    assert rig.taken == 0 and rig.sum() == summed(1, 2, 3)
    acks = [frame.id for frame in (*answers, *rig.copies()) if frame.id]
    assert max(acks) == 3


def test_a_wait_for_all_streams_covers_each(rig: Passing) -> None:
    client = rig.lane()
    client.batch(Command(create_stream=c.CreateStream(stream=5)), add(1, stream=5), sync(1))
    client.response()
    gate = threading.Event()
    for stream, row in itertools.product((0, 5), (1, 2)):
        gate.clear()
        session = rig.process.executor.session(1)
        assert session is not None
        session.streams.items[stream].track.stream.submit(gate.wait)
        request = 10 * row + stream
        other = launch(1, stream=5 - stream) if row == 1 else b""
        client.batch(
            Command(launches=other + launch(2, stream=stream)), Command(request=request, sync=c.Sync(all_streams=True))
        )
        rig.barrier()
        rig.barrier()
        client.end.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while client.next().kind == Kind.ACK:
                pass
            pytest.fail("it was answered before the work was done")
        client.end.settimeout(30)
        gate.set()
        assert client.response().result.request == request


def test_inline_path_charges_device_time(rig: Passing) -> None:
    client = rig.lane()
    for number in range(1, 50):
        client.batch(add(1), sync(number))
        client.response()
    before = rig.counters()["device_busy_ns"]
    assert before > 0
    client.batch(sync(50))
    client.response()
    assert rig.counters()["device_busy_ns"] == before, "nothing is on the device any more"


def test_sync_on_inline_path_reports_earlier_errors(rig: Passing) -> None:
    client = rig.lane()
    client.batch(Command(launches=launch(1, buffer=9)))
    client.until(Kind.ACK)
    taken = rig.taken
    client.batch(add(1), sync(1))
    error = client.response().result.error
    assert rig.taken == taken + 1
    assert "buffer 9" in error.message
    client.batch(sync(2))
    assert client.response().result.HasField("done"), "it has been told"


@pytest.mark.parametrize("other", ["permissions", "trace", "capture", "deferred", "called", "sharing", "turns"])
def test_other_activity_of_session_forces_queued_path(rig: Passing, other: str) -> None:
    client = rig.lane()
    client.batch(add(1), sync(1))
    client.response()
    session = rig.process.executor.session(1)
    assert session is not None and rig.taken == 1
    sharing = rig.process.executor.sharing
    if other == "permissions":
        session.permissions = object()  # type: ignore[assignment]
    elif other == "trace":
        session.trace = object()  # type: ignore[assignment]
    elif other == "capture":
        client.batch(Command(begin_capture=c.BeginCapture(graph=1)))
        client.until(Kind.ACK)
    elif other == "deferred":
        client.batch(Command(write=c.Write(buffer=1, size=8, transfer=5)))
        rig.barrier()
    elif other == "called":
        rig.start(write=c.Write(buffer=1, size=8, transfer=5))
        rig.barrier()
    elif other == "sharing":
        sharing.slicing.on = True
    else:
        sharing.turns.on = True
    inline_path: InlinePath = rig.process.executor.inline_path
    lane = rig.process.outbox.lanes[1]
    payload = batch(session.last_seq + 1, sync(2))[20:]
    assert not InlinePath.execute_batch(inline_path, lane, session.last_seq + 1, payload)
    sharing.slicing.on = sharing.turns.on = False
    session.permissions = session.trace = None


def test_departed_client_harms_no_other(rig: Passing) -> None:
    client = rig.lane()
    client.batch(add(1), sync(1))
    client.response()
    client.batch(add(2), sync(2))
    client.end.close()
    rig.barrier()
    rig.end_lane()
    assert rig.sum() in (summed(1), summed(1, 2))
    again = rig.lane()
    session = rig.process.executor.session(1)
    assert session is not None
    again.seq = session.last_seq
    again.batch(sync(3))
    assert again.response().result.request == 3


def test_a_client_that_does_not_read_is_answered_when_it_does(rig: Passing) -> None:
    client = rig.lane(max_unread_bytes=1 << 12, max_batches=1 << 16)
    client.end.setblocking(False)
    number = sent = 0
    try:
        while number < 100_000:
            number += 1
            client.end.sendall(batch(number, sync(number)))
            sent = number
    except BlockingIOError:
        pass
    client.end.settimeout(30)
    assert sent
    assert [client.response().result.request for _ in range(sent)] == list(range(1, sent + 1))


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
    for number in range(3, 60):
        client.batch(sync(number))
        assert client.response().result.request == number
    assert not taken(rounds)
    rig.process.loop.expected_s = 1e-3
    client.batch(sync(60))
    client.response()
    client.batch(sync(61))
    client.response()
    assert rounds.acquire(timeout=30), "nothing comes, so that it is done"


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
    rig.process.executor.inline_path.poll_s = 30.0
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

    before, used, busy = books(), backlog.used, telemetry.device_busy_ns
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
    rig.process.executor.inline_path.poll_s = 30.0
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
    rig.process.executor.inline_path.poll_s = 0.0
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
