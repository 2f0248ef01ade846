"""Sharing among sessions of one device process: shares, floods, which commands wait and which must not, and metering.

The machine may be busy, so shares are compared with the device's own account of its time, and with the number of
kernels of equal length.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from hearth_proto.frames import Frame, Kind
from hearth_proto.reasons import Reason, from_status
from hearth_proto.v1 import commands_pb2 as c
from hearth_proto.v1 import device_pb2
from hearthd.shared.device_spec import DeviceSpec
from tests.support.device.crowd import Crowd, Member
from tests.support.device.link import Command
from tests.support.timing import steady

MAY, ALONE, AWAITED = 1, 2, 4
WANTS, WORKS = 1, 2


@pytest.fixture(scope="module")
def process() -> Iterator[Crowd]:
    crowd = Crowd(DeviceSpec(0, "cpu", 0, cpu_threads=1))
    yield crowd
    crowd.close()


@pytest.fixture
def crowd(process: Crowd) -> Iterator[Crowd]:
    yield process
    process.send(Kind.TURN, flags=MAY | ALONE)
    for member in list(process.members.values()):
        process.leave(member)
    process.metered.clear()
    process.busy.clear()


def shares(crowd: Crowd, seconds: float, *members: Member) -> tuple[list[float], list[float]]:
    """Returns each member's share of the device time, and of the launches, while all members flood the device."""
    crowd.run(0.3, *members)
    crowd.metered.clear()
    before = [member.done for member in members]
    crowd.run(seconds, *members)
    used = [crowd.metered.get(member.session, 0.0) for member in members]
    done = [member.done - start for member, start in zip(members, before, strict=True)]
    return [each / sum(used) for each in used], [each / sum(done) for each in done]


def share_time(crowd: Crowd, seconds: float, members: list[Member], expected: Any) -> None:
    """Asserts that the device time is shared as `expected` (an `approx`)."""
    used = steady(lambda: shares(crowd, seconds, *members)[0], lambda used: used == expected)
    assert used == expected


# ---- shares ----


