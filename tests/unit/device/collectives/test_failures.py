"""Launched collectives that fail: the error appears on their stream, and their results reach no client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from hearth_proto import descriptors, frames
from hearth_proto.frames import Kind
from hearth_proto.reasons import Reason, Refusal, from_status
from hearth_proto.v1 import commands_pb2 as c
from tests.support.device import segment_client
from tests.support.device.local_broker import device_process
from tests.support.device.peers import WRITTEN, FakeCommunicator, PeerRig, collective, encode, operation

LOST = Refusal(Reason.COMMUNICATOR_FAILED, "device 1 was lost", details={"recorder": "1: all_reduce"})
GROUP = bytes(range(16))


class SharingRig(PeerRig):
    """A rank whose client can share memory with it."""

    def __init__(self) -> None:
        self.files, self.their_files = descriptors.pair()
        super().__init__()

    def _main(self) -> None:
        self.server = self._make(self._spec)
        self.process = device_process(self._theirs, self._spec, self.server, self.their_files)
        self.process.run()

    def stop(self) -> None:
        super().stop()
        self.files.close()
        self.their_files.close()


@pytest.fixture
def rig() -> Iterator[PeerRig]:
    peer_rig = PeerRig()
    yield peer_rig
    peer_rig.close()


def launch(rig: PeerRig, *commands: c.Command, comm: str = "a-1", index: int = 1) -> None:
    """Presents the commands' operations and releases them for launch."""
    rig.batch(*commands)
    for number in range(len(commands)):
        rig.go(rig.hear("present"), index + number, comm)


def launched(rig: PeerRig, *operations: Any, **more: Any) -> FakeCommunicator:
    """Launches operations; returns their communicator, whose outcome is pending."""
    peer = rig.join()
    launch(rig, collective(1, *operations, **more))
    return peer


def two_streams(rig: PeerRig) -> None:
    """Creates stream 5, ordered after the work that made the buffers."""
    rig.batch(c.Command(create_stream=c.CreateStream(stream=5)))
    for buffer in (1, 2, 3):
        assert rig.reason(rig.read(buffer, stream=5)) == ""


# ---- failures found by this rank ----


def test_operation_that_misses_its_deadline(rig: PeerRig) -> None:
    two_streams(rig)
    peer = launched(rig, timeout=0.3)
    sync = rig.sync()
    failed = rig.hear("failed")
    assert (failed["comm"], failed["timed_out"], failed["sequence"]) == ("a-1", True, 1)
    assert "operation 1 of group [0, 1]" in failed["reason"]
    assert rig.reason(rig.read(2, stream=5)) == ""  # everything else continues
    rig.abort(Refusal(Reason.COLLECTIVE_TIMEOUT, "rank 1 did not finish", details={"recorder": "x"}))
    result = rig.answer(sync)
    refusal = from_status(result.error)
    assert refusal.reason == Reason.COLLECTIVE_TIMEOUT and refusal.details["recorder"] == "x"
    assert peer.aborting.wait(10)
    assert rig.reason(rig.sync()) == ""  # the error is reported once
    assert len(rig.heard("failed")) == 0


def test_timeout_is_reported_without_an_answer_of_the_front(rig: PeerRig) -> None:
    rig.memberships.decision_s = 0.1
    peer = rig.join()
    launch(rig, collective(1, timeout=0.2), collective(2, operation(source=2, destination=2), timeout=20))
    result = rig.answer(rig.sync())
    refusal = from_status(result.error)
    assert refusal.reason == Reason.COLLECTIVE_TIMEOUT and "operation 1 of group [0, 1]" in refusal.message
    assert "1 more failed" in refusal.message
    assert peer.aborting.wait(10)
    rig.abort(LOST)  # too late, so it has no effect
    assert rig.reason(rig.sync()) == ""


def test_timeout_before_the_start_without_an_answer_of_the_front(rig: PeerRig) -> None:
    rig.memberships.decision_s = 0.1
    rig.join()
    rig.batch(collective(1, timeout=1e-9))
    sync = rig.sync()
    rig.go(rig.hear("present"), 2)  # another operation precedes it
    assert rig.hear("failed")["timed_out"]
    refusal = from_status(rig.answer(sync).error)
    assert refusal.reason == Reason.COLLECTIVE_TIMEOUT and "could not start in time" in refusal.message


