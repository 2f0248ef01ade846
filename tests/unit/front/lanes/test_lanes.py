"""Lanes, the front's side: offers, copies of the responses, and clients that attach again."""

from __future__ import annotations

import asyncio
import socket
import stat
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hearth_proto import frames
from hearth_proto.frames import Kind
from hearth_proto.reasons import Reason, Refusal
from hearth_proto.v1 import device_pb2, node_pb2
from hearthd.front.lanes.ticket_port import TicketTimeouts
from hearthd.front.lanes.tickets import LaneTickets
from hearthd.front.sessions.channel import Channel
from hearthd.front.sessions.command_queue import CommandQueue
from hearthd.front.sessions.in_flight import InFlightBatches
from hearthd.front.sessions.lane import LaneMirror, UnusedLanes
from hearthd.front.sessions.resume_buffer import ResumeBuffer
from hearthd.front.sockets import ListenError
from tests.support.front.execute_batches import batch, device_settles
from tests.support.front.fake_device import FakeLauncher
from tests.support.front.fake_lanes import LaneClient, LaneDevice, LaneLauncher, open_sockets, result
from tests.support.front.fixture import Front, front, run, until
from tests.support.front.resumed_streams import attach, gone, kept, over, received, resume, take, window


def launcher() -> LaneLauncher:
    return LaneLauncher()


def device(f: Front) -> LaneDevice:
    found = f.device()
    assert isinstance(found, LaneDevice)
    return found


def channel(f: Front) -> Channel:
    [session] = f.daemon.sessions
    return session.channels[0]


def refusals(f: Front, reason: str) -> float:
    return f.daemon.metrics.registry.get_sample_value("hearth_lane_refusals_total", {"reason": reason}) or 0.0


async def enter(f: Front) -> tuple[Any, LaneClient]:
    """Returns an attached stream and its live lane."""
    stream, attached = await attach(f)
    client = await LaneClient.live(attached.lane)
    assert channel(f).has_lane
    return stream, client


async def silent(stream: Any) -> None:
    """Checks that nothing arrives on the stream."""
    pending = asyncio.ensure_future(stream.read())
    done, _ = await asyncio.wait({pending}, timeout=0.05)
    assert not done, pending.result()
    stream.cancel()
    await asyncio.gather(pending, return_exceptions=True)


# ---- offers ----


def test_who_is_offered_a_lane(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path, launcher(), devices=1, listen__grpc="127.0.0.1:0") as f:
            await f.open()
            stream, attached = await attach(f)
            assert attached.lane.path == f"{f.daemon.config.unix_path}.lane" and len(attached.lane.ticket) == 32
            assert attached.lane.valid_ns == 5_000_000_000
            stream.cancel()
            await gone(f)
            _, attached = await resume(f, 0)
            assert attached.lane.ticket
        async with front(tmp_path, launcher(), devices=1, listen__grpc="127.0.0.1:0") as f:
            await f.open()
            async with grpc.aio.insecure_channel(f.daemon.addresses.grpc) as tcp:
                other = Front(f.daemon, f.launcher, tcp)
                other.token = f.token
                stream, attached = await attach(other)
                assert not attached.HasField("lane"), "another host, for all that is known"
                stream.cancel()
                await gone(f)
            stream, attached = await attach(f, resumable=False)
            assert not attached.HasField("lane")
            stream.cancel()
            await gone(f)
            [session] = f.daemon.sessions
            for bound in (CommandQueue(most_commands=9), CommandQueue(most_bytes=9)):
                session.queue = bound
                stream, attached = await attach(f)
                assert not attached.HasField("lane"), "its work has to be counted"
                stream.cancel()
                await gone(f)
            session.queue = CommandQueue()
            f.daemon.begin_drain()
            _, attached = await attach(f)
            assert not attached.HasField("lane")

    run(scenario())


