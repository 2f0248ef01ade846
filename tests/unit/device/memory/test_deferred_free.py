"""Deferred free in pieces: in order, alternating between sessions, and no session waits for more than one piece."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from hearth_proto.frames import Kind
from hearth_proto.reasons import Reason, Refusal
from hearth_proto.v1 import commands_pb2 as c
from hearthd.device.cpu.server import CpuServer
from hearthd.device.memory.deferred_free import FEW, PIECE_ITEMS, STRETCH_S, DeferredFree
from hearthd.shared.device_spec import DeviceSpec
from tests.support.device.rig import Rig

MANY = 5_000
LIMIT = MANY * 512


class Bench:
    """A `DeferredFree` whose clock advances by `cost` seconds for each freed item."""

    def __init__(self, cost: float = STRETCH_S / PIECE_ITEMS) -> None:
        self.now = 0.0
        self.cost = cost
        self.freed_items: list[Any] = []
        self.track: Any = None
        self.deferred_free = DeferredFree(lambda: self.now)

    def begin(self, session: Any, items: list[Any]) -> Any:
        return self.deferred_free.begin(session, items, lambda _: self.track, self.free_item)

    def free_item(self, item: Any) -> None:
        self.now += self.cost
        self.freed_items.append(item)
        if isinstance(item, Refusal):
            raise item

    def finish(self) -> int:
        """Calls `pump` until nothing is left, and returns the number of calls."""
        times = 0
        while self.deferred_free.more:
            self.deferred_free.pump()
            times += 1
        return times


def test_few_buffers_are_freed_immediately_and_many_in_ordered_pieces() -> None:
    bench = Bench()
    few = bench.begin("a", list(range(FEW)))
    assert few.over and bench.freed_items == list(range(FEW)) and not bench.deferred_free.more
    bench.freed_items.clear()
    many = bench.begin("a", list(range(10 * FEW)))
    assert not many.over and not bench.freed_items, "a large request waits for its turn"
    assert bench.finish() >= 10 * FEW // (2 * PIECE_ITEMS)
    assert many.over and bench.freed_items == list(range(10 * FEW))


def test_sessions_take_turns_and_each_is_notified_of_its_frees() -> None:
    bench = Bench()
    notified: list[str] = []
    for session in "ab":
        items = [(session, number) for number in range(2 * FEW)]
        bench.begin(session, items)
        bench.begin(session, [(session, 2 * FEW + number) for number in range(2 * FEW)])
        bench.deferred_free.after(session, lambda session=session: notified.append(session))  # type: ignore[misc]
    assert bench.deferred_free.after_all(lambda: notified.append("all"))
    bench.deferred_free.pump()
    bench.deferred_free.pump()
    assert {session for session, _ in bench.freed_items} == {"a", "b"}, (
        "neither session waits for all frees of the other"
    )
    bench.finish()
    for session in "ab":
        assert [number for owner, number in bench.freed_items if owner == session] == list(range(4 * FEW))
    assert notified[-1] == "all" and sorted(notified[:-1]) == ["a", "b"]
    assert not bench.deferred_free.after_all(lambda: notified.append("never"))
    bench.deferred_free.after("a", lambda: notified.append("at once"))
    assert notified[-1] == "at once"


def test_free_without_room_on_its_track_waits_and_keeps_no_loop_awake() -> None:
    bench = Bench()
    bench.track = SimpleNamespace(budget=0)
    clearing = bench.begin("a", list(range(2 * FEW)))
    bench.deferred_free.pump()
    assert not bench.deferred_free.more and not bench.freed_items
    bench.track.budget = 1
    assert bench.deferred_free.more
    bench.finish()
    assert clearing.over


def test_failure_of_one_free_does_not_stop_the_others() -> None:
    bench = Bench()
    refusal = Refusal(Reason.INTERNAL, "the driver says no")
    clearing = bench.begin("a", [refusal, *range(2 * FEW)])
    bench.finish()
    assert clearing.over and clearing.failure is refusal and len(bench.freed_items) == 2 * FEW + 1


# ---- in a device process ----


@pytest.fixture
def rig() -> Iterator[Rig[CpuServer]]:
    rig = Rig(DeviceSpec(0, "cpu", 0, memory_limit=LIMIT), CpuServer)
    yield rig
    rig.stop()


def fill_up(rig: Rig[CpuServer]) -> None:
    """Allocates all of the device's memory, in many buffers."""
    for start in range(1, MANY + 1, 500):
        rig.batch(*(c.Command(allocate=c.Allocate(buffer=start + at, size=512)) for at in range(500)))
    assert not rig.call(flush=c.Flush()).HasField("error")


def usage(rig: Rig[CpuServer]) -> c.MemoryUsageResult:
    return rig.call(memory_usage=c.MemoryUsage()).memory_usage