def test_a_communicator_that_has_failed(rig: PeerRig) -> None:
    peer = launched(rig)
    sync = rig.sync()
    peer.failure = "a cable was pulled"
    failed = rig.hear("failed")
    assert failed["reason"] == "a cable was pulled" and not failed["timed_out"]
    rig.abort(LOST)
    assert rig.reason(sync) == Reason.COMMUNICATOR_FAILED


def test_answers_wait_for_the_outcome(rig: PeerRig) -> None:
    """Checks the state in which the device has completed the work, and its outcome is not known yet."""
    two_streams(rig)
    peer = launched(rig)
    waiting = [rig.sync(), rig.read(1, stream=5), rig.read(1, stream=5, size=64)]
    peer.failure = "a cable was pulled"
    peer.release()
    rig.hear("failed")
    assert rig.reason(rig.read(2, stream=5)) == ""  # of its stream, after these commands
    assert not rig.came(Kind.RESULT, *waiting)
    rig.abort(LOST)
    assert [rig.reason(each) for each in waiting] == [Reason.COMMUNICATOR_FAILED] * 3


def test_errors_surface_in_order_and_no_read_gets_the_bytes(rig: PeerRig) -> None:
    peer = launched(rig)
    first, second = rig.read(1), rig.read(1)
    sync = rig.sync()
    assert rig.reason(rig.start(flush=c.Flush())) == ""  # all commands are on the device
    peer.failure = "a cable was pulled"
    peer.release()
    rig.hear("failed")
    rig.abort(LOST)
    assert rig.reason(first) == rig.reason(second) == Reason.COMMUNICATOR_FAILED
    assert rig.reason(sync) == ""  # the first read has already reported the error


def test_failure_before_the_start_is_reported_after_running_operations(rig: PeerRig) -> None:
    """Checks that the reader gets both errors: the front fails incomplete operations before it aborts the
    communicator."""
    launched(rig)
    rig.batch(collective(2))
    second = rig.hear("present")
    fail = {key: second[key] for key in ("channel", "group", "devices", "sequence")}
    rig.tell("fail", **fail, status=encode(LOST.to_status().SerializeToString()))
    sync = rig.sync()
    rig.gauges()
    assert not rig.came(Kind.RESULT, sync)
    rig.abort(LOST)
    result = rig.answer(sync)
    assert "1 more" in result.error.message
    assert rig.reason(rig.sync()) == "", "no failure remains to be reported"


def test_waits_are_answered_in_order(rig: PeerRig) -> None:
    launched(rig)
    sync, read = rig.sync(), rig.read(1)
    assert rig.reason(rig.start(flush=c.Flush())) == ""  # all commands are on the device
    rig.abort(LOST)
    first = rig.until(Kind.RESULT)
    assert first.id == sync and c.Result.FromString(first.payload).HasField("error")
    assert rig.reason(read) == Reason.COMMUNICATOR_FAILED


def test_a_rank_that_cannot_launch(rig: PeerRig) -> None:
    peer = rig.join()
    peer.refuses = "no room for it"
    launch(rig, collective(1))
    failed = rig.hear("failed")
    assert "no room for it" in failed["reason"]
    assert rig.reason(rig.sync()) == Reason.COMMUNICATOR_FAILED
    rig.batch(collective(2))
    rig.go(rig.hear("present"), 2)  # it is not launched on a failed communicator
    sync = rig.sync()
    rig.abort(LOST)
    assert rig.reason(sync) == Reason.COMMUNICATOR_FAILED
    assert peer.given == []


# ---- decisions of the front ----


def test_results_derived_from_failed_collective_are_invalid(rig: PeerRig) -> None:
    two_streams(rig)
    launched(rig, operation(source=1, destination=2))
    copy = c.Command(copy=c.Copy(destination=3, source=2, size=64), stream=5)
    rig.batch(c.Command(allocate=c.Allocate(buffer=4, size=4), stream=5), copy)
    download = rig.start(stream=5, read=c.Read(buffer=3, size=64, transfer=8))
    rig.send(Kind.DOWNLOAD, channel=1, id=8, flags=4)
    read = rig.read(3, stream=5)
    rig.batch(c.Command(fill=c.Fill(buffer=4, size=4, pattern=b"\4"), stream=5))
    assert rig.reason(rig.start(stream=5, flush=c.Flush())) == ""  # all commands are on the device
    rig.abort(LOST)
    assert rig.reason(download) == rig.reason(read) == Reason.COMMUNICATOR_FAILED
    assert rig.until(Kind.ABORT, 8).id == 8
    for buffer in (2, 3):  # until the client has been notified by the stream that has the error
        assert rig.reason(rig.read(buffer, stream=5)) == Reason.COMMUNICATOR_FAILED
    assert rig.reason(rig.read(1, stream=5)) == "" and rig.reason(rig.read(4, stream=5)) == ""
    rig.batch(c.Command(copy=c.Copy(destination=4, source=2, size=4), stream=5))
    assert rig.reason(rig.sync(5)) == Reason.DEPENDENCY_FAILED  # skipped
    result = rig.answer(rig.sync())
    assert from_status(result.error).details["recorder"] == "1: all_reduce"
    assert rig.reason(rig.read(2, stream=5)) == rig.reason(rig.read(3)) == ""  # the client has been notified now


