"""Captures, command by command and through plain gRPC stubs: the commands allowed during a capture, and the state after
a refusal."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from hearth_proto.launches import Record, pack
from hearth_proto.reasons import Reason, from_status, stream_failures
from hearth_proto.v1 import commands_pb2 as c
from tests.support.daemon.harness import DaemonProcess, wait_until
from tests.support.daemon.kernels import COMMON
from tests.support.daemon.raw import KEEP, Execute, Raw, refused

N = 16
STREAM, OTHER, BUFFER, MODULE, FUNCTION, GRAPH, EVENT, PREPARED = 3, 4, 10, 20, 21, 30, 40, 50
ONE = c.Dim3(x=1)


def launch(function: int = FUNCTION, buffer: int = BUFFER, block: int = N) -> c.Launch:
    """Returns a launch of `add_one` on a buffer."""
    arguments = [c.Argument(pointer=c.Argument.Pointer(buffer=buffer)), c.Argument(int32=N)]
    return c.Launch(function=function, grid=ONE, block=c.Dim3(x=block), arguments=arguments)


def begin(graph: int = GRAPH, stream: int = STREAM) -> c.Command:
    return c.Command(stream=stream, begin_capture=c.BeginCapture(graph=graph))


def end(graph: int = GRAPH, stream: int = STREAM, discard: bool = False) -> c.Command:
    return c.Command(stream=stream, end_capture=c.EndCapture(graph=graph, discard=discard))


def run(graph: int = GRAPH, stream: int = STREAM, count: int = 1) -> c.Command:
    return c.Command(stream=stream, launch_graph=c.LaunchGraph(graph=graph, count=count))


def load(code: str = COMMON, module: int = MODULE, function: int = FUNCTION) -> list[c.Command]:
    return [
        c.Command(load_module=c.LoadModule(module=module, kind=c.CODE_KIND_CUDA_CPP, code=code.encode())),
        c.Command(get_function=c.GetFunction(function=function, module=module, name="add_one")),
    ]


def packed(function: int, buffer: int, block: int = N, stream: int = 0) -> bytes:
    """Returns a launch of `add_one` on a buffer, as a packed record."""
    layout, params = bytes.fromhex("0000088008000400"), bytes(8) + N.to_bytes(4, "little")
    return pack(Record(function, stream, (1, 1, 1), (block, 1, 1), 0, 0, 0, layout, (buffer,), params))


@pytest.fixture
def work(stream: Execute) -> Iterator[Execute]:
    """Two streams, a buffer of zeros and `add_one`; checks at the end that no stream has an unreported error."""
    zeros = c.Command(fill=c.Fill(buffer=BUFFER, size=4 * N, pattern=b"\0"))
    stream.batch(
        c.Command(create_stream=c.CreateStream(stream=STREAM)),
        c.Command(create_stream=c.CreateStream(stream=OTHER)),
        c.Command(allocate=c.Allocate(buffer=BUFFER, size=4 * N)),
        zeros,
        *load(),
    )
    yield stream
    for handle in (0, STREAM, OTHER):
        assert not stream.failures(handle)


def read(work: Execute, stream: int = OTHER, buffer: int = BUFFER) -> list[int]:
    """Returns the contents of the buffer, read on another stream than the one being captured."""
    result = work.ask(c.Command(stream=stream, read=c.Read(buffer=buffer, size=4 * N)))
    assert not result.HasField("error"), result
    return np.frombuffer(result.read.data, np.int32).tolist()


def error(result: c.Result) -> Any:
    """Returns the refusal of a command."""
    assert result.HasField("error"), result
    return from_status(result.error)


def ends_well(work: Execute, nodes: int = 1) -> None:
    """Checks that the current capture contains only `nodes` launches, and that it can be completed and run."""
    result = work.ask(end())
    assert not result.HasField("error"), from_status(result.error)
    assert [(node.kind, node.kernel) for node in result.graph.nodes] == [("kernel", "add_one")] * nodes
    before = read(work)
    assert not work.ask(run(count=2)).HasField("error")
    assert read(work) == [value + 2 * nodes for value in before]


# ---- during a capture ----


DIM = {"grid": ONE, "block": ONE}
REFUSED = [
    c.Command(write=c.Write(buffer=BUFFER, data=b"12345678")),
    c.Command(read=c.Read(buffer=BUFFER, size=8)),
    c.Command(sync=c.Sync()),
    c.Command(sync=c.Sync(all_streams=True)),
    c.Command(flush=c.Flush()),
    c.Command(wait_event=c.WaitEvent(event=EVENT)),
    c.Command(start_profile=c.StartProfile(profile=60)),
    c.Command(end_profile=c.EndProfile(profile=61)),
    c.Command(all_reduce=c.AllReduce(devices=[0], sequence=1, source=BUFFER, destination=BUFFER, count=1)),
    c.Command(collective=c.Collective(devices=[0], sequence=1)),
    c.Command(sync_collective=c.SyncCollective()),
    c.Command(dispatch=c.Dispatch(function=FUNCTION, **DIM)),
    c.Command(update_graph=c.UpdateGraph(graph=GRAPH + 1, launch=b"")),
    c.Command(),
]


@pytest.mark.parametrize("command", REFUSED, ids=lambda command: str(command.WhichOneof("kind")))
def test_commands_that_cannot_be_recorded_are_refused_without_effect(work: Execute, command: c.Command) -> None:
    """Each refusal names the command and the reason, and the capture can still be completed."""
    begun = c.Command(stream=OTHER, start_profile=c.StartProfile(profile=61))
    recorded = c.Command(stream=STREAM, launch=launch())
    work.batch(
        begun,
        c.Command(stream=STREAM, record_event=c.RecordEvent(event=EVENT)),
        begin(GRAPH + 1),
        end(GRAPH + 1),
        begin(),
        recorded,
    )
    asked = c.Command(stream=STREAM)
    asked.MergeFrom(command)
    refusal = error(work.ask(asked))
    kind = command.WhichOneof("kind") or "command"
    assert refusal.reason == Reason.CAPTURE_INVALID and refusal.fix
    assert kind in refusal.message and f"records graph {GRAPH}" in refusal.message
    ends_well(work)
    assert error(work.ask(c.Command(read=c.Read(buffer=99, size=8)))).reason == Reason.INVALID_HANDLE
    work.ask(c.Command(stream=OTHER, end_profile=c.EndProfile(profile=61)))


BESIDE = [
    c.Command(create_stream=c.CreateStream(stream=77)),
    c.Command(load_module=c.LoadModule(module=78, kind=c.CODE_KIND_CUDA_CPP, code=COMMON.encode())),
    c.Command(get_function=c.GetFunction(function=79, module=MODULE, name="mix")),
    c.Command(describe_module=c.DescribeModule(module=MODULE)),
    c.Command(describe_function=c.DescribeFunction(function=FUNCTION)),
    c.Command(query_event=c.QueryEvent(event=EVENT)),
    c.Command(destroy_event=c.DestroyEvent(event=EVENT)),
    c.Command(occupancy=c.Occupancy(function=FUNCTION, block=c.Dim3(x=64))),
    c.Command(memory_usage=c.MemoryUsage()),
    c.Command(memory_cleanup=c.MemoryCleanup()),
    c.Command(free=c.Free(buffers=[1])),
    c.Command(destroy_graph=c.DestroyGraph(graph=GRAPH + 1)),
]


@pytest.mark.parametrize("command", BESIDE, ids=lambda command: str(command.WhichOneof("kind")))
def test_commands_without_stream_work_are_executed_during_capture(work: Execute, command: c.Command) -> None:
    work.batch(c.Command(record_event=c.RecordEvent(event=EVENT)), begin(GRAPH + 1), end(GRAPH + 1), begin())
    asked = c.Command(stream=STREAM)
    asked.MergeFrom(command)
    result = work.ask(asked)
    assert not result.HasField("error"), from_status(result.error)
    work.batch(c.Command(stream=STREAM, launch=launch()))
    ends_well(work)


def test_a_one_way_command_that_is_refused_fails_the_capture(work: Execute) -> None:
    """A one-way command has no answer, so the end of the capture reports its refusal; a failure already reported to its
    caller fails the capture too."""
    work.batch(
        begin(), c.Command(stream=STREAM, launch=launch()), c.Command(stream=STREAM, sync_collective=c.SyncCollective())
    )
    result = work.ask(end())
    assert error(result).reason == Reason.CAPTURE_INVALID and "sync_collective" in error(result).message
    work.batch(begin(GRAPH + 1))
    assert error(work.ask(c.Command(stream=STREAM, launch=launch(block=1025)))).reason == Reason.LAUNCH_INVALID
    failed = work.ask(end(GRAPH + 1))
    assert "launch add_one could not be recorded" in error(failed).message
    assert [entry.command for entry in stream_failures(failed.error)] == ["launch add_one"]
    for graph in (GRAPH, GRAPH + 1):
        refusal = error(work.ask(run(graph)))
        assert refusal.reason == Reason.CAPTURE_INVALID and f"graph {graph} was not made" in refusal.message
        assert not work.ask(c.Command(destroy_graph=c.DestroyGraph(graph=graph))).HasField("error")
    assert read(work) == [0] * N


def test_discarding_always_succeeds(work: Execute) -> None:
    work.batch(
        begin(),
        c.Command(stream=STREAM, launch=launch()),
        c.Command(stream=STREAM, launch=launch(block=1025)),
        c.Command(stream=STREAM, launch=launch(buffer=12345)),
        c.Command(stream=STREAM, allocate=c.Allocate(buffer=98, size=8)),
    )
    assert not work.ask(end(discard=True)).HasField("error")
    assert error(work.ask(run())).reason == Reason.INVALID_HANDLE
    work.batch(begin(), c.Command(stream=STREAM, launch=launch()))  # a new capture with the same handle
    ends_well(work)


def test_single_call_discards_a_capture(raw: Raw) -> None:
    raw.call("BeginCapture", c.BeginCapture(graph=GRAPH))
    assert not raw.call("EndCapture", c.EndCapture(graph=GRAPH, discard=True)).nodes


def test_repeated_launch_is_recorded_in_a_capture(work: Execute) -> None:
    """The record equals, byte for byte, launches that ran on the stream before the capture, and launches that run after
    it."""
    again = c.Command(launches=3 * packed(FUNCTION, BUFFER, stream=STREAM))
    work.batch(again)
    work.batch(again)
    work.batch(begin(), again)
    assert read(work) == [6] * N
    ends_well(work, nodes=3)
    assert read(work) == [12] * N
    work.batch(again)
    assert read(work) == [15] * N


def test_the_default_stream_can_be_captured_too(work: Execute, daemon: DaemonProcess) -> None:
    """Commands that a client's garbage collector sends on the default stream have no effect on the capture; another
    session's default stream is a separate stream."""
    with Raw(daemon.unix) as other:
        work.batch(begin(stream=0), c.Command(launch=launch()), c.Command(free=c.Free(buffers=[KEEP])))
        assert other.read(other.buffer(b"12345678"), 8) == b"12345678"
        work.batch(
            c.Command(launches=packed(FUNCTION, BUFFER)), c.Command(destroy_stream=c.DestroyStream(stream=OTHER))
        )
        assert error(work.ask(c.Command(sync=c.Sync()))).reason == Reason.CAPTURE_INVALID
        assert len(work.ask(end(stream=0)).graph.nodes) == 2
    work.batch(c.Command(create_stream=c.CreateStream(stream=OTHER)), run(stream=0, count=4))
    assert read(work) == [8] * N


