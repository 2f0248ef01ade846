"""Lanes, the front's side: the hand-over of a connection to the device process, and clients that send meanwhile."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from hearth_proto import frames
from hearth_proto.frames import Kind
from hearth_proto.v1 import device_pb2
from hearthd.front.lanes.ticket_port import TicketTimeouts
from tests.support.front.entered_lanes import channel, device, launcher, refusals
from tests.support.front.execute_batches import batch
from tests.support.front.fake_lanes import LaneClient, result
from tests.support.front.fixture import front, run, until
from tests.support.front.resumed_streams import attach, kept, received, take


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


def test_busy_stream_gets_no_lane(tmp_path: Path) -> None:
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


def test_batch_during_the_hand_over_ends_the_hand_over(tmp_path: Path) -> None:
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


def test_connection_of_a_departed_client_is_not_handed_over(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("is_acknowledged", [True, False])
def test_pending_stream_response_precedes_the_lane(tmp_path: Path, is_acknowledged: bool) -> None:
    async def scenario() -> None:
        async with front(tmp_path, launcher(), devices=1) as f:
            await f.open()
            stream, attached = await attach(f)
            device(f).send(Kind.RESPONSE, result(5), channel=1)
            await until(lambda: kept(f).number == 1)
            if is_acknowledged:
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
