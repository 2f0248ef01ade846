"""Batches have the same results whether they run in the iteration of the loop in which they arrive, or in the next."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hearth_proto.frames import Frame, Kind, encode
from hearth_proto.reasons import from_status
from hearth_proto.v1 import commands_pb2 as c
from hearth_proto.v1 import device_pb2
from hearthd.device.cpu.server import CpuServer
from hearthd.device.streams import stream_pool
from hearthd.device.streams.stream_pool import PooledStream
from tests.support.compiled import skip_if_compiled
from tests.support.device.batch_programs import BROKEN, FRESH, LAUNCH, Step, launch, run
from tests.support.device.lane_rig import Client, add, batch, summed, sync
from tests.support.device.passing import Passing, Polled, both_ways, prepared
from tests.support.device.rig import Command


@pytest.fixture(params=[CpuServer, Polled])
def rig(request: pytest.FixtureRequest) -> Iterator[Passing]:
    yield from prepared(Passing(request.param))


@pytest.fixture(scope="module", params=[CpuServer, Polled])
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[Passing, Passing]]:
    yield from both_ways(Passing, request.param)


def encoded(*commands: c.Command) -> bytes:
    """Returns the payload of a session's first batch."""
    data: bytes = device_pb2.ExecuteRequest(batch=c.Batch(seq=1, commands=commands)).SerializeToString()
    return data


def reason(client: Client) -> str:
    """Returns the reason why the last request was refused."""
    return from_status(client.response().result.error).reason


# ---- the same programs in both iterations ----

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
def launch_steps(draw: st.DrawFn, wrong: bool) -> Step:
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
def test_launches_give_same_results(pair: tuple[Passing, Passing], wrong: bool, data: st.DataObject) -> None:
    on_arrival, later = pair
    program = data.draw(st.lists(launch_steps(wrong), min_size=1, max_size=8))
    assert run(on_arrival, program) == run(later, program)


STREAM = st.sampled_from([0, 0, 0, 5])
RUN = st.builds(
    lambda records: [Command(launches=b"".join(records))],
    st.lists(st.one_of(LAUNCH, LAUNCH, FRESH), min_size=1, max_size=3),
)
WRITE = st.builds(
    lambda stream, data, offset: [Command(stream=stream, write=c.Write(buffer=1, data=data[offset:], offset=offset))],
    STREAM, st.binary(min_size=8, max_size=8), st.integers(0, 7),
)  # fmt: skip
FILL = st.builds(
    lambda stream, pattern: [Command(stream=stream, fill=c.Fill(buffer=1, size=8, pattern=pattern))],
    STREAM, st.sampled_from([b"\1", b"\1\2", b"12345678"]),
)  # fmt: skip
TEMPORARY = st.builds(
    lambda stream, value: [
        Command(stream=stream, allocate=c.Allocate(buffer=3, size=8)),
        Command(stream=stream, fill=c.Fill(buffer=3, size=8, pattern=b"\7")),
        Command(launches=launch(value, stream=stream, buffer=3)),
        Command(stream=stream, free=c.Free(buffers=[3])),
    ],
    STREAM, st.integers(1, 9),
)  # fmt: skip
WORK = st.one_of(RUN, RUN, WRITE, FILL, TEMPORARY)
FAILING = st.one_of(
    st.builds(lambda records: [Command(launches=records)], BROKEN),
    st.sampled_from(
        [
            [Command(write=c.Write(buffer=9, data=b"1"))],
            [Command(write=c.Write(buffer=1, data=b"123456789"))],
            [Command(write=c.Write(buffer=1, offset=1 << 63, data=b"1"))],
            [Command(stream=9, write=c.Write(buffer=1, data=b"12345678"))],
            [Command(fill=c.Fill(buffer=1, size=8, pattern=b"123"))],
            [Command(allocate=c.Allocate(buffer=1, size=8))],
            [Command(free=c.Free(buffers=[9]))],
            [Command(free=c.Free(buffers=[0, 0]))],
            [Command()],
            [Command(launches=launch(1, stream=5, offset=64))],
            [Command(launches=launch(1, stream=5, block=0))],
            [Command(wait_event=c.WaitEvent(event=7))],
        ]
    ),
)
END = [
    {"sync": c.Sync()},
    {"sync": c.Sync(all_streams=True)},
    {"read": c.Read(buffer=1, size=8)},
    {"read": c.Read(buffer=1, size=3, offset=5)},
]
WRONG_END = [
    {"read": c.Read(buffer=1, size=0)},
    {"read": c.Read(buffer=1, size=9)},
    {"read": c.Read(buffer=1, offset=1 << 63, size=1 << 63)},
    {"read": c.Read(buffer=9, size=8)},
    {"read": c.Read(buffer=1, size=2 << 20)},
    {"read": c.Read(buffer=1, size=4, rows=c.Rows(width=2, rows=2, pitch=4))},
    {"write": c.Write(buffer=1, data=b"answered")},
    {"fill": c.Fill(buffer=1, size=8, pattern=b"\2")},
]


