"""Temporaries in unusual situations are executed as operations, with the same results."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from hearth_proto.frames import Flag, Kind
from hearth_proto.reasons import Reason, from_status
from hearth_proto.v1 import commands_pb2 as c
from hearth_proto.v1 import device_pb2
from hearthd.device.session.buffer import Buffer, ReadOnly
from tests.support.device.lane_rig import add
from tests.support.device.rig import Command
from tests.support.device.temporaries_rig import Run, Ways, allocate, fill, free, mode, read, run, write


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Ways, Ways]]:
    both = Ways(), Ways(at_once=False)
    yield both
    for ways in both:
        ways.stop()


@pytest.fixture(params=[True, False], ids=["at once", "operations"])
def rig(request: pytest.FixtureRequest) -> Iterator[Ways]:
    ways = Ways(request.param)
    yield ways
    ways.stop()


USAGE = Command(request=1, memory_usage=c.MemoryUsage())
TWO = Command(allocate=c.Allocate(parts=[c.Allocate.Part(buffer=1, size=64), c.Allocate.Part(buffer=2, size=1000)]))
BOTH = Command(allocate=c.Allocate(buffer=3, size=8, parts=TWO.allocate.parts))
KEPT, SHARED = c.ALLOCATION_MODE_PERSISTENT, c.ALLOCATION_MODE_AUTO
UNUSUAL = {
    "a window": [mode(KEPT), allocate(1, 64), free(1), USAGE, mode(SHARED), allocate(2, 64), USAGE, free(2), USAGE],
    "kept memory": [mode(KEPT), allocate(1, 64), mode(SHARED), free(1), allocate(2, 64), free(2), USAGE],
    "a quota": [allocate(1, 5000), allocate(2, 5000), fill(2, 8), free(1), USAGE],
    "never enough": [allocate(1, 1 << 40), fill(1, 8), write(1, b"12345678"), free(1), USAGE],
    "parts": [TWO, fill(1, 64, stream=5), free(1), USAGE, write(2, bytes(8)), read(2, 8), free(2), USAGE],
    "parts of one that is gone": [TWO, free(2), fill(1, 64, stream=5), free(1), USAGE],
    "parts and a buffer": [BOTH, fill(3, 8), fill(1, 8)],
    "no bytes": [allocate(1, 0), fill(1, 0), write(1, b""), write(1, b"12345678"), read(1, 0), free(1), USAGE],
    "the handle 0": [allocate(0, 8), free(0), fill(0, 8)],
    "a handle in use": [allocate(1, 8), allocate(1, 64), USAGE, free(1), USAGE],
    "a handle twice": [allocate(1, 8), free(1, 1), USAGE],
    "a foreign handle": [allocate(1, 8), free(1, 9), USAGE, free(1)],
    "freed twice": [allocate(1, 8), free(1), free(1), fill(1, 8), read(1, 8)],
    "never made": [allocate(1, 8, stream=9), fill(1, 8), allocate(1, 8), free(1), fill(1, 8)],
    "never made, freed": [allocate(1, 8, stream=9), free(1), free(1)],
    "an unknown stream": [allocate(1, 8), fill(1, 8, stream=9), free(1, stream=9), USAGE],
    "asked for": [allocate(1, 8, request=1), fill(1, 8, request=1), free(1, request=1), free(1, request=1)],
    "a failure": [allocate(1, 64), fill(1, 65), fill(1, 8), read(1, 8), fill(1, 64), read(1, 64)],
    "a failure, written": [allocate(1, 8), fill(1, 65), write(1, b"12345678"), read(1, 8)],
    "out of bounds": [allocate(1, 64), fill(1, 64, 8), write(1, bytes(64), offset=1), read(1, 8), read(1, 8)],
    "a pattern": [allocate(1, 64), fill(1, 8, pattern=b"123"), fill(1, 9, pattern=b"12"), fill(1, 4, 2, b"1234")],
    "rows": [allocate(1, 16), write(1, b"12345678", rows=c.Rows(width=4, rows=2, pitch=8)), read(1, 16)],
    "a prepared list": [
        allocate(1, 8),
        Command(prepare=c.Prepare(prepared=1, launches=add(3).launches)),
        free(1),
        USAGE,
        Command(launch_prepared=c.LaunchPrepared(prepared=1)),
        Command(destroy_prepared=c.DestroyPrepared(prepared=1)),
        USAGE,
    ],
    "a capture": [
        allocate(1, 8),
        Command(stream=5, begin_capture=c.BeginCapture(graph=1)),
        fill(1, 8, stream=5),
        add(3, stream=5),
        write(1, b"12345678"),
        allocate(2, 8, stream=5),
        free(2, stream=5),
        Command(stream=5, end_capture=c.EndCapture(graph=1)),
        free(1),
        USAGE,
        Command(destroy_graph=c.DestroyGraph(graph=1)),
        USAGE,
    ],
    "launched again": [
        *[allocate(1, 8), *[add(3)] * 3, free(1), allocate(1, 8), *[add(3)] * 3, read(1, 8)],
        *[free(1), add(3), allocate(2, 8), add(3, buffer=2), read(2, 8)],
    ],
}


@pytest.mark.parametrize("what", UNUSUAL)
def test_unusual_programs_give_same_results_batched_and_separate(pair: tuple[Ways, Ways], what: str) -> None:
    """The program is sent as one batch, and as one batch for each command."""
    program = UNUSUAL[what]
    quota = 6144 if what == "a quota" else 0
    for steps in ([program], [[command] for command in program]):
        if quota and len(steps) == 1:
            continue  # the result of waiting allocations depends on timing
        assert run(pair[0], steps, quota) == run(pair[1], steps, quota)


def test_commands_after_a_waiting_command_wait(rig: Ways) -> None:
    """A command waits for bytes that have not arrived."""
    session = Run(rig)
    session.step(allocate(1, 64), allocate(2, 64))
    del rig.taken[:]
    batch = c.Batch(seq=next(session.seq), commands=[
        Command(write=c.Write(buffer=1, size=8, transfer=7)),
        fill(1, 4),
        allocate(3, 64),
        free(1),
        free(2),
    ])  # fmt: skip
    message = device_pb2.ExecuteRequest(batch=batch).SerializeToString()
    rig.send(Kind.BATCH, message, channel=session.channel)
    data = device_pb2.UploadRequest(data=b"12345678").SerializeToString()
    rig.send(Kind.UPLOAD, data, channel=session.channel, id=7, flags=int(Flag.LAST))
    (result,) = session.step()
    assert not result.HasField("error") and not rig.taken
    assert list(rig.session(session.channel).buffers.items) == [3]
    session.step(free(3))
    assert rig.taken == (["free"] if rig.at_once else [])
    session.close()


def test_all_temporaries_are_traced(rig: Ways) -> None:
    session = Run(rig)
    session.step(Command(request=1, start_trace=c.StartTrace()))
    del rig.taken[:]
    session.step(allocate(1, 64), fill(1, 64), write(1, b"12345678"), free(1))
    trace, _ = session.step(Command(request=1, end_trace=c.EndTrace()))
    assert {"allocate", "fill", "write", "free"} <= {event.name for event in trace.trace.events} and not rig.taken
    session.close()


def test_memory_is_freed_after_its_use_on_other_streams(rig: Ways) -> None:
    session = Run(rig)
    del rig.server.waits[:]
    session.step(
        Command(allocate=c.Allocate(buffer=1, size=64)),
        Command(fill=c.Fill(buffer=1, size=64, pattern=b"\1"), stream=5),
        Command(free=c.Free(buffers=[1])),
    )
    first, fifth = (
        logical_stream.track.stream for logical_stream in rig.session(session.channel).streams.items.values()
    )
    assert rig.server.waits == [fifth, first]
    session.close()


def test_memory_is_not_reused_while_a_kernel_uses_it(rig: Ways) -> None:
    """The kernel runs on another stream, and does not end meanwhile."""
    session = Run(rig)
    gate = threading.Event()
    fifth = rig.session(session.channel).streams.items[5].track.stream
    rig.inside(lambda: fifth.submit(gate.wait))
    batch = c.Batch(seq=next(session.seq), commands=[
        Command(allocate=c.Allocate(buffer=1, size=64)),
        add(1, buffer=1, stream=5),
        Command(free=c.Free(buffers=[1])),
        Command(allocate=c.Allocate(buffer=2, size=64)),
    ])  # fmt: skip
    del rig.server.freed[:]
    message = device_pb2.ExecuteRequest(batch=batch).SerializeToString()
    rig.send(Kind.BATCH, message, channel=session.channel)
    rig.until(Kind.ACK, 2)
    assert not rig.server.freed and rig.inside(lambda: rig.session(session.channel).allocations) == 1
    gate.set()
    session.step()
    assert rig.server.freed == [64]
    session.close()


def test_refused_free_is_reported_without_further_effect(rig: Ways) -> None:
    session = Run(rig)
    session.step(*[Command(allocate=c.Allocate(buffer=handle, size=64 * handle)) for handle in (1, 2, 3)])
    rig.server.refused = {64, 128}
    (result,) = session.step(
        Command(fill=c.Fill(buffer=2, size=128, pattern=b"\1")), Command(free=c.Free(buffers=[1, 2, 3]))
    )
    refusal = from_status(result.error)
    assert "128 bytes were not filled" in refusal.message
    assert "64 bytes were not freed" in str(result.error)
    state = rig.inside(session.state)
    assert state["session"][:2] == [0, 0] and not state["buffers"]
    assert state["counts"]["error fill"] == state["counts"]["error free"] == 1
    rig.server.refused = set()
    held_bytes = rig.inside(lambda: rig.process.executor.memory.reservations.bytes_held(f"t{session.channel}"))
    assert held_bytes == 1024, "the driver has kept the buffers that it did not free"
    rig.send(Kind.CLOSE, channel=session.channel)
    rig.until(Kind.CLOSED)


@pytest.mark.parametrize("lacking", [False, True])
def test_rights_are_checked(rig: Ways, lacking: bool) -> None:
    rights = '"read"' if lacking else '"allocate"'
    session = Run(rig)
    info = f'{{"session": "me", "tenant": "t{session.channel}", "rights": [{rights}]}}'
    rig.send(Kind.CHANGE, info.encode(), channel=session.channel)
    if not lacking:
        # The first allocation only raises the session's bound of handles.
        session.step(Command(allocate=c.Allocate(buffer=2, size=64)))
    del rig.taken[:]
    allocate = Command(allocate=c.Allocate(buffer=1, size=64))
    (result,) = session.step(allocate)
    assert result.HasField("error") is lacking
    assert rig.taken == (["allocate"] if rig.at_once and not lacking else [])
    session.close()


def test_the_clock_of_a_profile_starts_with_the_work_that_follows(rig: Ways) -> None:
    session = Run(rig)
    fill = Command(fill=c.Fill(buffer=1, size=64, pattern=b"\1"))
    session.step(Command(allocate=c.Allocate(buffer=1, size=64)))
    del rig.taken[:]
    session.step(Command(request=1, start_profile=c.StartProfile(profile=1)), fill)
    assert not rig.taken
    profile, _ = session.step(fill, Command(request=1, end_profile=c.EndProfile(profile=1)))
    assert profile.profile.device_ns > 0
    assert rig.taken == (["fill"] if rig.at_once else [])
    session.close()


class FakeHolder:
    """A fake shared holder of a buffer, which records the end of the buffer."""

    def __init__(self) -> None:
        self.ended: list[int] = []

    def leave(self, buffer: Buffer) -> None:
        self.ended.append(buffer.handle)

    def end(self) -> None:
        self.ended.append(0)


@pytest.mark.parametrize("whose", ["place", "durable"])
def test_shares_of_a_buffer_are_notified_of_its_end(rig: Ways, whose: str) -> None:
    session, holder = Run(rig), FakeHolder()
    session.step(*[Command(allocate=c.Allocate(buffer=handle, size=64)) for handle in (1, 2)])
    buffer = rig.session(session.channel).buffers.items[2]
    reservation = buffer.reservation
    rig.inside(lambda: setattr(buffer, whose, holder))
    del rig.taken[:]
    (result,) = session.step(Command(free=c.Free(buffers=[1, 2])))
    assert not result.HasField("error") and not rig.taken
    assert holder.ended == [2 if whose == "place" else 0]
    if whose == "place":  # the memory belongs to the fake holder
        reservations = rig.process.executor.memory.reservations
        rig.inside(lambda: reservations.free(rig.session(session.channel), reservation, buffer))
    session.close()


@pytest.mark.parametrize("command", [{"fill": c.Fill(buffer=1, size=8, pattern=b"\1")},
                                     {"write": c.Write(buffer=1, data=b"12345678")}])  # fmt: skip
def test_read_only_buffers_are_not_written(rig: Ways, command: dict[str, Any]) -> None:
    session = Run(rig)
    session.step(Command(allocate=c.Allocate(buffer=1, size=64)))
    buffer = rig.session(session.channel).buffers.items[1]
    rig.inside(lambda: setattr(buffer, "read_only", ReadOnly("is published", "write to another")))
    (result,) = session.step(Command(**command))
    assert from_status(result.error).reason == Reason.READ_ONLY
    read, _ = session.step(Command(request=1, read=c.Read(buffer=1, size=8)))
    assert read.read.data == bytes(8)
    session.close()


def test_long_list_of_frees_is_processed_in_pieces(rig: Ways) -> None:
    session = Run(rig)
    handles = range(1, 201)
    session.step(*[Command(allocate=c.Allocate(buffer=handle, size=64)) for handle in handles])
    del rig.taken[:]
    session.step(Command(free=c.Free(buffers=handles)))
    usage, _ = session.step(Command(request=1, memory_usage=c.MemoryUsage()))
    assert usage.memory_usage.allocations == 0 and not rig.taken
    session.close()
