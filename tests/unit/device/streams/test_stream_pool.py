"""Tracks and memory on a fake device that runs as late, and as far out of step, as the waits between its streams
allow."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.memory.reservations import Reservations
from hearthd.device.platform.telemetry import Telemetry
from hearthd.device.resources.grants import ProcessGrants
from hearthd.device.session.buffer import Buffer
from hearthd.device.session.session import DeviceSession
from hearthd.device.streams.ordering import Usage
from hearthd.device.streams.stream_pool import WINDOW, WINDOWS, PooledStream, StreamPool
from hearthd.device.streams.track import IDLE_PERIODS, TIME_NEXT
from hearthd.shared.device_spec import DeviceSpec


class FakeEvent:
    def __init__(self) -> None:
        self.done = False
        self.released = False


@dataclass
class FakeStream:
    priority: int = 0
    queue: deque[tuple[str, Any]] = field(default_factory=deque)


@dataclass(eq=False)
class FakeMemory:
    address: int
    size: int
    reserved: int


class FakeServer:
    """A server whose streams are queues that run only on request. The pool reuses a freed block immediately on the
    stream where it was freed, as cudaMallocAsync does; a use on any other stream must be ordered after the free."""

    def __init__(self) -> None:
        self.streams: list[FakeStream] = []
        self.ran: list[Any] = []
        self.live = 0
        self.free_blocks: dict[tuple[int, int], list[int]] = {}
        self.top = 512
        self.properties = SimpleNamespace(total_memory=1 << 40)

    def on_progress(self, _wake: Any) -> bool:
        return True

    def create_stream(self, priority: int = 0) -> FakeStream:
        self.streams.append(FakeStream(priority))
        return self.streams[-1]

    def record(self, stream: FakeStream, *, timing: bool = False) -> FakeEvent:
        event = FakeEvent()
        self.live += 1
        stream.queue.append(("event", event))
        return event

    def wait(self, stream: FakeStream, event: FakeEvent) -> None:
        assert not event.released, "used after it was released"
        stream.queue.append(("wait", event))

    def done(self, event: FakeEvent) -> bool:
        assert not event.released, "queried after it was released"
        return event.done

    def release_event(self, event: FakeEvent) -> None:
        assert not event.released, "released twice"
        event.released = True
        self.live -= 1

    def allocate(self, size: int, stream: FakeStream) -> FakeMemory:
        reserved = -(-size // 512) * 512
        blocks = self.free_blocks.get((id(stream), reserved))
        if blocks:
            return FakeMemory(blocks.pop(), size, reserved)
        self.top += reserved
        return FakeMemory(self.top - reserved, size, reserved)

    def free(self, memory: FakeMemory, stream: FakeStream) -> None:
        self.free_blocks.setdefault((id(stream), memory.reserved), []).append(memory.address)

    def trim(self) -> None: ...

    # ---- actions of a device ----

    def able(self) -> list[FakeStream]:
        heads = [(stream, *stream.queue[0]) for stream in self.streams if stream.queue]
        return [stream for stream, what, value in heads if what != "wait" or value.done]

    def step(self, stream: FakeStream) -> None:
        what, value = stream.queue.popleft()
        if what == "event":
            value.done = True
        elif what == "command":
            self.ran.append(value)

    def run(self, choose: list[int] | None = None) -> None:
        """Runs everything: one step at a time on the stream that `choose` selects, or by default one stream as far as
        possible."""
        turn = 0
        while any(stream.queue for stream in self.streams):
            able = self.able()
            assert able, "circular wait"
            self.step(able[choose[turn % len(choose)] % len(able)] if choose else able[-1])
            turn += 1


class Rig:
    """Tracks, reservations and one session on a fake device."""

    def __init__(self, streams: int = 3) -> None:
        self.server = FakeServer()
        self.tracks = StreamPool(self.server, streams, lambda: None)  # type: ignore[arg-type]
        spec = DeviceSpec(0, "cpu", 0)
        grants = ProcessGrants(spec, self.server, outbox=None)  # type: ignore[arg-type]
        self.device: Any = SimpleNamespace(
            server=self.server, tracks=self.tracks, telemetry=Telemetry(), spec=spec, grants=grants
        )
        self.reservations = Reservations(self.device)
        self.session = DeviceSession(1, {}, self.tracks.acquire)
        self.track = [self.session.streams.items[0].track, *(self.tracks.acquire() for _ in range(streams - 1))]
        self.handles = 0

    def allocate(self, track: PooledStream, size: int = 512) -> Buffer:
        self.handles += 1
        buffer = Buffer(self.handles, size)
        buffer.reservation = self.reservations.allocate(self.session, size, track, [buffer])
        buffer.address = buffer.reservation.memory.address
        return buffer

    def free(self, buffer: Buffer) -> None:
        reservation, buffer.reservation = buffer.reservation, None
        self.reservations.free(self.session, reservation, buffer)

    def use(self, track: PooledStream, writes: list[Buffer], reads: list[Buffer] | None = None) -> None:
        reads = [buffer for buffer in reads or [] if buffer not in writes]
        self.tracks.claim_position(track, [buffer.usage for buffer in writes], [buffer.usage for buffer in reads])
        touched = [(buffer.address, buffer.handle) for buffer in (*writes, *reads)]
        track.stream.queue.append(("command", touched))

    def finish(self) -> None:
        self.server.run()
        while self.tracks.poll():
            self.server.run()


@pytest.fixture
def rig() -> Rig:
    return Rig()


actions = st.lists(
    st.tuples(
        st.sampled_from(["use", "use", "use", "read", "allocate", "free", "window"]),
        st.integers(0, 2),
        st.integers(0, 3),
        st.integers(0, 3),
    ),
    max_size=60,
)


@settings(max_examples=400, deadline=None)
@given(actions, st.lists(st.integers(0, 100), min_size=1, max_size=40))
def test_memory_is_never_used_by_its_next_owner_before_its_last(
    program: list[tuple[str, int, int, int]], choose: list[int]
) -> None:
    """Whichever streams allocate, use and free: at one address, the uses of one buffer end before those of the next
    buffer begin."""
    rig = Rig()
    buffers = [rig.allocate(rig.track[0]) for _ in range(4)]
    for what, on, a, b in program:
        track = rig.track[on]
        if what == "use":
            rig.use(track, [buffers[a]], [buffers[b]])
        elif what == "read":
            rig.use(track, [], [buffers[a]])
        elif what == "allocate":
            rig.free(buffers[a])
            buffers[a] = rig.allocate(track)
        elif what == "free":
            rig.free(buffers[a])
            buffers[a] = rig.allocate(rig.track[b % 3], 512 * (1 + a % 2))
        elif rig.session.persistent.window:
            rig.session.persistent.leave()
        else:
            rig.session.persistent.enter()
    rig.server.run(choose)
    owners: dict[int, list[int]] = {}
    for touched in rig.server.ran:
        for address, handle in touched:
            owners.setdefault(address, []).append(handle)
    for address, order in owners.items():
        assert order == sorted(order), f"the memory at {address} went to its next owner too soon: {order}"


def test_new_memory_is_not_used_elsewhere_before_its_allocation_completes(rig: Rig) -> None:
    """The bytes that the pool returns may still be used by work that the allocating stream waits for."""
    home, reader, other = rig.track
    old = rig.allocate(home)
    rig.use(other, [old])
    rig.use(home, [], [rig.allocate(home)])
    rig.use(other, [rig.allocate(home)])  # `other` has waited for `home` up to here
    rig.use(reader, [old])
    rig.free(old)
    new = rig.allocate(home)
    assert new.address == old.address
    rig.use(other, [new])
    rig.server.run([2, 1, 0])
    ran = [touched[0][1] for touched in rig.server.ran if touched[0][0] == new.address]
    assert ran == [old.handle, old.handle, new.handle]


def test_freed_memory_is_settled_after_its_last_use(rig: Rig) -> None:
    """Every waiting callback is called, and none too early."""
    home, reader, _ = rig.track
    assert not rig.reservations.when_settled(lambda: None)
    buffer = rig.allocate(home)
    rig.tracks.on_complete(home, lambda: None)
    rig.finish()
    rig.use(reader, [], [buffer])
    rig.free(buffer)
    told: list[int] = []
    assert rig.reservations.when_settled(lambda: told.append(1))
    assert rig.reservations.when_settled(lambda: told.append(2))
    rig.tracks.poll()
    assert not told, "the reader has not run"
    rig.finish()
    assert told == [1, 2]
    assert not rig.reservations.when_settled(lambda: told.append(3))


def test_streams_fold_when_there_are_no_more_tracks() -> None:
    tracks = StreamPool(FakeServer(), 2, lambda: None)  # type: ignore[arg-type]
    first, second, third = (tracks.acquire() for _ in range(3))
    assert first is not second and third in (first, second)
    assert tracks.acquire() is not third, "the track with the fewest users"
    other = second if third is first else first
    tracks.release(other)
    tracks.release(other)
    assert tracks.acquire() is other, "an idle track"
    assert len(tracks.all) == 2


def test_priorities_have_separate_tracks_while_available() -> None:
    tracks = StreamPool(FakeServer(), 3, lambda: None)  # type: ignore[arg-type]
    usual, urgent = tracks.acquire(), tracks.acquire(-5)
    assert (usual.stream.priority, urgent.stream.priority) == (0, -5)
    tracks.release(usual)
    more = tracks.acquire(-5)
    assert more not in (usual, urgent), "an idle track of another priority is not used"
    assert tracks.acquire(-5) in (urgent, more)
    assert tracks.acquire(-1) is usual, "the maximum is reached: the track with the fewest users is used"


def test_full_track_takes_no_work_until_some_completes(rig: Rig) -> None:
    track = rig.track[0]
    buffer = rig.allocate(track)
    given = 0
    while not track.full:
        rig.use(track, [buffer])
        given += 1
    assert given <= WINDOW * WINDOWS
    assert not rig.tracks.reap(track)
    for _ in range(WINDOW + 2):
        rig.server.step(track.stream)
    assert rig.tracks.poll()
    assert not track.full
    rig.finish()
    assert track.budget > WINDOW * (WINDOWS - 1)


def test_kernel_is_in_flight_until_done_at_any_marker_position(rig: Rig) -> None:
    """The marker that returns a window precedes the kernel at which it is made, and does not count that kernel as
    done."""
    track = rig.track[0]
    buffer = rig.allocate(track)
    for number in range(3 * WINDOW):
        rig.use(track, [buffer])
        track.launched.append((rig.tracks.ordering.position(track.index), f"kernel {number}", "s"))
        while len(track.stream.queue) > 1 or (track.stream.queue and track.stream.queue[0][0] == "event"):
            rig.server.step(track.stream)  # everything before the kernel has run, the kernel itself has not
        rig.tracks.poll()
        assert rig.tracks.in_flight()[-1] == f"kernel {number}"
    rig.tracks.on_complete(track, lambda: None)
    rig.finish()
    assert rig.tracks.in_flight() == []


def test_wait_for_an_event_counts_for_every_fenced_track(rig: Rig) -> None:
    source, middle, end = rig.track
    rig.use(source, [rig.allocate(source)])
    rig.use(end, [rig.allocate(middle)])  # `end` has waited for all work of `middle`
    event = rig.server.record(source.stream)
    rig.tracks.follow(middle, event)
    rig.tracks.fence(end, middle)
    before = len(rig.server.ran)
    end.stream.queue.append(("command", "late"))
    while end.stream in rig.server.able() or middle.stream in rig.server.able():
        rig.server.step(end.stream if end.stream in rig.server.able() else middle.stream)
    assert "late" not in rig.server.ran[before:], "the source has not reached the event yet"
    rig.finish()
    assert "late" in rig.server.ran


def test_event_is_not_released_while_it_is_watched(rig: Rig) -> None:
    track = rig.track[0]
    first, second = rig.server.record(track.stream), rig.server.record(track.stream)
    told: list[str] = []
    rig.tracks.watch(first, lambda: told.append("first"))
    rig.tracks.watch_both(first, second, lambda: told.append(f"both {first.released or second.released}"))
    for event in (first, second):
        rig.tracks.retire(event)  # because it was destroyed, recorded again, or its session was closed
        assert not event.released
    rig.tracks.poll()
    rig.finish()
    assert told == ["first", "both False"]
    assert first.released and second.released
    third = rig.server.record(track.stream)
    rig.tracks.retire(third)
    assert third.released, "no watcher is left"


def test_timed_out_watch_releases_its_event(rig: Rig) -> None:
    event = rig.server.record(rig.track[0].stream)
    told: list[str] = []
    rig.tracks.watch(event, lambda: told.append("done"), 0.0, lambda: told.append("late"))
    while not told:
        rig.tracks.poll()
    assert told == ["late"]
    rig.tracks.retire(event)
    assert event.released


def test_completed_events_are_released(rig: Rig) -> None:
    buffers = [rig.allocate(track) for track in rig.track]
    for turn in range(500):
        rig.use(rig.track[turn % 3], [buffers[turn * 7 % 3]], [buffers[turn * 5 % 3]])
    done: list[int] = []
    rig.tracks.after_all(rig.track, lambda: done.append(1))
    assert not done
    rig.finish()
    assert done == [1] and rig.server.live == 0


def test_commands_that_are_done_or_followed_by_an_event_need_no_other_event(rig: Rig) -> None:
    track, called = rig.track[0], list[str]()
    rig.tracks.after_commands(track, lambda: called.append("nothing under way"))
    assert called == ["nothing under way"] and not rig.server.live
    buffer = rig.allocate(track)
    rig.use(track, [buffer])
    rig.tracks.on_complete(track, lambda: called.append("event"))
    rig.tracks.after_commands(track, lambda: called.append("behind it"))
    assert rig.server.live == 1, "the event that is pending serves both"
    rig.use(track, [buffer])
    rig.tracks.after_commands(track, lambda: called.append("later"))
    assert rig.server.live == 2
    for _ in range(2):
        rig.server.step(track.stream)
    rig.tracks.poll()
    assert called[1:] == ["event", "behind it"], "the later command is not done"
    rig.finish()
    assert called[3:] == ["later"] and not rig.server.live
    rig.tracks.after_commands(track, lambda: called.append("known"))
    assert called[4:] == ["known"] and not rig.server.live


def test_a_wait_without_work_is_done_immediately(rig: Rig) -> None:
    done: list[int] = []
    rig.tracks.after_all([], lambda: done.append(1))
    assert done == [1]
    assert rig.tracks.max_sleep() is None


def test_unused_buffer_needs_no_wait(rig: Rig) -> None:
    rig.tracks.settle(rig.track[0], Usage())
    assert not rig.track[0].stream.queue


def test_the_priority_of_a_session_is_added_to_that_of_its_streams() -> None:
    tracks = StreamPool(FakeServer(), 4, lambda: None)  # type: ignore[arg-type]
    urgent, other = DeviceSession(1, {"priority": -2}, tracks.acquire), DeviceSession(2, {}, tracks.acquire)
    assert urgent.streams.items[0].track.stream.priority == -2
    assert other.streams.items[0].track.stream.priority == 0


def test_barred_track_takes_nothing_and_remembers_its_waiters() -> None:
    rig = Rig(2)
    track = rig.track[0]
    rig.tracks.set_barred(track, True, 3)
    assert track.closed and track.requested == 2, "launches wait"
    assert not track.full, "up to three copies are accepted"
    assert track.room == 3
    for _ in range(3):
        rig.tracks.claim_position(track, ())
    assert track.full and track.requested == 3 and not track.room
    rig.tracks.set_barred(track, False)
    assert not (track.full or track.closed or track.requested)
    rig.tracks.set_held(True)
    rig.tracks.set_barred(track, False)
    assert track.closed and not track.requested, "a hold of all tracks requests no turn"
    rig.tracks.set_held(False)
    given = track.submitted
    for _ in range(3 * WINDOW):
        rig.tracks.claim_position(track, ())
    rig.server.run()
    rig.tracks.poll()
    assert track.submitted == given + 3 * WINDOW, "work returned to the budget still counts as submitted"


# ---- tracks that are kept back ----


def test_busy_track_is_withheld_and_then_reused(rig: Rig) -> None:
    tracks, track = rig.tracks, rig.track[1]
    rig.use(track, [rig.allocate(track)])
    tracks.release(track)
    assert track.users == 0 and track.hold_count == 1
    shared = tracks.acquire()
    assert shared is not track and len(tracks.all) == 3, "the withheld track counts towards the maximum for now"
    rig.finish()
    assert track.hold_count == 0 and tracks.acquire() is track


def test_idle_track_is_reused(rig: Rig) -> None:
    track = rig.track[1]
    rig.use(track, [rig.allocate(track)])
    rig.tracks.release(track)
    rig.server.run()
    assert rig.tracks.acquire() is track


def test_completed_track_is_not_withheld(rig: Rig) -> None:
    rig.tracks.release(rig.track[2])
    assert not rig.track[2].hold_count and rig.tracks.acquire() is rig.track[2]


def test_folded_streams_end_one_by_one(rig: Rig) -> None:
    """Two streams share a track. One of them ends and the other remains: a new stream does not get the track."""
    tracks = rig.tracks
    twice = tracks.acquire()
    assert twice.users == 2
    rig.use(twice, [rig.allocate(twice)])
    tracks.release(twice)
    assert (twice.users, twice.hold_count) == (1, 1)
    assert tracks.acquire() is not twice


def test_all_tracks_are_withheld(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(streams=1)
    tracks, now = rig.tracks, [0.0]
    monkeypatch.setattr("hearthd.device.streams.stream_pool.time.monotonic", lambda: now[0])
    first = rig.track[0]
    first.launched.append((1, "endless", "s"))
    rig.use(first, [rig.allocate(first)])
    tracks.acquire()
    tracks.release(first)
    assert (first.users, first.hold_count) == (1, 1)
    second = tracks.acquire(bounded=True)
    assert second is not first, "independent of the bound, because no stream waits for it"
    rig.use(second, [rig.allocate(second)])
    tracks.release(second)
    now[0] = 10.0
    assert tracks.withheld == [first, second]
    with pytest.raises(Refusal) as caught:
        tracks.acquire(bounded=True)
    refusal = caught.value
    assert refusal.reason is Reason.QUEUE_FULL and refusal.retry_after_s and refusal.fix
    assert refusal.details == {"streams": "2", "max_streams": "1", "kernels": "endless"}
    third = tracks.acquire()
    assert third not in (first, second), "a session gets its first stream always"
    rig.finish()
    assert tracks.withheld == [] and tracks.acquire(bounded=True) is second


def test_work_that_does_not_end_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(streams=2)
    tracks, now = rig.tracks, [0.0]
    monkeypatch.setattr("hearthd.device.streams.stream_pool.time.monotonic", lambda: now[0])
    lost = rig.track[1]
    rig.use(lost, [rig.allocate(lost)])
    tracks.release(lost)
    assert tracks.acquire() is rig.track[0], "it may be done in a moment"
    tracks.release(rig.track[0])
    now[0] = 10.0
    assert tracks.acquire() not in (lost, rig.track[0])


# ---- launches that are timed ----


class Timed(Rig):
    """A rig whose launches take as long as the clock says, and whose measured times are recorded."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(1)
        self.now = 0
        self.reported: list[int] = []
        monkeypatch.setattr("hearthd.device.streams.stream_pool.time.perf_counter_ns", lambda: self.now)
        self.tracks.on_launch_timed = self.reported.append
        self.only = self.track[0]
        self.buffer = self.allocate(self.only)

    def launch(self, count: int = 1) -> None:
        for _ in range(count):
            position = self.tracks.claim_position(self.only, [self.buffer.usage], is_launch=True)
            self.only.launched.append((position, "kernel", "s"))
            self.only.stream.queue.append(("command", [(self.buffer.address, self.buffer.handle)]))

    def sync(self, after: int = 0) -> None:
        self.tracks.on_complete(self.only, lambda: None)
        self.now += after
        self.finish()


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> Timed:
    return Timed(monkeypatch)