@st.composite
def mixed_steps(draw: st.DrawFn, wrong: bool) -> Step:
    """`wrong`: draws steps with failures. Each batch is then awaited, because for batches under way at the same time it
    is undefined which one reports a failure."""
    before = [command for each in draw(st.lists(WORK, max_size=4)) for command in each]
    if wrong and draw(st.integers(0, 2)) == 2:
        at = draw(st.integers(0, len(before)))
        before[at:at] = draw(FAILING)
    if draw(st.integers(0, 9)) == 9:
        return Step(tuple(before or draw(WRITE)), False)
    end = draw(st.sampled_from(END + (WRONG_END if wrong else [])))
    last = Command(request=1, stream=draw(st.sampled_from([0, 0, 5, 9] if wrong else [0, 0, 5])), **end)
    return Step((*before, last), wrong or draw(st.booleans()))


@pytest.mark.parametrize("wrong", [False, True])
@given(st.data())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_mixed_batches_give_same_results(pair: tuple[Passing, Passing], wrong: bool, data: st.DataObject) -> None:
    on_arrival, later = pair
    program = data.draw(st.lists(mixed_steps(wrong), min_size=1, max_size=8))
    assert run(on_arrival, program) == run(later, program)


def test_most_batches_run_on_arrival(pair: tuple[Passing, Passing]) -> None:
    """Otherwise the comparison would prove nothing."""
    on_arrival, later = pair
    write = Command(write=c.Write(buffer=1, data=b"12345678"))
    program = [
        Step((Command(launches=launch(1)), sync(1)), True),
        Step((write, Command(launches=launch(1)), Command(request=1, read=c.Read(buffer=1, size=8))), True),
        Step((write, sync(1)), True),
        Step((write,), False),
        Step((Command(request=1, read=c.Read(buffer=1, size=8)),), True),
    ]
    before = on_arrival.ran
    assert run(on_arrival, program * 5) == run(later, program * 5)
    assert on_arrival.ran - before >= 23 and not later.ran


# ---- batches that run on arrival, and their outcomes ----


def test_launches_with_a_sync(rig: Passing) -> None:
    client = rig.lane()
    for number in range(1, 300):
        every = number % 3 == 0
        client.batch(
            *[Command(launches=launch(number % 5) * (number % 4))] * bool(number % 4),
            Command(request=number, sync=c.Sync(all_streams=every)),
        )
        assert client.response().result.request == number
    assert rig.ran == 299
    values = [value for number in range(1, 300) for value in [number % 5] * (number % 4)]
    assert rig.sum() == summed(*values)
    counters = rig.counters()
    assert counters["kernel_launches"] == len(values) and counters["sync_points"] >= 299
    assert counters["batches"] == 299
    assert rig.end_lane() == 299
    copies = rig.copies()
    acks = [frame.id for frame in copies if frame.id]
    assert acks == sorted(set(acks)) and acks[-1] == 299
    assert len([frame for frame in copies if frame.kind == Kind.RESPONSE]) == 299


def test_batches_forwarded_by_the_front(rig: Passing) -> None:
    """The answer carries the acknowledgement if both are sent together, so that the front wakes up only once."""
    alone = 0
    for number in range(1, 100):
        rig.batch(Command(launches=launch(number)), Command(request=number, sync=c.Sync(all_streams=bool(number % 2))))
        answer = rig.until(Kind.RESPONSE)
        assert answer.id in (number, 0) and not answer.flags
        assert device_pb2.ExecuteResponse.FromString(answer.payload).result.request == number
        alone += not answer.id  # the answer took longer: the acknowledgement was sent before
    assert rig.ran == 99
    assert len([frame for frame in rig.copies() if frame.kind == Kind.ACK]) == alone
    assert rig.sum() == summed(*range(1, 100))
    assert rig.counters()["batches"] == 99


def test_batches_forwarded_by_the_front_during_a_lane(rig: Passing) -> None:
    client = rig.lane()
    client.batch(add(1), sync(1))
    assert client.response().result.request == 1
    rig.batch()  # number 1, which the lane has already delivered
    rig.barrier()
    rig.batch(add(2), sync(2))
    assert client.response().result.request == 2
    assert rig.sum() == summed(1, 2)


