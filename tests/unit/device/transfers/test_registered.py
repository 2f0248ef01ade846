"""Copies from and to shared memory, which have the same results whether they run in the iteration of the loop in which
they arrive, or in the next."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hearth_proto.frames import Kind
from hearth_proto.reasons import Reason, Refusal, from_status
from hearth_proto.v1 import commands_pb2 as c
from hearth_proto.v1 import device_pb2
from hearthd.device.backend.graph_nodes import HostCopyNode
from hearthd.device.flows import segment_policy as segments_policy
from hearthd.device.session.buffer import ReadOnly
from hearthd.device.transfers import registered
from tests.support.device.copy_commands import (
    SIZE,
    Asked,
    Sharing,
    Told,
    begin,
    read,
    shut,
    unanswered,
    write,
)
from tests.support.device.lane_rig import add, sync
from tests.support.device.passing import both_ways, prepared
from tests.support.device.rig import Command

PART = 96
"""Size, in bytes, of a part of a segment in these tests, so that copies have several parts."""


@pytest.fixture(scope="module", autouse=True)
def small_parts() -> Iterator[None]:
    def step(offset: int, left: int) -> int:
        return segments_policy.step(offset, left, PART)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registered, "step", step)
        yield


@pytest.fixture(params=[Told, Asked])
def rig(request: pytest.FixtureRequest) -> Iterator[Sharing]:
    yield from prepared(Sharing(request.param))


@pytest.fixture(scope="module", params=[Told, Asked])
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[Sharing, Sharing]]:
    yield from both_ways(Sharing, request.param)


# ---- the same programs in both iterations ----

PLACE = {"size": st.integers(1, SIZE // 2), "offset": st.integers(0, SIZE // 2)}
UP = st.builds(write, start=st.integers(0, SIZE // 2), stream=st.sampled_from([0, 0, 5]), **PLACE)
DOWN = st.builds(
    read, start=st.integers(SIZE, SIZE + SIZE // 2), stream=st.sampled_from([0, 0, 5]), request=st.just(1), **PLACE
)
WRONG = st.sampled_from(
    [
        {"size": 0},
        {"size": SIZE + 1},
        {"offset": SIZE},
        {"start": 2 * SIZE - 4},
        {"start": 1 << 63},
        {"buffer": 9},
        {"segment": 9},
        {"stream": 9},
    ]
)
ROWS = c.Rows(width=4, rows=4, pitch=16)
SHARED = c.Shared(segment=1, offset=8)
OTHERS = [
    add(3),
    Command(fill=c.Fill(buffer=1, size=SIZE, pattern=b"\7")),
    Command(write=c.Write(buffer=1, data=b"12345678")),
    Command(write=c.Write(buffer=1, size=16, rows=ROWS, shared=SHARED)),
    Command(write=c.Write(buffer=1, data=b"1", size=1, shared=SHARED)),
    Command(write=c.Write(buffer=1, size=8, transfer=7, shared=SHARED)),
    Command(request=1, read=c.Read(buffer=1, size=16, rows=ROWS, shared=SHARED)),
    Command(request=1, read=c.Read(buffer=1, size=16)),
    Command(request=1, sync=c.Sync()),
    Command(request=1, sync=c.Sync(all_streams=True)),
    Command(launches=add(1, buffer=9).launches),
]


class Step(NamedTuple):
    """A batch that is sent after all earlier batches have been answered.

    `refuses`, unless negative: the number of copies that the driver accepts before it refuses one. `apart`: each
    command is sent in a separate batch, one directly after the other.
    """

    commands: tuple[Command, ...]
    refuses: int
    apart: bool = False


@st.composite
def steps(draw: st.DrawFn) -> Step:
    kind = draw(st.integers(0, 7))
    if kind < 4:
        command = draw(st.one_of(UP, DOWN))
    elif kind == 4:
        make = draw(st.sampled_from([write, read]))
        command = make(**draw(WRONG))
    else:
        command = draw(st.sampled_from(OTHERS))
    asked = Command()
    asked.CopyFrom(command)
    if draw(st.integers(0, 7)) and command.WhichOneof("kind") != "launches":
        asked.request = 1
    behind = []
    if not asked.request or draw(st.integers(0, 2)) == 2:
        # Without another answer, a Sync of the command's stream reports its end: a Sync of another stream would race
        # with the next step.
        stream = draw(st.sampled_from([0, asked.stream])) if asked.request else asked.stream
        behind.append(Command(request=1, stream=stream, sync=c.Sync()))
    return Step((asked, *behind), draw(st.sampled_from([-1] * 9 + [0, 1])), draw(st.booleans()))


def counted(rig: Sharing) -> dict[str, Any]:
    """Returns the counters that do not depend on time."""
    stats = rig.all_counters()
    times = ("_ns", "slices")
    counters = {name: value for name, value in stats["counters"].items() if not name.endswith(times)}
    transfers = sum(stats["histograms"]["transfer"]["counts"])
    return {**counters, **stats["operations"], "transfers": transfers, **stats["reasons"]}


def run(rig: Sharing, program: Sequence[Step]) -> tuple[list[bytes], bytes, dict[str, int]]:
    """Returns the answers, the memory's contents, and the counters."""
    channel = next(rig.channels)
    rig.send(Kind.OPEN, b'{"session": "me", "tenant": "t"}', channel=channel)
    client = rig.lane(channel)
    connection, memory = rig.share(channel)
    signals = connection.share(7, 64, signals=True)
    memory[:] = bytes(index % 251 for index in range(2 * SIZE))
    client.batch(
        Command(load_module=c.LoadModule(module=1, kind=c.CODE_KIND_CUDA_CPP, code=rig.source)),
        Command(get_function=c.GetFunction(function=1, module=1, name="add")),
        Command(allocate=c.Allocate(buffer=1, size=SIZE)),
        Command(fill=c.Fill(buffer=1, size=SIZE, pattern=b"\0")),
        Command(create_stream=c.CreateStream(stream=5)),
        sync(1),
    )
    requests = itertools.count(3)
    answers = [client.response().SerializeToString()]
    client.batch(Command(request=2, describe_module=c.DescribeModule(module=1)))
    client.response()  # until the module is compiled, because compiles are counted too
    before = counted(rig)
    for step in [*program, Step((Command(request=1, sync=c.Sync(all_streams=True)),), -1)]:
        rig.server.takes = step.refuses
        commands = []
        for each in step.commands:
            command = Command()
            command.CopyFrom(each)
            if command.request:
                command.request = next(requests)
            commands.append(command)
        for batch in [[each] for each in commands] if step.apart else [commands]:
            client.batch(*batch)
        given = [client.until(Kind.RESPONSE).payload for each in commands if each.request]
        if len({each.stream for each in commands}) > 1 or any(each.sync.all_streams for each in commands):
            # answers of different streams may arrive in any order
            given.sort(key=lambda payload: device_pb2.ExecuteResponse.FromString(payload).result.request)
        answers += given
        rig.server.takes = -1
        ended = [device_pb2.ExecuteResponse.FromString(payload).result for payload in given]
        signalled = int.from_bytes(signals[:8], "little")
        for result in ended:
            rig.signalled += result.request == signalled
            assert result.request != signalled or not result.HasField("error")
    after = counted(rig)
    client.batch(read(SIZE, request=next(requests)))
    answers.append(client.until(Kind.RESPONSE).payload)
    held = memory[:]
    assert rig.end_lane(channel) == client.seq
    acks = [frame.id for frame in rig.copies() if frame.channel == channel and frame.id]
    assert acks == sorted(set(acks)) and acks[-1] == client.seq
    rig.send(Kind.CLOSE, channel=channel)
    rig.until(Kind.CLOSED)
    rig.settled()
    client.end.close()
    connection.end.close()
    memory.close()
    signals.close()
    return answers, held, {name: value - before.get(name, 0) for name, value in after.items()}


