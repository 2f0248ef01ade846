"""Lanes, the front's side: copies of the responses, and clients that attach again."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hearth_proto import frames
from hearth_proto.frames import Flag, Kind
from hearth_proto.reasons import Reason, Refusal
from hearth_proto.v1 import device_pb2, node_pb2
from hearthd.front.sessions.command_queue import CommandQueue
from hearthd.front.sessions.in_flight import InFlightBatches
from hearthd.front.sessions.lane import LaneMirror, UnusedLanes
from hearthd.front.sessions.resume_buffer import ResumeBuffer
from tests.support.front.entered_lanes import channel, device, enter, launcher, silent
from tests.support.front.execute_batches import batch, device_settles
from tests.support.front.fake_lanes import LaneClient, result
from tests.support.front.fixture import front, run, until
from tests.support.front.resumed_streams import attach, gone, kept, over, received, resume, take, window

# ---- lanes ----


def test_copies_are_kept_and_not_forwarded(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path, launcher(), devices=1) as f:
            await f.open()
            stream, client = await enter(f)
            for seq in range(1, 21):
                client.send(batch(seq, requests=1))
            assert await client.take(20, acked=20) == list(range(1, 21))
            await until(lambda: kept(f).number == 20 and channel(f).batches.acked == 20)
            client.send(received(15))
            await until(lambda: kept(f).received == 15)
            assert len(list(kept(f))) == 5 and not channel(f).batches.bytes
            page = f.daemon.metrics.render(f.daemon.metrics.families(f.daemon.supervisor, f.daemon.sessions, {}, {}))[
                0
            ].decode()
            assert "hearth_lanes 1.0" in page and "hearth_lanes_opened_total 1.0" in page
            await silent(stream)
            await until(lambda: device(f).asked == [1]), "a lane does not outlive its stream"
            await client.over()

    run(scenario())


def test_an_attachment_continues_after_its_lane(tmp_path: Path) -> None:
    """The attachment continues on a stream, and over another lane."""

    async def scenario() -> None:
        async with front(tmp_path, launcher(), devices=1) as f:
            await f.open()
            stream, client = await enter(f)
            for seq in range(1, 4):
                client.send(batch(seq, requests=2))
            assert await client.take(6, acked=3) == [1, 1, 2, 2, 3, 3]
            f.launcher.hold_acks = True
            for seq in range(4, 7):
                client.send(batch(seq, requests=1))
            await until(lambda: len(device(f).batches) == 6)
            device(f).drop()
            await client.over()
            stream.cancel()
            stream, attached = await resume(f, received=4, acked=2)
            assert device(f).asked, "before anything else"
            assert attached.resumed and attached.last_seq == 6
            assert (len(channel(f).batches), channel(f).batches.bytes) == (3, 0)
            assert await take(stream, 2) == [3, 3], "kept, in order, none twice"
            assert (await stream.read()).ack.seq == 3
            await stream.write(batch(7, requests=1))
            await until(lambda: len(device(f).batches) == 7)
            device(f).release_acks()
            assert await take(stream, 4) == [4, 5, 6, 7]
            await until(lambda: not channel(f).batches)
            assert not channel(f).batches.bytes and channel(f).batches.last == 7
            stream.cancel()
            stream, attached = await resume(f, received=10, acked=7)
            client = await LaneClient.live(attached.lane)
            client.send(batch(8, requests=1))
            assert await client.take(1, acked=8) == [8]
            client.send(received(11))
            await until(lambda: kept(f).received == 11)
            assert not kept(f).bytes

    run(scenario())


def test_late_responses_are_sent_after_the_lane(tmp_path: Path) -> None:
    """For example the result of an earlier batch, when the device process has not yet taken the connection over."""

    async def scenario() -> None:
        process = launcher()
        process.hold_acks = True
        async with front(tmp_path, process, devices=1) as f:
            await f.open()
            stream, _ = await attach(f)
            await stream.write(batch(1, requests=2))
            await until(lambda: device(f).batches)
            stream.cancel()
            await gone(f)
            stream, attached = await resume(f, received=0)
            process.adopts = False
            client = await LaneClient.connect(attached.lane)
            await until(lambda: device(f).given)
            device(f).send(Kind.RESPONSE, result(71), channel=1)
            await until(lambda: device(f).asked), "the lane waits for its client"
            device(f).adopt(device(f).kept)
            assert (await client.read()).kind == Kind.LIVE
            device(f).say(Kind.RESPONSE, result(72))
            assert await client.take(1) == [72]
            await until(lambda: kept(f).number == 1)
            stream.cancel()
            stream, _ = await resume(f, received=1)
            assert await take(stream, 1) == [71]
            device(f).release_acks()
            assert await take(stream, 2) == [1, 1]

    run(scenario())


def test_ack_outside_the_lane_ends_the_lane(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path, launcher(), devices=1) as f:
            await f.open()
            _, client = await enter(f)
            f.launcher.hold_acks = True
            client.send(batch(1))
            await until(lambda: device(f).batches)
            device(f).send(Kind.ACK, channel=1, id=1)
            await client.over()
            assert device(f).asked == [1]
            _, attached = await resume(f, received=0)
            assert attached.last_seq == 1

    run(scenario())


def test_a_received_may_overtake_the_copies(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path, launcher(), devices=1) as f:
            await f.open()
            await enter(f)
            device(f).send(Kind.RECEIVED, received(2).SerializeToString(), channel=1)
            device(f).say(Kind.RESPONSE, result(1))
            device(f).say(Kind.RESPONSE, result(2))
            device(f).say(Kind.RESPONSE, result(3))
            await until(lambda: kept(f).number == 3)
            assert kept(f).received == 2 and len(list(kept(f))) == 1

    run(scenario())


@pytest.mark.parametrize(
    "payload", [b"\xff\xff", b"", received(1).SerializeToString(), received(1 << 40).SerializeToString()]
)
def test_invalid_received_report_ends_only_the_attachment(tmp_path: Path, payload: bytes) -> None:
    async def scenario() -> None:
        async with front(tmp_path, launcher(), devices=1) as f:
            await f.open()
            stream, client = await enter(f)
            for seq in range(1, 4):
                client.send(batch(seq, requests=1))
            assert await client.take(3) == [1, 2, 3]
            client.send(received(2))
            await until(lambda: kept(f).received == 2)
            client.write(frames.encode(Kind.BATCH, payload))
            assert (await over(stream)).reason in (Reason.INVALID_ARGUMENT, Reason.MALFORMED_MESSAGE)
            await client.over()
            stream, attached = await resume(f, received=2)
            assert attached.last_seq == 3 and await take(stream, 1) == [3]

    run(scenario())


@pytest.mark.parametrize("by", ["bytes", "number"])
def test_attachment_without_acknowledgements_ends(tmp_path: Path, by: str) -> None:
    async def scenario() -> None:
        async with front(tmp_path, launcher(), devices=1) as f:
            window(f, min_kept_hard=0, **({"max_queued_hard": 100} if by == "bytes" else {"max_kept": 1}))
            await f.open()
            stream, client = await enter(f)
            client.send(batch(1, requests=40))
            assert (await over(stream)).reason == Reason.QUEUE_FULL
            await client.over()
            with pytest.raises(Refusal) as error:
                await resume(f, received=40)
            assert error.value.reason == Reason.QUEUE_FULL
            await attach(f)

    run(scenario())


def test_acknowledgement_after_an_overrun_ends_only_the_attachment(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path, launcher(), devices=1) as f:
            window(f, min_kept_hard=0, max_queued_hard=100)
            await f.open()
            stream, _ = await enter(f)
            link = f.daemon.supervisor.find(0).running[0].link
            assert link is not None
            for _ in range(40):
                device(f).send(Kind.RESPONSE, result(1), channel=1, flags=Flag.LANED)
            device(f).send(Kind.RECEIVED, received(5).SerializeToString(), channel=1)
            device(f).send(Kind.RESPONSE, result(1), channel=1, flags=Flag.LANED)
            await link.ping()
            assert kept(f).overrun is not None and not link.closed.done()
            assert (await over(stream)).reason == Reason.QUEUE_FULL
            await f.devices.Sync(device_pb2.SyncRequest(target=f.target()))

    run(scenario())


def test_a_fresh_attachment_after_a_lane(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path, launcher(), devices=1) as f:
            await f.open()
            stream, client = await enter(f)
            client.send(batch(1, requests=1))
            assert await client.take(1, acked=1) == [1]
            with pytest.raises(Refusal) as error:
                await attach(f)
            assert error.value.reason == Reason.HANDLE_IN_USE
            client.send(batch(2, requests=1))
            assert await client.take(1, acked=2) == [2], "the lane is unaffected"
            stream.cancel()
            await gone(f)
            await client.over()
            for fields in ({}, {"resumable": False}):
                stream, attached = await attach(f, **fields)
                assert not attached.resumed and attached.last_seq == 2
                stream.cancel()
                await gone(f)
            stream, attached = await attach(f)
            await stream.write(batch(3, requests=1))
            assert await take(stream, 1) == [3] and kept(f).number == 1

    run(scenario())


def test_new_stream_replaces_one_with_a_lane(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path, launcher(), devices=1) as f:
            await f.open()
            old, client = await enter(f)
            client.send(batch(1, requests=1))
            assert await client.take(1, acked=1) == [1]
            _, attached = await resume(f, received=1)
            await client.over()
            assert attached.last_seq == 1
            assert (await over(old)).reason == Reason.HANDLE_IN_USE
            again = await LaneClient.live(attached.lane)
            again.send(batch(2, requests=1))
            assert await again.take(1) == [2]

    run(scenario())


@pytest.mark.parametrize("had", [1, 4, 7])
def test_a_device_lost_with_copies(tmp_path: Path, had: int) -> None:
    """The client may have received more responses than the front has recorded, or fewer."""

    async def scenario() -> None:
        async with front(tmp_path, launcher(), devices=1) as f:
            await f.open()
            stream, client = await enter(f)
            client.send(batch(1, requests=3))
            assert await client.take(3, acked=1) == [1, 1, 1]
            await until(lambda: kept(f).number == 3)
            for request in range(2, 6):  # for batches unknown to the front
                device(f).say(Kind.RESPONSE, result(request), copied=False)
            assert await client.take(4) == [2, 3, 4, 5]
            first = device(f)
            first.die()
            await client.over()
            assert (await over(stream)).reason == Reason.DEVICE_LOST
            for _ in range(2):  # sent again, because the stream broke as well
                stream, attached = await resume(f, received=had, acked=5)
                assert attached.resumed and not attached.HasField("lane") and attached.last_seq == 5
                assert await take(stream, max(0, 3 - had)) == [1] * max(0, 3 - had)
                assert (await stream.read()).event.WhichOneof("kind") == "device_lost"
                assert (await over(stream)).reason == Reason.DEVICE_LOST
                await gone(f)
            await until(lambda: f.device() is not first)
            _, attached = await attach(f)
            assert attached.generation == 2 and attached.last_seq == 0
            again = await LaneClient.live(attached.lane)
            again.send(batch(1, requests=1))
            assert await again.take(1) == [1]

    run(scenario())


def test_a_device_lost_while_a_lane_is_being_ended(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path, launcher(), devices=1) as f:
            await f.open()
            stream, client = await enter(f)
            client.send(batch(1, requests=1))
            assert await client.take(1, acked=1) == [1]
            await until(lambda: kept(f).number == 1)
            first = device(f)
            with first.said:  # the device process no longer reads
                resumed = asyncio.ensure_future(resume(f, received=1, acked=1))
                await until(lambda: channel(f).lane is not None and channel(f).lane.ending)
                first.die()
                stream, attached = await resumed
            assert attached.resumed and attached.last_seq == 1
            assert (await over(stream)).reason == Reason.DEVICE_LOST

    run(scenario())


def test_draining_is_announced_on_the_next_stream(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path, launcher(), devices=1, drain_timeout="5s") as f:
            await f.open()
            stream, client = await enter(f)
            client.send(batch(1, requests=2))
            assert await client.take(2) == [1, 1]
            draining = asyncio.create_task(f.daemon.drain())
            await client.over()
            stream.cancel()
            stream, attached = await resume(f, received=1)
            assert not attached.HasField("lane")
            assert await take(stream, 1) == [1]
            assert (await stream.read()).event.WhichOneof("kind") == "draining"
            await f.node.CloseSession(node_pb2.CloseSessionRequest(session_token=f.token))
            await draining

    run(scenario())


def test_batch_on_the_stream_during_a_lane_ends_the_stream(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path, launcher(), devices=1) as f:
            await f.open()
            stream, client = await enter(f)
            client.send(batch(1, requests=1))
            assert await client.take(1, acked=1) == [1]
            await stream.write(batch(2, requests=1))
            assert (await over(stream)).reason == Reason.MALFORMED_MESSAGE
            await client.over()
            assert len(device(f).batches) == 1

    run(scenario())


def test_a_lane_that_ends_unused_is_counted_and_left_for_the_stream(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The client abandoned the lane during the hand-over. Responses of that time are sent on the stream, without a
    request."""

    async def scenario() -> None:
        async with front(tmp_path, launcher(), devices=1) as f:
            await f.open()
            stream, client = await enter(f)
            client.close()
            await until(lambda: not device(f).lanes)
            device(f).send(Kind.RESPONSE, result(5), channel=1)
            device(f).send(Kind.LANE_ENDED, b'{"unused": true, "why": ""}', channel=1)
            assert await take(stream, 1) == [5]
            assert channel(f).lane is None
            assert f.daemon.metrics.registry.get_sample_value("hearth_lanes_unused_total") == 1
            await stream.write(batch(1, requests=1))
            assert await take(stream, 1) == [1]

    run(scenario())
    assert "lane_unused" in capsys.readouterr().out