# ---- the order of steps ----


def test_transitions_follow_the_capture_order(work: Execute) -> None:
    """A step out of order is refused and changes nothing; a discarded capture leaves the stream unchanged."""
    for command, what in (
        (end(), "records no graph"),
        (end(discard=True), "records no graph"),
        (run(), "not live"),
    ):
        refusal = error(work.ask(command))
        assert what in refusal.message and refusal.fix, refusal
    work.batch(begin(), c.Command(stream=STREAM, launch=launch()))
    for command, reason, what in (
        (begin(GRAPH + 1), Reason.CAPTURE_INVALID, f"records graph {GRAPH} already"),
        (begin(GRAPH), Reason.HANDLE_IN_USE, "exists already"),
        (begin(0), Reason.INVALID_ARGUMENT, "0 cannot be"),
        (end(GRAPH + 1), Reason.CAPTURE_INVALID, f"records graph {GRAPH}, not graph {GRAPH + 1}"),
        (end(stream=OTHER), Reason.CAPTURE_INVALID, f"stream {OTHER} records no graph"),
        (run(stream=OTHER), Reason.CAPTURE_INVALID, "still being recorded"),
        (c.Command(destroy_graph=c.DestroyGraph(graph=GRAPH)), Reason.CAPTURE_INVALID, "still being recorded"),
    ):
        refusal = error(work.ask(command))
        assert refusal.reason == reason and what in refusal.message, refusal
    # the refused begin has created no graph
    assert error(work.ask(run(GRAPH + 1, OTHER))).reason == Reason.INVALID_HANDLE
    ends_well(work)
    assert "records no graph" in error(work.ask(end())).message
    assert error(work.ask(begin())).reason == Reason.HANDLE_IN_USE
    work.ask(c.Command(destroy_graph=c.DestroyGraph(graph=GRAPH)))
    work.batch(begin())
    work.ask(end(discard=True))
    work.batch(begin(), c.Command(stream=STREAM, launch=launch()))
    ends_well(work)