@pytest.mark.parametrize("why", ["off", "too long", "no descriptors"])
def test_no_lanes_at_all(tmp_path: Path, why: str) -> None:
    flags: dict[str, Any] = {"off": {"lanes__enabled": False}, "too long": {"lanes__path": f"/tmp/{'x' * 103}"}}
    process = FakeLauncher() if why == "no descriptors" else launcher()

    async def scenario() -> None:
        async with front(tmp_path, process, devices=1, **flags.get(why, {})) as f:
            await f.open()
            stream, attached = await attach(f)
            assert not attached.HasField("lane")
            await stream.write(batch(1, requests=1))
            assert await take(stream, 1) == [1]

    run(scenario())


def test_the_socket_is_for_its_owner_and_goes_with_the_daemon(tmp_path: Path) -> None:
    path = tmp_path / "h.sock.lane"
    with socket.socket(socket.AF_UNIX) as left:  # left by a daemon that was killed
        left.bind(str(path))

    async def scenario() -> None:
        async with front(tmp_path, launcher(), devices=1) as f:
            assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE((tmp_path / "h.sock").stat().st_mode) == 0o600
            await f.open()
            await enter(f)

    run(scenario())
    assert not list(tmp_path.iterdir())


def test_a_path_that_is_taken(tmp_path: Path) -> None:
    taken = str(tmp_path / "both.lane")

    async def scenario() -> None:
        async with front(tmp_path, launcher(), devices=1, lanes__path=taken):
            with pytest.raises(ListenError, match=r"lanes\.path.*already serves"):
                async with front(tmp_path, launcher(), listen__unix=str(tmp_path / "i.sock"), lanes__path=taken):
                    pass
            # The socket still belongs to the other daemon.
            client = LaneClient(*await asyncio.open_unix_connection(taken))
            client.close()

    run(scenario())


# ---- tickets and connections ----


def test_a_ticket_is_good_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path, launcher(), devices=1) as f:
            await f.open()
            stream, attached = await attach(f)
            client = await LaneClient.live(attached.lane)
            assert device(f).given == [
                {
                    "channel": 1,
                    "max_batch_bytes": 8 << 20,
                    "max_batches": 64,
                    "max_unacked_bytes": 32 << 20,
                    "max_unread_bytes": 32 << 20,
                    "max_unread_hard": 256 << 20,
                }
            ]
            again = await LaneClient.connect(attached.lane)
            await again.over()
            assert refusals(f, "ticket") == 1
            client.send(batch(1, requests=1))
            assert await client.take(1, acked=1) == [1], "the first one's continues"
            await silent(stream)

    run(scenario())


@pytest.mark.parametrize("why", ["too late", "displaced", "gone"])
def test_a_ticket_that_is_worth_nothing(tmp_path: Path, why: str) -> None:
    async def scenario() -> None:
        async with front(tmp_path, launcher(), devices=1) as f:
            await f.open()
            stream, attached = await attach(f)
            tickets = f.daemon.parts.lanes.tickets
            now = tickets.clock()
            if why == "too late":
                tickets.clock = lambda: now + 5.1
            elif why == "displaced":
                await resume(f, 0)
                await over(stream)
            else:
                stream.cancel()
                await gone(f)
            await (await LaneClient.connect(attached.lane)).over()
            assert refusals(f, "ticket") == 1 and not device(f).given
            assert not channel(f).has_lane

    run(scenario())


def test_unused_tickets_are_forgotten() -> None:
    now = [0.0]
    tickets = LaneTickets(lambda: now[0])
    attachment: Any = object()
    first = tickets.issue(attachment)
    for _ in range(5000):
        newest = tickets.issue(attachment)
    assert len(tickets) == 4096 and tickets.redeem(first) is None
    assert tickets.redeem(newest) is attachment and tickets.redeem(newest) is None
    now[0] = 5.0
    assert tickets.redeem(tickets.issue(attachment)) is attachment
    assert len(tickets) == 0, "the old ones went when another was issued"