def test_client_may_query_the_state_of_its_attachment(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path, launcher(), devices=1) as f:
            await f.open()

            async def query(generation: int = 1) -> tuple[bool, bool, int | None, int]:
                request = device_pb2.AttachmentStatusRequest(session_token=f.token, device=0, generation=generation)
                status = await f.devices.AttachmentStatus(request)
                return (
                    status.known,
                    status.lane,
                    status.last_seq if status.HasField("last_seq") else None,
                    status.responses,
                )

            nothing = (False, False, None, 0)
            assert await query() == nothing
            stream, attached = await attach(f)
            assert await query() == (True, False, 0, 0) and await query(generation=2) == nothing
            await stream.write(batch(1, requests=2))
            assert await take(stream, 2) == [1, 1]
            assert await query() == (True, False, 1, 2)
            stream.cancel()
            await gone(f)
            assert await query() == nothing
            stream, attached = await resume(f, received=2, acked=1)
            client = await LaneClient.live(attached.lane)
            client.send(batch(2, requests=1))
            assert await client.take(1, acked=2) == [2]
            await until(lambda: kept(f).number == 3)
            assert await query() == (True, True, None, 3)
            device(f).drop()
            await client.over()
            device(f).send(Kind.RESPONSE, result(5), channel=1)  # kept for a client that attaches again
            await until(lambda: kept(f).total == 4)
            assert await query() == (True, True, None, 4)

    run(scenario())


