"""Mixed batches take the inline path too: short writes and reads, temporaries, and the wait behind them have the same
results as on the queued path."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hearth_proto.frames import Kind
from hearth_proto.reasons import Reason, Refusal, from_status
from hearth_proto.v1 import commands_pb2 as c
from hearth_proto.v1 import device_pb2
from hearthd.device.cpu.server import CpuServer
from hearthd.device.fast_path import mixed_batch
from hearthd.device.fast_path import reads as straight_reads
from tests.support.device.inline_programs import BROKEN, FRESH, LAUNCH, Step, launch, run
from tests.support.device.lane_rig import Client, add, summed, sync
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


# ---- the same programs on both ways ----

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
WRONG = st.one_of(
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
def steps(draw: st.DrawFn, wrong: bool) -> Step:
    """`wrong`: draws steps with failures. Each batch is then awaited, because for batches under way at the same time it
    is undefined which one reports a failure."""
    before = [command for each in draw(st.lists(WORK, max_size=4)) for command in each]
    if wrong and draw(st.integers(0, 2)) == 2:
        at = draw(st.integers(0, len(before)))
        before[at:at] = draw(WRONG)
    if draw(st.integers(0, 9)) == 9:
        return Step(tuple(before or draw(WRITE)), False)
    end = draw(st.sampled_from(END + (WRONG_END if wrong else [])))
    last = Command(request=1, stream=draw(st.sampled_from([0, 0, 5, 9] if wrong else [0, 0, 5])), **end)
    return Step((*before, last), wrong or draw(st.booleans()))


@pytest.mark.parametrize("wrong", [False, True])
@given(st.data())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_inline_and_queued_path_give_same_results(
    pair: tuple[Passing, Passing], wrong: bool, data: st.DataObject
) -> None:
    short, long = pair
    program = data.draw(st.lists(steps(wrong), min_size=1, max_size=8))
    assert run(short, program) == run(long, program)


def test_most_batches_took_inline_path(pair: tuple[Passing, Passing]) -> None:
    """Otherwise the comparison would prove nothing."""
    short, long = pair
    write = Command(write=c.Write(buffer=1, data=b"12345678"))
    program = [
        Step((write, Command(launches=launch(1)), Command(request=1, read=c.Read(buffer=1, size=8))), True),
        Step((write, sync(1)), True),
        Step((write,), False),
        Step((Command(request=1, read=c.Read(buffer=1, size=8)),), True),
    ]
    before = short.taken
    assert run(short, program * 5) == run(long, program * 5)
    assert short.taken - before >= 19 and not long.taken


# ---- the inline path, and its outcomes ----


def value(client: Client) -> int:
    """Returns the value in the answer to a read."""
    result = client.response().result
    assert not result.HasField("error"), result.error.message
    assert len(result.read.data) == result.read.size == 8
    return int.from_bytes(result.read.data, "little")


def read(request: int, **fields: Any) -> c.Command:
    return Command(request=request, read=c.Read(**{"buffer": 1, "size": 8, **fields}))


def write(number: int) -> c.Command:
    return Command(write=c.Write(buffer=1, data=number.to_bytes(8, "little")))


def test_write_launch_and_read_in_one_batch(rig: Passing) -> None:
    client = rig.lane()
    for number in range(1, 200):
        client.batch(write(number), add(1), add(2), read(number))
        assert value(client) == (number * 3 + 1) * 3 + 2
    assert rig.taken == 199
    counters = rig.counters()
    assert counters["kernel_launches"] == 398 and counters["batches"] == 199
    assert counters["upload_inline_bytes"] == counters["download_inline_bytes"] == 199 * 8
    assert counters["device_to_host_operations"] == 199
    assert rig.end_lane() == 199
    copies = rig.copies()
    assert [frame.id for frame in copies if frame.kind == Kind.ACK] == list(range(1, 200))
    assert len([frame for frame in copies if frame.kind == Kind.RESPONSE]) == 199


def test_batches_forwarded_by_the_front(rig: Passing) -> None:
    for number in range(1, 50):
        rig.batch(write(number), add(1), read(number))
        answer = c.Result.FromString(rig.until(Kind.RESPONSE).payload[2:])
        assert int.from_bytes(answer.read.data, "little") == number * 3 + 1
    assert rig.taken == 49


def test_temporary_allocated_and_freed_in_one_batch(rig: Passing) -> None:
    client = rig.lane()
    for number in range(1, 50):
        handle = 100 + number
        client.batch(
            Command(allocate=c.Allocate(buffer=handle, size=8)),
            Command(fill=c.Fill(buffer=handle, size=8, pattern=b"\0")),
            add(number, buffer=handle),
            read(number, buffer=handle),
        )
        assert value(client) == number
        client.batch(Command(free=c.Free(buffers=[handle])), sync(1000 + number))
        client.response()
    assert rig.taken == 98
    session = rig.process.executor.session(1)
    assert session is not None and len(session.buffers) == 1


def test_reads_of_several_sizes_bring_their_bytes(rig: Passing) -> None:
    client, size = rig.lane(), 2 * straight_reads.LARGEST
    pattern = bytes(range(1, 17))
    client.batch(
        Command(allocate=c.Allocate(buffer=2, size=size)),
        Command(fill=c.Fill(buffer=2, size=size, pattern=pattern)),
        sync(1),
    )
    client.response()
    sizes = (1, 2, 127, 128, 16_383, 16_384, straight_reads.LARGEST, straight_reads.LARGEST + 1)
    for request, count in enumerate(sizes, 100):
        client.batch(read(request, buffer=2, offset=16, size=count))
        result = client.response().result
        assert (result.request, result.read.size) == (request, count)
        assert result.read.data == (pattern * size)[:count]
    staging = rig.process.device.staging
    assert staging.in_use == 0


def test_earlier_failure_is_raised_by_the_read(rig: Passing) -> None:
    client = rig.lane()
    client.batch(add(1, buffer=9), read(1))
    assert "buffer 9" in client.response().result.error.message
    client.batch(read(2))
    assert value(client) == 0, "it has been told"
    client.batch(Command(allocate=c.Allocate(buffer=1, size=8)), read(3))
    assert from_status(client.response().result.error).reason == "HANDLE_IN_USE"
    client.batch(read(4, size=9))
    assert from_status(client.response().result.error).reason == "OUT_OF_BOUNDS"
    client.batch(write(5), read(5))
    assert value(client) == 5


def test_buffer_spoiled_by_another_stream_fails_the_read(rig: Passing) -> None:
    client = rig.lane()
    client.batch(Command(create_stream=c.CreateStream(stream=5)), sync(1))
    client.response()
    client.batch(add(1, stream=5, block=0), sync(2))
    assert client.response().result.HasField("done"), "it is another stream that failed"
    taken = rig.taken
    client.batch(read(3))
    assert "launch" in client.response().result.error.message
    assert rig.taken == taken + 1


def test_read_waits_for_deferred_commands(rig: Passing) -> None:
    """The write waits for its bytes, which are sent outside the batch, so the acknowledgement of the batch waits
    too."""
    client = rig.lane()
    client.batch(Command(write=c.Write(buffer=1, size=8, transfer=5)), add(1), read(1))
    rig.barrier()
    assert rig.taken == 1
    rig.upload(5, (6).to_bytes(8, "little"), chunk=8)
    assert value(client) == 19
    assert rig.end_lane() == 1


def test_a_read_that_the_driver_refuses(rig: Passing, monkeypatch: pytest.MonkeyPatch) -> None:
    client = rig.lane()
    client.batch(write(7), read(1))
    assert value(client) == 7
    taken = rig.taken
    for refusal in (Refusal(Reason.INTERNAL, "the driver refuses", fix="none"), RuntimeError("the driver refuses")):

        def refuse(*_: Any, refusal: Exception = refusal) -> None:
            raise refusal

        with monkeypatch.context() as patch:
            patch.setattr(rig.server, "download", refuse)
            client.batch(write(8), read(2))
            error = from_status(client.response().result.error)
        assert error.reason == "INTERNAL" and "the driver refuses" in error.message
    assert rig.taken == taken + 2
    client.batch(read(3))
    assert value(client) == 8, "the stream continues"
    rig.barrier()
    assert rig.process.device.staging.in_use == 0


def test_read_behind_running_work_waits(rig: Passing) -> None:
    """The batch is acknowledged before it is answered, and other frames may be sent in between."""
    client = rig.lane()
    client.batch(write(1), read(1))
    assert value(client) == 1
    gate, session = threading.Event(), rig.process.executor.session(1)
    assert session is not None
    session.streams.items[0].track.stream.submit(gate.wait)
    taken = rig.taken
    client.batch(add(2), read(2))
    assert client.until(Kind.ACK).id == 2
    client.batch(Command(create_stream=c.CreateStream(stream=5)))
    assert client.until(Kind.ACK).id == 3
    gate.set()
    assert value(client) == 5
    assert rig.taken == taken + 1


def test_read_without_staging_memory_takes_queued_path(rig: Passing, monkeypatch: pytest.MonkeyPatch) -> None:
    """The read takes the queued path, which waits for staging memory."""
    client, staging = rig.lane(), rig.process.device.staging
    find, refused = staging.find, []

    def none_at_first(size: int, session: Any = None) -> Any:
        if not refused:
            refused.append(size)
            return None
        return find(size, session)

    monkeypatch.setattr(staging, "find", none_at_first)
    client.batch(add(3), read(1))
    assert value(client) == summed(3)
    assert refused == [8]


def test_a_profile_begins_with_the_read(rig: Passing) -> None:
    client, session = rig.lane(), rig.process.executor.session(1)
    assert session is not None
    client.batch(Command(start_profile=c.StartProfile(profile=1)), sync(1))
    client.response()
    assert session.profiles.items[1].start is None
    client.batch(read(2))
    assert value(client) == 0
    assert session.profiles.items[1].start is not None


def test_read_during_a_pending_collective_takes_queued_path(rig: Passing, monkeypatch: pytest.MonkeyPatch) -> None:
    """The read may have to report the collective's failure."""
    client, device, given = rig.lane(), rig.process.device, []
    inline_path = rig.process.executor.inline_path
    give = inline_path.submit_read
    monkeypatch.setattr(inline_path, "submit_read", lambda *what: given.append(give(*what)) or given[-1])
    client.batch(read(1))
    assert value(client) == 0
    monkeypatch.setitem(device.tracks.pending_outcomes.open, object(), None)
    client.batch(read(2))
    assert value(client) == 0
    assert given[0] is not None and given[1] is None