def test_a_stream_joins_a_capture_in_one_batch(work: Execute) -> None:
    """The wait decides on arrival, so that later commands of the same batch are recorded; the end names the stream that
    is not joined, and only the stream where the capture began can end it."""
    side = c.Command(stream=OTHER, launch=launch())
    work.batch(
        begin(),
        c.Command(stream=STREAM, launch=launch()),
        c.Command(stream=STREAM, record_event=c.RecordEvent(event=EVENT)),
        c.Command(stream=OTHER, wait_event=c.WaitEvent(event=EVENT)),
        side,
    )
    refusal = error(work.ask(end(stream=OTHER)))
    assert refusal.reason == Reason.CAPTURE_INVALID and f"end it on stream {STREAM}" in refusal.fix
    assert "sync on stream" in error(work.ask(c.Command(stream=OTHER, sync=c.Sync()))).message
    for command in (
        c.Command(query_event=c.QueryEvent(event=EVENT)),
        c.Command(elapsed_time=c.ElapsedTime(start=EVENT, end=EVENT)),
    ):
        assert f"in the capture of graph {GRAPH}" in error(work.ask(command)).message
    work.batch(
        c.Command(stream=OTHER, record_event=c.RecordEvent(event=EVENT)),
        c.Command(stream=STREAM, wait_event=c.WaitEvent(event=EVENT)),
    )
    result = work.ask(end())
    assert [list(node.after) for node in result.graph.nodes] == [[], [0]] and result.graph.forked
    assert read(work, stream=0) == [0] * N
    assert not work.ask(run(count=2)).HasField("error")
    assert read(work) == [4] * N
    work.batch(begin(GRAPH + 1), c.Command(stream=STREAM, record_event=c.RecordEvent(event=EVENT)), side)
    refusal = error(work.ask(c.Command(stream=OTHER, wait_event=c.WaitEvent(event=EVENT + 1))))
    assert refusal.reason == Reason.INVALID_HANDLE
    work.batch(c.Command(stream=OTHER, wait_event=c.WaitEvent(event=EVENT)), side)
    refusal = error(work.ask(end(GRAPH + 1)))
    assert f"the work of stream {OTHER} was not joined to stream {STREAM}" in refusal.message
    assert refusal.details["unjoined"] == str(OTHER)
    assert error(work.ask(c.Command(stream=OTHER, wait_event=c.WaitEvent(event=EVENT)))).reason == (
        Reason.CAPTURE_INVALID
    )
    assert read(work) == [5] * N