def test_single_copy(rig: Passing) -> None:
    """The copy is answered or not, followed by a wait in the same message or not, and refused like any other
    command."""
    client = rig.lane()
    for number in range(1, 40):
        data = number.to_bytes(8, "little")
        client.batch(Command(write=c.Write(buffer=1, data=data)))
        client.batch(Command(request=number, read=c.Read(buffer=1, size=8)))
        assert client.response().result.read.data == data
    assert rig.ran == 78
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
    client.end.sendall(together + batch(client.seq, sync(104)))
    assert client.response().result.request == 104
    assert rig.counters()["batches"] == client.seq
    assert rig.end_lane() == client.seq


def test_several_batches_in_one_read(rig: Passing) -> None:
    data = b""
    for number in range(1, 4):
        message = device_pb2.ExecuteRequest(batch=c.Batch(seq=number, commands=[add(number), sync(number)]))
        data += encode(Kind.BATCH, message.SerializeToString(), channel=1)
    rig.sock.sendall(data)
    answers = [rig.until(Kind.RESPONSE) for _ in range(3)]
    rig.barrier()
    assert rig.sum() == summed(1, 2, 3)
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


def test_device_time_is_charged(rig: Passing) -> None:
    client = rig.lane()
    for number in range(1, 50):
        client.batch(add(1), sync(number))
        client.response()
    before = rig.counters()["device_busy_ns"]
    assert before > 0
    client.batch(sync(50))
    client.response()
    assert rig.counters()["device_busy_ns"] == before, "no work remains on the device"


def test_sync_reports_earlier_errors(rig: Passing) -> None:
    client = rig.lane()
    client.batch(Command(launches=launch(1, buffer=9)))
    client.until(Kind.ACK)
    ran = rig.ran
    client.batch(add(1), sync(1))
    error = client.response().result.error
    assert rig.ran == ran + 1
    assert "buffer 9" in error.message
    client.batch(sync(2))
    assert client.response().result.HasField("done"), "the error has been reported"


@pytest.mark.parametrize("other", ["alone", "session", "turns", "deferred"])
def test_batches_of_a_session_that_is_not_alone_wait(rig: Passing, other: str) -> None:
    executor = rig.process.executor
    sharing, session = executor.sharing, executor.session(1)
    assert session is not None
    rig.send(Kind.OPEN, b"{}", channel=2)
    if other == "deferred":
        allocate = Command(allocate=c.Allocate(buffer=1, size=8))
        waits = Command(write=c.Write(buffer=1, size=8, transfer=5))
        rig.send(Kind.BATCH, encoded(allocate, waits), channel=2)
    rig.barrier()
    second = executor.session(2)
    last, done = [-1], threading.Event()

    def arrive() -> None:
        if other == "session":
            executor.frame(Frame(Kind.BATCH, 0, 2, 0, encoded(sync(1))))
        elif other == "deferred":
            executor.kick(second)
        sharing.turns.on = other == "turns"
        executor.frame(Frame(Kind.BATCH, 0, 1, 0, encoded(add(1), sync(2))))
        executor.run_on_arrival(1)
        last[0] = session.last_seq
        sharing.turns.on = False
        done.set()

    rig.process.loop.post(arrive)
    assert done.wait(30)
    assert last[0] == (other == "alone")
    answers = [rig.until(Kind.RESPONSE) for _ in range(1 + (other == "session"))]
    requests = {device_pb2.ExecuteResponse.FromString(answer.payload).result.request for answer in answers}
    assert requests == ({1, 2} if other == "session" else {2})
    assert rig.sum() == summed(1)


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


def test_only_a_completion_that_nothing_precedes_is_polled_first() -> None:
    """The accounting takes as long as the work before the awaited command, and is done meanwhile."""
    skip_if_compiled(stream_pool)
    rig = Passing(Polled)
    rig.prepare()
    tracks = rig.process.device.tracks
    real, polled = tracks.poll_track, []

    def poll_track(track: PooledStream, seconds: float) -> None:
        polled.append(len(track.pending))
        real(track, seconds)

    tracks.poll_track = poll_track  # type: ignore[method-assign]
    client = rig.lane()
    read = Command(request=1, read=c.Read(buffer=1, size=8))
    client.batch(Command(allocate=c.Allocate(buffer=2, size=64 << 10)), read)
    client.response()
    for _ in range(20):
        client.batch(read)
        assert client.response().result.request == 1
    rig.barrier()
    assert set(polled) == {1}
    polled.clear()
    written = Command(write=c.Write(buffer=2, data=bytes(64 << 10)))  # the end of its staging memory is a completion
    for _ in range(20):
        client.batch(written, read)
        assert client.response().result.request == 1
    rig.barrier()
    rig.stop()
    assert not polled