def answers_meanwhile(rig: Rig[CpuServer], is_over: Callable[[], Any]) -> int:
    """Returns the number of consecutive answers that another session receives until `is_over` returns True."""
    count = 0
    while True:
        ident = 1_000_000 + count
        rig.send(Kind.CALL, c.Command(request=1, flush=c.Flush()).SerializeToString(), channel=2, id=ident)
        rig.until(Kind.RESULT, ident)
        if is_over():
            return count
        count += 1


def test_other_sessions_are_served_during_frees_and_end_of_a_session(rig: Rig[CpuServer]) -> None:
    rig.send(Kind.OPEN, b"{}", channel=2)
    fill_up(rig)
    freed = rig.start(free=c.Free(buffers=range(1, MANY)))
    assert answers_meanwhile(rig, lambda: rig.came(Kind.RESULT, freed)) > 5
    assert not rig.answer(freed).HasField("error")
    assert usage(rig).allocations == 1 and usage(rig).bytes_in_use == 512
    rig.batch(*(c.Command(allocate=c.Allocate(buffer=MANY + number, size=256)) for number in range(1, MANY // 2)))

    rig.send(Kind.CLOSE, channel=1)
    assert answers_meanwhile(rig, lambda: rig.came(Kind.CLOSED)) > 5
    rig.until(Kind.CLOSED)
    assert rig.server.memory_info().in_use == 0


def test_end_of_a_session_is_reported_when_all_is_free(rig: Rig[CpuServer]) -> None:
    fill_up(rig)
    rig.send(Kind.CLOSE, channel=1)
    rig.until(Kind.CLOSED)
    assert rig.server.memory_info().in_use == 0


def test_end_of_a_session_waits_for_its_frees(rig: Rig[CpuServer]) -> None:
    """Some frees are in progress, others wait for a write whose bytes never arrive."""
    fill_up(rig)
    rig.batch(
        c.Command(create_stream=c.CreateStream(stream=5)),
        c.Command(stream=5, write=c.Write(buffer=1, size=512, transfer=9)),
        c.Command(stream=5, free=c.Free(buffers=range(1, 2000))),
        c.Command(free=c.Free(buffers=range(2000, 4000))),
    )
    rig.send(Kind.CLOSE, channel=1)
    rig.until(Kind.CLOSED)
    assert rig.server.memory_info().in_use == 0


def test_allocation_after_a_large_free_gets_its_memory(rig: Rig[CpuServer]) -> None:
    fill_up(rig)
    rig.batch(
        c.Command(free=c.Free(buffers=range(1, MANY + 1))),
        c.Command(allocate=c.Allocate(buffer=MANY + 1, size=LIMIT)),
    )
    assert not rig.call(sync=c.Sync(all_streams=True)).HasField("error")
    assert usage(rig).allocations == 1 and usage(rig).bytes_in_use == LIMIT


def test_allocation_of_another_session_waits_for_running_frees(rig: Rig[CpuServer]) -> None:
    rig.send(Kind.OPEN, b"{}", channel=2)
    fill_up(rig)
    rig.batch(c.Command(free=c.Free(buffers=range(1, MANY + 1))))
    command = c.Command(request=1, allocate=c.Allocate(buffer=1, size=LIMIT))
    rig.send(Kind.CALL, command.SerializeToString(), channel=2, id=4_000_000)
    answer = c.Result.FromString(rig.until(Kind.RESULT, 4_000_000).payload)
    assert not answer.HasField("error"), answer.error.message


def test_invalid_buffer_is_reported_when_the_rest_is_free(rig: Rig[CpuServer]) -> None:
    fill_up(rig)
    error = rig.call(free=c.Free(buffers=[*range(1, MANY + 1), MANY + 7])).error
    assert f"buffer {MANY + 7} is not live" in error.message
    assert usage(rig).allocations == 0
    assert not rig.call(allocate=c.Allocate(buffer=1, size=LIMIT)).HasField("error")


def test_a_cleanup_releases_kept_memory_without_delaying_others(rig: Rig[CpuServer]) -> None:
    rig.send(Kind.OPEN, b"{}", channel=2)
    rig.batch(c.Command(set_allocation_mode=c.SetAllocationMode(mode=c.ALLOCATION_MODE_PERSISTENT)))
    fill_up(rig)
    rig.batch(c.Command(free=c.Free(buffers=range(1, MANY + 1))))
    assert usage(rig).bytes_persistent == LIMIT
    cleaned = rig.start(memory_cleanup=c.MemoryCleanup())
    assert answers_meanwhile(rig, lambda: rig.came(Kind.RESULT, cleaned)) > 3
    assert not rig.answer(cleaned).HasField("error")
    assert usage(rig).bytes_persistent == 0 and rig.server.memory_info().in_use == 0