def test_destroying_a_stream_that_joined_keeps_the_capture(work: Execute) -> None:
    work.batch(
        begin(),
        c.Command(stream=STREAM, record_event=c.RecordEvent(event=EVENT)),
        c.Command(stream=OTHER, wait_event=c.WaitEvent(event=EVENT)),
        c.Command(stream=OTHER, launch=launch()),
        c.Command(stream=OTHER, record_event=c.RecordEvent(event=EVENT)),
        c.Command(stream=STREAM, wait_event=c.WaitEvent(event=EVENT)),
        c.Command(destroy_stream=c.DestroyStream(stream=OTHER)),
        c.Command(destroy_event=c.DestroyEvent(event=EVENT)),
        c.Command(create_stream=c.CreateStream(stream=OTHER)),
    )
    ends_well(work)


def test_refused_begin_of_a_capture_is_reported_on_the_stream(work: Execute) -> None:
    """A one-way begin that is refused neither affects the current capture nor goes unreported."""
    work.batch(begin(), c.Command(stream=STREAM, launch=launch()), begin(GRAPH + 1))
    assert not work.ask(end()).HasField("error")
    assert [failure.command for failure in work.failures(STREAM)] == ["begin_capture"]


def test_destroying_a_stream_discards_its_recording(work: Execute, daemon: DaemonProcess) -> None:
    work.batch(c.Command(stream=OTHER, launch=launch()))
    work.ask(c.Command(stream=OTHER, sync=c.Sync()))  # the module is loaded: no command below is deferred
    work.batch(
        begin(),
        c.Command(stream=STREAM, launch=launch()),
        c.Command(free=c.Free(buffers=[BUFFER])),
    )
    held = work.ask(c.Command(memory_usage=c.MemoryUsage())).memory_usage.bytes_in_use
    work.batch(c.Command(destroy_stream=c.DestroyStream(stream=STREAM)))
    assert error(work.ask(run(stream=OTHER))).reason == Reason.INVALID_HANDLE
    assert work.ask(c.Command(memory_usage=c.MemoryUsage())).memory_usage.bytes_in_use == held - 4 * N
    work.batch(
        c.Command(create_stream=c.CreateStream(stream=STREAM)),
        c.Command(allocate=c.Allocate(buffer=BUFFER, size=4 * N)),
        c.Command(fill=c.Fill(buffer=BUFFER, size=4 * N, pattern=b"\0")),
        begin(),
        c.Command(stream=STREAM, launch=launch()),
    )
    ends_well(work)


