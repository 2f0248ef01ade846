"""The link over a real socket pair: the frames that it sends, the futures that it completes, and its end."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from hearth_proto import frames
from hearth_proto.frames import Kind
from hearth_proto.reasons import Reason, Refusal
from hearth_proto.v1 import commands_pb2
from hearthd.front.links.link import DeviceLink
from hearthd.front.sessions.session import Session
from hearthd.front.sessions.session_table import SessionTable
from tests.support.front.fixture import run

LOSS = Refusal(Reason.DEVICE_LOST, "gone")


def session() -> Session:
    return SessionTable().open("test", "0")[0]


@asynccontextmanager
async def linked(on_collective: Any = None) -> AsyncIterator[tuple[DeviceLink, socket.socket]]:
    front_end, device_end = socket.socketpair()
    device_end.setblocking(False)
    link = DeviceLink(0, 1, on_collective)
    await asyncio.get_running_loop().create_unix_connection(lambda: link, sock=front_end)
    try:
        yield link, device_end
    finally:
        link.fail(LOSS, [])
        device_end.close()


async def receive(peer: socket.socket, count: int) -> list[frames.Frame]:
    reader, got = frames.FrameReader(), []
    loop = asyncio.get_running_loop()
    while len(got) < count:
        got += reader.feed(await loop.sock_recv(peer, 1 << 16))
    return got


def test_loss_during_a_waiting_call_leaves_no_unretrieved_exception() -> None:
    """The call ends with the loss that `drain` raises. The future of its answer, which is then never awaited, has the
    same exception."""
    complaints: list[str] = []

    async def scenario() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context["message"]))
        async with linked() as (link, _):
            channel = link.open_channel(session())
            link.pause_writing()
            call = asyncio.create_task(channel.call(commands_pb2.Command()))
            await asyncio.sleep(0)
            link.fail(Refusal(Reason.DEVICE_LOST, "gone"), [])
            (ended,) = await asyncio.gather(call, return_exceptions=True)
            assert isinstance(ended, Refusal)
            ended.__traceback__ = link.loss = None
            del call, ended
            gc.collect()

    run(scenario())
    assert not complaints


def test_calls_are_answered_by_number_in_any_order() -> None:
    async def scenario() -> None:
        async with linked() as (link, peer):
            channel = link.open_channel(session())
            calls = [asyncio.create_task(channel.call(commands_pb2.Command(stream=n))) for n in range(5)]
            got = await receive(peer, 6)
            assert [frame.kind for frame in got] == [Kind.OPEN] + [Kind.CALL] * 5
            for frame in reversed(got[1:]):
                command = commands_pb2.Command.FromString(frame.payload)
                assert command.request == frame.id and frame.channel == channel.number
                result = commands_pb2.Result(request=frame.id, read=commands_pb2.ReadResult(size=command.stream))
                peer.send(frames.encode(Kind.RESULT, result.SerializeToString(), channel=frame.channel, id=frame.id))
            assert [result.read.size for result in await asyncio.gather(*calls)] == [0, 1, 2, 3, 4]

    run(scenario())


def test_frames_in_any_cut() -> None:
    async def scenario() -> None:
        async with linked() as (link, peer):
            ping = asyncio.create_task(link.ping())
            [frame] = await receive(peer, 1)
            for byte in (
                frames.encode(0x7777) + frames.encode(Kind.ACK, channel=99) + frames.encode(Kind.PONG, id=frame.id)
            ):
                peer.send(bytes([byte]))
                await asyncio.sleep(0)
            await ping

    run(scenario())


def test_a_full_socket_applies_backpressure_and_never_stops_reading() -> None:
    async def scenario() -> None:
        async with linked() as (link, peer):
            while not link.paused:
                link.send(Kind.BATCH, bytes(1 << 20), channel=1)
            draining = asyncio.create_task(link.drain())
            ping = asyncio.create_task(link.ping())
            await asyncio.sleep(0)
            peer.send(frames.encode(Kind.PONG, id=1))
            await ping
            assert not draining.done()
            received = 0
            while not draining.done():
                received += len(await asyncio.get_running_loop().sock_recv(peer, 1 << 20))
            await draining
            assert received > 1 << 20

    run(scenario())


@pytest.mark.parametrize(
    "garbage",
    [
        b"\xff" * 64,
        frames.encode(Kind.RESULT, b"\xff", id=1),
        frames.encode(Kind.READY, b"\xff"),
        frames.encode(Kind.COLLECTIVE, b"{"),
    ],
)
def test_garbage_ends_the_link_with_a_reason(garbage: bytes) -> None:
    async def scenario() -> None:
        async with linked(lambda *_: None) as (link, peer):
            call = asyncio.create_task(link.call(1, commands_pb2.Command()))
            await receive(peer, 1)
            peer.send(garbage)
            assert "it sent" in await link.closed
            link.fail(LOSS, [])
            with pytest.raises(Refusal):
                await call

    run(scenario())


def test_loss_is_reported_once_to_each_waiting_call() -> None:
    async def scenario() -> None:
        async with linked() as (link, peer):
            channel = link.open_channel(session())
            ends: list[tuple[Refusal, bytes]] = []

            class Sink:
                def on_response(self, payload: bytes) -> None: ...
                def on_ack(self, seq: int) -> None: ...
                def on_lost(self, refusal: Refusal, event: bytes) -> None:
                    ends.append((refusal, event))

            channel.sink = Sink()
            waits = [
                asyncio.create_task(wait)
                for wait in (
                    link.call(1, commands_pb2.Command()),
                    link.ping(),
                    link.stats(),
                    channel.wait_until_executed(),
                )
            ]
            while not link.paused:
                link.send(Kind.BATCH, bytes(1 << 20), channel=1)
            waits.append(asyncio.create_task(link.drain()))
            await asyncio.sleep(0)
            peer.close()
            assert await link.closed is not None
            link.fail(LOSS, ["k"])
            link.fail(Refusal(Reason.INTERNAL, "again"), [])
            outcomes = await asyncio.gather(*waits, return_exceptions=True)
            assert [outcome for outcome in outcomes if outcome is not None] == [
                LOSS
            ] * 4  # settled() had nothing to wait for
            assert len(ends) == 1 and ends[0][0] is LOSS and ends[0][1]
            assert not channel.alive
            await channel.close(LOSS)
            for late in (
                link.call(1, commands_pb2.Command()),
                link.ping(),
                link.drain(),
                channel.wait_until_executed(),
            ):
                with pytest.raises(Refusal):
                    await late
            link.send(Kind.PING)  # has no effect after the end

    run(scenario())


def test_late_result_of_a_cancelled_call_is_ignored() -> None:
    async def scenario() -> None:
        async with linked() as (link, peer):
            call = asyncio.create_task(link.call(1, commands_pb2.Command()))
            await receive(peer, 1)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            ping = asyncio.create_task(link.ping())
            await receive(peer, 1)
            peer.send(frames.encode(Kind.RESULT, b"", id=1) + frames.encode(Kind.PONG, id=2))
            await ping
            assert not link.pending_calls

    run(scenario())


def test_response_may_carry_an_ack() -> None:
    async def scenario() -> None:
        async with linked() as (link, peer):
            channel = link.open_channel(session())
            heard: list[object] = []

            class Sink:
                def on_response(self, payload: bytes) -> None:
                    heard.append(payload)

                def on_ack(self, seq: int) -> None:
                    heard.append(seq)

                def on_lost(self, refusal: Refusal, event: bytes) -> None: ...

            channel.sink = Sink()  # type: ignore[assignment]
            for _ in range(3):
                channel.send_batch(b"batch")
            peer.send(frames.encode(Kind.RESPONSE, b"one", channel=channel.number, id=2))
            peer.send(frames.encode(Kind.RESPONSE, b"two", channel=channel.number))
            peer.send(frames.encode(Kind.RESPONSE, b"three", channel=channel.number, id=3))
            await channel.wait_until_executed()
            assert heard == [2, b"one", b"two", 3, b"three"] and channel.batches.acked == 3

    run(scenario())


def test_refusal_of_a_frame_ends_only_the_stream_of_its_channel() -> None:
    async def scenario() -> None:
        async with linked() as (link, peer):
            channel = link.open_channel(session())
            lost: list[Refusal] = []
            refusal = Refusal(Reason.QUEUE_FULL, "too much")

            class Sink:
                def on_response(self, payload: bytes) -> None:
                    raise refusal

                def on_lost(self, refusal: Refusal, event: bytes) -> None:
                    lost.append(refusal)

            channel.sink = Sink()  # type: ignore[assignment]
            ping = asyncio.create_task(link.ping())
            await receive(peer, 2)
            peer.send(frames.encode(Kind.RESPONSE, b"one", channel=channel.number) + frames.encode(Kind.PONG, id=1))
            await ping
            assert lost == [refusal] and not link.closed.done()
            channel.sink = None

    run(scenario())