def test_the_first_launch_of_a_stream_is_timed(timed: Timed) -> None:
    timed.launch()
    timed.now += 500
    timed.sync(after=1000)
    assert timed.reported == [1500], "from its submission, not from the first wait for it"


def test_launch_is_timed_to_its_own_end(timed: Timed) -> None:
    timed.launch(50)
    timed.now = 700
    while not timed.reported:  # one of the fifty commands after the other
        timed.server.step(timed.only.stream)
        timed.tracks.poll()
        timed.now += 1
    assert timed.reported[0] < 710
    timed.sync()
    assert len(timed.reported) == 1


def test_selection_during_a_timed_launch_is_kept(timed: Timed) -> None:
    """The track has a new user while a launch of the previous one is being timed."""
    timed.launch()
    timed.only.timing = TIME_NEXT
    timed.sync()
    assert len(timed.reported) == 1 and timed.only.timing == TIME_NEXT


def test_copies_are_not_timed_and_the_next_launch_is(timed: Timed) -> None:
    for _ in range(3):
        timed.use(timed.only, [timed.buffer])
        timed.sync(after=1000)
    for _ in range(2 * WINDOW):
        timed.use(timed.only, [timed.buffer])
    assert timed.reported == []
    timed.finish()
    timed.launch()
    timed.sync(after=7)
    assert timed.reported == [7]