def test_who_says_nothing_or_nonsense_is_hung_up_on(tmp_path: Path) -> None:
    said = {
        b"": "silent",
        frames.encode(Kind.TICKET, b"x" * 32)[:30]: "silent",
        frames.encode(Kind.TICKET, b"x" * 32): "ticket",
        frames.encode(Kind.TICKET, b"x" * 31): "malformed",
        frames.encode(Kind.BATCH, b"x" * 32): "malformed",
        b"\xff" * 100: "malformed",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n": "malformed",
    }

    async def scenario() -> None:
        async with front(tmp_path, launcher(), devices=1) as f:
            path, port = f.daemon.config.lane_path, f.daemon.parts.lanes
            port.timeouts = TicketTimeouts(ticket=0.3)
            sockets = open_sockets()
            for data, reason in said.items():
                before = refusals(f, reason)
                client = LaneClient(*await asyncio.open_unix_connection(path))
                client.write(data)
                await client.over()
                assert refusals(f, reason) == before + 1
            client = LaneClient(*await asyncio.open_unix_connection(path))
            client.write(b"\x20\0")
            client.close()
            await until(lambda: refusals(f, "closed") == 1)
            port.timeouts = TicketTimeouts(ticket=30.0)
            f.daemon.parts.connections.limiter("lanes").most_per_peer = 8
            flood = [await asyncio.open_unix_connection(path) for _ in range(12)]
            await until(lambda: refusals(f, "crowded") == 4)
            for _, writer in flood:
                writer.close()
            await until(lambda: refusals(f, "closed") == 9)
            await until(lambda: open_sockets() == sockets)
            await f.open()
            _, client = await enter(f)
            client.send(batch(1, requests=1))
            assert await client.take(1) == [1]

    run(scenario())


# ---- lanes ----


def test_what_goes_by_is_kept_and_not_passed_on(tmp_path: Path) -> None:
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


def test_responses_that_miss_the_lane_come_after_it(tmp_path: Path) -> None:
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
            await until(lambda: device(f).asked), "its client has to come for it"
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


def test_an_ack_that_does_not_come_by_the_lane_ends_it(tmp_path: Path) -> None:
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
    "wrong", [b"\xff\xff", b"", received(1).SerializeToString(), received(1 << 40).SerializeToString()]
)
def test_a_received_that_cannot_be_ends_the_attachment_only(tmp_path: Path, wrong: bytes) -> None:
    async def scenario() -> None:
        async with front(tmp_path, launcher(), devices=1) as f:
            await f.open()
            stream, client = await enter(f)
            for seq in range(1, 4):
                client.send(batch(seq, requests=1))
            assert await client.take(3) == [1, 2, 3]
            client.send(received(2))
            await until(lambda: kept(f).received == 2)
            client.write(frames.encode(Kind.BATCH, wrong))
            assert (await over(stream)).reason in (Reason.INVALID_ARGUMENT, Reason.MALFORMED_MESSAGE)
            await client.over()
            stream, attached = await resume(f, received=2)
            assert attached.last_seq == 3 and await take(stream, 1) == [3]

    run(scenario())


@pytest.mark.parametrize("by", ["bytes", "number"])
def test_who_never_says_what_came_loses_the_attachment(tmp_path: Path, by: str) -> None:
    async def scenario() -> None:
        async with front(tmp_path, launcher(), devices=1) as f:
            window(f, many=0, **({"max_queued_hard": 100} if by == "bytes" else {"max_kept": 1}))
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
            assert await client.take(1, acked=2) == [2], "none of it touched the lane"
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


def test_a_new_stream_takes_the_place_of_one_with_a_lane(tmp_path: Path) -> None:
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
    """The client may have received more responses than the front knows of, or fewer."""

    async def scenario() -> None:
        async with front(tmp_path, launcher(), devices=1) as f:
            await f.open()
            stream, client = await enter(f)
            client.send(batch(1, requests=3))
            assert await client.take(3, acked=1) == [1, 1, 1]
            await until(lambda: kept(f).number == 3)
            for request in range(2, 6):  # for batches that the front does not know of
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
            with first.said:  # the device process reads nothing any more
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


def test_a_batch_beside_the_lane_ends_the_stream(tmp_path: Path) -> None:
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


def test_client_continues_without_waiting_for_its_lane(tmp_path: Path) -> None:
    async def scenario() -> None:
        process = launcher()
        process.adopts = False
        async with front(tmp_path, process, devices=1) as f:
            await f.open()
            stream, attached = await attach(f)
            client = await LaneClient.connect(attached.lane)
            await until(lambda: device(f).given)
            device(f).send(Kind.RESPONSE, result(9), channel=1)
            await until(lambda: device(f).asked)
            client.close()
            for seq in range(1, 4):
                await stream.write(batch(seq, requests=1))
            assert await take(stream, 4) == [9, 1, 2, 3]
            assert not channel(f).has_lane

    run(scenario())