def test_unused_lanes_are_logged_periodically(capsys: pytest.CaptureFixture[str]) -> None:
    now, counted = [0.0], [0]
    unused = UnusedLanes(lambda: counted.__setitem__(0, counted[0] + 1), lambda: now[0])
    for _ in range(25):
        unused.add("one", "")
        now[0] += 1.0
    lines = capsys.readouterr().out.splitlines()
    assert counted == [25] and len(lines) == 3 and "lanes=10" in lines[1]


def test_lane_ends_with_its_session(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path, launcher(), devices=1) as f:
            await f.open()
            stream, client = await enter(f)
            await f.node.CloseSession(node_pb2.CloseSessionRequest(session_token=f.token))
            await client.over()
            assert (await over(stream)).reason == Reason.SESSION_EXPIRED
            assert device(f).closed == [1]

    run(scenario())


def test_a_session_with_a_lane_does_not_expire(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path, launcher(), devices=1, sessions__lease="0.3s") as f:
            session = await f.open_with_lease(30.0)
            _, client = await enter(f)
            session.lease = 0.3
            await asyncio.sleep(0.5)
            assert not f.daemon.sessions.expired()
            client.send(batch(1, requests=1))
            assert await client.take(1) == [1]
            await device_settles(f)

    run(scenario())