def test_one_launch_of_each_window_is_timed(timed: Timed) -> None:
    for _ in range(40):
        timed.launch(WINDOW)
        timed.finish()
    assert 38 <= len(timed.reported) <= 45


def test_one_launch_after_several_syncs_is_timed(timed: Timed) -> None:
    """A stream with a sync after every few launches is also timed."""
    for _ in range(IDLE_PERIODS * 5):
        timed.launch()
        timed.sync(after=10)
    assert timed.reported == [10] * len(timed.reported) and 5 <= len(timed.reported) <= 7


def test_the_next_user_of_a_track_is_timed_from_its_first_launch(timed: Timed) -> None:
    timed.launch()
    timed.sync(after=10)
    timed.launch(3)
    timed.sync(after=10)
    assert timed.reported == [10]
    timed.tracks.release(timed.only)
    assert timed.tracks.acquire() is timed.only
    timed.launch()
    timed.sync(after=20)
    assert timed.reported == [10, 20]


def test_no_other_launch_is_timed_while_one_is_pending(timed: Timed) -> None:
    """Until the launch is done, no other launch is timed on the track, and its time is correct in the end."""
    timed.launch(3 * WINDOW)
    timed.now = 10**12
    assert timed.reported == []
    timed.sync()
    assert timed.reported == [10**12]