def test_everything_in_one_batch_before_the_compile_is_done(work: Execute) -> None:
    """Capture, use and update of a graph need no answer in between, even while its kernel is being compiled."""
    fresh = f"// {uuid.uuid4()}\n" + COMMON
    record = packed(71, BUFFER, N // 2)
    work.batch(
        *load(fresh, 70, 71),
        begin(),
        c.Command(stream=STREAM, launch=launch(71)),
        end(),
        run(count=5),
        c.Command(stream=OTHER, update_graph=c.UpdateGraph(graph=GRAPH, launch=record)),
        run(stream=OTHER, count=10),
        # ordered after the launch, although the daemon does not know the graph's nodes yet
        c.Command(copy=c.Copy(source=BUFFER, destination=1, size=4)),
        c.Command(fill=c.Fill(buffer=BUFFER, size=4, pattern=b"\0")),
        c.Command(destroy_graph=c.DestroyGraph(graph=GRAPH)),
    )
    assert read(work) == [0] + [15] * (N // 2 - 1) + [5] * (N // 2)
    assert work.ask(c.Command(read=c.Read(buffer=1, size=4))).read.data == (15).to_bytes(4, "little")


def test_kernel_that_does_not_compile_fails_its_graph(work: Execute) -> None:
    work.batch(*load("this is no kernel", 70, 71), begin(), c.Command(stream=STREAM, launch=launch(71)))
    refusal = error(work.ask(end()))
    assert refusal.reason == Reason.CAPTURE_INVALID and refusal.details["cause"] == Reason.COMPILE_FAILED
    assert not work.failures(STREAM)


# ---- single calls, floods, other sessions ----


def test_graphs_by_single_calls(raw: Raw) -> None:
    """Any gRPC tool can issue these calls."""
    buffer, function = raw.buffer(bytes(4 * N)), raw.function(COMMON, "add_one")
    raw.call("CreateStream", c.CreateStream(stream=STREAM))
    raw.call("BeginCapture", c.BeginCapture(graph=GRAPH), stream=STREAM)
    raw.call("Launch", launch(function, buffer), stream=STREAM)
    raw.call("Fill", c.Fill(buffer=buffer, size=4, pattern=b"\5\0\0\0"), stream=STREAM)
    assert refused(raw.call, "Sync", c.Sync(), stream=STREAM).reason == Reason.CAPTURE_INVALID
    answer = raw.call("EndCapture", c.EndCapture(graph=GRAPH), stream=STREAM)
    assert [node.kind for node in answer.nodes] == ["kernel", "fill"]
    raw.call("LaunchGraph", c.LaunchGraph(graph=GRAPH, count=3))
    assert np.frombuffer(raw.read(buffer, 4 * N), np.int32).tolist() == [5] + [3] * (N - 1)
    for command, reason in (
        (c.LaunchGraph(graph=GRAPH), Reason.INVALID_ARGUMENT),
        (c.LaunchGraph(graph=GRAPH + 1, count=1), Reason.INVALID_HANDLE),
    ):
        refusal = refused(raw.call, "LaunchGraph", command)
        assert refusal.reason == reason and refusal.fix
    malformed = c.UpdateGraph(graph=GRAPH, node=0, launch=b"nonsense")
    assert refused(raw.call, "UpdateGraph", malformed).reason == Reason.MALFORMED_MESSAGE
    raw.call("DestroyGraph", c.DestroyGraph(graph=GRAPH))
    for rpc, command in (
        ("LaunchGraph", c.LaunchGraph(graph=GRAPH, count=1)),
        ("UpdateGraph", c.UpdateGraph(graph=GRAPH)),
        ("DestroyGraph", c.DestroyGraph(graph=GRAPH)),
    ):
        assert refused(raw.call, rpc, command).reason == Reason.INVALID_HANDLE


def test_graphs_of_another_session_cannot_be_used(daemon: DaemonProcess, work: Execute) -> None:
    work.batch(begin(), c.Command(stream=STREAM, launch=launch()))
    assert not work.ask(end()).HasField("error")
    with Raw(daemon.unix) as stranger:
        for rpc, command in (
            ("LaunchGraph", c.LaunchGraph(graph=GRAPH, count=1)),
            ("DestroyGraph", c.DestroyGraph(graph=GRAPH)),
        ):
            assert refused(stranger.call, rpc, command).reason == Reason.INVALID_HANDLE
    assert read(work) == [0] * N


def test_a_flood_of_launches_ends_with_its_session(lossy: DaemonProcess) -> None:
    """More launches than will ever run, of a graph and of a prepared list; other sessions are served in the
    meantime."""
    before = {name: lossy.gauge(name) for name in ("memory_in_use_bytes", "commands_waiting")}
    count = lossy.counter("graph_launches")
    with Raw(lossy.unix) as flood:
        buffer, function = flood.buffer(bytes(4 * N)), flood.function(COMMON, "add_one")
        records = packed(function, buffer)
        with flood.execute() as stream:
            stream.batch(
                c.Command(create_stream=c.CreateStream(stream=STREAM)),
                begin(),
                c.Command(stream=STREAM, launch=launch(function, buffer)),
                end(),
                c.Command(prepare=c.Prepare(prepared=PREPARED, launches=records)),
                run(count=2**64 - 1),
                c.Command(stream=0, launch_prepared=c.LaunchPrepared(prepared=PREPARED, count=2**64 - 1)),
            )
            wait_until(lambda: lossy.counter("graph_launches") > count + 1000, "some launches")
            with Raw(lossy.unix) as other:
                assert other.read(other.buffer(b"12345678"), 8) == b"12345678"
    wait_until(lambda: lossy.gauge("memory_in_use_bytes") == before["memory_in_use_bytes"], "the session's end")
    assert lossy.gauge("commands_waiting") == before["commands_waiting"]