def test_a_stream_that_is_not_at_rest_gets_no_lane(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path, launcher(), devices=1) as f:
            f.daemon.parts.lanes.timeouts = TicketTimeouts(idle=0.2)
            await f.open()
            stream, attached = await attach(f)
            big = device_pb2.ExecuteResponse(event=device_pb2.Event(output=device_pb2.Output(text="x" * (1 << 20))))
            for _ in range(64):  # responses that the client does not read
                await asyncio.to_thread(device(f).send, Kind.RESPONSE, big.SerializeToString(), channel=1)
            [attachment] = f.daemon.device_service.attachments
            await until(lambda: attachment.inspect().queued > 30)
            await (await LaneClient.connect(attached.lane)).over()
            assert refusals(f, "busy") == 1 and not device(f).given
            for _ in range(64):
                assert (await stream.read()).event.output.text
            await stream.write(received(64))
            await stream.write(batch(1, requests=1))
            assert await take(stream, 1) == [1]

    run(scenario())


def test_a_batch_on_the_stream_voids_the_ticket(tmp_path: Path) -> None:
    """The client no longer waits for a lane: responses on a lane would never reach it."""

    async def scenario() -> None:
        async with front(tmp_path, launcher(), devices=1) as f:
            await f.open()
            stream, attached = await attach(f)
            f.launcher.hold_acks = True
            await stream.write(batch(1, requests=1))
            await until(lambda: device(f).batches)
            await (await LaneClient.connect(attached.lane)).over()
            assert refusals(f, "ticket") == 1 and not device(f).given
            device(f).release_acks()
            assert await take(stream, 1) == [1]

    run(scenario())


def test_a_batch_that_comes_during_the_hand_over_ends_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path, launcher(), devices=1) as f:
            f.daemon.parts.lanes.timeouts = TicketTimeouts(idle=30.0)
            await f.open()
            stream, attached = await attach(f)
            device(f).send(Kind.RESPONSE, result(5), channel=1)
            assert await take(stream, 1) == [5]
            client = await LaneClient.connect(attached.lane)  # waits until the client has acknowledged response 5
            await until(lambda: not len(f.daemon.parts.lanes.tickets))
            f.launcher.hold_acks = True
            await stream.write(batch(1, requests=1))
            await until(lambda: device(f).batches)
            await stream.write(received(1))
            await client.over()
            assert refusals(f, "gone") == 1 and not device(f).given
            device(f).release_acks()
            assert await take(stream, 1) == [1]

    run(scenario())


def test_a_connection_whose_client_has_gone_is_not_handed_over(tmp_path: Path) -> None:
    """The ticket and the end of the connection arrive together, as after a pause of the front."""

    async def scenario() -> None:
        async with front(tmp_path, launcher(), devices=1) as f:
            await f.open()
            stream, attached = await attach(f)
            with socket.socket(socket.AF_UNIX) as impatient:
                impatient.connect(attached.lane.path)
                impatient.sendall(frames.encode(Kind.TICKET, attached.lane.ticket))
            await until(lambda: refusals(f, "gone") == 1)
            assert not device(f).given and not channel(f).has_lane
            await stream.write(batch(1, requests=1))
            assert await take(stream, 1) == [1]

    run(scenario())