@given(st.lists(steps(), min_size=1, max_size=8))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_copies_give_same_results(pair: tuple[Sharing, Sharing], program: list[Step]) -> None:
    on_arrival, later = pair
    found, other = run(on_arrival, program), run(later, program)
    assert found[0] == other[0]
    assert found[1] == other[1]
    assert found[2] == other[2]


def test_most_batches_run_on_arrival(pair: tuple[Sharing, Sharing]) -> None:
    """Otherwise the comparison would prove nothing."""
    on_arrival, later = pair
    program = [Step((write(200, 8, 16, request=1),), -1), Step((read(200, 8, request=1),), -1)] * 10
    ran, signalled = on_arrival.ran, (on_arrival.signalled, later.signalled)
    assert run(on_arrival, program) == run(later, program)
    assert on_arrival.ran - ran >= 21 and not later.ran
    assert on_arrival.signalled - signalled[0] >= 20 and later.signalled - signalled[1] >= 20


# ---- copies, and their outcomes ----


def error(response: device_pb2.ExecuteResponse) -> Refusal:
    return from_status(response.result.error)


def test_round_trip_of_bytes(rig: Sharing) -> None:
    client, _, memory = begin(rig)
    for number in range(1, 100):
        memory[:SIZE] = bytes((index * number) % 251 for index in range(SIZE))
        size = 1 + number % (SIZE // 2)
        client.batch(write(size, number, number, buffer=2, request=2 * number))
        assert client.response().result.HasField("done")
        client.batch(read(size, number, SIZE, buffer=2, request=2 * number + 1))
        result = client.response().result
        assert result.request == 2 * number + 1 and result.read == c.ReadResult(size=size)
        assert memory[SIZE : SIZE + size] == memory[number : number + size]
    assert rig.ran == 199


def test_slow_copy_is_answered_together_with_the_wait_after_it(rig: Sharing) -> None:
    client, _, memory = begin(rig)
    memory[:8] = b"12345678"
    for number in range(2, 20, 2):
        gate = shut(rig)
        client.batch(write(request=number, buffer=2))
        client.batch(Command(request=number + 1, sync=c.Sync(all_streams=bool(number % 4))))
        rig.submitted(client)
        unanswered(client)
        gate.set()
        assert [client.response().result.request for _ in range(2)] == [number, number + 1]


def test_wait_for_further_work_does_not_end_with_the_copy(rig: Sharing) -> None:
    client, _, _ = begin(rig)
    gate = shut(rig)
    client.batch(write(request=2, buffer=2))
    client.batch(Command(fill=c.Fill(buffer=2, size=SIZE, pattern=b"\7")))
    rig.submitted(client)
    behind = shut(rig)
    client.batch(Command(request=3, sync=c.Sync()))
    rig.submitted(client)
    gate.set()
    assert client.response().result.request == 2
    rig.barrier()
    unanswered(client)
    behind.set()
    assert client.response().result.request == 3


def test_session_ends_while_its_copy_is_awaited(rig: Sharing) -> None:
    client, _, _ = begin(rig)
    gate = shut(rig)
    client.batch(write(request=2, buffer=2))
    client.batch(Command(request=3, sync=c.Sync()))
    rig.submitted(client)
    rig.send(Kind.CLOSE, channel=1)
    rig.barrier()
    gate.set()
    rig.until(Kind.CLOSED)
    rig.settled()
    rig.send(Kind.OPEN, b'{"session": "other", "tenant": "t"}', channel=90)
    other = rig.lane(90)
    other.batch(sync(1))
    assert other.response().result.request == 1


def test_failure_before_a_copy_is_raised_by_a_read(rig: Sharing) -> None:
    client, _, _ = begin(rig)
    client.batch(Command(write=c.Write(buffer=9, data=b"1")))
    client.batch(write(request=2, buffer=2))
    assert client.response().result.HasField("done"), "a write has nothing to do with it"
    client.batch(read(request=3, buffer=2))
    assert "buffer 9" in error(client.response()).message
    client.batch(read(request=4, buffer=2))
    assert client.response().result.HasField("read")


def test_a_buffer_that_cannot_be_written_to(rig: Sharing) -> None:
    client, _, _ = begin(rig)
    session = rig.process.executor.session(1)
    assert session is not None
    session.buffers.items[2].read_only = ReadOnly("is published", "make a copy")
    client.batch(write(request=2, buffer=2))
    assert error(client.response()).reason == Reason.READ_ONLY
    client.batch(read(request=3, buffer=2))
    assert client.response().result.HasField("read")


@pytest.mark.parametrize("taken", [0, 1])
@pytest.mark.parametrize("make", [write, read])
def test_a_copy_that_the_driver_refuses_keeps_nothing(rig: Sharing, make: Any, taken: int) -> None:
    client, connection, _ = begin(rig)
    rig.server.takes = taken
    client.batch(make(SIZE, request=2, buffer=2))
    response = client.response()
    assert "the driver refuses this copy" in error(response).message and response.result.request == 2
    client.batch(make(SIZE, request=3, buffer=2))
    assert not client.response().result.HasField("error")
    connection.release(1)
    rig.settled()
    assert rig.end_lane() == client.seq


def test_segment_released_during_a_copy(rig: Sharing) -> None:
    client, connection, memory = begin(rig)
    memory[:8] = b"12345678"
    gate = shut(rig)
    client.batch(write(request=2, buffer=2))
    rig.submitted(client)
    connection.release(1)
    connection.share(2, SIZE).close()  # answered after all earlier messages have been handled
    client.batch(write(request=3, buffer=2))
    assert error(client.response()).reason == Reason.INVALID_HANDLE
    assert rig.gauges()["segments"] == 2
    connection.release(2)
    gate.set()
    assert client.response().result.request == 2
    rig.settled()
    assert rig.call(read=c.Read(buffer=2, size=8)).read.data == b"12345678"


@pytest.mark.parametrize("gone", ["client", "session"])
def test_a_departed_session_harms_no_other(rig: Sharing, gone: str) -> None:
    client, connection, _ = begin(rig)
    gate = shut(rig)
    client.batch(write(request=2, buffer=2))
    rig.submitted(client)
    if gone == "client":
        client.end.close()
        connection.end.close()
    else:
        rig.send(Kind.CLOSE, channel=1)
    rig.barrier()
    gate.set()
    if gone == "session":
        rig.until(Kind.CLOSED)
    rig.settled()
    rig.send(Kind.OPEN, b'{"session": "other", "tenant": "t"}', channel=90)
    other = rig.lane(90)
    other.batch(sync(1))
    assert other.response().result.request == 1


def test_batches_forwarded_by_the_front(rig: Sharing) -> None:
    _, memory = rig.share()
    memory[:8] = b"12345678"
    for number in range(1, 21):
        rig.batch(write(request=number) if number % 2 else read(request=number))
        answer = rig.until(Kind.RESPONSE)
        assert device_pb2.ExecuteResponse.FromString(answer.payload).result.request == number
        assert answer.id in (number, 0) and not answer.flags, "0: the copy was slow, so that the ack was sent before"
    assert rig.ran == 20 and memory[SIZE : SIZE + 8] == b"12345678"
    assert rig.counters()["batches"] == 20


# ---- captures ----


@pytest.mark.parametrize("rows", [None, c.Rows(width=40, rows=5, pitch=48)])
@pytest.mark.parametrize("make", [write, read])
def test_a_captured_copy_crosses_no_border_between_parts(
    rig: Sharing, make: Any, rows: c.Rows | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy is one node of the graph, and its result is that of the copy outside a graph."""
    client, _, memory = begin(rig)
    copy = make(200, start=8, buffer=2)
    if rows is not None:
        (copy.write if make is write else copy.read).rows.CopyFrom(rows)
    captured: list[HostCopyNode] = []
    create = rig.server.create_graph

    def create_graph(nodes: list[HostCopyNode], orders: object = None) -> object:
        captured.extend(nodes)
        return create(nodes, orders)

    monkeypatch.setattr(rig.server, "create_graph", create_graph)
    client.batch(
        Command(begin_capture=c.BeginCapture(graph=1)), copy, Command(request=2, end_capture=c.EndCapture(graph=1))
    )
    assert len(client.response().result.graph.nodes) == 1
    ends = [(piece.offset, piece.offset + piece.width * piece.rows) for (node,) in [captured] for piece in node.pieces]
    assert [start for start, _ in ends] == [8, *(end for _, end in ends[:-1])] and ends[-1][1] == 208
    assert len(ends) > 2 and all(start // PART == (end - 1) // PART for start, end in ends)
    outcomes = []
    copy.request = 4
    for command in (copy, Command(request=4, launch_graph=c.LaunchGraph(graph=1, count=1))):
        client.batch(Command(fill=c.Fill(buffer=2, size=SIZE, pattern=b"\7")), sync(3))
        client.response()
        memory[:] = bytes(index % 251 for index in range(2 * SIZE))
        client.batch(command, sync(5))
        answers = [client.response().result for _ in range(2)]
        assert [answer.request for answer in answers] == [4, 5] and not answers[0].HasField("error")
        client.batch(read(SIZE, buffer=2, request=6))
        client.response()
        outcomes.append(memory[:])
    assert outcomes[0] == outcomes[1]
    client.batch(Command(request=7, destroy_graph=c.DestroyGraph(graph=1)))
    client.response()
