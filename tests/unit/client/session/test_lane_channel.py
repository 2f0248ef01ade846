"""Lanes: work that bypasses gRPC, and lanes that break, stall, or never go live."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hearth
from hearth.session import lane_channel, send_queue
from hearth.session.attachment import Attachment
from hearth.session.collective_order import WORTH
from hearth.session.lane_channel import GATHER
from hearth.session.protocol import Session
from hearth.session.send_queue import Limits
from hearth.session.timing import TIMING, Timing
from hearth.session.waiters import Waiters
from hearth.transport import base
from hearth.transport.lane import open_lane
from hearth_proto import reasons
from hearth_proto.v1 import commands_pb2, device_pb2
from tests.support.client import waits
from tests.support.client.fake_daemon import FakeDaemon, Response
from tests.support.client.internals import connection_of, handle_of
from tests.support.client.interrupts import interrupted_wait
from tests.support.client.lane_daemon import LaneDaemon, serving
from tests.support.client.lane_timeouts import HOLD_S
from tests.support.compiled import skip_if_compiled
from tests.support.timing import LATE

wait_for = partial(waits.wait_for, seconds=2 * LATE)


@pytest.fixture
def daemon() -> Iterator[LaneDaemon]:
    with serving() as daemon:
        yield daemon


def attachment(gpu: hearth.Device) -> Attachment:
    return connection_of(gpu).attachment()


def note(number: int) -> commands_pb2.Command:
    """Builds a one-way command that the fake daemon records."""
    return commands_pb2.Command(create_stream=commands_pb2.CreateStream(), stream=number)


def notes(daemon: FakeDaemon) -> list[int]:
    return [command.stream for command in daemon.commands if command.WhichOneof("kind") == "create_stream"]


def ask() -> commands_pb2.Command:
    return commands_pb2.Command(memory_usage=commands_pb2.MemoryUsage())


def test_work_is_sent_over_the_lane(daemon: LaneDaemon, gpu: hearth.Device) -> None:
    x = gpu.zeros(3)
    x.fill(2)
    assert x.get().sum() == 6
    for _ in range(200):
        gpu.synchronize()
    assert daemon.batches and not daemon.over_grpc
    assert daemon.told and daemon.told == sorted(daemon.told), "receipts are sent over the lane"
    assert daemon.attaches == 1 and not daemon.tickets


def test_waiting_work_is_sent_before_the_threads_of_the_lane_start(monkeypatch: pytest.MonkeyPatch) -> None:
    session, sent, sent_before = Session(Limits()), [], []
    session.receive(device_pb2.ExecuteResponse(attached=device_pb2.Attached(generation=1)))
    session.add(note(7).SerializeToString())

    class Sink:
        blocked = False

        def send(self, seq: int, request: bytes) -> None:
            sent.append(seq)

    class Late:
        def __init__(self, **_: object) -> None: ...
        def start(self) -> None:
            sent_before.append(len(sent))

    monkeypatch.setattr(lane_channel, "threading", SimpleNamespace(Thread=Late, Condition=threading.Condition))
    owner, waiters = SimpleNamespace(session=session), Waiters(threading.Lock())
    with waiters.lock:
        lane_channel.LaneChannel(Sink(), owner, waiters, lambda: None, Timing()).start("lane")  # type: ignore[arg-type]
    assert (sent, sent_before) == ([1], [1, 1])


def test_single_commands_are_sent_immediately_and_many_are_batched(daemon: LaneDaemon, gpu: hearth.Device) -> None:
    gpu.synchronize()
    work = attachment(gpu)
    before = len(daemon.batches)
    work.submit(note(1))
    assert wait_for(lambda: notes(daemon) == [1])
    daemon.gate.clear()
    for number in range(2, 2000):
        work.submit(note(number))
    daemon.gate.set()
    gpu.synchronize()
    assert notes(daemon) == list(range(1, 2000))
    assert len(daemon.batches) - before < 500


def test_array_dropped_while_the_lock_is_held_is_freed_soon(daemon: LaneDaemon, gpu: hearth.Device) -> None:
    """The garbage collector runs anywhere, also in a thread that holds the attachment's lock."""
    connection_of(gpu).timing = Timing(idle=60.0)  # after this time, the sending thread takes queued work
    x = gpu.empty(16)
    gpu.synchronize()
    work = attachment(gpu)
    assert wait_for(lambda: work.channel and work.channel.inspect().sender_waits)
    with work.waiters.lock:
        del x
    assert wait_for(lambda: daemon.count("free") == 1)