# ---- which batches are looked at ----


def encoded(*commands: c.Command, seq: int = 3) -> bytes:
    data: bytes = device_pb2.ExecuteRequest(batch=c.Batch(seq=seq, commands=commands)).SerializeToString()
    return data


@pytest.mark.parametrize(
    "commands",
    [
        (),
        (write(1),),
        (write(1), write(2)),
        (sync(1), sync(2)),
        (read(1), read(2)),
        (sync(0),),
        (Command(read=c.Read(buffer=1, size=8)),),
        (Command(request=1, read=c.Read(buffer=1, size=8, transfer=2)),),
        (Command(request=1, read=c.Read(buffer=1, size=8, shared=c.Shared(segment=1))),),
        (Command(create_stream=c.CreateStream(stream=1)), sync(1)),
        (Command(), sync(1)),
        (Command(request=5, launches=launch(1)), sync(1)),
        (*[write(1)] * mixed_batch.MAX_COMMANDS, sync(1)),
        (Command(write=c.Write(buffer=1, data=bytes(mixed_batch.MAX_BYTES))), sync(1)),
    ],
)
def test_other_batches_are_left_alone(commands: tuple[c.Command, ...]) -> None:
    assert mixed_batch.read(encoded(*commands), 3) is None


def test_wrong_numbers_and_other_messages_take_queued_path() -> None:
    assert mixed_batch.read(encoded(write(1), sync(1)), 3) is not None
    assert mixed_batch.read(encoded(write(1), sync(1)), 4) is None
    assert mixed_batch.read(b"\xff\xff", 3) is None
    assert mixed_batch.read(b"", 0) is None