def test_a_lane_that_ends_unused_is_counted_and_left_for_the_stream(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The client gave up just as the lane was handed over. Responses of that time are sent on the stream, without a
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


def test_a_client_may_ask_where_its_attachment_stands(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path, launcher(), devices=1) as f:
            await f.open()

            async def ask(generation: int = 1) -> tuple[bool, bool, int | None, int]:
                asked = device_pb2.AttachmentStatusRequest(session_token=f.token, device=0, generation=generation)
                said = await f.devices.AttachmentStatus(asked)
                return said.known, said.lane, said.last_seq if said.HasField("last_seq") else None, said.responses

            nothing = (False, False, None, 0)
            assert await ask() == nothing
            stream, attached = await attach(f)
            assert await ask() == (True, False, 0, 0) and await ask(generation=2) == nothing
            await stream.write(batch(1, requests=2))
            assert await take(stream, 2) == [1, 1]
            assert await ask() == (True, False, 1, 2)
            stream.cancel()
            await gone(f)
            assert await ask() == nothing
            stream, attached = await resume(f, received=2, acked=1)
            client = await LaneClient.live(attached.lane)
            client.send(batch(2, requests=1))
            assert await client.take(1, acked=2) == [2]
            await until(lambda: kept(f).number == 3)
            assert await ask() == (True, True, None, 3)
            device(f).drop()
            await client.over()
            device(f).send(Kind.RESPONSE, result(5), channel=1)  # put aside for a client that attaches again
            await until(lambda: kept(f).made == 4)
            assert await ask() == (True, True, None, 4)

    run(scenario())


def test_unused_lanes_have_a_line_of_the_log_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    now, counted = [0.0], [0]
    unused = UnusedLanes(lambda: counted.__setitem__(0, counted[0] + 1), lambda: now[0])
    for _ in range(25):
        unused.add("one", "")
        now[0] += 1.0
    lines = capsys.readouterr().out.splitlines()
    assert counted == [25] and len(lines) == 3 and "lanes=10" in lines[1]


@pytest.mark.parametrize("said", [True, False])
def test_a_response_on_its_way_by_the_stream_comes_before_any_lane(tmp_path: Path, said: bool) -> None:
    async def scenario() -> None:
        async with front(tmp_path, launcher(), devices=1) as f:
            await f.open()
            stream, attached = await attach(f)
            device(f).send(Kind.RESPONSE, result(5), channel=1)
            await until(lambda: kept(f).number == 1)
            if said:
                client = await LaneClient.connect(attached.lane)
                assert await take(stream, 1) == [5]
                await stream.write(received(1))
                assert (await client.read()).kind == Kind.LIVE
                return
            await (await LaneClient.connect(attached.lane)).over()
            assert refusals(f, "busy") == 1 and not device(f).given
            await stream.write(batch(1, requests=1))
            assert await take(stream, 2) == [5, 1]

    run(scenario())


def test_a_closed_session_takes_its_lane_with_it(tmp_path: Path) -> None:
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
            await f.open()
            _, client = await enter(f)
            await asyncio.sleep(0.5)
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
    steps=st.lists(st.sampled_from(["copied", "aside", "read", "say"]), max_size=40),
    lost=st.integers(0, 5),
    lossy=st.booleans(),
)
def test_everything_comes_once_whatever_way_it_takes(before: int, steps: list[str], lost: int, lossy: bool) -> None:
    replies, wire = ResumeBuffer(1 << 20, 1000, 1 << 20), Wire()
    for number in range(before):
        replies.keep(b"b%d" % number)
    had: list[bytes] = list(replies)  # sent on the Execute stream
    lane = LaneMirror(wire, 1, InFlightBatches(), replies)  # type: ignore[arg-type]
    on_the_way: list[bytes] = []
    aside: list[bytes] = []
    emitted = list(had)
    for number, step in enumerate(steps):
        payload = b"%d" % number
        if step in ("copied", "aside"):
            emitted.append(payload)
            lane.on_response(payload, step == "copied")
            (on_the_way if step == "copied" else aside).append(payload)
        elif step == "read" and on_the_way:
            had.append(on_the_way.pop(0))
        elif step == "say":
            lane.acknowledge(len(had))
    assert wire.sent == [Kind.LANE_END] * bool(aside), "once"
    if lossy:  # the device process ended before it had copied the client's last responses to the front
        more = [b"l%d" % number for number in range(lost)]
        had += on_the_way + more if more else []
        emitted += more
        on_the_way.clear()
    replies.release(len(had), lossy=lossy)
    replies.join()
    had += replies
    assert sorted(had) == sorted(emitted)
    assert had[len(had) - len(aside) :] == aside, "in order, behind the lane's"
    replies.release(len(had))
    assert not replies.bytes and not list(replies)