def test_collectives_are_sent_in_several_concurrent_batches(daemon: LaneDaemon, gpu: hearth.Device) -> None:
    """Collectives: each batch is in flight until all ranks have reached it, and later batches are not held back for
    that."""
    connection_of(gpu).timing = Timing(idle=60.0)  # after this time, the sending thread takes queued work
    gpu.synchronize()
    work = attachment(gpu)
    daemon.gate.clear()
    base, sent = work.session.next_seq, [1]
    work.submit(note(1), WORTH)
    assert wait_for(lambda: work.session.next_seq > base), "a lone command is sent at the latest when no other follows"
    assert wait_for(lambda: work.channel and work.channel.inspect().sender_waits), (
        "the sending thread sends everything queued when it starts"
    )
    for number in range(2, 42):
        work.submit(note(number), WORTH)
        if work.session.next_seq - base > len(sent):
            sent.append(number)
    assert sent == [1, 1 + GATHER * 4 // WORTH, 1 + GATHER * 4 // WORTH + GATHER * 16 // WORTH]
    assert not work.session.queue.queued and not work.session.queue.extra_cost
    daemon.gate.set()
    gpu.synchronize()
    assert notes(daemon) == list(range(1, 42))


def test_submission_does_not_wait_for_the_sending_thread(daemon: LaneDaemon, gpu: hearth.Device) -> None:
    assert TIMING.lane_yield < 1e-3
    connection_of(gpu).timing = Timing(yield_interval=-1.0, lane_yield=0.05)  # every command counts as late
    gpu.synchronize()
    work = attachment(gpu)
    daemon.gate.clear()
    began = time.monotonic()
    for number in range(1, 11):
        work.submit(note(number))
    waited = time.monotonic() - began
    daemon.gate.set()
    gpu.synchronize()
    assert 0.05 <= waited < LATE, "the submission waits for the receiving thread's turn, and not until a batch is sent"


@pytest.mark.parametrize("flaw", ["silent", "no_path", "no_ticket", "no_listener"])
def test_work_is_sent_over_the_stream_without_a_lane(
    daemon: LaneDaemon, monkeypatch: pytest.MonkeyPatch, flaw: str, tmp_path: Path
) -> None:
    monkeypatch.setattr(base, "open_lane", partial(open_lane, seconds=0.05))
    if flaw == "silent":
        daemon.silent = True
    elif flaw == "no_path":
        daemon.path = str(tmp_path / "nothing.sock")
    elif flaw == "no_listener":
        daemon.path = str(tmp_path)
    else:
        daemon.tickets = _Deaf()
    with hearth.connect(daemon.target) as node:
        connection_of(node.device(0)).timing = Timing(lane_retry=600.0)
        for _ in range(3):
            node.device(0).synchronize()
    assert daemon.over_grpc >= 3 and daemon.attaches == 1


def test_a_lane_that_was_missed_is_opened_later(daemon: LaneDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session on a machine that was busy for a second gets a lane later. The stream is kept while answers are
    pending, and each further attempt waits longer."""
    monkeypatch.setattr(base, "open_lane", partial(open_lane, seconds=0.05))
    daemon.silent = True
    began = time.monotonic()
    with hearth.connect(daemon.target) as node:
        gpu = node.device(0)
        connection_of(gpu).timing = Timing(lane_retry=0.2)
        gpu.synchronize()
        work = attachment(gpu)
        while daemon.attaches < 3:
            gpu.synchronize()
        assert time.monotonic() - began > 0.2 + 0.4 and daemon.lane is None
        daemon.never_answer.add("memory_usage")
        owed = work.request(ask())
        time.sleep(1.0)
        gpu.synchronize()
        assert daemon.attaches == 3, "not while commands are in flight"
        daemon.silent = False
        [command] = [command for command in daemon.commands if command.WhichOneof("kind") == "memory_usage"]
        result = commands_pb2.Result(request=command.request)
        result.done.SetInParent()
        with daemon.working:
            daemon.say(Response(result=result))
        owed.wait(20)

        def channel() -> bool:
            gpu.synchronize()
            return daemon.lane is not None

        assert wait_for(channel, seconds=60.0)
        assert daemon.attaches >= 4
        over_grpc = daemon.over_grpc
        gpu.synchronize()
        assert daemon.over_grpc == over_grpc
        assert work.session.receipts.responses == len(daemon.kept)


class _Deaf(set[bytes]):
    """Set of tickets in which no ticket is found."""

    def __contains__(self, ticket: object) -> bool:
        return False


def test_lanes_can_be_declined(daemon: LaneDaemon) -> None:
    with hearth.connect(daemon.target, lanes=False) as node:
        node.device(0).synchronize()
    assert daemon.over_grpc and daemon.tickets and not daemon.lanes


def test_a_lane_that_ends_is_resumed_from(daemon: LaneDaemon, gpu: hearth.Device) -> None:
    channel = connection_of(gpu).transport.call_channel.channel()  # type: ignore[attr-defined]
    for number in range(1, 6):
        gpu.synchronize()
        lane = daemon.lane
        assert lane is not None
        lane.close()
        assert gpu.memory_usage() is not None
        assert wait_for(lambda number=number: daemon.attaches == number + 1)
    execute = attachment(gpu).execute
    assert execute is not None and len(execute.outages) == 5
    assert wait_for(lambda: daemon.lane is not None), "another lane after each break"
    assert not daemon.over_grpc
    assert connection_of(gpu).transport.call_channel.channel() is channel, "other devices' streams are on it"  # type: ignore[attr-defined]


@pytest.mark.parametrize("beside", ["message", "end"])
def test_messages_on_the_stream_during_a_lane_break_the_connection(
    daemon: LaneDaemon, gpu: hearth.Device, beside: str
) -> None:
    gpu.synchronize()
    stray = Response(event=device_pb2.Event(output=device_pb2.Output(text="stray")))
    daemon.sink.put(stray if beside == "message" else None)
    assert wait_for(lambda: daemon.attaches == 2 and daemon.lane)
    gpu.synchronize()
    assert attachment(gpu).session.receipts.responses == len(daemon.kept), "the stray one was not counted"


def test_garbage_on_a_lane_breaks_the_lane(daemon: LaneDaemon, gpu: hearth.Device) -> None:
    for garbage in (b"\xff" * 40, b"\x01\x00\x00\x00\x21" + bytes(15) + b"\xff", bytes(20)):
        gpu.synchronize()
        attaches, lane = daemon.attaches, daemon.lane
        assert lane is not None
        lane.connection.sendall(garbage)
        assert wait_for(lambda attaches=attaches: daemon.attaches == attaches + 1)
        gpu.synchronize()


def test_a_wrong_answer_ends_the_attachment(daemon: LaneDaemon, gpu: hearth.Device) -> None:
    gpu.synchronize()
    first, lane = attachment(gpu), daemon.lane
    assert lane is not None
    lane.answer(Response(ack=device_pb2.Ack(seq=10**6)))
    assert wait_for(first.over.is_set)
    assert first.session.error is not None and first.session.error.reason == "MALFORMED_MESSAGE"
    gpu.synchronize()
    assert attachment(gpu) is not first


def test_lost_device_is_reported_over_a_lane(daemon: LaneDaemon, gpu: hearth.Device) -> None:
    x = gpu.zeros(3)
    daemon.lose_on = "sync"
    with pytest.raises(hearth.DeviceLostError, match="died") as caught:
        gpu.synchronize()
    assert caught.value.details["in_flight"] == "saxpy"
    gpu.synchronize()
    with pytest.raises(hearth.BufferLostError):
        x.get()
    assert gpu.zeros(3).get().sum() == 0 and not daemon.over_grpc


def test_unawaited_responses_are_received(daemon: LaneDaemon, gpu: hearth.Device) -> None:
    gpu.synchronize()
    session = attachment(gpu).session
    printed: list[str] = []
    session.on_output = printed.append
    with daemon.working:
        daemon.say(Response(event=device_pb2.Event(output=device_pb2.Output(text="hello"))))
    assert wait_for(lambda: printed == ["hello"])
    reply = attachment(gpu).request(ask(), reports=True)
    reply.abandon()
    assert wait_for(lambda: reply.done)
    daemon.fail_next["memory_usage"] = reasons.Refusal(reasons.Reason.OUT_OF_MEMORY, "full")
    attachment(gpu).request(ask(), reports=True).abandon()
    assert wait_for(lambda: connection_of(gpu).late_errors)
    with pytest.raises(hearth.HearthError, match="full"):
        gpu.synchronize()


def test_buffers_that_are_dropped_are_freed(daemon: LaneDaemon, gpu: hearth.Device) -> None:
    x = gpu.zeros(3)
    x.get()
    del x
    gc.collect()
    assert wait_for(lambda: daemon.count("free") == 1)


def test_submission_never_waits_for_an_unresponsive_device(daemon: LaneDaemon, gpu: hearth.Device) -> None:
    gpu.synchronize()
    work = attachment(gpu)
    x = gpu.zeros(1 << 20, dtype="u1")
    x.get()
    daemon.gate.clear()
    data = bytes(1 << 19)
    started = time.monotonic()
    replies = []
    for _ in range(10):
        work.submit(commands_pb2.Command(write=commands_pb2.Write(buffer=handle_of(x), data=data)))
        replies.append(work.request(ask()))
    assert time.monotonic() - started < LATE
    with pytest.raises(hearth.TimeoutError):
        replies[0].wait(0.05)
    daemon.gate.set()
    for reply in replies[1:]:
        reply.wait(10)
    assert daemon.count("write") == 10


def test_many_threads(daemon: LaneDaemon, gpu: hearth.Device) -> None:
    gpu.synchronize()
    failures: list[BaseException] = []

    def use(first: int) -> None:
        try:
            for number in range(first, first + 200):
                work = attachment(gpu)
                work.submit(note(number))
                work.request(ask()).wait(10)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=use, args=(1000 * i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for done in range(150, 900, 150):
        assert wait_for(lambda done=done: len(notes(daemon)) > done)
        if lane := daemon.lane:
            lane.close()
    for thread in threads:
        thread.join(30)
    assert not failures
    assert sorted(notes(daemon)) == [1000 * i + j for i in range(6) for j in range(200)]
    for i in range(6):
        mine = [number for number in notes(daemon) if number // 1000 == i]
        assert mine == sorted(mine)


def test_a_wait_that_is_interrupted(daemon: LaneDaemon, gpu: hearth.Device) -> None:
    gpu.synchronize()
    daemon.never_answer.add("memory_usage")
    reply = attachment(gpu).request(ask())
    with pytest.raises(KeyboardInterrupt), interrupted_wait(attachment(gpu)):
        reply.wait(60)
    assert reply.abandoned
    gpu.synchronize()
    assert daemon.attaches == 1


def test_sending_that_is_interrupted_loses_nothing(
    daemon: LaneDaemon, gpu: hearth.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    skip_if_compiled(send_queue)
    gpu.synchronize()
    work = attachment(gpu)
    assert wait_for(lambda: work.session.idle), "a lone command is sent by the submitting thread"
    whole = work.session.queue.move

    def interrupted(*arguments: object) -> None:
        monkeypatch.undo()
        whole(*arguments)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    monkeypatch.setattr(work.session.queue, "move", interrupted)
    with pytest.raises(KeyboardInterrupt):
        work.submit(note(1))
    work.submit(note(2))
    gpu.synchronize()
    assert notes(daemon) == [1, 2] and daemon.attaches == 2
    assert work.session.error is None


def test_closed_node_leaves_no_threads(daemon: LaneDaemon) -> None:
    def lanes() -> list[str]:
        return [thread.name for thread in threading.enumerate() if "lane" in thread.name]

    for _ in range(3):
        with hearth.connect(daemon.target) as node:
            node.device(0).synchronize()
            lane = daemon.lane
            assert lane is not None and len(lanes()) == 2
        assert wait_for(lambda lane=lane: lane.over), "the daemon detects the end of the lane"
        assert wait_for(lambda: not lanes())
    gc.collect()


def test_descriptors_of_lanes_are_closed(daemon: LaneDaemon, gpu: hearth.Device) -> None:
    def open_lanes() -> int:
        channel = attachment(gpu).channel
        return 0 if channel is None else channel.lane.fileno()

    gpu.synchronize()
    first = open_lanes()
    for _ in range(20):
        assert wait_for(lambda: daemon.lane is not None)
        lane, attaches = daemon.lane, daemon.attaches
        assert lane is not None
        lane.close()
        assert wait_for(lambda attaches=attaches: daemon.attaches > attaches)
        gpu.synchronize()
    assert open_lanes() < first + 20, "descriptors of old lanes are closed"


def test_a_fork_leaves_the_lane_to_the_parent(daemon: LaneDaemon) -> None:
    code = f"""
import os, hearth
from tests.support.client.internals import connection_of
node = hearth.connect({daemon.target!r})
gpu = node.device(0)
x = gpu.zeros(3)
x.get()
channel = connection_of(gpu).attachment().channel
assert channel is not None
child = os.fork()
if child == 0:
    refused = 0
    try:
        gpu.synchronize()
    except hearth.ClosedError:
        refused = 5 if channel.lane.fileno() == -1 else 6
    node.close()
    os._exit(refused)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
assert x.get().sum() == 0 and connection_of(gpu).attachment().channel is channel
"""
    _run(code)
    assert daemon.attaches == 1 and daemon.closed_tokens == ["t"]


def test_a_lane_does_not_keep_a_process(daemon: LaneDaemon) -> None:
    started = time.monotonic()
    code = f"import hearth; g = hearth.connect({daemon.target!r}).device(0); x = g.zeros(3); g.synchronize(); x.fill(1)"
    assert _run(code) == ""
    assert time.monotonic() - started < LATE
    assert daemon.count("fill") == 2 and daemon.closed_tokens == ["t"] and not daemon.over_grpc


def _run(code: str) -> str:
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, timeout=60, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_lane_is_opened_after_pending_answers(daemon: LaneDaemon, gpu: hearth.Device) -> None:
    """A pending answer is sent over the new stream, or kept; a lane is opened only after it."""
    timing = connection_of(gpu).timing = Timing(lane_hold=HOLD_S)
    gpu.synchronize()
    timing.lane_hold = 0.25
    work = attachment(gpu)
    daemon.never_answer.add("memory_usage")
    owed = work.request(ask())
    lane = daemon.lane
    assert wait_for(lambda: daemon.count("memory_usage") == 1) and lane is not None
    lane.close()
    assert wait_for(lambda: daemon.attaches == 2)
    gpu.synchronize()
    assert daemon.over_grpc and daemon.lane is None, "after a bounded number of lanes, work continues over the stream"
    with daemon.working:
        [command] = [command for command in daemon.commands if command.WhichOneof("kind") == "memory_usage"]
        result = commands_pb2.Result(request=command.request)
        result.done.SetInParent()
        daemon.kept.append(Response(result=result))
        daemon.sink.put(daemon.kept[-1])
    owed.wait(5)


_steps = st.lists(st.one_of(st.integers(1, 60), st.just(0)), min_size=1, max_size=12)
_cut = st.tuples(st.integers(0, 600), st.integers(0, 300))


@settings(max_examples=60, deadline=None)
@given(steps=_steps, cuts=st.lists(_cut, max_size=6))
def test_commands_run_once_and_replies_arrive_once_across_cuts(steps: list[int], cuts: list[tuple[int, int]]) -> None:
    with serving() as daemon:
        daemon.cuts = list(cuts)
        with hearth.connect(daemon.target) as node:
            work, number, replies = attachment(node.device(0)), 0, []
            for step in steps:
                for _ in range(step):
                    number += 1
                    work.submit(note(number))
                replies.append(work.request(ask()))
                if not step:
                    replies[-1].wait(10)
            for reply in replies:
                reply.wait(10)  # completing a reply twice would raise in the completing thread
            assert work.session.error is None
        assert notes(daemon) == list(range(1, number + 1))
        assert daemon.count("memory_usage") == len(replies) == len(daemon.kept)