# ---- kept responses, for any sequence of events ----


class Wire:
    """A link that accepts everything."""

    def __init__(self) -> None:
        self.sent: list[int] = []

    def send(self, kind: int, payload: bytes = b"", *, channel: int = 0, id: int = 0, flags: int = 0) -> None:
        self.sent.append(kind)


@given(
    before=st.integers(0, 3),
    events=st.lists(st.sampled_from(["copied", "aside", "read", "say"]), max_size=40),
    lost=st.integers(0, 5),
    lossy=st.booleans(),
)
def test_responses_arrive_exactly_once_over_lane_and_stream(
    before: int, events: list[str], lost: int, lossy: bool
) -> None:
    replies, wire = ResumeBuffer(1 << 20, 1000, 1 << 20), Wire()
    for number in range(before):
        replies.add(b"b%d" % number)
    delivered: list[bytes] = list(replies)  # sent on the Execute stream
    lane = LaneMirror(wire, 1, InFlightBatches(CommandQueue()), replies)  # type: ignore[arg-type]
    on_the_way: list[bytes] = []
    aside: list[bytes] = []
    emitted = list(delivered)
    for number, event in enumerate(events):
        payload = b"%d" % number
        if event in ("copied", "aside"):
            emitted.append(payload)
            lane.on_response(payload, event == "copied")
            (on_the_way if event == "copied" else aside).append(payload)
        elif event == "read" and on_the_way:
            delivered.append(on_the_way.pop(0))
        elif event == "say":
            lane.acknowledge(len(delivered))
    assert wire.sent == [Kind.LANE_END] * bool(aside), "once"
    if lossy:  # the device process ended before it had copied the client's last responses to the front
        more = [b"l%d" % number for number in range(lost)]
        delivered += on_the_way + more if more else []
        emitted += more
        on_the_way.clear()
    replies.release(len(delivered), lossy=lossy)
    replies.assign_numbers()
    delivered += replies
    assert sorted(delivered) == sorted(emitted)
    assert delivered[len(delivered) - len(aside) :] == aside, "in order, after the lane's"
    replies.release(len(delivered))
    assert not replies.bytes and not list(replies)
