"""Snapshots and restores of one device process; the test acts as the front, and simulates refusals of memory and
front."""

from __future__ import annotations

import fcntl
import json
import os
import random
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hearth_proto import descriptors
from hearth_proto.frames import Frame, Kind
from hearth_proto.reasons import Reason, Refusal, from_status, to_text
from hearth_proto.v1 import commands_pb2 as c
from hearthd.front.durable.store_index import StoreIndex
from hearthd.shared.device_spec import DeviceSpec
from tests.support.device.host_memory import Host, LockingServer
from tests.support.device.local_broker import device_process
from tests.support.device.rig import Rig

MIB = 1 << 20
F_ADD_SEALS = 1033
F_SEAL_GROW = 0x0004


class Fronted(Rig[LockingServer]):
    """A device process whose front is the test, which keeps the file and the index of copies, and answers requests."""

    def __init__(self, spec: DeviceSpec, host: Host) -> None:
        self.files, self._their_files = descriptors.pair()
        self.file = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self.index = StoreIndex()
        super().__init__(spec, lambda spec: LockingServer(spec, host))
        descriptors.send(self.files, {"kind": "snapshot", "channel": 1}, [self.file])

    def _main(self) -> None:
        self.server = self._make(self._spec)
        self.process = device_process(self._theirs, self._spec, self.server, self._their_files)
        self.process.run()

    def next_message(self) -> tuple[Frame, dict[str, Any]]:
        """Returns the process's next message about its snapshots."""
        frame = self.until(Kind.SNAPSHOT)
        return frame, json.loads(frame.payload)

    def say(self, frame: Frame, answer: dict[str, Any] | Refusal) -> None:
        if isinstance(answer, Refusal):
            answer = {"error": to_text(answer)}
        self.send(Kind.SNAPSHOT, json.dumps(answer).encode(), channel=frame.channel, id=frame.id)

    def grant(self) -> None:
        """Receives a request for areas, and grants them."""
        frame, body = self.next_message()
        copies = [self.index.reserve(*request) for request in body["reserve"]]
        self.say(frame, {"places": [[copy.offset, copy.span] for copy in copies]})

    def hear(self) -> list[list[int]]:
        """Receives the report that copies are complete, and confirms them."""
        frame, body = self.next_message()
        self.index.commit(body["commit"])
        self.say(frame, {})
        commits: list[list[int]] = body["commit"]
        return commits

    def forgotten(self) -> list[int]:
        _, body = self.next_message()
        keys: list[int] = body["forget"]
        self.index.forget(keys)
        return keys

    def copy(self, handle: int) -> bytes:
        """Returns the file's committed contents for a buffer."""
        committed_copy = next(copy for copy in self.index.copies.values() if copy.handle == handle)
        assert committed_copy.committed is not None
        return os.pread(
            self.file, committed_copy.size, committed_copy.offset + committed_copy.committed * committed_copy.span
        )

    def contents(self, handle: int, size: int, channel: int = 2) -> bytes:
        """Returns the contents of a buffer of another session."""
        data = b""
        while True:
            count = min(size - len(data), MIB)
            command = c.Command(request=1, read=c.Read(buffer=handle, offset=len(data), size=count))
            self.send(Kind.CALL, command.SerializeToString(), channel=channel, id=1000)
            data += c.Result.FromString(self.until(Kind.RESULT, 1000).payload).read.data
            if len(data) == size:
                return data

    def close_session(self) -> None:
        self.send(Kind.CLOSE, channel=1)
        self.until(Kind.CLOSED)

    def error(self, ident: int) -> Refusal:
        return from_status(self.answer(ident).error)

    def stop(self) -> None:
        super().stop()
        self.files.close()
        self._their_files.close()
        os.close(self.file)


Make = Callable[..., Fronted]


@pytest.fixture
def make() -> Iterator[Make]:
    rigs: list[Fronted] = []

    def start(locked: int = 64 * MIB, staging: int = 16 * MIB, generation: int = 1) -> Fronted:
        spec = DeviceSpec(0, "cpu", 0, generation=generation, memory_limit=64 * MIB, staging_bytes=staging)
        rigs.append(Fronted(spec, Host(locked)))
        return rigs[-1]

    yield start
    for rig in rigs:
        rig.stop()