def test_time_is_shared_by_weights_however_long_the_kernels(crowd: Crowd) -> None:
    lengths = (5_000_000, 1_000_000, 200_000)
    members = [
        crowd.join(tenant=str(weight), weight=weight, nanoseconds=length, launches=2_000_000 // length + 1, window=128)
        for weight, length in zip((1.0, 2.0, 4.0), lengths, strict=True)
    ]
    share_time(crowd, 2.5, members, pytest.approx([weight / 7 for weight in (1, 2, 4)], rel=0.2))


def test_kernels_of_one_length_are_run_by_weights(crowd: Crowd) -> None:
    """The numbers of launches are compared only if the kernels were of one length: if other work has the processors,
    each takes a different time, tens of milliseconds, and sessions with equal times have different numbers."""
    length = 0.002
    members = [
        crowd.join(tenant=str(weight), weight=weight, nanoseconds=int(length * 1e9), launches=2, window=128)
        for weight in (1.0, 2.0, 4.0)
    ]
    expected = pytest.approx([weight / 7 for weight in (1, 2, 4)], rel=0.25)

    def measured() -> tuple[list[float], list[float]]:
        """Returns the shares of the device time, and of the launches or, if those took too long, of the time again."""
        before = sum(member.done for member in members)
        used, done = shares(crowd, 3.0, *members)
        launches = sum(member.done for member in members) - before
        return used, done if sum(crowd.metered.values()) < 2 * length * launches else used

    used, done = steady(measured, lambda each: each[0] == each[1] == expected)
    assert used == expected
    assert done == expected


def test_sessions_of_one_tenant_share_its_weight(crowd: Crowd) -> None:
    members = [crowd.join(tenant=tenant, nanoseconds=500_000, launches=4, window=16) for tenant in "aab"]
    share_time(crowd, 1.5, members, pytest.approx([0.25, 0.25, 0.5], rel=0.25))


def test_urgent_session_runs_first_and_leaves_a_share(crowd: Crowd) -> None:
    urgent, other = (
        crowd.join(tenant=tenant, priority=priority, nanoseconds=500_000, launches=4, window=16)
        for tenant, priority in (("a", -1), ("b", 0))
    )
    share_time(crowd, 1.5, [urgent, other], pytest.approx([0.89, 0.11], abs=0.09))


# ---- floods ----


def test_work_submitted_alone_delays_no_other_session_and_is_no_debt(crowd: Crowd) -> None:
    """The first session has seconds of work on the device before the other sessions begin."""
    members = [
        crowd.join(tenant=str(weight), weight=weight, nanoseconds=length, launches=2_000_000 // length, window=window)
        for weight, length, window in ((1.0, 2_000_000, 640), (2.0, 1_000_000, 128), (4.0, 200_000, 128))
    ]
    first = members[0]
    crowd.fill(first)
    while not first.acked:  # until the device has begun this work
        crowd.next()
    crowd.run(1.2, *members)
    used = [crowd.metered.get(member.session, 0.0) for member in members]
    assert sum(used[1:]) > 0.3 * sum(used), "the others wait until all of it is done"
    assert first.acked < first.window + 64, "its window is not filled further"
    crowd.count(first)  # waits until all of it is done
    used, _ = shares(crowd, 2.0, *members)
    assert used[0] > 0.5 / 7, "the first session is charged for the time that it used alone"


@pytest.mark.parametrize("launches", [64, 8000])
def test_a_flood_delays_no_other_session(crowd: Crowd, launches: int) -> None:
    """One batch of the flood may have nearly a megabyte."""
    light = crowd.join(tenant="light", nanoseconds=0)
    flood = crowd.join(tenant="flood", nanoseconds=1_000_000, launches=launches, window=32)
    crowd.run(0.3, flood)
    launched = 0

    def overtaking() -> float:
        """Returns the part of the flood's queued batches that are executed during a round trip: the median of 60."""
        nonlocal launched
        launched += 60
        parts = []
        for _ in range(60):
            crowd.fill(flood)
            before = flood.acked
            crowd.round_trip(light)
            parts.append((flood.acked - before) / flood.window)
        return sorted(parts)[30]

    # The flood has seconds of work queued; a session queued after the flood would wait for all of it.
    assert steady(overtaking, lambda part: part < 0.1) < 0.25
    assert crowd.count(light) == launched


def test_commands_waiting_for_a_turn_are_unacknowledged_and_run_in_order(crowd: Crowd) -> None:
    members = [crowd.join(tenant=tenant, nanoseconds=300_000, launches=200, window=16) for tenant in "ab"]
    crowd.run(0.5, *members)
    assert all(member.seq - member.acked >= 12 for member in members), (
        "the device has accepted more than it can execute in time"
    )
    posted = [member.seq * member.launches for member in members]
    crowd.leave(members[1])
    for member in members[:1]:
        assert crowd.count(member) == posted[0]
        assert member.acked == member.seq


def test_an_endless_kernel_delays_others_only_briefly(crowd: Crowd) -> None:
    """Counts the kernels of one millisecond that two other sessions run before the endless kernel ends; about 1,000 are
    expected of each."""
    stuck = crowd.join(tenant="stuck", nanoseconds=1_000_000_000, launches=2, window=1)
    other, third = (crowd.join(tenant=tenant, nanoseconds=1_000_000, launches=4, window=8) for tenant in "ab")
    launched = 0

    def meanwhile() -> int:
        """Returns the smaller of the numbers of kernels that the two sessions run during two endless kernels."""
        nonlocal launched
        ended: list[Frame] = []

        def note(frame: Frame) -> None:
            if frame.kind == Kind.RESPONSE and frame.channel == stuck.channel:
                ended.append(frame)

        launched += stuck.launches
        before = other.done, third.done
        crowd.post(stuck, Command(launches=crowd.records(stuck)), Command(request=1, sync=c.Sync()))
        while not ended:
            crowd.run(0.05, other, third, on_frame=note)
        return min(other.done - before[0], third.done - before[1])

    assert steady(meanwhile, lambda done: done > 100) > 100
    assert crowd.count(stuck) == launched


def test_kernel_that_waits_for_later_work_gets_it(crowd: Crowd) -> None:
    """The session is charged for the time that it runs, as for any work, and the work queued after the kernel still
    runs: a few commands, which take a third of a second by `extra_slices` where each gets a separate slice."""
    kernel_s, commands = 8, 5
    stuck = crowd.join(tenant="stuck", nanoseconds=kernel_s * 1_000_000_000, launches=1, window=100)
    flood = crowd.join(tenant="flood", nanoseconds=1_000_000, launches=4, window=8)
    assert not crowd.call(channel=stuck.channel, allocate=c.Allocate(buffer=2, size=1)).HasField("error")
    stream = c.Command(create_stream=c.CreateStream(stream=1))
    assert not crowd.call(channel=stuck.channel, create_stream=stream.create_stream).HasField("error")
    crowd.run(0.2, flood)
    began = time.perf_counter()
    crowd.post(stuck)
    crowd.run(0.5, flood)  # builds up the session's debt
    for _ in range(commands):
        crowd.post(stuck, Command(stream=1, fill=c.Fill(buffer=2, size=1, pattern=b"1")))
    before = flood.done
    while stuck.acked <= commands or flood.done == before:
        crowd.run(0.02, flood)
        assert time.perf_counter() - began < kernel_s, "the kernel ended before"
    assert crowd.count(stuck) == 1


def test_copies_run_concurrently_with_kernels_of_other_sessions(crowd: Crowd) -> None:
    kernels = crowd.join(tenant="kernels", nanoseconds=1_000_000, launches=4, window=16)
    copies = crowd.join(tenant="copies", window=16)
    size = 256 << 10
    assert not crowd.call(channel=copies.channel, allocate=c.Allocate(buffer=2, size=size)).HasField("error")
    write = Command(write=c.Write(buffer=2, data=bytes(range(256)) * (size // 256)))
    crowd.run(0.2, kernels)
    before = kernels.done
    end = time.perf_counter() + 60.0  # a second is sufficient on an otherwise idle CPU
    while copies.acked <= 20 or kernels.done - before <= 10:
        assert time.perf_counter() < end, (copies.acked, kernels.done - before)
        while copies.seq - copies.acked < copies.window:
            crowd.post(copies, write)
        crowd.run(0.005, kernels)
    read = crowd.call(channel=copies.channel, read=c.Read(buffer=2, offset=size - 256, size=256)).read
    assert read.data == bytes(range(256))


def test_an_upload_waits_for_its_write(crowd: Crowd) -> None:
    """The session has more uploads than it may have without a Write, and the batch with the Writes waits for a time
    slice."""
    flood = crowd.join(tenant="flood", nanoseconds=1_000_000, launches=16, window=16)
    uploads = crowd.join(tenant="uploads", nanoseconds=1_000_000)
    count = 100
    assert not crowd.call(channel=uploads.channel, allocate=c.Allocate(buffer=2, size=count)).HasField("error")
    crowd.run(0.2, flood)
    crowd.post(uploads, Command(launches=crowd.records(uploads, 100)))
    for number in range(1, count + 1):
        crowd.post(uploads, Command(write=c.Write(buffer=2, offset=number - 1, size=1, transfer=number)))
        crowd.upload(number, [bytes([number])], channel=uploads.channel)
    end = time.perf_counter() + 60
    while uploads.acked < uploads.seq:
        assert time.perf_counter() < end
        crowd.run(0.02, flood)
    read = crowd.call(channel=uploads.channel, read=c.Read(buffer=2, size=count)).read
    assert read.data == bytes(range(1, count + 1))


# ---- metering ----


@pytest.mark.parametrize("sessions", [1, 3])
def test_metered_time_equals_busy_time(crowd: Crowd, sessions: int) -> None:
    def measure() -> tuple[float, float]:
        """Returns the seconds for which the device was busy, and the metered seconds."""
        members = [
            crowd.join(tenant=str(number), nanoseconds=500_000 * (number + 1), launches=4, window=16)
            for number in range(sessions)
        ]
        crowd.run(0.2, *members)
        crowd.metered.clear()
        began = time.perf_counter()
        crowd.run(0.8, *members)
        for member in members:
            crowd.count(member)
        took = time.perf_counter() - began
        for member in members:
            crowd.leave(member)  # reports the remaining time
        return took, sum(crowd.metered[member.session] for member in members)

    def good(times: tuple[float, float]) -> bool:
        # An interval of at most 0.2 s, up to a report, was under way when the measurement began.
        return times[0] * 0.5 <= times[1] <= times[0] + 0.25

    measured = steady(measure, good)
    assert good(measured), measured


def test_idle_session_is_not_charged(crowd: Crowd) -> None:
    crowd.join(tenant="idle")
    member = crowd.join(tenant="some", nanoseconds=20_000_000, launches=5)
    crowd.metered.clear()
    began = time.perf_counter()
    crowd.post(member)
    assert crowd.count(member) == 5
    took = time.perf_counter() - began
    time.sleep(0.6)  # both sessions are idle
    crowd.leave(member)
    assert 0.06 < crowd.metered[member.session] < took + 0.3
    assert crowd.metered.get("session-2", 0.0) < 0.3  # opening it fills a buffer, which a busy machine makes slow


def test_a_long_kernel_is_metered_while_it_runs(crowd: Crowd) -> None:
    """A report comes at least every second, unless the machine is busy."""
    for seconds in (1.8, 4.0, 8.0):
        member = crowd.join(tenant="long", nanoseconds=int(seconds * 1e9), launches=1)
        crowd.metered.clear()
        crowd.post(member, Command(launches=crowd.records(member)), Command(request=1, sync=c.Sync()))
        metered = [0.0]
        while crowd.next().kind != Kind.RESPONSE:
            metered.append(crowd.metered.get(member.session, 0.0))
        assert crowd.count(member) == 1
        if any(0.5 < each < seconds for each in metered):
            return
        crowd.leave(member)
    raise AssertionError(f"the last kernel's time was reported as {metered} s")


# ---- calls that were abandoned ----


def start(crowd: Crowd, member: Member, ident: int, **kind: Any) -> None:
    command = Command(request=1, **kind)
    crowd.send(Kind.CALL, command.SerializeToString(), channel=member.channel, id=ident)


def launch(nanoseconds: int = 0) -> c.Launch:
    arguments = [c.Argument(pointer=c.Argument.Pointer(buffer=1)), c.Argument(int64=nanoseconds)]
    return c.Launch(function=1, grid=c.Dim3(x=1), block=c.Dim3(x=1), arguments=arguments)


def test_a_call_that_waits_for_its_turn_is_dropped(crowd: Crowd) -> None:
    member = crowd.join(tenant="calls")
    crowd.send(Kind.TURN, flags=0)
    for ident in (1001, 1002, 1003):
        start(crowd, member, ident, launch=launch())
    for ident in (1001, 1002):  # the call at which the queue waits, and one after it
        crowd.send(Kind.CANCEL, channel=member.channel, id=ident)
    crowd.send(Kind.CANCEL, channel=member.channel, id=9999)
    crowd.send(Kind.TURN, flags=MAY)
    for ident, dropped in ((1001, True), (1002, True), (1003, False)):
        answer = crowd.until(lambda frame: frame.kind == Kind.RESULT and frame.id in (1001, 1002, 1003))
        assert answer.id == ident
        result = c.Result.FromString(answer.payload)
        assert result.HasField("error") == dropped
        assert not dropped or from_status(result.error).reason == Reason.CANCELLED
    assert crowd.count(member) == 1


def test_cancelled_deferred_call_is_dropped_and_unblocks_later_commands(crowd: Crowd) -> None:
    member = crowd.join(tenant="calls")
    assert not crowd.call(channel=member.channel, allocate=c.Allocate(buffer=2, size=8)).HasField("error")
    # The bytes of this write have not been sent.
    crowd.post(member, Command(write=c.Write(buffer=2, size=8, transfer=7)))
    start(crowd, member, 2001, launch=launch())
    start(crowd, member, 2002, launch=launch())
    assert not crowd.call(channel=member.channel, memory_usage=c.MemoryUsage()).HasField("error")
    crowd.send(Kind.CANCEL, channel=member.channel, id=2001)
    status = c.Result.FromString(crowd.until(lambda frame: frame.id == 2001).payload).error
    assert from_status(status).reason == Reason.CANCELLED
    crowd.upload(7, [bytes(8)], channel=member.channel)
    crowd.until(lambda frame: frame.kind == Kind.RESULT and frame.id == 2002)
    assert crowd.count(member) == 1


def test_a_call_that_has_begun_runs_on(crowd: Crowd) -> None:
    member = crowd.join(tenant="calls")
    start(crowd, member, 3001, launch=launch(50_000_000))
    assert not crowd.call(channel=member.channel, memory_usage=c.MemoryUsage()).HasField("error")
    crowd.send(Kind.CANCEL, channel=member.channel, id=3001)
    assert crowd.count(member) == 1
    command = launch()
    command.iterations = 3000  # more than a track accepts
    start(crowd, member, 3002, launch=command)
    assert not crowd.call(channel=member.channel, memory_usage=c.MemoryUsage()).HasField("error")
    crowd.send(Kind.CANCEL, channel=member.channel, id=3002)
    assert crowd.count(member) == 3001


# ---- processes that share the device ----


def test_no_work_is_submitted_without_a_turn_and_other_commands_are_served(crowd: Crowd) -> None:
    member = crowd.join(tenant="a")
    crowd.send(Kind.TURN, flags=0)
    start(crowd, member, 1, allocate=c.Allocate(buffer=5, size=64))
    start(crowd, member, 2, memory_usage=c.MemoryUsage())
    start(crowd, member, 3, create_stream=c.CreateStream(stream=4))
    for ident in (1, 2, 3):
        frame = crowd.until(lambda frame, ident=ident: frame.kind == Kind.RESULT and frame.id == ident)  # type: ignore[misc]
        assert not c.Result.FromString(frame.payload).HasField("error")
    crowd.post(member, Command(launches=crowd.records(member, 3)), Command(request=4, sync=c.Sync()))
    crowd.until(lambda frame: frame.kind == Kind.BUSY and frame.flags == WANTS)
    crowd.send(Kind.PING, id=5)
    crowd.until(lambda frame: frame.kind == Kind.PONG)
    assert member.acked < member.seq
    crowd.send(Kind.TURN, flags=MAY)
    crowd.until(lambda frame: frame.kind == Kind.RESPONSE)
    crowd.until(lambda frame: frame.kind == Kind.BUSY and frame.flags == 0)
    assert crowd.count(member) == 3


def test_little_work_continues_after_the_end_of_a_turn(crowd: Crowd) -> None:
    member = crowd.join(tenant="a", nanoseconds=1_000_000, launches=32, window=8)

    def lasts() -> float:
        """Returns the seconds for which the session continues; a quarter of a second of work is queued."""
        crowd.send(Kind.TURN, flags=MAY | AWAITED)
        crowd.run(0.3, member)
        crowd.send(Kind.TURN, flags=0)
        began = time.perf_counter()
        crowd.until(lambda frame: frame.kind == Kind.BUSY and frame.flags == WANTS)
        return time.perf_counter() - began

    assert steady(lasts, lambda seconds: seconds < 0.08, times=10) < 0.16, "the device had more than a few slices of it"
    held = member.acked
    crowd.run(0.1, member)
    assert member.acked - held <= 1
    crowd.send(Kind.TURN, flags=MAY | ALONE)
    total = member.seq * member.launches
    assert crowd.count(member) == total


def test_single_process_sends_no_messages_about_turns(crowd: Crowd) -> None:
    members = [crowd.join(tenant=tenant, nanoseconds=200_000, launches=4) for tenant in "ab"]
    crowd.run(0.2, *members)
    assert crowd.busy == []


# ---- events, by which a client limits the work in flight ----


def record(event: int) -> c.Command:
    return Command(record_event=c.RecordEvent(event=event))


def query(event: int, request: int) -> c.Command:
    return Command(request=request, query_event=c.QueryEvent(event=event, wait=True))


def test_a_wait_for_an_event_ignores_later_work(crowd: Crowd) -> None:
    member = crowd.join(tenant="a")
    crowd.send(Kind.TURN, flags=MAY | AWAITED)
    crowd.post(member, Command(launches=crowd.records(member, 2)), record(1), record(2))
    while member.acked < member.seq:
        crowd.next()
    crowd.send(Kind.TURN, flags=0)
    crowd.post(member, Command(launches=crowd.records(member, 3)), record(2), record(3))
    crowd.post(member, query(1, 11), query(2, 12), query(3, 13), query(9, 19), Command(request=14, flush=c.Flush()))
    assert response(crowd, member).result.request == 11
    crowd.send(Kind.PING, id=5)
    crowd.until(lambda frame: frame.kind == Kind.PONG or (frame.kind == Kind.RESPONSE and pytest.fail("out of turn")))
    assert member.acked == 1
    crowd.send(Kind.TURN, flags=MAY)
    answers = [response(crowd, member).result for _ in range(4)]
    assert sorted(answer.request for answer in answers) == [12, 13, 14, 19]
    (unknown,) = [answer for answer in answers if answer.request == 19]
    assert from_status(unknown.error).reason == Reason.INVALID_HANDLE
    assert crowd.count(member) == 5


def test_an_event_is_answered_as_soon_as_it_has_been_recorded(crowd: Crowd) -> None:
    member = crowd.join(tenant="a", nanoseconds=1_000_000)
    crowd.send(Kind.TURN, flags=MAY | AWAITED)
    crowd.post(member, Command(launches=crowd.records(member, 20)), record(1))
    crowd.post(member, Command(launches=crowd.records(member, 400)), record(2), query(1, 31), query(2, 32))
    last = crowd.post(member, Command(launches=crowd.records(member, 100)))
    assert response(crowd, member).result.request == 31
    assert member.acked < last - 1
    assert response(crowd, member).result.request == 32
    assert member.acked < last
    assert crowd.count(member) == 520


def test_commands_that_affect_later_ones_are_not_overtaken(crowd: Crowd) -> None:
    member = crowd.join(tenant="a")
    crowd.post(member, record(1))
    crowd.send(Kind.TURN, flags=0)
    crowd.post(member)
    crowd.post(member, Command(destroy_event=c.DestroyEvent(event=1)))
    crowd.post(member, query(1, 21))
    # After a batch that cannot be decoded, no query is answered early.
    crowd.send(Kind.BATCH, b"\xff", channel=member.channel)
    crowd.post(member, query(1, 22))
    crowd.send(Kind.PING, id=5)
    crowd.until(lambda frame: frame.kind == Kind.PONG or (frame.kind == Kind.RESPONSE and pytest.fail("out of turn")))
    crowd.send(Kind.TURN, flags=MAY)
    answers = [response(crowd, member) for _ in range(3)]
    assert answers[1].event.HasField("protocol_error")
    for answer in (answers[0], answers[2]):
        assert from_status(answer.result.error).reason == Reason.INVALID_HANDLE


# ---- the end of a session ----


def test_a_session_that_ends_while_it_waits_is_answered(crowd: Crowd) -> None:
    member = crowd.join(tenant="a")
    crowd.send(Kind.TURN, flags=0)
    crowd.post(member)
    start(crowd, member, 77, sync=c.Sync())
    crowd.send(Kind.CLOSE, channel=member.channel)
    status = c.Result.FromString(crowd.until(lambda frame: frame.id == 77).payload).error
    assert from_status(status).reason == Reason.SESSION_EXPIRED
    crowd.until(lambda frame: frame.kind == Kind.CLOSED)
    del crowd.members[member.channel]


def test_the_commands_before_the_end_of_a_session_alone_run(crowd: Crowd) -> None:
    """The batches and the close arrive together."""
    member = crowd.join(tenant="a")
    other = crowd.join(tenant="b")
    crowd.run(0.5)  # until time slices have ended
    for _ in range(5):
        crowd.post(member)
    crowd.send(Kind.CLOSE, channel=member.channel)
    crowd.until(lambda frame: frame.kind == Kind.CLOSED)
    assert member.acked == 5
    del crowd.members[member.channel]
    assert crowd.count(other) == 0


def test_invalid_batches_are_reported_in_their_turn(crowd: Crowd) -> None:
    member = crowd.join(tenant="a")
    flood = crowd.join(tenant="b", nanoseconds=500_000, launches=8, window=8)
    crowd.run(0.2, flood)
    crowd.send(Kind.BATCH, b"\xff\xff", channel=member.channel)
    crowd.post(member)
    records = crowd.records(member, 2)[:-4]
    crowd.post(member, Command(launches=records), Command(request=1, flush=c.Flush()))
    answers = [response(crowd, member) for _ in range(2)]
    assert answers[0].event.HasField("protocol_error")
    assert "not a valid launch record" in answers[1].result.error.message, answers[1]
    assert crowd.count(member) == member.launches + 1


def response(crowd: Crowd, member: Member) -> device_pb2.ExecuteResponse:
    def mine(frame: Frame) -> bool:
        return frame.kind == Kind.RESPONSE and frame.channel == member.channel

    return device_pb2.ExecuteResponse.FromString(crowd.until(mine).payload)