def test_chunked_read_partly_sent_before_the_failure(rig: PeerRig) -> None:
    """Checks that chunks wait for the decision, and that the last one is never sent."""
    size = 4096
    rig.batch(c.Command(allocate=c.Allocate(buffer=7, size=size)))
    launched(rig, operation(c.COLLECTIVE_KIND_BROADCAST, 0, 7, count=size // 4, root=1))
    read = rig.start(read=c.Read(buffer=7, size=size, transfer=8))
    rig.send(Kind.DOWNLOAD, channel=1, id=8, flags=1)
    assert rig.reason(rig.start(flush=c.Flush())) == ""  # it is on the device
    rig.abort(LOST)
    assert rig.reason(read) == Reason.COMMUNICATOR_FAILED
    assert rig.until(Kind.ABORT, 8)
    assert not rig.came(Kind.CHUNK)


@pytest.mark.parametrize("announced", [False, True], ids=["named by the command", "announced"])
def test_read_into_shared_memory_is_refused_after_the_failure(announced: bool) -> None:
    rig = SharingRig()
    client = segment_client.hand_over(rig.files)
    assert client.next().kind == Kind.LIVE
    memory = client.share(1, 64)
    launched(rig, operation(source=1, destination=2))
    read = c.Read(buffer=2, size=64, transfer=8) if announced else c.Read(buffer=2, size=64, shared=c.Shared(segment=1))
    call = rig.start(read=read)
    if announced:
        client.end.sendall(frames.encode(Kind.DOWNLOAD, frames.PLACE.pack(1, 0, 64), id=8))
        assert client.next().kind == Kind.DOWNLOAD
    assert rig.reason(rig.start(flush=c.Flush())) == ""  # it is on the device
    rig.abort(LOST)
    assert rig.reason(call) == Reason.COMMUNICATOR_FAILED
    client.end.close()
    memory.close()
    rig.close()


def test_another_communicator_continues(rig: PeerRig) -> None:
    rig.tell("group", channel=1, group=GROUP.hex(), rank=0, ranks=2)
    two_streams(rig)
    first = rig.join("a-1")
    second = rig.join("b-1", group=GROUP.hex())
    rig.batch(collective(1), collective(1, operation(source=2, destination=2), stream=5, group=GROUP))
    presented = {message["group"]: message for message in (rig.hear("present"), rig.hear("present"))}
    rig.go(presented[""], 1, "a-1")
    rig.go(presented[GROUP.hex()], 1, "b-1")
    first_sync, second_sync = rig.sync(), rig.sync(5)
    rig.abort(LOST, "a-1")
    assert rig.reason(first_sync) == Reason.COMMUNICATOR_FAILED
    second.release()
    assert rig.reason(second_sync) == ""
    assert rig.call(stream=5, read=c.Read(buffer=2, size=4)).read.data == bytes([WRITTEN]) * 4
    assert first.aborting.is_set() and not second.aborting.is_set()
    assert rig.process.device.telemetry.collectives_failed == 1


def test_new_communicator_works_after_abort(rig: PeerRig) -> None:
    launched(rig)
    rig.abort(LOST)
    assert rig.reason(rig.sync()) == Reason.COMMUNICATOR_FAILED
    peer = rig.join("a-2")
    launch(rig, collective(2), comm="a-2")
    peer.release()
    assert rig.bytes_of(1) == bytes([WRITTEN]) * 4


def test_released_operation_aborted_before_it_starts(rig: PeerRig) -> None:
    peer = rig.join()
    rig.batch(collective(1), collective(2))
    first, second = rig.hear("present"), rig.hear("present")
    rig.go(second, 1)  # the first operation precedes it
    rig.abort(LOST)
    fail = {key: first[key] for key in ("channel", "group", "devices", "sequence")}
    rig.tell("fail", **fail, status=encode(LOST.to_status().SerializeToString()))
    result = rig.answer(rig.sync())
    assert from_status(result.error).details["recorder"] == "1: all_reduce"
    assert "1 more" in result.error.message and peer.given == []


def test_source_that_fails_after_the_operation_was_presented(rig: PeerRig) -> None:
    """Checks that such an operation still runs for the other ranks, and that its outcome is not a second error."""
    peer = rig.join()
    launch(rig, collective(1, operation(source=1, destination=2)))
    rig.batch(collective(2, operation(source=2, destination=3)))
    second = rig.hear("present")
    rig.abort(LOST)
    peer = rig.join("a-2")
    rig.go(second, 1, "a-2")
    sync = rig.sync()
    peer.failure = "this, too"
    rig.hear("failed")
    rig.abort(LOST, "a-2")
    result = rig.answer(sync)
    assert len(peer.given) == 1
    assert from_status(result.error).reason == Reason.COMMUNICATOR_FAILED
    assert "more failed" not in result.error.message


# ---- threads that do not return ----


def test_an_abort_that_hangs(rig: PeerRig) -> None:
    rig.memberships.aborts.limit_s = 0.1
    two_streams(rig)
    peer = launched(rig)
    peer.abort_blocks.clear()
    rig.abort(LOST)
    assert rig.hear("wedged") == {"op": "wedged", "comm": "a-1"}
    assert rig.reason(rig.read(2, stream=5)) == ""
    assert rig.heard("wedged") == []  # reported once
    peer.abort_blocks.set()
    assert rig.reason(rig.sync()) == Reason.COMMUNICATOR_FAILED


# ---- the end of a session ----


def test_a_session_that_ends_with_operations_in_every_state(rig: PeerRig) -> None:
    peer = rig.join()
    rig.send(Kind.OPEN, b"{}", channel=2)
    commands = [c.Command(allocate=c.Allocate(buffer=buffer, size=64)) for buffer in (1, 2, 3)]
    commands += [c.Command(create_stream=c.CreateStream(stream=stream)) for stream in (5, 6, 7)]
    commands += [
        collective(1, operation(source=1, destination=1)),  # running
        collective(2, operation(source=1, destination=1)),  # presented
        c.Command(write=c.Write(buffer=2, transfer=5, size=64), stream=5),
        collective(3, operation(source=2, destination=2), stream=5),  # not presented
        collective(4, operation(source=3, destination=3), stream=6),  # presented, and released too late
    ]
    for number, command in enumerate(commands, 1):
        rig.send(Kind.CALL, command.SerializeToString(), channel=2, id=1000 + number)
    presented = {message["sequence"]: message for message in [rig.hear("present") for _ in range(3)]}
    assert sorted(presented) == [1, 2, 4]
    rig.go(presented[1], 1)
    rig.send(Kind.CLOSE, channel=2)
    assert rig.heard("failed") == []
    assert not rig.came(Kind.CLOSED)  # its memory is still being written
    peer.release()
    assert rig.until(Kind.CLOSED).channel == 2
    rig.go(presented[4], 2)
    failed = rig.hear("failed")  # otherwise the other ranks would wait for it
    assert failed["sequence"] == 4 and failed["comm"] == "a-1"
    rig.abort(LOST)
    peer = rig.join("a-2")
    launch(rig, collective(1), comm="a-2")
    peer.release()
    assert rig.reason(rig.sync()) == ""


def test_session_that_ends_with_an_operation_that_never_completes(rig: PeerRig) -> None:
    peer = rig.join()
    rig.send(Kind.OPEN, b"{}", channel=2)
    for command in (c.Command(allocate=c.Allocate(buffer=1, size=64)), collective(1, timeout=0.3)):
        rig.send(Kind.CALL, command.SerializeToString(), channel=2, id=5)
    rig.go(rig.hear("present"), 1)
    rig.send(Kind.CLOSE, channel=2)
    assert rig.hear("failed")["timed_out"]
    rig.abort(LOST)
    assert rig.until(Kind.CLOSED).channel == 2
    assert peer.aborting.is_set()