def data_of(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


def written(rig: Fronted, handle: int, data: bytes) -> None:
    rig.batch(c.Command(allocate=c.Allocate(buffer=handle, size=len(data))))
    for at in range(0, len(data), MIB // 2):
        rig.batch(c.Command(write=c.Write(buffer=handle, offset=at, data=data[at : at + MIB // 2])))


def test_copy_is_valid_after_the_confirmation_of_the_front(make: Make) -> None:
    rig = make()
    data = data_of(3 * MIB)
    written(rig, 5, data)
    first = rig.start(set_durable=c.SetDurable(buffers=[5], durable=True))
    rig.grant()
    sync = rig.start(sync=c.Sync())
    frame, body = rig.next_message()
    assert [area for _, area in body["commit"]] == [0]
    again = rig.start(checkpoint=c.Checkpoint(buffers=[5]))
    rig.send(Kind.PING, id=3)
    rig.until(Kind.PONG, 3)
    assert not (rig.came(Kind.RESULT) or rig.came(Kind.SNAPSHOT))  # all of them wait
    rig.index.commit(body["commit"])
    rig.say(frame, {})
    assert not rig.answer(first).HasField("error") and not rig.answer(sync).HasField("error")
    assert rig.copy(5) == data
    assert [area for _, area in rig.hear()] == [1]  # the area that is not committed
    assert not rig.answer(again).HasField("error") and rig.copy(5) == data
    assert rig.gauges()["durable_bytes"] == 6 * MIB
    rig.batch(c.Command(free=c.Free(buffers=[5])))
    assert len(rig.forgotten()) == 1 and rig.gauges()["durable_bytes"] == 0


@pytest.mark.parametrize("locked", [64 * MIB, 0], ids=["page-locked", "nothing to lock"])
def test_each_byte_of_a_copy_is_counted_once(make: Make, locked: int) -> None:
    rig = make(locked)
    data = data_of(5 * MIB)
    written(rig, 5, data)
    before = rig.process.device.telemetry.device_to_host_bytes
    rig.start(set_durable=c.SetDurable(buffers=[5], durable=True))
    rig.grant()
    rig.hear()
    assert rig.copy(5) == data
    assert rig.process.device.telemetry.device_to_host_bytes == before + 5 * MIB


def test_checkpoint_runs_after_earlier_waiting_work_of_its_stream(make: Make) -> None:
    rig = make()
    written(rig, 5, data_of(100))
    rig.start(set_durable=c.SetDurable(buffers=[5], durable=True))
    rig.grant()
    rig.hear()
    rig.batch(c.Command(write=c.Write(buffer=5, offset=50, size=50, transfer=9)))  # the bytes have not been sent
    checkpoint = rig.start(checkpoint=c.Checkpoint(buffers=[5]))
    rig.batch(c.Command(fill=c.Fill(buffer=5, size=100, pattern=b"\1")))
    rig.upload(9, bytes(50), 50)
    rig.hear()
    assert not rig.answer(checkpoint).HasField("error")
    assert rig.copy(5) == data_of(100)[:50] + bytes(50)
    assert rig.call(read=c.Read(buffer=5, size=100)).read.data == b"\1" * 100


def test_waiting_copy_blocks_no_stream_and_uses_no_track(make: Make) -> None:
    """Any number of snapshots wait for a write that has not arrived, while other commands of the session
    continue."""
    rig = make()
    rig.batch(c.Command(create_stream=c.CreateStream(stream=1)))
    written(rig, 5, data_of(100))
    rig.start(set_durable=c.SetDurable(buffers=[5], durable=True))
    rig.grant()
    rig.hear()
    streams = rig.gauges()["streams"]
    rig.batch(c.Command(write=c.Write(buffer=5, size=100, transfer=9)))
    for _ in range(50):
        rig.batch(c.Command(checkpoint=c.Checkpoint()))
    rig.batch(
        c.Command(allocate=c.Allocate(buffer=6, size=3)),
        c.Command(stream=1, write=c.Write(buffer=6, data=b"abc")),
    )
    assert rig.call(stream=1, read=c.Read(buffer=6, size=3)).read.data == b"abc"
    rig.upload(9, bytes(100), 100)
    for _ in range(50):
        rig.hear()
    assert not rig.call(sync=c.Sync()).HasField("error")
    assert rig.copy(5) == bytes(100) and rig.gauges()["streams"] <= streams + 5


def test_refusal_of_the_front_is_reported(make: Make) -> None:
    rig = make()
    written(rig, 5, data_of(100))
    refusal = Refusal(Reason.QUOTA_EXCEEDED, "too much", fix="less", details={"allowed": 1})
    set_durable = rig.start(set_durable=c.SetDurable(buffers=[5], durable=True))
    frame, _ = rig.next_message()
    rig.say(frame, refusal)
    assert rig.error(set_durable).reason == Reason.QUOTA_EXCEEDED
    dependent = rig.error(rig.start(checkpoint=c.Checkpoint(buffers=[5])))
    assert dependent.reason == Reason.DEPENDENCY_FAILED and dependent.details["cause"] == "QUOTA_EXCEEDED"
    again = rig.start(set_durable=c.SetDurable(buffers=[5], durable=True))  # another attempt is allowed
    rig.grant()
    frame, _ = rig.next_message()
    rig.say(frame, Refusal(Reason.SESSION_EXPIRED, "gone"))
    assert rig.error(again).reason == Reason.SESSION_EXPIRED
    third = rig.start(checkpoint=c.Checkpoint())
    rig.hear()
    assert not rig.answer(third).HasField("error") and rig.copy(5) == data_of(100)


def test_failed_copy_keeps_the_previous_one(make: Make) -> None:
    rig = make()
    written(rig, 5, data_of(MIB))
    rig.start(set_durable=c.SetDurable(buffers=[5], durable=True))
    rig.grant()
    rig.hear()
    fcntl.fcntl(rig.file, F_ADD_SEALS, F_SEAL_GROW)
    rig.batch(c.Command(fill=c.Fill(buffer=5, size=MIB, pattern=b"\1")))
    refused = rig.error(rig.start(checkpoint=c.Checkpoint()))
    assert refused.reason == Reason.OUT_OF_MEMORY and refused.fix
    assert rig.copy(5) == data_of(MIB)
    rig.batch(c.Command(checkpoint=c.Checkpoint()))  # one way, so a later sync reports the failure
    assert rig.error(rig.start(sync=c.Sync())).reason == Reason.OUT_OF_MEMORY


def test_a_copy_that_the_driver_refuses(make: Make) -> None:
    rig = make()
    written(rig, 5, data_of(8 * MIB))
    first = rig.start(set_durable=c.SetDurable(buffers=[5], durable=True))
    rig.grant()
    rig.hear()
    rig.answer(first)
    rig.server.refuse = 1
    assert rig.error(rig.start(checkpoint=c.Checkpoint())).reason == Reason.INTERNAL
    last = rig.start(checkpoint=c.Checkpoint())
    rig.hear()
    assert not rig.answer(last).HasField("error") and rig.copy(5) == data_of(8 * MIB)
    assert rig.gauges()["staging_bytes"] == 0


@pytest.mark.parametrize("locked", [64 * MIB, 0])
def test_checkpoint_and_restore(make: Make, locked: int) -> None:
    """The page-locked memory is smaller than one buffer, or there is none."""
    rig = make(locked)
    contents = {5: data_of(9 * MIB + 1), 6: b"", 7: data_of(3)}
    for handle, data in contents.items():
        written(rig, handle, data)
    done = rig.start(set_durable=c.SetDurable(buffers=list(contents), durable=True))
    rig.grant()
    rig.hear()
    assert not rig.answer(done).HasField("error")
    assert all(rig.copy(handle) == data for handle, data in contents.items())
    assert bool(rig.server.direct) == (not locked)

    after = make(locked, generation=2)
    descriptors.send(after.files, {"kind": "snapshot", "channel": 2}, [rig.file])
    after.send(Kind.OPEN, b"{}", channel=2)
    copies = [[each.key, each.handle, each.size, each.offset, each.span, each.committed]
              for each in rig.index.copies.values()]  # fmt: skip
    after.send(Kind.RESTORE, json.dumps({"copies": copies}).encode(), channel=2, id=9)
    answer = json.loads(after.until(Kind.RESTORED, 9).payload)
    assert answer == {"failed": []}
    for handle, data in contents.items():
        assert after.contents(handle, len(data)) == data
    gauges = after.gauges()
    assert gauges["durable_bytes"] == rig.gauges()["durable_bytes"] and gauges["staging_bytes"] == 0


def test_restore_reports_buffers_that_do_not_fit_and_restores_the_rest(make: Make) -> None:
    rig = make()
    os.pwrite(rig.file, b"abc", 0)
    far = 1 << 40
    copies = [[1, 5, 3, 0, 4096, 0], [2, 6, 128 * MIB, 8192, 128 * MIB, 0], [3, 7, 10, far, 4096, 1]]
    rig.send(Kind.RESTORE, json.dumps({"copies": copies}).encode(), channel=1, id=9)
    failed = dict(json.loads(rig.until(Kind.RESTORED, 9).payload)["failed"])
    assert set(failed) == {2, 3} and "never fit" in failed[2] and "cannot be read" in failed[3]
    assert rig.call(read=c.Read(buffer=5, size=3)).read.data == b"abc"
    for handle in (6, 7):
        refusal = from_status(rig.call(read=c.Read(buffer=handle, size=1)).error)
        assert refusal.reason == Reason.BUFFER_LOST and refusal.fix
    assert rig.gauges()["memory_in_use_bytes"] == 3
    rig.close_session()


def restore(rig: Fronted, channel: int, copies: list[list[int]]) -> dict[int, str]:
    """Has copies restored; returns the reasons of those that failed, by key."""
    rig.send(Kind.RESTORE, json.dumps({"copies": copies}).encode(), channel=channel, id=9)
    return dict(json.loads(rig.until(Kind.RESTORED, 9).payload)["failed"])


def test_restore_ignores_a_lowered_limit_of_handles(make: Make) -> None:
    rig = make()
    rig.open(2, {"tenant": "small", "handles": 2})
    descriptors.send(rig.files, {"kind": "snapshot", "channel": 2}, [rig.file])
    os.pwrite(rig.file, b"abc", 0)
    assert restore(rig, 2, [[key, 10 + key, 3, 0, 4096, 0] for key in range(1, 6)]) == {}
    assert [rig.contents(10 + key, 3) for key in range(1, 6)] == [b"abc"] * 5
    refused = from_status(rig.call(channel=2, allocate=c.Allocate(buffer=1, size=8)).error)
    assert refused.reason is Reason.QUOTA_EXCEEDED and refused.details["in_use"] == "6"  # with the default stream
    assert not rig.call(channel=2, free=c.Free(buffers=list(range(11, 16)))).HasField("error")
    assert not rig.call(channel=2, allocate=c.Allocate(buffer=1, size=8)).HasField("error")


def test_error_in_a_restore_fails_its_buffers_and_not_the_process(make: Make) -> None:
    """The same handle twice, which no front sends. It would be sent to each later process again."""
    rig = make()
    assert set(restore(rig, 1, [[1, 5, 3, 0, 4096, 0], [2, 5, 3, 8192, 4096, 0], [3, 6, 3, 16384, 4096, 0]])) == {
        1,
        2,
        3,
    }
    for handle in (5, 6):
        assert from_status(rig.call(read=c.Read(buffer=handle, size=1)).error).reason is Reason.BUFFER_LOST
    rig.batch(c.Command(free=c.Free(buffers=[5, 6])))
    written(rig, 5, b"abc")
    assert rig.call(read=c.Read(buffer=5, size=3)).read.data == b"abc"
    gauges = rig.gauges()
    assert gauges["memory_in_use_bytes"] == 3 and gauges["durable_bytes"] == 0


def test_track_that_waits_for_a_closed_session_serves_no_other_snapshot(make: Make) -> None:
    rig = make()
    rig.open(2)
    descriptors.send(rig.files, {"kind": "snapshot", "channel": 2}, [rig.file])
    rig.barrier()
    stream = rig.server.streams[-1]  # the second session's
    for channel in (1, 2):
        rig.call(channel=channel, allocate=c.Allocate(buffer=5, size=3))
        durable = rig.start(channel=channel, set_durable=c.SetDurable(buffers=[5], durable=True))
        rig.grant()
        rig.hear()
        assert not rig.answer(durable).HasField("error")
    gate = threading.Event()
    try:
        stream.submit(gate.wait)
        rig.start(channel=2, fill=c.Fill(buffer=5, size=3, pattern=b"a"))
        rig.start(channel=2, checkpoint=c.Checkpoint())
        rig.send(Kind.CLOSE, channel=2)
        rig.forgotten()
        for _ in range(5):  # more than there are such tracks
            checkpoint = rig.start(checkpoint=c.Checkpoint())
            rig.hear()
            assert not rig.answer(checkpoint).HasField("error")
    finally:
        gate.set()
    rig.until(Kind.CLOSED)


def test_session_that_closes_during_a_copy(make: Make) -> None:
    rig = make()
    written(rig, 5, data_of(9 * MIB))
    rig.start(set_durable=c.SetDurable(buffers=[5], durable=True))
    rig.grant()
    rig.close_session()
    gauges = rig.gauges()
    assert gauges["durable_bytes"] == 0 and gauges["staging_bytes"] == 0 and gauges["memory_in_use_bytes"] == 0


def test_a_file_for_a_session_that_has_been_closed_is_closed(make: Make) -> None:
    rig = make()
    rig.send(Kind.OPEN, b"{}", channel=3)
    rig.send(Kind.CLOSE, channel=3)
    rig.until(Kind.CLOSED)
    test_end, passed_end = socket.socketpair()
    descriptors.send(rig.files, {"kind": "snapshot", "channel": 3}, [passed_end.fileno()])
    passed_end.close()
    test_end.settimeout(30)
    assert test_end.recv(1) == b""  # the other end is closed
    test_end.close()
