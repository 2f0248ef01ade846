"""Short reads, alone and after other commands of their batch."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from hearth_proto.frames import Kind
from hearth_proto.reasons import Reason, Refusal, from_status
from hearth_proto.v1 import commands_pb2 as c
from hearthd.device.cpu.server import CpuServer
from tests.support.device.lane_rig import KIB, Client, add, summed, sync
from tests.support.device.passing import Passing, Polled, prepared
from tests.support.device.rig import Command


@pytest.fixture(params=[CpuServer, Polled])
def rig(request: pytest.FixtureRequest) -> Iterator[Passing]:
    yield from prepared(Passing(request.param))


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
    assert rig.ran == 199
    counters = rig.counters()
    assert counters["kernel_launches"] == 398 and counters["batches"] == 199
    assert counters["upload_inline_bytes"] == counters["download_inline_bytes"] == 199 * 8
    assert counters["device_to_host_operations"] == 199
    assert rig.end_lane() == 199
    copies = rig.copies()
    acks = [frame.id for frame in copies if frame.id]
    assert acks == sorted(set(acks)) and acks[-1] == 199
    assert len([frame for frame in copies if frame.kind == Kind.RESPONSE]) == 199


def test_batches_forwarded_by_the_front(rig: Passing) -> None:
    for number in range(1, 50):
        rig.batch(write(number), add(1), read(number))
        answer = c.Result.FromString(rig.until(Kind.RESPONSE).payload[2:])
        assert int.from_bytes(answer.read.data, "little") == number * 3 + 1
    assert rig.ran == 49


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
    assert rig.ran == 98
    session = rig.process.executor.session(1)
    assert session is not None and len(session.buffers) == 1


def test_reads_of_several_sizes_return_their_bytes(rig: Passing) -> None:
    client, size = rig.lane(), 128 * KIB
    pattern = bytes(range(1, 17))
    client.batch(
        Command(allocate=c.Allocate(buffer=2, size=size)),
        Command(fill=c.Fill(buffer=2, size=size, pattern=pattern)),
        sync(1),
    )
    client.response()
    sizes = (1, 2, 127, 128, 16_383, 16_384, 64 * KIB, 64 * KIB + 1)
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
    assert value(client) == 0, "the failure has been reported"
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
    ran = rig.ran
    client.batch(read(3))
    assert "launch" in client.response().result.error.message
    assert rig.ran == ran + 1


def test_read_waits_for_deferred_commands(rig: Passing) -> None:
    """The write waits for its bytes, which are sent outside the batch, so the acknowledgement of the batch waits
    too."""
    client = rig.lane()
    client.batch(Command(write=c.Write(buffer=1, size=8, transfer=5)), add(1), read(1))
    rig.barrier()
    assert rig.ran == 1
    rig.upload(5, (6).to_bytes(8, "little"), chunk=8)
    assert value(client) == 19
    assert rig.end_lane() == 1


def test_a_read_that_the_driver_refuses(rig: Passing, monkeypatch: pytest.MonkeyPatch) -> None:
    client = rig.lane()
    client.batch(write(7), read(1))
    assert value(client) == 7
    ran = rig.ran
    for refusal in (Refusal(Reason.INTERNAL, "the driver refuses", fix="none"), RuntimeError("the driver refuses")):

        def refuse(*_: Any, refusal: Exception = refusal) -> None:
            raise refusal

        with monkeypatch.context() as patch:
            patch.setattr(rig.server, "download", refuse)
            client.batch(write(8), read(2))
            error = from_status(client.response().result.error)
        assert error.reason == "INTERNAL" and "the driver refuses" in error.message
    assert rig.ran == ran + 2
    client.batch(read(3))
    assert value(client) == 8, "the stream continues"
    rig.barrier()
    assert rig.process.device.staging.in_use == 0


def test_read_after_running_work_waits(rig: Passing) -> None:
    """The batch is acknowledged before it is answered, and other frames may be sent in between."""
    client = rig.lane()
    client.batch(write(1), read(1))
    assert value(client) == 1
    gate, session = threading.Event(), rig.process.executor.session(1)
    assert session is not None
    session.streams.items[0].track.stream.submit(gate.wait)
    ran = rig.ran
    client.batch(add(2), read(2))
    assert client.until(Kind.ACK).id == 2
    client.batch(Command(create_stream=c.CreateStream(stream=5)))
    assert client.until(Kind.ACK).id == 3
    gate.set()
    assert value(client) == 5
    assert rig.ran == ran + 2


def test_read_waits_for_staging_memory(rig: Passing, monkeypatch: pytest.MonkeyPatch) -> None:
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
